"""Which metric of somebody's tracker is what: the step, its time, its duration, what it consumed.

Nothing is guessed from values alone. A name that says a time without its unit is believed only
where the clock beside it agrees (``tracekit.ingest.trackers.steps``).
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Role = Literal[
    "step", "epoch", "total", "time", "elapsed", "dur", "input_wait", "samples", "tokens", "loss",
    "learning_rate", "grad_norm", "mfu", "rank",
]  # fmt: skip


class Meaning(NamedTuple):
    """What a metric is."""

    role: Role
    order: int = 0
    """Of two metrics of one role the lower is taken."""
    unit_ns: int | None = None
    """Of a duration: ns in its unit; None where the name states none."""
    is_averaged: bool | None = None
    """Of a duration: whether it is a mean over the steps since the row before; None: not said."""


_UNITS = {"s": 10**9, "sec": 10**9, "secs": 10**9, "second": 10**9, "seconds": 10**9,
          "ms": 10**6, "msec": 10**6, "milliseconds": 10**6, "us": 10**3, "ns": 1}  # fmt: skip
_UNIT = "|".join(_UNITS)
_STEPS = (
    "train_global_step", "trainer_global_step", "global_step", "iteration", "iterations", "iter",
    "num_updates", "train_step", "trainer_step", "train_steps", "train_iteration", "step", "steps",
)  # fmt: skip
"""The first is preferred: a bare ``step`` is a tracker's own count of calls where both stand."""
_EXACT: dict[str, Meaning] = {
    **{name: Meaning("step", order) for order, name in enumerate(_STEPS)},
    **{
        name: Meaning("time", order)
        for order, name in enumerate(
            ("timestamp", "wall_time", "walltime", "datetime", "time", "ts", "created_at", "date")
        )
    },
    **{
        name: Meaning("elapsed", order)
        for order, name in enumerate(
            ("_runtime", "runtime", "relative_time_process", "relative_time_wall", "wall",
             "elapsed", "elapsed_s", "elapsed_seconds", "elapsed_time", "time_elapsed")
        )
    },
    "rank": Meaning("rank"),
    "global_rank": Meaning("rank"),
    # torchtitan: the mean since the row before
    "time_metrics_end_to_end_s": Meaning("dur", 0, 10**9, True),
}  # fmt: skip
_LAST: dict[str, Meaning] = {
    "epoch": Meaning("epoch"),
    "max_steps": Meaning("total"),
    "total_steps": Meaning("total", 1),
    **dict.fromkeys(("consumed_samples", "samples_consumed"), Meaning("samples")),
    **dict.fromkeys(
        ("consumed_tokens", "tokens_consumed", "tokens_seen", "num_input_tokens_seen"),
        Meaning("tokens"),
    ),
    **{
        name: Meaning("loss", order)
        for order, name in enumerate(
            ("lm_loss", "reduced_train_loss", "train_loss", "training_loss", "loss_train", "loss")
        )
    },
    **{
        name: Meaning("learning_rate", order)
        for order, name in enumerate(("learning_rate", "lr", "train_lr"))
    },
    **{
        name: Meaning("grad_norm", order)
        for order, name in enumerate(("grad_norm", "gradient_norm", "grad_global_norm"))
    },
    "mfu": Meaning("mfu"),
    # Megatron-LM, to TensorBoard and W&B: the mean since the row before
    "iteration_time": Meaning("dur", 1, None, True),
}
_WORK = "step|iter|iteration|batch|update"
_DUR = re.compile(
    rf"(?:(?P<mean>avg|mean|average)_)?(?:train_|training_)?(?:(?:global_)?(?:{_WORK})_"
    r"(?:time|duration|timing)|(?:elapsed_)?time_per_(?:global_)?"
    rf"(?:{_WORK}))(?:_in)?(?:_(?P<unit>{_UNIT}))?"
)
_PER = re.compile(rf"(?P<unit>{_UNIT})_per_(?:{_WORK}|it)")
_INPUT_WAIT = re.compile(
    r"(?:train_|training_)?(?:(?:data|dataloader|data_loader|data_loading|data_load|input|batch_load"
    rf"|data_wait|input_wait|fetch)_(?:time|timing|wait|latency)|data_wait|input_wait)"
    rf"(?:_in)?(?:_(?P<unit>{_UNIT}))?"
)
"""How long a step waited for its input. ``batch_time`` is a whole step's."""
_NOT_TRAINING = frozenset(
    ("eval", "evaluation", "val", "valid", "validation", "test", "system", "max", "min", "std")
)
_WORDS = re.compile(r"[^a-z0-9]+")
MAX_NAME_CHARS = 200


def plain(name: str) -> str:
    """A metric's name in lower case, its words joined by ``_``."""
    return _WORDS.sub("_", name[:MAX_NAME_CHARS].lower()).strip("_")


def meaning(name: str) -> Meaning | None:
    """What a metric is by its name; None where it is nothing of a step's."""
    if name == "_step":  # W&B's own count of calls: anything else is nearer to the step
        return Meaning("step", len(_STEPS))
    full = plain(name)
    if exact := _EXACT.get(full):
        return exact
    parts = [plain(part) for part in name[:MAX_NAME_CHARS].split("/")]
    if "vs_samples" in full or not _NOT_TRAINING.isdisjoint("_".join(parts).split("_")):
        return None
    last = parts[-1]
    # "loss/train" as well as "train/loss"
    if last in ("train", "training") and len(parts) > 1:
        last = parts[-2]
    if last in _LAST:
        return _LAST[last]
    if stated := (_DUR.fullmatch(last) or _PER.fullmatch(last)):
        said = stated.groupdict()
        return Meaning(
            "dur",
            2,
            _UNITS[said["unit"]] if said["unit"] else None,
            True if said.get("mean") else None,
        )
    if stated := _INPUT_WAIT.fullmatch(last):
        return Meaning("input_wait", 0, _UNITS[stated["unit"]] if stated["unit"] else None)
    return None


def by_role(names: list[str]) -> dict[Role, tuple[str, Meaning]]:
    """The metric of each role."""
    best: dict[Role, tuple[str, Meaning]] = {}
    for name in names:
        known = meaning(name)
        if known and (known.role not in best or known.order < best[known.role][1].order):
            best[known.role] = (name, known)
    return best
