"""Pages of places: all hosts, GPUs and ports in a table, and each with findings on its own page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from tracekit.fleet import summary
from tracekit.fleet.night import Night
from tracekit.fleet.offenders import Offender
from tracekit.fleet.pages import MAX_ROWS, Row, figure, linked, page, page_name, report_of
from tracekit.fleet.reports import Reports
from tracekit.wording import plural, safe, share

KINDS = (
    ("host", "hosts.html", "Hosts"),
    ("gpu", "gpus.html", "GPUs"),
    ("link", "links.html", "Ports"),
)
MAX_PLACE_PAGES = 100
"""Places of a kind with a page of their own: the first of the table, on which findings lie. A
figure takes a tenth of a second, and a fleet may have a hundred thousand GPUs."""
MAX_PLACE_ROWS = 500
"""Runs that the page of one place lists: the last."""
_PLURALS = {"host": "hosts", "gpu": "GPUs", "link": "ports"}
_SCOPES = {"host": "hosts", "link": "links"}
"""Column of the table ``finding`` that has places by the names that their tables use. A GPU may
stand there as its counters name it."""


class _Place(Struct, frozen=True):
    kind: str
    name: str
    runs: tuple[Row, ...]
    """Its rows, in the order in which they ran, by date."""
    offender: Offender | None
    parts: tuple[Offender, ...] = ()
    """Of a host: its GPUs and ports that stand out, and its rack where that does."""

    @property
    def bad(self) -> tuple[Row, ...]:
        return tuple(r for r in self.runs if r["rules"])

    @property
    def bad_ratio(self) -> float:
        return len(self.bad) / len(self.runs)


class Known(Struct, frozen=True):
    """What pages of places tell beside the places' own rows."""

    night: Night
    lake: Path | str
    jobs: Mapping[str, Row]
    """Rows of the table ``job`` by run."""
    findings: Mapping[str, Sequence[Row]]
    """Rows of the table ``finding`` by run."""
    family_pages: Mapping[str, str]
    """Page of each family that has one."""
    reports: Reports


def place_pages(tables: Mapping[str, Sequence[Row]], known: Known) -> dict[str, str]:
    """Pages by name: of each kind its table, and those of places on which findings lie."""
    owners = _owners(tables["gpu"], known.findings)
    places_by_kind = {
        kind: _places(kind, tables[kind], known.night, owners) for kind, _, _ in KINDS
    }
    page_of = {
        (p.kind, p.name): page_name(p.kind, p.name)
        for places in places_by_kind.values()
        for p in [p for p in places if p.bad][:MAX_PLACE_PAGES]
    }
    pages = {}
    for kind, name, title in KINDS:
        pages[name] = _listed(kind, title, places_by_kind[kind], owners, page_of, known)
        for place in places_by_kind[kind]:
            if (kind, place.name) in page_of:
                pages[page_of[kind, place.name]] = _place_page(place, owners, page_of, known)
    return pages


Owners = Mapping[tuple[str, str], set[str]]
"""Hosts of GPUs and ports on which findings lie, by kind and name."""


def _owners(gpus: Iterable[Row], findings: Mapping[str, Sequence[Row]]) -> Owners:
    """Whose a port is its findings say, where they name one host."""
    owners: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in gpus:
        if row["rules"] and row["host"] is not None:
            owners["gpu", row["gpu"]].add(row["host"])
    for found in (f for of_run in findings.values() for f in of_run):
        if not found["is_explained"] and len(found["hosts"] or ()) == 1:
            for link in found["links"] or ():
                owners["link", link].add(found["hosts"][0])
    return owners


def _places(kind: str, rows: Iterable[Row], night: Night, owners: Owners) -> list[_Place]:
    """Who stands out comes first, then hosts of which a part does, then whoever has findings in
    most of its runs."""
    parts: dict[str, list[Offender]] = defaultdict(list)
    for one in night.offenders if kind == "host" else ():
        for host in {name for name, _ in one.hosts} | owners.get((one.kind, one.name), set()):
            parts[host].append(one)
    offending = {o.name: o for o in night.offenders if o.kind == kind}
    runs: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        runs[row[kind]].append(row)
    places = [
        _Place(
            kind,
            name,
            tuple(sorted(of_it, key=lambda r: (r["date"], r["run"]))),
            offending.get(name),
            tuple(parts[name]),
        )
        for name, of_it in runs.items()
    ]
    return sorted(places, key=lambda p: (p.offender is None, not p.parts, -p.bad_ratio, p.name))


def _listed(
    kind: str,
    title: str,
    places: Sequence[_Place],
    owners: Owners,
    page_of: Mapping[tuple[str, str], str],
    known: Known,
) -> str:
    rows = [
        [
            linked(page_of.get((kind, p.name)), safe(p.name)),
            _standing(p, owners, page_of, known.night),
            (str(len(p.runs)), len(p.runs)),
            (str(len(p.bad)), len(p.bad)),
            (share(p.bad_ratio), p.bad_ratio),
            ", ".join(sorted({rule for row in p.bad for rule in row["rules"]})),
            p.bad[-1]["date"] if p.bad else "",
        ]
        for p in places[:MAX_ROWS]
    ]
    columns = [
        ("Name", "name"),
        ("Offender", ""),
        ("Runs", "n"),
        ("With findings", "n"),
        ("Share", "n"),
    ]
    left = len(places) - MAX_ROWS
    texts = [f"And {left:,} more, with fewer."] if left > 0 else []
    if not places:
        texts.append(f"No run of these weeks says which {_PLURALS[kind]} it used.")
    unpaged = sum(bool(p.bad) for p in places) - sum(k == kind for k, _ in page_of)
    if unpaged > 0:
        texts.append(
            f"The first {MAX_PLACE_PAGES} with findings have a page of their own; "
            f"{unpaged:,} more have findings."
        )
    section = {
        "name": kind,
        "title": title,
        "texts": texts,
        "columns": [*columns, ("Rules", "text"), ("Last", "day")],
        "rows": rows,
    }
    return page(title, known.night, [section])


def _standing(
    place: _Place, owners: Owners, page_of: Mapping[tuple[str, str], str], night: Night
) -> str:
    """Whether it stands out itself, or what of it does, or either is on watch."""
    if place.offender:
        return "stands out"
    for one in place.parts:
        name = f" {safe(one.name)}" if one.kind == "rack" else ""  # it has no page
        text = f"its {summary.ASKED[one.kind]}{name} stands out"
        return linked(page_of.get((one.kind, one.name)), text)
    for watched in night.watch.places:
        key = (watched.kind, watched.name)
        if key == (place.kind, place.name):
            return "watch"
        if place.kind == "host" and place.name in owners.get(key, ()):
            return linked(page_of.get(key), f"its {summary.ASKED[watched.kind]} on watch")
    return ""


_RUN_COLUMNS = (
    ("Date", "day"),
    ("Run", "name"),
    ("Job", "name"),
    ("Rules", "text"),
    ("Finding", "text"),
    ("GPU-hours a day", "n"),
)


def _place_page(
    place: _Place, owners: Owners, page_of: Mapping[tuple[str, str], str], known: Known
) -> str:
    from tracekit.dashboards import fleet_figures, look

    offender = place.offender
    nights = {job["date"] for job in known.jobs.values()}
    points = [{"date": r["date"], "is_bad": bool(r["rules"])} for r in place.runs]
    with look.style():
        drawn = fleet_figures.place_runs(points, nights, offender.since if offender else None)
        shown = figure(drawn, "trend")
    texts, links = report_of(
        place.bad[-1]["run"], "The last report with a finding on it", known.reports, known.lake
    )
    left = len(place.runs) - MAX_PLACE_ROWS
    if left > 0:
        texts.append(f"And {plural(left, 'earlier run')}.")
    return page(
        f"{summary.NOUNS[place.kind]} {safe(place.name)}",
        known.night,
        [
            {
                "name": "trend",
                "title": "Runs on it",
                "texts": [
                    summary.offender_sentence(one)
                    for one in ((offender,) if offender else place.parts)
                ],
                "figure": shown,
            },
            {
                "name": "around",
                "title": "Its GPUs and ports with findings" if place.kind == "host" else "Its host",
                "links": _around(place, owners, page_of),
            },
            {
                "name": "runs",
                "title": "Runs",
                "texts": texts,
                "links": links,
                "columns": _RUN_COLUMNS,
                "rows": [_run_row(place, r, known) for r in place.runs[-MAX_PLACE_ROWS:][::-1]],
            },
        ],
    )


def _around(
    place: _Place, owners: Owners, page_of: Mapping[tuple[str, str], str]
) -> list[tuple[str, str]]:
    """Pages of a GPU's or port's host, or of a host's GPUs and ports."""
    here = [("host", host) for host in owners.get((place.kind, place.name), ())]
    if place.kind == "host":
        here = [part for part, hosts in owners.items() if place.name in hosts]
    return [
        (page_of[kind, name], f"{summary.NOUNS[kind]} {safe(name)}")
        for kind, name in sorted(here)
        if (kind, name) in page_of
    ]


def _run_row(place: _Place, row: Row, known: Known) -> list[Any]:
    job = known.jobs.get(row["run"], {})
    family = known.family_pages.get(job.get("family") or "")
    cost = row["gpu_hours_per_day"]
    return [
        row["date"],
        linked(known.reports.pages.get(row["run"]), safe(row["run"])),
        linked(family, safe(job.get("job_name") or "-")),
        ", ".join(row["rules"]),
        " ".join(_sentences(place, row, known.findings.get(row["run"], ()))),
        (f"{cost:,.1f}", cost) if cost is not None else "",
    ]


def _sentences(place: _Place, row: Row, findings: Iterable[Row]) -> list[str]:
    """What the run's findings say of this place; nothing where it is not sure which are of it."""
    by_rule: dict[str, list[Row]] = defaultdict(list)
    for each in findings:
        if each["rule"] in row["rules"] and not each["is_explained"] and each["severity"] != "note":
            by_rule[each["rule"]].append(each)
    scope = _SCOPES.get(place.kind)
    told = []
    for rule in row["rules"]:
        of_rule = by_rule[rule]
        if scope is not None:
            told += [f for f in of_rule if place.name in (f[scope] or ())]
        elif len(of_rule) == 1:
            told += of_rule
    return [safe(f["summary"]) for f in told if f["summary"]]
