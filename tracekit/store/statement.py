"""SQL that a user gave: that it only reads is judged by DuckDB's own parse of it, before it runs.

The sandbox of ``reader.connect`` alone does not do: a file that may be read may also be written, so
a COPY could replace a file of the run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from tracekit.errors import QueryError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

READING_NODES = frozenset(
    ("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE", "STATEMENT_NODE")
)
"""Nodes of a parsed query that only read. DuckDB calls ``WITH a AS (COPY ...) SELECT`` a SELECT and
has nodes for INSERT, UPDATE, DELETE and COPY in it; what comes with a later version is refused."""

RUNS_TEXT = frozenset(("query", "json_execute_serialized_sql"))
"""Functions that run what a string holds, which the parse of the statement does not show."""

_NODE = re.compile(r'"type":"(\w+_NODE)"')
_FUNCTION = re.compile(r'"function_name":"((?:[^"\\]|\\.)*)"')
# In the text of a JSON document, a quote inside a string stands behind a backslash: nothing that a
# statement holds can look like these. A document as deep as an expression may be is not read whole.

MORE_MEMORY = "--memory 4GB gives it more; or ask for fewer rows"

SHOWN_LINES = 4
"""Lines of DuckDB's message: the error, and where."""


def run_select(con: duckdb.DuckDBPyConnection, text: str) -> duckdb.DuckDBPyRelation:
    """Run one statement that only reads. QueryError says what else it was."""
    import duckdb

    try:
        relation: duckdb.DuckDBPyRelation | None = con.sql(_judged(con, text))
    except duckdb.Error as error:
        _refuse(error)
    if relation is None:
        raise QueryError("the statement returns no rows", hint="use a SELECT")
    return relation


def rows_of(con: duckdb.DuckDBPyConnection, text: str) -> pa.Table:
    """All rows of one statement that only reads. QueryError also for what fails on the way.

    Columns of one name are told apart (``a``, ``a_1``), as DuckDB does in a subquery.
    """
    import duckdb

    relation = run_select(con, text)
    try:
        table = relation.to_arrow_table()
    except duckdb.Error as error:
        _refuse(error)
    except MemoryError:
        raise QueryError("Out of memory", hint=MORE_MEMORY) from None
    return table.rename_columns(_told_apart(table.column_names))


def _told_apart(names: Sequence[str]) -> list[str]:
    taken = set(names)
    told: list[str] = []
    for name in names:
        unique, number = name, 0
        while unique in told or (number and unique in taken):
            number += 1
            unique = f"{name}_{number}"
        told.append(unique)
    return told


def _judged(con: duckdb.DuckDBPyConnection, text: str) -> str:
    """The statement to run: one SELECT, or EXPLAIN of one. QueryError says what else it was."""
    import duckdb

    kind, statement = _parsed(text)
    if kind != duckdb.StatementType.EXPLAIN:
        return _reading(con, kind, statement)
    # No parse shows what is explained, and ANALYZE runs it. So EXPLAIN is taken off and put before
    # what was judged: whatever the words were, nothing else runs.
    words, inner = _without_explain(statement)
    kind, inner = _parsed(inner)
    return f"{words} {_reading(con, kind, inner)}"


def _parsed(text: str) -> tuple[duckdb.StatementType, str]:
    import duckdb

    try:
        text.encode()
    except UnicodeEncodeError:
        raise QueryError("the statement is not valid Unicode", hint="write it as UTF-8") from None
    try:
        statements = duckdb.extract_statements(text)
    except duckdb.Error as error:
        _refuse(error)
    if len(statements) != 1:
        raise QueryError(
            f"expected one statement, found {len(statements)}", hint="run them one at a time"
        )
    return statements[0].type, statements[0].query


def _reading(con: duckdb.DuckDBPyConnection, kind: duckdb.StatementType, statement: str) -> str:
    import duckdb

    if kind != duckdb.StatementType.SELECT:
        raise QueryError(
            f"only SELECT and EXPLAIN may run, found {kind.name}",
            hint="a run is read-only; use --format csv or parquet to keep a result",
        )
    # All rows are fetched: an unfinished answer would be in the way of the statement itself.
    ((tree,),) = con.execute("SELECT json_serialize_sql(?::VARCHAR)", [statement]).fetchall()
    if not tree.startswith('{"error":false'):
        raise QueryError(
            "the statement cannot be judged to be one that only reads",
            hint="write it as a plain SELECT",
        )
    others = sorted(set(_NODE.findall(tree)) - READING_NODES)
    if others:
        node = others[0].removesuffix("_NODE").removesuffix("_QUERY")
        raise QueryError(
            f"only SELECT and EXPLAIN may run, found {node} in it",
            hint="a run is read-only; use --format csv or parquet to keep a result",
        )
    hidden = sorted({name.lower() for name in _FUNCTION.findall(tree)} & RUNS_TEXT)
    if hidden:
        raise QueryError(
            f"{hidden[0]}() runs what a string holds, which cannot be judged",
            hint="write that statement itself",
        )
    return statement


def _without_explain(statement: str) -> tuple[str, str]:
    """``EXPLAIN`` or ``EXPLAIN ANALYZE``, and what follows, by DuckDB's own tokens."""
    import duckdb

    raw = statement.encode()
    tokens = [at for at, kind in duckdb.tokenize(statement) if kind != duckdb.token_type.comment]
    ends = [*tokens[1:], len(raw)]
    words = [raw[a:b].split(b"/*")[0].split(b"--")[0].strip().upper() for a, b in
             zip(tokens[:2], ends[:2], strict=True)]  # fmt: skip
    if not words or words[0] != b"EXPLAIN":
        raise QueryError("the statement cannot be read", hint="EXPLAIN SELECT ...")
    if words[1:] == [b"ANALYZE"]:
        return "EXPLAIN ANALYZE", raw[ends[1] :].decode()
    return "EXPLAIN", raw[ends[0] :].decode()


def _refuse(error: Exception) -> NoReturn:
    import duckdb

    lines = str(error).strip().splitlines()[:SHOWN_LINES]
    if isinstance(error, duckdb.OutOfMemoryException):
        # What DuckDB advises are settings, which are locked.
        raise QueryError("".join(lines[:1]), hint=MORE_MEMORY) from None
    raise QueryError("\n".join(lines) or type(error).__name__) from None
