"""Recorded jobs with known faults, and files from the field: diagnosed whole, and judged.

What is known of a fixture stands in its truth.json, which the diagnosis never reads.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import samples
from failed_queries import says_how_its_cost_was_got

from soaks import soak
from tracekit import api, catalog
from tracekit.cli import main
from tracekit.errors import AmbiguousInputError
from tracekit.findings import Finding, Severity
from tracekit.report import Report
from tracekit.report.json import to_json
from tracekit.rules import RULES

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "fixtures" / "recorded"
SHARED = ROOT.parent / "shared" / "data"
CASES = sorted(p.parent.name for p in RECORDED.glob("*/truth.json"))
FEW = (
    "ddp-checkpoint",
    "ddp-dataloader-stall",
    "ddp-healthy",
    "ddp-slow-rank",
    "ep-hot-expert",
    "pp-uneven-stages",
)
"""What every run of the tests diagnoses: a job of each layout, and of each kind of cause."""
BUILT = {rule.name for rule in RULES}
BLAMING = {rule.name for rule in RULES if rule.names_culprit}


@pytest.mark.parametrize("case", ["ddp-dataloader-stall", "pp-uneven-stages"])
def test_queries_whose_tables_are_empty_find_nothing(case: str) -> None:
    """So that a diagnosis need not ask them; the job's derived tables are all filled."""
    with samples.opened(RECORDED / case) as run:
        idle = [q for q in catalog.queries() if catalog.finds_nothing(q, run.run.tables)]
        assert len(idle) >= 15
        assert {q.name: run.table(q.name).num_rows for q in idle} == {q.name: 0 for q in idle}
        assert not any(q.name in ("straggler", "overlap", "job_ranks") for q in idle)


@functools.cache
def truth(case: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RECORDED / case / "truth.json").read_text())
    return loaded


def diagnosis(case: str) -> Report:
    return samples.diagnosis(RECORDED / case)


def rules_of(case: str, kind: str) -> set[str]:
    return {rule for fault in truth(case)["faults"] for rule in fault[kind]}


FAULTY = [c for c in CASES if truth(c)["faults"]]
HEALTHY = [c for c in CASES if not truth(c)["faults"]]
FOUND = [c for c in FAULTY if rules_of(c, "expected_rules") & BUILT]
UNBUILT = [c for c in FAULTY if not rules_of(c, "expected_rules") & BUILT]


def test_there_are_healthy_cases_and_faults_that_a_rule_can_find() -> None:
    assert HEALTHY
    assert FOUND


@pytest.mark.parametrize("case", soak(CASES, fast=FEW))
def test_every_trace_of_a_recording_is_read_whole(case: str) -> None:
    traces = [i for i in diagnosis(case).document.inputs if i.kind == "kineto"]
    assert traces
    assert {(i.path, i.status) for i in traces if i.status != "ok"} == set()
    assert not [i.path for i in traces for issue in i.issues if issue.severity == "error"]


@pytest.mark.parametrize("case", soak(FOUND, fast=[c for c in FOUND if c in FEW]))
def test_the_fault_is_found_where_it_is_and_is_the_verdict(case: str) -> None:
    """The verdict may name an allowed cause behind the expected finding, at the same place."""
    report = diagnosis(case)
    for fault in truth(case)["faults"]:
        for name in set(fault["expected_rules"]) & BUILT:
            found = [f for f in report.findings if f.rule == name]
            assert [f.scope.ranks for f in found] == [tuple(fault["where"]["ranks"])]
            steps = {s for a, b in found[0].scope.steps for s in range(a, b + 1)}
            assert steps == set(fault["steps"])
        named = report.finding(report.verdict.finding or "")
        assert named is not None
        assert named.rule in {*fault["expected_rules"], *fault["allowed_rules"]}
        assert named.scope.ranks == tuple(fault["where"]["ranks"])
        assert report.verdict.kind in ("culprit", "configuration")


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("ddp-slow-rank", "PacedLinearBackward and PacedLinear take 2.0x at as many calls"),
        (
            "ddp-gc-pause-bare",
            "in `forward`, nothing recorded between the start of forward and aten::flatten: 156 ms "
            "in steps 9,11 (2 of 10), none on its peers",
        ),
        ("pp-uneven-stages", "more calls of PacedLinearBackward (16 a step, its peers 8)"),
    ],
)
def test_the_verdict_says_where_the_time_goes(case: str, words: str) -> None:
    assert words in diagnosis(case).verdict.sentence


@pytest.mark.parametrize("case", UNBUILT)
def test_a_fault_that_no_rule_knows_yet_blames_nobody_wrongly(case: str) -> None:
    report = diagnosis(case)
    right = rules_of(case, "expected_rules") | rules_of(case, "allowed_rules")
    if report.verdict.finding is not None:
        assert report.verdict.finding.partition("/")[0] in right
    else:
        assert report.verdict.kind in ("unexplained", "not_enough_data")
    unchecked = {n.rule for n in report.document.not_checked}
    assert rules_of(case, "expected_rules") <= unchecked


@pytest.mark.parametrize("case", soak(CASES, fast=FEW))
def test_nothing_serious_is_said_that_is_not_so(case: str) -> None:
    right = set(truth(case)["inherent_rules"])
    for kind in ("expected_rules", "allowed_rules", "symptom_rules"):
        right |= rules_of(case, kind)
    serious = {
        f.id
        for f in diagnosis(case).findings
        if f.severity.weight >= Severity.MAJOR.weight and f.rule not in right
    }
    assert serious == set()


@pytest.mark.parametrize("case", soak(HEALTHY, fast=[c for c in HEALTHY if c in FEW]))
def test_a_healthy_job_accuses_nobody(case: str) -> None:
    report = diagnosis(case)
    assert report.verdict.kind == "inherent"
    assert report.verdict.finding is None
    assert [f.id for f in report.findings if f.rule in BLAMING] == []
    assert "othing to fix" in report.to_text()


@pytest.mark.parametrize("case", soak(CASES, fast=FEW))
def test_every_cost_says_how_it_was_got(case: str) -> None:
    """In what programs read too: the same of the finding's JSON."""
    report = diagnosis(case)
    written = {f["id"]: f["impact"] for f in json.loads(to_json(report))["findings"]}
    for finding in report.findings:
        says_how_its_cost_was_got(finding)
        impact = finding.impact
        assert written[finding.id]["method"] == impact.method
        assert written[finding.id]["low_s_per_step"] == impact.low_s_per_step
        assert written[finding.id]["high_s_per_step"] == impact.high_s_per_step
        assert written[finding.id]["replay_error_ratio"] == impact.replay_error_ratio


@pytest.mark.parametrize("case", soak(CASES, fast=FEW))
def test_the_parts_of_a_step_add_up_to_it(case: str) -> None:
    document = diagnosis(case).document
    assert document.metrics.step_time is not None
    total = sum(p.s_per_step for p in document.step_budget)
    assert total == pytest.approx(document.metrics.step_time.mean_s, rel=0.02)
    assert all(p.s_per_step >= 0 for p in document.step_budget)


RIGHT_AND_LIED = ("dataloader-stall", "gc-pause")


def test_the_truth_is_never_read(tmp_path: Path) -> None:
    """Without it and with a lie in its place the diagnosis is the same but for its inputs: what
    the rule says that is right, and the one that the lie is about."""
    case = "ddp-dataloader-stall"
    folder = tmp_path / case
    shutil.copytree(RECORDED / case, folder)
    documents = []
    for change in ("a lie", "absent"):
        if change == "a lie":
            lie = (RECORDED / "ddp-gc-pause" / "truth.json").read_text()
            (folder / "truth.json").write_text(lie)
        else:
            (folder / "truth.json").unlink()
            (folder / "README.md").unlink()
        with api.open(folder) as run:
            document = json.loads(run.diagnose(select=RIGHT_AND_LIED).to_json())
        inputs = document.pop("inputs")
        assert len([i for i in inputs if i["kind"] == "kineto"]) == 4
        documents.append(document)
    assert documents[0] == documents[1]


@pytest.mark.parametrize("case", soak(CASES, fast=FEW))
def test_a_recorded_job_is_told_as_it_was(case: str) -> None:
    report = diagnosis(case)
    found = {f.rule: f for f in report.findings}
    explicable = set(truth(case)["inherent_rules"])
    for fault in truth(case)["faults"]:
        named = (*fault["expected_rules"], *fault["allowed_rules"])
        for rule in set(fault["expected_rules"]) & BUILT:
            assert list(found[rule].scope.ranks) == fault["where"]["ranks"]
            assert found[rule].severity.value in ("major", "critical")
            # A finer cause that the truth allows may lead, and must be of the same ranks.
            led = next(f for f in report.findings if f.id == report.verdict.finding)
            assert led.rule in named
            assert led.scope.ranks == found[rule].scope.ranks
        explicable |= {
            *fault["expected_rules"],
            *fault["allowed_rules"],
            *fault["symptom_rules"],
        }
        if not set(fault["expected_rules"]) & BUILT:
            # No rule for it yet: it must not pass for a healthy job.
            assert report.verdict.kind == "unexplained"
            (rank,) = fault["where"]["ranks"]
            assert f"ank {rank} seems to hold up the others" in report.verdict.sentence
    assert set(found) <= explicable
    if not truth(case)["faults"]:
        assert report.verdict.kind == "inherent"
        assert report.verdict.sentence.startswith("Nothing to fix")


@pytest.mark.parametrize(
    "case",
    soak(
        ["ddp-checkpoint", "ddp-dataloader-stall", "ddp-gc-pause", "ddp-gc-pause-stacks"],
        fast=["ddp-checkpoint", "ddp-dataloader-stall"],
    ),
)
def test_the_cost_is_what_the_recorder_measured(case: str) -> None:
    report = diagnosis(case)
    (fault,) = truth(case)["faults"]
    per_step = fault["measured"]["value"] * len(fault["steps"]) / report.document.run.steps_count
    assert report.findings[0].impact.s_per_step == pytest.approx(per_step, rel=0.05)
    budget = {p.finding: p.s_per_step for p in report.document.step_budget}
    assert budget[report.findings[0].id] == pytest.approx(per_step, rel=0.05)


# ---------------------------------------------------------------- who is blamed


def blamed(case: str) -> dict[str, Finding]:
    """Findings that say who is late, and behind what, by id."""
    rules = ("late-rank", "slow-gpu", "slow-host", "link-degraded", "packet-loss")
    return {f.id: f for f in diagnosis(case).document.findings if f.rule in rules}


def test_a_slow_rank_is_named() -> None:
    found = blamed("ddp-slow-rank")
    assert set(found) == {"late-rank/2", "slow-host/2"}
    assert found["late-rank/2"].impact.s_per_step == pytest.approx(0.089, rel=0.03)


def test_a_pause_that_no_trace_names_is_a_late_rank() -> None:
    found = blamed("ddp-gc-pause-bare")
    assert set(found) == {"late-rank/3"}
    assert found["late-rank/3"].scope.steps == ((9, 9), (11, 11))


def test_a_stall_of_input_explains_the_late_rank() -> None:
    found = blamed("ddp-dataloader-stall")
    assert set(found) == {"late-rank/1"}
    assert found["late-rank/1"].explained_by == ("dataloader-stall/1",)


# ---------------------------------------------------------------- files from the field

KINETO_SETS = ("megatron-tp8",)
STRANGERS = ("samples", "tracelens")
"""Folders of traces that are of different jobs: apart by years, machines and frameworks."""
OF_A_KIND = ("samples/resnet50", "tracelens/mi300_ddp", "tracelens/inference_vllm")
"""The oldest schema, another vendor's GPUs, and inference."""
LAB_HEALTHY = ("ddp-healthy", "fsdp-healthy", "moe-healthy", "pp-gpipe-healthy")
needs_shared = pytest.mark.skipif(
    not (SHARED / "kineto").is_dir(), reason="the real samples (../shared/data) are not here"
)


def kineto_files() -> list[str]:
    folder = SHARED / "kineto"
    return sorted(str(p.relative_to(folder)) for p in folder.glob("*/*.json*"))


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of diagnose."""
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


@needs_shared
@pytest.mark.parametrize("name", STRANGERS)
def test_traces_of_different_jobs_are_refused_with_their_names(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = told(capsys, SHARED / "kineto" / name)
    assert (code, out) == (2, "")
    files = [f for f in kineto_files() if f.startswith(f"{name}/")]
    assert len(files) > 1
    assert all(f"kineto/{file}" in err for file in files)
    assert "--attempt" in err


@needs_shared
@pytest.mark.parametrize(
    "name",
    soak(
        [*kineto_files(), *KINETO_SETS],
        # test_culprits.py holds the set to more.
        fast=[n for n in kineto_files() if n.startswith(OF_A_KIND)],
    ),
)
def test_every_real_trace_is_diagnosed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "megatron-tp8/" in name and "kineto_0" not in name:
        pytest.skip("its set is diagnosed as a whole")
    code, out, err = told(capsys, SHARED / "kineto" / name)
    assert (code, err) == (0, "")
    assert "VERDICT" in out
    assert len(out.splitlines()) <= 25


@pytest.mark.slow  # tests/cli has two jobs of small files
@needs_shared
def test_traces_of_many_jobs_are_candidates_and_each_can_be_diagnosed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = SHARED / "kineto" / "hta"
    code, out, err = told(capsys, folder)
    assert (code, out) == (2, "")
    assert "\nhint: " in err
    with pytest.raises(AmbiguousInputError) as caught:
        api.open(folder)
    attempts = [int(n) for n in re.findall(r"--attempt (\d+):", str(caught.value))]
    assert attempts == list(range(1, len(attempts) + 1))
    assert len(attempts) >= 5
    for attempt in attempts[:: len(attempts) - 1]:  # each takes a second
        code, out, _ = told(capsys, folder, "--attempt", attempt)
        assert code == 0
        assert "VERDICT" in out


@needs_shared
@pytest.mark.slow  # recorded healthy jobs stay, above, and one of the lab's in test_culprits.py
@pytest.mark.parametrize("name", LAB_HEALTHY)
def test_a_healthy_lab_job_has_nothing_to_fix(name: str) -> None:
    report = samples.diagnosis(SHARED / "lab" / name)
    assert [f.id for f in report.findings if f.rule in BLAMING] == []
    assert report.verdict.kind == "inherent"
    assert "othing to fix" in report.to_text()


@needs_shared
@pytest.mark.slow  # test_culprits.py holds the same jobs to more
@pytest.mark.parametrize(
    ("name", "ranks"),
    [("pp2dp2tp2-healthy", set()), ("ddp-badlink-host1", {1}), ("moe-hot-expert-rank1", {1})],
)
def test_a_lab_job_accuses_at_most_who_is_at_fault(
    name: str, ranks: set[int], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = told(capsys, SHARED / "lab" / name, "--format", "json")
    document = json.loads(out)
    assert code == 0
    accused = [f for f in document["findings"] if f["rule"] in BLAMING]
    assert {r for f in accused for r in f["scope"]["ranks"]} <= ranks
    if not ranks:
        assert document["verdict"]["finding"] is None
