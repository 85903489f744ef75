"""The lists of figures and of a page's tables."""

from __future__ import annotations

from tracekit.dashboards.comm_figures import overlap, traffic
from tracekit.dashboards.device_figures import gpu_levels, port_growth
from tracekit.dashboards.drawing import Chart, Listing
from tracekit.dashboards.history_figures import history
from tracekit.dashboards.lateness_figures import (
    bubbles,
    delay_matrix,
    late_ranks,
    stage_replicas,
)
from tracekit.dashboards.nccl_tables import benchmarks, choices, communicators
from tracekit.dashboards.port_tables import port_counters, port_levels
from tracekit.dashboards.step_figures import rank_time, step_times
from tracekit.dashboards.work_figures import matrix_rates, memory, roofline
from tracekit.dashboards.work_tables import (
    MAX_SELF_TIME_RANKS,
    kernels,
    modules,
    operators,
    parts,
)

CHARTS: tuple[Chart, ...] = (
    Chart(
        name="step_times",
        title="How long each step took",
        section="steps",
        queries=("step_breakdown",),
        draw=step_times,
        needs="traces with two or more whole steps",
        marks_findings=True,
    ),
    Chart(
        name="rank_time",
        title="Where a rank's step goes",
        section="steps",
        queries=("step_breakdown",),
        draw=rank_time,
        needs="traces with steps",
    ),
    Chart(
        name="history",
        title="How long the job's steps took",
        section="steps",
        queries=("job_step_curve", "slow_episode"),
        draw=history,
        needs="a training log that tells how long steps took",
    ),
    Chart(
        name="late_ranks",
        title="Who was late in which step",
        section="lateness",
        queries=("late_steps", "step_breakdown"),
        draw=late_ranks,
        needs="collectives that were matched across ranks and a rank that others waited for",
    ),
    Chart(
        name="delay_matrix",
        title="Who waited for whom",
        section="lateness",
        queries=("delay_matrix", "step_breakdown"),
        draw=delay_matrix,
        needs="collectives that were matched across ranks and a rank that others waited for",
    ),
    Chart(
        name="stage_replicas",
        title="How long each stage and replica computes",
        section="lateness",
        queries=("pipeline_heat_map",),
        draw=stage_replicas,
        needs="operations of a pipeline",
    ),
    Chart(
        name="bubbles",
        title="For how long each stage is idle",
        section="lateness",
        queries=("bubble",),
        draw=bubbles,
        needs="operations of a pipeline",
    ),
    Chart(
        name="overlap",
        title="How much communication is hidden",
        section="communication",
        queries=("overlap",),
        draw=overlap,
        needs="traces with communication",
    ),
    Chart(
        name="traffic",
        title="What is sent, and what the layout needs",
        section="communication",
        queries=("traffic",),
        draw=traffic,
        needs="collectives whose sizes are known",
    ),
    Chart(
        name="matrix_rates",
        title="How fast matrices are multiplied",
        section="work",
        queries=("gemm_efficiency",),
        draw=matrix_rates,
        needs="GPU traces with shapes (record_shapes=True)",
    ),
    Chart(
        name="roofline",
        title="What bounds the matrix products",
        section="work",
        queries=("gemm_efficiency",),
        draw=roofline,
        needs="GPU traces with shapes (record_shapes=True)",
    ),
    Chart(
        name="memory",
        title="Memory over time",
        section="work",
        queries=("memory_timeline",),
        draw=memory,
        needs="allocations recorded in a trace (profile_memory=True)",
    ),
    Chart(
        name="gpu_levels",
        title="Clock, heat and power of GPUs",
        section="devices",
        queries=("gpu_series", "step_breakdown"),
        draw=gpu_levels,
        needs="GPU counters read at two times or more",
        marks_findings=True,
    ),
    Chart(
        name="port_growth",
        title="What ports counted in each step",
        section="devices",
        queries=("port_steps", "step_breakdown"),
        draw=port_growth,
        needs="counters of NICs or switches with times, beside traces",
        marks_findings=True,
    ),
)

LISTINGS: tuple[Listing, ...] = (
    Listing(
        name="benchmark-table",
        title="Benchmarks of NCCL",
        section="communication",
        query="nccl_bench",
        make=benchmarks,
    ),
    Listing(
        name="communicator-table",
        title="Communicators of NCCL",
        section="communication",
        query="nccl_comms",
        make=communicators,
    ),
    Listing(
        name="choice-table",
        title="What NCCL chose",
        section="communication",
        query="nccl_choices",
        make=choices,
    ),
    Listing(
        name="operator-table",
        title="Operators",
        section="work",
        query="operator_summary",
        make=operators,
        max_ranks=MAX_SELF_TIME_RANKS,
    ),
    Listing(
        name="module-table",
        title="Modules and named ranges",
        section="work",
        query="module_summary",
        make=modules,
        max_ranks=MAX_SELF_TIME_RANKS,
    ),
    Listing(
        name="self-time-table",
        title="What a mean step goes into",
        section="work",
        query="self_time",
        make=parts,
        max_ranks=MAX_SELF_TIME_RANKS,
    ),
    Listing(
        name="kernel-table",
        title="Kernels and copies",
        section="work",
        query="kernel_summary",
        make=kernels,
    ),
    Listing(
        name="port-table",
        title="What ports counted",
        section="devices",
        query="port_counters",
        make=port_counters,
    ),
    Listing(
        name="port-level-table",
        title="Levels of ports",
        section="devices",
        query="port_levels",
        make=port_levels,
    ),
)
