"""The heat map as a figure: what it shows, that it is the same twice, and when there is none."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import samples
from msgspec.structs import replace
from samples import pipe

from tracekit.cli import main
from tracekit.dashboards import look
from tracekit.dashboards.replay_figure import MAX_COLUMNS, heat_map
from tracekit.errors import InputError
from tracekit.whatif import WhatIf

RECORDED = Path(__file__).resolve().parents[2] / "fixtures/recorded"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def found() -> WhatIf:
    with samples.opened(RECORDED / "pp-uneven-stages") as run:
        return run.whatif()


def job(found: WhatIf, stages: int, replicas: int, hot: tuple[int, int]) -> WhatIf:
    """The result of a larger job, in which one rank is slow."""
    metrics = replace(
        pipe(found),
        stages=tuple(range(stages)),
        dp_ranks=tuple(range(replicas)),
        ranks=tuple(tuple(s * replicas + d for d in range(replicas)) for s in range(stages)),
        slowdown_by_stage={s: 1.5 if s == hot[0] else 1.0 for s in range(stages)},
        slowdown_by_dp={d: 1.4 if d == hot[1] else 1.0 for d in range(replicas)},
    )
    return replace(found, pipeline=metrics)


def texts(path: Path) -> list[str]:
    """Every text of an SVG file, which must be well-formed."""
    root = ET.fromstring(path.read_text())  # noqa: S314 - we wrote it
    return ["".join(e.itertext()).strip() for e in root.iter(f"{SVG}text")]


def written(found: WhatIf, path: Path) -> None:
    path.write_bytes(look.picture(heat_map(found), path.suffix))


def image(found: WhatIf) -> Any:
    (axes, _) = heat_map(found).axes
    (shown,) = axes.get_images()
    return shown


def test_stages_go_down_and_replicas_across(found: WhatIf, tmp_path: Path) -> None:
    large = job(found, 3, 4, (1, 2))
    shown = image(large)
    assert shown.get_array().shape == (3, 4)
    assert shown.get_array()[1].tolist() == pytest.approx([1.0, 1.0, 1.4, 1.0])
    assert shown.get_clim() == pytest.approx((1.0, 1.4))
    written(large, tmp_path / "map.svg")
    said = texts(tmp_path / "map.svg")
    assert {"stage", "replica", "times the ideal step", "1.400", "rank 6"} <= set(said)
    assert pipe(found).judgement.sentence in said


def test_a_rank_that_nobody_saw_is_no_cell(found: WhatIf) -> None:
    large = job(found, 2, 2, (1, 1))
    partly = replace(large, pipeline=replace(pipe(large), ranks=((0, 1), (-1, 3))))
    assert image(partly).get_array().mask.tolist() == [[False, False], [True, False]]


def test_noise_is_no_fire(found: WhatIf) -> None:
    hot = job(found, 2, 2, (0, 0))
    calm = replace(pipe(hot), slowdown_by_dp={0: 1.01, 1: 1.0})
    assert image(replace(hot, pipeline=calm)).get_clim() == pytest.approx((1.0, 1.1))


def test_one_hot_replica_of_thousands_is_seen(found: WhatIf) -> None:
    shown = image(job(found, 2, 3 * MAX_COLUMNS + 1, (1, 1000))).get_array()
    assert shown.shape[1] <= MAX_COLUMNS
    assert [(int(i), int(j)) for i, j in zip(*(shown > 1).nonzero(), strict=True)] == [(1, 250)]


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_the_same_replay_gives_the_same_bytes(found: WhatIf, tmp_path: Path, suffix: str) -> None:
    for name in ("one", "two"):
        written(found, tmp_path / f"{name}.{suffix}")
    first, second = ((tmp_path / f"{n}.{suffix}").read_bytes() for n in ("one", "two"))
    assert first == second
    assert first[:5] in (b"<?xml", b"\x89PNG\r", b"%PDF-")


def test_text_is_text_and_no_markup(found: WhatIf, tmp_path: Path) -> None:
    """A sentence with what XML and TeX would read."""
    sentence = "<script>&$\\frac{1}{2}$ rank"
    odd = replace(pipe(found), judgement=replace(pipe(found).judgement, sentence=sentence))
    written(replace(found, pipeline=odd), tmp_path / "map.svg")
    assert sentence in texts(tmp_path / "map.svg")
    assert "<script>" not in (tmp_path / "map.svg").read_text()


def test_no_figure_of_a_refused_or_another_replay(found: WhatIf) -> None:
    refused = replace(found, refused="the replay misses the step")
    with pytest.raises(InputError, match="no heat map: the replay misses"):
        heat_map(refused)
    calls = replace(found, method="streams", pipeline=None)
    with pytest.raises(InputError, match="replay by streams"):
        heat_map(calls)


def test_the_command_writes_it(tmp_path: Path) -> None:
    target = tmp_path / "map.svg"
    command = ["whatif", str(RECORDED / "pp-uneven-stages"), "--heat-map", str(target)]
    for more, code in (([], 0), ([], 2), (["--force"], 0)):
        with pytest.raises(SystemExit) as ended:
            main([*command, *more])
        assert ended.value.code == code
    assert "rank 0" in texts(target)
    with pytest.raises(SystemExit) as ended:
        main([*command[:-1], str(tmp_path / "map.exe")])
    assert ended.value.code == 2
    assert list(tmp_path.iterdir()) == [target]
