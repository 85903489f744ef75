"""Failure domains: ranks that share a host, a rail or a leaf switch, and fail together.

Eight slow GPUs of one host are one fault (its power, its cooling), not eight. Findings of one rule
become one where the ranks that they name are exactly the traced ranks of a domain, and there are
others. Leaves come from the fabric's map too; racks, and what else nothing tells, from job.toml.
NICs of several hosts that count errors are their leaf's or rail's fault, and cables their spine's,
where hardly any elsewhere do (``shared_place``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from tracekit.derive.placement.hosts import canonical
from tracekit.findings import Finding, Scope, finding_id
from tracekit.report import shared_place
from tracekit.report.judgement import LIMITS, ReportThresholds
from tracekit.report.shared_place import Shared, leaves, link_name, shared_places
from tracekit.rules.base import Facts, JobFacts
from tracekit.wording import runs, safe

if TYPE_CHECKING:
    from tracekit.job import JobDescription

_SHARED = shared_place.SHARED | {
    "host": "its power, cooling, CPU and PCIe switches",
    "rack": "its power, cooling and top-of-rack switch",
}
"""What the members of a domain share."""


class Domain(Struct, frozen=True):
    """Traced ranks that one thing can strike together."""

    kind: str
    name: str
    ranks: frozenset[int]


def with_topology(facts: JobFacts, job: JobDescription | None) -> JobFacts:
    """The facts with the host, leaf switch, rail and rack of each rank, where job.toml tells.

    The switch is the one whose port leads to the rank, or the only one that leads to its host. The
    rail is the rank's index on its host where each GPU has a NIC of its own. Ranks without a trace
    are placed too: the culprit may be among them.
    """
    if job is None:
        return facts
    given = {e.rank: canonical(e.host) for e in job.rank if e.host is not None}
    placed = {**given, **facts.hosts}
    by_rank = {p.rank: p.node for p in job.port if p.rank is not None and p.node != p.host}
    by_host: dict[str, set[str]] = defaultdict(set)
    for port in job.port:
        if port.host is not None and port.node != port.host:
            by_host[canonical(port.host)].add(port.node)
    for entry in job.host:
        if entry.leaf is not None:
            by_host[canonical(entry.host)].add(entry.leaf)
    leaves = {
        rank: next(iter(by_host[host]))
        for rank, host in placed.items()
        if len(by_host.get(host, ())) == 1
    }
    by_rack = {canonical(e.host): e.rack for e in job.host if e.rack is not None}
    hardware = job.hardware
    gpus = hardware.gpus_per_node
    rails: dict[int, int] = {}
    if gpus is not None and gpus > 1 and gpus == (hardware.rails or hardware.nics_per_node):
        known = {*facts.rank_sources, *range(facts.world_size or 0)}
        rails = {rank: rank % gpus for rank in sorted(known)}
    return replace(
        facts,
        leaves={**leaves, **by_rank},
        rails=rails,
        racks={rank: by_rack[host] for rank, host in placed.items() if host in by_rack},
        placed_hosts=placed,
    )


def domains(facts: Facts) -> list[Domain]:
    """Domains of two or more traced ranks, but not all; by kind, the smaller ones first."""
    everybody = set(facts.ranks)
    shared: list[Domain] = []
    kinds: tuple[tuple[str, Mapping[int, object]], ...] = (
        ("host", facts.job.hosts),
        ("rail", facts.job.rails),
        ("leaf switch", leaves(facts)),
        ("rack", facts.job.racks),
    )
    for kind, names in kinds:
        members: dict[str, set[int]] = defaultdict(set)
        for rank, name in names.items():
            if rank in everybody:
                members[str(name)].add(rank)
        # A rank of unknown place may be a member too.
        if not everybody <= names.keys():
            continue
        shared += [
            Domain(kind, name, frozenset(ranks))
            for name, ranks in sorted(members.items())
            if 1 < len(ranks) < len(everybody)
        ]
    order = [kind for kind, _ in kinds]
    return sorted(shared, key=lambda d: (order.index(d.kind), len(d.ranks), d.name))


def rolled_up(
    findings: Sequence[Finding], facts: Facts, limits: ReportThresholds = LIMITS
) -> list[Finding]:
    """The findings, where those of one rule that make up a domain are one."""
    known = domains(facts)
    by_rule: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.scope.ranks or finding.scope.links:
            by_rule[finding.rule].append(finding)
    merged: dict[str, Finding] = {}
    for of_rule in by_rule.values():
        hit = {rank for f in of_rule for rank in f.scope.ranks}
        domain = next((d for d in known if d.ranks == hit), None)
        if len(of_rule) > 1 and domain is not None and all(f.scope.ranks for f in of_rule):
            together = _as_one(of_rule, domain, facts)
            merged |= dict.fromkeys((f.id for f in of_rule), together)
        else:
            placed: set[str] = set()
            for place in shared_places(of_rule, facts, limits):
                together = _as_one_place(place, facts)
                merged |= dict.fromkeys((f.id for f in place.findings), together)
                placed |= {f.id for f in place.findings}
            merged |= _by_host([f for f in of_rule if f.id not in placed], facts)
    result: list[Finding] = []
    for finding in findings:
        finding_left = merged.get(finding.id, finding)
        if finding_left not in result:
            result.append(finding_left)
    return result


def _by_host(of_rule: Sequence[Finding], facts: Facts) -> dict[str, Finding]:
    """Findings of one rule at every NIC that a host is known to have, as one by their ids: what the
    NICs share is the host. Not where all hosts are hit alike, nor where a host has one NIC."""
    ports: dict[str, dict[bool, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in facts.of("port_counters"):
        if row["host"] is not None:
            ports[row["host"]][bool(row["is_on_host"])].add(link_name(row))
    by_host: dict[str, list[Finding]] = defaultdict(list)
    for finding in of_rule:
        if len(finding.scope.hosts) == 1 and finding.scope.links:
            by_host[finding.scope.hosts[0]].append(finding)
    whole = {
        host: here
        for host, here in by_host.items()
        if len(here) > 1
        # Its own ports, or a switch's towards it: what each counts is one view of all its links.
        and any(
            known <= set(chain(*(f.scope.links for f in here))) for known in ports[host].values()
        )
    }
    if set(whole) >= set(ports):
        return {}
    return {
        f.id: together
        for host, here in whole.items()
        for together in [_as_one(here, Domain("host", host, frozenset()), facts)]
        for f in here
    }


def _as_one_place(place: Shared, facts: Facts) -> Finding:
    """One finding at what NICs or cables share. Ends of cables between switches are no hosts."""
    domain = Domain(place.kind, place.name, frozenset())
    one = _as_one(place.findings, domain, facts, place.members)
    hosts = () if place.is_between_switches else one.scope.hosts
    scope = replace(one.scope, hosts=hosts, switches=place.switches, rails=place.rails)
    return replace(one, scope=scope)


def _as_one(
    findings: Sequence[Finding], domain: Domain, facts: Facts, members: str | None = None
) -> Finding:
    """One finding at the domain. Its members are hit side by side, so the worst says the price.

    ``members`` says who is hit, where that is not all of the domain and no other.
    """
    worst = max(findings, key=lambda f: (f.impact.s_per_step or 0.0, f.id))
    scopes = [f.scope for f in findings]
    steps = {s for scope in scopes for low, high in scope.steps for s in range(low, high + 1)}
    sources = sorted({s.identity_source for s in scopes if s.identity_source})
    scope = Scope(
        ranks=tuple(sorted(set(chain(*(s.ranks for s in scopes))))),
        hosts=tuple(sorted(set(chain(*(s.hosts for s in scopes))))),
        devices=tuple(dict.fromkeys(chain(*(s.devices for s in scopes)))),
        links=tuple(dict.fromkeys(chain(*(s.links for s in scopes)))),
        groups=tuple(dict.fromkeys(chain(*(s.groups for s in scopes)))),
        rails=(int(domain.name),) if domain.kind == "rail" else (),
        switches=(domain.name,) if domain.kind == "leaf switch" else (),
        racks=(domain.name,) if domain.kind == "rack" else (),
        steps=runs(steps),
        identity_source=", ".join(sources) or None,
    )
    where = f"{domain.kind} {safe(domain.name)}"
    if members is None:
        count = len(scope.links) if len(scope.links) > 1 else len(domain.ranks)
        who = f"{count} NICs" if len(scope.links) > 1 else f"{count} traced ranks"
        members = f"All {who} of {where} are hit and no other"
    return replace(
        worst,
        id=finding_id(worst.rule, scope, facts.ranks)
        if scope.ranks
        else f"{worst.rule}/{_id_of(domain)}",
        # They are late side by side: the job waits for the slowest of them only.
        summary=f"{members}; the worst: {worst.summary}",
        scope=scope,
        evidence=tuple(chain(*(f.evidence for f in findings))),
        counter_evidence=tuple(chain(*(f.counter_evidence for f in findings))),
        confirm=(
            f"look at what {_sharing(domain)} share: {_SHARED[domain.kind]}",
            *dict.fromkeys(chain(*(f.confirm for f in findings))),
        ),
        remedy=tuple(dict.fromkeys(chain(*(f.remedy for f in findings)))),
    )


def _sharing(domain: Domain) -> str:
    if domain.kind.startswith("uplinks"):
        return f"the {domain.kind} {safe(domain.name)}"
    who = "cables" if domain.kind in ("spine switch", "core switch") else "ranks"
    return f"the {who} of {domain.kind} {safe(domain.name)}"


def _id_of(domain: Domain) -> str:
    """A rail's number is no rank, and a switch's uplinks are not all of it."""
    if domain.kind == "rail":
        return f"rail-{domain.name}"
    return f"uplinks-of-{domain.name}" if domain.kind.startswith("uplinks") else domain.name
