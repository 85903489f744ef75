"""Tables of a page about NCCL's logs and about ports: what their rows say."""

from __future__ import annotations

from typing import Any

from tracekit.dashboards.nccl_tables import benchmarks, choices, communicators
from tracekit.dashboards.port_tables import port_counters, port_levels
from tracekit.report.html import _environment


def shown(table: Any) -> list[list[str]]:
    """Cells as they are read."""
    return [[c[0] if isinstance(c, tuple) else c for c in row] for row in table.rows]


def bench(**given: Any) -> dict[str, Any]:
    return {
        "benchmark": "all_reduce_perf", "hosts": ["a", "b", "a"], "ranks_count": 16,
        "rows_count": 1, "is_complete": True, "average_bus_bytes_per_s": 2e9,
        "peak_bus_bytes_per_s": 4e9, "peak_message_bytes": 1_000_000, "algorithm": "Ring",
        "protocol": None, "place": 1, **given,
    }  # fmt: skip


def test_benchmarks_begin_with_the_slowest() -> None:
    table = benchmarks([bench(average_bus_bytes_per_s=9e9), bench(is_complete=False)])
    assert shown(table) == [
        ["all_reduce_perf", "a, b", "16", "1", "no", "2 GB/s", "4 GB/s", "1 MB", "Ring", ""],
        ["all_reduce_perf", "a, b", "16", "1", "yes", "9 GB/s", "4 GB/s", "1 MB", "Ring", ""],
    ]
    assert benchmarks([]) is None


def member(rank: int, **given: Any) -> dict[str, Any]:
    return {
        "comm": "0x9", "group_rank": rank, "node": f"n{rank}", "group_size": 4,
        "channels_count": 8, "init_dur_ns": 10**9 * (rank + 1), "state": "complete",
        "nccl_version": "2.21.5" if rank == 0 else None, **given,
    }  # fmt: skip


def test_a_communicator_is_a_row_of_what_its_members_say() -> None:
    rows = [member(0), member(1, state="incomplete", channels_count=2)]
    other = member(0, comm="0xa", group_size=8, init_dur_ns=None)
    assert shown(communicators([*rows, other])) == [
        ["0xa", "8", "1", "1", "8", "-", "complete", "2.21.5"],
        ["0x9", "4", "2", "2", "2, 8", "2.00 s", "1 complete, 1 incomplete", "2.21.5"],
    ]
    assert communicators([]) is None


def test_choices_of_neighbouring_sizes_are_one_row() -> None:
    one = {
        "op": "AllReduce", "algorithm": "Ring", "protocol": "LL", "channels_count": 2,
        "message_bytes": 8, "choices_count": 5,
    }  # fmt: skip
    large = one | {"protocol": "Simple", "message_bytes": 1_000_000}
    nameless = one | {"op": None, "channels_count": None}
    assert shown(choices([large, one, one | {"message_bytes": 64}, nameless])) == [
        ["AllReduce", "Ring", "LL", "2", "8 B", "64 B", "10"],
        ["AllReduce", "Ring", "Simple", "2", "1 MB", "1 MB", "5"],
        ["unknown", "Ring", "LL", "-", "8 B", "8 B", "5"],
    ]
    assert choices([]) is None


def counted(port: str, growth: float | None, **given: Any) -> dict[str, Any]:
    return {
        "node": "sw", "port": port, "counter": "drops", "direction": "tx", "priority": None,
        "queue": None, "lane": None, "unit": "packets", "growth": growth, **given,
    }  # fmt: skip


def test_what_few_ports_counted_stands_above_what_all_did() -> None:
    traffic = [
        counted(p, 50.0, counter="octets", unit="bytes", direction=None) for p in ("p0", "p1")
    ]
    rows = [*traffic, counted("p0", 0.0), counted("p1", 7.0, queue=3), counted("p2", None)]
    quiet = counted("p0", 0.0, counter="pauses")
    assert shown(port_counters([*rows, quiet])) == [
        ["drops tx", "packets", "1 of 2", "7", "7", "sw p1 queue 3"],
        ["octets", "bytes", "2 of 2", "100", "50", "sw p1"],
    ]
    assert port_counters([quiet]) is None


def test_a_direction_that_a_counter_s_name_tells_stands_there_once() -> None:
    rows = [counted("p0", 3.0, counter="tx_drops"), counted("p0", 2.0, counter="txn")]
    found = shown(port_counters(rows))
    assert [row[0] for row in found] == ["tx_drops", "txn tx"]


def test_counters_that_were_read_once_are_told_as_they_stood() -> None:
    table = port_counters([counted("p0", None, last_value=12.0), counted("p1", None, last_value=0)])
    assert shown(table) == [["drops tx", "packets", "1 of 2", "12", "12", "sw p0"]]
    assert table is not None
    assert "read once" in table.caption


def test_a_level_is_told_where_it_is_highest() -> None:
    rows = [
        counted("p0", None, counter="queue_depth", kind="watermark", max_value=3.0, unit="bytes"),
        counted("p1", None, counter="queue_depth", kind="watermark", max_value=9.0, unit="bytes"),
        counted("p1", None, counter="heat", kind="gauge", max_value=40.0, unit="celsius"),
    ]
    assert shown(port_levels(rows)) == [
        ["heat tx", "celsius", "1", "40", "40", ""],
        ["queue_depth tx (watermark)", "bytes", "2", "6", "9", "sw p1"],
    ]
    assert port_levels([]) is None


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>`\u202e\x1b[2J"


def test_hostile_names_in_tables_are_text() -> None:
    rows = [bench(benchmark=HOSTILE, hosts=[HOSTILE], algorithm=HOSTILE)]
    members = [member(0, comm=HOSTILE, node=HOSTILE, nccl_version=HOSTILE, state=HOSTILE)]
    ports = [counted(HOSTILE, 3.0, node=HOSTILE, counter=HOSTILE, unit=HOSTILE)]
    for table in (benchmarks(rows), communicators(members), port_counters(ports)):
        assert table is not None
        macros = _environment().from_string(
            '{% import "macros.html.j2" as m %}{{ m.table("t", caption, columns, rows) }}'
        )
        text = macros.render(caption=table.caption, columns=table.columns, rows=table.rows)
        assert "<script" not in text
        assert "<img" not in text
        assert "&lt;script&gt;" in text
        assert "\u202e" not in text
        assert "\x1b" not in text
