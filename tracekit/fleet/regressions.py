"""What got slower: runs of one family against the runs before, and what changed when they did.

A family's mean steps, in the order in which they ran, are split in two where that explains most of
them, and the medians of both parts compared by their spread (median and MAD, so that single runs do
not decide). What findings of machines and links cost is taken off first: they are told of the
machine, not of the program.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import pairwise
from statistics import median
from typing import Any

from msgspec import Struct

from tracekit.fleet.limits import LEAST_SIGMA, MAD_TO_SIGMA, MEDIAN_TO_MEAN_ERROR, Limits
from tracekit.fleet.offenders import at_least
from tracekit.stats import false_discovery

Row = Mapping[str, Any]
Change = tuple[str, str, str]
"""What changed, from what, to what."""

VERSIONS = ("framework", "torch_version", "cuda_version", "nccl_version", "driver_version")


class FamilyChange(Struct, frozen=True, kw_only=True):
    """One family that got slower."""

    family: str
    job_name: str | None
    date: str
    """Of the first slower run."""
    slower_ratio: float
    """Median after over median before, less 1."""
    before_s: float
    after_s: float
    before_count: int
    after_count: int
    z: float
    changes: tuple[Change, ...]
    new_hosts: tuple[str, ...]
    """Hosts of every run after and of none before."""
    new_rules: tuple[str, ...]
    """Rules that carry the verdict of most runs after, and of none before."""
    runs: tuple[str, ...]
    """The first runs after, for their reports."""


class Regression(Struct, frozen=True, kw_only=True):
    """What got slower at one date, for one cause as far as can be told."""

    change: Change | None
    """What all its families changed; None: nothing that they share."""
    date: str
    families: tuple[FamilyChange, ...]
    unmoved_count: int
    """Families with the same change that did not get slower: what speaks against it."""
    is_new: bool
    told_date: str | None = None
    """What the last night said instead of ``date``, where runs that came in since moved it."""

    @property
    def slower_ratio(self) -> float:
        """Median over its families."""
        return median(f.slower_ratio for f in self.families)

    @property
    def key(self) -> tuple[object, ...]:
        """The same regression on another night."""
        return (self.change,) if self.change else (None, *(f.family for f in self.families))


def regressions(jobs: Sequence[Row], limits: Limits, until: str) -> list[Regression]:
    """What got slower within these rows of the table ``job`` and still is at ``until``.

    New is what the rows before that date did not show, or showed at another time: a family that
    gets slower once more is told once more.
    """
    before = [j for j in jobs if j["date"] < until]
    earlier = {r.key: r.date for r in _grouped(_series(before, limits), limits)}
    return [
        Regression(
            change=r.change,
            date=r.date,
            families=r.families,
            unmoved_count=r.unmoved_count,
            is_new=r.key not in earlier
            or _days_between(earlier[r.key], r.date) > limits.same_cause_days,
        )
        for r in _grouped(_series(jobs, limits), limits)
    ]


def _days_between(one: str, other: str) -> int:
    return abs((date.fromisoformat(other) - date.fromisoformat(one)).days)


Series = dict[str, list[Row]]


def why_not_comparable(job: Row, limits: Limits) -> str | None:
    """Why a run's step may not be compared with those of its family; None where it may."""
    world, ranks = job["world_size"], job["ranks_count"]
    if job["step_mean_s"] is None:
        return "nothing marks its steps"
    if job["family"] is None:
        return "neither a job's name nor a description of model or batch says what ran"
    if job["place_cost_s"] is None or job["step_mean_s"] <= job["place_cost_s"]:
        return "what a fault of its machines or links costs is not known"
    if world is not None and ranks is not None and ranks < limits.min_traced_ratio * world:
        return "too few of its ranks were traced"
    return None


def _series(jobs: Sequence[Row], limits: Limits) -> Series:
    series: Series = defaultdict(list)
    for job in jobs:
        if why_not_comparable(job, limits) is None:
            series[job["family"]].append(job)
    for runs in series.values():
        runs.sort(key=lambda j: (j["date"], j["start_utc"] or "", j["run"]))
    return series


def own_step_s(job: Row) -> float:
    """The mean step without what machines and links cost of it."""
    return float(job["step_mean_s"] - job["place_cost_s"])


def _grouped(series: Series, limits: Limits) -> list[Regression]:
    """Families by what they changed when they got slower; of several changes the commonest."""
    changed = _beyond_chance(
        _together(_all_changed(series, limits), series, limits), series, limits
    )
    counts = Counter(change for each in changed for change in each.changes)
    moved = {each.family for each in changed}
    groups: dict[tuple[Change | None, str | None], list[FamilyChange]] = defaultdict(list)
    """By what changed, and by the family where nothing did, or at another time."""
    for each in sorted(changed, key=lambda c: (c.date, c.family)):
        common = max(each.changes, key=lambda c: (counts[c], c), default=None)
        first = groups[common, None][0].date if (common, None) in groups else each.date
        days = (date.fromisoformat(each.date) - date.fromisoformat(first)).days
        is_apart = common is None or days > limits.same_cause_days
        groups[common, each.family if is_apart else None].append(each)
    told = []
    for (change, _), families in groups.items():
        unmoved = 0
        if change is not None:
            unmoved = sum(
                name not in moved and change in _version_changes_anywhere(runs)
                for name, runs in series.items()
            )
        told.append(
            Regression(
                change=change,
                date=min(f.date for f in families),
                families=tuple(sorted(families, key=lambda f: (-f.slower_ratio, f.family))),
                unmoved_count=unmoved,
                is_new=False,
            )
        )
    return sorted(told, key=lambda r: (-r.slower_ratio * len(r.families), r.date, str(r.key)))


def _all_changed(series: Series, limits: Limits) -> list[_Changed]:
    return [c for name, runs in sorted(series.items()) if (c := _changed(name, runs, limits))]


def _together(told: Sequence[_Changed], series: Series, limits: Limits) -> list[_Changed]:
    """The same, but a family that changed nothing where it got slower is split some days later,
    where it made a change by which others got slower: runs that were slow by chance moved its date.

    Not where it was told before that change. Where too few runs came after it, another night tells.
    """
    common = {change for one in told for change in one.told.changes}
    moved = []
    for one in told:
        runs, family = series[one.told.family], one.told.family
        at = next(
            (
                k
                for k in range(one.told.before_count + 1, len(runs))
                if _days_between(one.told.date, runs[k]["date"]) <= limits.same_cause_days
                and common.intersection(_version_changes(runs[:k], runs[k:]))
            ),
            None,
        )
        if one.told.changes or at is None or family in _told_before(series, runs[at], limits):
            moved.append(one)
        elif at in _splits(runs, limits):
            moved.append(_changed_at(family, runs, at, limits) or one)
    return moved


def _told_before(series: Series, job: Row, limits: Limits) -> set[str]:
    """Families that the date before this job told."""
    before = {
        name: [r for r in runs if r["date"] < job["date"]] for name, runs in sorted(series.items())
    }
    return {f.family for f in _beyond_chance(_all_changed(before, limits), before, limits)}


def _beyond_chance(told: Sequence[_Changed], series: Series, limits: Limits) -> list[FamilyChange]:
    """Those changes that single slow runs do not explain.

    The spread says nothing of the few runs that are slow for reasons of their own, since a median
    leaves them out; but some of them in a row look like a level. So the slow runs after a change
    are compared with how often one is slow in a fleet where nothing changed (binomial; one more of
    each kind than was seen), times the places and the nights at which a family is tried within the
    window, and the false discovery rate is held over its families, as for offenders.
    """
    changed = {c.told.family: c for c in told}
    slow = count = 0
    for name, runs in series.items():
        before = own_logs(runs)[: changed[name].told.before_count if name in changed else None]
        usual = _usual(before, limits)
        slow += sum(v > usual for v in before)
        count += len(before)
    ratio = (slow + 1) / (count + 2)
    q_values = false_discovery(
        [
            min(
                1.0,
                limits.window_days
                * c.tried_count
                * at_least(c.slow_count, [ratio] * c.told.after_count),
            )
            if (c := changed.get(name))
            else 1.0
            for name in sorted(series)
        ]
    )
    return [
        changed[name].told
        for name, q in zip(sorted(series), q_values, strict=True)
        if name in changed and q <= limits.max_q
    ]


def own_logs(runs: Sequence[Row]) -> list[float]:
    """Logarithms of what the steps of some runs take by themselves."""
    return [math.log(own_step_s(job)) for job in runs]


def _usual(before: Sequence[float], limits: Limits) -> float:
    """What nearly all of these are below (logarithms)."""
    least = math.log1p(limits.min_slower_ratio) / 2
    return median(before) + max(limits.near_sigmas * _sigma(before), least)


class _Changed(Struct, frozen=True):
    told: FamilyChange
    slow_count: int
    """Runs after it that are beyond nearly all before."""
    tried_count: int
    """Places at which the family could have been split."""


def _changed(family: str, runs: Sequence[Row], limits: Limits) -> _Changed | None:
    """Where a family got slower, if it did and the last runs still are."""
    logs = own_logs(runs)
    splits = _splits(runs, limits)
    # Where both parts are closest to their medians: the furthest medians alone would lie a run or
    # two off, since these do not change a median.
    split = min(splits, key=lambda k: _away(logs[:k]) + _away(logs[k:]), default=None)
    if split is None:
        return None
    # A slow run just before an upgrade belongs to it by its step, and not by its versions.
    near = range(split - limits.min_after_count + 1, split + limits.min_after_count)
    split = min(
        (k for k in near if 0 < k < len(runs) and _versions(runs[k]) != _versions(runs[k - 1])),
        key=lambda k: abs(k - split),
        default=split,
    )
    if split not in splits:
        return None  # too few runs on one side: another night tells
    return _changed_at(family, runs, split, limits)


def _splits(runs: Sequence[Row], limits: Limits) -> range:
    """Where a family can be split: the first run after each."""
    return range(limits.min_before_count, len(runs) - limits.min_after_count + 1)


def _changed_at(family: str, runs: Sequence[Row], split: int, limits: Limits) -> _Changed | None:
    """That a family got slower at its run of that number, if it did and the last runs still are."""
    logs = own_logs(runs)
    z = _z(logs[:split], logs[split:])
    if z < limits.min_z:
        return None
    before, after = logs[:split], logs[split:]
    rise = median(after) - median(before)
    usual = _usual(before, limits)
    slow_count = sum(v > usual for v in after)
    late = after[-limits.min_after_count :]
    if (
        math.expm1(rise) < limits.min_slower_ratio
        or slow_count < limits.min_after_share_ratio * len(after)
        or median(late) <= usual  # it has passed
    ):
        return None
    old, new = runs[:split], runs[split:]
    rules = Counter(j["verdict_rule"] for j in new if j["verdict_rule"])
    known = {j["verdict_rule"] for j in old}
    told = FamilyChange(
        family=family,
        job_name=new[0]["job_name"],
        date=new[0]["date"],
        slower_ratio=math.expm1(rise),
        before_s=math.exp(median(before)),
        after_s=math.exp(median(after)),
        before_count=len(old),
        after_count=len(new),
        z=z,
        changes=_version_changes(old, new),
        new_hosts=tuple(
            sorted(set.intersection(*(set(j["hosts"] or ()) for j in new)) - _hosts(old))
        ),
        new_rules=tuple(sorted(r for r, n in rules.items() if r not in known and n > len(new) / 2)),
        runs=tuple(j["run"] for j in new[: limits.min_after_count]),
    )
    return _Changed(told, slow_count, len(_splits(runs, limits)))


def _away(values: Sequence[float]) -> float:
    middle = median(values)
    return math.fsum(abs(v - middle) for v in values)


def _sigma(values: Sequence[float]) -> float:
    """Spread by the MAD; larger where there are few, whose MAD is often too small by chance."""
    middle = median(values)
    mad = median(abs(v - middle) for v in values)
    return max(LEAST_SIGMA, MAD_TO_SIGMA * mad * (1 + 4 / len(values)))


def _z(before: Sequence[float], after: Sequence[float]) -> float:
    error = MEDIAN_TO_MEAN_ERROR * _sigma(before) * math.sqrt(1 / len(before) + 1 / len(after))
    return (median(after) - median(before)) / error


def _hosts(runs: Sequence[Row]) -> set[str]:
    return {host for job in runs for host in job["hosts"] or ()}


def _versions(job: Row) -> tuple[object, ...]:
    return tuple(job[name] for name in VERSIONS)


def _version_changes(old: Sequence[Row], new: Sequence[Row]) -> tuple[Change, ...]:
    """Versions that no run before had and every run after has."""
    changes = []
    for name in VERSIONS:
        before = {j[name] for j in old if j[name] is not None}
        after = {j[name] for j in new}
        if before and len(after) == 1 and None not in after and not before & after:
            last = next(j[name] for j in reversed(old) if j[name] is not None)
            changes.append((name, last, after.pop()))
    return tuple(changes)


def _version_changes_anywhere(runs: Sequence[Row]) -> set[Change]:
    return {
        (name, a[name], b[name])
        for name in VERSIONS
        for a, b in pairwise(runs)
        if a[name] is not None and b[name] is not None and a[name] != b[name]
    }
