"""The run on disk: manifests, views, selections and the sandbox."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracekit import schema, store
from tracekit.errors import QueryError, StoreError
from tracekit.store import Run, Selection
from tracekit.store import manifest as manifests
from tracekit.store.reader import _ADDED, _physical, _statements, connect, parsed


def _rows(**columns: list[object]) -> pa.Table:
    return pa.table(columns)


def _context(offset_ns: int = 0, drift_ratio: float = 0.0) -> pa.Table:
    """Source 0 is rank 0 on host a, source 1 is rank 1 on host b (whose clock is moved)."""
    return _rows(
        source_id=[0, 1],
        attempt=[1, 1],
        capture_id=[0, 0],
        clock_id=[0, 1],
        rank=[0, 1],
        rank_source=["file", "file"],
        host=["a", "b"],
        host_source=["file", "file"],
        offset_ns=[0, offset_ns],
        drift_ratio=[0.0, drift_ratio],
        drift_origin_ns=[0, 1000],
    )


def _steps() -> pa.Table:
    return _rows(
        attempt=[1] * 4,
        rank=[0, 0, 1, 1],
        capture_id=[0] * 4,
        step=[1, 2, 1, 2],
        file_step=[1, 2, 1, 2],
        source_id=[0, 0, 1, 1],
        start_ns=[0, 100, 0, 100],
        end_ns=[100, 200, 100, 200],
        dur_ns=[100] * 4,
        is_warmup=[False] * 4,
        is_partial=[False] * 4,
    )


def make_run(folder: Path, *, offset_ns: int = 0, drift_ratio: float = 0.0) -> Path:
    """Two ranks; each has one host operation in step 1, one in step 2, and one kernel in each."""
    shard = store.ShardWriter(folder / "data" / "s")
    for source_id in (0, 1):
        sink = shard.sink(source_id)
        sink.write("host_op", _rows(place=[0, 1], start_ns=[10, 110], dur_ns=[50, 50]))
        sink.write(
            "gpu_op",
            _rows(
                place=[2, 3],
                start_ns=[20, 120],
                dur_ns=[30, 30],
                step=[1, 2],
                step_source=["launch", "launch"],
            ),
        )
        sink.close(path=f"trace{source_id}.json", kind="kineto", status="ok")
    files = [
        store.ShardFile(f.table, f"data/s/{f.path}", f.rows_count, f.file_bytes)
        for f in shard.close()
    ]
    for name, rows in (
        ("source_context", _context(offset_ns, drift_ratio)),
        ("step", _steps()),
    ):
        derived = store.write_table(folder / "derived" / "d", name, rows)
        files.append(
            store.ShardFile(
                name, f"derived/d/{derived.path}", derived.rows_count, derived.file_bytes
            )
        )
    assert manifests.commit(folder, _manifest(files=tuple(files)))
    return folder


def _manifest(**changes: object) -> store.Manifest:
    return manifests.next_generation(
        None,
        **{
            "key": "k",
            "tracekit_version": "0",
            "registry_version": schema.REGISTRY_VERSION,
            "job_toml": None,
            **changes,
        },
    )


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with store.open_run(make_run(tmp_path / "run")) as opened:
        yield opened


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run, alone in its folder, that no test may change: one for all that try."""
    folder = tmp_path_factory.mktemp("unchanged")
    with store.open_run(make_run(folder / "run")) as opened:
        yield opened


def _values(run: Run, sql: str) -> list[object]:
    return [row[0] for row in run.sql(sql).fetchall()]


def test_a_view_adds_who_a_source_belongs_to(run: Run) -> None:
    rows = run.sql("SELECT rank, host, attempt, start_ns FROM host_op ORDER BY ALL").fetchall()
    assert rows == [(0, "a", 1, 10), (0, "a", 1, 110), (1, "b", 1, 10), (1, "b", 1, 110)]


def test_every_table_of_the_registry_can_be_read(run: Run) -> None:
    for table in schema.TABLES:
        columns = run.sql(f"SELECT * FROM {table.name} LIMIT 0").columns
        assert sorted(columns) == sorted(c.name for c in table.columns), table.name


def test_an_offset_moves_times_and_changes_no_duration(tmp_path: Path) -> None:
    with store.open_run(make_run(tmp_path / "run", offset_ns=1000)) as run:
        rows = run.sql("SELECT start_ns, dur_ns FROM host_op WHERE rank = 1 ORDER BY 1").fetchall()
    assert rows == [(1010, 50), (1110, 50)]


def test_drift_grows_from_its_origin(tmp_path: Path) -> None:
    with store.open_run(make_run(tmp_path / "run", offset_ns=0, drift_ratio=0.1)) as run:
        starts = _values(run, "SELECT start_ns FROM host_op WHERE rank = 1 ORDER BY 1")
    assert starts == [10 - 99, 110 - 89]  # 10 % of (10 - 1000) and of (110 - 1000)


@pytest.mark.parametrize(
    ("selection", "kernels", "host_ops"),
    [
        (Selection(), 4, 4),
        (Selection(ranks=((1, 1),)), 2, 2),
        (Selection(ranks=((0, 0), (1, 7))), 4, 4),
        (Selection(hosts=("b",)), 2, 2),
        (Selection(steps=((2, 2),)), 2, 2),
        (Selection(since_ns=100), 2, 2),
        (Selection(until_ns=15), 0, 2),
        (Selection(window=0), 4, 4),
    ],
)
def test_a_selection_leaves_out_the_rest(
    tmp_path: Path, selection: Selection, kernels: int, host_ops: int
) -> None:
    with store.open_run(make_run(tmp_path / "run"), selection) as run:
        assert _values(run, "SELECT count(*) FROM gpu_op") == [kernels]
        assert _values(run, "SELECT count(*) FROM host_op") == [host_ops]


@pytest.mark.parametrize(
    "statement",
    [
        "COPY (SELECT 1) TO '{dir}/out.csv'",
        "COPY (SELECT 1 AS a) TO '{file}' (USE_TMP_FILE false)",
        "EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO '{file}' (USE_TMP_FILE false)",
        "ATTACH '{dir}/x.db'",
        "EXPORT DATABASE '{dir}/x'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM read_csv('{other}')",
        "SELECT * FROM read_text('{other}')",
        "SELECT * FROM read_parquet('{dir}/*.parquet')",
        "SELECT * FROM '{other}'",
        "SELECT * FROM glob('{dir}/*')",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "CREATE TABLE t AS SELECT 1",
        "DROP VIEW host_op",
        "SELECT 1; SELECT 2",
        "EXPLAIN/* SELECT 1 --*/ANALYZE COPY (SELECT 1 AS a) TO '{file}' (USE_TMP_FILE false)",
        "EXPLAIN--\nANALYZE--\nCOPY (SELECT 1 AS a) TO '{file}' (USE_TMP_FILE false)",
        "EXPLAIN\u00a0ANALYZE\u00a0COPY (SELECT 1 AS a) TO '{file}' (USE_TMP_FILE false)",
        "/* é */ EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO '{file}' (USE_TMP_FILE false)",
        "EXPLAIN (ANALYZE) COPY (SELECT 1 AS a) TO '{file}' (USE_TMP_FILE false)",
        "EXPLAIN (ANALYZE, FORMAT JSON) COPY (SELECT 1 AS a) TO '{file}' (USE_TMP_FILE false)",
        "EXPLAIN COPY (SELECT 1 AS a) TO '{file}'",
        "WITH a AS (COPY (SELECT 1 AS b) TO '{file}' (USE_TMP_FILE false)) SELECT * FROM a",
        "EXPLAIN ANALYZE WITH a AS (COPY (SELECT 1) TO '{file}' (USE_TMP_FILE false)) FROM a",
        "FROM (WITH a AS (COPY (SELECT 1) TO '{file}' (USE_TMP_FILE false)) FROM a)",
        "WITH a AS (DELETE FROM source_context RETURNING *) SELECT * FROM a",
        "WITH a AS (UPDATE source_context SET rank = 7 RETURNING *) SELECT * FROM a",
        "WITH a AS (INSERT INTO inferred_step VALUES (1, 2, 3, 4) RETURNING *) SELECT * FROM a",
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM Query('WITH a AS (COPY (SELECT 1) TO ''{file}'') FROM a')",
        "SELECT * FROM json_execute_serialized_sql('{{}}')",
        "PRAGMA json_execute_serialized_sql('{{}}')",
        "PREPARE p AS SELECT 1",
        "EXECUTE p",
        "CALL pragma_version()",
        "CALL enable_logging()",
        "SELECT * FROM enable_logging(storage = 'file', storage_path = '{dir}/logs')",
        "SELECT * FROM enable_profiling('json', save_location = '{dir}/profile')",
        "CHECKPOINT",
        "EXPLAIN",
        "EXPLAIN ANALYZE",
        "DELETE FROM source_context",
        "USE memory",
        "RESET memory_limit",
        "SET VARIABLE a = 1",
        "BEGIN",
        "VACUUM",
        "IMPORT DATABASE '{dir}'",
        "SELECT * FROM read_blob('{other}')",
        "SELECT * FROM read_json('{other}')",
        "SELECT * FROM sniff_csv('{other}')",
        "SELECT * FROM read_duckdb('{other}')",
        "SELECT * FROM parquet_metadata('{other}')",
        "SELECT * FROM 'https://example.org/x.parquet'",
        "SELECT getenv('HOME')",
        "SELECT * FROM other",
        "PRAGMA version",
        "",
    ],
)
def test_sql_reads_the_run_and_nothing_else(unchanged: Run, statement: str) -> None:
    folder = unchanged.path.parent
    other = folder / "other.csv"
    other.write_text("a\n1\n")
    file = unchanged.path / unchanged.manifest.files[0].path
    before = file.read_bytes()
    text = statement.format(dir=folder, file=file, other=other)
    with pytest.raises(QueryError):
        unchanged.rows(text)
    assert file.read_bytes() == before
    assert sorted(p.name for p in folder.iterdir()) == ["other.csv", "run"]
    assert _values(unchanged, "SELECT count(*) FROM host_op WHERE rank = 0") == [2]


def test_explain_and_with_may_run(run: Run) -> None:
    assert _values(run, "WITH a AS (SELECT 7 AS x) SELECT x FROM a") == [7]
    assert run.sql("EXPLAIN SELECT 1").fetchall()
    assert run.sql("EXPLAIN ANALYZE SELECT count(*) FROM host_op").fetchall()
    assert run.sql("/* é */ explain /* b */ analyze -- c\n SELECT 'é' -- d").fetchall()
    for text in (
        "FROM host_op",
        "(SELECT 1)",
        "VALUES (1)",
        "DESCRIBE host_op",
        "SHOW TABLES",
        "SELECT 1 UNION SELECT 2",
        "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 3) FROM r",
        'SELECT \'"type":"COPY_QUERY_NODE", "function_name":"query"\'',
        "SELECT " + "+".join(["1"] * 500),
    ):
        assert run.sql(text).fetchall()


def test_columns_of_one_name_are_told_apart(run: Run) -> None:
    rows = run.rows("SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a")
    assert rows.to_pylist() == [{"a": 1, "a_2": 2, "a_1": 3, "a_3": 4}]


def test_a_missing_or_cut_file_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    victim = next((folder / "data" / "s").glob("gpu_op*"))
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"gpu_op.*the manifest says"):
        store.open_run(folder)


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "data/../../x"])
def test_a_manifest_cannot_lead_out_of_its_run(tmp_path: Path, path: str) -> None:
    file = store.ShardFile("host_op", path, 0, 0)
    manifests.commit(tmp_path, _manifest(files=(file,)))
    with pytest.raises(StoreError, match="outside the run"):
        store.open_run(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"format": "x"}', "\x00"])
def test_a_damaged_manifest_is_a_clear_error(tmp_path: Path, text: str) -> None:
    folder = manifests.manifests_dir(tmp_path)
    folder.mkdir()
    (folder / "000001.json").write_text(text)
    with pytest.raises(StoreError, match="not a manifest"):
        store.open_run(tmp_path)


def test_only_one_of_two_writers_gets_a_generation(tmp_path: Path) -> None:
    first, second = _manifest(key="first"), _manifest(key="second")
    assert manifests.commit(tmp_path, first)
    assert not manifests.commit(tmp_path, second)
    loaded = manifests.load(tmp_path)
    assert loaded == first
    assert manifests.commit(tmp_path, manifests.next_generation(loaded, key="second"))
    assert [p.name for p in sorted(manifests.manifests_dir(tmp_path).iterdir())] == [
        "000001.json",
        "000002.json",
    ]


def test_a_manifest_survives_a_round_trip(tmp_path: Path) -> None:
    written = _manifest(
        sources=(store.SourceEntry(0, "a.json", "ff", 1, 2, "k"),),
        files=(store.ShardFile("host_op", "data/x/y.parquet", 1, 2, 0, 0, 5, 9),),
        notes=("b.json was not read",),
    )
    manifests.commit(tmp_path, written)
    assert manifests.load(tmp_path) == written
    assert json.loads((tmp_path / "manifests" / "000001.json").read_text())["format_version"] == 1


def test_a_column_that_the_registry_does_not_know_is_refused(tmp_path: Path) -> None:
    sink = store.ShardWriter(tmp_path).sink(0)
    with pytest.raises(StoreError, match=r"host_op.*colour"):
        sink.write("host_op", _rows(place=[1], colour=["red"]))


def test_counts_of_one_name_add_up_and_keep_the_first_place(tmp_path: Path) -> None:
    shard = store.ShardWriter(tmp_path)
    sink = shard.sink(3)
    sink.count("bad_event", doc="An event that is no object.", place=7, shape="aaa")
    sink.count("bad_event", 2, doc="An event that is no object.", place=9, shape="999")
    sink.close(path="x", kind="kineto", status="partial")
    (stats,) = [f for f in shard.close() if f.table == "ingest_stat"]
    rows = pq.read_table(tmp_path / stats.path).to_pylist()
    assert [(r["source_id"], r["occurrence_count"], r["place"], r["shape"]) for r in rows] == [
        (3, 3, 7, "aaa")
    ]


def test_a_table_is_split_into_files_and_row_groups_by_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracekit.store.writer.ROW_GROUP_BYTES", 1)
    monkeypatch.setattr("tracekit.store.writer.FILE_BYTES", 1)
    shard = store.ShardWriter(tmp_path)
    sink = shard.sink(0)
    for start in (100, 200):
        sink.write("host_op", _rows(place=[start], start_ns=[start], dur_ns=[5]))
    files = shard.close()
    assert [(f.path, f.min_time_ns, f.max_time_ns) for f in files] == [
        ("host_op-000.parquet", 100, 100),
        ("host_op-001.parquet", 200, 200),
    ]


def test_a_statement_is_parsed_once_for_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each binds it anew, to tables of its own; how many are remembered is bounded."""
    text = "SELECT sum(x) + $more FROM numbers"
    for rows, total in ((3, 4), (5, 11)):
        with duckdb.connect() as con:
            con.execute(f"CREATE TABLE numbers AS SELECT range AS x FROM range({rows})")
            statement = parsed(con, text)
            assert statement is parsed(con, text)
            assert con.execute(statement, {"more": 1}).fetchall() == [(total,)]
    with duckdb.connect() as con:
        assert statement is parsed(con, text), "the same for another connection"
        monkeypatch.setattr("tracekit.store.reader.MOST_STATEMENTS", len(_statements))
        parsed(con, "SELECT 'one more than are remembered'")
        assert len(_statements) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_few_rows_are_plain_and_more_are_a_table(threads: int, tmp_path: Path) -> None:
    con = connect([], threads=threads, memory_bytes=None, spill=tmp_path)
    text = "SELECT range AS place, 'p' || range AS name FROM range($count) ORDER BY place DESC"
    for count in (0, 1, 3):
        rows = store.rows_or_table(con, text, {"count": count}, 3)
        assert rows == [{"place": n, "name": f"p{n}"} for n in range(count - 1, -1, -1)]
    table = store.rows_or_table(con, text, {"count": 5000}, 3)
    assert isinstance(table, pa.Table)
    assert table.equals(store.arrow_table(con, text, {"count": 5000}))


def test_queries_beside_each_other_are_bound_once_and_say_nothing(run: Run) -> None:
    """DuckDB warns where a statement's rows become Arrow, which is how one sees that it was one."""
    text = "SELECT source_id, place FROM host_op ORDER BY place DESC, source_id"
    expected = store.arrow_table(run.con, text).to_pylist()
    assert len(expected) > 2

    def ask(_: int) -> list[list[dict[str, int]]]:
        con = store.beside(run.con)
        return [store.arrow_table(con, text).to_pylist() for _ in range(5)]

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with ThreadPoolExecutor(4) as pool:
            found = [rows for many in pool.map(ask, range(8)) for rows in many]
    assert said == []
    assert all(rows == expected for rows in found)
    con = store.beside(run.con)
    with pytest.warns(UserWarning, match="DB-API result"):
        warnings.simplefilter("always")
        store.arrow_table(con, text)


FREEING = """
import duckdb
from pathlib import Path
from tracekit.store import release_freed
def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
con = duckdb.connect(":memory:", config={"threads": 1})
con.execute("SET enable_progress_bar = false")
con.execute("CREATE TABLE t AS SELECT i, hash(i) AS h FROM range(2000000) s(i)")
before = resident_bytes()
con.execute("SELECT count(*) FROM (SELECT *, row_number() OVER (PARTITION BY h ORDER BY i) AS r "
            "FROM t) WHERE r > 0").fetchall()
kept = resident_bytes()
release_freed()
print(before, kept, resident_bytes(), *con.execute("SELECT count(*) FROM t").fetchone())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is read from /proc")
def test_what_queries_freed_goes_back_to_the_system_and_what_is_open_stays() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FREEING], capture_output=True, text=True, check=True
    )
    before, kept, now, rows_count = map(int, done.stdout.split())
    assert rows_count == 2_000_000
    if kept - before < 20 << 20:
        pytest.skip("this DuckDB keeps nothing of what its queries freed")
    assert now - before < (kept - before) / 2


@pytest.mark.parametrize("name", sorted(_ADDED))
def test_columns_that_runs_kept_before_lack_are_null(name: str) -> None:
    of = schema.table(name)
    old = [c for c in of.stored_columns if c.name not in _ADDED[name]]
    values = ", ".join(f"CAST(NULL AS {c.type}) AS {c.name}" for c in old)
    con = duckdb.connect()
    found = con.sql(_physical(of, {name: f"(SELECT {values})"}))
    assert found.columns == [c.name for c in of.stored_columns]
    assert len(found.fetchall()) == 1
