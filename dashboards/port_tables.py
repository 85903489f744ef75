"""Tables of what ports counted: a row a counter, with the port that had most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.dashboards.drawing import Row, Table
from tracekit.dashboards.look import number, shown_name

MAX_COUNTERS = 80
"""Counters of a table: those of which fewest ports have any come first, traffic last."""


_SAYS = {
    "growth": "What counters of ports grew by",
    "last_value": "What counters of ports stood at: each was read once, so nothing says since when",
}


def port_counters(rows: Sequence[Row]) -> Table | None:
    """What each counter grew by on all ports, and where most, as port_counters has it: within the
    job's window where there is one; of counters that were read once what they stood at. None where
    all are 0."""
    column = "growth" if any(r["growth"] is not None for r in rows) else "last_value"
    grown: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for r in rows:
        if r[column] is not None:
            key = (_name(r), r["unit"] or "")
            grown.setdefault(key, []).append((float(r[column]), _port(r)))
    above_zero = {key: values for key, values in grown.items() if any(v > 0 for v, _ in values)}
    if not above_zero:
        return None
    ordered = sorted(above_zero, key=lambda key: (sum(v > 0 for v, _ in above_zero[key]), key))
    cells = []
    for name, unit in ordered[:MAX_COUNTERS]:
        values = above_zero[name, unit]
        most, where = max(values)
        total = sum(v for v, _ in values)
        growing = sum(v > 0 for v, _ in values)
        cells.append(
            [
                name,
                unit,
                (f"{growing:,} of {len(values):,}", f"{growing}"),
                (number(total), f"{total}"),
                (number(most), f"{most}"),
                where,
            ]
        )
    return Table(
        name="port-table",
        section="devices",
        caption=_SAYS[column] + " (query port_counters)" + _left(len(ordered)),
        columns=(
            ("Counter", "name"), ("Unit", ""), ("Places above 0", "n"), ("In all", "n"),
            ("Most", "n"), ("Where", "path"),
        ),
        rows=cells,
    )  # fmt: skip


def port_levels(rows: Sequence[Row]) -> Table | None:
    """The highest level of each kind and where it was, as port_levels has it; None without any."""
    levels: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for r in rows:
        if r["max_value"] is not None:
            kind = f"{_name(r)} ({r['kind']})" if r["kind"] != "gauge" else _name(r)
            levels.setdefault((kind, r["unit"] or ""), []).append((float(r["max_value"]), _port(r)))
    if not levels:
        return None
    cells = []
    for (name, unit), values in sorted(levels.items())[:MAX_COUNTERS]:
        most, where = max(values)
        middle = float(np.median([v for v, _ in values]))
        cells.append(
            [
                name,
                unit,
                (f"{len(values):,}", f"{len(values)}"),
                (number(middle), f"{middle}"),
                (number(most), f"{most}"),
                where if most != min(v for v, _ in values) else "",
            ]
        )
    return Table(
        name="port-level-table",
        section="devices",
        caption="Highest levels of ports (query port_levels)" + _left(len(levels)),
        columns=(
            ("Level", "name"), ("Unit", ""), ("Places", "n"), ("Median of them", "n"),
            ("Highest", "n"), ("Where", "path"),
        ),
        rows=cells,
    )  # fmt: skip


def _name(row: Row) -> str:
    """A counter with its direction, where its name does not begin with it; priorities, queues and
    lanes are places."""
    counter, direction = row["counter"], row["direction"]
    is_told = not direction or counter.startswith(f"{direction}_")
    return counter if is_told else f"{counter} {direction}"


def _port(row: Row) -> str:
    words = [row["node"], row["port"]]
    words += [f"{n} {row[n]}" for n in ("priority", "queue", "lane") if row[n] is not None]
    return shown_name(" ".join(filter(None, words)) or "unknown", 80)


def _left(count: int) -> str:
    return f"; {count - MAX_COUNTERS:,} more in the query" if count > MAX_COUNTERS else ""
