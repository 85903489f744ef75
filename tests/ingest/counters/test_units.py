"""Units: one table for whoever made the file, and case where it decides."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tracekit.ingest.counters import device_table, fields, net_table
from tracekit.ingest.counters.units import MEMORY, SIZES

RATES = [
    ("B/s", 1), ("kB/s", 1000), ("MB/s", 10**6), ("MiB/s", 2**20), ("GiB/s", 2**30),
    ("Gbit/s", 125 * 10**6), ("Gbps", 125 * 10**6), ("Mb/s", 125_000),
]  # fmt: skip


@pytest.mark.parametrize(("unit", "scale"), RATES)
def test_a_rate_is_the_same_in_every_kind_of_table(unit: str, scale: int) -> None:
    gpu = fields.of_column(f"pcie_tx [{unit}]")
    assert gpu is not None and gpu.scale == scale
    assert net_table.counter_of("tx_rate", unit, "x").scale == scale
    columns = device_table.layout_of(f"time,eth0_tx [{unit}],eth1_tx [{unit}]")
    assert columns is not None
    assert [c.meaning.scale for c in columns.columns] == [scale, scale]


@pytest.mark.parametrize(
    ("end", "scale"),
    [("mb_s", 10**6), ("kib/s", 2**10), ("gbps", 125 * 10**6), ("mbits_per_s", 125_000)],
)
def test_a_name_in_lower_case_means_bytes_unless_it_says_bits(end: str, scale: int) -> None:
    found = device_table.layout_of(f"time,eth0_tx_{end},eth1_tx_{end}")
    assert found is not None
    assert [c.meaning.scale for c in found.columns] == [scale, scale]


def test_memory_is_counted_by_1024_and_what_is_sent_by_1000() -> None:
    assert MEMORY["MB"] == MEMORY["MiB"] == SIZES["bytes"]["MiB"] == 2**20
    assert SIZES["bytes"]["MB"] == 10**6
    held = fields.of_column("memory_used [GB]")
    assert held is not None and held.scale == 2**30


def test_a_unit_of_another_kind_is_refused() -> None:
    assert fields.of_column("power [MHz]") is None
    with pytest.raises(ValueError, match="bytes, octets"):
        net_table.counter_of("tx_bytes", "MHz", "x")


def test_ratio_and_percent_are_each_others_hundredth() -> None:
    assert SIZES["ratio"]["%"] == Fraction(1, 100)
    assert SIZES["percent"]["ratio"] == 100
