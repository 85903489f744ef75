"""
What it means
    Another program computes on a GPU of the job, which gets what is left.

How it shows
    Two or more processes compute on the GPU while its peers have one. Or in a trace: in most steps
    some kernels last longer than the same kernels at the same places of other steps, all by one
    length of a millisecond or more whatever kernel it is, and other kernels in each step: a slice
    of the GPU's time that another program had. Or the GPU holds the memory of a context more in a
    slow stretch of the training log alone, and its peers do not. Or, where none of it is seen: its
    rank computes 1.05 times as long as its peers or more, at a clock like theirs, with nothing that
    holds the clock down, and the GPU holds 1 GiB and 5 % more memory than any of them.

Why it hurts
    Two programs take turns on the multiprocessors, and every rank waits for the slower one.

Remedy
    Stop what does not belong there (nvidia-smi shows its process); give each job whole GPUs
    (exclusive mode, device plugins that do not share).

When this is wrong
    A rank may hold more memory because it does more (a stage of a pipeline, an embedding): it is
    compared in computing time with ranks of its own stage only, and a job with experts is left out.
    Memory alone, or a slow GPU alone, is no contention. A kernel longer than a slice has one of the
    other's in every step, which no step then shows: slices then cost more than is said. Processes
    of MPS or of the job itself (data loaders that use the GPU) count too.

Source
    Diagnosis D1 (the peer ratio of computing time) beside what nvidia-smi lists as processes. Of
    slices: a job on an H200 beside a program of matrix products; 15 to 21 of 425 kernels a step
    lasted 2.57 ms longer (of ten at most one under 2.52 ms, at most one over 2.63 ms), and none in
    eleven jobs that had the card to themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from msgspec.structs import replace

from tracekit.findings import Evidence, Finding, Price, severity_of
from tracekit.rules import gpus, logged
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.steps import StepKey
from tracekit.rules.thresholds import threshold
from tracekit.wording import ranks_phrase, safe, seconds, some

GIB = 2.0**30
TURNS = "kernel_turns"
EPISODES = "episode_clocks"
CONFIRM = (
    "nvidia-smi pmon -c 5; nvidia-smi --query-compute-apps=pid,name,used_memory "
    "--format=csv   on its host",
)
REMEDY = ("stop the other program; give each job whole GPUs",)


class GpuContentionThresholds(gpus.PricedThresholds):
    """When somebody else is on the GPU."""

    min_processes_count: int = threshold(2, "the job itself is one")
    min_more_memory_bytes: int = threshold(
        2**30, "beyond every peer: a program holds a context of 0.5 GiB, and its data"
    )
    min_more_memory_ratio: float = threshold(0.05, "likewise; allocators differ by 1 or 2 %")
    min_clock_ratio: float = threshold(0.95, "clock over its peers': below, the clock is why (D2)")
    min_peers_count: int = threshold(3, "GPUs of its group, to say what is usual")
    min_context_bytes: int = threshold(
        2**28, "in a slow stretch alone: a program's context holds 0.4 to 0.6 GiB"
    )
    max_gpus_ratio: float = threshold(
        0.5, "of the GPUs that hold more in it: what most do is the job's own"
    )
    min_shared_clock_ratio: float = threshold(
        0.85, "of its usual clock in it: below, the clock is why (two programs draw more power)"
    )
    min_use_ratio: float = threshold(0.5, "in use in the stretch: an idle GPU is no one's")
    min_turns_count: int = threshold(
        3, "kernels of a median step that last longer by one length: one or two may be chance"
    )
    min_names_count: int = threshold(2, "their names: a single kernel may have a case of its own")
    max_spread_ratio: float = threshold(
        0.25, "of a slice, between what nine and what one in ten last: slices are of one length"
    )
    min_steps_ratio: float = threshold(0.5, "of the steady steps that have such kernels")
    min_step_ratio: float = threshold(0.02, "of a mean step that slices take")


def evaluate(facts: Facts, limits: GpuContentionThresholds) -> RuleOutcome:
    """One finding a GPU that is shared."""
    if found := _by_turns(facts, limits) or _in_history(facts, limits):
        return RuleOutcome(found)
    counters = gpus.by_gpu(facts, gpus.COUNTERS, "counter")
    if not any({"compute_processes", "memory_used"} & set(c) for c in counters.values()):
        return gpus.lacking_counters(
            facts, "the GPUs' processes or memory in use (DCGM 252, nvidia-smi)"
        )
    throttled = {
        gpu
        for gpu, events in gpus.by_gpu(facts, gpus.THROTTLE, "event").items()
        if any(events[e]["active_count"] or events[e]["held_ns"] for e in HELD if e in events)
    }
    findings = []
    held = _held_by_group(counters)
    for gpu, counted in sorted(counters.items()):
        row = counted.get("compute_processes")
        # A container shows nobody the processes of others, its own among them: none is no answer.
        if row is not None and row["max_value"] >= 1:
            if row["max_value"] >= limits.min_processes_count > (row["peer_value"] or 0.0):
                findings.append(gpus.priced(facts, _by_processes(facts, limits, row)))
        elif gpu not in throttled and _has_more(counted, held, limits):
            made = gpus.priced(facts, _by_memory(facts, limits, counted["memory_used"]))
            if made.impact.s_per_step is not None:  # memory alone accuses nobody
                findings.append(
                    replace(made, confidence=replace(made.confidence, level="possible"))
                )
    return RuleOutcome(tuple(findings))


def _by_turns(facts: Facts, limits: GpuContentionThresholds) -> tuple[Finding, ...]:
    """One finding for all ranks whose kernels wait for another program's slices."""
    steps = facts.steps
    rows: dict[int, list[Row]] = defaultdict(list)
    for row in facts.of(TURNS):
        key = StepKey.of(row)
        if key in steps.by_key and row["rank"] in steps.by_key[key]:
            rows[int(row["rank"])].append(row)
    shared = {rank: struck for rank, struck in rows.items() if _are_slices(facts, struck, limits)}
    if not shared:
        return ()
    cost_ns = {
        rank: sum(float(row["turns_ns"]) for row in struck) / len(steps)
        for rank, struck in shared.items()
    }
    worst = max(sorted(shared), key=lambda rank: cost_ns[rank])
    struck, mean = shared[worst], steps.rank_means[worst]
    slice_s = median(float(row["p50_ns"]) for row in struck) / 1e9
    count = median(int(row["turns_count"]) for row in struck)
    in_all = len(struck) == len(steps)
    most_ns = sum(float(row["over_ns"]) for row in struck) / len(steps) + mean.idle
    whose = "the GPU" if len(steps.ranks) == 1 else f"the GPU of {_of(facts, sorted(shared))}"
    return (
        facts.finding(
            facts.scope(sorted(shared), steps.keys),
            f"Another program takes turns on {whose}: in the median step {count:.0f} kernels last "
            f"{seconds(slice_s)} longer than in other steps, whatever kernel it is and another one "
            "each time, which is a slice of its time.",
            (
                Evidence.count(
                    "kernels of the median step that last a slice longer",
                    count,
                    limits.min_turns_count,
                    TURNS,
                    facts.places(struck),
                ),
                Evidence(
                    "a slice, median step",
                    slice_s,
                    "s",
                    query=TURNS,
                ),
                Evidence(
                    "slices of other programs, mean step",
                    cost_ns[worst] / 1e9,
                    "s",
                    threshold=limits.min_step_ratio * mean.dur / 1e9,
                    query=TURNS,
                ),
            ),
            by=("GPU timeline", "step times"),
            basis=f"kernels and the same kernels of other steps, on {len(struck)} of {len(steps)}",
            impact=facts.impact(
                Price(
                    cost_ns[worst],
                    "recorded time",
                    min(float(r["turns_ns"]) for r in struck) if in_all else 0.0,
                    max(cost_ns[worst], most_ns),
                ),
                steps.keys,
            ),
            confirm=CONFIRM,
            remedy=REMEDY,
        ),
    )


def _in_history(facts: Facts, limits: GpuContentionThresholds) -> tuple[Finding, ...]:
    """Those that held more memory in a slow stretch of the training log, and in no other time of
    it, at their clock: the stretch that lost most."""
    stretches: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in facts.of(EPISODES):
        stretches[row["first_step"], row["last_step"]].append(row)
    shared: list[list[Row]] = []
    for rows in stretches.values():
        more = [row for row in rows if _holds_more(row, limits)]
        # What most GPUs do at once is the job's own.
        if more and (len(rows) == 1 or len(more) <= limits.max_gpus_ratio * len(rows)):
            shared.append(more)
    if not shared:
        return ()
    rows = max(shared, key=lambda rows: float(rows[0]["lost_ns"] or 0))
    row = rows[0]
    impact = logged.price_of_stretch(facts, row)
    found = gpus.finding(
        facts,
        rows,
        f"{gpus.subject(rows)} held {row['more_memory_bytes'] / GIB:.1f} GiB more in steps "
        f"{row['first_step']:,} to {row['last_step']:,} of the training log than before and after "
        f"them, as where another program is on it; those steps {logged.longer(row)}.",
        (
            Evidence(
                "memory in use in the stretch beyond the most at other times",
                float(row["more_memory_bytes"]),
                "bytes",
                threshold=float(limits.min_context_bytes),
                query=EPISODES,
                rows=facts.readings(rows),
            ),
        ),
        by=("counters", "log"),
        basis="its memory, and the training log: slow for just that time",
        least=severity_of(impact.step_ratio),
        confirm=CONFIRM,
        remedy=REMEDY,
    )
    return (replace(found, impact=impact),)


def _holds_more(row: Row, limits: GpuContentionThresholds) -> bool:
    """Whether a GPU held a context's memory more, while it was in use and at about its clock."""
    is_held = row["usual_mean_hz"] and (
        row["mean_hz"] < limits.min_shared_clock_ratio * row["usual_mean_hz"]
    )
    is_idle = row["use_ratio"] is not None and row["use_ratio"] < limits.min_use_ratio
    more = row.get("more_memory_bytes")
    return more is not None and more >= limits.min_context_bytes and not is_held and not is_idle


def _of(facts: Facts, ranks: Sequence[int]) -> str:
    said = ranks_phrase(ranks, facts.ranks)
    return said[0].lower() + said[1:]


def _are_slices(facts: Facts, struck: Sequence[Row], limits: GpuContentionThresholds) -> bool:
    """Whether a rank's long kernels are so many, and so alike, that nothing else explains them."""
    rank = int(struck[0]["rank"])
    spread = median((row["p90_ns"] - row["p10_ns"]) / row["p50_ns"] for row in struck)
    total_ns = sum(float(row["turns_ns"]) for row in struck) / len(facts.steps)
    return (
        len(struck) >= limits.min_steps_ratio * len(facts.steps)
        and median(int(row["turns_count"]) for row in struck) >= limits.min_turns_count
        and median(int(row["names_count"]) for row in struck) >= limits.min_names_count
        and spread <= limits.max_spread_ratio
        and total_ns >= limits.min_step_ratio * facts.steps.rank_means[rank].dur
    )


HELD = ("hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")


def _held_by_group(counters: Mapping[str, Mapping[str, Row]]) -> dict[object, list[float]]:
    """Memory that each GPU holds, by group of peers, the most first."""
    held: dict[object, list[float]] = defaultdict(list)
    for counted in counters.values():
        memory = counted.get("memory_used")
        if memory is not None and memory["p50_value"] is not None:
            held[memory["peer_group"]].append(float(memory["p50_value"]))
    return {group: sorted(values, reverse=True) for group, values in held.items()}


def _has_more(
    counted: Mapping[str, Row],
    held: Mapping[object, Sequence[float]],
    limits: GpuContentionThresholds,
) -> bool:
    """Whether a GPU holds more memory than every other of its group, at a clock like theirs."""
    memory = counted.get("memory_used")
    if memory is None or memory["p50_value"] is None:
        return False
    own, values = float(memory["p50_value"]), held[memory["peer_group"]]
    lost = gpus.clock_lost(counted)
    if len(values) <= limits.min_peers_count or lost is None or lost[0] < limits.min_clock_ratio:
        return False
    if own < values[0]:
        return False
    more = own - values[1]
    return bool(
        more >= limits.min_more_memory_bytes and more >= limits.min_more_memory_ratio * values[1]
    )


def _by_processes(facts: Facts, limits: GpuContentionThresholds, row: Row) -> Finding:
    evidence = Evidence.count(
        "processes that compute on it",
        row["max_value"],
        limits.min_processes_count,
        gpus.COUNTERS,
        facts.readings([row]),
    )
    names = _names(facts, row)
    said = (
        f"{row['max_value']:.0f} processes compute on {gpus.subject([row])}"
        f"{f' ({names})' if names else ''}"
        f"{'; on its peers one' if row['peer_value'] is not None else ''}."
    )
    return _made(facts, row, said, evidence)


def _names(facts: Facts, row: Row) -> str:
    """The executables on a GPU, where they are listed: most often seen first."""
    rows = [r for r in facts.of("gpu_processes") if r["gpu_id"] == row["gpu_id"] and r["name"]]
    rows.sort(key=lambda r: (-int(r["readings_count"]), str(r["name"]), int(r["pid"])))
    # nvidia-smi lists one process once a kind of context.
    return some(list(dict.fromkeys(f"{safe(str(r['name']))} {r['pid']}" for r in rows)))


def _by_memory(facts: Facts, limits: GpuContentionThresholds, row: Row) -> Finding:
    more = float(row["p50_value"]) - float(row["peer_value"] or 0.0)
    evidence = Evidence(
        "memory in use beyond its peers' median",
        more,
        "bytes",
        threshold=float(limits.min_more_memory_bytes),
        query=gpus.COUNTERS,
        rows=facts.readings([row]),
    )
    said = (
        f"Another program seems to be on {gpus.subject([row])}: it holds {more / GIB:.1f} GiB more "
        f"than its peers and computes for longer at their clock."
    )
    return _made(facts, row, said, evidence)


def _made(facts: Facts, row: Row, summary: str, evidence: Evidence) -> Finding:
    return gpus.finding(
        facts,
        [row],
        summary,
        (evidence,),
        confirm=CONFIRM,
        remedy=REMEDY,
    )


RULE = gpus.rule(
    name="gpu-contention",
    summary="Another program computes on a GPU of the job.",
    owner="platform",
    thresholds=GpuContentionThresholds(),
    queries=(
        *("step_breakdown", gpus.COUNTERS, gpus.THROTTLE, "gpu_processes"),
        *(EPISODES, logged.SUMMARY_QUERY),
    ),
    kernel_queries=(*gpus.TRACE_QUERIES, TURNS),
    evaluate=evaluate,
    explains=("waiting", "lateness", "odd GPU"),
    absorbs=("slow GPU",),
)
