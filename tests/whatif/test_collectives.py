"""The coarse replay on hand-made calls; times are in ms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.errors import InputError, UsageError
from tracekit.whatif import CollectiveReplay, parse_remove, parse_scale

MS = 1_000_000
TRANSFER = 2

Rows = list[dict[str, Any]]


def call(rank: int, instance: int | None, start: float, end: float, **more: Any) -> dict[str, Any]:
    return {
        "capture_id": 0,
        "rank": rank,
        "instance_id": instance,
        "op": "all_reduce",
        "group_id": "g",
        "kind": "dp",
        "members_count": 2,
        "root": None,
        "message_bytes": 1000,
        "timeline": "device",
        "start_ns": round(start * MS),
        "end_ns": round(end * MS),
        **more,
    }


def span(rank: int, start: float, end: float, **more: Any) -> dict[str, Any]:
    return {
        "capture_id": 0,
        "rank": rank,
        "start_ns": round(start * MS),
        "end_ns": round(end * MS),
        **more,
    }


_CALL = pa.schema(
    [
        *((n, pa.int64()) for n in ("capture_id", "rank", "instance_id")),
        *((n, pa.string()) for n in ("op", "group_id", "kind")),
        *((n, pa.int64()) for n in ("members_count", "root", "message_bytes")),
        ("timeline", pa.string()),
        *((n, pa.int64()) for n in ("start_ns", "end_ns")),
    ]
)
_SPAN = pa.schema([(n, pa.int64()) for n in ("capture_id", "rank", "start_ns", "end_ns")])
_STEP = pa.schema([*_SPAN, ("step", pa.int64())])


def replay(calls: Rows, stalls: Rows, steps: Rows) -> CollectiveReplay:
    return CollectiveReplay(
        pa.Table.from_pylist(calls, _CALL),
        pa.Table.from_pylist(stalls, _SPAN),
        pa.Table.from_pylist(steps, _STEP),
    )


def synchronous(own: Sequence[Mapping[int, float]], **more: Any) -> CollectiveReplay:
    """Every step: each rank works for its time, then all reduce for 2 ms."""
    calls, stalls, steps, now = [], [], [], 0.0
    for number, times in enumerate(own):
        end = now + max(times.values()) + TRANSFER
        for rank, ms in times.items():
            calls.append(call(rank, number, now + ms, end, **{"members_count": len(times), **more}))
            stalls.append(span(rank, now + ms, end))
            steps.append(span(rank, now, end, step=number))
        now = end
    return replay(calls, stalls, steps)


def test_a_late_rank_and_the_job_without_it() -> None:
    found = synchronous([{0: 10, 1: 10, 2: 15}] * 3).analyse([parse_remove("rank=2")])
    assert found.t_base_s == found.t_no_delay_s == pytest.approx(0.017)
    assert found.simulation_error_ratio == 0
    assert found.causes[0].t_s == pytest.approx(0.012)
    assert found.causes[0].saved_s_per_step == pytest.approx(0.005)
    assert found.slowdown == pytest.approx(17 / 12)
    assert found.slowdown_by_rank == pytest.approx({0: 1, 1: 1, 2: 17 / 12})
    assert found.saved_s_by_rank == pytest.approx({2: 0.005})
    assert found.steps == (0, 1, 2)
    assert list(found.per_step.values()) == [pytest.approx((0.017, 0.017, 0.012))] * 3


@pytest.mark.parametrize("swapped_steps", [(), (1,), (0, 1, 2)])
def test_calls_side_by_side_may_begin_in_another_order_on_a_peer(
    swapped_steps: tuple[int, ...],
) -> None:
    """Threads of their own make them; a late rank of two still does what the other does."""
    calls, stalls, steps, now = [], [], [], 0.0
    for number in range(3):
        end = now + 105.5
        for rank, ms in {0: 5.0, 1: 105.0}.items():
            is_swapped = rank == 0 and number in swapped_steps
            for place, size in enumerate((1000, 2000)):
                start = now + ms + 0.125 * (1 - place if is_swapped else place)
                made = call(rank, 2 * number + place, start, end, message_bytes=size)
                calls.append(made)
            stalls.append(span(rank, now + ms + 0.125, end))
            steps.append(span(rank, now, end, step=number))
        now = end
    found = replay(calls, stalls, steps).analyse([parse_remove("rank=1")])
    assert found.causes[0].saved_s_per_step == pytest.approx(0.1, abs=0.000125)


def exchange(work: Mapping[int, float], transfers: Mapping[int, float]) -> CollectiveReplay:
    """An all-to-all of 1 ms, each member's expert, another that each leaves when its share is in,
    and an all-reduce after 1 ms."""
    out = max(work.values()) + 1
    done = out + max(transfers.values())
    calls, stalls, steps = [], [], []
    for rank, ms in work.items():
        own = {"members_count": len(work), "op": "all_to_all"}
        left = out + transfers[rank]
        calls += [call(rank, 0, 0, 1, **own), call(rank, 1, 1 + ms, left, **own),
                  call(rank, 2, left + 1, done + 3, members_count=len(work))]  # fmt: skip
        stalls += [span(rank, 0, 1), span(rank, 1 + ms, left), span(rank, left + 1, done + 3)]
        steps.append(span(rank, 0, done + 3, step=0))
    return replay(calls, stalls, steps)


@pytest.mark.parametrize(
    ("work", "transfers", "saved_ms"),
    [
        ({0: 4, 1: 4, 2: 4}, {0: 2, 1: 2, 2: 2}, 0),
        ({0: 2, 1: 8, 2: 2}, {0: 2, 1: 2, 2: 2}, 4),  # 8 become the mean, 4
        ({0: 4, 1: 4, 2: 4}, {0: 1, 1: 7, 2: 1}, 4),  # 7 become 3
    ],
    ids=["even", "a hot expert", "a full inbox"],
)
def test_what_experts_would_take_if_their_work_were_dealt_out_evenly(
    work: dict[int, float], transfers: dict[int, float], saved_ms: float
) -> None:
    job = exchange(work, transfers)
    even_s = job.step_s_evenly()
    assert even_s is not None
    assert (job.step_s - even_s) * 1e3 == pytest.approx(saved_ms)


def test_without_an_exchange_nothing_is_dealt_out() -> None:
    assert synchronous([{0: 10, 1: 10, 2: 15}]).step_s_evenly() is None


def test_two_late_ranks_must_both_go() -> None:
    job = synchronous([{0: 10, 1: 10, 2: 15, 3: 15, 4: 10}])
    found = job.analyse([parse_remove("rank=2"), parse_remove("rank=2,3")])
    assert found.causes[0].saved_s_per_step == pytest.approx(0)
    assert found.causes[1].saved_s_per_step == pytest.approx(0.005)
    assert found.slowdown_by_rank[2] == found.slowdown_by_rank[3] == pytest.approx(17 / 12)


def test_work_and_transfers_can_be_scaled_and_removed() -> None:
    job = synchronous([{0: 10, 1: 20}])
    found = job.analyse(
        [
            parse_scale("rank=1:all=0.5"),
            parse_remove("comm=dp"),
            parse_remove("comm=all"),
            parse_scale("op=all_reduce=3"),
            parse_scale("rank=1:all=0"),
        ]
    )
    assert [c.t_s for c in found.causes] == pytest.approx([0.012, 0.020, 0.020, 0.026, 0.012])


@pytest.mark.parametrize("text", ["rank=7", "rank=x", "rank=0,9", "comm=tp", "op=send", "stage=1"])
def test_a_cause_that_the_job_lacks_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no "):
        synchronous([{0: 10, 1: 20}]).analyse([parse_remove(text)])


def test_the_leaves_of_a_broadcast_hold_up_nobody() -> None:
    job = synchronous([{0: 10, 1: 10, 2: 15}], op="broadcast", root=0)
    # The measured end of ranks 0 and 1 is 17; they waited for the root alone.
    found = job.analyse([parse_remove("rank=2")])
    assert found.t_base_s == pytest.approx(0.017)
    assert found.causes[0].saved_s_per_step == pytest.approx(0.0)


def test_a_hidden_collective_costs_nothing() -> None:
    """Rank 1 enters late, and nobody stops for it."""
    calls = [call(0, 0, 2, 9), call(1, 0, 8, 9)]
    steps = [span(0, 0, 20, step=0), span(1, 0, 20, step=0)]
    found = replay(calls, [], steps).analyse([parse_remove("rank=1"), parse_remove("comm=dp")])
    assert [c.t_s for c in found.causes] == pytest.approx([0.020, 0.020])


def test_a_pause_between_kernels_is_no_wait() -> None:
    """The collective ends in a gap of 4 us: by chance."""
    calls = [call(0, 0, 2, 9), call(1, 0, 8, 9)]
    steps = [span(0, 0, 20, step=0), span(1, 0, 20, step=0)]
    gap = [span(0, 8.998, 9.002)]
    assert replay(calls, gap, steps).analyse([parse_remove("comm=dp")]).causes[
        0
    ].saved_s_per_step == pytest.approx(0)


def test_queued_calls_may_have_been_ready_long() -> None:
    """Bucket b waits behind bucket a, which waits for rank 2; on rank 2 nothing is queued.

    Own time is 14 ms, rank 2's 20. On rank 2 bucket b was ready when 0.7 of it was done, on the
    others not later than when 10 of 14 ms were.
    """
    calls = [call(r, 0, 5, 12, members_count=3) for r in (0, 1)]
    calls += [call(r, 1, 12.001, 16, members_count=3) for r in (0, 1)]
    calls += [call(2, 0, 10, 12, members_count=3), call(2, 1, 14, 16, members_count=3)]
    stalls = [span(r, 10, 16) for r in (0, 1)]
    steps = [span(r, 0, 20, step=0) for r in range(3)]
    found = replay(calls, stalls, steps).analyse([parse_remove("rank=2")])
    assert found.t_base_s == found.t_no_delay_s == pytest.approx(0.020)
    # b from 0.7 x 14 = 9.8 to 11.8, then the 4 ms that follow it; without that, 10 to 12.
    assert found.causes[0].t_s == pytest.approx(0.0158, abs=2e-6)


def test_calls_without_all_members_count_as_own_time() -> None:
    whole = synchronous([{0: 10, 1: 20}])
    assert whole.analyse().calls_count == 2
    calls = [call(0, 0, 10, 22), call(1, 0, 20, 22), call(0, 1, 23, 30), call(0, None, 31, 32)]
    stalls = [span(0, 10, 22), span(1, 20, 22), span(0, 23, 30)]
    steps = [span(r, 0, 40, step=0) for r in (0, 1)]
    found = replay(calls, stalls, steps).analyse([parse_remove("comm=all")])
    assert (found.calls_count, found.unmatched_count) == (2, 2)
    assert found.causes[0].t_s == pytest.approx(0.038)


@pytest.mark.parametrize(
    ("lost_ms", "is_unmatched", "is_refused"),
    [(1.0, True, False), (1.2, True, True), (1.2, False, False)],
)
def test_stalls_in_which_an_unmatched_call_runs_say_nothing(
    lost_ms: float, is_unmatched: bool, is_refused: bool
) -> None:
    """They count as own time, so that the replay gives the measured 22 ms back all the same.

    A stall in which no call ended, matched or not, is the rank's own: nobody was waited for.
    """
    calls = [call(r, 0, 20, 22) for r in (0, 1)]
    calls += [call(1, None, 5, 5 + lost_ms)] if is_unmatched else []
    stalls = [span(0, 20, 22), span(1, 20, 22), span(1, 5, 5 + lost_ms)]
    found = replay(calls, stalls, [span(r, 0, 22, step=0) for r in (0, 1)])
    assert found.error_ratio == pytest.approx(0)
    for refused in (found.refused, found.analyse().refused):
        assert (refused is not None) is is_refused
        assert not is_refused or "not matched across ranks" in str(refused)


@pytest.mark.parametrize(("lost_ms", "is_refused"), [(1.0, False), (1.5, True)])
def test_a_stall_is_explained_up_to_the_matched_call_that_ended_last(
    lost_ms: float, is_refused: bool
) -> None:
    """A call of 2 ms ends in the stall; after it nobody knows for whom the rank waited."""
    calls = [call(r, 0, 10, 12) for r in (0, 1)] + [call(1, None, 9, 12 + lost_ms)]
    stalls = [span(0, 10, 12), span(1, 10, 12 + lost_ms)]
    found = replay(calls, stalls, [span(r, 0, 25, step=0) for r in (0, 1)])
    assert found.error_ratio == pytest.approx(0)
    assert (found.refused is not None) is is_refused


@pytest.mark.parametrize(
    ("late_ms", "timeline", "saved_ms"),
    [(0, "host", 50), (3, "host", 50), (5, "host", 50), (5.1, "host", 0), (3, "device", 0)],
)
def test_a_range_on_the_host_may_end_after_the_rank_went_on(
    late_ms: float, timeline: str, saved_ms: float
) -> None:
    """Rank 0 waits 52 ms for rank 1 and works for 8 more; the thread that records is late."""
    calls = [call(0, 0, 10, 62 + late_ms), call(1, 0, 60, 62)]
    stalls = [span(0, 10, 62), span(1, 60, 62)]
    job = replay(
        [{**row, "timeline": timeline} for row in calls],
        stalls,
        [span(r, 0, 70, step=0) for r in (0, 1)],
    )
    assert job.error_ratio == pytest.approx(0)
    assert (job.step_s - job.step_s_without([1])) * 1e3 == pytest.approx(saved_ms)


def test_nor_does_it_matter_that_the_range_before_it_ends_there_too() -> None:
    """The first of two calls is recorded into the stall for the second and ends no stall."""
    calls = [
        *(call(0, 0, 5, 11, timeline="host"), call(1, 0, 5, 11, timeline="host")),
        *(call(0, 1, 9, 65, timeline="host"), call(1, 1, 60, 62, timeline="host")),
    ]
    stalls = [span(0, 10, 62), span(1, 60, 62)]
    job = replay(calls, stalls, [span(r, 0, 70, step=0) for r in (0, 1)])
    assert job.error_ratio == pytest.approx(0)
    assert job.step_s_without([1]) == pytest.approx(0.019)  # entered at 9, left at 11, 8 to do


def test_a_rank_that_stands_still_by_itself_beside_a_call_goes_on_when_it_will() -> None:
    """Nobody came while it stood: what ends soon after ended no stall."""
    calls = [call(r, 0, 5, 43, timeline="host") for r in (0, 1)]
    job = replay(calls, [span(0, 10, 40)], [span(0, 0, 50, step=0), span(1, 0, 50, step=0)])
    assert job.error_ratio == pytest.approx(0)
    assert job.step_s_without([1]) == pytest.approx(job.step_s)


def test_nothing_matched_is_said() -> None:
    steps = [span(r, 0, 40, step=0) for r in (0, 1)]
    for calls in (
        [],
        [call(0, None, 1, 2)],
        [call(0, 3, 1, 2)],
        [call(0, 3, 1, 2, members_count=None)],
    ):
        with pytest.raises(InputError, match="nothing to replay"):
            replay(list(calls), [], steps)
    with pytest.raises(InputError, match="nothing to replay"):
        replay([call(0, 0, 1, 2), call(1, 0, 1, 2)], [], [])


def test_a_hole_in_the_steps_keeps_the_longest_run() -> None:
    calls, stalls, steps = [], [], []
    for step, start in ((0, 0), (2, 40), (3, 60)):
        for rank, ms in ((0, 10), (1, 12)):
            calls.append(call(rank, step, start + ms, start + 14))
            stalls.append(span(rank, start + ms, start + 14))
            steps.append(span(rank, start, start + 20, step=step))
    found = replay(calls, stalls, steps).analyse()
    assert (found.steps, found.dropped_steps) == ((2, 3), (0,))


@settings(max_examples=40)
@given(
    st.integers(2, 5).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(1, 60), min_size=n, max_size=n), min_size=1, max_size=5
        )
    )
)
def test_what_was_measured_is_given_back(times: list[list[int]]) -> None:
    job = synchronous([dict(enumerate(step)) for step in times])
    found = job.analyse([parse_remove(f"rank={r}") for r in range(len(times[0]))])
    assert found.t_no_delay_s == pytest.approx(found.t_base_s, rel=1e-9)
    assert found.refused is None
    slowest = max(max(step) for step in times)
    for cause in found.causes:
        assert 0 < cause.t_s <= (slowest + TRANSFER) / 1e3 + 1e-9


def stopped(
    slower_ms: Sequence[Sequence[float]], longer_ms: Sequence[Sequence[float]]
) -> CollectiveReplay:
    """Three ranks, of each step three parts of 10 ms and an all-reduce of 2: by step and part, what
    rank 2 takes longer, and what its all-reduce does."""
    calls, stalls, steps, now, number = [], [], [], 0.0, 0
    for step, (slower, longer) in enumerate(zip(slower_ms, longer_ms, strict=True)):
        begin = now
        for own_ms, more_ms in zip(slower, longer, strict=True):
            end = now + 10 + own_ms + TRANSFER + more_ms
            for rank in range(3):
                enters = now + 10 + (own_ms if rank == 2 else 0)
                calls.append(call(rank, number, enters, end, members_count=3))
                stalls.append(span(rank, enters, end))
            now, number = end, number + 1
        steps += [span(rank, begin, now, step=step) for rank in range(3)]
    return replay(calls, stalls, steps)


STOPS = [[8, 0, 0], [0, 8, 0], [0, 0, 8], [8, 0, 0], [0, 8, 0], [0, 0, 8]]
BEHIND = [[0, 8, 0], [0, 0, 8], [8, 0, 0], [0, 8, 0], [0, 0, 8], [8, 0, 0]]
"""The transfers that a stop meets: 8 ms a step."""


def saved_ms(job: CollectiveReplay) -> tuple[float, float]:
    """What a step takes less without rank 2, and what it does by that rank's work alone."""
    both = job.step_s_without([2]), job.step_s_without_work([2])
    whole, work = ((job.step_s - without_s) * 1e3 for without_s in both)
    return whole, work


def test_the_transfers_of_a_stopped_rank_stand_still_with_it() -> None:
    job = stopped(STOPS, BEHIND)
    assert job.stopped([0, 1, 2]) == [2]
    assert saved_ms(job) == pytest.approx((16, 8))
    # Whoever asks gets one answer.
    assert job.analyse([parse_remove("rank=2")]).causes[0].saved_s_per_step == pytest.approx(0.016)
    # A rank that nothing stops gets nothing for its peer's stops.
    assert job.step_s_without([0]) == job.step_s_without_work([0])


def test_where_transfers_last_no_longer_a_stopped_rank_costs_its_work() -> None:
    assert saved_ms(stopped(STOPS, [[0, 0, 0]] * 6)) == pytest.approx((8, 8))


@pytest.mark.parametrize(
    "slower",
    [
        [[3, 3, 3]] * 6,
        [[8, 0, 0], [8, 0, 0], [0, 0, 0], [8, 0, 0], [0, 0, 0], [0, 0, 0]],
        [[0.8, 0, 0], [0, 0.8, 0], [0, 0, 0.8]] * 2,
        [[0, 0, 0]] * 6,
    ],
    ids=["slow throughout", "always in one place", "a hair slower", "healthy"],
)
def test_a_rank_that_is_not_stopped_pays_for_no_transfer(slower: list[list[float]]) -> None:
    job = stopped(slower, BEHIND)
    assert job.stopped([0, 1, 2]) == []
    whole, work = saved_ms(job)
    assert whole == work


@pytest.mark.parametrize(("steps_count", "is_stopped"), [(4, False), (6, True)])
def test_few_steps_do_not_tell_a_stop(steps_count: int, is_stopped: bool) -> None:
    job = stopped(STOPS[:steps_count], BEHIND[:steps_count])
    assert job.stopped([2]) == [2] * is_stopped
