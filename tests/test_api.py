"""The Python API, called as from a notebook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tracekit
from tracekit import api, catalog
from tracekit.errors import (
    AmbiguousInputError,
    InputError,
    QueryError,
    StoreError,
    TracekitError,
    UsageError,
)
from tracekit.store import Selection, reader
from traces import make_trace, write_job, write_trace


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def traces_folder(tmp_path: Path) -> Path:
    """Two ranks; rank 1 waits 30 ms for input in each of its six steps."""
    write_job(tmp_path / "traces", stall_ms=30)
    return tmp_path / "traces"


def test_a_notebook_from_files_to_a_diagnosis(traces_folder: Path, tmp_path: Path) -> None:
    run = tracekit.ingest(traces_folder, run=tmp_path / "run")  # type: ignore[operator]
    steps = run.query("step_time")
    assert isinstance(steps, pl.DataFrame)
    assert {"rank", "capture_id", "step", "start_ns", "dur_ns"} <= set(steps.columns)
    assert steps.filter(rank=0)["dur_ns"].max() == 130_000_000
    totals = run.sql("SELECT rank, sum(dur_ns) AS ns FROM gpu_op GROUP BY rank ORDER BY rank")
    assert totals.to_dicts() == [
        {"rank": 0, "ns": 6 * 127_000_000},  # it waits 30 ms in each all-reduce
        {"rank": 1, "ns": 6 * 97_000_000},
    ]
    report = run.diagnose()
    assert report.verdict.kind == "culprit"
    assert report.findings[0].scope.ranks == (1,)
    assert report.findings[0].impact.s_per_step == pytest.approx(0.030, rel=0.01)
    assert report.metrics.overlap is not None
    document = json.loads(report.to_json())
    assert document["verdict"]["finding"] == "dataloader-stall/1"
    assert "Rank 1 waits" in report.to_text()
    run.close()


def test_raw_paths_need_no_run(traces_folder: Path) -> None:
    for paths in (traces_folder, str(traces_folder), sorted(traces_folder.iterdir())):
        with tracekit.open(paths) as run:
            assert run.query("step_time_summary").height == 3  # the job and two ranks


def test_parameters_of_a_query_are_keywords(traces_folder: Path) -> None:
    with tracekit.open(traces_folder) as run:
        plain = run.query("overlap")
        rounded = run.query("overlap", rounding="hta", steps="all_but_last")
    assert plain["compute_ns"].to_list() == [6 * 77_000_000] * 2
    assert rounded["compute_ns"].to_list() == [5 * 77_000_000] * 2


def test_a_selection_is_a_part_of_the_run(traces_folder: Path) -> None:
    with tracekit.open(traces_folder, selection=Selection(ranks=((1, 1),))) as run:
        assert run.query("step_time")["rank"].unique().to_list() == [1]
        assert run.diagnose().document.run.ranks == (1,)


def test_rules_and_thresholds_are_arguments_of_diagnose(traces_folder: Path) -> None:
    with tracekit.open(traces_folder) as run:
        only = run.diagnose(select=["exposed-communication"])
        without = run.diagnose(ignore=["dataloader-stall"])
        strict = run.diagnose(config={"rules": {"dataloader-stall": {"min_impact_ratio": 0.5}}})
        silenced = run.diagnose(
            config={"silence": [{"rule": "dataloader-stall", "reason": "known"}]}
        )
        for report in (only, without, strict, silenced):
            assert "dataloader-stall" not in {f.rule for f in report.findings}
        mistakes: tuple[dict[str, Any], ...] = (
            {"select": ["dataloder-stall"]},
            {"config": {"rulez": {}}},
            {"config": {"rules": {"dataloader-stall": {"no_such": 1}}}},
        )
        for wrong in mistakes:
            with pytest.raises(UsageError):
                run.diagnose(**wrong)


def test_a_job_description_goes_along(traces_folder: Path, tmp_path: Path) -> None:
    description = tmp_path / "job.toml"
    description.write_text('name = "llama"\n')
    with tracekit.open(traces_folder, job=[description]) as run:
        assert run.job is not None
        assert run.job.name == "llama"
        assert json.loads(run.diagnose(select=["gc-pause"]).to_json())["run"]["hosts"] == ["node0"]
    with tracekit.open(traces_folder) as run:
        assert run.job is None


def test_a_closed_run_answers_no_more(traces_folder: Path) -> None:
    with tracekit.open(traces_folder) as run:
        pass
    with pytest.raises(Exception, match=r"(?i)clos"):
        run.sql("SELECT 1")


def test_errors_say_what_was_wrong_and_what_to_try(traces_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        tracekit.open(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no path"):
        tracekit.open([])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no files"):
        tracekit.open(tmp_path / "empty")
    with tracekit.open(traces_folder) as run:
        with pytest.raises(UsageError, match="step_tim") as caught:
            run.query("step_tim")
        assert caught.value.hint and "step_time" in caught.value.hint
        with pytest.raises(UsageError, match="rank"):
            run.query("overlap", rank=3)
        for text in ("SELECT nonsense FROM step", "DROP VIEW step", "SELECT 1; SELECT 2", ""):
            with pytest.raises(QueryError):
                run.sql(text)
    write_trace(traces_folder / "other.json", make_trace(3, world_size=16))
    with pytest.raises(AmbiguousInputError, match="--attempt 1") as ambiguous:
        tracekit.open(traces_folder)
    assert isinstance(ambiguous.value, TracekitError)


def test_each_candidate_can_be_opened(traces_folder: Path) -> None:
    write_trace(traces_folder / "other.json", make_trace(3, world_size=16))
    seen = []
    for attempt in (1, 2):
        with tracekit.open(traces_folder, selection=Selection(attempt=attempt)) as run:
            seen.append(run.diagnose(select=["gc-pause"]).document.run.world_size)
    assert sorted(filter(None, seen)) == [2, 16]


def test_a_run_that_exists_takes_no_second_job_description(
    traces_folder: Path, tmp_path: Path
) -> None:
    api.ingest(traces_folder, run=tmp_path / "run").close()
    with pytest.raises(UsageError, match="keeps the job description"):
        tracekit.open(tmp_path / "run", job=["job.toml"])
    with pytest.raises(StoreError, match="is not a run"):
        api.ingest(traces_folder, run=traces_folder)


def test_importing_tracekit_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = "import sys, tracekit; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"duckdb", "pyarrow", "polars", "numpy", "msgspec", "rich", "matplotlib"}
    assert not heavy & set(done.stdout.split())


def test_derived_tables_are_arrow_tables(traces_folder: Path) -> None:
    with tracekit.open(traces_folder) as run:
        tables = run.derived_tables()
    assert tables["rank"].num_rows == 2
    assert tables["run"].column("world_size").to_pylist() == [2]


def test_ranks_with_gpu_operations_are_not_looked_for_on_their_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where every rank has some, by the manifest or by rows; then the rows are the same."""
    paths = write_job(tmp_path / "traces", world_size=3, steps_count=2)
    # One shard of three sources: that its first and last have GPU operations says the manifest,
    # that rank 1 has some only its rows.
    with tracekit.open(tmp_path / "traces") as run:
        assert not run.run.may_have_hosts
    monkeypatch.setattr(reader, "MAX_ASKED_ROWS", 1)
    with tracekit.open(tmp_path / "traces") as run:
        assert run.run.may_have_hosts
    monkeypatch.undo()
    with tracekit.open(paths[0]) as run:
        assert not run.run.may_have_hosts
        expected = run.table("overlap")
        con = run.con
        empty = con.sql("DESCRIBE FROM host_work('gpu_op', 'host_op')")
        described = empty.fetchall()
        catalog.load_macros(con)
        full = con.sql("DESCRIBE FROM host_work('gpu_op', 'host_op')")
        assert full.fetchall() == described
        assert catalog.run(con, "overlap").equals(expected)
        assert expected.num_rows == 1
    on_host = make_trace(1, steps_count=2)
    on_host["traceEvents"] = [e for e in on_host["traceEvents"] if e["cat"] != "kernel"]
    write_trace(tmp_path / "mixed" / "rank0.json", make_trace(0, steps_count=2))
    write_trace(tmp_path / "mixed" / "rank1.json", on_host)
    with tracekit.open(tmp_path / "mixed") as run:
        assert run.run.may_have_hosts
        assert run.table("overlap")["measured_on"].to_pylist() == ["gpu", "host"]
    write_job(tmp_path / "between", world_size=3, steps_count=2)
    on_host = make_trace(1, world_size=3, steps_count=2)
    on_host["traceEvents"] = [e for e in on_host["traceEvents"] if e["cat"] != "kernel"]
    write_trace(tmp_path / "between" / "rank1.json", on_host)
    with tracekit.open(tmp_path / "between") as run:
        assert run.run.may_have_hosts
        assert run.table("overlap")["measured_on"].to_pylist() == ["gpu", "host", "gpu"]
    with tracekit.open(tmp_path / "mixed", selection=Selection(ranks=((0, 0),))) as run:
        assert not run.run.may_have_hosts
        assert run.table("overlap")["measured_on"].to_pylist() == ["gpu"]
    with tracekit.open(paths[0], selection=Selection(steps=((5, 5),))) as run:
        assert run.run.may_have_hosts  # what is left of a rank may be its host's alone
