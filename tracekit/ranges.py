"""Whole numbers as ranges: as many as a header claims, in the memory of those that were seen."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar, overload

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Ranges(Sequence[int]):
    """Distinct whole numbers in order. Made, counted and asked in the number of its spans."""

    spans: tuple[tuple[int, int], ...] = ()
    """First and last of each run; in order, apart from each other."""

    @classmethod
    def without(cls, count: int, left_out: Collection[int]) -> Ranges:
        """0 to ``count`` - 1 but for some."""
        spans: list[tuple[int, int]] = []
        low = 0
        for number in sorted({n for n in left_out if 0 <= n < count}):
            if number > low:
                spans.append((low, number - 1))
            low = number + 1
        if low < count:
            spans.append((low, count - 1))
        return cls(tuple(spans))

    def __len__(self) -> int:
        return sum(high - low + 1 for low, high in self.spans)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(range(low, high + 1) for low, high in self.spans)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(low <= number <= high for low, high in self.spans)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[int, ...]: ...
    def __getitem__(self, at: int | slice) -> int | tuple[int, ...]:
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(len(self))))
        left = at + len(self) if at < 0 else at
        for low, high in self.spans if left >= 0 else ():
            if left <= high - low:
                return low + left
            left -= high - low + 1
        raise IndexError(at)


def union(spans: Iterable[tuple[Number, Number]]) -> list[tuple[Number, Number]]:
    """What the spans (low, high) cover together: disjoint, in order, touching ones joined."""
    joined: list[tuple[Number, Number]] = []
    for low, high in sorted(spans):
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    return joined
