"""Every figure of ``tracekit plot --list`` from files to axes, through the command."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from soaks import soak
from tracekit.cli.app import main
from tracekit.dashboards import charts, look
from traces import make_trace, write_trace

ROOT = Path(__file__).resolve().parents[2]
FAULTS = "fixtures/twins/ddp-two-faults"
"""Rank 3 waits 0.4 s for input in steps 7, 11 and 15; rank 1 computes 1.6 times as long."""
STAGES = "fixtures/recorded/pp-uneven-stages"
"""The last of four stages has twice the layers."""
FILES = {
    "step_times": FAULTS,
    "rank_time": FAULTS,
    "history": "a training log",
    "late_ranks": FAULTS,
    "delay_matrix": FAULTS,
    "stage_replicas": STAGES,
    "bubbles": STAGES,
    "overlap": FAULTS,
    "traffic": FAULTS,
    "matrix_rates": "a matrix product",
    "roofline": "a matrix product",
    "memory": "a matrix product",
    "gpu_levels": "thermal-throttle",
    "port_growth": "packet-loss",
}
"""What a figure is drawn of: a fixture, a file that is written here, or a simulated job."""


def training_log() -> str:
    """Sixty iterations of a second, of which the 41st takes eight."""
    return "".join(
        f" [2026-07-21 03:{(at := i + 7 * (i > 40)) // 60:02}:{at % 60:02}] iteration {i:>8}/     "
        f"100 | consumed samples: {8 * i:>12} | elapsed time per iteration (ms): "
        f"{8000 if i == 41 else 1000}.0 | learning rate: 1.0E-04 | global batch size:     8 |\n"
        for i in range(1, 61)
    )


def matrix_product() -> dict[str, Any]:
    """Kernels of 60 ms that multiply 1,000 x 2,000 by 2,000 x 3,000: 0.2 TFLOP/s; memory that
    grows by a gigabyte a step."""
    trace = make_trace(0, world_size=1)
    events = trace["traceEvents"]
    for event in events:
        if event["name"] == "aten::mm":
            event["args"] |= {
                "Input Dims": [[1000, 2000], [2000, 3000]],
                "Input type": ["c10::BFloat16", "c10::BFloat16"],
            }
        elif event["name"] == "gemm":
            event["args"]["External id"] = event["args"]["correlation"]
            event["dur"] = 60_000
    steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
    for count, step in enumerate(steps, 1):
        events.append(
            {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]",
             "pid": 1000, "tid": 1000, "ts": step["ts"] + 50,
             "args": {"Device Type": 1, "Device Id": 0, "Addr": count, "Bytes": 10**9,
                      "Total Allocated": count * 10**9, "Total Reserved": 8 * 10**9}}
        )  # fmt: skip
    return trace


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Files by their name in FILES, each made once."""
    folder = tmp_path_factory.mktemp("drawn")

    @functools.cache
    def make(name: str) -> Path:
        if "/" in name:
            return ROOT / name
        path = folder / name
        if name == "a training log":
            path.write_text(training_log())
        elif name == "a matrix product":
            write_trace(path / "rank0.json", matrix_product())
        else:
            command("simulate", name, "-o", path)
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEKIT_CACHE_DIR", str(folder / "cache"))
        yield make


def command(*words: object) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 0


def numbers(values: object) -> list[float]:
    """What Matplotlib keeps of a line, in whatever type."""
    return [float(v) for v in np.asarray(values, dtype=float).ravel()]


def curve(figure: Figure, label: str, panel: int = -1) -> list[float]:
    """Heights of a line."""
    axes = figure.axes[panel]
    (line,) = (line for line in axes.lines if line.get_label() == label)
    return numbers(line.get_ydata())


def bars(figure: Figure, label: str, panel: int = 0) -> list[float]:
    """Heights of bars of one colour."""
    (found,) = (c for c in figure.axes[panel].containers if c.get_label() == label)
    return [float(bar.get_height()) for bar in found]


def darkest(figure: Figure) -> set[tuple[int, int]]:
    """Column and row of each cell of a heat map that has its darkest colour."""
    (patch,) = (
        p for p in figure.axes[0].patches if to_hex(p.get_facecolor()) == look.PALETTE["heat7"]
    )
    return {
        (round(float(corners[:, 0].mean())), round(float(corners[:, 1].mean())))
        for cell in patch.get_path().to_polygons(closed_only=False)
        for corners in [np.asarray(cell)[:4]]
    }


def slow_steps_stand_out(figure: Figure) -> None:
    times = curve(figure, "the job's step")
    assert [i for i, t in enumerate(times, 4) if t > 2 * sorted(times)[6]] == [7, 11, 15]
    assert figure.axes[-1].get_ylabel() == "step time [ms]"


def parts_of_a_step(figure: Figure) -> None:
    computing = bars(figure, "computing")
    assert computing.index(max(computing)) == 1
    assert computing[1] == pytest.approx(1.6 * computing[0], rel=0.1)
    assert bars(figure, "idle")[3] > 90  # ms: the input


def a_stall(figure: Figure) -> None:
    times = curve(figure, "a step")
    assert times == [1.0] * 40 + [8.0] + [1.0] * 19


def late_in_three_steps(figure: Figure) -> None:
    assert darkest(figure) == {(3, 3), (7, 3), (11, 3)}  # of steps 4 to 15


def three_wait_for_the_last(figure: Figure) -> None:
    assert darkest(figure) == {(0, 3), (1, 3), (2, 3)}


def last_stage_twice_as_long(figure: Figure) -> None:
    shares = [float(t.get_text()) for t in figure.axes[0].texts]
    assert shares == pytest.approx([1, 1, 1, 2], abs=0.1)


def last_stage_least_idle(figure: Figure) -> None:
    idle = bars(figure, "idle")
    assert len(idle) == 4
    assert idle[3] < 0.5 * min(idle[:3])


def hardly_hidden(figure: Figure) -> None:
    hidden, bare = bars(figure, "hidden behind computing"), bars(figure, "not hidden")
    assert len(hidden) == len(bare) == 4
    assert sum(hidden) < 0.25 * sum(bare)


def bytes_of_gradients(figure: Figure) -> None:
    axes = figure.axes[0]
    (line,) = (line for line in axes.lines if line.get_label() == "observed")
    assert axes.get_xlabel() == "a rank sends in a step [kB]"
    (kilobytes,) = numbers(line.get_xdata())
    assert 100 < kilobytes < 1000


FLOP = 2 * 1000 * 2000 * 3000
ELEMENTS = 1000 * 2000 + 2000 * 3000 + 1000 * 3000


def rate_of_products(figure: Figure) -> None:
    (line,) = (line for line in figure.axes[0].lines if line.get_label() == "rank 0")
    assert numbers(line.get_xdata()) == pytest.approx([FLOP / 0.06 / 1e12])


def below_the_roof(figure: Figure) -> None:
    (line,) = (line for line in figure.axes[0].lines if line.get_label() == "aten::mm BFloat16")
    assert numbers(line.get_xydata()) == pytest.approx([FLOP / (2 * ELEMENTS), FLOP / 0.06 / 1e12])


def memory_grows(figure: Figure) -> None:
    assert sorted(set(curve(figure, "allocated"))) == pytest.approx([1, 2, 3, 4, 5, 6])
    assert set(curve(figure, "reserved by the allocator")) == {8.0}
    assert figure.axes[0].get_ylabel() == "memory [GB]"


def one_gpu_slows(figure: Figure) -> None:
    rank = next(
        str(line.get_label()) for line in figure.axes[0].lines
        if str(line.get_label()).startswith("rank ")
    )  # fmt: skip
    clocks = curve(figure, rank, 0)
    assert max(clocks) > 1900 and min(clocks) < 1500
    assert min(curve(figure, "median GPU", 0)) > 1800
    assert figure.axes[0].get_ylabel() == "SM clock [MHz]"


def drops_in_slow_steps(figure: Figure) -> None:
    steps = numbers(figure.axes[0].lines[0].get_ydata())
    (axes,) = (a for a in figure.axes if a.get_title().endswith("tx_dropped_packets"))
    assert axes.get_ylabel() == "packets"
    (container,) = axes.containers
    heights = [float(bar.get_height()) for bar in container]
    assert len(heights) == len(steps)
    assert heights.index(max(heights)) == steps.index(max(steps))


SHOWS: dict[str, Callable[[Figure], None]] = {
    "step_times": slow_steps_stand_out,
    "rank_time": parts_of_a_step,
    "history": a_stall,
    "late_ranks": late_in_three_steps,
    "delay_matrix": three_wait_for_the_last,
    "stage_replicas": last_stage_twice_as_long,
    "bubbles": last_stage_least_idle,
    "overlap": hardly_hidden,
    "traffic": bytes_of_gradients,
    "matrix_rates": rate_of_products,
    "roofline": below_the_roof,
    "memory": memory_grows,
    "gpu_levels": one_gpu_slows,
    "port_growth": drops_in_slow_steps,
}


def test_every_figure_is_drawn_of_some_files() -> None:
    assert list(FILES) == list(SHOWS) == [c.name for c in charts()]


@pytest.mark.parametrize("name", soak(SHOWS, fast=["history", "matrix_rates", "memory"]))
def test_a_figure_shows_what_its_files_say(
    name: str, files: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    picture = look.picture

    def kept(figure: Figure, suffix: str) -> bytes:
        figures.append(figure)
        return picture(figure, suffix)

    monkeypatch.setattr(look, "picture", kept)
    path = tmp_path / "f.svg"
    command("plot", files(FILES[name]), name, "-o", path)
    assert path.read_bytes().startswith(b"<?xml")
    (figure,) = figures
    SHOWS[name](figure)
