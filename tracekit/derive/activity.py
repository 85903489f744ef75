"""Steps from counters alone: the period of SM activity, traffic or power, or why there is none.

A training job does the same again and again, and all its GPUs do it together: the mean of their
standardised readings repeats with the step. The period is the first lag at which the
autocorrelation peaks nearly as high as anywhere and does so again at twice the lag. It must stand
out beside first-order autoregressive noise of the same persistence (1 in 100), which wanders much
as a loaded GPU does.

What a collector samples too slowly it cannot show. A period needs four samples, and ten
repetitions. And a faster rhythm that is sampled regularly looks like a slow one (steps of 0.3 s at
one sample a second seem to last 3 s), so a period counts only where it cannot be such an echo:

- the readings are means over their interval (SM activity, traffic, energy) and swing further than
  the mean of anything faster could: what changes between 0 and R and is M in the mean has no
  Fourier amplitude above (2 R / pi) sin(pi M / R), which is 2 M where nobody knows R; and a mean
  over one interval of d leaves sin(pi f d) / (pi f d) of it, which is most at the lowest frequency
  that could be mistaken, f = 1 / d - 1 / period; or
- GPUs that are read at different moments of the interval agree on when the period begins, which
  the echo of a faster one would not.

A job loads and compiles before it repeats itself, and stops before its collector does. What stands
before and after is told by its level and its swing alone (never by whether it repeats), and the
stretches between the two clearest changes are asked before all readings together are.

The boundary between two steps is where activity is least. Whether the period is the step, a
microbatch or several steps, no counter tells: it is called a period, and taken as the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.correction import Correction
from tracekit.derive.coherence import coherent, gridded
from tracekit.derive.readings import Clocks, forward
from tracekit.derive.stage import arrow
from tracekit.wording import plural, some

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MIN_SAMPLES = 4
"""Samples of a period."""
MIN_CYCLES = 10
"""Repetitions that the readings must hold."""
MIN_STRENGTH = 0.4
"""Autocorrelation at the period and at twice the period: what is weaker has no clear boundaries."""
MAX_P_VALUE = 0.01
FIRST_RATIO = 0.85
"""The first peak that is so high beside the highest is the period; those after repeat it."""
SURROGATES = 299
ENOUGH = 10
"""Surrogates as strong as the readings, after which no more are drawn: p is 0.033 or more then."""
STRETCH_CELLS = 64
"""Parts of the readings at whose borders a lead-in may end or a tail begin."""
MIN_STRETCH_RATIO = 0.25
"""Share of the readings that a stretch asked by itself has."""
MIN_CHANGE = 0.2
"""Likelihood that two changes gain, in nats a reading (twice): log 1.25 is what a level that moves
by one standard deviation half way gains."""
MAX_SPAN_S = 7_200
"""Only the last part of the readings is looked at: a step takes seconds to minutes."""
MAX_GPUS = 64
MAX_POINTS = 2_000_000
"""Readings of one counter that are looked at."""
MAX_STATED = 500_000
"""The same where its period is not sought, or only one longer than a known one."""
MIN_COVERED = 0.8
"""Share of the time that readings must cover."""
FINE = 4
"""Lags in a sample: a period is rarely a whole number of samples."""
SAME_PERIOD = 0.02
"""Two periods, or a whole multiple of one and the other, that differ by no more are one."""
SPREAD_LIMIT = 0.7
"""Resultant of the moments of sampling from which they count as spread out."""
SWING_CYCLES = 8
"""Repetitions of which the swing is taken at a time."""
AGREE_LIMIT = 0.9
"""Resultant of the GPUs' phases from which they agree."""
MIN_TRAFFIC = 20e6
"""Least standard deviation of traffic to speak of, bytes/s: a heartbeat or a scrape is less."""


class Signal(NamedTuple):
    """A counter that may show the work's period."""

    name: str
    least_spread: float
    """Standard deviation (ratio, W, bytes/s) below which it does not vary."""
    is_mean: bool = True
    """Whether a reading is the mean over its interval; power is read at a moment."""
    is_total: bool = False
    """Whether it counts up, so that what it grew by is the mean."""
    scale: float = 1.0
    """What a unit of the total is of the mean's unit, a second."""
    is_port: bool = False


SIGNALS = {
    "sm_active": Signal("SM activity", 0.02),
    "tensor_active": Signal("tensor activity", 0.02),
    "energy": Signal("power (energy counter)", 5.0, is_total=True, scale=1e-3),
    "nvlink_tx": Signal("NVLink traffic sent", MIN_TRAFFIC),
    "nvlink_rx": Signal("NVLink traffic received", MIN_TRAFFIC),
    "tx_bytes": Signal("network traffic sent", MIN_TRAFFIC, is_total=True, is_port=True),
    "tx_rate": Signal("network traffic sent", MIN_TRAFFIC, is_port=True),
    "rx_bytes": Signal("network traffic received", MIN_TRAFFIC, is_total=True, is_port=True),
    "rx_rate": Signal("network traffic received", MIN_TRAFFIC, is_port=True),
    "pcie_tx": Signal("PCIe traffic out of GPUs", MIN_TRAFFIC),
    "pcie_rx": Signal("PCIe traffic into GPUs", MIN_TRAFFIC),
    "power": Signal("power", 5.0, is_mean=False),
}
"""By canonical name, those first whose period is most surely the work's."""
LONGER = ("nvlink_tx", "tx_bytes", "tx_rate")
"""Communication may repeat once in several microbatches."""
STATED = (*LONGER, "nvlink_rx", "rx_bytes", "rx_rate", "pcie_tx", "pcie_rx", "power")
"""What is read once the period is known, for what else counters say."""
WRITES = ("activity_period", "activity_step", "counter_statement")
"""The tables made here."""
ACTIVE = 1.0
"""What a share of activity can swing by."""


@dataclass(frozen=True)
class Readings:
    """One counter of one GPU, or of one port."""

    gpu: str
    """Unlike any other's."""
    times: Floats
    """s since the first reading of all, ascending."""
    values: Floats
    node: str = ""
    device: str = ""

    def between(self, first: float, last: float) -> Readings:
        """Those from one moment to another, both included."""
        inside = (self.times >= first) & (self.times <= last)
        return replace(self, times=self.times[inside], values=self.values[inside])


@dataclass(frozen=True)
class Part:
    """Devices that do the same at the same moments, and their rhythm."""

    row: dict[str, Any]
    """Of ``activity_period``."""
    starts: Floats
    """Where its repetitions begin, s of its first device's clock; NaN between those lost."""
    lags: dict[str, float]
    """By device: s by which it is behind the first."""
    nodes: dict[str, str]
    """By device: its machine."""

    def lag_of(self, node: str) -> float | None:
        """The same of a machine's devices; None where it has none here."""
        from statistics import median

        lags = [lag for device, lag in self.lags.items() if self.nodes[device] == node]
        return median(lags) if lags else None

    @property
    def is_periodic(self) -> bool:
        """Whether its period may be called the step."""
        return bool(self.row["verdict"] == "steps")


@dataclass(frozen=True)
class Found:
    """What one counter of all devices shows."""

    row: dict[str, Any]
    starts: Floats
    parts: tuple[Part, ...] = ()
    """That which shows the period first; several periodic ones have no period in common."""


class Period(NamedTuple):
    """A rhythm, whether or not it may be called the step."""

    period_s: float
    strength: float
    p_value: float


def activity_tables(
    con: duckdb.DuckDBPyConnection, clocks: Clocks
) -> dict[str, list[dict[str, Any]]]:
    """Rows of ``activity_period`` and ``activity_step`` of a job whose steps nothing else shows.

    Empty where no GPU was sampled.
    """
    import numpy as np

    from tracekit.derive.statements import statements

    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in WRITES}
    sampled = _sampled(con)
    if not sampled:
        return tables
    looked_at: list[Found] = []
    signals: dict[str, list[Readings]] = {}
    chosen: Found | None = None
    base_ns: int | None = None
    for counter in (c for c in SIGNALS if sampled.get(c)):
        if chosen is not None and counter not in STATED:
            continue
        readings, origin_ns = read(
            con, clocks, counter, MAX_POINTS if chosen is None else MAX_STATED
        )
        if SIGNALS[counter].is_port and not readings:
            continue  # a switch that was asked once: nobody expects a period of it
        base_ns = origin_ns if base_ns is None else base_ns
        shift = (origin_ns - base_ns) / 1e9
        signals[counter] = [replace(r, times=r.times + shift) for r in readings]
        if chosen is None or (counter in LONGER and chosen.row["verdict"] == "steps"):
            period = period_of(signals[counter], counter, _ceiling(con, counter))
            looked_at.append(period)
            if chosen is None and any(part.is_periodic for part in period.parts):
                chosen = period
            elif chosen is not None and (times := _times_longer(period, chosen)):
                name = SIGNALS[chosen.row["counter"]].name
                period.row["reason"] += f", in which {name} repeats {times} times"
                chosen = period
    if not looked_at:
        if not any(c not in SIGNALS or not SIGNALS[c].is_port for c in sampled):
            return tables
        looked_at = [
            Found(_none("no SM activity, traffic, energy or power was sampled"), np.zeros(0))
        ]
    # One answer a job: the counter that shows steps, else the first that could have.
    chosen = chosen or looked_at[0]
    row = chosen.row
    if row["verdict"] == "steps":
        row |= {"steps_count": max(0, len(chosen.starts) - 1)}
        tables["activity_step"] = step_rows(chosen.starts, row, base_ns or 0)
    tables["activity_period"] = [row | {"attempt": None}]
    tables["counter_statement"] = [
        {"attempt": None, **said._asdict()} for said in statements(signals, chosen)
    ]
    return tables


def _times_longer(longer: Found, chosen: Found) -> int | None:
    """How many of the known periods make that of another counter, where it is a longer one."""
    if longer.row["verdict"] != "steps" or not _have_one_period(longer.parts[0], chosen.parts[0]):
        return None
    times = round(float(longer.row["period_ns"]) / float(chosen.row["period_ns"]))
    return times if times > 1 else None


def selected_tables(con: duckdb.DuckDBPyConnection) -> dict[str, pa.Table]:
    """The same of the part of a run that is open: of readings as its views show them."""
    rows = con.execute(
        "SELECT source_id, c.host FROM source_context c JOIN clock USING (clock_id) "
        "WHERE basis = 'epoch'"
    ).fetchall()
    # Views have put times right.
    clocks = Clocks({s: Correction() for s, _ in rows}, dict(rows))
    return {name: arrow(name, made) for name, made in activity_tables(con, clocks).items()}


def _sampled(con: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Counters of GPUs, and those of ports that show traffic, by their readings with a time."""
    rows = con.execute(
        """
        SELECT counter, count(time_ns) FROM gpu_sample GROUP BY counter
        UNION ALL
        SELECT counter, count(time_ns) FROM net_sample
        WHERE port IS NOT NULL AND list_contains(?, counter) GROUP BY counter
        """,
        [[name for name, signal in SIGNALS.items() if signal.is_port]],
    ).fetchall()
    return {str(name): int(count) for name, count in rows}


def _none(reason: str, **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(
        ("counter", "period_ns", "interval_ns", "strength_ratio", "p_value")
    )
    return row | {"gpus_count": 0, "steps_count": 0, "verdict": "none", "reason": reason} | more


# --- readings ------------------------------------------------------------------------------------


_GPU_READINGS = """
SELECT source_id, node, coalesce(device_id, 'GPU ' || nvml_index) AS device, counter, time_ns,
       place, coalesce(value, counted) AS value
FROM gpu_sample
WHERE coalesce(device_id, CAST(nvml_index AS VARCHAR)) IS NOT NULL
      AND NOT coalesce(contains(device_id, '/'), false)
"""
_PORT_READINGS = """
SELECT source_id, node, port AS device, counter, time_ns, place, coalesce(value, counted) AS value
FROM net_sample
WHERE port IS NOT NULL AND priority IS NULL AND queue IS NULL AND lane IS NULL
"""


def read(
    con: duckdb.DuckDBPyConnection, clocks: Clocks, counter: str, most: int = MAX_POINTS
) -> tuple[list[Readings], int]:
    """The readings of the last two hours by GPU, and the moment (epoch ns) that times count from.

    A counter that counts up becomes its mean rate between two readings (energy: power in W), at
    the middle between them. Where ports are read, each is one.
    """
    import numpy as np

    if not clocks.hosts:
        return [], 0
    signal = SIGNALS[counter]
    selected = _PORT_READINGS if signal.is_port else _GPU_READINGS
    ((last,),) = con.execute(
        f"SELECT max(time_ns) FROM ({selected}) "  # noqa: S608  # one of two constants
        "WHERE counter = ? AND list_contains(?, source_id)",
        [counter, sorted(clocks.hosts)],
    ).fetchall()
    if last is None:
        return [], 0
    rows = con.sql(
        f"""
        SELECT source_id, concat_ws(chr(31), coalesce(node, ''), device) AS device, time_ns, value
        FROM ({selected})
        WHERE counter = $counter AND list_contains($sources, source_id) AND time_ns > $since_ns
        ORDER BY time_ns DESC, source_id, place LIMIT $most
        """,  # noqa: S608  # one of two constants
        params={
            "counter": counter,
            "sources": sorted(clocks.hosts),
            "since_ns": last - MAX_SPAN_S * 10**9 - clocks.widest_ns,
            "most": most,
        },
    ).to_arrow_table()
    if not len(rows):
        return [], 0
    sources = rows["source_id"].to_numpy()
    moved = clocks.moved(rows["time_ns"].to_numpy(), sources)
    origin_ns = max(int(moved.min()), int(moved.max()) - MAX_SPAN_S * 10**9)
    times = (moved - origin_ns) / 1e9
    values = rows["value"].to_numpy(zero_copy_only=False).astype(float)
    # Two files of unknown machines may each have a GPU 0: names join within a host. There are
    # millions of readings and few names, so a text is made once a name and never once a reading.
    encoded = rows["device"].combine_chunks().dictionary_encode()
    pairs, which = np.unique(
        sources.astype(np.int64) * len(encoded.dictionary) + encoded.indices.to_numpy(),
        return_inverse=True,
    )
    named = [divmod(p, len(encoded.dictionary)) for p in pairs.tolist()]
    listed = [
        "\x1f".join((clocks.hosts[s] or f"source {s}", str(encoded.dictionary[g])))
        for s, g in named
    ]
    names, of_pair = np.unique(np.array(listed), return_inverse=True)
    codes = of_pair[which]
    readings = []
    for code, name in enumerate(names.tolist()[:MAX_GPUS]):
        at = np.flatnonzero((codes == code) & (times >= 0))
        at = at[forward(times[at])]
        own_times, own_values = times[at], values[at]
        if signal.is_total:
            own_times, own_values = _rates(own_times, own_values, signal.scale)
        if len(own_times) > 1:
            host, node, device = name.split("\x1f", 2)
            readings.append(Readings(name, own_times, own_values, node or host, device))
    return readings, origin_ns


def _rates(times: Floats, totals: Floats, scale: float) -> tuple[Floats, Floats]:
    """Mean growth a second between readings of a counter; a reset is no interval."""
    import numpy as np

    grown, spans = np.diff(totals), np.diff(times)
    good = grown >= 0
    return (times[1:] - spans / 2)[good], (scale * grown / spans)[good]


def _ceiling(con: duckdb.DuckDBPyConnection, counter: str) -> float:
    """What a reading can swing by: 1 for a share, the highest power that is known; else no end."""
    if counter in ("sm_active", "tensor_active"):
        return ACTIVE
    if counter not in ("energy", "power"):
        return float("inf")
    ((most,),) = con.execute(
        "SELECT max(value) FROM gpu_sample WHERE counter IN ('power', 'power_limit')"
    ).fetchall()
    return float(most) if most is not None else float("inf")


# --- the period ----------------------------------------------------------------------------------


def period_row(
    readings: Sequence[Readings], counter: str, ceiling: float
) -> tuple[dict[str, Any], Floats]:
    """A row of ``activity_period`` for one counter, and where its steps begin (s)."""
    period = period_of(readings, counter, ceiling)
    return period.row, period.starts


def period_of(readings: Sequence[Readings], counter: str, ceiling: float) -> Found:
    """What one counter of all devices shows of a period."""
    import numpy as np

    nothing = np.zeros(0)
    name = SIGNALS[counter].name
    interval = _interval_s(readings)
    if interval is None:
        most = max((len(r.times) for r in readings), default=0)
        if most == 1:
            return Found(_none(f"{name} was read once: a period needs many readings"), nothing)
        if most:
            return Found(_none(f"{name} was read {most} times and never changed"), nothing)
        return Found(_none(f"{name} was sampled, but not at times that can be compared"), nothing)
    moving = _moving(readings, counter)
    grid, mean = _together(moving, interval) if moving else (nothing, nothing)
    for low, high in stretches(mean):
        first, last = float(grid[low]), float(grid[high - 1])
        within = [r.between(first, last) for r in moving]
        cut = [r for r in within if len(r.times) > 1]
        # Two stretches at most, so together they are asked at the level of one.
        within_period = _judged(cut, counter, ceiling, interval, MAX_P_VALUE / 2)
        if any(part.is_periodic for part in within_period.parts):
            begun = float(grid[0])
            within_period.row["reason"] += (
                f" from {first - begun:.3g} s to {last - begun:.3g} s of "
                f"{float(grid[-1]) - begun:.3g} s, around which it is otherwise"
            )
            return within_period
    return _judged(moving, counter, ceiling, interval, MAX_P_VALUE)


def _moving(readings: Sequence[Readings], counter: str) -> list[Readings]:
    """Those that vary enough to speak of."""
    import numpy as np

    return [r for r in readings if float(np.std(r.values)) >= SIGNALS[counter].least_spread]


def stretches(series: Floats) -> list[tuple[int, int]]:
    """The longest parts between the two clearest changes of level or swing, [first, end).

    At most two that vary, each ``MIN_STRETCH_RATIO`` of all or more; none where nothing changes.
    The changes are where three normal distributions fit the readings best (maximum likelihood), so
    whether a part repeats has no say in it. What is next to a change is left out.
    """
    import numpy as np

    edges = np.unique(np.linspace(0, len(series), STRETCH_CELLS + 1).round().astype(int))
    if len(edges) <= STRETCH_CELLS or not np.any(series != series[0]):
        return []
    ones = np.concatenate([[0.0], np.cumsum(series)])[edges]
    squares = np.concatenate([[0.0], np.cumsum(series * series)])[edges]
    lengths = np.maximum(edges[None, :] - edges[:, None], 1)
    means = (ones[None, :] - ones[:, None]) / lengths
    # An idle GPU reads the same all along: a floor keeps its likelihood finite.
    floor = 1e-3 * float(np.var(series))
    spread = np.maximum((squares[None, :] - squares[:, None]) / lengths - means * means, floor)
    cost = np.where(edges[None, :] > edges[:, None], lengths * np.log(spread), 0.0)
    three = cost[0, :, None] + cost + cost[:, -1][None, :]
    three[np.tril_indices(len(edges), -1)] = np.inf
    low, high = np.unravel_index(int(three.argmin()), three.shape)
    if float(cost[0, -1] - three[low, high]) < MIN_CHANGE * len(series):
        return []
    last = len(edges) - 1
    parts = [(0, int(low)), (int(low), int(high)), (int(high), last)]
    varying = [(a, b) for a, b in parts if b - a > 2 and spread[a, b] > floor]
    inner = [(a + (a > 0), b - (b < last)) for a, b in varying]
    kept = [(int(edges[a]), int(edges[b])) for a, b in inner]
    kept = [(a, b) for a, b in kept if b - a >= MIN_STRETCH_RATIO * len(series)]
    return sorted(kept, key=lambda p: p[0] - p[1])[:2]


def _judged(
    readings: Sequence[Readings], counter: str, ceiling: float, interval: float, max_p_value: float
) -> Found:
    """The same of one stretch: of each group of devices that go together, else of all."""
    moving = _moving(readings, counter)
    groups = _groups(moving, interval) if len(moving) > 1 else []
    known = [group for group in groups if len(group) > 1 or len(groups) == len(moving) < 3]
    parts = [_part(group, counter, ceiling, interval, max_p_value) for group in known]
    parts.sort(key=lambda part: (not part.is_periodic, -len(part.lags)))
    periodic = [part for part in parts if part.is_periodic]
    if not periodic:
        # Noise may hide from each pair of devices what all together show.
        whole = _part([(r, 0.0) for r in moving], counter, ceiling, interval, max_p_value)
        return Found(whole.row, whole.starts, (whole,))
    first = periodic[0]
    others = [part for part in periodic[1:] if not _have_one_period(first, part)]
    if others:
        said = "; ".join(
            f"{_few(part)} every {part.row['period_ns'] / 1e9:.3g} s" for part in (first, *others)
        )
        about = {k: first.row[k] for k in ("counter", "interval_ns")}
        row = _none(f"{SIGNALS[counter].name} has no common period: {said}", **about)
        return Found(row | {"gpus_count": len(moving)}, first.starts[:0], tuple(parts))
    return Found(dict(first.row), first.starts, tuple(parts))


def _few(part: Part) -> str:
    """Whose devices, and how many."""
    counts = Counter(part.nodes.values())
    return some([f"{count} of {node}" for node, count in sorted(counts.items())])


def _have_one_period(part: Part, other: Part) -> bool:
    """Whether they are the same, or whole multiples of each other, within what they are exact."""
    short, long = sorted((part.row["period_ns"], other.row["period_ns"]))
    times = round(long / short)
    return bool(abs(long / short / times - 1) <= SAME_PERIOD)


def _groups(moving: Sequence[Readings], interval: float) -> list[list[tuple[Readings, float]]]:
    """Devices that go together, each with what it is behind the group's first, in s."""
    import numpy as np

    grid, rows, _ = _standard(moving, interval)
    if len(grid) < MIN_SAMPLES * MIN_CYCLES:
        return []
    steady = np.array([_detrended(row) for row in rows])
    return [[(moving[m.at], m.lag * interval) for m in group] for group in coherent(steady)]


def _part(
    members: Sequence[tuple[Readings, float]],
    counter: str,
    ceiling: float,
    interval: float,
    max_p_value: float,
) -> Part:
    """The rhythm of devices whose lags are known."""
    import numpy as np

    nothing = np.zeros(0)
    name = SIGNALS[counter].name
    lags = {reading.gpu: lag for reading, lag in members}
    nodes = {reading.gpu: reading.node for reading, _ in members}
    moving = [replace(r, times=r.times - lag) for r, lag in members]
    about: dict[str, Any] = {
        "counter": counter,
        "interval_ns": interval * 1e9,
        "gpus_count": len(moving),
    }

    def none(reason: str) -> Part:
        return Part(_none(reason, **about), nothing, lags, nodes)

    if not moving:
        if SIGNALS[counter].least_spread == MIN_TRAFFIC:
            return none(f"{name} varies by less than {MIN_TRAFFIC / 1e6:.0f} MB/s")
        return none(f"{name} does not vary")
    grid, mean = _together(moving, interval)
    needed = MIN_SAMPLES * MIN_CYCLES
    if len(mean) < needed:
        return none(f"{len(mean)} readings of {name}; a period needs {needed}")
    rhythm_found = rhythm(mean)
    shortest = MIN_SAMPLES * interval
    if (
        rhythm_found is None
        or rhythm_found.p_value > max_p_value
        or rhythm_found.strength < MIN_STRENGTH
    ):
        if rhythm_found is not None:
            about |= {"strength_ratio": rhythm_found.strength, "p_value": rhythm_found.p_value}
        return none(
            f"{name} has no clear period: sampled every {interval:.3g} s it would show steps from "
            f"{shortest:.3g} s on, and shorter ones not"
        )
    period = rhythm_found.period_s * interval
    about |= {
        "period_ns": period * 1e9,
        "strength_ratio": rhythm_found.strength,
        "p_value": rhythm_found.p_value,
    }
    is_mean = SIGNALS[counter].is_mean
    is_large = is_mean and _is_too_large_for_an_echo(moving, period, interval, ceiling)
    unmoved = [reading for reading, _ in members]
    if not is_large and not _agree_in_phase(unmoved, period, interval):
        return none(
            f"{name} repeats every {period:.3g} s, but sampled every {interval:.3g} s so do "
            f"steps of {1 / (1 / interval - 1 / period):.3g} s and shorter ones"
        )
    starts = boundaries(mean, rhythm_found.period_s) * interval + float(grid[0])
    of = plural(len(moving), "port" if SIGNALS[counter].is_port else "GPU")
    about |= {"verdict": "steps", "reason": f"the period of {name} of {of}"}
    return Part(_none("") | about, starts, lags, nodes)


def _interval_s(readings: Sequence[Readings]) -> float | None:
    """The usual time between readings, or between their changes where they repeat themselves.

    An exporter that is asked more often than it reads answers the same again.
    """
    import numpy as np

    intervals = []
    for gpu in readings:
        gaps = np.diff(gpu.times)
        changes = int((np.diff(gpu.values) != 0).sum())
        # A device that idles reads nothing again and again, and was read each time.
        idle = int(((gpu.values[1:] == 0) & (gpu.values[:-1] == 0)).sum())
        if len(gaps) and changes:
            usual = float(np.median(gaps))
            repeats = (len(gaps) - idle) / changes
            intervals.append(usual * (repeats if repeats >= 1.5 else 1.0))
    return float(np.median(intervals)) if intervals else None


def _together(readings: Sequence[Readings], interval: float) -> tuple[Floats, Floats]:
    """The mean of standardised readings on a regular grid: the stretch that most GPUs cover."""
    import numpy as np

    grid, rows, seen = _standard(readings, interval)
    covered = float(seen.any(axis=0).mean()) if len(grid) else 0.0
    count = seen.sum(axis=0)
    mean = np.divide(rows.sum(axis=0), count, out=np.zeros(len(grid)), where=count > 0)
    return (grid, mean) if covered >= MIN_COVERED else (grid[:0], mean[:0])


def _standard(
    readings: Sequence[Readings], interval: float
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """A grid, the standardised readings on it (zero where nobody read), and where they were."""
    import numpy as np

    low = float(np.median([r.times[0] for r in readings]))
    high = float(np.median([r.times[-1] for r in readings]))
    grid = np.arange(low, high, interval)
    # A reading is worth an interval on both sides: a gap is no line between its ends.
    scaled = [(r.values - r.values.mean()) / float(np.std(r.values)) for r in readings]
    rows, seen = gridded([r.times for r in readings], scaled, grid, interval)
    return grid, np.where(seen, rows, 0.0), seen


def rhythm(series: Floats) -> Period | None:
    """The strongest rhythm of a regular series, its period in samples; None: no candidate.

    ``p_value``: how often autoregressive noise of the same persistence has one as strong, by
    surrogates drawn until ``ENOUGH`` were (the sequential test of Besag and Clifford, 1991).
    """
    import numpy as np

    from tracekit.stats import ar1

    steady = _detrended(series)
    if not np.any(steady):
        return None
    fundamental = _peak(_autocorrelation(steady))
    if fundamental is None:
        return None
    lag, strength = fundamental
    rng = np.random.default_rng(20_260_721)
    phi = float(ar1(series[None, :])[0])
    walks = rng.normal(size=(SURROGATES, len(series)))
    for i in range(1, len(series)):
        walks[:, i] += phi * walks[:, i - 1]
    as_strong = 0
    p_value = None
    for tried, walk in enumerate(walks, 1):
        chance = _peak(_autocorrelation(_detrended(walk)))
        as_strong += chance is not None and chance[1] >= strength
        if as_strong == ENOUGH:
            p_value = as_strong / tried
            break
    if p_value is None:
        p_value = (as_strong + 1) / (SURROGATES + 1)
    return Period(_refined(_autocorrelation(steady), lag), strength, p_value)


def _detrended(series: Floats) -> Floats:
    """Less its running mean over twice the longest period that is looked for."""
    import numpy as np

    width = 2 * (len(series) // MIN_CYCLES) + 1
    half = width // 2
    sums = np.concatenate([[0.0], np.cumsum(series)])
    low = np.maximum(np.arange(len(series)) - half, 0)
    high = np.minimum(np.arange(len(series)) + half + 1, len(series))
    return np.asarray(series - (sums[high] - sums[low]) / (high - low))


def _autocorrelation(series: Floats) -> Floats:
    """At lags from 0 to a quarter of the length, ``FINE`` a sample, each over what overlaps."""
    import numpy as np

    n = len(series)
    spectrum = abs(np.fft.rfft(series - series.mean(), 2 * n)) ** 2
    raw = FINE * np.fft.irfft(spectrum, 2 * n * FINE)[: n * FINE // 4 + 1]
    grown = raw / (n - np.arange(len(raw)) / FINE)
    return np.asarray(grown / grown[0])


def _peak(r: Floats) -> tuple[int, float] | None:
    """The first lag that peaks nearly as high as any, and the lesser of it and its double."""
    import numpy as np

    longest = 4 * (len(r) - 1) // MIN_CYCLES
    fallen = np.flatnonzero(r < 0)
    first = max(MIN_SAMPLES * FINE - 1, int(fallen[0]) if len(fallen) else len(r))
    lags = np.arange(first, min(longest, (len(r) - 2) // 2) + 1)
    if not len(lags):
        return None
    lags = lags[(r[lags] >= r[lags - 1]) & (r[lags] >= r[lags + 1])]
    if not len(lags):
        return None
    twice = np.array([r[2 * k - 2 : 2 * k + 3].max() for k in lags.tolist()])
    strengths = np.minimum(r[lags], twice)
    if strengths.max() <= 0:
        return None
    at = int(np.flatnonzero(strengths >= FIRST_RATIO * strengths.max())[0])
    return int(lags[at]), float(strengths[at])


def _refined(r: Floats, lag: int) -> float:
    """The period in samples by the farthest multiple that still peaks: its error is shared."""
    import numpy as np

    period, times = _vertex(r, lag), 1
    while True:
        centre = round(period * 2 * times)
        reach = max(1, round(period / 4))
        if centre + reach + 1 >= len(r):
            return period / FINE
        window = r[centre - reach : centre + reach + 1]
        top = centre - reach + int(np.argmax(window))
        if r[top] < 0.5 * r[lag]:
            return period / FINE
        times *= 2
        period = _vertex(r, top) / times


def _vertex(r: Floats, at: int) -> float:
    """Where a parabola through three neighbours has its top."""
    if not 0 < at < len(r) - 1:
        return float(at)
    before, here, after = (float(v) for v in r[at - 1 : at + 2])
    bend = before - 2 * here + after
    return at + (0.5 * (before - after) / bend if bend < 0 else 0.0)


# --- echoes of something faster ------------------------------------------------------------------


def _is_too_large_for_an_echo(
    readings: Sequence[Readings], period: float, interval: float, ceiling: float
) -> bool:
    """Whether the usual GPU swings further than the means of anything faster could."""
    import numpy as np

    cycles = 1 - interval / period  # of the lowest frequency that looks the same, in an interval
    left = np.sin(np.pi * cycles) / (np.pi * cycles)
    beyond = []
    for gpu in readings:
        # Steps wander: over the whole job they are out of phase, over a few they are not.
        edges = np.arange(gpu.times[0], gpu.times[-1] + period, SWING_CYCLES * period)
        cuts = np.searchsorted(gpu.times, edges)
        swings, means = [], []
        for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            if high - low < MIN_SAMPLES * SWING_CYCLES / 2:
                continue
            part = Readings(gpu.gpu, gpu.times[low:high], gpu.values[low:high])
            power_there = abs(_fourier(part, period)) ** 2
            # What stands between its harmonics is no part of it.
            beside = [abs(_fourier(part, period / k)) ** 2 for k in (0.5, 1.5)]
            swings.append(2 * np.sqrt(max(0.0, power_there - float(np.mean(beside)))))
            means.append(float(part.values.mean()))
        if not swings:
            continue
        mean = float(np.median(means))
        # A mean beyond the ceiling is no share or power at all: the bound is at its widest.
        most = 2 * mean if np.isinf(ceiling) else 2 * ceiling / np.pi
        if 0 < mean < ceiling and not np.isinf(ceiling):
            most *= np.sin(np.pi * mean / ceiling)
        beyond.append(float(np.median(swings)) - most * left)
    return bool(beyond) and float(np.median(beyond)) > 0


def _fourier(gpu: Readings, period: float) -> complex:
    import numpy as np

    turns = np.exp(-2j * np.pi * gpu.times / period)
    return complex(np.mean((gpu.values - gpu.values.mean()) * turns))


def _agree_in_phase(readings: Sequence[Readings], period: float, interval: float) -> bool:
    """Whether GPUs that are read at different moments agree on when the period begins."""
    import numpy as np

    moments = []
    for gpu in readings:
        turn = complex(np.mean(np.exp(2j * np.pi * gpu.times / interval)))
        if abs(turn) < AGREE_LIMIT:
            return False  # its moments wander: nothing is known of what an echo would do
        moments.append(turn / abs(turn))
    spread = [abs(np.mean(np.array(moments) ** k)) for k in range(1, 6)]
    if max(spread) > SPREAD_LIMIT:
        return False
    phases = np.array([_fourier(gpu, period) for gpu in readings])
    return bool(abs(np.mean(phases / abs(phases))) >= AGREE_LIMIT)


# --- steps ---------------------------------------------------------------------------------------


def boundaries(series: Floats, period: float) -> Floats:
    """Where one repetition ends and the next begins, in samples; NaN between those lost.

    Each repetition is laid over the mean of all, from 0.6 to 2.5 periods after the one before;
    what fits nowhere (an evaluation, a checkpoint) is left out.
    """
    import numpy as np

    steady = _detrended(series)
    template = _folded(steady, period)
    fine = np.arange(len(template)) / len(template) * period
    starts = np.arange(0.0, len(series) - period, 0.25)
    windows = np.interp(starts[:, None] + fine, np.arange(len(series)), steady)
    windows -= windows.mean(axis=1, keepdims=True)
    scale = np.sqrt((windows * windows).sum(axis=1) * (template * template).sum())
    fit = np.divide(windows @ template, scale, out=np.zeros(len(starts)), where=scale > 0)
    times: list[float] = []
    first = int(np.argmax(fit[: max(1, int(4 * period))]))
    at = starts[first] if len(starts) else float("inf")
    is_first = True
    while at <= len(series) - period:
        if is_first:
            times.append(float(at))
            is_first = False
        low, high = np.searchsorted(starts, [at + 0.6 * period, at + 2.5 * period])
        window = fit[low:high]
        best = float(window.max(initial=0.0))
        if best < 0.5:
            times.append(float("nan"))
            at += 2 * period
            low, high = np.searchsorted(starts, [at - 0.5 * period, at + 0.5 * period])
            if high <= low:
                break
            at = float(starts[low + int(np.argmax(fit[low:high]))])
            is_first = True
            continue
        good = np.flatnonzero(window >= max(0.5, 0.8 * best))
        # The top of the first hill that is nearly as high as any.
        end = int(good[0])
        while end + 1 < len(window) and window[end + 1] >= window[end]:
            end += 1
        at = float(starts[low + end])
        times.append(at)
    return np.array(times)


def _folded(series: Floats, period: float) -> Floats:
    """The mean repetition, less its mean, beginning where activity is least."""
    import numpy as np

    bins = max(8, round(4 * period))
    place = ((np.arange(len(series)) % period) / period * bins).astype(int).clip(0, bins - 1)
    sums = np.bincount(place, series, bins)
    counts = np.bincount(place, minlength=bins)
    seen = np.flatnonzero(counts)
    means = np.interp(np.arange(bins), seen, sums[seen] / counts[seen])
    width = max(1, bins // 8)
    ring = np.concatenate([means, means[:width]])
    smooth = np.convolve(ring, np.ones(width) / width, "valid")[:bins]
    least = int(np.argmin(smooth)) + width // 2
    rolled = np.roll(means, -least)
    return np.asarray(rolled - rolled.mean())


def step_rows(starts: Floats, row: Mapping[str, Any], origin_ns: int) -> list[dict[str, Any]]:
    """The rows of ``activity_step``: from one boundary to the next, where both are known."""
    import numpy as np

    rows = []
    for number in range(len(starts) - 1):
        if np.isnan(starts[number : number + 2]).any():
            continue
        start_ns = origin_ns + round(float(starts[number]) * 1e9)
        end_ns = origin_ns + round(float(starts[number + 1]) * 1e9)
        rows.append(
            {
                "attempt": None,
                "step": number,
                "start_ns": start_ns,
                "dur_ns": end_ns - start_ns,
                "error_ns": round(float(row["interval_ns"])),
                "step_source": "counters",
            }
        )
    return rows
