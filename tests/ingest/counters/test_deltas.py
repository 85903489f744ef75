"""Deltas of cumulative counters: wrap, reset and saturation told apart, in SQL as in Python."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soaks import examples
from tracekit import catalog
from tracekit.derive.readings import of_one_collector
from tracekit.ingest.counters.deltas import Delta, deltas
from tracekit.ingest.counters.gpu_words import is_blank

WRAP = 2**32


@pytest.mark.parametrize(
    ("readings", "limit", "expected"),
    [
        ([], None, []),
        ([5], None, [Delta(None)]),
        ([5, 5, 9], None, [Delta(None), Delta(0), Delta(4)]),
        ([WRAP - 10, 20], None, [Delta(None), Delta(30, "wrap")]),
        # It was above 32 bits before: no 32-bit counter, so it was reset.
        (
            [WRAP + 10, WRAP - 10, 20],
            None,
            [Delta(None), Delta(None, "reset"), Delta(None, "reset")],
        ),
        ([1000, 20, 30], None, [Delta(None), Delta(None, "reset"), Delta(10)]),
        ([2**63, 2**63 + 3], None, [Delta(None), Delta(3)]),
        (
            [65530, 65535, 65535],
            65535,
            [Delta(None), Delta(None, "saturated"), Delta(None, "saturated")],
        ),
        ([65535, 0, 4], 65535, [Delta(None), Delta(None, "reset"), Delta(4)]),
    ],
)
def test_a_fall_is_a_wrap_or_a_reset_and_a_full_counter_says_nothing(
    readings: list[int], limit: int | None, expected: list[Delta]
) -> None:
    assert deltas(readings, limit) == expected


OFFSETS = (
    "CREATE TABLE clock_offset (clock_id INTEGER, reference_clock_id INTEGER, error_ns BIGINT)"
)


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """With the macro and a table of readings."""
    with duckdb.connect() as opened:
        opened.execute(OFFSETS)
        catalog.load_macros(opened, "counter_deltas")
        opened.execute(
            "CREATE TABLE rows (key INTEGER, source_id INTEGER, clock_id INTEGER, place BIGINT,"
            " time_ns BIGINT, counted UBIGINT, limit_count BIGINT)"
        )
        yield opened


@settings(max_examples=examples(30, 150))
@given(
    st.lists(
        st.one_of(
            st.integers(0, 300),
            st.integers(WRAP - 300, WRAP + 300),
            st.integers(2**63 - 5, 2**63 + 5),
            st.sampled_from([3865470566, 3865470567, 429496729, 429496730]),
        ),
        max_size=8,
    ),
    st.sampled_from([None, 255]),
)
def test_sql_and_python_agree(
    con: duckdb.DuckDBPyConnection, readings: list[int], limit: int | None
) -> None:
    con.execute("DELETE FROM rows")
    con.executemany(
        "INSERT INTO rows VALUES (1, 0, 0, ?, ?, ?, ?)",
        [[i, i * 10, value, limit] for i, value in enumerate(readings)] or [[0, 0, None, None]],
    )
    found = con.execute(
        "SELECT delta_count, event FROM counter_deltas('rows') ORDER BY time_ns"
    ).fetchall()
    assert found == [tuple(d) for d in deltas(readings, limit)]


def test_a_second_reading_of_one_moment_is_dropped_and_readings_without_time_keep_their_order() -> (
    None
):
    with duckdb.connect() as con:
        con.execute(OFFSETS)
        catalog.load_macros(con, "counter_deltas")
        con.execute(
            "CREATE TABLE rows AS SELECT * FROM (VALUES"
            " ('a', 0, 3, 1, 10, 5, NULL), ('a', 1, 3, 1, 10, 7, NULL),"
            " ('a', 0, 3, 2, 20, 9, NULL), ('b', 0, 3, 2, NULL, 4, NULL),"
            " ('b', 0, 3, 1, NULL, 1, NULL)"
            ") t(key, source_id, clock_id, place, time_ns, counted, limit_count)"
        )
        found = con.execute(
            "SELECT key, place, delta_count FROM counter_deltas('rows') ORDER BY key, place"
        ).fetchall()
    assert found == [("a", 1, None), ("a", 2, 4), ("b", 1, None), ("b", 2, 3)]


Readings = list[tuple[int, int, int]]
"""Source, clock and time."""


def _one_collector(readings: Readings, compared: set[int]) -> set[int]:
    """Which readings SQL keeps, by their positions."""
    with duckdb.connect() as con:
        con.execute(OFFSETS)
        for clock in compared:
            con.execute("INSERT INTO clock_offset VALUES (?, ?, 1)", [clock, min(compared)])
        catalog.load_macros(con, "one_collector")
        con.execute(
            "CREATE TABLE rows (key INTEGER, source_id INTEGER, clock_id INTEGER, place BIGINT,"
            " time_ns BIGINT, counted UBIGINT, limit_count BIGINT)"
        )
        con.executemany(
            "INSERT INTO rows VALUES (1, ?, ?, ?, ?, 0, NULL)",
            [[s, clock, i, t] for i, (s, clock, t) in enumerate(readings)],
        )
        return {i for (i,) in con.execute("SELECT place FROM one_collector('rows')").fetchall()}


@pytest.mark.parametrize(
    ("readings", "compared", "kept"),
    [
        pytest.param(
            [(0, 0, 0), (0, 0, 10), (0, 0, 20), (1, 1, 5), (1, 1, 15)], set(), {0, 1, 2}, id="two"
        ),
        pytest.param(
            [(0, 0, 0), (0, 0, 20), (1, 0, 5), (1, 0, 15)], set(), {0, 1, 2, 3}, id="one clock"
        ),
        pytest.param(
            [(0, 0, 0), (0, 0, 20), (1, 1, 5), (1, 1, 15)], {0, 1}, {0, 1, 2, 3}, id="compared"
        ),
        pytest.param(
            [(0, 0, 0), (0, 0, 20), (1, 1, 20), (1, 1, 30)], set(), {0, 1, 2, 3}, id="in turn"
        ),
        pytest.param(
            [(0, 0, 0), (0, 0, 9), (1, 1, 5), (1, 1, 15), (2, 0, 10), (2, 0, 20)],
            set(),
            {0, 1, 4, 5},
            id="two files of one against a long one of another",
        ),
    ],
)
def test_of_two_collectors_at_a_time_the_one_that_read_more_counts(
    readings: Readings, compared: set[int], kept: set[int]
) -> None:
    assert _one_collector(readings, compared) == kept


@settings(max_examples=examples(12, 60))
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=1, max_size=12),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
    st.sampled_from([set(), {0, 1}]),
)
def test_sql_and_python_choose_the_same_collector(
    readings: list[tuple[int, int]], clocks: list[int], compared: set[int]
) -> None:
    same = {s: -1 if clock in compared else clock for s, clock in enumerate(clocks)}
    times = np.array([t for _, t in readings])
    chosen = of_one_collector(times, np.array([s for s, _ in readings]), same)
    found = _one_collector([(s, clocks[s], t) for s, t in readings], compared)
    assert found == set(chosen.tolist())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (9223372036854775794, True),
        (9.223372036854775794e18, True),
        (140737488355328.0, True),
        (140737488355329.0, True),
        (140737488355332.0, False),  # a byte counter may stand there
        (2147483632, True),
        (2147483636, False),
        (0.0, False),
        (1.0, False),
    ],
)
def test_blanks_are_told_before_any_scaling(value: float, expected: bool) -> None:
    assert is_blank(value) is expected
