"""The cache of runs made from raw paths: used, told apart, trimmed, and never in the way."""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path

import pytest

import tracekit
from soaks import soak
from tracekit import api, cache, runs
from tracekit.errors import StoreError, UsageError
from tracekit.runs import build
from tracekit.store import Selection
from tracekit.store.manifest import load
from traces import make_trace, write_job, write_trace


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    write_job(tmp_path / "job", steps_count=2)
    return tmp_path / "job"


@pytest.fixture
def ingests(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The runs that were made."""
    made: list[Path] = []
    ingest = runs.ingest

    def counted(paths: list[Path], run: Path, **options: object) -> object:
        made.append(run)
        return ingest(paths, run, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(runs, "ingest", counted)
    return made


def read(*paths: Path, **options: object) -> Path:
    with tracekit.open([*paths], **options) as run:  # type: ignore[arg-type]
        return run.path


def test_the_second_time_nothing_is_read(job: Path, ingests: list[Path], folder: Path) -> None:
    first = read(job)
    assert read(job) == first
    assert len(ingests) == 1
    assert folder in first.parents


def test_the_same_files_by_another_way_are_the_same(job: Path, ingests: list[Path]) -> None:
    linked = job.parent / "link"
    linked.symlink_to(job)
    paths = {
        read(job),
        read(linked),
        read(job / "rank1.json", job / "rank0.json"),
        read(job / "*.json"),
    }
    assert len(paths) == len(ingests) == 1


def test_what_may_change_the_answer_is_another_run(
    job: Path, ingests: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [read(job), read(job, selection=Selection(attempt=1)), read(job / "rank0.json")]
    description = job.parent / "job.toml"
    description.write_text('name = "a"\n')
    paths.append(read(job, job=[description]))
    description.write_text('name = "b"\n')
    paths.append(read(job, job=[description]))
    write_trace(job / "rank1.json", make_trace(1, steps_count=3))
    paths.append(read(job))
    moved = job.parent / "moved"
    moved.mkdir()
    same = description.rename(moved / "job.toml")
    same.write_text('[[source]]\npath = "rank0.json"\nhost = "gpu-7"\n')
    paths.append(read(job, job=[same]))
    beside = same.rename(job / "description.toml")
    paths.append(read(job / "*.json", job=[beside]))
    assert len(set(paths)) == len(ingests) == len(paths)


def test_other_versions_bring_the_cached_run_up_to_date(
    job: Path, ingests: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder stays: what the other version would make in the same way is not made again."""
    from tracekit.ingest import INGESTORS

    run = read(job)
    before = load(run)
    monkeypatch.setattr(build, "derive_version", lambda: "another")
    assert read(job) == run
    derived = load(run)
    assert before is not None
    assert derived is not None
    assert derived.sources == before.sources
    monkeypatch.setattr(type(INGESTORS[0]), "version", INGESTORS[0].version + 1)
    assert read(job) == run == read(job)
    again = load(run)
    assert again is not None
    assert {s.source_id for s in again.sources}.isdisjoint(s.source_id for s in before.sources)
    assert len(ingests) == 3


def test_selections_share_one_cached_run(job: Path, ingests: list[Path]) -> None:
    read(job)
    read(job, selection=Selection(ranks=((0, 0),)))
    read(job, selection=Selection(steps=((5, 5),), window=0))
    assert len(ingests) == 1


def test_a_damaged_cached_run_is_read_again(job: Path, ingests: list[Path]) -> None:
    run = read(job)
    next(run.glob("data/*/gpu_op*")).unlink()
    assert read(job) == run
    (run / "manifests" / "000001.json").write_text("{")
    assert read(job) == run
    assert len(ingests) == 3


def test_an_ingest_that_died_in_the_cache_is_taken_up(
    job: Path, ingests: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(build, "_derive", die)
        with pytest.raises(KeyboardInterrupt):
            read(job)
    read(job)
    assert len(ingests) == 2


def test_clearing_removes_what_was_not_used_for_that_long(job: Path, folder: Path) -> None:
    old, new = read(job), read(job / "rank0.json")
    long_ago = time.time() - 10 * 86400
    os.utime(old / ".used", (long_ago, long_ago))
    assert [c.path for c in cache.cached_runs()] == [new, old]
    (gone,) = cache.clear(older_than_s=5 * 86400)
    assert (gone.path, gone.size_bytes > 0, gone.left_count) == (old, True, 0)
    assert (old.exists(), new.exists()) == (False, True)
    (new / "manifests" / "000001.json").write_text("damaged")
    assert [r.path for r in cache.clear()] == [new]
    assert list(cache.cached_runs()) == []
    assert list(cache.runs_folder().iterdir()) == []
    assert cache.runs_folder().parent == folder


def everything_below(folder: Path) -> dict[str, str | bytes]:
    """Every path, and what it holds or leads to."""
    return {
        str(p): str(p.readlink()) if p.is_symlink() else p.read_bytes() if p.is_file() else ""
        for p in sorted(folder.rglob("*"))
    }


def test_nothing_of_the_user_s_is_deleted(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A cache in the home folder, with folders, links and copies that only look like its own."""
    home = tmp_path / "home"
    mine = tmp_path / "elsewhere"
    for path in (home / "runs" / ("a" * 24) / "model.pt", mine / "model.pt"):
        path.parent.mkdir(parents=True)
        path.write_text("a week of work")
    (home / "notes.txt").write_text("mine")
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(home))
    with monkeypatch.context() as patch:
        run = read(job)
        inside = run.parent
        with api.ingest(job, run=inside / "kept"):
            pass
        shutil.copytree(run, inside / ("b" * 24), symlinks=True)
        shutil.copytree(run, home / "runs" / "copy", symlinks=True)
        (inside / ("c" * 24)).symlink_to(mine, target_is_directory=True)
        (inside / "thesis").mkdir()
        (inside / "thesis" / "chapter.tex").write_text("mine")
        (inside / ("d" * 24)).mkdir()
        (inside / ("d" * 24) / cache.CACHED_MARK).symlink_to(run / cache.CACHED_MARK)
        (inside / ("d" * 24) / "model.pt").write_text("mine")
        before = everything_below(home) | everything_below(mine)
        patch.setenv("TRACEKIT_CACHE_BYTES", "1")
        other = read(job / "rank0.json")
        assert not run.exists()
        assert "removed what was used longest ago, 1 of its runs" in caplog.text
        assert [r.path for r in cache.clear()] == [other]
    after = everything_below(home) | everything_below(mine)
    assert after == {name: what for name, what in before.items() if not name.startswith(str(run))}


def test_files_that_were_put_into_a_cached_run_stay(
    job: Path, tmp_path: Path, ingests: list[Path]
) -> None:
    run = read(job)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "model.pt").write_text("mine")
    shard = next((run / "data").iterdir())
    mine = {
        run / "notes.txt": "mine",
        shard / "weights.parquet": "mine",
        run / "derived" / "figure.svg": "mine",
        run / "manifests" / "README": "mine",
    }
    for path, text in mine.items():
        path.write_text(text)
    (shard / "link-000.parquet").symlink_to(tmp_path / "outside" / "model.pt")
    (run / "data" / ("e" * 24)).symlink_to(tmp_path / "outside", target_is_directory=True)
    removed = cache.drop(run)
    assert (removed.left_count, removed.size_bytes > 0) == (6, True)
    assert {p: p.read_text() for p in mine} == mine
    assert (tmp_path / "outside" / "model.pt").read_text() == "mine"
    assert not list(run.glob("*/*/*-000.parquet")) or (shard / "link-000.parquet").is_symlink()
    assert not list((run / "manifests").glob("*.json"))
    assert read(job) == run  # the cache goes on beside them
    assert {p: p.read_text() for p in mine} == mine
    assert len(ingests) == 2


@pytest.mark.parametrize("mode", soak([0o770, 0o707, 0o777], fast=1))
def test_what_others_may_write_is_neither_read_nor_written(
    job: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    run = read(job)
    before = everything_below(run)
    for folder in (run, run.parent):
        folder.chmod(mode)
        assert read(job) != run
        assert f"may be written by others (mode {mode:o})" in caplog.text
        assert list(cache.cached_runs()) == []
        assert cache.clear() == []
        folder.chmod(0o700)
    assert everything_below(run) == before
    assert read(job) == run


def test_a_cache_of_another_user_is_neither_read_nor_written(
    job: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = read(job)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "runs_folder", lambda: run.parent)
        patch.setattr(os, "getuid", lambda: run.stat().st_uid + 1)
        assert read(job) != run
        assert "belongs to another user" in caplog.text
        assert cache.clear() == []
    assert run.stat().st_mode & 0o777 == 0o700
    assert run.parent.stat().st_mode & 0o777 == 0o700


def test_a_cache_behind_a_link_is_not_used(
    job: Path, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "theirs").mkdir()
    folder.mkdir()
    cache.runs_folder().symlink_to(tmp_path / "theirs", target_is_directory=True)
    assert folder not in read(job).parents
    assert "is a link" in caplog.text
    assert list((tmp_path / "theirs").iterdir()) == []


def test_trimming_drops_what_was_used_longest_ago_and_keeps_the_newest(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_BYTES", "1")
    first = read(job)
    assert first.exists()
    os.utime(first / ".used", (1, 1))
    second = read(job / "rank0.json")
    assert second.exists() or not first.exists()
    assert len(list(cache.cached_runs())) == 1


@pytest.mark.parametrize("text", ["much", "-1", "1e9"])
def test_a_bound_that_is_no_number_is_named(
    job: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_BYTES", text)
    with pytest.raises(UsageError, match="TRACEKIT_CACHE_BYTES"):
        read(job)


def test_a_cache_that_cannot_be_written_is_done_without(
    job: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "tracekit"), tracekit.open(job) as run:
        assert run.sql("SELECT count(*) AS n FROM step").item() == 4
        assert tmp_path not in run.path.parents or "file" not in run.path.parts
    assert "cannot be used" in caplog.text
    assert "TRACEKIT_CACHE_DIR" in caplog.text


def test_without_a_home_there_is_still_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TRACEKIT_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert cache.cache_folder().is_absolute()
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.cache_folder() == Path("/somewhere/tracekit")


def test_a_run_is_not_mixed_with_other_paths(job: Path) -> None:
    run = read(job)
    with pytest.raises(UsageError, match="cannot be mixed"):
        read(run, job)


def test_a_damaged_run_that_was_named_is_not_thrown_away(job: Path, tmp_path: Path) -> None:
    with api.ingest(job, run=tmp_path / "run"):
        pass
    next((tmp_path / "run").glob("data/*/gpu_op*")).unlink()
    with pytest.raises(StoreError, match="the manifest says"):
        read(tmp_path / "run")
    assert (tmp_path / "run" / "manifests").exists()
