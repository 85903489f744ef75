"""Series that monitoring services answer with: Datadog, CloudWatch, OpenTelemetry's JSON.

Each says in labels of its own whose a series is and in which unit; from there on its numbers are
records of devices, and names are read as in ``records``. A series that names no GPU or port
by its number is a mean or a sum over several, and is not read.

Forms are those of docs.datadoghq.com ("Query timeseries points"), of CloudWatch's GetMetricData,
whose ``nvidia_smi_*`` metrics have the units that its agent documents, and of OTLP's metrics.proto.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters.documents import dict_of, dicts_of
from tracekit.ingest.counters.records import Record, Records, of_object
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.units import symbol

NAME = "monitoring"

_FORMS = {
    "Datadog's answer of a query": re.compile(rb'"pointlist"\s*:\s*\[\s*\['),
    "CloudWatch's metric data": re.compile(rb'"MetricDataResults"\s*:\s*\['),
    "OpenTelemetry's metrics (JSON)": re.compile(rb'"resourceMetrics"\s*:\s*\['),
}
_GPU_TAGS = ("gpu", "gpu_index", "gpu_id", "gpu.index", "gpu.id", "index", "hw.id")
_PORT_TAGS = ("device", "interface", "port", "network.interface.name", "device_name")
_HOST_TAGS = (
    "host", "hostname", "host.name", "k8s.node.name", "kube_node", "node", "node_name",
)  # fmt: skip
_OF_SERVICES = re.compile(r"(?:dcgm|nvml|nvidia_smi|nvidia|gpu_operator|system|hw|node)[._]")
"""Who measured it, before the name of what it is."""
_WAYS = {"transmit": "tx", "receive": "rx", "tx": "tx", "rx": "rx", "sent": "tx", "rcvd": "rx"}
_NET = re.compile(r"net(?:work)?\.(?:bytes_)?(io|packets|errors|dropped|sent|rcvd)\Z")
_NET_NAMES = {"io": "bytes", "sent": "bytes", "rcvd": "bytes"}
_OF_AN_INTERVAL = "what was counted in an interval, and not since the start"
_CLOUDWATCH_UNITS = {
    "utilization_gpu": "%", "utilization_memory": "%", "power_draw": "W",
    "temperature_gpu": "C", "memory_used": "MiB", "memory_free": "MiB", "memory_total": "MiB",
    "clocks_current_sm": "MHz", "clocks_current_graphics": "MHz", "clocks_current_memory": "MHz",
}  # fmt: skip


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise any by the names around its series."""
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] not in (b"{", b"["):
        return None
    for what, form in _FORMS.items():
        if form.search(head[:65536]):
            return Recognition(NAME, what, NAME)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Every number of a GPU or port that has a meaning into gpu_sample or net_sample."""
    with source.open() as stream:
        reading = Reading(sink, stream, None, "row")  # of all points of the answer
        reading.from_documentation("An answer of a monitoring service")
        table = Records(source, sink, reading)
        values = (document.value for document in reading.documents())
        for row, record in enumerate((r for v in values for r in _records(v)), 1):
            table.add(row, record)
        table.finish()
        reading.finish(table.table.ports, streams.stream_problem(stream))


def _records(value: Any) -> Iterator[Record | None]:
    for answer in dicts_of(value) if isinstance(value, list) else [dict_of(value)]:
        for series in dicts_of(answer.get("series")):
            yield from _of_datadog(series)
        for result in dicts_of(answer.get("MetricDataResults")):
            yield from _of_cloudwatch(result)
        for resource in dicts_of(answer.get("resourceMetrics")):
            yield from _of_otlp(resource)


def _record(
    time: object, labels: Mapping[str, str], name: str, unit: str, value: object
) -> Record | None:
    """A number of a series; its device and host from the labels."""
    host = next((labels[tag] for tag in _HOST_TAGS if labels.get(tag)), None)
    device = next(((tags[0], labels[tag]) for tags in (_GPU_TAGS, _PORT_TAGS) for tag in tags
                   if labels.get(tag)), None)  # fmt: skip
    named = f"{name} [{unit}]" if unit else name
    said = {"time": time, named: value, **({"host": host} if host else {})}
    return of_object({**said, device[0]: device[1]} if device else said)


def _metric(name: str, way: str, unit: str) -> str:
    """What a series counts, without who measured it; ``tx_bytes`` of ``system.network.io``."""
    if (of_port := _NET.search(name)) is not None:
        way = _WAYS.get(way) or _WAYS.get(of_port[1], "")
        what = _NET_NAMES.get(of_port[1], of_port[1])
        # A rate is told by its unit alone: tx [MB/s].
        return way if unit.endswith("/s") else f"{way}_{what}".strip("_")
    while (service := _OF_SERVICES.match(name)) is not None:
        name = name[service.end() :]
    return re.sub(r"[._]", "_", name).replace("memory_usage", "memory_used")


# --- Datadog --------------------------------------------------------------------------------------


def _of_datadog(series: Mapping[str, Any]) -> Iterator[Record | None]:
    tags = series.get("tag_set")
    listed = tags if isinstance(tags, list) else str(series.get("scope", "")).split(",")
    labels = dict(tag.split(":", 1) for tag in map(str, listed) if ":" in tag)
    units = series.get("unit")
    said = dicts_of(units if isinstance(units, list) else [])
    unit = "/".join(str(u.get("name", "")) for u in said)
    unit = symbol(unit.replace("/second", " per second"))
    name = str(series.get("metric") or series.get("display_name") or "")
    points = series.get("pointlist")
    for point in points if isinstance(points, list) else []:
        if not isinstance(point, list) or len(point) != 2:
            yield None
        elif point[1] is not None:
            yield _record(point[0], labels, _metric(name, "", unit), unit, point[1])


# --- CloudWatch -----------------------------------------------------------------------------------


def _of_cloudwatch(result: Mapping[str, Any]) -> Iterator[Record | None]:
    words = str(result.get("Label", "")).split()
    name = next((w for w in words if w.startswith("nvidia_smi_")), None)
    stamps, values = result.get("Timestamps"), result.get("Values")
    if name is None or not isinstance(stamps, list) or not isinstance(values, list):
        return
    metric = name.removeprefix("nvidia_smi_")
    numbers = [w for w in words if w.isdecimal()]
    hosts = [w for w in words if w != name and re.fullmatch(r"(?:i-[0-9a-f]+|ip-[\w.-]+)", w)]
    labels = {"gpu": numbers[0]} if len(numbers) == 1 else {}
    labels |= {"host": hosts[0]} if len(hosts) == 1 else {}
    for stamp, value in zip(stamps, values, strict=False):
        yield _record(stamp, labels, metric, _CLOUDWATCH_UNITS.get(metric, ""), value)


# --- OpenTelemetry --------------------------------------------------------------------------------


def _of_otlp(resource: Mapping[str, Any]) -> Iterator[Record | None]:
    around = _attributes(dict_of(resource.get("resource")))
    for scope in dicts_of(resource.get("scopeMetrics")):
        for metric in dicts_of(scope.get("metrics")):
            yield from _of_metric(metric, around)


def _of_metric(metric: Mapping[str, Any], around: Mapping[str, str]) -> Iterator[Record | None]:
    said = dict_of(metric.get("sum")) or dict_of(metric.get("gauge"))
    temporality = str(said.get("aggregationTemporality", ""))
    is_total = "sum" in metric and said.get("isMonotonic") is True
    is_total = is_total and (temporality == "2" or temporality.endswith("CUMULATIVE"))
    unit = symbol(str(metric.get("unit", "")))
    for point in dicts_of(said.get("dataPoints")):
        labels = {**around, **_attributes(point)}
        way = labels.get("network.io.direction") or labels.get("direction") or ""
        name = _metric(str(metric.get("name", "")), way, unit)
        if not is_total and (_NET.search(str(metric.get("name", ""))) and unit[-2:] != "/s"):
            name = f"{name}: {_OF_AN_INTERVAL}"
        value = point.get("asDouble", point.get("asInt"))
        yield _record(point.get("timeUnixNano"), labels, name, unit, value)


def _attributes(holder: Mapping[str, Any]) -> dict[str, str]:
    return {
        str(pair.get("key")): str(next(iter(dict_of(pair.get("value")).values()), ""))
        for pair in dicts_of(holder.get("attributes"))
    }
