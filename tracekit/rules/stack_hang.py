"""Hangs as stacks show them: all but one stand in a collective, and that one stands elsewhere.

A stack is a moment. In a job that moves, one rank is always the last to come, and while it comes
the others stand in the collective; so one dump names a candidate at most. If every dump of every
process shows the same, the others wait for that one: whether it stands still or is only so slow,
stacks do not tell. A process that was once in the collective and once not shows a job that moves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from tracekit.findings import Candidates, Evidence, Finding, Severity, confidence_from
from tracekit.rules.base import Facts, Row
from tracekit.rules.sources import SOURCES
from tracekit.wording import listed, plural, ranges, ranks_phrase, safe, sentence

QUERY = "rank_stacks"
AGAIN = "py-spy dump --pid PID   of every rank, and once more a minute later"
NATIVE = "py-spy dump --native --pid PID   of every rank: what they wait for"
_WAITS = frozenset(("collective", "rendezvous"))
_MAY_WAIT = frozenset(("backward", "device"))
_IN = {
    "checkpoint": "in a checkpoint",
    "collection": "in a collection of garbage",
    "compile": "in a compilation",
    "input": "in its data loader",
}
MAX_NAMED = 4


class Process(Struct, frozen=True):
    """A process of the job, with the stacks that its dumps show."""

    rows: tuple[Row, ...]

    @property
    def rank(self) -> int | None:
        """Its rank in the job, where that is known."""
        value = self.rows[0]["rank"]
        return None if value is None else int(value)

    @property
    def dumps_count(self) -> int:
        """How often it was looked at."""
        return int(self.rows[0]["dumps_count"])

    @property
    def kinds(self) -> frozenset[str | None]:
        """What it stood in."""
        return frozenset(row["stands_in"] for row in self.rows)

    @property
    def is_waiting(self) -> bool:
        """Whether it stood in a collective each time."""
        return self.kinds <= _WAITS

    @property
    def is_away(self) -> bool:
        """Whether it stood each time where nothing waits for others."""
        return not self.kinds & (_WAITS | _MAY_WAIT)

    @property
    def is_moving(self) -> bool:
        """Whether it came into a collective or out of one, or stood in two, between dumps."""
        # Of native frames alone, equal ones may look different.
        shown = [r for r in self.rows if any(".py:" in f for f in r["frames"])]
        is_both = bool(self.kinds & _WAITS) and bool(self.kinds - _WAITS - _MAY_WAIT)
        return (is_both and len(shown) == len(self.rows)) or (self.is_waiting and len(shown) > 1)

    @property
    def name(self) -> str:
        """``rank 2``, else what is known of it."""
        row = self.rows[0]
        on = f" on {safe(row['host'])}" if row["host"] else ""
        if self.rank is not None:
            return f"rank {self.rank}"
        if row["local_rank"] is not None:
            return f"local rank {row['local_rank']}{on or ' of its host'}"
        return f"process {row['pid']}{on}" if row["pid"] is not None else "a process without a name"

    @property
    def where(self) -> str:
        """``in its data loader, at read_shard (train.py:37)``."""
        row = next((r for r in self.rows if r["stands_in"] is not None), self.rows[0])
        kind = _IN.get(row["stands_in"] or "")
        at = f"at {safe(row['frame'])}"
        return f"{kind}, {at}" if kind else at


def processes(facts: Facts) -> list[Process]:
    """The job's processes that were looked at."""
    by_process: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in facts.of(QUERY):
        if row["rank"] is not None:
            key: tuple[object, ...] = ("rank", row["rank"])
        elif row["pid"] is not None or row["local_rank"] is not None:
            key = ("process", row["host"], row["pid"], row["local_rank"])
        else:
            key = ("row", row["source_id"], row["place"])
        by_process[key].append(row)
    return [Process(tuple(rows)) for rows in by_process.values()]


class Standing(Struct, frozen=True):
    """A job all of whose processes stand, some in a collective and others elsewhere."""

    waiting: Sequence[Process]
    away: Sequence[Process]
    others: Sequence[Process]
    """Of which it is not shown whether they wait."""

    @property
    def dumps_count(self) -> int:
        """How often each was looked at; the least."""
        return min(p.dumps_count for p in (*self.waiting, *self.away, *self.others))


def standing(facts: Facts) -> Standing | None:
    """Who stands elsewhere while most wait in a collective; None where that is not so."""
    looked_at = processes(facts)
    waiting = [p for p in looked_at if p.is_waiting]
    away = [p for p in looked_at if p.is_away]
    if not waiting or not away or len(away) > len(waiting) or any(p.is_moving for p in looked_at):
        return None
    known = {id(p) for p in (*waiting, *away)}
    return Standing(waiting, away, [p for p in looked_at if id(p) not in known])


def is_unclear(facts: Facts) -> bool:
    """Whether stacks show one elsewhere, and of the others not whether they wait for it."""
    looked_at = processes(facts)
    return any(p.is_away for p in looked_at) and not any(p.is_waiting for p in looked_at)


def hang(facts: Facts, min_dumps_count: int) -> Finding | None:
    """The odd one out; a candidate where it was seen in fewer dumps than that."""
    stand = standing(facts)
    if stand is None:
        return None
    is_repeated = stand.dumps_count >= min_dumps_count
    named = sorted(p.rank for p in stand.away if p.rank is not None)
    is_told = is_repeated and len(stand.away) == 1 and not stand.others
    shown = sorted(stand.away, key=lambda p: (p.rank is None, p.rank or 0, p.name))[:MAX_NAMED]
    who = listed([f"{p.name} stood {p.where}" for p in shown])
    rest = len(stand.away) - len(shown)
    more = f", and {plural(rest, 'other')} elsewhere" if rest else ""
    says = f"{sentence(who)}{more}, while {_waiters(facts, stand.waiting)}"
    if stand.others:
        says += f"; of {plural(len(stand.others), 'other')} it does not show whether they wait"
    if is_repeated:
        says += f", in each of {stand.dumps_count} dumps."
        says += " Whether this is a standstill or only so slow, stacks do not tell."
    else:
        says += ". One dump shows a moment: the last to come looks like this in any job."
    why = "they stand elsewhere while others wait in a collective"
    candidates = Candidates()
    if not is_told:
        hosts = facts.hosts_of(named) if len(named) == len(stand.away) else ()
        candidates = Candidates(ranks=tuple(named), hosts=hosts, why=why)
    rows = [row for p in (*stand.away, *stand.waiting) for row in p.rows]
    return facts.finding(
        facts.scope(named if is_told else [], []),
        says,
        (
            Evidence.count(
                "processes that stood in a collective",
                len(stand.waiting),
                None,
                QUERY,
                facts.places(rows),
            ),
            Evidence.count(
                "dumps of each process, at least", stand.dumps_count, min_dumps_count, QUERY
            ),
        ),
        by=["peers"],
        basis="stacks of the processes alone",
        least=Severity.CRITICAL if is_repeated else Severity.MINOR,
        place=ranges(named) or "stacks",
        owner="platform",
        keys=(),
        candidates=candidates,
        confirm=(AGAIN if not is_repeated else "the job's log: whether steps still end",),
        remedy=("fix what keeps it from the call: the frames of its stack say where it stands",),
        next_capture=(AGAIN,),
    )


def _waiters(facts: Facts, waiting: Sequence[Process]) -> str:
    ranks = sorted(p.rank for p in waiting if p.rank is not None)
    ops = sorted({safe(row["op"]) for p in waiting for row in p.rows if row["op"]})
    kinds = {row["stands_in"] for p in waiting for row in p.rows}
    place = "a rendezvous" if kinds == {"rendezvous"} else "a collective"
    place = ops[0] if len(ops) == 1 else place
    who = "1 process" if len(waiting) == 1 else f"{len(waiting):,} processes"
    if len(ranks) == len(waiting):
        who = ranks_phrase(ranks, facts.ranks)
        who = who[:1].lower() + who[1:]
    return f"{who} waited in {place}"


def seen(facts: Facts, finding: Finding) -> Finding:
    """A hang that others tell, with where the stacks show the ranks that it blames to stand."""
    by_rank = {p.rank: p for p in processes(facts) if p.rank is not None}
    named = finding.scope.ranks or finding.candidates.ranks
    known = [by_rank[r] for r in named if r in by_rank]
    rest = [p for r, p in by_rank.items() if r not in named]
    away = [p for p in known if p.is_away]
    if not known or not any(p.is_waiting for p in rest):
        return finding
    rows = [row for p in known for row in p.rows]
    evidence = Evidence.count(
        "ranks of these that stood outside of any collective",
        len(away),
        None,
        QUERY,
        facts.places(rows),
    )
    if finding.scope.ranks and not away and all(p.is_waiting for p in known):
        said = replace(evidence, name=f"stacks say otherwise: {evidence.name}")
        return replace(finding, counter_evidence=(*finding.counter_evidence, said))
    is_one = len(away) == 1 and all(p.is_waiting for p in (*rest, *known) if p is not away[0])
    is_same = len(away) == len(known) if finding.scope.ranks else is_one
    if not away or not is_same:
        return finding
    shown = listed([f"{p.name} {p.where}" for p in away[:MAX_NAMED]])
    told = replace(
        finding,
        summary=f"{finding.summary} Stacks show {shown}.",
        evidence=(*finding.evidence, evidence),
        confidence=confidence_from(SOURCES, f"{finding.confidence.basis}; the stacks agree"),
    )
    if finding.scope.ranks or away[0].rank is None:
        return told
    scope = facts.scope([away[0].rank], [])
    return replace(told, scope=scope, candidates=Candidates())
