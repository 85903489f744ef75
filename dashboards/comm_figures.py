"""Figures of communication: how much is hidden, and what is sent beside what the layout needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tracekit.dashboards import look
from tracekit.dashboards.drawing import Drawing, Rows
from tracekit.dashboards.step_figures import MAX_BARS, odd_ones
from tracekit.wording import plural, seconds, share

if TYPE_CHECKING:
    from tracekit.findings import Finding

MAX_KINDS = 16
"""Kinds of traffic that are drawn, those with most bytes."""
UNKNOWN_GROUP = "unknown group"
"""Whose traffic it is where no communicator says what it is for."""
LINEAR_RANGE = 30.0
"""Beyond this ratio of the largest to the least, an axis of bytes is logarithmic."""


def overlap(rows: Rows, findings: Sequence[Finding] = ()) -> Drawing | None:
    """Communication of each rank over the window: hidden behind computation, and not."""
    del findings
    ranks = sorted((r for r in rows["overlap"] if r["comm_ns"]), key=lambda r: int(r["rank"]))
    if not ranks:
        return None
    table = np.array([[r["overlap_ns"], r["exposed_comm_ns"]] for r in ranks], dtype=float)
    shown, together = odd_ones(table, MAX_BARS)
    divisor, unit = look.time_unit(float(table.sum(axis=1).max()))
    figure = look.new_figure(2.5)
    axes = figure.add_subplot()
    places = np.arange(len(shown))
    hidden, exposed = table[shown, 0] / divisor, table[shown, 1] / divisor
    axes.bar(places, hidden, 0.86, color=look.PALETTE["green"], label="hidden behind computing")
    axes.bar(places, exposed, 0.86, bottom=hidden, color=look.PALETTE["orange"], label="not hidden")
    axes.set_xlim(-0.6, len(shown) - 0.4)
    axes.set_xticks(*look.some_ticks([str(ranks[i]["rank"]) for i in shown]))
    axes.set_xlabel("rank" if together == 1 else f"rank (of each {together}, the least usual)")
    axes.set_ylabel(f"whole capture [{unit}]")
    look.grid(axes)
    look.legend(figure, 2)
    sums = table.sum(axis=0)
    whose = "of it" if len(ranks) == 1 else "of the median rank's"
    left = seconds(float(np.median(table[:, 1])) / 1e9)
    says = (
        f"{plural(len(ranks), 'rank')}: {share(float(sums[0] / sums.sum()))} of all communication "
        f"is hidden behind computing; {left} {whose} is not."
    )
    return Drawing(figure, says)


def traffic(rows: Rows, findings: Sequence[Finding] = ()) -> Drawing | None:
    """What a rank sends in a step, beside what the layout needs, by kind of group and operation."""
    del findings
    known = [
        r for r in rows["traffic"]
        if r["bytes_per_step"] or r["expected_bytes"]
    ]  # fmt: skip
    known.sort(key=lambda r: -max(r["bytes_per_step"] or 0, r["expected_bytes"] or 0))
    known = known[:MAX_KINDS]
    if not known:
        return None
    values = [v for r in known for v in (r["bytes_per_step"], r["expected_bytes"]) if v]
    is_wide = max(values) / min(values) > LINEAR_RANGE
    divisor, unit = (1.0, "B") if is_wide else look.byte_unit(max(values))
    figure = look.new_figure(1.25 + 0.3 * len(known))
    axes = figure.add_subplot()
    for i, r in enumerate(known):
        both = [v / divisor for v in (r["expected_bytes"], r["bytes_per_step"]) if v]
        if len(both) == 2:
            axes.plot(both, [i, i], color=look.PALETTE["grey"], linewidth=2.5, zorder=1)
    for column, name, colour, marker in (
        ("expected_bytes", "expected of this layout", "green", "|"),
        ("bytes_per_step", "observed", "blue", "o"),
    ):
        points = [(r[column] / divisor, i) for i, r in enumerate(known) if r[column]]
        if points:
            axes.plot(
                *zip(*points, strict=True), linestyle="none", marker=marker,
                color=look.PALETTE[colour], markersize=13 if marker == "|" else 7,
                markeredgewidth=3 if marker == "|" else 0, label=name,
            )  # fmt: skip
    for i, r in enumerate(known):
        if r["observed_ratio"] is not None:
            axes.text(
                1.01, i, f"{r['observed_ratio']:.2f}x", transform=axes.get_yaxis_transform(),
                va="center", fontsize=8.5, color=look.PALETTE["muted"],
            )  # fmt: skip
    if is_wide:
        look.log_scale(axes, "x", look.amount_of_bytes)
    else:
        axes.set_xlim(0, max(values) / divisor * 1.06)
    axes.set_ylim(len(known) - 0.5, -0.5)
    names = [look.shown_name(f"{r['group_kind'] or UNKNOWN_GROUP}  {r['op']}") for r in known]
    axes.set_yticks(range(len(known)), names)
    axes.set_xlabel("a rank sends in a step" + ("" if is_wide else f" [{unit}]"))
    look.grid(axes, "x")
    look.legend(figure, 2)
    first = known[0]
    says = f"{plural(len(known), 'kind')} of traffic."
    if not any(r["expected_bytes"] for r in known):
        says += " Nothing says what the layout needs: a job description would."
    off = [r for r in known if r["observed_ratio"] is not None]
    if off:
        most = max(off, key=lambda r: abs(np.log(max(r["observed_ratio"], 1e-9))))
        says += (
            " It sends what the layout needs."
            if f"{most['observed_ratio']:.2f}" == "1.00"
            else f" Farthest from what the layout needs: {most['group_kind'] or UNKNOWN_GROUP} "
            f"{most['op']} with {most['observed_ratio']:.2f} times as many bytes."
        )
    else:
        says += f" Most bytes: {first['group_kind'] or UNKNOWN_GROUP} {first['op']}."
    return Drawing(figure, look.shown_name(says, 400))
