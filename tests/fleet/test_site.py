"""The fleet as pages: what nights say, links that lead somewhere, and names that are text."""

from __future__ import annotations

import errno
import functools
import html
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet_nights import (
    GPU_HOUR_EUR,
    GPU_WATTS,
    LINK,
    LINK_DAY,
    LINK_HOST,
    SLOW_DAY,
    SLOW_HOST,
    Fleet,
    day_of,
)
from tracekit.cli import main
from tracekit.dashboards import fleet_figures, look
from tracekit.errors import RunWriteError, StoreError
from tracekit.fleet import places, reports, summary
from tracekit.fleet.lake import make_lake
from tracekit.fleet.night import Night, judged
from tracekit.fleet.pages import PAGES, page_name
from tracekit.fleet.reports import Asked
from tracekit.fleet.rollup import Rolled
from tracekit.fleet.site import SITE_MARK, write_site
from tracekit.fleet.store import FleetStore
from tracekit.wording import share
from traces import write_job

LINKS = re.compile(r'href="([^"#][^"]*)"')


class Judged(Fleet):
    """A fleet that no test changes: its last night is judged once."""

    @functools.cached_property
    def last_night(self) -> Night:
        return night_of(self, self.days)


def night_of(fleet: Fleet, day: int) -> Night:
    return judged(fleet, day_of(day), Rolled())  # type: ignore[arg-type]  # as the store


def written(
    fleet: Fleet, folder: Path, day: int = 30, reports: Asked | None = None
) -> dict[str, str]:
    store: FleetStore = fleet  # type: ignore[assignment]  # it gives rows as the store does
    night = fleet.last_night if isinstance(fleet, Judged) else night_of(fleet, day)
    site = write_site(store, Path("/data/lake"), folder, night, reports)
    return {name: (folder / name).read_text(encoding="utf-8") for name in site.pages}


@pytest.fixture(scope="module")
def fleet() -> Judged:
    return Judged(1)


@pytest.fixture(scope="module")
def few_days() -> Judged:
    """The same, four nights old: for what is the same of any site, and asked of several."""
    return Judged(1, days=4)


@pytest.fixture(scope="module", autouse=True)
def drawn() -> Iterator[dict[str, str]]:
    """Of many families and places the first figure of a kind, by its axis, is drawn, and stands for
    the others': drawing is most of what a site takes to write."""
    by_kind: dict[str, str] = {}
    draw = look.inline_svg

    def first(figure: Any, name: str) -> str:
        kind = figure.axes[0].get_ylabel()
        if kind not in by_kind:
            by_kind[kind] = draw(figure, name)
        return by_kind[kind]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(look, "inline_svg", first)
        yield by_kind


@pytest.fixture(scope="module")
def pages(fleet: Judged, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return written(fleet, tmp_path_factory.mktemp("site") / "out")


def test_every_link_leads_to_a_page_and_nothing_leads_out(pages: dict[str, str]) -> None:
    linked = {name for text in pages.values() for name in LINKS.findall(text)}
    assert linked == set(pages)
    assert {name for name, _ in PAGES} <= set(pages)
    for text in pages.values():
        assert "default-src &#39;none&#39;" in text
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text)


def test_the_first_page_says_what_the_night_says(pages: dict[str, str]) -> None:
    text = pages["index.html"]
    assert f"Standing: Host {SLOW_HOST}: slow-host in" in text
    assert "megatron 2.4 to megatron 2.5" in text
    assert text.count("<svg") >= 1
    hosts = pages["hosts.html"]
    assert hosts.index(f">{SLOW_HOST}<") < hosts.index(">h00<")  # who stands out comes first
    family = next(t for n, t in pages.items() if n.startswith("family-") and "Slower since" in t)
    assert "tracekit diagnose /data/lake/runs/" in family


def test_parts_of_the_step_have_the_names_that_reports_give_them(tmp_path: Path) -> None:
    idle = Fleet(1, days=2)
    for _, tables in idle.runs[day_of(2)]:
        tables["budget"] = [{**row, "part": "host", "rule": None} for row in tables["budget"]]
    text = written(idle, tmp_path / "site", day=2)["index.html"]
    assert "idle costs most" in text
    assert "host costs most" not in text


def test_a_table_without_rows_is_no_heading_over_nothing(tmp_path: Path) -> None:
    bare = Fleet(1, days=2)
    for runs in bare.runs.values():
        for _, tables in runs:
            tables["job"][0]["family"] = None
            tables["link"] = []
    pages = written(bare, tmp_path / "site", day=2)
    assert "Families of jobs" not in pages["index.html"]
    assert "No run of these weeks says which ports it used." in pages["links.html"]
    assert "No run of these weeks" not in pages["hosts.html"]


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is made, if not drawn: a third of what is left."""
    for name in ("trend", "losses", "place_runs"):
        monkeypatch.setattr(fleet_figures, name, lambda *_: None)


@pytest.mark.usefixtures("without_figures")
def test_a_new_site_takes_the_place_of_the_old_one_and_of_nothing_else(tmp_path: Path) -> None:
    fleet = Fleet(1, days=4)
    first = written(fleet, tmp_path / "site", day=4)
    (tmp_path / "site" / "theirs.html").write_text("x")
    again = written(Fleet(1, days=4, decoys=frozenset()), tmp_path / "site", day=4)
    assert set(first) - set(again)  # hosts on which nothing lies any more
    assert {p.name for p in (tmp_path / "site").glob("*.html")} == {*again, "theirs.html"}
    (tmp_path / "site" / SITE_MARK).write_text('{"pages": ["../theirs.html", "gone.html"]}')
    (tmp_path / "theirs.html").write_text("x")
    (tmp_path / "site" / "gone.html").write_text("x")
    written(fleet, tmp_path / "site", day=4)
    assert (tmp_path / "theirs.html").exists()
    assert (tmp_path / "site" / "theirs.html").exists()
    assert not (tmp_path / "site" / "gone.html").exists()


def test_a_folder_of_somebody_is_no_site(fleet: Judged, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(StoreError, match="not a site"):
        written(fleet, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.usefixtures("without_figures")
def test_a_site_that_could_not_begin_is_nobodys_and_the_next_one_begins(
    few_days: Judged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site"

    def full(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(RunWriteError, match="No space left on device"):
            written(few_days, folder, day=4)
    assert [*folder.iterdir()] == []
    (folder / f".{SITE_MARK}.17.part").write_bytes(b"{")  # of one that was killed there
    assert "index.html" in written(few_days, folder, day=4)


def test_names_from_files_are_text(tmp_path: Path, drawn: dict[str, str]) -> None:
    drawn.clear()
    evil = "<script>alert(1)</script>\u202e"
    one = Fleet(1, days=8)
    for runs in one.runs.values():
        for _, tables in runs:
            tables["job"][0] |= {"job_name": evil, "sentence": evil, "framework": evil}
            tables["host"][0]["host"] = evil
            tables["host"][0]["rules"] = ["slow-host"]
    for text in written(one, tmp_path / "site", day=8).values():
        assert "<script>alert" not in text
        assert "\u202e" not in text


def shown_rows(text: str) -> list[list[str]]:
    """Cells of the rows of a page's tables, as text."""
    bodies = re.findall(r"<tbody>(.*?)</tbody>", text, re.DOTALL)
    rows = [row for body in bodies for row in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in rows]
    return [[html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in row] for row in cells]


def test_a_place_has_a_page_where_findings_lie_on_it_and_only_there(
    fleet: Judged, pages: dict[str, str]
) -> None:
    for kind, listing, _ in places.KINDS:
        rows = fleet.rows(kind, day_of(3), day_of(30))
        bad = {row[kind] for row in rows if row["rules"]}
        own = {page_name(kind, n) for n in bad}
        assert {n for n in pages if n.startswith(f"{kind}-")} == own
        linked = set(LINKS.findall(pages[listing])) - {name for name, _ in PAGES}
        assert linked == own | ({page_name("link", LINK)} if kind == "host" else set())


def test_a_host_whose_port_stands_out_says_so_and_leads_there(pages: dict[str, str]) -> None:
    standing = {row[0]: row[1] for row in shown_rows(pages["hosts.html"]) if row[1]}
    assert standing == {SLOW_HOST: "stands out", LINK_HOST: "its port stands out"}
    host, port = page_name("host", LINK_HOST), page_name("link", LINK)
    assert f"Port {LINK}: packet-loss in" in pages[host]
    assert port in LINKS.findall(pages[host])
    assert host in LINKS.findall(pages[port])


@pytest.mark.usefixtures("without_figures")
def test_a_host_whose_port_is_on_watch_says_so(tmp_path: Path) -> None:
    one = Fleet(1, days=8, faults=frozenset(), decoys=frozenset())
    _, tables = one.runs[day_of(8)][0]
    host, port = tables["host"][0], tables["link"][0]
    bad = {"rules": ["packet-loss"], "severity": "major", "gpu_hours_per_day": None}
    host |= bad
    port |= bad
    told = {"rule": "packet-loss", "severity": "major", "is_explained": False, "summary": "lost"}
    own = {name: port[name] for name in ("run", "date")}
    tables["finding"] = [{**own, **told, "hosts": [host["host"]], "links": [port["link"]]}]
    pages = written(one, tmp_path / "site", day=8)
    standing = {row[0]: row[1] for row in shown_rows(pages["hosts.html"]) if row[1]}
    assert standing[host["host"]] == "its port on watch"  # another is on watch by chance
    assert page_name("link", port["link"]) in LINKS.findall(pages["hosts.html"])


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_the_hosts_of_a_rack_that_stands_out_say_so(tmp_path: Path) -> None:
    racked = Fleet(1, faults=frozenset({"rack"}), decoys=frozenset())
    (rack,) = [o for o in night_of(racked, 30).offenders if o.kind == "rack"]
    rows = shown_rows(written(racked, tmp_path / "site")["hosts.html"])
    told = {row[0] for row in rows if row[1] == f"its rack {rack.name} stands out"}
    assert told == {host for host, _ in rack.hosts}


def test_a_table_that_scrolls_says_so(pages: dict[str, str]) -> None:
    rows, said = "64 rows", "(scroll for all of them)"
    assert re.search(rf"{rows}<span[^>]*> {re.escape(said)}", pages["hosts.html"])
    families = pages["index.html"].partition('id="families"')[2]
    assert " rows</caption>" in families
    assert said not in families


def test_the_first_page_begins_with_what_there_is_to_do(pages: dict[str, str]) -> None:
    (first,) = re.findall(r"<p>(Do: .*?)</p>", pages["index.html"])
    assert f"Drain, or mend: host {SLOW_HOST}. Have looked at: port {LINK}." in first
    assert '<a href="index.html" aria-current="page">' in pages["index.html"]
    assert "Skip to the content" in pages["index.html"]


def test_the_page_of_a_host_has_its_runs_and_what_they_say_of_it(
    fleet: Judged, pages: dict[str, str]
) -> None:
    name = page_name("host", SLOW_HOST)
    text = pages[name]
    runs = [r for r in fleet.rows("host", day_of(3), day_of(30)) if r["host"] == SLOW_HOST]
    bad = [r for r in runs if r["rules"]]
    shown = shown_rows(text)
    assert [row[1] for row in shown] == [
        r["run"] for r in sorted(runs, key=lambda r: (r["date"], r["run"]), reverse=True)
    ]
    said = {row[1]: row[4] for row in shown if row[3]}
    assert said == {r["run"]: f"{SLOW_HOST}: slow-host, as simulated." for r in bad}
    assert f"slow-host in {len(bad)} of its {len(runs)} runs" in text
    assert f"Most unlike before since {day_of(SLOW_DAY)}" in text
    assert f"Findings on it in {len(bad)} of {len(runs)} runs" in text
    last = max(bad, key=lambda r: (r["date"], r["run"]))
    assert f"tracekit diagnose /data/lake/runs/{last['run']}" in text
    assert name in LINKS.findall(pages["index.html"])
    assert {n for n in LINKS.findall(text) if n.startswith("family-")} <= set(pages)


def test_a_place_that_was_bad_once_is_not_said_to_offend(
    fleet: Judged, pages: dict[str, str]
) -> None:
    rows = fleet.rows("host", day_of(3), day_of(30))
    bad = {r["host"] for r in rows if r["rules"]} - {SLOW_HOST, LINK_HOST}
    assert bad
    for host in bad:
        text = pages[page_name("host", host)]
        assert "Most unlike" not in text
        assert " (others " not in text


def test_the_page_of_a_port_tells_what_lies_on_the_port(pages: dict[str, str]) -> None:
    text = pages[page_name("link", LINK)]
    assert f"Most unlike before since {day_of(LINK_DAY)}" in text
    assert {row[4] for row in shown_rows(text) if row[3]} == {f"{LINK}: packet-loss, as simulated."}


def test_a_gpu_is_told_what_is_surely_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "inline_svg", lambda *_: "")
    one = Fleet(1, days=8, faults=frozenset(), decoys=frozenset())
    bad = one.runs[day_of(8)][:2]
    gpus = [next(g for g in tables["gpu"]) for _, tables in bad]
    for index, (_, tables) in enumerate(bad):
        tables["gpu"][0]["rules"] = ["slow-gpu"]
        host = {**tables["host"][0], "rules": ["slow-gpu"]}
        tables["host"] = [h if h["host"] != host["host"] else host for h in tables["host"]]
        told = {
            "run": tables["job"][0]["run"],
            "rule": "slow-gpu",
            "severity": "major",
            "is_explained": False,
            "hosts": [],
            "links": [],
        }
        # The second run has two findings of the rule, on GPUs that it names otherwise.
        tables["finding"] = [{**told, "summary": f"finding {i}"} for i in range(index + 1)]
        tables["finding"].append({**told, "summary": "explained", "is_explained": True})
    pages = written(one, tmp_path / "site", day=8)
    sure, unsure = (pages[page_name("gpu", g["gpu"])] for g in gpus)
    assert [row[4] for row in shown_rows(sure) if "slow-gpu" in row] == ["finding 0"]
    assert "finding" not in "".join(cell for row in shown_rows(unsure) for cell in row)
    of_host = page_name("host", gpus[0]["host"])
    assert of_host in LINKS.findall(sure)
    assert f" runs, {day_of(8)}." in sure  # one day, and no span
    assert page_name("gpu", gpus[0]["gpu"]) in LINKS.findall(pages[of_host])


@pytest.mark.usefixtures("without_figures")
def test_a_fleet_of_bad_places_has_the_worst_ones_pages(
    fleet: Judged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "MAX_PLACE_PAGES", 2)
    monkeypatch.setattr(places, "MAX_PLACE_ROWS", 3)
    pages = written(fleet, tmp_path / "site")
    hosts = [name for name in pages if name.startswith("host-")]
    assert len(hosts) == 2
    assert page_name("host", SLOW_HOST) in hosts
    assert "more have findings" in pages["hosts.html"]
    assert len(shown_rows(pages[page_name("host", SLOW_HOST)])) == 3
    assert {name for text in pages.values() for name in LINKS.findall(text)} == set(pages)


class Making:
    """Makes report pages of so many bytes, but those of runs that are said to fail."""

    def __init__(self, size_bytes: int = 100, failing: frozenset[str] = frozenset()) -> None:
        self.asked: list[str] = []
        self.size_bytes = size_bytes
        self.failing = failing

    def __call__(self, run: str, page: Path) -> int:
        self.asked.append(run)
        if run in self.failing:
            raise StoreError("<b>no</b> longer in the lake")
        return reports.replace(page, f"report of {run}".ljust(self.size_bytes))


def leads(pages: dict[str, str]) -> dict[str, set[str]]:
    """Report pages that each page leads to."""
    return {name: {n for n in LINKS.findall(text) if RUN.match(n)} for name, text in pages.items()}


RUN = re.compile(r"run-[0-9a-f]{16}\.html")


@pytest.mark.usefixtures("without_figures")
def test_runs_that_pages_lead_to_have_reports_and_no_link_is_dead(
    fleet: Judged, tmp_path: Path
) -> None:
    making = Making()
    pages = written(fleet, tmp_path / "site", reports=Asked(making, count=30))
    linked = {name for text in pages.values() for name in LINKS.findall(text)}
    assert linked == set(pages)
    assert {p.name for p in (tmp_path / "site").glob("*.html")} == set(pages)
    assert len(making.asked) == len({n for n in pages if RUN.match(n)}) == 30
    one = fleet.last_night
    named = {run for o in one.offenders for run in o.runs}
    named |= {f.runs[0] for r in one.regressions for f in r.families}
    assert named <= set(making.asked)
    found = leads(pages)
    for run in named:
        assert page_name("run", run) in found["runs.html"]
    offender = one.offenders[0]
    of_host = found[page_name(offender.kind, offender.name)]
    assert {page_name("run", run) for run in offender.runs} <= of_host
    assert f"report of {offender.runs[-1]}" in pages[page_name("run", offender.runs[-1])]
    assert any(found[name] for name in found if name.startswith("family-"))


@pytest.mark.usefixtures("without_figures")
def test_a_report_is_made_once_for_a_generation_of_its_run(
    few_days: Judged, tmp_path: Path
) -> None:
    fleet, folder = few_days, tmp_path / "site"
    first, again, changed = Making(), Making(), Making()
    pages = written(fleet, folder, reports=Asked(first, count=10))
    assert written(fleet, folder, reports=Asked(again, count=10)) == pages
    assert again.asked == []
    written(fleet, folder, reports=Asked(changed, count=10, depends="another threshold"))
    assert changed.asked == first.asked
    (folder / page_name("run", first.asked[0])).unlink()
    lost = Making()
    written(fleet, folder, reports=Asked(lost, count=10, depends="another threshold"))
    assert lost.asked == first.asked[:1]
    bare = written(fleet, folder)
    assert not any(RUN.match(p.name) for p in folder.glob("*.html"))
    assert not any(leads(bare).values())


@pytest.mark.usefixtures("without_figures")
def test_a_report_that_cannot_be_made_is_named_and_linked_nowhere(
    fleet: Judged, tmp_path: Path
) -> None:
    one = fleet.last_night
    gone = one.offenders[0].runs[-1]
    making = Making(failing=frozenset({gone}))
    pages = written(fleet, tmp_path / "site", reports=Asked(making, count=10))
    assert page_name("run", gone) not in {n for text in pages.values() for n in LINKS.findall(text)}
    assert len({n for n in pages if RUN.match(n)}) == 9
    said = f"without a report page: 1 run ({gone}): &lt;b&gt;no&lt;/b&gt; longer in the lake"
    assert said in pages["index.html"]
    last = pages[page_name(one.offenders[0].kind, one.offenders[0].name)]
    assert "tracekit diagnose /data/lake/runs/" in last
    again = Making()  # it is asked for again
    assert page_name("run", gone) in written(
        fleet, tmp_path / "site", reports=Asked(again, count=10)
    )
    assert again.asked == [gone]


@pytest.mark.usefixtures("without_figures")
def test_reports_take_no_more_room_than_they_may(few_days: Judged, tmp_path: Path) -> None:
    making, again = Making(100), Making(100)
    asked = Asked(making, count=10, size_bytes=450)
    pages = written(few_days, tmp_path / "site", reports=asked)
    there = [*(tmp_path / "site").glob("run-*.html")]
    assert {p.name for p in there} == {page_name("run", r) for r in making.asked[:4]}
    assert "without a report page: 6 runs" in pages["index.html"]
    written(few_days, tmp_path / "site", reports=Asked(again, count=10, size_bytes=450))
    assert again.asked == []  # what has no room is not made another time


@pytest.mark.usefixtures("without_figures")
def test_a_site_that_was_killed_leaves_no_page_behind(few_days: Judged, tmp_path: Path) -> None:
    making = Making()

    def dies(run: str, page: Path) -> int:
        if len(making.asked) == 3:
            raise KeyboardInterrupt
        return making(run, page)

    with pytest.raises(KeyboardInterrupt):
        written(few_days, tmp_path / "site", reports=Asked(dies, count=10))
    assert len([*(tmp_path / "site").glob("run-*.html")]) == 3
    pages = written(few_days, tmp_path / "site")
    assert {p.name for p in (tmp_path / "site").glob("*.html")} == set(pages)


def test_losses_of_the_night_are_told_in_hours_energy_and_money(
    fleet: Judged, pages: dict[str, str]
) -> None:
    rows = {row[0]: row for row in shown_rows(pages["index.html"])}
    of_it = [r for r in fleet.rows("budget", day_of(30), day_of(30)) if r["rule"] == "slow-host"]
    hours = sum(r["gpu_hours_per_day"] for r in of_it)
    assert rows["slow-host"][1:] == [
        f"{hours:,.1f}",
        share(hours / (40 * 192)),
        f"{hours * GPU_WATTS / 1000:.2f} kWh a day",
        f"{hours * GPU_HOUR_EUR:.2f} EUR a day",
        str(len(of_it)),
    ]


def test_runs_with_a_training_log_tell_where_their_time_went(pages: dict[str, str]) -> None:
    section = pages["index.html"].partition('id="logged"')[2]
    assert "Where the time of jobs went" in section
    rows = [r for r in shown_rows(section) if r[1].startswith("job")]
    count = sum("goodput" in t for made in Fleet(1).runs.values() for _, t in made)
    days = len({r[0] for r in rows})
    assert 0 < days <= 28
    assert len(rows) <= count
    date, run, job, *told = rows[0]
    assert (date, run[-3:], job) == (day_of(30), "-30", "train-05")
    assert told == ["80", "90 %", "3.0 %", "2.0 %", "5.0 %"]  # without columns that are empty


def exit_of(words: list[str]) -> object:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def test_a_rollup_writes_the_site_and_its_night_leads_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(tmp_path / "traces", steps_count=2, stall_ms=30)
    lake = make_lake(tmp_path / "lake")
    for name in ("one", "two"):
        lake.add([tmp_path / "traces"], name=name, workers=1)
    words = ["rollup", str(tmp_path / "lake"), "--workers", "1"]
    site = ["--site", str(tmp_path / "site"), "--reports", "5", "--gpu-hour-price", "2EUR"]
    address = ["--site-url", "https://fleet.example.org/"]
    assert exit_of([*words, *site, *address, "--format", "json"]) == 0
    told = capsys.readouterr()
    night = json.loads(told.out)
    assert night["site"] == "https://fleet.example.org/index.html"
    assert night["without_report_page"] == {}
    pages = {n: page_name("run", n) for n in ("one", "two")}
    assert night["report_pages"] == {
        n: f"https://fleet.example.org/{page}" for n, page in pages.items()
    }
    assert "2 of them reports, 2 new" in told.err
    report = (tmp_path / "site" / pages["one"]).read_text()
    assert "<svg" in report
    assert " EUR a day" in (tmp_path / "site" / "index.html").read_text()

    shutil.rmtree(tmp_path / "lake" / "runs" / "one")  # its page stays
    assert exit_of([*words, *site]) == 0
    told = capsys.readouterr()
    assert f"MORE      {tmp_path}/site/index.html\n" in told.out
    assert "2 of them reports, 0 new" in told.err
    exit_of([*words, *site, "--format", "markdown"])
    assert f"[The fleet's pages](<{tmp_path}/site/index.html>)\n" in capsys.readouterr().out
    new = ["-o", str(tmp_path / "new"), "--workers", "1"]
    assert exit_of(["site", str(tmp_path / "lake"), *new]) == 0
    assert "1 run without a report page" in capsys.readouterr().err
    said = "without a report page: 1 run (one): it is no longer in the lake"
    assert said in (tmp_path / "new" / "index.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--site-url", "https://fleet.example.org"], "--site DIR beside it"),
        (["--site", "new", "--site-url", "ftp://x"], "is no address of a site"),
        (["--site", "theirs"], "theirs: exists and is not a site"),
    ],
)
def test_what_a_night_must_not_find_out_in_the_morning_is_said_before_it(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes.txt").write_text("x")
    make_lake(tmp_path / "lake")
    assert exit_of(["rollup", "lake", *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "lake" / "fleet").exists()


def test_sentences_of_a_night_lead_to_the_report_of_the_run_that_shows_them(fleet: Judged) -> None:
    one = fleet.last_night
    (slower,), (host, port) = one.regressions, one.offenders
    made = reports.Reports(
        pages={slower.families[0].runs[0]: "run-a.html", host.runs[-1]: "run-b.html"},
        missing={port.runs[-1]: "it is no longer in the lake"},
    )
    links = summary.Links("https://x.org", made)
    text = summary.to_text(one, "/data/lake", links)
    assert f"Report of {slower.families[0].runs[0]}: https://x.org/run-a.html\n" in text
    assert f"Report of {port.runs[-1]}: no page (it is no longer in the lake)\n" in text
    marked = summary.to_markdown(one, links)
    assert f"Report of [{host.runs[-1]}](<https://x.org/run-b.html>)." in marked
    assert marked.count("](<") == 3
