"""A slow rank of a pipeline of which only timers of its operations are left, through diagnose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracekit import api
from tracekit.errors import AmbiguousInputError
from tracekit.report.model import Document
from tracekit.store import Selection

STAGES, MICROBATCHES, STEPS = 3, 6, 6
Slow = dict[tuple[int, int], float]
"""How much longer a (stage, replica) computes."""


class Timers:
    """GPipe: F = 10 ms, B = 20 ms, nothing for transfers, 5 ms to reduce, 5 to optimise."""

    def __init__(self, slow: Slow, replicas: int = 3, wild: float = 0.0) -> None:
        self.rows: list[dict[str, Any]] = []
        self.replicas = replicas
        begin = 0.0
        for step in range(STEPS):
            factors = dict(slow)
            if wild:  # another rank in each step
                factors = {(step % STAGES, step % replicas): wild}
            begin = self._step(step, begin, factors)
        self.step_s = begin / STEPS

    def _step(self, step: int, begin: float, slow: Slow) -> float:
        done: dict[tuple[int, int], float] = {}
        for d in range(self.replicas):
            took = {s: slow.get((s, d), 1.0) for s in range(STAGES)}
            at = dict.fromkeys(range(STAGES), begin)
            for kind, order, per in (("forward", 1, 0.010), ("backward", -1, 0.020)):
                for m in range(MICROBATCHES):
                    arrived = begin
                    for s in range(STAGES)[::order]:
                        is_first = s == (0 if order == 1 else STAGES - 1)
                        if not is_first:
                            posted = at[s]
                            at[s] = max(at[s], arrived)
                            self._add(step, s, d, f"{kind}-recv", m, posted, at[s])
                        start, at[s] = at[s], at[s] + per * took[s]
                        self._add(step, s, d, f"{kind}-compute", m, start, at[s])
                        arrived = at[s]
                        if s != (STAGES - 1 if order == 1 else 0):
                            self._add(step, s, d, f"{kind}-send", m, arrived, arrived)
            done |= {(s, d): at[s] for s in range(STAGES)}
        for s in range(STAGES):
            ready = max(done[s, d] for d in range(self.replicas))
            for d in range(self.replicas):
                self._add(step, s, d, "grads-reduce-scatter", 0, done[s, d], ready + 0.005)
                self._add(step, s, d, "optimizer", 0, ready + 0.005, ready + 0.010)
        return max(done.values()) + 0.010

    def _add(
        self, step: int, stage: int, dp: int, optype: str, number: int, start: float, end: float
    ) -> None:
        is_compute = optype.endswith("compute")
        self.rows.append(
            {"dp_rank": dp, "stage": stage, "rank": stage * self.replicas + dp, "step": step,
             "optype": optype, "start_ts": start, "duration": end - start, "seq_id": number,
             "mc": 0, "mb_id": number if is_compute else -1, "gmc": stage}
        )  # fmt: skip

    def diagnose(self, folder: Path) -> Document:
        pq.write_table(pa.Table.from_pylist(self.rows), folder / "timers.parquet")
        with api.open(folder / "timers.parquet") as run:
            return run.diagnose().document


HEALTHY = Timers({})


def test_timers_say_the_slowdown_of_a_rank_in_whatif_alone(tmp_path: Path) -> None:
    """No call is recorded: the query has no row that could say another number."""
    path = tmp_path / "timers.parquet"
    pq.write_table(pa.Table.from_pylist(Timers({(1, 2): 1.5}).rows), path)
    with api.open(path) as run:
        slowdowns = run.whatif().slowdown_by_rank
        assert run.query("straggler").is_empty()
    assert max(slowdowns, key=lambda r: slowdowns[r]) == 5
    assert len(slowdowns) == STAGES * 3


def found(document: Document) -> list[tuple[str, tuple[int, ...]]]:
    return [(f.rule, f.scope.ranks) for f in document.findings if f.rule == "slow-gpu"]


@pytest.mark.parametrize(("stage", "dp"), [(0, 1), (1, 0), (2, 2)])
def test_the_slow_rank_is_the_verdict_with_what_it_costs(
    stage: int, dp: int, tmp_path: Path
) -> None:
    job = Timers({(stage, dp): 1.5})
    document = job.diagnose(tmp_path)
    rank = 3 * stage + dp
    assert found(document) == [("slow-gpu", (rank,))]
    assert document.verdict.finding == f"slow-gpu/{rank}"
    assert f"Rank {rank} (stage {stage}, replica {dp}) computes 1.50x" in document.verdict.sentence
    finding = next(f for f in document.findings if f.rule == "slow-gpu")
    assert finding.impact.s_per_step == pytest.approx(job.step_s - HEALTHY.step_s, rel=0.03)
    assert finding.confidence.level == "likely"


@pytest.mark.parametrize(
    "job", [HEALTHY, Timers({(1, 0): 1.5}), Timers({}, wild=1.5)], ids=["even", "slow", "wild"]
)
def test_the_step_is_that_of_the_replay(job: Timers, tmp_path: Path) -> None:
    times = job.diagnose(tmp_path).metrics.step_time
    with api.open(tmp_path / "timers.parquet") as run:
        found = run.whatif()
    assert times is not None
    assert times.mean_s == pytest.approx(found.t_base_s, rel=1e-6)
    assert times.mean_s == pytest.approx(found.step_s, rel=1e-9)
    assert times.max_s == pytest.approx(max(t.base_s for t in found.per_step.values()), rel=1e-6)


@pytest.mark.parametrize(
    "job",
    [
        HEALTHY,
        Timers({(1, 1): 1.08}),
        Timers({(1, d): 1.5 for d in range(3)}),
        Timers({(0, 0): 1.5}, replicas=1),
        Timers({}, wild=1.5),
    ],
    ids=["healthy", "just-below", "whole-stage", "no-peers", "another-rank-each-step"],
)
def test_who_is_no_slow_rank(job: Timers, tmp_path: Path) -> None:
    assert found(job.diagnose(tmp_path)) == []


def write(job: Timers, path: Path, rows: list[dict[str, Any]] | None = None) -> None:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(job.rows if rows is None else rows), path)


def test_timers_of_several_jobs_are_never_one_verdict(tmp_path: Path) -> None:
    write(HEALTHY, tmp_path / "a.parquet")
    write(Timers({(1, 0): 1.5}), tmp_path / "b.parquet")
    write(Timers({}, replicas=2), tmp_path / "c.parquet")
    write(HEALTHY, tmp_path / "d.parquet")  # a copy of a
    with pytest.raises(AmbiguousInputError) as error, api.open(tmp_path):
        pass
    text = str(error.value)
    assert "timer files give a rank different places in the layout" in text
    assert [line.split(":")[0] for line in text.splitlines()[1:]] == [
        "  --attempt 1",
        "  --attempt 2",
        "  --attempt 3",
    ]
    assert "2 files" in text.splitlines()[1]
    assert "--attempt" in (error.value.hint or "")


def test_timers_of_one_job_may_lie_in_several_files(tmp_path: Path) -> None:
    rows = HEALTHY.rows
    for name, half in (("ranks", 3), ("steps", 2)):
        folder = tmp_path / name
        key = "rank" if name == "ranks" else "step"
        write(HEALTHY, folder / "a.parquet", [r for r in rows if r[key] < half])
        write(HEALTHY, folder / "b.parquet", [r for r in rows if r[key] >= half])
        with api.open(folder) as run:
            assert run.sql("SELECT count(*) AS n FROM pipeline_op")["n"].to_list() == [len(rows)]


def test_of_timers_of_several_jobs_one_can_be_chosen(tmp_path: Path) -> None:
    write(HEALTHY, tmp_path / "a.parquet")
    write(Timers({}, replicas=2), tmp_path / "b.parquet")
    with api.open(tmp_path, selection=Selection(attempt=2)) as run:
        found = run.sql("SELECT DISTINCT attempt, rank FROM pipeline_op ORDER BY rank")
    assert found.rows() == [(2, rank) for rank in range(STAGES * 2)]
