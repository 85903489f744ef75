"""Sizes of the messages that a layout makes; a row of ``plan`` adds how often, and ring factors.

A = b s h x bytes is the activation of a microbatch at a layer boundary. Of parameters of Psi bytes
in the dtype that is communicated, a rank sends 2 (n-1)/n Psi in plain data parallelism.

Sources: ZeRO (Rajbhandari et al. 2020), whose stages 1 and 2 move as much as plain data
parallelism (2 Psi) and stage 3 half as much again; Megatron-LM (SC 2021) and sequence
parallelism (Korthikanti et al. 2022); DeepSeek-V3's report for dispatch sizes. Notes that add
an all-gather of Q and K to tensor parallelism describe another scheme than Megatron's, which
splits heads.
"""

from __future__ import annotations


def shard_ratio(ranks: int) -> float:
    """(N-1)/N: the share of an array that is on other ranks."""
    return (ranks - 1) / ranks


def activation_bytes(micro: int, sequence: int, hidden: int, element_bytes: int = 2) -> float:
    """A = b s h x bytes."""
    return float(micro * sequence * hidden * element_bytes)


def embedding_bytes(vocabulary: int, hidden: int, tensor_ranks: int, element_bytes: int) -> float:
    """The tied embedding's gradient, shared by the first and the last stage: V/t h."""
    return vocabulary / tensor_ranks * hidden * element_bytes


def expert_bytes(tokens: int, top_k: int, hidden: int, element_bytes: int) -> float:
    """One dispatch or combine of a layer: T k h x bytes, of which (1 - 1/E) leaves the rank."""
    return float(tokens * top_k * hidden * element_bytes)


def context_bytes_per_layer(
    micro: int, sequence: int, kv_hidden: float, ranks: int, element_bytes: int = 2
) -> tuple[float, float]:
    """Ring of keys and values, (forward, backward): (c-1)/c 2 b s h_kv, and twice that."""
    forward = shard_ratio(ranks) * 2 * micro * sequence * kv_hidden * element_bytes
    return forward, 2 * forward
