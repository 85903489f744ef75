"""
What it means
    The GPUs do a small part of the model's arithmetic that they could. It names no culprit: it is
    a roll-up of everything else, with the share of each part.

How it shows
    Operations that the model needs in a step over what the GPUs could do in it (MFU), below 30 %.
    The step of the median rank in parts: arithmetic at peak; recomputation, where the job
    description says that activations are recomputed; kernels slower than the peak; the bubble that
    the pipeline's schedule makes; communication that nothing hides; copies; and an idle GPU. The
    efficiency of matrix products stands beside it where the trace recorded shapes: against the peak
    at the clock that counters measured, else against the data sheet's.

Why it hurts
    At an MFU of 15 % a training takes twice as long as at 30 %, on the same machines.

Remedy
    By the largest part. Kernels: fused attention, compiled or fused element-wise kernels, larger
    products (micro-batch, less tensor parallelism), 8-bit types. Others have rules of their own.

When this is wrong
    The peak is dense, of one type: a job in 32 bits cannot reach it. Small models, long
    sequences and mixtures of experts do not reach what large dense ones do. If the description
    implies more operations than the GPUs could do in the time that they computed, it is wrong, and
    the finding says so instead.

Source
    Diagnosis 3.7 and the roll-up after D34; Megatron-LM (2021) reaches 42 to 52 % on A100.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tracekit.findings import Evidence, Finding, Severity
from tracekit.rules import pipeline
from tracekit.rules.base import NO_GPU, NO_STEPS, Facts, Rule, RuleOutcome
from tracekit.rules.prices import at_most
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import listed, seconds, share

if TYPE_CHECKING:
    from tracekit.expect.expectation import Expectation
    from tracekit.expect.hardware import Gpu

NEEDS = "the model's shape, the batch and the GPU in a job description"
CAPTURE = "tracekit job RUN -o job.toml   then complete it and give it with --job"
NARROW = ("bfloat16", "half", "bf16", "fp16", "float16")
WORDS = {
    "recomputation": "recomputing activations",
    "kernels": "kernels below the peak",
    "bubble": "the bubble of the schedule",
    "communication": "communication that nothing hides",
    "copies": "copies",
    "idle": "an idle GPU",
}


class LowMfuThresholds(Thresholds):
    """When a job does little arithmetic."""

    min_mfu_ratio: float = threshold(
        0.30, "of the dense peak; published large jobs reach 0.38 to 0.55, so less loses a fifth"
    )
    max_work_ratio: float = threshold(
        1.02, "arithmetic at peak over measured computing; more cannot be, so a field is wrong"
    )


class Waterfall(Struct, frozen=True):
    """Where a mean steady step of the median rank went. Parts add up to the step, in seconds."""

    step_s: float
    mfu_ratio: float
    hfu_ratio: float | None
    model_flops_per_step: float
    peak_flops_per_s: float
    parts: dict[str, float]
    """useful, recomputation, kernels, bubble, communication, copies, idle."""
    gemm_ratio: float | None = None
    """Matrix products over the peak, median rank."""
    gemm_share_ratio: float | None = None
    """Share of kernel time that their kernels take."""
    clock_hertz: float | None = None
    """The clock that the peak of ``gemm_ratio`` is at; null: the data sheet's."""

    def to_dict(self) -> dict[str, Any]:
        """As ``metrics.mfu`` of the JSON has it."""
        return {
            "mfu_ratio": self.mfu_ratio,
            "hfu_ratio": self.hfu_ratio,
            "model_flops_per_step": self.model_flops_per_step,
            "peak_flops_per_s": self.peak_flops_per_s,
            "gemm_efficiency_ratio": self.gemm_ratio,
            "gemm_kernel_ratio": self.gemm_share_ratio,
            "clock_hertz": self.clock_hertz,
            "parts": [{"part": k, "s_per_step": v} for k, v in self.parts.items()],
        }


def expectation(facts: Facts) -> Expectation | None:
    """What the description implies, with the world and the GPU of the traces where it is mute."""
    job = facts.description
    if job is None or not facts.steps.step_ns:
        return None
    import msgspec

    from tracekit.expect import expect

    hardware = job.hardware
    if hardware.gpu is None:
        model = next((r["gpu_model"] for r in facts.of("gemm_efficiency") if r["gpu_model"]), None)
        hardware = msgspec.structs.replace(hardware, gpu=model)
    world = job.world_size or facts.job.world_size
    job = msgspec.structs.replace(job, hardware=hardware, world_size=world)
    return expect(job, step_s=facts.steps.step_ns / 1e9)


def waterfall(facts: Facts) -> Waterfall | None:
    """The parts of the step; None where model, batch, GPU or steps are not known."""
    expected = expectation(facts)
    means = facts.steps.median_parts
    if expected is None or means is None or facts.hidden_ranks or not facts.has_gpu:
        return None
    used = expected.utilisation
    if not used.mfu_ratio or not used.ideal_compute_s or not used.model_flops_per_step:
        return None
    step_s = facts.steps.step_ns / 1e9
    bubble = pipeline.schedule_bubble(facts)
    bubble_ns = bubble.allowed_ns if bubble else 0.0
    from_comm = min(bubble_ns, means.exposed_comm)
    from_idle = min(bubble_ns - from_comm, means.idle)
    again = 0.0
    if used.hfu_ratio is not None and facts.description is not None:
        kind = facts.description.schedule.recompute
        if kind == "full" and used.recomputed_flops_per_step:
            more = used.recomputed_flops_per_step / used.model_flops_per_step - 1
            again = used.ideal_compute_s * more
    parts = {
        "useful": used.ideal_compute_s,
        "recomputation": again,
        "kernels": means.compute / 1e9 - used.ideal_compute_s - again,
        "bubble": (from_comm + from_idle) / 1e9,
        "communication": (means.exposed_comm - from_comm) / 1e9,
        "copies": means.memory / 1e9,
        "idle": (means.idle - from_idle) / 1e9,
    }
    gemm, part, clock = _gemm(facts, _gpu(facts))
    return Waterfall(
        step_s=step_s,
        mfu_ratio=used.mfu_ratio,
        hfu_ratio=used.hfu_ratio if again else None,
        model_flops_per_step=used.model_flops_per_step,
        peak_flops_per_s=used.model_flops_per_step / (used.mfu_ratio * step_s) / _world(facts),
        parts=parts,
        gemm_ratio=gemm,
        gemm_share_ratio=part,
        clock_hertz=clock,
    )


def _world(facts: Facts) -> int:
    assert facts.description is not None  # noqa: S101  # waterfall has looked
    p = facts.description.parallelism
    product = (p.tp or 1) * (p.pp or 1) * (p.dp or 1) * (p.cp or 1)
    return facts.description.world_size or facts.job.world_size or product


def _gpu(facts: Facts) -> Gpu | None:
    from tracekit.expect.hardware import gpu_named

    said = facts.description.hardware.gpu if facts.description is not None else None
    seen = next((r["gpu_model"] for r in facts.of("gemm_efficiency") if r["gpu_model"]), None)
    return gpu_named(said or seen)


def _gemm(facts: Facts, gpu: Gpu | None) -> tuple[float | None, float | None, float | None]:
    """Efficiency of matrix products in 16 bits, their share of kernel time, and the clock."""
    clocks = [
        float(r["p50_value"]) for r in facts.of("gpu_counters")
        if r["counter"] == "sm_clock" and r["rank"] is not None and r["p50_value"]
    ]  # fmt: skip
    clock = median(clocks) if clocks else None
    peak = gpu.bf16_flops_per_s if gpu else None
    if facts.description is not None and facts.description.hardware.peak_flops_per_s:
        peak, clock = facts.description.hardware.peak_flops_per_s, None
    elif gpu is not None and clock is not None and gpu.bf16_flops_per_clock:
        peak = gpu.bf16_flops_per_clock * clock
    else:
        clock = None
    rows = [
        r for r in facts.of("gemm_efficiency") if str(r["dtype"] or "").lower() in NARROW
    ]  # fmt: skip
    if not rows or not peak:
        return None, None, None
    ranks = sorted({int(r["rank"]) for r in rows})
    speeds, shares = [], []
    for rank in ranks:
        of_rank = [r for r in rows if int(r["rank"]) == rank]
        time_ns = sum(float(r["kernel_ns"]) for r in of_rank)
        speeds.append(sum(float(r["total_flops"]) for r in of_rank) * 1e9 / time_ns)
        shares.append(sum(float(r["kernel_ratio"] or 0.0) for r in of_rank))
    return median(speeds) / peak, median(shares), clock


def evaluate(facts: Facts, limits: LowMfuThresholds) -> RuleOutcome:
    """One finding for the job, without a culprit; or one that the description cannot be right."""
    if not facts.steps.rank_means:
        return facts.lacking(*NO_STEPS)
    if not facts.has_gpu:
        return facts.lacking(*NO_GPU)
    if facts.description is None:
        return facts.lacking(NEEDS, CAPTURE)
    used = waterfall(facts)
    if used is None:
        unknown = expectation(facts)
        fields = unknown.unknown if unknown else []
        named = [n for n in fields if n.startswith(("model", "batch", "hardware.peak"))]
        more = f": {listed(named[:6])}" if named else ""
        return facts.lacking(f"{NEEDS}{more}", CAPTURE)
    means = facts.steps.median_parts
    if means is not None and used.parts["useful"] > limits.max_work_ratio * means.compute / 1e9:
        return RuleOutcome(findings=(_impossible(facts, limits, used),))
    if used.mfu_ratio >= limits.min_mfu_ratio:
        return RuleOutcome()
    return RuleOutcome(findings=(_finding(facts, limits, used),))


def _finding(facts: Facts, limits: LowMfuThresholds, used: Waterfall) -> Finding:
    scope = facts.scope(facts.steps.ranks, facts.steps.keys)
    lost = {k: v for k, v in used.parts.items() if k != "useful" and v > 0}
    largest = sorted(lost.items(), key=lambda item: -item[1])[:3]
    words = ", ".join(f"{WORDS[k]} {share(v / used.step_s)}" for k, v in largest)
    saved_s = used.step_s * (1 - used.mfu_ratio / limits.min_mfu_ratio)
    return facts.finding(
        scope,
        f"The model's arithmetic takes {share(used.mfu_ratio)} of the {seconds(used.step_s)} "
        f"step at the GPU's peak (MFU). The rest: {words}{_gemm_words(used)}.",
        _evidence(limits, used),
        by=["GPU timeline"],
        basis="operations that the job description implies, over the measured step; "
        + _peak_words(used),
        impact=facts.impact(at_most(saved_s * 1e9, "recorded time")),
        confirm=(
            f"tracekit expect --job job.toml --step-time {used.step_s:.4g}   "
            "the same from the description",
        ),
        remedy=_remedies(largest),
        next_capture=()
        if used.gemm_ratio is not None
        else ("profile with record_shapes=True: it tells how fast matrix products are",),
    )


def _peak_words(used: Waterfall) -> str:
    if used.gemm_ratio is None:
        return "the data sheet's peak"
    if used.clock_hertz is None:
        return "the data sheet's peak: no counters give the clock"
    return f"products against the peak at {used.clock_hertz / 1e6:.0f} MHz, as measured"


def _gemm_words(used: Waterfall) -> str:
    if used.gemm_ratio is None:
        return ""
    return f"; matrix products run at {share(used.gemm_ratio)} of the peak"


def _evidence(limits: LowMfuThresholds, used: Waterfall) -> tuple[Evidence, ...]:
    rows = [
        Evidence.ratio(
            "model's operations over what the GPUs could do (MFU)",
            used.mfu_ratio,
            limits.min_mfu_ratio,
            "step_breakdown",
        )
    ]
    for part, part_s in used.parts.items():
        if part_s > 0:
            name = "the model's arithmetic at peak" if part == "useful" else WORDS[part]
            rows.append(Evidence(name, part_s, "s", query=_query_of(part)))
    if used.gemm_ratio is not None:
        rows.append(
            Evidence.ratio(
                f"matrix products over the peak ({share(used.gemm_share_ratio or 0.0)} of "
                "kernel time)",
                used.gemm_ratio,
                None,
                "gemm_efficiency",
            )
        )
    return tuple(rows)


def _query_of(part: str) -> str:
    return "bubble" if part == "bubble" else "step_breakdown"


def _remedies(largest: Sequence[tuple[str, float]]) -> tuple[str, ...]:
    by_part = {
        "recomputation": "recompute attention only (selective), or nothing where memory allows",
        "kernels": "fuse kernels (torch.compile, fused attention); larger products; 8-bit types",
        "bubble": "more microbatches, interleaved stages, or a zero-bubble schedule",
        "communication": "see exposed-communication and traffic-mismatch",
        "copies": "see offload-bound; pin memory and copy beside computing",
        "idle": "see launch-bound, sync-stall and the input",
    }
    return tuple(by_part[part] for part, _ in largest[:2])


def _impossible(facts: Facts, limits: LowMfuThresholds, used: Waterfall) -> Finding:
    scope = facts.scope(facts.steps.ranks, facts.steps.keys)
    means = facts.steps.median_parts
    compute_s = means.compute / 1e9 if means else 0.0
    useful_s = used.parts["useful"]
    return facts.finding(
        scope,
        f"The job description implies {seconds(useful_s)} of arithmetic at the GPU's peak in "
        f"each step, but the GPU computed for {seconds(compute_s)} only: a field of model, "
        "batch, parallelism or hardware is wrong.",
        (
            Evidence.ratio(
                "arithmetic at peak over measured computing",
                useful_s / compute_s if compute_s else 0.0,
                limits.max_work_ratio,
                "step_breakdown",
            ),
        ),
        by=["GPU timeline"],
        basis="the job description against the traces",
        place="all-contradicted",
        confirm=("tracekit expect --job job.toml   is it the model, and is the batch a step's?",),
        remedy=("correct the job description",),
    )


RULE = Rule(
    name="low-mfu",
    summary="The GPUs do a small part of the arithmetic that they could.",
    owner="framework",
    thresholds=LowMfuThresholds(),
    queries=("step_breakdown", "gemm_efficiency", "bubble", "gpu_counters"),
    needs_kernels=True,
    evaluate=evaluate,
    cap=Severity.MINOR,
    blames="nobody",
    needs=NEEDS,
    symptom_of=("waiting", "unfed GPUs"),
    budget="counted",
)
