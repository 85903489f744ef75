"""What patterns find in lines of few shapes: text, or numbers, of thousands of lines at once.

A pattern that tells no digit from another finds its groups in the same places of all lines of one
shape: Python's ``re`` seeks them once in each, and the lines' bytes there say the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tracekit.ingest.steplog import digits
from tracekit.ingest.steplog.words import viewed

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    from tracekit.ingest.steplog.words import Codes, Flags, Ints, Texts

Span = tuple[int, int]
MIN_LINES_PER_SHAPE = 40
"""Python's ``re`` takes as long for a shape as Rust's ``regex`` for 3 to 5 lines, in loops of one's
own for 26, and lets no other thread work meanwhile."""
MAX_SHAPE_BYTES = 4096
"""Longer lines are left to Rust's ``regex``, whose time grows no faster than a line does."""
_WHOLE = re.compile(b"0{1,%d}" % digits.MAX_DIGITS)
_REAL = re.compile(rb"(-?)(0+)(?:\.(0+))?(?:[eE]([-+]?)(0{1,3}))?")
_CLOCK = re.compile(rb"(?:(0{1,5}):)?00:00")
_MINUTES_BYTES = len("12:34")


class Sought(NamedTuple):
    """A pattern, and the names of its groups by their numbers."""

    pattern: re.Pattern[str]
    names: tuple[tuple[int, str], ...]
    most_chars: int = MAX_SHAPE_BYTES
    """It is sought in a line's first so many characters."""


def sought(pattern: str, name: str = "", most_chars: int = MAX_SHAPE_BYTES) -> Sought:
    """A pattern whose first group has this name, or whose groups have names of their own."""
    compiled = re.compile(pattern)
    names = ((1, name),) if name else tuple((n, group) for group, n in compiled.groupindex.items())
    return Sought(compiled, names, most_chars)


def parts_of(texts: Texts, at: Ints, patterns: Sequence[Sought]) -> Parts | None:
    """What patterns find in some of the texts; None where their shapes are not few, or too long."""
    import numpy as np

    if texts.spans is None or texts.shaped is None:
        return None
    (codes, starts, length), (shapes, which) = texts.spans, texts.shaped
    which = which[at]
    is_asked = np.bincount(which, minlength=shapes.len()) > 0
    asked, which = np.flatnonzero(is_asked), (np.cumsum(is_asked) - 1)[which]
    if len(asked) * MIN_LINES_PER_SHAPE > len(at) or length[at].max() > MAX_SHAPE_BYTES:
        return None
    told = shapes.gather(asked).to_list()
    places = [_places(text, patterns) for text in told]
    return Parts(codes, starts[at], which, [text.encode() for text in told], places)


def _places(text: str, patterns: Sequence[Sought]) -> dict[str, Span]:
    """From which byte to which each name's group stands; the first pattern that finds it counts."""
    places: dict[str, Span] = {}
    for pattern, names, most_chars in patterns:
        match = pattern.search(text, 0, most_chars)
        if match is None:
            continue
        for number, name in names:
            begin, end = match.span(number)
            if begin >= 0 and name not in places:
                if not text.isascii():
                    begin, end = len(text[:begin].encode()), len(text[:end].encode())
                places[name] = begin, end
    return places


class Parts:
    """Named parts of lines."""

    def __init__(
        self, codes: Codes, starts: Ints, which: Ints, shapes: Sequence[bytes],
        places: Sequence[dict[str, Span]],
    ) -> None:  # fmt: skip
        """Lines that start there in the bytes, which of the shapes each has, and where in each
        shape the parts stand."""
        self._codes, self._starts, self._which = codes, starts, which
        self._shapes, self._places = shapes, places

    def __len__(self) -> int:
        return len(self._starts)

    def has(self, name: str) -> Flags:
        """Which lines have this part."""
        import numpy as np

        return np.array([name in places for places in self._places], np.bool_)[self._which]

    def of(self, is_kept: Flags) -> Parts:
        """Those of some lines."""
        if is_kept.all():
            return self
        starts, which = self._starts[is_kept], self._which[is_kept]
        return Parts(self._codes, starts, which, self._shapes, self._places)

    def text(self, name: str) -> pl.Series:
        """As text; null where a line has none."""
        return viewed(self._codes, *self._bytes(self._spans(name)))

    def whole(self, name: str) -> pl.Series | None:
        """As whole numbers; None where one has another form than digits, or too many of them."""
        if self._forms(name, _WHOLE) is None:
            return None
        starts, length, is_none = self._bytes(self._spans(name))
        return _with_nulls(digits.whole(self._codes, starts, length), is_none)

    def real(self, name: str) -> pl.Series | None:
        """As floats, to the last bit what reading their text gives; None where one is no plain
        decimal, or has too many digits for that."""
        import numpy as np

        forms = self._forms(name, _REAL)
        if forms is None:
            return None
        before, behind, exponent = (
            self._bytes([form and _span(form, n) for form in forms]) for n in (2, 3, 5)
        )
        if (before[1] + behind[1]).max(initial=0) > digits.MAX_EXACT_DIGITS:
            return None
        number = digits.whole(self._codes, *before[:2])
        if behind[1].any():
            number = number * 10 ** behind[1] + digits.whole(self._codes, *behind[:2])
        power = -behind[1]
        if exponent[1].any():
            signs = np.array([-1 if form and form[4] == b"-" else 1 for form in forms])
            power += signs[self._which] * digits.whole(self._codes, *exponent[:2])
        value = digits.scaled(number, power)
        if value is not None and any(form and form[1] for form in forms):
            value *= np.array([-1.0 if form and form[1] else 1.0 for form in forms])[self._which]
        return None if value is None else _with_nulls(value, before[2])

    def behind_point(self, name: str, digits_count: int) -> Ints:
        """Digits behind a decimal point, as whole numbers of the unit of so many of them; 0 where
        there are none."""
        starts, length, _ = self._bytes(self._spans(name))
        return digits.whole(self._codes, starts, length) * 10 ** (digits_count - length)

    def clock_s(self, name: str, *, is_of_day: bool = False) -> pl.Series | None:
        """A clock's seconds, null where a line has none, or none of a day where it is to be one's;
        None where one is longer than ``12345:34:56``."""
        forms = self._forms(name, _CLOCK)
        if forms is None:
            return None
        starts, length, is_none = self._bytes(self._spans(name))
        most = length.max(initial=0)
        if most > digits.WORD_BYTES:
            starts, length = starts + length - _MINUTES_BYTES, length.clip(max=_MINUTES_BYTES)
        hours, minutes, seconds = digits.clocks(self._codes, starts, length)
        if most > digits.WORD_BYTES:
            before, count, _ = self._bytes([form and _span(form, 1) for form in forms])
            hours = digits.whole(self._codes, before, count)
        if is_of_day:
            is_none |= (hours >= 24) | (minutes >= 60) | (seconds >= 60)
        return _with_nulls((hours * 60 + minutes) * 60 + seconds, is_none)

    def _spans(self, name: str) -> list[Span | None]:
        """Of each shape, where the part stands."""
        return [places.get(name) for places in self._places]

    def _forms(self, name: str, form: re.Pattern[bytes]) -> list[re.Match[bytes] | None] | None:
        """Of each shape, how its part has the form; None where one has another."""
        spans = self._spans(name)
        said = [
            span and form.fullmatch(shape, *span)
            for shape, span in zip(self._shapes, spans, strict=True)
        ]
        return said if all(s or not span for s, span in zip(said, spans, strict=True)) else None

    def _bytes(self, spans: Sequence[Span | None]) -> tuple[Ints, Ints, Flags]:
        """Of each line, where the bytes of its shape's span begin, how many they are, and whether
        there is none."""
        import numpy as np

        begin, end = np.array([span or (-1, -1) for span in spans], np.int64).T
        starts = np.take(begin, self._which)
        is_none = starts < 0
        starts += self._starts
        return starts, np.take(end - begin, self._which), is_none


def _span(form: re.Match[bytes], group: int) -> Span | None:
    return form.span(group) if form[group] else None


def _with_nulls(values: Ints | NDArray[np.float64], is_none: Flags) -> pl.Series:
    """A column of numbers, null where there is none."""
    import polars as pl
    import pyarrow as pa

    return pl.Series(pa.array(values, mask=is_none) if is_none.any() else values)
