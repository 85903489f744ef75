"""What tests of rules about NCCL share: lines of logs, and facts made of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import duckdb
import pytest
import topologies as topology
from msgspec.structs import replace
from source_tables import create_table

import nccl_logs as logs
from nccl_logs import info
from tracekit import catalog
from tracekit.findings import Finding
from tracekit.rules import rule
from tracekit.rules.base import Facts, JobFacts

QUERIES = (
    "nccl_comms", "nccl_topology", "nccl_signals", "nccl_bench", "nccl_choices", "nccl_nics",
    "nccl_rails", "nccl_groups", "watchdog", "flight_calls", "collective_checks", "host_topology",
)  # fmt: skip


Build = Callable[..., Facts]


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


SHM = "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct"


def gpu_path(kind: str) -> str:
    return (
        f"GPU/0-17000 :GPU/0-17000 (0/5000.0/LOC) GPU/0-18000 (1/240.0/{kind}) CPU/0-0 (1/24/PHB)"
    )


LIST = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"


def eight(devices: Sequence[int], ranks: int = 4) -> list[str]:
    """Ranks on each of two machines that send to the other, each over a device."""
    size = 2 * ranks
    lines = [line for r in range(size) for line in comm(r, size)]
    for rank in range(ranks):
        edge = f"Channel 00/0 : {rank}[0] -> {rank + ranks}[0] [send] via NET/IB/{devices[rank]}"
        lines.append(say(edge + "/GDRDMA", rank, "h0"))
    return lines


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


def timing(rank: int, size: int, wait: float) -> list[str]:
    line = (
        f"Init timings - ncclCommInitRank: rank {rank} nranks {size} total {wait + 1} (kernels "
        f"0.5, alloc 0.1, bootstrap {wait}, allgathers 0.1, topo 0.1, graphs 0.1, connections 0.1, "
        f"rest 0.0)"
    )
    return [*comm(rank, size), say(line, rank, "h0" if rank < size // 2 else "h1")]


def started(rank: int, size: int, *, complete: bool = False) -> list[str]:
    lines = comm(rank, size)
    return lines if complete else lines[:1]


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


def failed(rank: int, host: str, peer: str, status: int) -> str:
    return (
        f"{host}:{100 + rank}:1 [0] net_ib.cc:1 NCCL WARN NET/IB: Got completion from peer "
        f"10.0.0.{peer}<40> with status={status} opcode=1 len=0 vendor err 129 (Send) hca mlx5_0"
    )


OOB = [say(f"Bootstrap: Using eth0:10.0.0.{r}<0>", r, f"h{r}") for r in range(4)]


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


def coverage(ranks: Sequence[int], reason: str) -> list[dict[str, Any]]:
    row = {
        "group_id": "g", "method": "sequence", "is_trusted": False, "reason": reason,
        "calls_count": 3, "instances_count": 1, "ranks": list(ranks), "source_id": 0, "place": 1,
        "attempt": 1,
    }  # fmt: skip
    return [row, row | {"reason": "all members agree", "is_trusted": True, "calls_count": 90}]


@pytest.fixture(scope="session")
def known_facts() -> dict[str, Facts]:
    """Facts of logs that a test has built."""
    return {}


@pytest.fixture
def build(con: duckdb.DuckDBPyConnection, known_facts: dict[str, Facts]) -> Build:
    """Facts of logs: each text (or name and text) is one file."""
    filled_before: set[str] = set()

    def built(*texts: str | tuple[str, str], groups: Sequence[dict[str, Any]] = ()) -> Facts:
        key = repr((texts, groups))
        if key not in known_facts:
            known_facts[key] = read(*texts, groups=groups)
        return known_facts[key]

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
            create_table(con, table, tables.get(table, ()))
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
