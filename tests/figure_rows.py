"""Rows of figures' queries as tests write them, and what a figure made of them."""

from __future__ import annotations

from typing import Any

from tracekit.dashboards import chart, drawn
from tracekit.dashboards.drawing import Drawing
from tracekit.findings import Confidence, Finding, Impact, Scope, Severity, When

MS = 1_000_000


def step(rank: int, number: int, dur_ms: int, **more: Any) -> dict[str, Any]:
    """A step of a rank that starts when the one before ends, of 10 ms each."""
    parts = {"compute_ns": dur_ms * MS, "exposed_comm_ns": 0, "memory_ns": 0, "idle_ns": 0}
    return {
        "rank": rank, "capture_id": 0, "step": number, "is_warmup": False, "is_partial": False,
        "start_ns": number * 10 * MS, "dur_ns": dur_ms * MS, "measured_on": "gpu", **parts, **more,
    }  # fmt: skip


def finding(name: str, steps: tuple[tuple[int, int], ...]) -> Finding:
    return Finding(
        id=name, rule=name.partition("/")[0], severity=Severity.MAJOR,
        confidence=Confidence(level="likely", basis="a test"), summary="a test", owner="data",
        scope=Scope(steps=steps), when=When(), impact=Impact(), evidence=(),
    )  # fmt: skip


def made(name: str, *findings: Finding, **rows: Any) -> Drawing:
    found = drawn(chart(name), rows, findings)
    assert found is not None
    return found


def lines(drawing: Drawing) -> dict[str, Any]:
    """Curves of all axes by their label."""
    return {str(line.get_label()): line for axes in drawing.figure.axes for line in axes.lines}


def shapes(drawing: Drawing, panel: int) -> list[Any]:
    """Bars, areas and the like of one panel."""
    return list(drawing.figure.axes[panel].patches)


def late(rank: int, number: int, gap_ms: float) -> dict[str, Any]:
    return {"rank": rank, "capture_id": 0, "step": number, "exposed_gap_ns": int(gap_ms * MS)}


def idle(stage: int, ratio: float, replica: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "stage": stage, "replica": replica, "bubble_ratio": ratio, "expected_bubble_ratio": 0.2,
        "is_warmup": False, **more,
    }  # fmt: skip


def stretch(
    number: int, step: int, p50_s: float = 0.0, max_s: float | None = None
) -> dict[str, Any]:
    return {
        "stretch": number, "start_number": 1, "first_step": step, "last_step": step + 9,
        "lines_count": 10, "start_ns": None, "min_ns": int(0.9e9 * p50_s), "p50_ns": 1e9 * p50_s,
        "mean_ns": 1e9 * p50_s, "max_ns": int(1e9 * (max_s or p50_s)),
    }  # fmt: skip


def traffic_row(**given: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("group_kind", "bytes_per_step", "expected_bytes", "observed_ratio"))
    return {"op": "all_reduce", **empty, **given}


def level(gpu: int, second: int, value: float, **more: Any) -> dict[str, Any]:
    """Temperature of one of several GPUs, whose median is 40 and whose range is 38 to 80."""
    return {
        "counter": "gpu_temperature", "unit": "degrees Celsius", "gpu_id": f"GPU-{gpu}",
        "host": "h0", "gpu_index": gpu, "rank": None, "start_ns": second * 1000 * MS,
        "moment_ns": 1000 * MS, "mean_value": value, "gpus_count": 8, "low_value": 38.0,
        "median_value": 40.0, "high_value": 80.0, "away_ratio": 0.1, **more,
    }  # fmt: skip


def product(rank: int, rate: float, **more: Any) -> dict[str, Any]:
    return {
        "rank": rank, "operator": "aten::mm", "dtype": "BFloat16", "kernel_ns": 10 * MS,
        "flops_per_s": rate, "kernel_ratio": 0.5, "gpu_model": "NVIDIA H100 80GB HBM3", **more,
    }  # fmt: skip


def memory_row(time_ns: int, allocated: int, reserved: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "attempt": 1, "rank": 0, "capture_id": 0, "device_type": "gpu", "device": 0,
        "time_ns": time_ns, "allocated_bytes": allocated, "reserved_bytes": reserved,
        "operator": None, **more,
    }  # fmt: skip
