"""Cables that the fabric's map shows narrower or slower than they could be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tracekit.findings import Evidence, Finding, Scope, Severity
from tracekit.rules.base import Facts, Row
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import plural, safe, some

QUERIES = ("reduced_cables",)
SHOWN_CABLES = 3


class CableThresholds(Thresholds):
    """When a cable of the map is slow."""

    min_cable_hosts_count: int = threshold(
        3, "other hosts with a NIC of that name: what most have is what it is for"
    )
    max_cable_speed_ratio: float = threshold(
        0.8, "of what it could be: speeds come in steps of two, so below is another speed"
    )


def slow_cables(facts: Facts) -> list[Finding]:
    """One finding a host whose cables are slow, and one of all cables between switches.

    Of a job whose hosts are known other hosts' cables are not told: they lead to other jobs.
    """
    limits = facts.limits(CableThresholds)
    by_host: dict[str | None, list[Row]] = defaultdict(list)
    for row in facts.of("reduced_cables"):
        is_of_host = row["node_kind"] == "host" or row["ranks"] is not None
        if is_of_host and row["ranks"] is None and facts.ranks:
            continue
        if _is_slow(row, limits):
            by_host[str(row["node"]) if is_of_host else None].append(row)
    return [_finding(facts, limits, host, rows) for host, rows in by_host.items()]


def _is_slow(row: Row, limits: CableThresholds) -> bool:
    ratio = _ratio(row)
    if ratio is None or ratio > limits.max_cable_speed_ratio:
        return False
    return row["hosts_count"] is None or int(row["hosts_count"]) >= limits.min_cable_hosts_count


def _ratio(row: Row) -> float | None:
    """What the cable has of what it could have: of its speed, else of its lanes."""
    for name in ("speed_bits_s", "lanes_count"):
        if row[name] is not None and row[f"possible_{name}"]:
            return float(row[name]) / float(row[f"possible_{name}"])
    return None


def _finding(
    facts: Facts, limits: CableThresholds, host: str | None, rows: Sequence[Row]
) -> Finding:
    worst = min(rows, key=lambda r: (_ratio(r) or 0.0, str(r["node"]), str(r["port"])))
    ranks = sorted({int(r) for row in rows for r in row["ranks"] or ()})
    links = tuple(f"{safe(str(r['node']))}:{safe(str(r['port']))}" for r in rows)
    which = some([_cable(row) for row in rows], SHOWN_CABLES)
    one = len(rows) == 1
    return facts.finding(
        Scope(
            hosts=facts.hosts_of(ranks) or ((host,) if host else ()),
            links=links,
            identity_source="the fabric's map",
        ),
        f"The cable{'' if one else 's'} {which} run{'s' if one else ''} at {_shown(worst)}.",
        (
            Evidence.ratio(
                "speed of the slowest of these cables over what it could be",
                _ratio(worst) or 0.0,
                limits.max_cable_speed_ratio,
                "reduced_cables",
                facts.places(rows, unit="line "),
            ),
        ),
        by=["counters"],
        basis="the fabric's map, as it was when it was printed"
        + ("" if ranks else "; whether the job uses it is not known"),
        least=Severity.MINOR,
        place=host or "switches",
        keys=(),
        confirm=("ibportstate or mlxlink of both ends: active against enabled width and speed",),
        remedy=("reseat or replace cable or optic, then let the port train anew",),
    )


def _cable(row: Row) -> str:
    """``from h1 mlx5_0/1 to leaf1 port 3``."""
    far = safe(str(row["peer"]))
    port = f" port {safe(str(row['peer_port']))}" if row["peer_port"] is not None else ""
    return f"from {safe(str(row['node']))} {safe(str(row['port']))} to {far}{port}"


def _shown(row: Row) -> str:
    """``2 of 4 lanes, 100 of 200 Gbit/s``; by others: ``100 Gbit/s, where most of 4 hosts ...``."""
    lanes, could = row["lanes_count"], row["possible_lanes_count"]
    words = [f"{lanes} of {could} lanes"] if could is not None and lanes < could else []
    if row["possible_speed_bits_s"] is None or row["speed_bits_s"] is None:
        return "".join(words)
    is_, usual = (f"{float(row[n]) / 1e9:.3g}" for n in ("speed_bits_s", "possible_speed_bits_s"))
    if row["hosts_count"] is not None:
        hosts = plural(int(row["hosts_count"]) + 1, "host")
        return f"{is_} Gbit/s, where most of {hosts} have {usual}"
    return ", ".join([*words, f"{is_} of {usual} Gbit/s"])
