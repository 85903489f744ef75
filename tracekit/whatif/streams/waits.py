"""What waits for what: seen where something began late, and shared with equal steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from tracekit.whatif.calls import Call
from tracekit.whatif.streams.rows import CLOSE_NS, EARLY_NS, OP, SYNC, RankRows, Wait


def learn_waits(ranks: Sequence[RankRows], calls: Mapping[int, Call]) -> None:
    contradicted: Counter[tuple[str, str, int]] = Counter()
    seen: Counter[tuple[str, str, int]] = Counter()
    for one in ranks:
        for row in np.flatnonzero((one.call >= 0) & (one.tail >= 0)).tolist():
            what = _family(one, row, calls)
            seen[what] += 1
            contradicted[what] += bool(one.start[row] < one.end[one.tail[row]] - EARLY_NS)
    for one in ranks:
        one.follows = np.zeros(len(one.kind), np.bool_)
        for row in np.flatnonzero((one.call >= 0) & (one.tail >= 0)).tolist():
            what = _family(one, row, calls)
            is_on_it = one.stream[row] == one.compute_stream
            one.follows[row] = not is_on_it and contradicted[what] * 100 <= seen[what]
    for one in ranks:
        one.waits = _seen_waits(one)
        one.seen_rows = [
            [r for r in sorted(one.waits) if a <= r < b] for a, b in pairwise(one.edges)
        ]
    _share_waits(ranks)


def _family(one: RankRows, row: int, calls: Mapping[int, Call]) -> tuple[str, str, int]:
    call = calls[int(one.call[row])]
    op = call.op if one.rank not in call.sends else "send"
    return op, call.kind, int(one.stream[row])


def _seen_waits(one: RankRows) -> dict[int, set[int]]:
    """Operations that began when something on another stream ended, and not for another reason."""
    free = one.free_at()
    late = np.flatnonzero((one.kind == OP) & (one.start - free > CLOSE_NS / 4))
    is_op = one.kind == OP
    by_end = np.flatnonzero(is_op)[np.argsort(one.end[is_op], kind="stable")]
    ends = one.end[by_end]
    found: dict[int, set[int]] = {}

    def latest(row: int, at: int, reach: int, is_other_stream: bool) -> int:
        """The operation launched before the row that ended last, within ``reach`` before ``at``."""
        k = int(np.searchsorted(ends, at + EARLY_NS, side="right")) - 1
        while k >= 0 and ends[k] >= at - reach:
            other = int(by_end[k])
            if other < row and not (is_other_stream and one.stream[other] == one.stream[row]):
                return other
            k -= 1
        return -1

    for row in late.tolist():
        other = latest(row, int(one.start[row]), CLOSE_NS, True)
        if other >= 0:
            found[row] = {other}
    for row in np.flatnonzero(one.kind == SYNC).tolist():
        others: set[int] = set()
        if one.is_device_wide[row]:
            for code in range(int(one.stream.max()) + 1):
                mine = np.flatnonzero((one.stream[:row] == code) & is_op[:row])
                if len(mine) and one.end[mine[-1]] <= one.end[row] + EARLY_NS:
                    others.add(int(mine[-1]))
        else:
            other = latest(row, int(one.end[row]), 10 * CLOSE_NS, False)
            if other >= 0 and one.end[other] > one.moment[row]:
                others.add(other)
        if others:
            found[row] = others
    return found


def _share_waits(ranks: Sequence[RankRows]) -> None:
    """Give every step what equal steps were seen to wait for, where that contradicts none."""
    equal: dict[int, list[tuple[RankRows, int]]] = defaultdict(list)
    for one in ranks:
        one.waits_told = [{} for _ in one.keys]
        for k, key in enumerate(one.keys):
            equal[key].append((one, k))
    for places in equal.values():
        seen: dict[tuple[int, Wait], int] = {}
        for one, k in places:
            for row in (r for r in one.seen_rows[k] if r in one.waits):
                for other in one.waits[row]:
                    told = one.told(row, other)
                    if told is not None:
                        seen.setdefault((row - one.edges[k], told), int(one.stream[other]))
        for (position, told), stream in seen.items():
            rows = [(one, one.edges[k] + position, one.row_of(k, told)) for one, k in places]
            known = [(one, row, other) for one, row, other in rows if other >= 0]
            if any(
                one.stream[other] != stream
                or one.end[other]
                > (one.end if one.kind[row] == SYNC else one.start)[row] + EARLY_NS
                for one, row, other in known
            ):
                continue
            for one, row, other in known:
                one.waits.setdefault(row, set()).add(other)
            for one, k in places:
                one.waits_told[k].setdefault(position, []).append(told)
        # What contradicts another step is kept where it was seen.
        for one, k in places:
            for row in one.seen_rows[k]:
                position = row - one.edges[k]
                kept = one.waits_told[k].setdefault(position, [])
                for other in sorted(one.waits.get(row, ())):
                    told = one.told(row, other)
                    if told is not None and told not in kept:
                        kept.append(told)
