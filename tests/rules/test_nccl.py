"""Rules about NCCL, from lines to findings: firing, just below, and what must not accuse."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import pytest
import topologies as topology

import nccl_logs as logs
from nccl_logs import info
from tracekit import catalog
from tracekit.findings import Finding, Severity
from tracekit.rules import rule
from tracekit.rules.base import Facts, JobFacts, RuleOutcome
from tracekit.rules.nccl_facts import majority

QUERIES = (
    "nccl_comms", "nccl_topology", "nccl_signals", "nccl_bench", "nccl_choices", "nccl_nics",
    "nccl_rails", "nccl_groups", "watchdog", "flight_calls", "host_topology",
)  # fmt: skip
Build = Callable[..., Facts]


@pytest.fixture(scope="module")
def known() -> dict[str, Facts]:
    """Facts of logs that a test of this file has built."""
    return {}


@pytest.fixture
def build(con: duckdb.DuckDBPyConnection, known: dict[str, Facts]) -> Build:
    """Facts of logs: each text (or name and text) is one file."""
    filled_before: set[str] = set()

    def built(*texts: str | tuple[str, str], groups: Sequence[dict[str, Any]] = ()) -> Facts:
        key = repr((texts, groups))
        if key not in known:
            known[key] = read(*texts, groups=groups)
        return known[key]

    def read(*texts: str | tuple[str, str], groups: Sequence[dict[str, Any]]) -> Facts:
        tables: dict[str, list[dict[str, Any]]] = {}
        paths = {}
        for source_id, given in enumerate(texts):
            name, text = given if isinstance(given, tuple) else (f"{source_id}.log", given)
            paths[source_id] = name
            for table, rows in (topology.rows(text, name[:-5] or None) if name.endswith(".topo")
                                else logs.read(text, name).tables).items():  # fmt: skip
                tables.setdefault(table, []).extend({**r, "source_id": source_id} for r in rows)
        if groups:
            kinds = [{k: g[k] for k in ("group_id", "kind")} for g in groups if "kind" in g]
            tables["comm_group"] = kinds
            tables["process_group"] = [
                {"source_id": 0, **{k: v for k, v in g.items() if k != "kind"}} for g in groups
            ]
        for table in {*tables, *filled_before}:
            catalog.create_table(con, table, tables.get(table, ()))
        filled_before.update(tables)
        filled = {table for table, rows in tables.items() if rows}
        found = {
            query.name: []  # as a diagnosis, which does not ask them
            if catalog.finds_nothing(query, filled)
            else catalog.run(con, query.name).to_pylist()
            for query in map(catalog.find, QUERIES)
        }
        return Facts(job=JobFacts(), rows=found, sources=paths)

    return built


def findings(name: str, facts: Facts) -> tuple[Finding, ...]:
    outcome = rule(name).run(facts)
    for finding in outcome.findings:
        assert finding.rule == name
        assert finding.evidence
        assert finding.confidence.level in ("possible", "likely")
        assert finding.remedy
    return outcome.findings


def comm(
    rank: int, size: int = 2, *, nodes: int | None = None, host: str | None = None, bus: int = 0x17,
    channels: int | None = 24, comm_id: str = "0xaa", version: str | None = None,
) -> list[str]:  # fmt: skip
    """A communicator of one process a rank, 2.20 style."""
    host = host or ("h0" if rank < size // 2 or nodes == 1 else "h1")
    nodes = nodes if nodes is not None else 2
    where = f"0x7f{rank:02x}0"
    head = f"comm {where} rank {rank} nranks {size} cudaDev 0 nvmlDev 0 busId {bus + rank:x}000"
    lines = [f"NCCL version {version}+cuda12.4"] if version else []
    lines += [
        f"{head} commId {comm_id} - Init START",
        f"comm {where} rank {rank} nRanks {size} nNodes {nodes} localRanks 1 localRank 0 MNNVL 0",
    ]
    if channels is not None:
        lines.append(f"{channels} coll channels, 8 p2p channels, 2 p2p channels per peer")
    lines.append(f"{head} commId {comm_id} - Init COMPLETE")
    return [info(t, pid=100 + rank, tid=100 + rank, host=host) for t in lines]


def say(text: str, rank: int, host: str) -> str:
    return info(text, pid=100 + rank, tid=100 + rank, host=host)


def net(way: str, start: int = 0, end: int = 1, hosts: tuple[str, str] = ("h0", "h1")) -> list[str]:
    edge = f"Channel 00/0 : {start}[0] -> {end}[0]"
    return [
        say(f"{edge} [send] via NET/{way}", start, hosts[0]),
        say(f"{edge} [receive] via NET/{way}", end, hosts[1]),
    ]


def text(*parts: Sequence[str] | str) -> str:
    lines = [line for part in parts for line in ([part] if isinstance(part, str) else part)]
    return "\n".join(lines) + "\n"


PAIR = [*comm(0), *comm(1)]
ONE_NODE = [*comm(0, nodes=1), *comm(1, nodes=1)]
NCCL_RULES = (
    "nccl-socket-fallback", "channel-collapse", "no-gpudirect", "shm-instead-of-p2p", "wrong-nic",
    "cross-rail-traffic", "unsuitable-algorithm", "init-straggler", "config-mismatch", "bad-node",
    "tensor-group-spans-hosts", "collective-hang", "collective-mismatch", "link-degraded",
)  # fmt: skip


# --- what must not accuse ---------------------------------------------------------------------


@pytest.mark.parametrize("name", NCCL_RULES)
@pytest.mark.parametrize("version", ["2.4.8", "2.9.9", "2.18.5", "2.23.4", "2.30.7"])
def test_a_healthy_log_of_any_release_accuses_nobody(name: str, version: str, build: Build) -> None:
    assert findings(name, build(logs.job(version))) == ()


@pytest.mark.parametrize(
    "line",
    [
        "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
        "TUNER/Plugin: Could not find: libnccl-tuner.so. Using internal tuner plugin.",
        "NET/IB : No device found.",
        "NET/Socket : Using [0]eth0:10.0.0.1<0>",
        "Using network Socket",
        "Bootstrap: Using eth0:10.0.0.1<0>",
        "Failed to initialize NET plugin IB",
        "NVLS multicast support is not available on dev 0 (NVLS_NCHANNELS 0)",
    ],
)
def test_a_normal_line_on_one_machine_accuses_nobody(line: str, build: Build) -> None:
    facts = build(text(ONE_NODE, say(line, 0, "h0"), say(line, 1, "h0")))
    assert not [f for name in NCCL_RULES for f in findings(name, facts)]


def test_lazy_connections_that_were_never_made_are_no_fault(build: Build) -> None:
    facts = build(text(PAIR))
    assert not [f for name in NCCL_RULES for f in findings(name, facts)]


# --- sockets ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("NCCL_IB_DISABLE set by environment to 1.", "NCCL_IB_DISABLE=1 is set"),
        ("NET/IB : No device found.", "no InfiniBand or RoCE device"),
        ("Failed to open libibverbs.so[.1]", "libibverbs"),
        ("Failed to initialize NET plugin IBext_v8", "plugin failed"),
        ("", "does not say why"),
    ],
)
def test_sockets_between_machines_with_the_reason(line: str, why: str, build: Build) -> None:
    facts = build(text(PAIR, [say(line, 0, "h0")] if line else [], net("Socket/0")))
    (finding,) = findings("nccl-socket-fallback", facts)
    assert why in finding.summary
    assert finding.scope.hosts == ("h0", "h1")
    assert finding.severity is (Severity.MAJOR if line else Severity.MINOR)
    assert finding.confidence.level == "possible"
    assert finding.evidence[0].rows


def test_using_network_socket_is_enough_without_connections(build: Build) -> None:
    lines = [say("Using network Socket", r, f"h{r}") for r in range(2)]
    assert findings("nccl-socket-fallback", build(text(PAIR, lines)))
    mixed = [say(f"Using network {n}", r, f"h{r}") for r, n in enumerate(("IB", "Socket"))]
    assert not findings("nccl-socket-fallback", build(text(PAIR, mixed)))


def test_few_sockets_beside_rdma_are_no_fallback(build: Build) -> None:
    facts = build(text(PAIR, net("IB/0/GDRDMA"), net("IB/0/GDRDMA"), net("IB/1/GDRDMA"),
                       net("Socket/0")))  # fmt: skip
    assert not findings("nccl-socket-fallback", facts)


def test_it_cannot_tell_whether_a_lone_rank_spans_machines(build: Build) -> None:
    line = "comm 0x7f rank 0 nranks 4 cudaDev 0 busId 1000 - Init COMPLETE"
    outcome = rule("nccl-socket-fallback").run(
        build(text(info(line), info("Using network Socket")))
    )
    assert not outcome.findings
    assert outcome.not_checked


# --- GPUDirect --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0' (no module)", "peer-memory module"),
        ("GPU Direct RDMA Disabled for GPU 17000 / HCA 0 (distance 5 > 4), read 0", "too far"),
        ("NCCL_NET_GDR_LEVEL set by environment to LOC.", "NCCL_NET_GDR_LEVEL=LOC"),
    ],
)
def test_rdma_without_gpudirect(line: str, why: str, build: Build) -> None:
    facts = build(text(PAIR, say(line, 0, "h0"), net("IB/0")))
    (finding,) = findings("no-gpudirect", facts)
    assert why in finding.summary
    assert finding.severity is Severity.MINOR


@pytest.mark.parametrize("way", ["IB/0/GDRDMA", "IB/0/GDRDMA/Shared", "Socket/0", "FastSocket/0"])
def test_gpudirect_or_no_rdma_at_all_is_fine(way: str, build: Build) -> None:
    assert not findings("no-gpudirect", build(text(PAIR, net(way))))


def test_a_few_connections_without_it_are_below_the_threshold(build: Build) -> None:
    good = [line for c in range(10) for line in net(f"IB/{c}/GDRDMA")]
    edges = text(PAIR, good, net("IB/11"))
    assert not findings("no-gpudirect", build(edges))
    assert findings("no-gpudirect", build(text(PAIR, good[:16], net("IB/11"))))


# --- within a machine -------------------------------------------------------------------------

SHM = "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct"


def gpu_path(kind: str) -> str:
    return (
        f"GPU/0-17000 :GPU/0-17000 (0/5000.0/LOC) GPU/0-18000 (1/240.0/{kind}) CPU/0-0 (1/24/PHB)"
    )


def test_shared_memory_where_nvlink_joins(build: Build) -> None:
    lines = text(ONE_NODE, say(gpu_path("NVL"), 0, "h0"), say(SHM, 0, "h0"),
                 say("NCCL_P2P_DISABLE set by environment to 1.", 0, "h0"))  # fmt: skip
    (finding,) = findings("shm-instead-of-p2p", build(lines))
    assert "NVLink joins them" in finding.summary
    assert "NCCL_P2P_DISABLE=1" in finding.summary


@pytest.mark.parametrize("kind", ["SYS", "PHB", "PIX"])
def test_gpus_without_nvlink_may_use_shared_memory(kind: str, build: Build) -> None:
    lines = text(ONE_NODE, say(gpu_path(kind), 0, "h0"), say(SHM, 0, "h0"))
    assert not findings("shm-instead-of-p2p", build(lines))


def test_shared_memory_without_any_stated_path_is_not_accused(build: Build) -> None:
    assert not findings("shm-instead-of-p2p", build(text(ONE_NODE, say(SHM, 0, "h0"))))


def test_the_same_pair_of_slots_uses_p2p_on_another_host(build: Build) -> None:
    def machine(host: str, ident: str, way: str) -> list[str]:
        lines = [*comm(0, nodes=1, host=host, comm_id=ident), *comm(1, nodes=1, host=host,
                                                                    comm_id=ident)]  # fmt: skip
        return [*lines, say(f"Channel 00/0 : 0[0] -> 1[1] via {way}", 0, host)]

    facts = build(text(machine("a", "0xaa", "P2P/CUMEM")), text(machine("b", "0xbb", "SHM/direct")))
    (finding,) = findings("shm-instead-of-p2p", facts)
    assert finding.scope.hosts == ("b",)


def test_pods_with_other_names_are_not_one_host(build: Build) -> None:
    pods = [*comm(0, nodes=1, host="pod-0"), *comm(1, nodes=1, host="pod-1")]
    lines = text(pods, say(gpu_path("NVL"), 0, "pod-0"), say(SHM, 0, "pod-0"))
    assert not findings("shm-instead-of-p2p", build(lines))


# --- NICs and rails ---------------------------------------------------------------------------

LIST = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"


def eight(devices: Sequence[int], ranks: int = 4) -> list[str]:
    """Ranks on each of two machines that send to the other, each over a device."""
    size = 2 * ranks
    lines = [line for r in range(size) for line in comm(r, size)]
    for rank in range(ranks):
        edge = f"Channel 00/0 : {rank}[0] -> {rank + ranks}[0] [send] via NET/IB/{devices[rank]}"
        lines.append(say(edge + "/GDRDMA", rank, "h0"))
    return lines


def test_all_ranks_on_one_nic_of_two(build: Build) -> None:
    (finding,) = findings("wrong-nic", build(text(say(LIST, 0, "h0"), eight([0] * 4))))
    assert "mlx5_0" in finding.summary
    assert finding.scope.hosts == ("h0",)


@pytest.mark.parametrize(
    ("here", "there", "is_odd"),
    [
        ([0, 0, 0], [0, 1, 2], True),
        ([0, 0, 0], [0, 1, 1], False),  # shared there too
        ([0, 0], [0, 1], False),  # two may be a pair, and those of the other machine of two pairs
        ([0, 0, 1], [0, 1, 2], False),
    ],
)
def test_three_on_one_nic_are_odd_where_three_elsewhere_have_their_own(
    here: list[int], there: list[int], is_odd: bool, build: Build
) -> None:
    """A log of the fourth is missing."""
    count = len(here)
    three = LIST.replace(" [RO]", " [2]mlx5_2:1/IB [RO]")
    lines = text(say(three, 0, "h0"), say(three, count, "h1"), eight(here, count))
    for rank, device in enumerate(there):
        edge = f"Channel 00/0 : {rank + count}[0] -> {rank}[0] [send] via NET/IB/{device}/GDRDMA"
        lines += text(say(edge, rank + count, "h1"))
    assert [f.scope.hosts for f in findings("wrong-nic", build(lines))] == [("h0",)] * is_odd


def test_several_nics_or_few_ranks_or_one_nic_are_fine(build: Build) -> None:
    assert not findings("wrong-nic", build(text(say(LIST, 0, "h0"), eight([0, 0, 1, 1]))))
    assert not findings("wrong-nic", build(text(say(LIST, 0, "h0"), eight([0] * 3, 3))))
    alone = LIST.replace(" [1]mlx5_1:1/IB", "")
    assert not findings("wrong-nic", build(text(say(alone, 0, "h0"), eight([0] * 4))))


@pytest.mark.parametrize(("speed", "count"), [(199000, 1), (200000, 0)])
def test_a_nic_slower_than_half_of_the_fastest(speed: int, count: int, build: Build) -> None:
    nics = [
        say(f"NET/IB : Made virtual device [{i}] name=mlx5_{i} speed={s} ndevs=1", 0, "h0")
        for i, s in enumerate((400000, speed))
    ]
    facts = build(text(nics, eight([1, 1, 1, 1])))
    assert len([f for f in findings("wrong-nic", facts) if f.scope.devices]) == count


def matrix(near: Sequence[int], host: str | None = "h0", far: str = "SYS") -> tuple[str, str]:
    """GPUs 0 to 3 and NICs 0 to 3: each GPU has its own NIC behind one switch."""
    nics = [f"NIC{n}" for n in range(4)]
    lines = ["\t" + "\t".join([*(f"GPU{g}" for g in range(4)), *nics, "CPU Affinity"])]
    for gpu in range(4):
        words = ["X" if g == gpu else "NV18" for g in range(4)]
        words += ["PIX" if near[gpu] == n else far for n in range(4)]
        lines.append("\t".join([f"GPU{gpu}", *words, "0-31"]))
    legend = "\n".join(f"  NIC{n}: mlx5_{n}" for n in range(4))
    name = f"{host or ''}.topo"
    return name, "\n".join(lines) + "\n\nNIC Legend:\n" + legend + "\n"


FOUR = "NET/IB : Using " + " ".join(f"[{n}]mlx5_{n}:1/IB" for n in range(4)) + " [RO]; OOB eth0"


def test_ranks_that_pass_the_nic_beside_them_by(build: Build) -> None:
    lines = text(say(FOUR, 0, "h0"), eight([1, 0, 3, 2]))
    assert not findings("wrong-nic", build(lines))  # nobody says which NIC is near
    (finding,) = findings("wrong-nic", build(lines, matrix([0, 1, 2, 3])))
    assert finding.summary == (
        "4 of 4 GPUs on h0 pass a nearer NIC by: GPU0 sends over mlx5_1 (SYS), with mlx5_0 beside "
        "it (PIX)."
    )
    assert finding.severity is Severity.MINOR
    assert finding.evidence[1].rows[0].source == "h0.topo"
    (finding,) = findings("wrong-nic", build(lines, matrix([0, 1, 2, 3], host=None)))
    assert "taken for this one" in finding.confidence.basis


@pytest.mark.parametrize(("devices", "severity"), [([1, 0, 2, 3], Severity.MINOR),
                                                   ([1, 1, 2, 3], Severity.NOTE)])  # fmt: skip
def test_few_ranks_that_pass_it_by_are_a_note(
    devices: list[int], severity: Severity, build: Build
) -> None:
    lines = text(say(FOUR, 0, "h0"), eight(devices))
    (finding,) = findings("wrong-nic", build(lines, matrix([0, 1, 2, 3])))
    assert finding.severity is severity


def test_nics_that_are_as_near_as_may_be_pass_nobody_by(build: Build) -> None:
    own = matrix([0, 1, 2, 3])
    used = text(say(FOUR, 0, "h0"), eight([0, 1, 2, 3]))
    assert not findings("wrong-nic", build(used, own))
    swapped = text(say(FOUR, 0, "h0"), eight([1, 0, 3, 2]))
    # Several switches are no CPU; no NIC is near; the host is another; NCCL lists other NICs.
    assert not findings("wrong-nic", build(swapped, matrix([0, 1, 2, 3], far="PXB")))
    assert not findings("wrong-nic", build(swapped, matrix([9, 9, 9, 9])))
    assert not findings("wrong-nic", build(swapped, matrix([0, 1, 2, 3], host="h7")))
    other = text(say(FOUR.replace("mlx5", "bnxt"), 0, "h0"), eight([1, 0, 3, 2]))
    assert not findings("wrong-nic", build(other, own))
    # A NIC that NCCL does not list (filtered, or for storage) is none that it could have used.
    two = "NET/IB : Using [0]mlx5_2:1/IB [1]mlx5_3:1/IB [RO]; OOB eth0:10.0.0.1<0>"
    assert not findings("wrong-nic", build(text(say(two, 0, "h0"), eight([0, 1, 0, 1])), own))


def test_without_every_gpu_an_index_is_no_address(build: Build) -> None:
    few = text(say(FOUR, 0, "h0"), eight([1, 0, 3], 3))
    assert not findings("wrong-nic", build(few, matrix([0, 1, 2, 3])))


def crossing(count: int, of: int = 10, pxn: str = "") -> list[str]:
    lines = list(PAIR)
    for channel in range(of):
        edge = f"Channel {channel:02d}/0 : 0[0] -> 1[0]"
        far = 1 if channel < count else 0
        lines += [
            say(f"{edge} [send] via NET/IB/0{pxn}/GDRDMA", 0, "h0"),
            say(f"{edge} [receive] via NET/IB/{far}/GDRDMA", 1, "h1"),
        ]
    return lines


def test_rails_are_left_by_a_tenth_of_the_channels(build: Build) -> None:
    (finding,) = findings("cross-rail-traffic", build(text(crossing(1))))
    assert finding.severity is Severity.NOTE  # indices may not be rails
    assert not findings("cross-rail-traffic", build(text(crossing(0))))
    assert not findings("cross-rail-traffic", build(text(crossing(1, 11))))
    # PXN lends another rank's NIC; the device that is named is the one that sends.
    assert findings("cross-rail-traffic", build(text(crossing(5, 10, "(3)"))))


def test_a_rail_is_the_gpu_a_nic_is_near_where_the_topology_is_known(build: Build) -> None:
    """h1 lists its NICs in another order: its device 1 is on the rail of h0's device 0."""
    lists = [say(FOUR, 0, "h0"), say(FOUR, 1, "h1")]
    lines = text(lists, crossing(10))
    (finding,) = findings("cross-rail-traffic", build(lines))
    assert finding.confidence.basis.startswith("device indices")
    plans = (matrix([0, 1, 2, 3]), matrix([1, 0, 2, 3], host="h1"))
    assert not findings("cross-rail-traffic", build(lines, *plans))
    straight = text(lists, crossing(0))
    (finding,) = findings("cross-rail-traffic", build(straight, *plans))
    assert finding.confidence.basis.startswith("rails by the GPU")
    # One host alone tells no rail of the other.
    assert not findings("cross-rail-traffic", build(straight, plans[1]))


@pytest.mark.parametrize(("exposed_ns", "severity"), [(10, Severity.MINOR), (9, Severity.NOTE)])
@pytest.mark.parametrize("count", [5, 4])
def test_rails_cost_where_half_cross_and_nothing_hides_it(
    exposed_ns: int, severity: Severity, count: int, build: Build
) -> None:
    facts = build(text(crossing(count)))
    overlap = [{"rank": r, "span_ns": 100, "exposed_comm_ns": exposed_ns} for r in (0, 1)]
    (finding,) = findings("cross-rail-traffic", with_traces(facts, overlap=overlap))
    assert finding.severity is (severity if count == 5 else Severity.NOTE)
    assert finding.scope.hosts == ()  # two orders that differ do not say which one is odd


def test_nccls_own_warning_of_rails_is_enough(build: Build) -> None:
    warn = ("h0:100:100 [0] net.cc:1 NCCL WARN mismatched physical devices between local "
            "(mlx5_0:1) and remote (mlx5_3:1)")  # fmt: skip
    (finding,) = findings("cross-rail-traffic", build(text(PAIR, warn)))
    assert finding.severity is Severity.MINOR


# --- channels ---------------------------------------------------------------------------------


def bench(average: float, way: str = "Ring", devices: str = "h0") -> list[str]:
    """A whole benchmark of one size on two GPUs."""
    row = f"1024 256 float sum -1 10 1 {average} 0 10 1 {average} 0"
    return [
        "# Collective test starting: all_reduce_perf",
        "# nThread 1 nGpus 2 minBytes 1024 maxBytes 1024 step: 2(factor) warmup iters: 5",
        f"#  Rank  0 Group  0 Pid   10 on   {devices} device  0 [0000:17:00] NVIDIA A100",
        f"#  Rank  1 Group  0 Pid   10 on   {devices} device  1 [0000:18:00] NVIDIA A100",
        "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong",
        say(f"AllReduce: 1024 Bytes -> Algo {way.upper()} proto SIMPLE channel{{Lo..Hi}}={{0..3}}",
            0, "h0"),
        row,
        f"# Avg bus bandwidth : {average}",
    ]  # fmt: skip


def machine(channels: int, average: float | None = None, way: str = "Ring") -> str:
    ident = f"0x{channels:x}{way.encode().hex()}{int(average or 0):x}"
    ranks = [x for r in range(2) for x in comm(r, nodes=1, channels=channels, comm_id=ident)]
    return text(ranks, bench(average, way) if average else [])


def test_fewer_channels_than_the_same_gpus_had_elsewhere(build: Build) -> None:
    (finding,) = findings("channel-collapse", build(machine(24, 178), machine(2, 28)))
    assert "2 channels where the same 2 GPUs had 24" in finding.summary
    assert "from 178 to 28 GB/s" in finding.summary
    assert finding.severity is Severity.MAJOR
    assert finding.confidence.level == "likely"
    assert finding.evidence[0].rows[0].source == "1.log"


def test_without_a_benchmark_the_loss_is_not_claimed(build: Build) -> None:
    (finding,) = findings("channel-collapse", build(machine(24), machine(12)))
    assert finding.severity is Severity.MINOR
    assert finding.confidence.level == "possible"
    assert not findings("channel-collapse", build(machine(24), machine(13)))


def test_other_gpus_or_another_size_are_never_compared(build: Build) -> None:
    other = text([line for r in range(2) for line in comm(r, nodes=1, channels=2, bus=0x40)])
    assert not findings("channel-collapse", build(machine(24), other))
    larger = text([line for r in range(4) for line in comm(r, 4, nodes=1, channels=2)])
    assert not findings("channel-collapse", build(machine(24), larger))


def test_one_rank_with_fewer_channels_than_its_peers(build: Build) -> None:
    ranks = [line for r in range(4) for line in comm(r, 4, channels=2 if r == 3 else 16)]
    (finding,) = findings("channel-collapse", build(text(ranks)))
    assert finding.summary.startswith("Rank 3 of a communicator of 4 set up 2 of 16")


def searched(rings: int, rank: int, host: str) -> str:
    return say(
        f"Pattern 4, crossNic 0, nChannels {rings}, bw 50.0/50.0, type NVL/PIX, sameChannels 1",
        rank, host,
    )  # fmt: skip


def limited(channels: int, rings: int, name: str = "NCCL_MAX_NCHANNELS") -> str:
    lines: list[str] = []
    for rank, host in ((0, "h0"), (1, "h1")):
        start, *rest = comm(rank, channels=channels)
        setting = say(f"{name} set by environment to {channels}.", rank, host)
        lines += [setting, start, searched(rings, rank, host), *rest]
    return text(lines)


def test_a_setting_that_leaves_fewer_channels_than_rings(build: Build) -> None:
    (finding,) = findings("channel-collapse", build(limited(4, 8)))
    assert finding.summary.startswith("NCCL uses 4 channels where its search found rings for 8")
    assert not findings("channel-collapse", build(limited(5, 8)))
    assert not findings("channel-collapse", build(limited(4, 8, "NCCL_IB_TC")))


def test_rings_of_another_communicator_accuse_nobody(build: Build) -> None:
    # One GPU a machine: its rings over the network are few, and say nothing of NVLink.
    lines: list[str] = []
    for rank in (0, 1):
        start, *rest = comm(rank, nodes=1, host="h0", comm_id="0xbb")
        system = say("=== System : maxBw 450.0 totalBw 450.0 ===", rank, "h0")
        lines += [start, system, searched(8, rank, "h0"), *rest]
    for rank in (0, 1):
        start, *rest = (
            line.replace(f"0x7f{rank:02x}0", f"0x8f{rank:02x}0") for line in
            comm(rank, nodes=2, host="h0", comm_id="0xcc", channels=2)
        )  # fmt: skip
        lines += [start, searched(1, rank, "h0"), *rest]
    assert not findings("channel-collapse", build(text(lines)))


@pytest.mark.parametrize(
    ("rings", "kind", "fires"), [(2, "NVL", True), (3, "NVL", False), (2, "PHB", False)]
)
def test_rings_that_use_little_of_the_stated_nvlink(
    rings: int, kind: str, fires: bool, build: Build
) -> None:
    lines = [
        "=== System : maxBw 240.0 totalBw 240.0 ===",
        f"Pattern 4, crossNic 0, nChannels {rings}, bw 20.0/20.0, type {kind}/PIX, sameChannels 1",
    ]
    facts = build(text(ONE_NODE, [say(t, 0, "h0") for t in lines]))
    assert bool(findings("channel-collapse", facts)) is fires


# --- algorithms -------------------------------------------------------------------------------


def test_the_same_gpus_were_faster_with_another_algorithm(build: Build) -> None:
    (finding,) = findings(
        "unsuitable-algorithm", build(machine(24, 358, "Ring"), machine(24, 426, "NVLS"))
    )
    assert "358 GB/s with Ring and 426 with NVLS" in finding.summary


@pytest.mark.parametrize(
    "logs_of",
    [
        (machine(24, 384, "Ring"), machine(24, 426, "NVLS")),  # 9.9 %
        (machine(24, 300, "Ring"), machine(24, 426, "Ring")),  # the same algorithm
        (machine(2, 28, "Ring"), machine(24, 178, "NVLS")),  # channels explain it
        (machine(24, 358, "Ring"),),
    ],
)
def test_what_does_not_condemn_an_algorithm(logs_of: tuple[str, ...], build: Build) -> None:
    assert not findings("unsuitable-algorithm", build(*logs_of))


@pytest.mark.parametrize(("size", "fires"), [(4 << 20, True), ((4 << 20) - 1, False)])
def test_a_forced_ll_on_large_messages(size: int, fires: bool, build: Build) -> None:
    lines = [
        "NCCL_PROTO set by environment to LL.",
        f"AllReduce: {size} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..3}}",
    ]
    facts = build(text(ONE_NODE, [say(t, 0, "h0") for t in lines]))
    assert bool(findings("unsuitable-algorithm", facts)) is fires
    free = build(text(ONE_NODE, say(lines[1], 0, "h0")))
    assert not findings("unsuitable-algorithm", free)


# --- init and settings ------------------------------------------------------------------------


def timing(rank: int, size: int, wait: float) -> list[str]:
    line = (
        f"Init timings - ncclCommInitRank: rank {rank} nranks {size} total {wait + 1} (kernels "
        f"0.5, alloc 0.1, bootstrap {wait}, allgathers 0.1, topo 0.1, graphs 0.1, connections 0.1, "
        f"rest 0.0)"
    )
    return [*comm(rank, size), say(line, rank, "h0" if rank < size // 2 else "h1")]


@pytest.mark.parametrize(
    ("wait", "severity"), [(61.0, Severity.MINOR), (11.0, Severity.NOTE), (9.9, None)]
)
def test_the_late_rank_has_the_short_bootstrap(
    wait: float, severity: Severity | None, build: Build
) -> None:
    lines = [x for r in range(8) for x in timing(r, 8, 0.05 if r == 5 else wait)]
    found = findings("init-straggler", build(text(lines)))
    assert [f.severity for f in found] == ([severity] if severity else [])
    if found:
        assert "Rank 5 of a communicator of 8" in found[0].summary


def test_a_bootstrap_that_is_long_for_all_names_nobody(build: Build) -> None:
    lines = [x for r in range(8) for x in timing(r, 8, 60.0 + r)]
    assert not findings("init-straggler", build(text(lines)))


def started(rank: int, size: int, *, complete: bool = False) -> list[str]:
    lines = comm(rank, size)
    return lines if complete else lines[:1]


def test_ranks_that_never_began_while_the_others_wait(build: Build) -> None:
    lines = [x for r in range(8) if r != 6 for x in started(r, 8)]
    (finding,) = findings("init-straggler", build(text(lines)))
    assert "rank 6 of 8 never appear" in finding.summary
    assert finding.scope.ranks == ()  # absence names a candidate, not a culprit
    done = [x for r in range(8) if r != 6 for x in started(r, 8, complete=r == 0)]
    assert not findings("init-straggler", build(text(done)))


def test_versions_and_settings_that_differ(build: Build) -> None:
    env = "NCCL_ALGO set by environment to {}."
    lines = [
        *comm(0, version="2.20.5"), *comm(1, version="2.21.5"),
        say(env.format("Ring"), 0, "h0"), say(env.format("Tree"), 1, "h1"),
    ]  # fmt: skip
    found = findings("config-mismatch", build(text(lines)))
    assert [f.id for f in found] == ["config-mismatch/NCCL-version", "config-mismatch/NCCL_ALGO"]
    assert "2.20.5 in 1 and 2.21.5 in 1" in found[0].summary


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_TOPO_FILE"])
def test_what_may_differ_between_hosts(name: str, build: Build) -> None:
    lines = [say(f"{name} set by environment to e{r}.", r, f"h{r}") for r in range(2)]
    assert not findings("config-mismatch", build(text(PAIR, lines)))


def test_a_rank_that_does_not_mention_a_setting_does_not_lack_it(build: Build) -> None:
    line = say("NCCL_ALGO set by environment to Ring.", 0, "h0")
    assert not findings("config-mismatch", build(text(PAIR, line)))


# --- pairs ------------------------------------------------------------------------------------


def pair(a: str, b: str, speed: float | None) -> str:
    rows = [f"1024 256 float sum -1 10 1 {speed} 0 10 1 {speed} 0",
            f"# Avg bus bandwidth : {speed}"] if speed else []  # fmt: skip
    return text(
        "# Collective test starting: sendrecv_perf",
        "# nThread 1 nGpus 1 minBytes 1024 maxBytes 1024 step: 2(factor) warmup iters: 5",
        f"#  Rank  0 Group  0 Pid   10 on   {a} device  0 [0000:17:00] NVIDIA A100",
        f"#  Rank  1 Group  0 Pid   10 on   {b} device  0 [0000:17:00] NVIDIA A100",
        "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong",
        rows,
    )


HOSTS = ("a", "b", "c", "d")
PAIRS = [(x, y) for i, x in enumerate(HOSTS) for y in HOSTS[i + 1 :]]


@pytest.mark.parametrize(("speed", "fires"), [(10.7, True), (10.9, False), (None, True)])
def test_one_host_in_all_bad_pairs(speed: float | None, fires: bool, build: Build) -> None:
    facts = build(*(pair(x, y, speed if "c" in (x, y) else 13.5) for x, y in PAIRS))
    found = findings("bad-node", facts)
    assert [f.scope.hosts for f in found] == ([("c",)] if fires else [])


def test_one_bad_pair_names_nobody(build: Build) -> None:
    facts = build(*(pair(x, y, None if (x, y) == ("b", "c") else 13.5) for x, y in PAIRS))
    assert not findings("bad-node", facts)


def test_a_single_pair_is_not_enough_to_look(build: Build) -> None:
    outcome = rule("bad-node").run(build(pair("a", "b", None)))
    assert not outcome.findings
    assert "4 hosts" in outcome.not_checked[0].needs


# --- groups -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "nodes", "fires"), [("tp", 2, True), ("tp", 1, False), ("dp", 2, False)]
)
def test_a_tensor_group_over_machines_by_nccls_own_count(
    kind: str, nodes: int, fires: bool, build: Build
) -> None:
    ranks = [*comm(0, nodes=nodes, host="pod-0"), *comm(1, nodes=nodes, host="pod-1")]
    group = {"name": "tp", "kind": kind, "comm_hash": "0xAA", "ranks": [0, 1], "group_id": "g"}
    facts = build(text(ranks), groups=[group])
    assert bool(findings("tensor-group-spans-hosts", facts)) is fires


# --- hangs ------------------------------------------------------------------------------------


def timeout(rank: int, sequence: int = 9, op: str = "ALLREDUCE", numel: int = 10) -> str:
    return (
        f"[rank{rank}]:[E1121 04:26:02.1 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum={sequence}, OpType={op}, NumelIn={numel}, "
        f"NumelOut={numel}, Timeout(ms)=600000) ran for 600060 milliseconds before timing out."
    )


def progress(rank: int, enqueued: int, completed: int) -> str:
    return (
        f"[rank{rank}]:[E1121 04:26:02.2 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) "
        f"Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: "
        f"{enqueued}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
    )


def test_the_rank_behind_did_not_join(build: Build) -> None:
    facts = build(text(timeout(0), timeout(2), progress(0, 9, 8), progress(1, 8, 2**61)))
    (finding,) = findings("collective-hang", facts)
    assert finding.summary.startswith("Rank 1 did not join: ranks 0,2 wait")
    assert finding.severity is Severity.CRITICAL
    assert finding.scope.ranks == (1,)


def test_a_rank_that_wrote_nothing_is_a_candidate_not_a_culprit(build: Build) -> None:
    facts = build(text([timeout(r) for r in (0, 1, 3)]))
    (finding,) = findings("collective-hang", facts)
    assert finding.candidates.ranks == (2,)
    assert finding.scope.ranks == ()


@pytest.mark.parametrize(
    ("calls", "silence_s", "is_named"),
    [
        ([9, 9, 8, 9], 30, True),
        ([9, 9, 8, 9], 29, False),  # its trace may have been cut
        ([9, 8, 8, 9], 30, False),
        ([9, 9, None, 9], 30, False),
    ],
)
def test_silence_names_a_rank_only_where_its_trace_agrees(
    calls: list[int | None], silence_s: int, is_named: bool, build: Build
) -> None:
    lines = [timeout(r).replace("[Rank", "[PG ID 0 PG GUID 0(default_pg) Rank") for r in (0, 1, 3)]
    groups = [{"rank": r, "group_id": "w", "name": "0", "ranks": [0, 1, 2, 3]} for r in range(4)]
    rows = [{"rank": r, "calls_count": n} for r, n in enumerate(calls) if n is not None]
    silence = {"silence_ns": silence_s * 10**9, "longest_gap_ns": 10**9, "last_call": 7}
    last = [r | silence for r in last_calls(9)]
    facts = with_traces(
        build(text(lines), groups=groups), enqueued_calls=rows, last_calls=last
    )  # fmt: skip
    (finding,) = findings("collective-hang", facts)
    assert finding.scope.ranks == ((2,) if is_named else ())
    assert finding.candidates.ranks == (() if is_named else (2,))
    assert finding.confidence.level == ("likely" if is_named else "possible")


def test_all_joined_is_the_network_or_a_gpu(build: Build) -> None:
    world = [x for r in range(4) for x in comm(r, 4)]
    facts = build(text(world, [timeout(r) for r in range(4)]))
    (finding,) = findings("collective-hang", facts)
    assert "All 4 members joined" in finding.summary
    assert finding.owner == "network"


def test_without_the_size_of_the_group_all_is_not_claimed(build: Build) -> None:
    (finding,) = findings("collective-hang", build(text(timeout(0), timeout(1))))
    assert "cannot be told" in finding.summary


@pytest.mark.parametrize("change", [{"op": "_ALLGATHER_BASE"}, {"numel": 11}])
def test_members_that_do_different_things_mismatch(change: dict[str, Any], build: Build) -> None:
    facts = build(text(timeout(0), timeout(1, **change)))
    (finding,) = findings("collective-mismatch", facts)
    assert finding.scope.ranks == (0, 1)


def test_the_member_that_does_otherwise_than_most_is_named(build: Build) -> None:
    facts = build(text([timeout(r, numel=11 if r == 2 else 10) for r in range(4)]))
    (finding,) = findings("collective-mismatch", facts)
    assert finding.scope.ranks == (2,)
    assert finding.severity is Severity.CRITICAL  # the job stands still
    assert not findings("collective-hang", facts)
    even = build(text([timeout(r, numel=10 + r // 2) for r in range(4)]))
    assert findings("collective-mismatch", even)[0].scope.ranks == (0, 1, 2, 3)


def test_an_all_to_all_may_have_different_sizes(build: Build) -> None:
    lines = [timeout(r, op="ALLTOALL_BASE", numel=10 + r) for r in range(2)]
    assert not findings("collective-mismatch", build(text(lines)))


def flight(rank: int, *entries: tuple[int, str, str]) -> tuple[str, str]:
    value = {
        "version": "2.5",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
        "pg_status": {},
        "entries": [
            {
                "process_group": ["0", "default_pg"], "collective_seq_id": sequence,
                "profiling_name": f"nccl:{op}", "state": state, "input_sizes": [[4]],
                "input_dtypes": ["Float"], "is_p2p": False, "retired": state == "completed",
                "time_created_ns": 1, "frames": [],
            }
            for sequence, op, state in entries
        ],
    }  # fmt: skip
    return f"nccl_trace_rank_{rank}.json", json.dumps(value)


DONE = (7, "all_reduce", "completed")
STUCK = (8, "all_reduce", "started")


def test_flight_recorder_names_who_did_not_join(build: Build) -> None:
    facts = build(flight(0, DONE, STUCK), flight(1, DONE), flight(2, DONE, STUCK))
    (finding,) = findings("collective-hang", facts)
    assert finding.summary.startswith("Rank 1 did not join: ranks 0,2 wait in the all_reduce")


def test_a_ring_buffer_that_begins_later_is_unknown_not_missing(build: Build) -> None:
    ended = (9, "all_reduce", "completed")
    before = (8, "all_reduce", "completed")
    whole = (DONE, before, ended)
    facts = build(flight(0, *whole), flight(1, ended), flight(2, *whole))
    assert not findings("collective-hang", facts)


def test_flight_recorder_of_a_job_that_ended_well(build: Build) -> None:
    assert not findings("collective-hang", build(*(flight(r, DONE) for r in range(3))))


def test_flight_recorder_sees_a_mismatch(build: Build) -> None:
    facts = build(flight(0, DONE, STUCK), flight(1, DONE, (8, "all_gather", "started")),
                  flight(2, DONE, STUCK))  # fmt: skip
    (finding,) = findings("collective-mismatch", facts)
    assert "operations differ" in finding.summary
    assert not findings("collective-hang", facts)


# --- broken links -----------------------------------------------------------------------------


def failed(rank: int, host: str, peer: str, status: int) -> str:
    return (
        f"{host}:{100 + rank}:1 [0] net_ib.cc:1 NCCL WARN NET/IB: Got completion from peer "
        f"10.0.0.{peer}<40> with status={status} opcode=1 len=0 vendor err 129 (Send) hca mlx5_0"
    )


OOB = [say(f"Bootstrap: Using eth0:10.0.0.{r}<0>", r, f"h{r}") for r in range(4)]


def test_the_host_in_most_failing_pairs_is_named(build: Build) -> None:
    lines = [failed(0, "h0", "3", 12), failed(1, "h1", "3", 12), failed(2, "h2", "3", 12),
             failed(3, "h3", "0", 5)]  # fmt: skip
    (finding,) = findings("link-degraded", build(text(OOB, lines)))
    assert finding.scope.hosts == ("h3",)
    assert "retries exceeded" in finding.summary
    assert finding.severity is Severity.CRITICAL


def test_one_pair_shares_the_blame(build: Build) -> None:
    lines = [failed(0, "h0", "1", 12), failed(1, "h1", "0", 12)]
    (finding,) = findings("link-degraded", build(text(OOB, lines)))
    assert finding.scope.hosts == ("h0", "h1")
    assert finding.scope.devices == ()


def test_flushed_completions_are_no_cause(build: Build) -> None:
    assert not findings("link-degraded", build(text(OOB, failed(0, "h0", "1", 5))))


# --- without inputs ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", NCCL_RULES)
def test_without_logs_each_rule_says_what_it_needs(name: str) -> None:
    outcome = rule(name).run(Facts())
    assert outcome != RuleOutcome()
    assert outcome.not_checked[0].needs


def test_a_majority_is_more_than_half() -> None:
    assert majority([1, 1, 2]) == 1
    assert majority([1, 2]) is None
    assert majority([]) is None


# --- logs and traces of the same group --------------------------------------------------------


def with_traces(facts: Facts, **rows: list[dict[str, Any]]) -> Facts:
    """The facts of logs, and rows that traces gave."""
    return replace(facts, rows={**facts.rows, **rows}, job=JobFacts(hosts=BY_RANK))


BY_RANK = {0: "h0", 1: "h1", 2: "h2", 3: "h3"}
BEHIND = (timeout(0), timeout(2), timeout(3), progress(0, 9, 8), progress(1, 8, 7))


def last_calls(behind: int | None, group: str = "g", ranks: Sequence[int] = range(4)) -> list[Any]:
    return [
        {
            "group_id": group, "rank": r, "capture_id": 0, "op": "all_reduce",
            "last_call": 8 if r == behind else 9, "usual_dur_ns": 1e6, "attempt": 1,
            "last_dur_ns": 60_000_000_000 if behind is None else 1_000_000,
            "silence_ns": 60_000_000_000, "longest_gap_ns": 10_000_000, "source_id": r, "place": r,
        }
        for r in ranks
    ]  # fmt: skip


def test_watchdog_and_traces_that_agree_are_one_finding(build: Build) -> None:
    facts = with_traces(build(text(*BEHIND)), last_calls=last_calls(1))
    (finding,) = findings("collective-hang", facts)
    assert finding.summary.startswith("Rank 1 did not join: ranks 0,2-3 wait")
    assert "The traces agree: rank 1" in finding.summary
    assert finding.confidence.level == "likely"
    assert {e.query for e in finding.evidence} == {"watchdog", "last_calls"}
    assert not finding.counter_evidence


def test_traces_that_name_another_rank_stand_against_the_watchdog(build: Build) -> None:
    facts = with_traces(build(text(*BEHIND)), last_calls=last_calls(3))
    (finding,) = findings("collective-hang", facts)
    assert finding.scope.ranks == (1,)
    assert finding.confidence.level == "possible"
    assert finding.counter_evidence[0].query == "last_calls"


def test_a_silent_rank_that_the_traces_show_behind_is_named(build: Build) -> None:
    facts = with_traces(build(text([timeout(r) for r in (0, 1, 3)])), last_calls=last_calls(2))
    (finding,) = findings("collective-hang", facts)
    assert finding.scope.ranks == (2,)
    assert finding.candidates.ranks == ()
    assert finding.confidence.level == "likely"


def test_traces_of_another_group_stay_a_finding_of_their_own(build: Build) -> None:
    dumps = build(flight(0, DONE, STUCK), flight(1, DONE), flight(2, DONE, STUCK))
    facts = with_traces(dumps, last_calls=last_calls(3, "tp", [2, 3]))
    first, second = findings("collective-hang", facts)
    assert first.scope.ranks == (1,)
    assert second.scope.ranks == (3,)


@pytest.mark.parametrize("behind", [None, 3])
def test_a_call_that_members_disagree_on_is_no_hang_of_its_own(
    behind: int | None, build: Build
) -> None:
    """All asked for it and it never ends: their sizes differ, so no link or GPU is suspected. A
    member that came less far did stay away."""
    lines = [timeout(r, numel=11 if r == 2 else 10) for r in range(4)]
    facts = with_traces(build(text(lines)), last_calls=last_calls(behind))
    (mismatch,) = findings("collective-mismatch", facts)
    assert mismatch.scope.ranks == (2,)
    assert [f.scope.ranks for f in findings("collective-hang", facts)] == (
        [] if behind is None else [(3,)]
    )
    agreeing = with_traces(Facts(), last_calls=last_calls(None))
    assert findings("collective-hang", agreeing)


def test_traces_cannot_tell_a_rank_whom_the_log_shows_waiting(build: Build) -> None:
    facts = with_traces(build(text(timeout(0), timeout(1))), last_calls=last_calls(0))
    (finding,) = findings("collective-hang", facts)
    assert finding.scope.ranks == ()
    assert finding.counter_evidence


def test_ranks_of_a_group_without_a_name_are_not_the_jobs(build: Build) -> None:
    lines = [timeout(0), timeout(2), progress(1, 8, 7)]
    bare = [line.split("]:", 1)[1].split("] ", 1)[1] for line in lines[:2]]
    (finding,) = findings("collective-hang", build(text(bare)))
    assert finding.scope.ranks == ()
    assert finding.candidates.ranks == ()
    assert "does not name" in finding.confidence.basis


def coverage(ranks: Sequence[int], reason: str) -> list[dict[str, Any]]:
    row = {
        "group_id": "g", "method": "sequence", "is_trusted": False, "reason": reason,
        "calls_count": 3, "instances_count": 1, "ranks": list(ranks), "source_id": 0, "place": 1,
        "attempt": 1,
    }  # fmt: skip
    return [row, row | {"reason": "all members agree", "is_trusted": True, "calls_count": 90}]


@pytest.mark.parametrize(
    ("ranks", "reason", "count"),
    [
        ([0, 1, 2], "operations differ", 1),
        ([0, 1, 2], "sizes differ", 2),
        ([0, 1, 3], "operations differ", 2),
    ],
)
def test_a_mismatch_of_the_same_kind_and_group_is_one_finding(
    ranks: list[int], reason: str, count: int, build: Build
) -> None:
    dumps = build(flight(0, DONE, STUCK), flight(1, DONE, (8, "all_gather", "started")),
                  flight(2, DONE, STUCK))  # fmt: skip
    facts = with_traces(dumps, match_coverage=coverage(ranks, reason))
    found = findings("collective-mismatch", facts)
    assert len(found) == count
    assert "are at call 8" in found[0].summary
    assert (found[0].confidence.level == "likely") == (count == 1)


@pytest.mark.parametrize(("late", "count"), [(3, 1), (2, 2)])
def test_a_late_member_on_the_host_of_the_errors_is_one_finding(
    late: int, count: int, build: Build, make_job: Callable[..., Any]
) -> None:
    lines = [failed(r, f"h{r}", "3", 12) for r in range(3)]
    job = make_job(comm_ms=60).facts(hosts=BY_RANK)
    leaving = [
        {
            "group_id": "g", "rank": r, "op": "all_reduce", "message_bytes": 64 << 20,
            "calls_count": 40, "exit_p50_ns": 2e7 if r == late else -3e6, "attempt": 1,
            "exit_p10_ns": 1.9e7 if r == late else -4e6, "group_transfer_p50_ns": 8e7,
            "error_ns": 1_000_000,
        }
        for r in range(4)
    ]  # fmt: skip
    facts = build(text(OOB, lines))
    rows = {**job.rows, **facts.rows, "exit_lateness": leaving}
    found = findings("link-degraded", replace(job, rows=rows, sources=facts.sources))
    assert len(found) == count
    assert found[0].summary.startswith("h3 is in most")
    assert ("The traces agree" in found[0].summary) == (count == 1)
