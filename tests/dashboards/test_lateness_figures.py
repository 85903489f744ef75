"""Figures of who was late and of pipelines: what is handed to the axes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from figure_rows import (
    MS,
    idle,
    late,
    lines,
    made,
    step,
)
from tracekit.dashboards import chart, drawn, heat, look
from tracekit.dashboards.drawing import Drawing


def cells(drawing: Drawing) -> list[tuple[str, int]]:
    """Colour and number of cells of a heat map, palest first."""
    axes = drawing.figure.axes[0]
    names = {colour: name for name, colour in look.PALETTE.items()}
    return [
        (names[_hex(patch)], int(np.count_nonzero(np.asarray(patch.get_path().codes) == 1)))
        for patch in axes.patches
    ]  # fmt: skip


def _hex(patch: Any) -> str:
    from matplotlib.colors import to_hex

    return to_hex(patch.get_facecolor())


def test_the_rank_that_others_waited_for_is_the_dark_row() -> None:
    rows = [step(rank, n, 10) for rank in range(3) for n in range(4)]
    found = made(
        "late_ranks",
        step_breakdown=rows,
        late_steps=[late(1, 0, 7), late(1, 2, 7), late(2, 3, 0.5)],
    )
    assert cells(found) == [("heat1", 1), ("heat7", 2)]
    assert "most for rank 1: 14.0 ms in all, of 14.5 ms" in found.says
    assert "35 % of the steps' time" in found.says  # four steps of 10 ms


def test_hardly_any_lateness_is_no_figure() -> None:
    rows = [step(rank, n, 10) for rank in range(3) for n in range(4)]
    given = {"step_breakdown": rows, "late_steps": [late(1, 0, 0.03)]}
    assert drawn(chart("late_ranks"), given) is None  # 0.03 of 40 ms
    assert drawn(chart("late_ranks"), given | {"late_steps": [late(1, 0, 0.05)]}) is not None


def test_one_hot_cell_stays_where_many_ranks_share_a_row() -> None:
    values = np.zeros((1000, 3))
    values[571, 2] = 9.0
    folded, down, across = heat.folded(values, 96, 200)
    assert (down, across) == (11, 1)
    assert folded.shape == (91, 3)
    assert np.argwhere(folded == 9.0).tolist() == [[571 // 11, 2]]
    assert np.count_nonzero(folded) == 1


def test_cells_without_a_value_stay_blank() -> None:
    folded, _, _ = heat.folded(np.array([[np.nan, np.nan, 1.0, np.nan]]), 1, 2)
    assert np.isnan(folded[0, 0])
    assert folded[0, 1] == 1.0


def test_a_matrix_has_the_late_ranks_as_rows() -> None:
    pair = {"group_id": "g", "late_rank": 2, "waiting_rank": 0, "own_wait_ns": 5 * MS}
    found = made(
        "delay_matrix",
        delay_matrix=[pair, pair | {"group_id": "h"}],
        step_breakdown=[step(rank, 0, 10) for rank in range(3)],
    )
    (patch,) = found.figure.axes[0].patches
    corners = np.asarray(patch.get_path().vertices)
    assert (corners.mean(axis=0).round() == [0, 2]).all()  # column of rank 0, row of rank 2
    assert "for rank 2, by its own doing: 10.0 ms summed over the 1 rank that" in found.says


def test_a_stage_with_more_to_do_is_named() -> None:
    rows = [
        {"stage": s, "replica": d, "rank": 2 * s + d, "ratio": 1.5 if (s, d) == (1, 0) else 1.0}
        for s in range(2) for d in range(2)
    ]  # fmt: skip
    found = made("stage_replicas", pipeline_heat_map=rows)
    texts = sorted(t.get_text() for t in found.figure.axes[0].texts)
    assert texts == ["1.00", "1.00", "1.00", "1.50"]
    assert "Rank 2 (stage 1, replica 0) computes longest: 1.50 times" in found.says


@pytest.mark.parametrize(("stages", "replicas"), [(4, 16), (40, 1), (4, 17), (41, 1), (96, 96)])
def test_numbers_of_cells_stand_where_they_do_not_touch(stages: int, replicas: int) -> None:
    rows = [
        {"stage": s, "replica": d, "rank": s * replicas + d, "ratio": 1.0 + 0.01 * (s % 7)}
        for s in range(stages) for d in range(replicas)
    ]  # fmt: skip
    figure = made("stage_replicas", pipeline_heat_map=rows).figure
    figure.draw_without_rendering()
    boxes = [t.get_window_extent() for t in figure.axes[0].texts]
    assert bool(boxes) == (stages <= 40 and replicas <= 16)
    rightwards = sorted(boxes, key=lambda box: (round(box.y0), box.x0))
    for a, b in pairwise(rightwards):
        assert a.x1 < b.x0 or a.y1 <= b.y0
    assert not boxes or stages * replicas == len(boxes)


def test_of_ranks_that_share_a_stage_the_longest_shows_and_none_is_blamed() -> None:
    rows = [
        {"stage": s, "replica": 0, "rank": 2 * s + t, "ratio": ratio}
        for s, t, ratio in ((0, 0, 1.0), (0, 1, 1.01), (1, 0, 1.5), (1, 1, 1.49))
    ]
    found = made("stage_replicas", pipeline_heat_map=rows)
    assert sorted(t.get_text() for t in found.figure.axes[0].texts) == ["1.01", "1.50"]
    assert "Stage 1 of replica 0 takes longest: 1.50 times" in found.says
    assert "Which of its ranks 2-3 is to blame does not show here" in found.says


def test_idle_stages_stand_beside_what_the_schedule_cannot_avoid() -> None:
    rows = [idle(0, 0.5), idle(0, 0.6), idle(0, 0.9, is_warmup=True), idle(1, 0.25)]
    found = made("bubbles", bubble=rows)
    (axes,) = found.figure.axes
    assert [bar.get_height() for bar in axes.containers[0]] == pytest.approx([55.0, 25.0])
    (theory,) = (line for line in axes.lines if "unavoidable" in str(line.get_label()))
    assert list(np.asarray(theory.get_ydata())) == pytest.approx([20.0, 20.0])
    assert "Stage 0 is idle most, for 55 % of its replica's window, stage 1 least" in found.says
    assert "each of" not in " ".join(lines(found))
    both = made("bubbles", bubble=[*rows, idle(1, 0.45, replica=1)])
    assert list(lines(both)["each of 2 replicas"].get_ydata()) == pytest.approx([55, 25, 45])


def test_noise_is_pale() -> None:
    rows = [step(rank, n, 100) for rank in range(3) for n in range(4)]
    found = made("late_ranks", step_breakdown=rows, late_steps=[late(1, 0, 0.5)])
    assert cells(found) == [("heat1", 1)]  # half a millisecond of a step of a hundred


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("palette", [look.PALETTE, look.DARK], ids=["light", "dark"])
def test_numbers_on_cells_can_be_read(palette: dict[str, str]) -> None:
    for place, name in enumerate(look.HEAT):
        text = palette["onheat" if place >= look.FIRST_STRONG else "ink"]
        low, high = sorted((luminance(palette[name]), luminance(text)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, name


def test_a_matrix_of_ten_thousand_ranks_is_no_larger_than_it_is_shown() -> None:
    pairs = [
        {"group_id": "g", "late_rank": 9_000, "waiting_rank": r, "own_wait_ns": 5 * MS}
        for r in range(0, 10_000, 100)
    ]
    found = made(
        "delay_matrix",
        delay_matrix=pairs,
        step_breakdown=[step(rank, 0, 10) for rank in range(10_000)],
    )
    assert found.figure.axes[0].get_ylabel() == "late rank (the worst of each 105)"
    assert "for ranks 9000-9004, by their own doing: 500 ms" in found.says
