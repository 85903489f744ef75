"""What ``iostat -x -t -o JSON`` (sysstat) prints of disks: rates, latencies, how busy."""

from __future__ import annotations

import re
from typing import Any

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.documents import dict_of, dicts_of, numbers_count, text_of
from tracekit.ingest.counters.iostat_names import MAX_INTERVAL_NS, MEANINGS
from tracekit.ingest.counters.samples import count_other_metrics, count_without_interval
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.storage_samples import StorageSamples

KIND = "iostat"

_START = re.compile(rb'\s*\{\s*"sysstat"\s*:\s*\{\s*"hosts"\s*:\s*\[')
_DISK = re.compile(rb'"disk_device"\s*:')


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise it by sysstat's first keys and a disk; sadf's documents have another."""
    if _START.match(head) and _DISK.search(head):
        return Recognition(KIND, "how busy and how slow disks were (iostat -o JSON)", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the numbers into storage_sample. A place is the number of a report, from 1.

    A report is of the time since the one before; the first is of the time since the machine began,
    which is nobody's step, and is left out, as are all of a file without times (no -t).
    """
    with source.open() as stream:
        reading = Reading(sink, stream, "sysstat", "event")
        samples = StorageSamples(sink, source)
        place = others = early = 0
        for document in reading.documents():
            reading.good()
            for host in dicts_of(dict_of(dict_of(document.value).get("sysstat")).get("hosts")):
                samples.of(text_of(host.get("nodename")))
                last_ns: int | None = None
                for report in dicts_of(host.get("statistics")):
                    place += 1
                    printed = numbers_count(report)
                    time_ns, kept = _report(report, place, last_ns, samples, reading)
                    if kept is None:
                        early += printed
                    else:
                        others += printed - kept
                    last_ns = time_ns
        if others:
            count_other_metrics(sink, others)
        if early:
            count_without_interval(sink, early)
        if not samples.rows_count and place:
            reading.answer = "it has no two reports with times (iostat -t, and an interval)"
        reading.finish(samples, streams.stream_problem(stream))


def _report(
    report: dict[str, Any],
    place: int,
    last_ns: int | None,
    samples: StorageSamples,
    reading: Reading,
) -> tuple[int | None, int | None]:
    """When it was printed, and how many of its numbers were asked for; None: it is left out."""
    stamp = report.get("timestamp")
    if stamp is None:
        return None, None
    time_ns = times.parse(str(stamp)[:60])
    if time_ns is None:
        reading.bad_time(place)
        return last_ns, None
    found: int | None = None
    if last_ns is not None and 0 < time_ns - last_ns <= MAX_INTERVAL_NS:
        found = 0
        samples.at(time_ns)
        samples.interval_ns = int(time_ns - last_ns)
        for disk in dicts_of(report.get("disk")):
            device = disk.get("disk_device")
            if not isinstance(device, str) or not device:
                continue
            for key, printed in disk.items():
                if (meaning := MEANINGS.get(key)) is not None:
                    found += numbers_count(printed)
                    samples.sample(place, device, meaning, printed, original=key)
    return time_ns, found
