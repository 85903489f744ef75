"""What a night says: what got slower, who offends again, what was lost, and what was not seen."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import date, timedelta
from statistics import median
from typing import Any

from msgspec import Struct

from tracekit.findings import Severity, severity_of
from tracekit.fleet.limits import Limits
from tracekit.fleet.nights import Price, Told
from tracekit.fleet.offenders import KINDS, Offender, Watch, offenders, watch
from tracekit.fleet.regressions import Regression, regressions, why_not_comparable
from tracekit.fleet.rollup import Rolled
from tracekit.fleet.store import FleetStore

Row = dict[str, Any]


class Loss(Struct, frozen=True, kw_only=True):
    """GPU-hours of a day that one cause takes, over all runs of the night."""

    cause: str
    """A rule, or the part of the step that no finding has."""
    gpu_hours_per_day: float
    runs_count: int
    energy_joules_per_day: float | None
    """The same as energy, of the runs whose GPUs' power is known; None without any."""
    energy_runs_count: int
    amount_per_day: float | None
    """The same in money, of the runs that have a price; None where none has, or where these name
    different currencies."""
    currency: str | None
    amounts: tuple[Amount, ...]
    """By currency."""


class Logged(Struct, frozen=True, kw_only=True):
    """A part of the time that the training logs of a night's runs span."""

    part: str
    """productive, or what was lost: slow, periodic, stalled, repeated, down."""
    gpu_hours: float
    runs_count: int


class Amount(Struct, frozen=True, kw_only=True):
    """Money of a day."""

    amount_per_day: float
    currency: str | None
    """None where a job's description states prices without one."""
    runs_count: int
    """Runs whose loss it is: others may have no price."""


class Quality(Struct, frozen=True, kw_only=True):
    """What the night could not see."""

    jobs_count: int
    usual_jobs_count: float | None
    """Median over the nights before; null without any."""
    without_steps: tuple[str, ...]
    partial: tuple[str, ...]
    """With files that were not read whole, or ranks without a trace."""
    not_comparable: tuple[str, ...]
    """Whose step is compared with no other run's."""
    why_not_comparable: tuple[str, ...]
    """Why, of each of these."""


class Night(Struct, frozen=True, kw_only=True):
    """What is known of a date once it is rolled up."""

    date: str
    rolled: Rolled
    regressions: tuple[Regression, ...]
    offenders: tuple[Offender, ...]
    watch: Watch
    """On whom else a finding lay on this date."""
    losses: tuple[Loss, ...]
    gpu_hours_per_day: float
    """Of all runs of the night, if each ran so for a day: what losses are a part of."""
    logged: tuple[Logged, ...]
    """The time of the runs that have a training log, productive first and then what was lost, the
    largest first: hours that were counted, where losses are those of a day like the recording."""
    quality: Quality
    price: Price | None
    """Of every run's GPU-hours; None: each has what its job's description states."""
    is_short: bool
    """Whether far fewer runs came than usual."""

    def worst(self) -> Severity | None:
        """The highest severity of what is new: what ``--fail-on`` asks."""
        said = [regression_severity(r) for r in self.regressions if r.is_new]
        said += [Severity.MAJOR for o in self.offenders if o.is_new]
        return max(said, key=lambda s: s.weight, default=None)


def regression_severity(regression: Regression) -> Severity:
    """By the share of the step that is lost, as everywhere."""
    ratio = regression.slower_ratio
    return severity_of(ratio / (1 + ratio))


def judged(
    store: FleetStore,
    day: str,
    rolled: Rolled,
    limits: Limits | None = None,
    price: Price | None = None,
    told: Told | None = None,
) -> Night:
    """What a date says beside the weeks before it; reads no other rows.

    New is what ``told``, the last night before, did not say; without one, what the rows before the
    date would not have said.
    """
    limits = limits or Limits()
    first = (date.fromisoformat(day) - timedelta(days=limits.window_days - 1)).isoformat()
    jobs = store.rows("job", first, day)
    today = [j for j in jobs if j["date"] == day]
    places = {kind: store.rows(kind, first, day) for kind in KINDS}
    families = {j["run"]: j["family"] for j in jobs}
    quality = _quality(jobs, today, day, limits)
    usual = quality.usual_jobs_count
    budget = store.rows("budget", day, day)
    known = told.offenders if told is not None else None
    offending = offenders(places, families, limits, day, known)
    slower = regressions(jobs, limits, day)
    if told is not None:
        slower = [told.marked(r, limits) for r in slower]
    return Night(
        date=day,
        rolled=rolled,
        regressions=tuple(slower),
        offenders=tuple(offending),
        watch=watch(places, families, limits, day, offending),
        losses=losses(budget, price),
        gpu_hours_per_day=sum(r["gpu_hours_per_day"] for r in budget),
        logged=logged(store.rows("goodput", day, day)),
        quality=quality,
        price=price,
        is_short=usual is not None and len(today) < limits.few_jobs_ratio * usual,
    )


def _quality(jobs: Sequence[Row], today: Sequence[Row], day: str, limits: Limits) -> Quality:
    counts = Counter(j["date"] for j in jobs if j["date"] < day)
    apart = [(j, why) for j in today if (why := why_not_comparable(j, limits)) is not None]
    return Quality(
        jobs_count=len(today),
        usual_jobs_count=median(counts.values()) if counts else None,
        without_steps=tuple(j["run"] for j in today if not j["steps_count"]),
        partial=tuple(j["run"] for j in today if _is_partial(j)),
        not_comparable=tuple(j["run"] for j, _ in apart),
        why_not_comparable=tuple(why for _, why in apart),
    )


def _is_partial(job: Row) -> bool:
    world, ranks = job["world_size"], job["ranks_count"]
    is_short = world is not None and ranks is not None and ranks < world
    return is_short or bool(job["inputs_bad_count"])


def losses(budget: Sequence[Row], price: Price | None) -> tuple[Loss, ...]:
    """Parts of the steps of a night, largest first; the floor is no loss."""
    parts: dict[str, list[Row]] = defaultdict(list)
    for row in budget:
        if row["part"] != "floor" and row["gpu_hours_per_day"] > 0:
            parts[row["rule"] or row["part"]].append(row)
    found = [_loss(cause, rows, price) for cause, rows in parts.items()]
    return tuple(sorted(found, key=lambda loss: (-loss.gpu_hours_per_day, loss.cause)))


def logged(goodput: Sequence[Row]) -> tuple[Logged, ...]:
    """GPU-hours of training logs by part, of the runs whose GPUs' number is known."""
    parts: dict[str, list[Row]] = defaultdict(list)
    for row in goodput:
        if row["gpu_hours"] is not None:
            parts[row["part"]].append(row)
    found = [
        Logged(part=part, gpu_hours=sum(r["gpu_hours"] for r in rows), runs_count=_runs_count(rows))
        for part, rows in parts.items()
    ]
    return tuple(sorted(found, key=lambda p: (p.part != "productive", -p.gpu_hours, p.part)))


def _loss(cause: str, rows: Sequence[Row], price: Price | None) -> Loss:
    powered = [r for r in rows if r["energy_joules_per_day"] is not None]
    amounts = _amounts(rows, price)
    only = amounts[0] if len(amounts) == 1 else None
    return Loss(
        cause=cause,
        gpu_hours_per_day=sum(r["gpu_hours_per_day"] for r in rows),
        runs_count=_runs_count(rows),
        energy_joules_per_day=sum(r["energy_joules_per_day"] for r in powered) if powered else None,
        energy_runs_count=_runs_count(powered),
        amount_per_day=only.amount_per_day if only else None,
        currency=only.currency if only else None,
        amounts=amounts,
    )


def _amounts(rows: Sequence[Row], price: Price | None) -> tuple[Amount, ...]:
    """Money of the runs that have a price, by currency; a price of whoever asks is for all."""
    if price is not None:
        hours = sum(r["gpu_hours_per_day"] for r in rows)
        return (
            Amount(
                amount_per_day=price.gpu_hour * hours,
                currency=price.currency,
                runs_count=_runs_count(rows),
            ),
        )
    by: dict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        if row["amount_per_day"] is not None:
            by[row["currency"]].append(row)
    return tuple(
        Amount(
            amount_per_day=sum(r["amount_per_day"] for r in by[currency]),
            currency=currency,
            runs_count=_runs_count(by[currency]),
        )
        for currency in sorted(by, key=lambda c: c or "")
    )


def _runs_count(rows: Sequence[Row]) -> int:
    return len({r["run"] for r in rows})
