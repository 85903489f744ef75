"""
What it means
    The memory allocator gives blocks back to the driver and asks for others in the middle of the
    run: the GPU's memory is nearly full, or cut into pieces that do not fit.

How it shows
    Calls such as ``cudaFree`` and ``cudaMalloc`` in steady steps, with the GPU idle during them.
    A caching allocator makes them in its first steps only.

Why it hurts
    Freeing waits for all work of the device; nothing is queued until the new block is there. With
    ranks that do so at different moments every collective waits for another one.

Remedy
    ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``; a slightly smaller micro-batch or more
    sharding, so that a few GB stay free; shapes that repeat; no ``torch.cuda.empty_cache()`` in
    the loop.

When this is wrong
    First steps allocate: they are left out where the trace shows them to be warm-up. A step with
    an evaluation or a longer sequence allocates once. Without runtime calls in the trace (device
    activity alone) nothing is seen.

Source
    Diagnosis D33.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.rules.base import Facts, Rule, RuleOutcome
from tracekit.rules.stalls import StallSummary, StallText, StallThresholds, evaluate_stalls
from tracekit.wording import seconds


@dataclass(frozen=True)
class AllocatorStallThresholds(StallThresholds):
    """When allocating is a stall: the defaults of all stalls."""


def _says(found: StallSummary) -> str:
    verb = "stops" if found.subject.startswith("Rank ") else "stop"
    return (
        f"{found.subject} {verb} for {seconds(found.mean_stall_s)} of freeing and allocating GPU "
        f"memory {found.often}, and the job waits."
    )


TEXT = StallText(
    rule="allocator-stall",
    query="allocator_stall",
    owner="model",
    says=_says,
    noun="allocation",
    needs="allocations of device memory recorded in steady steps (CUDA or HIP runtime events)",
    capture="profile with activities CPU and CUDA",
    confirm=(
        "torch.cuda.memory_stats()['num_alloc_retries'] on that rank: it grows while this lasts",
    ),
    remedy=(
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "leave a few GB free: a smaller micro-batch, more sharding, or recomputation",
        "take torch.cuda.empty_cache() out of the loop",
    ),
    needs_gpu=True,
)


def evaluate(facts: Facts, limits: AllocatorStallThresholds) -> RuleOutcome:
    """The ranks whose allocations delay the job.

    Where launches were recorded allocations would have been, so none is none.
    """
    if not facts.of(TEXT.query) and any(r["launched_count"] for r in facts.of("launch_stats")):
        return RuleOutcome()
    return evaluate_stalls(facts, limits, TEXT)


RULE = Rule(
    name=TEXT.rule,
    summary="The memory allocator frees and allocates in the middle of the run.",
    owner=TEXT.owner,
    thresholds=AllocatorStallThresholds(),
    queries=("step_breakdown", TEXT.query, "launch_stats"),
    evaluate=evaluate,
    doc=__doc__,
    needs=TEXT.needs,
)
