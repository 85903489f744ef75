"""What ended a job, read from its output: real logs of torchrun, and lines of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from memory_sink import MemorySink, source_of
from msgspec.structs import replace

import nccl_logs
from tracekit.ingest import ingestor, recognise
from tracekit.ingest.base import IngestOptions

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
SECRET = "PLANTEDSECRET0123456789"  # noqa: S105  # what the recorded program put into its exception


RAY = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. To "
    "troubleshoot the problem, check the logs for the dead worker. RayTask ID: ff01 Worker ID: f8a "
    "Node ID: 09d0 Worker IP address: 192.168.1.4 Worker port: 10110 Worker PID: 1508038 Worker "
    "exit type: {} Worker exit detail: Worker unexpectedly exits with a connection error code 2."
)


def events(text: str | bytes) -> list[dict[str, Any]]:
    rows = nccl_logs.read(text).tables.get("log_event", [])
    return [{"code": r["code"], **dict(f.split("=", 1) for f in r["fields"])} for r in rows]


RECORDED = [
    path for kind in ("torchrun", "waiting", "differing") for path in sorted(LOGS.glob(f"{kind}-*"))
]


@pytest.mark.parametrize("path", RECORDED, ids=lambda p: p.stem)
def test_a_real_log_keeps_types_and_places_and_no_text(path: Path) -> None:
    sink = nccl_logs.read_file(path)
    rows = sink.tables["log_event"]
    codes = {"python-exception", "worker-exit", "worker-failed", "job-state"}
    if not path.stem.startswith("torchrun"):
        codes |= {"barrier-missed", "barrier-reached", "calls-differ"}
    assert {r["code"] for r in rows} <= codes
    assert SECRET not in sink.everything
    assert not sink.counts.get("torn_traceback")


def test_of_two_nodes_whose_lines_alternate_the_same_is_read() -> None:
    """srun --label prints what comes first; each launcher names the first of its own ranks."""

    def told(text: str) -> set[tuple[object, ...]]:
        return {(e["code"], *sorted(e.items())) for e in events(text)}

    text = (LOGS / "torchrun-two-nodes.log").read_text()
    first, second = (
        [line for line in text.splitlines(keepends=True) if line.startswith(f"{node}: ")]
        for node in (0, 1)
    )
    ranks = {e["rank"] for e in events(text) if e["code"] == "worker-failed"}
    assert ranks == {"0", "1", "2", "3"}
    count = len(first) - len(second)
    alternate = [*first[:count], *(line for pair in zip(second, first[count:], strict=True)
                                   for line in pair)]  # fmt: skip
    assert told("".join(alternate)) == told(text)
    assert told("".join([*first, *second])) == told(text)


def test_torchrun_s_summary_and_each_rank_s_traceback_are_read() -> None:
    rows = nccl_logs.read_file(LOGS / "torchrun-raise.log").tables["log_event"]
    told = [(r["place"], r["code"], r["fields"][1:]) for r in rows]
    assert told[0] == (
        26, "python-exception",
        ["rank=2", "type=ValueError", "file=train.py", "line=6", "function=faulty_loss"],
    )  # fmt: skip
    assert [f[0:3] for _, c, f in told if c == "python-exception"][1:] == [
        [f"rank={r}", "type=RuntimeError", "says=peer_lost"] for r in (1, 3)
    ]
    assert [f for _, c, f in told if c == "worker-failed"] == [
        *([f"rank={r}", f"local_rank={r}", "signal=SIGTERM", f"pid={p}"]
          for r, p in ((0, 15514), (1, 15531), (3, 15533))),
        ["rank=2", "local_rank=2", "exit_code=1", "pid=15532", "is_root=1"],
    ]  # fmt: skip
    assert {r["time_ns"] for r in rows} == {None, 1_795_403_144 * 10**9}


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("torchrun-loader-raised", ["rank=2", "type=OSError", "says=disk_full", "file=w.py",
                                    "line=10", "function=__getitem__"]),
        ("torchrun-loader-killed", ["rank=2", "type=RuntimeError", "says=loader_killed",
                                    "file=w.py", "line=14", "function=<module>"]),
        ("torchrun-told-to-end", ["why=terminated"]),
        ("multiprocessing-spawn", ["local_rank=1", "type=ValueError", "file=spawn.py", "line=4",
                                   "function=f"]),
    ],
)  # fmt: skip
def test_real_endings_of_loaders_launchers_and_spawned_processes(
    name: str, first: list[str]
) -> None:
    """Of what a loader's worker raised its own place; of a launcher that was told to end, that."""
    rows = nccl_logs.read_file(LOGS / f"{name}.log").tables["log_event"]
    assert rows[0]["fields"][1:] == first
    raised = [r for r in rows if "rank=2" in r["fields"] and r["code"] == "python-exception"]
    assert len(raised) <= 1  # not once more as what the loader passes on


def test_what_another_rank_says_between_is_not_the_workers() -> None:
    text = (
        "[rank2]: Traceback (most recent call last):\n[rank2]: OSError: Caught OSError in "
        "DataLoader worker process 0.\n[rank1]: Traceback (most recent call last):\n"
        "[rank1]: RuntimeError: Connection closed by peer\n"
        "[rank2]: Original Traceback (most recent call last):\n"
        '[rank2]:   File "/a/data.py", line 7, in read\n[rank2]: KeyError: 3\n'
    )
    assert [(e["rank"], e["type"]) for e in events(text)] == [
        ("2", "KeyError"), ("1", "RuntimeError"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("says", "ends"),
    [("signal SIGKILL", {"signal": "SIGKILL"}), ("exit code 3", {"exit_code": "3"})],
)
def test_a_spawned_process_that_ended_is_told_by_its_number(
    says: str, ends: dict[str, str]
) -> None:
    kind = "torch.multiprocessing.spawn.ProcessExitedException"
    text = f"Traceback (most recent call last):\n{kind}: process 1 terminated with {says}\n"
    (event,) = events(text)
    assert (event["code"], event["local_rank"]) == ("worker-exit", "1")
    assert ends.items() <= event.items()


def test_a_pod_before_the_line_is_the_host_of_what_failed() -> None:
    text = "[pod/job-worker-1/pytorch] Traceback (most recent call last):\n"
    (event,) = events(f"{text}[pod/job-worker-1/pytorch] ValueError: x\n")
    assert (event["host"], event["type"]) == ("job-worker-1", "ValueError")


@pytest.mark.parametrize(
    ("prefix", "pod"),
    [("trainer-1 pytorch ", "trainer-1"), ("job-7-x2kqz main ", "job-7-x2kqz"),
     ("from the ", None), ("step-1 of 2 ", None), ("trainer pytorch ", None)],
)  # fmt: skip
def test_a_pod_that_stern_puts_before_the_line_is_one_too(prefix: str, pod: str | None) -> None:
    text = f"{prefix}Traceback (most recent call last):\n"
    (event,) = events(f"{text}{prefix}ValueError: x\n")
    assert (event.get("host"), event["type"]) == (pod, "ValueError")


def test_launches_of_one_file_are_told_apart() -> None:
    rows = nccl_logs.read_file(LOGS / "torchrun-restarted-in-vain.log").tables["log_event"]
    rounds = [(r["fields"][0], r["code"]) for r in rows]
    assert rounds[:4] == [("round=0", "python-exception")] * 3 + [("round=0", "worker-exit")]
    assert {r for r, _ in rounds[4:]} == {"round=1"}


def test_a_traceback_in_the_summary_is_its_worker_s() -> None:
    rows = nccl_logs.read_file(LOGS / "torchrun-record.log").tables["log_event"]
    (inside,) = [r for r in rows if r["code"] == "python-exception" and r["place"] == 111]
    assert inside["fields"][:4] == [
        "round=0", "rank=1", "type=RuntimeError", "says=peer_lost",
    ]  # fmt: skip


CHAINED = """Traceback (most recent call last):
  File "/job/data.py", line 3, in load
    return cache[key]
KeyError: 'secret'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/job/train.py", line 9, in <module>
    load()
  File "/venv/lib/python3.11/site-packages/lib.py", line 1, in f
    raise x
job.errors.DataError: no key secret
"""


def test_of_a_chain_the_first_exception_counts() -> None:
    assert events(CHAINED) == [
        {"code": "python-exception", "round": "0", "type": "KeyError", "file": "data.py",
         "line": "3", "function": "load"}
    ]  # fmt: skip


def test_the_place_is_the_program_s_own_last_frame() -> None:
    (one,) = events(CHAINED.partition("occurred:\n\n")[2])
    assert (one["type"], one["file"], one["line"]) == ("job.errors.DataError", "train.py", "9")


def test_tracebacks_printed_into_each_other_are_taken_apart_by_rank() -> None:
    def of(rank: int, kind: str) -> list[str]:
        return [f"[rank{rank}]: {line}" for line in (
            "Traceback (most recent call last):", '  File "a.py", line 1, in f', "    g()",
            f"{kind}: x")]  # fmt: skip

    pairs = zip(of(0, "KeyError"), of(1, "ValueError"), strict=True)
    found = events("\n".join(line for pair in pairs for line in pair))
    assert [(e["rank"], e["type"]) for e in found] == [("0", "KeyError"), ("1", "ValueError")]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "srun: error: gpu-12: task 3: Out Of Memory",
            {"code": "task-ended", "host": "gpu-12", "tasks": "3", "signal": "SIGKILL",
             "why": "out of memory"},
        ),
        (
            "srun: error: gpu-12: tasks 0-2,5: Exited with exit code 143",
            {"code": "task-ended", "host": "gpu-12", "tasks": "0-2,5", "exit_code": "143"},
        ),
        (
            "slurmstepd: error: *** STEP 77.0 ON gpu-12 CANCELLED AT 2024-05-01T10:00:00 DUE TO "
            "TIME LIMIT ***",
            {"code": "job-cancelled", "host": "gpu-12", "why": "time limit"},
        ),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks "
            "have been OOM Killed.",
            {"code": "task-ended", "signal": "SIGKILL", "why": "out of memory"},
        ),
        (
            "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:9kB, "
            "anon-rss:1024kB, file-rss:0kB",
            {"code": "oom-kill", "pid": "4242", "signal": "SIGKILL", "why": "out of memory",
             "of": "cgroup", "anonymous_bytes": "1048576"},
        ),
        (
            "[rank1]: Fatal Python error: Segmentation fault",
            {"code": "fatal-signal", "rank": "1", "signal": "SIGSEGV"},
        ),
        (
            "[rank3]:[E115 15:39:38.0 ProcessGroupNCCL.cpp:1899] [PG ID 0 PG GUID 0(default_pg) "
            "Rank 3] Process group watchdog thread terminated with exception: CUDA error: an "
            "illegal memory access was encountered",
            {"code": "fatal-signal", "rank": "3", "signal": "SIGABRT",
             "cuda": "an illegal memory access"},
        ),
        (
            "mpirun noticed that process rank 5 with PID 31337 on node gpu-2 exited on signal 9 "
            "(Killed).",
            {"code": "worker-failed", "rank": "5", "host": "gpu-2", "signal": "SIGKILL",
             "pid": "31337", "is_root": "1"},
        ),
        (
            "  Process name: [[24063,1],3]\n  Exit code:    1",
            {"code": "worker-failed", "rank": "3", "exit_code": "1", "is_root": "1"},
        ),
        (
            "[2023-05-10 10:22:34,300] [ERROR] [launch.py:434:sigkill_handler] ['/usr/bin/python', "
            "'-u', 't.py', '--local_rank=1', '--token=hunter2'] exits with return code = -9",
            # Of whichever failed the launcher prints the command that it began last.
            {"code": "worker-exit", "agent": "0", "signal": "SIGKILL"},
        ),
        (
            "node-2: [2023-06-01 08:00:00,300] [ERROR] [launch.py:321:sigkill_handler] ['python3', "
            "'a.py', '--local_rank=0'] exits with return code = 1",
            {"code": "worker-exit", "agent": "host=node-2", "host": "node-2", "local_rank": "0",
             "exit_code": "1"},
        ),
        (
            "ERROR 05-01 11:01:29 [multiproc_executor.py:99] Worker proc VllmWorker-2 died "
            "unexpectedly, shutting down executor.",
            {"code": "worker-exit", "agent": "0", "local_rank": "2"},
        ),
        (
            "2026-01-05 10:00:00.1: E coordination_service.cc:1] /job:jax_worker/replica:0/task:5 "
            "has been set to ERROR in coordination service: UNAVAILABLE: Task "
            "/job:jax_worker/replica:0/task:5 heartbeat timeout. This indicates that it failed.",
            {"code": "task-ended", "task": "5", "says": "no_heartbeat"},
        ),
        (
            "slurmstepd: error: *** JOB 8 ON gpu-1 CANCELLED AT 2024-05-01T10:00:00 ***",
            {"code": "job-cancelled", "host": "gpu-1", "why": "cancelled", "of": "job"},
        ),
        (
            "=>> PBS: job killed: walltime 36017 exceeded limit 36000",
            {"code": "job-state", "why": "time limit"},
        ),
        (
            "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
            {"code": "job-state", "why": "out of memory"},
        ),
        (
            "slurmstepd: error: *** STEP 8.0 ON gpu-1 CANCELLED AT 2024-05-01T10:00:00 DUE TO "
            "PREEMPTION ***",
            {"code": "job-cancelled", "host": "gpu-1", "why": "preempted"},
        ),
        (
            "[rank: 1] Child process with PID 2231 terminated with code -11. Forcefully",
            {"code": "worker-exit", "agent": "0", "local_rank": "1", "signal": "SIGSEGV",
             "pid": "2231"},
        ),
        (
            "/var/spool/slurmd/job00191/slurm_script: line 28:  8156 Killed     python3 main.py",
            {"code": "task-ended", "signal": "SIGKILL", "pid": "8156"},
        ),
        (
            RAY.format("SYSTEM_ERROR"),
            {"code": "task-ended", "host": "192.168.1.4", "pid": "1508038"},
        ),
        (
            RAY.format("NODE_OUT_OF_MEMORY"),
            {"code": "task-ended", "host": "192.168.1.4", "signal": "SIGKILL",
             "why": "out of memory", "of": "host", "pid": "1508038"},
        ),
    ],
)  # fmt: skip
def test_lines_of_schedulers_and_kernels(line: str, told: dict[str, str]) -> None:
    assert events(line + "\n") == [told | {"round": "0"}]


def test_mpirun_s_tag_is_the_rank_of_a_traceback() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 61, in main\n    raise ValueError\nValueError: x\n'
    )
    (event,) = events("".join(f"[1,3]<stderr>:{line}\n" for line in text.splitlines()))
    assert (event["code"], event["rank"], event["line"]) == ("python-exception", "3", "61")


@pytest.mark.parametrize(
    "line",
    [
        "INFO: Killed processes are restarted",
        "srun: error: Unable to create step",
        "Failures: 0 of 12 tests",
        "slurmstepd: info: fine",
        "loss (exitcode: none)",
        "  Exit code:    1",  # of what, nothing says
        "train.py: line 28: 8156 Killers",
        "it exits with return code = 1 sometimes",
        RAY.format("INTENDED_SYSTEM_EXIT"),
        # A timeout is a hang of its group, and no failure of the rank that tells it.
        "[rank0]:[E1 x] [Rank 0] Process group watchdog thread terminated with exception: [Rank 0] "
        "Watchdog caught collective operation timeout",
        "[rank0]:[E1 x] NCCL watchdog thread terminated with exception: CUDA error: unknown error",
    ],
)
def test_other_lines_are_nothing(line: str) -> None:
    assert events(line + "\n") == []


def test_a_launcher_s_word_and_its_traceback_may_stand_in_one_line_behind_a_bar() -> None:
    text = (
        "Loading:   0%|   | 0/2 [00:00<?, ?it/s]WARNING:api:Sending process 7 closing signal"
        "   ERROR:api:failed (exitcode: -9) local_rank: 4 (pid: 899509) of binary: /x/python   "
        "Traceback (most recent call last):\n"
    )
    (event,) = events(text)
    assert (event["code"], event["local_rank"], event["signal"]) == ("worker-exit", "4", "SIGKILL")


def test_a_traceback_without_its_end_is_counted_and_a_long_one_ends() -> None:
    cut = nccl_logs.read("Traceback (most recent call last):\n" + '  File "a.py", line 1, in f\n')
    assert cut.counts["torn_traceback"] == 1
    endless = "Traceback (most recent call last):\n" + "  more\n" * 5000
    assert nccl_logs.read(endless).counts["torn_traceback"] == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("(pid 7) is killed by signal: Killed. ", "loader_killed"),
        ("(pid 7) is killed by signal: Aborted. ", "loader_died"),
        ("(pid(s) 7, 8) exited unexpectedly", "loader_died"),
    ],
)
def test_how_a_worker_of_a_loader_ended_is_told(text: str, says: str) -> None:
    (event,) = told_of(*raised("a.py", kind=f"RuntimeError: DataLoader worker {text}"))
    assert event["says"] == says


def test_a_loader_that_lacks_shared_memory_says_so() -> None:
    head = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "a.py", line 3, in f\n'
    bus = "[rank1]: RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is "
    (event,) = events(head + bus + "possible that dataloader's workers are out of shared memory.\n")
    assert event["says"] == "shared_memory"


def test_a_group_of_exceptions_is_one() -> None:
    text = """\
[rank2]:   + Exception Group Traceback (most recent call last):
[rank2]:   |   File "/job/train.py", line 31, in main
[rank2]:   |     raise ExceptionGroup("many", [ValueError("a")])
[rank2]:   | ExceptionGroup: many (1 sub-exception)
[rank2]:   +-+---------------- 1 ----------------
[rank2]:     | ValueError: a
[rank2]:     +------------------------------------
"""
    (event,) = events(text)
    assert (event["rank"], event["type"], event["line"]) == ("2", "ExceptionGroup", "31")


NCCL_FAILED = """\
{0}Traceback (most recent call last):
{0}  File "/job/train.py", line 10, in <module>
{0}    dist.barrier()
{0}torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1333, unhandled system \
error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5
{1}ncclSystemError: System call or external library call failed or device error.
{1}Last error:
{1}{2}
"""


@pytest.mark.parametrize(
    ("last", "says"),
    [
        ("socketStartConnect: Connect to 10.0.0.5<40823> failed : No route to host", "peer_lost"),
        ("socketProgress: Connection closed by remote peer node-7<51159>", "peer_lost"),
        ("NET/IB : Got completion from peer 10.0.0.9<4> with status=12 opcode=129 len=0",
         "link_failed"),
        ("Cuda failure 2 'out of memory'", "gpu_memory"),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 50000", "duplicate_gpu"),
        ("Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)",
         "nccl_shared_memory"),
        ("an error of which nothing is known", None),
    ],
)  # fmt: skip
def test_what_nccl_says_behind_pytorch_s_exception_is_what_it_was(
    last: str, says: str | None
) -> None:
    for tag in ("", "[rank3]: "):
        (event,) = events(NCCL_FAILED.format(tag, tag, last))
        assert (event["type"], event.get("says")) == ("torch.distributed.DistBackendError", says)
        assert "10.0.0.5" not in str(event)
    # Another rank's line says nothing of this one.
    (event,) = events(NCCL_FAILED.format("[rank3]: ", "[rank4]: ", last))
    assert "says" not in event


def test_nccl_s_failed_call_of_cuda_is_told() -> None:
    (event,) = events(NCCL_FAILED.format("", "", "Cuda failure 'initialization error'"))
    assert event["cuda"] == "initialization error"


def test_a_rank_that_says_no_more_is_not_waited_for() -> None:
    head, others = NCCL_FAILED.split("{1}")[0].format("[rank3]: "), "[rank4]: a line\n"
    late = "[rank3]: Connection closed by remote peer\n"
    (event,) = events(head + others * 999 + late)
    assert event["says"] == "peer_lost"
    (event,) = events(head + others * 1001 + late)
    assert "says" not in event


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("HW Exception by GPU node-9 (Agent handle: 0x631351bb5a20) reason :GPU Hang", "a hang"),
        ("Memory access fault by GPU node-1 (Agent handle: 0x5) on address 0x7f. Reason: Unknown.",
         "a memory access fault"),
    ],
)  # fmt: skip
def test_what_rocm_ends_a_process_for(line: str, what: str) -> None:
    (event,) = events(f"[rank2]: {line}\n")
    told = {key: event[key] for key in ("code", "rank", "signal", "cuda")}
    assert told == {"code": "fatal-signal", "rank": "2", "signal": "SIGABRT", "cuda": what}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("RuntimeError: Found no NVIDIA driver on your system.", "no_gpu"),
        ("RuntimeError: No CUDA GPUs are available", "no_gpu"),
        ("OSError: [Errno 98] Address already in use", "address_in_use"),
        ("DistNetworkError: listen failed. port: 29500, code: -98, name: EADDRINUSE, message: x",
         "address_in_use"),
        ("RuntimeError: what a program says of itself", None),
    ],
)  # fmt: skip
def test_what_a_host_lacks_is_told_by_words_of_the_exception(text: str, says: str | None) -> None:
    head = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "w.py", line 4, in f'
    (row,) = nccl_logs.read(f"{head}\n[rank1]: {text}\n").tables["log_event"]
    assert [f for f in row["fields"] if f.startswith("says=")] == ([f"says={says}"] if says else [])


def told_of(*lines: str) -> list[dict[str, str]]:
    return events("".join(f"{line}\n" for line in lines))


def test_an_exception_that_says_whose_it_is_needs_no_prefix() -> None:
    head = "Traceback (most recent call last):"
    (row,) = told_of(head, "RuntimeError: NCCL communicator was aborted on rank 3.")
    assert (row["rank"], row["says"]) == ("3", "peer_lost")
    (row,) = told_of(head, "RuntimeError: [Rank 5] Caught collective operation timeout: x")
    assert (row["rank"], row["says"]) == ("5", "timeout")
    (row,) = told_of(
        f"[rank2]: {head}", "[rank2]: RuntimeError: NCCL communicator was aborted on rank 3."
    )
    assert row["rank"] == "2"  # its own prefix is nearer


@pytest.mark.parametrize(
    ("line", "signal"),
    [
        ("Killed", "SIGKILL"), ("Segmentation fault (core dumped)\r", "SIGSEGV"),
        ("Aborted (core dumped)", "SIGABRT"), ("Bus error", "SIGBUS"), ("Killed by rule 3", None),
        ("loss: Killed", None), ("killed", None),
    ],
)  # fmt: skip
def test_a_shell_s_word_on_a_line_of_its_own_is_an_end(line: str, signal: str | None) -> None:
    assert [row["signal"] for row in told_of(line)] == ([signal] if signal else [])


STORE = (
    "[W810 23:02:42.93 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=102, "
    "addr=[node-1]:50360, remote=[%s]:40027): Failed to recv, got 0 bytes."
)


def test_a_store_that_went_away_is_told_once_a_rank_with_its_host() -> None:
    rows = told_of(
        f"[rank4]:{STORE % 'node-1'}", f"[rank4]:{STORE % 'node-1'}",
        f"[rank1]:{STORE % '::ffff:10.0.0.7'}", f"[rank2]:{STORE % 'localhost'}",
        "[rank3]:[W810 TCPStore.cpp:125] [c10d] recvValue failed on something else",
    )  # fmt: skip
    assert [(row["code"], row["rank"], row.get("lost_host")) for row in rows] == [
        ("store-lost", "4", "node-1"), ("store-lost", "1", "10.0.0.7"), ("store-lost", "2", None),
    ]  # fmt: skip


def raised(*frames: str, kind: str, prefix: str = "") -> list[str]:
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        lines += [f'  File "{frame}", line 12, in run', "    go()"]
    return [prefix + line for line in (*lines, kind)]


@pytest.mark.parametrize(
    ("where", "text", "ends"),
    [
        ("torch/distributed/launch.py", "died with <Signals.SIGKILL: 9>.", {"signal": "SIGKILL"}),
        ("accelerate/commands/launch.py", "returned non-zero exit status 3.", {"exit_code": "3"}),
        ("deepspeed/launcher/launch.py", "died with <Signals.SIGTERM: 15>.", {"signal": "SIGTERM"}),
    ],
)
def test_a_launcher_s_exception_tells_how_its_process_ended_and_not_which(
    where: str, text: str, ends: dict[str, str]
) -> None:
    kind = f"subprocess.CalledProcessError: Command '['python', '--local_rank=7', 'x']' {text}"
    (row,) = told_of(*raised("/bin/accelerate", f"/venv/site-packages/{where}", kind=kind))
    assert row == {"code": "worker-exit", "round": "0", "agent": "CalledProcessError", **ends}
    # Where it began any other command, its own call failed.
    for command, code in (
        ("'torchrun', '--nnodes', '1', 'a.py'", "worker-exit"),
        ("'/venv/bin/python3.11', 'a.py'", "worker-exit"),
        ("'ninja', '-v'", "python-exception"), ("'gsutil', 'python', 'x'", "python-exception"),
    ):  # fmt: skip
        kind = f"subprocess.CalledProcessError: Command '[{command}]' {text}"
        (row,) = told_of(*raised("/job/cli.py", "/usr/lib/python3.11/subprocess.py", kind=kind))
        assert row["code"] == code


def test_what_an_older_spawn_says_of_a_process_is_no_exception_of_its_own() -> None:
    spawn = "/venv/site-packages/torch/multiprocessing/spawn.py"
    kind = "Exception: process 3 terminated with signal SIGSEGV"
    (row,) = told_of(*raised("main.py", spawn, kind=kind))
    assert (row["code"], row["local_rank"], row["signal"]) == ("worker-exit", "3", "SIGSEGV")
    assert not told_of(*raised("main.py", spawn, kind="Exception: "))


def test_what_a_task_of_ray_raised_is_told_and_not_who_waited_for_it() -> None:
    def ray(task: str) -> str:
        return f"ray.exceptions.RayTaskError(KeyError): ray::{task}() (pid=%d, ip=10.0.0.%d, x=1)"

    rows = told_of(
        *raised("/job/main.py", "/venv/site-packages/ray/_private/worker.py",
                kind=ray("Runner.run") % (11, 1)),
        '  File "/job/runner.py", line 4, in fit', "    self.group.update()", ray("W.f") % (12, 2),
        '  File "/job/worker.py", line 7, in update', "    return batch[key]", "KeyError: 'x'",
    )  # fmt: skip
    assert rows == [
        {"code": "python-exception", "round": "0", "pid": "12", "host": "10.0.0.2",
         "type": "KeyError", "file": "worker.py", "line": "7", "function": "update"}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        ("The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
         "Worker exit detail: x", {}),
        ("Worker exit type: NODE_OUT_OF_MEMORY", {"why": "out of memory", "of": "host"}),
        ("The actor is dead because it was killed by `ray.kill`.", {"signal": "SIGTERM"}),
        ("Worker exit type: INTENDED_USER_EXIT", {"signal": "SIGTERM"}),
    ],
)  # fmt: skip
def test_an_actor_of_ray_that_died_is_told_by_its_process(ended: str, told: dict[str, str]) -> None:
    kind = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
    parts = ["\tclass_name: Actor", "\tpid: 77", "\tname: w", "\tip: 10.0.0.9", ended, "\tpid: 78"]
    (row,) = told_of(*raised("/job/main.py", kind=kind), *parts)
    assert (row["code"], row["pid"], row["host"]) == ("task-ended", "77", "10.0.0.9")
    assert told.items() <= row.items()
    assert ("signal" in row) is bool(told)


def test_memory_of_a_node_of_ray_is_the_host_s() -> None:
    (row,) = told_of(*raised("a.py", kind="ray.exceptions.OutOfMemoryError: Task was killed"))
    assert row["says"] == "host_memory"


@pytest.mark.parametrize(
    ("prefix", "told"),
    [
        ("(WorkerDict pid=31, ip=10.0.0.4) ", {"pid": "31", "host": "10.0.0.4"}),
        ("(VllmWorker rank=1 pid=60) ", {"pid": "60"}),
        ("(EngineCore pid=51) ERROR 08-27 22:16:31 [core.py:9] ", {"pid": "51"}),
    ],
)
def test_the_process_before_the_line_is_whose_exception_it_is(
    prefix: str, told: dict[str, str]
) -> None:
    (row,) = told_of(*raised("a.py", kind="KeyError: 1", prefix=prefix))
    assert told.items() <= row.items()


@pytest.mark.parametrize(
    "text",
    [
        "Exception: WorkerProc initialization failed due to an exception in a background process. "
        "See stack trace for root cause.",
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "RuntimeError: Executor failed.",
    ],
)
def test_an_exception_that_only_says_that_another_process_failed_is_none(text: str) -> None:
    assert not told_of(*raised("core.py", kind=text))


@pytest.mark.parametrize("outer", ["", "(WorkerDict pid=9) "])
def test_a_message_that_ends_with_a_traceback_has_its_words_before_the_first_line_alone(
    outer: str,
) -> None:
    head, *lines = raised("/job/serve.py", kind="ValueError: x", prefix=outer)
    said = "[2025-02-21 22:59:28 TP0] Scheduler hit an exception: "
    (row,) = told_of(outer + said + head.removeprefix(outer), *lines)
    assert (row["type"], row["file"]) == ("ValueError", "serve.py")


def test_a_frame_of_another_process_behind_the_head_of_a_rank_s_traceback_is_not_its() -> None:
    head, *lines = raised("/job/train.py", kind="ValueError: x", prefix="[rank2]: ")
    other = '  File "/venv/bin/torchrun", line 8, in <module>'
    (row,) = told_of(head, other, *lines)
    assert (row["rank"], row["file"]) == ("2", "train.py")


def test_stamps_that_a_cloud_puts_before_each_line_part_no_traceback() -> None:
    for zone in ("Z ", "+00:00 | "):
        lines = raised("/job/data.py", kind="ValueError: x", prefix="[rank6]: ")
        stamped = [f"2024-08-23T22:22:5{n}.8{n}{zone}{line}" for n, line in enumerate(lines)]
        (row,) = told_of(*stamped)
        assert (row["rank"], row["type"], row["file"]) == ("6", "ValueError", "data.py")


def test_heartbeats_that_stay_away_are_told_once_a_task() -> None:
    line = "Task /job:w/replica:0/task:{} heartbeat timeout."
    assert [row["task"] for row in told_of(*map(line.format, (5, 5, 6, 5)))] == ["5", "6"]


def test_what_a_launcher_had_to_kill_is_told_from_what_others_killed() -> None:
    entry = "[{0}]:\n  rank      : {0} (local_rank: {0})\n  exitcode  : -9 (pid: {1})\n".format
    rows = told_of(
        "W1 1 api.py:1047] Unable to shutdown process 72 via 15, forcefully exiting via 9",
        "Failures:", entry(2, 72), entry(3, 73), "====",
    )  # fmt: skip
    assert [(row["rank"], row.get("is_forced")) for row in rows] == [("2", "1"), ("3", None)]


@pytest.mark.parametrize("by", ["mpirun", "mpiexec", "prterun"])
def test_what_mpirun_says_of_the_first_may_go_on_in_the_next_line(by: str) -> None:
    head = f"{by} noticed that process rank 7 with PID 12 on node gpu-9 exited on"
    (row,) = told_of(head + " ", "signal 6 (Aborted).", "signal 9 (Killed)")
    assert (row["rank"], row["host"], row["signal"]) == ("7", "gpu-9", "SIGABRT")
    assert told_of(head + " signal 6 (Aborted).") == [row]


def test_what_hccl_says_behind_the_exception_is_what_it_was() -> None:
    kind = "RuntimeError: OpParamMaker.cpp:281 OPS function error: HcclAllreduce, error code is 6"
    lines = raised("/job/train.py", kind=kind, prefix="[rank1]: ")
    late = "[rank1]: EI0006: 2025-04-08 Getting socket times out. Reason: Remote Rank is stuck"
    (row,) = told_of(*lines, "[rank1]: [ERROR] OPS call acl api failed.", late)
    assert row["says"] == "timeout"
    (row,) = told_of(*lines)
    assert "says" not in row


def test_a_watchdog_of_hccl_that_times_out_waited_for_another() -> None:
    line = "[rank1]:[E324 a.ts:574] [Rank 1] Watchdog caught collective operation timeout: WorkHCCL"
    (row,) = told_of(f"{line}(SeqNum=196, OpType=ALLREDUCE, Timeout(ms)=3600000) ran for 3600185 "
                     "milliseconds before timing out.")  # fmt: skip
    assert (row["code"], row["world_rank"], row["sequence"]) == ("watchdog-timeout", "1", "196")


def test_a_model_that_differs_among_ranks_is_raised_by_members_and_names_none() -> None:
    kind = "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 9 params"
    assert [row["says"] for row in told_of(*raised("a.py", kind=kind))] == ["mismatch"]


@pytest.mark.parametrize("tag", ["", "[rank1]: "])
@pytest.mark.parametrize(
    "said",
    [
        "Exception ignored in: <function Loader.__del__ at 0x7f1>", "--- Logging error ---",
        "Error in atexit._run_exitfuncs:", "Task exception was never retrieved",
    ],
)  # fmt: skip
def test_an_exception_that_ends_nothing_is_no_failure(said: str, tag: str) -> None:
    lines = raised("a.py", kind="ValueError: x", prefix=tag)
    assert not told_of(tag + said, *lines)
    assert len(told_of(tag + said, *lines, *lines)) == 1  # the next one is an end
    assert len(told_of(tag + said, "other", "other", *lines)) == 1
    assert len(told_of("[rank2]: " + said, *lines)) == 1


def test_an_exception_in_a_thread_says_so() -> None:
    head = "Exception in thread Thread-4 (_pin_memory_loop):"
    (row,) = told_of(head, *raised("a.py", kind="ValueError: x"))
    assert row["in_thread"] == "1"


@pytest.mark.parametrize(
    ("where", "text", "says"),
    [
        ("site-packages/urllib3/connectionpool.py",
         "urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool: Read timed out.", "service"),
        ("site-packages/botocore/httpsession.py",
         "botocore.exceptions.EndpointConnectionError: Connection refused", "service"),
        ("site-packages/torch/distributed/distributed_c10d.py",
         "RuntimeError: Connection refused", "peer_lost"),
        ("lib/python3.11/multiprocessing/connection.py",
         "ConnectionResetError: [Errno 104] Connection reset by peer", "process_lost"),
        ("lib/python3.11/multiprocessing/connection.py", "KeyError: 1", None),
        ("job/data.py", "OSError: [Errno 116] Stale file handle: '/data/a'", "storage"),
        ("job/data.py", "TimeoutError: [Errno 110] Connection timed out: '/data/a'", "storage"),
        ("job/data.py", "TimeoutError: [Errno 110] Connection timed out", "timeout"),
        ("site-packages/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
         "torch.distributed.elastic.rendezvous.api.RendezvousClosedError", "peer_lost"),
    ],
)  # fmt: skip
def test_a_connection_that_broke_was_to_a_rank_only_where_ranks_are_connected(
    where: str, text: str, says: str | None
) -> None:
    (row,) = told_of(*raised("/job/train.py", f"/venv/{where}", kind=text))
    assert row.get("says") == says


def test_composer_s_launcher_tells_who_ended_first_and_what_each_had_printed() -> None:
    rows = told_of(
        "ERROR:composer.cli.launcher:Rank 1 crashed with exit code 1.",
        "Global rank 0 (PID 40) exited with code -9", "Global rank 2 (PID 42) exited with code 0",
        "Global rank 3 (PID 43) exited with code 1",
        "Global rank 1 (PID 41) exited with code 1",
        "----------Begin global rank 1 STDERR----------", *raised("/job/a.py", kind="KeyError: 1"),
        "----------End global rank 1 STDERR----------", *raised("/job/b.py", kind="OSError: 1"),
    )  # fmt: skip
    told = [(r["code"], r.get("rank"), r.get("is_root"), r.get("is_forced")) for r in rows]
    assert told == [
        ("worker-failed", "1", "1", None), ("worker-failed", "0", None, "1"),
        ("worker-failed", "3", None, None),
        ("worker-failed", "1", None, None), ("python-exception", "1", None, None),
        ("python-exception", None, None, None),
    ]  # fmt: skip


# --- launchers and loggers of other families ------------------------------------------------------

BOX = """\
{0}╭───────────── Traceback (most recent call last) ─────────────╮
{0}│ /opt/app/train.py:412 in <module>                           │
{0}│   411 │   set_seed(args.seed)                                │
{0}│ ❱ 412 │   main(args)                                         │
{0}│ /opt/app/data.py:88 in __getitem__                          │
{0}│ ❱ 88 │   │   return self.index[i]                             │
{0}│ /usr/lib/python3.11/site-packages/x/y.py:7 in get           │
{0}╰─────────────────────────────────────────────────────────────╯
{0}KeyError: PLANTEDSECRET0123456789
"""


@pytest.mark.parametrize(("prefix", "rank"), [("[rank2]: ", {"rank": "2"}), ("", {})])
def test_a_traceback_in_a_box_is_one(prefix: str, rank: dict[str, str]) -> None:
    (told,) = events(BOX.format(prefix))
    assert told == {
        "code": "python-exception", "round": "0", **rank, "type": "KeyError", "file": "data.py",
        "line": "88", "function": "__getitem__",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "ends"),
    [
        (["=   RANK 6 PID 31337 RUNNING AT node-c", "=   EXIT CODE: 139"], {"signal": "SIGSEGV"}),
        (["=   RANK 6 PID 31337 RUNNING AT node-c", "=   EXIT CODE: 3"], {"exit_code": "3"}),
        (
            [
                "=   RANK 6 PID 31337 RUNNING AT node-c",
                "=   EXIT CODE: 9",
                "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
            ],
            {"signal": "SIGKILL"},
        ),
        (
            [
                "=   RANK 6 PID 31337 RUNNING AT node-c",
                "=   KILLED BY SIGNAL: 11 (Segmentation fault)",
            ],
            {"signal": "SIGSEGV"},
        ),
    ],
)
def test_mpich_s_launcher_names_who_ended_and_how(lines: list[str], ends: dict[str, str]) -> None:
    told = events("=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n" + "\n".join(lines))
    whose = {"rank": "6", "host": "node-c", "pid": "31337"}
    assert told == [{"code": "worker-failed", "round": "0", **whose, **ends}]


def test_who_calls_mpi_abort_is_named() -> None:
    told = events(
        "MPI_ABORT was invoked on rank 5 in communicator MPI_COMM_WORLD\n"
        "  Proc: [[34567,1],5]\n  Errorcode: 17\n"
        "prterun has exited due to process rank 5 with PID 22041 on node gpu-b3 calling\n"
        "MPI_ABORT was invoked on rank 1 in communicator MPI COMMUNICATOR 3 SPLIT FROM 0\n"
        "with errorcode 1.\n"
    )
    assert told == [
        {"code": "worker-failed", "round": "0", "rank": "5", "exit_code": "17", "is_root": "1"},
        {"code": "worker-failed", "round": "0", "rank": "5", "host": "gpu-b3", "pid": "22041",
         "is_root": "1"},
    ]  # fmt: skip


def test_srun_names_the_node_that_failed() -> None:
    assert events("srun: error: Node failure on gpu-22\n") == [
        {"code": "job-state", "round": "0", "why": "node failure", "host": "gpu-22"}
    ]


TRACEBACK = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 88, in train\n'
    "    loss.backward()\nValueError: " + SECRET
)


@pytest.mark.parametrize(
    "record",
    [
        {"event": "crashed", "rank": 3, "exception": TRACEBACK},
        {"text": f"03:00 | ERROR | crash\n{TRACEBACK}\n", "record": {"extra": {"rank": 3}}},
        {"message": "x", "rank": 3, "exc_info": TRACEBACK, "text": f"x\n{TRACEBACK}"},
    ],
    ids=["structlog", "loguru", "twice"],
)
def test_a_traceback_in_a_record_of_json_is_one(record: dict[str, Any]) -> None:
    (told,) = events(json.dumps(record) + "\n")
    assert told == {
        "code": "python-exception", "round": "0", "rank": "3", "type": "ValueError",
        "file": "train.py", "line": "88", "function": "train",
    }  # fmt: skip


def test_json_lines_with_steps_tell_of_failures_too() -> None:
    steps = [{"step": k, "rank": 3, "timestamp": f"2026-07-21T03:00:{k:02}Z"} for k in range(20)]
    lines = [*steps, {"event": "crashed", "rank": 3, "exception": TRACEBACK}]
    text = "\n".join(map(json.dumps, lines)).encode()
    sink = MemorySink()
    ingestor("step_metrics").read(source_of(text, "rank3.jsonl"), sink, IngestOptions())
    ((code, fields),) = sink.rows("log_event", "code", "fields")
    assert (code, fields[1:3]) == ("python-exception", ["rank=3", "type=ValueError"])
    assert SECRET not in str(sink.tables)


@pytest.mark.parametrize(
    ("text", "is_log"),
    [
        (TRACEBACK, True),
        ("MPI_ABORT was invoked on rank 5 in communicator MPI_COMM_WORLD\n", True),
        ("srun: error: Node failure on gpu-22\n", True),
        ("See `Traceback (most recent call last):` in the output of your program.\n", False),
    ],
)
def test_a_file_of_any_name_is_a_log_where_it_says_how_processes_ended(
    text: str, is_log: bool
) -> None:
    assert (recognise(source_of(text.encode(), "notes.txt")).ingestor == "job_log") == is_log


STEPS = [
    f"Step {10 * k} | loss:{3 - k / 10:.2f} lr:2e-05 tokens_per_second_per_gpu:900"
    for k in range(9)
]


@pytest.mark.parametrize(
    ("name", "lines", "is_log"),
    [
        ("notes.txt", STEPS, True),
        ("notes.txt", STEPS[:4], False),  # a page that shows a few
        ("notes.txt", STEPS[::-1], False),
        ("notes.txt", [f"Step {k}: open the lid without loss of screws" for k in range(9)], False),
        ("notes.txt", [f"eval {line}" for line in STEPS], False),
        ("log.txt", ["hello"], True),
        ("train_log_1784602867.txt", ["hello"], True),
        ("catalog.txt", ["hello"], False),
    ],
)
def test_a_file_of_any_name_is_a_log_where_its_steps_rise(
    name: str, lines: list[str], is_log: bool
) -> None:
    source = source_of("\n".join(lines).encode(), name)
    assert (recognise(source).ingestor == "job_log") == is_log


ALONE = """Traceback (most recent call last):
  File "train.py", line 88, in step
    loss.backward()
ValueError: no
"""


@pytest.mark.parametrize(
    ("name", "text", "rank"),
    [
        ("rank5.log", ALONE, 5),
        ("train_rank12.err", f"begun\n{ALONE}", 12),
        ("job.log", ALONE, None),
        ("node_rank0.log", ALONE, None),  # what all of a node print
        ("rank0.log", ALONE + ALONE.replace("88", "99"), None),  # of several, perhaps
        ("rank0.log", "".join(f"[rank3]: {line}\n" for line in ALONE.splitlines()), 3),
    ],
)
def test_the_one_exception_of_a_rank_s_own_file_is_that_rank_s(
    name: str, text: str, rank: int | None
) -> None:
    rows = nccl_logs.read(text, name).tables["log_event"]
    stated = {f for row in rows for f in row["fields"] if f.startswith("rank=")}
    assert stated == (set() if rank is None else {f"rank={rank}"})


def test_what_pytorch_s_record_writes_of_a_worker_s_exception_is_its_local_rank_s() -> None:
    said = {
        "message": "ValueError: s3cret",
        "extraInfo": {"py_callstack": ALONE.replace("no", "s3cret"), "timestamp": "1784602867"},
    }
    data = json.dumps({"message": said}).encode()
    path = "logs/run_a1/attempt_0/5/error.json"
    source = replace(source_of(data, path.rpartition("/")[2]), path=path)
    assert recognise(source).ingestor == "job_log"
    sink = nccl_logs.KeptSink()
    ingestor("job_log").read(source, sink, IngestOptions())
    (row,) = sink.tables["log_event"]
    assert row["fields"][1:] == [
        "local_rank=5", "type=ValueError", "file=train.py", "line=88", "function=step",
    ]  # fmt: skip
    assert "s3cret" not in sink.everything


def test_what_torchrun_keeps_of_a_worker_s_output_is_its_local_rank_s() -> None:
    path = "out/run_a1/attempt_1/3/stderr.log"
    source = replace(source_of(ALONE.encode(), "stderr.log"), path=path)
    sink = nccl_logs.KeptSink()
    ingestor("job_log").read(source, sink, IngestOptions())
    (row,) = sink.tables["log_event"]
    assert "local_rank=3" in row["fields"]
