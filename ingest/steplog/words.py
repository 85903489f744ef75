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

    def __init__(self, lines: bytes | Sequence[bytes]) -> None:
        """``lines`` may be a text of them: then each is an object of its own only if asked for."""
        self._given = lines
        self._held: dict[str, bool] = {}

    @cached_property
    def lines(self) -> Sequence[bytes]:
        """The lines one by one."""
        return self._given.split(b"\n") if isinstance(self._given, bytes) else self._given

    @cached_property
    def count(self) -> int:
        """How many there are."""
        if isinstance(self._given, bytes):
            return self._given.count(b"\n") + 1
        return len(self._given)

    @property
    def last_bytes(self) -> int:
        """Length of the last one."""
        if isinstance(self._given, bytes):
            return len(self._given) - self._given.rfind(b"\n") - 1
        return len(self._given[-1]) if self._given else 0

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

        if not isinstance(self._given, bytes):
            return pa.array(self._given, pa.large_binary())
        import pyarrow.compute as pc

        return pc.split_pattern(pa.array([self._given], pa.large_binary()), b"\n").values

    @cached_property
    def garbled_count(self) -> int:
        """Lines that are no UTF-8."""
        return sum(not _is_utf8(line) for line in self.lines) if self._as_utf8 is None else 0

    @cached_property
    def text(self) -> pl.Series:
        """The lines; what is no UTF-8 is replaced."""
        return self._as_utf8 if self._as_utf8 is not None else decoded(self.raw)

    @cached_property
    def _as_utf8(self) -> pl.Series | None:
        """The lines as text, if all of them are."""
        import polars as pl

        try:
            return pl.Series(self.raw).cast(pl.String)
        except pl.exceptions.PolarsError:
            return None

    @cached_property
    def _joined(self) -> bytes:
        return self._given if isinstance(self._given, bytes) else b"\n".join(self._given)


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
