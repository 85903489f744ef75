"""What a step would be with the times that peers take for it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracekit.whatif.operations import Floats, Ints
from tracekit.whatif.streams.rows import Block
from tracekit.whatif.streams.windows import Window


def own_ns(block: Block) -> float:
    return float(block.host_ns.sum() + block.work_ns[block.call < 0].sum())


def _median(blocks: Sequence[Block], like: Block) -> tuple[Floats, Floats, Floats]:
    """Host time, work and lag, row by row, of blocks with the same rows.

    Stalls that come to every rank, and to each at another row, are in no row's median: so the rows
    are scaled to the median of the blocks' sums. Of two blocks the one that took less counts: with
    one slow rank of two the mean is half slow.
    """
    if len(blocks) == 2:
        blocks = [min(blocks, key=own_ns)]
    if not blocks:
        return like.host_ns, like.work_ns, like.lag_ns
    is_own = blocks[0].call < 0
    host = np.stack([b.host_ns for b in blocks])
    work = np.stack([b.work_ns for b in blocks])
    typical_host, typical_work = np.median(host, axis=0), np.median(work, axis=0)
    typical_host *= _to_sum(typical_host, host)
    typical_work[is_own] *= _to_sum(typical_work[is_own], work[:, is_own])
    return typical_host, typical_work, np.median([b.lag_ns for b in blocks], axis=0)


def _to_sum(typical: Floats, several: Floats) -> float:
    """Factor that gives typical rows the median of the sums."""
    total = float(typical.sum())
    return float(np.median(several.sum(axis=1))) / total if total > 0 else 1.0


def with_times(block: Block, shape: Block, values: tuple[Floats, Floats, Floats]) -> Block:
    """A step with the rows of another and these times; its calls stay its own."""
    call = shape.call.copy()
    call[call >= 0] = block.calls
    host, work, lag = values
    return Block(
        block.step, shape.kind, shape.stream, shape.name, call, host, work, lag,
        shape.follows_compute, shape.waits, shape.key, block.signature,
    )  # fmt: skip


class Peers:
    """Who does the same work in a step."""

    def __init__(self, window: Window) -> None:
        self.groups: dict[Any, list[tuple[int, Block]]] = defaultdict(list)
        self.of_rank: dict[Any, list[Block]] = defaultdict(list)
        self.window = window
        self._names: dict[Any, _Names] = {}
        self._usual: dict[Any, tuple[Floats, Floats, Floats] | None] = {}
        self._totals: dict[Any, tuple[float, float]] = {}
        for rank, blocks in window.ranks.items():
            for position, block in enumerate(blocks.blocks):
                self.groups[self._key(rank, position, block)].append((rank, block))
                self.of_rank[rank, block.signature].append(block)

    def _key(self, rank: int, position: int, block: Block) -> Any:
        return position, self.window.ranks[rank].stage, tuple(sorted(block.signature))

    def ideal(self, rank: int, position: int) -> Block:
        """The block's own rows with the times that peers take for them."""
        block = self.window.ranks[rank].blocks[position]
        who = self._key(rank, position, block)
        if len(self.groups[who]) < 2:
            who = rank, block.signature
        if (who, block.key) not in self._usual:
            group = self._group(who)
            same = [b for b in group if b.key == block.key]
            is_most = 2 * len(same) > len(group)
            self._usual[who, block.key] = _median(same, block) if is_most else None
        usual = self._usual[who, block.key]
        if usual is not None:
            return with_times(block, block, usual)
        if who not in self._totals:
            self._totals[who] = _totals_ns(self._group(who))
        return _scaled(block, self._totals[who])

    def _group(self, who: Any) -> list[Block]:
        """Blocks of a key of either kind."""
        of_step = self.groups.get(who)
        return self.of_rank[who] if of_step is None else [b for _, b in of_step]

    def typical(self, rank: int, position: int, without: set[int]) -> Block:
        """What peers do in this step; else what others do for operations of the same name in the
        same surroundings; where all ranks are removed, what the rank does in other steps."""
        block = self.window.ranks[rank].blocks[position]
        others = [b for r, b in self.groups[self._key(rank, position, block)] if r not in without]
        if not others and len(without) < len(self.window.ranks):
            return self._by_name(position, without).applied(block)
        if not others:
            others = self.of_rank[rank, block.signature]
        same = [b for b in others if b.signature == block.signature]
        if not same:
            return _scaled(block, _totals_ns(others)) if others else block
        counts = Counter(b.key for b in same)
        key = max(counts, key=lambda k: (counts[k], k == block.key))
        alike_blocks = [b for b in same if b.key == key]
        shape = block if block.key == key else alike_blocks[0]
        return with_times(block, shape, _median(alike_blocks, block))

    def _by_name(self, position: int, without: set[int]) -> _Names:
        key = position, frozenset(without)
        if key not in self._names:
            ranks = self.window.ranks
            self._names[key] = _Names(
                [ranks[r].blocks[position] for r in ranks if r not in without]
            )
        return self._names[key]


def _totals_ns(blocks: Sequence[Block]) -> tuple[float, float]:
    """The median of what blocks take in all: their host, and their own work."""
    hosts = [float(b.host_ns.sum()) for b in blocks]
    works = [float(b.work_ns[b.call < 0].sum()) for b in blocks]
    return float(np.median(hosts)), float(np.median(works))


def _scaled(block: Block, totals_ns: tuple[float, float]) -> Block:
    """Peers call in another order: their whole step's times."""

    def factor(typical: float, total: float) -> float:
        return typical / total if total > 0 else 1.0

    typical_host, typical_work = totals_ns
    is_own = block.call < 0
    work = block.work_ns.copy()
    work[is_own] *= factor(typical_work, float(work[is_own].sum()))
    host = block.host_ns * factor(typical_host, float(block.host_ns.sum()))
    return with_times(block, block, (host, work, block.lag_ns))


class _Names:
    """Usual times of rows by their names and their neighbours', where no peer does the same work.

    Kernels of one name differ in their shapes, so the neighbours' names must be the same too: six
    on either side, else three, else one. What is found nowhere changes as the rest does.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.usual_by_reach: list[dict[int, tuple[float, float]]] = []
        for reach in _REACHES:
            keys = np.concatenate([_surroundings(b, reach) for b in blocks])
            host = np.concatenate([b.host_ns for b in blocks])
            work = np.concatenate([b.work_ns for b in blocks])
            order = np.argsort(keys, kind="stable")
            cuts = np.flatnonzero(np.diff(keys[order])) + 1
            self.usual_by_reach.append(
                {
                    int(keys[rows[0]]): (float(np.median(host[rows])), float(np.median(work[rows])))
                    for rows in np.split(order, cuts)
                    if len(rows)
                }
            )

    def applied(self, block: Block) -> Block:
        """The block with the usual times."""
        host, work = block.host_ns.copy(), block.work_ns.copy()
        known = np.zeros(len(host), np.bool_)
        for reach, by_key in zip(_REACHES, self.usual_by_reach, strict=True):
            keys = _surroundings(block, reach)
            for row in np.flatnonzero(~known).tolist():
                usual = by_key.get(int(keys[row]))
                if usual is not None:
                    host[row], work[row] = usual
                    known[row] = True
        is_own = block.call < 0
        for mine, theirs, rows in (
            (block.host_ns, host, known),
            (block.work_ns, work, known & is_own),
        ):
            before = float(mine[rows].sum())
            if before > 0:
                theirs[~known] = mine[~known] * float(theirs[rows].sum()) / before
        return with_times(block, block, (host, work, block.lag_ns))


_REACHES = (6, 3, 1)


def _surroundings(block: Block, reach: int) -> Ints:
    """A number for each row's name and those of ``reach`` rows on either side."""
    mixed = (block.name * np.int64(1_000_003)) ^ (block.kind + 7)
    padded = np.concatenate([np.zeros(reach, np.int64), mixed, np.zeros(reach, np.int64)])
    keys = np.zeros(len(mixed), np.int64)
    with np.errstate(over="ignore"):
        for shift in range(2 * reach + 1):
            keys = keys * np.int64(31) + padded[shift : shift + len(mixed)]
    return keys
