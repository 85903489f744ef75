"""The rules: one module each, in this explicit list. A new rule is one file and one line here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tracekit.errors import UsageError
from tracekit.rules import (
    allocator_stall,
    bad_node,
    channel_collapse,
    checkpoint_stall,
    collective_hang,
    collective_mismatch,
    config_mismatch,
    cross_rail_traffic,
    dataloader_stall,
    ecmp_collision,
    ecn_congestion,
    excess_bubble,
    exposed_communication,
    fabric_misconfigured,
    gc_pause,
    gpu_contention,
    gpu_memory_fault,
    gpu_outlier,
    hot_expert,
    incast,
    init_straggler,
    late_rank,
    latency_bound_communication,
    launch_bound,
    link_degraded,
    low_mfu,
    nccl_socket_fallback,
    nic_error,
    no_gpudirect,
    nvlink_fault,
    offload_bound,
    packet_loss,
    pcie_degraded,
    pfc_storm,
    power_brake,
    recompile,
    sequence_imbalance,
    shm_instead_of_p2p,
    slow_gpu,
    slow_host,
    slow_receiver,
    stage_imbalance,
    storage_interference,
    sync_stall,
    tensor_group_spans_hosts,
    thermal_throttle,
    traffic_mismatch,
    unsuitable_algorithm,
    wrong_nic,
)
from tracekit.rules.base import Facts, JobFacts, Rule, RuleOutcome
from tracekit.rules.unbuilt import unbuilt_rules

RULES: tuple[Rule, ...] = (
    dataloader_stall.RULE,
    checkpoint_stall.RULE,
    gc_pause.RULE,
    sync_stall.RULE,
    recompile.RULE,
    allocator_stall.RULE,
    launch_bound.RULE,
    stage_imbalance.RULE,
    sequence_imbalance.RULE,
    excess_bubble.RULE,
    collective_hang.RULE,
    collective_mismatch.RULE,
    gpu_memory_fault.RULE,
    thermal_throttle.RULE,
    power_brake.RULE,
    pcie_degraded.RULE,
    nvlink_fault.RULE,
    hot_expert.RULE,
    gpu_contention.RULE,
    slow_gpu.RULE,
    slow_host.RULE,
    pfc_storm.RULE,
    slow_receiver.RULE,
    nic_error.RULE,
    packet_loss.RULE,
    incast.RULE,
    storage_interference.RULE,
    ecmp_collision.RULE,
    ecn_congestion.RULE,
    link_degraded.RULE,
    late_rank.RULE,
    exposed_communication.RULE,
    nccl_socket_fallback.RULE,
    channel_collapse.RULE,
    no_gpudirect.RULE,
    shm_instead_of_p2p.RULE,
    wrong_nic.RULE,
    cross_rail_traffic.RULE,
    traffic_mismatch.RULE,
    unsuitable_algorithm.RULE,
    init_straggler.RULE,
    config_mismatch.RULE,
    bad_node.RULE,
    tensor_group_spans_hosts.RULE,
    fabric_misconfigured.RULE,
    latency_bound_communication.RULE,
    offload_bound.RULE,
    low_mfu.RULE,
    gpu_outlier.RULE,
)


def rule(name: str) -> Rule:
    """The rule of that name; UsageError if there is none."""
    for known in RULES:
        if known.name == name:
            return known
    if name in unbuilt_rules():
        raise UsageError(f"rule {name} is not built yet", hint="see docs/rules.md")
    from difflib import get_close_matches

    names = [r.name for r in RULES]
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"rules: {', '.join(names)}"
    raise UsageError(f"there is no rule named {name!r}", hint=hint)


def explain(name: str) -> str:
    """What a rule means, its evidence, thresholds and remedy, and when it is wrong."""
    return rule(name).explain()


def configured(
    thresholds: Mapping[str, Mapping[str, object]] | None = None,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
) -> tuple[Rule, ...]:
    """The rules to run, with thresholds replaced; UsageError for names that do not exist."""
    overrides = {rule(name).name: values for name, values in (thresholds or {}).items()}
    selected = {rule(name).name for name in select} or {r.name for r in RULES}
    selected -= {rule(name).name for name in ignore}
    return tuple(r.configured(overrides.get(r.name, {})) for r in RULES if r.name in selected)


__all__ = ["RULES", "Facts", "JobFacts", "Rule", "RuleOutcome", "configured", "explain", "rule"]
