"""What an event looks like to the JSON decoder.

An event is decoded straight into a struct that its ``cat`` chooses (a tagged union), which skips
what no table needs at the decoder's own speed: about twice as fast as decoding a general event
first and its ``args`` later. Whatever does not fit (no ``cat``, an unknown one, an unusual type)
makes the decoder refuse the batch; ``salvage`` then takes it apart event by event.

Two families differ only in how they hold times: as numbers, or as the text of the file where
a double could not carry the nanoseconds.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct, field


class Kind(Enum):
    """What becomes of a category's events."""

    OPERATOR = "operator"
    CALL = "call"
    GPU = "gpu"
    SYNC = "sync"
    ANNOTATION = "annotation"
    TWIN = "twin"
    FRAME = "frame"
    INSTANT = "instant"
    SPAN = "span"
    SKIP = "skip"


CATEGORIES: dict[str, tuple[Kind, str]] = {
    "cpu_op": (Kind.OPERATOR, "operator"),
    "Operator": (Kind.OPERATOR, "operator"),
    "overhead": (Kind.CALL, "overhead"),
    "cuda_runtime": (Kind.CALL, "runtime"),
    "Runtime": (Kind.CALL, "runtime"),
    "mtia_runtime": (Kind.CALL, "runtime"),
    "glow_runtime": (Kind.CALL, "runtime"),
    "xpu_runtime": (Kind.CALL, "runtime"),
    "hpu_op": (Kind.CALL, "runtime"),
    "privateuse1_runtime": (Kind.CALL, "runtime"),
    "cuda_driver": (Kind.CALL, "driver"),
    "xpu_driver": (Kind.CALL, "driver"),
    "privateuse1_driver": (Kind.CALL, "driver"),
    "kernel": (Kind.GPU, "kernel"),
    "Kernel": (Kind.GPU, "kernel"),
    "mtia_ccp_events": (Kind.GPU, "kernel"),
    "gpu_memcpy": (Kind.GPU, "memcpy"),
    "Memcpy": (Kind.GPU, "memcpy"),
    "gpu_memset": (Kind.GPU, "memset"),
    "Memset": (Kind.GPU, "memset"),
    "cuda_sync": (Kind.SYNC, "sync"),
    "xpu_sync": (Kind.SYNC, "sync"),
    "user_annotation": (Kind.ANNOTATION, ""),
    "gpu_user_annotation": (Kind.TWIN, ""),
    "python_function": (Kind.FRAME, ""),
    "cpu_instant_event": (Kind.INSTANT, ""),
    "Trace": (Kind.SPAN, ""),
    # Flow arrows: args.correlation and External id carry the same links more reliably.
    "ac2g": (Kind.SKIP, "flow"),
    "fwdbwd": (Kind.SKIP, "flow"),
    "async": (Kind.SKIP, "flow"),
    "async_cpu_to_gpu": (Kind.SKIP, "flow"),
    "async_gpu": (Kind.SKIP, "flow"),
}
"""Category of the producer -> what it becomes, and the registry's word for it."""

STREAM_SYNC_TID = 1_000_000
"""Stream-sync rows have this added to their stream since 2026."""

FREQUENT = frozenset({Kind.OPERATOR, Kind.CALL, Kind.GPU})
"""Kinds of which a trace has hundreds of thousands; their rows are made of many batches at once."""

NO_RAW = Raw()
"""A value that is not there (a union of Raw with None would accept only null)."""


class CommArgs(Struct, gc=False):
    """Metadata of a collective: on ``record_param_comms`` and copied to the linked kernel."""

    collective: str | None = field(default=None, name="Collective name")
    dtype: str | None = None
    in_elements: int | None = field(default=None, name="In msg nelems")
    out_elements: int | None = field(default=None, name="Out msg nelems")
    group_size: int | None = field(default=None, name="Group size")
    in_split: str | list[int] | None = field(default=None, name="In split size")
    out_split: str | list[int] | None = field(default=None, name="Out split size")
    group_name: str | int | None = field(default=None, name="Process Group Name")
    group_id: str | int | None = field(default=None, name="Process Group ID")
    group_description: str | None = field(default=None, name="Process Group Description")
    group_ranks: str | list[int] | None = field(default=None, name="Process Group Ranks")
    global_start: int | None = field(default=None, name="Global rank start")
    global_stride: int | None = field(default=None, name="Global rank stride")
    rank: int | None = field(default=None, name="Rank")
    src_rank: int | None = field(default=None, name="Src Rank")
    dst_rank: int | None = field(default=None, name="Dst Rank")
    seq: int | None = field(default=None, name="Seq")
    comms_id: str | int | None = field(default=None, name="Comms Id")
    is_async: bool | int | str | None = field(default=None, name="Is asynchronized op")


class OperatorArgs(CommArgs, gc=False):
    """Arguments of a framework operator."""

    external_id: int | None = field(default=None, name="External id")
    sequence: int | None = field(default=None, name="Sequence number")
    forward_thread: int | None = field(default=None, name="Fwd thread id")
    dims: Raw = field(default=NO_RAW, name="Input Dims")
    types: Raw = field(default=NO_RAW, name="Input type")
    dims_2021: Raw = field(default=NO_RAW, name="Input dims")
    inputs: Raw = field(default=NO_RAW, name="Concrete Inputs")


class CallArgs(Struct, gc=False):
    """Arguments of a runtime or driver call."""

    external_id: int | None = field(default=None, name="External id")
    correlation: int | None = None
    external_id_2021: int | None = field(default=None, name="external id")


class GpuArgs(CommArgs, gc=False):
    """Arguments of a kernel, copy or set."""

    external_id: int | None = field(default=None, name="External id")
    device: int | None = None
    context: int | None = None
    stream: int | None = None
    correlation: int | None = None
    registers: int | None = field(default=None, name="registers per thread")
    shared_memory: int | None = field(default=None, name="shared memory")
    grid: list[int] | None = None
    block: list[int] | None = None
    bytes: int | None = None
    kind: str | None = None
    graph_id: int | None = field(default=None, name="graph id")
    graph_node_id: int | None = field(default=None, name="graph node id")
    external_id_2021: int | None = field(default=None, name="external id")


class SyncArgs(Struct, gc=False):
    """Arguments of a synchronisation row."""

    kind: str | None = field(default=None, name="cuda_sync_kind")
    device: int | None = None
    context: int | None = None
    stream: int | None = None
    correlation: int | None = None
    wait_on_stream: int | None = None
    wait_on_event: int | None = field(default=None, name="wait_on_cuda_event_id")
    recording: int | None = field(default=None, name="wait_on_cuda_event_record_corr_id")


class AnnotationArgs(Struct, gc=False):
    """Arguments of a user's, framework's or profiler's range."""

    external_id: int | None = field(default=None, name="External id")
    dims: Raw = field(default=NO_RAW, name="Input Dims")
    types: Raw = field(default=NO_RAW, name="Input type")


class FrameArgs(Struct, gc=False):
    """Arguments of a Python frame."""

    frame_id: int | None = field(default=None, name="Python id")
    parent_id: int | None = field(default=None, name="Python parent id")
    module_id: int | None = field(default=None, name="Python module id")


class InstantArgs(Struct, gc=False):
    """Arguments of a ``[memory]`` instant."""

    change: int | None = field(default=None, name="Bytes")
    address: int | None = field(default=None, name="Addr")
    allocated: int | None = field(default=None, name="Total Allocated")
    reserved: int | None = field(default=None, name="Total Reserved")
    device: int | None = field(default=None, name="Device Id")
    device_type: int | None = field(default=None, name="Device Type")
    external_id: int | None = field(default=None, name="External id")


class NoArgs(Struct, gc=False):
    """Arguments that no table needs."""


ARGS: dict[Kind, type[Struct]] = {
    Kind.OPERATOR: OperatorArgs,
    Kind.CALL: CallArgs,
    Kind.GPU: GpuArgs,
    Kind.SYNC: SyncArgs,
    Kind.ANNOTATION: AnnotationArgs,
    Kind.TWIN: AnnotationArgs,
    Kind.FRAME: NoArgs,
    Kind.INSTANT: InstantArgs,
    Kind.SPAN: NoArgs,
}

Event = Any
"""A struct of one of the two families: name, pid, tid, ts, dur, args (mypy cannot see them)."""

_Id = int | str


class Family:
    """The structs of all categories with one way of holding times."""

    def __init__(self, *, is_text: bool, stacks: bool) -> None:
        time: Any = Raw if is_text else int | float
        self.is_text = is_text
        self.categories = tuple(CATEGORIES)
        self.code: dict[type, int] = {}
        """Of the struct of each of ``categories``."""
        self.struct: dict[str, type] = {}
        for code, (category, (kind, _)) in enumerate(CATEGORIES.items()):
            self.struct[category] = made = _struct(category, kind, time, stacks)
            self.code[made] = code
        union: Any = None
        for made in self.struct.values():
            union = made if union is None else union | made
        self.decoder: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[union])


def _struct(category: str, kind: Kind, time: Any, stacks: bool) -> type:
    fields: list[Any] = []
    if kind is not Kind.SKIP:
        args: Any = FrameArgs if kind is Kind.FRAME and stacks else ARGS[kind]
        phase: Any = Literal["i"] if kind is Kind.INSTANT else Literal["X"]
        fields = [("ph", phase), ("name", str), ("pid", _Id), ("tid", _Id), ("ts", time)]
        fields.append(("dur", Raw, NO_RAW) if time is Raw else ("dur", time | None, None))
        if not (kind is Kind.FRAME and not stacks):
            fields.append(("args", args | None, None))
    name = f"E_{category}_{'text' if time is Raw else 'number'}"
    return msgspec.defstruct(name, fields, tag_field="cat", tag=category, gc=False)


@lru_cache(maxsize=4)
def family(*, is_text: bool, stacks: bool) -> Family:
    """The structs; built once a process."""
    return Family(is_text=is_text, stacks=stacks)
