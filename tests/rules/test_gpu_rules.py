"""Rules over GPU counters: fires, silent just below, exemptions, healthy twins, missing input."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.findings import Finding, Severity
from tracekit.report.fold import fold
from tracekit.rules import Facts, RuleOutcome, rule

GPUS = 4
MHZ = 1e6


def named(index: int, **more: Any) -> dict[str, Any]:
    """How every query names a GPU."""
    return {
        "gpu_id": f"h0 GPU {index}",
        "host": "h0",
        "gpu_index": index,
        "pci": None,
        "model": "A",
        "rank": None,
        "rank_source": None,
        "host_ranks": [0, 1],
        "source_id": 0,
        "place": index,
        "attempt": 1,
    } | more


def gauge(
    index: int, counter: str, value: float, peers: float | None, **more: Any
) -> dict[str, Any]:
    """A row of gpu_counters: a GPU that shows the same value in every moment."""
    ratio = value / peers if peers else None
    row = named(index) | {
        "counter": counter,
        "unit": "",
        "samples_count": 10,
        "min_value": value,
        "p50_value": value,
        "max_value": value,
        "last_value": value,
        "peers_count": GPUS - 1 if peers is not None else 0,
        "moments_count": 10 if peers is not None else 0,
        "peer_value": peers,
        "peer_ratio": ratio,
        "total_ratio": ratio,
        "below_ratio": float(value <= 0.95 * peers) if peers is not None else None,
        "above_ratio": float(value >= 1.05 * peers) if peers is not None else None,
        "highest_ratio": float(value >= peers) if peers is not None else None,
        "busy_below_ratio": float(value <= 0.95 * peers) if peers is not None else None,
        "busy_peer_ratio": ratio,
    }
    return row | more


def reason(index: int, event: str, active: int, held: float | None = None) -> dict[str, Any]:
    """A row of gpu_throttle: so many of 100 samples, or a share of the time by a counter."""
    return named(index) | {
        "event": event,
        "samples_count": 100,
        "active_count": active,
        "active_ratio": active / 100,
        "held_ns": None if held is None else held * 1e10,
        "held_ratio": held,
    }


def growth(index: int, counter: str, grown: float | None) -> dict[str, Any]:
    return named(index) | {"counter": counter, "growth": grown, "samples_count": 2}


def xid(index: int, number: int, **more: Any) -> dict[str, Any]:
    row = named(index) | {"xid": number, "time_ns": 5, "is_in_window": True, "severity": "error"}
    return row | more


def run(name: str, **rows: list[dict[str, Any]]) -> RuleOutcome:
    return rule(name).run(Facts(rows=rows))


def only(outcome: RuleOutcome) -> Finding:
    assert not outcome.not_checked
    (finding,) = outcome.findings
    return finding


ALL = ("thermal-throttle", "power-brake", "gpu-memory-fault", "pcie-degraded", "nvlink-fault",
       "gpu-outlier")  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_without_any_gpu_counter_a_rule_says_what_it_needs(name: str) -> None:
    (lack,) = run(name).not_checked
    assert lack.needs == rule(name).needs
    assert lack.capture == "tracekit capture --what dcgm"


@pytest.mark.parametrize("name", [n for n in ALL if n != "gpu-memory-fault"])
def test_with_other_counters_it_says_which_it_needs(name: str) -> None:
    (lack,) = run(name, gpu_counters=[gauge(0, "memory_used", 1, 1)]).not_checked
    assert lack.needs != rule(name).needs


# --- thermal-throttle -----------------------------------------------------------------------------

HOT = [
    *(gauge(i, "sm_clock", 1980 * MHZ, 1980 * MHZ) for i in range(3)),
    gauge(3, "sm_clock", 1170 * MHZ, 1980 * MHZ),
    gauge(3, "gpu_temperature", 91, 60),
]


@pytest.mark.parametrize(
    ("row", "fires"),
    [
        (reason(3, "hw_thermal", 5), True),
        (reason(3, "hw_thermal", 4), False),
        (reason(3, "hw_thermal", 90, held=0.009), False),  # the counter beats the samples
        (reason(3, "hw_thermal", 0, held=0.01), True),
        (reason(3, "sw_thermal", 50), True),
        (reason(3, "thermal", 0, held=0.5), True),
        (reason(3, "sw_power_cap", 100), False),  # normal at full load
        (reason(3, "gpu_idle", 100), False),
        (reason(3, "sync_boost", 100), False),
        (reason(3, "hw_slowdown", 100), False),  # no word of heat: a brake, or a change of state
    ],
)
def test_heat_is_what_the_hardware_says(row: dict[str, Any], fires: bool) -> None:
    outcome = run("thermal-throttle", gpu_throttle=[row], gpu_counters=HOT)
    assert bool(outcome.findings) is fires
    assert not outcome.not_checked


def test_a_throttled_gpu_is_told_with_its_clock_and_its_heat() -> None:
    finding = only(
        run("thermal-throttle", gpu_throttle=[reason(3, "hw_thermal", 100)], gpu_counters=HOT)
    )
    assert finding.summary == (
        "GPU 3 of h0 is hot and its clock is held down: hardware thermal slowdown 100 % of the "
        "samples, 1170 MHz against 1980, up to 91 C."
    )
    assert finding.scope.devices == ("h0 GPU 3",)
    assert finding.scope.ranks == ()
    assert finding.candidates.ranks == (0, 1)  # nobody is named whom no file names
    assert finding.severity is Severity.MINOR


def test_throttling_that_costs_no_clock_is_a_note() -> None:
    rows = [gauge(3, "sm_clock", 1900 * MHZ, 1980 * MHZ)]
    found = only(
        run("thermal-throttle", gpu_throttle=[reason(3, "sw_thermal", 50)], gpu_counters=rows)
    )
    assert found.severity is Severity.NOTE


@pytest.mark.parametrize(("most", "fires"), [(86.0, True), (85.9, False)])
def test_a_hardware_slowdown_near_the_slowdown_temperature_is_heat(
    most: float, fires: bool
) -> None:
    rows = [
        gauge(3, "gpu_temperature", most, None),
        gauge(3, "gpu_slowdown_temperature", 89, None),
    ]
    outcome = run(
        "thermal-throttle", gpu_throttle=[reason(3, "hw_slowdown", 50)], gpu_counters=rows
    )
    assert bool(outcome.findings) is fires


# --- power-brake ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("active", "fires"), [(5, True), (4, False)])
def test_a_brake_is_what_the_hardware_says(active: int, fires: bool) -> None:
    outcome = run("power-brake", gpu_throttle=[reason(3, "hw_power_brake", active)])
    assert bool(outcome.findings) is fires


def test_gpus_that_brake_together_are_one_finding() -> None:
    rows = [reason(i, "hw_power_brake", 50) for i in range(4)]
    finding = only(run("power-brake", gpu_throttle=rows))
    assert len(finding.scope.devices) == 4
    assert finding.id == "power-brake/h0"
    assert finding.severity is Severity.MINOR


@pytest.mark.parametrize(
    ("clock", "capped", "fires"),
    [(1881, 100, True), (1882, 100, False), (1881, 50, True), (1881, 49, False)],
)
def test_a_power_cap_counts_only_where_the_clock_falls_behind(
    clock: float, capped: int, fires: bool
) -> None:
    rows = [gauge(3, "sm_clock", clock * MHZ, 1980 * MHZ)]
    outcome = run(
        "power-brake", gpu_throttle=[reason(3, "sw_power_cap", capped)], gpu_counters=rows
    )
    assert bool(outcome.findings) is fires


def test_a_capped_gpu_that_is_hot_is_the_other_rules() -> None:
    rows = [gauge(3, "sm_clock", 1000 * MHZ, 1980 * MHZ)]
    reasons = [reason(3, "sw_power_cap", 100), reason(3, "hw_thermal", 1)]
    assert run("power-brake", gpu_throttle=reasons, gpu_counters=rows) == RuleOutcome()


def test_a_lower_limit_is_named() -> None:
    rows = [
        gauge(3, "sm_clock", 1000 * MHZ, 1980 * MHZ),
        gauge(3, "power_limit", 400, 700),
    ]
    finding = only(
        run("power-brake", gpu_throttle=[reason(3, "sw_power_cap", 100)], gpu_counters=rows)
    )
    assert "its limit is 400 W, its peers' 700" in finding.summary


# --- gpu-memory-fault -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "severity"),
    [(79, "critical"), (95, "critical"), (94, "minor"), (63, "minor"), (31, None), (43, None),
     (45, None), (74, None)],
)  # fmt: skip
def test_an_xid_of_hardware_counts_and_a_program_s_does_not(
    number: int, severity: str | None
) -> None:
    outcome = run("gpu-memory-fault", gpu_events=[xid(3, number)])
    assert [f.severity.value for f in outcome.findings] == ([severity] if severity else [])


def test_the_first_xid_of_a_gpu_names_the_fault() -> None:
    finding = only(
        run("gpu-memory-fault", gpu_events=[xid(3, 95, time_ns=9), xid(3, 48, time_ns=5)])
    )
    assert finding.summary == "GPU 3 of h0: XID 48 (uncorrectable memory error), then 95."


def test_xids_outside_the_job_or_of_unknown_time_accuse_nobody() -> None:
    steps = [{"rank": 0, "attempt": 1, "capture_id": 0, "step": 1, "dur_ns": 5, "compute_ns": 5,
              "exposed_comm_ns": 0, "memory_ns": 0, "idle_ns": 0, "comm_ns": 0}]  # fmt: skip
    for known in (False, None):
        outcome = run(
            "gpu-memory-fault", gpu_events=[xid(3, 79, is_in_window=known)], step_breakdown=steps
        )
        assert not outcome.findings
    # With no trace at all they are all that there is.
    assert run("gpu-memory-fault", gpu_events=[xid(3, 79, is_in_window=None)]).findings


@pytest.mark.parametrize(("grown", "fires"), [(1.0, True), (0.0, False), (None, False)])
def test_uncorrectable_errors_count_when_they_grow(grown: float | None, fires: bool) -> None:
    outcome = run("gpu-memory-fault", gpu_growth=[growth(3, "ecc_dbe_volatile", grown)])
    assert bool(outcome.findings) is fires
    healthy = run("gpu-memory-fault", gpu_growth=[growth(3, "ecc_sbe_volatile", 500.0)])
    assert healthy == RuleOutcome()


@pytest.mark.parametrize(
    ("flag", "severity"), [("row_remap_failure", "critical"), ("row_remap_pending", "note")]
)
def test_a_row_that_cannot_be_replaced_is_critical_one_that_waits_is_a_note(
    flag: str, severity: str
) -> None:
    finding = only(run("gpu-memory-fault", gpu_counters=[gauge(3, flag, 1, None)]))
    assert finding.severity.value == severity
    assert run("gpu-memory-fault", gpu_counters=[gauge(3, flag, 0, None)]) == RuleOutcome()


# --- pcie-degraded --------------------------------------------------------------------------------


def link(width: float, peers: float | None, busy: float) -> list[dict[str, Any]]:
    return [
        gauge(3, "pcie_width", width, peers),
        gauge(3, "pcie_width_max", 16, 16),
        gauge(3, "gpu_utilisation", busy, None),
    ]


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
    assert only(outcome).severity is severity


# --- nvlink-fault ---------------------------------------------------------------------------------


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


# --- gpu-outlier ----------------------------------------------------------------------------------


def temperatures(own: float, others: float = 45.0) -> list[dict[str, Any]]:
    cool = [
        gauge(i, "gpu_temperature", others + i - 1, others, highest_ratio=0.0) for i in range(3)
    ]
    return [*cool, gauge(3, "gpu_temperature", own, others)]


def test_a_hot_gpu_is_a_note() -> None:
    finding = only(run("gpu-outlier", gpu_counters=temperatures(63)))
    assert finding.severity is Severity.NOTE
    assert finding.summary == "GPU 3 of h0 is unlike its peers: temperature 63 against 45 C."


@pytest.mark.parametrize(
    "rows",
    [
        temperatures(54.9),  # less than 10 degrees above
        [r | {"highest_ratio": 0.89} for r in temperatures(63)],
        [r | {"moments_count": 2} for r in temperatures(63)],
        [r | {"peers_count": 2} for r in temperatures(63)],
    ],
)
def test_a_gpu_that_stands_out_less_is_none(rows: list[dict[str, Any]]) -> None:
    assert run("gpu-outlier", gpu_counters=rows) == RuleOutcome()


def test_a_wide_spread_makes_no_outlier() -> None:
    rows = temperatures(63)
    for index, value in enumerate((25.0, 45.0, 60.0)):
        rows[index] |= {"p50_value": value}
    assert run("gpu-outlier", gpu_counters=rows) == RuleOutcome()


# --- slow-gpu: the busiest, by counters alone -----------------------------------------------------


def active(ratio: float = 1.4, below: float = 0.0, **more: Any) -> list[dict[str, Any]]:
    """Four GPUs; the last is so many times as active as the others."""
    found = [gauge(i, "sm_active", 0.6, 0.6) for i in range(3)]
    own = gauge(3, "sm_active", 0.6 * ratio, 0.6) | {"below_ratio": below}
    return [*found, own | more]


SLOW = gauge(3, "sm_clock", 1500 * MHZ, 1980 * MHZ)


def test_the_busiest_beside_a_lost_clock_is_a_suspect() -> None:
    found = only(run("slow-gpu", gpu_counters=[*active(), SLOW]))
    assert found.severity is Severity.MINOR
    assert found.confidence.level == "possible"
    assert found.impact.s_per_step is None
    assert found.scope.devices == ("h0 GPU 3",) and not found.scope.ranks
    assert found.candidates.ranks == (0, 1)
    assert found.summary == (
        "GPU 3 of h0 does not wait for its peers (1.40x as active as they are), and its clock is "
        "1500 MHz against 1980."
    )


@pytest.mark.parametrize(
    "evidence",
    [
        {"gpu_counters": [gauge(3, "power", 540, 600)]},
        {"gpu_throttle": [reason(3, "hw_power_brake", 50)]},
        {"gpu_throttle": [reason(3, "sw_thermal", 0, held=0.05)]},
        {"gpu_growth": [growth(3, "remapped_rows_uncorrectable", 1.0)]},
        {"gpu_events": [xid(3, 63)]},
    ],
)
def test_power_heat_and_memory_are_reasons_too(evidence: dict[str, Any]) -> None:
    given = {**evidence, "gpu_counters": [*active(), *evidence.get("gpu_counters", ())]}
    assert only(run("slow-gpu", **given)).scope.devices == ("h0 GPU 3",)


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"gpu_counters": [gauge(3, "sm_clock", 1900 * MHZ, 1980 * MHZ)]},
        {"gpu_counters": [gauge(3, "power", 560, 600)]},
        {"gpu_counters": [gauge(2, "sm_clock", 1500 * MHZ, 1980 * MHZ)]},  # another's reason
        {"gpu_throttle": [reason(3, "sw_power_cap", 100)]},  # normal at full load
        {"gpu_throttle": [reason(3, "hw_thermal", 4)]},
        {"gpu_growth": [growth(3, "ecc_sbe_volatile", 500.0)]},  # corrected: normal
        {"gpu_events": [xid(3, 13)]},  # the program's
        {"gpu_events": [xid(3, 63, is_in_window=False)]},
    ],
)
def test_the_busiest_without_a_reason_is_nobody_s_fault(evidence: dict[str, Any]) -> None:
    given = {**evidence, "gpu_counters": [*active(), *evidence.get("gpu_counters", ())]}
    outcome = run("slow-gpu", **given)
    assert not outcome.findings and not outcome.not_checked


@pytest.mark.parametrize(
    "compared",
    [
        active(ratio=1.09),
        active(below=0.21),
        active(moments_count=9),
        active(peers_count=2),
        active(total_ratio=None),
        [gauge(i, "sm_active", 0.6, 0.6) for i in range(4)],  # healthy twin
    ],
)
def test_just_below_the_busiest_is_silent(compared: list[dict[str, Any]]) -> None:
    assert not run("slow-gpu", gpu_counters=[*compared, SLOW]).findings


def test_utilisation_proves_nothing() -> None:
    (lack,) = run("slow-gpu", gpu_counters=[gauge(3, "gpu_utilisation", 1, 0.5), SLOW]).not_checked
    assert lack.needs == "a GPU timeline, or the SM activity of GPUs (DCGM 1002)"


def test_without_counters_it_needs_a_timeline() -> None:
    (lack,) = run("slow-gpu").not_checked
    assert lack.needs == "a GPU timeline (these ranks show none)"


def test_heat_that_the_gpu_reports_is_one_finding_under_its_own_name() -> None:
    hot = {"gpu_counters": [*active(), SLOW], "gpu_throttle": [reason(3, "hw_thermal", 60)]}
    findings = [only(run(name, **hot)) for name in ("thermal-throttle", "slow-gpu")]
    (one,) = fold(findings)
    assert one.rule == "thermal-throttle"
    assert one.confidence.level == "possible"  # counters alone, twice
    assert one.confidence.basis.endswith("its peers wait and it does not")
    assert "activity over its peers'" in [e.name for e in one.evidence]
    other = [f for f in findings if f.rule == "slow-gpu"] + [
        only(run("thermal-throttle", **{**hot, "gpu_throttle": [reason(2, "hw_thermal", 60)]}))
    ]
    assert len(fold(other)) == 2
