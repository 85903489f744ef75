"""What frameworks check of collectives themselves, PyTorch where it is told to.

That all members come to a barrier (``monitored_barrier``), that they call the same
(``TORCH_DISTRIBUTED_DEBUG=DETAIL``), and that all hand in what some have (Horovod's coordinator).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tracekit.rules.base import Facts, Row
from tracekit.rules.hang_words import Logged, differing, disagreeing, stopped, who
from tracekit.rules.nccl_facts import majority
from tracekit.wording import ranges, seconds

QUERY = "collective_checks"


def differing_calls(facts: Facts) -> Logged | None:
    """The first call before which PyTorch compared what its members were about to do."""
    rows = [r for r in facts.of(QUERY) if r["code"] == "calls-differ"]
    rows = [r for r in rows if None not in (r["group_rank"], r["other_rank"], r["sequence"])]
    if not rows:
        return None
    sequence = min(int(r["sequence"]) for r in rows)
    rows = [r for r in rows if int(r["sequence"]) == sequence]
    calls = {int(r["group_rank"]): (r["op"], r["shape"]) for r in rows}
    calls |= {int(r["other_rank"]): (r["other_op"], r["other_shape"]) for r in rows}
    ops = sorted({str(op) for op, _ in calls.values() if op})
    shapes = sorted({str(shape) for _, shape in calls.values()})
    differs = differing(ops, shapes)
    ranks = sorted(calls)
    if differs is None:
        return None
    usual = majority(calls.values())
    named = ranks if usual is None else [rank for rank in ranks if calls[rank] != usual]
    is_global = _is_by_job(rows)
    finding = disagreeing(
        facts, None, sequence, differs, rows, ranks, odd=named, is_global=is_global,
        is_fatal=True, query=QUERY,
    )  # fmt: skip
    return Logged(finding, frozenset(ranks), is_global=is_global, differs=differs)


def _is_by_job(rows: Sequence[Row]) -> bool:
    """Whether members other than the first show that ranks of the group are the job's: rank 0 is
    rank 0 of many groups."""
    pairs = [(r["world_rank"], r["group_rank"]) for r in rows if r["world_rank"] is not None]
    return any(world for world, _ in pairs) and all(world == own for world, own in pairs)


def barrier(facts: Facts) -> Logged | None:
    """Who did not reach a monitored barrier, by the rank that waited for all others."""
    checks = facts.of(QUERY)
    told = [r for r in checks if r["code"] == "barrier-missed" and r["missed"]]
    if not told:
        return None
    first = min(told, key=lambda r: (-len(r["missed"]), r["source_id"], r["place"]))
    missed = sorted({int(rank) for rank in first["missed"]})
    reached = [r for r in checks if r["code"] == "barrier-reached"]
    waiting = sorted({0, *(int(r["group_rank"]) for r in reached if r["group_rank"] is not None)})
    is_global = _is_by_job([*told, *reached])
    basis = "the barrier's own word"
    if not is_global:
        basis += "; its ranks count within a group that the log does not name"
    waited = "" if first["waited_s"] is None else f" within {seconds(float(first['waited_s']))}"
    finding = stopped(
        facts,
        f"{who(missed)} did not come to a monitored barrier{waited}, and the others gave up.",
        ("members that did not come", missed),
        (QUERY, facts.places(told, unit="line ")),
        basis,
        blamed=missed if is_global else (),
        place=ranges(missed) if is_global else "all",
        is_known=True,
    )
    return Logged(finding, frozenset(waiting), frozenset(missed), is_global=is_global)


def awaited(facts: Facts) -> Logged | None:
    """Whom Horovod's coordinator waits for at last: who stays away in all of its last warning."""
    told = [r for r in facts.of(QUERY) if r["code"] == "call-awaited" and r["missed"]]
    if not told:
        return None
    last = max(told, key=lambda r: (r["source_id"], r["place"]))
    missed = sorted({int(rank) for rank in last["missed"]})
    waits = [float(r["waited_s"]) for r in told if r["waited_s"] is not None]
    waited = f" for {seconds(max(waits))} or more" if waits else ""
    finding = stopped(
        facts,
        f"{who(missed)} did not hand in what the other ranks have, and Horovod waits{waited}.",
        ("ranks that Horovod waits for", missed),
        (QUERY, facts.places(told, unit="line ")),
        "the coordinator's own word, and no step behind it",
        blamed=missed,
        place=ranges(missed),
        is_known=True,
    )
    finding = replace(finding, next_capture=("the output of all ranks to its end",))
    return Logged(finding, frozenset(), frozenset(missed), is_global=True)


def start(facts: Facts) -> Logged | None:
    """Who did not come when the job, or a group, began: by those who waited for it there."""
    told = [r for r in facts.of(QUERY) if r["code"] in ("join-short", "join-awaited")]
    if not told:
        return None
    of_all = [r for r in told if r["is_of_all"]]
    rows = of_all or told
    waiting = {int(r["group_rank"]) for r in rows if r["group_rank"] is not None}
    waiting |= {0} if any(r["is_of_store"] for r in rows) else set()
    counts = [r for r in rows if None not in (r["joined_count"], r["members_count"])]
    counted = max(counts, key=lambda r: (r["members_count"], r["joined_count"]), default=None)
    absent: set[int] = set()
    if counted is not None and of_all:
        everybody = set(range(int(counted["members_count"])))
        if len(waiting) == int(counted["joined_count"]) and waiting <= everybody:
            absent = everybody - waiting
    if not absent:
        # Members wait for one after the other, and for rank 0 also while it waits for all.
        absent = {int(rank) for r in rows for rank in r["missed"] or ()} - waiting - {0}
    if counted is not None:
        came, members = int(counted["joined_count"]), int(counted["members_count"])
        count = f"{came} of {members} processes came to "
    else:
        count = "not all processes came to "
    count += "the job's start" if of_all else "the start of a group"
    waits = [float(r["waited_s"]) for r in rows if r["waited_s"] is not None]
    count += f" within {seconds(max(waits))}" if waits else ""
    basis = "the word of those that came"
    if absent and not of_all:
        basis += "; its ranks count within a group that the log does not name"
    elif not absent:
        basis += "; which ranks these are it does not say"
    named = sorted(absent)
    blamed = named if of_all else []
    says = f"{count}, and these gave up."
    name = who(named) + ("" if of_all else " of a group")
    finding = stopped(
        facts,
        f"{name} did not come: {says}" if named else f"{says[0].upper()}{says[1:]}",
        ("ranks that did not come", named) if named else ("ranks that waited", sorted(waiting)),
        (QUERY, facts.places(rows, unit="line ")),
        basis,
        blamed=blamed,
        place=ranges(blamed) or "all",
        is_known=bool(named),
    )
    finding = replace(
        finding,
        confirm=("the output of all ranks: the ones that are missing, or whose last line is old",),
        remedy=(
            "see whether these were started, failed before, or do not reach the address and port "
            "of rank 0; where the start is slow, a longer timeout",
        ),
        next_capture=("the output of all ranks and of their launchers",),
    )
    return Logged(finding, frozenset(waiting), frozenset(blamed), is_global=bool(of_all))
