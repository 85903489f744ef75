-- Which algorithm and protocol NCCL chose for each operation and size, and how often.
--
-- Printed by rank 0 of a communicator only (SUBSYS TUNING); the model's time in old releases.
--
-- reads: nccl_choice
-- grain: attempt, source_id, op, message_bytes, algorithm, protocol, channels_count
-- column: op VARCHAR : Operation; null where the release does not say (2.22 and before).
-- column: message_bytes BIGINT : Size.
-- column: algorithm VARCHAR : Ring, Tree, NVLS, ...
-- column: protocol VARCHAR : LL, LL128 or Simple.
-- column: channels_count INTEGER : Channels; null where the release does not say.
-- column: choices_count BIGINT : How often.
-- column: model_dur_ns BIGINT : Median of what NCCL's own model expects; null since 2.24.
-- column: source_id INTEGER : Source.
-- column: place BIGINT : First line.
-- column: attempt INTEGER : Attempt of the job; null for a log alone.
SELECT
    op,
    message_bytes,
    algorithm,
    protocol,
    channels_count,
    count(*) AS choices_count,
    CAST(round(median(model_dur_ns)) AS BIGINT) AS model_dur_ns,
    source_id,
    min(place) AS place,
    attempt
FROM nccl_choice
GROUP BY attempt, source_id, op, message_bytes, algorithm, protocol, channels_count
ORDER BY attempt, source_id, op, message_bytes, algorithm, protocol, channels_count;
