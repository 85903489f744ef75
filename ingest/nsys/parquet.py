"""Reading a folder of Parquet files (``nsys export --type=parquetdir``): a table each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.ingest.nsys.database import BATCH_ROWS, DamagedError, Tables

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.ingest.nsys.batch import Batch

BLOB = "binaryData"
"""Declared as text and no text, which DuckDB refuses to read: Arrow reads it, as bytes."""
MAX_BLOBS_BYTES = 256 << 20
"""Payloads of one table that are kept; beyond it the table counts as damaged."""
_INTEGERS = {
    "UBIGINT",
    "BIGINT",
    "INTEGER",
    "UINTEGER",
    "SMALLINT",
    "USMALLINT",
    "TINYINT",
    "UTINYINT",
}
MEMORY = "512MB"


class ParquetTables(Tables):
    """An open folder. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        import duckdb

        self._folder = folder
        self._error = duckdb.Error
        self._con = duckdb.connect(config={"threads": 1, "memory_limit": MEMORY})
        self._types: dict[str, dict[str, str]] = {}
        for path in sorted(folder.glob("*.parquet")):
            try:
                described = self._con.execute(
                    "DESCRIBE SELECT * FROM read_parquet(?)", [str(path)]
                ).fetchall()
            except duckdb.Error:
                self.damaged.append(f"{path.stem}: its file is damaged")
                continue
            columns = {str(c[0]): str(c[1]) for c in described if '"' not in str(c[0])}
            self._types[path.stem] = columns
        self.tables = {name: tuple(types) for name, types in self._types.items()}
        if not self.tables:
            self._con.close()
            raise DamagedError("none of its Parquet files can be read")

    def __exit__(self, *_: object) -> None:
        self._con.close()

    def _from(self, table: str, *, has_blobs: bool = False) -> str:
        """The rows of a table with integers as signed ones: ids are unsigned in Parquet."""
        shown = [
            f'TRY_CAST("{c}" AS BIGINT) AS "{c}"' if t in _INTEGERS else f'"{c}"'
            for c, t in self._types[table].items()
            if c != BLOB
        ]
        listed = ", ".join(["file_row_number AS rowid", *shown])
        rows = f"(SELECT {listed} FROM read_parquet(?, file_row_number = true))"  # noqa: S608
        return f"({rows} LEFT JOIN nsys_blobs USING (rowid))" if has_blobs else rows

    def _blobs(self, table: str) -> pa.Table:
        """Row number and bytes of a table's payloads. ValueError where they are too many."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        batches: list[pa.RecordBatch] = []
        row = size = 0
        with pq.ParquetFile(self._path(table)) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=[BLOB]):
                blobs = batch.column(0).cast(pa.binary())
                good = blobs.is_valid()
                numbers = pa.array(range(row, row + len(blobs)), pa.int64())
                row += len(blobs)
                if pc.any(good).as_py():
                    kept = pa.record_batch([numbers, blobs], ["rowid", BLOB]).filter(good)
                    size += kept.nbytes
                    batches.append(kept)
                if size > MAX_BLOBS_BYTES:
                    raise ValueError(table)
        schema = pa.schema([("rowid", pa.int64()), (BLOB, pa.binary())])
        return pa.Table.from_batches(batches, schema)

    def _path(self, table: str) -> str:
        return str(self._folder / f"{table}.parquet")

    def batches(
        self, table: str, wanted: Sequence[str], where: str = "", params: Sequence[object] = ()
    ) -> Iterator[Batch]:
        """Rows of a table in their stored order: those of the wanted columns that it has."""
        from tracekit.ingest.nsys.batch import Batch

        if table not in self.tables:
            return
        present = [c for c in wanted if c in self.tables[table]]
        listed = ", ".join(["rowid", *(f'"{c}"' for c in present)])
        condition = f" WHERE {where}" if where else ""
        has_blobs = BLOB in self.tables[table] and (BLOB in present or BLOB in where)
        rows_of = self._from(table, has_blobs=has_blobs)
        sql = f"SELECT {listed} FROM {rows_of}{condition} ORDER BY rowid"  # noqa: S608
        cursor = self._con.cursor()
        try:
            if has_blobs:
                cursor.register("nsys_blobs", self._blobs(table))
            cursor.execute(sql, [self._path(table), *params])
            while rows := cursor.fetchmany(BATCH_ROWS):
                rowids, *values = zip(*rows, strict=True)
                yield Batch(rowids, dict(zip(present, values, strict=True)))
        except (self._error, OSError, ValueError):  # Arrow's errors are of the latter two
            self.damaged.append(f"{table}: its file is damaged")
        finally:
            cursor.close()

    def _integers(self, table: str, select: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(self._con.cursor()) as cursor:
            try:
                sql = f"SELECT {select} FROM {self._from(table)}"  # noqa: S608 - checked names
                return cursor.execute(sql, [self._path(table)]).fetchall()
            except self._error:
                self.damaged.append(f"{table}: its file is damaged")
                return []
