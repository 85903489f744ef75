"""gpu-contention, and what GPUs that their own counters accuse cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from conftest import JobRows
from logged_rules import SECOND, SUMMARY
from msgspec.structs import replace

from tracekit.findings import Severity
from tracekit.rules import Facts, RuleOutcome, rule

MakeJob = Callable[..., JobRows]
GIB = 2.0**30
NAME = "gpu-contention"


def gauge(index: int, counter: str, value: float, peers: float) -> dict[str, Any]:
    return {
        "gpu_id": f"GPU-{index}", "host": f"h{index // 2}", "gpu_index": index % 2, "pci": None,
        "model": "A", "peer_group": "A", "rank": index, "rank_source": "log", "host_ranks": None,
        "source_id": 0, "place": index, "counter": counter, "unit": "",
        "p50_value": value, "max_value": value,
        "peer_value": peers, "peers_count": 3, "peer_ratio": value / peers if peers else None,
        "busy_peer_ratio": value / peers if peers else None, "attempt": 1,
    }  # fmt: skip


def job_of(
    make_job: MakeJob, *, more: float = 2.0, compute: int = 20, clock: float = 1.0, **rows: Any
) -> Facts:
    """Four ranks; rank 2 computes so many ms longer, and its GPU holds so many GiB more."""
    job = make_job(4)
    for step in job.steps:
        job.add(2, step, "compute", compute)
        for rank in (0, 1, 3):
            job.add(rank, step, "exposed_comm", compute)
    job.rows["gpu_counters"] = [
        row
        for i in range(4)
        for row in (
            gauge(i, "memory_used", (20 + (more if i == 2 else 0.0)) * GIB, 20 * GIB),
            gauge(i, "sm_clock", 1.9e9 * (clock if i == 2 else 1.0), 1.9e9),
        )
    ]
    job.rows["straggler"] = [
        {"rank": r, "compute_ratio": 1 + (compute / 80 if r == 2 else 0.0)} for r in range(4)
    ]
    for name, listed in rows.items():
        job.rows[name] = listed
    return job.facts()


def test_a_slow_gpu_with_foreign_memory_at_full_clock(make_job: MakeJob) -> None:
    (finding,) = rule(NAME).run(job_of(make_job)).findings
    assert finding.id == "gpu-contention/2"
    assert finding.scope.ranks == (2,)
    assert finding.confidence.level == "possible"  # nobody counted processes
    assert finding.impact.s_per_step == pytest.approx(0.020)
    assert "2.0 GiB more" in finding.summary


def throttled(event: str) -> list[dict[str, Any]]:
    return [{"gpu_id": "GPU-2", "event": event, "active_count": 3, "held_ns": None}]


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"more": 0.999}, id="just below 1 GiB"),
        pytest.param({"compute": 3}, id="it computes no longer"),
        pytest.param({"clock": 0.94}, id="its clock is why"),
        pytest.param({"gpu_throttle": throttled("sw_thermal")}, id="heat is why"),
        pytest.param({"comm_summary": [{"rank": 0, "op": "all_to_all"}]}, id="experts"),
    ],
)
def test_what_is_no_contention(make_job: MakeJob, given: dict[str, Any]) -> None:
    assert rule(NAME).run(job_of(make_job, **given)) == RuleOutcome()


def test_a_power_cap_at_full_clock_exempts_nobody(make_job: MakeJob) -> None:
    facts = job_of(make_job, gpu_throttle=throttled("sw_power_cap"))
    assert len(rule(NAME).run(facts).findings) == 1


@pytest.mark.parametrize(("count", "fires"), [(2.0, True), (1.0, False)])
def test_a_second_process_is_said_even_where_it_costs_nothing(
    make_job: MakeJob, count: float, fires: bool
) -> None:
    rows = [gauge(i, "compute_processes", count if i == 2 else 1.0, 1.0) for i in range(4)]
    outcome = rule(NAME).run(job_of(make_job, compute=0, gpu_counters=rows))
    assert [f.severity for f in outcome.findings] == ([Severity.NOTE] if fires else [])


def test_processes_on_every_gpu_are_the_job_s_way(make_job: MakeJob) -> None:
    rows = [gauge(i, "compute_processes", 2.0, 2.0) for i in range(4)]
    assert rule(NAME).run(job_of(make_job, gpu_counters=rows)) == RuleOutcome()


def test_without_memory_or_processes_it_says_what_it_needs(make_job: MakeJob) -> None:
    rows = [gauge(0, "sm_clock", 1.0, 1.0)]
    (missing,) = rule(NAME).run(job_of(make_job, gpu_counters=rows)).not_checked
    assert "memory in use" in missing.needs


# --- what a throttled GPU costs -------------------------------------------------------------------


def hot(**more: Any) -> list[dict[str, Any]]:
    row = gauge(2, "sm_clock", 1.4e9, 1.9e9) | {
        "event": "sw_thermal", "samples_count": 100, "active_count": 50, "active_ratio": 0.5,
        "held_ns": None, "held_ratio": None,
    }  # fmt: skip
    return [row | more]


def test_heat_is_charged_with_what_the_rank_computes_longer(make_job: MakeJob) -> None:
    facts = job_of(make_job, more=0.0, gpu_throttle=hot())
    (finding,) = rule("thermal-throttle").run(facts).findings
    assert finding.impact.s_per_step == pytest.approx(0.020)
    assert finding.severity is Severity.MAJOR
    assert finding.confidence.level == "likely"
    assert finding.scope.steps == ((1, 10),)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"compute": 3}, id="it computes no longer than its peers"),
        pytest.param({"comm_summary": [{"rank": 0, "op": "all_to_all"}]}, id="uneven work"),
        pytest.param({"gpu_throttle": hot(rank=None)}, id="nobody knows whose GPU it is"),
    ],
)
def test_heat_that_costs_nothing_known_stays_unpriced(
    make_job: MakeJob, given: dict[str, Any]
) -> None:
    merged: dict[str, Any] = {"more": 0.0, "gpu_throttle": hot()} | given
    facts = job_of(make_job, **merged)
    (finding,) = rule("thermal-throttle").run(facts).findings
    assert finding.impact.s_per_step is None
    assert finding.confidence.level == "possible"


def test_a_replay_prices_better_than_the_difference(make_job: MakeJob) -> None:
    class Saving:
        is_by_streams = is_by_operations = False
        operations_error_ratio = 0.0
        error_ratio = 0.0

        def saved_by_work_ns(self, ranks: Any) -> float | None:
            return None

        def saved_at_most_ns(self, ranks: Any) -> float | None:
            return None

        def saved_by_even_lengths_ns(self) -> float | None:
            return None

        def saved_by_even_stages_ns(self) -> float | None:
            return None

        def saved_at_speed_ns(self, ranks: Sequence[int], factor: float) -> float | None:
            return None

        def saved_evenly_ns(self) -> float | None:
            return None

        def saved_by_operations_ns(self, rank: int) -> float | None:
            return None

        def saved_by_stage_ns(self, stage: int) -> float | None:
            return None

        def idle_beyond_hand_overs_ns(self) -> float | None:
            return None

        def hand_overs_ns(self) -> float | None:
            return None

        def saved_by_messages_ns(self, ranks: Sequence[int]) -> float | None:
            return None

        def saved_beside_replicas_ns(self, rank: int, least_ns: float) -> float | None:
            return None

        def saved_in_operations_ns(self, rank: int, delay_ns: float) -> float | None:
            return None

        def saved_ns(self, ranks: Any) -> float:
            assert list(ranks) == [2]
            return 15e6

        def slowdown(self, rank: int) -> float | None:
            return None

    facts = replace(job_of(make_job, more=0.0, gpu_throttle=hot()), replay=Saving())
    (finding,) = rule("thermal-throttle").run(facts).findings
    assert finding.impact.s_per_step == pytest.approx(0.015)


def test_names_of_processes_are_told_and_a_container_that_sees_none_is_no_answer(
    make_job: MakeJob,
) -> None:
    shared = [gauge(i, "compute_processes", 2.0 if i == 2 else 1.0, 1.0) for i in range(4)]
    listed = [
        {"gpu_id": "GPU-2", "name": name, "pid": pid, "readings_count": count}
        for name, pid, count in (
            *(("ffmpeg", 7, 2), ("python3", 5, 9), (None, 6, 1)),
            ("ffmpeg", 7, 1),  # again, as another kind of context
        )
    ]
    facts = job_of(make_job, gpu_counters=shared, gpu_processes=listed)
    (finding,) = rule(NAME).run(facts).findings
    assert "(python3 5, ffmpeg 7); on its peers one." in finding.summary
    plain = job_of(make_job)
    none = [gauge(i, "compute_processes", 0.0, 0.0) for i in range(4)]
    blind = replace(plain, rows={**plain.rows, "gpu_counters": [*plain.of("gpu_counters"), *none]})
    (by_memory,) = rule(NAME).run(blind).findings
    assert "2.0 GiB more" in by_memory.summary


def test_a_gpu_without_peers_is_compared_with_none(make_job: MakeJob) -> None:
    alone = [gauge(2, "compute_processes", 3.0, 1.0) | {"peer_value": None}]
    (finding,) = rule(NAME).run(job_of(make_job, gpu_counters=alone)).findings
    assert finding.summary.startswith("3 processes compute on ")
    assert "peers" not in finding.summary


def test_two_gpus_that_hold_as_much_accuse_nobody(make_job: MakeJob) -> None:
    facts = job_of(make_job)
    as_much = gauge(3, "memory_used", 22 * GIB, 20 * GIB)  # as GPU-2 holds
    rows = [as_much if r["place"] == 3 and r["counter"] == "memory_used" else r
            for r in facts.of("gpu_counters")]  # fmt: skip
    assert not rule(NAME).run(replace(facts, rows={**facts.rows, "gpu_counters": rows})).findings


@pytest.mark.parametrize(
    ("group", "found_ids"),
    [("B", ["gpu-contention/2"]), ("unknown model of h4", ["gpu-contention/2"]), ("A", [])],
)
def test_the_memory_of_another_model_or_of_one_unknown_elsewhere_is_no_comparison(
    make_job: MakeJob, group: str, found_ids: list[str]
) -> None:
    """A GPU of another group that holds far more hides nobody; one of the same does."""
    facts = job_of(make_job)
    other = gauge(9, "memory_used", 70 * GIB, 70 * GIB) | {"model": None, "peer_group": group}
    rows = [*facts.of("gpu_counters"), other]
    found = rule(NAME).run(replace(facts, rows={**facts.rows, "gpu_counters": rows})).findings
    assert [f.id for f in found] == found_ids


# --- slices of its time, in a trace ---------------------------------------------------------------


def sliced(
    make_job: MakeJob, *, ranks: int = 1, hit: Sequence[int] = range(1, 11), **row: Any
) -> Facts:
    """Steps of 100 ms in which eight kernels of four names last 2.5 ms longer."""
    job = make_job(ranks)
    job.rows["kernel_turns"] = [
        {"rank": 0, "attempt": 1, "capture_id": 0, "step": step, "turns_count": 8, "names_count": 4,
         "kernels_count": 400, "turns_ns": 20_000_000, "over_ns": 21_000_000, "p10_ns": 2.4e6,
         "p50_ns": 2.5e6, "p90_ns": 2.6e6, "source_id": 0, "place": step} | row
        for step in hit
    ]  # fmt: skip
    return job.facts()


@pytest.mark.parametrize("ranks", [1, 4])
def test_slices_of_one_length_are_another_program_s(make_job: MakeJob, ranks: int) -> None:
    (finding,) = rule(NAME).run(sliced(make_job, ranks=ranks)).findings
    whose = "the GPU:" if ranks == 1 else "the GPU of rank 0:"
    assert f"takes turns on {whose} in the median step 8 kernels last 2.50 ms longer" in (
        finding.summary
    )
    assert finding.impact.s_per_step == pytest.approx(0.020)
    assert finding.impact.high_s_per_step == pytest.approx(0.031)  # and 10 ms that it idles
    assert finding.confidence.level == "likely"


@pytest.mark.parametrize(
    ("kind", "is_said"),
    [
        ({"turns_count": 3}, True),
        ({"turns_count": 2}, False),
        ({"names_count": 2}, True),
        ({"names_count": 1}, False),  # a kernel may have a long case of its own
        ({"p10_ns": 2.0e6}, True),
        ({"p10_ns": 1.9e6}, False),  # of many lengths: larger inputs, each kernel by its own
        ({"hit": range(1, 6)}, True),
        ({"hit": range(1, 5)}, False),
        ({"turns_ns": 2_000_000}, True),
        ({"turns_ns": 1_900_000}, False),
    ],
)
def test_what_are_no_slices(make_job: MakeJob, kind: dict[str, Any], *, is_said: bool) -> None:
    assert bool(rule(NAME).run(sliced(make_job, **kind)).findings) is is_said


# --- memory held in a slow stretch of the training log alone --------------------------------------


def in_stretch(index: int, more_gib: float | None, **given: Any) -> dict[str, Any]:
    """A GPU in a slow stretch of the log, and how much more memory it held there alone."""
    return gauge(index, "sm_clock", 1.9e9, 1.9e9) | {
        "first_step": 1000, "last_step": 2000, "start_ns": 0, "end_ns": 1000 * SECOND,
        "lost_ns": 1730 * SECOND, "usual_ns": SECOND, "dur_ns": 2.3 * SECOND, "alike": "A",
        "samples_count": 10, "mean_hz": 1.8e9, "usual_samples_count": 90, "usual_mean_hz": 1.95e9,
        "use_ratio": 1.0, "more_memory_bytes": None if more_gib is None else more_gib * GIB,
    } | given  # fmt: skip


ALONE = [in_stretch(i, 0.0) for i in range(3)]


def told_of(*rows: dict[str, Any]) -> RuleOutcome:
    counted = [gauge(i, "memory_used", 20 * GIB, 20 * GIB) for i in range(4)]
    history = {"job_step_summary": [SUMMARY], "episode_clocks": list(rows)}
    return rule(NAME).run(Facts(rows={"gpu_counters": counted, **history}))


def test_memory_held_in_a_slow_stretch_alone_is_another_program_s() -> None:
    (finding,) = told_of(*ALONE, in_stretch(3, 0.9)).findings
    assert "held 0.9 GiB more in steps 1,000 to 2,000 of the training log" in finding.summary
    assert "took 130 % longer than usual" in finding.summary
    assert (finding.impact.per, finding.impact.s_per_step) == ("job", 1730)
    assert finding.confidence.level == "likely"


@pytest.mark.parametrize(
    ("rows", "is_said"),
    [
        ([in_stretch(0, 0.9)], True),  # one GPU has no peers
        ([*ALONE, in_stretch(3, 0.25)], True),
        ([*ALONE, in_stretch(3, 0.24)], False),
        ([*ALONE, in_stretch(3, None)], False),  # nobody looked after the stretch
        ([*ALONE[:1], in_stretch(3, 0.9)], True),  # of two
        ([in_stretch(i, 0.9) for i in range(4)], False),  # all: the job's own
        ([*ALONE, in_stretch(3, 0.9, mean_hz=1.65e9)], False),  # its clock is why
        ([*ALONE, in_stretch(3, 0.9, use_ratio=0.49)], False),
        ([*ALONE, in_stretch(3, 0.9, use_ratio=None)], True),
        (ALONE, False),
    ],
)
def test_what_is_no_other_program_in_a_stretch(
    rows: list[dict[str, Any]], *, is_said: bool
) -> None:
    assert bool(told_of(*rows).findings) is is_said
