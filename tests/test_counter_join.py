"""Counters joined to the job: ports, GPUs, times that need a word, steps, slow steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import source_tables
from numpy.typing import NDArray

from tracekit.correction import Correction, corrected
from tracekit.derive.correlation import Series, at_steps, counter_tables
from tracekit.derive.readings import Clocks
from tracekit.derive.run import derive
from tracekit.job import JobDescription, parse_job
from tracekit.schema import table

S = 10**9
Floats = NDArray[np.float64]
Rows = list[dict[str, Any]]


def database(**tables: Rows) -> duckdb.DuckDBPyConnection:
    return source_tables.database(tables)


def trace(source_id: int, rank: int, host: str, path: str | None = None) -> dict[str, Any]:
    return {
        "source_id": source_id,
        "path": path or f"/d/rank{rank}.json",
        "kind": "kineto",
        "status": "ok",
        "time_basis": "epoch",
        "window_start_ns": 100 * S,
        "window_end_ns": 200 * S,
        "file_rank": rank,
        "host_name": host,
    }


def counters(source_id: int, path: str = "/d/switch.json", **facts: Any) -> dict[str, Any]:
    row = {
        "source_id": source_id,
        "path": path,
        "kind": "linux_net",
        "status": "ok",
        "time_basis": "epoch",
        "window_start_ns": 90 * S,
        "window_end_ns": 210 * S,
    }
    return row | facts


def run(
    con: duckdb.DuckDBPyConnection, job: str = "", notes: list[str] | None = None
) -> dict[str, Rows]:
    described = parse_job(job.encode(), "/d/job.toml") if job else JobDescription()
    found = derive(con, described, notes=notes)
    return {name: rows.to_pylist() for name, rows in found.items()}


def pick(rows: Rows, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(r[c] for c in columns) for r in rows]


# --- ports ----------------------------------------------------------------------------------------

TRACES = [trace(0, 0, "n0"), trace(1, 1, "n1"), trace(2, 2, "n1")]


def sample(source_id: int, node: str | None, port: str) -> dict[str, Any]:
    return {"source_id": source_id, "node": node, "port": port, "counter": "tx_bytes"}


def test_a_port_leads_where_the_job_description_says_before_what_files_say() -> None:
    con = database(
        source=[*TRACES, counters(5)],
        net_sample=[sample(5, "sw", "p0"), sample(5, "sw", "p1"), sample(5, "sw", "p2")],
        link=[
            {"source_id": 5, "node": "sw", "port": "p0", "peer_host": "N1.cluster"},
            {"source_id": 5, "node": "sw", "port": "p1", "peer_host": "n1", "link_source": "log"},
        ],
    )
    job = '[[port]]\nnode = "SW"\nport = "p0"\nhost = "n0"\n'
    assert pick(run(con, job)["port"], "port", "host", "host_source", "rank", "ranks") == [
        ("p0", "n0", "job_toml", 0, [0]),
        ("p1", "n1", "log", None, [1, 2]),  # two ranks share the host: neither is guessed
        ("p2", None, None, None, None),
    ]


def test_a_host_s_own_nic_is_its_own_and_its_tx_leaves_the_host() -> None:
    con = database(
        source=[*TRACES, counters(5, host_name="n0")],
        net_sample=[sample(5, None, "mlx5_0"), sample(5, "n1.cluster", "eth0")],
    )
    assert pick(run(con)["port"], "node", "port", "host", "rank", "is_on_host") == [
        ("n0", "mlx5_0", "n0", 0, True),
        ("n1.cluster", "eth0", "n1", None, True),
    ]


def test_a_neighbour_is_a_host_only_where_something_else_says_so() -> None:
    """What a host hears is its leaf, and what a leaf hears at an uplink is its spine."""

    def neighbour(node: str, port: str, peer: str) -> dict[str, Any]:
        named = {"source_id": 5, "node": node, "port": port, "peer_host": peer}
        return named | {"is_peer_host": False}

    ends = [("leaf", "p0", "n0"), ("leaf", "p1", "spine"), ("n1", "eth0", "leaf"), ("x", "p", "g")]
    tables = {
        "net_sample": [sample(5, node, port) for node, port, _ in ends],
        "link": [neighbour(*end) for end in ends],
    }

    def found(*sources: dict[str, Any], **more: Rows) -> list[tuple[Any, ...]]:
        rows = run(database(source=list(sources), **tables, **more))["port"]
        return pick(rows, "node", "port", "host", "is_on_host")

    assert found(*TRACES, counters(5)) == [
        ("leaf", "p0", "n0", False),
        ("leaf", "p1", None, None),
        ("n1", "eth0", "n1", True),  # the job's own host, not what it hears
        ("x", "p", None, None),
    ]
    sampled = gpu_sample(6, gpu="0")
    assert found(counters(5), counters(6, host_name="G.cluster"), gpu_sample=[sampled]) == [
        ("leaf", "p0", None, None),
        ("leaf", "p1", None, None),
        ("n1", "eth0", None, None),
        ("x", "p", "g", False),
    ]


def test_ports_without_a_node_are_found_by_name_if_that_is_clear() -> None:
    con = database(source=[*TRACES, counters(5)], net_sample=[sample(5, None, "p0")])
    one = '[[port]]\nnode = "sw"\nport = "p0"\nhost = "n0"\n'
    two = one + '[[port]]\nnode = "sx"\nport = "p0"\nhost = "n1"\n'
    assert pick(run(con, one)["port"], "host") == [("n0",)]
    assert pick(run(con, two)["port"], "host") == [(None,)]
    own = one.replace('"sw"', '"n0"')
    assert pick(run(con, one)["port"], "is_on_host") == [(False,)]
    assert pick(run(con, own)["port"], "host", "is_on_host") == [("n0", True)]


def test_a_port_that_is_said_to_lead_to_two_hosts_leads_nowhere() -> None:
    con = database(
        source=[*TRACES, counters(5)],
        net_sample=[sample(5, "sw", "p0")],
        link=[
            {"source_id": 5, "node": "sw", "port": "p0", "peer_host": "n0"},
            {"source_id": 5, "node": "sw", "port": "p0", "peer_host": "n1"},
        ],
    )
    assert pick(run(con)["port"], "host") == [(None,)]


@pytest.mark.parametrize(
    ("paths", "node_source", "named", "host"),
    [
        (["/d/leaf01-of-x.txt"], "name", "leaf01-of-x", "n0"),
        (["/d/Leaf01-of-X/ports.json"], "name", "leaf01-of-x", "n0"),
        (["/d/leaf01-of-x.txt"], "name", "leaf01", "n0"),
        (["/d/leaf01-of-x.txt"], "name", "leaf01-of-y", None),  # another switch
        (["/d/leaf01-of-xy.txt"], "name", "leaf01-of-x", None),
        (["/d/leaf01-of-x.txt"], "file", "leaf01-of-x", None),  # the file itself says leaf01
        (["/d/leaf01-of-x.txt", "/d/leaf01.txt"], "name", "leaf01-of-x", None),  # two switches
    ],
)
def test_a_node_of_the_description_may_be_more_of_a_file_s_name_than_was_read_of_it(
    paths: list[str], node_source: str, named: str, host: str | None
) -> None:
    con = database(
        source=[*TRACES, *(counters(5 + n, path) for n, path in enumerate(paths))],
        net_sample=[
            sample(5 + n, "leaf01", "p0") | {"node_source": node_source} for n in range(len(paths))
        ],
    )
    job = f'[[port]]\nnode = "{named}"\nport = "p0"\nhost = "n0"\n'
    assert pick(run(con, job)["port"], "node", "host") == [("leaf01", host)]


def test_without_a_trace_ports_are_still_mapped_to_hosts() -> None:
    con = database(source=[counters(5)], net_sample=[sample(5, "sw", "p0")])
    job = '[[port]]\nnode = "sw"\nport = "p0"\nhost = "n0"\n'
    assert pick(run(con, job)["port"], "attempt", "host", "rank") == [(None, "n0", None)]


# --- GPUs -----------------------------------------------------------------------------------------


def gpu_sample(source_id: int, **names: Any) -> dict[str, Any]:
    return {"source_id": source_id, "counter": "power", "kind": "gauge"} | names


def test_names_of_one_gpu_are_joined_over_files_and_given_its_rank() -> None:
    con = database(
        source=[*TRACES, counters(5, "/d/dcgm.prom"), counters(6, "/d/dmesg", host_name="n1")],
        device=[
            {"source_id": 5, "node": "n1", "uuid": "GPU-a", "pci": "00000000:9b:00.0",
             "nvml_index": 5, "model": "H100"},
            {"source_id": 5, "node": "n1", "uuid": "GPU-b", "pci": "00000000:9c:00.0",
             "nvml_index": 6, "model": "H100"},
        ],
        gpu_sample=[
            gpu_sample(5, node="n1", device_id="GPU-a", nvml_index=5),
            gpu_sample(5, node="n1", device_id="GPU-b", nvml_index=6),
            gpu_sample(6, nvml_index=5),
        ],
        log_event=[{"source_id": 6, "device_id": "00000000:9b:00.0", "code": "xid-79"}],
        nccl_comm=[{"source_id": 1, "world_rank": 1, "pci": "00000000:9b:00.0"}],
    )  # fmt: skip
    rows = run(con)["gpu"]
    assert pick(rows, "host", "device_id", "nvml_index", "gpu_id", "rank", "rank_source") == [
        ("n1", None, 5, "GPU-a", 1, "log"),
        ("n1", "00000000:9b:00.0", None, "GPU-a", 1, "log"),
        ("n1", "GPU-a", 5, "GPU-a", 1, "log"),
        ("n1", "GPU-b", 6, "GPU-b", None, None),
    ]
    assert rows[0]["host_ranks"] == [1, 2]


def comm(rank: int, node: str, pci: str, size: int = 2, of: str = "world") -> dict[str, Any]:
    return {"source_id": 7, "node": node, "comm_hash": of, "group_rank": rank, "group_size": size,
            "pci": f"00000000:{pci}:00.0"}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "ranks"),
    [
        ([], [0, 1]),
        # A part of the same job, and the same communicator made twice.
        ([comm(0, "n0", "1a", 1, "own"), comm(0, "n0", "1a", 2, "b"), comm(1, "n1", "1a", 2, "b")],
         [0, 1]),
        # A member that no log shows: part of the job is missing, and the largest may be a part too.
        ([comm(0, "n0", "1a", of="other")], [None, None]),
        ([comm(0, "n0", "1b", 1, "own")], [None, None]),  # a GPU outside the largest
        ([comm(1, "n0", "1a", of="w2"), comm(0, "n1", "1a", of="w2")], [None, None]),
        ([{"source_id": 7, "group_rank": 0, "group_size": 1}], [None, None]),
    ],
)  # fmt: skip
def test_without_a_trace_the_communicator_of_all_gpus_names_their_ranks(
    more: list[dict[str, Any]], ranks: list[int | None]
) -> None:
    con = database(
        source=[counters(5), {**counters(7, "/d/nccl.log"), "kind": "nccl"}],
        device=[
            {"source_id": 5, "node": n, "uuid": f"GPU-{n}", "pci": "00000000:1a:00.0"}
            for n in ("n0", "n1")
        ],
        gpu_sample=[gpu_sample(5, node=n, device_id=f"GPU-{n}") for n in ("n0", "n1")],
        nccl_comm=[comm(0, "n0", "1a"), comm(1, "n1", "1a"), *more],
    )
    assert pick(run(con)["gpu"], "gpu_id", "rank", "rank_source") == [
        ("GPU-n0", ranks[0], ranks[0] if ranks[0] is None else "log"),
        ("GPU-n1", ranks[1], ranks[1] if ranks[1] is None else "log"),
    ]


def test_the_job_description_may_name_a_rank_s_gpu() -> None:
    con = database(
        source=[*TRACES, counters(5)],
        gpu_sample=[gpu_sample(5, node="n0", device_id="GPU-a")],
    )
    job = '[[rank]]\nrank = 0\ndevice = "GPU-a"\n'
    assert pick(run(con, job)["gpu"], "rank", "rank_source") == [(0, "job_toml")]


def test_an_index_is_never_taken_for_a_local_rank_and_hosts_keep_their_own() -> None:
    con = database(
        source=[*TRACES, counters(5)],
        gpu_sample=[gpu_sample(5, node="n0", nvml_index=0), gpu_sample(5, node="n1", nvml_index=0)],
    )
    assert pick(run(con)["gpu"], "host", "gpu_id", "rank") == [
        ("n0", "n0 GPU 0", None),
        ("n1", "n1 GPU 0", None),
    ]


def test_files_of_unknown_machines_share_no_gpu() -> None:
    con = database(
        source=[counters(5, "/d/a.csv"), counters(6, "/d/b.txt")],
        device=[{"source_id": 6, "uuid": "GPU-b", "nvml_index": 1}],
        gpu_sample=[gpu_sample(5, nvml_index=1), gpu_sample(6, device_id="GPU-b", nvml_index=1)],
    )
    assert pick(run(con)["gpu"], "device_id", "gpu_id") == [(None, "GPU 1"), ("GPU-b", "GPU-b")]


def test_gpus_of_files_without_a_host_are_pooled_by_nothing_but_a_uuid() -> None:
    con = database(
        source=[counters(n, f"/d/node{n}.csv") for n in (5, 6, 7)],
        device=[
            {"source_id": 5, "uuid": "GPU-a", "nvml_index": 1},
            {"source_id": 7, "uuid": "GPU-a", "nvml_index": 2},
        ],
        gpu_sample=[
            *(gpu_sample(n, nvml_index=0) for n in (5, 6)),
            *(gpu_sample(n, device_id="00000000:1b:00.0") for n in (5, 6)),
            gpu_sample(5, nvml_index=1),
            gpu_sample(7, nvml_index=2),
            gpu_sample(6, device_id="GPU-b"),
            gpu_sample(7, device_id="GPU-b"),
        ],
    )
    rows = run(con)["gpu"]
    assert sorted(pick(rows, "own_source_id", "device_id", "nvml_index", "gpu_id"), key=str) == [
        (5, "00000000:1b:00.0", None, "00000000:1b:00.0 of /d/node5.csv"),
        (5, None, 0, "GPU 0 of /d/node5.csv"),
        (5, None, 1, "GPU-a"),
        (6, "00000000:1b:00.0", None, "00000000:1b:00.0 of /d/node6.csv"),
        (6, "GPU-b", None, "GPU-b"),
        (6, None, 0, "GPU 0 of /d/node6.csv"),
        (7, "GPU-b", None, "GPU-b"),
        (7, None, 2, "GPU-a"),
    ]


def test_an_address_is_one_gpu_in_files_that_may_be_of_one_machine() -> None:
    pci = "00000000:1b:00.0"
    first = {"window_start_ns": 90 * S, "window_end_ns": 140 * S}
    second = {"window_start_ns": 140 * S, "window_end_ns": 200 * S}
    con = database(
        source=[
            counters(5, "/d/morning.csv", **first),
            counters(6, "/d/noon.csv", **second),
            counters(7, "/d/dmesg.txt"),
        ],
        gpu_sample=[gpu_sample(5, device_id=pci), gpu_sample(6, device_id=pci)],
        log_event=[{"source_id": 7, "place": 1, "device_id": pci, "code": "xid-79"}],
    )
    assert pick(run(con)["gpu"], "own_source_id", "gpu_id") == [(5, pci), (6, pci), (7, pci)]


def test_gpus_without_a_name_are_their_file_s_even_on_one_host() -> None:
    con = database(
        source=[counters(n, f"/d/{n}.csv", host_name="n1") for n in (5, 6)],
        gpu_sample=[gpu_sample(5), gpu_sample(6), gpu_sample(6, nvml_index=0)],
    )
    rows = run(con)["gpu"]
    assert sorted(pick(rows, "own_source_id", "nvml_index", "gpu_id"), key=str) == [
        (5, None, "n1 GPU ? of /d/5.csv"),
        (6, None, "n1 GPU ? of /d/6.csv"),
        (None, 0, "n1 GPU 0"),
    ]


def test_a_file_of_one_gpu_may_name_its_rank() -> None:
    con = database(
        source=[counters(n, f"/d/rank{n}.csv") for n in (1, 2, 3)],
        gpu_sample=[gpu_sample(1), gpu_sample(2, device_id="GPU-a"), gpu_sample(3, nvml_index=0)],
    )
    rows = run(con)["gpu"]
    assert sorted(pick(rows, "own_source_id", "rank", "rank_source"), key=str) == [
        (1, 1, "name"),
        (2, None, None),
        (3, None, None),  # of a whole machine, as far as anybody knows
    ]
    con = database(
        source=[*TRACES, counters(5, "/d/rank7.csv"), counters(6, "/d/rank1.csv")],
        gpu_sample=[gpu_sample(5), gpu_sample(6)],
    )
    ranks = pick(run(con)["gpu"], "rank", "rank_source")
    assert sorted(ranks, key=str) == [(1, "name"), (None, None)]  # the job has no rank 7


def test_a_part_of_a_gpu_known_by_index_alone_is_of_that_gpu() -> None:
    con = database(
        source=[counters(5, "/d/a.prom")],
        gpu_sample=[gpu_sample(5, nvml_index=0), gpu_sample(5, nvml_index=0, device_id="/3")],
    )
    assert {r["gpu_id"] for r in run(con)["gpu"]} == {"GPU 0"}


BEFORE = {"window_start_ns": 90 * S, "window_end_ns": 90 * S}
AFTER = {"window_start_ns": 210 * S, "window_end_ns": 210 * S}


def before_and_after(
    first: str,
    second: str,
    devices: Sequence[dict[str, Any]] = (),
    later: Mapping[str, int] = AFTER,
) -> list[str]:
    """The GPUs of index 0 in two files."""
    con = database(
        source=[counters(5, first, **BEFORE), counters(6, second, **later)],
        device=list(devices),
        gpu_sample=[gpu_sample(5, nvml_index=0), gpu_sample(6, nvml_index=0)],
    )
    return sorted({str(row["gpu_id"]) for row in run(con)["gpu"]})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("/d/before/smi.txt", "/d/after/smi.txt"),
        ("/d/smi-Before.txt", "/d/smi-After.txt"),
        ("/d/pre/a.csv", "/d/post/a.csv"),
    ],
)
def test_what_was_read_before_and_after_is_of_one_machine(first: str, second: str) -> None:
    assert before_and_after(first, second) == ["GPU 0"]


def test_files_before_and_after_are_two_machines_where_something_says_so() -> None:
    first, second = "/d/before/smi.txt", "/d/after/smi.txt"
    two = ["GPU 0 of /d/after/smi.txt", "GPU 0 of /d/before/smi.txt"]
    assert before_and_after(first, "/d/after/other.txt") != ["GPU 0"]
    assert before_and_after("/d/beforehand/smi.txt", "/d/afterhand/smi.txt") != ["GPU 0"]
    assert before_and_after(second, first) == two  # the other way round
    assert before_and_after(first, second, later={**AFTER, "window_start_ns": 80 * S}) == two
    models = [{"source_id": n, "nvml_index": 0, "model": m} for n, m in ((5, "H100"), (6, "A100"))]
    assert before_and_after(first, second, models) == two
    same = [{"source_id": n, "nvml_index": 0, "model": "H100"} for n in (5, 6)]
    assert before_and_after(first, second, same) == ["GPU 0"]


# --- times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "offset_s"), [("+02:00", -7200), ("-05:30", 19800), ("Europe/Berlin", -7200)]
)
def test_local_times_are_placed_by_their_zone(zone: str, offset_s: int) -> None:
    summer = 1_784_602_867 * S
    con = database(
        source=[
            counters(5, "/d/smi.csv", time_basis="local", window_start_ns=summer,
                     window_end_ns=summer + S, host_name="n0"),
        ]
    )  # fmt: skip
    notes: list[str] = []
    job = f'[[source]]\npath = "smi.csv"\ntimezone = "{zone}"\n'
    found = run(con, job, notes)
    assert pick(found["source_context"], "offset_ns") == [(offset_s * S,)]
    assert pick(found["clock"], "basis") == [("epoch",)]
    assert not notes


@pytest.mark.parametrize(
    ("traces", "beside"),
    [
        ([], "set beside each other as if all were of one zone"),
        (TRACES, "nothing of it is set beside the job"),
    ],
)
def test_local_times_of_several_files_are_of_one_zone_where_there_is_no_trace(
    traces: list[dict[str, Any]], beside: str
) -> None:
    files = [counters(n, f"/d/smi{n}.csv", time_basis="local") for n in (5, 6)]
    notes: list[str] = []
    run(database(source=[*traces, *files]), notes=notes)
    told = "/d/smi5.csv and 1 more have local times without a zone: "
    assert [note.startswith(told + beside) for note in notes if "zone" in note] == [True]


def test_without_a_zone_local_times_stand_beside_nothing_and_the_report_says_so() -> None:
    con = database(source=[counters(5, "/d/smi.csv", time_basis="local")])
    notes: list[str] = []
    found = run(con, notes=notes)
    assert pick(found["clock"], "basis") == [("local",)]
    assert notes == [
        "/d/smi.csv has local times without a zone: nothing of it is set beside the job; "
        'say whose in job.toml beside it: [[source]] path = "*" and timezone = "UTC", or as '
        '"Europe/Berlin"'
    ]


def test_one_zone_of_all_files_as_the_report_says_it() -> None:
    con = database(
        source=[counters(n, f"/d/{n}.csv", time_basis="local") for n in (5, 6)]
    )  # fmt: skip
    notes: list[str] = []
    found = run(con, '[[source]]\npath = "*"\ntimezone = "UTC"\n', notes)
    assert pick(found["clock"], "basis") == [("epoch",), ("epoch",)]
    assert notes == []


def test_rounds_become_times_by_start_and_interval() -> None:
    con = database(
        source=[counters(5, "/d/dmon.txt", time_basis="ticks", window_start_ns=0,
                         window_end_ns=9)]
    )  # fmt: skip
    job = '[[source]]\npath = "dmon.txt"\nstart = 2026-07-21T03:01:07Z\ninterval = 0.5\n'
    (row,) = run(con, job)["source_context"]
    start = 1_784_602_867 * S
    for tick in (0, 9):
        correction = Correction(*(row[c] for c in Correction._fields))
        (moved,) = corrected(np.array([tick]), np.array([5]), {5: correction})
        assert moved == start + tick * S // 2
    assert pick(run(con)["clock"], "basis") == [("ticks",)]


@pytest.mark.parametrize("first", [0, 60 * S])
def test_times_from_a_beginning_are_placed_by_the_start_of_their_file(first: int) -> None:
    con = database(
        source=[counters(5, "/d/x.csv", time_basis="elapsed", window_start_ns=first,
                         window_end_ns=first + 9 * S)]
    )  # fmt: skip
    job = '[[source]]\npath = "x.csv"\nstart = 2026-07-21T03:01:07Z\n'
    (row,) = run(con, job)["source_context"]
    correction = Correction(*(row[c] for c in Correction._fields))
    (moved,) = corrected(np.array([first + S]), np.array([5]), {5: correction})
    assert moved == 1_784_602_868 * S
    notes: list[str] = []
    assert pick(run(con, notes=notes)["clock"], "basis") == [("elapsed",)]
    assert "counts time from a beginning that is not stated" in notes[0]
    assert "say start in job.toml" in notes[0]


# --- steps ----------------------------------------------------------------------------------------


def test_a_counter_is_read_off_at_step_boundaries_with_its_coverage() -> None:
    series = Series(
        "sw", "p", "tx_dropped_packets", "tx",
        times=np.array([0.0, 10.0, 20.0, 30.0, 40.0]),
        totals=np.array([0.0, 10.0, 10.0, 30.0, 30.0]),
        holes=np.array([0.0, 0.0, 1.0, 0.0, 0.0]),
        interval_ns=10.0,
    )  # fmt: skip
    growth, coverage = at_steps(series, np.array([-5.0, 5.0, 25.0]), np.array([5.0, 25.0, 45.0]))
    assert growth.tolist() == [5.0, 15.0, 10.0]
    # Before the first reading nothing is known, nor in the interval that a reset ends.
    assert coverage.tolist() == [0.5, 0.5, 0.75]


HOUR = 3600 * S


def steps_growth(rows: Rows, clocks: Clocks) -> list[list[float]]:
    """What each series grew by in three steps of 10 s, from 1,000 s on."""
    columns = {"node": "sw", "port": "p", "counter": "tx_dropped_packets", "kind": "cumulative"}
    con = database(net_sample=[columns | r for r in rows])
    steps = step_table(np.full(3, 10.0 * S))
    found = counter_tables(con, clocks, steps, [])["counter_step"]
    return [[r["growth"] for r in found[i : i + 3]] for i in range(0, len(found), 3)]


TWO = Clocks({}, {5: None, 6: None})


def test_two_files_of_one_port_an_hour_apart_are_one_series_once_their_clocks_are_right() -> None:
    # One drop a second, told by two collectors in turns of 5 s; the second is an hour ahead.
    rows: Rows = []
    for i, t in enumerate(range(995, 1036)):
        source_id = 5 + (t // 5) % 2
        ahead = HOUR if source_id == 6 else 0
        rows.append({"source_id": source_id, "place": i, "time_ns": t * S + ahead, "counted": t})
    clocks = Clocks({6: Correction(-HOUR)}, {5: None, 6: None}, {5: -1, 6: -1})
    assert steps_growth(rows, clocks) == [[10.0, 10.0, 10.0]]
    assert steps_growth(rows[::-1], clocks) == [[10.0, 10.0, 10.0]]


def test_two_collectors_whose_clocks_nobody_compared_make_no_resets() -> None:
    # Both read once a second; the second's clock is 2.5 s behind: in one series the counter would
    # fall at every other reading.
    rows: Rows = [
        {"source_id": s, "place": i, "time_ns": t * S - (s - 5) * 5 * S // 2, "counted": t}
        for s in (5, 6)
        for i, t in enumerate(range(990, 1040))
    ]
    assert steps_growth(rows, TWO) == [[10.0, 10.0, 10.0]]


def test_a_reading_is_compared_with_the_last_that_was_kept() -> None:
    # Two files read the same moments: the second copy of each moment is none.
    rows: Rows = [
        {"source_id": s, "place": i, "time_ns": t * S, "counted": t + 500 * (s == 6)}
        for s in (5, 6)
        for i, t in enumerate(range(995, 1036))
    ]
    assert steps_growth(rows, TWO) == [[10.0, 10.0, 10.0]]


def test_ports_of_two_unknown_machines_are_two_series() -> None:
    rows: Rows = [
        {"source_id": s, "place": i, "node": None, "time_ns": (t * 2 + s - 5) * S // 2,
         "counted": t * (s - 4)}
        for s in (5, 6)
        for i, t in enumerate(range(995, 1036))
    ]  # fmt: skip
    found = steps_growth(rows, TWO)
    assert [[round(v) for v in growth] for growth in found] == [[10, 10, 10], [20, 20, 20]]
    # Files of one host are of one machine.
    one = steps_growth(rows[: len(rows) // 2], Clocks({}, {5: "a"}))
    assert [[round(v) for v in growth] for growth in one] == [[10, 10, 10]]


STEPS = 120


def step_table(durations: Floats) -> pa.Table:
    """Steady steps one after the other, one rank."""
    starts = np.concatenate([[0.0], np.cumsum(durations)[:-1]]) + 1000 * S
    rows = [
        {"attempt": 1, "rank": 0, "capture_id": 0, "step": i, "source_id": 0,
         "start_ns": int(start), "end_ns": int(start + durations[i]), "is_warmup": False,
         "is_partial": False}
        for i, start in enumerate(starts)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, table("step").arrow_schema())


def correlated(
    durations: Floats, rates: Mapping[str, Floats], interval_s: float = 0.25,
    on_path: tuple[str, ...] = ("p0",), load: Mapping[str, Floats] | None = None,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Ports whose drops ran at these rates (a second) in each step; rows by port."""
    steps = step_table(durations)
    start, end = steps["start_ns"][0].as_py(), steps["end_ns"][len(steps) - 1].as_py()
    times = np.arange(start - S, end + S, int(interval_s * S))
    edges = np.concatenate([[start], np.array(steps["end_ns"].to_pylist())]).astype(float)
    rows: Rows = []
    for name, own in (("tx_dropped_packets", rates), ("tx_bytes", load or {})):
        for port, rate in own.items():
            totals = np.concatenate([[0.0], np.cumsum(rate * np.diff(edges) / S)])
            counted = np.interp(times, edges, totals).astype(int)
            rows += [
                {"source_id": 5, "place": i, "node": "sw", "port": port, "counter": name,
                 "direction": "tx", "kind": "cumulative", "time_ns": int(t), "counted": int(c)}
                for i, (t, c) in enumerate(zip(times, counted, strict=True))
            ]  # fmt: skip
    ports = [
        {"attempt": 1, "node": "sw", "port": p, "rank": 0 if p in on_path else None, "ranks": None}
        for p in rates
    ]
    con = database(source=[counters(5)], net_sample=rows)
    found = counter_tables(con, Clocks({}, {5: None}), steps, ports)["network_correlation"]
    return {r["port"]: r for r in found if r["counter"] == "tx_dropped_packets"}


def noise(seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(STEPS)


def test_drops_that_go_with_slow_steps_are_a_cause() -> None:
    trouble = np.exp(noise(1))
    row = correlated(S * (1 + 0.2 * trouble), {"p0": 1000 * trouble})["p0"]
    assert row["verdict"] == "cause"
    assert row["lag_s"] == 0
    assert row["rho"] > 0.8
    assert row["effect_ratio"] > 0.2
    assert 0.05 < row["cost_ratio"] < 0.4
    assert row["windows_count"] == STEPS


def test_drops_that_follow_slow_steps_are_a_symptom() -> None:
    trouble = np.exp(noise(1))
    row = correlated(S * (1 + 0.2 * trouble), {"p0": 1000 * np.roll(trouble, 1)})["p0"]
    assert row["verdict"] != "cause"
    assert row["lag_s"] > 0


def test_drops_that_have_nothing_to_do_with_it_are_none() -> None:
    row = correlated(S * (1 + 0.2 * np.exp(noise(1))), {"p0": 1000 * np.exp(noise(2))})["p0"]
    assert row["verdict"] == "none"
    assert row["p_value"] > 0.01


def test_what_other_ports_without_the_job_show_too_is_not_the_job_s() -> None:
    trouble = np.exp(noise(1))
    rows = correlated(S * (1 + 0.2 * trouble), {"p0": 1000 * trouble, "p9": 900 * trouble})
    assert rows["p0"]["verdict"] == "none"
    assert "not on the job's path" in rows["p0"]["reason"]


def test_what_merely_follows_the_load_is_none() -> None:
    traffic = np.exp(noise(3))
    durations = S * (1 + 0.2 * traffic * np.exp(0.1 * noise(4)))
    drops = 1000 * traffic * np.exp(0.1 * noise(5))
    plain = correlated(durations, {"p0": drops})["p0"]
    assert plain["verdict"] == "cause"
    bytes_rate = 1e9 * traffic
    controlled = correlated(durations, {"p0": drops}, load={"p0": bytes_rate})["p0"]
    assert controlled["verdict"] == "none"
    assert controlled["reason"] == "load controlled for"


def test_a_job_that_moves_the_same_bytes_in_every_step_has_no_load_to_control_for() -> None:
    """Its rate of bytes is the step's time turned over: all of the effect would be taken off."""
    trouble = np.exp(noise(1))
    durations = S * (1 + 0.2 * trouble)
    same = correlated(durations, {"p0": 1000 * trouble}, load={"p0": 1e9 * S / durations})["p0"]
    assert (same["verdict"], same["reason"]) == ("cause", "load equal in all steps")
    # Marks that come with the bytes, as many in every step, go with nothing.
    usual = correlated(
        durations, {"p0": 1000 * S / durations}, load={"p0": 1e9 * S / durations}
    )["p0"]  # fmt: skip
    assert usual["verdict"] != "cause"


@pytest.mark.parametrize(("steps", "verdict"), [(29, "not_testable"), (30, "cause")])
def test_too_few_steps_are_not_testable(steps: int, verdict: str) -> None:
    trouble = np.exp(noise(1))[:steps]
    row = correlated(S * (1 + 0.2 * trouble), {"p0": 1000 * trouble})["p0"]
    assert row["verdict"] == verdict
    if verdict == "not_testable":
        assert row["reason"] == "29 steps; a test needs 30"
        assert row["p_value"] is None


def test_a_counter_that_stirs_in_few_steps_is_not_testable() -> None:
    rate = np.zeros(STEPS)
    rate[:8] = 1000.0  # and a bit of the ninth, between two readings
    row = correlated(S * (1 + 0.2 * np.exp(noise(1))), {"p0": rate})["p0"]
    assert row["verdict"] == "not_testable"
    assert "stirred in" in row["reason"]


def test_readings_too_far_apart_take_steps_together() -> None:
    trouble = np.repeat(np.exp(noise(1)[:30]), 4)
    row = correlated(S * (1 + 0.2 * trouble), {"p0": 1000 * trouble}, interval_s=2.0)["p0"]
    assert row["steps_together"] > 1
    assert row["windows_count"] <= STEPS // row["steps_together"]


def test_without_steps_there_is_nothing_to_correlate() -> None:
    con = database(source=[counters(5)])
    empty = pa.Table.from_pylist([], table("step").arrow_schema())
    assert counter_tables(con, Clocks({}, {}), empty, []) == {
        "counter_step": [],
        "network_correlation": [],
        "counter_clock": [],
    }


def test_the_process_that_a_log_and_a_trace_share_says_whose_gpu_it_is() -> None:
    """By host and pid; a pid on another host, or one of two ranks, says nothing."""

    def process(source_id: int, pid: int) -> dict[str, Any]:
        return {"source_id": source_id, "pid": pid, "domain": "profiler_step", "name": "S#1"}

    con = database(
        source=[*TRACES, counters(5, "/d/dcgm.prom"), counters(9, "/d/nccl.log", kind="nccl")],
        annotation=[process(0, 41), process(1, 42), process(2, 43)],
        device=[
            {"source_id": 5, "node": "n1", "uuid": f"GPU-{i}", "pci": f"00000000:9{i}:00.0"}
            for i in range(3)
        ],
        gpu_sample=[gpu_sample(5, node="n1", device_id=f"GPU-{i}") for i in range(3)],
        nccl_comm=[
            {"source_id": 9, "node": "n1.cluster", "pid": 42, "pci": "00000000:90:00.0"},
            {"source_id": 9, "node": "n0", "pid": 43, "pci": "00000000:91:00.0"},
            {"source_id": 9, "node": "n1", "pid": 44, "pci": "00000000:92:00.0"},
        ],
    )
    found = pick(run(con)["gpu"], "gpu_id", "rank", "rank_source")
    assert found == [("GPU-0", 1, "log"), ("GPU-1", None, None), ("GPU-2", None, None)]
