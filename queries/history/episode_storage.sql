-- How long requests to storage took in stalls and slow stretches of the job, and otherwise.
--
-- What episode_pressure is for tasks, of the storage itself: where requests took longer in the
-- hours in which the training log is slow than in any other piece of its time that is as long, and
-- all together as long as was lost, storage is where to look. The times of both count from the
-- epoch, or both are local ones.
--
-- reads: job_episode, logged_step, source_context, storage_sample, clock, clock_offset
-- needs: job_episode, storage_sample
-- grain: kind, first_step, last_step, host, own_source_id, device, operation
-- param: episodes_count BIGINT = 12 : Most stalls and stretches, those that lost most time.
-- column: kind VARCHAR : stall or slow, as in slow_episode.
-- column: first_step BIGINT : First step of it.
-- column: last_step BIGINT : Last step of it.
-- column: start_ns BIGINT : When it began.
-- column: end_ns BIGINT : When it ended.
-- column: lost_ns BIGINT : How much longer it took than as many usual steps.
-- column: host VARCHAR : Host; null where unknown.
-- column: own_source_id INTEGER : File whose samples are meant; null where a host is known.
-- column: device VARCHAR : Disk, mount point, or file system's target.
-- column: filesystem VARCHAR : Kind of what is mounted; null for a disk.
-- column: operation VARCHAR : read, write, flush or metadata.
-- column: latency_ns DOUBLE : Mean time that a request within it took; null where there was none.
-- column: waited_ns DOUBLE : Time that these took, all added up.
-- column: covered_ratio DOUBLE : Share of it that readings cover.
-- column: usual_latency_ns DOUBLE : Mean time of a request in the rest of the log's time, of
--     readings that meet no stall or slow stretch; null where there was none.
-- column: usual_worst_latency_ns DOUBLE : The largest such mean among pieces of that time that are
--     as long as the episode.
-- column: usual_covered_ns BIGINT : Time there that readings cover.
-- column: source_id INTEGER : File of the reading with the largest latency within it.
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
        FROM storage_waits((SELECT any_value(basis) FROM episodes)) AS waits
        CROSS JOIN of_log
        WHERE waits.end_ns > waits.start_ns
    ),
    within AS (
        SELECT
            episodes.kind, episodes.first_step, episodes.last_step, episodes.start_ns,
            episodes.end_ns, episodes.lost_ns,
            spans.host, spans.own_source_id, spans.device, spans.filesystem, spans.operation,
            spans.source_id, spans.place, spans.requests_count, spans.waited_ns,
            spans.start_ns AS span_start_ns,
            spans.end_ns - spans.start_ns AS span_ns,
            least(episodes.end_ns, spans.end_ns)
            - greatest(episodes.start_ns, spans.start_ns) AS shared_ns
        FROM episodes
        JOIN spans ON spans.start_ns < episodes.end_ns AND spans.end_ns > episodes.start_ns
    ),
    inside AS (
        SELECT
            kind, first_step, last_step, start_ns, end_ns, lost_ns,
            host, own_source_id, device, operation,
            max(filesystem) AS filesystem,
            sum(requests_count * shared_ns / span_ns) AS requests_count,
            sum(waited_ns * shared_ns / span_ns) AS waited_ns,
            least(1.0, sum(shared_ns / (end_ns - start_ns))) AS covered_ratio,
            arg_max(
                {source_id: source_id, place: place},
                (coalesce(waited_ns / nullif(requests_count, 0), 0), -source_id, -place)
            ) AS spot
        FROM within
        GROUP BY ALL
    ),
    free AS (
        -- In pieces as long as the episode: nightly work slows storage at other times too.
        SELECT
            episodes.kind, episodes.first_step, episodes.last_step,
            spans.host, spans.own_source_id, spans.device, spans.operation,
            spans.since_ns // (episodes.end_ns - episodes.start_ns) AS piece,
            sum(spans.requests_count * spans.logged_ns / (spans.end_ns - spans.start_ns))
                AS requests_count,
            sum(spans.waited_ns * spans.logged_ns / (spans.end_ns - spans.start_ns)) AS waited_ns,
            sum(spans.logged_ns) AS free_ns
        FROM episodes
        JOIN spans ON spans.logged_ns > 0
        ANTI JOIN within
            ON within.host IS NOT DISTINCT FROM spans.host
            AND within.own_source_id IS NOT DISTINCT FROM spans.own_source_id
            AND within.device = spans.device
            AND within.operation = spans.operation
            AND within.span_start_ns = spans.start_ns
        GROUP BY ALL
    ),
    usual AS (
        SELECT
            kind, first_step, last_step, host, own_source_id, device, operation,
            sum(waited_ns) / nullif(sum(requests_count), 0) AS usual_latency_ns,
            max(waited_ns / nullif(requests_count, 0)) AS usual_worst_latency_ns,
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
    inside.host,
    inside.own_source_id,
    inside.device,
    inside.filesystem,
    inside.operation,
    inside.waited_ns / nullif(inside.requests_count, 0) AS latency_ns,
    inside.waited_ns,
    inside.covered_ratio,
    usual.usual_latency_ns,
    usual.usual_worst_latency_ns,
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
    AND usual.device = inside.device
    AND usual.operation = inside.operation
ORDER BY
    inside.first_step, inside.kind, inside.last_step, inside.host, inside.own_source_id,
    inside.device, inside.operation;
