"""Samples of counters that nsys takes beside a trace: NICs, InfiniBand switches, GPUs.

Every nsys on a host samples all of the host's devices, so of several exports of one host only that
of the first process or local rank is read. Names and units are kept as the export states them:
what they mean differs from device to device, so no rule reads them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.ingest.nsys import meta as m
from tracekit.ingest.traces.columns import constant, ints, texts

if TYPE_CHECKING:
    from tracekit.ingest.nsys.reader import Reader

NIC, SWITCH, GPU = "NET_NIC_METRIC", "NET_IB_SWITCH_METRIC", "GPU_METRICS"
TABLES = (NIC, SWITCH, GPU)
_PLAIN = re.compile(r"[A-Za-z0-9 _:/%().,\[\]-]{1,100}")
_LEFT = (
    "Samples of a host's devices, left to the export of its first local rank, which has them too."
)
_UNNAMED = "Samples whose metric the export does not name, left out."


def read(reader: Reader) -> None:
    """Write net_sample and gpu_sample, unless another export of this host has the same."""
    present = [t for t in TABLES if t in reader.database.tables]
    if not present:
        return
    if not reader.is_first_of_host:
        reader.sink.count("samples_left_to_another", len(present), severity="info", doc=_LEFT)
        return
    for table in (NIC, SWITCH):
        _network(reader, table)
    _gpus(reader)


def _network(reader: Reader, table: str) -> None:
    if not reader.database.has(table, "end", "globalId", "metricsListId", "metricsIdx", "value"):
        return
    metrics = _network_metrics(reader)
    ports = _nics(reader) if table == NIC else {}
    wanted = ("start", "end", "globalId", "portId", "metricsListId", "metricsIdx", "value")
    for batch in reader.database.stream(table, wanted):
        keys = list(zip(batch["metricsListId"], batch["metricsIdx"], strict=True))
        named = [metrics.get(k) for k in keys]
        end, start = ints(batch["end"]), ints(batch["start"])
        good = _good(reader, table, named, end, batch["value"])
        columns: dict[str, Any] = {
            "place": reader.places(table, batch),
            "node": texts([reader.meta.host if table == NIC else None] * len(batch)),
            "port": texts(
                [
                    _port(ports, g, p)
                    for g, p in zip(batch["globalId"], batch["portId"], strict=True)
                ]
            ),
            "direction": texts([_direction(n[0]) if n else None for n in named]),
            "interval_ns": pc.subtract(end, start),
            **_sample(reader, end, named, batch["value"]),
        }
        reader.put("net_sample", columns, good)


def _gpus(reader: Reader) -> None:
    if not reader.database.has(GPU, "timestamp", "typeId", "metricId", "value"):
        return
    metrics: dict[tuple[Any, Any], tuple[str, str | None]] = {}
    for kind, number, name in reader.database.rows(
        "TARGET_INFO_GPU_METRICS", ("typeId", "metricId", "metricName")
    ):
        if isinstance(name, str) and _PLAIN.fullmatch(name):
            metrics[kind, number] = (name, "percent" if "%" in name else None)
    devices = {g.gpu: g.uuid or g.pci for g in m.gpus(reader.database, -1)}
    for batch in reader.database.stream(GPU, ("timestamp", "typeId", "metricId", "value")):
        kinds = batch["typeId"]
        named = [metrics.get(k) for k in zip(kinds, batch["metricId"], strict=True)]
        time = ints(batch["timestamp"])
        good = _good(reader, GPU, named, time, batch["value"])
        columns: dict[str, Any] = {
            "place": reader.places(GPU, batch),
            # The lowest byte of a type is the number of the device.
            "device_id": texts(
                [devices.get(k & 0xFF) if isinstance(k, int) else None for k in kinds]
            ),
            **_sample(reader, time, named, batch["value"]),
        }
        reader.put("gpu_sample", columns, good)


def _sample(
    reader: Reader, time: pa.Array, named: list[tuple[str, str | None] | None], values: Any
) -> dict[str, Any]:
    n = len(time)
    return {
        "time_ns": pc.add(time, reader.meta.offset_ns),
        "time_source": constant("content", n),
        "counter": texts([_slug(x[0]) if x else None for x in named]),
        "original_name": texts([x[0] if x else None for x in named]),
        "kind": constant("window", n),
        "unit": texts([x[1] if x else None for x in named]),
        "value": pa.array(
            [float(v) if isinstance(v, int | float) else None for v in values], pa.float64()
        ),
    }


def _good(
    reader: Reader, table: str, named: list[Any], time: pa.Array, values: Any
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    known = np.array([x is not None for x in named], np.bool_)
    usable = np.array([isinstance(v, int | float) for v in values], np.bool_) & np.asarray(
        time.is_valid()
    )
    reader.tell(~known, table, "unnamed_metric", _UNNAMED)
    reader.tell(known & ~usable, table, "row_without_time", "Rows without usable times, left out.")
    good: np.ndarray[tuple[int], np.dtype[np.bool_]] = known & usable
    return good


def _network_metrics(reader: Reader) -> dict[tuple[Any, Any], tuple[str, str | None]]:
    wanted = ("metricsListId", "metricsIdx", "name", "unit")
    metrics: dict[tuple[Any, Any], tuple[str, str | None]] = {}
    for listed, index, name, unit in reader.database.rows("TARGET_INFO_NETWORK_METRICS", wanted):
        if isinstance(name, str) and _PLAIN.fullmatch(name):
            is_plain = isinstance(unit, str) and bool(_PLAIN.fullmatch(unit))
            metrics[listed, index] = (name, unit if is_plain else None)
    return metrics


def _nics(reader: Reader) -> dict[Any, str]:
    """Name of a NIC by the id that its samples carry."""
    names: dict[Any, str] = {}
    for nic, name in reader.database.rows("TARGET_INFO_NIC_INFO", ("nicId", "name")):
        if isinstance(name, str) and _PLAIN.fullmatch(name):
            names[nic] = name
    ids = reader.database.rows("NIC_ID_MAP", ("nicId", "globalId"))
    return {global_id: names[nic] for nic, global_id in ids if nic in names}


def _port(ports: dict[Any, str], global_id: object, port: object) -> str | None:
    name = ports.get(global_id) or (
        f"{global_id & (2**64 - 1):016x}" if isinstance(global_id, int) else None
    )
    return f"{name}:{port}" if name and isinstance(port, int) else name


def _direction(name: str) -> str | None:
    words = name.lower()
    return "rx" if "received" in words else "tx" if "sent" in words or "send" in words else None


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
