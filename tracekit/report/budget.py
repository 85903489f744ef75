"""The step budget: where the mean step went, in parts that always add up to it.

The step is the job's mean steady step, divided as that of the median rank is: a real rank, so that
the parts are its own. In this order, each part taking only what is left:

1. each finding that no other explains, with its impact, culprits first, and of several that share
   one cost only the first. On the ranks where the fault sits it comes out of idle time, on the
   others out of exposed communication (there they wait for it), then out of the other of the two;
   on ranks measured on the host at last out of computation, because fetching and collating are
   operators too;
2. ``bubble``: idle time that the pipeline's schedule makes, out of exposed communication (a stage
   waits in a receive), then out of idle time. Findings that name no culprit come after it: the
   schedule is not their doing. Of these first what the program does, then what only says how the
   time is spent: communication that nothing hides is also where ranks wait for launches, and such
   a finding keeps what no other gives a reason for;
3. ``floor``: computation and copies that remain, what this layout computes;
4. ``other_waiting``: exposed communication that remains, waiting and transfer alike;
5. ``host``: idle time that remains;
6. ``unexplained``: what is left of the step. It is never negative; it is not zero where rows
   contradict each other or a part of the step was not seen.

So a part may be less than what its finding costs: ``beyond_parts`` says how much of it stands in
other parts. All sums are in whole nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.findings import NOTE_RATIO, BudgetPart, Finding, Part
from tracekit.rules import rule
from tracekit.rules.steps import Parts, Steps

_BUCKETS = {"communication": ("comm",), "idle first": ("idle", "comm")}
_TURN = {"culprit": 0, "program": 1, "nobody": 2}


def step_budget(
    steps: Steps,
    findings: Sequence[Finding],
    bubble_ns: float = 0.0,
) -> tuple[BudgetPart, ...]:
    """The parts of the mean step; empty where there is no steady step.

    ``bubble_ns`` is what the pipeline's schedule makes a stage stand idle in a step.
    """
    if steps.median_parts is None or steps.median_rank is None:
        return ()
    buckets = _Buckets(steps.median_parts)
    is_host_side = any(
        ranks[steps.median_rank].is_host_side
        for ranks in steps.by_key.values()
        if steps.median_rank in ranks
    )
    parts: list[tuple[Part, int, str | None]] = []
    in_turn = _in_turn(findings)
    culprits = [f for f in in_turn if rule(f.rule).names_culprit]
    for finding in (*culprits, None, *in_turn[len(culprits) :]):
        if finding is None:
            parts.append(("bubble", buckets.take(round(bubble_ns), ("comm", "idle")), None))
            continue
        order = _sources(finding, steps.median_rank, is_host_side)
        taken = buckets.take(round((finding.impact.s_per_step or 0.0) * 1e9), order)
        if taken > 0:
            parts.append(("finding", taken, finding.id))
    parts.append(("floor", buckets.rest("compute"), None))
    parts.append(("other_waiting", buckets.rest("comm"), None))
    parts.append(("host", buckets.rest("idle"), None))
    parts.append(("unexplained", buckets.left, None))
    kept = [p for p in parts if p[1] > 0 or p[0] in ("floor", "unexplained")]
    return tuple(BudgetPart(part=p, s_per_step=ns / 1e9, finding=f) for p, ns, f in kept)


def beyond_parts(
    findings: Sequence[Finding], budget: Sequence[BudgetPart]
) -> tuple[tuple[Finding, float], ...]:
    """Findings whose part of the step is less than what they cost, and by how many seconds.

    The rest stands in other parts: of findings that name the same time, or of what the median rank
    did meanwhile. Less than a hundredth of the step is not told.
    """
    own_s = {p.finding: p.s_per_step for p in budget}
    step_s = sum(p.s_per_step for p in budget)
    beyond = [(f, (f.impact.s_per_step or 0.0) - own_s.get(f.id, 0.0)) for f in _in_turn(findings)]
    return tuple((f, s) for f, s in beyond if s >= NOTE_RATIO * step_s > 0)


class _Buckets:
    """Nanoseconds of the step by what the rank did, none of which is given out twice."""

    def __init__(self, parts: Parts) -> None:
        self.left = round(parts.dur)
        self._ns = {
            "compute": round(parts.compute + parts.memory),
            "comm": round(parts.exposed_comm),
            "idle": round(parts.idle),
        }

    def take(self, wanted_ns: int, order: Sequence[str]) -> int:
        """Up to ``wanted_ns`` out of the buckets in this order; what was found."""
        taken = 0
        for name in order:
            amount = max(0, min(wanted_ns - taken, self._ns[name], self.left))
            self._ns[name] -= amount
            self.left -= amount
            taken += amount
        return taken

    def rest(self, name: str) -> int:
        """All that remains in a bucket."""
        return self.take(self._ns[name], (name,))


def _in_turn(findings: Sequence[Finding]) -> list[Finding]:
    open_ones = [
        f for f in findings
        if not f.explained_by and f.impact.s_per_step and rule(f.rule).budget != "counted"
    ]  # fmt: skip
    in_turn = sorted(
        open_ones,
        key=lambda f: (
            _TURN[rule(f.rule).blames],
            -(f.impact.s_per_step or 0.0),
            -(f.impact.own_share_ratio or 0.0),
            f.id,
        ),
    )
    # Ranks that are late together have one cost, which the finding of each carries.
    first: dict[object, Finding] = {}
    for place, finding in enumerate(in_turn):
        first.setdefault(finding.impact.joint_ranks or place, finding)
    return [*first.values()]


def _sources(finding: Finding, median_rank: int, is_host_side: bool) -> tuple[str, ...]:
    part = rule(finding.rule).budget
    if part in _BUCKETS:
        return _BUCKETS[part]
    if median_rank not in finding.scope.ranks:
        return ("comm", "idle")
    return ("idle", "compute", "comm") if is_host_side else ("idle", "comm")
