"""The verdict: every kind, and the order in which they are considered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tracekit.findings import Candidates, Confidence, Evidence, Finding, Impact, Scope, Severity
from tracekit.report import DiagnoseConfig, InputFile, Report, Silence, build_report
from tracekit.report.build import in_order
from tracekit.report.links import link_symptoms
from tracekit.report.text import to_text
from tracekit.report.verdict import judge
from tracekit.rules import Facts

MakeJob = Callable[..., Any]


def report(job: Any, **known: Any) -> Report:
    return build_report(job.facts(**known))


def test_a_stall_of_some_ranks_is_a_culprit(make_job: MakeJob) -> None:
    found = report(make_job().stall("input_stall", [1], range(1, 11), 50))
    assert found.verdict.kind == "culprit"
    assert found.verdict.finding == "dataloader-stall/1"
    assert found.verdict.sentence.startswith("Rank 1 waits 50.0 ms for input in every step")


def test_a_stall_of_all_ranks_alike_is_the_configuration(make_job: MakeJob) -> None:
    found = report(make_job().stall("input_stall", range(4), range(1, 11), 50))
    assert found.verdict.kind == "configuration"
    assert found.verdict.finding == "dataloader-stall/all"


def test_all_ranks_but_one_with_a_broken_file_are_the_configuration_too(make_job: MakeJob) -> None:
    job = make_job().stall("input_stall", range(3), range(1, 11), 50)
    assert report(job).verdict.kind == "culprit"
    assert report(job, broken_ranks=frozenset({3})).verdict.kind == "configuration"
    alone = make_job().stall("input_stall", [0], range(1, 11), 50)
    assert report(alone, broken_ranks=frozenset({1, 2, 3})).verdict.kind == "culprit"


def test_a_minor_cause_does_not_lead_while_more_is_unexplained(make_job: MakeJob) -> None:
    minor = report(make_job().stall("gc_pause", [1], range(1, 11), 3))
    assert (minor.verdict.kind, minor.verdict.finding) == ("culprit", "gc-pause/1")
    idle = report(make_job(idle_ms=50).stall("gc_pause", [1], range(1, 11), 3))
    assert idle.verdict.kind == "unexplained"
    assert [f.id for f in idle.findings] == ["gc-pause/1"]


def test_a_healthy_job_has_nothing_to_fix(make_job: MakeJob) -> None:
    found = report(make_job())
    assert found.verdict.kind == "inherent"
    assert found.verdict.sentence.startswith("Nothing to fix: 100 ms a step;")
    assert found.findings == ()


def test_exposed_communication_alone_is_inherent_and_said(make_job: MakeJob) -> None:
    found = report(make_job(comm_ms=60))
    assert found.verdict.kind == "inherent"
    assert "60 % of it communication that nothing hides" in found.verdict.sentence


def test_a_launch_bound_program_is_a_configuration(make_job: MakeJob) -> None:
    found = report(make_job(idle_ms=40).launching())
    assert (found.verdict.kind, found.verdict.finding) == ("configuration", "launch-bound/all")


def test_waiting_for_ranks_without_a_trace_is_not_enough_data(make_job: MakeJob) -> None:
    found = report(make_job(comm_ms=30), world_size=8)
    assert found.verdict.kind == "not_enough_data"
    assert "4 ranks that it may be waiting for left no trace" in found.verdict.sentence
    assert found.notes.next_step == "profile ranks 4-7 in the same steps"


@pytest.mark.parametrize(("rule", "is_named"), [("cross-rail-traffic", True), ("gc-pause", False)])
def test_a_stated_cause_of_slow_communication_leads_where_ranks_left_no_trace(
    make_job: MakeJob, rule: str, is_named: bool
) -> None:
    """It is there whatever the absent ranks did; a pause of 3 ms is not why 30 ms are lost."""
    facts = make_job(comm_ms=30).stall("gc_pause", [1], range(1, 11), 3).facts(world_size=8)
    found = build_report(facts)
    (minor,) = (f for f in found.findings if f.rule == "gc-pause")
    verdict = judge(facts, [replace(minor, rule=rule)], found.document.step_budget, []).verdict
    assert verdict.kind == "not_enough_data"
    assert verdict.finding == (minor.id if is_named else None)
    assert "4 ranks that it may be waiting for left no trace" in verdict.sentence


def test_missing_ranks_of_a_job_that_does_not_wait_do_no_harm(make_job: MakeJob) -> None:
    found = report(make_job(), world_size=8)
    assert found.verdict.kind == "inherent"
    assert "on the 4 ranks traced" in found.verdict.sentence


def test_unequal_waiting_without_a_finding_is_unexplained(make_job: MakeJob) -> None:
    job = make_job()
    for step in job.steps:
        for rank in range(4):
            job.add(rank, step, "compute" if rank == 2 else "exposed_comm", 40)
    found = report(job)
    assert found.verdict.kind == "unexplained"
    assert found.verdict.sentence.startswith("Rank 2 seems to hold up the others, which wait 40")
    assert "it computes for 40.0 ms longer" in found.verdict.sentence


@pytest.mark.parametrize(("error_ms", "is_said"), [(41, True), (40, False), (None, False)])
def test_clocks_that_may_be_as_far_apart_as_a_rank_is_late_are_the_reason(
    make_job: MakeJob, error_ms: int | None, is_said: bool
) -> None:
    job = make_job()
    for step in job.steps:
        for rank in range(4):
            job.add(rank, step, "compute" if rank == 2 else "exposed_comm", 40)
    error_ns = None if error_ms is None else error_ms * 1_000_000
    row = {"op": "all_reduce", "message_bytes": 8, "group_id": "g", "calls_count": 1}
    times = {"exit_p10_ns": 0.0, "exit_p50_ns": 0.0, "group_transfer_p50_ns": 1.0}
    job.rows["exit_lateness"] = [
        row | times | {"rank": rank, "error_ns": error_ns if rank == 2 else 90_000_000}
        for rank in (2, 3)
    ]
    verdict = report(job).verdict
    assert verdict.kind == "unexplained"
    assert ("their clocks may be 41.0 ms apart" in verdict.sentence) == is_said
    assert ("No rule here found the reason" in verdict.sentence) != is_said


def test_who_seems_to_wait_less_may_have_lost_it_with_its_file(make_job: MakeJob) -> None:
    job = make_job(comm_ms=40)
    for step in job.steps:
        job.add(2, step, "exposed_comm", -40)
        job.add(2, step, "idle", 40)
    assert report(job).verdict.kind == "unexplained"
    assert report(job, broken_ranks=frozenset({2})).verdict.kind == "inherent"
    assert report(job, broken_ranks=frozenset({1})).verdict.sentence.startswith("Rank 2 seems")


def test_waiting_that_differs_gradually_is_no_sign_of_a_late_rank(make_job: MakeJob) -> None:
    job = make_job(ranks_count=8)
    for step in job.steps:
        for rank in range(8):
            job.add(rank, step, "exposed_comm", 5 * rank)
            job.add(rank, step, "compute", -5 * rank)
    assert report(job).verdict.kind == "inherent"


def test_a_rank_that_waits_least_now_and_then_is_chance(make_job: MakeJob) -> None:
    job = make_job(comm_ms=60)
    for step in (1, 2, 3, 4):
        job.add(2, step, "exposed_comm", -60)
        job.add(2, step, "compute", 60)
    assert report(job).verdict.kind == "inherent"


def test_an_idle_gpu_without_a_finding_is_unexplained(make_job: MakeJob) -> None:
    assert report(make_job(idle_ms=19)).verdict.kind == "inherent"
    found = report(make_job(idle_ms=21))
    assert found.verdict.kind == "unexplained"
    assert "idle 21 % of the 100 ms step" in found.verdict.sentence
    lost = report(make_job(idle_ms=21), broken_ranks=frozenset({0, 1, 2}))
    assert lost.verdict.kind == "not_enough_data"
    assert "the GPU is idle 21 % of the 100 ms step in what could be read" in lost.verdict.sentence
    some = report(make_job(idle_ms=21), broken_ranks=frozenset({0, 1}))
    assert some.verdict.kind == "unexplained"


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, "unexplained"),
        ({"severity": Severity.MINOR}, "inherent"),
        ({"explained_by": ("gc-pause/1",)}, "inherent"),
    ],
)
def test_a_major_finding_that_blames_nobody_is_not_nothing_to_fix(
    make_job: MakeJob, changed: dict[str, Any], kind: str
) -> None:
    found = replace(_note_of(make_job, "excess-bubble"), **{"severity": Severity.MAJOR, **changed})
    verdict = judge(make_job().facts(), [found], [], []).verdict
    assert verdict.kind == kind
    assert verdict.finding == (found.id if kind == "unexplained" else None)


def test_slow_steps_without_a_finding_are_unexplained(make_job: MakeJob) -> None:
    job = make_job(steps_count=20)
    for rank in range(4):
        for step in (4, 11):
            job.add(rank, step, "compute", 60)
    found = report(job)
    assert found.verdict.kind == "unexplained"
    assert "up to 160 ms where 100 ms is typical" in found.verdict.sentence
    assert "hold up" not in found.verdict.sentence


@pytest.mark.parametrize(
    ("steps", "said"),
    [((4, 11), "Steps 4,11 (2 of 20) take"), ((11,), "Step 11 (1 of 20) takes")],
)
def test_slow_steps_that_nothing_explains_are_named(
    make_job: MakeJob, steps: tuple[int, ...], said: str
) -> None:
    job = make_job(steps_count=20)
    for rank in range(4):
        for step in steps:
            job.add(rank, step, "compute", 120)
    job.rows["slow_steps"] = [slow_step(step, kind=None) for step in steps]
    sentence = report(job).verdict.sentence
    assert sentence.startswith(f"{said} up to 220 ms where 100 ms is typical")
    assert sentence.endswith("on average. No rule here found the reason.")


@pytest.mark.parametrize(
    ("more_ms", "given", "is_said"),
    [
        (27, {}, True),
        (26, {}, False),
        (30, {"calls_count": 2}, False),
        (30, {"collectives_count": 6}, False),
        (30, {"kind": None}, False),
    ],
    ids=["as many calls", "too little", "more calls", "more collectives", "nothing told"],
)
def test_hosts_that_all_compute_longer_for_as_many_calls_are_told(
    make_job: MakeJob, more_ms: int, given: dict[str, Any], is_said: bool
) -> None:
    said = "In steps 4,11 (2 of 20) every rank computes 1.3x as long or longer, with as many"
    parts = {"kind": "operator", "calls_count": 1, "usual_calls_count": 1, "part_ns": 1e6}

    def slowed(ranks: Sequence[int], **job: Any) -> Report:
        made = make_job(steps_count=20, idle_ms=0, **job)  # 90 ms computing
        for rank in range(made.ranks_count):
            for step in (4, 11):
                made.add(rank, step, "compute", more_ms if rank in ranks else 0)
                made.add(rank, step, "idle", 120 - (more_ms if rank in ranks else 0))
        made.rows["slow_steps"] = [slow_step(step, **{**parts, **given}) for step in (4, 11)]
        return report(made)

    on_hosts = slowed(range(4), measured_on="host")
    assert on_hosts.verdict.kind == "unexplained"
    assert (said in on_hosts.verdict.sentence) is is_said
    assert ("pidstat" in (on_hosts.notes.next_step or "")) is is_said
    assert said not in slowed(range(3), measured_on="host").verdict.sentence
    assert "every rank computes" not in slowed(range(4)).verdict.sentence
    alone = slowed(range(1), ranks_count=1, measured_on="host").verdict.sentence
    assert ("the rank computes 1.3x" in alone) is is_said


def silence(ms: float, **given: Any) -> dict[str, Any]:
    row = {"rank": 0, "timeline": "host", "kind": "pause", "path": "", "name": "between a and b"}
    return row | {"self_ns": ms * 1e6} | given


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([silence(30), silence(2)], "idle 40 % of the 100 ms step, 30.0 ms of it with nothing "
                                    "recorded between a and b (rank 0), and no rule"),
        ([silence(30, kind="range", name="load")], "nothing recorded in `load` (rank 0)"),
        ([silence(19)], "step, and no rule"),  # under half
        ([silence(30, kind="operator")], "step, and no rule"),
        ([silence(30, rank=3)], "step, and no rule"),  # not the rank that is shown
    ],
)  # fmt: skip
def test_idle_time_that_lies_in_one_place_is_told_with_it(
    make_job: MakeJob, rows: list[dict[str, Any]], says: str
) -> None:
    job = make_job(idle_ms=40, measured_on="host")
    job.rows["self_time"] = rows
    assert says in report(job).verdict.sentence
    on_gpu = make_job(idle_ms=40)
    on_gpu.rows["self_time"] = rows
    assert "of it with" not in report(on_gpu).verdict.sentence


def test_the_rank_that_the_others_wait_for_in_slow_steps_is_told(make_job: MakeJob) -> None:
    job = make_job(steps_count=20)
    for step in (4, 11):
        for rank in range(4):
            job.add(rank, step, "idle" if rank == 3 else "exposed_comm", 60)
    assert "In them rank 3 seems to hold up the others" in report(job).verdict.sentence


def slow_step(step: int, **given: Any) -> dict[str, Any]:
    row = {
        "attempt": 1, "capture_id": 0, "step": step, "over_ns": 60e6, "judged_steps_count": 20,
        "rank": 3, "kind": "pause", "path": "train", "name": "between a and b", "part_ns": 58e6,
        "calls_count": 1, "usual_calls_count": 0, "collectives_count": 5,
        "usual_collectives_count": 5,
    }  # fmt: skip
    return row | given


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, " In steps 4,8,12 (3 of 20, every 4th) rank 3 spends 58.0 ms more in `train`: nothing "
             "recorded between a and b. No rule here"),
        ({"rank": None, "kind": "operator", "path": "", "calls_count": 10, "usual_calls_count": 10},
         " In steps 4,8,12 (3 of 20, every 4th) all ranks spend 58.0 ms more: operator between a"
         " and b. No rule"),
        ({"kind": "operator", "calls_count": 60, "usual_calls_count": 10},
         "operator between a and b, 60 calls where 10 are usual (an evaluation, or more"),
        ({"kind": "operator", "calls_count": 2, "usual_calls_count": 1},
         "operator between a and b, 2 calls where 1 is usual (an evaluation, or more"),
        ({"kind": "operator", "calls_count": 14, "usual_calls_count": 10},
         "operator between a and b. No rule"),
        ({"kind": "operator", "name": "inductor_compile (dynamo_timed)"},
         "(dynamo_timed), 1 call where 0 are usual (the model is compiled). No rule"),
        ({"part_ns": 29e6}, "on average. No rule here found"),  # under half of the step's excess
        ({"kind": None}, "on average. No rule here found"),
        ({"kind": None, "collectives_count": 16, "usual_collectives_count": 0},
         " In steps 4,8,12 (3 of 20, every 4th) a rank makes 16 collective calls where none is "
         "usual (gradients or parameters that are exchanged every few steps). No rule"),
        ({"kind": None, "collectives_count": 16, "usual_collectives_count": 4},
         "where 4 are usual"),
        ({"kind": None, "collectives_count": 6}, "on average. No rule here found"),
    ],
)  # fmt: skip
def test_what_explains_slow_steps_is_told_with_its_rhythm(
    make_job: MakeJob, given: dict[str, Any], words: str
) -> None:
    job = make_job(steps_count=20)
    for rank in range(4):
        for step in (4, 8, 12):
            job.add(rank, step, "compute", 60)
    job.rows["slow_steps"] = [slow_step(step, **given) for step in (4, 8, 12)]
    assert words in report(job).verdict.sentence


@pytest.mark.parametrize(
    ("steps", "over_ns", "words"),
    [
        ((4, 8, 12), 50e6, "In steps 4,8,12 (3 of 20, every 4th) a recv of ranks 1,3 takes 50.0 ms "
                           "longer than usual after all of them called it: the network was slow"),
        ((4, 8, 12), 29e6, "on average. No rule here found"),  # under half of the steps' excess
        ((4,), 50e6, "on average. No rule here found"),  # of one of three slow steps
        ((5, 9, 13), 50e6, "on average. No rule here found"),  # in steps that are not slow
    ],
)  # fmt: skip
def test_a_call_that_takes_long_once_all_are_in_it_is_told(
    make_job: MakeJob, steps: tuple[int, ...], over_ns: float, words: str
) -> None:
    job = make_job(steps_count=20)
    for rank in range(4):
        for step in (4, 8, 12):
            job.add(rank, step, "exposed_comm", 60)
    job.rows["slow_steps"] = [slow_step(step, kind=None) for step in (4, 8, 12)]
    job.rows["slow_transfers"] = [
        {"attempt": 1, "capture_id": 0, "step": step, "op": "recv", "ranks": [1, 3],
         "over_ns": over_ns}
        for step in steps
    ]  # fmt: skip
    assert words in report(job).verdict.sentence


def rare(step: int, ms: float | None, **given: Any) -> dict[str, Any]:
    return {
        "attempt": 1, "capture_id": 0, "step": step, "rank": 0, "name": "evaluate",
        "range_ns": 90e6, "device_ns": None if ms is None else ms * 1e6, "steps_count": 3,
        "judged_steps_count": 20,
    } | given  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "is_told"),
    [
        ([rare(step, 50) for step in (4, 8, 12)], True),
        ([rare(step, 29) for step in (4, 8, 12)], False),  # under half of what they take longer
        ([rare(step, None) for step in (4, 8, 12)], False),
        ([rare(step, 50) for step in (5, 9, 13)], False),  # in steps that are not slow
    ],
)
def test_a_range_that_slow_steps_alone_have_is_told_with_its_time_on_the_device(
    make_job: MakeJob, rows: list[dict[str, Any]], *, is_told: bool
) -> None:
    job = make_job(steps_count=20)
    for rank in range(4):
        for step in (4, 8, 12):
            job.add(rank, step, "compute", 60)
    job.rows["slow_steps"] = [slow_step(step, kind=None) for step in (4, 8, 12)]
    job.rows["rare_ranges"] = rows
    document = report(job)
    verdict = document.verdict
    says = (
        "In steps 4,8,12 (3 of 20, every 4th) rank 0 runs `evaluate` (evaluation), which the "
        "others lack: the device takes 50.0 ms for it, 7.50 ms a step on average."
    )
    assert (says in verdict.sentence) is is_told
    assert ("No rule here" in verdict.sentence) is not is_told
    assert ("without evaluation" in to_text(document)) is is_told


@pytest.mark.parametrize(
    ("hit_ms", "usual_ms", "is_told"), [(900, 10, True), (900, 30, False), (0, 30, False)]
)
def test_idle_time_of_few_long_steps_is_told_of_these(
    make_job: MakeJob, hit_ms: int, usual_ms: int, *, is_told: bool
) -> None:
    job = make_job(ranks_count=1, idle_ms=usual_ms)
    job.add(0, 4, "idle", hit_ms)
    verdict = report(job).verdict
    assert ("of that in step 4 (1 of 10), which take up to" in verdict.sentence) is is_told


def test_a_damaged_input_narrows_the_claim(make_job: MakeJob) -> None:
    damaged = InputFile(path="a", kind="kineto", status="partial", rows=1)
    found = build_report(make_job().facts(), [damaged])
    assert found.verdict.sentence.startswith("Nothing to fix in what could be read: 100 ms")


def test_waiting_that_damage_keeps_from_being_matched_is_not_called_fit(make_job: MakeJob) -> None:
    """Half a trace lost may unmatch all calls: who waits for whom is not known then."""
    damaged = [InputFile(path="a", kind="kineto", status="partial", rows=1)]
    facts = make_job(comm_ms=60).facts()
    matched = replace(facts, rows={**facts.rows, "match_coverage": [MATCHED]})
    unmatched = replace(facts, rows={**facts.rows, "match_coverage": [UNMATCHED]})
    found = build_report(unmatched, damaged).verdict
    assert found.kind == "not_enough_data"
    assert "it cannot be said who waits for whom" in found.sentence
    # Matched, or read whole: what is there can be judged.
    assert build_report(matched, damaged).verdict.kind == "inherent"
    assert build_report(unmatched).verdict.kind == "inherent"
    little = make_job(comm_ms=5).facts()
    little = replace(little, rows={**little.rows, "match_coverage": [UNMATCHED]})
    assert build_report(little, damaged).verdict.kind == "inherent"


MATCHED = {
    "group_id": "g",
    "method": "sequence",
    "is_trusted": True,
    "reason": "all members agree",
    "calls_count": 100,
    "instances_count": 25,
    "ranks": [0, 1, 2, 3],
    "attempt": 1,
}
UNMATCHED = MATCHED | {"group_id": None, "is_trusted": False, "reason": "the calls fit none"}


def test_one_step_is_not_enough(make_job: MakeJob) -> None:
    found = report(make_job(steps_count=1))
    assert found.verdict.kind == "not_enough_data"


def test_no_files_at_all_is_not_enough() -> None:
    found = build_report(Facts())
    assert found.verdict.kind == "not_enough_data"
    assert "no file holds a usable trace" in found.verdict.sentence


def test_counters_of_hosts_alone_are_named_as_what_there_is() -> None:
    found = build_report(Facts(rows={"host_pressure": [{"host": "h0", "resource": "cpu"}]}))
    assert found.verdict.kind == "not_enough_data"
    assert "there are only counters of hosts" in found.verdict.sentence
    assert "training log" in (found.notes.next_step or "")


def test_warmup_alone_is_not_enough(make_job: MakeJob) -> None:
    job = make_job(steps_count=2)
    job.marks = {1: "is_warmup", 2: "is_warmup"}
    assert "2 warm-up steps" in report(job).verdict.sentence


def test_a_window_without_steps_is_still_described() -> None:
    rows = [
        {
            "rank": 0,
            "span_ns": 2_000_000_000,
            "compute_ns": 1_000_000_000,
            "comm_ns": 500_000_000,
            "overlap_ns": 0,
            "exposed_comm_ns": 500_000_000,
            "idle_ns": 500_000_000,
            "measured_on": "gpu",
        }
    ]
    found = build_report(Facts(rows={"overlap": rows}))
    assert found.verdict.kind == "not_enough_data"
    assert "computing 50 %, communication not hidden 25 %, idle 25 %" in found.verdict.sentence
    assert found.document.step_budget == ()
    assert "copies" not in found.verdict.sentence
    rows[0]["idle_ns"] = 300_000_000
    found = build_report(Facts(rows={"overlap": rows}))
    assert "idle 15 %, copies and other work 10 %." in found.verdict.sentence
    assert found.metrics.overlap is not None
    assert found.metrics.overlap.overlap_ratio == 0.0


def window(**parts_ms: int) -> dict[str, Any]:
    """A rank's window of 2 s on its GPU."""
    row = {"rank": 0, "span_ns": 2_000_000_000, "compute_ns": 0, "comm_ns": 0, "overlap_ns": 0,
           "exposed_comm_ns": 0, "idle_ns": 0, "measured_on": "gpu"}  # fmt: skip
    return row | {name: ms * 1_000_000 for name, ms in parts_ms.items()}


@pytest.mark.parametrize(
    ("parts_ms", "others", "words"),
    [
        (
            {"compute_ns": 20, "idle_ns": 40},
            {"memcpy_summary": [{"copy_kind": "HtoD", "busy_ns": 1_940_000_000}]},
            "97 % of the window is copies and other work beside which nothing is computed: copies "
            "from the host to the device run 97 % of it. The traces mark no steps.",
        ),
        (
            {"compute_ns": 200, "idle_ns": 1800},
            {"idle_breakdown": [
                {"stream": None, "idle_ns": 100, "host_wait_ns": 90, "host_pause_ns": 40},
                {"stream": 7, "idle_ns": 900, "host_wait_ns": 0, "host_pause_ns": 0}]},
            "90 % of the window is time in which the GPU is idle, 90 % of it until the host "
            "launches the next operation. The traces",
        ),
        (
            {"compute_ns": 200, "idle_ns": 1800},
            {"idle_breakdown": [
                {"stream": None, "idle_ns": 100, "host_wait_ns": 90, "host_pause_ns": 45}]},
            "launches the next operation, mostly in waits so long that it did something else "
            "meanwhile.",
        ),
        (
            {"compute_ns": 200, "idle_ns": 1800},
            {"idle_breakdown": [
                {"stream": None, "idle_ns": 100, "host_wait_ns": 40, "host_pause_ns": 40}]},
            "90 % of the window is time in which the GPU is idle. The traces",
        ),
        (
            {"compute_ns": 900, "exposed_comm_ns": 1020},
            {},
            "51 % of the window is communication that nothing hides. The traces",
        ),
    ],
    ids=["copies", "launches", "pauses", "idle", "communication"],
)  # fmt: skip
def test_a_window_without_steps_is_judged_by_its_largest_part(
    parts_ms: dict[str, int], others: dict[str, Any], words: str
) -> None:
    verdict = build_report(Facts(rows={"overlap": [window(**parts_ms)], **others})).verdict
    assert verdict.kind == "unexplained"
    assert words in verdict.sentence


def test_of_a_window_the_largest_part_comes_first(make_window: MakeJob) -> None:
    job = make_window(ranks_count=1, comm_ms=21, idle_ms=60).launching(host_wait_ratio=0.85)
    found = report(job)
    assert found.verdict.kind == "configuration"
    assert found.verdict.finding == "launch-bound/all"
    assert "102 ms of the window (51 %)" in found.verdict.sentence
    assert [f.rule for f in found.findings] == ["launch-bound", "exposed-communication"]
    # A stall that is a cause, and takes less, does not come before it.
    job = make_window(ranks_count=1, idle_ms=60).launching().stall("gc_pause", [0], (0, 1), 10)
    found = report(job)
    assert found.verdict.finding == "launch-bound/all"
    assert {f.rule for f in found.findings} == {"launch-bound", "gc-pause"}
    text = to_text(found)
    assert "of the 220 ms window" in text
    assert "20.0 ms/window" in text


def test_more_than_a_finding_of_a_window_names_is_unexplained(make_window: MakeJob) -> None:
    job = make_window(ranks_count=1, idle_ms=60).launching(kernel_ns=200_000)
    found = report(job.stall("gc_pause", [0], (0, 1), 20))
    assert found.verdict.kind == "unexplained"
    assert "67 % of the window is time in which the GPU is idle" in found.verdict.sentence
    assert [f.rule for f in found.findings] == ["gc-pause"]
    job = make_window(ranks_count=1, idle_ms=10).launching(kernel_ns=200_000)
    assert report(job.stall("gc_pause", [0], (0, 1), 20)).verdict.finding == "gc-pause/all"


@pytest.mark.parametrize(
    ("kind", "ranks_count", "verdict", "words"),
    [
        ({}, 1, "inherent", "Nothing to fix is seen over the window of 200 ms: computing 80 %"),
        ({"idle_ms": 19}, 1, "inherent", "idle 19 %"),
        ({"idle_ms": 20}, 1, "unexplained", "20 % of the window is time in which the GPU is idle"),
        ({"comm_ms": 10}, 1, "inherent", "Whether the network should be faster was not checked."),
        ({"comm_ms": 9}, 2, "inherent", "Nothing to fix is seen"),
        ({"comm_ms": 10}, 2, "not_enough_data", "1 rank that its communication may be waiting"),
    ],
)
def test_a_window_of_which_nothing_is_named(
    kind: dict[str, int], ranks_count: int, verdict: str, words: str, make_window: MakeJob
) -> None:
    job = make_window(ranks_count=1, world_size=ranks_count, **kind).launching(kernel_ns=200_000)
    found = report(job).verdict
    assert found.kind == verdict
    assert words in found.sentence


def test_copies_without_a_name_are_a_part_of_the_window_too(make_window: MakeJob) -> None:
    job = make_window(ranks_count=1)
    for half in (0, 1):
        job.add(0, half, "memory", 25)
    assert "24 % of the window is copies and other work" in report(job).verdict.sentence


def test_a_symptom_points_to_its_cause_and_back(make_job: MakeJob) -> None:
    found = report(make_job(comm_ms=10).stall("input_stall", [1], range(1, 11), 50))
    cause, symptom = found.findings
    assert cause.explains == ("exposed-communication/all",)
    assert symptom.explained_by == ("dataloader-stall/1",)


def braked(make_job: MakeJob, gpus: Sequence[int], stage_ratio: float = 1.4) -> Report:
    """Four stages of two ranks; ranks 0 to 3 compute 30 ms longer, and the others wait."""
    job = make_job(ranks_count=8, comm_ms=40)
    for step in job.steps:
        for rank in range(8):
            job.add(rank, step, *(("compute", 30) if rank < 4 else ("exposed_comm", 30)))
    job.rows["stage_balance"] = [
        {"stage": s, "attempt": 1, "ranks": [2 * s, 2 * s + 1], "compute_ns": 1e7 * ratio,
         "compute_ratio": ratio, "forward_ratio": ratio, "backward_ratio": ratio,
         "steps_count": 10, "slow_steps_count": 10, "microbatches_count": 4.0,
         "replicas_count": 2}
        for s, ratio in enumerate((stage_ratio, stage_ratio, 1.0, 1.0))
    ]  # fmt: skip
    job.rows["gpu_throttle"] = [
        {"gpu_id": f"h0 GPU {g}", "host": "h0", "gpu_index": g, "pci": None, "model": "A",
         "rank": g, "rank_source": "log", "host_ranks": [0, 1, 2, 3], "source_id": 0, "place": g,
         "attempt": 1, "event": "hw_power_brake", "samples_count": 100, "active_count": 60,
         "active_ratio": 0.6, "held_ns": None, "held_ratio": None}
        for g in gpus
    ]  # fmt: skip
    return report(job)


def test_a_brake_on_whole_stages_is_why_they_are_heavy(make_job: MakeJob) -> None:
    """No rank of theirs is left to compare with; the other stages are."""
    found = braked(make_job, range(4))
    assert found.verdict.finding is not None
    assert found.verdict.finding.startswith("power-brake/")
    heavy = next(f for f in found.findings if f.rule == "stage-imbalance")
    assert heavy.explained_by == (found.verdict.finding,)


def test_a_brake_on_half_a_stage_or_none_explains_no_heavy_stage(make_job: MakeJob) -> None:
    for gpus in ((1,), ()):
        found = braked(make_job, gpus)
        heavy = next(f for f in found.findings if f.rule == "stage-imbalance")
        assert heavy.explained_by == ()


def test_a_stage_that_is_hardly_heavier_charges_no_brake(make_job: MakeJob) -> None:
    found = braked(make_job, range(4), stage_ratio=1.09)
    brake = next(f for f in found.findings if f.rule == "power-brake")
    assert brake.impact.s_per_step is None


def test_a_stall_of_all_ranks_explains_no_waiting_for_each_other(make_job: MakeJob) -> None:
    found = report(make_job(comm_ms=40).stall("input_stall", range(4), range(1, 11), 50))
    assert all(not f.explained_by for f in found.findings)


def test_a_silenced_finding_is_left_out_and_said(make_job: MakeJob) -> None:
    job = make_job().stall("input_stall", [1], range(1, 11), 50)
    quiet = DiagnoseConfig(silences=(Silence("dataloader-stall", "known", ranks=(1,)),))
    found = build_report(job.facts(), config=quiet)
    assert found.findings == ()  # its symptom goes with it
    assert found.verdict.sentence.startswith("Nothing to fix beyond what is silenced")
    assert "dataloader-stall/1" in {p.finding for p in found.document.step_budget}
    assert "dataloader-stall/1 silenced: known" in found.notes.data_lines
    elsewhere = DiagnoseConfig(silences=(Silence("dataloader-stall", "known", ranks=(3,)),))
    assert build_report(job.facts(), config=elsewhere).verdict.finding == "dataloader-stall/1"


def test_a_hang_comes_before_everything(make_job: MakeJob) -> None:
    facts = make_job().stall("input_stall", [1], range(1, 11), 50).facts()
    stall = build_report(facts).findings[0]
    hang: Finding = replace(stall, id="collective-hang/2", rule="collective-hang")
    judgement = judge(facts, [stall, hang], (), ())
    assert judgement.verdict.kind == "hang"
    # A second hang, of unknown price and not the verdict's, still stands before what has a price.
    other = replace(hang, id="collective-hang/3", impact=Impact())
    found = in_order([stall, other, hang], hang.id)
    assert [f.id for f in found] == ["collective-hang/2", "collective-hang/3", stall.id]


def lost_member(make_job: MakeJob, **told: Any) -> tuple[Finding, Finding, Facts]:
    """A hang in which nobody is named, or who is told, and the failure of rank 1."""
    facts = make_job().stall("input_stall", [1], range(1, 11), 50).facts()
    base = replace(build_report(facts).findings[0], severity=Severity.CRITICAL, impact=Impact())
    nobody: dict[str, Any] = {"scope": Scope(), "candidates": Candidates()}
    hang = replace(base, id="collective-hang/all", rule="collective-hang", **(nobody | told))
    failure = replace(base, id="first-failure/1", rule="first-failure", scope=Scope(ranks=(1,)))
    return hang, failure, facts


@pytest.mark.parametrize(
    "told",
    [{}, {"scope": Scope(ranks=(1,))}, {"candidates": Candidates(ranks=(1, 2), why="silent")}],
    ids=["nobody named", "it is named", "it is suspected"],
)
def test_a_hang_follows_from_the_failure_of_a_member(
    make_job: MakeJob, told: dict[str, Any]
) -> None:
    hang, failure, facts = lost_member(make_job, **told)
    linked = link_symptoms([hang, failure], facts)
    assert linked[0].explained_by == ("first-failure/1",)
    assert judge(facts, linked, (), ()).verdict.finding == "first-failure/1"


def test_a_hang_in_which_nobody_is_named_follows_from_a_failure_whose_host_alone_is_known(
    make_job: MakeJob,
) -> None:
    hang, failure, facts = lost_member(make_job)
    failure = replace(failure, scope=Scope(hosts=("n7",)))
    assert link_symptoms([hang, failure], facts)[0].explained_by == ("first-failure/1",)
    named = replace(hang, scope=Scope(ranks=(2,)))
    assert link_symptoms([named, failure], facts)[0].explained_by == ()
    guessed = replace(named, confidence=Confidence(level="possible", basis="silence"))
    assert link_symptoms([guessed, failure], facts)[0].explained_by == ("first-failure/1",)
    elsewhere = replace(guessed, scope=Scope(ranks=(2,), hosts=("n8",)))
    assert link_symptoms([elsewhere, failure], facts)[0].explained_by == ()


def test_a_hang_follows_from_a_gpu_that_is_gone_and_not_from_one_that_went_on(
    make_job: MakeJob,
) -> None:
    hang, failure, facts = lost_member(make_job)
    gone = replace(
        failure, id="gpu-memory-fault/g", rule="gpu-memory-fault", scope=Scope(devices=("g",))
    )
    guessed = replace(
        hang, scope=Scope(ranks=(2,)), confidence=Confidence(level="possible", basis="silence")
    )
    linked = link_symptoms([guessed, gone], facts)
    assert linked[0].explained_by == ("gpu-memory-fault/g",)
    assert judge(facts, linked, (), ()).verdict.finding == "gpu-memory-fault/g"
    went_on = replace(gone, severity=Severity.MINOR)
    seen = replace(guessed, confidence=Confidence(level="likely", basis="its stack"))
    another = replace(gone, scope=Scope(devices=("g",), ranks=(5,)))
    for symptom, cause in ((guessed, went_on), (seen, gone), (guessed, another)):
        assert link_symptoms([symptom, cause], facts)[0].explained_by == ()


@pytest.mark.parametrize(
    ("told", "failed"),
    [
        ({"scope": Scope(ranks=(2,))}, {}),
        ({"candidates": Candidates(ranks=(2,), why="silent")}, {}),
        ({}, {"scope": Scope()}),
        ({}, {"severity": Severity.MAJOR}),
    ],
    ids=["another is named", "another is suspected", "who failed is not known", "a launch before"],
)
def test_a_hang_that_a_failure_does_not_explain_comes_first(
    make_job: MakeJob, told: dict[str, Any], failed: dict[str, Any]
) -> None:
    hang, failure, facts = lost_member(make_job, **told)
    linked = link_symptoms([hang, replace(failure, **failed)], facts)
    assert linked[0].explained_by == ()
    assert judge(facts, linked, (), ()).verdict.finding == "collective-hang/all"


def test_files_that_were_left_for_want_of_time_forbid_nothing_to_fix(make_job: MakeJob) -> None:
    left = ("traces/rank2.json", "traces/rank3.json", "traces/rank4.json")
    found = report(make_job(), unread=left)
    assert found.verdict.kind == "not_enough_data"
    assert "3 files were left for want of time" in found.verdict.sentence
    assert "3 files not read for want of time: rank2.json, rank3.json and 1 more" in found.to_text()
    assert "run the same command again" in found.to_text()


def test_files_that_were_left_do_not_hide_what_was_found(make_job: MakeJob) -> None:
    stalled = make_job().stall("input_stall", [1], range(1, 11), 50)
    assert report(stalled, unread=("traces/rank2.json",)).verdict.kind == "culprit"


def test_what_the_making_of_the_run_assumed_is_said(make_job: MakeJob) -> None:
    notes = tuple(f"note {i}" for i in range(1, 7))
    text = report(make_job(), notes=notes).to_text()
    assert "note 1   note 2   note 3   note 4   and 2 notes more" in text
    assert "note" not in report(make_job()).to_text()


def test_an_overwhelmed_receiver_has_the_price_of_the_pauses_that_it_causes(
    make_job: MakeJob,
) -> None:
    """Counters prove it; what it costs is what the senders' pauses cost."""
    facts = make_job(comm_ms=30).stall("gc_pause", [1], range(1, 11), 20).facts()
    (priced,) = (f for f in build_report(facts).findings if f.rule == "gc-pause")
    storm = replace(priced, rule="pfc-storm", id="pfc-storm/several")
    note = replace(priced, rule="incast", id="incast/2", severity=Severity.NOTE, impact=Impact())
    cause, symptom = link_symptoms([note, storm], facts)
    assert symptom.explained_by == ("incast/2",)
    assert cause.impact == storm.impact
    assert cause.severity is Severity.MAJOR

    unproved = replace(note, counter_evidence=storm.evidence)
    assert not link_symptoms([unproved, storm], facts)[1].explained_by
    other = replace(note, id="incast/3")
    assert all(f.impact == Impact() for f in link_symptoms([note, other, storm], facts)[:2])
    dear = replace(storm, rule="slow-receiver", id="slow-receiver/1")
    assert link_symptoms([note, dear, storm], facts)[0].impact == Impact()


@pytest.mark.parametrize("rule", ["packet-loss", "nic-error", "link-degraded"])
def test_a_port_at_fault_at_an_unknown_price_is_not_nothing_to_fix(
    make_job: MakeJob, rule: str
) -> None:
    """It loses packets whatever that costs, while much of the step is communication."""
    note = _note_of(make_job, rule)
    facts = make_job(comm_ms=30).facts()
    found = judge(facts, [note], [], [])
    assert (found.verdict.kind, found.verdict.finding) == ("not_enough_data", note.id)
    assert found.verdict.sentence.startswith(note.summary)
    assert "How much of the 30 % of the step" in found.verdict.sentence


def test_a_port_at_fault_leads_where_ranks_left_no_trace(make_job: MakeJob) -> None:
    note = _note_of(make_job, "packet-loss")
    facts = make_job(comm_ms=30).facts(world_size=8)
    found = judge(facts, [note], [], [])
    assert (found.verdict.kind, found.verdict.finding) == ("not_enough_data", note.id)
    assert "4 ranks that it may be waiting for left no trace" in found.verdict.sentence


@pytest.mark.parametrize("rule", ["ecmp-collision", "storage-interference"])
def test_a_shared_link_leads_there_only_where_its_price_is_open(
    make_job: MakeJob, rule: str
) -> None:
    note = _note_of(make_job, rule)
    left_open = replace(note, next_capture=("profile ranks 4-7 in the same steps",))
    facts = make_job(comm_ms=30).facts(world_size=8)
    assert judge(facts, [left_open], [], []).verdict.finding == note.id
    assert judge(facts, [note], [], []).verdict.finding is None
    assert judge(make_job(comm_ms=30).facts(), [left_open], [], []).verdict.finding is None


def test_a_port_at_fault_may_cost_nothing_or_be_something_else_s_symptom(
    make_job: MakeJob,
) -> None:
    note = _note_of(make_job, "packet-loss")
    busy, calm = make_job(comm_ms=30).facts(), make_job(comm_ms=9).facts()
    doubted = Evidence(name="format that no real file proved", value=1.0, unit="files")
    for facts, found in (
        (calm, note),
        (busy, replace(note, rule="ecn-congestion")),  # marks are how a full queue is told
        (busy, replace(note, impact=Impact(s_per_step=0.0, step_ratio=0.0))),
        (busy, replace(note, explained_by=("slow-receiver/1",))),
        (busy, replace(note, counter_evidence=(doubted,))),
    ):
        assert judge(facts, [found], [], []).verdict.kind == "inherent"


def _note_of(make_job: MakeJob, rule: str) -> Finding:
    (found,) = report(make_job().stall("gc_pause", [1], range(1, 11), 3)).findings
    return replace(found, rule=rule, severity=Severity.NOTE, impact=Impact())


@pytest.mark.parametrize(
    ("low_s", "ranks", "severity", "is_explained"),
    [
        (0.0, (1,), Severity.MAJOR, True),
        (0.02, (1,), Severity.MAJOR, True),  # as much as the cause costs
        (0.021, (1,), Severity.MAJOR, False),
        (0.0, (1, 2), Severity.MAJOR, False),
        (0.0, (1,), Severity.MINOR, False),
        (None, (1,), Severity.MAJOR, False),
    ],
)
def test_lateness_that_is_a_bound_is_of_the_grave_cause_on_the_same_ranks(
    make_job: MakeJob,
    low_s: float | None,
    ranks: tuple[int, ...],
    severity: Severity,
    is_explained: bool,
) -> None:
    """Neighbours before and behind a stage wait 90 ms for what costs the step 20."""
    facts = make_job(comm_ms=30).stall("gc_pause", [1], range(1, 11), 20).facts()
    (priced,) = (f for f in build_report(facts).findings if f.rule == "gc-pause")
    cost = replace(priced.impact, s_per_step=0.02)
    scope = replace(priced.scope, ranks=ranks)
    stage = replace(
        priced, rule="stage-imbalance", id="stage-imbalance/1", severity=severity,
        scope=scope, impact=cost,
    )  # fmt: skip
    waited = replace(cost, s_per_step=0.09, low_s_per_step=low_s)
    late = replace(
        priced, rule="late-rank", id="late-rank/1", severity=Severity.MINOR, impact=waited
    )
    _, symptom = link_symptoms([stage, late], facts)
    assert bool(symptom.explained_by) == is_explained


@pytest.mark.parametrize(
    ("stage_s", "bubble_ms", "is_explained"),
    [
        (0.036, 0, False),
        (0.036, 127, True),  # a half and more of the 34 ms that the schedule does not make
        (0.017, 127, True),
        (0.0169, 127, False),
    ],
)
def test_what_the_schedule_makes_stages_wait_no_fault_has_to_explain(
    make_job: MakeJob, stage_s: float, bubble_ms: float, is_explained: bool
) -> None:
    """161 ms of communication that nothing hides, of which the schedule makes a part."""
    job = make_job(comm_ms=30).stall("gc_pause", [1], range(1, 11), 20)
    if bubble_ms:
        busy_ns = 2 * bubble_ms * 1e6
        job.rows["bubble"] = [
            {
                "is_warmup": False, "window_ns": 1.5 * busy_ns, "busy_ns": busy_ns, "stage": 0,
                "expected_bubble_ratio": 1 / 3, "expected_bubble_overhead_ratio": 0.5,
                "stages_count": 4, "microbatches_count": 6, "chunks_count": 1,
            }
        ]  # fmt: skip
    facts = job.facts()
    (priced,) = (f for f in build_report(make_job(comm_ms=30).stall(
        "gc_pause", [1], range(1, 11), 20).facts()).findings if f.rule == "gc-pause")  # fmt: skip
    stage = replace(
        priced, rule="stage-imbalance", id="stage-imbalance/1",
        impact=replace(priced.impact, s_per_step=stage_s),
    )  # fmt: skip
    exposed = replace(
        priced, rule="exposed-communication", id="exposed-communication",
        impact=replace(priced.impact, s_per_step=0.161),
        scope=replace(priced.scope, ranks=(0, 1, 2, 3)),
    )  # fmt: skip
    _, symptom = link_symptoms([stage, exposed], facts)
    assert bool(symptom.explained_by) == is_explained
