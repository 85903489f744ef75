"""What a layer costs: kernels from floating-point operations and bytes, messages from shapes."""

from __future__ import annotations

from msgspec import Struct

from tracekit.simulate.hardware import Topology
from tracekit.simulate.layout import Layout
from tracekit.simulate.program import COMPUTE_STREAM, Collective, Kernel

STREAMS = {
    "compute": COMPUTE_STREAM, "tp": 20, "dp": 24, "edp": 26, "replicate": 27, "cp_send": 28,
    "cp_recv": 29, "ep": 32, "send_f": 40, "recv_f": 41, "send_b": 42, "recv_b": 43, "mp": 48,
    "world": 48, "embedding": 52,
}  # fmt: skip

GEMM_EFFICIENCY = 0.62
ATTENTION_EFFICIENCY = 0.5
MEMORY_EFFICIENCY = 0.8
FIXED_NS = 2_000.0
"""What a kernel takes however little it does."""

_GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_{}_n_tilesize128x128x64_cublas"


class ModelShape(Struct, frozen=True):
    """A transformer."""

    layers: int = 8
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    ffn: int = 14336
    vocabulary: int = 32_000
    sequence: int = 4096
    micro_batch: int = 1
    experts: int = 0
    top_k: int = 2
    expert_ffn: int = 3584

    @property
    def attention_parameters(self) -> int:
        """Of one layer."""
        return int(self.hidden * self.hidden * (2 + 2 * self.kv_heads / self.heads))

    @property
    def mlp_parameters(self) -> int:
        """Of one layer's feed-forward part; with experts, of all of them."""
        if self.experts:
            return 3 * self.hidden * self.expert_ffn * self.experts
        return 3 * self.hidden * self.ffn

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        layer = self.attention_parameters + self.mlp_parameters
        return self.layers * layer + 2 * self.vocabulary * self.hidden


class Ring(Struct, frozen=True):
    """A ring exchange of keys and values with the neighbours in the context-parallel group.

    Of 0 bytes: no exchange, only the wait for the last one.
    """

    size_bytes: int


class Deferred(Struct, frozen=True):
    """Work for the weights' gradients only, which ZB-H1 may do later."""

    kernel: Kernel


Item = Kernel | Collective | Ring | Deferred


class Costs:
    """Kernels and messages of a model on given hardware under a layout."""

    def __init__(self, shape: ModelShape, layout: Layout, topology: Topology) -> None:
        self.shape = shape
        self.layout = layout
        self.gpu = topology.gpu
        self.tokens = shape.sequence * shape.micro_batch // layout.cp
        self.activation_bytes = self.tokens * shape.hidden * 2
        self._forward = self._layer_forward()
        self._backward = self._layer_backward()

    # --- kernels -------------------------------------------------------------------------------

    def gemm(self, flops: float, name: str = "tn", *, is_expert: bool = False) -> Kernel:
        """A matrix product."""
        dur = FIXED_NS + flops / (self.gpu.bf16_flops_per_s * GEMM_EFFICIENCY) * 1e9
        label = "void cutlass::Kernel2<grouped_gemm_bf16_128x128_tn>" if is_expert else ""
        operator = "aten::_grouped_mm" if is_expert else "aten::mm"
        return Kernel(label or _GEMM.format(name), operator, dur, is_expert=is_expert)

    def memory(self, size: float, name: str, operator: str, *, is_expert: bool = False) -> Kernel:
        """Work that is bound by memory."""
        dur = FIXED_NS + size / (self.gpu.hbm_bytes_per_s * MEMORY_EFFICIENCY) * 1e9
        return Kernel(name, operator, dur, is_expert=is_expert)

    def _norm(self) -> Kernel:
        return self.memory(
            3 * self.activation_bytes,
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16>",
            "aten::_fused_rms_norm",
        )

    def _attention(self, scale: float, name: str, operator: str) -> Kernel:
        s = self.shape
        flops = 2.0 * self.tokens * s.sequence * s.hidden / self.layout.tp / self.layout.cp
        peak = self.gpu.bf16_flops_per_s * ATTENTION_EFFICIENCY
        return Kernel(name, operator, FIXED_NS + scale * flops / peak * 1e9)

    def _reduce(self, op: str, role: str, size: int, *, is_expert: bool = False) -> Collective:
        return Collective(role, op, size, STREAMS[role], is_expert=is_expert)

    def _enter(self) -> list[Item]:
        """What brings the activation to all tensor-parallel ranks (sequence parallelism)."""
        if self.layout.tp > 1 and self.layout.is_sequence_parallel:
            return [self._reduce("all_gather", "tp", self.activation_bytes)]
        return []

    def _leave(self) -> list[Item]:
        if self.layout.tp < 2:
            return []
        op = "reduce_scatter" if self.layout.is_sequence_parallel else "all_reduce"
        return [self._reduce(op, "tp", self.activation_bytes)]

    def _layer_forward(self) -> list[Item]:
        s, tp = self.shape, self.layout.tp
        attention_flops = 2.0 * self.tokens * s.attention_parameters / tp
        items: list[Item] = [self._norm(), *self._enter(), self.gemm(attention_flops * 0.6)]
        flash = self._attention(
            1.0,
            "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>",
            "aten::_scaled_dot_product_flash_attention",
        )
        kv_bytes = 2 * self.tokens * s.hidden * s.kv_heads // s.heads * 2 // tp
        for i in range(self.layout.cp):
            if self.layout.cp > 1:
                items.append(Ring(kv_bytes if i < self.layout.cp - 1 else 0))
            items.append(flash)
        items += [self.gemm(attention_flops * 0.4), *self._leave(), self._norm()]
        return items + (self._experts_forward() if s.experts else self._mlp_forward())

    def _mlp_forward(self) -> list[Item]:
        s, tp = self.shape, self.layout.tp
        flops = 2.0 * self.tokens * s.mlp_parameters / tp
        act = self.memory(
            6 * self.tokens * s.ffn // tp,
            "triton_poi_fused_mul_silu_0",
            "triton_poi_fused_mul_silu",
        )
        return [*self._enter(), self.gemm(flops * 2 / 3), act, self.gemm(flops / 3), *self._leave()]

    def _experts_forward(self) -> list[Item]:
        s = self.shape
        routed = self.tokens * s.top_k
        flops = 2.0 * routed * 3 * s.hidden * s.expert_ffn / self.layout.tp
        size = routed * s.hidden * 2
        router = self.gemm(2.0 * self.tokens * s.hidden * s.experts)
        exchange: list[Item] = []
        if self.layout.ep > 1:
            exchange = [self._reduce("all_to_all", "ep", size, is_expert=True)]
        permute = self.memory(2 * size, "void permute_kernel<c10::BFloat16>", "aten::index_select")
        return [
            router,
            permute,
            *exchange,
            self.gemm(flops * 2 / 3, is_expert=True),
            self.memory(
                6 * routed * s.expert_ffn, "triton_poi_fused_mul_silu_1", "silu_mul", is_expert=True
            ),
            self.gemm(flops / 3, is_expert=True),
            *exchange,
            *self._leave(),
        ]

    def _layer_backward(self) -> list[Item]:
        """The forward's items in reverse: two products for each, collectives mirrored."""
        mirror = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}
        items: list[Item] = []
        for item in reversed(self._forward):
            if isinstance(item, Collective):
                op = mirror.get(item.op, item.op)
                items.append(
                    Collective(
                        item.role, op, item.total_bytes, item.stream, item.dtype, item.is_expert
                    )
                )
            elif isinstance(item, Ring):
                items.append(Ring(2 * item.size_bytes))
            elif isinstance(item, Kernel):
                items += self._backward_of(item)
        return items

    @staticmethod
    def _backward_of(item: Kernel) -> list[Item]:
        operator = f"{item.operator.removeprefix('aten::')}_backward"
        if "gemm" in item.name or "cutlass" in item.name:
            name = item.name.replace("_tn_n_", "_nn_n_")
            wgrad = item.name.replace("_tn_n_", "_nt_n_")
            return [
                Kernel(name, item.operator, item.dur_ns, is_expert=item.is_expert),
                Deferred(Kernel(wgrad, item.operator, item.dur_ns, is_expert=item.is_expert)),
            ]
        scale = 2.5 if "flash" in item.name else 1.5
        name = item.name.replace("flash_fwd", "flash_bwd").replace("layer_norm", "layer_norm_grad")
        return [Kernel(name, operator, item.dur_ns * scale, is_expert=item.is_expert)]

    # --- what the program is built from --------------------------------------------------------

    def forward(self) -> list[Item]:
        """One layer forward."""
        return self._forward

    def backward(self) -> list[Item]:
        """One layer backward."""
        return self._backward

    def first(self) -> list[Item]:
        """What the first stage does before its layers."""
        return [
            self.memory(
                2 * self.activation_bytes,
                "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16>",
                "aten::embedding",
            )
        ]

    def last(self) -> list[Item]:
        """What the last stage does after its layers: the head and the loss."""
        s = self.shape
        flops = 2.0 * self.tokens * s.hidden * s.vocabulary / self.layout.tp
        loss = self.memory(
            6 * self.tokens * s.vocabulary // self.layout.tp,
            "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float>",
            "aten::cross_entropy_loss",
        )
        return [self.gemm(flops), loss]

    def last_backward(self) -> list[Item]:
        """Its gradient."""
        items: list[Item] = []
        for item in reversed(self.last()):
            if isinstance(item, Kernel):
                items += self._backward_of(item)
        return items

    @property
    def dense_bytes(self) -> int:
        """Bytes of one layer's parameters on a rank that data parallelism reduces."""
        s = self.shape
        count = s.attention_parameters + (0 if s.experts else s.mlp_parameters)
        return count * 2 // self.layout.tp

    @property
    def expert_bytes(self) -> int:
        """Bytes of one layer's expert parameters on a rank."""
        return self.shape.mlp_parameters * 2 // self.layout.ep if self.shape.experts else 0

    @property
    def head_bytes(self) -> int:
        """Bytes of the embedding (or of the head) on a rank."""
        return self.shape.vocabulary * self.shape.hidden * 2 // self.layout.tp
