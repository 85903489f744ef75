"""Hangs as traces show them by what is missing: calls that were asked for and never finished.

A kernel that hangs never ends, so no trace holds it; the host's call is there all the same. The
member that did not ask for the call that the others have open is the one that they wait for. If all
asked for it, no rank stayed away. The end of a capture leaves calls open too, but then work went on
until that end: only where all members stood still for long is anything said, and never where a
trace is cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from tracekit.findings import Candidates, Finding
from tracekit.rules import standstill
from tracekit.rules.base import Facts, Row
from tracekit.wording import ranges, ranks_phrase, safe, seconds

QUERY = "open_calls"


class Traced(Struct, frozen=True):
    """A communicator that the traces show standing still."""

    finding: Finding
    members: frozenset[int]
    behind: frozenset[int]


class Standing(Struct, frozen=True):
    """A communicator with an open call, in which all traced members stand still."""

    rows: Sequence[Row]
    number: int
    """The first call that a member has open."""
    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    """Traced members that did not ask for it."""
    roots: tuple[int, ...]
    """Of them, those that wait in no call themselves: the others are held up elsewhere."""
    untraced: tuple[int, ...]
    """Members without a trace, or with one that does not show what was asked for."""
    is_untold: bool
    """Whether there are any of the latter."""
    is_complete: bool
    """Whether all members are known to have a trace."""
    still_ns: int

    @property
    def kind(self) -> str:
        """What can be said of it; in the order of KINDS."""
        if self.roots:
            return "absent"
        if self.absent:
            return "held"
        if not self.is_complete:
            return "untraced"
        # Calls behind another open one of the same member may never have reached the device.
        return "held" if any(r["before_count"] for r in self.rows) else "whole"


KINDS = ("absent", "whole", "untraced", "held")
"""Which hang explains the others: the first of these, and of one kind the first to stop."""


def hangs(facts: Facts, limits: standstill.SilenceThresholds) -> list[Traced]:
    """Communicators that stand still with a call open, the one that explains most first."""
    by_group: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in facts.of(QUERY):
        by_group[row["attempt"], row["capture_id"], row["group_id"]].append(row)
    standing = [
        s for rows in by_group.values()
        if (s := _standing(rows, limits)) is not None
    ]  # fmt: skip
    standing.sort(key=lambda s: (KINDS.index(s.kind), -s.still_ns, str(s.rows[0]["group_id"])))
    return [
        Traced(_finding(facts, s, limits.min_silence_ns),
               frozenset((*s.waiting, *s.absent, *s.untraced)), frozenset(s.roots))
        for s in standing
    ]  # fmt: skip


def _standing(rows: Sequence[Row], limits: standstill.SilenceThresholds) -> Standing | None:
    still_ns = standstill.still_ns(rows, limits)
    if still_ns is None:
        return None
    told = [r for r in rows if r.get("is_told", True)]
    firsts = {int(r["rank"]): _first(r, told) for r in told if r["open_count"]}
    if not firsts:
        return None
    number = min(firsts.values())
    asked = {int(r["rank"]): _asked(r, told) for r in told}
    absent = sorted(rank for rank, last in asked.items() if last < number)
    free = {int(r["rank"]) for r in rows if not r["elsewhere_count"]}
    members = rows[0]["members"]
    count = rows[0]["members_count"]
    everybody = {int(m) for m in members or ()} | {int(r["rank"]) for r in rows}
    return Standing(
        told,
        number,
        tuple(sorted(set(asked) - set(absent))),
        tuple(absent),
        tuple(r for r in absent if r in free),
        tuple(sorted(everybody - set(asked))),
        len(told) < len(rows),
        count is not None and len(asked) == int(count),
        still_ns,
    )


def _is_numbered(rows: Sequence[Row]) -> bool:
    """Whether the traces number all calls that matter; else calls are counted."""
    return all(
        r["asked_sequence"] is not None
        and (not r["open_count"] or r["first_open_sequence"] is not None)
        for r in rows
    )


def _first(row: Row, rows: Sequence[Row]) -> int:
    return int(row["first_open_sequence"]) if _is_numbered(rows) else int(row["last_call"]) + 1


def _asked(row: Row, rows: Sequence[Row]) -> int:
    if _is_numbered(rows):
        return int(row["asked_sequence"])
    return int(row["last_call"]) + int(row["open_count"])


def _finding(facts: Facts, hang: Standing, min_silence_ns: int) -> Finding:
    first = next(r for r in hang.rows if r["open_count"] and _first(r, hang.rows) == hang.number)
    group = f" of group {safe(str(first['group_name']))}" if first["group_name"] else ""
    call = f"the {safe(str(first['op']))} (call {hang.number}{group})"
    still = seconds(hang.still_ns / 1e9)
    waiting = f"rank{'' if len(hang.waiting) == 1 else 's'} {ranges(hang.waiting)}"
    candidates = Candidates()
    kind = hang.kind
    if kind == "absent":
        says = (
            f"{ranks_phrase(hang.roots, facts.ranks)} never asked for {call} that {waiting} "
            f"wait{'s' if len(hang.waiting) == 1 else ''} in; nothing has moved for {still}."
        )
    elif kind == "whole":
        says = (
            f"All {len(hang.rows)} members asked for {call} and it has not ended for {still}: the "
            f"network or a GPU, not a rank that stayed away."
        )
    elif kind == "untraced":
        who = f"rank{'' if len(hang.untraced) == 1 else 's'} {ranges(hang.untraced)}"
        who = who if hang.untraced else "members"
        is_traced = hang.is_untold or set(hang.untraced) & set(facts.ranks)
        is_left_out = bool(hang.untraced) and set(hang.untraced) <= facts.job.left_out_ranks
        lacking = "not selected" if is_left_out else "without a trace"
        lacking = "whose traces do not show it" if is_traced else lacking
        says = (
            f"{waiting.capitalize()} asked for {call} and it has not ended for {still}; {who} "
            f"{lacking} may not have joined."
        )
        candidates = Candidates(
            ranks=hang.untraced,
            hosts=facts.hosts_of(hang.untraced),
            why=f"the only members {lacking}",
        )
    else:
        says = (
            f"{waiting.capitalize()} wait{'s' if len(hang.waiting) == 1 else ''} in {call} and "
            f"nothing has moved for {still}; its members also wait elsewhere, so that who holds "
            f"up whom cannot be told."
        )
    return standstill.finding(
        facts,
        says,
        "calls of the hosts that no kernel finished, and those that are not there",
        measure="time in which no member's device did anything, member with least",
        stood_ns=hang.still_ns,
        limit_ns=min_silence_ns,
        query=QUERY,
        rows=hang.rows,
        blamed=hang.roots,
        candidates=candidates,
        is_network=kind == "whole",
    )
