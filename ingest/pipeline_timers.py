"""Per-operation timer files of a pipeline job (Parquet, one row an operation).

Recognised by their eleven columns, whatever else they hold:

    dp_rank, stage, rank, step, optype, start_ts, duration, seq_id, mc, mb_id, gmc

as NDTimeline writes them and the OSDI 2025 study of stragglers publishes them. Times are seconds
and start at 0 in every step; a file covers all ranks that were recorded.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tracekit.errors import InputError
from tracekit.ingest.base import IngestOptions, Recognition, Sink, SourceFile

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET_MAGIC = b"PAR1"
KIND = "pipeline_timers"
COLUMNS = frozenset(
    (
        *("dp_rank", "stage", "rank", "step", "optype", "start_ts"),
        *("duration", "seq_id", "mc", "mb_id", "gmc"),
    )
)
BATCH_ROWS = 1 << 18
MAX_MEMBER_BYTES = 1 << 30
"""A Parquet file inside an archive is read whole: its index is at its end."""

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
    version = 1

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Never by the head: a Parquet file names its columns at its end. See ``recognise``."""
        del head, name
        return None

    def recognise(self, source: SourceFile) -> Recognition | None:
        """Recognise a Parquet file by its columns; None if they are not ours."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with _opened(source) as stream:
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
            with _opened(source) as stream:
                file = pq.ParquetFile(stream)
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


def _opened(source: SourceFile) -> BinaryIO:
    """A stream that can seek."""
    if Path(source.path).is_file():
        return Path(source.path).open("rb")
    with source.open() as stream:
        data = stream.read(MAX_MEMBER_BYTES + 1)
    if len(data) > MAX_MEMBER_BYTES:
        raise InputError("a Parquet file of more than 1 GiB inside an archive is not read")
    return io.BytesIO(data)


def _converted(rows: pa.Table, place: int, sink: Sink) -> pa.Table:
    """Rows of ``pipeline_timer``: nanoseconds, and null where the file says -1."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    def integers(name: str) -> Any:
        return rows.column(name).cast(pa.int64())

    start = np.asarray(rows.column("start_ts").cast(pa.float64()).fill_null(np.nan).to_numpy())
    dur = np.asarray(rows.column("duration").cast(pa.float64()).fill_null(np.nan).to_numpy())
    # Beyond 292 years a second count is no time but damage, and would not fit int64 ns.
    usable = np.isfinite(start) & np.isfinite(dur) & (np.abs(start) < 9e9) & (dur < 9e9)
    negative = usable & (dur < 0)
    usable &= dur >= 0
    for name in ("rank", "stage", "dp_rank", "step", "optype"):
        usable &= np.asarray(rows.column(name).is_valid().to_numpy())
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
        "operation": rows.column("optype").cast(pa.string()),
        "start_ns": pa.array(start_ns),
        "end_ns": pa.array(start_ns + dur_ns),
    }
    for old, new in _RENAMED.items():
        values = integers(old)
        if old in ("mb_id", "mc", "gmc"):
            values = pc.if_else(pc.less(values, 0), pa.scalar(None, pa.int64()), values)
        columns[new] = values
    return pa.table(columns).filter(pa.array(usable))


def _bounds(rows: pa.Table) -> tuple[int, int]:
    import pyarrow.compute as pc

    return pc.min(rows.column("start_ns")).as_py(), pc.max(rows.column("end_ns")).as_py()
