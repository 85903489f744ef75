"""Large jobs: what is kept of a step is the same wherever it is kept, and memory has bounds."""

from __future__ import annotations

import gc
import hashlib
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import astuple

from soaks import soak
from tracekit.simulate import Request, engine, prepare, records, write

LAYOUTS = ("ddp-m2", "fsdp", "tp2-sp-pp2-m4", "pp4-zbh1-m8", "pp2-vpp2-m4", "ep8", "cp4", "hsdp2")


def seen(request: Request) -> list[tuple[Any, ...]]:
    """All that a job records; specs as their contents, for each job has its own."""
    found: list[tuple[Any, ...]] = []
    for step in prepare(request).job().run():
        for record in step:
            found.append((record.rank, record.step, record.start_ns, record.end_ns))
            found += [("host", *map(plain, item)) for item in record.host]
            found += [("operation", *map(plain, item)) for item in record.operations]
    return found


def plain(value: Any) -> Any:
    return astuple(value) if isinstance(value, Struct) else value


@pytest.mark.parametrize("layout", soak(LAYOUTS, fast=["cp4", "hsdp2", "pp4-zbh1-m8"]))
@pytest.mark.parametrize("look_ahead", soak([1, 7], fast=[1]))
def test_how_far_hosts_look_ahead_changes_nothing(
    layout: str, look_ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where all wait for what others have not launched yet."""
    request = Request("slow-gpu:1.5", 8, 3, layout, steps_count=2, layers=8)
    expected = seen(request)
    monkeypatch.setattr(engine, "LOOK_AHEAD", look_ahead)
    assert seen(request) == expected


@pytest.mark.parametrize("fault", ["collective-hang", "collective-mismatch"])
def test_nor_does_it_where_a_job_hangs(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(fault, 8, 3, "ddp", steps_count=2)
    expected = seen(request)
    monkeypatch.setattr(engine, "LOOK_AHEAD", 1)
    assert seen(request) == expected


def test_a_host_is_set_aside_until_its_operations_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = 0
    has_room = engine.Process._has_room

    def watched(process: engine.Process) -> bool:
        nonlocal most
        most = max(most, len(process.live))
        return has_room(process)

    monkeypatch.setattr(engine.Process, "_has_room", watched)
    for _ in prepare(Request("none", 16, 1, "tp8-sp-pp2-m8", steps_count=1)).job().run():
        pass
    assert engine.LOOK_AHEAD < most < engine.LOOK_AHEAD + 5, "a launch each time that it is woken"


def held_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "HELD_BYTES", 0)
    monkeypatch.setattr(records, "LEAST_HELD_BYTES", 1_000)


@pytest.mark.slow
@pytest.mark.parametrize("style", soak(["kineto", "nsys", "gloo"], fast=["kineto"]))
def test_rows_that_went_to_a_file_make_the_same_bytes(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request("hot-expert" if style != "gloo" else "gc-pause", 8, 2, steps_count=2,
                      style=style, nccl="coll", counters="all")  # fmt: skip
    write(request, tmp_path / "held")
    held_little(monkeypatch)
    places: list[tuple[int, int]] = []
    spool_write = records.Spool.write

    def watched(spool: records.Spool, data: bytearray) -> tuple[int, int]:
        places.append(spool_write(spool, data))
        return places[-1]

    monkeypatch.setattr(records.Spool, "write", watched)
    write(request, tmp_path / "spooled")
    assert len(places) > 16, "more than one piece a rank"
    assert digests(tmp_path / "spooled") == digests(tmp_path / "held")


def digests(folder: Path) -> dict[str, str]:
    """Of every file: nothing else is left behind either."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_records_can_be_read_again_and_after_later_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request("none", 4, 2, "fsdp", steps_count=3)
    expected = seen(request)
    held_little(monkeypatch)
    steps = list(prepare(request).job().run())
    for _ in range(2):
        found: list[tuple[Any, ...]] = []
        for record in (record for step in steps for record in step):
            found.append((record.rank, record.step, record.start_ns, record.end_ns))
            host = [("host", *map(plain, item)) for item in record.host]
            operations = [("operation", *map(plain, item)) for item in record.operations]
            assert (len(record.host), len(record.operations)) == (len(host), len(operations))
            found += host + operations
        assert found == expected


def peak_bytes(microbatches: int) -> tuple[int, int]:
    """Most memory in use while a job is simulated, beyond what it began with, and its events."""
    job = prepare(
        Request("none", 16, 1, f"tp8-sp-pp2-m{microbatches}", steps_count=1, layers=4)
    ).job()
    gc.collect()
    tracemalloc.start()
    try:
        events = sum(len(record.operations) for step in job.run() for record in step)
        return tracemalloc.get_traced_memory()[1], events
    finally:
        tracemalloc.stop()


@pytest.mark.slow  # a bound of memory; what rows in a file make is asked above, by every run
def test_memory_does_not_follow_the_length_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "HELD_BYTES", 1 << 20)
    monkeypatch.setattr(engine, "LOOK_AHEAD", 16)
    few, few_events = peak_bytes(4)
    many, many_events = peak_bytes(16)
    assert many_events > 3.5 * few_events
    # What does follow it is the program, which all ranks of a stage share.
    assert many < 2 * few
    assert many < 200 * many_events, "as objects an event takes some 900 bytes"
