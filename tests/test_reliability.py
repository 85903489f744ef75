"""What findings quote of the accuracy bench: the committed table, and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tracekit import reliability
from tracekit.findings import Confidence, benched
from tracekit.report.build import build_report
from tracekit.report.finding_words import bench_words
from tracekit.rules import RULES

MakeJob = Callable[..., Any]
TABLE = {
    "simulated": {"rules": {"gc-pause": {"likely": {"right": 11, "of": 12}}}},
    "recorded": {"rules": {"gc-pause": {"likely": {"right": 2, "of": 2}}}},
}


def use(monkeypatch: pytest.MonkeyPatch, table: dict[str, Any]) -> None:
    monkeypatch.setattr(reliability, "table", lambda: table)


def test_simulated_and_recorded_jobs_are_quoted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, TABLE)
    found = benched("gc-pause", Confidence(level="likely", basis="b"))
    assert found.bench_precision == pytest.approx(11 / 12), "of simulated jobs alone"
    assert [(c.jobs, c.right_count, c.findings_count) for c in found.bench] == [
        ("simulated", 11, 12),
        ("recorded", 2, 2),
    ]
    assert found.level == "likely", "no level is raised by what was simulated"


@pytest.mark.parametrize(
    ("rule", "level", "of"), [("gc-pause", "possible", 12), ("slow-gpu", "likely", 12)]
)
def test_what_the_bench_did_not_see_is_not_quoted(
    rule: str, level: Any, of: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, TABLE)
    found = benched(rule, Confidence(level=level, basis="b"))
    assert (found.bench_precision, found.bench) == (None, ())


@pytest.mark.parametrize(("of", "is_quoted"), [(10, True), (9, False)])
def test_few_findings_make_no_share(
    of: int, is_quoted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"gc-pause": {"likely": {"right": of, "of": of}}}
    use(monkeypatch, {"simulated": {"rules": counts}})
    found = benched("gc-pause", Confidence(level="likely", basis="b"))
    assert (found.bench_precision is not None) == is_quoted
    assert len(found.bench) == 1


def test_a_report_quotes_it(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job()
    job.rows["gc_pause"] = []
    levels = {level: {"right": 30, "of": 40} for level in ("likely", "possible")}
    use(monkeypatch, {"simulated": {"rules": {r.name: levels for r in RULES}}})
    for rank in range(job.ranks_count):
        for step in job.steps:
            job.add(rank, step, "exposed_comm", 40_000_000)
    report = build_report(job.facts())
    assert report.findings
    for finding in report.findings:
        assert finding.confidence.bench_precision == pytest.approx(0.75)
        assert bench_words(finding) == "right in 30 of 40 such findings on simulated jobs"
    assert "accuracy bench: right in 30 of 40" in report.to_text(everything=True)


def test_without_a_table_nothing_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, {})
    found = benched("gc-pause", Confidence(level="likely", basis="b"))
    assert (found.bench_precision, found.bench) == (None, ())


def test_the_committed_table_counts_rules_that_exist() -> None:
    table = reliability.table()
    names = {rule.name for rule in RULES}
    for jobs in reliability.KINDS:
        rules = table[jobs]["rules"]
        assert set(rules) <= names
        assert table[jobs]["jobs"] > 0
        for levels in rules.values():
            for entry in levels.values():
                assert 0 <= entry["right"] <= entry["of"]
    assert table["simulated"]["seeds_kind"] == "report", "never quoted from tuning seeds"
