"""
What it means
    The program makes the host wait for the GPU in the middle of a step, so the host can no longer
    queue work ahead. After each such wait the GPU stands idle until new work has been launched.

How it shows
    A synchronising call (cudaStreamSynchronize, cudaDeviceSynchronize, cudaEventSynchronize, a
    blocking copy, ``.item()``) on the thread that runs the steps, and from its end no operation
    on the rank's GPU until the next launch takes effect. The idle time after the call is what
    costs; the waiting inside it does not, for the GPU works meanwhile.

Why it hurts
    The queue that hides the host's slowness is emptied, every time.

Remedy
    Take ``.item()``, ``.cpu()``, ``print(loss)``, ``torch.cuda.synchronize()`` and shapes that
    depend on values out of the step; log every N steps; copy with ``non_blocking=True`` from
    pinned memory.

When this is wrong
    Waiting in a call while another rank is late is that rank's fault: there the GPU is busy with
    the collective and nothing is counted. Idle time inside a fetch, a collection or a checkpoint
    belongs to those. An explicit synchronisation at the end of a step, where the program would
    wait anyway, can cost less than it seems. The profiler synchronises by itself when it starts
    and stops.

Source
    Diagnosis D32 (its trap) and the roll-up after D34: synchronisation points.
"""

from __future__ import annotations

from tracekit.rules.base import Facts, Rule, RuleOutcome
from tracekit.rules.stalls import StallSummary, StallText, StallThresholds, evaluate_stalls
from tracekit.rules.thresholds import threshold


class SyncStallThresholds(StallThresholds):
    """When synchronising is a stall."""

    min_step_ratio: float = threshold(
        0.02, "one synchronisation a step (to log the loss) empties the queue once and is usual"
    )
    min_impact_ratio: float = threshold(
        0.02, "as for a step: below that the cure is more work than the gain"
    )


def _says(stall: StallSummary) -> str:
    whose = "its GPU idles" if stall.subject.startswith("Rank ") else "their GPUs idle"
    verb = "waits" if stall.subject.startswith("Rank ") else "wait"
    where = "again and again" if stall.is_window else "inside the step"
    return (
        f"{stall.subject} {verb} for the GPU {where} {stall.often}, after which {whose} "
        f"{stall.lasts} until new work is launched."
    )


TEXT = StallText(
    query="sync_stall",
    says=_says,
    noun="synchronisation",
    needs="synchronising calls recorded in a trace (CUDA or HIP runtime events)",
    capture="profile with activities CPU and CUDA",
    confirm=("run with torch.cuda.set_sync_debug_mode('warn'): it names each line that waits",),
    remedy=(
        "take .item(), .cpu(), print(tensor) and torch.cuda.synchronize() out of the step",
        "log every N steps; copy with non_blocking=True from pinned memory",
        "avoid shapes that depend on values (nonzero, boolean masks) in the step",
    ),
    needs_gpu=True,
)


def evaluate(facts: Facts, limits: SyncStallThresholds) -> RuleOutcome:
    """The ranks whose synchronisations leave their GPU idle."""
    return evaluate_stalls(facts, limits, TEXT)


RULE = Rule(
    name="sync-stall",
    summary="The host waits for the GPU inside the step and leaves it without work.",
    owner="model",
    thresholds=SyncStallThresholds(),
    queries=("step_breakdown", TEXT.query),
    evaluate=evaluate,
    judges_windows=True,
    needs=TEXT.needs,
    explains=("waiting", "lateness", "stalled launches"),
)
