"""The log side of hangs and mismatches, as PyTorch's watchdog and Flight Recorder tell them.

Sequence numbers count within a process group. The members that did not join are those whose last
enqueued work is before the call that timed out elsewhere, and those that wrote nothing at all while
every other member did. If all joined the same call, no rank is to blame: the network or a GPU is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tracekit.rules import torch_checks
from tracekit.rules.base import Facts, Row
from tracekit.rules.hang_words import Logged, differing, disagreeing, stopped, unfinished, who
from tracekit.rules.nccl_facts import majority
from tracekit.values import MAX_RANKS
from tracekit.wording import safe, seconds

QUERIES = ("watchdog", "flight_calls", torch_checks.QUERY)
HANG_QUERIES = (
    *QUERIES, "last_calls", "enqueued_calls", "open_calls", "ras_growth", "nccl_signals",
)  # fmt: skip


def has_evidence(facts: Facts) -> bool:
    """Whether a watchdog, a Flight Recorder or PyTorch's checks said anything."""
    return any(facts.of(query) for query in QUERIES)


def hang(facts: Facts, min_silence_ns: int) -> Logged | None:
    """The hang that started it, at most one: Flight Recorder knows more than the watchdog, and a
    monitored barrier names who did not come."""
    return (
        _flight(facts)
        or torch_checks.barrier(facts)
        or torch_checks.awaited(facts)
        or torch_checks.start(facts)
        or _watchdog(facts, min_silence_ns)
        or _told(facts)
    )


def mismatch(facts: Facts) -> Logged | None:
    """The first call at one place of a group in which members did different things."""
    for row in facts.of("flight_calls"):
        ops = row["ops"] or ()
        sizes = row["message_bytes"] or ()
        differs = differing(ops, sizes)
        if differs and len(row["joined_ranks"]) > 1:
            ranks = sorted(int(r) for r in row["joined_ranks"])
            members = frozenset(int(r) for r in row["members"] or ()) or None
            finding = disagreeing(
                facts, row["group_name"], int(row["sequence"]), differs, [row], ranks
            )
            return Logged(finding, frozenset(ranks), members=members, differs=differs)
    checked = torch_checks.differing_calls(facts)
    if checked is not None:
        return checked
    for (group, sequence), rows in sorted(_timeouts(facts).items(), key=str):
        differs = _rows_differ(rows)
        if differs and len({_rank(r) for r in rows}) > 1:
            ranks = sorted({k for r in rows if (k := _rank(r)) is not None})
            is_global = _is_global(rows, group)
            finding = disagreeing(
                facts, group, sequence, differs, rows, ranks,
                odd=_odd(rows, ranks), is_global=is_global, is_fatal=True,
            )  # fmt: skip
            return Logged(finding, frozenset(ranks), is_world=_is_world(group),
                          is_global=is_global, differs=differs)  # fmt: skip
    return None


def _rows_differ(rows: Sequence[Row]) -> str | None:
    """What differs between the works that timed out at one place."""
    ops = sorted({str(r["op"]) for r in rows if r["op"]})
    sizes = sorted({(r["numel_in"], r["numel_out"]) for r in rows if r["numel_in"] is not None})
    return differing(ops, sizes)


def _odd(rows: Sequence[Row], ranks: Sequence[int]) -> list[int]:
    """The members that do otherwise than more than half of three or more; else all."""
    did = {k: (r["op"], r["numel_in"], r["numel_out"]) for r in rows if (k := _rank(r)) is not None}
    usual = majority(did.values())
    odd = sorted(k for k, what in did.items() if what != usual)
    return odd if usual is not None and len(did) > 2 else list(ranks)


# ---------------------------------------------------------------- watchdog


def _rank(row: Row) -> int | None:
    value = row["world_rank"] if row["world_rank"] is not None else row["group_rank"]
    return None if value is None else int(value)


def _timeouts(facts: Facts) -> dict[tuple[str | None, int], list[Row]]:
    """Timed-out works by group and sequence.

    A work of a group that no line of its rank names is of the group that others name at that
    number, where they name only one. Where a log kept only the line behind a rank's timeout, which
    says how far the rank had come, that is its timeout; without the operation.
    """
    numbered = [r for r in facts.of("watchdog") if r["sequence"] is not None]
    rows = [r for r in numbered if r["code"] == "watchdog-timeout"]
    said = {(_rank(r), r["sequence"]) for r in rows}
    rows += [r for r in numbered if r["is_timed_out"] and (_rank(r), r["sequence"]) not in said]
    named: dict[int, set[str]] = defaultdict(set)
    for row in rows:
        if row["group_name"] is not None:
            named[int(row["sequence"])].add(str(row["group_name"]))
    timeouts: dict[tuple[str | None, int], list[Row]] = defaultdict(list)
    for row in rows:
        names = named[int(row["sequence"])]
        group = next(iter(names)) if len(names) == 1 else row["group_name"]
        timeouts[group, int(row["sequence"])].append(row)
    return dict(timeouts)


def _is_global(rows: Sequence[Row], group: object) -> bool:
    """Whether the lines' ranks are the job's: stated so, or of the group that has all ranks."""
    return all(r["world_rank"] is not None for r in rows) or (
        group is not None and _is_world(group)
    )


def _watchdog(facts: Facts, min_silence_ns: int) -> Logged | None:
    timeouts = _timeouts(facts)
    if not timeouts:
        return None
    # The first call of the group that most ranks wait in; later ones follow from it. Of equals the
    # group that the log tells of first: numbers of different groups cannot be compared.
    spoke: dict[str | None, tuple[int, int]] = {}
    for (group, _), rows in timeouts.items():
        first = min((int(r["source_id"]), int(r["place"])) for r in rows)
        spoke[group] = min(spoke.get(group, first), first)
    (group, sequence), rows = min(
        timeouts.items(), key=lambda i: (-len({_rank(r) for r in i[1]}), spoke[i[0][0]], i[0][1])
    )
    is_world = _is_world(group) and not (group is None and _is_apart(rows))
    waiting = sorted({k for r in rows if (k := _rank(r)) is not None})
    enqueued = {
        k: int(r["last_enqueued"])
        for r in facts.of("watchdog")
        if r["last_enqueued"] is not None and _is_same(r["group_name"], group)
        # A call whose group no line names may be of any: the job's own count tells nothing of it.
        and (group is not None or r["group_name"] is None)
        and (k := _rank(r)) is not None
    }  # fmt: skip
    behind = sorted(r for r, last in enqueued.items() if last < sequence)
    # Also a rank that the others' watchdogs were quicker than: it asked for the call, and waits.
    waiting = sorted({*waiting, *_in_call(facts, group, sequence)})
    also = sorted({k for r in facts.of("watchdog") if (k := _rank(r)) is not None})
    world = facts.job.world_size or _size_of_largest(facts)
    listed = next((r["members"] for r in rows if r["members"]), None)
    members = frozenset(int(m) for m in listed) if listed is not None else None
    # Ranks count from 0: a gap below the highest is a rank that said nothing.
    size = max(world or 0, max(also, default=-1) + 1)
    # A size beyond all clusters is damage: nobody is expected then.
    expected = set(range(size)) if is_world and size <= MAX_RANKS else set()
    silent = sorted((members if members is not None else expected) - set(also))
    # A process may be ended before its own watchdog speaks: silence alone names nobody.
    is_traced = not behind and _called_less(facts, silent, waiting, min_silence_ns)
    if is_traced:
        behind, silent = silent, []
    # Where no more than half spoke, it is a part of the logs rather than half a job that is dead.
    if len(silent) >= len(also):
        silent = []
    op = next((str(r["op"]) for r in rows if r["op"]), "collective")
    elsewhere = {
        rank: f"the {safe(str(r['op'] or 'collective'))} number {number}"
        for (other, number), others in timeouts.items()
        for r in others
        if group is other is None and (rank := _rank(r)) is not None and rank not in waiting
    }
    if len(elsewhere) >= len(waiting):
        elsewhere = {}  # of halves neither is the odd one
    if _rows_differ(rows):
        return None  # members that do different things: a mismatch, not an absence
    if members is not None:
        is_whole = members == set(waiting)
    else:
        is_whole = bool(world) and is_world and len(waiting) == world
    is_global = _is_global(rows, group)
    finding = unfinished(
        facts, op, sequence, group, waiting, behind, silent, rows, "watchdog",
        is_whole=is_whole, is_global=is_global, is_traced=is_traced, elsewhere=elsewhere,
    )  # fmt: skip
    if finding is None:
        return None
    return Logged(finding, frozenset(waiting), frozenset(behind or silent), members=members,
                  is_world=is_world, is_global=is_global, is_whole=is_whole)  # fmt: skip


def _in_call(facts: Facts, group: str | None, sequence: int) -> set[int]:
    """The ranks that asked for a call of a group and have not done it, by their own counts."""
    if group is None:
        return set()
    rows = [
        r for r in facts.of("watchdog")
        if r["last_enqueued"] is not None and r["last_completed"] is not None
        and _is_same(r["group_name"], group)
        and int(r["last_completed"]) < sequence <= int(r["last_enqueued"])
    ]  # fmt: skip
    return {k for r in rows if (k := _rank(r)) is not None}


def _told(facts: Facts) -> Logged | None:
    """That a collective timed out or the watchdog stood still, where no line says in which call."""
    told = [r for r in facts.of("watchdog") if r["code"] == "watchdog-told"]
    rows = told or [r for r in facts.of("watchdog") if r["code"] == "watchdog-stuck"]
    ranks = sorted({k for r in rows if (k := _rank(r)) is not None})
    if not ranks:
        return None
    stood_s = max((int(r["stood_s"]) for r in rows if r["stood_s"]), default=None)
    for_long = "" if stood_s is None else f" for {seconds(stood_s)}"
    why = (
        "ended because a collective timed out; which one, and who did not join it, these lines do "
        "not tell."
        if told
        else f"ended because {'its' if len(ranks) == 1 else 'their'} NCCL watchdog stood still"
        f"{for_long}: a call of CUDA or NCCL did not return, or a thread held the interpreter. "
        "These lines do not tell which rank the others wait for."
    )
    finding = stopped(
        facts,
        f"{who(ranks)} {why}",
        ("ranks that say so", ranks),
        ("watchdog", facts.places(rows, unit="line ")),
        "the watchdog of the ranks, without the call that timed out",
    )
    return Logged(finding, frozenset(), is_global=False)


def _called_less(
    facts: Facts, few: Sequence[int], many: Sequence[int], min_silence_ns: int
) -> bool:
    """Whether traces show that these ranks asked for fewer collectives than all of those.

    Only where their traces go on for long after their last call: one that was cut has fewer too.
    """
    silence: dict[int, list[int]] = defaultdict(list)
    for row in facts.of("last_calls"):
        silence[int(row["rank"])].append(int(row["silence_ns"] or 0))
    if not all(r in silence and min(silence[r]) >= min_silence_ns for r in few):
        return False
    counts: dict[int, int] = defaultdict(int)
    for row in facts.of("enqueued_calls"):
        counts[int(row["rank"])] += int(row["calls_count"])
    if not few or not many or any(r not in counts for r in (*few, *many)):
        return False
    return max(counts[r] for r in few) < min(counts[r] for r in many)


def _is_world(group: object) -> bool:
    """Whether a group is the job's first; old releases do not name it."""
    return group is None or "default" in str(group) or str(group) == "0"


def _is_apart(rows: Sequence[Row]) -> bool:
    """Whether a rank counts otherwise in the works' group than in the job: not the first group."""
    return any(
        r["world_rank"] is not None
        and r["group_rank"] is not None
        and r["world_rank"] != r["group_rank"]
        for r in rows
    )


def _is_same(algorithm: object, other: object) -> bool:
    return algorithm == other or (_is_world(algorithm) and _is_world(other))


def _size_of_largest(facts: Facts) -> int | None:
    """Members of the largest communicator that an NCCL log shows."""
    return max((int(m["group_size"]) for m in facts.of("nccl_comms")), default=None)


# ---------------------------------------------------------------- Flight Recorder


def _flight(facts: Facts) -> Logged | None:
    rows = [
        r for r in facts.of("flight_calls")
        if not r["is_finished"] and not differing(r["ops"] or (), ())
    ]  # fmt: skip
    stuck = [r for r in rows if r["missing_ranks"] or r["silent_ranks"]]
    chosen = min(stuck or rows, key=lambda r: (-len(r["joined_ranks"]), int(r["sequence"])),
                 default=None)  # fmt: skip
    if chosen is None:
        return None
    joined = sorted(int(r) for r in chosen["joined_ranks"])
    members = chosen["members"] or ()
    if len(members) < 2:
        return None
    missing = sorted(int(r) for r in chosen["missing_ranks"] or ())
    silent = sorted(int(r) for r in chosen["silent_ranks"] or ())
    is_all = len(joined) == len(members)
    timed_out = "started" in (chosen["states"] or ()) or "scheduled" in (chosen["states"] or ())
    if not (missing or silent or (is_all and timed_out)):
        return None
    op = (chosen["ops"] or ["collective"])[0]
    finding = unfinished(
        facts, str(op), int(chosen["sequence"]), chosen["group_name"], joined, missing, silent,
        [chosen], "flight_calls", is_whole=is_all,
    )  # fmt: skip
    if finding is None:
        return None
    return Logged(finding, frozenset(joined), frozenset(missing or silent),
                  members=frozenset(int(r) for r in members), is_whole=is_all)  # fmt: skip
