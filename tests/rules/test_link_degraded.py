"""link-degraded: when it fires, when just not, and what exempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nccl_rules import BY_RANK, OOB, Build, failed, findings, text
from tracekit.findings import Severity


def test_the_host_in_most_failing_pairs_is_named(build: Build) -> None:
    lines = [failed(0, "h0", "3", 12), failed(1, "h1", "3", 12), failed(2, "h2", "3", 12),
             failed(3, "h3", "0", 5)]  # fmt: skip
    (finding,) = findings("link-degraded", build(text(OOB, lines)))
    assert finding.scope.hosts == ("h3",)
    assert "retries exceeded" in finding.summary
    assert finding.severity is Severity.CRITICAL


def test_one_pair_shares_the_blame(build: Build) -> None:
    lines = [failed(0, "h0", "1", 12), failed(1, "h1", "0", 12)]
    (finding,) = findings("link-degraded", build(text(OOB, lines)))
    assert finding.scope.hosts == ("h0", "h1")
    assert finding.scope.devices == ()


def test_flushed_completions_are_no_cause(build: Build) -> None:
    assert not findings("link-degraded", build(text(OOB, failed(0, "h0", "1", 5))))


@pytest.mark.parametrize(("late", "count"), [(3, 1), (2, 2)])
def test_a_late_member_on_the_host_of_the_errors_is_one_finding(
    late: int, count: int, build: Build, make_job: Callable[..., Any]
) -> None:
    lines = [failed(r, f"h{r}", "3", 12) for r in range(3)]
    job = make_job(comm_ms=60).facts(hosts=BY_RANK)
    leaving = [
        {
            "group_id": "g", "rank": r, "op": "all_reduce", "message_bytes": 64 << 20,
            "calls_count": 40, "exit_p50_ns": 2e7 if r == late else -3e6, "attempt": 1,
            "exit_p10_ns": 1.9e7 if r == late else -4e6, "group_transfer_p50_ns": 8e7,
            "error_ns": 1_000_000,
        }
        for r in range(4)
    ]  # fmt: skip
    facts = build(text(OOB, lines))
    rows = {**job.rows, **facts.rows, "exit_lateness": leaving}
    found = findings("link-degraded", replace(job, rows=rows, sources=facts.sources))
    assert len(found) == count
    assert found[0].summary.startswith("h3 is in most")
    assert ("The traces agree" in found[0].summary) == (count == 1)
