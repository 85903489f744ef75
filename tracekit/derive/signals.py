"""Counters of devices that may show the work's rhythm, and their readings on the job's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from tracekit.derive.coherence import gridded
from tracekit.derive.readings import Clocks, forward

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MAX_SPAN_S = 7_200
"""Only the last part of the readings is looked at: a step takes seconds to minutes."""
MAX_GPUS = 64
MAX_POINTS = 2_000_000
"""Readings of one counter that are looked at."""
MIN_COVERED = 0.8
"""Share of the time that readings must cover."""
MIN_REPEATS = 1.5
"""Answers a reading from which an exporter is asked more often than it reads."""
FEW_RUNS = 0.1
"""Share of an exporter's runs of equal answers that may be shorter than it repeats itself."""
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
ACTIVITIES = {
    "sm_active": SIGNALS["sm_active"],
    "graphics_active": Signal("graphics activity", 0.02),
    "gpu_utilisation": Signal("utilisation", 0.02),
}
"""What says who works, the best first; of the latter two no period is sought: they tell of kernels,
and a kernel that waits is one."""
ACTIVE = 1.0
"""What a share of activity can swing by."""


class Readings(Struct, frozen=True):
    """One counter of one GPU, or of one port."""

    gpu: str
    """Unlike any other's."""
    times: Floats
    """s since the first reading of all, ascending."""
    values: Floats
    node: str = ""
    device: str = ""
    model: str | None = None
    """Of a GPU; None where nobody knows."""

    @property
    def alike(self) -> str:
        """What it may be compared with: GPUs of its model; of unknown model those of its node."""
        return self.model or f"unknown model of {self.node}"

    def between(self, first: float, last: float) -> Readings:
        """Those from one moment to another, both included."""
        inside = (self.times >= first) & (self.times <= last)
        return replace(self, times=self.times[inside], values=self.values[inside])


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
    signal = {**ACTIVITIES, **SIGNALS}[counter]
    selected = _PORT_READINGS if signal.is_port else _GPU_READINGS
    ((last,),) = con.execute(
        f"SELECT max(time_ns) FROM ({selected}) "  # noqa: S608  # one of two constants
        "WHERE counter = ? AND list_contains(?, source_id)",
        [counter, sorted(clocks.hosts)],
    ).fetchall()
    if last is None:
        return [], 0
    about = {
        "counter": counter,
        "sources": sorted(clocks.hosts),
        "since_ns": last - MAX_SPAN_S * 10**9 - clocks.widest_ns,
    }
    recent = f"""
        FROM ({selected})
        WHERE counter = $counter AND list_contains($sources, source_id) AND time_ns > $since_ns
    """
    ((count,),) = con.execute(f"SELECT count(*) {recent}", about).fetchall()
    if count > most:
        latest = "ORDER BY time_ns DESC, source_id, place LIMIT $most"
        recent = f"FROM (SELECT * {recent} {latest})"
        about["most"] = most
    # A row a device and file: there are millions of readings and few names.
    rows = con.sql(
        "SELECT source_id, coalesce(node, '') AS node, device, list(time_ns) AS times, "
        f"list(place) AS places, list(value) AS readings {recent} GROUP BY ALL",
        params=about,
    ).to_arrow_table()
    if not len(rows):
        return [], 0
    lists = {c: rows[c].combine_chunks() for c in ("times", "places", "readings")}
    ends = lists["times"].offsets.to_numpy()
    flat = {c: made.flatten().to_numpy(zero_copy_only=False) for c, made in lists.items()}
    source_ids = rows["source_id"].to_numpy()
    sources = np.repeat(source_ids, np.diff(ends))
    moved = clocks.moved(flat["times"], sources)
    origin_ns = max(int(moved.min()), int(moved.max()) - MAX_SPAN_S * 10**9)
    times = (moved - origin_ns) / 1e9
    values = flat["readings"].astype(float)
    parts: dict[tuple[str, str, str], list[NDArray[np.intp]]] = {}
    for number, (source_id, node, device) in enumerate(
        zip(source_ids.tolist(), rows["node"].to_pylist(), rows["device"].to_pylist(), strict=True)
    ):
        # Two files of unknown machines may each have a GPU 0: names join within a host.
        name = (clocks.hosts[source_id] or f"source {source_id}", node, device)
        parts.setdefault(name, []).append(np.arange(ends[number], ends[number + 1]))
    models = {} if signal.is_port else _models(con, clocks.hosts)
    readings = []
    for name, ranges in sorted(parts.items(), key=lambda part: "\x1f".join(part[0]))[:MAX_GPUS]:
        at = np.concatenate(ranges)
        at = at[times[at] >= 0]
        at = at[np.lexsort((flat["places"][at], sources[at], times[at]))]
        at = at[forward(times[at])]
        own_times, own_values = times[at], values[at]
        if signal.is_total:
            own_times, own_values = _rates(own_times, own_values, signal.scale)
        if len(own_times) > 1:
            host, node, device = name
            readings.append(
                Readings(
                    "\x1f".join(name),
                    own_times,
                    own_values,
                    node or host,
                    device,
                    models.get((node or host, device)),
                )
            )
    return readings, origin_ns


def _models(
    con: duckdb.DuckDBPyConnection, hosts: Mapping[int, str | None]
) -> dict[tuple[str, str], str]:
    """Models of GPUs by node (else host, else file) and each of their names, where they are one."""
    rows = con.execute(
        "SELECT DISTINCT source_id, node, uuid, pci, 'GPU ' || nvml_index, model FROM device "
        "WHERE ordinal IS NULL AND model IS NOT NULL"
    ).fetchall()
    models: dict[tuple[str, str], set[str]] = {}
    for source_id, node, *names, model in rows:
        owner = node or hosts.get(source_id) or f"source {source_id}"
        for name in filter(None, names):
            models.setdefault((owner, name), set()).add(model)
    return {key: next(iter(of_one)) for key, of_one in models.items() if len(of_one) == 1}


def _rates(times: Floats, totals: Floats, scale: float) -> tuple[Floats, Floats]:
    """Mean growth a second between readings of a counter; a reset is no interval."""
    import numpy as np

    grown, spans = np.diff(totals), np.diff(times)
    good = grown >= 0
    return (times[1:] - spans / 2)[good], (scale * grown / spans)[good]


def ceiling(con: duckdb.DuckDBPyConnection, counter: str) -> float:
    """What a mean can swing by: 1 for a share, the highest power that is known; else no end."""
    if counter in ("sm_active", "tensor_active"):
        return ACTIVE
    if counter != "energy":
        return float("inf")
    ((most,),) = con.execute(
        "SELECT max(value) FROM gpu_sample WHERE counter IN ('power', 'power_limit')"
    ).fetchall()
    return float(most) if most is not None else float("inf")


def moving_of(readings: Sequence[Readings], counter: str) -> list[Readings]:
    """Those that vary enough to speak of."""
    import numpy as np

    return [r for r in readings if float(np.std(r.values)) >= SIGNALS[counter].least_spread]


def interval_s(readings: Sequence[Readings]) -> float | None:
    """The usual time between readings, or between their changes where they repeat themselves.

    An exporter that is asked more often than it reads answers the same again.
    """
    import numpy as np

    intervals = []
    for gpu in readings:
        gaps = np.diff(gpu.times)
        changes = np.flatnonzero(np.diff(gpu.values) != 0)
        if len(gaps) and len(changes):
            repeats = _repeats(np.diff(changes, prepend=-1))
            intervals.append(float(np.median(gaps)) * (repeats if repeats >= MIN_REPEATS else 1.0))
    return float(np.median(intervals)) if intervals else None


def _repeats(runs: NDArray[np.int64]) -> float:
    """How often an exporter answers the same, of the lengths of runs of equal readings.

    Who is asked 2.3 times as often as it reads answers the same 2 or 3 times, and never less. What
    stays for much longer is a load that stands still, and says nothing of who reads it.
    """
    import numpy as np

    least = int(np.quantile(runs, FEW_RUNS, method="lower"))
    return float(runs[runs <= 1.5 * least + 0.5].mean())


def together(readings: Sequence[Readings], interval: float) -> tuple[Floats, Floats]:
    """The mean of standardised readings on a regular grid: the stretch that most GPUs cover."""
    import numpy as np

    grid, rows, seen = standardised(readings, interval)
    covered = float(seen.any(axis=0).mean()) if len(grid) else 0.0
    count = seen.sum(axis=0)
    mean = np.divide(rows.sum(axis=0), count, out=np.zeros(len(grid)), where=count > 0)
    return (grid, mean) if covered >= MIN_COVERED else (grid[:0], mean[:0])


def standardised(
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
