"""Every column of the registry is written by something: what nobody writes is a promise unkept.

Read off the code, because no set of files has every column of every format: a column has to be
named, in a value that is not a constant NULL, by a module that belongs to whoever writes its table.
What writes each value right is shown by the tests of its format.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from tracekit.schema import TABLES, Table

ROOT = Path(__file__).resolve().parents[1]
SHARED = [ROOT / "tracekit" / "runs" / "execute.py", ROOT / "tracekit" / "store" / "writer.py"]
"""What writes of a source whatever its format is."""
FAMILIES = [
    [*sorted(folder.rglob("*.py")), *sorted((ROOT / "ingest").glob("*.py")), *SHARED]
    for folder in sorted((ROOT / "ingest").iterdir())
    if (folder / "__init__.py").exists()
]
"""The modules of each family of formats, with those that all share."""
DERIVING = [
    *sorted((ROOT / "tracekit" / "derive").rglob("*.py")),
    ROOT / "tracekit" / "correction.py",
    ROOT / "tracekit" / "runs" / "build.py",
    ROOT / "tracekit" / "clock.py",
]
NOTHING = re.compile(r"(?:CAST\(NULL AS \w+\)|\bNULL)\s+AS\s+(\w+)")
"""In SQL, a column of no value."""
EVERYWHERE = {"source_id", "place"}
"""The writer gives these to each row of a source."""


def names(source: str) -> tuple[set[str], list[str]]:
    """Words of a module's texts and keywords, and patterns of names that it puts together."""
    tree = ast.parse(source)
    nothing: set[int] = set()
    words: set[str] = set()
    patterns: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            nothing |= {
                id(key)
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(value, ast.Constant) and value.value is None
            }
        elif isinstance(node, ast.Expr):  # a docstring writes nothing
            nothing.add(id(node.value))
        elif isinstance(node, ast.keyword) and node.arg:
            is_null = isinstance(node.value, ast.Constant) and node.value.value is None
            words |= set() if is_null else {node.arg}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            words.add(node.target.id)
        elif isinstance(node, ast.JoinedStr):
            parts = [
                re.escape(str(v.value)) if isinstance(v, ast.Constant) else r"[a-z]+"
                for v in node.values
            ]
            if any(isinstance(v, ast.Constant) and "_" in str(v.value) for v in node.values):
                patterns.append("".join(parts))
        if isinstance(node, ast.Constant) and id(node) not in nothing:
            words |= set(re.findall(r"\w+", NOTHING.sub("", str(node.value))))
    return words, patterns


@cache
def written(paths: tuple[Path, ...]) -> tuple[set[str], list[str]]:
    found = [names(path.read_text()) for path in paths]
    return set().union(*(words for words, _ in found)), [p for _, ps in found for p in ps]


def unwritten(table: Table, groups: list[list[Path]]) -> list[str]:
    """Columns that no group of modules names, of those that name the table."""
    known: set[str] = set(EVERYWHERE) if table.kind == "source" else set()
    for group in groups:
        words, patterns = written(tuple(group))
        if table.name in words:
            columns = {c.name for c in table.stored_columns}
            known |= columns & words
            if table.kind == "derived":
                known |= {c for c in columns if any(re.fullmatch(p, c) for p in patterns)}
    return [c.name for c in table.stored_columns if c.name not in known]


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
def test_every_column_is_written_by_something(table: Table) -> None:
    assert unwritten(table, FAMILIES if table.kind == "source" else [DERIVING]) == []


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
def test_a_column_that_nobody_writes_is_found(table: Table) -> None:
    orphan = replace(table.columns[-1], name="orphan_ns")
    table = replace(table, columns=(*table.columns, orphan))
    assert unwritten(table, FAMILIES if table.kind == "source" else [DERIVING]) == ["orphan_ns"]


def test_a_column_that_is_only_ever_null_counts_as_unwritten() -> None:
    words, patterns = names(
        '"""documented"""\n'
        'SQL = "SELECT a AS kept, NULL AS empty, CAST(NULL AS BIGINT) AS cast_empty"\n'
        'ROW = {"filled": 1, "none": None}\n'
        "write(given=1, missing=None)\n"
        'NAME = f"{dimension}_rank"\n'
    )
    assert {"kept", "filled", "given"} <= words
    assert not {"empty", "cast_empty", "none", "missing", "documented"} & words
    assert [bool(re.fullmatch(p, "cp_rank")) for p in patterns] == [True]
