"""Stacks of processes: what is read of each program's dump, and what is never kept.

The recorded ones are of one real job (fixtures/stacks); the others are made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from memory_sink import MemorySink, source_of

from tracekit.ingest import IngestOptions, ingestor, recognise
from tracekit.ingest.files import source_file
from tracekit.ingest.stackdumps import frames, reader

STACKS = Path(__file__).parents[2] / "fixtures" / "stacks"
IN_LOADER = [
    "read_shard (train.py:37)",
    "__getitem__ (train.py:31)",
    "<listcomp> (torch/utils/data/_utils/fetch.py:54)",
    "fetch (torch/utils/data/_utils/fetch.py:54)",
    "_next_data (torch/utils/data/dataloader.py:785)",
    "__next__ (torch/utils/data/dataloader.py:725)",
    "main (train.py:53)",
    "<module> (train.py:61)",
]
IN_ALL_REDUCE = [
    "all_reduce (torch/distributed/distributed_c10d.py:3252)",
    "wrapper (torch/distributed/c10d_logger.py:83)",
    "main (train.py:56)",
    "<module> (train.py:61)",
]


def ingest(source: Any) -> MemorySink:
    recognised = recognise(source)
    assert recognised.ingestor is not None, recognised.reason
    sink = MemorySink()
    ingestor(recognised.ingestor).read(source, sink, IngestOptions())
    return sink


def recorded(name: str) -> MemorySink:
    return ingest(source_file(STACKS / name))


def made(text: str, name: str = "dump.txt") -> MemorySink:
    return ingest(source_of(text.encode(), name))


def python_only(stack: list[str]) -> list[str]:
    """Its frames of Python, methods without their class."""
    found = [f.rpartition(" (") for f in stack if ".py:" in f]
    return [f"{name.rpartition('.')[2]} ({where}" for name, _, where in found]


def mains(sink: MemorySink) -> list[dict[str, Any]]:
    return [row for row in sink.rows("thread_stack") if row["is_main"]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pyspy-1-rank2.txt", IN_LOADER),
        ("pyspy-1-rank0.txt", IN_ALL_REDUCE),
        ("json-rank2.json", IN_LOADER),
        ("locals-rank2.txt", IN_LOADER),
        ("native-rank2.txt", IN_LOADER),
        ("native-rank0.txt", IN_ALL_REDUCE),
        ("pybt-rank1.txt", IN_LOADER),
        ("torchrun/attempt_0/2/stderr.log", IN_LOADER),
        ("torchrun/attempt_0/0/stderr.log", IN_ALL_REDUCE),
    ],
)
def test_each_program_shows_the_same_stack(name: str, expected: list[str]) -> None:
    (main,) = mains(recorded(name))
    assert python_only(main["frames"]) == expected


def test_gdb_shows_native_frames_without_their_arguments() -> None:
    sink = recorded("gdb-rank0.txt")
    rows = sink.rows("thread_stack")
    assert [(r["pid"], r["is_main"]) for r in rows] == [(10348, False)] * 3 + [(10348, True)]
    assert "c10d::Work::wait (torch/lib/libtorch_cpu.so)" in rows[-1]["frames"]
    assert rows[1]["frames"][6] == "gloo::(anonymous namespace)::ring (torch/lib/libtorch_cpu.so)"
    assert not any("=" in f for r in rows for f in r["frames"])


def test_each_rank_of_a_launcher_is_told_apart() -> None:
    rows = recorded("tee.log").rows("thread_stack")
    stood = {(r["local_rank"], python_only(r["frames"])[0]) for r in rows}
    assert stood == {
        (0, IN_ALL_REDUCE[0]), (1, IN_LOADER[0]), (2, IN_ALL_REDUCE[0]), (3, IN_ALL_REDUCE[0])
    }  # fmt: skip
    assert len({r["dump_number"] for r in rows}) == len(rows) == 8
    (row,) = recorded("torchrun/attempt_0/3/stderr.log").rows("thread_stack")
    assert row["local_rank"] == 3


def test_each_process_of_a_dump_is_told_apart() -> None:
    rows = mains(recorded("subprocesses.txt"))
    assert [r["pid"] for r in rows] == [3148, 3258, 3257, 3255, 3256]
    assert [r["dump_number"] for r in rows] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("path", sorted(STACKS.rglob("*.*")), ids=lambda p: p.name)
def test_no_secret_is_kept(path: Path) -> None:
    if path.suffix in (".md", ".py"):
        return
    sink = recorded(str(path.relative_to(STACKS)))
    shown = str(sink.rows("thread_stack")) + str(sink.facts) + str(sink.shapes)
    assert "planted" not in shown
    assert "/job" not in shown


FAULT = """\
{0}Timeout (0:05:00)!
{0}Thread 0x00007f57b1043b81 [pin] (most recent call first):
{0}  File "/usr/lib/python3.12/threading.py", line 355 in wait
{0}
{0}Thread 0x00007f57b1043b80 (most recent call first):
{0}  Garbage-collecting
{0}  File "/home/me/x.py", line 3 in step
{0}  File "/home/me/x.py", line 9 in <module>
"""


def test_faulthandler_of_several_ranks_in_one_log() -> None:
    first = FAULT.format("[rank0]: ").splitlines(keepends=True)
    second = FAULT.format("[rank1]: ").splitlines(keepends=True)
    mixed = "".join(line for pair in zip(first, second, strict=True) for line in pair)
    rows = made("starting\n" + mixed + mixed, "train.log").rows("thread_stack")
    assert sorted({(r["stated_rank"], r["dump_number"]) for r in rows}) == [
        (0, 1), (0, 3), (1, 2), (1, 4)
    ]  # fmt: skip
    (main,) = [r for r in rows if r["is_main"] and r["dump_number"] == 1]
    assert main["frames"] == ["Garbage-collecting", "step (x.py:3)", "<module> (x.py:9)"]
    other = next(r for r in rows if not r["is_main"])
    assert other["frames"] == ["wait (threading.py:355)"]


def test_a_thread_that_comes_again_is_another_dump() -> None:
    one = FAULT.format("").partition("\n")[2]
    rows = made(one + "\n" + one, "dump.txt").rows("thread_stack")
    assert [r["dump_number"] for r in rows] == [1, 1, 2, 2]


def test_the_watchdog_says_which_call_failed() -> None:
    text = (
        "[default3]:[rank3]:[E123 c10d.cpp:70] [PG ID 0 PG GUID 0(default_pg) Rank 3] "
        "Stack trace of the failed collective: \n"
        "[default3]:#0 all_reduce from /v/site-packages/torch/distributed/distributed_c10d.py:28\n"
        "[default3]:#1 step from /home/me/train.py:12\n"
        "[default3]:\n[default3]:#2 late from /home/me/train.py:13\n"
    )
    (row,) = made(text, "job.log").rows("thread_stack")
    assert (row["format"], row["stated_rank"], row["local_rank"]) == ("watchdog", 3, 3)
    assert row["frames"] == [
        "all_reduce (torch/distributed/distributed_c10d.py:28)", "step (train.py:12)"
    ]  # fmt: skip


def test_the_rank_that_a_command_states() -> None:
    text = (
        "Process 7: python train.py --rank=5 --local_rank 1 --key SECRET\nPython v3.12.1 (p)\n\n"
        'Thread 9 (idle): "Thread-1 (run)"\n    wait (threading.py:3)\n'
        'Thread 7 (active+gil): "x"\n    step (train.py:1)\n'
    )
    rows = made(text).rows("thread_stack")
    assert [(r["pid"], r["stated_rank"], r["local_rank"]) for r in rows] == [(7, 5, 1)] * 2
    assert [(r["is_main"], r["state"]) for r in rows] == [(False, "idle"), (True, "active")]


def test_arguments_in_python_frames_of_gdb_are_left_out() -> None:
    text = (
        'Thread 1 (Thread 0x7f12 (LWP 44) "python"):\n'
        '#0  0x00007f in poll (fds=0x1, note="a) at SECRET") at ../poll.c:29\n'
        "#1  0x00007f in _PyEval_EvalFrameDefault (tstate=0x1, f=Frame 0x2, for file "
        "/home/me/load.py, line 12, in fetch (token='SECRET'), throwflag=0) at ceval.c:1\n"
        "#2  _PyEval (f=Frame 0x2, for file /home/me/load.py, line 20, in main (key='SECRET'"
        "...(truncated)) at\n    ceval.c:1\n"
        "#3  0x00007f in ?? ()\n#4 0x1 in operator() (x=SECRET) from\n"
    )
    (row,) = made(text).rows("thread_stack")
    assert row["pid"] == 44
    assert row["frames"] == [
        "poll (poll.c:29)", "fetch (load.py:12)", "main (load.py:20)", "?", "operator()"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "file", "shown"),
    [
        ("f", "/a/lib/python3.13t/site-packages/x/y.py", "f (x/y.py:4)"),
        ("f", "C:\\Users\\me\\train.py", "f (train.py:4)"),
        ("f", "~/me/train.py", "f (train.py:4)"),
        ("f", "<frozen runpy>", "f (<frozen runpy>:4)"),
        ("f", "/x/a file; rm.py", "f"),
        ("f\x1b[2J", "a.py", "? (a.py:4)"),
        ("a::b(int, char)", "lib.so", "a::b (lib.so:4)"),
        ("", "a.py", "? (a.py:4)"),
        ("x" * 5000, "a.py", "x" * frames.MAX_FUNCTION + " (a.py:4)"),
    ],
)
def test_what_is_kept_of_a_frame(function: str, file: str, shown: str) -> None:
    assert frames.frame(function, file, 4) == shown


def test_a_log_of_something_else_has_no_stacks() -> None:
    text = "Process 12: done\nstep 3\nThread 5 (x)\n"
    text += '  File "a.py", line 3 in f\n#0  f () at a.c:1\n'
    sink = made(text + "iter 3: loss 2.0, time 5.00ms, mfu 1.00%\n", "train.log")
    assert sink.rows("thread_stack") == []


def test_a_training_log_with_stacks_in_it_stays_a_training_log() -> None:
    steps = "".join(f"iter {n}: loss 2.0, time 5.00ms, mfu 1.00%\n" for n in range(50))
    sink = made(steps + FAULT.format(""), "out.txt")
    assert len(sink.rows("job_step")) == 50
    assert len(sink.rows("thread_stack")) == 2


@pytest.mark.parametrize(
    "text",
    [
        '[{"os_thread_id": 1, "frames": [{"name": 3}, 4, {"name": "f", "line": 1e99}]}, 7',
        '[{"os_thread_id": null, "frames": "x"}, {"frames": []}]',
        "[" * 100_000 + '{"os_thread_id": 1, "frames": []}',
        'Thread 1 (idle): "a"\n' * 3000,
        'Thread 1 (idle): "a"\n' + "    f (a.py:1)\n" * 5000,
    ],
)
def test_hostile_dumps_are_read_in_bounds(text: str) -> None:
    recognised = recognise(source_of(text.encode(), "d.json"))
    if recognised.ingestor is None:
        return
    sink = made(text, "d.json")
    assert all(len(r["frames"]) <= frames.MAX_FRAMES for r in sink.rows("thread_stack"))
    assert sink.facts["place_kind"] in ("event", "line")


def test_a_file_that_breaks_off_keeps_what_it_has() -> None:
    whole = (STACKS / "json-rank2.json").read_text()
    sink = made(whole + whole[:-30], "d.json")
    assert len(sink.rows("thread_stack")) == 1
    assert sink.facts["status"] == "partial"


def test_what_never_ends_is_let_go_before_it_fills_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "MAX_HELD_FRAMES", 20)
    kept = reader.StackReader(MemorySink())
    for n in range(100):
        kept.take(b"[rank%d]: Thread 0x%x (most recent call first):" % (n, n), 2 * n + 1)
        kept.take(b'[rank%d]:   File "a.py", line 1 in f' % n, 2 * n + 2)
    assert kept.count == 84  # each time that 21 frames were held
    kept.finish()
    assert kept.count == 100
