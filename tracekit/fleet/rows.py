"""What the diagnosis of one run says, as rows of the fleet's tables."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracekit.derive.placement.hosts import canonical
from tracekit.findings import Severity
from tracekit.fleet.lake import Card

if TYPE_CHECKING:
    from tracekit.api import OpenRun
    from tracekit.findings import Finding
    from tracekit.report.model import Report

Row = dict[str, Any]

PLACE_OWNERS = ("hardware", "network", "platform")
"""Whose findings lie on machines and links: drain or repair, not change of a program."""
HOURS_A_DAY = 24.0
NS_PER_S = 1e9
NS_PER_HOUR = 3.6e12


def family_of(card: Card) -> str | None:
    """Runs that may be compared: the signature, where a description says what work it is of; with
    the job's name where one says that alone. None otherwise: equal signatures of a size and a GPU
    may be of any two models."""
    if card.signature is None:
        return None
    if card.is_described:
        return card.signature
    if card.job_name is None:
        return None
    text = f"{card.signature}\0{card.job_name}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def rows_of(card: Card, run: OpenRun, report: Report) -> dict[str, list[Row]]:
    """Rows by table."""
    ranks = _ranks(run)
    names = {r["rank"]: _gpu_name(r["device"], r["host"]) for r in ranks}
    ports = _port_names(run)
    findings = report.document.findings
    tables = {
        "job": [_job(card, report)],
        "step": _steps(run),
        "rank": ranks,
        "host": _hosts(card, ranks, findings, _racks(run)),
        "gpu": _gpus(ranks, names, findings),
        "link": _links(ports, findings),
        "collective": _collectives(report),
        "finding": [_finding(f, report, ports) for f in findings],
        "budget": _budget(card, run, report),
        "goodput": _goodput(run, report),
    }
    run_key = {"date": card.date, "run": card.name}
    return {name: [{**run_key, **row} for row in rows] for name, rows in tables.items()}


def _job(card: Card, report: Report) -> Row:
    document = report.document
    step = document.metrics.step_time
    overlap = document.metrics.overlap
    carrying = report.finding(document.verdict.finding or "")
    files = document.inputs
    return {
        "family": family_of(card),
        "job_name": card.job_name,
        "start_utc": card.start_utc,
        "signature": card.signature,
        "model": card.model,
        "layout": card.layout,
        "world_size": document.run.world_size,
        "ranks_count": document.coverage.ranks_traced,
        "hosts": list(card.hosts),
        "gpu_model": card.gpu_model,
        "framework": card.framework,
        "torch_version": card.torch_version,
        "cuda_version": card.cuda_version,
        "nccl_version": card.nccl_version,
        "driver_version": card.driver_version,
        "steps_count": step.steps_count if step else 0,
        "step_mean_s": step.mean_s if step else None,
        "place_cost_s": _place_cost_s(report),
        "overlap_ratio": overlap.overlap_ratio if overlap else None,
        "window_s": document.run.window_s,
        "verdict": document.verdict.kind,
        "verdict_rule": carrying.rule if carrying else None,
        "sentence": document.verdict.sentence,
        "inputs_count": len(files),
        "inputs_bad_count": sum(f.status in ("partial", "empty", "unreadable") for f in files),
        "rules_unchecked_count": len(document.not_checked),
    }


def is_of_place(finding: Finding) -> bool:
    """Whether it says that machines or links are at fault, and is no symptom of another."""
    scope = finding.scope
    return (
        finding.owner in PLACE_OWNERS
        and not finding.explained_by
        and finding.severity != "note"
        and bool(scope.hosts or scope.devices or scope.links)
    )


def _place_cost_s(report: Report) -> float | None:
    """What machines and links cost of a step, by the budget, whose parts never overlap; None where
    the verdict is such a finding without a price."""
    places = {f.id: f for f in report.findings if is_of_place(f)}
    if (cause := places.get(report.verdict.finding or "")) and cause.impact.s_per_step is None:
        return None
    return sum(p.s_per_step for p in report.document.step_budget if p.finding in places)


def _steps(run: OpenRun) -> list[Row]:
    rows = []
    for row in run.answers.rows("step_time_summary"):
        times = {f"{n}_s": _seconds(row[f"{n}_ns"]) for n in ("mean", "p50", "p95", "p99", "max")}
        rows.append({"rank": row["rank"], "steps_count": row["steps_count"], **times})
    return rows


def _seconds(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / NS_PER_S


def _ranks(run: OpenRun) -> list[Row]:
    con = run.run.prepare(["rank"])
    chosen = run.run.selection.attempt
    rank_rows = con.execute(
        "SELECT attempt, rank, host, device_id FROM rank ORDER BY attempt, rank"
    ).fetchall()
    last = max((r[0] for r in rank_rows), default=None) if chosen is None else chosen
    late = {r["rank"]: r for r in run.answers.rows("straggler") if r["attempt"] == last}
    return [
        {
            "rank": rank,
            "host": host,
            "device": device,
            "lateness_ratio": late.get(rank, {}).get("lateness_ratio"),
            "compute_ratio": late.get(rank, {}).get("compute_ratio"),
        }
        for attempt, rank, host, device in rank_rows
        if attempt == last
    ]


def _gpu_name(device: str | None, host: str | None) -> str | None:
    """A name that no other GPU of the fleet has: a PCI address is its host's only."""
    if device is None or device.upper().startswith("GPU-"):
        return device
    return f"{host} {device}" if host is not None else None


def _places(named: Iterable[tuple[str, Finding]]) -> dict[str, Row]:
    """Rules and costs by name of the place."""
    rules: dict[str, set[str]] = defaultdict(set)
    costs: dict[str, list[float]] = defaultdict(list)
    severities: dict[str, list[Severity]] = defaultdict(list)
    for name, finding in named:
        rules[name].add(finding.rule)
        severities[name].append(finding.severity)
        if finding.impact.gpu_hours_per_day is not None:
            costs[name].append(finding.impact.gpu_hours_per_day)
    return {
        name: {
            "rules": sorted(place_rules),
            "severity": str(max(severities[name], key=lambda s: s.weight)),
            "gpu_hours_per_day": max(costs[name], default=None),
        }
        for name, place_rules in rules.items()
    }


_CLEAN: Row = {"rules": [], "severity": None, "gpu_hours_per_day": None}


def _racks(run: OpenRun) -> dict[str, str]:
    """The rack of each host that one is known of."""
    stated = {canonical(e.host): e for e in run.job.host} if run.job is not None else {}
    leaves: dict[str, set[str]] = defaultdict(set)
    if "fabric_link" in run.run.tables:
        for row in run.answers.rows("fabric_leaves"):
            leaves[canonical(row["host"])].add(row["leaf"])
    leaves |= {host: {entry.leaf} for host, entry in stated.items() if entry.leaf is not None}
    switches = {host: f"below {min(of)}" for host, of in leaves.items() if len(of) == 1}
    return switches | {h: entry.rack for h, entry in stated.items() if entry.rack is not None}


def _hosts(
    card: Card, ranks: Sequence[Row], findings: Sequence[Finding], racks: Mapping[str, str]
) -> list[Row]:
    """Every host of the run; a finding that names more than half of them lies on none."""
    everybody = set(card.hosts)
    most = max(1, len(everybody) // 2)
    places = _places(
        (host, f)
        for f in findings
        if is_of_place(f) and len(f.scope.hosts) <= most
        for host in f.scope.hosts
    )
    counts: dict[str, int] = defaultdict(int)
    for row in ranks:
        counts[row["host"]] += 1
    return [
        {
            "host": host,
            "rack": racks.get(canonical(host)),
            "ranks_count": counts.get(host, 0),
            **places.get(host, _CLEAN),
        }
        for host in sorted(everybody | set(places))
    ]


def _gpus(
    ranks: Sequence[Row], names: Mapping[int, str | None], findings: Sequence[Finding]
) -> list[Row]:
    hosts = {names[r["rank"]]: r["host"] for r in ranks if names[r["rank"]] is not None}

    def of(finding: Finding) -> set[str]:
        # A rank's GPU where the identity is known, else as the counters name it.
        known = {names.get(rank) for rank in finding.scope.ranks} - {None}
        if known and len(known) >= len(finding.scope.devices):
            return {name for name in known if name is not None}
        host = finding.scope.hosts[0] if len(finding.scope.hosts) == 1 else None
        gpu_names = {_gpu_name(d, host) for d in finding.scope.devices}
        return {name for name in gpu_names if name is not None}

    wanted = [f for f in findings if is_of_place(f) and f.scope.devices]
    places = _places((name, f) for f in wanted for name in of(f))
    everybody = {name for name in names.values() if name is not None} | set(places)
    return [
        {"gpu": name, "host": hosts.get(name), **places.get(name, _CLEAN)}
        for name in sorted(everybody)
    ]


def _port_names(run: OpenRun) -> dict[str, str]:
    """Ports by what findings call them. One of a host's own bears the name that the host has in its
    table, however the files of this night spell it; a port without its node is not told from those
    of other hosts."""
    rows = [
        r
        for r in run.answers.rows("port_counters")
        if r["node"] is not None and r["port"] is not None
    ]
    nodes = {r["node"] for r in rows}

    def name(row: Row) -> str:
        node, host = row["node"], row["host"]
        # Two full names with one short form are two machines.
        is_shared = "." in node and any(
            "." in other and other != node and canonical(other) == host for other in nodes
        )
        return f"{host if row['is_on_host'] and not is_shared else node}:{row['port']}"

    return {f"{r['node']}:{r['port']}": name(r) for r in rows}


def _links(ports: Mapping[str, str], findings: Sequence[Finding]) -> list[Row]:
    places = _places(
        (ports[link], f)
        for f in findings
        if is_of_place(f)
        for link in f.scope.links
        if link in ports
    )
    return [{"link": link, **places.get(link, _CLEAN)} for link in sorted(set(ports.values()))]


def _collectives(report: Report) -> list[Row]:
    return [
        {
            "group_kind": t.group_kind,
            "op": t.op,
            "calls_per_step": t.calls_per_step,
            "bytes_per_step": t.bytes_per_step,
            "expected_bytes": t.expected_bytes,
        }
        for t in report.metrics.traffic
    ]


def _finding(finding: Finding, report: Report, ports: Mapping[str, str]) -> Row:
    scope = finding.scope
    return {
        "finding": finding.id,
        "rule": finding.rule,
        "severity": str(finding.severity),
        "confidence": str(finding.confidence.level),
        "owner": finding.owner,
        "is_verdict": finding.id == report.verdict.finding,
        "is_explained": bool(finding.explained_by),
        "ranks": list(scope.ranks),
        "hosts": list(scope.hosts),
        "devices": list(scope.devices),
        "links": [ports.get(link, link) for link in scope.links],
        "s_per_step": finding.impact.s_per_step,
        "gpu_hours_per_day": finding.impact.gpu_hours_per_day,
        "summary": finding.summary,
    }


def _goodput(run: OpenRun, report: Report) -> list[Row]:
    """Parts of what the job's training log spans; none without one."""
    if "logged_step" not in run.run.tables:
        return []
    world = report.document.run.world_size
    return [
        {
            "part": row["part"],
            "spent_s": row["spent_ns"] / NS_PER_S,
            "gpu_hours": row["spent_ns"] / NS_PER_HOUR * world if world else None,
        }
        for row in run.answers.rows("goodput")
    ]


def _budget(card: Card, run: OpenRun, report: Report) -> list[Row]:
    """Parts of the step as GPU-hours of a day, with their energy and money: of the whole job, which
    waits as one."""
    from tracekit.report import price

    parts = report.document.step_budget
    step_s = sum(p.s_per_step for p in parts)
    world = report.document.run.world_size or card.ranks_count
    if step_s <= 0 or not world:
        return []
    rules = {f.id: f.rule for f in report.findings}
    watts = price.power_watts(run.answers.rows("gpu_counters"))
    prices = run.job.prices if run.job is not None else None
    rows = []
    for part in parts:
        hours = part.s_per_step / step_s * world * HOURS_A_DAY
        joules = price.energy_joules(hours, watts)
        amount = price.amount(hours, joules, prices)
        rows.append(
            {
                "part": part.part,
                "finding": part.finding,
                "rule": rules.get(part.finding or ""),
                "gpu_hours_per_day": hours,
                "energy_joules_per_day": joules,
                "amount_per_day": amount,
                "currency": prices.currency if prices and amount is not None else None,
            }
        )
    return rows
