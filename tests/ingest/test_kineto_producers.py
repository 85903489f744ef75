"""Old and odd producers: schemas, types, ROCm, memory, frames."""

from __future__ import annotations

import json

from kineto_events import kernel, read, trace, x


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
