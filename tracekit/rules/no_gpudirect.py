"""
What it means
    GPUs exchange data with the network through host memory: GPUDirect RDMA is not in use.

How it shows
    Connections between machines over an RDMA network lack /GDRDMA in the NCCL log. The log often
    says why: no peer-memory module, or a GPU too far from the NIC.

Why it hurts
    Every byte crosses PCIe and host memory twice more; bandwidth is often halved.

Remedy
    Load nvidia-peermem (or a kernel with DMA-BUF), place GPU and NIC under one PCIe switch, and
    remove NCCL_NET_GDR_LEVEL settings that forbid it.

When this is wrong
    Sockets never have it (see nccl-socket-fallback). Some GPUs and virtual machines do not support
    it at all; a GPU on another socket than the NIC may do better without.

Source
    NVIDIA/nccl issues 489, 1510, 1537.
"""

from __future__ import annotations

from tracekit.findings import Finding, Severity
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.nccl_facts import CAPTURE, Link, Nccl, Signal, log_scope, nccl_rule, no_logs
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import plural, share

NOT_RDMA = frozenset({"Socket", "FastSocket"})


class NoGpudirectThresholds(Thresholds):
    """How many connections must lack it."""

    min_without_ratio: float = threshold(0.1, "of connections between machines; fewer cost little")


def evaluate(facts: Facts, limits: NoGpudirectThresholds) -> RuleOutcome:
    """Connections between machines over RDMA without GPUDirect."""
    nccl = Nccl(facts)
    if not nccl.members and not nccl.links:
        return no_logs(facts)
    if any(nccl.nodes_count(c) == 1 for c in nccl.comms) and not nccl.spanning():
        return RuleOutcome()
    crossing = [k for k in nccl.links if k.transport == "NET" and not k.is_local]
    if not crossing:
        if not nccl.spanning() and nccl.comms and all(
            nccl.nodes_count(c) is not None for c in nccl.comms
        ):  # fmt: skip
            return RuleOutcome()
        return facts.lacking("connections between machines in NCCL logs (NCCL_DEBUG=INFO)", CAPTURE)
    rdma = [k for k in crossing if k.plugin not in NOT_RDMA and k.is_gpudirect is not None]
    without = [k for k in rdma if not k.is_gpudirect]
    every = sum(k.channels for k in rdma)
    lack = sum(k.channels for k in without)
    if not every or lack < limits.min_without_ratio * every:
        return RuleOutcome()
    return RuleOutcome(findings=(_finding(facts, nccl, limits, without, lack, every),))


def _reason(nccl: Nccl) -> tuple[str, list[Signal], str]:
    module = [s for s in nccl.of("gdr") if s.given.get("why") == "no module"]
    if module:
        return (
            "; no peer-memory module is loaded", module, "modprobe nvidia-peermem on the hosts",
        )  # fmt: skip
    far = [
        s for s in nccl.of("gdr_path")
        if s.given.get("state") == "Disabled" and s.given.get("relation", "").startswith(">")
    ]  # fmt: skip
    if far:
        return (
            "; the GPUs are too far from the NICs (PCIe)", far,
            "use NICs under the GPUs' own PCIe switches; check that ACS and virtualisation do not "
            "hide them",
        )  # fmt: skip
    for name in ("NCCL_NET_GDR_LEVEL", "NCCL_IB_CUDA_SUPPORT", "NCCL_NET_GDR_READ"):
        signals = nccl.settings(name)
        if signals:
            return f"; {name}={signals[0].given.get('value')} is set", signals, f"unset {name}"
    signals = [s for s in nccl.of("gdr") if s.given.get("state") == "Disabled"]
    if signals:
        return (
            "; NCCL found it disabled for the NICs",
            signals,
            "modprobe nvidia-peermem on the hosts",
        )
    return "", [], "modprobe nvidia-peermem on the hosts; log with NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH"


def _finding(
    facts: Facts,
    nccl: Nccl,
    limits: NoGpudirectThresholds,
    without: list[Link],
    lack: int,
    every: int,
) -> Finding:
    why, lines, act = _reason(nccl)
    nodes = sorted({n for k in without for n in (k.start_node, k.end_node) if n is not None})
    return facts.finding(
        log_scope(hosts=nodes),
        f"{share(lack / every)} of NCCL's connections between machines go through host memory, "
        f"without GPUDirect ({plural(lack, 'channel')} of {every}){why}.",
        [
            nccl.evidence(
                "connections without GPUDirect",
                lack / every,
                "ratio",
                "nccl_topology",
                without,
                limits.min_without_ratio,
            ),
            *nccl.lines("the reason in the log", lines),
        ],
        by=["log"],
        basis="the log says so; what it costs it does not",
        least=Severity.MINOR,
        confirm=("lsmod | grep peermem; nvidia-smi topo -m   on the hosts",),
        remedy=(act,),
    )


RULE = nccl_rule(
    name="no-gpudirect",
    summary="Data for the network goes through host memory instead of straight from the GPU.",
    owner="platform",
    thresholds=NoGpudirectThresholds(),
    queries=("nccl_comms", "nccl_topology", "nccl_signals"),
    evaluate=evaluate,
    explains=("slow transfers between hosts",),
    bound="communication",
    states="cause",
)
