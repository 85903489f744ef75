"""
What it means
    A rank's process runs on CPUs of another NUMA node than its GPU's, or most of its memory lies on
    another.

How it shows
    The CPUs on which a process may run (/proc/PID/status, taskset, the cpuset of its cgroup; query
    process_place) are none of those beside its GPU (nvidia-smi topo -m; query host_topology), which
    nvidia-smi lists it on (query gpu_processes); or numastat -p shows more than half of its memory
    on other nodes.

Why it hurts
    Copies to and from the GPU, launches and the NIC's buffers cross the link between sockets: a
    part of the bandwidth, some microseconds each.

Remedy
    Bind each rank to the CPUs and the memory of its GPU's node: numactl, the launcher's own
    binding (srun --cpu-bind, torchrun's --numa-binding), the kubelet's topology manager.

When this is wrong
    A process that may run on every node is not blamed for its CPUs: where it runs is then the
    scheduler's choice. What it costs is not measured here: a job that neither copies nor launches
    much loses little. Process ids of a container are others than the host's: files of both do not
    meet.

Source
    diagnosis D7; Linux admin-guide/mm/numa_memory_policy.rst; manual pages of nvidia-smi, numastat.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from tracekit.findings import Evidence, Finding, Scope
from tracekit.rules.base import Facts, Row, Rule, RuleOutcome
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import ranges, safe, share

PLACES, TOPOLOGY, PROCESSES = "process_place", "host_topology", "gpu_processes"
NEEDS = (
    "where the processes on GPUs may run (/proc/PID/status, taskset -cp PID, numastat -p PID), "
    "beside nvidia-smi topo -m and nvidia-smi --query-compute-apps of the same host"
)
_CAPTURED = re.compile(r"(?:^|[/!])tracekit-capture[^/]*/([^/]+)/[^/]+$")
_MAX_CPUS = 1 << 16
"""Of one machine: a longer list is none."""


class NumaMisplacementThresholds(Thresholds):
    """Whose memory counts."""

    min_far_ratio: float = threshold(
        0.5, "of a process's memory on other nodes than its GPU's: libraries and caches are shared"
    )
    min_memory_bytes: int = threshold(
        1 << 30, "of a process's memory: of less, what is shared is most"
    )


class _Process(Struct):
    """A process that computes on GPUs of its host."""

    pid: int
    rows: list[Row] = field(default_factory=list)
    gpus: set[int] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    is_known: bool = True
    """Whether each GPU that it is on is one of the topology's."""
    near: set[int] = field(default_factory=set)
    """CPUs beside its GPUs."""
    nodes: set[int | None] = field(default_factory=set)
    """Their NUMA nodes."""


def evaluate(facts: Facts, limits: NumaMisplacementThresholds) -> RuleOutcome:
    """A finding a host for CPUs, and one for memory."""
    by_host = _processes(facts)
    told: dict[tuple[str | None, int], list[Row]] = defaultdict(list)
    for row in facts.of(PLACES):
        told[_host(facts, row), row["pid"]].append(row)
    findings: list[Finding] = []
    judged = 0
    for host, processes in sorted(by_host.items(), key=lambda item: item[0] or ""):
        off, far = [], []
        for process in processes:
            rows = told.get((host, process.pid), [])
            if not process.is_known or not rows:
                continue
            judged += 1
            process.rows = rows
            if _is_off(process):
                off.append(process)
            elif _far_ratio(process, limits) >= limits.min_far_ratio:
                far.append(process)
        findings += [_cpus(facts, host, off)] if off else []
        findings += [_memory(facts, limits, host, far)] if far else []
    if not judged:
        return facts.lacking(NEEDS, "tracekit capture --what host")
    return RuleOutcome(findings=tuple(findings))


def _host(facts: Facts, row: Row) -> str | None:
    """Whose a row is: by its host, else by the folder that a capture names after it."""
    captured = _CAPTURED.search(facts.sources.get(row["source_id"], ""))
    return row["host"] or (captured[1] if captured else None)


def _processes(facts: Facts) -> Mapping[str | None, list[_Process]]:
    beside: dict[tuple[str | None, int], Row] = {}
    nameless = {r["source_id"] for r in facts.of(TOPOLOGY) if _host(facts, r) is None}
    for row in facts.of(TOPOLOGY):
        host = _host(facts, row)
        # Of several machines without names nobody knows whose processes are whose.
        if row["cpu_affinity"] and row["nvml_index"] is not None and (host or len(nameless) == 1):
            beside[host, row["nvml_index"]] = row
    found: dict[tuple[str | None, int], _Process] = {}
    for row in facts.of(PROCESSES):
        host = _host(facts, row)
        process = found.setdefault((host, row["pid"]), _Process(row["pid"]))
        gpu = beside.get((host, row["gpu_index"]))
        near = cpus_of(gpu["cpu_affinity"]) if gpu is not None else frozenset[int]()
        if row["rank"] is not None:
            process.ranks.add(int(row["rank"]))
        if gpu is None or not near:
            process.is_known = False
            continue
        process.gpus.add(int(row["gpu_index"]))
        process.near |= near
        process.nodes.add(gpu["numa_node"])
    by_host: dict[str | None, list[_Process]] = defaultdict(list)
    for (host, _), process in sorted(found.items(), key=lambda item: item[1].pid):
        by_host[host].append(process)
    return by_host


def cpus_of(text: str) -> frozenset[int]:
    """The CPUs of a list such as ``0-31,64``; empty for what is none, or too many to be true."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            return frozenset()
        low, high = int(first[:6]), int(last[:6] or first[:6])
        if high >= _MAX_CPUS:
            return frozenset()
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def _is_off(process: _Process) -> bool:
    """Whether all that is said of its CPUs lies away from its GPUs."""
    said = [cpus for row in process.rows if row["cpus"] and (cpus := cpus_of(row["cpus"]))]
    return bool(said) and all(cpus.isdisjoint(process.near) for cpus in said)


def _far_ratio(process: _Process, limits: NumaMisplacementThresholds) -> float:
    """Share of its memory on other nodes than its GPUs'; 0 where that is not known."""
    rows = [row for row in process.rows if row["memory_bytes"] is not None]
    total = sum(row["memory_bytes"] for row in rows)
    if total < limits.min_memory_bytes or None in process.nodes:
        return 0.0
    far = sum(row["memory_bytes"] for row in rows if row["numa_node"] not in process.nodes)
    return float(far / total)


def _cpus(facts: Facts, host: str | None, off: Sequence[_Process]) -> Finding:
    first = off[0]
    cpus = next(row["cpus"] for row in first.rows if row["cpus"])
    away = (
        f"CPUs {safe(cpus)} ({_gpus(first)} {'has' if len(first.gpus) == 1 else 'have'} "
        f"{ranges(first.near)} beside {'it' if len(first.gpus) == 1 else 'them'})"
    )
    if len(off) == 1:
        summary = f"{_subject(off, host)} may only run away from its GPU, on {away}."
    else:
        summary = (
            f"{_subject(off, host)} may only run away from their GPUs: process {first.pid} on "
            f"{away}."
        )
    return _finding(
        facts, host, off, summary, "cpus",
        Evidence("processes none of whose CPUs is beside their GPU", len(off), "count",
                 query=PLACES, rows=facts.places(_rows(off), unit="line ")),
    )  # fmt: skip


def _memory(
    facts: Facts, limits: NumaMisplacementThresholds, host: str | None, far: Sequence[_Process]
) -> Finding:
    most = max(far, key=lambda process: _far_ratio(process, limits))
    ratio = _far_ratio(most, limits)
    summary = (
        f"Of the memory of {_subject(far, host, is_first=False)} up to {share(ratio)} lies on "
        f"other NUMA nodes than the GPU's (process {most.pid}, {_gpus(most)})."
    )
    return _finding(
        facts, host, far, summary, "memory",
        Evidence.ratio("memory on other nodes than the GPU's", ratio, limits.min_far_ratio, PLACES,
                       facts.places(_rows(far), unit="line ")),
    )  # fmt: skip


def _finding(
    facts: Facts,
    host: str | None,
    processes: Sequence[_Process],
    summary: str,
    what: str,
    evidence: Evidence,
) -> Finding:
    ranks = sorted(rank for process in processes for rank in process.ranks)
    return facts.finding(
        Scope(
            ranks=tuple(dict.fromkeys(ranks)),
            hosts=(host,) if host else (),
            identity_source="file",
        ),
        summary,
        [evidence],
        by=["counters"],
        basis="what the host says of its processes and its GPUs; what it costs was not measured",
        place=f"{host or 'host'}-{what}",
        confirm=(
            "on its host: taskset -cp PID and numastat -p PID beside nvidia-smi topo -m",
            "some steps with the rank bound to its GPU's node: is the step shorter?",
        ),
        remedy=(
            "bind each rank to the CPUs and memory of its GPU's node (numactl --cpunodebind "
            "--membind, srun --cpu-bind, the kubelet's topology manager)",
        ),
    )


def _rows(processes: Iterable[_Process]) -> list[Row]:
    return [row for process in processes for row in process.rows]


def _gpus(process: _Process) -> str:
    return f"GPU{'' if len(process.gpus) == 1 else 's'} {ranges(process.gpus)}"


def _subject(processes: Sequence[_Process], host: str | None, *, is_first: bool = True) -> str:
    on = f" of {safe(host)}" if host else ""
    ranks = sorted(rank for process in processes for rank in process.ranks)
    if len(processes) > 1:
        who = f" (ranks {ranges(ranks)})" if len(ranks) > 1 else ""
        return f"{len(processes)} processes{on}{who}"
    who = f" (rank {ranks[0]})" if len(ranks) == 1 else ""
    return f"{'P' if is_first else 'p'}rocess {processes[0].pid}{on}{who}"


RULE = Rule(
    name="numa-misplacement",
    summary="A rank's process or its memory is on another NUMA node than its GPU.",
    owner="platform",
    thresholds=NumaMisplacementThresholds(),
    queries=(PLACES, TOPOLOGY, PROCESSES),
    evaluate=evaluate,
    needs=NEEDS,
    topic="what hosts lack",
)
