"""Which stage and replica of a pipeline a rank is.

In order of trust: the stage in the range's name, a process group that is named for the pipeline,
the job description, and the order in which ranks begin their first forward (the first and the last
stage send and receive half as often as the others).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from tracekit.correction import corrected_sql
from tracekit.derive.infer import group_dimension
from tracekit.wording import plural

if TYPE_CHECKING:
    import duckdb

    from tracekit.job import JobDescription


class Coordinate(Struct, frozen=True):
    """A rank's place in the pipeline."""

    rank: int
    stage: int
    replica: int
    pp: int


Behaviour = tuple[int, int, float, int]
"""Of a rank: sends and receives, how much later than the first rank its first forward of a step
begins (ns, median), and how many forwards it has."""

_BEHAVIOUR = f"""
WITH transfers AS (
    SELECT source_id, count(*) AS transfers FROM derive_transfer GROUP BY source_id
), firsts AS (
    SELECT source_id, r.attempt, r.capture_id, r.step, count(*) AS forwards,
           min({corrected_sql("coalesce(e.start_ns, r.start_ns)", "c")}) AS start_ns
    FROM derive_range r
    JOIN derive_context c USING (source_id)
    LEFT JOIN derive_extent e USING (source_id, place)
    WHERE r.operation = 'forward-compute' GROUP BY ALL
), lags AS (
    SELECT source_id, median(start_ns - first_ns) AS lag_ns, sum(forwards) AS forwards
    FROM (SELECT *, min(start_ns) OVER (PARTITION BY attempt, capture_id, step) AS first_ns
          FROM firsts)
    GROUP BY source_id
)
SELECT c.rank, coalesce(max(t.transfers), 0), min(l.lag_ns), min(l.forwards)::BIGINT
FROM derive_context c JOIN lags l USING (source_id) LEFT JOIN transfers t USING (source_id)
WHERE c.rank IS NOT NULL GROUP BY c.rank ORDER BY c.rank
"""  # noqa: S608 - what is put in is our own

_STAGES = """
SELECT rank, min(stage), count(DISTINCT stage) FROM derive_range WHERE stage IS NOT NULL
GROUP BY rank ORDER BY rank
"""

_GROUPS = """
SELECT c.rank, g.name, g.description, list_position(list_sort(g.ranks), c.rank) - 1, len(g.ranks),
       list_min(g.ranks)
FROM process_group g
JOIN derive_context c USING (source_id)
WHERE g.is_ranks_complete AND len(g.ranks) > 1 AND list_contains(g.ranks, c.rank)
"""


# Steps with two forwards or more and a backward to each, of all steps with ranges.
_ACCUMULATED = """
SELECT count(*) FILTER (forwards = backwards AND forwards > 1), count(*) FROM (
    SELECT source_id, step,
           count(*) FILTER (operation = 'forward-compute') AS forwards,
           count(*) FILTER (operation = 'backward-compute') AS backwards
    FROM derive_range WHERE is_compute GROUP BY source_id, step)
"""
MAX_TRANSFERS_RATIO = 2.5
"""Over forwards, of the first and the last stage: two, and what a window's edge may cut."""
MIN_ACCUMULATED_RATIO = 0.9
"""Of the steps: a window may cut the first and the last."""


def places_of_ranks(
    con: duckdb.DuckDBPyConnection,
    job: JobDescription | None,
    known: Mapping[int, int],
    notes: list[str],
) -> list[Coordinate]:
    """The stage and replica of every rank with microbatches; none where this is no pipeline."""
    behaviour = con.execute(_BEHAVIOUR).fetchall()
    ranks = [int(rank) for rank, *_ in behaviour]
    groups = group_places(con)
    stages, pp = _stages(con, ranks, groups, behaviour, job, known, notes)
    if pp < 2 and _is_one_stage(con, groups, behaviour, job):
        return placed(dict.fromkeys(ranks, 0), groups, job, 1)
    return placed(stages, groups, job, pp) if pp > 1 else []


def _is_one_stage(
    con: duckdb.DuckDBPyConnection,
    groups: Mapping[str, Mapping[int, tuple[int, int]]],
    behaviour: Sequence[Behaviour],
    job: JobDescription | None,
) -> bool:
    """Whether this is no pipeline, and its steps are made of several microbatches."""
    stated = job.parallelism.pp if job is not None else None
    is_stated = stated == 1
    if (stated or 1) > 1 or any(size > 1 for _, size in groups["pp"].values()):
        return False
    if not is_stated and any(transfers for _, transfers, *_ in behaviour):
        return False
    whole, every = con.execute(_ACCUMULATED).fetchall()[0]
    return bool(every and whole >= MIN_ACCUMULATED_RATIO * every)


def placed(
    stages: Mapping[int, int],
    groups: Mapping[str, Mapping[int, tuple[int, int]]],
    job: JobDescription | None,
    pp: int,
) -> list[Coordinate]:
    """The replica of every rank: pipelines in order, each replica as wide as tp.

    Pipelines are told by their group, which names members without a trace too; else by the place in
    the stage, where stages are blocks of ranks; else ranks of a stage are counted.
    """
    tp = job.parallelism.tp if job and job.parallelism.tp else None
    world = job.world_size if job is not None and job.world_size else 0
    block = world // pp if world and world % pp == 0 else 0
    first = groups.get("first", {})
    firsts = sorted({first[r][0] for r in stages if r in first})
    result = []
    by_stage: dict[int, list[int]] = {}
    for rank in sorted(stages):
        by_stage.setdefault(stages[rank], []).append(rank)
    if pp > 1 and all(r in first for r in stages):
        places = {r: firsts.index(first[r][0]) for r in stages}
    elif pp > 1 and block and all(r // block == stage for r, stage in stages.items()):
        places = {r: r % block for r in stages}
    else:
        places = {r: i for members in by_stage.values() for i, r in enumerate(members)}
    for stage, members in by_stage.items():
        width = tp or max((groups["tp"][r][1] for r in members if r in groups["tp"]), default=1)
        result += [Coordinate(r, stage, places[r] // width, pp) for r in members]
    return result


def group_places(con: duckdb.DuckDBPyConnection) -> dict[str, dict[int, tuple[int, int]]]:
    """Per dimension: rank -> its index within its group, and the group's size; under "first" the
    smallest member of its pipeline instead of the index."""
    places: dict[str, dict[int, tuple[int, int]]] = {"pp": {}, "tp": {}, "first": {}}
    for rank, name, description, place, size, first in con.execute(_GROUPS).fetchall():
        dimension = group_dimension(name, description)
        if dimension in ("pp", "tp"):
            places[dimension][rank] = (place, size)
        if dimension == "pp":
            places["first"][rank] = (first, size)
    return places


def _stages(
    con: duckdb.DuckDBPyConnection,
    ranks: list[int],
    groups: dict[str, dict[int, tuple[int, int]]],
    behaviour: Sequence[Behaviour],
    job: JobDescription | None,
    known: Mapping[int, int],
    notes: list[str],
) -> tuple[dict[int, int], int]:
    """Stage by rank, and the number of stages (0: unknown)."""
    named = {
        int(rank): (int(stage), int(chunks))
        for rank, stage, chunks in con.execute(_STAGES).fetchall()
    }
    if named and set(named) == set(ranks):
        # A looped rank holds stages s, s + p, ...; a V-shaped one s and 2p - 1 - s: both the
        # smallest is its place.
        return {r: stage for r, (stage, _) in named.items()}, len({s for s, _ in named.values()})
    stated = job.parallelism.pp if job is not None else None
    if groups["pp"] and set(groups["pp"]) >= set(ranks):
        return {r: groups["pp"][r][0] for r in ranks}, max(n for _, n in groups["pp"].values())
    transfers = {rank: count for rank, count, *_ in behaviour}
    if stated is None and not any(transfers.values()):
        return {}, 0
    world = job.world_size if job is not None and job.world_size else len(ranks)
    if stated is not None:
        if stated < 2 or world % stated or max(ranks) >= world:
            return {}, 0
        return {r: r // (world // stated) for r in ranks}, stated
    if set(known) >= set(ranks):
        return {r: known[r] for r in ranks}, len({known[r] for r in ranks})
    return _by_behaviour(behaviour, notes)


def _by_behaviour(behaviour: Sequence[Behaviour], notes: list[str]) -> tuple[dict[int, int], int]:
    """Stages from who sends how often and who begins when."""
    counts = [count for _, count, *_ in behaviour]
    edge = min(counts)
    edges = [c for c in counts if c < 1.25 * edge] if max(counts) >= 1.5 * edge else counts
    replicas = len(edges) // 2
    # Where all exchange as often, they are two stages, each with a send and a receive a microbatch,
    # or a ring of several chunks a rank or of context parallelism, where each has more.
    most = MAX_TRANSFERS_RATIO * min(forwards for *_, forwards in behaviour)
    is_ring = edges is counts and edge > most
    if edge == 0 or is_ring or replicas == 0 or len(counts) % replicas:
        notes.append("pipeline: the traces name microbatches, and which rank is which stage"
                     " cannot be told; [parallelism] pp in job.toml would")  # fmt: skip
        return {}, 0
    pp = len(counts) // replicas
    in_order = [rank for rank, *_ in sorted(behaviour, key=lambda b: (b[2], b[0]))]
    stages = {rank: position // replicas for position, rank in enumerate(in_order)}
    notes.append(
        f"pipeline: {pp} stages of {plural(replicas, 'rank')}, inferred from the order of first "
        "forwards"
    )
    return stages, pp
