"""What several commands printed into one file: each number is in a row, with the port it is of."""

from __future__ import annotations

from memory_sink import MemorySink
from net_cases import golden, ingest, table

CAPTURE = """\
=== date ===
2026-07-21T00:00:00Z
=== ethtool -S eth0 ===
NIC statistics:
     rx_packets: 1234
=== sudo ethtool -S eth1 ===
NIC statistics:
     rx_packets: 1235
=== rdma statistic ===
link mlx5_0/1 out_of_sequence 7
=== perfquery ===
# Port counters: Lid 12 port 1 (CapMask: 0x5A00)
PortSelect:......................1
SymbolErrorCounter:..............5
=== ethtool -S eth2 ===
NIC statistics:
     rx_packets: 1236
"""
NS = 1_784_592_000 * 10**9


def read(text: str, family: str) -> MemorySink:
    return ingest(text, family, "node-3.txt")


def test_each_command_is_read_by_its_own_format() -> None:
    sink = read(CAPTURE, "net_capture")
    assert table(sink) == golden(
        """
        5 eth0 rx_packets cumulative 1234 packets
        8 eth1 rx_packets cumulative 1235 packets
        10 mlx5_0/1 rdma_out_of_sequence cumulative 7 packets
        17 eth2 rx_packets cumulative 1236 packets
        14 1 rx_symbol_errors cumulative 5 count
        """
    )
    assert {row["time_ns"] for row in sink.rows("net_sample")} == {NS}
    assert set(sink.counters) == {"parsed_from_documentation"}
    assert sink.facts["status"] == "ok"


def test_the_commands_of_one_family_need_no_capture_and_headings_name_their_ports() -> None:
    text = CAPTURE.partition("=== perfquery")[0]
    assert [r["port"] for r in read(text, "nic").rows("net_sample")] == ["eth0", "eth1", "mlx5_0/1"]
    alone = "2026-07-21T00:00:00Z\n" + CAPTURE.partition("=== perfquery ===\n")[2]
    assert ingest(alone.partition("===")[0], "infiniband").table("net_sample").num_rows == 1


def test_a_heading_ends_an_output() -> None:
    """What an unknown command prints is no counter of the command before."""
    text = CAPTURE.partition("=== rdma")[0] + "=== uptime ===\n12:00 up 3 days, load: 4\n"
    sink = read(text, "nic")
    assert [r["port"] for r in sink.rows("net_sample")] == ["eth0", "eth1"]
    assert sink.counters["bad_record"] == 1
