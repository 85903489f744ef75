"""The replay of small made-up pipelines, where every time can be counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from samples import pipe

from tracekit.errors import InputError, UsageError
from tracekit.whatif import (
    analyse,
    parse_remove,
    parse_scale,
    saved_by_even_lengths_s,
    saved_by_stage_s,
    saved_evenly_s,
    saved_like_replicas_s,
    to_dict,
    to_text,
    uses_operations,
)
from tracekit.whatif.graph import Op, build
from tracekit.whatif.operations import COMPUTE, FORWARD, Layout, Operations
from tracekit.whatif.replay import prepare

Row = tuple[int, int, str, int, float, float, int]
"""(stage, replica, type, sequence, start, duration, chunk)"""


def job(rows: list[Row], steps: int = 1, layout: Layout | None = None) -> Operations:
    """Operations of a job whose steps are all alike."""
    names = tuple(sorted({r[2] for r in rows}))
    replicas = max(r[1] for r in rows) + 1
    stages = max(r[0] for r in rows) + 1
    repeated = [(s, r) for s in range(steps) for r in rows]

    def ints(get: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.array([get(s, r) for s, r in repeated], np.int64)

    return Operations(
        dp_rank=ints(lambda _, r: r[1]),
        stage=ints(lambda _, r: r[0]),
        rank=ints(lambda _, r: r[0] * replicas + r[1]),
        step=ints(lambda s, _: s),
        optype=ints(lambda _, r: names.index(r[2])),
        start_s=np.array([r[4] for _, r in repeated]),
        duration_s=np.array([r[5] for _, r in repeated]),
        sequence=ints(lambda _, r: r[3]),
        chunk=ints(lambda _, r: r[6]),
        microbatch=ints(lambda _, r: r[3]),
        global_chunk=ints(lambda _, r: r[6] * stages + r[0]),
        names=names,
        layout=layout or Layout(),
    )


def two_stages(slow: float = 1.0, replicas: int = 1) -> Operations:
    """Two stages, two microbatches, F = 1, B = 2, transfers of 0; the second takes ``slow``."""
    rows: list[Row] = []
    for d in range(replicas):
        f, b = slow, 2 * slow
        # Stage 1: F0 at 1; B0 follows; F1 after B0 (1F1B); B1.
        f0, b0, f1, b1 = 1.0, 1 + f, 1 + f + b, 1 + 2 * f + b
        back0, back1 = b0 + b, b1 + b
        rows += [
            (0, d, "forward-compute", 0, 0.0, 1.0, 0),
            (0, d, "forward-compute", 1, 1.0, 1.0, 0),
            (0, d, "forward-send", 0, 1.0, 0.0, 0),
            (0, d, "forward-send", 1, 2.0, f1 - 2.0, 0),
            (0, d, "backward-recv", 0, 2.0, back0 - 2.0, 0),
            (0, d, "backward-compute", 0, back0, 2.0, 0),
            (0, d, "backward-recv", 1, back0 + 2, max(back1 - back0 - 2, 0.0), 0),
            (0, d, "backward-compute", 1, max(back1, back0 + 2), 2.0, 0),
            (1, d, "forward-recv", 0, 0.0, 1.0, 0),
            (1, d, "forward-compute", 0, f0, f, 0),
            (1, d, "backward-compute", 0, b0, b, 0),
            (1, d, "backward-send", 0, back0, 0.0, 0),
            (1, d, "forward-recv", 1, back0, 0.0, 0),
            (1, d, "forward-compute", 1, f1, f, 0),
            (1, d, "backward-compute", 1, b1, b, 0),
            (1, d, "backward-send", 1, back1, 0.0, 0),
        ]
    return job(rows, steps=3)


def test_work_dealt_out_evenly_over_the_stages() -> None:
    """Nine and three seconds a microbatch: 2 * 9 + 3 = 21 s, where six each take 3 * 6 = 18."""
    replay = prepare(two_stages(slow=3.0))
    assert saved_evenly_s(replay) == pytest.approx(3.0)
    assert saved_evenly_s(prepare(two_stages())) == pytest.approx(0.0)
    # Not believed where the measured step is longer by what was not recorded.
    late = replace(replay, end_s=replay.end_s + 2.0)
    assert saved_evenly_s(late) is None


def test_microbatches_of_one_length_take_what_all_of_them_took_together() -> None:
    """Of stage 1 all forwards take 1 s and 3 s by turns, backwards twice that: 1 + 3 * (1 + 3) and
    the last backward of stage 0, 2 s, are 15 s however they are dealt out in one replica. Of two
    replicas whose microbatches take 1 s and 3 s the longer one takes 21 s; at 2 s each it is 15."""
    replay = prepare(two_stages(slow=3.0, replicas=2))
    short = replay.ops_where(stage=1, optypes=COMPUTE)
    work = replay.work_s.copy()
    work[short, :, 1] /= 3
    uneven = replace(replay, work_s=work)
    assert saved_by_even_lengths_s(uneven) == pytest.approx(6.0)
    assert saved_by_even_lengths_s(replay) == pytest.approx(0.0)
    # Not believed where the measured step is longer by what was not recorded.
    late = replace(uneven, end_s=replay.end_s + 3.0)
    assert saved_by_even_lengths_s(late) is None


def test_a_stage_that_computes_as_its_other_replicas() -> None:
    """Of three replicas one computes 9 s a microbatch on stage 1, the others 3 s: 21 s and 9 s."""
    replay = prepare(two_stages(slow=3.0, replicas=3))
    mask = replay.ops_where(stage=1, optypes=COMPUTE)
    work = replay.work_s.copy()
    work[mask, :, 1:] /= 3
    uneven = replace(replay, work_s=work)
    assert saved_like_replicas_s(uneven, 1, 0) == pytest.approx(12.0)
    assert saved_like_replicas_s(uneven, 1, 0, least_s=12.0) == pytest.approx(12.0)
    assert saved_like_replicas_s(uneven, 1, 0, least_s=12.1) is None
    assert saved_like_replicas_s(uneven, 1, 1) is None, "it is the faster one"
    assert saved_like_replicas_s(uneven, 0, 0) == pytest.approx(0.0)
    assert saved_like_replicas_s(uneven, 2, 0) is None
    assert saved_like_replicas_s(uneven, 1, 3) is None
    assert saved_like_replicas_s(prepare(two_stages()), 1, 0) is None, "no other replica"
    late = replace(uneven, end_s=replay.end_s + 3.0)
    assert saved_like_replicas_s(late, 1, 0) is None
    # 7 s in the second forward of stage 0 hide behind the 9 s of stage 1's first microbatch.
    forwards = np.flatnonzero(replay.ops_where(stage=0, optypes=[FORWARD]))
    (second,) = [k for k in forwards if replay.template.ops[k].sequence == 1]
    work = replay.work_s.copy()
    work[second, :, 0] += 7.0
    assert saved_like_replicas_s(replace(replay, work_s=work), 0, 0, 7.0) == pytest.approx(0.0)


def test_a_stage_that_computes_as_the_others() -> None:
    """Nine and three seconds a microbatch take 21 s, three each 3 * 3 = 9."""
    replay = prepare(two_stages(slow=3.0))
    assert saved_by_stage_s(replay, 1) == pytest.approx(12.0)
    # The lighter stage would have more to do: 3 * 9 = 27 s.
    assert saved_by_stage_s(replay, 0) == pytest.approx(-6.0)
    assert saved_by_stage_s(prepare(two_stages()), 1) == pytest.approx(0.0)
    assert saved_by_stage_s(replace(replay, end_s=replay.end_s + 2.0), 1) is None
    # A stop of 7 s in one forward goes from that one: 3 * 3 + 7 s without it take 9.
    even = prepare(two_stages())
    forwards = np.flatnonzero(even.ops_where(stage=1, optypes=[FORWARD]))
    work = even.work_s.copy()
    work[forwards[0]] += 7.0
    stopped = replace(even, work_s=work, end_s=even.end_s + 7.0)
    assert saved_by_stage_s(stopped, 1) == pytest.approx(7.0)


def test_equal_stages_take_what_1f1b_takes() -> None:
    found = analyse(two_stages())
    # (m + p - 1)(F + B)
    assert found.t_base_s == pytest.approx(9.0)
    assert found.t_no_delay_s == pytest.approx(9.0)
    assert found.slowdown == pytest.approx(1.0)
    assert pipe(found).judgement.kind == "healthy"
    assert pipe(found).statistics.microbatches_count == 2
    assert pipe(found).statistics.idle_ratio_by_stage[0] == pytest.approx(1 / 3)
    assert pipe(found).statistics.expected_idle_ratio == pytest.approx(1 / 3)
    assert pipe(found).m_w.remove is None
    assert "SLOWDOWN" in to_text(found)


def test_a_slow_last_stage() -> None:
    found = analyse(two_stages(2.0))
    # m x 6 on the slow stage, and the other's F + B once.
    assert found.t_no_delay_s == pytest.approx(15.0)
    # Everything at the mean: F = 1.5, B = 3.
    assert found.t_ideal_s == pytest.approx(13.5)
    # Stage 1 at the ideal leaves 2 x 4.5 on it and the other's 3 once: 3 of the 1.5 s lost.
    assert pipe(found).m_s.t_remove_s == pytest.approx(12.0)
    assert pipe(found).m_s.remove == pytest.approx(2.0)
    assert (pipe(found).judgement.kind, pipe(found).judgement.stage) == ("stage_imbalance", 1)
    assert pipe(found).judgement.sentence == "Stage 1 computes 2.00x as long as the other stage."


def test_original_delays_give_the_original_times() -> None:
    replay = prepare(two_stages(1.5, replicas=2))
    (times,) = replay.run([replay.work_s], delays=[replay.delay_s])
    assert times == pytest.approx(replay.base_s)


def test_a_receive_that_was_posted_early_does_not_begin_the_step() -> None:
    """A stage that finished the step before early asks for its input while others still work."""
    ops = two_stages()
    early = (ops.stage == 1) & ops.is_type("forward-recv") & (ops.sequence == 0)
    start = np.where(early, -4.0, ops.start_s)
    duration = np.where(early, 5.0, ops.duration_s)
    found = analyse(replace(ops, start_s=start, duration_s=duration))
    assert found.t_base_s == pytest.approx(9.0)
    assert found.refused is None
    assert pipe(found).replay_error_s == pytest.approx(0.0)


def test_a_refusal_says_before_which_operations_the_time_passed() -> None:
    """The host of stage 1 begins its first forward 2 s after the input came."""
    ops = two_stages()
    first = (ops.stage == 0) & ops.is_type("forward-compute", "forward-send")
    first |= ops.is_type("forward-recv") & (ops.sequence == 0)
    waits = (ops.stage == 0) & (ops.sequence == 1) & ops.is_type("forward-send")
    waits |= (ops.stage == 0) & (ops.sequence == 0) & ops.is_type("backward-recv")
    start = ops.start_s + np.where(first | waits, 0.0, 2.0)
    duration = ops.duration_s + np.where(waits, 2.0, 0.0)
    found = analyse(replace(ops, start_s=start, duration_s=duration))
    assert found.t_base_s == pytest.approx(11.0)
    assert pipe(found).unplaced_by_optype_s["forward-compute"] == pytest.approx(2.0)
    assert pipe(found).unplaced_by_optype_s["backward-compute"] == pytest.approx(0.0)
    assert pipe(found).unplaced_by_stage_s == {0: pytest.approx(0.0), 1: pytest.approx(2.0)}
    assert found.refused is not None
    assert found.refused.endswith(
        "2.00 s a step pass between operations: 2.00 s before forward-compute, most on stage 1"
    )
    content = to_dict(found)
    assert content["unplaced_s_by_stage"]["1"] == pytest.approx(2.0)
    assert to_dict(analyse(two_stages()))["unplaced_s_by_optype"] == {}


def test_an_operation_waits_for_all_members_of_its_group() -> None:
    rows: list[Row] = []
    for d, late in ((0, 0.0), (1, 3.0)):
        rows += [
            (0, d, "forward-compute", 0, 0.0, 1.0 + late, 0),
            (0, d, "backward-compute", 0, 1.0 + late, 2.0, 0),
            (0, d, "gc", 0, 3.0 + late, 0.0, 0),
            (0, d, "grads-reduce-scatter", 0, 3.0 + late, 3.5 - late, 0),
            (0, d, "optimizer-clip-main-grad", 0, 6.5, 0.25, 0),
            (0, d, "optimizer", 0, 6.75, 0.25, 0),
        ]
    replay = prepare(job(rows))
    index = {op.optype: op.index for op in replay.template.ops}
    # Both transfer 0.5 s; the first waited 3 s for the other.
    assert replay.work_s[index["grads-reduce-scatter"], 0] == pytest.approx([0.5, 0.5])
    (times,) = replay.run([replay.work_s])
    assert times == pytest.approx([7.0])
    faster = replay.work_s.copy()
    faster[index["forward-compute"], 0, 1] = 1.0
    (times,) = replay.run([faster])
    assert times == pytest.approx([4.0])


def test_without_data_parallelism_the_optimizer_waits_for_no_reduction() -> None:
    rows: list[Row] = [
        (0, 0, "forward-compute", 0, 0.0, 1.0, 0),
        (0, 0, "backward-compute", 0, 1.0, 2.0, 0),
        (0, 0, "gc", 0, 3.0, 0.0, 0),
        (0, 0, "grads-reduce-scatter", 0, 3.0, 5.0, 0),
        (0, 0, "optimizer", 0, 8.0, 1.0, 0),
    ]
    alone = prepare(job(rows, layout=Layout(dp=1)))
    (times,) = alone.run([alone.work_s])
    assert times == pytest.approx([4.0])
    both = prepare(job(rows, layout=Layout(dp=2)))
    (times,) = both.run([both.work_s])
    assert times == pytest.approx([9.0])


def overlapped() -> Operations:
    """One stage of two chunks and two replicas, whose reductions overlap the backwards."""
    rows: list[Row] = []
    for d in (0, 1):
        rows += [
            (0, d, "forward-compute", 0, 0.0, 1.0, 0),
            (0, d, "forward-compute", 1, 1.0, 1.0, 1),
            (0, d, "backward-compute", 0, 2.0, 1.0, 1),
            (0, d, "backward-compute", 1, 3.0, 1.0, 0),
            (0, d, "grads-reduce-scatter", 0, 3.0, 0.5, 1),
            (0, d, "grads-reduce-scatter", 1, 4.0, 0.5, 0),
            (0, d, "gc", 0, 4.0, 0.0, 0),
            (0, d, "layernorm-grads-all-reduce", 0, 4.5, 0.25, 0),
            (0, d, "separate-grads-all-reduce", 0, 4.75, 0.25, 0),
            (0, d, "optimizer-clip-main-grad", 0, 5.0, 0.25, 0),
            (0, d, "optimizer", 0, 5.25, 0.25, 0),
        ]
    return job(rows)


def test_overlapped_reductions_follow_their_chunk_not_the_tail() -> None:
    replay = prepare(overlapped())
    deps = {
        (op.optype, op.sequence): {
            (replay.template.ops[i].optype, replay.template.ops[i].sequence)
            for i in replay.template.deps[op.index]
        }
        for op in replay.template.ops
    }
    assert ("backward-compute", 0) in deps["grads-reduce-scatter", 0]
    assert ("backward-compute", 1) in deps["grads-reduce-scatter", 1]
    assert deps["layernorm-grads-all-reduce", 0] == {("gc", 0), ("grads-reduce-scatter", 1)}
    assert deps["optimizer-clip-main-grad", 0] == {("separate-grads-all-reduce", 0)}
    (times,) = replay.run([replay.work_s])
    assert times == pytest.approx([5.5])


@pytest.mark.parametrize("operations", [two_stages(1.5, replicas=2), overlapped()])
def test_each_operation_ends_when_its_definition_says(operations: Operations) -> None:
    """Read off the template: the latest end of what it waits for, its delay, then its work after
    the last of its group has begun, over all replicas where these are members."""
    replay = prepare(operations)
    ops, deps = replay.template.ops, replay.template.deps
    chance = np.random.default_rng(7)
    work, delay = (chance.uniform(0.0, 3.0, replay.work_s.shape) for _ in range(2))
    expected = np.zeros_like(work)
    for members, is_dp_synced in replay.template.groups:
        begun = []
        for op in members:
            before = [expected[b] for b in deps[op]]
            begun.append((np.max(before, axis=0) if before else 0.0) + delay[op])
        latest = np.max(begun, axis=0)
        latest = latest.max(axis=1, keepdims=True) if is_dp_synced else latest
        for op in members:
            expected[op] = latest + work[op]
    assert replay.ends_s(work, delay) == pytest.approx(expected, rel=1e-12)
    last = [op.index for op in ops if op.optype == "optimizer"] or [op.index for op in ops]
    (times,) = replay.run([work], delays=[delay])
    assert times == pytest.approx(expected[last].max(axis=(0, 2)), rel=1e-12)


def test_chunks_wrap_around_and_what_moves_nothing_is_matched_with_nothing() -> None:
    """Two stages of two chunks: stage 1 sends chunk 0's output to stage 0's chunk 1."""
    ops = []
    for stage in (0, 1):
        for k, chunk in enumerate((0, 1)):
            at = 2.0 * k + stage
            glob = chunk * 2 + stage
            ops += [
                Op("forward-recv", k, stage, at - 0.1, at, -1, -1),
                Op("forward-compute", k, stage, at, at + 0.9, chunk, glob),
                Op("forward-send", k, stage, at + 0.9, at + 1, -1, -1),
            ]
    template = build(ops, has_dp=False)
    groups = {
        tuple(sorted((template.ops[i].optype, template.ops[i].stage, template.ops[i].sequence)
                     for i in members))
        for members, _ in template.groups if len(members) > 1
    }  # fmt: skip
    assert (("forward-recv", 0, 1), ("forward-send", 1, 0)) in groups
    assert (("forward-recv", 1, 0), ("forward-send", 0, 0)) in groups
    assert (("forward-recv", 1, 1), ("forward-send", 0, 1)) in groups
    assert len(groups) == 3
    noop = {(op.optype, op.stage, op.sequence) for op in ops if op.is_noop}
    assert noop == {("forward-recv", 0, 0), ("forward-send", 1, 1)}


def test_the_first_receive_may_be_missing() -> None:
    ops = [
        Op("forward-compute", 0, 0, 0.0, 0.9, 0, 0),
        Op("forward-recv", 0, 0, 1.9, 2.0, -1, -1),
        Op("forward-compute", 1, 0, 2.0, 2.9, 1, 2),
        Op("forward-compute", 0, 1, 1.0, 1.8, 0, 1),
        Op("forward-send", 0, 1, 1.8, 2.0, -1, -1),
        Op("forward-compute", 1, 1, 3.0, 3.9, 1, 3),
    ]
    template = build(ops, has_dp=False)
    assert (1, 4) in {tuple(sorted(members)) for members, _ in template.groups}
    assert template.deps[2] == (0, 1)


def test_steps_that_differ_are_left_out() -> None:
    ops = two_stages()
    keep = ~((ops.step == 1) & (ops.stage == 0) & (ops.sequence == 1))
    found = analyse(ops.take(keep))
    assert found.steps == (0, 2)
    assert found.dropped_steps == (1,)
    assert to_dict(found)["steps_count"] == 2


def test_ranks_that_wait_for_each_other_in_a_circle_are_refused() -> None:
    ops = [
        Op("forward-compute", 0, 0, 1.0, 2.0, 0, 0),
        Op("forward-send", 0, 0, 0.0, 0.1, -1, -1),
        Op("forward-compute", 1, 0, 3.0, 4.0, 0, 0),
        Op("backward-compute", 0, 0, 0.0, 0.5, 0, 0),
        Op("backward-recv", 0, 0, 0.0, 0.1, -1, -1),
        Op("backward-send", 0, 1, 4.0, 5.0, -1, -1),
        Op("backward-compute", 0, 1, 3.0, 4.0, 0, 0),
        Op("forward-compute", 0, 1, 1.0, 2.0, 0, 0),
        Op("forward-recv", 0, 1, 0.5, 1.0, -1, -1),
    ]
    build(ops, has_dp=False)  # odd, and in order
    crossed = [
        Op("forward-compute", 0, 0, 1.0, 2.0, 0, 0),
        Op("forward-send", 0, 0, 2.0, 2.1, -1, -1),
        Op("backward-compute", 0, 0, 0.0, 0.5, 0, 0),
        Op("backward-recv", 0, 0, -0.1, 0.0, -1, -1),
        Op("forward-recv", 0, 1, 0.0, 1.0, -1, -1),
        Op("forward-compute", 0, 1, 1.0, 2.0, 0, 0),
        Op("backward-compute", 0, 1, 2.0, 3.0, 0, 0),
        Op("backward-send", 0, 1, 3.0, 3.1, -1, -1),
    ]
    with pytest.raises(InputError, match="circle"):
        build(crossed, has_dp=False)


def test_nothing_to_replay() -> None:
    with pytest.raises(InputError, match="no pipeline operations"):
        analyse(two_stages().take(slice(0, 0)))


@pytest.mark.parametrize("text", ["rank", "rank=", "who=1", "comm=fax"])
def test_causes_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError):
        parse_remove(text)


@pytest.mark.parametrize(
    "text", ["stage=3", "stage=3:forward", "stage=3:forward=x", "a=1=2", "", "rank=1=2.3.4"]
)
def test_factors_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError):
        parse_scale(text)


@pytest.mark.parametrize(
    "text", ["rank=99", "stage=9", "dp=4", "op=nothing", "rank=x", "comm=tp", "host=h0"]
)
def test_causes_that_name_nothing(text: str) -> None:
    with pytest.raises(UsageError):
        analyse(two_stages(), [parse_remove(text)])


@pytest.mark.parametrize(
    ("text", "is_of_pipelines"),
    [
        ("op=forward-compute", True),
        ("op=all_reduce", False),
        ("comm=embedding", True),
        ("comm=dp", False),
        ("rank=7", False),
        ("rank=7:forward=2", True),
        ("rank=7:all=2", False),
    ],
)
def test_which_causes_only_the_replay_of_a_pipeline_knows(text: str, is_of_pipelines: bool) -> None:
    read = parse_scale if ":" in text else parse_remove
    assert uses_operations(read(text)) == is_of_pipelines


def test_a_rank_and_a_type_can_be_scaled() -> None:
    causes = [parse_scale("rank=1:all=0.5"), parse_scale("op=forward-compute=1"),
              parse_scale("dp=0:compute=2"), parse_remove("op=backward-compute")]  # fmt: skip
    rank, same, double, ideal = analyse(two_stages(2.0), causes).causes
    assert rank.t_s == pytest.approx(9.0)
    assert same.t_s == pytest.approx(15.0)
    assert double.t_s == pytest.approx(30.0)
    # F stays 1 and 2, B becomes 3 everywhere: 2 x 5 on the slow stage and 4 once.
    assert ideal.t_s == pytest.approx(14.0)


def test_sequence_lengths_move_forward_and_backward_together() -> None:
    rng = np.random.default_rng(7)
    rows: list[Row] = []
    now = 0.0
    for k in range(12):
        length = float(rng.uniform(0.5, 2.0))
        rows += [
            (0, d, kind, k, now if kind[0] == "f" else 100 + now, w * length, 0)
            for d in (0, 1)
            for kind, w in (("forward-compute", 1.0), ("backward-compute", 2.0))
        ]
        now += 4.0
    found = prepare(job(rows, steps=2))
    from tracekit.whatif.symptoms import judge

    judgement = judge(found, 1.5, {0: 1.0}, None)
    assert judgement.kind == "sequence_imbalance"
    assert judge(found, 1.05, {0: 1.0}, None).kind == "healthy"


def test_a_refused_replay_claims_no_stage() -> None:
    ops = two_stages(2.0)
    late = ops.start_s + 5.0 * (ops.start_s > 7.0)  # five seconds that no operation accounts for
    found = analyse(replace(ops, start_s=late))
    assert found.refused is not None
    assert pipe(found).judgement.kind == "unexplained"
    assert "REFUSED" in to_text(found)
    assert to_dict(found)["slowdown"] is None


def test_no_share_of_the_loss_is_more_than_all_of_it() -> None:
    found = analyse(two_stages(2.0))
    share = replace(pipe(found).m_w, remove=1.15, add=-0.02, ranks=(3,))
    told = to_text(replace(found, pipeline=replace(pipe(found), m_w=share)))
    assert "(rank 3): 1.00 of the loss goes with them, 0.00 comes with them alone" in told
