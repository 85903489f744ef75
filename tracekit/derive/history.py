"""The job's history from its training logs: lines of several files as one series of steps.

The program whose lines they are is chosen (bars of evaluations and loaders are shorter), of several
ranks that print the same the lowest counts, and a number that falls is a restart. Logs that do not
overlap follow each other. What stands out in the series is for ``episodes`` to say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tracekit.correction import Correction, corrected
from tracekit.derive import phases
from tracekit.derive.episodes import MIN_LINES, Lines, episodes
from tracekit.derive.stage import arrow

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

BAR = "tqdm"
PLAIN = "plain"
MAX_FALLS_RATIO = 0.05
"""Of the lines of a loop of somebody's own: where its number falls more often, it counts something
else than the job's steps."""
MAX_STEP = 10**12
"""Steps over all epochs that are believed: ten times it, for each of a million starts, fits."""
RESUMED_RATIO = 2.0
"""A bar that is drawn at 0 and then so many times as far on as it ever moves later goes on there:
trainers that resume draw it so."""
ROUNDING_NS = 500_000
"""By how much a running mean may be off as it is printed: with three decimals of a second."""
MAX_ROUNDING_RATIO = 0.05
"""Of what lies between two running means: where rounding may be more of it, they do not tell it."""
MIN_MOVES = 5
"""Later moves that must be known for that."""
JITTER_STEPS = 2
"""How far ranks that print into one file may be apart: a number that falls by more is a restart."""
OVERLAP_RATIO = 0.5
"""Share of a log that another covers, from which on both tell the same steps."""


def history(
    con: duckdb.DuckDBPyConnection,
    source_ids: Collection[int],
    corrections: Mapping[int, Correction],
) -> tuple[pa.Table, list[dict[str, Any]]]:
    """The tables ``logged_step`` and (as rows) ``job_episode``, of these sources."""
    lines = _joined(_logs(con, source_ids, corrections))
    if lines is None:
        return arrow("logged_step", []), []
    return _table(lines), episodes(
        lines, phases.of_lines(con, lines.source, lines.place, lines.dur)
    )


# --- from files to one series --------------------------------------------------------------------


@dataclass(frozen=True)
class _Log:
    """The steps of one file, each once a start."""

    source_id: int
    start: Ints
    step: Ints
    place: Ints
    end: Ints
    elapsed: Ints
    stated: Floats
    is_sample: Bools
    """Whether that is of a line's last step alone."""
    first_count: Ints
    """Steps that a line stands for as the first of a start."""
    since_anew: Ints
    """Of a bar's first drawing in an epoch: steps since the bar began anew; 0 elsewhere."""

    @property
    def span(self) -> tuple[int, int] | None:
        known = self.end[self.end >= 0]
        return (int(known.min()), int(known.max())) if len(known) else None

    @property
    def reach(self) -> tuple[int, int]:
        return int(self.step.min()), int(self.step.max())


def _logs(
    con: duckdb.DuckDBPyConnection,
    source_ids: Collection[int],
    corrections: Mapping[int, Correction],
) -> list[_Log]:
    import numpy as np

    rows = con.sql(
        """
        SELECT source_id, place, format, step, epoch, total_steps_count, tag,
               coalesce(time_ns, -1) AS time_ns, coalesce(elapsed_ns, -1) AS elapsed_ns,
               coalesce(dur_ns, -1) AS dur_ns, coalesce(is_averaged, true) AS is_averaged,
               coalesce(running_dur_ns, -1) AS running_dur_ns
        FROM job_step WHERE step IS NOT NULL AND list_contains($used, source_id)
        ORDER BY source_id, place, epoch, step
        """,
        params={"used": sorted(source_ids)},
    ).to_arrow_table()
    sources = rows["source_id"].to_numpy()
    logs = []
    for source_id in np.unique(sources).tolist():
        chosen = _of_training(rows.slice(*_range(sources, source_id)))
        log = _log(source_id, chosen, corrections)
        if log is not None:
            logs.append(log)
    return logs


def _range(sorted_ids: Ints, wanted: int) -> tuple[int, int]:
    first, last = sorted_ids.searchsorted([wanted, wanted + 1]).tolist()
    return first, last - first


def _of_training(rows: pa.Table) -> pa.Table:
    """The lines of the one program, bar and rank that tells the training."""
    import pyarrow.compute as pc

    of_bar = pc.equal(rows["format"], BAR)
    totals = pc.if_else(of_bar, pc.fill_null(rows["total_steps_count"], -1), -1)
    rows = rows.append_column("bar", totals)
    if _kinds_count(rows, "format") > 1 or _kinds_count(rows, "bar") > 1:
        rows = _of_best_kind(rows)
    if _kinds_count(rows, "tag") == 1:
        return rows
    tags = rows.group_by("tag").aggregate([("step", "count_distinct")]).to_pylist()
    most = max(t["step_count_distinct"] for t in tags)
    tag = min(
        (t["tag"] for t in tags if t["tag"] is not None and 2 * t["step_count_distinct"] >= most),
        default=None,
    )
    if tag is None:
        return rows
    return rows.filter(pc.fill_null(pc.equal(rows["tag"], tag), fill_value=False))


def _kinds_count(rows: pa.Table, column: str) -> int:
    """How many values a column has, null among them. To count the steps of each is slow."""
    import pyarrow.compute as pc

    return int(pc.count_distinct(rows[column], mode="all").as_py())


def _of_best_kind(rows: pa.Table) -> pa.Table:
    """The lines of the one program and bar that tells the training."""
    import pyarrow.compute as pc

    kinds = rows.group_by(["format", "bar"]).aggregate(
        [("step", "count_distinct"), ("dur_ns", "max"), ("time_ns", "max"), ("elapsed_ns", "max")]
    )
    best = max(
        kinds.to_pylist(),
        key=lambda k: (
            k["format"] != BAR and k["step_count_distinct"] >= MIN_LINES,
            max(k["dur_ns_max"], k["time_ns_max"]) > 0,
            k["elapsed_ns_max"] if k["format"] == BAR else 0,
            k["step_count_distinct"],
            k["format"],
        ),
    )
    is_chosen = pc.and_(
        pc.equal(rows["format"], best["format"]), pc.equal(rows["bar"], best["bar"])
    )
    return rows.filter(is_chosen)


def _log(source_id: int, rows: pa.Table, corrections: Mapping[int, Correction]) -> _Log | None:
    import numpy as np

    step = _over_epochs(rows)
    falls = int((np.diff(step) < -JITTER_STEPS).sum())
    if rows["format"][0].as_py() == PLAIN and falls > MAX_FALLS_RATIO * len(step):
        return None
    start = np.concatenate([[0], np.cumsum(np.diff(step) < -JITTER_STEPS)])
    # Within a start only what is new counts: starts are lifted apart, so that one maximum does.
    lifted = step + start * (int(step.max()) - int(step.min()) + 1)
    highest = np.maximum.accumulate(lifted)
    is_new = np.ones(len(step), bool)
    is_new[1:] = lifted[1:] > highest[:-1]
    first_count = np.ones(len(step), np.int64)
    if rows["format"][0].as_py() == BAR:
        first_count[rows["step"].to_numpy() == 0] = 0
        is_new[is_new] = ~_is_before_resuming(start[is_new], step[is_new])
    time = rows["time_ns"].to_numpy()
    ids = np.full(len(time), source_id, np.int64)
    end = np.where(time >= 0, corrected(time, ids, corrections), -1)
    # Two handlers of one logger print a line twice, and the first may state no time.
    is_again = (end[:-1] < 0) & (lifted[:-1] == lifted[1:])
    end[:-1][is_again] = end[1:][is_again]
    dur = rows["dur_ns"].to_numpy().astype(float)
    is_averaged = rows["is_averaged"].to_numpy(zero_copy_only=False)[is_new]
    epoch = rows["epoch"].fill_null(-1).to_numpy()[is_new]
    in_epoch = rows["step"].to_numpy()[is_new]
    start, dur = start[is_new], np.where(dur > 0, dur, np.nan)[is_new]
    is_same = np.diff(start, prepend=-1) == 0
    is_same[1:] &= np.diff(epoch) == 0
    between = _between_running_means(
        rows["running_dur_ns"].to_numpy()[is_new].astype(float), in_epoch, is_same
    )
    is_told = np.isfinite(between)
    is_bar = rows["format"][0].as_py() == BAR
    return _Log(
        source_id,
        start,
        step[is_new],
        rows["place"].to_numpy()[is_new],
        end[is_new],
        rows["elapsed_ns"].to_numpy()[is_new],
        np.where(is_told, between, dur),
        ~(is_averaged | is_told),
        first_count[is_new],
        np.where((epoch >= 0) & ~is_same & is_bar, in_epoch, 0),
    )


def _over_epochs(rows: pa.Table) -> Ints:
    """Numbers of the steps over all epochs, where they begin anew in each."""
    import numpy as np

    step: Ints = rows["step"].to_numpy().astype(np.int64)
    if rows["epoch"].null_count:
        return step
    epoch: Ints = rows["epoch"].to_numpy().astype(np.int64)
    is_next, moved = np.diff(epoch) > 0, np.diff(step)
    is_own = rows["format"][0].as_py() == PLAIN
    if is_own and is_next.any() and (moved[is_next] > 0).all():
        return step  # they count on
    if rows["total_steps_count"].null_count == 0:
        length: Ints | int = rows["total_steps_count"].to_numpy()
        epochs = epoch
    else:
        within = moved[~is_next & (moved > 0)]
        length = int(step.max()) + (int(np.median(within)) if len(within) else 1)
        epochs = epoch - epoch.min()
    over_all: Ints = step + epochs * length
    return over_all if over_all.max() <= MAX_STEP else step


def _between_running_means(mean: Floats, step: Ints, is_same: Bools) -> Floats:
    """How long each step since the line before took, by the means up to both lines; nan where
    rounding leaves too little of it, or lines tell each step by themselves.

    ``step`` counts as the means do, ``is_same`` says whether the line before is of the same mean.
    """
    import numpy as np

    count = step + 1.0
    told = np.full(len(mean), np.nan)
    total, moved = (np.diff(x, prepend=x[:1]) for x in (mean * count, count))
    rounding = ROUNDING_NS * (count + np.roll(count, 1))
    known = is_same & (mean >= 0) & (np.roll(mean, 1) >= 0) & (moved > 1)
    known &= (total > 0) & (rounding <= MAX_ROUNDING_RATIO * total)
    told[known] = total[known] / moved[known]
    return told


def _is_before_resuming(start: Ints, step: Ints) -> Bools:
    """Drawings of a bar at 0 from which its program went on to where it had saved."""
    import numpy as np

    is_resumed = np.zeros(len(step), bool)
    edges = [*np.flatnonzero(np.diff(start, prepend=start[0] - 1)).tolist(), len(step)]
    for first, end in pairwise(edges):
        moves = np.diff(step[first:end])
        if step[first] == 0 and len(moves) > MIN_MOVES:
            is_resumed[first] = moves[0] > RESUMED_RATIO * moves[1:].max()
    return is_resumed


def _joined(logs: list[_Log]) -> Lines | None:
    """The logs one after the other, without those that tell what another tells."""
    import numpy as np

    chosen: list[_Log] = []
    for log in sorted(logs, key=lambda x: (-len(x.step), x.source_id)):
        if len(log.step) and not any(_is_told(log, other) for other in chosen):
            chosen.append(log)
    if not chosen:
        return None
    chosen.sort(key=lambda x: (x.span is None, (x.span or (0, 0))[0], x.reach, x.source_id))
    parts, number = [], 0
    for log in chosen:
        parts.append(log.start + number + 1)
        number = int(parts[-1][-1])
    start = np.concatenate(parts).astype(np.int64)
    step, place, end, elapsed, since_anew = (
        np.concatenate([getattr(log, name) for log in chosen]).astype(np.int64)
        for name in ("step", "place", "end", "elapsed", "since_anew")
    )
    stated = np.concatenate([log.stated for log in chosen])
    is_first = np.concatenate([[True], np.diff(start) > 0])
    first_count = np.concatenate([log.first_count for log in chosen])
    first_count = np.where(since_anew > 0, since_anew, first_count)
    count = np.where(is_first, first_count, np.diff(step, prepend=step[0]))
    wall = np.full(len(step), np.nan)
    for clock in (elapsed, end):  # the second, where it is known, is the finer one
        gone = np.diff(clock, prepend=clock[0]).astype(float)
        known = ~is_first & (clock >= 0) & (np.roll(clock, 1) >= 0) & (gone >= 0)
        wall[known] = gone[known]
        if clock is elapsed:  # what a bar counts ends with it, and the next begins at 0
            is_anew = since_anew > 0
            wall[is_anew] = np.where(count == since_anew, elapsed, np.nan)[is_anew]
    said = np.isfinite(stated)
    is_stated = 2 * said.sum() >= len(step)
    dur = stated if is_stated else wall / count
    is_sample = np.concatenate([log.is_sample for log in chosen]) & is_stated
    source = np.concatenate([np.full(len(log.step), log.source_id) for log in chosen])
    return Lines(start, step, source, place, end, count, dur, wall, is_first, is_sample)


def _is_told(log: _Log, other: _Log) -> bool:
    """Whether another log covers most of this one: another rank's, or a copy."""
    mine, theirs = (log.span, other.span) if log.span and other.span else (log.reach, other.reach)
    shared = min(mine[1], theirs[1]) - max(mine[0], theirs[0])
    return shared >= OVERLAP_RATIO * (mine[1] - mine[0]) and shared >= 0


def _table(lines: Lines) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    from tracekit.schema import table

    def rounded(values: Floats) -> pa.Array:
        is_none = ~np.isfinite(values)
        return pa.array(np.rint(np.where(is_none, 0, values)).astype(np.int64), mask=is_none)

    schema = table("logged_step").arrow_schema()
    columns = {
        "start_number": pa.array(lines.start),
        "step": pa.array(lines.step),
        "source_id": pa.array(lines.source),
        "place": pa.array(lines.place),
        "end_ns": pa.array(lines.end, mask=lines.end < 0),
        "steps_count": pa.array(lines.count),
        "dur_ns": rounded(lines.dur),
        "wall_ns": rounded(lines.wall),
    }
    return pa.table([columns[f.name].cast(f.type) for f in schema], schema)
