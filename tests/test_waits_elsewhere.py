"""Who was late, worked out by ranks and communicators: the same rows as by one process."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tracekit import api, catalog, waits_elsewhere
from tracekit.cli.app import main
from tracekit.cluster import FailedTaskError
from tracekit.errors import StoreError
from tracekit.runs.drop import Drop
from tracekit.waits_elsewhere import LEAST_COMMUNICATORS, QUERIES, keep_waits

LAB = Path(__file__).parents[2] / "shared/data/lab"


class Here:
    """In place of a cluster: each task in turn, in this process, the last first."""

    worker_memory_bytes = None

    def __init__(self, width: int = 3, fail: int = -1) -> None:
        self.width = width
        self.asked: list[Any] = []
        self.fail = fail

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        for item in reversed(items):
            self.asked.append(item)
            is_failed = len(self.asked) - 1 == self.fail
            yield item, FailedTaskError("KeyError at x") if is_failed else function(item)


@pytest.fixture(autouse=True)
def _no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits_elsewhere, "memory_of_this_worker", lambda given_bytes: given_bytes)


def simulated(folder: Path, fault: str, ranks: int, layout: str) -> Path:
    words = ("simulate", fault, "--ranks", str(ranks), "--steps", "2", "--layout", layout)
    with pytest.raises(SystemExit) as ended:
        main([*words, "-o", str(folder / "traces")])
    assert not ended.value.code
    api.ingest(folder / "traces", run=folder / "run", workers=1).close()
    return folder / "run"


def kept_by(cluster: Here, run: Path) -> bool:
    drop = run.parent / "drop"
    shutil.rmtree(drop, ignore_errors=True)
    drop.mkdir()
    with api.open(run) as opened:
        return keep_waits(cluster, opened.run, run.absolute(), str(drop.absolute()))  # type: ignore[arg-type]


def answered(run: Path) -> dict[str, Any]:
    """By one process, kept nowhere."""
    with api.open(run) as opened:
        return {name: catalog.run(opened.con, name).to_pylist() for name in QUERIES}


def kept(run: Path) -> dict[str, Any]:
    with api.open(run) as opened:
        return {name: opened.answers.kept_rows(name) for name in QUERIES}


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 8 ranks and communicators of several kinds, which has no answers."""
    return simulated(tmp_path_factory.mktemp("late"), "slow-gpu", 8, "tp2")


@pytest.fixture
def run(late: Path, tmp_path: Path) -> Path:
    shutil.copytree(late, tmp_path / "run")
    return tmp_path / "run"


def test_rows_are_those_of_one_process(run: Path) -> None:
    want = answered(run)
    three = Here()
    assert kept_by(three, run)
    assert kept(run) == want
    assert len(want["straggler"]) == 8
    assert sum(row["own_gap_ns"] for row in want["straggler"]) > 0
    ranks = [rank for asked in three.asked for rank in asked.ranks]
    assert sorted(ranks) == [*range(8)]  # each once
    groups = [group for asked in three.asked for group in asked.groups]
    assert len(groups) == len({*groups}) >= LEAST_COMMUNICATORS
    assert len([asked for asked in three.asked if asked.groups]) > 1


@pytest.mark.slow
def test_what_is_kept_is_what_query_and_diagnose_tell(run: Path) -> None:
    with api.open(run) as opened:
        want = opened.table("straggler")
        said = opened.diagnose().to_json()
    shutil.rmtree(run / "answers")
    assert kept_by(Here(), run)
    with api.open(run) as opened:
        found = opened.table("straggler")
        assert found.schema == want.schema
        assert found.to_pylist() == want.to_pylist()
        assert [row["slowdown_ratio"] for row in found.to_pylist()].count(None) == 0
        assert opened.diagnose().to_json() == said


@pytest.mark.slow  # several processes; one of each kind stays
def test_what_is_known_is_not_worked_out_again(run: Path) -> None:
    assert kept_by(Here(), run)
    again = Here()
    assert not kept_by(again, run)
    assert not again.asked


@pytest.mark.parametrize("width", [1, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.slow  # several processes; one of each kind stays
def test_however_many_workers_there_are(run: Path, width: int) -> None:
    want = answered(run)
    assert kept_by(Here(width), run)
    assert kept(run) == want


@pytest.mark.parametrize(
    ("fault", "ranks", "layout"),
    [
        ("stage-imbalance", 8, "pp4"),
        pytest.param("slow-host", 16, "tp4", marks=pytest.mark.slow),
        pytest.param("hot-expert", 16, "ep4", marks=pytest.mark.slow),
        pytest.param("link-degraded", 16, "fsdp", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow  # another job through the same lines
def test_rows_of_other_layouts(tmp_path: Path, fault: str, ranks: int, layout: str) -> None:
    run = simulated(tmp_path, fault, ranks, layout)
    want = answered(run)
    if kept_by(Here(), run):
        assert kept(run) == want
    else:
        assert layout == "fsdp"  # one communicator


@pytest.mark.slow
def test_a_recorded_job_whose_hosts_send(tmp_path: Path) -> None:
    """Whether a send held somebody up depends on its receiver, a rank of another part."""
    traces = LAB / "pp2dp2tp2-healthy"
    if not traces.is_dir():
        pytest.skip(f"{traces}: recordings are not here")
    api.ingest(traces, run=tmp_path / "run", workers=1).close()
    want = answered(tmp_path / "run")
    eight = Here(8)
    assert kept_by(eight, tmp_path / "run")
    assert kept(tmp_path / "run") == want
    assert any(asked.receivers for asked in eight.asked)


def test_one_communicator_leaves_nothing_to_divide(tmp_path: Path) -> None:
    run = simulated(tmp_path, "none", 4, "ddp")
    alone = Here()
    assert not kept_by(alone, run)
    assert not alone.asked


@pytest.mark.parametrize("fail", [0, 7], ids=["ranks", "communicators"])
@pytest.mark.slow  # several processes; one of each kind stays
def test_where_a_worker_fails_whoever_asks_works_it_out(
    run: Path, fail: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tracekit"):
        assert not kept_by(Here(fail=fail), run)
    assert "not worked out by the cluster, but when asked for: KeyError at x" in caplog.text
    assert kept(run) == dict.fromkeys(QUERIES)


def test_rows_of_two_generations_are_never_mixed(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Changed(Here):
        def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
            for item in items:
                try:
                    yield item, function(replace(item, key="of the generation before"))
                except StoreError as error:
                    yield item, error

    assert not kept_by(Changed(), run)
    assert "another writer has changed it" in caplog.text


def test_what_was_handed_over_is_read_as_it_was(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    drop = Drop(str(tmp_path))
    size_bytes = drop.write("1.a", pa.table({"x": [1, None]}))
    assert size_bytes == (tmp_path / "1.a").stat().st_size
    drop.write("2.a", pa.table({"x": [3, 4]}))
    assert drop.read_all([("1.a", size_bytes), ("2.a", (tmp_path / "2.a").stat().st_size)])[
        "x"
    ].to_pylist() == [1, None, 3, 4]
