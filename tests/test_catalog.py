"""The catalogue: headers are parsed, proved, and parameters taken or refused."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import duckdb
import msgspec
import pytest
from proofs import check_query
from source_tables import create_table

import tracekit
import tracekit.queries
from tracekit import catalog, query_file, sharing
from tracekit.errors import QueryError, UsageError

TEXT = """\
-- Steps that took longer than a limit.
--
-- Why it
-- matters.
--
-- reads: step
-- grain: attempt, step
-- param: limit_ns BIGINT = 100 : Only longer ones, in ns.
-- param: order VARCHAR = 'up' | 'down' : Which way,
--     told on two lines.
-- column: attempt INTEGER : Attempt.
-- column: step BIGINT : Step.
-- source: nowhere.
SELECT attempt, step FROM step WHERE dur_ns > $limit_ns AND $order <> '' ORDER BY attempt, step;
"""


def _query(text: str = TEXT) -> query_file.Query:
    return query_file.parse("steps/long_steps", text)


@pytest.mark.parametrize("query", catalog.queries(), ids=lambda q: q.name)
def test_every_header_is_true_of_its_query(query: query_file.Query) -> None:
    assert check_query(query) == []


@pytest.mark.parametrize("query", catalog.queries(), ids=lambda q: q.name)
def test_every_query_keeps_the_house_style(query: query_file.Query) -> None:
    assert max(len(line) for line in query.sql.splitlines()) <= 100
    assert "SELECT *" not in query.sql
    assert "ORDER BY" in query.sql.rpartition("\nFROM ")[2], "rows come in a stated order"


def test_the_list_names_every_file_once() -> None:
    root = Path(tracekit.queries.__file__).parent
    on_disk = {
        f"{p.parent.name}/{p.stem}" for p in root.glob("*/*.sql") if p.parent.name != "macros"
    }
    assert sorted(catalog.QUERY_FILES) == sorted(on_disk)
    names = [q.name for q in catalog.queries()]
    assert len(names) == len(set(names))


def test_a_header_is_read_whole() -> None:
    query = _query()
    assert query.title == "Steps that took longer than a limit."
    assert query.why == "Why it matters."
    assert (query.subject, query.name, query.reads) == ("steps", "long_steps", ("step",))
    assert query.grain == ("attempt", "step")
    assert query.params[0] == query_file.Param(
        "limit_ns", "BIGINT", 100, "Only longer ones, in ns."
    )
    assert query.params[1].choices == ("up", "down")
    assert query.params[1].doc == "Which way, told on two lines."
    assert query.columns[1] == query_file.QueryColumn("step", "BIGINT", "Step.")
    assert query.source == "nowhere."
    assert check_query(query) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("-- column: step BIGINT", "-- column: step INTEGER", "declares column step INTEGER"),
        ("-- column: attempt INTEGER : Attempt.\n", "", "grain attempt is no output column"),
        ("reads: step\n", "reads: step, gpu_op\n", "declares that it reads gpu_op, and runs"),
        ("reads: step\n", "reads: gpu_op\n", "does not run on empty tables"),
        ("reads: step\n", "reads: steps\n", "reads steps, which is no table"),
        ("$order <> ''", "$sort <> ''", "does not run on empty tables"),
        ("AND $order <> ''", "", "does not run on empty tables"),
        ("a limit.", "a limit", "the title is not a sentence"),
        ("-- Why it\n-- matters.\n", "", "there is no why paragraph"),
        ("SELECT attempt, step", "SELECT step, attempt", "columns are in another order"),
        ("-- param: limit", "-- asked: always\n-- param: limit", "is asked 'always'"),
        ("-- param: limit", "-- shows: device\n-- param: limit", "shows 'device', and not what"),
        ("-- param: limit", "-- shows: gpu\n-- param: limit", "shows 'gpu', and not what"),
    ],
)
def test_a_header_that_is_not_true_is_reported(old: str, new: str, problem: str) -> None:
    assert old in TEXT
    problems = check_query(_query(TEXT.replace(old, new, 1)))
    assert any(p.startswith(problem) for p in problems), problems


def strings_of(*modules: str) -> set[str]:
    """Names of queries that string constants of these modules are."""
    names = {q.name for q in catalog.queries()}
    root = Path(tracekit.__file__).parent
    paths = [p for module in modules for p in root.glob(f"{module}.py")]
    assert len(paths) >= len(modules)
    nodes = (n for p in paths for n in ast.walk(ast.parse(p.read_text(encoding="utf-8"))))
    return {n.value for n in nodes if isinstance(n, ast.Constant) and n.value in names}


def test_what_the_report_reads_is_asked_whichever_rules_run() -> None:
    """By its own modules, and by those that it shares with rules or that gate other queries."""
    asked = {q.name for q in catalog.queries() if q.is_for_report}
    own = strings_of("report/*")
    assert own and own <= asked
    shared = strings_of("diagnose", *(f"rules/{m}" for m in ("facts", "steps", "pipeline")))
    assert asked <= own | shared | strings_of("rules/low_mfu", "rules/ras_hang")


def test_what_is_of_a_device_has_its_rank_and_reads_it_or_says_so() -> None:
    of_device = {q.name: q.shows for q in catalog.queries() if q.is_of_device}
    assert of_device["sync_stall"] == "" and of_device["last_calls"] == "device"
    assert not of_device.keys() & {"group_bandwidth", "comm_summary", "gpu_counters", "step_time"}
    (query,) = (q for q in catalog.queries() if q.name == "sync_stall")
    problems = check_query(msgspec.structs.replace(query, shows="device"))
    assert problems == ["shows a device, as all do that read gpu_op"]


@pytest.mark.parametrize(
    "line",
    [
        "-- param: limit_ns BIGINT : no default",
        "-- column: step : no type",
        "-- reeds: step",
        "-- param: limit_ns BIGINT = many : no number",
    ],
)
def test_a_malformed_header_line_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="steps/long_steps"):
        _query(TEXT.replace("-- source: nowhere.", line))


def test_parameters_are_read_from_text_by_their_type() -> None:
    assert _query().bind({"limit_ns": "7"}) == {"limit_ns": 7, "order": "up"}
    flag = query_file.Param("flag", "BOOLEAN", False, "A flag.")
    assert flag.parse("true") is True
    assert query_file.Param("share", "DOUBLE", 0.5, "A share.").parse("0.25") == 0.25


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"limit": 7}, "did you mean limit_ns?"),
        ({"limit_ns": "seven"}, "its default is 100"),
        ({"limit_ns": True}, "its default is 100"),
        ({"order": "sideways"}, "one of: up, down"),
    ],
)
def test_a_parameter_that_cannot_be_meant_is_refused(given: dict[str, object], hint: str) -> None:
    with pytest.raises(UsageError) as error:
        _query().bind(given)
    assert error.value.hint == hint


def test_a_query_is_found_by_name_with_or_without_its_subject() -> None:
    assert catalog.find("overlap") is catalog.find("gpu/overlap")
    for wrong in ("overlp", "comm/overlap"):
        with pytest.raises(UsageError) as error:
            catalog.find(wrong)
        assert (error.value.hint or "").startswith("did you mean overlap")


def test_running_gives_the_declared_columns(con: duckdb.DuckDBPyConnection) -> None:
    create_table(con, "step", [{"rank": 0, "step": 4, "dur_ns": 7}, {"rank": 1}])
    table = catalog.run(con, "step_time")
    assert table.column_names == [c.name for c in catalog.find("step_time").columns]
    assert [row["dur_ns"] for row in table.to_pylist()] == [7, None]


def test_what_several_queries_derive_is_derived_once_and_is_the_same(
    con: duckdb.DuckDBPyConnection,
) -> None:
    calls = [
        {"source_id": r, "rank": r, "place": p, "op": "all_reduce", "timeline": "device",
         "start_ns": start, "dur_ns": 10, "clock_id": 0, "attempt": 1, "capture_id": 0}
        for r in (0, 1) for p, start in ((1, 0), (2, 60 + 40 * r), (3, 160))
    ]  # fmt: skip
    create_table(con, "collective", calls)
    create_table(
        con,
        "collective_match",
        [{"source_id": c["source_id"], "place": c["place"], "instance_id": c["place"],
          "call_index": c["place"], "is_trusted": True, "group_id": "g"} for c in calls],
    )  # fmt: skip
    create_table(con, "comm_group", [{"attempt": 1, "group_id": "g", "members_count": 2}])
    create_table(con, "rank", [{"attempt": 1, "rank": 0}, {"attempt": 1, "rank": 1}])
    names = ("straggler", "late_steps", "delay_matrix", "exposed_comm_by_op", "overlap")
    alone = {name: catalog.run(con, name).to_pylist() for name in names}
    assert alone["straggler"][1]["late_count"] == 1
    tables = "SELECT count(*) FROM duckdb_tables() WHERE table_name LIKE 'shared_%'"
    with sharing.shared(con, names):
        assert con.execute(tables).fetchall() == [(6,)]
        assert {name: catalog.run(con, name).to_pylist() for name in names} == alone
        with sharing.shared(con, names[1:]):
            assert {name: catalog.run(con, name).to_pylist() for name in names} == alone
        # What was made outside stays when an inner one ends.
        assert con.execute(tables).fetchall() == [(6,)]
        assert {name: catalog.run(con, name).to_pylist() for name in names} == alone
    assert con.execute(tables).fetchall() == [(0,)]
    assert {name: catalog.run(con, name).to_pylist() for name in names} == alone
    # One query alone shares nothing; what cannot be derived is left to the query to say.
    with sharing.shared(con, ["straggler"]):
        assert con.execute(tables).fetchall() == [(0,)]
    con.execute("DROP TABLE collective")
    with sharing.shared(con, names), pytest.raises(QueryError, match="straggler"):
        catalog.run(con, "straggler")


def test_what_needs_much_memory_is_derived_a_few_ranks_at_a_time_and_is_the_same(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three ranks of two steps; rank 1 takes twice as long. Its parts are those of all at once."""
    base = {"attempt": 1, "capture_id": 0, "thread": 1}
    ops, ranges, steps = [], [], []
    for rank in (0, 1, 2):
        own = {**base, "source_id": rank, "rank": rank}
        for number in (1, 2):
            start, dur = number * 1000, 200 if rank == 1 else 100
            steps.append({**own, "step": number, "start_ns": start, "dur_ns": 900})
            ops.append({**own, "place": number, "name": "aten::mm", "category": "operator",
                        "start_ns": start, "dur_ns": dur})  # fmt: skip
            ranges.append({**own, "place": 9 + number, "name": "load", "domain": "user",
                           "start_ns": start + 300, "dur_ns": dur})  # fmt: skip
    for step in steps:
        del step["thread"], step["source_id"]
    for name, rows in (("host_op", ops), ("annotation", ranges), ("step", steps)):
        create_table(con, name, rows)
    alone = catalog.run(con, "excess").to_pylist()
    assert {(row["rank"], row["name"]) for row in alone} >= {(1, "aten::mm")}
    tables = "SELECT table_name FROM duckdb_tables() WHERE table_name LIKE 'shared_%' ORDER BY 1"
    with sharing.shared(con, ["excess"]):
        assert con.execute(tables).fetchall() == []  # few events: nothing is gained
    monkeypatch.setattr(sharing, "MAX_EVENTS", 8)  # of two ranks
    assert sharing.parts_of(con) == [sharing.Part(0, 1), sharing.Part(2, 2)]
    with sharing.shared(con, ["excess"]):
        assert con.execute(tables).fetchall() == [("shared_loop_threads",), ("shared_time_spent",)]
        assert catalog.run(con, "excess").to_pylist() == alone
    assert con.execute(tables).fetchall() == []
    assert catalog.run(con, "excess").to_pylist() == alone


def test_every_query_gives_shared_macros_the_same_tables() -> None:
    for query in catalog.queries():
        for name, tables in sharing.SHARED_MACROS.items():
            for given in re.findall(rf"\b{name}\(([^)]*)\)", query.sql):
                assert tuple(re.findall(r"'(\w+)'", given)) == tables, (query.name, name)


def test_what_finds_nothing_has_the_same_columns(con: duckdb.DuckDBPyConnection) -> None:
    for query in catalog.queries():
        if query.needs:
            filled = {*query.reads, *query.needs}
            assert not catalog.finds_nothing(query, filled)
            assert catalog.finds_nothing(query, filled - {query.needs[-1]} | {"annotation:other"})
            assert catalog.no_rows(con, query).equals(catalog.run(con, query.name))
    problems = check_query(_query(TEXT.replace("-- grain", "-- needs: gpu_op\n-- grain", 1)))
    assert problems == ["needs gpu_op, which it does not read"]


def test_domains_count_where_they_are_known(con: duckdb.DuckDBPyConnection) -> None:
    query = catalog.find("gc_pause")
    tables = set(query.reads)
    assert not catalog.finds_nothing(query, tables)
    assert catalog.with_domains(con, tables - {"annotation"}) == tables - {"annotation"}
    con.execute("INSERT INTO annotation (domain) VALUES ('user'), ('user')")
    known = catalog.with_domains(con, tables)
    assert known == tables | {"annotation:user"}
    assert catalog.finds_nothing(query, known)
    con.execute("INSERT INTO annotation (domain) VALUES ('python_gc')")
    assert not catalog.finds_nothing(query, catalog.with_domains(con, tables))


def test_who_completes_a_query_is_one_of_a_closed_list() -> None:
    by = {q.name: q.completed for q in catalog.queries() if q.completed}
    assert by == {"straggler": "replay", "traffic": "job", "port_traffic": "job"}
    with pytest.raises(ValueError, match="completed by replay or job, not 'magic'"):
        _query(TEXT.replace("-- source: nowhere.", "-- completed: magic"))


def test_what_duckdb_refuses_is_a_query_error(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("DROP TABLE step")
    with pytest.raises(QueryError, match="step_time"):
        catalog.run(con, "step_time")


def test_a_table_takes_only_its_own_columns(con: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(UsageError, match="no column nonsense"):
        create_table(con, "step", [{"nonsense": 1}])


def test_declarations_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        _query().params[0].name = "other"  # type: ignore[misc]  # the point of the test
