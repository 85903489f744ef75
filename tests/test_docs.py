"""Generated documentation is current, and says so when it is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tracekit import catalog, docs, schema

RULES = docs.DOCS / "rules.md"


def test_the_committed_pages_are_current() -> None:
    diffs = docs.stale_pages()
    assert not diffs, "run python -m tracekit.docs\n" + "\n".join(diffs)


def test_a_page_that_differs_is_shown_as_a_diff(tmp_path: Path) -> None:
    docs.write_pages(tmp_path)
    assert docs.stale_pages(tmp_path) == []
    page = tmp_path / "tables.md"
    page.write_text(page.read_text(encoding="utf-8") + "more\n", encoding="utf-8")
    (diff,) = docs.stale_pages(tmp_path)
    assert "-more" in diff
    assert "docs/tables.md as it should be" in diff


def test_every_table_query_and_column_is_described() -> None:
    tables, queries = docs.tables_page(), docs.queries_page()
    for table in schema.TABLES:
        assert f"\n## {table.name}\n" in tables
        assert all(f"| `{c.name}` | {c.type} |" in tables for c in table.columns)
    for query in catalog.queries():
        assert f"\n## {query.name}\n" in queries
        assert all(f"| `{c.name}` | {c.type} |" in queries for c in query.columns)


def test_every_diagnosis_that_a_source_names_is_explained() -> None:
    explained = set(
        re.findall(r"^\| (D\d+|3\.\d+) \|", (docs.DOCS / "diagnoses.md").read_text(), re.M)
    )
    named = {
        code
        for page in (RULES.read_text(), docs.queries_page())
        for text in re.findall(r"Diagnosis((?:,? (?:and )?(?:D\d+|\d\.\d+))+)", page)
        for code in re.findall(r"D\d+|\d\.\d+", text)
    }
    named |= set(re.findall(r"\bD\d+\b", RULES.read_text()))
    assert len(named) > 30
    assert named <= explained


def test_arguments_that_cannot_be_meant_are_usage_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert docs.main(["--chek"]) == 2
    assert "usage" in capsys.readouterr().err


def test_check_reports_and_exits_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert docs.main(["--check"], tmp_path) == 1
    shown = capsys.readouterr()
    assert "+# Tables" in shown.out
    assert "hint: python -m tracekit.docs" in shown.err
