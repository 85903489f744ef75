"""Rules that have a name and no code yet, and inputs that no file supplied.

A report must not pass for complete: everything that a slow job may suffer from and that nobody
looked for is named, with what would be needed. When a rule is built its name leaves this file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tracekit.findings import NotChecked


@dataclass(frozen=True)
class Family:
    """Rules that need the same inputs."""

    topic: str
    """What a reader would ask about: packet loss, thermal throttling."""
    needs: str
    capture: str | None
    kinds: frozenset[str]
    """Source kinds that would supply the input."""
    rules: tuple[str, ...]


def _family(
    topic: str, needs: str, capture: str | None, kinds: Iterable[str], rules: str
) -> Family:
    return Family(topic, needs, capture, frozenset(kinds), tuple(rules.split()))


FAMILIES: tuple[Family, ...] = (
    _family(
        "host CPU, memory",
        "host counters (CPU, NUMA)",
        "tracekit capture --what host",
        ("host",),
        "numa-misplacement",
    ),
    _family(
        "queues of the device",
        "which hardware queue each stream has, which no trace records (not built yet)",
        None,
        (),
        "false-dependency",
    ),
)


def unbuilt_rules() -> tuple[str, ...]:
    """Names of all rules that have no code yet, sorted."""
    return tuple(sorted(rule for family in FAMILIES for rule in family.rules))


def not_built(kinds_present: Iterable[str] = ()) -> list[NotChecked]:
    """What cannot be checked for want of a rule or of its inputs.

    Where files of the needed kind were given, it says that the rule does not exist yet instead
    of asking for what is already there.
    """
    present = set(kinds_present)
    not_checked: list[NotChecked] = []
    for family in FAMILIES:
        is_given = bool(family.kinds & present)
        needs = (
            f"a rule for them (not built yet; {family.needs} given)" if is_given else family.needs
        )
        capture = None if is_given else family.capture
        not_checked += [
            NotChecked(rule=rule, needs=needs, capture=capture) for rule in family.rules
        ]
    return not_checked
