"""Ranges around collectives on the host: by external id, or by what lies inside them."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.ingest.kineto.collectives import Meta
from tracekit.native import NULL


class HostComm(NamedTuple):
    """A host range around a collective: ``record_param_comms``, or ``nccl:all_reduce``."""

    pid: int | None
    thread: int | None
    start: int
    end: int
    external_id: int | None
    sequence: int | None
    place: int
    meta: Meta


class HostComms:
    """Ranges around collectives: by external id, or by what lies inside them.

    A trace may have hundreds of thousands, so they are kept as numbers: 64 bytes each.
    """

    def __init__(self) -> None:
        self._columns = [array("q") for _ in HostComm._fields[:-1]]
        """The numbers of each range; one that is absent is ``NULL``."""
        self._metas: list[Meta] = []
        self._ids = array("q")
        self._of_ids = array("q")
        """External ids, in order, and the first range of each."""
        self._by_thread: dict[tuple[int, int], tuple[array[int], array[int]]] = {}
        """Starts, in order, and which ranges these are."""

    def add(self, comm: HostComm) -> None:
        """Remember a range."""
        *numbers, meta = comm
        for column, number in zip(self._columns, numbers, strict=True):
            column.append(NULL if number is None else number)
        self._metas.append(meta)

    def __len__(self) -> int:
        return len(self._metas)

    def __iter__(self) -> Iterator[HostComm]:
        return (self._at(i) for i in range(len(self)))

    def finish(self) -> None:
        """Sort."""
        if not len(self):
            return
        pid, thread, start, end, ids, *_ = (np.frombuffer(c, np.int64) for c in self._columns)
        order = np.lexsort((np.where(ids == NULL, 0, ids), -end, start))
        with_id = order[(ids[order] != NULL) & (ids[order] != 0)]
        known, first = np.unique(ids[with_id], return_index=True)
        self._ids, self._of_ids = _numbers(known), _numbers(with_id[first])
        by_thread = order[np.lexsort((thread[order], pid[order]))]
        keys = np.stack((pid[by_thread], thread[by_thread]))
        is_new = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
        for rows in np.split(by_thread, np.flatnonzero(is_new) + 1):
            key = int(pid[rows[0]]), int(thread[rows[0]])
            self._by_thread[key] = _numbers(start[rows]), _numbers(rows)

    def by_id(self, external_id: int | None) -> HostComm | None:
        """The range of that external id."""
        if not external_id:
            return None
        at = bisect_left(self._ids, external_id)
        is_known = at < len(self._ids) and self._ids[at] == external_id
        return self._at(self._of_ids[at]) if is_known else None

    def around(self, pid: int | None, thread: int | None, moment: int) -> HostComm | None:
        """The innermost range on a thread that holds a moment."""
        key = NULL if pid is None else pid, NULL if thread is None else thread
        if key not in self._by_thread:
            return None
        starts, rows = self._by_thread[key]
        ends = self._columns[HostComm._fields.index("end")]
        at = bisect_right(starts, moment) - 1
        for i in range(at, max(at - 4, -1), -1):
            if moment <= ends[rows[i]]:
                return self._at(rows[i])
        return None

    def _at(self, row: int) -> HostComm:
        told = [None if (v := column[row]) == NULL else v for column in self._columns]
        return HostComm._make((*told, self._metas[row]))


def _numbers(values: npt.NDArray[np.int64]) -> array[int]:
    """As ``bisect`` searches them fastest."""
    return array("q", values.tobytes())
