"""Causes that a user names: ``--remove rank=7``, ``--scale stage=3:forward=0.5``.

Removing a rank, stage, replica or operation type gives its operations their ideal times;
removing communication gives it no time at all, since no ideal is known to be reachable.
"""

from __future__ import annotations

import math
import re

import numpy as np
from msgspec import Struct

from tracekit.errors import UsageError
from tracekit.whatif import operations as o
from tracekit.whatif.operations import Floats, Mask
from tracekit.whatif.replay import Replay

COMM: dict[str, tuple[str, ...]] = {
    "pp": o.P2P,
    "dp": (o.PARAMS_GATHER, o.GRADS_SCATTER, o.SEPARATE_REDUCE),
    "embedding": (o.EMBEDDING,),
    "all": (
        *o.P2P,
        o.PARAMS_GATHER,
        o.GRADS_SCATTER,
        o.SEPARATE_REDUCE,
        o.EMBEDDING,
        o.LAYERNORM,
        o.CLIP,
    ),
}
GROUP_KINDS = ("tp", "pp", "dp", "ep", "cp", "world", "unknown")
"""Kinds of communicators, for a replay of collectives."""

SHORT: dict[str, tuple[str, ...] | None] = {
    "forward": (o.FORWARD,),
    "backward": (o.BACKWARD,),
    "weight": (o.WEIGHT,),
    "compute": o.COMPUTE,
    "all": None,
}
_HINT = "F1, rank=7, stage=3, dp=1, host=gpu-01, link=7, op=all_reduce or comm=pp"
_FINDING = re.compile(r"F\d+|[a-z][a-z0-9-]*/\S+")
_SCALE = re.compile(
    r"(rank|stage|dp|host|op|comm)=([\w.,-]+?)(?::([A-Za-z][\w-]*))?[=:]([\d.]+(?:e-?\d+)?)"
)


class Cause(Struct, frozen=True):
    """Which operations are changed, and how: to their ideal, to nothing, or by a factor."""

    text: str
    kind: str
    value: str
    operation: str | None = None
    factor: float | None = None


def parse_remove(text: str) -> Cause:
    """``rank=7`` and the like, or a finding (``F1``, ``slow-host/7``); UsageError says what can be
    removed."""
    kind, _, value = text.strip().partition("=")
    if _FINDING.fullmatch(text.strip()):
        return Cause(f"remove {text.strip()}", "finding", text.strip())
    if kind not in ("rank", "stage", "dp", "host", "link", "op", "comm") or not value:
        raise UsageError(f"--remove: cannot read {text!r}", hint=f"--remove {_HINT}")
    if kind == "comm" and value not in (*COMM, *GROUP_KINDS):
        raise UsageError(
            f"--remove: there is no communication {value!r}",
            hint=f"one of {', '.join(dict.fromkeys((*COMM, *GROUP_KINDS)))}",
        )
    return Cause(f"remove {text.strip()}", kind, value)


def parse_scale(text: str) -> Cause:
    """``stage=3:forward=0.5``, ``rank=7:1.2``; UsageError says how it is written."""
    match = _SCALE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--scale: cannot read {text!r}", hint="--scale stage=3:forward=0.5, rank=7:all=0.8"
        )
    try:
        factor = float(match[4])
    except ValueError:
        factor = math.nan
    if not math.isfinite(factor):
        raise UsageError(f"--scale: {match[4]!r} is no number")
    return Cause(f"scale {text.strip()}", match[1], match[2], match[3], factor)


def changed_work(replay: Replay, cause: Cause) -> Floats:
    """The job's work with the cause changed. UsageError where it names nothing of the job.

    What is removed takes the ideal of its operation type, as in the published method: the mean over
    all stages, which for a stage that has more to do by design is less than it can do.
    """
    chosen = _chosen(replay, cause)
    if not chosen.any():
        raise UsageError(
            f"{cause.text}: this job has no such operations",
            hint=f"it has operations {', '.join(sorted(replay.ideal_by_type))}",
        )
    if cause.factor is not None:
        return np.where(chosen, replay.work_s * cause.factor, replay.work_s)
    if cause.kind == "comm":
        return np.where(chosen, 0.0, replay.work_s)
    return np.where(chosen, replay.ideal_s, replay.work_s)


def uses_operations(cause: Cause) -> bool:
    """Whether a cause names operations that only a pipeline's replay knows."""
    names = {*SHORT, *o.COMPUTE, *o.P2P, *(t for types in COMM.values() for t in types)}
    names |= {o.GC, o.OPTIMIZER}
    if cause.kind == "comm":
        return cause.value == "embedding"
    if cause.kind == "op":
        return cause.value in names
    return cause.operation in names - {"all", "compute"}


def _some(values: list[int]) -> str:
    shown = ", ".join(str(v) for v in values[:8])
    return f"{shown}, ..." if len(values) > 8 else shown


def _chosen(replay: Replay, cause: Cause) -> Mask:
    shape = replay.work_s.shape
    if cause.kind == "comm":
        if cause.value not in COMM:
            raise UsageError(
                f"{cause.text}: a pipeline's replay has no such communication",
                hint=f"one of {', '.join(COMM)}",
            )
        return _wide(replay.ops_where(optypes=COMM[cause.value]), shape)
    if cause.kind == "op":
        return _wide(replay.ops_where(optypes=_optypes(cause.value)), shape)
    if cause.kind in ("host", "link"):
        raise UsageError(
            f"{cause.text}: a pipeline's replay does not know which {cause.kind} is which",
            hint="name ranks: rank=0,1",
        )
    optypes = None if cause.operation is None else _optypes(cause.operation)
    known = {
        "stage": list(replay.stages),
        "dp": list(replay.dp_ranks),
        "rank": sorted(int(r) for r in replay.ranks.ravel() if r >= 0),
    }[cause.kind]
    chosen = np.zeros(shape, dtype=np.bool_)
    for value in cause.value.split(","):
        if not value.isdecimal() or int(value) not in known:
            word = "replica" if cause.kind == "dp" else cause.kind
            hint = f"it has {word} {_some(known)}; several as {cause.kind}=A,B"
            if cause.kind == "rank":
                hint += "; of a tensor-parallel group the first rank stands for all"
            raise UsageError(f"{cause.text}: this job has no {word} {value!r}", hint=hint)
        number = int(value)
        if cause.kind == "stage":
            chosen |= _wide(replay.ops_where(optypes=optypes, stage=number), shape)
        elif cause.kind == "dp":
            position = replay.dp_ranks.index(number)
            chosen[:, :, position] |= replay.ops_where(optypes=optypes)[:, None]
        else:
            for i, position in np.argwhere(replay.ranks == number):
                mask = replay.ops_where(optypes=optypes, stage=replay.stages[i])
                chosen[:, :, position] |= mask[:, None]
    return chosen


def _optypes(name: str) -> tuple[str, ...] | None:
    return SHORT.get(name, (name,))


def _wide(mask: Mask, shape: tuple[int, ...]) -> Mask:
    return np.broadcast_to(mask[:, None, None], shape)
