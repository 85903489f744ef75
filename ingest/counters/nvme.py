"""NVMe disks' own SMART logs: ``nvme smart-log -o json`` and ``smartctl -j``.

Data units are 1,000 blocks of 512 bytes; busy times are counted in whole minutes, and those of
throttling by heat in seconds (NVM Express Base Specification, SMART / Health Information). A log is
of a controller (``nvme0``), which stands in the file's name where the document does not say it.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters.documents import Document, dict_of, numbers_count, text_of
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.storage_samples import StorageSamples
from tracekit.ingest.counters.storage_words import STORAGE
from tracekit.ingest.counters.vocabulary import Meaning

KIND = "nvme"

_SMARTCTL = "nvme_smart_health_information_log"
_UNIT_BYTES = 512_000
_S = 10**9
_MINUTE = 60 * _S
_KELVIN = 273
_DEVICE = re.compile(r"(?<![a-z])nvme\d{1,4}")
_SAME: dict[str, Meaning] = {
    "data_units_read": STORAGE.meaning("read_bytes", _UNIT_BYTES),
    "data_units_written": STORAGE.meaning("write_bytes", _UNIT_BYTES),
    "controller_busy_time": STORAGE.meaning("controller_busy_time", _MINUTE),
    "media_errors": STORAGE.meaning("media_errors"),
    "num_err_log_entries": STORAGE.meaning("logged_errors"),
    "warning_temp_time": STORAGE.meaning("hot_time", _MINUTE),
    "critical_comp_time": STORAGE.meaning("too_hot_time", _MINUTE),
}
"""What both programs call by one name."""
_NVME_CLI = _SAME | {
    "host_read_commands": STORAGE.meaning("read_commands"),
    "host_write_commands": STORAGE.meaning("write_commands"),
    "avail_spare": STORAGE.meaning("spare", 0.01),
    "percent_used": STORAGE.meaning("wear", 0.01),
    "thm_temp1_total_time": STORAGE.meaning("light_throttled_time", _S),
    "thm_temp2_total_time": STORAGE.meaning("heavy_throttled_time", _S),
}
_OF_SMARTCTL = _SAME | {
    "host_reads": STORAGE.meaning("read_commands"),
    "host_writes": STORAGE.meaning("write_commands"),
    "available_spare": STORAGE.meaning("spare", 0.01),
    "percentage_used": STORAGE.meaning("wear", 0.01),
}
_TEMPERATURE = STORAGE.meaning("temperature")


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise it by keys that nothing else has."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    is_log = b'"percent_used"' in head and b'"data_units_read"' in head
    is_smartctl = b'"smartctl"' in head and b"NVMe" in head
    if (is_log or is_smartctl) and (b"{" in start[:200]):
        return Recognition(KIND, "SMART log of an NVMe disk (nvme smart-log, smartctl -j)", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the numbers into storage_sample. A place is the line at which a document begins."""
    named = _DEVICE.search(PurePath(source.path).name.lower())
    with source.open() as stream:
        reading = Reading(sink, stream, None, "line")
        samples = StorageSamples(sink, source)
        others = 0
        for document in reading.documents():
            others += _document(document, named[0] if named else None, samples, reading)
        if reading.good_count:
            reading.from_documentation("The SMART log of NVMe disks")
        if others:
            count_other_metrics(sink, others)
        reading.finish(samples, streams.stream_problem(stream))


def _document(
    document: Document, named: str | None, samples: StorageSamples, reading: Reading
) -> int:
    """How many of its numbers are no counter of ours."""
    whole = dict_of(document.value)
    log, meanings, device, time_ns = whole, _NVME_CLI, named, document.stamp_ns
    if "smartctl" in whole:
        log, meanings = dict_of(whole.get(_SMARTCTL)), _OF_SMARTCTL
        stated = _DEVICE.search(text_of(dict_of(whole.get("device")).get("name")) or "")
        device = stated[0] if stated else named
        seconds = dict_of(whole.get("local_time")).get("time_t")
        time_ns = seconds * _S if isinstance(seconds, int) and 0 < seconds < 2**33 else time_ns
    if not any(key in log for key in meanings):
        reading.bad(document.line, "no SMART log of an NVMe disk")
        return 0
    reading.good()
    samples.at(time_ns)
    found = 0
    for key, meaning in meanings.items():
        if key in log:
            found += numbers_count(log[key])
            samples.sample(document.line, device or "nvme", meaning, log[key], original=key)
    if "temperature" in log:
        found += numbers_count(log["temperature"])
        degrees = _celsius(log["temperature"], is_kelvin=meanings is _NVME_CLI)
        samples.sample(
            document.line, device or "nvme", _TEMPERATURE, degrees, original="temperature"
        )
    return numbers_count(log) - found


def _celsius(printed: Any, *, is_kelvin: bool) -> Any:
    if is_kelvin and isinstance(printed, int) and not isinstance(printed, bool):
        return printed - _KELVIN
    return printed
