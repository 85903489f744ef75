"""What tests of rules over a host's counters share: rows of what its tasks waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from late_jobs import late_job
from logged_rules import SUMMARY

from tracekit.rules.base import Facts

Row = dict[str, Any]
MakeJob = Callable[..., Any]
SECOND = 10**9
STEPS = range(1, 11)


def pressure(host: str, resource: str, ratio: float, cgroup: str | None = None) -> Row:
    """A row of host_pressure: the share in all steps."""
    return {
        "host": host, "own_source_id": None, "cgroup": cgroup, "resource": resource,
        "some_ratio": ratio, "step_ratio": ratio, "attempt": 1,
    }  # fmt: skip


def in_steps(
    host: str,
    resource: str,
    ratio: float,
    steps: Iterable[int] = STEPS,
    cgroup: str | None = None,
    covered: float = 1.0,
) -> list[Row]:
    """Rows of host_pressure_steps."""
    return [
        {
            "host": host, "own_source_id": None, "cgroup": cgroup, "resource": resource,
            "capture_id": 0, "step": step, "some_ratio": ratio, "covered_ratio": covered,
            "source_id": 9, "place": step, "attempt": 1,
        }
        for step in steps
    ]  # fmt: skip


def lacking_job(
    make_job: MakeJob,
    resource: str,
    *,
    here: float = 0.5,
    there: float | None = 0.0,
    late_ms: int = 25,
    late_steps: range | None = None,
    cgroup: str | None = None,
    steps: list[Row] | None = None,
    hosts: dict[int, str] | None = None,
    more: Iterable[Row] = (),
    compute: float = 1.0,
    **rows: Any,
) -> Facts:
    """Four ranks on two hosts; rank 2 of h1 delays each of its late steps of 125 ms by 25, and
    tasks of h1 wait half of the time, those of h0 never."""
    job = late_job(make_job, {2: late_ms} if late_ms else {}, steps=late_steps, compute=compute)
    others = [] if there is None else [pressure("h0", resource, there)]
    job.rows["host_pressure"] = [pressure("h1", resource, here, cgroup), *others, *more]
    job.rows["host_pressure_steps"] = (
        in_steps("h1", resource, here, cgroup=cgroup) if steps is None else steps
    )
    for name, listed in rows.items():
        job.rows[name] = listed
    facts: Facts = job.facts() if hosts is None else job.facts(hosts=hosts)
    return facts


def stretch(host: str | None, resource: str, ratio: float, **more: Any) -> Row:
    """A row of episode_pressure: a slow stretch of an hour, in which a step takes 1.25 s for 1."""
    return {
        "kind": "slow", "first_step": 1000, "last_step": 3880, "start_ns": 1000 * SECOND,
        "end_ns": 4600 * SECOND, "lost_ns": 720 * SECOND, "usual_ns": SECOND,
        "dur_ns": 1_250_000_000, "host": host, "own_source_id": None, "cgroup": None,
        "resource": resource, "some_ratio": ratio, "covered_ratio": 1.0, "usual_ratio": 0.0,
        "usual_worst_ratio": 0.0, "usual_covered_ns": 40_000 * SECOND, "source_id": 9, "place": 4,
    } | more  # fmt: skip


def logged(
    resource: str, *stretches: Row, hosts: Iterable[str] = ("h0", "h1"), is_epoch: bool = True
) -> Facts:
    """A day's log alone, and the hosts' counters."""
    return Facts(
        rows={
            "job_step_summary": [SUMMARY | {"is_epoch": is_epoch}],
            "host_pressure": [pressure(host, resource, 0.1) for host in hosts],
            "episode_pressure": list(stretches),
        }
    )
