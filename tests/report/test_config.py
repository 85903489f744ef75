"""tracekit.toml: thresholds and silences, and the errors that say what is wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from tracekit.errors import UsageError
from tracekit.report import DiagnoseConfig, build_report

MakeJob = Callable[..., Any]


def config(text: str) -> DiagnoseConfig:
    return DiagnoseConfig.from_mapping(tomllib.loads(text))


def test_thresholds_change_what_is_found(make_job: MakeJob) -> None:
    job = make_job().stall("gc_pause", [1], range(1, 11), 30)
    strict = config("[rules.gc-pause]\nmin_impact_ratio = 0.5")
    assert "gc-pause" in {f.rule for f in build_report(job.facts()).findings}
    assert "gc-pause" not in {f.rule for f in build_report(job.facts(), config=strict).findings}


def test_a_silence_ends_after_its_day(make_job: MakeJob) -> None:
    facts = make_job().stall("gc_pause", [1], range(1, 11), 30).facts()
    quiet = config(
        '[[silence]]\nrule = "gc-pause"\nhosts = ["h0"]\nuntil = 2026-12-31\nreason = "ticket 4"'
    )
    assert not build_report(facts, config=quiet, today=date(2026, 12, 31)).findings
    assert build_report(facts, config=quiet, today=date(2027, 1, 1)).findings


def test_selected_rules_alone_run_and_alone_are_told(make_job: MakeJob) -> None:
    only = DiagnoseConfig(select=("gc-pause",))
    report = build_report(make_job(comm_ms=50).facts(), config=only)
    assert not report.findings
    assert [n.rule for n in report.document.not_checked] == ["gc-pause"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[thresholds]", "no section thresholds"),
        ("rules = 3", "one table a rule"),
        ("silence = 3", "list of tables"),
        ('[[silence]]\nrule = "gc-pause"', "needs a rule and a reason"),
        ('[[silence]]\nrule = "x"\nreason = "y"\nrank = 3', "nothing else"),
        ('[[silence]]\nrule = "x"\nreason = "y"\nuntil = "soon"', "must be a date"),
        ('[[silence]]\nrule = "x"\nreason = "y"\nranks = ["a"]', "whole numbers"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        config(text)
