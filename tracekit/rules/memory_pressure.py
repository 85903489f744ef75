"""
What it means
    A host, or the job's control group on it, is short of memory: tasks wait while pages are
    reclaimed, or read back from swap and files.

How it shows
    Ranks of the host are late, or the training log has a slow stretch, and in the very same steps
    or hours its tasks waited for memory (pressure). The waiting, beyond what is usual on the job's
    other hosts (else in its other steps), covers half of the delay or more: a task that is delayed
    has waited as long.

Why it hurts
    Whatever touches memory may stop for a reclaim: launching, loading, collectives through the
    host. Every rank waits for the slowest. What follows is often the kernel's OOM killer.

Remedy
    Find what grows (loader's workers, pinned buffers, page cache of checkpoints, a leak); raise
    memory.high or memory.max; no swap on training hosts; fewer workers or less prefetching.

When this is wrong
    A rank whose GPU computes longer, whose work is larger, or whose delay its own checkpoints,
    collections, compilations or allocations explain is not late by its host. Where all hosts wait
    alike nobody is named, nor of control groups side by side, of which one may be another
    tenant's. Readings that are far apart spread a burst evenly. Hosts without ranks and times
    outside the job do not count.

Source
    Linux Documentation/accounting/psi.rst and admin-guide/cgroup-v2.rst; lateness as in late-rank
    (diagnosis D29).
"""

from __future__ import annotations

from tracekit.rules import hosts
from tracekit.rules.base import Facts, RuleOutcome

LACKS = (hosts.Lack("memory", "waited for memory", "the time", is_own=True),)


def evaluate(facts: Facts, limits: hosts.HostThresholds) -> RuleOutcome:
    """One finding a host whose ranks are late, or in whose stretches the job is slow."""
    return hosts.judged(
        facts,
        limits,
        LACKS,
        "how long tasks of hosts waited for memory (/proc/pressure/memory, sadf -j)",
        confirm=(
            "vmstat 1 on its host: si, so, and free memory; ps --sort -rss: what has grown",
            "memory.events of the job's control group twice: do high or max grow?",
        ),
        remedy=(
            "raise memory.high and memory.max of the job's control group, or give it fewer loader "
            "workers and buffers",
            "look for what grows: pinned memory, page cache of checkpoints, a leak; no swap",
        ),
    )


RULE = hosts.rule(
    name="memory-pressure",
    summary="Ranks are late because their host is short of memory.",
    owner="platform",
    thresholds=hosts.HostThresholds(),
    queries=hosts.QUERIES_READ,
    evaluate=evaluate,
    explains=("waiting", "lateness", "latency", "late input"),
)
