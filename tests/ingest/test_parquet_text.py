"""Tables of counters that stand in Parquet."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from memory_sink import MemorySink, source_of
from net_cases import ingest

from tracekit.ingest import recognise
from tracekit.ingest.files import read_head
from tracekit.ingest.parquet_text import as_text

T_S = 1763800000
MOMENTS = [T_S * 10**9 + i * 10**8 for i in range(3)]


def stored(columns: dict[str, object], rows_a_group: int = 1000) -> bytes:
    made = io.BytesIO()
    pq.write_table(pa.table(columns), made, row_group_size=rows_a_group)
    return made.getvalue()


def samples(data: bytes, family: str, name: str) -> MemorySink:
    found = recognise(source_of(data, name))
    assert (found.ingestor, found.status) == (family, "ok")
    return ingest(source_of(data, name), family)


@pytest.mark.parametrize(
    "time",
    [
        {"timestamp": [m / 1e9 for m in MOMENTS]},
        {"timestamp": [m // 10**6 for m in MOMENTS]},
        {"ts": pa.array(MOMENTS, pa.timestamp("ns", "UTC"))},
        {"time": pa.array([m // 1000 for m in MOMENTS], pa.timestamp("us", "Europe/Berlin"))},
        {"__index_level_0__": pa.array(MOMENTS, pa.timestamp("ns", "UTC"))},
    ],
)
def test_times_of_every_type_are_the_same_moments(time: dict[str, object]) -> None:
    data = stored({"ib0_tx_bytes_s": [1.5, 2.0, 1e10], "ib1_tx_bytes_s": [1, 2, 3], **time})
    sink = samples(data, "device_csv", "ib_node0.parquet")
    rows = sorted((r["port"], r["time_ns"], r["value"]) for r in sink.rows("net_sample"))
    assert rows == [
        *zip(["ib0"] * 3, MOMENTS, [1.5, 2.0, 1e10], strict=True),
        *zip(["ib1"] * 3, MOMENTS, [1.0, 2.0, 3.0], strict=True),
    ]
    assert {r["node"] for r in sink.rows("net_sample")} == {"node0"}


def test_a_time_without_a_zone_stays_local() -> None:
    moments = pa.array([datetime(2025, 11, 22, 8, 26, 40)] * 2, pa.timestamp("us"))
    sink = samples(
        stored({"time": moments, "gpu0_power_w": [1, 2], "gpu1_power_w": [3, 4]}),
        "device_csv",
        "x.parquet",
    )
    assert sink.counters["local_time"] == 1


def test_structs_dictionaries_decimals_counts_and_nulls() -> None:
    gpu = pa.array([{"power_w": 5.5, "temp_c": 40}, None, {"power_w": 6.5, "temp_c": None}])
    data = stored(
        {
            "timestamp": MOMENTS,
            "gpu0": gpu,
            "ib0_rx_bytes": pa.array([2**63 + 1, None, 7], pa.uint64()),
            "psu0_power_w": pa.array([Decimal("1.25"), None, Decimal("2.50")]),
            "phase": pa.array(["warmup", "train", "train"]).dictionary_encode(),
            "note": [b"\0", b"", b"x"],
        },
        rows_a_group=2,
    )
    sink = samples(data, "device_csv", "all_node3.parquet")
    gpus = sorted((r["counter"], r["time_ns"], r["value"]) for r in sink.rows("gpu_sample"))
    assert gpus == [
        ("gpu_temperature", MOMENTS[0], 40.0),
        ("power", MOMENTS[0], 5.5),
        ("power", MOMENTS[2], 6.5),
    ]
    assert [(r["time_ns"], r["counted"]) for r in sink.rows("net_sample")] == [
        (MOMENTS[0], 2**63 + 1),
        (MOMENTS[2], 7),
    ]
    assert [r["value"] for r in sink.rows("host_sample")] == [1.25, 2.5]
    assert [r["name"] for r in sink.rows("annotation")] == ["warmup", "train"]
    assert sink.counters["column_not_read_it_names_no_device"] == 1


def test_a_list_of_gpus_is_read_as_json_is() -> None:
    gpus = [[{"index": 0, "power_w": 1.5}, {"index": 1, "power_w": 2.5}]] * 3
    sink = samples(
        stored({"timestamp": MOMENTS, "gpus": gpus}), "device_records", "x_node1.parquet"
    )
    rows = sorted((r["nvml_index"], r["time_ns"], r["value"]) for r in sink.rows("gpu_sample"))
    assert rows == [(0, m, 1.5) for m in MOMENTS] + [(1, m, 2.5) for m in MOMENTS]


def test_a_row_a_number_and_a_row_a_device_are_tables_of_gpus() -> None:
    long = stored(
        {
            "timestamp": [datetime.fromtimestamp(T_S, UTC)] * 2,
            "gpu": [0, 1],
            "metric": pa.array(["power", "power"]).dictionary_encode(),
            "value": [1.5, 2.5],
        }
    )
    sink = samples(long, "gpu_csv", "x.parquet")
    assert sorted(r["value"] for r in sink.rows("gpu_sample")) == [1.5, 2.5]


def test_a_damaged_table_and_one_of_nothing_known_are_said_so() -> None:
    whole = stored({"timestamp": MOMENTS, "ib0_tx_bytes_s": [1, 2, 3], "ib1_tx_bytes_s": [1, 2, 3]})
    assert recognise(source_of(whole[:-20], "x.parquet")).status == "unreadable"
    other = recognise(source_of(stored({"a": [1], "b": ["x"]}), "x.parquet"))
    assert (other.kind, other.status) == ("parquet", "unrecognised")
    assert "columns" in other.reason


def test_where_pages_are_damaged_the_rows_before_stay() -> None:
    moments = [T_S * 10**9 + i * 10**8 for i in range(40_000)]
    data = bytearray(
        stored({"ts": moments, "gpu0_power_w": [5] * 40_000, "gpu1_power_w": [5] * 40_000}, 20_000)
    )
    middle = len(data) // 2
    data[middle + 2000 : middle + 4000] = b"\xff" * 2000
    source = source_of(bytes(data), "x_node0.parquet")
    sink = ingest(source, "device_csv")
    assert sink.facts["status"] == "partial"
    assert 0 < len(sink.rows("gpu_sample")) < 80_000


def test_what_is_no_parquet_stays_as_it_is() -> None:
    source = source_of(b"timestamp,gpu0_power_w\n", "x.csv")
    assert as_text(source) is source
    assert read_head(as_text(source)) == b"timestamp,gpu0_power_w\n"
