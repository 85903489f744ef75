"""What experiment trackers keep: tables of metrics and TensorBoard's files, as job_step."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from memory_sink import MemorySink, source_of

from tracekit import api
from tracekit.errors import InputError
from tracekit.ingest import recognise
from tracekit.ingest.base import IngestOptions
from tracekit.ingest.trackers import TRACKERS, tensorboard
from tracekit.ingest.trackers.names import meaning

Rows = list[dict[str, Any]]
START_S = 1_772_525_000.0
FIXTURE = Path(__file__).parents[2] / "fixtures" / "trackers"


def read(text: str | bytes, name: str) -> MemorySink:
    """Read a file as the ingestor that recognises it does."""
    source = source_of(text.encode() if isinstance(text, str) else text, name)
    said = recognise(source)
    sink = MemorySink()
    (known,) = (t for t in TRACKERS if t.name == said.ingestor)
    known.read(source, sink, IngestOptions())
    return sink


def steps(sink: MemorySink) -> Rows:
    return [row for rows in sink.tables.get("job_step", []) for row in rows.to_pylist()]


def series(count: int = 40, step_s: float = 0.8) -> list[tuple[int, float, float]]:
    """Step, seconds since the epoch and the step's own duration."""
    return [(i, START_S + step_s * i, step_s * 0.95) for i in range(count)]


TABLES = {
    "scan_history.jsonl": "\n".join(
        json.dumps({"_step": 3 * i, "trainer/global_step": i, "_timestamp": at,
                    "_runtime": at - START_S, "train/loss": 2.5, "perf/step_time_s": dur})
        for i, at, dur in series()
    ),
    "array.json": json.dumps(
        [
            {"step": i, "time": at, "train": {"loss": 2.5, "step_time": dur}}
            for i, at, dur in series()
        ]
    ),
    "download.csv": '"Step","r 7 - loss","r 7 - loss__MIN","r 7 - loss__MAX","r 7 - _timestamp"\n'
    + "".join(f'"{i}","2.5","1","4","{at}"\n' for i, at, _ in series()),
    "scalar.csv": "Wall time,Step,Value\n" + "".join(f"{at},{i},2.5\n" for i, at, _ in series()),
    "mlflow.csv": "key,value,timestamp,step,run_id\n"
    + "".join(f"loss,2.5,{round(at * 1000)},{i},ab\n" for i, at, _ in series())
    + "".join(f"step_time,{dur},{round(at * 1000)},{i},ab\n" for i, at, dur in series()),
    "loss": "".join(f"{round(at * 1000)} 2.5 {i}\n" for i, at, _ in series()),
    "iso.csv": "iteration;timestamp;loss\n"
    + "".join(f"{i};2026-03-03T08:{i:02d}:00+00:00;2.5\n" for i, _, _ in series()),
    "own.tsv": "global_step\tstep_time_ms\tloss\n"
    + "".join(f"{i}\t{dur * 1000}\t2.5\n" for i, _, dur in series()),
}  # fmt: skip
"""Each has 40 steps 0.8 s apart (iso: a minute), of 0.76 s where it says how long they took."""


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_metrics_are_steps(name: str) -> None:
    rows = steps(read(TABLES[name], name))
    assert [r["step"] for r in rows] == list(range(40))
    # TensorBoard's download of one metric does not name it.
    assert {r["loss"] for r in rows} == ({None} if name == "scalar.csv" else {2.5})
    stated = {r["dur_ns"] for r in rows}
    assert stated == ({760_000_000} if "step_time" in TABLES[name] else {None})
    times = [r["time_ns"] for r in rows]
    if name == "own.tsv":
        assert times == [None] * 40
    else:
        apart = 60.0 if name == "iso.csv" else 0.8
        assert [(b - a) / 1e9 for a, b in pairwise(times)] == pytest.approx([apart] * 39, abs=0.002)


def test_a_table_says_what_its_times_are() -> None:
    sink = read(TABLES["scan_history.jsonl"], "scan_history.jsonl")
    assert sink.facts["time_basis"] == "epoch"
    assert sink.facts["window_start_ns"] == round(START_S * 1e9)
    local = "step,time,loss\n" + "".join(f"{i},2026-03-03 08:{i:02d}:00,1\n" for i in range(40))
    assert read(local, "x.csv").facts["time_basis"] == "local"
    assert read(TABLES["own.tsv"], "own.tsv").facts["time_basis"] == "none"


def test_a_duration_without_a_unit_is_read_only_where_a_clock_tells_it() -> None:
    def table(scale: float, *, has_clock: bool = True) -> str:
        head = "step,timestamp,step_time\n" if has_clock else "step,loss,step_time\n"
        return head + "".join(
            f"{i},{at if has_clock else 1},{dur * scale}\n" for i, at, dur in series()
        )

    for scale in (1, 1000, 1_000_000):
        assert {r["dur_ns"] for r in steps(read(table(scale), "x.csv"))} == {760_000_000}
    for text in (table(7), table(0.01)):  # of a batch of several, or of another unit
        sink = read(text, "x.csv")
        assert {r["dur_ns"] for r in steps(sink)} == {None}
        assert sink.counters["duration_without_unit"] == 1
    sink = read(table(1, has_clock=False), "x.csv")
    assert {r["dur_ns"] for r in steps(sink)} == {None}
    assert sink.counters["duration_without_unit"] == 1


@pytest.mark.parametrize(
    ("unit", "wait", "own", "expected"),
    [
        ("", 0.3, 0.76, (760_000_000, 300_000_000)),
        ("_ms", 300, 760, (760_000_000, 300_000_000)),
        ("", 0.0, 0.76, (760_000_000, 0)),
        ("_s", 0.8, 0.5, (1_300_000_000, 800_000_000)),  # longer than its step: it lies beside
    ],
)
def test_waits_for_input_are_read_of_the_rank_that_the_file_names(
    unit: str, wait: float, own: float, expected: tuple[int, int]
) -> None:
    text = f"step,timestamp,step_time{unit},data_time{unit}\n" + "".join(
        f"{i},{at},{own},{wait}\n" for i, at, _ in series()
    )
    rows = steps(read(text, "metrics_rank5.csv"))
    assert {(r["dur_ns"], r["input_wait_ns"], r["tag"]) for r in rows} == {(*expected, 5)}


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("train/global_step", "step"), ("_step", "step"), ("iteration-time", "dur"),
        ("iteration-time/iteration-time", "dur"), ("time_metrics/end_to_end(s)", "dur"),
        ("perf/step_time_seconds", "dur"), ("train_step_timing in s", "dur"),
        ("avg_iter_time_ms", "dur"), ("sec_per_step", "dur"), ("eval/step_time_s", None),
        ("val_loss", None), ("lm loss vs samples", None), ("data_time", "input_wait"),
        ("time/data_loading_time_ms", "input_wait"), ("batch_time", "dur"), ("data", None),
        ("loss/train", "loss"), ("system.gpu.0.temp", None), ("max_step_time_s", None),
        ("optimizer_time_s", None),
    ],
)  # fmt: skip
def test_names_of_metrics(name: str, role: str | None) -> None:
    known = meaning(name)
    assert (known.role if known else None) == role


def test_an_own_count_of_calls_is_not_the_step_where_the_step_stands_beside_it() -> None:
    rows = [{"_step": 2 * i, "train/global_step": i, "_timestamp": START_S + i} for i in range(50)]
    evaluated = {"_step": 99, "eval/step": 4, "eval/loss": 3.0, "_timestamp": START_S + 50}
    text = "\n".join(json.dumps(r) for r in [*rows, evaluated])
    sink = read(text, "h.jsonl")
    assert [r["step"] for r in steps(sink)] == list(range(50))
    assert sink.counters["record_without_step"] == 1


def test_what_holds_no_step_or_no_time_is_no_table_of_steps() -> None:
    for text, name in [
        ("a,b,c\n1,2,3\n", "x.csv"),
        ("step,loss\n1,2.0\n2,2.0\n", "x.csv"),
        ("timestamp,gpu,temp\n1772525000,0,44\n", "x.csv"),
        ('{"step": 1, "loss": 2.0}\n', "x.jsonl"),
        ('{"log_history": [{"step": 1}], "global_step": 1, "time": 1772525000}', "x.json"),
        ("[1, 2, 3]", "x.json"),
    ]:  # fmt: skip
        assert recognise(source_of(text.encode(), name)).ingestor not in {
            t.name for t in TRACKERS
        }, text


def test_several_runs_in_one_download_are_refused() -> None:
    text = '"Step","a - loss","b - loss","a - _timestamp"\n"1","2","2","1772525000"\n'
    with pytest.raises(InputError, match="2 runs"):
        read(text, "x.csv")


def test_broken_records_are_counted_with_their_place() -> None:
    lines = TABLES["scan_history.jsonl"].split("\n")
    text = "\n".join([*lines[:10], "{torn", '{"a": 1e999999', *lines[10:]])
    sink = read(text, "x.jsonl")
    assert len(steps(sink)) == 40
    assert (sink.counters["bad_record"], sink.places["bad_record"]) == (2, 11)
    sink = read(TABLES["array.json"][:-700], "x.json")
    assert 0 < len(steps(sink)) < 40
    assert sink.facts["status"] == "partial"
    odd = "step,timestamp\n" + "".join(f"{i},{START_S + i}\n" for i in range(30)) + "30,1,2,3\n"
    assert read(odd, "x.csv").counters["bad_record"] == 1


def test_numbers_of_strangers_do_not_end_a_table() -> None:
    values = ["9" * 5000, "-1", "NaN", "Infinity", "1e400", "x", "", "1.5", "2e18"]
    text = "step,timestamp,loss,step_time_s\n" + "".join(
        f"{a},{b},{a},{b}\n" for a in ["1", *values] for b in [str(START_S), *values]
    )
    sink = read(text, "x.csv")
    assert {r["step"] for r in steps(sink)} == {1}
    assert {r["dur_ns"] for r in steps(sink)} <= {None, round(1.5e9)}


# --- TensorBoard ---------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def framed(data: bytes) -> bytes:
    """A record as TFRecord frames it; the checksum of the data is not looked at."""
    head = struct.pack("<Q", len(data))
    crc = 0xFFFFFFFF
    for byte in head:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return head + struct.pack("<I", masked) + data + b"\0\0\0\0"


def event(seconds: float, step: int, tag: str, value: float, *, as_tensor: bool = False) -> bytes:
    name = tag.encode()
    number = b"\x15" + struct.pack("<f", value)
    if as_tensor:
        tensor = b"\x08\x01" + b"\x2a\x04" + struct.pack("<f", value)
        number = b"\x42" + varint(len(tensor)) + tensor
    body = b"\x0a" + varint(len(name)) + name + number
    summary = b"\x0a" + varint(len(body)) + body
    return framed(
        b"\x09" + struct.pack("<d", seconds) + b"\x10" + varint(step)
        + b"\x2a" + varint(len(summary)) + summary
    )  # fmt: skip


BEGIN = framed(b"\x09" + struct.pack("<d", START_S) + b"\x1a\x0d" + b"brain.Event:2")
EVENTS = BEGIN + b"".join(
    event(at, i, "lm-loss-training/lm loss", 2.5)
    + event(at, 512 * i, "lm-loss-training/lm loss vs samples", 2.5)
    + event(at + 0.01, i, "iteration-time/iteration-time", dur, as_tensor=True)
    for i, at, dur in series()
)


def test_scalars_of_tensorboard_are_steps() -> None:
    sink = read(EVENTS, "events.out.tfevents.1.host.2.0")
    rows = steps(sink)
    assert [r["step"] for r in rows] == list(range(40))
    assert {r["loss"] for r in rows} == {2.5}
    assert [r["dur_ns"] for r in rows] == pytest.approx([0.76e9] * 40, abs=100)  # of 32 bits
    assert {r["is_averaged"] for r in rows} == {True}
    assert rows[1]["time_ns"] - rows[0]["time_ns"] == pytest.approx(0.8e9, abs=1000)


def test_a_file_that_is_still_written_is_read_to_its_last_whole_record() -> None:
    sink = read(EVENTS[:-20], "events.out.tfevents.1")
    assert len(steps(sink)) == 40  # the last record held a duration
    assert sink.facts["status"] == "partial"
    assert sink.places["record_damaged"] == 120


def test_damage_of_a_length_ends_the_file_there() -> None:
    at = EVENTS.index(event(*series()[20][1::-1], "lm-loss-training/lm loss", 2.5))
    sink = read(EVENTS[:at] + b"\xff" + EVENTS[at + 1 :], "events.out.tfevents.1")
    assert len(steps(sink)) == 20
    assert sink.facts["reason"] == "the checksum of a record's length is wrong"


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_of_every_kind_end_in_rows_or_an_error_of_ours(seed: int) -> None:
    random_ = Random(seed)  # noqa: S311 - no secret
    wholes = [EVENTS, *(t.encode() for t in TABLES.values())]
    for _ in range(60):
        data = bytearray(random_.choice(wholes))
        for _ in range(random_.randint(1, 8)):
            at = random_.randrange(len(data))
            if random_.random() < 0.5:
                data[at] = random_.randrange(256)
            else:
                del data[at : at + random_.randint(1, 50)]
        source = source_of(bytes(data), "x")
        for known in TRACKERS:
            sink = MemorySink()
            try:
                known.read(source, sink, IngestOptions())
            except InputError:
                continue
            assert all(r["step"] is not None for r in steps(sink))


def test_fields_that_lead_nowhere_end_a_message() -> None:
    for data in (
        b"\xff" * 50,
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0b\x01",
        b"\x08",
        b"\x08" + b"\x80" * 30,
    ):
        assert list(tensorboard._fields(data)) == []


# --- real files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "lightning-csv"])
def test_one_recorded_loop_has_the_same_steps_in_each_tracker(name: str) -> None:
    with api.open(FIXTURE / name) as run:
        rows = run.sql("SELECT step, time_ns FROM job_step ORDER BY step, place").rows(named=True)
        assert {r["step"] for r in rows} == set(range(120))
        (summary,) = run.query("job_step_summary").rows(named=True)
        assert summary["p50_ns"] == pytest.approx(0.223e9, rel=0.02)
