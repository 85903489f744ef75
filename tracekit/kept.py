"""Answers of named queries, kept beside the tables of the run that they were asked of.

    RUN/answers/<key>.json    a line with the checksum of the next, and that line: rows by column

The key is of the tables' files, of the selected part and of all that decides about an answer; so a
file is never out of date, only no longer asked for. What is not as it was written, or not of the
types that a query declares, is asked again. Rules, thresholds and words come after rows: nothing
of them is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import chain
from operator import itemgetter
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from tracekit.runs import sources_digest
from tracekit.store.manifest import work_path

if TYPE_CHECKING:
    from tracekit.query_file import Query
    from tracekit.store import Run

Rows = list[dict[str, Any]]
Figure = float | bool | Sequence[str] | None

FOLDER = "answers"
FILE_BYTES = 8 << 20
"""No more is kept of one selection: the shortest answers. It is read in a tenth of a second."""
FILES_COUNT = 8
"""Selections and versions of which answers are kept; those made longest ago go first."""

ASKED_SOURCES = (
    "answers.py",
    "catalog.py",
    "correction.py",
    "derive",
    "kept.py",
    "macros.py",
    "queries",
    "query_file.py",
    "replays.py",
    "schema",
    "sharing.py",
    "store",
    "whatif",
)
"""What decides about an answer beside the tables that are asked: SQL, the modules that ask, and the
replays whose figures are kept. tests/test_answers.py holds it against the imports."""

_NAME = re.compile(r"[0-9a-f]{24}\.json")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""As JSON may write half a character; what is kept has none, and none can be printed."""
_KINDS = {"INTEGER": int, "BIGINT": int, "DOUBLE": float, "BOOLEAN": bool, "VARCHAR": str}
_INT64 = 1 << 63


class Kept:
    """What is kept of one run and selection, and what was asked since."""

    def __init__(self, run: Run) -> None:
        self._run = run.path
        self._path = path_of(run)
        said = _read(self._path)
        self._columns: dict[str, list[list[Any]]] = _mapping(said, "rows")
        self._figures: dict[str, Figure] = _mapping(said, "figures")
        self._rows: dict[str, Rows] = {}
        self._is_new = False

    def rows(self, query: Query, params: Mapping[str, object]) -> Rows | None:
        """The rows of a query, given these parameters; None where they are not kept."""
        label = _label(query, params)
        columns = self._columns.get(label)
        if label not in self._rows and _are_of(query, columns):
            names = [c.name for c in query.columns]
            self._rows[label] = [
                dict(zip(names, row, strict=True)) for row in zip(*columns or (), strict=True)
            ]
        return self._rows.get(label)

    def add(self, query: Query, params: Mapping[str, object], rows: Rows) -> None:
        """Keep the rows of a query from now on."""
        columns = [[*map(itemgetter(c.name), rows)] for c in query.columns]
        if _are_of(query, columns):
            label = _label(query, params)
            self._columns[label] = columns
            self._rows[label] = rows
            self._is_new = True

    def figure(self, name: str, type_: str, ask: Callable[[], Figure]) -> Figure:
        """A value of a DuckDB type that is not of a query; asked where it is not kept."""
        if name in self._figures and _fits(type_, [self._figures[name]]):
            return self._figures[name]
        value = ask()
        if _fits(type_, [value]):
            self._figures[name] = value
            self._is_new = True
        return value

    def save(self) -> None:
        """Write what is new, where the run may be written; without a word where it may not."""
        if not self._is_new:
            return
        with contextlib.suppress(OSError):
            if self._run.stat().st_mode & stat.S_IWUSR:
                self._write()
        self._is_new = False

    def _write(self) -> None:
        folder = self._path.parent
        folder.mkdir(exist_ok=True)
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return  # a link leads out of the run
        draft = work_path(self._run)
        draft.parent.mkdir(exist_ok=True)
        body = _body(self._columns, self._figures)
        try:
            draft.write_bytes(b'{"crc32": %d}\n' % zlib.crc32(body) + body)
            draft.replace(self._path)
        finally:
            draft.unlink(missing_ok=True)
        files = [(p.lstat(), p) for p in folder.iterdir() if _NAME.fullmatch(p.name)]
        files = sorted(files, key=lambda f: f[0].st_mtime_ns, reverse=True)
        for status, path in files[FILES_COUNT:]:
            if stat.S_ISREG(status.st_mode):
                path.unlink(missing_ok=True)


def path_of(run: Run) -> Path:
    """The file of what is kept: by all that an answer depends on, the tables' files, what is
    selected, and who asks."""
    digest = hashlib.sha256(f"{_asker()}\0{run.selection!r}".encode())
    for file in run.manifest.files:
        digest.update(f"\0{file.table} {file.path} {file.file_bytes} {file.crc32}".encode())
    return run.path / FOLDER / f"{digest.hexdigest()[:24]}.json"


@cache
def _asker() -> str:
    library = find_spec("_duckdb")  # to import it, or to ask for its version, takes longer
    library_file = os.stat(library.origin) if library and library.origin else None  # noqa: PTH116 - a str
    build = (library_file.st_size, library_file.st_mtime_ns) if library_file else ()
    return f"{sources_digest(ASKED_SOURCES)} {build}"


def _read(path: Path) -> dict[str, Any]:
    """What a file holds; nothing where it is not there, too long, or not as it was written."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES + 64:
            return {}
        head, _, body = path.read_bytes().partition(b"\n")
        if json.loads(head) != {"crc32": zlib.crc32(body)}:
            return {}
        text = body.decode()
        said = {} if _SURROGATE.search(text) else json.loads(text)
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _mapping(said: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = said.get(name)
    return part if isinstance(part, dict) else {}


def _body(columns: Mapping[str, list[list[Any]]], figures: Mapping[str, Figure]) -> bytes:
    """As JSON, the shortest answers first, as many as fit."""
    parts = sorted(
        (f"{json.dumps(n)}: {json.dumps(c, ensure_ascii=False)}" for n, c in columns.items()),
        key=len,
    )
    head = f'{{"figures": {json.dumps(figures, ensure_ascii=False)}, "rows": {{'.encode()
    left = FILE_BYTES - len(head) - 2
    kept: list[bytes] = []
    for part in map(str.encode, parts):
        left -= len(part) + 2
        if left < 0:
            break
        kept.append(part)
    return head + b", ".join(kept) + b"}}"


def _label(query: Query, params: Mapping[str, object]) -> str:
    return " ".join((query.name, *(f"{name}={params[name]!r}" for name in sorted(params))))


def _are_of(query: Query, columns: Any) -> bool:
    """Whether these are columns of a query, equally long and of their types."""
    return (
        isinstance(columns, list)
        and len(columns) == len(query.columns)
        and all(isinstance(values, list) for values in columns)
        and len({len(values) for values in columns}) <= 1
        and all(_fits(c.type, v) for c, v in zip(query.columns, columns, strict=True))
    )


def _fits(type_: str, values: Sequence[Any]) -> bool:
    """Whether all values are null or of a DuckDB type."""
    if type_.endswith("[]"):
        lists = [v for v in values if v is not None]
        if not set(map(type, lists)) <= {list}:
            return False
        return _fits(type_.removesuffix("[]"), [*chain.from_iterable(lists)])
    kind = _KINDS.get(type_)
    if kind is None or not set(map(type, values)) <= {kind, NoneType}:
        return False
    if kind is not int:
        return True
    numbers = [v for v in values if v is not None]
    return not numbers or (min(numbers) >= -_INT64 and max(numbers) < _INT64)
