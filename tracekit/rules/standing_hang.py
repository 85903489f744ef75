"""Hangs where no trace tells which communicator a call is of: work asked for that never ended.

An export of Nsight Systems without NCCL's payloads names no communicator, so that calls of several
cannot be told apart. What is proved all the same: devices were asked for work, it never ended, and
nobody did anything since. A rank that asked for nothing more is a candidate, not a culprit: it may
hold up the others, or be done with what it had to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.findings import Candidates, Finding
from tracekit.rules import standstill
from tracekit.rules.base import Facts, Row
from tracekit.wording import plural, ranks_phrase, safe, seconds

QUERY = "standing"
CAPTURE = (
    "nsys export --type=sqlite --include-blobs=true rank0.nsys-rep   of each rank, with nsys 2023 "
    "or later: NCCL 2.25 or later names the communicators there"
)


def hang(facts: Facts, limits: standstill.SilenceThresholds) -> Finding | None:
    """All ranks of a capture stand still and some wait for work; None where that is not so, where
    a trace is cut, or where all traces tell communicators (then other evidence says more)."""
    latest = max((int(r["capture_id"]) for r in facts.of(QUERY)), default=0)
    rows = [r for r in facts.of(QUERY) if int(r["capture_id"]) == latest]
    if all(r["is_told"] is not False for r in rows):
        return None
    still_ns = standstill.still_ns(rows, limits)
    if still_ns is None:
        return None
    waiting = [r for r in rows if r["launches_count"] or r["calls_count"]]
    return _finding(facts, rows, waiting, still_ns, limits.min_silence_ns) if waiting else None


def _finding(
    facts: Facts, rows: Sequence[Row], waiting: Sequence[Row], still_ns: int, limit_ns: int
) -> Finding:
    who = sorted(int(r["rank"]) for r in waiting)
    free = sorted({int(r["rank"]) for r in rows} - set(who))
    still = seconds(still_ns / 1e9)
    called = [r for r in waiting if r["calls_count"]]
    ops = sorted({safe(str(r["op"])) for r in called if r["op"]})
    # The operation is told only if all that wait asked for the same one first.
    what = "a collective" if len(called) == len(waiting) else "work on the device"
    if len(called) == len(waiting) and len(ops) == 1:
        what = f"an {ops[0]}" if ops[0][0] in "aeiou" else f"a {ops[0]}"
    says = (
        f"{ranks_phrase(who, facts.ranks)} asked for {what} that has not ended for {still}, in "
        f"which no rank did anything"
    )
    candidates = Candidates()
    if free:
        says += (
            f"; {ranks_phrase(free, facts.ranks).lower()} asked for nothing more and may be what "
            f"the others wait for."
        )
        candidates = Candidates(
            ranks=tuple(free),
            hosts=facts.hosts_of(free),
            why="all others wait for work of their devices",
        )
    else:
        says += "; who did not join cannot be told without NCCL's payloads."
    count = sum(int(r["launches_count"]) + int(r["calls_count"]) for r in waiting)
    return standstill.finding(
        facts,
        says,
        "calls of the hosts that nothing on a device finished; whose they are, no trace tells",
        measure=f"time in which no rank did anything, rank with least "
        f"({plural(count, 'call')} unfinished)",
        stood_ns=still_ns,
        limit_ns=limit_ns,
        query=QUERY,
        rows=waiting,
        candidates=candidates,
        confirm="py-spy dump --pid PID on the hosts of all ranks",
        remedy="fix what keeps a rank from the call; see their stacks",
        next_capture=CAPTURE,
    )
