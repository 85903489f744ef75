"""Several writers of one run, and writers that are killed half way."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from run_folders import KILLED, rows, rows_of_both_at_once, start_python
from soaks import soak
from tracekit import runs, store
from tracekit.errors import StoreError
from tracekit.runs import build, execute
from tracekit.store.manifest import Manifest, load
from traces import write_job


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with the traces of two ranks."""
    write_job(tmp_path / "job", steps_count=2)
    return tmp_path / "job"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


# ---------------------------------------------------------------- two writers


WRITER = """
    import sys, time
    from pathlib import Path
    from tracekit import runs, store, derive, ingest
    import pyarrow.parquet, duckdb
    run, go, *paths = map(Path, sys.argv[1:])
    print("ready", flush=True)
    while not go.exists():
        time.sleep(0.001)
    runs.ingest(paths, run)
"""


def write_together(run: Path, *paths: list[Path]) -> Manifest:
    """Real processes that begin at the same moment; the run that they leave."""
    go = run.with_name("go")
    writers = [start_python(WRITER, run, go, *given) for given in paths]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    go.touch()
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert writer.returncode == 0, errors
    manifest = load(run)
    assert manifest is not None
    return manifest


def test_two_writers_of_the_same_files_leave_one_generation(job: Path, run: Path) -> None:
    files = sorted(job.iterdir())
    manifest = write_together(run, files, files)
    assert (manifest.generation, len(manifest.sources)) == (1, 2)
    assert rows(run) == rows_of_both_at_once(job, run)


@pytest.mark.slow  # several processes; one of each kind stays
def test_two_writers_of_different_files_leave_all_of_them(job: Path, run: Path) -> None:
    manifest = write_together(run, [job / "rank0.json"], [job / "rank1.json"])
    assert manifest.generation == 2
    assert sorted(Path(s.path).name for s in manifest.sources) == ["rank0.json", "rank1.json"]
    assert [s.source_id for s in manifest.sources] == [0, 1]
    with store.open_run(run) as opened:  # checks that every listed file is there and whole
        ranks = opened.con.execute(
            "SELECT rank, count(*) FROM step GROUP BY 1 ORDER BY 1"
        ).fetchall()
    assert ranks == [(0, 2), (1, 2)]


def test_a_writer_whom_others_always_beat_gives_up_with_a_hint(
    job: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "commit", lambda *_: False)
    monkeypatch.setattr(build, "COMMIT_TRIES", 2)
    with pytest.raises(StoreError, match="2 other writers were faster") as caught:
        runs.ingest([job], run)
    assert caught.value.hint
    assert list((run / "derived").iterdir()) == []


# ---------------------------------------------------------------- killed half way


MOMENTS = (
    "the first source is read",
    "a source is half written",
    "the shard is not yet in place",
    "the shard is in place",
    "the derived tables are half written",
    "the derived tables are not yet in place",
    "the manifest is not yet in place",
    "the manifest is in place",
)


@pytest.mark.parametrize(
    "moment",
    soak(
        MOMENTS,
        # Before the manifest is in place: of a second generation, below.
        fast=["a source is half written", "the manifest is in place"],
    ),
)
def test_a_writer_killed_when(moment: str, job: Path, run: Path) -> None:
    """The run is then absent or whole, and the next ingest completes and cleans up."""
    killed = start_python(KILLED, run, job, moment)
    _, errors = killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL, errors
    is_committed = moment == "the manifest is in place"
    assert store.is_run(run) == is_committed
    before = load(run)
    manifest = runs.ingest([job], run)
    assert manifest.generation == 1
    assert before == (manifest if is_committed else None)
    assert rows(run) == rows_of_both_at_once(job, run)
    assert list((run / "tmp").iterdir()) == []
    assert [p.name for p in (run / "manifests").iterdir()] == ["000001.json"]


@pytest.mark.slow  # several processes; one of each kind stays
def test_a_writer_killed_on_the_second_generation_leaves_the_first(job: Path, run: Path) -> None:
    first = runs.ingest([job / "rank0.json"], run)
    killed = start_python(KILLED, run, job, "the manifest is not yet in place")
    assert killed.wait(timeout=60) == -signal.SIGKILL
    assert load(run) == first
    with store.open_run(run) as opened:
        assert opened.con.execute("SELECT count(*) FROM step").fetchall() == [(2,)]
    assert runs.ingest([job], run).generation == 2


def test_a_finished_shard_of_a_killed_ingest_is_used(
    job: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = start_python(KILLED, run, job, "the shard is in place")
    assert killed.wait(timeout=60) == -signal.SIGKILL

    def refuse(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(execute, "_ingest_source", refuse)
    assert len(runs.ingest([job], run).sources) == 2


def test_work_of_the_living_and_of_other_hosts_is_left_alone(job: Path, run: Path) -> None:
    alive = execute.work_folder(run)
    elsewhere = run / "tmp" / "otherhost-99999999-00000000"
    dead = run / "tmp" / alive.name.replace(f"-{os.getpid()}-", "-99999999-")
    elsewhere.mkdir()
    dead.mkdir()
    runs.ingest([job], run)
    assert sorted((run / "tmp").iterdir()) == sorted([alive, elsewhere])
