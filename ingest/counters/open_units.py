"""The unit of numbers whose header has none, told by their size alone.

A busy share of 87 is in percent, one of 0.87 is none; a clock of 1,980 counts MHz, and memory of
80,000 MiB, as the drivers' own tools print it. What could be either way is not read: an idle GPU's
0.3 may be a share or a percent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

UNDECIDED = "neither its header nor its numbers say its unit"
UNITS = ("0..1", "Hz", "bytes", "bytes/s")
"""Of the counters that are told so."""
MAX_RATIO = 1.0
LEAST_PERCENT, MAX_PERCENT = 1.5, 150.0
"""What no share reaches, with its sensor's error, and what no percent does."""
LEAST_RATIO = 0.5
"""Highest number from which what stays below 1 is a share: percents of a GPU that hardly works
stay below it. Counters that DCGM alone has are shares whatever they reach, as it prints them."""
_OF_DCGM = frozenset(
    ("graphics_active", "sm_active", "sm_occupancy", "tensor_active", "dram_active", "fp64_active",
     "fp32_active", "fp16_active")
)  # fmt: skip
_CLOCKS = ((1e8, 1e11, 1.0, "Hz"), (1e5, 1e7, 1e3, "kHz"), (100.0, 1e4, 1e6, "MHz"))
_RATES = ((2e9, 1e13, 1.0, "bytes/s"),)
"""Below, kilobytes of NVLink (1.8e9 of them a second) may be meant."""
_MEMORY = ((1e8, 1e14, 1.0, "bytes"), (1000.0, 1e7, 1048576.0, "MiB"))


class Sizes:
    """What the numbers of one counter are like."""

    def __init__(self) -> None:
        self.highest = 0.0
        self.are_whole = True
        self.percents_count = 0
        """Numbers that no share reaches."""
        self.fractions_count = 0
        """Numbers between 0 and 1."""

    def add(self, number: float) -> None:
        """Take another number."""
        self.highest = max(self.highest, number)
        self.are_whole = self.are_whole and number == int(number)
        self.percents_count += number >= LEAST_PERCENT
        self.fractions_count += 0 < number < 1

    def add_many(self, numbers: np.ndarray) -> None:
        """Take others, all finite."""
        import numpy as np

        if len(numbers):
            self.highest = max(self.highest, float(numbers.max()))
            self.are_whole = self.are_whole and bool((numbers == np.trunc(numbers)).all())
            self.percents_count += int((numbers >= LEAST_PERCENT).sum())
            self.fractions_count += int(((numbers > 0) & (numbers < 1)).sum())


class Told(NamedTuple):
    """A unit, and the size of it in the counter's own."""

    scale: float
    unit: str


def told(counter: str, unit: str, sizes: Sizes) -> Told | None:
    """The unit that the numbers of a counter have; None where they could be of two."""
    if sizes.highest == 0:
        return Told(1.0, "any unit: they are 0")
    if unit != "0..1":
        known = {"Hz": _CLOCKS, "bytes": _MEMORY}.get(unit, _RATES)
        return next(
            (Told(scale, name) for low, high, scale, name in known if low <= sizes.highest < high),
            None,
        )
    if LEAST_PERCENT <= sizes.highest <= MAX_PERCENT:
        # Where most are fractions, a number beyond 1 may as well be a sensor's error.
        are_percents = sizes.percents_count >= sizes.fractions_count
        return Told(0.01, "percent") if are_percents else None
    is_share = counter in _OF_DCGM or (not sizes.are_whole and sizes.highest >= LEAST_RATIO)
    if sizes.highest <= MAX_RATIO and is_share:
        return Told(1.0, "shares of 1")
    return None
