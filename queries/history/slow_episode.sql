-- What stands out in the job's history: stalls, slow stretches, rises, periods, drifts, restarts.
--
-- Incidents last minutes to days and profiles seconds. A stretch is told against the level of most
-- of the time. A job that begins with a faster one has risen: its steps take longer since.
--
-- reads: job_episode
-- needs: job_episode
-- asked: report
-- grain: kind, first_step, last_step
-- column: kind VARCHAR : stall, slow, fast, risen, periodic, drift, restart or silence (behind the
--     last step, until what ended the job).
-- column: first_step BIGINT : First step of it; of a restart, the first one done again.
-- column: last_step BIGINT : Last step of it; of a restart, the last one before.
-- column: start_ns BIGINT : When it began; null without a clock.
-- column: end_ns BIGINT : When it ended; null without a clock.
-- column: dur_ns BIGINT : How long its steps take; null for a restart.
-- column: usual_ns BIGINT : How long steps take otherwise; of risen, before.
-- column: lost_ns BIGINT : How much longer it took than as many usual steps.
-- column: period_count BIGINT : Steps from one stall to the next, where they are periodic.
-- column: times_count BIGINT : How often, where periodic.
-- column: clock_period_ns BIGINT : Time from one to the next, such as an hour, where a period keeps
--     to the clock; else null.
-- column: per_day_ratio DOUBLE : Growth of the step in a day, of a drift; negative where it falls.
-- column: repeated_count BIGINT : Steps that a restart did again.
-- column: evaluations_count BIGINT : Slow lines of it with an evaluation before them; null: none.
-- column: checkpoints_count BIGINT : The same of checkpoints that are saved.
-- column: collections_count BIGINT : The same of collections of garbage.
-- column: inputs_count BIGINT : Slow lines in which a rank waited for input half of the time or
--     more, as its log states.
-- column: epochs_count BIGINT : The same of ends and beginnings of epochs.
-- column: ended_for VARCHAR : Of a restart: what its scheduler ended the start before it for, such
--     as node failure or preempted, by a line of its log; null: no line says.
SELECT
    kind,
    first_step,
    last_step,
    start_ns,
    end_ns,
    dur_ns,
    usual_ns,
    lost_ns,
    period_count,
    times_count,
    clock_period_ns,
    per_day_ratio,
    repeated_count,
    evaluations_count,
    checkpoints_count,
    collections_count,
    inputs_count,
    epochs_count,
    ended_for
FROM job_episode
ORDER BY first_step, kind, last_step;
