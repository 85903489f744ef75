"""ethtool -S, sysfs and rdma statistic: whose counter it is, and what its name means."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import pytest
from memory_sink import MemorySink
from net_cases import SHARED, golden, ingest, table

from tracekit.ingest import files, recognise, streams
from tracekit.ingest.base import SourceFile
from tracekit.ingest.counters.names import node_of_path

FAMILY = "nic"

MLX5 = """\
NIC statistics:
     rx_packets: 5
     rx_bytes: 50
     rx_packets_phy: 7
     rx_bytes_phy: 70
     rx_discards_phy: 3
     rx_out_of_buffer: 4
     rx_prio3_pause: 11
     rx_prio3_pause_duration: 12
     tx_prio3_pause: 13
     tx_prio3_pause_transition: 14
     rx_prio3_discards: 15
     rx_prio3_buf_discard: 16
     rx_prio3_marked: 17
     rx12_packets: 18
     outbound_pci_stalled_wr: 19
     tx_pause_storm_error_events: 20
     rx_crc_errors_phy: 21
     link_down_events_phy: 22
     module_bad_shorted: 23
"""
BNXT = """\
NIC statistics:
     [0]: rx_ucast_packets: 1
     rx_bytes: 2
     rx_pfc_ena_frames_pri3: 3
     pfc_pri3_rx_duration_us: 4
     pfc_pri3_tx_transitions: 5
     rx_stat_discard: 6
"""
ENA = """\
NIC statistics:
     bw_out_allowance_exceeded: 14368
     queue_2_tx_cnt: 8
"""
RDMA = """\
link mlx5_0/1 rx_write_requests 5 out_of_sequence 6 rp_cnp_handled 7 np_ecn_marked_roce_packets 8
link mlx5_1/1
    local_ack_timeout_err 9
    Optional-set: cc_rx_ce_pkts 10
link mlx5_2/1 cntn 5 pid 31609 comm client.1 rx_write_requests 77
    LQPN: <178>
"""
SYSFS = """\
/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data:5
/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed:255
/sys/class/infiniband/mlx5_0/ports/1/hw_counters/lifespan:12
/sys/class/infiniband/mlx5_0/ports/1/rate:400 Gb/sec (4X NDR)
/sys/class/infiniband/mlx5_0/ports/1/state:1: DOWN
/sys/class/net/eth0/statistics/rx_dropped:3
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            MLX5,
            """
            2 eth0 rx_driver_packets cumulative 5 None
            3 eth0 rx_driver_bytes cumulative 50 None
            4 eth0 rx_packets cumulative 7 packets
            5 eth0 rx_bytes cumulative 70 bytes
            6 eth0 rx_dropped_packets cumulative 3 packets
            7 eth0 rx_out_of_buffer cumulative 4 packets
            8 eth0/p3 rx_pfc_packets cumulative 11 packets
            9 eth0/p3 rx_pfc_duration cumulative 12 us
            10 eth0/p3 tx_pfc_packets cumulative 13 packets
            11 eth0/p3 tx_pfc_transitions cumulative 14 count
            12 eth0/p3 rx_priority_dropped_packets cumulative 15 packets
            13 eth0/p3 rx_buffer_dropped_packets cumulative 16 packets
            14 eth0/p3 rx_priority_ecn_marked_packets cumulative 17 packets
            15 eth0/q12 rx_ring_packets cumulative 18 None
            16 eth0 pci_write_stall gauge 19 percent
            17 eth0 tx_pause_storm_errors cumulative 20 count
            18 eth0 rx_crc_errors cumulative 21 packets
            19 eth0 link_downed cumulative 22 count
            20 eth0 module_bad_shorted cumulative 23 None
            """,
        ),
        (
            BNXT,
            """
            2 eth0/q0 rx_ring_ucast_packets cumulative 1 None
            3 eth0 rx_bytes cumulative 2 bytes
            4 eth0/p3 rx_pfc_packets cumulative 3 packets
            5 eth0/p3 rx_pfc_duration cumulative 4 us
            6 eth0/p3 tx_pfc_transitions cumulative 5 count
            7 eth0 rx_dropped_packets cumulative 6 packets
            """,
        ),
        (
            ENA,
            """
            2 eth0 tx_allowance_exceeded_packets cumulative 14368 packets
            3 eth0/q2 tx_ring_cnt cumulative 8 None
            """,
        ),
        (
            RDMA,
            """
            1 mlx5_0/1 rdma_write_requests cumulative 5 count
            1 mlx5_0/1 rdma_out_of_sequence cumulative 6 packets
            1 mlx5_0/1 rp_cnp_handled cumulative 7 packets
            1 mlx5_0/1 np_ecn_marked_packets cumulative 8 packets
            3 mlx5_1/1 rdma_ack_timeouts cumulative 9 count
            4 mlx5_1/1 cc_rx_ce_pkts cumulative 10 None
            """,
        ),
        (
            SYSFS,
            """
            1 mlx5_0/1 tx_bytes cumulative 20 bytes
            2 mlx5_0/1 link_downed cumulative 255 count
            3 mlx5_0/1 counter_lifespan gauge 12 ms
            4 mlx5_0/1 link_speed gauge 4e+11 bits/s
            4 mlx5_0/1 link_width gauge 4 lanes
            5 mlx5_0/1 link_up gauge 0 1 or 0
            6 eth0 rx_dropped_packets cumulative 3 packets
            """,
        ),
    ],
    ids=["mlx5", "bnxt", "ena", "rdma", "sysfs"],
)
def test_golden(text: str, wanted: str) -> None:
    sink = ingest(text, FAMILY, "host3_ethtool_eth0.txt")
    assert table(sink) == golden(wanted)
    assert sink.facts["status"] == "ok"
    assert {r["node"] for r in sink.rows("net_sample")} == {"host3"}
    assert ("parsed_from_documentation" in sink.counters) == (text != SYSFS)


def test_a_full_counter_is_an_event() -> None:
    assert ingest(SYSFS, FAMILY).rows("log_event", "code", "fields") == [
        ("counter-saturated", ["port=mlx5_0/1", "counter=link_downed"])
    ]


def test_the_typed_command_names_the_interface() -> None:
    text = f"root@gpu-11:~# ethtool -S ens1f0np0\n{ENA}root@gpu-11:~# ethtool -S ens1f1np1\n{ENA}"
    rows = ingest(text, FAMILY, "session.txt").rows("net_sample", "node", "port")
    assert list(dict.fromkeys(rows)) == [("gpu-11", "ens1f0np0"), ("gpu-11", "ens1f1np1")]


def test_a_captured_file_has_interface_and_time_in_its_name() -> None:
    rows = ingest(ENA, FAMILY, "ethtool.gpu0rail.1795227155.txt").rows("net_sample")
    assert {(r["port"], r["time_ns"], r["time_source"]) for r in rows} == {
        ("gpu0rail", 1795227155 * 10**9, "name")
    }


def test_an_interface_that_nothing_names_stays_unknown() -> None:
    assert set(ingest(ENA, FAMILY, "nic.txt").rows("net_sample", "port")) == {None}


def test_json_of_rdma_statistic() -> None:
    text = '[{"ifindex":0,"ifname":"mlx5_0","port":1,"out_of_buffer":135,"np_cnp_sent":2}]'
    assert table(ingest(text, FAMILY, "rdma.json")) == golden(
        """
        1 mlx5_0/1 rx_out_of_buffer cumulative 135 packets
        1 mlx5_0/1 np_cnp_sent cumulative 2 packets
        """
    )


def test_lines_that_are_no_counters_are_named() -> None:
    sink = ingest(MLX5 + "     tx_oops: lots\n     nonsense\n", FAMILY)
    assert sink.counters["bad_number"] == sink.counters["bad_record"] == 1
    assert sink.places["bad_record"] == 22
    assert len(sink.rows("net_sample")) == 19


def sysfs_source(path: str, text: str) -> SourceFile:
    data = text.encode()
    opener = partial(lambda d: streams.decompressed(io.BytesIO(d)), data)
    return SourceFile(path, path.rsplit("/", 1)[-1], len(data), 1795227155 * 10**9, opener)  # type: ignore[arg-type]


def test_a_file_of_a_tree_has_its_port_from_its_path() -> None:
    path = "cap/host3/sys/class/infiniband/mlx5_1/ports/2/counters/port_rcv_data"
    sink = ingest(sysfs_source(path, "25\n"), FAMILY)
    (row,) = sink.rows("net_sample")
    assert (row["node"], row["node_source"], row["port"]) == ("host3", "name", "mlx5_1/2")
    assert (row["counter"], row["counted"], row["unit"]) == ("rx_bytes", 100, "bytes")
    assert (row["time_ns"], row["time_source"]) == (1795227155 * 10**9, "mtime")


@pytest.mark.parametrize(
    ("name", "text"),
    [("port_rcv_data", "lots"), ("state", "running"), ("readme", "5"), ("rate", "often")],
)
def test_a_name_alone_makes_no_counter(name: str, text: str) -> None:
    assert recognise(sysfs_source(f"dump/{name}", text)).ingestor is None


def test_equal_files_of_two_ports_are_two_files() -> None:
    one, other = (f"x/mlx5_{i}/ports/1/counters/symbol_error" for i in (0, 1))
    assert files.identity_of(one) != files.identity_of(other)
    assert files.identity_of("host0/eth0.txt") != files.identity_of("host1/eth0.txt")
    assert files.identity_of("a/rank0.pt.trace.json.gz") == files.identity_of(
        "b/rank0.pt.trace.json.gz"
    )


def test_recorded_tree_gives_every_counter_of_its_port() -> None:
    root: Path = SHARED / "sysfs_ib"
    if not root.exists():
        pytest.skip("the tree of sysfs is not here (../shared/data/counters)")
    stored = {
        p.name: int(p.read_text())
        for p in root.rglob("*")
        if p.parent.name in ("counters", "hw_counters")
    }
    assert len(stored) == 47
    seen: dict[str, int] = {}
    for source in files.expand([root]):
        found = recognise(source)
        assert found.ingestor == FAMILY, source.path
        sink: MemorySink = ingest(source, FAMILY)
        assert sink.facts["status"] == "ok"
        for row in sink.rows("net_sample"):
            assert row["port"] == "mlx5_0/1"
            if row["original_name"] in stored:
                number = row["counted"] if row["kind"] == "cumulative" else row["value"]
                seen[row["original_name"]] = int(number)
    scaled = {
        n: v * 4 if n in ("port_xmit_data", "port_rcv_data") else v for n, v in stored.items()
    }
    assert seen == scaled


@pytest.mark.parametrize(
    ("path", "node"),
    [
        ("captures/switch.jsonl.gz", "switch"),
        ("captures/leaf01-pfc.txt", "leaf01"),
        ("captures/host3/eth0.txt", "host3"),
        ("captures/gpu-a100-11.example.org/eth0.txt", "gpu-a100-11"),
        ("x/tracekit-capture/n17/ethtool.eth0.1795227155.txt", "n17"),
        ("captures/pfcwd__show_pfc.txt", None),
        ("captures/node_exporter_e2e.txt", None),
        ("captures/ethtool-gpu-11-eth2-20260714T081238Z.txt", "gpu-11"),
        ("captures/before_perfquery_host3.txt", "host3"),
        ("captures/ethtool-eth0.txt", None),
        ("captures/before.txt", None),
        ("captures/portstat.txt", None),
        ("captures/hostnames.txt", None),
    ],
)
def test_only_what_looks_like_a_machine_is_one(path: str, node: str | None) -> None:
    found = node_of_path(path)
    assert (found or "").split(".")[0] == (node or "")


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ("gpu-07:~$ ethtool -S eth5", "gpu-07"),
        ("ops@gpu-07:/var/log$ sudo ethtool -S eth5", "gpu-07"),
        ("[root@gpu-07 ~]# ethtool -S eth5", "gpu-07"),
        ("$ ethtool -S eth5", None),
        ("# ethtool -S eth5", None),
    ],
)
def test_what_was_typed_names_the_machine_and_the_port(line: str, node: str | None) -> None:
    sink = ingest(f"{line}\nNIC statistics:\n     rx_packets: 42\n", "nic", "stats.txt")
    assert [(r["node"], r["port"], r["counted"]) for r in sink.rows("net_sample")] == [
        (node, "eth5", 42)
    ]
    assert sink.facts["status"] == "ok"
