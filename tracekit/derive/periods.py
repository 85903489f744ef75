"""Training steps where nobody marked them: from one update of the parameters to the next.

A trace repeats itself on many levels: layers, microbatches, steps, lines of a log. Which of them
is the step only the update tells, so the anchor is work that is known to be the optimizer's: what
was launched within a range ``Optimizer.step``, else kernels that optimizers are named for. The
launches up to the end of each update are one cell. Cells are steps if they are equal: the same
sequence of collectives (operation, group, size), about as many launches, and nearly the same
kernels as the cell that most are like. At least three besides the first have to be.

A cell that begins with something else (an evaluation, the start of the capture) and ends like the
others is a step from there on, unless that comes regularly. Nothing is said where updates are of
several kinds, where they are spread through the backward pass, or where none is known: better no
step than a microbatch or a layer that is taken for one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from tracekit.derive.matching import Matched

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

MIN_EQUAL = 3
"""Equal cells, the first not counted, that make a period."""
SAME_KERNELS = 0.9
"""Share of two cells' launches that are of equal names."""
SAME_KERNELS_BESIDE_CALLS = 0.7
"""The same where their collectives agree: the library may choose another kernel for a shape."""
SAME_COUNT = 0.05
"""Equal cells differ by at most this share of their launches, or by ``FEW``."""
FEW = 4
BURST_RATIO = 8
"""The pause between two updates has so many times the launches of a pause within one."""
MIN_COVERED = 0.5
"""Share of the launches from the first step to the last that steps must hold."""
MAX_ODD = 0.1
"""Share of the cells that may be like no other."""
THREAD_SHARE = 0.1
"""A thread with this share of a rank's launches takes part in every step."""
INPUT_ZONE = 8
"""Launches after an update among which the copy of the next step's input is looked for."""
FIRST_NS = 1_000
"""A first step begins this long before its first launch, as those of markers begin before it."""

UPDATE = re.compile(
    r"(?i)adam|lamb(?!da)|(?<![a-z])sgd|adagrad|adafactor|rmsprop|(?<![a-z])(?:lion|muon)(?![a-z])"
    r"|optimizer|addcdiv|multi_tensor_apply.*(?:PointwiseOp|TernaryOp)"
)
"""Kernels of optimizers: fused ones by their names, others by the division that ends Adam."""

_LAUNCHES = """
WITH calls AS (
    SELECT gpu_op_place AS place,
           coalesce(op, '?') || '/' || coalesce(group_id, 'stream ' || stream, '?') AS call,
           message_bytes
    FROM collective WHERE source_id = $source_id AND gpu_op_place IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY gpu_op_place ORDER BY place) = 1
), updates AS (
    SELECT DISTINCT start_ns, start_ns + dur_ns AS end_ns FROM annotation
    WHERE source_id = $source_id AND NOT coalesce(is_gpu_twin, false)
      AND start_ns IS NOT NULL AND dur_ns IS NOT NULL
      AND regexp_matches(name, '^Optimizer[.]step\\b')
)
SELECT g.place, g.launch_start_ns AS at, coalesce(g.launch_end_ns, g.launch_start_ns) AS done,
       g.start_ns, g.start_ns + g.dur_ns AS end_ns, coalesce(g.name, '') AS name,
       coalesce(g.launch_thread, -1) AS thread, coalesce(g.copy_kind = 'HtoD', false) AS is_input,
       coalesce(g.class = 'compute', false) AS is_compute,
       coalesce(g.launch_start_ns < u.end_ns, false) AS is_in_update,
       coalesce(c.call, '') AS call, coalesce(c.call || '/' || c.message_bytes, '') AS sized_call
FROM gpu_op g
LEFT JOIN calls c USING (place)
ASOF LEFT JOIN updates u ON g.launch_start_ns >= u.start_ns
WHERE g.source_id = $source_id AND g.launch_start_ns IS NOT NULL
  AND g.start_ns IS NOT NULL AND g.dur_ns IS NOT NULL
"""


@dataclass(frozen=True)
class Launches:
    """What one process put on its devices, in the order in which it asked for it."""

    at: Ints
    """Start of the launch call, ns."""
    done: Ints
    """Its end."""
    start: Ints
    end: Ints
    """When the device worked on it."""
    name: Ints
    """A code for its name."""
    thread: Ints
    is_input: Bools
    """Copies from host to device."""
    is_compute: Bools
    is_update: Bools
    """The optimizer's work."""
    calls: tuple[Ints, ...]
    """Codes of collectives, 0 where it is none: with sizes, then without."""
    is_by_range: bool
    """Whether ranges said which work is the optimizer's."""

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True, slots=True)
class Cell:
    """A step: launches ``first`` to ``last``; ``number`` counts updates, steps or not."""

    first: int
    last: int
    number: int


def cells(launches: Launches) -> list[Cell]:
    """The steps of one process; none where there is no clear period."""
    import numpy as np

    update = np.flatnonzero(launches.is_update)
    if len(update) < MIN_EQUAL:
        return []
    for ends in _ends(update):
        for calls in launches.calls:
            cells = _equal(launches, calls, _with_input(launches, ends))
            if cells:
                return cells
    return []


def _ends(update: Ints) -> Iterator[Ints]:
    """Last launches of updates: where an update is one launch, and where it is several."""
    import numpy as np

    pauses = np.diff(update)
    sizes = np.unique(pauses)
    jumps = sizes[1:] / sizes[:-1]
    at = int(jumps.argmax()) if len(jumps) else 0
    several = np.append(update[:-1][pauses > sizes[at]], update[-1]) if len(sizes) else update
    if len(jumps) and float(jumps[at]) >= BURST_RATIO:
        yield several
    yield update


def _with_input(launches: Launches, ends: Ints) -> Ints:
    """The ends moved to just before the copy of the next input, where each has one close by.

    What stands between belongs to the update: its parameters' all-gather, a loss that is logged.
    """
    import numpy as np

    moved = ends.copy()
    for i, end in enumerate(ends.tolist()):
        zone = slice(end + 1, end + 1 + INPUT_ZONE)
        copies = np.flatnonzero(launches.is_input[zone])
        if len(copies) and launches.is_compute[zone][: copies[0]].sum() <= FEW:
            moved[i] = end + int(copies[0])
        elif i < len(ends) - 1:
            return ends
        else:  # the capture ends before the next input
            usual = int(np.median((moved - ends)[:-1]))
            moved[i] = min(end + usual, len(launches) - 1)
    return moved


def _equal(launches: Launches, calls: Ints, ends: Ints) -> list[Cell]:
    """The cells that are like most others, if they are enough."""
    import numpy as np

    if len(ends) < MIN_EQUAL:
        return []
    bounds = [(int(a) + 1, int(b)) for a, b in zip(np.append(-1, ends[:-1]), ends, strict=True)]
    signatures = [_signature(calls, a, b) for a, b in bounds]
    usual = Counter(signatures[1:]).most_common(1)[0][0]
    alike = [b for b, s in zip(bounds[1:], signatures[1:], strict=True) if s == usual]
    count = int(np.median([b - a + 1 for a, b in alike]))
    model = min(alike, key=lambda c: (abs(c[1] - c[0] + 1 - count), c))
    names_count = int(launches.name.max(initial=0)) + 1
    names = np.bincount(launches.name[model[0] : model[1] + 1], minlength=names_count)
    slack = max(FEW, SAME_COUNT * count)
    same_kernels = SAME_KERNELS_BESIDE_CALLS if usual else SAME_KERNELS
    threads = _threads(launches, model)
    if threads is None:
        return []
    cells: list[Cell] = []
    cut: list[int] = []
    whole = odd = 0
    for number, ((first, last), signature) in enumerate(zip(bounds, signatures, strict=True)):
        begin = first
        if last - first + 1 > count + slack:  # something else comes first
            begin = last - count + 1
        own_calls = signature if begin == first else _signature(calls, begin, last)
        is_like = own_calls == usual and last - begin + 1 >= count - slack
        if is_like:
            counts = np.bincount(launches.name[begin : last + 1], minlength=names_count)
            shared = np.minimum(counts, names).sum() / np.maximum(counts, names).sum()
            is_like = shared >= same_kernels and set(
                launches.thread[begin : last + 1].tolist()
            ) >= set(threads)
        if is_like:
            cells.append(Cell(begin, last, number))
            whole += number > 0 and begin == first
            cut += [number] if number and begin > first else []
        elif number:
            odd += 1
    if whole < MIN_EQUAL or odd > max(1, MAX_ODD * len(bounds)):
        return []
    if len(cut) > 1 and len(np.unique(np.diff(cut))) == 1:
        return []  # what comes in between comes regularly: then that may be the step's rhythm
    covered = sum(c.last - c.first + 1 for c in cells)
    span = cells[-1].last - cells[0].first + 1
    return cells if covered >= MIN_COVERED * span else []


def _signature(calls: Ints, first: int, last: int) -> bytes:
    """The collectives of some launches, in order."""
    called = calls[first : last + 1]
    return bytes(called[called != 0].tobytes())


def _threads(launches: Launches, model: tuple[int, int]) -> list[int] | None:
    """Threads that launch a good part of the rank's work; None where a step lacks one of them.

    The backward pass has a thread of its own in PyTorch: what is repeated on that thread alone is
    a layer whose parameters are updated as soon as they have a gradient, not a step.
    """
    import numpy as np

    threads, counts = np.unique(launches.thread, return_counts=True)
    main = threads[counts >= THREAD_SHARE * len(launches)]
    used = launches.thread[model[0] : model[1] + 1]
    listed: list[int] = main.tolist()
    return listed if set(listed) <= set(used.tolist()) else None


# --- the run -------------------------------------------------------------------------------------


def infer_steps(
    con: duckdb.DuckDBPyConnection,
    context: pa.Table,
    marked: pa.Table,
    matched: Matched,
) -> pa.Table | None:
    """Rows of ``step`` for the sources that mark none; None where there are none.

    ``context``: source_id, attempt, rank, capture_id; ``marked``: the steps of markers. Equal
    steps have equal numbers on all ranks, which ``matched`` collectives tell.
    """
    known: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in marked.to_pylist():
        known[row["source_id"]].append(row)
    placed = {
        row["source_id"]: (row["attempt"], row["capture_id"], row["rank"])
        for row in context.to_pylist()
        if row["rank"] is not None
    }
    steps: dict[int, list[dict[str, Any]]] = {}
    for source_id in sorted(placed.keys() - known.keys()):
        launches = _read(con, source_id)
        listed = _rows(launches, source_id, cells(launches))
        if listed:
            steps[source_id] = listed
    if not steps:
        return None
    _align(steps, known, placed, matched)
    kept: dict[tuple[int, int, int, int], dict[str, Any]] = {}
    for source_id, listed in steps.items():
        attempt, capture, rank = placed[source_id]
        for row in listed:
            row |= {"attempt": attempt, "capture_id": capture, "rank": rank}
            # A second source of a rank in one capture may show the same step again.
            kept.setdefault((attempt, rank, capture, row["step"]), row)
    rows = [kept[k] for k in sorted(kept)]
    return _table(rows)


def _read(con: duckdb.DuckDBPyConnection, source_id: int) -> Launches:
    import numpy as np

    rows = con.sql(_LAUNCHES, params={"source_id": source_id}).to_arrow_table()
    # Not ORDER BY: a run's connections do not keep the order of what they hand over.
    keys = [rows[c].to_numpy() for c in ("place", "start_ns", "at")]
    rows = rows.take(np.lexsort(keys)) if len(rows) else rows
    names = rows["name"].combine_chunks().dictionary_encode()
    codes = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    listed = names.dictionary.to_pylist()
    by_range = rows["is_in_update"].to_numpy(zero_copy_only=False)
    is_by_range = bool(by_range.any())
    named = np.array([bool(UPDATE.search(n)) for n in listed], np.bool_)
    update = by_range if is_by_range else named[codes] if len(listed) else by_range
    calls = []
    for column in ("sized_call", "call"):
        encoded = rows[column].combine_chunks().dictionary_encode()
        values = encoded.dictionary.to_pylist()
        number = np.array([0 if v == "" else i + 1 for i, v in enumerate(values)], np.int64)
        at = encoded.indices.to_numpy(zero_copy_only=False)
        calls.append(number[at] if len(values) else np.zeros(0, np.int64))
    if (calls[0] != 0).sum() != (calls[1] != 0).sum():
        calls = calls[1:]  # sizes of some are unknown
    return Launches(
        at=rows["at"].to_numpy(),
        done=rows["done"].to_numpy(),
        start=rows["start_ns"].to_numpy(),
        end=rows["end_ns"].to_numpy(),
        name=codes,
        thread=rows["thread"].to_numpy(),
        is_input=rows["is_input"].to_numpy(zero_copy_only=False),
        is_compute=rows["is_compute"].to_numpy(zero_copy_only=False),
        is_update=update,
        calls=tuple(calls),
        is_by_range=is_by_range,
    )


def _rows(launches: Launches, source_id: int, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One step follows another without a gap: waiting for input belongs to the step after it."""
    rows = []
    for cell in cells:
        first, last = cell.first, cell.last
        start = int(launches.at[0]) - FIRST_NS if first == 0 else _border(launches, first)
        end = _border(launches, last + 1)
        rows.append(
            {
                "source_id": source_id,
                "step": cell.number,
                "file_step": cell.number,
                "start_ns": start,
                "end_ns": end,
                "dur_ns": end - start,
                "gpu_start_ns": int(launches.start[first : last + 1].min()),
                "gpu_end_ns": int(launches.end[first : last + 1].max()),
                "is_partial": False,
                "step_source": "optimizer" if launches.is_by_range else "period",
            }
        )
    return rows


def _border(launches: Launches, following: int) -> int:
    """Between a launch and the one before it: at the end of that call, where it ended by then.

    Threads may launch at the same moment; then it is in the middle of the two starts, so that
    rounding on another clock moves no launch across.
    """
    before = int(launches.done[following - 1])
    if following == len(launches):
        return max(before, int(launches.at[-1]) + 1)
    at = int(launches.at[following])
    since = int(launches.at[following - 1])
    return before if since < before < at else (since + at + 1) // 2


def _align(
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


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of ``step``, with the warm-up of each capture."""
    import pyarrow as pa

    from tracekit.derive.steps import warm_steps
    from tracekit.schema import table

    longest: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for row in rows:
        capture = longest[row["attempt"], row["capture_id"]]
        capture[row["step"]] = max(capture.get(row["step"], 0), row["dur_ns"])
    warm = warm_steps(longest)
    for row in rows:
        row["is_warmup"] = (row["attempt"], row["capture_id"], row["step"]) in warm
    schema = table("step").arrow_schema()
    return pa.table([pa.array([r.get(f.name) for r in rows], f.type) for f in schema], schema)
