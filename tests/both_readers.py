"""Kineto traces read by Python alone and with a native reader: what must be equal; made traces."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from memory_sink import MemorySink, source_of

from tracekit.ingest import IngestOptions
from tracekit.ingest.base import SourceFile
from tracekit.ingest.kineto import reader
from tracekit.ingest.kineto.model import CATEGORIES, Kind


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


PLAIN = {
    "ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 2, "ts": 10.5, "dur": 1,
}  # fmt: skip


def file_of(events: list[dict[str, Any]]) -> SourceFile:
    return source_of(json.dumps({"traceEvents": events}).encode())


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
        if not text:
            break  # all of it is gone
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
