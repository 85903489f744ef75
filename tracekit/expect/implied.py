"""Everything that a job description implies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.expect import bubble, flops, memory, roofline
from tracekit.expect.expectation import Bubble, Expectation, Memory, Roofline, StepTime, Utilisation
from tracekit.expect.plan import Plan
from tracekit.expect.rows import traffic_rows

if TYPE_CHECKING:
    from tracekit.job import JobDescription


def expect(
    job: JobDescription,
    *,
    step_s: float | None = None,
    tokens: float | None = None,
) -> Expectation:
    """Everything that a job description implies.

    ``step_s`` is a measured step time, ``tokens`` the length of the training.
    """
    plan = Plan(job)
    expectation = Expectation(dict(plan.sizes), plan.microbatches)
    expectation.traffic = traffic_rows(plan)
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


def _bubbles(plan: Plan) -> list[Bubble]:
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


def _model_state(plan: Plan) -> float | None:
    experts, among = plan.expert_parameters(), plan.groups.experts
    if plan.parameters is None or experts is None or among is None:
        return None
    split = plan.sizes["tp"] * plan.sizes["pp"]
    dense = (plan.parameters - experts) / split
    held = experts / split / plan.sizes["ep"]
    return memory.model_state_bytes(
        dense, plan.zero, plan.groups.dense.size
    ) + memory.model_state_bytes(held, plan.zero, among.size)


def _memory(plan: Plan) -> Memory:
    hw, job = plan.job.hardware, plan.job
    state = activation = None
    if plan.parameters is not None:
        state = _model_state(plan)
    layers = plan.layers_per_rank()
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


def _peak(plan: Plan) -> float | None:
    given = plan.job.hardware.peak_flops_per_s
    if given is not None:
        return given
    peak = plan.gpu.bf16_flops_per_s if plan.gpu else None
    plan.need("hardware.peak_flops_per_s", peak)
    return peak


def _utilisation(plan: Plan, step_s: float | None) -> Utilisation:
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


def _roofline(plan: Plan) -> Roofline:
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
