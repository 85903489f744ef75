"""The replay of launches and streams on hand-made operations; times are in us."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.errors import InputError, UsageError
from tracekit.whatif import Places, StreamReplay, WhatIf, parse_remove, parse_scale
from tracekit.whatif.calls import Call, settled_clocks, step_s
from tracekit.whatif.executor import Executor
from tracekit.whatif.streams import compiled
from tracekit.whatif.streams.compiled import compile_rank, compile_ranks
from tracekit.whatif.streams.scenarios import _cut

US = 1000
COMPUTE, COMM = 7, 20
LATENCY, GAP = 3, 1
Rows = list[dict[str, Any]]


def raw_step_s(replay: StreamReplay) -> float:
    """Replayed length of a step with everything as it was, unexplained delays included: it must be
    what was measured."""
    windows = replay.windows
    return step_s(
        [w.calls for w in windows],
        [{r: compile_rank(one, [one.blocks]) for r, one in w.ranks.items()} for w in windows],
    )


_OPERATION = pa.schema(
    [
        *((n, pa.int64()) for n in ("capture_id", "rank", "stream", "name")),
        *((n, pa.bool_()) for n in ("is_compute", "is_communication")),
        *((n, pa.int64()) for n in ("launch_ns", "start_ns", "end_ns", "instance_id")),
        *((n, pa.string()) for n in ("op", "group_id", "kind")),
        *((n, pa.int64()) for n in ("members_count", "root", "message_bytes")),
    ]
)
_SYNC = pa.schema(
    [("capture_id", pa.int64()), ("rank", pa.int64()), ("is_device", pa.bool_()),
     ("start_ns", pa.int64()), ("end_ns", pa.int64())]
)  # fmt: skip
_STEP = pa.schema([(n, pa.int64()) for n in ("capture_id", "rank", "step", "start_ns", "end_ns")])


class Job:
    """A small engine: each step a rank computes, all reduce, all compute, the host waits.

    ``compute`` by (rank, step) is the first kernel, ``host`` the host's time before it. The second
    kernel waits for the collective. ``second`` launches a kernel that waits for nothing new.
    """

    def __init__(
        self,
        compute: Mapping[tuple[int, int], float],
        host: Mapping[tuple[int, int], float] | None = None,
        *,
        ranks: int = 3,
        steps: int = 3,
        transfer: float = 200,
        stray: float = 0,
        skew: Mapping[int, float] | None = None,
        matched: bool = True,
    ) -> None:
        self.operations: Rows = []
        self.syncs: Rows = []
        self.steps: Rows = []
        skew = skew or {}
        now = dict.fromkeys(range(ranks), 0.0)
        for step in range(steps):
            ready, begin = {}, dict(now)
            launched = {}
            for rank in range(ranks):
                now[rank] += (host or {}).get((rank, step), 50)
                start = now[rank] + LATENCY
                end = start + compute.get((rank, step), 1000)
                self._add(rank, COMPUTE, 1, now[rank], start, end, skew)
                now[rank] += 10
                ready[rank] = max(end, now[rank] + LATENCY)
                launched[rank] = now[rank]
            left = max(ready.values()) + transfer
            for rank in range(ranks):
                self._add(
                    rank, COMM, 2, launched[rank], ready[rank], left, skew,
                    instance_id=step if matched else None, op="all_reduce", group_id="g", kind="dp",
                    members_count=ranks, message_bytes=4096,
                )  # fmt: skip
                now[rank] += 10
                start = left + stray
                self._add(rank, COMPUTE, 3, now[rank], start, start + 300, skew)
                now[rank] += 10
                wait = now[rank]
                now[rank] = start + 300 + 5
                self.syncs.append(
                    {"capture_id": 0, "rank": rank, "is_device": False,
                     **self._span(wait, now[rank], skew.get(rank, 0))}
                )  # fmt: skip
                self.steps.append(
                    {"capture_id": 0, "rank": rank, "step": step,
                     **self._span(begin[rank], now[rank], skew.get(rank, 0))}
                )  # fmt: skip
        self.step_us = max(now.values()) / steps

    @staticmethod
    def _span(start: float, end: float, skew: float) -> dict[str, int]:
        return {"start_ns": round((start + skew) * US), "end_ns": round((end + skew) * US)}

    def _add(
        self, rank: int, stream: int, name: int, launch: float, start: float, end: float,
        skew: Mapping[int, float], **more: Any,
    ) -> None:  # fmt: skip
        by = skew.get(rank, 0)
        self.operations.append(
            {"capture_id": 0, "rank": rank, "stream": stream, "name": name,
             "is_compute": stream == COMPUTE, "is_communication": stream == COMM,
             "launch_ns": round((launch + by) * US), **self._span(start, end, by), **more}
        )  # fmt: skip

    def replay(self, places: Places | None = None) -> StreamReplay:
        return StreamReplay(
            pa.Table.from_pylist(self.operations, _OPERATION),
            pa.Table.from_pylist(self.syncs, _SYNC),
            pa.Table.from_pylist(self.steps, _STEP),
            places,
        )

    def analyse(self, *causes: str, places: Places | None = None) -> WhatIf:
        return self.replay(places).analyse([parse_remove(c) for c in causes])


Times = dict[tuple[int, int], float]


def always(rank: int, value: float, steps: Iterable[int] = range(3)) -> Times:
    return {(rank, step): value for step in steps}


HEALTHY = Job({})


def test_what_was_measured_is_given_back() -> None:
    job = Job(always(1, 1700))
    found = job.analyse()
    assert found.t_base_s == pytest.approx(job.step_us / 1e6, rel=1e-9)
    assert raw_step_s(job.replay()) == pytest.approx(found.t_base_s, rel=1e-9)
    assert found.t_no_delay_s == pytest.approx(found.t_base_s, rel=1e-3)
    assert (found.refused, found.method) == (None, "streams")


@pytest.mark.parametrize(
    ("compute", "host"), [(always(1, 1700), {}), ({}, always(1, 900)), (always(1, 1100, [1]), {})]
)
def test_a_rank_without_its_delay_is_the_healthy_job(
    compute: dict[tuple[int, int], float], host: dict[tuple[int, int], float]
) -> None:
    """Slow on its GPU, slow on its host, slow in one step only."""
    job = Job(compute, host)
    found = job.analyse("rank=1", "rank=0")
    assert found.causes[0].t_s == pytest.approx(HEALTHY.step_us / 1e6, rel=1e-3)
    assert found.causes[1].saved_s_per_step == pytest.approx(0, abs=1e-6)
    assert max(found.slowdown_by_rank, key=lambda r: found.slowdown_by_rank[r]) == 1
    assert found.causes[0].method == "streams"


def test_a_delay_behind_the_device_costs_nothing() -> None:
    """The host comes late to the second kernel, which waits for the collective anyway."""
    job = Job({})
    for row in job.operations:
        if row["rank"] == 1 and row["name"] == 3:
            row["launch_ns"] += 400 * US
    for row in job.syncs:
        if row["rank"] == 1:
            row["start_ns"] += 400 * US
    assert job.analyse("rank=1").causes[0].saved_s_per_step == pytest.approx(0, abs=1e-6)


def test_waits_are_learned_from_peers() -> None:
    """The late rank itself never waits for the collective: its transfer is short beside its host.

    Without its delay it must, as its peers do.
    """
    job = Job({}, always(1, 5000))
    found = job.analyse("rank=1", "comm=dp")
    assert found.causes[0].t_s == pytest.approx(HEALTHY.step_us / 1e6, rel=1e-3)
    assert found.causes[1].saved_s_per_step == pytest.approx(200e-6, abs=5e-6)


def test_what_all_ranks_do_in_one_step_is_held_against_other_steps() -> None:
    host = {(rank, 1): 4000.0 for rank in range(3)}
    found = Job({}, host).analyse("rank=0,1,2")
    assert found.causes[0].t_s == pytest.approx(HEALTHY.step_us / 1e6, rel=1e-3)


def test_stages_are_no_peers_but_names_are() -> None:
    """Rank 0 is alone at its stage: kernels of one name in the same surroundings stand in."""
    stages = Places(stages={0: 0, 1: 1, 2: 1})
    found = Job(always(0, 1700)).analyse("stage=0", places=stages)
    assert found.causes[0].t_s == pytest.approx(HEALTHY.step_us / 1e6, rel=1e-3)


def test_selectors_name_ranks() -> None:
    places = Places({0: 0, 1: 1, 2: 1}, {0: 0, 1: 0, 2: 1}, {0: "a", 1: "b", 2: "b"})
    job = Job(always(1, 1700))
    found = job.analyse("rank=1", "dp=0", "host=b", "rank=1,2", places=places)
    rank, replica, host, two = found.causes
    assert rank.t_s == pytest.approx(host.t_s, rel=1e-3)
    assert two.t_s == host.t_s
    assert replica.t_s == pytest.approx(rank.t_s, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rank=7", "no rank '7'"),
        ("rank=0,x", "no rank 'x'"),
        ("stage=0", "no stage '0'"),
        ("host=nowhere", "no host 'nowhere'"),
        ("dp=3", "no replica '3'"),
        ("comm=tp", "no such communication"),
        ("op=send_recv", "no such communication"),
        ("link=1", "have no equal among other ranks"),
    ],
)
def test_a_cause_that_the_job_lacks_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        HEALTHY.analyse(text)


def test_work_on_the_host_and_on_the_gpu_is_scaled_apart() -> None:
    job = Job(always(1, 1700), always(1, 100))
    found = job.replay().analyse(
        [
            parse_scale("rank=1:all=1"),
            parse_scale("rank=1:compute=0.5"),
            parse_scale("rank=1:host=0"),
            parse_scale("comm=dp=2"),
        ]
    )
    same, half, host, slower = (c.saved_s_per_step * 1e6 for c in found.causes)
    assert same == pytest.approx(0, abs=0.01)
    assert half == pytest.approx(700 + 50, abs=2)  # then the others are last
    assert host == pytest.approx(100, abs=60)
    assert slower == pytest.approx(-200, abs=2)
    with pytest.raises(UsageError, match="knows no operation 'forward'"):
        job.replay().analyse([parse_scale("rank=1:forward=0.5")])


@pytest.mark.parametrize(
    ("host_of_2", "factor", "saved_us"),
    [("b", 0.5, 100), ("b", 1.0, 0), ("a", 0.5, 0)],  # 200 us a step; within a host no NIC is used
)
def test_a_transfer_between_hosts_that_takes_part_of_its_time(
    host_of_2: str, factor: float, saved_us: float
) -> None:
    places = Places(hosts={0: "a", 1: "a", 2: host_of_2})
    replay = Job({}).replay(places)
    saved_s = replay.step_s - replay.step_s_at_speed([2], factor)
    assert saved_s * 1e6 == pytest.approx(saved_us, abs=0.1)


def test_an_unexplained_delay_is_the_simulation_error() -> None:
    """The second kernel begins 60 us after the collective: then nothing says that it waited for it.

    So the 200 us of the transfer are unexplained too, beside the 60. 15 us are the usual delay of
    a wait.
    """
    near = Job({}, stray=15).analyse()
    assert near.refused is None
    assert near.simulation_error_ratio == pytest.approx(0, abs=1e-6)
    far = Job({}, stray=60).analyse()
    assert far.simulation_error_ratio == pytest.approx(260 / (HEALTHY.step_us - 200), rel=0.01)
    assert far.refused is not None
    assert "misses the measured step time" in far.refused


def test_unmatched_collectives_are_said_and_refused() -> None:
    job = Job({}, transfer=400)
    for row in job.operations:
        if row["name"] == 2 and row["start_ns"] > job.step_us * US:
            row["instance_id"] = None
    found = job.analyse()
    assert found.unmatched_count == 6
    assert found.refused is not None
    assert "not matched across ranks" in found.refused
    with pytest.raises(InputError, match="nothing to replay"):
        Job({}, matched=False).replay()


def test_clocks_are_settled_within_their_error() -> None:
    """Rank 2's clock is 90 us ahead and known to be wrong by up to 100 (then 40)."""
    exact = Job(always(1, 1700)).analyse("rank=1")
    for error, is_settled in ((100_000, True), (40_000, False)):
        places = Places(clocks={0: (0, 0), 1: (0, 0), 2: (1, error)})
        found = Job(always(1, 1700), skew={2: 90}).analyse("rank=1", places=places)
        same = found.causes[0].t_s == pytest.approx(exact.causes[0].t_s, abs=3e-6)
        assert same is is_settled


def reduced(ends: Mapping[int, float], count: int = 5) -> list[Call]:
    """All-reduces that the ranks leave at these times, in us."""
    return [
        Call(
            "all_reduce", "dp", "g", 4096, None, "device",
            dict.fromkeys(ends, 1000 * US * k),
            {r: round((1000 * k + at) * US) for r, at in ends.items()},
        )
        for k in range(count)
    ]  # fmt: skip


CLOCKS = {0: (0, 0), 1: (1, 100 * US), 2: (2, 100 * US)}


@pytest.mark.parametrize(
    ("pairs", "shifts"),
    [
        ({}, {1: -50, 2: -90}),
        ({(1, 2): 10 * US}, {1: -50, 2: -60}),
        ({(1, 2): 60 * US}, {1: -50, 2: -90}),
        ({(0, 2): 30 * US, (1, 2): 10 * US}, {1: -20, 2: -30}),
    ],
)
def test_clocks_that_are_known_to_agree_stay_together(
    pairs: Mapping[tuple[int, int], int], shifts: Mapping[int, int]
) -> None:
    """Rank 2 always leaves 40 us after rank 1, which says nothing of two clocks that agree."""
    found = settled_clocks(reduced({0: 500, 1: 550, 2: 590}), CLOCKS, pairs)
    assert found == {clock: us * US for clock, us in shifts.items()}


def test_clocks_without_a_call_in_common_are_settled_over_a_third() -> None:
    calls = [*reduced({0: 500, 1: 550}), *reduced({1: 500, 2: 470})]
    assert settled_clocks(calls, CLOCKS, {}) == {1: -50 * US, 2: -20 * US}
    assert settled_clocks(reduced({1: 500, 2: 470}), CLOCKS, {}) == {}


def shifted(
    calls: list[Call], clocks: Mapping[int, tuple[int, int]], pairs: Mapping[tuple[int, int], int]
) -> dict[int, int]:
    """What clocks are settled by, one pair of clocks after another."""
    errors = dict(clocks.values())
    apart = defaultdict(list)
    for one in calls:
        middle = {c: sorted(e for r, e in one.ends.items() if clocks[r][0] == c) for c in errors}
        ends = {c: v[len(v) // 2] for c, v in middle.items() if v}
        best = min(ends, key=lambda c: (errors[c], c))
        for a, b in combinations(sorted(ends), 2):
            if (a, b) in pairs or best in (a, b):
                apart[a, b].append(ends[b] - ends[a])
    left, found = set(errors), {min(errors, key=lambda c: (errors[c], c)): 0}
    while left := left - found.keys():
        ways = []
        for (a, b), values in apart.items():
            low, usual, high = np.percentile(values, [25, 50, 75])
            if high - low > max(20 * US, abs(usual) / 2):
                continue
            bound = pairs.get((a, b), errors[a] + errors[b])
            for known, new, by in ((a, b, -round(usual)), (b, a, round(usual))):
                if known in found and new in left:
                    ways.append((bound, high - low, new, by, known))
        if not ways:
            break
        bound, _, new, by, known = min(ways)
        shift = found[known] + max(-bound, min(bound, by))
        found[new] = max(-errors[new], min(errors[new], shift))
    return {c: ns for c, ns in found.items() if ns}


@settings(max_examples=50)
@given(
    errors_us=st.lists(st.integers(0, 200), min_size=4, max_size=4),
    known_us=st.dictionaries(
        st.sampled_from([(0, 1), (0, 3), (1, 2), (2, 3)]), st.integers(0, 100), max_size=3
    ),
    members=st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=8),
    ends_us=st.lists(st.integers(0, 60), min_size=48, max_size=48),
)
def test_clocks_settled_at_once_are_those_settled_pair_by_pair(
    errors_us: list[int],
    known_us: dict[tuple[int, int], int],
    members: list[set[int]],
    ends_us: list[int],
) -> None:
    """Six ranks on four clocks, in calls of any of them."""
    clocks = {r: (r % 4, errors_us[r % 4] * US) for r in range(6)}
    pairs = {pair: us * US for pair, us in known_us.items()}
    calls = [
        one
        for k, ranks in enumerate(members)
        for one in reduced({r: ends_us[6 * k + r] + 40 * (r % 4) for r in sorted(ranks)}, 1)
    ]
    assert settled_clocks(calls, clocks, pairs) == shifted(calls, clocks, pairs)


@settings(max_examples=25)
@given(
    compute=st.dictionaries(
        st.tuples(st.integers(0, 2), st.integers(0, 2)), st.integers(200, 4000), max_size=9
    ),
    host=st.dictionaries(
        st.tuples(st.integers(0, 2), st.integers(0, 2)), st.integers(20, 4000), max_size=9
    ),
)
def test_any_job_is_given_back(
    compute: dict[tuple[int, int], float], host: dict[tuple[int, int], float]
) -> None:
    job = Job(compute, host)
    assert raw_step_s(job.replay()) == pytest.approx(job.step_us / 1e6, rel=1e-6)
    found = job.analyse("rank=0,1,2")
    slowest = max(replayed for _, replayed, _ in found.per_step.values())
    assert 0 < found.causes[0].t_s <= slowest * 1.02


class Chain(Job):
    """Each rank receives from the one before, computes, and sends to the next; all reduce."""

    def __init__(self, ranks: int = 4, steps: int = 3) -> None:
        self.operations, self.syncs, self.steps = [], [], []
        now = 0.0
        for step in range(steps):
            begin = now
            arrived = 0.0
            for rank in range(ranks):
                launch = begin + 50
                start = launch + LATENCY
                if rank:
                    self._pass(step, rank, "recv", launch, start, arrived)
                    start = arrived
                end = start + 1000
                self._add(rank, COMPUTE, 1, launch + 10, start, end, {})
                if rank < ranks - 1:
                    arrived = end + 200
                    self._pass(step, rank, "send", launch + 20, end, arrived)
            now = end + 500
            for rank in range(ranks):
                ready = begin + 50 + LATENCY + 1000 * (rank + 1) + 200 * rank
                self._add(
                    rank, COMM + 1, 3, begin + 80, ready, now - 5, {}, instance_id=10 * step + 9,
                    op="all_reduce", group_id="world", kind="dp", members_count=ranks,
                    message_bytes=4096,
                )  # fmt: skip
                who = {"capture_id": 0, "rank": rank}
                self.syncs.append({**who, "is_device": False, **self._span(begin + 90, now, 0)})
                self.steps.append({**who, "step": step, **self._span(begin, now, 0)})
        self.step_us = now / steps

    def _pass(self, step: int, rank: int, op: str, launch: float, start: float, end: float) -> None:
        pair = rank - (op == "recv")
        self._add(
            rank, COMM, 2, launch, start, end, {}, instance_id=10 * step + pair, op=op,
            group_id=f"pair{pair}", kind="pp", members_count=2, message_bytes=4096,
        )  # fmt: skip


@pytest.mark.parametrize("places", [None, Places(stages={r: r for r in range(4)})])
def test_equal_ranks_may_wait_for_each_other(places: Places | None) -> None:
    """Ranks 1 and 2 do the same, but one after the other: they cannot be replayed together."""
    job = Chain()
    found = job.replay(places)
    assert raw_step_s(found) == pytest.approx(job.step_us / 1e6, rel=1e-4)
    assert found.refused is None
    faster = found.analyse([parse_scale("rank=2:compute=0.5")]).causes[0]
    assert faster.saved_s_per_step == pytest.approx(500e-6, rel=0.02)


@pytest.mark.parametrize(
    ("job", "cause"),
    [
        (Job({**always(1, 1700), (0, 2): 400}, always(2, 120), ranks=5), "rank=1:host=0.5"),
        (Job({}, always(3, 900), ranks=5, stray=60), "comm=dp=0.5"),
    ],
)
def test_together_is_the_same_as_one_by_one(
    job: Job, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    causes = [parse_scale(cause), parse_remove("rank=1")]
    together = job.replay().analyse(causes)
    run = Executor._run
    monkeypatch.setattr(
        Executor, "_run", lambda self, teams: run(self, [[r] for t in teams for r in t])
    )
    assert job.replay().analyse(causes) == together


def test_cut_transfers_take_the_share_of_their_time_that_was_asked_for() -> None:
    assert _cut([10, 10, 10, 10], 0.5) == 5
    # Three of 10 stay whole: 40 of 130 are left, and the long one takes the rest.
    assert _cut([10, 100, 10, 10], 40 / 130) == 10
    assert _cut([10, 100, 10, 10], 80 / 130) == 50
    assert _cut([10, 100, 10, 10], 1.0) == 100


def test_a_collective_that_a_rank_is_in_twice_is_no_call() -> None:
    job = Job({})
    again = next(o for o in job.operations if o.get("instance_id") == 1)
    job.operations.append({**again, "launch_ns": again["launch_ns"] + US})
    found = job.replay()
    assert [w.unmatched_count for w in found.windows] == [4]
    assert found.step_s > 0


@pytest.mark.parametrize("at_once", [1, 2, 64])
def test_ranks_compiled_together_are_those_compiled_alone(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Ranks 0 and 2 do the same with other times; 1 and 3 have a third stream."""
    monkeypatch.setattr(compiled, "AT_ONCE", at_once)
    job = Job({(2, 1): 1700}, {(0, 0): 90}, ranks=4)
    for row in job.operations:
        if row["rank"] in (1, 3) and row["name"] == 3:
            row["stream"] = 9
    (window,) = job.replay().windows
    assert len({tuple(b.stream.tobytes() for b in r.blocks) for r in window.ranks.values()}) == 2
    given = [(one, [one.blocks, one.blocks[::-1]]) for one in window.ranks.values()]
    for (one, variants), together in zip(given, compile_ranks(given), strict=True):
        alone = compile_rank(one, variants)
        assert (together.rank, together.events) == (alone.rank, alone.events)
        assert together.calls.tolist() == alone.calls.tolist()
        for ours, theirs in ((together.first, alone.first), (together.second, alone.second)):
            assert np.array_equal(np.asarray(ours), np.asarray(theirs))
