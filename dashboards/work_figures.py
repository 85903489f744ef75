"""Figures of what the devices compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tracekit.dashboards import look
from tracekit.dashboards.drawing import Drawing, Row, Rows
from tracekit.expect.hardware import gpu_named
from tracekit.wording import plural, share

if TYPE_CHECKING:
    from tracekit.findings import Finding

MAX_KINDS = 12
"""Kinds of multiplications that are drawn, those with most time."""
TERA = 1e12


def matrix_rates(rows: Rows, findings: Sequence[Finding] = ()) -> Drawing | None:
    """How fast matrices are multiplied, by operator and type: the median rank, from the slowest to
    the fastest, beside the peak of the GPU in 16 bits."""
    del findings
    kinds: dict[tuple[str, str], list[Row]] = {}
    for r in rows["gemm_efficiency"]:
        if r["flops_per_s"]:
            kinds.setdefault((r["operator"], r["dtype"] or "unknown type"), []).append(r)
    if not kinds:
        return None
    most = sorted(kinds, key=lambda k: (-sum(r["kernel_ns"] for r in kinds[k]), k))[:MAX_KINDS]
    model = next(
        (r["gpu_model"] for found in kinds.values() for r in found if r["gpu_model"]), None
    )
    gpu = gpu_named(model)
    peak = gpu.bf16_flops_per_s if gpu is not None else None

    figure = look.new_figure(1.35 + 0.3 * len(most))
    axes = figure.add_subplot()
    told = []
    for i, kind in enumerate(most):
        rates = [r["flops_per_s"] / TERA for r in kinds[kind]]
        middle = float(np.median(rates))
        axes.plot(
            [min(rates), max(rates)], [i, i], color=look.PALETTE["sky"], linewidth=5,
            solid_capstyle="butt", label="slowest to fastest rank" if i == 0 else None,
        )  # fmt: skip
        axes.plot(
            [middle], [i], linestyle="none", marker="o", markersize=7, markeredgewidth=0,
            color=look.PALETTE["blue"], label="median rank" if i == 0 else None,
        )  # fmt: skip
        part = float(np.median([r["kernel_ratio"] or 0.0 for r in kinds[kind]]))
        axes.text(
            1.01, i, share(part), transform=axes.get_yaxis_transform(), va="center", fontsize=8.5,
            color=look.PALETTE["muted"],
        )  # fmt: skip
        told.append(f"{' '.join(kind)} {look.number(middle)} TFLOP/s")
    if peak:
        axes.axvline(
            peak / TERA, color=look.PALETTE["green"], linewidth=1.5, linestyle=(0, (4, 3)),
            label=f"peak in 16 bits: {look.number(peak / TERA)}",
        )  # fmt: skip
    axes.set_xlim(left=0)
    axes.set_ylim(len(most) - 0.5, -0.5)
    axes.set_yticks(range(len(most)), [look.shown_name(" ".join(k), 32) for k in most])
    axes.set_xlabel("TFLOP/s while the kernels ran; at the right their share of computing time")
    look.grid(axes, "x")
    figure.legend(loc="outside upper left", ncols=3)
    says = f"{plural(len(most), 'kind')} of matrix products on the median rank: {'; '.join(told)}."
    if peak:
        says += f" The peak of the {model} in 16 bits is {look.number(peak / TERA)} TFLOP/s."
    return Drawing(figure, says)
