"""Where processes may run and where their memory lies, from files as tools print them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tracekit import api

Rows = list[tuple[Any, ...]]
MIB = 1 << 20


def places(folder: Path, text: str, name: str = "affinity.txt") -> Rows:
    path = folder / name
    path.write_text(text)
    run = api.ingest([path], run=folder / "run")
    rows: Rows = run.sql(
        "SELECT place, pid, cpus, memory_nodes, numa_node, memory_bytes FROM process_place "
        "ORDER BY place, numa_node"
    ).rows()
    return rows


STATUS = "Name:\tpython3\nPid:\t{0}\nPPid:\t1\nCpus_allowed_list:\t{1}\nMems_allowed_list:\t0-1\n"


def test_statuses_one_after_the_other(tmp_path: Path) -> None:
    text = STATUS.format(7, "0-31,64-95") + STATUS.format(8, "5")
    assert places(tmp_path, text) == [
        (2, 7, "0-31,64-95", "0-1", None, None),
        (7, 8, "5", "0-1", None, None),
    ]


def test_statuses_as_grep_prints_them(tmp_path: Path) -> None:
    text = "".join(
        f"/proc/{pid}/status:{line}\n"
        for pid in (7, 8)
        for line in ("Name:\tpython3", f"Pid:\t{pid}", "Cpus_allowed_list:\t0-3")
    )
    assert places(tmp_path, text) == [
        (2, 7, "0-3", None, None, None), (5, 8, "0-3", None, None, None)
    ]  # fmt: skip


def test_the_status_of_this_very_process_says_what_it_may(tmp_path: Path) -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("no /proc here")
    ((_, pid, cpus, *_),) = places(tmp_path, status.read_text())
    allowed = {
        cpu
        for part in cpus.split(",")
        for cpu in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)
    }
    assert pid == os.getpid()
    assert allowed == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("said", "cpus"),
    [("list: 0-7,16", "0-7,16"), ("mask: f0f", "0-3,8-11"), ("mask: 1,00000000", "32")],
)
def test_taskset(tmp_path: Path, said: str, cpus: str) -> None:
    text = f"pid 7's current affinity {said}\n"
    assert places(tmp_path, text) == [(1, 7, cpus, None, None, None)]


def test_taskset_as_it_prints_here(tmp_path: Path) -> None:
    if not shutil.which("taskset"):
        pytest.skip("no taskset here")
    said = [
        subprocess.run(
            ["taskset", option, str(os.getpid())], capture_output=True, text=True, check=True
        ).stdout
        for option in ("-cp", "-p")
    ]
    listed, masked = places(tmp_path, "".join(said))
    assert (listed[1], listed[2].replace("0,1", "0-1")) == (os.getpid(), masked[2])


def group(folder: str, *pids: int, cpus: str = "0-31", mems: str = "0") -> str:
    lines = [f"cgroup.procs:{pid}" for pid in pids]
    lines += [f"cpuset.cpus.effective:{cpus}", f"cpuset.mems.effective:{mems}"]
    return "".join(f"{folder}{line}\n" for line in lines)


def test_what_the_processes_of_a_cgroup_may_is_said_once_for_all(tmp_path: Path) -> None:
    pods = "/sys/fs/cgroup/kubepods.slice/kubepods-pod{}.slice/"
    text = group(pods.format(1), 7, 9) + group(pods.format(2), 8, cpus="32-63", mems="1")
    expected = [
        (1, 7, "0-31", "0", None, None), (2, 9, "0-31", "0", None, None),
        (5, 8, "32-63", "1", None, None),
    ]  # fmt: skip
    assert places(tmp_path, text) == expected


def test_a_cgroup_without_its_processes_or_without_its_cpus_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert places(tmp_path / "a", group("")) == []
    assert places(tmp_path, "cgroup.procs:7\ncgroup.procs:123456789012\n") == []


def test_cgroups_as_grep_prints_them_here(tmp_path: Path) -> None:
    files = [
        f"/sys/fs/cgroup/{name}"
        for name in ("cgroup.procs", "cpuset.cpus.effective", "cpuset.mems.effective")
    ]
    said = subprocess.run(
        ["grep", "-H", ".", *files], capture_output=True, text=True, check=False
    ).stdout  # fmt: skip
    pids = [int(line.split(":")[1]) for line in said.splitlines() if "cgroup.procs:" in line]
    if not pids or "cpuset.cpus.effective:" not in said:
        pytest.skip("no cgroup with processes here")
    rows = places(tmp_path, said)
    assert [row[1] for row in rows] == [pid for pid in pids if pid]


NUMASTAT = """
Per-node process memory usage (in MBs) for PID 7 (python3)
                           Node 0          Node 1           Total
                  --------------- --------------- ---------------
Huge                         0.00            0.00            0.00
Private                    100.00            1.50          101.50
----------------  --------------- --------------- ---------------
Total                      100.00            1.50          101.50
"""
NUMASTAT_OF_TWO = """
Per-node process memory usage (in MBs)
PID                               Node 0          Node 1           Total
-----------------------  --------------- --------------- ---------------
7 (python3)                       100.00            1.50          101.50
8 (pt_main_thread)                  0.00            2.00            2.00
-----------------------  --------------- --------------- ---------------
Total                             100.00            3.50          103.50
"""


def test_numastat(tmp_path: Path) -> None:
    assert places(tmp_path, NUMASTAT, "numastat.txt") == [
        (8, 7, None, None, 0, 100 * MIB), (8, 7, None, None, 1, 1.5 * MIB)
    ]  # fmt: skip


def test_numastat_of_several(tmp_path: Path) -> None:
    rows = places(tmp_path, NUMASTAT_OF_TWO, "numastat.txt")
    assert [(r[1], r[4], r[5]) for r in rows] == [
        (7, 0, 100 * MIB), (7, 1, 1.5 * MIB), (8, 0, 0), (8, 1, 2 * MIB)
    ]  # fmt: skip


def test_nothing_else_of_a_status_is_kept(tmp_path: Path) -> None:
    text = "Name:\thunter2\n" + STATUS.format(7, "0-3") + "pid 9's current affinity list: x\n"
    assert len(places(tmp_path, text)) == 1
    kept = b"".join(p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file())
    assert b"hunter2" not in kept


def test_a_training_log_that_begins_with_taskset_s_word_stays_one(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "pid 7's current affinity list: 0-7\n"
        "iter 1: loss 3.2512, time 135.22ms, mfu 12.50%\n"
        "iter 2: loss 3.2512, time 135.22ms, mfu 12.50%\n"
    )
    run = api.ingest([log], run=tmp_path / "run")
    assert run.sql("SELECT count(*) FROM job_step").row(0) == (2,)
