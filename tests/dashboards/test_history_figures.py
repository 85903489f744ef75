"""Figures of a training log: what is handed to the axes."""

from __future__ import annotations

from typing import Any

import pytest

from figure_rows import (
    lines,
    made,
    shapes,
    stretch,
)
from tracekit.dashboards import chart, drawn


def test_a_stall_of_a_history_shows_and_does_not_hide_the_rest() -> None:
    curve = [stretch(i, 10 * i, 1.0, 600 if i == 3 else None) for i in range(6)]
    episode = {"kind": "stall", "first_step": 35, "last_step": 35}
    found = made("history", job_step_curve=curve, slow_episode=[episode])
    (axes,) = found.figure.axes
    assert axes.get_ylim()[1] == pytest.approx(1.5)
    assert list(lines(found)["longer, up to 600 s"].get_xdata()) == [3]
    (mark,) = (p for p in shapes(found, 0) if p.get_label() == "stall")
    assert (mark.get_x(), mark.get_width()) == (2.5, 1.0)
    assert "the median is 1.00 s, the longest 600 s at step 30 to 39." in found.says
    assert found.says.endswith(" 1 stall stands out.")
    calm = made("history", job_step_curve=curve[:3], slow_episode=[])
    assert not any("longer" in name for name in lines(calm))
    assert "stand" not in calm.says


def ticks(lines_count: int, every: int) -> list[dict[str, Any]]:
    """Steps of a log whose clock tells whole seconds: each so manieth one begins a new one."""
    return [
        stretch(i, i) | {"last_step": i, "lines_count": 1, "min_ns": tick, "p50_ns": float(tick),
                         "mean_ns": float(tick), "max_ns": tick}
        for i in range(lines_count)
        for tick in [10**9 if i % every == every - 1 else 0]
    ]  # fmt: skip


def test_steps_shorter_than_a_log_s_clock_are_drawn_as_means() -> None:
    rows = [*ticks(400, 10), *ticks(400, 5)]  # 0.1 s a step, then 0.2
    for i, row in enumerate(rows):
        row |= {"first_step": i, "last_step": i}
    found = made("history", job_step_curve=rows, slow_episode=[])
    curve = lines(found)["mean of neighbours"]
    assert list(curve.get_ydata()) == pytest.approx([100, 100, 200, 200, 200, 200])
    assert found.figure.axes[0].get_ylabel() == "step time [ms]"
    assert not any("longer" in name for name in lines(found))
    assert "most are shorter than the log's clock tells" in found.says


def test_too_few_steps_shorter_than_a_log_s_clock_are_no_figure() -> None:
    few = {"job_step_curve": ticks(399, 10), "slow_episode": []}  # 39 seconds: one mean
    assert drawn(chart("history"), few) is None
    enough = {"job_step_curve": ticks(400, 10), "slow_episode": []}
    assert drawn(chart("history"), enough) is not None
