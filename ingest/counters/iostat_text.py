"""What ``iostat -x -t INTERVAL`` (sysstat) prints of disks for people: the same as its JSON."""

from __future__ import annotations

import re

from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.iostat_names import MAX_INTERVAL_NS, MEANINGS
from tracekit.ingest.counters.samples import count_other_metrics, count_without_interval
from tracekit.ingest.counters.status import Reading, by_lines
from tracekit.ingest.counters.storage_samples import StorageSamples
from tracekit.ingest.lines import Line, shape

KIND = "iostat_text"

_ANY = re.compile(rb"(?:^|\n)(?:Device:?[ \t]+[rf]\S*/s[ \t]|Device[ \t]+tps[ \t])")
_HEAD = re.compile(r"Linux \S{1,100} \(([\w.-]{1,200})\)\s.{0,200}")
_DATED = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}[T ][\d:]{4,8}(?: ?[AP]M|[-+]\d{2}:?\d{2}|Z)?")
_CPUS = re.compile(r"avg-cpu: {1,10}%user.{0,200}")


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise it by a heading of disks below sysstat's first line."""
    if head.startswith(b"Linux ") and _ANY.search(head):
        return Recognition(KIND, "how busy and how slow disks were (iostat)", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the numbers into storage_sample. A place is a line.

    A report is of the time since the one before; the first is of the time since the machine began,
    which is nobody's step, and is left out, as are all of a file without times that name their
    zone. What all CPUs did stands in vmstat and sar as well and is counted as other metrics.
    """
    with by_lines(source, sink, lambda r: _Parser(StorageSamples(sink, source), r), "sysstat") as (
        parser,
        reading,
    ):
        if parser.others_count:
            count_other_metrics(sink, parser.others_count)
        if parser.early_count:
            count_without_interval(sink, parser.early_count)
        if not parser.samples.rows_count and reading.good_count:
            reading.answer = (
                "it has no two reports with times that name their zone "
                "(S_TIME_FORMAT=ISO iostat -x -t, and an interval)"
            )


class _Parser:
    def __init__(self, samples: StorageSamples, reading: Reading) -> None:
        self.samples = samples
        self.others_count = self.early_count = 0
        self._reading = reading
        self._names: list[str] = []
        self._of_cpus = False
        self._last_ns: int | None = None
        self._is_timed = False
        """Whether the report has a time, and so has the one before."""

    def line(self, line: Line) -> None:
        text = line.text.strip()
        cells = text.split()
        if not cells:
            self._of_cpus, self._names = False, []
        elif _DATED.fullmatch(text):
            self._at(line.number, text)
        elif cells[0] in ("Device", "Device:"):
            self._names = cells[1:]
        elif _CPUS.fullmatch(text):
            self._of_cpus = True
        elif self._of_cpus:
            self.others_count += len(cells)
        elif self._names and len(cells) == len(self._names) + 1:
            self._disk(line.number, cells)
        elif head := _HEAD.fullmatch(text):
            self.samples.of(head[1])
        else:
            self._reading.bad(line.number, "another line than is known", shape(text))

    def _at(self, place: int, text: str) -> None:
        """A report begins."""
        time_ns = times.parse(text)
        if time_ns is None:
            self._reading.bad_time(place)
        gone_ns = 0 if None in (time_ns, self._last_ns) else int(time_ns - self._last_ns)  # type: ignore[operator]  # neither is None
        self._is_timed, self._last_ns = 0 < gone_ns <= MAX_INTERVAL_NS, time_ns
        if self._is_timed:
            self.samples.at(time_ns)
            self.samples.interval_ns = gone_ns

    def _disk(self, place: int, cells: list[str]) -> None:
        self._reading.good()
        if not self._is_timed:
            self.early_count += len(self._names)
            return
        for name, printed in zip(self._names, cells[1:], strict=True):
            # In the table a share bears its sign, and older ones have another word for the queue.
            if (meaning := MEANINGS.get(name.removeprefix("%"))) is None:
                self.others_count += 1
            else:
                self.samples.sample(place, cells[0], meaning, printed, original=name)
