"""What a log tells between its steps: which lines are a checkpoint, an evaluation, a collection."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import nccl_logs
from tracekit import api
from tracekit.ingest.steplog import phases

STEP = " iteration {:8d}/    5000 | consumed samples: 1 | elapsed time per iteration (ms): 1000.0 |"
SAVE, LOAD, EVALUATION, COLLECTION, EPOCH = (
    "checkpoint-save",
    "checkpoint-load",
    "evaluation",
    "collection",
    "epoch",
)

LINES = {
    "saving checkpoint at iteration     500 to /ckpt in torch_dist format": SAVE,
    "  successfully saved checkpoint from iteration     500 to /ckpt": SAVE,
    "[titan] 2024-05-01 10:00:00 - root - INFO - Saving the checkpoint (or staging if async)": SAVE,
    "[2024-05-01 10:00:00,1] [INFO] [engine.py:1] Saving model checkpoint: /x/mp_rank_00": SAVE,
    "Saving model checkpoint to ./out/checkpoint-500": SAVE,
    "[2024-05-01 10:00:00] [Torch] Saved /x/global_step500/mp_rank_00_model_states.pt.": SAVE,
    "saving checkpoint to out": SAVE,
    "Saved a checkpoint at step 500.": SAVE,
    "checkpoint written in 12.5 s": SAVE,
    "Epoch 0, global step 100: 'val_loss' reached 2.1, saving model to '/x/a.ckpt' as top 1": SAVE,
    " loading checkpoint from /ckpt at iteration 500": LOAD,
    "Resuming from checkpoint /ckpt/500": LOAD,
    " validation loss at iteration 500 | lm loss value: 5.1E+00 | ": EVALUATION,
    "***** Running Evaluation *****": EVALUATION,
    "step 250: train loss 2.1034, val loss 2.2210": EVALUATION,
    "[titan] validate step: 500  loss:  7.1": EVALUATION,
    "Validation: iteration 1/10": EVALUATION,
    "    evaluate .......................................: (1004.2, 1012.1)": EVALUATION,
    "evaluation took 12.5 s": EVALUATION,
    ':::MLLOG {"namespace": "", "time_ms": 1, "key": "eval_start"': EVALUATION,
    "{'eval_loss': 2.1, 'eval_runtime': 3.2}": EVALUATION,
    "[GC] Performing periodical GC collection. 0.85 seconds": COLLECTION,
    "INFO: garbage collection took 0.4 s": COLLECTION,
    "2024-05-01 10:00:00 | INFO | fairseq.trainer | begin training epoch 3": EPOCH,
    "end of epoch 3 (average epoch stats below)": EPOCH,
    "[rank0]: Starting epoch 4": EPOCH,
    "Epoch 3/10": EPOCH,
    "=== EPOCH 7 ===": EPOCH,
    "Epoch 2 finished in 31.2 s": EPOCH,
    "epoch: 5 done": EPOCH,
    "[titan] 2024-05-01 10:00:00,1 - root - WARNING - Dataset c4_test is being re-looped": EPOCH,
    "Epoch 3/10, step 5, loss 2.1": None,
    "  num epochs = 3": None,
    "training for 3 epochs, start epoch offset off": None,
    "  save_checkpoint_interval ........ 500": None,
    "no valid configuration was evaluated here": None,
    "  eval_interval ................... 250": None,
    "building train, validation, and test datasets": None,
    "activation checkpointing is on": None,
    "gradient checkpointing is enabled: memory is saved": None,
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_lines_between_steps(line: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("\n".join([STEP.format(1), line, STEP.format(2)]) + "\n")
    rows = nccl_logs.read_file(path).tables.get("log_event", [])
    assert [(r["code"], r["place"]) for r in rows] == ([(LINES[line], 2)] if LINES[line] else [])


def test_no_more_lines_are_kept_than_a_job_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "MAX_EVENTS", 3)
    path = tmp_path / "train.log"
    path.write_text("".join(f"{STEP.format(i)}\nsaving checkpoint\n" for i in range(5)))
    sink = nccl_logs.read_file(path)
    assert len(sink.tables["log_event"]) == 3
    assert sink.counts["phase_left_out"] == 2


def log(path: Path, *, every: int, between: str, always: str = "", wait_s: int = 20) -> Path:
    """1,000 steps of a second, at each ``every`` a line and a wait behind it."""
    at, lines = 1_714_557_600, []
    for step in range(1, 1001):
        at += 1
        stamp = f"2024-05-01 {10 + (at - 1_714_557_600) // 3600}:{at // 60 % 60:02d}:{at % 60:02d}"
        lines.append(f"[{stamp}+00:00]" + STEP.format(step))
        if always:
            lines.append(always)
        if step % every == 0:
            lines.append(between)
            at += wait_s
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("between", "name"),
    [
        ("saving checkpoint at iteration", "checkpoints_count"),
        (" validation loss at iteration | lm loss", "evaluations_count"),
        ("[GC] collection", "collections_count"),
        ("begin training epoch 3", "epochs_count"),
    ],
)
def test_a_period_says_what_is_logged_before_it(between: str, name: str, tmp_path: Path) -> None:
    with api.open(log(tmp_path / "train.log", every=100, between=between)) as run:
        (row,) = run.query("slow_episode").rows(named=True)
        assert (row["kind"], row["period_count"], row["times_count"]) == ("periodic", 100, 9)
        counts = {k: v for k, v in row.items() if k.endswith("s_count") and k != "times_count"}
        assert {k: v for k, v in counts.items() if v is not None} == {name: 9}


def waiting(folder: Path, *, rank: int, always_s: float = 0.0) -> Path:
    """1,000 steps of two ranks' metrics: in every hundredth one waits 20 s for its input."""
    folder.mkdir()
    for of in (0, 1):
        at, rows = 1_714_557_600.0, []
        for step in range(1, 1001):
            wait = 20.0 if step % 100 == 0 else 0.0
            at += 1 + wait
            own = wait + always_s if of == rank else always_s
            told = {"step": step, "timestamp": at, "step_time": 1 + wait, "data_time": own}
            rows.append(json.dumps(told))
        (folder / f"rank{of}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.mark.parametrize("rank", [0, 1])
def test_a_period_says_that_a_rank_waited_for_its_input(tmp_path: Path, rank: int) -> None:
    with api.open(waiting(tmp_path / "job", rank=rank)) as run:
        (row,) = run.query("slow_episode").rows(named=True)
        assert (row["kind"], row["times_count"], row["inputs_count"]) == ("periodic", 10, 10)


def test_steps_that_all_wait_for_their_input_explain_no_stall(tmp_path: Path) -> None:
    with api.open(waiting(tmp_path / "job", rank=2, always_s=0.9)) as run:
        (row,) = run.query("slow_episode").rows(named=True)
        assert (row["times_count"], row["inputs_count"]) == (10, None)


def test_what_is_logged_at_every_step_explains_no_stall(tmp_path: Path) -> None:
    path = log(
        tmp_path / "train.log", every=100, between="saving checkpoint",
        always="validation loss at iteration",
    )  # fmt: skip
    with api.open(path) as run:
        (row,) = run.query("slow_episode").rows(named=True)
        assert (row["checkpoints_count"], row["evaluations_count"]) == (9, None)


def test_one_stall_says_so_too(tmp_path: Path) -> None:
    path = log(tmp_path / "train.log", every=600, between="saving checkpoint", wait_s=60)
    with api.open(path) as run:
        rows = run.query("slow_episode").rows(named=True)
        assert [(r["kind"], r["checkpoints_count"]) for r in rows] == [("stall", 1)]
        assert "; the log has a saved checkpoint there" in run.diagnose().verdict.sentence


@pytest.mark.parametrize(
    ("zone", "load_zone", "is_told"),
    [("", "", True), ("Z", "Z", True), ("Z", "", False), ("", "Z", False), (None, "", False)],
)
def test_lines_of_loading_have_their_time_where_it_is_of_the_file_s_kind(
    zone: str | None, load_zone: str, is_told: bool
) -> None:
    def at(minute: int, told: str | None) -> str:
        return "" if told is None else f"2024-05-01T10:{minute:02d}:07.250{told} "

    text = "".join(
        [
            *(f"{at(n, zone)}step {n} loss 2.5\n" for n in range(3)),
            f"{at(10, load_zone)}loading checkpoint from /ckpt\n",
            f"{at(12, load_zone)}checkpoint loaded\n",
            f"{at(13, zone)}saving checkpoint to /ckpt\n",
            *(f"{at(n, zone)}step {n - 13} loss 2.5\n" for n in range(14, 20)),
        ]
    )
    events = nccl_logs.read(text, name="train.log").tables["log_event"]
    second = 10**9 * 1_714_557_607  # 2024-05-01 10:00:07, to the second
    expected = [second + 600 * 10**9, second + 720 * 10**9] if is_told else [None, None]
    assert [e["time_ns"] for e in events if e["code"] == LOAD] == expected
    assert [e["time_ns"] for e in events if e["code"] == SAVE] == [None]
