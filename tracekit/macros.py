"""SQL macros that queries share: found, their headers parsed and proved, loaded.

Macros stand in ``queries/macros/<subject>.sql``. A file begins with one comment line that says what
its subject is; then each macro has a header and one statement::

    -- busy_time: One-line title.
    --
    -- Why, in free text (optional).
    --
    -- param: rows_name TABLE(key ANY, start_ns BIGINT, end_ns BIGINT) : Name of a table or CTE with
    --     these columns, as text; TABLE(step) is one with the columns of that logical table.
    -- param: slack_ns BIGINT : A value.
    -- reads: step, gpu_op
    -- columns: key ANY, busy_ns BIGINT, gpu_op.*
    -- returns: BIGINT : What it is (instead of columns, for a macro that gives one value).
    CREATE OR REPLACE MACRO busy_time(rows_name, slack_ns) AS TABLE
    SELECT ...;

ANY stands for one type that the caller chooses. DuckDB refuses to make a macro whose logical tables
do not exist, so macros are loaded after tables and views.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from tracekit.schema import TABLES, table

if TYPE_CHECKING:
    import duckdb

MACRO_FILES: tuple[str, ...] = (
    "keys",
    "steps",
    "intervals",
    "work",
    "stalls",
    "calls",
    "spending",
    "clocks",
    "collectives",
    "paths",
    "nccl",
    "counters",
)
"""Every subject, in an order in which no macro needs a later one."""


@dataclass(frozen=True, slots=True)
class MacroParam:
    """A parameter; ``type`` is a DuckDB type, or ``TABLE(...)`` for the name of a table or CTE."""

    name: str
    type: str
    doc: str


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro as its file declares it. ``sql`` is its statement, without the header."""

    name: str
    subject: str
    title: str
    why: str
    params: tuple[MacroParam, ...]
    reads: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    """Names and types of what it gives; a logical table's columns as one: ``("gpu_op.*", "")``."""
    returns: tuple[str, str] | None
    """Type and meaning, for a macro that gives one value and has no columns."""
    sql: str


@cache
def subjects() -> dict[str, tuple[str, tuple[Macro, ...]]]:
    """What each subject is, in a sentence, and its macros in order."""
    root = files("tracekit.queries").joinpath("macros")
    return {
        subject: parse(subject, root.joinpath(f"{subject}.sql").read_text(encoding="utf-8"))
        for subject in MACRO_FILES
    }


@cache
def macros() -> dict[str, Macro]:
    """Every macro by its name, in an order in which none needs a later one."""
    return {macro.name: macro for _, group in subjects().values() for macro in group}


_WORD = re.compile(r"\w+")


def used_by(text: str, known: Mapping[str, str] | None = None) -> set[str]:
    """The macros that a text names, and those that they name; ``known`` are statements by name."""
    known = {m.name: m.sql for m in macros().values()} if known is None else known
    used: set[str] = set()
    new = known.keys() & set(_WORD.findall(text))
    while new:
        used |= new
        words = {word for name in new for word in _WORD.findall(known[name])}
        new = (known.keys() & words) - used
    return used


# ---------------------------------------------------------------- header

_KEY = re.compile(r"-- (param|reads|columns|returns): (.*)")
_TITLE = re.compile(r"-- (\w+): (.+)")
_PARAM = re.compile(r"(\w+) (TABLE\((?:[^()]|\([^()]*\))*\)|[\w\[\]]+) : (.+)")
_COMMA = re.compile(r",(?![^()]*\))")
"""Between columns, not between the parts of a STRUCT."""
_RETURNS = re.compile(r"([\w\[\]]+) : (.+)")
_CREATE = re.compile(r"CREATE OR REPLACE MACRO (\w+)\(([^)]*)\)")


def parse(subject: str, text: str) -> tuple[str, tuple[Macro, ...]]:
    """What a file says of its subject, and its macros; ValueError names the faulty line."""
    title, *blocks = re.split(r"\n\n(?=-- \w+: )", text.rstrip("\n"))
    if not re.fullmatch(r"-- .+\.", title):
        raise ValueError(f"macros/{subject}: expected one line that says what the subject is")
    return title[3:], tuple(_macro(subject, block) for block in blocks)


def _macro(subject: str, block: str) -> Macro:
    header, create, body = block.partition("\nCREATE ")
    lines = header.splitlines()
    titled = _TITLE.fullmatch(lines[0])
    statement = f"{create.lstrip()}{body}\n"
    created = _CREATE.match(statement)
    if titled is None or created is None or created[1] != titled[1]:
        raise ValueError(f"macros/{subject}: no macro of the header's name: {lines[0]!r}")
    prose: list[str] = []
    entries: list[tuple[str, str]] = []
    for line in lines[1:]:
        keyed = _KEY.fullmatch(line)
        if keyed:
            entries.append((keyed[1], keyed[2].strip()))
        elif entries and line.startswith("--   "):
            key, value = entries[-1]
            entries[-1] = (key, f"{value} {line[2:].strip()}")
        elif entries or not line.startswith("--"):
            raise ValueError(f"macros/{subject}: neither a key nor a continuation: {line!r}")
        else:
            prose.append(line[2:].strip())
    paragraphs = [" ".join(p.split()) for p in "\n".join(prose).split("\n\n")]
    params = tuple(_param(subject, value) for key, value in entries if key == "param")
    signature = tuple(_WORD.findall(created[2]))
    if tuple(p.name for p in params) != signature:
        raise ValueError(f"macros/{subject}: {titled[1]} takes {', '.join(signature) or 'nothing'}")
    returns = next((_RETURNS.fullmatch(v) for key, v in entries if key == "returns"), None)
    columns = [v for key, v in entries if key == "columns"]
    if (returns is None) == (not columns):
        raise ValueError(f"macros/{subject}: {titled[1]} has columns, or returns a value")
    return Macro(
        name=titled[1],
        subject=subject,
        title=titled[2],
        why="\n\n".join(p for p in paragraphs if p),
        params=params,
        reads=tuple(w.strip() for k, v in entries if k == "reads" for w in v.split(",")),
        columns=tuple(_typed(v) for text in columns for v in _COMMA.split(text)),
        returns=(returns[1], returns[2]) if returns else None,
        sql=statement,
    )


def _param(subject: str, text: str) -> MacroParam:
    match = _PARAM.fullmatch(text)
    if match is None:
        raise ValueError(f"macros/{subject}: expected 'name TYPE : meaning', found {text!r}")
    return MacroParam(match[1], match[2], match[3])


def _typed(text: str) -> tuple[str, str]:
    name, _, type_ = text.strip().partition(" ")
    return name, type_


# ---------------------------------------------------------------- proof

ANY = "BIGINT"
"""The type that stands for ANY in a proof."""


def check(macro: Macro) -> list[str]:
    """Prove a header; one sentence for each thing that does not hold.

    Columns are proved by running on empty tables; reads by having no other tables, and by leaving
    out one at a time. A parameter that is not declared is refused when the header is parsed.
    """
    import duckdb

    problems = [] if macro.title.endswith(".") else ["the title is not a sentence"]
    unknown = [name for name in macro.reads if name not in {t.name for t in TABLES}]
    if unknown:
        return [*problems, *(f"reads {name}, which is no table" for name in unknown)]
    # Without replacement scans: a Python variable named like a table must not stand in for it.
    with duckdb.connect(config={"python_enable_replacements": False}) as con:
        for name in macro.reads:
            _create_empty(con, name, _columns_of(name))
        arguments: list[str] = []
        for param in macro.params:
            if param.type.startswith("TABLE("):
                _create_empty(con, f"given_{param.name}", _given(param.type[6:-1]))
                arguments.append(f"'given_{param.name}'")
            else:
                arguments.append(f"CAST(NULL AS {param.type})")
        call = f"{macro.name}({', '.join(arguments)})"
        given_columns = _described(con, macro, call)
        if isinstance(given_columns, str):
            return [*problems, f"does not run on empty tables: {given_columns}"]
        declared = list(_declared(macro))
        if given_columns != declared:
            problems.append(f"declares {declared}, and gives {given_columns}")
        for name in macro.reads:
            con.execute(f'DROP TABLE "{name}"')
            if not isinstance(_described(con, macro, call), str):
                problems.append(f"declares that it reads {name}, and runs without it")
            _create_empty(con, name, _columns_of(name))
    return problems


def _described(
    con: duckdb.DuckDBPyConnection, macro: Macro, call: str
) -> list[tuple[str, str]] | str:
    """Names and types of what a call gives on the connection's tables, or DuckDB's message."""
    import duckdb

    needed = {*used_by(macro.sql), macro.name}
    try:
        for name, other in macros().items():
            if name in needed:
                con.execute(macro.sql if name == macro.name else other.sql)
        if macro.name not in macros():
            con.execute(macro.sql)
        # Names of macros, tables and types come from the files of the package.
        con.execute(f"SELECT {call} AS value" if macro.returns else f"SELECT * FROM {call}")  # noqa: S608
    except duckdb.Error as error:
        return str(error).splitlines()[0]
    return [(str(d[0]), str(d[1])) for d in con.description or ()]


def _declared(macro: Macro) -> Iterator[tuple[str, str]]:
    if macro.returns:
        yield "value", macro.returns[0]
    for name, type_ in macro.columns:
        if name.endswith(".*"):
            yield from _columns_of(name[:-2])
        else:
            yield name, type_.replace("ANY", ANY)


def _given(text: str) -> list[tuple[str, str]]:
    """The columns that a parameter's TABLE(...) declares."""
    if text in {t.name for t in TABLES}:
        return _columns_of(text)
    return [(n, t.replace("ANY", ANY)) for n, t in map(_typed, _COMMA.split(text))]


def _columns_of(name: str) -> list[tuple[str, str]]:
    return [(c.name, c.type) for c in table(name).columns]


def _create_empty(
    con: duckdb.DuckDBPyConnection, name: str, columns: Sequence[tuple[str, str]]
) -> None:
    listed = ", ".join(f'"{column}" {type_}' for column, type_ in columns)
    con.execute(f'CREATE TABLE "{name}" ({listed})')
