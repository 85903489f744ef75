"""What the difference of two mean steps is made of: contributions that add up to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from tracekit.comparison import interval
from tracekit.comparison.model import Cause, Contribution, Interval, StepChange
from tracekit.comparison.path import Part
from tracekit.comparison.sides import Row, RunRows
from tracekit.findings import Finding
from tracekit.rules import rule
from tracekit.rules.range_names import BESIDE_TRAINING, class_of
from tracekit.rules.steps import SAME_RATIO

if TYPE_CHECKING:
    from tracekit.comparison.interval import Floats

SMALL_RATIO = 0.002
"""A rank's part of a cause below this share of the step, on both sides, counts for all ranks: of
many equal ranks one is always a little beyond its peers."""
FOLDED_RATIO = 0.25
"""What all ranks have less on the path belongs to the rank that has more there, unless the ranks
together did less of it by this share of it."""
AFFECTED_RATIO = 0.5
"""A step counts as affected where a part differs from the other side's mean by this share of the
most that it does."""
METHOD = "block bootstrap over steps, and 1 % for what single runs differ by"
METHOD_OF_RUNS = "bootstrap over runs, then over blocks of their steps"
NO_METHOD = "none: too few steps"
_SLOW_LINKS = frozenset(
    {"slow link", "slow transfers within hosts", "slow transfers between hosts"}
)
"""What a fault makes that shows as transfer."""


class Place(NamedTuple):
    """What a contribution is of."""

    cause: str
    ranks: tuple[int, ...]
    operation: str


class Measured(Struct, frozen=True):
    """Steps of both sides as tables: one a run, a row a step, a column a place, in seconds."""

    places: tuple[Place, ...]
    baseline: tuple[Floats, ...]
    candidate: tuple[Floats, ...]

    @classmethod
    def of(cls, baseline: Sequence[RunRows], candidate: Sequence[RunRows]) -> Measured:
        """The steps of both sides by place. Every run must have a step."""
        import numpy as np

        runs = (*baseline, *candidate)
        places = _places(runs)
        order = tuple(sorted(set(places.values())))
        columns = {place: index for index, place in enumerate(order)}

        def table(run: RunRows) -> Floats:
            rows = np.zeros((len(run.step_charges), len(order)))
            for row, charges in zip(rows, run.step_charges, strict=True):
                for part, ns in charges.items():
                    row[columns[places[part]]] += ns / 1e9
            return rows

        return cls(order, tuple(map(table, baseline)), tuple(map(table, candidate)))

    @property
    def has_bounds(self) -> bool:
        """Whether every run has steps enough for an interval."""
        return all(len(run) >= interval.MIN_STEPS for run in (*self.baseline, *self.candidate))


def attribution(
    baseline: Sequence[RunRows], candidate: Sequence[RunRows]
) -> tuple[StepChange, tuple[Contribution, ...]]:
    """The difference of the mean steps, and what it is made of, the largest first."""
    tables = _folded(Measured.of(baseline, candidate), baseline, candidate)
    base_s, other_s = interval.mean_of(tables.baseline), interval.mean_of(tables.candidate)
    step_s, difference_s = float(base_s.sum()), float((other_s - base_s).sum())
    low: Sequence[float | None] = [None] * len(base_s)
    high: Sequence[float | None] = [None] * len(base_s)
    least, most = None, None
    if tables.has_bounds:
        lows, highs, total = interval.bounds(tables.baseline, tables.candidate)
        low, high = lows.tolist(), highs.tolist()
        least, most = float(total[0]), float(total[1])
    several = len(baseline) > 1 or len(candidate) > 1
    change = StepChange(
        difference_s=difference_s,
        low_s=least,
        high_s=most,
        ratio=difference_s / step_s,
        low_ratio=None if least is None else least / step_s,
        high_ratio=None if most is None else most / step_s,
        is_significant=_is_significant(difference_s, least, most, step_s),
        confidence_ratio=interval.CONFIDENCE,
        method=NO_METHOD if least is None else METHOD_OF_RUNS if several else METHOD,
    )
    contributions = [
        _contribution(
            tables,
            index,
            Interval(
                difference_s=float(other_s[index] - base_s[index]),
                low_s=low[index],
                high_s=high[index],
            ),
            step_s,
            (baseline, candidate),
        )
        for index in range(len(tables.places))
    ]
    contributions.sort(key=lambda c: (-abs(c.difference.difference_s), c.cause, c.ranks))
    # A few long evaluations make a log's mean uncertain, and its steps no less sure.
    whole = next((c for c in contributions if c.cause == "step"), None)
    if whole and whole.is_significant and whole.difference.difference_s * difference_s > 0:
        change = replace(change, is_significant=True)
    return change, tuple(contributions)


def _is_significant(
    difference_s: float, low_s: float | None, high_s: float | None, step_s: float
) -> bool:
    """Whether a difference is there and worth a word: 0 lies outside, and it is 1 % of a step."""
    if low_s is None or high_s is None:
        return False
    return not low_s <= 0 <= high_s and abs(difference_s) >= SAME_RATIO * step_s


# ---------------------------------------------------------------- places


def _mean_charges(run: RunRows) -> dict[Part, float]:
    sums: dict[Part, float] = defaultdict(float)
    for charges in run.step_charges:
        for part, ns in charges.items():
            sums[part] += ns
    return {part: ns / len(run.step_charges) for part, ns in sums.items()}


def _places(runs: Sequence[RunRows]) -> dict[Part, Place]:
    """The place of each part of any run."""
    means = [_mean_charges(run) for run in runs]
    largest: dict[Part, float] = defaultdict(float)
    for charges in means:
        step_ns = sum(charges.values())
        for part, ns in charges.items():
            largest[part] = max(largest[part], ns / step_ns)
    large = {p for p, ratio in largest.items() if p.rank is not None and ratio >= SMALL_RATIO}
    neighbours = _neighbours(runs)
    places = {}
    for part in largest:
        ranks: tuple[int, ...] = ()
        if part in large and part.rank is not None:
            shared = neighbours.get(part.rank, (part.rank,))
            together = tuple(r for r in shared if part._replace(rank=r) in large)
            ranks = together or (part.rank,)
        places[part] = Place(part.cause, ranks, part.operation or "")
    return places


def _neighbours(runs: Sequence[RunRows]) -> dict[int, tuple[int, ...]]:
    """The ranks of each rank's host, where every run puts the same ranks together and hosts are
    several: what several ranks of a host have beyond all others is the host's."""
    layouts = [_by_host(run) for run in runs]
    if any(layout != layouts[0] for layout in layouts) or len(layouts[0]) < 2:
        return {}
    return {rank: ranks for ranks in layouts[0] for rank in ranks if len(ranks) > 1}


def _by_host(run: RunRows) -> frozenset[tuple[int, ...]]:
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, host in sorted(run.hosts.items()):
        ranks[host].append(rank)
    return frozenset(map(tuple, ranks.values()))


def _folded(
    tables: Measured, baseline: Sequence[RunRows], candidate: Sequence[RunRows]
) -> Measured:
    """The same, with one change where a rank has more of the path and all others less.

    Work that moved to one rank is less on all others, and of a pipeline a slower stage takes the
    place of others on the path: both are one change, of that rank. Where all ranks together did
    less, there are two.
    """
    import numpy as np

    moved = (interval.mean_of(tables.candidate) - interval.mean_of(tables.baseline)).tolist()
    into: dict[int, int] = {}
    for index, place in enumerate(tables.places):
        if place.ranks:
            continue
        others = [
            i
            for i, other in enumerate(tables.places)
            if other.ranks and other.cause == place.cause and moved[i] * moved[index] < 0
        ]
        largest = max(others, key=lambda i: abs(moved[i]), default=None)
        if largest is None or abs(moved[largest]) < abs(moved[index]):
            continue
        together_s = _own_s(place.cause, candidate) - _own_s(place.cause, baseline)
        sign = 1 if moved[largest] > 0 else -1
        if sign * together_s >= -FOLDED_RATIO * abs(moved[index]):
            into[index] = largest
    indices = [index for index in range(len(tables.places)) if index not in into]

    def folded(run: Floats) -> Floats:
        run = run.copy()
        for index, largest in into.items():
            run[:, largest] += run[:, index]
        return np.asarray(run[:, indices])

    return Measured(
        tuple(tables.places[index] for index in indices),
        tuple(map(folded, tables.baseline)),
        tuple(map(folded, tables.candidate)),
    )


def _own_s(cause: str, runs: Sequence[RunRows]) -> float:
    """Seconds that a mean rank of a mean run spends on a cause in a step, on the path or beside."""
    means = [fmean(rank_ns[cause] for rank_ns in run.own_ns.values()) for run in runs if run.own_ns]
    return fmean(means) / 1e9 if means else 0.0


# ---------------------------------------------------------------- a contribution


def _contribution(
    tables: Measured,
    index: int,
    difference: Interval,
    step_s: float,
    sides: tuple[Sequence[RunRows], Sequence[RunRows]],
) -> Contribution:
    place = tables.places[index]
    more, less = sides[::-1] if difference.difference_s > 0 else sides
    # Of a part too small to be called a change, a finding about its ranks says nothing.
    is_worth = abs(difference.difference_s) >= SAME_RATIO * step_s
    findings = _findings(place, more, less) if is_worth else ()
    detail, detail_s = _detail(place, *sides, is_more=difference.difference_s > 0)
    base_s = float(interval.mean_of(tables.baseline)[index])
    other_s = float(interval.mean_of(tables.candidate)[index])
    # Nothing in a trace says whose link is slow: what a diagnosis knows by its counters does.
    linked = findings if place.cause == "transfer" else ()
    ranks = place.ranks or tuple(sorted({r for f in linked for r in f.scope.ranks}))
    hosts = {run.hosts[r] for run in more for r in ranks if r in run.hosts}
    stages = {run.stages[r] for run in more for r in ranks if r in run.stages}
    return Contribution(
        cause=cast("Cause", place.cause),
        ranks=ranks,
        hosts=tuple(sorted(hosts)),
        stage=next(iter(stages)) if len(stages) == 1 else None,
        operation=place.operation or None,
        baseline_s=base_s,
        candidate_s=other_s,
        difference=difference,
        is_significant=_is_significant(
            difference.difference_s, difference.low_s, difference.high_s, step_s
        ),
        detail=detail,
        detail_s=detail_s,
        affected_steps_count=None
        if any(run.is_by_log for side in sides for run in side)
        else _affected(tables, index, base_s, other_s),
        findings=tuple(f.id for f in findings),
    )


def _affected(tables: Measured, index: int, base_s: float, other_s: float) -> int | None:
    """In how many steps of the side that has more of a part it is that much more."""
    usual_s, runs = (base_s, tables.candidate) if other_s > base_s else (other_s, tables.baseline)
    beyond = [float(v) - usual_s for run in runs for v in run[:, index]]
    most = max(beyond)
    return sum(v >= AFFECTED_RATIO * most for v in beyond) if most > 0 else None


def _findings(
    place: Place, more: Sequence[RunRows], less: Sequence[RunRows]
) -> tuple[Finding, ...]:
    """Findings of the side that has more that are about this place, and no symptoms."""
    known = {f.id for run in less for f in run.document.findings}
    findings_here: dict[str, Finding] = {}
    for run in more:
        for finding in run.document.findings:
            fired = rule(finding.rule)
            if finding.explained_by or not fired.names_culprit or finding.id in known:
                continue
            if place.cause == "transfer":
                is_here = not _SLOW_LINKS.isdisjoint({fired.sees, *fired.explains, *fired.absorbs})
            else:
                is_here = finding.scope.ranks == (place.ranks or run.ranks)
            if is_here:
                findings_here.setdefault(finding.id, finding)
    return tuple(findings_here.values())


# ---------------------------------------------------------------- what of it


def _detail(
    place: Place, baseline: Sequence[RunRows], candidate: Sequence[RunRows], *, is_more: bool
) -> tuple[str | None, float | None]:
    """The part by name whose time moved most in this direction, of those that may make a cause."""
    before = _named(place, baseline)
    after = _named(place, candidate)
    moved = {
        name: (after.get(name, 0.0) - before.get(name, 0.0)) / 1e9 for name in {*before, *after}
    }
    sign = 1 if is_more else -1
    if not moved:
        return None, None
    name = max(moved, key=lambda n: (sign * moved[n], n))
    return (name, moved[name]) if sign * moved[name] > 0 else (None, None)


def _named(place: Place, runs: Sequence[RunRows]) -> dict[str, float]:
    """ns of a mean step by name, of a mean rank of the place's, over runs."""
    sums: dict[str, float] = defaultdict(float)
    for run in runs:
        ranks = place.ranks or run.ranks
        chosen = frozenset(ranks)
        for row in run.of("self_time"):
            if row["rank"] in chosen and (name := _name_of(place.cause, row)):
                sums[name] += float(row["self_ns"]) / len(chosen) / len(runs)
    return sums


def _name_of(cause: str, row: Row) -> str | None:
    """What a part is called within a cause; None where it is none of it."""
    path, kind = str(row["path"]), str(row["kind"])
    if cause in BESIDE_TRAINING:
        return path.rpartition("/")[2] if class_of(path.split("/")) == cause else None
    if class_of(path.split("/")) in BESIDE_TRAINING:
        return None
    if cause == "compute":
        return str(row["name"]) if kind in ("operator", "kernel") else None
    if cause == "copies":
        return str(row["name"]) if kind == "copy" else None
    if cause == "idle" and kind in ("pause", "range", "call", "between"):
        where = f" in {path}" if path else ""
        if kind == "pause":  # its name says between what
            return f"{row['name']}{where}"
        return f"within {row['name']}{where}" if row["name"] else f"between calls{where}"
    return None


def mean_step_s(run: RunRows) -> float | None:
    """The run's mean step; None without steps."""
    sums = [sum(charges.values()) for charges in run.step_charges]
    return fmean(sums) / 1e9 if sums else None
