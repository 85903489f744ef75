"""What is made of a run before it is asked, and what of its answers is kept."""

from __future__ import annotations

from pathlib import Path

import tracekit
from tracekit import catalog, macros
from tracekit.api import OpenRun
from tracekit.schema import TABLES

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "fixtures" / "recorded"


def made(run: OpenRun) -> tuple[set[str], set[str]]:
    """Views and macros that a run's connection has by now."""
    con = run.run.prepare(())
    views = con.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    macros = con.execute(
        "SELECT function_name FROM duckdb_functions() WHERE function_type LIKE '%macro' "
        "AND NOT internal"
    ).fetchall()
    return {name for (name,) in views}, {name for (name,) in macros}


def test_only_what_the_queries_need_is_made() -> None:
    with tracekit.open(RECORDED / "ddp-gc-pause") as run:
        run.table("gc_pause")
        views, made_macros = made(run)
        assert views == set(catalog.find("gc_pause").reads) - {"source_context"}
        assert "host_stalls" in made_macros and "rank_compute" not in made_macros
        run.rows("SELECT count(*) FROM gpu_op")
        views, made_macros = made(run)
        assert views == {t.name for t in TABLES} - {"source_context"}
        assert made_macros == set(macros.macros())


def test_a_report_is_the_same_whatever_was_made_before() -> None:
    told = []
    for is_all_made in (False, True):
        with tracekit.open(RECORDED / "ddp-slow-rank") as run:
            if is_all_made:
                assert run.con
            told.append(run.diagnose().to_json())
    assert told[0] == told[1]
