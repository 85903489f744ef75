"""Where communication begins to bound a step: tokens a GPU, or ways of a split.

C is FLOP/s of a GPU, W its bytes a second at the level concerned. Source: "How to Scale Your
Model", GPU chapter; its 898e12 in the model-parallel bound is a typing error for 989e12.
"""

from __future__ import annotations


def data_parallel_tokens(flops_per_s: float, bytes_per_s: float) -> float:
    """Tokens a GPU above which plain data parallelism hides its reduction: C/(2W)."""
    return flops_per_s / (2 * bytes_per_s)


def fsdp_tokens(flops_per_s: float, bytes_per_s: float) -> float:
    """The same where parameters are gathered too: C/W."""
    return flops_per_s / bytes_per_s


def tensor_parallel_ways(
    ffn: int, flops_per_s: float, bytes_per_s: float, domain: int = 8
) -> float:
    """Most ways to split a layer of width F before it is bound by communication: F/(C (n-1)/(n W)).

    H100 in a node: F/1923, so F = 16384 bears 8.5 ways.
    """
    return ffn / (flops_per_s * (domain - 1) / (domain * bytes_per_s))
