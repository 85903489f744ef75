"""What ended a job, said by others than NCCL: its scheduler, its launcher, a library, nccl-tests.

Slurm (slurmstepd, srun), Open MPI's mpirun, HPE's libcxi and nccl-tests print such lines between
those of NCCL. Only words of closed lists and numbers are kept.
"""

from __future__ import annotations

import re

WORDS = (
    b"slurmstepd", b"srun: ", b"cxil_", b"mpirun", b"mpiexec", b"prterun", b"MPI_ABORT",
    b": Test ", b"oom-kill", b"oom_kill", b"Segmentation fault", b"Bus error", b"Killed",
)  # fmt: skip
"""Every such line holds one of these."""
KEY = re.compile(b"|".join(map(re.escape, WORDS)))

_WHY = (
    (b"DUE TO TIME LIMIT", "time limit"),
    (b"DUE TO NODE FAILURE", "node failure"),
    (b"DUE TO PREEMPTION", "preemption"),
    (b"oom_kill", "out of memory"),
    (b"oom-kill", "out of memory"),
    (b"Out Of Memory", "out of memory"),
    (b"Segmentation fault", "segmentation fault"),
    (b"Bus error", "bus error"),
    (b"MPI_ABORT was invoked", "MPI_ABORT"),
    (b"CANCELLED AT", "cancelled"),
    (b"Killed", "killed"),
    (b"Terminated", "terminated"),
    (b"Aborted", "aborted"),
)
"""What a line says, and its name; the first counts."""
_EXIT = re.compile(rb"(?:[Ee]xited with exit code|exited with non-zero code:?) (\d{1,3})\b")
_SIGNAL = re.compile(rb"(?:exited on signal|[Kk]illed by signal) (\d{1,3})\b")
_CXI = re.compile(rb"\b(cxil_\w{1,40}): (write error|[\w ]{1,30} failed)")
_TEST = re.compile(rb": Test (NCCL|CUDA|MPI) failure \w{1,40}\.\w{1,4}:\d{1,6}")
_LAUNCHER = re.compile(rb"\b(slurmstepd|srun|mpirun|mpiexec|prterun)\b|\b(MPI)_ABORT")
_BY = {"slurmstepd": "Slurm", "srun": "Slurm", "MPI": "MPI"}


def event_of(line: bytes) -> tuple[str, str, list[str]] | None:
    """Code, severity and fields of a line that says what ended the job; None for any other."""
    if cxi := _CXI.search(line):
        return "library_error", "error", [f"call={cxi[1].decode()}", f"what={cxi[2].decode()}"]
    if failed_test := _TEST.search(line):
        return "test_failed", "error", [f"what={failed_test[1].decode()}"]
    who = _LAUNCHER.search(line)
    why = next((name for piece, name in _WHY if piece in line), None)
    fields = [f"why={why}"] if why else []
    if exit_code := _EXIT.search(line):
        fields.append(f"exit_code={exit_code[1].decode()}")
    if signal := _SIGNAL.search(line):
        fields.append(f"signal={signal[1].decode()}")
    if not fields or (who is None and why not in ("segmentation fault", "bus error")):
        return None
    if who is not None:
        word = (who[1] or who[2]).decode()
        fields.insert(0, f"by={_BY.get(word, word)}")
    return "job_ended", "error", fields
