"""A named query, as its file declares it.

It is one file ``queries/<subject>/<name>.sql``: a header of comment lines, then one SELECT::

    -- One-line title.
    --
    -- Why it matters, in free text.
    --
    -- reads: step, gpu_op
    -- needs: gpu_op (optional): without a row of each of these it has none, whatever else there is.
    --     ``annotation:python_gc`` is a row of that domain.
    -- grain: rank, capture_id, step
    -- param: rounding VARCHAR = 'none' | 'hta' : What it does; the default comes first.
    -- column: rank INTEGER : What it is, with unit and range. Names with blanks stand in "".
    --     A line that is indented further continues the one before.
    -- completed: replay | job (optional): what fills in the columns that SQL leaves null.
    -- asked: report | report where slow | report where idle | report where nobody communicates |
    --     report where a layout is told | where late | with OP or OP | after silence (optional):
    --     by the report of a diagnosis, whichever rules run; or by no diagnosis but where
    --     step_breakdown shows slow steps, or ranks without a GPU that do little, comm_summary
    --     nothing, job.toml the size of a parallel dimension, straggler a rank that may be late,
    --     comm_summary one of these operations, or last_calls that no rank communicates at its
    --     end: what they walk is large.
    -- shows: device (optional): what a rank's device did, though it reads no gpu_op.
    -- source: Where a formula comes from (optional).
    SELECT ...

Tests prove each header against its query instead of trusting it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import takewhile
from typing import Literal, get_args

from msgspec import Struct

from tracekit import macros
from tracekit.errors import UsageError

ParamValue = str | int | float | bool

Completion = Literal["replay", "job"]
"""By a replay of the run, or by what its job description implies."""

ASKED = re.compile(
    r"report|report where (slow|idle|nobody communicates|a layout is told)|where late"
    r"|with \w+(?: or \w+)*|after silence"
)
"""When a diagnosis asks a query beyond the rules that read it, or only then."""


class Param(Struct, frozen=True):
    """A named parameter. ``choices`` is empty where any value of the type will do."""

    name: str
    type: str
    default: ParamValue
    doc: str
    choices: tuple[ParamValue, ...] = ()

    def parse(self, value: object) -> ParamValue:
        """The value as this parameter's type; text is read as on the command line.

        UsageError if it is not of that type, or none of the choices.
        """
        parsed = _as_type(value, self.type)
        if parsed is None:
            raise UsageError(
                f"parameter {self.name} takes a {self.type}, not {value!r}",
                hint=f"its default is {self.default}",
            )
        if self.choices and parsed not in self.choices:
            raise UsageError(
                f"parameter {self.name} cannot be {value!r}",
                hint=f"one of: {', '.join(str(c) for c in self.choices)}",
            )
        return parsed


class QueryColumn(Struct, frozen=True):
    """An output column: its DuckDB type and its meaning with unit."""

    name: str
    type: str
    doc: str


class Query(Struct, frozen=True):
    """A named query as its file declares it. ``sql`` is the file's text, header included."""

    name: str
    subject: str
    title: str
    why: str
    reads: tuple[str, ...]
    grain: tuple[str, ...]
    params: tuple[Param, ...]
    columns: tuple[QueryColumn, ...]
    source: str | None
    sql: str
    needs: tuple[str, ...] = ()
    """Tables without whose rows it has none, of those that it reads; ``annotation:domain`` too."""
    completed: Completion | None = None
    """What fills in the columns that no SQL can know; they are null without."""
    asked: str = ""
    """When a diagnosis asks it (``ASKED``); empty: where a rule reads it."""
    shows: str = ""

    @property
    def is_for_report(self) -> bool:
        """Whether a diagnosis asks it whichever rules run."""
        return self.asked.startswith("report")

    @property
    def is_of_device(self) -> bool:
        """Whether its rows say what a rank's device did, or what that shows of its host: without
        the rank's kernels they say that it idled."""
        return "rank" in self.grain and (self.shows == "device" or "gpu_op" in self.reads)

    def bind(self, given: Mapping[str, object]) -> dict[str, ParamValue]:
        """Every declared parameter with its given or default value; UsageError on an unknown."""
        known = {p.name: p for p in self.params}
        for name in given:
            if name not in known:
                raise UsageError(
                    f"query {self.name} has no parameter {name!r}",
                    hint=did_you_mean(name, known, f"parameters of {self.name}"),
                )
        return {
            p.name: p.parse(given[p.name]) if p.name in given else p.default for p in self.params
        }


_KEY = re.compile(r"-- (reads|needs|grain|param|column|completed|asked|shows|source): (.*)")
_PARAM = re.compile(r"(\w+) (\w+) = (.+?) : (.+)")
_COLUMN = re.compile(r"""(\w+|"[^"]+") ([\w\[\]]+) : (.+)""")


def parse(path: str, text: str) -> Query:
    """A query from its path (``subject/name``) and text; ValueError names the faulty line."""
    subject, _, name = path.partition("/")
    title, why, entries = _header(path, text)
    lists = {
        key: tuple(word.strip() for k, value in entries if k == key for word in value.split(","))
        for key in ("reads", "needs", "grain")
    }
    return Query(
        name=name,
        subject=subject,
        title=title,
        why=why,
        reads=lists["reads"],
        needs=lists["needs"],
        grain=lists["grain"],
        params=tuple(_param(path, value) for key, value in entries if key == "param"),
        columns=tuple(_column(path, value) for key, value in entries if key == "column"),
        source=_only(entries, "source"),
        sql=text,
        completed=_completion(path, entries),
        asked=_only(entries, "asked") or "",
        shows=_only(entries, "shows") or "",
    )


def _only(entries: Iterable[tuple[str, str]], wanted: str) -> str | None:
    return next((value for key, value in entries if key == wanted), None)


def _completion(path: str, entries: Iterable[tuple[str, str]]) -> Completion | None:
    by = _only(entries, "completed")
    known: tuple[Completion, ...] = get_args(Completion)
    if by is not None and by not in known:
        raise ValueError(f"{path}: completed by {' or '.join(known)}, not {by!r}")
    return next((word for word in known if word == by), None)


def _header(path: str, text: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Title, why paragraphs, and the keyed entries with their continuation lines joined."""
    title, *lines = takewhile(lambda line: line.startswith("--"), text.splitlines())
    return title[2:].strip(), *macros.header_of(path, lines, _KEY)


def _param(path: str, text: str) -> Param:
    match = _PARAM.fullmatch(text)
    if match is None:
        raise ValueError(f"{path}: expected 'name TYPE = default : meaning', found {text!r}")
    name, type_, values, doc = match.groups()
    parsed = [_as_type(v.strip().strip("'"), type_) for v in values.split(" | ")]
    choices = tuple(v for v in parsed if v is not None)
    if len(choices) < len(parsed):
        raise ValueError(f"{path}: {values!r} is not {type_}")
    return Param(name, type_, choices[0], doc, choices if len(choices) > 1 else ())


def _column(path: str, text: str) -> QueryColumn:
    match = _COLUMN.fullmatch(text)
    if match is None:
        raise ValueError(f"{path}: expected 'name TYPE : meaning', found {text!r}")
    return QueryColumn(match[1].strip('"'), match[2], match[3])


def _as_type(value: object, type_: str) -> ParamValue | None:
    """The value as a DuckDB type's Python value, or None where it is not one."""
    text = str(value).strip()
    if type_ == "VARCHAR":
        return str(value)
    if type_ == "BOOLEAN":
        return {"true": True, "false": False}.get(text.lower())
    try:
        if type_ in ("INTEGER", "BIGINT"):
            return None if isinstance(value, bool) else int(text)
        if type_ == "DOUBLE":
            return None if isinstance(value, bool) else float(text)
    except ValueError:
        return None
    raise ValueError(f"parameters cannot be of type {type_}")


def did_you_mean(name: str, known: Iterable[str], what: str) -> str:
    """A hint: what comes close to a name that is none, else all names there are."""
    names = list(known)
    close = get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"{what}: {', '.join(names) or 'none'}"
