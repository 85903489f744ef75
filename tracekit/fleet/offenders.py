"""Repeat offenders: hosts, GPUs and ports on which findings lie more often than on others.

A place that is used more has more findings by chance alone, and among thousands of places some
have many. So each is compared with what the others' rate would give for as often as it was used
(binomial), and the false discovery rate over all places is held (Benjamini and Hochberg). Runs of
one job on one night share their causes and are not independent: ``min_bad_count`` and the rate's
pseudo-count stand against that, and docs/fleet.md names it as a limit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from tracekit.fleet.limits import Limits
from tracekit.stats import false_discovery

Row = Mapping[str, Any]
KINDS = ("gpu", "link", "host")
"""Narrowest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offender:
    """A place on which findings lie far more often than on its like."""

    kind: str
    name: str
    since: str
    """Date of the bad run from which on it is most unlike before."""
    bad_count: int
    runs_count: int
    others_ratio: float
    """Part of the others' runs with a finding on them."""
    q_value: float
    days: int
    """Over how many days it was counted."""
    rules: tuple[str, ...]
    """Commonest first."""
    gpu_hours_per_day: float | None
    """The most that one of its findings costs; null: none is priced."""
    runs: tuple[str, ...]
    """The last bad runs, for their reports."""
    is_new: bool


@dataclass(frozen=True, slots=True)
class _Place:
    kind: str
    name: str
    runs: tuple[Row, ...]
    """In the order in which they ran, by date."""

    @property
    def bad(self) -> tuple[Row, ...]:
        return tuple(r for r in self.runs if r["rules"])

    @property
    def count(self) -> int:
        return len(self.runs)

    def since(self) -> str:
        """The date from which on its rate differs most from the one before (likelihood)."""
        is_bad = [bool(r["rules"]) for r in self.runs]
        starts = [i for i, bad in enumerate(is_bad) if bad]
        start = max(starts, key=lambda i: _fit(is_bad[:i]) + _fit(is_bad[i:]))
        return str(self.runs[start]["date"])


def offenders(places: Mapping[str, Sequence[Row]], limits: Limits, until: str) -> list[Offender]:
    """Offenders among the rows of the tables ``host``, ``gpu`` and ``link`` by kind, up to a date.

    New is what the rows before that date did not show.
    """
    before = {k: [r for r in rows if r["date"] < until] for k, rows in places.items()}
    yesterday = (date.fromisoformat(until) - timedelta(days=1)).isoformat()
    known = {(o.kind, o.name) for o in _found(before, limits, yesterday, set())}
    return _found(places, limits, until, known)


def _found(
    places: Mapping[str, Sequence[Row]],
    limits: Limits,
    until: str,
    known: set[tuple[str, str]],
) -> list[Offender]:
    tests: list[tuple[_Place, int, float]] = []
    p_values: list[float] = []
    for days in sorted({limits.recent_days, limits.window_days}):
        first = (date.fromisoformat(until) - timedelta(days=days - 1)).isoformat()
        for kind in KINDS:
            rows = [r for r in places.get(kind, ()) if first <= r["date"] <= until]
            listed = _places(kind, rows)
            bad, count = sum(len(p.bad) for p in listed), sum(p.count for p in listed)
            for place in listed:
                # One finding and one clean run more than were seen: others that were never bad
                # are not known never to be.
                others = (bad - len(place.bad) + 1) / (count - place.count + 2)
                tests.append((place, days, others))
                p_values.append(at_least(len(place.bad), place.count, others))
    recent = (date.fromisoformat(until) - timedelta(days=limits.recent_days - 1)).isoformat()
    best: dict[tuple[str, str], Offender] = {}
    for (place, days, others), q in zip(tests, false_discovery(p_values), strict=True):
        key = (place.kind, place.name)
        is_one = (
            q <= limits.max_q
            and len(place.bad) >= limits.min_bad_count
            and max(r["date"] for r in place.bad) >= recent  # else drained, or repaired
        )
        # Of both spans the longer one says more, where both tell.
        if is_one and (key not in best or days > best[key].days):
            best[key] = _offender(place, days, others, q, key not in known)
    narrowest = _narrowest([*best.values()], tests, limits)
    return sorted(narrowest, key=lambda o: (o.q_value, -o.bad_count, o.kind, o.name))


def _places(kind: str, rows: Sequence[Row]) -> list[_Place]:
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_name[row[kind]].append(row)
    return [
        _Place(kind, name, tuple(sorted(place_rows, key=lambda r: (r["date"], r["run"]))))
        for name, place_rows in sorted(by_name.items())
    ]


def _fit(is_bad: Sequence[bool]) -> float:
    """Log-likelihood of runs at their own rate."""
    count, bad = len(is_bad), sum(is_bad)
    if bad in (0, count):
        return 0.0
    return bad * math.log(bad / count) + (count - bad) * math.log1p(-bad / count)


def _offender(place: _Place, days: int, others: float, q: float, is_new: bool) -> Offender:
    bad = place.bad
    counts: dict[str, int] = defaultdict(int)
    for row in bad:
        for rule in row["rules"]:
            counts[rule] += 1
    costs = [r["gpu_hours_per_day"] for r in bad if r["gpu_hours_per_day"] is not None]
    return Offender(
        kind=place.kind,
        name=place.name,
        since=place.since(),
        bad_count=len(bad),
        runs_count=place.count,
        others_ratio=others,
        q_value=q,
        days=days,
        rules=tuple(sorted(counts, key=lambda r: (-counts[r], r))),
        gpu_hours_per_day=max(costs, default=None),
        runs=tuple(r["run"] for r in bad[-3:]),
        is_new=is_new,
    )


def _narrowest(
    candidates: Sequence[Offender],
    tests: Sequence[tuple[_Place, int, float]],
    limits: Limits,
) -> list[Offender]:
    """Of offenders whose bad runs are nearly the same ones, the narrowest."""
    bad = {
        (place.kind, place.name, days): {r["run"] for r in place.bad} for place, days, _ in tests
    }

    def runs(offender: Offender, days: int) -> set[str]:
        return bad.get((offender.kind, offender.name, days), set())

    narrowest: list[Offender] = []
    for offender in sorted(candidates, key=lambda o: (KINDS.index(o.kind), o.name)):
        bad_runs = runs(offender, offender.days)
        is_told = any(
            other.kind != offender.kind
            and len(bad_runs & runs(other, offender.days)) >= limits.same_runs_ratio * len(bad_runs)
            for other in narrowest
        )
        if not is_told:
            narrowest.append(offender)
    return narrowest


def at_least(bad: int, count: int, ratio: float) -> float:
    """Chance of so many of so many runs where each has a finding by that chance (binomial)."""
    if bad <= 0:
        return 1.0
    if ratio >= 1:
        return 1.0
    log, log_not = math.log(ratio), math.log1p(-ratio)

    def exactly(k: int) -> float:
        ways = math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        return math.exp(ways + k * log + (count - k) * log_not)

    return min(1.0, math.fsum(exactly(k) for k in range(bad, count + 1)))
