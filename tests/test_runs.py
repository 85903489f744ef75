"""Making runs: idempotent, atomic, whole after a crash, and never mixed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from memory_sink import source_of

import tracekit
from soaks import soak
from tracekit import runs, store
from tracekit.errors import AmbiguousInputError, InputError, StoreError
from tracekit.runs import build, execute, plan
from tracekit.schema import TABLES
from tracekit.store.manifest import Manifest, load
from traces import BASE_NS, make_trace, write_job, write_trace

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with the traces of two ranks."""
    write_job(tmp_path / "job", steps_count=2)
    return tmp_path / "job"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def content(run: Path) -> dict[str, str]:
    """Every file of the run and the hash of its bytes."""
    return {
        str(p.relative_to(run)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(run.rglob("*"))
        if p.is_file()
    }


def rows(run: Path) -> dict[str, list[str]]:
    """The rows of every table, sorted; derived keys of a run's folder do not occur in them."""
    with store.open_run(run) as opened:
        return {t.name: sorted(map(repr, opened.con.table(t.name).fetchall())) for t in TABLES}


def sources(run: Path) -> list[tuple[str, str, int | None]]:
    """Path, status and rank of every source."""
    with store.open_run(run) as opened:
        return opened.con.execute(
            "SELECT path, status, rank FROM source LEFT JOIN source_context USING (source_id) "
            "ORDER BY source_id"
        ).fetchall()


def start_python(script: str, *arguments: object) -> subprocess.Popen[str]:
    """A real process that runs the script with this checkout's tracekit."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# ---------------------------------------------------------------- the same again


def test_the_same_files_again_change_nothing(job: Path, run: Path) -> None:
    first = runs.ingest([job], run)
    before = content(run)
    again = runs.ingest([job], run)
    assert again == first
    assert content(run) == before


def test_a_newer_time_of_the_same_bytes_changes_nothing(job: Path, run: Path) -> None:
    first = runs.ingest([job], run)
    os.utime(job / "rank0.json", ns=(1, 1))
    assert runs.ingest([job], run) == first


def test_the_same_files_in_another_folder_change_nothing(
    job: Path, run: Path, tmp_path: Path
) -> None:
    first = runs.ingest([job], run)
    copy = shutil.copytree(job, tmp_path / "copy")
    assert runs.ingest([copy], run) == first


def test_a_copy_beside_the_original_is_listed_and_counted_once(job: Path, run: Path) -> None:
    shutil.copy(job / "rank1.json", job / "rank1-copy.json")
    runs.ingest([job], run)
    found = {Path(path).name: rank for path, _, rank in sources(run)}
    assert sorted(found) == ["rank0.json", "rank1-copy.json", "rank1.json"]
    assert [r for r in found.values() if r is not None] in ([0, 1], [1, 0])
    with store.open_run(run) as opened:
        assert opened.con.execute("SELECT count(*) FROM step").fetchall() == [(4,)]


def test_a_run_beside_its_traces_is_no_source_of_itself(job: Path) -> None:
    first = runs.ingest([job], job / "run")
    assert [Path(s.path).name for s in first.sources] == ["rank0.json", "rank1.json"]
    assert runs.ingest([job], job / "run") == first


def test_files_without_a_name_that_differs_are_told_apart_by_their_bytes(
    run: Path, tmp_path: Path
) -> None:
    for rank in (0, 1):
        write_trace(tmp_path / "in" / f"host{rank}" / "trace.json", make_trace(rank))
    runs.ingest([tmp_path / "in"], run)
    assert [rank for _, _, rank in sources(run)] == [0, 1]


# ---------------------------------------------------------------- more, and other


def test_a_new_file_makes_a_new_generation_and_old_shards_stay(job: Path, run: Path) -> None:
    runs.ingest([job / "rank0.json"], run)
    before = content(run)
    manifest = runs.ingest([job], run)
    assert manifest.generation == 2
    assert [s.source_id for s in manifest.sources] == [0, 1]
    after = content(run)
    assert {name: after[name] for name in before} == before
    assert rows(run)["gpu_op"] == rows_of_both_at_once(job, run)["gpu_op"]


def rows_of_both_at_once(job: Path, run: Path) -> dict[str, list[str]]:
    whole = run.with_name("whole")
    runs.ingest([job], whole)
    return rows(whole)


def test_a_source_of_another_job_is_refused_and_nothing_changes(job: Path, run: Path) -> None:
    first = runs.ingest([job], run)
    stranger = write_trace(job.parent / "other.json", make_trace(5, world_size=16))
    with pytest.raises(AmbiguousInputError, match=r"world sizes \(2, 16\)") as caught:
        runs.ingest([stranger], run)
    assert caught.value.hint
    assert load(run) == first
    assert runs.ingest([job], run) == first


def test_a_rank_that_is_already_there_at_that_time_is_refused(job: Path, run: Path) -> None:
    first = runs.ingest([job], run)
    twin = make_trace(1, steps_count=2)
    twin["traceEvents"][0]["args"]["seen"] = "by another profiler"
    other = write_trace(job.parent / "twin.json", twin)
    with pytest.raises(AmbiguousInputError, match="rank 1 has two overlapping windows"):
        runs.ingest([other], run)
    assert load(run) == first


def test_a_file_that_has_changed_takes_the_place_of_what_it_was(job: Path, run: Path) -> None:
    write_trace(job / "rank1.json", make_trace(1, steps_count=1))
    runs.ingest([job], run)
    write_trace(job / "rank1.json", make_trace(1, steps_count=2))
    manifest = runs.ingest([job], run)
    assert manifest.generation == 2
    assert [Path(s.path).name for s in manifest.sources] == ["rank0.json", "rank1.json"]
    with store.open_run(run) as opened:
        steps = opened.con.execute(
            "SELECT rank, count(*) FROM step GROUP BY 1 ORDER BY 1"
        ).fetchall()
    assert steps == [(0, 2), (1, 2)]


def test_python_frames_are_added_when_they_are_asked_for(run: Path, tmp_path: Path) -> None:
    document = make_trace(0, world_size=1)
    frame = {"ph": "X", "cat": "python_function", "name": "train.py(7): step", "pid": 1000}
    document["traceEvents"].append({**frame, "tid": 1000, "ts": 300, "dur": 50, "args": {}})
    trace = write_trace(tmp_path / "rank0.json", document)
    runs.ingest([trace], run)
    assert rows(run)["python_frame"] == []
    runs.ingest([trace], run, stacks=True)
    assert len(rows(run)["python_frame"]) == 1
    assert len(sources(run)) == 1


def test_a_job_description_makes_another_generation_over_the_same_shards(
    job: Path, run: Path
) -> None:
    first = runs.ingest([job], run)
    description = job.parent / "job.toml"
    description.write_text('name = "llama"\n')
    second = runs.ingest([job], run, job_paths=[description])
    assert (second.generation, second.key != first.key) == (2, True)
    assert [f for f in second.files if f.path.startswith("data/")] == [
        f for f in first.files if f.path.startswith("data/")
    ]
    with store.open_run(run) as opened:
        assert opened.con.execute("SELECT job_name FROM run").fetchall() == [("llama",)]
    # It is kept: the same files without it mean the same run, as do comments in it.
    assert runs.ingest([job], run) == second
    description.write_text('# a comment\nname = "llama"\n')
    assert runs.ingest([job], run, job_paths=[description]) == second
    kept = runs.job_of(second)
    assert kept is not None and kept.name == "llama"


def test_a_job_description_among_the_paths_is_used(job: Path, run: Path) -> None:
    (job / "job.toml").write_text('name = "found"\n')
    manifest = runs.ingest([job], run)
    assert len(manifest.sources) == 2
    assert manifest.job_path == str(job / "job.toml")
    with store.open_run(run) as opened:
        assert opened.con.execute("SELECT job_name FROM run").fetchall() == [("found",)]


COUNTERS = "zeit,karte,P,SM\n1700000000,0,350000,88\n1700000001,1,351000,90\n"


def test_columns_of_a_table_are_what_the_job_description_says(run: Path, tmp_path: Path) -> None:
    table = tmp_path / "gpu.csv"
    table.write_text(COUNTERS)
    job = tmp_path / "job.toml"
    said = '[[source]]\npath = "gpu.csv"\ncolumns = { time = "zeit", gpu = "karte", %s }\n'

    def rows() -> list[tuple[Any, ...]]:
        with store.open_run(run) as opened:
            return opened.con.execute(
                "SELECT counter, nvml_index, value FROM gpu_sample ORDER BY ALL"
            ).fetchall()

    job.write_text(said % 'power = "P [mW]"')
    first = runs.ingest([table], run, job_paths=[job])
    assert rows() == [("power", 0, 350.0), ("power", 1, 351.0)]
    assert runs.ingest([table], run) == first  # it is kept
    job.write_text(said % 'sm_active = "SM [%]"')
    second = runs.ingest([table], run, job_paths=[job])  # read again: the bytes are the same
    assert rows() == [("sm_active", 0, 0.88), ("sm_active", 1, 0.9)]
    other = tmp_path / "other.csv"
    other.write_text("time,gpu,power_W\n1700000000,7,1\n")
    job.write_text(said % 'power = "P [mW]"')
    third = runs.ingest([other], run, job_paths=[job])  # that of a file that is not given again
    assert rows() == [("power", 0, 350.0), ("power", 1, 351.0), ("power", 7, 1.0)]
    assert [m.generation for m in (first, second, third)] == [1, 2, 3]
    job.write_text(said % 'smactive = "SM"')
    with pytest.raises(InputError, match=r"job\.toml: line 3: \[\[source\]\] 'gpu\.csv': columns:"):
        runs.ingest([table], run, job_paths=[job])
    assert load(run) == third


# ---------------------------------------------------------------- other versions


def bump_kineto(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracekit.ingest import INGESTORS

    monkeypatch.setattr(type(INGESTORS[0]), "version", INGESTORS[0].version + 1)


def bump_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracekit.ingest import INGESTORS

    (nccl,) = (i for i in INGESTORS if i.name == "nccl")
    monkeypatch.setattr(nccl, "version", nccl.version + 1, raising=False)


def test_rows_of_an_older_ingestor_are_not_served(
    job: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = runs.ingest([job], run)
    bump_kineto(monkeypatch)
    new = runs.ingest([job], run)
    assert new.generation == 2
    assert not {f.path for f in old.files} & {f.path for f in new.files}
    assert len(new.sources) == 2
    assert runs.ingest([job], run) == new


def test_adding_a_file_with_a_newer_ingestor_reads_the_others_again(
    job: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = runs.ingest([job / "rank0.json"], run)
    bump_kineto(monkeypatch)
    new = runs.ingest([job / "rank1.json"], run)
    assert not {f.path for f in old.files} & {f.path for f in new.files}
    assert sorted(Path(s.path).name for s in new.sources) == ["rank0.json", "rank1.json"]


def test_a_source_that_is_gone_stays_as_an_older_ingestor_read_it(
    job: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.ingest([job / "rank0.json"], run)
    was = rows(run)["gpu_op"]
    (job / "rank0.json").unlink()
    bump_kineto(monkeypatch)
    new = runs.ingest([job / "rank1.json"], run)
    assert [Path(s.path).name for s in new.sources] == ["rank0.json", "rank1.json"]
    assert set(was) < set(rows(run)["gpu_op"])
    assert [Path(s.path).name for s in runs.staleness(new).older] == ["rank0.json"]
    assert runs.ingest([job / "rank1.json"], run) == new


def test_rows_whose_columns_mean_something_else_by_now_need_their_file(
    job: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.ingest([job / "rank0.json"], run)
    (job / "rank0.json").unlink()
    monkeypatch.setattr("tracekit.runs.plan.REGISTRY_VERSION", 10**6)
    with pytest.raises(StoreError, match=r"rank0\.json: must be read again") as caught:
        runs.ingest([job / "rank1.json"], run)
    assert caught.value.hint


@pytest.fixture
def mixed(job: Path) -> Path:
    """The job with a log that the ingestor of NCCL logs reads."""
    (job / "nccl.log").write_text(
        "gpu-1:7:7 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n"
        "gpu-1:7:9 [0] NCCL INFO comm 0x55d0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1a000 "
        "commId 0x9a1 - Init COMPLETE\n"
    )
    return job


def test_an_ingestor_s_upgrade_reads_its_own_sources_again_and_no_others(
    mixed: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = runs.ingest([mixed], run)
    was = rows(run)
    assert sorted(s.reader.partition("=")[0] for s in first.sources) == ["kineto"] * 2 + ["nccl"]
    for name in ("rank0.json", "rank1.json"):
        (mixed / name).unlink()
    bump_logs(monkeypatch)
    second = runs.ingest([], run)
    assert second.generation == 2
    ids = {Path(s.path).name: s.source_id for s in second.sources}
    assert ids == {"rank0.json": 0, "rank1.json": 1, "nccl.log": 3} or ids == {
        "nccl.log": 3, "rank0.json": 1, "rank1.json": 2
    }  # fmt: skip
    assert not runs.staleness(second).older
    now = rows(run)
    assert now["gpu_op"] == was["gpu_op"]
    assert len(now["source"]) == len(was["source"]) == 3
    assert len(now["nccl_comm"]) == len(was["nccl_comm"]) == 1
    assert runs.ingest([], run) == second


def test_one_of_many_that_changed_needs_none_of_the_others(job: Path, run: Path) -> None:
    """They share a shard: the rows of the others are carried over without their files."""
    runs.ingest([job], run)
    was = rows(run)
    (job / "rank0.json").unlink()
    write_trace(job / "rank1.json", make_trace(1, steps_count=3))
    manifest = runs.ingest([job / "rank1.json"], run)
    assert [s.source_id for s in manifest.sources] == [0, 2]
    with store.open_run(run) as opened:
        steps = opened.con.execute(
            "SELECT rank, count(*) FROM step GROUP BY 1 ORDER BY 1"
        ).fetchall()
    assert steps == [(0, 2), (1, 3)]
    assert [r for r in rows(run)["gpu_op"] if r.startswith("(0,")] == [
        r for r in was["gpu_op"] if r.startswith("(0,")
    ]


def test_a_file_that_another_ingestor_knows_by_now_is_read_by_it(
    mixed: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracekit.ingest import INGESTORS

    with monkeypatch.context() as patch:
        for one in INGESTORS:
            if one.name in ("nccl", "job_log"):
                patch.setattr(one, "sniff", lambda *_: None, raising=False)
        first = runs.ingest([mixed], run)
        assert {s.reader for s in first.sources if s.path.endswith(".log")} == {""}
    assert runs.ingest([mixed], run) == first  # the versions say that nothing has changed
    bump_logs(monkeypatch)
    second = runs.ingest([mixed], run)
    (log,) = (s for s in second.sources if s.path.endswith(".log"))
    assert log.reader.startswith("nccl=")
    assert len(rows(run)["nccl_comm"]) == 1


def test_a_run_says_which_ingestors_took_part(mixed: Path, run: Path) -> None:
    from tracekit.ingest import INGESTORS

    runs.ingest([mixed], run)
    versions = {i.name: i.version for i in INGESTORS}
    with store.open_run(run) as opened:
        assert opened.con.execute("SELECT ingestor_versions FROM run").fetchall() == [
            ([f"kineto={versions['kineto']}", f"nccl={versions['nccl']}"],)
        ]


def test_a_kept_run_is_derived_again_without_its_files(
    job: Path, run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    description = job / "job.toml"
    description.write_text('[[source]]\npath = "rank1.json"\nhost = "gpu-7"\n')
    monkeypatch.chdir(job)
    first = runs.ingest(["rank0.json", "rank1.json"], run, job_paths=["job.toml"])
    was = rows(run)
    shutil.rmtree(job)
    monkeypatch.chdir(run)
    with tracekit.open(run) as opened:
        assert opened.run.manifest == first
    for module in (build, runs):
        monkeypatch.setattr(module, "derive_version", lambda: "another", raising=False)
    with caplog.at_level("WARNING", "tracekit"), tracekit.open(run) as opened:
        assert opened.run.manifest.generation == 2
    assert "derived by another tracekit" in caplog.text
    assert rows(run) == was
    hosts = {host for table in rows(run)["rank"] for host in ("gpu-7",) if host in table}
    assert hosts == {"gpu-7"}


def test_a_kept_run_that_may_not_be_written_says_that_it_is_stale(
    job: Path, run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tracekit.errors import RunWriteError

    def refuse(*_: object, **__: object) -> None:
        raise RunWriteError("read-only")

    first = runs.ingest([job], run)
    monkeypatch.setattr(build, "derive_version", lambda: "another")
    monkeypatch.setattr(runs, "derive_again", refuse)
    bump_kineto(monkeypatch)
    with caplog.at_level("WARNING", "tracekit"), tracekit.open(run) as opened:
        assert opened.run.manifest == first
        report = opened.diagnose().to_text()
    assert "to derive again it must be writable (read-only)" in caplog.text
    assert "2 of 2 sources as another version of their ingestor read them" in caplog.text
    assert "another version of their ingestor" in report


def test_what_derive_depends_on_decides_about_deriving_again() -> None:
    """Every module that derive imports is in the hash, or makes no difference to its rows."""
    import grimp

    from tracekit.runs.keys import DERIVE_SOURCES

    graph = grimp.build_graph("tracekit")
    found = graph.find_upstream_modules("tracekit.derive", as_package=True)
    no_difference = {
        "tracekit.errors",  # how it says no
        "tracekit.ranges",  # ranks in notes
        "tracekit.store",  # names of the reader's
        "tracekit.store.manifest",  # which files there are
        "tracekit.store.damage",
        "tracekit.store.selection",  # what is shown of a run
        "tracekit.store.statement",  # what a user asks
        "tracekit.store.writer",  # rows as they are given
        "tracekit.wording",  # notes, not rows
    }
    below = {"tracekit." + s.removesuffix(".py").replace("/", ".") for s in DERIVE_SOURCES}
    assert {m for m in found if not any(m == b or m.startswith(f"{b}.") for b in below)} == (
        no_difference & found
    )
    package = Path(tracekit.__file__).parent
    assert all((package / name).exists() for name in DERIVE_SOURCES)


def test_a_description_in_another_folder_is_another_description(run: Path, tmp_path: Path) -> None:
    write_job(tmp_path / "job", steps_count=1)
    text = '[[source]]\npath = "rank0.json"\nhost = "gpu-7"\n'
    (tmp_path / "job.toml").write_text(text)
    (tmp_path / "job" / "other.toml").write_text(text)

    def hosts() -> set[str]:
        with store.open_run(run) as opened:
            return {h for (h,) in opened.con.execute("SELECT host FROM rank").fetchall()}

    runs.ingest([tmp_path / "job" / "*.json"], run, job_paths=[tmp_path / "job.toml"])
    assert "gpu-7" not in hosts()
    runs.ingest([tmp_path / "job" / "*.json"], run, job_paths=[tmp_path / "job" / "other.toml"])
    assert "gpu-7" in hosts()


def test_equal_relative_paths_of_two_folders_are_two_sources(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        write_trace(tmp_path / f"host{rank}" / "trace.json", make_trace(rank))
        monkeypatch.chdir(tmp_path / f"host{rank}")
        runs.ingest(["trace.json"], run)
    assert [rank for _, _, rank in sources(run)] == [0, 1]


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

KILLED = """
    import os, signal, sys
    from pathlib import Path
    from tracekit import runs, store
    from tracekit.runs import build, execute

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    def dying_at(function, turn):
        turns = iter(range(1, 99))
        def call(*given, **named):
            if next(turns) == turn:
                die()
            return function(*given, **named)
        return call

    run, job, moment = sys.argv[1:]
    match moment:
        case "the first source is read":
            execute._ingest_source = die
        case "a source is half written":
            store.SourceSink.close = die
        case "the shard is not yet in place":
            Path.rename = dying_at(Path.rename, 1)
        case "the shard is in place":
            build._derive = die
        case "the derived tables are half written":
            store.write_table = dying_at(store.write_table, 3)
        case "the derived tables are not yet in place":
            Path.rename = dying_at(Path.rename, 2)
        case "the manifest is not yet in place":
            os.link = die
        case "the manifest is in place":
            link = os.link
            os.link = lambda *given: (link(*given), die())
    runs.ingest([job], Path(run))
"""
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
        fast=[
            "a source is half written",
            "the manifest is not yet in place",
            "the manifest is in place",
        ],
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


# ---------------------------------------------------------------- workers


def test_two_workers_write_the_same_rows_as_one(
    job: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(plan, "SMALL_INPUT_BYTES", 0)
    monkeypatch.setattr(plan, "MIN_SHARD_BYTES", 1)
    manifest = runs.ingest(
        [job], run, workers=2, progress=lambda done, total, _: seen.append((done, total))
    )
    shards = {Path(f.path).parts[1] for f in manifest.files if f.path.startswith("data/")}
    assert len(shards) == 2
    assert rows(run) == rows_of_both_at_once(job, run)
    total = sum(p.stat().st_size for p in job.iterdir())
    assert seen[-1] == (total, total)


def test_a_worker_that_is_killed_is_named_with_a_hint(
    job: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SMALL_INPUT_BYTES", 0)
    monkeypatch.setattr(plan, "MIN_SHARD_BYTES", 1)
    monkeypatch.setattr(execute, "_pool", _Killed)
    with pytest.raises(StoreError, match="worker process was killed") as caught:
        runs.ingest([job], run, workers=2)
    assert caught.value.hint
    assert not store.is_run(run)


def test_tasks_go_to_whoever_is_free_the_largest_first() -> None:
    """A worker that is slow to start takes none away from the others."""
    tasks = [
        runs.ShardTask("", f"{size}", ((_entry(size), source_of(b"")),), stacks=False)
        for size in (3, 9, 5, 7)
    ]
    executor = _ByHand()
    handed = execute._Handed(executor, tasks)
    handed.give()
    assert [t.shard for t in executor.tasks] == ["9"]
    first = handed.take()
    assert first is not None
    assert first.shard == "7"
    executor.futures[0].set_result([])
    assert [t.shard for t in executor.tasks] == ["9", "5"]
    last = handed.take()
    assert last is not None
    assert last.shard == "3"
    assert handed.take() is None
    executor.futures[1].set_result([])
    assert [t.shard for t in handed.futures.values()] == ["9", "5"]


def test_after_a_worker_failed_nothing_more_is_begun() -> None:
    tasks = [
        runs.ShardTask("", f"{size}", ((_entry(size), source_of(b"")),), stacks=False)
        for size in (3, 9, 5)
    ]
    executor = _ByHand()
    handed = execute._Handed(executor, tasks)
    handed.give()
    executor.futures[0].set_exception(BrokenProcessPool("a worker died"))
    assert handed.take() is None
    assert len(executor.tasks) == 1


def _entry(size: int) -> store.SourceEntry:
    return store.SourceEntry(size, "a.json", "ff", size, 2, "k")


class _ByHand(Executor):
    """Its tasks end when the test says so."""

    def __init__(self) -> None:
        self.tasks: list[runs.ShardTask] = []
        self.futures: list[Future[Any]] = []

    def submit(self, _: object, task: Any, /) -> Any:  # type: ignore[override]
        self.tasks.append(task)
        self.futures.append(Future())
        return self.futures[-1]


class _Killed(ThreadPoolExecutor):
    """Its workers die at once."""

    def __init__(self, *_: object) -> None:
        super().__init__(1)

    def submit(self, *_: object, **__: object) -> Any:
        future: Future[Any] = Future()
        future.set_exception(BrokenProcessPool("a worker died"))
        return future


@pytest.mark.parametrize(
    ("memory_mb", "workers", "expected"), [(255, 8, 1), (512, 8, 2), (4096, 2, 2), (600, None, 1)]
)
def test_memory_is_shared_out_among_workers(
    memory_mb: int, workers: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "available_cpus", lambda: 1)
    assert plan.workers_within(memory_mb << 20, workers) == expected


def test_small_inputs_stay_in_this_process(
    job: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "_pool", None)  # calling it would fail
    assert len(runs.ingest([job], run, workers=8).sources) == 2


def test_workers_follow_affinity_and_the_cgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    quota = {"text": "max 100000"}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: quota["text"])
    assert runs.available_cpus() == 8
    for text, cpus in (
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("9900000 100000", 8),
        ("nonsense", 8),
    ):
        quota["text"] = text
        assert runs.available_cpus() == cpus, text


# ---------------------------------------------------------------- bad input, bad places


def test_what_cannot_be_used_is_a_status_and_no_error(job: Path, run: Path) -> None:
    (job / "empty.json").write_bytes(b"")
    (job / "garbage.bin").write_bytes(bytes(range(256)) * 8)
    (job / "notes.txt").write_text("the job was slow\n")
    (job / "broken.json.gz").write_bytes(b"\x1f\x8b\x08\x00 this is no gzip")
    cut = json.dumps(make_trace(1, steps_count=2))
    (job / "rank1.json").write_text(cut[: len(cut) // 2])
    runs.ingest([job], run)
    found = {Path(path).name: status for path, status, _ in sources(run)}
    assert found == {
        "rank0.json": "ok",
        "rank1.json": "partial",
        "empty.json": "empty",
        "garbage.bin": "unrecognised",
        "notes.txt": "unrecognised",
        "broken.json.gz": "unreadable",
    }


def test_a_file_that_vanishes_while_it_is_read_is_a_status(
    job: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracekit import ingest

    def vanish(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(ingest.INGESTORS[0].__class__, "read", vanish)
    runs.ingest([job], run)
    assert {status for _, status, _ in sources(run)} == {"unreadable"}


def test_a_bug_of_an_ingestor_costs_its_file_and_names_the_line(
    job: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracekit import ingest

    read = ingest.INGESTORS[0].__class__.read

    def stumble(self: Any, source: Any, sink: Any, options: Any) -> None:
        if source.name == "rank1.json":
            raise ZeroDivisionError("a secret in the message")
        read(self, source, sink, options)

    monkeypatch.delenv("TRACEKIT_DEBUG", raising=False)
    monkeypatch.setattr(ingest.INGESTORS[0].__class__, "read", stumble)
    runs.ingest([job], run)
    assert [status for _, status, _ in sources(run)] == ["ok", "partial"]
    with store.open_run(run) as opened:
        stats = opened.con.execute("SELECT counter, shape FROM ingest_stat").fetchall()
    assert stats[0][0] == "ingestor_failed"
    assert stats[0][1].startswith("ZeroDivisionError at test_runs.py:")
    with tracekit.open(run) as opened_run:
        verdict = opened_run.diagnose().document.verdict
    assert verdict.kind == "not_enough_data"
    assert "tracekit itself failed on" in verdict.sentence
    assert "rank1.json" in verdict.sentence


def test_the_attempt_that_was_chosen_stays_chosen(job: Path, run: Path, tmp_path: Path) -> None:
    """Two starts of one job: the choice is made once, and files may still be added."""
    write_job(tmp_path / "again", steps_count=2, base_ns=BASE_NS + 3600 * 10**9)
    both = [job, tmp_path / "again"]
    first = runs.ingest(both, run, attempt=1)
    assert first.attempt == 1
    assert runs.ingest(both, run).generation == first.generation
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "notes.txt").write_text("nothing that is read")
    later = runs.ingest([*both, tmp_path / "late"], run)
    assert (later.generation, later.attempt) == (2, 1)


def test_what_a_refused_ingest_leaves_is_no_input(job: Path, run: Path) -> None:
    write_trace(job / "other.json", make_trace(5, world_size=16))
    with pytest.raises(AmbiguousInputError):
        runs.ingest([job], run)
    assert list(run.glob("data/*/*.parquet"))
    for paths in ([run], [run, job], [job / "rank0.json", run]):
        with pytest.raises(InputError, match="a run that is not finished") as caught:
            tracekit.open(paths)
        assert caught.value.hint
    (job / "other.json").unlink()
    assert len(runs.ingest([job], run).sources) == 2  # it goes on there


@pytest.mark.parametrize("moment", ["the first source is read", "the shard is in place"])
def test_what_a_killed_ingest_leaves_is_no_input(
    moment: str, job: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tracekit.cli import main

    start_python(KILLED, run, job, moment).communicate(timeout=60)
    for command in (
        ["sources", str(run)],
        ["sql", str(run), "SELECT 1"],
        ["query", str(run), "step_time"],
        ["diagnose", str(run)],
    ):
        with pytest.raises(SystemExit) as end:
            main(command)
        assert end.value.code == 2
        said = capsys.readouterr()
        assert "a run that is not finished" in said.err
        assert said.out == ""


def test_runs_below_a_folder_are_passed_over(job: Path, tmp_path: Path) -> None:
    runs.ingest([job], job / "kept")
    (job / "kept" / "tracekit-run.json").unlink()  # one of an earlier version
    (job / "begun" / "data").mkdir(parents=True)
    (job / "begun" / "tracekit-run.json").write_text("{}")
    (job / "begun" / "data" / "rank7.json").write_text("{}")
    manifest = runs.ingest([job], tmp_path / "other")
    assert [Path(s.path).name for s in manifest.sources] == ["rank0.json", "rank1.json"]


def test_nothing_to_read_is_an_error_with_a_hint(run: Path, tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "job.toml").write_text('name = "x"\n')
    with pytest.raises(InputError, match="nothing to read") as caught:
        runs.ingest([tmp_path / "only"], run)
    assert caught.value.hint
    assert not run.exists()


def test_a_folder_that_is_something_else_is_refused_untouched(job: Path, run: Path) -> None:
    run.mkdir()
    (run / "thesis.tex").write_text("mine")
    with pytest.raises(StoreError, match="exists and is not a run"):
        runs.ingest([job], run)
    assert [p.name for p in run.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("place", ["file", "file/run"])
def test_a_run_cannot_be_made_in_place_of_a_file(job: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="file"):
        runs.ingest([job], tmp_path / place)
    assert (tmp_path / "file").read_text() == "mine"


FULL_DISK = """
    import resource, signal, sys
    from pathlib import Path
    from tracekit import runs
    from tracekit.errors import StoreError
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
    try:
        runs.ingest([sys.argv[2]], Path(sys.argv[1]))
    except StoreError as error:
        sys.exit(error.message)
"""


@pytest.mark.parametrize("limit_bytes", soak([100, 1500, 4000], fast=[1500]))
def test_a_full_disk_is_an_error_and_not_a_fault_of_the_sources(
    job: Path, run: Path, limit_bytes: int
) -> None:
    """No file can grow beyond the limit: as on a disk without space."""
    writer = start_python(FULL_DISK, run, job, limit_bytes)
    _, errors = writer.communicate(timeout=60)
    assert writer.returncode == 1
    assert "cannot be written" in errors
    assert "Traceback" not in errors
    assert not store.is_run(run)
    assert len(runs.ingest([job], run).sources) == 2


def test_the_times_of_a_run_are_those_of_its_files(job: Path, run: Path) -> None:
    runs.ingest([job], run)
    with store.open_run(run) as opened:
        assert opened.con.execute("SELECT start_ns FROM run").fetchall() == [(BASE_NS,)]


# ---------------------------------------------------------------- a time budget


@pytest.fixture
def slow_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only reading moves: ten seconds a file. No file counts as small."""
    now = [0.0]
    write = execute.write_shard

    def slowly(task: runs.ShardTask, step: Any = None) -> Any:
        now[0] += 10.0 * len(task.sources)
        return write(task, step)

    monkeypatch.setattr(execute, "write_shard", slowly)
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(build, "time", clock)
    monkeypatch.setattr(plan, "time", clock)
    monkeypatch.setattr(plan, "SMALL_FILE_BYTES", -1)


@pytest.mark.usefixtures("slow_reading")
def test_a_budget_ends_the_reading_and_the_same_call_goes_on(job: Path, run: Path) -> None:
    first = runs.ingest([job], run, workers=1, budget_s=12)
    assert len(first.sources) == 1
    assert [Path(p).name for p in first.unread] == ["rank1.json"]
    second = runs.ingest([job], run, workers=1, budget_s=12)
    assert [s.source_id for s in second.sources] == [0, 1]
    assert second.unread == ()
    assert runs.ingest([job], run, budget_s=12) == second
    assert rows(run) == rows_of_both_at_once(job, run)


@pytest.mark.usefixtures("slow_reading")
def test_without_a_budget_the_rest_is_read(job: Path, run: Path) -> None:
    assert runs.ingest([job], run, workers=1, budget_s=1).unread
    assert not runs.is_up_to_date(run)
    assert len(runs.ingest([job], run).sources) == 2
    assert runs.is_up_to_date(run)


def test_a_budget_that_suffices_reads_everything(job: Path, run: Path) -> None:
    manifest = runs.ingest([job], run, budget_s=3600)
    assert len(manifest.sources) == 2
    assert manifest.unread == ()


@pytest.mark.usefixtures("slow_reading")
def test_what_was_left_stays_named_when_other_files_are_added(
    job: Path, run: Path, tmp_path: Path
) -> None:
    left = runs.ingest([job], run, workers=1, budget_s=1).unread
    other = tmp_path / "other.log"
    other.write_text("hello\n")
    assert runs.ingest([other], run).unread == left


def test_reading_order_is_spread_over_the_job() -> None:
    files: Any = list(range(8))
    spread: Any = runs.spread
    assert spread(files) == [0, 4, 2, 6, 1, 5, 3, 7]
    assert sorted(spread(files[:5])) == files[:5]
    assert runs.spread([]) == []
