"""
What it means
    Ranks use fewer or slower network devices than their machine offers.

How it shows
    Either all ranks of a machine (four or more; three, where on another machine each has its own)
    send over one device although NCCL lists several that are alike, or they use a device that is
    much slower than the fastest listed (a storage or management NIC). Where the host's topology is
    among the files (nvidia-smi topo -m, NCCL_TOPO_DUMP_FILE): ranks use only NICs that their GPU
    reaches over the CPU, though NCCL lists one within PCIe switches.

Why it hurts
    One NIC's bandwidth is shared by all GPUs, or the wrong network carries the traffic.

Remedy
    Set NCCL_IB_HCA to the NICs of the compute network (or remove it), and check that the container
    sees the PCI topology.

When this is wrong
    A machine may have several ports of one NIC that NCCL joins to one device. A small communicator
    needs no more than one. Speeds are what NCCL states (2.24 and later). A topology that names no
    host is taken for every host with its NICs; NICs that NCCL joined to one are not compared.

Source
    NVIDIA/nccl issue 1519; the words of nvidia-smi topo -m.
"""

from __future__ import annotations

from collections import defaultdict

from msgspec import Struct

from tracekit.findings import Evidence, Finding, Severity
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.nccl_facts import CAPTURE, Nccl, log_scope, nccl_rule, no_logs
from tracekit.rules.nearness import FAR, TOPOLOGY, listed_nics, nearness
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import safe


class WrongNicThresholds(Thresholds):
    """When a choice of devices is wrong."""

    min_ranks_count: int = threshold(
        4, "ranks of one machine on the network; two or three may share a NIC by design"
    )
    min_odd_ranks_count: int = threshold(
        3,
        "the same where on another machine with as many NICs as many ranks each have their own:"
        " machines whose pairs share a NIC by design show no three of one and three of three",
    )
    min_far_ratio: float = threshold(0.5, "of ranks that pass a nearer NIC by: fewer are a note")
    max_speed_ratio: float = threshold(
        0.5, "of the fastest device's speed; generations differ by a factor of two"
    )


def evaluate(facts: Facts, limits: WrongNicThresholds) -> RuleOutcome:
    """The devices that each machine's ranks use, against those that it lists."""
    nccl = Nccl(facts)
    if not nccl.members:
        return no_logs(facts)
    rows = [r for r in facts.of("nccl_nics") if r["plugin"] != "Socket"]
    if not rows:
        if nccl.spanning() or any(nccl.nodes_count(c) is None for c in nccl.comms):
            return facts.lacking("connections over the network in NCCL logs", CAPTURE)
        return RuleOutcome()
    by_node: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["node"] is not None:
            by_node[str(row["node"])].append(row)
    shared = _Shared.of(nccl, by_node)
    findings = [
        f for node, used in sorted(by_node.items())
        if (f := _slow(facts, nccl, limits, node, used)
             or _single(facts, nccl, limits, node, used, shared)
             or _far(facts, nccl, limits, node, used))
    ]  # fmt: skip
    return RuleOutcome(findings=tuple(findings))


def _slow(
    facts: Facts, nccl: Nccl, limits: WrongNicThresholds, node: str, used: list[Row]
) -> Finding | None:
    listed = listed_nics(nccl, node)
    speeds = {i: s for i, (_, s, _) in listed.items() if s}
    if not speeds:
        return None
    # A device that joins ports of others is no NIC of its own.
    single = {i: s for i, s in speeds.items() if "+" not in listed[i][0]}
    fastest = max(single.values(), default=0.0)
    slow = sorted(
        {int(r["net_device"]) for r in used}
        & {i for i, s in speeds.items() if s < limits.max_speed_ratio * fastest}
    )
    if not slow:
        return None
    names = ", ".join(safe(listed[i][0]) for i in slow)
    speed = min(speeds[i] for i in slow)
    return facts.finding(
        log_scope(hosts=(safe(node),), devices=tuple(safe(listed[i][0]) for i in slow)),
        f"NCCL uses {names} at {speed / 1000:.0f} Gb/s on {safe(node)}, which has NICs of "
        f"{fastest / 1000:.0f} Gb/s.",
        [
            nccl.evidence(
                "speed of the slowest NIC in use",
                speed * 1e6 / 8,
                "bytes/s",
                "nccl_signals",
                [listed[i][2] for i in slow],
                limits.max_speed_ratio * fastest * 1e6 / 8,
            )
        ],
        by=["log"],
        basis="speeds that NCCL states",
        least=Severity.MINOR,
        confirm=("ibstat; ibdev2netdev   on the host",),
        remedy=("set NCCL_IB_HCA to the NICs of the compute network",),
    )


def _single(
    facts: Facts,
    nccl: Nccl,
    limits: WrongNicThresholds,
    node: str,
    used: list[Row],
    shared: _Shared,
) -> Finding | None:
    listed = {i: v for i, v in listed_nics(nccl, node).items() if "+" not in v[0]}
    devices = {int(r["net_device"]) for r in used}
    ranks = {(r["comm"], r["group_rank"]) for r in used}
    most = max(sum(1 for c, _ in ranks if c == comm) for comm, _ in ranks)
    speeds = {s for _, s, _ in listed.values() if s is not None}
    if len(devices) != 1 or len(listed) < 2 or len(speeds) > 1:
        return None
    is_odd = most >= limits.min_odd_ranks_count and shared.is_odd(node, most)
    if most < limits.min_ranks_count and not is_odd:
        return None
    (device,) = devices
    if device not in listed:
        return None
    setting = nccl.settings("NCCL_IB_HCA")
    why = f"; NCCL_IB_HCA={setting[0].given.get('value')} is set" if setting else ""
    name = safe(listed[device][0])
    return facts.finding(
        log_scope(hosts=(safe(node),)),
        f"All {most} ranks on {safe(node)} use one NIC ({name}) of the {len(listed)} that "
        f"NCCL lists there{why}.",
        [nccl.evidence("NICs in use", 1, "count", "nccl_nics", [listed[device][2]], len(listed))],
        by=["log"],
        basis="the connections against the list of devices",
        least=Severity.MINOR,
        confirm=("nvidia-smi topo -m   on the host: which NIC is near which GPU",),
        remedy=("let each GPU use the NIC beside it: pass the PCI topology into the container",),
    )


class _Shared(Struct, frozen=True):
    """What is shared by design is shared on every machine."""

    counts: dict[str, int]
    """By machine the devices that it lists."""
    apart: dict[str, int]
    """By machine the ranks of one communicator that have a device each: the most of them."""

    @classmethod
    def of(cls, nccl: Nccl, by_node: dict[str, list[Row]]) -> _Shared:
        apart: dict[str, int] = {}
        for node, used in by_node.items():
            devices: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
            for row in used:
                if row["group_rank"] is not None:
                    devices[str(row["comm"])][int(row["group_rank"])].add(int(row["net_device"]))
            alone = (r for r in devices.values() if len(set().union(*r.values())) >= len(r))
            apart[node] = max(map(len, alone), default=0)
        return cls({node: len(listed_nics(nccl, node)) for node in by_node}, apart)

    def is_odd(self, node: str, most: int) -> bool:
        """Whether so many ranks have a NIC each on another machine that is alike."""
        return any(
            ranks >= most and name != node and self.counts[name] == self.counts[node]
            for name, ranks in self.apart.items()
        )


def _far(
    facts: Facts, nccl: Nccl, limits: WrongNicThresholds, node: str, used: list[Row]
) -> Finding | None:
    """Ranks whose every NIC is farther from their GPU than one that NCCL lists."""
    listed = listed_nics(nccl, node)
    if not listed or any("+" in name for name, _, _ in listed.values()):
        return None
    names = {name for name, _, _ in listed.values()}
    near = nearness(facts, node, names)
    if near is None:
        return None
    members = [m for m in nccl.by_node.get(node, ()) if m.group_rank is not None]
    addresses = {m.pci for m in members if m.pci is not None}
    by_rank: dict[tuple[str, int], set[str]] = defaultdict(set)
    for row in used:
        if row["group_rank"] is not None and int(row["net_device"]) in listed:
            name = listed[int(row["net_device"])][0]
            by_rank[str(row["comm"]), int(row["group_rank"])].add(name)
    passed: dict[str, tuple[set[str], tuple[str, ...]]] = {}
    judged: set[str] = set()
    for member in members:
        devices = by_rank.get((member.comm, member.group_rank or 0))
        gpu = near.gpu(member.pci, addresses)
        if not devices or gpu is None:
            continue
        judged.add(gpu)
        best, words = near.nearest(gpu, names), near.words[gpu]
        # A word that is not known is no distance: such a NIC passes nobody by.
        is_far = all(FAR.get(words.get(d, ""), 0) > 0 for d in devices)
        if best and FAR[words[best[0]]] == 0 and is_far:
            passed[gpu] = (devices, best)
    if not passed:
        return None
    gpu, (devices, best) = next(iter(sorted(passed.items())))
    word = near.words[gpu][min(devices)]
    share = len(passed) / len(judged)
    assumed = "; the topology names no host and is taken for this one" if near.is_assumed else ""
    return facts.finding(
        log_scope(hosts=(safe(node),), devices=tuple(safe(d) for d in sorted(devices))),
        f"{len(passed)} of {len(judged)} GPUs on {safe(node)} pass a nearer NIC by: "
        f"{safe(gpu)} sends over {safe(', '.join(sorted(devices)))} ({word}), with "
        f"{safe(', '.join(best))} beside it ({near.words[gpu][best[0]]}).",
        [
            nccl.evidence(
                "GPUs that pass a nearer NIC by, of those that use the network",
                share,
                "ratio",
                "nccl_nics",
                [listed[i][2] for i, v in listed.items() if v[0] in devices],
                limits.min_far_ratio,
            ),
            Evidence(
                "distances to NICs",
                float(len(near.rows)),
                "pairs",
                query=TOPOLOGY,
                rows=facts.places(
                    (r for r in near.rows if r["gpu"] == gpu), at_most=1, unit="line "
                ),
            ),
        ],
        by=["log"],
        basis="the host's topology against the connections" + assumed,
        least=Severity.MINOR if share >= limits.min_far_ratio else Severity.NOTE,
        confirm=("nvidia-smi topo -m   on the host: which NIC is near which GPU",),
        remedy=(
            "pass the PCI topology into the container (or NCCL_TOPO_FILE), and keep every NIC "
            "of the compute network in NCCL_IB_HCA",
        ),
    )


RULE = nccl_rule(
    name="wrong-nic",
    summary="Ranks use fewer or slower network devices than their machine offers.",
    owner="platform",
    thresholds=WrongNicThresholds(),
    queries=("nccl_comms", "nccl_nics", "nccl_signals", TOPOLOGY),
    evaluate=evaluate,
    explains=("slow transfers between hosts",),
    bound="communication",
    states="cause",
)
