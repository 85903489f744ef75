"""
What it means
    A host gives its ranks too little CPU: a quota that runs out, more tasks than CPUs, or a
    hypervisor that gives the CPU to others.

How it shows
    Ranks of the host are late, or the training log has a slow stretch, and in the very same steps
    or hours its tasks waited: periods in which the control group's quota ran out (cpu.stat), time
    in which a task waited for a CPU (pressure), CPU time stolen. The waiting, beyond what is usual
    on the job's other hosts (else in its other steps), covers half of the delay or more: a task
    that is delayed has waited as long.

Why it hurts
    The thread that launches kernels, or the loader's workers, stand in a queue, and every rank
    waits for the slowest.

Remedy
    Raise or remove the quota (cpu.max, a container's CPU limit); ask for as many CPUs as the ranks
    have threads (OMP_NUM_THREADS, num_workers); pin ranks; move other tenants away.

When this is wrong
    A rank whose GPU computes longer, whose work is larger, or whose delay its own checkpoints,
    collections, compilations or allocations explain is not late by its host. Where all hosts wait
    alike nobody is named, nor of control groups side by side, of which one may be another
    tenant's. Readings that are far apart spread a burst evenly. Hosts without ranks and times
    outside the job do not count.

Source
    Linux Documentation/accounting/psi.rst, admin-guide/cgroup-v2.rst (cpu.stat),
    scheduler/sched-bwc.rst; lateness as in late-rank (diagnosis D29).
"""

from __future__ import annotations

from tracekit.rules import hosts
from tracekit.rules.base import Facts, RuleOutcome

LACKS = (
    hosts.Lack("quota", "ran out of their CPU quota", "its periods", is_own=True),
    hosts.Lack("cpu", "waited for a CPU", "the time", is_own=False),
    hosts.Lack("steal", "lost the CPU to the hypervisor's other guests", "the time", is_own=True),
)


def evaluate(facts: Facts, limits: hosts.HostThresholds) -> RuleOutcome:
    """One finding a host whose ranks are late, or in whose stretches the job is slow."""
    return hosts.judged(
        facts,
        limits,
        LACKS,
        "how long tasks of hosts waited for CPU (/proc/pressure/cpu, cpu.stat, sadf -j)",
        confirm=(
            "cat /sys/fs/cgroup/.../cpu.stat twice, a minute apart: does nr_throttled grow?",
            "pidstat -u -w -t 1 on its host: %wait of the ranks' threads, and who runs instead",
        ),
        remedy=(
            "raise or remove the CPU quota of the job's control group (cpu.max, the container's "
            "CPU limit)",
            "fewer threads than CPUs: OMP_NUM_THREADS, the loader's num_workers; pin the ranks",
        ),
    )


RULE = hosts.rule(
    name="cpu-throttled",
    summary="Ranks are late because their host gives them too little CPU.",
    owner="platform",
    thresholds=hosts.HostThresholds(),
    queries=hosts.QUERIES_READ,
    evaluate=evaluate,
    explains=("waiting", "lateness", "latency", "late input"),
)
