"""
What it means
    A rank takes longer than the others in a part of the step, by the timers in the training log;
    or some rank does, and the log does not say which.

How it shows
    Timers that Megatron-LM prints below a step's line (query step_part_time): forward-compute,
    backward-compute, batch-generator, optimizer-inner-step. With the times of every rank one is
    named if it alone takes longer, time after time. With the shortest and longest of all, only
    how far they are apart is told.

Why it hurts
    In every step the others wait for it in the next collective.

Remedy
    batch-generator: the data loader of that rank, its workers and storage. Else profile that rank
    beside another in the same steps: more work, a slow GPU or a slow host.

When this is wrong
    Timers of collectives blame nobody: who waits is a victim. Of a pipeline (timers that send or
    receive) the stages differ by plan, so nothing is said of it; nor without forward-compute,
    since then nobody knows whether it is one. Ranks of one tensor, expert or context group wait
    for each other within these timers: where several take longer they are candidates, one of whom
    may hold up the others. A rank that waits longer than others in collectives is not named.

Source
    Megatron-LM, core/timers.py and training.py: what the timers are around.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from tracekit.findings import (
    Candidates,
    Evidence,
    Finding,
    Instrument,
    Scope,
    Severity,
    severity_of,
)
from tracekit.rules.base import Facts, Row, Rule, RuleOutcome
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import ranges, seconds, share

QUERY = "step_part_time"
OWN = ("batch-generator", "forward-compute", "backward-compute", "optimizer-inner-step")
"""Parts in which a rank works; the first lies within the second."""
_PIPELINE = re.compile(r"^(?:forward|backward)[\w-]*-(?:send|recv)")
_WAITING = re.compile(r"all-?reduce|all-?gather|reduce-?scatter|grads-sync")
_NEEDS = "timers of the parts of a step in the training log (Megatron-LM's --timing-log-level 2)"
_CAPTURE = "run Megatron-LM with --timing-log-level 2 --timing-log-option all"


class UnevenPartsThresholds(Thresholds):
    """How much longer counts."""

    min_times_count: int = threshold(
        3, "printed timers: one or two may hold a compilation or a save"
    )
    min_ranks_count: int = threshold(
        4, "ranks: of two or three nobody can tell who is usual, and waiting may change sides"
    )
    min_peer_ratio: float = threshold(
        1.15, "of the median rank's time: what differs less is how ranks of a job differ"
    )
    min_step_ratio: float = threshold(
        0.01, "of the step that it takes more: an effect of 1 % is the least reported"
    )
    min_longest_ratio: float = threshold(
        0.75, "of the times in which no rank takes longer: what changes sides is no rank's own"
    )
    max_others_ratio: float = threshold(
        0.5, "of its excess that another may have too before it does not stand alone"
    )
    min_within_ratio: float = threshold(
        0.5, "of a longer forward pass that its own input explains before only that is told"
    )
    min_spread_ratio: float = threshold(
        1.5, "longest over shortest without names: of many ranks the extremes are apart anyway"
    )
    min_spread_step_ratio: float = threshold(
        0.05, "of the step between longest and shortest: what is less may be noise of many ranks"
    )


class _Uneven(NamedTuple):
    """A part in which ranks take longer than the median one."""

    part: str
    ranks: tuple[int, ...]
    """The longest first; several where it does not stand alone."""
    p50_ns: float
    usual_ns: float
    step_ns: float
    rows: tuple[Row, ...]

    @property
    def excess_ns(self) -> float:
        return self.p50_ns - self.usual_ns


def evaluate(facts: Facts, limits: UnevenPartsThresholds) -> RuleOutcome:
    """Ranks that take longer by themselves, or spreads that nobody is named for."""
    parts = _parts(facts.of(QUERY), limits)
    if not parts:
        return facts.lacking(_NEEDS, _CAPTURE)
    if "forward-compute" not in parts or any(_PIPELINE.match(name) for name in parts):
        return facts.lacking(
            "timers of the parts of a step in the log of a job that is known to be no pipeline",
            "traces or pipeline timers of all ranks",
        )
    findings: list[Finding] = []
    found: list[_Uneven] = []
    for name in OWN:
        rows = parts.get(name, {})
        uneven = _uneven(name, rows, limits)
        if uneven is None:
            if None in rows and len(rows) == 1:
                findings += _spread(facts, limits, rows[None], findings)
        elif not _is_within(uneven, found, limits) and not _waits(uneven, parts, limits):
            found.append(uneven)
            findings.append(_named(facts, limits, uneven, _others_wait(uneven, parts, limits)))
    return RuleOutcome(findings=tuple(findings))


def _parts(
    rows: Sequence[Row], limits: UnevenPartsThresholds
) -> Mapping[str, Mapping[int | None, Row]]:
    """Of the last start that has enough times: by part and rank."""
    enough = [r for r in rows if r["times_count"] >= limits.min_times_count]
    last = max((r["start_number"] for r in enough), default=None)
    parts: dict[str, dict[int | None, Row]] = defaultdict(dict)
    for row in enough:
        if row["start_number"] == last:
            parts[row["name"]][row["part_rank"]] = row
    return parts


def _uneven(
    name: str, rows: Mapping[int | None, Row], limits: UnevenPartsThresholds
) -> _Uneven | None:
    told = {rank: row for rank, row in rows.items() if rank is not None and row["usual_ns"]}
    if len(told) < limits.min_ranks_count:
        return None
    longest = max(told, key=lambda rank: told[rank]["p50_ns"])
    row = told[longest]
    excess_ns = row["p50_ns"] - row["usual_ns"]
    if row["p50_ns"] < limits.min_peer_ratio * row["usual_ns"] or not row["step_ns"]:
        return None
    if excess_ns < limits.min_step_ratio * row["step_ns"]:
        return None
    most_ns = row["usual_ns"] + limits.max_others_ratio * excess_ns
    beside = sorted(r for r in told if r != longest and told[r]["p50_ns"] > most_ns)
    together = sum(told[r]["longest_count"] for r in (longest, *beside))
    if together < limits.min_longest_ratio * row["times_count"]:
        return None
    ranks = (longest, *beside)
    return _Uneven(
        name, ranks, row["p50_ns"], row["usual_ns"], row["step_ns"], tuple(told[r] for r in ranks)
    )


def _is_within(uneven: _Uneven, found: Sequence[_Uneven], limits: UnevenPartsThresholds) -> bool:
    """Whether the longer forward pass is that of its own input, which it contains."""
    return uneven.part == OWN[1] and any(
        f.part == OWN[0]
        and set(f.ranks) == set(uneven.ranks)
        and f.excess_ns >= limits.min_within_ratio * uneven.excess_ns
        for f in found
    )


def _beyond(uneven: _Uneven, parts: Mapping[str, Mapping[int | None, Row]]) -> float | None:
    """What the rank waits in collectives beyond the median rank, by their timers, in ns; None where
    no such timer tells of ranks."""
    told = [
        {rank: row["p50_ns"] for rank, row in rows.items() if rank is not None}
        for name, rows in parts.items()
        if _WAITING.search(name)
    ]
    told = [times for times in told if uneven.ranks[0] in times and len(times) > 1]
    if not told:
        return None
    return float(sum(times[uneven.ranks[0]] - median(times.values()) for times in told))


def _waits(
    uneven: _Uneven, parts: Mapping[str, Mapping[int | None, Row]], limits: UnevenPartsThresholds
) -> bool:
    beyond = _beyond(uneven, parts)
    return beyond is not None and beyond > limits.max_others_ratio * uneven.excess_ns


def _others_wait(
    uneven: _Uneven, parts: Mapping[str, Mapping[int | None, Row]], limits: UnevenPartsThresholds
) -> bool:
    beyond = _beyond(uneven, parts)
    return beyond is not None and -beyond >= limits.max_others_ratio * uneven.excess_ns


def _named(
    facts: Facts, limits: UnevenPartsThresholds, uneven: _Uneven, others_wait: bool
) -> Finding:
    is_one, named = len(uneven.ranks) == 1, sorted(uneven.ranks)
    ratio = uneven.p50_ns / uneven.usual_ns
    of_step = uneven.excess_ns / uneven.step_ns
    times = (
        f"{seconds(uneven.p50_ns / 1e9)} against {seconds(uneven.usual_ns / 1e9)} of every "
        f"{seconds(uneven.step_ns / 1e9)} step"
    )
    what = f"{ratio:.1f}x as long as the median rank in {uneven.part} ({times})"
    if is_one:
        summary = f"Rank {uneven.ranks[0]} takes {what}, by the log's timers."
    else:
        summary = (
            f"Ranks {ranges(named)} take up to {what}, by the log's timers: one of "
            "them may hold up the others within it."
        )
    whom = f"rank{'' if is_one else 's'} {ranges(named)}"
    is_input = uneven.part == OWN[0]
    by: list[Instrument] = ["log"]
    if others_wait and is_one:
        by.append("peers")
    return facts.finding(
        Scope(
            ranks=uneven.ranks if is_one else (),
            hosts=facts.hosts_of(uneven.ranks) if is_one else (),
            identity_source="log",
        ),
        summary,
        [
            Evidence.ratio("time over that of the median rank", ratio, limits.min_peer_ratio, QUERY,
                           facts.places(uneven.rows, unit="line ")),
            Evidence.ratio("what it takes more, of the step", of_step, limits.min_step_ratio,
                           QUERY),
        ],
        by=by,
        basis="its own timer, and the others wait longer in collectives"
        if len(by) > 1 else "timers of one log",
        least=severity_of(of_step),
        cap=Severity.MAJOR if is_one else Severity.MINOR,
        candidates=None if is_one else Candidates(
            ranks=tuple(named),
            why="ranks of one group wait for each other within this timer",
        ),
        place=f"{uneven.part}-{ranges(named)}",
        owner="data" if is_input else None,
        confirm=(f"profile {whom} and a usual one in the same steps",),
        remedy=(
            "more workers for that rank's loader, or faster storage below it" if is_input
            else "what the profile shows: more work, a slow GPU, or a slow host",
        ),
        next_capture=(f"traces of {whom} and of a usual one, in the same steps",),
    )  # fmt: skip


def _spread(
    facts: Facts, limits: UnevenPartsThresholds, row: Row, before: Sequence[Finding]
) -> list[Finding]:
    """What is known where the log only has the shortest and the longest."""
    least_ns, most_ns, step_ns = row["min_ns"], row["max_ns"], row["step_ns"]
    if not least_ns or not most_ns or not step_ns or (row["name"] == OWN[1] and before):
        return []
    ratio, of_step = most_ns / least_ns, (most_ns - least_ns) / step_ns
    if ratio < limits.min_spread_ratio or of_step < limits.min_spread_step_ratio:
        return []
    return [
        facts.finding(
            Scope(),
            f"Some rank takes {ratio:.1f}x as long as another in {row['name']} "
            f"({seconds(most_ns / 1e9)} against {seconds(least_ns / 1e9)}, {share(of_step)} of the "
            "step apart); the log does not say which.",
            [
                Evidence.ratio("longest over shortest of all ranks", ratio, limits.min_spread_ratio,
                               QUERY, facts.places([row], unit="line ")),
                Evidence.ratio("what lies between them, of the step", of_step,
                               limits.min_spread_step_ratio, QUERY),
            ],
            by=["log"],
            basis="extremes over ranks, which may be another rank's each time",
            least=severity_of(of_step),
            cap=Severity.MINOR,
            place=f"{row['name']}-unknown",
            owner="data" if row["name"] == OWN[0] else None,
            confirm=("which rank is it? Megatron-LM's --timing-log-option all says so",),
            remedy=("once it is known: its loader, its work, its GPU, its host",),
            next_capture=(_CAPTURE,),
        )
    ]  # fmt: skip


RULE = Rule(
    name="uneven-parts",
    summary="A rank takes longer than the others in a part of the step, by the log's timers.",
    owner="platform",
    thresholds=UnevenPartsThresholds(),
    queries=(QUERY,),
    evaluate=evaluate,
    needs=_NEEDS,
    cap=Severity.MAJOR,
    topic="the job's history",
)
