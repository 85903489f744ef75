"""The program of one step of one pipeline stage: host work, kernels, communication, in order."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import astuple

from tracekit.simulate import program as p
from tracekit.simulate.hardware import Topology
from tracekit.simulate.layout import Layout
from tracekit.simulate.model import STREAMS, Costs, Deferred, Item, ModelShape, Ring
from tracekit.simulate.schedules import SCHEDULES

COMPUTE = STREAMS["compute"]

EMBEDDING, HEAD = "embedding", "head"
Unit = int | str
"""What is gathered and reduced together: a layer of the chunk, the embedding, the output layer."""


class StepBuilder:
    """Builds the program of a stage; ``layers`` are the stage's layers in each of its chunks."""

    def __init__(
        self,
        layout: Layout,
        shape: ModelShape,
        topology: Topology,
        layers: Sequence[int],
        *,
        input_ns: float = 600_000.0,
    ) -> None:
        self.layout = layout
        self.shape = shape
        self.costs = Costs(shape, layout, topology)
        self.layers = layers
        """Layers of each virtual stage: chunk c of stage s is number c * pp + s."""
        self.input_ns = input_ns
        self.out: p.Program = []
        self._specs: dict[tuple[object, ...], p.Collective | p.Message] = {}

    def build(self, stage: int) -> p.Program:
        """Instructions of one step, without the step's own range."""
        self.out = []
        self.stage = stage
        self._input()
        self._work()
        self._finish()
        return self.out

    # --- parts ---------------------------------------------------------------------------------

    def _add(self, *instruction: object) -> None:
        self.out.append(instruction)

    def _talk(self, code: int, spec: p.Collective | p.Message) -> None:
        """A collective or message; equal ones are one object, of which writers keep texts."""
        self._add(code, self._specs.setdefault((code, *astuple(spec)), spec))

    def _input(self) -> None:
        self._add(p.MARK, "step_start")
        self._add(p.BEGIN, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
                  "user_annotation")  # fmt: skip
        self._add(p.HOST, "aten::pin_memory", "cpu_op", self.input_ns)
        self._add(p.MARK, "input")
        self._add(p.END)
        size = self.costs.tokens * 8
        copy = p.Kernel(
            "Memcpy HtoD (Pinned -> Device)", "aten::copy_", 2_000 + size / 20, kind="memcpy",
            size_bytes=size,
        )  # fmt: skip
        self._add(p.KERNEL, copy, COMPUTE, -1)

    def _work(self) -> None:
        layout = self.layout
        if layout.pp == 1:
            actions = [(a, m, 0) for m in range(layout.microbatches) for a in "FB"]
        else:
            make = SCHEDULES[layout.schedule]
            actions = make(self.stage, layout.pp, layout.microbatches, layout.chunks)
        is_split = layout.pp > 1 and layout.schedule == "zb-h1"
        for action, m, chunk in actions:
            if action == "F":
                self._forward(m, chunk)
            elif action == "B":
                self._backward(m, chunk, is_split=is_split)
            else:
                self._weights(m)

    def _virtual(self, chunk: int) -> int:
        return chunk * self.layout.pp + self.stage

    @property
    def _last_virtual(self) -> int:
        return self.layout.pp * self.layout.chunks - 1

    def _forward(self, m: int, chunk: int) -> None:
        v = self._virtual(chunk)
        self._open("F", m, v)
        if v > 0:
            self._message("f", is_send=False)
        is_first_work = m == 0 and chunk == 0
        units = self._units(v)
        if v == 0:
            self._gather(EMBEDDING, units)
            self._items(self.costs.first(), m)
        count = self.layers[v]
        for layer in range(count):
            self._add(p.MARK, "layer")
            if is_first_work and layer == count // 2:
                self._add(p.MARK, "forward")
            self._gather(layer, units)
            self._items(self.costs.forward(), m)
        if v == self._last_virtual:
            self._gather(HEAD, units)
            self._items(self.costs.last(), m)
        else:
            self._message("f", is_send=True)
        self._add(p.END)

    def _open(self, action: str, m: int, virtual: int) -> None:
        if self.layout.pp > 1 and self.layout.style == "torchtitan":
            name = f"PP:{virtual}{action}{m}"
        else:
            name = {"F": "forward", "B": "backward", "W": "weight_grad"}[action]
        self._add(p.BEGIN, name, "user_annotation")

    def _backward(self, m: int, chunk: int, *, is_split: bool) -> None:
        v = self._virtual(chunk)
        self._open("B", m, v)
        if v < self._last_virtual:
            self._message("b", is_send=False)
        self._add(p.THREAD, p.AUTOGRAD_THREAD)
        self._add(p.MARK, "backward_start")
        is_last = m == self.layout.microbatches - 1
        units = self._units(v)[::-1]
        if v == self._last_virtual:
            self._gather(HEAD, units)
            self._items(self.costs.last_backward(), m, skip_deferred=is_split)
            if not is_split:
                self._reduce(HEAD, is_last=is_last)
        count = self.layers[v]
        for layer in reversed(range(count)):
            if layer == count // 2 and m == 0:
                self._add(p.MARK, "backward")
            self._gather(layer, units)
            self._items(self.costs.backward(), m, skip_deferred=is_split)
            if not is_split:
                self._reduce(layer, is_last=is_last)
        if v == 0:
            self._gather(EMBEDDING, units)
            if not is_split:
                self._reduce(EMBEDDING, is_last=is_last)
        self._add(p.THREAD, p.MAIN_THREAD)
        if v > 0:
            self._message("b", is_send=True)
        self._add(p.END)

    def _weights(self, m: int) -> None:
        self._open("W", m, self.stage)
        self._add(p.THREAD, p.AUTOGRAD_THREAD)
        v = self.stage
        is_last = m == self.layout.microbatches - 1
        if v == self._last_virtual:
            self._deferred(self.costs.last_backward(), m)
            self._reduce(HEAD, is_last=is_last)
        for layer in reversed(range(self.layers[v])):
            self._deferred(self.costs.backward(), m)
            self._reduce(layer, is_last=is_last)
        if v == 0:
            self._reduce(EMBEDDING, is_last=is_last)
        self._add(p.THREAD, p.MAIN_THREAD)
        self._add(p.END)

    def _items(self, items: Sequence[Item], m: int, *, skip_deferred: bool = False) -> None:
        for item in items:
            if isinstance(item, p.Kernel):
                self._add(p.KERNEL, item, COMPUTE, m)
            elif isinstance(item, Deferred):
                if not skip_deferred:
                    self._add(p.KERNEL, item.kernel, COMPUTE, m)
            elif isinstance(item, Ring):
                self._ring(item)
            else:
                self._talk(p.COLLECTIVE, item)
                self._add(p.WAIT, COMPUTE, item.stream)

    def _deferred(self, items: Sequence[Item], m: int) -> None:
        for item in items:
            if isinstance(item, Deferred):
                self._add(p.KERNEL, item.kernel, COMPUTE, m)

    # --- communication -------------------------------------------------------------------------

    def _message(self, direction: str, *, is_send: bool) -> None:
        """To or from the neighbouring stage; compute waits for what it receives."""
        down = 1 if is_send == (direction == "f") else -1
        size = self.costs.activation_bytes
        if self.layout.is_sequence_parallel:
            size //= self.layout.tp
        stream = STREAMS[("send_" if is_send else "recv_") + direction]
        self._talk(p.MESSAGE, p.Message("pp", down, is_send, f"pp_{direction}", size, stream))
        if not is_send:
            self._add(p.WAIT, COMPUTE, stream)

    def _ring(self, ring: Ring) -> None:
        """Keys and values to the next rank while attention works on those at hand."""
        self._add(p.WAIT, COMPUTE, STREAMS["cp_recv"])
        if not ring.size_bytes:
            return
        self._add(p.WAIT, STREAMS["cp_send"], STREAMS["cp_recv"])
        for is_send in (True, False):
            stream = STREAMS["cp_send" if is_send else "cp_recv"]
            offset = 1 if is_send else -1
            message = p.Message("cp", offset, is_send, "cp", ring.size_bytes, stream)
            self._talk(p.MESSAGE, message)

    def _units(self, v: int) -> list[Unit]:
        """Units of a virtual stage in the order of the forward."""
        first: list[Unit] = [EMBEDDING] if v == 0 else []
        return [*first, *range(self.layers[v]), *([HEAD] if v == self._last_virtual else [])]

    def _gather(self, unit: Unit, units: Sequence[Unit]) -> None:
        """FSDP: this unit's parameters, and the next one's ahead of time.

        As torchtitan wraps a model: each layer, the embedding and the output layer on their own.
        The output layer, last in the forward and first in the backward, stays gathered between.
        """
        if self.layout.zero_stage < 3:
            return
        position = units.index(unit)
        is_kept = unit == HEAD and position == 0
        ahead = units[position + 1 : position + 2]
        for wanted in [unit, *ahead] if position == 0 and not is_kept else ahead:
            for role, size in self._shared_bytes(wanted):
                self._collective(role, "all_gather", size)
                self._add(p.RECORD, ("gathered", role, wanted), STREAMS[role])
        if not is_kept:
            for role, _ in self._shared_bytes(unit):
                self._add(p.WAIT_SLOT, COMPUTE, ("gathered", role, unit))

    def _reduce(self, unit: Unit, *, is_last: bool) -> None:
        """Gradients of a unit, where this microbatch reduces them."""
        layout = self.layout
        if layout.zero_stage < 2 and not is_last:
            return
        op = "reduce_scatter" if layout.zero_stage else "all_reduce"
        for role, size in self._shared_bytes(unit):
            self._collective(role, op, size)
            shard = layout.dp // layout.replicate
            if layout.replicate > 1 and (role == "dp" or shard % layout.ep == 0):
                held = shard * layout.cp // (layout.ep if role == "edp" else 1)
                self._collective("replicate", "all_reduce", size // max(1, held))

    def _shared_bytes(self, unit: Unit) -> list[tuple[str, int]]:
        """Groups that hold a unit's parameters together, and bytes: experts have fewer ranks."""
        if unit in (EMBEDDING, HEAD):
            return [("dp", self.costs.head_bytes)]
        experts = self.costs.expert_bytes
        return [("dp", self.costs.dense_bytes), *([("edp", experts)] if experts else [])]

    def _collective(self, role: str, op: str, size: int, dtype: str = "BFloat16") -> None:
        if role in self.layout.roles:
            self._talk(p.COLLECTIVE, p.Collective(role, op, size, STREAMS[role], dtype))

    # --- the end of a step ---------------------------------------------------------------------

    def _finish(self) -> None:
        layout = self.layout
        if layout.pp > 1 and self.stage in (0, layout.pp - 1):
            self._collective("embedding", "all_reduce", self.costs.head_bytes)
            self._add(p.WAIT, COMPUTE, STREAMS["embedding"])
        for role in ("dp", "edp", "replicate"):
            self._add(p.WAIT, COMPUTE, STREAMS[role])
        held = self._held_bytes()
        first = layout.rank(0, 0, 0, self.stage)
        copies = {role: len(layout.group(first, role)) for role in ("dp", "edp")}
        own_bytes = sum(n / (copies[r] if layout.zero_stage else 1) for r, n in held.items())
        norm = self.costs.memory(
            own_bytes,
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<LpNormFunctor>",
            "aten::_foreach_norm",
        )
        self._add(p.KERNEL, norm, COMPUTE, -1)
        role = "world" if layout.zero_stage else "mp"
        self._collective(role, "all_reduce", 4, "Float")
        self._add(p.WAIT, COMPUTE, STREAMS[role])
        item = p.Kernel(
            "Memcpy DtoH (Device -> Pinned)", "aten::item", 2_000, kind="memcpy", size_bytes=4
        )
        self._add(p.KERNEL, item, COMPUTE, -1)
        self._add(p.SYNC, "cudaStreamSynchronize", COMPUTE)
        self._add(p.MARK, "optimizer")
        self._add(p.BEGIN, "Optimizer.step#AdamW.step", "user_annotation")
        for _ in range(3):
            kernel = self.costs.memory(
                own_bytes * 8 / 3,
                "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>",
                "aten::_fused_adamw_",
            )
            self._add(p.KERNEL, kernel, COMPUTE, -1)
        self._add(p.END)
        if layout.zero_stage in (1, 2):
            for role, size in held.items():
                self._collective(role, "all_gather", size)
                self._add(p.WAIT, COMPUTE, STREAMS[role])
        self._add(p.MARK, "step_end")

    def _held_bytes(self) -> dict[str, int]:
        """Bytes of the stage's parameters by the group that shares them."""
        held: dict[str, int] = {}
        for chunk in range(self.layout.chunks):
            for unit in self._units(self._virtual(chunk)):
                for role, size in self._shared_bytes(unit):
                    held[role] = held.get(role, 0) + size
        return held
