"""Tables that somebody made: their header, and what job.toml says of their columns."""

from __future__ import annotations

import csv
from collections.abc import Sequence

MAX_COLUMNS = 1000
TIME_WORDS = (
    "timestamp", "time", "datetime", "date_time", "ts", "epoch", "epoch_s", "time_s", "date",
)  # fmt: skip
HOST_WORDS = ("hostname", "host", "node", "node_name", "nodename")
VALUE_WORDS = ("value", "metric_value", "val")
"""Headers that say what a column is, whatever the table counts."""


def header_line(head: bytes) -> str:
    """The first line of a text file."""
    line = head.lstrip(b"\xef\xbb\xbf\r\n \t").split(b"\n", 1)[0]
    return line[:65536].decode("utf-8", "replace").rstrip("\r")


def header_of(line: str) -> tuple[str, list[str]] | None:
    """Delimiter and names of a header line; None where it is none."""
    delimiter = max(",;\t", key=line.count)
    if not line.count(delimiter):
        return None
    try:
        header = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
    except (csv.Error, StopIteration):
        return None
    return (delimiter, header) if 2 <= len(header) <= MAX_COLUMNS else None


def bare_name(name: str) -> str:
    """A header in lower case, without its unit in brackets."""
    return name.partition("[")[0].strip().lower()


def unit_of(text: str) -> str | None:
    """The unit in brackets at the end of a header."""
    return text.rpartition("[")[2].rstrip("] ") if text.rstrip().endswith("]") else None


def column_of(header: Sequence[str], text: str) -> tuple[int | None, str | None]:
    """The column that a text of job.toml means, and the unit that it adds in brackets."""
    names = [h.strip() for h in header]
    unit = unit_of(text)
    if text.strip() in names:
        return names.index(text.strip()), unit
    bare = text.rpartition("[")[0].strip() if unit is not None else None
    return (names.index(bare) if bare in names else None), unit
