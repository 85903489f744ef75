"""The stages of derive: what each reads and writes is what it says, and no name outlives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from msgspec.structs import replace

from tracekit import api, store
from tracekit.derive import run
from tracekit.derive.run import READS, derive
from tracekit.derive.stage import Done, Given, Stage, relations
from tracekit.schema import TABLES, table

RECORDED = Path(__file__).parents[1] / "fixtures" / "recorded" / "pp-1f1b-healthy"


def memory(tables: dict[str, pa.Table]) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    for name, rows in tables.items():
        con.register(name, rows)
    return con


def names(con: duckdb.DuckDBPyConnection) -> set[str]:
    """What SQL may name on a connection."""
    views = "SELECT view_name FROM duckdb_views() WHERE NOT internal"
    found = con.execute(f"{views} UNION SELECT table_name FROM duckdb_tables()").fetchall()
    return {name for (name,) in found}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, pa.Table]]:
    """A pipeline's traces, with a few counters beside them."""
    folder = tmp_path_factory.mktemp("stages")
    with api.ingest(RECORDED, run=folder / "run", workers=1) as opened:
        files = [f for f in opened.run.manifest.files if table(f.table).kind == "source"]
    con = store.open_physical(folder / "run", files, tables=READS)
    found = {name: con.sql(f"FROM {name}").to_arrow_table() for name in READS}
    con.close()
    at = found["annotation"]["start_ns"].combine_chunks()[0].as_py()
    for name, facts in (
        ("net_sample", {"node": "sw", "port": "p0", "counter": "tx_dropped_packets",
                        "kind": "cumulative"}),
        ("gpu_sample", {"node": "gpu-1", "nvml_index": 0, "counter": "power"}),
    ):  # fmt: skip
        rows = [
            {**facts, "source_id": 0, "place": i, "time_ns": at + i * 10**8, "counted": i * i}
            for i in range(50)
        ]
        found[name] = pa.Table.from_pylist(rows, table(name).arrow_schema())
    yield found


def test_each_derived_table_is_written_by_one_stage() -> None:
    written = Counter(name for stage in run.STAGES for name in stage.writes)
    assert written == Counter(t.name for t in TABLES if t.kind == "derived")


def test_a_stage_reads_what_it_declares_and_leaves_no_name(
    tables: dict[str, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def alone(stage: Stage) -> Stage:
        def on_its_own_tables(given: Given, done: Done) -> object:
            asked.append(stage.run)
            with memory({name: tables[name] for name in stage.reads}) as con:
                result = stage.run(replace(given, con=con), done)
                assert names(con) == set(stage.reads)
            return result

        return stage._replace(run=on_its_own_tables)

    with memory(tables) as con:
        expected = derive(con)
        assert names(con) == set(READS)
        monkeypatch.setattr(run, "STAGES", tuple(alone(s) for s in run.STAGES))
        found = derive(con)
    assert len(asked) == len(run.STAGES)
    assert found["pipeline_op"].num_rows and found["port"].num_rows and found["gpu"].num_rows
    assert {n: t.to_pylist() for n, t in found.items()} == {
        n: t.to_pylist() for n, t in expected.items()
    }


def test_a_stage_without_rows_to_ask_is_left_out_and_its_tables_are_empty(
    tables: dict[str, pa.Table],
) -> None:
    with memory(tables) as con:
        found = derive(con, filled=set(READS) - {"net_sample"})
    for name in ("port", "counter_step", "network_correlation", "counter_clock"):
        assert found[name].equals(table(name).arrow_schema().empty_table())


def test_names_go_when_their_block_fails() -> None:
    rows = pa.table({"n": [1, 2]})

    def fail(con: duckdb.DuckDBPyConnection) -> Any:
        with relations(con, derive_given=rows) as named:
            named.make("derive_made", "SELECT n + 1 AS n FROM derive_given")
            assert con.execute("SELECT sum(n) FROM derive_made").fetchall() == [(5,)]
            named.make("derive_broken", "SELECT n FROM nowhere")

    with memory({}) as con:
        for _ in range(2):
            with pytest.raises(duckdb.CatalogException):
                fail(con)
            assert names(con) == set()
