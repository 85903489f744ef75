"""One recorded job, eager and through torch.compile: what was fused into what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tracekit import api
from tracekit.comparison.build import compare
from tracekit.comparison.model import Comparison
from tracekit.comparison.sides import RunRows

COMPILED = Path(__file__).resolve().parents[2] / "fixtures" / "compiled"
POINTWISE = {"aten::tanh", "aten::sigmoid", "aten::mul", "aten::add"}
"""What a block has beside its layer."""


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunRows]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        rows = {}
        for name in ("eager", "compiled"):
            with api.open(COMPILED / name) as run:
                rows[name] = run.compared()
        yield rows


def between(sides: dict[str, RunRows], baseline: str, candidate: str) -> Comparison:
    return compare([sides[baseline]], [sides[candidate]])


def test_what_the_compiler_fused_is_one_edit(sides: dict[str, RunRows]) -> None:
    (edit,) = between(sides, "eager", "compiled").calls
    assert edit.edit == "fused"
    assert set(edit.baseline) >= POINTWISE
    assert any(name.startswith("Torch-Compiled Region") for name in edit.candidate)
    assert not any("Optimizer" in name for name in (*edit.baseline, *edit.candidate))


@pytest.mark.parametrize(
    ("names", "change"), [(("eager", "compiled"), "faster"), (("compiled", "eager"), "slower")]
)
def test_the_difference_is_computing_and_its_parts_add_up(
    sides: dict[str, RunRows], names: tuple[str, str], change: str
) -> None:
    found = between(sides, *names)
    assert found.verdict.change == change
    assert found.step is not None
    parts = [part.difference.difference_s for part in found.attribution]
    assert sum(parts) == pytest.approx(found.step.difference_s)
    assert found.attribution[0].cause == "compute"
    assert abs(parts[0]) > 0.9 * abs(found.step.difference_s)


def test_kernels_of_the_compiler_are_new_and_those_they_replace_are_gone(
    sides: dict[str, RunRows],
) -> None:
    rows = between(sides, "eager", "compiled").operators
    new = {row.name for row in rows if not row.baseline_s}
    gone = {row.name for row in rows if not row.candidate_s}
    assert any("cpp_fused_add_mul_sigmoid_tanh" in name for name in new)
    assert {"aten::tanh", "aten::sigmoid"} <= gone
