"""
What it means
    In a sweep of benchmarks over pairs of hosts, the pairs with one host are slow or fail.

How it shows
    Most pairs with that host are slower than pairs without it, or did not finish.

Why it hurts
    A job on that host runs at its speed.

Remedy
    Take the host out and test its NIC, cable and GPUs.

When this is wrong
    A host that was tested in one pair only shares the blame with its partner: then nobody is named.
    A benchmark without rows is incomplete, whatever its file is called; it did not say it failed.

Source
    Pairwise sweeps of nccl-tests, as clusters run them before a job.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from tracekit.findings import Evidence, Finding, Severity
from tracekit.rules.base import Facts, Row, Rule, RuleOutcome
from tracekit.rules.nccl_facts import log_scope
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import plural, safe

NEEDS = "nccl-tests over pairs of hosts"
CAPTURE = "run sendrecv_perf over pairs of the hosts, each host in two of them, and give its output"


class BadNodeThresholds(Thresholds):
    """When a host is to blame."""

    min_pairs_count: int = threshold(2, "pairs with the host; one cannot tell which of two it is")
    min_hosts_count: int = threshold(4, "hosts in the sweep; with three every pair shares a host")
    max_bandwidth_ratio: float = threshold(
        0.8, "of the median of pairs without the host; healthy pairs differ by a few percent"
    )
    min_bad_ratio: float = threshold(0.75, "of the host's pairs that must be slow or unfinished")


def evaluate(facts: Facts, limits: BadNodeThresholds) -> RuleOutcome:
    """Each benchmark kind on its own."""
    pairs: dict[str, list[Row]] = defaultdict(list)
    for row in facts.of("nccl_bench"):
        if len(row["hosts"] or ()) == 2:
            pairs[str(row["benchmark"])].append(row)
    hosts = {h for rows in pairs.values() for r in rows for h in r["hosts"]}
    if not hosts:
        return facts.lacking(NEEDS, CAPTURE)
    if len(hosts) < limits.min_hosts_count:
        return facts.lacking(
            f"nccl-tests over pairs of at least {limits.min_hosts_count} hosts (there are "
            f"{len(hosts)})",
            CAPTURE,
        )
    findings: dict[str, Finding] = {}
    for name, rows in sorted(pairs.items()):
        for host in sorted({h for r in rows for h in r["hosts"]}):
            finding = _judge(facts, limits, name, rows, host)
            if finding is not None:
                findings.setdefault(host, finding)
    return RuleOutcome(findings=tuple(findings.values()))


def _judge(
    facts: Facts, limits: BadNodeThresholds, name: str, rows: list[Row], host: str
) -> Finding | None:
    tested = [r for r in rows if host in r["hosts"]]
    others = [
        float(r["peak_bus_bytes_per_s"])
        for r in rows
        if host not in r["hosts"] and r["is_complete"] and r["peak_bus_bytes_per_s"]
    ]
    if len(tested) < limits.min_pairs_count or not others:
        return None
    limit = limits.max_bandwidth_ratio * median(others)
    slow = [r for r in tested if r["is_complete"] and float(r["peak_bus_bytes_per_s"] or 0) < limit]
    unfinished = [r for r in tested if not r["is_complete"]]
    bad = [*slow, *unfinished]
    if len(bad) < limits.min_bad_ratio * len(tested) or len(bad) < limits.min_pairs_count:
        return None
    parts = [f"{len(slow)} slow"] if slow else []
    parts += [f"{len(unfinished)} unfinished"] if unfinished else []
    return facts.finding(
        log_scope(hosts=(safe(host),)),
        f"{safe(host)}: {len(bad)} of {plural(len(tested), 'pair')} with it in {safe(name)} are "
        f"bad ({', '.join(parts)}); pairs without it reach {median(others) / 1e9:.1f} GB/s.",
        [
            Evidence.ratio(
                "bad pairs of the host",
                len(bad) / len(tested),
                limits.min_bad_ratio,
                "nccl_bench",
                facts.places(bad, unit="line "),
            ),
            *(
                Evidence(
                    "bus bandwidth of a slow pair",
                    float(r["peak_bus_bytes_per_s"]),
                    "bytes/s",
                    threshold=limit,
                    query="nccl_bench",
                )
                for r in slow[:1]
            ),
        ],
        by=("counters",),
        basis="measured by pairs; no counter of the host was seen",
        least=Severity.MAJOR if slow else Severity.MINOR,
        confirm=(f"repeat a pair of {safe(host)} with a host that is well",),
        remedy=(f"after that drain {safe(host)} and test its NIC, cable and GPUs",),
    )


RULE = Rule(
    name="bad-node",
    summary="Benchmarks over pairs of hosts are slow or fail where one host takes part.",
    owner="hardware",
    thresholds=BadNodeThresholds(),
    queries=("nccl_bench",),
    evaluate=evaluate,
    needs=NEEDS,
    reads_other_files=True,
)
