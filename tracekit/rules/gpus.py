"""What rules over GPU counters share: whose GPU it is, how it is named, what is missing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Unpack

from msgspec import Struct
from msgspec.structs import replace

from tracekit.findings import (
    Candidates,
    Evidence,
    Finding,
    Impact,
    Instrument,
    Scope,
    Severity,
    confidence_from,
    severity_of,
)
from tracekit.rules import logged, pipeline
from tracekit.rules.base import Facts, Row, Rule, RuleOutcome
from tracekit.rules.facts import Advice
from tracekit.rules.lateness.limits import ReplayThresholds
from tracekit.rules.lateness.replayed import replayed
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import safe, share, some

CAPTURE = "tracekit capture --what dcgm"
NEEDS = "GPU counters (DCGM, nvidia-smi or XID logs)"
COUNTERS = "gpu_counters"
THROTTLE = "gpu_throttle"
GROWTH = "gpu_growth"
EVENTS = "gpu_events"
GIVEN = dict.fromkeys(
    (COUNTERS, THROTTLE, GROWTH, EVENTS), "which GPU counters were given, to say what is missing"
)
"""What ``lacking_counters`` asks, as optional queries of a rule; those that it needs say more."""
WHEN = {logged.SUMMARY_QUERY: "when the job ran, where no trace tells"}
rule = partial(Rule, topic="GPU health", needs=NEEDS, optional=GIVEN | WHEN)
"""A rule over GPU counters, with what these declare alike."""
TRACE_QUERIES = ("straggler", "comm_summary", "stage_balance")
"""What ``cost`` asks besides the steps; CUDA graphs hide it."""

XIDS: Mapping[int, str] = {
    48: "uncorrectable memory error",
    62: "internal halt",
    63: "memory row to be replaced",
    64: "memory row could not be replaced",
    74: "NVLink error",
    79: "fell off the bus",
    92: "many corrected memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "its firmware (GSP) does not answer",
    120: "its firmware (GSP) failed",
    121: "chip-to-chip link error",
    136: "link training failed",
    140: "unrecovered memory error",
    143: "initialisation failed",
    167: "fatal PCIe timeout",
    171: "uncorrectable memory error (DRAM)",
    172: "uncorrectable memory error (SRAM)",
    **dict.fromkeys(range(144, 151), "NVLink error"),
}
"""XIDs that speak of hardware. 45 and 137 follow from others."""
PROGRAM_XIDS: Mapping[int, str] = {
    13: "an exception of its engine",
    31: "a fault of memory addresses",
    43: "it stopped processing",
}
"""XIDs that are a program's own doing."""
LINK_XIDS = frozenset({74, 121, 136, *range(144, 151)})
PCIE_XIDS = frozenset({167})
MEMORY_XIDS = frozenset(XIDS) - LINK_XIDS - PCIE_XIDS


def lacking_counters(facts: Facts, needs: str) -> RuleOutcome:
    """The outcome of a rule that lacks some counters, or all."""
    has_any = any(facts.of(q) for q in GIVEN)
    return facts.lacking(needs if has_any else NEEDS, CAPTURE)


def name_of(row: Row) -> str:
    """The GPU in a sentence: ``GPU 5 of gpu-11``, ``GPU 00000000:9b:00.0``, ``GPU-5269...``."""
    if row["gpu_index"] is not None:
        name = f"GPU {row['gpu_index']}"
    elif row["pci"] is not None:
        name = f"GPU {row['pci']}"
    else:
        name = safe(str(row["gpu_id"]))
    return f"{name} of {safe(row['host'])}" if row["host"] else name


def subject(rows: Sequence[Row]) -> str:
    """The GPUs that a finding is about, with their ranks where those are known."""
    first = rows[0]
    if len(rows) == 1:
        rank = f" (rank {first['rank']})" if first["rank"] is not None else ""
        return name_of(first) + rank
    return f"{len(rows)} GPUs ({some([name_of(r) for r in rows], 3)})"


def scope_of(facts: Facts, rows: Iterable[Row]) -> Scope:
    """GPUs, their hosts, and the ranks that are known to use them."""
    listed = list({r["gpu_id"]: r for r in rows}.values())
    ranks = sorted({int(r["rank"]) for r in listed if r["rank"] is not None})
    sources = sorted({str(r["rank_source"]) for r in listed if r["rank_source"]})
    return Scope(
        ranks=tuple(ranks),
        hosts=tuple(sorted({r["host"] for r in listed if r["host"]})),
        devices=tuple(sorted(str(r["gpu_id"]) for r in listed)),
        identity_source=", ".join(sources) or None,
    )


def candidates_of(rows: Sequence[Row]) -> Candidates:
    """The ranks of the host, where nothing says which of them uses the GPU."""
    first = {r["gpu_id"]: r for r in reversed(rows)}
    listed = [r for r in first.values() if r["rank"] is None]
    ranks = sorted({int(n) for r in listed for n in r["host_ranks"] or ()})
    if not ranks:
        return Candidates()
    return Candidates(
        ranks=tuple(ranks),
        hosts=tuple(sorted({r["host"] for r in listed if r["host"]})),
        why="no file says which of the host's ranks uses this GPU (an NCCL log would)",
    )


def by_gpu(facts: Facts, query: str, key: str) -> dict[str, dict[str, Row]]:
    """Rows of a query by GPU, then by one column (counter or event)."""
    by_id: dict[str, dict[str, Row]] = {}
    for row in facts.of(query):
        by_id.setdefault(str(row["gpu_id"]), {})[str(row[key])] = row
    return by_id


def growth_beside(
    growth: Mapping[str, Mapping[str, Row]], counter: str
) -> Iterator[tuple[Row, float, float]]:
    """Rows of a counter's growth, each with its growth and the median of the others' of its kind.

    Where a GPU has no other of its group, all others stand for them: they may only excuse it.
    """
    rows = [of_gpu[counter] for of_gpu in growth.values() if counter in of_gpu]
    counts: dict[str | None, list[float]] = {}
    for row in rows:
        for group in (row["peer_group"], None):
            counts.setdefault(group, []).append(float(row["growth"] or 0.0))
    for ordered in counts.values():
        ordered.sort()
    for row in rows:
        kin = counts[row["peer_group"]]
        ordered = kin if len(kin) > 1 else counts[None]
        count = float(row["growth"] or 0.0)
        own = bisect_left(ordered, count)
        others = ordered[:own] + ordered[own + 1 :]
        yield row, count, median(others) if others else 0.0


def finding(
    facts: Facts,
    rows: Sequence[Row],
    summary: str,
    evidence: Iterable[Evidence],
    *,
    by: Sequence[Instrument] = ("counters",),
    basis: str = "one kind of evidence: the GPU's own counters",
    least: Severity = Severity.NOTE,
    **advice: Unpack[Advice],
) -> Finding:
    """What counters say of the GPUs of ``rows``; what it costs only traces tell (``priced``)."""
    return facts.finding(
        scope_of(facts, rows),
        summary,
        evidence,
        by=by,
        basis=basis,
        least=least,
        candidates=candidates_of(rows),
        is_counted=True,
        **advice,
    )


def current_events(facts: Facts, xids: frozenset[int]) -> list[Row]:
    """XIDs of these numbers while the job ran. Without traces those that cannot be told to be a day
    or more before or behind its training log; with traces none whose time is unknown."""
    log = {} if facts.ranks else next(iter(facts.of(logged.SUMMARY_QUERY)), {})
    begin_ns, end_ns = log.get("start_ns"), log.get("end_ns")

    def may_be_meanwhile(row: Row) -> bool:
        if logged.SUMMARY_QUERY in facts.unavailable:
            return False
        if begin_ns is None or end_ns is None or row["time_ns"] is None:
            return True
        # Of two zones, times without one are less than a day apart.
        return bool(begin_ns - logged.DAY_NS < row["time_ns"] < end_ns + logged.DAY_NS)

    return [
        row
        for row in facts.of(EVENTS)
        if row["xid"] in xids
        and (
            row["is_in_window"]
            or (row["is_in_window"] is None and not facts.ranks and may_be_meanwhile(row))
        )
    ]


def event_evidence(facts: Facts, row: Row, count: int = 1) -> Evidence:
    """How many messages of an XID there were, with what the number means and where one stands."""
    number = int(row["xid"])
    return Evidence.count(
        f"messages of XID {number} ({XIDS[number]})", count, None, EVENTS, facts.readings([row])
    )


class HeldThresholds(Thresholds):
    """When something holds a GPU's clock down."""

    min_held_ratio: float = threshold(
        0.01, "share of the time that a counter says; below it costs less than a note"
    )
    min_active_ratio: float = threshold(0.05, "share of the samples; a sample is a moment")
    min_active_count: int = threshold(3, "two lone samples may be changes of state or damage")


def is_held(row: Row, limits: HeldThresholds) -> bool:
    """Whether a reason held long enough: by the counter where there is one, else by samples."""
    if row["held_ratio"] is not None:
        return bool(row["held_ratio"] >= limits.min_held_ratio)
    return bool(
        row["active_count"] >= limits.min_active_count
        and row["active_ratio"] >= limits.min_active_ratio
    )


def is_always(
    row: Row, counters: Mapping[str, Row], limits: HeldThresholds, max_clock_ratio: float
) -> bool:
    """Whether a reason stood in each of few readings, of a GPU whose clock is below its peers'.

    One scrape or one ``nvidia-smi -q`` is often all there is. A lone reading may be a change of
    state, but not where the clock is lost as well.
    """
    lost = clock_lost(counters)
    return bool(
        row["held_ratio"] is None
        and 0 < row["active_count"] == row["samples_count"] < limits.min_active_count
        and lost is not None
        and lost[0] <= max_clock_ratio
    )


def held_evidence(
    facts: Facts, row: Row, name: str, limits: HeldThresholds, rows: Sequence[Row] = ()
) -> tuple[str, Evidence]:
    """For how long a reason held (``100 % of the time``), and that as evidence. ``rows``: where it
    stands, if not there alone."""
    by_counter = row["held_ratio"] is not None
    held = float(row["held_ratio"] if by_counter else row["active_ratio"])
    of = "time" if by_counter else "samples"
    words = f"{share(held)} of the {of}"
    if not by_counter and row["samples_count"] < limits.min_active_count:
        words = "in its only reading" if row["samples_count"] == 1 else "in both of its readings"
    return words, Evidence.ratio(
        f"{name}, share of the {of}",
        held,
        limits.min_held_ratio if by_counter else limits.min_active_ratio,
        THROTTLE,
        facts.readings(rows or [row]),
    )


def beside_peers(facts: Facts, what: str, ratio: float, limit: float, row: Row) -> Evidence:
    """A counter of a GPU over its peers'."""
    return Evidence.ratio(
        f"{what} peers', median moment", ratio, limit, COUNTERS, facts.readings([row])
    )


def clock_lost(counters: Mapping[str, Row]) -> tuple[float, Row] | None:
    """Clock over the peers' while busy (over all moments where nothing says what is busy)."""
    row = counters.get("sm_clock")
    if row is None:
        return None
    ratio = row["busy_peer_ratio"] if row["busy_peer_ratio"] is not None else row["peer_ratio"]
    return None if ratio is None else (float(ratio), row)


class PricedThresholds(ReplayThresholds):
    """When the traces show that a GPU is slow whose counters say why."""

    min_computing_ratio: float = threshold(
        1.05, "computing time over the peers' from which its trouble costs: the clock of D2"
    )
    min_stage_ratio: float = threshold(
        1.10, "the same over the median other stage's: stages differ more (as for stage-imbalance)"
    )


class Cost(Struct, frozen=True):
    """What GPUs that their own counters call slow cost a step, and how that is known."""

    impact: Impact
    evidence: Evidence


def cost(facts: Facts, ranks: Sequence[int]) -> Cost | None:
    """What a step would gain if these ranks computed as their peers do; None where it is not so.

    The counters say why the GPUs are slow, the traces whether they are: where the ranks compute no
    longer than their peers of the same stage (than the other stages, where all of it are named)
    nothing is charged, and where work is uneven by nature (experts) nothing can be. By replay; else
    the computing time beyond the other ranks', as far as those wait longer than these.
    """
    steps, wanted, limits = facts.steps, set(ranks), facts.limits(PricedThresholds)
    means = steps.rank_means
    others = [m for r, m in means.items() if r not in wanted]
    mine = [m for r, m in means.items() if r in wanted]
    is_uneven = any(row["op"] == "all_to_all" for row in facts.of("comm_summary"))
    if not mine or not others or not facts.has_gpu or facts.hidden_ranks or is_uneven:
        return None
    ratios = {
        int(r["rank"]): float(r["compute_ratio"])
        for r in facts.of("straggler")
        if r["rank"] in wanted and r["compute_ratio"] is not None
    }
    # Where all of a stage are named, none of its ranks is left to compare with: other stages are.
    ratios |= {
        rank: stage.compute_ratio
        for stage in pipeline.stages(facts)
        if set(stage.ranks) <= wanted and stage.compute_ratio >= limits.min_stage_ratio
        for rank in stage.ranks
    }
    worst = max(ratios.values(), default=0.0)
    if worst < limits.min_computing_ratio:
        return None
    longer = max(m.compute for m in mine) - median(m.compute for m in others)
    waited = median(m.exposed_comm for m in others) - min(m.exposed_comm for m in mine)
    measured = max(0.0, min(longer, waited))
    cost = replayed(facts, wanted & set(means), measured, limits)
    evidence = Evidence.ratio(
        "computing time over its peers' median", worst, limits.min_computing_ratio, "straggler"
    )
    return Cost(facts.impact(cost), evidence)


def priced(facts: Facts, finding: Finding) -> Finding:
    """The finding with what the traces say of its ranks: steps, cost, a second kind of evidence."""
    price = cost(facts, finding.scope.ranks)
    if price is None:
        return finding
    measured = severity_of(price.impact.step_ratio)
    base = facts.scope(finding.scope.ranks, facts.steps.keys)
    return replace(
        finding,
        severity=max(finding.severity, measured, key=lambda s: s.weight),
        confidence=confidence_from(
            ["counters", "GPU timeline"],
            "the GPU's own counters, and the traces: it computes longer",
        ),
        scope=replace(finding.scope, hosts=finding.scope.hosts or base.hosts, steps=base.steps),
        impact=price.impact,
        evidence=(*finding.evidence, price.evidence),
    )


def in_history(
    facts: Facts, finding: Finding, rows: Sequence[Row], limits: logged.HistoryThresholds
) -> Finding:
    """Without traces: the finding with the slow stretch of the log that began and ended with what
    held these GPUs down (rows of ``gpu_throttle``)."""
    times = [(row.get("first_ns"), row.get("last_ns")) for row in rows]
    return logged.in_history(facts, finding, times, limits, "the GPU's own counters")


def clock_of(facts: Facts, rank: int, max_clock_ratio: float) -> tuple[Evidence, ...]:
    """The clock of a rank's GPU beside its busy peers', where counters and a file tell both."""
    for row in facts.of(COUNTERS):
        if row["rank"] == rank and (lost := clock_lost({str(row["counter"]): row})) is not None:
            return (beside_peers(facts, "clock over its", lost[0], max_clock_ratio, row),)
    return ()
