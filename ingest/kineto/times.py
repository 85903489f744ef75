"""Microseconds as JSON writes them to nanoseconds as integers, without loss.

A double below 2^43 has steps of at most 2^-10 us = 0.98 ns, so the double nearest to a decimal
with three digits is off by at most 0.49 ns and rounding recovers the decimal. Integers are exact
up to 2^53. Anything else (an epoch with a fraction, text, exponents) is read as decimal text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FRACTION_EXACT_US = 2.0**43
INTEGER_EXACT_US = 2.0**53
TIME_LIMIT_NS = 2**62
"""Times from here on (the year 2116) cannot be meant, and would overflow when added."""

_PLAIN = r"^-?([0-9]{1,15}|[1-8][0-9]{15})(\.[0-9]{1,3})?$"

MAX_TEXT = 64
"""Characters of a number; longer ones cannot be a time."""

MAX_DUR_NS = 24 * 3600 * 10**9
"""Longest duration that is believed; profiler windows last seconds to minutes."""


def plain(
    ts: Sequence[float], dur: Sequence[float | None]
) -> tuple[array[float], array[float]] | None:
    """Microseconds as doubles, where those carry them, all are there, and none is remarkable.

    Nearly always: times of zero or less and durations of more than a day get a closer look.
    """
    try:
        us = array("d", ts), array("d", cast("Sequence[float]", dur))  # a null raises
    except (TypeError, OverflowError):
        return None
    start, length = (np.frombuffer(values) for values in us)
    are_sure = (
        start.min() > 0
        and start.max() < FRACTION_EXACT_US
        and length.min() >= 0
        and length.max() <= MAX_DUR_NS / 1000
    )
    return us if are_sure else None


def from_doubles(us: npt.NDArray[np.float64]) -> Int64s:
    """Nanoseconds of microseconds below ``FRACTION_EXACT_US``, or whole ones."""
    whole = np.floor(us)
    ns = np.rint((us - whole) * 1000.0).astype(np.int64)
    ns += whole.astype(np.int64) * 1000
    return ns


def from_numbers(values: Sequence[int | float | None]) -> tuple[Int64s, Bools] | None:
    """Nanoseconds of decoded JSON numbers, and which were there; None if inexact as doubles."""
    try:
        us = np.array(array("d", values))  # type: ignore[type-var]  # a null raises
    except TypeError:  # null among them; several times slower
        try:
            us = np.array(values, dtype=np.float64)
        except OverflowError:  # and one that no double holds
            return None
    except OverflowError:
        return None
    known = ~np.isnan(us)
    if not known.all():
        us = np.where(known, us, 0.0)
    top = float(np.max(np.abs(us), initial=0.0))
    if top >= FRACTION_EXACT_US:
        if not top < INTEGER_EXACT_US:
            return None
        # A double up there may be whole only because its fraction was rounded away.
        if float in set(map(type, values)):  # not one by one where all are integers
            above = np.flatnonzero(np.abs(us) >= FRACTION_EXACT_US).tolist()
            if any(type(values[i]) is float for i in above):
                return None
    return from_doubles(us), known


def from_texts(values: Sequence[bytes | None]) -> tuple[Int64s, Bools]:
    """Nanoseconds of JSON numbers or strings as the file has them, and which could be read."""
    import pyarrow.compute as pc  # what few files need should cost only them

    column = pa.array([_clean(v) for v in values], pa.string())
    # Arrow 26 crashes when it casts an absurd exponent: it only gets what is plainly a decimal.
    is_plain = pc.fill_null(pc.match_substring_regex(column, _PLAIN), False)
    exact = pc.cast(pc.if_else(is_plain, column, None), pa.decimal128(22, 3))
    scaled = pc.cast(pc.multiply(exact, pa.scalar(Decimal(1000), pa.decimal128(4, 0))), pa.int64())
    known: Bools = np.array(is_plain)
    ns: Int64s = np.array(scaled.fill_null(0))
    for i in np.flatnonzero(~known).tolist():
        parsed = _nanoseconds(column[i].as_py())
        ns[i] = parsed or 0
        known[i] = parsed is not None
    return np.clip(ns, -TIME_LIMIT_NS, TIME_LIMIT_NS), known


def _clean(value: bytes | None) -> str | None:
    if value is None or len(value) > MAX_TEXT:
        return None
    text = value.decode("ascii", "replace").strip().strip('"').strip()
    return text if text and text != "null" else None


def _nanoseconds(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        number = Decimal(text)
        if not number.is_finite():
            return None
        if number.adjusted() > 20:
            return TIME_LIMIT_NS if number > 0 else -TIME_LIMIT_NS
        if number.adjusted() < -30:
            return 0
        ns = int((number * 1000).to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, ValueError):
        return None
    return max(-TIME_LIMIT_NS, min(ns, TIME_LIMIT_NS))
