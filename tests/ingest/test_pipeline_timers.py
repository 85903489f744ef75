"""Timer files: eleven columns in, the same eleven out of pipeline_op."""

from __future__ import annotations

import io
import math
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracekit import api
from tracekit.ingest import recognise
from tracekit.ingest.files import expand

ROWS: list[dict[str, Any]] = [
    {"dp_rank": d, "stage": s, "rank": 2 * s + d, "step": step, "optype": optype,
     "start_ts": 0.125 * k, "duration": 0.0625, "seq_id": k, "mc": mc, "mb_id": mb, "gmc": g}
    for d in (0, 1)
    for s in (0, 1)
    for step in (23, 1048)
    for k, (optype, mc, mb, g) in enumerate(
        [("forward-compute", 0, 0, s), ("forward-send", -1, -1, -1), ("gc", -1, 0, -1)]
    )
]  # fmt: skip
TYPES = {"start_ts": pa.float32(), "duration": pa.float32(), "step": pa.int64(), "rank": pa.int16()}


def table(rows: list[dict[str, Any]], **changed: Any) -> pa.Table:
    columns: dict[str, Any] = {}
    for name in ROWS[0]:
        values = pa.array([r[name] for r in rows], TYPES.get(name))
        columns[name] = values.dictionary_encode() if name == "optype" else values
    return pa.table({**columns, **changed})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))


def write(path: Path, rows: pa.Table) -> Path:
    pq.write_table(rows, path)
    return path


def test_the_eleven_columns_survive(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.parquet", table(ROWS))
    with api.open(path) as run:
        rows = run.sql("SELECT * FROM pipeline_op ORDER BY dp_rank, pp_rank, step, sequence")
        sources = run.sql("SELECT kind, status, place_kind, time_basis FROM source").rows()
    assert sources == [("pipeline_timers", "ok", "row", "relative")]
    back = [
        {
            "dp_rank": r["dp_rank"],
            "stage": r["pp_rank"],
            "rank": r["rank"],
            "step": r["step"],
            "optype": r["operation"],
            "start_ts": r["start_ns"] / 1e9,
            "duration": (r["end_ns"] - r["start_ns"]) / 1e9,
            "seq_id": r["sequence"],
            "mc": -1 if r["chunk"] is None else r["chunk"],
            "mb_id": -1 if r["microbatch"] is None else r["microbatch"],
            "gmc": -1 if r["global_chunk"] is None else r["global_chunk"],
        }
        for r in rows.to_dicts()
    ]
    assert back == ROWS


def test_it_is_recognised_by_columns_not_by_name(tmp_path: Path) -> None:
    ours = write(tmp_path / "x.bin", table(ROWS, extra=pa.array(range(len(ROWS)))))
    other = write(tmp_path / "trace-ST.parquet", table(ROWS).drop_columns(["gmc"]))
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1" + bytes(100))
    found = {f.name: recognise(f) for f in expand([tmp_path])}
    assert (found[ours.name].kind, found[ours.name].ingestor) == (
        "pipeline_timers", "pipeline_timers")  # fmt: skip
    assert (found[other.name].kind, found[other.name].status) == ("parquet", "unrecognised")
    assert (found["broken.parquet"].kind, found["broken.parquet"].status) == (
        "parquet", "unreadable")  # fmt: skip


def test_inside_an_archive(tmp_path: Path) -> None:
    data = io.BytesIO()
    pq.write_table(table(ROWS), data)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("trace.parquet")
        info.size = len(data.getvalue())
        archive.addfile(info, io.BytesIO(data.getvalue()))
    with api.open(tmp_path / "a.tar") as run:
        assert run.sql("SELECT count(*) FROM pipeline_op").item() == len(ROWS)


def test_rows_that_cannot_be_placed_are_counted(tmp_path: Path) -> None:
    bad = [dict(r) for r in ROWS]
    bad[1]["duration"] = -1.0
    bad[2]["start_ts"] = float("nan")
    bad[3]["stage"] = None
    path = write(tmp_path / "trace.parquet", table(bad))
    with api.open(path) as run:
        assert run.sql("SELECT count(*) FROM pipeline_op").item() == len(ROWS) - 3
        counted = run.sql(
            "SELECT counter, occurrence_count, place FROM ingest_stat ORDER BY counter"
        ).rows()
    assert counted == [("timer_incomplete", 2, 2), ("timer_negative", 1, 1)]


def test_an_empty_file_is_empty(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.parquet", table(ROWS).slice(0, 0))
    with api.open(path) as run:
        assert run.sql("SELECT status FROM source").item() == "empty"
        assert run.sql("SELECT count(*) FROM pipeline_op").item() == 0


def test_a_row_given_twice_counts_once(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", table(ROWS))
    write(tmp_path / "b.parquet", table(ROWS[:4]))
    with api.open(tmp_path / "a.parquet") as run:
        once = run.sql("SELECT count(*) FROM pipeline_op").item()
    with api.open([tmp_path / "a.parquet", tmp_path / "b.parquet"]) as run:
        assert run.sql("SELECT count(*) FROM pipeline_op").item() == once


def test_what_is_no_number_loses_its_row_and_not_the_file(tmp_path: Path) -> None:
    ranks = pa.array(["0", "1", "two", "3", "99999999999999999999", *["0"] * 7])
    path = write(tmp_path / "trace.parquet", table(ROWS[:12], rank=ranks))
    with api.open(path) as run:
        assert run.sql("SELECT count(*) FROM pipeline_timer").rows() == [(10,)]
        issues = "SELECT counter, occurrence_count, place, shape FROM ingest_stat ORDER BY counter"
        assert run.sql(issues).rows() == [
            ("no_fit", 2, 2, "rank"),
            ("timer_incomplete", 2, 2, None),
        ]


def test_numbers_that_do_not_fit_lose_their_rows(tmp_path: Path) -> None:
    far = pa.array([2.0**70, math.inf, 7.0, *[0.0] * 9])
    late = pa.array([*[0.125] * 10, 8e9, 1e300])
    path = write(tmp_path / "trace.parquet", table(ROWS[:12], step=far, duration=late))
    with api.open(path) as run:
        found = run.sql("SELECT place FROM pipeline_timer ORDER BY place").rows()
        assert [place for (place,) in found] == [*range(2, 10)]


def test_columns_of_no_number_at_all_leave_no_row_and_no_error(tmp_path: Path) -> None:
    odd = pa.array([{"a": 1}] * len(ROWS))
    path = write(tmp_path / "trace.parquet", table(ROWS, stage=odd))
    with api.open(path) as run:
        assert run.sql("SELECT count(*) FROM pipeline_timer").rows() == [(0,)]
        assert run.sql("SELECT status FROM source").rows() == [("unreadable",)]


def test_a_column_that_is_there_twice_is_refused_by_name(tmp_path: Path) -> None:
    rows = table(ROWS)
    path = write(tmp_path / "trace.parquet", rows.append_column("rank", rows["rank"]))
    with api.open(path) as run:
        ((status, reason),) = run.sql("SELECT status, reason FROM source").rows()
    assert (status, "rank more than once" in reason) == ("unreadable", True)


def test_a_long_name_of_every_operation_is_shortened(tmp_path: Path) -> None:
    long = pa.array(["forward" * 1000] * len(ROWS))
    path = write(tmp_path / "trace.parquet", table(ROWS, optype=long))
    with api.open(path) as run:
        ((longest,),) = run.sql("SELECT max(length(operation)) FROM pipeline_timer").rows()
    assert longest == 100
