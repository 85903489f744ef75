"""The head of a table that somebody made: what stands before its header, and beneath it.

Before the header may stand comments, ``sep=;`` and titles. It may have two rows, of devices and of
metrics, as data frames with columns of two levels write them, and beneath it a row of units. What
the first row of numbers holds says what no header does: which column is a time, and which unit is
printed in its cells (``45 %``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tracekit.ingest.counters import times
from tracekit.ingest.counters.net_samples import decimal, is_missing
from tracekit.ingest.counters.table import MAX_COLUMNS, cells_of, header_of, unit_of
from tracekit.ingest.counters.units import MEMORY, SIZES

HEAD_LINES = 24
"""Lines that are looked at for a header and what is beneath it."""
MAX_BEFORE = 12
"""Lines of comments and titles before it."""

_COMMENT = re.compile(r"\s*(?:#|//|%)")
_SEPARATOR = re.compile(r'"?sep=.?"?', re.I)
_UNITS = (
    {u for sizes in SIZES.values() for u in sizes} | set(MEMORY)
    | {"°C", "℃", "sec", "seconds", "UTC", "unix", "iso8601", "datetime", "Watts", "%", "-", "#"}
)  # fmt: skip
_LOWER_UNITS = {u.lower() for u in _UNITS}
_WITH_UNIT = re.compile(r"[-+]?\d[\d.,]*(?:[eE][-+]?\d{1,3})?\s?(%|°C|[A-Za-z][A-Za-z/]{0,9})")
_TUPLE = re.compile(r"""\(?\s*(?:'[^']*'|"[^"]*")(?:\s*,\s*(?:'[^']*'|"[^"]*"))+\s*\)?""")
_QUOTED = re.compile(r"""'([^']*)'|"([^"]*)\"""")
_OF_WANDB = re.compile(r"\A.{1,200} - (?=system\.)")
"""What W&B's exports put before a metric: the run's name."""
_NUMBERED = re.compile(r"(?i)\b(gpu|card|ib|eth|nic|hca|port|fan|psu|cpu)\s?\[(\d{1,4})\](?=.)")
_OF_TIME = re.compile(
    r"(?:^|[^a-z])(?:t|ts|time|date|datetime|timestamp|stamp|epoch|clock|utc|when|zeit|zeitstempel|"
    r"heure|fecha|hora|sampled|collected)(?:$|[^a-z])|time|stamp",
    re.I,
)


class Head(NamedTuple):
    """The header of a table."""

    delimiter: str
    names: tuple[str, ...]
    """A name a column, with its unit in brackets where a row says it."""
    shown: tuple[str, ...]
    """The names as they are written."""
    cells: tuple[str, ...]
    """Cells of the header's line, to know it again."""
    lines: int
    """Lines up to the first row of numbers."""
    first: tuple[str, ...]
    """Cells of that row; empty where there is none."""

    def printed(self, at: int) -> str:
        """A name with the unit that its first cell is printed with; without one, the name."""
        unit = printed_unit(self.first[at]) if self.first else None
        return self.names[at] if unit is None else _with_unit(self.names[at], unit)

    @property
    def time_at(self) -> int | None:
        """The column whose name may be a time's and whose first cell is one."""
        for at, cell in enumerate(self.first):
            if _OF_TIME.search(self.names[at]) and times.parse(cell) is not None:
                return at
        return None


def heads(lines: Sequence[str]) -> Iterator[Head]:
    """What may be the head of a table, in the order of its lines."""
    for at, line in enumerate(lines[:MAX_BEFORE]):
        text = line.strip("\ufeff \t\r") if at == 0 else line.strip()
        if not text or _SEPARATOR.fullmatch(text):
            continue
        is_comment = _COMMENT.match(text) is not None
        header = text.lstrip("#/% ") if is_comment else line.strip("\ufeff\r\n")
        named = header_of(header)
        if named is None and 2 < len(header.split()) <= MAX_COLUMNS:
            named = " ", header.split()
        if named is not None:
            yield _head(*named, at, lines)
            if not is_comment:
                return


def _head(delimiter: str, header: Sequence[str], at: int, lines: Sequence[str]) -> Head:
    names = [plain_name(name) for name in header]
    shown = [name.strip() for name in header]
    beneath = at + 1
    rows = []
    for number, line in enumerate(lines[beneath : beneath + 3], beneath):
        cells = [c.strip() for c in cells_of(line.strip("\r\n"), delimiter)]
        if line.strip() and (len(cells) != len(names) or _is_of_numbers(cells)):
            break
        rows.append((number, cells))
    for number, cells in rows:
        if not any(cells):
            continue
        if _are_units(cells):
            names = [_with_unit(n, u) for n, u in zip(names, cells, strict=True)]
        elif len({*names}) < len(names):
            names = shown = _joined(names, cells)
        elif cells[0] and not any(cells[1:]) and names[0] == "":
            names[0] = cells[0]  # what a data frame calls its index
        else:
            break
        beneath = number + 1
    first: tuple[str, ...] = ()
    for line in lines[beneath:]:
        if line.strip():
            cells = [c.strip() for c in cells_of(line.strip("\r\n"), delimiter)]
            if len(cells) == len(names):
                first = tuple(cells)
            break
    header_cells = tuple(name.strip() for name in header)
    return Head(delimiter, tuple(names), tuple(shown), header_cells, beneath, first)


def _is_of_numbers(cells: Sequence[str]) -> bool:
    return any(decimal(c) is not None or times.parse(c) is not None for c in cells)


def _are_units(cells: Sequence[str]) -> bool:
    said = [c.strip("[]() ") for c in cells if c]
    return bool(said) and all(u in _UNITS or u.lower() in _LOWER_UNITS for u in said)


def _with_unit(name: str, unit: str) -> str:
    bare = unit.strip("[]() ")
    if not bare or bare in "-#" or unit_of(name) is not None:
        return name
    return f"{name} [{bare}]"


def _joined(above: Sequence[str], beneath: Sequence[str]) -> list[str]:
    """Names of two rows; a cell that is empty above is of the one before it."""
    names, last = [], ""
    for over, under in zip(above, beneath, strict=True):
        last = over or last
        names.append(f"{last}_{under}" if last and under else under or over)
    return names


def plain_name(name: str) -> str:
    """A header as the others are written: ``('gpu0', 'power_w')`` and ``GPU[0].power_w``."""
    text = name.strip().lstrip("#").strip()
    text = _OF_WANDB.sub("", text)
    if _TUPLE.fullmatch(text):
        text = "_".join(a or b for a, b in _QUOTED.findall(text) if a or b)
    return _NUMBERED.sub(r"\1\2", text)


def in_unit(text: str, unit: str, scale: float) -> str:
    """A cell that is printed with a unit of its own, in the unit of its column; else as it is.

    ``scale`` is the size of the column's unit in ``unit``.
    """
    printed = _WITH_UNIT.fullmatch(text)
    if printed is None or is_missing(text):
        return text
    sizes = {**SIZES.get(unit, {}), **(MEMORY if unit == "bytes" else {})}
    size = sizes.get(printed[1])
    number = decimal(text[: printed.start(1)].strip())
    if number is None or size is None:
        return text
    return repr(number * float(size) / scale)


def printed_unit(text: str) -> str | None:
    """The unit that a cell is printed with: ``45 %``; None where it has none that is known."""
    cell = _WITH_UNIT.fullmatch(text)
    return cell[1] if cell is not None and _are_units([cell[1]]) else None
