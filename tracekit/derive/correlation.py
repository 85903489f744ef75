"""Counters of ports at the boundaries of steps, and whether they have to do with the step's time.

Cumulative counters are read off at each step's start and end by linear interpolation: exact for
totals between two readings, with the share of the step that readings cover. Where a collector looks
less often than twice a step, steps are taken together until it does, and the result says so.

Whether a counter goes with slow steps is judged as tracekit.stats does, with the port's own traffic
as a control where it differs from step to step (pauses rise with load), over all ports and counters
at once, and beside ports that are not on the job's path: what those show too is not this job's. Too
few steps, or a counter that stirred in too few of them, is ``not_testable``: an answer of its own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from tracekit.derive import counter_clock
from tracekit.derive.readings import Clocks, forward, growth, of_one_collector

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tracekit.derive.counter_clock import Curve
    from tracekit.stats import LagTest

    Floats = NDArray[np.float64]

MIN_WINDOWS = 30
"""Steps (or stretches of steps) that a test needs."""
MIN_ACTIVE = 10
"""Of these, how many must differ from the counter's usual value, which may be zero."""
MIN_COVERAGE_RATIO = 0.8
"""Share of a step that readings must cover for it to count."""
MAX_Q = 0.05
MIN_RHO = 0.3
MIN_EFFECT_RATIO = 0.01
MIN_LOAD_SPREAD = 0.01
"""Standard deviation of a step's bytes over their mean: below it the load is equal."""
MAX_TESTS = 500
"""Series that are tested, of ports on the job's path first; more would cost minutes."""
MARGIN_NS = 300_000_000_000
"""Readings before and after the steps that are looked at."""
MAX_STEP_ROWS = 200_000
"""Rows of counter_step that are kept."""
INFERRED = "steps inferred from GPU counters"
"""What the reason of a test says where no trace shows the steps."""
MAX_LENGTH = 1_000
"""Steps of a series that are tested: the last ones."""

TRAFFIC = ("rx_bytes", "tx_bytes")
SUSPECT = re.compile(
    r"dropped|pfc|pause|ecn|cnp|error|discard|wait|retrans|timeout|out_of_seq|out_of_buffer|stall"
    r"|overrun|missed|rnr|trim|exceeded|downed|recovery|pfcwd|fec_uncorrect"
)
"""Counters that may hold a job up; traffic is the control, not a suspect."""


class Series(Struct, frozen=True):
    """The readings of one counter of one port: priorities and queues added up."""

    node: str | None
    port: str
    counter: str
    direction: str | None
    times: Floats
    """ns since the first reading of the run, ascending."""
    totals: Floats
    """Grown by since its first reading; wraps undone."""
    holes: Floats
    """1 where the reading ends an interval in which a reset hides what was counted."""
    interval_ns: float


class Window(Struct, frozen=True):
    """A job-level step: when, and how long."""

    attempt: int | None
    """None: steps that counters show, of a job without traces."""
    capture_id: int
    step: int
    start_ns: int
    end_ns: int


def counter_tables(
    con: duckdb.DuckDBPyConnection,
    clocks: Clocks,
    steps: pa.Table,
    ports: Sequence[Mapping[str, Any]],
    traffic: Callable[[int], Mapping[tuple[int, str], Curve]] | None = None,
    inferred: Sequence[Mapping[str, Any]] = (),
) -> dict[str, list[dict[str, Any]]]:
    """The rows of ``counter_step``, ``network_correlation`` and ``counter_clock``.

    ``inferred``: rows of ``activity_step``, which serve where ``steps`` has none.

    ``traffic`` gives what the collectives of each attempt and host moved, since an origin in ns:
    with it, a node whose clock is known to be off is read at the job's time.
    """
    windows = _windows(steps) or [
        Window(None, 0, r["step"], r["start_ns"], r["start_ns"] + r["dur_ns"]) for r in inferred
    ]
    tables: dict[str, list[dict[str, Any]]] = {
        "counter_step": [],
        "network_correlation": [],
        "counter_clock": [],
    }
    if not windows:
        return tables
    origin_ns = min(w.start_ns for w in windows)
    series = _series(con, clocks, origin_ns, max(w.end_ns for w in windows))
    by_attempt: dict[int | None, list[Window]] = defaultdict(list)
    for window in windows:
        by_attempt[window.attempt].append(window)
    timed = {a: w for a, w in by_attempt.items() if a is not None}
    if traffic is not None and series and timed:
        curves = traffic(origin_ns)
        tables["counter_clock"] = counter_clock.rows_of(series, ports, curves, timed, origin_ns)
    off = {
        (r["attempt"], r["node"]): r["offset_ns"]
        for r in tables["counter_clock"]
        if r["verdict"] == "off"
    }
    for attempt, of_attempt in sorted(by_attempt.items(), key=lambda a: a[0] or 0):
        on_path = {
            (p["node"], p["port"])
            for p in ports
            if p["attempt"] == attempt and (p["ranks"] or p["rank"] is not None)
        }
        moved = [
            replace(counter, times=counter.times - off[attempt, counter.node])
            if (attempt, counter.node) in off
            else counter
            for counter in series
        ]
        part = _attempt(moved, of_attempt, origin_ns, on_path)
        for name, rows in part.items():
            tables[name] += rows
    return tables


def _windows(steps: pa.Table) -> list[Window]:
    """Steady steps over all ranks: from the first start to the last end."""
    spans: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    skipped: set[tuple[int, int, int]] = set()
    columns = ("attempt", "capture_id", "step", "start_ns", "end_ns", "is_warmup", "is_partial")
    rows = zip(*(steps[c].to_pylist() for c in columns), strict=True)
    for attempt, capture, step, start, end, is_warmup, is_partial in rows:
        key = (attempt, capture, step)
        if is_warmup or is_partial or start is None or end is None or end <= start:
            skipped.add(key)
        else:
            spans[key].append((start, end))
    return [
        Window(*key, min(s for s, _ in span), max(e for _, e in span))
        for key, span in sorted(spans.items())
        if key not in skipped
    ]


def _series(
    con: duckdb.DuckDBPyConnection,
    clocks: Clocks,
    origin_ns: int,
    end_ns: int,
) -> list[Series]:
    """Cumulative counters that grew around the steps, and the traffic beside them."""
    import numpy as np

    # The rows are on their files' own clocks: a local one may be half a day away.
    margin = MARGIN_NS + clocks.widest_ns
    span = [origin_ns - margin, end_ns + margin]
    moving = con.execute(
        """
        SELECT DISTINCT counter FROM (
            SELECT counter FROM net_sample
            WHERE kind = 'cumulative' AND port IS NOT NULL AND time_ns BETWEEN ? AND ?
            GROUP BY counter, source_id, node, port, direction, priority, queue, lane
            HAVING max(counted) > min(counted) OR count(*) = 1
        )
        """,
        span,
    ).fetchall()
    names = sorted(n for (n,) in moving if SUSPECT.search(n) or n in TRAFFIC)
    if not names:
        return []
    rows = con.execute(
        """
        SELECT source_id, node, port, counter, direction, priority, queue, lane, time_ns, counted
        FROM net_sample
        WHERE list_contains(?, counter) AND kind = 'cumulative' AND counted IS NOT NULL
              AND port IS NOT NULL AND time_ns BETWEEN ? AND ? AND list_contains(?, source_id)
        ORDER BY source_id, place
        """,
        [names, *span, sorted(clocks.hosts)],
    ).fetchall()
    if not rows:
        return []
    source_ids = np.array([r[0] for r in rows], np.int64)
    moved = clocks.moved(np.array([r[8] for r in rows], np.int64), source_ids)
    parts: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for at, (source_id, node, *name, _, _) in enumerate(rows):
        host = node if node is not None else clocks.hosts[source_id]
        # Ports of two unknown machines may bear one name: there a series is of one file.
        parts[host, source_id if host is None else None, *name].append(at)
    merged: dict[tuple[Any, ...], list[tuple[Floats, Floats, Floats]]] = defaultdict(list)
    for (owner, file, port, counter, direction, *_), positions in parts.items():
        readings = np.array(positions)
        readings = readings[of_one_collector(moved[readings], source_ids[readings], clocks.same)]
        forwards = readings[forward(moved[readings])]
        if len(forwards) < 3:
            continue
        totals, holes = growth([rows[at][9] for at in forwards.tolist()])
        times = (moved[forwards] - origin_ns).astype(float)
        merged[owner, file, port, counter, direction].append((times, totals, holes))
    return [_added(key, added) for key, added in sorted(merged.items(), key=lambda m: str(m[0]))]


def _added(key: tuple[Any, ...], parts: Sequence[tuple[Floats, Floats, Floats]]) -> Series:
    """One series of a counter's queues and priorities, on the readings of the first."""
    import numpy as np

    owner, _, port, counter, direction = key
    times, _, _ = parts[0]
    totals = np.zeros(len(times))
    holes = np.zeros(len(times))
    for own_times, grown, own_holes in parts:
        totals += np.interp(times, own_times, grown)
        at = np.searchsorted(times, own_times[own_holes > 0])
        holes[np.minimum(at, len(times) - 1)] = 1
    interval_ns = float(np.median(np.diff(times)))
    return Series(owner, port, counter, direction, times, totals, holes, interval_ns)


def _attempt(
    series: Sequence[Series],
    windows: Sequence[Window],
    origin_ns: int,
    on_path: set[tuple[str | None, str]],
) -> dict[str, list[dict[str, Any]]]:
    import numpy as np

    starts = np.array([w.start_ns - origin_ns for w in windows], float)
    ends = np.array([w.end_ns - origin_ns for w in windows], float)
    durations = ends - starts
    loads = _loads(series, starts, ends)
    tests: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    pending: list[tuple[Series, Floats, Floats, bool]] = []
    for counter in series:
        if not SUSPECT.search(counter.counter):
            continue
        growth, coverage = at_steps(counter, starts, ends)
        if not np.any(growth > 0):
            continue
        if len(rows) + len(windows) <= MAX_STEP_ROWS:
            rows += _step_rows(counter, windows, growth, coverage)
        where = (counter.node, counter.port)
        pending.append((counter, growth, coverage, where in on_path))
    pending.sort(key=lambda p: not p[3])
    for i, (counter, growth, coverage, is_on_path) in enumerate(pending):
        load = loads.get((counter.node, counter.port))
        tests.append(_test(counter, windows, durations, growth, coverage, load, is_on_path, i))
    tests.sort(key=lambda t: (t["node"] or "", t["port"], t["counter"]))
    return {"counter_step": rows, "network_correlation": _judged(tests, windows[0].attempt)}


def at_steps(series: Series, starts: Floats, ends: Floats) -> tuple[Floats, Floats]:
    """Growth within each step, and the share of the step that readings cover.

    What lies before the first or after the last reading is not covered; neither is an interval
    with a reset, nor a gap of more than three times the usual interval.
    """
    import numpy as np

    growth = np.interp(ends, series.times, series.totals) - np.interp(
        starts, series.times, series.totals
    )
    gaps = np.diff(series.times)
    known = (gaps <= 3 * series.interval_ns) & (series.holes[1:] == 0)
    covered = np.concatenate([[0.0], np.cumsum(gaps * known)])
    inside = np.interp(ends, series.times, covered) - np.interp(starts, series.times, covered)
    coverage = np.divide(inside, ends - starts, where=ends > starts, out=np.zeros_like(inside))
    return growth, np.clip(coverage, 0.0, 1.0)


def _loads(
    series: Sequence[Series], starts: Floats, ends: Floats
) -> dict[tuple[str | None, str], Floats]:
    """Bytes through each port in each step, both ways."""
    loads: dict[tuple[str | None, str], Floats] = {}
    for counter in series:
        if counter.counter in TRAFFIC:
            growth, _ = at_steps(counter, starts, ends)
            key = (counter.node, counter.port)
            loads[key] = loads[key] + growth if key in loads else growth
    return loads


def _step_rows(
    counter: Series, windows: Sequence[Window], growth: Floats, coverage: Floats
) -> list[dict[str, Any]]:
    return [
        {
            "attempt": w.attempt,
            "capture_id": w.capture_id,
            "step": w.step,
            "node": counter.node,
            "port": counter.port,
            "counter": counter.counter,
            "growth": float(grown),
            "coverage_ratio": float(covered),
        }
        for w, grown, covered in zip(windows, growth, coverage, strict=True)
    ]


def _test(
    counter: Series,
    windows: Sequence[Window],
    durations: Floats,
    growth: Floats,
    coverage: Floats,
    load: Floats | None,
    is_on_path: bool,
    turn: int,
) -> dict[str, Any]:
    """One row, not yet judged beside the others."""
    import numpy as np

    from tracekit.stats import quartile_effect

    usual_ns = float(np.median(durations))
    together = max(1, int(np.ceil(2 * counter.interval_ns / usual_ns)))
    good = coverage >= MIN_COVERAGE_RATIO
    row: dict[str, Any] = {
        "node": counter.node,
        "port": counter.port,
        "counter": counter.counter,
        "direction": counter.direction,
        "is_on_path": is_on_path,
        "interval_ns": counter.interval_ns,
        "steps_count": int(good.sum()),
        "steps_together": together,
        "lag_s": None,
        "rho": None,
        "p_value": None,
        "q_value": None,
        "effect_ratio": None,
        "cost_ratio": None,
        "verdict": "not_testable",
    }
    stretches = _stretches(windows, good, together)
    row["windows_count"] = len(stretches)
    x = np.array([growth[s].sum() for s in stretches], float)
    y = np.array([durations[s].mean() for s in stretches], float)
    rate = x / y if len(x) else x
    active = int((x != np.median(x)).sum()) if len(x) else 0
    row["active_count"] = active
    if turn >= MAX_TESTS:
        row["reason"] = f"more than {MAX_TESTS} counters moved; the others came first"
    elif len(stretches) < MIN_WINDOWS:
        of = "steps" if together == 1 else f"stretches of {together} steps"
        row["reason"] = f"{len(stretches)} {of}; a test needs {MIN_WINDOWS}"
    elif active < MIN_ACTIVE:
        row["reason"] = f"it stirred in {active} of {len(stretches)}; a test needs {MIN_ACTIVE}"
    else:
        control, how = None, "load unknown"
        if load is not None:
            carried = np.array([load[s].sum() for s in stretches])
            # A job moves the same bytes in every step: its rate is the step's time turned over, and
            # to control for that would control the effect away. Interpolation puts what passes
            # within half a reading of a boundary on its wrong side: that far bytes are the same.
            same = max(MIN_LOAD_SPREAD, 0.5 * counter.interval_ns / (together * usual_ns))
            if np.std(carried) > same * np.mean(carried):
                control, how = carried / y, "load controlled for"
            else:
                how = "load equal in all steps"
        # The rate, not the amount: a longer step collects more of anything.
        result = _lag_test(len(x))(rate, y, control)
        row |= {
            "lag_s": result.lag * together * usual_ns / 1e9,
            "rho": result.rho,
            "p_value": result.p_value,
            "effect_ratio": quartile_effect(rate, y),
            "cost_ratio": _cost(rate, y),
            "reason": how + (f"; {INFERRED}" if windows[0].attempt is None else ""),
        }
    return row


def _cost(rate: Floats, durations: Floats) -> float:
    """How much shorter the mean step would be if all were as those with least of the counter."""
    import numpy as np

    least = durations[rate <= np.quantile(rate, 0.25)]
    return max(0.0, 1.0 - float(least.mean() / durations.mean()))


def _stretches(
    windows: Sequence[Window], good: NDArray[np.bool_], together: int
) -> list[NDArray[np.int_]]:
    """Groups of so many covered steps that follow each other in one capture."""
    import numpy as np

    stretches: list[list[int]] = []
    run: list[int] = []
    for i, window in enumerate(windows):
        if not good[i]:
            run = []
            continue
        last = windows[run[-1]] if run else None
        if last is None or (last.capture_id, last.step + 1) != (window.capture_id, window.step):
            run = []
        run.append(i)
        if len(run) == together:
            stretches.append(run)
            run = []
    return [np.array(f) for f in stretches[-MAX_LENGTH:]]


@cache
def _lag_test(length: int) -> LagTest:
    """Fewer shuffles for long series: they would take too much memory."""
    from tracekit.stats import PERMUTATIONS, LagTest

    return LagTest(length, permutations=PERMUTATIONS if length <= 400 else 4_999)


def _judged(tests: list[dict[str, Any]], attempt: int | None) -> list[dict[str, Any]]:
    """q-values over all that could be tested, and the verdicts."""
    from tracekit.stats import false_discovery

    tested = [t for t in tests if t["p_value"] is not None]
    for row, q_value in zip(tested, false_discovery([t["p_value"] for t in tested]), strict=True):
        row["q_value"] = q_value
    elsewhere = {t["counter"] for t in tested if not t["is_on_path"] and _is_strong(t)}
    has_path = any(t["is_on_path"] for t in tests)
    for row in tested:
        row["verdict"] = "none"
        if not _is_strong(row):
            continue
        if row["counter"] in elsewhere and has_path:
            # The negative control: a port without the job shows the same.
            row["reason"] = "ports that are not on the job's path show it too"
        elif row["rho"] > 0:
            row["verdict"] = "cause" if row["lag_s"] <= 0 else "symptom"
    return [row | {"attempt": attempt} for row in tests]


def _is_strong(row: Mapping[str, Any]) -> bool:
    return bool(
        row["q_value"] is not None
        and row["q_value"] < MAX_Q
        and abs(row["rho"]) >= MIN_RHO
        and row["effect_ratio"] >= MIN_EFFECT_RATIO
    )
