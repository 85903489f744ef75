"""adbc-driver-sqlite reads what sqlite3 reads: the same rows, from sound files and from others."""

from __future__ import annotations

import importlib.util
import random
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from memory_sink import MemorySink
from nsys_exports import (
    ALL_REDUCE_SCHEMA,
    INIT_SCHEMA,
    SEND_SCHEMA,
    Export,
    export_of,
    global_id,
    payload,
)

from soaks import soak
from tracekit.errors import InputError
from tracekit.ingest import IngestOptions, ingestor, recognise
from tracekit.ingest.files import expand
from tracekit.ingest.nsys import adbc, adbc_program, database
from tracekit.ingest.nsys.database import Database
from traces import make_trace

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "nsys"
NEVER = 1 << 63
KERNEL, RUNTIME, NVTX = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
AGAIN = "table_read_again"

Fill = Callable[[Export], None]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several batches a table, of both libraries alike."""
    monkeypatch.setattr(adbc, "BATCH_ROWS", 16)
    monkeypatch.setattr(database, "BATCH_ROWS", 16)


def ingest(path: Path) -> list[MemorySink]:
    """A sink for each source that an export is."""
    sinks = []
    for source in expand([path]):
        sink = MemorySink()
        found = recognise(source)
        sink.fact(status=found.status, reason=found.reason)
        if found.ingestor is not None:
            try:
                ingestor(found.ingestor).read(source, sink, IngestOptions())
            except InputError as error:
                sink.fact(status="unreadable", reason=error.message)
        sinks.append(sink)
    return sinks


def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[MemorySink]:
    """The sinks of an export as adbc-driver-sqlite fills them, which sqlite3 must fill alike."""
    monkeypatch.setattr(database, "LARGE_ROWS", NEVER)
    expected = ingest(path)
    monkeypatch.setattr(database, "LARGE_ROWS", 0)
    found = ingest(path)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert set(ours.tables) == set(theirs.tables)
        for name in theirs.tables:
            is_same = ours.table(name).equals(theirs.table(name))
            assert is_same, name  # pytest would take minutes to show how they differ
        assert ours.facts == theirs.facts
        counters = dict(ours.counters)
        counters.pop(AGAIN, None)
        assert counters == theirs.counters
        assert AGAIN not in theirs.counters
        assert {c: s for c, s in ours.shapes.items() if c != AGAIN} == theirs.shapes
        assert {c: p for c, p in ours.places.items() if c != AGAIN} == theirs.places
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that adbc-driver-sqlite answered to the end."""
    answered: list[str] = []
    genuine = adbc.Adbc._answer

    def answer(self: adbc.Adbc, sql: str) -> Iterator[object]:
        yield from genuine(self, sql)
        answered.append(sql)

    monkeypatch.setattr(adbc.Adbc, "_answer", answer)
    return answered


def full(export: Export) -> None:
    """Some of everything, and more than a batch of most."""
    export.nccl_schemas()
    export.gpu(0, 7)
    blob = payload(INIT_SCHEMA, "Qiii", 0x80FF, 4, 2, 0)
    export.range("ncclCommInitRank", 0, 5, domain=1, binaryData=blob)
    export.range("NCCL", 1, None, kind=75, domain=1)
    for index in range(100):
        at = 1000 * index
        export.range(f"step {index}", at, at + 990)
        export.range(
            "läuft ✓", at + 1, None if index % 9 else at + 800, is_registered=index % 2 > 0
        )
        export.range("mark", at + 2, None, kind=34)
        export.range("across", at + 3, at + 600, kind=60, endGlobalTid=global_id(7, 8))
        kind = "gemm" if index % 3 else "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
        blob = payload(ALL_REDUCE_SCHEMA, "QQi", 0x80FF, 4096 + index, 0)
        export.range("ncclAllReduce", at + 5, at + 50, domain=1, binaryData=blob)
        export.launch(kind, at + 10, at + 100, 70, stream=7 + index % 2)
        copied = export.call("cudaMemcpyAsync_v3020", at + 60, 5)
        export.put(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start=at + 200, end=at + 240, deviceId=0, contextId=1,
            streamId=9, correlationId=copied, globalPid=global_id(7), bytes=1 << 20,
            copyKind=index % 5, graphNodeId=index % 4 or None,
        )  # fmt: skip
        export.put(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=at + 300, end=at + 400, deviceId=0,
            contextId=1, streamId=7, correlationId=copied, globalPid=global_id(7),
            graphId=index % 3, graphExecId=1,
        )  # fmt: skip
        export.put(
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT", deviceId=0, contextId=1, streamId=9,
            correlationId=copied, globalPid=global_id(7), eventId=index, eventSyncId=index,
        )  # fmt: skip
        export.put(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=at + 500, end=at + 520, deviceId=0,
            contextId=1, streamId=2**32 - 1 if index % 2 else 7, correlationId=copied,
            globalPid=global_id(7), syncType=1 + index % 5, eventId=index, eventSyncId=index,
        )  # fmt: skip
    blob = payload(SEND_SCHEMA, "QQi", 0x80FF, 77, 3)
    export.range("ncclSend", 200_000, 200_010, domain=1, binaryData=blob)
    export.call("cudaLaunchKernelExC_v11060", 200_002, 5)


def two_processes(export: Export) -> None:
    for index in range(40):
        for pid, device in ((20, 0), (10, 1)):
            at = 1000 * index
            export.launch("gemm", at, at + 50, 40, pid=pid, tid=pid, device=device)
            export.range(f"step {index}", at, at + 900, pid=pid, tid=pid)


def written(folder: Path, fill: Fill = full) -> Path:
    path = folder / "a.sqlite"
    with Export(path) as export:
        fill(export)
    return path


def change(path: Path, *statements: str) -> None:
    con = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        con.execute(statement)
    con.close()


@pytest.mark.parametrize("fill", soak([full, two_processes], fast=1))
def test_rows_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], fill: Fill
) -> None:
    sinks = both(written(tmp_path, fill), monkeypatch)
    assert all(sink.facts["status"] == "ok" and AGAIN not in sink.counters for sink in sinks)
    assert all(sink.table("gpu_op").num_rows >= 40 for sink in sinks)
    for table in ("StringIds", KERNEL, RUNTIME, NVTX):
        assert any(f'FROM "{table}"' in sql for sql in asked), table


def test_rows_of_a_job_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [make_trace(rank, world_size=2, stall_ms=30) for rank in range(2)]
    sinks = both(export_of(documents, tmp_path / "job.sqlite"), monkeypatch)
    assert len(sinks) == 2
    assert all(AGAIN not in sink.counters for sink in sinks)


@pytest.mark.parametrize(
    ("declared", "value", "is_again"),
    soak(
        [("INTEGER", "rowid + 0.5", True), ("INTEGER", "rowid", False), ("REAL", "rowid", False)],
        fast=1,
    ),
)
def test_samples_are_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[str],
    declared: str,
    value: str,
    is_again: bool,
) -> None:
    path = written(tmp_path)
    change(
        path,
        f"CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER,"
        f" value {declared})",
        "CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, metricId INTEGER, metricName TEXT)",
        "INSERT INTO TARGET_INFO_GPU_METRICS VALUES (768, 3, 'SMs Active [Throughput %]')",
        f"INSERT INTO GPU_METRICS SELECT start, 768, 3, 0 FROM {RUNTIME}",
        f"UPDATE GPU_METRICS SET value = {value} WHERE rowid > 100",
    )
    (sink,) = both(path, monkeypatch)
    assert sink.table("gpu_sample").num_rows == 201
    assert (AGAIN in sink.counters) == is_again
    assert any("GPU_METRICS" in sql for sql in asked) == (declared == "INTEGER" and not is_again)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="real samples are not shipped")
@pytest.mark.parametrize(
    "name",
    soak(
        ["mfu_2gpu_before", "cuda_graph-2025.5.2", "saxpy-mpi-2022.2"],
        fast=["mfu_2gpu_before", "cuda_graph-2025.5.2"],
    ),
)
def test_rows_of_real_exports_are_the_same(
    monkeypatch: pytest.MonkeyPatch, asked: list[str], name: str
) -> None:
    monkeypatch.setattr(adbc, "BATCH_ROWS", 1000)
    sinks = both(DATA / f"{name}.sqlite", monkeypatch)
    assert asked
    assert all(AGAIN not in sink.counters for sink in sinks)


ODD = {
    "text among integers at once": f"UPDATE {KERNEL} SET streamId = 'seven' WHERE rowid = 3",
    "text among integers later": f"UPDATE {KERNEL} SET streamId = 'seven' WHERE rowid = 90",
    "number as text": f"UPDATE {KERNEL} SET gridX = '2.5' WHERE rowid = 90",
    "half a nanosecond at once": f"UPDATE {KERNEL} SET start = start + 0.5 WHERE rowid = 3",
    "half a nanosecond later": f"UPDATE {RUNTIME} SET start = start + 0.5 WHERE rowid = 90",
    "bytes among integers": f"UPDATE {NVTX} SET end = x'00ff' WHERE rowid = 300",
    "huge numbers": f"UPDATE {NVTX} SET domainId = 9e30 WHERE rowid = 300",
    "integers among texts": f"UPDATE {NVTX} SET text = 5 WHERE rowid = 300",
    "bytes among texts": f"UPDATE {NVTX} SET text = x'666f6f' WHERE rowid IN (2, 300)",
    "names that are bytes": "UPDATE StringIds SET value = x'666f6f' WHERE id = 1",
    "empty and missing texts": f"UPDATE {NVTX} SET text = iif(rowid % 2, '', NULL)",
    "no text before the last": f"UPDATE {NVTX} SET text = NULL WHERE rowid < 300",
    "no UTF-8": f"UPDATE {NVTX} SET text = CAST(x'61ff62ed' AS TEXT) WHERE rowid % 7 = 1",
    "names that are no UTF-8": "UPDATE StringIds SET value = CAST(x'c328' AS TEXT) WHERE id = 2",
    "a text with a zero byte": f"UPDATE {NVTX} SET text = 'a' || char(0) || 'b' WHERE rowid = 20",
    "only nulls": f"UPDATE {KERNEL} SET globalPid = NULL, correlationId = NULL",
    "negative ids": f"UPDATE {KERNEL} SET rowid = rowid - 50",
    "gaps": f"DELETE FROM {NVTX} WHERE rowid BETWEEN 20 AND 200",
    "nothing": f"DELETE FROM {NVTX}",
    "an index": f"CREATE INDEX by_type ON {NVTX} (eventType, start DESC)",
    "an index of all": f"CREATE INDEX covering ON {RUNTIME} (globalTid, start, end, correlationId,"
    " nameId)",
}
SAME_LIBRARY = {
    "bytes among texts", "names that are bytes", "empty and missing texts",
    "no text before the last", "no UTF-8", "names that are no UTF-8", "a text with a zero byte",
    "only nulls", "negative ids", "gaps", "nothing", "an index", "an index of all",
    "integers among texts",
}  # fmt: skip
"""What adbc-driver-sqlite reads without help: SQLite turns an integer into text as it stores it."""


@pytest.mark.parametrize("case", soak(ODD, fast=1))
def test_odd_values_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], case: str
) -> None:
    path = written(tmp_path)
    change(path, ODD[case])
    (sink,) = both(path, monkeypatch)
    assert asked
    assert (AGAIN in sink.counters) == (case not in SAME_LIBRARY)
    if AGAIN in sink.counters:
        assert sink.severities[AGAIN] == "info"
        assert "a column has values of several types" in str(sink.shapes[AGAIN])


@pytest.mark.parametrize("length", soak([20_000, 9_000], fast=1))
@pytest.mark.parametrize("column", soak(["text", "jsonText", "binaryData"], fast=["text"]))
def test_values_near_and_over_the_limit_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, length: int
) -> None:
    monkeypatch.setattr(database, "MAX_VALUE_BYTES", 10_000)
    path = written(tmp_path)
    change(path, f"UPDATE {NVTX} SET {column} = hex(zeroblob({length // 2})) WHERE rowid = 200")
    (sink,) = both(path, monkeypatch)
    is_refused = length > 10_000 and column == "text"
    assert sink.counters.get("value_too_long", 0) == is_refused
    assert sink.shapes.get(AGAIN) == (f"{NVTX}: a text is too long" if is_refused else None)


def test_a_database_in_another_encoding_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    source, path = written(tmp_path / "utf8"), tmp_path / "utf16.sqlite"
    con = sqlite3.connect(path)
    con.execute("PRAGMA encoding = 'UTF-16'")
    old = sqlite3.connect(source)
    for name, sql in old.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'"):
        con.execute(sql)
        rows = old.execute(f"SELECT * FROM {name}").fetchall()
        if rows:
            con.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    con.commit()
    con.close()
    old.close()
    (sink,) = both(path, monkeypatch)
    assert "läuft ✓" in sink.rows("annotation", "name")
    assert not asked


@pytest.mark.parametrize("seed", soak(range(12), fast=1))
def test_flipped_bytes_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)  # noqa: S311  # repeatable damage, no secret
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 5, 40])):
        data[rng.randrange(100, len(data))] = rng.randrange(256)
    path.write_bytes(bytes(data))
    both(path, monkeypatch)


@pytest.mark.parametrize("table", soak([KERNEL, NVTX], fast=[KERNEL]))
@pytest.mark.parametrize("damage", soak(["zeros", "noise", "twice", "circle"], fast=["circle"]))
def test_damaged_pages_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, damage: str
) -> None:
    """The page in the middle of a table: gone, nonsense, another page again, or its own parent."""
    path = written(tmp_path)
    change(path, "PRAGMA page_size = 1024", "VACUUM")
    con = sqlite3.connect(path)
    (root,) = con.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", [table]).fetchone()
    con.close()
    size = 1024
    data = bytearray(path.read_bytes())
    parent = int(root - 1) * size
    assert data[parent] == 5  # an inner page: the table has several
    cells = int.from_bytes(data[parent + 3 : parent + 5], "big")
    assert cells > 2

    def cell(number: int) -> int:
        at = parent + 12 + 2 * number
        return parent + int.from_bytes(data[at : at + 2], "big")

    middle = cell(cells // 2)
    child = int.from_bytes(data[middle : middle + 4], "big")
    if damage == "twice":
        data[middle : middle + 4] = data[cell(0) : cell(0) + 4]
    elif damage == "circle":
        data[middle : middle + 4] = root.to_bytes(4, "big")
    else:
        noise = random.Random(1).randbytes(size)  # noqa: S311
        data[(child - 1) * size : child * size] = bytes(size) if damage == "zeros" else noise
    path.write_bytes(bytes(data))
    (sink,) = both(path, monkeypatch)
    assert table in str(sink.shapes[AGAIN])


@pytest.mark.parametrize("kept", soak([0.7, 0.3, 0.95], fast=1))
def test_cut_files_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], kept: float
) -> None:
    path = written(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    both(path, monkeypatch)
    assert not asked


def test_zeroed_headers_views_and_locks_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCK_WAIT_S", 0.05)
    zeroed = written(tmp_path / "zeroed")
    zeroed.write_bytes(bytes(4096) + zeroed.read_bytes()[4096:])
    viewed = written(tmp_path / "viewed")
    change(
        viewed,
        f"ALTER TABLE {KERNEL} RENAME TO hidden",
        f"CREATE VIEW {KERNEL} AS SELECT * FROM hidden",
    )
    assert both(zeroed, monkeypatch)[0].facts["status"] == "unreadable"
    (sink,) = both(viewed, monkeypatch)
    assert sink.facts["status"] == "partial"
    assert "gpu_op" not in sink.tables or "kernel" not in sink.rows("gpu_op", "category")
    locked = written(tmp_path / "locked")
    writer = sqlite3.connect(locked)
    writer.execute("BEGIN EXCLUSIVE")
    try:
        (sink,) = both(locked, monkeypatch)
    finally:
        writer.rollback()
        writer.close()
    assert "locked" in str(sink.facts["reason"])


def test_a_lock_that_comes_later_is_waited_for_by_sqlite3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    monkeypatch.setattr(database, "LARGE_ROWS", 0)
    monkeypatch.setattr(database, "LOCK_WAIT_S", 0.05)
    with Database(path) as opened:
        list(opened.stream(KERNEL, ("start",)))
        writer = sqlite3.connect(path)
        writer.execute("BEGIN EXCLUSIVE")
        try:
            assert not list(opened.stream(RUNTIME, ("start",)))
        finally:
            writer.rollback()
            writer.close()
        assert "locked" in opened.damaged[0]


def test_a_virtual_table_that_claims_to_be_a_table_is_never_read(tmp_path: Path) -> None:
    path = written(tmp_path)
    con = sqlite3.connect(path)
    try:
        con.execute("CREATE VIRTUAL TABLE words USING fts5(start)")
    except sqlite3.OperationalError:
        pytest.skip("this SQLite has no fts5")
    con.execute("PRAGMA writable_schema = ON")
    con.execute("UPDATE sqlite_schema SET rootpage = 2 WHERE name = 'words'")
    con.commit()
    con.close()
    with Database(path) as opened:
        assert "words" not in opened.tables
        assert "words" in opened.unreal


def test_a_table_with_a_column_that_hides_the_row_ids_is_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    change(path, f"ALTER TABLE {KERNEL} ADD COLUMN RowId TEXT")
    (sink,) = both(path, monkeypatch)
    assert "kernel" not in sink.rows("gpu_op", "category")
    assert KERNEL in str(sink.facts["reason"])


def rows_of(path: Path, table: str = KERNEL) -> tuple[int, str | None]:
    """Rows that are read, and why adbc-driver-sqlite did not read all of them."""
    with Database(path) as opened:
        starts = [v for b in opened.stream(table, ("start", "end")) for v in b["start"]]
        assert not opened.damaged
        assert len(set(starts)) == len(starts)
        return len(starts), opened.read_again.get(table)


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An export of 100 kernels, of which all tables count as large."""
    monkeypatch.setattr(database, "LARGE_ROWS", 0)
    return written(tmp_path)


PROGRAMS = {
    "it was ended by signal 9": "import os; os.kill(os.getpid(), 9)",
    "it ended too early": "raise SystemExit(1)",
    "adbc-driver-sqlite cannot be loaded": f"raise SystemExit({adbc_program.NO_DRIVER})",
    "what it gave made no sense": "import time; print('a' * 99, flush=True); time.sleep(60)",
    "it gave no rows within the time limit": "import time; time.sleep(60)",
}


@pytest.mark.parametrize("why", PROGRAMS)
def test_whatever_becomes_of_the_program_all_rows_are_read(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[why])
    monkeypatch.setattr(adbc, "_PROGRAM", program)
    monkeypatch.setattr(adbc, "STALL_S", 0.2 if why.endswith("limit") else 2.0)
    began = time.monotonic()
    assert rows_of(export) == (100, why)
    assert time.monotonic() - began < 30


def test_a_stream_that_breaks_off_at_a_batch_is_not_whole(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To Arrow it looks like one that ended."""
    genuine = adbc._PROGRAM.read_text()
    broken = genuine.replace(
        "            out.flush()\n",
        "            out.flush()\n            globals().setdefault('sent', []).append(1)\n"
        "            if len(sent) == 2:\n                os._exit(0)\n",
        1,
    )
    assert broken != genuine
    program = tmp_path / "program.py"
    program.write_text(broken)
    monkeypatch.setattr(adbc, "_PROGRAM", program)
    assert rows_of(export) == (100, "it ended too early")


def test_a_program_that_is_killed_between_batches_costs_no_row(
    export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adbc, "_PIPE_BYTES", 4096)
    with Database(export) as opened:
        batches = opened.stream(KERNEL, ("start", "end"))
        starts = list(next(batches)["start"])
        assert opened._adbc is not None and opened._adbc._process is not None
        opened._adbc._process.kill()
        starts += [v for b in batches for v in b["start"]]
        assert (len(starts), len(set(starts))) == (100, 100)
        # It is started again for the next table.
        assert sum(len(b) for b in opened.stream(RUNTIME, ("start",))) == 201
        assert RUNTIME not in opened.read_again


def test_two_tables_at_a_time_are_not_mixed_up(export: Path) -> None:
    with Database(export) as opened:
        kernels, calls = opened.stream(KERNEL, ("start",)), opened.stream(RUNTIME, ("start",))
        counts = [len(next(kernels)), len(next(calls))]
        counts[1] += sum(len(b) for b in calls)
        counts[0] += sum(len(b) for b in kernels)
        assert counts == [100, 201]
        assert opened.read_again == {RUNTIME: "it was still reading another table"}


def test_memory_is_limited(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adbc, "MEMORY_BYTES", 64 << 20)
    monkeypatch.setattr(adbc, "BATCH_ROWS", 10_000_000)
    count, why = rows_of(export)
    assert count == 100
    assert why is not None


def test_one_that_nobody_waits_for_ends_by_itself(
    export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database(export) as opened:
        rows = opened.stream(KERNEL, ("start",))
        next(rows)
        assert opened._adbc is not None and opened._adbc._process is not None
        process = opened._adbc._process
        opened._adbc._process = None
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        assert process.wait(timeout=30) is not None


def test_nothing_is_left_running(export: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []
    with Database(export) as opened:
        rows = opened.stream(KERNEL, ("start",))
        next(rows)
        assert opened._adbc is not None and opened._adbc._process is not None
        started.append(opened._adbc._process)
        rows.close()  # type: ignore[attr-defined]
        assert started[0].poll() is not None
        assert sum(len(b) for b in opened.stream(KERNEL, ("start",))) == 100
        started.append(opened._adbc._process)
        assert started[1].poll() is None
    assert all(process.poll() is not None for process in started)


def test_without_the_driver_sqlite3_reads_all(
    export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert rows_of(export) == (100, None)


def test_small_tables_start_no_program(tmp_path: Path) -> None:
    with Database(written(tmp_path)) as opened:
        assert sum(len(b) for b in opened.stream(KERNEL, ("start",))) == 100
        assert opened._adbc is None


def test_the_program_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the file nor one beside it, and none in the place of one that is gone."""
    path = written(tmp_path)
    reader = adbc.Adbc(f"file:{path}?mode=ro", time.monotonic() + 60)
    try:
        for sql in ("CREATE TABLE x (y)", f"DELETE FROM {KERNEL}", "VACUUM"):
            with pytest.raises(adbc.TroubleError):
                list(reader._answer(sql))
        with pytest.raises(adbc.TroubleError):
            list(reader._answer("SELECT load_extension('x.so')"))
        gone = adbc.Adbc(f"file:{tmp_path}/gone.sqlite?mode=ro", time.monotonic() + 60)
        with pytest.raises(adbc.TroubleError):
            list(gone._answer("SELECT 1"))
        gone.close()
    finally:
        reader.close()
    assert [p.name for p in tmp_path.iterdir()] == ["a.sqlite"]
    assert rows_of(path) == (100, None)


def test_columns_of_other_types_are_left_to_sqlite3() -> None:
    types = {"a": "INTEGER", "t": "TEXT", "r": "REAL", "b": "BLOB", "n": ""}
    for name in ("r", "b", "n"):
        assert adbc.query("x", types, ("a", name), "", 100) is None
    found = adbc.query("x", types, ("a", "t", "absent"), "", 100)
    assert found is not None
    assert found.is_text == {"a": False, "t": True}
