"""What a job description may say, as types."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from tracekit.range_kind import RangeKind
from tracekit.values import MAX_RANKS

Index = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Large = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Positive = Annotated[float, Meta(gt=0)]
Text = Annotated[str, Meta(min_length=1, max_length=1024)]
Axis = Literal["tp", "pp", "dp", "ep", "cp"]
ScheduleKind = Literal[
    "gpipe",
    "1f1b",
    "interleaved-1f1b",
    "looped-bfs",
    "zb-h1",
    "zb-2p",
    "interleaved-zero-bubble",
    "zbv",
    "dualpipe",
    "dualpipev",
]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all parts: immutable, every field by name."""


class Parallelism(Section, frozen=True, kw_only=True):
    """Sizes of the parallel dimensions; their product (ep apart) is the world size."""

    tp: Count | None = None
    """Tensor parallel."""
    pp: Count | None = None
    """Pipeline parallel."""
    dp: Count | None = None
    """Data parallel (all of it: replicate times shard)."""
    dp_replicate: Count | None = None
    """Replicas of the shards (HSDP); divides dp."""
    ep: Count | None = None
    """Expert parallel."""
    cp: Count | None = None
    """Context parallel."""
    vpp: Count | None = None
    """Virtual pipeline stages (model chunks) a rank."""
    zero_stage: Annotated[int, Meta(ge=0, le=3)] | None = None
    """ZeRO stage; FSDP that reshards is 3."""
    order: tuple[Axis, ...] | None = None
    """Dimensions from the one whose ranks are neighbours to the one farthest apart."""


class Schedule(Section, frozen=True, kw_only=True):
    """How the pipeline runs."""

    kind: ScheduleKind | None = None
    microbatches: Count | None = None
    """Microbatches a step and replica."""
    recompute: Literal["none", "selective", "full"] | None = None
    """Activations that the backward computes again: of attention, or of whole layers."""


class Model(Section, frozen=True, kw_only=True):
    """The model's shape."""

    layers: Count | None = None
    hidden: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    ffn: Count | None = None
    """Width of the feed-forward layer."""
    vocabulary: Count | None = None
    sequence: Count | None = None
    """Tokens a sample."""
    parameters: Large | None = None
    experts: Count | None = None
    """Routed experts a layer."""
    top_k: Count | None = None
    """Experts a token."""
    dtype: Text | None = None


class Batch(Section, frozen=True, kw_only=True):
    """Samples a step."""

    global_: Count | None = msgspec.field(default=None, name="global")
    """Samples a step over all replicas."""
    micro: Count | None = None
    """Samples a microbatch."""


class Hardware(Section, frozen=True, kw_only=True):
    """What the job runs on."""

    gpu: Text | None = None
    gpus_per_node: Count | None = None
    nics_per_node: Count | None = None
    nic_bytes_per_s: Positive | None = None
    """One NIC, one direction."""
    nvlink_domain: Count | None = None
    """GPUs that reach each other over NVLink."""
    nvlink_bytes_per_s: Positive | None = None
    """One GPU, one direction."""
    peak_flops_per_s: Positive | None = None
    """One GPU, dense, in the model's dtype."""
    gpu_memory_bytes: Large | None = None
    sharp: bool | None = None
    """Whether switches reduce."""
    rails: Count | None = None
    oversubscription: Annotated[float, Meta(ge=1)] | None = None
    """Downlink over uplink bandwidth of a leaf switch."""
    leaf_gpus: Count | None = None
    """GPUs below one leaf switch (or scalable unit): among them nothing is over-subscribed."""
    spine_oversubscription: Annotated[float, Meta(ge=1)] | None = None
    """The same of the level above the leaves."""
    spine_gpus: Count | None = None
    """GPUs below one switch of that level: among them its over-subscription costs nothing."""


class Prices(Section, frozen=True, kw_only=True):
    """What time costs."""

    gpu_hour: Positive | None = None
    kilowatt_hour: Positive | None = None
    currency: Text | None = None


class Clocks(Section, frozen=True, kw_only=True):
    """What is known of the clocks."""

    shared: bool | None = None
    """Whether one machine's clock wrote all files."""


class RankEntry(Section, frozen=True, kw_only=True):
    """A rank: where it ran."""

    rank: Index
    host: Text | None = None
    device: Text | None = None
    """UUID or PCI address of its GPU."""
    path: Text | None = None
    """Its file or files (glob)."""
    base: str = ""
    """Folder of the job.toml that says so; not a key of the file."""


class HostEntry(Section, frozen=True, kw_only=True):
    """A host: what it shares with its neighbours."""

    host: Text
    rack: Text | None = None
    leaf: Text | None = None
    """Switch that all its NICs lead to; where they lead to several, say it by port."""


class PortEntry(Section, frozen=True, kw_only=True):
    """Where a switch port or NIC leads."""

    node: Text
    """Switch (or host) that has the port."""
    port: Text
    host: Text | None = None
    rank: Index | None = None
    nic: Text | None = None
    """The host's NIC on the other side."""


class RangeEntry(Section, frozen=True, kw_only=True):
    """What ranges of a name are for, beside the names that tracekit knows."""

    name: Text
    """A word or words of the name, in any case: ``prepare shards``."""
    kind: RangeKind | None = None


class SourceEntry(Section, frozen=True, kw_only=True):
    """What a file does not say about itself."""

    path: Text
    """The file or files (glob)."""
    host: Text | None = None
    timezone: Text | None = None
    """IANA name or offset such as +02:00 of its times."""
    start: datetime | None = None
    """Time of its first record."""
    interval: Positive | None = None
    """Seconds between its records."""
    rank: Index | None = None
    attempt: Count | None = None
    columns: Annotated[dict[Text, Text], Meta(min_length=1, max_length=1000)] | None = None
    """What the columns of a table of counters are: time, gpu (NVML index), uuid, pci, host, pod,
    model, port, priority, queue, lane, metric, value or a counter's name, and the header, with its
    unit in brackets where the header does not state it. In a table with a number a row, a counter's
    name in its metric column. Of devices with numbers the keys are as their headers would be:
    gpu0_power_w, ib3_tx_bytes_s.
    """
    step_pattern: Text | None = None
    """Of a training log: how a line that reports a step reads, as a regular expression with named
    groups (docs/history.md): step, and dur_s or dur_ms, time, total, loss, tokens ...
    """
    base: str = ""
    """Folder of the job.toml that says so; not a key of the file."""


class JobDescription(Section, frozen=True, kw_only=True):
    """One job as described by the user, by the traces, or by both."""

    name: Text | None = None
    id: Text | None = None
    """The scheduler's id."""
    world_size: Annotated[int, Meta(ge=1, le=MAX_RANKS)] | None = None
    backend: Text | None = None
    """Collective backend: nccl, gloo, ..."""
    framework: Text | None = None
    parallelism: Parallelism = Parallelism()
    schedule: Schedule = Schedule()
    model: Model = Model()
    batch: Batch = Batch()
    hardware: Hardware = Hardware()
    prices: Prices = Prices()
    clocks: Clocks = Clocks()
    rank: tuple[RankEntry, ...] = ()
    host: tuple[HostEntry, ...] = ()
    port: tuple[PortEntry, ...] = ()
    range: tuple[RangeEntry, ...] = ()
    source: tuple[SourceEntry, ...] = ()
    files: tuple[str, ...] = ()
    """The files that it was read from; not a key of the file."""
    notes: tuple[str, ...] = ()
    """Contradictions found while merging, in words; not a key of the file."""

    def digest(self) -> str:
        """Hash (hex) of what it says, for run keys.

        Equal for equal content: order of entries, comments and where the file lies do not count.
        """
        content = plain(self)
        for name in ENTRIES:
            if name in content:
                content[name] = sorted(content[name], key=lambda e: json.dumps(e, sort_keys=True))
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


_INTERNAL = frozenset({"base", "files", "notes"})
"""Fields that are no keys of the file."""
SECTIONS: dict[str, type[Section]] = {
    "parallelism": Parallelism,
    "schedule": Schedule,
    "model": Model,
    "batch": Batch,
    "hardware": Hardware,
    "prices": Prices,
    "clocks": Clocks,
}
ENTRIES: dict[str, type[Section]] = {
    "rank": RankEntry,
    "host": HostEntry,
    "port": PortEntry,
    "range": RangeEntry,
    "source": SourceEntry,
}
SectionT = TypeVar("SectionT", bound=Section)


@cache
def keys_of(kind: type[msgspec.Struct]) -> Mapping[str, str]:
    """Key in the file -> name of the field."""
    return {
        f.encode_name: f.name
        for f in msgspec.structs.fields(kind)
        if f.encode_name not in _INTERNAL
    }


def plain(value: Any) -> Any:
    """The content as plain data: without what is unset, empty or internal."""
    if isinstance(value, msgspec.Struct):
        items = ((key, plain(getattr(value, name))) for key, name in keys_of(type(value)).items())
        return {k: v for k, v in items if v is not None and v != {} and v != []}
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value
