"""What simulated faults cost: what is printed beside what the simulator measured.

``PYTHONPATH=tests python -m accuracy.prices FAULT... [--seeds 7010 7011] [--docs FILE]`` prints
the table and puts it into the page that ``make accuracy`` writes. The measured price is the
simulator's: a steady step of the same job with the fault and without it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accuracy.run import run_case
from accuracy.score import Outcome, is_right_place, is_right_rule
from accuracy.suite import fault_case
from accuracy.twins import PRICES, put
from tracekit.simulate.catalogue import BY_NAME

CLOSE = 0.15
"""How far a price may be from what was measured."""


@dataclass(frozen=True)
class Price:
    """One fault of a simulated job: what it costs of a step, and what was said."""

    scenario: str
    layout: str
    seed: int
    measured_ratio: float
    printed_ratio: float | None
    """Of the verdict's finding, or the first that names cause and place; None: none has a price."""
    named_by: str | None

    @property
    def ratio(self) -> float | None:
        """What is printed over what was measured."""
        if self.printed_ratio is None or not self.measured_ratio:
            return None
        return self.printed_ratio / self.measured_ratio

    @property
    def is_close(self) -> bool:
        """Whether it is within ``CLOSE``."""
        return self.ratio is not None and abs(self.ratio - 1) <= CLOSE


def price(outcome: Outcome, scenario: str) -> Price:
    """The price of the finding that names the fault of a job with one."""
    fault = outcome.truth["faults"][0]
    right = [
        n
        for n in outcome.named
        if is_right_rule(n, fault) and is_right_place(n, fault, outcome.truth)
    ]
    right.sort(key=lambda n: (not n.is_top, n.is_symptom))
    best = right[0] if right else None
    return Price(
        scenario,
        outcome.layout,
        outcome.seed,
        outcome.cost_ratio,
        best.step_ratio if best is not None else None,
        best.rule if best is not None else None,
    )


def table(prices: Sequence[Price]) -> list[str]:
    """The page's section, below its heading."""
    close = sum(p.is_close for p in prices)
    lines = [
        "Measured: a steady step of the simulated job with the fault and without it, as a share of "
        "the step with it. Printed: of the finding that names cause and place; - where it has no "
        "price and says what would be needed for one (for PCIe the bytes on the link, DCGM 1009 "
        f"and 1010). Seeds {', '.join(sorted({str(p.seed) for p in prices}))}.",
        "",
        f"Within {CLOSE:.0%} of the measured price: {close} of {len(prices)}.",
        "",
        "| fault | layout | seed | measured | printed | ratio | named by |",
        "|---|---|---|---|---|---|---|",
    ]
    for p in prices:
        printed = "-" if p.printed_ratio is None else f"{p.printed_ratio:.1%}"
        ratio = "-" if p.ratio is None else f"{p.ratio:.2f}"
        lines.append(
            f"| {p.scenario} | {p.layout} | {p.seed} | {p.measured_ratio:.1%} | {printed} "
            f"| {ratio} | {p.named_by or '-'} |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Price the faults, print, and write into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="+", choices=sorted(BY_NAME))
    parser.add_argument("--seeds", nargs="+", type=int, default=[7010, 7011])
    parser.add_argument("--docs", type=Path, help="put the section into this page")
    given = parser.parse_args(arguments)
    prices = []
    for name in given.faults:
        fault = BY_NAME[name]
        for turn, seed in enumerate(given.seeds):
            case = fault_case(fault, fault.strength, seed, turn)
            prices.append(price(run_case(case), case.scenario))
            sys.stderr.write(f"{prices[-1]}\n")
    lines = table(prices)
    sys.stdout.write("\n".join(lines) + "\n")
    if given.docs is not None:
        given.docs.write_text(put(given.docs.read_text(), lines, PRICES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
