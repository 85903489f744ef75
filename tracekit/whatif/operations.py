"""The operations of a pipeline job as columns, from rows of ``pipeline_op``.

Times are float64 seconds here: a replay adds and compares, and the published figures that it is
held against are in seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

if TYPE_CHECKING:
    import pyarrow as pa

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

FORWARD, BACKWARD = "forward-compute", "backward-compute"
WEIGHT = "weight-compute"
"""The weights' part of a backward that a zero-bubble schedule splits."""
COMPUTE = (FORWARD, BACKWARD, WEIGHT)
DIRECTIONS = (FORWARD, BACKWARD)
"""Computations that receive from one neighbour and send to the other."""
FORWARD_SEND, FORWARD_RECV = "forward-send", "forward-recv"
BACKWARD_SEND, BACKWARD_RECV = "backward-send", "backward-recv"
P2P = (FORWARD_SEND, FORWARD_RECV, BACKWARD_SEND, BACKWARD_RECV)
PARAMS_GATHER, GRADS_SCATTER = "params-all-gather", "grads-reduce-scatter"
SEPARATE_REDUCE = "separate-grads-all-reduce"
LAYERNORM, EMBEDDING = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
CLIP, OPTIMIZER, GC = "optimizer-clip-main-grad", "optimizer", "gc"


class Layout(Struct, frozen=True):
    """Sizes that the operations alone do not show; None where unknown."""

    dp: int | None = None
    """Data parallel in all: replicas times shards within one (dp x dsp)."""
    vpp: int | None = None


class Operations(Struct, frozen=True):
    """One row an operation; all columns have the same length. -1 stands for "none"."""

    dp_rank: Ints
    stage: Ints
    rank: Ints
    step: Ints
    optype: Ints
    """Index into ``names``."""
    start_s: Floats
    duration_s: Floats
    sequence: Ints
    chunk: Ints
    microbatch: Ints
    global_chunk: Ints
    names: tuple[str, ...]
    layout: Layout = Layout()

    def __len__(self) -> int:
        return len(self.start_s)

    def take(self, rows: Any) -> Operations:
        """Some of the rows: a mask or positions."""
        columns = {c: getattr(self, c)[rows] for c in _COLUMNS}
        return Operations(**columns, names=self.names, layout=self.layout)

    def is_type(self, *names: str) -> Mask:
        """Mask of the rows of these operation types."""
        wanted = [i for i, n in enumerate(self.names) if n in names]
        return np.isin(self.optype, wanted)


_COLUMNS = (
    "dp_rank",
    "stage",
    "rank",
    "step",
    "optype",
    "start_s",
    "duration_s",
    "sequence",
    "chunk",
    "microbatch",
    "global_chunk",
)


def from_pipeline_rows(rows: pa.Table, layout: Layout | None = None) -> Operations:
    """Operations from rows of the registry's ``pipeline_op`` (one attempt).

    Of several ranks at one stage and replica (tensor parallel) the first stands for all, as in
    timer files; of several captures of a step the first.
    """
    import pyarrow as pa

    names, codes = _dictionary(rows.column("operation"))

    def ints(name: str) -> Ints:
        column = rows.column(name).cast(pa.int64())
        return np.asarray(column.fill_null(-1).to_numpy(), np.int64)

    start, end, step = ints("start_ns"), ints("end_ns"), ints("step")
    # Each step from its own zero: float64 seconds since the epoch resolve only 240 ns.
    order, inverse = np.unique(step, return_inverse=True)
    first = np.full(len(order), np.iinfo(np.int64).max)
    np.minimum.at(first, inverse, start)
    operations = Operations(
        dp_rank=np.maximum(ints("dp_rank"), 0),
        stage=np.maximum(ints("pp_rank"), 0),
        rank=ints("rank"),
        step=step,
        optype=codes,
        start_s=(start - first[inverse]) / 1e9,
        duration_s=(end - start) / 1e9,
        sequence=ints("sequence"),
        chunk=ints("chunk"),
        microbatch=ints("microbatch"),
        global_chunk=ints("global_chunk"),
        names=names,
        layout=layout or Layout(),
    )
    return operations.take(_first_of(operations, ints("capture_id")))


def _first_of(ops: Operations, capture: Ints) -> Mask:
    """Rows of the lowest rank of each (stage, replica) in the first capture of each step."""
    keep = np.ones(len(ops), dtype=np.bool_)
    for keys, value in (
        (np.stack([ops.stage, ops.dp_rank]), ops.rank),
        (np.stack([ops.step, np.zeros_like(ops.step)]), capture),
    ):
        if len(ops) == 0:
            break
        _, inverse = np.unique(keys, axis=1, return_inverse=True)
        inverse = inverse.reshape(-1)
        lowest = np.full(int(inverse.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(lowest, inverse, value)
        keep &= value == lowest[inverse]
    return keep


def _dictionary(column: Any) -> tuple[tuple[str, ...], Ints]:
    """Names in alphabetical order, and each row's index into them."""
    import pyarrow as pa

    values = np.asarray(column.cast(pa.string()).to_numpy(zero_copy_only=False), dtype=object)
    names, codes = np.unique(values.astype(str), return_inverse=True)
    return tuple(str(n) for n in names), np.asarray(codes, np.int64)
