"""Repeat offenders: hosts, GPUs, ports and racks on which findings lie more often than on others.

A place that is used more has more findings by chance alone, and among thousands of places some
have many. So each is compared with what the others' rate would give for as often as it was used
(binomial), over the last two nights and over four weeks, and in each the false discovery rate over
all places is held (Benjamini and Hochberg). What is counted over two nights is asked anew each
night, and so is taken times as often as four weeks have such nights. All of this is asked of all
findings, and of major and critical ones alone, since a place that costs a job much more than
findings usually do is told by fewer runs; each is taken twice for it. Who is found so is no longer
one of the others: all are asked again without, until nobody more is found, so that a known offender
hides no second one. Runs of one job on one night share their causes: on each place they count once,
as bad where one of them is, and as likely to be as all of them together.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import cached_property
from itertools import product
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tracekit.findings import Severity
from tracekit.fleet.limits import Limits
from tracekit.stats import false_discovery

Row = Mapping[str, Any]
KINDS = ("gpu", "link", "host")
"""Those that have a table, narrowest first."""
SHOWN_RUNS = 3
GRADINGS = (True, False)
"""Whether grave findings alone count: asked of each place, so a chance is taken so often."""
MAX_MORE_COUNT = 3
"""Bad runs that a place on watch is asked for: who needs more is as the others are."""
Families = Mapping[str, str | None]
"""Family of each run."""
Accused = frozenset[tuple[str, str]]
"""Kind and name of places that were found."""


class Offender(Struct, frozen=True, kw_only=True):
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
    is_grave: bool = False
    """Whether major and critical findings alone count, on it and on others."""


class Watched(Struct, frozen=True, kw_only=True):
    """A place on which a finding lay on the date itself, and which is no offender: as evidence it
    is that run's own diagnosis, and says what would make it more."""

    kind: str
    name: str
    rules: tuple[str, ...]
    severity: str | None
    """The gravest of the date's; null: no run says."""
    bad_count: int
    runs_count: int
    """Runs of the last days, as many as ``days`` says."""
    days: int
    others_ratio: float
    """Part of the others' runs with a finding on them, as grave ones where this has such."""
    more_count: int
    """With so many more bad runs by the next date, and no clean one, it would be an offender."""
    runs: tuple[str, ...]
    """Its bad runs of the date."""


class Watch(Struct, frozen=True):
    """What a date alone shows, and how much of it is to be expected of any date."""

    places: tuple[Watched, ...]
    """Who needs least to be an offender first."""
    expected_count: float
    """Places with a finding on such a date by chance, at the others' rate."""


class _Place(Struct, frozen=True, dict=True):
    kind: str
    name: str
    runs: tuple[Row, ...]
    """In the order in which they ran, by date. Of a rack, those of its hosts."""

    @cached_property
    def bad(self) -> tuple[Row, ...]:
        return tuple(r for r in self.runs if r["rules"])

    @property
    def count(self) -> int:
        return len(self.runs)

    @property
    def machines(self) -> frozenset[str]:
        """Hosts that it is or was of; of a port nobody says."""
        if self.kind == "host":
            return frozenset((self.name,))
        return frozenset(r["host"] for r in self.runs if r.get("host"))

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
    places: Mapping[str, Sequence[Row]],
    families: Families,
    limits: Limits,
    until: str,
    known: Accused | None = None,
) -> list[Offender]:
    """Offenders among the rows of the tables ``host``, ``gpu`` and ``link`` by kind, up to a date.

    ``families`` says which runs are of one job. New is who is not ``known``; without that, whom the
    rows before that date did not show.
    """
    if known is None:
        before = {k: [r for r in rows if r["date"] < until] for k, rows in places.items()}
        yesterday = _days_before(until, 1)
        earlier = _found(before, families, limits, yesterday, frozenset())
        known = frozenset((o.kind, o.name) for o in earlier)
    return _found(places, families, limits, until, known)


def watch(
    places: Mapping[str, Sequence[Row]],
    families: Families,
    limits: Limits,
    until: str,
    known: Collection[Offender],
) -> Watch:
    """Places on which a finding lay on a date itself, and which are not among the offenders; of a
    host and its GPU or port with the same bad runs the narrower."""
    accused: Accused = frozenset((o.kind, o.name) for o in known)
    told = set(accused) | {("host", host) for o in known for host, _ in o.hosts}
    told_runs = [
        _Told(o.kind, frozenset(o.runs), frozenset(o.rules), one.machines)
        for o in known
        for one in [_place_of(o, places)]
    ]
    tests_count = sum(len({r[kind] for r in places.get(kind, ())}) for kind in KINDS)
    first = _days_before(until, limits.window_days - 1)
    expected = 0.0
    found: list[Watched] = []
    for kind, is_grave in product(KINDS, GRADINGS):
        rows = _graded({kind: places.get(kind, ())}, is_grave)[kind]
        for place, ratio in _others(_places(kind, rows, first, until), None, accused):
            today = [r for r in place.runs if r["date"] == until]
            expected += 0.0 if is_grave else 1 - (1 - ratio) ** len(today)
            bad = frozenset(r["run"] for r in today if r["rules"])
            rules = frozenset(rule for r in today for rule in r["rules"])
            this = _Told(kind, bad, rules, place.machines)
            if bad and (kind, place.name) not in told and not any(map(this.is_told_by, told_runs)):
                found.append(_watched(place, families, until, ratio, tests_count, limits))
                told.add((kind, place.name))
                told_runs.append(this)
    near = [w for w in found if w.more_count <= MAX_MORE_COUNT]
    return Watch(
        tuple(sorted(near, key=lambda w: (w.more_count, _weight(w), w.kind, w.name))), expected
    )


class _Told(Struct, frozen=True):
    """A place of which a night speaks, and which another may be a part of."""

    kind: str
    runs: frozenset[str]
    rules: frozenset[str]
    machines: frozenset[str]
    """Hosts that it is or was of; none: nobody says."""

    def is_told_by(self, other: _Told) -> bool:
        """Whether the other says the same, of a place of another kind: a port's packets are lost on
        its host, too. What befell two machines in the same run is two things."""
        return self.runs <= other.runs and self.may_be_of(other)

    def may_be_of(self, other: _Told) -> bool:
        """Whether it is of another kind and may be of the same machine, by the same rule."""
        is_apart = self.machines and other.machines and self.machines.isdisjoint(other.machines)
        return self.kind != other.kind and not is_apart and not self.rules.isdisjoint(other.rules)


def _place_of(offender: Offender, places: Mapping[str, Sequence[Row]]) -> _Place:
    rows = places.get(offender.kind, ())
    named = [r for r in rows if r.get(offender.kind) == offender.name]
    return _Place(offender.kind, offender.name, tuple(named))


def _weight(watched: Watched) -> int:
    return -Severity(watched.severity).weight if watched.severity else 0


def _watched(
    place: _Place,
    families: Families,
    until: str,
    ratio: float,
    tests_count: int,
    limits: Limits,
) -> Watched:
    first = _days_before(until, limits.recent_days - 1)
    recent = replace(place, runs=tuple(r for r in place.runs if r["date"] >= first))
    today = [r for r in recent.bad if r["date"] == until]
    cases = recent.cases(families)
    bad_count = sum(is_bad for is_bad, _ in cases)
    chances = [1 - (1 - ratio) ** count for _, count in cases]

    def q_value(more: int) -> float:
        of_all = [*chances, *[ratio] * more]
        return tests_count * _any_span(bad_count + more, of_all, limits.recent_days, limits)

    least = max(1, limits.min_bad_count - bad_count)
    enough = (n for n in range(least, MAX_MORE_COUNT + 1) if q_value(n) <= limits.max_q)
    severities = [Severity(r["severity"]) for r in today if r.get("severity")]
    return Watched(
        kind=place.kind,
        name=place.name,
        rules=tuple(sorted({rule for r in today for rule in r["rules"]})),
        severity=max(severities, key=lambda s: s.weight, default=None),
        bad_count=len({r["run"] for r in recent.bad}),
        runs_count=len({r["run"] for r in recent.runs}),
        days=limits.recent_days,
        others_ratio=ratio,
        more_count=next(enough, MAX_MORE_COUNT + 1),
        runs=tuple(dict.fromkeys(r["run"] for r in today))[-SHOWN_RUNS:],
    )


def _days_before(day: str, count: int) -> str:
    return (date.fromisoformat(day) - timedelta(days=count)).isoformat()


class _Tested(Struct, frozen=True):
    place: _Place
    days: int
    others_ratio: float
    p_value: float
    """Of so many bad runs in any span of four weeks that is as long as this, or as the place was
    seen."""
    is_grave: bool


def _found(
    places: Mapping[str, Sequence[Row]],
    families: Families,
    limits: Limits,
    until: str,
    known: Accused,
) -> list[Offender]:
    racked = [{**r, "rack": rack} for r in places.get("host", ()) if (rack := r.get("rack"))]
    rows = {**{kind: places.get(kind, ()) for kind in KINDS}, "rack": racked}
    recent = _days_before(until, limits.quiet_days - 1)
    best: dict[tuple[str, str], Offender] = {}
    everywhere: list[_Tested] = []
    accused: Accused = frozenset()
    listed = _listed(rows, limits, until)
    while True:
        judged = _judged(listed, families, limits, until, accused)
        everywhere = everywhere or [t for t, _ in judged]
        found: set[tuple[str, str]] = set()
        # Of both spans the longer one says more, where both tell, and of both gradings all
        # findings. Without a bad run of late it was drained, or repaired.
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


Listed = Mapping[tuple[bool, str], Mapping[int, Sequence[_Place]]]
"""Places of a grading and a kind, over so many days."""


def _listed(rows: Mapping[str, Sequence[Row]], limits: Limits, until: str) -> Listed:
    first = _days_before(until, limits.window_days - 1)
    recent = _days_before(until, limits.recent_days - 1)
    listed = {}
    for is_grave in GRADINGS:
        for kind, of_kind in _graded(rows, is_grave).items():
            whole = _places(kind, of_kind, first, until)
            late = [
                replace(place, runs=runs)
                for place in whole
                if (runs := tuple(r for r in place.runs if r["date"] >= recent))
            ]
            listed[is_grave, kind] = {limits.window_days: whole, limits.recent_days: late}
    return listed


def _judged(
    listed: Listed,
    families: Families,
    limits: Limits,
    until: str,
    accused: Accused,
) -> list[tuple[_Tested, float]]:
    """Every place that is not accused yet by both spans, the shorter first, and both gradings, with
    its q-value among those of the same: what was found before makes nobody else more suspect."""
    judged: list[tuple[_Tested, float]] = []
    for days in sorted({limits.recent_days, limits.window_days}):
        for is_grave in GRADINGS:
            tested = [
                t
                for (of_grave, _), spans in listed.items()
                if of_grave == is_grave
                for t in _tested(spans, days, families, limits, until, accused, is_grave)
                if (t.place.kind, t.place.name) not in accused
            ]
            judged += zip(tested, false_discovery([t.p_value for t in tested]), strict=True)
    return judged


def _graded(rows: Mapping[str, Sequence[Row]], is_grave: bool) -> Mapping[str, Sequence[Row]]:
    """Rows as if there were no findings but grave ones."""
    if not is_grave:
        return rows
    return {
        kind: [row if is_row_grave(row) or not row["rules"] else {**row, "rules": []} for row in of]
        for kind, of in rows.items()
    }


def is_row_grave(row: Row) -> bool:
    """Whether a major or critical finding lies on the place in this run. Rows of before fleet
    format 5 do not say."""
    return row.get("severity") in (Severity.MAJOR, Severity.CRITICAL)


def _tested(
    spans: Mapping[int, Sequence[_Place]],
    days: int,
    families: Families,
    limits: Limits,
    until: str,
    accused: Accused,
    is_grave: bool,
) -> list[_Tested]:
    """Every place of a kind over so many days, of those by days, against the others of its kind."""
    whole, listed = spans[limits.window_days], spans[days]
    usual = {p.name: ratio for p, ratio in _others(whole, None, accused)}
    first = {p.name: p.runs[0]["date"] for p in whole}
    tests = []
    for place, ratio in _others(listed, usual if days < limits.window_days else None, accused):
        p_value = 1.0
        # What lies on a place without so many bad runs need not be counted.
        cases = place.cases(families) if len(place.bad) >= limits.min_bad_count else []
        bad_count = sum(is_bad for is_bad, _ in cases)
        if bad_count >= limits.min_bad_count:
            seen_days = 1 + (date.fromisoformat(until) - date.fromisoformat(first[place.name])).days
            chances = [1 - (1 - ratio) ** count for _, count in cases]
            p_value = _any_span(bad_count, chances, min(days, seen_days), limits)
        tests.append(_Tested(place, days, ratio, p_value, is_grave))
    return tests


def _any_span(bad: int, chances: Sequence[float], days: int, limits: Limits) -> float:
    """Chance of so many in any span of four weeks, and by either grading: four weeks have as many
    spans, and each was asked or will be."""
    return min(1.0, at_least(bad, chances) * limits.window_days / days * len(GRADINGS))


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
        kept = [
            p if (runs := _without(p.runs, named)) is p.runs else replace(p, runs=runs)
            for p in places
        ]
        counts = [(len(p.bad), p.count) for p in kept]
        if 2 * sum(count for _, count in counts) < sum(count for _, count in of_all):
            counts = of_all
    bad, count = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    for place, (own_bad, own_count) in zip(places, counts, strict=True):
        more = 2.0 if usual is None else 1 / usual[place.name]
        yield place, (bad - own_bad + 1) / (count - own_count + more)


def _without(runs: tuple[Row, ...], named: Mapping[str, Collection[str]]) -> tuple[Row, ...]:
    """Rows of a place but those of these names, by kind: its own, its host's, its rack's."""
    for kind, names in named.items():
        if any(row.get(kind) in names for row in runs):
            runs = tuple(row for row in runs if row.get(kind) not in names)
    return runs


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
        is_grave=one.is_grave,
    )


def _narrowest(
    candidates: Sequence[Offender], tests: Sequence[_Tested], limits: Limits
) -> list[Offender]:
    """Of offenders whose bad runs are nearly the same ones, or would be no offender's without those
    of a narrower, the narrowest; and of a rack that stands out without its worst host, no host
    apart: its sentence names them."""
    bad = {
        (t.place.kind, t.place.name, t.days): {r["run"] for r in t.place.bad}
        for t in tests
        if not t.is_grave
    }
    machines = {(t.place.kind, t.place.name): t.place.machines for t in tests}
    counts = Counter((kind, days) for kind, _, days in bad)

    def told(offender: Offender, days: int) -> _Told:
        place = (offender.kind, offender.name)
        runs = frozenset(bad.get((*place, days), ()))
        return _Told(
            offender.kind, runs, frozenset(offender.rules), machines.get(place, frozenset())
        )

    def is_told(offender: Offender) -> bool:
        this = told(offender, offender.days)
        return any(
            this.may_be_of(that)
            and (
                len(this.runs & that.runs) >= limits.same_runs_ratio * len(this.runs)
                or (not this.runs.isdisjoint(that.runs) and is_chance(offender, this, that))
            )
            for that in (told(other, offender.days) for other in narrowest)
        )

    def is_chance(offender: Offender, this: _Told, that: _Told) -> bool:
        # What a port adds to the chance findings of its host's four weeks is still the port's.
        rest = at_least(len(this.runs - that.runs), [offender.others_ratio] * offender.runs_count)
        spans = limits.window_days / offender.days * len(GRADINGS)
        return rest * spans * counts[offender.kind, offender.days] > limits.max_q

    racks = [o for o in candidates if o.kind == "rack"]
    hosts_told = {host for rack in racks for host, _ in rack.hosts}
    narrowest: list[Offender] = []
    for offender in sorted(
        (o for o in candidates if o.kind != "rack"), key=lambda o: (KINDS.index(o.kind), o.name)
    ):
        if not (offender.kind == "host" and offender.name in hosts_told) and not is_told(offender):
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
