"""How two ranks' calls on one communicator line up: which of one is which of the other.

Both made the same calls in the same order, but their windows need not begin with the same call.
A *shift* d says that call i of the first is call i + d of the second. A shift must make the
operations agree, must be possible (nobody leaves a synchronising operation before the last has
entered), and must be the only one that is; otherwise there is none, and a reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from tracekit.derive.calls import NOBODY, Calls

if TYPE_CHECKING:
    from tracekit.derive.calls import Ints

MIN_AGREEMENT = 0.9
"""Share of calls that must agree in operation, size and type; the rest may be a real mismatch."""

MIN_OVERLAP = 0.25
"""Share of the shorter lane that must be common."""

ANCHORS = 9
"""Moments at which the two lanes are laid over each other to propose shifts."""

MAX_SEARCH = 64
"""Calls by which windows may be apart where nothing but the rhythm of the calls tells."""

DRIFT_RATIO = 200e-6
"""Two free-running clocks part by no more than this."""

CLEAR_RATIO = 0.5
"""The best shift's scatter of ends must be under this share of the next best one's."""

MAX_VIOLATIONS = 0.02
"""Share of calls that may break causality on one clock: rows of a profiler can be a little off."""


class Fit(NamedTuple):
    """How well one shift fits."""

    shift: int
    agreement: float
    overlap: int
    is_possible: bool
    scatter_ns: float
    apart_ns: float


class Shift(Struct, frozen=True):
    """The shift, or None and why there is none."""

    value: int | None
    reason: str = ""


def find_shift(calls: Calls, a: Ints, b: Ints, *, is_one_clock: bool) -> Shift:
    """The shift of lane ``b`` against lane ``a``; both are row numbers in order of start."""
    if not len(a) or not len(b):
        return Shift(None, "no calls")
    plain = fit(calls, a, b, 0, is_one_clock=is_one_clock)
    if plain is not None and len(a) == len(b) and _is_sure(calls, a, b, plain):
        return Shift(0)
    fits = _fits(calls, a, b, _candidates(calls, a, b), is_one_clock)
    possible = [f for f in fits if f.is_possible]
    if not possible and not is_one_clock:
        # Clocks that are far apart point to the wrong calls: only the rhythm is left.
        fits = _fits(calls, a, b, range(-MAX_SEARCH, MAX_SEARCH + 1), is_one_clock)
        possible = [f for f in fits if f.is_possible]
    if not fits:
        return Shift(None, "no alignment of the windows makes the operations agree")
    if not possible:
        return Shift(None, "no alignment of the windows keeps cause before effect")
    best = min(possible, key=lambda f: (f.scatter_ns, f.apart_ns))
    rivals = [f for f in possible if f is not best and f.overlap >= 2]
    if is_one_clock or not rivals:
        # On one clock what is possible is nearly unique; the smaller scatter decides the rest.
        return Shift(best.shift)
    if best.overlap >= 3 and best.scatter_ns <= CLEAR_RATIO * min(f.scatter_ns for f in rivals):
        return Shift(best.shift)
    return Shift(None, "the windows could be aligned in several ways")


def _fits(calls: Calls, a: Ints, b: Ints, shifts: Iterable[int], is_one_clock: bool) -> list[Fit]:
    fits = (fit(calls, a, b, shift, is_one_clock=is_one_clock) for shift in shifts)
    return [f for f in fits if f is not None and f.agreement >= MIN_AGREEMENT]


def _is_sure(calls: Calls, a: Ints, b: Ints, plain: Fit) -> bool:
    """Whether equal positions are the same calls beyond doubt."""
    if plain.agreement < 1.0 or not plain.is_possible:
        return False
    steps_a, steps_b = calls["step"][a], calls["step"][b]
    known = (steps_a != NOBODY) & (steps_b != NOBODY)
    # Calls at a step's border may be booked to either side of it.
    if known.any():
        return bool((steps_a[known] == steps_b[known]).mean() >= 0.9)
    length = int(calls["end_ns"][a[-1]] - calls["start_ns"][a[0]])
    return plain.apart_ns < 0.1 * length / max(1, len(a))


def _candidates(calls: Calls, a: Ints, b: Ints) -> list[int]:
    """Shifts worth a look, the likeliest first: by position, by step, and by wall clock."""
    import numpy as np

    shifts: dict[int, None] = {0: None, len(b) - len(a): None}
    steps_a, steps_b = calls["step"][a], calls["step"][b]
    common = np.intersect1d(steps_a, steps_b)
    for step in common[common != NOBODY][:ANCHORS]:
        first = int(np.argmax(steps_b == step)) - int(np.argmax(steps_a == step))
        last = (len(b) - int(np.argmax(steps_b[::-1] == step))) - (
            len(a) - int(np.argmax(steps_a[::-1] == step))
        )
        shifts |= dict.fromkeys((first, last))
    ends_b = np.sort(calls["end_ns"][b])
    for index in np.unique(np.linspace(0, len(a) - 1, ANCHORS).astype(int)):
        near = int(np.searchsorted(ends_b, calls["end_ns"][a[index]]))
        shifts |= dict.fromkeys(near - int(index) + delta for delta in (0, -1, 1, -2, 2, -3, 3))
    lowest, highest = -(len(a) - 1), len(b) - 1
    return [d for d in shifts if lowest <= d <= highest]


def fit(calls: Calls, a: Ints, b: Ints, shift: int, *, is_one_clock: bool) -> Fit | None:
    """How well a shift fits; None where too little is common."""
    import numpy as np

    first, last = max(0, -shift), min(len(a), len(b) - shift)
    overlap = last - first
    if overlap < max(1, MIN_OVERLAP * min(len(a), len(b))):
        return None
    ours, theirs = a[first:last], b[first + shift : last + shift]
    agreement = float((calls.kind[ours] == calls.kind[theirs]).mean())
    ends = calls["end_ns"][ours] - calls["end_ns"][theirs]
    middle = float(np.median(ends))
    scatter = float(np.median(np.abs(ends - middle)))
    return Fit(
        shift,
        agreement,
        overlap,
        _is_possible(calls, ours, theirs, is_one_clock),
        scatter,
        abs(middle),
    )


def _is_possible(calls: Calls, ours: Ints, theirs: Ints, is_one_clock: bool) -> bool:
    """Whether some clock offset (none, on one clock) lets everybody leave after the last came."""
    binding = calls.is_synchronising[ours] & calls.is_synchronising[theirs]
    if not binding.any():
        return True
    ours, theirs = ours[binding], theirs[binding]
    # Added to their times, the offset must lie between these two.
    lowest = calls["start_ns"][ours] - calls["end_ns"][theirs]
    highest = calls["end_ns"][ours] - calls["start_ns"][theirs]
    if is_one_clock:
        broken = (lowest > 0) | (highest < 0)
        return float(broken.mean()) <= MAX_VIOLATIONS
    length = float(calls["end_ns"][ours[-1]] - calls["start_ns"][ours[0]])
    return bool(lowest.max() - highest.min() <= DRIFT_RATIO * length)
