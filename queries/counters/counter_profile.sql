-- What each GPU did by its counters alone: busy or idle, how even its traffic, the work's period.
--
-- Most jobs have no trace, all have counters. The share of busy readings says which GPUs work and
-- which stand by, so that power or temperature is compared among GPUs of like load only; the period
-- says how long what repeats itself takes. Nothing here says why. No rows beside traces, which say
-- more. Shares and period are of what --since and --until select; a period of which no repeat is
-- seen there is null.
--
-- reads: gpu_sample, gpu_counter_summary, source_context, gpu, run, clock, activity_period,
--     activity_step
-- needs: gpu_sample, activity_period
-- grain: attempt, gpu_id
-- asked: report
-- param: slack_ns BIGINT = 30000000000 : How far the job's window is widened on both sides.
-- param: most_idle_ratio DOUBLE = 0.05 : A GPU with no larger share of busy readings is idle.
-- param: least_samples_count BIGINT = 10 : Readings below which its load is not said.
-- column: gpu_id VARCHAR : GPU, as in gpu_counters; of a host that nobody named, with its file.
-- column: host VARCHAR : Its host; null where unknown.
-- column: gpu_index INTEGER : NVML index; null where unknown.
-- column: rank INTEGER : Rank that uses it; null where nothing says so.
-- column: load VARCHAR : busy or idle; null where activity was sampled too rarely or not.
-- column: alike_count BIGINT : Other GPUs of the same load; null as load.
-- column: load_counter VARCHAR : sm_active, else graphics_active, else gpu_utilisation.
-- column: samples_count BIGINT : Readings of that; null where there is none.
-- column: busy_ratio DOUBLE : Share of them that are busy, 0..1: SMs or graphics active for 0.2 of
--     the time, or utilised for 0.5, which counts a kernel that waits as work.
-- column: idle_ratio DOUBLE : Share of them that are not.
-- column: first_ns BIGINT : Moment of the first of all readings used here.
-- column: span_ns BIGINT : From that to the last.
-- column: mean_power_w DOUBLE : Mean of its power, W; null where not sampled, as all that follow.
-- column: mean_nvlink_bytes_per_s DOUBLE : Mean rate over NVLink, sent and received, bytes/s.
-- column: nvlink_tx_ratio DOUBLE : Share of that which it sent: 0.5 is even.
-- column: mean_pcie_bytes_per_s DOUBLE : The same over PCIe.
-- column: pcie_tx_ratio DOUBLE : Share of that which it sent.
-- column: period_ns DOUBLE : Period of the work, of all devices together; null where none is clear,
--     or where it may be the echo of something faster.
-- column: period_counter VARCHAR : Counter that was looked at for it.
-- column: period_strength_ratio DOUBLE : Autocorrelation at it and at twice it, the less.
-- column: period_p_value DOUBLE : How often noise of the same persistence repeats as strongly;
--     null where the strength alone is too little.
-- column: periods_count BIGINT : Its repetitions in what is selected.
-- column: period_reason VARCHAR : What the period rests on, or why there is none.
-- column: attempt INTEGER : Null: attempts are known from traces only.
-- source: tracekit/derive/counter_period.py for the period.
WITH
    -- Named after they are summed up: a day has 100 million samples.
    sums AS (
        SELECT
            key, attempt, counter, first_ns, last_ns,
            values_count AS samples_count,
            total_value AS total,
            if(counter = 'gpu_utilisation', utilised_count, active_count) AS busy_count
        FROM gpu_summaries($slack_ns)
        WHERE
            kind = 'gauge'
            AND values_count > 0
            AND counter IN (
                'sm_active', 'graphics_active', 'gpu_utilisation', 'power', 'nvlink_tx',
                'nvlink_rx', 'pcie_tx', 'pcie_rx'
            )
            AND EXISTS (SELECT 1 FROM activity_period)
    ),
    counted AS (
        SELECT
            sums.attempt,
            gpu.gpu_id,
            min(gpu.host) AS host,
            min(gpu.gpu_index) AS gpu_index,
            min(gpu.rank) AS rank,
            sums.counter,
            CAST(sum(sums.samples_count) AS BIGINT) AS samples_count,
            sum(sums.total) / sum(sums.samples_count) AS mean_value,
            sum(sums.busy_count) / sum(sums.samples_count) AS busy_ratio,
            min(sums.first_ns) AS first_ns,
            max(sums.last_ns) AS last_ns
        FROM sums
        JOIN keyed_gpus() AS gpu USING (key)
        GROUP BY sums.attempt, gpu.gpu_id, sums.counter
    ),
    profiled AS (
        SELECT
            attempt,
            gpu_id,
            min(host) AS host,
            min(gpu_index) AS gpu_index,
            min(rank) AS rank,
            CASE
                WHEN bool_or(counter = 'sm_active') THEN 'sm_active'
                WHEN bool_or(counter = 'graphics_active') THEN 'graphics_active'
                WHEN bool_or(counter = 'gpu_utilisation') THEN 'gpu_utilisation'
            END AS load_counter,
            map_from_entries(list((counter, samples_count))) AS samples_count,
            map_from_entries(list((counter, busy_ratio))) AS busy_ratio,
            min(first_ns) AS first_ns,
            max(last_ns) - min(first_ns) AS span_ns,
            max(mean_value) FILTER (counter = 'power') AS mean_power_w,
            max(mean_value) FILTER (counter = 'nvlink_tx') AS nvlink_tx,
            max(mean_value) FILTER (counter = 'nvlink_rx') AS nvlink_rx,
            max(mean_value) FILTER (counter = 'pcie_tx') AS pcie_tx,
            max(mean_value) FILTER (counter = 'pcie_rx') AS pcie_rx
        FROM counted
        GROUP BY attempt, gpu_id
    ),
    loaded AS (
        SELECT
            * REPLACE (
                samples_count[load_counter] AS samples_count,
                busy_ratio[load_counter] AS busy_ratio
            ),
            CASE
                WHEN samples_count[load_counter] >= $least_samples_count
                    THEN if(busy_ratio[load_counter] <= $most_idle_ratio, 'idle', 'busy')
            END AS load
        FROM profiled
    ),
    repeated AS (
        SELECT attempt, count(*) AS periods_count
        FROM activity_step
        GROUP BY attempt
    )
SELECT
    loaded.gpu_id,
    loaded.host,
    loaded.gpu_index,
    loaded.rank,
    loaded.load,
    if(
        loaded.load IS NULL,
        NULL,
        count(*) OVER (PARTITION BY loaded.attempt, loaded.load) - 1
    ) AS alike_count,
    loaded.load_counter,
    loaded.samples_count,
    loaded.busy_ratio,
    1 - loaded.busy_ratio AS idle_ratio,
    loaded.first_ns,
    loaded.span_ns,
    loaded.mean_power_w,
    loaded.nvlink_tx + loaded.nvlink_rx AS mean_nvlink_bytes_per_s,
    loaded.nvlink_tx / nullif(loaded.nvlink_tx + loaded.nvlink_rx, 0) AS nvlink_tx_ratio,
    loaded.pcie_tx + loaded.pcie_rx AS mean_pcie_bytes_per_s,
    loaded.pcie_tx / nullif(loaded.pcie_tx + loaded.pcie_rx, 0) AS pcie_tx_ratio,
    if(
        period.verdict = 'steps' AND repeated.periods_count > 0, period.period_ns, NULL
    ) AS period_ns,
    period.counter AS period_counter,
    period.strength_ratio AS period_strength_ratio,
    period.p_value AS period_p_value,
    coalesce(repeated.periods_count, 0) AS periods_count,
    period.reason AS period_reason,
    loaded.attempt
FROM loaded
JOIN activity_period AS period ON period.attempt IS NOT DISTINCT FROM loaded.attempt
LEFT JOIN repeated ON repeated.attempt IS NOT DISTINCT FROM loaded.attempt
ORDER BY loaded.attempt, loaded.host, loaded.gpu_index, loaded.gpu_id;
