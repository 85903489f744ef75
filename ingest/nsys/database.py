"""Reading a SQLite export that nobody vouches for: read-only, real tables only, within limits.

Two libraries read. adbc-driver-sqlite is several times as fast and reads large tables, in a process
of its own (adbc.py), for it has no limits. The standard library's driver takes a progress handler
and a length limit; it reads the small tables, and whatever the first one does not read to the end.
What it makes of a table is what counts: the first one passes on only rows that both give alike.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter, lt
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self
from urllib.parse import quote

from tracekit.errors import InputError
from tracekit.ingest import streams
from tracekit.ingest.base import SourceFile
from tracekit.ingest.nsys import adbc
from tracekit.ingest.nsys.marks import MAGIC

if TYPE_CHECKING:
    from tracekit.ingest.nsys.batch import Batch

BATCH_ROWS = 1 << 14
"""Rows that are fetched at a time."""
MAX_VALUE_BYTES = 16 << 20
"""Longest string or blob that is read."""
MAX_LONG_ROWS = 100
"""Rows of a table that are left out for too long a value; with more it counts as damaged."""
LARGE_ROWS = 50_000
"""Largest row id from which adbc-driver-sqlite reads a table: 100,000 rows pay for its start."""
PART_ROWS = 16
"""Rows that are fetched before their text is counted: at most 256 MB of it."""
MAX_BATCH_CHARS = 64 << 20
"""Characters of the rows that are fetched at a time, beyond which there are fewer of them."""
SLACK_CHARS = 1 << 20
"""Characters that a table may hold beyond the bytes of its file: pages that are not yet in it."""
MAX_DISTINCT = 1 << 16
"""Distinct values that are asked for: processes and devices of one machine."""
_ROW_BYTES = 4
"""Least bytes of a row: a cell and the pointer to it."""
_ROW_STEPS = 40
"""Most instructions of SQLite's machine that a small answer takes for a row."""
_SHARED = "its rows hold more text than the file has bytes: pages are shared"
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
        self.read_again: dict[str, str] = {}
        """By table, why the faster library did not read it to its end, and the other one did."""

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

    def stream(self, table: str, wanted: Sequence[str], where: str = "") -> Iterator[Batch]:
        """The same rows, read in the fastest way that there is: for tables that may be large."""
        yield from self.batches(table, wanted, where)

    def _broke_off(self, table: str, why: str) -> None:
        if (text := f"{table}: {why}") not in self.damaged:
            self.damaged.append(text)

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
        self._max_chars = size + SLACK_CHARS
        # No table has more rows; one whose pages form a circle or share others seems to.
        self._max_looks = size // _ROW_BYTES * _ROW_STEPS // _CHECK_EVERY + 10
        self._looks_left: int | None = None
        self.missing_bytes = _missing_bytes(path, size)
        self._con, self._uri = _connect(path)
        self._types: dict[str, dict[str, str]] = {}
        self._adbc: adbc.Adbc | None = None
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
        if self._adbc is not None:
            self._adbc.close()

    def _is_late(self) -> int:
        if self._looks_left is not None:
            self._looks_left -= 1
        return int(self._looks_left == 0 or time.monotonic() > self._deadline)

    def _read_tables(self) -> dict[str, tuple[str, ...]]:
        """Columns by table. Only tables that hold rows of their own: no view, no virtual table,
        no generated column, since those run what the file says when they are read."""
        named = self._con.execute(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND rootpage > 0"
        ).fetchall()
        others = self._con.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'view'"
            " OR type = 'table' AND (coalesce(rootpage, 0) <= 0 OR sql LIKE 'CREATE VIRTUAL %')"
        ).fetchall()
        self.unreal = [name for (name,) in others if isinstance(name, str)]
        tables: dict[str, tuple[str, ...]] = {}
        for name, sql in named:
            if not isinstance(name, str) or '"' in name or "WITHOUT ROWID" in str(sql).upper():
                continue
            if name in self.unreal:
                continue
            columns = self._con.execute(f'PRAGMA table_xinfo("{name}")').fetchall()
            types = {str(c[1]): str(c[2]) for c in columns if c[6] == 0 and '"' not in str(c[1])}
            if any(column.lower() == "rowid" for column in types):
                self.unreal.append(name)  # nsys makes none, and rows could not be told apart
                continue
            self._types[name] = types
            tables[name] = tuple(types)
        return tables

    def stream(self, table: str, wanted: Sequence[str], where: str = "") -> Iterator[Batch]:
        """The same rows as ``batches``: of a large table by adbc-driver-sqlite, and from the row
        on at which that fails by sqlite3."""
        last = _BEFORE_ALL
        query = None
        if self._is_for_adbc(table):
            types = self._types[table]
            query = adbc.query(table, types, wanted, where, MAX_VALUE_BYTES)
        if query is not None:
            if self._adbc is None:
                self._adbc = adbc.Adbc(self._uri, self._deadline)
            try:
                chars = 0
                for batch in self._adbc.batches(query):
                    chars += batch.text_bytes
                    if chars > self._max_chars:
                        self._broke_off(table, _SHARED)
                        return
                    yield batch
                    last = int(batch.rowids[-1])
                return
            except adbc.TroubleError as trouble:
                self.read_again[table] = str(trouble)
        yield from self._batches(table, wanted, where, (), last)

    def batches(
        self, table: str, wanted: Sequence[str], where: str = "", params: Sequence[object] = ()
    ) -> Iterator[Batch]:
        """Rows of a table in their stored order: those of the wanted columns that it has."""
        return self._batches(table, wanted, where, params, _BEFORE_ALL)

    def _batches(
        self, table: str, wanted: Sequence[str], where: str, params: Sequence[object], after: int
    ) -> Iterator[Batch]:
        """Rows with larger ids than ``after``. Those before are read as well: in damaged pages a
        search for a row may lead elsewhere than reading on."""
        from tracekit.ingest.nsys.batch import Batch

        if table not in self.tables:
            return
        present = [c for c in wanted if c in self.tables[table]]
        for rows in self._in_parts(table, present, where, params):
            new = rows[bisect_right(rows, after, key=itemgetter(0)) :]
            if new:
                rowids, *values = zip(*new, strict=True)
                yield Batch(rowids, dict(zip(present, values, strict=True)))

    def _in_parts(
        self, table: str, present: Sequence[str], where: str, params: Sequence[object]
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Row ids and columns, in the order of the ids, up to the first damage."""
        listed = ", ".join(["rowid", *(f'"{c}"' for c in present)])
        condition = f" AND ({where})" if where else ""
        last = _BEFORE_ALL
        chars: list[int] = []
        while True:
            known = ", ".join(map(str, sorted(self.too_long.get(table, ()))))
            rest = f"rowid > ? AND rowid NOT IN ({known}){condition}"
            # No index of the file's: its order may differ, and its pages be damaged.
            sql = f'SELECT {listed} FROM "{table}" NOT INDEXED WHERE {rest}'  # noqa: S608 - checked
            failure: Exception | None = None
            is_in_order = True
            try:
                cursor = self._con.execute(sql, [last, *params])
                while is_in_order and (rows := self._fetched(cursor, chars)):
                    if sum(chars) > self._max_chars:
                        self._broke_off(table, _SHARED)
                        return
                    rising = _rising(rows, last)
                    is_in_order = len(rising) == len(rows)
                    if rising:
                        last = rising[-1][0]
                        yield rising
            except _FAILURES as error:
                failure = error
            if failure is None:
                if not is_in_order:
                    self._broke_off(table, "its pages are damaged")
                return
            if rows := _rising(self._until_failure(sql, [last, *params]), last):
                last = rows[-1][0]
                yield rows
            if not self._leaves_out(failure, table, rest, listed, [last, *params]):
                self._broke_off(table, self._why(failure))
                return

    def _fetched(self, cursor: sqlite3.Cursor, chars: list[int]) -> list[tuple[Any, ...]]:
        """The next rows; what their text is long is added to ``chars``."""
        rows: list[tuple[Any, ...]] = []
        count = 0
        while len(rows) < BATCH_ROWS and count < MAX_BATCH_CHARS:
            part = cursor.fetchmany(PART_ROWS)
            if not part:
                break
            rows += part
            count += sum(len(v) for row in part for v in row if type(v) is str or type(v) is bytes)
        chars.append(count)
        return rows

    def _is_for_adbc(self, table: str) -> bool:
        """Whether a table is worth the other process, and nothing is known to be wrong with it."""
        if table not in self.tables or self.missing_bytes or table in self.read_again:
            return False
        try:
            largest = self._con.execute(f'SELECT max(rowid) FROM "{table}"').fetchone()  # noqa: S608
            encoding = self._con.execute("PRAGMA encoding").fetchone()
        except _FAILURES:
            return False
        is_large = isinstance(largest[0], int) and largest[0] >= LARGE_ROWS
        return is_large and encoding == ("UTF-8",) and adbc.is_there()

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
        one_row = f'SELECT {listed} FROM "{table}" WHERE rowid = ?'  # noqa: S608 - checked names
        try:
            sql = f'SELECT rowid FROM "{table}" WHERE {rest} ORDER BY rowid LIMIT 2'  # noqa: S608
            for (rowid,) in self._con.execute(sql, params).fetchall():
                try:
                    self._con.execute(one_row, [rowid]).fetchall()
                except sqlite3.Error as why_not:
                    if not _is_too_long(why_not):
                        return False
                    self.too_long.setdefault(table, set()).add(int(rowid))
                    return True
        except _FAILURES:
            pass
        return False

    def _integers(self, table: str, select: str) -> list[tuple[Any, ...]]:
        sql = f'SELECT {select} FROM "{table}" LIMIT {MAX_DISTINCT}'  # noqa: S608 - checked names
        self._looks_left = self._max_looks
        try:
            return self._con.execute(sql).fetchall()
        except _FAILURES as error:
            self._broke_off(table, self._why(error))
            return []
        finally:
            self._looks_left = None

    def _why(self, error: Exception) -> str:
        return why(error, missing_bytes=self.missing_bytes)


def _rising(rows: list[tuple[Any, ...]], last: int) -> list[tuple[Any, ...]]:
    """The rows up to the first whose id is not larger than the one before: damaged pages may lead
    to the same rows again."""
    ids = [row[0] for row in rows]
    if ids and ids[0] > last and all(map(lt, ids, ids[1:])):
        return rows
    before = [last, *ids]
    count = next((i for i, row_id in enumerate(ids) if row_id <= before[i]), len(ids))
    return rows[:count]


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


def _connect(path: Path) -> tuple[sqlite3.Connection, str]:
    """Read-only; and the address for others to open it so.

    Nothing is created beside the file, so a write-ahead log is never opened.
    """
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
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    without_locks = f"{uri}&immutable=1"
    if is_wal:
        return _open(without_locks), without_locks
    try:
        con = _open(uri)
        con.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorname", "") or ""
        if not code.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_PROTOCOL")):
            raise DamagedError(why(error)) from error
        return _open(without_locks), without_locks  # a file system has no locks
    except _FAILURES as error:
        missing = _missing_bytes(path, path.stat().st_size)
        raise DamagedError(why(error, missing_bytes=missing)) from error
    return con, uri


def _open(uri: str) -> sqlite3.Connection:
    con = sqlite3.connect(uri, uri=True, timeout=LOCK_WAIT_S)
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
                problem = streams.stream_problem(raw)
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
