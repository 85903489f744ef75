"""``show queuing interface`` of NX-OS, as Cisco's guides and public tickets print it."""

from __future__ import annotations

from memory_sink import MemorySink, source_of
from net_samples import QUEUING

from tracekit.ingest import ingestor, recognise
from tracekit.ingest.base import IngestOptions


def read(text: str, name: str = "leaf1.txt") -> MemorySink:
    source = source_of(text.encode(), name)
    assert recognise(source).ingestor == "nxos_queuing", recognise(source)
    sink = MemorySink()
    ingestor("nxos_queuing").read(source, sink, IngestOptions())
    return sink


def counted(sink: MemorySink) -> dict[tuple[object, ...], object]:
    """By port, queue, priority and counter."""
    found = sink.rows("net_sample")
    return {
        (r["port"], r["queue"], r["priority"], r["counter"]): (
            r["value"] if r["counted"] is None else r["counted"]
        )
        for r in found
    }


def test_each_queue_has_what_it_sent_and_dropped_each_way() -> None:
    sink = read("leaf1# show queuing interface e1/51\n" + QUEUING)
    port = "Ethernet1/51"
    assert counted(sink) == {
        (port, 5, None, "tx_queue_packets"): 202328436,
        (port, 5, None, "tx_multicast_queue_packets"): 17,
        (port, 5, None, "tx_queue_dropped_bytes"): 51,
        (port, 5, None, "tx_multicast_queue_dropped_bytes"): 19,
        (port, None, None, "tx_pfc_packets"): 23,
        (port, None, None, "rx_pfc_packets"): 29,
    }
    assert {r["node"] for r in sink.rows("net_sample")} == {"leaf1"}


def test_older_forms_have_three_ways_or_two_numbers_a_row() -> None:
    text = (
        "2026-07-14T08:12:38Z\n"
        "Egress Queuing for Ethernet2/1 [System]\n"
        "|                              QOS GROUP 0                          |\n"
        "|                |  Unicast       | OOBFC Unicast  |  Multicast     |\n"
        "|        Tx Pkts |              12|              22|              34|\n"
        "|   Dropped Pkts |               1|               -|               2|\n"
        "|                              QOS GROUP 3                          |\n"
        "|        Tx Pkts |              50|   Dropped Pkts |               6|\n"
        "Port Egress Statistics\n"
        "--------------------------------------------------------\n"
        "WRED Drop Pkts                            7\n"
    )
    sink = read(text)
    port = "Ethernet2/1"
    assert counted(sink) == {
        (port, 0, None, "tx_queue_packets"): 12,
        (port, 0, None, "tx_multicast_queue_packets"): 34,
        (port, 0, None, "tx_queue_dropped_packets"): 1,
        (port, 0, None, "tx_multicast_queue_dropped_packets"): 2,
        (port, 3, None, "tx_queue_packets"): 50,
        (port, 3, None, "tx_queue_dropped_packets"): 6,
        (port, None, None, "tx_queue_wred_dropped_packets"): 7,
    }
    assert {r["time_ns"] for r in sink.rows("net_sample")} == {1784016758 * 10**9}
    assert sink.counters["other_metric"] == 2  # what flow control took out of band


def test_groups_without_a_number_and_rows_that_nobody_knows_are_counted() -> None:
    text = QUEUING.replace("QOS GROUP 5 ", "CONTROL QOS GROUP").replace(
        "PFC Statistics", "| WD & Tail Drop Pkts |  5|  0|\nPFC Statistics"
    )
    sink = read(text)
    assert [k[3] for k in counted(sink)] == ["tx_pfc_packets", "rx_pfc_packets"]
    assert sink.counters["other_metric"] == 6


def test_priorities_of_flow_control_stand_beside_the_port_s() -> None:
    text = QUEUING + (
        "---------------------------------------------------------------------\n"
        "PFC_COS QOS_Group        TxPause         TxCount         RxPause      RxCount\n"
        "      3         5       Inactive             601          Active          602\n"
        "      4         - \n"
    )
    found = counted(read(text))
    assert found["Ethernet1/51", None, 3, "tx_pfc_packets"] == 601
    assert found["Ethernet1/51", None, 3, "rx_pfc_packets"] == 602
    assert read(text).counters["bad_record"] == 1
