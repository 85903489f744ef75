"""Figures of steps: what is handed to the axes."""

from __future__ import annotations

import numpy as np

from figure_rows import (
    MS,
    finding,
    lines,
    made,
    step,
)
from tracekit.dashboards import chart, drawn


def test_a_step_of_the_job_lasts_to_the_next_start_on_the_last_rank() -> None:
    # Rank 1 begins 2 ms after rank 0 and ends 5 ms after it: from 2 to 15 ms.
    rows = [step(0, 0, 10), step(1, 0, 13, start_ns=2 * MS), step(0, 1, 7), step(1, 1, 7)]
    found = made("step_times", step_breakdown=rows)
    assert list(lines(found)["the job's step"].get_ydata()) == [13.0, 7.0]
    assert found.figure.axes[-1].get_ylabel() == "step time [ms]"


def test_a_single_step_is_no_figure() -> None:
    assert drawn(chart("step_times"), {"step_breakdown": [step(0, 0, 10), step(1, 0, 9)]}) is None


def test_steps_of_findings_are_marked_above_those_steps_alone() -> None:
    rows = [step(0, n, 10) for n in range(6)]
    found = made("step_times", finding("dataloader-stall/0", ((1, 1), (3, 4))), step_breakdown=rows)
    lanes = [np.asarray(line.get_xdata()) for line in found.figure.axes[0].lines]
    assert np.allclose(lanes, [[0.65, 1.35], [2.65, 4.35]])
    assert [t.get_text() for t in found.figure.axes[0].get_yticklabels()] == ["F1"]


def test_warm_up_is_shown_and_not_in_the_median() -> None:
    rows = [step(0, 0, 100, is_warmup=True), step(0, 1, 10), step(0, 2, 10)]
    found = made("step_times", step_breakdown=rows)
    assert list(lines(found)["warm-up"].get_xdata()) == [0]
    assert "median 10.0 ms" in lines(found)
    assert "2 of them judged" in found.says


def test_a_rank_s_bar_is_its_mean_step_in_parts() -> None:
    rows = [
        step(0, 0, 10, exposed_comm_ns=2 * MS),
        step(0, 1, 30, exposed_comm_ns=4 * MS),
        step(1, 0, 5, idle_ns=8 * MS),
        step(1, 1, 5, idle_ns=8 * MS),
    ]
    (axes,) = made("rank_time", step_breakdown=rows).figure.axes
    heights = {str(c.get_label()): [bar.get_height() for bar in c] for c in axes.containers}
    assert heights == {
        "computing": [20.0, 5.0], "communication not hidden": [3.0, 0.0], "idle": [0.0, 8.0]
    }  # fmt: skip


def test_of_many_ranks_the_odd_one_has_a_bar() -> None:
    rows = [step(rank, 0, 50 if rank == 777 else 10) for rank in range(1024)]
    (axes,) = made("rank_time", step_breakdown=rows).figure.axes
    heights = [bar.get_height() for bar in axes.containers[0]]
    assert len(heights) <= 96
    assert heights.count(50.0) == 1
    assert axes.get_xlabel() == "rank (of each 11, the least usual)"
