"""Heat maps: cells of seven steps of one colour, a path for each step.

No picture is embedded, so a page can colour the steps for light and dark; the cells of one step
that touch in a row are one rectangle, which keeps maps of many ranks small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tracekit.dashboards import look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

GAP = 0.08
"""Of a cell, left free around it where there are few."""
MAX_GAPPED_CELLS = 1_500
MAX_NUMBERED = 40, 16
"""Rows and columns of a map whose cells hold their numbers; more would not be readable."""


def folded(values: Floats, rows: int, columns: int) -> tuple[Floats, int, int]:
    """At most so many rows and columns, of which each holds the largest of those it stands for; and
    how many rows and columns one stands for. A single hot cell must not fade away."""
    down = max(1, -(-values.shape[0] // rows))
    across = max(1, -(-values.shape[1] // columns))
    for axis, together in ((0, down), (1, across)):
        if together > 1:
            missing = [(0, 0), (0, 0)]
            missing[axis] = (0, -values.shape[axis] % together)
            padded = np.pad(values, missing, constant_values=-np.inf)
            padded = np.where(np.isnan(padded), -np.inf, padded)
            shape = list(padded.shape)
            shape[axis : axis + 1] = [shape[axis] // together, together]
            values = padded.reshape(shape).max(axis=axis + 1)
            values = np.where(np.isneginf(values), np.nan, values)
    return values, down, across


def draw(
    axes: Axes,
    values: Floats,
    *,
    unit: str,
    least: float = 0.0,
    most: float | None = None,
    numbers: str | None = None,
) -> None:
    """Cells of ``values`` (rows downwards, NaN left blank) on the axes, and a scale beside them.

    The lowest value is drawn in the palest colour, and what is at or below ``least`` not at all.
    ``numbers`` is the format in which small maps hold their values.
    """
    top = most if most is not None else float(np.nanmax(values))
    top = top if top > least else least + 1.0
    level = np.full(values.shape, -1)
    known = ~np.isnan(values)
    scaled = (values[known] - least) / (top - least) * len(look.HEAT)
    level[known] = np.clip(np.ceil(scaled) - 1, -1, len(look.HEAT) - 1).astype(int)
    gap = GAP / 2 if values.size <= MAX_GAPPED_CELLS else 0.0
    for index, name in enumerate(look.HEAT):
        _cells(axes, level == index, look.PALETTE[name], gap)
    rows, columns = values.shape
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.tick_params(length=0)
    for spine in axes.spines.values():  # blank cells need an edge to be seen as a map
        spine.set_visible(True)
    if numbers is not None and rows <= MAX_NUMBERED[0] and columns <= MAX_NUMBERED[1]:
        for i, j in np.argwhere(known).tolist():
            # The middle colours carry dark and light text alike badly; the ends carry one well.
            is_strong = level[i, j] >= look.FIRST_STRONG
            axes.text(
                j, i, numbers.format(values[i, j]), ha="center", va="center", fontsize=8,
                color=look.ON_HEAT if is_strong else look.PALETTE["ink"],
            )  # fmt: skip
    _scale(axes, least, top, unit)


def _cells(axes: Axes, mask: NDArray[np.bool_], colour: str, gap: float) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    points: list[tuple[float, float]] = []
    codes: list[Any] = []
    for row, first, last in _stretches(mask, joined=gap == 0):
        left, right = first - 0.5 + gap, last + 0.5 - gap
        upper, lower = row - 0.5 + gap, row + 0.5 - gap
        points += [(left, upper), (right, upper), (right, lower), (left, lower), (left, upper)]
        codes += [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    if points:
        # A hair of the same colour closes the seams that smoothing leaves between cells.
        width = 0.0 if gap else 0.4
        patch = PathPatch(Path(points, codes), facecolor=colour, edgecolor=colour, linewidth=width)
        patch.set_clip_on(False)
        axes.add_patch(patch)


def _stretches(mask: NDArray[np.bool_], *, joined: bool) -> Sequence[tuple[int, int, int]]:
    """(row, first column, last column) of cells that are set; neighbours in a row as one."""
    if not joined:
        return [(i, j, j) for i, j in np.argwhere(mask).tolist()]
    stretches: list[tuple[int, int, int]] = []
    for i, j in np.argwhere(mask).tolist():
        if stretches and stretches[-1][0] == i and stretches[-1][2] == j - 1:
            stretches[-1] = (i, stretches[-1][1], j)
        else:
            stretches.append((i, j, j))
    return stretches


def _scale(axes: Axes, least: float, top: float, unit: str) -> None:
    """The colours with the values at their edges, to the right."""
    steps = len(look.HEAT)
    scale = axes.inset_axes((1.02, 0.0, 0.022, 1.0))
    for index, name in enumerate(look.HEAT):
        scale.barh(index + 0.5, 1, height=1.0, color=look.PALETTE[name], linewidth=0)
    scale.set_xlim(0, 1)
    scale.set_ylim(0, steps)
    scale.set_xticks([])
    scale.yaxis.tick_right()
    edges = [0, steps / 2, steps]
    scale.set_yticks(edges, [look.number(least + (top - least) * e / steps) for e in edges])
    scale.tick_params(length=0)
    for spine in scale.spines.values():
        spine.set_visible(False)
    scale.set_ylabel(unit)
    scale.yaxis.set_label_position("right")
