"""uneven-parts: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.findings import Severity
from tracekit.rules import rule
from tracekit.rules.base import Facts, RuleOutcome

Row = dict[str, Any]
MS = 10**6
RULE = rule("uneven-parts")


def part(name: str, own_ms: list[float], **more: Any) -> list[Row]:
    """A part of four or more ranks, printed four times; of a step of a second."""
    usual = sorted(own_ms)[len(own_ms) // 2]
    return [
        {
            "start_number": 1, "name": name, "part_rank": rank, "times_count": 4,
            "p50_ns": ms * MS, "usual_ns": usual * MS, "ranks_count": len(own_ms),
            "longest_count": 4 if ms == max(own_ms) else 0, "min_ns": None, "max_ns": None,
            "step_ns": 1000.0 * MS, "source_id": 0, "place": 10 + rank,
        } | more
        for rank, ms in enumerate(own_ms)
    ]  # fmt: skip


def spread(name: str, least_ms: float, most_ms: float, **more: Any) -> list[Row]:
    (row,) = part(name, [0.0])
    told = {"part_rank": None, "p50_ns": None, "usual_ns": None, "ranks_count": None}
    return [row | told | {"min_ns": least_ms * MS, "max_ns": most_ms * MS} | more]


EVEN = part("forward-compute", [300.0, 300.0, 300.0, 300.0])
EVEN_SPREAD = spread("forward-compute", 300, 310)


def asked(*rows: Row) -> RuleOutcome:
    return RULE.run(Facts(rows={"step_part_time": list(rows)}))


def test_the_rank_that_alone_takes_longer_is_named() -> None:
    (found,) = asked(*part("forward-compute", [300.0, 300.0, 400.0, 300.0])).findings
    assert found.summary == (
        "Rank 2 takes 1.3x as long as the median rank in forward-compute (400 ms against 300 ms of "
        "every 1.00 s step), by the log's timers."
    )
    assert (found.scope.ranks, found.severity) == ((2,), Severity.MAJOR)
    assert found.confidence.level == "possible"
    assert found.impact.s_per_step is None


@pytest.mark.parametrize(
    ("own_ms", "is_told"),
    [
        pytest.param([300.0, 300.0, 345.0, 300.0], True, id="15 % more"),
        pytest.param([300.0, 300.0, 344.9, 300.0], False, id="just less"),
        pytest.param([10.0, 10.0, 20.0, 10.0], True, id="1 % of the step"),
        pytest.param([10.0, 10.0, 19.9, 10.0], False, id="just under it"),
        pytest.param([300.0, 400.0, 300.0], False, id="of three nobody is usual"),
        pytest.param([400.0, 400.0, 400.0, 300.0], False, id="one that is quick blames nobody"),
    ],
)
def test_it_must_be_longer_and_matter(own_ms: list[float], is_told: bool) -> None:
    assert bool(asked(*EVEN, *part("optimizer-inner-step", own_ms)).findings) == is_told


@pytest.mark.parametrize(("often", "is_told"), [(3, True), (2, False)])
def test_it_must_be_the_longest_time_after_time(often: int, is_told: bool) -> None:
    rows = part("forward-compute", [300.0, 300.0, 400.0, 300.0])
    rows[2]["longest_count"] = often
    assert bool(asked(*rows).findings) == is_told


@pytest.mark.parametrize(("times", "is_told"), [(3, True), (2, False)])
def test_a_few_printed_timers_are_not_enough(times: int, is_told: bool) -> None:
    rows = part("forward-compute", [300.0, 300.0, 400.0, 300.0], times_count=times)
    assert bool(asked(*rows).findings) == is_told


def test_of_a_group_whose_members_wait_for_each_other_nobody_is_named() -> None:
    (found,) = asked(*part("forward-compute", [300.0, 300.0, 400.0, 399.0, 300.0])).findings
    assert found.scope.ranks == ()
    assert found.candidates.ranks == (2, 3)
    assert found.severity is Severity.MINOR
    assert asked(*part("forward-compute", [300.0] * 4 + [400.0, 349.0])).findings[0].scope.ranks


def test_a_longer_forward_pass_is_told_of_its_input_where_that_is_half_of_it() -> None:
    forward = part("forward-compute", [300.0, 300.0, 400.0, 300.0])
    (found,) = asked(*forward, *part("batch-generator", [10.0, 10.0, 60.0, 10.0])).findings
    assert (found.id, found.owner) == ("uneven-parts/batch-generator-2", "data")
    both = asked(*forward, *part("batch-generator", [10.0, 10.0, 59.0, 10.0])).findings
    assert len(both) == 2


@pytest.mark.parametrize(
    ("name", "is_told"), [("forward-recv", False), ("backward-send-forward-recv", False),
                          ("params-all-gather", True)]
)  # fmt: skip
def test_of_a_pipeline_nothing_is_said(name: str, is_told: bool) -> None:
    outcome = asked(
        *part("forward-compute", [300.0, 300.0, 400.0, 300.0]), *spread(name, 1.0, 20.0)
    )
    assert bool(outcome.findings) == is_told
    assert bool(outcome.not_checked) != is_told


def test_without_forward_compute_nobody_knows_whether_it_is_a_pipeline() -> None:
    outcome = asked(*part("optimizer-inner-step", [100.0, 100.0, 200.0, 100.0]))
    assert not outcome.findings
    assert "no pipeline" in outcome.not_checked[0].needs


def test_who_waits_longer_in_collectives_is_not_named_and_who_waits_less_is_surer() -> None:
    late = part("forward-compute", [300.0, 300.0, 400.0, 300.0])
    waits = part("all-grads-sync", [20.0, 20.0, 71.0, 20.0])
    assert not asked(*late, *waits).findings
    (found,) = asked(*late, *part("all-grads-sync", [120.0, 120.0, 20.0, 120.0])).findings
    assert found.confidence.level == "likely"


def test_a_collective_that_takes_longer_on_a_rank_blames_nobody() -> None:
    waits = part("all-grads-sync", [20.0, 20.0, 500.0, 20.0])
    assert asked(*EVEN, *waits) == RuleOutcome()


def test_of_shortest_and_longest_only_how_far_they_are_apart_is_told() -> None:
    (found,) = asked(*EVEN_SPREAD, *spread("batch-generator", 100, 300)).findings
    assert found.summary == (
        "Some rank takes 3.0x as long as another in batch-generator (300 ms against 100 ms, 20 % "
        "of the step apart); the log does not say which."
    )
    assert (found.scope.ranks, found.candidates.ranks) == ((), ())
    assert found.severity is Severity.MINOR


@pytest.mark.parametrize(
    ("least", "most", "is_told"),
    [(100, 150, True), (101, 151, False), (10, 60, True), (10, 59.9, False)],
)
def test_extremes_must_be_far_apart(least: float, most: float, is_told: bool) -> None:
    outcome = asked(*EVEN_SPREAD, *spread("batch-generator", least, most))
    assert bool(outcome.findings) == is_told


def test_of_two_starts_the_last_counts() -> None:
    late = part("forward-compute", [300.0, 300.0, 400.0, 300.0])
    assert not asked(*late, *[r | {"start_number": 2} for r in EVEN]).findings
    assert asked(*EVEN, *[r | {"start_number": 2} for r in late]).findings


def test_a_healthy_log_is_fine_and_one_without_timers_lacks_them() -> None:
    assert asked(*EVEN) == RuleOutcome()
    assert "timers" in asked().not_checked[0].needs
