"""Which files are one attempt of the job, and which windows are one capture.

- Files *conflict* when they state different world sizes, when one rank has two windows that overlap
  (or cannot be compared), or when half a year lies between them: they cannot be one attempt. Then
  the candidates are named.
- A *capture* is one window of all ranks: windows that overlap, whoever they belong to, so that
  a rank that misses one does not shift the numbers of the others.
- A new *attempt* begins with the first capture in which a rank has another process, another
  host or another GPU model than before. Where none is known, captures stay in one attempt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise

from tracekit.derive.placement.sources import Source, is_comparable, is_overlapping
from tracekit.errors import AmbiguousInputError
from tracekit.wording import some_ranges

CLOCK_SKEW_NS = 5_000_000_000
"""Windows of different hosts that miss each other by less may be one capture: wall clocks of
badly kept hosts differ by seconds. Windows of one host are never joined."""

MAX_JOB_GAP_NS = 180 * 86400 * 10**9
"""Captures that lie further apart are of different jobs. No training run is known that took half a
year; hours, days and weeks lie between captures of one job, a restart and the next."""

CLOCK_SET_NS = 1_420_070_400 * 10**9
"""2015, before any profiler whose traces are read here: what lies before it was recorded on a clock
that nobody had set, and says nothing about when."""

MAX_LAYERS = 32
"""Candidates that are dealt out by path; the last one takes all that is left."""

MAX_CANDIDATES = 8
"""Candidates that an error names before it only counts them."""

Group = list[Source]

_SEPARATORS: tuple[Callable[[Source], Hashable], ...] = (
    lambda s: s.world_size,
    lambda s: s.folder,
    lambda s: s.trace_id,
    lambda s: s.host_name,
)
"""What may tell two jobs apart, the strongest first."""


# --- conflicts ----------------------------------------------------------------------------------


def conflict(group: Sequence[Source], *, is_given: bool = False) -> str | None:
    """Why these files cannot be one job's, in words; None when they can.

    ``is_given``: the job description says that they are one attempt, so no time is too long.
    """
    worlds = sorted({s.world_size for s in group if s.world_size is not None})
    if len(worlds) > 1:
        text = ", ".join(map(str, worlds[:4])) + (", ..." if len(worlds) > 4 else "")
        return f"they state different world sizes ({text})"
    groups = [] if is_given else eras(group)
    if len(groups) > 1:
        days = [_gap_ns(a, b) // (86400 * 10**9) for a, b in pairwise(groups)]
        return f"{max(days)} days lie between them"
    for rank, members in sorted(_by_rank(group).items()):
        if worlds and rank >= worlds[0]:
            return f"{members[0].path} is rank {rank} of a job of {worlds[0]} ranks"
        for a, b in _clashes(members):
            if is_comparable(a, b):
                return f"rank {rank} has two overlapping windows ({a.path}, {b.path})"
            return f"rank {rank} has two files without comparable times ({a.path}, {b.path})"
    return None


def eras(group: Iterable[Source], gap_ns: int = MAX_JOB_GAP_NS) -> list[Group]:
    """Files that no job can have recorded all of, by when they were; one era where it can.

    More than ``gap_ns`` lies between two. Files whose clock says nothing about when are in none.
    """
    timed = sorted((s for s in group if _is_dated(s)), key=lambda s: (s.start_ns or 0, s.order))
    groups: list[Group] = []
    end = 0
    for source in timed:
        if groups and (source.start_ns or 0) - end <= gap_ns:
            groups[-1].append(source)
        else:
            groups.append([source])
        end = max(end, source.end_ns or 0)
    return groups


def _is_dated(source: Source) -> bool:
    return source.time_basis == "epoch" and (source.start_ns or 0) >= CLOCK_SET_NS


def _gap_ns(before: Group, after: Group) -> int:
    return min(s.start_ns or 0 for s in after) - max(s.end_ns or 0 for s in before)


def _by_rank(group: Iterable[Source]) -> dict[int, Group]:
    ranks: dict[int, Group] = defaultdict(list)
    for source in group:
        if source.rank is not None:
            ranks[source.rank].append(source)
    return ranks


def _clashes(members: Sequence[Source]) -> Iterable[tuple[Source, Source]]:
    """Pairs of neighbours (by start) that cannot both be windows of one rank."""
    ordered = sorted(members, key=lambda s: (s.time_basis or "", s.start_ns or 0, s.order))
    # The earliest window to end last is what a later one may still overlap.
    reach = ordered[0]
    for source in ordered[1:]:
        if not is_comparable(reach, source) or is_overlapping(reach, source):
            yield reach, source
        if (source.end_ns or 0) >= (reach.end_ns or 0) or not is_comparable(reach, source):
            reach = source


def partition(group: Group) -> list[Group]:
    """The group itself when it can be one job's, else the candidates that can.

    The separator that leaves the fewest candidates is taken; where none is enough, files are
    dealt out in order of their paths.
    """
    if conflict(group) is None:
        return [group]
    options = []
    era_of = {id(s): i for i, era in enumerate(eras(group)) for s in era}

    def by_era(source: Source) -> Hashable:
        return era_of.get(id(source))

    for key in (*_SEPARATORS, by_era):
        parts = _split(group, key)
        if len(parts) > 1 and all(conflict(p) is None for p in parts):
            options.append(parts)
    if options:
        return min(options, key=len)
    for key in (_SEPARATORS[0], by_era):
        parts = _split(group, key)
        if len(parts) > 1:
            return [smaller for part in parts for smaller in partition(part)]
    return _deal(group)


def _split(group: Group, key: Callable[[Source], Hashable]) -> list[Group]:
    parts: dict[Hashable, Group] = defaultdict(list)
    for source in group:
        parts[key(source)].append(source)
    return list(parts.values())


def _deal(group: Group) -> list[Group]:
    layers: list[dict[int | None, Group]] = []
    worlds = [s.world_size for s in group if s.world_size is not None]
    outside = [s for s in group if s.rank is not None and worlds and s.rank >= worlds[0]]
    for source in (s for s in group if s not in outside):
        for layer in layers:
            members = [*layer.get(source.rank, ()), source]
            is_full = layer is layers[-1] and len(layers) == MAX_LAYERS
            if source.rank is None or is_full or not any(_clashes(members)):
                layer[source.rank] = members
                break
        else:
            layers.append({source.rank: [source]})
    dealt = [[s for members in layer.values() for s in members] for layer in layers]
    return [sorted(d, key=lambda s: s.order) for d in dealt] + ([outside] if outside else [])


# --- captures -----------------------------------------------------------------------------------


def clusters(group: Group) -> list[Group]:
    """Files that cover the same time, in order of time; those without epoch times last.

    Windows on an unknown zero say nothing about other hosts: they are one cluster, and so are
    files without times.
    """
    timed = sorted(
        (s for s in group if s.start_ns is not None and s.time_basis == "epoch"),
        key=lambda s: (s.start_ns or 0, s.order),
    )
    groups: list[Group] = []
    end = 0
    for source in timed:
        if groups and (source.start_ns or 0) < end:
            groups[-1].append(source)
        else:
            groups.append([source])
            end = source.end_ns or 0
        end = max(end, source.end_ns or 0)
    merged: list[Group] = []
    for cluster in groups:
        if merged and _is_skewed(merged[-1], cluster):
            merged[-1] = merged[-1] + cluster
        else:
            merged.append(cluster)
    rest = [s for s in group if s.start_ns is None or s.time_basis != "epoch"]
    return merged + ([rest] if rest else [])


def _is_skewed(before: Group, after: Group) -> bool:
    """Whether two clusters are one capture on hosts whose clocks differ."""
    gap = min(s.start_ns or 0 for s in after) - max(s.end_ns or 0 for s in before)
    if gap > CLOCK_SKEW_NS:
        return False
    hosts = [{s.host_name for s in c} for c in (before, after)]
    ranks = [{s.identity for s in c} for c in (before, after)]
    known = None not in hosts[0] | hosts[1]
    return known and not hosts[0] & hosts[1] and not ranks[0] & ranks[1]


def captures(group: Group) -> list[Group]:
    """The captures of a group whose ranks are all assigned, in order; each rank once in each."""
    groups: list[Group] = []
    for cluster in clusters(group):
        if any(s.start_ns is None or s.time_basis != "epoch" for s in cluster):
            _add_by_order(groups, cluster)
        else:
            groups += _untangle(cluster)
    return groups


def _untangle(cluster: Group) -> list[Group]:
    """A cluster in which skewed clocks bridge several captures, taken apart.

    The rank with the most windows is the measure; each window of another rank goes to the
    nearest of its windows, in order.
    """
    ranks = _by_rank(cluster)
    most = max(len(m) for m in ranks.values())
    if most == 1:
        return [cluster]
    measure = min(r for r, m in ranks.items() if len(m) == most)
    middles = [_middle(s) for s in sorted(ranks[measure], key=_middle)]
    result: list[Group] = [[] for _ in middles]
    for _, members in sorted(ranks.items()):
        first = 0
        for left, source in zip(
            range(len(members) - 1, -1, -1), sorted(members, key=_middle), strict=True
        ):
            allowed = range(first, most - left)
            best = min(allowed, key=lambda i: (abs(middles[i] - _middle(source)), i))
            result[best].append(source)
            first = best + 1
    return result


def _middle(source: Source) -> int:
    return (source.start_ns or 0) + (source.end_ns or 0)


def _add_by_order(groups: list[Group], cluster: Group) -> None:
    """Windows that cannot be compared over ranks: the k-th of each rank is capture k."""
    for members in _by_rank(cluster).values():
        ordered = sorted(members, key=lambda s: (s.time_basis or "", s.start_ns or 0, s.order))
        index = 0
        for source in ordered:
            while index < len(groups) and any(s.rank == source.rank for s in groups[index]):
                index += 1
            if index == len(groups):
                groups.append([])
            groups[index].append(source)
            index += 1


# --- attempts -----------------------------------------------------------------------------------


def split_attempts(captured: list[Group]) -> list[list[Group]]:
    """Captures, in order, as attempts: lists of captures."""
    attempts: list[list[Group]] = []
    last: dict[int | None, Source] = {}
    for capture in captured:
        if attempts and not any(_is_restarted(last.get(s.rank), s) for s in capture):
            attempts[-1].append(capture)
        else:
            attempts.append([capture])
            last = {}
        last.update({s.rank: s for s in capture})
    return attempts


def _is_restarted(before: Source | None, after: Source) -> bool:
    if before is None:
        return False
    if before.pids and after.pids and not before.pids & after.pids:
        return True
    hosts = (before.host_name, after.host_name)
    models = (before.gpu_model, after.gpu_model)
    return any(None not in pair and pair[0] != pair[1] for pair in (hosts, models))


def number_attempts(groups: Sequence[tuple[int | None, list[list[Group]]]]) -> list[list[Group]]:
    """Give every source its attempt and capture; returns the attempts in order of number.

    ``groups`` are pairs of the number that job.toml gives (or None) and the attempts found.
    Numbers that are not given are the lowest free ones, in order of time.
    """
    numbered: dict[int, list[Group]] = {}
    for forced, attempts in groups:
        if forced is not None:
            numbered[forced] = [c for a in attempts for c in a]
    waiting = sorted((a for forced, each in groups if forced is None for a in each), key=_begin)
    number = 1
    for attempt in waiting:
        while number in numbered:
            number += 1
        numbered[number] = attempt
    for number, attempt in sorted(numbered.items()):
        for index, capture in enumerate(attempt):
            for source in capture:
                source.attempt, source.capture_id = number, index
    return [numbered[n] for n in sorted(numbered)]


def _begin(attempt: list[Group]) -> tuple[object, ...]:
    first = min(
        (s for c in attempt for s in c),
        key=lambda s: (s.time_basis != "epoch", s.start_ns is None, s.start_ns or 0, s.order),
    )
    return (first.time_basis != "epoch", first.start_ns is None, first.start_ns or 0, first.order)


# --- saying so ----------------------------------------------------------------------------------


def ambiguous(why: str, attempts: Sequence[list[Group]]) -> AmbiguousInputError:
    """The error that names the candidates, as --attempt numbers them."""
    lines = [_describe([s for c in a for s in c]) for a in attempts[:MAX_CANDIDATES]]
    if len(attempts) > MAX_CANDIDATES:
        lines.append(f"  and {len(attempts) - MAX_CANDIDATES} more")
    return AmbiguousInputError(
        f"these files cannot be one attempt of one job: {why}. Candidates:\n" + "\n".join(lines),
        hint="choose one with --attempt, or give one folder; "
        "if they are one job, say so in job.toml ([[source]] path, rank, attempt)",
    )


def _describe(members: Group) -> str:
    members = sorted(members, key=lambda s: s.order)
    worlds = sorted({s.world_size for s in members if s.world_size is not None})
    ranks = sorted({s.rank for s in members if s.rank is not None})
    folders = sorted({s.folder for s in members})
    names = [s.path for s in members[:3]]
    more = f" and {len(members) - 3} more" if len(members) > 3 else ""
    parts = [
        f"world size {worlds[0]}" if worlds else "world size unknown",
        f"ranks {some_ranges(ranks)}" if ranks else "no rank known",
        f"{len(members)} files" if len(members) > 1 else "1 file",
    ]
    if len(folders) == 1 and len(members) > 1:
        parts.append(f"in {folders[0] or '.'}")
    return f"  --attempt {members[0].attempt}: {', '.join(parts)}: {', '.join(names)}{more}"
