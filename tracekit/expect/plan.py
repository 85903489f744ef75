"""A job description with what follows from it: sizes, groups, shape, and where groups live.

Nothing is guessed silently: a number that needs a field that is not given is null, the field is
named in ``unknown``, and what was assumed stands in ``assumptions``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tracekit.expect import cost, flops
from tracekit.expect.expectation import Choice, TrafficRow
from tracekit.expect.groups import DEFAULT_ORDER, Family, groups_of
from tracekit.expect.hardware import DTYPE_BYTES, gpu_named

if TYPE_CHECKING:
    from tracekit.job import JobDescription

_POOLED = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
"""Operations of which a byte crosses to another node once for all members there: they share the
NICs of their node."""


class Plan:
    """A job description with what follows from it; notes every gap."""

    def __init__(self, job: JobDescription) -> None:
        self.job = job
        self.unknown: list[str] = []
        self.assumptions: list[str] = []
        self.assumed: set[str] = set()
        p, hw = job.parallelism, job.hardware
        self.gpu = gpu_named(hw.gpu)
        self.sizes = {d: getattr(p, d) or 1 for d in ("tp", "cp", "dp", "pp", "ep")}
        self.sizes["vpp"] = p.vpp or 1
        world = job.world_size
        inner = self.sizes["tp"] * self.sizes["cp"] * self.sizes["pp"]
        if p.dp is None and world and world % inner == 0:
            self.sizes["dp"] = world // inner
            self.assumptions.append(f"dp = {world // inner}: what is left of {world} ranks")
        self.world = world or inner * self.sizes["dp"]
        self.zero = p.zero_stage or 0
        if p.zero_stage is None and self.sizes["dp"] > 1:
            self.assume("parallelism.zero_stage", "ZeRO stage 0: parallelism.zero_stage not given")
        self.replicas = p.dp_replicate or 1
        if self.sizes["dp"] % self.replicas:
            self.assumptions.append(
                f"no replicas: dp_replicate {self.replicas} does not divide dp {self.sizes['dp']}"
            )
            self.replicas = 1
        self.groups = groups_of(
            self.sizes, p.order or DEFAULT_ORDER, self.replicas, is_sharded=self.zero > 0
        )
        if self.groups.experts is None:
            self.assumptions.append(
                f"ep {self.sizes['ep']} fits into no block of dp {self.sizes['dp']}, cp "
                f"{self.sizes['cp']} and dp_replicate {self.replicas}: who holds an expert is open"
            )
        self.element_bytes = DTYPE_BYTES.get((job.model.dtype or "").lower(), 0)
        if not self.element_bytes:
            self.element_bytes = 2
            known = job.model.dtype is None
            why = "is not given" if known else f"{job.model.dtype!r} is not known"
            self.assume("model.dtype", f"2 bytes an element: model.dtype {why}")
        self.pipelined = self._microbatches()
        self.microbatches = self._accumulated()
        self.shape = self._shape()
        self.parameters = self._parameters()

    def assume(self, name: str, words: str) -> None:
        """Note a field that was not given, and what is taken instead."""
        self.assumed.add(name)
        self.assumptions.append(words)

    def need(self, name: str, value: object) -> bool:
        """Whether a field is given; notes it where it is not."""
        if value is None:
            if name not in self.unknown:
                self.unknown.append(name)
            return False
        return True

    def _microbatches(self) -> int | None:
        job = self.job
        if job.schedule.microbatches is not None:
            return job.schedule.microbatches
        if self.need("batch.global", job.batch.global_) and self.need(
            "batch.micro", job.batch.micro
        ):
            whole = (job.batch.micro or 1) * self.sizes["dp"]
            return max(1, (job.batch.global_ or 0) // whole)
        return None

    def _accumulated(self) -> int | None:
        """Microbatches of a whole step: several pipelines' where the global batch holds more."""
        batch, m = self.job.batch, self.job.schedule.microbatches
        if m is None or batch.global_ is None or batch.micro is None:
            return self.pipelined
        once = m * batch.micro * self.sizes["dp"]
        if batch.global_ == once:
            return m
        if batch.global_ % once == 0:
            times = batch.global_ // once
            self.assumptions.append(f"{times} x {m} microbatches a step make the global batch")
            return m * times
        self.assumptions.append(
            f"batch.global {batch.global_} is no multiple of {m} microbatches x {batch.micro} x dp "
            f"{self.sizes['dp']}: taken are the {m}"
        )
        return m

    def _shape(self) -> flops.Shape | None:
        m = self.job.model
        names = ("layers", "hidden", "heads", "sequence", "vocabulary")
        if [n for n in names if not self.need(f"model.{n}", getattr(m, n))]:
            return None
        shape = flops.Shape(
            layers=m.layers or 0,
            hidden=m.hidden or 0,
            heads=m.heads or 0,
            sequence=m.sequence or 0,
            vocabulary=m.vocabulary or 0,
            kv_heads=m.kv_heads,
            ffn=m.ffn,
            experts=m.experts,
            top_k=m.top_k,
        )
        if m.ffn is not None and m.ffn != 4 * shape.hidden:
            shape = replace(shape, is_gated=True)
            self.assumptions.append("three matrices in the feed-forward layer: ffn is not 4 hidden")
        return shape

    def _parameters(self) -> float | None:
        if self.job.model.parameters is not None:
            return float(self.job.model.parameters)
        if self.shape is None:
            self.need("model.parameters", None)
            return None
        self.assumptions.append("parameters computed from the model's shape")
        m = self.shape
        if m.kv_heads is None and m.ffn is None and m.experts is None:
            return flops.megatron_parameters(m.layers, m.hidden, m.vocabulary, m.sequence)
        if m.is_gated:
            self.assumptions.append("input and output embeddings are separate, as in Llama")
        return flops.parameters_of(m, is_tied=not m.is_gated)

    def embedding(self) -> float | None:
        """Weights of one embedding (or of the output layer)."""
        m = self.job.model
        return float(m.vocabulary * m.hidden) if m.vocabulary and m.hidden else None

    def parameter_choices(self) -> list[tuple[float, str]]:
        """Other parameter counts that the shape allows, and what makes them so."""
        table = self.embedding()
        if self.job.model.parameters is not None or self.parameters is None or table is None:
            return []
        is_tied = self.shape is not None and not self.shape.is_gated
        if is_tied:
            return [(self.parameters + table, "embeddings not tied")]
        return [(self.parameters - table, "embeddings tied")]

    def layers_per_rank(self) -> float | None:
        """Layers of a mean stage."""
        layers = self.job.model.layers
        return layers / self.sizes["pp"] if self.need("model.layers", layers) and layers else None

    def expert_parameters(self) -> float | None:
        """Parameters of all experts that ep spreads: 0 without ep, None where not known."""
        shape = self.shape
        if self.sizes["ep"] == 1:
            return 0.0
        if (
            shape is None
            or self.parameters is None
            or not self.need("model.experts", shape.experts)
        ):
            return None
        matrices = 3 if shape.is_gated else 2
        each = matrices * shape.hidden * shape.ffn_width
        return min(float(shape.layers * (shape.experts or 0) * each), self.parameters)

    # --- where groups live ------------------------------------------------------------------------

    def domain(self, family: Family, *, is_pooled: bool) -> tuple[str | None, float | None]:
        """Where a family's groups live, and the bytes a second of a GPU there.

        The network, where any group reaches beyond an NVLink domain: the slowest decides.
        """
        hw = self.job.hardware
        domain = hw.nvlink_domain or hw.gpus_per_node or (self.gpu.nvlink_domain if self.gpu else 0)
        if not domain:
            self.need("hardware.nvlink_domain", None)
            return None, None
        nvlink = hw.nvlink_bytes_per_s or (self.gpu.nvlink_bytes_per_s if self.gpu else None)
        if family.is_inside(domain, self.world) and nvlink:
            return "nvlink", nvlink
        network = self.network_bytes_per_s(family, is_pooled=is_pooled)
        # What several members bring in together, each still passes on inside the node.
        return "network", min(network, nvlink) if network and nvlink else network

    def network_bytes_per_s(self, family: Family, *, is_pooled: bool) -> float | None:
        """A GPU's share of its node's NICs, after the over-subscription of each level that the
        family's groups cross.

        ``is_pooled``: members below one switch bring in an array once for all of them.
        """
        hw = self.job.hardware
        if not self.need("hardware.nic_bytes_per_s", hw.nic_bytes_per_s):
            return None
        gpus = hw.gpus_per_node or 1
        nics = hw.nics_per_node if hw.nics_per_node is not None else gpus
        share = (hw.nic_bytes_per_s or 0.0) * nics / gpus

        def members(block: int | None) -> int:
            return family.members_inside(block or gpus) if is_pooled else 1

        bandwidth = share * members(gpus)
        levels = (
            (hw.leaf_gpus, hw.oversubscription),
            (hw.spine_gpus, hw.spine_oversubscription),
        )
        for below, ratio in levels:
            if ratio and (below is None or not family.is_inside(below, self.world)):
                share /= ratio
                bandwidth = min(bandwidth, share * members(below))
        return bandwidth

    def row(
        self,
        kind: str,
        op: str,
        family: Family,
        calls: float | None,
        message: float | None,
        note: str = "",
        choices: Sequence[tuple[float, str]] = (),
        rests_on: Sequence[str] = ("model.dtype",),
        *,
        is_pair: bool = False,
    ) -> TrafficRow:
        """A row with its bytes, place and ideal time; ``choices`` are totals of messages a step.

        ``is_pair``: of the family's groups, two ranks at a time.
        """
        size = 2 if is_pair else family.size
        where, speed = self.domain(family, is_pooled=op in _POOLED and not is_pair)
        sent = ideal = None
        if calls is not None and message is not None:
            sent = calls * message * cost.bus_factor(op, size)
            if speed:
                latency = cost.latency_s(op, size, where=where or "network")
                once_s = cost.ring_s(op, message, size, speed)
                if op == "all_reduce" and where == "network" and self.job.hardware.sharp:
                    once_s = min(once_s, cost.in_network_all_reduce_s(message, speed))
                ideal = calls * (once_s + latency)
        factor = cost.bus_factor(op, size)
        return TrafficRow(
            kind,
            op,
            size,
            calls,
            message,
            sent,
            where,
            speed,
            ideal,
            note,
            tuple(Choice(total * factor, words) for total, words in choices if sent is not None),
            tuple(f for f in rests_on if f in self.assumed),
            family.axes,
        )
