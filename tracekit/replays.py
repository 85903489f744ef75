"""From the views of an open run to a what-if replay.

A pipeline is replayed by its operations; a job without one, or whose pipeline replay is refused,
by its matched collectives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from tracekit.errors import InputError
from tracekit.store import arrow_table, release_freed
from tracekit.whatif import (
    Cause,
    ClockPairs,
    CollectiveReplay,
    Layout,
    Places,
    StreamReplay,
    WhatIf,
    analyse,
    beyond_other_stages_s,
    from_pipeline_rows,
    idle_beyond_s,
    parse_scale,
    prepare,
    saved_by_even_lengths_s,
    saved_by_messages_s,
    saved_by_stage_s,
    saved_evenly_s,
    saved_like_replicas_s,
    uses_operations,
)

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tracekit.whatif.replay import Replay as PipelineReplay

_STEADY_PIPELINE = """
SELECT p.* FROM pipeline_op p WHERE NOT EXISTS (
    SELECT 1 FROM step s
    WHERE s.attempt = p.attempt AND s.capture_id = p.capture_id AND s.step = p.step
      AND (s.is_warmup OR s.is_partial))
"""

_MEMBERS = f"""
SELECT DISTINCT rank, greatest(coalesce(pp_rank, 0), 0), greatest(coalesce(dp_rank, 0), 0)
FROM ({_STEADY_PIPELINE}) ORDER BY ALL
"""  # noqa: S608 - what is put in is our own

_RANKS_A_STAGE = """
SELECT max(ranks) FROM (
    SELECT count(DISTINCT rank) AS ranks FROM pipeline_op
    WHERE rank IS NOT NULL AND pp_rank >= 0 GROUP BY pp_rank)
"""

_CALLS = """
SELECT c.capture_id, c.rank, if(m.is_trusted, m.instance_id, NULL) AS instance_id, c.op,
       m.group_id, g.kind, g.members_count, c.root, c.message_bytes, c.timeline, c.start_ns,
       c.start_ns + c.dur_ns AS end_ns
FROM collective c
LEFT JOIN collective_match m USING (source_id, place)
LEFT JOIN comm_group g ON g.attempt = c.attempt AND g.group_id = m.group_id
WHERE c.rank IS NOT NULL AND c.start_ns IS NOT NULL AND c.dur_ns IS NOT NULL
ORDER BY c.capture_id, c.start_ns, c.rank, c.source_id, c.place
"""

MAX_UNLAUNCHED_RATIO = 0.01
"""Share of GPU operations whose launch may be missing: those in flight when the window begins."""

MANY_OPERATIONS = 100_000
"""GPU operations from which queries free so much that it is worth 10 ms to give it back."""

_LAUNCHES = """
SELECT count(*), count(launch_start_ns), count(*) FILTER (
    WHERE launch_start_ns IS NULL AND NOT EXISTS (
        SELECT 1 FROM step s WHERE s.rank = g.rank AND s.capture_id = g.capture_id
            AND coalesce(s.is_warmup, false) AND g.start_ns < s.start_ns + s.dur_ns))
FROM gpu_op g WHERE rank IS NOT NULL AND category <> 'graph'
"""

# An operation is one call: the first that names it.
_OPERATIONS = """
WITH calls AS (
    SELECT c.source_id, c.gpu_op_place, if(m.is_trusted, m.instance_id, NULL) AS instance_id, c.op,
           m.group_id, k.kind, k.members_count, c.root, c.message_bytes
    FROM collective c
    LEFT JOIN collective_match m ON m.source_id = c.source_id AND m.place = c.place
    LEFT JOIN comm_group k ON k.attempt = c.attempt AND k.group_id = m.group_id
    WHERE c.gpu_op_place IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY c.source_id, c.gpu_op_place ORDER BY c.place) = 1
)
SELECT g.capture_id, g.rank,
       hash(g.device, g.context, g.stream) >> 1 AS stream,
       g.class = 'compute' AS is_compute, g.class = 'communication' AS is_communication,
       hash(if(g.category = 'memcpy', coalesce(g.copy_kind, g.name), g.name)) >> 1 AS name,
       g.launch_start_ns AS launch_ns, g.start_ns, g.start_ns + g.dur_ns AS end_ns,
       instance_id, op, group_id, kind, members_count, root, message_bytes
FROM gpu_op g
LEFT JOIN calls ON calls.source_id = g.source_id AND calls.gpu_op_place = g.place
WHERE g.rank IS NOT NULL AND g.launch_start_ns IS NOT NULL AND g.category <> 'graph'
"""

_RANKS = """
SELECT rank, any_value(pp_rank), any_value(dp_rank), any_value(host) FROM rank
WHERE rank IS NOT NULL GROUP BY rank ORDER BY rank
"""

# The clock that others are told against has no row of its own; of a clock without a row nothing
# is known, and it is left alone.
_CLOCKS = """
SELECT g.rank, any_value(g.clock_id), any_value(coalesce(o.error_ns, 0))
FROM (SELECT DISTINCT rank, clock_id FROM gpu_op WHERE rank IS NOT NULL) g
LEFT JOIN (SELECT clock_id, max(error_ns) AS error_ns FROM clock_offset GROUP BY clock_id) o
  USING (clock_id)
GROUP BY g.rank HAVING count(*) = 1 ORDER BY g.rank
"""

_CLOCK_PAIRS = """
SELECT clock_id, other_clock_id, max(error_ns) AS error_ns FROM clock_pair
GROUP BY ALL ORDER BY clock_id, other_clock_id
"""

# Calls in which the host waits for the device. What they waited for is not recorded.
_SYNCS = r"""
SELECT capture_id, rank, contains(lower(name), 'device') OR contains(lower(name), 'ctxsync')
           AS is_device,
       start_ns, start_ns + dur_ns AS end_ns
FROM host_op
WHERE category IN ('runtime', 'driver') AND rank IS NOT NULL AND dur_ns > 0
  AND regexp_matches(name, '(?i)synchronize|^cudaMemcpy(_v\d+)?$|^cuda(Free|HostAlloc|MallocHost)')
"""

_STALLS = """
WITH work AS MATERIALIZED (
    SELECT capture_key(attempt, rank, capture_id) AS key, class, start_ns, end_ns
    FROM rank_work('gpu_op', 'host_op')
    WHERE class IN ('compute', 'communication', 'blocked') AND rank IS NOT NULL
), waiting AS (
    SELECT key, start_ns, end_ns FROM work WHERE class <> 'compute'
), computing AS (
    SELECT key, start_ns, end_ns FROM work WHERE class = 'compute'
)
SELECT capture_id_of(key) AS capture_id, rank_of(key) AS rank, start_ns, end_ns
FROM difference_intervals('waiting', 'computing')
ORDER BY capture_id, rank, start_ns
"""

_STEPS = """
SELECT capture_id, rank, step, start_ns, end_ns FROM step_windows()
WHERE NOT is_warmup AND NOT is_partial ORDER BY capture_id, rank, step
"""


NAMED = "\n".join(
    (
        *(
            _STEADY_PIPELINE,
            _MEMBERS,
            _RANKS_A_STAGE,
            _CALLS,
            _LAUNCHES,
            _OPERATIONS,
            _CLOCKS,
            _CLOCK_PAIRS,
            _SYNCS,
        ),
        *(_STALLS, _STEPS, _RANKS),
    )
)
"""Text that names every table and macro that ``RankReplay`` reads."""


def replay_pipeline(
    con: duckdb.DuckDBPyConnection, dp: int | None = None, causes: Sequence[Cause] = ()
) -> WhatIf:
    """Replay the pipeline's operations; InputError where the run holds none."""
    rows = arrow_table(con, _STEADY_PIPELINE)
    return analyse(from_pipeline_rows(rows, Layout(dp=dp)), causes)


def replay_of_calls(con: duckdb.DuckDBPyConnection) -> CollectiveReplay | StreamReplay:
    """The matched collectives, ready to be replayed: by launches and streams where all are known.

    InputError where none are matched in steady steps, and of a pipeline with one rank a stage whose
    launches are not known: no rank has a peer whose time it could take, and how long its messages
    last says when somebody asked for them. Macros must be loaded, and the connection must show one
    attempt.
    """
    where = places(con)
    steps = arrow_table(con, _STEPS)
    operations, known, unlaunched = con.execute(_LAUNCHES).fetchall()[0]
    if operations and known and unlaunched <= MAX_UNLAUNCHED_RATIO * operations:
        # What queries have freed and what a replay holds must not add up to one peak.
        is_large = operations >= MANY_OPERATIONS
        if is_large:
            release_freed()
        launched, syncs = arrow_table(con, _OPERATIONS), arrow_table(con, _SYNCS)
        if is_large:
            release_freed()
        return StreamReplay(launched, syncs, steps, where)
    ((ranks_a_stage,),) = con.execute(_RANKS_A_STAGE).fetchall()
    if ranks_a_stage == 1 and has_pipeline(con):
        raise InputError("no rank of this pipeline has a peer: its operations are replayed")
    return CollectiveReplay(arrow_table(con, _CALLS), arrow_table(con, _STALLS), steps, where)


def places(con: duckdb.DuckDBPyConnection) -> Places:
    """Stage, replica, host and clock of each rank, as far as known."""
    rows = con.execute(_RANKS).fetchall()
    clocks = con.execute(_CLOCKS).fetchall()
    pairs = con.execute(_CLOCK_PAIRS).fetchnumpy()
    columns = (np.asarray(pairs[n], np.int64) for n in ("clock_id", "other_clock_id", "error_ns"))
    return Places(
        {int(r): int(s) for r, s, _, _ in rows if s is not None},
        {int(r): int(d) for r, _, d, _ in rows if d is not None},
        {int(r): str(h) for r, _, _, h in rows if h is not None},
        {int(r): (int(c), int(error)) for r, c, error in clocks},
        ClockPairs(*columns),
    )


def believed_calls(con: duckdb.DuckDBPyConnection) -> CollectiveReplay | StreamReplay | None:
    """The matched collectives, if their replay gives the measured time back."""
    try:
        replay = replay_of_calls(con)
        return None if replay.refused else replay
    except InputError:
        return None


def whatif(
    con: duckdb.DuckDBPyConnection,
    dp: int | None = None,
    causes: Sequence[Cause] = (),
    step_s: float | None = None,
) -> WhatIf:
    """Replay an open run by what it holds, and take each cause out of the job's step (see
    ``OpenRun.whatif``): the one that is given, else the mean of the run's own."""
    if step_s is None:
        # Unlike sql, execute puts an end to what the caller has left unfetched.
        ((step_s,),) = con.execute("SELECT avg(dur_ns) / 1e9 FROM job_steps()").fetchall()
    return _whatif(con, dp, causes).of_job(step_s)


def _whatif(con: duckdb.DuckDBPyConnection, dp: int | None, causes: Sequence[Cause]) -> WhatIf:
    if not has_pipeline(con):
        return replay_of_calls(con).analyse(causes)
    fine = _with_groups(con, replay_pipeline(con, dp))
    coarse = believed_calls(con) if causes or fine.refused else None
    if coarse is None:
        return replace(fine, causes=replay_pipeline(con, dp, causes).causes) if causes else fine
    if fine.refused:
        return coarse.analyse(causes)
    by_streams = [c for c in causes if isinstance(coarse, StreamReplay) and not uses_operations(c)]
    rest = [c for c in causes if c not in by_streams]
    results = {c.cause: c for c in replay_pipeline(con, dp, rest).causes}
    results |= {c.cause: c for c in (coarse.analyse(by_streams).causes if by_streams else ())}
    return replace(fine, causes=tuple(results[c.text] for c in causes))


def _with_groups(con: duckdb.DuckDBPyConnection, fine: WhatIf) -> WhatIf:
    """The same with every rank that recorded operations: of a tensor-parallel group, which computes
    together, the first stands for all."""
    job = fine.pipeline
    if job is None:
        return fine
    by_rank = {
        int(rank): job.slowdown_of(stage, dp)
        for rank, stage, dp in con.execute(_MEMBERS).fetchall()
        if stage in job.slowdown_by_stage and dp in job.slowdown_by_dp
    }
    return replace(fine, slowdown_by_rank=by_rank)


class RankReplay:
    """What the step would take without some ranks' delays; prepared when it is first asked.

    Answers None where there is nothing to replay or the replay is refused.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection) -> None:
        self._con = con
        self._saved_ns: dict[tuple[int, ...], float] = {}
        """By ranks: several rules ask of the same."""

    @cached_property
    def _replay(self) -> CollectiveReplay | StreamReplay | None:
        return believed_calls(self._con)

    @cached_property
    def _slowdowns(self) -> Mapping[int, float]:
        return self._replay.slowdown_by_rank() if self._replay is not None else {}

    @cached_property
    def _operations(self) -> WhatIf | None:
        """The replay of a pipeline's operations, where that is what ``whatif`` asks."""
        if not has_pipeline(self._con):
            return None
        try:
            fine = replay_pipeline(self._con)
        except InputError:
            return None
        return None if fine.refused else _with_groups(self._con, fine)

    def saved_ns(self, ranks: Sequence[int]) -> float | None:
        """ns a step that would be saved if these ranks did what their peers do."""
        replay = self._replay
        if replay is None or not set(ranks) <= set(replay.ranks):
            return None
        key = tuple(sorted(ranks))
        if key not in self._saved_ns:
            self._saved_ns[key] = (replay.step_s - replay.step_s_without(key)) * 1e9
        return self._saved_ns[key]

    def saved_by_work_ns(self, ranks: Sequence[int]) -> float | None:
        """The same with all transfers as they were, where something stops one of these ranks and
        its transfers with it; None elsewhere, where ``saved_ns`` leaves transfers alone."""
        replay = self._replay
        if not isinstance(replay, CollectiveReplay) or not set(ranks) <= set(replay.ranks):
            return None
        if not replay.stopped(ranks):
            return None
        return (replay.step_s - replay.step_s_without_work(ranks)) * 1e9

    def saved_at_most_ns(self, ranks: Sequence[int]) -> float | None:
        """ns a step that would be saved if these ranks took no time of their own; by streams."""
        replay = self._replay
        if not isinstance(replay, StreamReplay) or not set(ranks) <= set(replay.ranks):
            return None
        return (replay.step_s - replay.step_s_unhindered(ranks)) * 1e9

    def saved_at_speed_ns(self, ranks: Sequence[int], factor: float) -> float | None:
        """ns a step that would be saved if the longest transfers of these ranks between hosts were
        cut so that all of a kind take this share of their time; None where only calls are
        replayed, not what hides them."""
        replay = self._replay
        if not isinstance(replay, StreamReplay) or not set(ranks) & set(replay.ranks):
            return None
        return (replay.step_s - replay.step_s_at_speed(ranks, factor)) * 1e9

    def saved_evenly_ns(self) -> float | None:
        """ns a step that would be saved if the experts' work were dealt out evenly."""
        replay = self._replay
        even_s = replay.step_s_evenly() if isinstance(replay, CollectiveReplay) else None
        return None if replay is None or even_s is None else (replay.step_s - even_s) * 1e9

    def saved_by_operations_ns(self, rank: int) -> float | None:
        """ns a step that would be saved if this rank of a pipeline computed as its peers do."""
        try:
            fine = replay_pipeline(self._con)
            job = fine.pipeline
            ratio = job and job.judgement.symptoms.peer_ratio_by_rank.get(rank)
            if fine.refused or not ratio:
                return None
            cause = parse_scale(f"rank={rank}:compute={1 / ratio:.9f}")
            return replay_pipeline(self._con, causes=[cause]).causes[0].saved_s_per_step * 1e9
        except InputError:
            return None

    @cached_property
    def _pipeline(self) -> PipelineReplay | None:
        try:
            return prepare(from_pipeline_rows(arrow_table(self._con, _STEADY_PIPELINE)))
        except InputError:
            return None

    def saved_by_even_stages_ns(self) -> float | None:
        """ns a step that would be saved if the stages of a pipeline computed equally long."""
        return _ns(None if self._pipeline is None else saved_evenly_s(self._pipeline))

    def saved_by_even_lengths_ns(self) -> float | None:
        """ns a step that would be saved if the microbatches of a step were of equal length."""
        return _ns(None if self._pipeline is None else saved_by_even_lengths_s(self._pipeline))

    def saved_by_stage_ns(self, stage: int) -> float | None:
        """ns a step that would be saved if this stage of a pipeline computed as the median other
        one does."""
        return _ns(None if self._pipeline is None else saved_by_stage_s(self._pipeline, stage))

    @property
    def operations_error_ratio(self) -> float | None:
        """By how much the replay of a pipeline's operations misses the measured step."""
        if self._pipeline is None:
            return None
        (now_s,) = self._pipeline.run([self._pipeline.work_s])
        return abs(float(self._pipeline.base_s.mean()) / float(now_s.mean()) - 1)

    def idle_beyond_hand_overs_ns(self) -> float | None:
        """ns a step that the pipeline takes beyond its order of operations and fast hand-overs."""
        try:
            return _ns(None if self._pipeline is None else idle_beyond_s(self._pipeline))
        except InputError:
            return None

    def hand_overs_ns(self) -> float | None:
        """The same of a job that is one pipeline: what its messages can cost; None of others, whose
        ranks exchange more than these."""
        return self.idle_beyond_hand_overs_ns() if self._is_one_pipeline else None

    @property
    def _is_one_pipeline(self) -> bool:
        return self._pipeline is not None and len(self._pipeline.dp_ranks) == 1

    def saved_by_messages_ns(self, ranks: Sequence[int]) -> float | None:
        """ns a step that would be saved if the messages that these ranks of one pipeline send and
        receive took what others' do; None of other jobs, whose ranks exchange more than these."""
        if self._pipeline is None or not self._is_one_pipeline:
            return None
        try:
            return _ns(saved_by_messages_s(self._pipeline, ranks))
        except InputError:
            return None

    def saved_in_operations_ns(self, rank: int, delay_ns: float) -> float | None:
        """ns a step that would be saved if this rank of one pipeline computed as the median other
        stage does; None where its operations do not take so much longer that ``delay_ns`` can be
        theirs."""
        if self._pipeline is None or not self._is_one_pipeline:
            return None
        by_stage = zip(self._pipeline.stages, self._pipeline.ranks, strict=True)
        stages = [stage for stage, ranks in by_stage if rank in ranks]
        if len(stages) != 1 or beyond_other_stages_s(self._pipeline, stages[0]) * 1e9 < delay_ns:
            return None
        return self.saved_by_stage_ns(stages[0])

    def saved_beside_replicas_ns(self, rank: int, least_ns: float) -> float | None:
        """ns a step that would be saved if this rank's stage of a pipeline computed in its replica
        as in the median other one; None where its operations do not take ``least_ns`` longer."""
        if self._pipeline is None:
            return None
        found = [(s, d) for r, s, d in self._con.execute(_MEMBERS).fetchall() if r == rank]
        if len(found) != 1:
            return None
        ((stage, dp_rank),) = found
        return _ns(saved_like_replicas_s(self._pipeline, stage, dp_rank, least_ns / 1e9))

    @property
    def error_ratio(self) -> float | None:
        """By how much the replay misses the measured step; None where there is none."""
        return None if self._replay is None else self._replay.error_ratio

    @property
    def is_by_streams(self) -> bool:
        """Whether launches and streams are replayed, which shows what a delay hides behind."""
        return isinstance(self._replay, StreamReplay)

    @property
    def is_by_operations(self) -> bool:
        """Whether the slowdown of a rank is by the operations of a pipeline: see ``slowdowns``."""
        return self._operations is not None

    def slowdown(self, rank: int) -> float | None:
        """The ideal step with only this rank's delays, over the ideal step, by calls: beside ranks
        of its stage, whatever the stages are laid out to do."""
        return self._slowdowns.get(rank)

    def slowdowns(self) -> Mapping[int, float]:
        """What ``whatif`` says of each rank: of a pipeline, by its operations, the smaller of its
        stage's and its replica's, what is sent to it included; else ``slowdown``."""
        return self._slowdowns if self._operations is None else self._operations.slowdown_by_rank


def _ns(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e9


def has_pipeline(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether the run holds operations of a pipeline: of more than one stage."""
    rows = con.execute("SELECT count(*) FROM pipeline_op WHERE pp_rank > 0").fetchall()
    return bool(rows[0][0])


def with_slowdowns(con: duckdb.DuckDBPyConnection, rows: pa.Table) -> pa.Table:
    """Rows of the query straggler with slowdown_ratio as ``whatif`` says it, where it does."""
    import pyarrow as pa

    if "slowdown_ratio" not in rows.column_names or not rows.num_rows:
        return rows
    by_rank = RankReplay(con).slowdowns()
    values = [by_rank.get(rank) for rank in rows.column("rank").to_pylist()]
    position = rows.column_names.index("slowdown_ratio")
    return rows.set_column(position, "slowdown_ratio", pa.array(values, pa.float64()))
