"""
What it means
    A tensor-parallel group has members on several machines.

How it shows
    NCCL counts more than one node for the communicator of a group that the traces name as
    tensor-parallel.

Why it hurts
    Tensor parallelism exchanges activations in every layer: over the network that takes many times
    as long as over NVLink.

Remedy
    Order the ranks so that tensor-parallel groups lie within a machine.

When this is wrong
    Machines that share an NVLink domain (NVL72) are several nodes and yet fast. Names of hosts and
    pods prove nothing and are not used.

Source
    Diagnosis of layouts; NCCL's own nNodes (2.20 and later).
"""

from __future__ import annotations

from tracekit.findings import Finding, Severity
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.nccl_facts import CAPTURE, Nccl, log_scope, nccl_rule, no_logs
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import plural, ranges


class TensorGroupSpansHostsThresholds(Thresholds):
    """How many machines are too many."""

    max_nodes_count: int = threshold(1, "machines that a tensor-parallel group may have")


def evaluate(facts: Facts, limits: TensorGroupSpansHostsThresholds) -> RuleOutcome:
    """Tensor-parallel groups of which NCCL counts the nodes."""
    nccl = Nccl(facts)
    if not nccl.members:
        return no_logs(facts)
    groups = [r for r in facts.of("nccl_groups") if r["kind"] == "tp"]
    counted = [r for r in groups if r["nodes_count"] is not None]
    if not counted:
        return facts.lacking(
            "tensor-parallel groups of the traces joined with NCCL's own node count", CAPTURE
        )
    wide = [r for r in counted if int(r["nodes_count"]) > limits.max_nodes_count]
    wide = [r for r in wide if not _has_mnnvl(nccl, str(r["comm"]))]
    if not wide:
        return RuleOutcome()
    return RuleOutcome(findings=(_finding(facts, nccl, limits, wide),))


def _has_mnnvl(nccl: Nccl, comm: str) -> bool:
    """Whether its machines share NVLink."""
    return any("MNNVL" in k.detail for k in nccl.links if k.comm == comm)


def _finding(
    facts: Facts, nccl: Nccl, limits: TensorGroupSpansHostsThresholds, wide: list[Row]
) -> Finding:
    most = max(int(r["nodes_count"]) for r in wide)
    ranks = sorted({int(k) for r in wide for k in r["ranks"] or ()})
    where = f" (ranks {ranges(ranks)})" if ranks else ""
    members = [m for r in wide for m in nccl.comms.get(str(r["comm"]), ())]
    return facts.finding(
        log_scope(hosts=nccl.hosts(members)),
        f"{plural(len(wide), 'tensor-parallel group')} of {int(wide[0]['group_size'])} ranks "
        f"spread over {most} machines{where}.",
        [
            nccl.evidence(
                "machines of a tensor-parallel group",
                most,
                "count",
                "nccl_groups",
                members,
                limits.max_nodes_count,
            )
        ],
        by=("log", "GPU timeline"),
        basis="NCCL's own count of nodes, and the groups that the traces name",
        least=Severity.MINOR,
        confirm=("compare the order of ranks with the hosts",),
        remedy=("launch so that consecutive ranks share a machine, or make tp smaller",),
    )


RULE = nccl_rule(
    name="tensor-group-spans-hosts",
    summary="A tensor-parallel group has members on several machines.",
    owner="framework",
    thresholds=TensorGroupSpansHostsThresholds(),
    queries=("nccl_groups", "nccl_comms", "nccl_topology"),
    evaluate=evaluate,
    explains=("latency",),
    states="cause",
)
