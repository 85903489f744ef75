"""Parameters, FLOPs, utilisation and training time of a transformer.

l layers, h hidden, a heads, s sequence, V vocabulary, B samples a step.

Sources: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", SC 2021 (equations 2 to 4, table 1). The slides that state 11,156 days for one A100
used F(B=1024), not the 3.00 EFLOP that they print beside it.
"""

from __future__ import annotations

from msgspec import Struct

from tracekit.errors import UsageError

DAY_S = 86_400


def megatron_parameters(layers: int, hidden: int, vocabulary: int, sequence: int) -> float:
    """P = 12 l h^2 (1 + 13/(12h) + (V+s)/(12 l h)); GPT-3: 174,615,822,336."""
    l_, h = layers, hidden
    return 12 * l_ * h**2 * (1 + 13 / (12 * h) + (vocabulary + sequence) / (12 * l_ * h))


class Shape(Struct, frozen=True):
    """The shape of a transformer; kv_heads, ffn and experts default to the plain GPT block."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    kv_heads: int | None = None
    ffn: int | None = None
    is_gated: bool = False
    """SwiGLU: three matrices in the feed-forward layer, not two."""
    experts: int | None = None
    top_k: int | None = None

    @property
    def ffn_width(self) -> int:
        """Width of the feed-forward layer; 4 h unless given."""
        return self.ffn or 4 * self.hidden

    @property
    def kv_ratio(self) -> float:
        """Key and value heads over heads."""
        return (self.kv_heads or self.heads) / self.heads

    @property
    def kv_hidden(self) -> float:
        """Width of keys (and of values)."""
        return self.hidden * self.kv_ratio


def flops_per_token(shape: Shape, *, is_causal: bool = False) -> float:
    """l h^2 [12 + 12 kv/a + c f/h + 12 s/h + 6V/(l h)]: forward and backward of one token.

    c is 12 for two matrices in the feed-forward layer, 18 for three (SwiGLU); with experts the
    active ones count. ``is_causal`` halves the attention term 12 s/h, the work of a kernel that
    skips what the mask hides.
    """
    h, l_ = shape.hidden, shape.layers
    c = 18 if shape.is_gated else 12
    active = (shape.top_k or 1) if shape.experts else 1
    attention = 12 * shape.sequence / h / (2 if is_causal else 1)
    return (
        l_
        * h**2
        * (
            12
            + 12 * shape.kv_ratio
            + c * active * shape.ffn_width / h
            + attention
            + 6 * shape.vocabulary / (l_ * h)
        )
    )


def parameters_of(shape: Shape, *, is_tied: bool = True) -> float:
    """Weights of a transformer of that shape, biases and norms left out (under 0.1 %)."""
    h = shape.hidden
    attention = 2 * h**2 + 2 * h * shape.kv_hidden
    matrices = 3 if shape.is_gated else 2
    ffn = matrices * h * shape.ffn_width * (shape.experts or 1)
    return shape.layers * (attention + ffn) + shape.vocabulary * h * (1 if is_tied else 2)


def utilisation_ratio(flops: float, step_s: float, gpus: int, peak_flops_per_s: float) -> float:
    """FLOPs of a step over what the GPUs could do in it: MFU or HFU by which FLOPs are given."""
    if step_s <= 0 or gpus < 1 or peak_flops_per_s <= 0:
        raise UsageError("a utilisation needs a step time, GPUs and a peak above 0")
    return flops / (step_s * gpus * peak_flops_per_s)


def training_days(
    tokens: float,
    parameters: float,
    gpus: int,
    achieved_flops_per_s: float,
    *,
    with_recomputation: bool = True,
) -> float:
    """8 T P / (n X) in days; 6 T P without recomputation."""
    factor = 8 if with_recomputation else 6
    return factor * tokens * parameters / (gpus * achieved_flops_per_s) / DAY_S
