"""Damaged files: what is whole is kept, what is lost is counted, nothing is invented."""

from __future__ import annotations

import functools
import gzip
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_sink import MemorySink, source_of

from soaks import examples
from tracekit.ingest import IngestOptions
from tracekit.ingest.kineto import reader, salvage, stream
from tracekit.ingest.kineto.stream import CHUNK_BYTES, TraceStream

Row = tuple[Any, ...]
BASE = 1735632360000000000


def read(data: bytes, *, chunk: int = 1 << 16) -> MemorySink:
    sink = MemorySink()
    reader.read(source_of(data), sink, IngestOptions(stacks=True), chunk_bytes=chunk)
    return sink


def sample() -> list[dict[str, Any]]:
    """Events of most kinds, with braces and commas where they hurt."""
    common = {"ph": "X", "pid": 1, "tid": 1}
    events: list[dict[str, Any]] = [
        {**common, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 100.001, "dur": 900.5},
        {
            **common,
            "cat": "cpu_op",
            "name": 'a "}, {" b',
            "ts": 110.25,
            "dur": 3,
            "args": {"External id": 1, "Input Dims": [[2], []]},
        },
        {
            **common,
            "cat": "cpu_op",
            "name": "x]}, {[\\",
            "ts": 120.5,
            "dur": 3,
            "args": {"External id": 2, "extra": [{"name": 1}, {"ph": "X"}]},
        },
        {
            "name": "process_name",
            "ph": "M",
            "pid": 1,
            "tid": 0,
            "ts": 0,
            "args": {"name": "python"},
        },
        {
            **common,
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "ts": 130.125,
            "dur": 2.375,
            "args": {"correlation": 7},
        },
        {"ph": "s", "id": 7, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": 130},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "void k<int>(int)",
            "pid": 0,
            "tid": 7,
            "ts": 140.75,
            "dur": 8,
            "args": {
                "device": 0,
                "stream": 7,
                "correlation": 7,
                "grid": [1, 2, 3],
                "block": [4, 5, 6],
            },
        },
        {
            "ph": "f",
            "id": 7,
            "cat": "ac2g",
            "name": "ac2g",
            "pid": 0,
            "tid": 7,
            "ts": 141,
            "bp": "e",
        },
        {**common, "cat": "user_annotation", "name": "gloo:all_reduce", "ts": 200, "dur": 30.009},
        {
            **common,
            "cat": "python_function",
            "name": "train.py(3): main é",
            "ts": 90,
            "dur": 950,
            "args": {"Python id": 1},
        },
        {
            "ph": "i",
            "cat": "cpu_instant_event",
            "s": "t",
            "name": "[memory]",
            "pid": 1,
            "tid": 1,
            "ts": 150,
            "args": {"Bytes": 64, "Addr": 4096},
        },
        {
            **common,
            "cat": "cpu_op",
            "name": "last",
            "ts": 300,
            "dur": 1,
            "args": {"External id": 9},
        },
    ]
    return events


def text(events: list[dict[str, Any]], indent: int | None = None) -> bytes:
    document = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": BASE,
        "traceEvents": events,
        "traceName": "x",
    }
    return json.dumps(document, indent=indent, ensure_ascii=False).encode()


OWN_COLUMNS = {
    "host_op": (
        "start_ns",
        "dur_ns",
        "category",
        "name",
        "thread",
        "external_id",
        "correlation",
        "input_dims",
    ),
    "gpu_op": ("start_ns", "dur_ns", "name", "device", "stream", "correlation", "grid", "block"),
    "annotation": ("start_ns", "dur_ns", "domain", "name", "thread"),
    "python_frame": ("start_ns", "dur_ns", "name", "frame_id"),
    "memory_event": ("time_ns", "change_bytes", "address"),
}
"""What an event's row holds of the event itself: launches and steps come from other events."""


def rows(sink: MemorySink, *, places: bool = True) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for table, columns in OWN_COLUMNS.items():
        for row in sink.rows(table):
            values = [str(row[c]) for c in columns]
            found[(table, row["place"] if places else None, *values)] += 1
    return found


EVENTS = sample()
WHOLE = text(EVENTS)
PRETTY = text(EVENTS, indent=2)
ROWS = rows(read(WHOLE))


def ends_of_events(data: bytes) -> list[int]:
    """Where each event ends, found by a scanner that knows strings."""
    ends: list[int] = []
    depth = 0
    at = data.index(b"[", data.index(b"traceEvents")) + 1
    is_string = is_escaped = False
    for i in range(at, len(data)):
        c = data[i : i + 1]
        if is_string:
            if is_escaped:
                is_escaped = False
            elif c == b"\\":
                is_escaped = True
            elif c == b'"':
                is_string = False
            continue
        if c == b'"':
            is_string = True
        elif c in (b"{", b"["):
            depth += 1
        elif c in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                ends.append(i + 1)
            if depth < 0:
                break
    return ends


# --- form does not matter ------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 50, 100, 333, 1000, 10_000])
@pytest.mark.parametrize("data", [WHOLE, PRETTY], ids=["compact", "pretty"])
def test_where_batches_end_does_not_matter(data: bytes, chunk: int) -> None:
    sink = read(data, chunk=chunk)
    assert rows(sink) == ROWS
    assert sink.facts["status"] == "ok"
    assert sink.counters == {}


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + WHOLE,
        PRETTY.replace(b"\n", b"\r\n"),
        WHOLE + b"\n\n",
        WHOLE.replace(b'"traceName": "x"', b'"INFO": ["a }, { b", "}] "]'),
        WHOLE.replace(b'}], "traceName"', b'},\n], "traceName"'),
    ],
    ids=["bom", "crlf", "blank", "info", "trailing-comma"],
)
def test_other_forms(data: bytes) -> None:
    sink = read(data)
    assert rows(sink) == ROWS
    assert (sink.facts["status"], sink.facts["is_truncated_end"]) == ("ok", False)


def test_a_bare_list() -> None:
    sink = read(json.dumps(EVENTS, ensure_ascii=False).encode())
    assert sum(rows(sink).values()) == sum(ROWS.values())
    assert sink.facts["status"] == "ok"


@settings(max_examples=examples(12, 60))
@given(st.permutations(range(len(EVENTS))), st.integers(1, 3000))
def test_order_does_not_matter(order: list[int], chunk: int) -> None:
    """Shuffled events give the same rows, places aside; joins included."""
    shuffled = read(text([EVENTS[i] for i in order]), chunk=chunk)
    plain = read(WHOLE)
    for table in (*OWN_COLUMNS, "collective"):
        expected = [{k: v for k, v in r.items() if "place" not in k} for r in plain.rows(table)]
        found = [{k: v for k, v in r.items() if "place" not in k} for r in shuffled.rows(table)]
        assert sorted(map(repr, found)) == sorted(map(repr, expected))


@settings(max_examples=examples(12, 60))
@given(st.integers(-90_000, 4_000_000_000_000_000))
def test_shifting_all_times_changes_no_duration(shift_ns: int) -> None:
    moved = text(EVENTS)
    document = json.loads(moved, parse_float=lambda t: round(float(t) * 1000) / 1000)
    for event in document["traceEvents"]:
        event["ts"] = round(event["ts"] * 1000 + shift_ns) / 1000
    sink, plain = read(json.dumps(document).encode()), read(WHOLE)
    for table in ("host_op", "gpu_op", "annotation", "collective"):
        assert sink.rows(table, "dur_ns") == plain.rows(table, "dur_ns")
        starts = [s - shift_ns for s in sink.rows(table, "start_ns")]
        assert starts == plain.rows(table, "start_ns")


# --- files that break off ------------------------------------------------------------------------


def check_cut(sink: MemorySink, complete: int, *, is_inside: bool) -> None:
    found = rows(sink)
    expected = Counter({row: n for row, n in ROWS.items() if row[1] < complete})
    assert found == expected
    if is_inside:
        assert (sink.facts["status"], sink.facts["is_truncated_end"]) == ("partial", True)


@pytest.mark.parametrize(
    ("data", "stride"),
    [
        pytest.param(WHOLE, 37, id="compact"),
        pytest.param(PRETTY, 149, id="pretty"),
        pytest.param(WHOLE, 1, id="compact-every-byte", marks=pytest.mark.slow),
        pytest.param(PRETTY, 3, id="pretty-every-third", marks=pytest.mark.slow),
    ],
)
def test_truncation_at_any_byte_keeps_every_complete_event(data: bytes, stride: int) -> None:
    ends = ends_of_events(data)
    begin = data.index(b"[", data.index(b"traceEvents")) + 1
    for cut in range(begin, len(data), stride):
        is_inside = b"]" not in data[ends[-1] : cut]
        check_cut(read(data[:cut]), sum(e <= cut for e in ends), is_inside=is_inside)


def test_truncation_in_the_header() -> None:
    for cut in range(1, WHOLE.index(b"traceEvents") + 14):
        sink = read(WHOLE[:cut])
        assert rows(sink) == Counter()
        assert sink.facts["status"] in ("unreadable", "partial")


@settings(max_examples=examples(25, 100))
@given(st.integers(0, len(WHOLE)), st.integers(1, 800))
def test_truncation_with_any_batch_size(cut: int, chunk: int) -> None:
    found = rows(read(WHOLE[:cut], chunk=chunk))
    assert found == Counter({r: n for r, n in ROWS.items() if r in found})
    ends = ends_of_events(WHOLE)
    assert {r[1] for r in found} == {r[1] for r in ROWS if ends[r[1]] <= cut}


@pytest.mark.parametrize(
    "pack", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gzip", "zstd"]
)
def test_truncated_compressed_files(pack: Any) -> None:
    rng = random.Random(1)  # noqa: S311 - a fixed trace, not a secret
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"op{rng.random()}",
            "pid": 1,
            "tid": 1,
            "ts": i,
            "dur": 1,
        }
        for i in range(2000)
    ]
    whole = text(events)
    packed = pack(whole)
    full = rows(read(packed))
    assert sum(full.values()) == 2000
    counts = []
    for cut in range(0, len(packed), len(packed) // 40):
        sink = read(packed[:cut], chunk=5000)
        found = rows(sink)
        assert not found - full
        counts.append(sum(found.values()))
        assert sink.facts["status"] != "ok"
    assert counts == sorted(counts)
    assert counts[-1] > (1800 if pack is gzip.compress else 1000), "zstd keeps whole blocks"


def test_a_missing_gzip_trailer_loses_nothing() -> None:
    packed = gzip.compress(WHOLE)
    for cut in (1, 4, 8):
        sink = read(packed[:-cut])
        assert rows(sink) == ROWS
        assert sink.facts["status"] == "partial"


def test_a_wrong_checksum_is_told_and_loses_nothing() -> None:
    packed = bytearray(gzip.compress(WHOLE))
    packed[-6] ^= 0xFF
    sink = read(bytes(packed))
    assert rows(sink) == ROWS
    assert sink.facts["status"] == "partial"
    assert sink.counters == {"stream_checksum": 1}


def test_what_follows_a_gzip_member() -> None:
    packed = gzip.compress(WHOLE)
    assert rows(read(packed + b"garbage")) == ROWS
    assert read(packed + b"garbage").counters == {"stream_trailing_garbage": 1}
    assert read(packed + bytes(512)).counters == {}, "padding is none"
    half = len(WHOLE) // 2
    assert rows(read(gzip.compress(WHOLE[:half]) + gzip.compress(WHOLE[half:]))) == ROWS
    frames = zstandard.ZstdCompressor()
    assert rows(read(frames.compress(WHOLE[:half]) + frames.compress(WHOLE[half:]))) == ROWS


# --- bits that flip ------------------------------------------------------------------------------


@functools.cache
def whole_rows() -> Counter[Row]:
    return rows(read(WHOLE), places=False)


@settings(max_examples=examples(50, 400))
@given(st.integers(0, len(WHOLE) * 8 - 1), st.sampled_from([100, 1 << 16]))
def test_a_flipped_bit_harms_its_own_event_and_at_most_its_neighbour(bit: int, chunk: int) -> None:
    """One bit changes one event, or joins it with the next; all other rows stay as they were.

    A flip in the header may take the array of events away, and with it all rows.
    """
    damaged = bytearray(WHOLE)
    damaged[bit // 8] ^= 1 << (bit % 8)
    sink = read(bytes(damaged), chunk=chunk)
    intact = whole_rows()
    found = rows(sink, places=False)
    begin, end = WHOLE.index(b"traceEvents"), ends_of_events(WHOLE)[-1]
    if begin + 14 < bit // 8 < end:
        assert sum((found - intact).values()) <= 1, "no more than the event that the bit is in"
        assert sum((intact - found).values()) <= 2
    assert sum(found.values()) <= sum(intact.values())


@settings(max_examples=examples(25, 150))
@given(st.binary(max_size=40), st.integers(0, len(WHOLE)), st.integers(0, 60))
def test_rubbish_anywhere_never_raises(rubbish: bytes, at: int, gone: int) -> None:
    read(WHOLE[:at] + rubbish + WHOLE[at + gone :], chunk=500)


@settings(max_examples=examples(25, 150))
@given(st.integers(0, 10**9))
def test_flips_in_compressed_bytes_never_raise(seed: int) -> None:
    packed = bytearray(gzip.compress(WHOLE))
    rng = random.Random(seed)  # noqa: S311 - any byte will do
    for _ in range(rng.randint(1, 4)):
        packed[rng.randrange(len(packed))] ^= 1 << rng.randrange(8)
    read(bytes(packed), chunk=500)


# --- malformations of real producers -------------------------------------------------------------

EVENT = (
    b'{"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 5, "dur": 1,'
    b' "args": {"External id": 4}}'
)


@pytest.mark.parametrize(
    ("old", "new", "counter"),
    [
        (
            b'"External id": 4',
            b'"External id": 4, "Process Group Description": , "dtype": "x"',
            "repaired_value",
        ),
        (
            b'"External id": 4',
            b'"External id": 4, "Process Group Description":   ',
            "repaired_value",
        ),
        (b'"External id": 4', b'"External id": 4, "bw": inf', "repaired_number"),
        (b'"External id": 4', b'"bw": -nan, "External id": 4', "repaired_number"),
        (b'"External id": 4', b'"External id": 4, "bw": Infinity', "repaired_number"),
        (b'"name": "op"', b'"name": "o"p"', "repaired_quote"),
        (b'"name": "op"', b'"name": "operator""<char>(x)"', "repaired_quote"),
        (b'"name": "op"', b'"name": "o\np"', "repaired_control"),
        (b'"name": "op"', b'"name": "o\x01\tp"', "repaired_control"),
        (b'"name": "op"', b'"name": "C:\\Users\\quux.py"', "repaired_escape"),
        (b'"name": "op"', b'"name": "o\xffp"', "repaired_utf8"),
        (b'"External id": 4', b'"External id": 4, ', "repaired_comma"),
        (b'"External id": 4', b', "External id": 4', "repaired_comma"),
        (b'"External id": 4', b'External id": 4', "repaired_key"),
        (b'"pid": 1', b'"pid: 1', "repaired_key"),
    ],
)
@pytest.mark.parametrize("chunk", [300, 1 << 16])
def test_repairs(old: bytes, new: bytes, counter: str, chunk: int) -> None:
    broken = EVENT.replace(old, new)
    data = b'{"traceEvents": [' + b",\n".join([EVENT, broken, EVENT]) + b"]}"
    sink = read(data, chunk=chunk)
    assert sink.rows("host_op", "place", "external_id") == [(0, 4), (1, 4), (2, 4)]
    assert sink.counters == {counter: 1}
    assert sink.places == {counter: 1}
    assert sink.facts["status"] == "ok"


def test_what_cannot_be_repaired_is_counted_and_masked() -> None:
    broken = b'{"ph": "X", "cat": "cpu_op", "name": "hunter2" 12 : ]]}'
    sink = read(b'{"traceEvents": [' + b",".join([EVENT, broken, EVENT]) + b"]}")
    assert sink.rows("host_op", "place") == [0, 2]
    assert sink.counters == {"lost_event": 1}
    assert sink.severities == {"lost_event": "error"}
    assert sink.places == {"lost_event": 1}
    assert sink.facts["status"] == "partial"
    assert sink.shapes["lost_event"] == '{"aa": "a", "aaa": "aaa_aa", "aaaa": "aaaaaa9" 99 : ]]}'


def test_a_secret_in_a_damaged_line_is_nowhere() -> None:
    broken = EVENT.replace(b'"op"', b'"to"ken=hunter2hunter2"').replace(b"}}", b"")
    sink = read(b'{"traceEvents": [' + b",".join([EVENT, broken, EVENT]) + b"]}")
    assert "hunter" not in repr((sink.counters, sink.shapes, sink.facts))


def test_values_that_are_no_events() -> None:
    sink = read(
        b'{"traceEvents": [' + b",".join([EVENT, b"null", b"7", b'["x"]', b"{}", EVENT]) + b"]}"
    )
    assert sink.rows("host_op", "place") == [0, 5]
    assert sink.counters["not_an_event"] == 3


def test_many_repairs_in_one_file_are_all_counted() -> None:
    broken = EVENT.replace(b'"External id": 4', b'"External id": 4, "Process Group Description": ')
    sink = read(b'{"traceEvents": [' + b",".join([EVENT, broken] * 500) + b"]}", chunk=10_000)
    assert sink.table("host_op").num_rows == 1000
    assert sink.counters == {"repaired_value": 500}


def test_deep_nesting_and_long_events_end() -> None:
    deep = EVENT.replace(b"4}", b'4, "x": ' + b"[" * 5000 + b"]" * 5000 + b"}")
    sink = read(b'{"traceEvents": [' + b",".join([EVENT, deep, EVENT]) + b"]}")
    assert sink.rows("host_op", "external_id")[::2] == [4, 4] or len(sink.rows("host_op")) == 2
    long = EVENT.replace(b'"op"', b'"' + b"x" * 300_000 + b'"')
    sink = read(b'{"traceEvents": [' + b",".join([EVENT, long, EVENT]) + b"]}", chunk=1000)
    assert sink.table("host_op").num_rows == 3


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", "empty"),
        (b"   \n", "empty"),
        (b'{"traceEvents": []}', "empty"),
        (b"[]", "empty"),
        (b'{"schemaVersion": 1}', "unreadable"),
        (b"hello", "unreadable"),
        (b'{"traceEvents": [', "partial"),
        (gzip.compress(b"", mtime=0), "empty"),
        (gzip.compress(WHOLE, mtime=0)[:5], "unreadable"),
    ],
)
def test_files_with_nothing_in_them(data: bytes, status: str) -> None:
    assert read(data).facts["status"] == status


@given(st.binary(max_size=60))
def test_shapes_hold_no_letters_or_digits_of_the_text(data: bytes) -> None:
    shown = salvage.shape(data)
    assert len(shown) <= salvage.SHAPE_LENGTH
    assert not set(shown) & set("bcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ012345678")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            lambda blanks, a, b: b'{"traceEvents":[%s,%s%s]}' % (a, blanks, b), id="between"
        ),
        pytest.param(
            lambda blanks, a, b: b'{"traceEvents":[%s,%s%s}]}' % (a, b[:-1], blanks), id="within"
        ),
        pytest.param(
            lambda blanks, a, b: b'{"traceEvents":[%s,%s%s]}' % (a, b, blanks), id="after"
        ),
        pytest.param(
            lambda blanks, a, b: b'{"traceEvents":%s[%s,%s]}' % (blanks, a, b), id="before"
        ),
    ],
)
def test_megabytes_of_blanks_are_looked_at_once(
    text: Callable[[bytes, bytes, bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    fills: list[int] = []
    fill = TraceStream._fill

    def counted(stream: TraceStream, size: int = 0) -> None:
        fills.append(size)
        fill(stream, size)

    monkeypatch.setattr(TraceStream, "_fill", counted)
    one = {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op", "name": "a", "ts": 1, "dur": 3}
    first = second = json.dumps({**one, "args": {"External id": 1}}).encode()
    data = text(b" " * (8 << 20), first, second)
    assert len(read(data, chunk=CHUNK_BYTES).rows("host_op")) == 2
    # All that is held is searched after each: as many as there are chunks would be quadratic.
    assert len(fills) < 10 < len(data) // CHUNK_BYTES


def test_a_brace_before_a_megabyte_of_blanks_is_no_boundary_at_once() -> None:
    # Quadratic patterns would take hours for it.
    assert not list(stream._KNOWN_END.finditer(b"}" + b" " * (1 << 20) + b"x"))
    assert not list(stream._END.finditer(b"}" + b" " * (1 << 20) + b"x"))
