"""Writing Parquet: one shard holds the rows of a few sources, a file a table."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from tracekit import values
from tracekit.errors import RunWriteError, StoreError
from tracekit.schema import Table, table
from tracekit.store.damage import checksum, verify
from tracekit.store.manifest import ShardFile

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

ROW_GROUP_BYTES = 3 << 20
"""Arrow bytes buffered a table before a row group is written: bounds a worker's memory. Columns
that rows lack are not counted."""

WAITING_COUNT = 2
"""Row groups that may wait for the writing thread."""

FILE_BYTES = 256 << 20
"""A Parquet file is closed and the next begun at this size."""


@contextlib.contextmanager
def writing(
    place: Path | str, hint: str = "name a folder with enough space, where you may write"
) -> Iterator[None]:
    """What goes wrong with the disk becomes a RunWriteError, so that no source is blamed for it."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else type(error).__name__
        raise RunWriteError(f"{place}: cannot be written ({why})", hint=hint) from None


SAMPLE_TABLES = frozenset({"gpu_sample", "host_sample", "net_sample", "storage_sample"})
"""Tables with a row a number: a day of 64 GPUs is 110 million. Their text comes and is buffered as
dictionaries, since the same few names repeat."""


def _parquet_options(spec: Table) -> dict[str, Any]:
    # Dictionaries pay for text; for times and ids they cost time and are thrown away.
    text = [c.name for c in spec.stored_columns if c.type == "VARCHAR"]
    # As differences, numbers take a quarter less room and less time to write and to read.
    numbers = [c.name for c in spec.stored_columns if c.type == "BIGINT"]
    return {
        "column_encoding": dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": text,
        "write_statistics": [
            c.name
            for c in spec.stored_columns
            if c.is_time or c.name in ("source_id", "step", "counter")
        ],
        "store_schema": False,
    }


def buffered_schema(spec: Table) -> pa.Schema:
    """The stored columns as they are buffered: text of sample tables as dictionaries."""
    import pyarrow as pa

    schema = spec.arrow_schema()
    if spec.name not in SAMPLE_TABLES:
        return schema
    packed = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([f.with_type(packed) if f.type == pa.string() else f for f in schema])


def conform(
    spec: Table, rows: pa.Table, source_id: int | None, *, is_packed: bool = False
) -> pa.Table:
    """Rows with exactly the stored columns of ``spec``: absent ones null, types cast.

    ``source_id`` fills that column when given. With ``is_packed`` text that comes as a dictionary
    stays one, which Parquet writes as it is. StoreError names a column that is not in the
    registry or does not cast: a bug in an ingestor, not in a file.
    """
    import pyarrow as pa

    from tracekit import arrays

    known = {c.name for c in spec.stored_columns}
    extra = [name for name in rows.column_names if name not in known]
    if extra:
        raise StoreError(f"{spec.name}: no such column in the registry: {', '.join(extra)}")
    schema = buffered_schema(spec)
    columns: list[Any] = []
    fields: list[pa.Field] = []
    for stored in schema:
        wanted = stored
        if is_packed and stored.type == pa.string():
            at = rows.schema.get_field_index(stored.name)
            given = rows.schema.field(at).type if at >= 0 else arrays.PACKED
            if pa.types.is_dictionary(given) and given.value_type == pa.string():
                wanted = stored.with_type(arrays.PACKED)
        fields.append(wanted)
        if wanted.name == "source_id" and source_id is not None:
            columns.append(pa.repeat(pa.scalar(source_id, pa.int32()), rows.num_rows))
        elif wanted.name in rows.column_names:
            column = rows.column(wanted.name)
            columns.append(column if column.type == wanted.type else _cast(spec, wanted, column))
        else:
            columns.append(pa.nulls(rows.num_rows, wanted.type))
    return pa.table(columns, schema=pa.schema(fields))


def _cast(spec: Table, wanted: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    try:
        return column.cast(wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise StoreError(
            f"{spec.name}.{wanted.name}: {column.type} does not cast to {wanted.type}: {error}"
        ) from None


def _is_castless(spec: Table, schema: pa.Schema) -> bool:
    """Whether rows become the stored columns without a cast that could fail."""
    import pyarrow as pa

    if spec.name in SAMPLE_TABLES:
        return False  # text stays as dictionaries: an ingestor's table is a row group as it is
    stored = spec.arrow_schema()
    for column in schema:
        at = stored.get_field_index(column.name)
        if at < 0:
            return False
        is_packed = pa.types.is_dictionary(column.type) and column.type.value_type == pa.string()
        if column.type != stored.field(at).type and not (
            is_packed and stored.field(at).type == pa.string()
        ):
            return False
    return True


def _conformed(spec: Table, due: Sequence[_Part]) -> list[pa.Table]:
    """The parts with exactly the stored columns, in their order. Those of a source are put together
    first, and then sources whose columns are alike: the columns that a thousand of them lack are
    filled once."""
    import pyarrow as pa

    tables: list[pa.Table] = []
    for is_stored, group in groupby(due, key=lambda part: part[0] is None):
        if is_stored:
            tables += [rows for _, rows in group]
            continue
        for _, alike in groupby(_by_source(group), key=lambda rows: rows.schema):
            tables.append(conform(spec, pa.concat_tables(alike), None, is_packed=True))
    return tables


def _by_source(due: Iterable[_Part]) -> Iterator[pa.Table]:
    """The rows of each source, with its id."""
    import pyarrow as pa

    for source_id, group in groupby(due, key=lambda part: part[0]):
        parts = [rows for _, rows in group]
        with contextlib.suppress(pa.ArrowException):  # a column is text here, a dictionary there
            parts = [pa.concat_tables(parts, promote_options="default")]
        for rows in parts:
            numbered = pa.repeat(pa.scalar(source_id, pa.int32()), rows.num_rows)
            at = rows.schema.get_field_index("source_id")
            yield (
                rows.append_column("source_id", numbered)
                if at < 0
                else rows.set_column(at, "source_id", numbered)
            )


def _common(tables: Sequence[pa.Table]) -> pa.Schema:
    """A schema for all: text is a dictionary where all have it so."""
    import pyarrow as pa

    fields: list[pa.Field] = []
    for i, column in enumerate(tables[0].schema):
        is_same = all(t.schema.field(i).type == column.type for t in tables)
        fields.append(column if is_same else column.with_type(pa.string()))
    return pa.schema(fields)


_Part = tuple[int | None, "pa.Table"]
"""Rows, and the id of their source where they do not have all stored columns yet."""

_Bounds = tuple[int, int, int | None, int | None]
"""First and last source, first and last time of a row group."""


class _TableFiles(Struct):
    """The open file of one table, what waits to be written to it, and what was written."""

    spec: Table
    folder: Path
    buffered: list[_Part] = field(default_factory=list)
    buffered_bytes: int = 0
    writer: pq.ParquetWriter | None = None
    path: Path | None = None
    rows_count: int = 0
    bounds: list[_Bounds] = field(default_factory=list)
    finished: list[ShardFile] = field(default_factory=list)
    schema: pa.Schema | None = None
    """Of all row groups: text may be dictionaries in it, if the first rows had it so."""
    castless: list[pa.Schema] = field(default_factory=list)
    """Schemas of rows that need no cast: an ingestor has a few for each table."""

    def take(self, rows: pa.Table, source_id: int | None) -> bool:
        """Buffer rows; whether enough has come together for a row group.

        With ``source_id`` the rows are an ingestor's. StoreError where they do not fit, now: what
        is left for later, in the writing thread, cannot fail.
        """
        if source_id is not None and not self._needs_no_cast(rows.schema):
            rows, source_id = conform(self.spec, rows, source_id), None
        self.buffered.append((source_id, rows))
        self.buffered_bytes += rows.nbytes
        return self.buffered_bytes >= ROW_GROUP_BYTES

    def _needs_no_cast(self, schema: pa.Schema) -> bool:
        if any(schema.equals(known) for known in self.castless):
            return True
        if not _is_castless(self.spec, schema):
            return False
        self.castless.append(schema)
        return True

    def row_group(self) -> tuple[pa.Table, _Bounds] | None:
        """What is buffered, as ``write`` takes it; None if nothing is.

        For the thread that parses: this is many small steps, and the writing thread would wait for
        its turn after each.
        """
        import pyarrow as pa

        due, self.buffered, self.buffered_bytes = self.buffered, [], 0
        if not due:
            return None
        tables = _conformed(self.spec, due)
        if self.schema is None:
            self.schema = _common(tables)
        schema = self.schema
        rows = pa.concat_tables([t if t.schema == schema else t.cast(schema) for t in tables])
        rows = rows.unify_dictionaries()
        return rows, _bounds(self.spec, rows)

    def write(self, rows: pa.Table, bounds: _Bounds) -> None:
        """One row group; may run in the writing thread, in order."""
        import pyarrow.parquet as pq

        with writing(self.folder):
            if self.writer is None:
                self.path = self.folder / f"{self.spec.name}-{len(self.finished):03d}.parquet"
                self.writer = pq.ParquetWriter(
                    self.path, rows.schema, **_parquet_options(self.spec)
                )
            self.writer.write_table(rows, row_group_size=rows.num_rows)
        self.rows_count += rows.num_rows
        self.bounds.append(bounds)
        if self.path is not None and self.path.stat().st_size >= FILE_BYTES:
            self.close()

    def close(self) -> None:
        """Finish the open file; nothing may be waiting."""
        if self.writer is None or self.path is None:
            return
        with writing(self.folder):
            self.writer.close()
        times = [b for b in self.bounds if b[2] is not None and b[3] is not None]
        self.finished.append(
            ShardFile(
                table=self.spec.name,
                path=self.path.name,
                rows_count=self.rows_count,
                file_bytes=self.path.stat().st_size,
                min_source_id=min(b[0] for b in self.bounds),
                max_source_id=max(b[1] for b in self.bounds),
                min_time_ns=min((b[2] for b in times if b[2] is not None), default=None),
                max_time_ns=max((b[3] for b in times if b[3] is not None), default=None),
                crc32=checksum(self.path),
            )
        )
        self.writer, self.path, self.rows_count, self.bounds = None, None, 0, []

    def abandon(self) -> None:
        """Let go of a file that is not finished, whatever the disk says."""
        if self.writer is None:
            return
        with contextlib.suppress(OSError):
            self.writer.close()
        self.writer.is_open = False  # its destructor would try again, and print a traceback
        self.writer = None


def _bounds(spec: Table, rows: pa.Table) -> _Bounds:
    from tracekit import arrays

    sources = arrays.ends(rows.column("source_id"))
    assert sources is not None  # noqa: S101 - there are rows, each with its source
    time = next((c.name for c in spec.stored_columns if c.is_time), None)
    times = arrays.ends(rows.column(time)) if time else None
    return *sources, *(times or (None, None))


class ShardWriter:
    """Writes the rows of several sources into one folder; not for use by two processes.

    With ``background`` a thread compresses and writes while the next rows are parsed; at most
    ``WAITING_COUNT`` row groups wait for it.
    """

    def __init__(self, folder: Path, *, background: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._tables: dict[str, _TableFiles] = {}
        self._thread = ThreadPoolExecutor(1, "parquet-writer") if background else None
        self._waiting: deque[Future[None]] = deque()

    def sink(self, source_id: int) -> SourceSink:
        """A sink for one source. Close it before opening the next."""
        return SourceSink(self, source_id)

    def add(self, name: str, rows: pa.Table, source_id: int | None = None) -> None:
        """Rows that already have exactly the stored columns of the table, unless ``source_id``
        says whose they are: those may lack columns, and become the stored ones."""
        if name not in self._tables:
            self._tables[name] = _TableFiles(table(name), self._folder)
        files = self._tables[name]
        if not files.take(rows, source_id):
            return
        group = files.row_group()
        assert group is not None  # noqa: S101 - there are rows
        if self._thread is None:
            files.write(*group)
            return
        while len(self._waiting) >= WAITING_COUNT:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(files.write, *group))

    def close(self) -> tuple[ShardFile, ...]:
        """Finish all files and list them, with paths relative to the shard's folder."""
        while self._waiting:
            self._waiting.popleft().result()
        # What is left of each table, in both threads: the largest first.
        busy: Future[None] | None = None
        for files in sorted(self._tables.values(), key=lambda f: -f.buffered_bytes):
            group = files.row_group()
            if group is None:
                continue
            if self._thread is not None and (busy is None or busy.done()):
                if busy is not None:
                    busy.result()
                busy = self._thread.submit(files.write, *group)
            else:
                files.write(*group)
        if busy is not None:
            busy.result()
        for files in self._tables.values():
            files.close()
        self.stop()
        return tuple(f for name in sorted(self._tables) for f in self._tables[name].finished)

    def stop(self) -> None:
        """End the writing thread, also where the shard was given up."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        for files in self._tables.values():
            files.abandon()


class SourceSink:
    """The ``Sink`` of one source: adds its id, checks against the registry, counts."""

    def __init__(self, shard: ShardWriter, source_id: int) -> None:
        self._shard = shard
        self._source_id = source_id
        self._facts: dict[str, object] = {}
        self._stats: dict[tuple[str, str], dict[str, object]] = {}
        self._rows_count = 0

    def write(self, name: str, rows: pa.Table) -> None:
        """See ``Sink.write``."""
        if rows.num_rows == 0:
            return
        rows, misfits = values.bounded(name, rows)
        values.tell(self.count, rows, misfits)
        self._shard.add(name, rows, self._source_id)
        self._rows_count += rows.num_rows

    def count(
        self,
        counter: str,
        n: int = 1,
        *,
        severity: str = "warning",
        doc: str,
        place: int | None = None,
        shape: str | None = None,
    ) -> None:
        """See ``Sink.count``."""
        if n <= 0:
            return
        stat = self._stats.setdefault(
            (counter, severity),
            {
                "counter": counter,
                "severity": severity,
                "occurrence_count": 0,
                "doc": doc,
                "place": place,
                "shape": shape,
            },
        )
        stat["occurrence_count"] = int(str(stat["occurrence_count"])) + n

    def fact(self, **columns: object) -> None:
        """See ``Sink.fact``."""
        self._facts.update(columns)

    @property
    def facts(self) -> dict[str, object]:
        """The facts so far."""
        return dict(self._facts)

    def close(self, **facts: object) -> None:
        """Write the source's own row and its counts."""
        row = {**self._facts, **facts, "rows_count": self._rows_count}
        rows, misfits = values.fitted("source", {name: [value] for name, value in row.items()})
        values.tell(self.count, rows, misfits)
        self._shard.add("source", conform(table("source"), rows, self._source_id))
        if self._stats:
            stats = list(self._stats.values())
            columns = {name: [stat[name] for stat in stats] for name in stats[0]}
            rows, _ = values.fitted("ingest_stat", columns)
            self._shard.add("ingest_stat", conform(table("ingest_stat"), rows, self._source_id))


def write_table(folder: Path, name: str, rows: pa.Table) -> ShardFile:
    """Write one derived table; path relative to ``folder``."""
    import pyarrow.parquet as pq

    spec = table(name)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.parquet"
    with writing(folder):
        pq.write_table(conform(spec, rows, None), path, **_parquet_options(spec))
    size = path.stat().st_size
    return ShardFile(name, path.name, rows.num_rows, size, crc32=checksum(path))


def carry(
    run: Path, files: Iterable[ShardFile], source_ids: Collection[int], writer: ShardWriter
) -> None:
    """Copy the rows of those sources; DamagedRunError where they are not what was written."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    wanted = pa.array(sorted(source_ids), pa.int32())
    for file in files:
        verify(run, [file])
        spec = table(file.table)
        with pq.ParquetFile(run / file.path) as stored:
            for index in range(stored.num_row_groups):
                rows = stored.read_row_group(index)
                rows = rows.filter(pc.is_in(rows.column("source_id"), value_set=wanted))
                if rows.num_rows:
                    writer.add(file.table, conform(spec, rows, None))
