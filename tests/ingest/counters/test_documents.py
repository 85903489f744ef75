"""Limits of JSON documents of counters."""

from __future__ import annotations

import io
import itertools
import time
import tracemalloc

import pytest

from soaks import soak
from tracekit.ingest.counters import documents
from tracekit.ingest.counters.documents import loads


@pytest.mark.parametrize("shape", soak([b"[]", b"{}", b"0", b'"a"', b"[[]]", b"null"], fast=2))
def test_short_values_without_end_take_no_memory(
    shape: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MAX_VALUES", 300_000)
    text = b"[" + b",".join([shape] * (documents.MAX_VALUES + 10)) + b"]"
    tracemalloc.start()
    started = time.process_time()
    (found,) = documents.documents(io.BytesIO(text))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.value is None
    assert found.problem == "too many values"
    assert peak < 6 * len(text) + (8 << 20)
    assert time.process_time() - started < 20


def test_a_number_of_thousands_of_digits_is_one_bad_value() -> None:
    found = loads(b'{"a": 1, "b": ' + b"9" * 5000 + b', "c": 2.5}')
    assert (found["a"], found["c"]) == (1, "2.5")
    assert found["b"] == "9" * 5000


def test_what_is_no_json_still_raises() -> None:
    for text in (b"{", b"[" * 100_000, b"nope"):
        with pytest.raises(ValueError, match=r"."):
            loads(text)


def test_brackets_are_counted_as_token_by_token() -> None:
    """Every line of up to five bytes that brackets, quotes and backslashes make."""
    differing = [
        line
        for count in range(1, 6)
        for line in map(bytes, itertools.product(b'"[}\\a', repeat=count))
        if documents._depth(line) != documents._depth_by_tokens(line)
    ]
    assert differing == []
    assert documents._depth(b'{"a": [1, "]"], "b": "x"') == 1
    assert documents._depth(b'{"a": [{"b": "x", "c": ["y"]') == 3
