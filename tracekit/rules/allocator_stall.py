"""
What it means
    The memory allocator gives blocks back to the driver and asks for others in the middle of the
    run: the GPU's memory is nearly full, or cut into pieces that do not fit.

How it shows
    Calls such as ``cudaFree`` and ``cudaMalloc`` in steady steps, with the GPU idle during them.
    A caching allocator makes them in its first steps only. Many blocks given back one right behind
    the other are a cache that is emptied; many calls that are no such row, one that is off.

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

from collections import defaultdict
from statistics import median

from msgspec.structs import replace

from tracekit.rules.base import Facts, Row, Rule, RuleOutcome
from tracekit.rules.stalls import StallSummary, StallText, StallThresholds, evaluate_stalls
from tracekit.rules.steps import StepKey
from tracekit.rules.thresholds import threshold


class AllocatorStallThresholds(StallThresholds):
    """When allocating is a stall: the defaults of all stalls."""

    min_uncached_calls_count: int = threshold(
        100,
        "calls in the typical step from which nothing is cached at all: a cache that gives back and"
        " asks again does so for tens of blocks",
    )
    min_run_count: int = threshold(
        10, "blocks given back one right behind the other: fewer are a few tensors"
    )
    min_run_ratio: float = threshold(
        0.4,
        "of all calls, in that run: of a cache that is emptied half are frees, all in one; of"
        " tensors that go one by one some are neighbours (gradients, a tenth)",
    )


def _says(stall: StallSummary) -> str:
    verb = "stops" if stall.subject.startswith("Rank ") else "stop"
    return (
        f"{stall.subject} {verb} for {stall.lasts} of freeing and allocating GPU "
        f"memory {stall.often}, and the job waits."
    )


TEXT = StallText(
    query="allocator_stall",
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


def _says_uncached(stall: StallSummary) -> str:
    return f"{_says(stall)[:-1]}: it asks for every tensor anew, so its cache seems to be off."


UNCACHED = replace(
    TEXT,
    says=_says_uncached,
    confirm=(
        "env | grep NO_.*MEMORY_CACHING where the rank runs: set, it turns the cache off",
        "torch.cuda.memory_stats()['reserved_bytes.all.current'] stays near 0 while the job runs",
    ),
    remedy=(
        "unset PYTORCH_NO_CUDA_MEMORY_CACHING (on ROCm PYTORCH_NO_HIP_MEMORY_CACHING too)",
        "where a library allocates by itself each time, give it buffers that are kept",
    ),
)
"""The same where there is no cache to be fragmented."""


def _says_emptied(stall: StallSummary) -> str:
    return (
        f"{_says(stall)[:-1]}: its cache is emptied at once and filled again, as "
        "torch.cuda.empty_cache() in the loop does, or memory that is full."
    )


EMPTIED = replace(
    TEXT,
    says=_says_emptied,
    confirm=(
        "grep -rn empty_cache in the training code and its libraries",
        "torch.cuda.memory_stats()['num_alloc_retries'] on that rank: if it grows, memory is full",
    ),
    remedy=(
        "take torch.cuda.empty_cache() out of the loop",
        "if memory is full: a smaller micro-batch, more sharding, or recomputation",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ),
)
"""The same where all that is cached goes in one go."""


def _is_emptied(facts: Facts, limits: AllocatorStallThresholds) -> bool:
    """Whether most steps with such calls give nearly all blocks back in a row."""
    rows = facts.of(TEXT.query)
    emptying = [row for row in rows if _empties(row, limits)]
    return 2 * len(emptying) > len(rows)


def _empties(row: Row, limits: AllocatorStallThresholds) -> bool:
    freed = int(row.get("freed_run_count") or 0)
    least = max(limits.min_run_count, limits.min_run_ratio * int(row["ranges_count"]))
    return freed >= least


def _is_uncached(facts: Facts, limits: AllocatorStallThresholds) -> bool:
    """Whether some rank makes so many calls in its typical steady step."""
    if facts.is_window:
        return False  # of how many steps these are is not known
    counts: dict[int, list[int]] = defaultdict(list)
    for row in facts.of(TEXT.query):
        key = StepKey.of(row)
        if key in facts.steps.by_key:
            counts[int(row["rank"])].append(int(row["ranges_count"]))
    return any(
        2 * len(calls) > len(facts.steps) and median(calls) >= limits.min_uncached_calls_count
        for calls in counts.values()
    )


def evaluate(facts: Facts, limits: AllocatorStallThresholds) -> RuleOutcome:
    """The ranks whose allocations delay the job.

    Where launches were recorded allocations would have been, so none is none.
    """
    if not facts.of(TEXT.query) and any(r["launched_count"] for r in facts.of("launch_stats")):
        return RuleOutcome()
    if _is_emptied(facts, limits):
        return evaluate_stalls(facts, limits, EMPTIED)
    return evaluate_stalls(facts, limits, UNCACHED if _is_uncached(facts, limits) else TEXT)


RULE = Rule(
    name="allocator-stall",
    summary="The memory allocator frees and allocates in the middle of the run.",
    owner="model",
    thresholds=AllocatorStallThresholds(),
    queries=("step_breakdown", TEXT.query, "launch_stats"),
    evaluate=evaluate,
    judges_windows=True,
    needs=TEXT.needs,
    explains=("waiting", "lateness"),
)
