"""nccl-tests' own JSON (-J). Its ``env`` holds the job's whole environment and is never kept."""

from __future__ import annotations

from typing import Any

from tracekit.errors import InputError
from tracekit.ingest.base import IngestOptions, Sink, SourceFile
from tracekit.ingest.nccl import bench
from tracekit.ingest.nccl.flight import loads, whole, word
from tracekit.ingest.nccl.rows import Rows

MAX_BYTES = 64 << 20
EVENT = ("place", "code", "severity", "fields")


def read(source: SourceFile, sink: Sink, options: IngestOptions) -> None:
    """Read one result into the sink."""
    with source.open() as stream:
        data = stream.read(MAX_BYTES)
    try:
        record = loads(data)
    except (ValueError, RecursionError):
        # Not chained: the decoder's error carries the text, and with it the environment.
        record = None
    if not isinstance(record, dict) or not isinstance(record.get("results"), list):
        raise InputError(f"{source.path}: JSON of nccl-tests that breaks off")
    _write(sink, record)


def _write(sink: Sink, record: dict[str, Any]) -> None:
    config = record.get("config") if isinstance(record.get("config"), dict) else {}
    devices = [d for d in record.get("devices") or () if isinstance(d, dict)]
    name = word((config or {}).get("test") or record.get("test"))
    rows = Rows(sink, "bench_result", bench.COLUMNS)
    for place, result in enumerate(record["results"], start=1):
        for key, is_in_place in (("out_of_place", False), ("in_place", True)):
            cells = result.get(key) if isinstance(result, dict) else None
            if isinstance(cells, dict):
                rows.add(_row(place, name, len(devices), result, cells, is_in_place=is_in_place))
    measured = rows.count
    rows.flush()
    events = Rows(sink, "nccl_event", EVENT)
    for device in devices:
        given = {
            "rank": whole(device.get("rank")),
            "pid": whole(device.get("pid")),
            "host": word(device.get("hostname")),
            "device": whole(device.get("device")),
            "pci": word(device.get("device_hex")),
        }
        events.add((1, "bench_device", "info", _fields(given)))
    average = record.get("average_bus_bandwidth")
    stated = (
        average.get("bandwidth", average.get("value")) if isinstance(average, dict) else average
    )
    is_whole = record.get("end_time") is not None and measured > 0
    summary: dict[str, object] = {
        "start": 1,
        "benchmark": name,
        "named_by": None if name is None else "file",
        "version": word(record.get("version")),
        "ranks": len(devices) or None,
        "rows": len(record["results"]),
        "average_bus_gb_per_s": stated if isinstance(stated, (int, float)) else None,
        "complete": "yes" if is_whole else "no",
    }
    last = max(1, len(record["results"]))
    events.add((last, "bench", "info" if is_whole else "warning", _fields(summary)))
    events.flush()
    stated_version = word(record.get("nccl_version"))
    sink.fact(
        producer="nccl-tests",
        place_kind="row",
        time_basis="none",
        versions=[f"nccl={stated_version}"] if stated_version else None,
    )


def _row(
    place: int,
    name: str | None,
    ranks: int,
    result: dict[str, Any],
    cells: dict[str, Any],
    *,
    is_in_place: bool,
) -> tuple[Any, ...]:
    root = whole(result.get("root"))
    reduction = word(result.get("redop"))
    time, algorithm, bus = (cells.get(k) for k in ("time", "alg_bw", "bus_bw"))
    return (
        place,
        name,
        ranks or None,
        whole(result.get("size")),
        whole(result.get("count")),
        bench.DTYPES.get(str(result.get("type")).encode()),
        reduction if reduction != "none" else None,
        root if root is not None and root >= 0 else None,
        is_in_place,
        round(time * 1000) if isinstance(time, (int, float)) and 0 <= time < 1e12 else None,
        algorithm * 1e9 if isinstance(algorithm, (int, float)) else None,
        bus * 1e9 if isinstance(bus, (int, float)) else None,
        whole(cells.get("nwrong")),
    )


def _fields(given: dict[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in given.items() if value is not None]
