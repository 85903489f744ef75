"""The page's section of recorded pairs, and whom a job's truth makes innocent."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import samples

from accuracy.prices import price
from accuracy.prices import table as prices_table
from accuracy.score import Named, Outcome
from accuracy.twins import (
    HEADING,
    PRICES,
    TWINS,
    Judged,
    Priced,
    Truths,
    cause_of,
    judge,
    keeping,
    named,
    put,
    table,
)
from tracekit.report import Report


def priced(pair: str, measured_ms: float, printed_ms: float | None) -> Priced:
    return Priced(pair, "slow-rank", (2,), measured_ms, printed_ms, "slow-host/2", True, True, 4.0)


def test_the_table_counts_what_is_close_and_what_is_far() -> None:
    faults = (priced("a", 100, 124), priced("b", 100, 61), priced("c", 100, None))
    lines = table([Judged("a", 120, 121, faults, ("late-rank/0",), ())])
    assert "Within 25% of the measured cost: 1 of 3 faults; within 40%: 2." in lines
    assert "| a | slow-rank | 2 | 100.0 | 124.0 | 1.24 | 4.0 | slow-host/2 | yes | yes |" in lines
    assert "| c | slow-rank | 2 | 100.0 | - | - | 4.0 | slow-host/2 | yes | yes |" in lines
    assert "| a | 120.0 | 121.0 | late-rank/0 | none |" in lines


def test_a_simulated_fault_has_the_price_of_the_finding_that_names_it() -> None:
    """A step of 1.25 s takes 1 s without: a fifth. Another rank's finding counts not."""
    where = {"ranks": [1], "hosts": [], "stages": [], "links": [], "groups": []}
    fault = {"fault": "slow-gpu", "where": where, "expected_rules": ["slow-gpu"],
             "allowed_rules": []}  # fmt: skip
    measured = {"step_s_with_fault": 1.25, "step_s_without_fault": 1.0}
    truth = {"world_size": 4, "faults": [fault], "measured": measured}
    ours = Named("slow-gpu", "major", "likely", (1,), (), (), True, False, 0.21)
    other = Named("slow-gpu", "major", "likely", (2,), (), (), False, False, 0.5)
    outcome = Outcome("slow-gpu", "ddp", 4, 7, truth, "culprit", (other, ours))
    found = price(outcome, "slow-gpu:2")
    assert (found.printed_ratio, found.is_close) == (0.21, True)
    assert found.measured_ratio == pytest.approx(0.2)
    unpriced = price(replace(outcome, named=(replace(ours, step_ratio=None),)), "slow-gpu:2")
    lines = prices_table([found, unpriced])
    assert "Within 15% of the measured price: 1 of 2." in lines
    assert "| slow-gpu:2 | ddp | 7 | 20.0% | 21.0% | 1.05 | slow-gpu |" in lines
    assert "| slow-gpu:2 | ddp | 7 | 20.0% | - | - | slow-gpu |" in lines


def test_a_new_page_keeps_the_section_that_another_program_wrote() -> None:
    older = put("# page\n", ["a table"], PRICES)
    page = put("# new\n", ["twins"], HEADING)
    assert keeping(page, older, PRICES) == put(page, ["a table"], PRICES)
    assert keeping(page, page, PRICES) == page


@pytest.mark.parametrize("ratio", [0.75, 1.0, 1.25])
def test_a_quarter_off_is_close(ratio: float) -> None:
    assert priced("a", 100, 100 * ratio).is_close


@pytest.mark.parametrize("ratio", [0.74, 1.26])
def test_more_than_a_quarter_off_is_not(ratio: float) -> None:
    assert not priced("a", 100, 100 * ratio).is_close


def test_the_section_replaces_its_older_self_and_nothing_else() -> None:
    page = "# Accuracy\n\n## Rules\n\nx\n"
    once = put(page, ["one"])
    assert once == f"# Accuracy\n\n## Rules\n\nx\n\n{HEADING}\n\none\n"
    assert put(once, ["two"]) == once.replace("one", "two")
    middle = f"# Accuracy\n\n{HEADING}\n\nold\n\n## Rules\n\nx\n"
    assert put(middle, ["new"]) == middle.replace("old", "new")


def test_a_cause_is_taken_out_by_its_place() -> None:
    truths = Truths().by_name
    assert {n: cause_of(f, t) for n, t in truths.items() for f in t["faults"][:1]}.items() >= {
        "ddp-slow-compute": "rank=2",
        "ddp-starved-link": "link=1",
        "moe-hot-expert": "rank=1",
    }.items()


@pytest.fixture(scope="module")
def report() -> Report:
    return samples.diagnosis(TWINS / "ddp-slow-compute")


def test_the_right_rank_is_priced(report: Report) -> None:
    truth = Truths().by_name["ddp-slow-compute"]
    found = judge(report, truth, {"rank=2": 3.0})
    (fault,) = found.faults
    top = next(f for f in report.findings if f.id == report.verdict.finding)
    assert top.impact.s_per_step is not None
    assert (fault.named_by, fault.is_verdict, fault.whatif_ms) == (top.id, True, 3.0)
    assert fault.printed_ms == pytest.approx(1000 * top.impact.s_per_step)
    assert (found.innocents, found.decoys) == ((), ())


def test_another_rank_would_be_innocent(report: Report) -> None:
    truth = copy.deepcopy(Truths().by_name["ddp-slow-compute"])
    truth["faults"][0]["where"]["ranks"] = [0]
    found = judge(report, truth, {"rank=0": "refused: why"})
    assert found.faults[0].named_by is None
    assert found.faults[0].printed_ms is None
    assert found.faults[0].refused == "refused: why"
    blamed = {f.id for f in report.findings if named(f, report).ranks == (2,)}
    assert blamed
    assert set(found.innocents) == blamed


def test_what_befalls_all_ranks_excuses_symptoms_only(report: Report) -> None:
    truth = copy.deepcopy(Truths().by_name["ddp-slow-compute"])
    truth["faults"][0]["where"]["ranks"] = [0, 1, 2, 3]
    explained = {f.id for f in report.findings if f.explained_by}
    blamed = {f.id for f in report.findings if named(f, report).ranks == (2,)}
    assert set(judge(report, truth, {}).innocents) == blamed - explained


def test_a_decoy_is_named_by_the_rules_that_its_truth_forbids(report: Report) -> None:
    truth = copy.deepcopy(Truths().by_name["ddp-slow-compute"])
    top = next(f for f in report.findings if f.id == report.verdict.finding)
    truth["decoys"] = [{"decoy": "jitter", "where": {}, "forbidden_rules": [top.rule]}]
    assert judge(report, truth, {}).decoys == (top.id,)
