"""What sysstat's ``sar`` (and ``mpstat``) prints: a table a subject, one after the other.

    Linux 6.1.0 (node07)    11/20/2026      _x86_64_        (96 CPU)

    08:00:01 AM     CPU     %user     %nice   %system   %iowait    %steal     %idle
    08:10:01 AM     all     30.40      0.00      3.44      1.50      0.00     64.66
    Average:        all     30.40      0.00      3.44      1.50      0.00     64.66

The date stands once, in the first line, and times of day count on from it; a table goes past
midnight where its times fall. Headers begin with the moment before the first row. Times are the
machine's own, without a zone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, timedelta

from msgspec import Struct

from tracekit.errors import InputError
from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.host_samples import HostSamples
from tracekit.ingest.counters.host_words import HOST
from tracekit.ingest.counters.iostat_names import MAX_INTERVAL_NS, MEANINGS
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.storage_samples import StorageSamples
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import Line, lines, shape

KIND = "sar"

_TITLE = re.compile(
    r"Linux \S{1,120} \(([^()\n]{1,200})\)\s{1,20}([\d/.-]{8,10})\s{1,20}\S{1,40}\s{1,20}"
    r"\(\d{1,6} CPU\)"
)
_ROW = re.compile(r"(\d\d):(\d\d):(\d\d)(?: ([AP])M)?\s{1,20}(\S.*)")
_OF_PROCESSES = re.compile(r"UID\s{1,20}PID")
"""A header of pidstat, which begins alike."""
_PERCENT = 0.01
_KIB = 1024
_HOST: dict[str, Meaning] = {
    "runq-sz": HOST.meaning("runnable_tasks"),
    "blocked": HOST.meaning("blocked_tasks"),
    "majflt/s": HOST.meaning("major_fault_rate"),
    "pswpin/s": HOST.meaning("swapped_in_rate"),
    "pswpout/s": HOST.meaning("swapped_out_rate"),
    "kbavail": HOST.meaning("memory_available", _KIB),
    "kbmemused": HOST.meaning("memory_used", _KIB),
    **{
        f"%{said}": HOST.meaning(f"cpu_{name}", _PERCENT)
        for said, name in (
            ("usr", "user"), ("user", "user"), ("nice", "nice"), ("sys", "system"),
            ("system", "system"), ("iowait", "iowait"), ("steal", "steal"), ("idle", "idle"),
        )
    },
    **{
        f"%{letter}{short}": HOST.meaning(f"{name}_pressure_{extent}", _PERCENT)
        for short, name in (("cpu", "cpu"), ("io", "io"), ("mem", "memory"))
        for letter, extent in (("s", "some"), ("f", "full"))
    },
}  # fmt: skip
"""With -u ALL %usr leaves the time of guests out, and with -u %user holds it."""
_DISK: dict[str, Meaning] = {
    "rkB/s": MEANINGS["rkB/s"],
    "wkB/s": MEANINGS["wkB/s"],
    "aqu-sz": MEANINGS["aqu-sz"],
    "avgqu-sz": MEANINGS["avgqu-sz"],
    "%util": MEANINGS["util"],
}
"""Its await is of reads and writes together, and no latency of either."""
_NAMED = ("CPU", "DEV", "IFACE", "TTY", "INTR", "FAN", "BUS", "FILESYSTEM", "MHz", "TEMP")
"""First columns that say what a row is of; others are numbers of the whole machine."""


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise it by its first line and the first header below."""
    if not head.startswith(b"Linux "):
        return None
    first, *rest = head.decode("utf-8", "replace").splitlines()
    header = next((text for text in rest if text.strip()), "")
    row = _ROW.fullmatch(header.strip())
    if _TITLE.match(first) is None or row is None or _OF_PROCESSES.match(row[5]):
        return None
    return Recognition(KIND, "history of a machine as sar or mpstat prints it (sysstat)", KIND)


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the numbers into host_sample and storage_sample. A place is a line.

    InputError, with path, where the first line has no date that can be read.
    """
    with source.open() as stream:
        reading = Reading(sink, stream, "sysstat", "line")
        report = _Report(source, sink, reading)
        for line in lines(stream):
            report.line(line)
        report.finish(streams.stream_problem(stream))


class _Table(Struct):
    """A subject's table, which goes on where its header is printed again."""

    names: list[str]
    days: int = 0
    last: int | None = None
    """Second of the day of the moment before."""
    last_ns: int | None = None


class _Report:
    def __init__(self, source: SourceFile, sink: Sink, reading: Reading) -> None:
        self._path = source.path
        self._sink = sink
        self._reading = reading
        self._host = HostSamples(sink, source)
        self._disks = StorageSamples(sink, source)
        self._day: date | None = None
        self._tables: dict[tuple[str, ...], _Table] = {}
        self._table: _Table | None = None
        self._others = 0

    def line(self, line: Line) -> None:
        text = line.text.strip()
        if title := _TITLE.match(text):
            self._begin(title[1], title[2])
            return
        if not text or text.startswith(("Average:", "Summary:")):
            return
        row = _ROW.fullmatch(text)
        if row is None or self._day is None:
            self._reading.bad(line.number, "another line than is known", shape(text))
            return
        second = _second_of_day(row)
        cells = row[5].split()
        if cells[1:2] == ["RESTART"]:  # LINUX RESTART
            self._tables.clear()
            self._table = None
        elif not any(map(_is_number, cells)):
            self._header(cells, second)
        elif self._table is None or len(cells) != len(self._table.names):
            self._reading.bad(line.number, "another number of cells", shape(text))
        else:
            self._row(line.number, self._table, second, cells)

    def _begin(self, node: str, said: str) -> None:
        """The machine and the day; two files may stand one after the other."""
        day = _day(said)
        if day is None:
            raise InputError(
                f"{self._path}: its first line has a date that is not known, {said[:20]!r}; "
                "`S_TIME_FORMAT=ISO sar` prints one that is"
            )
        self._day = day
        self._tables.clear()
        self._table = None
        self._host.of(node)
        self._disks.of(node)

    def _header(self, names: list[str], second: int) -> None:
        table = self._tables.setdefault(tuple(names), _Table(names))
        if table.last is None:
            table.last = second
            table.last_ns = self._moment(table, second)
        self._table = table

    def _moment(self, table: _Table, second: int) -> int | None:
        if self._day is None:
            return None
        day = self._day + timedelta(days=table.days)
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        return times.parse(f"{day.isoformat()}T{clock}")

    def _row(self, place: int, table: _Table, second: int, cells: Sequence[str]) -> None:
        if second != table.last:
            table.days += table.last is not None and second < table.last
            now_ns, before_ns = self._moment(table, second), table.last_ns
            table.last, table.last_ns = second, now_ns
            apart = None if None in (now_ns, before_ns) else int(now_ns or 0) - int(before_ns or 0)
            is_known = apart is not None and 0 < apart <= MAX_INTERVAL_NS
            for samples in (self._host, self._disks):
                samples.at(now_ns)
                samples.interval_ns = apart if is_known else None
        else:
            for samples in (self._host, self._disks):
                samples.at(table.last_ns)
        self._reading.good()
        key, subject = cells[0], table.names[0]
        is_device = subject == "DEV"
        if subject in _NAMED and not is_device and (subject, key) != ("CPU", "all"):
            self._others += len(cells) - 1
            return
        first = int(subject in _NAMED)
        for name, printed in zip(table.names[first:], cells[first:], strict=True):
            if is_device and (meaning := _DISK.get(name)) is not None:
                self._disks.sample(place, key, meaning, printed, original=name)
            elif not is_device and (meaning := _HOST.get(name)) is not None:
                self._host.sample(place, meaning, printed, original=name, cgroup=None)
            else:
                self._others += 1

    def finish(self, problem: str | None) -> None:
        if self._others:
            count_other_metrics(self._sink, self._others)
        if self._disks.rows_count or self._disks.missing_count:
            self._disks.finish()
            self._reading.good(self._disks.rows_count)
        elif not self._host.rows_count and self._reading.good_count:
            self._reading.answer = "it has no table of CPUs, tasks, memory, pressure or disks"
        self._reading.finish(self._host, problem)


def _second_of_day(row: re.Match[str]) -> int:
    hour = int(row[1])
    if row[4] is not None:
        hour = hour % 12 + 12 * (row[4] == "P")
    return hour * 3600 + int(row[2]) * 60 + int(row[3])


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"-?\d{1,20}(?:[.,]\d{1,9})?", cell) is not None


def _day(said: str) -> date | None:
    """The date of the first line: ISO, or month and day as the C locale and America have them where
    no month is beyond twelve; with a point between them the day is first."""
    if iso := re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)", said):
        year, month, day = (int(part) for part in iso.groups())
    elif parts := re.fullmatch(r"(\d\d)([/.])(\d\d)[/.](\d{4}|\d\d)", said):
        month, day, year = int(parts[1]), int(parts[3]), int(parts[4])
        year += 2000 * (year < 100)
        if parts[2] == "." or month > 12:
            month, day = day, month
    else:
        return None
    try:
        return date(year, month, day)
    except ValueError:
        return None
