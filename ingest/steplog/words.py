"""Lines of a text as a column, and whether they hold one of a few words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

HEAD_LINES = 256
"""Looked at by themselves before all lines."""


def any_of(words: Iterable[bytes]) -> str:
    """A pattern that finds one of these ASCII texts; ``Block.holds`` takes it."""
    return "|".join(re.escape(word.decode("ascii")) for word in words)


class Block:
    """Consecutive lines in whatever encoding, made a column once for all who look for something."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self.lines = lines
        self._held: dict[str, bool] = {}

    def holds(self, pattern: str) -> bool:
        """Whether a pattern is found in a line, of which all that must be there is ASCII. It is
        looked for once.

        By Rust's ``regex``, which looks for all of a few dozen texts at once: ten times as quick as
        one search for each, or Python's ``re``. Line by line, since a text of megabytes is in no
        cache by then.
        """
        held = self._held.get(pattern)
        if held is None:
            # Words are mostly everywhere or nowhere, and the head says which at little cost.
            head = self.text.head(HEAD_LINES).str.contains(pattern).any()
            rest = self.text.slice(HEAD_LINES)
            held = head or bool(rest.len() and rest.str.contains(pattern).any())
            self._held[pattern] = held
        return held

    @cached_property
    def has_returns(self) -> bool:
        """Whether a line holds a carriage return."""
        return b"\r" in self._joined

    @cached_property
    def has_escapes(self) -> bool:
        """Whether a line holds an escape character, as colours of terminals begin."""
        return b"\x1b" in self._joined

    @cached_property
    def raw(self) -> pa.LargeBinaryArray:
        """The lines' bytes."""
        import pyarrow as pa

        return pa.array(self.lines, pa.large_binary())

    @cached_property
    def garbled_count(self) -> int:
        """Lines that are no UTF-8."""
        import polars as pl

        try:
            pl.Series(self.raw).cast(pl.String)
        except pl.exceptions.PolarsError:
            return sum(not _is_utf8(line) for line in self.lines)
        return 0

    @cached_property
    def text(self) -> pl.Series:
        """The lines; what is no UTF-8 is replaced."""
        return decoded(self.raw)

    @cached_property
    def _joined(self) -> bytes:
        return b"\n".join(self.lines)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def decoded(raw: pa.LargeBinaryArray) -> pl.Series:
    """Bytes as text; what is no UTF-8 is replaced."""
    import polars as pl

    column = pl.Series(raw)
    try:
        return column.cast(pl.String)
    except pl.exceptions.PolarsError:
        return pl.Series([b.decode("utf-8", "replace") for b in column], dtype=pl.String)
