"""The native reader against its oracle, the one in Python: equal rows, issues and facts."""

from __future__ import annotations

import ctypes
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_sink import MemorySink, source_of

from soaks import examples, soak
from tracekit import native
from tracekit.ingest import IngestOptions, files
from tracekit.ingest.base import SourceFile
from tracekit.ingest.kineto import frequent, reader, trace
from tracekit.ingest.kineto.model import CATEGORIES, Kind
from tracekit.ingest.traces.columns import texts

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
SHARED = sorted([*DATA.glob("kineto/*/*.json*"), *DATA.glob("lab/*/rank*.json.gz")])
RECORDED = sorted((ROOT / "fixtures").glob("recorded/*/*.pt.trace.json.gz"))
FILES = [*RECORDED, *SHARED]
ONE_OF_A_KIND = [p for p in FILES if p == min(p.parent.glob("*.json*")) or "hta" in p.parent.name]

pytestmark = pytest.mark.skipif(
    not native.LIBRARY.exists(), reason="the native reader is not built here (make native)"
)


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each batch that the native reader was asked for was taken."""
    answers: list[bool] = []
    asked = trace.TraceReader._take_frequent

    def told(self: trace.TraceReader, *given: Any) -> bool:
        answers.append(asked(self, *given))
        return answers[-1]

    monkeypatch.setattr(trace.TraceReader, "_take_frequent", told)
    monkeypatch.delenv("TRACEKIT_NATIVE", raising=False)  # whichever reader the others are asked of
    return answers


def read(source: SourceFile, *, is_native: bool, stacks: bool = True, **given: Any) -> MemorySink:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEKIT_NATIVE", "1" if is_native else "0")
        sink = MemorySink()
        reader.read(source, sink, IngestOptions(stacks=stacks), **given)
    return sink


def same(source: SourceFile, **given: Any) -> MemorySink:
    """What both readers make of a file, compared in all that a sink is told."""
    python = read(source, is_native=False, **given)
    core = read(source, is_native=True, **given)
    assert set(core.tables) == set(python.tables)
    for name in python.tables:
        expected, found = python.table(name), core.table(name)
        if "place" in expected.column_names:
            expected, found = expected.sort_by("place"), found.sort_by("place")
        assert found.equals(expected), name
    assert core.facts == python.facts
    assert core.counters == python.counters
    assert core.severities == python.severities
    assert core.places == python.places
    assert core.shapes == python.shapes
    return core


@pytest.mark.parametrize("stacks", [False, True])
@pytest.mark.parametrize("path", soak(FILES, fast=ONE_OF_A_KIND), ids=str)
def test_real_files_give_equal_rows(path: Path, stacks: bool, taken: list[bool]) -> None:
    same(files.source_file(path), stacks=stacks)
    assert taken and sum(taken) >= 0.8 * len(taken)  # or this would compare Python with itself


# --- made files ----------------------------------------------------------------------------------

ODD: dict[str, list[Any]] = {
    "ph": ["X", "i", "B", "M", None, 1],
    "cat": [*CATEGORIES, "unheard of", "", None, 7],
    "name": [
        "aten::add", "ProfilerStep#3", "nccl:all_reduce", "record_param_comms", "[memory]",
        "cudaLaunchKernel", "Stream Synchronize", "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "enumerate(DataLoader)#x.__next__", "a\"b\\c\n", "é", "\ud800", "", None, 3,
        "--api-key=abcdef123456",
    ],
    "pid": [0, 1, -1, "7", "stream 7", "Spans", 2**63, -(2**63), 1.0, None],
    "tid": [0, 7, 1_000_007, "7", "stream 9", "thread 3 (python)", "", 2**64 - 1, None],
    "ts": [
        1, 0, -5, 0.001, 1e3, 2.0005, 1732700000123456, 2**53 + 1, 2**62, 10**30, "12.5", "x",
        None, True,
    ],
    "dur": [0, 0.001, 7.5, -1, 86_400_000_000, 86_400_000_001, 1e300, "3", None, 1.00049],
    "args": [None, {}, [], "x", 3],
}  # fmt: skip
"""Members of an event, by their keys: usual and unusual values."""

INTEGERS: list[Any] = [0, 1, 5, -1, 2**31, -(2**31), 2**63 - 1, 2**63, 2**64, 1.0, "4", None, True]
ARGUMENTS: dict[str, list[Any]] = {
    "External id": INTEGERS, "external id": INTEGERS, "correlation": INTEGERS,
    "device": INTEGERS, "stream": INTEGERS, "context": INTEGERS, "graph id": INTEGERS,
    "graph node id": INTEGERS, "registers per thread": INTEGERS, "bytes": INTEGERS,
    "Sequence number": INTEGERS, "Fwd thread id": INTEGERS, "Python id": INTEGERS,
    "Python parent id": INTEGERS, "Bytes": INTEGERS, "Addr": INTEGERS, "Device Type": INTEGERS,
    "Device Id": INTEGERS, "Total Allocated": INTEGERS,
    "grid": [[1, 2, 3], [1], [], [1, 2, 2**31], [1, None, 2], "1", None],
    "block": [[64, 1, 1], [2**40, 1, 1], None],
    "Input Dims": [[[2, 3], []], [], "x", None, {"a": [1.5, "\\"]}],
    "Input type": [["float", ""], None],
    "Input dims": [[[4]], None],
    "kind": ["Device -> Pageable", 3, None],
    "Collective name": ["allreduce", "_allgather_base", None],
    "In msg nelems": [1024, None],
    "dtype": ["Float", None],
    "Process Group Name": ["0", 3],
    "Process Group Ranks": ["[0, 1]"],
    "Group size": [2],
    "Seq": [4],
    "something else": [1, "x", [{"a": 1}, {"name": "b"}], {"x": {}}, 1.5e-7, True],
}  # fmt: skip

KIND_OF_ARGUMENTS = {
    Kind.OPERATOR: ("External id", "Sequence number", "Input Dims", "Input type"),
    Kind.CALL: ("External id", "correlation"),
    Kind.GPU: ("External id", "device", "stream", "correlation", "grid", "block"),
    Kind.INSTANT: ("Bytes", "Addr", "Device Type", "Device Id", "Total Allocated"),
    Kind.FRAME: ("Python id", "Python parent id"),
}


def made_event(rng: random.Random, oddness: float) -> dict[str, Any]:
    """An event of some kind; each of its members is unusual as often as told."""
    category = rng.choice(list(CATEGORIES))
    kind = CATEGORIES[category][0]
    event: dict[str, Any] = {
        "ph": "i" if kind is Kind.INSTANT else "X",
        "cat": category,
        "name": "[memory]" if kind is Kind.INSTANT else f"name {rng.randrange(9)}",
        "pid": rng.randrange(3),
        "tid": rng.randrange(20),
        "ts": round(1000 + rng.random() * 1e6, 3),
        "dur": round(rng.random() * 100, 3),
        "args": {
            key: [rng.randrange(9) for _ in range(3)] if key in ("grid", "block") else 7
            for key in KIND_OF_ARGUMENTS.get(kind, ())
        },
    }
    if kind is Kind.INSTANT:
        del event["dur"]
    for key, values in ODD.items():
        if rng.random() < oddness:
            event[key] = rng.choice(values)
        elif rng.random() < oddness / 4:
            event.pop(key, None)
    arguments = event.get("args")
    while isinstance(arguments, dict) and rng.random() < min(3 * oddness, 0.6):
        key = rng.choice(list(ARGUMENTS))
        arguments[key] = rng.choice(ARGUMENTS[key])
    if rng.random() < oddness:
        keys = list(event)
        rng.shuffle(keys)
        event = {key: event[key] for key in keys}
    return event


def made_file(rng: random.Random, count: int, oddness: float, base_ns: int | None) -> bytes:
    events = [made_event(rng, oddness) for _ in range(count)]
    document: dict[str, Any] = {"schemaVersion": 1, "traceEvents": events}
    if base_ns is not None:
        document["baseTimeNanoseconds"] = base_ns
        if rng.random() < 0.5:  # before the events, or behind them
            document = {"baseTimeNanoseconds": base_ns, **document}
    indent = rng.choice([None, None, 2])
    return json.dumps(document, indent=indent, ensure_ascii=rng.random() < 0.5).encode(
        "utf-8", "surrogatepass"
    )


def damaged(rng: random.Random, data: bytes) -> bytes:
    """A file with some of its bytes changed, doubled, lost or gone."""
    text = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text))
        match rng.randrange(5):
            case 0:
                text[at] = rng.randrange(256)
            case 1:
                text[at] = rng.choice(b'{}[]",:\\0e.-\n')
            case 2:
                del text[at : at + rng.choice([1, 1, 2, 40])]
            case 3:
                text[at:at] = text[max(0, at - rng.choice([1, 2, 60])) : at]
            case _ if rng.random() < 0.2:
                del text[at:]
    return bytes(text)


MANY = st.integers(0, 2**32 - 1)


@settings(max_examples=examples(40, 600))
@given(MANY, st.sampled_from([0.0, 0.01, 0.1, 0.4]), st.sampled_from([300, 4000, 1 << 18]))
def test_made_files_give_equal_rows(seed: int, oddness: float, chunk: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - no secret
    base_ns = rng.choice([None, 0, 1735632360000000000, 2**61, -(2**61), 2**62])
    data = made_file(rng, rng.randrange(1, 120), oddness, base_ns)
    same(source_of(data), stacks=bool(seed & 1), chunk_bytes=chunk)


@settings(max_examples=examples(40, 600))
@given(MANY, st.sampled_from([0.0, 0.02]), st.sampled_from([300, 4000, 1 << 18]))
def test_damaged_files_give_equal_rows(seed: int, oddness: float, chunk: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - no secret
    data = damaged(rng, made_file(rng, rng.randrange(1, 60), oddness, None))
    same(source_of(data), stacks=bool(seed & 1), chunk_bytes=chunk)


PLAIN = {
    "ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 2, "ts": 10.5, "dur": 1,
}  # fmt: skip


def file_of(events: list[dict[str, Any]]) -> SourceFile:
    return source_of(json.dumps({"traceEvents": events}).encode())


def test_epoch_times_with_a_fraction_are_exact(taken: list[bool]) -> None:
    text = json.dumps({"traceEvents": [PLAIN]}).replace("10.5", "1732700000123456.789")
    sink = same(source_of(text.encode()))
    assert sink.rows("host_op", "start_ns") == [1732700000123456789]
    assert taken == [True]


def test_names_stay_known_from_file_to_file(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    library = native.library()
    assert library is not None
    monkeypatch.setattr(frequent, "_KEPT_FOR_LATER", {})
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
    monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    monkeypatch.setattr(frequent, "_KEPT_FOR_LATER", {})
    monkeypatch.setattr(frequent, "CACHE_LIMIT", 3)
    events = [{**PLAIN, "name": f"op {i % 11}", "ts": 1 + i} for i in range(60)]
    sink = same(file_of(events), chunk_bytes=500)
    assert sink.rows("host_op", "name") == [f"op {i % 11}" for i in range(60)]
    assert all(taken)
    assert all(len(kept.host_names.values) < 11 for kept in frequent._KEPT_FOR_LATER.values())


def test_a_file_of_which_little_can_be_taken_is_left_to_python(taken: list[bool]) -> None:
    events = [{**PLAIN, "ts": "x" if i % 2 else i + 1.5} for i in range(4000)]
    same(file_of(events), chunk_bytes=10_000)
    assert len(taken) < 20
    assert not any(taken)


# --- whether it is there -------------------------------------------------------------------------


@pytest.fixture
def unloaded() -> Iterator[None]:
    """The library as if it had not been asked for yet."""
    native._loaded.cache_clear()
    yield
    native._loaded.cache_clear()


class Other:
    """A library of another interface."""

    @staticmethod
    def tk_interface() -> int:
        return native.INTERFACE + 1


def refuse(_: str) -> Any:
    raise OSError("wrong ELF class")


@pytest.mark.parametrize("load", [refuse, lambda _: Other(), lambda _: object()])
def test_without_a_library_that_fits_python_reads(
    load: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    unloaded: None,
    taken: list[bool],
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert native.library() is None
    monkeypatch.setattr(frequent, "_KEPT_FOR_LATER", {})
    assert read(file_of([PLAIN]), is_native=True).rows("host_op", "name") == ["aten::add"]
    assert not taken


def test_the_environment_chooses_python(monkeypatch: pytest.MonkeyPatch, taken: list[bool]) -> None:
    monkeypatch.setenv("TRACEKIT_NATIVE", "0")
    assert native.library() is None
    read(file_of([PLAIN]), is_native=False)
    assert not taken
    monkeypatch.setenv("TRACEKIT_NATIVE", "")
    assert native.library() is not None


def test_numbers_and_texts_of_the_reader_itself() -> None:
    library = native.library()
    assert library is not None
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


def test_a_column_of_texts_holds_those_that_are_used() -> None:
    table = frequent.Texts(lambda raw: raw.decode() or None, lambda _: 0)
    for raw in (b"a", b"b", b"", b"c"):
        assert table.add(raw) == 0
    column = table.column(np.array([3, 0, native.NULL, 2, 3]), texts)
    assert column.to_pylist() == ["c", "a", None, None, "c"]
    assert column.dictionary.to_pylist() == ["a", "c"]
    assert table.column(np.array([2, native.NULL])).to_pylist() == [None, None]
