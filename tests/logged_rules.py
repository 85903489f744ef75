"""What tests of rules on the job's history share: a log of a day's steps of a second."""

from __future__ import annotations

from typing import Any

from tracekit.rules import rule
from tracekit.rules.base import Facts, RuleOutcome

Row = dict[str, Any]
SECOND = 10**9
DAY_S = 86_400
SUMMARY: Row = {
    "steps_count": DAY_S, "first_step": 1, "last_step": DAY_S, "starts_count": 1, "start_ns": 0,
    "end_ns": DAY_S * SECOND,
    "is_epoch": False, "mean_ns": 1.0 * SECOND, "p50_ns": 1.0 * SECOND, "epoch_steps_count": None,
    "source_id": 0,
}  # fmt: skip


def episode(kind: str, lost_s: float, **more: Any) -> Row:
    return {
        "kind": kind, "first_step": 1, "last_step": DAY_S, "start_ns": 0, "end_ns": DAY_S * SECOND,
        "dur_ns": None, "usual_ns": SECOND, "lost_ns": round(lost_s * SECOND), "period_count": None,
        "times_count": None, "clock_period_ns": None, "per_day_ratio": None, "repeated_count": None,
        "evaluations_count": None, "checkpoints_count": None, "collections_count": None,
        "inputs_count": None,
        "epochs_count": None, "ended_for": None,
    } | more  # fmt: skip


def episode_of(row: Row) -> Row:
    """A derived row with all columns."""
    return episode(row["kind"], (row.get("lost_ns") or 0) / SECOND) | row


def asked(name: str, *episodes: Row, summary: Row | None = None, **rows: list[Row]) -> RuleOutcome:
    """What a rule says of a log with these episodes."""
    given = {"job_step_summary": [SUMMARY | (summary or {})], "slow_episode": list(episodes)}
    return rule(name).run(Facts(rows={**given, **rows}))


def says_what_it_needs(name: str) -> None:
    """Without a log the rule lacks its input, and with a healthy one it is fine."""
    without = rule(name).run(Facts())
    assert "training log" in without.not_checked[0].needs
    assert not without.findings
