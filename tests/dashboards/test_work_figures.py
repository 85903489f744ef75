"""Figures and tables of what takes the time: what is handed to the axes."""

from __future__ import annotations

from typing import Any

from figure_rows import (
    MS,
    lines,
    made,
    memory_row,
    product,
)
from tracekit.dashboards import chart, drawn
from tracekit.dashboards.work_tables import kernels, modules, operators, parts


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
