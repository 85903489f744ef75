"""Foreign values on their way into columns: what does not fit is left out, counted, and placed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracekit import api, store, values
from tracekit.ingest.base import write_columns
from tracekit.schema import TABLES, table

PLACES = [11, 12, 13]


@pytest.mark.parametrize(
    ("column", "bad"),
    [
        ("time_ns", 10**30),
        ("time_ns", -(10**30)),
        ("time_ns", 2**62),
        ("time_ns", -(2**62)),
        ("time_ns", "soon"),
        ("interval_ns", 2**63),
        ("queue", 2**31),
        ("queue", float("nan")),
        ("counted", -1),
        ("counted", 2**64),
        ("value", float("inf")),
        ("value", float("nan")),
        ("value", 10**400),
        ("value", [1.0]),
    ],
)
def test_a_number_that_does_not_fit_is_null_and_its_place_is_known(column: str, bad: Any) -> None:
    good: Any = 5 if column != "value" else 5.0
    rows, misfits = values.fitted(
        "net_sample", {"place": PLACES, column: [good, bad, None], "port": ["a", "b", "c"]}
    )
    assert rows.column(column).to_pylist() == [good, None, None]
    assert rows.column("port").to_pylist() == ["a", "b", "c"]
    assert misfits == [values.Misfit(column, 1, 1, is_text=False)]


@pytest.mark.parametrize(
    ("bad", "repaired"),
    [
        ("half \ud800", "half �"),
        ("\udce9t\udce9", "�t�"),
        ("\ud83d\ude00", "\U0001f600"),
        ("é \udfff", "é �"),
    ],
)
def test_text_that_is_none_is_repaired(bad: str, repaired: str) -> None:
    rows, misfits = values.fitted("net_sample", {"place": PLACES, "port": ["a", None, bad]})
    assert rows.column("port").to_pylist() == ["a", None, repaired]
    assert misfits == [values.Misfit("port", 2, 1, is_text=True)]
    rows, misfits = values.fitted("log_event", {"fields": [["node=a"], [bad, "x"], None]})
    assert rows.column("fields").to_pylist() == [["node=a"], [repaired, "x"], None]
    assert misfits == [values.Misfit("fields", 1, 1, is_text=True)]


def test_arrays_of_other_types_are_cast_and_what_does_not_fit_is_null() -> None:
    rows, misfits = values.bounded(
        "net_sample", pa.table({"queue": pa.array([1, 2**40, None]), "place": PLACES})
    )
    assert rows.column("queue").to_pylist() == [1, None, None]
    assert misfits == [values.Misfit("queue", 1, 1, is_text=False)]


def test_what_fits_is_passed_on_as_it_is() -> None:
    packed = pa.array(["a", "b"]).dictionary_encode()
    times = pa.array(np.array([0, 2**62 - 1]))
    given = pa.table({"counter": packed, "time_ns": times, "value": pa.array([1.0, None])})
    rows, misfits = values.bounded("gpu_sample", given)
    assert rows is given
    assert misfits == []


@pytest.mark.parametrize("type_", [pa.int32(), pa.int64(), pa.uint64(), pa.float64(), pa.null()])
def test_times_of_other_types_are_looked_at_as_times(type_: pa.DataType) -> None:
    given = pa.array([None if pa.types.is_null(type_) else 7, None], type_)
    table_of = pa.table({"place": [1, 2], "time_ns": given})
    rows, misfits = values.bounded("gpu_sample", table_of)
    assert rows is table_of
    assert misfits == []


@pytest.mark.parametrize("type_", [pa.int64(), pa.float64()])
def test_a_time_that_cannot_be_meant_is_null_whatever_its_type(type_: pa.DataType) -> None:
    given = pa.table(
        {"place": [1, 2], "time_ns": pa.array(np.array([7, 2**62]).astype(type_.to_pandas_dtype()))}
    )
    rows, misfits = values.bounded("gpu_sample", given)
    assert rows.column("time_ns").to_pylist() == [7, None]
    assert misfits == [values.Misfit("time_ns", 1, 1, is_text=False)]


def test_every_table_takes_its_own_types() -> None:
    for spec in TABLES:
        columns: dict[str, list[object]] = {c.name: [None, None] for c in spec.stored_columns}
        rows, misfits = values.fitted(spec.name, columns)
        assert rows.schema == spec.arrow_schema()
        assert not misfits


def test_the_sink_counts_what_did_not_fit(tmp_path: Any) -> None:
    shard = store.ShardWriter(tmp_path)
    sink = shard.sink(0)
    write_columns(sink, "link", {"place": PLACES, "node": ["a", "\ud800", "\ud801"]})
    sink.write("gpu_sample", pa.table({"place": [7], "time_ns": pa.array([2**62])}))
    sink.fact(world_size=2**80, host_name="h\udcff", window_end_ns=2**70)
    sink.close(path="tr\udce9ce.json", kind="kineto", status="ok")
    files = {f.table: tmp_path / f.path for f in shard.close()}
    stats = pq.read_table(files["ingest_stat"]).to_pylist()
    told = {(s["counter"], s["shape"]): (s["occurrence_count"], s["place"]) for s in stats}
    assert told == {
        ("bad_text", "node"): (4, 12),
        ("no_fit", "time_ns"): (3, 7),
    }
    (source,) = pq.read_table(files["source"]).to_pylist()
    assert source["path"] == "tr�ce.json"
    assert source["host_name"] == "h�"
    assert source["world_size"] is source["window_end_ns"] is None
    assert [s["doc"] for s in stats if not s["doc"].endswith(".")] == []
    assert table("source").column("path").type == "VARCHAR"


def test_names_and_values_that_are_no_text_end_no_ingest(tmp_path: Path) -> None:
    table_text = b"timestamp,gpu,power_W\n2026-07-21T03:01:07Z,0,300\n"
    (tmp_path / "good.csv").write_bytes(table_text)
    try:
        (tmp_path / os.fsdecode(b"latin-\xe9.csv")).write_bytes(table_text)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    (tmp_path / "sonic.json").write_text(
        r'{"COUNTERS:oid:0x1": {"SAI_PORT_STAT_IF_IN_OCTETS": "\ud800", "SAI_\ud800": "5"},'
        r' "COUNTERS_PORT_NAME_MAP": {"Eth\ud8000": "oid:0x1"}}'
    )
    with api.open(tmp_path) as run:
        found = run.sql("SELECT path, status FROM source ORDER BY path").rows()
        samples = run.query("gpu_counters")["gpu_id"].to_list()
    names = [Path(path).name for path, _ in found]
    assert names == ["good.csv", "latin-\ufffd.csv", "sonic.json"]
    assert [status for _, status in found][:2] == ["ok", "ok"]
    assert samples == [f"GPU 0 of {tmp_path / name}" for name in names[:2]]
