"""The cache of runs made from raw paths: used, told apart, trimmed, and never in the way."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

import tracekit
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
    count, size = cache.clear(older_than_s=5 * 86400)
    assert (count, size > 0, old.exists(), new.exists()) == (1, True, False, True)
    (new / "manifests" / "000001.json").write_text("damaged")
    assert cache.clear()[0] == 1
    assert list(cache.cached_runs()) == []
    assert list((folder / "runs").iterdir()) == []


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
