"""Runs of which only training logs are known, compared by the steps that these tell."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tracekit
from tracekit.comparison.model import Comparison
from traces import write_job


def log(
    path: Path, seed: int, *, step_s: float = 4.2, every: int = 250, saved_s: float = 90
) -> Path:
    """2,000 steps, at each ``every`` a save; times in whole seconds, as Megatron-LM prints them."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    at, lines = datetime(2026, 3, seed, 8, tzinfo=UTC), []
    for step in range(1, 2001):
        own_s = step_s * (1 + rng.gauss(0, 0.01))
        at += timedelta(seconds=own_s)
        lines.append(
            f" [{at:%Y-%m-%d %H:%M:%S}] iteration {step}/ 48000 | "
            f"elapsed time per iteration (ms): {own_s * 1000:.1f} | lm loss: 5.0 |"
        )
        if step % every == 0:
            at += timedelta(seconds=saved_s)
    path.write_text("\n".join(lines) + "\n")
    return path


def compared(baseline: Path, candidate: Path) -> Comparison:
    return tracekit.compare([baseline], [candidate])


def parts(comparison: Comparison) -> dict[str, float]:
    return {c.cause: c.difference.difference_s for c in comparison.attribution}


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return log(tmp_path_factory.mktemp("logs") / "a.log", 1)


def test_two_logs_of_one_job_show_no_change(baseline: Path, tmp_path: Path) -> None:
    found = compared(baseline, log(tmp_path / "b.log", 2))
    assert found.verdict.change == "no significant change"
    assert (found.baseline.steps_count, found.candidate.steps_count) == (2000, 2000)
    assert found.baseline.mean_s == pytest.approx(4.2 + 7 * 90 / 2000, rel=0.005)
    assert "no traces, 2,000 steps" in found.to_text()
    assert any("training log" in lack.why for lack in found.not_compared)


def test_slower_steps_are_told_from_longer_saves(baseline: Path, tmp_path: Path) -> None:
    slower = compared(baseline, log(tmp_path / "c.log", 3, step_s=4.2 * 1.05))
    assert slower.verdict.change == "slower"
    assert parts(slower)["step"] == pytest.approx(0.21, rel=0.05)
    assert abs(parts(slower)["between"]) < 0.01
    assert "the steps themselves take longer" in slower.verdict.sentence
    often = compared(baseline, log(tmp_path / "d.log", 4, every=80))
    assert often.verdict.change == "slower"
    assert abs(parts(often)["step"]) < 0.01
    assert parts(often)["between"] == pytest.approx((24 - 7) * 90 / 2000, rel=0.05)
    assert "more between steps" in often.verdict.sentence
    assert sum(parts(often).values()) == pytest.approx(often.step.difference_s if often.step else 0)


def test_long_saves_do_not_hide_from_a_bar_that_the_steps_are_slower(tmp_path: Path) -> None:
    """6 % of steps that are 58 % of the mean are 3.5 % more; 1.6 % of that may be the runs'."""
    found = compared(
        log(tmp_path / "f.log", 6, every=700, saved_s=3000),
        log(tmp_path / "g.log", 7, step_s=4.2 * 1.06, every=700, saved_s=3000),
    )
    assert found.verdict.change == "slower"
    assert found.step is not None and (found.step.low_ratio or 0) < 0
    assert found.sure_ratio == pytest.approx(0.018, abs=0.003)
    assert found.exceeds(0.01)
    assert not found.exceeds(0.03)


def test_less_than_one_percent_is_no_change(baseline: Path, tmp_path: Path) -> None:
    found = compared(baseline, log(tmp_path / "e.log", 5, step_s=4.2 * 1.004))
    assert found.verdict.change == "no significant change"


def test_a_log_beside_traces_without_a_log_is_not_compared(baseline: Path, tmp_path: Path) -> None:
    write_job(tmp_path / "traced")
    found = compared(baseline, tmp_path / "traced")
    assert found.verdict.change == "not comparable"
