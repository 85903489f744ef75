"""Configuration files: DeepSpeed, Hugging Face, torchtitan, pipeline timers' meta file."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from tracekit.job import JobDescription
from tracekit.jobs_import.arguments import from_arguments
from tracekit.jobs_import.values import DTYPES, described, switch, whole


def _object(text: str) -> dict[str, Any] | None:
    if text.lstrip()[:1] != "{":
        return None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _part(content: dict[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def deepspeed(text: str) -> JobDescription | None:
    """A DeepSpeed JSON; values of ``auto`` come from the trainer's arguments, not from here."""
    content = _object(text)
    keys = {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"}
    if content is None or not keys & set(content):
        return None
    zero, notes = _part(content, "zero_optimization"), []
    accumulated = whole(content.get("gradient_accumulation_steps"))
    micro, samples = (
        whole(content.get(k)) for k in ("train_micro_batch_size_per_gpu", "train_batch_size")
    )
    dp = None
    if micro and samples and accumulated:
        if samples % (micro * accumulated):
            notes.append(
                f"train_batch_size {samples} is no multiple of micro {micro} x accumulation"
                f" {accumulated}"
            )
        else:
            dp = samples // (micro * accumulated)
    for part in ("offload_optimizer", "offload_param"):
        device = _part(zero, part).get("device")
        if device and device != "none":
            notes.append(f"{part} to {str(device)[:20]}: traffic over PCIe is not in expect")
    automatic = sorted(k for k in (*content, *zero) if (content.get(k) or zero.get(k)) == "auto")
    if automatic:
        notes.append(f"auto in {', '.join(automatic[:6])}: give the trainer's arguments too")
    dtype = None
    for name in ("bf16", "fp16"):
        if switch(_part(content, name).get("enabled")):
            dtype = DTYPES[name]
    stage = zero.get("stage")
    is_stage = type(stage) is int and stage in (0, 1, 2, 3)
    return described(
        {
            "parallelism": {
                "zero_stage": stage if is_stage else None,
                "dp": dp,
            },
            "schedule": {"microbatches": accumulated},
            "batch": {"micro": micro, "global": samples},
            "model": {"dtype": dtype},
        },
        tuple(notes),
        framework="deepspeed",
    )


def huggingface_model(text: str) -> JobDescription | None:
    """A model's config.json."""
    content = _object(text)
    if content is None or not {"hidden_size", "num_hidden_layers"} <= set(content):
        return None
    return described(
        {
            "model": {
                "layers": whole(content.get("num_hidden_layers")),
                "hidden": whole(content.get("hidden_size")),
                "heads": whole(content.get("num_attention_heads")),
                "kv_heads": whole(content.get("num_key_value_heads")),
                "ffn": whole(content.get("intermediate_size")),
                "vocabulary": whole(content.get("vocab_size")),
                "experts": whole(content.get("num_local_experts")),
                "top_k": whole(content.get("num_experts_per_tok")),
                "dtype": DTYPES.get(str(content.get("torch_dtype")), None),
            }
        }
    )


def huggingface_trainer(text: str) -> JobDescription | None:
    """Trainer arguments as JSON (``training_args.json``)."""
    content = _object(text)
    if content is None or "per_device_train_batch_size" not in content:
        return None
    return from_arguments(content)


_DEGREES = {
    "tensor_parallel_degree": "tp",
    "pipeline_parallel_degree": "pp",
    "context_parallel_degree": "cp",
    "expert_parallel_degree": "ep",
}
_SCHEDULES = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved1f1b": "interleaved-1f1b",
    "loopedbfs": "looped-bfs",
    "interleavedzerobubble": "interleaved-zero-bubble",
    "zbvzerobubble": "zbv",
    "dualpipev": "dualpipev",
}


def torchtitan(text: str) -> JobDescription | None:
    """A torchtitan TOML, of the versions with [parallelism] and with [experimental]."""
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError):  # numbers of thousands of digits are no TOML error
        return None
    training = _part(content, "training")
    degrees = {
        **_part(content, "experimental"),
        **{k: v for k, v in training.items() if k.endswith("_degree")},
        **_part(content, "parallelism"),
    }
    if not any(k.endswith("_degree") for k in degrees):
        return None
    notes: list[str] = []
    stated = degrees.get("data_parallel_shard_degree", -1)
    shard, replicas = whole(stated), whole(degrees.get("data_parallel_replicate_degree", 1))
    dp = None
    if shard and replicas:
        dp = whole(shard * replicas)
    elif stated == -1:
        notes.append("data_parallel_shard_degree is -1: what the other dimensions leave")
    kind = str(degrees.get("pipeline_parallel_schedule", "")).lower()
    schedule = _SCHEDULES.get(kind)
    if kind and schedule is None:
        notes.append(f"pipeline_parallel_schedule {kind[:30]!r} is not known")
    sizes: dict[str, Any] = {short: whole(degrees.get(name)) for name, short in _DEGREES.items()}
    pp = sizes["pp"] or 1
    recompute = _part(content, "activation_checkpoint").get("mode")
    micro = whole(degrees.get("pipeline_parallel_microbatch_size"))
    local = whole(training.get("local_batch_size")) or whole(training.get("batch_size"))
    microbatches = None
    if pp > 1 and micro and local:
        microbatches = max(1, local // micro)
    return described(
        {
            "parallelism": {
                **sizes,
                "dp": dp,
                "dp_replicate": replicas if dp and (shard or 0) > 1 and dp != shard else None,
                "zero_stage": 3 if shard != 1 else 0,
            },
            "schedule": {
                "kind": schedule if pp > 1 else None,
                "microbatches": microbatches,
                "recompute": recompute if recompute in ("none", "selective", "full") else None,
            },
            "model": {"sequence": whole(training.get("seq_len"))},
            "batch": {
                "micro": micro if pp > 1 and micro else local,
                "global": whole(training.get("global_batch_size")),
            },
        },
        tuple(notes),
        framework="torchtitan",
    )


_META = re.compile(r"^(\w+)\s*:\s*(\S+)\s*$", re.M)


def timer_meta(text: str) -> JobDescription | None:
    """``meta-*.yaml`` beside pipeline timers: dp_size, dsp_size, pp_size, tp_size, vpp_size."""
    fields = {m[1]: m[2] for m in _META.finditer(text)}
    if not {"dp_size", "pp_size", "tp_size"} <= set(fields):
        return None
    dp, dsp = whole(fields["dp_size"]), whole(fields.get("dsp_size")) or 1
    return described(
        {
            "parallelism": {
                "dp": whole(dp * dsp) if dp else None,
                "pp": whole(fields["pp_size"]),
                "tp": whole(fields["tp_size"]),
                "vpp": whole(fields.get("vpp_size")),
            }
        },
        name=fields.get("trial_name"),
        world_size=whole(fields.get("world_size")),
    )
