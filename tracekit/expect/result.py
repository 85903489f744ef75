"""An expectation as JSON, CSV rows and text."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from tracekit.expect.expectation import Expectation, TrafficRow
from tracekit.wording import safe

SCHEMA_VERSION = 1
Point = tuple[dict[str, str], Expectation]


def to_dict(expectation: Expectation) -> dict[str, Any]:
    """Keys are a public contract; additions only."""
    return {
        "layout": expectation.sizes,
        "microbatches": expectation.microbatches,
        "traffic": [to_builtins(row) for row in expectation.traffic],
        "bubble": [to_builtins(row) for row in expectation.bubbles],
        "memory": to_builtins(expectation.memory),
        "utilisation": to_builtins(expectation.utilisation),
        "roofline": to_builtins(expectation.roofline),
        "step_time": to_builtins(expectation.step_time) if expectation.step_time else None,
        "training_days": expectation.training_days,
        "unknown": expectation.unknown,
        "assumptions": expectation.assumptions,
        "remarks": expectation.remarks,
    }


def points_to_dict(points: Sequence[Point], notes: Sequence[str]) -> dict[str, Any]:
    """One point: its content; several: a list of them, each with what was set."""
    head: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "notes": list(notes)}
    if len(points) == 1 and not points[0][0]:
        return {**head, **to_dict(points[0][1])}
    return {**head, "points": [{"set": key, **to_dict(expectation)} for key, expectation in points]}


def to_csv(points: Sequence[Point]) -> str:
    """One row a group family, operation and point."""
    swept = list(points[0][0]) if points else []
    names = [n for n in TrafficRow.__struct_fields__ if n not in ("choices", "assumed", "axes")]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*swept, *names])
    for key, expectation in points:
        for row in expectation.traffic:
            content = to_builtins(row)
            cells = ["" if content[n] is None else content[n] for n in names]
            writer.writerow([*key.values(), *cells])
    return stream.getvalue()


def to_text(points: Sequence[Point], notes: Sequence[str]) -> str:
    """A screen a point."""
    parts = [_point_text(key, expectation) for key, expectation in points]
    tail = "".join(f"NOTE      {safe(note)}\n" for note in notes)
    return "\n".join(parts) + tail


def _point_text(key: dict[str, str], expectation: Expectation) -> str:
    sizes = " x ".join(f"{d}{n}" for d, n in expectation.sizes.items() if n > 1) or "one GPU"
    lines = [f"LAYOUT    {sizes}   {expectation.microbatches or '?'} microbatches"]
    if key:
        lines.insert(0, "SET       " + safe("  ".join(f"{k}={v}" for k, v in key.items())))
    lines += _traffic_lines(expectation)
    if expectation.bubbles:
        given = [b for b in expectation.bubbles if b.is_given] or expectation.bubbles
        said = "   ".join(f"{b.schedule} {b.bubble_ratio:.1%}" for b in given[:9])
        lines.append(f"BUBBLE    {said}   (idle / window, backward taken as twice the forward)")
    lines += _number_lines(expectation)
    lines += [f"REMARK    {remark}" for remark in expectation.remarks]
    if expectation.assumptions:
        lines.append("ASSUMED   " + "; ".join(expectation.assumptions))
    if expectation.unknown:
        lines.append("UNKNOWN   " + ", ".join(expectation.unknown) + "   (give them in job.toml)")
    return "\n".join(lines) + "\n"


def _traffic_lines(expectation: Expectation) -> list[str]:
    if not expectation.traffic:
        return ["TRAFFIC   none: nothing is split"]
    lines = ["TRAFFIC   family     op              calls/step   message      sent/step    ideal"]
    for row in expectation.traffic:
        calls = "?" if row.calls_per_step is None else f"{row.calls_per_step:g}"
        ideal = "?" if row.ideal_s_per_step is None else f"{row.ideal_s_per_step * 1e3:.2f} ms"
        lines.append(
            f"          {row.group_kind + str(row.group_size):<10} {row.op:<15} {calls:>10}"
            f"   {_bytes(row.message_bytes):>10}   {_bytes(row.bytes_per_step):>10}"
            f"   {ideal:>10}  {row.domain or 'where?'}"
        )
        lines += [
            f"          {'':<10} {'':<15} {'':>10}   {'':>10}   {_bytes(c.bytes_per_step):>10}"
            f"   if {c.words}"
            for c in row.choices
        ]
    known = [r for r in expectation.traffic if r.ideal_s_per_step is not None]
    if known:
        worst = max(known, key=lambda r: r.ideal_s_per_step or 0.0)
        total = sum(r.ideal_s_per_step or 0.0 for r in known)
        part = (worst.ideal_s_per_step or 0.0) / total if total else 0.0
        lines.append(
            f"          {worst.group_kind} {worst.op} dominates: {part:.0%} of {total * 1e3:.1f} ms"
        )
    return lines


def _number_lines(expectation: Expectation) -> list[str]:
    lines = []
    m, u, r = expectation.memory, expectation.utilisation, expectation.roofline
    if m.model_state_bytes is not None:
        parts = [f"weights, gradients, optimizer {_bytes(m.model_state_bytes)}"]
        if m.activation_bytes is not None:
            parts.append(f"activations {_bytes(m.activation_bytes)}")
        if m.capacity_bytes is not None:
            parts.append(f"of {_bytes(m.capacity_bytes)}")
        lines.append("MEMORY    " + "   ".join(parts))
    if u.model_flops_per_step is not None:
        parts = [f"{u.model_flops_per_step:.4g} FLOP a step"]
        if u.ideal_compute_s is not None:
            parts.append(f"{u.ideal_compute_s:.3f} s at peak")
        if u.mfu_ratio is not None:
            parts.append(f"MFU {u.mfu_ratio:.1%}")
        if u.hfu_ratio is not None:
            parts.append(f"HFU {u.hfu_ratio:.1%} if activations are recomputed")
        lines.append("COMPUTE   " + "   ".join(parts))
    t = expectation.step_time
    if t is not None:
        text = (
            f"TIME      {t.serial_s:.3g} s a step with nothing overlapped: {t.compute_s:.3g} at "
            f"peak + {t.communication_s:.3g} communication; {t.dominant} dominates"
        )
        if t.measured_s is not None and t.measured_ratio is not None:
            text += f"; measured {t.measured_s:g} s, {t.measured_ratio:.1f}x"
        lines.append(text)
    if r.data_parallel_network_tokens is not None:
        have = "?" if r.tokens_per_gpu is None else f"{r.tokens_per_gpu:.0f}"
        lines.append(
            f"ROOFLINE  {have} tokens a GPU; hidden from {r.data_parallel_network_tokens:.0f}"
            f" (data parallel), {r.fsdp_network_tokens or 0:.0f} (FSDP)"
        )
    if expectation.training_days is not None:
        lines.append(f"TRAINING  {expectation.training_days:.2f} days")
    return lines


def _bytes(value: float | None) -> str:
    if value is None:
        return "?"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.4g} {unit}"
        value /= 1000
    return ""
