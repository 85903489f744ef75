"""What holds for every rule: documented, configurable, and honest about what is not built."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest

from tracekit.errors import UsageError
from tracekit.report.judgement import LIMITS
from tracekit.rules import NAMES, RULES, configured, explain, rule, topic_of
from tracekit.rules.base import Facts, Rule
from tracekit.rules.declared import DOC_HEADINGS, Effect
from tracekit.rules.docs import rules_page
from tracekit.rules.unbuilt import not_built, unbuilt_rules
from tracekit.schema import UNIT_SUFFIXES

DESIGN_RULES = """
slow-gpu thermal-throttle power-brake gpu-memory-fault gpu-contention gpu-outlier pcie-degraded
nvlink-fault slow-host host-pause unequal-work numa-misplacement dataloader-stall gc-pause
recompile launch-bound sync-stall
offload-bound allocator-stall false-dependency low-mfu sequence-imbalance stage-imbalance
excess-bubble hot-expert checkpoint-stall storage-interference exposed-communication
latency-bound-communication late-rank collective-hang collective-mismatch nccl-socket-fallback
no-gpudirect shm-instead-of-p2p wrong-nic channel-collapse unsuitable-algorithm
tensor-group-spans-hosts cross-rail-traffic traffic-mismatch init-straggler config-mismatch bad-node
link-degraded pfc-storm slow-receiver ecn-congestion incast ecmp-collision packet-loss nic-error
fabric-misconfigured first-failure periodic-stall step-drift restart-loss slow-startup
profiler-overhead
""".split()  # noqa: SIM905  # kept as the design has it, to be compared by eye
ROOT = Path(__file__).parents[2]
each_rule = pytest.mark.parametrize("each", RULES, ids=lambda r: r.name)


@each_rule
def test_one_name_runs_through_module_rule_and_test(each: Rule) -> None:
    module = each.name.replace("-", "_")
    assert each.evaluate.__module__ == f"tracekit.rules.{module}"
    tests = (Path(__file__).parent / f"test_{module}.py").read_text()
    assert each.name in tests
    assert "\ndef test_" in tests


@each_rule
def test_its_docstring_has_every_heading_in_order(each: Rule) -> None:
    lines = each.doc.splitlines()
    assert [line for line in lines if line in DOC_HEADINGS] == list(DOC_HEADINGS)


@each_rule
def test_each_threshold_ends_in_its_unit_and_has_a_reason(each: Rule) -> None:
    units = (*UNIT_SUFFIXES, "_mads")
    for name, reason in each.thresholds.reasons.items():
        assert name.endswith(units), name
        assert reason


@each_rule
def test_nothing_at_all_is_not_checked_and_never_a_finding(each: Rule) -> None:
    outcome = each.run(Facts())
    assert not outcome.findings
    assert [n.rule for n in outcome.not_checked] == [each.name]


@each_rule
def test_explain_prints_the_rule_and_its_thresholds(each: Rule) -> None:
    text = explain(each.name)
    assert text.startswith(f"{each.name}: ")
    assert all(name in text for name in each.thresholds.reasons)


def test_every_rule_of_the_design_is_built_or_listed_as_not_built() -> None:
    built = [r.name for r in RULES]
    named = [*built, *unbuilt_rules()]
    assert len(set(named)) == len(named)
    assert set(DESIGN_RULES) <= set(named)


def test_what_no_rule_looks_for_is_named_with_what_settles_it_by_hand() -> None:
    assert [n.rule for n in not_built()] == list(reversed(unbuilt_rules()))
    assert all((n.capture or "").startswith("by hand") for n in not_built())


def test_a_rule_has_a_topic_or_is_its_own() -> None:
    assert topic_of("false-dependency") == "queues of the device"
    assert topic_of("packet-loss") == "links, packet loss, pause"
    assert topic_of("gc-pause") == "gc-pause"


TOPS = ("tracekit", "ingest", "dashboards")


def names_in(path: Path) -> set[str]:
    """Rules that string constants of a file name, alone or as a list; prose may."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = [
        n.value.split()
        for n in ast.walk(tree)
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]
    return {word for words in texts if set(words) <= set(NAMES) for word in words}


def test_the_name_of_a_rule_stands_in_its_own_file_and_in_the_list_alone() -> None:
    """What one rule is to another, or to the report, it declares by itself: a new rule is one
    file. The simulator knows what its faults should be found as, as tests do."""
    listed = ROOT / "tracekit/rules/__init__.py"
    found: dict[str, set[str]] = {}
    for path in (p for top in TOPS for p in (ROOT / top).rglob("*.py")):
        if path != listed and "simulate" not in path.parts:
            found[str(path.relative_to(ROOT))] = names_in(path) - {path.stem.replace("_", "-")}
    assert not {path: names for path, names in found.items() if names}
    assert names_in(listed) == set(NAMES)  # it finds what there is


def test_what_a_rule_sees_some_rule_makes_and_the_other_way_round() -> None:
    made = {e for r in RULES for e in (*r.explains, *r.absorbs)}
    seen = {e for r in RULES for e in (*r.symptom_of, *((r.sees,) if r.sees else ()))}
    assert made == seen == set(get_args(Effect))
    for r in RULES:
        assert not {*r.explains, *r.absorbs} & {*r.symptom_of}, f"{r.name} explains itself"
        assert not {*r.absorbs} & {r.sees}


def test_thresholds_can_be_set_and_a_wrong_one_is_refused() -> None:
    (changed,) = configured({"gc-pause": {"min_step_ratio": 0.5}}, select=["gc-pause"])
    assert getattr(changed.thresholds, "min_step_ratio") == 0.5  # noqa: B009  # base type has none
    with pytest.raises(UsageError, match="no threshold"):
        configured({"gc-pause": {"min_ratio": 0.5}})
    with pytest.raises(UsageError, match="must be a number"):
        configured({"gc-pause": {"min_step_ratio": "half"}})
    with pytest.raises(UsageError, match="whole number"):
        configured({"gc-pause": {"episodes_count": 2.5}})


def test_rules_can_be_selected_and_ignored_and_a_misspelt_name_is_corrected() -> None:
    assert [r.name for r in configured(select=["gc-pause"])] == ["gc-pause"]
    assert "gc-pause" not in [r.name for r in configured(ignore=["gc-pause"])]
    with pytest.raises(UsageError) as error:
        rule("gc-pauses")
    assert error.value.hint == "did you mean gc-pause?"
    with pytest.raises(UsageError, match="not built yet"):
        rule("false-dependency")


def test_the_rules_page_is_current() -> None:
    page = ROOT / "docs" / "rules.md"
    assert page.read_text(encoding="utf-8") == rules_page(LIMITS)
