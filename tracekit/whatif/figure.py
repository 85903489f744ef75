"""The heat map of a pipeline as a figure: slowdown by stage (down) and replica (across).

A hot cell is a slow rank, a hot row a stage with more to do, a hot column a replica's data or host.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit.errors import InputError, UsageError
from tracekit.whatif.metrics import WhatIf
from tracekit.whatif.operations import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")

MAX_NUMBERS = 400
"""Cells that hold their number; more would not be readable."""

LEAST_SPAN = 0.1
"""The colours reach at least from 1 to this much above: noise must not look like a fire."""

MAX_TICKS = 32

MAX_COLUMNS = 512
"""Beyond, a cell is the slowest of several replicas: a single hot one must not fade away."""

_STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with Matplotlib: the same picture everywhere
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "tracekit",  # and the ids stay the same
    "text.usetex": False,
    "text.parse_math": False,
}
_NO_DATE: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def check_name(path: Path) -> None:
    """UsageError where no figure can be written under this name."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"{path}: no kind of figure", hint=f"the name ends in {', '.join(SUFFIXES)}"
        )


def heat_map(whatif: WhatIf) -> Figure:
    """The figure. InputError where the replay has no stages and replicas, or is refused."""
    from matplotlib import rc_context

    with rc_context(_STYLE):
        return _drawn(whatif)


def write_heat_map(whatif: WhatIf, path: Path) -> None:
    """Write the figure; the same replay gives the same bytes.

    UsageError where the name is no figure's or the file cannot be written.
    """
    from matplotlib import rc_context

    check_name(path)
    with rc_context(_STYLE):
        figure = _drawn(whatif)
        try:
            figure.savefig(path, dpi=150, metadata=_NO_DATE[path.suffix.lower()])
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be written ({error.strerror or type(error).__name__})"
            ) from None


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
    together = -(-values.shape[1] // MAX_COLUMNS)
    if together > 1:
        values = _slowest(values, together)
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


def _slowest(values: Floats, together: int) -> Floats:
    """The largest of each so many columns."""
    missing = -values.shape[1] % together
    padded = np.pad(values, ((0, 0), (0, missing)), constant_values=np.nan)
    blocks = padded.reshape(len(values), -1, together)
    known = ~np.isnan(blocks).all(axis=2)
    return np.where(known, np.where(np.isnan(blocks), -np.inf, blocks).max(axis=2), np.nan)
