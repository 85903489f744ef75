-- What the tasks of each host waited for in stalls and slow stretches of the job, and otherwise.
--
-- A stretch of hours is in the training log alone; a host that lacked CPU, memory or storage in the
-- same hours, and not before, is where to look. The times of both count from the epoch, or both are
-- local ones.
--
-- reads: job_episode, logged_step, source_context, host_sample, clock, clock_offset
-- needs: job_episode, host_sample
-- grain: kind, first_step, last_step, host, own_source_id, cgroup, resource
-- param: episodes_count BIGINT = 12 : Most stalls and stretches, those that lost most time.
-- column: kind VARCHAR : stall or slow, as in slow_episode.
-- column: first_step BIGINT : First step of it.
-- column: last_step BIGINT : Last step of it.
-- column: start_ns BIGINT : When it began.
-- column: end_ns BIGINT : When it ended.
-- column: lost_ns BIGINT : How much longer it took than as many usual steps.
-- column: usual_ns BIGINT : How long steps take otherwise.
-- column: dur_ns BIGINT : How long its steps take.
-- column: host VARCHAR : Host; null where unknown.
-- column: own_source_id INTEGER : File whose samples are meant; null where a host is known.
-- column: cgroup VARCHAR : Control group; null: the whole machine, or not said.
-- column: resource VARCHAR : As in host_pressure.
-- column: some_ratio DOUBLE : Share of it in which at least one task waited, as far as readings
--     cover it; as in host_pressure.
-- column: covered_ratio DOUBLE : Share of it that readings cover.
-- column: usual_ratio DOUBLE : The same share in the rest of the log's time, of readings that meet
--     no stall or slow stretch; null where there are none.
-- column: usual_worst_ratio DOUBLE : The largest such share among pieces of that time that are as
--     long as the episode.
-- column: usual_covered_ns BIGINT : Time there that readings cover.
-- column: source_id INTEGER : File of the reading with the largest share within it.
-- column: place BIGINT : Its place in that file.
WITH
    episodes AS MATERIALIZED (FROM lost_stretches($episodes_count)),
    of_log AS (SELECT DISTINCT log_start_ns, log_end_ns FROM episodes),
    spans AS (
        SELECT
            waits.*,
            waits.start_ns - log_start_ns AS since_ns,
            greatest(
                0, least(waits.end_ns, log_end_ns) - greatest(waits.start_ns, log_start_ns)
            ) AS logged_ns
        FROM host_waits((SELECT any_value(basis) FROM episodes)) AS waits
        CROSS JOIN of_log
        WHERE waits.some_amount IS NOT NULL
    ),
    within AS (
        SELECT
            episodes.* EXCLUDE (basis),
            spans.host, spans.own_source_id, spans.cgroup, spans.resource,
            spans.source_id, spans.place, spans.some_amount, spans.base,
            spans.start_ns AS span_start_ns,
            spans.end_ns - spans.start_ns AS span_ns,
            least(episodes.end_ns, spans.end_ns)
            - greatest(episodes.start_ns, spans.start_ns) AS shared_ns
        FROM episodes
        JOIN spans ON spans.start_ns < episodes.end_ns AND spans.end_ns > episodes.start_ns
    ),
    inside AS (
        SELECT
            kind, first_step, last_step, start_ns, end_ns, lost_ns, usual_ns, dur_ns,
            host, own_source_id, cgroup, resource,
            sum(some_amount * shared_ns / span_ns) / nullif(sum(base * shared_ns / span_ns), 0)
                AS some_ratio,
            least(1.0, sum(shared_ns / (end_ns - start_ns))) AS covered_ratio,
            arg_max(
                {source_id: source_id, place: place},
                (coalesce(some_amount / nullif(base, 0), 0), -source_id, -place)
            ) AS spot
        FROM within
        GROUP BY ALL
    ),
    free AS (
        -- In pieces as long as the episode: chance and nightly work press at other times too.
        SELECT
            episodes.kind, episodes.first_step, episodes.last_step,
            spans.host, spans.own_source_id, spans.cgroup, spans.resource,
            spans.since_ns // (episodes.end_ns - episodes.start_ns) AS piece,
            sum(spans.some_amount * spans.logged_ns / (spans.end_ns - spans.start_ns))
                AS some_amount,
            sum(spans.base * spans.logged_ns / (spans.end_ns - spans.start_ns)) AS base,
            sum(spans.logged_ns) AS free_ns
        FROM episodes
        JOIN spans ON spans.logged_ns > 0
        ANTI JOIN within
            ON within.host IS NOT DISTINCT FROM spans.host
            AND within.own_source_id IS NOT DISTINCT FROM spans.own_source_id
            AND within.cgroup IS NOT DISTINCT FROM spans.cgroup
            AND within.resource = spans.resource
            AND within.span_start_ns = spans.start_ns
        GROUP BY ALL
    ),
    usual AS (
        SELECT
            kind, first_step, last_step, host, own_source_id, cgroup, resource,
            -- Of a quota that was not set no period passes, and none runs out.
            if(sum(base) = 0, 0, sum(some_amount) / sum(base)) AS usual_ratio,
            max(if(base = 0, 0, some_amount / base)) AS usual_worst_ratio,
            CAST(sum(free_ns) AS BIGINT) AS usual_covered_ns
        FROM free
        GROUP BY ALL
    )
SELECT
    inside.kind,
    inside.first_step,
    inside.last_step,
    inside.start_ns,
    inside.end_ns,
    inside.lost_ns,
    inside.usual_ns,
    inside.dur_ns,
    inside.host,
    inside.own_source_id,
    inside.cgroup,
    inside.resource,
    inside.some_ratio,
    inside.covered_ratio,
    usual.usual_ratio,
    usual.usual_worst_ratio,
    coalesce(usual.usual_covered_ns, 0) AS usual_covered_ns,
    inside.spot.source_id AS source_id,
    inside.spot.place AS place
FROM inside
LEFT JOIN usual
    ON usual.kind = inside.kind
    AND usual.first_step = inside.first_step
    AND usual.last_step = inside.last_step
    AND usual.host IS NOT DISTINCT FROM inside.host
    AND usual.own_source_id IS NOT DISTINCT FROM inside.own_source_id
    AND usual.cgroup IS NOT DISTINCT FROM inside.cgroup
    AND usual.resource = inside.resource
ORDER BY
    inside.first_step, inside.kind, inside.last_step, inside.host, inside.own_source_id,
    inside.cgroup NULLS FIRST, inside.resource;
