"""Times: microseconds with three decimals become nanoseconds without loss."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.ingest.kineto import times

NS = st.integers(min_value=-(10**12), max_value=8_796_093_022_207_999)


def exact(text: str) -> int:
    return int((Decimal(text) * 1000).to_integral_value())


@given(st.lists(NS, min_size=1))
def test_doubles_below_2_43_carry_three_decimals(values: list[int]) -> None:
    """The decimal text of any ns below 2^43 us, read as a double, gives the same ns again."""
    texts = [f"{Decimal(v) / 1000:f}" for v in values]
    result = times.from_numbers([float(t) for t in texts])
    assert result is not None
    assert result[0].tolist() == [exact(t) for t in texts] == values


@given(st.lists(st.integers(-(2**53) + 1, 2**53 - 1), min_size=1))
def test_integers_are_exact(values: list[int]) -> None:
    result = times.from_numbers(values)
    assert result is not None
    assert result[0].tolist() == [v * 1000 for v in values]


@given(st.lists(st.integers(-(10**17), 10**18), min_size=1))
def test_text_is_exact(values: list[int]) -> None:
    texts = [f"{Decimal(v) / 1000:f}" for v in values]
    ns, known = times.from_texts([t.encode() for t in texts])
    assert known.all()
    assert ns.tolist() == values


def test_an_epoch_with_a_fraction_is_not_trusted_to_doubles() -> None:
    assert times.from_numbers([1712867402348256.123]) is None
    assert times.from_numbers([1712867402348256.0]) is None, "the fraction may be rounded away"
    assert times.from_numbers([1712867402348256, 68.0]) is not None
    assert times.from_numbers([1712867402348256, 0.5, 1712867402348257.0]) is None
    assert times.from_numbers([1712867402348256, None, -(2.0**43)]) is None
    assert times.from_numbers([1712867402348256, None, 2.0**43 - 1]) is not None
    assert times.from_numbers([float(2**53)]) is None
    assert times.from_numbers([10**400]) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"1712867402348256.123", 1712867402348256123),
        (b'"1712867402348256.123"', 1712867402348256123),
        (b"1712867402348256", 1712867402348256000),
        (b"0.0004", 0),
        (b"1.5e3", 1500000),
        (b"1.23456", 1235),
        (b"null", None),
        (b"", None),
        (b'"soon"', None),
        (b"1e99999999", times.TIME_LIMIT_NS),
        (b"1e-99999999", 0),
        (b"9" * 100, None),
        (b"NaN", None),
    ],
)
def test_text_of_all_kinds(text: bytes, expected: int | None) -> None:
    ns, known = times.from_texts([text])
    assert (int(ns[0]) if known[0] else None) == expected


def test_missing_numbers_are_said_to_be_missing() -> None:
    result = times.from_numbers([None, 2.5])
    assert result is not None
    assert result[0].tolist() == [0, 2500]
    assert result[1].tolist() == [False, True]


def test_a_number_that_no_double_holds_is_read_as_text_or_not_at_all() -> None:
    huge = 10**400
    assert times.plain([huge], [1]) is None
    assert times.plain([1], [huge]) is None
    assert times.from_numbers([huge]) is None
    assert times.from_numbers([None, huge]) is None
    assert times.plain([1.0], [1.7e308]) is None  # said without a warning of overflow
    ns, known = times.from_texts([b"1e400", b"-1e300", b"9" * 63, b"1" * 400])
    assert ns.tolist() == [times.TIME_LIMIT_NS, -times.TIME_LIMIT_NS, times.TIME_LIMIT_NS, 0]
    assert known.tolist() == [True, True, True, False]
    # Of sixteen digits some have no place in 64 bits of nanoseconds; times of day have.
    texts = [
        b"9300000000000000",
        b"-9999999999999999.999",
        b"8999999999999999.5",
        b"1784602800000000",
    ]
    ns, known = times.from_texts(texts)
    limit = times.TIME_LIMIT_NS
    assert ns.tolist() == [limit, -limit, limit, 1_784_602_800_000_000_000]
    assert known.all()
