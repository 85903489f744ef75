"""Ranges around collectives on the host: by external id, or by what lies inside them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Any

from msgspec import Struct

from tracekit.ingest.kineto.collectives import Meta


class HostComm(Struct, frozen=True):
    """A host range around a collective: ``record_param_comms``, or ``nccl:all_reduce``."""

    pid: int | None
    thread: int | None
    start: int
    end: int
    external_id: int | None
    meta: Meta
    sequence: int | None
    place: int


class HostComms:
    """Ranges around collectives: by external id, or by what lies inside them."""

    def __init__(self) -> None:
        self._all: list[HostComm] = []
        self._by_id: dict[int, HostComm] = {}
        self._by_thread: dict[tuple[int | None, int | None], tuple[array[int], list[HostComm]]] = {}

    def add(self, comm: HostComm) -> None:
        """Remember a range."""
        self._all.append(comm)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Any:
        return iter(self._all)

    def finish(self) -> None:
        """Sort."""
        threads: dict[tuple[int | None, int | None], list[HostComm]] = {}
        for comm in sorted(self._all, key=lambda c: (c.start, -c.end, c.external_id or 0)):
            threads.setdefault((comm.pid, comm.thread), []).append(comm)
            if comm.external_id:
                self._by_id.setdefault(comm.external_id, comm)
        for key, comms in threads.items():
            self._by_thread[key] = (array("q", [c.start for c in comms]), comms)

    def by_id(self, external_id: int | None) -> HostComm | None:
        """The range of that external id."""
        return self._by_id.get(external_id) if external_id else None

    def around(self, pid: int | None, thread: int | None, moment: int) -> HostComm | None:
        """The innermost range on a thread that holds a moment."""
        starts, comms = self._by_thread.get((pid, thread), (None, []))
        if starts is None:
            return None
        at = bisect_right(starts, moment) - 1
        for i in range(at, max(at - 4, -1), -1):
            if moment <= comms[i].end:
                return comms[i]
        return None
