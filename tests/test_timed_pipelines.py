"""A slow rank of a pipeline of which only timers of its operations are left, through diagnose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracekit import api
from tracekit.report.model import Document

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
