"""Which files of pipeline timers are one job's.

Their times start at 0 in every step and no file names its job, so jobs are told apart by what they
contradict: the same operation of the same step at another time, or a rank with another place in the
layout. Files that split a job by rank or by step share nothing, and stay together.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tracekit.derive.placement.attempts import ambiguous
from tracekit.derive.placement.sources import USABLE, Source

if TYPE_CHECKING:
    import duckdb

KIND = "pipeline_timers"
_OTHER_TIMES = """
SELECT DISTINCT list_sort(list(DISTINCT source_id)) FROM pipeline_timer
GROUP BY global_rank, step, operation, sequence
HAVING count(DISTINCT source_id) > 1
   AND (min(start_ns) <> max(start_ns) OR min(end_ns) <> max(end_ns))
"""
_OTHER_PLACES = """
SELECT DISTINCT list_sort(list(DISTINCT source_id)) FROM pipeline_timer
GROUP BY global_rank
HAVING count(DISTINCT source_id) > 1
   AND (count(DISTINCT pp_rank) > 1 OR count(DISTINCT dp_rank) > 1)
"""


class TimerJob(NamedTuple):
    """The files of timers of one job."""

    attempt: int
    source_ids: list[int]


def choose(
    con: duckdb.DuckDBPyConnection, sources: list[Source], attempt: int | None
) -> TimerJob | None:
    """The timers that count, None where there are none; those of other jobs are left out.

    Files that are of several jobs are numbered as attempts are, and ``attempt`` chooses one;
    without it AmbiguousInputError names them.
    """
    timers = [s for s in sources if s.kind == KIND and s.status in USABLE]
    whole = TimerJob(1, [s.source_id for s in timers])
    if len(timers) < 2:
        return whole if timers else None
    clashes, why = _clashes(con)
    twins: dict[object, list[Source]] = defaultdict(list)
    for source in timers:
        twins[source.forced_attempt, source.sha256 or source.source_id].append(source)
    jobs: list[list[Source]] = []
    for same in twins.values():
        first = same[0]
        for job in jobs:
            if first.forced_attempt != job[0].forced_attempt:
                continue
            if first.forced_attempt is not None or not any(
                frozenset((first.source_id, other.source_id)) in clashes for other in job
            ):
                job.extend(same)
                break
        else:
            jobs.append(list(same))
    if len(jobs) == 1:
        return whole
    numbers = {j[0].forced_attempt for j in jobs} - {None}
    free = (n for n in range(1, len(jobs) + len(numbers) + 1) if n not in numbers)
    for job in jobs:
        number = job[0].forced_attempt or next(free)
        for source in job:
            source.attempt = number
    chosen = [j for j in jobs if j[0].attempt == attempt]
    if not chosen:
        raise ambiguous(
            why or "the job description gives them different attempts",
            [[j] for j in sorted(jobs, key=lambda j: j[0].attempt or 0)],
        )
    for source in (s for j in jobs if j is not chosen[0] for s in j):
        source.is_left_out = True
    return TimerJob(chosen[0][0].attempt or 1, [s.source_id for s in chosen[0]])


def _clashes(con: duckdb.DuckDBPyConnection) -> tuple[set[frozenset[int]], str | None]:
    """Pairs of sources that cannot be of one job, and why."""
    clashes: set[frozenset[int]] = set()
    why: str | None = None
    for statement, words in (
        (_OTHER_PLACES, "timer files give a rank different places in the layout"),
        (_OTHER_TIMES, "timer files give one operation different times"),
    ):
        for (ids,) in con.execute(statement).fetchall():
            why = why or words
            clashes |= {frozenset((a, b)) for a in ids for b in ids if a != b}
    return clashes, why
