"""How costs come by their bounds, and what other methods say against them."""

from __future__ import annotations

from collections.abc import Iterable

from tracekit.findings import Evidence, HeldUp, Method, Price
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import seconds


class PriceThresholds(Thresholds):
    """When methods disagree on a cost."""

    max_disagreement_ratio: float = threshold(
        0.25, "of a cost: where another method is further away, that stands against it"
    )
    min_others_count: int = threshold(3, "steps without what is priced, to say how long these are")


def at_most(cost_ns: float, method: Method, least_ns: float = 0.0) -> Price:
    """A cost that is the most it can be."""
    return Price(cost_ns, method, min(least_ns, cost_ns), cost_ns)


def by_replay(
    saved_ns: float,
    error_ratio: float | None,
    step_ns: float,
    others_ns: Iterable[float] = (),
    against: tuple[Evidence, ...] = (),
    held_up: HeldUp | None = None,
) -> Price:
    """What a believed replay says; its bounds reach over ``others_ns`` and what the replay misses
    of the measured step (``error_ratio``)."""
    error = error_ratio or 0.0
    said = (saved_ns, *others_ns)
    low_ns, high_ns = min(said) - error * step_ns, max(said) + error * step_ns
    return Price(saved_ns, "replay", low_ns, high_ns, error, against, held_up)


def disagreeing(
    cost_ns: float, says: str, other_ns: float, limits: PriceThresholds, query: str
) -> tuple[Evidence, ...]:
    """What another method says, where it is off by more than a quarter."""
    if abs(other_ns - cost_ns) <= limits.max_disagreement_ratio * cost_ns:
        return ()
    said = f"{seconds(other_ns / 1e9)}: {says}"
    return (Evidence.seconds(said, other_ns, None, query),)
