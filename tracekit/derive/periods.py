"""Training steps where nobody marked them: from one update of the parameters to the next.

A trace repeats itself on many levels: layers, microbatches, steps, lines of a log. Which of them
is the step only the update tells, so the anchor is work that is known to be the optimizer's: what
was launched within a range ``Optimizer.step``, else kernels that optimizers are named for. The
launches up to the end of each update are one cell. Cells are steps if they are equal: the same
sequence of collectives (operation, group, size), about as many launches, and nearly the same
kernels as the cell that most are like. At least three besides the first have to be.

A cell that begins with something else (an evaluation, the start of the capture) and ends like the
others is a step from there on, unless that comes regularly. Nothing is said where updates are of
several kinds, or where they are spread through the backward pass: better no step than a microbatch
or a layer that is taken for one.

A process that updates nothing may do the same again and again all the same: ``repetitions``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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
MIN_REPEATED = 5
"""Cells that are a repetition without an update that says so: all of them are alike but one."""
MAX_ODD = 0.1
"""Share of the cells that may be like no other."""
THREAD_SHARE = 0.1
"""A thread with this share of a rank's launches takes part in every step."""
INPUT_ZONE = 8
"""Launches after an update among which the copy of the next step's input is looked for."""


class Launches(Struct, frozen=True):
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
    is_host: bool = False
    """Whether these are operators of a host that has no device."""

    def __len__(self) -> int:
        return len(self.at)


class Cell(Struct, frozen=True):
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


def repetitions(launches: Launches) -> list[Cell]:
    """What one process does again and again where it updates no parameters: tokens of a decoder,
    batches of an evaluation. From one appearance of a name to the next, if all that lies between is
    alike; of several names that with most appearances, and of those the one that comes last, so
    that the first cell is whole. None where layers repeat and nothing tells them from each other's
    ends.
    """
    import numpy as np

    counts = np.bincount(launches.name)
    first = np.full(len(counts), -1, np.int64)
    names, at = np.unique(launches.name, return_index=True)
    first[names] = at
    often = [int(n) for n in names if counts[n] >= MIN_REPEATED]
    called = np.cumsum(launches.calls[-1] != 0)
    for name in sorted(often, key=lambda n: (-int(counts[n]), -int(first[n]))):
        ends = np.flatnonzero(launches.name == name)
        if not _is_even(np.diff(called[ends])):
            continue
        for calls in launches.calls:
            found = _equal(launches, calls, ends)
            if len(found) >= max(MIN_REPEATED, len(ends) - 1):
                return found
    return []


def _is_even(calls: Ints) -> bool:
    """Whether there are as many collectives in all cells but one, and any."""
    import numpy as np

    usual = np.median(calls)
    return bool(usual > 0 and np.count_nonzero(calls != usual) <= 1)


def _ends(update: Ints) -> Iterator[Ints]:
    """Last launches of updates: where an update is one launch, and where it is several."""
    import numpy as np

    pauses = np.diff(update)
    sizes = np.array(sorted(set(pauses.tolist())))  # np.unique would import numpy.ma
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
