"""Columns whose header has no unit: the size of all their numbers says it, or nothing does."""

from __future__ import annotations

import pytest
from memory_sink import MemorySink, source_of
from net_cases import ingest

from tracekit.ingest.counters import fields


def reading(name: str, numbers: list[list[object]], sep: str = ",") -> MemorySink:
    """A table of one counter of each of some GPUs, beside their power."""
    count = len(numbers[0])
    header = [f"gpu{g}_{name}" for g in range(count)]
    lines = [sep.join(["time", "gpu0_power_w", "gpu1_power_w", *header])]
    for moment, row in enumerate(numbers):
        lines.append(sep.join(map(str, [1763800000 + moment, 5, 6, *row])))
    return ingest(source_of("\n".join(lines).encode(), "x.csv"), "device_csv")


def values(sink: MemorySink, counter: str) -> list[float]:
    return [r["value"] for r in sink.rows("gpu_sample") if r["counter"] == counter]


@pytest.mark.parametrize(
    ("name", "counter", "numbers", "expected"),
    [
        ("util", "gpu_utilisation", [[0, 87], [100, 3]], [0.0, 0.87, 1.0, 0.03]),
        ("util", "gpu_utilisation", [[0.0, 0.87], [1.0, 0.25]], [0.0, 0.87, 1.0, 0.25]),
        ("sm_active", "sm_active", [[0.01, 0.0], [0.03, 0.25]], [0.01, 0.0, 0.03, 0.25]),
        ("sm_active", "sm_active", [[60.0, 0.0], [45.5, 0.25]], [0.6, 0.0, 0.455, 0.0025]),
        ("tensor_active", "tensor_active", [[0.0, 0.0]], [0.0, 0.0]),
        ("sm_clock", "sm_clock", [[345, 1980]], [345e6, 1980e6]),
        ("sm_clock", "sm_clock", [[345e6, 1980e6]], [345e6, 1980e6]),
        ("memory_used", "memory_used", [[0, 80000]], [0.0, 80000 * 1048576.0]),
        ("memory_used", "memory_used", [[1048576, 80e9]], [1048576.0, 80e9]),
    ],
)
def test_numbers_of_one_size_have_one_unit(
    name: str, counter: str, numbers: list[list[object]], expected: list[float]
) -> None:
    sink = reading(name, numbers)
    assert values(sink, counter) == [pytest.approx(v) for v in expected]
    assert sum(n for c, n in sink.counters.items() if c.startswith("unit_by_size")) == 2


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("util", [[0, 1], [1, 1]]),  # 1 % or all of the time
        ("util", [[0.2, 0.3]]),  # of a GPU that stands by, or a third of the time
        ("util", [[0.2, 1.3]]),
        ("sm_active", [[0, 1.2]]),
        ("sm_active", [[0.9, 0.8], [2.0, 0.7]]),  # a sensor's error among shares
        ("util", [[5000, 3]]),
        ("sm_clock", [[1.2, 1.9]]),
        ("memory_used", [[20, 79]]),  # GiB, GB or percent
    ],
)
def test_numbers_that_could_be_of_two_units_are_not_read(
    name: str, numbers: list[list[object]]
) -> None:
    sink = reading(name, numbers)
    assert {r["counter"] for r in sink.rows("gpu_sample")} == {"power"}
    assert sink.counters["column_not_read_neither_its_header_nor"] == 2


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([(0, 0), (1, 87), (0, 1)], [0.0, 0.87, 0.01]),  # 1 is a percent beside 87
        ([(0, 0.25), (1, 0.875)], [0.25, 0.875]),
        ([(0, 0), (1, 1)], []),  # nobody knows
    ],
)
def test_rows_a_gpu_are_told_so_too(
    numbers: list[tuple[int, float]], expected: list[float]
) -> None:
    rows = "".join(f"1763800000,{gpu},55,{util}\n" for gpu, util in numbers)
    source = source_of(f"time,gpu,power,util\n{rows}".encode(), "x.csv")
    assert values(ingest(source, "gpu_csv"), "gpu_utilisation") == expected


def test_a_comma_may_be_decimal() -> None:
    assert values(reading("util", [["0,5", "99,5"]], ";"), "gpu_utilisation") == [0.005, 0.995]


def test_what_breaks_off_or_holds_no_number_decides_nothing() -> None:
    sink = reading("util", [["N/A", 55], ["x", 60]])
    assert values(sink, "gpu_utilisation") == [0.55, 0.6]


@pytest.mark.parametrize(
    ("numbers", "is_read"),
    [(["0.5", " 0.25", "1.0"], True), (["0.5", "87", "3"], True), (["0.2", "0.3", "nan"], False),
     (["[N/A]", "0.1", "x"], False), (["3", "", "1e1"], True)],
)  # fmt: skip
def test_blocks_and_lines_tell_one_unit(numbers: list[str], is_read: bool) -> None:
    """A table whose rows are whole is taken a block at a time, one with quotes line by line."""
    told = []
    for mark in ("", '"'):
        rows = [f"2026-07-14T08:12:{n:02d}Z,{mark}0{mark},70,{v}" for n, v in enumerate(numbers)]
        text = "\n".join(["time,gpu,temperature_c,gpu_utilisation", *rows])
        sink = ingest(source_of(text.encode(), "x.csv"), "gpu_csv")
        told.append((values(sink, "gpu_utilisation"), sink.counters))
    assert told[0] == told[1]
    assert bool(told[0][0]) is is_read


@pytest.mark.parametrize(
    ("name", "numbers", "expected"),
    [
        ("gpu_utilization", [0, 87], [0.0, 0.87]),
        ("sm_clock", [345, 1980], [345e6, 1980e6]),
        ("memory_used", [80000, 5], [80000 * 2.0**20, 5 * 2.0**20]),
        ("memory_used_bytes", [80000, 5], [80000, 5]),
        ("gpu_utilization_ratio", [0.2, 0.3], [0.2, 0.3]),
        ("power", [0.2, 0.3], [0.2, 0.3]),
        ("DCGM_FI_DEV_SM_CLOCK", [345, 1980], [345e6, 1980e6]),
        ("sm_clock", [1.2, 1.9], []),
        ("nvlink_tx", [5e9, 1e6], [5e9, 1e6]),
        ("nvlink_tx", [450e6, 1e6], []),  # kilobytes, or bytes of one that hardly sends
        ("temperature_gpu", [60, 61], [60, 61]),
        ("clocks_current_sm", [345, 1980], [345e6, 1980e6]),
        ("memory_used", [20, 79], []),
        ("gpu_utilization", [0.2, 0.3], []),
    ],
)
@pytest.mark.parametrize("is_long", [True, False])
def test_tables_of_gpus_are_told_so_whatever_their_form(
    name: str, numbers: list[float], expected: list[float], is_long: bool
) -> None:
    """Of a long table the first row does not decide either."""
    counter = fields.of_column(name).counter  # type: ignore[union-attr]  # it is one
    if is_long:
        text = "timestamp,gpu,metric,value\n1763800000,0,fan_speed_pct,30\n"
        rows = [f"1763800000,{g},{name},{n}\n" for g, n in enumerate(numbers)]
    else:
        text = f"timestamp,gpu,fan_speed_pct,{name}\n"
        rows = [f"1763800000,{g},30,{n}\n" for g, n in enumerate(numbers)]
    sink = ingest(source_of((text + "".join(rows)).encode(), "x.csv"), "gpu_csv")
    assert values(sink, counter) == [pytest.approx(v) for v in expected]
    assert sink.counters.get("column_not_read_of_no_unit", 0) == (not expected)


def test_a_unit_beside_each_number_of_a_long_table_is_the_header_s() -> None:
    text = "timestamp,gpu,metric,unit,value\n"
    rows = ["1763800000,0,sm_clock,MHz,1980\n", "1763800000,1,sm_clock,,1.98\n"]
    sink = ingest(source_of((text + "".join(rows)).encode(), "x.csv"), "gpu_csv")
    assert values(sink, "sm_clock") == [1980e6]
    assert sink.counters["column_not_read_of_no_unit"] == 1


@pytest.mark.parametrize("is_long", [True, False])
def test_decimal_commas_say_a_unit_as_points_do(is_long: bool) -> None:
    head = "timestamp;gpu;metric;value\n" if is_long else "timestamp;gpu;power_w;sm_clock\n"
    between = "sm_clock" if is_long else "300,5"
    text = head + "".join(f"{1763800000 + n};0;{between};{1980 + n},5\n" for n in range(3))
    sink = ingest(source_of(text.encode(), "x.csv"), "gpu_csv")
    assert values(sink, "sm_clock") == [1980.5e6, 1981.5e6, 1982.5e6]


def test_units_in_cells_count_each_by_itself_and_a_strange_one_is_none() -> None:
    rows = ["512 MiB", "1.5 GiB", "7 parsecs", "[N/A]", "1024 KiB"]
    text = "timestamp,gpu,temperature_c,memory_used\n"
    text += "".join(f"{1763800000 + n},0,50,{cell}\n" for n, cell in enumerate(rows))
    sink = ingest(source_of(text.encode(), "x.csv"), "gpu_csv")
    assert values(sink, "memory_used") == [512 * 2.0**20, 1.5 * 2.0**30, 2.0**20]
    assert sink.counters["bad_number"] == 1
    only = text.replace("512 MiB", "7 parsecs").replace("1.5 GiB", "8 parsecs")
    only = only.replace("1024 KiB", "9 parsecs")
    assert values(ingest(source_of(only.encode(), "x.csv"), "gpu_csv"), "memory_used") == []


def test_cells_of_rows_that_are_too_short_or_too_long_decide_no_unit() -> None:
    rows = ["0,0.25,30", "1,0.875,30", "2,60", "3,0.5,30,7"]  # as many cells as four whole rows
    text = "timestamp,gpu,util,fan_speed_pct\n" + "".join(f"1763800000,{row}\n" for row in rows)
    sink = ingest(source_of(text.encode(), "x.csv"), "gpu_csv")
    assert values(sink, "gpu_utilisation") == [0.25, 0.875, 0.5]
