-- The steps that GPU counters show where no trace was given, or why they show none.
--
-- With counters alone a step is one period of the GPUs' activity: good for a rough step time and
-- for setting the counters of ports beside it, not for saying where the time of a step went. One
-- row without a step where there are none.
--
-- reads: activity_period, activity_step
-- needs: activity_period
-- grain: attempt, step
-- asked: report
-- column: verdict VARCHAR : steps or none.
-- column: reason VARCHAR : What the steps rest on, or why there are none.
-- column: counter VARCHAR : Counter that was looked at; null where there is none to look at.
-- column: step BIGINT : Number of the step; null where there are none.
-- column: start_ns BIGINT : Its start: where activity is least.
-- column: dur_ns BIGINT : Its duration.
-- column: error_ns BIGINT : How exact both are, about: the sampling interval.
-- column: step_source VARCHAR : counters: nothing marked it.
-- column: period_ns DOUBLE : The period; where there are no steps it may be an echo of faster ones.
-- column: interval_ns DOUBLE : Usual time between readings.
-- column: gpus_count BIGINT : GPUs whose readings vary.
-- column: strength_ratio DOUBLE : Autocorrelation at the period and at twice it, the less.
-- column: p_value DOUBLE : How often noise of the same persistence repeats as strongly;
--     null where the strength alone is too little.
-- column: attempt INTEGER : Null: attempts are known from traces only.
-- source: tracekit/derive/counter_period.py; its null study is a test.
SELECT
    period.verdict,
    period.reason,
    period.counter,
    step.step,
    step.start_ns,
    step.dur_ns,
    step.error_ns,
    step.step_source,
    period.period_ns,
    period.interval_ns,
    period.gpus_count,
    period.strength_ratio,
    period.p_value,
    period.attempt
FROM activity_period AS period
LEFT JOIN activity_step AS step ON step.attempt IS NOT DISTINCT FROM period.attempt
ORDER BY period.attempt, step.step, step.start_ns;
