"""A slow link of a ring of gloo: which member leaves last says whose data it waits for."""

from __future__ import annotations

from typing import Any

import pytest
from late_jobs import MS, MakeJob, coverage
from msgspec.structs import replace

from lateness_rules import LINK, exit_row
from port_rules import held_back
from tracekit.findings import Finding, Severity
from tracekit.rules import gloo_rings

BEHIND_MS = {3: -20.0, 0: -10.0, 2: 0.0, 1: 20.0}
"""Data go from 2 to 1, slowly, on to 0, to 3 and back to 2."""


def _rows(late_ms: dict[int, float] = BEHIND_MS, **facts: Any) -> list[dict[str, Any]]:
    made = []
    for rank, ms in late_ms.items():
        row = exit_row(rank, ms, timeline="host")
        row |= {"exit_p10_ratio": 0.9 * ms / 100, "exit_p50_ratio": ms / 100}
        made.append(row | {"transfer_p50_ns": 100.0 * MS, "group_transfer_p50_ns": 80.0 * MS})
    return [row | facts for row in made]


def _findings(make_job: MakeJob, rows: list[dict[str, Any]], **ranks: list[int]) -> list[Finding]:
    job = make_job(comm_ms=60)
    job.rows["exit_lateness"] = rows
    groups = ranks or {"g": [0, 1, 2, 3]}
    job.rows["match_coverage"] = [coverage(group_id=g, ranks=r) for g, r in groups.items()]
    return list(LINK.run(job.facts()).findings)


def test_both_ends_of_the_link_are_told(make_job: MakeJob) -> None:
    (finding,) = _findings(make_job, _rows())
    assert finding.id == "link-degraded/2-1"
    assert finding.scope.ranks == () and finding.candidates.ranks == (1, 2)
    assert finding.summary.startswith("The link from rank 2 to rank 1 is slow: rank 1 leaves each")
    assert finding.severity is Severity.MAJOR
    # Two rounds of three hops of two pieces each: 12 pieces, each of a twelfth of 100 ms, and the
    # next member leaves by more than two of them before: all that nothing hides, 60 ms a step.
    assert finding.impact.s_per_step == pytest.approx(0.060)


def test_an_all_gather_goes_round_the_other_way(make_job: MakeJob) -> None:
    (finding,) = _findings(make_job, _rows(op="all_gather"))
    assert finding.candidates.ranks == (0, 1)


def test_what_sends_both_ways_is_the_sender(make_job: MakeJob) -> None:
    """Not even steadily: in the all-reduce 1 waits for 2, in the all-gather 3 does."""
    gathers = _rows({1: -20.0, 0: -10.0, 2: 0.0, 3: 20.0}, op="all_gather")
    (finding,) = _findings(make_job, [*_rows(exit_p10_ratio=0.01), *gathers])
    assert finding.id == "link-degraded/2" and finding.scope.ranks == (2,)
    assert "from rank 2 to ranks 1,3" in finding.summary


def test_who_receives_slowly_both_ways_is_the_receiver(make_job: MakeJob) -> None:
    (finding,) = _findings(make_job, [*_rows(), *_rows(op="all_gather")])
    assert finding.scope.ranks == (1,) and "from ranks 0,2 to rank 1" in finding.summary


def test_groups_of_two_show_the_one_that_both_wait_for(make_job: MakeJob) -> None:
    rows = [*_rows({3: -20.0, 2: 20.0}, group_id="a"), *_rows({3: -20.0, 1: 20.0}, group_id="b")]
    (finding,) = _findings(make_job, rows, a=[2, 3], b=[1, 3])
    assert finding.scope.ranks == (3,)
    assert "after the other (" in finding.summary


def test_a_link_that_loses_less_than_half_stays_a_suspicion(make_job: MakeJob) -> None:
    """13 ms of spread are 52 of 100 ms, 12 are 48."""
    (major,) = _findings(make_job, _rows({3: -3.0, 0: 0.0, 2: 0.0, 1: 10.0}))
    (minor,) = _findings(make_job, _rows({3: -2.0, 0: 0.0, 2: 0.0, 1: 10.0}))
    assert (major.severity, minor.severity) == (Severity.MAJOR, Severity.MINOR)


def _lost(finding: Finding) -> float:
    (lost,) = (e.value for e in finding.evidence if e.name.startswith("of the transfer, lost"))
    return lost


def test_what_is_lost_is_told_by_the_next_member(make_job: MakeJob) -> None:
    """12 pieces cross the link, P each; 0 leaves 12 % of the transfer before 1, which is 2P - p: of
    P = 1/12 that leaves p = 0.56 P."""
    (finding,) = _findings(make_job, _rows({3: -4.0, 0: 0.0, 2: 0.0, 1: 12.0}))
    assert _lost(finding) == pytest.approx(12 * 0.12 - 1)
    assert finding.impact.s_per_step == pytest.approx(0.44 * 0.060)


def test_of_calls_that_overlap_one_piece_less_is_taken(make_job: MakeJob) -> None:
    late_ms = {3: -4.0, 0: 0.0, 2: 0.0, 1: 12.0}
    (alone,) = _findings(make_job, _rows(late_ms))
    (many,) = _findings(make_job, _rows(late_ms, calls_count=80))
    assert (_lost(alone), _lost(many)) == pytest.approx((12 * 0.12 - 1, 11 * 0.12 - 1))


def test_large_messages_are_passed_on_in_more_pieces(make_job: MakeJob) -> None:
    """Of 16 MiB each member passes on four pieces of 1 MiB: 24 cross the link."""
    late_ms = {3: -1.0, 0: 0.0, 2: 0.0, 1: 6.0}
    (small,) = _findings(make_job, _rows(late_ms))
    (large,) = _findings(make_job, _rows(late_ms, message_bytes=16 << 20))
    assert _lost(large) == pytest.approx(24 * 0.06 - 1)
    # 12 pieces would be no loss at all: how many there were is not known.
    assert _lost(small) == gloo_rings.UNKNOWN_RATIO


def test_groups_of_its_kind_say_what_the_transfer_takes(make_job: MakeJob) -> None:
    """As many equal calls of a group that shares no rank with it take 25 ms, not 100."""
    healthy = _rows(dict.fromkeys((4, 5, 6, 7), 0.0), group_id="h", group_transfer_p50_ns=25.0 * MS)
    (finding,) = _findings(make_job, [*_rows(), *healthy], g=[0, 1, 2, 3], h=[4, 5, 6, 7])
    assert _lost(finding) == pytest.approx(0.75)
    assert finding.impact.s_per_step == pytest.approx(0.75 * 0.060)


@pytest.mark.parametrize(
    "other",
    [
        {"message_bytes": 1 << 20},  # of another size
        {"calls_count": 3},  # called otherwise
        {"op": "all_gather"},
    ],
)
def test_other_transfers_say_nothing_of_it(make_job: MakeJob, other: dict[str, Any]) -> None:
    rows = _rows(dict.fromkeys((4, 5, 6, 7), 0.0), group_id="h", group_transfer_p50_ns=25.0 * MS)
    rows = [row | other for row in rows]
    (finding,) = _findings(make_job, [*_rows(), *rows], g=[0, 1, 2, 3], h=[4, 5, 6, 7])
    assert _lost(finding) == 1.0


@pytest.mark.parametrize(
    "facts",
    [
        {"exit_p10_ratio": 0.01},  # now and then
        {"exit_p50_ratio": None, "exit_p10_ratio": None},  # of calls that take no time
        {"exit_p10_ns": 0.0},  # not always
        {"error_ns": 30 * MS},  # within the clocks' error
        {"calls_count": 7},  # too few
        {"group_transfer_p50_ns": 4.9 * MS},  # bound by latency
    ],
)
def test_what_is_rare_short_or_uncertain_is_no_link(
    make_job: MakeJob, facts: dict[str, Any]
) -> None:
    assert _findings(make_job, _rows(**facts)) == []


@pytest.mark.parametrize(
    "late_ms",
    [
        {3: -0.9, 0: 0.0, 2: 0.0, 1: 4.0},  # 19.6 % of the transfer lost
        {3: -20.0, 0: 0.0, 2: 11.0, 1: 20.0},  # two leave late
        {3: 0.0, 0: 0.0, 2: 0.0, 1: 0.0},  # healthy
    ],
)
def test_members_that_leave_together_or_scatter_are_no_link(
    make_job: MakeJob, late_ms: dict[int, float]
) -> None:
    assert _findings(make_job, _rows(late_ms)) == []


def test_a_group_of_which_a_member_is_missing_is_no_ring(make_job: MakeJob) -> None:
    assert _findings(make_job, _rows()[1:]) == []


def test_a_ring_behind_a_port_that_is_told_is_no_finding_of_its_own(make_job: MakeJob) -> None:
    facts = held_back(make_job, 25e6)
    levels = [dict(row) for row in facts.of("port_levels")]
    for row in levels:
        row["max_value"] = 25e6 if row["port"] == "p3" else 50e6
    covered = [coverage(group_id="g", ranks=[0, 1, 2, 3])]
    given = {"port_levels": levels, "exit_lateness": _rows(), "match_coverage": covered}
    found = LINK.run(replace(facts, rows={**facts.rows, **given})).findings
    assert [f.id for f in found] == ["link-degraded/3"]
