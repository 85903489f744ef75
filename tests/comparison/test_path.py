"""The critical path: every nanosecond charged once, and waiting to what was waited for."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.comparison.path import NOBODY, Lane, Part, Paths
from tracekit.rules.steps import Steps

MOMENTS = ("rank", "capture_id", "time_ns", "compute_ns", "memory_ns", "exposed_comm_ns")
CALLS = (
    "rank", "capture_id", "start_ns", "end_ns", "exposed_start_ns", "holder_rank",
    "holder_start_ns", "error_ns", "op",
)  # fmt: skip


def columns(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> dict[str, list[Any]]:
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def paths(
    moments: list[tuple[Any, ...]],
    calls: list[tuple[Any, ...]] = (),  # type: ignore[assignment]  # none
    ranges: list[dict[str, Any]] = (),  # type: ignore[assignment]  # none
    on_host: tuple[int, ...] = (),
) -> Paths:
    return Paths.from_columns(columns(MOMENTS, moments), columns(CALLS, calls), ranges, on_host)


# Rank 1 computes until 80, rank 0 until 50; both leave the all-reduce at 100 and idle until 110.
LATE = [
    (0, 0, 0, 0, 0, 0),
    (0, 0, 50, 50, 0, 0),
    (0, 0, 80, 50, 0, 30),
    (0, 0, 100, 50, 0, 50),
    (0, 0, 110, 50, 0, 50),
    (1, 0, 0, 0, 0, 0),
    (1, 0, 80, 80, 0, 0),
    (1, 0, 100, 80, 0, 20),
    (1, 0, 110, 80, 0, 20),
]
WAITED = [(0, 0, 40, 100, 50, 1, 80, 0, "all_reduce"), (1, 0, 80, 100, 80, 1, 80, 0, "all_reduce")]


def step(rank: int, start_ns: int = 0, dur_ns: int = 110, **parts: int) -> dict[str, Any]:
    busy = {"compute_ns": 0, "exposed_comm_ns": 0, "memory_ns": 0, "idle_ns": 0, "comm_ns": 0}
    facts = {"rank": rank, "attempt": 1, "capture_id": 0, "step": 1, "measured_on": "gpu"}
    return {**facts, **busy, **parts, "start_ns": start_ns, "dur_ns": dur_ns}


def test_waiting_goes_to_the_rank_that_was_waited_for() -> None:
    walked = paths(LATE, WAITED).walk(Lane(0, 0), 0, 110)
    assert walked == {
        Part("idle", 0): 10,
        Part("transfer", None, "all_reduce"): 20,
        Part("compute", 1): 80,
    }


def test_the_charges_of_a_step_add_up_to_it_from_whichever_rank() -> None:
    for rank in (0, 1):
        assert sum(paths(LATE, WAITED).walk(Lane(rank, 0), 0, 110).values()) == 110


def test_what_a_rank_has_beyond_its_peers_is_its_own_and_the_rest_is_everybodys() -> None:
    steps = Steps.from_rows([step(0), step(1)], [])
    (charges,) = paths(LATE, WAITED).steps(steps, {}).values()
    assert charges == {
        Part("idle"): 10,
        Part("transfer", None, "all_reduce"): 20,
        Part("compute", 1): 30,
        Part("compute"): 50,
    }


def test_peers_are_the_ranks_of_the_same_stage() -> None:
    steps = Steps.from_rows([step(0), step(1)], [])
    longer = [*LATE, (2, 0, 0, 0, 0, 0), (2, 0, 80, 80, 0, 0), (2, 0, 110, 80, 0, 0)]
    steps = Steps.from_rows([step(0), step(1), step(2)], [])
    (charges,) = paths(longer, WAITED).steps(steps, {0: 0, 1: 1, 2: 1}).values()
    assert Part("compute", 1) not in charges
    assert charges[Part("compute")] == 80


def test_a_holder_no_later_than_the_clocks_may_be_apart_is_nobody() -> None:
    calls = [(0, 0, 40, 100, 50, 1, 80, 30, "all_reduce")]
    walked = paths(LATE, calls).walk(Lane(0, 0), 0, 110)
    assert walked[Part("transfer", None, "all_reduce")] == 50
    assert Part("compute", 1) not in walked


def test_without_a_holder_the_path_stays_with_the_rank() -> None:
    calls = [(0, 0, 40, 100, 50, NOBODY, 0, 0, "all_reduce")]
    walked = paths(LATE, calls).walk(Lane(0, 0), 0, 110)
    assert walked[Part("compute", 0)] == 50


def test_calls_that_were_not_matched_stay_communication() -> None:
    walked = paths(LATE).walk(Lane(0, 0), 0, 110)
    assert walked == {Part("compute", 0): 50, Part("communication", 0): 50, Part("idle", 0): 10}


FETCH = [{"rank": 0, "capture_id": 0, "start_ns": 0, "end_ns": 40, "name": "dataloader"}]
FETCHING = [
    (0, 0, 0, 0, 0, 0),
    (0, 0, 40, 10, 0, 0),
    (0, 0, 100, 60, 0, 0),
]


def test_idle_time_is_what_the_loop_did_and_on_hosts_its_operators_too() -> None:
    on_device = paths(FETCHING, ranges=FETCH).walk(Lane(0, 0), 0, 100)
    assert on_device == {Part("compute", 0): 60, Part("input", 0): 30, Part("idle", 0): 10}
    on_host = paths(FETCHING, ranges=FETCH, on_host=(0,)).walk(Lane(0, 0), 0, 100)
    assert on_host == {Part("compute", 0): 50, Part("input", 0): 40, Part("idle", 0): 10}


def test_of_nested_ranges_the_innermost_that_means_something_decides() -> None:
    nested = [
        *FETCH,
        {"rank": 0, "capture_id": 0, "start_ns": 0, "end_ns": 40, "name": "xyz"},
    ]
    assert paths(FETCHING, ranges=nested).walk(Lane(0, 0), 0, 100)[Part("input", 0)] == 30


def test_a_stretch_that_nothing_covers_is_unexplained() -> None:
    assert paths(LATE, WAITED).walk(Lane(7, 0), 0, 110) == {Part("unexplained"): 110}


def test_a_rank_without_a_clock_leaves_no_path() -> None:
    without = {**step(1), "start_ns": None}
    assert paths(LATE, WAITED).steps(Steps.from_rows([step(0), without], []), {}) == {}


def test_ranks_that_hold_each_other_up_at_one_moment_end_the_walk() -> None:
    calls = [(0, 0, 40, 100, 50, 1, 99, 0, "a"), (1, 0, 40, 100, 50, 0, 99, 0, "a")]
    walked = paths(LATE, calls).walk(Lane(0, 0), 0, 110)
    assert sum(walked.values()) == pytest.approx(110)
