"""Every fault costs about what it says, beside the same job without it."""

from __future__ import annotations

import pytest
from msgspec.structs import astuple

from accuracy.suite import PAIRS
from soaks import examples, soak
from tracekit.simulate import Request, prepare
from tracekit.simulate.catalogue import BY_NAME, FAULTS, Fault
from tracekit.simulate.health import Health
from tracekit.simulate.job import Job

STEPS = 6


def mean_step_s(job: Job) -> float:
    for _ in job.run():
        pass
    times = [t for rank in job.tally.step_ns for t in rank]
    return sum(times) / len(times) / 1e9


def both(scenario: str, ranks: int = 8, layout: str = "", seed: int = 21) -> tuple[float, float]:
    """Mean step with the fault and without, seconds."""
    prepared = prepare(Request(scenario, ranks, seed, layout, steps_count=STEPS, decoys=()))
    return mean_step_s(prepared.job()), mean_step_s(prepared.twin_job())


BEFORE_THE_STEPS = ("init-straggler",)


def test_what_is_late_before_the_steps_costs_none_of_them() -> None:
    slow, fast = both("init-straggler", 16)
    assert slow == fast


COSTLY = [f.name for f in FAULTS if not f.is_hang and f.name not in BEFORE_THE_STEPS]
OF_EACH_KIND = [
    "allocator-stall", "checkpoint-stall", "ecn-congestion", "hot-expert", "incast",
    "launch-bound", "recompile", "sequence-imbalance", "sync-stall",
]  # fmt: skip


@pytest.mark.parametrize("name", soak(COSTLY, fast=OF_EACH_KIND))
def test_every_fault_costs_something(name: str) -> None:
    slow, fast = both(name, examples(8, 16))
    assert slow > fast * 1.02


@pytest.mark.parametrize(
    ("scenario", "layout"), [("slow-gpu:1.5", "ddp"), ("slow-gpu:1.3", "fsdp")]
)
def test_a_slow_gpu_slows_everybody_by_its_own_ratio(scenario: str, layout: str) -> None:
    slow, fast = both(scenario, layout=layout)
    assert slow / fast == pytest.approx(float(scenario.split(":")[1]), rel=0.05)


@pytest.mark.parametrize(
    ("scenario", "share"),
    [
        ("dataloader-stall:0.2", 0.5),  # half of the steps
        ("gc-pause:0.5", 1 / 3),
        ("checkpoint-stall:1.0", 1 / 3),
        ("recompile:1.0", 1 / 3),
        ("allocator-stall:0.1", 1.0),
    ],
)
def test_a_stall_costs_its_time_in_its_steps(scenario: str, share: float) -> None:
    slow, fast = both(scenario, layout="ddp")
    amount = float(scenario.split(":")[1])
    # Part of a stall hides behind what the device still had to do.
    assert 0.75 * amount * share < slow - fast < 1.15 * amount * share


def test_a_third_more_layers_in_one_stage() -> None:
    slow, fast = both("stage-imbalance:1.5", layout="pp4-m8")
    assert 1.2 < slow / fast < 1.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    soak(
        ["slow-gpu", "link-degraded", "sequence-imbalance", "hot-expert", "packet-loss"],
        fast=["slow-gpu", "packet-loss"],
    ),
)
def test_stronger_is_slower(name: str) -> None:
    costs = []
    for strength in BY_NAME[name].strengths:
        slow, fast = both(f"{name}:{strength:g}", 16)
        costs.append(slow - fast)
    assert costs == sorted(costs)


def test_without_faults_the_twin_is_the_job() -> None:
    slow, fast = both("none")
    assert slow == fast


# A pair of a pipeline and one of data parallelism.
@pytest.mark.slow
@pytest.mark.parametrize(
    "pair",
    soak(
        [(p,) for p in PAIRS],
        fast=[(("stage-imbalance", "dataloader-stall"),), (("slow-gpu", "dataloader-stall"),)],
    ),
)
def test_two_faults_cost_at_least_as_much_as_each(pair: tuple[str, str]) -> None:
    layout = "pp4-m8" if "stage-imbalance" in pair else "ddp-m2"
    together, _ = both("+".join(pair), layout=layout)
    for one in pair:
        alone, _ = both(one, layout=layout)
        assert together >= alone * 0.97


@pytest.mark.parametrize(
    "fault", [f for f in FAULTS if {"dcgm", "nic", "switch"} & {*f.needs}], ids=lambda f: f.name
)
def test_counters_see_a_fault_that_only_they_show_in_its_steps(fault: Fault) -> None:
    scenario = prepare(Request(fault.name, 16, 21, "", steps_count=STEPS, decoys=()))
    steps = range(scenario.plan.first_step, scenario.plan.first_step + STEPS)
    seen = [scenario.health(step) for step in steps]
    assert any(health != Health() for health in seen)
    for health in seen:
        for shown in astuple(health):
            assert set(shown) <= set(range(16))


def test_every_fault_names_a_rule_and_a_place() -> None:
    for fault in FAULTS:
        assert fault.rules and fault.layouts and fault.strengths
        scenario = prepare(Request(fault.name, 16, 1))
        where = scenario.faults[0][1].where()
        assert set(where) == {"ranks", "hosts", "stages", "links", "groups"}
