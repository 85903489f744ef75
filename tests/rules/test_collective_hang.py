"""collective-hang: when it fires, when just not, and what exempts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from late_jobs import MS, MakeJob

from lateness_rules import HANG, NOTHING, last_call, stood
from nccl_rules import (
    BEHIND,
    DONE,
    STUCK,
    Build,
    comm,
    findings,
    flight,
    last_calls,
    progress,
    text,
    timeout,
    with_traces,
)
from tracekit.findings import Severity
from tracekit.report.build import build_report
from tracekit.rules.base import Facts, RuleOutcome


def test_the_rank_behind_did_not_join(build: Build) -> None:
    facts = build(text(timeout(0), timeout(2), progress(0, 9, 8), progress(1, 8, 2**61)))
    (finding,) = findings("collective-hang", facts)
    assert finding.summary.startswith("Rank 1 did not join: ranks 0,2 wait")
    assert finding.severity is Severity.CRITICAL
    assert finding.scope.ranks == (1,)


def dumped(rank: int, enqueued: int, completed: int) -> str:
    """A rank that another's watchdog, or its own of some group, tells to write what it has."""
    head, _, _ = progress(rank, enqueued, completed).partition("Exception")
    return (
        f"{head}Received a dump signal due to a collective timeout from  rank 0 and we will try "
        f"our best to dump the debug info. Last enqueued NCCL work: {enqueued}, last completed "
        f"NCCL work: {completed}."
    )


def test_a_rank_that_is_only_told_to_dump_says_how_far_it_came(build: Build) -> None:
    told = dumped(1, 8, 8)
    facts = build(text(timeout(0), progress(0, 9, 8), timeout(2), progress(2, 9, 8), told))
    (finding,) = findings("collective-hang", facts)
    assert finding.summary.startswith("Rank 1 did not join: ranks 0,2 wait")
    assert finding.scope.ranks == (1,)
    # Of a call whose group no line names the count in the job's first group tells nothing.
    (finding,) = findings("collective-hang", build(text(timeout(0), timeout(2), told)))
    assert "whether all members joined it cannot be told" in finding.summary
    assert finding.scope.ranks == finding.candidates.ranks == ()


def test_a_rank_whose_watchdog_was_slower_than_the_others_waits_too(build: Build) -> None:
    facts = build(text(timeout(0), progress(0, 9, 8), dumped(1, 10, 8)))
    (finding,) = findings("collective-hang", facts)
    assert finding.summary.startswith("Ranks 0-1 wait in")
    done = build(text(timeout(0), progress(0, 9, 8), dumped(1, 10, 9)))  # it is through
    (finding,) = findings("collective-hang", done)
    assert finding.summary.startswith("Rank 0 waits in")


def test_ranks_that_only_say_that_something_timed_out_name_nobody(build: Build) -> None:
    (finding,) = findings("collective-hang", build(text(dumped(1, 22, 21), dumped(2, 22, 22))))
    assert finding.summary == (
        "Ranks 1-2 ended because a collective timed out; which one, and who did not join it, these "
        "lines do not tell."
    )
    assert finding.severity is Severity.CRITICAL
    assert finding.scope.ranks == finding.candidates.ranks == ()


def late(rank: int, work: int, group: str = "0 (default_pg)") -> str:
    """The line behind a timeout, as PyTorch 2.4 and 2.5 have it; here the timeout's own is lost."""
    return (
        f"[rank{rank}]:[E909 09:55:46.99 ProcessGroupNCCL.cpp:1709] [PG {group} Rank {rank}] "
        f"Timeout at NCCL work: {work}, last enqueued NCCL work: {work + 12}, last completed NCCL "
        f"work: {work - 1}."
    )


def test_the_line_behind_a_timeout_is_one_where_the_timeouts_own_is_lost(build: Build) -> None:
    (finding,) = findings("collective-hang", build(text(late(3, 2070))))
    assert finding.summary.startswith("Rank 3 waits in the collective number 2070")
    assert "0(default_pg)" in finding.summary
    # Beside the timeout's own line it adds no rank and no second call.
    (both,) = findings("collective-hang", build(text(timeout(0), timeout(2), late(2, 9))))
    (own,) = findings("collective-hang", build(text(timeout(0), timeout(2))))
    assert both.evidence[0].value == own.evidence[0].value == 2
    # The exception's words are an error's as well, and name no timeout.
    error = late(3, 9).replace("Timeout at NCCL work", "detected by watchdog at work")
    assert findings("collective-hang", build(text(error))) == ()


def stuck(
    rank: int, words: str = "watchdog got stuck for 480 seconds without making progress"
) -> str:
    return (
        f"[rank{rank}]:[E626 05:14:36.39 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg)"
        f" Rank {rank}] ProcessGroupNCCL's {words} in monitoring enqueued collectives."
    )


def test_watchdogs_that_stand_still_tell_of_a_hang_and_name_nobody(build: Build) -> None:
    (finding,) = findings("collective-hang", build(text(stuck(5), stuck(7))))
    assert finding.summary == (
        "Ranks 5,7 ended because their NCCL watchdog stood still for 480 s: a call of CUDA or NCCL "
        "did not return, or a thread held the interpreter. These lines do not tell which rank the "
        "others wait for."
    )
    assert finding.severity is Severity.CRITICAL
    assert finding.scope.ranks == finding.candidates.ranks == ()
    (finding,) = findings("collective-hang", build(text(stuck(5, "Heartbeat monitor timed out!"))))
    assert finding.summary.startswith("Rank 5 ended because its NCCL watchdog stood still: a call")
    # Where a collective is known to have timed out, that is said.
    (finding,) = findings("collective-hang", build(text(timeout(2), stuck(5))))
    assert finding.summary.startswith("Rank 2 waits in")


def test_a_rank_that_wrote_nothing_is_a_candidate_not_a_culprit(build: Build) -> None:
    facts = build(text([timeout(r) for r in (0, 1, 3)]))
    (finding,) = findings("collective-hang", facts)
    assert finding.candidates.ranks == (2,)
    assert finding.scope.ranks == ()


def in_group(rank: int, name: str, group_rank: int | None = None) -> list[str]:
    """A timeout whose group only the exception behind it names, as PyTorch 2.5 has them."""
    head, _, said = progress(rank, 9, 8).partition("[PG ID 0 PG GUID 0(default_pg) ")
    own = rank if group_rank is None else group_rank
    return [timeout(rank), f"{head}[PG {name} {said.replace(f'Rank {rank}]', f'Rank {own}]')}"]


@pytest.mark.parametrize(
    "lines",
    [
        [in_group(r, "1") for r in (0, 1, 3)],  # another group than the first
        [in_group(13, "ID 11 PG GUID 119", 1)],
        [timeout(3), timeout(7)],  # 6 of 8 in no line: a part of the logs
        # Rank 0 of a group that is rank 4 of the job: not the first group.
        [timeout(r).replace(f"[Rank {r}]", f"[Rank {r - 4}]") for r in (4, 5, 6, 8, 9, 10)],
    ],
)
def test_silence_says_nothing_where_the_members_are_not_known(
    lines: list[list[str]], build: Build
) -> None:
    (finding,) = findings("collective-hang", build(text(*lines)))
    assert "whether all members joined it cannot be told" in finding.summary
    assert finding.scope.ranks == finding.candidates.ranks == ()
    assert finding.owner == "platform"


@pytest.mark.parametrize(
    ("others", "candidates"), [((0, 2, 3), (1,)), ((0,), ())], ids=["most", "as many"]
)
def test_a_rank_that_waits_in_another_call_than_most_is_a_candidate(
    others: tuple[int, ...], candidates: tuple[int, ...], build: Build
) -> None:
    odd = timeout(1).replace("SeqNum=9", "SeqNum=8").replace("ALLREDUCE", "ALLGATHER")
    (finding,) = findings("collective-hang", build(text([timeout(r) for r in others], odd)))
    assert finding.scope.ranks == ()
    assert finding.candidates.ranks == candidates
    says = "rank 1 in another call (the all_gather number 8)"
    assert (says in finding.summary) is bool(candidates)


def test_silence_of_fewer_than_spoke_makes_a_candidate(build: Build) -> None:
    facts = build(text([timeout(r) for r in (2, 3, 5)], [progress(r, 9, 8) for r in (0,)]))
    (finding,) = findings("collective-hang", facts)
    assert finding.candidates.ranks == (1, 4)
    (finding,) = findings("collective-hang", build(text([timeout(r) for r in (2, 3, 5)])))
    assert finding.candidates.ranks == ()


def test_of_two_groups_the_one_that_the_log_tells_of_first_is_said(build: Build) -> None:
    later = [line.replace("SeqNum=9", "SeqNum=4").replace("work: 9", "work: 4")
             for line in in_group(15, "112", 0)]  # fmt: skip
    (finding,) = findings("collective-hang", build(text(in_group(13, "119", 1), later)))
    assert "Rank 13 waits in the all_reduce number 9 of group 119" in finding.summary


@pytest.mark.parametrize(
    ("calls", "silence_s", "is_named"),
    [
        ([9, 9, 8, 9], 30, True),
        ([9, 9, 8, 9], 29, False),  # its trace may have been cut
        ([9, 8, 8, 9], 30, False),
        ([9, 9, None, 9], 30, False),
    ],
)
def test_silence_names_a_rank_only_where_its_trace_agrees(
    calls: list[int | None], silence_s: int, is_named: bool, build: Build
) -> None:
    lines = [timeout(r).replace("[Rank", "[PG ID 0 PG GUID 0(default_pg) Rank") for r in (0, 1, 3)]
    groups = [{"rank": r, "group_id": "w", "name": "0", "ranks": [0, 1, 2, 3]} for r in range(4)]
    rows = [{"rank": r, "calls_count": n} for r, n in enumerate(calls) if n is not None]
    silence = {"silence_ns": silence_s * 10**9, "longest_gap_ns": 10**9, "last_call": 7}
    last = [r | silence for r in last_calls(9)]
    facts = with_traces(
        build(text(lines), groups=groups), enqueued_calls=rows, last_calls=last
    )  # fmt: skip
    (finding,) = findings("collective-hang", facts)
    assert finding.scope.ranks == ((2,) if is_named else ())
    assert finding.candidates.ranks == (() if is_named else (2,))
    assert finding.confidence.level == ("likely" if is_named else "possible")


def test_all_joined_is_the_network_or_a_gpu(build: Build) -> None:
    world = [x for r in range(4) for x in comm(r, 4)]
    facts = build(text(world, [timeout(r) for r in range(4)]))
    (finding,) = findings("collective-hang", facts)
    assert "All 4 members joined" in finding.summary
    assert finding.owner == "network"


def test_without_the_size_of_the_group_all_is_not_claimed(build: Build) -> None:
    (finding,) = findings("collective-hang", build(text(timeout(0), timeout(1))))
    assert "cannot be told" in finding.summary


def test_flight_recorder_names_who_did_not_join(build: Build) -> None:
    facts = build(flight(0, DONE, STUCK), flight(1, DONE), flight(2, DONE, STUCK))
    (finding,) = findings("collective-hang", facts)
    assert finding.summary.startswith("Rank 1 did not join: ranks 0,2 wait in the all_reduce")


def test_a_ring_buffer_that_begins_later_is_unknown_not_missing(build: Build) -> None:
    ended = (9, "all_reduce", "completed")
    before = (8, "all_reduce", "completed")
    whole = (DONE, before, ended)
    facts = build(flight(0, *whole), flight(1, ended), flight(2, *whole))
    assert not findings("collective-hang", facts)


def test_flight_recorder_of_a_job_that_ended_well(build: Build) -> None:
    assert not findings("collective-hang", build(*(flight(r, DONE) for r in range(3))))


def test_watchdog_and_traces_that_agree_are_one_finding(build: Build) -> None:
    facts = with_traces(build(text(*BEHIND)), last_calls=last_calls(1))
    (finding,) = findings("collective-hang", facts)
    assert finding.summary.startswith("Rank 1 did not join: ranks 0,2-3 wait")
    assert "The traces agree: rank 1" in finding.summary
    assert finding.confidence.level == "likely"
    assert {e.query for e in finding.evidence} == {"watchdog", "last_calls"}
    assert not finding.counter_evidence


def test_traces_that_name_another_rank_stand_against_the_watchdog(build: Build) -> None:
    facts = with_traces(build(text(*BEHIND)), last_calls=last_calls(3))
    (finding,) = findings("collective-hang", facts)
    assert finding.scope.ranks == (1,)
    assert finding.confidence.level == "possible"
    assert finding.counter_evidence[0].query == "last_calls"


def test_a_silent_rank_that_the_traces_show_behind_is_named(build: Build) -> None:
    facts = with_traces(build(text([timeout(r) for r in (0, 1, 3)])), last_calls=last_calls(2))
    (finding,) = findings("collective-hang", facts)
    assert finding.scope.ranks == (2,)
    assert finding.candidates.ranks == ()
    assert finding.confidence.level == "likely"


def test_traces_of_another_group_stay_a_finding_of_their_own(build: Build) -> None:
    dumps = build(flight(0, DONE, STUCK), flight(1, DONE), flight(2, DONE, STUCK))
    facts = with_traces(dumps, last_calls=last_calls(3, "tp", [2, 3]))
    first, second = findings("collective-hang", facts)
    assert first.scope.ranks == (1,)
    assert second.scope.ranks == (3,)


@pytest.mark.parametrize("behind", [None, 3])
def test_a_call_that_members_disagree_on_is_no_hang_of_its_own(
    behind: int | None, build: Build
) -> None:
    """All asked for it and it never ends: their sizes differ, so no link or GPU is suspected. A
    member that came less far did stay away."""
    lines = [timeout(r, numel=11 if r == 2 else 10) for r in range(4)]
    facts = with_traces(build(text(lines)), last_calls=last_calls(behind))
    (mismatch,) = findings("collective-mismatch", facts)
    assert mismatch.scope.ranks == (2,)
    assert [f.scope.ranks for f in findings("collective-hang", facts)] == (
        [] if behind is None else [(3,)]
    )
    agreeing = with_traces(Facts(), last_calls=last_calls(None))
    assert findings("collective-hang", agreeing)


def test_traces_cannot_tell_a_rank_whom_the_log_shows_waiting(build: Build) -> None:
    facts = with_traces(build(text(timeout(0), timeout(1))), last_calls=last_calls(0))
    (finding,) = findings("collective-hang", facts)
    assert finding.scope.ranks == ()
    assert finding.counter_evidence


def test_ranks_of_a_group_without_a_name_are_not_the_jobs(build: Build) -> None:
    lines = [timeout(0), timeout(2), progress(1, 8, 7)]
    bare = [line.split("]:", 1)[1].split("] ", 1)[1] for line in lines[:2]]
    (finding,) = findings("collective-hang", build(text(bare)))
    assert finding.scope.ranks == ()
    assert finding.candidates.ranks == ()
    assert "does not name" in finding.confidence.basis


def test_the_member_that_never_entered_is_the_culprit_of_a_hang(make_job: MakeJob) -> None:
    job = make_job()
    job.rows["last_calls"] = [last_call(r, 8 if r == 3 else 9, 60) for r in range(4)]
    (finding,) = HANG.run(job.facts()).findings
    assert finding.scope.ranks == (3,)
    assert finding.severity is Severity.CRITICAL


@pytest.mark.parametrize(
    "rows",
    [
        [last_call(r, 8 if r == 3 else 9, 29) for r in range(4)],  # too short
        [last_call(r, 9, 60) for r in range(4)],  # all stopped at the same call
        [last_call(r, 8 if r == 3 else 9, 0 if r == 3 else 60) for r in range(4)],  # cut trace
        [last_call(r, 8 + r % 2, 60, longest_gap_ns=10_000 * MS) for r in range(4)],  # had paused
    ],
)
def test_other_silences_are_no_hang(make_job: MakeJob, rows: list[dict[str, Any]]) -> None:
    job = make_job()
    job.rows["last_calls"] = rows
    assert HANG.run(job.facts()) == RuleOutcome()


def test_guessed_members_that_stopped_apart_are_not_named(make_job: MakeJob) -> None:
    """Two groups that matching took for one stop at different calls when another group hangs."""
    job = make_job()
    rows = [last_call(r, 8 if r % 2 else 9, 60, is_told=False) for r in range(4)]
    job.rows["last_calls"] = rows
    assert HANG.run(job.facts()) == RuleOutcome()
    job.rows["last_calls"] = [row | {"is_told": True} for row in rows]
    assert HANG.run(job.facts()).findings[0].scope.ranks == (1, 3)


@pytest.mark.parametrize(
    ("special", "candidates", "words"),
    [
        (NOTHING, (3,), "ranks 0-2 asked for an all_reduce that has not ended for 60.0 s, in"),
        ({}, (), "all 4 ranks asked for an all_reduce that has not ended"),
        ({"op": "all_gather"}, (), "asked for a collective that has not ended"),
        ({"calls_count": 0, "launches_count": 2}, (), "asked for work on the device that"),
    ],
)
def test_ranks_that_stand_still_with_work_asked_for_are_a_hang_without_a_culprit(
    make_job: MakeJob, special: dict[str, Any], candidates: tuple[int, ...], words: str
) -> None:
    job = make_job()
    job.rows["standing"] = [stood(r, **(special if r == 3 else {})) for r in range(4)]
    (finding,) = HANG.run(job.facts()).findings
    assert words in finding.summary[0].lower() + finding.summary[1:]
    assert finding.scope.ranks == ()
    assert finding.candidates.ranks == candidates
    assert finding.confidence.level == "possible"
    assert "--include-blobs=true" in finding.next_capture[0]
    report = build_report(job.facts(), [])
    assert report.document.verdict.kind == "hang"


@pytest.mark.parametrize(
    "special",
    [
        {"standing_ns": 29 * 10**9},  # too short
        {"standing_ns": 0},  # the capture was stopped while work went on
        {"longest_gap_ns": 7 * 10**9},  # paused before as well
        {"is_cut": True},
        {"standing_ns": None},
    ],
)
def test_work_in_flight_is_no_hang(make_job: MakeJob, special: dict[str, Any]) -> None:
    job = make_job()
    job.rows["last_calls"] = [last_call(r, 9, 60) for r in range(4)]
    job.rows["standing"] = [stood(r, **(special if r == 3 else {})) for r in range(4)]
    assert HANG.run(job.facts()) == RuleOutcome()


@pytest.mark.parametrize("special", [NOTHING, {"is_told": True}, {"is_told": None}])
def test_a_job_that_ended_and_traces_that_tell_are_left_to_others(
    make_job: MakeJob, special: dict[str, Any]
) -> None:
    job = make_job()
    job.rows["last_calls"] = [last_call(r, 9, 60) for r in range(4)]
    job.rows["standing"] = [stood(r, **special) for r in range(4)]
    assert HANG.run(job.facts()) == RuleOutcome()


# ---------------------------------------------------------------- monitored barriers


LOGS = Path(__file__).parents[2] / "fixtures" / "logs"


def recorded(name: str) -> str:
    return (LOGS / f"{name}.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "ranks", "waited"),
    [("waiting-barrier", (2,), "4.00 s"), ("waiting-barriers", (2, 3), "4.00 s"),
     ("waiting-detail", (2,), "8.00 s")],
)  # fmt: skip
def test_who_did_not_come_to_a_monitored_barrier_is_named(
    name: str, ranks: tuple[int, ...], waited: str, build: Build
) -> None:
    """Real logs of PyTorch 2.13; the last with TORCH_DISTRIBUTED_DEBUG=DETAIL and an all-reduce."""
    (finding,) = findings("collective-hang", build(recorded(name)))
    assert finding.scope.ranks == ranks
    assert f"did not come to a monitored barrier within {waited}" in finding.summary
    assert finding.severity is Severity.CRITICAL


def missed(who: str = "[rank0]: ") -> str:
    return f"{who}RuntimeError: [Rank 0]: Ranks 2, 3 failed to pass monitoredBarrier in 4000 ms"


def reached(world: int, rank: int) -> str:
    return f"[rank{world}]: RuntimeError: Rank {rank} successfully reached monitoredBarrier, but"


@pytest.mark.parametrize(
    "lines",
    [
        [missed()],  # rank 0 is the first of many groups
        [missed("")],  # as old releases say it
        [missed("[rank4]: ")],
        [missed(), reached(5, 1)],
    ],
)
def test_ranks_of_a_group_that_nothing_shows_to_be_the_jobs_are_not_named(
    lines: list[str], build: Build
) -> None:
    (finding,) = findings("collective-hang", build(text(lines)))
    assert finding.summary.startswith("Ranks 2-3 did not come")
    assert "its ranks count within a group" in finding.confidence.basis
    assert finding.scope.ranks == finding.candidates.ranks == ()


HOROVOD = (
    "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks "
    "and are waiting for remainder of ranks for more than {} seconds. This may indicate that "
)
OF_RANKS = [HOROVOD.format(60), "Missing ranks:", "3: [allreduce.fc.bias, allreduce.fc.weight ...]"]


@pytest.mark.parametrize(
    ("lines", "ranks", "waited"),
    [
        (OF_RANKS, (3,), "60.0 s"),
        ([f"[1,0]<stderr>:{line}" for line in OF_RANKS], (3,), "60.0 s"),
        ([HOROVOD.format(120), "Stalled ranks:", "1!: [allreduce.a]", "5: [allreduce.a]"], (1, 5),
         "120 s"),
        ([HOROVOD.format(60), "Stalled ops:", "grads_0 [missing ranks: 1, 2]",
          "grads_1 [missing ranks: 2]"], (1, 2), "60.0 s"),
        ([HOROVOD.format(60) + "Stalled ops:a [missing ranks: 4]", *["x"] * 9, "7: [b]"], (4,),
         "60.0 s"),
        # The last warning counts: rank 3 came meanwhile.
        ([*OF_RANKS, HOROVOD.format(60), "Missing ranks:", "4: [b]"], (4,), "60.0 s"),
    ],
    ids=["ranks", "by mpirun", "shut down", "tensors", "ended", "the last"],
)  # fmt: skip
def test_whom_horovod_waits_for_is_named(
    lines: list[str], ranks: tuple[int, ...], waited: str, build: Build
) -> None:
    (finding,) = findings("collective-hang", build(text(lines)))
    assert finding.scope.ranks == ranks
    assert f"Horovod waits for {waited} or more" in finding.summary
    assert finding.severity is Severity.CRITICAL


@pytest.mark.parametrize(
    "lines",
    [
        [*OF_RANKS, *(f"2026-11-20 08:00:0{i} step {i} loss 3.1" for i in range(1, 4))],
        ["3: [allreduce.fc.bias]", "grads_0 [missing ranks: 1, 2]"],
        [HOROVOD.format(60), "Stalled ops: grads_0 [ready ranks: 0, 1]"],  # of old releases
    ],
    ids=["went on", "no warning", "who is ready"],
)
def test_a_wait_that_ended_or_names_nobody_is_no_hang(lines: list[str], build: Build) -> None:
    assert findings("collective-hang", build(text(lines))) == ()


CLIENTS = (
    "torch.distributed.DistStoreError: Timed out after 7 seconds waiting for clients. 3/4 clients "
    "joined."
)


def test_agents_that_never_met_are_no_start(build: Build) -> None:
    told = (
        "torch.distributed.elastic.rendezvous.dynamic_rendezvous: [ERROR] The node 'n0_100_0' has "
        "failed to join the rendezvous: RendezvousTimeoutError"
    )
    (finding,) = findings("collective-hang", build(text([told])))
    assert finding.summary == "Not all processes came to the job's start, and these gave up."
    assert finding.scope.ranks == ()
    stepped = [f"2026-11-20 08:00:0{i} step {i} loss 3.1" for i in range(1, 4)]
    assert findings("collective-hang", build(text(stepped, [told]))) == ()


def no_key(group: str, rank: int, who: str = "") -> str:
    """As PyTorch 2.7 printed it when a process of four was not started, or stood still."""
    keys = f"/default_pg/0//{group}cpu//0/{rank}"
    return f"{who}torch.distributed.DistStoreError: wait timeout after 6000ms, keys: {keys}"


def store_barrier(rank: int, joined: int, key: str = "1", *, is_new: bool = False) -> str:
    """Of releases before 2.1, and of 2.7."""
    at, count = (f"rank {rank}", "num_workers_joined") if is_new else (
        f"rank: {rank}", "worker_count")  # fmt: skip
    return (
        f"RuntimeError: Timed out initializing process group in store based barrier on {at}, "
        f"for key: store_based_barrier_key:{key} (world_size=4, {count}={joined}, timeout=0:30:00)"
    )


@pytest.mark.parametrize(
    "lines",
    [
        [CLIENTS, no_key("", 0, "[rank1]: "), no_key("", 0, "[rank3]: ")],
        [no_key("", 2, "[rank0]: "), no_key("", 2, "[rank1]: ")],
        [store_barrier(rank, 3) for rank in (0, 1, 3)],
        [store_barrier(rank, 3, is_new=True) for rank in (0, 1, 3)],
    ],
)
def test_a_rank_that_did_not_come_to_the_jobs_start_is_named(
    lines: list[str], build: Build
) -> None:
    (finding,) = findings("collective-hang", build(text(lines)))
    assert finding.scope.ranks == (2,)
    assert finding.summary.startswith("Rank 2 did not come: ")
    assert finding.severity is Severity.CRITICAL


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([CLIENTS], "3 of 4 processes came to the job's start within 7.00 s"),
        # Rank 0 may hold the store and wait for others itself.
        ([no_key("", 0, "[rank1]: ")], "Not all processes came to the job's start within 6.00 s"),
        # One of three that came says nothing: two ranks are in question.
        ([store_barrier(0, 3), store_barrier(1, 3)], "3 of 4 processes came to the job's start"),
        # A group whose members alone meet: its ranks are any of the job's.
        ([store_barrier(r, 3, "9f3a") for r in (0, 1, 2)], "3 of 4 processes came to the start of"),
        ([store_barrier(r, 3) for r in (0, 1, 7)], "3 of 4 processes came to the job's start"),
        ([no_key("1//", 2, "[rank5]: ")], "Rank 2 of a group did not come: not all processes"),
    ],
)
def test_a_start_that_lacks_somebody_unknown_names_no_rank(
    lines: list[str], says: str, build: Build
) -> None:
    (finding,) = findings("collective-hang", build(text(lines)))
    assert finding.summary.startswith(says)
    assert finding.scope.ranks == finding.candidates.ranks == ()


def test_a_start_that_was_tried_again_and_went_on_is_no_hang(build: Build) -> None:
    step = "iter 7: loss 2.0, time 100.00ms, mfu 30.00%"
    assert findings("collective-hang", build(text([CLIENTS, step]))) == ()
    assert findings("collective-hang", build(text([step, CLIENTS]))) != ()
    waits = "DEBUG Waiting in store based barrier to initialize process group for rank: 0, key: x"
    assert findings("collective-hang", build(text([waits, step]))) == ()


def test_a_barrier_that_all_reached_or_nobody_missed_is_no_hang(build: Build) -> None:
    assert findings("collective-hang", build(text(reached(1, 1)))) == ()
    (finding,) = findings("collective-hang", build(text(missed(), reached(1, 1))))
    assert finding.scope.ranks == (2, 3)
    # Who waits in a collective of the watchdog's says less than the barrier.
    (finding,) = findings("collective-hang", build(text(timeout(1), missed(), reached(1, 1))))
    assert "monitored barrier" in finding.summary
