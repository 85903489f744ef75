"""What each communicator is for (tp, pp, dp, ep, cp), and each rank's coordinates.

Names win: DeviceMesh dimensions and Megatron's group names say it. Without a name behaviour may:
pairs that send to each other are a pipeline, all-to-all is expert parallelism, many equal
all-reduces all over a step are tensor parallelism, all-reduces in one stretch of it the gradients
of data parallelism. Where it cannot be told it stays unknown, and a dimension that the job
description gives the size 1 is no communicator's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from tracekit.derive.calls import NOBODY
from tracekit.derive.groups import DEFAULT_GROUP, Communicator
from tracekit.derive.infer import group_dimension, group_purpose
from tracekit.derive.matching import Matched

if TYPE_CHECKING:
    from tracekit.derive.calls import Ints

Kind = tuple[str, str]
"""Kind and where it came from."""

DIMENSIONS = ("tp", "pp", "dp", "ep", "cp")

TENSOR_CALLS = 16
"""Tensor parallelism reduces activations at least so often a step: four times a layer."""

TENSOR_SHARE = 0.8
"""And these calls have one size, but for a few of the loss."""
TENSOR_BYTES = 1024
"""At least: the activations of a token are some kilobytes; norms, losses and metrics are less."""

EXPERT_SHARE = 0.3
"""Share of all-to-all from which a communicator is taken for expert parallelism."""


def group_kinds(matched: Matched, sizes: Mapping[str, int] | None = None) -> dict[str, Kind]:
    """The kind of every communicator that has one, by group_id.

    ``sizes``: of the parallel dimensions, as far as the job description gives them.
    """
    absent = {dimension for dimension, size in (sizes or {}).items() if size == 1}
    kinds: dict[str, Kind] = {}
    unnamed: dict[str, Communicator] = {}
    for communicator in matched.communicators:
        if communicator.refusal or communicator.group_id in kinds:
            continue
        kind = _named(matched, communicator)
        if kind is not None:
            kinds[communicator.group_id] = kind
        else:
            unnamed[communicator.group_id] = communicator
    # Some ranks' files may name their groups and others' not: the same calls are the same kind.
    kinds |= _like_siblings(matched, unnamed, kinds)
    worlds: dict[str, Communicator] = {}
    for group_id, communicator in unnamed.items():
        if group_id in kinds:
            continue
        kind = _behaving(matched, communicator)
        if kind is not None and kind[0] not in absent:
            kinds[group_id] = kind
        elif communicator.members_count is not None:
            worlds[group_id] = communicator
    for group_id in _of_the_pipeline(matched, kinds):
        worlds[group_id] = unnamed[group_id]
        del kinds[group_id]
    kinds |= _like_siblings(matched, worlds, kinds)
    for group_id, communicator in worlds.items():
        group = communicator.group
        if group is not None and (group.description == DEFAULT_GROUP or group.name == "0"):
            kinds.setdefault(group_id, ("world", "name"))
    return kinds


def _like_siblings(
    matched: Matched, unknown: Mapping[str, Communicator], known: Mapping[str, Kind]
) -> dict[str, Kind]:
    """Kinds of communicators that call what others of the same size and other members call.

    A slow group does what its siblings do, but not at the same times: times alone would give it no
    kind, and then nobody could compare it with them.
    """
    kinds: dict[tuple[object, ...], set[Kind]] = defaultdict(set)
    taken: dict[tuple[object, ...], set[int]] = defaultdict(set)
    for c in matched.communicators:
        if c.group_id in known and not c.refusal and c.group is not None and c.group.is_complete:
            kinds[_habit(matched, c)].add(known[c.group_id])
            taken[_habit(matched, c)] |= set(c.group.ranks)
    alike: dict[str, Kind] = {}
    for group_id, c in unknown.items():
        if c.group is None or not c.group.is_complete:
            continue
        habit = _habit(matched, c)
        if len(kinds[habit]) == 1 and not taken[habit] & set(c.group.ranks):
            alike[group_id] = (next(iter(kinds[habit]))[0], "behaviour")
    return alike


def _of_the_pipeline(matched: Matched, kinds: Mapping[str, Kind]) -> list[str]:
    """Guessed for data parallelism, but of ranks that send to each other and have another such.

    The stages of a pipeline also reduce something together when a step ends: embeddings that the
    first and the last share, norms of gradients, the loss.
    """
    members: dict[int, dict[str, frozenset[int]]] = defaultdict(dict)
    pairs: dict[int, set[frozenset[int]]] = defaultdict(set)
    for c in matched.communicators:
        if c.refusal or c.group is None:
            continue
        if c.is_pair:
            pairs[c.attempt].add(frozenset(c.group.ranks))
        elif c.group.is_complete and kinds.get(c.group_id) == ("dp", "behaviour"):
            members[c.attempt][c.group_id] = frozenset(c.group.ranks)
    groups_found: list[str] = []
    for attempt, groups in members.items():
        inside = {g for g, ranks in groups.items() if any(p <= ranks for p in pairs[attempt])}
        others = set().union(*(ranks for g, ranks in groups.items() if g not in inside))
        groups_found += [g for g in groups if g in inside and groups[g] <= others]
    return groups_found


def _habit(matched: Matched, communicator: Communicator) -> tuple[object, ...]:
    """Attempt, size, and what the member with most calls calls."""
    rows = max(communicator.lanes.values(), key=len)
    calls = matched.calls
    what = zip(calls["op"][rows].tolist(), calls["message_bytes"][rows].tolist(), strict=True)
    return (communicator.attempt, communicator.members_count, frozenset(what))


def _named(matched: Matched, c: Communicator) -> Kind | None:
    """The kind that the group's name says, unless its operations deny it."""
    if c.is_pair:
        return ("pp", "behaviour")
    group = c.group
    if group is None:
        return None
    kind = group_purpose(group.description, group.name)
    if kind == "dp_replicate" and not {"all_gather", "reduce_scatter"}.isdisjoint(_ops(matched, c)):
        return ("dp", "name")  # it shares something out, so its members are no plain replicas
    return (kind, "name") if kind is not None else None


def _behaving(matched: Matched, communicator: Communicator) -> Kind | None:
    """What the operations of the member with most calls look like; None where it is not clear."""
    import numpy as np

    rows = max(communicator.lanes.values(), key=len)
    calls = matched.calls
    ops = _ops(matched, communicator)
    share = {op: ops.count(op) / len(ops) for op in set(ops)}
    if share.get("all_to_all", 0) >= EXPERT_SHARE:
        return ("ep", "behaviour")
    if set(share) != {"all_reduce"}:
        return None
    steps = calls["step"][rows]
    steps_count = len(np.unique(steps[steps != NOBODY]))
    if not steps_count:
        return None
    per_step = len(rows) / steps_count
    is_late = _is_late_in_step(matched, rows, steps)
    if per_step < TENSOR_CALLS:
        return ("dp", "behaviour") if is_late else None
    # A bucket a layer, all alike: as many calls, but none in forward. Then it is not clear.
    is_alike = _one_size(calls["message_bytes"][rows]) >= TENSOR_SHARE
    return ("tp", "behaviour") if is_alike and not is_late else None


def _ops(matched: Matched, communicator: Communicator) -> list[str]:
    """What the member with most calls calls, in order."""
    rows = max(communicator.lanes.values(), key=len)
    return [matched.calls.op_names[code] for code in matched.calls["op"][rows].tolist()]


def _one_size(sizes: Ints) -> float:
    """Share of calls that have the most frequent size of activations."""
    import numpy as np

    known = sizes[sizes >= TENSOR_BYTES]
    if not len(known):
        return 0.0
    return float(np.unique(known, return_counts=True)[1].max() / len(sizes))


def _is_late_in_step(matched: Matched, rows: Ints, steps: Ints) -> bool:
    """Whether calls come in one stretch a step, as those of gradients do, not throughout it."""
    import numpy as np

    starts = matched.calls["start_ns"][rows]
    firsts = [starts[steps == s].min() for s in np.unique(steps[steps != NOBODY])]
    lasts = [starts[steps == s].max() for s in np.unique(steps[steps != NOBODY])]
    if len(firsts) < 2:
        return False
    period = float(np.median(np.diff(firsts)))
    return float(np.median(np.array(lasts) - np.array(firsts))) < 0.6 * period


def coordinates(
    rank_rows: Sequence[dict[str, Any]], matched: Matched, kinds: Mapping[str, Kind]
) -> None:
    """Fill in the coordinates of ranks whose communicators are known by kind.

    A dimension counts only where its groups are disjoint and of equal size. Where it has one
    communicator a rank, the coordinate is the rank's place among the members.
    """
    by_attempt: dict[int, list[Communicator]] = defaultdict(list)
    refused: dict[int, list[Communicator]] = defaultdict(list)
    for communicator in matched.communicators:
        by_refusal = refused if communicator.refusal else by_attempt
        by_refusal[communicator.attempt].append(communicator)
    for attempt in sorted({row["attempt"] for row in rank_rows}):
        of_attempt = [row for row in rank_rows if row["attempt"] == attempt]
        communicators = by_attempt[attempt]
        named: dict[str | None, set[tuple[int, ...]]] = defaultdict(set)
        for g in matched.groups.get(attempt, []):
            if g.is_complete:
                named[group_dimension(g.description, g.name)].add(g.ranks)
        for dimension in DIMENSIONS:
            listed = named[dimension]
            members = {
                c.group.ranks
                for c in communicators
                if kinds.get(c.group_id, ("",))[0] == dimension
                and c.group is not None
                and c.group.is_complete
                and not c.is_pair
            }
            ways = [("name", _places(listed)), ("behaviour", _places(members))]
            if dimension == "dp":
                parts = (_places(named["dp_replicate"]), _places(named["dp_shard"]))
                ways.insert(1, ("name", _joint_places(*parts)))
            if dimension == "pp":
                ways.append(("behaviour", _stages(_onward(communicators, refused[attempt]))))
            if dimension == "cp":
                onward = _onward(communicators, refused[attempt])
                ways.append(("behaviour", _rings(onward, _reducing(communicators, kinds))))
            # Known for some ranks only, it would set them apart from the others.
            source, places = next(
                ((s, p) for s, p in ways if all(row["rank"] in p for row in of_attempt)), ("", {})
            )
            if not places:
                continue
            for row in of_attempt:
                row[f"{dimension}_rank"] = places[row["rank"]]
                if row.get("coordinates_source") != "name":
                    row["coordinates_source"] = source


def _places(groups: Iterable[tuple[int, ...]]) -> dict[int, int]:
    """Place of each rank in its group; nothing where groups overlap or differ in size."""
    places: dict[int, int] = {}
    sizes = set()
    for members in groups:
        sizes.add(len(members))
        for index, rank in enumerate(sorted(members)):
            if rank in places:
                return {}
            places[rank] = index
    return places if len(sizes) == 1 else {}


def _joint_places(outer: Mapping[int, int], inner: Mapping[int, int]) -> dict[int, int]:
    """Places along two dimensions as one: shards count fastest, replicas of them slowest."""
    if not outer or not inner:
        return {**outer, **inner}
    width = max(inner.values()) + 1
    return {r: outer[r] * width + place for r, place in inner.items() if r in outer}


def _onward(*communicators: Iterable[Communicator]) -> dict[int, set[int]]:
    """To whom each rank sends. That is known of calls, too, that could not be matched: without
    these a ring would be a chain."""
    onward: dict[int, set[int]] = defaultdict(set)
    for c in chain(*communicators):
        if c.is_pair and c.group is not None:
            src, dst = c.group.ranks
            onward[src].add(dst)
    return onward


def _reducing(
    communicators: Iterable[Communicator], kinds: Mapping[str, Kind]
) -> list[frozenset[int]]:
    """Ranks that reduce gradients together."""
    return [
        frozenset(c.group.ranks)
        for c in communicators
        if c.group is not None
        and c.group.is_complete
        and kinds.get(c.group_id, ("",))[0] in ("dp", "dp_shard")
    ]


def _rings(onward: Mapping[int, set[int]], reducing: Sequence[frozenset[int]]) -> dict[int, int]:
    """Places in rings that pass blocks on, as context parallelism does (ring attention); nothing
    where a rank sends to several, or members have gradients of their own, as stages do that pass
    activations on. Of two ranks a ring cannot be told from a pipeline."""
    places: dict[int, int] = {}
    sizes = set()
    for first in sorted(onward):
        ring: list[int] = []
        rank = first
        while rank not in places and len(onward.get(rank, ())) == 1:
            places[rank] = len(ring)
            ring.append(rank)
            (rank,) = onward[rank]
        if ring and (rank != first or not any(ranks.issuperset(ring) for ranks in reducing)):
            return {}
        sizes |= {len(ring)} - {0}
    is_told = len(sizes) == 1 and min(sizes) > 2 and places.keys() == onward.keys()
    return places if is_told else {}


def _stages(onward: Mapping[int, set[int]]) -> dict[int, int]:
    """Stages of a pipeline from who sends to whom; nothing where the pairs are no plain chains."""
    neighbours: dict[int, set[int]] = defaultdict(set)
    for src, ranks in onward.items():
        for dst in ranks:
            neighbours[src].add(dst)
            neighbours[dst].add(src)
    places: dict[int, int] = {}
    for first in sorted(neighbours):
        if len(neighbours[first]) != 1 or first in places:
            continue
        before, rank, stage = None, first, 0
        while rank not in places:
            places[rank] = stage
            others = [n for n in neighbours[rank] if n != before]
            if len(others) != 1:
                break
            before, rank, stage = rank, others[0], stage + 1
    return places if set(places) == set(neighbours) else {}
