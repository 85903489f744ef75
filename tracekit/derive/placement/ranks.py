"""Which rank a file is: job.toml, else the file, else its name, else the next free number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tracekit.derive.notes import ASSIGNED_WORDS
from tracekit.derive.placement.attempts import Group, clusters
from tracekit.derive.placement.hosts import canonical
from tracekit.derive.placement.sources import RANK_KINDS, Source, is_overlapping
from tracekit.derive.placement.timebase import apply_times, assume_utc, time_notes
from tracekit.errors import AmbiguousInputError

if TYPE_CHECKING:
    from tracekit.job import JobDescription


def apply_job(
    sources: list[Source],
    job: JobDescription | None,
    notes: list[str],
    folders: Mapping[int, str],
) -> None:
    """Ranks, hosts and attempts that job.toml gives for files; then ranks that files state.

    Ranks of files that are no rank's own trace come from job.toml only.
    """
    by_path = by_rank_path = None
    if job is not None:
        from tracekit.job import PathMatcher, said_of

        by_path, by_rank_path = PathMatcher(job.source), PathMatcher(job.rank)
    for source in sources:
        folder = folders.get(source.source_id)
        path = f"{folder}/{source.path}" if folder else source.path
        entry = said_of(by_path, path) if by_path else None
        listed = by_rank_path.find(path) if by_rank_path else None
        given = entry.rank if entry is not None and entry.rank is not None else None
        given = listed.rank if given is None and listed is not None else given
        if given is not None:
            source.rank, source.rank_source = given, "job_toml"
        elif source.kind in RANK_KINDS:
            _own_rank(source, notes)
        if entry is not None:
            source.forced_attempt = entry.attempt
            if entry.host is not None:
                source.host, source.host_source = canonical(entry.host), "job_toml"
        apply_times(source, entry)
    notes += assume_utc(sources) + time_notes(sources)
    for matcher, name in ((by_path, "source"), (by_rank_path, "rank")):
        notes += [
            f"job description: [[{name}]] path {e.path!r} matches none of the files"
            for e in (matcher.unused() if matcher else ())
        ]


def _own_rank(source: Source, notes: list[str]) -> None:
    stated, named = _valid(source.file_rank), _valid(source.name_rank)
    if stated is not None:
        source.rank, source.rank_source = stated, "file"
        if named is not None and named != stated:
            notes.append(f"{source.path}: its name suggests rank {named}, it states rank {stated}")
    elif named is not None:
        source.rank, source.rank_source = named, "name"


def _valid(rank: int | None) -> int | None:
    return rank if rank is not None and rank >= 0 else None


def assign_missing(group: Group, notes: list[str]) -> None:
    """Give the files of one job that state no rank the next free numbers, in order of paths.

    Numbers are free or not within a window, so that unrelated later files do not become further
    ranks; the windows of one process (host and pid) keep one number. Raises AmbiguousInputError
    when a stated world size leaves no number.
    """
    world = next((s.world_size for s in group if s.world_size is not None), None)
    remembered: dict[tuple[object, ...], int] = {}
    assigned: list[Source] = []
    for cluster in clusters(group):
        taken: dict[int, list[Source]] = {}
        for source in cluster:
            if source.rank is not None:
                taken.setdefault(source.rank, []).append(source)
        free = 0
        for source in sorted((s for s in cluster if s.rank is None), key=lambda s: s.order):
            key = source.identity
            rank = remembered.get(key)
            if rank is None or any(_is_same_window(s, source) for s in taken.get(rank, ())):
                while free in taken:
                    free += 1
                rank = free
            if world is not None and rank >= world:
                raise AmbiguousInputError(
                    f"{source.path} states no rank, and the job of {world} ranks has none left",
                    hint="leave the file out, or give its rank in job.toml ([[source]] path, rank)",
                )
            remembered.setdefault(key, rank)
            source.rank, source.rank_source = rank, "assigned"
            taken.setdefault(rank, []).append(source)
            assigned.append(source)
    if assigned:
        first = min(assigned, key=lambda s: s.order)
        count = f"{len(assigned)} files state" if len(assigned) > 1 else "1 file states"
        notes.append(f"{count} no rank; {ASSIGNED_WORDS} ({first.path} is rank {first.rank})")


def _is_same_window(a: Source, b: Source) -> bool:
    return a.start_ns is None or b.start_ns is None or is_overlapping(a, b)
