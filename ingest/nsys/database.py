"""Reading a SQLite export that nobody vouches for: read-only, real tables only, within limits.

The standard library's driver is used and not a faster one (adbc-driver-sqlite takes a quarter of
the CPU time; docs/nsys.md): only this one takes a progress handler and a length limit, and so can
be stopped where a damaged file's pages lead in circles.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.parse import quote

from tracekit.errors import InputError
from tracekit.ingest import files
from tracekit.ingest.base import SourceFile

MAGIC = b"SQLite format 3\0"
BATCH_ROWS = 1 << 16
"""Rows that are fetched at a time."""
MAX_VALUE_BYTES = 16 << 20
"""Longest string or blob that is read."""
MAX_LONG_ROWS = 100
"""Rows of a table that are left out for too long a value; with more it counts as damaged."""
_BEFORE_ALL = -(1 << 63)
MAX_COPY_BYTES = 64 << 30
"""Largest temporary copy of an archive member or compressed file."""
TIME_LIMIT_S = 300.0
"""Time that one source may take, and as much again for every ``BYTES_PER_TIME_LIMIT``."""
BYTES_PER_TIME_LIMIT = 1 << 30
LOCK_WAIT_S = 2.0
"""How long another program's lock is waited for."""
_CHECK_EVERY = 100_000
"""Instructions of SQLite's machine between two looks at the clock."""
_FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""What a damaged file raises; the second where SQLite's own message quotes bytes of it."""


class DamagedError(InputError):
    """The file cannot be read further: damaged, locked or out of time."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of a table: columns of Python values, and where each row stands."""

    rowids: Sequence[int]
    columns: dict[str, Sequence[Any]]

    def __len__(self) -> int:
        return len(self.rowids)

    def __getitem__(self, name: str) -> Sequence[Any]:
        """A column; all null where the table has none of that name."""
        found = self.columns.get(name)
        return found if found is not None else [None] * len(self.rowids)


class Tables(ABC):
    """The tables of an open export, whichever way it is stored. Use as a context manager."""

    def __init__(self) -> None:
        self.tables: dict[str, tuple[str, ...]] = {}
        """Columns by table."""
        self.damaged: list[str] = []
        """Tables that broke off, in the order in which they were read."""
        self.missing_bytes = 0
        """Bytes that the file promises and does not hold."""
        self.unreal: list[str] = []
        """Names of what is no table of rows of its own: views, virtual tables."""
        self.too_long: dict[str, set[int]] = {}
        """By table, rows with a value that is too long to be read; they are left out."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Close it."""

    @abstractmethod
    def batches(
        self, table: str, wanted: Sequence[str], where: str = "", params: Sequence[object] = ()
    ) -> Iterator[Batch]:
        """Rows of a table in their stored order: those of the wanted columns that it has.

        A damaged table ends early and is named in ``damaged``. ``where`` is ours, never the
        file's; it must name only columns that the caller has seen in the table.
        """

    @abstractmethod
    def _integers(self, table: str, select: str) -> list[tuple[Any, ...]]:
        """A small answer over all rows of a table; none where it is damaged."""

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is a real table of that name with these columns."""
        return table in self.tables and set(columns) <= set(self.tables[table])

    def rows(
        self, table: str, wanted: Sequence[str], where: str = "", params: Sequence[object] = ()
    ) -> Iterator[tuple[Any, ...]]:
        """The same row by row, for small tables."""
        for batch in self.batches(table, wanted, where, params):
            yield from zip(*(batch[c] for c in wanted), strict=True)

    def distinct(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Distinct values of integer columns, in order; none where the table lacks one."""
        if not self.has(table, *columns):
            return []
        rows = self._integers(table, "DISTINCT " + ", ".join(f'"{c}"' for c in columns))
        return sorted(r for r in rows if all(type(v) is int for v in r))

    def largest(self, table: str, *columns: str) -> int | None:
        """The largest value of some integer columns."""
        present = [c for c in columns if self.has(table, c)]
        if not present:
            return None
        rows = self._integers(table, ", ".join(f'max("{c}")' for c in present))
        return max((v for r in rows for v in r if type(v) is int), default=None)


class Database(Tables):
    """An open SQLite export."""

    def __init__(self, path: Path, time_limit_s: float | None = None) -> None:
        super().__init__()
        size = path.stat().st_size
        limit = TIME_LIMIT_S * (1 + size / BYTES_PER_TIME_LIMIT)
        self._deadline = time.monotonic() + (limit if time_limit_s is None else time_limit_s)
        self.missing_bytes = _missing_bytes(path, size)
        self._con = _connect(path)
        try:
            self._con.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            self._con.set_progress_handler(self._is_late, _CHECK_EVERY)
            self._con.execute("PRAGMA trusted_schema = OFF")
            self._con.execute("PRAGMA cell_size_check = ON")
            self.tables = self._read_tables()
        except _FAILURES as error:
            self._con.close()
            raise DamagedError(self._why(error)) from error

    def __exit__(self, *_: object) -> None:
        self._con.close()

    def _is_late(self) -> int:
        return int(time.monotonic() > self._deadline)

    def _read_tables(self) -> dict[str, tuple[str, ...]]:
        """Columns by table. Only tables that hold rows of their own: no view, no virtual table,
        no generated column, since those run what the file says when they are read."""
        named = self._con.execute(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND rootpage > 0"
        ).fetchall()
        others = self._con.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'view'"
            " OR type = 'table' AND coalesce(rootpage, 0) <= 0"
        ).fetchall()
        self.unreal = [name for (name,) in others if isinstance(name, str)]
        found: dict[str, tuple[str, ...]] = {}
        for name, sql in named:
            if not isinstance(name, str) or '"' in name or "WITHOUT ROWID" in str(sql).upper():
                continue
            columns = self._con.execute(f'PRAGMA table_xinfo("{name}")').fetchall()
            found[name] = tuple(str(c[1]) for c in columns if c[6] == 0 and '"' not in str(c[1]))
        return found

    def batches(
        self, table: str, wanted: Sequence[str], where: str = "", params: Sequence[object] = ()
    ) -> Iterator[Batch]:
        """Rows of a table in their stored order: those of the wanted columns that it has."""
        if table not in self.tables:
            return
        present = [c for c in wanted if c in self.tables[table]]
        listed = ", ".join(["rowid", *(f'"{c}"' for c in present)])
        condition = f" AND ({where})" if where else ""

        def batch(rows: Sequence[tuple[Any, ...]]) -> Batch:
            rowids, *values = zip(*rows, strict=True)
            return Batch(rowids, dict(zip(present, values, strict=True)))

        last = _BEFORE_ALL
        while True:
            known = ", ".join(map(str, sorted(self.too_long.get(table, ()))))
            rest = f"rowid > ? AND rowid NOT IN ({known}){condition}"
            sql = f'SELECT {listed} FROM "{table}" WHERE {rest}'  # noqa: S608 - checked names
            try:
                cursor = self._con.execute(sql, [last, *params])
                while rows := cursor.fetchmany(BATCH_ROWS):
                    last = int(rows[-1][0])
                    yield batch(rows)
                return
            except _FAILURES as error:
                failure = error
            if rows := self._until_failure(sql, [last, *params]):
                last = int(rows[-1][0])
                yield batch(rows)
            if not self._leaves_out(failure, table, rest, listed, [last, *params]):
                self.damaged.append(f"{table}: {self._why(failure)}")
                return

    def _until_failure(self, sql: str, params: Sequence[object]) -> list[tuple[Any, ...]]:
        """The rows of a batch that cannot be read whole: those before the one that fails, but for
        the last, since Python reads a row ahead."""
        rows: list[tuple[Any, ...]] = []
        try:
            for row in self._con.execute(sql, params):
                rows.append(row)
                if len(rows) >= BATCH_ROWS:
                    break
        except _FAILURES:
            pass
        return rows

    def _leaves_out(
        self, error: Exception, table: str, rest: str, listed: str, params: Sequence[object]
    ) -> bool:
        """Whether a row with too long a value ended a batch, and is left out from now on."""
        known = self.too_long.get(table, set())
        if not _is_too_long(error) or len(known) >= MAX_LONG_ROWS:
            return False
        one = f'SELECT {listed} FROM "{table}" WHERE rowid = ?'  # noqa: S608 - checked names
        try:
            sql = f'SELECT rowid FROM "{table}" WHERE {rest} ORDER BY rowid LIMIT 2'  # noqa: S608
            for (rowid,) in self._con.execute(sql, params).fetchall():
                try:
                    self._con.execute(one, [rowid]).fetchall()
                except sqlite3.Error as why_not:
                    if not _is_too_long(why_not):
                        return False
                    self.too_long.setdefault(table, set()).add(int(rowid))
                    return True
        except _FAILURES:
            pass
        return False

    def _integers(self, table: str, select: str) -> list[tuple[Any, ...]]:
        try:
            return self._con.execute(f'SELECT {select} FROM "{table}"').fetchall()  # noqa: S608
        except _FAILURES as error:
            self.damaged.append(f"{table}: {self._why(error)}")
            return []

    def _why(self, error: Exception) -> str:
        return why(error, missing_bytes=self.missing_bytes)


def _is_too_long(error: Exception) -> bool:
    return str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_TOOBIG")


def why(error: Exception, *, missing_bytes: int = 0) -> str:
    """What is wrong, in words; never SQLite's own message, which may quote the file."""
    code = getattr(error, "sqlite_errorname", "") or ""
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "another program holds it locked; wait until its export is done"
    if code.startswith("SQLITE_INTERRUPT"):
        return "it took longer than the time limit"
    if code.startswith("SQLITE_TOOBIG"):
        return f"a value is longer than {MAX_VALUE_BYTES >> 20} MiB"
    if missing_bytes:
        return f"it is cut off: {missing_bytes:,} bytes are missing"
    if code.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")) or isinstance(error, ValueError):
        return "its pages are damaged"
    if code.startswith("SQLITE_READONLY"):
        return "a journal beside it was never rolled back: the export was interrupted"
    return f"SQLite cannot read it ({code or type(error).__name__})"


def _missing_bytes(path: Path, size: int) -> int:
    """Bytes that the header promises and the file does not hold."""
    with path.open("rb") as stream:
        head = stream.read(100)
    if len(head) < 100 or not head.startswith(MAGIC):
        return 0
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    is_valid = head[24:28] == head[92:96]  # else the count was written by a very old library
    promised = page * int.from_bytes(head[28:32], "big") if is_valid else 0
    return max(promised - size, 0)


def _connect(path: Path) -> sqlite3.Connection:
    """Read-only. Nothing is created beside the file, so a write-ahead log is never opened."""
    with path.open("rb") as stream:
        head = stream.read(20)
    if not head.startswith(MAGIC):
        raise DamagedError("it is no SQLite file")
    log = Path(f"{path}-wal")
    is_wal = head[18:20] == b"\x02\x02"
    if is_wal and log.exists() and log.stat().st_size:
        raise DamagedError(
            "a write-ahead log lies beside it: another program is writing it; wait until its "
            "export is done"
        )
    if is_wal:
        return _open(path, "mode=ro&immutable=1")
    try:
        con = _open(path, "mode=ro")
        con.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorname", "") or ""
        if not code.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_PROTOCOL")):
            raise DamagedError(why(error)) from error
        return _open(path, "mode=ro&immutable=1")  # a file system without locks
    except _FAILURES as error:
        missing = _missing_bytes(path, path.stat().st_size)
        raise DamagedError(why(error, missing_bytes=missing)) from error
    return con


def _open(path: Path, mode: str) -> sqlite3.Connection:
    con = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?{mode}", uri=True, timeout=LOCK_WAIT_S
    )
    con.text_factory = _text
    return con


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


class OnDisk:
    """A path to a source's bytes: the file itself, or a temporary copy of an archive member or
    compressed file. Use as a context manager."""

    def __init__(self, source: SourceFile, stored_path: str) -> None:
        self._source = source
        self._stored = Path(stored_path)
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Path:
        if self._stored.is_dir():
            return self._stored
        if self._stored.is_file():
            with self._stored.open("rb") as raw:
                if raw.read(len(MAGIC)) == MAGIC:
                    return self._stored
        self._folder = tempfile.TemporaryDirectory(prefix="tracekit-")
        copy = Path(self._folder.name, "export.sqlite")
        try:
            with self._source.open() as raw, copy.open("wb") as out:
                _copy(raw, out)
                problem = files.stream_problem(raw)
        except BaseException:
            self._folder.cleanup()
            raise
        if problem == "limit":
            self._folder.cleanup()
            raise DamagedError("it unpacks to far more than it holds")
        return copy

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def _copy(raw: BinaryIO, out: BinaryIO) -> None:
    done = 0
    while data := raw.read(1 << 20):
        done += len(data)
        room = shutil.disk_usage(tempfile.gettempdir()).free if done % (1 << 26) == 0 else 1 << 30
        if done > MAX_COPY_BYTES or room < 1 << 28:
            raise DamagedError("its temporary copy would not fit; unpack it first")
        out.write(data)
