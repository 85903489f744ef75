"""Interval unions in SQL agree with counting nanoseconds."""

from __future__ import annotations

import duckdb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from soaks import examples

INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12)
# The fixture is a database without state of its own between examples.
SHARED_FIXTURE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=examples(50, 150),
)


def _nanoseconds(intervals: list[tuple[int, int]]) -> set[int]:
    return {ns for start, end in intervals for ns in range(start, end)}


def _stretches(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The stretches of time that intervals cover, nanosecond by nanosecond."""
    covered = _nanoseconds(intervals)
    starts = [ns for ns in sorted(covered) if ns - 1 not in covered]
    ends = [ns + 1 for ns in sorted(covered) if ns + 1 not in covered]
    return list(zip(starts, ends, strict=True))


def test_touching_intervals_join_and_empty_ones_vanish(con: duckdb.DuckDBPyConnection) -> None:
    epoch = 1_790_857_026_000_000_001
    _fill(con, "rows", [(0, 5), (5, 9), (20, 30), (40, 40), (epoch, epoch + 7)])
    found = con.execute(
        "SELECT start_ns, end_ns FROM merged_intervals('rows') WHERE key = 'a' ORDER BY start_ns"
    )
    assert found.fetchall() == [(0, 9), (20, 30), (epoch, epoch + 7)]


def _fill(con: duckdb.DuckDBPyConnection, name: str, intervals: list[tuple[int, int]]) -> None:
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE {name} (key VARCHAR, start_ns BIGINT, end_ns BIGINT)"
    )
    rows = [f"('{key}', {start}, {end})" for key in ("a", "b") for start, end in intervals]
    if rows:  # one statement, which takes as long as each of executemany's
        con.execute(f"INSERT INTO {name} VALUES {', '.join(rows)}")


@SHARED_FIXTURE
@given(INTERVALS)
def test_the_union_counts_every_nanosecond_once(
    con: duckdb.DuckDBPyConnection, intervals: list[tuple[int, int]]
) -> None:
    _fill(con, "rows", intervals)
    found = con.execute(
        "SELECT start_ns, end_ns FROM merged_intervals('rows') WHERE key = 'a' ORDER BY start_ns"
    ).fetchall()
    assert found == _stretches(intervals)
    busy = dict(con.execute("SELECT key, busy_ns FROM busy_time('rows')").fetchall())
    assert busy.get("b", 0) == len(_nanoseconds(intervals))


@SHARED_FIXTURE
@given(INTERVALS, INTERVALS)
def test_the_difference_in_sql_is_what_only_the_first_covers(
    con: duckdb.DuckDBPyConnection, whole: list[tuple[int, int]], part: list[tuple[int, int]]
) -> None:
    _fill(con, "whole", whole)
    _fill(con, "part", part)
    found = con.execute(
        "SELECT start_ns, end_ns FROM difference_intervals('whole', 'part') WHERE key = 'a' "
        "ORDER BY start_ns"
    ).fetchall()
    left = _nanoseconds(whole) - _nanoseconds(part)
    assert found == _stretches([(ns, ns + 1) for ns in left])


@SHARED_FIXTURE
@given(INTERVALS, st.lists(st.integers(-5, 35), max_size=5))
def test_covered_time_before_a_moment_counts_what_lies_before_it(
    con: duckdb.DuckDBPyConnection, intervals: list[tuple[int, int]], moments: list[int]
) -> None:
    _fill(con, "rows", intervals)
    con.execute("CREATE OR REPLACE TEMP TABLE moments (key VARCHAR, time_ns BIGINT)")
    if moments:
        con.execute("INSERT INTO moments VALUES " + ", ".join(f"('a', {m})" for m in moments))
    found = con.execute(
        "WITH stretches AS (SELECT key, start_ns, end_ns FROM merged_intervals('rows')) "
        "SELECT time_ns, covered_ns FROM covered_before('stretches', 'moments') ORDER BY time_ns"
    )
    covered = _nanoseconds(intervals)
    expected = [(m, len([ns for ns in covered if ns < m])) for m in sorted(set(moments))]
    assert found.fetchall() == expected
