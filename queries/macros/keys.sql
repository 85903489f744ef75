-- Captures as numbers.

-- capture_key: A capture as one number.
--
-- Numbers sort and join several times faster than structs. It has attempt (15 bits), rank (28),
-- capture_id (16), and four low bits free for a layer of the caller.
--
-- param: attempt INTEGER : Attempt.
-- param: rank INTEGER : Rank.
-- param: capture_id INTEGER : Capture of that rank.
-- returns: BIGINT : The key.
CREATE OR REPLACE MACRO capture_key(attempt, rank, capture_id) AS
    (CAST(attempt AS BIGINT) << 48)
    + (CAST(rank AS BIGINT) << 20)
    + (CAST(capture_id AS BIGINT) << 4);

-- attempt_of: The attempt of a capture's key.
--
-- param: capture_key BIGINT : What capture_key gives.
-- returns: INTEGER : The attempt.
CREATE OR REPLACE MACRO attempt_of(capture_key) AS CAST(capture_key >> 48 AS INTEGER);

-- rank_of: The rank of a capture's key.
--
-- param: capture_key BIGINT : What capture_key gives.
-- returns: INTEGER : The rank.
CREATE OR REPLACE MACRO rank_of(capture_key) AS CAST((capture_key >> 20) & 268435455 AS INTEGER);

-- capture_id_of: The capture of a capture's key.
--
-- param: capture_key BIGINT : What capture_key gives.
-- returns: INTEGER : The capture.
CREATE OR REPLACE MACRO capture_id_of(capture_key) AS CAST((capture_key >> 4) & 65535 AS INTEGER);
