"""What moved between two sides, on rows written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from tracekit.comparison import moved
from tracekit.comparison.model import Moved
from tracekit.comparison.sides import RunRows
from tracekit.report.model import Document
from tracekit.rules import Facts
from tracekit.rules.steps import Steps

NO_DOCUMENT = cast("Document", None)  # these figures ask nothing of it


def a_run(steps: Steps | None = None, **rows: Sequence[Mapping[str, Any]]) -> RunRows:
    return RunRows("run", NO_DOCUMENT, steps or Facts().steps, None, rows=rows)


def stage(number: int, forward_ms: float, backward_ms: float | None) -> dict[str, Any]:
    backward_ns = None if backward_ms is None else backward_ms * 1e6
    return {"stage": number, "forward_ns": forward_ms * 1e6, "backward_ns": backward_ns}


def test_a_stage_whose_microbatches_take_longer() -> None:
    before = a_run(stage_balance=[stage(0, 10, 20), stage(1, 10, None)])
    after = a_run(stage_balance=[stage(0, 10, 30), stage(1, 10, None)])
    assert moved.stages([before], [after]) == (
        Moved(name="stage 0, backward of a microbatch", unit="s", baseline=0.02, candidate=0.03),
    )


def test_counters_of_the_median_gpu_and_what_all_ports_grew_by() -> None:
    def side(clock: float, drops: int) -> RunRows:
        gpus = [
            {"counter": "sm_clock", "unit": "Hz", "p50_value": value}
            for value in (clock, 1.9e9, None, clock)
        ]
        ports = [
            {"counter": "dropped_packets", "unit": "count", "direction": way,
             "step_growth": growth, "step_covered_ns": covered_s * 1e9}
            for way, growth, covered_s in (
                ("tx", drops, 2), ("tx", 3 * drops, 2), (None, 8, 4), ("rx", None, 2), ("rx", 9, 0),
            )
        ]  # fmt: skip
        return a_run(gpu_counters=gpus, port_counters=ports)

    found = moved.counters([side(1.4e9, 10)], [side(1.1e9, 20)])
    assert [(m.name, m.unit, m.baseline, m.candidate) for m in found] == [
        ("GPU sm_clock", "Hz", 1.4e9, 1.1e9),
        ("ports' dropped_packets tx", "count/s", 20, 40),
    ]
    # A counter that one side lacks has moved, from or to nothing that is known.
    (gone,) = moved.counters([a_run(gpu_counters=side(1e9, 0).of("gpu_counters"))], [a_run()])
    assert (gone.baseline, gone.candidate) == (1e9, None)


def test_a_run_without_steps_divides_nothing() -> None:
    assert moved._of_steps(a_run()) == {}
    assert moved._of_windows(a_run()) == {}


def test_without_a_path_a_step_divides_as_on_its_median_rank(make_job: Any) -> None:
    steps = make_job(comm_ms=30, idle_ms=10).facts().steps
    charges = a_run(steps).step_charges
    assert len(charges) == len(steps)
    for charged in charges:
        parts = {part.cause: ns for part, ns in charged.items()}
        assert sum(parts.values()) == pytest.approx(100e6)
        assert parts["communication"] == pytest.approx(30e6)
        assert set(parts) == {"compute", "communication", "copies", "idle"}
