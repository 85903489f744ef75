"""The fleet's tables in Delta Lake: one commit a table and night, a ledger around them.

    LAKE/fleet/<table>/     a Delta table, partitioned by date
    LAKE/fleet/ledger/      which runs the tables hold

A night writes "begun" for its runs into the ledger, replaces their rows table by table, and writes
"done". Killed anywhere, the next rollup finds them begun and replaces the same rows by equal ones;
who reads takes only rows of runs that are done under that date. So tables never differ by how
often, or by whom, a night was written: rows hold no time of writing, only the ledger does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.errors import StoreError, UsageError
from tracekit.fleet.tables import LEDGER, TABLES, table
from tracekit.objects import TRIES, Objects, is_uri
from tracekit.schema import Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs as pafs

Row = dict[str, Any]
Rows = Mapping[str, Sequence[Row]]
"""Rows by table."""

_OS_ERROR = re.compile(r"\(os error (\d{1,3})\)")
"""As the library of Delta Lake tells what a system call said."""
COMMIT_TRIES = 8
FIRST_WAIT_S = 0.1
LEDGER_FILES_COUNT = 16
"""So many files it grows to before it is one again, which is when old files of all tables go."""
LEDGER_ROWS_COUNT = 5_000
"""So many runs a commit names at most: a condition with 25,000 names ends the process, since the
library follows it on the stack. Of a large lake that was copied every run has another stamp."""
SWEEP_AFTER_HOURS = 168
"""How long who reads a version may take, and whoever writes one."""
FILE_BYTES = 16 * 1024
"""At most what a small file takes beside its rows, with its part of the log: schema, statistics."""
_CONFIGURATION = {"delta.checkpointInterval": "20"}
"""A table is opened by its last checkpoint and the commits since: a night must not read all nights
that ever were."""


def check_installed() -> None:
    """UsageError where Delta Lake is not installed."""
    try:
        import deltalake  # noqa: F401
    except ImportError:
        raise UsageError(
            "a fleet's tables need the package deltalake", hint="pip install 'tracekit[fleet]'"
        ) from None


class FleetStore:
    """The fleet's tables below a folder, or a URI."""

    def __init__(self, folder: Path | str) -> None:
        check_installed()
        self.folder = str(folder)
        self._options = Objects(self.folder).delta_options if is_uri(self.folder) else None
        self._done: dict[str, str] | None = None
        """Dates of runs that are done, as this reader first saw them."""

    def ledger(self) -> dict[str, Row]:
        """What the ledger says of each run."""
        return {row["run"]: row for row in self._read(LEDGER)}

    def write_ledger(self, rows: Sequence[Row]) -> None:
        """Replace what the ledger says of some runs."""
        self._done = None
        if not rows:
            return
        self._check_space({LEDGER: rows}, 1)
        for first in range(0, len(rows), LEDGER_ROWS_COUNT):
            part = rows[first : first + LEDGER_ROWS_COUNT]
            self._replace(LEDGER, part, {"run": {r["run"] for r in part}})
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        # Each night adds a file or two, and every night reads all of them.
        with contextlib.suppress(DeltaError, OSError):  # another night will
            ledger = DeltaTable(self._path(LEDGER), storage_options=self._options)
            if len(ledger.file_uris()) > LEDGER_FILES_COUNT:
                ledger.optimize.compact()
                self._sweep()

    def replace(self, rows: Rows, names: Iterable[str], dates: Iterable[str]) -> None:
        """Let the rows of some runs be these, and no others on these dates."""
        keys = {"run": set(names), "date": set(dates)}
        if keys["run"] and keys["date"]:
            found = {each: rows.get(each.name, ()) for each in TABLES}
            self._check_space(found, len(keys["date"]))
            for each, of_it in found.items():
                self._replace(each, of_it, keys)

    def _check_space(self, rows: Mapping[Table, Sequence[Row]], dates_count: int) -> None:
        """StoreError where a disk is too full for these rows: found half way, the library's threads
        print what they were doing, and half the tables are written in vain."""
        if self._options is not None:
            return
        wanted = len(rows) * dates_count * FILE_BYTES
        wanted += sum(_arrow(each, of).nbytes for each, of in rows.items())
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(Path(self.folder).parent).free
            if free < wanted:
                raise StoreError(
                    f"{self.folder}: cannot be written ({os.strerror(errno.ENOSPC)}: "
                    f"{wanted / 1e6:.1f} MB may be needed, {free / 1e6:.1f} MB are free)",
                    hint="make room and call again: what nights wrote before is whole",
                )

    def rows(self, name: str, since: str | None = None, until: str | None = None) -> list[Row]:
        """Rows of a table between two dates (both included), in the order of its grain; only
        those of runs that are done."""
        if self._done is None:
            self._done = {r: x["date"] for r, x in self.ledger().items() if x["state"] == "done"}
        done = self._done
        each = table(name)
        done_rows = [r for r in self._read(each, since, until) if done.get(r["run"]) == r["date"]]
        return sorted(done_rows, key=lambda r: [(r[g] is not None, r[g]) for g in each.grain])

    def _sweep(self) -> None:
        """Remove files that no version of the last week has: of rows that were replaced, and of
        nights that were killed."""
        from deltalake import DeltaTable

        for each in (LEDGER, *TABLES):
            path = self._path(each)
            if DeltaTable.is_deltatable(path, self._options):
                DeltaTable(path, storage_options=self._options).vacuum(
                    SWEEP_AFTER_HOURS, dry_run=False, enforce_retention_duration=False, full=True
                )

    def _files(self, each: Table) -> pafs.FileSystem | None:
        """How Arrow reads a table's files: by itself. The library's own way calls Python from
        Arrow's threads, and a process that ends while one still lets go of a file is aborted."""
        if self._options is not None:
            return None
        from pyarrow import fs

        return fs.SubTreeFileSystem(os.path.abspath(self._path(each)), fs.LocalFileSystem())  # noqa: PTH100  # resolves no link

    def _path(self, each: Table) -> str:
        return f"{self.folder}/{each.name}"

    def _read(self, each: Table, since: str | None = None, until: str | None = None) -> list[Row]:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError
        from pyarrow import ArrowException

        bounds = [(">=", since), ("<=", until)]
        filters = [("date", op, value) for op, value in bounds if value is not None]
        rows: list[Row] = []
        for tried in range(TRIES):
            try:
                stored = DeltaTable(self._path(each), storage_options=self._options)
                read = stored.to_pyarrow_table(
                    filters=filters or None, filesystem=self._files(each)
                )
                rows = read.to_pylist()
            except TableNotFoundError:
                return []
            except (DeltaError, OSError, ArrowException) as error:
                # An answer that is cut in its middle is not asked again by the library.
                if self._options is None or tried == TRIES - 1:
                    raise self._failed(each, "read", error) from None
                time.sleep(FIRST_WAIT_S * 2**tried)
            else:
                break
        names = [c.name for c in each.columns]
        return [{n: row.get(n) for n in names} for row in rows]  # older rows lack newer columns

    def _replace(self, each: Table, rows: Sequence[Row], keys: Mapping[str, Iterable[str]]) -> None:
        """One commit: rows of these keys go, these come. Again where another writer was faster."""
        from deltalake import DeltaTable, write_deltalake
        from deltalake.exceptions import CommitFailedError, DeltaError

        data = _arrow(each, rows)
        where = " AND ".join(
            f"{name} IN ({', '.join(map(_quoted, sorted(values)))})"
            for name, values in sorted(keys.items())
        )
        path, options = self._path(each), self._options
        is_there = False
        for tried in range(COMMIT_TRIES):
            try:
                is_there = DeltaTable.is_deltatable(path, options)
                if not is_there and not rows:
                    return
                if not is_there:
                    # Without rows: of two writers that both make the table with theirs, the second
                    # would add its own beside those of the first.
                    DeltaTable.create(
                        path,
                        data.schema,
                        mode="ignore",
                        partition_by=["date"] if each is not LEDGER else None,
                        configuration=_CONFIGURATION,
                        storage_options=options,
                    )
                write_deltalake(
                    path,
                    data,
                    mode="overwrite",
                    predicate=where,
                    schema_mode="merge",
                    storage_options=options,
                )
                return
            except (DeltaError, OSError) as error:
                was_made = not is_there and self._is_made(path)
                # Rows that replace rows may be written twice, if the answer was lost.
                may_try = self._options is not None and tried < TRIES - 1
                if not (was_made or may_try or isinstance(error, CommitFailedError)):
                    raise self._failed(each, "written", error) from None
                time.sleep(FIRST_WAIT_S * 2**tried)
        raise StoreError(
            f"{path}: {COMMIT_TRIES} other writers were faster", hint="try again when they are done"
        )

    def _is_made(self, path: str) -> bool:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            return DeltaTable.is_deltatable(path, self._options)
        except (DeltaError, OSError):
            return False

    def _failed(self, each: Table, done: str, error: Exception) -> StoreError:
        """What went wrong, without the library's words: they may quote what a store answered."""
        hint = (
            "put a copy of the folder fleet in its place; or remove it, and tracekit rollup makes "
            "it again from the runs that are there, without those that were pruned"
        )
        why = type(error).__name__
        if self._options is not None:
            hint = (
                "try again; else look at the address, the credentials in the environment and their "
                "rights"
            )
        elif found := _OS_ERROR.search(str(error)):
            why = os.strerror(int(found[1]))
            hint = "put that right and call again: what nights wrote before is whole"
        return StoreError(f"{self._path(each)}: cannot be {done} ({why})", hint=hint)


def _arrow(each: Table, rows: Sequence[Row]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist([dict(row) for row in rows], schema=each.arrow_schema())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
