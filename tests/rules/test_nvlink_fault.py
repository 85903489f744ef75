"""nvlink-fault: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from gpu_rules import gauge, growth, only, run, xid
from tracekit.findings import Severity
from tracekit.rules import RuleOutcome


@pytest.mark.parametrize(
    ("counter", "own", "others", "fires"),
    [
        ("nvlink_recoveries", 1, 0, True),
        ("nvlink_recoveries", 0, 0, False),
        ("nvlink_replays", 100, 0, True),
        ("nvlink_replays", 99, 0, False),
        ("nvlink_crc_flit_errors", 1000, 101, False),
        ("nvlink_crc_flit_errors", 1000, 100, True),
    ],
)
def test_link_errors_count_when_they_stand_out(
    counter: str, own: float, others: float, fires: bool
) -> None:
    rows = [growth(i, counter, others) for i in range(3)] + [growth(3, counter, own)]
    outcome = run("nvlink-fault", gpu_growth=rows)
    assert bool(outcome.findings) is fires


@pytest.mark.parametrize(
    ("models", "fires"),
    [
        (["H100", "H100", "B200", "B200"], True),  # others of its model have none
        (["H100", "H100", "H100", "H100"], False),
        (["H100", "B200", "B200", "B200"], False),  # no other of its kind: all excuse it
    ],
)
@pytest.mark.parametrize(
    ("name", "counter"), [("nvlink-fault", "nvlink_replays"), ("pcie-degraded", "pcie_replays")]
)
def test_growth_is_compared_among_gpus_of_a_kind(
    name: str, counter: str, models: list[str], fires: bool
) -> None:
    grown = [500.0, 0.0, 500.0, 500.0]
    rows = [
        growth(i, counter, count) | {"peer_group": model}
        for i, (count, model) in enumerate(zip(grown, models, strict=True))
    ]
    findings = run(name, gpu_growth=rows).findings
    assert any(f.scope.devices == (rows[0]["gpu_id"],) for f in findings) is fires


def test_links_that_are_down_count_where_the_peers_are_up() -> None:
    rows = [gauge(3, "nvlink_links_inactive", 2, 0)]
    assert only(run("nvlink-fault", gpu_counters=rows)).severity is Severity.MINOR
    same = [gauge(3, "nvlink_links_inactive", 2, 2)]
    assert run("nvlink-fault", gpu_counters=same) == RuleOutcome()


@pytest.mark.parametrize(
    ("rule", "number", "means"),
    [("nvlink-fault", 144, "NVLink error"), ("pcie-degraded", 167, "fatal PCIe timeout")],
)
def test_the_evidence_of_an_xid_is_how_often_it_came(rule: str, number: int, means: str) -> None:
    finding = only(run(rule, gpu_events=[xid(3, number)]))
    (evidence,) = [e for e in finding.evidence if e.query == "gpu_events"]
    name = f"messages of XID {number} ({means})"
    assert (evidence.name, evidence.value, evidence.unit) == (name, 1.0, "count")


def test_an_xid_of_nvlink_is_a_fault_of_the_link() -> None:
    finding = only(run("nvlink-fault", gpu_events=[xid(3, 74)]))
    assert finding.severity is Severity.MAJOR
    assert finding.summary == "NVLink of GPU 3 of h0: XID 74 (NVLink error)."
