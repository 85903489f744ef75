"""The replay against the published figures of a production job (the ST job of the OSDI'25 study).

Reads data that is not part of this repository, and is skipped where it is absent.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import samples
from msgspec.structs import replace
from samples import pipe

from soaks import soak
from tracekit.cli import main
from tracekit.whatif import WhatIf, analyse, from_pipeline_rows, parse_remove, parse_scale, to_dict
from tracekit.whatif.operations import COMPUTE, Operations

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("TRACEKIT_SHARED", str(ROOT / "../shared"))) / "data/pipeline"
TRACE = DATA / "trace-ST.parquet"
pytestmark = pytest.mark.skipif(not TRACE.is_file(), reason="../shared/data/pipeline is absent")

REL, ABS_M = 1e-6, 1e-5


def operations() -> Operations:
    with samples.opened(TRACE) as run:
        return from_pipeline_rows(run.run.con.sql("FROM pipeline_op").to_arrow_table())


@pytest.fixture(scope="module")
def found() -> WhatIf:
    return analyse(operations())


def pairs(value: Any) -> dict[str, float]:
    return dict(value.items() if isinstance(value, dict) else value)


def published(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / name).read_text())
    return content


def test_times_and_slowdown(found: WhatIf) -> None:
    assert found.t_base_s == pytest.approx(2.2144477888941765, rel=REL)
    assert found.t_no_delay_s == pytest.approx(2.172696813310722, rel=REL)
    assert found.t_ideal_s == pytest.approx(1.843295824372035, rel=REL)
    assert found.base_over_no_delay == pytest.approx(1.01921617557204, rel=REL)
    assert found.simulation_error_ratio == pytest.approx(0.01921617557204, abs=1e-6)
    assert found.slowdown == pytest.approx(1.1787021836556841, rel=REL)
    assert pipe(found).replay_error_s < 1e-8  # operations begin at whole ns
    assert found.refused is None


def test_every_step(found: WhatIf) -> None:
    result = published("result-ST.json")
    for mine, name in (
        ({s: t.base_s for s, t in found.per_step.items()}, "step_t_base"),
        ({s: t.no_delay_s for s, t in found.per_step.items()}, "step_t_nodelay"),
        ({s: t.ideal_s for s, t in found.per_step.items()}, "step_t_noblk"),
        ({s: t.slowdown for s, t in found.per_step.items()}, "blocking_step_slowdown"),
    ):
        theirs = pairs(result[name])
        assert len(theirs) == 32
        for step, value in theirs.items():
            assert mine[int(step)] == pytest.approx(value, rel=REL)
    assert max(found.per_step, key=lambda s: found.per_step[s].slowdown) == 23


def test_decompositions(found: WhatIf) -> None:
    result = published("result-ST.json")
    for mine, name in (
        (pipe(found).slowdown_by_stage, "stage"),
        (pipe(found).slowdown_by_dp, "dp_rank"),
        (found.slowdown_by_optype, "optype"),
    ):
        theirs = pairs(result[f"blocking_decompose_by_{name}"])
        assert {str(k) for k in mine} == set(theirs)
        for key, value in mine.items():
            assert value == pytest.approx(theirs[str(key)], rel=REL)
    for rows, name in (
        (pipe(found).slowdown_by_stage_per_step, "stage"),
        (pipe(found).slowdown_by_dp_per_step, "dp_rank"),
    ):
        for step, values in result[f"blocking_decompose_by_{name}_per_step"].items():
            for key, value in pairs(values).items():
                assert rows[int(key)][int(step)] == pytest.approx(value, rel=REL)


def test_shares(found: WhatIf) -> None:
    for share, name in ((pipe(found).m_w, "mw-ST.json"), (pipe(found).m_s, "ms-ST.json")):
        theirs = published(name)
        assert share.remove == pytest.approx(theirs["rem"], abs=ABS_M)
        assert share.add == pytest.approx(theirs["add"], abs=ABS_M)
        assert share.t_remove_s == pytest.approx(theirs["trem"], rel=REL)
        assert share.t_add_s == pytest.approx(theirs["tadd"], rel=REL)
    assert pipe(found).m_w.ranks == (7,)
    assert pipe(found).m_s.stage == 3


def test_communication_to_nothing(found: WhatIf) -> None:
    assert pipe(found).no_pp_comm.speedup_ratio == pytest.approx(1.0012516774513014, rel=REL)
    assert pipe(found).no_dp_comm.speedup_ratio == pytest.approx(1.0392968710937196, rel=REL)


def test_ideal_values(found: WhatIf) -> None:
    ideal = {
        "forward-compute": 0.085282,
        "backward-compute": 0.158410,
        "optimizer": 0.040500,
        "forward-send": 0.000546,
        "forward-recv": 0.000634,
        "backward-send": 0.000568,
        "backward-recv": 0.000592,
        "optimizer-clip-main-grad": 0.005129,
        "embedding-grads-all-reduce": 0.010492,
        "params-all-gather": 0.024627,
        "grads-reduce-scatter": 0.050536,
    }
    for optype, value in ideal.items():
        assert pipe(found).ideal_by_optype_s[optype] == pytest.approx(value, abs=1e-6)


def test_the_measured_job(found: WhatIf) -> None:
    s, symptoms = pipe(found).statistics, pipe(found).judgement.symptoms
    assert s.step_cv_ratio == pytest.approx(0.02324, abs=5e-6)
    assert s.step_p50_s == pytest.approx(2.21304, abs=5e-6)
    assert s.step_p95_s == pytest.approx(2.29398, abs=5e-6)
    assert s.step_p99_s == pytest.approx(2.37973, abs=5e-6)
    assert s.step_mad_s == pytest.approx(0.009122, abs=5e-7)
    assert len(s.outlier_steps) == 5
    idle = [s.idle_ratio_by_stage[stage] for stage in range(4)]
    assert idle == pytest.approx([0.582, 0.581, 0.579, 0.316], abs=5e-4)
    assert s.expected_idle_ratio == pytest.approx(3 / 7)
    waiting = s.waiting_by_optype["grads-reduce-scatter"]
    assert (waiting.duration_s, waiting.wait_s, waiting.transfer_s) == pytest.approx(
        (0.0584, 0.0061, 0.0524), abs=5e-5
    )
    last = s.last_arriver_by_optype["grads-reduce-scatter"]
    assert (last.count_by_dp[1], last.instances_count) == (102, 128)
    assert last.mean_gap_ratio == pytest.approx(0.0055, abs=5e-5)
    correlation = list(symptoms.correlation_by_rank.values())
    assert [min(correlation), np.median(correlation), max(correlation)] == pytest.approx(
        [0.708, 0.863, 0.903], abs=5e-4
    )
    assert max(symptoms.forward_cv_by_rank.values()) == pytest.approx(0.031, abs=5e-4)
    assert symptoms.max_peer_ratio_forward == pytest.approx(1.006, abs=5e-4)
    assert symptoms.max_peer_ratio_backward == pytest.approx(1.004, abs=5e-4)
    assert symptoms.stage_ratio_forward[3] == pytest.approx(2.075, abs=5e-4)
    assert symptoms.stage_ratio_backward[3] == pytest.approx(1.418, abs=5e-4)


def test_the_verdict_is_the_last_stage(found: WhatIf) -> None:
    assert (pipe(found).judgement.kind, pipe(found).judgement.stage) == ("stage_imbalance", 3)


def scaled(stage: int, dp: int, factor: float) -> Operations:
    """The job with one rank's computation longer; starts stay as they were recorded."""
    ops = operations()
    chosen = (ops.stage == stage) & (ops.dp_rank == dp) & ops.is_type(*COMPUTE)
    longer = np.where(chosen, ops.duration_s * factor, ops.duration_s)
    return replace(ops, duration_s=longer)


PLACES = [(stage, dp) for stage in range(4) for dp in range(2)]


@pytest.mark.parametrize("factor", soak([1.2, 1.5, 2.0, 3.0], fast=1))
@pytest.mark.parametrize(("stage", "dp"), PLACES)
def test_one_slow_rank_is_the_verdict(stage: int, dp: int, factor: float) -> None:
    """Also in the last stage, which has twice as much to do as the others."""
    judgement = pipe(analyse(scaled(stage, dp, factor))).judgement
    assert judgement.kind == "slow_rank"
    assert (judgement.ranks, judgement.stage, judgement.dp_rank) == ((2 * stage + dp,), stage, dp)
    ratios = judgement.symptoms.peer_ratio_by_rank
    assert ratios[2 * stage + dp] == pytest.approx(factor, rel=0.015)


@pytest.mark.parametrize(("stage", "dp"), PLACES)
def test_a_rank_that_is_hardly_slower_is_not(stage: int, dp: int) -> None:
    """Just below 1.10; the imbalance of stages stays the verdict."""
    judgement = pipe(analyse(scaled(stage, dp, 1.085))).judgement
    assert (judgement.kind, judgement.stage) == ("stage_imbalance", 3)


def test_causes(found: WhatIf) -> None:
    causes = [
        parse_remove("rank=7"),
        parse_remove("comm=pp"),
        parse_remove("stage=3"),
        parse_scale("stage=3:forward=1"),
        parse_scale("stage=3:forward=0.5"),
    ]
    rank, comm, stage, same, half = analyse(operations(), causes).causes
    assert rank.t_s == pytest.approx(pipe(found).m_w.t_remove_s)
    assert comm.speedup_ratio == pytest.approx(pipe(found).no_pp_comm.speedup_ratio)
    assert stage.t_s == pytest.approx(pipe(found).m_s.t_remove_s)
    assert same.t_s == pytest.approx(found.t_no_delay_s)
    assert half.saved_s_per_step > 0.2


def test_a_job_that_the_replay_misses_is_refused() -> None:
    slow = analyse(scaled(3, 0, 3.0))
    assert slow.refused is not None
    content = to_dict(slow)
    assert content["slowdown"] is None
    assert content["verdict"]["ranks"] == [6]


def test_the_command_gives_the_same_in_under_two_seconds_of_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    began = time.process_time()
    analyse(operations())
    assert time.process_time() - began < 2
    with pytest.raises(SystemExit) as ended:
        main(["whatif", str(TRACE), "--format", "json"])
    assert ended.value.code == 0
    content = json.loads(capsys.readouterr().out)
    assert content["slowdown"] == pytest.approx(1.1787021836556841, rel=REL)
    assert content["t_no_delay_s"] == pytest.approx(2.172696813310722, rel=REL)
    assert content["m_w"]["remove"] == pytest.approx(0.031404269124045224, abs=ABS_M)
    assert content["m_s"]["remove"] == pytest.approx(1.2193563788811714, abs=ABS_M)
    assert content["slowdown_by_stage"]["3"] == pytest.approx(1.2322559543157936, rel=REL)
    assert len(content["per_step"]) == 32
    assert len(content["heat_map"]) == 8
