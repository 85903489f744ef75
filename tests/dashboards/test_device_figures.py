"""Figures of devices and ports: what is handed to the axes."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from matplotlib.colors import to_rgba
from msgspec.structs import replace
from source_tables import create_table

from figure_rows import (
    MS,
    finding,
    level,
    lines,
    made,
    shapes,
    step,
)
from tracekit.answers import Answers
from tracekit.dashboards import chart, drawn, look
from tracekit.findings import Evidence, Scope
from tracekit.pictures import TableRows, rows_for

FILLED = {"counter_step", "net_sample"}


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
