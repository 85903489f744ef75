"""Bytes that a GPU sends in a step, by parallel dimension.

Psi is the bytes of the parameters in the dtype that is communicated, A = b s h x bytes the
activation of a microbatch at a layer boundary. Sent bytes carry the ring factors, so an
all-reduce of an array S over n ranks sends 2 (n-1)/n S.

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


def ddp_bytes(parameter_bytes: float, ranks: int) -> float:
    """All-reduce of the gradients: 2 (N-1)/N Psi; ZeRO-1 and ZeRO-2 the same as two halves."""
    return 2 * shard_ratio(ranks) * parameter_bytes


def zero2_accumulated_bytes(parameter_bytes: float, ranks: int, microbatches: int) -> float:
    """ZeRO-2 that reduces after every microbatch: (m+1)(N-1)/N Psi."""
    return (microbatches + 1) * shard_ratio(ranks) * parameter_bytes


def fsdp_bytes(
    parameter_bytes: float, ranks: int, microbatches: int = 1, *, reshards: bool = True
) -> float:
    """ZeRO-3: 3 (N-1)/N Psi a microbatch; 2 where parameters stay gathered for the backward."""
    return (3 if reshards else 2) * shard_ratio(ranks) * parameter_bytes * microbatches


def hsdp_bytes(parameter_bytes: float, shard_ranks: int, replicas: int) -> float:
    """Sharding inside, replication outside: 3 (n-1)/n Psi + 2 (R-1)/R Psi/n."""
    inner = 3 * shard_ratio(shard_ranks) * parameter_bytes
    return inner + 2 * shard_ratio(replicas) * parameter_bytes / shard_ranks


def activation_bytes(micro: int, sequence: int, hidden: int, element_bytes: int = 2) -> float:
    """A = b s h x bytes."""
    return float(micro * sequence * hidden * element_bytes)


def tensor_bytes_per_layer(
    activation: float, ranks: int, *, sequence_parallel: bool = False, recomputes: bool = False
) -> float:
    """Of one layer and microbatch: 2 all-reduces forward, 2 backward (6 with recomputation).

    With sequence parallelism 2 all-gathers and 2 reduce-scatters forward, 4 and 2 backward,
    where saved inputs are gathered again: 10 (t-1)/t A; implementations that do not gather again
    move 8 (t-1)/t A, as the all-reduces do.
    """
    if sequence_parallel:
        return 10 * shard_ratio(ranks) * activation
    return (6 if recomputes else 4) * 2 * shard_ratio(ranks) * activation


def pipeline_message_bytes(
    activation: float, tensor_ranks: int = 1, *, scatters: bool = False
) -> float:
    """One message over a stage boundary: A, or A/t with scatter/gather or sequence parallelism."""
    return activation / tensor_ranks if scatters else activation


def embedding_bytes(vocabulary: int, hidden: int, tensor_ranks: int, element_bytes: int) -> float:
    """The tied embedding's gradient, shared by the first and the last stage: V/t h."""
    return vocabulary / tensor_ranks * hidden * element_bytes


def expert_bytes(
    tokens: int, top_k: int, hidden: int, element_bytes: int, ranks: int | None = None
) -> float:
    """One dispatch or combine of a layer: T k h x bytes, times (1 - 1/E) that leaves the rank."""
    sent = float(tokens * top_k * hidden * element_bytes)
    return sent if ranks is None else sent * shard_ratio(ranks)


def node_limited_expert_bytes(tokens: int, nodes: int, hidden: int, element_bytes: int) -> float:
    """Between nodes where a token goes to at most M of them: T M h x bytes."""
    return float(tokens * nodes * hidden * element_bytes)


def context_bytes_per_layer(
    micro: int, sequence: int, kv_hidden: float, ranks: int, element_bytes: int = 2
) -> tuple[float, float]:
    """Ring of keys and values, (forward, backward): (c-1)/c 2 b s h_kv, and twice that."""
    forward = shard_ratio(ranks) * 2 * micro * sequence * kv_hidden * element_bytes
    return forward, 2 * forward
