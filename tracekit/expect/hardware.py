"""What hardware can do: GPUs, NVLink generations, network levels. Every figure can be overridden.

Bytes a second are per direction; marketing adds both directions (NVLink 4 "900 GB/s" is 450).
Sources: the GPU and network chapter of "How to Scale Your Model", vendors' data sheets, and
the tuner tables of NCCL for latencies.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Gpu(Struct, frozen=True):
    """One GPU model; None where the source gives no figure."""

    name: str
    hbm_bytes: float
    hbm_bytes_per_s: float
    bf16_flops_per_s: float | None
    nvlink_bytes_per_s: float | None
    """To all peers of its NVLink domain together, one direction."""
    nvlink_domain: int = 8
    bf16_flops_per_clock: float | None = None
    """Dense operations of all SMs in a clock; peak = this times the clock. None: not published."""

    @property
    def critical_intensity(self) -> float | None:
        """FLOP a byte of HBM above which a kernel is compute-bound."""
        if self.bf16_flops_per_s is None:
            return None
        return self.bf16_flops_per_s / self.hbm_bytes_per_s


A100_SMS, H100_SMS = 108, 132
"""Streaming multiprocessors; 16-bit tensor cores of one do 2048 and 4096 dense FLOP a clock
(vendor's architecture papers: 108 x 2048 x 1.41 GHz = 312 TFLOP/s, 132 x 4096 x 1.83 = 989)."""

GPUS: Mapping[str, Gpu] = {
    g.name: g
    for g in (
        Gpu("V100", 32e9, 0.9e12, None, 150e9),
        Gpu("A100", 80e9, 2.0e12, 312e12, 300e9, 8, A100_SMS * 2048),
        Gpu("H100", 80e9, 3.35e12, 990e12, 450e9, 8, H100_SMS * 4096),
        Gpu("H100 PCIE", 80e9, 2.0e12, 756e12, None, 1),
        Gpu("H200", 141e9, 4.8e12, 990e12, 450e9, 8, H100_SMS * 4096),
        Gpu("H800", 80e9, 3.35e12, 990e12, 200e9, 8, H100_SMS * 4096),
        Gpu("B100", 192e9, 8e12, 1800e12, 900e9),
        Gpu("B200", 192e9, 8e12, 2250e12, 900e9),
        Gpu("GB200", 192e9, 8e12, 2250e12, 900e9, 72),
        Gpu("L40S", 48e9, 0.864e12, 362e12, None, 1),
    )
}

DTYPE_BYTES: Mapping[str, int] = {
    "float32": 4,
    "fp32": 4,
    "float": 4,
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "fp16": 2,
    "half": 2,
    "float8": 1,
    "fp8": 1,
    "int8": 1,
}


def gpu_named(text: str | None) -> Gpu | None:
    """The GPU of a model name as profilers write it (NVIDIA H100 80GB HBM3), or None."""
    if not text:
        return None
    words = text.upper().replace("-", " ").split()
    for name in sorted(GPUS, key=len, reverse=True):
        first, *rest = name.split()
        is_named = any(w.startswith(first) and not w[len(first) :].isalpha() for w in words)
        if (first in words or is_named) and set(rest) <= set(words):
            return GPUS[name]
    return None
