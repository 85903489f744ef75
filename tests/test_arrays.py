"""Numbers between NumPy and Arrow: the same as Arrow's own ways, without them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tracekit import arrays

VALUES: dict[str, np.ndarray] = {
    "int64": np.array([5, -7, 2**62, 0, 9], np.int64),
    "int32": np.array([5, -7, 2**31 - 1, 0, 9], np.int32),
    "int8": np.array([5, -7, 127, 0, 9], np.int8),
    "uint64": np.array([5, 7, 2**64 - 1, 0, 9], np.uint64),
    "bool": np.array([True, False, False, True, True]),
}
NULL = np.array([False, True, False, False, True])


@pytest.fixture(params=sorted(VALUES))
def values(request: pytest.FixtureRequest) -> np.ndarray:
    values: np.ndarray = VALUES[request.param]
    return values


def test_a_column_is_what_arrow_makes_of_the_array(values: np.ndarray) -> None:
    assert arrays.column(values).equals(pa.array(values))
    assert arrays.column(values, NULL).equals(pa.array(values, mask=NULL))
    assert arrays.column(values, NULL).null_count == 2
    assert arrays.column(values, np.zeros(5, np.bool_)).null_count == 0
    assert arrays.column(values[:0]).equals(pa.array(values[:0]))
    many = np.tile(values, 9)
    assert arrays.column(many[::3], np.tile(NULL, 3)).equals(
        pa.array(many[::3], mask=np.tile(NULL, 3))
    )
    arrays.column(many, np.tile(NULL, 9)).validate(full=True)


@pytest.mark.parametrize("first", [0, 1, 3, 11])
def test_what_is_known_and_stored_is_found_wherever_a_column_begins(
    values: np.ndarray, first: int
) -> None:
    column = pa.array(np.tile(values, 4), mask=np.tile(NULL, 4))[first:]
    expected = np.tile(~NULL, 4)[first:]
    assert arrays.known(column).tolist() == expected.tolist()
    assert arrays.known(pa.chunked_array([column, column])).tolist() == [*expected, *expected]
    assert arrays.known(pa.array(values)).all()
    told = arrays.numbers(pa.chunked_array([column, column]), 1).tolist()
    expected = column.fill_null(True if values.dtype == np.bool_ else 1).to_pylist()
    assert told == expected * 2
    assert arrays.numbers(pa.array(values), 1).tolist() == values.tolist()
    rows = [2, 0, 1, 2]
    taken = arrays.taken(pa.chunked_array([column]), rows)
    assert taken.to_pylist() == [column[i].as_py() for i in rows]


def test_columns_without_rows_or_numbers() -> None:
    empty = pa.chunked_array([], pa.int64())
    assert arrays.known(empty).tolist() == arrays.numbers(empty, 0).tolist() == []
    assert arrays.numbers(empty, 0).dtype == np.int64
    assert arrays.ends(empty) is None
    assert arrays.distinct(empty) == []
    nulls = pa.chunked_array([pa.nulls(3, pa.int64())])
    assert arrays.ends(nulls) is None
    assert arrays.distinct(nulls) == []
    assert arrays.numbers(nulls, 4).tolist() == [4, 4, 4]
    assert arrays.known(pa.nulls(2)).tolist() == [False, False]
    assert len(arrays.column(np.zeros(0, np.bool_))) == 0


def test_ends_and_distinct_numbers_look_past_nulls_and_across_chunks() -> None:
    column = pa.chunked_array(
        [
            pa.array([None, 4, 4], pa.int32()),
            pa.array([], pa.int32()),
            pa.array([9, None], pa.int32()),
        ]
    )
    assert arrays.ends(column) == (4, 9)
    assert arrays.distinct(column) == [4, 9]
    assert arrays.distinct(pa.chunked_array([pa.array([7, None, 7])])) == [7]
    # What lies under a null is any number, and none of the column's.
    masked = arrays.column(np.array([1, -(2**63)]), np.array([False, True]))
    assert arrays.ends(masked) == (1, 1)


def test_a_number_is_added_to_all_that_are_known() -> None:
    column = pa.chunked_array([pa.array([1, None]), pa.array([-5])])
    assert arrays.plus(column, 10).to_pylist() == [11, None, 5]


def test_what_32_bits_cannot_hold_is_null() -> None:
    given = np.array([2**31 - 1, 2**31, -(2**31), -(2**31) - 1, arrays.NO_INT32, 0])
    assert arrays.int32s(given).to_pylist() == [2**31 - 1, None, -(2**31), None, None, 0]
    assert arrays.int32s(given).type == pa.int32()


def test_triples_are_lists_of_three() -> None:
    made = arrays.triples(
        np.array([[1, 2, 3], [4, 5, 6]], np.int32), np.array([False, True, False])
    )
    assert made.equals(pa.array([[1, 2, 3], None, [4, 5, 6]], pa.list_(pa.int32())))
    made.validate(full=True)


@pytest.mark.parametrize("copies", [1, arrays.FEW_TEXTS])
def test_texts_are_numbered_as_they_appear(copies: int) -> None:
    texts = pa.array(["b", None, "a", "b"] * copies, pa.string())
    made = arrays.encoded(texts)
    assert made.type == arrays.PACKED
    assert made.dictionary.to_pylist() == ["b", "a"]
    assert made.indices.to_pylist()[:4] == [0, None, 1, 0]
    assert made.equals(texts.dictionary_encode())


def test_a_table_is_cast_only_where_its_types_differ() -> None:
    schema = pa.schema([("b", pa.int32()), ("a", pa.int64())])
    given = pa.table({"a": [1], "b": pa.array([2], pa.int64()), "c": [3]})
    made = arrays.shaped(given, schema)
    assert made.schema == schema
    assert made.to_pylist() == [{"b": 2, "a": 1}]
