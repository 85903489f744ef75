"""Samples on their way into their table: gathered by series, written in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tracekit.ingest.base import Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.nameless import MAX_HELD, Nameless
from tracekit.values import fitted, tell

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BLOCK_ROWS = 200_000
"""Rows that are gathered before they are written."""


def count_local_time(sink: Sink) -> None:
    """Say that a file's times lack their zone."""
    sink.count(
        "local_time",
        severity="info",
        doc="Times without a zone. They mean nothing beside other files until job.toml says "
        "[[source]] path, timezone.",
    )


def count_other_metrics(sink: Sink, n: int = 1) -> None:
    """Count samples of metrics that are no counter of ours."""
    sink.count(
        "other_metric",
        n,
        severity="info",
        doc="Samples of metrics that are no counter of a GPU, NIC, machine or disk: not kept.",
    )


def count_without_interval(sink: Sink, n: int) -> None:
    """Count numbers of reports of which nobody knows since when they count."""
    sink.count(
        "no_interval",
        n,
        severity="info",
        doc="Numbers of reports without a report before them (the first is of the time since the "
        "machine began) or without a time: not kept.",
    )


class Samples:
    """Gathers the samples of one file and writes them into one table.

    What all samples of a series share (whose it is, its counter, its unit) is held once, and a
    sample holds the number of its series. A subject says how its series are described.
    """

    table: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    """Columns that a series has once."""
    device_columns: ClassVar[tuple[str, ...]] = ()
    """Those that name its device: one that has none of them is not told from others (Nameless)."""
    devices: ClassVar[str] = "devices"
    keeps_series: ClassVar[bool] = True
    """Whether the numbers of series hold for the whole file; else for a block, so that a file of
    many series takes no more memory than one of few."""

    def __init__(self, sink: Sink, source: SourceFile) -> None:
        self._sink = sink
        self.file_time = times.of_file(source)
        self._described: dict[tuple[Any, ...], int] = {}
        self._ids: list[int] = []
        self._places: list[int] = []
        self._times: list[int | None] = []
        self._values: list[float | None] = []
        self._counted: list[int | None] = []
        self._blocks: list[tuple[pa.Array, ...]] = []
        self._blocks_count = 0
        self._window: tuple[int, int] | None = None
        self._nameless = Nameless(self.columns)
        self._device_at = [self.columns.index(name) for name in self.device_columns]
        self.rows_count = 0
        self.missing_count = 0
        """Cells that say that there is no number."""

    def _number_of(self, series: tuple[Any, ...]) -> int:
        """The number of a series, given as its values of ``columns``; behind them what else tells
        those apart whose device has no name."""
        return self._described.setdefault(series, len(self._described))

    def _put(
        self, series: int, place: int, time_ns: int | None, value: float | None, counted: int | None
    ) -> None:
        """One sample, in the unit of its series; one of the last two is None."""
        self._ids.append(series)
        self._places.append(place)
        self._times.append(time_ns)
        self._values.append(value)
        self._counted.append(counted)
        if len(self._ids) >= BLOCK_ROWS:
            self._flush()

    def add_many(
        self,
        series: np.ndarray,
        places: np.ndarray,
        times_ns: np.ndarray | None,
        values: np.ndarray | None,
        counted: np.ndarray | None,
    ) -> None:
        """Samples as arrays, already scaled and without blanks; one of the last two is None.

        ``times_ns`` is None where nobody knows when they were read.
        """
        import pyarrow as pa

        if not len(series):
            return
        self.rows_count += len(series)
        none = pa.nulls(len(series), pa.float64() if values is None else pa.uint64())
        self._blocks.append(
            (
                pa.array(series, pa.int32()),
                pa.array(places, pa.int64()),
                pa.nulls(len(series), pa.int64())
                if times_ns is None
                else pa.array(times_ns, pa.int64()),
                none if values is None else pa.array(values, pa.float64()),
                none if counted is None else pa.array(counted, pa.uint64()),
            )
        )
        self._blocks_count += len(series)
        if self._blocks_count >= BLOCK_ROWS:
            self._flush_blocks()

    def _flush_blocks(self) -> None:
        import pyarrow as pa

        if self._blocks:
            columns = [pa.concat_arrays(list(c)) for c in zip(*self._blocks, strict=True)]
            self._write(columns[0].to_numpy(), *columns[1:])
            self._blocks.clear()
            self._blocks_count = 0

    def _flush(self) -> None:
        import numpy as np

        gathered = (self._ids, self._places, self._times, self._values, self._counted)
        if self._ids:
            self._write(np.array(self._ids, np.int64), *gathered[1:])
        for each in gathered:
            each.clear()
        if not self.keeps_series:
            self._described.clear()

    def _write(
        self,
        ids: np.ndarray,
        places: Sequence[int] | pa.Array,
        times_ns: Sequence[int | None] | pa.Array,
        values: Sequence[float | None] | pa.Array,
        counted: Sequence[int | None] | pa.Array,
    ) -> None:
        import numpy as np
        import pyarrow as pa

        # Only the series of this block are described: a file may have many more.
        used = np.flatnonzero(np.bincount(ids, minlength=len(self._described)))
        place_of = np.zeros(len(self._described), np.int32)
        place_of[used] = np.arange(len(used), dtype=np.int32)
        every = list(self._described)
        series = [every[i] for i in used.tolist()]
        which = place_of[ids]
        has_no_name = np.array([bool(self._device_at) and self._lacks_name(s) for s in series])
        if has_no_name.any():
            is_held = has_no_name[which]
            whole = [
                pa.array(which, pa.int32()), pa.array(places, pa.int64()),
                pa.array(times_ns, pa.int64()), pa.array(values, pa.float64()),
                pa.array(counted, pa.uint64()),
            ]  # fmt: skip
            at, place, time, value, count = (c.filter(pa.array(is_held)) for c in whole)
            self._nameless.hold(series, (at, place, time, value, count))
            if self._nameless.rows_count >= MAX_HELD:
                self._put_nameless()
            if is_held.all():
                return
            at, places, times_ns, values, counted = (c.filter(pa.array(~is_held)) for c in whole)
            which = at.to_numpy()
        self._put_rows(series, which, places, times_ns, values, counted)

    def _lacks_name(self, series: tuple[Any, ...]) -> bool:
        return all(series[at] is None for at in self._device_at)

    def _put_nameless(self) -> None:
        """Write what is held of devices without a name, unless it is of several."""
        judged = self._nameless.judged()
        at, *columns = judged.good
        if len(at):
            self._put_rows(list(self._nameless.series), at.to_numpy(), *columns)
        if judged.left_out_count:
            why = f"several {self.devices} stand in it that nothing names"
            self._sink.fact(status="partial", reason=why)
            self._sink.count(
                f"nameless_{self.devices.lower()}",
                judged.left_out_count,
                doc=f"Samples of several {self.devices} that nothing names (no index, name or "
                "address beside them, and two values at a time, or values in bursts): left out. "
                "[[source]] columns may say which column names them.",
                place=judged.place,
            )

    def _put_rows(
        self,
        series: Sequence[tuple[Any, ...]],
        which: np.ndarray,
        places: Sequence[int] | pa.Array,
        times_ns: Sequence[int | None] | pa.Array,
        values: Sequence[float | None] | pa.Array,
        counted: Sequence[int | None] | pa.Array,
    ) -> None:
        """Rows, whose series are given by their place in ``series``."""
        import pyarrow as pa
        import pyarrow.compute as pc

        described, misfits = fitted(
            self.table, dict(zip(self.columns, zip(*series, strict=False), strict=False))
        )
        columns: dict[str, Any] = {
            "place": places, "time_ns": times_ns, "value": values, "counted": counted,
        }  # fmt: skip
        if misfits:  # rare: row by row, so that they are told with their places
            rows_of = [series[i] for i in which.tolist()]
            columns |= zip(self.columns, zip(*rows_of, strict=False), strict=False)
        else:
            at = pa.array(which, pa.int32())
            for name in self.columns:
                words = described.column(name).combine_chunks()
                if pa.types.is_string(words.type):
                    words = words.dictionary_encode()
                    columns[name] = pa.DictionaryArray.from_arrays(
                        words.indices.take(at), words.dictionary
                    )
                else:
                    columns[name] = words.take(at)
        rows, misfits = fitted(self.table, columns)
        tell(self._sink.count, rows, misfits)
        ends = pc.min_max(rows.column("time_ns"))
        if ends["min"].is_valid:
            low, high = ends["min"].as_py(), ends["max"].as_py()
            old = self._window or (low, high)
            self._window = (min(low, old[0]), max(high, old[1]))
        self._sink.write(self.table, rows)

    def _end(self, basis: str) -> None:
        """Write what is left, and say what time the file covers and how many numbers it lacks."""
        self._flush()
        self._flush_blocks()
        if self._nameless.rows_count:
            self._put_nameless()
        if self.missing_count:
            self._sink.count(
                "no_value",
                self.missing_count,
                severity="info",
                doc="Cells that say that there is no number (N/A, NaN, a dash, one of DCGM's "
                "blanks): no sample was written.",
            )
        if self._window is not None:
            low, high = self._window
            self._sink.fact(time_basis=basis, window_start_ns=low, window_end_ns=high)
