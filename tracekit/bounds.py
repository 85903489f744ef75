"""Bounds between clocks, and what follows from them along chains.

A bound from clock c to clock d is the most by which the offset of c may exceed that of d. What
follows from all of them together is the shortest path from c to d. Every matched operation bounds
each pair of its members, so as edges there would be members squared of them; but who entered and
who left meet in the operation itself. Each operation of a large group is therefore a node of its
own: into it by the entries, out of it by the exits. Searches go from one clock and follow only what
they improve, so nothing here takes the square of the clocks in time or memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

UNBOUND = float("inf")

FEW_NODES = 32
"""Of so many clocks the meetings are looked up one by one; of more, every meeting is asked."""


class Meetings(Struct, frozen=True):
    """Operations (rows) in which many clocks (columns) meet.

    By one row, the offset of c exceeds that of d by at most ``exit_ns[d] - entry_ns[c]``. Each row
    may count from a zero of its own. Who does not enter has -inf, who does not leave has inf.
    """

    clocks: Ints
    entry_ns: Floats
    exit_ns: Floats


def without_own(entry_ns: Floats, exit_ns: Floats) -> tuple[Floats, Floats]:
    """The same meetings where nobody who left before he entered meets himself: such a row says
    nothing about one clock alone, and all it says about two.

    Those who are in order meet each other as before, and these others. Of the others each pair is
    parted by one bit of their numbers: the one enters where the other leaves.
    """
    import numpy as np

    is_back = exit_ns < entry_ns
    rows = is_back.any(axis=1)
    if not rows.any():
        return entry_ns, exit_ns
    entries, exits = [entry_ns], [np.where(is_back, UNBOUND, exit_ns)]
    back, entry, leaving = is_back[rows], entry_ns[rows], exit_ns[rows]
    entries.append(np.where(back, -UNBOUND, entry))
    exits.append(np.where(back, leaving, UNBOUND))
    number = np.cumsum(back, axis=1) - 1
    for bit in range(int(back.sum(axis=1).max() - 1).bit_length()):
        is_set = (number >> bit & 1).astype(bool)
        for goes_in in (is_set, ~is_set):
            entries.append(np.where(back & goes_in, entry, -UNBOUND))
            exits.append(np.where(back & ~goes_in, leaving, UNBOUND))
    return np.concatenate(entries), np.concatenate(exits)


class Bounds:
    """Bounds between ``count`` clocks, numbered from 0: edges (from, to, ns) and meetings."""

    def __init__(
        self, count: int, source: Ints, target: Ints, room_ns: Floats, meetings: Iterable[Meetings]
    ) -> None:
        """Of several edges between two clocks the least counts."""
        import numpy as np

        order = np.lexsort((room_ns, target, source))
        source, target, room_ns = source[order], target[order], room_ns[order]
        is_least = np.ones(len(source), bool)
        is_least[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
        self.count = count
        self.source, self.target = source[is_least], target[is_least]
        self.room_ns = room_ns[is_least]
        # Small ones first: what they bound tightly, larger ones need not tell again.
        self.meetings = sorted(meetings, key=lambda m: len(m.clocks))
        self._first = np.searchsorted(self.source, np.arange(count + 1))
        self.least_exit_ns = [m.exit_ns.min(axis=1) for m in self.meetings]
        self._met: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        for index, met in enumerate(self.meetings):
            for column, clock in enumerate(met.clocks.tolist()):
                self._met[clock].append((index, column))

    def widened(self, slack_ns: float) -> Bounds:
        """Every bound by so much wider."""
        if not slack_ns:
            return self
        meetings = [Meetings(m.clocks, m.entry_ns - slack_ns, m.exit_ns) for m in self.meetings]
        return Bounds(self.count, self.source, self.target, self.room_ns + slack_ns, meetings)

    def with_edges(self, rooms_ns: Mapping[tuple[int, int], float]) -> Bounds:
        """These bounds and further ones."""
        import numpy as np

        pairs = np.array(list(rooms_ns), np.int64).reshape(-1, 2)
        return Bounds(
            self.count,
            np.concatenate([self.source, pairs[:, 0]]),
            np.concatenate([self.target, pairs[:, 1]]),
            np.concatenate([self.room_ns, np.array(list(rooms_ns.values()), float)]),
            self.meetings,
        )

    def corrected(self, offsets_ns: Floats) -> Bounds:
        """What is left of each bound once every clock is corrected by its offset."""
        rooms = self.room_ns - offsets_ns[self.source] + offsets_ns[self.target]
        meetings = [
            Meetings(m.clocks, m.entry_ns + offsets_ns[m.clocks], m.exit_ns + offsets_ns[m.clocks])
            for m in self.meetings
        ]
        return Bounds(self.count, self.source, self.target, rooms, meetings)

    def reversed(self) -> Bounds:
        """Every path the other way."""
        meetings = [Meetings(m.clocks, -m.exit_ns, -m.entry_ns) for m in self.meetings]
        return Bounds(self.count, self.target, self.source, self.room_ns, meetings)

    def edges_of(self, nodes: Ints) -> Ints:
        """The edges that leave some clocks, by their numbers."""
        import numpy as np

        first = self._first[nodes]
        counts = self._first[nodes + 1] - first
        begin = np.cumsum(counts) - counts
        return np.repeat(first - begin, counts) + np.arange(counts.sum())

    def meetings_of(self, nodes: Ints) -> Iterator[tuple[int, Ints]]:
        """The meetings of some clocks, by their numbers, and the columns of these clocks."""
        import numpy as np

        if len(nodes) <= FEW_NODES:
            few: dict[int, list[int]] = defaultdict(list)
            for node in nodes.tolist():
                for index, column in self._met[node]:
                    few[index].append(column)
            for index in sorted(few):
                yield index, np.array(few[index])
            return
        is_asked = np.zeros(self.count, bool)
        is_asked[nodes] = True
        for index, group in enumerate(self.meetings):
            columns = np.flatnonzero(is_asked[group.clocks])
            if len(columns):
                yield index, columns

    @cached_property
    def least_into_ns(self) -> Floats:
        """The least bound by which each clock is reached from any other."""
        import numpy as np

        least = np.full(self.count, UNBOUND)
        np.minimum.at(least, self.target, self.room_ns)
        for group in self.meetings:
            # Its own entry may be the last: less than is possible, never more.
            into = group.exit_ns - group.entry_ns.max(axis=1, keepdims=True)
            least[group.clocks] = np.minimum(least[group.clocks], into.min(axis=0, initial=UNBOUND))
        return least

    def allow_zero(self) -> bool:
        """Whether all offsets may be zero: then no chain either asks for anything else."""
        least = [m.exit_ns.min(axis=1) - m.entry_ns.max(axis=1) for m in self.meetings]
        return all(bool((room >= 0).all()) for room in (self.room_ns, *least))

    def solution_ns(self) -> Floats | None:
        """Offsets that keep all bounds, in the middle of those that are as late and as early as
        can be; None where some chain leads back with less than nothing."""
        late = self._nearest_ns()
        early = None if late is None else self.reversed()._nearest_ns()
        return None if late is None or early is None else (early - late) / 2

    def _nearest_ns(self) -> Floats | None:
        """Each clock's least sum from any other, or zero.

        Bellman and Ford's search from all clocks at once. Where a chain leads back with less than
        nothing, the clocks by which the others were reached last form a circle before long, and
        such a circle is always one that does (R. E. Tarjan, Shortest Paths, 1981).
        """
        import numpy as np

        parents = np.full(self.count, -1, np.int64)
        search = Search(self, np.zeros(self.count), parents)
        active = np.arange(self.count)
        for _ in range(self.count):
            active = search.step(active)
            if not len(active):
                return search.least_ns
            if _has_circle(parents):
                return None
        return None


def _has_circle(parents: Ints) -> bool:
    """Whether somebody is an ancestor of himself; -1 is nobody's parent."""
    import numpy as np

    root = len(parents)
    above = np.append(np.where(parents < 0, root, parents), root)
    for _ in range(root.bit_length()):
        above = above[above]
    return bool((above != root).any())


class Search:
    """Least sums along chains, from where they are known to be ``least_ns`` or less."""

    def __init__(self, bounds: Bounds, least_ns: Floats, parents: Ints | None = None) -> None:
        """``parents`` is filled with the clock by which each was reached last."""
        import numpy as np

        self.bounds = bounds
        self.least_ns = least_ns
        self._met = [np.full(len(m.entry_ns), UNBOUND) for m in bounds.meetings]
        self._parents = parents

    @classmethod
    def start(cls, bounds: Bounds, node: int) -> Search:
        """From one clock to all."""
        import numpy as np

        search = cls(bounds, np.full(bounds.count, UNBOUND))
        search.lower(node, 0.0)
        return search

    def behind(self, ahead_ns: float) -> Search:
        """A new search of which it is known that it comes to where this one began with so much."""
        other = Search(self.bounds, self.least_ns + ahead_ns)
        other._met = [m + ahead_ns for m in self._met]
        return other

    def lower(self, node: int, value_ns: float, targets: Ints | None = None) -> None:
        """What follows from a clock being that near. With ``targets`` only theirs is followed to
        the end, for which no bound may be negative."""
        import numpy as np

        if not value_ns < self.least_ns[node]:
            return
        self.least_ns[node] = value_ns
        active = np.array([node])
        wanted = None if targets is None else _Wanted(self, targets)
        # Each step goes one bound further, and no shortest chain meets a clock twice: what went on
        # longer would only be rounding.
        for _ in range(self.bounds.count):
            if wanted is not None:
                active = active[self.least_ns[active] < wanted.limit_ns()]
            if not len(active):
                return
            active = self.step(active, wanted)

    def step(self, active: Ints, wanted: _Wanted | None = None) -> Ints:
        """Follow the bounds of some clocks whose sums have become less; returns whose did now. With
        ``wanted`` not what can make no sum of those less."""
        import numpy as np

        before = self.least_ns.copy()
        self._follow_edges(active)
        for index, columns in self.bounds.meetings_of(active):
            self._meet(index, columns, wanted)
        return np.flatnonzero(self.least_ns < before)

    def _follow_edges(self, active: Ints) -> None:
        import numpy as np

        edges = self.bounds.edges_of(active)
        source, target = self.bounds.source[edges], self.bounds.target[edges]
        sums = self.least_ns[source] + self.bounds.room_ns[edges]
        is_less = sums < self.least_ns[target]
        if not is_less.any():
            return
        source, target, sums = source[is_less], target[is_less], sums[is_less]
        # Of several the least is written last.
        order = np.argsort(-sums)
        self.least_ns[target[order]] = sums[order]
        if self._parents is not None:
            self._parents[target[order]] = source[order]

    def _meet(self, index: int, columns: Ints, wanted: _Wanted | None) -> None:
        import numpy as np

        group = self.bounds.meetings[index]
        into = self.least_ns[group.clocks[columns]] - group.entry_ns[:, columns]
        met = into.min(axis=1)
        is_less = met < self._met[index]
        if wanted is not None and is_less.any():
            # Nobody leaves with less than this.
            least = met + self.bounds.least_exit_ns[index]
            limit = wanted.limit_ns()
            near = is_less & (least >= limit) & (least < wanted.most_ns())
            is_less &= least < limit
            if near.any():
                # Whoever leaves is too far for others to be reached by him.
                self._met[index][near] = met[near]
                among = wanted.columns_of(index)
                clocks = group.clocks[among]
                nearer = (met[near, None] + group.exit_ns[np.ix_(near, among)]).min(axis=0)
                self.least_ns[clocks] = np.minimum(self.least_ns[clocks], nearer)
        rows = np.flatnonzero(is_less)
        if not len(rows):
            return
        self._met[index][rows] = met[rows]
        out = met[rows, None] + group.exit_ns[rows]
        sums = out.min(axis=0)
        is_less = sums < self.least_ns[group.clocks]
        clocks = group.clocks[is_less]
        self.least_ns[clocks] = sums[is_less]
        if self._parents is not None:
            met_by = group.clocks[columns[into[rows].argmin(axis=1)]]
            self._parents[clocks] = met_by[out[:, is_less].argmin(axis=0)]


class _Wanted:
    """The clocks whose least sums a search is for, and what can still make one of them less."""

    def __init__(self, search: Search, targets: Ints) -> None:
        self._search, self._targets = search, targets
        # Where nothing leads, nothing is sought.
        into = search.bounds.least_into_ns[targets]
        self._reached, self._into_ns = targets[into < UNBOUND], into[into < UNBOUND]
        self._columns: dict[int, Ints] = {}

    def most_ns(self) -> float:
        """What is not less makes none less by itself."""

        return float(self._search.least_ns[self._reached].max(initial=-UNBOUND))

    def limit_ns(self) -> float:
        """Whose sum is not less makes none less: from him there is at least one bound to go."""

        left = self._search.least_ns[self._reached] - self._into_ns
        return float(left.max(initial=-UNBOUND))

    def columns_of(self, index: int) -> Ints:
        """Of a meeting, by its number, the columns of these clocks."""
        import numpy as np

        if index not in self._columns:
            is_wanted = np.zeros(self._search.bounds.count, bool)
            is_wanted[self._targets] = True
            clocks = self._search.bounds.meetings[index].clocks
            self._columns[index] = np.flatnonzero(is_wanted[clocks])
        return self._columns[index]
