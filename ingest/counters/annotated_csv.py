"""InfluxDB's annotated CSV, as ``influx query --raw`` and the HTTP API answer: points, a row each.

``#group``, ``#datatype`` and ``#default`` stand before each header (docs.influxdata.com, "Annotated
CSV"); where they were not asked for, the header alone says what is what. A row has one field
(``_field``, ``_value``), or, pivoted, a column a field. What is no field and begins with no
underscore is a tag.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tracekit.ingest.counters import times
from tracekit.ingest.counters.line_protocol import Point
from tracekit.ingest.counters.table import cells_of

_BEGINS = re.compile(
    rb"\s*(?:#(?:group|datatype|default),|,?result,table,(?:[^\n]*,)?_time(?:,|\s))"
)
_OWN = ("", "result", "table", "_start", "_stop", "_time", "_measurement", "_field", "_value")
_NUMBERS = ("double", "long", "unsignedLong")
"""Datatypes of fields that are numbers."""


def is_annotated(head: bytes) -> bool:
    """Whether a file begins as such an answer."""
    return _BEGINS.match(head.removeprefix(b"\xef\xbb\xbf")) is not None


class Tables:
    """Takes a file line by line."""

    def __init__(self) -> None:
        self._header: Sequence[str] = ()
        self._said: dict[str, Sequence[str]] = {}

    def point(self, text: str) -> Point | bool | None:
        """The point of a line; None where it should be one and is none; False for other lines."""
        if not text.strip():
            self._header, self._said = (), {}
            return False
        cells = cells_of(text, ",")
        if text.startswith("#"):
            if self._header:  # a table behind another without an empty line
                self._header, self._said = (), {}
            self._said[cells[0]] = cells
            return False
        if not self._header:
            self._header = cells
            return False
        if len(cells) != len(self._header):
            return None
        return False if list(cells) == list(self._header) else self._of_row(cells)

    def _of_row(self, cells: Sequence[str]) -> Point | None:
        kinds = self._said.get("#datatype", ())
        groups = self._said.get("#group", ())
        default = self._said.get("#default", ())
        row: dict[str, str] = {}
        numbers: list[tuple[str, str | None]] = []
        is_pivoted = "_field" not in self._header
        is_computed = False
        for at, (name, cell) in enumerate(zip(self._header, cells, strict=True)):
            value = cell or (default[at] if at < len(default) else "")
            kind = kinds[at] if at < len(kinds) else ""
            row[name] = value
            if name == "_value":
                is_computed = kind == "double"
            elif name not in _OWN and is_pivoted and kind in _NUMBERS and value:
                is_tag = at < len(groups) and groups[at] == "true"
                if not is_tag:
                    numbers.append((name, value))
                    del row[name]
                    is_computed |= kind == "double"
        moment = times.parse(row.get("_time", ""))
        if moment is None or isinstance(moment, times.Local):
            return None
        if not is_pivoted:
            numbers = [(row["_field"], row.get("_value") or None)]
        tags = {name: text for name, text in row.items() if name not in _OWN and text}
        return Point(row.get("_measurement", ""), tags, "", str(int(moment)), tuple(numbers),
                     is_computed=is_computed, is_whole=is_pivoted)  # fmt: skip
