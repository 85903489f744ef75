"""Training steps among the ranges that a program set.

Markers are ranges of one family of names on one thread that do not overlap. ``ProfilerStep#N``
is the best, then steps, iterations and batches; a number in the name is the step's number.
Optimizer steps are only a part of a step and never taken.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

COARSE = (
    r"(?i)^\s*(profilerstep|((global|train|training|model)[ _.:-]*)?(step|iteration|iter|batch))"
    r"[ _.:#=(\[-]*\d{0,15}[)\]]?\s*$"
)
"""What a marker's name looks like, for Arrow's regular expressions."""

_MARKER = re.compile(r"^\s*(?P<family>.*?)[ _.:#=(\[-]*(?P<number>\d{1,15})?[)\]]?\s*$")
MAX_NAME = 300
"""Characters of a range's name that are looked at: the pattern tries each of them as an end."""
_ORDER = ("profilerstep", "step", "iteration", "iter", "batch")


class Marker(Struct, frozen=True):
    """A range that may mark a step."""

    row: int
    name: str
    thread: int
    start: int
    end: int


def choose(markers: Sequence[Marker]) -> dict[int, int]:
    """Row of each marker of the best family, and its step's number."""
    families: dict[tuple[str, int], list[tuple[Marker, int | None]]] = defaultdict(list)
    for marker in markers:
        marker_match = _MARKER.match(marker.name[:MAX_NAME])
        if marker_match:
            number = int(marker_match["number"]) if marker_match["number"] else None
            families[marker_match["family"].lower(), marker.thread].append((marker, number))
    best: tuple[tuple[int, int, int], list[tuple[Marker, int | None]]] | None = None
    for (family, thread), members in families.items():
        members.sort(key=lambda m: (m[0].start, m[0].end))
        if not _is_sequence(members):
            continue
        rank = next((i for i, word in enumerate(_ORDER) if family.endswith(word)), len(_ORDER))
        key = (rank, -len(members), thread)
        if best is None or key < best[0]:
            best = (key, members)
    if best is None:
        return {}
    numbers = [n for _, n in best[1]]
    stated = [n for n in numbers if n is not None]
    is_counted = len(stated) == len(numbers) and all(a < b for a, b in pairwise(stated))
    return {m.row: stated[i] if is_counted else i for i, (m, _) in enumerate(best[1])}


def _is_sequence(members: Sequence[tuple[Marker, int | None]]) -> bool:
    """Whether these can be the steps: one after another, and more than a single plain range."""
    if len(members) < 2 and members[0][1] is None:
        return False
    return all(a.end <= b.start for (a, _), (b, _) in pairwise(members))
