"""Tables that a command prints: a header, a line of dashes, rows of cells below their columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tracekit.ingest.lines import Line

_DASHES = re.compile(r" *-{2,}(?: +-{2,})* *")
_PROMPT = re.compile(
    r"(?:(?:[\w.-]{1,64}@)?([A-Za-z][\w.-]{0,63})(?:\([\w-]{1,40}\))?(?::[^$#>]{0,80})?[$#>] ?"
    r"|\[(?:[\w.-]{1,64}@)?([A-Za-z][\w.-]{0,63}) [^\]$#>]{1,80}\][$#>] ?|[$#] )"
    r"((?:sudo )?(?:show|pfcstat|portstat|queuestat|watermarkstat|pfcwd|dropstat|sonic-clear"
    r"|ethtool|rdma|ip|tc|perfquery|ibqueryerrors|cat|date|redis-dump|sonic-db-dump|nv|gnmic)\b.{0,300})"
)
"""A shell's (``gpu-01:~$``, ``[root@gpu-01 ~]#``, a bare ``$``) or a switch's (``leaf1#show``)."""


class Text(NamedTuple):
    """A line outside of a table."""

    number: int
    text: str


class Header(NamedTuple):
    """The header of a table."""

    number: int
    names: tuple[str, ...]


class Row(NamedTuple):
    """A row of the newest table."""

    number: int
    cells: tuple[str, ...]


class Ragged(NamedTuple):
    """A line within a table whose cells do not stand below its columns."""

    number: int
    text: str


def prompt(text: str) -> tuple[str | None, str] | None:
    """The machine, where it is said, and the command of a line that a user typed; else None."""
    typed = _PROMPT.match(text.strip())
    return (typed[1] or typed[2], typed[3]) if typed else None


def blocks(lines: Iterable[Line]) -> Iterator[Text | Header | Row | Ragged]:
    """Text, headers and rows of a file; a table ends at the next text.

    An empty line ends nothing: some commands set the rows of each port apart by one.
    """
    held: Line | None = None
    spans: list[tuple[int, int]] = []
    for line in lines:
        text = line.text.expandtabs()
        if _DASHES.fullmatch(text) and held is not None and held.text.strip():
            runs = [m.span() for m in re.finditer("-+", text)]
            if len(runs) == 1 and len(spans) > 1 and _cells(held.text.expandtabs(), spans):
                # One line of dashes below rows closes their table.
                yield _block(held, spans)[0]
                held, spans = None, []
                continue
            spans = runs
            names = _cells(held.text.expandtabs(), spans, is_header=True)
            yield Header(held.number, names or ())
            held = None
            continue
        if held is not None:
            block, spans = _block(held, spans)
            yield block
        held = line
    if held is not None:
        yield _block(held, spans)[0]


def _block(
    line: Line, spans: list[tuple[int, int]]
) -> tuple[Text | Row | Ragged, list[tuple[int, int]]]:
    text = line.text.expandtabs()
    if not spans or not text.strip():
        return Text(line.number, line.text), spans
    cells = _cells(text, spans)
    if cells is not None and (any(cells[1:]) or len(cells) == 1):
        return Row(line.number, cells), spans
    words = text.split()
    looks_like_row = len(words) == len(spans) and any(w[:1].isdigit() for w in words[1:])
    if looks_like_row:
        return Row(line.number, tuple(words)), spans
    if len(words) >= 2 and sum(w[0].isdigit() for w in words[1:]) * 2 >= len(words):
        return Ragged(line.number, line.text), spans
    return Text(line.number, line.text), []


def _cells(
    text: str, spans: list[tuple[int, int]], *, is_header: bool = False
) -> tuple[str, ...] | None:
    """The cells of a line; None where something stands between the columns."""
    at = 0
    for start, end in spans:
        if text[at:start].strip() and not is_header:
            return None
        at = end
    if text[at:].strip() and not is_header:
        return None
    return tuple(text[start:end].strip() for start, end in spans)
