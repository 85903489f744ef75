"""The sources as the derive step sees them: one object a file, facts first, findings after."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from tracekit.values import MAX_RANKS
from tracekit.wording import natural

if TYPE_CHECKING:
    import duckdb

RANK_KINDS = frozenset({"kineto", "nsys"})
"""Kinds of source that are one rank's own trace: only these make ranks, captures, attempts."""

USABLE = frozenset({"ok", "partial"})
"""Statuses of sources that hold rows to analyse."""

SAME_WINDOW_RATIO = 0.01
"""Windows that overlap by less than this share of the shorter one follow each other: GPU work
that outlives a window may reach into the next one of the same process."""


class Source(Struct, eq=False):
    """One row of ``source`` with its processes, and what is derived of it."""

    source_id: int
    path: str
    kind: str | None
    sha256: str | None
    time_basis: str | None
    resolution_ns: int | None
    start_ns: int | None
    end_ns: int | None
    status: str | None
    file_rank: int | None
    name_rank: int | None
    world_size: int | None
    host_name: str | None
    trace_id: str | None
    rows_count: int | None = None
    versions: tuple[str, ...] = ()
    pids: frozenset[int] = frozenset()
    local_rank: int | None = None
    device_id: str | None = None
    gpu_model: str | None = None
    order: tuple[object, ...] = ()
    """Sort key: natural order of paths."""

    is_used: bool = False
    """A rank's own trace, usable, no duplicate, selected."""
    is_left_out: bool = False
    """A rank's own trace that must not count: a second copy, or not selected."""
    forced_attempt: int | None = None
    rank: int | None = None
    rank_source: str | None = None
    attempt: int | None = None
    capture_id: int | None = None
    host: str | None = None
    host_source: str | None = None
    clock_id: int | None = None
    shift_ns: int = 0
    """Added to its times for that."""
    claimed_world: int | None = None
    """A world size that is not believed."""
    tick_ns: int | None = None
    """Time between the rounds that its rows count; None where its times are times."""

    @property
    def folder(self) -> str:
        """Folder (or archive) that holds it."""
        return self.path[: max(self.path.rfind(c) for c in "/\\!") + 1].rstrip("/\\!")

    @property
    def identity(self) -> tuple[object, ...]:
        """What stays the same over the captures of one process."""
        if self.rank is not None:
            return ("rank", self.rank)
        if self.pids:
            return ("process", self.host_name or "", *sorted(self.pids))
        return ("path", self.path)


def read_sources(con: duckdb.DuckDBPyConnection) -> list[Source]:
    """All sources, in natural order of their paths."""
    rows = con.execute(
        """
        SELECT source_id, coalesce(path, ''), kind, sha256, time_basis, time_resolution_ns,
               window_start_ns, window_end_ns, status, file_rank, name_rank, world_size,
               host_name, trace_id, rows_count, versions
        FROM source
        """
    ).fetchall()
    sources: dict[int, Source] = {}
    for *facts, versions in rows:
        source = Source(*facts)
        source.versions = tuple(v for v in versions or () if v)
        sources[source.source_id] = source
    for source in sources.values():
        source.order = (natural(source.path), source.source_id)
        _distrust(source)
    for source_id, pids, local_rank in _processes(con):
        if source_id in sources:
            sources[source_id].pids, sources[source_id].local_rank = pids, local_rank
    return sorted(sources.values(), key=lambda s: s.order)


def _processes(
    con: duckdb.DuckDBPyConnection,
) -> Iterator[tuple[int, frozenset[int], int | None]]:
    """Per source: the pids of the training process, and its local rank.

    The pid that set the step markers is the best evidence; then the processes that the file
    names, less 0, 1, 2, ...: the PyTorch profiler names a process for each device ordinal; then
    the pids of any ranges.
    """
    markers: dict[int, set[int]] = defaultdict(set)
    others: dict[int, set[int]] = defaultdict(set)
    named: dict[int, set[int]] = defaultdict(set)
    local_ranks: dict[int, set[int]] = defaultdict(set)
    # Two plain statements: one that joins and aggregates takes ten times as long to plan.
    ranges = """
        SELECT DISTINCT source_id, pid, coalesce(domain = 'profiler_step', false) AS is_marker
        FROM annotation WHERE pid IS NOT NULL AND NOT coalesce(is_gpu_twin, false)
    """
    for source_id, pid, is_marker in con.execute(ranges).fetchall():
        others[source_id].add(pid)
        if is_marker:
            markers[source_id].add(pid)
    listed = con.execute("SELECT source_id, pid, local_rank FROM process").fetchall()
    for source_id, pid, local_rank in listed:
        if pid is not None:
            named[source_id].add(pid)
        if local_rank is not None:
            local_ranks[source_id].add(local_rank)
    for source_id in {*others, *(row[0] for row in listed)}:
        ordinal = 0
        while ordinal in named[source_id]:
            named[source_id].discard(ordinal)
            ordinal += 1
        known = local_ranks[source_id]
        yield (
            source_id,
            frozenset(markers[source_id] or named[source_id] or others[source_id]),
            next(iter(known)) if len(known) == 1 else None,
        )


def _distrust(source: Source) -> None:
    """Forget what cannot be meant: windows without an order, a world without ranks."""
    start, end = source.start_ns, source.end_ns
    if start is None or end is None or end < start or source.time_basis == "none":
        source.start_ns = source.end_ns = None
    if source.world_size is not None and not 1 <= source.world_size <= MAX_RANKS:
        source.claimed_world = source.world_size
        source.world_size = None


def is_comparable(a: Source, b: Source) -> bool:
    """Whether the windows of both can be put in one order."""
    return a.start_ns is not None and b.start_ns is not None and a.time_basis == b.time_basis


def is_overlapping(a: Source, b: Source) -> bool:
    """Whether two windows that are comparable cover the same time (beyond a small tail)."""
    if a.start_ns is None or a.end_ns is None or b.start_ns is None or b.end_ns is None:
        return False
    shared = min(a.end_ns, b.end_ns) - max(a.start_ns, b.start_ns)
    shorter = min(a.end_ns - a.start_ns, b.end_ns - b.start_ns)
    return shared > SAME_WINDOW_RATIO * shorter
