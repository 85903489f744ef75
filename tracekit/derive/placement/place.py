"""Who the files belong to: which of them count, their attempts and captures, hosts and clocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tracekit.derive.placement import hosts, log_jobs, ranks, timer_jobs
from tracekit.derive.placement.attempt_rows import run_row
from tracekit.derive.placement.attempts import (
    Group,
    ambiguous,
    captures,
    conflict,
    number_attempts,
    partition,
    split_attempts,
)
from tracekit.derive.placement.sources import RANK_KINDS, USABLE, Source, read_sources
from tracekit.derive.stage import Done, Given, arrow
from tracekit.values import MAX_RANKS

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tracekit.derive.placement.timer_jobs import TimerJob


class Placed(Struct, frozen=True):
    """The sources that count, as nothing after this changes them."""

    sources: list[Source]
    used: list[Source]
    """Ranks' own traces among them."""
    context: pa.Table
    """Of those: source_id, attempt, rank, capture_id, clock_id."""
    timers: TimerJob | None
    run: pa.Table
    host: pa.Table
    host_alias: pa.Table
    clock: pa.Table


def place(given: Given, done: Done) -> Placed:
    """The first stage: every file's rank, attempt, capture, host and clock."""
    con, job, notes = given.con, given.job, given.notes
    sources = read_sources(con)
    if "device" in given.filled:
        _apply_devices(con, sources)
    notes += _not_believed(sources)
    ranks.apply_job(sources, job, notes, given.folders)
    _choose_used(sources, notes)
    attempts = _place(sources, given.attempt, notes)
    timers = None
    if "pipeline_timer" in given.filled:
        timers = timer_jobs.choose(con, sources, given.attempt)
    log_jobs.choose(given, sources)
    sources = [s for s in sources if not s.is_left_out]
    aliases = hosts.resolve(sources, job, notes)
    clocks = hosts.assign_clocks(sources, job)
    used = [s for s in sources if s.is_used]
    return Placed(
        sources=sources,
        used=used,
        context=_context(used),
        timers=timers,
        run=arrow("run", [run_row(a, job, notes) for a in attempts]),
        host=arrow("host", hosts.host_rows(sources)),
        host_alias=arrow("host_alias", aliases),
        clock=arrow("clock", clocks),
    )


def _context(used: list[Source]) -> pa.Table:
    import pyarrow as pa

    columns = ("source_id", "attempt", "rank", "capture_id", "clock_id")
    return pa.table({c: pa.array([getattr(s, c) for s in used], pa.int32()) for c in columns})


def _not_believed(sources: Iterable[Source]) -> list[str]:
    claims = [s for s in sources if s.claimed_world is not None]
    if not claims:
        return []
    more = f" and {len(claims) - 1} more" if len(claims) > 1 else ""
    return [
        f"{claims[0].path}{more}: a world of {claims[0].claimed_world:,} ranks is not believed "
        f"(limit {MAX_RANKS:,})"
    ]


def _choose_used(sources: list[Source], notes: list[str]) -> None:
    """Mark the ranks' own traces that are usable, and given once."""
    seen: dict[str, Source] = {}
    for source in sources:
        if source.kind not in RANK_KINDS or source.status not in USABLE:
            continue
        twin = seen.setdefault(source.sha256, source) if source.sha256 else source
        if twin is source:
            source.is_used = True
        else:
            source.is_left_out = True
            notes.append(f"{source.path} holds the same bytes as {twin.path}: counted once")
    _leave_out_other_exports(sources, notes)


def _leave_out_other_exports(sources: list[Source], notes: list[str]) -> None:
    """Of several exports of one capture, all but the one that holds most.

    A report may be exported more than once, with payloads and without: the same process began at
    the same nanosecond. Equal pids alone are equal in every container.
    """
    same: dict[tuple[object, ...], list[Source]] = defaultdict(list)
    for source in sources:
        if source.is_used and source.kind == "nsys" and source.pids and source.start_ns:
            same[source.host_name, source.pids, source.start_ns].append(source)
    for group in same.values():
        best = min(
            group,
            key=lambda s: (
                s.status != "ok",
                s.file_rank is None,
                s.world_size is None,
                -(s.rows_count or 0),
                s.order,
            ),
        )
        for source in group:
            if source is not best:
                source.is_used, source.is_left_out = False, True
                notes.append(
                    f"{source.path} is another export of the capture in {best.path}: counted once"
                )


def _place(sources: list[Source], attempt: int | None, notes: list[str]) -> list[list[Group]]:
    """Give the used sources their attempts and captures; returns the attempts."""
    groups: dict[int | None, Group] = defaultdict(list)
    for source in sources:
        if source.is_used:
            groups[source.forced_attempt].append(source)
        else:
            source.attempt = source.forced_attempt
    why: str | None = None
    broken: dict[int, str] = {}
    placed: list[tuple[int | None, list[list[Group]]]] = []
    for forced, group in sorted(groups.items(), key=lambda g: (g[0] is None, g[0] or 0)):
        parts = [group] if forced is not None else partition(group)
        if len(parts) > 1:
            why = conflict(group)
        for part in parts:
            clash = conflict(part, is_given=forced is not None)
            if clash is not None:
                broken[part[0].source_id] = clash
                placed.append((forced, [[part]]))
                continue
            ranks.assign_missing(part, notes)
            captured = captures(part)
            placed.append((forced, [captured] if forced else split_attempts(captured)))
    attempts = number_attempts(placed)
    chosen = attempts if why is None else [a for a in attempts if a[0][0].attempt == attempt]
    if not chosen and why is not None:
        raise ambiguous(why, attempts)
    for each in chosen:
        if each[0][0].source_id in broken:
            raise ambiguous(broken[each[0][0].source_id], [each])
    if why is None and len(attempts) > 1:
        notes.append(
            f"{len(attempts)} attempts: between captures ranks became other processes or moved to "
            "other hosts; nothing is compared across them"
        )
    for source in (s for a in attempts if a not in chosen for c in a for s in c):
        source.is_used, source.is_left_out = False, True
    return chosen


def _apply_devices(con: duckdb.DuckDBPyConnection, sources: list[Source]) -> None:
    """Per source: the physical id and the model of the one device that it uses.

    The id is null where several are used; the model also where they differ. A source that marks
    no device as used has the model that all its devices share, and the id if it has but one.
    """
    rows = con.execute(
        "SELECT source_id, ordinal, coalesce(uuid, pci), model, is_used FROM device"
    ).fetchall()
    listed: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for source_id, *device in rows:
        listed[source_id].append(tuple(device))
    for source in sources:
        devices = listed.get(source.source_id, [])
        devices = [d for d in devices if d[3]] or devices
        ordinals, ids, models = ({d[i] for d in devices} - {None} for i in range(3))
        source.device_id = min(ids, default=None) if len(ordinals) == 1 else None
        source.gpu_model = models.pop() if len(models) == 1 else None
