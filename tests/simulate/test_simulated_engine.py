"""What must hold in any simulated job: nobody leaves before all have come, streams run in order."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soaks import examples, soak
from tracekit.errors import UsageError
from tracekit.simulate import program as p
from tracekit.simulate.catalogue import FAULTS
from tracekit.simulate.hardware import Topology
from tracekit.simulate.job import StepRecord
from tracekit.simulate.layout import parse
from tracekit.simulate.network import LinkState, Network
from tracekit.simulate.records import Operation, Transfer
from tracekit.simulate.scenario import Request, prepare

LAYOUTS = (
    "ddp", "ddp-m2", "zero1", "zero2-m2", "fsdp", "hsdp2", "tp2", "tp4-sp-m2", "pp4-m8",
    "pp4-gpipe-m4", "pp2-vpp2-m4", "pp4-zbh1-m8", "ep8", "ep4", "cp2", "cp4", "tp2-pp2-m2-titan",
    "tp2-cp2-pp2-m2",
)  # fmt: skip


def run(request: Request) -> list[list[StepRecord]]:
    return list(prepare(request).job().run())


def check(steps: list[list[StepRecord]]) -> None:
    last: dict[tuple[int, int], int] = defaultdict(int)
    for records in steps:
        for record in records:
            for operation in record.operations:
                assert operation.start >= operation.launch
                assert operation.end >= operation.start
                if operation.transfer is not None:
                    assert operation.end >= operation.transfer.latest >= operation.start
                key = (record.rank, operation.stream)
                assert operation.start >= last[key], "two operations overlap on one stream"
                last[key] = operation.end


@settings(max_examples=examples(6, 25))
@given(
    layout=st.sampled_from(LAYOUTS),
    seed=st.integers(0, 10_000),
    fault=st.sampled_from(["none", "slow-gpu:1.5", "gc-pause", "dataloader-stall", "slow-host"]),
)
def test_causality(layout: str, seed: int, fault: str) -> None:
    check(run(Request(fault, 8, seed, layout, steps_count=2)))


@pytest.mark.parametrize("layout", soak(LAYOUTS, fast=["cp2", "hsdp2", "pp4-zbh1-m8", "zero1"]))
def test_every_layout_runs_to_its_end(layout: str) -> None:
    steps = run(Request("none", 16, 3, layout, steps_count=2))
    assert len(steps) == 2
    assert all(r.is_complete for records in steps for r in records)


@pytest.mark.parametrize("layout", soak(LAYOUTS, fast=6))
def test_all_members_take_part_in_the_same_collectives(layout: str) -> None:
    for records in run(Request("none", 8, 5, layout, steps_count=2)):
        members: dict[Transfer, list[tuple[int, Operation]]] = defaultdict(list)
        for record in records:
            for operation in record.operations:
                if operation.transfer is not None:
                    members[operation.transfer].append((record.rank, operation))
        for transfer, came in members.items():
            assert sorted(r for r, _ in came) == sorted(transfer.ranks)
            assert len({(o.sequence, o.size_bytes) for _, o in came}) == 1
            assert transfer.latest == max(o.start for _, o in came)


def test_steps_follow_each_other_on_the_host() -> None:
    steps = run(Request("none", 8, 1, "fsdp", steps_count=3))
    for before, after in pairwise(steps):
        for one, two in zip(before, after, strict=True):
            assert one.end_ns == two.start_ns


def parts_ns(record: StepRecord, start: int, end: int) -> dict[str, int]:
    """How a rank's step divides: every moment is one of these."""
    edges = {start, end}
    spans: list[tuple[int, int, str]] = []
    for o in record.operations:
        kind = "compute" if o.transfer is None else "communication"
        lo, hi = max(o.start, start), min(o.end, end)
        if lo < hi:
            spans.append((lo, hi, kind))
            edges |= {lo, hi}
    ordered = sorted(edges)
    found = {"compute": 0, "communication": 0, "idle": 0}
    for lo, hi in pairwise(ordered):
        kinds = {k for a, b, k in spans if a <= lo and hi <= b}
        name = "compute" if "compute" in kinds else "communication" if kinds else "idle"
        found[name] += hi - lo
    return found


def test_a_step_is_the_sum_of_its_parts() -> None:
    steps = run(Request("none", 4, 2, "ddp", steps_count=1))
    for record in steps[0]:
        parts = parts_ns(record, record.start_ns, record.end_ns)
        assert sum(parts.values()) == record.end_ns - record.start_ns
        assert parts["compute"] > parts["idle"]


def test_a_slow_rank_makes_the_others_wait_and_waits_least() -> None:
    request = Request("slow-gpu:1.5", 8, 11, "ddp", steps_count=2, decoys=())
    scenario = prepare(request)
    (culprit,) = scenario.faults[0][1].ranks
    waits: dict[int, int] = defaultdict(int)
    for records in scenario.job().run():
        for record in records:
            for o in record.operations:
                if o.transfer is not None:
                    waits[record.rank] += o.transfer.latest - o.start
    assert min(waits, key=lambda r: waits[r]) == culprit


def test_waits_under_compute_cost_nothing() -> None:
    """The hidden-wait decoy delays collectives, and the step hardly."""

    def mean_ns(decoys: tuple[str, ...]) -> float:
        scenario = prepare(Request("none", 8, 4, "ddp", steps_count=6, decoys=decoys))
        job = scenario.job()
        for _ in job.run():
            pass
        return sum(map(sum, job.tally.step_ns)) / 48

    assert mean_ns(("hidden-wait",)) == pytest.approx(mean_ns(()), rel=0.01)


@pytest.mark.parametrize("fault", ["collective-hang", "collective-mismatch"])
def test_a_hang_ends_the_job(fault: str) -> None:
    scenario = prepare(Request(fault, 8, 1, "ddp", steps_count=6))
    job = scenario.job()
    steps = list(job.run())
    assert job.is_hung
    assert len(steps) == 5  # four whole ones and the one that hangs
    unfinished = [o for r in steps[-1] for o in r.operations if o.end < 0]
    assert unfinished and all(isinstance(o, Operation) for o in unfinished)
    check(steps[:-1])


# --- the network ---------------------------------------------------------------------------------


def test_ring_and_hierarchy_take_what_they_should() -> None:
    top = Topology(64, efficiency=1.0)
    top = Topology(64, efficiency=1.0, latency=type(top.latency)(0.0, 0.0, 0.0))
    network = Network(top)
    eight = tuple(range(8))
    ring_ns = network.collective_ns("all_reduce", 1e9, eight)
    assert ring_ns == pytest.approx(3.889e6, rel=1e-3)
    one_gpu_a_host = tuple(range(0, 64, 8))
    between = network.collective_ns("all_gather", 1e9, one_gpu_a_host)
    assert between == pytest.approx(1e9 * 7 / 8 / 50e9 * 1e9, rel=1e-6)
    everybody = network.collective_ns("all_gather", 1e9, tuple(range(64)))
    assert everybody < between, "eight NICs a host carry it together"


def test_the_slowest_nic_sets_the_pace() -> None:
    network = Network(Topology(16, gpus_per_host=4, nvlink_domain=4))
    ranks = tuple(range(16))
    whole = network.collective_ns("all_reduce", 1e9, ranks)
    half = network.collective_ns("all_reduce", 1e9, ranks, LinkState(nic_factor={5: 0.5}))
    assert half == pytest.approx(2 * whole, rel=0.02)
    inside = tuple(range(4))
    state = LinkState(nic_factor={1: 0.1})
    assert network.collective_ns("all_reduce", 1e9, inside, state) == network.collective_ns(
        "all_reduce", 1e9, inside
    )


# --- the layout ----------------------------------------------------------------------------------


def test_groups_partition_the_ranks_in_megatron_order() -> None:
    layout = parse("tp2-cp2-pp2", 16)
    assert layout.group(0, "tp") == (0, 1)
    assert layout.group(0, "cp") == (0, 2)
    assert layout.group(0, "pp") == (0, 8)
    assert layout.group(0, "dp") == (0, 2, 4, 6)
    for role in layout.roles:
        groups = {layout.group(r, role) for r in range(16)}
        listed = sorted(r for g in groups for r in g)
        assert listed == list(range(16))


def test_replicas_of_shards() -> None:
    layout = parse("hsdp2", 8)
    assert layout.group(0, "dp") == (0, 1, 2, 3)
    assert layout.group(1, "replicate") == (1, 5)
    assert layout.zero_stage == 3


@pytest.mark.parametrize(
    ("words", "ranks"), [("tp3", 8), ("nonsense", 8), ("ep8", 4), ("pp4-vpp2-m6", 8), ("tp0", 8)]
)
def test_layouts_that_cannot_be(words: str, ranks: int) -> None:
    with pytest.raises(UsageError):
        parse(words, ranks)


def test_names_of_programs_are_distinct() -> None:
    codes = [p.KERNEL, p.COLLECTIVE, p.MESSAGE, p.WAIT, p.WAIT_SLOT, p.RECORD, p.SYNC, p.BEGIN,
             p.END, p.HOST, p.THREAD, p.MARK]  # fmt: skip
    assert sorted(codes) == list(range(12))


def test_fault_names_are_unique() -> None:
    names = [f.name for f in FAULTS]
    assert len(names) == len(set(names))
