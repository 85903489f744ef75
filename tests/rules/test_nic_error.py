"""nic-error: when it fires, when just not, and what exempts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from link_rules import SPAN_S, MakeJob, job_of, only, port
from pipeline_rules import Replayed
from port_rules import only as port_only
from port_rules import port as port_row
from port_rules import run
from tracekit.findings import Severity
from tracekit.rules import RuleOutcome, rule


def test_three_views_of_one_link_are_one_finding(make_job: MakeJob) -> None:
    nic = {"node": "h0", "is_on_host": True, "port": "mlx5_1/1"}
    rows = [
        row
        for i in range(4)
        for row in (
            port(f"p{i}", "rx_crc_errors", 50.0 if i == 1 else 0.0),
            port(f"p{i}", "rx_packets", 1e6),
        )
    ]
    rows += [port("x1", "rdma_icrc_errors", 60.0, **nic), port("x1", "rx_packets", 1e6, **nic)]
    finding = only(rule("nic-error").run(job_of(make_job, rows)))
    assert finding.scope.links == ("h0:mlx5_1/1", "leaf:p1")
    assert finding.scope.ranks == (1,)


class AtSpeed(Replayed):
    """Replays transfers between hosts at another speed."""

    asked: tuple[Sequence[int], float] = ((), 0.0)

    def saved_at_speed_ns(self, ranks: Sequence[int], factor: float) -> float | None:
        self.asked = (ranks, factor)
        return None if self.beyond_ms is None else self.beyond_ms * 1e6


def test_it_costs_what_the_step_would_lose_if_the_transfers_had_not_lost_it(
    make_job: MakeJob,
) -> None:
    """40 ms of transfers for 400 MB, which need 20 ms at 0.8 of 25 GB/s."""
    moved = 4e9 * SPAN_S
    rows = [
        row
        for i in range(4)
        for row in (
            port(f"p{i}", "rx_crc_errors", 50.0 if i == 1 else 0.0),
            port(f"p{i}", "rx_packets", 1e6),
            port(f"p{i}", "rx_bytes", moved),
        )
    ]
    facts = job_of(make_job, rows)
    alike = only(rule("nic-error").run(facts)).impact
    assert alike.s_per_step == pytest.approx(0.020)
    assert alike.method == "counter share"
    replay = AtSpeed(15.0)
    priced = only(rule("nic-error").run(replace(facts, replay=replay))).impact
    assert priced.s_per_step == pytest.approx(0.015)
    assert priced.method == "replay"
    ranks, factor = replay.asked
    assert tuple(ranks) == (1,)
    assert factor == pytest.approx(0.5)
    refused = only(rule("nic-error").run(replace(facts, replay=AtSpeed(None)))).impact
    assert refused.method == "counter share"


def test_what_the_quicker_transfers_took_is_enough(make_job: MakeJob) -> None:
    """A quarter of the transfers takes 2 ms, the mean 10: 8 of 40 ms are needed, not 20."""
    rows = [
        row
        for i in range(4)
        for row in (
            port(f"p{i}", "rx_crc_errors", 50.0 if i == 1 else 0.0),
            port(f"p{i}", "rx_packets", 1e6),
            port(f"p{i}", "rx_bytes", 4e9 * SPAN_S),
        )
    ]
    group = dict(job_of(make_job, rows).rows["group_bandwidth"][0]) | {"transfer_p25_ns": 2e6}
    facts = job_of(make_job, rows, group_bandwidth=[group])
    assert only(rule("nic-error").run(facts)).impact.s_per_step == pytest.approx(0.032)


def test_a_group_needs_its_part_of_the_bytes_time(make_job: MakeJob) -> None:
    """The port's bytes need 20 ms, of which a group that moves a quarter of them needs 5: of its 40
    ms it lost 35, not 20. Where a group's bytes are not known, none is given a part."""
    rows = [
        row
        for i in range(4)
        for row in (
            port(f"p{i}", "rx_crc_errors", 50.0 if i == 1 else 0.0),
            port(f"p{i}", "rx_packets", 1e6),
            port(f"p{i}", "rx_bytes", 4e9 * SPAN_S),
        )
    ]
    facts = job_of(make_job, rows)
    group = dict(facts.rows["group_bandwidth"][0]) | {"transfer_p25_ns": 1e6}
    coverage = dict(facts.rows["match_coverage"][0])
    for moved, lost_s in ((3.0, 0.035), (1.0, 0.030), (None, 0.020)):
        other = group | {"group_id": "h", "transfer_mean_ns": 5e6, "bus_bytes_per_s": moved}
        known = [group | {"bus_bytes_per_s": 1.0, "transfer_p25_ns": 9e6}, other]
        given = job_of(
            make_job,
            rows,
            group_bandwidth=known,
            match_coverage=[coverage, coverage | {"group_id": "h"}],
        )
        assert only(rule("nic-error").run(given)).impact.s_per_step == pytest.approx(lost_s)


@pytest.mark.parametrize(
    ("own", "others", "packets", "fires"),
    [
        (10, 0, 1e7, True),
        (9, 0, 1e6, False),
        (10, 0, 1.1e7, False),  # less than one in a million
        (100, 11, 1e6, False),  # the others are much the same
    ],
)
def test_damaged_frames_count_when_they_stand_out(
    own: float, others: float, packets: float, fires: bool
) -> None:
    rows = [
        row
        for i in range(4)
        for row in (
            port_row(f"p{i}", "rx_crc_errors", own if i == 1 else others),
            port_row(f"p{i}", "rx_packets", packets),
        )
    ]
    assert bool(run(rows, "nic-error").findings) is fires


def test_a_link_that_went_down_counts_only_where_it_leads_to_a_host() -> None:
    rows = [port_row("p1", "link_downed", 1.0, direction=None)]
    assert port_only(run(rows, "nic-error")).severity is Severity.MINOR
    nowhere = [r | {"host": None, "rank": None, "ranks": None} for r in rows]
    assert run(nowhere, "nic-error") == RuleOutcome()
