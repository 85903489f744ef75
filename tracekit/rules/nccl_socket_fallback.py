"""
What it means
    NCCL talks between machines over TCP sockets: every byte passes the CPU and the kernel.

How it shows
    A communicator spans machines, and its connections between them are NET/Socket (or all its
    ranks say "Using network Socket"). The log often holds the reason: no InfiniBand device
    found, libibverbs not loaded, a plugin that failed, NCCL_IB_DISABLE or NCCL_NET set.

Why it hurts
    Sockets reach a fraction of an RDMA network and take CPU time from the training process.

Remedy
    Give the processes the devices (/dev/infiniband in the container, the network plugin's library
    in the image), and remove the settings that forbid them.

When this is wrong
    A cluster without an RDMA network has nothing better: then it is the hardware, not a fallback.
    "Using network Socket" on one machine means nothing: nothing leaves it. The bootstrap always
    runs on sockets.

Source
    NVIDIA/nccl issue 857; what NCCL prints since 2.4.
"""

from __future__ import annotations

from tracekit.findings import Finding, Severity
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.nccl_facts import CAPTURE, Member, Nccl, Signal, log_scope, nccl_rule, no_logs
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import plural


class NcclSocketFallbackThresholds(Thresholds):
    """When sockets are a fallback."""

    min_socket_ratio: float = threshold(
        0.5, "of the connections between machines; a single one may be a plugin's side channel"
    )


def evaluate(facts: Facts, limits: NcclSocketFallbackThresholds) -> RuleOutcome:
    """Communicators that span machines over sockets."""
    nccl = Nccl(facts)
    if not nccl.members:
        return no_logs(facts)
    spanning = nccl.spanning()
    if not spanning:
        if all(nccl.nodes_count(c) is None for c in nccl.comms):
            return facts.lacking("NCCL logs of all ranks, or nNodes (2.20 and later)", CAPTURE)
        return RuleOutcome()
    members = [m for c in spanning if _is_on_sockets(nccl, c, limits) for m in nccl.comms[c]]
    if not members:
        return RuleOutcome()
    return RuleOutcome(findings=(_finding(facts, nccl, members),))


def _is_on_sockets(nccl: Nccl, comm: str, limits: NcclSocketFallbackThresholds) -> bool:
    crossing = [k for k in nccl.links if k.comm == comm and k.transport == "NET"]
    if crossing:
        sockets = sum(k.channels for k in crossing if k.plugin == "Socket")
        return sockets >= limits.min_socket_ratio * sum(k.channels for k in crossing)
    processes = {m.process for m in nccl.comms[comm]}
    said = [s for s in nccl.of("network") if s.process in processes and "network" in s.given]
    return bool(said) and all(s.given["network"].strip() == "Socket" for s in said)


def _reason(nccl: Nccl, members: list[Member]) -> tuple[str, list[Signal], str]:
    """Why, as far as the log says: words, the lines, and what to do about it."""
    processes = {m.process for m in members}

    def said(code: str) -> list[Signal]:
        return [s for s in nccl.of(code) if s.process in processes]

    for name, bad in (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket")):
        signals = [
            s for s in nccl.settings(name)
            if s.process in processes and s.given.get("value") == bad
        ]  # fmt: skip
        if signals:
            return f"{name}={bad} is set", signals, f"unset {name}"
    if signals := said("no_ibverbs"):
        return (
            "libibverbs could not be loaded", signals,
            "install libibverbs and the NIC's driver library in the image",
        )  # fmt: skip
    if signals := said("no_ib_device"):
        return (
            "NCCL found no InfiniBand or RoCE device", signals,
            "give the container /dev/infiniband and the memory lock limit; check ibv_devinfo",
        )  # fmt: skip
    if signals := said("plugin_failed"):
        return "a network plugin failed to start", signals, "repair the network plugin"
    return "the log does not say why", [], "log with NCCL_DEBUG_SUBSYS=INIT,NET to see why"


def _finding(facts: Facts, nccl: Nccl, members: list[Member]) -> Finding:
    why, lines, act = _reason(nccl, members)
    hosts = nccl.hosts(members)
    others = [
        s for s in nccl.of("network")
        if "network" in s.given and s.given["network"].strip() != "Socket"
    ]  # fmt: skip
    sockets = [k for k in nccl.links if k.plugin == "Socket"]
    comms = sorted({m.comm for m in members})
    return facts.finding(
        log_scope(hosts=hosts),
        f"NCCL talks between {plural(len(hosts), 'host')} over TCP sockets "
        f"({plural(len(comms), 'communicator')}): {why}.",
        (
            nccl.evidence(
                "communicators between machines on sockets",
                len(comms),
                "count",
                "nccl_topology",
                [*sockets, *nccl.of("network")],
            ),
            *nccl.lines(why, lines),
        ),
        by=["log"],
        basis="the log says so; whether the machines have a better network it does not",
        least=Severity.MAJOR if lines else Severity.MINOR,
        against=[
            nccl.evidence(
                "processes that use another network", len(others), "count", "nccl_signals", others
            )
        ]
        if others
        else [],
        confirm=("ibv_devinfo; ls /dev/infiniband   in the job's container",),
        remedy=(act, "without an RDMA network raise NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD"),
    )


RULE = nccl_rule(
    name="nccl-socket-fallback",
    summary="NCCL talks between machines over TCP sockets.",
    owner="platform",
    thresholds=NcclSocketFallbackThresholds(),
    queries=("nccl_comms", "nccl_topology", "nccl_signals"),
    evaluate=evaluate,
    explains=("slow transfers between hosts",),
    bound="communication",
    states="cause",
)
