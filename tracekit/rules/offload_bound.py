"""
What it means
    Parameters, optimizer states or activations live in host memory, and the GPU waits for the
    copies over PCIe. It names no culprit: it is how the job is configured.

How it shows
    On most ranks, in the median step, copies between host and device run for at least 5 % of the
    step while the GPU computes nothing and communicates nothing, and they move at least 100 MB a
    step: far more than a language model's input. Copies of which nearly all go to the device are
    inputs, or states that are only read, and are called that; it is said where they come from
    memory that is not pinned.

Why it hurts
    PCIe moves 16 to 64 GB/s, GPU memory 2,000 to 8,000. A GPU that waits for its weights is bought
    and not used.

Remedy
    Keep in GPU memory what fits: more sharding (a higher ZeRO stage, more ranks), recomputation,
    8-bit optimizer states, instead of offloading. Else pin the host's memory, overlap copies with
    computing (``overlap_comm``, prefetch), and bind each process to the CPU socket of its GPU.

When this is wrong
    A checkpoint copies everything, too: the median step leaves steps with a save out. An optimizer
    that runs on the CPU leaves the GPU idle besides; that time is not counted here. A window
    without steps may be nothing but the loading of weights.

Source
    The measurements of Llama-3-8B with ZeRO-3 and CPU offload that the transports are compared on.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from msgspec import Struct

from tracekit.findings import Evidence, Finding, Severity
from tracekit.rules.base import NO_GPU, NO_STEPS, Facts, Rule, RuleOutcome
from tracekit.rules.prices import at_most
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import seconds, share

NEEDS = "copies between host and device in a trace"
CAPTURE = "profile with activities CPU and CUDA"
KINDS = ("HtoD", "DtoH")
FITS = "keep in GPU memory what fits: more sharding, recomputation, 8-bit optimizer states"
AGAIN = "keep on the device what is copied again and again"
PINNED = "pin_memory=True in the data loader, and .to(device, non_blocking=True)"
AHEAD = "copy the next batch on a stream of its own while this one is computed"
SMALLER = "send less: bytes instead of floats, decoded or cast on the GPU"


class OffloadBoundThresholds(Thresholds):
    """When copies to and from the host hold up the job."""

    min_step_ratio: float = threshold(
        0.05, "share of the median step in copies that nothing hides; a major cost"
    )
    min_step_bytes: int = threshold(
        100_000_000, "host copies of a rank and step; inputs of language models are under 10 MB"
    )
    min_copies_ratio: float = threshold(0.5, "share of the copying that goes to or from the host")
    min_ranks_ratio: float = threshold(0.5, "share of the ranks; fewer are no configuration")
    min_one_way_ratio: float = threshold(
        0.9, "of the bytes, to the device, that are inputs: an offloaded optimizer sends gradients"
    )
    min_pageable_ratio: float = threshold(0.5, "of the bytes, from or to memory not pinned")


class RankCopies(Struct, frozen=True):
    """What a rank copies in a step."""

    rank: int
    exposed_ns: float
    step_bytes: float
    bytes_per_s: float
    to_device_ratio: float
    """Of the bytes, those that go to the device."""
    pageable_ratio: float


def evaluate(facts: Facts, limits: OffloadBoundThresholds) -> RuleOutcome:
    """One finding for the job if most of its ranks wait for copies."""
    if not facts.has_gpu:
        return facts.lacking(*NO_GPU)
    if not facts.steps.rank_means:
        return facts.lacking(*NO_STEPS)
    if not facts.of("memcpy_summary"):
        return facts.lacking(NEEDS, CAPTURE)
    ranks = _copies(facts, limits)
    if len(ranks) < max(1.0, limits.min_ranks_ratio * len(facts.steps.ranks)):
        return RuleOutcome()
    return RuleOutcome(findings=(_finding(facts, limits, ranks),))


def _copies(facts: Facts, limits: OffloadBoundThresholds) -> list[RankCopies]:
    """Ranks that wait for copies between host and device."""
    exposed: dict[int, list[int]] = defaultdict(list)
    durs: dict[int, list[int]] = defaultdict(list)
    for by_rank in facts.steps.by_key.values():
        for rank, step in by_rank.items():
            exposed[rank].append(step.memory_ns)
            durs[rank].append(step.dur_ns)
    spans = {int(r["rank"]): float(r["span_ns"] or 0) for r in facts.of("overlap")}
    host: dict[int, list[float]] = {}
    every: dict[int, float] = defaultdict(float)
    for row in facts.of("memcpy_summary"):
        rank, busy_ns = int(row["rank"]), float(row["busy_ns"] or 0)
        every[rank] += busy_ns
        if row["copy_kind"] in KINDS:
            sums = host.setdefault(rank, [0.0, 0.0, 0.0, 0.0])
            moved = float(row["total_bytes"] or 0)
            sums[0] += busy_ns
            sums[1] += moved
            sums[2] += moved if row["copy_kind"] == "HtoD" else 0.0
            sums[3] += moved * float(row.get("pageable_ratio") or 0)
    copying = []
    for rank, (busy_ns, moved, to_device, pageable) in sorted(host.items()):
        if rank not in exposed or not spans.get(rank) or busy_ns <= 0:
            continue
        dur_ns, exposed_ns = median(durs[rank]), median(exposed[rank])
        # The summary covers the whole window: its share of a step.
        step_bytes = moved * dur_ns / spans[rank]
        if (
            exposed_ns >= limits.min_step_ratio * dur_ns
            and step_bytes >= limits.min_step_bytes
            and busy_ns >= limits.min_copies_ratio * every[rank]
        ):
            copying.append(
                RankCopies(
                    rank,
                    exposed_ns,
                    step_bytes,
                    moved * 1e9 / busy_ns,
                    to_device / moved,
                    pageable / moved,
                )
            )
    return copying


def _finding(facts: Facts, limits: OffloadBoundThresholds, ranks: list[RankCopies]) -> Finding:
    steps = facts.steps
    scope = facts.scope([r.rank for r in ranks], steps.keys)
    cost_ns = median(r.exposed_ns for r in ranks)
    rate = median(r.bytes_per_s for r in ranks)
    moved = median(r.step_bytes for r in ranks)
    a_step = "" if facts.is_window else " and step"
    is_input = median(r.to_device_ratio for r in ranks) >= limits.min_one_way_ratio
    is_pageable = median(r.pageable_ratio for r in ranks) >= limits.min_pageable_ratio
    way = "from" if is_input else "to and from"
    memory = f"{way} {'pageable ' if is_pageable else ''}host memory"
    return facts.finding(
        scope,
        f"The GPU waits {seconds(cost_ns / 1e9)} {facts.each} "
        f"({share(cost_ns / steps.step_ns)}) for copies {memory}: "
        f"{moved / 1e9:.2f} GB a rank{a_step} at {rate / 1e9:.1f} GB/s"
        f"{', nearly all of it to the device, as inputs are' if is_input else ''}.",
        (
            Evidence.seconds(
                "copies that nothing hides, median step and rank",
                cost_ns,
                limits.min_step_ratio * steps.step_ns,
                "step_breakdown",
            ),
            Evidence(
                "bytes between host and device a step, median rank",
                moved,
                "bytes",
                threshold=limits.min_step_bytes,
                query="memcpy_summary",
            ),
            Evidence("speed of these copies, median rank", rate, "bytes/s", query="memcpy_summary"),
        ),
        by=["GPU timeline"],
        basis=f"copies with an otherwise idle GPU on {len(ranks)} of {len(steps.ranks)} ranks",
        impact=facts.impact(at_most(cost_ns, "recorded time")),
        confirm=(_confirm(facts, is_input=is_input),),
        remedy=_remedy(facts, is_input=is_input, is_pageable=is_pageable),
    )


def _confirm(facts: Facts, *, is_input: bool) -> str:
    if facts.is_window:
        return "tracekit query RUN memcpy_summary   which copies these are"
    if is_input:
        return "train 50 steps on one batch kept on the device: are the copies gone?"
    return "one run with offload_optimizer and offload_param off, if it fits"


def _remedy(facts: Facts, *, is_input: bool, is_pageable: bool) -> tuple[str, ...]:
    bind = "bind each process to the CPU socket of its GPU"
    if is_input and not facts.is_window:
        return (*((PINNED,) if is_pageable else ()), AHEAD, SMALLER, bind)
    pin = "pin host memory and overlap the copies (prefetch, overlap_comm)"
    return (AGAIN if facts.is_window else FITS, pin, bind)


RULE = Rule(
    name="offload-bound",
    summary="The GPU waits for copies to and from host memory.",
    owner="framework",
    thresholds=OffloadBoundThresholds(),
    queries=("step_breakdown", "memcpy_summary", "overlap"),
    needs_kernels=True,
    evaluate=evaluate,
    cap=Severity.MAJOR,
    needs=NEEDS,
    judges_windows=True,
)
