"""What counters alone say of a job: judged on simulated telemetry of twelve layouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import telemetry
from msgspec.structs import replace

import tracekit
from soaks import examples, soak
from tracekit.derive.coherence import coherent, quick_size
from tracekit.derive.counter_period import CounterPeriod, Part, period_of
from tracekit.derive.signals import Readings
from tracekit.derive.statements import Statement, _clocks, statements

ALWAYS = {"ports", "clock_offset"}
MAY = {
    "dp": {"bursts_network", "bursts_nvlink", "stretch_network", "stretch_nvlink"},
    "accumulation": {"bursts_network", "bursts_nvlink"},
    "fsdp": {"throughout_network", "throughout_nvlink"},
    "offload": {"offload", "bursts_pcie", "bursts_network"},
    "hsdp": {"bursts_network", "throughout_nvlink"},
    "tp": {"throughout_nvlink"},
    "tp_pp": {"bursts_network", "bursts_nvlink", "stretch_nvlink", "in_turn"},
    "ep_dp": {"throughout_network"},
    "idle": set(),
    "split": {"load", "bursts_nvlink"},
    "serving": {"load"},
    "mixed": {"independent", "load", "bursts_nvlink"},
}
"""What is true of each layout, as its generator says; anything else said of it is wrong."""
MUST = {
    "dp": {"bursts_network"}, "accumulation": {"bursts_network"}, "fsdp": {"throughout_network"},
    "offload": {"offload"}, "hsdp": {"bursts_network", "throughout_nvlink"},
    "tp": {"throughout_nvlink"}, "ep_dp": {"throughout_network"}, "split": {"load"},
    "mixed": {"independent"},
}  # fmt: skip
SEEDS = soak(
    [(layout, seed) for seed in (201, 202, 203) for layout in telemetry.LAYOUTS],
    fast=[(layout, 201) for layout in ("offload", "mixed")],
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize(("layout", "seed"), SEEDS)
def test_a_layout_is_told_right_or_not_at_all(layout: str, seed: int, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    truth = telemetry.make(layout, folder, seed)
    with tracekit.open([folder]) as run:
        (step, *_) = run.query("activity_steps").to_dicts()
        said = run.query("counter_statements").to_dicts()
    kinds = {row["kind"] for row in said}
    assert kinds - ALWAYS <= MAY[layout]
    assert kinds >= MUST.get(layout, set())
    assert all(row["decided_by"] for row in said if row["compatible_with"])
    if layout in ("idle", "serving", "mixed"):
        assert step["verdict"] == "none"
    else:
        period_s = step["period_ns"] / 1e9
        # Nothing tells microbatches from steps: what repeats within one may be the period.
        true_s = [p / m for p in truth.periods_s.values() for m in {1, truth.microbatches}]
        assert min(abs(period_s / t - 1) for t in true_s) <= 0.02
    for row in said:
        if row["kind"] == "clock_offset":
            assert abs(row["value"] - truth.offset_s) <= max(3 * row["error"], 0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "step_s", "seed"),
    soak(
        [("dp", 0.23, 111), ("dp", 0.23, 112), ("dp", 0.23, 113), ("hsdp", 0.13, 9211),
         ("offload", 0.13, 9211), ("accumulation", 0.13, 9211)],
        fast=[("hsdp", 0.13, 9211)],
    ),
)  # fmt: skip
def test_steps_that_the_collector_cannot_resolve_are_refused(
    layout: str, step_s: float, seed: int, tmp_path: Path
) -> None:
    """Nor is an offset of clocks stated: shifted by some such steps all fits as well."""
    folder = tmp_path / "job"
    folder.mkdir()
    count = examples(2, 4)
    telemetry.make(layout, folder, seed, step_s=step_s, span_s=120, gpus=count, ports=count)
    with tracekit.open([folder]) as run:
        (step, *_) = run.query("activity_steps").to_dicts()
        kinds = set(run.query("counter_statements")["kind"])
    assert step["verdict"] == "none"
    assert kinds <= {"ports"}


def test_the_verdict_tells_what_counters_fit_and_never_proves_a_layout(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    telemetry.make("fsdp", folder, 121, gpus=2, ports=2, span_s=90, step_s=1.5)
    with tracekit.open([folder]) as run:
        sentence = run.diagnose().verdict.sentence
    assert "all through the period" in sentence
    assert "compatible with parameters sharded over nodes" in sentence


# --- one number at a time -------------------------------------------------------------------------


def steady(levels: Sequence[float], node: str = "n0") -> list[Readings]:
    """GPUs that read one level all along."""
    times = np.arange(100.0)
    return [
        Readings(f"{node} {at}", times, np.full(100, level), node, f"GPU {at}")
        for at, level in enumerate(levels)
    ]


NOTHING = CounterPeriod({"verdict": "none", "counter": "sm_active", "reason": ""}, np.zeros(0))


def loads(active: Sequence[float], watts: Sequence[float]) -> list[Statement]:
    return statements({"sm_active": steady(active), "power": steady(watts)}, NOTHING)


def test_idle_gpus_beside_busy_ones_are_groups_with_their_numbers() -> None:
    idle, busy = loads([0.0] * 4 + [0.9] * 4, [130] * 4 + [690] * 4)
    assert idle.sentence == "GPUs 0-3 of n0 idle (busy in 0 % of readings, 130 W)"
    assert busy.sentence == "GPUs 4-7 of n0 busy (busy in 100 % of readings, 690 W)"


WORKS, WAITS, STANDS = (0.97, 620.0), (1.0, 186.0), (0.0, 75.0)
"""Utilisation and power of a GPU that works, that stands in a collective's kernel, and of none."""


def changed(
    *then: tuple[float, float],
    work_s: float = 600,
    then_s: float = 600,
    worked: tuple[float, float] = WORKS,
) -> list[Statement]:
    """What is said of the waiting of GPUs that worked, and then each did something else."""
    times = np.arange(0, work_s + then_s, 2.0)
    rows: dict[str, list[Readings]] = {"gpu_utilisation": [], "power": []}
    for gpu, level in enumerate(then):
        for at, counter in enumerate(rows):
            values = np.where(times < work_s, worked[at], level[at])
            rows[counter].append(Readings(f"n0 {gpu}", times, values, "n0", f"GPU {gpu}"))
    return [s for s in statements(rows, NOTHING) if s.kind == "waiting"]


def test_gpus_that_are_in_use_and_draw_little_at_the_end_wait() -> None:
    (said,) = changed(WAITS, WAITS, WAITS)
    assert said.sentence == (
        "GPUs 0-2 of n0 in use all the time and at 186 W in the last 10 min, where they drew 620 W "
        "before"
    )
    assert said.value == pytest.approx(0.3)
    assert said.compatible_with and "a hang" in said.compatible_with
    (said,) = changed(WAITS, STANDS, WAITS)
    assert said.sentence.startswith("GPUs 0,2 of n0 in use")
    assert said.sentence.endswith(", and GPU 1 of n0 idle meanwhile")
    (said,) = changed(WAITS, WAITS, WORKS)
    assert said.sentence.endswith(", and GPU 2 of n0 not so")


@pytest.mark.parametrize(
    "said",
    [
        changed(WORKS, WORKS),  # healthy
        changed(STANDS, STANDS),  # it ended
        changed(WAITS, WORKS, WORKS),  # one alone
        changed((0.94, 186.0), (0.94, 186.0)),
        changed((1.0, 311.0), (1.0, 311.0)),
        changed(WAITS, WAITS, then_s=105),
        changed(WAITS, WAITS, work_s=105),
        changed(WAITS, WAITS, worked=WAITS),  # nothing else was seen of it
        changed(WAITS, WAITS, worked=(0.4, 620.0)),  # it was not in use when it drew more
        changed(WAITS, WAITS, work_s=60, then_s=6000),  # worked too seldom to know what it draws
    ],
)
def test_no_gpu_waits_by_less_than_that(said: list[Statement]) -> None:
    assert not said


def test_waiting_is_not_told_by_activity_nor_without_power() -> None:
    times = np.arange(0, 1200, 2.0)
    use = [Readings(f"n0 {g}", times, np.ones(600), "n0", f"GPU {g}") for g in range(2)]
    power = [replace(r, values=np.where(times < 600, 620.0, 186.0)) for r in use]
    assert [s.kind for s in statements({"gpu_utilisation": use, "power": power}, NOTHING)] == [
        "waiting"
    ]
    assert not statements({"gpu_utilisation": use}, NOTHING)
    assert not [
        s for s in statements({"sm_active": use, "power": power}, NOTHING) if s.kind == "waiting"
    ]
    # One whose readings end before those of another begin tells nothing, and is no other's power.
    early = [replace(r, times=r.times - 5000) for r in use]
    for uses in (early, [early[0], *use]):
        assert not [
            s
            for s in statements({"gpu_utilisation": uses, "power": power}, NOTHING)
            if s.kind == "waiting"
        ]
    seen = (times < 800) | (times > 900)
    torn = [replace(r, times=r.times[seen], values=r.values[seen]) for r in (*use, *power)]
    assert not statements({"gpu_utilisation": torn[:2], "power": torn[2:]}, NOTHING)


def test_the_verdict_of_counters_begins_with_gpus_that_wait(tmp_path: Path) -> None:
    lines = ["timestamp, index, name, utilization.gpu [%], power.draw [W]"]
    for at in range(600):
        clock = f"2026/11/20 10:{at * 2 // 60:02d}:{at * 2 % 60:02d}.123"
        for gpu in range(4):
            use, watts = (100, 186 + at % 3) if at >= 300 else (95 + (at + gpu) % 5, 600 + at % 40)
            lines.append(f"{clock}, {gpu}, NVIDIA H100 80GB HBM3, {use} %, {watts}.10 W")
    path = tmp_path / "gpu_h7.csv"
    path.write_text("\n".join(lines) + "\n")
    with tracekit.open([path]) as run:
        verdict = run.diagnose().verdict
    assert verdict.kind == "unexplained"
    assert verdict.sentence.startswith(
        "By counters alone: GPUs 0-3 of gpu_h7 in use all the time and at 187 W in the last 10 min"
    )
    assert "a hang" in verdict.sentence


def test_who_works_now_and_then_is_called_neither_busy_nor_idle() -> None:
    some = [0.9] * 10 + [0.0] * 90
    gpus = [*steady([0.9, 0.9]), *(replace(r, values=np.array(some)) for r in steady([0], "n1"))]
    said = [s.sentence for s in statements({"sm_active": gpus}, NOTHING)]
    assert any("GPU 0 of n1 mostly idle (busy in 10 % of readings)" in text for text in said)
    assert any("GPUs 0-1 of n0 busy" in text for text in said)


def test_without_activity_utilisation_and_without_that_power_tells_groups() -> None:
    by_use = statements(
        {"gpu_utilisation": steady([0.0, 0.02, 1.0, 0.9]), "power": steady([90, 90, 600, 610])},
        NOTHING,
    )
    assert [(s.kind, s.scope, s.value) for s in by_use] == [
        ("load", "GPUs 0-1 of n0", 0.0), ("load", "GPUs 2-3 of n0", 1.0),
    ]  # fmt: skip
    by_power = statements({"power": steady([90, 92, 600, 610])}, NOTHING)
    assert [s.sentence for s in by_power] == [
        "GPUs 0-1 of n0 at 91 W in the mean", "GPUs 2-3 of n0 at 605 W in the mean",
    ]  # fmt: skip
    assert not statements({"power": steady([500, 510, 520, 530])}, NOTHING)


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ([1, 1, 1, 1], "evenly over 4 ports: the busiest has 1.00 of their mean"),
        ([0, 0.01, 1, 1], "evenly over 2 of 4 ports (ib2, ib3): the busiest has 1.00"),
        ([0, 0, 1, 0], "over 1 of 4 ports (ib2)"),
        ([0.5, 0.5, 2, 1], "unevenly over 4 ports: ib2 has 50 % of it"),
    ],
)
def test_ports_are_even_among_those_that_carry_something(rates: list[float], words: str) -> None:
    times = np.arange(100.0)
    ports = [
        Readings(f"p{at}", times, np.full(100, rate * 1e9), "n0", f"ib{at}")
        for at, rate in enumerate(rates)
    ]
    (said,) = statements({"tx_rate": ports}, NOTHING)
    assert words in said.sentence


@pytest.mark.parametrize(("jitter", "is_told"), [(0.0, False), (0.004, False), (0.15, True)])
def test_a_shift_by_a_step_that_fits_nearly_as_well_is_no_offset(
    jitter: float, *, is_told: bool
) -> None:
    """Steps of 2.17 s: 0.625 s is no whole number of readings, and a step more is 28 of them."""
    rng = np.random.default_rng(11)
    fine = np.zeros(300_000)
    begin = 0.5
    while begin < 295:
        fine[int(begin * 1000) : int((begin + 0.13) * 1000)] = 1e10
        begin += 2.17 * (1 + jitter * rng.standard_normal())
    total = np.concatenate([[0.0], np.cumsum(fine)]) / 1000
    times = np.arange(0.1, 290, 0.1)
    sent = np.diff(np.interp(times, np.arange(len(total)) / 1000, total), prepend=0) / 0.1
    late = times - 0.025
    got = np.diff(np.interp(late, np.arange(len(total)) / 1000, total), prepend=0) / 0.1
    signals = {
        counter: [
            Readings(f"a{counter}", times, sent, "n0", "ib0"),
            Readings(f"b{counter}", late + 0.625, got, "n1", "ib0"),
        ]
        for counter in ("tx_rate", "rx_rate")
    }
    said = _clocks(signals, ["n0", "n1"], 2.17)
    assert (said is not None) is is_told
    assert said is None or said.value == pytest.approx(0.625, abs=0.05)


@pytest.mark.parametrize(("until_s", "is_told"), [(100.0, True), (40.0, False)])
def test_traffic_of_a_part_of_the_time_is_not_what_each_period_does(
    until_s: float, *, is_told: bool
) -> None:
    times = np.arange(0.0, 100.0, 0.1)
    flow = np.where(times < until_s, 5e9, 0.0)
    port = Readings("p", times, flow, "n0", "ib0")
    row = {"verdict": "steps", "counter": "sm_active", "period_ns": 2e9, "interval_ns": 1e8}
    part = Part(row, np.arange(0.0, 100.0, 2.0), {"g": 0.0}, {"g": "n0"})
    found = CounterPeriod(row, part.starts, (part,))
    kinds = {s.kind for s in statements({"pcie_rx": [port]}, found)}
    assert ("throughout_pcie" in kinds) is is_told


def test_one_gpu_is_apart_from_its_load_group_and_never_from_another() -> None:
    (apart,) = loads([0.9] * 8, [690] * 7 + [600])
    assert (apart.kind, apart.scope) == ("apart", "GPU 7 of n0")
    assert apart.value == pytest.approx(-90 / 6.9)
    assert not loads([0.9] * 8, [690] * 7 + [640])  # 7 % is less than what is spoken of
    assert {s.kind for s in loads([0.9] * 4 + [0.0] * 4, [690] * 4 + [130] * 4)} == {"load"}
    assert not loads([0.9] * 8, [690] * 4 + [600] * 4)  # half of them: nobody is the odd one
    assert not loads([0.9] * 3, [690, 690, 600])  # two others are no group


def test_gpus_of_unknown_model_are_apart_from_those_of_their_machine_alone() -> None:
    """Eight GPUs of one load; the two of another machine draw less, as another model may."""
    gpus = steady([600] * 6) + steady([530] * 2, "n1")
    assert not [s for s in statements({"power": gpus}, NOTHING) if s.kind == "apart"]
    known = [replace(r, model="A") for r in gpus]
    said = [s.scope for s in statements({"power": known}, NOTHING) if s.kind == "apart"]
    assert said == ["GPU 0 of n1", "GPU 1 of n1"]


def test_who_differs_now_this_way_now_that_is_not_apart() -> None:
    gpus = steady([0.5] * 8)
    swing = np.where(np.arange(100) // 13 % 2, 0.2, 0.9)
    gpus[5] = replace(gpus[5], values=swing)
    assert abs(swing.mean() / 0.5 - 1) > 0.08
    assert not statements({"sm_active": gpus}, NOTHING)


def waves(period: float, count: int, seed: int, lag: int = 0) -> list[Readings]:
    rng = np.random.default_rng(seed)
    phase = np.cumsum(1 / period * (1 + 0.1 * rng.normal(size=700)))
    level = np.where(phase % 1 < 0.6, 0.9, 0.1)[50 - lag : 650 - lag]
    times = np.arange(600.0)
    return [Readings(f"s{seed} {i}", times, level + 0.02 * rng.normal(size=600), f"n{seed}",
                     f"GPU {i}") for i in range(count)]  # fmt: skip


def test_devices_of_two_jobs_are_two_groups_and_a_shift_is_none() -> None:
    rows = np.array([r.values - r.values.mean() for r in (
        *waves(11.0, 2, 1), *waves(11.0, 2, 1, lag=7), *waves(16.3, 2, 2))])  # fmt: skip
    groups = coherent(rows)
    assert [[m.at for m in group] for group in groups] == [[0, 1, 2, 3], [4, 5]]
    assert [round(m.lag) for m in groups[0]] == [0, 0, 7, 7]


def test_devices_that_follow_nobody_are_transformed_once_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not once a pair: 64 of them took six CPU seconds a counter."""
    lengths: list[int] = []
    transform = np.fft.rfft

    def counted(row: np.ndarray, size: int) -> np.ndarray:
        lengths.append(size)
        return transform(row, size)

    monkeypatch.setattr(np.fft, "rfft", counted)
    rows = np.random.default_rng(3).normal(size=(20, 719))
    assert [[m.at for m in group] for group in coherent(rows)] == [[at] for at in range(20)]
    assert lengths == [900] * 20  # 719 and a quarter more are 898 = 2 x 449


@pytest.mark.parametrize(
    ("least", "size"), [(0, 1), (1, 1), (7, 8), (898, 900), (1024, 1024), (1025, 1080)]
)
def test_lengths_that_are_transformed_quickly(least: int, size: int) -> None:
    assert quick_size(least) == size


@pytest.mark.parametrize(
    ("shifts", "said"),
    [
        ((0.0, 0.0, 0.5, 0.5), ["GPUs 0-1 of n1, GPUs 2-3 of n1"]),
        ((0.0, 0.5), ["GPU 0 of n1, GPU 1 of n1"]),
        ((0.0, 0.0, 0.0, 0.0), []),
        ((0.0, 0.0, 0.25, 0.25), []),  # neither together nor in turn
        ((0.0, 0.0, 0.25, 0.5), []),  # stages of more than two kinds
    ],
)
def test_gpus_of_a_node_that_work_in_turn(shifts: tuple[float, ...], said: list[str]) -> None:
    rng = np.random.default_rng(5)
    times = np.arange(600.0)
    phase = np.cumsum(1 / 16 * (1 + 0.02 * rng.normal(size=600)))
    gpus = [
        Readings(f"n1 {i}", times,
                 np.where((phase + shift) % 1 < 0.5, 0.9, 0.1) + 0.02 * rng.normal(size=600),
                 "n1", f"GPU {i}")
        for i, shift in enumerate(shifts)
    ]  # fmt: skip
    found = period_of(gpus, "sm_active", 1.0)
    assert found.row["verdict"] == "steps"
    turns = [s for s in statements({"sm_active": gpus}, found) if s.kind == "in_turn"]
    assert [s.scope for s in turns] == said
    assert all(s.value < -0.3 for s in turns)


def test_jobs_without_a_common_period_have_none_and_say_so() -> None:
    found = period_of([*waves(11.0, 2, 1), *waves(16.3, 2, 2)], "sm_active", 1.0)
    assert found.row["verdict"] == "none"
    (said,) = (s for s in statements({}, found) if s.kind == "independent")
    assert said.value == pytest.approx(16.3 / 11.0, rel=0.03)


@pytest.mark.parametrize(("alike", "is_told"), [(2, True), (8, False)])
def test_a_few_devices_that_agree_are_not_the_job(alike: int, *, is_told: bool) -> None:
    """Two of six GPUs have one period by chance; where most have it, it is the job's."""
    alone = [g for i, period in enumerate((9.1, 13.7, 17.9, 23.3)) for g in waves(period, 1, i)]
    found = period_of([*waves(11.0, alike, 9), *alone], "sm_active", 1.0)
    assert (found.row["verdict"] == "none") is is_told
    said = [s.kind for s in statements({}, found)]
    assert (said == ["independent"]) is is_told


def test_devices_that_all_have_periods_of_their_own_are_independent() -> None:
    alone = [g for i, period in enumerate((9.1, 13.7, 17.9)) for g in waves(period, 1, i)]
    found = period_of(alone, "sm_active", 1.0)
    assert found.row["verdict"] == "none" and "no common period" in found.row["reason"]


@pytest.mark.parametrize(
    ("flows", "kind", "fits"),
    [
        ([(0.4, 0.97, 9e9)], "stretch_network", "gradients exchanged while the backward pass"),
        ([(0.0, 1.0, 1.5e9), (0.4, 0.97, 3e9)], None, None),  # half of it in the rest
        ([(0.1, 0.3, 9e9)], "bursts_network", "data parallelism or sharded states"),
        ([(0.1, 0.2, 9e9), (0.5, 0.6, 9e9)], "bursts_network", "stages of a pipeline, or layers"),
        ([(0.0, 0.95, 9e9)], "throughout_network", "parameters sharded over nodes"),
    ],
)
def test_when_traffic_flows_within_the_period(
    flows: list[tuple[float, float, float]], kind: str | None, fits: str | None
) -> None:
    times = np.arange(0.0, 100.0, 0.1)
    phase = times / 2.0 % 1
    flow = sum(np.where((phase >= a) & (phase < b), rate, 0.0) for a, b, rate in flows)
    port = Readings("p", times, np.asarray(flow), "n0", "ib0")
    row = {"verdict": "steps", "counter": "sm_active", "period_ns": 2e9, "interval_ns": 1e8}
    part = Part(row, np.arange(0.0, 100.0, 2.0), {"g": 0.0}, {"g": "n0"})
    said = statements({"tx_rate": [port]}, CounterPeriod(row, part.starts, (part,)))
    told = [s for s in said if s.kind.endswith("_network")]
    assert [s.kind for s in told] == ([kind] if kind else [])
    assert not fits or (told[0].compatible_with or "").startswith(fits)


def test_periods_that_are_whole_multiples_are_one_jobs() -> None:
    found = period_of([*waves(11.0, 3, 1), *waves(22.0, 2, 2)], "sm_active", 1.0)
    assert found.row["verdict"] == "steps"
    assert not [s for s in statements({}, found) if s.kind == "independent"]
