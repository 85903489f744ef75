-- What kernels reported beside XIDs: NVSwitches, links, NICs, PCIe, storage, memory, heat.
--
-- Of what makes many lines a row is an hour of it, with their count; of what begins and ends, one
-- time that it lasted. Whether the job used the device the kernel does not know.
--
-- reads: log_event, run, rank, clock
-- needs: log_event
-- grain: attempt, source_id, place, code, device, what, pid
-- param: slack_ns BIGINT = 30000000000 : How far the job's window is widened on both sides.
-- column: host VARCHAR : Host; null where the log does not say.
-- column: code VARCHAR : kernel-gpu-failed, sxid-NUMBER, kernel-link-down, kernel-nic-failed,
--     kernel-cable, kernel-pcie-error, kernel-pcie-lost, kernel-no-answer (of a file server),
--     kernel-evicted, kernel-disk-error, kernel-stuck-task, kernel-lockup, kernel-memory-error,
--     kernel-heat, kernel-crash or oom-kill.
-- column: device VARCHAR : Interface, PCI address, disk, file server or memory controller.
-- column: what VARCHAR : Which of its errors; null where there is one kind.
-- column: program VARCHAR : Program that is stuck or crashed.
-- column: pid BIGINT : Its process.
-- column: library VARCHAR : Where it crashed.
-- column: reports_count BIGINT : How often in that hour.
-- column: lasted_ns BIGINT : From its begin to its end, or from the first of that hour to the last;
--     null where the log does not say.
-- column: is_over BOOLEAN : Whether what began was seen to end; null for what has no end.
-- column: was_up BOOLEAN : Whether a link was seen to be up, or a server to answer.
-- column: longest_ns BIGINT : How long a task or CPU was stuck, as the kernel says.
-- column: time_ns BIGINT : When it began; null where unknown.
-- column: is_in_window BOOLEAN : Whether while the job ran; null where the clocks do not say.
-- column: ranks INTEGER[] : Ranks of its host; null where none is known.
-- column: source_id INTEGER : File.
-- column: place BIGINT : Its first line.
-- column: attempt INTEGER : Attempt of the job; null where no trace was given.
WITH
    windows AS (
        SELECT attempt, start_ns - $slack_ns AS start_ns, end_ns + $slack_ns AS end_ns
        FROM attempt_windows()
    ),
    given AS (
        SELECT
            source_id,
            place,
            clock_id,
            host,
            code,
            device_id,
            time_ns,
            named_fields(fields) AS said
        FROM log_event
        WHERE
            (starts_with(code, 'kernel-') OR starts_with(code, 'sxid-') OR code = 'oom-kill')
            AND said IS NOT NULL
    ),
    told AS (
        SELECT
            source_id,
            place,
            clock_id,
            coalesce(said['host'], host) AS host,
            code,
            time_ns,
            coalesce(said['device'], device_id) AS device,
            coalesce(said['what'], said['of'], said['severity']) AS what,
            said['program'] AS program,
            TRY_CAST(said['pid'] AS BIGINT) AS pid,
            said['library'] AS library,
            coalesce(TRY_CAST(said['count'] AS BIGINT), 1) AS reports_count,
            TRY_CAST(said['lasted_ms'] AS BIGINT) * 1000000 AS lasted_ns,
            said['is_over'] = '1' AS is_over,
            coalesce(said['was_up'] = '1', false) AS was_up,
            TRY_CAST(said['seconds'] AS BIGINT) * 1000000000 AS longest_ns
        FROM given
    )
SELECT
    told.host,
    told.code,
    told.device,
    told.what,
    told.program,
    told.pid,
    told.library,
    told.reports_count,
    told.lasted_ns,
    told.is_over,
    told.was_up,
    told.longest_ns,
    told.time_ns,
    if(
        clock.basis = 'epoch' AND windows.start_ns IS NOT NULL,
        told.time_ns <= windows.end_ns
        AND told.time_ns + coalesce(told.lasted_ns, 0) >= windows.start_ns,
        NULL
    ) AS is_in_window,
    ranks_by_host.ranks,
    told.source_id,
    told.place,
    windows.attempt
FROM told
CROSS JOIN windows
LEFT JOIN clock USING (clock_id)
LEFT JOIN ranks_by_host() AS ranks_by_host
    ON ranks_by_host.host = lower(split_part(told.host, '.', 1))
ORDER BY
    windows.attempt, told.source_id, told.place, told.code, told.device, told.what, told.pid;
