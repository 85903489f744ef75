"""Columns of what a trace says, where a value is not what the column holds."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tracekit.ingest.traces import columns


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, 7),
        ("7", 7),
        ("stream 7", 7),
        (7.0, 7),
        (7.5, None),
        ("seven", None),
        (True, None),
        (None, None),
        (2**64 - 1, -1),  # -1, printed without a sign
        (2**80, None),
    ],
)
def test_an_id_is_read_as_the_file_spells_it(value: object, expected: int | None) -> None:
    assert columns.as_int(value) == expected


def test_what_does_not_fit_is_null_and_the_rest_is_kept() -> None:
    assert columns.int32s([1, 2**31, None, -(2**31)]).to_pylist() == [1, None, None, -(2**31)]
    lists = columns.int_lists([[1, 2], [1, 2**31], None], pa.int32())
    assert lists.to_pylist() == [[1, 2], None, None]
    assert columns.int_lists([[2**70]], pa.int64()).to_pylist() == [None]


def test_half_a_character_is_replaced() -> None:
    assert columns.texts(["gemm", "\ud800", None]).to_pylist() == ["gemm", "?", None]


def test_a_cache_forgets_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "CACHE_LIMIT", 2)
    squares = columns.Cache(lambda value: value * value)
    assert [squares[n] for n in (1, 2, 3, 1)] == [1, 4, 9, 1]
    assert len(squares) <= 2
