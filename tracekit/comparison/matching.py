"""Two trees of calls set beside each other: which calls are the same, and what became of the rest.

Calls are matched from the step downwards: of two calls that are the same, what they call is put in
line so that as much of it as possible is the same, in order. What is left between two matches lies
at their lowest common call, and by how many calls stand against how many it was added, removed,
renamed, fused or split. Work on a device that lies in such a gap is put in line again by itself: a
kernel that another operator launches is the same kernel. A call around calls that the other side
has without it is one call more, and what it holds goes on being matched.

Source: the idea of the lowest common node is TraceLens's tree diff; the alignment is that of
longest common subsequences (Wagner and Fischer 1974), weighted by the calls that a match saves.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, cast

from tracekit.comparison.calls import DEVICE, HOST, Label, Tree, Typical, typical
from tracekit.comparison.model import Edit, Edited, EditedKind, MatchedCalls, NotCompared
from tracekit.comparison.sides import RunRows
from tracekit.rules.steps import SAME_RATIO

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_CELLS = 16_000_000
"""Cells of the two tables that put two rows of siblings in line (128 MB); of longer ones calls of
each name are counted, and nothing is said of renamed and fused ones."""
MATCH = 4096
"""What a call in common counts for beside a gap between matches: more than all gaps of so many
cells, of which there is one more than the shorter row has calls. So what two rows have in common
decides, and among equal lines a call stands against what took its place, not beside a namesake."""
NEVER = -(1 << 30)
"""Less than anything that is counted, with room below."""
ALIKE_RATIO = 0.5
"""Calls of which one side has more than this share hold the same, whatever they are called."""
_COMBINED = re.compile("compiled|_foreach_|fused|multi_tensor", re.IGNORECASE)
"""Names of calls that do what many others did, wherever among their siblings those were: they stand
against all siblings that have no match, and not only against their neighbours."""
TYPICAL_RATIO = 0.5
"""Share of a side's steps that must be alike for one of them to stand for all."""
MIN_STEPS = 5
"""Steps alike a side from which times of the same calls are judged: that each of five is longer
than each of five others happens by chance in one of 252 cases."""


_Key = tuple[Edit, EditedKind, str, tuple[str, ...], tuple[str, ...]]


class Match:
    """The matching of two trees: ``pairs`` of places of the same calls, and ``edits``."""

    def __init__(self, before: Tree, after: Tree) -> None:
        import numpy as np

        known: dict[tuple[object, ...], int] = {}
        self.trees = before, after
        self.shapes = tuple(np.array(tree.shapes(known), np.int64) for tree in self.trees)
        self.pairs: list[tuple[int, int]] = [(0, 0)]
        self.edits: dict[_Key, tuple[int, float, float]] = {}
        """How often, and the time of a mean step on both sides in ns."""
        self._loose: tuple[list[tuple[str, int]], list[tuple[str, int]]] = ([], [])
        """Calls removed and added with their paths, until it is known which only moved."""
        work = [self._below(0, 0)]
        while work:  # a list and no recursion: calls of a foreign file nest as deep as it likes
            pair = next(work[-1], None)
            if pair is None:
                work.pop()
            else:
                work.append(self._below(*pair))
        self._settle()

    # ------------------------------------------------------------ matching

    def _below(self, call: int, other: int) -> Iterator[tuple[int, int]]:
        """Matches what two same calls hold; gives the pairs that are yet to be gone into."""
        before, after = self.trees
        yield from self._row(call, before.children(call), after.children(other))

    def _row(
        self, around: int, mine: Sequence[int], others: Sequence[int]
    ) -> Iterator[tuple[int, int]]:
        """Matches two rows of siblings within ``around`` (of the baseline's tree)."""
        gaps: list[tuple[list[int], list[int]]] = [([], [])]
        for call, other in self._in_line(mine, others):
            if call is not None and other is not None:
                gaps.append(([], []))
                if self._is_same(call, other):
                    stretches = self.trees[0].stretch(call), self.trees[1].stretch(other)
                    self.pairs += zip(*stretches, strict=True)
                else:
                    self.pairs.append((call, other))
                    yield call, other
            elif call is not None:
                gaps[-1][0].append(call)
            elif other is not None:
                gaps[-1][1].append(other)
        left = [[at for gap in gaps for at in gap[side]] for side in (0, 1)]
        if all(left) and any(
            _COMBINED.search(tree.labels[at].name)
            for tree, row in zip(self.trees, left, strict=True)
            for at in row
        ):
            gaps = [(left[0], left[1])]
        for gap in gaps:
            yield from self._gap(around, *gap)

    def _in_line(
        self, mine: Sequence[int], others: Sequence[int]
    ) -> Iterator[tuple[int | None, int | None]]:
        """Both rows in order, same calls beside each other."""
        first = 0
        while first < min(len(mine), len(others)) and self._is_same(mine[first], others[first]):
            first += 1
        last = 0
        while last < min(len(mine), len(others)) - first and self._is_same(
            mine[-1 - last], others[-1 - last]
        ):
            last += 1
        yield from zip(mine[:first], others[:first], strict=True)
        yield from self._aligned(mine[first : len(mine) - last], others[first : len(others) - last])
        yield from zip(mine[len(mine) - last :], others[len(others) - last :], strict=True)

    def _is_same(self, call: int, other: int) -> bool:
        return bool(self.shapes[0][call] == self.shapes[1][other])

    def _aligned(
        self, mine: Sequence[int], others: Sequence[int]
    ) -> Iterator[tuple[int | None, int | None]]:
        if len(mine) * len(others) > MAX_CELLS:
            yield from self._by_name(mine, others)
            return
        ends_matched, ends_open = self._best(mine, others)
        aligned: list[tuple[int | None, int | None]] = []
        i, j = len(mine), len(others)
        is_open = bool(ends_open[i, j] >= ends_matched[i, j])
        while i or j:
            here = int((ends_open if is_open else ends_matched)[i, j])
            if not is_open:
                i, j = i - 1, j - 1
                aligned.append((mine[i], others[j]))
                is_open = bool(ends_open[i, j] >= ends_matched[i, j])
            elif i and here in (ends_open[i - 1, j], ends_matched[i - 1, j] - 1):
                i -= 1
                aligned.append((mine[i], None))
                is_open = bool(here == ends_open[i, j])
            else:
                j -= 1
                aligned.append((None, others[j]))
                is_open = bool(here == ends_open[i, j])
        yield from reversed(aligned)

    def _by_name(
        self, mine: Sequence[int], others: Sequence[int]
    ) -> Iterator[tuple[int | None, int | None]]:
        """Both rows, the first of a name beside the first of that name, and so on."""
        before, after = self.trees
        waiting: dict[Label, deque[int]] = defaultdict(deque)
        for other in others:
            waiting[after.labels[other]].append(other)
        chosen = [
            (call, same.popleft() if (same := waiting[before.labels[call]]) else None)
            for call in mine
        ]
        yield from ((call, None) for call, other in chosen if other is None)
        yield from ((call, other) for call, other in chosen if other is not None)
        left = {other for same in waiting.values() for other in same}
        yield from ((None, other) for other in others if other in left)

    def _best(
        self, mine: Sequence[int], others: Sequence[int]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """What the first i of one row and the first j of the other have in common at most, where
        the last of both match, and where they do not; of equal ones that with fewest gaps.

        ``MATCH`` counts for each call in common, exact ones twice, less one for each gap.
        """
        import numpy as np

        before, after = self.trees
        numbers: dict[Label, int] = {}
        keys = [
            np.array([numbers.setdefault(tree.labels[at], len(numbers)) for at in row])
            for tree, row in ((before, mine), (after, others))
        ]
        sizes = np.array([after.size(at) for at in others], np.int32)
        shapes = self.shapes[1][np.array(others, np.int64)]
        matched = np.full((len(mine) + 1, len(others) + 1), NEVER, np.int32)
        matched[0, 0] = 0
        opened = np.full_like(matched, NEVER)
        opened[0, 1:] = opened[1:, 0] = -1
        for row, call in enumerate(mine):
            alike = np.where(keys[1] == keys[0][row], np.minimum(sizes, before.size(call)), 0)
            weights = np.where(shapes == self.shapes[0][call], 2 * sizes, alike)
            above = np.maximum(matched[row, :-1], opened[row, :-1]) + MATCH * weights
            matched[row + 1, 1:] = np.where(weights > 0, above, NEVER)
            here = np.maximum(opened[row], matched[row] - 1)
            here[1:] = np.maximum(here[1:], matched[row + 1, :-1] - 1)
            np.maximum.accumulate(here, out=opened[row + 1])
        return matched, opened

    # ------------------------------------------------------------ gaps

    def _gap(
        self, around: int, mine: Sequence[int], others: Sequence[int]
    ) -> Iterator[tuple[int, int]]:
        """What stands against each other between two matches."""
        if not mine and not others:
            return
        for side in (0, 1):
            wrapper = self._wrapper(side, (mine, others))
            if wrapper is not None:
                yield from self._unwrapped(around, side, wrapper, (mine, others))
                return
        path = self.trees[0].within(around)
        calls = [
            [at for at in row if tree.labels[at].kind not in DEVICE]
            for tree, row in zip(self.trees, (mine, others), strict=True)
        ]
        if len(calls[0]) == len(calls[1]):
            for call, other in zip(*calls, strict=True):
                held = self.trees[0].children(call), self.trees[1].children(other)
                if self._is_alike(*held, 0) and self._is_alike(*held, 1):
                    self._edit("renamed", path, [call], [other], is_whole=False)
                    yield call, other
                    mine = [at for at in mine if at != call]
                    others = [at for at in others if at != other]
                    calls = [
                        [i for i in calls[0] if i != call],
                        [i for i in calls[1] if i != other],
                    ]
        self._counted(path, calls[0], calls[1])
        for kind in sorted(DEVICE):  # by themselves: a kernel is never renamed to communication
            self._launched(kind, path, mine, others)

    def _launched(self, kind: str, path: str, mine: Sequence[int], others: Sequence[int]) -> None:
        """Puts the device work of a kind in line that a gap holds."""
        work = [
            [i for at in row for i in tree.stretch(at) if tree.labels[i].kind == kind]
            for tree, row in zip(self.trees, (mine, others), strict=True)
        ]
        left: tuple[list[int], list[int]] = ([], [])
        for call, other in self._in_line(*work):
            if call is not None and other is not None:
                self._counted(path, *left)
                left = ([], [])
                self.pairs.append((call, other))
            elif call is not None:
                left[0].append(call)
            elif other is not None:
                left[1].append(other)
        self._counted(path, *left)

    def _wrapper(self, side: int, rows: tuple[Sequence[int], Sequence[int]]) -> int | None:
        """The call of a side that holds most of what the other side has without it."""
        tree, inside = self.trees[side], rows[1 - side]
        around = max(rows[side], key=tree.size, default=None)
        if around is None or not inside:
            return None
        held = tree.children(around)
        mine, others = (held, inside) if side == 0 else (inside, held)
        return around if self._is_alike(mine, others, 1 - side) else None

    def _is_alike(self, mine: Sequence[int], others: Sequence[int], side: int) -> bool:
        """Whether half of a side's row is in the other's as well."""
        if not mine or not others or len(mine) * len(others) > MAX_CELLS:
            return False
        best = max(int(table[-1, -1]) for table in self._best(mine, others))
        in_common = -(-best // MATCH) / 2  # without the gaps; exact matches count twice
        size = sum(self.trees[side].size(at) for at in (others if side else mine))
        return in_common >= ALIKE_RATIO * size

    def _unwrapped(
        self, around: int, side: int, wrapper: int, rows: tuple[Sequence[int], Sequence[int]]
    ) -> Iterator[tuple[int, int]]:
        """Matches what a wrapper holds with what the other side has without it."""
        tree = self.trees[side]
        path = self.trees[0].within(around)
        if side:
            self._edit("added", path, [], [wrapper], is_whole=False)
        else:
            self._edit("removed", path, [wrapper], [], is_whole=False)
        row = rows[side]
        at = row.index(wrapper)
        opened = [*row[:at], *tree.children(wrapper), *row[at + 1 :]]
        yield from self._row(around, *((rows[0], opened) if side else (opened, rows[1])))

    def _counted(self, path: str, mine: Sequence[int], others: Sequence[int]) -> None:
        """Edits of calls that stand against each other, by how many there are of them."""
        if not mine or not others:
            for loose, row in zip(self._loose, (mine, others), strict=True):
                loose.extend((path, at) for at in row)
        elif len(mine) == len(others):
            for call, other in zip(mine, others, strict=True):
                is_alike = self.trees[0].leaves(call) == self.trees[1].leaves(other)
                self._edit("renamed" if is_alike else "replaced", path, [call], [other])
        else:
            # Of 8 products and 8 activations for 8 calls, each call stands for one of both.
            rows = zip(self.trees, (mine, others), strict=True)
            held = [Counter(tree.labels[at].name for at in row) for tree, row in rows]
            times = math.gcd(*held[0].values(), *held[1].values())
            edit: Edit = "fused" if len(mine) > len(others) else "split"
            self._edit(edit, path, mine, others, times=times)

    def _settle(self) -> None:
        """What was removed here and added there has moved; so has what it launches."""
        removed, added = self._loose
        waiting: dict[int, deque[tuple[str, int]]] = defaultdict(deque)
        for path, other in added:
            if self.trees[1].labels[other].kind not in DEVICE:
                waiting[self.shapes[1][other]].append((path, other))
        moved: tuple[set[int], set[int]] = (set(), set())
        for path, call in removed:
            if self.trees[0].labels[call].kind not in DEVICE and waiting[self.shapes[0][call]]:
                _, other = waiting[self.shapes[0][call]].popleft()
                for at, (mine, others) in enumerate(
                    zip(self.trees[0].stretch(call), self.trees[1].stretch(other), strict=True)
                ):
                    if not at or self.trees[0].labels[mine].kind in DEVICE:
                        self._edit("moved", path, [mine], [others])
                        moved[0].add(mine)
                        moved[1].add(others)
        for path, call in removed:
            if call not in moved[0]:
                self._edit("removed", path, [call], [])
        for path, other in added:
            if other not in moved[1]:
                self._edit("added", path, [], [other])

    def _edit(
        self,
        edit: Edit,
        path: str,
        mine: Sequence[int],
        others: Sequence[int],
        *,
        is_whole: bool = True,
        times: int = 1,
    ) -> None:
        rows = (mine, others)
        labels = [[t.labels[at] for at in row] for t, row in zip(self.trees, rows, strict=True)]
        names = [tuple(dict.fromkeys(label.name for label in side)) for side in labels]
        kinds = {label.kind for side in labels for label in side}
        kind = cast("EditedKind", kinds.pop() if len(kinds) == 1 else "operator")
        ns = [
            sum(t.spent_ns(at, is_whole=is_whole) for at in row)
            for t, row in zip(self.trees, rows, strict=True)
        ]
        key = (edit, kind, path, names[0], names[1])
        count, before_ns, after_ns = self.edits.get(key, (0, 0.0, 0.0))
        self.edits[key] = count + times, before_ns + ns[0], after_ns + ns[1]


def all_calls(
    baseline: Sequence[RunRows], candidate: Sequence[RunRows], step_s: float
) -> tuple[list[Edited], list[MatchedCalls], list[NotCompared]]:
    """What both sides call otherwise, stage by stage, and why not where that cannot be said."""
    sides = [[run.called for run in side] for side in (baseline, candidate)]
    stages = [list(dict.fromkeys(stage for run in side for stage in run)) for side in sides]
    what = "calls one by one"
    if set(stages[0]) != set(stages[1]):
        has = [len(stages_of_side) for stages_of_side in stages]
        lacking = "candidate" if has[0] else "baseline"
        why = (
            f"the {lacking} has none on record in steady steps, or too many"
            if 0 in has
            else f"the sides have {has[0]} and {has[1]} pipeline stages"
        )
        return [], [], [NotCompared(what=what, why=why)]
    edited: list[Edited] = []
    sums: list[MatchedCalls] = []
    lacks: list[NotCompared] = []
    for stage in stages[0]:
        before, after = typical(sides[0], stage), typical(sides[1], stage)
        uneven = [t for t in (before, after) if len(t.tree.own_ns) < TYPICAL_RATIO * t.steps_count]
        if uneven:
            alike = f"{len(uneven[0].tree.own_ns)} of {uneven[0].steps_count}"
            where = "" if stage is None else f" of stage {stage}"
            why = f"steps of one side differ in what they call: {alike} are alike at most"
            lacks.append(NotCompared(what=what + where, why=why))
            continue
        edits, added_up = matched(before, after, stage, step_s)
        edited += edits
        sums += added_up
    edited.sort(key=_by_change)
    return edited, sums, lacks


def _by_change(edited: Edited) -> tuple[object, ...]:
    """The largest change of time first."""
    change_s = abs(edited.candidate_s - edited.baseline_s)
    return (-change_s, edited.kind, edited.stage or 0, edited.path, edited.edit,
            edited.baseline, edited.candidate)  # fmt: skip


def matched(
    before: Typical, after: Typical, stage: int | None, step_s: float
) -> tuple[list[Edited], list[MatchedCalls]]:
    """What two typical steps call otherwise, and what the calls of each kind add up to.

    ``step_s`` is the longer mean step: the same calls are told apart where what they take longer
    or shorter is a hundredth of it.
    """
    match = Match(before.tree, after.tree)
    edited = [
        Edited(
            edit=edit,
            kind=kind,
            stage=stage,
            path=path,
            baseline=names,
            candidate=others,
            count=count,
            baseline_s=before_ns / 1e9,
            candidate_s=after_ns / 1e9,
        )
        for (edit, kind, path, names, others), (count, before_ns, after_ns) in match.edits.items()
    ]
    edited += _changed(match, stage, step_s)
    sums = [
        _sums(kinds, match, edited, (before, after), stage)
        for kinds in (HOST, DEVICE - {"communication"})
    ]
    return edited, [s for s in sums if any(s.calls_counts)]


def _changed(match: Match, stage: int | None, step_s: float) -> Iterator[Edited]:
    """The same calls that take longer in every step of one side than in any of the other."""
    before = match.trees[0]
    if min(len(tree.own_ns) for tree in match.trees) < MIN_STEPS:
        return
    places: dict[tuple[str, str, str], list[tuple[int, int]]] = defaultdict(list)
    for call, other in match.pairs:
        label = before.labels[call]
        if label.kind in ("operator", "kernel"):
            places[label.kind, before.around(call), label.name].append((call, other))
    for (kind, path, name), pairs in places.items():
        mine, others = (
            tree.own_ns[:, list(side)].sum(axis=1)
            for tree, side in zip(match.trees, zip(*pairs, strict=True), strict=True)
        )
        before_s, after_s = float(mine.mean()) / 1e9, float(others.mean()) / 1e9
        is_apart = mine.max() < others.min() or others.max() < mine.min()
        if is_apart and abs(after_s - before_s) >= SAME_RATIO * step_s:
            yield Edited(
                edit="changed",
                kind=cast("EditedKind", kind),
                stage=stage,
                path=path,
                baseline=(name,),
                candidate=(name,),
                count=len(pairs),
                baseline_s=before_s,
                candidate_s=after_s,
            )


def _sums(
    kinds: frozenset[str],
    match: Match,
    edited: Sequence[Edited],
    sides: tuple[Typical, Typical],
    stage: int | None,
) -> MatchedCalls:
    told = [e for e in edited if e.kind in kinds]
    timed: Literal["operator", "kernel"] = "kernel" if "kernel" in kinds else "operator"
    whole = [
        sum(
            float(ns)
            for label, ns in zip(tree.labels, tree.mean_ns, strict=True)
            if label.kind == timed
        )
        / 1e9
        for tree in match.trees
    ]
    counts = [sum(label.kind in kinds for label in tree.labels) for tree in match.trees]
    return MatchedCalls(
        kind=timed,
        stage=stage,
        ranks=(sides[0].rank, sides[1].rank),
        steps_counts=(len(match.trees[0].own_ns), len(match.trees[1].own_ns)),
        calls_counts=(counts[0], counts[1]),
        same_count=sum(match.trees[0].labels[call].kind in kinds for call, _ in match.pairs),
        baseline_s=whole[0],
        candidate_s=whole[1],
        same_baseline_s=whole[0] - sum(e.baseline_s for e in told),
        same_candidate_s=whole[1] - sum(e.candidate_s for e in told),
    )
