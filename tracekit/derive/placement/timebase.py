"""Files whose times need a word of the job description: local times, and rows without any.

A local time without a zone and a row that is merely the third of its file say nothing beside
other files. ``[[source]] timezone`` turns the first into time since the epoch, ``start`` and
``interval`` the second. Without them the file's times are its own (``clock.basis`` is none) and
no query sets them beside the job's.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from tracekit.derive.placement.sources import RANK_KINDS, USABLE, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.job import SourceEntry

MIN_COMMON_RATIO = 0.8
"""Of the shorter of two stretches of time that must be common to both."""
LOG_KINDS = frozenset({"job_log", "nccl", "slurm_jobs"})
"""What a job's containers print, mostly in UTC, and what records it in the same zone."""
LOCAL = "local"
TICKS = "ticks"
ELAPSED = "elapsed"
_ZONE_OF_ALL = '[[source]] path = "*" and timezone = "UTC", or as "Europe/Berlin"'


def apply_times(source: Source, entry: SourceEntry | None) -> None:
    """Put the source on the epoch where its entry says how; else it has no basis to share."""
    if source.time_basis == LOCAL:
        zone = entry.timezone if entry is not None else None
        if zone is not None and source.start_ns is not None and source.end_ns is not None:
            source.shift_ns = -_offset_ns(zone, source.start_ns)
            source.start_ns += source.shift_ns
            source.end_ns += source.shift_ns
            source.time_basis = "epoch"
    elif source.time_basis in (TICKS, ELAPSED) and entry is not None:
        start = entry.start
        if start is not None and start.tzinfo is None and entry.timezone is not None:
            naive_ns = int(start.replace(tzinfo=UTC).timestamp()) * 10**9
            start_ns: int | None = naive_ns - _offset_ns(entry.timezone, naive_ns)
        else:
            start_ns = _epoch_ns(start) if start is not None else None
        if source.time_basis == ELAPSED and start_ns is not None and source.start_ns is not None:
            source.shift_ns = start_ns - source.start_ns
            source.start_ns += source.shift_ns
            source.end_ns = (source.end_ns or 0) + source.shift_ns
            source.time_basis = "epoch"
        elif source.time_basis == TICKS and start_ns is not None and entry.interval is not None:
            interval_ns = round(entry.interval * 1e9)
            source.shift_ns, source.tick_ns = start_ns, interval_ns
            first, last = source.start_ns or 0, source.end_ns or 0
            source.start_ns = start_ns + first * interval_ns
            source.end_ns = start_ns + last * interval_ns
            source.time_basis = "epoch"


def assume_utc(sources: Sequence[Source]) -> list[str]:
    """Take the job's files without a zone as UTC where all their times then fall among the others'.

    Only beside counters and events: a rank's trace would be put at a wrong step where that is
    wrong, while what counters show must begin and end with a slow stretch of the log to be its
    cause. Not where some fall among them and some do not: one zone is all that local times share.
    """
    used = [s for s in sources if s.status in USABLE]
    local = [s for s in used if s.time_basis == LOCAL]
    others = [s for s in used if s.time_basis == "epoch"]
    if any(s.kind in RANK_KINDS for s in used) or not any(s.kind in LOG_KINDS for s in local):
        return []
    other = _hull(others)
    logs, counters = (
        [s for s in local if (s.kind in LOG_KINDS) is wanted] for wanted in (True, False)
    )
    hulls = [_hull(some) for some in (logs, counters) if some]
    if other is None or not all(own is not None and _are_common(own, other) for own in hulls):
        return []
    for source in local:
        source.time_basis = "epoch"
    more = f" and {len(local) - 1} more have" if len(local) > 1 else " has"
    return [
        f"{local[0].path}{more} local times without a zone: taken as UTC, as which they fall among "
        f"those of the other files; if they are not, say whose in job.toml: {_ZONE_OF_ALL}"
    ]


def _are_common(own: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether the shorter of two spans lies in the other, but for a little."""
    common_ns = min(own[1], other[1]) - max(own[0], other[0])
    return common_ns >= MIN_COMMON_RATIO * min(own[1] - own[0], other[1] - other[0])


def _hull(sources: Sequence[Source]) -> tuple[int, int] | None:
    """From the first time of these to the last; None where they state none."""
    spans = [(s.start_ns, s.end_ns) for s in sources]
    known = [(a, b) for a, b in spans if a is not None and b is not None]
    return (min(a for a, _ in known), max(b for _, b in known)) if known else None


def time_notes(sources: Sequence[Source]) -> list[str]:
    """What a reader must know of files whose times could not be placed. Of a log alone nothing: no
    other file is set beside it."""
    used = [source for source in sources if source.status in USABLE]
    if len(used) == 1 and used[0].kind in LOG_KINDS:
        return []
    lost: dict[str, list[str]] = {}
    for source in used:
        if source.time_basis in (LOCAL, TICKS, ELAPSED):
            lost.setdefault(source.time_basis, []).append(source.path)
    words = {
        LOCAL: (("has", "have"), "local times without a zone", "timezone"),
        TICKS: (("states", "state"), "no times", "start and interval"),
        ELAPSED: (("counts", "count"), "time from a beginning that is not stated", "start"),
    }
    notes = []
    for basis, paths in sorted(lost.items()):
        verbs, what, keys = words[basis]
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        who = f"{paths[0]}{more} {verbs[len(paths) > 1]}"
        advice = f"say {keys} in job.toml ([[source]] path, {keys})"
        if basis == LOCAL:
            advice = f"say whose in job.toml beside it: {_ZONE_OF_ALL}"
        beside = "nothing of it is set beside the job"
        if basis == LOCAL and len(paths) > 1 and not any(s.kind in RANK_KINDS for s in sources):
            beside = "set beside each other as if all were of one zone"
        notes.append(f"{who} {what}: {beside}; {advice}")
    return notes


def _epoch_ns(moment: datetime) -> int:
    whole = moment.replace(microsecond=0)
    return int(whole.timestamp()) * 10**9 + moment.microsecond * 1000


def _offset_ns(zone: str, local_ns: int) -> int:
    """What the zone was ahead of UTC then. In the hour that autumn repeats: the first time."""
    if zone[0] in "+-":
        sign = -1 if zone[0] == "-" else 1
        fixed = timezone(sign * timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6])))
        offset: timedelta | None = fixed.utcoffset(None)
    else:
        naive = datetime.fromtimestamp(local_ns // 10**9, UTC).replace(tzinfo=None)
        offset = naive.replace(tzinfo=ZoneInfo(zone)).utcoffset()
    return round((offset or timedelta()).total_seconds()) * 10**9
