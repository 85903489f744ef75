-- In each step the call that takes longest beyond its usual, once all its ranks have entered it.
--
-- Nobody is late then: the network was slow, or a rank stood still within the call. The transfer
-- runs from the last entry to the last exit, and its usual length is the median at equal
-- communicator, operation and size. Calls whose clocks may be as far apart are left out.
--
-- reads: collective, collective_match, comm_group, clock_offset, clock_pair, step
-- needs: collective, collective_match, step
-- grain: attempt, capture_id, step
-- asked: report where slow
-- column: capture_id INTEGER : Capture window, from 0.
-- column: step BIGINT : Job-level step in which the last rank entered.
-- column: op VARCHAR : all_reduce, ...; recv of a send and its receive.
-- column: ranks INTEGER[] : Ranks that take part.
-- column: transfer_ns BIGINT : From the last entry to the last exit.
-- column: usual_ns DOUBLE : Median of such calls of the attempt.
-- column: over_ns DOUBLE : transfer_ns less usual_ns.
-- column: error_ns BIGINT : Largest error of the differences between the ranks' clocks.
-- column: group_id VARCHAR : Communicator; see comm_group.
-- column: message_bytes BIGINT : Total size as nccl-tests defines it; null where unknowable.
-- column: source_id INTEGER : Source of the call of the last to enter.
-- column: place BIGINT : Its place there.
-- column: attempt INTEGER : Attempt of the job, from 1.
WITH
    instances AS (
        SELECT
            attempt,
            capture_id,
            group_id,
            instance_id,
            min(op) AS op,
            max(message_bytes) AS message_bytes,
            list_sort(list(rank)) AS ranks,
            max(start_ns) AS entered_ns,
            max(end_ns) - max(start_ns) AS transfer_ns,
            max(error_ns) AS error_ns,
            arg_max(
                {'rank': rank, 'source_id': source_id, 'place': place},
                {'start_ns': start_ns, 'rank': -rank}
            ) AS last
        FROM collective_calls()
        WHERE is_trusted AND is_complete
        GROUP BY attempt, capture_id, group_id, instance_id
        HAVING count(*) > 1 AND bool_and(error_ns IS NOT NULL)
    ),
    usual AS (
        SELECT
            attempt,
            group_id,
            op,
            message_bytes,
            median(transfer_ns) AS usual_ns
        FROM instances
        GROUP BY attempt, group_id, op, message_bytes
    ),
    compared AS (
        SELECT
            instances.*,
            instances.last.rank AS last_rank,
            usual_ns,
            transfer_ns - usual_ns AS over_ns
        FROM instances
        JOIN usual
            ON
                usual.attempt = instances.attempt
                AND usual.group_id = instances.group_id
                AND usual.op = instances.op
                AND usual.message_bytes IS NOT DISTINCT FROM instances.message_bytes
        WHERE transfer_ns - usual_ns > error_ns
    ),
    numbered AS (
        SELECT compared.*, windows.step
        FROM compared
        ASOF JOIN step_windows() AS windows
            ON
                windows.attempt = compared.attempt
                AND windows.capture_id = compared.capture_id
                AND windows.rank = compared.last_rank
                AND windows.start_ns <= compared.entered_ns
        WHERE compared.entered_ns < windows.end_ns
    )
SELECT
    capture_id,
    step,
    op,
    ranks,
    transfer_ns,
    usual_ns,
    over_ns,
    CAST(error_ns AS BIGINT) AS error_ns,
    group_id,
    message_bytes,
    last.source_id AS source_id,
    last.place AS place,
    attempt
FROM numbered
QUALIFY
    row_number() OVER (
        PARTITION BY attempt, capture_id, step ORDER BY over_ns DESC, group_id, instance_id
    ) = 1
ORDER BY attempt, capture_id, step;
