"""The JSON: valid by its own schema, without NaN, the same every time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from tracekit.report import InputFile, InputIssue, Report, build_report
from tracekit.report.json import plain
from tracekit.report.schema import document_schema, schema_page
from tracekit.rules import Facts

MakeJob = Callable[..., Any]
FINDING_KEYS = (
    "id rule severity confidence summary owner scope when impact evidence counter_evidence "
    "candidates explains explained_by confirm remedy next_capture rules_out"
)


def check(report: Report) -> dict[str, Any]:
    document = json.loads(report.to_json())
    Draft202012Validator(document_schema()).validate(document)
    assert isinstance(document, dict)
    return document


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(document_schema())


def test_the_schema_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "diagnose.schema.json"
    assert page.read_text(encoding="utf-8") == schema_page()


def test_a_report_with_findings_has_the_keys_of_the_contract(make_job: MakeJob) -> None:
    issue = InputIssue(name="cut_end", severity="error", count=1, place="byte 12")
    files = [InputFile(path="r0.json", kind="kineto", status="partial", rows=9, issues=(issue,))]
    job = make_job(comm_ms=20).stall("input_stall", [1], range(1, 11), 50)
    document = check(build_report(job.facts(), files))
    assert " ".join(document) == (
        "schema_version tracekit_version run coverage inputs verdict step_budget metrics findings "
        "not_checked"
    )
    assert " ".join(document["findings"][0]) == FINDING_KEYS
    assert " ".join(document["run"]) == (
        "id attempt window step_range ranks world_size hosts steps_count window_s"
    )
    assert document["run"]["step_range"] == [[1, 10]]
    assert document["run"]["window"]["start_utc"] == "2026-07-21T03:01:07.000000Z"
    assert document["coverage"] == {"ranks_traced": 4, "ranks_expected": 4, "steps_common": 10}
    assert " ".join(document["metrics"]) == "step_time overlap bubble mfu traffic clock"
    assert document["findings"][0]["severity"] == "critical"
    assert document["inputs"][0]["issues"][0]["place"] == "byte 12"


@pytest.mark.parametrize("kind", ["healthy", "empty", "host", "relative"])
def test_every_kind_of_report_is_valid(kind: str, make_job: MakeJob) -> None:
    kinds: dict[str, Callable[[], Facts]] = {
        "healthy": lambda: make_job().facts(),
        "empty": Facts,
        "host": lambda: make_job(measured_on="host").facts(world_size=None),
        "relative": lambda: make_job().facts(is_epoch=False, start_ns=5, end_ns=9),
    }
    document = check(build_report(kinds[kind]()))
    if kind == "relative":
        assert document["run"]["window"] == {"start_utc": None, "end_utc": None}


def test_the_schema_refuses_a_wrong_document(make_job: MakeJob) -> None:
    document = check(build_report(make_job().facts()))
    validator = Draft202012Validator(document_schema())
    assert not validator.is_valid({**document, "schema_version": 2})
    assert not validator.is_valid({k: v for k, v in document.items() if k != "not_checked"})
    assert not validator.is_valid(
        {**document, "verdict": {**document["verdict"], "kind": "guilty"}}
    )
    assert validator.is_valid({**document, "added_later": 1})


def test_numbers_that_are_none_become_null_and_order_is_fixed(make_job: MakeJob) -> None:
    assert plain({"a": float("nan"), "b": (float("inf"), 1.5)}) == {"a": None, "b": [None, 1.5]}
    job = make_job(comm_ms=20).stall("input_stall", [1], range(1, 11), 50)
    assert build_report(job.facts()).to_json() == build_report(job.facts()).to_json()


def test_a_name_from_a_foreign_file_stays_ascii(make_job: MakeJob) -> None:
    found = build_report(make_job().facts())
    run = replace(found.document.run, hosts=("h\x1b[31m\udcff",))
    text = Report(replace(found.document, run=run)).to_json()
    assert text.isascii()
    assert "\x1b" not in text
