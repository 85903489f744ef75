"""The lines of a training log, as programs print them: a step's, and what lies between steps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from msgspec import Struct


class Told(Struct, frozen=True):
    """What a line of a step says."""

    time_ns: int
    step: int
    total: int
    mean_s: float
    """Of the steps since the line before."""
    last_s: float
    """Of this step alone."""
    loss: float


class LogFormat(Struct, frozen=True):
    """One program's log."""

    name: str
    step: Callable[[Told], str]
    save: str
    evaluate: str
    load: str
    is_local: bool
    """Whether its times name no zone, so that job.toml has to."""


def _local(ns: int, digits: int = 3, mark: str = ",") -> str:
    at = datetime.fromtimestamp(ns // 10**9, tz=UTC)
    text = at.strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}{mark}{ns % 10**9 // 10 ** (9 - digits):0{digits}d}" if digits else text


def rfc3339(ns: int) -> str:
    """As containers' runtimes and collectors print times."""
    at = datetime.fromtimestamp(ns // 10**9, tz=UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{ns % 10**9:09d}Z"


def _megatron(t: Told) -> str:
    return (
        f" [{_local(t.time_ns, 0)}] iteration {t.step:8d}/{t.total:8d} | consumed samples: "
        f"{512 * t.step:12d} | elapsed time per iteration (ms): {1e3 * t.mean_s:.1f} | learning "
        f"rate: 3.000000E-04 | global batch size:   512 | lm loss: {t.loss:.6E} | loss scale: 1.0 "
        "| grad norm: 0.312 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def _torchtitan(t: Told) -> str:
    return (
        f"[titan] {_local(t.time_ns)} - root - INFO - step: {t.step:2d}  loss: {t.loss:7.4f}  "
        f"grad_norm:  0.3120  memory: 61.40GiB(77.62%)  tps: {round(16384 / t.mean_s):,}  "
        f"tflops: {400 / t.mean_s:.2f}  mfu: {min(99.0, 40 / t.mean_s):.2f}%"
    )


def _nanogpt(t: Told) -> str:
    return (
        f"{rfc3339(t.time_ns)} iter {t.step}: loss {t.loss:.4f}, time {1e3 * t.last_s:.2f}ms, "
        f"mfu {min(99.0, 40 / t.last_s):.2f}%"
    )


def _deepspeed(t: Told) -> str:
    return (
        f"[{_local(t.time_ns)}] [INFO] [logging.py:107:log_dist] [Rank 0] step={t.step}, "
        "skipped=0, lr=[0.0003, 0.0003], mom=[(0.9, 0.95), (0.9, 0.95)]"
    )


def _maxtext(t: Told) -> str:
    return (
        f"{rfc3339(t.time_ns)} completed step: {t.step}, seconds: {t.last_s:.3f}, TFLOP/s/device: "
        f"{400 / t.last_s:.3f}, Tokens/s/device: {16384 / t.last_s:.3f}, total_weights: 524288, "
        f"loss: {t.loss:.3f}"
    )


FORMATS: tuple[LogFormat, ...] = (
    LogFormat("megatron", _megatron,
              "saving checkpoint at iteration {step:7d} to /ckpt/run in torch_dist format",
              " validation loss at iteration {step} | lm loss value: 2.104331E+00 | lm loss PPL: "
              "8.201606E+00 | ",
              " loading distributed checkpoint from /ckpt/run at iteration {step}", True),
    LogFormat("torchtitan", _torchtitan,
              "[titan] {local} - root - INFO - Saving the checkpoint (or staging if async is "
              "enabled).",
              "[titan] {local} - root - INFO - validate step: {step:2d}  loss:  2.1043",
              "[titan] {local} - root - INFO - Loading the checkpoint from /ckpt/step-{step}.",
              True),
    LogFormat("nanogpt", _nanogpt, "{utc} saving checkpoint to out",
              "{utc} step {step}: train loss 2.1043, val loss 2.2014",
              "{utc} Resuming training from checkpoint out", False),
    LogFormat("deepspeed", _deepspeed,
              "[{local}] [INFO] [torch_checkpoint_engine.py:21:save] [Torch] Saving "
              "/ckpt/global_step{step}/mp_rank_00_model_states.pt...",
              "[{local}] [INFO] [eval.py:31:evaluate] running evaluation",
              "[{local}] [INFO] [torch_checkpoint_engine.py:27:load] [Torch] Loading checkpoint "
              "from /ckpt/global_step{step}/mp_rank_00_model_states.pt...", True),
    LogFormat("maxtext", _maxtext, "{utc} saved a checkpoint at step {step}",
              "{utc} Completed eval step 1; eval loss: 2.104",
              "{utc} restoring from this run's directory latest checkpoint step {step}", False),
)  # fmt: skip
BY_NAME = {f.name: f for f in FORMATS}


def between(words: str, ns: int, step: int) -> str:
    """A line that is no step's, filled in."""
    return words.format(step=step, local=_local(ns), utc=rfc3339(ns))
