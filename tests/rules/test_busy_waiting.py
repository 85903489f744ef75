"""busy-waiting: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_rules import gauge, only, run
from tracekit.findings import Severity
from tracekit.rules import Facts, RuleOutcome, rule
from tracekit.rules.base import JobFacts

NAME = "busy-waiting"
GB = 1e9


def gpu(index: int, busy: float = 1.0, power: float = 66.0, **more: Any) -> list[dict[str, Any]]:
    """A V100 that waits, unless something else is said of it; None: nobody counted that."""
    values = {
        "gpu_utilisation": busy, "power": power, "power_limit": 300.0,
        "memory_copy_utilisation": 0.0, "memory_used": 20 * GB,
    }  # fmt: skip
    given = {**values, **{k: v for k, v in more.items() if k in values}}
    other = {k: v for k, v in more.items() if k not in values}
    return [
        gauge(index, name, value, None, **other) for name, value in given.items()
        if value is not None
    ]  # fmt: skip


def rows_of(*gpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for rows in gpus for row in rows]


WAITING = [gpu(i) for i in range(4)]


def test_gpus_that_are_busy_draw_little_and_read_no_memory_wait() -> None:
    finding = only(run(NAME, gpu_counters=rows_of(*WAITING)))
    assert finding.severity is Severity.MAJOR
    assert len(finding.scope.devices) == 4
    assert finding.summary.startswith(
        "4 GPUs (GPU 0 of h0, GPU 1 of h0, GPU 2 of h0 and 1 more) count as busy (100 %) and draw "
        "at most 66 W of 300 W: "
    )


@pytest.mark.parametrize(
    ("last", "fires"),
    [
        ({}, True),
        ({"busy": 0.95}, True),
        ({"busy": 0.94}, False),
        ({"power": 96.0}, True),
        ({"power": 97.0}, False),
        ({"memory_copy_utilisation": 0.05}, True),
        ({"memory_copy_utilisation": 0.06}, False),
        ({"power_limit": 0.0}, False),
    ],
)
def test_one_that_works_says_that_the_job_does(last: dict[str, Any], fires: bool) -> None:
    outcome = run(NAME, gpu_counters=rows_of(*WAITING[:3], gpu(3, **last)))
    assert bool(outcome.findings) is fires


def test_one_that_rests_and_holds_as_much_memory_is_waited_for() -> None:
    rows = rows_of(gpu(0, busy=0.0, power=53.0, rank=7), *(gpu(i) for i in (1, 2, 3)))
    finding = only(run(NAME, gpu_counters=rows))
    assert finding.scope.devices == ("h0 GPU 0",)
    assert finding.candidates.ranks == (7,)
    assert finding.summary.endswith(
        "; GPU 0 of h0 holds as much memory and does nothing: who runs there is waited for."
    )


@pytest.mark.parametrize(
    ("own", "others", "fires"),
    [
        ({}, {}, True),
        ({"busy": 0.05}, {}, True),
        ({"busy": 0.06}, {}, False),
        ({"memory_used": 5 * GB}, {}, True),
        ({"memory_used": 4.9 * GB}, {}, False),
        ({"memory_used": None}, {}, False),
        # Of a plain table nothing says whether memory is read: one at rest beside them does.
        ({}, {"memory_copy_utilisation": None}, True),
    ],
)
def test_what_holds_little_or_works_is_no_member_that_rests(
    own: dict[str, Any], others: dict[str, Any], fires: bool
) -> None:
    resting = gpu(0, **{"busy": 0.0, "power": 53.0, **own})
    rows = rows_of(resting, *(gpu(i, **others) for i in (1, 2, 3)))
    assert bool(run(NAME, gpu_counters=rows).findings) is fires


def test_without_memory_s_use_and_without_one_at_rest_nothing_is_said() -> None:
    rows = rows_of(*(gpu(i, memory_copy_utilisation=None) for i in range(4)))
    assert run(NAME, gpu_counters=rows) == RuleOutcome()


def test_one_gpu_waits_for_nobody_that_is_known() -> None:
    assert run(NAME, gpu_counters=rows_of(WAITING[0])) == RuleOutcome()
    assert run(NAME, gpu_counters=rows_of(*WAITING[:2])).findings


@pytest.mark.parametrize(("count", "severity"), [(10, Severity.MAJOR), (9, Severity.MINOR)])
def test_few_readings_may_be_a_moment(count: int, severity: Severity) -> None:
    rows = rows_of(*(gpu(i, samples_count=count) for i in range(4)))
    finding = only(run(NAME, gpu_counters=rows))
    assert finding.severity is severity
    assert ("may be a moment" in finding.summary) is (severity is Severity.MINOR)


def test_a_host_whose_gpus_work_is_not_told_for_another_s() -> None:
    other = [gpu(i, power=280.0, host="h1", gpu_id=f"h1 GPU {i}") for i in range(4)]
    finding = only(run(NAME, gpu_counters=rows_of(*WAITING, *other)))
    assert finding.scope.hosts == ("h0",)


def test_traces_say_themselves_who_waits() -> None:
    facts = Facts(
        rows={"gpu_counters": rows_of(*WAITING)}, job=JobFacts(rank_sources={0: "env", 1: "env"})
    )
    assert rule(NAME).run(facts) == RuleOutcome()


def test_without_power_and_its_limit_it_is_not_checked() -> None:
    rows = [row for row in rows_of(*WAITING) if row["counter"] != "power_limit"]
    assert "power limit" in run(NAME, gpu_counters=rows).not_checked[0].needs
