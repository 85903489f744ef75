"""Samples of the devices that a table or a record names: GPUs, ports, parts of a machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tracekit.ingest.base import Sink, SourceFile, write_columns
from tracekit.ingest.counters import times
from tracekit.ingest.counters.gpu_samples import Gpu, GpuSamples
from tracekit.ingest.counters.host_samples import HostSamples
from tracekit.ingest.counters.names import node_of_file
from tracekit.ingest.counters.net_samples import NetSamples, decimal, is_missing
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.table import count_unread
from tracekit.ingest.counters.table_heads import in_unit
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import shape

MAX_SHARE = 1.5
"""Highest share of the whole that a sensor's error explains."""
MAX_LABELS = 10_000
"""Annotations of a file: a column that says something new at every reading is no phase."""
LABEL_MAX_LENGTH = 100


class Column(NamedTuple):
    """A column of numbers."""

    at: int
    kind: str
    """gpu, port, or host (a part of the machine, or all of it)."""
    device: str
    """GPU's number, the port's or part's name; empty: the machine."""
    meaning: Meaning
    header: str
    node: str | None = None
    """Its machine, where the header says so."""
    is_open: bool = False
    """Whether its numbers must say in which unit they are: its header does not."""

    @property
    def key(self) -> tuple[str | None, ...]:
        """What no other column may have."""
        return (self.node, self.kind, self.device, self.meaning.counter)


class _Label(NamedTuple):
    """What a column of words says."""

    text: str
    since_ns: int
    until_ns: int
    place: int


class Devices:
    """The samples of one file, of however many devices, moment by moment."""

    def __init__(
        self, source: SourceFile, sink: Sink, reading: Reading, *, names_hosts: bool = False
    ) -> None:
        """``names_hosts``: whether rows say whose they are; the file's name then says nothing."""
        self._sink = sink
        self._reading = reading
        self.ports = NetSamples(sink, source)
        self.ports.of_name(node_of_file(source))
        self._gpus = GpuSamples(sink, source)
        self._host = HostSamples(sink, source)
        self._host.of_name(None if names_hosts else self.ports.node)
        self._labels: dict[tuple[str | None, str], _Label] = {}
        """By machine and header: what is said now."""
        self._said: list[tuple[int, int, int, str, str]] = []
        self._series: dict[tuple[str | None, int], int] = {}
        """By machine and the column's place, which no two columns of a file share."""
        self._basis = "epoch"
        self.is_utc = times.says_utc(source.name)
        """Whether times without a zone are UTC: the file's name or the header says so."""

    def add(
        self,
        place: int,
        moment: int,
        host: str | None,
        numbers: Iterable[tuple[Column, str]],
        labels: Iterable[tuple[str, str]] = (),
        port: str = "",
    ) -> None:
        """What was read at a moment; ``labels`` by their headers. ``port``: which of a device's."""
        if isinstance(moment, times.Local) and self.is_utc:
            moment = int(moment)
        self._basis = times.basis_of(moment)
        self.ports.at(moment)
        if host is not None:
            self.ports.of_row(host)
        for header, text in labels:
            self._label((self.ports.node, header), text, int(moment), place)
        other = None if self._host.node in (None, self.ports.node) else self.ports.node
        self._host.at(moment)
        if other is None:
            self._host.of(self.ports.node)
        for column, printed in numbers:
            text = printed
            if text and not text[-1].isdecimal():  # 45%, 1.2 kB/s, or no number
                text = in_unit(text, column.meaning.unit or "", column.meaning.scale)
            if column.kind == "gpu":
                self._gpu(place, column, moment, text)
            elif column.kind == "port":
                if column.node is not None:
                    self.ports.of_row(column.node)
                name = f"{column.device}/{port}" if port else column.device
                self.ports.add(place, name, column.meaning, text, original=column.header[:80])
            else:
                self._host.sample(
                    place, column.meaning, text, original=column.header[:80], cgroup=None,
                    device=column.device or None, other=column.node or other,
                )  # fmt: skip

    def finish(self) -> None:
        """Write what is left, but the ports, which are finished with the reading."""
        if self._gpus.rows_count or self._gpus.missing_count:
            self._gpus.finish(self._basis)
            self._reading.good(self._gpus.rows_count)
        if self._host.rows_count or self._host.missing_count:
            self._host.finish()
            self._reading.good(self._host.rows_count)
        for (_, header), label in self._labels.items():
            self._keep(header, label)
        if self._said:
            names = ("place", "start_ns", "dur_ns", "name", "producer_domain")
            columns = dict(zip(names, map(list, zip(*self._said, strict=True)), strict=True))
            constant = {"domain": "label", "style": "start_end", "is_gpu_twin": False}
            count = len(self._said)
            whole = columns | {name: [value] * count for name, value in constant.items()}
            write_columns(self._sink, "annotation", whole)

    def _label(self, key: tuple[str | None, str], text: str, moment: int, place: int) -> None:
        """What a column of words says from here on; it holds until it says something else."""
        now = self._labels.get(key)
        if now is not None:
            now = now._replace(until_ns=max(moment, now.until_ns))
            if now.text == text and moment >= now.since_ns:
                self._labels[key] = now
                return
            self._keep(key[1], now)
        self._labels[key] = _Label(text, moment, moment, place)

    def _keep(self, header: str, label: _Label) -> None:
        text = label.text
        if not text or decimal(text) is not None or is_missing(text):
            return
        if len(self._said) >= MAX_LABELS:
            self._sink.count(
                "label_not_kept",
                severity="info",
                doc=f"Labels after the first {MAX_LABELS} of a file: what changes so often is no "
                "phase.",
            )
            return
        dur_ns = label.until_ns - label.since_ns
        self._said.append(
            (label.place, label.since_ns, dur_ns, text[:LABEL_MAX_LENGTH], header[:80])
        )

    def _gpu(self, place: int, column: Column, moment: int, text: str) -> None:
        number = decimal(text)
        if number is None and not is_missing(text):
            self._reading.bad(place, "a cell that should hold a number does not", shape(text))
            return
        share = number * column.meaning.scale if number is not None else 0.0
        if column.meaning.unit == "0..1" and not 0 <= share <= MAX_SHARE:
            self._sink.count(
                "impossible_number",
                doc="A share above 1 (if it is percent, its header must say so: _pct): left out.",
                place=place,
            )
            return
        key = (self.ports.node, column.at)
        if key not in self._series:
            node = column.node or self.ports.node
            gpu = Gpu(node=node, nvml_index=int(column.device))
            self._series[key] = self._gpus.series(gpu, column.meaning, "content")
        counted = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
        self._gpus.add(self._series[key], column.meaning, place, int(moment), number, counted)


def tell_unread(sink: Sink, names: Sequence[str], reason: str) -> None:
    """List the columns that were not read for one reason."""
    # A name of its own for each reason: the words of the first count stay.
    count_unread(sink, names, reason, f"_{_word(reason)}")


def _word(reason: str) -> str:
    """A reason as the end of a counter's name."""
    return "_".join(re.findall(r"[a-z]+", reason.lower())[:4])
