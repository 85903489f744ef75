"""Processes on GPUs: how many compute on each, and the names of their executables.

A name may be a whole command line with a password in it: of it the last part of the first word is
kept, and only if it looks like a file's name.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tracekit.ingest.base import Sink
from tracekit.ingest.gpu.fields import Meaning
from tracekit.ingest.gpu.samples import Gpu, Samples

COUNT = Meaning("compute_processes", 1.0, "processes")
MAX_PROCESSES = 100_000
"""Different processes of a file that are named."""

_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]{0,63}")


def executable(text: str | None) -> str | None:
    """The name of the executable at the start of a command line; None for what may be no name."""
    words = (text or "").split()
    found = re.split(r"[/\\]", words[0])[-1] if words else ""
    return found if _NAME.fullmatch(found) else None


def is_compute(kind: str) -> bool:
    """Whether a process of that type computes: C, C+G, and M+C under MPS; G only draws."""
    return "C" in kind.upper().split("+")


class _Seen(NamedTuple):
    place: int
    kind: str | None
    name: str | None


class Processes:
    """The processes of one file, gathered into readings; ``finish`` writes them.

    The reader says where a reading ends. Where a process comes again before it did, the file does
    not tell its readings apart: a process that followed another would look like its neighbour, so
    no counts are written.
    """

    def __init__(self, sink: Sink, samples: Samples) -> None:
        self._sink = sink
        self._samples = samples
        self._is_unsure = False
        self._readings: list[tuple[Gpu, int, int | None, str | None, int]] = []
        self._now: dict[Gpu, tuple[int, int | None, str | None, set[int]]] = {}
        self._seen: dict[tuple[Gpu, int], _Seen] = {}
        self._counts: dict[tuple[Gpu, int], list[int]] = {}

    def nobody(self, place: int, gpu: Gpu, time_ns: int | None, source: str | None) -> None:
        """A GPU of which the source says that no process computes on it."""
        if gpu in self._now:
            self.end_reading()
        self._now[gpu] = (place, time_ns, source, set())

    def one(
        self,
        place: int,
        gpu: Gpu,
        pid: int,
        time_ns: int | None,
        source: str | None,
        *,
        kind: str | None = None,
        name: str | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        """A process on a GPU. ``kind`` is nvidia-smi's type; None where all that compute."""
        held = self._now.get(gpu)
        if held is not None and pid in held[3]:
            self._is_unsure = True
            self.end_reading()
            held = None
        if held is None:
            held = self._now[gpu] = (place, time_ns, source, set())
        if kind is None or is_compute(kind):
            held[3].add(pid)
        key = (gpu, pid)
        if key not in self._seen:
            if len(self._seen) >= MAX_PROCESSES:
                return
            self._seen[key] = _Seen(place, kind, executable(name))
            self._counts[key] = [0, 0]
        counts = self._counts[key]
        counts[0] += 1
        counts[1] = max(counts[1], memory_bytes or 0)

    def since(self, gpu: Gpu) -> int | None:
        """The time at which the reading that runs first saw a GPU."""
        held = self._now.get(gpu)
        return held[1] if held is not None else None

    def end_reading(self) -> None:
        """Every GPU has been listed."""
        for gpu, (place, time_ns, source, pids) in self._now.items():
            if not self._is_unsure:
                self._readings.append((gpu, place, time_ns, source, len(pids)))
        self._now = {}

    def finish(self) -> None:
        """Write the last reading, and the processes by name."""
        import pyarrow as pa

        self.end_reading()
        if self._is_unsure:
            self._sink.count(
                "reading_without_time",
                severity="info",
                doc="Lists of processes whose readings nothing separates: their counts were not "
                "kept. With --query-compute-apps=timestamp,... or pmon -o DT they are.",
            )
            self._readings = []
        for gpu, place, time_ns, source, count in self._readings:
            series = self._samples.series(gpu, COUNT, source if time_ns is not None else None)
            self._samples.add(series, COUNT, place, time_ns, float(count))
        if not self._seen:
            return
        seen = list(self._seen.items())
        self._sink.write(
            "gpu_process",
            pa.table(
                {
                    "place": pa.array([s.place for _, s in seen], pa.int64()),
                    "node": pa.array([g.node for (g, _), _ in seen], pa.string()),
                    "device_id": pa.array([g.device_id for (g, _), _ in seen], pa.string()),
                    "nvml_index": pa.array([g.nvml_index for (g, _), _ in seen], pa.int32()),
                    "pid": pa.array([pid for (_, pid), _ in seen], pa.int64()),
                    "kind": pa.array([s.kind for _, s in seen], pa.string()),
                    "name": pa.array([s.name for _, s in seen], pa.string()),
                    "readings_count": pa.array([self._counts[k][0] for k, _ in seen], pa.int64()),
                    "memory_bytes": pa.array(
                        [self._counts[k][1] or None for k, _ in seen], pa.int64()
                    ),
                }
            ),
        )
