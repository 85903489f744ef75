"""
What it means
    Storage is slow: ranks wait for data that is read, or for a checkpoint that is written, longer
    than this disk or mount takes otherwise.

How it shows
    Steps wait for input or a checkpoint, and in the very same steps requests to a disk or mount of
    the same host took twice as long as in its other steps (else as on the other hosts that have
    it), and together at least half as long as was waited. Or ranks are late, or the training log
    has a slow stretch, in the very steps or hours in which the host's tasks waited for storage
    (pressure, else the CPUs' iowait) long enough to be the reason, beyond what is usual elsewhere
    and at other times. Or in a slow stretch or stall of the log requests took twice as long as in
    any other piece of its time that is as long, and together at least half as long as was lost; of
    a stall only reads and lookups, since a save writes more than what is written otherwise.

Why it hurts
    A loader that cannot read ahead, or a save that nothing hides, stops all ranks.

Remedy
    Of one host: its disk (SMART, errors, other writers), its mount's options and path. Of a shared
    mount: the servers, other jobs' traffic, many small files; caches, sharded archives, local
    copies, asynchronous saves to a local disk first.

When this is wrong
    A loader that is slow at decoding waits for no storage: its requests take no longer. Storage
    that is slow always, on every host, shows no difference, and nothing is said. Requests that
    overlap are added up, so their sum may exceed what a rank waited. Readings that are far apart
    spread a burst evenly.

Source
    Diagnosis D31; kernel's Documentation/admin-guide/iostats.rst, accounting/psi.rst.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean, median

from msgspec import Struct
from msgspec.structs import replace

from tracekit.findings import Evidence, Finding, Scope
from tracekit.rules import hosts
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.prices import at_most
from tracekit.rules.steps import StepKey
from tracekit.rules.thresholds import threshold
from tracekit.wording import plural, ranks_phrase, safe, seconds, some

LATENCY = "storage_latency"
STEPS = "storage_steps"
EPISODES = "episode_storage"
OF_SERVERS = ("obdfilter", "mdt")
"""What Lustre's servers count, of whichever job asked them: no wait of a machine of this job."""
NEEDS = (
    "storage counters (iostat -o JSON, /proc/diskstats, mountstats, Lustre's) or the hosts' I/O "
    "pressure"
)
WAITED = (
    ("input_stall", "input", ("read", "metadata")),
    ("checkpoint_stall", "a checkpoint", ("write", "flush", "metadata")),
)
"""Stalls that storage can be the reason of, and by which operations."""
LACKS = (
    hosts.Lack("io", "waited for storage", "the time", is_own=False),
    hosts.Lack("iowait", "waited for storage", "all CPUs' time", is_own=False),
)
CONFIRM = (
    "iostat -x 1, nfsiostat 1 or lctl get_param osc.*.stats on its host while the job runs",
    "read one file of the data set there and on another host, uncached: dd iflag=direct",
)
REMEDY = (
    "read ahead further (prefetch_factor), from local copies or larger, sharded files",
    "save asynchronously to a local disk first; look for other writers and for disk errors",
)


class SlowStorageThresholds(hosts.HostThresholds):
    """When storage is why ranks wait."""

    min_stall_ratio: float = threshold(
        0.05, "of a mean step that a step must wait for input or a checkpoint: as for a late rank"
    )
    min_stalled_steps_count: int = threshold(2, "one step shows no persistence")
    min_latency_ratio: float = threshold(
        2.0, "latency over what is usual: the time of a request varies by half with its size"
    )


class _Slow(Struct, frozen=True):
    host: str
    device: str
    filesystem: str | None
    operation: str
    what: str
    latency_ns: float
    usual_ns: float
    usual: str
    waited_ns: float
    """In a stalled step, mean."""
    stalled_ns: float
    """What such a step waits, mean."""
    keys: tuple[StepKey, ...]
    ranks: tuple[int, ...]
    cost_ns: float
    """Of a mean steady step."""
    rows: tuple[Row, ...]


def evaluate(facts: Facts, limits: SlowStorageThresholds) -> RuleOutcome:
    """One finding a disk or mount, and one a host whose tasks waited for storage."""
    tells = {lack.resource for lack in LACKS}
    has_pressure = any(row["resource"] in tells for row in facts.of(hosts.PRESSURE))
    has_waits = any(row["filesystem"] not in OF_SERVERS for row in facts.of(LATENCY))
    if not has_waits and not has_pressure:
        return facts.lacking(NEEDS, hosts.CAPTURE)
    slow_series = _found(facts, limits)
    findings = [_finding(facts, limits, group) for group in _by_device(slow_series)]
    named = {host for f in findings for host in f.scope.hosts}
    of_history = _of_history(facts, limits, named)
    findings += [finding for _, finding in of_history]
    named |= {machine for machine, _ in of_history}
    if not has_pressure:
        return RuleOutcome(tuple(findings))
    by_pressure = hosts.judged(facts, limits, LACKS, NEEDS, confirm=CONFIRM, remedy=REMEDY,
                               own_stalls=OWN_STALLS)  # fmt: skip
    known = named | {f"{facts.asked.name}/{hosts.place_of(machine)}" for machine in named}
    findings += [f for f in by_pressure.findings if known.isdisjoint((f.id, *f.scope.hosts))]
    return replace(by_pressure, findings=tuple(findings))


OWN_STALLS = tuple(q for q in hosts.OWN_STALLS if q != "checkpoint_stall")


def _key(row: Row) -> StepKey:
    return StepKey.of(row)


def _found(facts: Facts, limits: SlowStorageThresholds) -> list[_Slow]:
    steps = facts.steps
    if not len(steps):
        return []
    by_device: dict[tuple[str, str, str], dict[StepKey, Row]] = defaultdict(dict)
    for row in facts.of(STEPS):
        if row["host"] is not None and row["covered_ratio"] >= limits.min_covered_ratio:
            by_device[row["host"], row["device"], row["operation"]][_key(row)] = row
    slow_series = []
    for query, what, operations in WAITED:
        stalls = _stalls(facts, limits, query)
        for (host, device, operation), rows in sorted(by_device.items()):
            if operation in operations and host in stalls:
                slow = _slow(facts, limits, stalls[host], rows, by_device)
                if slow is not None:
                    slow_series.append(replace(slow, host=host, device=device, what=what))
    return slow_series


def _stalls(
    facts: Facts, limits: SlowStorageThresholds, query: str
) -> dict[str, dict[StepKey, dict[int, float]]]:
    """By host, the steady steps in which its ranks wait, and how long each does."""
    steady = set(facts.steps.keys)
    stalls: dict[str, dict[StepKey, dict[int, float]]] = defaultdict(dict)
    for row in facts.of(query):
        host, key = facts.job.hosts.get(int(row["rank"])), _key(row)
        is_long = float(row["exposed_ns"]) >= limits.min_stall_ratio * facts.steps.step_ns
        if host is not None and key in steady and is_long:
            stalls[host].setdefault(key, {})[int(row["rank"])] = float(row["exposed_ns"])
    return {h: k for h, k in stalls.items() if len(k) >= limits.min_stalled_steps_count}


def _slow(
    facts: Facts,
    limits: SlowStorageThresholds,
    stalls: Mapping[StepKey, Mapping[int, float]],
    rows: Mapping[StepKey, Row],
    everything: Mapping[tuple[str, str, str], Mapping[StepKey, Row]],
) -> _Slow | None:
    """The series where its requests took long in the stalled steps, and not otherwise."""
    here = [rows[key] for key in stalls if key in rows]
    if len(here) < limits.min_covered_ratio * len(stalls):
        return None
    latency = _latency_ns(here)
    if latency is None:
        return None
    usual, words = _latency_ns([r for key, r in rows.items() if key not in stalls]), "otherwise"
    if usual is None:
        mine = here[0]
        others = [
            _latency_ns([r for key, r in theirs.items() if key in stalls])
            for (host, device, operation), theirs in everything.items()
            if host != mine["host"] and (device, operation) == (mine["device"], mine["operation"])
        ]
        known = [ns for ns in others if ns is not None]
        if not known:
            return None
        usual, words = median(known), "on other hosts"
    waited = fmean(float(r["waited_ns"]) for r in here)
    longest = {key: max(by_rank.values()) for key, by_rank in stalls.items()}
    stalled = fmean(longest.values())
    is_slow = latency >= limits.min_latency_ratio * usual
    if not is_slow or waited < limits.min_explained_ratio * stalled:
        return None
    here.sort(key=lambda r: -float(r["waited_ns"]))
    return _Slow(
        "", "", here[0]["filesystem"], here[0]["operation"], "", latency, usual, words, waited,
        stalled, tuple(sorted(stalls)), tuple(sorted({r for by in stalls.values() for r in by})),
        sum(longest.values()) / len(facts.steps), tuple(here),
    )  # fmt: skip


def _latency_ns(rows: Sequence[Row]) -> float | None:
    """Mean time of a request in these steps; None where there was none."""
    requests = sum(float(r["requests_count"]) for r in rows)
    return sum(float(r["waited_ns"]) for r in rows) / requests if requests > 0 else None


def _by_device(slow_series: Sequence[_Slow]) -> list[list[_Slow]]:
    """Of each host the series that was waited for longest, once; hosts of one mount together.

    A file system, its disk and its partitions show the same requests.
    """
    best: dict[tuple[str, str], _Slow] = {}
    for slow in slow_series:
        key = (slow.host, slow.what)
        if key not in best or slow.waited_ns > best[key].waited_ns:
            best[key] = slow
    groups: dict[tuple[str, ...], list[_Slow]] = defaultdict(list)
    for slow in best.values():
        whose = ("", slow.device) if slow.filesystem else (slow.host, slow.device)
        groups[(*whose, slow.what)].append(slow)
    return list(groups.values())


def _finding(facts: Facts, limits: SlowStorageThresholds, group: Sequence[_Slow]) -> Finding:
    worst = max(group, key=lambda s: s.waited_ns)
    ranks = sorted({r for s in group for r in s.ranks})
    keys = sorted({key for s in group for key in s.keys})
    names = sorted(safe(s.host) for s in group)
    kind = f" ({safe(worst.filesystem)})" if worst.filesystem else ""
    operation = _plural(worst.operation)
    subject = hosts.lower(ranks_phrase(ranks, facts.ranks))
    cost = at_most(max(s.cost_ns for s in group), "recorded time")
    return facts.finding(
        facts.scope(ranks, keys),
        f"{operation.capitalize()} of {safe(worst.device)}{kind} on {some(names, 3)} take "
        f"{seconds(worst.latency_ns / 1e9)} in the {plural(len(keys), 'step')} in which "
        f"{subject} {'waits' if len(ranks) == 1 else 'wait'} for "
        f"{worst.what}, {seconds(worst.usual_ns / 1e9)} {worst.usual}: storage is slow, and costs "
        f"up to {seconds(cost.ns / 1e9)} of each {seconds(facts.step_ns / 1e9)} step.",
        (
            Evidence.ratio(
                f"latency of {operation} in those steps over {worst.usual}",
                worst.latency_ns / worst.usual_ns if worst.usual_ns else float("inf"),
                limits.min_latency_ratio,
                STEPS,
                facts.readings(worst.rows),
            ),
            Evidence.seconds(
                f"time of {operation} in such a step, all added up",
                worst.waited_ns,
                limits.min_explained_ratio * worst.stalled_ns,
                STEPS,
            ),
            Evidence.seconds(
                f"such a step waits for {worst.what}",
                worst.stalled_ns,
                limits.min_stall_ratio * facts.steps.step_ns,
                "input_stall" if worst.what == "input" else "checkpoint_stall",
            ),
        ),
        by=("counters", "host ranges"),
        basis="the storage's own counters in the very steps that wait by the trace's ranges",
        impact=facts.impact(cost),
        keys=keys,
        confirm=CONFIRM,
        remedy=REMEDY,
    )


# --- stretches of the history ---------------------------------------------------------------------


def _of_history(
    facts: Facts, limits: SlowStorageThresholds, named: Collection[str]
) -> list[tuple[str, Finding]]:
    """One finding a machine, and its name: what was slow in stretches in which the log is. Not of
    those that are ``named`` already."""
    members = set(facts.job.hosts.values()) | set(facts.job.placed_hosts.values())
    slow: dict[str, dict[tuple[str, str], list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in facts.of(EPISODES):
        machine = hosts.machine(facts, row)
        if machine is None or machine in named or (members and machine not in members):
            continue
        if row["filesystem"] not in OF_SERVERS and _is_slow_then(row, limits):
            slow[machine][str(row["device"]), str(row["operation"])].append(row)
    return [
        (machine, _history_finding(facts, limits, machine, _most_waited(series)))
        for machine, series in sorted(slow.items())
    ]


def _is_slow_then(row: Row, limits: SlowStorageThresholds) -> bool:
    lasted_ns = row["end_ns"] - row["start_ns"]
    is_save = row["kind"] == "stall" and row["operation"] not in ("read", "metadata")
    is_known = (
        row["latency_ns"] is not None
        and row["usual_worst_latency_ns"] is not None
        and row["covered_ratio"] >= limits.min_covered_ratio
        and row["usual_covered_ns"] >= lasted_ns
    )
    return (
        is_known
        and not is_save
        and row["latency_ns"] >= limits.min_latency_ratio * row["usual_worst_latency_ns"]
        and row["waited_ns"] >= limits.min_explained_ratio * float(row["lost_ns"] or 0)
    )


def _most_waited(series: Mapping[tuple[str, str], list[Row]]) -> list[Row]:
    """A disk and what is mounted of it show the same requests: the series that took longest."""
    return max(series.values(), key=lambda rows: sum(float(row["waited_ns"]) for row in rows))


def _history_finding(
    facts: Facts, limits: SlowStorageThresholds, machine: str, rows: Sequence[Row]
) -> Finding:
    worst = max(rows, key=lambda row: float(row["waited_ns"]))
    kind = f" ({safe(worst['filesystem'])})" if worst["filesystem"] else ""
    operation = _plural(str(worst["operation"]))
    finding = facts.finding(
        Scope(hosts=(machine,) if worst["host"] is not None else ()),
        f"{hosts.loses(facts, rows)}, and {operation} of {safe(worst['device'])}{kind} on "
        f"{safe(machine)} take {seconds(worst['latency_ns'] / 1e9)}, at other times "
        f"{seconds(worst['usual_latency_ns'] / 1e9)}: storage is slow.",
        (
            Evidence.ratio(
                f"latency of {operation} in the stretch over that in the worst other piece as long",
                worst["latency_ns"] / worst["usual_worst_latency_ns"]
                if worst["usual_worst_latency_ns"]
                else float("inf"),
                limits.min_latency_ratio,
                EPISODES,
                facts.readings(rows),
            ),
            Evidence.seconds(
                f"time of {operation} in the stretch, all added up",
                worst["waited_ns"],
                limits.min_explained_ratio * float(worst["lost_ns"] or 0),
                EPISODES,
            ),
        ),
        by=("counters", "log"),
        basis="the storage's own counters and the training log agree in time; no trace shows which "
        "ranks waited",
        impact=hosts.price_of(facts, rows),
        least=hosts.matters(facts, rows),
        place=hosts.place_of(machine),
        keys=(),
        confirm=CONFIRM,
        remedy=REMEDY,
    )
    return replace(finding, when=hosts.when(facts, rows))


def _plural(operation: str) -> str:
    return {"metadata": "lookups and opens", "flush": "flushes"}.get(operation, f"{operation}s")


RULE = hosts.rule(
    name="slow-storage",
    summary="Storage is slow, and ranks wait for what is read or written.",
    owner="platform",
    thresholds=SlowStorageThresholds(),
    queries=(*hosts.QUERIES_READ, LATENCY, STEPS, EPISODES, "input_stall"),
    evaluate=evaluate,
    needs=NEEDS,
    explains=("waiting", "lateness", "latency", "late input", "slow saves"),
)
