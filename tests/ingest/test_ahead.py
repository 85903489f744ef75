"""Blocks of a log that are looked at ahead, in threads: everything as one thread reads it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import nccl_logs
from tracekit.ingest import IngestOptions, files
from tracekit.ingest.nccl import lines, log
from tracekit.ingest.steplog.ahead import ahead

MEGATRON = (
    " [2024-05-01 10:00:{:02d}] iteration {:8d}/ 1000 | consumed samples: {:12d} | elapsed "
    "time per iteration (ms): 1000.5 | learning rate: 1.5E-04 | global batch size: 128 | "
    "lm loss: 6.9E+00 | loss scale: 1.0 | grad norm: 1.250 | number of skipped iterations: 0 |"
)


def _job() -> str:
    """Steps with timers below, metrics in and below steps, failures, NCCL, a bar, and noise."""
    said = []
    for step in range(1, 13):
        said.append(MEGATRON.format(step, step, 128 * step))
        said.append("(min, max) time across ranks (ms):")
        said.append(f"    forward-compute ..........: ({step}.00, {step + 1}.00)")
        said.append(f"[batch={step}/90]:\n\t Train loss/train/total: {step}.5")
        said.append(f"[rank{step % 4}]: Traceback (most recent call last):")
        said.append(f'[rank{step % 4}]:   File "/a/train.py", line {step}, in main')
        said.append(f"[rank{step % 4}]: ValueError: no")
        said.append("")
        said.append(f"gpu-a:1:2 [0] NCCL INFO comm 0x55b6aa640000 rank {step % 4} nranks 4")
        said.append("saving checkpoint at iteration 7 to /data\n\xff no text")
        said.append(
            "".join(f"\r {n}%|#| {n}/90 [00:{n:02d}<01:00, 1.00it/s]" for n in (step, step + 1))
            + f"{{'loss': {step}.25}}\r 1%|#| {step + 1}/90 [00:59<01:00, 1.00it/s]"
        )
    return "\n".join(said)


def _read(path: Path, threads_count: int) -> nccl_logs.KeptSink:
    (source,) = files.expand([path])
    sink = nccl_logs.KeptSink()
    log.read(source, sink, IngestOptions(threads_count=threads_count))
    return sink


@pytest.mark.parametrize("size", [97, 1 << 21])
def test_threads_read_what_one_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(lines.read_texts, "__defaults__", (size,))
    path = tmp_path / "train.log"
    path.write_bytes(_job().encode("latin-1"))
    one = _read(path, 1)
    assert set(one.tables) >= {"job_step", "job_step_part", "log_event"}
    for count in (2, 5):
        assert _read(path, count) == one


def test_what_is_made_ahead_comes_in_order_and_is_no_more_than_asked() -> None:
    given: list[int] = []
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(20):
            assert len(given) - len(made) <= 3
            given.append(number)
            yield number

    gates = [threading.Event() for _ in range(20)]

    def make(number: int) -> int:
        if number % 2 == 0 and number < 18:  # an even one waits for the next
            assert gates[number + 1].wait(10)
        gates[number].set()
        return number * number

    for square in ahead(make, numbers(), 2):
        made.append(square)
    assert made == [n * n for n in range(20)]


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_comes_when_its_item_would(count: int) -> None:
    made = []
    with pytest.raises(ZeroDivisionError):
        for ratio in ahead(lambda n: 6 // n, [1, 2, 0, 3], count):
            made.append(ratio)
    assert made == [6, 3]


def test_who_leaves_early_waits_for_nothing_that_has_not_begun() -> None:
    begun: list[int] = []
    for _ in ahead(begun.append, range(1000), 2):
        break
    assert len(begun) <= 4
