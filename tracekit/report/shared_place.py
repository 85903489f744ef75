"""What NICs and cables that count errors share: a leaf switch, a rail, a spine.

Four NICs with errors below one leaf are one fault (the leaf's), and so are the cables of a spine.
That holds where most of what leads to the place is hit, whatever is left aside that could be the
fault itself (a host of the leaf's, a leaf of the spine's), and hardly anything at other places of
the kind. What reads none of the counters that accuse counts for neither: nobody knows whether it
is healthy.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from tracekit.derive.placement.hosts import canonical
from tracekit.findings import Finding
from tracekit.report.judgement import ReportThresholds
from tracekit.rules.base import Facts, Row
from tracekit.wording import safe

SHARED = {
    "leaf switch": "its uplinks, buffers and firmware",
    "rail": "the leaf switches and the optics of its NICs",
    "spine switch": "its power, cooling, ASIC and firmware",
    "core switch": "its power, cooling, ASIC and firmware",
    "uplinks of leaf switch": "its uplink optics, ASIC and firmware",
    "uplinks of spine switch": "its uplink optics, ASIC and firmware",
}
"""What is looked at first, by kind of place."""

_UPPER = {1: "spine switch", 2: "core switch"}
_LOWER = {1: "uplinks of leaf switch", 2: "uplinks of spine switch"}
_NUMBERED = re.compile(r"(.*\D)(\d{1,4})")


class Shared(Struct, frozen=True):
    """A place, and findings of one rule at what leads to it."""

    kind: str
    name: str
    findings: tuple[Finding, ...]
    members: str
    """Who is hit there, and who elsewhere: the beginning of a sentence."""
    switches: tuple[str, ...] = ()
    rails: tuple[int, ...] = ()
    is_between_switches: bool = False


def leaves(facts: Facts) -> dict[int, str]:
    """Rank to leaf switch: as job.toml says, else by the fabric's map where all cabled NICs of the
    rank's host lead to one switch."""
    switches: dict[str, set[str]] = defaultdict(set)
    for row in facts.of("fabric_leaves"):
        switches[canonical(row["host"])].add(row["leaf"])
    mapped = {
        rank: next(iter(switches[host]))
        for rank, host in facts.job.hosts.items()
        if len(switches.get(host, ())) == 1
    }
    return mapped | dict(facts.job.leaves)


def shared_places(
    of_rule: Sequence[Finding], facts: Facts, limits: ReportThresholds
) -> Iterator[Shared]:
    """Places that explain findings of one rule; each finding is in one at most."""
    explained: set[str] = set()
    accusing = {e.name for f in of_rule for e in f.evidence}
    for level in _levels(facts, accusing):
        for place in _at_level(level, [f for f in of_rule if f.id not in explained], limits):
            explained |= {f.id for f in place.findings}
            yield place


class _Level(Struct, frozen=True):
    """Places of one kind, and what leads to them: NICs, or cables between switches."""

    kind: str
    of_place: str
    """``NICs below leaf switch {}``"""
    of_others: str
    units: Mapping[str, Hashable]
    """Name of a port to the NIC or cable that it is an end of."""
    places: Mapping[Any, str]
    """Of each that reads what accuses."""
    asides: Mapping[Any, tuple[str, ...]]
    """What else could be at fault for each: its host, its leaf."""
    switches: Mapping[str, tuple[str, ...]]
    """Of each place."""
    rails: Mapping[str, int]


def _at_level(
    level: _Level, of_rule: Sequence[Finding], limits: ReportThresholds
) -> Iterator[Shared]:
    units, places = level.units, level.places
    hit = {units[link] for f in of_rule for link in f.scope.links if link in units}
    found: dict[str, list[Finding]] = defaultdict(list)
    is_between = level.kind not in ("leaf switch", "rail")
    for finding in of_rule:
        at = {places.get(units[link]) if link in units else None for link in finding.scope.links}
        if len(at) == 1 and (is_between or len(finding.scope.hosts) == 1):
            place = at.pop()
            if place is not None:
                found[place].append(finding)
    for place, here in found.items():
        own = {unit for unit, name in places.items() if name == place}
        others = places.keys() - own
        if not others:
            continue
        is_shared = all(
            len(rest & hit) >= max(limits.min_leaf_ports_count, limits.min_leaf_ratio * len(rest))
            for aside in {name for unit in own & hit for name in level.asides[unit]}
            for rest in [{unit for unit in own if aside not in level.asides[unit]}]
        )
        if is_shared and len(others & hit) <= limits.max_other_leaves_ratio * len(others):
            members = (
                f"{len(own & hit)} of the {len(own)} {level.of_place.format(safe(place))} are hit, "
                f"and {len(others & hit)} of {len(others)} {level.of_others}"
            )
            rails = (level.rails[place],) if place in level.rails else ()
            yield Shared(
                level.kind, place, tuple(here), members, level.switches[place], rails, is_between
            )


def _levels(facts: Facts, accusing: Collection[str]) -> Iterator[_Level]:
    nics, names, leaf_of = _nics(facts, accusing)
    rails = _rails(facts)
    rail_of = {nic: rail for nic in leaf_of if (rail := rails.get(names.get(nic, ""))) is not None}
    by_rail: dict[str, set[str]] = defaultdict(set)
    for nic, rail in rail_of.items():
        by_rail[str(rail)].add(leaf_of[nic])
    yield _Level(
        "rail", "NICs of rail {}", "of others", nics,
        {nic: str(rail) for nic, rail in rail_of.items()},
        {nic: (nic[0], f"{leaf_of[nic]} (leaf)") for nic in rail_of},
        {rail: tuple(sorted(at)) for rail, at in by_rail.items()},
        {str(rail): rail for rail in rails.values()},
    )  # fmt: skip
    # After the rail: most of it is hit below each of its leaves, where one leaf's fault is not.
    hosts = {nic: (nic[0],) for nic in leaf_of}
    of_leaf = {leaf: (leaf,) for leaf in leaf_of.values()}
    yield _Level("leaf switch", "NICs below leaf switch {}", "below others", nics, leaf_of, hosts,
                 of_leaf, {})  # fmt: skip
    for tier, kind in _UPPER.items():
        cables, ends = _cables(facts, accusing, tier)
        above = {cable: row["upper"] for cable, row in cables.items()}
        below = {cable: row["lower"] for cable, row in cables.items()}
        for of_kind, of_place, of_others, places, asides in (
            (kind, f"cables to {kind} {{}}", "to others", above, below),
            (_LOWER[tier], f"{_LOWER[tier]} {{}}", "of others", below, above),
        ):
            yield _Level(
                of_kind, of_place, of_others, ends, places,
                {cable: (name,) for cable, name in asides.items()},
                {name: (name,) for name in places.values()}, {},
            )  # fmt: skip


_Nic = tuple[str, int | str]
"""A NIC with its switch's port, as one: its host, and the rank that uses it or one port's name."""


def _nics(
    facts: Facts, accusing: Collection[str]
) -> tuple[dict[str, _Nic], dict[_Nic, str], dict[_Nic, str]]:
    """NIC of each port, its name on its host, and its leaf where it reads what accuses and is known
    to be below one.

    The switch whose port leads to the NIC says the leaf, or else the fabric's map of the port, or
    else that or job.toml of the rank.
    """
    by_rank = leaves(facts)
    mapped: dict[tuple[str, str], set[str]] = defaultdict(set)
    named: dict[tuple[str, str], str] = {}
    for row in facts.of("fabric_leaves"):
        nic_port = row["nic_port"] or ""
        for name in {nic_port, nic_port.partition("/")[0]} - {""}:
            mapped[canonical(row["host"]), name].add(row["leaf"])
        if row.get("leaf_port"):
            named[canonical(row["leaf"]), row["leaf_port"]] = nic_port.partition("/")[0]
    rows = [r for r in facts.of("port_counters") if r["host"] is not None]
    # What leads to another switch has a host too: that one has neither ranks nor NICs of its own.
    used = {r["host"] for r in rows if r["is_on_host"] or r["rank"] is not None or r["ranks"]}
    nics: dict[str, _Nic] = {}
    names: dict[_Nic, str] = {}
    places: dict[_Nic, set[str]] = defaultdict(set)
    counted: set[_Nic] = set()
    for row in rows:
        if row["host"] not in used:
            continue
        rank, port = row["rank"], str(row["port"])
        nic = nics[link_name(row)] = (row["host"], link_name(row) if rank is None else rank)
        if row["is_on_host"]:
            names[nic] = port.partition("/")[0]
        elif row["node"] is not None and (name := named.get((canonical(row["node"]), port))):
            names.setdefault(nic, name)
        if not row["is_on_host"] and row["node"] is not None:
            places[nic].add(row["node"])
        elif known := mapped.get((canonical(row["host"]), port)):
            places[nic] |= known
        elif rank in by_rank:
            places[nic].add(by_rank[rank])
        if row["counter"] in accusing and row["growth"] is not None:
            counted.add(nic)
    known_leaves = {n: min(at) for n, at in places.items() if len(at) == 1 and n in counted}
    return nics, names, known_leaves


def _rails(facts: Facts) -> dict[str, int]:
    """Name of a NIC to its rail: the number in its name, where the fabric's map shows rails.

    It does where all hosts call their NICs by one word and a number, several of them, and NICs of
    unlike numbers share no leaf.
    """
    below: dict[str, set[str]] = defaultdict(set)
    for row in facts.of("fabric_leaves"):
        below[(row["nic_port"] or "").partition("/")[0]].add(row["leaf"])
    parts = {name: _NUMBERED.fullmatch(name) for name in below}
    words = {None if part is None else part[1] for part in parts.values()}
    leaves_count = len(set().union(*below.values()))
    if len(words) != 1 or len(below) < 2 or sum(map(len, below.values())) != leaves_count:
        return {}
    return {name: int(part[2]) for name, part in parts.items() if part is not None}


def _cables(
    facts: Facts, accusing: Collection[str], tier: int
) -> tuple[dict[Hashable, Row], dict[str, Hashable]]:
    """Cables from this tier upwards of which an end reads what accuses; and the cable of each port
    that counts, by its name."""
    known: dict[tuple[str, str], tuple[Hashable, Row]] = {}
    for row in facts.of("fabric_uplinks"):
        if row["lower_tier"] == tier:
            cable = (row["lower"], row["lower_port"], row["upper"], row["upper_port"])
            for side in ("lower", "upper"):
                if row[f"{side}_port"] is not None:
                    known[row[side], row[f"{side}_port"]] = cable, row
    cables: dict[Hashable, Row] = {}
    ends: dict[str, Hashable] = {}
    for row in facts.of("port_counters"):
        at = known.get((canonical(row["node"]), str(row["port"]))) if row["node"] else None
        if at is None:
            continue
        ends[link_name(row)] = at[0]
        if row["counter"] in accusing and row["growth"] is not None:
            cables[at[0]] = at[1]
    return cables, ends


def link_name(row: Row) -> str:
    """Name of a port, as scopes have it."""
    return f"{row['node']}:{row['port']}" if row["node"] else str(row["port"])
