"""periodic-stall: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest
from logged_rules import SECOND, asked, episode, says_what_it_needs

from tracekit.findings import Severity


@pytest.mark.parametrize(
    ("lost_s", "severity"),
    [(18_000, Severity.CRITICAL), (5000, Severity.MAJOR), (864, Severity.MINOR), (863, None)],
)
def test_it_counts_by_its_share_of_the_job(lost_s: float, severity: Severity | None) -> None:
    row = episode("periodic", lost_s, period_count=1000, times_count=86)
    found = asked("periodic-stall", row).findings
    assert [f.severity for f in found] == ([severity] if severity else [])


def test_it_tells_distance_length_and_sum() -> None:
    (found,) = asked(
        "periodic-stall", episode("periodic", 8600, period_count=1000, times_count=86)
    ).findings
    assert found.summary.startswith(
        "Every 1,000 steps one takes 100 s longer (86 times, 2.39 h in all, 10 % of the job)"
    )
    assert found.scope.ranks == ()
    assert found.when.start_utc is None


@pytest.mark.parametrize(
    ("first", "last", "says"),
    [
        (1001, 68_121, "86 times, 2.39 h"),
        (1001, 68_119, "86 times, at steps 1,001 to 68,119, 2.39 h"),
    ],
)
def test_which_steps_are_said_where_they_are_not_nearly_all(
    first: int, last: int, says: str
) -> None:
    """Of 86,400 steps four fifths are 69,120, and each stall stands for a distance before it."""
    row = episode("periodic", 8600, period_count=2000, times_count=86, first_step=first,
                  last_step=last)  # fmt: skip
    (found,) = asked("periodic-stall", row).findings
    assert f"({says} in all" in found.summary


def test_what_keeps_to_the_clock_is_told_by_it_and_sought_among_timers() -> None:
    row = episode(
        "periodic", 1200, period_count=1175, times_count=16, clock_period_ns=3600 * SECOND
    )
    (found,) = asked("periodic-stall", row).findings
    assert found.summary.startswith(
        "Every 60 min, about every 1,175 steps, one takes 75.0 s longer (16 times, 20 min in all"
    )
    assert "systemctl list-timers" in found.confirm[0]
    assert found.remedy[0].startswith("move it")
    (named,) = asked("periodic-stall", row | {"checkpoints_count": 16}).findings
    assert named.confirm[0].startswith("profile one of these steps")  # saved by the hour


def test_the_end_of_an_epoch_is_called_so() -> None:
    row = episode("periodic", 8600, period_count=1000, times_count=86)
    near = asked("periodic-stall", row, summary={"epoch_steps_count": 1005}).findings[0]
    assert "at the end of each epoch" in near.summary
    far = asked("periodic-stall", row, summary={"epoch_steps_count": 1020}).findings[0]
    assert "epoch" not in far.summary


def test_what_the_log_has_before_the_stalls_is_said_and_decides_the_advice() -> None:
    stalls = {"period_count": 1000, "times_count": 10}
    row = episode("periodic", 8600, **stalls, evaluations_count=10, checkpoints_count=3)
    (found,) = asked("periodic-stall", row).findings
    assert found.summary.endswith(
        "; the log has evaluations before 10 and saved checkpoints before 3 of them."
    )
    assert [r.split()[0] for r in found.remedy] == ["evaluate"]
    counted = {e.name: e.value for e in found.evidence}
    assert counted["with an evaluation before them"] == 10
    row = episode("periodic", 8600, **stalls, checkpoints_count=8, collections_count=8)
    (found,) = asked("periodic-stall", row).findings
    assert [r.split()[0] for r in found.remedy] == ["save", "collect"]
    row = episode("periodic", 8600, **stalls, inputs_count=9)
    (found,) = asked("periodic-stall", row).findings
    assert found.summary.endswith(
        "; 9 of them wait for input half of the time or more, by the log."
    )
    assert found.remedy[0].startswith("the loader cannot keep up")
    row = episode("periodic", 8600, **stalls, checkpoints_count=7)  # just too few to advise on
    (found,) = asked("periodic-stall", row).findings
    assert "saved checkpoints before 7" in found.summary
    assert found.remedy[0].startswith("checkpoints: asynchronous")


def test_a_log_on_a_known_clock_says_when() -> None:
    row = episode("periodic", 8600, period_count=10, times_count=9, end_ns=2 * SECOND)
    (found,) = asked("periodic-stall", row, summary={"is_epoch": True}).findings
    assert found.when.end_utc == "1970-01-01T00:00:02.000000Z"


def test_other_stalls_and_a_healthy_log_are_not_its_own() -> None:
    assert not asked("periodic-stall", episode("stall", 9000)).findings
    healthy = asked("periodic-stall")
    assert (healthy.findings, healthy.not_checked) == ((), ())
    says_what_it_needs("periodic-stall")
