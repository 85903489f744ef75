"""``ip -s link`` and ``/proc/net/dev`` as text."""

from __future__ import annotations

from gpu_files import ingest
from memory_sink import MemorySink
from net_samples import IP_LINK, PROC_NET_DEV


def counts(sink: MemorySink) -> dict[tuple[str, str], int]:
    rows = sink.rows("net_sample", "port", "counter", "value", "counted")
    return {(port, name): value if counted is None else counted
            for port, name, value, counted in rows}  # fmt: skip


def test_numbers_stand_below_their_names() -> None:
    sink = ingest(IP_LINK, "ip.txt", "interface_text")
    named = {name: count for (port, name), count in counts(sink).items() if port == "ens1f0"}
    assert named == {
        "mtu": 9000, "link_up": 1,
        "rx_bytes": 123456, "rx_packets": 900, "rx_errors": 3, "rx_dropped_packets": 17,
        "rx_missed_packets": 4, "rx_multicast_packets": 99,
        "tx_bytes": 654321, "tx_packets": 800, "tx_errors": 0, "tx_dropped_packets": 0,
        "tx_carrier_errors": 0, "tx_collisions": 0,
    }  # fmt: skip


def test_errors_one_by_one_and_what_is_no_interface_s() -> None:
    text = (
        "n7:~$ ip -s -s link\n"
        "3: ib0: <BROADCAST> mtu 4092 qdisc mq state DOWN mode DEFAULT\n"
        "    link/infiniband 00:00:10:49 brd 00:ff:ff:ff\n"
        "    RX:  bytes packets errors dropped  missed   mcast\n"
        "             7       1      6       0       0       0\n"
        "    RX errors:  length    crc   frame    fifo overrun\n"
        "                     1      2       3       4       5\n"
        "    TX errors: aborted   fifo  window heartbt transns\n"
        "                     6      7       8       9      10\n"
        "    altname ibp1s0\n"
        "    TX:  bytes packets errors dropped carrier collsns\n"
        "    cut off here\n"
    )
    sink = ingest(text, "ip.txt", "interface_text")
    named = {name: count for (port, name), count in counts(sink).items()}
    assert {k: v for k, v in named.items() if v in range(1, 11) and k != "mtu"} == {
        "rx_bytes": 7, "rx_packets": 1, "rx_errors": 6,
        "rx_length_errors": 1, "rx_crc_errors": 2, "rx_frame_errors": 3, "rx_fifo_errors": 4,
        "rx_overruns": 5, "tx_aborted_errors": 6, "tx_fifo_errors": 7, "tx_window_errors": 8,
        "tx_heartbeat_errors": 9, "link_changes": 10,
    } | {"rx_packets": 1}  # fmt: skip
    assert named["link_up"] == 0
    assert set(sink.rows("net_sample", "node")) == {"n7"}
    assert sink.facts["status"] == "partial"
    assert sink.counters["bad_record"] == 1


def test_dumps_one_after_another_have_the_time_before_each() -> None:
    later = PROC_NET_DEV.replace("500000", "700000").replace("ib0:  ", "ib0:")
    text = f"2026-07-21T03:01:07Z\n{PROC_NET_DEV}2026-07-21T03:01:17Z\n{later}"
    sink = ingest(text, "dev.log", "interface_text")
    rows = [
        (time_ns // 10**9 - 1784602867, port, counted)
        for time_ns, port, counter, counted in sink.rows(
            "net_sample", "time_ns", "port", "counter", "counted"
        )
        if counter == "rx_bytes"
    ]
    assert rows == [(0, "ib0", 500000), (10, "ib0", 700000)]
    found = counts(sink)
    assert (found["ib0", "rx_dropped_packets"], found["ib0", "tx_bytes"]) == (3, 600000)


def test_a_row_of_other_cells_is_counted_and_not_read() -> None:
    sink = ingest(PROC_NET_DEV + "  eth0: 1 2 3 4 5 6 7\n", "dev.txt", "interface_text")
    assert {port for port, _ in counts(sink)} == {"ib0"}
    assert sink.counters["bad_record"] == 1
