"""What rules about NCCL share: communicators, connections and messages as objects.

NCCL's ranks count within a communicator; a rank of the job is named only where the log proves it.
A log is one instrument however many ranks wrote it, so a finding from logs alone is ``possible``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, partial
from operator import itemgetter
from typing import TypeVar, cast

from msgspec import Struct

from tracekit.findings import Evidence, EvidenceRow, Scope
from tracekit.rules.base import Facts, Row, Rule, RuleOutcome
from tracekit.wording import ranges, safe

CAPTURE = "tracekit capture --what nccl"
NEEDS = "NCCL logs"
nccl_rule = partial(Rule, topic="NCCL's transports and choices", needs=NEEDS)
"""A rule over NCCL's logs, with what these declare alike."""
M = TypeVar("M")

Process = tuple[int, str | None, int | None]
"""A process as one log knows it: the file, its machine, its number."""


class Member(Struct, frozen=True):
    """A rank of a communicator."""

    comm: str
    group_rank: int | None
    world_rank: int | None
    node: str | None
    pid: int | None
    size: int
    nodes_count: int | None
    pci: str | None
    channels: int | None
    version: str | None
    init_ns: int | None
    state: str | None
    source_id: int
    place: int

    @property
    def process(self) -> Process:
        """The process, as one log knows it."""
        return (self.source_id, self.node, self.pid)


class Signal(Struct, frozen=True):
    """A kind of message of one process."""

    code: str
    severity: str
    given: dict[str, str]
    node: str | None
    pid: int | None
    comm: str | None
    count: int
    source_id: int
    place: int

    @property
    def process(self) -> Process:
        """The process, as one log knows it."""
        return (self.source_id, self.node, self.pid)


class Link(Struct, frozen=True):
    """How one rank of a communicator talks to another."""

    comm: str | None
    start: int | None
    start_node: str | None
    end: int | None
    end_node: str | None
    transport: str | None
    detail: str
    nics: str | None
    is_gpudirect: bool | None
    channels: int
    source_id: int
    place: int

    @property
    def plugin(self) -> str:
        """Name of the network plugin; empty off the network."""
        return self.detail.split("/", 1)[0] if self.transport == "NET" else ""

    @property
    def is_local(self) -> bool:
        """Whether the ends are known to be on one host."""
        return self.start_node is not None and self.start_node == self.end_node


class Nccl:
    """All that the NCCL logs say; each part is read when a rule asks for it."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    @cached_property
    def members(self) -> list[Member]:
        """Ranks of communicators."""
        return self.facts.once("nccl_comms", _members)

    @cached_property
    def links(self) -> list[Link]:
        """Connections."""
        return self.facts.once("nccl_topology", _links)

    @cached_property
    def comms(self) -> dict[str, list[Member]]:
        """Members by communicator."""
        members: dict[str, list[Member]] = defaultdict(list)
        for member in self.members:
            members[member.comm].append(member)
        return dict(members)

    @cached_property
    def by_node(self) -> dict[str | None, list[Member]]:
        """Members by machine."""
        members: dict[str | None, list[Member]] = defaultdict(list)
        for member in self.members:
            members[member.node].append(member)
        return dict(members)

    def of(self, code: str) -> list[Signal]:
        """Messages of a kind."""
        return self.facts.once("nccl_signals", _Signals).of(code)

    def of_processes(self, code: str, processes: Collection[Process]) -> list[Signal]:
        """Messages of a kind that these processes printed, in the order of ``of``."""
        if code not in self._by_process:
            numbered: dict[Process, list[tuple[int, Signal]]] = defaultdict(list)
            for number, signal in enumerate(self.of(code)):
                numbered[signal.process].append((number, signal))
            self._by_process[code] = numbered
        said = self._by_process[code]
        found = [pair for p in processes for pair in said.get(p, ())]
        return [signal for _, signal in sorted(found, key=itemgetter(0))]

    @cached_property
    def _by_process(self) -> dict[str, dict[Process, list[tuple[int, Signal]]]]:
        return {}

    @cached_property
    def memberships(self) -> Counter[Process]:
        """In how many communicators each process is."""
        return Counter(m.process for m in self.members)

    def nodes_count(self, comm: str) -> int | None:
        """Machines of a communicator: as NCCL counts them, else by the names of its members.

        NCCL's own count wins: pods of one machine have different names. None where neither all
        members were seen nor NCCL says so.
        """
        members = self.comms.get(comm, [])
        stated = [m.nodes_count for m in members if m.nodes_count is not None]
        if stated:
            return max(stated)
        names = {m.node for m in members if m.node is not None}
        if len(names) > 1:
            return len(names)
        ranks = {m.group_rank for m in members}
        is_whole = bool(members) and len(ranks) >= members[0].size
        return len(names) if is_whole and names else None

    def spanning(self) -> list[str]:
        """Communicators that are known to span machines."""
        return [c for c in self.comms if (self.nodes_count(c) or 0) > 1]

    def once(self, make: Callable[[Nccl], M]) -> M:
        """What a function makes of the logs: made once for the rule that is asked."""
        if make not in self._made:
            self._made[make] = make(self)
        return cast("M", self._made[make])

    @cached_property
    def _made(self) -> dict[Callable[[Nccl], object], object]:
        return {}

    def settings(self, name: str) -> list[Signal]:
        """Processes that had this variable set."""
        return [s for s in self.of("env") if s.given.get("name") == name]

    def hosts(self, members: Iterable[Member]) -> tuple[str, ...]:
        """Hosts of members, sorted."""
        return tuple(sorted({safe(m.node) for m in members if m.node is not None}))

    def world_ranks(self, members: Iterable[Member]) -> tuple[int, ...]:
        """Their ranks in the job; empty unless all are proved."""
        given = [m.world_rank for m in members]
        known = [rank for rank in given if rank is not None]
        return tuple(sorted(set(known))) if known and len(known) == len(given) else ()

    def member(self, comm: str | None, rank: int | None) -> Member | None:
        """The member of a communicator with that rank."""
        return None if comm is None else self._by_rank.get((comm, rank))

    @cached_property
    def _by_rank(self) -> dict[tuple[str, int | None], Member]:
        return {(m.comm, m.group_rank): m for m in reversed(self.members)}

    def label(self, members: Sequence[Member]) -> str:
        """``ranks 3,5`` of the job where proved, else of the communicator of so many."""
        world = self.world_ranks(members)
        ranks = world or tuple(sorted({m.group_rank for m in members if m.group_rank is not None}))
        word = "rank" if len(ranks) == 1 else "ranks"
        where = "" if world or not members else f" of a communicator of {members[0].size}"
        return f"{word} {ranges(ranks)}{where}"

    def evidence(
        self,
        name: str,
        value: float,
        unit: str,
        query: str,
        at: Iterable[Member | Signal | Link] = (),
        threshold: float | None = None,
    ) -> Evidence:
        """A number with the lines that it comes from."""
        return Evidence(name, value, unit, threshold=threshold, query=query, rows=self.places(at))

    def lines(self, name: str, signals: Sequence[Signal]) -> tuple[Evidence, ...]:
        """How many lines say it, and which; nothing where none does."""
        many = sum(s.count for s in signals)
        return (self.evidence(name, many, "lines", "nccl_signals", signals),) if signals else ()

    def places(self, at: Iterable[Member | Signal | Link]) -> tuple[EvidenceRow, ...]:
        """The lines in which these stand."""
        rows = ({"source_id": logged.source_id, "place": logged.place} for logged in at)
        return self.facts.places(rows, unit="line ")


def no_logs(facts: Facts) -> RuleOutcome:
    """The outcome without NCCL logs."""
    return facts.lacking(NEEDS, CAPTURE)


def log_scope(
    ranks: Iterable[int] = (),
    hosts: Iterable[str] = (),
    devices: Iterable[str] = (),
) -> Scope:
    """What a log names; it has no steps."""
    return Scope(
        ranks=tuple(ranks),
        hosts=tuple(hosts),
        devices=tuple(devices),
        identity_source="log",
    )


def majority(values: Iterable[object]) -> object | None:
    """The value that more than half have; None without one."""
    counted = Counter(values)
    if not counted:
        return None
    value, count = counted.most_common(1)[0]
    return value if 2 * count > counted.total() else None


def number(given: dict[str, str], name: str) -> float | None:
    """A field as a number."""
    try:
        return float(given[name])
    except (KeyError, ValueError):
        return None


def _int(value: object) -> int | None:
    return None if value is None else int(str(value))


def _members(rows: Sequence[Row]) -> list[Member]:
    return [_member(r) for r in rows]


def _links(rows: Sequence[Row]) -> list[Link]:
    return [_link(r) for r in rows]


class _Signals:
    """Messages, of which only the kinds that a rule asks for become objects: most of them say on
    every rank what no rule asks."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            self._rows[str(row["code"])].append(row)
        self._made: dict[str, list[Signal]] = {}

    def of(self, code: str) -> list[Signal]:
        if code not in self._made:
            self._made[code] = [_signal(r) for r in self._rows.get(code, ())]
        return self._made[code]


def _member(r: Row) -> Member:
    return Member(
        str(r["comm"]), _int(r["group_rank"]), _int(r["world_rank"]), r["node"], _int(r["pid"]),
        int(r["group_size"]), _int(r["nodes_count"]), r["pci"], _int(r["channels_count"]),
        r["nccl_version"], _int(r["init_dur_ns"]), r["state"], int(r["source_id"]),
        int(r["place"]),
    )  # fmt: skip


def _signal(r: Row) -> Signal:
    given = dict(f.split("=", 1) for f in r["fields"] or () if "=" in f)
    return Signal(
        str(r["code"]), str(r["severity"]), given, r["node"], _int(r["pid"]), r["comm"],
        int(r["occurrences_count"]), int(r["source_id"]), int(r["place"]),
    )  # fmt: skip


def _link(r: Row) -> Link:
    return Link(
        r["comm"], _int(r["from_rank"]), r["from_node"], _int(r["to_rank"]), r["to_node"],
        r["transport"], str(r["detail"] or ""), r["nics"], r["is_gpudirect"],
        int(r["channels_count"]), int(r["source_id"]), int(r["place"]),
    )  # fmt: skip
