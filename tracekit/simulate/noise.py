"""Seeded randomness: one independent stream of factors for each purpose and place.

A fault must not change what chance does elsewhere, so that a faulty job can be compared with its
fault-free twin: every rank and every group draws from a stream of its own.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from itertools import repeat

import numpy as np
from msgspec import Struct

_BLOCK = 256


class NoiseModel(Struct, frozen=True):
    """How much everything varies; standard deviations of the logarithm."""

    kernel: float = 0.012
    host: float = 0.15
    transfer: float = 0.03
    device: float = 0.004
    """Lasting difference between GPUs of the same model."""
    step: float = 0.003
    """Of a rank from step to step."""
    is_exit_spread: bool = True
    """Whether members of a collective leave it a few microseconds apart."""


REALISTIC = NoiseModel()


def generator(seed: int, *purpose: object) -> np.random.Generator:
    """The generator for a purpose; the same arguments give the same numbers everywhere."""
    digest = hashlib.sha256("/".join(str(p) for p in (seed, *purpose)).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def factors(seed: int, sigma: float, *purpose: object) -> Iterator[float]:
    """Endless log-normal factors of median 1."""
    if sigma == 0.0:
        return repeat(1.0)
    return _factors(generator(seed, *purpose), sigma)


def _factors(rng: np.random.Generator, sigma: float) -> Iterator[float]:
    while True:
        # An array, not a list: a job has thousands of these, and floats of a list are objects.
        yield from array("d", np.exp(rng.standard_normal(_BLOCK) * sigma).tobytes())


def uniforms(seed: int, *purpose: object) -> Iterator[float]:
    """Endless numbers from 0 to 1."""
    rng = generator(seed, *purpose)
    while True:
        yield from array("d", rng.random(_BLOCK).tobytes())
