"""Clock offsets of every capture, from its matched calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracekit.clock import EARLY, LATE, Alignment, Instances, Offset, align
from tracekit.correction import Correction, corrected
from tracekit.derive.calls import Calls
from tracekit.derive.matching import Matched
from tracekit.derive.pairs import HOST_SLACK_NS, is_on_host
from tracekit.derive.placement.sources import Source
from tracekit.schema import table

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.derive.calls import Ints

Key = tuple[int, int]
"""Attempt and capture."""


def alignments(matched: Matched, used: Sequence[Source]) -> dict[Key, Alignment]:
    """What aligns each capture; nothing where all its files share one clock."""
    members: dict[Key, list[Source]] = defaultdict(list)
    for source in used:
        members[source.attempt or 0, source.capture_id or 0].append(source)
    aligned: dict[Key, Alignment] = {}
    for key, sources in sorted(members.items()):
        clocks = sorted({s.clock_id for s in sources if s.clock_id is not None})
        if len(clocks) < 2:
            continue
        starts = [s.start_ns for s in sources if s.start_ns is not None]
        ends = [s.end_ns for s in sources if s.end_ns is not None]
        aligned[key] = align(
            list(_instances(matched, key)),
            clocks,
            is_epoch=all(s.time_basis == "epoch" for s in sources),
            start_ns=min(starts, default=0),
            end_ns=max(ends, default=0),
        )
    return aligned


def _instances(matched: Matched, key: Key) -> Iterable[Instances]:
    """The synchronising instances of each communicator that spans clocks, and the pairs."""
    import numpy as np

    calls = matched.calls
    for communicator in matched.communicators:
        is_here = (communicator.attempt, communicator.capture) == key
        if not is_here or communicator.refusal or len(set(communicator.clocks.values())) < 2:
            continue
        binding = calls.is_synchronising
        chosen = {
            rank: rows if communicator.is_pair else rows[binding[rows]]
            for rank, rows in communicator.lanes.items()
        }
        if communicator.is_pair:
            chosen = _send_first(calls, chosen)
        every = np.unique(np.concatenate([matched.call[rows] for rows in chosen.values()]))
        if not len(every) or len(chosen) < 2:
            continue
        start = np.full((len(every), len(chosen)), EARLY, np.int64)
        end = np.full((len(every), len(chosen)), LATE, np.int64)
        size = np.zeros(len(every), np.int64)
        for column, rows in enumerate(chosen.values()):
            at = np.searchsorted(every, matched.call[rows])
            start[at, column] = calls["start_ns"][rows]
            end[at, column] = calls["end_ns"][rows]
            size[at] = np.maximum(size[at], calls["message_bytes"][rows])
        clocks = tuple(communicator.clocks[rank] for rank in chosen)
        if communicator.is_pair:
            if is_on_host(calls, next(iter(chosen.values()))):
                # The range of a send may begin after the data left: that much less is certain.
                end = np.where(end < LATE, end + HOST_SLACK_NS, end)
            yield Instances(clocks, start, end, size, is_pair=True)
        else:
            yield _by_clock(clocks, start, end, size)


def _send_first(calls: Calls, lanes: dict[int, Ints]) -> dict[int, Ints]:
    """The sender's column first."""
    send = calls.op_names.index("send") if "send" in calls.op_names else None
    return dict(
        sorted(lanes.items(), key=lambda item: not (calls["op"][item[1][:1]] == send).any())
    )


def _by_clock(clocks: tuple[int, ...], start: Ints, end: Ints, size: Ints) -> Instances:
    """Members that share a clock as one: its last entry, its first exit."""
    import numpy as np

    ids = sorted(set(clocks))
    columns = [[i for i, c in enumerate(clocks) if c == clock] for clock in ids]
    return Instances(
        tuple(ids),
        np.stack([start[:, c].max(axis=1) for c in columns], axis=1),
        np.stack([end[:, c].min(axis=1) for c in columns], axis=1),
        size,
    )


def offset_rows(
    offsets: Mapping[Key, Sequence[Offset]], used: Sequence[Source]
) -> list[dict[str, Any]]:
    """The rows of ``clock_offset``."""
    rows = []
    for key, listed in sorted(offsets.items()):
        spans = [
            (s.start_ns, s.end_ns)
            for s in used
            if (s.attempt or 0, s.capture_id or 0) == key and s.start_ns is not None
        ]
        first_ns = min((a for a, _ in spans), default=None)
        last_ns = max((b for _, b in spans if b is not None), default=None)
        for offset in listed:
            rows.append(
                {
                    "clock_id": offset.clock_id,
                    "offset_ns": offset.offset_ns,
                    "drift_ratio": offset.drift_ratio,
                    "valid_from_ns": offset.origin_ns or first_ns,
                    "valid_to_ns": last_ns,
                    "error_ns": offset.error_ns,
                    "method": offset.method,
                    "reference_clock_id": offset.reference_id,
                }
            )
    return rows


def pair_table(aligned: Mapping[Key, Alignment], matched: Matched) -> pa.Table:
    """``clock_pair``: clocks of the members of one communicator. As columns, for of a thousand
    clocks there are half a million pairs."""
    import numpy as np
    import pyarrow as pa

    groups: dict[Key, list[set[int]]] = defaultdict(list)
    for communicator in matched.communicators:
        if not communicator.refusal:
            key = (communicator.attempt, communicator.capture)
            groups[key].append(set(communicator.clocks.values()))
    schema = table("clock_pair").arrow_schema()
    parts = [schema.empty_table()]
    for (attempt, capture), alignment in sorted(aligned.items()):
        clocks, others, error_ns = alignment.pairs(groups[attempt, capture])
        columns = {
            "attempt": np.full(len(clocks), attempt),
            "capture_id": np.full(len(clocks), capture),
            "clock_id": clocks,
            "other_clock_id": others,
            "error_ns": error_ns,
        }
        parts.append(pa.table([pa.array(columns[f.name], f.type) for f in schema], schema))
    return pa.concat_tables(parts).combine_chunks()


def corrections(
    offsets: Mapping[Key, Sequence[Offset]], sources: Iterable[Source]
) -> dict[int, Correction]:
    """How the times of each source are put right, by source_id; none where they stay.

    Counters and logs are on a clock that some capture may have corrected. Where captures correct it
    differently, they stay: it is not known which holds.
    """
    of_capture: dict[tuple[Key, int | None], Offset] = {
        (key, o.clock_id): o for key, listed in offsets.items() for o in listed
    }
    of_clock: dict[int | None, set[Offset]] = defaultdict(set)
    for offset in of_capture.values():
        of_clock[offset.clock_id].add(offset)
    result = {}
    for source in sources:
        key = (source.attempt or 0, source.capture_id or 0)
        if source.is_used:
            moved = of_capture.get((key, source.clock_id))
        else:
            either = of_clock[source.clock_id]
            moved = next(iter(either)) if len(either) == 1 else None
        correction = _correction(source, moved)
        if correction.offset_ns or correction.drift_ratio:
            result[source.source_id] = correction
    return result


def _correction(source: Source, moved: Offset | None) -> Correction:
    """What the job description says of a source's times, then what its clock is off by."""
    if source.tick_ns is not None:
        # Its times are the numbers of rounds: each stands for tick_ns.
        drift_ratio, origin_ns = float(source.tick_ns - 1), 0
    elif moved is not None:
        drift_ratio, origin_ns = moved.drift_ratio, moved.origin_ns - source.shift_ns
    else:
        drift_ratio, origin_ns = 0.0, 0
    return Correction(source.shift_ns + (moved.offset_ns if moved else 0), drift_ratio, origin_ns)


def moved_steps(steps: pa.Table, corrections: Mapping[int, Correction]) -> pa.Table:
    """The rows of ``step`` with their times on the job's clock; durations stay the rank's own."""
    import pyarrow as pa

    if not corrections or not steps.num_rows:
        return steps
    source_ids = steps["source_id"].to_numpy()
    for index, field in enumerate(steps.schema):
        if field.name in ("start_ns", "end_ns", "gpu_start_ns", "gpu_end_ns"):
            known = steps[field.name].fill_null(0).to_numpy()
            moved = corrected(known, source_ids, corrections)
            missing = steps[field.name].is_null().to_numpy()
            steps = steps.set_column(index, field, pa.array(moved, field.type, mask=missing))
    return steps
