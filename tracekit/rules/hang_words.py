"""How what logs show of hangs and mismatches is told, and whose ranks it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from tracekit.findings import Candidates, Evidence, EvidenceRow, Finding, Instrument, Severity
from tracekit.rules.base import Facts, Row
from tracekit.wording import ranges, safe, sentence, some

FLIGHT_CAPTURE = "TORCH_NCCL_TRACE_BUFFER_SIZE=20000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"
VARIABLE_SIZES = frozenset({"all_to_all", "coalesced", "gather", "scatter", "unknown"})
"""Operations whose members may rightly give different sizes."""


class Logged(Struct, frozen=True):
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


def differing(ops: Sequence[object], sizes: Sequence[object]) -> str | None:
    """What differs between the members of a call, by the operations and sizes that there are."""
    if len(ops) > 1:
        return f"operations differ ({', '.join(safe(str(o)) for o in ops)})"
    if len(sizes) > 1 and not (ops and str(ops[0]) in VARIABLE_SIZES):
        return "sizes differ"
    return None


def unfinished(
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
    elsewhere: Mapping[int, str] | None = None,
) -> Finding | None:
    """Who did not join a call in which others wait, as far as that is known.

    ``elsewhere``: ranks that wait in another call, with its words, where no line names groups.
    """
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
        says = f"{who(behind)} did not join: {wait}."
        if is_traced:
            says = f"{says[:-1]}; {'its trace shows' if len(behind) == 1 else 'their traces show'} "
            says += "fewer calls than any of theirs."
            instruments.append("host ranges")
            basis += ", and what each rank's trace shows on the host"
    elif silent:
        blamed = ()
        says = f"{who(silent)} said nothing while {wait}: dead, or stuck on the CPU."
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
        if elsewhere:
            calls = sorted(set(elsewhere.values()))
            one = len(elsewhere) == 1
            says = (
                f"{sentence(wait)}, {'rank' if one else 'ranks'} {ranges(sorted(elsewhere))} in "
                f"another call ({some(calls, 3)}): of another group, or of the same one, whose "
                "members then do not call in one order."
            )
            candidates = Candidates(
                ranks=tuple(sorted(elsewhere)), hosts=facts.hosts_of(sorted(elsewhere)),
                why="they wait in another call than most",
            )  # fmt: skip
            basis += ", nor which groups the calls are of"
    if not is_global:
        # Rank 0 of some group is not rank 0 of the job: said, but no rank of the job is named.
        basis += "; its ranks count within a group that the log does not name"
        blamed, candidates = (), Candidates()
    return stopped(
        facts,
        says,
        (f"members waiting in {safe(op)} number {sequence}", waiting),
        (query, facts.places(rows)),
        basis,
        blamed=blamed,
        place=ranges(blamed) or ranges(silent) or "all",
        is_known=bool(behind or silent),
        is_whole=is_whole,
        by=instruments,
        candidates=candidates,
    )


def stopped(
    facts: Facts,
    says: str,
    counted: tuple[str, Sequence[int]],
    shown: tuple[str, tuple[EvidenceRow, ...]],
    basis: str,
    *,
    blamed: Sequence[int] = (),
    place: str = "all",
    is_known: bool = False,
    is_whole: bool = False,
    by: Sequence[Instrument] = ("log",),
    candidates: Candidates | None = None,
) -> Finding:
    """What ended the job: ``counted`` are ranks and what is told of them, ``shown`` the query and
    the lines that tell it."""
    name, ranks = counted
    query, rows = shown
    confirm, remedy = _next(is_known=is_known, is_whole=is_whole)
    return facts.finding(
        facts.scope(list(blamed), []),
        says,
        (Evidence.count(name, len(ranks), None, query, rows),),
        by=by,
        basis=basis,
        least=Severity.CRITICAL,
        place=place,
        owner="network" if is_whole and not is_known else "platform",
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


def who(ranks: Sequence[int]) -> str:
    """``Rank 3``, ``Ranks 3-5``."""
    return f"Rank{'' if len(ranks) == 1 else 's'} {ranges(ranks)}"


def disagreeing(
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
    """That members of a group are at one call and do different things in it."""
    name = f" of group {safe(str(group))}" if group else ""
    named = list(odd or ranks)
    other = (
        f" {who(named)} {'does' if len(named) == 1 else 'do'} otherwise than the rest."
        if 0 < len(named) < len(ranks)
        else ""
    )
    return facts.finding(
        facts.scope(named if is_global else [], []),
        f"Ranks {ranges(ranks)} are at call {sequence}{name} and their {differs}.{other}",
        (
            Evidence.count(
                "members that disagree or are agreed against",
                len(ranks),
                None,
                query or ("flight_calls" if "joined_ranks" in rows[0] else "watchdog"),
                facts.places(rows),
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
