"""Where a late rank's time goes: late-rank's and slow-host's words, host-pause, unequal-work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from late_jobs import MS, MakeJob, coverage, late_job, part

from tracekit.findings import Severity
from tracekit.job import parse_job
from tracekit.rules import rule
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.excess import Excess, ordinal, where_it_lies
from tracekit.rules.range_names import class_of, words_of

LATE, HOST, GPU = rule("late-rank"), rule("slow-host"), rule("slow-gpu")
PAUSE, WORK, DATA = rule("host-pause"), rule("unequal-work"), rule("dataloader-stall")


def facts_of(make_job: MakeJob, *rows: dict[str, Any], **options: Any) -> Facts:
    """A job whose rank 2 delays every step by 25 ms of 125."""
    job = late_job(make_job, {2: 25}, **options)
    job.rows["excess"] = list(rows)
    facts: Facts = job.facts()
    return facts


def place_of(facts: Facts) -> Excess | None:
    """What late-rank is told of rank 2."""
    return where_it_lies(facts.limited(LATE.reads, LATE), 2, 25 * MS)


PAUSED = part("pause", "between forward and aten::add", ms=25)
MORE = part("operator", "aten::mm", ms=50, peer_ms=25, calls_count=6.0, peer_calls_count=3.0)
SLOWER = part("operator", "aten::mm", ms=50, peer_ms=25, calls_count=3.0, peer_calls_count=3.0)
INPUT = part("range", path="train/dataloader", ms=25, peer_ms=0.2, steps=(2, 6, 10))


def test_the_range_the_steps_and_the_peers_are_in_the_sentence(make_job: MakeJob) -> None:
    (found,) = LATE.run(facts_of(make_job, INPUT)).findings
    assert found.summary.endswith(
        ": in `train/dataloader` (input): 83.3 ms in steps 2,6,10 (3 of 10, every 4th), "
        "667 us on its peers."
    )
    assert found.owner == "data"
    whole = next(e for e in found.evidence if e.query == "excess")
    assert [row.source for row in whole.rows] == ["r2.json"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([PAUSED], ": nothing recorded between forward and aten::add: 25.0 ms in every step, none"),
        ([MORE], ": more calls of aten::mm (6 a step, its peers 3): 50.0 ms in every step, 25.0"),
        ([SLOWER], ": aten::mm takes 2.0x at as many calls: 50.0 ms in every step, 25.0 ms on its"),
        (
            [part("operator", f"op{i}", ms=5, steps=(i,)) for i in range(1, 6)],
            ": 5 operators, calls and pauses stretched at random, one by up to 50.0 ms, as where a",
        ),
        (
            [part("between", ms=13), part("pause", "between a and b", ms=12)],
            ": between operators and nothing recorded between a and b: 25.0 ms in every step",
        ),
    ],
)
def test_what_kind_of_excess_it_is(
    make_job: MakeJob, rows: list[dict[str, Any]], words: str
) -> None:
    (found,) = LATE.run(facts_of(make_job, *rows)).findings
    assert words in found.summary


@pytest.mark.parametrize(
    "row",
    [
        part("pause", "between a and b", ms=12),  # under half of the delay
        part("wait", "cudaStreamSynchronize"),  # for others
        part("range", path="dataloader", spread_ns=8.0 * MS),  # its peers scatter as far
        part("range", path="dataloader", excess_ns=None, spread_ns=None),  # it has no peers
        part("range", path="dataloader", rank=1),
        part("range", path="dataloader", peers="job"),  # beside other stages of a pipeline
    ],
    ids=["half", "wait", "spread", "alone", "another", "stages"],
)
def test_what_is_no_excess_is_not_said(make_job: MakeJob, row: dict[str, Any]) -> None:
    (found,) = LATE.run(facts_of(make_job, row)).findings
    assert "so its host holds it up" in found.summary
    assert not [e for e in found.evidence if e.query == "excess"]


def test_what_lies_on_the_device_comes_before_the_host(make_job: MakeJob) -> None:
    kernel = part("kernel", "gemm", ms=40, peer_ms=20, timeline="device", peer_calls_count=1.0)
    found = place_of(facts_of(make_job, SLOWER, kernel))
    assert found is not None
    assert (found.nature, found.rows[0]["name"]) == ("slower work", "gemm")


def test_the_innermost_range_that_holds_most_is_named(make_job: MakeJob) -> None:
    rows = [part("operator", "aten::stack", "train/fetch/collate", ms=11),
            part("operator", "aten::cat", "train/fetch", ms=9),
            part("operator", "aten::mm", "train", ms=2)]  # fmt: skip
    found = place_of(facts_of(make_job, *rows))
    assert found is not None
    assert (found.path, found.reason) == ("train/fetch", "input")


# --- host-pause ----------------------------------------------------------------------------------


def test_a_rank_that_stands_still_is_named_with_the_place(make_job: MakeJob) -> None:
    (found,) = PAUSE.run(facts_of(make_job, PAUSED)).findings
    assert found.scope.ranks == (2,)
    assert found.severity is Severity.CRITICAL
    assert "code there that no range names" in found.summary


def test_a_pause_that_moves_about_comes_from_outside(make_job: MakeJob) -> None:
    moving = [part("pause", f"between a and b{i}", ms=6, steps=(i,)) for i in range(1, 5)]
    (found,) = PAUSE.run(facts_of(make_job, *moving)).findings
    assert "the place changes" in found.summary


@pytest.mark.parametrize(
    "row",
    [
        part("pause", "between a and b", ms=12),  # under half
        part("range", path="sleep"),  # a range says what it is
        part("pause", "between a and b", path="save_checkpoint"),
        SLOWER,
        MORE,
    ],
    ids=["half", "range", "checkpoint", "slower", "more"],
)
def test_what_is_no_pause(make_job: MakeJob, row: dict[str, Any]) -> None:
    assert PAUSE.run(facts_of(make_job, row)) == RuleOutcome()


def test_a_pause_that_delays_nobody_is_silent(make_job: MakeJob) -> None:
    job = late_job(make_job, {2: 4})
    job.rows["excess"] = [PAUSED]
    assert PAUSE.run(job.facts()) == RuleOutcome()


# --- dataloader-stall ----------------------------------------------------------------------------


def test_a_rank_that_is_late_in_a_range_for_input_waits_for_its_data(make_job: MakeJob) -> None:
    (found,) = DATA.run(facts_of(make_job, INPUT)).findings
    assert (found.scope.ranks, found.owner) == ((2,), "data")
    assert ": in `train/dataloader` (input): 83.3 ms in steps 2,6,10" in found.summary


@pytest.mark.parametrize(
    "row",
    [INPUT | {"excess_ns": 12e6}, INPUT | {"path": "save_checkpoint"}, PAUSED],
    ids=["half", "checkpoint", "pause"],
)
def test_what_is_no_wait_for_input(make_job: MakeJob, row: dict[str, Any]) -> None:
    outcome = DATA.run(facts_of(make_job, row))
    assert not outcome.findings
    assert "waits for input recorded" in outcome.not_checked[0].needs


def test_a_rank_whose_waits_are_recorded_is_judged_by_these(make_job: MakeJob) -> None:
    facts = facts_of(make_job, INPUT)
    wait = {"rank": 2, "attempt": 1, "capture_id": 0, "step": 2, "stall_ns": MS, "exposed_ns": 0,
            "ranges_count": 1, "longest_ns": MS, "source_id": 2, "place": 1}  # fmt: skip
    assert DATA.run(replace(facts, rows={**facts.rows, "input_stall": [wait]})) == RuleOutcome()


def test_an_input_range_that_delays_nobody_accuses_nobody(make_job: MakeJob) -> None:
    job = late_job(make_job, {2: 4})
    job.rows["excess"] = [INPUT]
    assert not DATA.run(job.facts()).findings


# --- unequal-work --------------------------------------------------------------------------------


def test_a_rank_with_more_calls_has_more_work(make_job: MakeJob) -> None:
    (found,) = WORK.run(facts_of(make_job, MORE)).findings
    assert found.scope.ranks == (2,)
    assert "more calls of aten::mm (6 a step, its peers 3)" in found.summary
    assert found.owner == "model"


@pytest.mark.parametrize(
    "row",
    [
        MORE | {"calls_count": 4.4},  # 11.7 ms of the 25 are in calls that its peers do not make
        MORE | {"path": "validation"},
        SLOWER,
        PAUSED,
    ],
    ids=["half", "evaluation", "slower", "pause"],
)
def test_what_is_not_more_work(make_job: MakeJob, row: dict[str, Any]) -> None:
    assert WORK.run(facts_of(make_job, row)) == RuleOutcome()


def test_experts_get_unequal_shares_by_nature(make_job: MakeJob) -> None:
    facts = facts_of(make_job, MORE)
    facts = replace(facts, rows={**facts.rows, "comm_summary": [{"op": "all_to_all"}]})
    outcome = WORK.run(facts)
    assert not outcome.findings
    assert "tokens" in outcome.not_checked[0].needs


@pytest.mark.parametrize("each", [PAUSE, WORK], ids=lambda r: r.name)
def test_without_matched_calls_they_say_why(make_job: MakeJob, each: Any) -> None:
    job = late_job(make_job, {2: 25})
    job.rows["match_coverage"] = [coverage(is_trusted=False, reason="orders differ")]
    assert "orders differ" in each.run(job.facts()).not_checked[0].needs


# --- slow-host -----------------------------------------------------------------------------------


def test_a_slow_host_says_what_takes_longer(make_job: MakeJob) -> None:
    (found,) = HOST.run(facts_of(make_job, SLOWER)).findings
    assert found.summary.endswith("aten::mm takes 2.0x at as many calls: 50.0 ms in every step, "
                                  "25.0 ms on its peers.")  # fmt: skip


def test_a_slow_gpu_says_which_kernels_take_longer(make_job: MakeJob) -> None:
    kernel = part("kernel", "gemm", ms=40, peer_ms=20, timeline="device", calls_count=1.0)
    slow = dict.fromkeys([2], 20)
    (found,) = GPU.run(facts_of(make_job, kernel, compute=1.25, compute_ms=slow)).findings
    assert ": gemm takes 2.0x at as many calls: 40.0 ms in every step, 20.0" in found.summary


@pytest.mark.parametrize("row", [PAUSED, MORE, INPUT], ids=["pause", "more", "input"])
def test_a_host_that_does_something_else_is_not_slow(
    make_job: MakeJob, row: dict[str, Any]
) -> None:
    assert HOST.run(facts_of(make_job, row)) == RuleOutcome()


# --- names ---------------------------------------------------------------------------------------


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
        ("catalog", None),
        ("", None),
    ],
)
def test_names_that_frameworks_give_their_ranges(name: str, kind: str | None) -> None:
    assert class_of([name]) == kind


def test_the_innermost_name_decides_and_the_users_come_first() -> None:
    assert class_of(["forward", "fetch"]) == "input"
    assert class_of(["fetch", "block"]) == "input"
    assert class_of(["fetch"], [("Fetch", "logging")]) == "logging"
    assert len(words_of("a " * 1000)) == 64


def test_a_job_description_adds_names(make_job: MakeJob) -> None:
    row = part("range", path="shard prep")
    facts = facts_of(make_job, row)
    assert "in `shard prep`: " in LATE.run(facts).findings[0].summary
    text = b'[[range]]\nname = "shard prep"\nkind = "input"\n'
    told = replace(facts, description=parse_job(text, "job.toml"))
    assert "in `shard prep` (input): " in LATE.run(told).findings[0].summary


def test_ordinals() -> None:
    assert [ordinal(n) for n in (2, 3, 4, 11, 21)] == ["2nd", "3rd", "4th", "11th", "21st"]
