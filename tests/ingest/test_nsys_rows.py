"""Nsight Systems exports: what becomes of each kind of row, and one case for each trap."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from memory_sink import MemorySink
from nsys_exports import (
    ALL_REDUCE_SCHEMA,
    INIT_SCHEMA,
    SEND_SCHEMA,
    START_NS,
    TABLES,
    Export,
    global_id,
    payload,
)

from tracekit.ingest import IngestOptions, ingestor, recognise
from tracekit.ingest.files import expand

pytestmark = pytest.mark.usefixtures("nsys_reader")

Fill = Callable[[Export], None]
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def ingest(folder: Path, fill: Fill, **options: Any) -> list[MemorySink]:
    """One sink for each source that the export is."""
    path = folder / "job.sqlite"
    with Export(path, **options) as export:
        fill(export)
    sinks = []
    for source in expand([path]):
        sink = MemorySink()
        assert recognise(source).ingestor == "nsys"
        ingestor("nsys").read(source, sink, IngestOptions())
        sinks.append(sink)
    return sinks


def one(folder: Path, fill: Fill, **options: Any) -> MemorySink:
    (sink,) = ingest(folder, fill, **options)
    return sink


def test_a_kernel_finds_its_launch(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        export.launch("gemm(float*)", 100, 500, 60, tid=9, stream=13)

    sink = one(tmp_path, fill)
    (row,) = sink.rows("gpu_op")
    assert (row["start_ns"], row["dur_ns"]) == (START_NS + 500, 60)
    assert (row["launch_start_ns"], row["launch_end_ns"]) == (START_NS + 100, START_NS + 110)
    assert (row["launch_thread"], row["pid"], row["stream"]) == (9, 7, 13)
    assert (row["category"], row["class"], row["name"]) == ("kernel", "compute", "gemm(float*)")
    assert (row["grid"], row["block"], row["shared_memory_bytes"]) == ([2, 1, 1], [128, 1, 1], 3072)
    assert sink.rows("host_op", "name", "category", "thread") == [
        ("cudaLaunchKernel", "runtime", 9)
    ]
    assert sink.facts["status"] == "ok"
    assert sink.facts["time_basis"] == "epoch"
    assert sink.facts["window_start_ns"] == START_NS + 100
    assert sink.facts["window_end_ns"] == START_NS + 560


def test_a_call_that_is_recorded_again_with_its_backtrace_is_one_call(tmp_path: Path) -> None:
    backtrace = 67

    def fill(export: Export) -> None:
        number = export.call("cudaLaunchKernel", 99, 12, kind=backtrace)  # first in the file
        export.call("cudaLaunchKernel_v7000", 100, 10, correlation=number)
        export.kernel("gemm(float*)", 500, 60, number)
        export.call("cuLaunchKernel", 102, 5, correlation=number, kind=1)  # its own name: stays
        export.call("cudaMalloc", 200, 10, kind=backtrace)  # recorded in this class only: stays
        other = export.call("cudaFree_v3020", 300, 10, tid=9)
        export.call("cudaFree", 299, 12, kind=backtrace, correlation=other)  # of another thread

    sink = one(tmp_path, fill)
    found = sorted(sink.rows("host_op", "start_ns", "name"))
    assert [(start - START_NS, name) for start, name in found] == [
        (100, "cudaLaunchKernel"),
        (102, "cuLaunchKernel"),
        (200, "cudaMalloc"),
        (299, "cudaFree"),
        (300, "cudaFree"),
    ]
    assert sink.counters["call_recorded_twice"] == 1
    assert sink.rows("gpu_op", "launch_start_ns") == [START_NS + 102]


def test_equal_correlations_of_two_processes_are_not_joined(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        for pid, device in ((20, 0), (10, 1)):
            export.call("cudaLaunchKernel_v7000", pid * 100, 10, pid=pid, tid=pid, correlation=5)
            export.kernel("gemm", pid * 100 + 50, 60, 5, pid=pid, device=device)

    first, second = ingest(tmp_path, fill)
    for sink, pid in ((first, 20), (second, 10)):
        (row,) = sink.rows("gpu_op")
        assert (row["pid"], row["launch_start_ns"]) == (pid, START_NS + pid * 100)
        assert len(sink.rows("host_op")) == 1


def test_an_export_of_two_processes_is_two_sources_in_order_of_devices(tmp_path: Path) -> None:
    path = tmp_path / "rank7.sqlite"
    with Export(path, environment="RANK=3;WORLD_SIZE=2") as export:
        export.launch("gemm", 0, 10, 10, pid=20, device=0)
        export.launch("gemm", 0, 10, 10, pid=10, device=1)
    sources = expand([path])
    assert [s.path for s in sources] == [f"{path}!device=0,pid=20", f"{path}!device=1,pid=10"]
    sink = MemorySink()
    ingestor("nsys").read(sources[0], sink, IngestOptions())
    # Neither the launcher's environment nor the file's name is the rank of one of several.
    assert sink.facts["file_rank"] is None
    assert sink.facts["name_rank"] is None
    assert sink.rows("process", "env") == [[]]


def test_times_are_utc_whatever_the_export_shifted(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        export.launch("gemm", START_NS + 100, START_NS + 500, 60)

    sink = one(tmp_path, fill, shift_ns=START_NS)
    assert sink.rows("gpu_op", "start_ns") == [START_NS + 500]


def test_without_a_session_start_times_are_relative(tmp_path: Path) -> None:
    tables = [t for t in TABLES if t != "TARGET_INFO_SESSION_START_TIME"]

    def fill(export: Export) -> None:
        export.con.execute("DROP TABLE TARGET_INFO_SESSION_START_TIME")
        export.launch("gemm", 100, 500, 60)

    assert "StringIds" in tables
    sink = one(tmp_path, fill)
    assert sink.facts["time_basis"] == "relative"
    assert sink.rows("gpu_op", "start_ns") == [500]


def test_tables_and_columns_that_are_absent_are_null(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        export.launch("gemm", 100, 500, 60)
        for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_MEMCPY", "TARGET_INFO_GPU", "PROCESSES"):
            export.con.execute(f"DROP TABLE {table}")
        export.con.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN graphId")
        export.con.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN registersPerThread")

    sink = one(tmp_path, fill)
    (row,) = sink.rows("gpu_op")
    assert row["registers_count"] is None
    assert row["launch_start_ns"] == START_NS + 100
    assert sink.facts["status"] == "ok"


def test_copies_have_their_kind_and_size(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        for kind in (1, 2, 8, 10, 99):
            export.put(
                "CUPTI_ACTIVITY_KIND_MEMCPY", start=kind, end=kind + 5, deviceId=0, contextId=1,
                streamId=7, globalPid=global_id(7), bytes=4096, copyKind=kind,
            )  # fmt: skip

    sink = one(tmp_path, fill)
    assert sink.rows("gpu_op", "copy_kind", "name", "transfer_bytes", "class") == [
        ("HtoD", "[CUDA memcpy Host-to-Device]", 4096, "memory"),
        ("DtoH", "[CUDA memcpy Device-to-Host]", 4096, "memory"),
        ("DtoD", "[CUDA memcpy Device-to-Device]", 4096, "memory"),
        ("PtoP", "[CUDA memcpy Peer-to-Peer]", 4096, "memory"),
        (None, "[CUDA memcpy Unknown]", 4096, "memory"),
    ]


def test_a_wait_names_the_stream_and_call_that_recorded_its_event(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        for sync, stream, correlation in ((1, 20, 400), (2, 21, 401)):
            export.put(
                "CUPTI_ACTIVITY_KIND_CUDA_EVENT", deviceId=0, contextId=1, streamId=stream,
                correlationId=correlation, globalPid=global_id(7), eventId=9, eventSyncId=sync,
            )  # fmt: skip
        none = 2**32 - 1
        for kind, event, sync, stream in ((2, 9, 2, 7), (3, none, 0, 7), (1, 9, 1, none)):
            export.put(
                "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=10, end=20, deviceId=0, contextId=1,
                streamId=stream, correlationId=500, globalPid=global_id(7), syncType=kind,
                eventId=event, eventSyncId=sync,
            )  # fmt: skip
        export.launch("gemm", 0, 10, 10)

    sink = one(tmp_path, fill)
    columns = ("kind", "stream", "wait_on_stream", "wait_on_event", "recording_correlation")
    assert sink.rows("sync_op", *columns) == [
        ("stream_wait_event", 7, 21, 9, 401),
        ("stream", 7, None, None, None),
        ("event", None, 20, 9, 400),  # the host waits, no stream does
    ]


def test_whole_graphs_are_work_of_no_known_kind(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        number = export.call("cudaGraphLaunch_v10000", 100, 10)
        export.put(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=200, end=300, deviceId=0, contextId=1,
            streamId=7, correlationId=number, globalPid=global_id(7), graphId=4, graphExecId=5,
        )  # fmt: skip

    sink = one(tmp_path, fill)
    assert sink.rows("gpu_op", "category", "class", "name", "graph_id", "launch_start_ns") == [
        ("graph", "other", "CUDA graph 4", 4, START_NS + 100)
    ]
    assert sink.counters["kernels_hidden_in_graphs"] == 1


def test_ranges_know_what_they_launched(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        export.range("NCCL", 0, None, kind=75, domain=1)
        export.range("outer", 100, 900)
        export.range("inner", 200, 300)
        export.range("empty", 400, 410)
        export.range("other thread", 100, 900, tid=8)
        export.range("ncclAllReduce", 500, 600, domain=1, is_registered=True)
        export.range("mark", 50, None, kind=34)
        export.launch("gemm", 210, 1000, 50)
        export.launch(NCCL, 510, 1100, 70)
        export.launch("late", 895, 2000, 70)  # its call reaches beyond the range

    sink = one(tmp_path, fill)
    rows = {r["name"]: r for r in sink.rows("annotation")}
    columns = ("level", "gpu_start_ns", "gpu_end_ns", "gpu_launches_count", "gpu_children_count")
    shown = {name: tuple(row[c] for c in columns) for name, row in rows.items()}
    assert shown["outer"] == (0, START_NS + 1000, START_NS + 1170, 2, 2)
    assert shown["inner"] == (1, START_NS + 1000, START_NS + 1050, 1, 0)
    assert shown["ncclAllReduce"] == (1, START_NS + 1100, START_NS + 1170, 1, 0)
    assert shown["empty"] == (1, None, None, 0, 0)
    assert shown["other thread"] == (0, None, None, 0, 0)
    assert shown["mark"] == (None, None, None, None, None)
    assert rows["ncclAllReduce"]["producer_domain"] == "NCCL"
    assert rows["outer"]["producer_domain"] is None
    assert (rows["mark"]["style"], rows["mark"]["dur_ns"]) == ("mark", 0)


def test_a_range_that_another_thread_ended_launches_nothing(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        export.range("wandering", 0, 900, kind=60, endGlobalTid=global_id(7, 8))
        export.launch("gemm", 210, 1000, 50)

    (row,) = one(tmp_path, fill).rows("annotation")
    assert (row["style"], row["end_thread"], row["gpu_launches_count"]) == ("start_end", 8, None)


def test_an_open_range_ends_with_the_last_one(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        export.range("open", 100, None)
        export.range("closed", 200, 700)
        export.launch("gemm", 210, 1000, 50)

    sink = one(tmp_path, fill)
    assert sink.rows("annotation", "dur_ns") == [600, 500]
    assert sink.counters["unclosed_range"] == 1


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["ProfilerStep#7", "ProfilerStep#8"], [7, 8]),
        (["step 3", "step 4"], [3, 4]),
        (["train_step", "train_step"], [0, 1]),
        (["iteration 9", "iteration 9"], [0, 1]),
        (["Optimizer.step#AdamW.step", "Optimizer.step#AdamW.step"], [None, None]),
        (["forward", "backward"], [None, None]),
    ],
)
def test_steps_are_found_among_ranges(
    tmp_path: Path, names: list[str], numbers: list[int | None]
) -> None:
    def fill(export: Export) -> None:
        for index, name in enumerate(names):
            export.range(name, index * 1000, index * 1000 + 900)
            export.launch("gemm", index * 1000 + 10, index * 1000 + 950, 100)

    sink = one(tmp_path, fill)
    assert sink.rows("annotation", "step") == numbers
    assert sink.rows("gpu_op", "step") == numbers
    domain = "user" if numbers[0] is None else "profiler_step"
    assert set(sink.rows("annotation", "domain")) == {domain}


def test_ranges_that_overlap_are_no_steps(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        export.range("step 1", 0, 1000)
        export.range("step 2", 500, 1500, kind=60)
        export.launch("gemm", 10, 20, 30)

    assert one(tmp_path, fill).rows("annotation", "step") == [None, None]


def test_a_rank_is_what_the_environment_says_of_a_single_process(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        export.gpu(5, 7, ordinal=0)
        export.launch("gemm", 0, 10, 10)

    environment = "PATH=/bin;SLURM_PROCID=11;SLURM_LOCALID=3;SLURM_NTASKS=16;WANDB_API_KEY=abcdef"
    sink = one(tmp_path, fill, environment=environment)
    assert (sink.facts["file_rank"], sink.facts["world_size"]) == (11, 16)
    (process,) = sink.rows("process")
    assert process["local_rank"] == 3
    assert process["env"] == ["SLURM_LOCALID=3", "SLURM_NTASKS=16", "SLURM_PROCID=11"]
    (device,) = sink.rows("device")
    assert (device["ordinal"], device["pci"]) == (0, "00000000:15:00.0")
    assert device["uuid"] == "GPU-00000000-0000-0000-0000-000000000005"


@pytest.mark.parametrize(
    "value",
    [
        "0",
        "0,1,2",
        "-1",
        "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
        "MIG-GPU-8932f937/1/0",
        "key9",
    ],
)
def test_visible_devices_are_kept_only_if_they_are_devices(tmp_path: Path, value: str) -> None:
    sink = one(
        tmp_path,
        lambda export: export.launch("gemm", 0, 10, 10),
        environment=f"RANK=0;CUDA_VISIBLE_DEVICES={value}",
    )
    (process,) = sink.rows("process")
    assert process["cuda_visible_devices"] == (value if value != "key9" else None)


_WHOLE = {"START_TRIGGER": "Immediate", "STOP_TRIGGER": "Delayed"}


@pytest.mark.parametrize(
    ("triggers", "extra", "is_known"),
    [
        (_WHOLE, "", True),
        ({"START_TRIGGER": "CudaProfilerApi", "STOP_TRIGGER": "Delayed"}, "", False),
        ({}, "", False),
        (_WHOLE, "EXPORT_PARAM_TIMES_TO_EXPORT", False),
        (_WHOLE, "DERIVED_FROM", False),
    ],
)
def test_a_window_lasts_as_long_as_a_whole_session(
    tmp_path: Path, triggers: dict[str, str], extra: str, is_known: bool
) -> None:
    def fill(export: Export) -> None:
        export.launch("gemm", 0, 10, 10)
        export.con.execute("CREATE TABLE ANALYSIS_DETAILS (duration INTEGER)")
        export.put("ANALYSIS_DETAILS", duration=90_000)
        for name, value in triggers.items():
            export.put("META_DATA_CAPTURE", name=name, value=value)
        if extra:
            export.meta(extra, "1s/2s")

    end = one(tmp_path, fill).facts["window_end_ns"]
    assert end == START_NS + (90_000 if is_known else 20)


def _init(export: Export, ranks: int, rank: int, comm: int = 0xABC) -> None:
    blob = payload(INIT_SCHEMA, "Qiii", comm, ranks, rank, 0)
    export.range("ncclCommInitRank", 0, 50, domain=1, binaryData=blob)


def test_payloads_name_the_communicator_and_the_size(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        export.nccl_schemas(times=2)
        _init(export, 4, 2)
        blob = payload(ALL_REDUCE_SCHEMA, "QQi", 0xABC, 4096, 0)
        export.range("ncclAllReduce", 100, 200, domain=1, binaryData=blob)
        export.launch(NCCL, 110, 500, 50)
        export.launch(NCCL, 300, 700, 50)

    sink = one(tmp_path, fill)
    columns = ("op", "group_id", "group_size", "group_rank", "message_bytes", "reduction", "dtype")
    first, second = sink.rows("collective", *columns)
    assert first == ("all_reduce", "nccl-0000000000000abc", 4, 2, 4096, "sum", "Float")
    assert second == ("all_reduce", None, None, None, None, "sum", "Float")
    assert (sink.facts["file_rank"], sink.facts["world_size"]) == (2, 4)
    (group,) = sink.rows("process_group")
    assert (group["comm_hash"], group["ranks"]) == ("0000000000000abc", [0, 1, 2, 3])


def test_a_group_s_kernel_takes_what_its_calls_say(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        export.nccl_schemas()
        _init(export, 4, 2)
        export.range("ncclGroupStart", 100, 105, domain=1)
        for index, name in enumerate(("ncclSend", "ncclRecv")):
            blob = payload(SEND_SCHEMA, "QQi", 0xABC, 1000 + index, 3 - 2 * index)
            export.range(name, 110 + index * 10, 115 + index * 10, domain=1, binaryData=blob)
        export.range("ncclGroupEnd", 140, 190, domain=1)
        export.launch(SEND_RECV, 150, 500, 50)
        export.range("ncclGroupStart", 200, 205, domain=1)
        blob = payload(SEND_SCHEMA, "QQi", 0xABC, 77, 3)
        export.range("ncclSend", 210, 215, domain=1, binaryData=blob)
        export.range("ncclGroupEnd", 240, 290, domain=1)
        export.launch(SEND_RECV, 250, 600, 50)

    sink = one(tmp_path, fill)
    columns = ("op", "message_bytes", "dst_rank", "src_rank", "peer_group_rank", "group_name")
    assert sink.rows("collective", *columns) == [
        ("send_recv", 1000, None, None, None, "0000000000000abc"),
        ("send", 77, 3, None, 3, "0000000000000abc"),
    ]
    assert sink.rows("collective", "is_p2p") == [True, True]


def test_a_group_that_reaches_every_member_is_an_all_to_all(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        export.nccl_schemas()
        _init(export, 3, 2)
        for group, peers in enumerate(((0, 1, 2), (0, 1), (0,))):
            at = 1000 * group
            export.range("ncclGroupStart", at + 100, at + 105, domain=1)
            for peer in peers:
                for side, name in enumerate(("ncclSend", "ncclRecv")):
                    blob = payload(SEND_SCHEMA, "QQi", 0xABC, 500, peer)
                    begin = at + 110 + 4 * peer + 2 * side
                    export.range(name, begin, begin + 1, domain=1, binaryData=blob)
            export.range("ncclGroupEnd", at + 140, at + 190, domain=1)
            export.launch(SEND_RECV, at + 150, at + 500, 50)

    sink = one(tmp_path, fill)
    # To itself or not: both are all-to-all; one of two others is a plain exchange.
    assert sink.rows("collective", "op", "message_bytes", "out_bytes", "peer_group_rank") == [
        ("all_to_all", 1500, 1500, None),
        ("all_to_all", 1000, 1000, None),
        ("send_recv", 500, None, 0),
    ]


@pytest.mark.parametrize(
    ("call", "kernel", "sizes"),
    [
        ("ncclAllReduce", NCCL, (800, 800, 800)),
        ("ncclAllGather", NCCL.replace("AllReduce_Sum_f32", "AllGather"), (3200, 800, 3200)),
        ("ncclReduceScatter", NCCL.replace("AllReduce", "ReduceScatter"), (3200, 3200, 800)),
        ("ncclBroadcast", NCCL.replace("AllReduce_Sum_f32", "Broadcast"), (800, 800, 800)),
        ("ncclAlltoAll", SEND_RECV, (3200, 3200, 3200)),  # one call since NCCL 2.28
        ("ncclScatter", SEND_RECV, (3200, 3200, 800)),
        ("ncclGather", SEND_RECV, (3200, 800, None)),  # all or nothing, as the root or not
    ],
)
def test_a_call_states_one_part_or_all(
    tmp_path: Path, call: str, kernel: str, sizes: tuple[int | None, ...]
) -> None:
    def fill(export: Export) -> None:
        export.nccl_schemas()
        _init(export, 4, 2)
        blob = payload(ALL_REDUCE_SCHEMA, "QQi", 0xABC, 800, 0)
        for at in (100, 1000):
            export.range(call, at, at + 100, domain=1, binaryData=blob)
        export.launch(kernel, 110, 500, 50)

    sink = one(tmp_path, fill)
    assert sink.rows("collective", "message_bytes", "in_bytes", "out_bytes") == [sizes]
    # The second call was asked for, and its kernel is in no export.
    assert sink.rows("open_collective", "message_bytes") == [sizes[0]]


def test_payloads_that_make_no_sense_are_counted(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        export.nccl_schemas()
        for blob in (b"", b"short", b"\xff" * 64, payload(SEND_SCHEMA, "Q", 1)[:36]):
            export.range("ncclAllReduce", 100, 200, domain=1, binaryData=blob)
        export.launch(NCCL, 110, 500, 50)

    sink = one(tmp_path, fill)
    assert sink.rows("collective", "op", "message_bytes") == [("all_reduce", None)]
    assert sink.counters["unreadable_payload"] == 4


def test_calls_without_a_kernel_are_open_where_no_payload_names_their_communicator(
    tmp_path: Path,
) -> None:
    def call(export: Export, name: str, start: int, end: int | None, tid: int = 7) -> None:
        export.range(name, start, end, domain=1, tid=tid, is_registered=tid == 7)

    def fill(export: Export) -> None:
        call(export, "ncclAllReduce", 100, 200)  # lost its kernel: a later one is there
        call(export, "ncclGroupStart", 300, 305)
        call(export, "ncclAllGather", 310, 315)  # its kernel is the group's
        call(export, "ncclGroupEnd", 320, 400)
        export.launch(NCCL, 330, 500, 50)
        call(export, "ncclReduceScatter", 340, 360, 8)
        export.launch(NCCL, 350, 560, 50, tid=8)
        call(export, "ncclReduce", 345, 700, 9)  # began before the last launch that ran
        export.launch("gemm", 400, 700, 50)
        call(export, "ncclCommCount", 600, 610)
        call(export, "ncclNetIrecv()", 612, 615)  # the network's own, of a patched NCCL
        call(export, "ncclNetIsend", 616, 700, 10)
        call(export, "ncclAllReduce", 620, 650)
        export.call("cudaLaunchKernelExC_v11060", 630, 10)
        call(export, "ncclBroadcast", 660, None)  # the host itself never came back

    sink = one(tmp_path, fill)
    columns = ("enqueue_ns", "op", "group_id", "group_name", "message_bytes", "is_p2p")
    assert sink.rows("open_collective", *columns) == [
        (START_NS + at, op, None, None, None, False)
        for at, op in ((345, "reduce"), (620, "all_reduce"), (660, "broadcast"))
    ]


def test_without_any_kernel_of_communication_no_call_is_open(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        export.launch("gemm", 10, 20, 50)
        export.range("ncclAllReduce", 100, 200, domain=1)

    assert not one(tmp_path, fill).rows("open_collective")


def test_sizes_that_were_not_exported_are_unknown_and_said(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        export.range("ncclAllReduce", 100, 200, domain=1)
        export.launch(NCCL, 110, 500, 50)

    sink = one(tmp_path, fill)
    assert sink.rows("collective", "op", "message_bytes", "group_id") == [
        ("all_reduce", None, None)
    ]
    assert sink.counters["sizes_not_exported"] == 1
    assert sink.severities["sizes_not_exported"] == "info"


def test_values_of_the_wrong_type_do_not_end_the_reading(tmp_path: Path) -> None:
    def fill(export: Export) -> None:
        export.launch("gemm", 100, 500, 60)
        export.con.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = 'seven', gridX = 2.5")
        export.launch("gemm", 100, 600, 60)
        export.con.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'x' WHERE start = 600")
        export.range("named", 0, 10)
        export.con.execute("UPDATE NVTX_EVENTS SET text = x'ff00fe'")

    sink = one(tmp_path, fill)
    assert sink.rows("gpu_op", "stream") == [None]
    assert sink.counters["row_without_time"] == 1
    assert len(sink.rows("annotation")) == 1
