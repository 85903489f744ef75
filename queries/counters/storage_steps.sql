-- How long requests to disks and mounts took in each step, of those that were waited for most.
--
-- Shows whether storage was slow in the very steps that waited for input or for a checkpoint. What
-- a reading tells is spread evenly over the time since the one before (see storage_latency). What
-- Lustre's servers count is left out: it is no wait of a machine of the job.
--
-- reads: storage_sample, run, step, clock, clock_offset
-- needs: storage_sample, step
-- grain: attempt, host, own_source_id, device, operation, capture_id, step
-- param: series_count BIGINT = 256 : Most disks and mounts with an operation, of all hosts.
-- column: host VARCHAR : Host; null where unknown.
-- column: own_source_id INTEGER : File whose samples are meant; null where a host is known.
-- column: device VARCHAR : Disk, mount point, or file system's target.
-- column: filesystem VARCHAR : Kind of what is mounted; null for a disk.
-- column: operation VARCHAR : read, write, flush or metadata.
-- column: capture_id INTEGER : Capture window, from 0.
-- column: step BIGINT : Job-level step.
-- column: requests_count DOUBLE : Requests in the step.
-- column: waited_ns DOUBLE : Time that they took, all added up.
-- column: covered_ratio DOUBLE : Share of the step that readings cover.
-- column: source_id INTEGER : File of the reading that covers most of the step.
-- column: place BIGINT : Its place in that file.
-- column: attempt INTEGER : Attempt of the job.
WITH
    requests AS (
        SELECT waits AS key, start_ns, end_ns
        FROM storage_waits(if(EXISTS (SELECT 1 FROM run), 'epoch', NULL)) AS waits
        WHERE filesystem IS NULL OR filesystem NOT IN ('obdfilter', 'mdt')
    ),
    of_steps AS (
        SELECT
            attempt, key.host, key.own_source_id, key.device, key.operation, capture_id, step,
            max(key.filesystem) AS filesystem,
            sum(key.requests_count * shared_ns / reading_ns) AS requests_count,
            sum(key.waited_ns * shared_ns / reading_ns) AS waited_ns,
            least(1.0, sum(shared_ns / step_ns)) AS covered_ratio,
            arg_max(
                {source_id: key.source_id, place: key.place},
                (shared_ns, -key.source_id, -key.place)
            ) AS spot
        FROM readings_in_steps('requests')
        GROUP BY ALL
    ),
    worst AS (
        SELECT attempt, host, own_source_id, device, operation
        FROM of_steps
        GROUP BY attempt, host, own_source_id, device, operation
        QUALIFY row_number() OVER (
            PARTITION BY attempt
            ORDER BY sum(waited_ns) DESC, host, own_source_id, device, operation
        ) <= $series_count
    )
SELECT
    of_steps.host,
    of_steps.own_source_id,
    of_steps.device,
    of_steps.filesystem,
    of_steps.operation,
    of_steps.capture_id,
    of_steps.step,
    of_steps.requests_count,
    of_steps.waited_ns,
    of_steps.covered_ratio,
    of_steps.spot.source_id AS source_id,
    of_steps.spot.place AS place,
    of_steps.attempt
FROM of_steps
JOIN worst
    ON worst.attempt IS NOT DISTINCT FROM of_steps.attempt
    AND worst.host IS NOT DISTINCT FROM of_steps.host
    AND worst.own_source_id IS NOT DISTINCT FROM of_steps.own_source_id
    AND worst.device = of_steps.device
    AND worst.operation = of_steps.operation
ORDER BY
    of_steps.attempt, of_steps.host, of_steps.own_source_id, of_steps.device, of_steps.operation,
    of_steps.capture_id, of_steps.step;
