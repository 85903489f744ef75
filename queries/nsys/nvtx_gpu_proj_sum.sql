-- Ranges projected onto the GPU, by name, as nsys stats sums them.
--
-- The same columns and digits as nsys stats prints, so that the two can be compared line by line.
-- The projection of a range reaches from the start of the first to the end of the last operation
-- that its thread launched within it. Backward passes run on a thread of their own: a range of the
-- main thread does not hold what they launch.
--
-- reads: annotation
-- grain: Range, Style
-- column: "Range" VARCHAR : Name, after the domain's and a colon outside the default domain.
-- column: "Style" VARCHAR : PushPop or StartEnd.
-- column: "Total Proj Time (ns)" BIGINT : Sum of the projections.
-- column: "Total Range Time (ns)" BIGINT : Sum of the ranges' own durations on the host.
-- column: "Range Instances" BIGINT : Ranges with work on a GPU; others are not listed.
-- column: "Proj Avg (ns)" DOUBLE : Mean projection.
-- column: "Proj Med (ns)" DOUBLE : Median projection.
-- column: "Proj Min (ns)" BIGINT : Shortest projection.
-- column: "Proj Max (ns)" BIGINT : Longest projection.
-- column: "Proj StdDev (ns)" DOUBLE : Standard deviation of the sample; 0 for a single range.
-- column: "Total GPU Ops" BIGINT : Launches within these ranges that put work on a GPU.
-- column: "Avg GPU Ops" DOUBLE : The same, a range.
-- column: "Avg Range Lvl" DOUBLE : Mean count of ranges around.
-- column: "Avg Num Child" DOUBLE : Mean count of ranges directly inside that have work on a GPU.
-- source: nsys stats --report nvtx_gpu_proj_sum.
WITH
    projected AS (
        SELECT
            concat_ws(':', producer_domain, name) AS range_name,
            CASE style WHEN 'push_pop' THEN 'PushPop' ELSE 'StartEnd' END AS range_style,
            gpu_end_ns - gpu_start_ns AS gpu_ns,
            dur_ns,
            gpu_launches_count,
            level,
            gpu_children_count
        FROM annotation
        WHERE gpu_launches_count > 0 AND style IN ('push_pop', 'start_end')
    )
SELECT
    range_name AS "Range",
    range_style AS "Style",
    CAST(sum(gpu_ns) AS BIGINT) AS "Total Proj Time (ns)",
    CAST(sum(dur_ns) AS BIGINT) AS "Total Range Time (ns)",
    count(*) AS "Range Instances",
    round(avg(gpu_ns), 1) AS "Proj Avg (ns)",
    round(median(gpu_ns), 1) AS "Proj Med (ns)",
    min(gpu_ns) AS "Proj Min (ns)",
    max(gpu_ns) AS "Proj Max (ns)",
    round(coalesce(stddev_samp(gpu_ns), 0), 1) AS "Proj StdDev (ns)",
    CAST(sum(gpu_launches_count) AS BIGINT) AS "Total GPU Ops",
    round(avg(gpu_launches_count), 1) AS "Avg GPU Ops",
    round(avg(level), 1) AS "Avg Range Lvl",
    round(avg(gpu_children_count), 1) AS "Avg Num Child"
FROM projected
GROUP BY range_name, range_style
ORDER BY "Total Proj Time (ns)" DESC, "Range", "Style";
