"""A pipeline's stage that is one rank and takes longer: by its layers, or for what runs them."""

from __future__ import annotations

from typing import Any

import pytest
from late_jobs import part
from msgspec.structs import replace

from pipeline_rules import STAGES, MakeJob, Replayed, bubble_rows, facts, stage_rows
from tracekit.rules import rule
from tracekit.rules.base import Facts, RuleOutcome

GPU, HOST = rule("slow-gpu"), rule("slow-host")


def heavy_job(
    make_job: MakeJob,
    *,
    measured_on: str = "gpu",
    ranks: tuple[int, ...] = (3,),
    ms: float = 40,
    **given: Any,
) -> Facts:
    """Stage 3 computes 40 ms of a step longer than the others, ``ms`` of it in as many calls."""
    job = make_job(measured_on=measured_on, ranks_count=max(4, ranks[-1] + 1))
    kind, timeline = ("kernel", "device") if measured_on == "gpu" else ("operator", "host")
    calls: dict[str, Any] = {"calls_count": 8.0, "peer_calls_count": 8.0, "input_ratio": 1.0}
    job.rows["excess"] = [
        part(
            name="gemm", ms=20 + ms, peer_ms=20, rank=rank, peers="job", timeline=timeline,
            **{"kind": kind, **calls, **given},
        )
        for rank in ranks
    ]  # fmt: skip
    for rank in set(ranks) - {3}:
        for step in job.steps:
            job.add(rank, step, "compute", 40)
    stages = stage_rows(10, 10, 10, 20)
    stages[3] |= {"ranks": list(ranks), "replicas_count": len(ranks)}
    return facts(job, stages, bubble_rows(0.6, 0.6, 0.6, 0.2))


@pytest.mark.parametrize(
    ("measured_on", "slow", "other", "says"),
    [
        ("gpu", GPU, HOST, "Rank 3 (stage 3) does the same work and computes 2.00x as long"),
        ("host", HOST, GPU, "Rank 3 (stage 3) does the same work, its host is slow, and it comp"),
    ],
)
def test_who_does_the_same_work_more_slowly_is_a_slow_gpu_or_host(
    make_job: MakeJob, measured_on: str, slow: Any, other: Any, says: str
) -> None:
    given = heavy_job(make_job, measured_on=measured_on)
    (finding,) = slow.run(given).findings
    assert finding.scope.ranks == (3,)
    assert finding.summary.startswith(says)
    assert "the others wait 22.5 ms a step" in finding.summary
    assert finding.confidence.level == "likely"
    assert finding.impact.s_per_step == pytest.approx(0.0225)
    assert not other.run(given).findings
    assert STAGES.run(given) == RuleOutcome()


def test_its_price_is_not_bounded_by_work_that_others_could_take(make_job: MakeJob) -> None:
    given = replace(heavy_job(make_job), replay=Replayed(stage_ms=30.0, evenly_ms=12.0))
    (finding,) = GPU.run(given).findings
    assert finding.impact.s_per_step == pytest.approx(0.030)
    assert finding.impact.low_s_per_step == pytest.approx(0.030 - 0.02 * given.step_ns / 1e9)
    assert finding.counter_evidence == ()


@pytest.mark.parametrize(
    "given",
    [
        {"ms": 19},  # under half of what it takes longer
        {"calls_count": 17.0},
        {"input_ratio": 2.1},
        {"input_ratio": None},  # nobody recorded on how much
        {"kind": "pause"},
    ],
    ids=["a small part", "more calls", "larger inputs", "inputs not recorded", "no calls"],
)
@pytest.mark.parametrize("measured_on", ["gpu", "host"])
def test_what_may_be_its_layers_is_told_of_the_stage(
    make_job: MakeJob, measured_on: str, given: dict[str, Any]
) -> None:
    job = heavy_job(make_job, measured_on=measured_on, **given)
    assert not GPU.run(job).findings and not HOST.run(job).findings
    (finding,) = STAGES.run(job).findings
    assert finding.remedy[0].startswith("move layers away from stage 3")


def test_within_what_the_other_stages_differ_by_nobody_is_slow(make_job: MakeJob) -> None:
    """As where ranks share the cores of a host: the layers are not to blame, nor is anybody."""
    job = heavy_job(make_job, measured_on="host", spread_ns=12e6)
    assert not HOST.run(job).findings
    assert STAGES.run(job) == RuleOutcome()


def test_where_all_ranks_of_a_stage_are_slow_its_layers_are_left_alone(make_job: MakeJob) -> None:
    job = heavy_job(make_job, ranks=(3, 4))
    assert not GPU.run(job).findings
    (finding,) = STAGES.run(job).findings
    assert "not its layers, but what runs them is slow" in finding.summary
    assert "layers may stay as they are" in finding.remedy[0]


def test_experts_get_unequal_shares_so_no_stage_is_slow_for_them(make_job: MakeJob) -> None:
    job = heavy_job(make_job)
    job = replace(job, rows={**job.rows, "comm_summary": [{"op": "all_to_all"}]})
    assert not GPU.run(job).findings
    assert [f.scope.ranks for f in STAGES.run(job).findings] == [(3,)]
