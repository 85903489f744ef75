"""The bubble of a pipeline schedule: what it cannot avoid.

t_f and t_b are the forward and the full backward of one microbatch on one stage, t_w the part of
the backward that computes weight gradients. ``overhead`` is idle over busy, ``ratio`` idle over
the window: ratio = overhead / (1 + overhead). They are never the same number.

Sources: GPipe and PipeDream-Flush (1F1B): Narayanan et al., SC 2021, section 2.2; interleaved:
the same, 2.2.2; ZB-H1, ZB-2P, ZBV: Qi et al., Zero Bubble Pipeline Parallelism, and the
repository's README; DualPipe: README of deepseek-ai/DualPipe.
"""

from __future__ import annotations

from tracekit.errors import UsageError

KINDS = (
    "gpipe",
    "1f1b",
    "interleaved-1f1b",
    "looped-bfs",
    "zb-h1",
    "zb-2p",
    "zbv",
    "dualpipe",
    "dualpipev",
)


def bubble_s(
    kind: str,
    stages: int,
    t_f: float,
    t_b: float,
    *,
    chunks: int = 1,
    t_w: float | None = None,
    t_overlapped: float | None = None,
) -> float:
    """Idle time of one rank in a step.

    GPipe and 1F1B (p-1)(F+B); interleaved and looped-bfs that over v; ZB-H1 (p-1)(F+B-2W), which
    is (p-1)F where F = B_input = W; ZB-2P and ZBV 0; DualPipe (p/2-1)(F&B + B - 3W), where F&B is
    a forward and a backward run together (their sum unless given). ``t_w`` defaults to half of
    the backward.
    """
    if stages < 1 or chunks < 1:
        raise UsageError("a pipeline has at least one stage and one chunk")
    weight = t_b / 2 if t_w is None else t_w
    if kind in ("gpipe", "1f1b"):
        return (stages - 1) * (t_f + t_b)
    if kind in ("interleaved-1f1b", "looped-bfs"):
        return (stages - 1) * (t_f + t_b) / chunks
    if kind == "zb-h1":
        return (stages - 1) * (t_f + t_b - 2 * weight)
    if kind in ("zb-2p", "zbv"):
        return 0.0
    if kind in ("dualpipe", "dualpipev"):
        together = t_f + t_b if t_overlapped is None else t_overlapped
        return max(0.0, (stages / 2 - 1) * (together + t_b - 3 * weight))
    raise UsageError(f"no bubble is known for schedule {kind!r}", hint=f"one of {', '.join(KINDS)}")


def bubble_overhead_ratio(
    kind: str,
    stages: int,
    microbatches: int,
    *,
    chunks: int = 1,
    t_f: float = 1.0,
    t_b: float = 2.0,
    t_w: float | None = None,
) -> float:
    """Idle over busy; for GPipe and 1F1B (p-1)/m, interleaved (p-1)/(v m)."""
    if microbatches < 1:
        raise UsageError("a step has at least one microbatch")
    return bubble_s(kind, stages, t_f, t_b, chunks=chunks, t_w=t_w) / (microbatches * (t_f + t_b))


def bubble_ratio(
    kind: str,
    stages: int,
    microbatches: int,
    *,
    chunks: int = 1,
    t_f: float = 1.0,
    t_b: float = 2.0,
    t_w: float | None = None,
) -> float:
    """Idle over window; for GPipe and 1F1B (p-1)/(m+p-1), interleaved (p-1)/(v m + p-1)."""
    overhead = bubble_overhead_ratio(
        kind, stages, microbatches, chunks=chunks, t_f=t_f, t_b=t_b, t_w=t_w
    )
    return overhead / (1 + overhead)
