"""Figures: what is handed to the axes, and what a figure is as a part of a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest

from tracekit import catalog
from tracekit.dashboards import chart, charts, drawn, heat, look
from tracekit.dashboards.drawing import Drawing
from tracekit.dashboards.work_tables import kernels, modules, operators, parts
from tracekit.errors import UsageError
from tracekit.findings import Confidence, Evidence, Finding, Impact, Scope, Severity, When
from tracekit.pictures import TableRows

MS = 1_000_000
TAG = "<script>alert(1)</script>"
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
    rows = [step(0, 0, 10), step(1, 0, 13, start_ns=2 * MS)]
    found = made("step_times", step_breakdown=rows)
    assert list(lines(found)["the job's step"].get_ydata()) == [13.0]
    assert found.figure.axes[-1].get_ylabel() == "step time [ms]"


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
    assert "for rank 2: 10.0 ms summed over all that waited" in found.says
    assert found.says.endswith("; 1 rank did.")


def test_a_stage_with_more_to_do_is_named() -> None:
    rows = [
        {"stage": s, "replica": d, "rank": 2 * s + d, "ratio": 1.5 if (s, d) == (1, 0) else 1.0}
        for s in range(2) for d in range(2)
    ]  # fmt: skip
    found = made("stage_replicas", pipeline_heat_map=rows)
    texts = sorted(t.get_text() for t in found.figure.axes[0].texts)
    assert texts == ["1.00", "1.00", "1.00", "1.50"]
    assert "Rank 2 (stage 1, replica 0) computes longest: 1.50 times" in found.says


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


def test_a_part_of_a_page_has_nothing_that_its_policy_forbids() -> None:
    row = traffic_row(group_kind=UNPRINTABLE, op=TAG, bytes_per_step=1.0)
    text = look.inline_svg(made("traffic", traffic=[row]).figure, "traffic")
    root = ElementTree.fromstring(text)  # noqa: S314  # our own
    for element in root.iter():
        assert element.tag in {
            "svg", "g", "path", "text", "tspan", "use", "defs", "clipPath", "rect"
        }  # fmt: skip
        for key, value in element.attrib.items():
            assert key != "style" and not key.startswith("on"), (key, value)
            assert "//" not in value and "data:" not in value, (key, value)
            if key == "href":
                assert value.startswith("#traffic-")
    shown = "".join(root.itertext())
    assert TAG in shown  # as text
    assert "\\u202e\\x1b[31m" in shown
    assert "\u202e" not in shown
    assert "\x1b" not in shown


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


def test_without_a_finding_the_farthest_gpu_is_drawn() -> None:
    rows = [level(gpu, 0, 40.0, away_ratio=0.9 if gpu == 3 else 0.1) for gpu in range(4)]
    found = made("gpu_levels", gpu_series=rows, step_breakdown=[])
    assert "h0 GPU 3" in lines(found)


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
            "place_count": port + 1,
        }
        for port in range(6)
        for n in range(3)
    ]  # fmt: skip
    accused = replace(finding("pfc-storm/sw", ()), scope=Scope(links=("sw:p5",)))
    found = made("port_growth", accused, port_steps=counted, step_breakdown=steps)
    titles = [axes.get_title() for axes in found.figure.axes]
    assert titles[:3] == ["", "sw p5 rx_pfc_packets", "sw p0 rx_pfc_packets (cause)"]
    assert [bar.get_height() for bar in shapes(found, 1)] == [0.0, 5.0, 10.0]
    assert "sw p5 rx_pfc_packets: 15 in all, most in step 2 (10)" in found.says
    assert "2 more counters in the query" in found.says


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


def test_an_unknown_gpu_has_no_peak() -> None:
    found = made("matrix_rates", gemm_efficiency=[product(0, 4e12, gpu_model="GPU-X")])
    assert not any("peak" in name for name in lines(found))
    assert "peak" not in found.says


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
    assert "Most waiting was for ranks 9000-9004: 500 ms" in found.says


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


def test_one_allocation_alone_is_drawn() -> None:
    drawing = made("memory", memory_timeline=[memory_row(7, 512, device_type="cpu", device=-1)])
    assert drawing.says.startswith("Rank 0, host: at most 512 B allocated, 0 s after")


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
