"""What a layout implies, as data: traffic, bubble, memory, FLOPs, rooflines."""

from __future__ import annotations

from msgspec import Struct, field

Axes = tuple[tuple[int, int], ...]
"""Of the ranks of a group, along each axis: the distance between neighbours, and how many."""


class Choice(Struct, frozen=True):
    """What a GPU sends in a step if an open question is answered otherwise."""

    bytes_per_step: float
    words: str


class TrafficRow(Struct, frozen=True):
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
    axes: Axes = ()
    """Where the ranks of a group lie; of a pair, those of the family that it is of."""

    @property
    def range_bytes(self) -> tuple[float, float] | None:
        """Least and most bytes a step that the description allows."""
        if self.bytes_per_step is None:
            return None
        amounts = [self.bytes_per_step, *(c.bytes_per_step for c in self.choices)]
        return min(amounts), max(amounts)


class Utilisation(Struct, frozen=True):
    """FLOPs of a step against the hardware."""

    parameters_count: float | None = None
    model_flops_per_step: float | None = None
    causal_model_flops_per_step: float | None = None
    recomputed_flops_per_step: float | None = None
    ideal_compute_s: float | None = None
    step_s: float | None = None
    mfu_ratio: float | None = None
    hfu_ratio: float | None = None


class Bubble(Struct, frozen=True):
    """What the schedule cannot avoid, with F : B = 1 : 2."""

    schedule: str
    bubble_ratio: float
    """Idle over window."""
    bubble_overhead_ratio: float
    """Idle over busy."""
    is_given: bool


class Memory(Struct, frozen=True):
    """Bytes a GPU; activations on the first stage, which keeps the most microbatches."""

    model_state_bytes: float | None = None
    activation_bytes: float | None = None
    capacity_bytes: float | None = None


class Roofline(Struct, frozen=True):
    """Tokens a GPU above which communication can be hidden."""

    tokens_per_gpu: float | None = None
    data_parallel_nvlink_tokens: float | None = None
    data_parallel_network_tokens: float | None = None
    fsdp_network_tokens: float | None = None
    tensor_parallel_ways: float | None = None
    critical_intensity: float | None = None


class StepTime(Struct, frozen=True):
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


class Expectation(Struct):
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
