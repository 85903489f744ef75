"""What counters alone say of a job: who works, when it communicates, and what that fits.

Each statement carries the number that it rests on and what would decide what it leaves open. None
says why something is slow. A layout is named only as what the numbers are compatible with: several
layouts make the same traffic. What a number leaves between two words is not stated at all.

A step's phases are those of the repetitions of ``counter_period``, on each node's own clock: a node
is as far behind the first as its activity is, so no clock needs to be right for a fold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from tracekit.derive.coherence import gridded, vertex
from tracekit.derive.counter_period import CounterPeriod, Part
from tracekit.derive.signals import ACTIVITIES, SIGNALS, Readings
from tracekit.wording import natural, plural, ranges, seconds, share, span

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MIN_RATE = 100e6
"""Mean traffic of a node that is spoken of, bytes/s."""
MIN_BINS = 6
"""Readings of a period, below which nothing is said of where in it traffic flows."""
MAX_BINS = 24
MOST = 0.8
"""Of the bytes: how much of the period these take says whether they come in bursts."""
BURST_RATIO = 0.45
"""Share of the period that most bytes take at most where they come in bursts."""
THROUGHOUT_RATIO = 0.6
"""And at least where they flow all through it."""
REST_RATIO = 0.25
"""Mean rate outside the stretch in which most bytes flow, over that within: up to this the rest of
the period is without, and a stretch longer than a burst is told."""
USUAL_RATIO = 0.5
"""Of the mean: what half of the repetitions carry at least. Less is of a part of the time alone,
such as checkpoints now and then, or loading before the work."""
MIN_FOLDED = 0.4
"""Share of the variance that the phase explains, from which a burst comes once a period."""
EVEN_RATIO = 1.25
"""The busiest port beside the mean of all that are used, up to which they are even."""
USED_RATIO = 0.05
"""Of the busiest port's traffic: a port with less carries storage or nothing."""
MAX_NAMED = 8
"""Ports that are named."""
ACTIVE_RATIO = 0.2
"""SM activity from which a GPU is busy."""
UTILISED_RATIO = 0.5
"""The same of utilisation, which counts a kernel that waits as work."""
IDLE_RATIO = 0.05
"""Share of busy readings up to which a GPU stands by."""
BUSY_RATIO = 0.5
"""And from which it is called busy: one that compiled once, or computes now and then, is not."""
MIN_COPY_RATE = 2e9
"""Mean PCIe traffic of a GPU, while its SMs are idle, that is more than loading data."""
IDLE_COPY_RATIO = 0.6
"""Share of PCIe bytes that move while SMs are idle."""
LEAST_IDLE_RATIO = 0.15
"""Share of a working GPU's readings in which its SMs are idle, to ask what moves meanwhile."""
TURNS = -0.3
"""Correlation of activity at the same moment, below which two nodes or GPUs work in turn."""
TOGETHER = 0.5
"""And above which GPUs of one node work together."""
MIN_MOMENTS = 100
"""Readings at which all of them were read, to speak of either."""
SEGMENTS = 4
"""Parts of the readings of which each gives the clocks' offset by itself."""
MIN_SEGMENTS = 3
"""Parts, each way, that must agree."""
MIN_ECHO = 0.6
"""Correlation of what one node sends and the other receives."""
MIN_CLEARER = 2.0
"""How many times the rest to a full correlation the next best shift leaves, at least."""
LOAD_GAP = 0.15
"""Difference of mean activity between groups of load."""
POWER_GAP = 1.3
"""Ratio of mean power between groups of load."""
MIN_GROUP = 4
"""GPUs of a group that one is compared within."""
APART_RATIO = 0.08
APART_SPREADS = 5.0
"""How far from its group's median: by this share, and by so many robust standard deviations."""
PARTS = 8
"""Parts of the readings in each of which one that is apart must be so, by half that share."""
MAX_APART_RATIO = 0.25
"""Share of a group that may be apart from it."""
LEAST_SPREAD = 0.01
"""Robust standard deviation of a group, at least, as a share of its median."""

WAIT_S = 30.0
"""Of readings that are looked at together, to see when GPUs began to wait."""
MIN_WAIT_READINGS = 5
MIN_WAITS = 4
"""Of such stretches: how many GPUs must have worked, and waited since."""
WAITING_POWER_RATIO = 0.5
"""Power over that of work, up to which a GPU that is in use computes nothing. Assumed: no recording
of GPUs that hang in a collective has proved it."""
WORKED_QUANTILE = 0.9
"""Of a GPU's power: what it draws while it works, where it works a tenth of the time or more."""
IN_USE_RATIO = 0.95
"""Utilisation of a GPU in which a kernel always runs."""
MIN_WAITING = 2
"""GPUs that wait: one alone may run something else."""
WAITS = (
    "a collective that does not end (a hang, or a long pause of one rank), or with work that draws "
    "little, such as generation"
)
WAITS_FOR = "py-spy dump of each rank, or a Flight Recorder dump, says where each stands"

DECIDES = "a trace, NCCL's log (NCCL_DEBUG=INFO) or job.toml's [parallelism] says which"


class Statement(NamedTuple):
    """A row of ``counter_statement``, less the attempt."""

    kind: str
    scope: str
    statistic: str
    value: float
    error: float | None
    sentence: str
    compatible_with: str | None = None
    decided_by: str | None = None


class Folded(Struct, frozen=True):
    """How a node's traffic lies in the period."""

    mean: float
    """bytes/s."""
    most_ratio: float
    """Share of the period that holds ``MOST`` of the bytes."""
    explained_ratio: float
    bursts_count: int
    usual_ratio: float
    """Of the mean: what half of the repetitions at least carry."""
    rest_ratio: float
    """Mean rate of the lower part of the period over that of the higher one."""
    smeared_ratio: float
    """An interval's share of the period: by so much its mean widens what flows within it."""


def statements(
    signals: Mapping[str, Sequence[Readings]], counter_period: CounterPeriod
) -> list[Statement]:
    """What there is to say; ``signals`` by canonical counter, all times from one moment."""
    said: list[Statement] = []
    by = next((counter for counter in ACTIVITIES if signals.get(counter)), "sm_active")
    gpus, name = list(signals.get(by, ())), ACTIVITIES[by].name
    if by != "sm_active":
        said += _waiting(gpus, list(signals.get("power", ())))
    said += _loads(gpus, list(signals.get("power", ())), by)
    said += _independent(counter_period)
    nodes = sorted({r.node for rows in signals.values() for r in rows})
    part = next((p for p in counter_period.parts if p.is_periodic), None)
    if part is not None and counter_period.row["verdict"] == "steps":
        said += _traffic(signals, part, nodes)
        said += _turns_within(gpus, name, part, nodes)
    said += _offload(signals, part)
    said += _ports(signals, nodes)
    if len(nodes) == 2:
        # Steps too short for the readings would fit as well shifted by any number of them.
        is_resolved = counter_period.row["verdict"] == "steps"
        period_s = float(counter_period.row["period_ns"]) / 1e9 if is_resolved else 0.0
        clocks = _clocks(signals, nodes, period_s) if is_resolved else None
        said += [clocks] if clocks is not None else []
        offset = (clocks.value, clocks.error or 0.0) if clocks is not None else None
        said += _turns(gpus, name, nodes, offset, counter_period)
    return said


# --- waiting --------------------------------------------------------------------------------------


class _End(NamedTuple):
    """What a GPU does in the last stretches of the readings, which differ from those before."""

    stretches_count: int
    used_ratio: float
    watts: float
    before_watts: float


def _waiting(gpus: Sequence[Readings], powers: Sequence[Readings]) -> list[Statement]:
    """GPUs in which kernels run on and on while they draw little power, at the end of the readings:
    who stands in a collective is in use, and computes nothing."""
    import numpy as np

    if not gpus or not powers:
        return []
    first = max(float(r.times[0]) for r in (*gpus, *powers))
    last = min(float(r.times[-1]) for r in (*gpus, *powers))
    uses, watts = (
        {r.gpu: part for r in rows if len((part := r.between(first, last)).times) > 1}
        for rows in (gpus, powers)
    )
    if not uses or not watts:
        return []
    read = (*uses.values(), *watts.values())
    stretch_s = max(WAIT_S, *(MIN_WAIT_READINGS * float(np.median(np.diff(r.times))) for r in read))
    ends = {g: _end(uses[g], watts[g], stretch_s) for g in uses if g in watts}
    waiting = [g for g, end in ends.items() if end and end.used_ratio >= IN_USE_RATIO]
    if len(waiting) < MIN_WAITING:
        return []
    count = int(np.median([e.stretches_count for g in waiting if (e := ends[g])]))
    idle = [g for g, end in ends.items() if end and end.used_ratio <= IDLE_RATIO]
    working = [g for g, end in ends.items() if end is None]
    now, before = (
        float(np.median([getattr(ends[g], name) for g in waiting]))
        for name in ("watts", "before_watts")
    )
    scope = _scope([uses[g] for g in waiting])
    sentence = (
        f"{scope} in use all the time and at {now:.0f} W in the last {span(count * stretch_s)}, "
        f"where they drew {before:.0f} W before"
    )
    if idle:
        sentence += f", and {_scope([uses[g] for g in idle])} idle meanwhile"
    elif working and len(working) < len(waiting):
        sentence += f", and {_scope([uses[g] for g in working])} not so"
    return [
        Statement("waiting", scope, "power over what they drew before", now / before, None,
                  sentence, WAITS, WAITS_FOR)
    ]  # fmt: skip


def _end(use: Readings, power: Readings, stretch_s: float) -> _End | None:
    """How a GPU stands at the end, where it draws much less than when it worked before."""
    import numpy as np

    first, last = float(power.times[0]), float(power.times[-1])
    count = int((last - first) / stretch_s)
    if count < 2 * MIN_WAITS:
        return None
    edges = last - stretch_s * np.arange(count, -1, -1.0)
    drawn, used = (
        np.array([np.median(p) if len(p) else np.nan for p in
                  np.split(r.values, np.searchsorted(r.times, edges))[1:-1]])
        for r in (power, use)
    )  # fmt: skip
    if np.isnan(drawn).any() or np.isnan(used).any():
        return None  # nobody looked for a while
    usual = float(np.quantile(drawn, WORKED_QUANTILE))
    above = np.flatnonzero(drawn > WAITING_POWER_RATIO * usual)
    begin = int(above[-1]) + 1
    if begin < MIN_WAITS or count - begin < MIN_WAITS:
        return None
    worked = above[used[above] >= UTILISED_RATIO]
    if len(worked) < MIN_WAITS:
        return None
    return _End(
        count - begin,
        float(np.median(used[begin:])),
        float(np.median(drawn[begin:])),
        float(np.median(drawn[worked])),
    )


# --- loads ----------------------------------------------------------------------------------------


def _loads(gpus: Sequence[Readings], powers: Sequence[Readings], by: str) -> list[Statement]:
    """Groups of GPUs by what they do, and who differs within one.

    ``by``: the counter of ``gpus``. Of GPUs whose power alone was read, the groups are by that.
    """
    import numpy as np

    gpus, powers = _meanwhile(gpus), _meanwhile(powers)
    if not gpus:
        return _loads_of_power(powers)
    least = ACTIVE_RATIO if by != "gpu_utilisation" else UTILISED_RATIO
    watts = {r.gpu: float(r.values.mean()) for r in powers}
    active = {r.gpu: float(r.values.mean()) for r in gpus}
    busy = {r.gpu: float(np.mean(r.values >= least)) for r in gpus}
    named = {r.gpu: r for r in gpus}
    said = []
    groups = [
        fine
        for coarse in _split(active, lambda low, high: high - low >= LOAD_GAP)
        for fine in _split(
            {g: watts.get(g, 0.0) for g in coarse},
            lambda low, high: low > 0 and high >= POWER_GAP * low,
        )
    ]
    for group in groups if len(groups) > 1 else []:
        share_busy = float(np.median([busy[g] for g in group]))
        power = [watts[g] for g in group if g in watts]
        drawn = f", {float(np.median(power)):.0f} W" if power else ""
        word = "busy" if share_busy >= BUSY_RATIO else "mostly idle"
        word = "idle" if share_busy <= IDLE_RATIO else word
        scope = _scope([named[g] for g in group])
        said.append(
            Statement(
                "load", scope, "share of readings that are busy", share_busy, None,
                f"{scope} {word} (busy in {share(share_busy)} of readings{drawn})",
            )
        )  # fmt: skip
    rows = {ACTIVITIES[by].name: gpus, "power": powers}
    if by == "gpu_utilisation":
        del rows[ACTIVITIES[by].name]  # a kernel that waits counts as one that works
    for group in groups:
        if np.median([active[g] for g in group]) < least:
            continue  # what stands by differs by what it last did
        for name in rows:
            unit = " W" if name == "power" else ""
            for alike in _alike([r for r in rows[name] if r.gpu in group]):
                said += _apart(alike, unit, name)
    return said


def _loads_of_power(powers: Sequence[Readings]) -> list[Statement]:
    """The same of GPUs of which nothing but their power is known."""
    import numpy as np

    watts = {r.gpu: float(r.values.mean()) for r in powers}
    named = {r.gpu: r for r in powers}
    groups = _split(watts, lambda low, high: low > 0 and high >= POWER_GAP * low)
    said = []
    for group in groups if len(groups) > 1 else []:
        scope, drawn = (
            _scope([named[g] for g in group]),
            float(np.median([watts[g] for g in group])),
        )
        said.append(
            Statement("load", scope, "mean power, W", drawn, None,
                      f"{scope} at {drawn:.0f} W in the mean")
        )  # fmt: skip
    for group in groups:
        for alike in _alike([named[g] for g in group]):
            said += _apart(alike, " W", "power")
    return said


def _alike(group: Sequence[Readings]) -> list[list[Readings]]:
    """GPUs of one model; of unknown model those of one machine."""
    alike: dict[str, list[Readings]] = defaultdict(list)
    for reading in group:
        alike[reading.alike].append(reading)
    return list(alike.values())


def _meanwhile(readings: Sequence[Readings]) -> list[Readings]:
    """Those of the time in which all were read: a collector that starts late saw no warm-up."""
    if not readings:
        return []
    first = max(float(r.times[0]) for r in readings)
    last = min(float(r.times[-1]) for r in readings)
    return [part for r in readings if len((part := r.between(first, last)).times)]


def _split(values: Mapping[str, float], is_gap: Any) -> list[list[str]]:
    """Names in groups, by the gaps between their values."""
    ordered = sorted(values, key=lambda g: (values[g], g))
    groups: list[list[str]] = []
    for at, name in enumerate(ordered):
        if at and not is_gap(values[ordered[at - 1]], values[name]):
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


def _apart(group: Sequence[Readings], unit: str, name: str) -> list[Statement]:
    """Who differs from the others of its load, and does so part by part."""
    import numpy as np

    said: list[Statement] = []
    means = np.array([r.values.mean() for r in group])
    parts = np.array([[p.mean() if len(p) else np.nan for p in np.array_split(r.values, PARTS)]
                      for r in group])  # fmt: skip
    for at, reading in enumerate(group if len(group) >= MIN_GROUP else ()):
        others = np.delete(means, at)
        usual = float(np.median(others))
        if usual <= 0:
            continue
        robust = 1.4826 * float(np.median(abs(others - usual)))
        spread = max(robust, LEAST_SPREAD * usual)
        far = float(means[at]) - usual
        if abs(far) < APART_RATIO * usual or abs(far) < APART_SPREADS * spread:
            continue
        # Requests come as they like: what differs by chance differs now this way, now that.
        beside = np.median(np.delete(parts, at, axis=0), axis=0)
        if not np.all(np.sign(far) * (parts[at] - beside) > APART_RATIO / 2 * usual):
            continue
        scope = _scope([reading])
        mine, peer = (f"{v:.0f}{unit}" if unit else share(v) for v in (float(means[at]), usual))
        said.append(
            Statement(
                "apart", scope, f"{name} less its load group's median, in robust deviations",
                far / spread, None,
                f"{scope}: {name} {mine} beside {peer} of the {len(others)} others of its load",
            )
        )  # fmt: skip
    # Where many differ the group is two: nobody knows which of them is as it should be.
    return said if len(said) <= MAX_APART_RATIO * len(group) else []


def _scope(readings: Sequence[Readings]) -> str:
    """``GPUs 0-3 of node0``."""
    by_node: dict[str, list[str]] = defaultdict(list)
    for reading in readings:
        by_node[reading.node].append(reading.device)
    said = []
    for node, devices in sorted(by_node.items()):
        numbers = [d.removeprefix("GPU ") for d in devices]
        if all(n.isdecimal() for n in numbers):
            many = "s" if len(numbers) > 1 else ""
            said.append(f"GPU{many} {ranges(sorted(map(int, numbers)))} of {node}")
        else:
            said.append(f"{plural(len(devices), 'device')} of {node}")
    return ", ".join(said)


# --- where in the period --------------------------------------------------------------------------


def _independent(counter_period: CounterPeriod) -> list[Statement]:
    """Groups of devices whose periods are not the same: processes that do not wait for another."""
    periodic = [p for p in counter_period.parts if p.is_periodic]
    if counter_period.row["verdict"] == "steps" or len(periodic) < 2:
        return []
    periods = [p.row["period_ns"] / 1e9 for p in periodic]
    return [
        Statement(
            "independent", ", ".join(sorted({n for p in periodic for n in p.nodes.values()})),
            "longest period over the shortest",
            max(periods) / min(periods), None, counter_period.row["reason"],
            "jobs, or processes of one, that do not wait for each other", DECIDES,
        )
    ]  # fmt: skip


def _traffic(
    signals: Mapping[str, Sequence[Readings]], part: Part, nodes: Sequence[str]
) -> list[Statement]:
    """Whether traffic comes in bursts once a period, or flows all through it, by node."""
    said = []
    by_words: dict[tuple[str, str, int], list[tuple[str, Folded]]] = defaultdict(list)
    for name, counters in _WAYS.items():
        for node in nodes:
            folded = _folded([r for c in counters for r in signals.get(c, ())
                              if r.node == node], part, node)  # fmt: skip
            if folded is None or folded.mean < MIN_RATE or folded.usual_ratio < USUAL_RATIO:
                continue
            if folded.most_ratio <= BURST_RATIO and folded.explained_ratio >= MIN_FOLDED:
                by_words[name, "bursts", folded.bursts_count].append((node, folded))
            elif folded.most_ratio - folded.smeared_ratio >= THROUGHOUT_RATIO:
                by_words[name, "throughout", 0].append((node, folded))
            elif (
                folded.bursts_count == 1
                and folded.explained_ratio >= MIN_FOLDED
                and folded.rest_ratio <= REST_RATIO
            ):
                by_words[name, "stretch", 1].append((node, folded))
    for (name, kind, count), flows in by_words.items():
        ratio = max(f.most_ratio for _, f in flows)
        where = ", ".join(node for node, _ in flows)
        rate = sum(f.mean for _, f in flows) / len(flows) / 1e9
        amount = f"{rate:.3g}" if rate < 1000 else f"{rate:,.0f}"
        within = f"({share(MOST)} of the bytes in {share(ratio)} of it"
        how = (
            f"in {plural(count, 'burst')} a period {within}"
            if kind == "bursts"
            else f"in one stretch of the period {within}, hardly any in the rest"
            if kind == "stretch"
            else f"all through the period ({share(MOST)} of the bytes take {share(ratio)} of it"
        )
        said.append(
            Statement(
                _TELLS[name, kind], where, "share of the period that holds 80 % of the bytes",
                ratio, None, f"{name} traffic of {where} {how}, {amount} GB/s in the mean)",
                _FITS.get((name, "several" if kind == "bursts" and count > 1 else kind)), DECIDES,
            )
        )  # fmt: skip
    return said


_WAYS = {
    "NVLink": ("nvlink_tx", "nvlink_rx"),
    "network": ("tx_rate", "rx_rate", "tx_bytes", "rx_bytes"),
    "PCIe": ("pcie_tx", "pcie_rx"),
}
_TELLS = {
    (name, kind): kind + "_" + name.lower()
    for name in _WAYS
    for kind in ("bursts", "stretch", "throughout")
}
_FITS = {
    ("network", "bursts"): "data parallelism or sharded states that meet once a step, or stages "
    "of a pipeline",
    ("network", "several"): "stages of a pipeline, or layers or microbatches that exchange one "
    "after the other",
    ("network", "stretch"): "gradients exchanged while the backward pass computes (data "
    "parallelism, sharded states)",
    ("network", "throughout"): "parameters sharded over nodes (FSDP, ZeRO-3), or experts, "
    "sequences or tensors split over nodes",
    ("NVLink", "bursts"): "data parallelism within the node",
    ("NVLink", "several"): "layers or microbatches that exchange one after the other",
    ("NVLink", "stretch"): "data, tensor, sequence or expert parallelism within the node, in a "
    "part of each step",
    ("NVLink", "throughout"): "tensor, sequence or expert parallelism, or parameters sharded, "
    "within the node",
}


def _phases(times: Floats, starts: Floats) -> Floats:
    """Phase of moments within the repetition that they lie in; NaN where it is not known."""
    import numpy as np

    low, high = starts[:-1], starts[1:]
    good = ~np.isnan(low) & ~np.isnan(high)
    low, high = low[good], high[good]
    if not len(low):
        return np.full(len(times), np.nan)
    at = (np.searchsorted(low, times, "right") - 1).clip(0)
    phase = (times - low[at]) / (high[at] - low[at])
    return np.where((phase >= 0) & (phase < 1), phase, np.nan)


def _folded(readings: Sequence[Readings], part: Part, node: str) -> Folded | None:
    """The sum over devices, laid over the mean repetition."""
    import numpy as np

    if not readings:
        return None
    interval = float(part.row["interval_ns"]) / 1e9
    bins = min(MAX_BINS, int(part.row["period_ns"] / part.row["interval_ns"]))
    if bins < MIN_BINS:
        return None
    lag = part.lag_of(node)
    if lag is None:
        return None
    starts = part.starts + lag
    grid = np.arange(float(np.nanmin(starts)), float(np.nanmax(starts)), interval)
    rows, seen = gridded([r.times for r in readings], [r.values for r in readings], grid, interval)
    phase = _phases(grid, starts)
    good = seen.all(axis=0) & ~np.isnan(phase)
    if good.sum() < 10 * bins:
        return None
    values = rows.sum(axis=0)[good]
    places = (phase[good] * bins).astype(int).clip(0, bins - 1)
    counts = np.bincount(places, minlength=bins)
    if not counts.all():
        return None
    means = np.bincount(places, values, bins) / counts
    if means.sum() <= 0:
        return None  # ports that carry nothing
    total = float(((values - values.mean()) ** 2).sum())
    rest = float(((values - means[places]) ** 2).sum())
    ordered = np.sort(means)[::-1]
    filled = np.cumsum(ordered) / ordered.sum()
    full = int(np.searchsorted(filled, MOST))
    before = float(filled[full - 1]) if full else 0.0
    most = (full + (MOST - before) / max(float(filled[full]) - before, 1e-9)) / bins
    high = means > (means.max() + means.min()) / 2
    bursts = int((high & ~np.roll(high, 1)).sum())
    explained = 1 - rest / total if total else 0.0
    left = float(means[~high].mean() / means[high].mean()) if high.any() and not high.all() else 1.0
    smeared = float(part.row["interval_ns"] / part.row["period_ns"])
    which = np.searchsorted(starts[~np.isnan(starts)], grid[good], side="right")
    each = np.bincount(which, values) / np.maximum(np.bincount(which), 1)
    usual = float(np.median(each[np.bincount(which) > 0]) / values.mean())
    return Folded(float(values.mean()), most, explained, bursts, usual, left, smeared)


def _lag(part: Part, gpu: Readings) -> float | None:
    """By how much a GPU is behind; where ports show the rhythm, by how much its node's are."""
    if SIGNALS[part.row["counter"]].is_port:
        return part.lag_of(gpu.node)
    return part.lags.get(gpu.gpu)


# --- copies, ports --------------------------------------------------------------------------------


def _offload(signals: Mapping[str, Sequence[Readings]], part: Part | None) -> list[Statement]:
    """PCIe traffic that flows while SMs are idle."""
    import numpy as np

    if part is None:
        return []
    copies: dict[str, list[Readings]] = defaultdict(list)
    for counter in ("pcie_tx", "pcie_rx"):
        for reading in signals.get(counter, ()):
            copies[reading.gpu].append(reading)
    shares, rates, which = [], [], []
    for gpu in signals.get("sm_active", ()):
        lag = _lag(part, gpu)
        if lag is None or gpu.gpu not in copies:
            continue
        inside = ~np.isnan(_phases(gpu.times, part.starts + lag))
        if not inside.any():
            continue
        rows, seen = gridded([r.times for r in copies[gpu.gpu]],
                             [r.values for r in copies[gpu.gpu]], gpu.times,
                             float(part.row["interval_ns"]) / 1e9)  # fmt: skip
        moved = rows.sum(axis=0)
        good = inside & seen.all(axis=0)
        idle = good & (gpu.values < ACTIVE_RATIO)
        if idle.sum() < LEAST_IDLE_RATIO * good.sum() or moved[good].sum() <= 0:
            continue
        shares.append(float(moved[idle].sum() / moved[good].sum()))
        rates.append(float(moved[idle].mean()))
        which.append(gpu)
    if not shares or float(np.median(rates)) < MIN_COPY_RATE:
        return []
    middle = float(np.median(shares))
    if middle < IDLE_COPY_RATIO:
        return []
    return [
        Statement(
            "offload", _scope(which), "share of PCIe bytes that move while SMs are idle",
            middle, None,
            f"{share(middle)} of the PCIe traffic of {_scope(which)} flows while SMs are idle, "
            f"{float(np.median(rates)) / 1e9:.3g} GB/s a GPU meanwhile",
            "optimizer or parameters kept on the host (offload), or batches loaded late",
            "a trace with copies, or the job's configuration, says which",
        )
    ]  # fmt: skip


def _ports(signals: Mapping[str, Sequence[Readings]], nodes: Sequence[str]) -> list[Statement]:
    """How even the traffic of a node's ports is."""
    said = []
    for node in nodes:
        total: dict[str, float] = defaultdict(float)
        for counter in _WAYS["network"]:
            for reading in signals.get(counter, ()):
                if reading.node == node:
                    total[reading.device] += float(reading.values.mean())
        whole = sum(total.values())
        if len(total) < 2 or whole < MIN_RATE:
            continue
        top = max(sorted(total), key=lambda p: total[p])
        used = [p for p in sorted(total, key=natural) if total[p] >= USED_RATIO * total[top]]
        ratio = total[top] / (sum(total[p] for p in used) / len(used))
        ports = plural(len(total), "port")
        if len(used) < len(total):
            ports = f"{len(used)} of {ports} ({', '.join(used[:MAX_NAMED])}"
            ports += ", ...)" if len(used) > MAX_NAMED else ")"
        how = (
            f"over {ports}"
            if len(used) == 1
            else f"evenly over {ports}: the busiest has {ratio:.2f} of their mean"
            if ratio <= EVEN_RATIO
            else f"unevenly over {ports}: {top} has {share(total[top] / whole)} of it"
        )
        said.append(
            Statement("ports", node, "busiest port over the mean of those used", ratio, None,
                      f"network traffic of {node} goes {how}")
        )  # fmt: skip
    return said


# --- two nodes ------------------------------------------------------------------------------------


def _summed(
    signals: Mapping[str, Sequence[Readings]], counters: Sequence[str], node: str
) -> list[Readings]:
    return [r for c in counters for r in signals.get(c, ()) if r.node == node]


def _clocks(
    signals: Mapping[str, Sequence[Readings]], nodes: Sequence[str], period_s: float
) -> Statement | None:
    """How far the second node's clock is ahead, by what the one sends and the other receives.

    Steps repeat, so a shift by a period fits nearly as well: each part of the readings is asked by
    itself, both ways round, and only an offset on which they agree is stated. Where the next best
    of a part is hardly worse, that part says nothing: whether a shift is a whole number of readings
    then decides more than whether it is the right one.
    """
    import numpy as np

    ways = []
    for sender, receiver, sign in ((0, 1, 1.0), (1, 0, -1.0)):
        sent = _summed(signals, ("tx_rate", "tx_bytes"), nodes[sender])
        got = _summed(signals, ("rx_rate", "rx_bytes"), nodes[receiver])
        if not sent or not got:
            return None
        interval = float(np.median(np.concatenate([np.diff(r.times) for r in (*sent, *got)])))
        low = max(r.times[0] for r in (*sent, *got))
        high = min(r.times[-1] for r in (*sent, *got))
        grid = np.arange(low, high, interval)
        if len(grid) < SEGMENTS * 40:
            return None
        sending, receiving = (_total(rows, grid, interval) for rows in (sent, got))
        ways.append(
            [sign * lag * interval for lag in _lags(sending, receiving, period_s / interval)]
        )
    lags = np.array([lag for way in ways for lag in way])
    if min(len(way) for way in ways) < MIN_SEGMENTS:
        return None
    middle = float(np.median(lags))
    near = abs(lags - middle) <= 2 * interval
    if near.sum() < 2 * MIN_SEGMENTS:
        return None
    near_lags = lags[near]
    error = max(2 * float(np.std(near_lags)) / np.sqrt(len(near_lags)), interval / 10)
    word = "ahead of" if middle >= 0 else "behind"
    return Statement(
        "clock_offset", f"{nodes[0]}, {nodes[1]}",
        f"seconds by which {nodes[1]} records what {nodes[0]} sends, and the reverse", middle,
        error,
        f"the counters of {nodes[1]} are {seconds(abs(middle))} {word} those of {nodes[0]} "
        f"(error {seconds(error)}): what one sends is what the other receives",
    )  # fmt: skip


def _total(readings: Sequence[Readings], grid: Floats, interval: float) -> Floats:
    """The sum over devices on a grid; where one was not read, the mean of all moments."""
    import numpy as np

    rows, seen = gridded([r.times for r in readings], [r.values for r in readings], grid, interval)
    total, good = rows.sum(axis=0), seen.all(axis=0)
    return np.where(good, total, float(total[good].mean()) if good.any() else 0.0)


def _lags(sent: Floats, received: Floats, period: float) -> list[float]:
    """Samples by which a part of what was received is behind what was sent, part by part.

    ``period`` is that of the steps, in samples; a part that hardly tells one step from the next is
    left out.
    """
    import numpy as np

    lags_there = []
    size = len(sent) // SEGMENTS
    for number in range(SEGMENTS):
        # A part of one is looked for in all of the other: the lag may be longer than the part.
        part = received[number * size : (number + 1) * size]
        if not np.std(part):
            continue
        row = np.zeros(len(received))
        row[number * size : (number + 1) * size] = part - part.mean()
        n = len(sent)
        product = np.fft.irfft(
            np.fft.rfft(row, 2 * n) * np.conj(np.fft.rfft(sent - sent.mean(), 2 * n)), 2 * n
        )
        # Over the energy of what stands there: a loud stretch is no likeness.
        sums = np.concatenate([[0.0], np.cumsum((sent - sent.mean()) ** 2)])
        lags = np.arange(-(n // 4), n // 4 + 1)
        begin = (number * size - lags).clip(0, n)
        end = ((number + 1) * size - lags).clip(0, n)
        energy = sums[end] - sums[begin]
        whole = end - begin == size
        norm = np.sqrt(energy * float((row**2).sum()))
        r = np.divide(product[lags], norm, out=np.zeros(len(lags)), where=whole & (norm > 0))
        top = int(np.argmax(r))
        second = float(r[abs(lags - lags[top]) > period / 2].max(initial=0.0))
        if r[top] >= MIN_ECHO and 1 - second >= MIN_CLEARER * (1 - float(r[top])):
            lags_there.append(float(lags[top]) + vertex(r, top))
    return lags_there


def _turns_within(
    gpus: Sequence[Readings], name: str, part: Part, nodes: Sequence[str]
) -> list[Statement]:
    """Whether GPUs of a node, whose readings share a clock, are two groups that work in turn."""
    import numpy as np

    said = []
    interval = float(part.row["interval_ns"]) / 1e9
    for node in nodes:
        here = [r for r in gpus if r.node == node and _lag(part, r) is not None]
        lag = part.lag_of(node)
        if len(here) < 2 or lag is None:
            continue
        starts = part.starts + lag
        grid = np.arange(float(np.nanmin(starts)), float(np.nanmax(starts)), interval)
        rows, seen = gridded([r.times for r in here], [r.values for r in here], grid, interval)
        good = seen.all(axis=0) & ~np.isnan(_phases(grid, starts))
        if good.sum() < MIN_MOMENTS or not all(np.std(row[good]) for row in rows):
            continue
        r = np.asarray(np.corrcoef(rows[:, good]))
        first, second = np.flatnonzero(r[0] > TOGETHER), np.flatnonzero(r[0] < TURNS)
        across = r[np.ix_(first, second)]
        if (
            not len(second)
            or len(first) + len(second) < len(here)
            or across.max() > TURNS
            or min(r[np.ix_(group, group)].min() for group in (first, second)) < TOGETHER
        ):
            continue
        scopes = [_scope([here[at] for at in group.tolist()]) for group in (first, second)]
        said.append(
            Statement(
                "in_turn", ", ".join(scopes), f"correlation of {name} at the same moment",
                float(across.mean()), None,
                f"{scopes[0]} and {scopes[1]} work in turn: where one is busy the other idles "
                f"(correlation {across.mean():.2f})",
                "stages of a pipeline with few microbatches", DECIDES,
            )
        )  # fmt: skip
    return said


def _turns(
    gpus: Sequence[Readings],
    name: str,
    nodes: Sequence[str],
    offset: tuple[float, float] | None,
    counter_period: CounterPeriod,
) -> list[Statement]:
    """Whether two nodes work in turn: only where their clocks are known well enough."""
    import numpy as np

    part = next((p for p in counter_period.parts if p.is_periodic), None)
    if offset is None or part is None or counter_period.row["verdict"] != "steps":
        return []
    period = float(part.row["period_ns"]) / 1e9
    if offset[1] > period / 10:
        return []
    interval = float(part.row["interval_ns"]) / 1e9
    of_nodes = [[r for r in gpus if r.node == node and _lag(part, r) is not None] for node in nodes]
    if not all(of_nodes):
        return []
    shifts = (0.0, offset[0])
    lag = part.lag_of(nodes[0])
    assert lag is not None  # noqa: S101  # it has devices of the node
    starts = part.starts + lag
    grid = np.arange(float(np.nanmin(starts)), float(np.nanmax(starts)), interval)
    rows = []
    good = ~np.isnan(_phases(grid, starts))
    for readings, shift in zip(of_nodes, shifts, strict=True):
        values, seen = gridded([r.times - shift for r in readings],
                               [r.values for r in readings], grid, interval)  # fmt: skip
        rows.append(values.mean(axis=0))
        good &= seen.all(axis=0)
    if good.sum() < MIN_MOMENTS or not all(np.std(row[good]) for row in rows):
        return []
    r = float(np.corrcoef(rows[0][good], rows[1][good])[0, 1])
    if r > TURNS:
        return []
    return [
        Statement(
            "in_turn", f"{nodes[0]}, {nodes[1]}", f"correlation of {name} at the same moment",
            r, None,
            f"{nodes[0]} and {nodes[1]} work in turn: where one is busy the other idles "
            f"(correlation {r:.2f})",
            "stages of a pipeline with few microbatches", DECIDES,
        )
    ]  # fmt: skip
