"""What the kernel tells of want: /proc/pressure, and a control group's cpu.stat, memory.events.

As files, as ``grep -H . FILE...`` or ``head FILE...`` print several, and such dumps one after the
other with a line of time before each. Only what never falls is kept: averages of 10 s overlap.
"""

from __future__ import annotations

import re

from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.host_samples import HostSamples
from tracekit.ingest.counters.host_words import HOST
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.status import Reading, by_lines
from tracekit.ingest.lines import Line, shape

KIND = "pressure"

_US = 1000
_PSI = re.compile(
    r"(?:(\S{1,400}):)?(some|full) avg10=[\d.]{1,8} avg60=[\d.]{1,8} avg300=[\d.]{1,8}"
    r" total=(\d{1,20})"
)
_AVERAGES_COUNT = 3
"""Of a line of stalls: of 10, 60 and 300 s."""
_COUNT = re.compile(r"(?:(\S{1,400}):)?([a-z_]{2,40}(?:\.[a-z_]{1,20})?) (\d{1,20})")
_HEADING = re.compile(r"==> (\S{1,400}) <==")
_ANY_PSI = re.compile(rb"^(?:\S{1,400}:)?some avg10=\d{1,3}\.\d\d avg60=", re.M)
_ANY_CPU = re.compile(
    rb"^(?:\S{1,400}:)?nr_periods \d{1,20}\s*\n(?:\S{1,400}:)?nr_throttled ", re.M
)
_ANY_MEMORY = re.compile(rb"^\S{0,400}memory\.events(?:\.local)?(?::low \d| <==\s*\nlow \d)", re.M)
_BARE_MEMORY = re.compile(rb"low \d{1,20}\nhigh \d{1,20}\nmax \d{1,20}\noom \d")
_RESOURCE = re.compile(r"(?<![a-z])(cpu|io|memory)(?![a-z])", re.I)
_MEMORY_EVENTS = re.compile(r"memory[._-]events", re.I)
_CGROUP = re.compile(
    r"/sys/fs/cgroup(?:/(?:unified|cpu,cpuacct|cpu|memory)(?=/))?(/.{1,400}?)?/[^/]+"
)
"""The mount, one of version 1's controllers or the place of version 2 beside them, the group."""
_CPU_STAT = {
    "nr_periods": HOST.meaning("cpu_periods"),
    "nr_throttled": HOST.meaning("cpu_throttled_periods"),
    "throttled_usec": HOST.meaning("cpu_throttled_time", _US),
    "throttled_time": HOST.meaning("cpu_throttled_time"),  # version 1: ns
    "usage_usec": HOST.meaning("cpu_time", _US),
}
_MEMORY = {
    "high": HOST.meaning("memory_high_events"),
    "max": HOST.meaning("memory_max_events"),
    "oom": HOST.meaning("memory_oom_events"),
    "oom_kill": HOST.meaning("memory_oom_kills"),
}
_VERSION_2 = frozenset({"throttled_usec", "usage_usec", *_MEMORY})


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise the lines by their fixed words."""
    if b" avg300=" in head and _ANY_PSI.search(head):
        return Recognition(KIND, "what tasks waited for (/proc/pressure)", KIND)
    if b"nr_throttled " in head and _ANY_CPU.search(head):
        return Recognition(KIND, "CPU quota of a control group (cpu.stat)", KIND)
    is_named = _MEMORY_EVENTS.search(name) and _BARE_MEMORY.match(head)
    if b"low " in head and (is_named or _ANY_MEMORY.search(head)):
        return Recognition(KIND, "memory limits of a control group (memory.events)", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the counts into host_sample."""
    with by_lines(
        source, sink, lambda reading: _Parser(HostSamples(sink, source), reading, source.name)
    ) as (parser, _):
        if parser.others_count:
            count_other_metrics(sink, parser.others_count)


class _Parser:
    def __init__(self, samples: HostSamples, reading: Reading, name: str) -> None:
        self.samples = samples
        self.others_count = 0
        self._reading = reading
        self._path = name
        self._is_said = False

    def line(self, line: Line) -> None:
        text = line.text.strip()
        if not text:
            return
        if heading := _HEADING.fullmatch(text):
            self._path = heading[1]
        elif (stamp := times.of_line(text)) is not None:
            self.samples.at(stamp)
        elif stall_line := _PSI.fullmatch(text):
            self._pressure(line.number, *stall_line.groups())
        elif count_line := _COUNT.fullmatch(text):
            self._count(line.number, *count_line.groups())
        else:
            self._reading.bad(line.number, "another line than is known", shape(text))

    def _pressure(self, place: int, path: str | None, extent: str, total: str) -> None:
        path = path or self._path
        resource_match = _RESOURCE.search(path.rpartition("/")[2])
        if resource_match is None:
            self._reading.bad(place, "the file's name does not say which resource it is of")
            return
        resource = resource_match[1].lower()
        meaning = HOST.meaning(f"{resource}_pressure_{extent}_time", _US)
        original = f"{resource}.{extent}.total"
        self.others_count += _AVERAGES_COUNT
        if self.samples.sample(place, meaning, total, original=original, cgroup=_cgroup(path)):
            self._reading.good()

    def _count(self, place: int, path: str | None, name: str, printed: str) -> None:
        path = path or self._path
        meaning = _CPU_STAT.get(name)
        if _MEMORY_EVENTS.search(path.rpartition("/")[2]):
            meaning = _MEMORY.get(name)
        if meaning is None:
            self.others_count += 1
            return
        if name in _VERSION_2 and not self._is_said:
            self._is_said = True
            self._reading.from_documentation("cpu.stat and memory.events of cgroup version 2")
        if self.samples.sample(place, meaning, printed, original=name, cgroup=_cgroup(path)):
            self._reading.good()


def _cgroup(path: str) -> str | None:
    """The control group that a file is of; None: the whole machine, or no path says."""
    cgroup_path = _CGROUP.fullmatch(path)
    return (cgroup_path[1] or "/") if cgroup_path else None
