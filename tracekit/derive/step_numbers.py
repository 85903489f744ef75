"""Equal steps have equal numbers on all ranks: matched collectives tell which are equal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from tracekit.derive.matching import Matched

    Ints = npt.NDArray[np.int64]


def align(
    steps: dict[int, list[dict[str, Any]]],
    known: dict[int, list[dict[str, Any]]],
    placed: dict[int, tuple[int, int, int]],
    matched: Matched,
) -> None:
    """Give equal steps of a capture equal numbers: those of markers, where there are any."""
    by_source = {**{s: rows for s, rows in known.items() if s in placed}, **steps}
    edges = _differences(matched, by_source)
    captures: dict[tuple[int, int], list[int]] = defaultdict(list)
    for source_id in sorted(by_source, key=lambda s: (s in steps, s)):
        captures[placed[source_id][:2]].append(source_id)
    for sources in captures.values():
        shift = {s: 0 for s in sources if s in known}
        is_numbered = bool(shift)
        for root in sources:
            if root not in shift:
                nearest = [by_source[s] for s in shift]
                shift[root] = _by_time(by_source[root], nearest, shift)
            waiting = [root]
            while waiting:
                source = waiting.pop()
                for other, difference in edges[source]:
                    if other not in shift:
                        shift[other] = shift[source] - difference
                        waiting.append(other)
        of_rank = [s for s in sources if s in steps]
        least = min((r["step"] + shift[s] for s in of_rank for r in steps[s]), default=0)
        for source_id in of_rank:
            for row in steps[source_id]:
                row["step"] += shift[source_id] - (0 if is_numbered else least)


def _by_time(
    steps: list[dict[str, Any]], others: list[list[dict[str, Any]]], shift: dict[int, int]
) -> int:
    """What to add to numbers that no collective ties to others: the nearest in time."""
    known = [(r["start_ns"], r["step"] + shift[r["source_id"]]) for rows in others for r in rows]
    if not known:
        return 0
    middle = steps[len(steps) // 2]
    _, step = min(known, key=lambda k: abs(k[0] - middle["start_ns"]))
    return int(step - middle["step"])


def _differences(
    matched: Matched, by_source: dict[int, list[dict[str, Any]]]
) -> dict[int, list[tuple[int, int]]]:
    """By source: others, and how much higher their numbers are for the same collectives."""
    import numpy as np

    step = _numbers(matched, by_source)
    rows, starts = matched.order()
    edges: dict[int, list[tuple[int, int]]] = defaultdict(list)
    if not len(rows):
        return edges
    lengths = np.diff(np.append(starts, len(rows)))
    source = matched.calls["source_id"][rows]
    first = np.repeat(starts, lengths)
    good = (step[rows] >= 0) & (step[rows][first] >= 0) & (source != source[first])
    pairs = np.stack(
        [source[first][good], source[good], (step[rows] - step[rows][first])[good]], axis=1
    )
    tally: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for (a, b, difference), count in zip(
        *np.unique(pairs, axis=0, return_counts=True), strict=True
    ):
        tally[int(a), int(b)][int(difference)] += int(count)
    for (a, b), counted in tally.items():
        difference, count = counted.most_common(1)[0]
        if count > sum(counted.values()) / 2:
            edges[a].append((b, difference))
            edges[b].append((a, -difference))
    return edges


def _numbers(matched: Matched, by_source: Mapping[int, list[dict[str, Any]]]) -> Ints:
    """The step of each call by when it was asked for, -1 where it is in none."""
    import numpy as np

    calls = matched.calls
    numbers = np.full(len(calls), -1, np.int64)
    for source_id, listed in by_source.items():
        of_source = np.flatnonzero(calls["source_id"] == source_id)
        rows = sorted(listed, key=lambda r: r["start_ns"])
        starts = np.array([r["start_ns"] for r in rows], np.int64)
        ends = np.array([r["end_ns"] for r in rows], np.int64)
        steps = np.array([r["step"] for r in rows], np.int64)
        asked = calls["asked_ns"][of_source]
        at = np.searchsorted(starts, asked, "right") - 1
        inside = (at >= 0) & (asked < ends[np.maximum(at, 0)])
        numbers[of_source[inside]] = steps[at[inside]]
    return numbers


def call_steps(matched: Matched, steps: pa.Table) -> Ints:
    """The step of each call by the rows of ``step``, -1 where it is in none."""
    by_source: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in steps.to_pylist():
        by_source[row["source_id"]].append(row)
    return _numbers(matched, by_source)
