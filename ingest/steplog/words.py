"""Lines of a text as a column, and whether they hold one of a few words.

Thousands of a log's lines differ in their digits alone. What asks for no digit in particular is
asked once of each *shape*: of the text with 0 for every digit.
"""

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
    Flags = NDArray[np.bool_]
    Codes = NDArray[np.uint8]

LINE_FEED, RETURN, ZERO = 10, 13, 48
MAX_WITHIN = 12
"""Bytes of a text that stands in its view itself."""
HEAD_SHAPES = 256
"""Looked at by themselves before all shapes."""
CACHED_BYTES = 128 << 10
"""Looked at together: what the processor's cache holds."""


def any_of(words: Iterable[bytes]) -> str:
    """A pattern that finds one of these ASCII texts; ``Block.holds`` takes it."""
    return "|".join(re.escape(word.decode("ascii")) for word in words)


class Texts:
    """Texts as a column, with their shapes.

    Patterns are those of Rust's ``regex``, which looks for all of a few dozen texts at once, and
    ask for no digit in particular.
    """

    def __init__(self, column: pl.Series, spans: tuple[Codes, Ints, Ints] | None = None) -> None:
        """``spans`` are where the texts stand: in which bytes, followed by ``MAX_WITHIN`` others,
        from where on, and how long. Without them each text is a shape of its own."""
        self.column = column
        self.spans = spans

    @cached_property
    def shaped(self) -> tuple[pl.Series, Ints] | None:
        """The shapes, and which of them each text has."""
        import numpy as np
        import pyarrow as pa

        if self.spans is None:
            return None
        codes, starts, length = self.spans
        texts = viewed(_digits_alike(codes), starts, length)
        hashed = pa.array(texts.hash().to_numpy()).dictionary_encode()
        which = hashed.indices.to_numpy().astype(np.int64)
        first = np.zeros(len(hashed.dictionary), np.int64)
        first[which[::-1]] = np.arange(len(which))[::-1]
        shapes = texts.gather(first)
        return (shapes, which) if (shapes.gather(which) == texts).all() else None

    def _of_texts(self, of_shapes: Flags) -> Flags:
        return of_shapes if self.shaped is None else of_shapes[self.shaped[1]]

    @property
    def _shapes(self) -> pl.Series:
        return self.column if self.shaped is None else self.shaped[0]

    def alike(self, at: Ints) -> Texts:
        """Of each shape among some texts, which their numbers name, one: for ``holds``."""
        import numpy as np

        if self.shaped is None:
            return Texts(self.column.gather(at))
        shapes, which = self.shaped
        return Texts(shapes.gather(np.flatnonzero(np.bincount(which[at]))))

    def holds(self, pattern: str) -> bool:
        """Whether a pattern is found in one."""
        # Words are mostly everywhere or nowhere, and the head says which at little cost.
        head, rest = self._shapes.head(HEAD_SHAPES), self._shapes.slice(HEAD_SHAPES)
        return any(bool(p.len() and p.str.contains(pattern).any()) for p in (head, rest))

    def has(self, *patterns: str, without: str = "") -> Flags:
        """Which texts every pattern is found in, and not ``without``."""
        import numpy as np
        import polars as pl

        left = pl.DataFrame({"shape": self._shapes}).with_row_index()
        for pattern in patterns:
            left = left.filter(pl.col("shape").str.contains(pattern))
        if without:
            left = left.filter(~pl.col("shape").str.contains(without))
        found = np.zeros(self._shapes.len(), np.bool_)
        found[left["index"].to_numpy()] = True
        return self._of_texts(found)


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
        return len(self._given if self._spans is None else self._spans[0])

    @property
    def whole(self) -> bytes:
        """All of them."""
        return self._joined

    @property
    def last_bytes(self) -> int:
        """Length of the last one."""
        if isinstance(self._given, bytes):
            return len(self._given) - self._given.rfind(b"\n") - 1
        return len(self._given[-1]) if self._given else 0

    def holds(self, pattern: str) -> bool:
        """Whether a pattern is found in a line, of which all that must be there is ASCII, without
        a digit or a carriage return. It is looked for once."""
        if pattern not in self._held:
            self._held[pattern] = self._between_ends.holds(pattern)
        return self._held[pattern]

    def holding(self, pattern: str) -> Flags:
        """Which lines such a pattern is found in."""
        import numpy as np

        held = self._between_ends.has(pattern)
        if self._piece_spans is None or not self.has_returns:
            return held
        return np.bincount(self._piece_spans[2], held, self.count) > 0

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

    def pieces(self, most_bytes: int) -> tuple[Texts, Ints]:
        """What stands between carriage returns and ends of lines, without what is empty where
        there are any returns, each up to so many bytes; and the number of its line, from 0."""
        import numpy as np
        import pyarrow.compute as pc

        if self._piece_spans is not None:
            starts, length, line = self._piece_spans
            if not starts.size or length.max() <= most_bytes:
                return self._between_ends, line
            if self._is_ascii:  # else a cut may part a character
                spans = self._padded, starts, length.clip(max=most_bytes)
                return Texts(viewed(*spans), spans), line
        texts, line = self.raw, np.arange(self.count)
        if self.has_returns:
            split = pc.split_pattern(texts, b"\r")
            texts, line = split.flatten(), pc.list_parent_indices(split).to_numpy()
            is_drawn = pc.greater(pc.binary_length(texts), 0)
            texts, line = texts.filter(is_drawn), line[is_drawn.to_numpy(zero_copy_only=False)]
        if (pc.max(pc.binary_length(texts)).as_py() or 0) > most_bytes:
            texts = pc.binary_slice(texts, 0, most_bytes)
        return Texts(self.text if texts is self.raw else decoded(texts)), line

    @cached_property
    def _padded(self) -> Codes:
        """A text's bytes, and as many more as a view may hold."""
        import numpy as np

        return np.frombuffer(self._joined + bytes(MAX_WITHIN), np.uint8)

    @cached_property
    def _is_ascii(self) -> bool:
        return isinstance(self._given, bytes) and self._given.isascii()

    @cached_property
    def _spans(self) -> tuple[Ints, Ints] | None:
        """Of a text: where in it each line begins, and how long it is."""
        import numpy as np

        if not isinstance(self._given, bytes):
            return None
        return _between(np.frombuffer(self._given, np.uint8), (LINE_FEED,))

    @cached_property
    def _piece_spans(self) -> tuple[Ints, Ints, Ints] | None:
        """Of a text in UTF-8, the same of what stands between carriage returns and ends of lines,
        without what is empty where there are any, and which line it is of."""
        import numpy as np

        if self._spans is None or self._as_utf8 is None:
            return None
        if not self.has_returns:
            return *self._spans, np.arange(self.count)
        codes = np.frombuffer(self._joined, np.uint8)
        starts, length = _between(codes, (LINE_FEED, RETURN))
        line = np.concatenate([[0], np.cumsum(codes[starts[1:] - 1] == LINE_FEED)])
        kept = length > 0
        return starts[kept], length[kept], line[kept]

    @cached_property
    def _between_ends(self) -> Texts:
        """What stands between carriage returns and ends of lines; lines where no bytes say it."""
        if self._piece_spans is None:
            return Texts(self.text)
        spans = (self._padded, *self._piece_spans[:2])
        return Texts(viewed(*spans) if self.has_returns else self.text, spans)

    @cached_property
    def _as_utf8(self) -> pl.Series | None:
        """The lines as text, if all of them are."""
        import polars as pl

        try:
            if self._spans is None:
                return pl.Series(self.raw).cast(pl.String)
            if not self._is_ascii and not _is_utf8_whole(self._joined):
                return None  # a line feed is within no character
            return viewed(self._padded, *self._spans)
        except pl.exceptions.PolarsError:
            return None

    @cached_property
    def _joined(self) -> bytes:
        return self._given if isinstance(self._given, bytes) else b"\n".join(self._given)


def _between(codes: Codes, ends: Sequence[int]) -> tuple[Ints, Ints]:
    """Where what stands between these separators begins, and how long each is."""
    import numpy as np

    found = []
    is_end, is_other = np.empty(CACHED_BYTES, np.bool_), np.empty(CACHED_BYTES, np.bool_)
    for at in range(0, len(codes), CACHED_BYTES):
        part = codes[at : at + CACHED_BYTES]
        n = len(part)
        np.equal(part, ends[0], out=is_end[:n])
        for end in ends[1:]:
            np.equal(part, end, out=is_other[:n])
            np.logical_or(is_end[:n], is_other[:n], out=is_end[:n])
        found.append(np.flatnonzero(is_end[:n]) + at)
    last = np.concatenate([*found, [len(codes)]])
    starts = np.concatenate([[0], last[:-1] + 1])
    return starts, last - starts


def _digits_alike(codes: Codes) -> Codes:
    """The bytes with 0 for each digit."""
    import numpy as np

    alike = np.empty_like(codes)
    digit, is_digit = np.empty(CACHED_BYTES, np.uint8), np.empty(CACHED_BYTES, np.bool_)
    for at in range(0, len(codes), CACHED_BYTES):
        part = codes[at : at + CACHED_BYTES]
        n = len(part)
        np.subtract(part, ZERO, out=digit[:n])
        np.less(digit[:n], 10, out=is_digit[:n])
        np.multiply(digit[:n], is_digit[:n].view(np.uint8), out=digit[:n])
        np.subtract(part, digit[:n], out=alike[at : at + n])
    return alike


def viewed(codes: Codes, starts: Ints, length: Ints, is_null: Flags | None = None) -> pl.Series:
    """Parts of a text as a column that looks into it: nothing of them is copied. ``codes`` has
    ``MAX_WITHIN`` bytes behind the last part.

    As Arrow's columnar format has views of strings: of 16 bytes each, a length, and the text itself
    up to 12 bytes, else its first four, the number of its buffer and where it begins there.
    """
    import numpy as np
    import polars as pl
    import pyarrow as pa

    is_valid = None
    if is_null is not None and is_null.any():
        starts, length = np.where(is_null, 0, starts), np.where(is_null, 0, length)
        is_valid = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    views = np.empty((len(starts), 4), np.int32)
    views[:, 0] = length
    views[:, 1] = np.ndarray(len(codes) - 3, "<i4", codes.data, strides=(1,))[starts]
    views[:, 2] = 0
    views[:, 3] = starts
    short = np.flatnonzero(length <= MAX_WITHIN)
    if len(short):
        count = len(codes) - MAX_WITHIN + 1
        windows = np.ndarray(count, f"V{MAX_WITHIN}", codes.data, strides=(1,))
        within = windows[starts[short]].view(np.uint8).reshape(-1, MAX_WITHIN)
        within *= np.tri(MAX_WITHIN + 1, MAX_WITHIN, -1, np.uint8)[length[short]]
        views[short, 1:] = within.view(np.int32)
    buffers = [is_valid, pa.py_buffer(views), pa.py_buffer(codes)]
    return pl.Series(pa.Array.from_buffers(pa.string_view(), len(starts), buffers))


def _is_utf8_whole(text: bytes) -> bool:
    """The same of a text of megabytes, without a copy of it."""
    import numpy as np
    import pyarrow as pa

    ends = np.array([0, len(text)], np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(text)]
    try:
        pa.Array.from_buffers(pa.large_string(), 1, buffers).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


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
