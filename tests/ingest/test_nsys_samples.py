"""Samples of NICs, switches and GPUs beside a trace: once a host, under the export's own names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from memory_sink import MemorySink
from nsys_exports import START_NS, Export

from tracekit.ingest import IngestOptions, ingestor
from tracekit.ingest.files import expand

pytestmark = pytest.mark.usefixtures("nsys_reader")

TABLES = {
    "NET_NIC_METRIC": "start INTEGER, end INTEGER, globalId INTEGER, metricsListId INTEGER,"
    " metricsIdx INTEGER, value INTEGER",
    "NET_IB_SWITCH_METRIC": "start INTEGER, end INTEGER, globalId INTEGER, metricsListId INTEGER,"
    " metricsIdx INTEGER, value INTEGER",
    "NIC_ID_MAP": "nicId INTEGER, globalId INTEGER",
    "TARGET_INFO_NIC_INFO": "GUID INTEGER, stateName TEXT, nicId INTEGER, name TEXT",
    "TARGET_INFO_NETWORK_METRICS": "metricsListId INTEGER, metricsIdx INTEGER, name TEXT,"
    " description TEXT, unit TEXT",
    "GPU_METRICS": "rawTimestamp INTEGER, timestamp INTEGER, typeId INTEGER, metricId INTEGER,"
    " value INTEGER",
    "TARGET_INFO_GPU_METRICS": "typeId INTEGER, metricId INTEGER, metricName TEXT",
}


def fill(export: Export) -> None:
    for name, columns in TABLES.items():
        export.con.execute(f"CREATE TABLE {name} ({columns})")
    export.gpu(3, 7)
    export.put("NIC_ID_MAP", nicId=5, globalId=900)
    export.put("TARGET_INFO_NIC_INFO", GUID=1, stateName="", nicId=5, name="mlx5_0")
    for index, name in enumerate(("IB: Bytes sent", "IB: CNPs received", "IB: Send waits")):
        export.put(
            "TARGET_INFO_NETWORK_METRICS", metricsListId=2, metricsIdx=index, name=name,
            description="secret\x00text", unit="ticks/ms" if index == 2 else None,
        )  # fmt: skip
        where = {"metricsListId": 2, "metricsIdx": index}
        export.put("NET_NIC_METRIC", start=100, end=200, globalId=900, value=10 + index, **where)
    export.put(
        "NET_IB_SWITCH_METRIC", start=100, end=200, globalId=0xAB, metricsListId=2, metricsIdx=0,
        value=7,
    )  # fmt: skip
    export.put(
        "NET_NIC_METRIC", start=1, end=2, globalId=900, metricsListId=9, metricsIdx=9, value=1
    )
    export.put("TARGET_INFO_GPU_METRICS", typeId=0x703, metricId=4, metricName="SMs Active [%]")
    export.put("GPU_METRICS", rawTimestamp=1, timestamp=150, typeId=0x703, metricId=4, value=88)


def sinks(path: Path) -> list[MemorySink]:
    found = []
    for source in expand([path]):
        sink = MemorySink()
        ingestor("nsys").read(source, sink, IngestOptions())
        found.append(sink)
    return found


def test_samples_keep_their_names_times_and_devices(tmp_path: Path) -> None:
    with Export(tmp_path / "a.sqlite", environment="RANK=8;LOCAL_RANK=0") as export:
        export.launch("gemm", 0, 10, 10)
        fill(export)
    (sink,) = sinks(tmp_path / "a.sqlite")
    columns = ("node", "port", "direction", "counter", "value", "unit", "time_ns", "interval_ns")
    at = START_NS + 200
    assert sink.rows("net_sample", *columns) == [
        ("node0", "mlx5_0", "tx", "ib_bytes_sent", 10.0, None, at, 100),
        ("node0", "mlx5_0", "rx", "ib_cnps_received", 11.0, None, at, 100),
        ("node0", "mlx5_0", "tx", "ib_send_waits", 12.0, "ticks/ms", at, 100),
        (None, "00000000000000ab", "tx", "ib_bytes_sent", 7.0, None, at, 100),
    ]
    assert sink.rows("gpu_sample", "device_id", "counter", "original_name", "value", "unit") == [
        (
            "GPU-00000000-0000-0000-0000-000000000003",
            "sms_active",
            "SMs Active [%]",
            88.0,
            "percent",
        )
    ]
    assert sink.rows("gpu_sample", "time_ns", "time_source") == [(START_NS + 150, "content")]
    assert sink.counters["unnamed_metric"] == 1
    # Samples are no work: the window is that of the trace.
    assert sink.facts["window_end_ns"] == START_NS + 20


@pytest.mark.parametrize(
    ("environment", "is_told"), [("LOCAL_RANK=0", True), ("LOCAL_RANK=3", False), ("", True)]
)
def test_of_exports_of_one_host_the_first_local_rank_s_tells(
    tmp_path: Path, environment: str, is_told: bool
) -> None:
    with Export(tmp_path / "a.sqlite", environment=environment) as export:
        export.launch("gemm", 0, 10, 10)
        fill(export)
    (sink,) = sinks(tmp_path / "a.sqlite")
    assert bool(sink.tables.get("net_sample")) is is_told
    assert bool(sink.tables.get("gpu_sample")) is is_told
    assert sink.counters.get("samples_left_to_another", 0) == (0 if is_told else 3)


def test_of_processes_of_one_export_the_first_tells(tmp_path: Path) -> None:
    with Export(tmp_path / "a.sqlite") as export:
        for device, pid in enumerate((20, 10)):
            export.launch("gemm", 0, 10, 10, pid=pid, tid=pid, device=device)
        fill(export)
    told = [bool(s.tables.get("net_sample")) for s in sinks(tmp_path / "a.sqlite")]
    assert told == [True, False]


def test_names_that_are_no_names_are_left_out(tmp_path: Path) -> None:
    def bad(value: Any) -> None:
        with Export(tmp_path / "a.sqlite") as export:
            export.launch("gemm", 0, 10, 10)
            fill(export)
            export.con.execute("UPDATE TARGET_INFO_NETWORK_METRICS SET name = ?", [value])
            export.con.execute("UPDATE GPU_METRICS SET value = 'x'")
            export.con.execute("UPDATE TARGET_INFO_NIC_INFO SET name = ?", [value])

    bad("a\x1b[31mname\n" * 20)
    (sink,) = sinks(tmp_path / "a.sqlite")
    assert not sink.tables.get("net_sample") or not sink.rows("net_sample")
    assert not sink.tables.get("gpu_sample") or not sink.rows("gpu_sample")
    assert sink.counters["unnamed_metric"] == 5
