-- Each benchmark of nccl-tests: is it whole, how fast was it, and what did NCCL choose for it.
--
-- A table that has a header and no rows is incomplete, and nothing more is known of it. The mean
-- over all sizes that nccl-tests prints says little where small sizes are in it; peak_bus does.
--
-- reads: nccl_event, bench_result, nccl_choice
-- needs: nccl_event
-- grain: source_id, place
-- asked: report
-- column: benchmark VARCHAR : all_reduce_perf, ...; null where the output does not say.
-- column: benchmark_source VARCHAR : file, or behaviour: only this one has such a ratio of busbw to
--     algbw on so many ranks, with or without a reduction and a root.
-- column: ranks_count INTEGER : Ranks.
-- column: hosts VARCHAR[] : Hosts of the ranks.
-- column: devices VARCHAR[] : host/PCI of each rank's GPU, sorted.
-- column: rows_count BIGINT : Sizes measured.
-- column: expected_rows_count BIGINT : Sizes that its settings ask for; null when unknown.
-- column: is_complete BOOLEAN : Whether it ran to its end.
-- column: average_bus_bytes_per_s DOUBLE : Mean bus bandwidth as it states it.
-- column: peak_bus_bytes_per_s DOUBLE : Largest bus bandwidth of a size, out of place.
-- column: peak_message_bytes BIGINT : That size.
-- column: fall_message_bytes BIGINT : Size whose bus bandwidth is least beside the best of the
--     smaller sizes, in and out of place both, once that is half of the peak: below it latency
--     rules and figures are rounded. Null unless it is less.
-- column: fall_bus_bytes_per_s DOUBLE : Its bus bandwidth, the better of both.
-- column: before_message_bytes BIGINT : The smaller size that was best.
-- column: before_bus_bytes_per_s DOUBLE : Its bus bandwidth, the better of both.
-- column: wrong_sizes_count BIGINT : Sizes with wrong elements, in or out of place; 0 also where
--     nothing was checked.
-- column: algorithm VARCHAR : What NCCL chose most often by bytes; null where it was not logged.
-- column: protocol VARCHAR : Its protocol.
-- column: source_id INTEGER : Source.
-- column: place BIGINT : Line of its header.
-- column: attempt INTEGER : Attempt of the job; null for a log alone.
WITH
    runs AS (
        SELECT
            source_id,
            attempt,
            place AS last_place,
            named_fields(fields) AS given
        FROM nccl_event
        WHERE code = 'bench'
    ),
    named AS (
        SELECT
            *,
            TRY_CAST(given['start'] AS BIGINT) AS place
        FROM runs
    ),
    devices AS (
        SELECT
            source_id,
            place,
            named_fields(fields) AS given
        FROM nccl_event
        WHERE code = 'bench_device'
    ),
    machines AS (
        SELECT
            named.source_id AS source_id,
            named.place AS place,
            list(DISTINCT devices.given['host'] ORDER BY devices.given['host']) AS hosts,
            list(DISTINCT devices.given['host'] || '/' || devices.given['pci']
                ORDER BY devices.given['host'] || '/' || devices.given['pci']) AS devices
        FROM named
        JOIN devices
            ON devices.source_id = named.source_id
            AND devices.place BETWEEN named.place AND named.last_place
        GROUP BY named.source_id, named.place
    ),
    speeds AS (
        SELECT
            named.source_id AS source_id,
            named.place AS place,
            max(bus_bytes_per_s) AS peak,
            arg_max(message_bytes, {'b': bus_bytes_per_s, 'm': message_bytes}) AS peak_message
        FROM named
        JOIN bench_result AS results
            ON results.source_id = named.source_id
            AND results.place BETWEEN named.place AND named.last_place
        WHERE NOT is_in_place AND bus_bytes_per_s IS NOT NULL
        GROUP BY named.source_id, named.place
    ),
    wrong AS (
        SELECT
            named.source_id AS source_id,
            named.place AS place,
            count(DISTINCT message_bytes) AS sizes_count
        FROM named
        JOIN bench_result AS results
            ON results.source_id = named.source_id
            AND results.place BETWEEN named.place AND named.last_place
        WHERE errors_count > 0
        GROUP BY named.source_id, named.place
    ),
    sizes AS (
        SELECT
            named.source_id AS source_id,
            named.place AS place,
            message_bytes,
            max(bus_bytes_per_s) AS best
        FROM named
        JOIN bench_result AS results
            ON results.source_id = named.source_id
            AND results.place BETWEEN named.place AND named.last_place
        WHERE bus_bytes_per_s IS NOT NULL
        GROUP BY named.source_id, named.place, message_bytes
    ),
    behind AS (
        SELECT
            *,
            max(best) OVER (PARTITION BY source_id, place) AS peak,
            max(best) OVER smaller AS before,
            arg_max(message_bytes, best) OVER smaller AS before_bytes
        FROM sizes
        WINDOW smaller AS (
            PARTITION BY source_id, place ORDER BY message_bytes
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
    ),
    falls AS (
        SELECT
            source_id,
            place,
            arg_min(
                {'bytes': message_bytes, 'best': best, 'from': before_bytes, 'was': before},
                {'r': best / before, 'b': message_bytes}
            ) AS fall
        FROM behind
        WHERE best < before AND before >= peak / 2
        GROUP BY source_id, place
    ),
    choices AS (
        SELECT
            named.source_id AS source_id,
            named.place AS place,
            algorithm,
            protocol,
            sum(message_bytes) AS chosen_bytes
        FROM named
        JOIN nccl_choice AS chosen
            ON chosen.source_id = named.source_id
            AND chosen.place BETWEEN named.place AND named.last_place
        GROUP BY named.source_id, named.place, algorithm, protocol
    ),
    favourites AS (
        SELECT
            source_id,
            place,
            arg_max(
                {'algorithm': algorithm, 'protocol': protocol},
                {'b': chosen_bytes, 'a': coalesce(algorithm, ''), 'p': coalesce(protocol, '')}
            ) AS chosen
        FROM choices
        GROUP BY source_id, place
    )
SELECT
    given['benchmark'] AS benchmark,
    given['named_by'] AS benchmark_source,
    TRY_CAST(given['ranks'] AS INTEGER) AS ranks_count,
    machines.hosts AS hosts,
    machines.devices AS devices,
    TRY_CAST(given['rows'] AS BIGINT) AS rows_count,
    TRY_CAST(given['expected_rows'] AS BIGINT) AS expected_rows_count,
    coalesce(given['complete'] = 'yes', FALSE) AS is_complete,
    TRY_CAST(given['average_bus_gb_per_s'] AS DOUBLE) * 1e9 AS average_bus_bytes_per_s,
    speeds.peak AS peak_bus_bytes_per_s,
    speeds.peak_message AS peak_message_bytes,
    falls.fall.bytes AS fall_message_bytes,
    falls.fall.best AS fall_bus_bytes_per_s,
    falls.fall."from" AS before_message_bytes,
    falls.fall.was AS before_bus_bytes_per_s,
    coalesce(wrong.sizes_count, 0) AS wrong_sizes_count,
    favourites.chosen.algorithm AS algorithm,
    favourites.chosen.protocol AS protocol,
    named.source_id AS source_id,
    named.place AS place,
    named.attempt AS attempt
FROM named
LEFT JOIN machines ON machines.source_id = named.source_id AND machines.place = named.place
LEFT JOIN speeds ON speeds.source_id = named.source_id AND speeds.place = named.place
LEFT JOIN wrong ON wrong.source_id = named.source_id AND wrong.place = named.place
LEFT JOIN falls ON falls.source_id = named.source_id AND falls.place = named.place
LEFT JOIN favourites ON favourites.source_id = named.source_id AND favourites.place = named.place
ORDER BY source_id, place;
