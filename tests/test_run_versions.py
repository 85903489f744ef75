"""A run that another tracekit made: what is read or derived again, and what stays."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tracekit
from run_folders import rows, sources
from tracekit import runs, store
from tracekit.errors import StoreError
from tracekit.runs import build
from traces import make_trace, write_job, write_trace


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with the traces of two ranks."""
    write_job(tmp_path / "job", steps_count=2)
    return tmp_path / "job"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


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
