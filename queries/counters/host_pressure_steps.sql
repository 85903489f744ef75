-- What the tasks of hosts waited for in each step, of those that waited most while steps ran.
--
-- Shows whether a host lacked CPU, memory or storage in the very steps that were slow. What a
-- reading tells is spread evenly over the time since the one before (see host_pressure).
--
-- reads: host_sample, run, step, clock, clock_offset
-- needs: host_sample, step
-- grain: attempt, host, own_source_id, cgroup, resource, capture_id, step
-- param: series_count BIGINT = 64 : Most hosts and control groups of a resource.
-- column: host VARCHAR : Host; null where unknown.
-- column: own_source_id INTEGER : File whose samples are meant; null where a host is known.
-- column: cgroup VARCHAR : Control group; null: the whole machine, or not said.
-- column: resource VARCHAR : As in host_pressure.
-- column: capture_id INTEGER : Capture window, from 0.
-- column: step BIGINT : Job-level step.
-- column: some_ratio DOUBLE : Share of the step in which at least one task waited, as far as
--     readings cover it; as in host_pressure. Null where the group wanted no CPU.
-- column: covered_ratio DOUBLE : Share of the step that readings cover.
-- column: source_id INTEGER : File of the reading that covers most of the step.
-- column: place BIGINT : Its place in that file.
-- column: attempt INTEGER : Attempt of the job.
WITH
    waited AS (
        SELECT waits AS key, start_ns, end_ns
        FROM host_waits(if(EXISTS (SELECT 1 FROM run), 'epoch', NULL)) AS waits
        WHERE some_amount IS NOT NULL
    ),
    of_steps AS (
        SELECT
            attempt, key.host, key.own_source_id, key.cgroup, key.resource, capture_id, step,
            sum(key.some_amount * shared_ns / reading_ns) AS some_amount,
            sum(key.base * shared_ns / reading_ns) AS base,
            sum(shared_ns) / any_value(step_ns) AS covered_ratio,
            arg_max(
                {source_id: key.source_id, place: key.place},
                (shared_ns, -key.source_id, -key.place)
            ) AS spot
        FROM readings_in_steps('waited')
        GROUP BY ALL
    ),
    worst AS (
        SELECT attempt, host, own_source_id, cgroup, resource
        FROM of_steps
        GROUP BY attempt, host, own_source_id, cgroup, resource
        QUALIFY row_number() OVER (
            PARTITION BY attempt, resource
            ORDER BY
                sum(some_amount) / nullif(sum(base), 0) DESC NULLS LAST,
                host, own_source_id, cgroup NULLS FIRST
        ) <= $series_count
    )
SELECT
    of_steps.host,
    of_steps.own_source_id,
    of_steps.cgroup,
    of_steps.resource,
    of_steps.capture_id,
    of_steps.step,
    of_steps.some_amount / nullif(of_steps.base, 0) AS some_ratio,
    least(1.0, of_steps.covered_ratio) AS covered_ratio,
    of_steps.spot.source_id AS source_id,
    of_steps.spot.place AS place,
    of_steps.attempt
FROM of_steps
JOIN worst
    ON worst.attempt IS NOT DISTINCT FROM of_steps.attempt
    AND worst.host IS NOT DISTINCT FROM of_steps.host
    AND worst.own_source_id IS NOT DISTINCT FROM of_steps.own_source_id
    AND worst.cgroup IS NOT DISTINCT FROM of_steps.cgroup
    AND worst.resource = of_steps.resource
ORDER BY
    of_steps.attempt, of_steps.host, of_steps.own_source_id, of_steps.cgroup NULLS FIRST,
    of_steps.resource, of_steps.capture_id, of_steps.step;
