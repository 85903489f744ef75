"""What is asked for: faults by name, joined by ``+``, each perhaps with its strength."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Protocol, TypeVar

from tracekit.errors import UsageError


class _Named(Protocol):
    @property
    def strength(self) -> float: ...


Kind = TypeVar("Kind", bound=_Named)


def parted(
    text: str, by_name: Mapping[str, Kind], healthy: Collection[str]
) -> list[tuple[Kind, float]]:
    """The faults of ``slow-gpu:1.5+gc-pause`` with their strengths; UsageError for other words."""
    kinds: list[tuple[Kind, float]] = []
    for word in text.split("+"):
        name, _, amount = word.strip().partition(":")
        if name in healthy:
            continue
        kind = by_name.get(name)
        if kind is None:
            close = difflib.get_close_matches(name, [*by_name, *healthy], n=1)
            raise UsageError(
                f"there is no scenario {name!r}",
                hint=f"did you mean {close[0]}?" if close else "tracekit simulate --list",
            )
        try:
            strength = float(amount) if amount else kind.strength
        except ValueError:
            raise UsageError(f"{word!r}: the strength is no number") from None
        if not 0 < strength < 1e6:
            raise UsageError(f"{word!r}: the strength must be above 0 and below 1,000,000")
        kinds.append((kind, strength))
    return kinds
