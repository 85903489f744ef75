"""host-pause: when it fires, when just not, and what exempts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from late_jobs import MS, STEPS, MakeJob, late_job, late_step, part
from msgspec.structs import replace

from excess_rules import LATE, MORE, PAUSE, PAUSED, SLOWER, facts_of
from lateness_rules import Replayed
from tracekit import api, runs
from tracekit.findings import Severity
from tracekit.rules.base import RuleOutcome

RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "recorded"


def test_a_rank_that_stands_still_is_named_with_the_place(make_job: MakeJob) -> None:
    (found,) = PAUSE.run(facts_of(make_job, PAUSED)).findings
    assert found.scope.ranks == (2,)
    assert found.severity is Severity.CRITICAL
    assert "code there that no range names" in found.summary


def frame(name: str, own_ms: float, excess_ms: float, rank: int = 2) -> dict[str, Any]:
    return {
        "rank": rank,
        "name": name,
        "own_ns": own_ms * MS,
        "peer_ns": (own_ms - excess_ms) * MS,
        "excess_ns": excess_ms * MS,
        "longest_ns": int(own_ms * MS),
        "source_id": 2,
        "place": 9,
        "attempt": 1,
    }


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([frame("app/src/train.py(7): f", 25, 25)], "`f` (src/train.py, line 7)"),
        (  # the innermost that holds most of it
            [frame("t.py(1): loop", 100, 25), frame("t.py(7): f", 26, 24), frame("g", 19, 19)],
            "`f` (t.py, line 7)",
        ),
        ([frame("<built-in method sleep>", 20, 20)], "`<built-in method sleep>`"),  # 0.8 of 25 ms
        ([frame("t.py(7): f", 19.9, 19.9)], ""),
        ([frame("t.py(7): f", 25, 25, rank=1)], ""),
        ([], ""),
    ],
)
def test_where_python_frames_are_stored_the_function_is_named(
    make_job: MakeJob, frames: list[dict[str, Any]], words: str
) -> None:
    facts = facts_of(make_job, PAUSED)
    facts.rows["python_time"] = frames  # type: ignore[index]  # of the test's own job
    (found,) = PAUSE.run(facts).findings
    ends = f"It is in the Python function {words} then." if words else "no range names (a"
    assert ends in found.summary
    assert bool(words) is ("code there" not in found.summary)
    assert bool(words) is any(e.query == "python_time" and e.rows for e in found.evidence)
    assert bool(words) is not any("--stacks" in line for line in found.confirm)


def test_on_a_recorded_job_the_collection_is_what_its_rank_was_in(tmp_path: Path) -> None:
    """Its README: rank 1 collects for 150 ms in two of four steps, the other rank waits."""
    runs.ingest([RECORDED / "ddp-gc-pause-stacks"], tmp_path / "run", stacks=True)
    with api.open(tmp_path / "run") as run:
        rows = run.table("python_time").to_pylist()
    (collect,) = (row for row in rows if row["name"] == "<built-in function collect>")
    assert collect["rank"] == 1
    assert collect["excess_ns"] == pytest.approx(160 * MS / 2, rel=0.05)
    assert collect["over_usual_ns"] == pytest.approx(160 * MS / 2, rel=0.05)
    waiting = {row["name"].rpartition(": ")[2] for row in rows if row["rank"] == 0}
    assert "_engine_run_backward" in waiting


def test_a_pause_that_moves_about_comes_from_outside(make_job: MakeJob) -> None:
    moving = [part("pause", f"between a and b{i}", ms=6, steps=(i,)) for i in range(1, 5)]
    (found,) = PAUSE.run(facts_of(make_job, *moving)).findings
    assert "the place changes" in found.summary


def test_a_pause_behind_a_step_s_last_call_lies_in_that_step(make_job: MakeJob) -> None:
    """The others wait for it in the next one."""
    job = late_job(make_job, {2: 80}, steps=range(3, 10, 3))
    job.rows["excess"] = [part("pause", "between b and the step's end", ms=24, steps=(2, 5, 8))]
    (finding,) = PAUSE.run(job.facts()).findings
    assert finding.scope.steps == ((2, 2), (5, 5), (8, 8))


@pytest.mark.parametrize(
    "row",
    [
        part("pause", "between a and b", ms=12),  # under half
        part("range", path="sleep"),  # a range says what it is
        part("pause", "between a and b", path="save_checkpoint"),
        SLOWER,
        MORE,
    ],
    ids=["half", "range", "checkpoint", "slower", "more"],
)
def test_what_is_no_pause(make_job: MakeJob, row: dict[str, Any]) -> None:
    assert PAUSE.run(facts_of(make_job, row)) == RuleOutcome()


@pytest.mark.parametrize(("fetch_ms", "is_named"), [(12, True), (13, False)])
def test_pauses_in_a_fetch_count_for_none(
    make_job: MakeJob, fetch_ms: float, *, is_named: bool
) -> None:
    """Of 25 ms that the rank delays; the ranges differ, so that none holds it all."""
    fetch = part("pause", "between a and b", ms=fetch_ms, path="enumerate(DataLoader)#it.__next__")
    other = part("pause", "between c and d", ms=25 - fetch_ms)
    found = PAUSE.run(facts_of(make_job, fetch, other)).findings
    assert bool(found) is is_named


@pytest.mark.parametrize(
    ("share_ratio", "peers", "ms", "is_named"),
    [
        (0.42, "job", 25, True),
        (0.36, "job", 25, False),  # one and a half times an even share would be 0.375
        (0.42, "stage", 25, False),
        (0.42, "job", 12, False),
        (0.42, None, 25, False),
    ],
    ids=["named", "too small a share", "other peers", "half", "nothing known"],
)
def test_a_stage_by_itself_that_stands_still_has_no_peers_and_is_named(
    make_job: MakeJob, share_ratio: float, peers: str | None, ms: float, is_named: bool
) -> None:
    """Stages end one another's waiting, so it has less than half of all; no replay is believed. At
    none of three places does it stand still for half of its delay."""
    job = late_job(make_job, {2: 25})
    for row in job.rows["straggler"]:
        others = (1 - share_ratio) / 3
        row |= {"peer_ratio": None, "compute_ratio": None, "slowdown_ratio": None}
        row["lateness_ratio"] = share_ratio if row["rank"] == 2 else others
    job.rows["excess"] = [
        part("pause", f"between {place} and x", ms=ms / 3) | {"peers": peers}
        for place in ("abc" if peers else "")
    ]
    facts = job.facts()
    assert LATE.run(facts) == RuleOutcome()
    assert [f.scope.ranks for f in PAUSE.run(facts).findings] == ([(2,)] if is_named else [])


def stages(make_job: MakeJob, pauses_ms: float, *, places_ms: Sequence[float], hit: range) -> Any:
    """A pipeline of a rank a stage: in each of ten steps a stage delays the others by what its
    place asks, and the last one in the ``hit`` steps by its pause."""
    job = late_job(make_job, {})
    job.rows["late_steps"] = [
        late_step(rank, step, ms + (pauses_ms if rank == 3 and step in hit else 0))
        for step in job.steps
        for rank, ms in enumerate(places_ms)
    ]
    for row in job.rows["straggler"]:
        row |= {"peer_ratio": None, "compute_ratio": None, "slowdown_ratio": None}
        row["lateness_ratio"] = places_ms[row["rank"]] / (sum(places_ms) or 1)
    for step in hit:
        for rank in range(4):
            job.add(rank, step, "idle" if rank == 3 else "exposed_comm", int(pauses_ms))
    mean = pauses_ms * len(hit) / len(job.steps)
    paused = part("pause", "between a and b", ms=mean, steps=tuple(hit)) | {"rank": 3}
    job.rows["excess"] = [paused | {"peers": "job"}]
    return job


PLACES_MS = (0, 40, 60, 20)


@pytest.mark.parametrize(
    ("pause_ms", "hit", "is_named"),
    [
        (100, range(3, 10, 3), True),
        (15, range(3, 10, 3), False),  # 4.3 % of the step
        (100, range(5, 6), False),  # once
        (100, range(1, 11), False),  # in every step: that is its place, for all that is known
    ],
    ids=["now and then", "too short", "once", "always"],
)
def test_a_stage_that_stands_still_now_and_then_is_told_by_its_own_usual(
    make_job: MakeJob, pause_ms: float, hit: range, is_named: bool
) -> None:
    """Places in the schedule make stages delay more than its pauses do: 40 and 60 ms a step."""
    facts = stages(make_job, pause_ms, places_ms=PLACES_MS, hit=hit).facts()
    assert LATE.run(facts) == RuleOutcome()
    found = PAUSE.run(facts).findings
    assert [f.scope.ranks for f in found] == ([(3,)] if is_named else [])
    if is_named:
        (share,) = (e for e in found[0].evidence if e.name.startswith("share of"))
        assert share.name == "share of what all delay beyond the usual of each, rank 3"
        assert (share.value, share.query) == (1.0, "late_steps")


def test_where_several_wait_for_one_pause_steps_without_it_say_what_it_costs(
    make_job: MakeJob,
) -> None:
    """100 ms in three of ten steps, which is seen to be waited for twice: 60 ms a step."""
    job = stages(make_job, 100, places_ms=(0, 0, 0, 0), hit=range(3, 10, 3))
    for row in job.rows["late_steps"]:
        row["exposed_gap_ns"] = 2 * row["exposed_gap_ns"]
    for row in job.rows["straggler"]:
        row["lateness_ratio"] = float(row["rank"] == 3)
    (found,) = PAUSE.run(job.facts()).findings
    assert found.impact.method == "twin steps"
    assert found.impact.s_per_step == pytest.approx(0.030)
    assert found.impact.high_s_per_step == pytest.approx(0.060)
    assert [round(e.value, 3) for e in found.counter_evidence] == [0.06]


def by_turns(make_job: MakeJob, ms: float, kind: str = "pause") -> Any:
    """Of four ranks another one delays each step by so many ms of 100, and has nothing recorded."""
    job = late_job(make_job, {})
    job.rows["late_steps"] = [late_step(step % 4, step, ms) for step in job.steps]
    job.rows["excess"] = []
    for rank in range(4):
        steps = [step for step in job.steps if step % 4 == rank]
        mean = ms * len(steps) / len(job.steps)
        row = part(
            kind, "between forward and backward", ms=mean, steps=steps, over_usual_ns=mean * MS
        )
        job.rows["excess"].append({**row, "rank": rank})
    for row in job.rows["straggler"]:
        row["lateness_ratio"] = 0.25
    for step in job.steps:
        for rank in range(4):
            job.add(rank, step, "idle" if rank == step % 4 else "exposed_comm", int(ms))
    return job


def test_ranks_that_stand_still_by_turns_are_named_together(make_job: MakeJob) -> None:
    (found,) = PAUSE.run(by_turns(make_job, 50).facts()).findings
    assert found.scope.ranks == (0, 1, 2, 3)
    assert found.impact.s_per_step == pytest.approx(0.050)
    assert "stand still by turns, for up to 50" in found.summary
    assert "each rank runs at a time of its own" in found.summary


@pytest.mark.parametrize("kind", ["operator", "range", "between"])
def test_ranks_that_take_turns_at_work_do_not_stand_still(make_job: MakeJob, kind: str) -> None:
    """Batches and layers of random length make one rank or another late as well."""
    assert PAUSE.run(by_turns(make_job, 50, kind).facts()) == RuleOutcome()


@pytest.mark.parametrize(("still_ms", "is_named"), [(26, True), (24, False)])
def test_a_little_silence_beside_work_that_takes_turns(
    make_job: MakeJob, still_ms: float, is_named: bool
) -> None:
    """A rank that delays a step by 50 ms has to stand still for half of that in the same step."""
    job = by_turns(make_job, 50)
    for row in job.rows["excess"]:
        row["affected_ns"] = still_ms * MS
    (long,) = (row for row in job.rows["excess"] if row["rank"] == 3)
    # A silence in a step that the rank does not delay speaks for nothing.
    job.rows["excess"].append({**long, "steps": [0], "steps_count": 1, "affected_ns": 900 * MS})
    assert bool(PAUSE.run(job.facts()).findings) is is_named


def test_short_turns_and_rare_ones_are_silent(make_job: MakeJob) -> None:
    assert PAUSE.run(by_turns(make_job, 5).facts()) == RuleOutcome()
    rare = by_turns(make_job, 90)
    rare.rows["late_steps"] = rare.rows["late_steps"][:1]
    assert PAUSE.run(rare.facts()) == RuleOutcome()


def test_pauses_that_are_in_every_step_alike_are_no_turns(make_job: MakeJob) -> None:
    job = by_turns(make_job, 50)
    for row in job.rows["excess"]:
        row["over_usual_ns"] = 0
    assert PAUSE.run(job.facts()) == RuleOutcome()


def test_a_pause_that_delays_nobody_is_silent(make_job: MakeJob) -> None:
    job = late_job(make_job, {2: 4})
    job.rows["excess"] = [PAUSED]
    assert PAUSE.run(job.facts()) == RuleOutcome()


@pytest.mark.parametrize(
    ("pause_ms", "cost_ms", "against"),
    [(15, 15, [0.025]), (20, 20, []), (25, 25, []), (30, 25, [])],
    ids=["a lot less", "less", "as long", "longer"],
)
def test_it_costs_no_more_than_it_lasts(
    make_job: MakeJob, pause_ms: float, cost_ms: float, against: list[float]
) -> None:
    """The others are seen to wait for 25 ms a step, several of them perhaps for the same ones."""
    job = late_job(make_job, {2: 25})
    for row in job.rows["straggler"]:
        row |= {"peer_ratio": None, "compute_ratio": None, "slowdown_ratio": None}
        row["lateness_ratio"] = 0.7 if row["rank"] == 2 else 0.1
    job.rows["excess"] = [part("pause", "between a and b", ms=pause_ms) | {"peers": "job"}]
    (found,) = PAUSE.run(job.facts()).findings
    assert found.impact.s_per_step == pytest.approx(cost_ms / 1e3)
    assert found.impact.high_s_per_step == pytest.approx(0.025)
    assert [e.value for e in found.counter_evidence] == pytest.approx(against)


def at_once(
    make_job: MakeJob,
    *,
    ranks: int = 1,
    hit: Sequence[int] = (4, 8),
    pause_ms: int = 100,
    idle_ms: int | None = None,
    longer_ms: int | None = None,
    world_size: int | None = None,
    excess: dict[str, Any] | None = None,
    **row: Any,
) -> Any:
    """Ten steps of 100 ms; in the ``hit`` ones every rank has nothing recorded for the pause.
    ``excess``: for what rank 2 delays every step by 25 ms more."""
    late = {} if excess is None else {2: 25}
    job = late_job(make_job, late, ranks_count=ranks) if ranks > 1 else make_job(ranks_count=1)
    if excess is not None:
        job.rows["excess"] = [excess]
    job.world_size = world_size
    job.rows["slow_steps"] = []
    for step in hit:
        for rank in range(ranks):
            job.add(rank, step, "idle", pause_ms if idle_ms is None else idle_ms)
            job.add(rank, step, "compute", (longer_ms or pause_ms) - (idle_ms or pause_ms))
        job.rows["slow_steps"].append(
            {"attempt": 1, "capture_id": 0, "step": step, "rank": 0 if ranks == 1 else None,
             "timeline": "host", "kind": "pause", "path": "", "name": "between a and b",
             "part_ns": float(pause_ms * MS), "over_ns": float(pause_ms * MS), "source_id": 0,
             "place": step} | row
        )  # fmt: skip
    return job


@pytest.mark.parametrize("ranks", [1, 4])
def test_all_that_stand_still_at_once_are_told_by_steps_without(
    make_job: MakeJob, ranks: int
) -> None:
    (found,) = PAUSE.run(at_once(make_job, ranks=ranks).facts()).findings
    assert found.scope.ranks == ()
    assert "still for 100 ms in steps 4,8 (2 of 10): nothing recorded between a and b" in (
        found.summary
    )
    assert found.impact.s_per_step == pytest.approx(0.020)
    assert found.impact.method == "twin steps"
    assert found.confidence.level == "likely"


@pytest.mark.parametrize(("excess", "ranks"), [(MORE, ()), (SLOWER, ()), (PAUSED, (2,))])
def test_a_rank_that_is_late_for_another_reason_does_not_hide_them(
    make_job: MakeJob, excess: dict[str, Any], ranks: tuple[int, ...]
) -> None:
    (found,) = PAUSE.run(at_once(make_job, ranks=4, excess=excess).facts()).findings
    assert found.scope.ranks == ranks
    assert found.summary.startswith("Rank 2" if ranks else "All hosts stand still for 100 ms")


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize(("over_ms", "is_named"), [(16.0, True), (15.9, False), (None, False)])
def test_where_all_stand_still_at_once_the_function_is_one_of_those_steps(
    make_job: MakeJob, over_ms: float | None, ranks: int, *, is_named: bool
) -> None:
    """100 ms in two of ten steps are 20 of a mean one: 0.8 of them are 16."""
    job = at_once(make_job, ranks=ranks)
    if over_ms is not None:
        row = frame("train.py(7): save", 20, 0, rank=0)
        job.rows["python_time"] = [row | {"excess_ns": None, "over_usual_ns": over_ms * MS}]
    (found,) = PAUSE.run(job.facts()).findings
    assert ("`save` (train.py, line 7)" in found.summary) is is_named
    assert any(e.query == "python_time" for e in found.evidence) is is_named
    assert found.remedy == ("move the code out of the step, or beside it",)


@pytest.mark.parametrize(
    "kind",
    [
        {"hit": (4,)},  # once
        {"hit": (1, 2, 3, 4, 5, 6, 7, 8)},  # two steps are left to compare with
        {"pause_ms": 26},  # 4.9 % of the mean step
        {"idle_ms": 49, "longer_ms": 100},  # its device works meanwhile
        {"kind": "range"},
        {"path": "save_checkpoint"},
        {"ranks": 4, "rank": 2},  # one of several: its peers say more
    ],
)
def test_what_is_no_pause_of_all(make_job: MakeJob, kind: dict[str, Any]) -> None:
    assert PAUSE.run(at_once(make_job, **kind).facts()) == RuleOutcome()


def test_of_a_rank_whose_peers_left_no_trace_nothing_is_said_of_these(make_job: MakeJob) -> None:
    (found,) = PAUSE.run(at_once(make_job, world_size=8).facts()).findings
    assert found.scope.ranks == (0,)
    assert found.summary.startswith("Rank 0 stands still for 100 ms")


def test_one_rank_alone_whose_steps_are_alike_is_fine(make_job: MakeJob) -> None:
    job = make_job(ranks_count=1)
    job.rows["slow_steps"] = []
    assert PAUSE.run(job.facts()) == RuleOutcome()


def now_and_then(
    make_job: MakeJob, *, still_ms: float = 90, late_steps: Sequence[int] = (4, 8), **row: Any
) -> Any:
    """Of two ranks that wait for one another by chance as well, rank 0 stands still in steps 3, 7
    and 10 of 10, behind its last call: the other waits for 90 ms of it in the next step."""
    job = late_job(make_job, {}, ranks_count=2)
    job.rows["late_steps"] = [late_step(0, step, 90) for step in late_steps]
    job.rows["late_steps"] += [late_step(1, step, 60) for step in (2, 5, 6)]
    mean = 0.3 * still_ms
    paused = part(
        "pause", "between a and the step's end", ms=mean, steps=(3, 7, 10), over_usual_ns=mean * MS
    )
    job.rows["excess"] = [{**paused, "rank": 0, **row}]
    for of_rank, ratio in zip(job.rows["straggler"], (0.55, 0.45), strict=True):
        of_rank["lateness_ratio"] = ratio
    return job


def test_a_rank_of_two_that_stands_still_now_and_then_is_named_beside_chance(
    make_job: MakeJob,
) -> None:
    job = now_and_then(make_job)
    facts = replace(job.facts(), replay=Replayed({(0,): 18.0}))
    (found,) = PAUSE.run(facts).findings
    assert found.scope.ranks == (0,)
    assert found.scope.steps == ((3, 3), (7, 7), (10, 10))
    assert found.impact.s_per_step == pytest.approx(0.018)  # two of 90 ms, in ten steps
    assert "between a and the step's end in steps 3,7,10 (3 of 10), none on its peers" in (
        found.summary
    )
    assert LATE.run(facts) == RuleOutcome()
    assert PAUSE.run(job.facts()) == RuleOutcome(), "without a replay it may have cost nothing"


@pytest.mark.parametrize(
    "changed",
    [
        {"still_ms": 44},
        {"late_steps": (4,)},
        {"late_steps": (5, 9)},
        {"longest_ns": 181 * MS},
        {"kind": "operator"},
        {"path": "save"},
    ],
    ids=[
        "less than half of the delay",
        "once",
        "in other steps",
        "of lengths that chance gives",
        "work",
        "in a save",
    ],
)
def test_what_else_delays_now_and_then_is_no_standing_still(
    make_job: MakeJob, changed: dict[str, Any]
) -> None:
    facts = now_and_then(make_job, **changed).facts()
    assert PAUSE.run(replace(facts, replay=Replayed({(0,): 18.0}))) == RuleOutcome()


def in_every_step(make_job: MakeJob, *, peer_ms: float = 0, **row: Any) -> Any:
    """Rank 0 stands still for 90 ms in every step; the other waits for 40 of it, and has 55 % of
    all waiting for it, no more than chance gives a rank of two."""
    job = now_and_then(make_job, late_steps=STEPS)
    job.rows["late_steps"] = [late_step(0, step, 40) for step in STEPS]
    paused = part("pause", "between a and b", ms=90, peer_ms=peer_ms)
    job.rows["excess"] = [{**paused, "rank": 0, **row}]
    return replace(job.facts(), replay=Replayed({(0,): 40.0}))


@pytest.mark.parametrize(("peer_ms", "is_named"), [(0, True), (45, True), (46, False)])
def test_a_rank_of_two_that_stands_still_in_every_step_is_named_where_its_peer_does_not(
    make_job: MakeJob, peer_ms: float, is_named: bool
) -> None:
    found = PAUSE.run(in_every_step(make_job, peer_ms=peer_ms)).findings
    assert [f.scope.ranks for f in found] == [(0,)] * is_named
    assert all("nothing recorded between a and b in every step" in f.summary for f in found)
    assert all(f.impact.s_per_step == pytest.approx(0.040) for f in found)


@pytest.mark.parametrize(("delayed_count", "is_named"), [(5, True), (4, False)])
def test_where_no_replay_can_say_it_delays_the_others_in_half_of_the_steps(
    make_job: MakeJob, delayed_count: int, is_named: bool
) -> None:
    facts = in_every_step(make_job)
    late = [late_step(0, step, 90) for step in STEPS[:delayed_count]]
    late += [late_step(1, step, 60) for step in STEPS[5:]]  # as much by chance
    for replay in (None, Replayed({})):
        asked = replace(facts, rows={**facts.rows, "late_steps": late}, replay=replay)
        assert bool(PAUSE.run(asked).findings) is is_named


def test_a_stage_of_one_rank_is_held_against_all_others(make_job: MakeJob) -> None:
    facts = in_every_step(make_job, peers="job")
    (found,) = PAUSE.run(facts).findings
    assert found.scope.ranks == (0,)
    # One that has peers in its stage is held against these alone.
    beside = {**part("operator", "aten::mm", ms=1), "rank": 0}
    rows = {**facts.rows, "excess": [*facts.rows["excess"], beside]}
    assert PAUSE.run(replace(facts, rows=rows)) == RuleOutcome()


def test_a_larger_pause_of_which_nothing_can_be_said_hides_no_other(make_job: MakeJob) -> None:
    """In all steps the rank stands still for 30 ms, less than half of what it delays in two."""
    job = now_and_then(make_job)
    everywhere = {**part("pause", "between c and d", ms=30), "rank": 0}
    job.rows["excess"] = [everywhere, *job.rows["excess"]]
    (found,) = PAUSE.run(replace(job.facts(), replay=Replayed({(0,): 18.0}))).findings
    assert "between a and the step's end in steps 3,7,10" in found.summary


@pytest.mark.parametrize(("longest_ms", "is_named"), [(179, True), (181, False)])
def test_pauses_of_one_cause_are_about_as_long(
    make_job: MakeJob, longest_ms: int, is_named: bool
) -> None:
    facts = now_and_then(make_job, longest_ns=longest_ms * MS).facts()
    facts = replace(facts, replay=Replayed({(0,): 18.0}))
    assert bool(PAUSE.run(facts).findings) is is_named


@pytest.mark.parametrize(("varying_ms", "is_named"), [(26, True), (28, False)])
def test_what_may_have_cost_nothing_is_not_told(
    make_job: MakeJob, varying_ms: int, is_named: bool
) -> None:
    """18 ms, of steps whose mean is known to two standard errors of 17.3 or 18.7 ms."""
    job = now_and_then(make_job)
    for rank in range(2):
        for step in job.steps:
            job.add(rank, step, "compute", varying_ms * (2 if step % 2 else 0))
    facts = replace(job.facts(), replay=Replayed({(0,): 18.0}))
    assert bool(PAUSE.run(facts).findings) is is_named
