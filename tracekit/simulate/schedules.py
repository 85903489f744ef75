"""The order in which a pipeline stage works: lists of (action, microbatch, chunk).

``F`` forward, ``B`` backward (with ZB-H1: for the input only), ``W`` backward for the weights.
Only the order is here. How long a stage then waits comes out of the simulation.
"""

from __future__ import annotations

from collections.abc import Callable

from tracekit.errors import UsageError

Action = tuple[str, int, int]


def gpipe(stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Action]:
    """All forwards, then all backwards."""
    forward = [("F", m, 0) for m in range(microbatches)]
    return forward + [("B", m, 0) for m in range(microbatches)]


def one_f_one_b(stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Action]:
    """Megatron's 1F1B: as many forwards as stages follow, then one backward for each forward."""
    warmup = min(stages - stage - 1, microbatches)
    actions: list[Action] = [("F", m, 0) for m in range(warmup)]
    for m in range(microbatches - warmup):
        actions += [("F", warmup + m, 0), ("B", m, 0)]
    return actions + [("B", m, 0) for m in range(microbatches - warmup, microbatches)]


def interleaved(stage: int, stages: int, microbatches: int, chunks: int = 2) -> list[Action]:
    """Megatron's interleaved 1F1B: ``chunks`` model chunks a stage, groups of p microbatches."""
    if microbatches % stages:
        raise UsageError(
            f"an interleaved pipeline of {stages} stages needs a multiple of {stages} "
            f"microbatches, not {microbatches}"
        )
    total = microbatches * chunks
    warmup = min(2 * (stages - stage - 1) + (chunks - 1) * stages, total)

    def place(k: int) -> tuple[int, int]:
        group, within = divmod(k, stages * chunks)
        return group * stages + within % stages, within // stages

    actions: list[Action] = []
    for k in range(warmup):
        m, c = place(k)
        actions.append(("F", m, c))
    for k in range(total - warmup):
        m, c = place(warmup + k)
        actions.append(("F", m, c))
        m, c = place(k)
        actions.append(("B", m, chunks - 1 - c))
    for k in range(total - warmup, total):
        m, c = place(k)
        actions.append(("B", m, chunks - 1 - c))
    return actions


def zb_h1(stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Action]:
    """ZB-H1: 1F1B whose weight gradients wait until they fill what would be a bubble.

    Stage s holds back up to s of them, so that memory stays that of 1F1B.
    """
    warmup = min(stages - stage, microbatches)
    actions: list[Action] = [("F", m, 0) for m in range(warmup)]
    next_forward, next_weight = warmup, 0
    for m in range(microbatches):
        actions.append(("B", m, 0))
        if m - next_weight >= stage:
            actions.append(("W", next_weight, 0))
            next_weight += 1
        if next_forward < microbatches:
            actions.append(("F", next_forward, 0))
            next_forward += 1
    return actions + [("W", m, 0) for m in range(next_weight, microbatches)]


SCHEDULES: dict[str, Callable[[int, int, int, int], list[Action]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved-1f1b": interleaved,
    "zb-h1": zb_h1,
}
"""By the name that job.toml uses."""
