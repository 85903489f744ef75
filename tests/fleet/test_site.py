"""The fleet as pages: what nights say, links that lead somewhere, and names that are text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fleet_nights import SLOW_HOST, Fleet, day_of
from tracekit.errors import StoreError
from tracekit.fleet.site import PAGES, SITE_MARK, write_site
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
    assert set(again) == set(first)
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
