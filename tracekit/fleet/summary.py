"""A night in words that fit in a mail, as Markdown for a chat, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from tracekit.fleet.night import Loss, Night, regression_severity
from tracekit.fleet.offenders import Offender, Watched
from tracekit.fleet.regressions import FamilyChange, Regression
from tracekit.fleet.reports import Reports
from tracekit.report.job_words import PART_NAMES
from tracekit.report.json import plain
from tracekit.report.markdown import escaped
from tracekit.report.price import JOULES_PER_KILOWATT_HOUR
from tracekit.target import Target
from tracekit.wording import cut, plural, safe, seconds, share, some

SHOWN_FAMILIES = 4
SHOWN_LOSSES = 5
SHOWN_WATCHED = 3
SHOWN_NAMES = 4
SMALL_AMOUNT = 100
"""Money and kilowatt-hours below which hundredths are told."""
LEAST_LOSS_RATIO = 0.001
"""What costs less of a night's GPU-hours is not told."""
SHOWN_REASON = 160
"""Characters of why a run failed."""
_ASKS = (
    ("Drain, or mend", ("host", "gpu")),
    ("Have looked at", ("link", "rack")),
)
"""What is done about a place of a kind: a port or a rack is not taken out of a queue by itself."""
ASKED = {"host": "host", "gpu": "GPU", "link": "port", "rack": "rack"}
NOUNS = {"host": "Host", "gpu": "GPU", "link": "Port", "rack": "Rack"}


class Links(Struct, frozen=True):
    """Where the pages of a night's site are, for whoever reads about the night."""

    base: str
    """Folder or URL of the site, without a slash at its end."""
    reports: Reports

    @property
    def index(self) -> str:
        """The first page."""
        return f"{self.base}/index.html"

    def report(self, run: str) -> str | None:
        """The report page of a run; None where it has none."""
        page = self.reports.pages.get(run)
        return f"{self.base}/{page}" if page is not None else None


class Told(Struct, frozen=True):
    """A sentence or two of a night, and the run that shows it best."""

    is_new: bool
    text: str
    run: str | None


def told(night: Night) -> list[Told]:
    """What got slower and who stands out, what is new first."""
    slower = [
        Told(r.is_new, _regression(r), next((n for f in r.families for n in f.runs), None))
        for r in _sorted(night)
    ]
    offending = [
        Told(o.is_new, offender_sentence(o), o.runs[-1] if o.runs else None)
        for o in sorted(night.offenders, key=lambda o: not o.is_new)
    ]
    return slower + offending


_NOTHING = "Nothing got slower, and no host, GPU, port or rack stands out."
_NO_RUN = "No run of this date is in the tables: nothing can be said of it."


def _silence(night: Night) -> str:
    """What is said where there is nothing to tell."""
    return _NOTHING if night.quality.jobs_count else _NO_RUN


def asks(night: Night) -> str:
    """What there is to do, in a line: whom to drain, what to look at, which change to look into."""
    parts = []
    for what, kinds in _ASKS:
        names = [
            f"{ASKED[o.kind]} {safe(o.name)}"
            for o in sorted(night.offenders, key=lambda o: not o.is_new)
            if o.kind in kinds
        ]
        if names:
            parts.append(f"{what}: {some(names, SHOWN_NAMES)}.")
    changes = [
        f"{name.removesuffix('_version')} {safe(old)} to {safe(new)}"
        for name, old, new in (r.change for r in _sorted(night) if r.change is not None)
    ]
    families = [
        safe(r.families[0].job_name or r.families[0].family)
        for r in _sorted(night)
        if r.change is None
    ]
    if changes:
        parts.append(f"Look into: {some(changes, SHOWN_NAMES)}.")
    if families:
        parts.append(f"Ask who runs: {some(families, SHOWN_NAMES)}.")
    return " ".join(parts)


def to_text(night: Night, lake: Path | str, links: Links | None = None) -> str:
    """For a mail: what is new first, nothing that takes a second look to find."""
    parts = [_head(night)]
    if to_do := asks(night):
        parts.append(f"{'DO':<10}{to_do}")
    said = told(night)
    for one in said:
        parts.append(f"{'NEW' if one.is_new else 'STANDING':<10}{one.text}")
        if links is not None and one.run is not None:
            report = links.report(one.run) or _no_page(links, one.run)
            parts.append(f"{'':<10}Report of {safe(one.run)}: {report}")
    if not said:
        parts.append(_silence(night))
    parts += [f"{'WATCH':<10}{line}" for line in watch_lines(night)]
    parts += [f"{'LOST':<10}{line}" for line in _losses(night)]
    parts += [f"{'LOGGED':<10}{line}" for line in logged_lines(night)]
    parts += [f"{'DATA':<10}{line}" for line in data_lines(night)]
    runs = [one.run for one in said if one.run is not None]
    if links is not None:
        parts.append(f"{'MORE':<10}{links.index}")
    elif runs:
        target = Target((f"{lake}/runs/{runs[0]}",))
        parts.append(f"{'MORE':<10}{target.command('diagnose')}")
    return "".join(f"{part}\n" for part in parts)


def _no_page(links: Links, run: str) -> str:
    why = links.reports.missing.get(run, "none was asked for")
    return f"no page ({safe(cut(why, SHOWN_REASON))})"


def to_markdown(night: Night, links: Links | None = None) -> str:
    """The same for a chat."""
    lines = [f"### {_head(night)}", ""]
    if to_do := asks(night):
        lines.append(f"- **do** {escaped(to_do)}")
    said = told(night)
    for one in said:
        line = f"- **{'new' if one.is_new else 'standing'}** {escaped(one.text)}"
        if links is not None and one.run is not None:
            page = links.report(one.run)
            name = escaped(safe(one.run))
            missing = escaped(_no_page(links, one.run))
            line += f" Report of {f'[{name}](<{page}>)' if page else f'{name}: {missing}'}."
        lines.append(line)
    if not said:
        lines.append(_silence(night))
    lines += [f"- watch: {escaped(line)}" for line in watch_lines(night)]
    lines += [f"- lost: {escaped(line)}" for line in _losses(night)]
    lines += [f"- logged: {escaped(line)}" for line in logged_lines(night)]
    lines += [f"- data: {escaped(line)}" for line in data_lines(night)]
    if links is not None:
        lines += ["", f"[The fleet's pages](<{links.index}>)"]
    return "\n".join(lines) + "\n"


def to_json(night: Night, links: Links | None = None) -> str:
    """The same for programs; ASCII, no NaN."""
    pages = links.reports if links is not None else Reports()
    site = {
        "site": links.index if links is not None else None,
        "report_pages": {run: links.report(run) for run in pages.pages} if links else {},
        "without_report_page": dict(pages.missing),
    }
    said = plain(night)
    for row, regression in zip(said["regressions"], night.regressions, strict=True):
        row["slower_ratio"] = regression.slower_ratio
        row["severity"] = str(regression_severity(regression))
    return json.dumps({"schema_version": 1, **said, **site}, indent=1, allow_nan=False) + "\n"


def sentences(night: Night) -> list[str]:
    """What got slower and who stands out, a sentence or two each; or that nothing does."""
    said = [f"{'New' if one.is_new else 'Standing'}: {one.text}" for one in told(night)]
    return said or [_silence(night)]


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
    moved = ""
    if regression.told_date is not None:
        moved = f" The last night said since {regression.told_date}: runs since then moved it."
    return _slower(regression) + moved


def _slower(regression: Regression) -> str:
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
    others = "others as gravely" if offender.is_grave else "others"
    if offender.hosts:
        told = some([f"{safe(host)} {count}" for host, count in offender.hosts], SHOWN_NAMES)
        cost += f": {told}"
        others = "hosts of others"
    return (
        f"{NOUNS[offender.kind]} {safe(offender.name)}: {', '.join(offender.rules[:3])} in "
        f"{offender.bad_count} of its {plural(offender.runs_count, 'run')} in "
        f"{plural(offender.days, 'day')}, since {offender.since}{cost} "
        f"({others} in {share(offender.others_ratio)} of runs; q {offender.q_value:.1g})."
    )


def watch_lines(night: Night) -> list[str]:
    """On whom else a finding lay on this date, what would confirm it, and how many such places any
    date has by chance: none of them is called an offender."""
    watched = night.watch.places
    lines = [_watched(one) for one in watched[:SHOWN_WATCHED]]
    if len(watched) > SHOWN_WATCHED:
        lines.append(f"{len(watched) - SHOWN_WATCHED} more hosts, GPUs or ports with a finding")
    if lines:
        # Once a night: it holds for all of them.
        lines[-1] += f" By chance a date like this has {night.watch.expected_count:.1g} such."
    return lines


def _watched(one: Watched) -> str:
    grade = f" ({one.severity})" if one.severity is not None else ""
    more = "one more bad run" if one.more_count == 1 else f"{one.more_count} more bad runs"
    return (
        f"{NOUNS[one.kind]} {safe(one.name)}: {', '.join(one.rules[:3])}{grade} in {one.bad_count} "
        f"of its {plural(one.runs_count, 'run')} in {plural(one.days, 'day')} (others in "
        f"{share(one.others_ratio)} of runs): not yet a repeat offender; {more} the next day, and "
        "no clean one, would make it one."
    )


def _losses(night: Night) -> list[str]:
    total = night.gpu_hours_per_day
    if total <= 0:
        return []
    return [
        f"{cause_words(loss.cause)}: {loss.gpu_hours_per_day:,.0f} of {total:,.0f} GPU-hours a day "
        f"({share(loss.gpu_hours_per_day / total)})"
        f"{''.join(f', {words}' for words in (*energy_words(loss), *money_words(loss)))}, "
        f"{plural(loss.runs_count, 'run')}"
        for loss in night.losses[:SHOWN_LOSSES]
        if loss.gpu_hours_per_day >= LEAST_LOSS_RATIO * total
    ]


def logged_lines(night: Night) -> list[str]:
    """What the training logs say of the time that they span; nothing without one."""
    total = sum(p.gpu_hours for p in night.logged)
    if total <= 0:
        return []
    parts = [
        f"{p.part} {share(p.gpu_hours / total)}"
        for p in night.logged
        if p.part == "productive" or p.gpu_hours >= LEAST_LOSS_RATIO * total
    ]
    runs_count = max(p.runs_count for p in night.logged)
    return [f"{total:,.0f} GPU-hours by {plural(runs_count, 'training log')}: {', '.join(parts)}"]


def cause_words(cause: str) -> str:
    """A rule by its name, and a part of the step that no finding has as reports call it."""
    return PART_NAMES.get(cause, cause)


def energy_words(loss: Loss) -> list[str]:
    """A loss as energy, of how many runs; nothing where no power is known."""
    if loss.energy_joules_per_day is None:
        return []
    kwh = loss.energy_joules_per_day / JOULES_PER_KILOWATT_HOUR
    return [f"{kwh:,.{_digits(kwh)}f} kWh a day{_of_runs(loss.energy_runs_count, loss)}"]


def money_words(loss: Loss) -> list[str]:
    """A loss in money, by currency."""
    return [
        f"{one.amount_per_day:,.{_digits(one.amount_per_day)}f} "
        f"{safe(one.currency or 'of no stated currency')} a day{_of_runs(one.runs_count, loss)}"
        for one in loss.amounts
    ]


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
    earlier = [d for d in night.rolled.dates if d < night.date]
    if earlier:
        told = earlier[0] if len(earlier) == 1 else f"{earlier[0]} to {earlier[-1]}"
        lines.append(
            f"new runs are of earlier dates, too ({told}): losses and data here are of "
            f"{night.date} alone, --date {earlier[-1]} tells that night"
        )
    lines += _some("without steps", quality.without_steps)
    lines += _some("read in part, or with ranks missing", quality.partial)
    by_reason: dict[str, list[str]] = {}
    for name, why in zip(quality.not_comparable, quality.why_not_comparable, strict=True):
        by_reason.setdefault(why, []).append(name)
    for why, names in by_reason.items():
        lines += _some(f"compared with no other run, since {why}", names)
    return lines


def _some(what: str, names: Sequence[str]) -> list[str]:
    told = some([safe(n) for n in names], SHOWN_NAMES)
    return [f"{what}: {plural(len(names), 'run')} ({told})"] if names else []
