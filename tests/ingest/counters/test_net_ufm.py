"""UFM, as its documentation shows it: the endpoint's CSV and metrics, answers of the REST API."""

from __future__ import annotations

import json

import pytest
from memory_sink import MemorySink, source_of
from net_cases import golden, ingest, table

from tracekit.ingest import recognise
from tracekit.ingest.counters import ufm_names

FAMILY = "ufm"
NOW_US = 1_795_227_155_033_276
HEADER = (
    "timestamp,source_id,tag,node_guid,port_guid,port_num,node_description,PortXmitDataExtended,"
    "PortRcvPktsExtended,PortXmitWaitExtended,SymbolErrorCounterExtended,"
    "PortUniCastRcvPktsExtended,Normalized_CBW,Active_FEC\n"
)
CSV = (
    HEADER + f"{NOW_US},0xec0d9a03007d7f0a,,0xec0d9a03007d7f0a,0xec0d9a03007d7f0a,1,gpu-11 mlx5_0,"
    "72,18,5,NA,4,0.25,RS\n"
    + f'{NOW_US},0x1c3,,0x1c3,0x1c3,33,"MF0;leaf01:MQM9700/U1",720,180,50,7,40,,RS\n'
    + HEADER
    + f"{NOW_US + 30_000_000},0x1c3,,0x1c3,0x1c3,33,MF0;leaf01:MQM9700/U1,1440,360,51,7,80,,RS\n"
)


def test_csv_golden() -> None:
    sink = ingest(CSV, FAMILY, "ufm.csv")
    assert table(sink) == golden(
        """
        2 mlx5_0/1 tx_bytes cumulative 288 bytes
        2 mlx5_0/1 rx_packets cumulative 18 packets
        2 mlx5_0/1 tx_wait cumulative 5 ticks
        2 mlx5_0/1 rx_unicast_packets cumulative 4 packets
        2 mlx5_0/1 normalized_cbw gauge 0.25 None
        3 33 tx_bytes cumulative 2880 bytes
        3 33 rx_packets cumulative 180 packets
        3 33 tx_wait cumulative 50 ticks
        3 33 rx_symbol_errors cumulative 7 count
        3 33 rx_unicast_packets cumulative 40 packets
        5 33 tx_bytes cumulative 5760 bytes
        5 33 rx_packets cumulative 360 packets
        5 33 tx_wait cumulative 51 ticks
        5 33 rx_symbol_errors cumulative 7 count
        5 33 rx_unicast_packets cumulative 80 packets
        """
    )
    times = dict.fromkeys(sink.rows("net_sample", "node", "time_ns", "time_source"))
    assert list(times) == [
        ("gpu-11", NOW_US * 1000, "content"),
        ("leaf01", NOW_US * 1000, "content"),
        ("leaf01", NOW_US * 1000 + 30_000_000_000, "content"),
    ]
    assert sink.counters["no_value"] == 3
    assert sink.counters["other_column"] == 1
    assert sink.facts["status"] == "ok"


def test_a_port_nobody_described_bears_its_guid_as_other_tools_spell_it() -> None:
    text = CSV.replace("gpu-11 mlx5_0", "").replace("0xec0d", "ec0d")
    rows = ingest(text, FAMILY, "ufm.csv").rows("net_sample", "node", "port")
    assert rows[0] == ("0xec0d9a03007d7f0a", "1")


def test_the_wide_counter_is_kept_and_only_a_narrow_one_can_be_full() -> None:
    text = (
        "timestamp,node_guid,port_num,LinkDownedCounter,LinkDownedCounterExtended,PortRcvErrors\n"
        f"{NOW_US},0x1,1,255,300,65535\n"
    )
    sink = ingest(text, FAMILY, "ufm.csv")
    assert table(sink) == golden(
        """
        2 1 link_downed cumulative 300 count
        2 1 rx_errors cumulative 65535 packets
        """
    )
    assert sink.rows("log_event", "place", "code", "fields") == [
        (2, "counter-saturated", ["node=0x0000000000000001", "port=1", "counter=rx_errors"])
    ]


def test_a_row_that_was_cut_is_no_smaller_number() -> None:
    cut = CSV[: CSV.rindex(",1440,") + 4]
    for text in (cut, CSV.rstrip("\n")):
        sink = ingest(text, FAMILY, "ufm.csv")
        assert len(sink.rows("net_sample")) == 10
        assert (sink.counters["bad_record"], sink.places["bad_record"]) == (1, 5)
        assert sink.facts["status"] == "partial"


HISTORY = {
    "data": {
        "2026-11-21 02:12:35": {
            "Port": {
                "ec0d9a03007d7f0a_1": {
                    "statistics": {
                        "Infiniband_PckInRate": 1.5,
                        "Infiniband_XmitWait": 7,
                        "Infiniband_MBOut": 12,
                        "PortRcvDataExtended": 10,
                    },
                    "guid": "ec0d9a03007d7f0a_1",
                    "name": "ufm-host87 mlx5_0",
                }
            }
        },
        "2026-11-21 02:12:37": {
            "Port": {
                "ec0d9a03007d7f0a_1": {
                    "statistics": {"Infiniband_XmitWait": 9},
                    "guid": "ec0d9a03007d7f0a_1",
                    "name": "ufm-host87 mlx5_0",
                }
            }
        },
    },
    "members": [{"description": "Computer IB Port", "number": 1, "lid": 1}],
}


def test_history_golden() -> None:
    sink = ingest(json.dumps(HISTORY), FAMILY, "history.json")
    assert table(sink) == golden(
        """
        1 mlx5_0/1 rx_packet_rate gauge 1.5 packets/s
        1 mlx5_0/1 tx_wait cumulative 7 ticks
        1 mlx5_0/1 infiniband_mbout gauge 12 None
        1 mlx5_0/1 rx_bytes cumulative 40 bytes
        1 mlx5_0/1 tx_wait cumulative 9 ticks
        """
    )
    rows = sink.rows("net_sample", "node", "time_ns")
    assert {node for node, _ in rows} == {"ufm-host87"}
    assert rows[-1][1] - rows[0][1] == 2_000_000_000
    assert sink.counters["local_time"] == 1  # the API prints no zone
    assert sink.counters["parsed_from_documentation"] == 1


def test_top_ports_and_a_snapshot() -> None:
    top = [{"name": "r131 mlx5_1", "guid": "0c42a103008b3bd1_2", "PortRcvDataExtended_Rate": 8.5}]
    assert table(ingest(json.dumps(top), FAMILY, "top.json")) == golden(
        "1 mlx5_1/2 rx_rate gauge 8.5 bytes/s"
    )
    snapshot = {
        "Grid.default": {
            "Port": {
                "248a07030070e190_14": {
                    "last_updated": "2026-11-21T02:12:35Z",
                    "dname": "14",
                    "statistics": {"Infiniband_LinkDowned": 3},
                }
            }
        }
    }
    sink = ingest(json.dumps(snapshot), FAMILY, "snapshot.json")
    assert table(sink) == golden("1 14 link_downed cumulative 3 count")
    assert sink.rows("net_sample", "time_source") == ["content"]


METRICS = """\
# TYPE PortXmitDataExtended counter
PortXmitDataExtended{source="0x0002c90300f172a0", node_guid="2c90300f172a0", \
port_guid="2c90300f172a2", port_num="2"} 85554128244 1628683905941
PortXmitPktsExtended{source="0x0002c90300f172a0", node_guid="2c90300f172a0", \
port_guid="2c90300f172a2", port_num="2"} 1188251785 1628683905941
Device_ID{node_guid="2c90300f172a0", port_num="2"} 54002 1628683905941
"""


def test_metrics_golden() -> None:
    """NVIDIA's own example: 288 bytes a packet, which is a management datagram's size."""
    sink = ingest(METRICS, "prometheus", "metrics.prom")
    assert table(sink) == golden(
        f"""
        2 2 tx_bytes cumulative {85554128244 * 4} bytes
        3 2 tx_packets cumulative 1188251785 packets
        """
    )
    assert set(sink.rows("net_sample", "node", "time_ns")) == {
        ("0x0002c90300f172a0", 1_628_683_905_941_000_000)
    }
    assert sink.counters == {"parsed_from_documentation": 1, "other_metric": 1}


@pytest.mark.parametrize(
    "text",
    [
        '{"data": {"2026-11-21 02:12:35": {"Port": {}}}}',
        '{"statistics": {"PckIn": 3}}',
        "timestamp,node,port,PortXmitDataExtended\n1,a,1,5\n",
        "node_guid,port_num\n",
        '[{"Infiniband_Ports": "a text"}]',
    ],
)
def test_what_is_not_ufm(text: str) -> None:
    found = recognise(source_of(text.encode(), "a.json"))
    assert found.ingestor != FAMILY or ingest(text, FAMILY, "a.json").rows("net_sample") == []


def test_counters_without_a_port_are_said_and_not_guessed() -> None:
    for value in ({"Infiniband_XmitWait": 4}, {"guid": "x", "Infiniband_XmitWait": 4}):
        sink: MemorySink = ingest(json.dumps(value), FAMILY, "a.json")
        assert "net_sample" not in sink.tables
        assert sink.counters["bad_record"] == 1
        assert sink.facts["status"] == "partial"


def test_names() -> None:
    for name, counter in {
        "PortMultiCastXmitPktsExtended": "tx_multicast_packets",
        "VL15DroppedExtended": "vl15_dropped",
        "ExcessiveBufferOverrunErrorsExtended": "rx_buffer_overrun_errors",
        "LocalLinkIntegrityErrorsExtended": "link_integrity_errors",
        "PortRcvSwitchRelayErrorsExtended": "rx_switch_relay_errors",
        "Infiniband_XmitWait_u_Ticks": "tx_wait",
        "infiniband_CBW": "infiniband_cbw",
        "Effective_BER": "fec_post_ber",
    }.items():
        found = ufm_names.of_ufm(name)
        assert found is not None
        assert found.counter == counter
    for other in ("hist0", "Device_ID", "PortState_Rate", ""):
        assert ufm_names.of_ufm(other) is None
