"""Selections of a run, and its rows and files in every format."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import tarfile
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from commands import ONE_RULE, Tracekit, assert_refused, start
from soaks import soak
from traces import BASE_NS, make_trace, write_trace

START_S = BASE_NS // 10**9


pytestmark = pytest.mark.usefixtures("elsewhere")


# ---------------------------------------------------------------- selections


@pytest.mark.parametrize(
    ("arguments", "rows"),
    soak(
        [
            ([], 12),
            (["--ranks", "1"], 6),
            (["--ranks", "0-1"], 12),
            (["--ranks", "0, 7-9"], 6),
            (["--hosts", "node0"], 12),
            (["--steps", "5-6"], 4),
            (["--steps", "5,10"], 4),
            (["--attempt", "1"], 12),
            (["--window", "0"], 12),
            (["--since", "2026-07-21T03:01:07.300Z"], 8),  # steps last 130 ms: 7 ends at 390 ms
            (["--until", "2026-07-21 03:01:07.300"], 6),
            (["--ranks", "1", "--steps", "5-6", "--window", "0"], 2),
        ],
        fast=[
            (["--hosts", "node0"], 12),
            (["--steps", "5,10"], 4),
            (["--until", "2026-07-21 03:01:07.300"], 6),
            (["--ranks", "1", "--steps", "5-6", "--window", "0"], 2),
        ],
    ),
)
def test_a_selection_leaves_out_the_rest(
    arguments: list[str], rows: int, tracekit: Tracekit, run: Path
) -> None:
    done = tracekit("query", run, "step_time", "--format", "jsonl", *arguments)
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == rows
    counted = tracekit("sql", run, "SELECT count(*) FROM step", "--format", "csv", *arguments)
    assert counted.out.splitlines()[1] == str(rows)


@pytest.mark.parametrize(
    ("arguments", "there"),
    soak(
        [
            (["--ranks", "9"], "there are ranks 0-1"),
            (["--ranks", f"5-{10**30}"], "there are ranks 0-1"),
            (["--hosts", "node7, node8"], "there is host node0"),
            (["--hosts", "it's"], "there is host node0"),
            (["--steps", "900-910"], "there are steps 5-10"),
            (["--attempt", "2"], "there is attempt 1"),
            (["--window", "1"], "there is capture window 0"),
            (["--since", str(START_S + 10)], "the files cover 2026-07-21T03:01:07"),
            (["--until", "0"], "the files cover 2026-07-21T03:01:07"),
            (["--since", "2", "--until", "1"], "run backwards"),
            (["--ranks", ""], "--ranks: nothing is given"),
            (["--hosts", " , "], "--hosts: nothing is given"),
        ],
        fast=6,
    ),
)
def test_a_selection_of_nothing_says_what_there_is(
    arguments: list[str], there: str, tracekit: Tracekit, run: Path
) -> None:
    for command in (["diagnose", run], ["query", run, "step_time"], ["sql", run, "SELECT 1"]):
        done = tracekit(*command, *arguments)
        assert (done.code, done.out) == (2, "")
        assert there in done.err
        assert "\nhint: " in done.err


def test_a_diagnosis_of_a_part_ends_well(tracekit: Tracekit, run: Path) -> None:
    done = tracekit("diagnose", run, "--steps", "6", "--format", "json")
    assert done.code == 0
    verdict = json.loads(done.out)["verdict"]
    assert verdict["kind"] in ("not_enough_data", "unexplained")
    assert verdict["finding"] is None


# ---------------------------------------------------------------- formats and outputs


SQL = """SELECT * FROM (VALUES
    (1, 'a,b', 0.5, true, [1, 2]), (NULL, '=1+1', 'nan'::DOUBLE, false, NULL)
) AS t(n, s, x, b, l) ORDER BY n"""


def test_rows_as_a_table(tracekit: Tracekit, run: Path) -> None:
    assert tracekit("sql", run, SQL).out.splitlines() == [
        "n  s       x  b    l",
        "-  ----  ---  ---  ------",
        "1  a,b   0.5  yes  [1, 2]",
        "-  =1+1  nan  no   -",
        "(2 rows)",
    ]


def test_rows_as_csv_cannot_be_formulas(tracekit: Tracekit, run: Path) -> None:
    out = tracekit("sql", run, SQL, "--format", "csv").out
    assert list(csv.reader(io.StringIO(out))) == [
        ["n", "s", "x", "b", "l"],
        ["1", "a,b", "0.5", "true", "[1, 2]"],
        ["", "'=1+1", "nan", "false", ""],
    ]


@pytest.mark.parametrize("format_", ["json", "jsonl"])
def test_rows_as_json_hold_no_nan(format_: str, tracekit: Tracekit, run: Path) -> None:
    out = tracekit("sql", run, SQL, "--format", format_).out
    rows = json.loads(out) if format_ == "json" else [json.loads(x) for x in out.splitlines()]
    assert rows == [
        {"n": 1, "s": "a,b", "x": 0.5, "b": True, "l": [1, 2]},
        {"n": None, "s": "=1+1", "x": None, "b": False, "l": None},
    ]


STRANGE = """SELECT make_timestamp_ns(1) AS t, 'infinity'::DATE AS d, ['-infinity'::TIMESTAMP] AS l,
    {'a': 'nan'::DOUBLE, 'b': ['inf'::DOUBLE, 1.5]} AS s, '10000-01-01'::TIMESTAMP AS far,
    [make_timestamp_ns(1500000000000000001)] AS n, NULL::DATE AS nothing, 1 AS x, 2 AS x"""


@pytest.mark.parametrize("format_", ["json", "jsonl"])
def test_what_python_or_json_cannot_hold_is_text_or_null(
    format_: str, tracekit: Tracekit, run: Path
) -> None:
    done = tracekit("sql", run, STRANGE, "--format", format_)
    assert done.code == 0, done.err
    found = json.loads(done.out, parse_constant=pytest.fail)
    assert (found[0] if format_ == "json" else found) == {
        "t": "1970-01-01 00:00:00.000000001",
        "d": "infinity",
        "l": ["-infinity"],
        "s": {"a": None, "b": [None, 1.5]},
        "far": "253402300800000000 us since 1970",
        "n": ["2017-07-14 02:40:00.000000001"],
        "nothing": None,
        "x": 1,
        "x_1": 2,
    }


@pytest.mark.parametrize("format_", ["table", "csv", "parquet"])
def test_every_format_takes_strange_times(format_: str, tracekit: Tracekit, run: Path) -> None:
    done = tracekit("sql", run, STRANGE, "--format", format_, "-o", "x.out")
    assert done.code == 0, done.err
    if format_ != "parquet":
        assert "infinity" in Path("x.out").read_text()


@pytest.mark.parametrize("format_", soak(["table", "csv", "json", "jsonl"], fast=["table"]))
def test_no_control_character_reaches_a_terminal(
    format_: str, tracekit: Tracekit, run: Path
) -> None:
    red = "\x1b[31m"
    statements = (
        f"""SELECT 'a{red}\u009b\u202e' AS "n{red}", ['{red}'] AS l""",
        f"SELECT error('{red}')",
        f'SELECT * FROM "{red}"',
        f"SELECT '{red}",
        f"SELECT '{red}'::INTEGER",
    )
    for statement in statements:
        done = tracekit("sql", run, statement, "--format", format_)
        assert done.code == (0 if statement is statements[0] else 2)
        assert (done.out or done.err).strip()
        assert all(c.isprintable() or c == "\n" for c in done.out + done.err)
        assert "Traceback" not in done.err


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process has")
def test_one_value_cannot_pass_the_memory_limit(tracekit: Tracekit, run: Path) -> None:
    done = tracekit("sql", run, "SELECT length(repeat('x', 3000000000))", "--memory", "256MB")
    assert (done.code, done.out) == (2, "")
    assert "Out of Memory" in done.err
    assert "hint: --memory" in done.err
    assert tracekit("sql", run, "SELECT length(repeat('x', 3000000))").code == 0


def test_what_a_killed_query_spilled_is_swept_later(tracekit: Tracekit, run: Path) -> None:
    many = "SELECT hash(range) AS h FROM range(300000000) ORDER BY h"
    killed = start("sql", run, many, "--memory", "100MB")
    left: list[Path] = []
    for _ in range(300):
        left = [p for p in (run / "tmp").rglob("*") if p.is_file()]
        if left or killed.poll() is not None:
            break
        time.sleep(0.1)
    killed.kill()
    killed.communicate(timeout=60)
    assert any(p.exists() for p in left)
    users_own = run / "tmp" / "spill"
    users_own.mkdir()
    assert tracekit("sql", run, "SELECT 1").code == 0
    assert list((run / "tmp").rglob("*")) == [users_own]


def test_rows_as_parquet_go_to_a_file_or_a_pipe(tracekit: Tracekit, run: Path) -> None:
    done = tracekit("sql", run, SQL, "--format", "parquet", "-o", "x.parquet")
    assert (done.code, done.out, done.err) == (0, "", "wrote x.parquet\n")
    assert pq.read_table("x.parquet").num_rows == 2
    with open("piped.parquet", "wb") as stream:  # noqa: PTH123  # a file as a process's stdout
        piped = start("sql", run, SQL, "--format", "parquet", stdout=stream)
        assert piped.wait(timeout=60) == 0
    assert Path("piped.parquet").read_bytes() == Path("x.parquet").read_bytes()


@pytest.mark.parametrize(
    "arguments",
    soak(
        [
            ["query", "RUN", "step_time", "--format", "csv"],
            ["sql", "RUN", "SELECT 1", "--format", "json"],
            ["sql", "RUN", "SELECT 1", "--format", "parquet"],
            ["diagnose", "RUN", *ONE_RULE],
            ["diagnose", "RUN", *ONE_RULE, "--format", "json"],
            ["job", "RUN"],
        ],
        fast=[
            ["sql", "RUN", "SELECT 1", "--format", "parquet"],
            ["diagnose", "RUN", *ONE_RULE, "--format", "json"],
        ],
    ),
)
def test_an_output_is_overwritten_only_by_force(
    arguments: list[str], tracekit: Tracekit, run: Path
) -> None:
    arguments = [str(run) if a == "RUN" else a for a in arguments]
    out = Path("out")
    done = tracekit(*arguments, "-o", out)
    assert (done.code, done.out) == (0, "")
    whole = out.read_bytes()
    out.write_text("mine")
    assert_refused(tracekit(*arguments, "-o", out), "out: exists", hint="--force")
    assert out.read_text() == "mine"
    assert tracekit(*arguments, "-o", out, "--force").code == 0
    assert out.read_bytes() == whole
    assert_refused(tracekit(*arguments, "-o", Path().absolute(), "--force"), "not a file")


@pytest.mark.parametrize(
    "arguments",
    [["diagnose", "SLOW", "--job"], ["diagnose", "SLOW", "--config"], ["sql", "RUN", "-f"]],
)
@pytest.mark.parametrize("given", ["pipe", "/dev/zero"])
def test_a_pipe_that_nobody_writes_to_and_a_device_end_at_once(
    tracekit: Tracekit, run: Path, slow: Path, tmp_path: Path, arguments: list[str], given: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    at = str(tmp_path / "pipe") if given == "pipe" else given
    names = {"RUN": str(run), "SLOW": str(slow)}
    done = tracekit(*(names.get(a, a) for a in arguments), at)
    assert done.code == (0 if (given, arguments[-1]) == ("pipe", "--config") else 2)
    assert given == "pipe" or "/dev/zero" in done.err


def test_sql_comes_from_an_argument_a_file_or_stdin(
    tracekit: Tracekit, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("q.sql").write_text("SELECT 7 AS n -- a comment\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 7 AS n"))
    for arguments in (["SELECT 7 AS n;"], ["-f", "q.sql"], ["-"]):
        assert tracekit("sql", run, *arguments, "--format", "csv").out == "n\n7\n", arguments


@pytest.mark.slow  # whole commands, of which others take the same way
def test_names_from_files_cannot_steer_the_terminal(tracekit: Tracekit, tmp_path: Path) -> None:
    document = make_trace(0, world_size=1)
    document["traceEvents"][5]["name"] = "\x1b[2J\x1b]0;owned\x07\u202eevil"
    trace = write_trace(tmp_path / "rank\x1b[31m\x07\u202e0.json", document)
    damaged = trace.with_name("\x1b[31m\x07\u202e1.json")
    damaged.write_bytes(b'{"schemaVersion": 1, "traceEvents": [\x00')
    archive = tmp_path / "\x07.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(damaged, "\x1b[31m\x07\u202e/2.json")
    for arguments in (
        ["sources", trace],
        ["sources", trace, "--json"],
        ["ingest", trace, "--run", tmp_path / "run"],
        ["diagnose", trace, "--all"],
        ["diagnose", trace, "--format", "json"],
        ["sql", trace, "SELECT name FROM host_op"],
        ["sql", trace, "SELECT name FROM host_op", "--format", "json"],
        ["sql", trace, "SELECT no_such FROM source"],
        ["query", trace, "kernel_summary"],
        ["cache"],
        ["diagnose", tmp_path / "none\x1b[31m\x07\u202e\nhint: x.json"],
        ["ingest", archive, "--run", tmp_path / "\x07run"],
        ["diagnose", damaged, trace, *ONE_RULE],
        ["sql", trace, "SELECT \x07\u202e FROM source"],
        ["sql", trace, "SELECT 1", "-o", "no\x07\u202e/folder"],
        ["explain", "no\x07\u202e"],
        ["capture", "un\x07\u202e", "--what"],
        ["\x07\u202e"],
    ):
        done = tracekit(*arguments)
        said = done.out + done.err
        # What typer writes loses the colours of a stranger off a terminal, and nothing else.
        assert not {"\x1b", "\x07", "\u202e"} & set(said), arguments
        assert "\nhint: x.json" not in said
