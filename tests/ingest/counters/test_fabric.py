"""The map of a fabric, as ibnetdiscover, iblinkinfo and UFM give it."""

from __future__ import annotations

import json

from net_cases import ingest

DISCOVERED = """\
#
# Topology file: generated on Tue Jun 15 12:31:02 2021
#
vendid=0x2c9
devid=0xd2f0
sysimgguid=0xb83fd203006b4a90
switchguid=0xb83fd203006b4a90(b83fd203006b4a90)
Switch\t41 "S-b83fd203006b4a90"\t\t# "MF0;leaf01:MQM8700/U1" enhanced port 0 lid 3 lmc 0
[1]\t"H-0c42a10300605e88"[1](c42a10300605e88) \t\t# "gpu-01.cluster mlx5_0" lid 12 4xHDR
[2]\t"H-0c42a10300605e99"[1](c42a10300605e99) \t\t# "gpu-02 HCA-3" lid 13 2xNDR
[21]\t"S-b83fd203006b4b90"[5]\t\t# "Quantum Mellanox" lid 7 4xHDR

vendid=0x2c9
caguid=0xc42a10300605e88
Ca\t1 "H-0c42a10300605e88"\t\t# "gpu-01.cluster mlx5_0"
[1](c42a10300605e88) \t"S-b83fd203006b4a90"[1]\t\t# lid 12 lmc 0 "MF0;leaf01:MQM8700/U1" lid 3 4xHDR
"""
INFO = """\
CA: gpu-01 mlx5_0:
      0x0c42a10300605e88     12    1[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>       3    1[  ] "MF0;leaf01:MQM8700/U1" ( )
Switch: 0xb83fd203006b4a90 MF0;leaf01:MQM8700/U1:
           3    1[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>      12    1[  ] "gpu-01 mlx5_0" ( )
           3    2[  ] ==(                Down/ Polling)==>             [  ] "" ( )
           3    3[  ] ==( 4X           100 Gbps Active/  LinkUp)==>       9    7[  ] "MF0;spine02:MQM9700/U1" ( Could be 200 Gbps)
"""  # noqa: E501

LISTED = """\
CA   134  1 0x0c42a10300605e88 4x HDR - SW     3 10 0xb83fd203006b4a90 ( 'gpu-01 mlx5_0' - 'MF0;leaf01:MQM8700/U1' )
SW     3 10 0xb83fd203006b4a90 4x HDR - CA   134  1 0x0c42a10300605e88 ( 'MF0;leaf01:MQM8700/U1' - 'gpu-01 mlx5_0' )
SW     3 11 0xb83fd203006b4a90 4x EDR - SW    51  9 0xb83fd203006b4b90 ( 'MF0;leaf01:MQM8700/U1' - 'rack 5 spine ' )
SW     3 12 0xb83fd203006b4a90 4x ???                                    'MF0;leaf01:MQM8700/U1'
SW     3 41 0xb83fd203006b4a90 4x HDR - CA    78  1 0x946dae0300630bfe ( 'MF0;leaf01:MQM8700/U1' - 'Mellanox Technologies Aggregation Node' )
"""  # noqa: E501


def ends(text: str) -> list[tuple[object, ...]]:
    names = ("node", "node_kind", "port", "peer", "peer_kind", "peer_port", "lanes_count",
             "speed_bits_s")  # fmt: skip
    sink = ingest(text, "fabric", "fabric.txt")
    return [tuple(r[n] for n in names) for r in sink.rows("fabric_link")]


def test_each_end_of_a_cable_is_a_row() -> None:
    spine = "Quantum Mellanox 0xb83fd203006b4b90"  # not unique without its GUID
    assert ends(DISCOVERED) == [
        ("leaf01", "switch", "1", "gpu-01", "host", "mlx5_0/1", 4, 200e9),
        ("leaf01", "switch", "2", "gpu-02", "host", "HCA-3/1", 2, 200e9),
        ("leaf01", "switch", "21", spine, "switch", "5", 4, 200e9),
        ("gpu-01", "host", "mlx5_0/1", "leaf01", "switch", "1", 4, 200e9),
    ]


def test_hosts_that_nobody_named_are_kept_apart_by_their_adapters() -> None:
    text = DISCOVERED.replace("gpu-01.cluster", "localhost").replace("gpu-02", "localhost")
    hosts = {end[3] for end in ends(text) if end[4] == "host"}
    assert hosts == {"localhost 0x0c42a10300605e88", "localhost 0x0c42a10300605e99"}
    assert {e[0] for e in ends(text) if e[1] == "host"} == {"localhost 0x0c42a10300605e88"}


def test_ports_that_lead_to_hosts_are_links() -> None:
    sink = ingest(DISCOVERED, "fabric", "fabric.txt")
    links = [(r["node"], r["port"], r["peer_host"], r["nic"]) for r in sink.rows("link")]
    assert links == [("leaf01", "1", "gpu-01", "mlx5_0"), ("leaf01", "2", "gpu-02", "HCA-3")]


def test_iblinkinfo_says_the_same() -> None:
    assert ends(INFO) == [
        ("gpu-01", "host", "mlx5_0/1", "leaf01", "switch", "1", 4, 200e9),
        ("leaf01", "switch", "1", "gpu-01", "host", "mlx5_0/1", 4, 200e9),
        # What only a switch's list names has no kind, and runs at what it runs at.
        ("leaf01", "switch", "3", "spine02", None, "7", 4, 400e9),
    ]
    sink = ingest(INFO, "fabric", "fabric.txt")
    assert [r["peer_host"] for r in sink.rows("link")] == ["gpu-01"]
    assert "bad_record" not in sink.counters


def test_what_a_link_could_be_is_kept_where_iblinkinfo_says_it() -> None:
    """At the end of its line: lanes, the speed of one, or both; words of other speeds are not."""
    head = "Switch: 0xb83fd203006b4a90 MF0;leaf01:MQM8700/U1:\n"
    line = '  3 {0}[  ] ==( {1}X  {2} Gbps Active/  LinkUp)==>  5 1[  ] "gpu-0{0} HCA-1" ( {3})\n'
    said = [
        (2, "25.78125", "Could be 4X"),
        (4, "25.78125", "Could be 53.125 Gbps"),
        (2, "25.78125", "Could be 4X Could be 53.125 Gbps"),
        (4, "10.0", "Could be FDR10"),
        (4, "53.125", ""),
    ]
    text = head + "".join(line.format(i, *link) for i, link in enumerate(said, 1))
    rows = ingest(text, "fabric", "fabric.txt").rows("fabric_link")
    assert [(r["possible_lanes_count"], r["possible_speed_bits_s"]) for r in rows] == [
        (4, 100e9), (4, 200e9), (4, 200e9), (None, None), (None, None),
    ]  # fmt: skip
    # An adapter's name makes its owner a host, whose own list is not there.
    assert {(r["peer_kind"], r["peer_port"]) for r in rows} == {("host", "HCA-1/1")}


def test_a_line_a_port_says_the_same() -> None:
    """ibnetdiscover --ports; what reduces for SHARP is part of its switch and no host."""
    node = "Mellanox Technologies Aggregation Node 0x946dae0300630bfe"
    assert ends(LISTED) == [
        ("gpu-01", "host", "mlx5_0/1", "leaf01", "switch", "10", 4, 200e9),
        ("leaf01", "switch", "10", "gpu-01", "host", "mlx5_0/1", 4, 200e9),
        ("leaf01", "switch", "11", "rack 5 spine 0xb83fd203006b4b90", "switch", "9", 4, 100e9),
        ("leaf01", "switch", "41", node, "switch", "1", 4, 200e9),
    ]
    sink = ingest(LISTED, "fabric", "ports.out")
    assert [r["peer_host"] for r in sink.rows("link")] == ["gpu-01"]
    assert "bad_record" not in sink.counters
    sink = ingest(LISTED + "SW     3 13 0xb83f 4x\n", "fabric", "ports.out")
    assert sink.counters["bad_record"] == 1


def test_what_is_no_link_is_told() -> None:
    sink = ingest(DISCOVERED + '[9]\t"X-12"[1]\n', "fabric", "fabric.txt")
    assert sink.counters["bad_record"] == 1
    assert sink.facts["status"] == "partial"
    sink = ingest(DISCOVERED.split("\n", 8)[-1], "fabric", "fabric.txt")  # without its first head
    assert sink.counters["bad_record"] == 3
    assert len(sink.rows("fabric_link")) == 1


def test_a_map_that_breaks_off_in_a_line_keeps_the_others() -> None:
    whole = ends(DISCOVERED)
    for length in range(300, len(DISCOVERED), 37):
        kept = [e for e in ends(DISCOVERED[:length]) if e[6] is not None]  # lanes stand last
        assert kept == whole[: len(kept)]
    assert len(kept) == 3


UFM = [
    {
        "source_guid": "b83fd203006b4a90", "source_port": "1", "source_port_dname": "1",
        "source_port_node_description": "MF0;leaf01:MQM8700/U1",
        "destination_guid": "0c42a10300605e88", "destination_port": "1",
        "destination_port_dname": "HCA-1/1", "width": "IB_4x", "severity": "Info",
        "destination_port_node_description": "gpu-01.cluster mlx5_0", "capabilities": [],
    },
    {
        "source_guid": "b83fd203006b4a90", "source_port": "21", "source_port_dname": "21",
        "destination_guid": "b83fd203006b4b90", "destination_port": "5",
        "destination_port_dname": "5", "width": "IB_2x",
    },
    {"source_guid": "b83fd203006b4a90", "source_port": "x"},
]  # fmt: skip


def test_ufm_lists_links_between_machines_or_their_guids() -> None:
    """Without descriptions, as of older versions, a machine is its GUID; no speed is said."""
    sink = ingest(json.dumps(UFM), "fabric", "links.json")
    names = ("node", "node_kind", "port", "peer", "peer_kind", "peer_port", "lanes_count")
    assert sink.rows("fabric_link", *names) == [
        ("leaf01", "switch", "1", "gpu-01", "host", "mlx5_0/1", 4),
        ("0xb83fd203006b4a90", "switch", "21", "0xb83fd203006b4b90", "switch", "5", 2),
    ]
    assert sink.rows("fabric_link", "speed_bits_s") == [None, None]
    assert sink.rows("link", "node", "port", "peer_host", "nic") == [
        ("leaf01", "1", "gpu-01", "mlx5_0")
    ]
    assert sink.counters["bad_record"] == 1


UFM_PORTS = [
    {
        "description": "Switch IB Port", "number": 1, "physical_state": "Link Up",
        "logical_state": "Active", "name": "b83fd203006b4a90_1", "dname": "1/1/1",
        "node_description": "MF0;leaf01:MQM8700/U1", "active_speed": "HDR", "active_width": "4x",
        "peer": "0c42a10300605e88_1", "peer_node_guid": "0c42a10300605e88",
        "peer_node_description": "gpu-01 mlx5_0", "peer_port_dname": "HCA-1/1", "lid": 34,
    },
    {
        "description": "Computer IB Port", "number": 1, "physical_state": "Link Up",
        "name": "0c42a10300605e88_1", "node_description": "gpu-01 mlx5_0", "active_speed": "HDR",
        "active_width": "2x", "peer": "b83fd203006b4a90_1", "peer_port_dname": "1/1/1",
        "peer_node_description": "MF0;leaf01:MQM8700/U1",
    },
    {
        "description": "Switch IB Port", "number": 52, "physical_state": "Polling",
        "name": "b83fd203006b4a90_52", "node_description": "MF0;leaf01:MQM8700/U1",
        "active_speed": None, "active_width": None, "peer": "N/A", "peer_port_dname": "N/A",
    },
    {"number": 53, "physical_state": "Polling", "peer_port_dname": "N/A"},
]  # fmt: skip


def test_ufm_lists_ports_with_their_peers() -> None:
    sink = ingest(json.dumps(UFM_PORTS), "fabric", "ports.json")
    names = ("node", "node_kind", "port", "peer", "peer_kind", "peer_port", "lanes_count",
             "speed_bits_s")  # fmt: skip
    assert sink.rows("fabric_link", *names) == [
        ("leaf01", "switch", "1", "gpu-01", "host", "mlx5_0/1", 4, 200e9),
        ("gpu-01", "host", "mlx5_0/1", "leaf01", "switch", "1", 2, 100e9),
    ]
    assert sink.rows("link", "node", "port", "peer_host", "nic") == [
        ("leaf01", "1", "gpu-01", "mlx5_0")
    ]
    assert sink.counters["bad_record"] == 1


LOCAL = """\
CA: localhost mlx5_0:
      0xb8599f0300000010     14    1[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>      12    7[  ] "MF0;leaf04:MQM8700/U1" ( )
CA: localhost mlx5_0:
      0xb8599f0300000020     15    1[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>      12    8[  ] "MF0;leaf04:MQM8700/U1" ( )
Switch: 0xe41d2d0300062400 MF0;leaf04:MQM8700/U1:
          12    7[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>      14    1[  ] "localhost mlx5_0" ( )
          12    8[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>      15    1[  ] "localhost mlx5_0" ( )
          12    9[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>      16    1[  ] "localhost mlx5_0" ( )
          12   10[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>      17    1[  ] "gpu-11 mlx5_0" ( )
"""  # noqa: E501


def test_machines_that_nobody_named_are_told_apart_by_guid_or_lid() -> None:
    """iblinkinfo prints the other end's LID alone; its GUID stands in the adapter's own list."""
    rows = ingest(LOCAL, "fabric", "iblinkinfo.txt").rows("fabric_link")
    near = {(r["node"], r["peer"]) for r in rows}
    first, second = "localhost 0xb8599f0300000010", "localhost 0xb8599f0300000020"
    assert near == {
        (first, "leaf04"), (second, "leaf04"), ("leaf04", first), ("leaf04", second),
        ("leaf04", "localhost LID 16"), ("leaf04", "gpu-11"),
    }  # fmt: skip
    assert {r["peer_port"] for r in rows if r["node"] == "leaf04"} == {"mlx5_0/1"}
