-- Copies and sets of device memory by kind, as nsys stats sums their time.
--
-- The same columns and digits as nsys stats prints, so that the two can be compared line by line;
-- over several ranks the figures are exact, where NVIDIA's recipes take medians of medians. Copies
-- of other producers appear under the names that those gave them.
--
-- reads: gpu_op
-- grain: Operation
-- column: "Time (%)" DOUBLE : Share of the listed rows' total, in percent; not of the time that
--     passed.
-- column: "Total Time (ns)" BIGINT : Sum of the durations.
-- column: "Count" BIGINT : Operations.
-- column: "Avg (ns)" DOUBLE : Mean duration.
-- column: "Med (ns)" DOUBLE : Median duration, over all rows of all ranks.
-- column: "Min (ns)" BIGINT : Shortest.
-- column: "Max (ns)" BIGINT : Longest.
-- column: "StdDev (ns)" DOUBLE : Standard deviation of the sample; 0 for a single row.
-- column: "Operation" VARCHAR : Kind of operation.
-- source: nsys stats --report cuda_gpu_mem_time_sum.
SELECT
    round(100 * sum(dur_ns) / nullif(sum(sum(dur_ns)) OVER (), 0), 1) AS "Time (%)",
    CAST(sum(dur_ns) AS BIGINT) AS "Total Time (ns)",
    count(*) AS "Count",
    round(avg(dur_ns), 1) AS "Avg (ns)",
    round(median(dur_ns), 1) AS "Med (ns)",
    min(dur_ns) AS "Min (ns)",
    max(dur_ns) AS "Max (ns)",
    round(coalesce(stddev_samp(dur_ns), 0), 1) AS "StdDev (ns)",
    name AS "Operation"
FROM gpu_op
WHERE category IN ('memcpy', 'memset')
GROUP BY name
ORDER BY "Total Time (ns)" DESC, "Operation";
