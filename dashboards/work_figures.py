"""Figures of what the devices compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tracekit.dashboards import look
from tracekit.dashboards.drawing import Drawing, Row, Rows
from tracekit.expect.hardware import DTYPE_BYTES, Gpu, gpu_named
from tracekit.wording import plural, seconds, share

if TYPE_CHECKING:
    from tracekit.findings import Finding

MAX_KINDS = 12
"""Kinds of multiplications that are drawn, those with most time."""
MAX_POINTS = 7
"""Kinds with a point of their own: more colours and marks would not be told apart."""
POINTS = ("o", "s", "^", "D", "v", "P", "X")
POINT_COLOURS = ("blue", "orange", "red", "sky", "pink", "ink", "muted")
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
        (r["gpu_model"] for kind_rows in kinds.values() for r in kind_rows if r["gpu_model"]), None
    )
    gpu = gpu_named(model)
    peak = gpu.bf16_flops_per_s if gpu is not None else None

    figure = look.new_figure(1.35 + 0.3 * len(most))
    axes = figure.add_subplot()
    told = []
    whose = _whose([r for kind in most for r in kinds[kind]])
    is_spread_named = False
    for i, kind in enumerate(most):
        rates = [r["flops_per_s"] / TERA for r in kinds[kind]]
        middle = float(np.median(rates))
        if len({r["rank"] for r in kinds[kind]}) > 1:
            axes.plot(
                [min(rates), max(rates)], [i, i], color=look.PALETTE["sky"], linewidth=5,
                solid_capstyle="butt",
                label=None if is_spread_named else "slowest to fastest rank",
            )  # fmt: skip
            is_spread_named = True
        axes.plot(
            [middle], [i], linestyle="none", marker="o", markersize=7, markeredgewidth=0,
            color=look.PALETTE["blue"], label=whose if i == 0 else None,
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
    axes.set_xlabel("TFLOP/s; at the right the share of computing")
    look.grid(axes, "x")
    look.legend(figure, 3)
    says = f"{plural(len(most), 'kind')} of matrix products on {_on(whose)}: {'; '.join(told)}."
    if peak:
        says += f" The peak of the {model} in 16 bits is {look.number(peak / TERA)} TFLOP/s."
    return Drawing(figure, says)


def roofline(rows: Rows, findings: Sequence[Finding] = ()) -> Drawing | None:
    """Kinds of matrix products by the operations that they do for a byte and for a second, below
    what the GPU's memory and its arithmetic allow.

    Bytes are the least: both matrices and the product once. What moves more stands farther right
    than it should, so a point on the slope is bound by memory, one below may be too.

    Source: S. Williams, A. Waterman, D. Patterson, Roofline (2009).
    """
    del findings
    kinds: dict[tuple[str, str], list[Row]] = {}
    for r in rows["gemm_efficiency"]:
        if r["flops_per_s"] and r["total_elements"] and _element_bytes(r["dtype"]):
            kinds.setdefault((r["operator"], r["dtype"]), []).append(r)
    if not kinds:
        return None
    most = sorted(kinds, key=lambda k: (-sum(r["kernel_ns"] for r in kinds[k]), k))[:MAX_POINTS]
    model = next((r["gpu_model"] for k in most for r in kinds[k] if r["gpu_model"]), None)
    gpu = gpu_named(model)
    points = []
    for kind in most:
        size = _element_bytes(kind[1])
        intensities = [r["total_flops"] / (r["total_elements"] * size) for r in kinds[kind]]
        rates = [r["flops_per_s"] / TERA for r in kinds[kind]]
        points.append((float(np.median(intensities)), float(np.median(rates))))

    figure = look.new_figure(3.0)
    axes = figure.add_subplot()
    low, high = min(x for x, _ in points) / 3, max(x for x, _ in points) * 3
    peak, knee = (gpu.bf16_flops_per_s, gpu.critical_intensity) if gpu is not None else (None, None)
    if gpu is not None and peak is not None and knee is not None:
        low, high = min(low, knee / 10), max(high, knee * 4)
        axes.plot(
            [low, knee, high], [low * gpu.hbm_bytes_per_s / TERA, peak / TERA, peak / TERA],
            color=look.PALETTE["green"], linewidth=1.5,
            label=f"{gpu.name}: {look.number(gpu.hbm_bytes_per_s / TERA)} TB/s, "
            f"{look.number(peak / TERA)} TFLOP/s in 16 bits",
        )  # fmt: skip
    for i, ((x, y), kind) in enumerate(zip(points, most, strict=True)):
        axes.plot(
            [x], [y], linestyle="none", markersize=8, markeredgewidth=0, marker=POINTS[i],
            color=look.PALETTE[POINT_COLOURS[i]], label=look.shown_name(" ".join(kind), 32),
        )  # fmt: skip
    axes.set_xlim(low, high)
    axes.set_ylim(
        min(y for _, y in points) / 3, 2 * max(peak or 0, *(y * TERA for _, y in points)) / TERA
    )
    look.log_scale(axes, "x")
    look.log_scale(axes, "y")
    axes.set_xlabel("operations a byte that must be moved [FLOP/B]")
    axes.set_ylabel("TFLOP/s while kernels ran")
    look.grid(axes, "both")
    look.legend(figure, 2)
    told = [
        f"{' '.join(kind)} {look.number(x)} operations a byte, {look.number(y)} TFLOP/s"
        + (_of_roof(gpu, x, y) if gpu is not None and _element_bytes(kind[1]) == 2 else "")
        for kind, (x, y) in zip(most, points, strict=True)
    ]
    whose = _whose([r for kind in most for r in kinds[kind]])
    says = f"Matrix products on {_on(whose)}: {'; '.join(told)}."
    if gpu is None or peak is None:
        says += f" The peak of {model or 'this GPU'} is not known here."
    return Drawing(figure, look.shown_name(says, 900))


MEDIAN_RANK = "median rank"


def _whose(rows: Sequence[Row]) -> str:
    """Whose the middle of these rows is: of one rank there is no median."""
    ranks = {r["rank"] for r in rows}
    return f"rank {ranks.pop()}" if len(ranks) == 1 else MEDIAN_RANK


def _on(whose: str) -> str:
    return f"the {whose}" if whose == MEDIAN_RANK else whose


def _element_bytes(dtype: str | None) -> int:
    """Bytes of an element by its type's name as PyTorch has it; 0 where unknown."""
    name = (dtype or "").lower()
    return DTYPE_BYTES.get("float8" if name.startswith("float8") else name, 0)


def _of_roof(gpu: Gpu, intensity: float, tera: float) -> str:
    """Which bound a point is below, and how near to it."""
    peak, knee = gpu.bf16_flops_per_s, gpu.critical_intensity
    if peak is None or knee is None:
        return ""
    by_memory = intensity < knee
    roof = intensity * gpu.hbm_bytes_per_s if by_memory else peak
    return (
        f" ({share(tera * TERA / roof)} of what {'memory' if by_memory else 'arithmetic'} allows)"
    )


def memory(rows: Rows, findings: Sequence[Finding] = ()) -> Drawing | None:
    """Memory allocated and reserved over time, of the device that had most allocated: of a GPU
    where any was recorded, else of the host."""
    del findings
    timeline = rows["memory_timeline"]
    if not timeline:
        return None
    top = max(
        timeline,
        key=lambda r: (r["device_type"] == "gpu", r["allocated_bytes"], -int(r["rank"])),
    )
    device_columns = ("attempt", "rank", "capture_id", "device_type", "device")
    series = [r for r in timeline if all(r[name] == top[name] for name in device_columns)]
    peak = max(r["allocated_bytes"] for r in series)
    reserved = max(r["reserved_bytes"] for r in series)
    divisor, unit = look.byte_unit(max(peak, reserved))
    first_ns, last_ns = series[0]["time_ns"], series[-1]["time_ns"]
    if first_ns == last_ns:  # one allocation is no course of time
        return None
    time_divisor, time_unit = look.time_unit(last_ns - first_ns)
    times = [(r["time_ns"] - first_ns) / time_divisor for r in series]

    figure = look.new_figure(2.5)
    axes = figure.add_subplot()
    allocated = [r["allocated_bytes"] / divisor for r in series]
    axes.fill_between(times, allocated, step="post", color=look.PALETTE["sky"], alpha=0.35)
    axes.step(times, allocated, where="post", color=look.PALETTE["blue"], label="allocated")
    if reserved:
        axes.step(
            times, [r["reserved_bytes"] / divisor for r in series], where="post",
            color=look.PALETTE["orange"], label="reserved by the allocator",
        )  # fmt: skip
    axes.plot(
        [(top["time_ns"] - first_ns) / time_divisor], [peak / divisor], linestyle="none",
        marker="o", markersize=7, markeredgewidth=0, color=look.PALETTE["red"], label="peak",
    )  # fmt: skip
    axes.set_xlim(0, max(times[-1], 1e-9))
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"since the first allocation that was recorded [{time_unit}]")
    axes.set_ylabel(f"memory [{unit}]")
    look.grid(axes)
    look.legend(figure, 3)
    where = "host" if top["device_type"] == "cpu" else f"GPU {top['device']}"
    says = (
        f"Rank {top['rank']}, {where}: at most {look.number(peak / divisor)} {unit} allocated, "
        f"{seconds((top['time_ns'] - first_ns) / 1e9)} after the first allocation"
    )
    if top["operator"] is not None:
        says += f", in {top['operator']}"
    says += f"; {look.number(reserved / divisor)} {unit} reserved." if reserved else "."
    others = len({tuple(r[name] for name in device_columns) for r in timeline}) - 1
    if others:
        says += f" Of {others + 1} devices and captures it had most."
    return Drawing(figure, says)
