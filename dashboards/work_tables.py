"""Tables of what a device spends its time on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracekit.dashboards.drawing import Row, Table
from tracekit.dashboards.look import shown_name
from tracekit.wording import nameless, seconds, share

MAX_KERNELS = 40
"""Kernels of the table, those with most time."""
NAME_CHARS = 120
"""Of a kernel's name; templates write names of a thousand."""


def _counted(mean: float) -> str:
    """A mean number of calls: 0.0833, 56.8, 1,700."""
    return f"{mean:,.0f}" if mean >= 999.5 else f"{mean:.3g}"


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
            (_counted(calls / len(ranks)), f"{calls}"),
            (seconds(time / calls / 1e9), f"{time / calls:.3f}"),
            (seconds(longest / 1e9), f"{longest:.0f}"),
            (f"{count:,.0f}", f"{count:.0f}"),
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
MAX_SELF_TIME_RANKS = 32
"""Ranks up to which a page asks what walks every call of every thread."""


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
            ("Name", "path"), ("Kind", ""), ("Share of the step", "n"), ("Time a step", "n"),
            ("Calls a step", "n"), ("Longest", "n"),
        ),
        rows=[
            [
                shown_name(name or nameless(kind), NAME_CHARS),
                kind,
                (share(ratio / count), f"{ratio / count:.9f}"),
                (seconds(time / count / 1e9), f"{time / count:.3f}"),
                (_counted(calls / count), f"{calls / count:.6f}"),
                (seconds(longest / 1e9), f"{longest:.0f}"),
            ]
            for (name, kind), (time, ratio, calls, longest) in most
        ],
    )  # fmt: skip


MAX_OPERATORS = 40
MAX_MODULES = 60
"""Rows of the tables of operators and of modules, those with most time."""


def operators(rows: Sequence[Row]) -> Table | None:
    """Operators by their own time, of the device where there is one, all ranks together, as
    operator_summary has it; None where none was recorded."""
    columns = ("calls_count", "host_ns", "host_self_ns", "device_ns", "device_self_ns")
    sums = _sums(rows, lambda r: r["name"] or "no recorded operator", columns)
    own_column = 4 if any(entry[4] for entry in sums.values()) else 2
    total = sum(entry[own_column] for entry in sums.values())
    if not total:
        return None
    most = sorted(sums.items(), key=lambda item: (-item[1][own_column], -item[1][2], item[0]))
    count = len({r["rank"] for r in rows})
    of = "device" if own_column == 4 else "host"
    return Table(
        name="operator-table",
        section="work",
        caption=f"Operators by their own time on the {of}, mean of all ranks, over all that was "
        f"captured (query operator_summary){_left(len(most) - MAX_OPERATORS)}",
        columns=(
            ("Operator", "path"), (f"Share of the {of}", "n"), ("Calls", "n"), ("Device, own", "n"),
            ("Device, with inner", "n"), ("Host, own", "n"), ("Host, with inner", "n"),
        ),
        rows=[
            [
                shown_name(name, NAME_CHARS),
                (share(entry[own_column] / total), f"{entry[own_column] / total:.9f}"),
                (_counted(entry[0] / count) if entry[0] else "-", f"{entry[0]}"),
                *(_time(entry[i] / count) for i in (4, 3, 2, 1)),
            ]
            for name, entry in most[:MAX_OPERATORS]
        ],
    )  # fmt: skip


def modules(rows: Sequence[Row]) -> Table | None:
    """Modules and named ranges in the order of their paths, those with most time, all ranks
    together, as module_summary has it; None where none was recorded."""
    columns = ("calls_count", "host_ns", "host_self_ns", "device_ns", "device_self_ns")
    sums = _sums(rows, lambda r: r["path"], columns)
    if not sums:
        return None
    depths = {r["path"]: int(r["depth"]) for r in rows}
    by_time = sorted(sums, key=lambda path: (-sums[path][3], -sums[path][1], path))
    shown = sorted(by_time[:MAX_MODULES])
    count = len({r["rank"] for r in rows})
    return Table(
        name="module-table",
        section="work",
        caption="Modules and named ranges, mean of all ranks, over all that was captured (query "
        f"module_summary){_left(len(sums) - MAX_MODULES)}",
        columns=(
            ("Module or range", "path"), ("Depth", "n"), ("Calls", "n"), ("Device", "n"),
            ("Device, own", "n"), ("Host", "n"), ("Host, own", "n"),
        ),
        rows=[
            [
                shown_name(path, NAME_CHARS),
                (str(depths[path]), f"{depths[path]}"),
                (_counted(sums[path][0] / count), f"{sums[path][0]}"),
                *(_time(sums[path][i] / count) for i in (3, 4, 1, 2)),
            ]
            for path in shown
        ],
    )  # fmt: skip


def _sums(
    rows: Sequence[Row], name_of: Callable[[Row], str], columns: Sequence[str]
) -> dict[str, list[int]]:
    sums: dict[str, list[int]] = {}
    for row in rows:
        entry = sums.setdefault(name_of(row), [0] * len(columns))
        for i, column in enumerate(columns):
            entry[i] += int(row[column] or 0)
    return sums


def _time(ns: float) -> tuple[str, str]:
    return (seconds(ns / 1e9) if ns else "-", f"{ns:.3f}")


def _left(count: int) -> str:
    return f"; {count:,} with less are left out" if count > 0 else ""
