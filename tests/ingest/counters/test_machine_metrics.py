"""node_exporter's metrics of a machine and its disks, as text and as Prometheus answers them."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from memory_sink import MemorySink
from net_cases import SHARED, ingest, ingest_path

from tracekit import api, schema
from tracekit.store.reader import _physical

SECOND = 10**9
E2E = SHARED / "dcgm" / "node_exporter_e2e-output.txt"
SCRAPE = """\
# 2026-11-23T08:00:00Z
# TYPE node_pressure_memory_waiting_seconds_total counter
node_pressure_memory_waiting_seconds_total 1.5
node_procs_running 3
node_disk_reads_completed_total{device="sda"} 2.5354637e+07
node_disk_read_time_seconds_total{device="sda"} 18492.372
node_load1 0.21
"""


def numbers(sink: MemorySink) -> list[tuple[object, ...]]:
    return [
        (r.get("device"), r["counter"], r["value"] if r["counted"] is None else r["counted"])
        for table in ("host_sample", "storage_sample")
        if table in sink.tables
        for r in sink.table(table).to_pylist()
    ]


def test_a_scrape() -> None:
    sink = ingest(SCRAPE, "prometheus", "host07-node.prom")
    assert sink.facts["host_name"] == "host07"
    assert numbers(sink) == [
        (None, "memory_pressure_some_time", 1_500_000_000),
        (None, "runnable_tasks", 3.0),
        ("sda", "read_requests", 25354637),
        ("sda", "read_time", 18492_372_000_000),
    ]
    assert sink.counters == {"other_metric": 1}
    (stamp,) = {r["time_ns"] for r in sink.table("storage_sample").to_pylist()}
    assert stamp == 1795420800 * SECOND


def test_the_exporter_s_own_example() -> None:
    if not E2E.exists():
        pytest.skip("no shared samples here")
    sink = ingest_path(E2E, "prometheus")
    told = {(device, counter): number for device, counter, number in numbers(sink)}
    assert told[None, "io_pressure_full_time"] == 159_229_614_000
    assert told[None, "cpu_pressure_some_time"] == 14_036_781_000
    assert told["sda", "busy_time"] == 9653_880_000_000
    assert told["nvme0n1", "read_time"] == 21_650_000_000
    assert told["sdc", "flush_requests"] == 1555


def answer(*instances: str) -> str:
    name = "node_pressure_cpu_waiting_seconds_total"
    result = [
        {
            "metric": {"__name__": name, "instance": f"{host}:9100"},
            "values": [[1795420800, "0.25"], [1795420815, "1.25"], [1795420830, "x"]],
        }
        for host in instances
    ]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def test_an_answer_of_one_machine() -> None:
    sink = ingest(answer("gpu-11"), "prometheus", "answer.json")
    assert sink.facts["host_name"] == "gpu-11"
    rows = sink.table("host_sample").to_pylist()
    assert [r["counted"] for r in rows] == [250_000_000, 1_250_000_000]
    assert rows[1]["time_ns"] - rows[0]["time_ns"] == 15 * SECOND
    assert sink.counters["bad_number"] == 1


def nodes(sink: MemorySink) -> list[str | None]:
    return [r["node"] for r in sink.table("host_sample").to_pylist()]


def test_rows_of_further_machines_name_them_and_those_of_the_first_are_the_file_s() -> None:
    sink = ingest(answer("gpu-11", "gpu-12"), "prometheus", "answer.json")
    assert sink.facts["host_name"] == "gpu-11"
    assert nodes(sink) == [None, None, "gpu-12", "gpu-12"]


def test_machines_without_a_name_are_told_apart_by_their_addresses() -> None:
    """The first is whose file it is, which its name or job.toml may say."""
    sink = ingest(answer("10.0.0.5", "10.0.0.6"), "prometheus", "gpu-3.json")
    assert nodes(sink) == [None, None, "10.0.0.6", "10.0.0.6"]
    assert "10.0.0" not in str(sink.facts.get("host_name"))


def test_each_machine_of_an_answer_is_asked_by_itself(tmp_path: Path) -> None:
    """Hosts are called as elsewhere: short, in lower case; an address is whole."""
    instances = ("gpu-11.example.org", "GPU-12.example.org", "10.0.0.6")
    (tmp_path / "answer.json").write_text(answer(*instances))
    with api.open(tmp_path / "answer.json") as run:
        rows = run.query("host_pressure").to_dicts()
    hosts = ["10.0.0.6", "gpu-11", "gpu-12"]
    assert [(r["host"], r["resource"]) for r in rows] == [(host, "cpu") for host in hosts]
    assert {round(r["some_ratio"], 6) for r in rows} == {round(1 / 15, 6)}


def test_rows_that_were_kept_before_they_named_machines_are_the_file_s(tmp_path: Path) -> None:
    table = schema.table("host_sample")
    kept = [f for f in table.arrow_schema() if f.name != "node"]
    rows = pa.table([pa.array([None], f.type) for f in kept], names=[f.name for f in kept])
    pq.write_table(rows, tmp_path / "old.parquet")
    with duckdb.connect() as con:
        text = _physical(table, {"host_sample": f"read_parquet('{tmp_path}/old.parquet')"})
        assert con.execute(f"SELECT node FROM ({text})").fetchall() == [(None,)]
