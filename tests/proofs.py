"""Proofs of what the headers of queries and macros declare, and empty tables to run them on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import duckdb

from tracekit import macros
from tracekit.catalog import load_macros
from tracekit.query_file import ASKED, Query
from tracekit.schema import TABLES, table

ANY = "BIGINT"
"""The type that stands for ANY in a proof."""

Columns = Sequence[tuple[str, str]]


def create_empty_tables(con: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None) -> None:
    """Create logical tables of the registry (all, or those named), context columns included."""
    for name in [t.name for t in TABLES] if names is None else names:
        _create_empty(con, name, _columns_of(name))


def check_query(query: Query) -> list[str]:
    """Prove a query's header; one sentence for each thing that does not hold.

    Columns are proved by running on empty tables; reads by leaving out one table at a time;
    parameters because DuckDB takes neither one too many nor one too few.
    """
    problems = [
        f"grain {g} is no output column"
        for g in query.grain
        if g not in {c.name for c in query.columns}
    ]
    if not query.title.endswith("."):
        problems.append("the title is not a sentence")
    if not query.why:
        problems.append("there is no why paragraph")
    problems += [
        f"needs {name}, which it does not read"
        for name in query.needs
        if name.partition(":")[0] not in query.reads
    ]
    if query.asked and not ASKED.fullmatch(query.asked):
        problems.append(f"is asked {query.asked!r}, which is no time at which a diagnosis asks")
    if query.shows and (query.shows != "device" or not query.is_of_device):
        problems.append(f"shows {query.shows!r}, and not what the device of a rank did")
    if query.shows and "gpu_op" in query.reads:
        problems.append("shows a device, as all do that read gpu_op")
    if unknown := _unknown(query.reads):
        return [*problems, *unknown]
    with _connected() as con:
        create_empty_tables(con, query.reads)
        columns = _loaded(con, query) or _described(con, query)
        if isinstance(columns, str):
            return [*problems, f"does not run on empty tables: {columns}"]
        declared = [(c.name, c.type) for c in query.columns]
        if columns != declared:
            problems += [f"declares column {n} {t}" for n, t in declared if (n, t) not in columns]
            problems += [f"returns column {n} {t}" for n, t in columns if (n, t) not in declared]
            problems += [] if set(columns) ^ set(declared) else ["columns are in another order"]
        for name in query.reads:
            con.execute(f'DROP TABLE "{name}"')
            if not isinstance(_described(con, query), str):
                problems.append(f"declares that it reads {name}, and runs without it")
            create_empty_tables(con, [name])
    return problems


def check_macro(macro: macros.Macro) -> list[str]:
    """Prove a macro's header; one sentence for each thing that does not hold.

    Columns are proved by running on empty tables; reads by having no other tables, and by leaving
    out one at a time. A parameter that is not declared is refused when the header is parsed.
    """
    problems = [] if macro.title.endswith(".") else ["the title is not a sentence"]
    if unknown := _unknown(macro.reads):
        return [*problems, *unknown]
    with _connected() as con:
        create_empty_tables(con, macro.reads)
        arguments: list[str] = []
        for param in macro.params:
            if param.type.startswith("TABLE("):
                _create_empty(con, f"given_{param.name}", _given(param.type[6:-1]))
                arguments.append(f"'given_{param.name}'")
            else:
                arguments.append(f"CAST(NULL AS {param.type})")
        call = f"{macro.name}({', '.join(arguments)})"
        found = _called(con, macro, call)
        if isinstance(found, str):
            return [*problems, f"does not run on empty tables: {found}"]
        declared = list(_declared(macro))
        if found != declared:
            problems.append(f"declares {declared}, and gives {found}")
        for name in macro.reads:
            con.execute(f'DROP TABLE "{name}"')
            if not isinstance(_called(con, macro, call), str):
                problems.append(f"declares that it reads {name}, and runs without it")
            create_empty_tables(con, [name])
    return problems


@cache
def _database() -> duckdb.DuckDBPyConnection:
    # Without replacement scans: a Python variable named like a table must not stand in for it.
    con = duckdb.connect(config={"python_enable_replacements": False})
    con.execute("PRAGMA disable_optimizer")  # what a name is bound to is all that is asked
    return con


@contextmanager
def _connected() -> Iterator[duckdb.DuckDBPyConnection]:
    """A schema with nothing in it: to start a database takes longer than most of the proofs."""
    con = _database()
    con.execute("CREATE SCHEMA proof; SET schema = 'proof'")
    try:
        yield con
    finally:
        con.execute("SET schema = 'main'; DROP SCHEMA proof CASCADE")


def _unknown(reads: Iterable[str]) -> list[str]:
    return [f"reads {n}, which is no table" for n in reads if n not in {t.name for t in TABLES}]


def _loaded(con: duckdb.DuckDBPyConnection, query: Query) -> str | None:
    """Load the query's macros; DuckDB's message where one reads what the query does not declare."""
    try:
        load_macros(con, query.sql)
    except duckdb.Error as error:
        return str(error).splitlines()[0]
    return None


def _described(con: duckdb.DuckDBPyConnection, query: Query) -> Columns | str:
    """Names and types of the columns on the connection's tables, or DuckDB's message."""
    try:
        con.execute(query.sql, query.bind({}))
    except duckdb.Error as error:
        return str(error).splitlines()[0]
    return [(str(d[0]), str(d[1])) for d in con.description or ()]


def _called(con: duckdb.DuckDBPyConnection, macro: macros.Macro, call: str) -> Columns | str:
    """Names and types of what a call gives on the connection's tables, or DuckDB's message."""
    needed = {*macros.used_by(macro.sql), macro.name}
    try:
        for name, other in macros.macros().items():
            if name in needed:
                con.execute(macro.sql if name == macro.name else other.sql)
        if macro.name not in macros.macros():
            con.execute(macro.sql)
        con.execute(f"SELECT {call} AS value" if macro.returns else f"SELECT * FROM {call}")
    except duckdb.Error as error:
        return str(error).splitlines()[0]
    return [(str(d[0]), str(d[1])) for d in con.description or ()]


def _declared(macro: macros.Macro) -> Iterator[tuple[str, str]]:
    if macro.returns:
        yield "value", macro.returns[0]
    for name, type_ in macro.columns:
        if name.endswith(".*"):
            yield from _columns_of(name[:-2])
        else:
            yield name, type_.replace("ANY", ANY)


def _given(text: str) -> Columns:
    """The columns that a parameter's TABLE(...) declares."""
    if text in {t.name for t in TABLES}:
        return _columns_of(text)
    parts = (p.strip().partition(" ") for p in re.split(r",(?![^()]*\))", text))
    return [(name, type_.replace("ANY", ANY)) for name, _, type_ in parts]


def _columns_of(name: str) -> Columns:
    return [(c.name, c.type) for c in table(name).columns]


def _create_empty(con: duckdb.DuckDBPyConnection, name: str, columns: Columns) -> None:
    listed = ", ".join(f'"{column}" {type_}' for column, type_ in columns)
    con.execute(f'CREATE OR REPLACE TABLE "{name}" ({listed})')
