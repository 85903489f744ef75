"""Who the members of a communicator are, where each source knows only its own place in it.

Nsight Systems has NCCL's word: a communicator's hash, its size, and the own number within it. The
sources of all members together tell which global rank has which number. A communicator whose
members are all known gets the id that profiler traces give to a group of these ranks, so that
ranks of either kind can meet. Where members are missing, a group that other sources list stands
in, if only one fits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from tracekit.derive.groups import Group
from tracekit.derive.stage import relations
from tracekit.values import group_id

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

Key = tuple[int, str]
"""Attempt and the group's id in the sources."""

_MEMBERS = """
SELECT DISTINCT x.attempt, c.group_id, c.group_size, c.group_rank, x.rank
FROM collective c JOIN derive_context x USING (source_id)
WHERE c.group_id LIKE 'nccl-%'
  AND c.group_rank IS NOT NULL AND c.group_size IS NOT NULL AND x.rank IS NOT NULL
ORDER BY ALL
"""

_USES = """
SELECT DISTINCT x.attempt, c.group_id, c.group_name, c.op
FROM collective c JOIN derive_context x USING (source_id)
WHERE c.group_id IS NOT NULL AND c.group_name IS NOT NULL AND c.op IS NOT NULL
ORDER BY ALL
"""


class Resolved(Struct, frozen=True):
    """A communicator as the whole run shows it."""

    group_id: str
    name: str | None
    """That of the listed group that stands in; null where it keeps its own."""
    members: Mapping[int, int]
    """Global rank by number within the communicator."""


class Communicators(Struct):
    """Those that could be resolved."""

    by_hash: dict[Key, Resolved] = field(default_factory=dict)

    def table(self) -> pa.Table:
        """One row a member: attempt, group_id, group_rank, member, resolved_id, resolved_name."""
        import pyarrow as pa

        rows = [
            (attempt, group_id, number, rank, resolved.group_id, resolved.name)
            for (attempt, group_id), resolved in sorted(self.by_hash.items())
            for number, rank in sorted(resolved.members.items())
        ]
        columns = list(zip(*rows, strict=True)) or [()] * 6
        names = ("attempt", "group_id", "group_rank", "member", "resolved_id", "resolved_name")
        types = (pa.int32(), pa.string(), pa.int32(), pa.int32(), pa.string(), pa.string())
        return pa.table({n: pa.array(c, t) for n, c, t in zip(names, columns, types, strict=True)})

    def applied(self, attempt: int, group: Group) -> Group:
        """A listed group with what is known of its members."""
        resolved = self.by_hash.get((attempt, group.group_id))
        if resolved is None:
            return group
        size = group.size or len(resolved.members)
        is_complete = len(resolved.members) == size
        return Group(
            resolved.group_id,
            tuple(sorted(resolved.members.values())) if is_complete else group.ranks,
            resolved.name or group.name,
            group.description,
            size,
            is_complete,
        )


def resolve(
    con: duckdb.DuckDBPyConnection, context: pa.Table, listed: Mapping[int, Sequence[Group]]
) -> Communicators:
    """Members of the communicators that sources know by hash. ``listed`` groups by attempt."""
    with relations(con, derive_context=context):
        rows = con.execute(_MEMBERS).fetchall()
        used = con.execute(_USES).fetchall() if rows else []
    claims: dict[Key, list[tuple[int, int, int]]] = defaultdict(list)
    for attempt, comm_hash, size, number, rank in rows:
        claims[attempt, comm_hash].append((size, number, rank))
    uses: dict[int, dict[tuple[str, str | None], set[str]]] = defaultdict(lambda: defaultdict(set))
    for attempt, comm_hash, name, op in used:
        uses[attempt][comm_hash, name].add(op)
        uses[attempt][comm_hash, None].add(op)
    resolved = Communicators()
    for (attempt, comm_hash), stated in claims.items():
        comm = _resolved(stated, listed.get(attempt, ()))
        if comm is not None:
            if comm.name is None:
                comm = replace(comm, name=_name(comm_hash, comm.group_id, uses[attempt]))
            resolved.by_hash[attempt, comm_hash] = comm
    return resolved


def _name(
    group_id: str, resolved_id: str, uses: Mapping[tuple[str, str | None], set[str]]
) -> str | None:
    """The one name under which other sources do the same operations among these ranks."""
    everywhere = uses.get((group_id, None), set())
    names = [
        name
        for (listed, name), ops in uses.items()
        if listed == resolved_id and name is not None and ops == everywhere
    ]
    return names[0] if len(names) == 1 else None


def _resolved(stated: Sequence[tuple[int, int, int]], listed: Sequence[Group]) -> Resolved | None:
    sizes = {size for size, _, _ in stated}
    members = {number: rank for _, number, rank in stated}
    is_consistent = len(sizes) == 1 and len(members) == len(stated) == len(set(members.values()))
    if not is_consistent:
        return None  # one hash for two communicators, or a rank that claims two places
    size = sizes.pop()
    if len(members) == size and min(members) == 0 and max(members) == size - 1:
        return Resolved(group_id([*members.values()]), None, members)
    fitting = [
        g
        for g in listed
        if g.is_complete
        and len(g.ranks) == size
        and all(number < size and g.ranks[number] == rank for number, rank in members.items())
    ]
    if len({g.ranks for g in fitting}) != 1:
        return None
    # Several of the same ranks: matching tells them apart by who calls what.
    name = fitting[0].name if len(fitting) == 1 else None
    return Resolved(fitting[0].group_id, name, dict(enumerate(fitting[0].ranks)))
