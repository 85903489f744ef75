"""Reading a folder of Parquet files (``nsys export --type=parquetdir``): a table each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tracekit.ingest.nsys.database import BATCH_ROWS, Batch, DamagedError, Tables

SUFFIX = "_pqtdir"
"""What nsys adds to the name of such a folder."""
MARKERS = (
    "StringIds.parquet",
    "META_DATA_EXPORT.parquet",
    "TARGET_INFO_SESSION_START_TIME.parquet",
)
"""Two of these make a folder an export."""
_BLOBS = {"binaryData"}
"""Declared as text and no text: DuckDB refuses to read them. Sizes of collectives stay unknown."""
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
            self._types[path.stem] = {k: v for k, v in columns.items() if k not in _BLOBS}
        self.tables = {name: tuple(types) for name, types in self._types.items()}
        if not self.tables:
            self._con.close()
            raise DamagedError("none of its Parquet files can be read")

    def __exit__(self, *_: object) -> None:
        self._con.close()

    def _from(self, table: str) -> str:
        """The rows of a table with integers as signed ones: ids are unsigned in Parquet."""
        shown = [
            f'TRY_CAST("{c}" AS BIGINT) AS "{c}"' if t in _INTEGERS else f'"{c}"'
            for c, t in self._types[table].items()
        ]
        listed = ", ".join(["file_row_number AS rowid", *shown])
        return f"(SELECT {listed} FROM read_parquet(?, file_row_number = true))"  # noqa: S608

    def _path(self, table: str) -> str:
        return str(self._folder / f"{table}.parquet")

    def batches(
        self, table: str, wanted: Sequence[str], where: str = "", params: Sequence[object] = ()
    ) -> Iterator[Batch]:
        """Rows of a table in their stored order: those of the wanted columns that it has."""
        if table not in self.tables:
            return
        present = [c for c in wanted if c in self.tables[table]]
        listed = ", ".join(["rowid", *(f'"{c}"' for c in present)])
        condition = f" WHERE {where}" if where else ""
        sql = f"SELECT {listed} FROM {self._from(table)}{condition} ORDER BY rowid"  # noqa: S608
        cursor = self._con.cursor()
        try:
            cursor.execute(sql, [self._path(table), *params])
            while rows := cursor.fetchmany(BATCH_ROWS):
                rowids, *values = zip(*rows, strict=True)
                yield Batch(rowids, dict(zip(present, values, strict=True)))
        except self._error:
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
