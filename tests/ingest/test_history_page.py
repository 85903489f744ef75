"""The page about training logs names each format that is read."""

from __future__ import annotations

from pathlib import Path

from tracekit.ingest.steplog.formats import FORMATS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "history.md"


def test_the_page_names_the_formats_in_their_order() -> None:
    formats = PAGE.read_text().partition("Lines of your own")[0]
    rows = [line.split("|")[1].strip() for line in formats.splitlines() if "|" in line]
    assert rows[2:] == [known.name for known in FORMATS]
