"""low-mfu: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from roll_up_rules import JOB, MFU, MakeJob, gemm, peak, with_job
from tracekit.findings import Severity
from tracekit.report.build import build_report
from tracekit.rules.low_mfu import waterfall


def test_little_arithmetic_is_said_with_where_the_rest_goes(make_job: MakeJob) -> None:
    (finding,) = MFU.run(with_job(make_job(comm_ms=30, idle_ms=25), peak(0.20))).findings
    assert finding.id == "low-mfu/all"
    assert finding.severity is Severity.MINOR
    assert "takes 20 % of the 100 ms step" in finding.summary
    assert "communication that nothing hides 30 %, an idle GPU 25 %" in finding.summary
    assert finding.impact.step_ratio == pytest.approx(1 - 0.20 / 0.30)
    assert "record_shapes" in finding.next_capture[0]


def test_the_parts_are_the_step(make_job: MakeJob) -> None:
    found = waterfall(with_job(make_job(comm_ms=30, idle_ms=25), peak(0.20)))
    assert found is not None
    assert sum(found.parts.values()) == pytest.approx(0.100)
    assert found.parts["useful"] == pytest.approx(0.020)
    assert found.parts["kernels"] == pytest.approx(0.020)  # of 40 ms computing
    assert found.hfu_ratio is None


def test_recomputation_is_a_part_where_the_description_says_so(make_job: MakeJob) -> None:
    text = peak(0.20).replace("microbatches = 1", 'microbatches = 1\nrecompute = "full"')
    found = waterfall(with_job(make_job(), text))
    assert found is not None
    # A third more, but for the output layer, which is not redone.
    assert found.parts["recomputation"] == pytest.approx(0.020 / 3, rel=0.06)
    assert found.hfu_ratio == pytest.approx(0.20 * (1 + found.parts["recomputation"] / 0.020))


def test_the_bubble_is_not_counted_as_waiting(make_job: MakeJob) -> None:
    job = make_job(comm_ms=30, idle_ms=25)
    job.rows["bubble"] = [
        {"stage": s, "window_ns": 80_000_000, "busy_ns": 50_000_000, "is_warmup": False,
         "expected_bubble_ratio": 3 / 7, "expected_bubble_overhead_ratio": 0.75,
         "bubble_ratio": 0.375, "stages_count": 4, "microbatches_count": 4, "chunks_count": 1}
        for s in range(4)
    ]  # fmt: skip
    found = waterfall(with_job(job, peak(0.20)))
    assert found is not None
    assert found.parts["bubble"] == pytest.approx(0.0375)
    assert found.parts["communication"] == 0
    assert found.parts["idle"] == pytest.approx(0.0175)


@pytest.mark.parametrize(("mfu", "is_said"), [(0.299, True), (0.301, False)])
def test_from_three_tenths_of_the_peak(make_job: MakeJob, mfu: float, is_said: bool) -> None:
    assert bool(MFU.run(with_job(make_job(), peak(mfu))).findings) is is_said


def test_more_work_than_time_is_a_wrong_description(make_job: MakeJob) -> None:
    (finding,) = MFU.run(with_job(make_job(comm_ms=60), peak(0.27))).findings  # computes for 25 ms
    assert finding.id == "low-mfu/all-contradicted"
    assert finding.severity is Severity.NOTE
    assert finding.impact.s_per_step is None
    assert "a field of model" in finding.summary


def test_products_stand_against_the_peak_at_the_measured_clock(make_job: MakeJob) -> None:
    job = make_job()
    job.rows["gemm_efficiency"] = [gemm(0.5, 312e12), gemm(0.9, 312e12, dtype="float")]
    facts = with_job(job, JOB)
    found = waterfall(facts)
    assert found is not None
    assert found.gemm_ratio == pytest.approx(0.5)
    assert found.clock_hertz is None
    job.rows["gpu_counters"] = [{"counter": "sm_clock", "rank": 0, "p50_value": 0.705e9}]
    slow = waterfall(with_job(job, JOB))
    assert slow is not None
    assert slow.clock_hertz == 0.705e9
    assert slow.gemm_ratio == pytest.approx(1.0, rel=0.01)  # half the clock: the kernels are fine


def test_the_finding_says_how_fast_products_are_and_against_which_peak(make_job: MakeJob) -> None:
    job = make_job(comm_ms=30, idle_ms=25)
    job.rows["gemm_efficiency"] = [gemm(0.5, 312e12)]
    (finding,) = MFU.run(with_job(job, peak(0.20))).findings
    assert "matrix products run at " in finding.summary
    assert "no counters give the clock" in finding.confidence.basis
    assert finding.next_capture == ()  # shapes were recorded
    (row,) = [e for e in finding.evidence if e.query == "gemm_efficiency"]
    assert row.unit == "ratio"


def test_the_gpu_of_the_traces_will_do(make_job: MakeJob) -> None:
    job = make_job()
    text = JOB.replace('gpu = "NVIDIA A100-SXM4-80GB"', "")
    assert waterfall(with_job(job, text)) is None
    job.rows["gemm_efficiency"] = [gemm(0.5, 312e12)]
    assert waterfall(with_job(job, text)) is not None


def test_what_is_missing_is_named(make_job: MakeJob) -> None:
    text = JOB.replace("layers = 10", "").replace('gpu = "NVIDIA A100-SXM4-80GB"', "")
    needs = MFU.run(with_job(make_job(), text)).not_checked[0].needs
    assert "model.layers" in needs and "hardware.peak_flops_per_s" in needs
    assert MFU.run(make_job().facts()).not_checked
    host = MFU.run(with_job(make_job(measured_on="host"), peak(0.2)))
    assert "GPU timeline" in host.not_checked[0].needs


def test_a_report_has_the_waterfall_and_counts_nothing_twice(make_job: MakeJob) -> None:
    facts = with_job(make_job(comm_ms=30, idle_ms=25), peak(0.20))
    document = build_report(facts).document
    assert document.metrics.mfu is not None
    assert document.metrics.mfu["mfu_ratio"] == pytest.approx(0.20)
    assert all(part.finding != "low-mfu/all" for part in document.step_budget)
    assert sum(p.s_per_step for p in document.step_budget) == pytest.approx(0.100)
