"""A bench that was stopped goes on where it was, and never serves what older code found."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from accuracy import keep
from accuracy.keep import Kept, code_files, code_hash
from accuracy.run import _all
from accuracy.score import Named, Outcome
from accuracy.suite import REPORTING_SEEDS, TUNING_SEEDS, build


def found(label: str) -> Outcome:
    named = Named("gc-pause", "major", "likely", (2,), ("h0",), (), True, False, 0.12)
    return Outcome(label, "ddp", 8, 1, {"faults": [], "measured": {}}, "culprit", (named,))


def options(minutes: float | None = None) -> argparse.Namespace:
    return argparse.Namespace(workers=1, minutes=minutes)


def test_what_was_kept_is_read_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kept.jsonl"
    Kept(path).add("one", found("a"))
    Kept(path).add("two", found("b"))
    again = Kept(path)
    assert again.outcomes == {"one": found("a"), "two": found("b")}


def test_a_line_that_was_cut_off_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    kept = Kept(path)
    kept.add("one", found("a"))
    path.write_text(path.read_text() + path.read_text()[:40])
    again = Kept(path)
    assert list(again.outcomes) == ["one"]
    again.add("two", found("b"))
    assert list(Kept(path).outcomes) == ["one", "two"]


def test_only_what_is_missing_is_run(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept.jsonl")
    kept.add("one", found("kept"))
    ran: list[str] = []

    def run(item: str) -> Outcome:
        ran.append(item)
        return found(item)

    outcomes = _all(run, {"one": "1", "two": "2"}, options(), kept, "test")
    assert ran == ["2"]
    assert [o.label for o in outcomes] == ["kept", "2"]


def test_what_was_done_before_a_crash_is_kept(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept.jsonl")
    ran: list[str] = []

    def run(item: str) -> Outcome:
        if ran:
            raise KeyboardInterrupt
        ran.append(item)
        return found(item)

    with pytest.raises(KeyboardInterrupt):
        _all(run, {"one": "1", "two": "2"}, options(), kept, "test")
    assert len(Kept(kept.path).outcomes) == 1


def test_when_the_time_is_over_no_case_begins(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept.jsonl")
    kept.add("one", found("kept"))
    outcomes = _all(found, {"one": "1", "two": "2"}, options(1e-9), kept, "test")
    assert [o.label for o in outcomes] == ["kept"]


def test_the_hash_follows_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {str(p.relative_to(keep.ROOT)) for p in code_files()}
    for name in (
        "tracekit/clock.py",
        "tracekit/rules/slow_gpu.py",
        "tracekit/simulate/engine.py",
        "tracekit/queries/comm/straggler.sql",
        "tests/accuracy/run.py",
    ):
        assert name in names
    changed = tmp_path / "tracekit" / "clock.py"
    changed.parent.mkdir()
    changed.write_text("1")
    run = tmp_path / "tests" / "accuracy" / "keep.py"
    monkeypatch.setattr(keep, "ROOT", tmp_path)
    monkeypatch.setattr(keep, "__file__", str(run))
    before = code_hash()
    changed.write_text("2")
    assert code_hash() != before


def test_no_two_cases_share_a_key() -> None:
    cases = [
        c
        for seeds in (TUNING_SEEDS[:20], REPORTING_SEEDS[:20])
        for c in build(seeds, ["gc-pause", "slow-gpu"], healthy_per_seed=13)
    ]
    assert len({c.key for c in cases}) == len(cases)
