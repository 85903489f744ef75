-- What the tasks of each host and control group waited for while the job ran, and in which steps.
--
-- Pressure: the share of time in which tasks waited for a CPU, for storage or for memory. Quota:
-- the share of the CPU quota's periods in which it ran out. Shares come from differences of totals;
-- before the first total, after the last, and without any, a collector's averages count (sadf).
-- What a reading tells is spread evenly over the time since the one before: steps shorter than
-- that share one number.
--
-- reads: host_sample, run, step, clock, clock_offset
-- needs: host_sample
-- asked: report
-- grain: attempt, host, own_source_id, cgroup, resource
-- column: host VARCHAR : Host; null where unknown.
-- column: own_source_id INTEGER : File whose samples are meant; null where a host is known.
-- column: cgroup VARCHAR : Control group; null: the whole machine, or not said.
-- column: resource VARCHAR : cpu, io or memory: pressure; quota: the CPU quota of the group;
--     steal: CPU time that the hypervisor gave to others; iowait: time of idle CPUs whose task
--     waited for storage, which is less than some task did.
-- column: interval_ns DOUBLE : Median time between readings.
-- column: covered_ns BIGINT : Time of the job's window that readings cover; without a window (no
--     trace was given) of all readings.
-- column: some_ratio DOUBLE : Share of it in which at least one task waited; of quota, share of its
--     periods in which it ran out; of steal and iowait, share of all CPUs' time. Null where no
--     period began.
-- column: full_ratio DOUBLE : Share of it in which all tasks waited that were not idle; null where
--     no reading tells.
-- column: throttled_ns BIGINT : Time for which the quota held back run queues, of all CPUs
--     together; null for pressure.
-- column: worst_ratio DOUBLE : The largest some_ratio between two readings.
-- column: worst_start_ns BIGINT : Start of that interval.
-- column: worst_end_ns BIGINT : Its end.
-- column: step_ratio DOUBLE : some_ratio within the job's steps; null where no step is known, or no
--     reading covers one.
-- column: worst_steps BIGINT[] : The eight steps with the largest share, that of the largest first;
--     none without any wait.
-- column: worst_step_ratio DOUBLE : some_ratio of the first of them; null where there is none.
-- column: source_id INTEGER : File of the reading at the end of the worst interval.
-- column: place BIGINT : Its place in that file.
-- column: attempt INTEGER : Attempt of the job; null where no trace was given.
WITH
    spans AS (
        SELECT waits AS key, start_ns, end_ns
        FROM host_waits(if(EXISTS (SELECT 1 FROM run), 'epoch', NULL)) AS waits
    ),
    placed AS (
        SELECT attempt, key.*, inside_ns
        FROM readings_in_attempts('spans')
    ),
    waited AS (
        FROM spans WHERE key.some_amount IS NOT NULL
    ),
    of_steps AS (
        SELECT
            attempt, key.host, key.own_source_id, key.cgroup, key.resource, step,
            sum(key.some_amount * shared_ns / reading_ns) AS some_amount,
            sum(key.base * shared_ns / reading_ns) AS base
        FROM readings_in_steps('waited')
        GROUP BY ALL
    ),
    stepped AS (
        SELECT
            attempt, host, own_source_id, cgroup, resource,
            sum(some_amount) / nullif(sum(base), 0) AS step_ratio,
            list(step ORDER BY some_amount / base DESC, step) FILTER (some_amount > 0)[:8]
                AS worst_steps,
            max(some_amount / base) FILTER (some_amount > 0) AS worst_step_ratio
        FROM of_steps
        GROUP BY attempt, host, own_source_id, cgroup, resource
    ),
    summed AS (
        SELECT
            attempt, host, own_source_id, cgroup, resource,
            median(end_ns - start_ns) AS interval_ns,
            CAST(sum(inside_ns) AS BIGINT) AS covered_ns,
            sum(some_amount * inside_ns / (end_ns - start_ns))
                / nullif(
                    sum(base * inside_ns / (end_ns - start_ns)) FILTER (some_amount IS NOT NULL), 0
                ) AS some_ratio,
            sum(full_amount * inside_ns / (end_ns - start_ns))
                / nullif(
                    sum(base * inside_ns / (end_ns - start_ns)) FILTER (full_amount IS NOT NULL), 0
                ) AS full_ratio,
            CAST(round(sum(throttled_ns * inside_ns / (end_ns - start_ns))) AS BIGINT)
                AS throttled_ns,
            arg_max(
                {
                    ratio: some_amount / base,
                    start_ns: start_ns,
                    end_ns: end_ns,
                    source_id: source_id,
                    place: place
                },
                (some_amount / base, -start_ns)
            ) FILTER (base > 0 AND some_amount IS NOT NULL) AS worst
        FROM placed
        GROUP BY attempt, host, own_source_id, cgroup, resource
    )
SELECT
    summed.host,
    summed.own_source_id,
    summed.cgroup,
    summed.resource,
    summed.interval_ns,
    summed.covered_ns,
    summed.some_ratio,
    summed.full_ratio,
    summed.throttled_ns,
    summed.worst.ratio AS worst_ratio,
    summed.worst.start_ns AS worst_start_ns,
    summed.worst.end_ns AS worst_end_ns,
    stepped.step_ratio,
    coalesce(stepped.worst_steps, []) AS worst_steps,
    stepped.worst_step_ratio,
    summed.worst.source_id AS source_id,
    summed.worst.place AS place,
    summed.attempt
FROM summed
LEFT JOIN stepped
    ON stepped.attempt IS NOT DISTINCT FROM summed.attempt
    AND stepped.host IS NOT DISTINCT FROM summed.host
    AND stepped.own_source_id IS NOT DISTINCT FROM summed.own_source_id
    AND stepped.cgroup IS NOT DISTINCT FROM summed.cgroup
    AND stepped.resource = summed.resource
ORDER BY
    summed.attempt, summed.host, summed.own_source_id, summed.cgroup NULLS FIRST, summed.resource;
