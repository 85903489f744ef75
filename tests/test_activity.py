"""Steps from GPU counters alone: found where they show, refused where a faster one would too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tracekit
from soaks import soak
from tracekit.derive.counter_period import MAX_P_VALUE, period_of
from tracekit.derive.rhythm import rhythm, stretches
from tracekit.derive.signals import Readings
from tracekit.store import Selection

Floats = NDArray[np.float64]
START_S = 1_784_601_666
MOMENTS = tuple(np.random.default_rng(1).random(8).tolist())
"""Of an interval, in which each of eight collectors reads."""


def borders(step_s: float, length_s: float, spread: float, seed: int) -> Floats:
    durs = step_s * (1 + spread * np.random.default_rng(seed).normal(size=int(length_s / step_s)))
    return np.concatenate([[0.0], np.cumsum(durs)])


def activity(step_s: float, length_s: float = 900.0, spread: float = 0.02, seed: int = 0) -> Floats:
    """Every 10 ms: 0.9 while a step computes, 0.35 in its last third."""
    edges = borders(step_s, 1.1 * length_s, spread, seed)
    fine = np.arange(0, length_s, 0.01)
    at = np.searchsorted(edges, fine, "right") - 1
    phase = (fine - edges[at]) / np.diff(edges)[np.minimum(at, len(edges) - 2)]
    return np.where(phase < 0.7, 0.9, 0.35)


def sampled(
    fine: Floats, interval: float = 1.0, *, is_mean: bool = True, moments: Any = (0.0,) * 8,
    scale: float = 1.0,
) -> list[Readings]:  # fmt: skip
    """What collectors read of it: the mean since their last reading, or the moment."""
    rng = np.random.default_rng(7)
    total = np.concatenate([[0.0], np.cumsum(fine) * 0.01])
    ends = np.arange(len(total)) * 0.01
    found = []
    for gpu, moment in enumerate(moments):
        times = np.arange(5 + moment * interval, ends[-1] - 5, interval)
        times = times + np.minimum(rng.exponential(0.004, len(times)), 0.05)
        if is_mean:
            values = (
                np.interp(times, ends, total) - np.interp(times - interval, ends, total)
            ) / interval
        else:
            values = fine[(times / 0.01).astype(int)]
        noise = rng.normal(0, 0.03, len(times))
        found.append(Readings(f"g{gpu}", times, scale * (values + noise)))
    return found


@pytest.mark.parametrize(
    ("step_s", "length_s"),
    soak([(4.5, 900), (5.3, 900), (8, 900), (30, 3600)], fast=[(4.5, 900), (30, 3600)]),
)
def test_the_mean_activity_shows_the_steps(step_s: float, length_s: float) -> None:
    found = period_of(sampled(activity(step_s, length_s)), "sm_active", 1.0)
    row, starts = found.row, found.starts
    assert row["verdict"] == "steps"
    assert row["period_ns"] == pytest.approx(step_s * 1e9, rel=0.01)
    assert row["gpus_count"] == 8 and row["interval_ns"] == pytest.approx(1e9, rel=0.01)
    durs = np.diff(starts)
    assert np.nanmedian(durs) == pytest.approx(step_s, rel=0.02)
    assert len(durs) > 0.9 * length_s / step_s
    # Where they begin is where the steps do, give or take a sampling interval.
    edges = borders(step_s, 1.1 * length_s, 0.02, 0)
    away = [min(abs(edges - s)) for s in starts[~np.isnan(starts)]]
    assert np.median(away) < 0.25 * step_s


@pytest.mark.parametrize("step_s", soak([0.31, 0.3, 0.76, 1.37], fast=1))
@pytest.mark.parametrize("is_mean", [True, False])
def test_steps_too_short_for_the_sampling_are_not_mistaken_for_slow_ones(
    step_s: float, is_mean: bool
) -> None:
    """Their echo repeats as clearly as a step would: only its size or its phase betrays it."""
    counter, scale = ("sm_active", 1.0) if is_mean else ("power", 600.0)
    moments = (0.0,) * 8 if is_mean else MOMENTS
    readings = sampled(activity(step_s, spread=0.0), is_mean=is_mean, moments=moments, scale=scale)
    found = period_of(readings, counter, 700.0 if counter == "power" else 1.0)
    row, starts = found.row, found.starts
    assert row["verdict"] == "none" and not len(starts)
    assert "so do steps of" in row["reason"] or "no clear period" in row["reason"]


def test_power_at_a_moment_needs_collectors_that_read_at_different_moments() -> None:
    together = sampled(activity(8), is_mean=False, scale=600.0)
    row = period_of(together, "power", 700.0).row
    assert row["verdict"] == "none"
    assert "sampled every 1 s so do steps of 1.14 s and shorter ones" in row["reason"]
    apart = sampled(activity(8), is_mean=False, moments=MOMENTS, scale=600.0)
    found = period_of(apart, "power", 700.0)
    row, starts = found.row, found.starts
    assert row["verdict"] == "steps"
    assert np.nanmedian(np.diff(starts)) == pytest.approx(8, rel=0.02)


def test_ten_repetitions_are_enough_and_nine_are_not() -> None:
    row = period_of(sampled(activity(8, 115)), "sm_active", 1.0).row
    assert row["verdict"] == "steps"
    row = period_of(sampled(activity(8, 80)), "sm_active", 1.0).row
    assert row["verdict"] == "none"
    row = period_of(sampled(activity(8, 45)), "sm_active", 1.0).row
    assert row["reason"].startswith("35 readings of SM activity; a period needs 40")


def test_an_exporter_that_repeats_itself_is_as_slow_as_its_changes() -> None:
    """Asked every second, it reads every ten: steps of 8 s do not show."""
    slow = sampled(activity(8, 3600), interval=10.0)
    often = []
    for one in slow:
        times = np.arange(one.times[0], one.times[-1], 1.0)
        held = one.values[np.searchsorted(one.times, times, "right") - 1]
        often.append(Readings(one.gpu, times, held))
    row = period_of(often, "sm_active", 1.0).row
    assert row["interval_ns"] == pytest.approx(10e9, rel=0.01)
    assert row["verdict"] == "none"


def test_a_pause_between_steps_is_no_step() -> None:
    before, after = activity(8, 400, seed=1), activity(8, 400, seed=2)
    fine = np.concatenate([before, np.full(4_000, 0.05), after])
    found = period_of(sampled(fine), "sm_active", 1.0)
    row, starts = found.row, found.starts
    assert row["verdict"] == "steps"
    durs = np.diff(starts)
    assert np.nanmax(durs) < 20.0


def test_what_does_not_vary_has_no_period() -> None:
    flat = [Readings("g", np.arange(100.0), 0.9 + 1e-6 * np.arange(100.0))]
    row = period_of(flat, "sm_active", 1.0).row
    assert (row["verdict"], row["reason"]) == ("none", "SM activity does not vary")
    slow = [Readings("p", np.arange(100.0), 1e6 * (np.arange(100.0) % 10))]
    row = period_of(slow, "tx_rate", float("inf")).row
    assert row["reason"] == "network traffic sent varies by less than 20 MB/s"


@pytest.mark.parametrize("phi", soak([0.0, 0.5, 0.9, 0.98], fast=[0.9]))
def test_noise_that_wanders_has_no_period(phi: float) -> None:
    """Null study: 200 series of 200 samples; at a nominal 1 % at most 8 (chance: 1 in 2,000)."""
    rng = np.random.default_rng(20_261_121)
    walks = rng.normal(size=(200, 200))
    for i in range(1, walks.shape[1]):
        walks[:, i] += phi * walks[:, i - 1]
    found = [rhythm(w) for w in walks]
    asked = [f.p_value for f in found if f is not None and f.p_value is not None]
    assert sum(p_value <= MAX_P_VALUE for p_value in asked) <= 8


def test_what_is_too_weak_to_be_a_period_is_not_asked_how_often_noise_is_as_strong() -> None:
    series = activity(8, 900)[::100]
    strong = rhythm(series)
    assert strong is not None and strong.p_value is not None
    assert rhythm(series, strong.strength) == strong
    weak = rhythm(series, strong.strength + 0.01)
    assert weak is not None and weak == strong._replace(p_value=None)
    rng = np.random.default_rng(20_261_124)
    noise = [Readings(f"g{n}", np.arange(400.0), rng.normal(0.5, 0.1, 400)) for n in range(4)]
    row = period_of(noise, "sm_active", 1.0).row
    assert row["verdict"] == "none" and "no clear period" in row["reason"]
    assert row["strength_ratio"] < 0.4 and row["p_value"] is None


# --- what stands before and after the work --------------------------------------------------------


def bursts(length_s: float, seed: int) -> Floats:
    """Work that comes as it likes, as compiling does before a job and serving all along."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(rng.exponential(3.5, int(length_s)))
    turns = np.searchsorted(ends, np.arange(0, length_s, 0.01))
    return np.where(turns % 2, 1.0, 0.0)


def flat(length_s: float, level: float = 0.0) -> Floats:
    return np.full(round(length_s * 100), level)


LEADS = {"idle": flat(65), "bursts": bursts(65, 3), "busy": flat(65, 1.0)}
PLACES = soak(
    [(s, lead) for s in (0.45, 1.2, 2.3, 3.7) for lead in LEADS],
    fast=[(1.2, "idle"), (1.2, "bursts")],
)


@pytest.mark.parametrize(("step_s", "lead"), PLACES)
def test_a_warm_up_longer_than_the_work_does_not_hide_its_period(step_s: float, lead: str) -> None:
    """65 s of warm-up, 60 s of work, 20 s of nothing, ten readings a second, with a gap."""
    readings = sampled(np.concatenate([LEADS[lead], activity(step_s, 60), flat(20)]), 0.1)
    kept = [~((r.times > 90) & (r.times < 94)) for r in readings]
    lost = [Readings(r.gpu, r.times[k], r.values[k]) for r, k in zip(readings, kept, strict=True)]
    found = period_of(lost, "sm_active", 1.0)
    row, starts = found.row, found.starts
    assert row["verdict"] == "steps"
    assert row["period_ns"] == pytest.approx(step_s * 1e9, rel=0.02)
    assert "around which it is otherwise" in row["reason"]
    # No step of the warm-up, none of the tail; unknown where nobody read.
    assert np.nanmin(starts) > 60 and np.nanmax(starts) < 127


def test_gpus_that_idle_beside_the_work_do_not_hide_its_period() -> None:
    busy = sampled(np.concatenate([flat(65), activity(1.2, 60)]), 0.1)[:4]
    rng = np.random.default_rng(5)
    for gpu in range(4):
        times = busy[gpu].times
        busy.append(Readings(f"idle{gpu}", times, rng.normal(0.0, 0.01, len(times))))
    row = period_of(busy, "sm_active", 1.0).row
    assert row["verdict"] == "steps" and row["gpus_count"] == 4
    assert row["period_ns"] == pytest.approx(1.2e9, rel=0.02)


@pytest.mark.parametrize("seed", soak(range(12), fast=[0, 1]))
def test_serving_after_a_warm_up_has_no_period(seed: int) -> None:
    fine = np.concatenate([flat(65), 0.9 * bursts(120, seed)])
    assert period_of(sampled(fine, 0.1), "sm_active", 1.0).row["verdict"] == "none"


def test_noise_after_an_idle_stretch_has_no_period() -> None:
    """Null study of what is cut: of 40 at a nominal 2 % at most 4 (chance: 1 in 100)."""
    rng = np.random.default_rng(20_261_123)
    false = 0
    for _ in range(40):
        walk = rng.normal(size=200)
        for i in range(1, 200):
            walk[i] += 0.9 * walk[i - 1]
        values = np.concatenate([np.zeros(150), 0.5 + 0.1 * walk, np.zeros(30)])
        one = Readings("g", np.arange(380.0), values)
        row = period_of([one], "sm_active", 0.0).row  # no ceiling: nothing is an echo
        false += row["verdict"] == "steps"
    assert false <= 4


def test_where_nothing_changes_no_stretch_is_asked_by_itself() -> None:
    fine = activity(8, 900)[::100]
    assert stretches(fine) == []
    assert stretches(np.ones(500)) == [] and stretches(np.arange(20.0)) == []
    changed = np.concatenate([np.zeros(640), fine[:640], np.ones(640)])
    assert [(a // 10, b // 10) for a, b in stretches(changed)] == [(66, 126)]


# --- files to report ------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))


def scrapes(
    step_s: float, length_s: float = 400.0, busiest: int | None = None, model: str = "NVIDIA H100"
) -> str:
    """What eight exporters say, one GPU a host; the busiest does not wait, at a lower clock."""
    lines = []
    readings = sampled(activity(step_s, length_s, spread=0.01))
    for gpu, one in enumerate(readings):
        own = (
            f'{{gpu="0",UUID="GPU-{gpu}",pci_bus_id="00000000:1A:00.0",Hostname="t{gpu}",'
            f'modelName="{model}"}}'
        )
        is_slow = gpu == busiest
        for time, value in zip(one.times.tolist(), one.values.tolist(), strict=True):
            at = round((START_S + time) * 1000)
            active = 0.9 if is_slow else value
            lines += [
                (at, f"DCGM_FI_PROF_SM_ACTIVE{own} {max(active, 0):.4f} {at}"),
                (at, f"DCGM_FI_DEV_SM_CLOCK{own} {1500 if is_slow else 1980} {at}"),
                (at, f"DCGM_FI_DEV_GPU_UTIL{own} 99 {at}"),
            ]
    return "\n".join(text for _, text in sorted(lines)) + "\n"


def nccl_log() -> str:
    return "".join(
        f"t{r}:{900 + r}:{950 + r} [0] NCCL INFO ncclCommInitRankConfig comm 0x55b6aa640{r} "
        f"rank {r} nranks 8 cudaDev 0 nvmlDev 0 busId 1a000 commId 0x54fe282d32a87d85 - Init "
        "COMPLETE\n"
        for r in range(8)
    )


def opened(tmp_path: Path, **files: str) -> Any:
    paths = []
    for name, text in files.items():
        paths.append(tmp_path / name.replace("_", "."))
        paths[-1].write_text(text)
    return tracekit.open(paths)


def test_nccl_logs_and_dcgm_are_enough_to_start(tmp_path: Path) -> None:
    with opened(tmp_path, nccl_log=nccl_log(), dcgm_prom=scrapes(8.0)) as run:
        report = run.diagnose()
        rows = run.query("activity_steps")
        ranks = run.sql("SELECT DISTINCT rank, rank_source FROM gpu ORDER BY rank").rows()
    assert ranks == [(r, "log") for r in range(8)]
    assert set(rows["step_source"]) == {"counters"}
    assert float(rows["dur_ns"].median() or 0) == pytest.approx(8e9, rel=0.03)
    assert not report.findings
    assert "which show steps of about 8.0" in report.verdict.sentence
    assert any("inferred from the period of SM activity" in n for n in report.notes.data_lines)


def test_counters_that_cannot_show_steps_say_so(tmp_path: Path) -> None:
    with opened(tmp_path, dcgm_prom=scrapes(0.3)) as run:
        report = run.diagnose()
        rows = run.query("activity_steps")
    assert rows["verdict"].to_list() == ["none"]
    assert "there are only counters, which show no steps" in report.verdict.sentence
    (line,) = (n for n in report.notes.data_lines if n.startswith("no steps: SM activity"))
    assert "sampled every 1 s" in line


def test_a_job_that_does_nothing_is_called_so(tmp_path: Path) -> None:
    lines = ["timestamp,index,sm_active,power_w"]
    lines += [f"{START_S + i / 10:.1f},{g},0.00{i % 2},{75 + i % 3}" for i in range(300)
              for g in (0, 1)]  # fmt: skip
    (tmp_path / "gpu.csv").write_text("\n".join(lines) + "\n")
    with tracekit.open([tmp_path]) as run:
        verdict = run.diagnose().verdict
    assert verdict.kind == "not_enough_data"
    assert verdict.sentence.startswith("No work is seen: ") and "2 GPUs idle" in verdict.sentence


def test_gpus_that_idle_beside_busy_ones_are_said_with_their_numbers(tmp_path: Path) -> None:
    """At ten readings a second, behind a warm-up: the loads of all readings, and the period."""
    fine = np.concatenate([flat(30), activity(1.2, 60)])
    lines = ["timestamp,index,sm_active,power_w"]
    busy = sampled(fine, 0.1)[0]
    for time, value in zip(busy.times.tolist(), busy.values.tolist(), strict=True):
        lines.append(
            f"{START_S + time:.3f},0,{max(value, 0.0):.3f},{100 + 600 * max(value, 0):.0f}"
        )
        lines.append(f"{START_S + time:.3f},1,0.000,130")
    (tmp_path / "gpu.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "job.toml").write_text(
        '[[source]]\npath = "gpu.csv"\ncolumns = { time = "timestamp", gpu = "index", '
        'sm_active = "sm_active", power = "power_w [W]" }\n'
    )
    with tracekit.open([tmp_path]) as run:
        sentence = run.diagnose().verdict.sentence
        working, idle = run.query("counter_profile").to_dicts()
    assert (working["load"], idle["load"]) == ("busy", "idle")
    assert idle["busy_ratio"] == 0 and idle["mean_power_w"] == pytest.approx(130)
    assert 0.6 < working["busy_ratio"] < 0.7  # 60 s of 90 s less 5 s at both ends
    assert working["period_ns"] == pytest.approx(1.2e9, rel=0.02)
    assert "1 GPU busy (busy in 6" in sentence
    assert "1 GPU idle (busy in 0 % of readings, 130 W) by SM activity" in sentence


def test_a_gpu_that_does_not_wait_is_none_among_machines_of_unknown_model(tmp_path: Path) -> None:
    """Another model may well be slower at this clock: nobody says that these are of one."""
    with opened(tmp_path, nccl_log=nccl_log(), dcgm_prom=scrapes(8.0, busiest=3, model="")) as run:
        assert not run.diagnose().findings
        assert set(run.query("gpu_counters")["peer_group"]) == {
            f"unknown model of t{i}" for i in range(8)
        }


def test_the_gpu_that_does_not_wait_is_a_suspect_beside_its_clock(tmp_path: Path) -> None:
    with opened(tmp_path, nccl_log=nccl_log(), dcgm_prom=scrapes(8.0, busiest=3)) as run:
        report = run.diagnose()
    (finding,) = report.findings
    assert (finding.id, finding.confidence.level) == ("slow-gpu/3", "possible")
    assert finding.scope.identity_source == "log"
    assert "does not wait for its peers" in finding.summary
    assert "1500 MHz against 1980" in finding.summary
    assert finding.impact.s_per_step is None


def test_one_reading_and_a_reading_that_never_changes_have_reasons_of_their_own() -> None:
    def reason(times: list[float]) -> str:
        one = Readings("g", np.array(times), np.full(len(times), 300.0))
        return str(period_of([one], "power", 700.0).row["reason"])

    assert "was read once" in reason([1.0])
    assert "was read 3 times and never changed" in reason([1.0, 2.0, 3.0])
    assert "not at times" in str(period_of([], "power", 700.0).row["reason"])


def table_of(tmp_path: Path, name: str, fine: Floats, columns: str, scale: float) -> None:
    """A collector's CSV: the mean of each tenth of a second, of one device."""
    lines = [f"timestamp,{columns}"]
    one = sampled(fine, 0.1)[0]
    for time, value in zip(one.times.tolist(), one.values.tolist(), strict=True):
        lines.append(
            f"{START_S + time:.3f}" + f",{scale * max(value, 0.0):.0f}" * len(columns.split(","))
        )
    (tmp_path / name).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("columns", "counter"),
    [
        ("ib0_tx_bytes_s,ib1_tx_bytes_s", "tx_rate"),
        ("gpu0_nvlink_tx_bytes_s,gpu1_nvlink_tx_bytes_s", "nvlink_tx"),
    ],
)
def test_traffic_shows_the_period_where_no_activity_is_sampled(
    tmp_path: Path, columns: str, counter: str
) -> None:
    """No device's speed is known, so only the mean bounds what a faster rhythm could look like."""
    table_of(tmp_path, "node0_net.csv", activity(1.3, 90) - 0.35, columns, 20e9)
    with tracekit.open([tmp_path]) as run:
        (row,) = run.query("activity_steps").head(1).to_dicts()
    assert (row["verdict"], row["counter"]) == ("steps", counter)
    assert row["period_ns"] == pytest.approx(1.3e9, rel=0.02)


@pytest.mark.parametrize("step_s", [1.07, 1.23, 1.9])
def test_traffic_of_steps_too_short_for_the_sampling_is_no_period(step_s: float) -> None:
    """No link's speed is known: what a faster rhythm may look like is bounded by the mean."""
    readings = sampled(activity(step_s, spread=0.0) - 0.35, scale=20e9)
    assert period_of(readings, "tx_rate", float("inf")).row["verdict"] == "none"


def test_the_period_is_of_what_is_selected(tmp_path: Path) -> None:
    """Two stages of a job: the selection decides which of them is told, in queries and report."""
    fine = np.concatenate([activity(1.2, 90), flat(10), activity(2.6, 60)])
    table_of(tmp_path, "node0.csv", fine, "gpu0_sm_active_pct,gpu1_sm_active_pct", 100)
    for bounds, period_s in (({"until": START_S + 95}, 1.2), ({"since": START_S + 105}, 2.6)):
        edges = {f"{k}_ns": v * 10**9 for k, v in bounds.items()}
        chosen = Selection(since_ns=edges.get("since_ns"), until_ns=edges.get("until_ns"))
        with tracekit.open([tmp_path], selection=chosen) as run:
            rows = run.query("activity_steps")
            profile = run.query("counter_profile")
        assert set(rows["period_ns"] > 0) == {True}
        assert rows["period_ns"][0] == pytest.approx(period_s * 1e9, rel=0.02)
        assert profile["period_ns"][0] == pytest.approx(period_s * 1e9, rel=0.02)
