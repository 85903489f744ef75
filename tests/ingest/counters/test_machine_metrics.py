"""node_exporter's metrics of a machine and its disks, as text and as Prometheus answers them."""

from __future__ import annotations

import json

import pytest
from memory_sink import MemorySink
from net_cases import SHARED, ingest, ingest_path

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


def test_what_is_said_of_further_machines_is_counted_and_never_given_to_the_first() -> None:
    sink = ingest(answer("gpu-11", "gpu-12"), "prometheus", "answer.json")
    assert sink.table("host_sample").num_rows == 2
    assert sink.counters["further_machine"] == 3
