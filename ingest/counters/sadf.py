"""sysstat's history as ``sadf -j`` prints it: how busy a machine was, and what its tasks lacked."""

from __future__ import annotations

import re
from typing import Any

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.documents import dict_of, dicts_of, numbers_count, text_of
from tracekit.ingest.counters.host_samples import HostSamples
from tracekit.ingest.counters.host_words import HOST
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.vocabulary import Meaning

KIND = "sadf"

_START = re.compile(rb'\s*\{\s*"sysstat"\s*:\s*\{\s*"hosts"\s*:\s*\[')
_UTC = frozenset({"UTC", "GMT"})
_PERCENT = 0.01
_KIB = 1024
_PLAIN: dict[str, dict[str, Meaning]] = {
    "queue": {
        "runq-sz": HOST.meaning("runnable_tasks"),
        "blocked": HOST.meaning("blocked_tasks"),
    },
    "paging": {"majflt": HOST.meaning("major_fault_rate")},
    "swap-pages": {
        "pswpin": HOST.meaning("swapped_in_rate"),
        "pswpout": HOST.meaning("swapped_out_rate"),
    },
    "memory": {"avail": HOST.meaning("memory_available", _KIB)},
}
_CPU = {
    key: HOST.meaning(f"cpu_{name}", _PERCENT)
    for key, name in (
        ("usr", "user"), ("user", "user"), ("nice", "nice"), ("sys", "system"),
        ("system", "system"), ("iowait", "iowait"), ("steal", "steal"), ("idle", "idle"),
    )
}  # fmt: skip
"""With -u ALL usr leaves the time of guests out, and with -u user holds it."""
_PRESSURE = {
    f"psi-{short}": {
        f"{extent}_avg": HOST.meaning(f"{name}_pressure_{extent}", _PERCENT)
        for extent in ("some", "full")
    }
    for short, name in (("cpu", "cpu"), ("io", "io"), ("mem", "memory"))
}


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise it by its first keys; iostat's documents begin with the same, and have disks."""
    if _START.match(head) and b'"disk_device"' not in head:
        return Recognition(KIND, "history of a machine as sadf -j prints it (sysstat)", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the numbers into host_sample. A place is the number of a moment, from 1."""
    with source.open() as stream:
        reading = Reading(sink, stream, "sysstat", "event")
        samples = HostSamples(sink, source)
        place = others = 0
        for document in reading.documents():
            reading.good()
            for host in dicts_of(dict_of(dict_of(document.value).get("sysstat")).get("hosts")):
                samples.of(text_of(host.get("nodename")))
                for moment in dicts_of(host.get("statistics")):
                    place += 1
                    others += _moment(moment, place, samples, reading)
        if others:
            count_other_metrics(sink, others)
        reading.finish(samples, streams.stream_problem(stream))


def _moment(moment: dict[str, Any], place: int, samples: HostSamples, reading: Reading) -> int:
    """How many of its numbers are no counter of ours."""
    stamp = dict_of(moment.get("timestamp"))
    zone = "Z" if stamp.get("utc") == 1 or str(stamp.get("tz")) in _UTC else ""
    time_ns = times.parse(f"{stamp.get('date')}T{stamp.get('time')}{zone}")
    if time_ns is None:
        reading.bad_time(place)
        return 0
    samples.at(time_ns)
    seconds = stamp.get("interval")
    samples.interval_ns = None
    if isinstance(seconds, int) and 0 < seconds <= 86_400:
        samples.interval_ns = seconds * 10**9
    others = sum(numbers_count(part) for name, part in moment.items() if name != "timestamp")
    for load in dicts_of(moment.get("cpu-load")):
        if load.get("cpu") == "all":
            others -= _put(load, _CPU, "cpu-load", place, samples)
    for section, meanings in _PLAIN.items():
        others -= _put(dict_of(moment.get(section)), meanings, section, place, samples)
    pressure = dict_of(moment.get("psi"))
    for section, meanings in _PRESSURE.items():
        others -= _put(dict_of(pressure.get(section)), meanings, section, place, samples)
    return others


def _put(
    section: dict[str, Any],
    meanings: dict[str, Meaning],
    name: str,
    place: int,
    samples: HostSamples,
) -> int:
    """How many numbers were asked for and found, good or bad."""
    found = 0
    for key, meaning in meanings.items():
        if key in section:
            found += numbers_count(section[key])
            original = f"{name}.{key}"
            samples.sample(place, meaning, section[key], original=original, cgroup=None)
    return found
