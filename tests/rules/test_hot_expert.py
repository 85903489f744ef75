"""hot-expert: the rank whose experts get the tokens, never a slow GPU, never an even exchange."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import samples

from tracekit.findings import Severity
from tracekit.rules import rule
from tracekit.rules.base import NOT_APPLICABLE, RuleOutcome

MakeJob = Callable[..., Any]
MS = 1_000_000
HOT = rule("hot-expert")
LAB = Path(__file__).parents[2] / ".." / "shared" / "data" / "lab"


def moe_job(make_job: MakeJob, *late: int, **load: Any) -> Any:
    """``late`` ranks hold the others up by 25 ms; their experts (or rank 2's) have the load."""
    job, delay_ms = make_job(), int(load.pop("delay_ms", 25))
    for rank in range(4):
        own = delay_ms if rank in late else 0
        wait = own * MS * 10 * 3
        job.rows.setdefault("straggler", []).append(
            {"rank": rank, "inflicted_wait_ns": wait, "own_inflicted_wait_ns": wait,
             "exposed_inflicted_wait_ns": wait, "late_count": 5 if own else 0,
             "lateness_ratio": 1 / len(late) if own else 0.0, "peer_ratio": 1.5 if own else 1.0,
             "stage": None, "compute_ratio": 1.5 if own else 1.0, "slowdown_ratio": None,
             "matched_count": 30}
        )  # fmt: skip
        for step in job.steps:
            if own:
                job.rows.setdefault("late_steps", []).append(
                    {"rank": rank, "capture_id": 0, "step": step, "attempt": 1,
                     "own_wait_ns": own * MS, "own_gap_ns": own * MS, "exposed_gap_ns": own * MS,
                     "late_count": 3, "longest_ns": own * MS, "source_id": rank, "place": step}
                )  # fmt: skip
                job.add(rank, step, "compute", own)
            else:
                job.add(rank, step, "exposed_comm", delay_ms if late else 0)
        usual = {"received_ratio": 1.0, "uneven_ratio": 1.0, "other_ratio": 1.0}
        hot = {"received_ratio": 2.0, "uneven_ratio": 2.0, "other_ratio": 1.0, **load}
        job.rows.setdefault("expert_load", []).append(
            {"group_id": "g", "rank": rank, "kind": "ep", "attempt": 1,
             **(hot if rank in (late or (2,)) else usual)}
        )  # fmt: skip
    job.rows["comm_summary"] = [{"rank": 0, "op": "all_to_all"}]
    job.rows["match_coverage"] = [
        {"group_id": "g", "is_trusted": True, "reason": "", "calls_count": 120, "attempt": 1}
    ]
    return job


def test_the_rank_that_gets_the_tokens_is_named_with_what_it_costs(make_job: MakeJob) -> None:
    (finding,) = HOT.run(moe_job(make_job, 2).facts()).findings
    assert finding.id == "hot-expert/2"
    assert finding.owner == "model"
    assert finding.impact.s_per_step == pytest.approx(0.025)
    assert finding.severity is Severity.CRITICAL
    assert finding.confidence.level == "likely"
    assert "2.0x the tokens and 2.0x the computing time of its peers' experts" in finding.summary
    assert finding.rules_out


@pytest.mark.parametrize("received", [1.3, None])
@pytest.mark.parametrize(("compute", "is_said"), [(1.3, True), (1.29, False)])
def test_from_three_tenths_more(
    make_job: MakeJob, received: float | None, compute: float, is_said: bool
) -> None:
    load = {"received_ratio": received, "uneven_ratio": compute}
    if received is not None:
        load = {"received_ratio": compute, "uneven_ratio": None}
    assert bool(HOT.run(moe_job(make_job, 2, **load).facts()).findings) is is_said


def test_equal_shares_that_take_longer_are_no_routers_doing(make_job: MakeJob) -> None:
    load = {"received_ratio": 1.0, "uneven_ratio": 2.0}
    assert HOT.run(moe_job(make_job, 2, **load).facts()) == RuleOutcome()


def test_a_gpu_that_is_slow_everywhere_has_no_hot_expert(make_job: MakeJob) -> None:
    for other, is_said in ((1.10, True), (1.11, False)):
        load = {"received_ratio": None, "uneven_ratio": 1.5, "other_ratio": other}
        found = HOT.run(moe_job(make_job, 2, **load).facts())
        assert bool(found.findings) is is_said, other


def test_hot_experts_that_nobody_waits_for_cost_nothing(make_job: MakeJob) -> None:
    assert HOT.run(moe_job(make_job).facts()) == RuleOutcome()
    assert HOT.run(moe_job(make_job, 2, delay_ms=4).facts()) == RuleOutcome()


def test_a_late_rank_with_its_share_of_tokens_is_another_rules(make_job: MakeJob) -> None:
    load = {"received_ratio": 1.0, "uneven_ratio": 1.0}
    assert HOT.run(moe_job(make_job, 2, **load).facts()) == RuleOutcome()


def many_groups(make_job: MakeJob, delay_ms: int, received: float = 2.0) -> Any:
    """Eight groups of two: the odd rank of each is hot and holds its group up."""
    job = make_job(ranks_count=16)
    for rank in range(16):
        own = delay_ms if rank % 2 else 0
        job.rows.setdefault("straggler", []).append(
            {"rank": rank, "inflicted_wait_ns": own, "own_inflicted_wait_ns": own,
             "late_count": 5 if own else 0, "lateness_ratio": 1 / 8 if own else 0.0,
             "peer_ratio": 1.5 if own else 1.0, "compute_ratio": 1.5, "slowdown_ratio": None,
             "stage": None}
        )  # fmt: skip
        for step in job.steps:
            job.rows.setdefault("late_steps", []).append(
                {"rank": rank, "capture_id": 0, "step": step, "attempt": 1, "own_wait_ns": 0,
                 "own_gap_ns": own * MS, "exposed_gap_ns": own * MS, "late_count": 3,
                 "longest_ns": own * MS, "source_id": rank, "place": step}
            )  # fmt: skip
            job.add(rank, step, "compute" if own else "exposed_comm", delay_ms)
        job.rows.setdefault("expert_load", []).append(
            {"group_id": f"g{rank // 2}", "rank": rank, "kind": "ep", "attempt": 1,
             "received_ratio": received if own else 2 - received, "uneven_ratio": None,
             "other_ratio": 1.0}
        )  # fmt: skip
    job.rows["comm_summary"] = [{"rank": 0, "op": "all_to_all"}]
    job.rows["match_coverage"] = [
        {"group_id": "g", "is_trusted": True, "reason": "", "calls_count": 120, "attempt": 1}
    ]
    return job


def test_an_expert_that_is_hot_in_every_group(make_job: MakeJob) -> None:
    """Each of its ranks has an eighth of all waiting, too little to be called late alone."""
    (finding,) = HOT.run(many_groups(make_job, 25).facts()).findings
    assert finding.scope.ranks == tuple(range(1, 16, 2))
    assert finding.impact.s_per_step == pytest.approx(0.025)
    assert "get up to 2.0x the tokens" in finding.summary
    assert HOT.run(many_groups(make_job, 5).facts()) == RuleOutcome()  # 5 of 105 ms
    assert HOT.run(many_groups(make_job, 25, received=1.2).facts()) == RuleOutcome()


def test_a_load_that_noise_made_names_nobody_beside_the_hot_expert(make_job: MakeJob) -> None:
    """As on a machine whose cores are shared: rank 0 computes 1.4 times as long at its experts and
    holds nobody up for longer than ranks 1 and 2 do."""
    job = moe_job(make_job, 3, received_ratio=None)
    for row in job.rows["expert_load"]:
        row["received_ratio"] = None
        if row["rank"] == 0:
            row["uneven_ratio"] = 1.4
    for row in job.rows["straggler"]:
        row["lateness_ratio"] = {0: 0.05, 1: 0.03, 2: 0.04, 3: 0.88}[row["rank"]]
    for step in job.steps:
        for rank, own_ms in {0: 2, 1: 1, 2: 2}.items():
            job.rows["late_steps"].append(
                {**job.rows["late_steps"][0], "rank": rank, "step": step,
                 "exposed_gap_ns": own_ms * MS}
            )  # fmt: skip
    (finding,) = HOT.run(job.facts()).findings
    assert finding.scope.ranks == (3,)


def test_with_equal_shares_a_slow_gpu_can_be_told(make_job: MakeJob) -> None:
    slow = rule("slow-gpu")
    even = moe_job(make_job, 2, received_ratio=1.0, uneven_ratio=None)
    assert [f.scope.ranks for f in slow.run(even.facts()).findings] == [(2,)]
    for load in ({"received_ratio": 2.0}, {"received_ratio": None}):
        assert slow.run(moe_job(make_job, 2, **load).facts()).not_checked


def test_without_an_exchange_there_are_no_experts(make_job: MakeJob) -> None:
    job = moe_job(make_job, 2)
    job.rows["expert_load"] = []
    assert "all-to-all" in str(HOT.run(make_job().facts()).not_checked)
    assert HOT.run(job.facts()).not_checked
    job.rows["comm_summary"] = [{"rank": 0, "op": "all_reduce"}]
    assert HOT.run(job.facts()) == NOT_APPLICABLE


def test_without_steady_steps_nothing_is_said(make_job: MakeJob) -> None:
    job = moe_job(make_job, 2)
    job.marks = dict.fromkeys(job.steps, "is_warmup")
    assert "steady step" in HOT.run(job.facts()).not_checked[0].needs


@pytest.mark.slow  # test_twins.py and test_culprits.py have recorded hot experts
@pytest.mark.skipif(not LAB.exists(), reason="shared/data/lab is absent")
def test_the_recorded_hot_expert_and_its_healthy_twin() -> None:
    with samples.opened(LAB / "moe-hot-expert-rank1") as run:
        report = run.diagnose(select=["hot-expert", "late-rank"])
    assert report.verdict.finding == "hot-expert/1"
    with samples.opened(LAB / "moe-healthy") as run:
        assert not run.diagnose(select=["hot-expert"]).findings
