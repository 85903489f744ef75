"""Times as collectors, ``date`` and file names print them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest

from tracekit.ingest.counters import times

NOON_NS = int(datetime(2026, 7, 21, 12, 0, 1, tzinfo=UTC).timestamp()) * 10**9


@pytest.mark.parametrize(
    "text",
    [
        "Tue Jul 21 12:00:01 UTC 2026",  # date in the C locale
        "Tue Jul 21 12:00:01 PM UTC 2026",  # en_US
        "Tue, 21 Jul 2026 12:00:01 GMT",  # an HTTP header, date -R
        "Tue, 21 Jul 2026 14:00:01 +0200",
        "21 Jul 2026, 12:00:01 UTC",
        "2026-07-21T14:00:01+02:00",
        "20260721T120001Z",
        "1784635201",
        "1784635201000",
    ],
)
def test_one_moment_in_many_spellings(text: str) -> None:
    ns = times.parse(text)
    assert ns == NOON_NS
    assert not isinstance(ns, times.Local)


def test_fractions_are_kept_and_half_days_begin_at_twelve() -> None:
    assert times.parse("Tue Jul 21 12:00:01.250000000 UTC 2026") == NOON_NS + 250_000_000
    assert times.parse("Tue Jul 21 12:00:01 AM UTC 2026") == NOON_NS - 12 * 3600 * 10**9


@pytest.mark.parametrize(
    "text",
    [
        "Tue Jui 21 12:00:01 UTC 2026",  # a month of no English
        "Tue Jul 21 12:00:01 UTC",  # no year
        "Tue Feb 30 12:00:01 UTC 2026",
        "Tue Jul 21 12:00:01 CEST 2026",  # a zone that several offsets share
        "2026-07-21T12:00:01+99:00",
        "2026-13-21T12:00:01Z",
        "1784635201000000000000",
    ],
)
def test_what_is_no_moment_is_none(text: str) -> None:
    assert times.parse(text) is None


def test_without_a_zone_it_is_local() -> None:
    assert isinstance(times.parse("2026-07-21 12:00:01"), times.Local)


@pytest.mark.parametrize(
    "text",
    [
        "21.07.2026 12:00:01",  # German
        "21.7.2026, 12:00:01,000",
        "07/21/2026 12:00:01 PM",  # US
        "7/21/2026, 12:00:01 PM",
        "07/21/26 12:00:01",  # iostat -t in the C locale
        "21/07/2026 12:00:01",  # British
    ],
)
def test_a_day_that_can_be_no_month_says_which_is_which(text: str) -> None:
    ns = times.parse(text)
    assert ns == times.local_ns(text) == NOON_NS
    assert isinstance(ns, times.Local)


def test_half_days_of_a_countrys_dates_begin_at_twelve() -> None:
    assert times.parse("7/21/2026 12:00:01 AM") == NOON_NS - 12 * 3600 * 10**9
    assert times.parse("7/21/2026 1:00:01 PM") == NOON_NS + 3600 * 10**9
    assert times.parse("7/21/2026 13:00:01 PM") is None


@pytest.mark.parametrize(
    "text",
    ["07/08/2026 12:00:01", "21/21/2026 12:00:01", "31.02.2026 12:00:01", "7/21/2026"],
)
def test_a_day_that_may_be_a_month_is_no_time(text: str) -> None:
    assert times.parse(text) is None and times.local_ns(text) is None


def test_a_day_that_is_its_month_is_one_either_way() -> None:
    assert times.parse("07/07/2026 12:00:01") == NOON_NS - 14 * 86_400 * 10**9


@pytest.mark.parametrize(
    ("line", "is_stamp"),
    [
        ("=== Tue Jul 21 12:00:01 UTC 2026 ===", True),
        ("timestamp: 2026-07-21T12:00:01Z", True),
        ("collected_at: 2026-07-21T12:00:01Z", True),
        ("collected_at=1784635201", True),
        ("collected_at: nowhere", False),
        ("2026-07-21T12:00:01Z eth0 up", False),
        ("short", False),
    ],
)
def test_a_line_that_states_only_a_time_is_a_mark(line: str, is_stamp: bool) -> None:
    expected: Any = NOON_NS if is_stamp else None
    assert times.of_line(line) == expected


USUAL = (
    "1784635201", " 1784635201.25 ", "1784635201.1234567891", "1784635201000", "1784635201000.5",
    "1784635201000000", "1784635201000000000", "2026-07-21T12:00:01Z",
    "2026/07/21 12:00:01.123456789", "2026-07-21_12:00:01,5 UTC", "2000-02-29 00:00:00",
)  # fmt: skip
UNUSUAL = (
    None, "", "N/A", "timestamp", "0784635201", "946684799", "4102444800", "95264763369.19",
    "38179446294224", "57799984386160165", "9999999999999999999", "12345678",
    "2026-02-30 12:00:01", "2026-07-21 24:00:01", "2026-07-21 12:00:60", "1999-12-31 23:59:59",
    "2026-07-21T12:00:01+02:00", "2026-07-21 12:00:01.1234567891", "20260721T120001Z",
    "1.7846352e+09", "7/21/2026 12:00:01",
)  # fmt: skip


def test_of_many_at_once_the_usual_ones_are_known_and_as_each_alone() -> None:
    texts = [*USUAL, *UNUSUAL]
    moments, is_known, is_local = times.parse_usual(pl.Series(texts, dtype=pl.String))
    assert is_known.tolist() == [True] * len(USUAL) + [False] * len(UNUSUAL)
    for text, ns, local in zip(USUAL, moments.tolist(), is_local.tolist(), strict=False):
        alone = times.parse(text)
        assert (alone, isinstance(alone, times.Local)) == (ns, local), text
