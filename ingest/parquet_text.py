"""A table of Parquet as the text that it would be as CSV, so that readers of tables take it too.

Fields of structs are columns (``gpu0.power_w``), dictionaries their words, and times epochs in
nanoseconds where they are of a zone, else local times. A table with lists becomes lines of JSON.
What an index column of a data frame is called (``__index_level_0__``) is nobody's name: it stands
first, without one.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from msgspec.structs import replace

from tracekit.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.ingest.base import SourceFile

MAGIC = b"PAR1"
MAX_MEMBER_BYTES = 1 << 30
"""A Parquet file inside an archive is read whole: its index is at its end."""
BATCH_ROWS = 1 << 14
MAX_DEPTH = 4
"""Structs within structs whose fields become columns."""

_INDEX = re.compile(r"__index_level_\d+__")


def opened(source: SourceFile) -> BinaryIO:
    """The stored bytes of a source, as a stream that can seek."""
    if Path(source.path).is_file():
        return Path(source.path).open("rb")
    with source.open() as stream:
        data = stream.read(MAX_MEMBER_BYTES + 1)
    if len(data) > MAX_MEMBER_BYTES:
        raise InputError("a Parquet file of more than 1 GiB inside an archive is not read")
    return io.BytesIO(data)


def as_text(source: SourceFile) -> SourceFile:
    """The source whose stream is its table as text, where it is one of Parquet; else itself."""
    with source.open() as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            return source
    return replace(source, open=partial(_text, source))


def _text(source: SourceFile) -> BinaryIO:
    return _TextStream(source)  # type: ignore[return-value]


class _TextStream(io.RawIOBase):
    """The lines of a table. Damage ends them early; ``problem`` then says so."""

    is_compressed = True

    def __init__(self, source: SourceFile) -> None:
        super().__init__()
        self._raw = opened(source)
        self._parts = self._made()
        self._pending = b""
        self.problem: str | None = None
        self.raw_bytes = 0

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._raw.close()
        super().close()

    def read(self, size: int = -1) -> bytes:
        parts, got = [self._pending], len(self._pending)
        while (size < 0 or got < size) and (part := next(self._parts, b"")):
            parts.append(part)
            got += len(part)
        whole = b"".join(parts)
        cut = len(whole) if size < 0 else size
        self._pending = whole[cut:]
        self.raw_bytes += len(whole[:cut])
        return whole[:cut]

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        part = self.read(len(view))
        view[: len(part)] = part
        return len(part)

    def _made(self) -> Iterator[bytes]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            file = pq.ParquetFile(self._raw)
            is_first = True
            for batch in file.iter_batches(BATCH_ROWS):
                table = _flat(pa.Table.from_batches([batch]))
                if any(_is_list(kind) for kind in table.schema.types):
                    yield _lines_of_json(table)
                else:
                    yield _lines_of_csv(table, with_header=is_first)
                is_first = False
        except (pa.ArrowException, OSError):
            self.problem = "damaged"


def _flat(table: pa.Table) -> pa.Table:
    """The columns with a name each: fields of structs too, an index of a data frame first."""
    import pyarrow as pa

    for _ in range(MAX_DEPTH):
        if not any(pa.types.is_struct(kind) for kind in table.schema.types):
            break
        table = table.flatten()
    order = sorted(
        range(table.num_columns), key=lambda i: not _INDEX.fullmatch(table.schema[i].name)
    )
    names = ["" if _INDEX.fullmatch(table.schema[i].name) else table.schema[i].name for i in order]
    columns = [_plain(table.column(i)) for i in order]
    return pa.Table.from_arrays(columns, names=names)


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_nested(kind))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column whose cells are printed as they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain(column.cast(kind.value_type))
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            return column.cast(pa.timestamp("ns", kind.tz)).cast(pa.int64())
        return pc.strftime(column, format="%Y-%m-%dT%H:%M:%S")
    if pa.types.is_decimal(kind) or pa.types.is_temporal(kind):
        return column.cast(pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.chunked_array([pa.nulls(len(column), pa.string())])
    return column


def _lines_of_csv(table: pa.Table, *, with_header: bool) -> bytes:
    import pyarrow.csv

    made = io.BytesIO()
    options = pyarrow.csv.WriteOptions(include_header=with_header, quoting_style="needed")
    pyarrow.csv.write_csv(table, made, options)
    return made.getvalue()


def _lines_of_json(table: pa.Table) -> bytes:
    rows = (json.dumps(_object(row), default=str) + "\n" for row in table.to_pylist())
    return "".join(rows).encode()


def _object(value: Any) -> Any:
    """What JSON can say of a cell; a map's pairs are an object."""
    if isinstance(value, dict):
        return {str(k): _object(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        if value and all(isinstance(v, tuple) and len(v) == 2 for v in value):
            return {str(k): _object(v) for k, v in value}
        return [_object(v) for v in value]
    return value
