-- CUDA calls on the host by name, as nsys stats sums them.
--
-- The same columns and digits as nsys stats prints, so that the two can be compared line by line;
-- over several ranks the figures are exact, where NVIDIA's recipes take medians of medians. The
-- version that the interface adds to a name (_v3020) is left out. By default nsys records only the
-- calls that it holds to matter (--cuda-trace-all-apis).
--
-- reads: host_op
-- grain: Name
-- column: "Time (%)" DOUBLE : Share of the listed rows' total, in percent; not of the time that
--     passed.
-- column: "Total Time (ns)" BIGINT : Sum of the durations.
-- column: "Num Calls" BIGINT : Calls.
-- column: "Avg (ns)" DOUBLE : Mean duration.
-- column: "Med (ns)" DOUBLE : Median duration, over all rows of all ranks.
-- column: "Min (ns)" BIGINT : Shortest.
-- column: "Max (ns)" BIGINT : Longest.
-- column: "StdDev (ns)" DOUBLE : Standard deviation of the sample; 0 for a single row.
-- column: "Name" VARCHAR : Name of the call, without its version.
-- source: nsys stats --report cuda_api_sum.
SELECT
    round(100 * sum(dur_ns) / nullif(sum(sum(dur_ns)) OVER (), 0), 1) AS "Time (%)",
    CAST(sum(dur_ns) AS BIGINT) AS "Total Time (ns)",
    count(*) AS "Num Calls",
    round(avg(dur_ns), 1) AS "Avg (ns)",
    round(median(dur_ns), 1) AS "Med (ns)",
    min(dur_ns) AS "Min (ns)",
    max(dur_ns) AS "Max (ns)",
    round(coalesce(stddev_samp(dur_ns), 0), 1) AS "StdDev (ns)",
    name AS "Name"
FROM host_op
WHERE category IN ('runtime', 'driver')
GROUP BY name
ORDER BY "Total Time (ns)" DESC, "Name";
