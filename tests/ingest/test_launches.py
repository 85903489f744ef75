"""Which launch call started each piece of work, where several share a correlation."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.ingest.traces import launches as module
from tracekit.ingest.traces.launches import Launches, LaunchFile

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


@given(
    st.lists(st.lists(st.tuples(FEW, MOMENT, MOMENT, FEW), max_size=9), max_size=6),
    st.lists(st.lists(st.tuples(st.none() | FEW, MOMENT), max_size=9), max_size=3),
    st.integers(1, 6),
)
def test_calls_in_a_file_are_those_in_memory(
    batches: list[list[tuple[int, int, int, int]]],
    work: list[list[tuple[int | None, int]]],
    piece_rows: int,
) -> None:
    """Whatever order their correlations come in, and however often one is asked for."""
    memory, file = Launches(), LaunchFile()
    with mock.patch.object(module, "PIECE_ROWS", piece_rows):
        for batch in batches:
            calls = np.array(batch, np.int64).reshape(-1, 4).T
            columns = (calls[0], calls[1], calls[2], calls[3], calls[3])
            memory.add(*columns)
            file.add(*columns)
    memory.finish()
    file.finish()
    for asked in work:
        wanted = pa.chunked_array([pa.array([c for c, _ in asked], pa.int64())])
        before = np.array([t for _, t in asked], np.int64)
        rows, found = memory.find(wanted, before)
        called = file.find(wanted, before)
        assert called.is_found.tolist() == found.tolist()
        for given_column, column in zip(called, memory.columns()[1:], strict=False):
            if len(column):
                assert given_column[found].tolist() == column[rows][found].tolist()
    file.close()


def test_of_a_long_file_only_the_calls_asked_for_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of a hundred, and the one that stands for what has none."""
    monkeypatch.setattr(module, "PIECE_ROWS", 10)
    file = LaunchFile()
    numbers = np.arange(100, dtype=np.int64)
    for first in range(0, 100, 10):
        part = numbers[first : first + 10]
        file.add(part, part * 10, part * 10 + 5, part, part)
    file.finish()
    finished: list[int] = []
    finish = Launches.finish

    def watched(self: Launches) -> None:
        finish(self)
        finished.append(len(self.start))

    monkeypatch.setattr(Launches, "finish", watched)
    wanted = pa.chunked_array([pa.array([97, None, 3], pa.int64())])
    called = file.find(wanted, np.array([980, 980, 980]))
    assert called.is_found.tolist() == [True, False, True]
    assert called.start[[0, 2]].tolist() == [970, 30]
    assert finished == [3]
    file.close()
