-- What counters alone say of a job: who works, when it communicates, and what that fits.
--
-- Most jobs have no trace. Each row carries the number that it rests on; several layouts make the
-- same traffic, so one is named only as what the number is compatible with, beside what would
-- decide. What lies between two words is not stated. All of it is of what is selected.
--
-- reads: counter_statement
-- needs: counter_statement
-- grain: attempt, kind, scope
-- asked: report
-- column: kind VARCHAR : waiting (in use, and drawing little), load (GPUs of like load), apart (one
--     beside its load group), independent, bursts_*, stretch_* and throughout_* (when traffic
--     flows), offload, ports, clock_offset, in_turn.
-- column: scope VARCHAR : Devices or nodes that it is said of.
-- column: statistic VARCHAR : What the number is.
-- column: value DOUBLE : The number: a ratio, a correlation, or seconds.
-- column: error DOUBLE : How far the number may be wrong; null where it is counted.
-- column: sentence VARCHAR : The statement.
-- column: compatible_with VARCHAR : What it fits, never what it proves; null: nothing is named.
-- column: decided_by VARCHAR : What would say which of these it is.
-- column: attempt INTEGER : Null: attempts are known from traces only.
-- source: tracekit/derive/statements.py
SELECT kind, scope, statistic, value, error, sentence, compatible_with, decided_by, attempt
FROM counter_statement
ORDER BY attempt, kind, scope, sentence;
