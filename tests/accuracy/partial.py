"""Partial capture: jobs of hundreds of ranks of which eight are traced, the culprit not among them.

``python -m accuracy.partial [--ranks 512] [--seeds 10]`` simulates each case, keeps the traces of
ranks 0-7 only, diagnoses them, and counts: does the candidate set hold the truth, is any captured
rank accused, and does the next capture name about half of the candidates.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracekit import api
from tracekit.rules import RULES
from tracekit.simulate import Request, Scenario, prepare
from tracekit.simulate.kineto import GroupNames, RankWriter
from tracekit.simulate.scenario import EPOCH_NS

KEPT = range(8)
ACCUSING = {rule.name for rule in RULES if rule.names_culprit}
CASES = (
    ("slow-gpu:1.7", "ddp"),
    ("slow-gpu:1.7", "tp8"),
    ("slow-gpu:1.7", "hsdp64"),
    ("slow-gpu:1.7", "tp8-pp2-m4"),
    ("slow-gpu:1.7", "tp4"),
    ("slow-gpu:1.7", "tp16"),
    ("slow-gpu:1.7", "hsdp4"),
    ("slow-gpu:1.7", "tp2-fsdp"),
    ("slow-gpu:1.7", "pp4-m8"),
    ("slow-gpu:1.7", "tp4-sp-pp2-m4"),
    ("slow-gpu:1.7", "ep8"),
    ("slow-gpu:1.7", "cp2-tp8"),
    ("gc-pause", "tp8"),
    ("slow-host", "tp8"),
    ("dataloader-stall", "tp8"),
    ("dataloader-stall", "ddp"),
    ("none", "ddp"),
    ("none", "tp8"),
)
"""Faults that cost a tenth of the step or more: below that the rule says nothing."""


@dataclass(frozen=True)
class Outcome:
    """What a diagnosis of a part of a job said, beside the truth."""

    scenario: str
    layout: str
    seed: int
    culprits: tuple[int, ...]
    candidates: tuple[int, ...] | None
    """None: no finding of ranks that were not captured."""
    accused: tuple[int, ...]
    """Captured ranks that a finding blames at major or above."""
    next_count: int
    """Ranks that the next capture names."""

    @property
    def is_held(self) -> bool:
        """Whether the truth is among the candidates."""
        return self.candidates is not None and set(self.culprits) <= set(self.candidates)

    @property
    def is_halving(self) -> bool:
        """Whether the next capture leaves about half, whatever it finds."""
        count = len(self.candidates or ())
        return count > 0 and abs(self.next_count - count / 2) <= 1


def simulate(scenario: Scenario, folder: Path) -> None:
    """The traces of the kept ranks; nothing else of the job is written."""
    plan, top = scenario.plan, scenario.plan.topology
    names = GroupNames(plan)
    writers = [
        RankWriter(
            folder / f"rank{r}.pt.trace.json.gz", plan, r, scenario.request.style, names,
            scenario.clocks[top.host(r)], EPOCH_NS, top.host(r),
        )
        for r in KEPT
    ]  # fmt: skip
    for records in scenario.job().run():
        for writer in writers:
            writer.add(records[writer.rank])
        records.clear()
    for writer in writers:
        writer.close(0)


def outcome(name: str, layout: str, ranks: int, seed: int, steps: int = 8) -> Outcome | None:
    """One case; None where the fault fell on a kept rank or on all."""
    request = Request(name, ranks, seed, layout, steps, decoys=())
    scenario = prepare(request)
    culprits = sorted({r for _, effect in scenario.faults for r in effect.ranks})
    if set(culprits) & set(KEPT):
        return None
    with tempfile.TemporaryDirectory(prefix="partial-") as folder:
        simulate(scenario, Path(folder))
        api.ingest(folder, run=Path(folder) / "run", workers=1).close()
        with api.open(Path(folder) / "run") as run:
            report = run.diagnose()
    absent = [f for f in report.findings if f.rule == "late-rank" and f.candidates.ranks]
    accused = {
        r
        for f in report.findings
        if f.rule in ACCUSING and f.severity.weight >= 2
        for r in f.scope.ranks
    }
    named = [n for f in absent for text in f.next_capture for n in _ranks(text)]
    return Outcome(
        name, layout, seed, tuple(culprits),
        tuple(absent[0].candidates.ranks) if absent else None, tuple(sorted(accused)), len(named),
    )  # fmt: skip


def _ranks(text: str) -> list[int]:
    """The ranks of ``profile ranks 8-15,32 in the same steps``."""
    match = re.search(r"ranks? ([\d,\- ]*\d)", text)
    found: list[int] = []
    for part in match[1].split(",") if match else ():
        low, _, high = part.strip().partition("-")
        found += range(int(low), int(high or low) + 1)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="")
    given = parser.parse_args(arguments)
    say = sys.stdout.write
    for name, layout in CASES:
        if given.only not in f"{name} {layout}":
            continue
        started = time.monotonic()
        seeds = [outcome(name, layout, given.ranks, seed) for seed in range(given.seeds)]
        found = [o for o in seeds if o is not None]
        sizes = sorted(len(o.candidates or ()) for o in found)
        say(
            f"{name:18} {layout:12} {len(found)} seeds: "
            f"truth among the candidates {sum(o.is_held for o in found)}, "
            f"said nothing {sum(o.candidates is None for o in found)}, "
            f"captured rank accused {sum(bool(o.accused) for o in found)}, "
            f"next capture halves {sum(o.is_halving for o in found)}, "
            f"candidates {sizes[len(sizes) // 2] if sizes else 0} ({sizes[0] if sizes else 0} to "
            f"{sizes[-1] if sizes else 0}) of {given.ranks - len(KEPT)}, "
            f"{time.monotonic() - started:.0f} s\n"
        )
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
