"""Nsight Systems exports that are damaged, locked, hostile, packed or something else."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
import tarfile
import time
from pathlib import Path

import pytest
from memory_sink import MemorySink
from nsys_exports import (
    ALL_REDUCE_SCHEMA,
    INIT_SCHEMA,
    START_NS,
    Export,
    global_id,
    payload,
)

from soaks import soak
from tracekit.errors import InputError
from tracekit.ingest import IngestOptions, SourceFile, ingestor, recognise
from tracekit.ingest.files import expand
from tracekit.ingest.nsys import database, parquet, sniff
from tracekit.ingest.nsys.database import Database

pytestmark = pytest.mark.usefixtures("nsys_reader")


def make(path: Path, kernels: int = 3) -> Path:
    with Export(path) as export:
        for index in range(kernels):
            export.launch("gemm", index * 100, index * 100 + 50, 40)
    return path


def read(source: SourceFile) -> MemorySink:
    sink = MemorySink()
    found = recognise(source)
    sink.fact(status=found.status, reason=found.reason, kind=found.kind)
    if found.ingestor is not None:
        try:
            ingestor(found.ingestor).read(source, sink, IngestOptions())
        except InputError as error:
            sink.fact(status="unreadable", reason=error.message)
    return sink


def one(path: Path) -> MemorySink:
    (source,) = expand([path])
    return read(source)


def said(path: Path) -> tuple[object, object]:
    sink = one(path)
    return sink.facts["status"], sink.facts["reason"]


def test_a_zeroed_header_is_an_interrupted_export(tmp_path: Path) -> None:
    path = make(tmp_path / "a.sqlite")
    data = path.read_bytes()
    path.write_bytes(bytes(len(data)))
    status, reason = said(path)
    assert status == "unreadable"
    assert reason == "its header is zeroed: the export was interrupted"


@pytest.mark.parametrize("size", [100, 4096])
def test_only_the_header_zeroed_is_an_interrupted_export_too(tmp_path: Path, size: int) -> None:
    path = make(tmp_path / "a.sqlite")
    data = path.read_bytes()
    path.write_bytes(bytes(size) + data[size:])
    assert said(path) == ("unreadable", "its header is zeroed: the export was interrupted")


@pytest.mark.parametrize(
    "long", soak([{1}, {40}, {17, 18, 39}, set(range(5, 9))], fast=[{1}, {17, 18, 39}])
)
def test_a_row_with_too_long_a_value_is_left_out_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: set[int]
) -> None:
    monkeypatch.setattr(database, "MAX_VALUE_BYTES", 10_000)
    monkeypatch.setattr(database, "BATCH_ROWS", 16)
    path = tmp_path / "a.sqlite"
    with Export(path) as export:
        export.launch("gemm", 10, 50, 40)
        for row in range(1, 41):
            export.range("x" * (20_000 if row in long else 10), row * 100, row * 100 + 50)
    sink = one(path)
    starts = {(start - START_NS) // 100 for start in sink.rows("annotation", "start_ns")}
    assert starts == set(range(1, 41)) - long
    assert sink.facts["status"] == "partial"
    assert f"left out: {len(long)}" in str(sink.facts["reason"])


def test_a_table_of_nothing_but_long_values_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "MAX_VALUE_BYTES", 10_000)
    monkeypatch.setattr(database, "MAX_LONG_ROWS", 3)
    path = tmp_path / "a.sqlite"
    with Export(path) as export:
        export.launch("gemm", 10, 50, 40)
        for row in range(1, 11):
            export.range("x" * 20_000, row * 100, row * 100 + 50)
    status, reason = said(path)
    assert (status, str(reason).partition(":")[0]) == (
        "partial",
        "NVTX_EVENTS cannot be read to the end",
    )


@pytest.mark.parametrize(
    ("calls", "graphs", "status"), [(2, 0, "partial"), (0, 0, "ok"), (2, 1, "ok")]
)
def test_launches_without_any_kernel_are_said(
    tmp_path: Path, calls: int, graphs: int, status: str
) -> None:
    """Their table was left out, or the first never ended. Copies alone are no such case, nor are
    launches into a graph."""
    path = tmp_path / "a.sqlite"
    with Export(path) as export:
        export.call("cudaMemcpyAsync_v3020", 100, 10, correlation=1)
        for index in range(calls):
            export.call("cudaLaunchKernel_v7000", 200 + 100 * index, 10, correlation=2 + index)
        for _ in range(graphs):
            export.put(
                "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=600, end=700, deviceId=0, contextId=1,
                streamId=7, correlationId=2, globalPid=global_id(7), graphId=1, graphExecId=1,
            )  # fmt: skip
    if not graphs:
        with sqlite3.connect(path) as con:
            con.execute("DROP TABLE IF EXISTS CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
    found, reason = said(path)
    assert found == status
    assert str(reason).startswith("2 launches of kernels and no kernel") == (status != "ok")


def test_kernels_without_names_are_neither_computing_nor_communicating(tmp_path: Path) -> None:
    path = make(tmp_path / "a.sqlite")
    con = sqlite3.connect(path)
    con.execute("DROP TABLE StringIds")
    con.commit()
    con.close()
    sink = one(path)
    assert set(sink.rows("gpu_op", "class", "name")) == {("other", None)}
    assert sink.facts["status"] == "partial"
    assert sink.facts["reason"] == "3 kernels have no name; export all tables"


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9])
def test_what_a_cut_file_still_holds_is_read(tmp_path: Path, kept: float) -> None:
    path = make(tmp_path / "a.sqlite", kernels=5000)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    sink = one(path)
    assert sink.facts["status"] in ("partial", "unreadable")
    assert "bytes are missing" in str(sink.facts["reason"]) or "break" in str(sink.facts["reason"])
    assert (sink.facts["status"] == "partial") == bool(
        sink.tables.get("gpu_op") or sink.tables.get("host_op")
    )


@pytest.mark.parametrize("size", [1, 16, 50, 100, 4096])
def test_the_first_bytes_alone_are_unreadable(tmp_path: Path, size: int) -> None:
    path = make(tmp_path / "a.sqlite")
    path.write_bytes(path.read_bytes()[:size])
    assert said(path)[0] in ("unreadable", "unrecognised")


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bytes_never_raise(tmp_path: Path, seed: int) -> None:
    import random

    rng = random.Random(seed)  # noqa: S311  # repeatable damage, no secret
    path = make(tmp_path / "a.sqlite", kernels=500)
    data = bytearray(path.read_bytes())
    for _ in range(200):
        data[rng.randrange(100, len(data))] = rng.randrange(256)
    path.write_bytes(bytes(data))
    for source in expand([path]):
        status = read(source).facts["status"]
        assert status in ("ok", "partial", "unreadable", "empty", "unrecognised")


def test_an_export_that_names_a_process_a_row_stays_one_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sniff, "MAX_PROCESSES", 4)
    path = tmp_path / "a.sqlite"
    with Export(path) as export:
        for pid in range(5):
            export.launch("gemm", pid * 100, pid * 100 + 50, 40, pid=pid + 1)
    assert said(path) == ("partial", "several processes could not be told apart")


def test_a_locked_file_says_so_and_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCK_WAIT_S", 0.05)
    path = make(tmp_path / "a.sqlite")
    writer = sqlite3.connect(path)
    writer.execute("BEGIN EXCLUSIVE")
    try:
        status, reason = said(path)
    finally:
        writer.rollback()
        writer.close()
    assert (status, reason) == (
        "unreadable",
        "another program holds it locked; wait until its export is done",
    )
    assert said(path)[0] == "ok"


def test_a_journal_that_was_never_rolled_back_is_no_export(tmp_path: Path) -> None:
    path = make(tmp_path / "a.sqlite")
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("BEGIN")
    writer.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 5")
    writer.execute("CREATE TABLE more AS SELECT zeroblob(100000)")
    copy = tmp_path / "copied"
    copy.mkdir()
    for part in tmp_path.glob("a.sqlite*"):
        shutil.copy(part, copy)
    writer.rollback()
    writer.close()
    before = sorted(p.name for p in copy.iterdir())
    status, _ = said(copy / "a.sqlite")
    assert status == "unreadable"
    assert sorted(p.name for p in copy.iterdir()) == before


def test_nothing_is_made_beside_a_file_with_a_write_ahead_log(tmp_path: Path) -> None:
    path = make(tmp_path / "written" / "a.sqlite")
    con = sqlite3.connect(path)
    con.execute("PRAGMA journal_mode = WAL")
    con.close()
    assert said(path)[0] == "ok"
    con = sqlite3.connect(path)
    con.execute("CREATE TABLE more (x)")
    con.commit()
    copied = tmp_path / "copied"
    shutil.copytree(path.parent, copied)
    con.close()
    before = sorted(p.name for p in copied.iterdir())
    status, reason = said(copied / "a.sqlite")
    assert status == "unreadable"
    assert "write-ahead log" in str(reason)
    assert sorted(p.name for p in copied.iterdir()) == before


def test_a_view_in_place_of_a_table_is_never_read(tmp_path: Path) -> None:
    path = make(tmp_path / "a.sqlite")
    con = sqlite3.connect(path)
    con.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO hidden")
    con.execute(
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(i) AS"
        " (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT h.* FROM n, hidden h"
    )
    con.commit()
    con.close()
    sink = one(path)
    assert (sink.facts["status"], sink.facts["reason"]) == (
        "partial",
        "CUPTI_ACTIVITY_KIND_KERNEL: a view or virtual table, which is never read",
    )
    assert "gpu_op" not in sink.tables
    assert len(sink.rows("host_op")) == 3


def test_generated_columns_and_virtual_tables_are_never_read(tmp_path: Path) -> None:
    path = make(tmp_path / "a.sqlite")
    con = sqlite3.connect(path)
    con.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN category AS (zeroblob(1000000000))")
    con.execute("DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY")
    try:
        con.execute("CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_MEMCPY USING fts5(start)")
    except sqlite3.OperationalError:
        pytest.skip("this SQLite has no fts5")
    con.commit()
    con.close()
    with Database(path) as opened:
        assert "category" not in opened.tables["NVTX_EVENTS"]
        assert "CUPTI_ACTIVITY_KIND_MEMCPY" not in opened.tables
    assert said(path)[0] == "partial"


def test_a_value_beyond_the_cap_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MAX_VALUE_BYTES", 100_000)
    path = tmp_path / "a.sqlite"
    with Export(path) as export:
        export.launch("gemm", 0, 50, 40)
        export.range("x" * 200_000, 0, 10)
    sink = one(path)
    assert sink.facts["status"] == "partial"
    assert len(sink.rows("gpu_op")) == 1
    assert sink.counters["value_too_long"] == 1


@pytest.mark.slow
def test_the_time_limit_ends_the_reading(tmp_path: Path) -> None:
    path = make(tmp_path / "a.sqlite", kernels=100_000)
    with Database(path, time_limit_s=60) as opened:
        opened._deadline = 0.0
        rows = sum(len(b) for b in opened.batches("CUPTI_ACTIVITY_KIND_KERNEL", ("start", "end")))
        assert rows < 100_000
        assert "time limit" in opened.damaged[0]


INTERIOR = 5
"""Type byte of a page of a table that points at others."""


def interior_pages(data: bytes, size: int) -> dict[int, list[int]]:
    """Numbers of the interior pages, from 1, and where the pointers of each stand in the file."""
    found = {}
    for number in range(2, len(data) // size + 1):
        at = (number - 1) * size
        if data[at] != INTERIOR:
            continue
        count = int.from_bytes(data[at + 3 : at + 5])
        cells = [at + 12 + 2 * i for i in range(count)]
        places = [at + int.from_bytes(data[c : c + 2]) for c in cells]
        found[number] = [*places, at + 8]
    return found


@pytest.mark.parametrize(
    "target",
    soak(
        ["itself", "its parent", "the root", "one leaf for all"],
        fast=["its parent", "one leaf for all"],
    ),
)
def test_pages_that_form_a_circle_end_in_a_status(tmp_path: Path, target: str) -> None:
    # Small pages make a tree of three levels; then pointers of its pages are bent by hand.
    size = 512
    path = tmp_path / "a.sqlite"
    with sqlite3.connect(path) as con:
        con.execute(f"PRAGMA page_size = {size}")
        con.execute("VACUUM")
    con.close()
    make(path, kernels=4000)
    data = bytearray(path.read_bytes())
    pages = interior_pages(bytes(data), size)
    children = {n: [int.from_bytes(data[p : p + 4]) for p in places] for n, places in pages.items()}
    parents = {child: n for n, found in children.items() for child in found}
    deep = [n for n in pages if parents.get(n) in pages]
    assert deep, "no table has three levels"
    for number in deep if target != "one leaf for all" else pages:
        leaf = next((c for c in children[number] if c not in pages), None)
        to = {
            "itself": number,
            "its parent": parents.get(number, number),
            "the root": next(n for n in pages if n not in parents),
            "one leaf for all": leaf or children[number][0],
        }[target]
        for place in pages[number][1:]:
            data[place : place + 4] = to.to_bytes(4)
    path.write_bytes(bytes(data))
    before = time.process_time()
    sink = one(path)
    assert time.process_time() - before < CIRCLE_CPU_S
    assert sink.facts["status"] in ("partial", "unreadable")
    assert len(sink.rows("gpu_op")) <= 4000 * (size // 12)


CIRCLE_CPU_S = 20.0
"""Generous for a loaded machine: what is read is bounded by the bytes of the file."""


def test_other_databases_are_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    con = sqlite3.connect(path)
    con.execute("CREATE TABLE users (name TEXT)")
    con.commit()
    con.close()
    sink = one(path)
    assert (sink.facts["kind"], sink.facts["status"]) == ("sqlite", "unrecognised")


def test_an_export_without_rows_is_empty(tmp_path: Path) -> None:
    with Export(tmp_path / "a.sqlite"):
        pass
    assert said(tmp_path / "a.sqlite")[0] == "empty"


def test_packed_exports_are_read_and_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    plain = tmp_path / "plain" / "two.sqlite"
    with Export(plain) as export:
        for pid, device in ((20, 0), (10, 1)):
            export.launch("gemm", 0, 50, 40, pid=pid, device=device)
    packed = tmp_path / "two.sqlite.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    archive = tmp_path / "two.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(plain, "in/two.sqlite")
    for path, shown in ((packed, str(packed)), (archive, f"{archive}!in/two.sqlite")):
        sources = expand([path])
        assert [s.path for s in sources] == [f"{shown}!device=0,pid=20", f"{shown}!device=1,pid=10"]
        for source, pid in zip(sources, (20, 10), strict=True):
            assert read(source).rows("gpu_op", "pid") == [pid]
    assert list(scratch.iterdir()) == []


def test_a_report_names_the_command_that_exports_it(tmp_path: Path) -> None:
    path = tmp_path / "my job.nsys-rep"
    path.write_bytes(b"\x10\x20nsys report")
    status, reason = said(path)
    assert status == "unreadable"
    assert str(reason).endswith(
        "nsys export --type=sqlite --include-blobs=true --output='my job.sqlite' 'my job.nsys-rep'"
    )


def test_a_process_that_left_the_export_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "two.sqlite"
    with Export(path) as export:
        for pid in (20, 10):
            export.launch("gemm", 0, 50, 40, pid=pid, device=pid)
    sources = expand([path])
    con = sqlite3.connect(path)
    con.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid = ?", [global_id(20)])
    con.commit()
    con.close()
    states = [read(s).facts["status"] for s in sources]
    assert sorted(states, key=str) == ["ok", "unreadable"]
    assert START_NS > 0


def parquet_folder(export: Path, folder: Path) -> Path:
    """The same tables as ``nsys export --type=parquetdir`` writes them: ids are unsigned."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    con = sqlite3.connect(export)
    for (name,) in con.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        cursor = con.execute(f"SELECT * FROM {name}")
        columns = [d[0] for d in cursor.description]
        rows = cursor.fetchall()
        if rows:
            values = [[r[i] for r in rows] for i in range(len(columns))]
            unsigned = {"globalPid", "globalTid", "streamId", "id"}
            arrays = [
                pa.array(v, pa.uint64() if c in unsigned else None)
                for c, v in zip(columns, values, strict=True)
            ]
            pq.write_table(
                pa.table(dict(zip(columns, arrays, strict=True))), folder / f"{name}.parquet"
            )
    con.close()
    return folder


def test_a_folder_of_parquet_files_gives_the_same_rows(tmp_path: Path) -> None:
    plain = tmp_path / "two.sqlite"
    with Export(plain) as export:
        for pid, device in ((20, 0), (10, 1)):
            export.launch("gemm", 100, 150, 40, pid=pid, tid=pid, device=device)
            export.range("step 1", 0, 200, pid=pid, tid=pid)
    folder = parquet_folder(plain, tmp_path / "out" / "two_pqtdir")
    sources = expand([tmp_path / "out"])
    assert [s.path for s in sources] == [f"{folder}!device=0,pid=20", f"{folder}!device=1,pid=10"]
    for one_way, other in zip(expand([plain]), sources, strict=True):
        ours, theirs = read(one_way), read(other)
        assert theirs.facts["status"] == "ok"
        for table in ("gpu_op", "host_op", "annotation"):
            wanted = [{k: v for k, v in r.items() if k != "place"} for r in ours.rows(table)]
            assert [
                {k: v for k, v in r.items() if k != "place"} for r in theirs.rows(table)
            ] == wanted
            assert wanted


def as_text(path: Path) -> None:
    """Write a file's payloads as nsys 2026 does: declared as text, which they are not."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    blobs = table["binaryData"].combine_chunks().cast(pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(blobs), blobs.buffers(), blobs.null_count)
    index = table.column_names.index("binaryData")
    pq.write_table(table.set_column(index, "binaryData", text), path)


@pytest.mark.parametrize("is_text", [False, True])
def test_payloads_of_a_folder_are_decoded(tmp_path: Path, is_text: bool) -> None:
    plain = tmp_path / "a.sqlite"
    with Export(plain) as export:
        export.nccl_schemas()
        blob = payload(INIT_SCHEMA, "Qiii", 0x80FF, 4, 2, 0)
        export.range("ncclCommInitRank", 0, 50, domain=1, binaryData=blob)
        blob = payload(ALL_REDUCE_SCHEMA, "QQi", 0x80FF, 0xFFFE, 0)
        export.range("ncclAllReduce", 100, 200, domain=1, binaryData=blob)
        export.range("step 1", 0, 200)
        export.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 110, 500, 50)
    folder = parquet_folder(plain, tmp_path / "a_pqtdir")
    if is_text:
        as_text(folder / "NVTX_EVENTS.parquet")
    ours, theirs = one(plain), one(folder)
    assert theirs.facts["status"] == "ok"
    columns = ("op", "group_id", "group_size", "group_rank", "message_bytes")
    assert theirs.rows("collective", *columns) == ours.rows("collective", *columns)
    assert theirs.rows("collective", "message_bytes") == [0xFFFE]


def test_a_damaged_table_of_a_folder_is_said(tmp_path: Path) -> None:
    folder = parquet_folder(make(tmp_path / "a.sqlite"), tmp_path / "a_pqtdir")
    (folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet").write_bytes(b"PAR1 and nothing else")
    sink = one(folder)
    assert sink.facts["status"] == "partial"
    assert len(sink.rows("host_op")) == 3


def test_more_text_than_the_file_has_bytes_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rows whose overflow pages are shared: here the limit comes down to meet an ordinary table.
    path = tmp_path / "a.sqlite"
    with Export(path) as export:
        for number in range(40):
            export.string("x" * 1000 + str(number))
    monkeypatch.setattr(database, "SLACK_CHARS", 10_000 - path.stat().st_size)
    with Database(path) as opened:
        assert not list(opened.batches("StringIds", ("id", "value")))
        assert opened.damaged == [f"StringIds: {database._SHARED}"]


def test_a_question_over_all_rows_takes_no_more_steps_than_the_file_can_hold_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pages that form a circle hold rows without end: here an ordinary table has more than allowed.
    path = make(tmp_path / "a.sqlite", kernels=3000)
    with Database(path) as opened:
        assert len(opened.distinct("CUPTI_ACTIVITY_KIND_KERNEL", "start")) == 3000
    monkeypatch.setattr(database, "_ROW_STEPS", 0)
    monkeypatch.setattr(database, "_CHECK_EVERY", 100)
    with Database(path) as opened:
        assert not opened.distinct("CUPTI_ACTIVITY_KIND_KERNEL", "start")
        assert opened.damaged


def test_one_long_name_in_parquet_is_not_held_once_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parquet stores what is repeated once: 2 kB of file are hundreds of megabytes of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr(parquet, "MEMORY", "64MB")
    name = pa.array(["x" * 1_000_000]).take(pa.array([0] * 200))
    path = tmp_path / "StringIds.parquet"
    pq.write_table(pa.table({"id": pa.array(range(200)), "value": name}), path, compression="zstd")
    pq.write_table(pa.table({"id": pa.array([1, 2])}), tmp_path / "PROCESSES.parquet")
    assert path.stat().st_size < 20_000
    with parquet.ParquetTables(tmp_path) as tables:
        assert list(tables.batches("StringIds", ["id", "value"])) == []
        assert tables.damaged == ["StringIds: its file is damaged"]
        assert list(tables.rows("PROCESSES", ["id"])) == [(1,), (2,)]
    assert not (tmp_path / ".tmp").exists() and not Path(".tmp").exists(), "nothing was spilled"
