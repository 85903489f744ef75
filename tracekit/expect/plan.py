"""What a layout implies, from a job description: traffic, bubble, memory, FLOPs, rooflines.

Nothing is guessed silently: a number that needs a field that is not given is null, the field is
named in ``unknown``, and what was assumed stands in ``assumptions``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracekit.expect import bubble, cost, flops, memory, roofline, traffic
from tracekit.expect.groups import DEFAULT_ORDER, Family, groups_of
from tracekit.expect.hardware import DTYPE_BYTES, Gpu, gpu_named

if TYPE_CHECKING:
    from tracekit.job import JobDescription


@dataclass(frozen=True)
class Choice:
    """What a GPU sends in a step if an open question is answered otherwise."""

    bytes_per_step: float
    words: str


@dataclass(frozen=True)
class TrafficRow:
    """One family of groups and operation; what one GPU of a middle stage does in a step."""

    group_kind: str
    op: str
    group_size: int
    calls_per_step: float | None
    message_bytes: float | None
    """Total size of one call, as nccl-tests defines it."""
    bytes_per_step: float | None
    """What the GPU sends."""
    domain: str | None
    """nvlink or network: where the group lives; null where the hardware is not described."""
    bytes_per_s: float | None
    ideal_s_per_step: float | None
    """Bandwidth and latency, one call after the other, nothing overlapped."""
    note: str = ""
    choices: tuple[Choice, ...] = ()
    """Other amounts that the same description allows: frameworks differ, embeddings may be tied."""
    assumed: tuple[str, ...] = ()
    """Fields of the job description that this rests on and that were not given."""

    @property
    def range_bytes(self) -> tuple[float, float] | None:
        """Least and most bytes a step that the description allows."""
        if self.bytes_per_step is None:
            return None
        amounts = [self.bytes_per_step, *(c.bytes_per_step for c in self.choices)]
        return min(amounts), max(amounts)


@dataclass(frozen=True)
class Utilisation:
    """FLOPs of a step against the hardware."""

    parameters_count: float | None = None
    model_flops_per_step: float | None = None
    causal_model_flops_per_step: float | None = None
    recomputed_flops_per_step: float | None = None
    ideal_compute_s: float | None = None
    step_s: float | None = None
    mfu_ratio: float | None = None
    hfu_ratio: float | None = None


@dataclass(frozen=True)
class Bubble:
    """What the schedule cannot avoid, with F : B = 1 : 2."""

    schedule: str
    bubble_ratio: float
    """Idle over window."""
    bubble_overhead_ratio: float
    """Idle over busy."""
    is_given: bool


@dataclass(frozen=True)
class Memory:
    """Bytes a GPU; activations on the first stage, which keeps the most microbatches."""

    model_state_bytes: float | None = None
    activation_bytes: float | None = None
    capacity_bytes: float | None = None


@dataclass(frozen=True)
class Roofline:
    """Tokens a GPU above which communication can be hidden."""

    tokens_per_gpu: float | None = None
    data_parallel_nvlink_tokens: float | None = None
    data_parallel_network_tokens: float | None = None
    fsdp_network_tokens: float | None = None
    tensor_parallel_ways: float | None = None
    critical_intensity: float | None = None


@dataclass(frozen=True)
class StepTime:
    """The least time of a step if nothing overlaps, beside a measured one."""

    compute_s: float
    """Arithmetic at peak."""
    communication_s: float
    """All traffic, one call after the other."""
    serial_s: float
    """Their sum, with the bubble of the given schedule."""
    dominant: str
    """compute, or the family and operation that takes longest."""
    measured_s: float | None = None
    measured_ratio: float | None = None
    """Measured over serial: what neither arithmetic nor links explain, if above 1."""


@dataclass
class Expectation:
    """All that a job description implies."""

    sizes: dict[str, int]
    microbatches: int | None
    traffic: list[TrafficRow] = field(default_factory=list)
    bubbles: list[Bubble] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    utilisation: Utilisation = field(default_factory=Utilisation)
    roofline: Roofline = field(default_factory=Roofline)
    step_time: StepTime | None = None
    training_days: float | None = None
    unknown: list[str] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """What cannot be, so that something that was given is wrong."""


_POOLED = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
"""Operations of which a byte crosses to another node once for all members there: they share the
NICs of their node."""


class _Plan:
    """A job description with what follows from it; notes every gap."""

    def __init__(self, job: JobDescription, gpus: Mapping[str, Gpu]) -> None:
        self.job = job
        self.unknown: list[str] = []
        self.assumptions: list[str] = []
        self.assumed: set[str] = set()
        p, hw = job.parallelism, job.hardware
        self.gpu = gpu_named(hw.gpu) if hw.gpu not in gpus else gpus[str(hw.gpu)]
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
            shape = flops.Shape(**{**shape.__dict__, "is_gated": True})
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
        )


def expect(
    job: JobDescription,
    *,
    step_s: float | None = None,
    tokens: float | None = None,
    gpus: Mapping[str, Gpu] | None = None,
) -> Expectation:
    """Everything that a job description implies.

    ``step_s`` is a measured step time, ``tokens`` the length of the training; ``gpus`` replaces
    or adds rows of the hardware table.
    """
    plan = _Plan(job, gpus or {})
    expectation = Expectation(dict(plan.sizes), plan.microbatches)
    expectation.traffic = [
        *_tensor(plan),
        *_data(plan),
        *_pipeline(plan),
        *_expert(plan),
        *_context(plan),
    ]
    expectation.bubbles = _bubbles(plan)
    expectation.memory = _memory(plan)
    expectation.utilisation = _utilisation(plan, step_s)
    expectation.roofline = _roofline(plan)
    expectation.step_time = _step_time(expectation, step_s)
    peak = _peak(plan)
    if tokens and plan.parameters and expectation.utilisation.mfu_ratio and peak:
        achieved = expectation.utilisation.mfu_ratio * peak
        expectation.training_days = flops.training_days(
            tokens, plan.parameters, plan.world, achieved, with_recomputation=False
        )
    expectation.unknown, expectation.assumptions = plan.unknown, plan.assumptions
    expectation.remarks = _remarks(expectation.utilisation)
    return expectation


def _layers_per_rank(plan: _Plan) -> float | None:
    layers = plan.job.model.layers
    return layers / plan.sizes["pp"] if plan.need("model.layers", layers) and layers else None


def _activation(plan: _Plan) -> float | None:
    m, batch = plan.job.model, plan.job.batch
    known = [
        plan.need("batch.micro", batch.micro),
        plan.need("model.sequence", m.sequence),
        plan.need("model.hidden", m.hidden),
    ]
    if not all(known):
        return None
    return traffic.activation_bytes(
        batch.micro or 0,
        (m.sequence or 0) // plan.sizes["cp"],
        m.hidden or 0,
        plan.element_bytes,
    )


def _tensor(plan: _Plan) -> list[TrafficRow]:
    tp = plan.sizes["tp"]
    if tp == 1:
        return []
    layers, m, a = _layers_per_rank(plan), plan.microbatches, _activation(plan)
    calls = 4 * layers * m if layers is not None and m is not None else None
    recomputed: list[tuple[float, str]] = []
    kind = plan.job.schedule.recompute
    if kind == "full" and calls is not None:
        calls *= 1.5
    elif kind is None and calls is not None and a is not None:
        recomputed = [(1.5 * calls * a, "activations recomputed")]
    return [
        plan.row(
            "tp",
            "all_reduce",
            plan.groups.tp,
            calls,
            a,
            "or as many all-gathers and reduce-scatters with sequence parallelism: up to 1.25x"
            " the bytes; 1.5x with full recomputation",
            recomputed,
        )
    ]


@dataclass(frozen=True)
class _Own:
    """Bytes of a GPU's parameters, a mean stage: those that every data-parallel rank holds (or a
    shard of them), its experts', what of the former is embeddings, and the output layer alone
    (0: tied)."""

    dense: float
    experts: float
    head: float
    output: float
    words: str = ""

    @property
    def of_experts(self) -> _Own:
        """The experts' alone."""
        return _Own(self.experts, 0.0, 0.0, 0.0, self.words)


def _expert_parameters(plan: _Plan) -> float | None:
    """Parameters of all experts that ep spreads; 0 without ep, None where they are not known."""
    shape = plan.shape
    if plan.sizes["ep"] == 1:
        return 0.0
    if shape is None or plan.parameters is None or not plan.need("model.experts", shape.experts):
        return None
    matrices = 3 if shape.is_gated else 2
    each = matrices * shape.hidden * shape.ffn_width
    return min(float(shape.layers * (shape.experts or 0) * each), plan.parameters)


def _own_parameters(plan: _Plan) -> list[_Own]:
    """What the description gives, first as it is taken, then with open questions answered."""
    experts = _expert_parameters(plan)
    if plan.parameters is None or experts is None:
        return []
    unit = plan.element_bytes / (plan.sizes["tp"] * plan.sizes["pp"])
    table = plan.embedding() or 0.0
    least = min([plan.parameters, *(n for n, _ in plan.parameter_choices())])
    owned = []
    for count, words in [(plan.parameters, ""), *plan.parameter_choices()]:
        output = count - least
        head = table + output if plan.parameter_choices() else 0.0
        spread = experts / plan.sizes["ep"]
        owned.append(
            _Own((count - experts) * unit, spread * unit, head * unit, output * unit, words)
        )
    return owned


def _data(plan: _Plan) -> list[TrafficRow]:
    """Gradients and parameters. Context-parallel ranks hold the same weights: they share them."""
    groups = plan.groups
    owns, m = _own_parameters(plan), plan.microbatches
    experts, apart = groups.experts, groups.expert_replicas
    has_experts = plan.sizes["ep"] > 1
    if experts is None:
        owns = []
    # A set of shards that holds an expert beside each one of dense weights: one group for both.
    is_shared = apart == groups.replicas
    rows = _sharded(plan, "dp", groups.dense, owns, m)
    if has_experts and experts is not None:
        rows += _sharded(plan, "edp", experts, [o.of_experts for o in owns[:1]], m)
    if groups.replicas.size > 1:
        shards = [
            (
                o.dense / groups.dense.size
                + (o.experts / experts.size if is_shared and experts else 0.0),
                o.words,
            )
            for o in owns
        ]
        rows.append(_replicated(plan, "dp_replicate", groups.replicas, shards, m))
    if has_experts and experts is not None and apart.size > 1 and not is_shared:
        held = [(o.experts / experts.size, "") for o in owns[:1]]
        rows.append(_replicated(plan, "edp", apart, held, m))
    return rows


_STATED = ("model.dtype", "parallelism.zero_stage")
"""What the bytes of data-parallel rows rest on."""


def _replicated(
    plan: _Plan,
    kind: str,
    family: Family,
    shards: Sequence[tuple[float, str]],
    microbatches: int | None,
) -> TrafficRow:
    """Gradients of a shard, among the sets of shards that hold it."""
    note = "gradients of a shard, among its replicas, as often as they are scattered"
    if not shards or (plan.zero > 1 and microbatches is None):
        return plan.row(kind, "all_reduce", family, None, None, note, rests_on=_STATED)
    times = float(microbatches or 1) if plan.zero > 1 else 1.0
    choices = [(times * size, words) for size, words in shards[1:]]
    if times > 1:
        choices.append((shards[0][0], "gradients kept between microbatches"))
    return plan.row(kind, "all_reduce", family, times, shards[0][0], note, choices, _STATED)


def _sharded(
    plan: _Plan, kind: str, family: Family, owns: Sequence[_Own], microbatches: int | None
) -> list[TrafficRow]:
    """Rows of weights that a group's ranks hold together: the ``dense`` ones of ``owns``."""
    who = "the experts' " if kind == "edp" else ""
    if family.size == 1:
        return []
    if not owns or (plan.zero > 1 and microbatches is None):
        ops = ("all_reduce",) if plan.zero == 0 else ("all_gather", "reduce_scatter")
        return [plan.row(kind, op, family, None, None, rests_on=_STATED) for op in ops]
    m, dense = microbatches or 1, owns[0].dense

    def row(
        op: str, calls: float, message: float, note: str, choices: Sequence[tuple[float, str]]
    ) -> TrafficRow:
        return plan.row(kind, op, family, calls, message, who + note, choices, _STATED)

    others = [(o.dense, o.words) for o in owns[1:]]
    if plan.zero == 0:
        return [row("all_reduce", 1.0, dense, "gradients, once a step, in buckets", others)]
    if plan.zero == 1:
        return [
            row("reduce_scatter", 1.0, dense, "gradients, once a step, in buckets", others),
            row("all_gather", 1.0, dense, "parameters, once a step, in buckets", others),
        ]
    once = [] if m == 1 else [(dense, "gradients kept between microbatches")]
    each = [(m * total, words) for total, words in others]
    if plan.zero == 2:
        again = [] if m == 1 else [(m * dense, "parameters gathered every microbatch")]
        return [
            row("reduce_scatter", float(m), dense, "gradients, every microbatch", [*each, *once]),
            row("all_gather", 1.0, dense, "parameters, once a step, in buckets", [*others, *again]),
        ]
    layers = _layers_per_rank(plan) or 1
    gathers: list[tuple[float, str]] = []
    for o in owns:
        for kept, what in (
            (0.0, ""),
            (o.head, "the outermost unit gathered once"),
            (o.output, "the output layer gathered once"),
        ):
            if kept or not what:
                words = ", ".join(w for w in (o.words, what) if w)
                gathers.append((m * (2 * o.dense - kept), words))
    gathers.append((m * dense, "parameters stay gathered for the backward"))
    if m > 1:
        gathers.append((dense, "parameters stay gathered for the whole step"))
    return [
        row("all_gather", 2 * layers * m, dense / layers, "a layer at a time, twice", gathers[1:]),
        row("reduce_scatter", layers * m, dense / layers, "a layer at a time", [*each, *once]),
    ]


def _pipeline(plan: _Plan) -> list[TrafficRow]:
    pp, tp = plan.sizes["pp"], plan.sizes["tp"]
    if pp == 1:
        return []
    a, m = _activation(plan), plan.microbatches
    calls = 2.0 * m * plan.sizes["vpp"] if m is not None else None
    split = []
    if tp > 1 and calls is not None and a is not None:
        split = [(calls * a / tp, "split over the tensor-parallel ranks")]
    rows = [
        plan.row(
            "pp",
            "send",
            plan.groups.pp,
            calls,
            a,
            "a middle stage; a t-th with scatter/gather",
            split,
            is_pair=True,
        )
    ]
    model = plan.job.model
    if model.vocabulary and model.hidden:
        size = traffic.embedding_bytes(model.vocabulary, model.hidden, tp, plan.element_bytes)
        note = "tied embedding, first and last stage only"
        ends = plan.row("embedding", "all_reduce", plan.groups.pp, 1.0, size, note, is_pair=True)
        rows.append(ends)
    return rows


def _expert(plan: _Plan) -> list[TrafficRow]:
    ep, model = plan.sizes["ep"], plan.job.model
    if ep == 1:
        return []
    layers, m, batch = _layers_per_rank(plan), plan.microbatches, plan.job.batch
    known = [
        plan.need("model.top_k", model.top_k),
        plan.need("model.hidden", model.hidden),
        plan.need("model.sequence", model.sequence),
        plan.need("batch.micro", batch.micro),
    ]
    if not all(known) or layers is None or m is None:
        return [plan.row("ep", "all_to_all", plan.groups.ep, None, None)]
    tokens = (batch.micro or 0) * (model.sequence or 0) // plan.sizes["cp"]
    size = traffic.expert_bytes(tokens, model.top_k or 1, model.hidden or 0, plan.element_bytes)
    note = "dispatch and combine, forward and backward, every layer taken as an MoE layer"
    return [plan.row("ep", "all_to_all", plan.groups.ep, 4 * layers * m, size, note)]


def _context(plan: _Plan) -> list[TrafficRow]:
    cp, shape = plan.sizes["cp"], plan.shape
    if cp == 1:
        return []
    layers, m, micro = _layers_per_rank(plan), plan.microbatches, plan.job.batch.micro
    if shape is None or layers is None or m is None or micro is None:
        return [plan.row("cp", "send", plan.groups.cp, None, None)]
    forward, backward = traffic.context_bytes_per_layer(
        micro, shape.sequence, shape.kv_hidden / plan.sizes["tp"], cp, plan.element_bytes
    )
    calls = 2.0 * (cp - 1) * layers * m
    message = (forward + backward) / (2 * (cp - 1))
    return [plan.row("cp", "send", plan.groups.cp, calls, message, "ring of keys and values")]


def _step_time(expectation: Expectation, measured_s: float | None) -> StepTime | None:
    """Sums of what is known; None where a term is not."""
    compute_s = expectation.utilisation.ideal_compute_s
    times = [row.ideal_s_per_step for row in expectation.traffic]
    if compute_s is None or any(t is None for t in times):
        return None
    communication_s = sum(t or 0.0 for t in times)
    given = next((b for b in expectation.bubbles if b.is_given), None)
    bubble_s = compute_s * given.bubble_overhead_ratio if given else 0.0
    worst = max(expectation.traffic, key=lambda r: r.ideal_s_per_step or 0.0, default=None)
    dominant = "compute"
    if worst is not None and (worst.ideal_s_per_step or 0.0) > compute_s:
        dominant = f"{worst.group_kind} {worst.op}"
    serial_s = compute_s + communication_s + bubble_s
    ratio = measured_s / serial_s if measured_s else None
    return StepTime(compute_s, communication_s, serial_s, dominant, measured_s, ratio)


def _bubbles(plan: _Plan) -> list[Bubble]:
    pp, m = plan.sizes["pp"], plan.pipelined
    if pp == 1 or m is None:
        return []
    given = plan.job.schedule.kind
    rows = []
    for kind in bubble.KINDS:
        chunks = plan.sizes["vpp"] if kind in ("interleaved-1f1b", "looped-bfs") else 1
        rows.append(
            Bubble(
                kind,
                bubble.bubble_ratio(kind, pp, m, chunks=chunks),
                bubble.bubble_overhead_ratio(kind, pp, m, chunks=chunks),
                kind == given,
            )
        )
    return rows


def _model_state(plan: _Plan) -> float | None:
    experts, among = _expert_parameters(plan), plan.groups.experts
    if plan.parameters is None or experts is None or among is None:
        return None
    split = plan.sizes["tp"] * plan.sizes["pp"]
    dense = (plan.parameters - experts) / split
    held = experts / split / plan.sizes["ep"]
    return memory.model_state_bytes(
        dense, plan.zero, plan.groups.dense.size
    ) + memory.model_state_bytes(held, plan.zero, among.size)


def _memory(plan: _Plan) -> Memory:
    hw, job = plan.job.hardware, plan.job
    state = activation = None
    if plan.parameters is not None:
        state = _model_state(plan)
    layers = _layers_per_rank(plan)
    if plan.shape is not None and layers is not None and job.batch.micro:
        layer_bytes = memory.activation_bytes_per_layer(
            job.batch.micro,
            plan.shape.sequence // plan.sizes["cp"],
            plan.shape.hidden,
            plan.sizes["tp"],
        )
        # 1F1B keeps p microbatches on the first stage, GPipe all.
        kept = plan.sizes["pp"]
        if job.schedule.kind == "gpipe" and plan.microbatches:
            kept = plan.microbatches
        activation = layer_bytes * layers * kept
        plan.assumptions.append("activations with selective recomputation (attention is redone)")
    capacity = hw.gpu_memory_bytes or (plan.gpu.hbm_bytes if plan.gpu else None)
    return Memory(state, activation, float(capacity) if capacity else None)


def _peak(plan: _Plan) -> float | None:
    given = plan.job.hardware.peak_flops_per_s
    if given is not None:
        return given
    peak = plan.gpu.bf16_flops_per_s if plan.gpu else None
    plan.need("hardware.peak_flops_per_s", peak)
    return peak


def _utilisation(plan: _Plan, step_s: float | None) -> Utilisation:
    job, shape = plan.job, plan.shape
    samples = job.batch.global_
    if samples is None and plan.microbatches and job.batch.micro:
        samples = plan.microbatches * job.batch.micro * plan.sizes["dp"]
    if shape is None or samples is None:
        return Utilisation(parameters_count=plan.parameters, step_s=step_s)
    tokens = samples * shape.sequence
    work = tokens * flops.flops_per_token(shape)
    causal = tokens * flops.flops_per_token(shape, is_causal=True)
    # A second forward: a third of forward and backward; the output layer is not redone.
    head = tokens * 6.0 * shape.vocabulary * shape.hidden
    redone = work + (work - head) / 3
    peak = _peak(plan)
    ideal = mfu = hfu = None
    if peak is not None:
        ideal = work / (plan.world * peak)
        if step_s:
            mfu = flops.utilisation_ratio(work, step_s, plan.world, peak)
            hfu = flops.utilisation_ratio(redone, step_s, plan.world, peak)
    return Utilisation(plan.parameters, work, causal, redone, ideal, step_s, mfu, hfu)


def _remarks(used: Utilisation) -> list[str]:
    if used.mfu_ratio is None or used.mfu_ratio <= 1:
        return []
    return [
        f"no GPU computes at {used.mfu_ratio:.0%} of its peak: the step time, the batch, the "
        "model's shape, the number of ranks or the peak is not the job's"
    ]


def _roofline(plan: _Plan) -> Roofline:
    peak, hw, job = _peak(plan), plan.job.hardware, plan.job
    samples, sequence = job.batch.global_, job.model.sequence
    tokens = samples * sequence / plan.world if samples and sequence else None
    if peak is None:
        return Roofline(tokens)
    nvlink = hw.nvlink_bytes_per_s or (plan.gpu.nvlink_bytes_per_s if plan.gpu else None)
    # A GPU holds a part of the weights: what it sends hides behind the tokens of all parts.
    has_experts = plan.sizes["ep"] > 1 and plan.groups.experts is not None
    family = plan.groups.experts if has_experts else plan.groups.dense
    network = plan.network_bytes_per_s(family or plan.groups.dense, is_pooled=True)
    if network is not None:
        network *= plan.sizes["tp"] * plan.sizes["pp"] * (plan.sizes["ep"] if has_experts else 1)
        # A mixture sends the gradients of all its experts and computes a token with some of them.
        network *= (job.model.top_k or 1) / (job.model.experts or job.model.top_k or 1)
    domain = hw.nvlink_domain or hw.gpus_per_node or (plan.gpu.nvlink_domain if plan.gpu else 8)
    ffn = job.model.ffn or (4 * job.model.hidden if job.model.hidden else None)
    ways = None
    if ffn and nvlink and domain > 1:
        ways = roofline.tensor_parallel_ways(ffn, peak, nvlink, domain)
    return Roofline(
        tokens_per_gpu=tokens,
        data_parallel_nvlink_tokens=roofline.data_parallel_tokens(peak, nvlink) if nvlink else None,
        data_parallel_network_tokens=roofline.data_parallel_tokens(peak, network)
        if network
        else None,
        fsdp_network_tokens=roofline.fsdp_tokens(peak, network) if network else None,
        tensor_parallel_ways=ways,
        critical_intensity=plan.gpu.critical_intensity if plan.gpu else None,
    )
