"""Figures of communication: what is handed to the axes."""

from __future__ import annotations

from itertools import pairwise

from figure_rows import (
    MS,
    lines,
    made,
    traffic_row,
)


def test_hidden_communication_and_the_rest_make_all_of_it() -> None:
    row = {"rank": 0, "comm_ns": 40 * MS, "overlap_ns": 30 * MS, "exposed_comm_ns": 10 * MS}
    found = made("overlap", overlap=[row])
    (axes,) = found.figure.axes
    assert [c[0].get_height() for c in axes.containers] == [30.0, 10.0]
    assert "75 % of all communication is hidden" in found.says


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
