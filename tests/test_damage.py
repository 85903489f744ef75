"""Runs whose files are no longer what was written: named, no bug of ours, healed in the cache."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tracekit
from soaks import soak
from tracekit import api, cache, runs, store
from tracekit.cli import main
from tracekit.errors import DamagedRunError, StoreError, TracekitError
from tracekit.store import damage
from traces import write_job

TABLES = ("gpu_op", "host_op", "step", "source_context", "rank", "source", "run")

Harm = Callable[[bytes, random.Random], bytes]


def zeroed(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    return data[:start] + bytes(min(64, len(data) - start)) + data[start + 64 :]


def flipped(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]


HARMS: dict[str, Harm] = {
    "zeroed": zeroed,
    "all zeroed": lambda data, _: bytes(len(data)),
    "flipped": flipped,
    "cut": lambda data, chance: data[: chance.randrange(len(data))],
    "emptied": lambda *_: b"",
    "grown": lambda data, _: data + b"\0",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage")
    write_job(folder / "job", steps_count=2)
    with api.ingest(folder / "job", run=folder / "run"):
        return folder / "run"


def read_all(run: Path) -> list[list[str]]:
    """Every row of some tables, as any command would get them."""
    with tracekit.open(run) as opened:
        return [sorted(map(repr, opened.run.con.table(name).fetchall())) for name in TABLES]


def damaged_copies(whole: Path, tmp_path: Path, harm: str, seed: int) -> list[tuple[Path, Path]]:
    """For every file of the run, a copy in which it is damaged."""
    chance = random.Random(f"{harm} {seed}")  # noqa: S311 - the same damage every time
    copies = []
    for number, file in enumerate(sorted(p for p in whole.rglob("*") if p.is_file())):
        data = file.read_bytes()
        harmed = HARMS[harm](data, chance)
        if harmed == data:
            continue
        copy = tmp_path / f"{number}"
        shutil.copytree(whole, copy)
        (copy / file.relative_to(whole)).write_bytes(harmed)
        copies.append((copy, copy / file.relative_to(whole)))
    return copies


@pytest.mark.parametrize("harm", soak(HARMS, fast=2))
def test_every_file_that_is_damaged_is_named(whole: Path, tmp_path: Path, harm: str) -> None:
    right = read_all(whole)
    named = 0
    for run, file in damaged_copies(whole, tmp_path, harm, 1):
        if file.name in ("shard.json", "tracekit-run.json"):
            assert read_all(run) == right, file  # an ingest's own; no answer needs them
            continue
        with pytest.raises(StoreError) as caught:
            read_all(run)
        assert str(file) in caught.value.message
        assert caught.value.hint
        named += 1
    assert named > 5


@pytest.mark.parametrize("harm", soak(["zeroed", "flipped", "cut"], fast=["zeroed"]))
def test_a_large_run_is_looked_through_where_something_fails(
    whole: Path, tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not read through at first: what is damaged is found, or never read."""
    monkeypatch.setattr(damage, "VERIFY_BYTES", 0)
    named = 0
    for run, _ in damaged_copies(whole, tmp_path, harm, 2):
        try:
            read_all(run)
        except TracekitError as error:
            named += 1
            assert error.hint
    assert named > 1  # a flipped bit is often another number, and no error


def test_an_error_that_is_not_damage_stays_a_bug_of_ours(whole: Path) -> None:
    with pytest.raises(ZeroDivisionError), tracekit.open(whole):
        raise ZeroDivisionError


def test_a_new_ingest_into_a_damaged_run_says_so(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    write_job(tmp_path / "more", steps_count=3)
    file = next(run.glob("data/*/gpu_op-*"))
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(DamagedRunError, match=r"gpu_op-000\.parquet"):
        runs.ingest([tmp_path / "more" / "rank0.json"], run)


@pytest.mark.parametrize("limit", soak([damage.VERIFY_BYTES, 0], fast=1))
def test_the_cache_heals_itself(
    tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(damage, "VERIFY_BYTES", limit)
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))
    write_job(tmp_path / "job", steps_count=2)
    command = ["sql", str(tmp_path / "job"), "SELECT count(*), sum(dur_ns) FROM gpu_op"]

    def answer() -> tuple[object, str]:
        with pytest.raises(SystemExit) as end:
            main(command)
        return end.value.code, capsys.readouterr().out

    right = answer()
    assert right[0] == 0
    (run,) = (c.path for c in cache.cached_runs())
    for pattern in ("data/*/gpu_op-*", "derived/*/source_context*", "manifests/*.json"):
        file = next(run.glob(pattern))
        file.write_bytes(bytes(file.stat().st_size))
        first = answer()
        assert first[0] in (0, 2), pattern
        assert (first if first[0] == 0 else answer()) == right, pattern
    assert store.is_run(run)


def test_a_finished_shard_that_is_damaged_is_not_taken_up(whole: Path, tmp_path: Path) -> None:
    """Of an ingest that a lost machine killed: a name may be on the disk before its bytes are."""
    run = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(run / "manifests")
    (shard,) = (run / "data").iterdir()
    (shard / "shard.json").write_bytes(b"")
    job = whole.parent / "job"
    runs.ingest([job], run)
    assert read_all(run) == read_all(whole)
    shutil.rmtree(run / "manifests")
    file = next(shard.glob("gpu_op*"))
    file.write_bytes(bytes(file.stat().st_size))
    runs.ingest([job], run)
    assert read_all(run) == read_all(whole)
