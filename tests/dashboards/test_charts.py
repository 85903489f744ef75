"""Figures: what is handed to the axes, and what a figure is as a part of a page."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from matplotlib.colors import to_rgba
from source_tables import create_table

from tracekit import catalog
from tracekit.answers import Answers
from tracekit.dashboards import chart, charts, drawn, heat, look
from tracekit.dashboards.drawing import Drawing
from tracekit.dashboards.work_tables import kernels, modules, operators, parts
from tracekit.errors import UsageError
from tracekit.findings import Confidence, Evidence, Finding, Impact, Scope, Severity, When
from tracekit.pictures import TableRows, rows_for

MS = 1_000_000
TAG = "<script>alert(1)</script>"
FILLED = {"counter_step", "net_sample"}
UNPRINTABLE = '"\u202e\x1b[31m$'


def step(rank: int, number: int, dur_ms: int, **more: Any) -> dict[str, Any]:
    """A step of a rank that starts when the one before ends, of 10 ms each."""
    parts = {"compute_ns": dur_ms * MS, "exposed_comm_ns": 0, "memory_ns": 0, "idle_ns": 0}
    return {
        "rank": rank, "capture_id": 0, "step": number, "is_warmup": False, "is_partial": False,
        "start_ns": number * 10 * MS, "dur_ns": dur_ms * MS, "measured_on": "gpu", **parts, **more,
    }  # fmt: skip


def finding(name: str, steps: tuple[tuple[int, int], ...]) -> Finding:
    return Finding(
        id=name, rule=name.partition("/")[0], severity=Severity.MAJOR,
        confidence=Confidence(level="likely", basis="a test"), summary="a test", owner="data",
        scope=Scope(steps=steps), when=When(), impact=Impact(), evidence=(),
    )  # fmt: skip


def made(name: str, *findings: Finding, **rows: Any) -> Drawing:
    found = drawn(chart(name), rows, findings)
    assert found is not None
    return found


def lines(drawing: Drawing) -> dict[str, Any]:
    """Curves of all axes by their label."""
    return {str(line.get_label()): line for axes in drawing.figure.axes for line in axes.lines}


def shapes(drawing: Drawing, panel: int) -> list[Any]:
    """Bars, areas and the like of one panel."""
    return list(drawing.figure.axes[panel].patches)


def test_every_chart_reads_queries_that_there_are() -> None:
    known = {query.name for query in catalog.queries()}
    for each in charts():
        assert set(each.queries) <= known, each.name
    assert len({each.name for each in charts()}) == len(charts())


def test_every_chart_without_rows_draws_nothing() -> None:
    for each in charts():
        assert drawn(each, {query: [] for query in each.queries}) is None, each.name


def test_an_unknown_chart_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="step_tims") as raised:
        chart("step_tims")
    assert raised.value.hint == "did you mean step_times?"


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


def late(rank: int, number: int, gap_ms: float) -> dict[str, Any]:
    return {"rank": rank, "capture_id": 0, "step": number, "exposed_gap_ns": int(gap_ms * MS)}


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


def idle(stage: int, ratio: float, replica: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "stage": stage, "replica": replica, "bubble_ratio": ratio, "expected_bubble_ratio": 0.2,
        "is_warmup": False, **more,
    }  # fmt: skip


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


def stretch(
    number: int, step: int, p50_s: float = 0.0, max_s: float | None = None
) -> dict[str, Any]:
    return {
        "stretch": number, "start_number": 1, "first_step": step, "last_step": step + 9,
        "lines_count": 10, "start_ns": None, "min_ns": int(0.9e9 * p50_s), "p50_ns": 1e9 * p50_s,
        "mean_ns": 1e9 * p50_s, "max_ns": int(1e9 * (max_s or p50_s)),
    }  # fmt: skip


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


def test_hidden_communication_and_the_rest_make_all_of_it() -> None:
    row = {"rank": 0, "comm_ns": 40 * MS, "overlap_ns": 30 * MS, "exposed_comm_ns": 10 * MS}
    found = made("overlap", overlap=[row])
    (axes,) = found.figure.axes
    assert [c[0].get_height() for c in axes.containers] == [30.0, 10.0]
    assert "75 % of all communication is hidden" in found.says


def traffic_row(**given: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("group_kind", "bytes_per_step", "expected_bytes", "observed_ratio"))
    return {"op": "all_reduce", **empty, **given}


def test_traffic_stands_beside_what_the_layout_needs() -> None:
    row = traffic_row(
        group_kind="dp", bytes_per_step=2.0e9, expected_bytes=1.0e9, observed_ratio=2.0
    )
    found = made("traffic", traffic=[row])
    assert list(lines(found)["observed"].get_xdata()) == [2.0]
    assert list(lines(found)["expected of this layout"].get_xdata()) == [1.0]
    assert found.figure.axes[0].get_xlabel() == "a rank sends in a step [GB]"
    assert [t.get_text() for t in found.figure.axes[0].texts] == ["2.00x"]


def test_a_wide_axis_has_numbers_that_can_be_read() -> None:
    rows = [traffic_row(op=op, bytes_per_step=10.0**n) for n, op in ((3, "a"), (9, "b"))]
    found = made("traffic", traffic=rows)
    found.figure.draw_without_rendering()
    labels = [t.get_text() for t in found.figure.axes[0].get_xticklabels()]
    assert "1 MB" in labels
    assert not any("$" in label for label in labels)


def test_ticks_of_a_very_wide_axis_leave_room_for_each_other() -> None:
    rows = [traffic_row(op=op, bytes_per_step=10.0**n) for n, op in ((0, "a"), (11, "b"))]
    figure = made("traffic", traffic=rows).figure
    figure.draw_without_rendering()
    axes = figure.axes[0]
    low, high = axes.get_xlim()
    shown = [t for t in axes.get_xticklabels() if low <= t.get_position()[0] <= high]
    boxes = sorted((t.get_window_extent() for t in shown), key=lambda box: box.x0)
    assert len(boxes) > 3
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))


def test_traffic_of_a_group_that_nothing_names_says_so() -> None:
    found = made("traffic", traffic=[traffic_row(op="send", bytes_per_step=10.0)])
    (name,) = [t.get_text() for t in found.figure.axes[0].get_yticklabels()]
    assert name == "unknown group send"


def test_traffic_without_a_description_says_so() -> None:
    found = made("traffic", traffic=[traffic_row(bytes_per_step=10.0)])
    assert "Nothing says what the layout needs" in found.says


# ---------------------------------------------------------------- as a part of a page


def whole() -> Drawing:
    rows = [step(rank, n, 10 + rank) for rank in range(2) for n in range(3)]
    return made("step_times", step_breakdown=rows)


def test_the_same_rows_give_the_same_bytes() -> None:
    for suffix in look.SUFFIXES:
        assert look.picture(whole().figure, suffix) == look.picture(whole().figure, suffix)


def test_colours_of_a_part_of_a_page_are_the_page_s() -> None:
    text = look.inline_svg(whole().figure, "step_times")
    assert 'stroke="var(--blue)"' in text
    for colour in look.PALETTE.values():
        assert colour not in text, colour


def test_light_and_dark_have_the_same_colours_each_once() -> None:
    assert look.PALETTE.keys() == look.DARK.keys()
    assert len(set(look.PALETTE.values())) == len(look.PALETTE)


def test_no_file_is_written_under_a_name_that_is_no_figure_s() -> None:
    with pytest.raises(UsageError, match="no kind of figure"):
        look.check_name(Path("step_times.gif"))


def test_noise_is_pale() -> None:
    rows = [step(rank, n, 100) for rank in range(3) for n in range(4)]
    found = made("late_ranks", step_breakdown=rows, late_steps=[late(1, 0, 0.5)])
    assert cells(found) == [("heat1", 1)]  # half a millisecond of a step of a hundred


def test_kernels_stand_by_their_time_on_all_ranks() -> None:
    row = {"class": "compute", "max_ns": 3 * MS}
    table = kernels(
        [
            row | {"rank": 0, "name": "gemm", "calls_count": 2, "total_ns": 4 * MS},
            row | {"rank": 1, "name": "gemm", "calls_count": 2, "total_ns": 2 * MS},
            row | {"rank": 1, "name": "relu", "calls_count": 1, "total_ns": 2 * MS},
        ]
    )
    assert table is not None
    assert [[c if isinstance(c, str) else c[0] for c in r] for r in table.rows] == [
        ["gemm", "compute", "75 %", "3.00 ms", "2", "1.50 ms", "3.00 ms", "2"],
        ["relu", "compute", "25 %", "1.00 ms", "0.5", "2.00 ms", "3.00 ms", "1"],
    ]
    assert kernels([]) is None


def level(gpu: int, second: int, value: float, **more: Any) -> dict[str, Any]:
    """Temperature of one of several GPUs, whose median is 40 and whose range is 38 to 80."""
    return {
        "counter": "gpu_temperature", "unit": "degrees Celsius", "gpu_id": f"GPU-{gpu}",
        "host": "h0", "gpu_index": gpu, "rank": None, "start_ns": second * 1000 * MS,
        "moment_ns": 1000 * MS, "mean_value": value, "gpus_count": 8, "low_value": 38.0,
        "median_value": 40.0, "high_value": 80.0, "away_ratio": 0.1, **more,
    }  # fmt: skip


def test_levels_are_those_of_the_gpu_that_counters_accuse() -> None:
    rows = [level(gpu, t, 40.0 + 10 * gpu, rank=gpu) for gpu in range(4) for t in range(3)]
    accused = finding("thermal-throttle/2", ())
    accused = replace(
        accused,
        scope=Scope(ranks=(2,)),
        evidence=(Evidence("temperature", 60.0, "C", query="gpu_counters"),),
    )
    found = made("gpu_levels", accused, gpu_series=rows, step_breakdown=[])
    assert list(lines(found)["rank 2 (h0 GPU 2)"].get_ydata()) == [60.0, 60.0, 60.0]
    assert found.figure.axes[0].get_ylabel() == "temperature [°C]"
    assert "rank 2 (h0 GPU 2): temperature 60 °C (median GPU 40)" in found.says
    assert "No finding" not in found.says


def test_without_a_finding_the_farthest_gpu_is_drawn() -> None:
    rows = [
        level(gpu, t, 40.0, away_ratio=0.9 if gpu == 3 else 0.1)
        for gpu in range(4) for t in range(2)
    ]  # fmt: skip
    found = made("gpu_levels", gpu_series=rows, step_breakdown=[])
    assert lines(found)["h0 GPU 3"].get_color() != look.PALETTE["red"]
    assert "No finding is about it: it is the one farthest from the others." in found.says


def test_one_reading_of_gpus_is_no_figure_over_time() -> None:
    given = {"gpu_series": [level(gpu, 0, 40.0) for gpu in range(4)], "step_breakdown": []}
    assert drawn(chart("gpu_levels"), given) is None


def test_slow_steps_are_shaded_where_the_counters_were_read() -> None:
    rows = [level(0, t, 40.0) for t in range(3)]
    steps = [step(0, n, 500, start_ns=n * 500 * MS) for n in range(6)]
    steps[3] = step(0, 3, 900, start_ns=1500 * MS)
    found = made("gpu_levels", gpu_series=rows, step_breakdown=steps)
    (span,) = shapes(found, 0)
    assert [span.get_x(), span.get_x() + span.get_width()] == [1.5, 2.4]
    assert "1 slow step in that time" in found.says


def test_ports_of_a_finding_come_first_below_the_steps() -> None:
    steps = [step(0, n, 10) for n in range(3)]
    counted = [
        {
            "node": "sw", "port": f"p{port}", "counter": "rx_pfc_packets", "capture_id": 0,
            "step": n, "growth": float(port * n), "verdict": "cause" if port == 0 else None,
            "place_count": port + 1, "unit": "packets",
        }
        for port in range(6)
        for n in range(3)
    ]  # fmt: skip
    accused = replace(finding("pfc-storm/sw", ()), scope=Scope(links=("sw:p5",)))
    found = made("port_growth", accused, port_steps=counted, step_breakdown=steps)
    titles = [axes.get_title() for axes in found.figure.axes]
    assert titles[:3] == ["", "sw p5 rx_pfc_packets", "sw p0 rx_pfc_packets (cause)"]
    assert [bar.get_height() for bar in shapes(found, 1)] == [0.0, 5.0, 10.0]
    assert "sw p5 rx_pfc_packets: most in step 2 (10 packets)" in found.says
    assert "2 more counters in the query" in found.says
    colours = [shapes(found, panel)[0].get_facecolor() for panel in (1, 2)]
    assert colours == [to_rgba(look.PALETTE[c]) for c in ("red", "blue")]
    assert "No finding" not in found.says
    innocent = made("port_growth", port_steps=counted, step_breakdown=steps)
    assert shapes(innocent, 1)[0].get_facecolor() == to_rgba(look.PALETTE["blue"])
    assert "No finding is about a link of these." in innocent.says


def test_the_link_of_a_finding_is_drawn_however_many_ports_stirred_more(
    con: duckdb.DuckDBPyConnection,
) -> None:
    """Of 200 ports that pause in both steps one drops packets, in the second alone."""
    pauses = [
        {"node": "sw", "port": f"p{port:03}", "counter": "rx_pfc_packets", "capture_id": 0,
         "step": n, "growth": 9.0, "attempt": 1}
        for port in range(200) for n in (1, 2)
    ]  # fmt: skip
    drops = {**pauses[-1], "port": "p199", "counter": "tx_dropped_packets"}
    create_table(con, "counter_step", [*pauses, drops])
    accused = replace(finding("packet-loss/1", ()), scope=Scope(links=("sw:p199",)))
    first = []
    for findings in ([accused], []):
        rows, failed = rows_for(Answers(con), ["port_steps"], FILLED, None, findings)
        assert not failed
        first.append([(r["port"], r["counter"]) for r in rows["port_steps"]][:2])
    assert first == [
        [("p199", "tx_dropped_packets"), ("p199", "rx_pfc_packets")],
        [("p000", "rx_pfc_packets"), ("p000", "rx_pfc_packets")],
    ]


@pytest.mark.parametrize(
    ("unit", "growth", "shown", "height"),
    [
        ("bytes", 3e6, "MB", 3.0),
        ("us", 1500.0, "ms", 1.5),
        ("packets", 3e6, "packets", 3e6),
        (None, 7.0, "counts", 7.0),
    ],
)
def test_growth_of_a_counter_is_in_its_unit(
    unit: str | None, growth: float, shown: str, height: float
) -> None:
    row = {
        "node": "sw", "port": "p", "counter": "c", "capture_id": 0, "step": 0, "growth": growth,
        "verdict": None, "place_count": 1, "unit": unit,
    }  # fmt: skip
    steps = [step(0, n, 10) for n in range(2)]
    found = made("port_growth", port_steps=[row, row | {"step": 1}], step_breakdown=steps)
    assert found.figure.axes[1].get_ylabel() == shown
    assert [bar.get_height() for bar in shapes(found, 1)] == pytest.approx([height, height])


def test_rows_of_a_table_are_made_when_they_are_asked_for() -> None:
    rows = TableRows(pa.table({"rank": range(25_000)}))
    assert len(rows) == 25_000
    assert [r["rank"] for r in rows] == list(range(25_000))
    assert rows[-1] == {"rank": 24_999}
    assert [r["rank"] for r in rows[3:5]] == [3, 4]


def product(rank: int, rate: float, **more: Any) -> dict[str, Any]:
    return {
        "rank": rank, "operator": "aten::mm", "dtype": "BFloat16", "kernel_ns": 10 * MS,
        "flops_per_s": rate, "kernel_ratio": 0.5, "gpu_model": "NVIDIA H100 80GB HBM3", **more,
    }  # fmt: skip


def test_rates_stand_beside_the_peak_of_the_gpu() -> None:
    rows = [product(0, 400e12), product(1, 500e12), product(2, 700e12)]
    found = made("matrix_rates", gemm_efficiency=rows)
    assert list(lines(found)["median rank"].get_xdata()) == [500.0]
    assert list(lines(found)["slowest to fastest rank"].get_xdata()) == [400.0, 700.0]
    assert any(name.startswith("peak in 16 bits: 990") for name in lines(found))


def test_one_rank_has_no_median_and_no_slowest() -> None:
    found = made("matrix_rates", gemm_efficiency=[product(7, 400e12)])
    assert list(lines(found)["rank 7"].get_xdata()) == [400.0]
    assert not any("fastest" in name or "median" in name for name in lines(found))
    assert "on rank 7:" in found.says
    roof = made(
        "roofline", gemm_efficiency=[product(7, 4e12, total_flops=1e14, total_elements=1e9)]
    )
    assert "median" not in roof.says


def test_a_kind_of_one_rank_does_not_hide_the_spread_of_another() -> None:
    rows = [product(0, 400e12, kernel_ns=90 * MS), product(0, 3e14, operator="aten::bmm")]
    found = made("matrix_rates", gemm_efficiency=[*rows, product(1, 5e14, operator="aten::bmm")])
    assert list(lines(found)["slowest to fastest rank"].get_xdata()) == [300.0, 500.0]
    assert "median rank" in lines(found)


def test_an_unknown_gpu_has_no_peak() -> None:
    found = made("matrix_rates", gemm_efficiency=[product(0, 4e12, gpu_model="GPU-X")])
    assert not any("peak" in name for name in lines(found))
    assert "peak" not in found.says


def test_a_product_stands_below_the_roof_that_bounds_it() -> None:
    # 100 operations an element of 2 bytes are 50 a byte: 3.35 TB/s allow 167.5 TFLOP/s.
    small = product(0, 83.75e12, total_flops=1e14, total_elements=1e12)
    large = product(0, 495e12, operator="aten::bmm", total_flops=1e15, total_elements=1e12)
    unknown = product(0, 1e12, dtype="ComplexFloat", total_flops=1e15, total_elements=1e12)
    found = made("roofline", gemm_efficiency=[small, large, unknown])
    curves = lines(found)
    assert [list(curves[n].get_xdata()) for n in ("aten::mm BFloat16", "aten::bmm BFloat16")] == [
        [50.0],
        [500.0],
    ]
    (roof,) = (line for name, line in curves.items() if name.startswith("H100"))
    assert roof.get_ydata()[1:].tolist() == [990.0, 990.0]
    assert "50 operations a byte, 83.8 TFLOP/s (50 % of what memory allows)" in found.says
    assert "500 operations a byte, 495 TFLOP/s (50 % of what arithmetic allows)" in found.says
    assert "Complex" not in found.says
    single = product(0, 9e12, dtype="float", total_flops=1e14, total_elements=1e12)
    assert "allows" not in made("roofline", gemm_efficiency=[single]).says  # a peak of 16 bits
    bare = made("roofline", gemm_efficiency=[small | {"gpu_model": None}])
    assert bare.says.endswith("The peak of this GPU is not known here.")


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


def test_self_times_are_the_mean_of_all_ranks() -> None:
    row = {"timeline": "host", "kind": "operator", "name": "aten::mm", "longest_ns": 9 * MS}
    table = parts(
        [
            row | {"rank": 0, "self_ns": 30.0 * MS, "self_ratio": 0.3, "calls_count": 4.0},
            row | {"rank": 1, "self_ns": 10.0 * MS, "self_ratio": 0.1, "calls_count": 2.0},
            row | {"rank": 1, "timeline": "device", "self_ns": 1.0, "self_ratio": 0.0},
        ]
    )
    assert table is not None
    (cells,) = table.rows
    shown = [c if isinstance(c, str) else c[0] for c in cells]
    assert shown == ["aten::mm", "operator", "20 %", "20.0 ms", "3", "9.00 ms"]
    assert parts([]) is None


def memory_row(time_ns: int, allocated: int, reserved: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "attempt": 1, "rank": 0, "capture_id": 0, "device_type": "gpu", "device": 0,
        "time_ns": time_ns, "allocated_bytes": allocated, "reserved_bytes": reserved,
        "operator": None, **more,
    }  # fmt: skip


def test_memory_is_of_the_gpu_with_the_highest_peak_in_units_of_the_axes() -> None:
    drawing = made(
        "memory",
        memory_timeline=[
            memory_row(0, 9_000_000_000, device_type="cpu", device=-1),
            memory_row(0, 1_000_000_000, 3_000_000_000),
            memory_row(50 * MS, 2_000_000_000, 3_000_000_000, operator="aten::mm"),
            memory_row(80 * MS, 500_000_000, 3_000_000_000),
            memory_row(10 * MS, 1_500_000_000, 3_000_000_000, rank=1),
        ],
    )
    curves = lines(drawing)
    assert curves["allocated"].get_xydata().tolist() == [[0, 1], [50, 2], [80, 0.5]]
    assert curves["reserved by the allocator"].get_ydata().tolist() == [3, 3, 3]
    assert curves["peak"].get_xydata().tolist() == [[50, 2]]
    assert drawing.figure.axes[0].get_ylabel() == "memory [GB]"
    assert drawing.says == (
        "Rank 0, GPU 0: at most 2 GB allocated, 50.0 ms after the first allocation, in aten::mm; "
        "3 GB reserved. Of 3 devices and captures it had most."
    )
    assert drawn(chart("memory"), {"memory_timeline": []}) is None


def test_one_allocation_alone_is_no_course_of_time() -> None:
    alone = memory_row(7, 512, device_type="cpu", device=-1)
    assert drawn(chart("memory"), {"memory_timeline": [alone]}, ()) is None


def summary(name: str | None, device: int, host: int, **more: Any) -> dict[str, Any]:
    return {
        "rank": 0, "name": name, "calls_count": 2, "host_ns": 2 * host, "host_self_ns": host,
        "device_ns": 2 * device, "device_self_ns": device, **more,
    }  # fmt: skip


def test_operators_stand_by_their_own_time_on_the_device_or_without_one_on_the_host() -> None:
    table = operators([
        summary("aten::mm", 30 * MS, MS), summary("aten::add", 10 * MS, 5 * MS),
        summary(None, 60 * MS, 0, calls_count=None, host_ns=None, host_self_ns=None),
        summary("aten::mm", 100 * MS, MS, rank=1),
    ])  # fmt: skip
    assert table is not None
    assert [[c if isinstance(c, str) else c[0] for c in row] for row in table.rows] == [
        ["aten::mm", "65 %", "2", "65.0 ms", "130 ms", "1.00 ms", "2.00 ms"],
        ["no recorded operator", "30 %", "-", "30.0 ms", "60.0 ms", "-", "-"],
        ["aten::add", "5.0 %", "1", "5.00 ms", "10.0 ms", "2.50 ms", "5.00 ms"],
    ]
    table = operators([summary("aten::mm", 0, 3), summary("aten::add", 0, 9)])
    assert table is not None and "own time on the host" in table.caption
    assert [row[0] for row in table.rows] == ["aten::add", "aten::mm"]
    assert operators([]) is None


def test_modules_stand_in_the_order_of_their_paths() -> None:
    table = modules([
        summary("b", 1, 1, path="a/b", depth=1), summary("a", 0, 2, path="a", depth=0),
        summary("c", 5, 5, path="c", depth=0),
    ])  # fmt: skip
    assert table is not None
    assert [row[0] for row in table.rows] == ["a", "a/b", "c"]
    assert [row[1][0] for row in table.rows] == ["0", "1", "0"]
    assert modules([]) is None


# ---------------------------------------------------------------- all of them as pictures


STEPS = [step(rank, n, 10 + (rank == 2) * n, idle_ns=2 * MS) for rank in range(4) for n in range(5)]
PIPELINE = [(s, d) for s in range(3) for d in range(2)]
SAMPLES: dict[str, dict[str, list[dict[str, Any]]]] = {
    "step_times": {"step_breakdown": STEPS},
    "rank_time": {"step_breakdown": STEPS},
    "history": {
        "job_step_curve": [stretch(i, 10 * i, 1.0, 90 if i == 3 else None) for i in range(6)],
        "slow_episode": [
            {"kind": "slow", "first_step": 5, "last_step": 12},
            {"kind": "stall", "first_step": 35, "last_step": 35},
        ],
    },
    "late_ranks": {
        "step_breakdown": STEPS,
        "late_steps": [late(2, n, 1.5 * n) for n in range(5)] + [late(0, 3, 0.7)],
    },
    "delay_matrix": {
        "step_breakdown": STEPS,
        "delay_matrix": [
            {"late_rank": 2, "waiting_rank": rank, "own_wait_ns": 20 * MS} for rank in (0, 1, 3)
        ],
    },
    "stage_replicas": {
        "pipeline_heat_map": [
            {"stage": s, "replica": d, "rank": 2 * s + d, "ratio": 1 + 0.2 * s} for s, d in PIPELINE
        ]
    },
    "bubbles": {"bubble": [idle(s, 0.3 - 0.1 * s + 0.02 * d, replica=d) for s, d in PIPELINE]},
    "overlap": {
        "overlap": [
            {"rank": r, "comm_ns": 40 * MS, "overlap_ns": 30 * MS, "exposed_comm_ns": 10 * MS}
            for r in range(4)
        ]
    },
    "traffic": {
        "traffic": [
            traffic_row(group_kind="dp", bytes_per_step=2e9, expected_bytes=1e9, observed_ratio=2.0)
        ]
    },
    "matrix_rates": {"gemm_efficiency": [product(0, 400e12), product(1, 500e12)]},
    "roofline": {
        "gemm_efficiency": [
            product(0, 90e12, total_flops=1e14, total_elements=1e12),
            product(0, 400e12, operator="aten::bmm", total_flops=1e15, total_elements=1e12),
        ]
    },
    "memory": {
        "memory_timeline": [memory_row(i * MS, (i % 4) * 10**9, 4 * 10**9) for i in range(9)]
    },
    "gpu_levels": {
        "gpu_series": [level(gpu, t, 40.0 + gpu) for gpu in range(4) for t in range(5)],
        "step_breakdown": [],
    },
    "port_growth": {
        "port_steps": [
            {
                "node": "sw", "port": "p0", "counter": "drops", "capture_id": 0, "step": n,
                "growth": float(n), "verdict": None, "place_count": 1, "unit": "packets",
            }
            for n in range(5)
        ],
        "step_breakdown": STEPS,
    },
}  # fmt: skip
IMAGES = Path(__file__).parent / "images"
DOTS_PER_INCH = 50
MAX_DIFFERENCE = 0.01
"""Of black against white, mean over all pixels: a moved letter stays far below, a bar does not."""


def test_every_chart_has_a_sample() -> None:
    assert list(SAMPLES) == [each.name for each in charts()]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_figure_is_written_and_its_axes_have_names(name: str) -> None:
    found = made(name, **SAMPLES[name])
    assert look.picture(found.figure, ".svg").startswith(b"<?xml")
    text = look.inline_svg(found.figure, name)
    assert "$" not in text  # no mathematics that a browser would show as it is written
    named = [axes.get_xlabel() for axes in found.figure.axes]
    assert any(named)
    assert all(axes.get_ylabel() or axes.get_yticklabels() for axes in found.figure.axes)
    assert found.says.endswith(".")


def pixels(name: str) -> Any:
    """The sample's figure in few pixels, in grey."""
    from io import BytesIO

    from matplotlib.image import imread

    stream = BytesIO()
    with look.style():
        drawing = chart(name).draw(SAMPLES[name], ())
        assert drawing is not None
        drawing.figure.savefig(stream, format="png", dpi=DOTS_PER_INCH)
    stream.seek(0)
    return np.mean(np.asarray(imread(stream))[..., :3], axis=2)


@pytest.mark.parametrize("name", ["step_times", "late_ranks", "roofline"])
def test_a_figure_looks_as_it_did(name: str) -> None:
    """TRACEKIT_UPDATE_GOLDEN=1 draws the pictures anew: look at them."""
    from matplotlib.image import imread, imsave

    path, now = IMAGES / f"{name}.png", pixels(name)
    if os.environ.get("TRACEKIT_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        imsave(path, now, cmap="gray", vmin=0, vmax=1, metadata={"Software": ""})
    before = np.asarray(imread(path))[..., :3].mean(axis=2)
    assert now.shape == before.shape
    assert np.abs(now - before).mean() < MAX_DIFFERENCE


def test_another_figure_does_not_look_alike() -> None:
    one = pixels("late_ranks")
    assert np.abs(np.flipud(one) - one).mean() > MAX_DIFFERENCE
    moved = np.roll(one, one.shape[0] // 6, axis=0)
    assert np.abs(moved - one).mean() > MAX_DIFFERENCE


WORDS = {"kind", "counter", "unit", "device_type", "verdict", "measured_on", "dtype"}
"""Columns whose texts are the project's own words."""


def named(name: str, foreign: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of a sample with this in the place of every foreign name."""
    return {
        query: [
            {k: foreign if isinstance(v, str) and k not in WORDS else v for k, v in r.items()}
            for r in found
        ]
        for query, found in SAMPLES[name].items()
    }


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_of_a_figure_is_cut_at_its_edge(name: str) -> None:
    findings = [finding(f"late-rank/{n}", ((0, 2),)) for n in range(8)]
    for rows in (
        SAMPLES[name],
        named(name, "a_name_as_long_as_those_of_templates<float, 128>" * 9),
    ):
        with look.style():
            drawing = chart(name).draw(rows, findings)
            assert drawing is not None
            drawing.figure.draw_without_rendering()
            inches = drawing.figure.get_tightbbox()
        width, height = drawing.figure.get_size_inches()
        assert inches.x0 >= -0.02 and inches.x1 <= width + 0.02
        assert inches.y0 >= -0.02 and inches.y1 <= height + 0.02


@pytest.mark.parametrize("name", SAMPLES)
def test_a_part_of_a_page_has_nothing_that_its_policy_forbids(name: str) -> None:
    """Whatever the names are that a figure shows."""
    rows = named(name, TAG + UNPRINTABLE)
    foreign = any(TAG in str(v) for found in rows.values() for r in found for v in r.values())
    drawing = made(name, **rows)
    root = ElementTree.fromstring(look.inline_svg(drawing.figure, name))  # noqa: S314  # our own
    for element in root.iter():
        assert element.tag in {
            "svg", "g", "path", "text", "tspan", "use", "defs", "clipPath", "rect"
        }  # fmt: skip
        for key, value in element.attrib.items():
            assert key != "style" and not key.startswith("on"), (key, value)
            assert "//" not in value and "data:" not in value, (key, value)
            if key == "href":
                assert value.startswith(f"#{name}-")
    shown = "".join(root.itertext())
    assert "\u202e" not in shown
    assert "\x1b" not in shown
    if foreign and name in {"traffic", "matrix_rates", "roofline", "gpu_levels", "port_growth"}:
        assert "<script>" in shown  # as text
