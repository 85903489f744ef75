-- What a line says beside its columns.

-- named_fields: The fields of a log_event or nccl_event by their names.
--
-- Null where a name stands twice: nothing tells which of the two is meant.
--
-- param: fields VARCHAR[] : As name=value; the value may hold further equal signs.
-- returns: MAP(VARCHAR, VARCHAR) : Name to value.
CREATE OR REPLACE MACRO named_fields(fields) AS CASE
    WHEN len(fields) = len(list_distinct([split_part(f, '=', 1) FOR f IN fields]))
    THEN map_from_entries([
        {'k': split_part(f, '=', 1), 'v': f[strpos(f, '=') + 1 :]} FOR f IN fields
    ])
END;

-- named_field: The value of one field of a log_event or nccl_event.
--
-- param: fields VARCHAR[] : As name=value.
-- param: name VARCHAR : Name of the field.
-- returns: VARCHAR : Its value, of the first where it stands twice; null without.
CREATE OR REPLACE MACRO named_field(fields, name) AS list_filter(
    fields, lambda f : starts_with(f, name || '=')
)[1][len(name) + 2 :];
