"""What a cause costs, for whoever asks: where diagnose names it, the finding's cost and no other.

A cause that a user takes out (``--remove rank=3``) and a finding about that rank are one question,
so they have one answer: its number, its method and its bounds. What the replay says of the selector
alone can differ, since ranks "that do what their peers do" also lose work that is theirs: a hot
expert's tokens must be computed somewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tracekit.errors import InputError, UsageError
from tracekit.replays import places, whatif
from tracekit.rules import Facts, rule
from tracekit.rules.lateness.price import observed_price
from tracekit.whatif import Cause, CauseResult, WhatIf
from tracekit.wording import some, some_ranges

if TYPE_CHECKING:
    import duckdb

    from tracekit.findings import Finding, Impact


def whatif_priced(
    con: duckdb.DuckDBPyConnection,
    dp: int | None,
    causes: Sequence[Cause],
    facts: Facts,
    findings: Sequence[Finding],
) -> WhatIf:
    """Replay an open run; each cause costs what the diagnosis of ``facts`` says it costs.

    ``findings``: in the order of the report, whose labels (F1) they may be asked by. UsageError
    where there is no such finding.
    """
    step_s = facts.step_ns / 1e9
    priced: dict[Cause, CauseResult] = {}
    for cause in causes:
        finding = _finding(con, cause, facts, findings)
        if finding is not None:
            priced[cause] = _result(cause, finding.impact, step_s, finding)
    rest = [c for c in causes if c not in priced]
    try:
        answer = whatif(con, dp, rest, step_s or None)
    except InputError as error:
        if rest or not causes:
            raise
        answer = _without_replay(facts, step_s, error)
    replayed = {c.cause: c for c in answer.causes}
    results = []
    for cause in causes:
        result = priced.get(cause) or replayed[cause.text]
        impact = None if cause in priced else _of_late_ranks(con, cause, facts)
        if impact is not None:
            error_ratio = result.simulation_error_ratio
            result = replace(_result(cause, impact, step_s), simulation_error_ratio=error_ratio)
        results.append(result)
    return replace(answer, causes=tuple(results))


def _without_replay(facts: Facts, step_s: float, error: InputError) -> WhatIf:
    """What there is to say where nothing can be replayed, and findings have their costs all the
    same."""
    return WhatIf(
        method="collectives",
        steps=tuple(k.step for k in facts.steps.keys),
        dropped_steps=(),
        t_base_s=step_s,
        t_no_delay_s=math.nan,
        t_ideal_s=math.nan,
        per_step={},
        slowdown_by_optype={},
        slowdown_by_rank={},
        refused=str(error).partition("\n")[0],
        job_step_s=step_s,
    )


def _finding(
    con: duckdb.DuckDBPyConnection, cause: Cause, facts: Facts, findings: Sequence[Finding]
) -> Finding | None:
    """The one finding that names this cause and has a cost; None where none or several do."""
    if cause.kind == "finding":
        by_name = {f"F{i}": f for i, f in enumerate(findings, 1)} | {f.id: f for f in findings}
        finding = by_name.get(cause.value)
        if finding is None or finding.impact.s_per_step is None:
            why = "no finding" if finding is None else "no known cost of"
            known = [f.id for f in findings if f.impact.s_per_step is not None]
            hint = f"it has {some(known)}" if known else "tracekit diagnose RUN"
            raise UsageError(f"{cause.text}: this job has {why} {cause.value!r}", hint=hint)
        return finding
    ranks = _ranks(con, cause, facts)
    fitting = [
        f for f in findings
        if ranks and ranks == _ranks_of(f, facts, cause) and f.impact.s_per_step is not None
        and rule(f.rule).names_culprit and not f.explained_by
        and (f.owner == "network") == (cause.kind == "link")
    ]  # fmt: skip
    return fitting[0] if len(fitting) == 1 else None


def _ranks(con: duckdb.DuckDBPyConnection, cause: Cause, facts: Facts) -> set[int]:
    """The ranks that a cause takes out; none where it is a scale, or names operations, or where
    steps do not show such ranks: what is wrong with it the replay says."""
    if cause.factor is not None or cause.kind not in ("rank", "stage", "dp", "host", "link"):
        return set()
    try:
        return set(places(con).ranks_of(cause, facts.ranks))
    except UsageError:
        return set()


def _ranks_of(finding: Finding, facts: Facts, cause: Cause) -> set[int]:
    """Whom a finding is about; of a link of which no end is accused, both its ends."""
    scope = finding.scope
    if cause.kind == "link" and not scope.ranks and not scope.hosts:
        return set(finding.candidates.ranks)
    return set(scope.ranks) or {r for r, host in facts.job.hosts.items() if host in scope.hosts}


def _of_late_ranks(con: duckdb.DuckDBPyConnection, cause: Cause, facts: Facts) -> Impact | None:
    """What ranks cost that others wait for and no one finding names; as a finding would say it."""
    ranks = _ranks(con, cause, facts) if cause.kind != "link" else set()
    price = observed_price(facts, sorted(ranks)) if ranks else None
    return None if price is None else facts.impact(price)


def _result(
    cause: Cause, impact: Impact, step_s: float, finding: Finding | None = None
) -> CauseResult:
    saved_s = impact.s_per_step or 0.0
    left_s = step_s - saved_s
    against = [] if finding is None else [e.name for e in finding.counter_evidence]
    if impact.joint_ranks:
        against.append(f"it is one cost of ranks {some_ranges(impact.joint_ranks)} together")
    return CauseResult(
        cause.text,
        left_s,
        step_s / left_s if left_s > 0 else float("inf"),
        saved_s,
        impact.method or "recorded time",
        impact.replay_error_ratio or 0.0,
        impact.low_s_per_step,
        impact.high_s_per_step,
        None if finding is None else finding.id,
        tuple(against),
    )
