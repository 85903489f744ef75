"""Tables of what NCCL logs say: benchmarks, communicators and what was chosen in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tracekit.dashboards.drawing import Row, Table
from tracekit.dashboards.look import amount_of_bytes, shown_name
from tracekit.wording import plural, seconds

MAX_ROWS = 60
"""Rows of a table, the first of its order."""


def benchmarks(rows: Sequence[Row]) -> Table | None:
    """Benchmarks with the bandwidth that each reached, slowest first within an operation, as
    nccl_bench has them; None without any."""
    if not rows:
        return None
    ordered = sorted(
        rows, key=lambda r: (r["benchmark"] or "", r["average_bus_bytes_per_s"] or 0.0, r["place"])
    )
    return Table(
        name="benchmark-table",
        section="communication",
        caption=f"Benchmarks of NCCL (query nccl_bench){_left(len(rows))}",
        columns=(
            ("Benchmark", "name"), ("Hosts", "path"), ("Ranks", "n"), ("Sizes", "n"),
            ("Whole", ""), ("Bus bandwidth, mean", "n"), ("Largest", "n"), ("At size", "n"),
            ("Algorithm", ""), ("Protocol", ""),
        ),
        rows=[
            [
                r["benchmark"] or "unknown",
                shown_name(", ".join(dict.fromkeys(r["hosts"] or [])), 80),
                _count(r["ranks_count"]),
                _count(r["rows_count"]),
                "yes" if r["is_complete"] else "no",
                _rate(r["average_bus_bytes_per_s"]),
                _rate(r["peak_bus_bytes_per_s"]),
                _size(r["peak_message_bytes"]),
                r["algorithm"] or "",
                r["protocol"] or "",
            ]
            for r in ordered[:MAX_ROWS]
        ],
    )  # fmt: skip


def communicators(rows: Sequence[Row]) -> Table | None:
    """Communicators with what was seen of their members, largest first, as nccl_comms has them;
    None without any."""
    members: dict[str, list[Row]] = {}
    for r in rows:
        members.setdefault(r["comm"], []).append(r)
    if not members:
        return None
    ordered = sorted(members.items(), key=lambda item: (-(item[1][0]["group_size"] or 0), item[0]))
    return Table(
        name="communicator-table",
        section="communication",
        caption=f"Communicators of NCCL (query nccl_comms){_left(len(members))}",
        columns=(
            ("Communicator", "path"), ("Members", "n"), ("Seen", "n"), ("Hosts", "n"),
            ("Channels", ""), ("Longest start", "n"), ("State", ""), ("NCCL", ""),
        ),
        rows=[_communicator(name, member_rows) for name, member_rows in ordered[:MAX_ROWS]],
    )  # fmt: skip


def _communicator(name: str, member_rows: Sequence[Row]) -> list[object]:
    starts = [r["init_dur_ns"] for r in member_rows if r["init_dur_ns"] is not None]
    states = Counter(r["state"] or "unknown" for r in member_rows)
    return [
        shown_name(name, 60),
        _count(max((r["group_size"] or 0 for r in member_rows), default=None)),
        _count(len({r["group_rank"] for r in member_rows})),
        _count(len({r["node"] for r in member_rows})),
        _several(r["channels_count"] for r in member_rows),
        (seconds(max(starts) / 1e9), f"{max(starts)}") if starts else ("-", "0"),
        next(iter(states))
        if len(states) == 1
        else ", ".join(f"{n} {state}" for state, n in sorted(states.items())),
        _several(r["nccl_version"] for r in member_rows),
    ]


def choices(rows: Sequence[Row]) -> Table | None:
    """What NCCL chose for which operations and sizes, as nccl_choices has it; None without any."""
    sums: dict[tuple[Any, ...], list[Row]] = {}
    for r in rows:
        key = (r["op"] or "unknown", r["algorithm"], r["protocol"], r["channels_count"])
        sums.setdefault(key, []).append(r)
    if not sums:
        return None
    ordered = sorted(
        sums.items(),
        key=lambda item: (str(item[0][0]), min(r["message_bytes"] or 0 for r in item[1])),
    )
    return Table(
        name="choice-table",
        section="communication",
        caption=f"What NCCL chose (query nccl_choices){_left(len(sums))}",
        columns=(
            ("Operation", "name"), ("Algorithm", ""), ("Protocol", ""), ("Channels", "n"),
            ("From size", "n"), ("To size", "n"), ("Times", "n"),
        ),
        rows=[_choice(key, choice_rows) for key, choice_rows in ordered[:MAX_ROWS]],
    )  # fmt: skip


def _choice(key: tuple[Any, ...], choice_rows: Sequence[Row]) -> list[object]:
    op, algorithm, protocol, channels = key
    sizes = [r["message_bytes"] for r in choice_rows if r["message_bytes"] is not None]
    return [
        op,
        algorithm or "",
        protocol or "",
        _count(channels),
        _size(min(sizes, default=None)),
        _size(max(sizes, default=None)),
        _count(sum(r["choices_count"] for r in choice_rows)),
    ]


def _several(values: Iterable[Any]) -> str:
    """Values that differ, in order; mostly there is one."""
    return ", ".join(str(v) for v in sorted({v for v in values if v is not None}))


def _count(value: object) -> tuple[str, str]:
    return ("-", "0") if value is None else (f"{value:,}", f"{value}")


def _rate(value: float | None) -> tuple[str, str]:
    return ("-", "0") if value is None else (f"{amount_of_bytes(value)}/s", f"{value:.3f}")


def _size(value: float | None) -> tuple[str, str]:
    return ("-", "0") if value is None else (amount_of_bytes(value), f"{value}")


def _left(count: int) -> str:
    return f"; {plural(count - MAX_ROWS, 'more row')} in the query" if count > MAX_ROWS else ""
