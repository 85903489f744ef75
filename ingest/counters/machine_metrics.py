"""Metrics of node_exporter on a machine and its storage, as the counters that they are."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from tracekit.ingest.base import Sink, SourceFile
from tracekit.ingest.counters import exposition
from tracekit.ingest.counters.exposition import Series
from tracekit.ingest.counters.host_samples import HostSamples
from tracekit.ingest.counters.host_words import HOST
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
    address: str | None = None
    """Where it was scraped, which tells machines apart that have no name."""


def machine_metric(series: Series, node: str | None) -> MachineMetric | None:
    """What a series is of a machine or its disks; None for all else. ``node``: whose, if said."""
    address = _address(series.labels.get("instance", ""))
    if (meaning := _MACHINE.get(series.name)) is not None:
        return MachineMetric(node, meaning, None, address)
    device = series.labels.get("device")
    if device and (meaning := _DISK.get(series.name)) is not None:
        return MachineMetric(node, meaning, device, address)
    return None


def _address(instance: str) -> str | None:
    """The address of ``10.1.2.3:9100``; None for all else."""
    host = instance.partition(":")[0]
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


class MachineSamples:
    """The host_sample and storage_sample of one file: of the machine that it names first, which is
    the file's, and of further ones, whose rows name them."""

    def __init__(self, sink: Sink, source: SourceFile) -> None:
        self._host = HostSamples(sink, source)
        self._storage = StorageSamples(sink, source)
        self._own: str | None = None
        """Name, else address, of the machine that comes first."""

    def add(self, place: int, metric: MachineMetric, number: str, name: str, time_ns: int | None,
            ) -> None:  # fmt: skip
        """One number, printed as ``number``; ``time_ns``: when, where the file says so."""
        whose = metric.node or metric.address
        self._own = self._own or whose
        other = None if whose == self._own else whose
        meaning, printed = _in_its_unit(metric.meaning, number)
        for samples in (self._host, self._storage):
            if other is None:
                samples.of(metric.node)
            samples.at(time_ns)
        if metric.device is None:
            self._host.sample(place, meaning, printed, original=name, cgroup=None, other=other)
        else:
            device = metric.device
            self._storage.sample(place, device, meaning, printed, original=name, other=other)

    def finish(self) -> None:
        """Write what is left."""
        for samples in (self._host, self._storage):
            if samples.rows_count:
                samples.finish()


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
