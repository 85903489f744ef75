"""The log side of hangs and mismatches, as PyTorch's watchdog and Flight Recorder tell them.

Sequence numbers count within a process group. The members that did not join are those whose last
enqueued work is before the call that timed out elsewhere, and those that wrote nothing at all while
every other member did. If all joined the same call, no rank is to blame: the network or a GPU is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.findings import Candidates, Evidence, Finding, Instrument, Severity
from tracekit.rules.base import Facts, Row
from tracekit.rules.nccl_facts import majority
from tracekit.values import MAX_RANKS
from tracekit.wording import ranges, safe, seconds, sentence

QUERIES = ("watchdog", "flight_calls", "collective_checks")
HANG_QUERIES = (
    *QUERIES, "last_calls", "enqueued_calls", "open_calls", "ras_growth", "nccl_signals",
)  # fmt: skip
FLIGHT_CAPTURE = "TORCH_NCCL_TRACE_BUFFER_SIZE=20000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"
VARIABLE_SIZES = frozenset({"all_to_all", "coalesced", "gather", "scatter", "unknown"})
"""Operations whose members may rightly give different sizes."""


@dataclass(frozen=True, slots=True)
class Logged:
    """What logs or dumps say of one group, in global ranks."""

    finding: Finding
    waiting: frozenset[int]
    absent: frozenset[int] = frozenset()
    """Members that did not join, or that said nothing; empty where all joined or none is known."""
    members: frozenset[int] | None = None
    """All members; None where the log does not list them."""
    is_world: bool = False
    """Whether it is the job's first group, of all ranks."""
    is_global: bool = True
    """Whether the ranks are the job's; false where they count within a group without a name."""
    is_whole: bool = False
    """Whether all members are known to have joined."""
    differs: str = ""
    """What differs between members, for a mismatch."""

    def is_group(self, ranks: frozenset[int], everybody: frozenset[int]) -> bool:
        """Whether a communicator of the traces, with these members, can be this group."""
        if not self.is_global:
            return False
        if self.members is not None:
            return ranks == self.members
        named = self.waiting | self.absent
        return ranks >= (named | everybody if self.is_world else named)


def has_evidence(facts: Facts) -> bool:
    """Whether a watchdog, a Flight Recorder or PyTorch's checks said anything."""
    return any(facts.of(query) for query in QUERIES)


def hang(facts: Facts, min_silence_ns: int) -> Logged | None:
    """The hang that started it, at most one: Flight Recorder knows more than the watchdog, and a
    monitored barrier names who did not come."""
    return _flight(facts) or _barrier(facts) or _watchdog(facts, min_silence_ns) or _told(facts)


def mismatch(facts: Facts) -> Logged | None:
    """The first call at one place of a group in which members did different things."""
    for row in facts.of("flight_calls"):
        ops = row["ops"] or ()
        sizes = row["message_bytes"] or ()
        differs = _differs(ops, sizes)
        if differs and len(row["joined_ranks"]) > 1:
            ranks = sorted(int(r) for r in row["joined_ranks"])
            members = frozenset(int(r) for r in row["members"] or ()) or None
            finding = _mismatch(
                facts, row["group_name"], int(row["sequence"]), differs, [row], ranks
            )
            return Logged(finding, frozenset(ranks), members=members, differs=differs)
    checked = _checked(facts)
    if checked is not None:
        return checked
    for (group, sequence), rows in sorted(_timeouts(facts).items(), key=str):
        differs = _rows_differ(rows)
        if differs and len({_rank(r) for r in rows}) > 1:
            ranks = sorted({k for r in rows if (k := _rank(r)) is not None})
            is_global = _is_global(rows, group)
            finding = _mismatch(
                facts, group, sequence, differs, rows, ranks,
                odd=_odd(rows, ranks), is_global=is_global, is_fatal=True,
            )  # fmt: skip
            return Logged(finding, frozenset(ranks), is_world=_is_world(group),
                          is_global=is_global, differs=differs)  # fmt: skip
    return None


def _checked(facts: Facts) -> Logged | None:
    """The first call before which PyTorch compared what its members were about to do."""
    rows = [r for r in facts.of("collective_checks") if r["code"] == "calls-differ"]
    rows = [r for r in rows if None not in (r["group_rank"], r["other_rank"], r["sequence"])]
    if not rows:
        return None
    sequence = min(int(r["sequence"]) for r in rows)
    rows = [r for r in rows if int(r["sequence"]) == sequence]
    calls = {int(r["group_rank"]): (r["op"], r["shape"]) for r in rows}
    calls |= {int(r["other_rank"]): (r["other_op"], r["other_shape"]) for r in rows}
    ops = sorted({str(op) for op, _ in calls.values() if op})
    shapes = sorted({str(shape) for _, shape in calls.values()})
    differs = _differs(ops, shapes)
    ranks = sorted(calls)
    if differs is None:
        return None
    usual = majority(calls.values())
    named = ranks if usual is None else [rank for rank in ranks if calls[rank] != usual]
    is_global = _is_by_job(rows)
    finding = _mismatch(
        facts, None, sequence, differs, rows, ranks, odd=named, is_global=is_global,
        is_fatal=True, query="collective_checks",
    )  # fmt: skip
    return Logged(finding, frozenset(ranks), is_global=is_global, differs=differs)


def _is_by_job(rows: Sequence[Row]) -> bool:
    """Whether members other than the first show that ranks of the group are the job's: rank 0 is
    rank 0 of many groups."""
    pairs = [(r["world_rank"], r["group_rank"]) for r in rows if r["world_rank"] is not None]
    return any(world for world, _ in pairs) and all(world == own for world, own in pairs)


def _rows_differ(rows: Sequence[Row]) -> str | None:
    """What differs between the works that timed out at one place."""
    ops = sorted({str(r["op"]) for r in rows if r["op"]})
    sizes = sorted({(r["numel_in"], r["numel_out"]) for r in rows if r["numel_in"] is not None})
    return _differs(ops, sizes)


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
    if _rows_differ(rows):
        return None  # members that do different things: a mismatch, not an absence
    if members is not None:
        is_whole = members == set(waiting)
    else:
        is_whole = bool(world) and is_world and len(waiting) == world
    is_global = _is_global(rows, group)
    finding = _hang(
        facts, op, sequence, group, waiting, behind, silent, rows, "watchdog",
        is_whole=is_whole, is_global=is_global, is_traced=is_traced,
    )  # fmt: skip
    if finding is None:
        return None
    return Logged(finding, frozenset(waiting), frozenset(behind or silent), members=members,
                  is_world=is_world, is_global=is_global, is_whole=is_whole)  # fmt: skip


def _barrier(facts: Facts) -> Logged | None:
    """Who did not reach a monitored barrier, by the rank that waited for all others."""
    checks = facts.of("collective_checks")
    told = [r for r in checks if r["code"] == "barrier-missed" and r["missed"]]
    if not told:
        return None
    first = min(told, key=lambda r: (-len(r["missed"]), r["source_id"], r["place"]))
    missed = sorted({int(rank) for rank in first["missed"]})
    reached = [r for r in checks if r["code"] == "barrier-reached"]
    waiting = sorted({0, *(int(r["group_rank"]) for r in reached if r["group_rank"] is not None)})
    is_global = _is_by_job([*told, *reached])
    scope = facts.scope(missed if is_global else [], [])
    basis = "the barrier's own word"
    if not is_global:
        basis += "; its ranks count within a group that the log does not name"
    waited = "" if first["waited_s"] is None else f" within {seconds(float(first['waited_s']))}"
    confirm, remedy = _next(is_known=True, is_whole=False)
    finding = facts.finding(
        scope,
        f"{_who(missed)} did not come to a monitored barrier{waited}, and the others gave up.",
        (
            Evidence(
                "members that did not come",
                float(len(missed)),
                "count",
                query="collective_checks",
                rows=facts.places(told, unit="line "),
            ),
        ),
        by=["log"],
        basis=basis,
        least=Severity.CRITICAL,
        place=ranges(missed) if is_global else "all",
        owner="platform",
        keys=(),
        confirm=(confirm,),
        remedy=(remedy,),
        next_capture=(FLIGHT_CAPTURE,),
    )
    return Logged(finding, frozenset(waiting), frozenset(missed), is_global=is_global)


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
    confirm, remedy = _next(is_known=False, is_whole=False)
    finding = facts.finding(
        facts.scope([], []),
        f"{_who(ranks)} {why}",
        (
            Evidence(
                "ranks that say so",
                float(len(ranks)),
                "count",
                query="watchdog",
                rows=facts.places(rows, unit="line "),
            ),
        ),
        by=["log"],
        basis="the watchdog of the ranks, without the call that timed out",
        least=Severity.CRITICAL,
        place="all",
        owner="platform",
        keys=(),
        confirm=(confirm,),
        remedy=(remedy,),
        next_capture=(FLIGHT_CAPTURE,),
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
        if not r["is_finished"] and not _differs(r["ops"] or (), ())
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
    finding = _hang(facts, str(op), int(chosen["sequence"]), chosen["group_name"], joined, missing,
                  silent, [chosen], "flight_calls", is_whole=is_all)  # fmt: skip
    if finding is None:
        return None
    return Logged(finding, frozenset(joined), frozenset(missing or silent),
                  members=frozenset(int(r) for r in members), is_whole=is_all)  # fmt: skip


# ---------------------------------------------------------------- words


def _differs(ops: Sequence[object], sizes: Sequence[object]) -> str | None:
    if len(ops) > 1:
        return f"operations differ ({', '.join(safe(str(o)) for o in ops)})"
    if len(sizes) > 1 and not (ops and str(ops[0]) in VARIABLE_SIZES):
        return "sizes differ"
    return None


def _hang(
    facts: Facts,
    op: str,
    sequence: int,
    group: object,
    waiting: Sequence[int],
    behind: Sequence[int],
    silent: Sequence[int],
    rows: Sequence[Row],
    query: str,
    *,
    is_whole: bool,
    is_global: bool = True,
    is_traced: bool = False,
) -> Finding | None:
    if not waiting:
        return None
    where = f"the {safe(op)} number {sequence}" + (f" of group {safe(str(group))}" if group else "")
    word = "ranks" if len(waiting) > 1 else "rank"
    wait = f"{word} {ranges(waiting)} wait{'' if len(waiting) > 1 else 's'} in {where}"
    instruments: list[Instrument] = ["log"]
    blamed: Sequence[int] = behind
    basis = f"{'Flight Recorder' if query == 'flight_calls' else 'the watchdog'} of the ranks"
    candidates = Candidates()
    if behind:
        says = f"{_who(behind)} did not join: {wait}."
        if is_traced:
            says = f"{says[:-1]}; {'its trace shows' if len(behind) == 1 else 'their traces show'} "
            says += "fewer calls than any of theirs."
            instruments.append("host ranges")
            basis += ", and what each rank's trace shows on the host"
    elif silent:
        blamed = ()
        says = f"{_who(silent)} said nothing while {wait}: dead, or stuck on the CPU."
        candidates = Candidates(
            ranks=tuple(silent), hosts=facts.hosts_of(silent),
            why="the only members that neither joined nor said anything",
        )  # fmt: skip
        basis += "; silence is weak evidence where logs may be missing"
    elif is_whole:
        says = (
            f"All {len(waiting)} members joined {where} and it did not end: the network or a GPU, "
            f"not a rank that stayed away."
        )
    else:
        says = f"{sentence(wait)}; whether all members joined it cannot be told."
        basis += "; how many members there are is not known"
    if not is_global:
        # Rank 0 of some group is not rank 0 of the job: said, but no rank of the job is named.
        basis += "; its ranks count within a group that the log does not name"
        blamed, candidates = (), Candidates()
    scope = facts.scope(list(blamed), [])
    confirm, remedy = _next(is_known=bool(behind or silent), is_whole=is_whole)
    return facts.finding(
        scope,
        says,
        (
            Evidence(
                f"members waiting in {safe(op)} number {sequence}",
                float(len(waiting)),
                "count",
                query=query,
                rows=facts.places(rows),
            ),
        ),
        by=instruments,
        basis=basis,
        least=Severity.CRITICAL,
        place=ranges(blamed) or ranges(silent) or "all",
        owner="network" if is_whole and not (behind or silent) else "platform",
        keys=(),
        candidates=candidates,
        confirm=(confirm,),
        remedy=(remedy,),
        next_capture=(FLIGHT_CAPTURE,),
    )


def _next(*, is_known: bool, is_whole: bool) -> tuple[str, str]:
    """What would confirm it, and what mends it."""
    if is_known:
        return (
            "py-spy dump --pid PID on the hosts of the ranks that did not join",
            "fix what keeps them from the call; see their stacks",
        )
    if is_whole:
        return (
            "switch and NIC counters of the hosts; XIDs in their kernel logs",
            "test the links between the members before the next start",
        )
    return (
        "the logs of all ranks; py-spy dump --pid PID on each while it hangs",
        "find the member that is in no log or is behind; if all joined, test the links",
    )


def _who(ranks: Sequence[int]) -> str:
    return f"Rank{'' if len(ranks) == 1 else 's'} {ranges(ranks)}"


def _mismatch(
    facts: Facts,
    group: object,
    sequence: int,
    differs: str,
    rows: Sequence[Row],
    ranks: Sequence[int],
    *,
    odd: Sequence[int] = (),
    is_global: bool = True,
    is_fatal: bool = False,
    query: str | None = None,
) -> Finding:
    name = f" of group {safe(str(group))}" if group else ""
    named = list(odd or ranks)
    other = (
        f" {_who(named)} {'does' if len(named) == 1 else 'do'} otherwise than the rest."
        if 0 < len(named) < len(ranks)
        else ""
    )
    return facts.finding(
        facts.scope(named if is_global else [], []),
        f"Ranks {ranges(ranks)} are at call {sequence}{name} and their {differs}.{other}",
        (
            Evidence(
                "members that disagree or are agreed against",
                float(len(ranks)),
                "count",
                query=query or ("flight_calls" if "joined_ranks" in rows[0] else "watchdog"),
                rows=facts.places(rows),
            ),
        ),
        by=["log"],
        basis="the ranks' own sequence numbers",
        least=Severity.CRITICAL if is_fatal else Severity.MINOR,
        place=str(sequence),
        owner="model",
        keys=(),
        confirm=("TORCH_DISTRIBUTED_DEBUG=DETAIL checks that all members call the same",),
        remedy=("find the branch that some ranks take and others do not",),
    )
