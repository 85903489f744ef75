-- What each rank's files say of the software and hardware it ran with, name by name.
--
-- Two runs that differ in speed may differ in a driver, a version or a variable: compare sets these
-- beside each other. Only names of an allow-list are ever read from an environment.
--
-- reads: device, process, source
-- grain: kind, name, value
-- column: kind VARCHAR : version, variable or device.
-- column: name VARCHAR : As the files name it; of a device, model.
-- column: value VARCHAR : What it was.
-- column: sources_count BIGINT : Files that say so.
WITH
    said AS (
        SELECT source_id, 'version' AS kind, unnest(versions) AS text
        FROM source
        UNION ALL
        SELECT source_id, 'variable', unnest(env)
        FROM process
        UNION ALL
        SELECT source_id, 'variable', 'CUDA_VISIBLE_DEVICES=' || cuda_visible_devices
        FROM process
        UNION ALL
        SELECT source_id, 'device', 'model=' || model
        FROM device
        WHERE coalesce(is_used, TRUE)
    )
SELECT
    kind,
    string_split(text, '=')[1] AS name,
    substr(text, instr(text, '=') + 1) AS value,
    count(DISTINCT source_id) AS sources_count
FROM said
WHERE instr(text, '=') > 1
GROUP BY ALL
ORDER BY kind, name, value;
