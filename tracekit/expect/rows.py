"""What a GPU sends, family by family: the rows of traffic."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tracekit.expect import traffic
from tracekit.expect.expectation import TrafficRow
from tracekit.expect.groups import Family
from tracekit.expect.plan import Plan


def traffic_rows(plan: Plan) -> list[TrafficRow]:
    """What a GPU of a middle stage sends in a step, family by family."""
    return [
        *_tensor(plan),
        *_data(plan),
        *_pipeline(plan),
        *_expert(plan),
        *_context(plan),
    ]


def _activation(plan: Plan) -> float | None:
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


def _tensor(plan: Plan) -> list[TrafficRow]:
    tp = plan.sizes["tp"]
    if tp == 1:
        return []
    layers, m, a = plan.layers_per_rank(), plan.microbatches, _activation(plan)
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


class _Own(Struct, frozen=True):
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


def _own_parameters(plan: Plan) -> list[_Own]:
    """What the description gives, first as it is taken, then with open questions answered."""
    experts = plan.expert_parameters()
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


def _data(plan: Plan) -> list[TrafficRow]:
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
    plan: Plan,
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
    plan: Plan, kind: str, family: Family, owns: Sequence[_Own], microbatches: int | None
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
    layers = plan.layers_per_rank() or 1
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


def _pipeline(plan: Plan) -> list[TrafficRow]:
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


def _expert(plan: Plan) -> list[TrafficRow]:
    ep, model = plan.sizes["ep"], plan.job.model
    if ep == 1:
        return []
    layers, m, batch = plan.layers_per_rank(), plan.microbatches, plan.job.batch
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


def _context(plan: Plan) -> list[TrafficRow]:
    cp, shape = plan.sizes["cp"], plan.shape
    if cp == 1:
        return []
    layers, m, micro = plan.layers_per_rank(), plan.microbatches, plan.job.batch.micro
    if shape is None or layers is None or m is None or micro is None:
        return [plan.row("cp", "send", plan.groups.cp, None, None)]
    forward, backward = traffic.context_bytes_per_layer(
        micro, shape.sequence, shape.kv_hidden / plan.sizes["tp"], cp, plan.element_bytes
    )
    calls = 2.0 * (cp - 1) * layers * m
    message = (forward + backward) / (2 * (cp - 1))
    return [plan.row("cp", "send", plan.groups.cp, calls, message, "ring of keys and values")]
