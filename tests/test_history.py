"""The job's history: lines of logs to one series of steps, and what stands out in it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from logged_rules import asked, episode_of
from proofs import create_empty_tables
from source_tables import database

from soaks import examples
from tracekit.catalog import find
from tracekit.derive.episodes import MIN_OUTLIER_STEPS
from tracekit.derive.history import history
from tracekit.schema import table
from tracekit.store.writer import conform

Row = dict[str, Any]
SECOND = 10**9


def lines(
    durs: Sequence[float], *, first: int = 1, every: int = 1, source: int = 0, at: float = 1000.0
) -> list[Row]:
    """Lines of ``every`` steps that took these seconds each, with clock and stated mean."""
    rows: list[Row] = []
    for index in range(every - 1, len(durs), every):
        taken = durs[index - every + 1 : index + 1]
        at += sum(taken)
        rows.append(
            {
                "source_id": source, "place": len(rows) + 1, "format": "megatron",
                "step": first + index, "time_ns": round(at * SECOND),
                "dur_ns": round(sum(taken) / every * SECOND), "is_averaged": True,
            }
        )  # fmt: skip
    return rows


def told(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    con = database({"job_step": rows})
    steps, found = history(con, {r["source_id"] for r in rows}, {})
    return steps.to_pylist(), found


def noisy(count: int, seed: int = 1, ratio: float = 0.02) -> list[float]:
    rng = random.Random(seed)  # noqa: S311 - no secret
    return [1 + rng.gauss(0, ratio) for _ in range(count)]


def test_steps_follow_each_other_by_clock_and_by_what_is_stated() -> None:
    steps, _ = told(lines([1.0, 2.0, 3.0, 4.0], every=2))
    assert [(s["start_number"], s["step"], s["steps_count"]) for s in steps] == [
        (1, 2, 1),
        (1, 4, 2),
    ]
    assert [(s["dur_ns"], s["wall_ns"]) for s in steps] == [
        (1_500_000_000, None),
        (3_500_000_000, 7 * SECOND),
    ]


def test_the_same_step_of_many_ranks_is_one() -> None:
    of_rank = [[r | {"tag": rank} for r in lines([1.0] * 30)] for rank in (2, 0, 1)]
    mixed = [row for rows in zip(*of_rank, strict=True) for row in rows]
    rows = [r | {"place": n} for n, r in enumerate(mixed, 1)]
    steps, found = told(rows)
    assert [s["step"] for s in steps] == list(range(1, 31))
    assert {s["place"] % 3 for s in steps} == {2}
    assert found == []
    untagged, _ = told([{k: v for k, v in r.items() if k != "tag"} for r in rows])
    assert [s["step"] for s in untagged] == list(range(1, 31))


def test_a_file_a_rank_is_one_history_and_files_of_restarts_are_one_after_the_other() -> None:
    first = lines([1.0] * 30)
    copy = [r | {"source_id": 1} for r in lines([1.0] * 29)]
    later = lines([1.0] * 40, first=21, source=2, at=2000.0)
    steps, found = told([*first, *copy, *later])
    assert {s["source_id"] for s in steps} == {0, 2}
    assert [s["step"] for s in steps] == [*range(1, 31), *range(21, 61)]
    (restart,) = found
    assert (restart["kind"], restart["first_step"], restart["last_step"]) == ("restart", 21, 30)
    assert restart["repeated_count"] == 10
    # 2001 - 1030 s from line to line, of which the one step that is new was due.
    assert restart["lost_ns"] == 971 * SECOND + 9 * SECOND


@pytest.mark.parametrize(
    ("source", "place", "why"),
    [
        (0, 31, "node failure"),  # behind the last step of the start before
        (0, 10, None),  # the job went on
        (0, 75, None),  # behind the next start
        (7, 31, None),  # another file's
    ],
)
def test_a_restart_says_what_its_scheduler_ended_the_start_before_it_for(
    source: int, place: int, why: str | None
) -> None:
    later = [r | {"place": 40 + n} for n, r in enumerate(lines([1.0] * 30, first=21, at=2000.0))]
    event = {
        "source_id": source, "place": place, "code": "job-cancelled",
        "fields": ["host=n1", "why=node failure"],
    }  # fmt: skip
    for last in (later, [r | {"source_id": 3, "place": r["place"] - 39} for r in later]):
        con = database({"job_step": [*lines([1.0] * 30), *last], "log_event": [event]})
        (restart,) = history(con, {0, 3}, {})[1]
        # In a file of its own whatever stands behind the first start is of that.
        is_apart = last is not later and source == 0 and place > 30
        assert restart.get("ended_for") == ("node failure" if is_apart else why)


def test_bars_are_the_training_s_and_not_the_evaluation_s() -> None:
    def bar(step: int, total: int, elapsed: int) -> Row:
        return {
            "source_id": 0, "format": "tqdm", "step": step, "total_steps_count": total,
            "elapsed_ns": elapsed * SECOND,
        }  # fmt: skip

    rows = [bar(n, 1000, 10 * n) for n in range(1, 31)]
    rows[15:15] = [bar(n, 50, n) for n in range(1, 51)]
    steps, _ = told([r | {"place": n} for n, r in enumerate(rows, 1)])
    assert [s["step"] for s in steps] == list(range(1, 31))
    assert {s["dur_ns"] for s in steps[1:]} == {10 * SECOND}
    assert all(s["end_ns"] is None for s in steps)


def bar(*steps: int, place: int = 1, total: int = 150) -> list[Row]:
    """Drawings at these steps, of a second each."""
    return [
        {
            "source_id": 0, "format": "tqdm", "step": step, "total_steps_count": total,
            "elapsed_ns": (step - steps[0]) * SECOND, "place": place + n,
        }
        for n, step in enumerate(steps)
    ]  # fmt: skip


def test_a_bar_that_begins_has_done_no_step() -> None:
    steps, _ = told(bar(*range(0, 151, 2)))
    assert [s["step"] for s in steps] == list(range(0, 151, 2))
    assert [s["steps_count"] for s in steps] == [0, *[2] * 75]
    assert sum(s["steps_count"] for s in told(bar(*range(1, 151)))[0]) == 150
    loop = [r | {"step": r["step"] - 1} for r in lines([1.0] * 30)]
    assert sum(s["steps_count"] for s in told(loop)[0]) == 30  # step 0 of a loop is one


@pytest.mark.parametrize(
    ("begins", "counted", "repeated"),
    [((0, 41, 42), 45 + 110, 5), ((0, 1, 2), 45 + 150, 45)],
    ids=["where it had saved", "anew"],
)
def test_a_bar_that_goes_on_repeats_what_was_not_saved(
    begins: tuple[int, ...], counted: int, repeated: int
) -> None:
    """Trainers draw the bar at 0, then where the checkpoint lies."""
    later = bar(*begins, *range(begins[-1] + 1, 151), place=100)
    steps, found = told([*bar(*range(46)), *later])
    assert sum(s["steps_count"] for s in steps) == counted
    (restart,) = found
    assert (restart["kind"], restart["repeated_count"]) == ("restart", repeated)
    assert restart["first_step"] == 46 - repeated


def test_a_bar_that_begins_anew_in_each_epoch_tells_all_its_steps() -> None:
    rows = [
        {"source_id": 0, "place": place, "format": "tqdm", "epoch": epoch, "step": step,
         "total_steps_count": 60, "elapsed_ns": s * SECOND}
        for place, (epoch, step, s) in enumerate([(1, 60, 30), (2, 60, 360), (3, 20, 10)], 1)
    ]  # fmt: skip
    steps, _ = told(rows)
    assert [(s["steps_count"], s["dur_ns"], s["wall_ns"]) for s in steps] == [
        (60, SECOND // 2, 30 * SECOND),
        (60, 6 * SECOND, 360 * SECOND),
        (20, SECOND // 2, 10 * SECOND),
    ]
    # Drawn last at 50 of 60, ten more steps lie before the next bar, and no time is known of them.
    steps, _ = told([rows[0] | {"step": 50}, rows[1]])
    assert [(s["steps_count"], s["wall_ns"]) for s in steps] == [(50, 30 * SECOND), (70, None)]


def test_a_bar_that_is_drawn_anew_with_the_epoch_before_is_no_restart() -> None:
    """Lightning's is drawn at 0 once more before it says the new epoch."""
    rows = []
    for epoch in range(3):
        rows += [r | {"epoch": epoch, "place": epoch + 1} for r in bar(*range(41), total=40)]
        rows += [r | {"epoch": epoch, "place": epoch + 2} for r in bar(0, 40, total=40)]
    steps, found = told(rows)
    assert [s["step"] for s in steps] == list(range(1, 121))
    assert {s["start_number"] for s in steps} == {1}
    assert not any(r["kind"] == "restart" for r in found)


def plain(*said: tuple[int, int], apart_s: int = 10) -> list[Row]:
    """Lines of epoch and step of somebody's own loop."""
    return [
        {"source_id": 0, "place": place, "format": "plain", "epoch": epoch, "step": step,
         "time_ns": (1_772_500_000 + place * apart_s) * SECOND}
        for place, (epoch, step) in enumerate(said, 1)
    ]  # fmt: skip


def test_steps_of_ones_own_loop_that_begin_anew_are_counted_over_its_epochs() -> None:
    anew = [(epoch, step) for epoch in (1, 2, 3) for step in range(0, 200, 10)]
    steps, found = told(plain(*anew))
    assert [s["step"] for s in steps] == list(range(0, 600, 10))
    assert {s["steps_count"] for s in steps[1:]} == {10}
    assert not found


def test_batches_of_epochs_without_a_length_are_counted_over_all() -> None:
    """As MXNet and ESPnet print them."""
    said = [(epoch, step) for epoch in range(4) for step in range(50, 501, 50)]
    steps, found = told([r | {"format": "mxnet"} for r in plain(*said)])
    assert {s["start_number"] for s in steps} == {1}
    assert steps[-1]["step"] == 3 * 550 + 500
    assert found == []


def test_a_line_that_is_printed_twice_is_timed_by_either() -> None:
    rows = plain(*((0, step) for step in range(0, 600, 10)))
    twice = [
        row
        for r in rows
        for row in (
            {**r, "place": 2 * r["place"] - 1, "time_ns": None},
            {**r, "place": 2 * r["place"]},
        )
    ]
    steps, _ = told(twice)
    assert {s["wall_ns"] for s in steps[1:]} == {10 * SECOND}


def test_steps_of_ones_own_loop_that_count_on_are_taken_as_they_are() -> None:
    on = [(step // 200, step) for step in range(0, 600, 10)]
    steps, _ = told(plain(*on))
    assert [s["step"] for s in steps] == list(range(0, 600, 10))


def test_a_number_that_falls_again_and_again_counts_no_steps_of_the_job() -> None:
    inner = [{**row, "epoch": None} for row in plain(*((0, i % 16) for i in range(400)))]
    assert told(inner) == ([], [])
    few = [{**row, "epoch": None} for row in plain(*((0, i % 21) for i in range(400)))]
    assert told(few)[0]  # restarts, 19 of 400 lines


def running(*said: tuple[int, float, float], epoch: int = 0, place: int = 1) -> list[Row]:
    """Lines of step, its own seconds, and the mean since the epoch began."""
    return [
        {"source_id": 0, "place": at, "format": "timm", "epoch": epoch, "step": step,
         "total_steps_count": 100, "dur_ns": round(own * SECOND), "is_averaged": False,
         "running_dur_ns": round(mean * SECOND)}
        for at, (step, own, mean) in enumerate(said, place)
    ]  # fmt: skip


def test_between_two_running_means_lie_the_steps_that_no_line_tells() -> None:
    # 10 steps in 5 s, then 10 in 35 s of which the line's own took 0.5.
    steps, _ = told(running((9, 0.5, 0.5), (19, 0.5, 2.0), (20, 4.0, 2.1)))
    assert [s["dur_ns"] for s in steps] == [SECOND // 2, 3_500_000_000, 4 * SECOND]
    # Of another epoch is another mean.
    steps, _ = told([*running((9, 0.5, 0.5)), *running((9, 0.25, 2.0), epoch=1, place=2)])
    assert [s["dur_ns"] for s in steps] == [SECOND // 2, SECOND // 4]


@pytest.mark.parametrize(("step", "expected_s"), [(489, 1.0), (599, 0.5)])
def test_a_running_mean_tells_nothing_where_rounding_is_much_of_it(
    step: int, expected_s: float
) -> None:
    # Ten steps of 1 s: 0.5 ms of rounding on 990 and 1,210 steps is 4.95 and 6.05 % of them.
    rows = running((step, 0.5, 1.0), (step + 10, 0.5, 1.0))
    steps, _ = told([r | {"total_steps_count": 1000} for r in rows])
    assert steps[1]["dur_ns"] == expected_s * SECOND


def test_two_moves_of_a_bar_do_not_tell_that_it_goes_on() -> None:
    steps, _ = told(bar(0, 41, 42))
    assert sum(s["steps_count"] for s in steps) == 42


def test_a_history_of_equal_steps_tells_nothing() -> None:
    assert told(lines(noisy(5000)))[1] == []
    assert told(lines([1.0] * 5000))[1] == []
    assert told(lines(noisy(5000), every=10))[1] == []


def test_a_stall_is_told_with_its_time() -> None:
    durs = noisy(5000)
    durs[2999] += 2400
    (stall,) = told(lines(durs))[1]
    assert (stall["kind"], stall["first_step"], stall["last_step"]) == ("stall", 3000, 3000)
    assert stall["lost_ns"] == pytest.approx(2400 * SECOND, rel=1e-3)
    assert stall["end_ns"] - stall["start_ns"] == pytest.approx(2401 * SECOND, rel=1e-3)


def test_a_stall_between_the_steps_that_the_program_times_is_seen_by_the_clock() -> None:
    rows = lines(noisy(2000))
    for row in rows[1000:]:
        row["time_ns"] += 600 * SECOND
    (stall,) = told(rows)[1]
    assert (stall["kind"], stall["last_step"]) == ("stall", 1001)
    assert stall["lost_ns"] == pytest.approx(600 * SECOND, rel=1e-3)


@pytest.mark.parametrize(("stall_s", "is_told"), [(20, True), (15, False)])
def test_a_stall_of_a_short_log_is_told_by_its_share_of_the_time(
    stall_s: float, is_told: bool
) -> None:
    """A twentieth of five minutes and a bit: half a minute is asked of longer ones."""
    durs = noisy(300)
    durs[200] += stall_s
    stalls = [r for r in told(lines(durs))[1] if r["kind"] == "stall"]
    assert [r["first_step"] for r in stalls] == ([201] if is_told else [])


def test_a_shorter_stall_than_counts_is_none() -> None:
    durs = noisy(5000)
    durs[2999] += 29
    assert told(lines(durs))[1] == []


def ended(rows: Sequence[Row], silent_s: float, *, behind: int = 1) -> list[Row]:
    """What stands out where the job is seen to end so long after its last line."""
    last = rows[-1]
    event = {
        "source_id": last["source_id"], "place": last["place"] + behind, "code": "job-cancelled",
        "severity": "error", "fields": ["round=0", f"silent_ns={round(silent_s * SECOND)}"],
    }  # fmt: skip
    con = database({"job_step": rows, "log_event": [event]})
    return history(con, {last["source_id"]}, {})[1]


def test_a_job_that_printed_nothing_until_it_was_ended_was_silent() -> None:
    (silence,) = ended(lines(noisy(500)), 2400)
    assert (silence["kind"], silence["last_step"], silence["lost_ns"]) == (
        "silence", 500, 2400 * SECOND,
    )  # fmt: skip
    assert silence["end_ns"] - silence["start_ns"] == 2400 * SECOND
    assert silence["usual_ns"] == pytest.approx(SECOND, rel=0.01)
    (silence,) = ended([r | {"time_ns": None} for r in lines(noisy(500))], 2400)
    assert silence.get("end_ns") is None


@pytest.mark.parametrize(
    ("apart_s", "basis", "is_told"),
    [
        (2400, "local", True),
        (61, "local", False),  # as two files of two zones may be
        (7200 + 170, "local", False),
        (7200 + 190, "local", True),
        (7200 - 190, "local", True),
        (-2400, "local", False),
        (2400, "epoch", False),  # one of them names its zone
    ],
)
def test_what_ended_a_job_may_be_told_by_another_file_in_the_same_local_time(
    apart_s: int, basis: str, *, is_told: bool
) -> None:
    rows = lines(noisy(500))
    event = {
        "source_id": 1, "place": 1, "code": "job-cancelled", "severity": "error",
        "fields": ["round=0", "why=time limit"],
        "time_ns": rows[-1]["time_ns"] + apart_s * SECOND,
    }  # fmt: skip
    sources = [{"source_id": 0, "time_basis": "local"}, {"source_id": 1, "time_basis": basis}]
    con = database({"job_step": rows, "log_event": [event], "source": sources})
    found = history(con, {0}, {})[1]
    assert [r["lost_ns"] for r in found] == ([apart_s * SECOND] if is_told else [])


def test_what_is_logged_behind_the_last_step_stands_beside_the_silence() -> None:
    rows = lines(noisy(500))
    events = [
        {"source_id": 0, "place": place, "code": code, "severity": "info", "fields": fields}
        for place, code, fields in (
            (40, "evaluation", None), (501, "checkpoint-save", None),
            (502, "job-cancelled", [f"silent_ns={900 * SECOND}"]),
            (503, "collection", None),  # once it was told to end
        )
    ]  # fmt: skip
    (silence,) = history(database({"job_step": rows, "log_event": events}), {0}, {})[1]
    assert silence["checkpoints_count"] == 1
    assert "evaluations_count" not in silence
    assert "collections_count" not in silence


def test_no_silence_is_what_the_job_paused_for_before_or_did_behind_its_last_step() -> None:
    durs = noisy(500)
    durs[200] = 300
    assert [r["kind"] for r in ended(lines(durs), 601)] == ["stall", "silence"]
    assert [r["kind"] for r in ended(lines(durs), 599)] == ["stall"]
    done = [r | {"total_steps_count": 500} for r in lines(noisy(500))]
    assert ended(done, 2400) == []
    assert ended(lines(noisy(500)), 2400, behind=-3) == []  # it went on


@pytest.mark.parametrize(("ratio", "kind"), [(1.05, "slow"), (0.95, "fast")])
def test_a_stretch_at_another_level_begins_and_ends_at_its_steps(ratio: float, kind: str) -> None:
    durs = noisy(10_000)
    durs[4000:6000] = [d * ratio for d in durs[4000:6000]]
    (stretch,) = told(lines(durs))[1]
    assert stretch["kind"] == kind
    assert stretch["first_step"] == pytest.approx(4001, abs=5)
    assert stretch["last_step"] == pytest.approx(6000, abs=5)
    assert stretch["dur_ns"] / stretch["usual_ns"] == pytest.approx(ratio, abs=0.002)


def test_a_slow_stretch_in_the_middle_may_take_more_time_than_either_side() -> None:
    durs = noisy(1200)
    durs[500:800] = [d * 2.4 for d in durs[500:800]]
    (stretch,) = told(lines(durs))[1]
    assert stretch["kind"] == "slow"
    assert (stretch["first_step"], stretch["last_step"]) == (501, 800)
    assert stretch["usual_ns"] == pytest.approx(SECOND, rel=0.01)


def test_a_slow_stretch_that_scatters_more_than_the_rest_is_one() -> None:
    durs, rough = noisy(6000, ratio=0.01), noisy(900, seed=2, ratio=0.1)
    durs[3000:3900] = [1.55 * d for d in rough]
    (stretch,) = (e for e in told(lines(durs))[1] if e["kind"] == "slow")
    assert stretch["first_step"] == pytest.approx(3001, abs=3)
    assert stretch["last_step"] == pytest.approx(3900, abs=3)


def test_two_slow_stretches_side_by_side_are_two_where_they_differ_by_more_than_steps_do() -> None:
    durs = noisy(6000, ratio=0.01)
    durs[2000:3000] = [d * 1.2 for d in durs[2000:3000]]
    durs[3000:4000] = [d * 1.5 for d in durs[3000:4000]]
    stretches = [e for e in told(lines(durs))[1] if e["kind"] == "slow"]
    assert [round(e["dur_ns"] / e["usual_ns"], 1) for e in stretches] == [1.2, 1.5]


def test_a_job_that_begins_with_its_faster_steps_has_risen() -> None:
    durs = noisy(10_000)
    durs[:2000] = [d * 0.9 for d in durs[:2000]]
    (rise,) = told(lines(durs))[1]
    assert rise["kind"] == "risen"
    assert rise["first_step"] == pytest.approx(2001, abs=5)
    assert rise["last_step"] == 10_000
    assert rise["usual_ns"] / rise["dur_ns"] == pytest.approx(0.9, abs=0.002)
    assert rise["lost_ns"] == pytest.approx(0.1 * 8000 * rise["dur_ns"], rel=0.02)
    assert rise["end_ns"] - rise["start_ns"] == pytest.approx(8000 * rise["dur_ns"], rel=0.01)


@pytest.mark.parametrize(("slow_count", "kind"), [(300, "risen"), (3000, "fast")])
def test_a_few_slow_steps_before_hide_no_rise(slow_count: int, kind: str) -> None:
    """A warm-up is shorter than the stretch behind it; a slow stretch as long makes that one of two
    in the middle."""
    durs = noisy(10_000)
    fast = slice(slow_count, slow_count + 1500)
    durs[:slow_count] = [d * 1.2 for d in durs[:slow_count]]
    durs[fast] = [d * 0.9 for d in durs[fast]]
    assert [e["kind"] for e in told(lines(durs))[1]] == sorted([kind, "slow"])


def test_a_level_just_below_what_counts_is_none() -> None:
    durs = noisy(10_000)
    durs[4000:6000] = [d * 1.015 for d in durs[4000:6000]]
    assert [f["kind"] for f in told(lines(durs))[1] if f["kind"] in ("slow", "fast")] == []


def test_what_returns_at_one_distance_is_one_period() -> None:
    durs = noisy(5000)
    for index in range(249, 5000, 250):
        durs[index] += 4
    for every in (1, 10):
        (period,) = told(lines(durs, every=every))[1]
        assert (period["kind"], period["period_count"], period["times_count"]) == (
            "periodic",
            250,
            20,
        )
        assert period["lost_ns"] == pytest.approx(80 * SECOND, rel=0.05)


def test_outliers_at_any_distance_are_no_period() -> None:
    durs = noisy(5000)
    for index in random.Random(5).sample(range(100, 5000), 20):  # noqa: S311 - as above
        durs[index] += 4
    assert told(lines(durs))[1] == []


def test_a_period_is_found_among_hiccups_at_any_time() -> None:
    durs = noisy(5000)
    for index in random.Random(6).sample(range(100, 5000), 30):  # noqa: S311 - as above
        durs[index] += 2
    for index in range(249, 5000, 250):
        durs[index] += 9
    (period,) = told(lines(durs))[1]
    assert (period["kind"], period["period_count"], period["times_count"]) == ("periodic", 250, 20)
    assert period["lost_ns"] == pytest.approx(180 * SECOND, rel=0.05)


def by_the_clock(period_s: float, late_s: Sequence[float], step_s: float = 3.0) -> list[float]:
    """Steps in which something holds the job up for 75 s, so much late in each period."""
    durs: list[float] = []
    now, turn = 0.0, 0
    rng = random.Random(4)  # noqa: S311 - as above
    while turn < len(late_s):
        dur = step_s * (1 + rng.gauss(0, 0.01))
        if now + dur >= (turn + 1) * period_s + late_s[turn]:
            dur += 75
            turn += 1
        durs.append(dur)
        now += dur
    return durs + [step_s] * 100


@pytest.mark.parametrize(
    ("period_s", "late_s", "clock_s"),
    [
        (3600, [0, 2, 4, 1, 3, 2, 0, 1], 3600),
        (1800, [0] * 8, 1800),
        (3600, [0] * 5, 3600),
        (3600, [0] * 4, None),  # four are too few
        (3600, [0, 30, 55, 10, 45, 20, 60, 35], None),  # not at one time of the hour
        (2700, [0] * 8, None),  # no part of a day
    ],
)
def test_a_period_that_keeps_to_the_clock_is_told_by_it(
    period_s: float, late_s: list[float], clock_s: float | None
) -> None:
    (period,) = told(lines(by_the_clock(period_s, late_s)))[1]
    assert (period["kind"], period["times_count"]) == ("periodic", len(late_s))
    found_ns = period.get("clock_period_ns")
    assert found_ns == (None if clock_s is None else clock_s * SECOND)


def test_a_period_of_steps_keeps_to_no_clock_and_without_times_none_is_told() -> None:
    durs = noisy(12_000)
    for index in range(1199, 12_000, 1200):  # 20 min, and what each takes
        durs[index] += 30
    (period,) = told(lines(durs))[1]
    assert (period["period_count"], period.get("clock_period_ns")) == (1200, None)
    hourly = by_the_clock(3600, [0] * 8)
    (timeless,) = told([r | {"time_ns": None} for r in lines(hourly)])[1]
    assert timeless.get("clock_period_ns") is None


def test_two_periods_are_two_and_a_stall_between_them_is_one() -> None:
    durs = noisy(10_000)
    for index in range(249, 10_000, 250):
        durs[index] += 4
    for index in range(1999, 10_000, 1100):
        durs[index] += 60
    durs[7776] += 45
    found = told(lines(durs))[1]
    assert sorted((f["kind"], f.get("period_count"), f["last_step"]) for f in found) == [
        ("periodic", 250, 10_000),
        ("periodic", 1100, 9700),
        ("stall", None, 7777),
    ]


@pytest.mark.parametrize(
    ("at", "is_one"),
    [((50, 100, 150, 200), True), ((50, 100, 150, 220), False), ((50, 100, 150), False)],
)
def test_four_outliers_are_a_period_if_each_is_as_far_from_the_next(
    at: tuple[int, ...], is_one: bool
) -> None:
    durs = noisy(240)
    for step in at:
        durs[step] += 4
    periods = [r for r in told(lines(durs))[1] if r["kind"] == "periodic"]
    assert [r["times_count"] for r in periods] == ([4] if is_one else [])


@pytest.mark.parametrize("is_told", [True, False])
def test_three_outliers_are_a_period_if_the_log_says_what_they_are(is_told: bool) -> None:
    durs = noisy(200)
    for step in (50, 100, 150):
        durs[step] += 4
    rows = [r | {"place": 2 * r["place"]} for r in lines(durs)]
    places = [101, 201, 301] if is_told else [101, 121, 141]
    events = [{"source_id": 0, "place": p, "code": "checkpoint-save"} for p in places]
    con = database({"job_step": rows, "log_event": events})
    periods = [r for r in history(con, {0}, {})[1] if r["kind"] == "periodic"]
    assert [(r["times_count"], r["checkpoints_count"]) for r in periods] == (
        [(3, 3)] if is_told else []
    )


def quick_bar(stall_s: int) -> list[Row]:
    """Drawings of 400 steps of a tenth of a second, by a clock of whole seconds; one stalls."""
    return [
        {
            "source_id": 0, "place": n, "format": "tqdm", "step": n, "total_steps_count": 400,
            "elapsed_ns": (n // 10 + (stall_s if n > 205 else 0)) * SECOND, "is_averaged": False,
        }
        for n in range(1, 401)
    ]  # fmt: skip


def test_a_stall_of_a_bar_whose_steps_are_shorter_than_its_clock_can_tell() -> None:
    found = [r for r in told(quick_bar(9))[1] if r["kind"] == "stall"]
    assert [(r["first_step"], r["last_step"]) for r in found] == [(206, 206)]
    assert 7 * SECOND <= found[0]["lost_ns"] <= 9 * SECOND
    assert found[0]["usual_ns"] == pytest.approx(SECOND / 10, rel=0.05)


def test_a_bar_whose_steps_are_shorter_than_its_clock_can_tell_has_no_stall() -> None:
    assert told(quick_bar(0))[1] == []


def whole_seconds(rows: Sequence[Row]) -> list[Row]:
    """The lines with the whole seconds of their times."""
    return [r | {"time_ns": r["time_ns"] // SECOND * SECOND} for r in rows]


def test_seconds_that_change_between_short_steps_are_no_stalls() -> None:
    rows = lines([0.03 * d for d in noisy(20_000)])
    assert told(whole_seconds(rows))[1] == []


@pytest.mark.parametrize("has_clock", [True, False])
def test_a_hiccup_of_the_one_step_that_a_line_times_is_no_stall_of_all(has_clock: bool) -> None:
    """nanoGPT prints every tenth step's own duration."""
    durs = [8 * d for d in noisy(5000)]
    durs[2999] += 24  # a step that is timed
    rows = [
        r | {"is_averaged": False, "dur_ns": round(durs[r["step"] - 1] * SECOND)}
        | ({} if has_clock else {"time_ns": None})
        for r in lines(durs, every=10)
    ]  # fmt: skip
    assert told(rows)[1] == []
    durs[3995] += 600  # one that is not
    rows = [
        r | {"is_averaged": False, "dur_ns": round(durs[r["step"] - 1] * SECOND)}
        for r in lines(durs, every=10)
    ]
    (stall,) = told(rows)[1]
    assert stall["lost_ns"] == pytest.approx(600 * SECOND, rel=0.02)


def test_a_stall_beside_whole_seconds_is_told_to_the_second() -> None:
    rows = lines([0.03 * d for d in noisy(20_000)])
    for row in rows[9000:]:
        row["time_ns"] += 120 * SECOND
    (stall,) = told(whole_seconds(rows))[1]
    assert (stall["kind"], stall["last_step"]) == ("stall", 9001)
    assert stall["lost_ns"] == pytest.approx(120 * SECOND, abs=2 * SECOND)


def test_sequences_of_two_lengths_make_no_stretches() -> None:
    rng = random.Random(3)  # noqa: S311 - as above
    durs = [d * (1.3 if rng.random() < 0.25 else 1.0) for d in noisy(40_000)]
    for every in (1, 5, 10):
        assert told(lines(durs, every=every))[1] == []


def resembling_hours(count: int, seed: int, ratio: float = 0.003) -> list[float]:
    """Steps of 10 s that wander from hour to hour."""
    rng = random.Random(seed)  # noqa: S311 - as above
    levels = [rng.gauss(0, ratio) for _ in range(count // 360 + 2)]
    return [
        10 * (1 + rng.gauss(0, 0.02) + levels[n // 360] * (1 - n % 360 / 360)
              + levels[n // 360 + 1] * (n % 360 / 360))
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_drift_is_told_where_hours_resemble_each_other(seed: int) -> None:
    durs = resembling_hours(26_000, seed)
    assert told(lines(durs))[1] == []
    growing = [d * (1 + 0.01 * n * 10 / 86_400) for n, d in enumerate(durs)]
    (drift,) = told(lines(growing))[1]
    assert drift["kind"] == "drift"
    assert drift["per_day_ratio"] == pytest.approx(0.01, rel=0.15)


@pytest.mark.parametrize("changes", [(0.4,), (0.3, 0.7)])
def test_changes_too_small_for_levels_are_no_drift(changes: tuple[float, ...]) -> None:
    count = 26_000
    durs = [
        10 * d * (1 + 0.008 * sum(n > c * count for c in changes))
        for n, d in enumerate(noisy(count))
    ]
    assert "drift" not in {f["kind"] for f in told(lines(durs))[1]}


@pytest.mark.parametrize(("change", "is_told"), [(0.012, True), (-0.012, True), (0.005, False)])
def test_a_drift_is_told_beside_a_change_too_small_for_a_level(
    change: float, is_told: bool
) -> None:
    durs = [
        10 * d * (1 + change * (n > 11_000)) * (1 + 0.002 * n * 10 / 86_400)
        for n, d in enumerate(noisy(26_000, ratio=0.006))
    ]
    found = told(lines(durs))[1]
    assert [f["kind"] for f in found] == ["drift"] * is_told
    assert [f["per_day_ratio"] for f in found] == pytest.approx([0.002] * is_told, rel=0.15)


def test_a_drift_is_told_by_the_day_and_not_as_levels() -> None:
    per_day = 0.03
    durs = [d * (1 + per_day * n * 10 / 86_400) for n, d in enumerate(noisy(30_000))]
    (drift,) = told(lines([10 * d for d in durs]))[1]
    assert drift["kind"] == "drift"
    assert drift["per_day_ratio"] == pytest.approx(per_day, rel=0.1)


def test_without_a_clock_what_is_stated_is_judged() -> None:
    durs = noisy(2000)
    durs[1000] += 600
    (stall,) = told([r | {"time_ns": None} for r in lines(durs)])[1]
    assert (stall["kind"], stall["last_step"], stall["start_ns"]) == ("stall", 1001, None)


def kinds(found: Sequence[Row]) -> list[str]:
    return [r["kind"] for r in found]


@pytest.mark.parametrize("total", [60, None])
def test_a_count_that_begins_anew_once_its_last_step_is_reached_is_an_epoch(
    total: int | None,
) -> None:
    """As ``for batch in tqdm(loader)`` in each epoch draws it, and loops that print ``[12/60]``."""

    def loop(*ends: int) -> list[Row]:
        steps = [(epoch, step) for epoch, end in enumerate(ends) for step in range(0, end, 2)]
        return [row | {"epoch": None, "total_steps_count": total} for row in plain(*steps)]

    steps, found = told(loop(60, 60, 60))
    assert [s["step"] for s in steps] == list(range(0, 180, 2))
    assert "restart" not in kinds(found)
    # What is cut off before, and begins behind its first step, was restarted.
    assert "restart" in kinds(told(loop(60, 40, 60))[1])
    assert "restart" in kinds(told(loop(60) + [
        row | {"place": row["place"] + 90, "time_ns": row["time_ns"] + 10**12}
        for row in loop(60) if row["step"] > 20
    ])[1])  # fmt: skip


def test_a_bar_that_begins_anew_behind_its_end_is_an_epoch() -> None:
    each = [bar(*range(0, 151, 2), place=1 + 80 * n) for n in range(3)]
    steps, found = told([row for rows in each for row in rows])
    assert steps[-1]["step"] == 450
    assert {s["start_number"] for s in steps} == {1}
    assert kinds(found) == []
    early = told([*bar(*range(0, 131, 2)), *bar(*range(0, 151, 2), place=90)])
    assert kinds(early[1]) == ["restart"]


@pytest.mark.parametrize(("last", "is_told"), [(500, False), (499, True)])
def test_what_begins_behind_the_job_s_end_is_another_job(last: int, is_told: bool) -> None:
    first = [r | {"total_steps_count": 500} for r in lines([1.0] * last)]
    again = [
        r | {"total_steps_count": 500, "place": r["place"] + 500}
        for r in lines([1.0] * 500, at=9000.0)
    ]
    assert kinds(told([*first, *again])[1]) == (["restart"] if is_told else [])


def _three_days(is_sick: bool) -> list[Row]:
    """250,000 steps of about a second with a checkpoint's 4 s every 1,000, a line every 10 steps.

    The sick ones grow by 0.2 % a day, stand still for 40 minutes, start again twice (500 steps
    back after 10 minutes), and take 5 % longer on the host that the second restart brings.
    """
    rng = random.Random(7)  # noqa: S311 - no secret
    restarts = [80_000, 170_000] if is_sick else []
    rows: list[Row] = []
    step, at, taken, trained = 0, 0.0, 0.0, 0.0
    while step < 250_000:
        step += 1
        dur = 3 * 86_400 / 250_000 * (1 + rng.gauss(0, 0.02)) + (4 if step % 1000 == 0 else 0)
        if is_sick:
            dur *= 1 + 0.002 * trained / 86_400
            dur = dur * 1.05 if step > 170_000 else dur + 2400 * (step == 120_000)
            if restarts and step == restarts[0]:
                step, at, taken = restarts.pop(0) - 500, at + 600, 0.0
                continue
        at, taken, trained = at + dur, taken + dur, trained + dur
        if step % 10 == 0:
            rows.append(
                {
                    "source_id": 0, "place": len(rows) + 1, "format": "megatron", "step": step,
                    "time_ns": round(at * SECOND), "dur_ns": round(taken / 10 * SECOND),
                    "is_averaged": True,
                }
            )  # fmt: skip
            taken = 0.0
    return rows


def _speaking(found: Sequence[Row]) -> list[str]:
    names = ("periodic-stall", "step-drift", "restart-loss")
    days = {"steps_count": 250_000, "end_ns": 3 * 86_400 * SECOND, "p50_ns": 1.04 * SECOND}
    return [n for n in names if asked(n, *map(episode_of, found), summary=days).findings]


def test_three_days_with_known_faults_are_told_and_nothing_else() -> None:
    _, found = told(_three_days(is_sick=True))
    # Checkpoints take 0.4 % of the job and its restarts 0.9 %: told as history, no finding.
    assert _speaking(found) == ["step-drift"]
    of_kind = {(r["kind"], round(r["first_step"], -3)): r for r in found}
    assert sorted(of_kind) == [
        ("drift", 0),
        ("periodic", 1000),
        ("restart", 80_000),
        ("restart", 170_000),
        ("slow", 170_000),
        ("stall", 120_000),
    ]
    assert of_kind["drift", 0]["per_day_ratio"] == pytest.approx(0.002, rel=0.15)
    assert of_kind["periodic", 1000]["period_count"] == 1000
    assert of_kind["stall", 120_000]["lost_ns"] == pytest.approx(2400 * SECOND, rel=0.01)
    slow = of_kind["slow", 170_000]
    assert slow["dur_ns"] / slow["usual_ns"] == pytest.approx(1.05, abs=0.01)


def test_three_healthy_days_tell_their_checkpoints_alone() -> None:
    (period,) = told(_three_days(is_sick=False))[1]
    assert _speaking([period]) == []
    assert (period["kind"], period["period_count"], period["times_count"]) == (
        "periodic",
        1000,
        250,
    )


def test_a_line_that_stands_out_does_so_for_the_curve_and_for_episodes() -> None:
    known = {p.name: p.default for p in find("job_step_curve").params}
    assert known["outlier_steps"] == MIN_OUTLIER_STEPS


@pytest.mark.slow
@pytest.mark.parametrize("batch_rows", [100, 997, 100_000])
def test_of_a_history_of_very_many_lines_several_are_one_and_what_stands_out_stays(
    batch_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = _three_days(is_sick=True)
    each, found = told(rows)
    monkeypatch.setattr("tracekit.derive.history.MAX_LINES", len(rows) // 5)
    monkeypatch.setattr("tracekit.derive.history.BATCH_ROWS", batch_rows)
    fewer, again = told(rows)
    assert len(fewer) < len(rows) / 5
    assert sum(s["steps_count"] for s in fewer) == sum(s["steps_count"] for s in each)
    assert [s["step"] for s in fewer if s["start_number"] == 2][:1] == [
        s["step"] for s in each if s["start_number"] == 2
    ][:1]
    assert _speaking(again) == _speaking(found)
    for own, other in zip(again, found, strict=True):
        if own["kind"] in ("stall", "restart"):
            assert (own["first_step"], own["last_step"]) == (
                other["first_step"],
                other["last_step"],
            )
        if other["lost_ns"]:
            assert own["lost_ns"] == pytest.approx(other["lost_ns"], rel=0.1)


def test_of_very_many_drawings_of_a_bar_those_at_which_it_begins_and_jumps_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [*bar(*range(400), total=900), *bar(0, *range(391, 900), place=500, total=900)]
    rows[200]["elapsed_ns"] += 60 * SECOND
    for row in rows[201:400]:
        row["elapsed_ns"] += 60 * SECOND
    each, found = told(rows)
    monkeypatch.setattr("tracekit.derive.history.MAX_LINES", 200)
    monkeypatch.setattr("tracekit.derive.history.BATCH_ROWS", 64)
    fewer, again = told(rows)
    assert len(fewer) < len(each) / 2
    assert sum(s["steps_count"] for s in fewer) == sum(s["steps_count"] for s in each)
    assert [(e["kind"], e["first_step"], e["last_step"]) for e in again] == [
        (e["kind"], e["first_step"], e["last_step"]) for e in found
    ]
    assert {e["kind"] for e in found} == {"restart", "stall"}


def test_one_line_for_several_tells_the_mean_of_what_they_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [r | {"time_ns": None} for r in lines([1.0, 3.0] * 50)]
    rows[11]["dur_ns"] = None
    monkeypatch.setattr("tracekit.derive.history.MAX_LINES", 25)
    fewer, _ = told(rows)
    of = {s["step"]: (s["steps_count"], s["dur_ns"]) for s in fewer}
    assert of[9] == (4, 2 * SECOND)
    assert of[13][1] == round(5 / 3 * SECOND) - 1  # one says nothing
    assert sum(s["steps_count"] for s in fewer) == 100


@pytest.mark.parametrize(
    ("apart_s", "is_clocked", "starts"),
    [(1.0, True, 1), (1.49, True, 1), (1.52, True, 2), (600, True, 2), (1.0, False, 2)],
)
def test_a_log_that_was_rotated_is_one_start(apart_s: float, is_clocked: bool, starts: int) -> None:
    first = lines([1.0] * 300)
    later = lines([1.0] * 300, first=301, source=1, at=1300.0 + apart_s - 1.0)
    rows = [r if is_clocked else r | {"time_ns": None} for r in (*first, *later)]
    steps, found = told(rows)
    assert max(s["start_number"] for s in steps) == starts
    assert [e["kind"] for e in found] == ["restart"] * (starts - 1)
    assert sum(s["steps_count"] for s in steps) == 600


def ramped(durs: Sequence[float], works: Sequence[int]) -> list[Row]:
    """Lines that count the samples that their steps consume."""
    done = np.cumsum(works).tolist()
    return [r | {"samples_count": n} for r, n in zip(lines(durs), done, strict=True)]


@pytest.mark.parametrize(
    ("work", "longer", "kinds"),
    [
        (64, 2.0, []),
        (64, 2.09, []),
        (64, 2.12, ["risen"]),  # beyond twice the samples
        (64, 1.5, []),
        (32, 2.0, ["risen"]),
        (32, 1.1, ["risen"]),
    ],
)
def test_steps_that_consume_more_samples_take_longer_without_a_fault(
    work: int, longer: float, kinds: list[str]
) -> None:
    works = [32] * 900 + [work] * 1600
    durs = noisy(900, ratio=0.005) + [longer * d for d in noisy(1600, seed=2, ratio=0.005)]
    found = told(ramped(durs, works))[1]
    assert [e["kind"] for e in found] == kinds
    # A slow stretch behind it is told all the same, against steps of as many samples.
    slow = durs[:1700] + [1.2 * d for d in durs[1700:1900]] + durs[1900:]
    again = told(ramped(slow, works))[1]
    assert [e["kind"] for e in again if e["first_step"] > 1500] == ["slow"]


def test_what_grows_and_falls_back_again_and_again_is_no_drift() -> None:
    durs = [d * (1 + 0.2 * (n % 1000) / 1000) for n, d in enumerate(noisy(10_000, ratio=0.01))]
    assert [e for e in told(lines(durs))[1] if e["kind"] == "drift"] == []
    grown = [d * (1 + 0.2 * n / 10_000) for n, d in enumerate(noisy(10_000, ratio=0.01))]
    assert "drift" in {e["kind"] for e in told(lines(grown))[1]}


@pytest.mark.parametrize("is_done", [True, False])
def test_what_begins_when_the_last_step_was_reached_is_another_job(is_done: bool) -> None:
    """Fine-tuning behind a training, in one log: its steps are slow beside nothing."""
    first = [r | {"total_steps_count": 2000 if is_done else 3000} for r in lines([1.0] * 2000)]
    durs = [1.5] * 500 + [2.0] * 300
    behind = [
        r | {"place": 2000 + n, "total_steps_count": 800 if is_done else 3000}
        for n, r in enumerate(lines(durs, at=3100.0), 1)
    ]
    found = [e for e in told([*first, *behind])[1] if e["kind"] in ("slow", "risen")]
    if is_done:
        assert [(e["kind"], e["first_step"]) for e in found] == [("slow", 501)]
    else:
        assert found[0]["first_step"] < 10


@pytest.mark.parametrize(("work", "kinds"), [(100, ["slow"]), (104, ["slow"]), (106, [])])
def test_a_small_change_is_excused_by_no_fewer_samples_than_it_needs(
    work: int, kinds: list[str]
) -> None:
    """Steps that take 3 % longer, as on a host that was swapped."""
    works = [100] * 2000 + [work] * 1000 + [100] * 2000
    durs = noisy(5000, ratio=0.005)
    durs[2000:3000] = [1.03 * d for d in durs[2000:3000]]
    assert [e["kind"] for e in told(ramped(durs, works))[1]] == kinds


SUNDAY = datetime(2026, 3, 29, 2, tzinfo=UTC)
"""When a clock of Berlin goes on at 3."""


@pytest.mark.parametrize(
    ("leap", "leaps_s", "basis", "is_stall"),
    [
        (SUNDAY, 3600, "local", False),
        (SUNDAY, 3601.9, "local", False),
        (SUNDAY, 3602.1, "local", True),
        (SUNDAY, 3597.9, "local", True),
        (SUNDAY, 3600, "epoch", True),
        (SUNDAY + timedelta(minutes=20), 3600, "local", True),
        (SUNDAY - timedelta(days=1), 3600, "local", True),
        (SUNDAY + timedelta(days=91), 3600, "local", True),
        (SUNDAY - timedelta(hours=10), 3600, "local", False),  # Sydney's, in UTC
    ],
)
@pytest.mark.parametrize("is_stated", [True, False])
def test_the_hour_that_local_time_leaps_in_spring_is_no_stall(
    leap: datetime, leaps_s: float, basis: str, *, is_stall: bool, is_stated: bool
) -> None:
    rows = lines([1.0] * 2000, at=leap.timestamp() - 1000.5)
    for row in rows:
        if row["step"] > 1000:
            row["time_ns"] += round(leaps_s * SECOND)
        if not is_stated:
            del row["dur_ns"]
    given = {"job_step": rows, "source": [{"source_id": 0, "time_basis": basis}]}
    notes: list[str] = []
    steps, found = history(database(given), {0}, {}, notes)
    assert [(e["kind"], e["last_step"]) for e in found] == ([("stall", 1001)] if is_stall else [])
    assert [n for n in notes if "leaps an hour at step 1,001," in n] == notes
    assert bool(notes) is not is_stall
    assert max(s["wall_ns"] or 0 for s in steps.to_pylist()) > 3000 * SECOND or not is_stall


def test_by_a_clock_of_whole_seconds_means_tell_how_long_steps_of_a_stretch_took() -> None:
    """Steps of 1.5 s take 1 or 2 s by it, so no median tells one stretch from another."""

    def by_clock(durs: list[float]) -> list[Row]:
        return [{k: v for k, v in r.items() if k != "dur_ns"} for r in whole_seconds(lines(durs))]

    durs = [1.5 * d for d in noisy(900, ratio=0.01)]
    assert told(by_clock(durs))[1] == []
    durs[299:420] = [1.3 * d for d in durs[299:420]]
    (slow,) = told(by_clock(durs))[1]
    assert slow["kind"] == "slow"
    assert slow["first_step"] == pytest.approx(300, abs=10)
    assert slow["last_step"] == pytest.approx(420, abs=10)
    assert slow["dur_ns"] / slow["usual_ns"] == pytest.approx(1.3, abs=0.03)


@pytest.mark.parametrize(
    ("epochs", "first", "steps"),
    [
        ((1, 2), 1, (1, 200)),  # counted from 1, as the first line shows
        ((0, 1), 1, (1, 200)),
        ((1, 2), 40, (140, 300)),  # a log that begins within an epoch does not tell
        ((3, 4), 1, (301, 500)),
    ],
)
def test_a_loop_may_count_its_epochs_from_one(
    epochs: tuple[int, int], first: int, steps: tuple[int, int]
) -> None:
    numbers = [(e, s) for e in epochs for s in range(first if e == epochs[0] else 1, 101)]
    rows = [
        row | {"format": "plain", "epoch": epoch, "step": step, "total_steps_count": 100}
        for row, (epoch, step) in zip(lines([1.0] * len(numbers)), numbers, strict=True)
    ]
    found = [s["step"] for s in told(rows)[0]]
    assert (found[0], found[-1]) == steps


def test_saves_that_begin_to_take_longer_are_two_periods() -> None:
    """Of 32 saves every 50 steps, the first 22 take 20 s and the others 140 s."""
    durs = noisy(1600, ratio=0.01)
    for save in range(1, 32):
        durs[50 * save] += 20.0 if save <= 22 else 140.0
    _, found = told(lines(durs))
    fast, slow = found
    assert [e["kind"] for e in found] == ["periodic", "periodic"]
    assert [(e["period_count"], e["times_count"]) for e in found] == [(50, 22), (50, 9)]
    assert (fast["first_step"], fast["last_step"]) == (51, 1101)
    assert (slow["first_step"], slow["last_step"]) == (1151, 1551)
    assert [e["lost_ns"] for e in found] == pytest.approx([22 * 20e9, 9 * 140e9], rel=0.01)
    saved = [d + 20.0 if n % 50 == 0 and n else d for n, d in enumerate(noisy(1600, ratio=0.01))]
    (one,) = told(lines(saved))[1]
    assert (one["period_count"], one["times_count"]) == (50, 31)


def test_many_lines_are_read_in_order_by_however_many_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is unlike others is judged against the lines before, as stored in many row groups."""
    count = 150_000
    took_ns = (np.random.default_rng(5).normal(1, 0.05, count) * SECOND).astype(np.int64)
    number = np.arange(1, count + 1)
    given = pl.DataFrame({"place": number, "step": number, "dur_ns": took_ns}).with_columns(
        source_id=pl.lit(0), format=pl.lit("megatron"), time_ns=pl.col("dur_ns").cum_sum()
    )
    stored = conform(table("job_step"), given.to_arrow(), 0)
    pq.write_table(stored, tmp_path / "steps.parquet", row_group_size=2048)
    con = duckdb.connect()
    create_empty_tables(con, ["log_event", "source"])
    con.execute(f"CREATE VIEW job_step AS FROM read_parquet('{tmp_path / 'steps.parquet'}')")
    monkeypatch.setattr("tracekit.derive.history.MAX_LINES", 20_000)
    monkeypatch.setattr("tracekit.derive.history.BATCH_ROWS", 5000)
    setting = "SELECT current_setting('threads'), current_setting('preserve_insertion_order')"
    seen = []
    for threads in (1, 8):
        con.execute(f"SET threads = {threads}; SET preserve_insertion_order = false")
        seen.append(history(con, {0}, {}))
        assert con.execute(setting).fetchall() == [(threads, False)]
    assert seen[0] == seen[1]
    assert count / 10 < seen[0][0].num_rows < 2 * 20_000


KINDS = {
    "by the clock": "megatron", "stated": "megatron", "bar": "tqdm", "bars of epochs": "tqdm",
    "own loop": "plain", "running means": "timm",
}  # fmt: skip


def made(rng: random.Random) -> list[Row]:
    """Lines with hiccups of 100 s, restarts, bars and epochs that begin anew, and several ranks."""
    kind, ranks = rng.choice(list(KINDS)), rng.choice([1, 1, 3])
    is_bar, has_epochs = "bar" in kind, "epochs" in kind or kind in ("own loop", "running means")
    length, at, gone, step, epoch = rng.randrange(40, 200), 1000.0, 0.0, 0, 0
    rows: list[Row] = []
    for _ in range(rng.randrange(200, 900)):
        dur = 1 + rng.gauss(0, 0.02) + 100 * (rng.random() < 0.003)
        step, at, gone = step + 1, at + dur, gone + dur
        if has_epochs and step > length:
            step, epoch, gone = 1, epoch + 1, dur
        elif not has_epochs and step > 60 and rng.random() < 0.004:
            step, gone = (0, 0.0) if is_bar else (step - rng.randrange(10, 50), gone)
        row: Row = {"source_id": 0, "step": step, "format": KINDS[kind], "is_averaged": True}
        row |= {"elapsed_ns": int(gone) * SECOND} if is_bar else {}
        row |= {"time_ns": round(at * SECOND)} if not is_bar and kind != "running means" else {}
        row |= {"dur_ns": round(dur * SECOND)} if kind in ("stated", "running means") else {}
        row |= {"epoch": epoch} if has_epochs else {}
        if is_bar or kind == "running means":
            row["total_steps_count"] = length if has_epochs else 1000
        if kind == "running means":
            row["running_dur_ns"] = round(gone / step * 1000) * 10**6
        for rank in range(ranks):
            tag = {"tag": rank} if ranks > 1 and rng.random() < 0.95 else {}
            rows.append(row | tag | {"place": len(rows) + 1})
    return rows


def _whole(steps: Sequence[Row]) -> tuple[int, int, int]:
    count = sum(s["steps_count"] for s in steps)
    return count, steps[-1]["step"], steps[-1]["start_number"]


def _ends(found: Sequence[Row]) -> list[tuple[str, int]]:
    return [(e["kind"], e["last_step"]) for e in found if e["kind"] in ("restart", "stall")]


def test_several_lines_as_one_change_no_count_of_steps_no_restart_and_no_stall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(examples(8, 120)):
        rng = random.Random(seed)  # noqa: S311 - no secret
        rows = made(rng)
        each, found = told(rows)
        with monkeypatch.context() as few:
            few.setattr("tracekit.derive.history.MAX_LINES", rng.choice([50, 100, len(rows) // 3]))
            few.setattr("tracekit.derive.history.BATCH_ROWS", rng.choice([7, 33, 128, 100_000]))
            fewer, again = told(rows)
        assert len(fewer) <= len(each)
        assert _whole(fewer) == _whole(each)
        assert _ends(again) == _ends(found)
