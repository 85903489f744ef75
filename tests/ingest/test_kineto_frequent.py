"""What calls the native reader, with a stand-in for its library and, where it is built, with it."""

from __future__ import annotations

import ctypes
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_sink import source_of

from both_readers import PLAIN, file_of, made_file, read, same
from native_stand_in import StandIn
from soaks import examples
from tracekit import native
from tracekit.ingest import files
from tracekit.ingest.kineto import frequent, stream, trace
from tracekit.ingest.kineto.times import TIME_LIMIT_NS
from tracekit.ingest.traces.columns import texts

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "fixtures" / "recorded"


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library as if it had not been asked for yet."""
    monkeypatch.delenv("TRACEKIT_NATIVE", raising=False)
    monkeypatch.setattr(frequent, "_KEPT_FOR_LATER", {})
    native._loaded.cache_clear()
    yield
    native._loaded.cache_clear()


@pytest.fixture(params=["stand-in", "native"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, unloaded: None) -> Any:
    """The library that is loaded."""
    if request.param == "stand-in":
        standing_in = StandIn()
        monkeypatch.setattr(ctypes, "CDLL", lambda _: standing_in)
    elif not native.LIBRARY.exists():
        pytest.skip("the native reader is not built here (make native)")
    loaded = native.library()
    assert loaded is not None
    return loaded


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each batch that the native reader was asked for was taken."""
    answers: list[bool] = []
    asked = trace.TraceReader._take_frequent

    def told(self: trace.TraceReader, *given: Any) -> bool:
        answers.append(asked(self, *given))
        return answers[-1]

    monkeypatch.setattr(trace.TraceReader, "_take_frequent", told)
    return answers


@pytest.mark.parametrize("stacks", [False, True])
def test_a_recorded_trace_gives_equal_rows(stacks: bool, library: Any, taken: list[bool]) -> None:
    (path, *_) = sorted((RECORDED / "ddp-repeated-schedule").glob("rank0.*.json.gz"))
    same(files.source_file(path), stacks=stacks)
    assert taken and all(taken)


@settings(
    max_examples=examples(20, 300), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.01, 0.1]), st.sampled_from([300, 1 << 18])
)
def test_made_traces_give_equal_rows(
    library: Any, taken: list[bool], seed: int, oddness: float, chunk: int
) -> None:
    taken.clear()
    rng = random.Random(seed)  # noqa: S311 - no secret
    base_ns = rng.choice([None, 0, 1735632360000000000, 2**61, -(2**61), 2**62])
    data = made_file(rng, rng.randrange(1, 60), oddness, base_ns)
    same(source_of(data), stacks=bool(seed & 1), chunk_bytes=chunk)
    assert any(taken) or oddness or base_ns


def test_epoch_times_with_a_fraction_are_exact(library: Any, taken: list[bool]) -> None:
    text = json.dumps({"traceEvents": [PLAIN]}).replace("10.5", "1732700000123456.789")
    sink = same(source_of(text.encode()))
    assert sink.rows("host_op", "start_ns") == [1732700000123456789]
    assert taken == [True]


def test_a_name_with_escapes_is_what_it_says(library: Any, taken: list[bool]) -> None:
    name = 'lambda: "a\\b"\n'
    assert same(file_of([{**PLAIN, "name": name}])).rows("host_op", "name") == [name]
    assert taken == [True]


def test_names_stay_known_from_file_to_file(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    whole = frequent.FrequentEvents

    def counted(*given: Any, **more: Any) -> frequent.FrequentEvents:
        made.append(whole(*given, **more))
        return made[-1]  # type: ignore[no-any-return]

    monkeypatch.setattr(frequent, "FrequentEvents", counted)
    first = [PLAIN, {**PLAIN, "name": "aten::mul"}]
    second = [{**PLAIN, "name": "aten::mul"}, {**PLAIN, "name": "aten::sub"}]
    assert same(file_of(first)).rows("host_op", "name") == ["aten::add", "aten::mul"]
    assert same(file_of(second)).rows("host_op", "name") == ["aten::mul", "aten::sub"]
    (kept,) = made
    assert kept.host_names.values == ["aten::add", "aten::mul", "aten::sub"]


def test_too_many_names_are_forgotten_on_the_way(
    library: Any, monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    monkeypatch.setattr(frequent, "CACHE_LIMIT", 3)
    events = [{**PLAIN, "name": f"op {i % 11}", "ts": 1 + i} for i in range(60)]
    sink = same(file_of(events), chunk_bytes=500)
    assert sink.rows("host_op", "name") == [f"op {i % 11}" for i in range(60)]
    assert all(taken)
    assert all(len(kept.host_names.values) < 11 for kept in frequent._KEPT_FOR_LATER.values())


def test_a_file_of_which_little_can_be_taken_is_left_to_python(
    library: Any, taken: list[bool]
) -> None:
    events = [{**PLAIN, "ts": "x" if i % 2 else i + 1.5} for i in range(4000)]
    same(file_of(events), chunk_bytes=10_000)
    assert len(taken) < 20
    assert not any(taken)


@pytest.fixture
def long_taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether several chunks that the native reader was asked for at once were taken."""
    answers: list[bool] = []
    asked = trace.TraceReader._take_long

    def told(self: trace.TraceReader, *given: Any) -> bool:
        answers.append(asked(self, *given))
        return answers[-1]

    monkeypatch.setattr(trace.TraceReader, "_take_long", told)
    return answers


def test_several_chunks_are_read_at_once(
    library: Any, taken: list[bool], long_taken: list[bool]
) -> None:
    source = file_of([{**PLAIN, "ts": i + 1} for i in range(600)])
    sink = same(source, chunk_bytes=2000)
    assert len(sink.rows("host_op")) == 600
    assert all(taken) and all(long_taken)
    assert len(long_taken) == source.file_bytes // 2000 // stream.LONG_CHUNKS
    assert len(taken) - len(long_taken) <= stream.LONG_CHUNKS


def test_long_batches_that_python_may_cut_elsewhere_are_not_offered_for_ever(
    library: Any, long_taken: list[bool]
) -> None:
    nested: dict[str, Any] = {"other": [{}] * (stream.CANDIDATES + 1)}
    source = file_of([{**PLAIN, "ts": i + 1, "args": nested} for i in range(900)])
    sink = same(source, chunk_bytes=2000)
    assert len(sink.rows("host_op")) == 900
    assert not any(long_taken)
    # One that would end within an event is not even asked for.
    assert 1 <= len(long_taken) <= stream.LONG_REFUSALS
    assert source.file_bytes // 2000 // stream.LONG_CHUNKS > stream.LONG_REFUSALS


def test_a_chunk_in_which_no_event_begins_is_read_alone(
    library: Any, long_taken: list[bool]
) -> None:
    events = [{**PLAIN, "ts": i + 1} for i in range(600)]
    events[300] = {**events[300], "args": {"other": "x" * 4000}}
    sink = same(file_of(events), chunk_bytes=2000)
    assert len(sink.rows("host_op")) == 600
    assert long_taken.count(False) == 1
    assert long_taken.count(True) > 5


def test_text_that_is_no_json_is_left_to_python(library: Any, taken: list[bool]) -> None:
    text = json.dumps({"traceEvents": [PLAIN, {**PLAIN, "ts": 20}]}).replace(
        '"ts": 20', '"ts": 2 0'
    )
    assert same(source_of(text.encode())).rows("host_op", "start_ns") == [10_500]
    assert False in taken


def test_times_that_a_base_carries_too_far_are_left_to_python(
    library: Any, taken: list[bool]
) -> None:
    data = {"baseTimeNanoseconds": TIME_LIMIT_NS - 1, "traceEvents": [PLAIN]}
    same(source_of(json.dumps(data).encode()))
    assert not any(taken)


def test_a_frame_of_python_and_memory_s_events_become_rows(library: Any, taken: list[bool]) -> None:
    frame = {"Python id": 4, "Python parent id": 3}
    change = {"Bytes": -512, "Addr": 2**40, "Device Type": 1, "Device Id": 2**31}
    instant = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 2}
    sink = same(
        file_of(
            [
                {**PLAIN, "cat": "python_function", "name": "f.py(3): f", "args": frame},
                {**instant, "ts": 7, "args": change},
                {**instant, "ts": 8, "args": {**change, "Device Type": 0, "Addr": -1}},
            ]
        )
    )
    assert all(taken)
    assert sink.rows("python_frame", "frame_id", "parent_frame_id") == [(4, 3)]
    shown = sink.rows("memory_event", "device_type", "device", "address", "change_bytes")
    assert shown == [("gpu", None, 2**40, -512), ("cpu", None, None, -512)]


# --- whether it is there -------------------------------------------------------------------------


def refuse(_: str) -> Any:
    raise OSError("wrong ELF class")


@pytest.mark.parametrize(
    "load", [refuse, lambda _: StandIn(native.INTERFACE + 1), lambda _: object()]
)
def test_without_a_library_that_fits_python_reads(
    load: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    unloaded: None,
    taken: list[bool],
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert native.library() is None
    assert read(file_of([PLAIN]), is_native=True).rows("host_op", "name") == ["aten::add"]
    assert not taken


def test_a_library_that_has_no_memory_says_so(
    monkeypatch: pytest.MonkeyPatch, unloaded: None
) -> None:
    full = StandIn()
    monkeypatch.setattr(full, "tk_new", lambda: None, raising=False)
    with pytest.raises(MemoryError):
        native.Reader(full)  # type: ignore[arg-type]
    assert not full.freed


def test_the_environment_chooses_python(
    library: Any, monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    monkeypatch.setenv("TRACEKIT_NATIVE", "0")
    assert native.library() is None
    read(file_of([PLAIN]), is_native=False)
    assert not taken
    monkeypatch.setenv("TRACEKIT_NATIVE", "")
    assert native.library() is library


def test_numbers_and_texts_of_the_reader_itself(library: Any) -> None:
    core = native.Reader(library)
    kind = core.kind(
        "X", 8, has_dur=True, needs_args=False, is_kept=True, names=0, odd_flags=1, far_flags=0,
        far_tid=0,
    )  # fmt: skip
    core.field(kind, "a", "integer", 6)
    with pytest.raises(ValueError, match="no room for b"):
        core.field(kind, "b", "triple", 6)
    slot = core.category("cpu_op", kind)
    text = bytearray(json.dumps([{**PLAIN, "args": {"a": -4}}, {"x": 1}]).encode())
    batch = core.batch(memoryview(text), 5, 2**60)
    assert batch is not None
    assert (batch.events, batch.taken, json.loads(batch.rest)) == (2, 1, [{"x": 1}])
    assert batch.rest_places.tolist() == [6]
    assert core.texts(0, 0) == [b"aten::add"]
    assert core.texts(0, 1) == []
    assert core.take(slot)[:, 0].tolist() == [5, 10500, 1000, 0, 1, 2, -4, native.NULL]
    assert core.take(slot).shape == (8, 0)
    core.flag(0, 0, 1)
    again = core.batch(memoryview(text), 5, 2**60)
    assert again is not None
    assert again.taken == 0
    assert core.batch(memoryview(bytearray(b"[1")), 0, 1) is None
    core.close()
    core.close()
    if isinstance(library, StandIn):
        assert library.freed == [1]


def test_a_column_of_texts_holds_those_that_are_used() -> None:
    table = frequent.Texts(lambda raw: raw.decode() or None, lambda _: 0)
    for raw in (b"a", b"b", b"", b"c"):
        assert table.add(raw) == 0
    column = table.column(np.array([3, 0, native.NULL, 2, 3]), texts)
    assert column.to_pylist() == ["c", "a", None, None, "c"]
    assert column.dictionary.to_pylist() == ["a", "c"]
    assert table.column(np.array([2, native.NULL])).to_pylist() == [None, None]
