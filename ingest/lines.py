"""Lines of a text file, in bounded memory and split at line feeds only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from tracekit.ingest.streams import stream_problem

READ_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 20
"""Longest line of a text that is kept; of a longer one the rest is dropped."""

_COLOUR = re.compile(rb"\x1b\[[0-9;?]{0,20}[A-Za-z]")


class Line(NamedTuple):
    """A line without its end, and its number, from 1."""

    number: int
    text: str


def raw_lines(stream: BinaryIO, max_bytes: int) -> Iterator[bytes]:
    """The lines of a stream without their ends; of a line over ``max_bytes`` only the first ones.

    Where the stream breaks off, the line that it breaks in is left out: a number that was cut
    short looks like a smaller one. Not ``splitlines``, which also ends a line at characters that
    values may hold.
    """
    rest, is_cut = b"", False
    while block := stream.read(READ_BYTES):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            if not is_cut:  # else the end of a line whose beginning was given already
                yield line[:max_bytes]
            is_cut = False
        if len(rest) > max_bytes:
            if not is_cut:
                yield rest[:max_bytes]
            rest, is_cut = b"", True
    if rest and not is_cut and stream_problem(stream) is None:
        yield rest


def lines(stream: BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """The lines of a text as ``plain`` has them."""
    for number, raw in enumerate(raw_lines(stream, max_bytes), 1):
        yield Line(number, plain(raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw))


def plain(raw: bytes) -> str:
    """A line without terminal colours and carriage return; what is no UTF-8 is replaced."""
    if b"\x1b" in raw:
        raw = _COLOUR.sub(b"", raw)
    return raw.rstrip(b"\r").decode("utf-8", "replace")


def shape(text: str) -> str:
    """Masked shape of a text: letters to ``a``, digits to ``9``; at most 120 characters."""
    return "".join("9" if c.isdigit() else "a" if c.isalpha() else c for c in text[:120])
