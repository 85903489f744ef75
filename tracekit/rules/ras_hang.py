"""Hangs as NCCL's RAS shows them: counts that stand still between two snapshots, dead processes.

Unequal counts in one snapshot are normal: members are a call apart while a job runs. If between two
snapshots nobody launched anything and some had launched less than others, these are waited for.
Ranks are those of the communicator, which RAS does not tie to the job's; hosts are as RAS names
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from tracekit.findings import Evidence, Finding, Scope, Severity
from tracekit.rules.base import Facts, Row
from tracekit.rules.nccl_facts import Nccl, Signal
from tracekit.wording import listed, plural, safe, seconds, some_ranges

QUERY = "ras_growth"
MAX_HOSTS = 4


class Still(Struct, frozen=True):
    """A communicator in which nobody launched anything between the first and last snapshot."""

    comm: str
    rows: Sequence[Row]
    lagging: Sequence[Row]
    span_ns: int | None
    """None where the snapshots carry no time."""


def still(facts: Facts) -> list[Still]:
    """Communicators with members behind and without growth, the largest first."""
    standing = []
    for comm, rows in _by_comm(facts).items():
        counted = [r for r in rows if int(r["snapshots_count"]) >= 2]
        lagging = [r for r in counted if int(r["last_count"]) < int(r["peers_last_count"])]
        grew = any(
            r["first_count"] != r["last_count"] or r["peers_first_count"] != r["peers_last_count"]
            for r in counted
        )
        if not lagging or grew:
            continue
        spans = [int(r["span_ns"]) for r in counted if r["span_ns"] is not None]
        span_ns = min(spans) if len(spans) == len(counted) else None
        standing.append(Still(comm, counted, lagging, span_ns))
    return sorted(standing, key=lambda s: (-len(s.rows), s.comm))


def told(facts: Facts) -> tuple[str, str]:
    """Without a finding: what the snapshots show, and what to do next."""
    if is_single(facts):
        return (
            f"one RAS snapshot shows no hang: unequal counts are normal in it{_seen(facts)}.",
            "take a second snapshot a minute later: who has not moved, hangs",
        )
    first = next(iter(still(facts)), None)
    if first is None:
        return (
            "between the RAS snapshots no member stood still behind others.",
            "look for what is slow in profiler traces: tracekit capture --what profiler",
        )
    shown = (
        f"nothing was launched in communicator {safe(first.comm)} between two RAS snapshots, and "
    )
    shown += _behind(first)
    if first.span_ns is None:
        return (
            f"{shown}. They state no times: if they are a minute or more apart, it hangs.",
            "take snapshots as JSON: ncclras -f json",
        )
    return (
        f"{shown}. They are only {seconds(first.span_ns / 1e9)} apart.",
        "take the next snapshot a minute later: who has not moved, hangs",
    )


def hang(facts: Facts, min_silence_ns: int) -> Finding | None:
    """A dead member, or a communicator that stands still; None without either."""
    dead = Nccl(facts).of("ras_dead")
    standing = [s for s in still(facts) if (s.span_ns or 0) >= min_silence_ns]
    named: Sequence[Row] = []
    groups: tuple[str, ...] = ()
    if dead:
        lost = sorted({_process(s) for s in dead})
        shown = listed(lost) if len(lost) <= MAX_HOSTS else plural(len(lost), "process")
        says = (
            f"NCCL's RAS considers {shown} dead: whoever calls a collective with "
            f"{'it' if len(lost) == 1 else 'them'} waits for ever."
        )
        value, unit, threshold, name = float(len(lost)), "count", None, "processes considered dead"
        hosts = sorted({safe(s.node) for s in dead if s.node is not None})
        places = Nccl(facts).places(dead)
    elif standing:
        first = standing[0]
        assert first.span_ns is not None  # noqa: S101  # filtered above
        span = seconds(first.span_ns / 1e9)
        says = f"Communicator {safe(first.comm)} stood still for {span}: {_behind(first)}."
        value, unit, name = first.span_ns / 1e9, "s", "between snapshots without a new operation"
        threshold = min_silence_ns / 1e9
        named = first.lagging
        groups = (safe(first.comm),)
        places = facts.places(first.lagging, unit="line ")
        if len(standing) > 1:
            # Who is behind in one may be held up in another.
            says += f" So do {plural(len(standing) - 1, 'other communicator')}."
            named = []
        hosts = sorted({safe(str(r["node"])) for r in named if r["node"] is not None})
    else:
        return None
    scope = Scope(hosts=tuple(hosts[:MAX_HOSTS]), groups=groups, identity_source="log")
    return facts.finding(
        scope,
        says,
        (
            Evidence(
                name,
                value,
                unit,
                threshold=threshold,
                query="nccl_signals" if dead else QUERY,
                rows=places,
            ),
        ),
        by=["log"],
        basis="NCCL's RAS, which counts what each member launched",
        least=Severity.CRITICAL,
        place=None if hosts else "ras",
        keys=(),
        confirm=("the output of that process; on its host: dmesg -T | grep -iE 'oom|segfault|xid'",)
        if dead
        else ("py-spy dump --pid PID of the members that are behind; dmesg on their hosts",),
        remedy=("end the job and start it again once the cause of its end is known",)
        if dead
        else ("fix what keeps them from the call; see their stacks",),
        next_capture=("TORCH_NCCL_TRACE_BUFFER_SIZE=20000 TORCH_NCCL_DUMP_ON_TIMEOUT=1",),
    )


def is_single(facts: Facts) -> bool:
    """Whether there is no second snapshot of any member."""
    return all(int(r["snapshots_count"]) < 2 for r in facts.of(QUERY))


def _seen(facts: Facts) -> str:
    """Who is behind in a single snapshot, to be held against the next one."""
    for comm, rows in sorted(_by_comm(facts).items(), key=lambda c: (-len(c[1]), c[0])):
        counted = [r for r in rows if r["last_count"] is not None]
        behind = [r for r in counted if int(r["last_count"]) < int(r["peers_last_count"])]
        if behind:
            return f"; in communicator {safe(comm)} {_behind(Still(comm, counted, behind, None))}"
    return ""


def _by_comm(facts: Facts) -> dict[str, list[Row]]:
    by_comm: dict[str, list[Row]] = defaultdict(list)
    for row in facts.of(QUERY):
        by_comm[str(row["comm_hash"])].append(row)
    return by_comm


def _behind(lag: Still) -> str:
    least = min(int(r["last_count"]) for r in lag.lagging)
    most = max(int(r["peers_last_count"]) for r in lag.lagging)
    count = f"{least:,}" if all(int(r["last_count"]) == least for r in lag.lagging) else "fewer"
    return (
        f"{_ranks(lag.lagging)}{_at(lag.lagging)} launched {count} of the {most:,} operations "
        f"that others did"
    )


def _process(signal: Signal) -> str:
    where = f" on {safe(signal.node)}" if signal.node is not None else ""
    return f"process {safe(signal.given.get('pid', '?'))}{where}"


def _ranks(rows: Sequence[Row]) -> str:
    ranks = sorted({int(r["group_rank"]) for r in rows})
    return f"rank{'' if len(ranks) == 1 else 's'} {some_ranges(ranks)}"


def _at(rows: Sequence[Row]) -> str:
    hosts = sorted({safe(str(r["node"])) for r in rows if r["node"] is not None})
    if not hosts:
        return ""
    shown = listed(hosts) if len(hosts) <= MAX_HOSTS else plural(len(hosts), "host")
    return f" (on {shown})"
