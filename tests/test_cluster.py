"""Work on a Dask cluster: the same answers as without, whatever happens to its workers.

On a real LocalCluster of processes. Without dask.distributed (the extra ``cluster``) they skip.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import cluster_tasks
from tracekit import api, cluster, runs, waits_elsewhere
from tracekit.cli.app import main
from tracekit.cluster import Cluster, FailedTaskError, LostWorkerError, NotSeenError
from tracekit.errors import ClusterError, InputError, UsageError
from tracekit.fleet import elsewhere as fleet_elsewhere
from tracekit.fleet.each import added_each
from tracekit.fleet.lake import Lake, make_lake
from tracekit.fleet.rollup import rolled_up
from tracekit.fleet.store import FleetStore
from tracekit.fleet.tables import TABLES
from tracekit.runs import elsewhere, execute, numbered, plan
from tracekit.runs.numbered import numbered_elsewhere
from tracekit.store.manifest import load
from traces import BASE_NS, write_job

RANKS_COUNT = 4


class Clusters:
    """A cluster of two workers, each a process, and another one where a worker does not come back:
    some tests kill workers, and it happens that nobody starts a successor."""

    def __init__(self) -> None:
        self._now: Cluster | None = None
        self._open = ExitStack()

    def whole(self) -> Cluster:
        """One with both workers."""
        if self._now is not None:
            with suppress(TimeoutError):
                self._now._client.wait_for_workers(2, timeout=30)
                return self._now
        self.close()
        self._now = self._open.enter_context(Cluster(kind="local", workers=2))
        self._now._client.wait_for_workers(2, timeout=120)
        return self._now

    def close(self) -> None:
        """End the one that there is."""
        self._now = None
        self._open.close()


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    """For all tests of the file."""
    pytest.importorskip("distributed", reason="needs pip install 'tracekit[cluster]'")
    with pytest.MonkeyPatch.context() as patch:
        # A command with --debug in the same process leaves it, and workers then raise.
        patch.delenv("TRACEKIT_DEBUG", raising=False)
        some = Clusters()
        yield some
        some.close()


@pytest.fixture
def remote(clusters: Clusters) -> Cluster:
    """Two workers that are there."""
    return clusters.whole()


@pytest.fixture(autouse=True)
def _one_shard_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SMALL_INPUT_BYTES", 0)
    monkeypatch.setattr(plan, "MIN_SHARD_BYTES", 1)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands begin in; traces are in ``traces`` below it."""
    write_job(tmp_path / "traces", world_size=RANKS_COUNT, stall_ms=30)
    monkeypatch.chdir(tmp_path)
    return tmp_path


ONE_RULE = ("dataloader-stall",)
"""That of what the jobs suffer from; a whole report takes three times as long."""


def told(run: Path, select: Sequence[str] = ()) -> str:
    """What a diagnosis of the run says, whatever its folder is called."""
    with api.open(run) as opened:
        return str(opened.diagnose(select=select).to_json()).replace(str(run), "RUN")


def command(*words: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main([*words])
    return int(ended.value.code or 0)


def without(job: Path, select: Sequence[str] = ()) -> str:
    api.ingest("traces", run=job / "alone", workers=1).close()
    return told(job / "alone", select)


def shards(run: Path) -> list[str]:
    manifest = load(run)
    assert manifest is not None
    return [Path(f.path).parts[1] for f in manifest.files if f.path.startswith("data/")]


def pids(two: Cluster) -> list[int]:
    return sorted(two._client.run(os.getpid).values())


def test_a_cluster_without_certificates_is_never_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    security = pytest.importorskip("distributed", reason="needs 'tracekit[cluster]'").Security

    def cannot() -> None:
        raise ImportError("no module cryptography")

    monkeypatch.setattr(security, "temporary", cannot)
    assert cluster._security(may_make_one=False, is_asked=False) is None
    assert not caplog.records
    assert cluster._security(may_make_one=True, is_asked=False) is None
    assert "any user of this machine can run code as you" in caplog.text
    # Of Slurm a folder for certificates is named where they are wanted.
    with pytest.raises(ImportError) as refused:
        cluster._security(may_make_one=True, is_asked=True)
    assert refused.value.name == "cryptography"
    monkeypatch.setattr(security, "temporary", lambda: "certificates")
    assert cluster._security(may_make_one=True, is_asked=True) == "certificates"


# ---------------------------------------------------------------- one job


def test_a_job_read_on_a_cluster_says_the_same_to_the_byte(remote: Cluster, job: Path) -> None:
    seen: list[tuple[int, int]] = []
    runs.ingest(
        ["traces"],
        Path("run"),
        cluster=remote,
        progress=lambda done, all_, _: seen.append((done, all_)),
    )
    assert len(set(shards(job / "run"))) == RANKS_COUNT
    said = told(job / "run", ONE_RULE)
    assert said == without(job, ONE_RULE)
    assert "stall" in said
    total = sum(p.stat().st_size for p in (job / "traces").iterdir())
    assert seen[-1] == (total, total)
    assert not [*(job / "run" / "tmp").iterdir()]


def test_calls_are_numbered_by_communicator_on_the_workers_and_rows_are_the_same(
    remote: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("simulate", "slow-gpu", "--ranks", "8", "--steps", "2", "-o", "traces")
    assert command(*words, "--layout", "tp2") == 0
    asked: list[int] = []

    def counted(two: Cluster, run: Path, parts: Any, via: str | None = None) -> Any:
        asked.append(len(parts))
        return numbered_elsewhere(two, run, parts, via)

    monkeypatch.setattr(numbered, "numbered_elsewhere", counted)
    runs.ingest(["traces"], tmp_path / "run", cluster=remote)
    runs.ingest(["traces"], tmp_path / "alone", workers=1)
    assert len(asked) == 1
    assert asked[0] > 1
    for name in ("collective_match", "clock_offset", "step", "comm_group"):
        assert rows(tmp_path / "run", name) == rows(tmp_path / "alone", name)
    assert rows(tmp_path / "run", "collective_match")
    assert not [*(tmp_path / "run" / "tmp").iterdir()]


def rows(run: Path, name: str) -> list[Any]:
    """A derived table's rows, whatever the shards' order made its sources' numbers."""
    manifest = load(run)
    assert manifest is not None
    files = [f.path for f in manifest.files if f.path.startswith("derived/") and f.table == name]
    return [row for path in files for row in pq.read_table(run / path).to_pylist()]


def test_a_worker_killed_while_it_numbers_calls_loses_and_doubles_nothing(
    remote: Cluster, tmp_path: Path
) -> None:
    columns = ("communicator", "rank", "clock_id", "sequence", "step", "start_ns", "end_ns", "kind")
    part = {name: np.arange(4) // 2 for name in (*columns, "is_synchronising")}
    part["rank"] = np.array([0, 1, 0, 1])
    part["sequence"] = np.zeros(4, np.int64)
    before = pids(remote)
    told = [*numbered_elsewhere(remote, tmp_path, [part] * 8)]
    os.kill(before[0], signal.SIGKILL)
    again = [*numbered_elsewhere(remote, tmp_path, [part] * 8)]
    assert sorted(t[0] for t in told) == sorted(t[0] for t in again) == [*range(8)]
    assert [t[1]["call"].tolist() for t in again] == [[0, 0, 0, 0]] * 8
    assert not [*(tmp_path / "tmp").iterdir()]


@pytest.mark.slow
def test_who_was_late_is_worked_out_by_communicator_though_a_worker_is_killed(
    remote: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("simulate", "slow-gpu", "--ranks", "8", "--steps", "2", "-o", "traces")
    assert command(*words, "--layout", "tp2") == 0
    for name in ("run", "alone"):
        api.ingest("traces", run=tmp_path / name, workers=1).close()
    drop = tmp_path / "drop"
    drop.mkdir()
    before = pids(remote)

    def kill() -> None:
        """One of two, once the first of four parts is done."""
        while not [*drop.glob("*.compute")]:
            time.sleep(0.005)
        os.kill(before[0], signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with api.open(tmp_path / "run") as opened:
        assert waits_elsewhere.keep_waits(remote, opened.run, tmp_path / "run", str(drop))
    killer.join(timeout=60)
    assert before[0] not in pids(remote)
    with api.open(tmp_path / "run") as opened, api.open(tmp_path / "alone") as alone:
        for name in waits_elsewhere.QUERIES:
            assert opened.answers.kept_rows(name) == alone.answers.rows(name)
    assert told(tmp_path / "run") == told(tmp_path / "alone").replace("alone", "run")


@pytest.mark.slow  # the handmade job, above, takes the same way; this one has a culprit and logs
def test_a_simulated_job_of_many_ranks_says_the_same_to_the_byte(
    remote: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("simulate", "slow-gpu", "--ranks", "64", "--steps", "3", "-o", "traces")
    assert command(*words, "--layout", "ddp") == 0
    monkeypatch.setattr(plan, "MIN_SHARD_BYTES", 1 << 18)
    runs.ingest(["traces"], tmp_path / "run", cluster=remote)
    assert len(set(shards(tmp_path / "run"))) > 4
    assert told(tmp_path / "run") == without(tmp_path)
    assert '"finding": "slow-gpu/' in told(tmp_path / "run")


def test_the_same_files_again_change_nothing_and_need_no_worker(remote: Cluster, job: Path) -> None:
    first = runs.ingest(["traces"], job / "run", cluster=remote)
    with Cluster(scheduler="tcp://127.0.0.1:1") as nobody:
        assert runs.ingest(["traces"], job / "run", cluster=nobody) == first


class Killer(threading.Thread):
    """Kills the first worker that it sees writing below a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.killed: int | None = None
        self.is_over = False

    def run(self) -> None:
        while self.killed is None and not self.is_over:
            for work in self.folder.glob("*/*"):
                self.killed = int(work.name.rsplit("-", 2)[1])
                os.kill(self.killed, signal.SIGKILL)
                return
            time.sleep(0.005)


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_loses_and_doubles_nothing(
    remote: Cluster, job: Path
) -> None:
    before = pids(remote)
    killer = Killer(job / "run" / "tmp")
    killer.start()
    try:
        runs.ingest(["traces"], job / "run", cluster=remote)
    finally:
        killer.is_over = True
        killer.join()
    assert killer.killed in before
    assert len(set(shards(job / "run"))) == RANKS_COUNT
    assert len([*(job / "run" / "data").iterdir()]) == RANKS_COUNT
    assert not [*(job / "run" / "tmp").iterdir()]
    assert told(job / "run", ONE_RULE) == without(job, ONE_RULE)


def test_a_file_that_is_gone_by_then_is_a_status_as_without_a_cluster(
    remote: Cluster, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = elsewhere._there

    def there(task: plan.ShardTask, *rest: Any) -> Any:
        made = real(task, *rest)
        if task.sources[0][0].path.endswith("rank2.json"):
            Path(task.sources[0][0].path).unlink()
        return made

    monkeypatch.setattr(elsewhere, "_there", there)
    runs.ingest(["traces"], job / "run", cluster=remote)
    with api.open(job / "run") as opened:
        found = opened.sql("SELECT path, status FROM source ORDER BY path").rows()
    assert [s for _, s in found] == ["ok", "ok", "unreadable", "ok"]


def test_what_a_worker_does_not_see_is_an_error_with_its_host(job: Path) -> None:
    runs.ingest(["traces"], job / "run", workers=1)
    (task, *_) = tasks(job)
    there = elsewhere._there(task, job / "no-such-folder", None)
    with pytest.raises(NotSeenError, match="no-such-folder: the worker on ") as caught:
        elsewhere._write_there(there)
    assert caught.value.hint
    there = elsewhere._there(task, job, None)
    path = Path(task.sources[0][0].path)
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(NotSeenError, match="does not see it as it is here"):
        elsewhere._write_there(there)


def tasks(job: Path) -> list[plan.ShardTask]:
    """What an ingest of the job hands out."""
    handed: list[plan.ShardTask] = []

    def kept(some: Any, *_: Any) -> Any:
        handed.extend(some)
        raise InputError("enough")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(InputError, match="enough"):
        patch.setattr("tracekit.runs.build.run_tasks", kept)
        runs.ingest(["traces"], job / "other")
    return handed


def test_a_shard_that_never_appears_here_is_an_error(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "LATE_S", 0.1)
    monkeypatch.setattr(cluster, "LOOK_S", 0.1)
    shard = execute.write_shard(tasks(job)[0])
    shutil.rmtree(job / "other" / "data")
    with pytest.raises(NotSeenError, match="a worker wrote it, and it is not seen here"):
        elsewhere._arrived(job / "other", tasks(job)[0], shard, None)


# ---------------------------------------------------------------- many runs


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nights of one job; the last waits for input, and one more run is damaged."""
    folder = tmp_path_factory.mktemp("nights")
    for night in range(4):
        traces = folder / "traces" / str(night)
        write_job(traces, stall_ms=30 * (night == 2), base_ns=BASE_NS + night * 86_400 * 10**9)
        make_lake(folder / "lake").add([traces], name=f"job-{night}", workers=1)
    for path in (folder / "lake" / "runs" / "job-3").rglob("collective-*.parquet"):
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    return folder / "lake"


def copied(lake: Path, to: Path) -> Path:
    """The lake in another place: what a rollup says names no place."""
    shutil.copytree(lake, to)
    return to


def night(root: Path) -> tuple[dict[str, list[str]], dict[str, Any]]:
    store = FleetStore(root / "fleet")
    rows = {t.name: [repr(r) for r in store.rows(t.name)] for t in TABLES}
    ledger = {
        n: (r["state"], (r["reason"] or "").replace(str(root), "LAKE"), r["key"])
        for n, r in store.ledger().items()
    }
    return rows, ledger


def test_a_night_on_a_cluster_is_the_same_row_for_row(
    remote: Cluster, lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("deltalake")
    alone = rolled_up(Lake(copied(lake, tmp_path / "a" / "lake")), workers=1)
    spread = rolled_up(Lake(copied(lake, tmp_path / "b" / "lake")), cluster=remote)
    assert len(alone.done) == 3
    assert [name for name, _ in alone.failed] == ["job-3"]
    assert spread.done == alone.done
    assert night(tmp_path / "b" / "lake") == night(tmp_path / "a" / "lake")
    assert not [*(tmp_path / "b" / "lake" / "tmp").iterdir()]
    again = rolled_up(Lake(tmp_path / "b" / "lake"), cluster=remote)
    assert (again.done, again.unchanged_count) == ((), 3)


@pytest.mark.slow  # of what kills workers, below, only that a night names it is new
def test_a_run_that_kills_its_worker_each_time_is_named_and_the_others_are_done(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed", reason="needs pip install 'tracekit[cluster]'")
    pytest.importorskip("deltalake")
    monkeypatch.setenv("DIES", "job-1")
    monkeypatch.setattr(fleet_elsewhere, "_diagnosed_there", cluster_tasks.dies_for_one_run)
    with Cluster(kind="local", workers=2) as two:
        done = rolled_up(Lake(copied(lake, tmp_path / "lake")), cluster=two)
    assert dict(done.failed)["job-1"] == "its process was killed: out of memory?"
    assert sorted(done.done) == ["job-0", "job-2"]


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands begin in, with two jobs and something that is none in ``jobs``."""
    for number in range(2):
        write_job(tmp_path / "jobs" / f"{number}", base_ns=BASE_NS + number * 86_400 * 10**9)
    (tmp_path / "jobs" / "2").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def runs_of(root: Path) -> dict[str, str]:
    """What each run of a lake says, by its name."""
    lake = Lake(root)
    return {name: told(lake.path(name), ONE_RULE) for name in lake.names()}


PATHS = [f"jobs/{number}" for number in range(3)]


@pytest.mark.slow  # several processes; one of each kind stays
def test_many_jobs_brought_in_by_workers_are_those_brought_in_here(
    remote: Cluster, jobs: Path
) -> None:
    alone = dict(added_each(make_lake("alone"), PATHS, workers=1))
    spread = dict(added_each(make_lake("spread"), PATHS, remote))
    assert isinstance(alone.pop("jobs/2"), InputError)
    assert isinstance(spread.pop("jobs/2"), InputError)
    assert spread == alone
    assert all(is_new for _, is_new in spread.values())  # type: ignore[misc]
    assert len(runs_of(jobs / "spread")) == 2
    assert runs_of(jobs / "spread") == runs_of(jobs / "alone")
    again = [told for _, told in added_each(make_lake("spread"), PATHS[:2], remote)]
    assert sorted(again) == sorted((name, False) for name, _ in spread.values())  # type: ignore[misc,type-var]
    assert not [*(jobs / "spread" / "tmp").iterdir()]


def test_a_command_brings_each_path_in_and_names_what_failed(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("ingest", *PATHS, "--lake", "lake", "--each", "--workers", "1")
    assert command(*words) == 0
    said = capsys.readouterr().err
    assert said.count("new in the lake: ") == 2
    assert "failed: jobs/2: " in said
    assert "2 of 3 jobs are in the lake" in said
    assert command(*words, "--strict") == 2
    assert command("ingest", "jobs/2", "--lake", "lake", "--each") == 2
    assert command("ingest", "--lake", "lake", "--each") == 2


def test_a_job_that_looks_different_on_a_worker_is_not_brought_in(jobs: Path) -> None:
    lake = make_lake("lake")
    handed = []

    class Here:
        """In place of a cluster: the files change before a worker looks."""

        worker_memory_bytes = 1 << 30

        def map(self, function: Any, items: Any) -> Iterator[Any]:
            (jobs / "jobs" / "0" / "rank1.json").unlink()
            handed.extend(items)
            for item in items:
                with pytest.raises(NotSeenError, match="jobs/0: the worker on ") as caught:
                    function(item)
                yield item, caught.value

    ((path, said),) = added_each(lake, ["jobs/0"], Here())  # type: ignore[arg-type]
    assert path == "jobs/0"
    assert isinstance(said, NotSeenError)
    assert lake.names() == []
    assert handed


@pytest.mark.parametrize("words", [["--run", "run"], ["--lake", "l", "--name", "n"]])
def test_each_is_for_a_lake_and_names_nothing(
    words: list[str], job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("ingest", "traces", "--each", *words) == 2
    assert "--each is for a lake" in capsys.readouterr().err


# ---------------------------------------------------------------- tasks


def test_a_task_that_fails_is_begun_again_elsewhere(remote: Cluster, tmp_path: Path) -> None:
    ((_, said),) = remote.map(cluster_tasks.fails_where_it_was_first, [str(tmp_path / "note")])
    assert isinstance(said, tuple)
    assert said[0] != said[1]


def test_a_bug_is_told_after_three_tries_without_what_it_read(
    remote: Cluster, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    ((_, said),) = remote.map(cluster_tasks.always_fails, [str(note)])
    assert isinstance(said, FailedTaskError)
    assert str(said).startswith("KeyError at cluster_tasks.py:")
    assert "s3cret" not in str(said)
    tried = note.read_text().split()
    assert len(tried) == cluster.TRIES
    assert len(set(tried)) == 2  # both workers


def test_what_every_worker_would_meet_is_not_tried_again(remote: Cluster, tmp_path: Path) -> None:
    note = tmp_path / "note"
    ((_, said),) = remote.map(cluster_tasks.cannot_be_read, [str(note)])
    assert isinstance(said, InputError)
    assert said.hint == "give another"
    assert note.read_text() == "begun\n"


def test_whoever_kills_workers_costs_nobody_else(remote: Cluster) -> None:
    remote._client.run_on_scheduler(_blame_at_once)
    asked = [(f"{n}", "7") for n in range(16)]
    answers = {item[0]: said for item, said in remote.map(cluster_tasks.dies_if_it_is, asked)}
    lost = {n: said for n, said in answers.items() if said != n}
    assert len(answers) == 16
    assert [*lost] == ["7"]
    assert isinstance(lost["7"], LostWorkerError)


def _blame_at_once(dask_scheduler: Any) -> None:
    """Else it takes a suspect to four workers."""
    dask_scheduler.allowed_failures = 0


def test_another_tracekit_is_refused(remote: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "source_version", lambda: "0.0.9+abc")
    with pytest.raises(UsageError, match=r"has tracekit .*, here it is 0\.0\.9\+abc") as caught:
        [*remote.map(cluster_tasks.doubled, [1, 2])]
    assert "same tracekit" in (caught.value.hint or "")


def test_the_version_is_that_of_the_source_text() -> None:
    root = Path(cluster.__file__).parent
    where = {**os.environ, "PYTHONPATH": str(root.parent)}
    script = "from tracekit.cluster import source_version; print(source_version())"
    said = subprocess.run(
        [sys.executable, "-c", script], env=where, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == cluster.source_version()


def test_other_source_text_is_another_version(tmp_path: Path) -> None:
    root = Path(cluster.__file__).parent
    for name in ("cluster.py", "errors.py", "version.py", "__init__.py"):
        (tmp_path / "tracekit").mkdir(exist_ok=True)
        shutil.copy(root / name, tmp_path / "tracekit" / name)
    script = "from tracekit.cluster import source_version; print(source_version())"
    said = []
    for text in ("x = 1\n", "x = 2\n"):
        (tmp_path / "tracekit" / "rule.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(done.stdout)
    assert said[0] != said[1]


def test_waiting_for_workers_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed", reason="needs pip install 'tracekit[cluster]'")
    import dask

    monkeypatch.setattr(cluster, "LOOK_S", 0.1)
    with (
        dask.config.set({"tracekit.no-worker-timeout": 0.3}),
        distributed.LocalCluster(
            n_workers=0, processes=False, dashboard_address="127.0.0.1:0"
        ) as empty,
        Cluster(scheduler=empty.scheduler_address) as nobody,
        pytest.raises(ClusterError, match=r"there was no worker for 0 s") as caught,
    ):
        [*nobody.map(cluster_tasks.doubled, [1])]
    assert "tracekit.no-worker-timeout" in (caught.value.hint or "")


def test_workers_without_tracekit_are_an_error_at_once(
    remote: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "IMPORTED", "tracekit.no_such_module")
    other = Cluster(scheduler=remote._client.scheduler.address)
    other._client_or_none = remote._client  # whose certificates it would need
    with pytest.raises(ClusterError, match=r"not be begun \(ModuleNotFoundError\)") as caught:
        [*other.map(cluster_tasks.doubled, [1, 2])]
    assert "the same tracekit" in (caught.value.hint or "")
    monkeypatch.undo()
    assert sorted(r for _, r in other.map(cluster_tasks.doubled, [1, 2])) == [2, 4]  # type: ignore[type-var]


@pytest.mark.slow  # several processes; one of each kind stays
def test_a_scheduler_that_goes_away_ends_the_command(remote: Cluster, tmp_path: Path) -> None:
    """``remote`` is there for its skip alone."""
    where = tmp_path / "scheduler.json"
    words = [sys.executable, "-m"]
    said = ["--scheduler-file", str(where), "--dashboard-address", "127.0.0.1:0"]
    where_ours_is = {**os.environ, "PYTHONPATH": str(Path(cluster.__file__).parents[1])}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": where_ours_is}
    scheduler = subprocess.Popen(
        [*words, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", *said],
        **quiet,  # type: ignore[call-overload]
    )
    try:
        for _ in range(300):
            if where.exists() and where.read_text():
                break
            time.sleep(0.1)
        address = json.loads(where.read_text())["address"]
        with Cluster(scheduler=address) as one:
            one._is_tried = True  # there is no worker to try it on
            # What it cannot import it cannot hand on: as where it has no tracekit.
            with pytest.raises(ClusterError, match="a task could not be begun") as caught:
                next(one.map(cluster_tasks.doubled, [1]))
            assert "the same tracekit" in (caught.value.hint or "")
            asked = one.map(abs, [1])  # there is no worker: it would wait
            threading.Timer(1.0, scheduler.kill).start()
            with pytest.raises(ClusterError, match="the scheduler went away") as caught:
                next(asked)
        assert "what is finished is kept" in (caught.value.hint or "")
    finally:
        scheduler.kill()
        scheduler.wait(30)


# ---------------------------------------------------------------- what is asked


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:1", "127.0.0.1:1", "nonsense://x", "tcp://", "tcp://127.0.0.1:x"]
)
def test_a_scheduler_that_does_not_answer_is_an_error(
    address: str, job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed", reason="needs pip install 'tracekit[cluster]'")
    monkeypatch.setattr(cluster, "CONNECT_S", 0.3)
    assert command("ingest", "traces", "--run", "run", "--scheduler", address) == 2
    said = capsys.readouterr().err
    assert f"error: {address}: no Dask scheduler answers" in said
    assert "hint: " in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scheduler", "tcp://h:1", "--cluster", "local"], "exclude each other"),
        (["--cluster", "yarn"], "'yarn' is none of local, slurm, kubernetes"),
        (["--cluster", "slurm"], "how many workers"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    words: list[str], said: str, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("ingest", "traces", "--run", "run", *words) == 2
    assert said in capsys.readouterr().err
    assert not (job / "run").exists()


def test_without_dask_a_cluster_is_refused_with_a_hint(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert command("ingest", "traces", "--run", "run", "--cluster", "local") == 2
    assert "pip install 'tracekit[cluster]'" in capsys.readouterr().err


def test_dask_is_imported_by_whoever_asks_for_it_alone(job: Path) -> None:
    script = (
        "import sys, contextlib; from tracekit.cli.app import main\n"
        "with contextlib.suppress(SystemExit): main(['ingest', 'traces', '--run', 'run'])\n"
        "assert 'tracekit.runs' in sys.modules\n"
        "assert not {'dask', 'distributed', 'dask_jobqueue'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
