"""What is known of a collective: from a kernel's arguments, its operator, its range or its name.

``message_bytes`` is the total size S as nccl-tests defines it: what one rank puts in for
all-reduce, broadcast, reduce and all-to-all; what one rank gets for all-gather; what one rank
puts in for reduce-scatter; what is sent for point-to-point.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tracekit.ingest.kineto.model import CommArgs
from tracekit.ingest.traces import names
from tracekit.values import MAX_RANKS

DTYPE_BYTES = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2,
    "bfloat16": 2, "c10::half": 2, "c10::bfloat16": 2, "long": 8, "long int": 8, "int64": 8,
    "int": 4, "int32": 4, "short": 2, "short int": 2, "int16": 2, "char": 1, "int8": 1,
    "signed char": 1, "byte": 1, "uint8": 1, "unsigned char": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1, "complexfloat": 8, "complexdouble": 16,
    "uint16": 2, "uint32": 4, "uint64": 8, "unsigned int": 4, "unsigned long": 8,
}  # fmt: skip
"""Bytes of an element, by the producer's lower-case name."""

_FROM_INPUT = {
    "all_reduce",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "all_to_all",
    "send",
    "scatter",
}
_FROM_OUTPUT = {"all_gather", "recv", "gather"}
_ROOTED = {"broadcast", "reduce", "gather", "scatter"}
PSEUDO = {"wait"}
"""Names in metadata that are no communication."""

_NO_RANK = 2**31 - 1


class Meta(NamedTuple):
    """What one collective is, as far as its metadata says; None where they do not."""

    op: str
    dtype: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    in_bytes: int | None = None
    out_bytes: int | None = None
    message_bytes: int | None = None
    in_split: tuple[int, ...] | None = None
    out_split: tuple[int, ...] | None = None
    group_name: str | None = None
    group_description: str | None = None
    group_size: int | None = None
    ranks: tuple[int, ...] | None = None
    is_ranks_complete: bool = False
    root: int | None = None
    src_rank: int | None = None
    dst_rank: int | None = None
    peer_group_rank: int | None = None
    comms_id: str | None = None
    is_async: bool | None = None


_NUMBERS = re.compile(r"-?\d+")
_MAX_DIGITS = 18
"""Of a number in a list: longer ones are damage, and none of them is a rank or a size."""


def int_list(value: str | Sequence[int] | None) -> tuple[int, ...] | None:
    """A list of numbers as the producer writes it: a list or the text of one.

    None if it is neither, or holds a number that cannot be meant.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        return tuple(value)
    if not value.strip().startswith("["):
        return None
    numbers = _NUMBERS.findall(value)
    if max(map(len, numbers), default=0) > _MAX_DIGITS:
        return None
    return tuple(map(int, numbers))


def rank_list(value: str | Sequence[int] | None) -> tuple[int, ...] | None:
    """Global ranks as the producer lists them; None where one cannot be a rank."""
    listed = int_list(value)
    if not listed:
        return listed
    # Each rank of a job names all of them: that is their square, so the loop is not Python's.
    return listed if min(listed) >= 0 and max(listed) < MAX_RANKS else None


def group_ranks(
    ranks: str | Sequence[int] | None,
    size: int | None,
    start: int | None = None,
    stride: int | None = None,
) -> tuple[tuple[int, ...] | None, bool]:
    """Global ranks of a group, and whether they are all there.

    Producers cut the list after 30 (``[0, 1, ..., 29]``); start and stride rebuild it.
    """
    listed = rank_list(ranks) or ()
    is_cut = isinstance(ranks, str) and "..." in ranks
    if listed and not is_cut and (size is None or size == len(listed)):
        return listed, True
    if not size or size < 2 or size > MAX_RANKS or start is None or stride is None:
        return (listed or None), False
    if start >= 0 and stride > 0 and start + (size - 1) * stride < MAX_RANKS:
        built = tuple(range(start, start + size * stride, stride))
        if set(listed) <= set(built):
            return built, True
    return (listed or None), False


def key_of_args(args: CommArgs) -> tuple[Any, ...]:
    """All that makes the metadata of two calls differ, but for the sequence number."""
    return (
        args.collective, args.dtype, args.in_elements, args.out_elements, args.group_size,
        _hashable(args.in_split), _hashable(args.out_split), args.group_name, args.group_id,
        args.group_description, _hashable(args.group_ranks), args.global_start,
        args.global_stride, args.rank, args.src_rank, args.dst_rank, args.comms_id, args.is_async,
    )  # fmt: skip


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def meta_of_args(args: CommArgs, name_op: str | None = None) -> Meta:
    """What the arguments of an operator or kernel say."""
    op = names.collective_name(args.collective or "")
    if op == "unknown" and name_op:
        op = name_op
    width = DTYPE_BYTES.get((args.dtype or "").lower())
    in_bytes = _times(args.in_elements, width)
    out_bytes = _times(args.out_elements, width)
    size = args.group_size if args.group_size and args.group_size > 0 else None
    ranks, complete = group_ranks(args.group_ranks, size, args.global_start, args.global_stride)
    name = args.group_name if args.group_name is not None else args.group_id
    return Meta(
        op,
        _label(args.dtype),
        args.in_elements,
        args.out_elements,
        in_bytes,
        out_bytes,
        message_bytes(op, in_bytes, out_bytes),
        int_list(args.in_split) or None,
        int_list(args.out_split) or None,
        _label(name),
        _label(args.group_description),
        size,
        ranks,
        complete,
        _rank(args.rank) if op in _ROOTED else None,
        _rank(args.src_rank),
        _rank(args.dst_rank),
        comms_id=_label(args.comms_id),
        is_async=_flag(args.is_async),
    )


MESSAGES = {"c10d::send": "send", "c10d::recv_": "recv"}
"""Operators that hand a message to a library of the host, and what it does."""

PARAMS = "record_param_comms"
CALLS = frozenset((PARAMS, *MESSAGES))
"""Operators whose arguments say what is communicated."""


def meta_of_message(name: str, inputs: bytes) -> Meta | None:
    """With whom such an operator exchanges a message: the third of its ``Concrete Inputs``
    (tensors, group, rank within the group, tag), where they were recorded."""
    try:
        given = json.loads(inputs) if inputs else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, list) or len(given) != 4:
        return None
    peer = given[2]
    is_number = isinstance(peer, str) and peer.isascii() and peer.isdecimal()
    if not is_number or len(peer) > _MAX_DIGITS or int(peer) >= MAX_RANKS:
        return None
    return Meta(MESSAGES[name], peer_group_rank=int(peer))


def meta_of_range(name: str, dims: bytes, types: bytes) -> Meta | None:
    """What a range such as ``nccl:all_reduce`` says, with its input shapes where recorded."""
    operation = names.collective_range(name)
    if operation is None:
        return None
    op = operation[1]
    elements, width, dtype = _input_size(dims, types)
    in_bytes = _times(elements, width)
    if op in ("recv", "gather", "all_gather"):
        # The inputs of these ranges are not what S counts.
        total = in_bytes if op == "recv" else None
    else:
        total = message_bytes(op, in_bytes, None)
    return Meta(op, dtype, elements, None, in_bytes, None, total)


def _input_size(dims: bytes, types: bytes) -> tuple[int | None, int | None, str | None]:
    """Elements of all input tensors, and their width and type where they agree."""
    if not dims or not types:
        return None, None, None
    try:
        shapes, kinds = json.loads(dims), json.loads(types)
    except (ValueError, RecursionError):
        return None, None, None
    if not isinstance(shapes, list) or not isinstance(kinds, list) or len(shapes) != len(kinds):
        return None, None, None
    total = 0
    dtypes: set[str] = set()
    for shape, kind in zip(shapes, kinds, strict=True):
        if not isinstance(kind, str) or not kind:
            return None, None, None
        is_scalar = shape == [] and kind.lower() in DTYPE_BYTES
        counts = 1 if is_scalar else _elements(shape)
        if counts is None:
            return None, None, None
        total += counts
        dtypes.add(kind)
    if len(dtypes) != 1:
        return None, None, None
    kind = dtypes.pop()
    return total, DTYPE_BYTES.get(kind.lower()), kind


def _elements(shape: object) -> int | None:
    if not isinstance(shape, list) or not shape:
        return None
    if all(isinstance(s, list) for s in shape):
        parts = [_elements(s) for s in shape]
        return None if None in parts else sum(p for p in parts if p is not None)
    count = 1
    for extent in shape:
        if not isinstance(extent, int) or extent < 0:
            return None
        count *= extent
    return count if count < 2**62 else None


def message_bytes(op: str, in_bytes: int | None, out_bytes: int | None) -> int | None:
    """Total size S of nccl-tests; None where it cannot be known."""
    if op in _FROM_INPUT:
        return in_bytes
    if op in _FROM_OUTPUT:
        return out_bytes
    return None


def _times(count: int | None, width: int | None) -> int | None:
    if count is None or width is None or count < 0 or count > 2**58:
        return None
    return count * width


def _label(value: str | int | None) -> str | None:
    return names.redact(str(value)[:200]) or None if value is not None else None


def _rank(value: int | None) -> int | None:
    return value if value is not None and 0 <= value < _NO_RANK else None


def _flag(value: object) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.lower())
    return None if value is None else bool(value)
