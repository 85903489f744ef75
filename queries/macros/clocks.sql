-- How far clocks may be apart.

-- clock_errors: How far each clock may be off against the reference, in ns.
--
-- -1 where it was not compared in every capture. Clocks without a row were never in doubt.
--
-- reads: clock_offset
-- columns: clock_id INTEGER, error_ns BIGINT
CREATE OR REPLACE MACRO clock_errors() AS TABLE
SELECT clock_id, if(count(error_ns) = count(*), max(error_ns), -1) AS error_ns
FROM clock_offset
GROUP BY clock_id;

-- clocks_apart: How far two clocks may be apart, in ns; -1 where they were never compared.
--
-- By their own pair where that is known, else both errors against the reference.
--
-- param: clock_id INTEGER : One clock.
-- param: other_clock_id INTEGER : The other.
-- param: pair_error_ns BIGINT : What clock_pair has for the two, or null.
-- param: error_ns BIGINT : What clock_errors has for the one, or null.
-- param: other_ns BIGINT : What clock_errors has for the other, or null.
-- returns: BIGINT : ns, or -1.
CREATE OR REPLACE MACRO clocks_apart(clock_id, other_clock_id, pair_error_ns, error_ns, other_ns) AS
CASE
    WHEN clock_id IS NOT DISTINCT FROM other_clock_id THEN 0
    WHEN pair_error_ns IS NOT NULL THEN pair_error_ns
    WHEN least(coalesce(error_ns, 0), coalesce(other_ns, 0)) < 0 THEN -1
    ELSE coalesce(error_ns, 0) + coalesce(other_ns, 0)
END;
