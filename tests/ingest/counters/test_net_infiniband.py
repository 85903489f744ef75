"""perfquery, ibqueryerrors and ibdiagnet: words become bytes, full counters are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from memory_sink import source_of
from net_cases import SHARED, golden, ingest, ingest_path, table

from tracekit.ingest import recognise

FAMILY = "infiniband"

CLASSIC = """\
# Port counters: Lid 6 port 1 (CapMask: 0x1400)
PortSelect:......................1
CounterSelect:...................0x0000
SymbolErrorCounter:..............65535
LinkDownedCounter:...............254
PortXmitData:....................4294967295
PortXmitWait:....................7
# Port counters: Lid 6 port 255 (CapMask: 0x1400)
PortXmitData:....................12
"""
ERRORS = """\
Errors for "server1.example.org mlx5_0"
   GUID 0x2c9030042dff1 port 1: [SymbolErrorCounter == 3] [PortXmitWait == 4294967295 (4.295G)]
Errors for 0x2c903006e29b0 "MF0;ys23ib4:SX6036/U1"
   GUID 0x2c903006e29b0 port ALL: [LinkDownedCounter == 48]
   GUID 0x2c903006e29b0 port 1: [LinkDownedCounter == 8] [PortRcvSwitchRelayErrors == 2]
         Link info:     12   1[  ] ==( 4X )==>  0x0002c903  5    1[  ] "gpu-11 mlx5_3" ( )
Errors for 0xfc6a1c0300788f40 "Quantum Mellanox Technologies"
   GUID 0xfc6a1c0300788f40 port 7: [PortXmitDiscards == 9]
   GUID oops port 8: [PortXmitDiscards == 9]

## Summary: 3 nodes checked, 3 bad nodes found
"""
IBDIAGNET = """\
START_NODES
NodeDesc,NumPorts,NodeType,NodeGUID
"MF0;leaf01:MQM9700/U1",65,2,0x1
"server01 mlx5_0",1,1,0x2
END_NODES
START_PM_INFO
NodeGUID,PortGUID,PortNumber,LinkDownedCounter,LinkDownedCounterExt,PortXmitDataExtended,PortXmitWaitExt
0x1,0x1,3,255,300,10,0x10
0x2,0x2,1,0,0,20,5
0x2,0x2,1,0
END_PM_INFO
START_CABLE_INFO
NodeGuid,PortNum,Vendor
0x1,1,Someone
END_CABLE_INFO
"""


def test_perfquery_golden() -> None:
    sink = ingest(CLASSIC, FAMILY, "perfquery.out")
    assert table(sink) == golden(
        """
        4 1 rx_symbol_errors cumulative 65535 count
        5 1 link_downed cumulative 254 count
        6 1 tx_bytes cumulative 17179869180 bytes
        7 1 tx_wait cumulative 7 ticks
        """
    )
    assert {(r["node"], r["node_source"]) for r in sink.rows("net_sample")} == {("lid 6", "file")}
    assert sink.rows("log_event", "place", "code", "fields") == [
        (4, "counter-saturated", ["node=lid 6", "port=1", "counter=rx_symbol_errors"]),
        (6, "counter-saturated", ["node=lid 6", "port=1", "counter=tx_bytes"]),
    ]
    assert sink.counters == {"sum_of_ports": 1}


def test_extended_counters_are_never_full() -> None:
    text = CLASSIC.replace("# Port counters", "# Port extended counters")
    assert ingest(text, FAMILY).rows("log_event") == []


def test_ibqueryerrors_golden() -> None:
    sink = ingest(ERRORS, FAMILY, "ibqueryerrors.out")
    assert table(sink) == golden(
        """
        2 mlx5_0/1 rx_symbol_errors cumulative 3 count
        2 mlx5_0/1 tx_wait cumulative 4294967295 ticks
        5 1 link_downed cumulative 8 count
        5 1 rx_switch_relay_errors cumulative 2 packets
        8 7 tx_dropped_packets cumulative 9 packets
        """
    )
    assert list(dict.fromkeys(sink.rows("net_sample", "node"))) == [
        "server1",
        "ys23ib4",
        "Quantum Mellanox Technologies 0xfc6a1c0300788f40",
    ]
    assert sink.rows("link", "node", "port", "peer_host", "nic", "link_source") == [
        ("ys23ib4", "1", "gpu-11", "mlx5_3", "file")
    ]
    assert sink.counters["sum_of_ports"] == 1
    assert sink.counters["bad_record"] == 1
    assert sink.places["bad_record"] == 9
    assert sink.counters["parsed_from_documentation"] == 1


def test_ibdiagnet_golden() -> None:
    sink = ingest(IBDIAGNET, FAMILY, "ibdiagnet2.db_csv")
    assert table(sink) == golden(
        """
        8 3 link_downed cumulative 300 count
        8 3 tx_bytes cumulative 40 bytes
        8 3 tx_wait cumulative 16 ticks
        9 mlx5_0/1 link_downed cumulative 0 count
        9 mlx5_0/1 tx_bytes cumulative 80 bytes
        9 mlx5_0/1 tx_wait cumulative 5 ticks
        """
    )
    assert list(dict.fromkeys(sink.rows("net_sample", "node"))) == ["leaf01", "server01"]
    assert sink.rows("log_event") == []
    assert (sink.counters["bad_record"], sink.places["bad_record"]) == (1, 10)
    assert sink.counters["other_section"] == 1


@pytest.mark.parametrize(
    "name",
    [
        "perfquery_0x506b4b03005c2740.out",
        "perfquery_0x7cfe9003003b4b96.out",
        "perfquery-rcv-error_0x7cfe9003003b4b96-1.out",
    ],
)
def test_recorded_perfquery(name: str) -> None:
    path: Path = SHARED / "infiniband" / name
    if not path.exists():
        pytest.skip("the outputs of perfquery are not here (../shared/data/counters)")
    sink = ingest_path(path, FAMILY)
    printed = {
        found[1]: int(found[2])
        for found in re.finditer(r"^(\w+):\.+(\d+)$", path.read_text(), re.M)
        if found[1] != "PortSelect"
    }
    words = {"PortXmitData", "PortRcvData"}
    assert {r["original_name"]: r["counted"] for r in sink.rows("net_sample")} == {
        name: value * (4 if name in words else 1) for name, value in printed.items()
    }
    assert set(sink.rows("net_sample", "port")) == {"1"}
    assert sink.facts["status"] == "ok"


@pytest.mark.parametrize("name", ["fabric.out", "slurm-1.out", "topology.log", "net.txt"])
def test_the_topology_that_ibnetdiscover_prints_is_no_log_of_the_job(name: str) -> None:
    text = (
        b"#\n# Topology file: generated on Thu Mar  7 10:00:00 2024\n#\n"
        b"# Initiated from node 0c42a10300a1b2c4 port 0c42a10300a1b2c4\n\n"
        b"vendid=0x2c9\ndevid=0xd2f0\nsysimgguid=0xb8599f0300aabb00\n"
        b"switchguid=0xb8599f0300aabb00(b8599f0300aabb00)\n"
        b'Switch\t41 "S-b8599f0300aabb00"\t\t# "Quantum" enhanced port 0 lid 2 lmc 0\n'
        b'[1]\t"H-0c42a10300a1b2c4"[1](c42a10300a1b2c4) \t\t# "node1 mlx5_0" lid 4 4xHDR\n'
    )
    found = recognise(source_of(text, name))
    assert (found.kind, found.status, found.ingestor) == ("fabric", "ok", "fabric")
