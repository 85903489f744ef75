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

from collections.abc import Sequence
from statistics import fmean, median

from tracekit.findings import Evidence, Finding, Instrument, Price, Severity
from tracekit.rules.base import NO_STEPS, NOT_APPLICABLE, Facts, Row, Rule, RuleOutcome
from tracekit.rules.lateness.late import LateRank, delay_ns
from tracekit.rules.lateness.limits import QUERIES, LatenessThresholds
from tracekit.rules.lateness.price import price
from tracekit.rules.lateness.replayed import OBSERVED, replayed
from tracekit.rules.lateness.search import late_ranks, scatter, step_delays_ns
from tracekit.rules.lateness.telling import matched_note, score_evidence, why_unmatched
from tracekit.rules.prices import by_replay, disagreeing
from tracekit.rules.steps import StepKey
from tracekit.rules.thresholds import threshold
from tracekit.wording import ranks_phrase, seconds

NEEDS = "all-to-all exchanges, matched across ranks"


class HotExpertThresholds(LatenessThresholds):
    """When a rank's experts are hot."""

    min_load_ratio: float = threshold(
        1.30, "received bytes over the group's mean, or experts' compute over the peers' (D13)"
    )
    max_other_ratio: float = threshold(
        1.10, "compute elsewhere over the peers': beyond that the GPU is slow, not its experts hot"
    )
    min_joint_share_ratio: float = threshold(
        0.5, "share of all own inflicted waiting of the hot ranks of several groups together"
    )


def evaluate(facts: Facts, limits: HotExpertThresholds) -> RuleOutcome:
    """One finding for all ranks whose experts hold up the job."""
    rows = facts.of("expert_load")
    if not rows:
        if facts.of("comm_summary") and not _has_exchange(facts):
            return NOT_APPLICABLE
        needs = why_unmatched(facts) if _has_exchange(facts) else NEEDS
        return facts.lacking(needs, "profile all ranks of an expert group in the same steps")
    if not len(facts.steps):
        return facts.lacking(*NO_STEPS)
    loads: dict[int, Row] = {}
    for row in rows:
        rank = int(row["rank"])
        if rank not in loads or _load(row) > _load(loads[rank]):
            loads[rank] = row
    loaded = [rank for rank, row in sorted(loads.items()) if _is_hot(row, limits)]
    hot = [late for late in late_ranks(facts, limits) if late.rank in loaded]
    # A popular expert is hot in every group; then each has a small part of all waiting.
    behind = _holding_up(facts, limits, loaded)
    together = _together(facts, limits, behind)
    if not hot and together is None:
        return RuleOutcome()
    ranks = behind if together is not None else sorted(late.rank for late in hot)
    return RuleOutcome(findings=(_finding(facts, limits, hot, ranks, together, loads),))


def _holding_up(facts: Facts, limits: HotExpertThresholds, ranks: Sequence[int]) -> list[int]:
    """Those of the ranks that the others wait for more than noise makes them wait for anybody: by
    its own share of the waiting and its own delay, against the ranks that are not among them."""
    shares = {int(r["rank"]): float(r["lateness_ratio"] or 0) for r in facts.of("straggler")}
    delays = step_delays_ns(facts)
    totals = {r: sum(delays.get(key, {}).get(r, 0) for key in facts.steps.keys) for r in shares}
    others = [ns for r, ns in totals.items() if r not in ranks]
    if not others:
        return []
    noise = median(others) + limits.min_outlier_mads * scatter(others)
    least = limits.min_times_fair_ratio / len(shares)
    return [r for r in ranks if totals.get(r, 0) > noise and shares[r] >= least]


def _together(
    facts: Facts, limits: HotExpertThresholds, ranks: Sequence[int]
) -> tuple[float, list[StepKey]] | None:
    """What the hot ranks of several groups delay a mean step by, the worst of each step counting,
    and the steps; None where they are not behind most of the waiting, or not at such a cost."""
    share = sum(
        float(r["lateness_ratio"] or 0) for r in facts.of("straggler") if r["rank"] in ranks
    )
    others = [r for r in facts.ranks if r not in ranks]
    if len(ranks) < 2 or not others or share < limits.min_joint_share_ratio:
        return None
    delays = step_delays_ns(facts)
    costs: dict[StepKey, float] = {}
    for key in facts.steps.keys:
        here = delays.get(key, {})
        typical = median(here.get(r, 0) for r in others)
        excess = max(here.get(r, 0) for r in ranks) - typical
        costs[key] = min(max(0.0, excess), facts.steps.job_dur_ns(key))
    cost_ns = fmean(costs.values())
    late = [k for k, ns in costs.items() if ns >= limits.late_step_ratio * facts.steps.step_ns]
    is_often = len(late) >= max(
        limits.min_late_steps_count, limits.persistent_ratio * len(facts.steps)
    )
    if cost_ns < limits.min_cost_ratio * facts.steps.step_ns or not is_often:
        return None
    return cost_ns, late


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
    facts: Facts,
    limits: HotExpertThresholds,
    hot: list[LateRank],
    ranks: list[int],
    together: tuple[float, list[StepKey]] | None,
    loads: dict[int, Row],
) -> Finding:
    row = loads[hot[0].rank] if hot else max((loads[r] for r in ranks), key=_load)
    keys = sorted({key for late in hot for key in late.late_keys}) or facts.steps.keys
    if together is not None:
        keys = together[1]
    scope = facts.scope(ranks, keys)
    step_s = facts.steps.step_ns / 1e9
    cost = _cost(facts, hot, ranks, together)
    cost_ns = cost.ns
    is_sure = any(late.is_sure for late in hot) or together is not None
    impact = facts.impact(cost)
    instruments: list[Instrument] = ["peers"]
    says = []
    if _receives_more(row, limits):
        instruments.append("host ranges")
        says.append(f"{float(row['received_ratio']):.1f}x the tokens")
    if _computes_more(row, limits):
        instruments.append("GPU timeline" if facts.has_gpu else "host ranges")
        whose = "its" if len(ranks) == 1 else "their"
        says.append(
            f"{float(row['uneven_ratio']):.1f}x the computing time of {whose} peers' experts"
        )
    who = ranks_phrase(ranks, facts.ranks)
    verb = "gets" if len(ranks) == 1 else "get up to"
    return facts.finding(
        scope,
        f"{who} {verb} {' and '.join(says)}: the others wait {seconds(cost_ns / 1e9)} of each "
        f"{seconds(step_s)} step for {'its' if len(ranks) == 1 else 'their'} experts.",
        (
            *_evidence(row, limits),
            *(score_evidence(facts, hot[0], limits) if hot else ()),
        ),
        by=instruments,
        basis=f"its load and the waiting of the others agree; {matched_note(facts)}",
        impact=impact,
        cap=Severity.CRITICAL if is_sure else Severity.MINOR,
        keys=keys,
        against=cost.against,
        confirm=("log the tokens of each expert for a few steps",),
        remedy=(
            "balance the router: auxiliary loss, bias on the gate, or a capacity factor",
            "place hot experts on two ranks, or experts on ranks by their load",
        ),
        rules_out=_ruled_out(row, limits),
    )


def _cost(
    facts: Facts,
    hot: list[LateRank],
    ranks: list[int],
    together: tuple[float, list[StepKey]] | None,
) -> Price:
    """What a step would lose if the same work were dealt out evenly, by replay: a router that is
    balanced takes no token away. Else as for any late rank."""
    replay = facts.replay
    even = replay.saved_evenly_ns() if replay is not None else None
    if even is not None and even > 0 and replay is not None:
        limits = facts.limits(HotExpertThresholds)
        seen = [delay_ns(hot[0])] if len(hot) == 1 else []
        against = tuple(
            e for ns in seen for e in disagreeing(even, OBSERVED, ns, limits, "late_steps")
        )
        others = seen if against else ()
        return by_replay(even, replay.error_ratio, facts.steps.step_ns, others, against)
    return (
        price(facts, hot)
        if together is None
        else replayed(facts, ranks, together[0], facts.limits(HotExpertThresholds))
    )


def _evidence(row: Row, limits: HotExpertThresholds) -> tuple[Evidence, ...]:
    rank, least = f"rank {row['rank']}", limits.min_load_ratio
    said = (
        (
            "received_ratio",
            f"bytes that all-to-alls deliver to {rank}, over its group's mean",
            least,
        ),
        (
            "uneven_ratio",
            f"compute of {rank} between all-to-alls where members differ, over its peers'",
            least,
        ),
        ("other_ratio", f"compute of {rank} elsewhere, over its peers'", limits.max_other_ratio),
    )
    return tuple(
        Evidence.ratio(what, float(row[name]), limit, "expert_load")
        for name, what, limit in said
        if row[name] is not None
    )


def _ruled_out(row: Row, limits: HotExpertThresholds) -> tuple[str, ...]:
    other = row["other_ratio"]
    if other is None or float(other) > limits.max_other_ratio:
        return ()
    return ("slow-gpu: outside the experts it computes as fast as its peers",)


RULE = Rule(
    name="hot-expert",
    summary="The experts of some ranks get more tokens than the others'.",
    owner="model",
    thresholds=HotExpertThresholds(),
    queries=(*QUERIES, "expert_load"),
    needs_kernels=True,
    evaluate=evaluate,
    needs=NEEDS,
    explains=("waiting", "lateness", "bursts"),
)
