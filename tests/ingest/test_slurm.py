"""Slurm's records of jobs: what is read, what is kept of it, and what is no such file.

Made from the manual pages of sacct and scontrol; no real record was at hand.
"""

from __future__ import annotations

from typing import Any

import pytest
from memory_sink import MemorySink, source_of

from tracekit.ingest import IngestOptions, ingestor, recognise

SECRET = "PLANTEDSECRET0123456789"  # noqa: S105  # it stands in what Slurm prints of a job

PARSABLE = f"""\
JobID|JobName|SubmitLine|State|ExitCode|End|NodeList|FailedNode
77|train {SECRET}|sbatch --token={SECRET}|NODE_FAIL|1:0|2024-05-01T10:00:00|gpu-[1-4]|gpu-3
77.batch|batch||CANCELLED|0:15|2024-05-01T10:00:05|gpu-1|
77.0|python||CANCELLED by 1000|0:9|2024-05-01T10:00:05|gpu-[1-4]|
77|train {SECRET}||TIMEOUT|0:0|2024-05-02T10:00:00|gpu-[1-4]|
77.0|python||CANCELLED by 1000|0:9|2024-05-02T10:00:05|gpu-[1-4]|
"""
TABLE = """\
JobID           JobName  Partition    Account  AllocCPUS      State ExitCode 
------------ ---------- ---------- ---------- ---------- ---------- -------- 
77                train        gpu         ml        256 CANCELLED+      0:0 
77.batch          batch                    ml         64 OUT_OF_ME+    0:125 
12345678.ex+     extern                    ml         64  COMPLETED      0:0 
78                train        gpu         ml        256     FAILED      3:0 
"""  # noqa: W291  # as it is printed
SCONTROL = f"""\
JobId=77 JobName={SECRET}
   UserId=me(1000) GroupId=me(1000) MCS_label=N/A
   JobState=TIMEOUT Reason=TimeLimit Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:15
   RunTime=1-00:00:10 TimeLimit=1-00:00:00 TimeMin=N/A
   StartTime=2024-05-01T10:00:00 EndTime=2024-05-02T10:00:10 Deadline=N/A
   ReqNodeList=(null) ExcNodeList=gpu-9
   NodeList=gpu-1
   BatchHost=gpu-1
   Command=/home/me/{SECRET}.sh

"""


def read(text: str | bytes) -> tuple[MemorySink, list[dict[str, Any]]]:
    data = text.encode() if isinstance(text, str) else text
    source, sink = source_of(data, "records.txt"), MemorySink()
    assert recognise(source).ingestor == "slurm_jobs"
    ingestor("slurm_jobs").read(source, sink, IngestOptions())
    return sink, [
        {"place": r["place"], "time_ns": r["time_ns"], **dict(f.split("=", 1) for f in r["fields"])}
        for r in sink.rows("log_event")
    ]


def test_a_record_is_a_job_with_its_steps_and_keeps_no_name() -> None:
    sink, rows = read(PARSABLE)
    noon = 1_714_557_600 * 10**9  # date -u -d 2024-05-01T10:00:00 +%s
    assert rows == [
        {"place": 2, "time_ns": noon, "job": "77", "state": "NODE_FAIL", "exit_code": "1",
         "why": "node failure", "host": "gpu-3"},
        {"place": 5, "time_ns": noon + 86_400 * 10**9, "job": "77", "state": "TIMEOUT",
         "exit_code": "0", "why": "time limit"},
    ]  # fmt: skip
    assert sink.facts["time_basis"] == "local"
    assert SECRET not in str([t.to_pylist() for ts in sink.tables.values() for t in ts])


def test_a_table_s_words_that_were_cut_short_are_known_where_one_fits() -> None:
    sink, rows = read(TABLE)
    assert rows == [
        # The step's memory ran out before somebody cancelled its job.
        {"place": 3, "time_ns": None, "job": "77", "state": "CANCELLED", "exit_code": "0",
         "why": "out of memory"},
        {"place": 5, "time_ns": None, "job": "12345678"},
        {"place": 6, "time_ns": None, "job": "78", "state": "FAILED", "exit_code": "3"},
    ]  # fmt: skip
    assert not sink.counters["unknown_slurm_record"]
    sink, rows = read(TABLE.replace("CANCELLED+", "       RE+"))  # RESIZING, REVOKED, ...
    assert "state" not in rows[0]
    assert (sink.counters["unknown_slurm_record"], sink.places["unknown_slurm_record"]) == (1, 3)


def test_scontrol_s_job_is_read_alike_on_one_line_and_on_many() -> None:
    _, many = read(SCONTROL + SCONTROL.replace("JobId=77", "JobId=78"))
    _, one = read(" ".join(SCONTROL.split()) + "\n")
    assert many[0] == one[0] == {
        "place": 1, "time_ns": 1_714_644_010 * 10**9, "job": "77", "state": "TIMEOUT",
        "signal": "SIGTERM", "why": "time limit", "host": "gpu-1",
    }  # fmt: skip
    assert [r["job"] for r in many] == ["77", "78"]


def test_an_end_that_is_only_expected_is_no_time() -> None:
    _, (row,) = read(SCONTROL.replace("TIMEOUT", "RUNNING"))
    assert row == {"place": 1, "time_ns": None, "job": "77", "state": "RUNNING"}


@pytest.mark.parametrize(
    ("steps", "host"),
    [
        ((("batch", "gpu-1"),), "gpu-1"),
        ((("batch", "gpu-1"), ("0", "gpu-2")), None),
        ((("0", "gpu-[1-2]"),), None),
        ((("0", "gpu-[1-2]"), ("batch", "gpu-1")), None),
    ],
)
def test_memory_names_a_node_only_where_each_step_had_it_alone(
    steps: tuple[tuple[str, str], ...], host: str | None
) -> None:
    lines = ["JobID|State|NodeList", "77|OUT_OF_MEMORY|gpu-[1-2]"]
    lines += [f"77.{step}|OUT_OF_MEMORY|{nodes}" for step, nodes in steps]
    _, (row,) = read("\n".join(lines))
    assert (row["why"], row.get("host")) == ("out of memory", host)


@pytest.mark.parametrize("job", ["77_3", "77_[1-9]", "77+1"])
def test_jobs_of_arrays_and_heterogeneous_ones_keep_their_number(job: str) -> None:
    _, (row,) = read(f"JobIDRaw|State|\n{job}|TIMEOUT|\n{job}.0|CANCELLED|\n")
    assert row["job"] == job


def test_damage_is_counted_and_the_rest_is_read() -> None:
    damaged = PARSABLE.replace("77|train", "7x|train", 1) + "79|tr\n80|a|b|BROKEN|1:0|x|n|\n"
    sink, rows = read(damaged.encode() + b"81|\xff\x00|b|FAILED|1:0|Unknown|None assigned|\n")
    assert sink.counters["torn_slurm_line"] == 1
    assert sink.counters["unknown_slurm_record"] == 2
    assert [(r["job"], r.get("state"), r["time_ns"] is None) for r in rows] == [
        ("77", None, True),  # the steps of the job that cannot be read
        ("77", "TIMEOUT", False),
        ("80", None, True),
        ("81", "FAILED", True),
    ]
    assert "host" not in rows[3]


def test_the_command_before_its_output_and_slurm_s_own_marks_are_no_record() -> None:
    table = "$ sacct -j 7\n" + TABLE.replace("CANCELLED+      0:0", "OUT_OF_ME+    0:125")
    sink, rows = read(table)
    assert "signal" not in rows[0]
    assert "exit_code" not in rows[0]
    assert (rows[0]["why"], rows[0]["place"]) == ("out of memory", 4)
    assert not sink.counters["unknown_slurm_record"]
    assert read("me@login:~> scontrol show job 77\n" + SCONTROL)[1][0]["why"] == "time limit"


@pytest.mark.parametrize("text", ["JobID|State\n", "JobID State\n----- -----\n"])
def test_a_header_alone_is_empty(text: str) -> None:
    sink, rows = read(text)
    assert (rows, sink.facts["status"]) == ([], "empty")


@pytest.mark.parametrize(
    "text",
    [
        SCONTROL + "step 1: loss 3.2, time 12 ms\n" * 40,
        TABLE + "epoch 1 loss 3.2\n" * 20,
        "JobID State\n77 RUNNING\n",
        "JobID|State of mind\n77|calm\n",
        "JobId=77 is done\n",
        "id|state\n77|FAILED\n",
    ],
)
def test_a_job_s_own_log_and_other_tables_are_no_records(text: str) -> None:
    assert recognise(source_of(text.encode(), "slurm-77.out")).ingestor != "slurm_jobs"
