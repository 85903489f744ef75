"""The tree of calls of a typical step: operators and ranges, and what they launched on the device.

A tree is arrays in preorder, so that all that is within a call is a stretch of them. Steps that
call the same in the same order and nesting are one tree with a row of times a step; the tree that
most steps have is the typical one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

DEVICE = frozenset({"kernel", "communication"})
"""Kinds of calls that run on a device and hold no others."""
HOST = frozenset({"operator", "range"})
PATH_NAMES = 3
"""Names of a path, the innermost."""


class Label(NamedTuple):
    """What a call is."""

    kind: str
    name: str


class Tree(Struct, frozen=True, dict=True):
    """Calls in preorder. The first is the step, below it are its threads.

    ``own_ns`` has a row a step and a column a call: the host's time in an operator and in none
    inside it, the device's time of a kernel.
    """

    labels: Sequence[Label]
    depths: Sequence[int]
    own_ns: Floats

    @cached_property
    def ends(self) -> Sequence[int]:
        """Where what is within each call ends."""
        ends = [len(self.labels)] * len(self.labels)
        opened: list[int] = []
        for index, depth in enumerate(self.depths):
            while opened and self.depths[opened[-1]] >= depth:
                ends[opened.pop()] = index
            opened.append(index)
        return ends

    def children(self, index: int) -> list[int]:
        """The calls directly within one."""
        inner, at = [], index + 1
        while at < self.ends[index]:
            inner.append(at)
            at = self.ends[at]
        return inner

    def size(self, index: int) -> int:
        """How many calls: it and all that is within it."""
        return self.ends[index] - index

    def stretch(self, index: int) -> range:
        """A call and all that is within it."""
        return range(index, self.ends[index])

    def leaves(self, index: int) -> int:
        """Operators within a call that hold no others; 1 of a call that holds none."""
        hosts = [i for i in self.stretch(index) if self.labels[i].kind not in DEVICE]
        holding = {hosts[n - 1] for n, i in enumerate(hosts) if n and self._is_in(i, hosts[n - 1])}
        return max(1, len(hosts) - len(holding))

    def _is_in(self, index: int, around: int) -> bool:
        return self.depths[index] > self.depths[around]

    @cached_property
    def mean_ns(self) -> Floats:
        """The time of each call on a mean step, what is within it left out."""
        import numpy as np

        return np.asarray(self.own_ns.mean(axis=0))

    @cached_property
    def _spent_ns(self) -> Floats:
        """What operators took before each place."""
        import numpy as np

        is_operator = [label.kind == "operator" for label in self.labels]
        return np.concatenate([[0.0], np.cumsum(np.where(is_operator, self.mean_ns, 0.0))])

    def spent_ns(self, index: int, *, is_whole: bool = True) -> float:
        """What a mean step spends in a call: of an operator or range on the host, in all operators
        within it; ``is_whole`` false: in none of those within."""
        kind = self.labels[index].kind
        if kind in DEVICE:
            return float(self.mean_ns[index])
        end = self.ends[index] if is_whole else index + 1
        return float(self._spent_ns[end] - self._spent_ns[index])

    @cached_property
    def paths(self) -> Sequence[tuple[str, ...]]:
        """The operators and ranges around each call, outermost first, the innermost three."""
        around: list[str] = []
        paths = []
        for label, depth in zip(self.labels, self.depths, strict=True):
            del around[max(0, depth - _FIRST_DEPTH) :]
            paths.append(tuple(around[-PATH_NAMES:]))
            if depth >= _FIRST_DEPTH:
                around.append(label.name)
        return paths

    def around(self, index: int) -> str:
        """The path of a call."""
        return "/".join(self.paths[index])

    def within(self, index: int) -> str:
        """The path of what is within a call."""
        own_name = (self.labels[index].name,) if self.depths[index] >= _FIRST_DEPTH else ()
        return "/".join((*self.paths[index], *own_name)[-PATH_NAMES:])

    def shapes(self, known: dict[tuple[Any, ...], int]) -> list[int]:
        """A number a call, equal where label and all that is within are; ``known`` are numbers of
        other trees."""
        shapes = [0] * len(self.labels)
        inside: list[list[int]] = [[] for _ in self.labels]
        parents = self._parents()
        for index in range(len(self.labels) - 1, -1, -1):
            key = (self.labels[index], *reversed(inside[index]))
            inside[index] = []
            shapes[index] = known.setdefault(key, len(known))
            if parents[index] >= 0:
                inside[parents[index]].append(shapes[index])
        return shapes

    def _parents(self) -> list[int]:
        parents, opened = [], [-1] * (max(self.depths) + 2)
        for index, depth in enumerate(self.depths):
            parents.append(opened[depth])
            opened[depth + 1] = index
        return parents


_FIRST_DEPTH = 2
"""Depth of the first call: above it are the thread and the step."""


class Alike(Struct, frozen=True):
    """Steps of one rank that call the same: a tree, and the times of each."""

    rank: int
    labels: Sequence[Label]
    depths: Sequence[int]
    own_ns: list[Sequence[int]]


Called: TypeAlias = Mapping[int | None, Mapping[bytes, Alike]]
"""Steps by pipeline stage and by what they call."""


def called(rows: Iterable[Mapping[str, Any]]) -> Called:
    """The steps of a run, from the rows of ``step_calls`` of one attempt, in their order."""
    stages: dict[int | None, dict[bytes, Alike]] = defaultdict(dict)
    for (stage, rank, _, _), calls in groupby(
        rows, key=lambda r: (r["stage"], r["rank"], r["source_id"], r["step"])
    ):
        step = _Step()
        for number, of_thread in groupby(calls, key=lambda r: r["thread"]):
            step.add_thread(number, list(of_thread))
        alike = stages[stage].setdefault(
            step.shape, Alike(rank, step.labels, step.depths, own_ns=[])
        )
        alike.own_ns.append(step.own_ns)
    return stages


class Typical(Struct, frozen=True):
    """The typical step of a rank: ``tree`` has a row of times for each step that is like it."""

    rank: int
    tree: Tree
    steps_count: int
    """Steps that were looked at, alike or not."""


def typical(runs: Sequence[Called], stage: int | None) -> Typical:
    """The tree that most steps of a stage have, of one run or several; the first where several
    have as many."""
    import numpy as np

    alike: dict[bytes, list[Alike]] = defaultdict(list)
    for run in runs:
        for shape, steps in run.get(stage, {}).items():
            alike[shape].append(steps)
    counts = {shape: sum(len(s.own_ns) for s in steps) for shape, steps in alike.items()}
    most = alike[max(counts, key=counts.__getitem__)]
    own_ns = np.array([row for steps in most for row in steps.own_ns], np.float64)
    tree = Tree(most[0].labels, most[0].depths, own_ns)
    return Typical(most[0].rank, tree, sum(counts.values()))


class _Step:
    """One step, as its calls come."""

    def __init__(self) -> None:
        self.labels = [Label("step", "")]
        self.depths = [0]
        self.own_ns = [0]

    @property
    def shape(self) -> bytes:
        """Equal for steps that call the same."""
        text = "\n".join(
            f"{depth} {label.kind} {label.name!r}"
            for depth, label in zip(self.depths, self.labels, strict=True)
        )
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def add_thread(self, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds the calls of a thread, in order of their starts, outer ones first."""
        self._add(Label("thread", _thread(number, rows)), 1, 0)
        opened: list[tuple[int, int]] = []  # where a call ends, and its place in the lists
        for row in rows:
            start_ns, end_ns = int(row["start_ns"]), int(row["end_ns"])
            while opened and start_ns >= opened[-1][0]:
                opened.pop()
            label = Label(row["kind"], row["name"])
            depth = _FIRST_DEPTH + len(opened)
            if row["device_ns"] is not None:
                self._add(label, depth, int(row["device_ns"]))
                continue
            if opened:
                around_ns, around = opened[-1]
                end_ns = min(end_ns, around_ns)  # what outlasts its caller is cut
                self.own_ns[around] -= end_ns - start_ns
            opened.append((end_ns, len(self.labels)))
            self._add(label, depth, end_ns - start_ns)

    def _add(self, label: Label, depth: int, own_ns: int) -> None:
        self.labels.append(label)
        self.depths.append(depth)
        self.own_ns.append(own_ns)


def _thread(number: int, rows: Sequence[Mapping[str, Any]]) -> str:
    if number == 0:
        return "loop"
    return "autograd" if str(rows[0]["name"]).startswith("autograd::engine") else "other"
