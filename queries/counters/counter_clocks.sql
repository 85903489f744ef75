-- How far the clock of each switch's or host's counters is from the traces'.
--
-- Bytes conserve: what a port carries is what its host's collectives moved. The offset is where
-- both go together best, and is named only where it stands out from the next best: a steady job's
-- traffic repeats with its steps. A clock that is off is put right where counters are read off at
-- steps (counter_step, network_correlation); no other table moves.
--
-- reads: counter_clock
-- grain: attempt, node
-- column: node VARCHAR : Switch or host that counts; null where unknown.
-- column: verdict VARCHAR : agrees, off or unknown.
-- column: reason VARCHAR : What the verdict rests on, or what an estimate lacks.
-- column: offset_ns BIGINT : Its clock less the traces'; null where unknown.
-- column: error_ns BIGINT : How far the offset may be wrong.
-- column: interval_ns DOUBLE : Usual time between readings.
-- column: intervals_count BIGINT : Intervals between readings that the traces cover.
-- column: strength_ratio DOUBLE : Correlation of bytes and collectives at the offset, -1..1.
-- column: next_ratio DOUBLE : The same at the best offset elsewhere.
-- column: attempt INTEGER : Attempt of the job.
-- source: tracekit/derive/counter_clock.py; its null study is a test.
SELECT
    node,
    verdict,
    reason,
    offset_ns,
    error_ns,
    interval_ns,
    intervals_count,
    strength_ratio,
    next_ratio,
    attempt
FROM counter_clock
ORDER BY attempt, node;
