"""The heat map of a pipeline as a figure: slowdown by stage (down) and replica (across).

A hot cell is a slow rank, a hot row a stage with more to do, a hot column a replica's data or host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.dashboards import heat, look
from tracekit.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tracekit.whatif import WhatIf

MAX_NUMBERS = 400
"""Cells that hold their number; more would not be readable."""

LEAST_SPAN = 0.1
"""The colours reach at least from 1 to this much above: noise must not look like a fire."""

MAX_TICKS = 32

MAX_COLUMNS = 512
"""Beyond, a cell is the slowest of several replicas: a single hot one must not fade away."""


def heat_map(whatif: WhatIf) -> Figure:
    """The figure. InputError where the replay has no stages and replicas, or is refused."""
    with look.style():
        return _drawn(whatif)


def _drawn(whatif: WhatIf) -> Figure:
    from matplotlib.figure import Figure

    job = whatif.pipeline
    if job is None:
        raise InputError(
            f"no heat map: this is a replay by {whatif.method}, which knows no stages and replicas",
            hint="the slowdown of each rank stands in the text and in --format json",
        )
    if whatif.refused is not None:
        raise InputError(f"no heat map: {whatif.refused}")
    values = np.array(
        [
            [job.slowdown_of(s, d) if rank >= 0 else np.nan
             for d, rank in zip(job.dp_ranks, row, strict=True)]
            for s, row in zip(job.stages, job.ranks, strict=True)
        ]
    )  # fmt: skip
    values, _, together = heat.folded(values, len(values), MAX_COLUMNS)
    rows, columns = values.shape
    top = max(1 + LEAST_SPAN, float(np.nanmax(values)))
    figure = Figure(
        figsize=(min(14.0, max(5.5, 2.2 + 0.7 * columns)), min(10.0, max(2.8, 1.7 + 0.42 * rows))),
        layout="constrained",
    )
    axes = figure.add_subplot()
    image = axes.imshow(
        values, cmap="YlOrRd", vmin=1.0, vmax=top, aspect="auto", interpolation="nearest"
    )
    image.set_gid("heat-map")
    for ticks, labels, name in (
        (axes.set_yticks, job.stages, "stage"),
        (axes.set_xticks, job.dp_ranks[::together], "replica"),
    ):
        chosen = range(0, len(labels), -(-len(labels) // MAX_TICKS))
        ticks(list(chosen), [str(labels[i]) for i in chosen])
        (axes.set_ylabel if name == "stage" else axes.set_xlabel)(name)
    if together > 1:
        axes.set_xlabel(f"replica (a cell is the slowest of {together})")
    elif values.size <= MAX_NUMBERS:
        for i, j in np.argwhere(~np.isnan(values)).tolist():
            is_dark = (values[i, j] - 1) / (top - 1) > 0.6
            text = f"{values[i, j]:.3f}\nrank {job.ranks[i][j]}"
            axes.text(
                j, i, text, ha="center", va="center", fontsize=7.5,
                color="white" if is_dark else "black",
            )  # fmt: skip
    bar = figure.colorbar(image, ax=axes, shrink=0.9)
    bar.set_label("times the ideal step")
    figure.suptitle(
        f"Slowdown by stage and replica: the ideal job with this part's own times put back\n"
        f"{job.judgement.sentence}",
        fontsize=9, wrap=True,
    )  # fmt: skip
    return figure
