"""Tables of what a device spends its time on."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.dashboards.drawing import Row, Table
from tracekit.dashboards.look import shown_name
from tracekit.wording import seconds, share

MAX_KERNELS = 40
"""Kernels of the table, those with most time."""
NAME_CHARS = 120
"""Of a kernel's name; templates write names of a thousand."""


def kernels(rows: Sequence[Row]) -> Table | None:
    """Kernels and copies by the time that they took on all ranks together, as kernel_summary has
    it; None where none was recorded."""
    sums: dict[tuple[str, str], list[float]] = {}
    ranks = {r["rank"] for r in rows}
    for r in rows:
        entry = sums.setdefault((r["name"], r["class"]), [0, 0, 0, 0])
        entry[0] += r["total_ns"]
        entry[1] += r["calls_count"]
        entry[2] = max(entry[2], r["max_ns"])
        entry[3] += 1
    total = sum(entry[0] for entry in sums.values())
    if not total:
        return None
    most = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))[:MAX_KERNELS]
    cells = [
        [
            shown_name(name, NAME_CHARS),
            kind,
            (share(time / total), f"{time / total:.9f}"),
            (seconds(time / len(ranks) / 1e9), f"{time:.0f}"),
            (f"{calls / len(ranks):,.4g}", f"{calls}"),
            (seconds(time / calls / 1e9), f"{time / calls:.3f}"),
            (seconds(longest / 1e9), f"{longest:.0f}"),
            (f"{count:.0f}", f"{count:.0f}"),
        ]
        for (name, kind), (time, calls, longest, count) in most
    ]
    left = len(sums) - len(most)
    caption = "Kernels and copies by time, mean of all ranks (query kernel_summary)"
    return Table(
        name="kernel-table",
        section="work",
        caption=caption + (f"; {left:,} with less are left out" if left else ""),
        columns=(
            ("Kernel", "path"), ("Class", ""), ("Share of all", "n"), ("Time of a rank", "n"),
            ("Calls of a rank", "n"), ("Mean", "n"), ("Longest", "n"), ("Ranks", "n"),
        ),
        rows=cells,
    )  # fmt: skip


MAX_PARTS = 40
"""Names of the table of self times, those with most time."""
NAMELESS = {"wait": "waiting for communication", "between": "short gaps between calls"}
"""What a part without a name is, by its kind."""
MAX_SELF_TIME_RANKS = 32
"""Ranks up to which a page asks for self times: the query walks every call of every thread."""


def parts(rows: Sequence[Row]) -> Table | None:
    """What a mean step goes into on the host, by self time, mean of all ranks, as self_time has it;
    None where nothing was recorded."""
    sums: dict[tuple[str, str], list[float]] = {}
    ranks = {r["rank"] for r in rows}
    for r in rows:
        if r["timeline"] != "host":
            continue
        entry = sums.setdefault((r["name"], r["kind"]), [0.0, 0.0, 0.0, 0.0])
        entry[0] += r["self_ns"]
        entry[1] += r["self_ratio"] or 0.0
        entry[2] += r["calls_count"]
        entry[3] = max(entry[3], r["longest_ns"])
    if not sums:
        return None
    most = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))[:MAX_PARTS]
    count = len(ranks)
    return Table(
        name="self-time-table",
        section="work",
        caption="What a mean step goes into on the host, by self time, mean of all ranks "
        "(query self_time)",
        columns=(
            ("Name", "path"), ("Kind", ""), ("Share of the step", "n"), ("A step", "n"),
            ("Calls a step", "n"), ("Longest", "n"),
        ),
        rows=[
            [
                shown_name(name or NAMELESS.get(kind, kind), NAME_CHARS),
                kind,
                (share(ratio / count), f"{ratio / count:.9f}"),
                (seconds(time / count / 1e9), f"{time / count:.3f}"),
                (f"{calls / count:,.3g}", f"{calls / count:.6f}"),
                (seconds(longest / 1e9), f"{longest:.0f}"),
            ]
            for (name, kind), (time, ratio, calls, longest) in most
        ],
    )  # fmt: skip
