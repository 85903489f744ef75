"""Steps that are read of progress bars: tqdm's, Keras' and other programs'."""

from __future__ import annotations

from pathlib import Path

import pytest
from step_lines import steps_of

import nccl_logs
from tracekit import api

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"


def keras_bar(step: int, total: int, ms: int, more: str = "") -> str:
    """As Keras 3.15 draws it, with a terminal's colours and what it goes back by."""
    done, left = "\u2501" * step, "\u2501" * (total - step)
    return (
        f"\r\x1b[1m{step:2}/{total}\x1b[0m \x1b[32m{done}\x1b[0m\x1b[37m{left}"
        f"\x1b[0m \x1b[1m1s\x1b[0m {ms}ms/step - loss: 2.5{more}" + "\b" * 70
    )


def test_of_keras_bars_an_epoch_is_a_line_and_what_evaluates_is_none(tmp_path: Path) -> None:
    epochs = [
        "".join(keras_bar(step, 18, ms) for step in (1, 9, 18))
        + keras_bar(18, 18, ms + 40, " - val_loss: 3.0")
        + "\n"
        for ms in (72, 129)
    ]
    text = "Epoch 1/2\n" + epochs[0] + keras_bar(5, 5, 9) + "\nEpoch 2/2\n" + epochs[1]
    rows = steps_of(tmp_path, text.encode())
    assert [(r["epoch"], r["step"], r["dur_ns"]) for r in rows] == [
        (0, 18, 72_000_000), (1, 18, 129_000_000)
    ]  # fmt: skip
    old = "".join(
        f"\r{step}/18 [{'=' * step}>{'.' * (18 - step)}] - ETA: 5s - loss: 2.5" for step in (1, 9)
    )
    old += "\r18/18 [==============================] - 2s 85ms/step - loss: 2.5\n"
    rows = steps_of(tmp_path, old.encode())
    assert [(r["epoch"], r["step"], r["dur_ns"]) for r in rows] == [(0, 18, 85_000_000)]
    # To the second or the ms; what would be half of it, or none of an epoch, is no duration.
    for said, dur_ns in (
        ("450/450 - 675s - 2s/step", 1_500_000_000), ("450/450 - 5s - 3ms/step", None),
        ("5/5 - 10s - 2s/step", None), ("5/5 - 60s - 12s/step", 12_000_000_000),
    ):  # fmt: skip
        rows = steps_of(tmp_path, f"{said} - loss: 2.5\n".encode())
        assert [r["dur_ns"] for r in rows] == [dur_ns]
    predicted = "18/18 \u2501\u2501\u2501 0s 5ms/step\n"
    assert steps_of(tmp_path, predicted.encode()) == []


def test_a_bar_is_drawn_again_in_one_line_and_what_follows_it_is_read(tmp_path: Path) -> None:
    bars = "\r".join(f" {n}%|█| {n}/100 [00:{n:02d}<01:00,  1.00it/s]" for n in (1, 2, 2, 3))
    rows = steps_of(
        tmp_path, f"{bars}slurmstepd: error: *** JOB 1 ON n CANCELLED AT now ***\n".encode()
    )
    assert [(r["place"], r["step"], r["elapsed_ns"]) for r in rows] == [
        (1, n, n * 10**9) for n in (1, 2, 3)
    ]
    run = api.open(tmp_path / "run")
    events = run.sql("SELECT code FROM nccl_event").to_dicts()
    assert "job_ended" in {e["code"] for e in events}


def test_what_a_watchdog_says_behind_a_bar_keeps_its_rank() -> None:
    """Its line has brackets of its own, the bar's bracket is the first of them."""
    text = (
        " 5%|#| 5/100 [6:28:43<94:39:17,  1.37it/s, loss=2.6, v_num=95nc][E ProcessGroupNCCL.cpp:"
        "458] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=961, "
        "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800887 milliseconds before timing out.\n"
    )
    (event,) = nccl_logs.read(text).tables["log_event"]
    assert event["code"] == "watchdog-timeout"
    assert event["fields"] == [
        "rank=3", "sequence=961", "op=all_reduce", "timeout_ms=1800000", "ran_ms=1800887",
    ]  # fmt: skip


def test_bars_state_a_time_where_others_state_none(tmp_path: Path) -> None:
    bar = " {}%|#| {}/100 [00:{:02d}<01:00,  1.00it/s]\n"
    text = bar.format(1, 1, 1) + "2024-05-01 10:00:00" + bar.format(2, 2, 2)
    dated = steps_of(tmp_path, text.encode())
    assert [r["time_ns"] for r in dated] == [None, 1_714_557_600 * 10**9]


@pytest.mark.parametrize(
    ("name", "epochs", "last"),
    [("huggingface-trainer", [None], 150), ("lightning", [0, 1, 2, 3], 25)],
)
def test_bars_of_real_programs_are_read_to_their_last_step(
    name: str, epochs: list[int | None], last: int
) -> None:
    rows = nccl_logs.read_file(LOGS / f"{name}.log").tables["job_step"]
    assert list(dict.fromkeys(r["epoch"] for r in rows)) == epochs
    ends = [max(r["step"] for r in rows if r["epoch"] == e) for e in epochs]
    assert ends == [last] * len(epochs)
    assert {r["total_steps_count"] for r in rows} == {last}


@pytest.mark.parametrize(
    "name", ["Map (num_proc=8)", "Loading checkpoint shards", "Writing model shards", "Evaluating",
             "Generating train split", "Validation DataLoader 0", "Sanity Checking DataLoader 0"]
)  # fmt: skip
def test_bars_of_something_else_than_training_are_no_steps(tmp_path: Path, name: str) -> None:
    text = "".join(
        f"\r{name}: {n:3d}%|## | {n}/100 [00:{n % 60:02d}<00:10, 1.00it/s]" for n in range(100)
    )
    other = "\n".join(
        ("begin", text, *(f"  {n}%|# | {n}/50 [00:0{n}<00:10, 1.00it/s]" for n in range(1, 6)))
    )
    assert {r["total_steps_count"] for r in steps_of(tmp_path, other.encode())} == {50}


@pytest.mark.parametrize("pace", ["7.65ba/s", "1.20s/ba", "3.1batch/s", "2.0s/step", "9.9steps/s"])
def test_bars_count_batches_and_steps_too(tmp_path: Path, pace: str) -> None:
    text = "".join(
        f"\rtrain          Epoch   2:   5%|#     | {n}/40 [00:0{n}<00:07, {pace}, loss=2.4]    "
        for n in range(1, 4)
    )
    rows = steps_of(tmp_path, f"{text}\n".encode())
    assert [(r["epoch"], r["step"], r["elapsed_ns"]) for r in rows] == [
        (2, n, n * 10**9) for n in range(1, 4)
    ]
