"""What ``nfsiostat INTERVAL`` (nfs-utils) prints of NFS mounts: rates and latencies, a report each.

It prints no times: a line with one stands before each report, as ``nfsiostat 5 | while IFS= read
-r line; do ...`` or a collector puts it. The first report is of the time since the mount.
"""

from __future__ import annotations

import re

from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.status import Reading, by_lines
from tracekit.ingest.counters.storage_samples import StorageSamples
from tracekit.ingest.counters.storage_words import STORAGE
from tracekit.ingest.lines import Line, shape

KIND = "nfsiostat"

_MS, _KIB = 1_000_000, 1024
_MAX_INTERVAL_NS = 86_400 * 10**9
_MOUNT = re.compile(r"(\S{1,400}) mounted on (\S{1,400}):")
_TABLE = re.compile(r"(read|write): {1,20}ops/s {1,20}kB/s {1,20}kB/op {1,20}retrans\b.{0,200}")
_ROW = re.compile(
    r"\s{0,40}([\d.]{1,20})\s{1,40}([\d.]{1,20})\s{1,40}[\d.]{1,20}\s{1,40}\d{1,20} "
    r"\([\d.]{1,10}%\)\s{1,40}[\d.]{1,20}\s{1,40}([\d.]{1,20})\b.{0,200}"
)
_OTHER = re.compile(r"\s{0,40}(?:ops/s\s{1,40}rpc bklog|[\d.]{1,20}\s{1,40}[\d.]{1,20})\s{0,20}")
_ANY = re.compile(
    rb"(?:^|\n)\S{1,400} mounted on \S{1,400}:\s{0,10}\n\s{0,40}\n?\s{0,40}ops/s\s{1,40}rpc bklog"
)


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise a mount's heading with the table below it."""
    if b" mounted on " in head and _ANY.search(head):
        return Recognition(KIND, "how fast NFS mounts answered (nfsiostat)", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the numbers into storage_sample."""
    with by_lines(source, sink, lambda reading: _Parser(StorageSamples(sink, source), reading)) as (
        parser,
        reading,
    ):
        if not parser.samples.rows_count and parser.is_any:
            reading.answer = "it has no two reports with a line of time before each"


class _Parser:
    def __init__(self, samples: StorageSamples, reading: Reading) -> None:
        self.samples = samples
        self.is_any = False
        self._reading = reading
        self._device: str | None = None
        self._operation: str | None = None
        self._last_ns: int | None = None
        self._interval_ns: int | None = None

    def line(self, line: Line) -> None:
        text = line.text.rstrip()
        if not text:
            return
        if (stamp := times.of_line(text.strip())) is not None:
            gone_ns = stamp - self._last_ns if self._last_ns is not None else 0
            self._interval_ns = gone_ns if 0 < gone_ns <= _MAX_INTERVAL_NS else None
            self._last_ns = stamp
            self._device = None
            self.samples.at(stamp)
        elif found := _MOUNT.fullmatch(text):
            if not self.is_any:
                self.is_any = True
                self._reading.from_documentation("nfsiostat of nfs-utils")
            self._device, self._operation = found[2], None
            self._reading.good()
        elif found := _TABLE.fullmatch(text):
            self._operation = found[1]
        elif self._operation is not None and (found := _ROW.fullmatch(text)):
            self._row(line.number, self._operation, *found.groups())
            self._operation = None
        elif not _OTHER.fullmatch(text):
            self._reading.bad(line.number, "another line than is known", shape(text))

    def _row(self, place: int, operation: str, rate: str, kib: str, latency_ms: str) -> None:
        if self._device is None:
            self._reading.bad(place, "numbers of no mount")
            return
        self._reading.good()
        if self._interval_ns is None:
            return  # since the mount, or since nobody knows when
        self.samples.interval_ns = self._interval_ns
        for name, scale, printed in (
            ("rate", 1, rate), ("throughput", _KIB, kib), ("latency", _MS, latency_ms),
        ):  # fmt: skip
            meaning = STORAGE.meaning(f"{operation}_{name}", scale)
            self.samples.sample(
                place, self._device, meaning, printed, original=f"{operation} {name}",
                filesystem="nfs",
            )  # fmt: skip
