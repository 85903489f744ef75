"""Metrics that a program prints behind or below its steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from step_lines import steps_of

import nccl_logs
from tracekit.ingest.nccl import lines

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"


def drawing(step: int, total: int = 90) -> str:
    return f"\r {step}%|█| {step}/{total} [00:{step % 60:02d}<01:00,  1.00it/s]"


def metrics(loss: float | str) -> str:
    said = {"loss": loss, "grad_norm": "1.5", "learning_rate": 2.5e-05, "epoch": "0.1"}
    return f"\r      \r{said}\n"


def losses(folder: Path, text: str) -> tuple[list[tuple[int, float | None]], int]:
    """Loss by step in the order of the file, and the dictionaries that belong to no step."""
    (folder / "train.log").write_text(text)
    read = nccl_logs.read_file(folder / "train.log")
    rows = sorted(read.tables.get("job_step", []), key=lambda r: (r["place"], r["step"]))
    return [(r["step"], r["loss"]) for r in rows], read.counts["metrics_without_step"]


def test_printed_metrics_are_of_the_drawing_right_behind_them(tmp_path: Path) -> None:
    """The one before may be older: step 5 was not drawn until its metrics were printed."""
    text = drawing(4) + metrics("2.5") + drawing(5) + drawing(6) + metrics(2.25) + drawing(6)
    assert losses(tmp_path, text) == ([(4, None), (5, 2.5), (6, None), (6, 2.25)], 0)


def test_metrics_of_a_real_trainer_are_read_with_their_steps() -> None:
    read = nccl_logs.read_file(LOGS / "huggingface-trainer.log")
    told = [r for r in read.tables["job_step"] if r["loss"] is not None]
    assert [r["step"] for r in told] == list(range(5, 151, 5))
    first, last = told[0], told[-1]
    assert (first["loss"], first["grad_norm"], first["learning_rate"]) == (1.444, 7.631, 4.867e-05)
    assert (last["loss"], last["grad_norm"], last["learning_rate"]) == (1.445, 5.67, 3.333e-07)
    assert read.counts["metrics_without_step"] == 0


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        (drawing(4) + metrics(2.5) + metrics(2.25) + drawing(8), 2),
        (metrics(2.5) + drawing(5), 1),
        (drawing(5) + metrics(2.5), 1),
        (drawing(4) + metrics(2.5) + drawing(5, total=20), 1),
        (drawing(4) + metrics(2.5) + drawing(3), 1),
        (drawing(4) + metrics("nan") + drawing(5), 0),
        (drawing(4) + "\n{'eval_loss': '2.5', 'epoch': '1'}\n" + drawing(5), 0),
    ],
    ids=["together", "no bar before", "no bar behind", "another bar", "back", "nan", "evaluation"],
)
def test_metrics_whose_step_is_not_certain_are_left_out_and_counted(
    text: str, unknown: int, tmp_path: Path
) -> None:
    rows, without = losses(tmp_path, text)
    assert {loss for _, loss in rows} == {None}
    assert without == unknown


def test_metrics_find_their_step_across_blocks(tmp_path: Path) -> None:
    """Each dictionary is followed by more text than is read at a time, as is each drawing."""
    noise = ("x" * 99 + "\n") * 12_000
    text = drawing(4) + "\n" + noise + metrics(2.5) + noise + drawing(5) + "\n" + noise
    text += metrics(2.25) + metrics(2.0) + noise + drawing(9) + "\n"
    assert losses(tmp_path, text) == ([(4, None), (5, 2.5), (9, None)], 2)


def test_metrics_stay_with_a_step_that_is_drawn_again(tmp_path: Path) -> None:
    text = drawing(4) + metrics(2.5) + drawing(5) + drawing(5) + drawing(6) + "\n"
    assert losses(tmp_path, text)[0] == [(4, None), (5, 2.5), (6, None)]


COMPOSER = "".join(
    f"[epoch={epoch}][batch={batch}/3]:\n\t Train time/epoch: {epoch - 1}\n"
    f"\t Train loss/train/total: {epoch}.{batch}\n\t Train lr-DecoupledSGDW/group0: 0.1000\n"
    f"\t Train throughput/device/mfu: 0.{batch}\n"
    for epoch in (1, 2)
    for batch in (1, 2, 3)
)


@pytest.mark.parametrize("size", [1 << 20, 100, 37])
def test_metrics_below_a_step_are_its_own_wherever_a_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(lines.read_texts, "__defaults__", (size,))
    text = f"\t Train loss/train/total: 99.0\n{COMPOSER}\t Eval metrics/eval/Accuracy: 0.5\n"
    rows = steps_of(tmp_path, text.encode())
    told = [(r["epoch"], r["step"], r["loss"], r["mfu_ratio"]) for r in rows]
    assert sorted(told) == [
        (epoch - 1, batch, pytest.approx(epoch + batch / 10), pytest.approx(batch / 10))
        for epoch in (1, 2)
        for batch in (1, 2, 3)
    ]
    assert {r["learning_rate"] for r in rows} == {0.1}


def test_composers_own_log_has_its_steps_and_losses() -> None:
    path = LOGS / "composer.log"
    rows = nccl_logs.read_file(path).tables["job_step"]
    printed = [float(x) for x in re.findall(r"loss/train/total: (\S+)", path.read_text())]
    rows.sort(key=lambda r: r["place"])
    assert [(r["epoch"], r["step"]) for r in rows] == [
        (epoch, batch) for epoch in (0, 1) for batch in range(1, 33)
    ]
    assert [r["loss"] for r in rows] == printed
    assert {r["total_steps_count"] for r in rows} == {32}
