"""Lines of schedulers, launchers and libraries that say what ended a job."""

from __future__ import annotations

import pytest

from tracekit.ingest.nccl.endings import event_of


@pytest.mark.parametrize(
    ("line", "code", "fields"),
    [
        (
            "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-05-01T10:00:00 DUE TO TIME "
            "LIMIT ***",
            "job_ended",
            ["by=Slurm", "why=time limit"],
        ),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.",
            "job_ended",
            ["by=Slurm", "why=out of memory"],
        ),
        ("srun: error: n1: task 3: Killed", "job_ended", ["by=Slurm", "why=killed"]),
        (
            "mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).",
            "job_ended",
            ["by=mpirun", "why=killed", "signal=9"],
        ),
        (
            "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD",
            "job_ended",
            ["by=MPI", "why=MPI_ABORT"],
        ),
        ("cxil_map: write error", "library_error", ["call=cxil_map", "what=write error"]),
        (
            "n1: Test NCCL failure common.cu:401 'unhandled system error / token=hunter2'",
            "test_failed",
            ["what=NCCL"],
        ),
    ],
)
def test_what_ended_the_job_is_kept_in_words_of_closed_lists(
    line: str, code: str, fields: list[str]
) -> None:
    assert event_of(line.encode()) == (code, "error", fields)


@pytest.mark.parametrize(
    "line",
    [
        "srun: job 12 queued and waiting for resources",
        "Killed 3 stale processes before the job",
        "slurmstepd: task_p_pre_launch: Using sched_affinity for tasks",
        "epoch 3: Test accuracy 0.7",
    ],
)
def test_other_lines_end_nothing(line: str) -> None:
    assert event_of(line.encode()) is None
