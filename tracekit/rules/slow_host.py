"""
What it means
    A rank is late because its host is slow: its GPU computes as fast as its peers', but starts
    late, because the host launches late. On ranks without a GPU the computation itself is slow.

How it shows
    The rank's own time (without exposed communication) is 1.10 times its peers' or more in four of
    five steady steps, its computing time is not, and the others wait for it by its own doing. Input
    waits, collections, checkpoints and synchronisations that a trace names do not explain it. The
    finding says what takes longer (query excess): the same calls throughout, or calls at random, as
    where the CPU is shared or throttled. Where every call has a member without a trace, who came
    last is not known: then the others stand in communication for longer than it does by that time,
    which is the cost. A host that has whole stages of a pipeline has no peer in them: it is slow
    where the median launch call of each of its ranks takes 1.5 times that of the other hosts' or
    more, a GPU of theirs idles for want of launches, and the others wait in communication instead.
    A stage that is one rank of a job without GPUs is slow where as many calls on inputs as large as
    those of the other stages take longer there, beyond what these differ by among each other.

Why it hurts
    All ranks wait for the one whose CPU is busy elsewhere.

Remedy
    Look for other processes on its cores, pin ranks to the cores of their NUMA node, check the CPU
    frequency and the container's CPU quota.

When this is wrong
    A rank without a trace may be slower still. A profiler that records Python stacks on one rank
    only slows that one. Work that differs by rank (logging on rank 0, evaluation) is the program's,
    not the host's; where the trace shows more calls, larger inputs, or time in a range beside the
    training (input, a checkpoint, logging), nobody is named here, nor where nothing is recorded
    meanwhile (host-pause), nor where the other ranks' own times lie as far apart: then each has
    work of another size, as where a causal mask is dealt out in order.

Source
    Diagnosis D7 and 3.11: on a Megatron job two ranks had 2.4 times their peers' own time at equal
    computing time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from tracekit.findings import Evidence, Finding, Instrument, Severity
from tracekit.rules.base import NO_STEPS, Facts, Rule, RuleOutcome
from tracekit.rules.excess import QUERY as EXCESS
from tracekit.rules.excess import Nature, where_it_lies
from tracekit.rules.heavy_stage import QUERIES as STAGE_QUERIES
from tracekit.rules.heavy_stage import HeavyStage, HeavyStageThresholds, slow_alone
from tracekit.rules.lateness.late import LateRank, delay_ns
from tracekit.rules.lateness.limits import ABSENT_WAITS, QUERIES, SlowerThresholds
from tracekit.rules.lateness.price import price
from tracekit.rules.lateness.search import late_ranks, scatter, slower_ranks
from tracekit.rules.lateness.telling import (
    absent_note,
    matched_note,
    score_evidence,
    step_ratios_of,
    waiting,
    why_unmatched,
)
from tracekit.rules.launches import QUERY as IDLE
from tracekit.rules.launches import launch_wait_shares
from tracekit.rules.prices import at_most
from tracekit.rules.slow_gpu import has_uneven_work
from tracekit.rules.thresholds import threshold
from tracekit.wording import ranks_phrase, seconds

CONFIRM = (
    "pidstat -w -u 1 and numastat -p on its host: steal, involuntary switches, far memory",
    "swap the rank with a peer: the delay should stay with the host",
)
REMEDY = (
    "pin each rank to the cores of its GPU's NUMA node; evict other processes",
    "check the CPU frequency governor and the container's CPU quota",
)
ELSEWHERE: tuple[Nature, ...] = ("pause", "more work")
"""What a rank does that its host cannot help."""
STALL_QUERIES = (
    *("input_stall", "gc_pause", "checkpoint_stall", "sync_stall"),
    *("compile_stall", "allocator_stall"),
)


class SlowHostThresholds(SlowerThresholds, HeavyStageThresholds):
    """When a host is slow."""

    max_compute_ratio: float = threshold(
        1.05, "computing time over its peers' median; above it the GPU or the work is to blame"
    )
    min_steps_ratio: float = threshold(0.80, "share of steps in which its own time is that long")
    max_explained_ratio: float = threshold(
        0.5, "share of the delay that named stalls explain; then it is theirs"
    )
    min_launch_ratio: float = threshold(
        1.5,
        "median launch call over that of ranks elsewhere; hosts of a kind differ by some percent",
    )
    min_held_ratio: float = threshold(
        0.9,
        "of what ranks elsewhere wait in communication, that each of a host's ranks waits there or"
        " for launches: one that does neither is busy",
    )


def evaluate(facts: Facts, limits: SlowHostThresholds) -> RuleOutcome:
    """One finding for each rank that its host holds up; a host whose ranks all are is named."""
    alone = None if facts.has_gpu else slow_alone(facts, limits)
    if alone is not None:
        return RuleOutcome(findings=(_at_its_stage(facts, limits, alone),))
    if matched_note(facts) is None:
        return facts.lacking(why_unmatched(facts), "profile all ranks in the same steps")
    if not len(facts.steps):
        return facts.lacking(*NO_STEPS)
    if not facts.has_gpu and has_uneven_work(facts, limits):
        return facts.lacking("the work of each rank: experts get unequal shares of the tokens")
    slow = late_ranks(facts, limits) or slower_ranks(facts, limits)
    held_up = [late for late in slow if _is_slow(facts, late, limits)]
    whole = _whole_hosts(facts, [late.rank for late in held_up])
    findings = []
    for host, ranks in sorted(whole.items()):
        members = [late for late in held_up if late.rank in ranks]
        findings.append(_finding(facts, limits, members, host))
    for late in held_up:
        if not any(late.rank in ranks for ranks in whole.values()):
            findings.append(_finding(facts, limits, [late], None))
    named = {late.rank for late in held_up}
    findings += [
        _launching_finding(facts, limits, host)
        for host in _slow_launchers(facts, limits)
        if named.isdisjoint(host.ranks)
    ]
    return RuleOutcome(findings=tuple(findings))


def _at_its_stage(facts: Facts, limits: SlowHostThresholds, heavy: HeavyStage) -> Finding:
    """The one rank of a pipeline's stage, which does the other stages' work more slowly."""
    (rank,) = heavy.stage.ranks
    return facts.finding(
        facts.scope([rank], facts.steps.keys),
        f"{ranks_phrase([rank], facts.ranks)} (stage {heavy.stage.stage}) does the same work, its "
        f"host is slow, and it {heavy.loses(facts)}",
        heavy.evidence(facts, limits),
        by=["host ranges", "peers"],
        basis="as many calls on inputs as large take longer than at the other stages; no other "
        "rank has its layers",
        impact=facts.impact(heavy.cost),
        against=heavy.cost.against,
        confirm=CONFIRM,
        remedy=REMEDY,
        rules_out=("a longer step on all stages",),
    )


class Launching(Struct, frozen=True):
    """A host all of whose ranks launch slowly. Times are of a mean steady step."""

    name: str
    ranks: tuple[int, ...]
    launch_ns: float
    """The median call of its quickest rank."""
    usual_ns: float
    """That of the typical rank elsewhere."""
    idle_ns: float
    """What the GPU that waits most for launches idles beyond the typical one elsewhere."""
    cost_ns: float
    """As far as ranks elsewhere stand in communication meanwhile."""


def _slow_launchers(facts: Facts, limits: SlowHostThresholds) -> list[Launching]:
    """Hosts whose launch calls are slow and whose GPUs wait for them, whatever their stages."""
    means, step_ns = facts.steps.rank_means, facts.steps.step_ns
    calls = {
        int(row["rank"]): float(row["launch_p50_ns"])
        for row in facts.of("launch_stats")
        if row["launch_p50_ns"] is not None
    }
    shares, stalled = launch_wait_shares(facts), _explained_ns(facts)
    idle = {
        r: max(0.0, means[r].idle * shares[r] - stalled[r])
        for r in calls
        if r in means and r in shares
    }
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank, host in sorted(facts.job.hosts.items()):
        by_host[host].append(rank)
    launching = []
    for name, ranks in sorted(by_host.items()):
        others = [r for r in idle if r not in ranks]
        if len(ranks) < 2 or len(others) < 2 or not idle.keys() >= set(ranks):
            continue
        usual_ns = median(calls[r] for r in others)
        usual_idle = median(idle[r] for r in others)
        waiting = median(means[r].exposed_comm for r in others)
        beyond = {r: idle[r] - usual_idle for r in ranks}
        cost_ns = max(min(beyond[r], waiting - means[r].exposed_comm) for r in ranks)
        quickest_ns = min(calls[r] for r in ranks)
        is_slow = quickest_ns >= limits.min_launch_ratio * usual_ns
        # One of them waits for launches, the others likewise or for that one.
        is_held = all(
            beyond[r] + means[r].exposed_comm >= limits.min_held_ratio * waiting for r in ranks
        )
        if is_slow and is_held and cost_ns >= limits.min_cost_ratio * step_ns:
            launching.append(
                Launching(name, tuple(ranks), quickest_ns, usual_ns, max(beyond.values()), cost_ns)
            )
    return launching


def _launching_finding(facts: Facts, limits: SlowHostThresholds, host: Launching) -> Finding:
    step_s = facts.steps.step_ns / 1e9
    ratio = host.launch_ns / host.usual_ns
    subject = ranks_phrase(host.ranks, facts.ranks)
    return facts.finding(
        facts.scope(host.ranks, facts.steps.keys),
        f"{subject} (all of {host.name}) take {ratio:.1f}x as long as others to launch: the "
        f"host is slow, their GPUs wait up to {seconds(host.idle_ns / 1e9)} of each "
        f"{seconds(step_s)} step for launches, and the other hosts wait for them.",
        (
            Evidence(
                "median launch call over that of ranks elsewhere, the quickest of the host",
                ratio,
                "ratio",
                threshold=limits.min_launch_ratio,
                query="launch_stats",
            ),
            Evidence(
                "GPU idle for want of a launch beyond the typical rank elsewhere, mean step",
                host.idle_ns / 1e9,
                "s",
                threshold=limits.min_cost_ratio * step_s,
                query=IDLE,
            ),
            Evidence(
                "the same, as far as ranks elsewhere stand in communication for longer",
                host.cost_ns / 1e9,
                "s",
                threshold=limits.min_cost_ratio * step_s,
                query="step_breakdown",
            ),
        ),
        by=("host ranges", "GPU timeline", "peers"),
        basis="launch calls, idle GPUs and the waiting of the other hosts agree",
        impact=facts.impact(at_most(host.cost_ns, "twin ranks")),
        confirm=CONFIRM,
        remedy=REMEDY,
    )


def _is_slow(facts: Facts, late: LateRank, limits: SlowHostThresholds) -> bool:
    if late.peer_ratio is None or late.peer_ratio < limits.min_peer_ratio:
        return False
    if facts.has_gpu and (
        late.compute_ratio is None or late.compute_ratio >= limits.max_compute_ratio
    ):
        return False
    if _is_within_scatter(facts, late, limits):
        return False
    ratios = step_ratios_of(facts, late, "own")
    slow = sum(1 for r in ratios if r >= limits.min_peer_ratio)
    if not ratios or slow < limits.min_steps_ratio * len(ratios):
        return False
    if _explained_ns(facts)[late.rank] >= limits.max_explained_ratio * late.cost_ns:
        return False
    excess = where_it_lies(facts, late.rank, delay_ns(late))
    # A host that does more, that stands still, or that is busy beside the training is not slow.
    return excess is None or not (excess.is_beside_training or excess.nature in ELSEWHERE)


def _is_within_scatter(facts: Facts, late: LateRank, limits: SlowHostThresholds) -> bool:
    """Whether its peers' own times lie as far apart as its own does from theirs: then each has work
    of another size, and the largest share is no slow host."""
    others = [
        float(row["peer_ratio"])
        for row in facts.of("straggler")
        if row["peer_ratio"] is not None and row["rank"] not in (late.rank, *late.together)
    ]
    if late.row["peer_ratio"] is None or len(others) < limits.min_rest_count:
        return False
    beyond = float(late.row["peer_ratio"]) - median(others)
    return beyond <= limits.min_outlier_mads * scatter(others)


def _explained_ns(facts: Facts) -> dict[int, float]:
    """What named stalls of each rank take of a mean steady step."""
    steady = set(facts.steps.keys)
    total: dict[int, float] = defaultdict(float)
    for query in STALL_QUERIES:
        for row in facts.of(query):
            key = (int(row["attempt"]), int(row["capture_id"]), int(row["step"]))
            if key in steady:
                total[int(row["rank"])] += float(row["exposed_ns"]) / len(steady)
    return total


def _whole_hosts(facts: Facts, ranks: Sequence[int]) -> dict[str, list[int]]:
    """Hosts of two or more ranks, all of which are held up, where other hosts' are not."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank, host in facts.job.hosts.items():
        by_host[host].append(rank)
    return {
        host: sorted(members)
        for host, members in by_host.items()
        if len(members) > 1 and len(by_host) > 1 and set(members) <= set(ranks)
    }


def _finding(
    facts: Facts, limits: SlowHostThresholds, members: Sequence[LateRank], host: str | None
) -> Finding:
    ranks = sorted(late.rank for late in members)
    keys = sorted({key for late in members for key in late.late_keys}) or facts.steps.keys
    worst = members[0]
    scope = facts.scope(ranks, keys)
    cost = price(facts, members)
    impact = facts.impact(cost)
    excess = where_it_lies(facts, worst.rank, delay_ns(worst))
    subject = ranks_phrase(ranks, facts.ranks) + (f" (all of {host})" if host else "")
    is_one = len(ranks) == 1
    kernels = ""
    if facts.has_gpu and worst.compute_ratio is not None:
        kernels = f" while {'its' if is_one else 'their'} kernels take {worst.compute_ratio:.2f}x"
    kinds: list[Instrument] = ["peers", "GPU timeline" if facts.has_gpu else "host ranges"]
    return facts.finding(
        scope,
        f"{subject} {'takes' if is_one else 'take'} {worst.peer_ratio or 0.0:.1f}x as long as "
        f"{'its' if is_one else 'their'} peers between collectives{kernels}: the host is slow, "
        f"and the others wait {waiting(facts, cost)}"
        f"{'' if excess is None else f': {excess.sentence}'}.",
        tuple(
            evidence
            for late in members
            for evidence in (
                Evidence(
                    f"own time over its peers' median, median step, rank {late.rank}",
                    median(step_ratios_of(facts, late, "own")),
                    "ratio",
                    threshold=limits.min_peer_ratio,
                    query="step_breakdown",
                ),
                *score_evidence(facts, late, limits),
            )
        )
        + (() if excess is None else excess.evidence(facts)),
        by=kinds,
        basis=f"own time and peers' waiting agree; {matched_note(facts)}{absent_note(worst)}",
        impact=impact,
        cap=Severity.CRITICAL if worst.is_sure else Severity.MINOR,
        keys=keys,
        against=cost.against,
        confirm=CONFIRM,
        remedy=REMEDY,
    )


RULE = Rule(
    name="slow-host",
    summary="A rank is late because its host is slow, not its GPU.",
    owner="platform",
    thresholds=SlowHostThresholds(),
    queries=(
        *(*QUERIES, ABSENT_WAITS, "expert_load", EXCESS, *STALL_QUERIES),
        *("launch_stats", IDLE, *STAGE_QUERIES),
    ),
    needs_kernels=True,
    evaluate=evaluate,
    explains=("waiting", "lateness", "latency"),
    sees="slow host",
)
