-- Where each process of the job stood in the dumps of its stacks, and who stood in the same place.
--
-- In a hang most ranks stand in one collective; the one that stands elsewhere is whom they wait
-- for. A row is one stack of one process, in however many dumps. Launchers, workers of data loaders
-- and other helpers are left out. Of a process its main thread counts; where that waits for the
-- backward pass, the thread that is in a collective of it. Frames of native code tell where it
-- stands, and are equal or not only where there are no others.
--
-- reads: thread_stack, source, rank, nccl_comm
-- needs: thread_stack
-- grain: source_id, place
-- column: rank INTEGER : Global rank, by its dump, file or process number; null when unknown.
-- column: local_rank INTEGER : Its number on its host, as its launcher says; null when unknown.
-- column: host VARCHAR : Its host; null when unknown.
-- column: pid BIGINT : Process; null where no dump says.
-- column: stands_in VARCHAR : collective, rendezvous (waits for peers to join), backward, device
--     (waits for the GPU), input, checkpoint, compile, collection (of garbage); null: elsewhere.
-- column: op VARCHAR : Function of the collective, such as all_reduce; null where not said.
-- column: frame VARCHAR : The innermost frame of a file of the program's own within that; else the
--     frame that says it; else the innermost of all.
-- column: frames VARCHAR[] : Its stack, the innermost first.
-- column: group_number INTEGER : Processes with equal stacks, from 1: the largest such group.
-- column: processes_count BIGINT : Processes in it.
-- column: times_count BIGINT : Dumps of the process that show this stack.
-- column: dumps_count BIGINT : Dumps of the process.
-- column: source_id INTEGER : First source that shows it.
-- column: place BIGINT : Its place there.
-- column: attempt INTEGER : Attempt of the job; null for stacks alone.
WITH
    -- Ranks that do the same have the same stacks, so few of them differ.
    kinds AS MATERIALIZED (
        SELECT
            frames,
            list_transform(
                frames,
                lambda f: CASE
                    WHEN regexp_matches(
                        f,
                        -- Not elastic/multiprocessing: @record wraps a rank's own main.
                        'torch/distributed/(elastic/agent/|launcher/|run\.py)'
                        || '|_worker_loop \(torch/utils/data/'
                        || '|multiprocessing/(resource_tracker'
                        || '|forkserver)|accelerate/commands/|deepspeed/launcher/'
                        || '|torch/_inductor/compile_worker/'
                    )
                        THEN 'helper'
                    WHEN regexp_matches(
                        f,
                        '(^|\.)(all_|_?reduce|_?all_gather|_?broadcast|barrier|monitored_barrier'
                        || '|gather|scatter|send|recv)\w* \(torch/distributed/distributed_c10d\.py'
                        || '|(^|\.)wait_tensor \(torch/|\((horovod/torch/|bagua/)'
                    )
                        THEN 'collective'
                    WHEN regexp_matches(
                        f,
                        '^c10d::(\w*::)*\w*Work::|^c10d::Reducer::'
                        || '|^_?P?MPI_(All|Bar|Bc|Gat|Red|Sca)'
                        || '|^c10d::ProcessGroup\w+::(all|_all|barrier|broadcast|gather|reduce|recv'
                        || '|scatter|send)|^p?nccl(All|Reduce|Bro|Bca|Send|Recv|GroupEnd)'
                        || '|^gloo::(\(anonymous namespace\)::)?'
                        || '(all|barrier|broadcast|gather|reduce|ring|scatter)'
                    )
                        THEN 'collective'
                    WHEN regexp_matches(
                        f,
                        'torch/distributed/(rendezvous\.py|elastic/rendezvous/)|^c10d::(TCP|Prefix'
                        || '|File|Hash)Store::|(^|\.)(init_process_group|_store_based_barrier'
                        || '|new_group|_new_process_group_helper|init_device_mesh) \(torch/dist'
                    )
                        THEN 'rendezvous'
                    WHEN regexp_matches(
                        f,
                        '(^|\.)synchronize \(torch/(cuda|accelerator|xpu|mtia|npu|hpu)'
                        || '|^(cuda|cu|hip)(Stream|Device|Event|Ctx)Synchronize'
                    )
                        THEN 'device'
                    WHEN regexp_matches(
                        f,
                        '\((torch/utils/data/|torchdata/|webdataset/|datasets/|litdata/'
                        || '|nvidia/dali/|tensorflow/python/data/|megatron/core/datasets/)'
                        || '|\(streaming/base/'
                    )
                        THEN 'input'
                    WHEN regexp_matches(
                        f,
                        '\((torch/distributed/checkpoint/|torch/serialization\.py|safetensors/'
                        || '|orbax/|megatron/core/dist_checkpointing/|megatron/training/checkpoint)'
                        || '|(^|\.)_?(save|load)_(checkpoint|pretrained|model) \('
                    )
                        THEN 'checkpoint'
                    WHEN regexp_matches(
                        f,
                        '\((torch/_inductor/|torch/_dynamo/(convert_frame|symbolic_convert'
                        || '|output_graph)|triton/(compiler|backends)/)'
                    )
                        THEN 'compile'
                    WHEN f = 'Garbage-collecting' THEN 'collection'
                    WHEN regexp_matches(
                        f,
                        '(_engine_run_backward|(^|\.)backward) \(torch/(autograd/|_tensor\.py)'
                        || '|^torch::autograd::Engine::execute'
                    )
                        THEN 'backward'
                END
            ) AS kinds
        FROM (SELECT DISTINCT frames FROM thread_stack WHERE frames IS NOT NULL)
    ),
    told AS MATERIALIZED (
        SELECT
            *,
            -- Of a null it would be the first null's place.
            if(
                len(list_filter(kinds, lambda k: k IS NOT NULL)) > 0,
                list_position(kinds, list_filter(kinds, lambda k: k IS NOT NULL)[1]),
                NULL
            ) AS told_by,
            -- Native frames of one function may have as many forms as there are builds.
            list_transform(
                if(
                    len(list_filter(frames, lambda f: contains(f, '.py:'))) > 0,
                    list_filter(frames, lambda f: contains(f, '.py:')),
                    frames
                ),
                -- Of a method some name the class, and some do not.
                lambda f: regexp_replace(f, '^[^ ]*\.([^ .]+ \()', '\1')
            ) AS shape
        FROM kinds
    ),
    threads AS (
        SELECT s.*, told.kinds, told.told_by, told.shape
        FROM thread_stack AS s
        JOIN told USING (frames)
    ),
    mains AS (
        SELECT
            source_id,
            dump_number,
            bool_or(list_contains(kinds, 'helper')) AS is_helper,
            arg_min_null(kinds[told_by], place) FILTER (coalesce(is_main, true)) AS main_kind
        FROM threads
        GROUP BY source_id, dump_number
    ),
    standing AS (
        SELECT
            t.* EXCLUDE (kinds, told_by),
            t.kinds[t.told_by] AS stands_in,
            t.frames[t.told_by] AS told_frame,
            coalesce(
                list_filter(
                    t.frames[: coalesce(t.told_by, len(t.frames))],
                    lambda f: regexp_matches(f, '\([^/]*\.py:\d+\)$')
                        AND NOT regexp_matches(
                            f,
                            '\((contextlib|functools|gzip|json|os|pathlib|pickle|queue|random|re'
                            || '|selectors|shutil|socket|ssl|subprocess|tempfile|threading'
                            || '|zipfile)\.py:'
                        )
                )[1],
                t.frames[t.told_by],
                list_filter(t.frames, lambda f: f <> '?')[1],
                t.frames[1]
            ) AS frame
        FROM threads AS t
        JOIN mains AS m USING (source_id, dump_number)
        WHERE
            NOT m.is_helper
            AND (
                coalesce(t.is_main, true)
                OR (
                    m.main_kind = 'backward'
                    AND t.kinds[t.told_by] = 'collective'
                    AND contains(t.frames[t.told_by], '.py:')
                )
            )
        -- Of a dump one: a collective before all else, then what says most.
        QUALIFY
            row_number() OVER (
                PARTITION BY t.source_id, t.dump_number
                ORDER BY
                    coalesce(stands_in = 'collective', false) DESC,
                    stands_in IS NULL,
                    coalesce(t.is_main, true) DESC,
                    t.place
            ) = 1
    ),
    -- A file's name is a rank's where the file is of one process.
    alone AS (
        SELECT source_id
        FROM standing
        GROUP BY source_id
        HAVING count(DISTINCT pid) <= 1
    ),
    pids AS (
        SELECT pid, host, rank FROM rank WHERE pid IS NOT NULL
        UNION
        SELECT pid, coalesce(host, split_part(node, '.', 1)), world_rank
        FROM nccl_comm
        WHERE pid IS NOT NULL AND world_rank IS NOT NULL
    ),
    named AS (
        SELECT
            s.source_id,
            s.dump_number,
            if(count(DISTINCT p.rank) = 1, min(p.rank), NULL) AS rank
        FROM standing AS s
        JOIN pids AS p
            ON p.pid = s.pid AND (p.host = s.host OR p.host IS NULL OR s.host IS NULL)
        GROUP BY s.source_id, s.dump_number
    ),
    placed AS (
        SELECT
            s.*,
            coalesce(
                s.rank,
                s.stated_rank,
                if(alone.source_id IS NULL, NULL, source.name_rank),
                named.rank
            ) AS whose,
            dense_rank() OVER (ORDER BY s.shape) AS shape_number
        FROM standing AS s
        LEFT JOIN alone USING (source_id)
        LEFT JOIN source USING (source_id)
        LEFT JOIN named
            ON named.source_id = s.source_id AND named.dump_number = s.dump_number
    ),
    keyed AS (
        SELECT
            *,
            CASE
                WHEN whose IS NOT NULL THEN concat('rank ', whose)
                WHEN pid IS NOT NULL THEN concat_ws(' ', 'pid', pid, host)
                WHEN local_rank IS NOT NULL THEN concat_ws(' ', 'local', local_rank, host)
                ELSE concat_ws(' ', 'dump', source_id, dump_number)
            END AS process
        FROM placed
    ),
    stacks AS (
        SELECT
            process,
            shape_number,
            min(whose) AS rank,
            min(local_rank) AS local_rank,
            min(host) AS host,
            min(pid) AS pid,
            -- Native frames may say what those of Python alone do not.
            coalesce(
                max('collective') FILTER (stands_in = 'collective'),
                arg_min(stands_in, {'source_id': source_id, 'place': place})
            ) AS stands_in,
            arg_min(frame, {'source_id': source_id, 'place': place}) AS frame,
            arg_min(told_frame, {'source_id': source_id, 'place': place}) AS told_frame,
            arg_min(frames, {'source_id': source_id, 'place': place}) AS frames,
            count(*) AS times_count,
            min({'source_id': source_id, 'place': place}) AS first,
            min(attempt) AS attempt
        FROM keyed
        GROUP BY process, shape_number
    ),
    grouped AS (
        SELECT
            *,
            CAST(sum(times_count) OVER (PARTITION BY process) AS BIGINT) AS dumps_count,
            count(*) OVER (PARTITION BY shape_number) AS processes_count,
            min(first) OVER (PARTITION BY shape_number) AS first_of_group
        FROM stacks
    )
SELECT
    rank,
    local_rank,
    host,
    pid,
    stands_in,
    if(
        stands_in = 'collective' AND contains(told_frame, '.py:'),
        regexp_extract(told_frame, '([^ .]+) \(', 1),
        NULL
    ) AS op,
    frame,
    frames,
    CAST(dense_rank() OVER (ORDER BY processes_count DESC, first_of_group) AS INTEGER)
        AS group_number,
    processes_count,
    times_count,
    dumps_count,
    first.source_id AS source_id,
    first.place AS place,
    attempt
FROM grouped
ORDER BY source_id, place;
