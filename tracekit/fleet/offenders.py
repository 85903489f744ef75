"""Repeat offenders: hosts, GPUs, ports and racks on which findings lie more often than on others.

A place that is used more has more findings by chance alone, and among thousands of places some
have many. So each is compared with what the others' rate would give for as often as it was used
(binomial), over the last two nights and over four weeks, and in each the false discovery rate over
all places is held (Benjamini and Hochberg). What is counted over two nights is asked anew each
night, and so is taken times as often as four weeks have such nights. Who is found so is no longer
one of the others: all are asked again without, until nobody more is found, so that a known offender
hides no second one. Runs of one job on one night share their causes: on each place they count once,
as bad where one of them is, and as likely to be as all of them together.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from tracekit.fleet.limits import Limits
from tracekit.stats import false_discovery

Row = Mapping[str, Any]
KINDS = ("gpu", "link", "host")
"""Those that have a table, narrowest first."""
SHOWN_RUNS = 3
Families = Mapping[str, str | None]
"""Family of each run."""
Accused = frozenset[tuple[str, str]]
"""Kind and name of places that were found."""


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
    """Part of the others' runs with a finding on them; of a rack, of other racks' hosts."""
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
    hosts: tuple[tuple[str, int], ...] = ()
    """Of a rack: its hosts with findings and in how many runs, the worst first."""


@dataclass(frozen=True, slots=True)
class _Place:
    kind: str
    name: str
    runs: tuple[Row, ...]
    """In the order in which they ran, by date. Of a rack, those of its hosts."""

    @property
    def bad(self) -> tuple[Row, ...]:
        return tuple(r for r in self.runs if r["rules"])

    @property
    def count(self) -> int:
        return len(self.runs)

    @property
    def bad_hosts(self) -> tuple[tuple[str, int], ...]:
        """Hosts of a rack with findings, and in how many runs: the worst first."""
        if self.kind != "rack":
            return ()
        counts = Counter(r["host"] for r in self.bad)
        return tuple(sorted(counts.items(), key=lambda c: (-c[1], c[0])))

    def cases(self, families: Families) -> list[tuple[bool, int]]:
        """Of each job's night here whether a finding lies on it, and how many rows it has.

        Without the worst host of a rack: what lies on one host alone is that host's.
        """
        worst = self.bad_hosts[0][0] if self.bad_hosts else None
        found: dict[tuple[str, str], tuple[bool, int]] = {}
        for row in self.runs:
            if worst is None or row["host"] != worst:
                key = (row["date"], families.get(row["run"]) or row["run"])
                is_bad, count = found.get(key, (False, 0))
                found[key] = (is_bad or bool(row["rules"]), count + 1)
        return [*found.values()]

    def since(self) -> str:
        """The date from which on its rate differs most from the one before (likelihood)."""
        is_bad = [bool(r["rules"]) for r in self.runs]
        starts = [i for i, bad in enumerate(is_bad) if bad]
        start = max(starts, key=lambda i: _fit(is_bad[:i]) + _fit(is_bad[i:]))
        return str(self.runs[start]["date"])


def offenders(
    places: Mapping[str, Sequence[Row]], families: Families, limits: Limits, until: str
) -> list[Offender]:
    """Offenders among the rows of the tables ``host``, ``gpu`` and ``link`` by kind, up to a date.

    ``families`` says which runs are of one job. New is what the rows before that date did not show.
    """
    before = {k: [r for r in rows if r["date"] < until] for k, rows in places.items()}
    yesterday = _days_before(until, 1)
    known = {(o.kind, o.name) for o in _found(before, families, limits, yesterday, set())}
    return _found(places, families, limits, until, known)


def _days_before(day: str, count: int) -> str:
    return (date.fromisoformat(day) - timedelta(days=count)).isoformat()


@dataclass(frozen=True, slots=True)
class _Tested:
    place: _Place
    days: int
    others_ratio: float
    p_value: float
    """Of so many bad runs in any span of four weeks that is as long as this, or as the place was
    seen."""


def _found(
    places: Mapping[str, Sequence[Row]],
    families: Families,
    limits: Limits,
    until: str,
    known: set[tuple[str, str]],
) -> list[Offender]:
    racked = [{**r, "rack": rack} for r in places.get("host", ()) if (rack := r.get("rack"))]
    rows = {**{kind: places.get(kind, ()) for kind in KINDS}, "rack": racked}
    recent = _days_before(until, limits.quiet_days - 1)
    best: dict[tuple[str, str], Offender] = {}
    everywhere: list[_Tested] = []
    accused: Accused = frozenset()
    while True:
        judged = _judged(rows, families, limits, until, accused)
        everywhere = everywhere or [t for t, _ in judged]
        found: set[tuple[str, str]] = set()
        # Of both spans the longer one says more, where both tell. Without a bad run of late it was
        # drained, or repaired.
        for one, q in judged:
            key = (one.place.kind, one.place.name)
            if q <= limits.max_q:
                found.add(key)
                if max(r["date"] for r in one.place.bad) >= recent:
                    best[key] = _offender(one, q, key not in known)
        if not found:
            break
        accused |= found
    narrowest = _narrowest([*best.values()], everywhere, limits)
    return sorted(narrowest, key=lambda o: (o.q_value, -o.bad_count, o.kind, o.name))


def _judged(
    rows: Mapping[str, Sequence[Row]],
    families: Families,
    limits: Limits,
    until: str,
    accused: Accused,
) -> list[tuple[_Tested, float]]:
    """Every place that is not accused yet by both spans, the shorter first, with its q-value among
    those of the span: what was found before makes nobody else more suspect."""
    judged: list[tuple[_Tested, float]] = []
    for days in sorted({limits.recent_days, limits.window_days}):
        tested = [
            t
            for kind, of_kind in rows.items()
            for t in _tested(kind, of_kind, days, families, limits, until, accused)
            if (t.place.kind, t.place.name) not in accused
        ]
        judged += zip(tested, false_discovery([t.p_value for t in tested]), strict=True)
    return judged


def _tested(
    kind: str,
    rows: Sequence[Row],
    days: int,
    families: Families,
    limits: Limits,
    until: str,
    accused: Accused,
) -> list[_Tested]:
    """Every place of a kind over so many days, against the others of its kind."""
    whole = _places(kind, rows, _days_before(until, limits.window_days - 1), until)
    usual = {p.name: ratio for p, ratio in _others(whole, None, accused)}
    listed = _places(kind, rows, _days_before(until, days - 1), until)
    first = {p.name: p.runs[0]["date"] for p in whole}
    tests = []
    for place, ratio in _others(listed, usual if days < limits.window_days else None, accused):
        cases = place.cases(families)
        bad_count = sum(is_bad for is_bad, _ in cases)
        p_value = 1.0
        if bad_count >= limits.min_bad_count:
            p_value = at_least(bad_count, [1 - (1 - ratio) ** count for _, count in cases])
            # Four weeks have as many such spans, and each was asked or will be.
            seen_days = 1 + (date.fromisoformat(until) - date.fromisoformat(first[place.name])).days
            p_value = min(1.0, p_value * limits.window_days / min(days, seen_days))
        tests.append(_Tested(place, days, ratio, p_value))
    return tests


def _others(
    places: Sequence[_Place], usual: Mapping[str, float] | None, accused: Accused
) -> Iterator[tuple[_Place, float]]:
    """Each place, and how often others of its kind are bad that nobody accuses.

    With one finding and one clean run more than were seen: others that were never bad are not known
    never to be. Where the rate over a longer time is known (``usual``), that finding comes with as
    many runs as there it takes: two nights alone tell a rate badly. Where most runs are on places
    that are accused, the rest is no measure of what is usual, and all count.
    """
    of_all = [(len(p.bad), p.count) for p in places]
    counts = of_all
    if accused:
        named = {k: {name for kind, name in accused if kind == k} for k, _ in accused}
        kept = [[r for r in p.runs if not _is_in(r, named)] for p in places]
        counts = [(sum(bool(r["rules"]) for r in runs), len(runs)) for runs in kept]
        if 2 * sum(count for _, count in counts) < sum(count for _, count in of_all):
            counts = of_all
    bad, count = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    for place, (own_bad, own_count) in zip(places, counts, strict=True):
        more = 2.0 if usual is None else 1 / usual[place.name]
        yield place, (bad - own_bad + 1) / (count - own_count + more)


def _is_in(row: Row, named: Mapping[str, Collection[str]]) -> bool:
    """Whether its place is one of these, by kind, or the host or rack of its place."""
    return any(row.get(kind) in names for kind, names in named.items())


def _places(kind: str, rows: Sequence[Row], first: str, until: str) -> list[_Place]:
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if first <= row["date"] <= until:
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


def _offender(one: _Tested, q: float, is_new: bool) -> Offender:
    place = one.place
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
        bad_count=len({r["run"] for r in bad}),
        runs_count=len({r["run"] for r in place.runs}),
        others_ratio=one.others_ratio,
        q_value=q,
        days=one.days,
        rules=tuple(sorted(counts, key=lambda r: (-counts[r], r))),
        gpu_hours_per_day=max(costs, default=None),
        runs=tuple(dict.fromkeys(r["run"] for r in bad))[-SHOWN_RUNS:],
        is_new=is_new,
        hosts=place.bad_hosts,
    )


def _narrowest(
    candidates: Sequence[Offender], tests: Sequence[_Tested], limits: Limits
) -> list[Offender]:
    """Of offenders whose bad runs are nearly the same ones, the narrowest; and of a rack that
    stands out without its worst host, no host apart: its sentence names them."""
    bad = {(t.place.kind, t.place.name, t.days): {r["run"] for r in t.place.bad} for t in tests}

    def runs(offender: Offender, days: int) -> set[str]:
        return bad.get((offender.kind, offender.name, days), set())

    racks = [o for o in candidates if o.kind == "rack"]
    hosts_told = {host for rack in racks for host, _ in rack.hosts}
    narrowest: list[Offender] = []
    for offender in sorted(
        (o for o in candidates if o.kind != "rack"), key=lambda o: (KINDS.index(o.kind), o.name)
    ):
        bad_runs = runs(offender, offender.days)
        is_told = (offender.kind == "host" and offender.name in hosts_told) or any(
            other.kind != offender.kind
            and len(bad_runs & runs(other, offender.days)) >= limits.same_runs_ratio * len(bad_runs)
            for other in narrowest
        )
        if not is_told:
            narrowest.append(offender)
    return narrowest + racks


def at_least(bad: int, chances: Sequence[float]) -> float:
    """Chance that so many of these come true, each by its own (Poisson binomial; where all are
    equal, the binomial one)."""
    if bad <= 0:
        return 1.0
    # Chance of exactly 0, 1, ... so far; the last is of so many or more, and is only added to.
    exactly = [1.0] + [0.0] * bad
    for chance in chances:
        exactly[bad] += exactly[bad - 1] * chance
        for k in range(bad - 1, 0, -1):
            exactly[k] += (exactly[k - 1] - exactly[k]) * chance
        exactly[0] *= 1 - chance
    return min(1.0, exactly[bad])
