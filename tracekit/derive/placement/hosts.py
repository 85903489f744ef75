"""Machines, their other names, and whose clock a file's times are on."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from tracekit.derive.placement.sources import Source
from tracekit.ingest.base import stated_host

if TYPE_CHECKING:
    from tracekit.job import JobDescription

_CLOCK_KINDS = {"epoch": "realtime", "relative": "monotonic"}


def canonical(name: str) -> str:
    """Short name, lower case, cut at the first dot; an address stays whole."""
    name = name.strip().rstrip(".").lower()
    return name if _is_address(name) else name.split(".", 1)[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def resolve(
    sources: list[Source], job: JobDescription | None, notes: list[str]
) -> list[dict[str, Any]]:
    """Fill in the hosts: job.toml's, else the files'; returns the rows of ``host_alias``.

    Full names that differ but share their short form stay whole: they are different machines.
    """
    given = {e.rank: canonical(e.host) for e in job.rank if e.host} if job is not None else {}
    full_names: dict[str, set[str]] = {}
    for source in sources:
        name = _stated(source)
        if name is not None and "." in name and not _is_address(name):
            full_names.setdefault(canonical(name), set()).add(name.lower())
    aliases: dict[tuple[str, str], dict[str, Any]] = {}
    for source in sources:
        if source.host is None and source.rank in given:
            source.host, source.host_source = given[source.rank], "job_toml"
        name = _stated(source)
        if name is None:
            continue
        if source.host is None:
            short = canonical(name)
            is_shared = len(full_names.get(short, ())) > 1 and name.lower() in full_names[short]
            source.host, source.host_source = (name.lower() if is_shared else short), "file"
        if name != source.host:
            kind = "ip" if _is_address(name) else "fqdn" if "." in name else "node"
            aliases.setdefault(
                (source.host, name),
                {"host": source.host, "alias": name, "kind": kind, "alias_source": "file"},
            )
    replaced = {s.host_name for s in sources if s.host_source == "job_toml" and _stated(s)}
    others = sorted(n for n in replaced if n and n in {name for _, name in aliases})
    if others:
        more = ", ..." if len(others) > 4 else ""
        notes.append(
            f"hosts of the job description replace the traces' own ({', '.join(others[:4])}{more})"
        )
    return [aliases[key] for key in sorted(aliases)]


def _stated(source: Source) -> str | None:
    return stated_host(source.host_name)


def host_rows(sources: list[Source]) -> list[dict[str, Any]]:
    """The rows of ``host``: every host of a source, with its ranks."""
    rows: dict[str, dict[str, Any]] = {}
    ranks: dict[str, set[int]] = {}
    for source in sources:
        if source.host is None:
            continue
        row = rows.setdefault(source.host, {"host": source.host, "host_source": "file"})
        if source.host_source == "job_toml":
            row["host_source"] = "job_toml"
        members = ranks.setdefault(source.host, set())
        if source.is_used and source.rank is not None:
            members.add(source.rank)
    return [{**rows[h], "ranks_count": len(ranks[h])} for h in sorted(rows)]


def assign_clocks(sources: list[Source], job: JobDescription | None) -> list[dict[str, Any]]:
    """Give every source its clock; returns the rows of ``clock``.

    One clock a host for times since the epoch; one for all where job.toml says so; a source's
    own where its host is unknown or its times count from an unknown zero.
    """
    is_shared = job is not None and job.clocks.shared is True
    members: dict[tuple[object, ...], list[Source]] = {}
    for source in sources:
        basis = source.time_basis or "none"
        if is_shared:
            key: tuple[object, ...] = (0, basis)
        elif source.host is not None and basis == "epoch":
            key = (1, source.host)
        else:
            key = (2, *source.order)
        members.setdefault(key, []).append(source)
    rows = []
    for clock_id, key in enumerate(sorted(members)):
        group = members[key]
        for source in group:
            source.clock_id = clock_id
        basis = group[0].time_basis or "none"
        resolutions = [s.resolution_ns for s in group if s.resolution_ns is not None]
        rows.append(
            {
                "clock_id": clock_id,
                "kind": _CLOCK_KINDS.get(basis, "none"),
                "host": None if is_shared else group[0].host,
                "resolution_ns": max(resolutions, default=None),
                "basis": basis,
                "is_shared": is_shared,
            }
        )
    return rows
