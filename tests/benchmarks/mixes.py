"""Traces of several mixes of events; but for the first, no other benchmark has them.

Each is made of a real trace that nobody here recorded, as it is or with what the mix is named for
put in, and is repeated to any size by make_traces.py with ids of its own in every repetition.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Change = Callable[[list[Event]], Iterator[Event]]


@dataclass(frozen=True)
class Mix:
    """Which events a trace holds, and how often."""

    name: str
    title: str
    source: str
    """Path below the shared Kineto samples."""
    change: Change | None = None
    """What is done to its events; None where their text stays as the profiler wrote it."""


def _as_they_are(events: list[Event]) -> Iterator[Event]:
    yield from events


def _on_device(events: list[Event]) -> Iterator[Event]:
    """Kernels, copies, their launches and arrows, and steps: hardly any operators."""
    kept = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "ac2g"}
    yield from (
        e
        for e in events
        if e.get("cat") in kept or e["ph"] == "M" or str(e["name"]).startswith("ProfilerStep#")
    )


def _with_graphs(events: list[Event]) -> Iterator[Event]:
    """Many kernels of one launch, as a graph has them, and no stacks."""
    node = 0
    for event in events:
        if event.get("cat") == "python_function":
            continue
        if event.get("cat") == "kernel":
            node += 1
            event["args"] |= {"graph id": 7, "graph node id": node}
        yield event


def _with_long_names(events: list[Event]) -> Iterator[Event]:
    """Names of kernels as templates of 400 to 1,200 characters."""
    tile = "cutlass::gemm::GemmShape<128, 128, 32>, cutlass::layout::RowMajor, "
    for event in events:
        if event.get("cat") == "kernel" and "nccl" not in event["name"]:
            count = 5 + sum(event["name"].encode()) % 11
            event["name"] = f"void cutlass::Kernel2<{tile * count}{event['name']}>(Params)"
        yield event


def _with_memory_and_collectives(events: list[Event]) -> Iterator[Event]:
    """A memory instant for every third operator, and every third kernel a collective."""
    launches = {
        e["args"]["correlation"]: e for e in events if str(e.get("cat", "")).startswith("cuda_")
    }
    last_id = max(e["args"].get("External id", 0) for e in events if "args" in e)
    operators = kernels = 0
    for event in events:
        category = event.get("cat")
        if category == "cpu_op":
            operators += 1
            if operators % 3 == 0:
                sign = 1 if operators % 2 else -1
                held = 1_000_000 + operators % 1000 * 512
                yield {
                    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",
                    "pid": event["pid"], "tid": event["tid"], "ts": event["ts"],
                    "args": {
                        "Total Reserved": 8 * held, "Total Allocated": held,
                        "Bytes": sign * 512 * (operators % 100), "Addr": 2**46 + 512 * operators,
                        "Device Id": 0, "Device Type": 1, "Ev Idx": operators,
                    },
                }  # fmt: skip
        elif category == "kernel":
            kernels += 1
            launch = launches.get(event["args"].get("correlation"))
            if kernels % 3 == 0 and launch is not None:
                last_id += 1
                yield _call(launch, last_id, kernels)
                event["name"] = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)"
                event["args"] |= {"External id": last_id, **_arguments(kernels)}
        yield event


def _call(launch: Event, external_id: int, number: int) -> Event:
    return {
        "ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": launch["pid"],
        "tid": launch["tid"], "ts": launch["ts"] - 5, "dur": launch["dur"] + 10,
        "args": {"External id": external_id, **_arguments(number), "Seq": number},
    }  # fmt: skip


def _arguments(number: int) -> Event:
    return {
        "Collective name": "allreduce", "In msg nelems": 4096 * (1 + number % 5),
        "Out msg nelems": 4096 * (1 + number % 5), "Group size": 8, "dtype": "BFloat16",
        "In split size": "[]", "Out split size": "[]", "Process Group Name": str(number % 4),
        "Process Group Description": "undefined",
        "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
    }  # fmt: skip


_NCCL = "hta/nccl_parser_config_nccl_data.json.gz"
_OPERATORS = "hta/distributed_info_unavailable_distributed_info_not_found.json.gz"

MIXES = (
    Mix("mixed", "kernels and operators", _NCCL),
    Mix(
        "epoch",
        "epoch microseconds, memory instants, many collectives",
        "megatron-tp8/megatron_kineto_0.json.gz",
        _with_memory_and_collectives,
    ),
    Mix("operators", "operators only", _OPERATORS),
    Mix(
        "stacks",
        "Python stacks and memory instants",
        "tracelens/h100_gaunernst_bert-small-uncased__1016001.json.gz",
        _as_they_are,  # its text is indented four deep, as no profiler writes it
    ),
    Mix(
        "graphs",
        "graphs of kernels",
        "tracelens/inference_vllm_decode_full_graph_execution.json.gz",
        _with_graphs,
    ),
    Mix("device", "kernels and launches", _NCCL, _on_device),
    Mix("names", "names of 400 to 1,200 characters", _NCCL, _with_long_names),
    Mix("rocm", "ROCm, with stacks", "tracelens/mi300_ddp_resnet18_no_pool_train_resnet18.json.gz"),
)


def write_source(mix: Mix, samples: Path, out: Path) -> None:
    """The small trace that make_traces.py repeats; it says that it is rank 0."""
    raw = gzip.decompress((samples / mix.source).read_bytes())
    if mix.change is None and b'"distributedInfo"' in raw:
        out.write_bytes(gzip.compress(raw, 1))
        return
    if mix.change is None:
        raw = raw.replace(b"{", b'{ "distributedInfo": {"rank": 0, "world_size": 1},', 1)
        out.write_bytes(gzip.compress(raw, 1))
        return
    trace = json.loads(raw)
    head = {k: v for k, v in trace.items() if k != "traceEvents"}
    head.setdefault("distributedInfo", {"rank": 0, "world_size": 1})
    events = [e for e in trace["traceEvents"] if "ph" in e]
    # The events keep a line each, and what else there is stands before them.
    text = json.dumps(head)[:-1] + ', "traceEvents": [\n'
    text += ",\n".join(map(json.dumps, mix.change(events))) + "\n]}\n"
    out.write_bytes(gzip.compress(text.encode(), 1))
