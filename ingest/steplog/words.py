"""Lines of a text as a column, and whether they hold one of a few words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    import pyarrow as pa
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

LINE_FEED, RETURN = 10, 13
MAX_WITHIN = 12
"""Bytes of a text that stands in its view itself."""
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

    def pieces(self, most_bytes: int) -> tuple[pl.Series, Ints]:
        """What stands between carriage returns and ends of lines, without what is empty where
        there are any returns, each up to so many bytes; and the number of its line, from 0."""
        import numpy as np
        import pyarrow.compute as pc

        whole = self._given
        if self.has_returns and isinstance(whole, bytes) and self._as_utf8 is not None:
            codes = np.frombuffer(whole, np.uint8)
            ends = np.append(np.flatnonzero((codes == LINE_FEED) | (codes == RETURN)), len(codes))
            starts = np.concatenate([[0], ends[:-1] + 1])
            line = np.concatenate([[0], np.cumsum(codes[ends[:-1]] == LINE_FEED)])
            length = ends - starts
            if whole.isascii() or length.max() <= most_bytes:  # else a cut may part a character
                kept = length > 0
                return _viewed(whole, starts[kept], length[kept].clip(max=most_bytes)), line[kept]
        texts, line = self.raw, np.arange(self.count)
        if self.has_returns:
            split = pc.split_pattern(texts, b"\r")
            texts, line = split.flatten(), pc.list_parent_indices(split).to_numpy()
            is_drawn = pc.greater(pc.binary_length(texts), 0)
            texts, line = texts.filter(is_drawn), line[is_drawn.to_numpy(zero_copy_only=False)]
        if (pc.max(pc.binary_length(texts)).as_py() or 0) > most_bytes:
            texts = pc.binary_slice(texts, 0, most_bytes)
        return (self.text if texts is self.raw else decoded(texts)), line

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


def _viewed(whole: bytes, starts: Ints, length: Ints) -> pl.Series:
    """Parts of a text as a column that looks into it: nothing of them is copied.

    As Arrow's columnar format has views of strings: of 16 bytes each, a length, and the text itself
    up to 12 bytes, else its first four, the number of its buffer and where it begins there.
    """
    import numpy as np
    import polars as pl
    import pyarrow as pa

    views = np.zeros((len(starts), 4), np.int32)
    views[:, 0] = length
    views[:, 3] = starts
    padded = np.frombuffer(whole + bytes(MAX_WITHIN), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(padded, MAX_WITHIN)
    views[:, 1] = windows[starts, :4].view(np.int32)[:, 0]
    short = np.flatnonzero(length <= MAX_WITHIN)
    is_behind = np.arange(MAX_WITHIN) >= length[short, None]
    views[short, 1:] = (
        np.where(is_behind, 0, windows[starts[short]]).astype(np.uint8).view(np.int32)
    )
    buffers = [None, pa.py_buffer(views), pa.py_buffer(whole)]
    return pl.Series(pa.Array.from_buffers(pa.string_view(), len(starts), buffers))


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
