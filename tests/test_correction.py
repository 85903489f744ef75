"""Times put right: the same nanosecond in Python and in SQL."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.correction import Correction, corrected, corrected_sql

DAY_NS = 86_400 * 10**9
EPOCH_NS = st.integers(0, 2 * 10**18)
"""Times since the epoch, and small ones that count from an unknown zero."""
CORRECTIONS = st.builds(
    Correction, st.integers(-DAY_NS, DAY_NS), st.floats(-1e-3, 1e-3) | st.just(0.5), EPOCH_NS
)


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


@given(times=st.lists(EPOCH_NS, min_size=1, max_size=20), correction=CORRECTIONS)
def test_python_and_sql_put_a_time_right_alike(
    con: duckdb.DuckDBPyConnection, times: list[int], correction: Correction
) -> None:
    own = np.array(times, np.int64)
    expected = corrected(own, np.full(len(own), 7), {7: correction})
    rows = pa.table({"at": own, **{n: [v] * len(own) for n, v in correction._asdict().items()}})
    con.register("given", rows)
    found = con.execute(f"SELECT {corrected_sql('g.at', 'g')} FROM given g").fetchall()
    assert [at for (at,) in found] == expected.tolist()


def test_an_offset_and_a_drift_from_its_origin_are_added_by_source() -> None:
    times, sources = np.array([1_000, 3_000, 3_000, 3_000]), np.array([1, 1, 2, 3])
    corrections = {1: Correction(5, 0.01, 1_000), 2: Correction(-7), 9: Correction(1)}
    assert corrected(times, sources, corrections).tolist() == [1_005, 3_025, 2_993, 3_000]
    # Half a nanosecond goes to the even one.
    halves = corrected(np.array([1, 3]), np.array([1, 1]), {1: Correction(0, 0.5)})
    assert halves.tolist() == [1, 5]


def test_no_rows_are_none() -> None:
    none = np.array([], np.int64)
    assert corrected(none, none, {3: Correction(1)}).tolist() == []
