"""Idle time beyond the schedule and fast hand-overs: pipelines whose times are counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tracekit.simulate.schedules import one_f_one_b
from tracekit.whatif import idle_beyond_s, prepare, saved_by_messages_s
from tracekit.whatif.operations import Layout, Operations

HOP = 0.3
F, B = 1.0, 2.0


def pipeline(
    hops: list[float],
    pauses: dict[tuple[int, int], float] | None = None,
    stages: int = 2,
    microbatches: int = 4,
    work: list[float] | None = None,
    *,
    is_buffered: bool = False,
    slow: dict[int, float] | None = None,
) -> Operations:
    """1F1B; ``hops``: what a message takes in each step, from when both sides ask for it (or
    ``is_buffered``, from when it was sent); ``pauses``: (step, microbatch) before whose forward
    the first stage stands still; ``slow``: how many times as long messages of a stage take."""
    rows: list[tuple[int, int, str, int, float, float]] = []
    for step, hop in enumerate(hops):
        late = {m: s for (at, m), s in (pauses or {}).items() if at == step}
        each = [hop * (slow or {}).get(stage, 1.0) for stage in range(stages)]
        own = _step(each, late, stages, microbatches, work or [1.0] * stages, is_buffered)
        rows += [(step, *row) for row in own]
    names = tuple(sorted({r[2] for r in rows}))
    count = len(rows)

    def ints(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(values, np.int64)

    return Operations(
        dp_rank=ints([0] * count),
        stage=ints([r[1] for r in rows]),
        rank=ints([r[1] for r in rows]),
        step=ints([r[0] for r in rows]),
        optype=ints([names.index(r[2]) for r in rows]),
        start_s=np.array([r[4] for r in rows]),
        duration_s=np.array([r[5] for r in rows]),
        sequence=ints([r[3] for r in rows]),
        chunk=ints([0 if "compute" in r[2] else -1 for r in rows]),
        microbatch=ints([r[3] for r in rows]),
        global_chunk=ints([r[1] for r in rows]),
        names=names,
        layout=Layout(),
    )


def _step(
    hops: list[float],
    pauses: dict[int, float],
    stages: int,
    microbatches: int,
    work: list[float],
    is_buffered: bool,
) -> list[tuple[int, str, int, float, float]]:
    """Every action in turn, as soon as its stage is free and its message has come."""
    left = [one_f_one_b(s, stages, microbatches) for s in range(stages)]
    free = [0.0] * stages
    done: dict[tuple[str, int, int], float] = {}
    sends: dict[tuple[str, int], float] = {}
    rows: list[tuple[int, str, int, float, float]] = []
    while any(left):
        for s in range(stages):
            while left[s]:
                action, m, _ = left[s][0]
                kind, before = ("forward", s - 1) if action == "F" else ("backward", s + 1)
                start = free[s]
                if 0 <= before < stages:
                    hop = hops[before]
                    if (action, m, before) not in done:
                        break
                    # A stage's messages of a direction go one after the other.
                    sent = max(done[action, m, before], sends.get((action, before), 0.0))
                    start = max(sent + hop, free[s]) if is_buffered else max(sent, free[s]) + hop
                    rows.append((s, f"{kind}-recv", m, free[s], start - free[s]))
                    took = hop if is_buffered else start - sent
                    rows.append((before, f"{kind}-send", m, sent, took))
                    sends[action, before] = sent + took
                left[s].pop(0)
                if action == "F" and s == 0:
                    start += pauses.get(m, 0.0)
                took = (F if action == "F" else B) * work[s]
                rows.append((s, f"{kind}-compute", m, start, took))
                free[s] = done[action, m, s] = start + took
    return rows


def beyond(operations: Operations) -> float | None:
    return idle_beyond_s(prepare(operations))


def window(operations: Operations, step: int) -> float:
    rows = operations.take((operations.step == step) & operations.is_type(
        "forward-compute", "backward-compute"))  # fmt: skip
    return float((rows.start_s + rows.duration_s).max() - rows.start_s.min())


@pytest.mark.parametrize("is_buffered", [False, True])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (3, 3)])
def test_a_job_whose_hand_overs_are_all_alike_has_none(
    stages: int, microbatches: int, is_buffered: bool
) -> None:
    """Though each turn of 1F1B holds a message there and back, far over (m + p - 1)(F + B)."""
    job = pipeline([HOP] * 6, stages=stages, microbatches=microbatches, is_buffered=is_buffered)
    assert window(job, 0) > (microbatches + stages - 1) * (F + B) + 2 * HOP
    assert beyond(job) == pytest.approx(0.0, abs=1e-9)


def test_stages_of_other_lengths_are_no_excess() -> None:
    assert beyond(pipeline([HOP] * 4, work=[1.0, 1.08])) == pytest.approx(0.0, abs=1e-9)


def test_slow_messages_in_some_steps_are_held_against_the_fast_ones() -> None:
    job = pipeline([HOP] * 6 + [5 * HOP] * 6)
    lost = (window(job, 11) - window(job, 0)) / 2
    assert lost > 1.0
    assert beyond(job) == pytest.approx(lost)


def test_a_pause_inside_the_pipeline_is_beyond_it() -> None:
    job = pipeline([HOP] * 6, pauses={(1, 2): 4.0, (4, 2): 4.0})
    lost = (window(job, 1) - window(job, 0)) / 3
    assert lost > 1.0
    assert beyond(job) == pytest.approx(lost)


def test_without_the_messages_nothing_is_said() -> None:
    job = pipeline([HOP] * 4)
    assert beyond(job.take(job.is_type("forward-compute", "backward-compute"))) is None
    half = ~job.is_type("backward-recv", "backward-send")
    assert beyond(job.take(half)) is None


@pytest.mark.parametrize("is_buffered", [False, True])
@pytest.mark.parametrize("stage", [1, 2])
def test_slow_messages_of_one_stage_cost_what_a_step_without_them_takes_less(
    stage: int, is_buffered: bool
) -> None:
    def job(slow: float) -> Operations:
        shape = {"stages": 4, "microbatches": 6, "is_buffered": is_buffered}
        return pipeline([HOP] * 3, slow={stage: slow}, **shape)  # type: ignore[arg-type]

    cost = window(job(6.0), 0) - window(job(1.0), 0)
    assert cost > 2.0
    # A stage's messages wait for one another, which what is seen of each does not show whole.
    assert saved_by_messages_s(prepare(job(6.0)), [stage]) == pytest.approx(cost, rel=0.25)
    assert saved_by_messages_s(prepare(job(1.0)), [stage]) == pytest.approx(0.0, abs=1e-9)
    # Those of a stage that is no neighbour are not slow.
    innocent = 3 if stage == 1 else 0
    assert saved_by_messages_s(prepare(job(6.0)), [innocent]) == pytest.approx(0.0, abs=1e-9)


def test_messages_that_no_other_stage_sends_are_beside_nothing() -> None:
    """Of two stages each has a direction of its own; a stage that is none of them sends nothing."""
    job = prepare(pipeline([HOP] * 3, slow={0: 6.0}))
    assert saved_by_messages_s(job, [0]) is None
    assert saved_by_messages_s(job, [7]) is None
