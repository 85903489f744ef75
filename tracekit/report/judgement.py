"""What a verdict is made of, and when something is amiss although no rule found it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracekit.findings import Verdict, VerdictKind


@dataclass(frozen=True)
class VerdictThresholds:
    """When something is amiss although no rule found it."""

    min_waiting_ratio: float = field(
        default=0.10,
        metadata={"reason": "waiting for absent ranks, or unequal waiting; as exposed comm (D27)"},
    )
    min_idle_ratio: float = field(
        default=0.20, metadata={"reason": "GPU idle without a finding; less is usual in any job"}
    )
    min_host_idle_ratio: float = field(
        default=0.30,
        metadata={"reason": "host-side ranks: idle is Python between operators too; healthy: 0.1"},
    )
    min_slow_steps_ratio: float = field(
        default=0.05,
        metadata={"reason": "time above the median step, of all; as a major finding's impact"},
    )
    min_steps_count: int = field(
        default=2, metadata={"reason": "one step cannot show that the next is like it"}
    )


LIMITS = VerdictThresholds()


@dataclass(frozen=True)
class Judgement:
    """A verdict, and what to do next where no finding says so."""

    verdict: Verdict
    next_step: str | None = None


def say(kind: VerdictKind, sentence: str, next_step: str | None = None) -> Judgement:
    """A verdict that no finding states."""
    return Judgement(Verdict(kind=kind, finding=None, sentence=sentence), next_step)
