"""Lines of a text file, in bounded memory and split at line feeds only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from tracekit.ingest.files import stream_problem

READ_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 20
"""Longest line that is kept; of a longer one the rest is dropped."""


def numbered_lines(stream: BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of each line, without its end; what is no UTF-8 is replaced.

    Not ``str.splitlines``, which also ends a line at characters that values may hold.
    """
    rest = b""
    number = 0
    is_cut = False
    while block := stream.read(READ_BYTES):
        whole = (rest + block).split(b"\n")
        rest = whole.pop()
        for line in whole:
            if is_cut:  # the end of a line whose beginning was given already
                is_cut = False
                continue
            number += 1
            yield number, _text(line[:max_bytes], number)
        if len(rest) > max_bytes:
            if not is_cut:
                number += 1
                yield number, _text(rest[:max_bytes], number)
            is_cut, rest = True, b""
    # Where the bytes break off, so does the last line: a number cut short looks like a smaller one.
    if rest and not is_cut and stream_problem(stream) is None:
        yield number + 1, _text(rest, number + 1)


def _text(line: bytes, number: int) -> str:
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")
    return line.removesuffix(b"\r").decode("utf-8", "replace")


def shape(text: str) -> str:
    """Masked shape of a text: letters to ``a``, digits to ``9``; at most 120 characters."""
    return "".join("9" if c.isdigit() else "a" if c.isalpha() else c for c in text[:120])
