"""One small trace for each trap: what the reader makes of it."""

from __future__ import annotations

import gzip
import json
import threading
from typing import Any

import pytest
from memory_sink import MemorySink, source_of

from tracekit.ingest import IngestOptions
from tracekit.ingest.kineto import collectives, reader
from tracekit.ingest.kineto import trace as kineto_trace
from tracekit.values import group_id

Event = dict[str, Any]
BASE = 1735632360000000000


def x(cat: str, name: str, ts: Any, dur: Any, *, pid: Any = 1, tid: Any = 1, **args: Any) -> Event:
    """A complete event; keyword names stand for argument names (``External_id``)."""
    shown = {k.replace("_", " ") if k[0].isupper() else k: v for k, v in args.items()}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": shown,
    }


def kernel(name: str, ts: Any, dur: Any, correlation: Any = None, **args: Any) -> Event:
    known = {"device": 0, "context": 1, "stream": 7, **args}
    if correlation is not None:
        known["correlation"] = correlation
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": ts,
        "dur": dur,
        "args": known,
    }


def launch(
    correlation: int, ts: Any, dur: Any = 5, name: Any = "cudaLaunchKernel", **more: Any
) -> Event:
    return x("cuda_runtime", name, ts, dur, correlation=correlation, **more)


def step(number: int, ts: Any, dur: Any) -> Event:
    return x("user_annotation", f"ProfilerStep#{number}", ts, dur)


def trace(events: list[Event], *, tail: dict[str, Any] | None = None, **keys: Any) -> bytes:
    keys = {"schemaVersion": 1, **keys}
    return json.dumps({**keys, "traceEvents": events, **(tail or {})}).encode()


def read(
    data: bytes, name: str = "trace.json", *, stacks: bool = False, chunk: int = 1 << 16
) -> MemorySink:
    sink = MemorySink()
    reader.read(source_of(data, name), sink, IngestOptions(stacks=stacks), chunk_bytes=chunk)
    return sink


# --- time ----------------------------------------------------------------------------------------


def test_base_before_and_after_the_events_gives_the_same_times() -> None:
    events = [x("cpu_op", "aten::mm", 4458676522690.655, 156.777)]
    before = read(trace(events, baseTimeNanoseconds=BASE))
    after = read(trace(events, tail={"displayTimeUnit": "ms", "baseTimeNanoseconds": BASE}))
    expected = [(BASE + 4458676522690655, 156777)]
    assert before.rows("host_op", "start_ns", "dur_ns") == expected
    assert after.rows("host_op", "start_ns", "dur_ns") == expected
    assert before.facts["time_basis"] == after.facts["time_basis"] == "epoch"
    assert before.facts["time_resolution_ns"] == 1


@pytest.mark.parametrize("base", [BASE, -BASE, 0, 4 * 10**18, 9 * 10**18])
@pytest.mark.parametrize("far", [0, 1_000, 2**61 // 1000, 2**62 // 1000 - 9_000])
def test_a_base_behind_the_events_decides_as_one_before_them(base: int, far: int) -> None:
    """Rows, counts and facts, also where the sum is beyond what can be meant."""
    events = [
        step(1, 5, 500),
        x("cpu_op", "record_param_comms", 7, 2, Collective_name="allreduce", External_id=3),
        launch(9, 8),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, 30, 9, External_id=3),
        kernel("gemm", 60, 30, 10),
        x("cpu_op", "far", far, 1),
        x("cpu_op", "near", 90, -1),
    ]
    before = read(trace(events, baseTimeNanoseconds=base), chunk=1 << 9)
    after = read(trace(events, tail={"baseTimeNanoseconds": base}), chunk=1 << 9)
    assert after.tables.keys() == before.tables.keys()
    for name in before.tables:
        assert after.rows(name) == before.rows(name)
    assert after.counters == before.counters
    assert after.places == before.places
    assert {**after.facts, "raw_bytes": 0} == {**before.facts, "raw_bytes": 0}
    if base == BASE:
        (first, *_) = before.rows("gpu_op")
        assert first["launch_start_ns"] == BASE + 8_000


def test_rows_do_not_wait_for_a_base_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_trace, "HELD_BYTES", 2 << 10)
    found = kineto_trace.TraceReader._scan_for_base
    may_end = threading.Event()

    def slow(self: kineto_trace.TraceReader) -> int | None:
        may_end.wait(10)
        return found(self)

    monkeypatch.setattr(kineto_trace.TraceReader, "_scan_for_base", slow)
    settle = kineto_trace.TraceReader._settle_base
    asked: list[int] = []

    def told(self: kineto_trace.TraceReader, tail: bytes = b"") -> None:
        asked.append(self.place)
        may_end.set()
        settle(self, tail)

    monkeypatch.setattr(kineto_trace.TraceReader, "_settle_base", told)
    events = [x("cpu_op", f"op{i}", i, 1) for i in range(100)]
    sink = read(trace(events, tail={"baseTimeNanoseconds": BASE}), chunk=1 << 10)
    assert 0 < asked[0] < 50
    assert sink.rows("host_op", "start_ns") == [BASE + 1000 * i for i in range(100)]


def test_a_file_whose_rows_can_wait_is_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def scan(self: kineto_trace.TraceReader) -> int | None:
        looked.append(self.place)
        return BASE

    monkeypatch.setattr(kineto_trace.TraceReader, "_scan_for_base", scan)
    monkeypatch.setattr(kineto_trace, "ASK_BYTES", 1 << 10)
    data = trace(
        [x("cpu_op", f"op{i}", i, 1) for i in range(100)], tail={"baseTimeNanoseconds": BASE}
    )
    expected = [BASE + 1000 * i for i in range(100)]
    for packed in (data, gzip.compress(data)):
        assert read(packed, chunk=1 << 10).rows("host_op", "start_ns") == expected
    assert not looked
    monkeypatch.setattr(kineto_trace, "HELD_BYTES", len(data) - 1)
    for packed in (data, gzip.compress(data)):
        assert read(packed, chunk=1 << 10).rows("host_op", "start_ns") == expected
    assert len(looked) == 2


def test_the_last_base_that_is_not_zero_counts_wherever_it_stands() -> None:
    odd = {**x("cpu_op", "a", 5, 1), "args": {"baseTimeNanoseconds": 7}}
    tail = {"baseTimeNanoseconds": BASE, "more": {"baseTimeNanoseconds": 0}}
    assert read(trace([odd], tail=tail)).rows("host_op", "start_ns") == [BASE + 5000]
    filler = [x("cpu_op", "x" * 1000, i, 1) for i in range(5000)]  # more than is kept of its end
    assert read(trace([odd, *filler])).rows("host_op", "start_ns")[0] == 5007


def test_epoch_with_fraction_and_no_base_is_read_as_text() -> None:
    text = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1,'
    text += b' "ts": 1712867402348256.123, "dur": 0.001, "args": {"External id": 3}}]}'
    sink = read(text)
    assert sink.rows("host_op", "start_ns", "dur_ns", "external_id") == [
        (1712867402348256123, 1, 3)
    ]


def test_times_as_strings() -> None:
    sink = read(trace([x("cpu_op", "a", "1712867402348256.123", "2")]))
    assert sink.rows("host_op", "start_ns", "dur_ns") == [(1712867402348256123, 2000)]


def test_integer_epoch_needs_no_base() -> None:
    sink = read(trace([x("cpu_op", "a", 1706850122853863, 17)]))
    assert sink.rows("host_op", "start_ns") == [1706850122853863000]
    assert sink.facts["time_resolution_ns"] == 1000
    assert sink.facts["time_basis"] == "epoch"


def test_small_times_without_base_are_relative() -> None:
    assert read(trace([x("cpu_op", "a", 10, 17)])).facts["time_basis"] == "relative"


def test_corrupt_times_are_counted_and_move_no_window() -> None:
    events = [
        step(1, 1000, 100),
        kernel("k", 0, 0),
        kernel("k", 1010, 18446744073709551.615),
        kernel("k", 1020, -3),
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1030},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 5},
        kernel("k", 1040, 10),
    ]
    sink = read(trace(events))
    assert sink.rows("gpu_op", "start_ns", "dur_ns") == [
        (1020000, 0),
        (1030000, 0),
        (1040000, 10000),
    ]
    assert sink.counters == {
        "kernel_without_time": 1,
        "implausible_duration": 1,
        "negative_duration": 1,
        "missing_duration": 1,
        "event_without_time": 1,
    }
    assert (sink.facts["window_start_ns"], sink.facts["window_end_ns"]) == (1000000, 1100000)


# --- launches and steps --------------------------------------------------------------------------


def test_a_kernel_belongs_to_the_step_that_launched_it() -> None:
    events = [
        kernel("late", 215, 10, 1),  # runs in step 2, launched by step 1
        launch(1, 150, tid=9),
        step(1, 100, 100),
        step(2, 210, 100),
        kernel("early", 120, 10, 99),  # launched before the window: by time
        kernel("after", 500, 10, 98),  # no launch, after the last step
        kernel("between", 500, 10, 2),  # launched between the steps: belongs to none
        launch(2, 205),
    ]
    sink = read(trace(events))
    columns = ("name", "step", "step_source", "launch_start_ns", "launch_end_ns", "launch_thread")
    assert sink.rows("gpu_op", *columns) == [
        ("late", 1, "launch", 150000, 155000, 9),
        ("early", 1, "time", None, None, None),
        ("after", None, None, None, None, None),
        ("between", None, None, 205000, 210000, 1),
    ]


def test_many_kernels_of_one_graph_launch() -> None:
    events = [launch(7, 10, name="cudaGraphLaunch"), step(4, 0, 100)]
    events += [kernel("k", 20 + i, 1, 7, **{"graph id": 3, "graph node id": i}) for i in range(3)]
    sink = read(trace(events))
    assert sink.rows("gpu_op", "graph_id", "graph_node_id", "step", "launch_start_ns") == [
        (3, 0, 4, 10000),
        (3, 1, 4, 10000),
        (3, 2, 4, 10000),
    ]


def test_graph_id_0_means_no_graph() -> None:
    sink = read(trace([kernel("k", 20, 1, 7, **{"graph id": 0, "graph node id": 0})]))
    assert sink.rows("gpu_op", "graph_id", "graph_node_id") == [(None, None)]


def test_equal_correlations_of_two_processes_are_told_apart_by_time() -> None:
    events = [
        launch(5, 100, pid=1),
        launch(5, 200, pid=2),
        kernel("a", 110, 5, 5),
        kernel("b", 210, 5, 5),
    ]
    sink = read(trace(events))
    assert sink.rows("gpu_op", "name", "pid", "launch_start_ns") == [
        ("a", 1, 100000),
        ("b", 2, 200000),
    ]


def test_calls_that_launch_nothing_are_no_launches() -> None:
    sink = read(trace([launch(5, 100, name="cudaEventQuery"), kernel("a", 110, 5, 5)]))
    assert sink.rows("gpu_op", "launch_start_ns") == [None]
    assert sink.rows("host_op", "category", "correlation") == [("runtime", 5)]


def test_xpu_and_mtia_have_runtime_categories_of_their_own() -> None:
    events = [
        x("xpu_runtime", "urEnqueueKernelLaunch", 10, 2, correlation=1),
        kernel("k", 20, 1, 1),
    ]
    events += [
        x("mtia_runtime", "submit", 30, 2, correlation=2),
        x("mtia_ccp_events", "k", 40, 1, pid=0, tid=1, correlation=2),
    ]
    sink = read(trace(events))
    assert sink.rows("gpu_op", "category", "launch_start_ns") == [
        ("kernel", 10000),
        ("kernel", 30000),
    ]


# --- rows that must not be counted twice ---------------------------------------------------------


def test_sync_rows_are_no_device_work() -> None:
    events = [
        x(
            "cuda_sync",
            "Stream Wait Event",
            10,
            1,
            pid=0,
            tid=1000007,
            cuda_sync_kind="Stream Wait Event",
            wait_on_stream=3,
            wait_on_cuda_event_id=9,
            wait_on_cuda_event_record_corr_id=-1,
            stream=7,
            device=0,
        ),
        x(
            "cuda_sync",
            "Event Sync",
            10,
            1,
            pid=0,
            tid=-1,
            cuda_sync_kind="Event Sync",
            stream=-1,
            device=0,
        ),
        x("kernel", "Stream Sync", 10, 1, pid=0, tid=1000007),
    ]
    sink = read(trace(events))
    assert sink.rows("gpu_op") == []
    columns = ("kind", "stream", "wait_on_stream", "wait_on_event", "recording_correlation")
    assert sink.rows("sync_op", *columns) == [
        ("stream_wait_event", 7, 3, 9, None),
        ("event", None, None, None, None),
        ("stream", 7, None, None, None),
    ]


def test_gpu_twins_are_marked_and_make_no_steps() -> None:
    events = [step(1, 100, 50), x("gpu_user_annotation", "ProfilerStep#1", 100, 900, pid=0, tid=7)]
    events += [kernel("k", 500, 1)]
    sink = read(trace(events))
    assert sink.rows("annotation", "is_gpu_twin", "domain", "step", "thread") == [
        (False, "profiler_step", 1, 1),
        (True, "profiler_step", 1, 7),
    ]
    assert sink.rows("gpu_op", "step") == [None]


# --- old and odd producers -----------------------------------------------------------------------


def test_the_schema_of_2021() -> None:
    events = [
        x("Operator", "ProfilerStep#3", 100, 100, tid="4093687616", **{"Input dims": []}),
        x(
            "Operator",
            "aten::empty",
            110,
            13,
            tid="4093687616",
            **{"Input dims": [[2, 3]], "external id": 0},
        ),
        x(
            "Runtime",
            "cudaMemcpyAsync",
            120,
            2,
            tid="4093687616",
            correlation=5,
            **{"external id": 862},
        ),
        x(
            "Memcpy",
            "Memcpy HtoD (Pageable -> Device)",
            130,
            4,
            pid=0,
            tid="stream 7",
            correlation=5,
            bytes=64,
        ),
        x("Kernel", "k", 150, 4, pid=0, tid="stream 7", **{"external id": 0}),
    ]
    sink = read(json.dumps(events).encode())
    assert sink.rows("annotation", "domain", "step") == [("profiler_step", 3)]
    assert sink.rows("host_op", "name", "thread", "external_id", "input_dims") == [
        ("aten::empty", 4093687616, None, "[[2,3]]"),
        ("cudaMemcpyAsync", 4093687616, 862, None),
    ]
    assert sink.rows(
        "gpu_op", "category", "stream", "copy_kind", "transfer_bytes", "step", "external_id"
    ) == [("memcpy", 7, "HtoD", 64, 3, None), ("kernel", 7, None, None, 3, None)]


def test_negative_threads_and_words_as_ids() -> None:
    events = [
        x("cpu_op", "a", 1, 1, tid=-77404608),
        x("overhead", "Buffer Flush", 1, 1, pid=-1, tid=0),
        {
            "ph": "X",
            "cat": "Trace",
            "name": "PyTorch Profiler (0)",
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "ts": 0,
            "dur": 50,
        },
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 50},
        {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": 1},
        {
            "ph": "f",
            "id": 1,
            "cat": "other_flow",
            "name": "x",
            "pid": 1,
            "tid": 1,
            "ts": 1,
            "bp": "e",
        },
        {
            "ph": "M",
            "name": "process_name",
            "pid": 1,
            "tid": 0,
            "ts": 0,
            "args": {"name": "python"},
        },
        {
            "ph": "M",
            "name": "process_name",
            "pid": 0,
            "tid": 0,
            "ts": 0,
            "args": {"name": "python"},
        },
        {"ph": "C", "name": "GPU 0 Counters", "pid": "GPU 0 Counters", "ts": 1, "args": {"x": 1}},
        x("brand_new", "what", 3, 1),
        x("cuda_profiler_range", "k", 3, 1, pid=0),
    ]
    sink = read(trace(events))
    assert sink.rows("host_op", "category", "pid", "thread") == [
        ("operator", 1, -77404608),
        ("overhead", -1, 0),
        ("brand_new", 1, 1),
    ]
    assert {r["pid"]: r["name"] for r in sink.rows("process")} == {1: "python", -1: None}
    assert sink.counters == {"unread_phase": 1, "unknown_category": 1, "skipped_category": 1}
    assert (sink.facts["window_start_ns"], sink.facts["window_end_ns"]) == (0, 50000)


def test_rocm() -> None:
    events = [
        x(
            "cuda_runtime",
            "hipLaunchKernel",
            10,
            2,
            correlation=1,
            stream="0x0",
            kernel="k",
            grid="[1,1,1]",
        ),
        {
            **kernel("Cijk_x", 20, 2, 1, kind="Dispatch Kernel"),
            "args": {"device": 2, "stream": 0, "correlation": 1, "kind": "Dispatch Kernel"},
        },
        kernel(
            "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
            30,
            2,
            **{"Collective name": "allreduce", "Group size": 2},
        ),
    ]
    sink = read(
        trace(events, deviceProperties=[{"id": 2, "name": "AMD Instinct MI300X", "numSms": 304}])
    )
    assert sink.rows("gpu_op", "class", "device", "grid") == [
        ("compute", 2, None),
        ("communication", 0, None),
    ]
    assert sink.rows("collective", "op", "library", "class_source") == [
        ("all_reduce", "rccl", "args")
    ]
    assert sink.rows("device", "ordinal", "model", "sm_count", "is_used") == [
        (0, None, None, True),
        (2, "AMD Instinct MI300X", 304, True),
    ]


def test_odd_types_lose_only_themselves() -> None:
    events = [
        kernel("k", 20, 2, **{"shared memory": "big", "registers per thread": "12"}),
        x("cpu_op", "a", 1, 1, **{"External id": 2**63}),
        x("cpu_op", "b", 1, 1, **{"External id": 2**70, "Sequence number": 4}),
    ]
    sink = read(trace(events))
    assert sink.rows("gpu_op", "shared_memory_bytes", "registers_count") == [(None, 12)]
    assert sink.rows("host_op", "name", "sequence_number") == [("a", None), ("b", 4)]


def test_memory_instants() -> None:
    event = {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": 1,
        "tid": 4,
        "ts": 9,
        "args": {
            "Bytes": -64,
            "Addr": 2**64 - 1,
            "Device Id": 0,
            "Device Type": 1,
            "Total Allocated": 5,
            "Total Reserved": 6,
        },
    }
    sink = read(trace([event]))
    columns = (
        "time_ns",
        "device_type",
        "device",
        "change_bytes",
        "address",
        "allocated_bytes",
        "reserved_bytes",
    )
    assert sink.rows("memory_event", *columns) == [(9000, "gpu", 0, -64, 2**64 - 1, 5, 6)]


def test_frames_only_on_request_but_pauses_always() -> None:
    events = [
        x(
            "python_function",
            "train.py(3): main",
            1,
            90,
            **{"Python id": 1, "Python parent id": None},
        ),
        x(
            "python_function",
            "<built-in function collect>",
            5,
            9,
            **{"Python id": 2, "Python parent id": 1},
        ),
        x(
            "python_function",
            "torch/utils/data/dataloader.py(630): __next__",
            20,
            9,
            **{"Python id": 3},
        ),
        x(
            "python_function",
            "nn.Module: Linear_0",
            30,
            9,
            **{"Python id": 4, "Python module id": 8},
        ),
    ]
    plain = read(trace(events))
    assert plain.rows("python_frame") == []
    assert plain.rows("annotation", "domain", "start_ns") == [
        ("python_gc", 5000),
        ("python_input", 20000),
    ]
    full = read(trace(events), stacks=True)
    assert full.rows("annotation") == plain.rows("annotation")
    assert full.rows("python_frame", "frame_id", "parent_frame_id", "module_id") == [
        (1, None, None),
        (2, 1, None),
        (3, None, None),
        (4, None, 8),
    ]


# --- collectives ---------------------------------------------------------------------------------

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def comm(**args: Any) -> dict[str, Any]:
    return {
        "Collective name": "allreduce",
        "In msg nelems": 1000,
        "Out msg nelems": 1000,
        "Group size": 2,
        "dtype": "BFloat16",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": "5",
        "Process Group Description": "mesh_tp",
        "Process Group Ranks": "[4, 6]",
        **args,
    }


def test_metadata_on_the_kernel() -> None:
    info = {"rank": 6, "world_size": 8, "backend": "nccl"}
    sink = read(trace([kernel(NCCL, 20, 2, **comm(Seq=17))], distributedInfo=info))
    (row,) = sink.rows("collective")
    expected = {
        "op": "all_reduce",
        "reduction": "sum",
        "message_bytes": 2000,
        "in_bytes": 2000,
        "dtype": "BFloat16",
        "group_name": "5",
        "group_size": 2,
        "group_rank": 1,
        "group_source": "file",
        "sequence": 17,
        "sequence_source": "file",
        "timeline": "device",
        "class_source": "args",
        "library": "nccl",
        "is_p2p": False,
        "gpu_op_place": 0,
        "enqueue_ns": None,
        "in_split_sizes": None,
    }
    assert {k: row[k] for k in expected} == expected
    (group,) = sink.rows("process_group")
    assert (group["group_id"], group["ranks"], group["description"]) == (
        row["group_id"],
        [4, 6],
        "mesh_tp",
    )


def test_metadata_on_the_operator_only() -> None:
    events = [
        x("cpu_op", "record_param_comms", 5, 10, **{"External id": 40, **comm(Seq=3)}),
        launch(1, 8, **{"External id": 40}),
        kernel(NCCL, 20, 2, 1, **{"External id": 40}),
    ]
    (row,) = read(trace(events)).rows("collective")
    assert (
        row["op"],
        row["message_bytes"],
        row["class_source"],
        row["sequence"],
        row["enqueue_ns"],
    ) == ("all_reduce", 2000, "args", 3, 5000)


def test_external_ids_that_are_correlations_link_nothing() -> None:
    events = [
        x(
            "cpu_op",
            "record_param_comms",
            5,
            10,
            **{"External id": 1, **comm(**{"Collective name": "broadcast"})},
        ),
        launch(1, 100),
        kernel(NCCL, 120, 2, 1, **{"External id": 1}),
    ]
    assert read(trace(events)).rows("collective", "op", "class_source") == [("all_reduce", "name")]


def test_metadata_from_the_range_alone() -> None:
    dims = {"Input Dims": [[4, 8], [2]], "Input type": ["float", "float"]}
    events = [
        x("user_annotation", "nccl:all_reduce", 5, 10, **dims),
        launch(1, 8),
        kernel(NCCL, 20, 2, 1),
    ]
    assert read(trace(events)).rows(
        "collective", "op", "class_source", "message_bytes", "in_elements_count"
    ) == [("all_reduce", "annotation", 136, 34)]


def test_a_bare_kernel_is_known_by_its_name() -> None:
    assert read(trace([kernel(NCCL, 20, 2)])).rows(
        "collective", "op", "class_source", "message_bytes"
    ) == [("all_reduce", "name", None)]


def test_wait_is_no_collective() -> None:
    wait = comm(
        **{
            "Collective name": "wait",
            "Group size": 1,
            "Process Group Ranks": "[]",
            "In msg nelems": 0,
        }
    )
    sink = read(
        trace(
            [x("cpu_op", "record_param_comms", 5, 10, **wait), launch(1, 8), kernel(NCCL, 20, 2, 1)]
        )
    )
    assert sink.rows("collective", "op", "class_source", "group_size") == [
        ("all_reduce", "name", None)
    ]
    assert sink.rows("process_group") == []


@pytest.mark.parametrize(
    ("name", "inside", "outside", "size"),
    [
        ("allreduce", 100, 100, 200),
        ("_allgather_base", 100, 800, 1600),
        ("_reduce_scatter_base", 800, 100, 1600),
        ("all_to_allv", 100, 120, 200),
        ("broadcast", 100, 100, 200),
        ("send", 100, 100, 200),
        ("recv", 100, 100, 200),
        ("barrier", 0, 0, None),
    ],
)
def test_message_bytes_is_the_size_of_nccl_tests(
    name: str, inside: int, outside: int, size: int | None
) -> None:
    args = comm(**{"Collective name": name, "In msg nelems": inside, "Out msg nelems": outside})
    assert read(trace([kernel("ncclDevKernel_X", 20, 2, **args)])).rows(
        "collective", "message_bytes"
    ) == [size]


def test_unknown_element_types_give_no_bytes() -> None:
    args = comm(dtype="Float3")
    assert read(trace([kernel(NCCL, 20, 2, **args)])).rows(
        "collective", "message_bytes", "dtype"
    ) == [(None, "Float3")]


def test_point_to_point_and_splits() -> None:
    args = comm(**{"Collective name": "send", "Src Rank": 4, "Dst Rank": 6})
    other = comm(
        **{"Collective name": "all_to_allv", "In split size": "[3, 5]", "Out split size": [4, 4]}
    )
    sink = read(
        trace(
            [
                kernel("ncclDevKernel_SendRecv(x)", 20, 2, **args),
                kernel("ncclDevKernel_SendRecv(x)", 30, 2, **other),
            ]
        )
    )
    columns = ("op", "src_rank", "dst_rank", "is_p2p", "in_split_sizes", "out_split_sizes")
    assert sink.rows("collective", *columns) == [
        ("send", 4, 6, True, None, None),
        ("all_to_all", None, None, False, [3, 5], [4, 4]),
    ]


def test_groups_of_more_than_30_ranks() -> None:
    cut = comm(**{"Group size": 64, "Process Group Ranks": "[0, 2, ..., 58]"})
    whole = {**cut, "Global rank start": 0, "Global rank stride": 2}
    sink = read(trace([kernel(NCCL, 20, 2, **cut)]))
    assert sink.rows("collective", "group_id", "group_size") == [(None, 64)]
    assert [r["is_ranks_complete"] for r in sink.rows("process_group")] == [False]
    sink = read(trace([kernel(NCCL, 20, 2, **whole)]))
    (group,) = sink.rows("process_group")
    assert group["is_ranks_complete"]
    assert group["ranks"] == list(range(0, 128, 2))
    assert sink.rows("collective", "group_id") == [group["group_id"]]


HOSTILE = (-1, 2**20, 2**31, 2**63, 2**64, 10**400)


@pytest.mark.parametrize("number", HOSTILE)
def test_what_cannot_be_a_rank_makes_no_group(number: int) -> None:
    members = [0, number]
    if number < 2**63:  # the header's numbers are read one by one, the events' by their type
        info = {
            "rank": 0, "world_size": 2,
            "pg_config": [{"pg_name": "0", "pg_size": 2, "ranks": members}],
        }  # fmt: skip
        sink = read(trace([step(1, 0, 9)], tail={"distributedInfo": info}))
        assert [r["ranks"] for r in sink.rows("process_group")] == [None]
    said = comm(**{"Group size": 2, "Process Group Ranks": json.dumps(members)})
    sink = read(trace([kernel(NCCL, 20, 2, **said)]))
    assert sink.rows("collective", "group_id", "group_size") == [(None, 2)]
    assert [r["is_ranks_complete"] for r in sink.rows("process_group")] == [False]


@pytest.mark.parametrize("number", HOSTILE[2:])
def test_a_split_beyond_its_type_costs_itself(number: int) -> None:
    split = f"[3, {number}]"
    events = [
        kernel(NCCL, 20 + i, 1, **comm(**{"In split size": s}))
        for i, s in enumerate(("[3, 5]", split))
    ]
    sink = read(trace(events))
    fits = [3, number] if number < 2**32 else None
    assert [r["in_split_sizes"] for r in sink.rows("collective")] == [[3, 5], fits]


def test_a_cut_group_is_found_by_its_name_in_the_header() -> None:
    cut = comm(**{"Group size": 40, "Process Group Ranks": "[0, 1, ..., 29]"})
    config = [
        {
            "pg_name": "5",
            "pg_desc": "dp",
            "backend_config": "cuda:nccl",
            "pg_size": 40,
            "ranks": list(range(40)),
        }
    ]
    info = {"rank": 7, "world_size": 40, "backend": "nccl", "pg_count": 1, "pg_config": config}
    sink = read(trace([kernel(NCCL, 20, 2, **cut)], tail={"distributedInfo": info}))
    (group,) = sink.rows("process_group")
    assert sink.rows("collective", "group_id", "group_rank") == [(group["group_id"], 7)]


def test_on_demand_traces_write_ranks_as_text() -> None:
    config = [
        {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "backend_config": "cuda:nccl",
            "pg_size": 2,
            "ranks": "[0, 1]",
        }
    ]
    info = {
        "backend": "nccl",
        "rank": 1,
        "world_size": 2,
        "pg_config": config,
        "nccl_version": "unknown",
    }
    sink = read(trace([], tail={"distributedInfo": info}))
    assert [r["ranks"] for r in sink.rows("process_group")] == [[0, 1]]
    assert (sink.facts["file_rank"], sink.facts["versions"], sink.facts["status"]) == (
        1,
        [],
        "empty",
    )


def test_gloo_runs_on_the_host() -> None:
    events = [step(2, 0, 100), x("user_annotation", "gloo:all_reduce", 10, 30, tid=77)]
    (row,) = read(trace(events)).rows("collective")
    expected = {
        "op": "all_reduce",
        "library": "gloo",
        "timeline": "host",
        "thread": 77,
        "step": 2,
        "step_source": "time",
        "group_id": None,
        "device": None,
        "gpu_op_place": None,
        "class_source": "annotation",
    }
    assert {k: row[k] for k in expected} == expected


@pytest.mark.parametrize(
    ("name", "library", "op"),
    [
        ("void deep_ep::intranode::dispatch<8>(int*)", "deepep", "dispatch"),
        ("void x::multimem_all_reduce_kernel<4>(int*)", "symm_mem", "all_reduce"),
        ("void vllm::cross_device_reduce_2stage<half, 8>(int*)", "custom_all_reduce", "all_reduce"),
    ],
)
def test_communication_beyond_nccl(name: str, library: str, op: str) -> None:
    sink = read(trace([kernel(name, 20, 2)]))
    assert sink.rows("gpu_op", "class", "class_source") == [("communication", "name")]
    assert sink.rows("collective", "library", "op") == [(library, op)]


@pytest.mark.parametrize("name", ["ncclNetIrecv()", "ncclNetTest", "ncclNetIsend()"])
def test_what_the_network_of_nccl_marks_is_no_collective(name: str) -> None:
    """A patched NCCL marks its network's calls: nobody asked for them, and no kernel is theirs."""
    events = [x("user_annotation", name, 5, 10), x("cpu_op", name, 6, 2), launch(1, 8)]
    sink = read(trace([*events, kernel("gemm", 20, 2, 1)]))
    assert sink.rows("collective") == []
    assert sink.rows("open_collective") == []
    assert "collective" not in sink.rows("annotation", "domain")


def test_copies_inside_a_collective_stay_copies() -> None:
    events = [x("user_annotation", "nccl:all_gather", 5, 10), launch(1, 8)]
    events += [kernel("void at::native::elementwise_kernel<4>(int)", 20, 2, 1, **comm())]
    sink = read(trace(events))
    assert sink.rows("gpu_op", "class") == ["compute"]
    assert sink.rows("collective") == []


# --- facts ---------------------------------------------------------------------------------------


def test_only_listed_keys_are_kept() -> None:
    keys: dict[str, Any] = {
        "host_name": "gpu-11.example",
        "trace_id": "FCD2",
        "cuda_driver_version": 13000,
        "user_token": "hunter2",
        "PT_PROFILER_JOB_NAME": "hunter2",
        "cuda_runtime_version": "hunter2 x",
    }
    sink = read(trace([x("cpu_op", "a", 1, 1)], **keys))
    assert sink.facts["versions"] == ["cuda_driver_version=13000"]
    assert (sink.facts["host_name"], sink.facts["trace_id"]) == ("gpu-11.example", "FCD2")
    assert "hunter2" not in repr((sink.facts, sink.counters, sink.shapes))


def test_place_is_the_ordinal_of_the_event() -> None:
    events = [
        x("cpu_op", "a", 1, 1),
        {"ph": "s", "cat": "ac2g", "ts": 1},
        kernel("k", 3, 1),
        step(1, 0, 9),
    ]
    sink = read(trace(events))
    assert [sink.rows(t, "place") for t in ("host_op", "gpu_op", "annotation")] == [[0], [2], [3]]
    assert sink.facts["place_kind"] == "event"


def test_rows_in_a_temporary_file_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        kernel(NCCL if i % 3 else "k", 10 * i, 5, i, **(comm() if i % 2 else {})) for i in range(50)
    ]
    events += [launch(i, 10 * i - 1) for i in range(50)]
    plain = read(trace(events), chunk=1000)
    monkeypatch.setattr("tracekit.ingest.traces.spill.SPILL_ROWS", 7)
    monkeypatch.setattr("tracekit.ingest.kineto.gpu.HELD_ROWS", 7)
    spilled = read(trace(events), chunk=1000)
    assert len(spilled.tables["gpu_op"]) > 1
    for table in ("gpu_op", "collective"):
        assert spilled.rows(table) == plain.rows(table)


PLANTED = "hunter2" * 2


def test_secrets_in_names_are_not_kept() -> None:
    name = f"upload token={PLANTED}"
    events = [
        x("user_annotation", name, 1, 9),
        x("gpu_user_annotation", name, 1, 9),
        x("cpu_op", name, 1, 9),
        x("cuda_runtime", name, 1, 9),
        x("python_function", name, 1, 9),
        x("cuda_sync", name, 1, 9, pid=0),
        kernel(name, 1, 9),
        kernel(NCCL, 1, 9, **comm(**{"Process Group Description": f"password={PLANTED}"})),
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": name}},
    ]
    sink = read(trace(events), stacks=True)
    assert sink.rows("annotation", "name") == ["upload token=***"] * 2
    for table in sink.tables:
        assert PLANTED not in repr(sink.rows(table)), table


def test_rows_made_of_many_batches_or_of_few_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plain batches keep their times as text has them; between them lie some with odd ones."""
    events = []
    for i in range(60):
        odd = {"ts": f"{20 * i}.25"} if i % 7 == 3 else {}
        events += [
            x("cpu_op", f"op {i % 3}", 20 * i, 5) | odd,
            launch(i, 20 * i + 1),
            kernel("k", 20 * i + 6, 0 if i % 11 else -1, i, **(comm() if i % 5 else {})),
            x(f"category{i % 4}", "work", 20 * i + 2, 1),
        ]
    few = read(trace(events))
    monkeypatch.setattr(kineto_trace, "HELD_ROWS", 5)
    monkeypatch.setattr("tracekit.ingest.kineto.gpu.HELD_ROWS", 5)
    many = read(trace(events), chunk=700)
    assert len(many.tables["host_op"]) > len(few.tables["host_op"])
    rows_of_host = sorted(few.rows("host_op"), key=lambda r: r["place"])
    for table in ("host_op", "gpu_op", "collective"):
        rows = [sorted(s.rows(table), key=lambda r: r["place"]) for s in (few, many)]
        assert rows[0] == rows[1]
    assert few.counters == many.counters
    assert few.facts == many.facts
    monkeypatch.setattr(kineto_trace, "HELD_ROWS", 1 << 13)
    monkeypatch.setattr(kineto_trace, "FLUSH_BYTES", 2 << 10)  # rows with long names do not wait
    flushed = read(trace(events), chunk=700)
    assert len(flushed.tables["host_op"]) > len(few.tables["host_op"])
    assert sorted(r["place"] for r in flushed.rows("host_op")) == [r["place"] for r in rows_of_host]


def test_the_members_of_a_group_are_read_once_and_not_for_each_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At thousands of ranks that took longer than all else."""
    asked: list[str] = []
    rebuilt = collectives.group_ranks

    def counted(ranks: Any, *more: Any) -> Any:
        asked.append(ranks)
        return rebuilt(ranks, *more)

    monkeypatch.setattr(collectives, "group_ranks", counted)
    events = []
    for i in range(12):
        ranks = ("[4, 6]", "[4, 5]", "[6, 4]")[i % 3]
        said = comm(**{"Process Group Ranks": ranks, "Group size": 2, "Seq": i})
        at = 100 * i
        events += [
            x("cpu_op", "record_param_comms", at + 5, 10, **said),
            launch(i + 1, at + 8),
            kernel(NCCL, at + 20, 2, i + 1),
        ]
    sink = read(trace(events))
    assert len(asked) == 3
    groups = sink.rows("collective", "group_id")
    assert groups == [group_id((4, 6)), group_id((4, 5)), group_id((4, 6))] * 4
