"""What a training log tells between its steps, and which of its slow lines share it.

A checkpoint or an evaluation that is logged between two lines of steps lies in the time of the
second one. It is named beside a stall only where it hardly ever stands before other lines: what
is logged at every step explains none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]

_COLUMNS = {
    "evaluations_count": "evaluation",
    "checkpoints_count": "checkpoint-save",
    "collections_count": "collection",
    "epochs_count": "epoch",
}
"""Columns of ``job_episode``, and the codes of ``log_event`` that they count."""
_INPUTS = "inputs_count"
WAITING_RATIO = 0.5
"""Of a line's time: a step that waits so much for its input is as long as it is for that."""
MIN_LIFT = 4.0
"""How many times as often a phase must stand before the slow lines as before the others."""


def of_lines(
    con: duckdb.DuckDBPyConnection, source: Ints, place: Ints, dur: Floats
) -> dict[str, Bools]:
    """For each line of steps, by column: whether such a phase is logged between it and the line
    before it in the same file; and whether a rank waited in its steps for input. Lines are in the
    order of the job's history; ``dur`` is how long each step of a line took, in ns."""
    import numpy as np

    rows = con.execute(
        "SELECT code, source_id, place FROM log_event WHERE list_contains(?, code) "
        "AND place IS NOT NULL ORDER BY ALL",
        [list(_COLUMNS.values())],
    ).fetchnumpy()
    phases = {}
    waits = _input_waits(con, source, place)
    if (waits > 0).any():
        phases[_INPUTS] = waits >= WAITING_RATIO * np.nan_to_num(dur, nan=np.inf)
    begins = np.concatenate([[True], (np.diff(source) != 0) | (np.diff(place) < 0)])
    for column, code in _COLUMNS.items():
        is_code = np.asarray(rows["code"]) == code
        if not is_code.any():
            continue
        is_before = np.zeros(len(source), bool)
        for source_id in np.unique(source):
            of_source = source == source_id
            at = np.asarray(rows["place"])[is_code & (np.asarray(rows["source_id"]) == source_id)]
            places = place[of_source]
            before = np.roll(places, 1)
            hits = np.searchsorted(at, places) > np.searchsorted(at, before)
            is_before[of_source] = hits & ~begins[of_source]
        phases[column] = is_before
    return phases


def ended_for(
    con: duckdb.DuckDBPyConnection, source: Ints, place: Ints, is_first: Bools
) -> dict[tuple[int, int], str]:
    """By source and place of a start's first line: what a scheduler ended the start before it for,
    as a line between the two says, or one behind that start in its own file."""
    import numpy as np

    rows = con.execute(
        "SELECT source_id, place, fields FROM log_event WHERE code = 'job-cancelled' "
        "ORDER BY source_id, place"
    ).fetchall()
    told = [
        (source_id, at, field.removeprefix("why="))
        for source_id, at, fields in rows
        for field in fields or ()
        if field.startswith("why=")
    ]
    found = {}
    for at in np.flatnonzero(is_first)[1:] if told else ():
        (before, last), (own, first) = (
            (int(source[n]), int(place[n])) for n in (int(at) - 1, int(at))
        )
        why = next(
            (w for s, p, w in told if s == before and p > last and (s != own or p < first)), None
        )
        if why is not None:
            found[own, first] = why
    return found


def behind(
    con: duckdb.DuckDBPyConnection, source_id: int, place: int, until: int | None
) -> dict[str, int]:
    """1 by column for each such phase that is logged behind a line of a file, before another."""
    found = con.sql(
        "SELECT DISTINCT code FROM log_event WHERE source_id = $source AND place > $place "
        "AND place < coalesce($until, place + 1)",
        params={"source": source_id, "place": place, "until": until},
    ).fetchall()
    codes = {code for (code,) in found}
    return {column: 1 for column, code in _COLUMNS.items() if code in codes}


def _input_waits(con: duckdb.DuckDBPyConnection, source: Ints, place: Ints) -> Ints:
    """ns that the rank that waited longest for input in the same step did, by line; 0 where no log
    says so."""
    import numpy as np

    waits = np.zeros(len(source), np.int64)
    # Most logs tell none, and to look at the steps of millions of lines takes seconds.
    if con.sql("SELECT count(input_wait_ns) FROM job_step").fetchall() == [(0,)]:
        return waits
    rows = con.execute(
        """
        WITH said AS (
            SELECT
                source_id,
                place,
                max(input_wait_ns) OVER (PARTITION BY epoch, step) AS wait_ns
            FROM job_step
            WHERE step IS NOT NULL
        )
        SELECT source_id, place, max(wait_ns) AS wait_ns FROM said
        WHERE wait_ns > 0 GROUP BY ALL ORDER BY ALL
        """
    ).fetchnumpy()
    for source_id in np.unique(rows["source_id"]):
        is_its = np.asarray(rows["source_id"]) == source_id
        at, told = (np.asarray(rows[name])[is_its] for name in ("place", "wait_ns"))
        lines = np.flatnonzero(source == source_id)
        found = np.searchsorted(at, place[lines])
        is_told = found < len(at)
        is_told[is_told] = at[found[is_told]] == place[lines][is_told]
        waits[lines[is_told]] = told[found[is_told]]
    return waits


def beside(phases: Mapping[str, Bools], slow: Ints) -> dict[str, int]:
    """How many of the slow lines have each phase before them, where that tells them apart."""
    counts = {}
    for column, is_before in phases.items():
        count = int(is_before[slow].sum())
        others = len(is_before) - len(slow)
        elsewhere = int(is_before.sum()) - count
        if count and count * max(others, 1) >= MIN_LIFT * elsewhere * len(slow):
            counts[column] = count
    return counts
