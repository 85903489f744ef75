"""Making runs: idempotent, atomic, never mixed; what cannot be used, and a budget of time."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tracekit
from run_folders import KILLED, rows, rows_of_both_at_once, sources, start_python
from soaks import soak
from tracekit import runs, store
from tracekit.errors import AmbiguousInputError, InputError, StoreError
from tracekit.runs import build, execute, plan
from tracekit.runs.keys import digests_of
from tracekit.runs.sources import gather
from tracekit.store.manifest import load
from traces import BASE_NS, make_trace, write_job, write_trace


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


# ---------------------------------------------------------------- the same again


def test_files_hashed_side_by_side_have_the_same_hashes(job: Path, tmp_path: Path) -> None:
    shutil.make_archive(str(tmp_path / "more"), "zip", job)
    files, _ = gather([job, tmp_path / "more.zip"], [])
    (one, *others) = (digests_of(files, None, threads_count) for threads_count in (1, 2, 8))
    assert others == [one, one]
    assert len(one) == len(set(one.values())) == 4
    rank0 = hashlib.sha256((job / "rank0.json").read_bytes()).hexdigest()
    assert one[str(job / "rank0.json")] == rank0


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


# ---------------------------------------------------------------- a time budget


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
