"""Where a late rank's time goes: late-rank's and slow-host's words, host-pause, unequal-work."""

from __future__ import annotations

from typing import Any

import pytest
from late_jobs import MS, MakeJob, coverage, late_job, part

from excess_rules import PAUSE, WORK, facts_of, place_of
from tracekit.rules.range_names import class_of, words_of


@pytest.mark.parametrize("each", [PAUSE, WORK], ids=lambda r: r.name)
def test_without_matched_calls_they_say_why(make_job: MakeJob, each: Any) -> None:
    job = late_job(make_job, {2: 25})
    job.rows["match_coverage"] = [coverage(is_trusted=False, reason="orders differ")]
    assert "orders differ" in each.run(job.facts()).not_checked[0].needs


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "input"),
        ("[_TrainingEpochLoop].train_dataloader_next", "input"),
        ("get_batch", "input"),
        ("[Strategy]DDPStrategy.batch_to_device", "copy"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("autograd::engine::evaluate_function: MmBackward0", "backward"),
        ("bwd_inner_microstep", "backward"),
        ("forward-compute", "forward"),
        ("save-checkpoint", "checkpoint"),
        ("_compile.compile_inner (dynamo_timed)", "compilation"),
        ("Torch-Compiled Region: 0/1", "forward"),
        ("validation_step", "evaluation"),
        ("log_metrics", "logging"),
        ("gc.collect", "collection"),
        ("logits", None),  # not a log
        ("aten::_log_softmax", "forward"),  # nor are logarithms
        ("nn.Module: LogSoftmax_3", "forward"),
        ("aten::log1p", "forward"),
        ("aten::_log_softmax_backward_data", "backward"),
        ("catalog", None),
        ("log_mel_spectrogram", None),
        ("[GC] Performing periodic GC collection", "collection"),
        ("DeepSpeedEngine.save_checkpoint", "checkpoint"),
        ("PartitionedParameterCoordinator.fetch_sub_module", None),  # gathers parameters (ZeRO-3)
        ("CheckpointFunction", "forward"),  # computes again, and saves nothing
        ("CheckpointFunctionBackward", "backward"),
        ("nn.Module: CheckpointWrapper_3", "forward"),
        ("torch.utils.checkpoint.checkpoint", "forward"),
        ("TransformerBlock._checkpointed_forward", "forward"),
        ("gradient_checkpointing", "forward"),
        ("MseLossBackward0", "backward"),
        ("torch/_dynamo/eval_frame.py: _fn", None),
        ("compile_fx_inner", "compilation"),
        ("validate_args", None),
        ("eval-time", "evaluation"),
        ("[Callback]ModelCheckpoint{'monitor': 'val_loss'}.on_validation_end", "checkpoint"),
        ("", None),
    ],
)
def test_names_that_frameworks_give_their_ranges(name: str, kind: str | None) -> None:
    assert class_of([name]) == kind


@pytest.mark.parametrize("word", ["fetch", "save", "log", "eval", "validate", "gc", "compile"])
def test_short_words_are_a_reason_only_where_they_are_the_whole_name(word: str) -> None:
    assert class_of([f"{word} 3"]) is not None
    assert class_of([f"{word}_tensors"]) is None


def test_the_innermost_name_decides_and_the_users_come_first() -> None:
    assert class_of(["forward", "fetch"]) == "input"
    assert class_of(["fetch", "block"]) == "input"
    assert class_of(["fetch"], [("Fetch", "logging")]) == "logging"
    assert len(words_of("a " * 1000)) == 64


def test_parts_in_all_steps_do_not_swell_the_steps_that_are_told(make_job: MakeJob) -> None:
    """20 ms of a mean step are 100 in each of two of ten; 5 ms in each are in no step alone."""
    rare = part("range", path="dataloader", ms=20, steps=(3, 8))
    always = part("operator", "aten::mm", path="dataloader", ms=5)
    excess = place_of(facts_of(make_job, rare, always))
    assert excess is not None
    assert (excess.steps, excess.affected_ns) == ((3, 8), 100 * MS)
    assert "100 ms in steps 3,8 (2 of 10), none on its peers" in excess.sentence


@pytest.mark.parametrize(
    ("slower_ms", "within", "path"),
    [
        (2, "fetch", "fetch"),
        (8, "fetch", "fetch"),  # 17 of 25 ms in the loader: less than is asked for a range of all
        (13, "fetch", ""),  # 12 of 25: not the most of the delay
        (8, "backward", ""),  # larger batches are in all of the training
    ],
)
def test_what_else_takes_longer_does_not_hide_where_more_is_done(
    make_job: MakeJob, slower_ms: int, within: str, path: str
) -> None:
    """Transforms of a slow loader are calls that peers do not make; the fault is the loader's."""
    more = part("operator", "aten::mm", path=within, ms=25 - slower_ms)
    more |= {"calls_count": 64.0, "peer_calls_count": 0.0, "peer_ns": 0.0}
    slower = part("operator", "aten::addmm", ms=slower_ms)
    slower |= {"calls_count": 30.0, "peer_calls_count": 30.0, "peer_ns": 80e6}
    facts = facts_of(make_job, more, slower)
    excess = place_of(facts)
    assert excess is not None
    assert (excess.path, excess.is_beside_training) == (path, path == "fetch")
    assert bool(WORK.run(facts).findings) is (within == "backward")
