"""slow-storage: when it fires, when just not, and what exempts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from host_rules import MakeJob, Row, in_steps, lacking_job, logged, stretch
from msgspec.structs import replace

from tracekit.rules import rule
from tracekit.rules.base import Facts, RuleOutcome

RULE = rule("slow-storage")
MS = 1_000_000
STALLED = range(3, 7)
OTHERS = (1, 2, 7, 8, 9, 10)


def requests(
    host: str,
    steps: Iterable[int],
    *,
    count: float = 10.0,
    each_ms: float = 1.0,
    operation: str = "read",
    device: str = "/data",
    filesystem: str | None = "nfs4",
    covered: float = 1.0,
) -> list[Row]:
    """Rows of storage_steps."""
    return [
        {
            "host": host, "own_source_id": None, "device": device, "filesystem": filesystem,
            "operation": operation, "capture_id": 0, "step": step, "requests_count": count,
            "waited_ns": count * each_ms * MS, "covered_ratio": covered, "source_id": 9,
            "place": step, "attempt": 1,
        }
        for step in steps
    ]  # fmt: skip


def stalling(
    make_job: MakeJob,
    *rows: list[Row],
    query: str = "input_stall",
    ms: int = 60,
    ranks: tuple[int, ...] = (1,),
    steps: Iterable[int] = STALLED,
) -> Facts:
    """Rank 1 of h0 waits 60 ms in four of ten steps of 100 ms."""
    job = make_job(4).stall(query, ranks, steps, ms)
    job.rows["storage_latency"] = [{"host": "h0", "filesystem": "nfs4"}]
    job.rows["storage_steps"] = [row for listed in rows for row in listed]
    facts: Facts = job.facts()
    return facts


def slow(host: str = "h0", **more: Any) -> list[Row]:
    """Ten reads of 6 ms in the stalled steps, of 1 ms in the others."""
    return requests(host, STALLED, each_ms=6.0, **more) + requests(host, OTHERS, **more)


def test_a_mount_that_is_slow_in_the_steps_that_wait_for_input(make_job: MakeJob) -> None:
    (found,) = RULE.run(stalling(make_job, slow())).findings
    assert (found.scope.ranks, found.scope.hosts, found.scope.steps) == ((1,), ("h0",), ((3, 6),))
    assert "Reads of /data (nfs4) on h0 take 6.00 ms in the 4 steps" in found.summary
    assert found.confidence.level == "likely"
    assert found.impact.s_per_step == pytest.approx(0.024)  # 4 of 10 steps, 60 ms each


def test_hosts_of_one_mount_are_one_finding_and_disks_are_each_their_own(
    make_job: MakeJob,
) -> None:
    both = stalling(make_job, slow("h0"), slow("h1"), ranks=(1, 2))
    (found,) = RULE.run(both).findings
    assert found.scope.hosts == ("h0", "h1")
    disk: dict[str, Any] = {"device": "sda", "filesystem": None}
    disks = stalling(make_job, slow("h0", **disk), slow("h1", **disk), ranks=(1, 2))
    assert [f.scope.hosts for f in RULE.run(disks).findings] == [("h0",), ("h1",)]


def test_a_checkpoint_waits_for_writes_and_flushes(make_job: MakeJob) -> None:
    rows = requests("h0", STALLED, each_ms=8.0, operation="flush") + requests(
        "h0", OTHERS, operation="flush"
    )
    assert RULE.run(stalling(make_job, rows, query="checkpoint_stall")).findings
    assert not RULE.run(stalling(make_job, rows, query="input_stall")).findings
    assert not RULE.run(stalling(make_job, slow(), query="checkpoint_stall")).findings


@pytest.mark.parametrize(("count", "fires"), [(5.01, True), (4.99, False)])
def test_requests_must_take_half_of_what_is_waited(
    make_job: MakeJob, count: float, fires: bool
) -> None:
    found = RULE.run(stalling(make_job, slow(count=count))).findings  # times 6 ms, of 60
    assert bool(found) == fires


@pytest.mark.parametrize(("usual_ms", "fires"), [(2.99, True), (3.01, False)])
def test_and_twice_as_long_as_otherwise(make_job: MakeJob, usual_ms: float, fires: bool) -> None:
    rows = requests("h0", STALLED, each_ms=6.0) + requests("h0", OTHERS, each_ms=usual_ms)
    assert bool(RULE.run(stalling(make_job, rows)).findings) == fires


def test_without_other_steps_other_hosts_say_what_is_usual(make_job: MakeJob) -> None:
    mine = requests("h0", STALLED, each_ms=6.0)
    assert RULE.run(stalling(make_job, mine)) == RuleOutcome()
    assert RULE.run(stalling(make_job, mine, requests("h1", STALLED, each_ms=2.0))).findings
    alike = requests("h1", STALLED, each_ms=6.0)
    assert RULE.run(stalling(make_job, mine, alike)) == RuleOutcome()
    other = requests("h1", STALLED, each_ms=2.0, device="/scratch")
    assert RULE.run(stalling(make_job, mine, other)) == RuleOutcome()


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(slow("h1"), id="the storage of another host"),
        pytest.param(slow(covered=0.49), id="half covered"),
        pytest.param(
            requests("h0", OTHERS, each_ms=6.0) + requests("h0", STALLED), id="in the other steps"
        ),
        pytest.param(
            requests("h0", (3,), each_ms=6.0) + requests("h0", OTHERS), id="mostly unknown"
        ),
        pytest.param([], id="no readings"),
    ],
)
def test_what_is_no_slow_storage(make_job: MakeJob, rows: list[Row]) -> None:
    assert RULE.run(stalling(make_job, rows)) == RuleOutcome()


def test_short_or_lone_stalls_are_none(make_job: MakeJob) -> None:
    assert RULE.run(stalling(make_job, slow(), ms=4)) == RuleOutcome()
    assert RULE.run(stalling(make_job, slow(), steps=(3,))) == RuleOutcome()


def test_pressure_in_the_late_steps_or_in_a_slow_stretch(make_job: MakeJob) -> None:
    (late,) = RULE.run(lacking_job(make_job, "io")).findings
    assert (late.scope.ranks, late.scope.hosts) == ((2,), ("h1",))
    assert RULE.run(lacking_job(make_job, "io", there=0.5)) == RuleOutcome()
    assert RULE.run(lacking_job(make_job, "io", steps=in_steps("h0", "io", 0.9))) == RuleOutcome()
    (hours,) = RULE.run(logged("io", stretch("h1", "io", 0.4))).findings
    assert hours.scope.hosts == ("h1",)


def test_it_says_what_it_needs() -> None:
    assert "storage counters" in RULE.run(Facts()).not_checked[0].needs


@pytest.mark.parametrize("filesystem", ["obdfilter", "mdt"])
def test_counts_of_servers_alone_are_not_enough(make_job: MakeJob, filesystem: str) -> None:
    job = make_job(4).stall("input_stall", (1,), STALLED, 60)
    server = {"host": "oss01", "filesystem": filesystem}
    job.rows["storage_latency"] = [server]
    assert "storage counters" in RULE.run(job.facts()).not_checked[0].needs
    job.rows["storage_latency"] = [server, {"host": "h0", "filesystem": None}]
    assert RULE.run(job.facts()) == RuleOutcome()


def slow_hours(host: str | None = "h1", **more: Any) -> Row:
    """A row of episode_storage: an hour in which a read takes 1.5 s, where 2.5 ms are usual."""
    return stretch(host, "io", 0.0) | {
        "device": "/data", "filesystem": "nfs4", "operation": "read", "latency_ns": 1500.0 * MS,
        "waited_ns": 9e12, "usual_latency_ns": 2.5 * MS, "usual_worst_latency_ns": 3.0 * MS,
    } | more  # fmt: skip


def beside_a_log(*rows: Row, pressure: str = "memory", more: Iterable[Row] = ()) -> Facts:
    """A day's log alone, with how fast storage answered."""
    facts = logged(pressure, *more)
    latencies = [{"host": "h1", "filesystem": "nfs4"}]
    return replace(
        facts,
        rows={**facts.rows, "storage_latency": latencies, "episode_storage": list(rows)},
    )


def test_a_mount_that_is_slow_in_the_hours_in_which_the_log_is() -> None:
    (found,) = RULE.run(beside_a_log(slow_hours())).findings
    assert found.scope.hosts == ("h1",)
    assert "reads of /data (nfs4) on h1 take 1.50 s, at other times 2.50 ms" in found.summary
    assert found.when.start_utc is not None
    assert found.confidence.level == "likely"


def test_a_machine_that_nobody_named_is_told_by_its_file() -> None:
    facts = beside_a_log(slow_hours(None, own_source_id=3))
    (found,) = RULE.run(replace(facts, sources={3: "nfs.txt"})).findings
    assert found.scope.hosts == ()
    assert "on the machine of nfs.txt" in found.summary
    assert found.id == "slow-storage/nfs.txt"


@pytest.mark.parametrize(
    "more",
    [
        {"latency_ns": 5.99 * MS},  # twice the worst of other hours would be 6
        {"waited_ns": 3.59e11},  # of 12 min that are lost, 6 would be half
        {"covered_ratio": 0.49},
        {"usual_covered_ns": 3599 * 10**9},  # an hour is asked for
        {"usual_worst_latency_ns": None},
        {"latency_ns": None},
        {"kind": "stall", "operation": "write"},  # what a save writes is more than usual
        {"filesystem": "obdfilter"},
    ],
)
def test_what_is_no_slow_storage_of_hours(more: Row) -> None:
    assert RULE.run(beside_a_log(slow_hours(**more))) == RuleOutcome()


def test_of_a_disk_and_its_mount_the_one_is_told_that_was_waited_for_longest() -> None:
    both = slow_hours(), slow_hours(device="sda", filesystem=None, waited_ns=8e12)
    (found,) = RULE.run(beside_a_log(*both)).findings
    assert "/data" in found.summary


def test_latency_says_more_than_pressure_or_iowait() -> None:
    for resource in ("io", "iowait"):
        pressed = stretch("h1", resource, 0.5)
        (alone,) = RULE.run(logged(resource, pressed)).findings
        assert "waited for storage for 50 %" in alone.summary
        (found,) = RULE.run(beside_a_log(slow_hours(), pressure=resource, more=[pressed])).findings
        assert "/data" in found.summary
