"""Two jobs among the files of one are refused by their heads, before all is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracekit import runs
from tracekit.errors import AmbiguousInputError
from tracekit.runs import build, heads
from traces import make_trace, write_job, write_trace


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The traces of a job of two ranks and of one of three, as if they were large."""
    monkeypatch.setattr(heads, "FROM_BYTES", 0)
    write_job(tmp_path / "in" / "a", steps_count=1)
    write_job(tmp_path / "in" / "b", world_size=3, steps_count=1)
    return tmp_path / "in"


@pytest.fixture
def never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*args: Any) -> list[Any]:
        raise AssertionError("files are read")

    monkeypatch.setattr(build, "run_tasks", read)


@pytest.mark.usefixtures("never_read")
def test_different_world_sizes_are_refused_by_the_heads(both: Path, tmp_path: Path) -> None:
    with pytest.raises(AmbiguousInputError) as error:
        runs.ingest([both], tmp_path / "run")
    assert error.value.message == (
        "these files cannot be one attempt of one job: by their heads they state different world "
        "sizes (2, 3). Candidates:\n"
        f"  world size 2, 2 files: {both}/a/rank0.json, {both}/a/rank1.json\n"
        f"  world size 3, 3 files: {both}/b/rank0.json, {both}/b/rank1.json, {both}/b/rank2.json"
    )
    assert "--attempt" in (error.value.hint or "")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("never_read")
def test_the_one_odd_folder_of_many_is_seen(
    both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "FEW_HEADS", 2)
    write_trace(both / "c" / "rank0.json", make_trace(0, world_size=3, steps_count=1))
    (both / "a" / "rank0.json").unlink()
    with pytest.raises(AmbiguousInputError, match=r"sizes \(2, 3\)"):
        runs.ingest([both], tmp_path / "run")


def test_a_small_input_is_read_and_its_candidates_are_numbered(
    both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "FROM_BYTES", 1 << 20)
    with pytest.raises(AmbiguousInputError, match="--attempt 1: world size 2, ranks 0-1"):
        runs.ingest([both], tmp_path / "run")


def test_an_attempt_is_still_chosen_by_number(both: Path, tmp_path: Path) -> None:
    runs.ingest([both], tmp_path / "run", attempt=2)


def empty(trace: dict[str, Any]) -> None:
    trace["traceEvents"] = []


def without_work(trace: dict[str, Any]) -> None:
    trace["traceEvents"] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {}}]


def believed_by_nobody(trace: dict[str, Any]) -> None:
    trace["distributedInfo"]["world_size"] = 1 << 24


def silent(trace: dict[str, Any]) -> None:
    del trace["distributedInfo"]["world_size"]


@pytest.mark.usefixtures("never_read")
@pytest.mark.parametrize("change", [empty, without_work, believed_by_nobody, silent])
def test_a_head_that_may_not_count_refuses_nothing(
    change: Callable[[dict[str, Any]], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "FROM_BYTES", 0)
    write_job(tmp_path / "in", steps_count=1)
    odd = make_trace(0, world_size=3, steps_count=1)
    change(odd)
    write_trace(tmp_path / "in" / "odd.json", odd)
    with pytest.raises(AssertionError, match="files are read"):
        runs.ingest([tmp_path / "in"], tmp_path / "run")


@pytest.mark.usefixtures("never_read")
def test_a_job_description_that_places_files_is_believed(both: Path, tmp_path: Path) -> None:
    description = both / "job.toml"
    description.write_text('name = "both"\n')
    with pytest.raises(AmbiguousInputError, match="by their heads"):
        runs.ingest([both], tmp_path / "run")
    description.write_text('[[source]]\npath = "b/*"\nattempt = 2\n')
    with pytest.raises(AssertionError, match="files are read"):
        runs.ingest([both], tmp_path / "run")


def test_files_without_a_world_size_are_no_second_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "FROM_BYTES", 0)
    write_job(tmp_path / "in", steps_count=1)
    (tmp_path / "in" / "notes.txt").write_text("nothing\n")
    assert len(runs.ingest([tmp_path / "in"], tmp_path / "run").sources) == 3
