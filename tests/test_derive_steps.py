"""Steps that traces mark: their GPU work, the partial ones, the warm-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derived_runs import MS, Rows, kernel, marker, run, trace
from tracekit.derive.steps import warmup_count


def steps(annotation: Rows, gpu_op: Rows = (), **facts: Any) -> Rows:  # type: ignore[assignment]
    source = trace(0, "a", facts.pop("window", (0, 10_000)), file_rank=0, **facts)
    rows: Rows = run([source], annotation=annotation, gpu_op=list(gpu_op))["step"].to_pylist()
    return rows


def test_a_step_is_its_marker_and_the_gpu_work_that_it_launched() -> None:
    (row,) = steps(
        [
            marker(0, 5, 10, 20),
            marker(0, 5, 12, 30, is_gpu_twin=True),
            marker(0, 5, 10, 20, place=99),
            marker(0, 6, 10, 20, domain="user"),
        ],
        [kernel(0, 5, 12, 3), kernel(0, 5, 40, 5), kernel(0, None, 90, 5)],
    )
    assert row == {
        "attempt": 1,
        "rank": 0,
        "capture_id": 0,
        "step": 5,
        "file_step": 5,
        "source_id": 0,
        "start_ns": 10 * MS,
        "end_ns": 30 * MS,
        "dur_ns": 20 * MS,
        "gpu_start_ns": 12 * MS,
        "gpu_end_ns": 45 * MS,
        "paced_start_ns": None,
        "paced_end_ns": None,
        "is_warmup": False,
        "is_partial": False,
        "step_source": "annotation",
    }


def partial(rows: Rows) -> list[int]:
    return [r["step"] for r in rows if r["is_partial"]]


def test_steps_that_reach_beyond_the_window_are_partial() -> None:
    rows = [marker(0, 1, 0, 10), marker(0, 2, 10, 10), marker(0, 3, 20, 10)]
    assert partial(steps(rows, window=(0, 30))) == []
    assert partial(steps(rows, window=(2, 25))) == [1, 3]
    assert partial(steps(rows, window=(0, 29.95))) == []


def test_the_first_step_of_a_file_without_its_start_is_partial() -> None:
    rows = [marker(0, 1, 0, 10), marker(0, 2, 10, 10)]
    assert partial(steps(rows, window=(0, 20), is_truncated_start=True)) == [1]


def test_a_step_that_the_profiler_stopped_in_is_partial() -> None:
    """As in a real trace of two markers: 9288 us and 49 us."""
    assert partial(steps([marker(0, 1, 0, 9.288), marker(0, 2, 9.3, 0.049)])) == [2]
    assert partial(steps([marker(0, 1, 0, 10), marker(0, 2, 10, 1.1)])) == []


def test_steps_of_a_file_that_breaks_off_are_partial_where_gpu_work_is_missing() -> None:
    markers = [marker(0, n, 10 * n, 10) for n in range(5)]
    work = [kernel(0, n, 10 * n + k, 1) for n in range(5) for k in range(10)]
    lost = [k for k in work if k["step"] != 2 or k["place"] % 10_000 < 8000]
    assert partial(steps(markers, lost)) == []
    assert partial(steps(markers, lost, is_truncated_end=True, status="partial")) == [2, 4]


def test_a_file_that_breaks_off_may_have_lost_the_work_of_most_steps() -> None:
    """Its median step is then an empty one: the fullest tell what a step holds."""
    markers = [marker(0, n, 10 * n, 10) for n in range(5)]
    work = [kernel(0, n, 10 * n + k, 1) for n in range(5) for k in range(10)]
    first = [k for k in work if k["step"] == 0]
    assert partial(steps(markers, first)) == []
    assert partial(steps(markers, first, is_truncated_end=True, status="partial")) == [1, 2, 3, 4]


def paced(markers_ms: Sequence[float], device_ms: Sequence[float]) -> list[tuple[float, float]]:
    """When each step began and ended on the device, in ms; markers lie end to end, and the device
    does what each step launched one after the other."""
    rows, kernels, at, done = [], [], 0.0, 0.0
    for step, (marked, took) in enumerate(zip(markers_ms, device_ms, strict=True)):
        done = max(done, at)
        rows.append(marker(0, step, at, marked))
        kernels.append(kernel(0, step, done, took))
        at, done = at + marked, done + took
    return [
        (r["paced_start_ns"] / MS, r["paced_end_ns"] / MS)
        for r in steps(rows, kernels)
        if r["paced_end_ns"] is not None
    ]


def test_a_step_of_a_host_that_runs_ahead_is_what_its_launches_take_on_the_device() -> None:
    at_last = [2, 2, 2, 2, 2, 50]
    ends = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    assert paced(at_last, [10] * 6) == list(zip([0.0, *ends], ends, strict=False))


@pytest.mark.parametrize(
    ("markers_ms", "device_ms"),
    [
        ([10] * 6, [9] * 6),  # by as much in every step
        ([9.5, 9.5, 9.5, 9.5, 9.5, 12.5], [10] * 6),  # 4.5 of 60 ms lie in other steps, 8 %
        ([2, 2, 50], [10] * 3),  # too few
        ([2, 2, 20, 2, 2, 50], [2, 2, 30, 2, 2, 20]),  # the device's own steps are uneven
    ],
    ids=["alike", "a little", "few", "uneven"],
)
def test_marks_count_where_they_are_not_known_to_be_worse(
    markers_ms: Sequence[float], device_ms: Sequence[float]
) -> None:
    assert paced(markers_ms, device_ms) == []


UNEVEN = ([39, 115, 36, 36, 40, 84], [48, 107, 48, 48, 48, 48])


@pytest.mark.parametrize(("share", "is_paced"), [(1.0, True), (0.9, True), (0.89, False)])
def test_a_device_that_never_waits_sets_the_pace_however_uneven_its_steps_are(
    share: float, *, is_paced: bool
) -> None:
    """An evaluation in the second step, in which the host waits for all before it, too."""
    markers_ms, device_ms = UNEVEN
    rows, kernels, at, done = [], [], 0.0, 0.0
    for step, (marked, took) in enumerate(zip(markers_ms, device_ms, strict=True)):
        done = max(done, at)
        rows.append(marker(0, step, at, marked))
        kernels.append(kernel(0, step, done, took * share) | {"class": "compute"})
        rest = kernel(0, step, done + took * share, took * (1 - share))
        kernels.append(rest | {"class": "memory"})
        at, done = at + marked, done + took
    assert any(row["paced_end_ns"] is not None for row in steps(rows, kernels)) is is_paced


def test_warm_up_is_told_by_the_steps_that_count() -> None:
    """The first marker is short, as the host waits for nothing; its kernels take three times as
    long."""
    rows = [marker(0, n, 2 * n, 2 if n < 7 else 90) for n in range(8)]
    kernels = [kernel(0, 0, 0, 30)] + [kernel(0, n, 20 + 10 * n, 10) for n in range(1, 8)]
    assert [r["step"] for r in steps(rows, kernels) if r["is_warmup"]] == [0]


def test_captures_may_claim_the_same_number() -> None:
    result = run(
        [trace(0, "a", (0, 10), file_rank=0), trace(1, "b", (50, 60), file_rank=0)],
        annotation=[marker(0, 3, 0, 10), marker(1, 3, 50, 10)],
    )
    keys = [(r["capture_id"], r["step"]) for r in result["step"].to_pylist()]
    assert keys == [(0, 3), (1, 3)]


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([], 0),
        ([9, 1], 0),  # which of two is the usual one cannot be known
        ([1.11, 1, 1], 1),
        ([1.10, 1, 1], 0),  # not over the limit
        ([3, 3, 1, 1, 1], 0),  # only the first of few, and it must stand out
        ([1.2, 1, 1.3, 1, 1], 0),
        ([9, 1, 1, 1, 1, 1], 1),
        ([9, 5, 1, 1, 1, 1], 2),
        ([9, 9, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1], 3),
        ([9] * 5 + [1] * 7, 0),  # more than a third: a change, not a warm-up
        ([1, 1, 1, 1, 1, 1, 9, 1], 0),
        ([1] * 6 + [2] * 6, 0),  # slower later is no warm-up
        ([4, 1, 1.5, 1, 1.5, 1, 1.5, 1, 1.5], 1),
        ([1.4, 1, 1.5, 1, 1.5, 1, 1.5, 1, 1.5], 0),  # steps scatter: the first is nothing special
        ([5] * 12, 0),
        ([0] * 12, 0),
        ([5, 1, 1, 1, 1, 5, 1, 1, 1, 1], 0),  # what strikes every fifth step struck the first too
        ([5, 1, 1, 1, 1, 3.9, 1, 1, 1, 1], 1),  # no later step comes near it
        ([5.6, 5.6, 0.8, 0.8, 0.8, 5.1, 5.1, 0.8, 0.8, 0.8, 4, 4, 0.8, 0.8], 0),  # saves differ
        ([9, 5, 1, 1, 1, 1, 5, 1, 1, 1], 1),
        ([5, 1, 1, 5], 0),
    ],
)
def test_warmup_count(durations: Sequence[float], expected: int) -> None:
    assert warmup_count(durations) == expected


@given(st.lists(st.floats(0.1, 10), max_size=40), st.sampled_from([0.25, 2.0, 1024.0]))
def test_warmup_does_not_depend_on_the_unit(durations: list[float], factor: float) -> None:
    count = warmup_count(durations)
    assert count == warmup_count([d * factor for d in durations])
    assert count <= max(1, len(durations) // 3)


def test_ranks_agree_on_warmup() -> None:
    """Only rank 1 is slow in step 0, and step 0 of both is warm-up; the cut step counts not."""
    rows = [trace(0, "a", file_rank=0), trace(1, "b", file_rank=1)]
    annotation = [
        marker(r, n, 10 * n, 9 + 11 * (r == 1 and n == 0)) for r in (0, 1) for n in range(8)
    ]
    result = run(rows, annotation=annotation)["step"].to_pylist()
    assert [(r["rank"], r["step"]) for r in result if r["is_warmup"]] == [(0, 0), (1, 0)]
