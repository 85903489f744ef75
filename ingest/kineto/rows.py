"""From groups of events to rows of the registry's tables."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit import arrays
from tracekit.ingest.kineto import times
from tracekit.ingest.kineto.model import NO_RAW, Event
from tracekit.ingest.traces import names
from tracekit.ingest.traces.columns import Cache, constant, ids, ints, shown_names, texts

Microseconds = tuple["array[float]", "array[float]"]
"""Start and duration of events as the file has them, exact as doubles (``Group.us``)."""


def compact_json(raw: bytes) -> str | None:
    """JSON text without the white space between its tokens; None for what holds nothing."""
    import json

    if not raw:
        return None
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if value is None:
        return None
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class Names(dict[str, int]):
    """Distinct names as numbers."""

    def __missing__(self, name: str) -> int:
        code = self[name] = len(self)
        return code


class HeldRows:
    """Columns that grow batch by batch, while what a batch was decoded to is in the cache.

    They become arrays together: an array costs by the dozen, not by the row.
    """

    def __init__(self) -> None:
        self._places: list[times.Int64s] = []
        self._parts: list[tuple[times.Int64s, times.Int64s]] = []
        self._us = array("d"), array("d")
        """Start and duration of the rows behind ``_parts``."""
        self._columns: list[list[Any] | array[int]] = []
        self.names = Names()
        self._codes = array("i")
        self.count = 0

    def add(
        self,
        places: times.Int64s,
        columns: Sequence[list[Any]],
        *,
        shown: list[str] | None = None,
        us: Microseconds | None = None,
        ns: tuple[times.Int64s, times.Int64s] | None = None,
    ) -> None:
        """Keep rows, with their names, and their times as the file has them or in nanoseconds."""
        self._places.append(places)
        self.count += len(places)
        if us is not None:
            for known, more in zip(self._us, us, strict=True):
                known.extend(more)
        elif ns is not None:
            self._settle()
            self._parts.append(ns)
        if shown is not None:
            names = self.names
            self._codes.fromlist([names[name] for name in shown])
        if not self._columns:
            self._columns = [_column(values) for values in columns]
            return
        for i, values in enumerate(columns):
            column = self._columns[i]
            try:
                column.fromlist(values)  # type: ignore[union-attr]
            except AttributeError:
                column.extend(values)
            except (TypeError, OverflowError):
                self._columns[i] = [*column, *values]

    def _settle(self) -> None:
        start, dur = self._us
        if start:
            self._parts.append(
                (times.from_doubles(np.array(start)), times.from_doubles(np.array(dur)))
            )
            self._us = array("d"), array("d")

    def codes(self) -> npt.NDArray[np.int32]:
        """The number of each row's name in ``names``."""
        return np.frombuffer(self._codes, np.int32)

    def shown(self) -> pa.Array:
        """The name of each row."""
        codes = arrays.column(self.codes())
        return pa.DictionaryArray.from_arrays(codes, shown_names([*self.names]))

    def take(self) -> tuple[times.Int64s, times.Int64s, times.Int64s, list[Any]]:
        """Places, start_ns, dur_ns and the columns of all rows; to be called once, with some."""
        self._settle()
        start, dur = zip(*self._parts, strict=True)
        places = np.concatenate(self._places)
        return places, np.concatenate(start), np.concatenate(dur), self._columns


def _column(values: list[Any]) -> list[Any] | array[int]:
    try:
        return array("q", values)
    except (TypeError, OverflowError):
        return values


class HostRows:
    """Tables of what happens on the host."""

    def __init__(self) -> None:
        self._json = Cache(compact_json)

    def _texts(self, values: list[Any]) -> list[str | None]:
        """JSON text of raw fragments, of which nothing is kept."""
        if values.count(NO_RAW) == len(values):  # nearly always the very object: no comparison
            return [None] * len(values)
        cache = self._json
        return [cache[bytes(v)] for v in values]

    def operator_columns(self, events: Sequence[Event]) -> list[list[Any]]:
        """What ``operator_table`` needs of framework operators, but for names and times."""
        args = [e.args or _NO_OPERATOR for e in events]
        dims = [a.dims if a.dims_2021 is NO_RAW else a.dims_2021 for a in args]
        return [
            [e.pid for e in events],
            [e.tid for e in events],
            [a.external_id for a in args],
            [a.sequence for a in args],
            [a.forward_thread for a in args],
            self._texts(dims),
            self._texts([a.types for a in args]),
        ]

    @staticmethod
    def operator_table(held: HeldRows, word: str) -> pa.Table:
        """host_op rows of framework operators."""
        places, start, dur, columns = held.take()
        pids, threads, external, sequence, forward, dims, types = columns
        return pa.table(
            {
                "place": arrays.column(places),
                "start_ns": arrays.column(start),
                "dur_ns": arrays.column(dur),
                "category": constant(word, held.count),
                "name": held.shown(),
                "pid": ids(pids),
                "thread": ids(threads),
                "external_id": ints(external),
                "sequence_number": ints(sequence),
                "forward_thread": ints(forward),
                "input_dims": texts(dims, arrays.PACKED),
                "input_types": texts(types, arrays.PACKED),
            }
        )

    @staticmethod
    def call_columns(events: Sequence[Event]) -> list[list[Any]]:
        """What ``call_table`` needs of calls, but for names and times."""
        args = [e.args or _NO_CALL for e in events]
        external = [a.external_id for a in args]
        if None in external:
            external = [
                a.external_id if a.external_id is not None else a.external_id_2021 for a in args
            ]
        return [
            [e.pid for e in events],
            [e.tid for e in events],
            external,
            [a.correlation for a in args],
        ]

    @staticmethod
    def call_table(held: HeldRows, word: str) -> pa.Table:
        """host_op rows of runtime and driver calls, and of the profiler's overhead."""
        places, start, dur, columns = held.take()
        pids, threads, external, correlation = columns
        return pa.table(
            {
                "place": arrays.column(places),
                "start_ns": arrays.column(start),
                "dur_ns": arrays.column(dur),
                "category": constant(word, held.count),
                "name": held.shown(),
                "pid": ids(pids),
                "thread": ids(threads),
                "external_id": ints(external),
                "correlation": ints(correlation),
            }
        )


class RangeRows:
    """Rows of ``annotation`` from several batches. Nothing of the batches' text is kept."""

    def __init__(self) -> None:
        self._parts: list[tuple[Any, Any, Any, bool]] = []
        self._domains: list[str] = []
        self._names: list[str] = []
        self._ids: list[tuple[Any, Any, Any]] = []
        """Process, thread, external id."""

    def __len__(self) -> int:
        return len(self._names)

    def add(
        self,
        events: Sequence[Event],
        places: Any,
        start: Any,
        dur: Any,
        domains: Sequence[str],
        *,
        is_twin: bool,
    ) -> None:
        """Keep ranges; ``is_twin`` where they show on the device what the host did."""
        self._parts.append((places, start, dur, is_twin))
        self._domains += domains
        self._names += [e.name for e in events]
        self._ids += [
            (
                None if is_twin else e.pid,
                e.tid,
                getattr(getattr(e, "args", None), "external_id", None),
            )
            for e in events
        ]

    def take(self) -> pa.Table:
        """All rows; none are kept."""
        steps = [
            names.step_number(name) if domain == "profiler_step" else None
            for name, domain in zip(self._names, self._domains, strict=True)
        ]
        pids, threads, external = zip(*self._ids, strict=True)
        table = pa.table(
            {
                "place": arrays.column(np.concatenate([p[0] for p in self._parts])),
                "start_ns": arrays.column(np.concatenate([p[1] for p in self._parts])),
                "dur_ns": arrays.column(np.concatenate([p[2] for p in self._parts])),
                "domain": texts(self._domains),
                "style": constant("push_pop", len(self)),
                "name": shown_names(self._names),
                "pid": ints(pids),
                "thread": ints(threads),
                "external_id": ints(external),
                "step": ints(steps),
                "is_gpu_twin": arrays.column(
                    np.concatenate([np.full(len(p[0]), p[3]) for p in self._parts])
                ),
            }
        )
        self._parts, self._domains, self._names, self._ids = [], [], [], []
        return table


def _defaults() -> tuple[Any, Any]:
    from tracekit.ingest.kineto.model import CallArgs, OperatorArgs

    return OperatorArgs(), CallArgs()


_NO_OPERATOR, _NO_CALL = _defaults()
