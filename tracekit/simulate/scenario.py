"""A scenario: faults and decoys on one job, what is true of it, and its files on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tracekit.errors import UsageError
from tracekit.simulate import catalogue, nccl
from tracekit.simulate import program as p
from tracekit.simulate.activity import Activity
from tracekit.simulate.effects import Effect, MissingRank, Where
from tracekit.simulate.engine import Conditions, HostModel
from tracekit.simulate.folder import list_files, make_folder
from tracekit.simulate.gpu_counters import GpuCounters, gpu_job_toml
from tracekit.simulate.hardware import GB, GPUS, Topology
from tracekit.simulate.health import Health
from tracekit.simulate.job import Job, Plan
from tracekit.simulate.kineto import STYLES as TRACE_STYLES
from tracekit.simulate.kineto import GroupNames, HostClock, RankWriter
from tracekit.simulate.layout import Layout, parse
from tracekit.simulate.model import ModelShape
from tracekit.simulate.net_counters import NetCounters
from tracekit.simulate.network import LinkState
from tracekit.simulate.noise import REALISTIC, NoiseModel, generator
from tracekit.simulate.nsys import NsysWriter
from tracekit.simulate.telemetry import Telemetry
from tracekit.simulate.words import parted
from tracekit.version import __version__

EPOCH_NS = 1_784_601_667 * 10**9
"""When every simulated job begins: 2026-07-21 02:41:07 UTC."""
STYLES = (*TRACE_STYLES, "nsys", "mixed")
"""How the files look; ``mixed``: even ranks as profiler traces, odd ones as nsys exports."""
DEFAULT_STEPS = 12
HANG_NS = 60 * 10**9
"""How long the profiler goes on after a job has stopped."""
COUNTERS = ("auto", "none", "gpu", "net", "all")
MIN_INTERVAL_S = 0.05
Progress = Callable[[int, int], None]


class Request(Struct, frozen=True):
    """What to simulate."""

    scenario: str = "none"
    """``none``, a fault, or several joined by ``+``; a strength may follow: ``slow-gpu:1.5``."""
    ranks: int = 8
    seed: int = 0
    layout: str = ""
    """Empty: the scenario's first."""
    steps_count: int = DEFAULT_STEPS
    style: str = "kineto"
    noise: NoiseModel = REALISTIC
    decoys: tuple[str, ...] | None = None
    """None: by chance, from the seed."""
    nccl: str = "info"
    """What NCCL logs beside the traces: none, info or coll. Jobs without a GPU have none."""
    counters: str = "auto"
    """Counters beside the traces: none, gpu, net or all; ``auto``: those that show the faults."""
    interval_s: float = 1.0
    """Time between two readings of a counter."""
    layers: int = 0
    """Layers of the model; 0: as many as the layout makes sense with."""


class Scenario(Struct):
    """A plan with faults in it, ready to run."""

    request: Request
    plan: Plan
    twin: Plan
    """The plan of the same job without the faults."""
    faults: list[tuple[catalogue.Fault, Effect]]
    decoys: list[tuple[catalogue.Decoy, Effect | None]]
    clocks: dict[str, HostClock]

    @property
    def name(self) -> str:
        """A name for folder and job."""
        faults = "-and-".join(f.name for f, _ in self.faults) or "healthy"
        return f"{faults}-{self.request.seed}"

    @property
    def is_pods(self) -> bool:
        """Whether each rank names a host of its own."""
        return any(d.name == "one-gpu-pods" for d, _ in self.decoys)

    def host_name(self, rank: int) -> str:
        """The host (or pod) that a rank's files name."""
        return f"trainer-{rank}" if self.is_pods else self.plan.topology.host(rank)

    # --- what is special about a rank in a step -------------------------------------------------

    def conditions(self, rank: int, step: int) -> Conditions:
        """With all faults and decoys."""
        conditions = self.twin_conditions(rank, step)
        for _, effect in self.faults:
            effect.rank(conditions, rank, step)
        return conditions

    def twin_conditions(self, rank: int, step: int) -> Conditions:
        """With the decoys only."""
        conditions = Conditions()
        for decoy, effect in self.decoys:
            _decoy(conditions, decoy.name, effect, rank, step, self.plan.first_step)
        return conditions

    def links(self, step: int) -> LinkState:
        """The network in a step."""
        state = LinkState()
        for _, effect in self.faults:
            effect.links(state, step)
        return state

    def health(self, step: int) -> Health:
        """What counters see in a step."""
        health = Health()
        for _, effect in self.faults:
            effect.counters(health, step)
        return health

    @property
    def counted(self) -> frozenset[str]:
        """What has counters: gpu, net, both or nothing. Jobs without a GPU have none."""
        said = self.request.counters
        if said == "none" or self.request.style == "gloo":
            return frozenset()
        if said != "auto":
            return frozenset(("gpu", "net") if said == "all" else (said,))
        needs = {n for f, _ in self.faults for n in f.needs}
        return frozenset(
            what
            for what, writers in (("gpu", {"dcgm"}), ("net", {"nic", "switch"}))
            if needs & writers
        )

    def job(self, spool: Path | None = None) -> Job:
        """The job itself."""
        return Job(self.plan, self.conditions, self.links, spool=spool)

    def twin_job(self) -> Job:
        """The same job without the faults, of which only the tally is wanted."""
        return Job(self.twin, self.twin_conditions, is_recorded=False)

    @property
    def unwritten(self) -> set[int]:
        """Ranks whose files are missing."""
        effects = [e for _, e in self.faults] + [e for _, e in self.decoys if e is not None]
        return {r for e in effects for r in e.unwritten}


def prepare(request: Request) -> Scenario:
    """The scenario of a request. UsageError for names that do not exist."""
    kinds = _kinds(request.scenario)
    if request.style not in STYLES:
        raise UsageError(
            f"there is no style {request.style!r}", hint=f"styles: {', '.join(STYLES)}"
        )
    if request.nccl not in nccl.DETAILS:
        raise UsageError(
            f"there is no NCCL log {request.nccl!r}", hint=f"one of: {', '.join(nccl.DETAILS)}"
        )
    if request.counters not in COUNTERS:
        raise UsageError(
            f"there are no counters {request.counters!r}", hint=f"one of: {', '.join(COUNTERS)}"
        )
    if not MIN_INTERVAL_S <= request.interval_s <= 60:
        raise UsageError(f"counters are read every {MIN_INTERVAL_S} to 60 seconds")
    if request.ranks < 2 or request.steps_count < 1:
        raise UsageError("a job needs at least 2 ranks and 1 step")
    if request.layers < 0:
        raise UsageError("a model has at least 1 layer (0: as many as the layout makes sense with)")
    words = request.layout or (kinds[0][0].layouts[0] if kinds else "ddp")
    layout = parse(words, request.ranks)
    _check(kinds, layout)
    base = _plan(
        request,
        layout,
        is_network=any(k.is_network for k, _ in kinds),
        is_of_host=any(k.is_of_host for k, _ in kinds),
    )
    faults: list[tuple[catalogue.Fault, Effect]] = []
    plan = twin = base
    taken: set[int] = set()
    for kind, strength in kinds:
        steps = _steps(kind, base)
        rng = generator(request.seed, "culprit", kind.name)
        effect = kind.effect(base, strength, steps, rng)
        for _ in range(20):
            # Two faults at once are at two places, where both are of single ranks.
            if len(effect.ranks) != 1 or not taken & set(effect.ranks):
                break
            effect = kind.effect(base, strength, steps, rng)
        taken |= set(effect.ranks) if len(effect.ranks) == 1 else set()
        plan, twin = effect.changed(plan), effect.without(twin)
        faults.append((kind, effect))
    decoys = _decoys(request, base, {f.name for f, _ in faults}, taken)
    scenario = Scenario(request, plan, twin, faults, decoys, _clocks(request, plan))
    if request.decoys is None:
        scenario.decoys += [(d, None) for d in catalogue.DECOYS if d.counters & scenario.counted]
    return scenario


def what_it_takes(scenario: str) -> tuple[int, float]:
    """Captured steps, and seconds between readings, in which a scenario's faults can show."""
    kinds = [kind for kind, _ in _kinds(scenario)]
    steps = max((k.steps_count for k in kinds), default=DEFAULT_STEPS)
    return steps, min((k.interval_s for k in kinds), default=1.0)


def _kinds(text: str) -> list[tuple[catalogue.Fault, float]]:
    return parted(text, catalogue.BY_NAME, catalogue.HEALTHY)


def _check(kinds: Sequence[tuple[catalogue.Fault, float]], layout: Layout) -> None:
    needs = {
        "stage-imbalance": (layout.pp > 1, "pp4"),
        "hot-expert": (layout.ep > 1, "ep8"),
        "incast": (layout.ep > 1, "ep8"),
        "tensor-group-spans-hosts": (layout.tp > 1, "tp8"),
        "nvlink-fault": (layout.tp > 1, "tp8"),
        "collective-hang": (layout.dp > 1, "ddp"),
        "collective-mismatch": (layout.dp > 1, "ddp"),
    }
    for kind, _ in kinds:
        is_possible, example = needs.get(kind.name, (True, ""))
        if not is_possible:
            raise UsageError(
                f"{kind.name} cannot happen with layout {layout.name!r}",
                hint=f"--layout {example}",
            )


def _plan(request: Request, layout: Layout, *, is_network: bool, is_of_host: bool) -> Plan:
    world = request.ranks
    size = 8 if world % 8 == 0 else 4 if world % 4 == 0 else world
    nic = 50 * GB
    if is_network or is_of_host:
        size = 4 if world >= 8 and world % 4 == 0 else max(1, world // 2)
    if is_network:
        nic = 25 * GB  # slow enough that the network matters to the step
    topology = Topology(
        world, GPUS["h100"], gpus_per_host=size, nvlink_domain=size, nic_bytes_per_s=nic
    )
    shape = ModelShape()
    if layout.pp > 1:
        shape = replace(shape, layers=6 * layout.pp, vocabulary=8192)
        if layout.chunks > 1:
            shape = replace(shape, layers=4 * layout.pp * layout.chunks)
    if request.layers:
        shape = replace(shape, layers=request.layers)
    if layout.ep > 1:
        shape = replace(shape, experts=2 * layout.ep, expert_ffn=1792)
    host = HostModel(is_device=request.style != "gloo")
    name = request.scenario.replace(":", "-").replace("+", "-and-")
    return Plan(
        name, layout, topology, shape, request.seed, request.steps_count, host=host,
        noise=request.noise,
    )  # fmt: skip


def _steps(kind: catalogue.Fault, plan: Plan) -> list[int]:
    steps = list(plan.steps)
    if kind.steps == "window":
        return steps[len(steps) // 2 :]
    if kind.steps == "some":
        return steps[2::3] or steps[-1:]
    if kind.steps == "one":
        return [steps[len(steps) * 2 // 3]]
    return steps


# --- decoys --------------------------------------------------------------------------------------

FIRST_STEP = ("profiler-overhead", "warm-up-step")
"""Decoys that are in the first captured step, and make it unlike the others: what a fault costs in
that step (a host that launches slowly, while the profiler slows every launch) is not its price."""
_DECOY_CHANCE = {
    "hidden-wait": 0.5,
    "profiler-overhead": 0.5,
    "warm-up-step": 0.15,
    "one-gpu-pods": 0.15,
    "missing-rank": 0.1,
    "missing-gpudirect-lines": 0.15,
}


def _decoys(
    request: Request, plan: Plan, faults: set[str], culprits: set[int]
) -> list[tuple[catalogue.Decoy, Effect | None]]:
    """Decoys; the rank whose file is missing is none of ``culprits``, or nothing could be found."""
    if request.decoys is None:
        chance = generator(request.seed, "decoys")
        names = [n for n, share in _DECOY_CHANCE.items() if chance.random() < share]
        if plan.layout.pp > 1 or plan.layout.tp > 1 or plan.layout.sharding != "ddp":
            names = [n for n in names if n != "hidden-wait"]  # nothing hides waits there
        if faults & {"collective-hang", "collective-mismatch", "tensor-group-spans-hosts"}:
            names = [n for n in names if n not in ("missing-rank", "one-gpu-pods")]
        if faults & {"wrong-nic", "shm-instead-of-p2p"}:
            # They show only by who shares a machine, which the logs of pods do not say.
            names = [n for n in names if n != "one-gpu-pods"]
    else:
        names = list(request.decoys)
    decoys: list[tuple[catalogue.Decoy, Effect | None]] = []
    for name in names:
        decoy = catalogue.DECOYS_BY_NAME.get(name)
        if decoy is None:
            raise UsageError(
                f"there is no decoy {name!r}", hint=f"decoys: {', '.join(_DECOY_CHANCE)}"
            )
        rng = generator(request.seed, "decoy", name)
        effect: Effect | None = None
        if name == "missing-rank":
            effect = MissingRank(plan, 1.0, [], rng)
            while culprits & effect.unwritten and len(culprits) < request.ranks:
                effect = MissingRank(plan, 1.0, [], rng)
        elif name == "hidden-wait":
            effect = Effect(plan, 0.06, list(plan.steps), rng)
        decoys.append((decoy, effect))
    return decoys


def _decoy(
    conditions: Conditions, name: str, effect: Effect | None, rank: int, step: int, first: int
) -> None:
    if name == "hidden-wait" and effect is not None and rank in effect.ranks:
        # Slower in one half of the backward, faster in the other.
        amount = effect.strength
        conditions.phases = {"backward_start": 1 + amount, "backward": 1 - amount, "optimizer": 1.0}
    elif name == "profiler-overhead" and step == first:
        conditions.host_scale *= 3.0
    elif name == "warm-up-step" and step == first:
        conditions.hooks["forward"] = [
            (p.BEGIN, "_compile.compile_inner (dynamo_timed)", "user_annotation"),
            (p.HOST, "inductor_compile (dynamo_timed)", "user_annotation", 0.4e9),
            (p.END,),
        ]


def _clocks(request: Request, plan: Plan) -> dict[str, HostClock]:
    """Hosts kept by NTP: some hundred microseconds apart, drifting some ten millionths."""
    rng = generator(request.seed, "clocks")
    return {
        host: HostClock(int(rng.normal(0, 300_000)), int(rng.normal(0, 10_000)))
        for host in plan.topology.hosts
    }


# --- files ---------------------------------------------------------------------------------------


def write(request: Request, output: Path, *, force: bool = False,
          progress: Progress | None = None) -> dict[str, Any]:  # fmt: skip
    """Simulate and write traces, job.toml and truth.json into ``output``; returns the truth."""
    scenario = prepare(request)
    make_folder(output, force)
    plan = scenario.plan
    job = scenario.job(spool=output)
    names = GroupNames(plan)
    top = plan.topology

    def writer(rank: int) -> RankWriter | NsysWriter:
        clock = scenario.clocks[top.host(rank)]
        host_name = scenario.host_name(rank)
        if request.style == "nsys" or (request.style == "mixed" and rank % 2):
            path = output / f"rank{rank}.sqlite"
            return NsysWriter(path, plan, rank, clock, EPOCH_NS, host_name)
        style = "kineto" if request.style == "mixed" else request.style
        path = output / f"rank{rank}.pt.trace.json.gz"
        return RankWriter(path, plan, rank, style, names, clock, EPOCH_NS, host_name)

    writers = [writer(r) for r in range(request.ranks) if r not in scenario.unwritten]
    logs, said, wiring = _nccl(scenario, output, names)
    activity = (
        Activity(job.engine.network, request.ranks, request.interval_s)
        if scenario.counted
        else None
    )
    for done, records in enumerate(job.run(), 1):
        for trace in writers:
            trace.add(records[trace.rank])
        for log in logs:
            log.add(records[log.rank])
        if said is not None:
            for record in records:
                said.add(record)
        if activity is not None:
            activity.add(records)
        records.clear()  # or they would stay while the next step is simulated
        if progress is not None:
            progress(done, request.steps_count)
    for trace in writers:
        trace.close(HANG_NS if job.is_hung else 0)
    writers.clear()  # each has its compressor
    if said is not None and job.is_hung:
        (output / "train.log").write_text("".join(f"{line}\n" for line in said.lines()))
    more = _counters(scenario, output, activity, wiring, job) if activity is not None else []
    truth = truth_of(scenario, job)
    (output / "truth.json").write_text(json.dumps(truth, indent=2) + "\n")
    text = job_toml(scenario) + "".join(f"{line}\n" for line in more)
    (output / "job.toml").write_text(text)
    list_files(output)
    return truth


def _counters(
    scenario: Scenario, output: Path, activity: Activity, wiring: nccl.Wiring | None, job: Job
) -> list[str]:
    """Writes the counters; returns what a user would know of them, as lines of job.toml."""
    request, plan = scenario.request, scenario.plan
    activity.finish(is_hung=job.is_hung)
    nics = wiring.nics if wiring is not None else {}
    telemetry = Telemetry(
        plan,
        activity,
        [scenario.health(step) for step in activity.steps],
        scenario.clocks,
        EPOCH_NS,
        request.interval_s,
        scenario.host_name,
        frozenset(d.name for d, _ in scenario.decoys),
        lambda rank: nics.get(rank, plan.topology.rail(rank)),
    )
    lines: list[str] = []
    if "gpu" in scenario.counted:
        GpuCounters(telemetry).write(output)
        lines += gpu_job_toml(telemetry, is_known=wiring is not None and not scenario.is_pods)
    if "net" in scenario.counted:
        network = NetCounters(telemetry)
        network.write(output)
        lines += network.job_toml()
    return lines


def _nccl(
    scenario: Scenario, output: Path, names: GroupNames
) -> tuple[list[nccl.Log], nccl.JobOutput | None, nccl.Wiring | None]:
    """A log of each process whose files are there, the job's own output, and its wiring."""
    request, plan = scenario.request, scenario.plan
    if request.nccl == "none" or not plan.host.is_device:
        return [], None, None
    wiring = nccl.wiring_of(
        plan, [(f.name, e) for f, e in scenario.faults], [d.name for d, _ in scenario.decoys]
    )
    groups = nccl.groups_of(plan)
    logs = []
    for rank in range(request.ranks):
        host = scenario.host_name(rank)
        if rank not in scenario.unwritten:
            path = output / f"nccl.{host}.{20_000 + rank}.log"
            logs.append(nccl.Log(path, plan, rank, wiring, groups, request.nccl, host))
    return logs, nccl.JobOutput(plan, names), wiring


def job_toml(scenario: Scenario) -> str:
    """What a user would know of the job."""
    layout, shape, top = scenario.plan.layout, scenario.plan.shape, scenario.plan.topology
    lines = [
        f'name = "{scenario.name}"', "", "[parallelism]", f"tp = {layout.tp}", f"pp = {layout.pp}",
        f"dp = {layout.dp}", f"ep = {layout.ep}", f"cp = {layout.cp}",
        *([f"dp_replicate = {layout.replicate}"] if layout.replicate > 1 else []),
        f"zero_stage = {layout.zero_stage}",
    ]  # fmt: skip
    if layout.chunks > 1:
        lines.append(f"vpp = {layout.chunks}")
    lines += ["", "[schedule]"]
    if layout.pp > 1:
        lines.append(f'kind = "{layout.schedule}"')
    lines += [
        f"microbatches = {layout.microbatches}", "", "[model]", f"layers = {shape.layers}",
        f"hidden = {shape.hidden}", f"heads = {shape.heads}", f"kv_heads = {shape.kv_heads}",
        f"ffn = {shape.expert_ffn if shape.experts else shape.ffn}",
        f"vocabulary = {shape.vocabulary}", f"sequence = {shape.sequence}", 'dtype = "bfloat16"',
    ]  # fmt: skip
    if shape.experts:
        lines += [f"experts = {shape.experts}", f"top_k = {shape.top_k}"]
    batch = shape.micro_batch * layout.microbatches * layout.dp
    lines += ["", "[batch]", f"global = {batch}", f"micro = {shape.micro_batch}"]
    if scenario.request.style != "gloo":
        lines += [
            "", "[hardware]", f'gpu = "{top.gpu.name}"', f"gpus_per_node = {top.gpus_per_host}",
            f"nics_per_node = {top.gpus_per_host}", f"nic_bytes_per_s = {top.nic_bytes_per_s:.0f}",
            f"nvlink_domain = {top.nvlink_domain}",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def truth_of(scenario: Scenario, job: Job) -> dict[str, Any]:
    """The truth of a job that has run: its faults, and what they cost beside its twin."""
    request, plan = scenario.request, scenario.plan
    layout = plan.layout
    twin = scenario.twin_job() if scenario.faults else None
    if twin is not None:
        for records in twin.run():
            records.clear()
    ran = [n for n in job.tally.step_ns if n]
    last = plan.first_step + max((len(n) for n in ran), default=1) - 1
    mean = _mean_step_s(job)
    odd = int(any(d.name in FIRST_STEP for d, _ in scenario.decoys))
    return {
        "schema_version": 1,
        "name": scenario.name,
        "origin": "simulated",
        "producer": {"tracekit": __version__, "scenario": request.scenario, "style": request.style},
        "seed": request.seed,
        "world_size": request.ranks,
        "layout": {
            "tp": layout.tp, "pp": layout.pp, "dp": layout.dp, "ep": layout.ep, "cp": layout.cp,
        },
        "steps": {"first": plan.first_step, "last": last},
        "faults": [_fault(scenario, kind, effect) for kind, effect in scenario.faults],
        "decoys": [_truth_decoy(d, effect, plan) for d, effect in scenario.decoys],
        "inherent_rules": ["exposed-communication", "excess-bubble", "low-mfu"],
        "measured": {
            "step_s": [round(sum(n) / len(n) / 1e9, 9) if n else 0.0 for n in job.tally.step_ns],
            "compute_s_per_step": [
                round(c / plan.steps_count / 1e9, 9) for c in job.tally.compute_ns
            ],
            "step_s_with_fault": mean if scenario.faults and not job.is_hung else None,
            "step_s_without_fault": _mean_step_s(twin) if twin is not None else None,
            "steady_step_s_with_fault": (
                _mean_step_s(job, odd) if scenario.faults and not job.is_hung else None
            ),
            "steady_step_s_without_fault": (
                _mean_step_s(twin, odd) if twin is not None else None
            ),
            "without_fault_from": "the same job and seed without the fault" if twin else None,
            "is_hung": job.is_hung,
            "host_clock_offset_s": {h: c.offset_ns / 1e9 for h, c in scenario.clocks.items()},
            "missing_writers": sorted({w for f, _ in scenario.faults for w in f.missing_writers}),
        },
    }  # fmt: skip


def _mean_step_s(job: Job, first: int = 0) -> float | None:
    """Mean over ranks and steps, from the ``first`` captured one on."""
    times = [t for rank in job.tally.step_ns for t in rank[first:]]
    return round(sum(times) / len(times) / 1e9, 9) if times else None


def _where(scenario: Scenario, effect: Effect) -> Where:
    """The place of a fault, with hosts as the files name them."""
    place, top = effect.where(), scenario.plan.topology
    if scenario.is_pods:
        ranks = [r for h in place["hosts"] for r in top.ranks_of_host(str(h))]
        struck = effect.ranks or ranks
        place["hosts"] = [scenario.host_name(r) for r in ranks if r in struck]
    return place


def _fault(scenario: Scenario, kind: catalogue.Fault, effect: Effect) -> dict[str, Any]:
    return {
        "fault": kind.name,
        "where": _where(scenario, effect),
        "first_step": effect.steps[0],
        "last_step": effect.steps[-1],
        "steps": effect.steps,
        "strength": {
            "name": kind.strength_name, "value": effect.strength, "unit": kind.unit,
        },
        "expected_rules": list(kind.rules),
        "allowed_rules": list(kind.allowed),
        "symptom_rules": list(kind.symptoms),
    }  # fmt: skip


def _truth_decoy(decoy: catalogue.Decoy, effect: Effect | None, plan: Plan) -> dict[str, Any]:
    ranks = effect.ranks if effect is not None else []
    where = {"ranks": ranks, "hosts": [], "stages": [], "links": [], "groups": []}
    truth: dict[str, Any] = {
        "decoy": decoy.name, "where": where, "forbidden_rules": list(decoy.forbidden),
    }  # fmt: skip
    if decoy.name in FIRST_STEP:
        truth |= {"first_step": plan.first_step, "last_step": plan.first_step}
    return truth
