"""Metrics of node_exporter on a machine and its storage, as the counters that they are."""

from __future__ import annotations

from typing import NamedTuple

from tracekit.ingest.base import Sink, SourceFile
from tracekit.ingest.counters import exposition
from tracekit.ingest.counters.exposition import Series
from tracekit.ingest.counters.host_samples import HostSamples
from tracekit.ingest.counters.host_words import HOST
from tracekit.ingest.counters.samples import count_further_machines
from tracekit.ingest.counters.storage_samples import StorageSamples
from tracekit.ingest.counters.storage_words import STORAGE
from tracekit.ingest.counters.vocabulary import Meaning

_SECOND = 10**9
_MACHINE = {
    "node_pressure_cpu_waiting_seconds_total": HOST.meaning("cpu_pressure_some_time", _SECOND),
    "node_pressure_io_waiting_seconds_total": HOST.meaning("io_pressure_some_time", _SECOND),
    "node_pressure_io_stalled_seconds_total": HOST.meaning("io_pressure_full_time", _SECOND),
    "node_pressure_memory_waiting_seconds_total": HOST.meaning(
        "memory_pressure_some_time", _SECOND
    ),
    "node_pressure_memory_stalled_seconds_total": HOST.meaning(
        "memory_pressure_full_time", _SECOND
    ),
    "node_procs_running": HOST.meaning("runnable_tasks"),
    "node_procs_blocked": HOST.meaning("blocked_tasks"),
    "node_memory_MemAvailable_bytes": HOST.meaning("memory_available"),
    "node_vmstat_oom_kill": HOST.meaning("memory_oom_kills"),
}
_DISK = {
    "node_disk_reads_completed_total": STORAGE.meaning("read_requests"),
    "node_disk_read_bytes_total": STORAGE.meaning("read_bytes"),
    "node_disk_read_time_seconds_total": STORAGE.meaning("read_time", _SECOND),
    "node_disk_writes_completed_total": STORAGE.meaning("write_requests"),
    "node_disk_written_bytes_total": STORAGE.meaning("write_bytes"),
    "node_disk_write_time_seconds_total": STORAGE.meaning("write_time", _SECOND),
    "node_disk_flush_requests_total": STORAGE.meaning("flush_requests"),
    "node_disk_flush_requests_time_seconds_total": STORAGE.meaning("flush_time", _SECOND),
    "node_disk_io_time_seconds_total": STORAGE.meaning("busy_time", _SECOND),
}


class MachineMetric(NamedTuple):
    """A counter of a machine, or of a disk on it."""

    node: str | None
    meaning: Meaning
    device: str | None = None
    """The disk; None: the machine itself."""


def machine_metric(series: Series, node: str | None) -> MachineMetric | None:
    """What a series is of a machine or its disks; None for all else. ``node``: whose, if said."""
    if (meaning := _MACHINE.get(series.name)) is not None:
        return MachineMetric(node, meaning)
    device = series.labels.get("device")
    if device and (meaning := _DISK.get(series.name)) is not None:
        return MachineMetric(node, meaning, device)
    return None


class MachineSamples:
    """The host_sample and storage_sample of one file, which are of the first machine it names.

    Those tables know a file's machine only, not a row's: what a file says of further machines is
    counted and not kept.
    """

    def __init__(self, sink: Sink, source: SourceFile) -> None:
        self._sink = sink
        self._host = HostSamples(sink, source)
        self._storage = StorageSamples(sink, source)
        self._node: str | None = None
        self._others_count = 0

    def add(self, place: int, metric: MachineMetric, number: str, name: str, time_ns: int | None,
            ) -> None:  # fmt: skip
        """One number, printed as ``number``; ``time_ns``: when, where the file says so."""
        if metric.node is not None:
            self._node = self._node or metric.node
            if metric.node != self._node:
                self._others_count += 1
                return
        meaning, printed = _in_its_unit(metric.meaning, number)
        for samples in (self._host, self._storage):
            samples.of(metric.node)
            samples.at(time_ns)
        if metric.device is None:
            self._host.sample(place, meaning, printed, original=name, cgroup=None)
        else:
            self._storage.sample(place, metric.device, meaning, printed, original=name)

    def finish(self) -> None:
        """Write what is left, and say what was not kept."""
        for samples in (self._host, self._storage):
            if samples.rows_count:
                samples.finish()
        if self._others_count:
            count_further_machines(self._sink, self._others_count)


def _in_its_unit(meaning: Meaning, number: str) -> tuple[Meaning, object]:
    """A count is whole in its unit, where the source prints seconds with a fraction."""
    value = exposition.value_of(number)
    if value is None:
        return meaning, number
    if meaning.kind != "cumulative":
        return meaning, value
    counted = exposition.counted_of(number) if meaning.scale == 1 else None
    whole = counted if counted is not None else round(value * meaning.scale)
    return meaning._replace(scale=1), whole
