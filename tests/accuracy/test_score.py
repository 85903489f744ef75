"""The bench's own arithmetic, and that its seeds are kept apart."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from accuracy import report
from accuracy.run import below_bar, options_of
from accuracy.score import Named, Outcome, Scores, is_right_place, score
from accuracy.suite import REPORTING_SEEDS, TUNING_SEEDS, build
from tracekit.simulate.catalogue import FAULTS


def truth(*faults: tuple[str, list[int]], slow_s: float = 1.2) -> dict[str, Any]:
    return {
        "world_size": 8,
        "layout": {"tp": 1, "pp": 2, "dp": 4, "ep": 1, "cp": 1},
        "faults": [
            {
                "fault": name,
                "where": {"ranks": ranks, "hosts": [], "stages": [], "links": [], "groups": []},
                "expected_rules": [name],
                "allowed_rules": [],
                "symptom_rules": ["late-rank"],
            }
            for name, ranks in faults
        ],
        "decoys": [],
        "inherent_rules": ["exposed-communication"],
        "measured": {"step_s_with_fault": slow_s, "step_s_without_fault": 1.0},
    }


def named(rule: str, *ranks: int, top: bool = True, severity: str = "major") -> Named:
    return Named(rule, severity, "likely", ranks, (), (), top, False)


def outcome(facts: dict[str, Any], *findings: Named, error: str | None = None) -> Outcome:
    label = "+".join(f["fault"] for f in facts["faults"]) or "none"
    return Outcome(label, "ddp", 8, 1, facts, "culprit", findings, error)


def one(*outcomes: Outcome) -> Scores:
    return score(outcomes, {"gc-pause", "slow-gpu"})


def test_right_cause_at_the_wrong_place_is_no_success() -> None:
    right = one(outcome(truth(("gc-pause", [2])), named("gc-pause", 2)))
    assert (right.top1, right.rules["gc-pause"].precision, right.rules["gc-pause"].recall) == (
        1,
        1,
        1,
    )
    wrong = one(outcome(truth(("gc-pause", [2])), named("gc-pause", 3)))
    assert (wrong.top1, wrong.cause_right) == (0, 1)
    assert (wrong.rules["gc-pause"].precision, wrong.rules["gc-pause"].recall) == (0, 0)
    both = one(outcome(truth(("gc-pause", [2])), named("gc-pause", 2, 3)))
    assert both.top1 == 0, "accusing an innocent too is wrong"


def test_a_set_that_holds_the_culprit_is_no_mistake_and_names_nobody() -> None:
    def held(*candidates: int) -> Scores:
        finding = Named(
            "gc-pause", "minor", "possible", (), (), ("g",), True, False, 0.1, candidates
        )
        return one(outcome(truth(("gc-pause", [2])), finding))

    found = held(0, 2, 4)
    assert (found.cause_right, found.top1) == (1, 0)
    assert (found.rules["gc-pause"].precision, found.rules["gc-pause"].recall) == (1, 0)
    for wrong in (held(0, 4), held(*range(8)), held()):
        assert wrong.rules["gc-pause"].precision == 0


def test_of_rules_that_may_each_name_a_fault_the_one_that_did_was_due() -> None:
    facts = truth(("gc-pause", [2]))
    facts["faults"][0]["expected_rules"] = ["gc-pause", "slow-gpu"]
    found = one(outcome(facts, named("slow-gpu", 2)))
    assert (found.rules["slow-gpu"].recall, found.rules["gc-pause"].due) == (1, 0)
    missed = one(outcome(facts, named("slow-gpu", 3)))
    assert (missed.rules["slow-gpu"].recall, missed.rules["gc-pause"].recall) == (0, 0)


def test_what_a_fault_costs_in_a_first_step_that_the_profiler_slows_is_not_its_price() -> None:
    facts = truth(("gc-pause", [2]), slow_s=1.2)
    facts["measured"] |= {
        "steady_step_s_with_fault": 1.01,
        "steady_step_s_without_fault": 1.0,
    }
    assert outcome(facts).cost_ratio == pytest.approx(0.01 / 1.01)
    assert one(outcome(facts)).single == 0
    facts["measured"]["steady_step_s_with_fault"] = 1.1
    assert one(outcome(facts)).single == 1


def test_only_the_verdict_counts_as_first() -> None:
    found = one(outcome(truth(("gc-pause", [2])), named("gc-pause", 2, top=False)))
    assert (found.top1, found.rules["gc-pause"].recall) == (0, 1)


def test_cheap_faults_need_not_be_named() -> None:
    assert one(outcome(truth(("gc-pause", [2]), slow_s=1.02))).single == 0


def test_what_strikes_before_the_steps_is_due_though_it_costs_none() -> None:
    facts = truth(("init-straggler", [2]), slow_s=1.0)
    found = score([outcome(facts, named("init-straggler", 2))], {"init-straggler"})
    assert (found.single, found.rules["init-straggler"].recall) == (0, 1)
    silent = score([outcome(facts)], {"init-straggler"})
    assert silent.rules["init-straggler"].recall == 0


def test_symptoms_and_inherent_rules_are_no_mistakes() -> None:
    found = one(
        outcome(
            truth(("gc-pause", [2])),
            named("gc-pause", 2),
            named("late-rank", 2, top=False),
            named("exposed-communication", top=False),
        )
    )
    assert set(found.rules) == {"gc-pause"}


def test_a_symptom_at_an_innocent_rank_is_a_mistake() -> None:
    late = named("late-rank", 5, top=False)
    found = one(outcome(truth(("gc-pause", [2])), named("gc-pause", 2), late))
    assert found.rules["late-rank"].precision == 0


def test_healthy_jobs_must_not_be_accused() -> None:
    found = one(outcome(truth(), named("slow-gpu", 1)), outcome(truth()))
    assert found.false_major == 0.5
    assert found.rules["slow-gpu"].precision == 0


def test_both_of_two() -> None:
    facts = truth(("gc-pause", [2]), ("slow-gpu", [5]))
    half = one(outcome(facts, named("gc-pause", 2)))
    assert half.both == 0
    whole = one(outcome(facts, named("gc-pause", 2), named("slow-gpu", 5, top=False)))
    assert whole.both == 1


def test_a_missing_rule_neither_passes_nor_fails() -> None:
    found = one(outcome(truth(("pfc-storm", [1]))))
    assert (found.single, found.top1) == (0, None)
    assert found.confusion["pfc-storm"] == {"(culprit)": 1}


def test_a_decoy_that_is_named_is_counted() -> None:
    facts = truth()
    facts["decoys"] = [
        {"decoy": "hidden-wait", "where": {"ranks": [3]}, "forbidden_rules": ["slow-gpu"]}
    ]
    assert one(outcome(facts, named("slow-gpu", 3))).decoys_named == 1
    assert one(outcome(facts, named("slow-gpu", 4))).decoys_named == 0


def test_stage_faults_are_placed_by_the_stage() -> None:
    facts = truth(("slow-gpu", []))
    fault = facts["faults"][0]
    fault["where"]["stages"] = [1]
    assert is_right_place(named("slow-gpu", 4, 5), fault, facts)
    assert not is_right_place(named("slow-gpu", 3), fault, facts)


def options(*extra: str) -> argparse.Namespace:
    return options_of(extra)


def test_figures_without_jobs_do_not_pass() -> None:
    assert len(below_bar(Scores(), options())) == 3
    good = Scores(single=10, culprit_right=10, healthy=100, pairs=5, pairs_both=4)
    assert below_bar(good, options()) == []
    assert below_bar(good, options("--min-both", "0.9")) != []
    good.errors = 1
    assert below_bar(good, options()) != []


def test_seeds_are_disjoint() -> None:
    tuning = {c.seed for c in build(TUNING_SEEDS, ["gc-pause"], healthy_per_seed=13)}
    reporting = {c.seed for c in build(REPORTING_SEEDS, ["gc-pause"], healthy_per_seed=13)}
    assert not tuning & reporting


def test_the_suite_covers_every_fault() -> None:
    cases = build(REPORTING_SEEDS[:1], ["gc-pause"])
    assert {f for c in cases for f in c.faults} == {f.name for f in FAULTS}
    assert all(8 <= c.ranks <= 64 for c in cases)


def test_the_report_says_what_is_missing() -> None:
    scores = one(outcome(truth(("gc-pause", [2])), named("gc-pause", 2)))
    recorded = [outcome(truth(("gc-pause", [1])), named("gc-pause", 1))]
    text = report.markdown(scores, recorded, REPORTING_SEEDS[:1], "report", ["gc-pause"])
    assert "| slow-gpu | rule slow-gpu is not built |" in text
    assert "| pfc-storm | - | - | - | - | **missing** |" in text
    assert "100.0% of 1" in text


@pytest.mark.parametrize("name", ["TUNING_SEEDS", "REPORTING_SEEDS"])
def test_seed_sets_are_not_empty(name: str) -> None:
    from accuracy import suite

    assert len(getattr(suite, name)) >= 100
