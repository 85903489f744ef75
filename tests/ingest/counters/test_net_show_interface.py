"""The status of ports as EOS, NX-OS and IOS print it."""

from __future__ import annotations

from collections import Counter

import pytest
from net_cases import golden, ingest, table
from printed_numbers import balance, of_phrases

EOS = """\
leaf1#show interfaces
Ethernet49/1 is up, line protocol is up (connected)
  Hardware is Ethernet, address is 0000.5e00.5301 (bia 0000.5e00.5301)
  Description: 12 packets input, to gpu-01
  Ethernet MTU 9214 bytes, BW 100000000 kbit
  Full-duplex, 100Gb/s, auto negotiation: off, uni-link: n/a
  Up 17 minutes, 32 seconds
  4 link status changes since last clear
  Last clearing of "show interface" counters 0:27:02 ago
  5 minutes input rate 8.4 kbps (0.0% with framing overhead), 6 packets/sec
     7084 packets input, 1015083 bytes
     Received 2180 broadcasts, 2051 multicast
     1 runts, 2 giants
     3 input errors, 4 CRC, 5 alignment, 6 symbol, 7 input discards
     8 PAUSE input
     11644 packets output, 2229928 bytes
     Sent 1921 broadcasts, 5293 multicast
     9 output errors, 10 collisions
     11 late collision, 12 deferred, 13 output discards
     14 PAUSE output
Ethernet50/1 is administratively down, line protocol is down (disabled)
  IP MTU 1500 bytes
"""
NXOS = """\
Ethernet1/5 is up
admin state is up, Dedicated Interface
  MTU 9216 bytes, BW 40000000 Kbit, DLY 10 usec
  reliability 255/255, txload 2/255, rxload 1/255
  2 interface resets
    30 seconds input rate 800 bits/sec, 3 packets/sec
    30 seconds output rate 1600 bits/sec, 4 packets/sec
    input rate 0.80 Kbps, 3 pps; output rate 1.60 Kbps, 4 pps
  RX
    20 unicast packets  21 multicast packets  22 broadcast packets
    63 input packets  2774 bytes
    23 jumbo packets  0 storm suppression packets
    24 runts  25 giants  26 CRC/FCS  27 no buffer
    28 input error  29 short frame  30 overrun   31 underrun  32 ignored
    33 input with dribble  34 input discard
    35 Rx pause
  TX
    36 unicast packets  37 multicast packets  38 broadcast packets
    111 output packets  1539 bytes
    39 output error  40 collision  41 deferred  42 late collision
    43 lost carrier  44 no carrier  45 babble  46 output discard
    47 Tx pause
"""
IOS = """\
sw1#show interfaces
GigabitEthernet1/0/1 is up, line protocol is up (connected)
  Hardware is Gigabit Ethernet, address is 0000.5e00.5301 (bia 0000.5e00.5301)
  MTU 1500 bytes, BW 1000000 Kbit/sec, DLY 10 usec,
     reliability 255/255, txload 1/255, rxload 1/255
  Full-duplex, 1000Mb/s, media type is 10/100/1000BaseTX
  Last input 00:00:00, output 00:00:01, output hang never
  Input queue: 0/2000/25/26 (size/max/drops/flushes); Total output drops: 15
  Output queue: 0/40 (size/max)
  5 minute input rate 6000 bits/sec, 7 packets/sec
  5 minute output rate 8000 bits/sec, 9 packets/sec
     50 packets input, 600 bytes, 27 no buffer
     Received 8 broadcasts (3 multicasts)
     1 runts, 2 giants, 28 throttles
     9 input errors, 10 CRC, 11 frame, 12 overrun, 13 ignored
     29 watchdog, 4 multicast, 5 pause input
     30 input packets with dribble condition detected
     60 packets output, 700 bytes, 14 underruns
     16 output errors, 17 collisions, 18 interface resets
     31 unknown protocol drops
     32 babbles, 19 late collision, 20 deferred
     21 lost carrier, 22 no carrier, 33 pause output
     23 output buffer failures, 24 output buffers swapped out
"""
XR = """\
HundredGigE0/0/0/1 is up, line protocol is up
  MTU 9214 bytes, BW 100000000 Kbit (Max: 100000000 Kbit)
     50 packets input, 600 bytes, 1 total input drops
     2 drops for unrecognized upper-level protocol
     Received 3 broadcast packets, 4 multicast packets
              5 runts, 6 giants, 7 throttles, 8 parity
     9 input errors, 10 CRC, 11 frame, 12 overrun, 13 ignored, 14 abort
     60 packets output, 700 bytes, 15 total output drops
     16 output errors, 17 underruns, 18 applique, 19 resets
"""


def test_ports_of_eos() -> None:
    sink = ingest(EOS, "show_interface", "interfaces.txt")
    assert table(sink) == golden(
        """
        2 Ethernet49/1 link_up gauge 1 1 or 0
        5 Ethernet49/1 link_speed gauge 1e+11 bits/s
        5 Ethernet49/1 mtu gauge 9214 bytes
        8 Ethernet49/1 link_changes cumulative 4 count
        10 Ethernet49/1 rx_rate gauge 1050 bytes/s
        10 Ethernet49/1 rx_packet_rate gauge 6 packets/s
        11 Ethernet49/1 rx_packets cumulative 7084 packets
        11 Ethernet49/1 rx_bytes cumulative 1015083 bytes
        12 Ethernet49/1 rx_broadcast_packets cumulative 2180 packets
        12 Ethernet49/1 rx_multicast_packets cumulative 2051 packets
        13 Ethernet49/1 rx_runts cumulative 1 packets
        13 Ethernet49/1 rx_giants cumulative 2 packets
        14 Ethernet49/1 rx_errors cumulative 3 packets
        14 Ethernet49/1 rx_crc_errors cumulative 4 packets
        14 Ethernet49/1 rx_alignment_errors cumulative 5 packets
        14 Ethernet49/1 rx_symbol_errors cumulative 6 count
        14 Ethernet49/1 rx_dropped_packets cumulative 7 packets
        15 Ethernet49/1 rx_pause_packets cumulative 8 packets
        16 Ethernet49/1 tx_packets cumulative 11644 packets
        16 Ethernet49/1 tx_bytes cumulative 2229928 bytes
        17 Ethernet49/1 tx_broadcast_packets cumulative 1921 packets
        17 Ethernet49/1 tx_multicast_packets cumulative 5293 packets
        18 Ethernet49/1 tx_errors cumulative 9 packets
        18 Ethernet49/1 tx_collisions cumulative 10 count
        19 Ethernet49/1 tx_window_errors cumulative 11 packets
        19 Ethernet49/1 tx_deferred cumulative 12 count
        19 Ethernet49/1 tx_dropped_packets cumulative 13 packets
        20 Ethernet49/1 tx_pause_packets cumulative 14 packets
        21 Ethernet50/1 link_up gauge 0 1 or 0
        22 Ethernet50/1 mtu gauge 1500 bytes
        """
    )
    assert set(sink.rows("net_sample", "node")) == {"leaf1"}
    rates = [r for r in sink.rows("net_sample") if r["counter"].endswith("_rate")]
    assert {r["interval_ns"] for r in rates} == {300 * 10**9}


def test_ports_of_nxos_by_the_direction_above() -> None:
    """What has no word here keeps the switch's own; rates said again, rounded, are none."""
    sink = ingest(NXOS, "show_interface", "spine1-interfaces.txt")
    counted = {
        r["counter"]: r["counted"] for r in sink.rows("net_sample") if r["counted"] is not None
    }
    assert counted == {
        "interface_resets": 2,
        "rx_unicast_packets": 20, "rx_multicast_packets": 21, "rx_broadcast_packets": 22,
        "rx_packets": 63, "rx_bytes": 2774, "rx_jumbo_packets": 23,
        "rx_storm_suppression_packets": 0, "rx_runts": 24, "rx_giants": 25, "rx_crc_errors": 26,
        "rx_no_buffer": 27, "rx_errors": 28, "rx_short_frame": 29, "rx_overruns": 30,
        "rx_underrun": 31, "rx_ignored": 32, "rx_with_dribble": 33, "rx_dropped_packets": 34,
        "rx_pause_packets": 35, "tx_unicast_packets": 36, "tx_multicast_packets": 37,
        "tx_broadcast_packets": 38, "tx_packets": 111, "tx_bytes": 1539, "tx_errors": 39,
        "tx_collisions": 40, "tx_deferred": 41, "tx_window_errors": 42, "tx_carrier_errors": 43,
        "tx_no_carrier": 44, "tx_babble": 45, "tx_dropped_packets": 46, "tx_pause_packets": 47,
    }  # fmt: skip
    gauges = {r["counter"]: r["value"] for r in sink.rows("net_sample") if r["value"] is not None}
    assert gauges == {
        "link_up": 1, "link_speed": 40e9, "mtu": 9216, "rx_rate": 100, "rx_packet_rate": 3,
        "tx_rate": 200, "tx_packet_rate": 4,
    }  # fmt: skip


def test_ports_of_ios_say_the_direction_in_a_lines_first_words() -> None:
    text = """\
GigabitEthernet0/1 is up, line protocol is up (connected)
     50 packets input, 600 bytes, 7 no buffer
     Received 8 broadcasts (3 IP multicasts)
     9 input errors, 10 CRC, 11 frame, 12 overrun, 13 ignored
     60 packets output, 700 bytes, 14 underruns
"""
    sink = ingest(text, "show_interface", "sw1.txt")
    counted = {
        r["counter"]: r["counted"] for r in sink.rows("net_sample") if r["counted"] is not None
    }
    assert counted == {
        "rx_packets": 50, "rx_bytes": 600, "rx_no_buffer": 7, "rx_broadcast_packets": 8,
        "rx_ip_multicasts": 3,
        "rx_errors": 9, "rx_crc_errors": 10, "rx_frame_errors": 11, "rx_overruns": 12,
        "rx_ignored": 13, "tx_packets": 60, "tx_bytes": 700, "tx_underruns": 14,
    }  # fmt: skip


def test_a_port_without_counters_and_other_text_is_not_recognised() -> None:
    from tracekit.ingest.counters import show_interface

    assert show_interface.sniff(EOS.encode(), "a.txt") is not None
    assert show_interface.sniff(b"Loopback0 is up\n  Hardware is Loopback\n", "a.txt") is None
    assert show_interface.sniff(b"the host is up\nand 4 packets input, it says\n", "a.txt") is None


@pytest.mark.parametrize(("text", "found"), [(EOS, 23), (NXOS, 34), (IOS, 32), (XR, 23)])
def test_every_number_that_a_status_counts_is_a_row(text: str, found: int) -> None:
    told = balance(of_phrases(text), ingest(text, "show_interface", "leaf1-interfaces.txt"))
    assert (told.found, told.missing) == (found, Counter()), told


def test_what_ios_dropped_stands_beside_its_queues_and_its_packets() -> None:
    def dropped(text: str) -> dict[str, int]:
        sink = ingest(text, "show_interface", "sw1.txt")
        return {
            r["counter"]: r["counted"] for r in sink.rows("net_sample") if "drop" in r["counter"]
        }

    assert dropped(IOS) == {
        "rx_queue_drops": 25, "tx_dropped_packets": 15, "unknown_protocol_drops": 31,
    }  # fmt: skip
    assert dropped(XR) == {
        "rx_dropped_packets": 1, "tx_dropped_packets": 15,
        "drops_for_unrecognized_upper_level_protocol": 2,
    }  # fmt: skip
