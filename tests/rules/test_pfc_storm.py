"""pfc-storm: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from link_rules import SPAN_S, MakeJob, job_of, only, port
from port_rules import only as port_only
from port_rules import pausing, run
from port_rules import port as port_row
from tracekit.findings import Severity
from tracekit.rules import RuleOutcome, rule


def test_ports_told_to_pause_are_victims(make_job: MakeJob) -> None:
    rows = [port(f"p{i}", "tx_pfc_duration", 0.2 * SPAN_S * 1e6) for i in range(4)]
    finding = only(rule("pfc-storm").run(job_of(make_job, rows)))
    assert finding.scope.ranks == () and finding.scope.hosts == ()
    assert len(finding.scope.links) == 4
    stormed = [port("p1", "pfcwd_storms_detected", 1.0)]
    assert only(rule("pfc-storm").run(job_of(make_job, stormed))).scope.ranks == (1,)


@pytest.mark.parametrize(("share", "fires"), [(0.1001, True), (0.0999, False)])
def test_ports_that_stand_paused_are_a_storm(share: float, fires: bool) -> None:
    rows = pausing("tx_pfc_duration", {"p1": share})
    assert bool(run(rows, "pfc-storm").findings) is fires


@pytest.mark.parametrize(
    ("is_on_host", "counter", "fires"),
    [
        (None, "rx_pfc_duration", True), (None, "tx_pfc_duration", True),
        (True, "rx_pfc_duration", True), (False, "rx_pfc_duration", False),
    ],
)  # fmt: skip
def test_of_a_port_whose_ends_nobody_knows_pauses_count_either_way(
    is_on_host: bool | None, counter: str, fires: bool
) -> None:
    """A NIC's own counters alone: what it receives is what it was told."""
    rows = [r | {"is_on_host": is_on_host} for r in pausing(counter, {"p1": 0.25})]
    assert bool(run(rows, "pfc-storm").findings) is fires
    below = [r | {"is_on_host": None} for r in pausing(counter, {"p1": 0.09})]
    assert not run(below, "pfc-storm").findings


def test_a_watchdog_s_storm_is_one_without_any_pause_counter() -> None:
    rows = [port_row("p1", "pfcwd_storms_detected", 2.0, direction=None)]
    finding = port_only(run(rows, "pfc-storm"))
    assert finding.severity is Severity.MAJOR
    assert finding.summary == "A watchdog found 2 pause storms: sw:p1."
    assert run([port_row("p1", "pfcwd_storms_detected", 0.0)], "pfc-storm") == RuleOutcome()
