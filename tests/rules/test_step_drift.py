"""step-drift: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest
from logged_rules import DAY_S, SECOND, asked, episode, says_what_it_needs

from tracekit.rules.logged import growth, longer


@pytest.mark.parametrize(("per_day", "is_told"), [(0.001, True), (0.0009, False), (-0.01, False)])
def test_it_counts_by_its_growth_in_a_day(per_day: float, is_told: bool) -> None:
    row = episode("drift", 90, per_day_ratio=per_day)
    assert bool(asked("step-drift", row).findings) == is_told


def test_it_says_how_much_and_from_where() -> None:
    (found,) = asked("step-drift", episode("drift", 864, per_day_ratio=0.02)).findings
    assert found.summary == (
        "The step grows by 2 % a day, over 24 h from 1.00 s on: 1.0 % of the job so far."
    )


def test_a_log_of_less_than_a_day_may_show_the_day_s_warmth() -> None:
    short = {"end_ns": (DAY_S - 1) * SECOND, "steps_count": DAY_S - 1}
    assert not asked("step-drift", episode("drift", 9, per_day_ratio=0.1), summary=short).findings


def test_a_healthy_log_is_fine_and_none_is_lacking() -> None:
    healthy = asked("step-drift", episode("slow", 9000))
    assert (healthy.findings, healthy.not_checked) == ((), ())
    says_what_it_needs("step-drift")


def test_of_less_than_a_day_it_is_said_what_the_step_grew_by_in_it() -> None:
    drift = episode("drift", 0, per_day_ratio=24.0, end_ns=3600 * SECOND)
    assert growth(drift) == "the step grows by 100 % in these 60 min"
    assert growth(drift | {"start_ns": None, "end_ns": None}) == "the step grows by 2.4e+03 % a day"


@pytest.mark.parametrize(
    ("dur_s", "says"),
    [
        (2.4, "took 20 % longer than usual (2.40 s against 2.00 s)"),
        (5.99, "took 200 % longer than usual (5.99 s against 2.00 s)"),
        (6.0, "took 3 times as long as usual (6.00 s against 2.00 s)"),
        (40.0, "took 20 times as long as usual (40.0 s against 2.00 s)"),
    ],
)
def test_what_takes_many_times_as_long_is_told_in_times(dur_s: float, says: str) -> None:
    assert longer({"dur_ns": dur_s * 1e9, "usual_ns": 2e9}) == says
