"""Rules that have a name and no code yet.

A report must not pass for complete: everything that a slow job may suffer from and that nobody
looked for is named, with what would settle it. When a rule is built its name leaves this file.
"""

from __future__ import annotations

from msgspec import Struct

from tracekit.findings import NotChecked


class Unbuilt(Struct, frozen=True):
    """A rule that somebody must stand in for."""

    rule: str
    topic: str
    """What a reader would ask about."""
    needs: str
    by_hand: str
    """What settles it today."""


UNBUILT: tuple[Unbuilt, ...] = (
    Unbuilt(
        "false-dependency",
        "queues of the device",
        "which hardware queue each stream has, which no trace records",
        "by hand: some steps with another CUDA_DEVICE_MAX_CONNECTIONS, and both runs compared",
    ),
)


def unbuilt_rules() -> tuple[str, ...]:
    """Names of all rules that have no code yet, sorted."""
    return tuple(sorted(each.rule for each in UNBUILT))


def not_built() -> list[NotChecked]:
    """What cannot be checked for want of a rule, and what settles it without one."""
    return [NotChecked(rule=u.rule, needs=u.needs, capture=u.by_hand) for u in UNBUILT]
