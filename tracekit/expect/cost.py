"""The least time of a collective: bandwidth and latency.

S is the size of the whole array as nccl-tests defines it (for all-gather and reduce-scatter the
count a rank times the ranks). W is bytes a second of one GPU in one direction.

Sources: "How to Scale Your Model", GPU chapter, whose answer "9 us" for a 33.5 MB all-gather
over 8 H100 leaves out a factor of N (its own formula gives 65.2 us); nccl-tests
PERFORMANCE.md for the bus factors; NCCL's tuner (src/graph/tuning.cc) for latencies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tracekit.errors import UsageError

RING_LATENCY_S: Mapping[str, Mapping[str, float]] = {
    "network": {"ll": 2.7e-6, "ll128": 4.0e-6, "simple": 14e-6},
    "nvlink": {"ll": 0.6e-6, "ll128": 1.9e-6, "simple": 3.4e-6},
}
"""A hop of a ring, by where it runs and NCCL's protocol."""
BASE_LATENCY_S: Mapping[str, float] = {"ll": 6.6e-6, "ll128": 14e-6, "simple": 8.4e-6}
"""Once a ring collective, by protocol."""


def bus_factor(op: str, ranks: int) -> float:
    """busbw over algbw: what a link carries for a byte of the array (nccl-tests).

    all_reduce 2(n-1)/n, all_gather, reduce_scatter and all_to_all (n-1)/n, broadcast, reduce and
    send/recv 1.
    """
    if ranks < 1:
        raise UsageError("a collective has at least one rank")
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    if op in ("broadcast", "reduce", "send", "recv", "scatter", "gather"):
        return 1.0
    raise UsageError(f"no bus factor is known for {op!r}")


def ring_s(op: str, size_bytes: float, ranks: int, bytes_per_s: float) -> float:
    """Ring: all-gather and reduce-scatter S(N-1)/(N W), all-reduce twice that."""
    return size_bytes * bus_factor(op, ranks) / bytes_per_s


def in_network_all_reduce_s(size_bytes: float, bytes_per_s: float) -> float:
    """All-reduce in the switches (SHARP, NVLS): S/W, each byte goes up once and comes down."""
    return size_bytes / bytes_per_s


def latency_s(
    op: str, ranks: int, *, where: str = "network", protocol: str = "simple", tree: bool = False
) -> float:
    """What a collective takes however small: a base and a hop a step of the algorithm.

    A ring takes N-1 hops (all-reduce twice that), a tree 2 log2 N.
    """
    if ranks < 2:
        return 0.0
    hop = RING_LATENCY_S[where][protocol]
    hops = 2 * math.log2(ranks) if tree else (ranks - 1) * (2 if op == "all_reduce" else 1)
    if op in ("send", "recv", "broadcast", "reduce"):
        hops = 1
    return BASE_LATENCY_S[protocol] + hop * hops
