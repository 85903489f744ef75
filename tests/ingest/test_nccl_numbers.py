"""Numbers that no column holds, in everything that NCCL and PyTorch write of communication.

Each is left out of its record, the rest of the record stays, and the loss is counted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nccl_logs import info, job
from soaks import soak
from tracekit import api
from tracekit.ingest.nccl import bench

LOG = job("2.27.7")
TOO_LARGE = (2**31, 2**40, 2**63, 2**64, 10**30, 10**4000)


def read(tmp_path: Path, name: str, text: str) -> tuple[Any, int]:
    """The run of one file, and how many values did not fit into their columns."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    run = api.open(tmp_path / name)
    found = run.sql(
        "SELECT coalesce(sum(occurrence_count), 0) FROM ingest_stat WHERE counter = 'no_fit'"
    ).item()
    return run, int(found)


def table(run: Any, name: str, columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in run.sql(f"SELECT {columns} FROM {name} ORDER BY place").rows()]


@pytest.mark.parametrize("number", soak(TOO_LARGE, fast=[2**31, 2**64]))
def test_a_number_of_a_communicator_is_counted(tmp_path: Path, number: int) -> None:
    told = LOG.replace("nvmlDev 1 ", f"nvmlDev {number} ")
    run, lost = read(tmp_path, "a.log", told)
    assert lost == 1
    assert table(run, "nccl_comm", "group_rank, device, nvml_index") == [(0, 0, 0), (1, 1, None)]


@pytest.mark.parametrize("number", soak(TOO_LARGE[2:], fast=[2**64]))
def test_a_number_of_a_call_is_counted(tmp_path: Path, number: int) -> None:
    line = info(
        f"AllReduce: opCount 1 count {number} datatype 7 op 0 root 0 newWord 1 comm 0x7f0000000000"
    )
    run, lost = read(tmp_path, "a.log", LOG + line + "\n")
    assert lost == 1
    assert table(run, "nccl_op", "op, elements_count")[-1] == ("all_reduce", None)


@pytest.mark.parametrize("number", soak(TOO_LARGE, fast=[2**31, 2**64]))
def test_a_number_of_a_benchmark_is_counted(tmp_path: Path, number: int) -> None:
    table_of = (
        "# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20\n"
        "# size count type redop root time algbw busbw #wrong\n"
        f"     8     2 float  sum {number} 10.0  0.00  0.00      0\n"
        "# Avg bus bandwidth    : 0.1\n"
    )
    run, lost = read(tmp_path, "bench.log", table_of)
    assert lost == 1
    assert table(run, "bench_result", "message_bytes, root") == [(8, None)]


@pytest.mark.parametrize("number", soak(TOO_LARGE[2:], fast=[2**64]))
def test_a_number_of_a_flight_record_is_counted(tmp_path: Path, number: int) -> None:
    entry = {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_784_601_666_000_000_000,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "state": "completed",
    }
    dump = {"version": "2.4", "pg_config": {}, "pg_status": {}, "entries": [entry]}
    run, lost = read(tmp_path, "nccl_trace_rank_0.json", json.dumps(dump))
    assert lost == 1
    assert table(run, "comm_call", "op, sequence, message_bytes") == [("all_reduce", None, 16)]


@pytest.mark.parametrize("text", [b"1e308", b"1e400", b"9" * 400])
def test_a_time_of_a_benchmark_that_no_float_holds_is_none(text: bytes) -> None:
    assert bench._scaled(text, 1000) is None
    assert bench._scaled(b"1.5", 1000) == 1500
