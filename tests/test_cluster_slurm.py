"""A job read by workers that Debian's own Slurm starts: two nodes that are this machine.

Needs root, the packages slurmctld, slurmd, slurm-client and munge, and the extra ``cluster``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracekit import api, runs
from tracekit.cluster import Cluster
from tracekit.runs import plan
from traces import write_job

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
RANKS_COUNT = 8
CONFIG = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort=16817
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port=17001 CPUs=1 RealMemory=6000
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port=17002 CPUs=1 RealMemory=6000
PartitionName=all Nodes=n1,n2 Default=YES State=UP
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    """A Slurm of this machine's, with nodes n1 and n2 of one core each."""
    pytest.importorskip("dask_jobqueue", reason="needs pip install 'tracekit[cluster]'")
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing or os.geteuid() != 0:
        pytest.skip("needs root and apt-get install slurmctld slurmd slurm-client munge")
    # Not pytest's folder: the name of a socket has an end.
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as name,
        pytest.MonkeyPatch.context() as patch,
    ):
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        config = folder / "slurm.conf"
        config.write_text(CONFIG.format(folder=folder))
        patch.setenv("SLURM_CONF", str(config))
        patch.setenv("PATH", path)
        own = [f"--{what}={folder}/munge.{what}" for what in ("socket", "pid-file", "seed-file")]
        commands = [
            ["munged", "--foreground", "--force", f"--key-file={key}", *own],
            ["slurmctld", "-D"],
            ["slurmd", "-D", "-N", "n1"],
            ["slurmd", "-D", "-N", "n2"],
        ]
        daemons = []
        try:
            for command in commands:
                quiet = subprocess.DEVNULL
                daemons.append(subprocess.Popen(command, stdout=quiet, stderr=quiet))
                time.sleep(0.5 if command[0] == "munged" else 0)
            _wait_until("idle idle", "sinfo", "--noheader", "--Node", "--format=%T")
            yield
        finally:
            for daemon in reversed(daemons):
                daemon.terminate()
                daemon.wait(30)


def _asked(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return " ".join(done.stdout.split())


def _wait_until(answer: str, *command: str) -> None:
    for _ in range(300):
        if _asked(*command) == answer:
            return
        time.sleep(0.1)
    pytest.fail(f"{command[0]} never said {answer!r} but {_asked(*command)!r}")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Traces in a folder below, one shard each."""
    monkeypatch.setattr(plan, "SMALL_INPUT_BYTES", 0)
    monkeypatch.setattr(plan, "MIN_SHARD_BYTES", 1)
    write_job(tmp_path / "traces", world_size=RANKS_COUNT, stall_ms=30)
    monkeypatch.chdir(tmp_path)
    api.ingest("traces", run="alone", workers=1).close()
    return tmp_path


def _told(run: Path) -> str:
    with api.open(run) as opened:
        return str(opened.diagnose().to_json()).replace(str(run), "RUN")


@pytest.mark.slow  # tests/test_cluster.py has the same on a local cluster
@pytest.mark.usefixtures("slurm")
def test_two_nodes_read_a_job_and_their_jobs_end_with_the_command(job: Path) -> None:
    with Cluster(kind="slurm", workers=2) as remote:
        remote._client.wait_for_workers(2, timeout=120)
        nodes = remote._client.run(os.getenv, "SLURMD_NODENAME").values()
        assert sorted(nodes) == ["n1", "n2"]
        runs.ingest(["traces"], job / "run", cluster=remote)
    assert _told(job / "run") == _told(job / "alone")
    _wait_until("", "squeue", "--noheader")


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_a_job_that_slurm_cancels_in_the_middle_costs_nothing(job: Path) -> None:
    """Encrypted, too, with certificates in a folder that the nodes share."""
    import dask

    pytest.importorskip("cryptography", reason="needs pip install 'tracekit[cluster]'")
    cancelled: list[str] = []

    def cancel() -> None:
        for _ in range(20000):
            if any((job / "run" / "tmp").glob("*/*")):
                cancelled.append(_asked("squeue", "--noheader", "--states=R", "--format=%A"))
                _asked("scancel", "--signal=KILL", "--full", cancelled[0].split()[0])
                return
            time.sleep(0.001)

    (job / "keys").mkdir()
    with (
        dask.config.set({"jobqueue.slurm.shared-temp-directory": str(job / "keys")}),
        Cluster(kind="slurm", workers=2) as remote,
    ):
        remote._client.wait_for_workers(2, timeout=120)
        assert remote._client.scheduler.address.startswith("tls://")
        assert {p.stat().st_mode & 0o77 for p in (job / "keys").iterdir()} == {0}
        watch = threading.Thread(target=cancel, daemon=True)
        watch.start()
        manifest = runs.ingest(["traces"], job / "run", cluster=remote)
        watch.join()
        assert len(cancelled[0].split()) == 2
        _wait_until("1", "bash", "-c", "squeue --noheader --states=R | wc -l")
    names = {Path(f.path).parts[1] for f in manifest.files if f.path.startswith("data/")}
    assert len(names) == RANKS_COUNT
    assert sorted(p.name for p in (job / "run" / "data").iterdir()) == sorted(names)
    assert not [*(job / "run" / "tmp").iterdir()]
    assert _told(job / "run") == _told(job / "alone")
