-- Which processes of the job failed, in which launch, with what, and whether on their own.
--
-- When one rank fails the others lose their peer, wait until a timeout, or are terminated: of all
-- that ended only the one that ended by itself is the cause. Ranks are named where a log does. A
-- task that ended after its step was cancelled, without an exception, is left out: the end of the
-- step is why. Left out is also an exception behind which the same start of the loop reports two
-- steps before anything is seen to end: it was caught, since ranks that lost another report one.
-- Last stands what a scheduler ended the job for, where its records are of one job: the last of
-- them. Which launch an earlier one ended, or which of several jobs this is, they do not say.
--
-- reads: log_event, job_step, logged_step
-- needs: log_event
-- grain: launch, rank, source_id, place
-- column: launch INTEGER : Launch of the job that it ended, from 1; each restart is one.
-- column: rank INTEGER : Rank of the process; null where no line says so.
-- column: local_rank INTEGER : Its number on its host; null where no line says so.
-- column: task VARCHAR : Task or tasks of Slurm, or pod/NAME of Kubernetes; null elsewhere.
-- column: host VARCHAR : Its host; null where unknown.
-- column: pid BIGINT : Its process, as its launcher counts; null where no line says so.
-- column: time_ns BIGINT : When its launcher saw it; null where no line says so.
-- column: exit_code INTEGER : Its exit code; null where a signal ended it, or unsaid.
-- column: signal VARCHAR : Signal that ended it, such as SIGKILL.
-- column: exception VARCHAR : Type of its first Python exception.
-- column: says VARCHAR : What that is about: peer_lost, timeout, mismatch (of collectives: each
--     member raises it), gpu_memory, host_memory, shared_memory, disk_full, loader_killed,
--     loader_died, process_lost, service, storage, link_failed, duplicate_gpu, address_in_use,
--     nccl_shared_memory, no_gpu, no_heartbeat, or of CUDA or ROCm what went wrong; null:
--     something else.
-- column: file VARCHAR : File of the program's own last frame.
-- column: line INTEGER : Line in that file.
-- column: function VARCHAR : Function.
-- column: follows VARCHAR : What it follows from: nothing (it failed on its own), timeout,
--     peer_lost, mismatch, or terminated (by the launcher).
-- column: is_root BOOLEAN : Whether its launcher calls it the first failure.
-- column: memory_of VARCHAR : host or cgroup whose memory ran out, as the kernel or Slurm says.
-- column: lost_host VARCHAR : Host that kept the job's store, which it lost; null elsewhere.
-- column: is_forced BOOLEAN : Whether its launcher killed it, since it did not end at its signal.
-- column: is_resumed BOOLEAN : Whether steps stand behind it in its file.
-- column: scheduler VARCHAR : Why a scheduler ended the whole job, in its words: time limit,
--     cancelled, preempted, evicted, deadline, node failure, out of memory, or terminated where
--     only its launcher was told to end; null: a process.
-- column: source_id INTEGER : File.
-- column: place BIGINT : First line that tells of it.
WITH
    marks AS (
        SELECT
            source_id,
            place,
            code IN ('fatal-signal', 'worker-exit', 'worker-failed', 'task-ended', 'oom-kill')
                AS is_end,
            false AS is_step
        FROM log_event
        UNION ALL
        SELECT
            source_id,
            place,
            start_number <> lag(start_number) OVER (PARTITION BY source_id ORDER BY place),
            true
        FROM logged_step
    ),
    counted AS (
        SELECT
            source_id,
            place,
            count_if(is_step) OVER before_it AS steps_count,
            count_if(is_end) OVER before_it AS ends_count
        FROM marks
        WINDOW before_it AS (PARTITION BY source_id ORDER BY place)
    ),
    -- Places behind which the training went on.
    survived AS (
        SELECT source_id, place
        FROM counted
        QUALIFY
            max(steps_count) OVER (PARTITION BY source_id, ends_count) >= steps_count + 2
    ),
    given AS (
        SELECT
            source_id,
            place,
            time_ns,
            code,
            host AS own_host,
            named_fields(fields) AS said
        FROM log_event
        WHERE
            code IN (
                'python-exception', 'fatal-signal', 'worker-exit', 'worker-failed', 'task-ended',
                'oom-kill', 'pod-ended', 'store-lost'
            )
            AND said IS NOT NULL
            AND (
                code <> 'python-exception'
                OR (source_id, place) NOT IN (SELECT (source_id, place) FROM survived)
            )
    ),
    parsed AS (
        SELECT
            source_id,
            place,
            time_ns,
            code,
            coalesce(TRY_CAST(said['round'] AS INTEGER), 0) + 1 AS launch,
            TRY_CAST(said['rank'] AS INTEGER) AS rank,
            TRY_CAST(said['local_rank'] AS INTEGER) AS local_rank,
            coalesce(said['task'], said['tasks']) AS task,
            coalesce(said['host'], own_host) AS host,
            TRY_CAST(said['pid'] AS BIGINT) AS pid,
            TRY_CAST(said['exit_code'] AS INTEGER) AS exit_code,
            said['signal'] AS signal,
            said['type'] AS exception,
            coalesce(said['cuda'], said['says']) AS says,
            said['file'] AS file,
            TRY_CAST(said['line'] AS INTEGER) AS line,
            said['function'] AS function,
            said['is_root'] = '1' AS is_root,
            said['lost_host'] AS lost_host,
            said['is_forced'] = '1' AS is_forced,
            coalesce(said['in_thread'] = '1', false) AS is_in_thread,
            if(
                said['why'] = 'out of memory',
                coalesce(said['of'], if(code = 'task-ended', 'cgroup', 'host')),
                NULL
            ) AS memory_of
        FROM given
    ),
    -- A rank's number on its host is its number in the job where one file pairs them so.
    pairs AS (
        SELECT source_id, local_rank, min(rank) AS rank
        FROM parsed
        WHERE rank IS NOT NULL AND local_rank IS NOT NULL
        GROUP BY source_id, local_rank
        HAVING count(DISTINCT rank) = 1
    ),
    -- What a worker's own file tells once more (error.json of PyTorch's @record) is told of a rank
    -- where one alone raised it there.
    twins AS (
        SELECT launch, exception, file, line, function, min(rank) AS rank
        FROM parsed
        WHERE rank IS NOT NULL AND exception IS NOT NULL
        GROUP BY launch, exception, file, line, function
        HAVING count(DISTINCT rank) = 1
    ),
    own_files AS (
        SELECT source_id FROM parsed GROUP BY source_id HAVING count(*) = 1
    ),
    ranked AS (
        SELECT
            parsed.* REPLACE (coalesce(parsed.rank, pairs.rank, twins.rank) AS rank),
            killed.memory_of AS kernel_memory_of
        FROM parsed
        LEFT JOIN pairs USING (source_id, local_rank)
        LEFT JOIN twins
            ON twins.launch = parsed.launch
            AND twins.exception = parsed.exception
            AND twins.file = parsed.file
            AND twins.line = parsed.line
            AND twins.function IS NOT DISTINCT FROM parsed.function
            AND twins.rank >= parsed.local_rank
            AND parsed.source_id IN (SELECT source_id FROM own_files)
        LEFT JOIN (
            SELECT pid, host, min(memory_of) AS memory_of
            FROM parsed
            WHERE code = 'oom-kill'
            GROUP BY pid, host
        ) AS killed
            ON killed.pid = parsed.pid
            AND (killed.host = parsed.host OR killed.host IS NULL OR parsed.host IS NULL)
        WHERE parsed.code <> 'oom-kill'
    ),
    processes AS (
        SELECT
            launch,
            rank,
            -- Where no rank is known each line is a process of its own, but for what a launcher
            -- says of one of its workers.
            if(rank IS NULL, source_id, -1) AS file_key,
            if(rank IS NULL, coalesce(local_rank, -1 - place), -1) AS line_key,
            any_value(local_rank ORDER BY place, source_id) AS local_rank,
            any_value(task ORDER BY place, source_id) AS task,
            any_value(host ORDER BY place, source_id) AS host,
            any_value(pid ORDER BY place, source_id) AS pid,
            min(time_ns) AS time_ns,
            any_value(exit_code ORDER BY place, source_id) AS exit_code,
            any_value(signal ORDER BY place, source_id) AS signal,
            any_value(exception ORDER BY place, source_id) AS exception,
            -- What the exception says, else what is said of the signal.
            coalesce(
                first(says ORDER BY place, source_id) FILTER (WHERE exception IS NOT NULL),
                any_value(says ORDER BY place, source_id) FILTER (
                    WHERE signal IS NOT NULL OR says = 'no_heartbeat'
                )
            ) AS says,
            first(file ORDER BY place, source_id) FILTER (WHERE exception IS NOT NULL) AS file,
            first(line ORDER BY place, source_id) FILTER (WHERE exception IS NOT NULL) AS line,
            first(function ORDER BY place, source_id)
                FILTER (WHERE exception IS NOT NULL) AS function,
            coalesce(bool_or(is_root), false) AS is_root,
            bool_or(code IN ('worker-exit', 'worker-failed')) AS is_seen,
            bool_and(code = 'pod-ended') AS is_pod,
            bool_or(code = 'store-lost') AS has_lost_store,
            any_value(lost_host ORDER BY place, source_id) AS lost_host,
            coalesce(bool_or(is_forced), false) AS is_forced,
            bool_and(is_in_thread) AS is_in_thread,
            coalesce(any_value(memory_of), any_value(kernel_memory_of)) AS memory_of,
            arg_min(source_id, {'place': place, 'source_id': source_id}) AS source_id,
            min(place) AS place
        FROM ranked
        GROUP BY launch, rank, file_key, line_key
    ),
    -- What a launcher saw end with an exception that stands behind no rank: the only one, or the
    -- only one that is no loss of a peer.
    nameless AS (
        SELECT
            launch,
            source_id,
            min_by(exception, place) AS exception,
            min(place) AS place,
            arg_min_null(says, place) AS says,
            arg_min_null(file, place) AS file,
            arg_min_null(line, place) AS line,
            arg_min_null(function, place) AS function
        FROM (
            SELECT
                *,
                coalesce(says IN ('peer_lost', 'timeout', 'mismatch'), false) AS is_late,
                bool_and(coalesce(says IN ('peer_lost', 'timeout', 'mismatch'), false)) OVER (
                    PARTITION BY launch, source_id
                ) AS are_all_late
            FROM processes
            WHERE rank IS NULL AND local_rank IS NULL AND exception IS NOT NULL
        )
        WHERE are_all_late OR NOT is_late
        GROUP BY launch, source_id
        HAVING count(DISTINCT concat_ws(' ', exception, says, file, line)) = 1
    ),
    filled AS (
        SELECT
            p.place AS end_place,
            if(coalesce(p.rank, p.local_rank) IS NULL, NULL, n.place) AS nameless_place,
            p.* REPLACE (
                least(n.place, p.place) AS place,
                coalesce(p.exception, n.exception) AS exception,
                if(p.exception IS NULL, coalesce(n.says, p.says), p.says) AS says,
                if(p.exception IS NULL, n.file, p.file) AS file,
                if(p.exception IS NULL, n.line, p.line) AS line,
                if(p.exception IS NULL, n.function, p.function) AS function
            )
        FROM processes AS p
        LEFT JOIN nameless AS n
            ON n.launch = p.launch
            AND n.source_id = p.source_id
            AND p.exception IS NULL
            AND ((p.is_seen AND p.exit_code = 1) OR (p.signal IS NOT NULL AND p.says = n.says))
    ),
    cancelled AS (
        SELECT source_id, min(place) AS place
        FROM log_event
        WHERE code = 'job-cancelled'
        GROUP BY source_id
    ),
    last_steps AS (
        SELECT source_id, max(place) AS place
        FROM job_step
        GROUP BY source_id
    ),
    job_states AS (
        SELECT
            source_id,
            place,
            time_ns,
            code,
            named_fields(fields) AS said
        FROM log_event
        WHERE
            (
                code = 'job-state'
                -- Of a step, not the job, that is cancelled for nothing else, another end is why.
                OR (
                    code = 'job-cancelled'
                    AND list_has_any(
                        fields, ['of=job', 'why=time limit', 'why=preempted', 'why=node failure']
                    )
                )
            )
            -- A launcher that was told to end and whose log goes on was begun again.
            AND NOT EXISTS (
                SELECT 1 FROM last_steps
                WHERE
                    last_steps.source_id = log_event.source_id
                    AND last_steps.place > log_event.place
            )
            AND said IS NOT NULL
    ),
    scheduled AS (
        SELECT
            source_id,
            place,
            time_ns,
            said['why'] AS why,
            -- The host of a step that is cancelled is the one that says so.
            if(code = 'job-state', said['host'], NULL) AS host,
            said['task'] AS task
        FROM job_states
        -- What has not ended has no time, and is later than what has.
        QUALIFY
            -- Of events alone nothing names the job.
            min(said['job']) OVER () IS NOT DISTINCT FROM max(said['job']) OVER ()
            -- Why its launcher was told to end, a scheduler's own records say.
            AND row_number() OVER (
                ORDER BY said['why'] IS NOT DISTINCT FROM 'terminated',
                time_ns DESC NULLS FIRST, place DESC, source_id
            ) = 1
    ),
    -- Whom PyTorch aborts once a collective has timed out, or its watchdog stands still.
    timed_out AS (
        SELECT
            source_id,
            place,
            coalesce(
                TRY_CAST(said['world_rank'] AS INTEGER), TRY_CAST(said['rank'] AS INTEGER)
            ) AS rank
        FROM (
            SELECT source_id, place, named_fields(fields) AS said
            FROM log_event
            WHERE
                (
                    code IN ('watchdog-timeout', 'watchdog-stuck')
                    OR (code = 'watchdog-progress' AND 'is_timed_out=true' IN fields)
                )
                AND said IS NOT NULL
        )
    ),
    told AS (
        SELECT
            f.launch,
            f.rank,
            f.local_rank,
            f.task,
            f.host,
            f.pid,
            f.time_ns,
            if(f.signal IS NULL, f.exit_code, NULL) AS exit_code,
            f.signal,
            f.exception,
            f.says,
            f.file,
            f.line,
            f.function,
            CASE
                WHEN f.memory_of IS NOT NULL THEN 'nothing'
                -- An exception that it had before it was terminated says more than the signal.
                WHEN f.says IN ('peer_lost', 'timeout', 'mismatch') THEN f.says
                WHEN f.exception = 'KeyboardInterrupt' THEN 'terminated'
                WHEN f.exception IS NOT NULL THEN 'nothing'
                -- Who had failed before would not have asked for it.
                WHEN f.has_lost_store THEN 'peer_lost'
                WHEN f.is_forced OR f.signal IN ('SIGTERM', 'SIGINT') OR f.exit_code IN (130, 143)
                    THEN 'terminated'
                WHEN (f.signal = 'SIGABRT' OR f.exit_code = 134) AND f.says IS NULL
                    AND f.rank IN (SELECT rank FROM timed_out WHERE rank IS NOT NULL)
                    THEN 'timeout'
                -- Its rank is not said: it was seen to abort, or to die, after the first timeout.
                WHEN f.rank IS NULL
                    AND (f.signal = 'SIGABRT' OR (f.signal IS NULL AND f.exit_code IS NULL))
                    AND f.says IS NULL
                    AND EXISTS (
                        SELECT 1 FROM timed_out
                        WHERE timed_out.source_id = f.source_id AND timed_out.place < f.place
                    )
                    THEN 'timeout'
                -- Where a pod is deleted, what does not heed the first signal is killed.
                WHEN f.is_pod AND f.signal = 'SIGKILL' THEN 'terminated'
                ELSE 'nothing'
            END AS follows,
            f.is_root,
            f.memory_of,
            f.lost_host,
            f.is_forced,
            coalesce(last_steps.place > f.end_place, false) AS is_resumed,
            NULL AS scheduler,
            f.source_id,
            f.place
        FROM filled AS f
        LEFT JOIN last_steps USING (source_id)
        LEFT JOIN cancelled USING (source_id)
        -- How a task ended after its step was cancelled says nothing of itself.
        WHERE
            (
                f.task IS NULL
                OR cancelled.place IS NULL
                OR cancelled.place > f.place
                OR f.exception IS NOT NULL
                OR f.memory_of IS NOT NULL
                OR coalesce(f.signal IN ('SIGTERM', 'SIGINT') OR f.exit_code IN (130, 143), false)
            )
            -- Nor does an exception in a thread end a process: it may keep others waiting.
            AND (
                NOT f.is_in_thread
                OR EXISTS (
                    SELECT 1 FROM filled AS o WHERE o.launch = f.launch AND NOT o.is_in_thread
                )
            )
            -- Whose it is, its launcher or its watchdog says.
            AND NOT EXISTS (
                SELECT 1 FROM filled AS o
                WHERE
                    coalesce(f.rank, f.local_rank) IS NULL
                    AND (o.source_id, o.nameless_place) = (f.source_id, f.place)
            )
            -- A container ends with its processes: where logs tell of these, they say more.
            AND (
                NOT f.is_pod
                OR f.memory_of IS NOT NULL
                OR NOT EXISTS (SELECT 1 FROM filled AS o WHERE NOT o.is_pod)
            )
    )
SELECT
    launch,
    rank,
    local_rank,
    task,
    host,
    pid,
    time_ns,
    exit_code,
    signal,
    exception,
    says,
    file,
    line,
    function,
    follows,
    is_root,
    memory_of,
    lost_host,
    is_forced,
    is_resumed,
    scheduler,
    source_id,
    place
FROM (
    FROM told
    UNION ALL BY NAME
    SELECT
        (SELECT coalesce(max(launch + CAST(is_resumed AS INTEGER)), 1) FROM told) AS launch,
        task,
        host,
        time_ns,
        'nothing' AS follows,
        false AS is_root,
        false AS is_forced,
        false AS is_resumed,
        why AS scheduler,
        source_id,
        place
    FROM scheduled
    WHERE why IS NOT NULL
)
ORDER BY launch, rank, source_id, place;
