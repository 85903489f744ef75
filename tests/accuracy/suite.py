"""Which jobs the bench simulates: faults x strengths x layouts x seeds.

Thresholds may be tuned on ``TUNING_SEEDS`` only; figures are reported on ``REPORTING_SEEDS`` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.simulate.catalogue import BY_NAME, FAULTS, Fault

PAIRS: tuple[tuple[str, str], ...] = (
    ("slow-gpu", "dataloader-stall"),
    ("slow-gpu", "checkpoint-stall"),
    ("dataloader-stall", "gc-pause"),
    ("gc-pause", "checkpoint-stall"),
    ("stage-imbalance", "dataloader-stall"),
    ("slow-gpu", "sequence-imbalance"),
)
"""Pairs of faults that the bench joins in one job."""

TUNING_SEEDS = range(1_000, 1_100)
REPORTING_SEEDS = range(7_000, 7_100)

SIZES = (8, 8, 16, 8, 8, 32, 8, 16, 8, 8, 8)
"""World sizes, in turn: most faults show as well among 8 ranks as among 64, and cost an eighth."""
LARGEST = 64
LARGE_EVERY = 23
"""One turn in so many is a job of ``LARGEST`` ranks. A prime, as the number of sizes is: each
layout meets each size."""
HEALTHY_LAYOUTS = (
    "ddp", "fsdp", "zero1", "zero2-m2", "tp4-sp-m2", "tp2-m2", "pp4-m8", "pp4-zbh1-m8",
    "pp2-vpp2-m8", "ep8", "cp2", "hsdp2", "tp2-pp2-m4-titan",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One simulated job of the suite."""

    scenario: str
    """As ``tracekit simulate`` takes it."""
    faults: tuple[str, ...]
    layout: str
    ranks: int
    seed: int
    steps: int = 10
    layers: int = 0
    """Of the model; 0: the simulator's own."""
    counters: str = "auto"
    """Counters beside the traces, as ``tracekit simulate --counters`` takes it."""

    @property
    def key(self) -> str:
        """What tells one case from all others, whatever suite it is in."""
        size = f"{self.ranks}r{self.steps}s{self.layers}l"
        more = "" if self.counters == "auto" else f" {self.counters}"
        return f"{self.scenario} {self.layout} {size} {self.seed}{more}"

    @property
    def label(self) -> str:
        """The row of the confusion matrix."""
        return "+".join(self.faults) or "none"


def _size(turn: int, layout: str) -> int:
    """Ranks. A job with tensor groups or a pipeline has ten times the calls a rank: 32 at most."""
    is_busy = "tp" in layout or "pp" in layout
    size = SIZES[turn % len(SIZES)]
    if turn % LARGE_EVERY == LARGE_EVERY - 1:
        size = 32 if is_busy else LARGEST
    return max(size, 16 if "tp8" in layout and "pp" in layout else 8)


def _layers(layout: str) -> int:
    """Layers of the model: as few as leave a stage something to be uneven with."""
    words = {w.rstrip("0123456789"): w for w in layout.split("-")}

    def size(word: str) -> int:
        return int(words[word][len(word) :]) if word in words else 1

    if "pp" in words:
        return size("pp") * (2 * size("vpp") if "vpp" in words else 3)
    return 4 if "tp" in words else 0


def build(
    seeds: Sequence[int], rules: Sequence[str], *, healthy_per_seed: int = 4, is_all: bool = False
) -> list[Case]:
    """The suite for these seeds.

    Faults whose rule is not among ``rules``, or whose files cannot be written yet, get one job in
    all (what is said of them instead?) unless ``is_all``.
    """
    cases: list[Case] = []
    for i, seed in enumerate(seeds):
        for k in range(healthy_per_seed):
            turn = i * healthy_per_seed + k
            layout = HEALTHY_LAYOUTS[turn % len(HEALTHY_LAYOUTS)]
            # A seed of its own, or two healthy jobs would share their noise and their decoys.
            own = seed + 100_000 * k
            # What is fine in twelve steps must be fine in a window of eight.
            steps = 8 + 2 * (turn % 3)
            size = _size(turn, layout)
            # Every third with all counters, and so with all their decoys.
            counters = "auto" if turn % 3 else "all"
            cases.append(Case("none", (), layout, size, own, steps, _layers(layout), counters))
        for j, fault in enumerate(FAULTS):
            if is_checkable(fault, rules) or is_all:
                cases += _fault_cases(fault, seed, i + j)
            elif i == 0:
                cases.append(fault_case(fault, fault.strength, seed, j))
        for j, (one, two) in enumerate(PAIRS):
            if is_all or all(is_checkable(BY_NAME[n], rules) for n in (one, two)):
                layout = "pp4-m8" if "stage-imbalance" in (one, two) else "ddp-m2"
                size, layers = _size(i + j, layout), _layers(layout)
                cases.append(Case(f"{one}+{two}", (one, two), layout, size, seed, 12, layers))
    return cases


def is_checkable(fault: Fault, rules: Sequence[str]) -> bool:
    """Whether a rule for it is built and the files that show it are written."""
    return not fault.missing_writers and any(r in rules for r in fault.rules)


def _fault_cases(fault: Fault, seed: int, turn: int) -> list[Case]:
    return [fault_case(fault, s, seed, turn + k) for k, s in enumerate(fault.strengths)]


def fault_case(fault: Fault, strength: float, seed: int, turn: int) -> Case:
    """A job with one fault; ``turn`` chooses layout and size."""
    layout = fault.layouts[turn % len(fault.layouts)]
    size = _size(turn, layout)
    if fault.is_network:
        size = max(size, 16)
    # A fault that comes and goes needs steps with and without it.
    steps = 12 if fault.steps in ("some", "window") else 8
    name = f"{fault.name}:{strength:g}"
    counters = "all" if turn % 2 else "auto"
    return Case(name, (fault.name,), layout, size, seed, steps, _layers(layout), counters)
