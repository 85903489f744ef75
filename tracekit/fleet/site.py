"""The fleet as a static site: no server, no request, the look of the report pages.

DIR/index.html            what the last night says, what was lost, families of jobs
DIR/family-<key>.html     one family: its trend, and its runs
DIR/hosts.html gpus.html links.html   every place: how often used, how often bad
DIR/host-<key>.html gpu-... link-...  one place on which findings lie: its nights and its runs
DIR/tracekit-site.json    which pages are ours: the next site replaces these and no others
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path

from tracekit.errors import StoreError
from tracekit.fleet import summary
from tracekit.fleet.limits import Limits
from tracekit.fleet.night import Night, judged
from tracekit.fleet.pages import MAX_ROWS, Row, figure, page, page_name
from tracekit.fleet.places import KINDS, Known, place_pages
from tracekit.fleet.regressions import FamilyChange
from tracekit.fleet.rollup import Rolled
from tracekit.fleet.store import FleetStore
from tracekit.target import Target
from tracekit.wording import safe, seconds, share

SITE_MARK = "tracekit-site.json"


def write_site(store: FleetStore, lake: Path | str, folder: Path, day: str) -> list[str]:
    """Write the pages of what is known at a date; their names. StoreError where the folder holds
    something that is no site."""
    earlier = _earlier(folder)
    first = (date.fromisoformat(day) - timedelta(days=Limits().window_days - 1)).isoformat()
    night = judged(store, day, Rolled())
    jobs = store.rows("job", first, day)
    changes = {f.family: f for r in night.regressions for f in r.families}
    families = _families(jobs)
    pages = {}
    for family, runs in families.items():
        pages[page_name("family", family)] = _family(family, runs, changes.get(family), lake, night)
    findings: dict[str, list[Row]] = defaultdict(list)
    for row in store.rows("finding", first, day):
        findings[row["run"]].append(row)
    known = Known(
        night=night,
        lake=lake,
        jobs={job["run"]: job for job in jobs},
        findings=findings,
        family_pages={family: page_name("family", family) for family in families},
    )
    pages |= place_pages({kind: store.rows(kind, first, day) for kind, _, _ in KINDS}, known)
    named = [
        (page_name(o.kind, o.name), f"{summary.NOUNS[o.kind]} {safe(o.name)}")
        for o in night.offenders
    ]
    pages["index.html"] = _index(
        night, store.rows("budget", first, day), jobs, changes, [n for n in named if n[0] in pages]
    )
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / SITE_MARK, json.dumps({"pages": sorted({*earlier, *pages})}) + "\n")
    for name, text in pages.items():
        _replace(folder / name, text)
    for name in earlier - set(pages):
        (folder / name).unlink(missing_ok=True)
    _replace(folder / SITE_MARK, json.dumps({"pages": sorted(pages)}) + "\n")
    return sorted(pages)


def _earlier(folder: Path) -> set[str]:
    """Pages of an earlier site."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return set()
    try:
        said = json.loads((folder / SITE_MARK).read_text(encoding="utf-8"))
        pages = {str(name) for name in said["pages"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise StoreError(
            f"{folder}: exists and is not a site of tracekit", hint="name a new or empty folder"
        ) from None
    # The mark may be anybody's: it must not lead out of its own folder.
    return {name for name in pages if name == Path(name).name and name.endswith(".html")}


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    draft.replace(path)


def _index(
    night: Night,
    budget: Sequence[Row],
    jobs: Sequence[Row],
    changes: Mapping[str, FamilyChange],
    offending: Sequence[tuple[str, str]],
) -> str:
    """The first page; ``offending`` are the pages of offenders and their names."""
    from tracekit.dashboards import fleet_figures, look

    parts = [
        {"date": p["date"], "cause": p["rule"] or p["part"], "gpu_hours_per_day": hours}
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
                safe(last["job_name"] or "-"),
                family[:12],
                (str(len(runs)), len(runs)),
                _seconds(last["step_mean_s"]),
                f"+{share(slower.slower_ratio)} since {slower.date}" if slower else "",
                last["date"],
            ]
        )
    links = [
        (page_name("family", f), f"{safe(runs[-1]['job_name'] or '-')} ({f[:12]})")
        for f, runs in sorted(_families(jobs).items())
    ]
    columns = [("Job", "name"), ("Family", ""), ("Runs", "n"), ("Last step", "n")]
    return page(
        "Fleet",
        night,
        [
            {
                "name": "night",
                "title": f"Night of {night.date}",
                "texts": summary.sentences(night),
                "links": offending,
            },
            {"name": "losses", "title": "What the nights lost", "figure": drawn},
            {"name": "data", "title": "What was not seen", "texts": summary.data_lines(night)},
            {
                "name": "families",
                "title": "Families of jobs",
                "columns": [*columns, ("Slower", ""), ("Last run", "")],
                "rows": rows,
                "links": links,
            },
        ],
    )


def _seconds(value_s: float | None) -> tuple[str, float] | str:
    return (seconds(value_s), value_s) if value_s is not None else ""


def _families(jobs: Iterable[Row]) -> dict[str, list[Row]]:
    """Runs by family, in the order in which they ran."""
    families: dict[str, list[Row]] = defaultdict(list)
    for job in jobs:
        if job["family"] is not None and job["step_mean_s"] is not None:
            families[job["family"]].append(job)
    for runs in families.values():
        runs.sort(key=lambda j: (j["date"], j["start_utc"] or "", j["run"]))
    return dict(families)


_RUN_COLUMNS = (
    ("Date", ""),
    ("Run", "name"),
    ("Step", "n"),
    ("Framework", ""),
    ("Verdict", "text"),
)


def _family(
    family: str, runs: Sequence[Row], change: FamilyChange | None, lake: Path | str, night: Night
) -> str:
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
            safe(j["run"]),
            _seconds(j["step_mean_s"]),
            safe(j["framework"] or ""),
            safe(j.get("sentence") or j["verdict"] or ""),
        ]
        for j in reversed(runs[-MAX_ROWS:])
    ]
    said = [summary.family_sentence(change)] if change else []
    last = Target((f"{lake}/runs/{runs[-1]['run']}",))
    return page(
        safe(runs[-1]["job_name"] or family),
        night,
        [
            {"name": "trend", "title": "Mean step", "texts": said, "figure": drawn},
            {
                "name": "runs",
                "title": "Runs",
                "texts": [f"Report of one: {last.command('diagnose')}"],
                "columns": _RUN_COLUMNS,
                "rows": rows,
            },
        ],
    )
