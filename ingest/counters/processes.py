"""Processes on GPUs: how many compute on each, and the names of their executables.

A name may be a whole command line with a password in it: of it the last part of the first word is
kept, and only if it looks like a file's name.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tracekit.ingest.base import Sink, write_columns
from tracekit.ingest.counters.fields import gpu_meaning
from tracekit.ingest.counters.gpu_samples import Gpu, GpuSamples

COUNT = gpu_meaning("compute_processes", 1.0, "processes")
MAX_PROCESSES = 100_000
"""Different processes of a file that are named."""

_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]{0,63}")


def executable(text: str | None) -> str | None:
    """The name of the executable at the start of a command line; None for what may be no name."""
    words = (text or "").split()
    program = re.split(r"[/\\]", words[0])[-1] if words else ""
    return program if _NAME.fullmatch(program) else None


def is_compute(kind: str) -> bool:
    """Whether a process of that type computes: C, C+G, and M+C under MPS; G only draws."""
    return "C" in kind.upper().split("+")


class _Seen(NamedTuple):
    place: int
    kind: str | None
    name: str | None


class Processes:
    """The processes of one file, gathered into readings; ``finish`` writes them.

    The reader says where a reading ends. Where a process comes again before it did, the output does
    not tell its readings apart, and a process that followed another would look like its neighbour:
    then a GPU's counts are kept only if all its readings in that output list the same processes.
    """

    def __init__(self, sink: Sink, samples: GpuSamples) -> None:
        self._sink = sink
        self._samples = samples
        self._unsure: set[Gpu] = set()
        self._lists: dict[Gpu, set[frozenset[int]]] = {}
        """Different lists of processes of a GPU, two at most."""
        self._unsure_count = 0
        self._kept: list[tuple[Gpu, int, int | None, str | None, int]] = []
        self._readings: list[tuple[Gpu, int, int | None, str | None, frozenset[int]]] = []
        self._now: dict[Gpu, tuple[int, int | None, str | None, set[int]]] = {}
        self._seen: dict[tuple[Gpu, int], _Seen] = {}
        self._counts: dict[tuple[Gpu, int], list[int]] = {}

    def nobody(self, place: int, gpu: Gpu, time_ns: int | None, source: str | None) -> None:
        """A GPU of which the source says that no process computes on it."""
        if gpu in self._now:
            self.end_reading()
        self._now[gpu] = (place, time_ns, source, set())

    def process(
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
            self._unsure.add(gpu)
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

    def end_reading(self) -> None:
        """Every GPU has been listed."""
        for gpu, (place, time_ns, source, pids) in self._now.items():
            listed = frozenset(pids)
            known = self._lists.setdefault(gpu, {listed})
            if len(known) < 2:
                known.add(listed)
            self._readings.append((gpu, place, time_ns, source, listed))
        self._now = {}

    def end_output(self) -> None:
        """Another output begins: what is unsure about this one touches no other."""
        self.end_reading()
        unsure = {gpu for gpu in self._unsure if len(self._lists[gpu]) > 1}
        self._unsure_count += len(unsure)
        self._kept += [(*r[:4], len(r[4])) for r in self._readings if r[0] not in unsure]
        self._readings, self._unsure, self._lists = [], set(), {}

    def finish(self) -> None:
        """Write the readings, and the processes by name."""
        self.end_output()
        if self._unsure_count:
            self._sink.count(
                "reading_without_time",
                self._unsure_count,
                severity="info",
                doc="GPUs whose list of processes changes and whose readings nothing separates: "
                "not counted. With --query-compute-apps=timestamp,... or pmon -o DT they are.",
            )
        for gpu, place, time_ns, source, count in self._kept:
            series = self._samples.series(gpu, COUNT, source if time_ns is not None else None)
            self._samples.add(series, COUNT, place, time_ns, float(count))
        if not self._seen:
            return
        seen = list(self._seen.items())
        write_columns(
            self._sink,
            "gpu_process",
            {
                "place": [s.place for _, s in seen],
                "node": [g.node for (g, _), _ in seen],
                "device_id": [g.device_id for (g, _), _ in seen],
                "nvml_index": [g.nvml_index for (g, _), _ in seen],
                "pid": [pid for (_, pid), _ in seen],
                "kind": [s.kind for _, s in seen],
                "name": [s.name for _, s in seen],
                "readings_count": [self._counts[k][0] for k, _ in seen],
                "memory_bytes": [self._counts[k][1] or None for k, _ in seen],
            },
        )
