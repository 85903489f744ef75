"""
What it means
    Traffic between machines leaves its rail: it enters the fabric on one rail and leaves it on
    another, through the spine that rail-optimised fabrics avoid.

How it shows
    NCCL itself warns of mismatched physical devices, or connections send from one device index and
    receive on another.

Why it hurts
    The spine has less bandwidth than the rails, and flows collide there.

Remedy
    NCCL_CROSS_NIC=0, PXN on, the same NIC order on all hosts.

When this is wrong
    Fabrics without rails do not care. A rail is the GPU that a NIC is nearest to, where the hosts'
    topology is among the files (nvidia-smi topo -m, NCCL_TOPO_DUMP_FILE). Else it is the device's
    index, and those are rails only if all hosts list their NICs in the same order. NCCL chooses
    crossing rings on purpose where it believes the fabric flat.

Source
    NVIDIA/nccl issues 1114, 1479, 1697, 1933, 2193.
"""

from __future__ import annotations

from tracekit.findings import Evidence, Finding, Severity
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.nccl_facts import CAPTURE, Nccl, log_scope, nccl_rule, no_logs
from tracekit.rules.nearness import TOPOLOGY, listed_nics, nearness
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import plural, share


class CrossRailTrafficThresholds(Thresholds):
    """How much may cross."""

    min_crossing_ratio: float = threshold(
        0.1, "of the channels between hosts; a few cross where hosts have unequal GPUs"
    )
    major_crossing_ratio: float = threshold(
        0.5, "of the channels: with communication that nothing hides it is no side effect"
    )
    min_exposed_ratio: float = threshold(
        0.1, "of the step in communication that nothing hides, so that the network matters"
    )
    min_devices_count: int = threshold(2, "devices a host; with one there is no rail to leave")


def evaluate(facts: Facts, limits: CrossRailTrafficThresholds) -> RuleOutcome:
    """Connections whose ends are on different rails."""
    nccl = Nccl(facts)
    warned = nccl.of("rail_mismatch")
    if not nccl.members and not warned:
        return no_logs(facts)
    rows = [
        r for r in facts.of("nccl_rails")
        if r["plugin"] not in ("Socket", "FastSocket")
        and r["from_node"] is not None and r["from_node"] != r["to_node"]
    ]  # fmt: skip
    if not rows and not warned:
        if nccl.spanning() or any(nccl.nodes_count(c) is None for c in nccl.comms):
            return facts.lacking("both ends of the connections in NCCL logs of all ranks", CAPTURE)
        return RuleOutcome()
    rails = _rails(facts, nccl, {str(r[k]) for r in rows for k in ("from_node", "to_node")})
    ends = [_ends(r, rails) for r in rows]
    devices = {rail for pair in ends for rail in pair}
    crossing = [r for r, (start, end) in zip(rows, ends, strict=True) if start != end]
    every = sum(int(r["edges_count"]) for r in rows)
    across = sum(int(r["edges_count"]) for r in crossing)
    is_much = (
        len(devices) >= limits.min_devices_count
        and every > 0
        and across >= limits.min_crossing_ratio * every
    )
    if not warned and not is_much:
        return RuleOutcome()
    return RuleOutcome(findings=(_finding(facts, nccl, limits, crossing, across, every, rails),))


def _rails(facts: Facts, nccl: Nccl, nodes: set[str]) -> dict[str, dict[int, int]]:
    """The rail of each device of each host; empty where one host's topology is not known."""
    by_node: dict[str, dict[int, int]] = {}
    for node in sorted(nodes):
        listed = {i: name for i, (name, _, _) in listed_nics(nccl, node).items()}
        near = nearness(facts, node, listed.values()) if listed else None
        if near is None:
            return {}
        rails = {i: near.rail(name, listed.values()) for i, name in listed.items()}
        by_node[node] = {i: r for i, r in rails.items() if r is not None}
    return by_node


def _ends(row: Row, rails: dict[str, dict[int, int]]) -> tuple[int, int]:
    """The rails of a connection's ends: by the topology where it knows both, else by index."""
    start = rails.get(str(row["from_node"]), {}).get(int(row["from_device"]))
    end = rails.get(str(row["to_node"]), {}).get(int(row["to_device"]))
    if start is None or end is None:
        return int(row["from_device"]), int(row["to_device"])
    return start, end


def _exposed_ratio(facts: Facts) -> float | None:
    """Share of the steady steps that is communication nothing hides; None without steps."""
    rows = [r for r in facts.of("overlap") if r["span_ns"]]
    if any(r["exposed_comm_ns"] is None for r in rows):
        return None
    span = sum(int(r["span_ns"]) for r in rows)
    return sum(int(r["exposed_comm_ns"]) for r in rows) / span if span else None


def _finding(
    facts: Facts,
    nccl: Nccl,
    limits: CrossRailTrafficThresholds,
    crossing: list[Row],
    across: int,
    every: int,
    rails: dict[str, dict[int, int]],
) -> Finding:
    warned = nccl.of("rail_mismatch")
    nodes = {str(r[k]) for r in crossing for k in ("from_node", "to_node")}
    setting = nccl.settings("NCCL_CROSS_NIC")
    value = setting[0].given.get("value") if setting else None
    hosts = plural(len(nodes), "host")
    words = (
        [f"{share(across / every)} of the channels of {hosts} change rails"] if across else []
    )  # fmt: skip
    words += ["NCCL warns of mismatched devices"] if warned else []
    words += [f"NCCL_CROSS_NIC={value} is set"] if setting else []
    exposed = _exposed_ratio(facts)
    is_costly = (
        exposed is not None
        and exposed >= limits.min_exposed_ratio
        and every > 0
        and across >= limits.major_crossing_ratio * every
    )
    # Two orders that differ do not say which of them is the odd one.
    return facts.finding(
        log_scope(hosts=sorted({s.node for s in warned if s.node is not None}) if warned else ()),
        f"Traffic leaves its rail: {'; '.join(words)}.",
        [
            nccl.evidence(
                "channels that change rails",
                across / every if every else 0.0,
                "ratio",
                "nccl_rails",
                threshold=limits.min_crossing_ratio,
            ),
            *nccl.lines("warnings of NCCL", warned),
            *(
                [
                    Evidence.ratio(
                        "communication that nothing hides, of the time",
                        exposed,
                        limits.min_exposed_ratio,
                        "overlap",
                    )
                ]
                if exposed is not None and is_costly
                else []
            ),
        ],
        by=["log"],
        basis="NCCL's own warning"
        if warned
        else "rails by the GPU that each NIC is nearest to"
        if rails
        else "device indices, taken for rails",
        # Device indices are an assumption; NCCL's own warning is not.
        least=Severity.MINOR if warned or is_costly else Severity.NOTE,
        confirm=("compare the order of NICs (ibdev2netdev) on the hosts",),
        remedy=("NCCL_CROSS_NIC=0 on a rail-optimised fabric, and do not disable PXN",),
    )


RULE = nccl_rule(
    name="cross-rail-traffic",
    summary="Traffic between machines enters the fabric on one rail and leaves it on another.",
    owner="network",
    thresholds=CrossRailTrafficThresholds(),
    queries=("nccl_comms", "nccl_rails", "nccl_signals", TOPOLOGY),
    kernel_queries=("overlap",),
    evaluate=evaluate,
    bound="communication",
    states="cause",
)
