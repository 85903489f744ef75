"""Which rows of ``collective`` are one instance of one operation.

By communicator and sequence number where the trace has both; else by communicator and order,
with a search for windows that do not begin with the same call; send and receive by their pair.
What was put together is then checked: operation, size and type must agree, and nobody may leave
a synchronising operation before the last member has entered it. What fails is kept as an
instance that carries no claim, with the reason; nothing is forced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tracekit.derive.align import find_shift
from tracekit.derive.calls import NOBODY, Calls, Lane, SomeCalls
from tracekit.derive.groups import Communicator, Group, infer
from tracekit.derive.pairs import HOST_SLACK_NS, pair_lanes
from tracekit.derive.stage import relations

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from tracekit.derive.calls import Ints

METHODS = ("sequence", "order", "pair")
MAX_SWAPPED = 16
"""Calls that threads may have begun in another order than they were asked for, one beside another:
more that differ are other calls."""
MAX_BETWEEN = 2
"""Distance of two that differ in one such run: what is between them may be of one's kind."""
MAX_PARTS = 64
"""Parts that communicators are handed out in, about equally large: more than there are workers,
since some are slower, and few enough that each is worth its way."""
LEAST_HANDED = 2
"""Of one communicator alone there is nothing to divide."""
Columns = Mapping[str, "Ints"]
Numbering = Callable[[Sequence[Columns]], Iterable[tuple[int, Columns, Mapping[int, str]]]]
"""Has ``number_part`` done for some parts, by whoever: of each its index and what that gave."""
_NUMBERED_BY = ("sequence", "step", "start_ns", "end_ns", "thread")
SLACK_NS = 50_000
"""Start and end of a kernel are converted from the device's clock: this much is no violation."""

_GROUPS = """
SELECT DISTINCT x.attempt, p.group_id, p.name, p.description, p.group_size, p.ranks,
       coalesce(p.is_ranks_complete, false) AS is_complete
FROM process_group p JOIN derive_context x USING (source_id)
WHERE p.group_id IS NOT NULL
ORDER BY ALL
"""


class Matched(Struct):
    """The calls with their communicator, instance, and what speaks against it."""

    calls: Calls
    communicators: list[Communicator]
    communicator: Ints
    """Index into communicators by row; NOBODY where the row belongs to none."""
    call: Ints
    """Ordinal of the call within its communicator, the same on all members."""
    method: Ints
    """Index into METHODS."""
    groups: dict[int, list[Group]]
    """What the sources of each attempt list."""

    def order(self) -> tuple[Ints, Ints]:
        """Rows of instances, sorted by instance, and where each instance begins among them."""
        import numpy as np

        rows = np.flatnonzero(self.communicator != NOBODY)
        rows = rows[
            np.lexsort((self.calls["rank"][rows], self.call[rows], self.communicator[rows]))
        ]
        if not len(rows):
            return rows, np.zeros(0, np.int64)
        key_a, key_b = self.communicator[rows], self.call[rows]
        is_new = np.ones(len(rows), bool)
        is_new[1:] = (key_a[1:] != key_a[:-1]) | (key_b[1:] != key_b[:-1])
        return rows, np.flatnonzero(is_new)


def match(
    calls: Calls,
    world_sizes: Mapping[int, int | None],
    groups: dict[int, list[Group]],
    number: Numbering | None = None,
) -> Matched:
    """Match all calls. ``world_sizes`` and what the sources list as ``groups`` by attempt.

    Calls of different communicators never match, so ``number`` may have each one's numbered
    elsewhere; the answer is the same.
    """
    import numpy as np

    communicators: list[Communicator] = []
    by_capture: dict[tuple[int, int], list[Lane]] = defaultdict(list)
    for lane in calls.lanes:
        by_capture[lane.attempt, lane.capture].append(lane)
    for (attempt, _), lanes in sorted(by_capture.items()):
        listed = groups.get(attempt, [])
        pairs = [lane for lane in lanes if lane.name.endswith("#p2p")]
        named = [lane for lane in lanes if lane.name.startswith("g") and lane not in pairs]
        rest = [lane for lane in lanes if lane not in named and lane not in pairs]
        communicators += _of_named(calls, named, listed)
        communicators += infer(calls, rest, listed, world_sizes.get(attempt))
        communicators += pair_lanes(calls, pairs, listed)
    matched = Matched(
        calls,
        communicators,
        np.full(len(calls), NOBODY, np.int64),
        np.full(len(calls), NOBODY, np.int64),
        np.full(len(calls), NOBODY, np.int64),
        groups,
    )
    handed = _numbered_by(matched, number) if number is not None else frozenset()
    for index, communicator in enumerate(communicators):
        if index not in handed:
            _number(matched, index, communicator)
    return matched


def read_groups(con: duckdb.DuckDBPyConnection, context: pa.Table) -> dict[int, list[Group]]:
    """The groups that the sources of each attempt list; the fullest word on each."""
    with relations(con, derive_context=context):
        rows = con.execute(_GROUPS).fetchall()
    by_attempt: dict[int, dict[tuple[str, str | None], Group]] = defaultdict(dict)
    for attempt, group_id, name, description, size, ranks, is_complete in rows:
        known = by_attempt[attempt].get((group_id, name))
        if known is None or (is_complete and not known.is_complete):
            members = tuple(sorted(ranks or ()))
            group = Group(group_id, members, name, description, size, bool(is_complete))
            by_attempt[attempt][group_id, name] = group
    return {attempt: list(groups.values()) for attempt, groups in by_attempt.items()}


def _of_named(calls: Calls, lanes: Sequence[Lane], listed: Sequence[Group]) -> list[Communicator]:
    """Communicators whose group the rows state."""
    by_group: dict[str, dict[str, list[Lane]]] = defaultdict(lambda: defaultdict(list))
    for lane in lanes:
        group_id, _, name = lane.name[1:].partition("/")
        by_group[group_id][name].append(lane)
    known = {g.group_id: g for g in reversed(listed)}
    communicators = []
    for group_id, names in sorted(by_group.items()):
        for suffix, members in _communicators(calls, names):
            first = members[0]
            lanes_by_rank = {lane.rank: lane.rows for lane in members}
            group = next(
                (g for g in listed if g.group_id == group_id and g.name == suffix),
                known.get(group_id),
            )
            sizes = calls["group_size"][first.rows]
            size = int(sizes.max()) if sizes.max() > 0 else (group.size if group else None)
            communicators.append(
                Communicator(
                    first.attempt,
                    first.capture,
                    group_id if len(names) == 1 or not suffix else f"{group_id}/{suffix}",
                    "file",
                    lanes_by_rank,
                    members_count=size,
                    group=group,
                    clocks={lane.rank: lane.clock_id for lane in members},
                )
            )
    return communicators


def _communicators(
    calls: Calls, names: Mapping[str, Sequence[Lane]]
) -> list[tuple[str, list[Lane]]]:
    """Two communicators may have the same members: then their names tell them apart.

    Names that members do not share are each rank's own word for one communicator. Sources of two
    kinds each have their own names for several: those that carry the same kinds of call are one.
    """
    if len(names) == 1:
        return [(name, list(lanes)) for name, lanes in names.items()]
    ranks = [{lane.rank for lane in lanes} for lanes in names.values()]
    if all(not a & b for i, a in enumerate(ranks) for b in ranks[i + 1 :]):
        return [("", [lane for lanes in names.values() for lane in lanes])]
    alike: dict[frozenset[int], list[str]] = defaultdict(list)
    for name, lanes in sorted(names.items()):
        alike[frozenset(k for lane in lanes for k in calls.kind[lane.rows].tolist())].append(name)
    named = []
    for same in alike.values():
        members = [lane for name in same for lane in names[name]]
        if len({lane.rank for lane in members}) == len(members):
            named.append((same[0], members))
        else:
            named += [(name, list(names[name])) for name in same]
    return sorted(named, key=lambda f: f[0])


# --- numbering the calls ------------------------------------------------------------------------


def _number(matched: Matched, index: int, communicator: Communicator) -> None:
    """Give the communicator's rows their call numbers, by sequence or by order."""
    import numpy as np

    calls = matched.calls
    if communicator.is_pair:
        _by_order(matched, index, communicator, METHODS.index("pair"))
        return
    rows = np.concatenate(list(communicator.lanes.values()))
    sequences = calls["sequence"][rows]
    if (sequences != NOBODY).all():
        within = {rank: _within(calls, lane) for rank, lane in communicator.lanes.items()}
        # Numbers are the trace's own unless it repeats them.
        spread = max(int(w.max(initial=0)) for w in within.values()) + 1
        for rank, lane in communicator.lanes.items():
            matched.communicator[lane] = index
            matched.call[lane] = calls["sequence"][lane] * spread + within[rank]
            matched.method[lane] = METHODS.index("sequence")
        return
    _by_order(matched, index, communicator, METHODS.index("order"))


def _numbered_by(matched: Matched, number: Numbering) -> frozenset[int]:
    """Have the calls of communicators numbered, and which: those of several ranks. Pairs match as
    they were put together, and what is refused has no numbers."""
    handed = [
        i
        for i, c in enumerate(matched.communicators)
        if not c.is_pair and not c.refusal and len(c.lanes) > 1
    ]
    if len(handed) < LEAST_HANDED:
        return frozenset()
    parts = _parts(matched, handed)
    rows_of = [rows for rows, _ in parts]
    for which, told, refusals in number([columns for _, columns in parts]):
        for name in ("communicator", "call", "method"):
            getattr(matched, name)[rows_of[which]] = told[name]
        for index, refusal in refusals.items():
            matched.communicators[index].refusal = refusal
    return frozenset(handed)


def _parts(matched: Matched, handed: Sequence[int]) -> list[tuple[Ints, dict[str, Ints]]]:
    """Communicators dealt out in order: rows of the calls, and the columns that number them."""
    import numpy as np

    calls = matched.calls
    lanes = [
        (index, rank, matched.communicators[index].clocks.get(rank, NOBODY), rows)
        for index in handed
        for rank, rows in matched.communicators[index].lanes.items()
    ]
    least = sum(len(rows) for *_, rows in lanes) / MAX_PARTS
    dealt: list[list[tuple[int, int, int, Ints]]] = [[]]
    count = 0
    for lane in lanes:
        if count >= least and dealt[-1][-1][0] != lane[0]:
            dealt.append([])
            count = 0
        dealt[-1].append(lane)
        count += len(lane[-1])
    parts = []
    for some in dealt:
        rows = np.concatenate([lane_rows for *_, lane_rows in some])
        counts = [len(lane_rows) for *_, lane_rows in some]
        columns = {
            name: np.repeat(np.array([lane[place] for lane in some], np.int64), counts)
            for place, name in enumerate(("communicator", "rank", "clock_id"))
        }
        columns |= {name: calls[name][rows] for name in _NUMBERED_BY}
        columns["kind"] = calls.kind[rows]
        columns["is_synchronising"] = calls.is_synchronising[rows].astype(np.int64)
        columns["is_on_host"] = calls.is_on_host[rows].astype(np.int64)
        parts.append((rows, columns))
    return parts


def number_part(columns: Columns) -> tuple[dict[str, Ints], dict[int, str]]:
    """The numbers of the calls of some communicators: columns ``communicator``, ``call`` and
    ``method`` of ``Matched`` by row, and why a communicator's calls have none."""
    import numpy as np

    count = len(columns["kind"])
    index, rank = columns["communicator"], columns["rank"]
    is_new = np.ones(count, bool)
    is_new[1:] = (index[1:] != index[:-1]) | (rank[1:] != rank[:-1])
    starts = np.flatnonzero(is_new)
    some: dict[int, Communicator] = {}
    for rows in np.split(np.arange(count), starts[1:]):
        at = int(index[rows[0]])
        one = some.setdefault(at, Communicator(0, 0, "", "file", {}))
        one.lanes[int(rank[rows[0]])] = rows
        one.clocks[int(rank[rows[0]])] = int(columns["clock_id"][rows[0]])
    nobody = [np.full(count, NOBODY, np.int64) for _ in range(3)]
    calls = SomeCalls({}, dict(columns))  # its columns are all it has
    matched = Matched(calls, [], nobody[0], nobody[1], nobody[2], {})
    for at, communicator in some.items():
        _number(matched, at, communicator)
    told = {name: getattr(matched, name) for name in ("communicator", "call", "method")}
    return told, {at: c.refusal for at, c in some.items() if c.refusal}


def _within(calls: Calls, rows: Ints) -> Ints:
    """Operations that were launched together share a number: their order tells them apart."""
    import numpy as np

    sequences = calls["sequence"][rows]
    by_sequence = np.argsort(sequences, kind="stable")
    ordered = sequences[by_sequence]
    numbers = np.empty(len(rows), np.int64)
    numbers[by_sequence] = np.arange(len(rows)) - np.searchsorted(ordered, ordered, side="left")
    return numbers


def _by_order(matched: Matched, index: int, communicator: Communicator, method: int) -> None:
    import numpy as np

    calls = matched.calls
    lanes = communicator.lanes
    reference = max(lanes, key=lambda rank: (len(lanes[rank]), -rank))
    shifts: dict[int, int] = {reference: 0}
    for rank, rows in lanes.items():
        if rank == reference or communicator.refusal:
            continue
        if communicator.is_pair:
            shifts[rank] = 0
            continue
        clocks = communicator.clocks
        shift = find_shift(
            calls, lanes[reference], rows, is_one_clock=clocks[rank] == clocks[reference]
        )
        if shift.value is None:
            communicator.refusal = communicator.refusal or f"rank {rank}: {shift.reason}"
            break
        shifts[rank] = shift.value
    if communicator.refusal:
        for rows in lanes.values():
            matched.method[rows] = method
        return
    # Call i of the reference is call i + shift of the member.
    lowest = min(-shift for shift in shifts.values())
    for rank, rows in lanes.items():
        matched.communicator[rows] = index
        in_order = rows
        if rank != reference and not communicator.is_pair:
            in_order = _as_asked(calls, lanes[reference], rows, shifts[rank])
        matched.call[in_order] = np.arange(len(rows)) - shifts[rank] - lowest
        matched.method[rows] = method


def _as_asked(calls: Calls, reference: Ints, rows: Ints, shift: int) -> Ints:
    """The rows of a member in the order of the reference's calls, where threads that work side by
    side (gloo's) began neighbouring ones in another: which of them gets ahead is chance, and the
    calls themselves are the same ones."""
    import numpy as np

    first, last = max(0, shift), min(len(rows), len(reference) + shift)
    if (
        last <= first
        or not calls.is_on_host[rows].all()
        or len(np.unique(calls["thread"][rows])) < 2
    ):
        return rows
    ours = calls.kind[reference[first - shift : last - shift]]
    theirs = calls.kind[rows[first:last]]
    differ = np.flatnonzero(ours != theirs)
    if not len(differ):
        return rows
    in_order = rows.copy()
    for run in np.split(differ, np.flatnonzero(np.diff(differ) > MAX_BETWEEN) + 1):
        begin, end = int(run[0]), int(run[-1]) + 1
        by_kind = np.argsort(ours[begin:end], kind="stable")
        their_kinds = np.argsort(theirs[begin:end], kind="stable")
        is_same = ours[begin:end][by_kind] == theirs[begin:end][their_kinds]
        if end - begin <= MAX_SWAPPED and is_same.all():
            in_order[first + begin + by_kind] = rows[first + begin + their_kinds]
    return in_order


# --- checking and writing -----------------------------------------------------------------------


def match_table(matched: Matched, errors_ns: Mapping[int, int]) -> pa.Table:
    """The rows of ``collective_match``; times of the calls must be on the job's clock.

    ``errors_ns`` is the error of each clock.
    """
    import numpy as np
    import pyarrow as pa

    from tracekit import arrays
    from tracekit.schema import table

    calls = matched.calls
    rows, starts = matched.order()
    reasons = _reasons(matched, rows, starts, errors_ns)
    counts = np.diff(np.append(starts, len(rows)))
    instance = np.repeat(np.arange(len(starts)), counts)
    order = np.full(len(calls), NOBODY, np.int64)
    order[rows] = np.arange(len(rows))
    known = order != NOBODY
    refused = _refused_reasons(matched)
    texts, groups = [], []
    group_of = [c.group_id for c in matched.communicators]
    for row in range(len(calls)):
        if known[row]:
            texts.append(reasons[instance[order[row]]])
            groups.append(group_of[matched.communicator[row]])
        else:
            texts.append(refused.get(row, "not matched"))
            groups.append(None)
    trusted = np.array([t == "" or t.endswith("members traced") for t in texts], bool) & known
    columns: dict[str, Any] = {
        "source_id": arrays.int32s(calls["source_id"]),
        "place": arrays.column(calls["place"]),
        "instance_id": arrays.column(
            np.where(known, instance[np.where(known, order, 0)] if len(rows) else 0, 0), ~known
        ),
        "call_index": arrays.column(matched.call, ~known),
        "method": [METHODS[m] if m != NOBODY else None for m in matched.method.tolist()],
        "is_trusted": arrays.column(trusted),
        "reason": [t or "all members agree" for t in texts],
        "group_id": groups,
    }
    schema = table("collective_match").arrow_schema()
    for field in schema:
        if not isinstance(columns[field.name], pa.Array):
            columns[field.name] = pa.array(columns[field.name], field.type)
    return pa.table([columns[f.name] for f in schema], schema)


def _refused_reasons(matched: Matched) -> dict[int, str]:
    return {
        int(row): communicator.refusal
        for communicator in matched.communicators
        if communicator.refusal
        for rows in communicator.lanes.values()
        for row in rows
    }


def _reasons(matched: Matched, rows: Ints, starts: Ints, errors_ns: Mapping[int, int]) -> list[str]:
    """Why each instance carries no claim; empty where it may."""
    import numpy as np

    if not len(starts):
        return []
    calls = matched.calls
    counts = np.diff(np.append(starts, len(rows)))
    reasons = np.full(len(starts), "", dtype=object)
    expected = np.array(
        [
            matched.communicators[c].members_count or NOBODY
            for c in matched.communicator[rows[starts]].tolist()
        ]
    )
    fewer = counts < expected
    reasons[fewer] = [
        f"{n} of {of} members traced"
        for n, of in zip(counts[fewer].tolist(), expected[fewer].tolist(), strict=True)
    ]
    reasons[_is_broken(matched, rows, starts, errors_ns)] = "a member left before the last entered"
    is_pair = np.array([c.is_pair for c in matched.communicators])[
        matched.communicator[rows[starts]]
    ]
    sized = np.isin(
        calls["op"], [i for i, name in enumerate(calls.op_names) if name not in ("all_to_all",)]
    )
    for column, words in (("message_bytes", "sizes differ"), ("dtype", "types differ")):
        values = calls[column][rows]
        blank = NOBODY if column == "message_bytes" else calls.code(column, "")
        differs = _differs(values, starts, values != blank) & sized[rows[starts]]
        reasons[differs] = words
    operations = _differs(calls["op"][rows], starts, np.ones(len(rows), bool)) & ~is_pair
    reasons[operations] = "operations differ"
    reasons[np.logical_or.reduceat(calls["is_cut"][rows] == 1, starts)] = "cut by the window"
    reasons[counts == 1] = "no other member was traced"
    return [str(text) for text in reasons]


def _differs(values: Ints, starts: Ints, is_known: npt.NDArray[np.bool_]) -> Any:
    """Instances whose known values are not all the same."""
    import numpy as np

    big = np.iinfo(np.int64).max
    low = np.minimum.reduceat(np.where(is_known, values, big), starts)
    high = np.maximum.reduceat(np.where(is_known, values, -big), starts)
    return (low != big) & (low != high)


def _is_broken(
    matched: Matched, rows: Ints, starts: Ints, errors_ns: Mapping[int, int]
) -> npt.NDArray[np.bool_]:
    """Instances that a member left (beyond the clocks' error) before the last had entered."""
    import numpy as np

    calls = matched.calls
    error = np.zeros(len(rows), np.int64)
    for clock, error_ns in errors_ns.items():
        error[calls["clock_id"][rows] == clock] = error_ns
    start, end = calls["start_ns"][rows], calls["end_ns"][rows]
    last_in = np.maximum.reduceat(start - error, starts)
    first_out = np.minimum.reduceat(end + error, starts)
    binding = np.logical_and.reduceat(calls.is_synchronising[rows], starts)
    broken = binding & (last_in > first_out + SLACK_NS)
    is_send = calls["op"][rows] == calls.code("op", "send")
    is_pair = np.array([c.is_pair for c in matched.communicators] or [False])[
        matched.communicator[rows[starts]]
    ]
    big = np.iinfo(np.int64).max
    sent = np.minimum.reduceat(np.where(is_send, start - error, big), starts)
    received = np.minimum.reduceat(np.where(is_send, big, end + error), starts)
    on_host = calls["timeline"][rows[starts]] == calls.code("timeline", "host")
    slack = np.where(on_host, HOST_SLACK_NS, SLACK_NS)
    impossible = (sent != big) & (received != big) & (sent - slack > received)
    return np.where(is_pair, impossible, broken)


def group_table(matched: Matched, kinds: Mapping[str, tuple[str, str]]) -> pa.Table:
    """The rows of ``comm_group``; ``kinds`` maps a group's id to its kind and where from."""
    import pyarrow as pa

    from tracekit.schema import table

    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for c in matched.communicators:
        if c.refusal:
            continue
        members = c.group.ranks if c.group is not None and c.group.is_complete else None
        kind, source = kinds.get(c.group_id, (None, None))
        row = rows.setdefault(
            (c.attempt, c.group_id),
            {
                "attempt": c.attempt,
                "group_id": c.group_id,
                "group_source": c.group_source,
                "name": c.group.name if c.group else None,
                "description": c.group.description if c.group else None,
                "ranks": members,
                "members_count": c.members_count,
                "kind": kind,
                "kind_source": source,
                "traced": set(),
            },
        )
        row["traced"] |= set(c.lanes)
    listed = []
    for key in sorted(rows):
        row = rows[key]
        row["traced_ranks"] = sorted(row.pop("traced"))
        row["ranks"] = sorted(row["ranks"]) if row["ranks"] is not None else None
        listed.append(row)
    schema = table("comm_group").arrow_schema()
    return pa.table([pa.array([r.get(f.name) for r in listed], f.type) for f in schema], schema)
