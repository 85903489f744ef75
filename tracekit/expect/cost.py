"""The least time of a collective: bandwidth and latency.

S is the size of the whole array as nccl-tests defines it (for all-gather and reduce-scatter the
count a rank times the ranks). W is bytes a second of one GPU in one direction.

Sources: "How to Scale Your Model", GPU chapter, whose answer "9 us" for a 33.5 MB all-gather
over 8 H100 leaves out a factor of N (its own formula gives 65.2 us); nccl-tests
PERFORMANCE.md for the bus factors; NCCL's tuner (src/graph/tuning.cc) for latencies.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.errors import UsageError

RING_LATENCY_S: Mapping[str, float] = {"network": 14e-6, "nvlink": 3.4e-6}
"""A hop of a ring in NCCL's protocol Simple, by where it runs."""
BASE_LATENCY_S = 8.4e-6
"""Once a ring collective in that protocol."""


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


def latency_s(op: str, ranks: int, *, where: str = "network") -> float:
    """What a collective takes however small: a base and the N-1 hops of a ring, twice as many in an
    all-reduce."""
    if ranks < 2:
        return 0.0
    hops = (ranks - 1) * (2 if op == "all_reduce" else 1)
    if op in ("send", "recv", "broadcast", "reduce"):
        hops = 1
    return BASE_LATENCY_S + RING_LATENCY_S[where] * hops
