"""What ``vmstat -t`` (procps) prints: tasks, swapping and how the CPUs spent their time."""

from __future__ import annotations

import re

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.host_samples import HostSamples
from tracekit.ingest.counters.host_words import HOST
from tracekit.ingest.counters.samples import count_other_metrics, count_without_interval
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.lines import lines, shape

KIND = "vmstat"

_HEAD = re.compile(rb"(?:^|\n)procs -{3,40}memory-{3,60}(?: [-a-z]{3,40}){3,6}")
_MAX_INTERVAL_NS = 86_400 * 10**9
_KIB_PER_PAGE = 4
_PERCENT = 0.01
_MEANINGS = {
    "r": HOST.meaning("runnable_tasks"),
    "b": HOST.meaning("blocked_tasks"),
    "si": HOST.meaning("swapped_in_rate", 1 / _KIB_PER_PAGE),
    "so": HOST.meaning("swapped_out_rate", 1 / _KIB_PER_PAGE),
    "us": HOST.meaning("cpu_user", _PERCENT),
    "sy": HOST.meaning("cpu_system", _PERCENT),
    "id": HOST.meaning("cpu_idle", _PERCENT),
    "wa": HOST.meaning("cpu_iowait", _PERCENT),
    "st": HOST.meaning("cpu_steal", _PERCENT),
}
"""Swapping is printed in KiB a second, where no other unit was asked for (-S), and on machines
whose pages have 4 KiB it is their number by four."""
_UTC = frozenset({"UTC", "GMT"})


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise it by its line of headings."""
    if (head.startswith(b"procs ") or b"\nprocs " in head) and _HEAD.search(head):
        return Recognition(KIND, "tasks, swapping and CPU time of a machine (vmstat)", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the numbers into host_sample. A place is a line.

    A line is of the time since the one before; the first is of the time since the machine began
    and is left out. Lines without a time (no -t) have the interval of none, so only tasks count.
    """
    with source.open() as stream:
        reading = Reading(sink, stream, "procps", "line")
        samples = HostSamples(sink, source)
        names: list[str] = []
        zone = ""
        last_ns: int | None = None
        others = early = 0
        for line in lines(stream):
            cells = line.text.split()
            if not cells or cells[0] == "procs":
                continue
            if cells[:2] == ["r", "b"]:
                stamps = [c for c in cells if c.isupper()]
                zone = "Z" if stamps and stamps[-1] in _UTC else ""
                names = [c for c in cells if not c.isupper()]
                continue
            if not names or len(cells) < len(names) or not cells[0].isdecimal():
                reading.bad(line.number, "another line than is known", shape(line.text))
                continue
            reading.good()
            stamp = "T".join(cells[len(names) : len(names) + 2])
            time_ns = times.parse(f"{stamp}{zone}") if stamp else None
            if stamp and time_ns is None:
                reading.bad_time(line.number)
            interval_ns = None
            if time_ns is not None and last_ns is not None:
                interval_ns = int(time_ns - last_ns)
            last_ns = time_ns
            if interval_ns is None or not 0 < interval_ns <= _MAX_INTERVAL_NS:
                early += len(names)
                continue
            samples.at(time_ns)
            samples.interval_ns = interval_ns
            for name, printed in zip(names, cells, strict=False):
                if (meaning := _MEANINGS.get(name)) is not None:
                    samples.sample(line.number, meaning, printed, original=name, cgroup=None)
                else:
                    others += 1
        if others:
            count_other_metrics(sink, others)
        if early:
            count_without_interval(sink, early)
        if not samples.rows_count and reading.good_count:
            reading.answer = "it has no two lines with times (vmstat -t, and an interval)"
        reading.finish(samples, streams.stream_problem(stream))
