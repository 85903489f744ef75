"""Simulated jobs with counters, from files to verdict: the cause is found, the victims are not."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracekit
from soaks import soak
from tracekit.findings import Finding
from tracekit.report import Report
from tracekit.simulate import Request, write

# "gpu" and "net" are the counters of what is at fault; of "all" most rows are of switches.
DECOYS = ("software-power-cap", "latched-xid", "usual-pause-frames", "counter-reset")
COUNTER_RULES = {
    "thermal-throttle", "power-brake", "gpu-memory-fault", "pcie-degraded", "nvlink-fault",
    "packet-loss", "pfc-storm", "slow-receiver", "nic-error", "ecn-congestion", "incast",
    "ecmp-collision", "storage-interference", "gpu-contention", "gpu-outlier", "link-degraded",
    "fabric-misconfigured",
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))


def diagnosed(
    tmp_path: Path, scenario: str, ranks: int = 16, seed: int = 3, layout: str = "ddp",
    counters: str = "all", decoys: tuple[str, ...] = DECOYS, steps: int = 5,
) -> Report:  # fmt: skip
    """The report of a simulated job; the truth is read by the test alone."""
    folder = tmp_path / "job"
    request = Request(
        scenario, ranks, seed, layout, steps, decoys=decoys, nccl="none", counters=counters
    )
    write(request, folder)
    (folder / "truth.json").unlink()
    with tracekit.open([folder], workers=1) as run:  # starting others takes longer here
        return run.diagnose()


def culprits(scenario: str, ranks: int = 16, seed: int = 3, layout: str = "ddp") -> set[int]:
    from tracekit.simulate import prepare

    (fault,) = prepare(Request(scenario, ranks, seed, layout)).faults
    return set(fault[1].ranks)


def top(report: Report) -> Finding:
    return next(f for f in report.findings if f.id == report.verdict.finding)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counters", "decoys"),
    soak(
        [("gpu", DECOYS), ("all", (*DECOYS, "one-gpu-pods"))],
        fast=[("gpu", DECOYS)],
    ),
)
def test_a_hot_gpu_is_the_cause_and_the_late_rank_points_to_it(
    tmp_path: Path, counters: str, decoys: tuple[str, ...]
) -> None:
    report = diagnosed(tmp_path, "thermal-throttle", counters=counters, decoys=decoys)
    cause = top(report)
    assert cause.rule == "thermal-throttle"
    assert set(cause.scope.ranks) == culprits("thermal-throttle")
    assert cause.confidence.level == "likely"
    assert cause.impact.s_per_step is not None
    late = next(f for f in report.findings if f.rule == "late-rank")
    assert late.explained_by == (cause.id,)
    assert {f.rule for f in report.findings} & COUNTER_RULES <= {"thermal-throttle", "gpu-outlier"}


@pytest.mark.slow  # of such jobs with counters of all that is not at fault the first stays
def test_a_brake_on_a_host_is_one_cause_of_four_slow_ranks(tmp_path: Path) -> None:
    report = diagnosed(tmp_path, "power-brake")
    cause = top(report)
    assert cause.rule == "power-brake"
    assert set(cause.scope.ranks) == culprits("power-brake")
    assert len(cause.scope.hosts) == 1
    assert cause.severity.value in ("major", "critical")


@pytest.mark.slow  # of such jobs with counters of all that is not at fault the first stays
def test_a_gpu_that_reports_errors_and_is_slow_is_one_finding(tmp_path: Path) -> None:
    report = diagnosed(tmp_path, "gpu-memory-fault", counters="gpu")
    cause = top(report)
    assert cause.rule == "gpu-memory-fault"
    assert set(cause.scope.ranks) == culprits("gpu-memory-fault")
    assert "slow-gpu" not in {f.rule for f in report.findings}


@pytest.mark.slow  # of such jobs with counters of all that is not at fault the first stays
def test_loss_on_one_port_is_the_cause_of_transfers_that_are_stuck(tmp_path: Path) -> None:
    report = diagnosed(tmp_path, "packet-loss", counters="net")
    cause = top(report)
    assert cause.rule == "packet-loss"
    assert set(cause.scope.ranks) == culprits("packet-loss")
    assert cause.severity.value in ("major", "critical")
    exposed = next(f for f in report.findings if f.rule == "exposed-communication")
    assert cause.id in exposed.explained_by


@pytest.mark.slow
def test_a_slow_receiver_is_named_and_those_it_holds_up_are_not(tmp_path: Path) -> None:
    report = diagnosed(tmp_path, "pfc-storm")
    cause = top(report)
    assert cause.rule == "slow-receiver"
    assert set(cause.scope.ranks) == culprits("pfc-storm")
    assert len(cause.scope.hosts) == 1
    storm = next(f for f in report.findings if f.rule == "pfc-storm")
    assert storm.scope.ranks == () and storm.scope.hosts == ()
    assert storm.explained_by == (cause.id,)
    accused = {r for f in report.findings if f.rule in COUNTER_RULES for r in f.scope.ranks}
    assert accused == culprits("pfc-storm")


@pytest.mark.slow  # of such jobs with counters of all that is not at fault the first stays
@pytest.mark.parametrize(("layout", "ranks", "seed"), [("fsdp", 8, 6), ("ep8", 16, 7)])
def test_a_healthy_job_with_all_decoys_accuses_nobody(
    tmp_path: Path, layout: str, ranks: int, seed: int
) -> None:
    report = diagnosed(tmp_path, "none", ranks, seed, layout)
    assert not {f.rule for f in report.findings} & COUNTER_RULES
    assert all(f.severity.value in ("note", "minor") for f in report.findings)


@pytest.mark.slow  # of such jobs with counters of all that is not at fault the first stays
@pytest.mark.parametrize(
    ("scenario", "layout", "counters"),
    [
        ("incast", "ep8", "all"),
        ("ecmp-collision", "ddp", "all"),
        ("storage-interference", "fsdp", "all"),
        ("gpu-contention", "ddp", "gpu"),
        ("nic-error", "ddp", "all"),
    ],
)
def test_links_and_gpus_that_are_shared(
    tmp_path: Path, scenario: str, layout: str, counters: str
) -> None:
    report = diagnosed(tmp_path, scenario, layout=layout, counters=counters)
    cause = top(report)
    assert cause.rule == scenario
    assert cause.severity.value in ("major", "critical")
    if scenario == "ecmp-collision":  # the uplink is at fault, nobody behind it
        assert cause.scope.ranks == () and cause.scope.switches
    else:
        assert set(cause.scope.ranks) == culprits(scenario, layout=layout)


@pytest.mark.slow
def test_an_expert_that_gets_more_tokens_accuses_no_link(tmp_path: Path) -> None:
    report = diagnosed(tmp_path, "hot-expert", layout="ep8")
    accused = {f.rule for f in report.findings if f.severity.value in ("major", "critical")}
    assert not accused & COUNTER_RULES
