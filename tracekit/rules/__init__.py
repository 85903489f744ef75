"""The rules: one module each, in this explicit list. A new rule is one file and one line here.

A rule's module is loaded when it is asked for: to explain one needs no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tracekit.errors import UsageError
from tracekit.rules.base import Facts, JobFacts, Rule, RuleOutcome
from tracekit.rules.unbuilt import UNBUILT, unbuilt_rules

NAMES = (
    "dataloader-stall",
    "checkpoint-stall",
    "gc-pause",
    "sync-stall",
    "recompile",
    "allocator-stall",
    "launch-bound",
    "stage-imbalance",
    "sequence-imbalance",
    "excess-bubble",
    "first-failure",
    "periodic-stall",
    "step-drift",
    "restart-loss",
    "slow-startup",
    "profiler-overhead",
    "reported-straggler",
    "uneven-parts",
    "collective-hang",
    "collective-mismatch",
    "gpu-memory-fault",
    "thermal-throttle",
    "power-brake",
    "pcie-degraded",
    "nvlink-fault",
    "hot-expert",
    "gpu-contention",
    "slow-gpu",
    "slow-host",
    "host-pause",
    "gil-contention",
    "cpu-throttled",
    "memory-pressure",
    "slow-storage",
    "numa-misplacement",
    "unequal-work",
    "pfc-storm",
    "slow-receiver",
    "nic-error",
    "packet-loss",
    "incast",
    "storage-interference",
    "ecmp-collision",
    "ecn-congestion",
    "link-degraded",
    "late-rank",
    "exposed-communication",
    "nccl-socket-fallback",
    "channel-collapse",
    "no-gpudirect",
    "shm-instead-of-p2p",
    "wrong-nic",
    "cross-rail-traffic",
    "traffic-mismatch",
    "unsuitable-algorithm",
    "init-straggler",
    "config-mismatch",
    "bad-node",
    "kernel-report",
    "tensor-group-spans-hosts",
    "fabric-misconfigured",
    "latency-bound-communication",
    "offload-bound",
    "low-mfu",
    "gpu-outlier",
    "busy-waiting",
)
"""Every rule, in the order in which they run; each lives in the module of its name."""

if TYPE_CHECKING:
    RULES: tuple[Rule, ...]
    """All of them, loaded at first use."""


@cache
def _loaded(name: str) -> Rule:
    rule_found: Rule = import_module(f"{__name__}.{name.replace('-', '_')}").RULE
    return rule_found


def __getattr__(name: str) -> Any:
    if name != "RULES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["RULES"] = rules = tuple(map(_loaded, NAMES))
    return rules


def rule(name: str) -> Rule:
    """The rule of that name; UsageError if there is none."""
    if name in NAMES:
        return _loaded(name)
    if name in unbuilt_rules():
        raise UsageError(f"rule {name} is not built yet", hint="see docs/rules.md")
    from difflib import get_close_matches

    close = get_close_matches(name, NAMES, n=1)
    hint = f"did you mean {close[0]}?" if close else f"rules: {', '.join(NAMES)}"
    raise UsageError(f"there is no rule named {name!r}", hint=hint)


def explain(name: str) -> str:
    """What a rule means, its evidence, thresholds and remedy, and when it is wrong."""
    return rule(name).explain()


def topic_of(name: str) -> str:
    """What a rule is about in words, built or not; its own name where it stands alone."""
    if name in NAMES:
        return _loaded(name).topic or name
    return next((each.topic for each in UNBUILT if each.rule == name), name)


def configured(
    thresholds: Mapping[str, Mapping[str, object]] | None = None,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
) -> tuple[Rule, ...]:
    """The rules to run, with thresholds replaced; UsageError for names that do not exist."""
    overrides = {rule(name).name: values for name, values in (thresholds or {}).items()}
    selected = {rule(name).name for name in select} or set(NAMES)
    selected -= {rule(name).name for name in ignore}
    return tuple(
        r.configured(overrides.get(r.name, {})) for r in map(_loaded, NAMES) if r.name in selected
    )


__all__ = [
    "NAMES",
    "RULES",
    "Facts",
    "JobFacts",
    "Rule",
    "RuleOutcome",
    "configured",
    "explain",
    "rule",
    "topic_of",
]
