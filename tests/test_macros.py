"""Macros: their headers are parsed and proved, and every one is used."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest
from proofs import check_macro

import tracekit.queries
from tracekit import catalog, macros

FOLDER = Path(tracekit.queries.__file__).parent / "macros"
TEXT = """\
-- Steps.

-- long_steps: Steps that took longer than a limit, and rows beside them.
--
-- Why it
-- matters.
--
-- param: rows_name TABLE(step BIGINT) : Rows.
-- param: limit_ns BIGINT : Only longer ones,
--     in ns.
-- reads: step
-- columns: step BIGINT, dur_ns BIGINT
CREATE OR REPLACE MACRO long_steps(rows_name, limit_ns) AS TABLE
SELECT step, dur_ns FROM step SEMI JOIN query_table(rows_name) USING (step) WHERE dur_ns > limit_ns;
"""


def _macro(text: str = TEXT) -> macros.Macro:
    _, (macro,) = macros.parse("steps", text)
    return macro


@pytest.mark.parametrize("macro", macros.macros().values(), ids=lambda m: m.name)
def test_every_header_is_true_of_its_macro(macro: macros.Macro) -> None:
    assert check_macro(macro) == []


@pytest.mark.parametrize("macro", macros.macros().values(), ids=lambda m: m.name)
def test_every_macro_is_used(macro: macros.Macro) -> None:
    others = [m.sql for m in macros.macros().values() if m.name != macro.name]
    texts = [query.sql for query in catalog.queries()] + others
    assert any(re.search(rf"\b{macro.name}\(", text) for text in texts)


@pytest.mark.parametrize("macro", macros.macros().values(), ids=lambda m: m.name)
def test_no_parameter_has_the_same_value_everywhere(macro: macros.Macro) -> None:
    """What never varies is no parameter; a value that only one query asks for may be one."""
    texts = [query.sql for query in catalog.queries()]
    texts += [m.sql for m in macros.macros().values() if m.name != macro.name]
    code = [re.sub(r"--.*", "", text) for text in texts]
    calls = [
        re.split(r",\s*(?![^\[]*\])", given.strip())
        for text in code
        for given in re.findall(rf"\b{macro.name}\(((?:[^()]|\([^()]*\))*)\)", text)
    ]
    for index, param in enumerate(macro.params):
        values = {call[index].strip() for call in calls}
        is_constant = len(values) == 1 and re.fullmatch(r"'[^']*'|\d+", next(iter(values)))
        assert not is_constant or len(calls) == 1, (param.name, values)


def test_the_list_names_every_file_and_lines_are_short() -> None:
    assert sorted(macros.MACRO_FILES) == sorted(path.stem for path in FOLDER.iterdir())
    for path in FOLDER.iterdir():
        lines = path.read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if len(line) > 100] == []


def test_a_header_is_read_whole() -> None:
    macro = _macro()
    assert (macro.name, macro.subject, macro.reads) == ("long_steps", "steps", ("step",))
    assert macro.title == "Steps that took longer than a limit, and rows beside them."
    assert macro.why == "Why it matters."
    assert macro.params[1] == macros.MacroParam("limit_ns", "BIGINT", "Only longer ones, in ns.")
    assert macro.columns == (("step", "BIGINT"), ("dur_ns", "BIGINT"))
    assert check_macro(macro) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("columns: step BIGINT", "columns: step INTEGER", "declares"),
        ("reads: step\n", "reads: step, gpu_op\n", "declares that it reads gpu_op, and runs"),
        ("reads: step\n", "reads: gpu_op\n", "does not run on empty tables"),
        ("reads: step\n", "reads: steps\n", "reads steps, which is no table"),
        ("beside them.", "beside them", "the title is not a sentence"),
        ("TABLE(step BIGINT)", "TABLE(steps BIGINT)", "does not run on empty tables"),
    ],
)
def test_a_header_that_is_not_true_is_reported(old: str, new: str, problem: str) -> None:
    assert old in TEXT
    problems = check_macro(_macro(TEXT.replace(old, new, 1)))
    assert any(p.startswith(problem) for p in problems), problems


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("-- Steps.\n", "-- Steps.\n-- And more.\n"),
        ("-- long_steps: ", "-- other_steps: "),
        ("-- param: limit_ns BIGINT : Only longer ones,\n--     in ns.\n", ""),
        ("-- param: limit_ns BIGINT : ", "-- param: limit_ns : "),
        ("-- reads: step", "-- reads: step\n-- reeds: step"),
        ("-- columns: step BIGINT, dur_ns BIGINT\n", ""),
        ("-- reads: step", "-- returns: BIGINT : A value.\n-- reads: step"),
    ],
)
def test_a_malformed_header_is_an_error(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(ValueError, match="macros/steps"):
        _macro(TEXT.replace(old, new, 1))


def test_only_what_a_text_names_is_needed_with_what_that_names() -> None:
    assert macros.used_by("SELECT * FROM busy_time('t')") == {
        "busy_time",
        "merged_intervals",
        "stretch_starts",
    }
    assert macros.used_by("SELECT 1") == set()


def test_fields_are_named_once_or_not_at_all() -> None:
    con = duckdb.connect()
    for macro in macros.macros().values():
        if macro.subject == "fields":
            con.execute(macro.sql)
    rows = con.execute(
        "SELECT named_fields(f), named_field(f, 'a') FROM (VALUES "
        "(['a=1', 'b=x=y']), (['a=1', 'a=2']), (['b=1']), (CAST(NULL AS VARCHAR[]))) AS t(f)"
    ).fetchall()
    assert rows == [({"a": "1", "b": "x=y"}, "1"), (None, "1"), ({"b": "1"}, None), (None, None)]
