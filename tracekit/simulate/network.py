"""How long a transfer takes once all members are there: latency, and bytes over bandwidth.

A collective is hierarchical: inside NVLink domains, between hosts over the NICs, through the spine
between pods; the slowest level sets the pace. Nothing here knows of waiting: that comes out of the
order of events.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import log2
from typing import NamedTuple

from msgspec import Struct, field

from tracekit.simulate.hardware import Topology


class LinkState(Struct):
    """What is wrong with the network at a step, as factors on bandwidth."""

    nic_factor: dict[int, float] = field(default_factory=dict)
    """By rank: the share of its NIC's bandwidth that is left."""
    nvlink_factor: dict[int, float] = field(default_factory=dict)
    """By rank: likewise of its NVLink."""
    loss: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By rank: chance that a transfer over its NIC times out, and the time-out in ns."""


CLEAN = LinkState()


class Wire(NamedTuple):
    """Bytes of one rank in one operation."""

    sent: float
    """By its NIC."""
    received: float
    through_spine: float
    """Of those sent."""
    inside: float
    """Over its NVLinks."""


class Network:
    """Transfer times over one topology."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._shapes: dict[tuple[int, ...], _Shape] = {}

    def shape(self, ranks: tuple[int, ...]) -> _Shape:
        """Where the members of a group are."""
        shape = self._shapes.get(ranks)
        if shape is None:
            shape = self._shapes[ranks] = _Shape.of(self.topology, ranks)
        return shape

    def collective_ns(
        self, op: str, total_bytes: float, ranks: tuple[int, ...], state: LinkState = CLEAN
    ) -> float:
        """Time of a collective of ``total_bytes`` (S of nccl-tests) among ``ranks``."""
        n = len(ranks)
        if n < 2:
            return 0.0
        shape = self.shape(ranks)
        top = self.topology
        passes = 2.0 if op == "all_reduce" else 1.0
        levels = [self._inside(op, total_bytes, shape, state)]
        if shape.domains > 1:
            levels.append(self._between(op, total_bytes, shape, state))
        hops = log2(n) + 1
        inner = top.latency.nvlink_hop_ns * hops
        outer = top.latency.network_hop_ns * (log2(shape.domains) + 1 if shape.domains > 1 else 0)
        return top.latency.base_ns + passes * (inner + outer) + passes * max(levels) * 1e9

    def _inside(self, op: str, total: float, shape: _Shape, state: LinkState) -> float:
        g = shape.largest
        if g < 2:
            return 0.0
        worst = min((state.nvlink_factor.get(r, 1.0) for r in shape.ranks), default=1.0)
        wire = self.topology.gpu.nvlink_bytes_per_s * self.topology.efficiency * worst
        share = (g - 1) / shape.size if op == "all_to_all" else (g - 1) / g
        return total * share / wire

    def _between(self, op: str, total: float, shape: _Shape, state: LinkState) -> float:
        top = self.topology
        eff = top.efficiency
        domains = shape.domains
        if op == "all_to_all":
            # Each rank sends what is for other domains through its own NIC.
            share = total * (1 - shape.largest / shape.size)
            wires = [top.nic_bytes_per_s * state.nic_factor.get(r, 1.0) for r in shape.ranks]
            slowest = min(wires) * eff
            spine = top.spine_bytes_per_s * eff
            crossing = 1 - shape.largest_pod / shape.size
            return max(share / slowest, total * crossing / spine)
        # A ring passes every domain. Its channels share the data evenly among the members' NICs, so
        # the slowest NIC sets the pace of all. NICs on unaligned rails go through the spine.
        per_domain = [
            len(members)
            * min(
                min(top.nic_bytes_per_s, top.spine_bytes_per_s if r in shape.crossing else 1e99)
                * state.nic_factor.get(r, 1.0)
                for r in members
            )
            for members in shape.members
        ]
        nics = total * (domains - 1) / domains / (min(per_domain) * eff)
        if shape.pods < 2:
            return nics
        lanes = min(len(m) for m in shape.members) * shape.hosts_in_pod
        spine = total * (shape.pods - 1) / shape.pods / (top.spine_bytes_per_s * lanes * eff)
        return max(nics, spine)

    def pair_ns(self, src: int, dst: int, size_bytes: float, state: LinkState = CLEAN) -> float:
        """Time of a message from one rank to another."""
        top = self.topology
        if top.domain(src) == top.domain(dst):
            factor = min(state.nvlink_factor.get(src, 1.0), state.nvlink_factor.get(dst, 1.0))
            wire = top.gpu.nvlink_bytes_per_s * factor
            delay = top.latency.base_ns + top.latency.nvlink_hop_ns
        else:
            is_spine = self._is_spine(src, dst)
            wire = top.spine_bytes_per_s if is_spine else top.nic_bytes_per_s
            wire *= min(state.nic_factor.get(src, 1.0), state.nic_factor.get(dst, 1.0))
            delay = top.latency.base_ns + top.latency.network_hop_ns * (2 if is_spine else 1)
        return delay + size_bytes / (wire * top.efficiency) * 1e9

    def lossy(self, ranks: Sequence[int], state: LinkState) -> tuple[float, float, int] | None:
        """Chance, time-out and rank of the loss that a transfer meets on its path."""
        if not state.loss or self.shape(tuple(ranks)).domains < 2:
            return None
        met = [(*state.loss[r], r) for r in ranks if r in state.loss]
        return max(met) if met else None

    def wire_bytes(
        self, op: str, total: float, ranks: tuple[int, ...], rank: int,
        routing: Sequence[float] = (),
    ) -> Wire:  # fmt: skip
        """What a rank's NIC and NVLinks carry in a collective, as ``collective_ns`` times it."""
        shape, top = self.shape(ranks), self.topology
        n = shape.size
        if n < 2:
            return Wire(0.0, 0.0, 0.0, 0.0)
        position = next(i for i, members in enumerate(shape.members) if rank in members)
        here = shape.members[position]
        if op == "all_to_all":
            shares = routing or (1 / n,) * n
            share = dict(zip(ranks, shares, strict=True))
            far = [r for r in ranks if r not in here]
            sent = total * sum(share[r] for r in far)
            spine = total * sum(share[r] for r in far if self._is_spine(rank, r))
            return Wire(sent, total * share[rank] * len(far), spine, total * (len(here) - 1) / n)
        passes = 2.0 if op == "all_reduce" else 1.0
        inside = passes * total * (len(here) - 1) / len(here)
        if shape.domains < 2:
            return Wire(0.0, 0.0, 0.0, inside)
        sent = passes * total * (shape.domains - 1) / shape.domains / len(here)
        following = shape.members[(position + 1) % shape.domains]
        is_far = rank in shape.crossing or top.pod(rank) != top.pod(following[0])
        return Wire(sent, sent, sent if is_far else 0.0, inside)

    def message_bytes(self, src: int, dst: int, size: float, rank: int) -> Wire:
        """Likewise in a message."""
        if self.topology.domain(src) == self.topology.domain(dst):
            return Wire(0.0, 0.0, 0.0, size)
        if rank == dst:
            return Wire(0.0, size, 0.0, 0.0)
        return Wire(size, 0.0, size if self._is_spine(src, dst) else 0.0, 0.0)

    def _is_spine(self, src: int, dst: int) -> bool:
        top = self.topology
        return top.rail(src) != top.rail(dst) or top.pod(src) != top.pod(dst)


class _Shape(Struct, frozen=True):
    ranks: tuple[int, ...]
    size: int
    domains: int
    largest: int
    """Members in the fullest domain."""
    members: tuple[tuple[int, ...], ...]
    pods: int
    largest_pod: int
    hosts_in_pod: int
    crossing: frozenset[int]
    """Members whose rail differs from that of their counterparts in other domains."""

    @classmethod
    def of(cls, top: Topology, ranks: tuple[int, ...]) -> _Shape:
        by_domain: dict[int, list[int]] = defaultdict(list)
        for r in ranks:
            by_domain[top.domain(r)].append(r)
        pods = Counter(top.pod(r) for r in ranks)
        members = tuple(tuple(v) for v in by_domain.values())
        crossing: set[int] = set()
        for lane in zip(*members, strict=False):
            rails = Counter(top.rail(r) for r in lane)
            if len(rails) > 1:
                crossing.update(lane)
        return cls(
            ranks,
            len(ranks),
            len(members),
            max(len(m) for m in members),
            members,
            len(pods),
            max(pods.values()),
            max(1, min(len({top.host_index(r) for r in ranks if top.pod(r) == p}) for p in pods)),
            frozenset(crossing),
        )
