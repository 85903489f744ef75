"""Which launch call started each piece of work, where several share a correlation."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tracekit.ingest.traces.launches import Launches

FEW = st.integers(0, 4)
MOMENT = st.integers(0, 30)


@given(
    st.lists(st.tuples(FEW, MOMENT), max_size=40),
    st.lists(st.tuples(st.none() | FEW, MOMENT), max_size=20),
)
def test_the_last_call_that_began_before_the_work_did(
    calls: list[tuple[int, int]], work: list[tuple[int | None, int]]
) -> None:
    """As searched one by one; where all began later, the first of them."""
    launches = Launches()
    for shared, start in calls:
        of_call = [np.array([v], np.int64) for v in (shared, start, start + 1, 1, 1)]
        launches.add(*of_call)
    launches.finish()
    wanted = pa.chunked_array([pa.array([c for c, _ in work], pa.int64())])
    rows, found = launches.find(wanted, np.array([t for _, t in work], np.int64))
    for (correlation, moment), row, is_found in zip(work, rows.tolist(), found, strict=True):
        starts = sorted(t for c, t in calls if c == correlation)
        assert is_found == bool(starts)
        if starts:
            earlier = [t for t in starts if t <= moment]
            assert launches.correlation[row] == correlation
            assert launches.start[row] == (earlier[-1] if earlier else starts[0])


def test_of_calls_that_began_together_the_last() -> None:
    launches = Launches()
    one = np.ones(4, np.int64)
    launches.add(one, np.array([5, 5, 5, 9]), np.array([6, 7, 8, 10]), one, one)
    launches.finish()
    wanted = pa.chunked_array([pa.array([1, 1, 1, 2])])
    rows, found = launches.find(wanted, np.array([4, 5, 9, 9]))
    assert rows.tolist() == [0, 2, 3, 0]
    assert found.tolist() == [True, True, True, False]
