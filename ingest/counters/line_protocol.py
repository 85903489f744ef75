"""InfluxDB's line protocol: ``measurement,tag=text,... field=value,... timestamp``.

A backslash guards commas, blanks and equals signs; texts stand in double quotes, where it guards
quotes. The grammar is InfluxData's; what reads a measurement stands elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

_HEAD = re.compile(r"(?:\\.|[^ \\])+")
# A name is tried where one can begin only: from each of its letters, long ones take their square.
_FIELD = re.compile(
    r'(?<![^,= ])(?<!\\[,= ])((?:\\.|[^,= \\])++)=("(?:\\.|[^"\\])*+"|[^, ]*+)(?:,|$| )'
)
_TAG = re.compile(r"(?<!\\),((?:\\.|[^,= \\])++)=((?:\\.|[^, \\])*+)")


TELEGRAF = frozenset(("nvidia_smi", "prometheus", "infiniband", "ethtool", "net"))
"""Measurements of Telegraf's inputs."""


class Point(NamedTuple):
    """A line."""

    measurement: str
    tags: dict[str, str]
    body: str
    """The fields, as they are printed."""
    stamp: str
    """Digits of its time."""
    numbers: tuple[tuple[str, str | None], ...] | None = None
    """Fields that are read already: those of a point in JSON or CSV."""
    is_computed: bool = False
    """Whether numbers may be means or rates of what was counted: no number is a count then."""
    is_whole: bool = True
    """Whether all fields of the moment stand in it."""

    @property
    def is_of_telegraf(self) -> bool:
        """Whether an input of Telegraf that is known writes such points."""
        return self.measurement in TELEGRAF or self.measurement.startswith("DCGM_")

    def fields(self) -> Iterator[tuple[str, str | None]]:
        """Names and printed numbers, without the letter of their type; None for a text."""
        if self.numbers is not None:
            yield from self.numbers
            return
        for field, printed in _FIELD.findall(self.body):
            yield plain(field), printed.rstrip("ui") if printed[:1] != '"' else None


def point(text: str) -> Point | None:
    """A line of the protocol; None for what is none, or states no time."""
    head = _HEAD.match(text)
    body, _, stamp = text.rpartition(" ")
    if head is None or not stamp.isdecimal() or head.end() >= len(body):
        return None
    name = re.split(r"(?<!\\),", head[0], maxsplit=1)[0]
    tags = {plain(k): plain(v) for k, v in _TAG.findall(head[0])}
    return Point(plain(name), tags, body[head.end() + 1 :], stamp)


def point_of_json(text: str) -> Point | None:
    """A point as Telegraf writes it in JSON (``data_format = "json"``); None for what is none."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    name, tags, values = said.get("name"), said.get("tags"), said.get("fields")
    if not isinstance(name, str) or not isinstance(tags, dict) or not isinstance(values, dict):
        return None
    numbers = tuple(
        (field, None if isinstance(value, str | bool) or value is None else str(value))
        for field, value in values.items()
        if not isinstance(value, dict | list)
    )
    texts = {key: value for key, value in tags.items() if isinstance(value, str)}
    return Point(name, texts, "", str(said.get("timestamp")), numbers)


def plain(text: str) -> str:
    """A name without what guards its letters."""
    return re.sub(r"\\(.)", r"\1", text)
