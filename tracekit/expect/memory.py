"""Memory of a GPU: weights, gradients, optimizer, activations.

Mixed-precision Adam holds 16 bytes a parameter: 2 weight, 2 gradient, 4 master weight, 4 + 4
moments (ZeRO, Rajbhandari et al. 2020); 175e9 parameters are 2.8 TB. Activations: Korthikanti
et al. 2022, equation 2 with selective recomputation, 34 s b h bytes a layer.
"""

from __future__ import annotations

WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 2, 12


def model_state_bytes(parameters: float, zero_stage: int = 0, ranks: int = 1) -> float:
    """Weights, gradients and optimizer of the parameters of a GPU, sharded over ``ranks``."""
    weight, gradient, optimizer = (
        parameters * b for b in (WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES)
    )
    if zero_stage >= 1:
        optimizer /= ranks
    if zero_stage >= 2:
        gradient /= ranks
    if zero_stage >= 3:
        weight /= ranks
    return weight + gradient + optimizer


def activation_bytes_per_layer(micro: int, sequence: int, hidden: int, tp: int = 1) -> float:
    """34 s b h, of which 10 are not split by t: without sequence parallelism."""
    return sequence * micro * hidden * (10 + 24 / tp)
