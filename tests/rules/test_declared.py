"""A rule reads what it declares, and a query that failed is never "fine".

A fixture in tests/conftest.py asks every rule, in every test of this folder, again with each of its
queries failed; here are the tests of that, and of what a rule may read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from failed_queries import ask_with_each_query_failed
from msgspec.structs import replace

from tracekit import catalog
from tracekit.answers import Answers
from tracekit.diagnose import gather
from tracekit.errors import QueryError
from tracekit.findings import Finding, Impact, Scope, Severity, When, confidence_from
from tracekit.rules import RULES, Facts, JobFacts, Rule, RuleOutcome, rule
from tracekit.rules.facts import Row, UndeclaredQueryError
from tracekit.rules.outcome import lacking
from tracekit.rules.thresholds import Thresholds

RUN = Rule.run
PRODUCTION = vars(Rule)["undeclared"]
"""As it is before the fixtures of a session change it."""
each_rule = pytest.mark.parametrize("each", RULES, ids=lambda r: r.name)


class NoThresholds(Thresholds):
    """None."""


def made(evaluate: Callable[[Facts, Any], RuleOutcome], **options: Any) -> Rule:
    return Rule("made-up", "", "platform", NoThresholds(), ("one",), evaluate, **options)


def accusing(rank: int) -> RuleOutcome:
    finding = Finding(
        id=f"made-up/{rank}", rule="made-up", severity=Severity.MINOR, summary="", owner="platform",
        confidence=confidence_from(["peers"], ""), scope=Scope(ranks=(rank,)), impact=Impact(),
        when=When(), evidence=(),
    )  # fmt: skip
    return RuleOutcome(findings=(finding,))


FACTS = Facts(rows={"one": [{"rank": 3}], "spares": [{"rank": 3}]})


def test_what_is_made_of_rows_is_made_once_for_all_rules() -> None:
    made_of: list[list[int]] = []

    def ranks(rows: Sequence[Row]) -> int:
        made_of.append([int(r["rank"]) for r in rows])
        return len(rows)

    facts = replace(FACTS, rows={**FACTS.rows, "one": [{"rank": 3}, {"rank": 4}]})
    assert [facts.limited(["one"]).once("one", ranks) for _ in range(2)] == [2, 2]
    assert made_of == [[3, 4]]
    # Of other rows of the same query it is made anew.
    assert facts.limited(["one"]).without(["one"]).once("one", ranks) == 0
    with pytest.raises(UndeclaredQueryError, match="one"):
        facts.limited(["spares"]).once("one", ranks)


def test_what_a_rule_does_not_declare_it_cannot_read() -> None:
    undeclared = made(lambda facts, _: RuleOutcome() if facts.of("spares") else accusing(3))
    with pytest.raises(UndeclaredQueryError, match="spares"):
        RUN(undeclared, FACTS)


def test_in_production_such_a_rule_is_not_checked() -> None:
    said = lacking("made-up", "query spares, which the rule reads and does not declare")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rule, "undeclared", PRODUCTION)
        assert RUN(made(lambda facts, _: accusing(len(facts.of("spares")))), FACTS) == said


def test_what_is_made_of_undeclared_rows_is_closed_too() -> None:
    for name in ("steps", "hidden_ranks"):
        with pytest.raises(UndeclaredQueryError):
            getattr(FACTS.limited(["one"]), name)


def test_the_fixture_notices_a_query_that_spares_somebody_and_is_called_optional() -> None:
    spares = made(
        lambda facts, _: RuleOutcome() if facts.of("spares") else accusing(3),
        optional={"spares": "words"},
    )
    outcome = RUN(spares, FACTS)
    assert not outcome.findings
    with pytest.raises(AssertionError, match="accuses"):
        ask_with_each_query_failed(RUN, spares, FACTS, outcome)
    ask_with_each_query_failed(RUN, replace(spares, queries=("one", "spares")), FACTS, outcome)


def test_an_optional_query_that_failed_is_said_beside_the_findings() -> None:
    worded = made(lambda facts, _: accusing(3), optional={"words": "the words"})
    outcome = RUN(worded, replace(FACTS, unavailable={"words": "out of memory"}))
    assert outcome.findings
    assert [n.needs for n in outcome.not_checked] == ["query words (the words): out of memory"]


@each_rule
def test_each_query_that_fails_is_named_by_each_rule_that_reads_it(each: Rule) -> None:
    for query in each.needed:
        (said,) = each.run(Facts(unavailable={query: "out of memory"})).not_checked
        assert said.needs == f"query {query}: out of memory"


@each_rule
def test_each_query_that_a_rule_declares_exists(each: Rule) -> None:
    assert all(catalog.find(query) for query in each.reads)
    assert each.queries or each.optional


def test_a_query_is_not_spared_by_one_that_failed(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """expert_load is asked only where comm_summary shows exchanges: a failure shows nothing."""
    rows = catalog.rows
    asked: list[str] = []

    def fails(connection: Any, query: str, params: Any) -> Any:
        asked.append(query)
        if query == "comm_summary":
            raise QueryError("out of memory")
        return rows(connection, query, params)

    monkeypatch.setattr(catalog, "rows", fails)
    facts = gather(Answers(con), JobFacts())
    assert "comm_summary" in facts.unavailable
    assert {"expert_load", "standing"} <= set(asked)


def test_only_what_the_selected_rules_and_the_report_read_is_asked(
    con: duckdb.DuckDBPyConnection,
) -> None:
    asked = gather(Answers(con), JobFacts(), rules=[rule("gc-pause")]).rows.keys()
    assert "gc_pause" in asked
    assert not {"sync_stall", "straggler", "match_coverage"} & asked
    # What the report looks at by name is asked, whichever rules run.
    sources = (Path(__file__).parents[2] / "tracekit" / "report").glob("*.py")
    named = {q for s in sources for q in re.findall(r'facts\.of\("(\w+)"\)', s.read_text())}
    assert named and named <= asked
