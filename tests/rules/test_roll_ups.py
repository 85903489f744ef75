"""low-mfu, latency-bound-communication and offload-bound: how a job is made, nobody's fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tracekit.findings import Severity
from tracekit.job import parse_job
from tracekit.report.build import build_report
from tracekit.rules import rule
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.low_mfu import waterfall

MakeJob = Callable[..., Any]
MFU, LATENCY, OFFLOAD = (
    rule(n) for n in ("low-mfu", "latency-bound-communication", "offload-bound")
)

# --- low-mfu ------------------------------------------------------------------------------------

JOB = """
[parallelism]
dp = 4
zero_stage = 0
[schedule]
microbatches = 1
[model]
layers = 10
hidden = 4096
heads = 32
ffn = 16384
sequence = 4096
vocabulary = 32000
dtype = "bfloat16"
[batch]
micro = 1
[hardware]
gpu = "NVIDIA A100-SXM4-80GB"
"""


def with_job(job: Any, text: str = JOB, **known: Any) -> Facts:
    found: Facts = job.facts(**known)
    return Facts(**{**found.__dict__, "description": parse_job(text.encode(), "/data/job.toml")})


def peak(mfu: float) -> str:
    """The job on hardware on which it would reach that MFU in 100 ms."""
    from tracekit.expect import expect

    flops = expect(parse_job(JOB.encode(), "j")).utilisation.model_flops_per_step or 0
    return JOB + f"peak_flops_per_s = {flops / 4 / 0.1 / mfu:.6e}\n"


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


def gemm(ratio: float, peak_flops: float, **more: Any) -> dict[str, Any]:
    flops = 1e12
    return {"rank": 0, "operator": "aten::mm", "dtype": "BFloat16", "total_flops": flops,
            "kernel_ns": flops / (ratio * peak_flops) * 1e9, "kernel_ratio": 0.7,
            "gpu_model": "NVIDIA A100-SXM4-80GB", **more}  # fmt: skip


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


# --- latency-bound-communication ----------------------------------------------------------------


def sizes(*rows: tuple[float, float, float], kind: str = "tp", **more: Any) -> list[dict[str, Any]]:
    """Message bytes, calls a step and transfer in us, of an all-reduce over 8 ranks."""
    return [
        {"group_id": "g", "kind": kind, "op": "all_reduce", "message_bytes": size,
         "instances_count": calls * 10, "steps_count": 10, "transfer_p50_ns": us * 1e3,
         "bus_bytes_per_s": 1.75 * size / (us * 1e-6), "peer_ratio": None, "timeline": "device",
         **more}
        for size, calls, us in rows
    ]  # fmt: skip


LARGE = (175e6, 1, 1000.0)
"""306 GB/s: what the links can do."""


def latency(job: Any, rows: list[dict[str, Any]], exposed: float = 1.0) -> Facts:
    job.rows["group_bandwidth"] = rows
    job.rows["exposed_comm_by_op"] = [
        {"rank": 0, "op": "all_reduce", "comm_ns": 100, "exposed_comm_ns": 100 * exposed}
    ]
    found: Facts = job.facts()
    return found


def test_many_small_messages_take_their_latency(make_job: MakeJob) -> None:
    facts = latency(make_job(comm_ms=20), sizes(LARGE, (100e3, 400, 30.0)))
    (finding,) = LATENCY.run(facts).findings
    # Their bytes would take 0.57 us each at the best bandwidth: 29.4 of 30 are latency.
    assert finding.impact.s_per_step == pytest.approx(400 * 29.43e-6, rel=1e-3)
    assert finding.severity is Severity.MINOR
    assert "400 tp all-reduce of 100 kB (30.0 us each)" in finding.summary


@pytest.mark.parametrize(("calls", "is_said"), [(171, True), (169, False)])
def test_from_a_twentieth_of_the_step(make_job: MakeJob, calls: int, is_said: bool) -> None:
    facts = latency(make_job(comm_ms=20), sizes(LARGE, (100e3, calls, 30.0)))
    assert bool(LATENCY.run(facts).findings) is is_said


@pytest.mark.parametrize(
    "rows",
    [
        sizes((100e3, 400, 30.0)),  # one size only: nothing to compare with
        sizes(LARGE, (4.1e6, 400, 100.0)),  # too large
        sizes(LARGE, (3e6, 400, 33.0)),  # its bytes take half of it
        sizes(LARGE) + sizes((100e3, 400, 30.0), peer_ratio=0.7),  # a slow link
        sizes(LARGE) + sizes((100e3, 400, 30.0), kind="dp"),  # another family's links
    ],
    ids=["one-size", "large", "bandwidth", "slow-link", "other-family"],
)
def test_what_is_not_latency(make_job: MakeJob, rows: list[dict[str, Any]]) -> None:
    assert LATENCY.run(latency(make_job(comm_ms=20), rows)) == RuleOutcome()


def test_hidden_latency_costs_nothing(make_job: MakeJob) -> None:
    rows = sizes(LARGE, (100e3, 400, 30.0))
    assert LATENCY.run(latency(make_job(comm_ms=20), rows, exposed=0.1)) == RuleOutcome()


def test_no_more_than_is_exposed_is_claimed(make_job: MakeJob) -> None:
    rows = sizes(LARGE, (100e3, 4000, 30.0))
    (finding,) = LATENCY.run(latency(make_job(comm_ms=20), rows)).findings
    assert finding.impact.s_per_step == pytest.approx(0.020)


def test_the_link_s_speed_will_do_where_the_description_gives_it(make_job: MakeJob) -> None:
    job = make_job(comm_ms=20)
    job.rows["traffic"] = [{"group_kind": "tp", "expected_domain": "nvlink"}]
    text = JOB.replace("[hardware]", "[hardware]\nnvlink_bytes_per_s = 300e9")
    latency(job, sizes((100e3, 400, 30.0)))
    assert LATENCY.run(with_job(job, text)).findings


def test_threads_of_the_host_are_no_links(make_job: MakeJob) -> None:
    facts = latency(make_job(), sizes(LARGE, (100e3, 400, 30.0), timeline="host"))
    assert LATENCY.run(facts).not_checked
    assert LATENCY.run(make_job().facts()).not_checked


# --- offload-bound ------------------------------------------------------------------------------


def copying(job: Any, ms: int = 20, ranks: int = 4, size: float = 400e6, **more: Any) -> Facts:
    """Ranks copy for some ms of each step, with nothing beside it; the window is ten steps."""
    for rank in range(4):
        for step in job.steps:
            more_ms = (ms if rank < ranks else 0) - 5
            job.add(rank, step, "memory", more_ms)
            job.add(rank, step, "compute", -more_ms)
    job.rows["overlap"] = [{"rank": r, "span_ns": 1_000_000_000} for r in range(4)]
    job.rows["memcpy_summary"] = [
        {"rank": r, "copy_kind": "HtoD", "busy_ns": ms * 10_000_000, "total_bytes": size * 10,
         **more}
        for r in range(4)
    ]  # fmt: skip
    found: Facts = job.facts()
    return found


def test_copies_that_nothing_hides_are_said_with_their_speed(make_job: MakeJob) -> None:
    (finding,) = OFFLOAD.run(copying(make_job())).findings
    assert finding.id == "offload-bound/all"
    assert finding.impact.s_per_step == pytest.approx(0.020)
    assert finding.severity is Severity.MAJOR
    assert "0.40 GB a rank and step at 20.0 GB/s" in finding.summary


@pytest.mark.parametrize(
    ("changed", "is_said"),
    [
        ({"ms": 5}, True),
        ({"ms": 4}, False),
        ({"size": 100e6}, True),
        ({"size": 99e6}, False),
        ({"ranks": 2}, True),
        ({"ranks": 1}, False),
        ({"copy_kind": "DtoD"}, False),
    ],
)
def test_each_condition_is_needed(
    make_job: MakeJob, changed: dict[str, Any], is_said: bool
) -> None:
    assert bool(OFFLOAD.run(copying(make_job(), **changed)).findings) is is_said


def test_a_checkpoint_now_and_then_is_no_offload(make_job: MakeJob) -> None:
    job = make_job()
    for rank in range(4):
        for step in (3, 6, 9):
            job.add(rank, step, "memory", 200)
    facts = copying(job, ms=4)
    assert OFFLOAD.run(facts) == RuleOutcome()


def test_a_job_that_copies_nothing_lacks_copies(make_job: MakeJob) -> None:
    assert "copies" in OFFLOAD.run(make_job().facts()).not_checked[0].needs
    host = OFFLOAD.run(make_job(measured_on="host").facts())
    assert "GPU timeline" in host.not_checked[0].needs
