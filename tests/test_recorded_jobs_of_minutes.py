"""Logs of real jobs of a minute or two, each with one real fault: who is named, and nobody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracekit import api

JOBS = Path(__file__).parents[1] / "fixtures/logs/jobs"
NAMES = sorted(p.parent.name for p in JOBS.glob("*/truth.json"))


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_fault_is_named_and_nothing_else(name: str, tmp_path: Path) -> None:
    folder = JOBS / name
    truth: dict[str, Any] = json.loads((folder / "truth.json").read_text())
    with api.ingest(
        [folder / "train.log", folder / "tracekit-capture"], run=tmp_path / "run", workers=1
    ) as run:
        findings = run.diagnose().document.findings
        episodes = run.query("slow_episode").to_dicts()
    named = sorted({f.rule for f in findings})
    assert named == sorted([*truth["expected_rules"], *truth.get("symptom_rules", [])])
    if "period_count" in truth:
        periods = [e["period_count"] for e in episodes if e["kind"] == "periodic"]
        assert truth["period_count"] in periods
    if "rank" in truth:
        (first,) = (f for f in findings if f.rule == "first-failure")
        assert first.scope.ranks == (truth["rank"],)
        assert truth["exception"] in first.summary
    if "host" in truth:
        assert findings[0].scope.hosts == (truth["host"],)


@pytest.mark.parametrize(
    ("name", "ranks", "candidates", "words"),
    [
        ("torchrun-alike", (0, 1, 2, 3), (), "Ranks 0-3 failed alike: FloatingPointError"),
        ("torchrun-early", (), (2,), "No line tells of rank 2."),
        ("torchrun-stopped", (), (2,), "Rank 2 alone did not wait in vain."),
    ],
)
def test_recorded_endings_of_all_ranks_and_of_one_that_says_nothing(
    name: str, ranks: tuple[int, ...], candidates: tuple[int, ...], words: str
) -> None:
    document = api.open(JOBS.parent / f"{name}.log").diagnose().document
    (first,) = (f for f in document.findings if f.rule == "first-failure")
    assert (first.scope.ranks, first.candidates.ranks) == (ranks, candidates)
    assert words in first.summary
    assert "PLANTEDSECRET" not in repr(document)
