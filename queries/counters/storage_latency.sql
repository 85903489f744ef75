-- How long requests to each disk and mount took while the job ran, and in which steps.
--
-- Latency is the time that requests took over their number. Both come from differences of totals
-- (diskstats, mountstats, Lustre), or from means that a collector prints (iostat), where no totals
-- were given. What a reading tells is spread evenly over the time since the one before.
--
-- reads: storage_sample, run, step, clock, clock_offset
-- needs: storage_sample
-- grain: attempt, host, own_source_id, device, operation
-- column: host VARCHAR : Host; null where unknown.
-- column: own_source_id INTEGER : File whose samples are meant; null where a host is known.
-- column: device VARCHAR : Disk, mount point, or file system's target.
-- column: filesystem VARCHAR : Kind of what is mounted; null for a disk.
-- column: operation VARCHAR : read, write, flush or metadata.
-- column: interval_ns DOUBLE : Median time between readings.
-- column: covered_ns BIGINT : Time of the job's window that readings cover; without a window (no
--     trace was given) of all readings.
-- column: requests_count DOUBLE : Requests in that time.
-- column: latency_ns DOUBLE : Mean time that one took; null where there was none.
-- column: waited_ratio DOUBLE : Time that requests took, all added up, over the time covered: above
--     1 where several were under way at once.
-- column: typical_ns DOUBLE : Median over the readings' intervals of the latency in each.
-- column: worst_ns DOUBLE : Largest latency between two readings.
-- column: worst_start_ns BIGINT : Start of that interval.
-- column: worst_end_ns BIGINT : Its end.
-- column: worst_steps BIGINT[] : The eight steps with the largest latency, that of the largest
--     first.
-- column: worst_step_ns DOUBLE : Latency in the first of them; null where no step is known.
-- column: source_id INTEGER : File of the reading at the end of the worst interval.
-- column: place BIGINT : Its place in that file.
-- column: attempt INTEGER : Attempt of the job; null where no trace was given.
WITH
    requests AS (
        SELECT waits AS key, start_ns, end_ns
        FROM storage_waits(if(EXISTS (SELECT 1 FROM run), 'epoch', NULL)) AS waits
    ),
    placed AS (
        SELECT attempt, key.*, inside_ns / (key.end_ns - key.start_ns) AS inside_ratio
        FROM readings_in_attempts('requests')
    ),
    of_steps AS (
        SELECT
            attempt, key.host, key.own_source_id, key.device, key.operation, step,
            sum(key.requests_count * shared_ns / reading_ns) AS requests_count,
            sum(key.waited_ns * shared_ns / reading_ns) AS waited_ns
        FROM readings_in_steps('requests')
        GROUP BY ALL
    ),
    stepped AS (
        SELECT
            attempt, host, own_source_id, device, operation,
            list(step ORDER BY waited_ns / requests_count DESC, step)[:8] AS worst_steps,
            max(waited_ns / requests_count) AS worst_step_ns
        FROM of_steps
        WHERE requests_count > 0
        GROUP BY attempt, host, own_source_id, device, operation
    ),
    summed AS (
        SELECT
            attempt, host, own_source_id, device, operation,
            max(filesystem) AS filesystem,
            median(end_ns - start_ns) AS interval_ns,
            CAST(round(sum((end_ns - start_ns) * inside_ratio)) AS BIGINT) AS covered_ns,
            sum(requests_count * inside_ratio) AS requests_count,
            sum(waited_ns * inside_ratio) AS waited_ns,
            median(waited_ns / requests_count) FILTER (requests_count > 0) AS typical_ns,
            arg_max(
                {
                    latency_ns: waited_ns / requests_count,
                    start_ns: start_ns,
                    end_ns: end_ns,
                    source_id: source_id,
                    place: place
                },
                (waited_ns / requests_count, -start_ns)
            ) FILTER (requests_count > 0) AS worst
        FROM placed
        GROUP BY attempt, host, own_source_id, device, operation
    )
SELECT
    summed.host,
    summed.own_source_id,
    summed.device,
    summed.filesystem,
    summed.operation,
    summed.interval_ns,
    summed.covered_ns,
    summed.requests_count,
    summed.waited_ns / nullif(summed.requests_count, 0) AS latency_ns,
    summed.waited_ns / nullif(summed.covered_ns, 0) AS waited_ratio,
    summed.typical_ns,
    summed.worst.latency_ns AS worst_ns,
    summed.worst.start_ns AS worst_start_ns,
    summed.worst.end_ns AS worst_end_ns,
    coalesce(stepped.worst_steps, []) AS worst_steps,
    stepped.worst_step_ns,
    summed.worst.source_id AS source_id,
    summed.worst.place AS place,
    summed.attempt
FROM summed
LEFT JOIN stepped
    ON stepped.attempt IS NOT DISTINCT FROM summed.attempt
    AND stepped.host IS NOT DISTINCT FROM summed.host
    AND stepped.own_source_id IS NOT DISTINCT FROM summed.own_source_id
    AND stepped.device = summed.device
    AND stepped.operation = summed.operation
ORDER BY
    summed.attempt, summed.host, summed.own_source_id, summed.device, summed.operation;
