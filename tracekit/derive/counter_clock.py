"""How far the clock of a switch's or host's counters is from that of the traces.

Traffic follows the collectives: what a port carries between two readings is what its host's
collectives moved in that time. So the offset is where both go together best. Steps repeat, and so
does their traffic: a shift by one step fits nearly as well. An offset is named only where the best
one stands out from the next best by more than chance explains, and where both directions give the
same; else it is unknown, which is the usual answer for a steady job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from tracekit.ranges import union

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tracekit.derive.correlation import Series, Window
    from tracekit.derive.matching import Matched

    Floats = NDArray[np.float64]

RANGE_NS = 120e9
"""Offsets that are tried, both ways: a host without NTP drifts by a second a day."""
MIN_INTERVALS = 16
"""Readings within the traces that an estimate needs."""
MAX_INTERVALS = 1_500
MAX_LAGS = 3_000
MIN_STRENGTH = 0.6
"""Correlation of traffic and collectives below which neither follows the other."""
REPEATS_RATIO = 0.8
"""Correlation elsewhere over the best one from which the traffic is said to repeat."""
MIN_LEAD = 3.0
"""Standard errors by which the best offset beats the next one."""


class Curve(Struct, frozen=True):
    """What a host's collectives have moved by each moment: straight between the points."""

    times: Floats
    """ns since the first steady step, ascending."""
    totals: Floats


class Estimate(Struct, frozen=True):
    """One row of ``counter_clock``, without its attempt and node."""

    verdict: str
    reason: str
    intervals_count: int = 0
    interval_ns: float | None = None
    offset_ns: int | None = None
    error_ns: int | None = None
    strength_ratio: float | None = None
    next_ratio: float | None = None


def traffic(
    matched: Matched, hosts: Mapping[tuple[int, int], str | None], origin_ns: int
) -> dict[tuple[int, str], Curve]:
    """By attempt and host, what its collectives moved; ``hosts`` by attempt and rank.

    Bytes flow once all members are there: from the last start to the own end, evenly. Collectives
    within one host are none of its network's.
    """
    import numpy as np

    calls = matched.calls
    rows, starts = matched.order()
    if not len(rows):
        return {}
    last_start = np.maximum.reduceat(calls["start_ns"][rows], starts)
    counts = np.diff(np.append(starts, len(rows)))
    begin = np.repeat(last_start, counts) - origin_ns
    end = calls["end_ns"][rows] - origin_ns
    names = [hosts.get(k) for k in zip(calls["attempt"][rows].tolist(),
                                       calls["rank"][rows].tolist(), strict=True)]  # fmt: skip
    codes = {name: i for i, name in enumerate(dict.fromkeys(names))}
    host = np.array([codes[n] for n in names], np.int64)
    is_wide = np.maximum.reduceat(host, starts) != np.minimum.reduceat(host, starts)
    size = np.maximum(calls["message_bytes"][rows], 0).astype(np.float64)
    amount = size if size.any() else (end - begin).astype(np.float64)
    good = np.repeat(is_wide, counts) & (end > begin) & (amount > 0)
    curves: dict[tuple[int, str], Curve] = {}
    for name, code in codes.items():
        if name is None:
            continue
        for attempt in np.unique(calls["attempt"][rows]).tolist():
            of_host = good & (host == code) & (calls["attempt"][rows] == attempt)
            if of_host.any():
                curves[attempt, name] = curve(begin[of_host], end[of_host], amount[of_host])
    return curves


def curve(begin: Floats, end: Floats, amount: Floats) -> Curve:
    """The sum of amounts that each flow evenly from a beginning to an end."""
    import numpy as np

    times = np.concatenate([begin, end]).astype(float)
    rates = np.concatenate([amount / (end - begin), -amount / (end - begin)])
    order = np.argsort(times, kind="stable")
    times, flow = times[order], np.cumsum(rates[order])
    totals = np.concatenate([[0.0], np.cumsum(np.diff(times) * np.maximum(flow[:-1], 0.0))])
    return Curve(times, totals)


def estimate(
    pairs: Sequence[tuple[Series, Curve]], spans: Sequence[tuple[float, float]]
) -> Estimate:
    """The offset of one node's clock, from its ports' bytes and their hosts' traffic.

    ``spans`` are the stretches that the traces cover, in ns since the origin.
    """
    usable = [p for p in pairs if len(p[0].times) > 2 and p[0].totals[-1] > p[0].totals[0]]
    if not usable:
        return Estimate("unknown", "no bytes of a port that leads to a rank of the job")
    interval = max(counter.interval_ns for counter, _ in usable)
    whole = _scan(usable, spans, interval)
    if whole is None:
        return Estimate(
            "unknown", f"fewer than {MIN_INTERVALS} readings within the traces",
            interval_ns=interval,
        )  # fmt: skip

    def said(verdict: str, reason: str, **more: int) -> Estimate:
        return Estimate(
            verdict,
            reason,
            intervals_count=whole.intervals_count,
            interval_ns=interval,
            strength_ratio=whole.strength,
            next_ratio=whole.runner_up,
            **more,
        )

    if whole.strength < MIN_STRENGTH:
        why = f"traffic does not follow the collectives (correlation {whole.strength:.2f})"
        return said("unknown", why)
    if whole.lead < MIN_LEAD:
        repeats = whole.runner_up >= REPEATS_RATIO * whole.strength
        few = f"for which {whole.intervals_count} readings are too few"
        why = (
            f"no offset stands out, {'as traffic repeats with the steps' if repeats else few} "
            f"(best correlation {whole.strength:.2f}, elsewhere {whole.runner_up:.2f})"
        )
        return said("unknown", why)
    for direction in ("rx", "tx"):
        part = _scan([p for p in usable if p[0].direction == direction], spans, interval)
        if part is not None and abs(part.offset - whole.offset) > interval + whole.error:
            return said("unknown", "the two directions give different offsets")
    is_off = abs(whole.offset) > whole.error + interval
    return said(
        "off" if is_off else "agrees",
        "traffic follows the collectives best at this offset",
        offset_ns=round(whole.offset),
        error_ns=round(whole.error),
    )


class _Peak(Struct, frozen=True):
    offset: float
    error: float
    strength: float
    runner_up: float
    lead: float
    """Standard errors between the two, on Fisher's scale."""
    intervals_count: int


def _scan(
    pairs: Sequence[tuple[Series, Curve]], spans: Sequence[tuple[float, float]], interval: float
) -> _Peak | None:
    """The best offset and the next best that does not belong to the same peak."""
    import numpy as np

    if not pairs:
        return None
    step = max(interval / 4, 2 * RANGE_NS / MAX_LAGS)
    half = int(RANGE_NS / step)
    lags: Floats = np.arange(-half, half + 1, dtype=np.float64) * step
    sums = np.zeros((4, len(lags)))
    memory = 0.0
    for counter, traffic_of in pairs:
        part, phi = _moments(counter, traffic_of, spans, lags)
        sums += part
        memory = max(memory, phi)
    count, xy, xx, yy = sums
    enough = count >= max(MIN_INTERVALS, 0.5 * count.max(initial=0.0))
    scale = np.sqrt(xx * yy)
    rho = np.divide(xy, scale, out=np.full(len(lags), -1.0), where=enough & (scale > 0))
    best = int(np.argmax(rho))
    if rho[best] <= 0:
        return None
    strength = float(rho[best])
    left, right = best, best
    while left > 0 and rho[left - 1] > strength / 2:
        left -= 1
    while right + 1 < len(lags) and rho[right + 1] > strength / 2:
        right += 1
    others = np.concatenate([rho[:left], rho[right + 1 :]])
    runner_up = float(others.max(initial=0.0))
    # Ports of one job move together: they count once. Readings that resemble those before them
    # count for less (Bartlett).
    effective = max(4.0, count[best] / len(pairs) * (1 - memory) / (1 + memory))
    sigma = 1 / np.sqrt(max(1.0, effective - 3))
    fisher = np.arctanh(np.clip(rho, -0.999, 0.999))
    lead = (fisher[best] - np.arctanh(min(runner_up, 0.999))) / (sigma * np.sqrt(2))
    close = fisher >= fisher[best] - sigma
    first, last = best, best
    while first > left and close[first - 1]:
        first -= 1
    while last < right and close[last + 1]:
        last += 1
    error = max((last - first) * step / 2, interval / 4) + step / 2
    return _Peak(float(lags[best]), error, strength, runner_up, float(lead), int(count[best]))


def _moments(
    counter: Series, traffic_of: Curve, spans: Sequence[tuple[float, float]], lags: Floats
) -> tuple[Floats, float]:
    """Count, xy, xx and yy of one port over all offsets, and how readings resemble the last."""
    import numpy as np

    from tracekit.stats import ar1

    edges = np.array(sorted(spans), float)
    reach = (edges[:, 0].min() - RANGE_NS, edges[:, 1].max() + RANGE_NS)
    keep = (
        (counter.times[:-1] >= reach[0])
        & (counter.times[1:] <= reach[1])
        & (counter.holes[1:] == 0)
    )
    at = np.flatnonzero(keep)[:MAX_INTERVALS]
    begin, end = counter.times[at], counter.times[at + 1]
    x = (counter.totals[at + 1] - counter.totals[at]) / (end - begin)
    # What of an interval the traces cover, by the sum of all stretches before a moment.
    marks = edges.ravel()
    covered = np.concatenate(
        [[0.0], np.cumsum(np.diff(marks) * (np.arange(len(marks) - 1) % 2 == 0))]
    )
    shifted_begin = begin[None, :] - lags[:, None]
    shifted_end = end[None, :] - lags[:, None]
    inside = np.interp(shifted_end, marks, covered) - np.interp(shifted_begin, marks, covered)
    good = inside >= 0.99 * (end - begin)[None, :]
    moved = np.interp(shifted_end, traffic_of.times, traffic_of.totals) - np.interp(
        shifted_begin, traffic_of.times, traffic_of.totals
    )
    y = moved / (end - begin)[None, :]
    count = good.sum(axis=1).astype(float)
    share = np.divide(1.0, count, out=np.zeros_like(count), where=count > 0)[:, None]
    dx = np.where(good, x[None, :] - (good * x[None, :]).sum(axis=1, keepdims=True) * share, 0.0)
    dy = np.where(good, y - (good * y).sum(axis=1, keepdims=True) * share, 0.0)
    # Each port counts for its readings, not for its bytes.
    sx = np.sqrt((dx * dx).sum(axis=1) * share[:, 0])[:, None]
    sy = np.sqrt((dy * dy).sum(axis=1) * share[:, 0])[:, None]
    dx = np.divide(dx, sx, out=np.zeros_like(dx), where=sx > 0)
    dy = np.divide(dy, sy, out=np.zeros_like(dy), where=sy > 0)
    sums = np.stack([count, (dx * dy).sum(axis=1), (dx * dx).sum(axis=1), (dy * dy).sum(axis=1)])
    phi = float(max(0.0, ar1(x[None, :])[0])) ** 2 if len(x) > 2 else 0.0
    return sums, phi


def rows_of(
    series: Sequence[Series],
    ports: Sequence[Mapping[str, Any]],
    curves: Mapping[tuple[int, str], Curve],
    windows: Mapping[int, Sequence[Window]],
    origin_ns: int,
) -> list[dict[str, Any]]:
    """The rows of ``counter_clock``: one an attempt and node that counts bytes."""
    rows = []
    for attempt, of_attempt in sorted(windows.items()):
        host_of = {(p["node"], p["port"]): p["host"] for p in ports if p["attempt"] == attempt}
        captures: dict[int, tuple[float, float]] = {}
        for w in of_attempt:
            low, high = captures.get(w.capture_id, (w.start_ns, w.end_ns))
            captures[w.capture_id] = (min(low, w.start_ns), max(high, w.end_ns))
        spans = union([(a - origin_ns, b - origin_ns) for a, b in captures.values()])
        by_node: dict[str | None, list[tuple[Series, Curve]]] = defaultdict(list)
        for counter in series:
            if counter.counter not in ("rx_bytes", "tx_bytes"):
                continue
            known = curves.get((attempt, host_of.get((counter.node, counter.port)) or ""))
            by_node[counter.node] += [(counter, known)] if known is not None else []
        for node, pairs in sorted(by_node.items(), key=lambda n: n[0] or ""):
            estimated = estimate(pairs, spans)
            rows.append({"attempt": attempt, "node": node, **asdict(estimated)})
    return rows


def remark(row: Mapping[str, Any]) -> str:
    """What a reader of the report should know of a clock that is off."""
    offset_s, error_s = row["offset_ns"] / 1e9, row["error_ns"] / 1e9
    way = "ahead of" if offset_s > 0 else "behind"
    return (
        f"the clock of the counters of {row['node'] or 'an unnamed node'} is {abs(offset_s):.3g} s "
        f"(within {error_s:.2g} s) {way} the traces', by the traffic of the collectives: they are "
        "read at the job's time where steps are compared"
    )
