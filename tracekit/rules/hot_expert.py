"""
What it means
    The router of a mixture-of-experts layer sends more tokens to the experts of some ranks than to
    others. These compute for longer, and in the next all-to-all all wait for them.

How it shows
    A rank that the others wait for, and one of two: its all-to-alls deliver at least 1.3 times the
    mean of its group; or it computes at least 1.3 times its peers' time where the experts work
    (between one all-to-all and the next, in the positions where members differ) and not elsewhere.

Why it hurts
    A layer takes as long as its fullest expert. Every layer has one.

Remedy
    Balance the router: an auxiliary loss or a bias on the gate; a capacity factor; hot experts on
    two ranks (redundant experts); another placement of experts on ranks.

When this is wrong
    Where tokens above a capacity are dropped the load looks even and the model suffers instead.
    Benchmarks that force balance show none either. A slow GPU is slow in every position, not only
    in the experts': then nothing is claimed here. An all-to-all of sharded embeddings deals out
    unequal shares by the same mathematics: then it is the shards that are uneven.

Source
    Diagnosis D13.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.findings import (
    Evidence,
    Finding,
    Instrument,
    Severity,
    confidence_from,
    finding_id,
    impact_of,
    severity_of,
)
from tracekit.rules.base import (
    NOT_APPLICABLE,
    Facts,
    Row,
    Rule,
    RuleOutcome,
    lacking,
    threshold,
)
from tracekit.rules.lateness import (
    QUERIES,
    LatenessThresholds,
    LateRank,
    late_ranks,
    matched_note,
    price_ns,
    score_evidence,
    why_unmatched,
)
from tracekit.wording import ranks_phrase, seconds

NAME = "hot-expert"
NEEDS = "all-to-all exchanges, matched across ranks"


@dataclass(frozen=True)
class HotExpertThresholds(LatenessThresholds):
    """When a rank's experts are hot."""

    min_load_ratio: float = threshold(
        1.30, "received bytes over the group's mean, or experts' compute over the peers' (D13)"
    )
    max_other_ratio: float = threshold(
        1.10, "compute elsewhere over the peers': beyond that the GPU is slow, not its experts hot"
    )


def evaluate(facts: Facts, limits: HotExpertThresholds) -> RuleOutcome:
    """One finding for all ranks whose experts hold up the job."""
    rows = facts.of("expert_load")
    if not rows:
        if facts.of("comm_summary") and not _has_exchange(facts):
            return NOT_APPLICABLE
        needs = why_unmatched(facts) if _has_exchange(facts) else NEEDS
        return lacking(NAME, needs, "profile all ranks of an expert group in the same steps")
    if not len(facts.steps):
        return lacking(NAME, "at least one steady step", "profile five or more steps after warm-up")
    loads: dict[int, Row] = {}
    for row in rows:
        rank = int(row["rank"])
        if rank not in loads or _load(row) > _load(loads[rank]):
            loads[rank] = row
    hot = [
        late for late in late_ranks(facts, limits)
        if late.rank in loads and _is_hot(loads[late.rank], limits)
    ]  # fmt: skip
    if not hot:
        return RuleOutcome()
    return RuleOutcome(findings=(_finding(facts, limits, hot, loads),))


def _has_exchange(facts: Facts) -> bool:
    return any(row["op"] == "all_to_all" for row in facts.of("comm_summary"))


def _load(row: Row) -> float:
    return max(float(row["received_ratio"] or 0.0), float(row["uneven_ratio"] or 0.0))


def _receives_more(row: Row, limits: HotExpertThresholds) -> bool:
    return float(row["received_ratio"] or 0.0) >= limits.min_load_ratio


def _computes_more(row: Row, limits: HotExpertThresholds) -> bool:
    return (
        float(row["uneven_ratio"] or 0.0) >= limits.min_load_ratio
        and float(row["other_ratio"] or 0.0) <= limits.max_other_ratio
    )


def _is_hot(row: Row, limits: HotExpertThresholds) -> bool:
    """Known sizes decide: equal shares that take longer are no router's doing."""
    if row["received_ratio"] is not None:
        return _receives_more(row, limits)
    return _computes_more(row, limits)


def _finding(
    facts: Facts, limits: HotExpertThresholds, hot: list[LateRank], loads: dict[int, Row]
) -> Finding:
    worst = hot[0]
    row = loads[worst.rank]
    ranks = sorted(late.rank for late in hot)
    keys = sorted({key for late in hot for key in late.late_keys}) or facts.steps.keys
    scope = facts.scope(ranks, keys)
    step_s = facts.steps.step_ns / 1e9
    cost_ns = price_ns(facts, hot)
    impact = impact_of(cost_ns / 1e9, step_s, facts.gpus_count)
    instruments: list[Instrument] = ["peers"]
    says = []
    if _receives_more(row, limits):
        instruments.append("host ranges")
        says.append(f"{float(row['received_ratio']):.1f}x the tokens")
    if _computes_more(row, limits):
        instruments.append("GPU timeline" if facts.has_gpu else "host ranges")
        says.append(f"{float(row['uneven_ratio']):.1f}x the experts' computing time of its peers")
    who = ranks_phrase(ranks, facts.ranks)
    verb = "gets" if len(ranks) == 1 else "get up to"
    return Finding(
        id=finding_id(NAME, scope, facts.ranks),
        rule=NAME,
        severity=severity_of(
            impact.step_ratio, cap=Severity.CRITICAL if worst.is_sure else Severity.MINOR
        ),
        confidence=confidence_from(
            instruments, f"its load and the waiting of the others agree; {matched_note(facts)}"
        ),
        summary=(
            f"{who} {verb} {' and '.join(says)}: the others wait {seconds(cost_ns / 1e9)} of each "
            f"{seconds(step_s)} step for {'its' if len(ranks) == 1 else 'their'} experts."
        ),
        owner="model",
        scope=scope,
        when=facts.when(keys),
        impact=impact,
        evidence=(*_evidence(row, limits), *score_evidence(facts, worst, limits)),
        confirm=("log the tokens of each expert for a few steps",),
        remedy=(
            "balance the router: auxiliary loss, bias on the gate, or a capacity factor",
            "place hot experts on two ranks, or experts on ranks by their load",
        ),
        rules_out=_ruled_out(row, limits),
    )


def _evidence(row: Row, limits: HotExpertThresholds) -> tuple[Evidence, ...]:
    rank = f"rank {row['rank']}"
    found = []
    if row["received_ratio"] is not None:
        found.append(
            Evidence(
                name=f"bytes that all-to-alls deliver to {rank}, over its group's mean",
                value=float(row["received_ratio"]),
                unit="ratio",
                threshold=limits.min_load_ratio,
                query="expert_load",
            )
        )
    if row["uneven_ratio"] is not None:
        found.append(
            Evidence(
                name=f"compute of {rank} between all-to-alls where members differ, over its peers'",
                value=float(row["uneven_ratio"]),
                unit="ratio",
                threshold=limits.min_load_ratio,
                query="expert_load",
            )
        )
    if row["other_ratio"] is not None:
        found.append(
            Evidence(
                name=f"compute of {rank} elsewhere, over its peers'",
                value=float(row["other_ratio"]),
                unit="ratio",
                threshold=limits.max_other_ratio,
                query="expert_load",
            )
        )
    return tuple(found)


def _ruled_out(row: Row, limits: HotExpertThresholds) -> tuple[str, ...]:
    other = row["other_ratio"]
    if other is None or float(other) > limits.max_other_ratio:
        return ()
    return ("slow-gpu: outside the experts it computes as fast as its peers",)


RULE = Rule(
    name=NAME,
    summary="The experts of some ranks get more tokens than the others'.",
    owner="model",
    thresholds=HotExpertThresholds(),
    queries=(*QUERIES, "expert_load", "comm_summary"),
    needs_kernels=True,
    evaluate=evaluate,
    doc=__doc__,
    needs=NEEDS,
)
