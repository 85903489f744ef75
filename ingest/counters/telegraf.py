"""Telegraf's points, in the line protocol, in JSON or as InfluxDB answers: GPUs and ports.

Inputs: nvidia_smi, infiniband, ethtool, net, and prometheus (in both of its metric versions) where
it scrapes dcgm-exporter. Other measurements are counted and not kept.
"""

from __future__ import annotations

import re

from tracekit.ingest import files, streams
from tracekit.ingest.base import Recognition, Sink, SourceFile, stated_host
from tracekit.ingest.counters import annotated_csv, fields, line_protocol, rdma_names, times
from tracekit.ingest.counters.device_samples import tell_unread
from tracekit.ingest.counters.ethtool_names import ethtool_meaning
from tracekit.ingest.counters.gpu_samples import Gpu, GpuSamples
from tracekit.ingest.counters.line_protocol import Point
from tracekit.ingest.counters.names import pci_address, uuid_of
from tracekit.ingest.counters.net_samples import NetSamples, decimal
from tracekit.ingest.counters.net_words import meaning
from tracekit.ingest.counters.node_exporter import VIRTUAL
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import lines, shape

NAME = "telegraf"

_POINT = re.compile(
    rb"^(?:nvidia_smi|infiniband|ethtool|net|prometheus|DCGM_FI_[A-Z0-9_]{1,80}),[^ \n]{1,2000} "
    rb"[^ =\n]{1,200}=[^\n]{1,8000}\d{9,19}[ \t\r]*$",
    re.M,
)
_JSON = re.compile(
    rb'^[ \t]*\{(?=[^\n]{1,16000}"tags":)(?=[^\n]{1,16000}"timestamp":)(?=[^\n]{0,16000}"fields":)'
    rb'[^\n]{1,16000}"name": ?"'
    rb'(?:nvidia_smi|infiniband|ethtool|net|prometheus|DCGM_FI_\w{1,80})"',
    re.M,
)
_ANSWERED = re.compile(
    rb"[,\n\r](?:nvidia_smi|infiniband|ethtool|net|prometheus|DCGM_FI_\w{1,80})[,\n\r]"
)
_NET = {
    "bytes_recv": "rx_bytes",
    "bytes_sent": "tx_bytes",
    "packets_recv": "rx_packets",
    "packets_sent": "tx_packets",
    "err_in": "rx_errors",
    "err_out": "tx_errors",
    "drop_in": "rx_dropped_packets",
    "drop_out": "tx_dropped_packets",
}
_SMI = {
    "fan_speed": "fan.speed",
    "memory_free": "memory.free",
    "memory_used": "memory.used",
    "memory_total": "memory.total",
    "retired_pages_multiple_single_bit": "retired_pages.single_bit_ecc.count",
    "retired_pages_double_bit": "retired_pages.double_bit.count",
    "remapped_rows_correctable": "remapped_rows.correctable",
    "remapped_rows_uncorrectable": "remapped_rows.uncorrectable",
    "power_draw": "power.draw",
    "power_limit": "power.limit",
    "temperature_gpu": "temperature.gpu",
    "utilization_gpu": "utilization.gpu",
    "utilization_memory": "utilization.memory",
    "pcie_link_gen_current": "pcie.link.gen.current",
    "pcie_link_width_current": "pcie.link.width.current",
    "clocks_current_sm": "clocks.current.sm",
    "clocks_current_memory": "clocks.current.memory",
}
"""Fields of the input nvidia_smi, and the queries of nvidia-smi that they are, in its units."""
_COMPUTED = "whole counts are printed without a fraction: it is a mean or a rate of them"
_VALUES = ("gauge", "counter", "value")
"""Fields of a metric whose name is the measurement's (version 1 of the input prometheus)."""


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise it by a point of an input that is read."""
    if head.lstrip()[:1] == b"{" and _JSON.search(head):
        return Recognition(NAME, "Telegraf's points in JSON", NAME)
    if annotated_csv.is_annotated(head):
        return (
            Recognition(NAME, "Telegraf's points as InfluxDB answers", NAME)
            if _ANSWERED.search(head)
            else None
        )
    if head.lstrip()[:1] in (b"{", b"[", b"<") or not _POINT.search(head):
        return None
    return Recognition(NAME, "Telegraf's line protocol", NAME)


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the points into gpu_sample and net_sample."""
    head = files.read_head(source)
    with source.open() as stream:
        reading = Reading(sink, stream, "Telegraf", "line")
        points = _Points(source, sink, reading)
        tables = annotated_csv.Tables() if annotated_csv.is_annotated(head) else None
        for line in lines(stream):
            text = line.text.strip()
            if tables is None:
                point = _point(text) if text and not text.startswith("#") else False
            else:
                point = tables.point(line.text.strip("\r\n\ufeff"))
            if not isinstance(point, bool):
                points.point(line.number, point, text)
        points.finish()
        reading.finish(points.ports, streams.stream_problem(stream))


def _point(text: str) -> Point | None:
    is_json = text.startswith("{")
    return line_protocol.point_of_json(text) if is_json else line_protocol.point(text)


class _Points:
    def __init__(self, source: SourceFile, sink: Sink, reading: Reading) -> None:
        self.ports = NetSamples(sink, source)
        self._gpus = GpuSamples(sink, source)
        self._sink = sink
        self._reading = reading
        self._others = 0
        self._computed: set[str] = set()
        """Fields whose numbers are no counts any more."""
        self._is_known = False

    def point(self, place: int, read: Point | None, text: str) -> None:
        """The numbers of a point; None: a line that should be one."""
        is_timed = read is not None and read.stamp.isdecimal() and read.stamp.isascii()
        time_ns = times.from_epoch(read.stamp) if read is not None and is_timed else None
        if read is None or time_ns is None:
            self._reading.bad(place, "no point with a time", shape(text))
            return
        self._reading.good()
        if read.measurement in ("nvidia_smi", "prometheus") or read.measurement.startswith("DCGM_"):
            self._gpu(place, read, time_ns)
        elif read.measurement in ("infiniband", "ethtool", "net"):
            self._port(place, read, time_ns)
        else:
            self._others += 1

    def finish(self) -> None:
        """What is left of the GPUs; the ports are finished with the reading."""
        if self._gpus.rows_count or self._gpus.missing_count:
            self._gpus.finish("epoch")
        if self._is_known:
            self._reading.from_documentation("Telegraf's line protocol")
        tell_unread(self._sink, sorted(self._computed), _COMPUTED)
        if self._others:
            count_other_metrics(self._sink, self._others)

    def _gpu(self, place: int, read: Point, time_ns: int) -> None:
        tags = {k.lower(): v for k, v in read.tags.items()}
        index = tags.get("index") or tags.get("gpu") or ""
        gpu = Gpu(
            node=_host(tags),
            uuid=uuid_of(tags.get("uuid") or tags.get("gpu_uuid")),
            pci=pci_address(tags.get("pci_bus_id", "")),
            nvml_index=int(index) if re.fullmatch(r"\d{1,4}", index) else None,
            model=(tags.get("modelname") or tags.get("name") or "")[:200] or None,
            pod=(tags.get("exported_pod") or tags.get("pod") or "")[:200] or None,
            instance=(tags.get("gpu_i_id") or "")[:40] or None,
            labels=tuple(sorted(tags.items())),
        )
        for field, printed in read.fields():
            what = _gpu_meaning(read.measurement, field)
            number = decimal(printed)
            if what is None or number is None:
                self._others += printed is not None
                continue
            self._is_known = True
            if read.is_computed and what.kind == "cumulative":
                self._computed.add(field)
                continue
            counted = int(printed) if printed and re.fullmatch(r"\d{1,19}", printed) else None
            series = self._gpus.series(gpu, what, "content")
            self._gpus.add(series, what, place, time_ns, number, counted)

    def _port(self, place: int, read: Point, time_ns: int) -> None:
        tags = read.tags
        port = (tags.get("device") or tags.get("interface") or "")[:200]
        if not port or port == "all" or port.startswith(VIRTUAL):
            self._others += 1
            return
        if read.measurement == "infiniband" and tags.get("port"):
            port = f"{port}/{tags['port'][:10]}"
        numbers = [(f, n) for f, n in read.fields() if n is not None]
        # Where fields stand in rows of their own, those of the physical port may be in others.
        has_physical = not read.is_whole or any(field.endswith("_phy") for field, _ in numbers)
        self.ports.of_row(_host(tags))
        self.ports.at(time_ns)
        for field, printed in numbers:
            what = _port_meaning(read.measurement, field, has_physical=has_physical)
            if what is None:
                self._others += 1
                continue
            self._is_known = True
            if read.is_computed and what[0].kind == "cumulative":
                self._computed.add(field)
                continue
            self.ports.add(
                place, port, what[0], printed,
                original=field[:80], priority=what[1], queue=what[2],
            )  # fmt: skip


def _host(tags: dict[str, str]) -> str | None:
    """The machine: dcgm-exporter's own label before that of who collects."""
    return stated_host(tags.get("hostname")) or stated_host(tags.get("host"))


def _gpu_meaning(measurement: str, field: str) -> Meaning | None:
    if measurement == "nvidia_smi":
        name = _SMI.get(field)
        return fields.of_smi(name, None) if name else None
    if measurement == "prometheus":
        return fields.of_dcgm(field)
    return fields.of_dcgm(measurement) if field in _VALUES else None


def _port_meaning(
    measurement: str, field: str, *, has_physical: bool
) -> tuple[Meaning, int | None, int | None] | None:
    """What a field of a port means, its priority and its ring."""
    if measurement == "ethtool":
        return ethtool_meaning(field, has_physical)
    if measurement == "net":
        name = _NET.get(field)
        return (meaning(name), None, None) if name else None
    if rdma_names.is_port_counter(field):
        return rdma_names.port_meaning(field), None, None
    return rdma_names.hardware_meaning(field), None, None
