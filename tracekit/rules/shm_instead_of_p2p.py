"""
What it means
    GPUs of one machine exchange data through host memory or the NIC although they could reach each
    other directly.

How it shows
    A pair of ranks on one host talks via SHM (or NET), and either NCCL's own topology states an
    NVLink path between their GPUs, or the same pair of PCI addresses uses P2P on another host.

Why it hurts
    Host memory gives a tenth of NVLink's bandwidth.

Remedy
    Remove NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; give the containers of one machine one IPC
    namespace and see all GPUs; turn PCIe ACS off.

When this is wrong
    GPUs without NVLink on different sockets use shared memory, and rightly so (L40S and the like):
    without a stated path nothing is said.

Source
    NVIDIA/nccl issues 257, 1017, 2079 and pull request 602.
"""

from __future__ import annotations

from tracekit.findings import Finding, Severity
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.nccl_facts import CAPTURE, Link, Nccl, log_scope, nccl_rule, no_logs
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import plural


class ShmInsteadOfP2pThresholds(Thresholds):
    """How many pairs make a case."""

    min_pairs_count: int = threshold(1, "pairs of GPUs; one is enough where a path is stated")


def evaluate(facts: Facts, limits: ShmInsteadOfP2pThresholds) -> RuleOutcome:
    """Pairs on one host that do not talk directly, and could."""
    nccl = Nccl(facts)
    if not nccl.members and not nccl.links:
        return no_logs(facts)
    local = [k for k in nccl.links if k.is_local]
    if not local:
        if all(m.size == 1 for m in nccl.members):
            return RuleOutcome()
        return facts.lacking("connections within a machine in NCCL logs", CAPTURE)
    nvlink = _nvlinked(nccl)
    direct = {_pair(nccl, k) for k in local if k.transport == "P2P"} - {None}
    links: list[tuple[Link, str]] = []
    for link in local:
        if link.transport not in ("SHM", "NET"):
            continue
        pair = _pair(nccl, link)
        if pair is None:
            continue
        if (link.start_node, *pair) in nvlink:
            links.append((link, "NVLink"))
        elif pair in direct:
            links.append((link, "P2P elsewhere"))
    if len(links) < limits.min_pairs_count:
        return RuleOutcome()
    return RuleOutcome(findings=(_finding(facts, nccl, limits, links),))


def _pair(nccl: Nccl, link: Link) -> tuple[str, str] | None:
    """PCI addresses of both ends."""
    start, end = nccl.member(link.comm, link.start), nccl.member(link.comm, link.end)
    if start is None or end is None or start.pci is None or end.pci is None:
        return None
    return start.pci, end.pci


def _nvlinked(nccl: Nccl) -> set[tuple[str | None, str, str]]:
    """Pairs of GPUs of a node between which NCCL's topology states NVLink."""
    pairs: set[tuple[str | None, str, str]] = set()
    for signal in nccl.of("gpu_paths"):
        start = _pci(signal.given.get("gpu", ""))
        for name, path in signal.given.items():
            end = _pci(name.removeprefix("GPU/")) if name.startswith("GPU/") else None
            if start and end and path.endswith(("/NVL", "/NVB")):
                pairs.add((signal.node, start, end))
    return pairs


def _pci(text: str) -> str | None:
    """``0-17000`` (system and busId in hex) as a PCI address."""
    try:
        value = int(text.rpartition("-")[2], 16)
    except ValueError:
        return None
    return f"{value >> 20:08x}:{value >> 12 & 255:02x}:{value >> 4 & 255:02x}.{value & 15:x}"


def _finding(
    facts: Facts,
    nccl: Nccl,
    limits: ShmInsteadOfP2pThresholds,
    ways: list[tuple[Link, str]],
) -> Finding:
    links = [link for link, _ in ways]
    by_nic = sum(1 for k in links if k.transport == "NET")
    over = "the NIC" if by_nic == len(links) else "host memory"
    has_nvlink = any(way == "NVLink" for _, way in ways)
    could = "NVLink joins them" if has_nvlink else "the same pairs use P2P on another host"
    settings = [s for n in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL") for s in nccl.settings(n)]
    names = sorted({f"{s.given['name']}={s.given.get('value')}" for s in settings})
    why = f"; {', '.join(names)} is set" if names else ""
    nodes = sorted({k.start_node for k in links if k.start_node is not None})
    return facts.finding(
        log_scope(hosts=nodes),
        f"{plural(len(links), 'pair')} of GPUs on one machine talk through {over} although "
        f"{could}{why}.",
        [
            nccl.evidence(
                "pairs without a direct connection",
                len(links),
                "count",
                "nccl_topology",
                links,
                limits.min_pairs_count,
            ),
            *(
                [
                    nccl.evidence(
                        "settings against P2P", len(settings), "lines", "nccl_signals", settings
                    )
                ]
                if settings
                else []
            ),
        ],
        by=["log"],
        basis="the log's connections against the paths that it states",
        least=Severity.MINOR,
        confirm=("nvidia-smi topo -p2p rw   in the job's container",),
        remedy=(
            "unset " + " and ".join(sorted({s.given["name"] for s in settings}))
            if settings
            else "run the ranks of a machine in one IPC namespace with all GPUs visible",
        ),
    )


RULE = nccl_rule(
    name="shm-instead-of-p2p",
    summary="GPUs of one machine talk through host memory although they could directly.",
    owner="platform",
    thresholds=ShmInsteadOfP2pThresholds(),
    queries=("nccl_comms", "nccl_topology", "nccl_signals"),
    evaluate=evaluate,
    explains=("slow transfers within hosts",),
    bound="communication",
    states="cause",
)
