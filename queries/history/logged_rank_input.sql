-- How long each rank waited for input beside its peers, by the training logs of several ranks.
--
-- Ranks of one job step together, so in each step the one that waits longest sets how long it is,
-- and the others wait for it where no log shows. Compared are steps that two ranks or more tell,
-- without the first of the log and of each epoch, where the workers of a loader begin; of a step
-- that was done again the later line counts. A rank is held up in a step where it waits longer than
-- the median rank by a tenth of the usual step or more: less may hide behind work that its GPU was
-- given before. What a step loses is what its slowest rank waits longer than the median one; where
-- most steps are without such a wait, not more than the step is longer than these.
--
-- reads: job_step
-- needs: job_step
-- grain: rank
-- column: rank INTEGER : Rank whose log it is.
-- column: ranks_count BIGINT : Ranks that are compared.
-- column: steps_count BIGINT : Steps that this rank tells and others, too.
-- column: hit_steps_count BIGINT : Of them those in which it is held up.
-- column: input_wait_ns DOUBLE : Mean wait for input of a step.
-- column: usual_wait_ns DOUBLE : Mean of what the median rank waits in the same steps.
-- column: held_ratio DOUBLE : Share of the job's lost time in steps in which this rank is held up
--     for at least half as long as the slowest; null where nothing is lost.
-- column: step_ns DOUBLE : Mean step of the job.
-- column: lost_ns DOUBLE : What a step of the job loses on average, all ranks together.
-- column: lost_steps_count BIGINT : Steps of the job that lose something.
-- column: longest_wait_ns BIGINT : Its longest wait.
-- column: longest_step BIGINT : In which step.
-- column: source_id INTEGER : File of that line.
-- column: place BIGINT : The line.
WITH
    told AS (
        SELECT
            tag AS rank,
            coalesce(epoch, -1) AS epoch,
            step,
            arg_max(
                {'source_id': source_id, 'place': place, 'dur_ns': dur_ns,
                'wait_ns': input_wait_ns},
                (coalesce(time_ns, -1), source_id, place)
            ) AS line
        FROM job_step
        WHERE tag IS NOT NULL AND step IS NOT NULL AND input_wait_ns IS NOT NULL AND dur_ns > 0
        GROUP BY ALL
    ),
    later AS (
        SELECT rank, epoch, step, line.source_id, line.place, line.dur_ns, line.wait_ns
        FROM told
        QUALIFY step > min(step) OVER (PARTITION BY epoch)
    ),
    each_step AS (
        SELECT
            epoch,
            step,
            quantile_disc(wait_ns, 0.5) AS usual_wait_ns,
            max(wait_ns) AS longest_ns,
            max(dur_ns) AS dur_ns
        FROM later
        GROUP BY epoch, step
        HAVING count(*) > 1
    ),
    usual AS (
        SELECT median(dur_ns) AS dur_ns
        FROM each_step
    ),
    judged AS (
        SELECT
            each_step.*,
            each_step.longest_ns - each_step.usual_wait_ns >= 0.1 * usual.dur_ns AS is_hit
        FROM each_step
        CROSS JOIN usual
    ),
    free AS (
        SELECT
            if(2 * count(*) FILTER (WHERE NOT is_hit) > count(*),
            median(dur_ns) FILTER (WHERE NOT is_hit), 0) AS dur_ns
        FROM judged
    ),
    priced AS (
        SELECT
            judged.*,
            if(
                judged.is_hit,
                greatest(least(judged.longest_ns - judged.usual_wait_ns,
                judged.dur_ns - free.dur_ns), 0),
                0
            ) AS lost_ns
        FROM judged
        CROSS JOIN free
    ),
    job AS (
        SELECT
            avg(dur_ns) AS step_ns,
            avg(lost_ns) AS lost_ns,
            sum(lost_ns) AS all_lost_ns,
            count(*) FILTER (WHERE lost_ns > 0) AS lost_steps_count
        FROM priced
    ),
    compared AS (
        SELECT
            later.*,
            priced.usual_wait_ns,
            priced.lost_ns,
            later.wait_ns - priced.usual_wait_ns >= 0.1 * usual.dur_ns AS is_held,
            2 * (later.wait_ns - priced.usual_wait_ns)
            >= priced.longest_ns - priced.usual_wait_ns AS is_slowest
        FROM later
        JOIN priced USING (epoch, step)
        CROSS JOIN usual
    )
SELECT
    compared.rank,
    count(*) OVER () AS ranks_count,
    count(*) AS steps_count,
    count(*) FILTER (WHERE compared.is_held) AS hit_steps_count,
    avg(compared.wait_ns) AS input_wait_ns,
    avg(compared.usual_wait_ns) AS usual_wait_ns,
    coalesce(sum(compared.lost_ns) FILTER (WHERE compared.is_held AND compared.is_slowest), 0)
    / nullif(any_value(job.all_lost_ns), 0) AS held_ratio,
    any_value(job.step_ns) AS step_ns,
    any_value(job.lost_ns) AS lost_ns,
    any_value(job.lost_steps_count) AS lost_steps_count,
    max(compared.wait_ns) AS longest_wait_ns,
    arg_max(compared.step, (compared.wait_ns, -compared.step)) AS longest_step,
    arg_max(compared.source_id, (compared.wait_ns, -compared.step)) AS source_id,
    arg_max(compared.place, (compared.wait_ns, -compared.step)) AS place
FROM compared
CROSS JOIN job
GROUP BY compared.rank
ORDER BY held_ratio DESC NULLS LAST, compared.rank;
