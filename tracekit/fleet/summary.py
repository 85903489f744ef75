"""A night in words that fit in a mail, as Markdown for a chat, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tracekit.fleet.night import Loss, Night, regression_severity
from tracekit.fleet.offenders import Offender
from tracekit.fleet.regressions import FamilyChange, Regression
from tracekit.report.json import plain
from tracekit.report.markdown import escaped
from tracekit.report.price import JOULES_PER_KILOWATT_HOUR
from tracekit.target import Target
from tracekit.wording import cut, plural, safe, seconds, share, some

SHOWN_FAMILIES = 4
SHOWN_LOSSES = 5
SHOWN_NAMES = 4
SMALL_AMOUNT = 100
"""Money and kilowatt-hours below which hundredths are told."""
LEAST_LOSS_RATIO = 0.001
"""What costs less of a night's GPU-hours is not told."""
SHOWN_REASON = 160
"""Characters of why a run failed."""
NOUNS = {"host": "Host", "gpu": "GPU", "link": "Port"}


def to_text(night: Night, lake: Path | str) -> str:
    """For a mail: what is new first, nothing that takes a second look to find."""
    parts = [_head(night)]
    parts += [("NEW       " if r.is_new else "STANDING  ") + _regression(r) for r in _sorted(night)]
    for offender in sorted(night.offenders, key=lambda o: not o.is_new):
        parts.append(
            ("NEW       " if offender.is_new else "STANDING  ") + offender_sentence(offender)
        )
    if not night.regressions and not night.offenders:
        parts.append("Nothing got slower, and no host, GPU or port stands out.")
    parts += [f"{'LOST':<10}{line}" for line in _losses(night)]
    parts += [f"{'DATA':<10}{line}" for line in data_lines(night)]
    runs = [run for r in night.regressions for f in r.families[:1] for run in f.runs[:1]]
    runs += [run for o in night.offenders for run in o.runs[-1:]]
    if runs:
        target = Target((f"{lake}/runs/{runs[0]}",))
        parts.append(f"{'MORE':<10}{target.command('diagnose')}")
    return "".join(f"{part}\n" for part in parts)


def to_markdown(night: Night, lake: Path | str) -> str:
    """The same for a chat."""
    lines = [f"### {_head(night)}", ""]
    for r in _sorted(night):
        lines.append(f"- **{'new' if r.is_new else 'standing'}** {escaped(_regression(r))}")
    for offender in sorted(night.offenders, key=lambda o: not o.is_new):
        state = "new" if offender.is_new else "standing"
        lines.append(f"- **{state}** {escaped(offender_sentence(offender))}")
    if not night.regressions and not night.offenders:
        lines.append("Nothing got slower, and no host, GPU or port stands out.")
    lines += [f"- lost: {escaped(line)}" for line in _losses(night)]
    lines += [f"- data: {escaped(line)}" for line in data_lines(night)]
    return "\n".join(lines) + "\n"


def to_json(night: Night) -> str:
    """The same for programs; ASCII, no NaN."""
    said = plain(night)
    for row, regression in zip(said["regressions"], night.regressions, strict=True):
        row["slower_ratio"] = regression.slower_ratio
        row["severity"] = str(regression_severity(regression))
    return json.dumps({"schema_version": 1, **said}, indent=1, allow_nan=False) + "\n"


def sentences(night: Night) -> list[str]:
    """What got slower and who stands out, a sentence or two each; or that nothing does."""
    told = [
        *((r.is_new, _regression(r)) for r in _sorted(night)),
        *(
            (o.is_new, offender_sentence(o))
            for o in sorted(night.offenders, key=lambda o: not o.is_new)
        ),
    ]
    if not told:
        return ["Nothing got slower, and no host, GPU or port stands out."]
    return [f"{'New' if is_new else 'Standing'}: {text}" for is_new, text in told]


def family_sentence(change: FamilyChange) -> str:
    """How much slower one family is, and since when."""
    return f"{_percent(change.slower_ratio)} a step since {change.date}: {_family(change)}."


def _sorted(night: Night) -> list[Regression]:
    return sorted(night.regressions, key=lambda r: not r.is_new)


def _head(night: Night) -> str:
    rolled = night.rolled
    words = [plural(night.quality.jobs_count, "run")]
    if rolled.done:
        words.append(f"{len(rolled.done)} new")
    if rolled.failed:
        words.append(f"{len(rolled.failed)} failed")
    return f"Night of {night.date}: {', '.join(words)}"


def _percent(ratio: float) -> str:
    return f"+{share(ratio)}"


def _family(family: FamilyChange) -> str:
    name = safe(family.job_name or family.family)
    return f"{name} {seconds(family.before_s)} to {seconds(family.after_s)}"


def _regression(regression: Regression) -> str:
    told = some([_family(f) for f in regression.families], SHOWN_FAMILIES)
    if len(regression.families) > 1:
        head = f"{plural(len(regression.families), 'family')} of jobs".replace(
            "familys", "families"
        )
        head += f" {_percent(regression.slower_ratio)} a step since {regression.date}: {told}."
    else:
        first = regression.families[0]
        before = plural(first.before_count, "run")
        head = f"{_percent(regression.slower_ratio)} a step since {regression.date}: {told} "
        head += f"(against {before})."
    if regression.change is not None:
        name, old, new = regression.change
        head += f" At that date: {name.removesuffix('_version')} {safe(old)} to {safe(new)}."
        if regression.unmoved_count:
            head += f" Against: {regression.unmoved_count} others changed so and are not slower."
        return head
    first = regression.families[0]
    hints = []
    if first.new_rules:
        hints.append(f"verdicts since then: {', '.join(first.new_rules)}")
    if first.new_hosts:
        hints.append(f"hosts since then: {some([safe(h) for h in first.new_hosts], SHOWN_NAMES)}")
    return head + (f" {'; '.join(hints).capitalize()}." if hints else " No version changed.")


def offender_sentence(offender: Offender) -> str:
    """On how many of its runs findings lie, and how unlike its peers that is."""
    cost = ""
    if offender.gpu_hours_per_day is not None:
        cost = f", up to {offender.gpu_hours_per_day:,.0f} GPU-hours a day"
    return (
        f"{NOUNS[offender.kind]} {safe(offender.name)}: {', '.join(offender.rules[:3])} in "
        f"{offender.bad_count} of its {plural(offender.runs_count, 'run')} in "
        f"{plural(offender.days, 'day')}, since {offender.since}{cost} "
        f"(others {share(offender.others_ratio)} of runs, q {offender.q_value:.1g})."
    )


def _losses(night: Night) -> list[str]:
    total = night.gpu_hours_per_day
    if total <= 0:
        return []
    return [
        f"{loss.cause}: {loss.gpu_hours_per_day:,.0f} of {total:,.0f} GPU-hours a day "
        f"({share(loss.gpu_hours_per_day / total)}){_energy(loss)}{_money(loss)}, "
        f"{plural(loss.runs_count, 'run')}"
        for loss in night.losses[:SHOWN_LOSSES]
        if loss.gpu_hours_per_day >= LEAST_LOSS_RATIO * total
    ]


def _energy(loss: Loss) -> str:
    if loss.energy_joules_per_day is None:
        return ""
    kwh = loss.energy_joules_per_day / JOULES_PER_KILOWATT_HOUR
    return f", {kwh:,.{_digits(kwh)}f} kWh a day{_of_runs(loss.energy_runs_count, loss)}"


def _money(loss: Loss) -> str:
    return "".join(
        f", {one.amount_per_day:,.{_digits(one.amount_per_day)}f} "
        f"{safe(one.currency or 'of no stated currency')} a day{_of_runs(one.runs_count, loss)}"
        for one in loss.amounts
    )


def _of_runs(count: int, loss: Loss) -> str:
    """Of how many runs this is known, where it is not of all."""
    return f" (of {plural(count, 'run')})" if count < loss.runs_count else ""


def _digits(value: float) -> int:
    return 0 if value >= SMALL_AMOUNT else 2


def data_lines(night: Night) -> list[str]:
    """What the night could not see, a line each."""
    quality = night.quality
    lines = [
        f"failed: {safe(name)}: {safe(cut(why, SHOWN_REASON))}"
        for name, why in night.rolled.failed[:SHOWN_NAMES]
    ]
    if len(night.rolled.failed) > SHOWN_NAMES:
        lines.append(f"failed: {len(night.rolled.failed) - SHOWN_NAMES} more runs")
    if night.is_short:
        lines.append(
            f"{plural(quality.jobs_count, 'run')}, usually {quality.usual_jobs_count:g}: "
            "what is missing is not judged"
        )
    lines += _some("without steps", quality.without_steps)
    lines += _some("read in part, or with ranks missing", quality.partial)
    lines += _some("compared with no other run", quality.not_comparable)
    return lines


def _some(what: str, names: Sequence[str]) -> list[str]:
    told = some([safe(n) for n in names], SHOWN_NAMES)
    return [f"{what}: {plural(len(names), 'run')} ({told})"] if names else []
