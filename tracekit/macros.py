"""SQL macros that queries share: found, and their headers parsed.

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
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib.resources import files

from msgspec import Struct

MACRO_FILES: tuple[str, ...] = (
    "keys",
    "fields",
    "history",
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
    "fabric",
)
"""Every subject, in an order in which no macro needs a later one."""


class MacroParam(Struct, frozen=True):
    """A parameter; ``type`` is a DuckDB type, or ``TABLE(...)`` for the name of a table or CTE."""

    name: str
    type: str
    doc: str


class Macro(Struct, frozen=True):
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


@lru_cache(maxsize=512)
def _words(text: str) -> frozenset[str]:
    """Of a query or a macro, whose text is asked for again and again."""
    return frozenset(_WORD.findall(text))


def used_by(*texts: str, known: Mapping[str, str] | None = None) -> set[str]:
    """The macros that texts name, and those that they name; ``known`` are statements by name."""
    known = {m.name: m.sql for m in macros().values()} if known is None else known
    used: set[str] = set()
    new = known.keys() & frozenset().union(*map(_words, texts))
    while new:
        used |= new
        new = known.keys() & frozenset().union(*(_words(known[name]) for name in new)) - used
    return used


# ---------------------------------------------------------------- header

_KEY = re.compile(r"-- (param|reads|columns|returns): (.*)")
_TITLE = re.compile(r"-- (\w+): (.+)")
_PARAM = re.compile(r"(\w+) (TABLE\((?:[^()]|\([^()]*\))*\)|[\w\[\]]+) : (.+)")
_COMMA = re.compile(r",(?![^()]*\))")
"""Between columns, not between the parts of a STRUCT."""
_RETURNS = re.compile(r"([\w\[\]]+|MAP\([\w, ]+\)) : (.+)")
_CREATE = re.compile(r"CREATE OR REPLACE MACRO (\w+)\(([^)]*)\)")


def parse(subject: str, text: str) -> tuple[str, tuple[Macro, ...]]:
    """What a file says of its subject, and its macros; ValueError names the faulty line."""
    title, *blocks = re.split(r"\n\n(?=-- \w+: )", text.rstrip("\n"))
    if not re.fullmatch(r"-- .+\.", title):
        raise ValueError(f"macros/{subject}: expected one line that says what the subject is")
    return title[3:], tuple(_macro(subject, block) for block in blocks)


def header_of(
    place: str, lines: Iterable[str], keyed: re.Pattern[str]
) -> tuple[str, list[tuple[str, str]]]:
    """The prose of a header, and its keyed entries with their continuation lines joined;
    ValueError names the place and the faulty line."""
    prose: list[str] = []
    entries: list[tuple[str, str]] = []
    for line in lines:
        match = keyed.fullmatch(line)
        if match:
            entries.append((match[1], match[2].strip()))
        elif entries and line.startswith("--   "):
            key, value = entries[-1]
            entries[-1] = (key, f"{value} {line[2:].strip()}")
        elif entries or not line.startswith("--"):
            raise ValueError(f"{place}: neither a key nor an indented continuation: {line!r}")
        else:
            prose.append(line[2:].strip())
    paragraphs = [" ".join(p.split()) for p in "\n".join(prose).split("\n\n")]
    return "\n\n".join(p for p in paragraphs if p), entries


def _macro(subject: str, block: str) -> Macro:
    header, create, body = block.partition("\nCREATE ")
    lines = header.splitlines()
    titled = _TITLE.fullmatch(lines[0])
    statement = f"{create.lstrip()}{body}\n"
    created = _CREATE.match(statement)
    if titled is None or created is None or created[1] != titled[1]:
        raise ValueError(f"macros/{subject}: no macro of the header's name: {lines[0]!r}")
    why, entries = header_of(f"macros/{subject}", lines[1:], _KEY)
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
        why=why,
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
