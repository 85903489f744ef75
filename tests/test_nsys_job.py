"""Whole jobs from Nsight Systems exports: the same answers as from profiler traces, NVIDIA's own
figures, and nothing of the environment."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from nsys_exports import Export, export_of, global_id

from soaks import soak
from tracekit import api
from tracekit.cli import main
from tracekit.cli.output import _csv
from tracekit.errors import InputError, UsageError
from tracekit.simulate import Request, write
from tracekit.store.manifest import load
from traces import make_trace, write_job, write_trace

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "nsys"
SECRET = "hunter2-7f3d9c"  # noqa: S105  # a marker, planted to be looked for

needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"{DATA} is absent: real samples are not shipped"
)
EITHER_READER = pytest.mark.parametrize(
    "nsys_reader", soak(["sqlite3", "adbc"], fast=["sqlite3"]), indirect=True
)
"""What both libraries read of every table is asked in test_nsys_readers.py."""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def rows(run: Any, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.table(name).to_pylist()
    return found


@pytest.mark.usefixtures("nsys_reader")
@pytest.mark.parametrize(
    ("nsys_reader", "stall_ms"),
    soak(
        [(reader, stall_ms) for reader in ("sqlite3", "adbc") for stall_ms in (0, 30)],
        fast=[("sqlite3", 30)],
    ),
    indirect=["nsys_reader"],
)
def test_the_same_job_gives_the_same_diagnosis_through_either_door(
    tmp_path: Path, stall_ms: int
) -> None:
    traces = write_job(tmp_path / "traces", world_size=2, stall_ms=stall_ms)
    documents = [make_trace(rank, world_size=2, stall_ms=stall_ms) for rank in range(2)]
    export = export_of(documents, tmp_path / "export" / "job.sqlite")
    reports = []
    for paths in (traces, [export]):
        with api.open(paths) as run:
            reports.append(run.diagnose())
            assert [r["rank"] for r in rows(run, "overlap")] == [0, 1]
    kineto, nsys = (r.document for r in reports)
    # This export is without payloads: what needs sizes says so, and one rule fewer could look.
    ran = [set(r.notes.rules_run) for r in reports]
    assert ran[0] - ran[1] == {"latency-bound-communication"}
    said = [re.sub(r"\d+ of \d+ rules", "", r.document.verdict.sentence) for r in reports]
    assert said[0] == said[1]
    assert (nsys.verdict.kind, nsys.verdict.finding) == (
        kineto.verdict.kind,
        kineto.verdict.finding,
    )
    assert [f.id for f in nsys.findings] == [f.id for f in kineto.findings]
    assert [f.impact for f in nsys.findings] == [f.impact for f in kineto.findings]
    assert nsys.step_budget == kineto.step_budget
    assert replace(nsys.metrics, traffic=()) == replace(kineto.metrics, traffic=())


def test_ranks_of_both_kinds_are_one_job(tmp_path: Path) -> None:
    paths = [write_trace(tmp_path / "rank0.json", make_trace(0, stall_ms=30))]
    document = make_trace(1, stall_ms=30)
    environment = "RANK=1;WORLD_SIZE=2;MASTER_ADDR=x"
    paths.append(export_of([document], tmp_path / "other.sqlite", environment=environment))
    with api.open(paths) as run:
        report = run.diagnose(select=["dataloader-stall"])
        assert report.document.verdict.finding == "dataloader-stall/1"
        assert {r["rank"]: r["rank_source"] for r in rows(run, "job_ranks")} == {
            0: "file",
            1: "file",
        }


@pytest.mark.usefixtures("nsys_reader")
def test_a_broken_export_does_not_disturb_the_others(tmp_path: Path) -> None:
    export_of([make_trace(0)], tmp_path / "job" / "rank0.sqlite")
    (tmp_path / "job" / "rank1.sqlite").write_bytes(bytes(100_000))
    with api.open([tmp_path / "job"]) as run:
        assert {r["status"] for r in rows(run, "job_sources")} == {"ok", "unreadable"}
        assert [r["rank"] for r in rows(run, "overlap")] == [0]


@pytest.mark.usefixtures("nsys_reader")
def test_no_secret_of_an_export_reaches_the_run(tmp_path: Path) -> None:
    environment = (
        f"HF_TOKEN={SECRET};RANK={SECRET};CUDA_VISIBLE_DEVICES={SECRET};{SECRET};LOCAL_RANK=0"
    )
    path = tmp_path / "a.sqlite"
    with Export(path, environment=environment, host=f"host {SECRET}") as export:
        export.gpu(0, 7)
        for name, value in (
            ("PROCESS_0:ENVIRONMENT_VARIABLE", f'WANDB_API_KEY="{SECRET}"'),
            ("PROCESS_0:ENVIRONMENT_VARIABLE", f'LOCAL_RANK="{SECRET}"'),
            ("PROCESS_0:ARGUMENT_1", f"--token={SECRET}"),
            ("PROFILING_SESSION_UUID", SECRET),
            ("CUDA_GRAPH_TRACE_OPTIONS:MODE", SECRET),
        ):
            export.put("META_DATA_CAPTURE", name=name, value=value)
        for name in ("EXPORT_USER", "EXPORT_PRODUCT_VERSION", "EXPORT_CONFIG_TIME_SHIFT"):
            export.meta(name, SECRET)
        for table in ("ProcessStreams", "ANALYSIS_FILE", "DIAGNOSTIC_EVENT"):
            export.con.execute(f"CREATE TABLE {table} (text TEXT)")
            export.put(table, text=SECRET)
        export.con.execute(f'CREATE TABLE "{SECRET}" ("{SECRET}" TEXT)')
        for pid, name in enumerate(
            (f"/opt/bin/python3.11 train.py --token={SECRET} -v", f"run --api-key {SECRET}",
             f"API_KEY={SECRET} python train.py"), 7,
        ):  # fmt: skip
            export.put("PROCESSES", globalPid=global_id(pid), pid=pid, name=name)
        export.launch("gemm", 0, 50, 40)
        export.range(f"login api_key={SECRET}", 0, 10, jsonText=SECRET)
        export.range("step 1", 0, 100, binaryData=SECRET.encode())
    run_folder = tmp_path / "run"
    with api.ingest([path], run=run_folder) as run:
        report = run.diagnose()
        texts = [report.to_json(), report.to_text(everything=True)]
        assert rows(run, "job_ranks")[0]["rank"] == 0
        names = run.sql("SELECT name FROM process WHERE name IS NOT NULL ORDER BY name").rows()
        assert any("python3.11" in name for (name,) in names), names
    with api.open([path]) as run:  # through the cache
        texts.append(run.sql("FROM process").write_json())
    assert not [text for text in texts if SECRET in text]
    files = [p for p in run_folder.rglob("*") if p.is_file()]
    assert files
    with api.open([run_folder]) as run:
        for table in ("source", "process", "device", "annotation", "host_op", "ingest_stat"):
            assert SECRET not in str(run.run.con.execute(f"SELECT * FROM {table}").fetchall())
    assert not [p for p in files if SECRET.encode() in p.read_bytes()]


@needs_data
@pytest.mark.usefixtures("nsys_reader")
def test_the_figures_of_nsys_stats_to_the_printed_digit(tmp_path: Path) -> None:
    with api.open([DATA / "mfu_2gpu_before.sqlite"]) as run:
        for name in (
            "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "nvtx_pushpop_sum", "nvtx_gpu_proj_sum",
        ):  # fmt: skip
            theirs = (DATA / "mfu_2gpu_before-nsys-stats" / f"mfu_before_{name}.csv").read_text()
            ours = _csv(run.table(name))
            assert list(csv.reader(io.StringIO(ours))) == list(csv.reader(io.StringIO(theirs)))


@needs_data
@EITHER_READER
@pytest.mark.usefixtures("nsys_reader")
def test_a_real_export_of_two_ranks(tmp_path: Path) -> None:
    with api.open([DATA / "mfu_2gpu_before.sqlite"]) as run:
        columns = ("span_ns", "compute_ns", "comm_ns", "overlap_ns")
        assert [tuple(r[c] for c in columns) for r in rows(run, "overlap")] == [
            (299848812, 253690832, 17172652, 0),
            (298661551, 256095624, 8229100, 0),
        ]
        found = run.run.con.execute(
            "SELECT count(*), count(DISTINCT (source_id, place)), count(launch_start_ns),"
            " count(*) FILTER (class = 'communication') FROM gpu_op WHERE category = 'kernel'"
        ).fetchone()
        assert found == (4010, 4010, 3986, 66)


@needs_data
@EITHER_READER
@pytest.mark.usefixtures("nsys_reader")
def test_whole_graphs_make_the_report_abstain(tmp_path: Path) -> None:
    with api.open([DATA / "cuda_graph-2025.5.2.sqlite"]) as run:
        document = run.diagnose().document
        (row,) = rows(run, "overlap")
    assert document.verdict.kind == "not_enough_data"
    assert "CUDA graphs" in document.verdict.sentence
    assert document.metrics.overlap is None
    needs = {n.rule: n.capture for n in document.not_checked}
    assert needs["exposed-communication"] == "nsys profile --cuda-graph-trace=node"
    assert row["compute_ns"] is None
    issues = {i.name: i.count for i in document.inputs[0].issues}
    assert issues["kernels_hidden_in_graphs"] == 2


@needs_data
@EITHER_READER
@pytest.mark.usefixtures("nsys_reader")
def test_the_schema_of_2022_is_read(tmp_path: Path) -> None:
    with api.open([DATA / "saxpy-mpi-2022.2.sqlite"]) as run:
        (source,) = run.run.con.execute(
            "SELECT schema_version, status, time_basis, host_name FROM source"
        ).fetchall()
        assert source == ("2.9.1", "ok", "epoch", "nid001608")
        summed = {r["Range"]: r["Instances"] for r in rows(run, "nvtx_pushpop_sum")}
        assert summed["MPI:MPI_Send"] == 10
        (projected,) = rows(run, "nvtx_gpu_proj_sum")
        assert (projected["Range"], projected["Total Proj Time (ns)"]) == ("saxpy", 88573480)
        # Each is recorded twice, the second time with its backtrace.
        calls = {r["Name"]: r["Num Calls"] for r in rows(run, "cuda_api_sum")}
        assert (calls["cudaMalloc"], calls["cudaLaunchKernel"], calls["cudaFree"]) == (15, 5, 3)


def fake_nsys(folder: Path, export: Path, *, knows_blobs: bool = True) -> Path:
    """A program that exports whatever report it is given as this export."""
    program = folder / "nsys"
    refuse = "" if knows_blobs else 'case "$*" in *include-blobs*) exit 1;; esac\n'
    program.write_text(
        "#!/bin/sh\n"
        + refuse
        + 'for a in "$@"; do case "$a" in --output=*) out=${a#--output=};; esac;'
        f' done\n[ "$1" = export ] && cp "{export}" "$out"\n'
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("knows_blobs", [True, False])
def test_a_report_is_exported_by_the_nsys_that_is_named(tmp_path: Path, knows_blobs: bool) -> None:
    export = export_of([make_trace(r) for r in range(2)], tmp_path / "hidden" / "x.sqlite")
    program = fake_nsys(tmp_path, export, knows_blobs=knows_blobs)
    report = tmp_path / "job.nsys-rep"
    report.write_bytes(b"\x10\x20report")
    with api.ingest([report], run=tmp_path / "run", nsys=program) as run:
        paths = [r["path"] for r in rows(run, "job_sources")]
        assert paths == [f"{report}!device=0,pid=1000", f"{report}!device=1,pid=1001"]
        assert [r["rank"] for r in rows(run, "overlap")] == [0, 1]
    assert not list((tmp_path / "run").rglob("*.sqlite"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hidden", "job.nsys-rep", "nsys", "run"]


@pytest.mark.slow  # whole commands, of which others take the same way
def test_an_export_of_a_report_stays_in_the_run(tmp_path: Path) -> None:
    """Unreadable at first, exported later, and given again without nsys: one process, two."""
    for count in (1, 2):
        folder = tmp_path / str(count)
        (folder / "hidden").mkdir(parents=True)
        export = export_of([make_trace(r) for r in range(count)], folder / "hidden" / "x.sqlite")
        report = folder / "job.nsys-rep"
        report.write_bytes(b"\x10\x20report")
        run_folder = folder / "run"

        def statuses(nsys: Path | None) -> list[str]:
            with api.ingest([report], run=run_folder, nsys=nsys) as run:  # noqa: B023
                return [r["status"] for r in rows(run, "job_sources")]

        assert statuses(None) == ["unreadable"]
        assert statuses(fake_nsys(folder, export)) == ["ok"] * count
        generation = load(run_folder)
        assert statuses(None) == ["ok"] * count
        assert load(run_folder) == generation
        report.write_bytes(b"\x10\x20another")
        assert "unreadable" in statuses(None)


def test_a_report_opened_with_nsys_once_serves_later_commands(tmp_path: Path) -> None:
    export = export_of([make_trace(0)], tmp_path / "hidden" / "x.sqlite")
    report = tmp_path / "job.nsys-rep"
    report.write_bytes(b"\x10\x20report")
    with api.open([report]) as run:
        assert rows(run, "overlap") == []
    with api.open([report], nsys=fake_nsys(tmp_path, export)) as run:
        assert len(rows(run, "overlap")) == 1
    with api.open([report]) as run:
        assert len(rows(run, "overlap")) == 1


def test_diagnose_exports_with_the_nsys_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = export_of([make_trace(0)], tmp_path / "hidden" / "x.sqlite")
    report = tmp_path / "job.nsys-rep"
    report.write_bytes(b"\x10\x20report")
    asked = ("diagnose", str(report), "--select", "gc-pause")
    assert command(*asked) == 2
    shown = capsys.readouterr()
    assert f"nsys export --type=sqlite --include-blobs=true --output={report.stem}" in " ".join(
        shown.out.split()
    )
    assert "error: nothing usable" in shown.err
    assert command(*asked, "--nsys", str(fake_nsys(tmp_path, export))) == 0
    assert "1 rank" in capsys.readouterr().out
    assert command("ingest", str(report), "--run", str(tmp_path / "run")) == 2


def test_one_usable_file_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export_of([make_trace(0)], tmp_path / "job" / "rank0.sqlite")
    (tmp_path / "job" / "rank1.sqlite").write_bytes(bytes(100_000))
    asked = ("diagnose", str(tmp_path / "job"), "--select", "gc-pause")
    assert command(*asked) == 0
    assert "rank1.sqlite (its header is zeroed" in " ".join(capsys.readouterr().out.split())
    assert command(*asked, "--strict") == 2


@pytest.mark.parametrize(("damage", "advice"), [
    (None, "record the devices too: nsys profile --trace=cuda,nvtx"),
    (100, "again with nsys 2023 or later: nsys export --type=sqlite --include-blobs=true"),
])  # fmt: skip
def test_what_to_do_with_an_export_that_does_not_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: int | None, advice: str
) -> None:
    path = tmp_path / "a.sqlite"
    with Export(path) as export:
        export.range("forward", 100, 200)
    if damage:
        path.write_bytes(bytes(damage) + path.read_bytes()[damage:])
    assert command("diagnose", str(path)) == (2 if damage else 0)
    shown = " ".join(capsys.readouterr().out.split())
    assert advice in shown
    assert ("no file holds a usable trace" in shown) == bool(damage)


@pytest.mark.parametrize(
    ("age_s", "head", "is_read"),
    soak([(10, b"", True), (-10, b"", False), (10, bytes(100), False)], fast=2),
)
def test_a_report_beside_its_export_needs_no_nsys(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    age_s: int,
    head: bytes,
    is_read: bool,
) -> None:
    """But for an export that is older than the report, or was interrupted."""
    report, export = tmp_path / "job.nsys-rep", tmp_path / "job.sqlite"
    report.write_bytes(b"\x10\x20report")
    export_of([make_trace(0)], export)
    export.write_bytes(head + export.read_bytes()[len(head) :])
    at = report.stat().st_mtime
    os.utime(export, (at + age_s, at + age_s))
    code = command("diagnose", str(tmp_path), "--strict", "--select", "gc-pause")
    shown = " ".join(capsys.readouterr().out.split())
    assert (code == 0) == is_read
    assert ("only nsys itself can read its reports" in shown) != is_read
    assert command("sources", str(tmp_path)) == 0
    assert ("its export job.sqlite is read" in capsys.readouterr().out) == is_read


@pytest.mark.parametrize(
    "wanted",
    soak(
        [
            (("query", "cuda_gpu_kern_sum"),),
            (("sql", "SELECT count(*) FROM gpu_op"),),
            (("timeline", "-o"),),
        ],
        fast=1,
    ),
)
def test_rows_of_a_broken_export_come_with_a_word_of_what_they_lack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wanted: tuple[str, str]
) -> None:
    name, argument = wanted
    given = [argument, str(tmp_path / "t.json")] if name == "timeline" else [argument]
    export_of([make_trace(0)], tmp_path / "job" / "rank0.sqlite")
    assert command(name, str(tmp_path / "job"), *given) == 0
    assert "note:" not in capsys.readouterr().err
    (tmp_path / "job" / "rank1.sqlite").write_bytes(bytes(100_000))
    more = ["--force"] if name == "timeline" else []
    assert command(name, str(tmp_path / "job"), *given, *more) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "note: unreadable:" in shown
    assert "rank1.sqlite (its header is zeroed: the export was interrupted)" in shown


@pytest.mark.slow  # whole commands, of which others take the same way
def test_two_exports_of_one_capture_are_one(tmp_path: Path) -> None:
    """Exported again with payloads, as the report asks: the better export counts."""
    asked = ("late-rank", "slow-gpu")
    write(
        Request("slow-gpu:1.7", 2, 5, "ddp", 4, "nsys", nccl="none", decoys=(), counters="none"),
        tmp_path / "job",
    )
    with api.open([tmp_path / "job"]) as run:
        alone = run.diagnose(select=asked).document
    for rank in range(2):
        old = tmp_path / "job" / f"a-first-export-of-rank{rank}.sqlite"
        shutil.copyfile(tmp_path / "job" / f"rank{rank}.sqlite", old)
        with contextlib.closing(sqlite3.connect(old)) as con:
            con.execute("UPDATE NVTX_EVENTS SET binaryData = NULL")
            con.commit()
    with api.open([tmp_path / "job"]) as run:
        report = run.diagnose(select=asked)
        used = {r["path"].rsplit("/", 1)[-1] for r in rows(run, "job_ranks")}
    assert used == {"rank0.sqlite", "rank1.sqlite"}
    assert report.document.verdict == alone.verdict
    assert report.document.findings == alone.findings != ()
    text = " ".join(report.to_text().split())
    assert "rank0.sqlite: counted once" in text
    assert "without communicator and size" not in text


def test_equal_pids_of_two_containers_are_two_ranks(tmp_path: Path) -> None:
    for index in range(2):
        with Export(tmp_path / f"{index}.sqlite") as export:
            export.launch("gemm", 100 + index, 500, 50)
    with api.open([tmp_path]) as run:
        assert len(rows(run, "job_ranks")) == 2


def test_sizes_that_nsys_left_out_are_said_with_the_command(tmp_path: Path) -> None:
    with Export(tmp_path / "a.sqlite") as export:
        export.range("ncclAllReduce", 100, 200, domain=1)
        export.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 110, 500, 50)
    with api.open([tmp_path / "a.sqlite"]) as run:
        text = " ".join(run.diagnose().to_text().split())
    assert "1 collective without communicator and size" in text
    assert "nsys export --type=sqlite --include-blobs=true" in text
    assert "mark each step with an NVTX range" in text


def test_a_report_that_nsys_refuses_is_an_error_with_the_command(tmp_path: Path) -> None:
    report = tmp_path / "job.nsys-rep"
    report.write_bytes(b"\x10\x20report")
    with pytest.raises(UsageError, match="cannot be run"):
        api.ingest([report], run=tmp_path / "run", nsys=tmp_path / "absent")
    with pytest.raises(InputError, match="exit code 1") as refused:
        api.ingest([report], run=tmp_path / "run", nsys="/bin/false")
    assert "nsys export --type=sqlite" in (refused.value.hint or "")


@pytest.mark.slow
def test_a_guess_does_not_contradict_the_job_description(tmp_path: Path) -> None:
    """An export names no groups: two stages' embeddings look like data parallelism, which is 1."""
    layout = "pp4-m8-1f1b-titan"
    request = Request("stage-imbalance", 4, 11, layout, 3, "nsys", nccl="none", counters="none")
    write(request, tmp_path / "job")
    with api.open([tmp_path / "job"]) as run:
        assert not run.diagnose(select=["traffic-mismatch"]).findings
        assert {r["group_kind"] for r in rows(run, "traffic")} == {None, "pp"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_an_export_does_not_outlive_a_killed_ingest(tmp_path: Path) -> None:
    nsys = tmp_path / "nsys"
    nsys.write_text(f"#!/bin/sh\necho $$ > '{tmp_path}/pid'\nexec sleep 60\n")
    nsys.chmod(0o755)
    code = (
        "import sys; from pathlib import Path; from tracekit.ingest.nsys import report\n"
        "report._export(sys.argv[1], 'a.nsys-rep', Path('a.sqlite'))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(nsys)], cwd=tmp_path)
    until = time.monotonic() + 60
    while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text().strip():
        assert time.monotonic() < until
        time.sleep(0.02)
    child = Path("/proc", (tmp_path / "pid").read_text().strip(), "status")
    assert child.is_file()
    parent.kill()
    parent.wait()
    while child.is_file() and "State:\tZ" not in child.read_text():
        assert time.monotonic() < until, "it lives on"
        time.sleep(0.02)
