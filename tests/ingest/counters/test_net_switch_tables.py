"""JSON of Arista EOS and NX-OS, and their text tables."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from memory_sink import source_of
from net_cases import SHARED, golden, ingest, ingest_path, table

from tracekit.ingest import recognise

EOS: dict[str, tuple[Any, str]] = {
    "pfc": (
        {"interfaceCounters": {"Ethernet3/1/1": {"rxFrames": 1, "txFrames": 0}}},
        """
        1 Ethernet3/1/1 rx_pfc_packets cumulative 1 packets
        1 Ethernet3/1/1 tx_pfc_packets cumulative 0 packets
        """,
    ),
    "ecn": (
        {"intfQueueCounters": {"Ethernet1": {"queueCounters": {"0": "-", "3": "2"}}}},
        "1 Ethernet1/q3 tx_queue_ecn_marked_packets cumulative 2 packets",
    ),
    "discards": (
        {
            "inDiscardsTotal": 4,
            "interfaces": {"Ethernet1": {"outDiscards": 3, "inDiscards": 4}},
            "outDiscardsTotal": 3,
        },
        """
        1 Ethernet1 rx_dropped_packets cumulative 4 packets
        1 Ethernet1 tx_dropped_packets cumulative 3 packets
        """,
    ),
    "egress": (
        {
            "egressQueueCounters": {
                "interfaces": {
                    "Ethernet1": {
                        "ucastQueues": {
                            "trafficClasses": {
                                "TC3": {"dropPrecedences": {"DP1": {"droppedPackets": 2}}}
                            }
                        },
                        "mcastQueues": {
                            "trafficClasses": {
                                "TC4-7": {"dropPrecedences": {"DP0-2": {"droppedPackets": 5}}}
                            }
                        },
                    }
                }
            }
        },
        """
        1 Ethernet1/q3/l1 tx_queue_dropped_packets cumulative 2 packets
        1 Ethernet1/q4/l0 tx_multicast_queue_dropped_packets cumulative 5 packets
        """,
    ),
    "voq": (
        {
            "interfaces": {
                "Ethernet48": {
                    "trafficClasses": {
                        "TC1": {
                            "ingressVoqCounters": {"countersSum": {"droppedPackets": 4}},
                            "egressQueueCounters": {"countersSum": {"droppedPackets": 5}},
                        }
                    }
                }
            }
        },
        """
        1 Ethernet48/q1 voq_dropped_packets cumulative 4 packets
        1 Ethernet48/q1 tx_queue_dropped_packets cumulative 5 packets
        """,
    ),
    "watchdog": (
        {"interfaces": {"Ethernet1": {"txQueues": {"2": {"stuckCount": 3, "recoveryCount": 1}}}}},
        """
        1 Ethernet1/q2 pfcwd_storms_detected cumulative 3 count
        1 Ethernet1/q2 pfcwd_storms_restored cumulative 1 count
        """,
    ),
}
NXAPI = {
    "TABLE_pfc_interface": {
        "ROW_pfc_interface": [
            {"if_name_str": "Ethernet1/1", "rx-stats": "29", "tx-stats": "0"},
            {"if_name_str": "Ethernet1/2", "rx-stats": "-", "tx-stats": "7"},
        ]
    }
}
NXQUEUES = {
    "TABLE_queuing_interface": {
        "ROW_queuing_interface": {
            "if_name_str": "Ethernet1/1",
            "TABLE_qosgrp_egress_stats": {
                "ROW_qosgrp_egress_stats": {
                    "eq-qosgrp": "3",
                    "TABLE_qosgrp_egress_stats_entry": {
                        "ROW_qosgrp_egress_stats_entry": [
                            {"eq-stat-type": "Tx Pkts", "eq-uc-stat-value": "10"},
                            {"eq-stat-type": "WRED Drop Pkts", "eq-uc-stat-value": "2"},
                        ]
                    },
                }
            },
        }
    }
}
ERRORS = """\
--------------------------------------------------------------------------------
Port          Align-Err    FCS-Err   Xmit-Err    Rcv-Err  UnderSize OutDiscards
--------------------------------------------------------------------------------
mgmt0                   0          1         --         --         --          --
Eth1/13               500          0          0          0          0       14500

--------------------------------------------------------------------------------
Port            Giants SQETest-Err Deferred-Tx IntMacTx-Er IntMacRx-Er Symbol-Err
--------------------------------------------------------------------------------
Eth1/13               2          --          3           0           0          4
Eth1/14               2          --          3           0           0
"""
PFC = """\
leaf7# show interface priority-flow-control
============================================================
Port               Mode Oper(VL bmap)  RxPPP      TxPPP
============================================================

Ethernet1/1        Auto Off            0          12
Ethernet1/2        On   On  (8)        1,234      5
ii1/1/3            On   On  (8)        29000000   0
"""


@pytest.mark.parametrize("name", EOS)
def test_arista_golden(name: str) -> None:
    answer, wanted = EOS[name]
    for text in (json.dumps([answer]), json.dumps({"jsonrpc": "2.0", "result": [answer]})):
        sink = ingest(text, "switch_json", "eos.json")
        assert table(sink) == golden(wanted)
        assert sink.facts["status"] == "ok"
        assert "parsed_from_documentation" not in sink.counters


def test_an_answer_without_interfaces_is_an_answer() -> None:
    sink = ingest('[{"interfaces": {}}]', "switch_json", "eos.json")
    assert table(sink) == []
    assert sink.facts["status"] == "ok"
    assert "no interface" in sink.facts["reason"]


@pytest.mark.parametrize("rows", ["list", "one"])
def test_nxapi_rows_are_a_list_or_one(rows: str) -> None:
    answer = json.loads(json.dumps(NXAPI))
    table_ = answer["TABLE_pfc_interface"]
    if rows == "one":
        table_["ROW_pfc_interface"] = table_["ROW_pfc_interface"][0]
    sink = ingest(json.dumps({"ins_api": {"outputs": {"output": {"body": answer}}}}), "switch_json")
    wanted = golden(
        """
        1 Ethernet1/1 rx_pfc_packets cumulative 29 packets
        1 Ethernet1/1 tx_pfc_packets cumulative 0 packets
        1 Ethernet1/2 tx_pfc_packets cumulative 7 packets
        """
    )
    assert table(sink) == (wanted if rows == "list" else wanted[:2])
    assert sink.counters["parsed_from_documentation"] == 1


def test_nxapi_queues() -> None:
    assert table(ingest(json.dumps(NXQUEUES), "switch_json")) == golden(
        """
        1 Ethernet1/1/q3 tx_queue_packets cumulative 10 packets
        1 Ethernet1/1/q3 tx_queue_wred_dropped_packets cumulative 2 packets
        """
    )


def test_nxos_errors_golden() -> None:
    sink = ingest(ERRORS, "nxos")
    assert table(sink) == golden(
        """
        4 mgmt0 rx_alignment_errors cumulative 0 packets
        4 mgmt0 rx_crc_errors cumulative 1 packets
        5 Eth1/13 rx_alignment_errors cumulative 500 packets
        5 Eth1/13 rx_crc_errors cumulative 0 packets
        5 Eth1/13 tx_errors cumulative 0 packets
        5 Eth1/13 rx_errors cumulative 0 packets
        5 Eth1/13 rx_undersize_packets cumulative 0 packets
        5 Eth1/13 tx_dropped_packets cumulative 14500 packets
        10 Eth1/13 rx_giants cumulative 2 packets
        10 Eth1/13 tx_deferred cumulative 3 count
        10 Eth1/13 intmactx_er cumulative 0 None
        10 Eth1/13 intmacrx_er cumulative 0 None
        10 Eth1/13 rx_symbol_errors cumulative 4 count
        """
    )
    assert (sink.counters["bad_record"], sink.places["bad_record"]) == (1, 11)
    assert "dump_without_time" not in sink.counters


def test_eos_errors_have_short_names() -> None:
    text = (
        "leaf1#show interfaces counters errors\n"
        "Port            FCS    Align   Symbol       Rx    Runts   Giants       Tx\n"
        "Et1               0        0        0        5        0        0        0\n"
        "Et2/1             7        1        2       12        3        4        6\n"
        "Po10              0        0        0\n"
    )
    sink = ingest(text, "nxos")
    rows = [r for r in table(sink) if " Et2/1 " in r]
    assert rows == golden(
        """
        4 Et2/1 rx_crc_errors cumulative 7 packets
        4 Et2/1 rx_alignment_errors cumulative 1 packets
        4 Et2/1 rx_symbol_errors cumulative 2 count
        4 Et2/1 rx_errors cumulative 12 packets
        4 Et2/1 rx_runts cumulative 3 packets
        4 Et2/1 rx_giants cumulative 4 packets
        4 Et2/1 tx_errors cumulative 6 packets
        """
    )
    assert set(sink.rows("net_sample", "node")) == {"leaf1"}
    assert (sink.counters["bad_record"], sink.places["bad_record"]) == (1, 5)
    assert sink.counters["parsed_from_documentation"] == 1


def test_nxos_pfc_with_internal_ports() -> None:
    sink = ingest(PFC, "nxos")
    assert table(sink) == golden(
        """
        6 Ethernet1/1 rx_pfc_packets cumulative 0 packets
        6 Ethernet1/1 tx_pfc_packets cumulative 12 packets
        7 Ethernet1/2 rx_pfc_packets cumulative 1234 packets
        7 Ethernet1/2 tx_pfc_packets cumulative 5 packets
        8 ii1/1/3 rx_pfc_packets cumulative 29000000 packets
        8 ii1/1/3 tx_pfc_packets cumulative 0 packets
        """
    )
    assert set(sink.rows("net_sample", "node")) == {"leaf7"}
    assert sink.counters["parsed_from_documentation"] == 1


NX_RATES = """\
leaf7# show interface counters table

Collecting and processing interface statistics ...
--------------------------------------------------------------------------------
Port                      Description  Intvl  Rx Mbps   Rx %%  Tx Mbps   Tx %%
--------------------------------------------------------------------------------
Ethernet1/1               N/A          30/30  1,600.0   16.0%  800.4     8.0%
Ethernet1/2               to gpu-11 1  30/60  0.8       0.5%   --        --
Ethernet1/3                            30/30  4.0       0.1%
"""
EOS_RATES = """\
leaf3#show interfaces counters rates
Port      Name        Intvl   In Mbps      %  In Kpps  Out Mbps      % Out Kpps
Et1       gpu-11       5:00    1600.0  16.0%       17     800.4   8.0%        9
Et2/1                  0:30       8.0   0.1%        1       0.0   0.0%        0
"""


def test_the_table_of_rates_of_nxos() -> None:
    sink = ingest(NX_RATES, "nxos")
    assert table(sink) == golden(
        """
        7 Ethernet1/1 rx_rate gauge 2e+08 bytes/s
        7 Ethernet1/1 rx_utilisation gauge 0.16 ratio
        7 Ethernet1/1 tx_rate gauge 1.0005e+08 bytes/s
        7 Ethernet1/1 tx_utilisation gauge 0.08 ratio
        8 Ethernet1/2 rx_rate gauge 100000 bytes/s
        8 Ethernet1/2 rx_utilisation gauge 0.005 ratio
        """
    )
    # Which of 30/60 is whose the header does not say.
    assert sink.rows("net_sample", "interval_ns") == [30 * 10**9] * 4 + [None] * 2
    assert set(sink.rows("net_sample", "node")) == {"leaf7"}
    assert sink.counters == {"parsed_from_documentation": 1, "bad_record": 1, "no_value": 2}
    assert sink.places["bad_record"] == 9


def test_the_table_of_rates_of_eos() -> None:
    sink = ingest(EOS_RATES, "nxos")
    assert table(sink)[:6] == golden(
        """
        3 Et1 rx_rate gauge 2e+08 bytes/s
        3 Et1 rx_utilisation gauge 0.16 ratio
        3 Et1 rx_packet_rate gauge 17000 packets/s
        3 Et1 tx_rate gauge 1.0005e+08 bytes/s
        3 Et1 tx_utilisation gauge 0.08 ratio
        3 Et1 tx_packet_rate gauge 9000 packets/s
        """
    )
    assert sink.rows("net_sample", "interval_ns") == [300 * 10**9] * 6 + [30 * 10**9] * 6


_UNITS = {
    "rate": 125_000, "utilisation": 0.01, "packet_rate": 1000,
}  # fmt: skip


@pytest.mark.parametrize("text", [NX_RATES.rsplit("Ethernet1/3")[0], EOS_RATES])
def test_every_rate_printed_is_in_the_rows(text: str) -> None:
    printed: Counter[tuple[str, float]] = Counter()
    for line in text.splitlines():
        found = re.match(r"(Et\S+) .*?\d[:/]\d+(.*)", line)
        if found:
            numbers = re.findall(r"[\d,.]+", found[2])
            printed.update((found[1], float(n.replace(",", ""))) for n in numbers)
    read = Counter(
        (r["port"], round(r["value"] / _UNITS[r["counter"][3:]], 6))
        for r in ingest(text, "nxos").rows("net_sample")
    )
    assert read == printed
    assert len(printed) >= 6


def test_the_physical_layer_of_eos_in_json() -> None:
    def count(value: float) -> dict[str, Any]:
        return {"value": value, "changes": 6, "lastChange": 1787066000.4}

    line = {
        "description": {"location": "line"},
        "preFecBer": count(1.5e-9),
        "fec": {
            "encoding": "reedSolomon",
            "codewordSize": "528",
            "alignmentLock": {"value": True, "changes": 31, "lastChange": 0.0},
            "correctedCodewords": count(500),
            "uncorrectedCodewords": count(3),
            "correctedSymbols": {"0": count(7), "1": count(8)},
            "laneMap": {"0": 0, "1": 1},
        },
    }
    system = {"description": {"location": "system"}, "fec": {"correctedCodewords": count(9)}}
    fire = {"fec": {"encoding": "fireCode", "perLaneUncorrectedFecBlocks": [count(2)]}}
    plain = {"description": {"location": "line"}, "pcs": {"lastErroredBlockCount": count(4)}}
    answer = {
        "interfacePhyStatuses": {
            "Ethernet4/1": {"phyStatuses": [system, line]},
            "Ethernet5/1": {"phyStatuses": [fire]},
            "Ethernet6/1": {"phyStatuses": [plain]},
            "Ethernet7/1": {"phyStatuses": None},
        }
    }
    sink = ingest(json.dumps([answer]), "switch_json", "phy.json")
    assert table(sink) == golden(
        """
        1 Ethernet4/1 fec_pre_ber gauge 1.5e-09 ratio
        1 Ethernet4/1 fec_corrected_codewords cumulative 500 count
        1 Ethernet4/1 fec_uncorrectable_codewords cumulative 3 count
        1 Ethernet4/1/l0 fec_symbol_errors cumulative 7 count
        1 Ethernet4/1/l1 fec_symbol_errors cumulative 8 count
        1 Ethernet5/1/l0 fec_uncorrectable_codewords cumulative 2 count
        """
    )
    assert sink.counters.keys() == {"parsed_from_documentation", "other_metric"}


_EOS_FILES = sorted((SHARED / "eos").glob("*.json")) if SHARED.exists() else []


@pytest.mark.skipif(not _EOS_FILES, reason="no recorded answers (../shared/data/counters)")
@pytest.mark.parametrize("path", _EOS_FILES, ids=lambda p: p.stem)
def test_recorded_arista_answers(path: Path) -> None:
    sink = ingest_path(path, "switch_json")
    assert sink.facts["status"] == "ok"
    text = re.sub(r'"(?:in|out)DiscardsTotal":\s*\d+', "", path.read_text())
    printed = Counter(int(n) for n in re.findall(r':\s*"?(\d+)"?', text))
    assert Counter(r["counted"] for r in sink.rows("net_sample")) == printed


@pytest.mark.parametrize(
    "name",
    [
        "ShowInterfaceCountersErrors_golden_output_output.txt",
        "ShowInterfaceCounters_golden_output1_output.txt",
    ],
)
def test_recorded_nxos_tables(name: str) -> None:
    path: Path = SHARED / "nxos" / name
    if not path.exists():
        pytest.skip("the tables of NX-OS are not here (../shared/data/counters)")
    sink = ingest_path(path, "nxos")
    assert sink.facts["status"] == "ok"
    printed: Counter[tuple[str, int]] = Counter()
    for line in path.read_text().splitlines():
        port, *cells = line.split() or [""]
        if re.match(r"Eth\d|mgmt", port):
            printed.update((port, int(c)) for c in cells if c != "--")
    read = Counter((r["port"], r["counted"]) for r in sink.rows("net_sample"))
    assert read == printed


def test_queues_of_eos() -> None:
    """A row a port, class and destination: one port's (UC) or several ports' (MC)."""
    text = (
        "Egress Queue Counters\n"
        "Port      Traffic  DropPrec DestType OutEnqPkts OutEnqOctets OutDropPkts OutDropOctets\n"
        "            Class\n"
        "Et3/1/1       TC1    DP0-3       UC      67521      7523778           0             0\n"
        "Et3/1/1       TC7    DP0-3       MC         12         1320           3           330\n"
        "Et3/1/1      none    DP0-3       UC          1            2           3             4\n"
    )
    sink = ingest(text, "nxos", "leaf1-queues.txt")
    assert table(sink) == golden(
        """
        4 Et3/1/1/q1 tx_queue_packets cumulative 67521 packets
        4 Et3/1/1/q1 tx_queue_bytes cumulative 7523778 bytes
        4 Et3/1/1/q1 tx_queue_dropped_packets cumulative 0 packets
        4 Et3/1/1/q1 tx_queue_dropped_bytes cumulative 0 bytes
        5 Et3/1/1/q7 tx_multicast_queue_packets cumulative 12 packets
        5 Et3/1/1/q7 tx_multicast_queue_bytes cumulative 1320 bytes
        5 Et3/1/1/q7 tx_multicast_queue_dropped_packets cumulative 3 packets
        5 Et3/1/1/q7 tx_multicast_queue_dropped_bytes cumulative 330 bytes
        """
    )
    assert sink.counters == {"bad_record": 1}
    rows = [line.split()[4:] for line in text.splitlines() if " TC" in line]
    assert Counter(sink.rows("net_sample", "counted")) == Counter(int(n) for r in rows for n in r)


def test_show_interfaces_of_eos_in_json_and_its_errors() -> None:
    """eAPI's answer to two commands: each interface's own counters, those within, and rates."""
    port = {
        "lineProtocolStatus": "up", "mtu": 9214, "bandwidth": 400_000_000_000,
        "interfaceCounters": {
            "inOctets": 8812345678901, "outUcastPkts": 110034, "outDiscards": 1009,
            "inputErrorsDetail": {"fcsErrors": 17, "rxPause": 55},
            "counterRefreshTime": 1784016758.1,
        },
        "interfaceStatistics": {"updateInterval": 300.0, "inBitsRate": 151234567890.5},
    }  # fmt: skip
    errors = {"Ethernet1/2": {"inErrors": 3, "symbolErrors": 5, "frameErrorsTotal": 9}}
    answers = [{"interfaces": {"Ethernet1/1": port}}, {"interfaces": errors}]
    text = json.dumps({"jsonrpc": "2.0", "id": "1", "result": answers})
    assert recognise(source_of(text.encode(), "leaf1.json")).ingestor == "switch_json"
    sink = ingest(text, "switch_json", "leaf1.json")
    said = {(r["port"], r["counter"]): r["value"] if r["counted"] is None else r["counted"]
            for r in sink.rows("net_sample")}  # fmt: skip
    assert said == {
        ("Ethernet1/1", "mtu"): 9214, ("Ethernet1/1", "link_speed"): 4e11,
        ("Ethernet1/1", "rx_bytes"): 8812345678901, ("Ethernet1/1", "tx_unicast_packets"): 110034,
        ("Ethernet1/1", "tx_dropped_packets"): 1009, ("Ethernet1/1", "rx_crc_errors"): 17,
        ("Ethernet1/1", "rx_pause_packets"): 55,
        ("Ethernet1/1", "rx_rate"): 151234567890.5 / 8, ("Ethernet1/2", "rx_errors"): 3,
        ("Ethernet1/2", "rx_symbol_errors"): 5,
    }  # fmt: skip
    assert sink.counters["other_metric"] == 3
    assert sink.counters["parsed_from_documentation"] == 1
