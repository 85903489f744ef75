"""Times of a trace: the base before or behind the events, texts, relative and corrupt times."""

from __future__ import annotations

import gzip
import threading

import pytest

from kineto_events import kernel, launch, read, step, trace, x
from tracekit.ingest.kineto import base_time

BASE = 1735632360000000000


def test_base_before_and_after_the_events_gives_the_same_times() -> None:
    events = [x("cpu_op", "aten::mm", 4458676522690.655, 156.777)]
    before = read(trace(events, baseTimeNanoseconds=BASE))
    after = read(trace(events, tail={"displayTimeUnit": "ms", "baseTimeNanoseconds": BASE}))
    expected = [(BASE + 4458676522690655, 156777)]
    assert before.rows("host_op", "start_ns", "dur_ns") == expected
    assert after.rows("host_op", "start_ns", "dur_ns") == expected
    assert before.facts["time_basis"] == after.facts["time_basis"] == "epoch"
    assert before.facts["time_resolution_ns"] == 1


@pytest.mark.parametrize("base", [BASE, -BASE, 0, 4 * 10**18, 9 * 10**18])
@pytest.mark.parametrize("far", [0, 1_000, 2**61 // 1000, 2**62 // 1000 - 9_000])
def test_a_base_behind_the_events_decides_as_one_before_them(base: int, far: int) -> None:
    """Rows, counts and facts, also where the sum is beyond what can be meant."""
    events = [
        step(1, 5, 500),
        x("cpu_op", "record_param_comms", 7, 2, Collective_name="allreduce", External_id=3),
        launch(9, 8),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, 30, 9, External_id=3),
        kernel("gemm", 60, 30, 10),
        x("cpu_op", "far", far, 1),
        x("cpu_op", "near", 90, -1),
    ]
    before = read(trace(events, baseTimeNanoseconds=base), chunk=1 << 9)
    after = read(trace(events, tail={"baseTimeNanoseconds": base}), chunk=1 << 9)
    assert after.tables.keys() == before.tables.keys()
    for name in before.tables:
        assert after.rows(name) == before.rows(name)
    assert after.counters == before.counters
    assert after.places == before.places
    assert {**after.facts, "raw_bytes": 0} == {**before.facts, "raw_bytes": 0}
    if base == BASE:
        (first, *_) = before.rows("gpu_op")
        assert first["launch_start_ns"] == BASE + 8_000


def test_rows_do_not_wait_for_a_base_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_time, "HELD_BYTES", 2 << 10)
    found = base_time.BasedSink._scan
    may_end = threading.Event()

    def slow(self: base_time.BasedSink) -> int | None:
        may_end.wait(10)
        return found(self)

    monkeypatch.setattr(base_time.BasedSink, "_scan", slow)
    settle = base_time.BasedSink.find_now
    asked: list[int] = []

    def told(self: base_time.BasedSink, tail: bytes = b"") -> None:
        asked.append(self._held_bytes)
        may_end.set()
        settle(self, tail)

    monkeypatch.setattr(base_time.BasedSink, "find_now", told)
    events = [x("cpu_op", f"op{i}", i, 1) for i in range(100)]
    text = trace(events, tail={"baseTimeNanoseconds": BASE})
    sink = read(text, chunk=1 << 8)
    assert 0 < asked[0] < len(text) / 2
    assert sink.rows("host_op", "start_ns") == [BASE + 1000 * i for i in range(100)]


def test_a_file_whose_rows_can_wait_is_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def scan(self: base_time.BasedSink) -> int | None:
        looked.append(self._held_bytes)
        return BASE

    monkeypatch.setattr(base_time.BasedSink, "_scan", scan)
    monkeypatch.setattr(base_time, "ASK_BYTES", 1 << 10)
    data = trace(
        [x("cpu_op", f"op{i}", i, 1) for i in range(100)], tail={"baseTimeNanoseconds": BASE}
    )
    expected = [BASE + 1000 * i for i in range(100)]
    for packed in (data, gzip.compress(data)):
        assert read(packed, chunk=1 << 10).rows("host_op", "start_ns") == expected
    assert not looked
    monkeypatch.setattr(base_time, "HELD_BYTES", len(data) - 1)
    for packed in (data, gzip.compress(data)):
        assert read(packed, chunk=1 << 10).rows("host_op", "start_ns") == expected
    assert len(looked) == 2


def test_the_last_base_that_is_not_zero_counts_wherever_it_stands() -> None:
    odd = {**x("cpu_op", "a", 5, 1), "args": {"baseTimeNanoseconds": 7}}
    tail = {"baseTimeNanoseconds": BASE, "more": {"baseTimeNanoseconds": 0}}
    assert read(trace([odd], tail=tail)).rows("host_op", "start_ns") == [BASE + 5000]
    filler = [x("cpu_op", "x" * 1000, i, 1) for i in range(5000)]  # more than is kept of its end
    assert read(trace([odd, *filler])).rows("host_op", "start_ns")[0] == 5007


def test_epoch_with_fraction_and_no_base_is_read_as_text() -> None:
    text = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1,'
    text += b' "ts": 1712867402348256.123, "dur": 0.001, "args": {"External id": 3}}]}'
    sink = read(text)
    assert sink.rows("host_op", "start_ns", "dur_ns", "external_id") == [
        (1712867402348256123, 1, 3)
    ]


def test_times_as_strings() -> None:
    sink = read(trace([x("cpu_op", "a", "1712867402348256.123", "2")]))
    assert sink.rows("host_op", "start_ns", "dur_ns") == [(1712867402348256123, 2000)]


def test_integer_epoch_needs_no_base() -> None:
    sink = read(trace([x("cpu_op", "a", 1706850122853863, 17)]))
    assert sink.rows("host_op", "start_ns") == [1706850122853863000]
    assert sink.facts["time_resolution_ns"] == 1000
    assert sink.facts["time_basis"] == "epoch"


def test_small_times_without_base_are_relative() -> None:
    assert read(trace([x("cpu_op", "a", 10, 17)])).facts["time_basis"] == "relative"


def test_corrupt_times_are_counted_and_move_no_window() -> None:
    events = [
        step(1, 1000, 100),
        kernel("k", 0, 0),
        kernel("k", 1010, 18446744073709551.615),
        kernel("k", 1020, -3),
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1030},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 5},
        kernel("k", 1040, 10),
    ]
    sink = read(trace(events))
    assert sink.rows("gpu_op", "start_ns", "dur_ns") == [
        (1020000, 0),
        (1030000, 0),
        (1040000, 10000),
    ]
    assert sink.counters == {
        "kernel_without_time": 1,
        "implausible_duration": 1,
        "negative_duration": 1,
        "missing_duration": 1,
        "event_without_time": 1,
    }
    assert (sink.facts["window_start_ns"], sink.facts["window_end_ns"]) == (1000000, 1100000)
