"""A late rank as a finding: its sentence, its evidence, and what could be matched at all."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from tracekit.findings import Evidence, EvidenceRow, Finding, Price, Severity
from tracekit.rules.base import Facts
from tracekit.rules.lateness.late import LateRank, delay_ns
from tracekit.rules.lateness.limits import LatenessThresholds
from tracekit.rules.steps import StepKey
from tracekit.wording import seconds, some_ranges


def late_finding(
    facts: Facts,
    late: LateRank,
    cost: Price,
    summary: str,
    evidence: Sequence[Evidence],
    *,
    against: Sequence[Evidence] = (),
    lies_in: Sequence[int] = (),
    **said: Any,
) -> Finding:
    """A rule's finding that one rank is late: where, when, what it costs, and how sure that is.

    ``lies_in``: the steps in which its cause lies, where they are known: others wait for what a
    rank does behind the last call of a step in their next one. Where something speaks
    ``against`` it and by the replay it may cost nothing, it is minor at most. ``said``: what else
    ``Facts.finding`` takes.
    """
    keys = late_in(facts, [late], lies_in) or facts.steps.keys
    impact = facts.impact(cost, keys)
    is_doubted = against and impact.method == "replay" and not impact.low_s_per_step
    return facts.finding(
        facts.scope([late.rank], keys),
        summary,
        tuple(evidence),
        impact=impact,
        cap=Severity.CRITICAL if late.is_sure and not is_doubted else Severity.MINOR,
        keys=keys,
        against=(*against, *cost.against),
        **said,
    )


def late_in(facts: Facts, members: Sequence[LateRank], lies_in: Sequence[int]) -> list[StepKey]:
    """The steps in which what makes them late lies, where these are known, else those in which
    they are late."""
    caused = [key for key in facts.steps.keys if key.step in lies_in]
    return caused or sorted({key for late in members for key in late.late_keys})


def waiting(facts: Facts, cost: Price) -> str:
    """How long others wait of each step, and of that what can be gained where it is less."""
    step = f"of each {seconds(facts.step_ns / 1e9)} step"
    if cost.held_up is None:
        return f"{seconds(cost.ns / 1e9)} {step}"
    ranks = cost.held_up.ranks
    together = f" without ranks {some_ranges(ranks)}" if len(ranks) > 1 else ""
    return (
        f"{seconds(cost.held_up.waited_ns / 1e9)} {step} (at most {seconds(cost.high_ns / 1e9)} of "
        f"it to be gained{together}: others would be late as well)"
    )


def beside(late: LateRank) -> str:
    """The ranks that are late side by side with it, to go into a sentence; empty where alone."""
    if not late.together:
        return ""
    return f" and {'ranks' if len(late.together) > 1 else 'rank'} {some_ranges(late.together)}"


def score_evidence(
    facts: Facts, late: LateRank, limits: LatenessThresholds
) -> tuple[Evidence, ...]:
    """The numbers behind a late rank."""
    name = f"rank {late.rank}"
    evidence = (
        [
            Evidence(
                f"own time of {name} beyond its peers', as far as they wait longer, mean step",
                late.cost_ns / 1e9,
                "s",
                threshold=limits.min_cost_ratio * facts.steps.step_ns / 1e9,
                query="step_breakdown",
            )
        ]
        if not late.is_matched
        else [
            Evidence(
                f"exposed delay by {name}, mean of all steady steps",
                delay_ns(late) / 1e9,
                "s",
                threshold=limits.min_cost_ratio * facts.steps.step_ns / 1e9,
                query="late_steps",
                rows=places(facts, [late.rank]),
            ),
            Evidence(
                f"share of {_of_waiting(late)}, {name}",
                late.share_ratio,
                "ratio",
                threshold=limits.min_share_ratio,
                query="late_steps" if late.is_now_and_then else "straggler",
            ),
            Evidence(
                f"waiting inflicted on peers by {name}, whole window",
                int(late.row["inflicted_wait_ns"]) / 1e9,
                "s",
                query="straggler",
            ),
            Evidence(
                f"collectives that waited for {name}", late.late_count, "count", query="straggler"
            ),
        ]
    )
    if late.own_cost_ns is not None:
        evidence.append(
            Evidence(
                "a step without the delays of ranks "
                f"{some_ranges((late.rank, *late.together))} takes less by (replay)",
                late.cost_ns / 1e9,
                "s",
                threshold=limits.min_cost_ratio * facts.steps.step_ns / 1e9,
                query="straggler",
            )
        )
    # Of a pipeline whose operations are replayed the query says another: of stage and replica.
    is_by_calls = facts.replay is not None and not facts.replay.is_by_operations
    if late.slowdown_ratio is not None and is_by_calls:
        evidence.append(
            Evidence(
                f"ideal step with only the delays of {name}, over the ideal step (replay)",
                late.slowdown_ratio,
                "ratio",
                threshold=1 + limits.min_cost_ratio,
                query="straggler",
            )
        )
    if late.peer_ratio is not None:
        evidence.append(
            Evidence(
                f"own time of {name} over its peers' median",
                late.peer_ratio,
                "ratio",
                threshold=limits.min_peer_ratio,
                query="straggler",
            )
        )
    if late.compute_ratio is not None:
        evidence.append(
            Evidence(
                f"computing time of {name} over its peers' median",
                late.compute_ratio,
                "ratio",
                query="straggler",
            )
        )
    return tuple(evidence)


def _of_waiting(late: LateRank) -> str:
    """The waiting that its share is a share of."""
    if late.is_now_and_then:
        return "what all delay beyond the usual of each"
    whose = "" if late.stage is None else f" of stage {late.stage}"
    if not late.aside:
        return f"all own inflicted waiting{whose}"
    ranks = "rank" if len(late.aside) == 1 else "ranks"
    return f"own inflicted waiting{whose} without that for {ranks} {some_ranges(late.aside)}"


def places(facts: Facts, ranks: Sequence[int]) -> tuple[EvidenceRow, ...]:
    """Where the longest waits for these ranks are recorded, longest first."""
    rows = [r for r in facts.of("late_steps") if r["rank"] in ranks and r["source_id"] is not None]
    rows.sort(key=lambda r: (-int(r["longest_ns"]), int(r["source_id"]), int(r["place"])))
    return facts.places(rows)


def step_ratios_of(facts: Facts, late: LateRank, part: str) -> list[float]:
    """Its ``compute`` or ``own`` time over its peers' median, one value a steady step."""
    peers = peers_of(facts, late)
    ratios: list[float] = []
    for by_rank in facts.steps.by_key.values():
        values = {
            r: s.compute_ns if part == "compute" else s.dur_ns - s.exposed_comm_ns
            for r, s in by_rank.items()
        }
        others = [values[r] for r in peers if r in values]
        if late.rank in values and others and median(others) > 0:
            ratios.append(values[late.rank] / median(others))
    return ratios


def peers_of(facts: Facts, late: LateRank) -> list[int]:
    """The other ranks that are not late with it; of its pipeline stage, where it is set against
    that. Elsewhere a stage may be late nearly as a whole, and what is left of it is no peer."""
    others = [r for r in facts.ranks if r not in (late.rank, *late.together)]
    if late.stage is None:
        return others
    stages = {int(row["rank"]): row["stage"] for row in facts.of("straggler")}
    return [r for r in others if stages.get(r) == late.stage] or others


def absent_note(late: LateRank) -> str:
    """What may be wrong where ranks without a trace belong to every call."""
    return "" if late.is_matched else "; a rank without a trace may be slower still"


def matched_note(facts: Facts) -> str | None:
    """What could be matched at all; None where no trusted instance exists."""
    counts = {True: 0, False: 0}
    for row in facts.of("match_coverage"):
        counts[bool(row["is_trusted"])] += int(row["calls_count"])
    if not counts[True]:
        return None
    matched = f"{counts[True]} of {sum(counts.values())} calls matched"
    missing = facts.missing_ranks
    if missing:
        # A call is counted where it was traced: what absent members did is in neither number.
        ranks = "rank" if len(missing) == 1 else "ranks"
        matched += f" among those traced ({ranks} {some_ranges(missing)} {facts.missing_state})"
    return matched


def why_unmatched(facts: Facts) -> str:
    """The commonest reason why calls could not be matched, in words."""
    rows = [r for r in facts.of("match_coverage") if not r["is_trusted"]]
    if not rows:
        return "collectives in the traces of two or more ranks"
    worst = max(rows, key=lambda r: (int(r["calls_count"]), str(r["reason"])))
    return f"collectives matched across ranks ({worst['reason']})"
