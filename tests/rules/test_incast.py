"""incast: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest

from link_rules import GBIT, MakeJob, crowd, job_of, only, port
from tracekit.findings import Severity
from tracekit.rules import RuleOutcome, rule


def test_a_crowd_at_one_port_names_its_receiver(make_job: MakeJob) -> None:
    finding = only(rule("incast").run(job_of(make_job, crowd())))
    assert finding.scope.ranks == (3,)
    assert finding.summary == (
        "Too much arrives at once at the port leaf:p3 towards rank 3 (h1): 5.0 % of its packets "
        "are marked, and 2 senders held back."
    )
    # 40 ms of transfers for 1.05 ms' worth of bytes: (4 GB / 19 s) * 0.1 s / (0.8 * 25 GB/s).
    assert finding.impact.s_per_step == pytest.approx(0.040 - 0.00105, abs=1e-5)
    assert finding.confidence.level == "likely"


def test_the_rate_within_the_steps_counts(make_job: MakeJob) -> None:
    """Not that of the window, which may have idle ends, nor of whole intervals that overhang."""
    steps = {"step_growth": 4e9, "step_covered_ns": 1e9}
    rows = [r | (steps if r["counter"] == "tx_bytes" else {}) for r in crowd()]
    finding = only(rule("incast").run(job_of(make_job, rows)))
    # (4 GB / 1 s) * 0.1 s / (0.8 * 25 GB/s) = 20 ms of the 40.
    assert finding.impact.s_per_step == pytest.approx(0.020)
    # No step is known: nothing is charged for what cannot be compared.
    unknown = {"step_growth": None, "step_covered_ns": None}
    rows = [r | (unknown if r["counter"] == "tx_bytes" else {}) for r in crowd()]
    assert only(rule("incast").run(job_of(make_job, rows))).impact.s_per_step is None


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(crowd(marked=0.049), id="just below"),
        pytest.param(crowd(others=0.0051), id="others are marked too"),
        pytest.param(crowd(host=0.01), id="the host pauses: it is slow itself"),
        pytest.param(crowd(senders=1), id="one sender is no crowd"),
        pytest.param(crowd(held=0.009), id="nobody is held back"),
    ],
)
def test_what_is_no_incast(make_job: MakeJob, rows: list[dict[str, Any]]) -> None:
    assert rule("incast").run(job_of(make_job, rows)) == RuleOutcome()


def test_an_exchange_is_a_crowd_by_itself(make_job: MakeJob) -> None:
    exchange = [{"rank": 0, "op": "all_to_all"}]
    facts = job_of(make_job, crowd(senders=0), comm_summary=exchange)
    assert only(rule("incast").run(facts)).scope.ranks == (3,)


def test_drops_at_a_queue_count_as_marks_do(make_job: MakeJob) -> None:
    rows = crowd(marked=0.0)
    for count, fires in ((100.0, True), (99.0, False)):
        # Dropped packets have left no port: 1e6 went out.
        dropped = [port("p3", "tx_queue_dropped_packets", count)]
        assert bool(rule("incast").run(job_of(make_job, rows + dropped)).findings) is fires


def test_drops_where_switches_mark_are_a_loss_and_no_crowd(make_job: MakeJob) -> None:
    rows = [
        *crowd(marked=0.0, others=1e-5),
        port("p3", "tx_queue_dropped_packets", 5000.0),
    ]
    assert rule("incast").run(job_of(make_job, rows)) == RuleOutcome()


def test_a_port_that_is_slower_than_the_others_is_no_incast(make_job: MakeJob) -> None:
    levels = [
        {"node": "leaf", "port": f"p{i}", "counter": "link_speed", "source_id": 0,
         "is_from_documentation": False, "max_value": (50 if i == 3 else 200) * GBIT}
        for i in range(4)
    ]  # fmt: skip
    assert rule("incast").run(job_of(make_job, crowd(), port_levels=levels)) == RuleOutcome()


def test_a_long_queue_alone_accuses_nobody(make_job: MakeJob) -> None:
    """As on a job with a hot expert: a queue that stands long, and not a mark or drop."""
    assert rule("incast").run(job_of(make_job, crowd(marked=0.0))) == RuleOutcome()


def test_marks_of_an_unproved_format_stay_a_note(make_job: MakeJob) -> None:
    finding = only(rule("incast").run(job_of(make_job, crowd(is_from_documentation=True))))
    assert finding.severity is Severity.NOTE


def test_nics_alone_do_not_show_a_queue(make_job: MakeJob) -> None:
    rows = [r | {"is_on_host": True} for r in crowd()]
    (missing,) = rule("incast").run(job_of(make_job, rows)).not_checked
    assert missing.needs == "counters of switch ports that lead to ranks"
