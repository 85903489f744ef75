"""What a degraded PCIe link costs: copies, traffic, a bound, or words on why there is no price."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from conftest import JobRows
from msgspec.structs import replace

from gpu_rules import growth, link, run
from gpu_rules import only as gpu_only
from tracekit.findings import Finding, Severity
from tracekit.job import JobDescription
from tracekit.rules import Facts, rule

MakeJob = Callable[..., JobRows]
NAME = "pcie-degraded"
STEP_NS = 120e6


def gauge(index: int, counter: str, value: float, peers: float | None) -> dict[str, Any]:
    return {
        "gpu_id": f"GPU-{index}", "host": f"h{index}", "gpu_index": 0, "pci": None, "model": "A",
        "rank": index, "rank_source": "log", "host_ranks": None, "source_id": 0, "place": index,
        "counter": counter, "unit": "", "p50_value": value, "max_value": value,
        "peer_value": peers, "peers_count": 3, "interval_ns": 1e9, "attempt": 1,
    }  # fmt: skip


def counters(**changed: float | None) -> list[dict[str, Any]]:
    """GPU 2 has 4 of 16 lanes of generation 5 (15.75 GB/s) and moves 1 GB in each step."""
    values: dict[str, tuple[float, float | None]] = {
        "pcie_width": (4, 16), "pcie_generation": (5, 5), "gpu_utilisation": (1.0, None),
        "pcie_tx": (1e9 / STEP_NS * 1e9, None),
    }  # fmt: skip
    return [
        gauge(2, name, value if changed.get(name, 0.0) == 0.0 else float(changed[name] or 0), peers)
        for name, (value, peers) in values.items()
        if changed.get(name, 0.0) is not None
    ]


def job_of(
    make_job: MakeJob,
    *,
    copies_ms: int = 0,
    waited_ms: int = 20,
    transfer_ns: float = 80e6,
    error_ns: float = 0,
    rows: list[dict[str, Any]] | None = None,
    nic: float | None = 25e9,
) -> Facts:
    """Four ranks on four hosts, one all-reduce a step; rank 2 copies so many ms longer."""
    job = make_job(4, comm_ms=5)
    for step in job.steps:
        job.add(2, step, "memory", copies_ms)
        job.add(2, step, "exposed_comm", 20 - copies_ms)
        for rank in (0, 1, 3):
            job.add(rank, step, "exposed_comm", waited_ms)
            job.add(rank, step, "idle", 20 - waited_ms)
    job.rows["gpu_counters"] = counters() if rows is None else rows
    job.rows["match_coverage"] = [{"group_id": "g", "ranks": [0, 1, 2, 3]}]
    job.rows["group_bandwidth"] = [
        {"group_id": "g", "timeline": "device", "transfer_p50_ns": transfer_ns / 2,
         "instances_count": 20, "steps_count": 10, "error_ns": error_ns}
    ]  # fmt: skip
    hardware = {"nic_bytes_per_s": nic} if nic is not None else {}
    described = msgspec.convert({"hardware": hardware}, JobDescription)
    facts = job.facts()
    hosts = replace(facts.job, hosts={r: f"h{r}" for r in range(4)})
    return replace(facts, description=described, job=hosts)


def only(facts: Facts) -> Finding:
    (finding,) = rule(NAME).run(facts).findings
    return finding


def test_copies_that_the_peers_wait_for(make_job: MakeJob) -> None:
    finding = only(job_of(make_job, copies_ms=20))
    assert finding.impact.s_per_step == pytest.approx(0.020)
    assert finding.severity is Severity.MAJOR
    assert finding.confidence.level == "likely"
    assert finding.evidence[1].value == pytest.approx(0.025)
    assert finding.evidence[1].threshold == pytest.approx(0.0075)
    # They wait less than it copies: what they wait is what it costs.
    less = only(job_of(make_job, copies_ms=20, waited_ms=8))
    assert less.impact.s_per_step == pytest.approx(0.008)


@pytest.mark.parametrize("copies_ms", [0, 2])
def test_copies_like_the_peers_are_not_its_cost(make_job: MakeJob, copies_ms: int) -> None:
    finding = only(job_of(make_job, copies_ms=copies_ms, nic=None))
    assert finding.impact.s_per_step is None
    assert finding.severity is Severity.MINOR


def test_traffic_beyond_what_a_whole_link_needs(make_job: MakeJob) -> None:
    """1 GB needs 47 ms at 85 % of 25 GB/s, and 75 ms over four lanes: 80 were taken."""
    finding = only(job_of(make_job))
    assert finding.evidence[1].value == pytest.approx(0.080)
    assert finding.evidence[1].threshold == pytest.approx(1 / (0.85 * 25))
    # 33 ms longer, of which no more than what nothing hides costs time.
    assert finding.impact.s_per_step == pytest.approx(0.025)
    assert finding.severity is Severity.CRITICAL


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"nic": None}, "nobody says how fast its NIC is"),
        ({"rows": counters(pcie_generation=None)}, "the width and the generation"),
        ({"rows": counters(pcie_tx=None)}, "nobody counted the bytes on its link"),
        ({"rows": [r | {"interval_ns": 1e8} for r in counters()]}, "more than once a step"),
        ({"error_ns": 8.1e6}, "clocks are too far apart"),
        ({"transfer_ns": 150e6}, "longer than even the narrow link explains"),
        ({"transfer_ns": 48e6}, "no longer than a whole link would need"),
    ],
)
def test_what_cannot_be_priced_is_bounded_and_says_why(
    make_job: MakeJob, given: dict[str, Any], why: str
) -> None:
    finding = only(job_of(make_job, **given))
    assert finding.impact.s_per_step is None
    assert finding.impact.at_most_s_per_step == pytest.approx(0.030)  # with its copies
    assert why in finding.confidence.basis
    assert finding.confidence.level == "possible"
    assert finding.severity is Severity.MINOR


@pytest.mark.parametrize(("transfer_ns", "error_ns"), [(149e6, 0.0), (80e6, 8e6)])
def test_just_inside_the_limits_it_is_priced(
    make_job: MakeJob, transfer_ns: float, error_ns: float
) -> None:
    facts = job_of(make_job, transfer_ns=transfer_ns, error_ns=error_ns)
    assert only(facts).impact.s_per_step is not None


def test_without_traces_there_is_no_bound_either() -> None:
    finding = only(Facts(rows={"gpu_counters": counters()}))
    assert finding.impact.at_most_s_per_step is None
    assert "no step of its rank" in finding.confidence.basis


@pytest.mark.parametrize(
    ("width", "peers", "busy", "fires"),
    [
        (8, 16, 1.0, True),
        (8, 16, 0.49, False),  # an idle link sleeps by design
        (8, 8, 1.0, False),  # a slot that is narrow by design: its peers' are too
        (8, None, 1.0, True),
        (16, 16, 1.0, False),
    ],
)
def test_a_narrow_link_counts_when_busy_and_unlike_its_peers(
    width: float, peers: float | None, busy: float, fires: bool
) -> None:
    outcome = run("pcie-degraded", gpu_counters=link(width, peers, busy))
    assert bool(outcome.findings) is fires


@pytest.mark.parametrize(
    ("own", "others", "fires"), [(10, 0, True), (9, 0, False), (50, 5, True), (49, 5, False)]
)
def test_replays_count_when_they_stand_out(own: float, others: float, fires: bool) -> None:
    rows = [growth(i, "pcie_replays", others) for i in range(3)] + [growth(3, "pcie_replays", own)]
    outcome = run("pcie-degraded", gpu_growth=rows)
    assert bool(outcome.findings) is fires


@pytest.mark.parametrize(("width", "severity"), [(8, Severity.MINOR), (12, Severity.NOTE)])
def test_half_the_lanes_are_more_than_a_note(width: float, severity: Severity) -> None:
    outcome = run("pcie-degraded", gpu_counters=link(width, 16, 1.0))
    assert gpu_only(outcome).severity is severity


@pytest.mark.parametrize(
    ("width", "own", "others", "fires"),
    [
        (8, 0.0, 0.0, True),
        (8, 0.49, 0.49, True),
        (9, 0.0, 0.0, False),  # more than half
        (8, 0.0, 0.5, False),  # its peers work, and it may save power
        (8, 0.0, None, False),
    ],
)
def test_half_the_lanes_of_peers_that_rest_as_well(
    width: float, own: float, others: float | None, fires: bool
) -> None:
    rows = [gauge(3, "pcie_width", width, 16), gauge(3, "gpu_utilisation", own, others)]
    assert bool(run("pcie-degraded", gpu_counters=rows).findings) is fires
    # The generation falls where nothing is sent.
    rows = [gauge(3, "pcie_generation", 1, 5), gauge(3, "gpu_utilisation", own, others)]
    assert not run("pcie-degraded", gpu_counters=rows).findings
