"""Per-operation timer files of a pipeline job (Parquet, one row an operation).

Recognised by their eleven columns, whatever else they hold:

    dp_rank, stage, rank, step, optype, start_ts, duration, seq_id, mc, mb_id, gmc

as NDTimeline writes them and the OSDI 2025 study of stragglers publishes them. Times are seconds
and start at 0 in every step; a file covers all ranks that were recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracekit import schema
from tracekit.errors import InputError
from tracekit.ingest.base import IngestOptions, Recognition, Sink, SourceFile
from tracekit.ingest.parquet_text import opened
from tracekit.values import NO_FIT, NO_FIT_DOC

if TYPE_CHECKING:
    import pyarrow as pa

KIND = "pipeline_timers"
COLUMNS = frozenset(
    (
        *("dp_rank", "stage", "rank", "step", "optype", "start_ts"),
        *("duration", "seq_id", "mc", "mb_id", "gmc"),
    )
)
BATCH_ROWS = 1 << 18

MAX_TIME_S = 4e9
"""Seconds from which on a count is no time but damage, and would not fit int64 ns when added."""
MAX_OPERATION_CHARS = 100
"""Of the name of an operation; the few dozen that there are have twenty."""

_RENAMED = {
    "rank": "global_rank",
    "dp_rank": "dp_rank",
    "stage": "pp_rank",
    "step": "step",
    "seq_id": "sequence",
    "mb_id": "microbatch",
    "mc": "chunk",
    "gmc": "global_chunk",
}


class PipelineTimersIngestor:
    """Parquet files of pipeline operation timers."""

    name = "pipeline_timers"
    version = 2

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Never by the head: a Parquet file names its columns at its end. See ``recognise``."""
        del head, name
        return None

    def recognise(self, source: SourceFile) -> Recognition | None:
        """Recognise a Parquet file by its columns; None if they are not ours."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with opened(source) as stream:
                names = set(pq.read_schema(stream).names)
        except (pa.ArrowException, OSError, InputError) as error:
            why = f"a Parquet file that cannot be read ({type(error).__name__})"
            return Recognition("parquet", why, status="unreadable")
        if not names >= COLUMNS:
            return None
        return Recognition(
            KIND, "Parquet with the columns of pipeline operation timers", ingestor=self.name
        )

    def read(self, source: SourceFile, sink: Sink, options: IngestOptions) -> None:
        """Write ``pipeline_timer`` rows; rows without a time, rank or type are counted."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        del options
        place, first, last = 0, None, None
        try:
            with opened(source) as stream:
                # A name stands once in its dictionary, however often rows repeat it.
                file = pq.ParquetFile(stream, read_dictionary=["optype"])
                _check_columns(file.schema_arrow.names)
                for batch in file.iter_batches(BATCH_ROWS, columns=sorted(COLUMNS)):
                    rows = _converted(pa.Table.from_batches([batch]), place, sink)
                    place += batch.num_rows
                    if rows.num_rows == 0:
                        continue
                    sink.write("pipeline_timer", rows)
                    low, high = _bounds(rows)
                    first = low if first is None else min(first, low)
                    last = high if last is None else max(last, high)
        except (pa.ArrowException, OSError) as error:
            if place == 0:
                raise InputError(f"cannot be read as Parquet ({type(error).__name__})") from None
            sink.count(
                "parquet_damaged",
                severity="error",
                doc="The file breaks off or is damaged: rows after this one are missing.",
                place=place,
            )
            sink.fact(status="partial", reason="the Parquet data is damaged")
        sink.fact(
            time_basis="relative",
            time_resolution_ns=1,
            place_kind="row",
            window_start_ns=first,
            window_end_ns=last,
        )
        if place == 0:
            sink.fact(status="empty", reason="it holds no rows")
        elif first is None:
            sink.fact(
                status="unreadable", reason="no row of it has a rank, stage, step, type and time"
            )


def _check_columns(names: Sequence[str]) -> None:
    """Refuse what cannot be told apart. Raises InputError."""
    twice = sorted(name for name in COLUMNS if names.count(name) > 1)
    if twice:
        raise InputError(f"it has the column {twice[0]} more than once")


def _fitted(rows: pa.Table, name: str, type_: pa.DataType, place: int, sink: Sink) -> pa.Array:
    """A column in the type that is wanted; null, and counted, where a value is none of it."""
    import numpy as np
    import pyarrow as pa

    column = rows.column(name).combine_chunks()
    with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column.cast(type_)
    kept: list[object] = []
    for value in column:
        try:
            kept.append(value.cast(type_).as_py())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            kept.append(None)
    fitted = pa.array(kept, type_)
    wrong = np.asarray(fitted.is_null()) & np.asarray(column.is_valid())
    sink.count(
        NO_FIT, int(wrong.sum()), doc=NO_FIT_DOC, place=place + int(wrong.argmax()), shape=name
    )
    return fitted


def _converted(rows: pa.Table, place: int, sink: Sink) -> pa.Table:
    """Rows of ``pipeline_timer``: nanoseconds, and null where the file says -1."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    stored = schema.table("pipeline_timer").arrow_schema()
    integers = {
        old: _fitted(rows, old, stored.field(new).type, place, sink)
        for old, new in _RENAMED.items()
    }
    operation = _operations(
        _fitted(rows, "optype", pa.dictionary(pa.int32(), pa.string()), place, sink)
    )
    start, dur = (
        np.asarray(_fitted(rows, name, pa.float64(), place, sink).fill_null(np.nan))
        for name in ("start_ts", "duration")
    )
    usable = np.isfinite(start) & np.isfinite(dur)
    usable &= (np.abs(start) < MAX_TIME_S) & (dur < MAX_TIME_S)
    negative = usable & (dur < 0)
    usable &= dur >= 0
    for column in (operation, *(integers[n] for n in ("rank", "stage", "dp_rank", "step"))):
        usable &= np.asarray(column.is_valid())
    for name, which, doc in (
        ("timer_negative", negative, "An operation with a negative duration; it is left out."),
        (
            "timer_incomplete",
            ~usable & ~negative,
            "An operation without rank, stage, step, type or time; it is left out.",
        ),
    ):
        if which.any():
            first = place + int(np.flatnonzero(which)[0])
            sink.count(name, int(which.sum()), doc=doc, place=first)
    start_ns = np.rint(np.where(usable, start, 0.0) * 1e9).astype(np.int64)
    # The duration is rounded by itself: the end of a long step would cost it digits.
    dur_ns = np.rint(np.where(usable, dur, 0.0) * 1e9).astype(np.int64)
    columns: dict[str, Any] = {
        "place": pa.array(np.arange(place, place + rows.num_rows)),
        "operation": operation,
        "start_ns": pa.array(start_ns),
        "end_ns": pa.array(start_ns + dur_ns),
    }
    for old, new in _RENAMED.items():
        values = integers[old]
        if old in ("mb_id", "mc", "gmc"):
            values = pc.if_else(pc.less(values, 0), pa.scalar(None, values.type), values)
        columns[new] = values
    return pa.table(columns).filter(pa.array(usable))


def _operations(names: pa.Array) -> pa.Array:
    """Names of operations as a dictionary, none of which is long."""
    import pyarrow as pa
    import pyarrow.compute as pc

    short = pc.utf8_slice_codeunits(names.dictionary, 0, MAX_OPERATION_CHARS)
    return pa.DictionaryArray.from_arrays(names.indices, short)


def _bounds(rows: pa.Table) -> tuple[int, int]:
    import pyarrow.compute as pc

    return pc.min(rows.column("start_ns")).as_py(), pc.max(rows.column("end_ns")).as_py()
