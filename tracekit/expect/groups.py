"""Which ranks talk to which: the families of groups that a layout makes.

Ranks count the first dimension of the order fastest. Replicas of the shards (HSDP) are the slow
part of dp, so that shards stay near each other (torchtitan: pp, dp_replicate, dp_shard, cp, tp,
slowest first; Megatron: instances of the distributed optimizer). Experts lie among the ranks that
hold one set of shards: of dp, or where that is not a multiple of ep, of cp and then dp, as both
frameworks fold them; an order that names ep after dp puts their ranks far apart.

Every rank of a family's group has the others at the same strides, so a family is told by its axes
alone and nothing here grows with the number of ranks. tests/expect/test_groups.py counts ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

DEFAULT_ORDER = ("tp", "cp", "dp", "pp")
"""Megatron's order, from neighbours to farthest apart; ep lies inside dp."""

Axis = tuple[int, int]
"""Distance between neighbours in ranks, and how many there are."""


class Family(Struct, frozen=True):
    """Groups of one kind."""

    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """Ranks of a group."""
        return math.prod(count for _, count in self.axes)

    @property
    def reach(self) -> int:
        """Ranks of the smallest aligned block that holds a whole group."""
        return max((stride * count for stride, count in self.axes), default=1)

    def is_inside(self, block: int, world: int) -> bool:
        """Whether no group leaves a block of so many neighbouring ranks (a node, a leaf)."""
        return world <= block or block % self.reach == 0

    def members_inside(self, block: int) -> int:
        """Members of a group that one block of neighbouring ranks holds, at least."""
        return math.prod(min(count, max(1, block // stride)) for stride, count in self.axes)


class Groups(Struct, frozen=True):
    """The families of a layout; one of a single rank has size 1."""

    tp: Family
    cp: Family
    pp: Family
    dense: Family
    """Ranks that share out (or without shards: that all hold) a weight that is no expert's."""
    replicas: Family
    """Ranks that hold the same shard of it."""
    ep: Family
    """Ranks among which a layer's experts are shared out."""
    experts: Family | None
    """Ranks that share out (or all hold) one expert; None where ep fits into no block of ranks."""
    expert_replicas: Family
    """Ranks that hold the same shard of it."""


def groups_of(
    sizes: Mapping[str, int], order: Sequence[str], replicas: int, *, is_sharded: bool
) -> Groups:
    """The families of a layout; ``sizes`` has tp, cp, dp, pp and ep, ``replicas`` divides dp.

    Dimensions that the order leaves out are farthest apart.
    """
    places = [d for d in order if d != "ep"]
    places += [d for d in DEFAULT_ORDER if d not in places]
    stride, axes = 1, dict[str, Axis]()
    for name in places:
        axes[name] = (stride, sizes[name])
        stride *= sizes[name]
    near, dp = axes["dp"]
    shard, copies = (near, dp // replicas), (near * (dp // replicas), replicas)
    is_far = "ep" in order and "dp" in order and order.index("ep") > order.index("dp")
    taken = _experts(axes["cp"], shard, copies, sizes["ep"], is_far=is_far)
    ep, expert_axes, apart = taken or ((), (), ())
    return Groups(
        tp=_family(axes["tp"]),
        cp=_family(axes["cp"]),
        pp=_family(axes["pp"]),
        dense=_family(axes["cp"], shard, *([] if is_sharded else [copies])),
        replicas=_family(*([copies] if is_sharded else [])),
        ep=_family(*ep) if taken else _family((near, sizes["ep"])),
        experts=_family(*expert_axes, *([] if is_sharded else apart)) if taken else None,
        expert_replicas=_family(*(apart if is_sharded else ())),
    )


def _family(*axes: Axis) -> Family:
    return Family(tuple(sorted(axis for axis in axes if axis[1] > 1)))


def _experts(
    cp: Axis, shard: Axis, copies: Axis, ep: int, *, is_far: bool
) -> tuple[Sequence[Axis], Sequence[Axis], Sequence[Axis]] | None:
    """Axes of a group of ep, of those that hold the same expert within a set of shards, and of the
    sets that hold it; None where ep ranks are no block of any of them."""
    stride, count = shard
    if count % ep == 0:
        rest = count // ep
        if is_far:
            return [(stride * rest, ep)], [cp, (stride, rest)], [copies]
        return [(stride, ep)], [cp, (stride * ep, rest)], [copies]
    taken: list[Axis] = []
    left: list[Axis] = []
    for stride, count in (cp, shard, copies):
        if ep % count == 0:
            taken.append((stride, count))
            ep //= count
            left.append((stride, 1))
        elif count % ep == 0:
            taken.append((stride, ep))
            left.append((stride * ep, count // ep))
            ep = 1
        else:
            return None
    return (taken, left[:2], left[2:]) if ep == 1 else None
