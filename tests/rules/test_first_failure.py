"""first-failure: who ended on its own, who only followed, and what is not said of anybody."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.findings import Finding, Severity, severity_of
from tracekit.rules import rule
from tracekit.rules.base import Facts, JobFacts, RuleOutcome

Row = dict[str, Any]
BASE: Row = dict.fromkeys(
    ("rank", "local_rank", "task", "host", "pid", "time_ns", "exit_code", "signal", "exception",
     "says", "file", "line", "function", "memory_of", "lost_host", "scheduler")
) | {
    "launch": 1, "is_root": False, "is_forced": False, "is_resumed": False, "source_id": 0,
    "place": 1,
}  # fmt: skip


def failed(rank: int | None, follows: str = "nothing", **more: Any) -> Row:
    return BASE | {"rank": rank, "follows": follows, "place": 10 + (rank or 0)} | more


def ended(rank: int) -> Row:
    return failed(rank, "terminated", signal="SIGTERM")


def asked(*rows: Row, **others: list[Row]) -> RuleOutcome:
    return rule("first-failure").run(Facts(rows={"failures": rows, **others}))


def found(*rows: Row) -> list[Finding]:
    return list(asked(*rows).findings)


RAISED = failed(
    2, exception="ValueError", file="train.py", line=6, function="loss", is_root=True, exit_code=1
)


def test_the_rank_that_raised_is_named_and_those_that_followed_are_not() -> None:
    (finding,) = found(ended(0), failed(1, "peer_lost", exception="RuntimeError"), RAISED, ended(3))
    assert finding.scope.ranks == (2,)
    assert finding.severity == Severity.CRITICAL
    assert finding.summary == (
        "Rank 2 failed first: ValueError in train.py, line 6 (loss). Ranks 0-1,3 only followed."
    )


@pytest.mark.parametrize(
    ("row", "says", "owner"),
    [
        (failed(1, signal="SIGKILL"), "ended by SIGKILL, which its launcher did not send",
         "platform"),
        (failed(1, signal="SIGKILL", memory_of="cgroup"), "the memory of its cgroup ran out",
         "platform"),
        (failed(1, exit_code=137), "it ended with exit code 137", "model"),
        (failed(1), "it died, and how is not said", "model"),
        (failed(1, exception="torch.OutOfMemoryError", says="gpu_memory", file="a.py", line=3),
         "torch.OutOfMemoryError in a.py, line 3; GPU memory ran out", "model"),
        (failed(1, exception="RuntimeError", says="loader_killed"),
         "a worker of its data loader was killed", "platform"),
        (failed(1, exception="OSError", says="storage"), "its file system failed", "platform"),
        (failed(1, exception="ReadTimeout", says="service"), "did not answer", "platform"),
        (failed(1, exception="EOFError", says="process_lost"), "it had begun went away", "model"),
        (failed(1, exception="RuntimeError", says="loader_died"),
         "a worker of its data loader died", "model"),
        (failed(1, exception="RuntimeError", says="uncorrectable ECC error"),
         "RuntimeError; uncorrectable ECC error", "hardware"),
        (failed(1, exception="RuntimeError", says="shared_memory"), "out of shared memory (/dev",
         "platform"),
        (failed(1, signal="SIGSEGV"), "ended by SIGSEGV", "framework"),
        (failed(1, signal="SIGABRT", says="an illegal memory access"),
         "its GPU met an illegal memory access, which ended it (SIGABRT)", "model"),
        (failed(1, exception="DistBackendError", says="link_failed"),
         "NCCL's connection over InfiniBand or RoCE failed", "network"),
        (failed(1, exception="DistBackendError", says="duplicate_gpu"),
         "two ranks were given the same GPU", "platform"),
        (failed(1, exception="DistBackendError", says="nccl_shared_memory"),
         "NCCL could not make its shared memory", "platform"),
        (failed(1, signal="SIGABRT", says="a hang"), "its GPU met a hang", "hardware"),
        (failed(1, signal="SIGABRT", says="uncorrectable ECC error"),
         "its GPU met uncorrectable ECC error", "hardware"),
    ],
)  # fmt: skip
def test_how_it_ended_is_said_and_whose_it_is(row: Row, says: str, owner: str) -> None:
    (finding,) = found(row, ended(0))
    assert says in finding.summary
    assert finding.owner == owner


def test_memory_that_failed_is_the_hardware_s_and_no_program_is_searched() -> None:
    for told in ({"exception": "RuntimeError"}, {"signal": "SIGABRT"}):
        (finding,) = found(failed(1, says="uncorrectable ECC error", **told), ended(0))
        assert "ROW_REMAPPER" in finding.remedy[0]


def test_one_that_alone_did_not_wait_in_vain_is_a_candidate() -> None:
    waited = [failed(r, "timeout", exception="RuntimeError") for r in (0, 1, 3)]
    (finding,) = found(*waited, ended(2))
    assert finding.scope.ranks == ()
    assert finding.candidates.ranks == (2,)
    assert finding.summary.endswith("does not say so. Rank 2 alone did not wait in vain.")
    # As many were terminated as half of those that waited: the launcher was quick.
    for rows in ([*waited[:2], ended(2)], [*waited, ended(2), ended(4)]):
        (finding,) = found(*rows)
        assert not finding.candidates.ranks
    # Of one that no line names it cannot be said who it was.
    (finding,) = found(*waited, failed(None, "terminated", signal="SIGTERM"))
    assert not finding.candidates.ranks


def test_calls_that_differ_are_raised_by_all_members_and_name_nobody() -> None:
    (finding,) = found(*(failed(r, "mismatch", exception="RuntimeError") for r in range(4)))
    assert finding.scope.ranks == finding.candidates.ranks == ()


def test_those_who_all_lost_a_peer_name_nobody() -> None:
    rows = [failed(r, "peer_lost", exception="RuntimeError", is_root=r == 0) for r in range(4)]
    (finding,) = found(*rows)
    assert finding.scope.ranks == ()
    assert finding.severity == Severity.MINOR
    assert "does not say so" in finding.summary


def test_of_two_hosts_the_earlier_one_s_is_the_first() -> None:
    early = failed(9, host="b", signal="SIGKILL", is_root=True, time_ns=4, source_id=1)
    late = failed(1, host="a", exit_code=1, is_root=True, time_ns=7)
    (finding,) = found(late, early)
    assert (finding.scope.ranks, finding.scope.hosts) == ((9,), ("b",))


def test_of_two_hosts_in_one_second_both_are_candidates_and_nobody_is_named() -> None:
    one = failed(9, host="b", signal="SIGKILL", is_root=True, time_ns=4, source_id=1)
    (finding,) = found(failed(1, host="a", exit_code=1, is_root=True, time_ns=4), one)
    assert finding.scope.ranks == ()
    assert finding.candidates.ranks == (1, 9)


def test_what_the_launcher_saw_first_goes_before_what_stands_first() -> None:
    (finding,) = found(failed(0, exception="KeyError", place=1), RAISED)
    assert finding.scope.ranks == (2,)


def test_a_failure_that_a_restart_outlived_is_not_critical_and_each_launch_has_its_own() -> None:
    first = RAISED | {"is_resumed": True}
    (outlived,) = found(first)
    assert outlived.severity == Severity.MAJOR
    again = failed(3, exception="KeyError", launch=2, place=99)
    last, before = found(first, again)
    assert (last.scope.ranks, last.severity) == ((3,), Severity.CRITICAL)
    assert "in launch 2 of 2" in last.summary
    assert (before.scope.ranks, before.severity) == ((2,), Severity.MAJOR)


def test_the_same_again_and_again_is_one_finding() -> None:
    assert len(found(RAISED, RAISED | {"launch": 2}, RAISED | {"launch": 3})) == 1


def test_a_process_without_a_number_is_told_by_what_is_known() -> None:
    (finding,) = found(failed(None, task="3", host="gpu-7", signal="SIGKILL", memory_of="cgroup"))
    assert finding.summary.startswith("Task 3 on gpu-7 failed first: killed because the memory")
    assert finding.scope.hosts == ("gpu-7",)


def test_a_process_that_nothing_names_has_a_short_name_in_the_list() -> None:
    (finding,) = found(failed(None, signal="SIGKILL", memory_of="cgroup"))
    assert finding.summary.startswith("A process that the log does not name failed first")
    assert finding.id.endswith("unnamed")


def test_terminations_alone_are_told_and_blame_nobody() -> None:
    (finding,) = found(ended(0), ended(1))
    assert finding.scope.ranks == ()


def test_a_log_without_a_failure_is_fine_and_without_a_log_nothing_is_known() -> None:
    log = asked(job_step_summary=[{"steps_count": 9}])
    assert (log.findings, log.not_checked, log.is_applicable) == ((), (), True)
    assert [n.rule for n in asked().not_checked] == ["first-failure"]
    traces = Facts(job=JobFacts(hosts={0: "a"}))
    assert [n.rule for n in rule("first-failure").run(traces).not_checked] == ["first-failure"]


def scheduled(why: str, **more: Any) -> Row:
    return failed(None, scheduler=why, source_id=7, place=2) | more


OUTSIDE = ("time limit", "deadline", "cancelled", "preempted")


@pytest.mark.parametrize("why", [*OUTSIDE, "node failure"])
@pytest.mark.parametrize(
    "how",
    [{"signal": "SIGKILL", "is_root": True}, {"exit_code": 137}, {"task": "3", "exit_code": 1}],
)
def test_what_a_scheduler_ended_accuses_no_process(why: str, how: Row) -> None:
    (finding,) = found(failed(1, **how), ended(0), scheduled(why))
    assert (finding.scope.ranks, finding.scope.hosts) == ((), ())
    assert "may only have followed" in finding.summary
    (alone,) = found(failed(1, **how), ended(0))  # without the scheduler's word it is named
    assert alone.scope.ranks == (1,)


@pytest.mark.parametrize(
    "how",
    [{"exception": "ValueError"}, {"signal": "SIGSEGV"}, {"exit_code": 3},
     {"signal": "SIGKILL", "memory_of": "cgroup"}],
)  # fmt: skip
def test_what_no_scheduler_sends_still_failed_first(how: Row) -> None:
    (finding,) = found(failed(1, **how), ended(0), scheduled("cancelled"))
    assert finding.scope.ranks == (1,)
    assert "was cancelled" in finding.summary


def test_a_launcher_that_was_told_to_end_is_said_and_blames_nobody() -> None:
    (finding,) = found(ended(0), scheduled("terminated"))
    assert (finding.scope.ranks, finding.severity) == ((), Severity.MINOR)
    assert finding.summary.startswith("The job's launcher was told to end from outside")
    (alone,) = found(scheduled("terminated"))
    assert "scheduler's" not in alone.summary + alone.confidence.basis


@pytest.mark.parametrize("how", [{"signal": "SIGKILL"}, {"exception": "ValueError"}])
def test_who_failed_before_a_launcher_was_told_to_end_still_failed_first(how: Row) -> None:
    """Slurm ends the launchers of the other hosts because of it."""
    (finding,) = found(failed(1, **how), ended(0), scheduled("terminated"))
    assert finding.scope.ranks == (1,)


def test_a_failed_node_is_named_where_the_scheduler_names_it() -> None:
    lost = failed(1, "peer_lost", exception="RuntimeError")
    (finding,) = found(lost, scheduled("node failure", host="gpu-3"))
    assert (finding.scope.hosts, finding.owner) == (("gpu-3",), "hardware")
    assert finding.severity == Severity.CRITICAL
    (ended_by_hand,) = found(scheduled("cancelled", host="gpu-3"))
    assert ended_by_hand.scope.hosts == ()
    assert ended_by_hand.severity == Severity.MINOR


@pytest.mark.parametrize("why", OUTSIDE)
def test_a_peer_that_was_lost_before_is_not_explained_by_the_end(why: str) -> None:
    lost = [failed(r, "timeout", exception="RuntimeError") for r in range(2)]
    (finding,) = found(*lost, scheduled(why))
    assert finding.scope.ranks == ()
    assert "does not say so" in finding.summary
    assert "scheduler says" in finding.summary


def test_memory_that_ran_out_names_the_process_that_was_killed() -> None:
    (finding,) = found(failed(1, signal="SIGKILL"), ended(0), scheduled("out of memory", host="n"))
    assert finding.scope.ranks == (1,)
    assert "memory ran out in one of its steps" in finding.summary
    assert "memory" in finding.remedy[0]
    (crashed,) = found(failed(1, signal="SIGSEGV"), ended(0), scheduled("out of memory", host="n"))
    assert "memory" not in crashed.remedy[0]
    killed = failed(1, signal="SIGKILL", memory_of="host", is_resumed=True)
    (by_kernel,) = found(killed, scheduled("out of memory", launch=2))
    assert by_kernel.scope.ranks == (1,)
    (alone,) = found(scheduled("out of memory", host="n"))
    assert (alone.scope.hosts, alone.severity) == (("n",), Severity.MAJOR)


def test_an_earlier_launch_is_judged_without_the_scheduler() -> None:
    outlived = failed(1, signal="SIGKILL", is_resumed=True)
    last, before = found(outlived, scheduled("time limit", launch=2))
    assert last.scope.ranks == ()
    assert (before.scope.ranks, before.severity) == ((1,), Severity.MAJOR)


def pod(name: str, follows: str = "nothing", **more: Any) -> Row:
    return failed(None, follows, task=f"pod/{name}", host=f"host-{name}") | more


def test_the_pod_that_ended_first_is_named() -> None:
    (finding,) = found(
        pod("w-1", time_ns=200, exit_code=1, place=2),
        pod("w-0", time_ns=205, exit_code=1, place=1),
        pod("w-2", "terminated", time_ns=100, signal="SIGTERM", place=3),
    )
    assert finding.summary.startswith("Pod w-1 on host-w-1 failed first")
    assert finding.scope.hosts == ("host-w-1",)
    assert finding.confirm[0].startswith("kubectl describe pod/w-1")


@pytest.mark.parametrize("time_ns", [None, 200])
def test_of_pods_that_no_time_tells_apart_none_is_blamed(time_ns: int | None) -> None:
    rows = [pod(f"w-{n}", time_ns=time_ns, memory_of="cgroup", place=n) for n in range(12)]
    (finding,) = found(*rows)
    assert finding.scope.hosts == ()
    assert len(finding.candidates.hosts) == 12
    assert "w-7" in finding.summary
    assert "or 4 others" in finding.summary


def test_an_eviction_explains_the_pods_that_ended_with_it_and_none_before() -> None:
    evicted = scheduled("evicted", task="pod/w-0", host="a", time_ns=300)
    (finding,) = found(pod("w-1", time_ns=301, exit_code=1), evicted)
    assert "one of its pods was evicted" in finding.summary
    assert finding.scope.hosts == ()
    assert finding.confirm[0].startswith("kubectl describe pod/w-0")
    (before,) = found(pod("w-1", time_ns=299, exit_code=1), evicted)
    assert before.summary.startswith("Pod w-1 on host-w-1 failed first")


def test_one_that_no_line_tells_of_is_a_candidate_where_the_others_waited_in_vain() -> None:
    waited = [failed(r, "peer_lost", exception="RuntimeError") for r in (0, 1, 3)]
    (finding,) = found(*waited)
    assert finding.summary.endswith("does not say so. No line tells of rank 2.")
    assert finding.candidates.ranks == (2,)
    assert finding.scope.ranks == ()
    (whole,) = found(*(failed(r, "peer_lost", exception="RuntimeError") for r in range(4)))
    assert not whole.candidates.ranks
    # Most of the output is missing: 2 to 6 are of hosts whose logs were not given.
    (few,) = found(*(failed(r, "timeout", exception="RuntimeError") for r in (0, 1, 7)))
    assert not few.candidates.ranks


def test_ranks_that_raise_the_same_at_the_same_place_failed_alike() -> None:
    at: Row = {"exception": "KeyError", "file": "train.py", "line": 48, "function": "main"}
    own = [failed(r, **at, is_root=r == 1) for r in (1, 3)]
    (finding,) = found(*own, failed(0, "peer_lost", exception="RuntimeError"))
    assert finding.summary == (
        "Ranks 1,3 failed alike: KeyError in train.py, line 48 (main). Rank 0 only followed."
    )
    assert finding.scope.ranks == (1, 3)
    (other,) = found(failed(1, **at, is_root=True), failed(3, **at | {"line": 49}))
    assert other.scope.ranks == (1,)


@pytest.mark.parametrize(
    ("says", "words"),
    [("address_in_use", "was in use"), ("no_gpu", "no usable GPU")],
)
def test_what_a_host_lacks_is_its_platform_s(says: str, words: str) -> None:
    (finding,) = found(failed(1, exception="RuntimeError", says=says))
    assert words in finding.summary
    assert finding.owner == "platform"


def test_one_that_alone_was_interrupted_is_a_candidate() -> None:
    lost = [failed(r, "peer_lost", exception="RuntimeError") for r in (0, 2, 3)]
    interrupted = failed(1, "terminated", exception="KeyboardInterrupt", signal="SIGINT")
    (finding,) = found(*lost, interrupted)
    assert finding.candidates.ranks == (1,)


XID = {
    "gpu_id": "h1 GPU 3", "gpu_index": 3, "pci": None, "host": "h1", "rank": None,
    "rank_source": None, "host_ranks": None, "xid": 79, "pid": 105, "time_ns": 1,
    "is_in_window": None, "severity": "error", "source_id": 1, "place": 7,
}  # fmt: skip


@pytest.mark.parametrize(
    ("xids", "row", "is_told"),
    [
        ([XID], {}, True),
        ([XID], {"host": "h1"}, True),
        ([XID], {"host": "h2"}, False),
        ([XID | {"pid": 106}], {}, False),
        ([XID | {"pid": None}], {}, False),
        # 31 is a wrong access of the program itself.
        ([XID | {"xid": 31}], {}, False),
        # Another host may have a process of that number, too.
        ([XID, XID | {"host": "h2"}], {}, False),
    ],
)
def test_a_gpu_s_fault_that_the_driver_reports_for_its_process_is_told(
    xids: list[Row], row: Row, is_told: bool
) -> None:
    dead = failed(5, signal="SIGABRT", says="unspecified launch failure", pid=105, **row)
    (finding,) = asked(dead, ended(1), gpu_events=xids).findings
    says = "The driver reports XID 79 (fell off the bus) of GPU 3 of h1 for its process 105."
    assert (says in finding.summary) is is_told
    assert (finding.owner == "hardware") is is_told
    assert ("drain" in finding.remedy[0]) is is_told


@pytest.mark.parametrize(
    ("xids", "row", "is_told"),
    [
        ([XID | {"xid": 31}], {}, True),
        ([XID | {"xid": 31}], {"pid": None}, True),
        ([XID | {"xid": 31}, XID | {"xid": 31, "time_ns": 2}], {}, True),
        # Of two processes, of which the log does not say whose it is.
        ([XID | {"xid": 31}, XID | {"xid": 31, "pid": 9}], {"pid": None}, False),
        ([XID | {"xid": 31, "pid": 9}], {}, False),
        ([XID | {"xid": 45}], {}, False),
        ([XID | {"xid": 31}], {"says": "out of memory"}, False),
    ],
)
def test_a_program_s_own_fault_that_the_driver_reports_says_on_which_gpu(
    xids: list[Row], row: Row, is_told: bool
) -> None:
    given: Row = {"signal": "SIGABRT", "says": "an illegal memory access", "pid": 105}
    dead = failed(5, **given | row)
    (finding,) = asked(dead, ended(1), gpu_events=xids).findings
    says = "XID 31 (a fault of memory addresses, which a program's own kernels cause) of GPU 3"
    assert (says in finding.summary) is is_told
    assert finding.owner != "hardware"


def test_who_kept_the_store_that_the_others_lost_is_said_with_its_host() -> None:
    lost = [failed(n, "peer_lost", lost_host="node-1") for n in (1, 2, 3)]
    (finding,) = found(*lost)
    assert finding.summary.startswith(
        "Ranks 1-3 lost the job's store: the process that kept it on node-1 (rank 0's, or its "
        "launcher) ended first. Where the job was done by then this is harmless."
    )
    assert (finding.severity, finding.scope.ranks) == (Severity.MINOR, ())
    raised = failed(4, "peer_lost", exception="RuntimeError")
    (finding,) = found(*lost, raised)
    assert "does not say so. The process that kept the job's store on node-1" in finding.summary
    (finding,) = found(*lost, RAISED | {"rank": 0})
    assert finding.scope.ranks == (0,)
    assert "store" not in finding.summary
    (finding,) = found(failed(1, "peer_lost"))
    assert "the process that kept it (rank 0's, or its launcher) ended first" in finding.summary


BESIDE = ("evaluations", "checkpoints", "collections", "epochs", "inputs", "times")
SILENCE: Row = {f"{name}_count": None for name in BESIDE} | {
    "kind": "silence", "last_step": 2000, "lost_ns": 2400e9, "usual_ns": 2e9,
}  # fmt: skip


@pytest.mark.parametrize("why", [*OUTSIDE, "terminated"])
def test_a_job_that_stood_still_until_it_was_ended_is_not_explained_by_who_ended_it(
    why: str,
) -> None:
    (finding,) = asked(scheduled(why), slow_episode=[SILENCE]).findings
    assert finding.summary.endswith(
        " Behind step 2,000 no line was printed for 40 min (a step usually takes 2.00 s): it stood "
        "still."
    )
    assert finding.severity == Severity.MAJOR
    assert "find where each rank stood" in finding.remedy[0]
    assert "py-spy" in finding.next_capture[-1]
    (saved,) = asked(scheduled(why), slow_episode=[SILENCE | {"checkpoints_count": 1}]).findings
    assert saved.summary.endswith("2.00 s); the log has a saved checkpoint there.")
    (usual,) = asked(scheduled(why), slow_episode=[SILENCE | {"kind": "stall"}]).findings
    assert usual.severity == Severity.MINOR
    assert "still" not in usual.summary


def test_what_stood_still_behind_a_failure_does_not_hide_it() -> None:
    (finding,) = asked(RAISED, scheduled("terminated"), slow_episode=[SILENCE]).findings
    assert finding.summary.startswith("Rank 2 failed first")
    assert "no line was printed for 40 min" in finding.summary
    assert finding.severity == Severity.CRITICAL
    assert "find where each rank stood" not in finding.remedy[0]
    # Nobody ended it from outside: the failure did, and says why.
    (finding,) = asked(RAISED, slow_episode=[SILENCE | {"usual_ns": None}]).findings
    assert finding.summary.endswith(
        "Behind step 2,000 no line was printed for 40 min: it stood still."
    )
    assert not finding.next_capture
    # It is said of the last launch alone.
    last, before = asked(
        RAISED | {"is_resumed": True}, failed(1, exit_code=3, launch=2), slow_episode=[SILENCE]
    ).findings
    assert "still" in last.summary
    assert "still" not in before.summary


def test_what_one_log_tells_before_its_scheduler_ended_the_job_was_not_sent_by_it() -> None:
    by = scheduled("time limit", source_id=0, place=30)
    crashed = failed(None, task="5", host="gpu-2", signal="SIGSEGV") | {"place": 20}
    (finding,) = found(crashed, by)
    assert finding.summary.startswith("Task 5 on gpu-2 failed first")
    (finding,) = found(crashed | {"place": 31}, by)
    assert finding.summary.startswith("The job's scheduler says that its time limit was reached")


def test_of_one_kill_for_memory_the_line_that_says_whose_it_was_is_told() -> None:
    kill: Row = {"signal": "SIGKILL", "memory_of": "cgroup"}
    (finding,) = found(
        failed(None, **kill) | {"place": 4}, failed(None, **kill, task="3") | {"place": 5}
    )
    assert finding.summary.startswith("Task 3 failed first")


def test_a_process_is_told_by_its_number_where_nothing_else_names_it() -> None:
    (finding,) = found(failed(None, pid=77, host="10.0.0.9"))
    assert finding.summary == "Process 77 on 10.0.0.9 failed first: it died, and how is not said."
    assert finding.id.endswith("unnamed")


def test_a_task_whose_heartbeats_stay_away_is_not_called_dead() -> None:
    (finding,) = found(failed(None, task="5", says="no_heartbeat"))
    assert "Task 5 failed first: it sent no heartbeat any more (dead, cut off, or" in (
        finding.summary
    )


def test_one_that_alone_had_to_be_killed_by_its_launcher_is_a_candidate_and_not_accused() -> None:
    waited = failed(1, "timeout", exception="RuntimeError", is_root=True)
    forced = ended(2) | {"signal": "SIGKILL", "is_forced": True}
    (finding,) = found(waited, ended(0), forced, ended(3))
    assert (finding.scope.ranks, finding.candidates.ranks) == ((), (2,))
    assert finding.summary.endswith("Rank 2 alone did not end at the launcher's signal.")
    # Who waits for its GPU heeds no signal: of many nothing follows.
    (finding,) = found(waited, forced, forced | {"rank": 0})
    assert not finding.candidates.ranks


def test_ranks_that_end_in_one_second_with_one_code_and_say_nothing_failed_alike() -> None:
    own: Row = {"exit_code": 1, "time_ns": 5}
    rows = [failed(r, **own, is_root=r == 2) for r in range(4)]
    (finding,) = found(*rows)
    assert finding.summary == "Ranks 0-3 failed alike: they ended with exit code 1."
    (finding,) = found(
        *rows[2:3], *(r | {"time_ns": 6} for r in rows[:2]), rows[3] | {"exit_code": 7}
    )
    assert finding.scope.ranks == (2,)
    (finding,) = found(*(r | {"time_ns": None} for r in rows))
    assert finding.scope.ranks == (2,)


@pytest.mark.parametrize(("signal", "word"), [("SIGBUS", "--shm-size"), ("SIGSEGV", "signal")])
def test_a_bus_error_is_mostly_a_full_shared_memory(signal: str, word: str) -> None:
    (finding,) = found(failed(3, signal=signal), ended(0))
    assert word in finding.remedy[0]


S_NS = 10**9
LOGGED: Row = {"start_ns": 0, "end_ns": 1000 * S_NS, "mean_ns": 1.0e9, "steps_count": 900}
STARTS: list[Row] = [
    {"start_number": 1, "first_step": 1, "last_step": 24, "source_id": 0, "place": 1},
    {"start_number": 2, "first_step": 20, "last_step": 44, "source_id": 0, "place": 50},
    {"start_number": 3, "first_step": 40, "last_step": 90, "source_id": 1, "place": 1},
]
"""Two of them in one file."""


def restart(first_step: int, last_step: int, lost_s: int) -> Row:
    episode = SILENCE | {"kind": "restart", "usual_ns": S_NS, "lost_ns": lost_s * S_NS}
    return episode | {"first_step": first_step, "last_step": last_step}


RESTARTS = [restart(20, 24, 100), restart(40, 44, 30)]


def costs(
    *failures: Row, restarts: list[Row] = RESTARTS, starts: list[Row] = STARTS
) -> dict[str, float | None]:
    told = asked(
        *failures, slow_episode=restarts, job_step_summary=[LOGGED], attempt_summary=starts
    ).findings
    return {f.id: f.impact.s_per_step for f in told}


def test_a_failure_costs_what_the_restart_behind_it_lost() -> None:
    once = RAISED | {"is_resumed": True, "place": 30}
    (told,) = asked(
        once, slow_episode=RESTARTS, job_step_summary=[LOGGED], attempt_summary=STARTS
    ).findings
    impact = told.impact
    assert (impact.s_per_step, impact.step_ratio, impact.per) == (100.0, 0.1, "job")
    assert (impact.method, told.severity) == ("recorded time", severity_of(0.1))
    (longer,) = asked(
        once,
        slow_episode=[restart(20, 24, 400)],
        job_step_summary=[LOGGED],
        attempt_summary=STARTS,
    ).findings
    assert longer.severity == severity_of(0.4) == Severity.CRITICAL
    assert told.evidence[-1].name == "lost to the restart behind it, with the steps done again"
    assert rule("restart-loss").symptom_of == ("restarts",)
    assert "restarts" in rule("first-failure").explains
    # In the next start, behind which the job goes on in another file: it did not end there.
    assert costs(RAISED | {"place": 70}) == {"first-failure/2": 30.0}
    (outlived,) = asked(RAISED | {"place": 70}, attempt_summary=STARTS).findings
    (ended,) = asked(RAISED | {"place": 70}, attempt_summary=STARTS[:2]).findings
    assert (outlived.severity, ended.severity) == (Severity.MAJOR, Severity.CRITICAL)
    # The same rank twice is one finding, and costs both; another rank's restart is its own.
    assert costs(once, once | {"launch": 2, "place": 70}) == {"first-failure/2": 130.0}
    # What fails again before a step is done goes on with that restart, which is lost once.
    assert costs(once, once | {"launch": 2, "place": 40}) == {"first-failure/2": 100.0}
    again = failed(0, exit_code=3, launch=2) | {"place": 40}
    assert costs(once, again) == {"first-failure/0": None, "first-failure/2": 100.0}
    other = failed(0, exit_code=3, launch=2) | {"place": 70}
    assert costs(once, other) == {"first-failure/0": 30.0, "first-failure/2": 100.0}


@pytest.mark.parametrize(
    ("row", "restarts", "starts"),
    [
        (RAISED | {"source_id": 1}, RESTARTS, STARTS),  # in the last start
        (RAISED | {"source_id": 2}, RESTARTS, STARTS),  # in a file without a step
        (RAISED | {"place": 30}, RESTARTS[1:], STARTS),
        (RAISED | {"place": 30}, [restart(20, 24, 0)], STARTS),
        (RAISED | {"place": 30}, RESTARTS, []),
    ],
)
def test_a_failure_without_a_restart_behind_it_has_no_cost(
    row: Row, restarts: list[Row], starts: list[Row]
) -> None:
    assert costs(row, restarts=restarts, starts=starts) == {"first-failure/2": None}


@pytest.mark.parametrize(
    ("err", "cost"),
    [("a/slurm-1.err", 30.0), ("a/slurm-2.err", None), ("b/slurm-1.err", None), ("slurm-1", None)],
)
def test_what_stands_in_the_errors_beside_a_log_is_of_its_last_start(
    err: str, cost: float | None
) -> None:
    rows = {
        "failures": [RAISED | {"source_id": 7}],
        "slow_episode": RESTARTS,
        "job_step_summary": [LOGGED],
        "attempt_summary": STARTS,
    }
    sources = {0: "a/slurm-1.out", 1: "a/slurm-3.out", 7: err}
    (told,) = rule("first-failure").run(Facts(rows=rows, sources=sources)).findings
    assert told.impact.s_per_step == cost


def test_without_a_log_s_sums_a_failure_has_no_cost() -> None:
    told = asked(RAISED | {"place": 30}, slow_episode=RESTARTS, attempt_summary=STARTS).findings
    assert [f.impact.s_per_step for f in told] == [None]
