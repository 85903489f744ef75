"""Deltas of cumulative counters: wrap, reset and saturation told apart, in SQL as in Python."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit import catalog
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


@settings(max_examples=150, deadline=None)
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
def test_sql_and_python_agree(readings: list[int], limit: int | None) -> None:
    with duckdb.connect() as con:
        catalog.load_macros(con, "counter_deltas")
        con.execute(
            "CREATE TABLE rows (key INTEGER, source_id INTEGER, place BIGINT, time_ns BIGINT,"
            " counted UBIGINT, limit_count BIGINT)"
        )
        con.executemany(
            "INSERT INTO rows VALUES (1, 0, ?, ?, ?, ?)",
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
        catalog.load_macros(con, "counter_deltas")
        con.execute(
            "CREATE TABLE rows AS SELECT * FROM (VALUES"
            " ('a', 0, 1, 10, 5, NULL), ('a', 1, 1, 10, 7, NULL), ('a', 0, 2, 20, 9, NULL),"
            " ('b', 0, 2, NULL, 4, NULL), ('b', 0, 1, NULL, 1, NULL)"
            ") t(key, source_id, place, time_ns, counted, limit_count)"
        )
        found = con.execute(
            "SELECT key, place, delta_count FROM counter_deltas('rows') ORDER BY key, place"
        ).fetchall()
    assert found == [("a", 1, None), ("a", 2, 4), ("b", 1, None), ("b", 2, 3)]


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
