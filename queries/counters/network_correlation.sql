-- Whether counters of ports go with slow steps, and which way.
--
-- A port that pauses, drops or waits in slow steps may hold the job up, may suffer from what does,
-- or may only be busy when the job is. Both series are prewhitened, ranked, scanned over eleven
-- lags and compared with shuffled ones; the port's traffic is held constant, ports without the job
-- are the negative control, and all ports and counters share one false discovery rate. Too few
-- steps, or a counter that stirred in too few of them, is an answer of its own.
--
-- reads: network_correlation
-- needs: network_correlation
-- grain: attempt, node, port, counter
-- column: node VARCHAR : Switch or host that counts; null where unknown.
-- column: port VARCHAR : Port or NIC.
-- column: counter VARCHAR : Canonical name; its priorities and queues are added up.
-- column: lag_s DOUBLE : Seconds by which the counter follows the step's time (below 0: it leads);
--     null where it was not tested.
-- column: rho DOUBLE : Partial rank correlation, the strongest over the lags, -1..1.
-- column: p_value DOUBLE : Share of shuffles that do as well, lags included.
-- column: q_value DOUBLE : False discovery rate over all ports and counters (Benjamini-Hochberg).
-- column: effect_ratio DOUBLE : Step time in the counter's top quarter over its bottom one, less 1.
-- column: cost_ratio DOUBLE : Share of the mean step above steps in the counter's bottom quarter.
-- column: verdict VARCHAR : cause, symptom, none or not_testable.
-- column: reason VARCHAR : What the verdict rests on, or what a test lacks.
-- column: is_on_path BOOLEAN : Whether the port leads to a rank of the job.
-- column: steps_count BIGINT : Steady steps that readings cover by 80 % or more.
-- column: steps_together INTEGER : Steps taken together: readings are too far apart for one.
-- column: windows_count BIGINT : Steps, or stretches of steps, that the test could use.
-- column: active_count BIGINT : Of these, where the counter differs from its usual growth.
-- column: interval_ns DOUBLE : Usual time between readings.
-- column: attempt INTEGER : Attempt of the job.
-- source: tracekit/stats.py; its null study is a test.
SELECT
    node,
    port,
    counter,
    lag_s,
    rho,
    p_value,
    q_value,
    effect_ratio,
    cost_ratio,
    verdict,
    reason,
    is_on_path,
    steps_count,
    steps_together,
    windows_count,
    active_count,
    interval_ns,
    attempt
FROM network_correlation
ORDER BY attempt, q_value NULLS LAST, node, port, counter;
