"""The program of one step of one pipeline stage: host work, kernels, communication, in order."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.simulate import program as p
from tracekit.simulate.hardware import Topology
from tracekit.simulate.layout import Layout
from tracekit.simulate.model import STREAMS, Costs, Deferred, Item, ModelShape, Ring
from tracekit.simulate.schedules import SCHEDULES

BUCKET_LAYERS = 1
"""Layers whose gradients share a bucket."""
COMPUTE = STREAMS["compute"]


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
        if v == 0:
            self._items(self.costs.first(), m)
        count = self.layers[v]
        for layer in range(count):
            self._add(p.MARK, "layer")
            if is_first_work and layer == count // 2:
                self._add(p.MARK, "forward")
            self._gather(layer, count, is_backward=False)
            self._items(self.costs.forward(), m)
        if v == self._last_virtual:
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
        if v == self._last_virtual:
            self._items(self.costs.last_backward(), m, skip_deferred=is_split)
        is_last = m == self.layout.microbatches - 1
        count = self.layers[v]
        for layer in reversed(range(count)):
            if layer == count // 2 and m == 0:
                self._add(p.MARK, "backward")
            self._gather(layer, count, is_backward=True)
            self._items(self.costs.backward(), m, skip_deferred=is_split)
            if not is_split:
                self._reduce(layer, is_last=is_last)
        if v == 0 and is_last and not is_split:
            self._reduce_head()
        self._add(p.THREAD, p.MAIN_THREAD)
        if v > 0:
            self._message("b", is_send=True)
        self._add(p.END)

    def _weights(self, m: int) -> None:
        self._open("W", m, self.stage)
        self._add(p.THREAD, p.AUTOGRAD_THREAD)
        v = self.stage
        items = list(self.costs.last_backward()) if v == self._last_virtual else []
        self._deferred(items, m)
        is_last = m == self.layout.microbatches - 1
        for layer in reversed(range(self.layers[v])):
            self._deferred(self.costs.backward(), m)
            self._reduce(layer, is_last=is_last)
        if v == 0 and is_last:
            self._reduce_head()
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
                self._add(p.COLLECTIVE, item)
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
        self._add(p.MESSAGE, p.Message("pp", down, is_send, f"pp_{direction}", size, stream))
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
            self._add(p.MESSAGE, message)

    def _gather(self, layer: int, count: int, *, is_backward: bool) -> None:
        """FSDP: this layer's parameters, and the next one's ahead of time."""
        if self.layout.zero_stage < 3:
            return
        size = self.costs.dense_bytes
        stream = STREAMS["dp"]
        following = layer - 1 if is_backward else layer + 1
        first = layer == (count - 1 if is_backward else 0)
        gather = p.Collective("dp", "all_gather", size, stream)
        if first:
            self._add(p.COLLECTIVE, gather)
            self._add(p.RECORD, ("gathered", layer), stream)
        if 0 <= following < count:
            self._add(p.COLLECTIVE, gather)
            self._add(p.RECORD, ("gathered", following), stream)
        self._add(p.WAIT_SLOT, COMPUTE, ("gathered", layer))

    def _reduce(self, layer: int, *, is_last: bool) -> None:
        """Gradients of a layer, where this microbatch reduces them."""
        layout = self.layout
        if layout.zero_stage < 2 and not is_last:
            return
        if layer % BUCKET_LAYERS == 0:
            size = self.costs.dense_bytes * BUCKET_LAYERS
            op = "reduce_scatter" if layout.zero_stage else "all_reduce"
            self._collective("dp", op, size)
            if layout.replicate > 1:
                shard = layout.dp // layout.replicate
                self._collective("replicate", "all_reduce", size // max(1, shard))
        if self.costs.expert_bytes and is_last:
            self._collective("edp", "all_reduce", self.costs.expert_bytes)

    def _reduce_head(self) -> None:
        op = "reduce_scatter" if self.layout.zero_stage else "all_reduce"
        self._collective("dp", op, self.costs.head_bytes)

    def _collective(self, role: str, op: str, size: int, dtype: str = "BFloat16") -> None:
        if role in self.layout.roles:
            self._add(p.COLLECTIVE, p.Collective(role, op, size, STREAMS[role], dtype))

    # --- the end of a step ---------------------------------------------------------------------

    def _finish(self) -> None:
        layout = self.layout
        if layout.pp > 1 and self.stage in (0, layout.pp - 1):
            self._collective("embedding", "all_reduce", self.costs.head_bytes)
            self._add(p.WAIT, COMPUTE, STREAMS["embedding"])
        for role in ("dp", "edp", "replicate"):
            self._add(p.WAIT, COMPUTE, STREAMS[role])
        parameters = self._parameter_bytes() / 2
        shards = layout.dp * layout.cp // layout.replicate if layout.zero_stage else 1
        norm = self.costs.memory(
            parameters * 2 / shards,
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
                parameters * 16 / 3 / shards,
                "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>",
                "aten::_fused_adamw_",
            )
            self._add(p.KERNEL, kernel, COMPUTE, -1)
        self._add(p.END)
        if layout.zero_stage in (1, 2):
            self._collective("dp", "all_gather", int(parameters * 2))
            self._add(p.WAIT, COMPUTE, STREAMS["dp"])
        self._add(p.MARK, "step_end")

    def _parameter_bytes(self) -> float:
        layers = sum(
            self.layers[c * self.layout.pp + self.stage] for c in range(self.layout.chunks)
        )
        size = layers * (self.costs.dense_bytes + self.costs.expert_bytes)
        if self.stage == 0:
            size += self.costs.head_bytes
        if self.stage == self.layout.pp - 1:
            size += self.costs.head_bytes
        return float(size)


class FixedBuilder(StepBuilder):
    """A pipeline whose actions take given times and whose messages nothing: for test vectors."""

    def __init__(self, layout: Layout, topology: Topology, forward_ns: int, backward_ns: int,
                 weight_ns: int = 0) -> None:  # fmt: skip
        super().__init__(layout, ModelShape(), topology, [1] * (layout.pp * layout.chunks))
        self._times = {"F": forward_ns, "B": backward_ns, "W": weight_ns}

    def build(self, stage: int) -> p.Program:
        """The pipeline alone."""
        self.out = []
        self.stage = stage
        self._work()
        return self.out

    def _kernel(self, action: str, m: int) -> None:
        kernel = p.Kernel(action, action, float(self._times[action]))
        self._add(p.KERNEL, kernel, COMPUTE, m)

    def _forward(self, m: int, chunk: int) -> None:
        v = self._virtual(chunk)
        if v > 0:
            self._message("f", is_send=False)
        self._kernel("F", m)
        if v < self._last_virtual:
            self._message("f", is_send=True)

    def _backward(self, m: int, chunk: int, *, is_split: bool) -> None:
        v = self._virtual(chunk)
        if v < self._last_virtual:
            self._message("b", is_send=False)
        self._kernel("B", m)
        if v > 0:
            self._message("b", is_send=True)

    def _weights(self, m: int) -> None:
        self._kernel("W", m)
