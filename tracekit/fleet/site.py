"""The fleet as a static site: no server, no request, the look of the report pages.

DIR/index.html            what the last night says, what was lost, families of jobs
DIR/runs.html             every run, the last first
DIR/run-<key>.html        the report page of one run (fleet/reports.py)
DIR/family-<key>.html     one family: its trend, and its runs
DIR/hosts.html gpus.html links.html   every place: how often used, how often bad
DIR/host-<key>.html gpu-... link-...  one place on which findings lie: its nights and its runs
DIR/tracekit-site.json    which pages are ours: the next site replaces these and no others
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from msgspec import Struct, field, to_builtins

from tracekit.errors import StoreError
from tracekit.fleet import reports as reports_module
from tracekit.fleet import summary
from tracekit.fleet.limits import Limits
from tracekit.fleet.night import Night
from tracekit.fleet.pages import MAX_ROWS, Row, figure, linked, page, page_name, report_of
from tracekit.fleet.places import KINDS, Known, place_pages
from tracekit.fleet.regressions import FamilyChange
from tracekit.fleet.reports import Asked, Made, Reports, replace
from tracekit.fleet.store import FleetStore
from tracekit.report.job_words import PART_NAMES
from tracekit.store.writer import writing
from tracekit.wording import cut, plural, safe, seconds, share, some

SITE_MARK = "tracekit-site.json"


class Site(Struct, frozen=True):
    """What was written."""

    pages: tuple[str, ...]
    """Their names, those of reports among them."""
    reports: Reports


class _Earlier(Struct, frozen=True):
    """What an earlier site left in the folder."""

    pages: frozenset[str] = frozenset()
    reports: Mapping[str, Made] = field(default_factory=dict)


def write_site(
    store: FleetStore, lake: Path | str, folder: Path, night: Night, reports: Asked | None = None
) -> Site:
    """Write the pages of a night, and of the runs that they lead to, as ``reports`` asks.

    StoreError where the folder holds something that is no site, RunWriteError where nothing can be
    written there.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return _written(store, lake, folder, night, reports)


def check_folder(folder: Path) -> None:
    """StoreError where a folder holds something that is no site."""
    _earlier(folder)


def _written(
    store: FleetStore, lake: Path | str, folder: Path, night: Night, asked: Asked | None
) -> Site:
    earlier = _earlier(folder)
    day = night.date
    first = (date.fromisoformat(day) - timedelta(days=Limits().window_days - 1)).isoformat()
    jobs = sorted(store.rows("job", first, day), key=_when)
    changes = {f.family: f for r in night.regressions for f in r.families}
    families = _families(jobs)
    findings: dict[str, list[Row]] = defaultdict(list)
    for row in store.rows("finding", first, day):
        findings[row["run"]].append(row)
    made = Reports()
    if asked is not None:
        runs = reports_module.wanted(night, jobs, findings)
        names = {page_name("run", run) for run in runs[: asked.count]}
        # Whoever is killed here leaves pages that the next site knows as its own.
        _mark(folder, earlier.pages | names, earlier.reports)
        keys = {run: row["key"] for run, row in store.ledger().items()}
        made = reports_module.reported(asked, folder, runs, keys, earlier.reports)
    known = Known(
        night=night,
        lake=lake,
        jobs={job["run"]: job for job in jobs},
        findings=findings,
        family_pages={family: page_name("family", family) for family in families},
        reports=made,
    )
    pages = {
        page_name("family", family): _family(family, runs, changes.get(family), known)
        for family, runs in families.items()
    }
    pages |= place_pages({kind: store.rows(kind, first, day) for kind, _, _ in KINDS}, known)
    pages["runs.html"] = _runs(jobs, known)
    logs = _logs(store.rows("goodput", first, day), known)
    pages["index.html"] = _index(
        store.rows("budget", first, day), jobs, changes, known, _named(night, pages, made), logs
    )
    own = {*pages, *made.pages.values()}
    _mark(folder, earlier.pages | own, made.made)
    for name, text in pages.items():
        replace(folder / name, text)
    for name in earlier.pages - own:
        (folder / name).unlink(missing_ok=True)
    _mark(folder, own, made.made)
    return Site(tuple(sorted(own)), made)


def _mark(folder: Path, pages: Iterable[str], reports: Mapping[str, Made]) -> None:
    said = {"pages": sorted(pages), "reports": {run: to_builtins(m) for run, m in reports.items()}}
    replace(folder / SITE_MARK, json.dumps(said) + "\n")


def _earlier(folder: Path) -> _Earlier:
    """What an earlier site left."""
    import msgspec

    if not folder.exists() or (folder.is_dir() and not any(map(_is_anybodys, folder.iterdir()))):
        return _Earlier()
    try:
        said = json.loads((folder / SITE_MARK).read_text(encoding="utf-8"))
        pages = {str(name) for name in said["pages"]}
        reports = msgspec.convert(said.get("reports", {}), dict[str, Made])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise StoreError(
            f"{folder}: exists and is not a site of tracekit", hint="name a new or empty folder"
        ) from None
    # The mark may be anybody's: it must not lead out of its own folder.
    own = {name for name in pages if name == Path(name).name and name.endswith(".html")}
    return _Earlier(frozenset(own), reports)


def _is_anybodys(path: Path) -> bool:
    """Whether it is no mark that was never finished: of a site that was killed as it began."""
    return not (path.name.startswith(f".{SITE_MARK}.") and path.name.endswith(reports_module.PART))


def _named(night: Night, pages: Mapping[str, str], reports: Reports) -> list[tuple[str, str]]:
    """Pages of what the night names, and the reports that show it, with what they are called."""
    families = [f for r in night.regressions for f in r.families[: summary.SHOWN_FAMILIES]]
    named = [
        (page_name("family", f.family), f"Job {safe(f.job_name or f.family)}") for f in families
    ]
    named += [
        (page_name(kind, name), f"{summary.NOUNS[kind]} {safe(name)}")
        for kind, name in [
            *((o.kind, o.name) for o in night.offenders),
            *((w.kind, w.name) for w in night.watch.places[: summary.SHOWN_WATCHED]),
        ]
    ]
    shown = [one.run for one in summary.told(night) if one.run in reports.pages]
    return [
        *((name, text) for name, text in named if name in pages),
        *((reports.pages[run], f"Report of {safe(run)}") for run in shown if run is not None),
    ]


def _index(
    budget: Sequence[Row],
    jobs: Sequence[Row],
    changes: Mapping[str, FamilyChange],
    known: Known,
    named: Sequence[tuple[str, str]],
    logs: Mapping[str, Any],
) -> str:
    """The first page; ``named`` are the pages of what the night names, ``logs`` its part about
    training logs."""
    from tracekit.dashboards import fleet_figures, look

    night = known.night
    parts = [
        {
            "date": p["date"],
            "cause": summary.cause_words(p["rule"] or p["part"]),
            "gpu_hours_per_day": hours,
        }
        for p in budget
        if p["part"] != "floor" and (hours := p["gpu_hours_per_day"]) > 0
    ]
    with look.style():
        drawn = figure(fleet_figures.losses(parts, {p["date"] for p in budget}), "losses")
    rows = []
    for family, runs in sorted(_families(jobs).items()):
        last = runs[-1]
        slower = changes.get(family)
        rows.append(
            [
                linked(known.family_pages.get(family), safe(last["job_name"] or "-")),
                family[:12],
                (str(len(runs)), len(runs)),
                _seconds(last["step_mean_s"]),
                f"+{share(slower.slower_ratio)} since {slower.date}" if slower else "",
                last["date"],
            ]
        )
    columns = [("Job", "name"), ("Family", ""), ("Runs", "n"), ("Last step", "n")]
    return page(
        "Fleet",
        night,
        [
            {
                "name": "night",
                "title": f"Night of {night.date}",
                "texts": [
                    *([f"Do: {to_do}"] if (to_do := summary.asks(night)) else []),
                    *summary.sentences(night),
                    *(f"Watch: {line}" for line in summary.watch_lines(night)),
                ],
                "links": named,
            },
            {"name": "losses", "title": "What the nights lost", "figure": drawn},
            _lost(night),
            *([logs] if logs["rows"] else []),
            {
                "name": "data",
                "title": "What was not seen",
                "texts": [*summary.data_lines(night), *_unreported(known.reports)],
            },
            {
                "name": "families",
                "title": "Families of jobs",
                "columns": [*columns, ("Slower", "text"), ("Last run", "day")],
                "rows": rows,
            },
        ],
    )


def _lost(night: Night) -> dict[str, Any]:
    """What the night lost by cause: in GPU-hours, and where they are known in energy and money."""
    total = night.gpu_hours_per_day
    shown = [loss for loss in night.losses if loss.gpu_hours_per_day > 0]
    energy = any(loss.energy_joules_per_day is not None for loss in shown)
    money = any(loss.amounts for loss in shown)
    columns = [("Cause", ""), ("GPU-hours a day", "n"), ("Share", "n")]
    columns += [("Energy", "n")] * energy + [("Money", "n")] * money + [("Runs", "n")]
    rows: list[list[Any]] = []
    for loss in shown:
        hours = loss.gpu_hours_per_day
        row: list[Any] = [
            summary.cause_words(loss.cause),
            (f"{hours:,.1f}", hours),
            (share(hours / total), hours),
        ]
        if energy:
            row.append((", ".join(summary.energy_words(loss)), loss.energy_joules_per_day or 0.0))
        if money:
            amount = loss.amounts[0].amount_per_day if len(loss.amounts) == 1 else 0.0
            row.append((", ".join(summary.money_words(loss)), amount))
        rows.append([*row, (str(loss.runs_count), loss.runs_count)])
    return {
        "name": "lost",
        "title": f"What the night of {night.date} lost",
        "texts": [
            f"What a rule means: tracekit explain {rule}"
            for rule in [loss.cause for loss in shown if loss.cause not in PART_NAMES][:1]
        ],
        "columns": columns,
        "rows": rows,
    }


_LOGGED = ("productive", "slow", "periodic", "stalled", "repeated", "down")
"""Parts of the query goodput."""


def _logs(goodput: Sequence[Row], known: Known) -> dict[str, Any]:
    """Where the time of each run with a training log went, the last first."""
    by_run: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in goodput:
        by_run[row["run"]][row["part"]] = row
    rows: list[list[Any]] = []
    for run in sorted(by_run, key=lambda r: (known.jobs[r]["date"], r), reverse=True):
        parts, job = by_run[run], known.jobs[run]
        total_s = sum(p["spent_s"] for p in parts.values())
        hours = [p["gpu_hours"] for p in parts.values() if p["gpu_hours"] is not None]
        of = {name: parts[name]["spent_s"] / total_s for name in _LOGGED if name in parts}
        rows.append(
            [
                job["date"],
                linked(known.reports.pages.get(run), safe(run)),
                linked(known.family_pages.get(job["family"] or ""), safe(job["job_name"] or "-")),
                (f"{sum(hours):,.0f}", sum(hours)) if hours else "",
                *((share(of[name]), of[name]) if name in of else "" for name in _LOGGED),
            ]
        )
    left = len(rows) - MAX_ROWS
    return {
        "name": "logged",
        "title": "Where the time of jobs went, by their training logs",
        "texts": [
            "From a log's first line to its last; a log that several runs have counts in each."
            + (f" And {left:,} earlier ones." if left > 0 else "")
        ],
        "columns": [
            ("Date", "day"),
            ("Run", "name"),
            ("Job", "name"),
            ("GPU-hours", "n"),
            *((name.capitalize(), "n") for name in _LOGGED),
        ],
        "rows": rows[:MAX_ROWS],
    }


def _unreported(reports: Reports) -> list[str]:
    """Which runs were to have a report page and have none, by why."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for run, why in reports.missing.items():
        by_reason[why].append(safe(run))
    return [
        f"without a report page: {plural(len(runs), 'run')} ({some(runs, summary.SHOWN_NAMES)}): "
        f"{safe(cut(why, summary.SHOWN_REASON))}"
        for why, runs in by_reason.items()
    ]


def _runs(jobs: Sequence[Row], known: Known) -> str:
    """All runs, the last first; those that have a report page lead there."""
    rows = [
        [
            j["date"],
            linked(known.reports.pages.get(j["run"]), safe(j["run"])),
            linked(known.family_pages.get(j["family"] or ""), safe(j["job_name"] or "-")),
            (str(j["world_size"]), j["world_size"]) if j["world_size"] is not None else "",
            _seconds(j["step_mean_s"]),
            safe(j.get("sentence") or j["verdict"] or ""),
        ]
        for j in reversed(jobs[-MAX_ROWS:])
    ]
    left = len(jobs) - MAX_ROWS
    texts = [f"And {left:,} earlier ones."] if left > 0 else []
    if known.reports.pages:
        texts.append("A run whose name is a link has its report here.")
    columns = [("Date", "day"), ("Run", "name"), ("Job", "name"), ("Ranks", "n"), ("Step", "n")]
    section = {
        "name": "runs",
        "title": "Runs",
        "texts": texts,
        "columns": [*columns, ("Verdict", "text")],
        "rows": rows,
    }
    return page("Runs", known.night, [section])


def _when(job: Row) -> tuple[str, str, str]:
    return job["date"], job["start_utc"] or "", job["run"]


def _seconds(value_s: float | None) -> tuple[str, float] | str:
    return (seconds(value_s), value_s) if value_s is not None else ""


def _families(jobs: Iterable[Row]) -> dict[str, list[Row]]:
    """Runs by family, in the order in which they are given."""
    families: dict[str, list[Row]] = defaultdict(list)
    for job in jobs:
        if job["family"] is not None and job["step_mean_s"] is not None:
            families[job["family"]].append(job)
    return dict(families)


_RUN_COLUMNS = (
    ("Date", "day"),
    ("Run", "name"),
    ("Step", "n"),
    ("Framework", ""),
    ("Verdict", "text"),
)


def _family(family: str, runs: Sequence[Row], change: FamilyChange | None, known: Known) -> str:
    from tracekit.dashboards import fleet_figures, look

    points = [
        {"date": j["date"], "step_s": j["step_mean_s"], "is_placed": j["place_cost_s"] != 0}
        for j in runs
    ]
    with look.style():
        drawn = figure(fleet_figures.trend(points, change.date if change else None), "trend")
    rows = [
        [
            j["date"],
            linked(known.reports.pages.get(j["run"]), safe(j["run"])),
            _seconds(j["step_mean_s"]),
            safe(j["framework"] or ""),
            safe(j.get("sentence") or j["verdict"] or ""),
        ]
        for j in reversed(runs[-MAX_ROWS:])
    ]
    said = [summary.family_sentence(change)] if change else []
    texts, links = report_of(runs[-1]["run"], "Report of the last", known.reports, known.lake)
    return page(
        safe(runs[-1]["job_name"] or family),
        known.night,
        [
            {"name": "trend", "title": "Mean step", "texts": said, "figure": drawn},
            {
                "name": "runs",
                "title": "Runs",
                "texts": texts,
                "links": links,
                "columns": _RUN_COLUMNS,
                "rows": rows,
            },
        ],
    )
