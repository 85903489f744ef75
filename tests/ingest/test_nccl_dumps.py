"""Flight Recorder, Inspector, RAS and nccl-tests: what they hold, and hostile ones."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from memory_sink import MemorySink

from nccl_logs import KeptSink, read, source_of
from tracekit.errors import InputError
from tracekit.ingest import IngestOptions, ingestor, recognise
from tracekit.ingest.nccl import flight, pickles

NAME = "nccl_trace_rank_3"


def entry(sequence: int, **more: object) -> dict[str, Any]:
    return {
        "frames": [{"name": "step", "filename": "train.py", "line": 7}],
        "record_id": sequence,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_724_779_239_936_775_119,
        "duration_ms": 2.5,
        "input_sizes": [[3, 4]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[3, 4]],
        "output_dtypes": ["BFloat16"],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": 1_724_779_239_975_811_724,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
        **more,
    }


def dump(*entries: dict[str, Any]) -> dict[str, Any]:
    status = {"last_enqueued_collective": 9, "last_started_collective": -1}
    return {
        "version": "2.5",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {"0": {**status, "last_completed_collective": 8}},
        "entries": list(entries) or [entry(9)],
    }


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_reads_as_its_json_does(protocol: int) -> None:
    value = dump(entry(8), entry(9, state="scheduled", retired=False))
    written = read(json.dumps(value), f"{NAME}.json")
    pickled = read(pickle.dumps(value, protocol), NAME)
    assert pickled.tables == written.tables
    assert pickled.rows("comm_call", "sequence", "state", "world_rank") == [
        (8, "completed", 3),
        (9, "scheduled", 3),
    ]
    (first, _) = pickled.rows("comm_call")
    assert first["message_bytes"] == 24
    assert first["dur_ns"] == 2_500_000
    assert first["stack"] == ["train.py:7 step"]
    assert pickled.rows("process_group", "ranks") == [[0, 1, 2, 3]]
    assert pickled.rows("comm_snapshot", "last_enqueued", "last_started", "last_completed") == [
        (9, None, 8)
    ]


def test_numbers_as_text_and_ranks_as_a_list_are_read_too() -> None:
    value = dump(entry(9, collective_seq_id="9", is_p2p="false", retired="true"))
    value["pg_config"]["0"]["ranks"] = [1, 0]
    sink = read(json.dumps(value), NAME + ".json")
    assert sink.rows("comm_call", "sequence", "is_retired") == [(9, True)]
    assert sink.rows("process_group", "ranks") == [[0, 1]]


def test_ranks_are_never_evaluated() -> None:
    value = dump()
    value["pg_config"]["0"]["ranks"] = "[__import__('os').abort()]"
    assert read(json.dumps(value), NAME + ".json").rows("process_group", "ranks") == [None]


# --- hostile pickles --------------------------------------------------------------------------


class Reduces:
    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.flag}",)


def _global(module: bytes, name: bytes) -> bytes:
    return b"c" + module + b"\n" + name + b"\n"


def _text(text: bytes) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text


COMMAND = b"S'touch %s'\n"
HEAD = b"\x80\x02}X\x09\x00\x00\x00pg_config"
ATTACKS: dict[str, tuple[bytes, str]] = {
    "reduce of a global": (_global(b"os", b"system") + b"(" + COMMAND + b"tR.", "GLOBAL"),
    "builtins eval": (_global(b"builtins", b"eval") + b"(S'1'\ntR.", "GLOBAL"),
    "stack global": (_text(b"os") + _text(b"system") + b"\x93(" + COMMAND + b"tR.", "STACK_GLOBAL"),
    "inst": (b"(" + COMMAND + b"ios\nsystem\n.", "INST"),
    "obj": (b"(" + _global(b"os", b"system") + COMMAND + b"o.", "GLOBAL"),
    "newobj": (_global(b"subprocess", b"Popen") + b"(" + COMMAND + b"t\x81.", "GLOBAL"),
    "newobj ex": (_text(b"subprocess") + _text(b"Popen") + b"\x93)}\x92.", "STACK_GLOBAL"),
    "build of a dict": (b"}}b.", "BUILD"),
    "extension": (b"\x82\x01.", "EXT1"),
    "extension 2": (b"\x83\x01\x00.", "EXT2"),
    "extension 4": (b"\x84\x01\x00\x00\x00.", "EXT4"),
    "persistent id": (b"Pevil\n.", "PERSID"),
    "binary persistent id": (b"S'evil'\nQ.", "BINPERSID"),
    "reduce of a list": (b"](K\x01tR.", "REDUCE"),
    "builder that is none": (_global(b"torch.jit._pickle", b"restore_type_tag") + b".", "GLOBAL"),
    "builder as a value": (
        b"]" + _global(b"torch.jit._pickle", b"build_intlist") + b"a.", "a builder as a value",
    ),
    "named buffers": (b"\x97.", "NEXT_BUFFER"),
    "frozen set": (b"(K\x01\x91.", "FROZENSET"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ATTACKS))
def test_an_attack_is_refused_and_nothing_of_it_runs(name: str, tmp_path: Path) -> None:
    body, opcode = ATTACKS[name]
    flag = tmp_path / "pwned"
    data = b"\x80\x04" + body.replace(b"%s", str(flag).encode())
    with pytest.raises(pickles.RefusedPickleError) as refused:
        pickles.load(io.BytesIO(data))
    assert refused.value.opcode.startswith(opcode)
    assert not flag.exists()


def test_a_hostile_dump_is_named_and_its_text_is_not(tmp_path: Path) -> None:
    flag = tmp_path / "pwned"
    value = dump()
    value["entries"].append(Reduces(flag))
    for protocol in (2, 4):
        with pytest.raises(InputError) as error:
            read(pickle.dumps(value, protocol), NAME)
        assert NAME in error.value.message
        assert "GLOBAL" in error.value.message
        assert "touch" not in error.value.message
    assert not flag.exists()


def test_depth_is_bounded() -> None:
    with pytest.raises(pickles.RefusedPickleError, match="nesting"):
        pickles.load(io.BytesIO(b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b"."))


def test_a_memo_bomb_is_refused_before_it_is_large() -> None:
    # Each level holds ten times the level below: 10^15 values in 700 bytes.
    body = b"]q\x00(" + b"K\x01" * 10 + b"e"
    for level in range(14):
        below, here = bytes([level]), bytes([level + 1])
        body += b"0]q" + here + b"(" + (b"h" + below) * 10 + b"e"
    began = time.perf_counter()
    with pytest.raises(pickles.RefusedPickleError, match="shared containers"):
        pickles.load(io.BytesIO(b"\x80\x02" + body + b"."))
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize("body", [b"]q\x00h\x00a.", b"]q\x00]q\x01h\x00ah\x01a."])
def test_a_cycle_is_refused(body: bytes) -> None:
    with pytest.raises(pickles.RefusedPickleError):
        pickles.load(io.BytesIO(b"\x80\x02" + body))


@pytest.mark.parametrize(
    "body",
    [
        b"\x8d" + struct.pack("<Q", 1 << 62) + b"x.",
        b"X\xff\xff\xff\x7fabc.",
        b"\x8b\xff\xff\xff\x7f",
        b"\x8a\xff" + b"\x7f" * 255 + b".",
        b"h\x07.",
        b"a.",
        b"(",
        b"",
        b"0.",
        b"K\x01K\x02.",
        b"}(K\x01K\x02K\x03u.",
        b"}(]K\x01u.",
        b"S'unterminated",
    ],
)
def test_damage_is_refused_and_not_a_crash(body: bytes) -> None:
    with pytest.raises(pickles.RefusedPickleError):
        pickles.load(io.BytesIO(b"\x80\x02" + body))


def test_every_cut_of_a_dump_is_refused() -> None:
    data = pickle.dumps(dump(), 2)
    for cut in range(2, len(data) - 1, 7):
        with pytest.raises(pickles.RefusedPickleError):
            pickles.load(io.BytesIO(data[:cut]))


def test_the_list_builders_of_pytorch_are_lists() -> None:
    body = _global(b"torch.jit._pickle", b"build_intlist") + b"](K\x01K\x02e\x85R."
    assert pickles.load(io.BytesIO(b"\x80\x02" + body)) == [1, 2]


def test_frames_may_be_shared() -> None:
    frames = [{"name": "step", "filename": "t.py", "line": 1}]
    value = dump(entry(1, frames=frames), entry(2, frames=frames))
    sink = read(pickle.dumps(value, 2), NAME)
    assert sink.rows("comm_call", "stack") == [["t.py:1 step"]] * 2


def test_a_pickle_of_something_else_is_only_named() -> None:
    found = recognise(source_of(pickle.dumps({"weights": 1}), "model.pkl"))
    assert (found.kind, found.ingestor) == ("pickle", None)


# --- Inspector --------------------------------------------------------------------------------


def record(sequence: int, rank: int, us: float, **about: object) -> str:
    return json.dumps(
        {
            "header": {"id": "0x7f", "rank": rank, "n_ranks": 8, "nnodes": 1, "comm_name": "dp 0"},
            "metadata": {
                "inspector_output_format_version": "v5.1",
                "dump_timestamp_us": 1_752_867_229_276_385,
                "hostname": "h1",
                "pid": 1,
                **about,
            },
            "coll_perf": {
                "coll": "AllReduce",
                "coll_sn": sequence,
                "coll_msg_size_bytes": 1024,
                "coll_exec_time_us": us,
                "coll_busbw_gbs": 100.5,
            },
        }
    )


def test_inspector_records_line_by_line() -> None:
    broken = record(2, 0, 5)[:60]
    sink = read("\n".join([record(1, 0, 61.5), broken, record(3, 1, 5)]) + "\n", "insp.log")
    assert sink.rows("comm_call", "sequence", "group_rank", "dur_ns", "op", "node") == [
        (1, 0, 61_500, "all_reduce", "h1"),
        (3, 1, 5_000, "all_reduce", "h1"),
    ]
    assert sink.counts["broken_record"] == 1
    assert sink.rows("comm_call", "bus_bytes_per_s")[0] == pytest.approx(100.5e9)


def test_inspector_as_prometheus() -> None:
    line = (
        'nccl_bus_bandwidth_gbs{version="v5.1",slurm_job_id="1",node="h1",gpu="GPU0",'
        'comm_name="DP Group 0",n_nodes="1",nranks="4",collective="AllReduce",'
        'message_size="4-5GB",algo_proto="Ring_ll"} 678.263\n'
    )
    sink = read(line, "x.prom")
    assert sink.rows("comm_call", "op", "group_name", "group_size", "node") == [
        ("all_reduce", "DP Group 0", 4, "h1")
    ]


# --- RAS --------------------------------------------------------------------------------------


def test_ras_text_and_json() -> None:
    text = """Job summary
===========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  3 ranks have launched up to operation 6650
  1 rank has launched up to operation 6649
  Rank 2 -- GPU 2 managed by process 4 on node 10.0.0.1
DEAD
  Process 9 on node 10.0.0.2 managing GPU 5
{"nccl_version": "2.29.1", "timestamp": "2026-11-21 12:00:00",
 "communicators": [{"hash": "0xae", "size": 3,
 "ranks": [{"rank": 0, "host": "10.0.0.1", "status": {"init_state": 1},
 "collective_counts": {"AllReduce": 7}},
 {"rank": 1, "status": {"init_state": 1}, "collective_counts": {"AllReduce": 8, "Broadcast": "x"}}],
 "missing_ranks": [{"rank": 2, "pid": 5, "status": {"considered_dead": true}}]}]
}
"""
    sink = read(text, "ras.txt")
    columns = ("comm_hash", "group_rank", "op", "last_enqueued", "peers_enqueued", "status")
    assert sink.rows("comm_snapshot", *columns) == [
        ("0x27a079b828ff1a75", 2, None, 6649, 6650, "MISMATCH"),
        *(("0x27a079b828ff1a75", rank, None, 6650, 6650, "MISMATCH") for rank in (0, 1, 3)),
        ("0xae", 0, "all_reduce", 7, 8, "RUNNING"),
        ("0xae", 1, "all_reduce", 8, 8, "RUNNING"),
        ("0xae", 2, None, None, None, "DEAD"),
    ]
    assert [e["pid"] for e in sink.events("ras_dead")] == ["9", "5"]
    noon_ns = 1_795_262_400_000_000_000  # 2026-11-21 12:00:00, in a zone that nobody states
    assert sink.rows("comm_snapshot", "time_ns") == [*([None] * 4), noon_ns, noon_ns, noon_ns]
    assert sink.facts["time_basis"] == "relative"


MISMATCH = """NCCL version 2.26.2 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

#0-0 (ab12) MISMATCH
  Communicator ranks have different AllGather operation counts
  3 ranks have launched up to operation 640
  2 ranks have launched up to operation 641
  Rank 1 -- GPU 1 managed by process 7 on node n1
  Rank 2 -- GPU 2 managed by process 8 on node n1
"""


def test_ras_ranks_that_are_most_are_those_it_does_not_list() -> None:
    assert recognise(source_of(MISMATCH.encode(), "ras.txt")).ingestor == "nccl_ras"
    sink = read(MISMATCH, "ras.txt")
    columns = ("place", "comm_hash", "group_rank", "last_enqueued", "peers_enqueued", "node")
    assert sorted(sink.rows("comm_snapshot", *columns)) == [
        *((9, "0xab12", rank, 640, 641, None) for rank in (0, 3, 4)),
        (11, "0xab12", 1, 641, 641, "n1"),
        (12, "0xab12", 2, 641, 641, "n1"),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (MISMATCH.replace("  Rank 1", "  rank 1"), "it lists fewer than it counts"),
        (MISMATCH.replace("Rank 2 --", "Rank 9 --"), "a rank beyond those that are counted"),
        (MISMATCH + "  1 rank has launched up to operation 642\n", "two counts list nobody"),
        (MISMATCH.replace("3 ranks", "300000 ranks"), "more ranks than are told one by one"),
    ],
)
def test_ras_ranks_that_it_does_not_list_are_not_guessed(text: str, why: str) -> None:
    rows = read(text, "ras.txt").rows("comm_snapshot", "last_enqueued")
    assert 640 not in rows, why


# --- nccl-tests -------------------------------------------------------------------------------

HEADER = """# nThread 1 nGpus 1 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid   10 on   h1 device  0 [0000:81:00] NVIDIA A100
#  Rank  1 Group  0 Pid   11 on   h2 device  0 [0000:81:00] NVIDIA A100
"""
WITH_ROOT = (
    "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n"
)
NO_ROOT = "#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error\n"


def unnamed(ranks: int, ratio: float, reduction: str, root: str, algbw: float = 100.0) -> KeptSink:
    """An nccl-tests table of two sizes that does not say which benchmark it is."""
    devices = "".join(
        f"#  Rank {r:2d} Group  0 Pid   1 on   h1 device {r:2d} [0000:81:00] NVIDIA A100\n"
        for r in range(ranks)
    )
    bus = f"{algbw:.2f} {algbw * ratio:.2f} 0"
    rows = "".join(f"{size} 2 float {reduction} {root} 10.5 {bus} 11.5 {bus}\n" for size in (8, 16))
    head, _, _ = HEADER.partition("#  Rank")
    return read(head + devices + WITH_ROOT + rows + "# Avg bus bandwidth : 1.0\n", "t.log")


@pytest.mark.parametrize(
    ("ranks", "ratio", "reduction", "root", "name"),
    [
        (8, 1.75, "sum", "-1", "all_reduce_perf"),
        (8, 1.77, "sum", "-1", None),  # no benchmark has this ratio
        (8, 0.875, "sum", "-1", "reduce_scatter_perf"),
        (8, 0.875, "none", "-1", None),  # gathers all, or is an all-to-all
        (8, 1.0, "sum", "-1", "sendrecv_perf"),
        (8, 1.0, "sum", "0", "reduce_perf"),
        (8, 1.0, "none", "0", "broadcast_perf"),
        (2, 1.0, "sum", "-1", None),  # of two ranks an all-reduce looks like send and receive
        (2, 0.5, "sum", "-1", "reduce_scatter_perf"),
        (1, 1.0, "sum", "-1", None),
    ],
)
def test_a_table_without_a_name_is_the_one_that_alone_fits(
    ranks: int, ratio: float, reduction: str, root: str, name: str | None
) -> None:
    sink = unnamed(ranks, ratio, reduction, root)
    assert sink.rows("bench_result", "benchmark") == [name] * 4
    (given,) = sink.events("bench")
    assert given.get("benchmark") == name
    assert given.get("named_by") == ("behaviour" if name else None)


def test_small_sizes_are_too_coarse_to_name_a_table() -> None:
    assert unnamed(8, 1.75, "sum", "-1", algbw=4.9).rows("bench_result", "benchmark") == [None] * 4


@pytest.mark.parametrize(
    ("header", "row", "errors"),
    [
        (WITH_ROOT, "8 2 float sum -1 10.5 1.0 1.5 0 11.5 2.0 2.5 N/A", [0, None]),
        (NO_ROOT, "8 2 float sum 10.5 1.0 1.5 5e-07 11.5 2.0 2.5 5e-07", [None, None]),
        (WITH_ROOT, "2026-01-01 10:00:00 8 2 float sum -1 10.5 1.0 1.5 0 11.5 2.0 2.5 0", [0, 0]),
        (
            WITH_ROOT.replace("busbw #wrong", "busbw #wrong min max"),
            "8 2 float sum -1 10.5 1.0 1.5 0 1 9 11.5 2.0 2.5 3 1 9",
            [0, 3],
        ),
    ],
)
def test_variants_of_the_table(header: str, row: str, errors: list[int | None]) -> None:
    sink = read(HEADER + header + row + "\n# Avg bus bandwidth : 2.0\n", "t.log")
    columns = ("is_in_place", "dur_ns", "bus_bytes_per_s", "message_bytes", "ranks_count")
    assert sink.rows("bench_result", *columns) == [
        (False, 10500, 1.5e9, 8, 2),
        (True, 11500, 2.5e9, 8, 2),
    ]
    assert sink.rows("bench_result", "errors_count") == errors
    (given,) = sink.events("bench")
    assert (given["rows"], given["expected_rows"], given["complete"]) == ("1", "2", "no")


def test_a_row_in_pieces_is_put_together_and_half_of_one_is_odd() -> None:
    text = HEADER + WITH_ROOT + "8 2 float sum -1\n 10.5 1.0 1.5 0\n 11.5 2.0 2.5 0\n16 4 float sum"
    sink = read(text + "\n", "t.log")
    assert len(sink.rows("bench_result")) == 2
    assert sink.counts["odd_bench_row"] == 1


def test_the_json_of_nccl_tests_without_its_environment() -> None:
    value = {
        "version": "2.17.0",
        "start_time": "x",
        "env": {"AWS_SECRET_ACCESS_KEY": "AKIAHUNTER2"},
        "nccl_version": "2.27.3",
        "devices": [{"rank": 0, "hostname": "h1", "pid": 4, "device": 0, "device_hex": "0x17"}],
        "results": [
            {
                "size": 8, "count": 2, "type": "float", "redop": "sum", "root": -1,
                "out_of_place": {"time": 10.5, "alg_bw": 1.0, "bus_bw": 1.5, "nwrong": 0},
                "in_place": {"time": 11.5, "alg_bw": 1.0, "bus_bw": 2.5, "nwrong": 0},
            }
        ],
        "average_bus_bandwidth": {"bandwidth": 2.0},
        "end_time": "y",
    }  # fmt: skip
    sink = read(json.dumps(value), "out.json")
    assert sink.rows("bench_result", "dur_ns") == [10500, 11500]
    assert "HUNTER2" not in sink.everything
    with pytest.raises(InputError) as error:
        read(json.dumps(value)[:-40], "out.json")
    assert "HUNTER2" not in repr(error.value)


@pytest.mark.parametrize("reader", ["nccl_ras", "nccl_inspector"])
def test_a_record_that_never_ends_is_given_up(reader: str) -> None:
    # Added to a held text line by line, they would be copied once for each line: hours.
    begun = time.process_time()
    sink = MemorySink()
    text = b"{\n" + b" \n" * 500_000
    ingestor(reader).read(source_of(text, "a.json"), sink, IngestOptions())
    assert sink.counters["broken_record"] >= 1
    assert time.process_time() - begun < 20


def test_values_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "MAX_JSON_VALUES", 1000)
    text = b'{"version": "2.9", "pg_config": {}, "entries": [' + b"[]," * 1000 + b"[]]}"
    with pytest.raises(InputError, match="more than 1000 values"):
        ingestor("flight_recorder").read(
            source_of(text, "fr_trace_0.json"), MemorySink(), IngestOptions()
        )


def test_containers_of_a_pickle_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MAX_CONTAINERS", 1000)
    with pytest.raises(pickles.RefusedPickleError, match="too many containers"):
        pickles.load(io.BytesIO(pickle.dumps([[] for _ in range(1001)])))
