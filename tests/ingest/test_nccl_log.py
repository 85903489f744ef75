"""NCCL logs: every release range, and what other programs do to their lines."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

import nccl_logs as logs
from nccl_logs import info, read
from soaks import soak
from tracekit.ingest import files, recognise
from tracekit.ingest.nccl import lines, messages

GOLDEN = Path(__file__).parent / "nccl_golden"
UPDATE = os.environ.get("TRACEKIT_UPDATE_GOLDEN") == "1"
TABLES = ("nccl_comm", "nccl_edge", "nccl_op", "nccl_choice", "nccl_event")


@pytest.mark.parametrize("version", logs.VERSIONS)
def test_each_release_tells_the_same_communicator(version: str) -> None:
    sink = read(logs.job(version))
    minor = int(version.split(".")[1])
    assert sink.counts.get("unknown_nccl_line", 0) == 0
    assert sink.rows("nccl_comm", "group_rank", "group_size", "channels_count", "state") == [
        (0, 2, 4, "complete"),
        (1, 2, 4, "complete"),
    ]
    pci = [None, None] if minor == 4 else ["00000000:17:00.0", "00000000:18:00.0"]
    assert sink.rows("nccl_comm", "pci") == pci
    assert sink.rows("nccl_comm", "comm_hash") == ["0xabc" if minor >= 16 else None] * 2
    assert sink.rows("nccl_comm", "nodes_count") == [1 if minor >= 20 else None] * 2
    assert sink.rows("nccl_comm", "init_dur_ns") == [1_250_000_000 if minor >= 23 else None] * 2
    edges = sink.rows("nccl_edge", "from_group_rank", "to_group_rank", "transport", "node")
    assert edges == [(0, 1, "P2P", logs.HOST), (1, 0, "P2P", logs.HOST)]
    pointers = sink.rows("nccl_comm", "comm_pointer")
    assert sink.rows("nccl_edge", "comm_pointer") == pointers
    assert sink.rows("nccl_op", "comm_pointer") == pointers
    assert (
        sink.rows("nccl_op", "op", "op_count", "elements_count", "dtype", "reduction")
        == [("all_reduce", 10, 1024, "Float", "sum")] * 2
    )
    assert f"nccl={version}" in sink.facts["versions"]  # type: ignore[operator]


RANGES = (
    "2.4.8", "2.5.7", "2.13.4", "2.17.1", "2.20.5", "2.22.3", "2.23.4", "2.29.2", "2.30.7",
)  # fmt: skip
"""A release of each range in which the words of a communicator's life are the same."""


@pytest.mark.parametrize("version", RANGES)
def test_golden_tables(version: str) -> None:
    sink = read(logs.job(version))
    text = ""
    for name in TABLES:
        for row in sink.rows(name):
            kept = {k: v for k, v in row.items() if v is not None}
            text += f"{name} " + " ".join(f"{k}={v}" for k, v in kept.items()) + "\n"
    path = GOLDEN / f"{version}.txt"
    if UPDATE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


# --- what stands before and between -----------------------------------------------------------


@pytest.mark.parametrize(
    "prefix",
    ["0: ", " 7: ", "[3]<stderr>:", "[1,3]<stdout>:", "[1,3]<stderr>: ", "[rank3]:",
     "[2026-04-28 14:14:49] ", "[default2]:", "\x1b[32m", "worker-0  | ",
     "(main pid=77, ip=10.0.0.1) ",
     "2026-01-01T00:00:00.123Z stdout F ", "\r 12%|#   | 3/24 "],
)  # fmt: skip
def test_prefixes_of_launchers_do_not_hide_the_host(prefix: str) -> None:
    text = "\n".join(prefix + line for line in logs.comm_lines("2.20.5", 0)) + "\n"
    sink = read(text)
    assert set(sink.rows("nccl_comm", "node")) == {logs.HOST}
    assert sink.rows("nccl_comm", "group_rank") == [0]


def test_a_glued_prefix_makes_no_phantom_host() -> None:
    clean = "\n".join(logs.comm_lines("2.20.5", 0))
    torn = "   8388608  2097152  float  sum  -1" + info("Launch mode Parallel")
    number = "  83.33  100.66  100.66  0" + info("Launch mode Parallel")
    word = "  83.33  100.66  100.66  N/A" + info("Launch mode Parallel")
    sink = read(f"{clean}\n{torn}\n{number}\n{word}\n")
    rows = sink.rows("nccl_event", "code", "node")
    assert [node for code, node in rows if code == "launch_mode"] == [logs.HOST] * 3
    assert sink.counts["glued_prefix"] == 0


def test_a_glued_host_that_nobody_knows_is_counted_and_not_invented() -> None:
    sink = read("   8388608  2097152  float  sum  -1" + info("Using network IB") + "\n")
    assert sink.rows("nccl_event", "node") == [None]
    assert sink.counts["glued_prefix"] == 1


def test_two_messages_in_one_line_are_two() -> None:
    two = info("Using network IB") + info("Connected all trees")
    sink = read(info("Connected all rings") + "\n" + two + "\n")
    codes = sink.rows("nccl_event", "code")
    assert codes == ["rings_connected", "network", "trees_connected"]
    assert sink.counts["torn_line"] == 1


def test_two_processes_and_two_hosts_in_one_file_stay_apart() -> None:
    start = "comm 0x7f1 rank {r} nranks 2 cudaDev 0 busId 10{r}0 - Init COMPLETE"
    text = "\n".join(
        info(start.format(r=r), pid=25, tid=66, host=host) for r, host in enumerate(("a", "b"))
    )
    sink = read(text + "\n")
    assert sink.rows("nccl_comm", "node", "pid", "comm_pointer", "group_rank") == [
        ("a", 25, 0x7F1, 0),
        ("b", 25, 0x7F1, 1),
    ]
    assert "host_name" not in sink.facts


def test_a_pointer_is_used_again_after_its_communicator_ended() -> None:
    start = "comm 0x7f1 rank 0 nranks {n} cudaDev 0 nvmlDev 0 busId 1000 commId 0x{c} - Init START"
    call = (
        "AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 4 datatype 7 op 0 root 0 "
        "comm 0x7f1 [nranks={n}] stream 0x5"
    )
    text = [
        start.format(n=8, c="aa"),
        call.format(n=8),
        call.format(n=8),
        "comm 0x7f1 rank 0 nranks 8 cudaDev 0 busId 1000 - Destroy COMPLETE",
        start.format(n=4, c="bb"),
        call.format(n=4),
    ]
    sink = read("\n".join(info(t) for t in text) + "\n")
    assert sink.rows("nccl_comm", "comm_generation", "comm_hash", "group_size") == [
        (0, "0xaa", 8),
        (1, "0xbb", 4),
    ]
    # opCount stays 0 where there is no proxy: only our own ordinal is a sequence.
    assert sink.rows("nccl_op", "comm_generation", "ordinal", "op_count") == [
        (0, 0, 0),
        (0, 1, 0),
        (1, 0, 0),
    ]
    assert sink.counts["reused_pointer"] == 1


@pytest.mark.parametrize("word", ["splitCount", "childCount", ""])
def test_a_split_is_known_by_parent_count_and_colour(word: str) -> None:
    count = f"{word} 3 " if word else ""
    lines_of_ranks = []
    for rank in range(2):
        above = f"0x7f{rank}0"
        lines_of_ranks += [
            info(f"ncclCommInitRank comm {above} rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId "
                 f"1000 commId 0xaa - Init START", pid=rank),
            info(f"ncclCommSplit comm 0x7f{rank}1 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1000 "
                 f"parent {above} {count}color 5 key {rank}- Init START", pid=rank),
            info(f"ncclCommSplit comm 0x7f{rank}1 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1000 "
                 f"parent {above} {count}color 5 key {rank} - Init COMPLETE", pid=rank),
        ]  # fmt: skip
    sink = read("\n".join(lines_of_ranks) + "\n")
    split = [h for h, p in sink.rows("nccl_comm", "comm_hash", "parent_hash") if p]
    assert split == [f"0xaa/{'3' if word else '#0'}/5"] * 2


def test_a_rank_is_never_read_from_the_bracket() -> None:
    line = "comm 0x7f1 rank 10 nranks 16 cudaDev 0 busId 1000 - Init COMPLETE"
    assert read(info(line, dev=0) + "\n").rows("nccl_comm", "group_rank", "world_rank") == [
        (10, None)
    ]


def test_a_launchers_task_number_is_a_rank_only_where_the_communicator_agrees() -> None:
    line = "comm 0x7f1 rank {r} nranks 2 cudaDev 0 busId 10{r}0 - Init COMPLETE"
    agreed = [f"[1,{r}]<stdout>:" + info(line.format(r=r), pid=r) for r in range(2)]
    assert read("\n".join(agreed) + "\n").rows("nccl_comm", "world_rank") == [0, 1]
    one_task = ["0: " + info(line.format(r=r), pid=r) for r in range(2)]
    assert read("\n".join(one_task) + "\n").rows("nccl_comm", "world_rank") == [None, None]


# --- connections and calls --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("P2P/direct pointer/read", ("P2P", "direct pointer/read", None, None, None)),
        ("P2P/indirect/3[3]", ("P2P", "indirect/3[3]", None, None, None)),
        ("P2P/MNNVL", ("P2P", "MNNVL", None, None, None)),
        ("direct shared memory", ("SHM", None, None, None, None)),
        ("SHM/direct/direct", ("SHM", "direct/direct", None, None, None)),
        ("SHM/direct", ("SHM", "direct", None, None, None)),
        ("NET/IB/2/GDRDMA", ("NET", "IB/2/GDRDMA", True, 2, None)),
        ("NET/IB/2(5)/GDRDMA(PCI)/Shared", ("NET", "IB/2/GDRDMA(PCI)/Shared", True, 2, 5)),
        ("NET/Socket/0", ("NET", "Socket/0", False, 0, None)),
        ("NET/AWS Libfabric/1/GDRDMA", ("NET", "AWS Libfabric/1/GDRDMA", True, 1, None)),
        ("NET/IBext_v8/3/Shared", ("NET", "IBext_v8/3/Shared", False, 3, None)),
    ],
)
def test_every_transport(way: str, expected: tuple[object, ...]) -> None:
    side = "[send] " if way.startswith("NET") else ""
    sink = read(info(f"Channel 02/1 : 0[0] -> 1[1] {side}via {way}") + "\n")
    columns = ("transport", "detail", "is_gpudirect", "net_device", "proxy_rank")
    assert sink.rows("nccl_edge", *columns) == [expected]
    assert sink.rows("nccl_edge", "channel", "connection") == [(2, 1)]


def test_a_nic_is_named_where_the_log_lists_it() -> None:
    text = [
        "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_2:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
        "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/1",
    ]
    sink = read("\n".join(info(t) for t in text) + "\n")
    assert sink.rows("nccl_edge", "nic") == ["mlx5_2"]
    assert sink.events("net_devices")[0]["oob"] == "eth0"


def test_an_edge_into_the_network_is_of_one_rank() -> None:
    """CollNet: the switches reduce, so the other end is no rank."""
    lines = [
        *logs.comm_lines("2.20.5", 0, 2),
        info("CollNet 00/0 : 0 [receive] via COLLNET/SHARP/1/GDRDMA"),
        info("CollNet 01/0 : 0 [send] via COLLNET/SHARP/1"),
        info("CollNet 01/0 : 0 [both] via COLLNET/SHARP/1"),
    ]
    columns = ("channel", "from_group_rank", "to_group_rank", "is_gpudirect", "direction")
    edges = read("\n".join(lines) + "\n").rows("nccl_edge", "transport", *columns)
    assert [r[1:] for r in edges if r[0] == "COLLNET"] == [
        (0, None, 0, True, "receive"),
        (1, 0, None, False, "send"),
    ]


def test_lazy_connections_belong_to_the_one_communicator_that_fits() -> None:
    start = (
        "comm 0x7f{p} rank {r} nranks {n} cudaDev 0 nvmlDev 0 busId 1000 commId 0x{p} - Init {w}"
    )
    text = [info(start.format(p=p, r=r, n=n, w=w)) for p, r, n in ((1, 5, 8), (2, 1, 2))
            for w in ("START", "COMPLETE")]  # fmt: skip
    edge = "Channel 00/0 : {a}[0] -> {b}[1] via P2P/CUMEM"
    text += [info(edge.format(a=5, b=6), tid=900), info(edge.format(a=1, b=0), tid=900),
             info(edge.format(a=3, b=4), tid=900)]  # fmt: skip
    sink = read("\n".join(text) + "\n")
    assert sink.rows("nccl_edge", "comm_pointer") == [0x7F1, 0x7F2, None]


def test_words_of_a_call_are_found_by_name() -> None:
    line = (
        "ReduceScatter: opCount ff count 64 sendbuff 0x1 recvbuff 0x2 op 4 datatype 9 newword 3 "
        "comm 0x7f1 root 0 [nranks=2] stream 0x5 task 1 globalrank 7"
    )
    sink = read(info(line) + "\n")
    assert sink.rows("nccl_op", "op", "op_count", "elements_count", "dtype", "reduction") == [
        ("reduce_scatter", 255, 64, "BFloat16", "avg")
    ]


@pytest.mark.parametrize(
    ("version", "line", "expected"),
    [
        ("2.9.9", "65536 Bytes -> Algo 2 proto 0 time 12.5", (None, "CollNet", "LL", None, 12500)),
        ("2.20.5", "65536 Bytes -> Algo 2 proto 2 time 12.5",
         (None, "CollNetDirect", "Simple", None, 12500)),
        ("2.23.4", "AllReduce: 65536 Bytes -> Algo 4 proto 1 time 1",
         ("all_reduce", "NVLS", "LL128", None, 1000)),
        ("2.27.7", "AllGather: 65536 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}",
         ("all_gather", "Ring", "Simple", 24, None)),
    ],
)  # fmt: skip
def test_choices(version: str, line: str, expected: tuple[object, ...]) -> None:
    sink = read(f"{logs.job(version)}{info(line)}\n")
    columns = ("op", "algorithm", "protocol", "channels_count", "model_dur_ns")
    assert sink.rows("nccl_choice", *columns) == [expected]
    assert sink.rows("nccl_choice", "message_bytes") == [65536]


def test_the_table_of_the_cost_model_keeps_what_is_enabled() -> None:
    text = [
        "  Algorithm   |                     Tree                  |           Ring        |",
        "  AllReduce |     8.0/   0.0 |    16.5/ 112.0 |    16.4/ 144.0 |     7.8/  87.7 | "
        "   17.8/ 220.8 |    15.2/ 240.0 |",
    ]
    (row,) = read("\n".join(info(t) for t in text) + "\n").events("cost")
    assert row["Ring/Simple"] == "15.2/240.0"
    assert "Tree/LL" not in row


# --- trouble ----------------------------------------------------------------------------------

COMPLETIONS = [
    "NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129",
    "NET/IB : Got completion from peer 10.0.0.2<4000> with error 12, opcode 1, len 0, vendor err "
    "129",
    "NET/IB : Got completion from peer 10.0.0.2<4000> with error 12, opcode 1, len 0, vendor err "
    "129 (Send) localGid fe80::1 remoteGidfe80::2",
    "NET/IB : Got completion from peer 10.0.0.2<4000> with status=12 opcode=1 len=0 vendor err 129 "
    "(Send) localGid fe80::1 remoteGidsfe80::2",
    "NET/IB: Got completion from peer 10.0.0.2<4000> with status=12 opcode=1 len=0 vendor err 129 "
    "(Recv) localGid fe80::1 remoteGidsfe80::2 hca mlx5_0",
    "NET/IB: Got completion from peer 10.0.0.2<4000> with status=IBV_WC_RETRY_EXC_ERR(12) "
    "opcode=IBV_WC_RDMA_WRITE(1) reqSize=0 vendor_err=129 req_type=Send localGid fe80::1 "
    "remoteGidsfe80::2 hca mlx5_0",
]


@pytest.mark.parametrize("text", COMPLETIONS)
def test_a_failed_completion_of_each_release(text: str) -> None:
    line = f"\n{logs.HOST}:100:101 [0] transport/net_ib.cc:1300 NCCL WARN {text}\n"
    (given,) = read(line).events("ib_error")
    assert given["status"] == "12"
    assert given["vendor"] == "129"
    assert ("peer" in given) == ("peer" in text)
    assert ("nic" in given) == ("hca" in text)
    assert given["origin"] == "transport/net_ib.cc"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("Net : Call to recv from 10.0.0.7<41468> failed : Connection timed out",
         "Connection timed out"),
        ("socketProgressOpt: Call to send to 10.0.0.7<41468> failed : Broken pipe", "Broken pipe"),
        ("Net : Call to recv from 10.0.0.7<41468> failed : Unbekannt", None),
    ],
)  # fmt: skip
def test_a_call_on_a_connection_that_failed_names_its_peer(said: str, why: str | None) -> None:
    sink = read(f"{logs.HOST}:1:2 [0] misc/socket.cc:503 NCCL WARN {said}\n")
    (given,) = sink.events("socket_failed")
    assert (given["peer"], given.get("why")) == ("10.0.0.7", why)


@pytest.mark.parametrize(
    "prefix",
    ["[2026-04-28 14:14:49] ", "[2026-04-28 14:14:49.123456] "],
)
def test_a_warning_has_a_time_and_a_function(prefix: str) -> None:
    said = "init.cc:77 (ncclInit) NCCL WARN Cuda failure 2 'out of memory'"
    line = f"{prefix}{logs.HOST}:1:2 [0] {said}"
    sink = read(line + "\n")
    (given,) = sink.events("cuda_failure")
    assert given["what"] == "out of memory"
    assert sink.rows("nccl_event", "time_ns")[0] // 10**9 == 1777385689
    assert sink.facts["time_basis"] == "relative"  # local time without a zone


def test_unknown_lines_are_counted_by_shape_and_never_kept() -> None:
    text = [info(f"zebra {word} took 77 stripes") for word in ("hunter2", "s3cretTOKEN")]
    sink = read("\n".join(text) + "\n")
    assert sink.counts["unknown_nccl_line"] == 2
    assert "hunter2" not in sink.everything
    assert "s3cretTOKEN" not in sink.everything
    assert ("a 9 a 9 a" in str(sink.rows("nccl_event", "template"))) or sink.shapes


SECRET = "AKIAHUNTER2SECRET"  # noqa: S105  # the point of the test


@pytest.mark.parametrize(
    "line",
    [
        f"export AWS_SECRET_ACCESS_KEY={SECRET}",
        info(f"NCCL_CONF_FILE set by environment to /home/{SECRET}/nccl.conf."),
        info(f"NCCL_TOKEN set by environment to {SECRET}."),
        info(f"NCCL_TOPO_FILE set by environment to /{SECRET}.xml"),
        info(f"Loading topology file /home/{SECRET}/x.xml"),
        info(f"NET/Plugin: Could not find: /opt/{SECRET}.so"),
        info(f"something new {SECRET}"),
        f"{logs.HOST}:1:2 [0] x.cc:1 NCCL WARN {SECRET}",
        f"{logs.HOST}:1:2 [0] x.cc:1 NCCL WARN Cuda failure '{SECRET}'",
        f"{logs.HOST}:1:2 NCCL CALL ncclAllReduce({SECRET})",
        f"# {SECRET}",
        f"[rank0]:[E1121 ProcessGroupNCCL.cpp:6] [Rank 0] Watchdog {SECRET} WorkNCCL(SeqNum=9, "
        "OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600060 milliseconds",
    ],
)
def test_a_secret_in_a_jobs_output_is_nowhere(line: str) -> None:
    sink = read(f"{logs.job('2.23.4')}{line}\n")
    assert SECRET not in sink.everything


def test_settings_are_kept_if_they_are_on_the_list() -> None:
    text = ["NCCL_IB_HCA set by environment to mlx5_0,mlx5_2.", "NCCL_ALGO set to Ring"]
    given = read("\n".join(info(t) for t in text) + "\n").events("env")
    assert given == [
        {"name": "NCCL_IB_HCA", "value": "mlx5_0,mlx5_2"},
        {"name": "NCCL_ALGO", "value": "Ring"},
    ]


def test_a_log_that_says_nothing_of_nccl_is_unrecognised() -> None:
    sink = read("epoch 1\nepoch 2\n", "train.log")
    assert sink.facts["status"] == "unrecognised"
    assert recognise(logs.source_of(b"epoch 1\n", "notes.txt")).ingestor is None


def test_a_binary_file_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_bytes(os.urandom(1 << 20) * 64)
    began = time.process_time()  # of this process alone: others may keep the machine busy
    (source,) = files.expand([path])
    assert recognise(source).ingestor is None
    assert time.process_time() - began < 1


def test_an_endless_line_is_cut_and_ends_nothing() -> None:
    text = "x" * (3 << 20) + "\n" + info("Using network IB") + "\n"
    assert read(text, "job.log").rows("nccl_event", "code") == ["network"]


def test_shapes_fold_letters_and_digits() -> None:
    assert lines.shape(b"rank 12 of job ab12cd at /x/y") == "a 9 a a 9 a /a/a"


def test_every_pattern_has_its_key_in_what_it_matches() -> None:
    assert all(p.key for p in messages.PATTERNS)


@pytest.mark.parametrize("text", ["P2P/direct", "", "NCCL", " NCCL INFO ", "a:1:2 NCCL INFO"])
def test_odd_lines_end_nothing(text: str) -> None:
    read(f"{info('Using network IB')}\n{text}\n")


def test_random_cuts_of_a_log_end_nothing() -> None:
    whole = logs.job("2.23.4").encode()
    for cut in range(0, len(whole), 97):
        data = whole[:cut] + whole[cut + 31 :]
        if recognise(logs.source_of(data)).ingestor == "nccl":
            read(data)


@pytest.mark.parametrize(
    "line",
    [
        logs.info("Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/ {} 2/GDRDMA"),
        logs.info("Using network AWS Libfabr {} ic"),
        logs.info("NET/Plugin: Loaded collnet plugin SHA {} RP"),
        "#  Rank  0 Pid   1 on   h1 device  0 [0000:81:00] A100-SXM {} 4-40GB",
    ],
)
def test_a_secret_spliced_into_a_name_is_not_kept(line: str) -> None:
    secret = "AKIAHUNTER2SECRET"  # noqa: S105  # the point of the test
    head = "# nThread 1 nGpus 1 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 5 iters: 20\n"
    text = logs.job("2.27.7") + "\n" + head + line.format(secret) + "\n"
    assert secret not in logs.read(text).everything
    assert "*" in logs.read(text).everything


@pytest.mark.parametrize("number", soak(["9" * 30, "18446744073709551616", "9" * 5000], fast=1))
@pytest.mark.parametrize("version", soak(["2.4.8", "2.20.5", "2.30.7"], fast=["2.4.8", "2.30.7"]))
def test_a_number_beyond_64_bits_costs_no_more_than_its_line(version: str, number: str) -> None:
    """Each number of each line in turn: the rows of all other lines are kept."""
    whole = read(logs.job(version))
    *before, last = logs.job(version).splitlines(keepends=True)
    for at, line in enumerate([*before, last]):
        rest = "".join([*before, last][:at]), "".join([*before, last][at + 1 :])
        without = read("".join(rest))
        for found in re.finditer(r"(?<![\w.])(?:0x)?[0-9a-f]*\d(?![\w.])", line):
            harmed = line[: found.start()] + number + line[found.end() :]
            sink = read(harmed.join(rest))
            for name, rows in whole.tables.items():
                least = min(len(rows), len(without.tables.get(name, ())))
                assert len(sink.tables.get(name, ())) >= least, harmed


def test_a_count_beyond_64_bits_is_unknown() -> None:
    text = logs.job("2.20.5").replace("count 1024", f"count {'9' * 30}")
    assert read(text).rows("nccl_op", "op", "elements_count") == [("all_reduce", None)] * 2
