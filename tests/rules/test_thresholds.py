"""What decides is a threshold of its rule or of the report: named, with a reason, to be set."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tracekit.derive import correlation
from tracekit.errors import UsageError
from tracekit.report import DiagnoseConfig, build_report
from tracekit.report.judgement import LIMITS
from tracekit.rules import Facts, configured, ports, rule
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.schema import UNIT_SUFFIXES

MakeJob = Callable[..., Any]
PACKAGES = ("rules", "report")
ROOT = Path(__file__).parents[2] / "tracekit"

PLAIN = {0, 1, 1e3, 1e6, 1e9}
"""Nothing, the only one, and powers of ten between units: they decide nothing by their size."""

UNDECIDED = {
    "two are the fewest that can be compared, or that anything can be between": """
        absent: len(others) < 2
        bad_node: len(row['hosts'] or ()) == 2
        channel_collapse: members[0].size < 2
        hot_expert: len(ranks) < 2
        launch_bound: len(paced) < 2
        search: len(members) < 2
        search: len(rows) < 2
        shared_place: len(below) < 2
        nccl_hang: len(did) > 2
        nccl_hang: len(members) < 2
        nccl_links: len(unordered) < 2
        pcie_degraded: len(hosts) < 2
        ras_hang: int(r['snapshots_count']) < 2
        ras_hang: int(r['snapshots_count']) >= 2
        sequence_imbalance: max((int(r['replicas_count']) for r in balance)) < 2
        slow_host: len(others) < 2
        slow_host: len(ranks) < 2
        stage_imbalance: len(stages) < 2
        heavy_stage: len(self.stages) == 2
        heavy_stage: len(stages) < 2
        traffic_mismatch: (spread or 1) < 2
        wrong_nic: len(listed) < 2
        fold: len(rivals) == 2
    """,
    "more than half: what most do is usual, and there is no second half": """
        allocator_stall: 2 * len(calls) > len(facts.steps)
        allocator_stall: 2 * len(emptying) > len(rows)
        facts: 2 * often > len(steps)
        checkpoint_stall: sum((1 for d in delays if d.stalls_ns)) <= len(delays) / 2
        fabric_misconfigured: usual[0][1] * 2 <= len(sizes)
        init_straggler: len(missing) > size // 2
        search: 1 < len(slow) <= len(rows) / 2
        search: len(slow) > len(compared) / 2
        launch_bound: 2 * sum((r.is_beside_comm for r in bound)) > len(bound)
        nccl_facts: 2 * count > counted.total()
        finding_words: 2 * len(of_them) <= document.run.steps_count
        unexplained: 2 * len(facts.job.broken_ranks) > len(facts.ranks)
        unexplained: 0 < 2 * len(slow) < len(steps)
    """,
    "how a number or a list is printed": """
        data_lines: len(facts.job.unread) > 2
        data_lines: len(others) > 2
        data_lines: len(paths) > 2
        recurrence: number % 100 in (11, 12, 13)
        stalls: max(lasted_ns) >= 2 * min(lasted_ns)
        html: len(parts) % 2 == 0
        text: max((len(r[4]) for r in rows))
        text: max(MIN_NAME_WIDTH, room - gaps - sum(widths) + widths[2])
        finding_words: abs(value) >= 0.001
        finding_words: value >= 10
        job_words: step_s * factor < 10
        job_words: step_s * factor < 100
        job_words: step_s >= 0.001
        text: ratio >= 0.0005
    """,
    "the first parts of a key": """
        stalls: key[:2] == previous[:2]
    """,
}
"""Comparisons with a number that is no choice, by what it is."""

CONSTANTS = {
    "the most that a finding or a report lists": """
        absent.MAX_NAMED stack_hang.MAX_NAMED  range_names.MAX_WORDS
        facts.MAX_CANDIDATES facts.MAX_PLACES facts.MAX_READINGS stalls.MAX_PLACES
        idle_pauses.MAX_NAMED
        html.MAX_INPUTS html.SHOWN_ISSUES html.SHOWN_RECORDS
        first_failure.MAX_NAMED
        cables.SHOWN_CABLES kernel_report.SHOWN_DEVICES
        ras_hang.MAX_HOSTS data_lines.SHOWN_NOTES history.SHOWN_EPISODES signals.SHOWN_ERRORS
        text.MAX_LINES text.SHOWN_FINDINGS job_words.SHOWN_BEYOND
        logged.MIN_WHOLE_RATIO logged.TIMES_RATIO
        unchecked.SHOWN_TOPICS unchecked.SHOWN_SOURCES unchecked.SHOWN_RULES
        text.MAX_UNCHECKED_LINES text.SHOWN_WORK text.MAX_WORK markdown.MAX_ROWS
        markdown.MAX_EVIDENCE notebook.MAX_ROWS
        model.SHOWN_CHARACTERS without_steps.MIN_SHOWN_SHARE
        without_steps.MAX_STATED
    """,
    "what a foreign list may hold": "numa_misplacement._MAX_CPUS",
    "the page": """
        html.MIN_PART_WIDTH
        page.INDENT page.MIN_WIDTH text.MIN_SCOPE_WIDTH text.MIN_COST_WIDTH text.MIN_NAME_WIDTH
        job_words.MAX_WORK_NAME
    """,
    "units, versions and physics": """
        gpu_contention.GIB packet_loss.PACKET_BYTES gloo_rings.SEGMENT_BYTES
        price.JOULES_PER_KILOWATT_HOUR
        price.SECONDS_PER_HOUR logged.DAY_NS
        model.SCHEMA_VERSION
    """,
    "what a table was made with": "ports.MIN_RHO",
    "the middle of what is not known": "gloo_rings.UNKNOWN_RATIO",
    "what a printed figure can tell": "benchmarks.MIN_RATED_BYTES_PER_S",
    "what counts as equal": "build.ROUNDING_RATIO steps.SAME_RATIO",
}
"""Names of modules for a number, by what it is."""


def _has_choice(node: ast.AST) -> bool:
    return any(
        isinstance(n, ast.Constant) and type(n.value) in (int, float) and n.value not in PLAIN
        for n in ast.walk(node)
    )


def _deciding(tree: ast.AST) -> Iterator[ast.AST]:
    """Comparisons, least and most of several, and thresholds that a finding states."""
    for node in ast.walk(tree):
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if isinstance(node, ast.Compare) or (is_call and node.func.id in ("min", "max")):  # type: ignore[attr-defined]  # a call
            yield node
        elif isinstance(node, ast.keyword) and node.arg == "threshold":
            yield node.value


def literals(text: str) -> set[str]:
    """The expressions of a module in which a number of its own decides."""
    return {ast.unparse(place) for place in _deciding(ast.parse(text)) if _has_choice(place)}


def constants(text: str) -> set[str]:
    """The module's names for a number, written out or reckoned."""
    return {
        target.id
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Constant, ast.BinOp))
        for target in node.targets
        if isinstance(target, ast.Name)
        and any(isinstance(n, ast.Constant) and type(n.value) in (int, float)
                for n in ast.walk(node.value))
    }  # fmt: skip


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def test_a_number_that_decides_stands_in_no_comparison() -> None:
    """A new one is made a threshold; or it is no choice, and listed here with what it is."""
    seen = {f"{path.stem}: {text}" for path in modules() for text in literals(path.read_text())}
    known = {line.strip() for part in UNDECIDED.values() for line in part.strip().splitlines()}
    assert seen == known


def test_a_number_that_decides_has_no_name_but_a_thresholds() -> None:
    seen = {f"{path.stem}.{name}" for path in modules() for name in constants(path.read_text())}
    assert seen == {name for part in CONSTANTS.values() for name in part.split()}


@pytest.mark.parametrize(
    "text",
    ["x = a < 0.5 * b", "x = min(0.75, a)", "if len(rows) < 3: pass", "Evidence(threshold=0.3)"],
)
def test_what_is_looked_for_is_found(text: str) -> None:
    assert literals(text)


def test_what_a_comparison_may_hold() -> None:
    assert not literals("x = a <= limits.max_ratio * b > 0 and max(0.0, ns / 1e9) >= 1")
    assert constants("GIB = 2.0**30\nNAME = 'x'\nMAX = 3\nKINDS = (1, 2)") == {"GIB", "MAX"}


def test_what_the_correlation_was_held_against_is_what_its_table_was_made_with() -> None:
    assert ports.MIN_RHO == correlation.MIN_RHO


# --- and tracekit.toml reaches it ---------------------------------------------------------------


def set_to(text: str) -> DiagnoseConfig:
    return DiagnoseConfig.from_mapping(tomllib.loads(text))


def test_thresholds_of_the_report_have_units_and_reasons_too() -> None:
    for name, reason in LIMITS.reasons.items():
        assert name.endswith(tuple(UNIT_SUFFIXES)), name
        assert reason


def test_a_threshold_does_not_change_and_has_a_reason() -> None:
    with pytest.raises(AttributeError, match="do not change"):
        LIMITS.max_hidden_ratio = 0.5  # type: ignore[misc]  # what is tested
    changed = LIMITS.replaced("[report]", {"max_hidden_ratio": 0.5})
    assert (changed.max_hidden_ratio, LIMITS.max_hidden_ratio) == (0.5, 0.01)
    assert changed != LIMITS == type(LIMITS)()
    with pytest.raises(TypeError, match="no_such"):
        type(LIMITS)(no_such=1)  # type: ignore[call-arg]  # what is tested
    with pytest.raises(TypeError, match="min_s: no reason"):
        type("Unreasoned", (Thresholds,), {"__annotations__": {"min_s": float}, "min_s": 1.0})


def test_thresholds_of_several_bases_come_in_their_order() -> None:
    class One(Thresholds):
        low_s: float = threshold(1.0, "one")
        high_s: float = threshold(9.0, "one")

    class Two(Thresholds):
        low_s: float = threshold(2.0, "two")

    class Both(One, Two):
        high_s: float = threshold(8.0, "both")

    assert Both().values() == {"low_s": 1.0, "high_s": 8.0}
    assert Both.reasons == {"low_s": "one", "high_s": "both"}
    assert Both.low_s == 1.0


def test_what_stalls_share_is_set_for_one_of_them(make_job: MakeJob) -> None:
    """Rank 1 stalls in every step, rank 2 in one of them."""
    job = make_job().stall("gc_pause", [1], range(2, 11), 30).stall("gc_pause", [1, 2], [1], 30)
    for text, ranks in (("", (1,)), ("[rules.gc-pause]\nmin_named_ratio = 0.1", (1, 2))):
        report = build_report(job.facts(), config=set_to(text))
        assert [f.scope.ranks for f in report.findings if f.rule == "gc-pause"] == [ranks]


def test_what_rules_over_ports_share_is_set_for_one_of_them() -> None:
    rows = [
        {
            **dict.fromkeys(("host_source", "direction", "priority", "queue", "lane", "attempt")),
            **{"node": "sw", "port": f"p{i}", "host": f"h{i}", "rank": i, "ranks": [i]},
            **{"is_on_host": False, "counter": "rx_pfc_storms", "interval_ns": 1e9, "source_id": 0},
            **{"intervals_count": 19, "coverage_ratio": 0.45, "growth": 5.0 if i else 0.0},
            **{"is_from_documentation": False, "place": i, "samples_count": 20},
        }
        for i in range(4)
    ]
    facts = Facts(rows={"port_counters": rows})
    (lacks,) = rule("pfc-storm").run(facts).not_checked
    assert "cover less than 50 % of it" in lacks.needs
    lower = "[rules.pfc-storm]\nmin_coverage_ratio = 0.4"
    (changed,) = configured(set_to(lower).thresholds, select=["pfc-storm"])
    assert all("cover less" not in n.needs for n in changed.run(facts).not_checked)


def test_the_verdicts_own_thresholds_are_set_under_report(make_job: MakeJob) -> None:
    facts = make_job(idle_ms=25).facts()
    assert build_report(facts).verdict.kind == "unexplained"
    calm = set_to("[report]\nmin_idle_ratio = 0.3")
    assert build_report(facts, config=calm).verdict.kind == "inherent"


def test_how_many_lost_kernels_hide_a_rank_is_set_under_report(make_job: MakeJob) -> None:
    rows = {"lost_kernels": [{"attempt": 1, "rank": 1, "lost_ratio": 0.05}]}
    facts = make_job().facts()
    facts = replace(facts, rows={**facts.rows, **rows})
    assert facts.without_lost(()).job.lost_ranks == {1}
    given = replace(facts, kernel_limits=set_to("[report]\nmax_hidden_ratio = 0.1").report)
    assert given.without_lost(()).job.lost_ranks == frozenset()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[report]\nmin_idle = 0.3", "has no threshold 'min_idle'"),
        ("[report]\nmin_steps_count = 1.5", "must be a whole number"),
        ("report = 3", "must hold thresholds"),
    ],
)
def test_a_threshold_that_the_report_has_not_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        set_to(text)
