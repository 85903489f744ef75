"""Training arguments: a command line, or the dump of all arguments that Megatron logs.

torchrun pretrain_gpt.py --tensor-model-parallel-size 8 --num-layers 96 ...
  tensor_model_parallel_size ...................... 8
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from tracekit.job import JobDescription
from tracekit.jobs_import.values import described, switch, whole

_DUMPED = re.compile(
    r"^[ \t]*+(?:\[[^\]\n]*+\][ \t]*+)?(?:\d++:[ \t]*+)?([a-z][a-z0-9_]*+) \.{3,} ?(.*)$", re.M
)
_FIELDS: Mapping[str, tuple[str, str]] = {
    "tensor_model_parallel_size": ("parallelism", "tp"),
    "pipeline_model_parallel_size": ("parallelism", "pp"),
    "context_parallel_size": ("parallelism", "cp"),
    "expert_model_parallel_size": ("parallelism", "ep"),
    "data_parallel_size": ("parallelism", "dp"),
    "virtual_pipeline_model_parallel_size": ("parallelism", "vpp"),
    "num_layers": ("model", "layers"),
    "hidden_size": ("model", "hidden"),
    "num_attention_heads": ("model", "heads"),
    "num_query_groups": ("model", "kv_heads"),
    "ffn_hidden_size": ("model", "ffn"),
    "seq_length": ("model", "sequence"),
    "model_max_length": ("model", "sequence"),
    "max_seq_length": ("model", "sequence"),
    "vocab_size": ("model", "vocabulary"),
    "padded_vocab_size": ("model", "vocabulary"),
    "num_experts": ("model", "experts"),
    "moe_router_topk": ("model", "top_k"),
    "micro_batch_size": ("batch", "micro"),
    "per_device_train_batch_size": ("batch", "micro"),
    "global_batch_size": ("batch", "global"),
    "gradient_accumulation_steps": ("schedule", "microbatches"),
}
_TELLING = frozenset(_FIELDS) - {"vocab_size", "hidden_size", "data_parallel_size"}
"""One of these must be there: any program has a --hidden-size."""


def read_arguments(text: str) -> JobDescription | None:
    """A description from a command line or a dump; None where the text holds neither."""
    if text.lstrip()[:1] in "{[<":
        return None
    arguments = dumped(text) or flags(text)
    return from_arguments(arguments) if arguments and _TELLING & set(arguments) else None


def dumped(text: str) -> dict[str, str]:
    """The arguments of Megatron's dump; empty where there is none."""
    return {m[1]: m[2].strip() for m in _DUMPED.finditer(text)}


def flags(text: str) -> dict[str, Any]:
    """``--key value``, ``--key=value`` and bare ``--key`` of a command line or script."""
    joined = re.sub(r"\\\s*\n", " ", text)
    try:
        words = shlex.split(joined, comments=True)
    except ValueError:
        words = joined.split()
    arguments: dict[str, Any] = {}
    for index, word in enumerate(words):
        if not word.startswith("--") or len(word) < 3:
            continue
        key, equals, value = word[2:].partition("=")
        following = words[index + 1] if index + 1 < len(words) else "--"
        is_bare = not equals and (following.startswith("-") and not _is_number(following))
        arguments[key.replace("-", "_")] = value if equals else True if is_bare else following
    return arguments


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", text) is not None


def from_arguments(arguments: Mapping[str, Any]) -> JobDescription:
    """A description from arguments by their long names, underscored."""
    sections: dict[str, dict[str, Any]] = {
        s: {} for s in ("parallelism", "schedule", "model", "batch")
    }
    for name, (section, key) in _FIELDS.items():
        value = whole(arguments.get(name))
        if value is not None:
            sections[section][key] = value
    notes: list[str] = []
    parallelism, model = sections["parallelism"], sections["model"]
    _virtual_stages(arguments, parallelism, model, notes)
    if parallelism.get("pp", 1) > 1 and "tensor_model_parallel_size" in arguments:
        looped = parallelism.get("vpp", 1) > 1
        sections["schedule"]["kind"] = "interleaved-1f1b" if looped else "1f1b"
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if switch(arguments.get(name)):
            model["dtype"] = dtype
    if switch(arguments.get("use_distributed_optimizer")):
        parallelism["zero_stage"] = 1
    sharding = str(arguments.get("fsdp", ""))
    if "full_shard" in sharding or switch(arguments.get("use_torch_fsdp2")):
        parallelism["zero_stage"] = 3
    if switch(arguments.get("sequence_parallel")):
        notes.append("sequence parallel: all-gathers and reduce-scatters instead of all-reduces")
    recompute = str(arguments.get("recompute_granularity") or "").lower()
    if recompute in ("full", "selective"):
        sections["schedule"]["recompute"] = recompute
        notes.append(f"activations are recomputed ({recompute}): count HFU, not MFU")
    elif switch(arguments.get("gradient_checkpointing")):
        sections["schedule"]["recompute"] = "full"
    is_megatron = "tensor_model_parallel_size" in arguments or "num_layers" in arguments
    return described(
        sections,
        tuple(notes),
        world_size=whole(arguments.get("world_size")),
        framework="megatron" if is_megatron else None,
    )


def _virtual_stages(
    arguments: Mapping[str, Any],
    parallelism: dict[str, Any],
    model: dict[str, Any],
    notes: list[str],
) -> None:
    chunk = whole(arguments.get("num_layers_per_virtual_pipeline_stage"))
    layers, pp = model.get("layers"), parallelism.get("pp")
    if chunk is None or layers is None or pp is None or "vpp" in parallelism:
        return
    if layers % (pp * chunk):
        notes.append(f"{layers} layers do not divide into {pp} stages of {chunk} layers a chunk")
        return
    parallelism["vpp"] = layers // (pp * chunk)
