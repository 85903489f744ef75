"""One small trace for each trap: launches and steps, rows that must not be counted twice, facts."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from memory_sink import MemorySink, source_of

from kineto_events import NCCL, comm, kernel, launch, read, step, trace, x
from tracekit.ingest.base import IngestOptions
from tracekit.ingest.kineto import collectives
from tracekit.ingest.kineto import trace as kineto_trace
from tracekit.values import group_id

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
    monkeypatch.setattr("tracekit.ingest.traces.launches.PIECE_ROWS", 3)
    monkeypatch.setattr("tracekit.ingest.kineto.gpu.HELD_ROWS", 7)
    spilled = read(trace(events), chunk=1000)
    assert len(spilled.tables["gpu_op"]) > 1
    for table in ("gpu_op", "collective"):
        assert spilled.rows(table) == plain.rows(table)


def test_nothing_of_a_reader_stays_when_it_has_read() -> None:
    """Cycles are not collected while files are read: those of a thousand traces would add up."""
    events = [launch(1, 150), kernel(NCCL, 215, 10, 1, **comm()), step(1, 100, 100)]
    reader = kineto_trace.TraceReader(
        source_of(trace(events)), MemorySink(), IngestOptions(), chunk_bytes=1 << 16
    )
    gone = weakref.ref(reader)
    gc.disable()
    try:
        reader.run()
        del reader
        assert gone() is None
    finally:
        gc.enable()


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
