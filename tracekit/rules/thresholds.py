"""Numbers that decide: each has a name that ends in its unit, a value and a reason for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, Self, TypeVar, cast, dataclass_transform

from tracekit.errors import UsageError

T = TypeVar("T")


class _Declared:
    """What ``threshold`` says, until the class that it stands in takes it."""

    def __init__(self, default: object, reason: str) -> None:
        self.default, self.reason = default, reason


def threshold(default: T, reason: str) -> T:
    """A threshold in the body of its class: its default, and why that value."""
    return cast("T", _Declared(default, reason))


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Thresholds:
    """Base of all thresholds, which are declared as the fields of a dataclass are.

    To make seventy dataclasses was a tenth of a cached diagnosis; here a class has its defaults as
    attributes, and an instance what differs from them.
    """

    reasons: ClassVar[Mapping[str, str]] = {}
    """Each threshold's reason: its base classes' first, then in the order of declaration."""

    def __init_subclass__(cls) -> None:
        reasons: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            reasons |= vars(base).get("reasons", {})
        for name, declared in [*vars(cls).items()]:
            if isinstance(declared, _Declared):
                reasons[name] = declared.reason
                setattr(cls, name, declared.default)
        if unreasoned := cls.__annotations__.keys() - reasons.keys():
            raise TypeError(f"{cls.__name__}.{', '.join(sorted(unreasoned))}: no reason is given")
        cls.reasons = reasons

    def __init__(self, **values: Any) -> None:
        if unknown := values.keys() - self.reasons.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        vars(self).update(values)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name}: thresholds do not change; see replaced()")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.values() == cast("Self", other).values()

    def __hash__(self) -> int:
        return hash((type(self), *self.values().items()))

    def values(self) -> dict[str, Any]:
        """Each threshold by its name."""
        return {name: getattr(self, name) for name in self.reasons}

    def replaced(self, whose: str, overrides: Mapping[str, object]) -> Self:
        """The same with some values replaced; UsageError for what it does not have."""
        known = self.values()
        for name, value in overrides.items():
            if name not in known:
                raise UsageError(
                    f"{whose} has no threshold {name!r}",
                    hint=f"it has: {', '.join(sorted(known))}",
                )
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or (isinstance(known[name], int) and not isinstance(value, int)):
                kind = "a whole number" if isinstance(known[name], int) else "a number"
                raise UsageError(f"threshold {name} of {whose} must be {kind}, not {value!r}")
        return type(self)(**{**known, **overrides})


class KernelThresholds(Thresholds):
    """When nothing is said of the kernels of ranks, by any rule."""

    max_hidden_ratio: float = threshold(
        0.01,
        "device time in whole graphs, or launches whose kernels were lost, above which nothing is"
        " said of a rank's kernels: an effect of 1 % is the least that a rule reports",
    )
    min_sound_ranks_count: int = threshold(
        3,
        "ranks with all their kernels below which, beside one without, nobody is compared: of two,"
        " each is the other's only peer, and what both wait for may be the third",
    )
