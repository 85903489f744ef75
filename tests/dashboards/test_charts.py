"""Figures as a whole: which there are, and what each is as a picture and as a part of a page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from figure_rows import (
    MS,
    finding,
    idle,
    late,
    level,
    made,
    memory_row,
    product,
    step,
    stretch,
    traffic_row,
)
from soaks import soak
from tracekit import catalog
from tracekit.dashboards import chart, charts, drawn, look
from tracekit.dashboards.drawing import Drawing
from tracekit.errors import UsageError

TAG = "<script>alert(1)</script>"


UNPRINTABLE = '"\u202e\x1b[31m$'


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


@pytest.mark.parametrize("name", soak(SAMPLES, fast=4))
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
