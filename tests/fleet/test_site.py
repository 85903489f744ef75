"""The fleet as pages: what nights say, links that lead somewhere, and names that are text."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from fleet_nights import LINK, LINK_DAY, LINK_HOST, SLOW_DAY, SLOW_HOST, Fleet, day_of
from tracekit.errors import StoreError
from tracekit.fleet import places
from tracekit.fleet.pages import PAGES, page_name
from tracekit.fleet.site import SITE_MARK, write_site
from tracekit.fleet.store import FleetStore

LINKS = re.compile(r'href="([^"#][^"]*)"')


def written(fleet: Fleet, folder: Path, day: int = 30) -> dict[str, str]:
    store: FleetStore = fleet  # type: ignore[assignment]  # it gives rows as the store does
    names = write_site(store, Path("/data/lake"), folder, day_of(day))
    return {name: (folder / name).read_text(encoding="utf-8") for name in names}


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return Fleet(1)


@pytest.fixture(scope="module")
def pages(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
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


def test_a_folder_of_somebody_is_no_site(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(StoreError, match="not a site"):
        written(fleet, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_names_from_files_are_text(tmp_path: Path) -> None:
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
    fleet: Fleet, pages: dict[str, str]
) -> None:
    for kind, listing, _ in places.KINDS:
        rows = fleet.rows(kind, day_of(3), day_of(30))
        bad = {row[kind] for row in rows if row["rules"]}
        assert {n for n in pages if n.startswith(f"{kind}-")} == {page_name(kind, n) for n in bad}
        linked = set(LINKS.findall(pages[listing])) - {name for name, _ in PAGES}
        assert linked == {page_name(kind, n) for n in bad}


def test_the_page_of_a_host_has_its_runs_and_what_they_say_of_it(
    fleet: Fleet, pages: dict[str, str]
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
    fleet: Fleet, pages: dict[str, str]
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


def test_a_gpu_is_told_what_is_surely_its_own(tmp_path: Path) -> None:
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


def test_a_fleet_of_bad_places_has_the_worst_ones_pages(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
