"""What is made of a run before it is asked, and what of its answers is kept."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import grimp
import pytest

import tracekit
from soaks import soak
from tracekit import answers, api, cache, catalog, kept, macros, query_file
from tracekit.answers import MANY_ROWS, Answers
from tracekit.api import OpenRun
from tracekit.cli import main
from tracekit.dashboards import look
from tracekit.errors import QueryError
from tracekit.kept import FOLDER, Kept
from tracekit.runs import build
from tracekit.schema import TABLES
from tracekit.store import Selection, reader
from tracekit.target import Target

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "fixtures" / "recorded"


def made(run: OpenRun) -> tuple[set[str], set[str]]:
    """Logical tables, be they views or held in memory, and macros that a connection has by now."""
    con = run.run.prepare(())
    tables = con.execute("SELECT table_name FROM information_schema.tables").fetchall()
    macros = con.execute(
        "SELECT function_name FROM duckdb_functions() WHERE function_type LIKE '%macro' "
        "AND NOT internal"
    ).fetchall()
    logical = {name for (name,) in tables} & {t.name for t in TABLES} - {"source_context"}
    return logical, {name for (name,) in macros}


def test_only_what_the_queries_need_is_made() -> None:
    with tracekit.open(RECORDED / "ddp-gc-pause") as run:
        run.table("gc_pause")
        views, made_macros = made(run)
        assert views == set(catalog.find("gc_pause").reads) - {"source_context"}
        assert "host_stalls" in made_macros and "rank_compute" not in made_macros


def test_only_what_a_statement_names_is_made() -> None:
    with tracekit.open(RECORDED / "ddp-gc-pause") as run:
        assert run.rows("SELECT count(*) FROM HOST_op").to_pylist() != [{"count_star()": 0}]
        assert made(run) == ({"host_op"}, set())
        run.rows("SELECT count(*) FROM query_table('annotation')")
        assert made(run) == ({"host_op", "annotation"}, set())
        run.rows("SELECT * FROM Judged_Steps('steps')")
        views, made_macros = made(run)
        assert views >= set(macros.macros()["judged_steps"].reads)
        assert made_macros == macros.used_by("judged_steps")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT table_name FROM duckdb_tables() UNION ALL SELECT view_name FROM duckdb_views()",
        "SELECT table_name FROM information_schema.tables",
        "SELECT * FROM (SHOW TABLES)",
        "SELECT * FROM query_table('host' || '_op')",
    ],
)
def test_what_names_no_table_finds_all_of_them(text: str) -> None:
    with tracekit.open(RECORDED / "ddp-gc-pause") as run:
        assert run.rows(text).num_rows >= len(TABLES)
        assert made(run) == (
            {t.name for t in TABLES} - {"source_context"},
            set(macros.macros()),
        )


def test_a_wrong_name_is_told_with_those_that_are_like_it() -> None:
    with tracekit.open(RECORDED / "ddp-gc-pause") as run:
        with pytest.raises(QueryError, match=r"Did you mean .*collective"):
            run.rows("SELECT * FROM colective")
        with pytest.raises(QueryError, match=r"Did you mean .*judged_steps"):
            run.rows("SELECT * FROM juged_steps('steps')")


# ---------------------------------------------------------------- kept answers


def kept_files(run: Path) -> list[Path]:
    return sorted((run / "answers").glob("*"))


NARROW = ("exposed-communication",)
"""The rule of a report that takes a third as long to ask, where any will do."""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A run that was diagnosed once, the report, and that of ``NARROW``."""
    run = tmp_path_factory.mktemp("runs") / "run"
    api.ingest(RECORDED / "ddp-slow-rank", run=run).close()
    return run, told(run), told(run, select=NARROW)


@pytest.fixture
def run(asked: tuple[Path, str, str], tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(asked[0], tmp_path / "run"))


@pytest.fixture
def report(asked: tuple[Path, str, str]) -> str:
    return asked[1]


@pytest.fixture
def narrow(asked: tuple[Path, str, str]) -> str:
    return asked[2]


def told(run: Path, *, is_all_made: bool = False, **options: Any) -> str:
    """The report, without the run's name; ``is_all_made``: every view and macro comes first."""
    with tracekit.open(run) as opened:
        assert not is_all_made or opened.con
        opened.name, opened.target = "a run", Target(("run",))
        return str(opened.diagnose(**options).to_json())


def times_asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Queries that DuckDB is asked from now on."""
    names: list[str] = []
    execute, rows, few_rows = catalog.execute, catalog.rows, catalog.few_rows

    def counted(con: Any, query: query_file.Query, params: Any) -> Any:
        names.append(query.name)
        return execute(con, query, params)

    def counted_rows(con: Any, name: str, params: Any) -> Any:
        names.append(name)
        return rows(con, name, params)

    def counted_few(con: Any, name: str, *rest: Any) -> Any:
        names.append(name)
        return few_rows(con, name, *rest)

    monkeypatch.setattr(catalog, "execute", counted)
    monkeypatch.setattr(catalog, "rows", counted_rows)
    monkeypatch.setattr(catalog, "few_rows", counted_few)
    return names


@pytest.mark.slow
def test_a_report_is_the_same_whatever_was_made_before(
    run: Path, report: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(run / "answers")
    names = times_asked(monkeypatch)
    assert told(run, is_all_made=True) == report
    assert names


def test_what_many_queries_read_of_a_small_run_is_held_in_memory(
    run: Path, report: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A larger run's stays in its files, for the same report; so does what one query reads."""

    def kind(opened: OpenRun) -> str:
        found = opened.run.prepare(()).execute(
            "SELECT table_type FROM information_schema.tables WHERE table_name = 'gpu_op'"
        )
        return str(found.fetchall()[0][0])

    with tracekit.open(run) as opened:
        opened.rows("SELECT count(*) FROM gpu_op")
        assert kind(opened) == "VIEW"
    bytes_count, rows_count = reader.IN_MEMORY_BYTES, reader.IN_MEMORY_ROWS
    for limits, expected in (
        ((bytes_count, rows_count), "BASE TABLE"), ((0, rows_count), "VIEW"),
        ((bytes_count, 10), "VIEW"),
    ):  # fmt: skip
        for name, limit in zip(("IN_MEMORY_BYTES", "IN_MEMORY_ROWS"), limits, strict=True):
            monkeypatch.setattr(reader, name, limit)
        shutil.rmtree(run / "answers")
        with tracekit.open(run) as opened:
            opened.name, opened.target = "a run", Target(("run",))
            assert str(opened.diagnose().to_json()) == report
            assert kind(opened) == expected


def test_named_queries_of_a_small_run_are_planned_briefly_and_statements_of_users_are_not(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are the same either way: see the report of a run that is held to be large, above."""
    setting = "SELECT current_setting('disabled_optimizers') AS left_out"
    seen: list[str] = []
    ask = reader.plain_rows

    def asked(con: Any, text: str, params: Any = None) -> list[dict[str, Any]]:
        seen.extend(str(row["left_out"]) for row in ask(con, setting))
        return ask(con, text, params)

    monkeypatch.setattr(catalog, "plain_rows", asked)
    shutil.rmtree(run / "answers")
    with tracekit.open(run) as opened:
        opened.answers.rows("step_time")
        assert "join_order" in seen[0].split(",") and "filter_pushdown" not in seen[0].split(",")
        assert opened.rows(setting).to_pylist() == [{"left_out": ""}]
    monkeypatch.setattr(reader, "IN_MEMORY_BYTES", 0)
    shutil.rmtree(run / "answers", ignore_errors=True)
    with tracekit.open(run) as opened:
        opened.answers.rows("step_time")
    assert seen[1:] == [""]


@pytest.mark.parametrize(
    ("is_held", "is_small"),
    soak(
        [(False, False), (False, True), (True, False), (True, True)],
        fast=[(True, False)],
    ),
)
def test_what_a_diagnosis_shared_is_the_same_for_whoever_asks_next(
    run: Path, is_held: bool, is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a small run its tables stay; of others, macros that read them are made anew: for who held
    the connection, or who asks."""
    monkeypatch.setattr(reader, "IN_MEMORY_BYTES", reader.IN_MEMORY_BYTES if is_small else 0)
    shutil.rmtree(run / "answers")
    defined = "SELECT macro_definition FROM duckdb_functions() WHERE function_name = 'host_work'"
    tables = "SELECT count(*) FROM duckdb_tables() WHERE table_name LIKE 'shared_%'"
    text = "SELECT count(*) FROM rank_compute()"
    with tracekit.open(run) as opened:
        alone = opened.table("straggler").to_pylist()
        counted = opened.rows(text).to_pylist()
    with tracekit.open(run) as opened:
        con = opened.con if is_held else opened.run.prepare(())
        opened.diagnose(select=NARROW)
        ((definition,),) = con.execute(defined).fetchall()
        assert ("shared_" in definition) == (is_small or not is_held)
        assert (con.execute(tables).fetchall() != [(0,)]) == is_small
        if is_held:
            assert con.execute(text).fetchall() == [tuple(counted[0].values())]
        assert opened.rows(text).to_pylist() == counted
        assert opened.table("straggler").to_pylist() == alone
        assert con.execute(text).fetchall() == [tuple(counted[0].values())]
        ((definition,),) = con.execute(defined).fetchall()
        assert ("shared_" in definition) == is_small


def test_what_queries_share_is_derived_by_whoever_asks_first_and_gone_after(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that is not small it is derived beside the queries that do not need it."""
    monkeypatch.setattr(reader, "IN_MEMORY_BYTES", 0)
    names = ("sync_stall", "overlap", "step_breakdown")
    tables = "SELECT table_name FROM duckdb_tables() WHERE table_name LIKE 'shared_%'"
    with tracekit.open(run) as opened:
        alone = {name: opened.table(name).to_pylist() for name in names}

    def asked(by_con: bool) -> dict[str, Any]:
        shutil.rmtree(run / "answers")
        with tracekit.open(run) as opened:
            ours = Answers(opened.run)
            with ours.sharing(names):
                con = opened.run.prepare(())
                assert con.execute(tables).fetchall() == []
                if by_con:
                    ours.con([])
                    assert con.execute(tables).fetchall() != []
                rows = dict(ours.each(names))
                assert ("shared_device_stretches",) in con.execute(tables).fetchall()
            assert con.execute(tables).fetchall() == []
            with ours.sharing(names[:1]):
                pass  # nobody asked
            assert con.execute(tables).fetchall() == []
            ours.save()
        return rows

    assert asked(by_con=False) == asked(by_con=True) == alone


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    soak(
        # A job of each layout.
        [
            "ddp-dataloader-stall",
            "ep-hot-expert",
            "fsdp-slow-rank",
            "pp-uneven-stages",
            "tp-healthy",
        ],
        fast=["ddp-dataloader-stall"],
    ),
)
def test_a_kept_answer_is_the_answer(job: str, tmp_path: Path) -> None:
    """Of every query, and so of the report, the replay's prices included."""
    api.ingest(RECORDED / job, run=tmp_path / "run").close()
    first = told(tmp_path / "run")
    # What completes a query's rows comes after.
    queries = [query for query in catalog.queries() if query.completed is None]
    with tracekit.open(tmp_path / "run") as opened:
        fresh = {query.name: opened.table(query.name).to_pylist() for query in queries}
        answers = Kept(opened.run)
        # A diagnosis takes rows from DuckDB as they are, a table's go through Arrow.
        asked = {q.name: rows for q in queries if (rows := answers.rows(q, {})) is not None}
        assert {len(rows) > 0 for rows in asked.values()} == {False, True}
        assert repr(asked) == repr({name: fresh[name] for name in asked})
        for query in queries:
            answers.add(query, {}, fresh[query.name])
        answers.save()
        again = Kept(opened.run)
        kept_rows = {query.name: again.rows(query, {}) for query in queries}
    assert {name: repr(rows) for name, rows in kept_rows.items()} == {
        name: repr(rows) for name, rows in fresh.items()
    }
    assert told(tmp_path / "run") == first


def test_the_second_diagnosis_asks_nothing(
    run: Path, report: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = times_asked(monkeypatch)
    monkeypatch.setattr(reader, "connect", None)  # who calls it fails
    assert told(run) == report
    assert not names


def sketch(figure: Any, name: str) -> str:
    """What a figure shows, without drawing it, which takes longer than to ask for it."""
    parts = ("get_text", "get_xydata", "get_path", "get_paths", "get_offsets", "get_array")
    shown = [(p, getattr(a, p)()) for a in figure.findobj() for p in parts if hasattr(a, p)]
    return f"{name} {zlib.crc32(repr(shown).encode())}"


@pytest.mark.slow  # whole commands, of which others take the same way
def test_what_a_page_shares_with_its_diagnosis_is_asked_there(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is the same, long answers or short; who expects it asks nothing twice, and of a
    second one nothing at all.

    Of the rules one suffices that derives what the page derives too.
    """
    monkeypatch.setattr(look, "inline_svg", sketch)
    pages = []
    for most, is_expected in ((MANY_ROWS, False), (MANY_ROWS, True), (0, True)):
        copy = tmp_path / f"{most}-{is_expected}"
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns(FOLDER))
        monkeypatch.setattr(answers, "MANY_ROWS", most)
        with tracekit.open(copy) as opened:
            opened.name, opened.target = "job", Target(("job",))
            if is_expected:
                opened.expect_page()
            report = opened.diagnose(select=("late-rank",))
            names = times_asked(monkeypatch)
            pages.append(opened.page(report))
        assert ("delay_matrix" in names) is not is_expected
        assert "step_breakdown" not in names
        if is_expected and most:
            names.clear()
            with tracekit.open(copy) as opened:
                opened.name, opened.target = "job", Target(("job",))
                pages.append(opened.page(opened.diagnose(select=("late-rank",))))
            assert not names
    assert len(set(pages)) == 1


def test_rules_and_thresholds_are_not_kept(run: Path, report: str) -> None:
    def rules(text: str) -> set[str]:
        return {f["rule"] for f in json.loads(text)["findings"]}

    assert "slow-host" in rules(report)
    assert "slow-host" not in rules(told(run, ignore=["slow-host"]))
    strict = {"rules": {"exposed-communication": {"min_exposed_ratio": 0.99}}}
    assert rules(report) - rules(told(run, config=strict)) == {"exposed-communication"}


def test_what_a_narrow_diagnosis_did_not_ask_the_next_one_does(
    run: Path, report: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(run / "answers")
    told(run, select=["gc-pause"])
    names = times_asked(monkeypatch)
    assert told(run) == report
    assert "straggler" in names and not {"gc_pause", "job_sources"} & set(names)


def test_another_selection_has_answers_of_its_own(run: Path, narrow: str) -> None:
    def of(**selected: Any) -> str:
        with tracekit.open(run, selection=Selection(**selected)) as opened:
            opened.name, opened.target = "a run", Target(("run",))
            return str(opened.diagnose(select=NARROW).to_json())

    part = of(ranks=((0, 1),))
    assert part != narrow
    assert len(kept_files(run)) == 2
    assert of(ranks=((0, 1),)) == part
    assert told(run, select=NARROW) == narrow


@pytest.mark.parametrize("what", ["another asker", "other tables"])
def test_what_answers_depend_on_makes_them_stale(
    what: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "other tables":
        monkeypatch.setattr(build, "derive_version", lambda: what)
    else:
        monkeypatch.setattr(kept, "_asker", lambda: what)
    names = times_asked(monkeypatch)
    told(run, select=NARROW)
    assert "step_breakdown" in names
    assert len(kept_files(run)) == 2


def damaged(body: bytes, what: str) -> bytes:
    """A file of answers that is not as it was written, or that somebody else wrote."""
    said = json.loads(body.partition(b"\n")[2])
    rows = said["rows"]
    if what == "cut":
        return body[:-100]
    if what == "flipped":
        return body[:2000] + bytes([body[2000] ^ 4]) + body[2001:]
    if what == "no JSON":
        return b"\x80\x04K\x01."
    if what == "deep":
        inner = b"[" * 100_000
        return b'{"crc32": %d}\n' % zlib.crc32(inner) + inner
    if what == "a column less":
        del rows["step_breakdown"][0]
    if what == "unequal columns":
        rows["step_breakdown"][0].pop()
    if what == "other types":
        rows["step_breakdown"][0][:] = ["a rank" for _ in rows["step_breakdown"][0]]
        said["figures"] = {name: {"a": "price"} for name in said["figures"]}
    if what == "no columns":
        said["rows"] = dict.fromkeys(rows, 7)
    if what == "a great number":
        rows["step_breakdown"][0][:] = [10**400 for _ in rows["step_breakdown"][0]]
    if what == "half a character":
        rows["job_sources"][1][:] = ["\ud800" for _ in rows["job_sources"][1]]
    if what == "a list":
        said = [said]
    inner = json.dumps(said).encode()
    return b'{"crc32": %d}\n' % zlib.crc32(inner) + inner


@pytest.mark.parametrize(
    "what",
    soak(
        [
            "cut",
            "flipped",
            "no JSON",
            "deep",
            "a column less",
            "unequal columns",
            "other types",
            "no columns",
            "a great number",
            "half a character",
            "a list",
        ],
        fast=["cut", "deep", "other types", "a great number", "a list"],
    ),
)
def test_damaged_answers_are_asked_again(
    what: str, run: Path, report: str, narrow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = kept_files(run)
    whole = file.read_bytes()
    file.write_bytes(damaged(whole, what))
    names = times_asked(monkeypatch)
    # Of the rules only the others read prices.
    select, expected = ((), report) if what == "other types" else (NARROW, narrow)
    assert told(run, select=select) == expected
    assert names
    names.clear()
    assert told(run, select=select) == expected  # and they are whole again
    assert not names


def test_nothing_is_written_where_nothing_may_be(run: Path, narrow: str) -> None:
    shutil.rmtree(run / "answers")
    run.chmod(0o555)
    try:
        assert told(run, select=NARROW) == narrow
        assert not (run / "answers").exists()
    finally:
        run.chmod(0o755)


def test_a_link_in_the_place_of_the_folder_is_not_followed(
    run: Path, narrow: str, tmp_path: Path
) -> None:
    shutil.rmtree(run / "answers")
    (tmp_path / "elsewhere").mkdir()
    (run / "answers").symlink_to(tmp_path / "elsewhere")
    assert told(run, select=NARROW) == narrow
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_pipe_in_the_place_of_the_file_is_not_read(run: Path, narrow: str) -> None:
    (file,) = kept_files(run)
    file.unlink()
    os.mkfifo(file)
    assert told(run, select=NARROW) == narrow


@pytest.mark.slow  # whole commands, of which others take the same way
def test_what_is_kept_is_bounded(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = len(kept_files(run)[0].read_bytes())
    monkeypatch.setattr(kept, "FILE_BYTES", whole // 2)
    monkeypatch.setattr(kept, "FILES_COUNT", 2)
    for asker in "abc":
        monkeypatch.setattr(kept, "_asker", asker.__str__)
        told(run, select=["gc-pause"])
    told(run)
    files = kept_files(run)
    assert len(files) == 2
    assert all(0 < file.stat().st_size <= whole // 2 + 64 for file in files)
    names = times_asked(monkeypatch)
    told(run)
    assert names and "job_attempts" not in names  # the long ones were left out


def test_a_cached_run_goes_with_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path))
    with tracekit.open(RECORDED / "ddp-gc-pause") as opened:
        opened.diagnose(select=["gc-pause"])
    assert kept_files(opened.path)
    (gone,) = cache.clear()
    assert not gone.left_count and not opened.path.exists()


def test_what_decides_about_an_answer_is_listed() -> None:
    """What the catalogue, the store and the replays import, but what decides about no row."""
    graph = grimp.build_graph("tracekit")
    found = {"tracekit.answers", "tracekit.kept"}
    for asker in ("catalog", "replays", "store"):
        found |= {f"tracekit.{asker}", *graph.find_upstream_modules(f"tracekit.{asker}")}
    no_difference = {
        "tracekit.arrays",  # columns as they are written
        "tracekit.errors",  # how it says no
        "tracekit.ranges",  # of ranks, in words
        "tracekit.values",  # rows as they are written
        "tracekit.wording",
    }
    below = {"tracekit." + s.removesuffix(".py").replace("/", ".") for s in kept.ASKED_SOURCES}
    assert {
        m for m in found if not any(m == b or m.startswith(f"{b}.") for b in below)
    } <= no_difference
    package = Path(tracekit.__file__).parent
    assert all((package / name).exists() for name in kept.ASKED_SOURCES)


def test_a_query_writes_kept_rows_as_it_writes_asked_ones(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def written(*words: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["query", str(run), *words])
        assert not end.value.code
        return capsys.readouterr().out

    ways = [
        ("overlap",),
        ("overlap", "--format", "csv"),
        ("job_ranks", "--format", "json"),
        ("overlap", "--param", "rounding=hta"),
        ("temporal_breakdown",),
        ("nccl_groups",),
    ]
    shutil.rmtree(run / "answers")
    asked = [written(*words) for words in ways]
    monkeypatch.setattr(reader, "connect", None)  # who calls it fails
    assert [written(*words) for words in ways] == asked
    assert asked[3] != asked[0]
