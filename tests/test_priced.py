"""What a cause costs: whatif, diagnose and its JSON say one number of one cause."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import samples
from msgspec.structs import replace

from soaks import soak
from tracekit import priced
from tracekit.errors import InputError, UsageError
from tracekit.report import Report
from tracekit.report.json import to_json
from tracekit.rules import Facts
from tracekit.whatif import (
    CauseResult,
    StepTimes,
    WhatIf,
    parse_remove,
    parse_scale,
    to_dict,
    to_text,
)

FIXTURES = Path(__file__).parents[1] / "fixtures"
TWINS = FIXTURES / "twins"


@functools.cache
def asked(name: str, *removed: str) -> tuple[Report, WhatIf]:
    with samples.opened(TWINS / name) as run:
        causes = [parse_scale("rank=1:all=0.9"), *map(parse_remove, removed)]
        return run.diagnose(), run.whatif(causes)


def is_of(cause: CauseResult, report: Report, finding: str) -> bool:
    """Whether the cause costs what the JSON of the diagnosis says that the finding costs."""
    (found,) = [f for f in json.loads(to_json(report))["findings"] if f["id"] == finding]
    impact = found["impact"]
    return (
        cause.saved_s_per_step == impact["s_per_step"] > 0
        and cause.low_s_per_step == impact["low_s_per_step"]
        and cause.high_s_per_step == impact["high_s_per_step"]
        and cause.method == impact["method"]
        and cause.finding == finding
        and cause.t_s + cause.saved_s_per_step
        == pytest.approx(report.document.metrics.step_time.mean_s)  # type: ignore[union-attr]
    )


@pytest.mark.slow  # the cost of a pair more; that of a link stays, below
def test_a_rank_with_a_hot_expert_costs_what_the_finding_costs() -> None:
    """Doing what its peers do it would lose its tokens: 131 ms less, where balance gains 99."""
    report, answer = asked("moe-hot-expert", "rank=1", "F1", "hot-expert/1")
    scaled, *removed = answer.causes
    assert scaled.finding is None
    assert scaled.method == "collectives"
    assert report.document.verdict.finding == "hot-expert/1"
    assert all(is_of(cause, report, "hot-expert/1") for cause in removed)
    text = to_text(answer)
    assert "remove rank=1: 0.2177 s a step becomes 0.1190 (-0.0987 s" in text
    assert "s less by replay, the cost of hot-expert/1" in text
    assert to_dict(answer)["causes"][1]["finding"] == "hot-expert/1"


def test_a_link_that_no_replay_can_mend_has_the_counters_price() -> None:
    """Every transfer passes it: the trace does not say what one should take, the port does."""
    report, answer = asked("ddp-starved-link", "link=1")
    cause = answer.causes[-1]
    assert is_of(cause, report, "link-degraded/1")
    assert cause.method == "counter share"
    with (
        samples.opened(TWINS / "ddp-starved-link") as run,
        pytest.raises(UsageError, match="no such communication"),
    ):
        run.whatif([parse_remove("link=2")])  # of the other links nobody says anything


def test_a_finding_that_is_not_there_is_an_error_that_lists_those_there_are() -> None:
    report, _ = asked("moe-hot-expert", "rank=1", "F1", "hot-expert/1")
    number = len(report.findings) + 1
    for name in (f"F{number}", "slow-gpu/7"):
        with samples.opened(TWINS / "moe-hot-expert") as run, pytest.raises(UsageError) as caught:
            run.whatif([parse_remove(name)])
        assert "hot-expert/1" in (caught.value.hint or "")


def test_a_refused_replay_leaves_what_findings_cost() -> None:
    """What only the refused replay could say is left out, what a finding says is not."""
    observed = CauseResult(
        "remove F1", 0.1, 1.5, 0.05, "twin ranks", 0.0, 0.04, 0.06, "a/1", ("b",)
    )
    unknown = CauseResult("remove rank=1", 0.1, 1.5, 0.05)
    answer = WhatIf(
        "collectives", (1,), (), 0.15, 0.2, 0.1, {1: StepTimes(0.15, 0.2, 0.1)}, {}, {},
        causes=(observed, unknown), refused="it misses the step",
    )  # fmt: skip
    assert [c["cause"] for c in to_dict(answer)["causes"]] == ["remove F1"]
    text = to_text(answer)
    assert "0.0400 to 0.0600 s less by observed difference to other ranks" in text
    assert "the cost of a/1; against: b" in text
    assert "rank=1" not in text


def test_every_cause_of_a_marked_pipeline_is_taken_from_the_step_of_diagnose() -> None:
    """Its operations last 243.4 ms of 244.7, and 236.4 replayed: three bases, of which one is the
    job's step."""
    with samples.opened(FIXTURES / "recorded" / "pp-uneven-stages") as run:
        times = run.diagnose().document.metrics.step_time
        answer = run.whatif([parse_remove("F1"), parse_scale("stage=3:forward=0.5")])
    assert times is not None
    content = to_dict(answer)
    assert content["step_s"] == answer.step_s == pytest.approx(times.mean_s, rel=1e-9)
    assert content["t_no_delay_s"] < content["t_base_s"] < content["step_s"]
    priced, scaled = content["causes"]
    for cause in (priced, scaled):
        assert cause["t_s"] + cause["saved_s_per_step"] == pytest.approx(times.mean_s, rel=1e-9)
        assert cause["speedup_ratio"] == pytest.approx(times.mean_s / cause["t_s"])
    assert priced["replayed_s"] is None
    assert scaled["replayed_s"] == pytest.approx(
        content["t_no_delay_s"] - scaled["saved_s_per_step"], rel=1e-9
    )
    text = to_text(answer)
    assert "STEP      0.2447 s measured, 0.2434 from first to last operation (99.5% of it)," in text
    begins = re.findall(r"^CAUSE .*?: ([\d.]+) s a step becomes", text, re.M)
    assert begins == ["0.2447"] * 4


@pytest.mark.parametrize(
    ("path", "method", "others"),
    soak(
        [
            (FIXTURES / "recorded" / "pp-uneven-stages", "pipeline", 0),
            # Refused; by its messages, which are matched, no rank has a peer to be replayed beside.
            (FIXTURES / "recorded" / "pp-interleaved-healthy", "pipeline", 4),
            (FIXTURES / "recorded" / "ddp-slow-rank", "collectives", 0),
        ],
        fast=1,
    ),
)
def test_the_slowdown_of_a_rank_is_one_number(path: Path, method: str, others: int) -> None:
    """In whatif, its JSON, the query and the evidence; unknown in all where a replay is refused."""
    with samples.opened(path) as run:
        answer, rows = run.whatif(), run.query("straggler")
        report = run.diagnose()
    assert answer.method == method
    said = to_dict(answer)["slowdown_by_rank"] or {}
    ratios = dict(rows.select("rank", "slowdown_ratio").iter_rows())
    assert {str(r): v for r, v in ratios.items() if v is not None} == said
    assert sum(v is None for v in ratios.values()) == others
    shown = {
        (f.scope.ranks[0], e.value)
        for f in report.findings
        for e in f.evidence
        if "over the ideal step" in e.name
    }
    assert shown == ({(2, ratios[2])} if method == "collectives" else set())


def replayed(**changed: Any) -> WhatIf:
    """10 s of operations, 8 replayed; without rank 1 those are 6."""
    cause = CauseResult("remove rank=1", 6.0, 8 / 6, 2.0, "collectives", 0.25, replayed_s=6.0)
    return WhatIf(
        "collectives", (1,), (), 10.0, 8.0, 4.0, {1: StepTimes(10.0, 8.0, 4.0)}, {}, {},
        causes=(cause,), **changed,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("job_step_s", "step", "left"),
    [
        (12.0, "12.0000 s measured, 10.0000 in the steps replayed (83.3% of it), 8.0000", 10.0),
        (9.0, "9.0000 s measured, 10.0000 in the steps replayed, 8.0000", 7.0),  # they overlap
        (1.5, "1.5000 s measured, 10.0000 in the steps replayed, 8.0000", 0.0),
        (10.0, "10.0000 s measured, 8.0000", 8.0),
        (None, "10.0000 s measured, 8.0000", 8.0),
    ],
)
def test_a_gain_is_taken_from_the_job_s_step_and_never_more_than_all_of_it(
    job_step_s: float | None, step: str, left: float
) -> None:
    answer = replayed().of_job(job_step_s)
    (cause,) = answer.causes
    assert (cause.t_s, cause.replayed_s) == (left, 6.0)
    assert cause.t_s + cause.saved_s_per_step == answer.step_s == (job_step_s or 10.0)
    assert cause.simulation_error_ratio == 0.25
    assert f"STEP      {step} replayed (error 25.0%)" in to_text(answer)
    assert f"remove rank=1: {answer.step_s:.4f} s a step becomes {left:.4f}" in to_text(answer)
    assert to_dict(answer)["causes"][0]["speedup_ratio"] == (
        pytest.approx(answer.step_s / left) if left else None
    )


def test_a_refused_replay_says_the_job_s_step() -> None:
    text = to_text(replayed(refused="it misses the step").of_job(12.0))
    assert "measured 12.0000 s a step, 10.0000 in the steps replayed (83.3% of it) over 1" in text


def test_where_nothing_can_be_replayed_a_finding_has_its_cost_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without matched calls no replay can be made; counters have priced the link."""
    hint = "profile all ranks in the same steps"

    def nothing(*_: object) -> WhatIf:
        raise InputError("nothing to replay: no collectives are matched", hint=hint)

    monkeypatch.setattr(priced, "whatif", nothing)
    with samples.opened(TWINS / "ddp-starved-link") as run:
        report = run.diagnose()
        found = run.whatif([parse_remove("F1")])
        with pytest.raises(InputError, match="nothing to replay"):
            run.whatif([parse_remove("rank=0")])
    (cause,) = found.causes
    assert is_of(cause, report, "link-degraded/1")
    assert found.refused == "nothing to replay: no collectives are matched"
    content = to_dict(found)
    assert content["t_no_delay_s"] is None
    assert content["simulation_error_ratio"] is None
    assert content["causes"][0]["saved_s_per_step"] == cause.saved_s_per_step
    assert "the cost of link-degraded/1" in to_text(found)


@pytest.mark.parametrize("joint", [(), (0, 2)])
def test_a_cost_that_ranks_have_together_says_so(
    monkeypatch: pytest.MonkeyPatch, joint: tuple[int, ...]
) -> None:
    monkeypatch.setattr(priced, "whatif", lambda *_: replace(replayed(), causes=()))
    with samples.opened(TWINS / "ddp-starved-link") as run:
        (link, *_) = run.diagnose().findings
        link = replace(link, impact=replace(link.impact, joint_ranks=joint))
        causes = [parse_remove("F1")]
        answer = priced.whatif_priced(run.run.con, None, causes, Facts(rows={}), [link])
    said = "it is one cost of ranks 0,2 together"
    assert (said in answer.causes[0].against) is bool(joint)
    assert (said in to_text(answer)) is bool(joint)


def test_both_ends_of_a_link_are_what_the_finding_says() -> None:
    """Of a link that traces alone tell neither end is accused, and either may be named first."""
    with samples.opened(TWINS / "ddp-starved-link") as run:
        facts, report = run._diagnosed(config=None)
        (link, *_) = report.document.findings
        scope = replace(link.scope, ranks=(), hosts=())
        ends = replace(link.candidates, ranks=(0, 1))
        link = replace(link, scope=scope, candidates=ends)
        asked_for = ("link=1,0", "link=1", "link=0,2", "rank=0,1")
        found = [
            priced._finding(run.run.con, parse_remove(text), facts, [link]) for text in asked_for
        ]
    assert found == [link, None, None, None]
