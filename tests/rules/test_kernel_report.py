"""kernel-report: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest
from logged_rules import episode

from tracekit.findings import Severity
from tracekit.rules import Facts, RuleOutcome, rule
from tracekit.rules.base import JobFacts

NAME = "kernel-report"
SECOND = 10**9


def report(code: str, **more: Any) -> dict[str, Any]:
    return {
        "host": "h1", "code": code, "device": None, "what": None, "program": None, "pid": None,
        "library": None, "reports_count": 1, "lasted_ns": None, "is_over": None, "was_up": False,
        "longest_ns": None, "time_ns": None, "is_in_window": None, "ranks": None, "source_id": 0,
        "place": 1, "attempt": None,
    } | more  # fmt: skip


def run(*rows: dict[str, Any], job: JobFacts | None = None, **queries: Any) -> RuleOutcome:
    facts = Facts(rows={"kernel_reports": rows, **queries}, job=job or JobFacts())
    return rule(NAME).run(facts)


def told(outcome: RuleOutcome) -> list[tuple[str, Severity, str]]:
    """By kind: what is said behind whose kernel it is."""
    return [
        (f.id.rpartition("-")[2], f.severity, f.summary.partition(" reports: ")[2])
        for f in outcome.findings
    ]


FLAP = report("kernel-link-down", device="ib0", is_over=True, lasted_ns=4 * SECOND)


@pytest.mark.parametrize(
    ("rows", "kind", "severity", "says"),
    [
        ([FLAP, FLAP], "link", Severity.MINOR, "came back: ib0 for 4.00 s, ib0 for 4.00 s."),
        ([FLAP | {"is_over": False, "was_up": True}], "link", Severity.MAJOR,
         "ib0 lost its link and did not come back."),
        ([report("kernel-gpu-failed", device="0000:01:00.0")], "gpu", Severity.MAJOR,
         "GPU 0000:01:00.0 failed, as its driver says."),
        ([report("kernel-gpu-failed", what="reset required")], "gpu", Severity.MAJOR,
         "GPU that it does not name failed, as its driver says."),
        ([report("sxid-20034", device="00000000:c4:00.0", what="fatal")], "nvswitch",
         Severity.MAJOR, "NVSwitch 00000000:c4:00.0: fatal SXid 20034."),
        ([report("kernel-nic-failed", device="0000:c1:00.0")], "nic", Severity.MAJOR,
         "NIC 0000:c1:00.0 failed, as its driver says."),
        ([report("kernel-cable", device="0000:c1:00.0", what="cable error")], "cable",
         Severity.MINOR, "the cable or optic of NIC 0000:c1:00.0: cable error."),
        ([report("kernel-pcie-error", device="0000:03:00.0", what="fatal", reports_count=2)],
         "pcie", Severity.MAJOR,
         "2 PCIe errors that the hardware could not correct at 0000:03:00.0."),
        ([report("kernel-pcie-error", device="0000:03:00.0", what="non-fatal")],
         "pcie", Severity.MINOR,
         "1 PCIe error that the hardware could not correct at 0000:03:00.0."),
        ([report("kernel-pcie-lost", device="0000:03:00.0", what="link down")],
         "pcie", Severity.MAJOR, "the PCIe link of slot 0000:03:00.0 was lost."),
        ([report("kernel-no-answer", device="nfs1", is_over=False)], "storage", Severity.MAJOR,
         "file server nfs1 stopped answering, and no line says that it answers again."),
        ([report("kernel-evicted", device="fs-OST0001"), report("kernel-disk-error", device="sda")],
         "storage", Severity.MINOR,
         "file server fs-OST0001 cut this client off and errors of disk sda."),
        ([report("kernel-stuck-task", program="python", longest_ns=120 * SECOND)], "storage",
         Severity.MINOR, "tasks were stuck (python) for 120 s and more."),
        ([report("kernel-lockup", longest_ns=26 * SECOND)], "lockup", Severity.MINOR,
         "CPUs were stuck for 26.0 s and more."),
        ([report("kernel-memory-error", what="uncorrected")], "memory", Severity.MAJOR,
         "1 memory error that could not be corrected."),
        ([report("kernel-heat", device="Core", reports_count=7)], "heat", Severity.NOTE,
         "its CPUs were too hot and slowed down (7 reports)."),
        ([report("oom-kill", pid=77), report("oom-kill", pid=5)], "ended", Severity.MAJOR,
         "the kernel killed processes 5, 77 for want of memory."),
        ([report("oom-kill")], "ended", Severity.MAJOR,
         "the kernel killed a process for want of memory."),
        ([report("kernel-crash", pid=9, program="python3", library="libnccl.so.2")], "ended",
         Severity.MAJOR, "python3 (process 9) in libnccl.so.2 crashed."),
    ],
)  # fmt: skip
def test_each_kind_of_report_is_told(
    rows: list[dict[str, Any]], kind: str, severity: Severity, says: str
) -> None:
    ((named, grave, words),) = told(run(*rows))
    assert (named, grave) == (kind, severity)
    assert words.endswith(says)


@pytest.mark.parametrize(
    ("code", "what", "words"),
    [
        ("kernel-pcie-error", "corrected", "100 corrected PCIe errors at MC0."),
        ("kernel-memory-error", "corrected", "100 corrected memory errors of MC0."),
    ],
)
def test_corrected_errors_are_told_of_a_device_that_has_many(
    code: str, what: str, words: str
) -> None:
    half = report(code, device="MC0", what=what, reports_count=50)
    other = half | {"device": "MC1"}
    assert told(run(half, half, other)) == [(told(run(half, half))[0][0], Severity.NOTE, words)]
    assert run(half, half | {"reports_count": 49}, other) == RuleOutcome()


def test_a_server_that_did_not_answer_counts_if_it_was_for_long() -> None:
    silence = report("kernel-no-answer", device="nfs1", is_over=True, lasted_ns=5 * SECOND)
    ((_, severity, words),) = told(run(silence, silence))
    assert (severity, words) == (Severity.MINOR, "file server nfs1 did not answer for 10.0 s.")
    assert run(silence, silence | {"lasted_ns": 5 * SECOND - 1}) == RuleOutcome()


def test_tasks_that_wait_for_a_silent_server_are_told_with_it() -> None:
    silence = report("kernel-no-answer", device="nfs1", is_over=True, lasted_ns=60 * SECOND)
    stuck = report("kernel-stuck-task", program="python", longest_ns=30 * SECOND)
    ((kind, _, words),) = told(run(silence, stuck))
    assert kind == "storage"
    assert words == (
        "file server nfs1 did not answer for 60.0 s and tasks were stuck (python) for 30.0 s and "
        "more."
    )


def test_a_link_that_was_never_up_is_no_loss() -> None:
    assert run(FLAP | {"is_over": False}) == RuleOutcome()


def test_what_the_job_s_logs_tell_themselves_is_not_told_again() -> None:
    assert run(report("oom-kill", pid=77), failures=[{"rank": 3}]) == RuleOutcome()


def test_beside_a_trace_only_what_was_while_the_job_ran_and_on_its_hosts() -> None:
    job = JobFacts(hosts={0: "h1"}, rank_sources={0: "env"})
    now = FLAP | {"is_in_window": True, "ranks": [0]}
    (finding,) = run(now, job=job).findings
    assert finding.scope.hosts == ("h1",)
    assert finding.confidence.basis == "the kernel's own word"
    for row in (
        now | {"is_in_window": False},
        now | {"is_in_window": None},
        now | {"host": "h9", "ranks": None},
    ):
        assert run(row, job=job) == RuleOutcome()


LOG = {
    "start_ns": 0, "steps_count": 1499, "mean_ns": 3.0 * SECOND, "end_ns": 1000 * SECOND,
    "p50_ns": 3.0 * SECOND, "last_step": 1499, "total_steps_count": None,
}  # fmt: skip
KILL = report("oom-kill", pid=77, time_ns=1060 * SECOND)


@pytest.mark.parametrize(
    ("row", "log", "is_why"),
    [
        (KILL, LOG, True),
        (KILL | {"time_ns": 940 * SECOND}, LOG, True),
        (KILL | {"time_ns": 1060 * SECOND + 1}, LOG, False),
        (KILL | {"time_ns": 1080 * SECOND}, LOG | {"p50_ns": 40.0 * SECOND}, True),
        (report("kernel-nic-failed", device="m0", time_ns=1000 * SECOND), LOG, True),
        # The job was done; no time; and what is not grave ends no job.
        (KILL, LOG | {"total_steps_count": 1499}, False),
        (KILL, LOG | {"total_steps_count": 1500}, True),
        (KILL | {"time_ns": None}, LOG, False),
        (KILL, LOG | {"end_ns": None}, False),
        (FLAP | {"time_ns": 1000 * SECOND}, LOG, False),
    ],
)
def test_what_came_with_the_last_step_of_the_log_ended_the_job(
    row: dict[str, Any], log: dict[str, Any], *, is_why: bool
) -> None:
    (finding,) = run(row, job_step_summary=[log]).findings
    assert (finding.severity is Severity.CRITICAL) is is_why
    assert ("at the time of step 1,499, the last of the training log" in finding.summary) is is_why
    without = run(row).findings[0]
    assert without.severity is not Severity.CRITICAL
    assert is_why or without == finding


STALL = episode("stall", 95, first_step=700, last_step=700, start_ns=500 * SECOND,
                end_ns=600 * SECOND)  # fmt: skip
DOWN = FLAP | {"time_ns": 590 * SECOND, "lasted_ns": 4 * SECOND}


@pytest.mark.parametrize(
    ("rows", "stalls", "lost_s"),
    [
        ([DOWN], [STALL], 95),
        ([DOWN | {"time_ns": 600 * SECOND}], [STALL], 95),
        ([DOWN | {"time_ns": 600 * SECOND + 1}], [STALL], None),
        ([DOWN | {"time_ns": 496 * SECOND}], [STALL], 95),
        ([DOWN | {"time_ns": 496 * SECOND - 1}], [STALL], None),
        # As often at other times, and more often.
        ([DOWN, DOWN | {"time_ns": 90 * SECOND}], [STALL], 95),
        ([DOWN, DOWN | {"time_ns": 90 * SECOND}, DOWN | {"time_ns": 91 * SECOND}], [STALL], None),
        ([DOWN], [STALL, STALL | {"start_ns": 592 * SECOND}], 190),
        ([DOWN], [STALL | {"start_ns": None, "end_ns": None}], None),
        ([DOWN], [STALL | {"kind": "slow"}], None),
        ([DOWN | {"time_ns": None}], [STALL], None),
        ([report("kernel-heat", time_ns=590 * SECOND)], [STALL], None),
    ],
)
def test_what_is_reported_in_stalls_of_the_log_costs_what_these_lost(
    rows: list[dict[str, Any]], stalls: list[dict[str, Any]], lost_s: int | None
) -> None:
    log = LOG | {"end_ns": 4000 * SECOND}
    (finding,) = run(*rows, job_step_summary=[log], slow_episode=stalls).findings
    assert finding.impact.s_per_step == lost_s
    assert ("Just then the job stalled at step 700" in finding.summary) is (lost_s is not None)
    job = JobFacts(hosts={0: "h1"}, rank_sources={0: "env"})
    traced = [r | {"is_in_window": True, "ranks": [0]} for r in rows]
    outcome = run(*traced, job=job, job_step_summary=[log], slow_episode=stalls)
    assert all(f.impact.s_per_step is None for f in outcome.findings)


def test_each_host_is_its_own_and_one_without_a_name_is_its_file() -> None:
    outcome = run(FLAP, FLAP | {"host": None, "source_id": 3})
    assert [f.scope.hosts for f in outcome.findings] == [("h1",), ()]
    assert "the machine of source 3 reports" in outcome.findings[1].summary
    assert "not known" in outcome.findings[0].confidence.basis


def test_without_a_kernel_s_log_it_is_not_checked() -> None:
    assert "kernel logs" in run().not_checked[0].needs


def test_an_nvswitch_s_errors_that_are_not_fatal_are_no_fault() -> None:
    assert run(report("sxid-12028", device="d", what="non-fatal")) == RuleOutcome()
