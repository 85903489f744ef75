"""What a rank is told to do in a step: host work, kernels on streams, communication.

An instruction is a tuple whose first item is its code. A program is a list of them. Streams are
numbers; work on one stream runs in order; ``WAIT`` lets a stream wait for what another has been
given so far, as cudaStreamWaitEvent does.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

KERNEL, COLLECTIVE, MESSAGE, WAIT, WAIT_SLOT, RECORD, SYNC, BEGIN, END, HOST, THREAD, MARK = range(
    12
)

Instruction = tuple[Any, ...]
Program = list[Instruction]

COMPUTE_STREAM = 7

MAIN_THREAD = 0
AUTOGRAD_THREAD = 1


class Kernel(Struct, frozen=True, eq=False):
    """Work of one GPU (or, on a job without GPUs, of one host thread)."""

    name: str
    operator: str
    """The operator that launches it."""
    dur_ns: float
    grid: tuple[int, int, int] = (1024, 1, 1)
    block: tuple[int, int, int] = (256, 1, 1)
    kind: str = "kernel"
    """kernel, memcpy or memset."""
    size_bytes: int = 0
    is_expert: bool = False
    """Whether its time grows with the tokens that the rank's experts got."""
    registers: int = 128


class Collective(Struct, frozen=True, eq=False):
    """One collective of a family of groups."""

    role: str
    """Which of the rank's groups: dp, tp, pp, ..."""
    op: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast."""
    total_bytes: int
    """S as nccl-tests counts it."""
    stream: int
    dtype: str = "BFloat16"
    is_expert: bool = False
    """Whether its sizes follow the routing of tokens to experts."""


class Message(Struct, frozen=True, eq=False):
    """One half of a send/receive pair."""

    role: str
    peer_offset: int
    """The other side's place in the group, counted from one's own (a ring)."""
    is_send: bool
    channel: str
    """Pairs match in order within one channel."""
    size_bytes: int
    stream: int
    dtype: str = "BFloat16"


ELEMENT_BYTES = {"BFloat16": 2, "Float": 4, "Half": 2, "Long": 8, "Byte": 1}
