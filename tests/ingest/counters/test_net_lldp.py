"""Neighbours become links: which port leads to which machine and NIC."""

from __future__ import annotations

import json

import pytest
from net_cases import ingest

TABLE = """\
admin@leaf01:~$ show lldp table
Capability codes: (R) Router, (B) Bridge, (O) Other
LocalPort    RemoteDevice    RemotePortID       Capability    RemotePortDescr
-----------  --------------  -----------------  ------------  -----------------
Ethernet0    gpu-11          b8:ce:f6:01:02:03  R             ens1f0np0
Ethernet4    spine02         Ethernet8          BR            to leaf01 Et4
Ethernet8                    b8:ce:f6:01:02:04
--------------------------------------------------
Total entries displayed:  3
"""
EOS = {
    "tablesLastChangeTime": 1.5,
    "lldpNeighbors": [
        {"port": "Ethernet1", "neighborDevice": "gpu-11", "neighborPort": "ens1f0np0", "ttl": 120},
        {"port": "Ethernet2", "neighborDevice": "b8ce.f601.0204", "neighborPort": "x"},
    ],
}
LLDPCLI = {
    "lldp": {
        "interface": [
            {
                "ens1f0np0": {
                    "chassis": {"leaf01": {"id": {"type": "mac", "value": "b8:ce:f6:01:02:03"}}},
                    "port": {"id": {"type": "ifname", "value": "Ethernet0"}, "descr": "x"},
                }
            }
        ]
    }
}


@pytest.mark.parametrize(
    ("text", "wanted", "unnamed"),
    [
        (
            TABLE,
            [
                (5, "leaf01", "Ethernet0", "gpu-11", "ens1f0np0"),
                (6, "leaf01", "Ethernet4", "spine02", "Ethernet8"),
            ],
            1,
        ),
        (json.dumps(EOS), [(1, "leaf01", "Ethernet1", "gpu-11", "ens1f0np0")], 1),
        (json.dumps(LLDPCLI), [(1, "leaf01", "ens1f0np0", "leaf01", "Ethernet0")], 0),
    ],
    ids=["sonic", "eos", "lldpcli"],
)
def test_golden(text: str, wanted: list[tuple[object, ...]], unnamed: int) -> None:
    sink = ingest(text, "lldp", "leaf01-lldp.txt")
    assert sink.rows("link", "place", "node", "port", "peer_host", "nic") == wanted
    assert set(sink.rows("link", "link_source", "is_peer_host")) == {("file", False)}
    assert sink.counters.get("unnamed_neighbour", 0) == unnamed
    assert sink.counters["parsed_from_documentation"] == 1
    assert sink.facts["status"] == "ok"


def test_no_neighbour_is_an_answer() -> None:
    sink = ingest('{"lldpNeighbors": []}', "lldp", "lldp.json")
    assert sink.facts["status"] == "ok"
    assert "no port has a neighbour" in sink.facts["reason"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (TABLE, [
            ("leaf01", "switch", "Ethernet0", "gpu-11", None, "ens1f0np0"),
            ("leaf01", "switch", "Ethernet4", "spine02", None, "Ethernet8"),
        ]),
        (json.dumps(EOS), [("leaf01", "switch", "Ethernet1", "gpu-11", None, "ens1f0np0")]),
        (json.dumps(LLDPCLI), [("leaf01", None, "ens1f0np0", "leaf01", None, "Ethernet0")]),
    ],
    ids=["sonic", "eos", "lldpcli"],
)  # fmt: skip
def test_neighbours_are_cables_of_the_fabric(text: str, wanted: list[tuple[object, ...]]) -> None:
    """Who answers a switch's command is a switch; of others nothing says what they are."""
    columns = ("node", "node_kind", "port", "peer", "peer_kind", "peer_port")
    assert ingest(text, "lldp", "leaf01-lldp.txt").rows("fabric_link", *columns) == wanted


def test_a_port_known_by_its_address_alone_is_a_cable_and_a_list_of_nobody_is_none() -> None:
    eos = {"lldpNeighbors": [
        {"port": "Ethernet1", "neighborDevice": "gpu-11", "neighborPort": "B8:CE:F6:01:02:04"}
    ]}  # fmt: skip
    sink = ingest(json.dumps(eos), "lldp", "leaf01-lldp.txt")
    assert sink.rows("fabric_link", "peer", "peer_port") == [("gpu-11", "b8:ce:f6:01:02:04")]
    assert sink.rows("link", "nic") == [None]
    assert not ingest(json.dumps(eos), "lldp", "neighbours.json").rows("fabric_link", "port")
