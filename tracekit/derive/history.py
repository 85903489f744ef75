"""The job's history from its training logs: lines of several files as one series of steps.

The program whose lines they are is chosen (bars of evaluations and loaders are shorter), of several
ranks that print the same the lowest counts, and a number that falls is a restart. Logs that do not
overlap follow each other. What stands out in the series is for ``episodes`` to say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from tracekit.correction import Correction, corrected
from tracekit.derive import phases
from tracekit.derive.episodes import MIN_LINES, Lines, episodes, silence
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
OF_ONES_OWN = ("plain", "counted")
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
BATCH_ROWS = 100_000
MAX_LINES = 1_000_000
"""Lines of a history beyond which several are one, so that memory does not grow with the log: a
line a second for eleven days."""
APART_RATIO = 3.0
"""How many times as long, or as many steps, as usual a line must be to stay one by itself there."""
MIN_MOVES = 5
"""Later moves that must be known for that."""
JITTER_STEPS = 2
"""How far ranks that print into one file may be apart: a number that falls by more is a restart."""
ZONE_NS, MAX_OFF_ZONE_NS = 1800 * 10**9, 180 * 10**9
"""Zones are half hours apart: about so far apart, two files' times may be of two."""
HOUR_NS = 3600 * 10**9
MIN_SLACK_NS = 2 * 10**9
"""How far from an hour a clock's leap may be, or half a usual line where that is longer."""
SPRING_MONTHS = (3, 4, 9, 10, 11)
"""In which summer time begins somewhere; always in the night to a Sunday, of which UTC has a part
on either day."""
SHOWN_LEAPS = 3
MAX_GAP_RATIO = 1.5
"""Time from a log's last step to the next log's first, over what as many steps usually take, up to
which the second is a part of the first: to start takes longer."""
WORKING = ("slow", "risen")
"""Kinds of episodes whose steps may take longer for what they do."""
MAX_BEYOND_RATIO = 0.05
"""By how much steps may take longer than in proportion to the samples that they consume."""
OVERLAP_RATIO = 0.5
"""Share of a log that another covers, from which on both tell the same steps."""


def history(
    con: duckdb.DuckDBPyConnection,
    source_ids: Collection[int],
    corrections: Mapping[int, Correction],
    notes: list[str] | None = None,
) -> tuple[pa.Table, list[dict[str, Any]]]:
    """The tables ``logged_step`` and (as rows) ``job_episode``, of these sources. What a reader
    should know of the log's clock is appended to ``notes``."""
    import numpy as np

    ((stored_count,),) = con.execute("SELECT count(*) FROM job_step").fetchall()
    with _streamed(con) if stored_count > MAX_LINES else nullcontext():
        logs = _logs(con, source_ids, corrections)
    lines = _joined(logs)
    if lines is None:
        return arrow("logged_step", []), []
    local = con.execute("SELECT source_id FROM source WHERE time_basis = 'local'").fetchall()
    lines = _without_leaps(lines, [source_id for (source_id,) in local], notes)
    rows = episodes(
        lines,
        phases.of_lines(con, lines.source, lines.place, lines.dur),
        phases.ended_for(con, lines.source, lines.place, lines.is_first),
    )
    rows = _beyond_their_work(con, rows, np.unique(lines.source).tolist())
    last = int(lines.source[-1]), int(lines.place[-1])
    silent_ns, until = _silent_ns(con, *last) or (_ended_elsewhere_ns(con, *last), None)
    if silent_ns is not None:
        rows += [row | phases.behind(con, *last, until) for row in silence(lines, silent_ns)]
    return _table(lines), rows  # not before: both would be held at once


def _beyond_their_work(
    con: duckdb.DuckDBPyConnection, rows: list[dict[str, Any]], source_ids: list[int]
) -> list[dict[str, Any]]:
    """The episodes without stretches and rises whose steps take longer by no more than they consume
    more samples or tokens, where these logs count them: a batch that is ramped up is no fault."""
    import numpy as np

    if not any(row["kind"] in WORKING for row in rows):
        return rows
    found = con.execute(
        """
        SELECT step, max(coalesce(samples_count, tokens_count)) AS done
        FROM job_step
        WHERE
            step IS NOT NULL
            AND coalesce(samples_count, tokens_count) IS NOT NULL
            AND list_contains(?, source_id)
        GROUP BY step
        ORDER BY step
        """,
        [source_ids],
    ).fetchnumpy()
    step, work = found["step"][1:], np.diff(found["done"]) / np.diff(found["step"])
    kept = []
    for row in rows:
        is_within = (step >= row["first_step"]) & (step <= row["last_step"]) & (work > 0)
        is_before = row["kind"] == "risen"
        is_beside = (step < row["first_step"]) | ((step > row["last_step"]) & (not is_before))
        is_beside &= work > 0
        if row["kind"] in WORKING and is_within.any() and is_beside.any():
            more = float(np.median(work[is_within]) / np.median(work[is_beside]))
            is_more = more >= 1 + MAX_BEYOND_RATIO  # else any small change would be excused
            if is_more and row["dur_ns"] <= row["usual_ns"] * more * (1 + MAX_BEYOND_RATIO):
                continue
        kept.append(row)
    return kept


@contextmanager
def _streamed(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Rows as they are stored, which several threads of DuckDB would hand over as they come; and
    by all its threads: lines compress a thousand times, so a file of a megabyte may hold ten
    million of them, for which ``store`` takes one."""
    asked = "SELECT current_setting('threads'), current_setting('preserve_insertion_order')"
    ((threads_count, keeps_order),) = con.execute(asked).fetchall()
    con.execute("RESET threads; SET preserve_insertion_order = true")
    try:
        yield
    finally:
        con.execute(f"SET threads = {threads_count}; SET preserve_insertion_order = {keeps_order}")


def _silent_ns(
    con: duckdb.DuckDBPyConnection, source_id: int, place: int
) -> tuple[int, int] | None:
    """How long nothing was printed behind the job's last line before what ended it, and the line
    that tells of that."""
    told = con.sql(
        "SELECT place, fields FROM log_event WHERE source_id = $source AND place > $place "
        "ORDER BY place DESC",
        params={"source": source_id, "place": place},
    ).fetchall()
    said = ((at, field.partition("=")) for at, fields in told for field in fields or ())
    return next(((int(ns), at) for at, (name, _, ns) in said if name == "silent_ns"), None)


def _ended_elsewhere_ns(con: duckdb.DuckDBPyConnection, source_id: int, place: int) -> int | None:
    """The same by another file's word (a scheduler's errors, where only what the job prints stands
    in its log), both in times without a zone: None where the two may be of two zones."""
    known = con.sql(
        """
        SELECT max(event.time_ns) - any_value(line.time_ns)
        FROM log_event AS event
        JOIN source AS other ON other.source_id = event.source_id
        CROSS JOIN (
            SELECT time_ns
            FROM job_step
            JOIN source AS own ON own.source_id = job_step.source_id
            WHERE job_step.source_id = $source AND place = $place AND own.time_basis = 'local'
            LIMIT 1
        ) AS line
        WHERE
            event.code = 'job-cancelled'
            AND event.source_id <> $source
            AND other.time_basis = 'local'
        """,
        params={"source": source_id, "place": place},
    ).fetchall()
    silent_ns = known[0][0] if known else None
    if silent_ns is None or silent_ns <= 0:
        return None
    from_zone_ns = abs((silent_ns + ZONE_NS // 2) % ZONE_NS - ZONE_NS // 2)
    return None if from_zone_ns <= MAX_OFF_ZONE_NS else int(silent_ns)


# --- from files to one series --------------------------------------------------------------------


class _Log(Struct, frozen=True):
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
    is_done: Bools
    """Whether the last step of the whole job is reached."""

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
    kinds = con.sql(
        f"""
        SELECT source_id, format, {_BAR} AS bar, tag, count(*) AS lines_count,
               count(epoch) AS epoch_count, count(total_steps_count) AS total_count,
               coalesce(max(dur_ns), -1) AS dur_ns, coalesce(max(time_ns), -1) AS time_ns,
               coalesce(max(elapsed_ns), -1) AS elapsed_ns,
               coalesce(max(running_dur_ns), -1) AS running_dur_ns
        FROM job_step
        WHERE step IS NOT NULL AND source_id IN (SELECT unnest($used::INTEGER[]))
        GROUP BY ALL ORDER BY ALL
        """,  # noqa: S608 - words of this module
        params={"used": sorted(source_ids)},
    ).to_arrow_table()
    of_source: dict[int, list[Kind]] = {}
    for kind in kinds.to_pylist():
        of_source.setdefault(kind["source_id"], []).append(kind)
    logs = []
    for source_id, found in of_source.items():
        kinds_used = _of_training(con, source_id, found)
        rows = _rows(con, source_id, kinds_used, are_all=kinds_used == found)
        log = _log(source_id, rows, corrections)
        if log is not None:
            logs.append(log)
    return logs


_BAR = f"CASE WHEN format = '{BAR}' THEN coalesce(total_steps_count, -1) ELSE -1 END"
"""Which bar a line belongs to: a program's bars have totals of their own."""
Kind = dict[str, Any]
"""Lines of one source, program, bar and rank: how many, what they tell, and the most of it."""


def _of_training(con: duckdb.DuckDBPyConnection, source_id: int, kinds: list[Kind]) -> list[Kind]:
    """Those of the one program, bar and rank that tells the training."""
    bars = {(k["format"], k["bar"]) for k in kinds}
    if len(bars) > 1:
        best = _best(con, source_id, kinds)
        kinds = [k for k in kinds if (k["format"], k["bar"]) == best]
    if len(kinds) == 1:
        return kinds
    steps_count = _steps_count(con, source_id, kinds, "tag")
    most = max(steps_count.values())
    tag = min(
        (tag for (tag,), count in steps_count.items() if tag is not None and 2 * count >= most),
        default=None,
    )
    return kinds if tag is None else [k for k in kinds if k["tag"] == tag]


def _best(con: duckdb.DuckDBPyConnection, source_id: int, kinds: list[Kind]) -> tuple[str, int]:
    """The program and bar that tells the training."""
    steps_count = _steps_count(con, source_id, kinds, "format", "bar")

    def worth(bar: tuple[str, int]) -> tuple[Any, ...]:
        own = [k for k in kinds if (k["format"], k["bar"]) == bar]
        most = {n: max(k[n] for k in own) for n in ("dur_ns", "time_ns", "elapsed_ns")}
        return (
            bar[0] != BAR and steps_count[bar] >= MIN_LINES,
            max(most["dur_ns"], most["time_ns"]) > 0,
            most["elapsed_ns"] if bar[0] == BAR else 0,
            steps_count[bar],
            bar,
        )

    best: tuple[str, int] = max(steps_count, key=worth)
    return best


def _steps_count(
    con: duckdb.DuckDBPyConnection, source_id: int, kinds: list[Kind], *names: str
) -> dict[Any, int]:
    """Distinct steps by these columns, of the lines of ``kinds``. To count them is slow."""
    columns = ", ".join(names)
    rows = con.execute(
        f"""
        SELECT {columns}, count(DISTINCT step)
        FROM (SELECT format, {_BAR} AS bar, tag, step, source_id FROM job_step)
        WHERE step IS NOT NULL AND source_id = $source
              AND list_contains($kinds, {{'format': format, 'bar': bar}})
        GROUP BY {columns} ORDER BY ALL
        """,  # noqa: S608 - names that this module gives
        {
            "source": source_id,
            "kinds": [{"format": k["format"], "bar": k["bar"]} for k in kinds],
        },
    ).fetchall()
    return {tuple(key): count for *key, count in rows}


class _Rows(Struct, frozen=True):
    """Lines of one program, bar and rank of a source, by place, epoch and step."""

    format: str
    lines_count: int
    """How many there are, of which these may be every so manieth."""
    apart_count: int | None
    """Steps from line to line, where these are every so manieth."""
    has_epochs: bool
    """Whether each line says its epoch and how many steps one has."""
    place: Ints
    step: Ints
    epoch: Ints
    """-1 where nothing is said, as in the next ones."""
    total: Ints
    time: Ints
    elapsed: Ints
    dur: Ints
    running_dur: Ints
    is_averaged: Bools


_OF_ALL = ("format", "lines_count", "apart_count", "has_epochs")


def _rows(
    con: duckdb.DuckDBPyConnection, source_id: int, kinds: list[Kind], *, are_all: bool
) -> _Rows:
    """Read into arrays as they come: DuckDB's own order, of millions of rows, would take their
    memory twice again, and mostly they are in order. ``are_all``: the source has no other lines."""
    import numpy as np

    count = sum(k["lines_count"] for k in kinds)
    epochs, totals = (sum(k[f"{n}_count"] for k in kinds) for n in ("epoch", "total"))
    told = {n: max(k[n] for k in kinds) >= 0 for n in ("time_ns", "elapsed_ns", "dur_ns",
                                                       "running_dur_ns")}  # fmt: skip
    told |= {"place": True, "step": True, "epoch": epochs > 0, "total_steps_count": totals > 0}
    names = [name for name, is_told in told.items() if is_told]
    chosen = f"""
        AND format = $format AND {_BAR} = $bar AND list_contains($tags, coalesce(tag, -1))
    """
    chosen_by = {
        "format": kinds[0]["format"], "bar": kinds[0]["bar"],
        "tags": [-1 if k["tag"] is None else k["tag"] for k in kinds],
    }  # fmt: skip
    reader = con.sql(
        f"""
        SELECT coalesce(is_averaged, true) AS is_averaged,
               {", ".join(f"coalesce({name}, -1) AS {name}" for name in names)}
        FROM job_step
        WHERE step IS NOT NULL AND source_id = $source {"" if are_all else chosen}
        """,  # noqa: S608 - names that this module gives
        params={"source": source_id} | ({} if are_all else chosen_by),
    ).to_arrow_reader(BATCH_ROWS)
    batches: Iterator[dict[str, Any]] = (
        {n: batch[n].to_numpy(zero_copy_only=False) for n in (*names, "is_averaged")}
        for batch in _of_equal_length(reader)
    )
    apart_count = None
    if count > MAX_LINES:
        first = next(batches)
        moved = np.diff(first["step"])
        apart_count = int(np.median(moved[moved > 0])) if (moved > 0).any() else None
        batches = chain([first], batches)
        thinned = list(_thinned(batches, -(-count // MAX_LINES)))
        columns = {n: np.concatenate([part.pop(n) for part in thinned]) for n in list(thinned[0])}
    else:
        columns = {name: np.empty(count, np.int64) for name in names}
        columns["is_averaged"] = np.empty(count, bool)
        at = 0
        for batch in batches:
            end = at + len(batch["step"])
            for name, column in batch.items():
                columns[name][at:end] = column
            at = end
    is_averaged = columns.pop("is_averaged")
    untold = np.broadcast_to(np.int64(-1), is_averaged.shape)
    keys = [columns[n] for n in ("place", "epoch", "step") if n in columns]
    if not _is_sorted(keys):
        order = np.lexsort(keys[::-1])
        columns = {name: column[order] for name, column in columns.items()}
        is_averaged = is_averaged[order]
    of = {name: columns.get(name, untold) for name in told}
    return _Rows(
        kinds[0]["format"], count, apart_count, epochs == totals == count, of["place"], of["step"],
        of["epoch"], of["total_steps_count"], of["time_ns"], of["elapsed_ns"], of["dur_ns"],
        of["running_dur_ns"], is_averaged,
    )  # fmt: skip


def _of_equal_length(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Batches of so many rows, the last of fewer: what is unusual is judged within one, so it must
    not depend on how many threads read."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    held_count = 0
    for batch in reader:
        begin = 0
        while held_count + batch.num_rows - begin >= BATCH_ROWS:
            wanted = BATCH_ROWS - held_count
            yield pa.concat_batches([*held, batch.slice(begin, wanted)])
            begin, held, held_count = begin + wanted, [], 0
        if begin < batch.num_rows:
            held.append(batch.slice(begin))
            held_count += batch.num_rows - begin
    if held:
        yield pa.concat_batches(held)


def _thinned(batches: Iterable[dict[str, Any]], apart: int) -> Iterator[dict[str, Any]]:
    """Every so manieth line, for all since the one before, and each line that is unlike others
    with the one before it: where steps fall, an epoch or a bar begins, or it took much longer."""
    import numpy as np

    held: dict[str, Any] = {}
    """The last line that was kept, and those behind it."""
    for batch in batches:
        rows = {n: np.concatenate([held[n], batch[n]]) for n in batch} if held else batch
        known = len(rows["step"]) - len(batch["step"])
        moved = np.diff(rows["step"], prepend=rows["step"][0])
        is_odd = (moved < -JITTER_STEPS) | _is_far(moved, apart) | (rows["step"] == 0)
        for name in ("epoch", "total_steps_count"):
            if name in rows:
                is_odd[1:] |= np.diff(rows[name]) != 0
        for name in ("time_ns", "elapsed_ns"):
            if name in rows:
                is_odd |= _is_far(np.diff(rows[name], prepend=rows[name][0]), apart)
        if "dur_ns" in rows:
            is_odd |= _is_far(rows["dur_ns"], apart)
        kept = is_odd.copy()
        kept[:-1] |= is_odd[1:]
        kept[apart::apart] = True
        # Of those held all but the last, which may stand before an odd one, are decided.
        kept[: known - 1 if known > 1 else known] = False
        kept[0] = not held
        last = np.flatnonzero(kept)
        begin = 1 if held else 0
        if len(last):
            end = int(last[-1])
            yield _as_means({n: c[begin : end + 1] for n, c in rows.items()}, last - begin)
            rows = {n: column[end:] for n, column in rows.items()}
        held = rows
    if held and len(held["step"]) > 1:
        yield _as_means({n: c[1:] for n, c in held.items()}, np.array([len(held["step"]) - 2]))


def _is_far(values: Ints, apart: int) -> Bools:
    """Values that are much larger than usual; of many only the largest."""
    import numpy as np

    most = max(1, len(values) // (2 * apart))
    usual = max(float(np.median(values)), 1.0)
    largest = np.partition(values, -most)[-most]
    is_far: Bools = (values > APART_RATIO * usual) & (values >= largest)
    if is_far.sum() > 2 * most:  # as many ticks of a clock are alike
        is_far &= values > largest
    return is_far


def _as_means(rows: dict[str, Any], last: Ints) -> dict[str, Any]:
    """One line of all up to each of the ``last`` ones: durations are their means."""
    import numpy as np

    first = np.concatenate([[0], last[:-1] + 1])
    one = {name: column[last] for name, column in rows.items()}
    one["is_averaged"] = one["is_averaged"] | (last > first)
    if "dur_ns" in rows:
        is_said = rows["dur_ns"] > 0
        total, count = (
            np.add.reduceat(x, first) for x in (np.where(is_said, rows["dur_ns"], 0), is_said * 1)
        )
        one["dur_ns"] = np.where(count > 0, total // np.maximum(count, 1), -1)
    return one


def _is_sorted(keys: list[Ints]) -> bool:
    """Whether rows ascend by these keys, the first before the others."""
    import numpy as np

    first, *others = keys
    if (first[1:] > first[:-1]).all():
        return True
    is_tied = np.ones(len(first) - 1, bool)
    for key in (first, *others):
        if (is_tied & (key[1:] < key[:-1])).any():
            return False
        is_tied &= key[1:] == key[:-1]
    return True


def _log(source_id: int, given: _Rows, corrections: Mapping[int, Correction]) -> _Log | None:
    import numpy as np

    rows = _without_anew(_in_epochs(given))
    if not len(rows.step):
        return None
    step = _over_epochs(rows)
    if _counts_else(rows, int((np.diff(step) < -JITTER_STEPS).sum())):
        return None
    start = np.concatenate([[0], np.cumsum(np.diff(step) < -JITTER_STEPS)])
    # Within a start only what is new counts: starts are lifted apart, so that one maximum does.
    lifted = step + start * (int(step.max()) - int(step.min()) + 1)
    highest = np.maximum.accumulate(lifted)
    is_new = np.ones(len(step), bool)
    is_new[1:] = lifted[1:] > highest[:-1]
    # Two handlers of one logger print a line twice, and the first may state no time.
    times = rows.time
    is_again = (times[:-1] < 0) & (lifted[:-1] == lifted[1:])
    if is_again.any():
        times = times.copy()
        times[:-1][is_again] = times[1:][is_again]
    del lifted, highest, is_again
    first_count = np.ones(len(step), np.int64)
    is_bar = rows.format == BAR
    if is_bar:
        first_count[rows.step == 0] = 0
        is_new[is_new] = ~_is_before_resuming(start[is_new], step[is_new])
    # Mostly all are new: then nothing is copied.
    kept: Any = slice(None) if is_new.all() else is_new
    time = times[kept]
    ids = np.broadcast_to(np.int64(source_id), time.shape)
    end = np.where(time >= 0, corrected(time, ids, corrections), -1)
    start, epoch, in_epoch = start[kept], rows.epoch[kept], rows.step[kept]
    dur = rows.dur[kept].astype(float)
    dur[dur <= 0] = np.nan
    is_same = np.diff(start, prepend=-1) == 0
    is_same[1:] &= np.diff(epoch) == 0
    is_sample = ~rows.is_averaged[kept]
    if rows.running_dur.strides[0]:  # else no line says one
        between = _between_running_means(rows.running_dur[kept].astype(float), in_epoch, is_same)
        is_told = np.isfinite(between)
        is_sample &= ~is_told
        dur = np.where(is_told, between, dur)
    return _Log(
        source_id,
        start,
        step[kept],
        rows.place[kept],
        end,
        rows.elapsed[kept],
        dur,
        is_sample,
        first_count[kept],
        np.where((epoch >= 0) & ~is_same & is_bar, in_epoch, 0),
        (rows.total[kept] > 0) & (rows.total[kept] <= in_epoch) & (not rows.has_epochs),
    )


def _counts_else(rows: _Rows, falls_count: int) -> bool:
    """Whether a number that falls so often counts something within steps."""
    return rows.format in OF_ONES_OWN and falls_count > MAX_FALLS_RATIO * rows.lines_count


def _in_epochs(rows: _Rows) -> _Rows:
    """With the epochs of bars and loops of one's own that do not say them: where the count begins
    anew once its last step was reached, or so often at the same step."""
    import numpy as np

    if rows.format not in (BAR, *OF_ONES_OWN) or (rows.epoch >= 0).any():
        return rows
    moved = np.diff(rows.step)
    falls = np.flatnonzero(moved < -JITTER_STEPS)
    if not len(falls) or _counts_else(rows, len(falls)):
        return rows
    ahead = moved[moved > 0]
    apart = rows.apart_count or (int(np.median(ahead)) if len(ahead) else 1)
    peaks, first, total = rows.step[falls], rows.step[falls + 1], rows.total
    is_anew = np.abs(first - rows.step[0]) <= apart
    if (total > 0).all():
        # A bar is drawn at its end, whenever that is.
        reached = peaks + (0 if rows.format == BAR else apart)
        is_whole = is_anew & (reached >= total[falls]) & (total[falls] == total[falls + 1])
    else:
        ends = np.append(peaks, rows.step[-1:] if len(falls) == 1 else peaks[:0])
        is_whole = np.full(len(falls), bool(np.ptp(ends) <= apart and is_anew.all()))
        total = np.broadcast_to(peaks.max() - first.min() + apart, total.shape)
    if not is_whole.any():
        return rows
    is_next = np.zeros(len(rows.step), bool)
    is_next[falls[is_whole] + 1] = True
    return replace(rows, epoch=np.cumsum(is_next), total=total, has_epochs=True)


def _without_anew(rows: _Rows) -> _Rows:
    """Without the drawings of an epoch's bar at 0, which tell nothing: a bar that is begun anew is
    drawn once with the epoch before, and would be a job that begins that one again."""
    if rows.format != BAR or not rows.has_epochs:
        return rows
    kept = rows.step > 0
    columns = {name: getattr(rows, name) for name in rows.__struct_fields__}
    arrays = {name: c[kept] for name, c in columns.items() if name not in _OF_ALL}
    return replace(rows, **arrays)


def _over_epochs(rows: _Rows) -> Ints:
    """Numbers of the steps over all epochs, where they begin anew in each."""
    import numpy as np

    step, epoch, length = rows.step, rows.epoch, rows.total
    has_lengths = rows.has_epochs and rows.format not in OF_ONES_OWN
    if rows.format != BAR and not has_lengths and (epoch >= 0).all():
        is_next, moved = np.diff(epoch) > 0, np.diff(step)
        if is_next.any() and (moved[is_next] > 0).all():
            return step  # they count on
        within = moved[~is_next & (moved > 0)]
        apart = rows.apart_count or (int(np.median(within)) if len(within) else 1)
        if rows.has_epochs and epoch.min() == 1 and step[0] <= apart:
            epoch = epoch - 1  # a loop that counts its epochs from 1, and begins here
        if not rows.has_epochs:
            length = np.broadcast_to(np.int64(int(step.max()) + apart), step.shape)
            epoch = epoch - epoch.min()
    elif not rows.has_epochs:
        return step
    over_all: Ints = step + epoch * length
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
    for before, log in zip([None, *chosen], chosen, strict=False):
        goes_on = before is not None and _goes_on(before, log)
        parts.append(log.start + number + (0 if goes_on else 1))
        number = int(parts[-1][-1])
    start = _one(parts)
    step, place, end, elapsed, since_anew = (
        _one([getattr(log, name) for log in chosen])
        for name in ("step", "place", "end", "elapsed", "since_anew")
    )
    stated = _one([log.stated for log in chosen])
    is_first = np.concatenate([[True], np.diff(start) > 0])
    first_count = np.where(since_anew > 0, since_anew, _one([log.first_count for log in chosen]))
    count = np.where(is_first, first_count, np.diff(step, prepend=step[0]))
    del first_count
    wall = np.full(len(step), np.nan)
    for clock in (elapsed, end):  # the second, where it is known, is the finer one
        if clock.max() < 0:
            continue
        gone = np.diff(clock, prepend=clock[0]).astype(float)
        known = ~is_first & (clock >= 0) & (np.roll(clock, 1) >= 0) & (gone >= 0)
        wall[known] = gone[known]
        if clock is elapsed:  # what a bar counts ends with it, and the next begins at 0
            is_anew = since_anew > 0
            wall[is_anew] = np.where(count == since_anew, elapsed, np.nan)[is_anew]
    said = np.isfinite(stated)
    is_stated = 2 * said.sum() >= len(step)
    dur = stated if is_stated else wall / count
    is_sample = _one([log.is_sample for log in chosen]) & is_stated
    source = _one([np.full(len(log.step), log.source_id, np.int32) for log in chosen])
    is_done = _one([log.is_done for log in chosen])
    return Lines(start, step, source, place, end, count, dur, wall, is_first, is_sample, is_done)


def _without_leaps(lines: Lines, local: Collection[int], notes: list[str] | None) -> Lines:
    """The same without the hour that a clock in local time leaps where summer time begins, which
    no step took."""
    import numpy as np

    known = np.isfinite(lines.wall) & np.isin(lines.source, list(local)) & (lines.end >= 0)
    if not known.any():
        return lines
    usual = float(np.median(lines.wall[known] / np.maximum(lines.count[known], 1)))
    due = usual * lines.count
    slack = np.maximum(MIN_SLACK_NS, due / 2)
    before = lines.end - np.where(known, lines.wall, 0).astype(np.int64)
    is_over_hour = before // HOUR_NS < (before + due + slack).astype(np.int64) // HOUR_NS
    is_leap = known & is_over_hour & (np.abs(lines.wall - HOUR_NS - due) <= slack)
    at = [int(n) for n in np.flatnonzero(is_leap) if _is_spring(int(before[n]))]
    if not at:
        return lines
    wall, dur = lines.wall.copy(), lines.dur.copy()
    wall[at] -= HOUR_NS
    by_clock = [n for n in at if np.isclose(dur[n] * lines.count[n], lines.wall[n])]
    dur[by_clock] = wall[by_clock] / lines.count[by_clock]
    if notes is not None:
        steps = ", ".join(f"{lines.step[n]:,}" for n in at[:SHOWN_LEAPS])
        steps += f" and {len(at) - SHOWN_LEAPS} others" if len(at) > SHOWN_LEAPS else ""
        notes.append(
            f"the training log's clock leaps an hour at step {steps}, as local time does where "
            "summer time begins: no step took it"
        )
    return replace(lines, wall=wall, dur=dur)


def _is_spring(ns: int) -> bool:
    """Whether summer time may begin then somewhere: in local time, or in UTC."""
    moment = datetime.fromtimestamp(ns // 10**9, UTC)
    is_night = (moment.weekday() == 5 and moment.hour >= 12) or (
        moment.weekday() == 6 and moment.hour < 12
    )
    return is_night and moment.month in SPRING_MONTHS


def _one(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Arrays as one, without a copy where there is one."""
    import numpy as np

    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _goes_on(before: _Log, log: _Log) -> bool:
    """Whether a log is the next part of the one before, as logs are rotated: its first step comes
    behind the other's last within the time of the steps between them, in which none starts."""
    spent, steps = before.end[-1] - before.end[0], before.step[-1] - before.step[0]
    moved, gone = log.step[0] - before.step[-1], log.end[0] - before.end[-1]
    is_timed = min(before.end[0], before.end[-1], log.end[0]) >= 0
    if not (is_timed and steps > 0 and moved > 0 and gone >= 0):
        return False
    return bool(gone * steps <= MAX_GAP_RATIO * spent * moved)


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
