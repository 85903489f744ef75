"""Pairs of recorded jobs: what a fault costs by diagnose and whatif, beside what was measured.

``PYTHONPATH=tests python -m accuracy.twins [PAIR...] [--docs docs/accuracy.md]`` prints the table
and puts it into the page that ``make accuracy`` writes. Each pair is the same job recorded twice,
healthy and with its fault; the measured cost is the difference of their mean steps.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accuracy.score import MAJOR, Named, is_right_place, is_right_rule
from tracekit.findings import Finding
from tracekit.report import Report

ROOT = Path(__file__).parents[2]
TWINS = ROOT / "fixtures" / "twins"
HEADING = "## Twins"
PRICES = "## Prices of simulated faults"
"""The section of accuracy/prices.py."""
HISTORIES = "## Jobs of days"
"""The section of accuracy/histories.py."""
CLOSE, FAR = 0.25, 0.40
"""How far a cost may be from what was measured: in eight pairs of ten, and in all."""


@dataclass(frozen=True)
class Priced:
    """One fault of a pair: what it cost, and what was said of it."""

    pair: str
    fault: str
    ranks: tuple[int, ...]
    measured_ms: float
    printed_ms: float | None = None
    """By the finding that names the fault's place; None: none did, or it had no cost."""
    named_by: str | None = None
    is_cause: bool = False
    """Whether that finding names the cause, and not the place alone."""
    is_verdict: bool = False
    whatif_ms: float | None = None
    refused: str | None = None
    """Why whatif has no figure."""

    @property
    def ratio(self) -> float | None:
        """What is printed over what was measured."""
        return None if self.printed_ms is None else self.printed_ms / self.measured_ms

    @property
    def is_close(self) -> bool:
        """Within a quarter of what was measured."""
        return self.ratio is not None and abs(self.ratio - 1) <= CLOSE


@dataclass(frozen=True)
class Judged:
    """One job of a pair: its step, its faults, and who was accused without guilt."""

    name: str
    measured_step_ms: float
    printed_step_ms: float | None
    faults: tuple[Priced, ...] = ()
    innocents: tuple[str, ...] = ()
    """Findings that name a rank which is no culprit: major ones, and the verdict's."""
    decoys: tuple[str, ...] = ()
    """Findings that name what is none: forbidden by the truth."""


@dataclass
class Truths:
    """The jobs of a folder by name."""

    folder: Path = TWINS
    by_name: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in sorted(self.folder.glob("*/truth.json")):
            self.by_name[path.parent.name] = json.loads(path.read_text())


def named(finding: Finding, report: Report) -> Named:
    """A finding as the bench scores it."""
    return Named(
        finding.rule, str(finding.severity), str(finding.confidence.level), finding.scope.ranks,
        finding.scope.hosts, finding.scope.groups, finding.id == report.verdict.finding,
        bool(finding.explained_by), finding.impact.step_ratio, finding.candidates.ranks,
    )  # fmt: skip


def cause_of(fault: dict[str, Any], truth: dict[str, Any]) -> str:
    """The selector with which whatif takes this fault out."""
    ranks = ",".join(map(str, fault["where"]["ranks"]))
    if fault["where"]["links"]:
        return f"link={ranks}"
    if truth["layout"]["pp"] > 1:
        return f"stage={ranks}"
    return f"rank={ranks}"


def judge(report: Report, truth: dict[str, Any], replays: dict[str, float | str]) -> Judged:
    """What a diagnosis says, beside the truth; ``replays``: whatif's ms, or why none, by cause."""
    faults = truth["faults"]
    findings = [(f, named(f, report)) for f in report.document.findings]
    everybody = set(range(truth["world_size"]))
    places = [set(f["where"]["ranks"]) for f in faults]
    guilty = set().union(*(p for p in places if p != everybody))
    # Of what befalls all ranks, one that is later than the others is a symptom if it is said so.
    may_differ = everybody in places
    innocents = [
        f.id
        for f, n in findings
        if (n.severity in MAJOR or n.is_top) and n.ranks and set(n.ranks) != everybody
        and not set(n.ranks) <= guilty and not (may_differ and n.is_symptom)
    ]  # fmt: skip
    forbidden = {r for d in truth["decoys"] for r in d.get("forbidden_rules", ())}
    step = report.document.metrics.step_time
    return Judged(
        truth["name"],
        sum(truth["measured"]["job_steps_ms"]) / len(truth["measured"]["job_steps_ms"]),
        1000 * step.mean_s if step is not None else None,
        tuple(_priced(fault, truth, findings, replays) for fault in faults),
        tuple(innocents),
        tuple(f.id for f, n in findings if f.rule in forbidden and n.severity in MAJOR),
    )


def _priced(
    fault: dict[str, Any], truth: dict[str, Any], findings: Sequence[tuple[Finding, Named]],
    replays: dict[str, float | str],
) -> Priced:  # fmt: skip
    right = [
        (f, n) for f, n in findings if is_right_rule(n, fault) and is_right_place(n, fault, truth)
    ]
    # The verdict's own, or the first that is no symptom of another.
    right.sort(key=lambda pair: (not pair[1].is_top, pair[1].is_symptom))
    best = right[0] if right else None
    replay = replays.get(cause_of(fault, truth))
    cost_s = best[0].impact.s_per_step if best is not None else None
    return Priced(
        truth["name"],
        fault["fault"],
        tuple(fault["where"]["ranks"]),
        fault["measured_cost_ms"],
        1000 * cost_s if cost_s is not None else None,
        best[0].id if best is not None else None,
        best is not None and best[1].rule in fault["expected_rules"],
        best is not None and best[1].is_top,
        replay if isinstance(replay, float) else None,
        replay if isinstance(replay, str) else None,
    )


def look(name: str, truths: Truths) -> Judged:
    """Diagnose one job, and replay it without each of its faults."""
    from tracekit import api
    from tracekit.errors import TracekitError
    from tracekit.whatif import parse_remove

    truth = truths.by_name[name]
    folder = truths.folder / name
    known = {"truth.json", "job.toml", "README.md"}
    paths = [p for p in sorted(folder.iterdir()) if p.name not in known]
    replays: dict[str, float | str] = {}
    with tempfile.TemporaryDirectory(prefix="accuracy-") as temp:
        job = [folder / "job.toml"]
        with api.ingest(list(paths), run=Path(temp) / "run", job=job, workers=1) as run:
            report = run.diagnose()
            for fault in truth["faults"]:
                cause = cause_of(fault, truth)
                try:
                    (result,) = run.whatif([parse_remove(cause)]).causes
                    replays[cause] = 1000 * result.saved_s_per_step
                except TracekitError as error:
                    replays[cause] = str(error)
    return judge(report, truth, replays)


def table(judged: Sequence[Judged]) -> list[str]:
    """The page's section, below its heading."""
    priced = [p for j in judged for p in j.faults]
    close = sum(p.is_close for p in priced)
    far = sum(p.ratio is not None and abs(p.ratio - 1) <= FAR for p in priced)
    lines = [
        "The same job recorded twice with the real PyTorch profiler, back to back: healthy, and "
        "with a fault (fixtures/twins). Measured: the difference of their mean steps. "
        "Printed: the cost of the finding that names the fault's place, "
        "whose rule may say the cause or only who is late. whatif: what it says of that place. "
        "Of two faults each was measured, and is printed, as what a step takes less without it, "
        "beside the other; where one hides the other in some steps these sum to less than both "
        "cost (ddp-two-faults: 120.6 of 132.0). Milliseconds a step.",
        "",
        f"Within {CLOSE:.0%} of the measured cost: {close} of {len(priced)} faults; within "
        f"{FAR:.0%}: {far}.",
        "",
        "| job | fault | ranks | measured | printed | ratio | whatif | named by | cause | first |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for p in priced:
        printed = "-" if p.printed_ms is None else f"{p.printed_ms:.1f}"
        ratio = "-" if p.ratio is None else f"{p.ratio:.2f}"
        replay = f"{p.whatif_ms:.1f}" if p.whatif_ms is not None else "refused"
        lines.append(
            f"| {p.pair} | {p.fault} | {', '.join(map(str, p.ranks))} | {p.measured_ms:.1f} "
            f"| {printed} | {ratio} | {replay} | {p.named_by or '-'} "
            f"| {'yes' if p.is_cause else 'no'} | {'yes' if p.is_verdict else 'no'} |"
        )
    lines += [
        "",
        "Every job of a pair: its mean step as measured and as printed, findings that accuse a "
        "rank without guilt (major ones and the verdict's), and decoys taken for faults.",
        "",
        "| job | step measured | printed | innocents accused | decoys named |",
        "|---|---|---|---|---|",
    ]
    for j in judged:
        step = "-" if j.printed_step_ms is None else f"{j.printed_step_ms:.1f}"
        lines.append(
            f"| {j.name} | {j.measured_step_ms:.1f} | {step} | {', '.join(j.innocents) or 'none'} "
            f"| {', '.join(j.decoys) or 'none'} |"
        )
    return lines


def put(page: str, lines: Sequence[str], heading: str = HEADING) -> str:
    """The page with this section, in the place of an older one or at the end."""
    section = "\n".join([heading, "", *lines]) + "\n"
    older = _section(heading)
    if older.search(page):
        return older.sub(lambda _: section + "\n", page).rstrip("\n") + "\n"
    return page.rstrip("\n") + "\n\n" + section


def keeping(page: str, older: str, heading: str) -> str:
    """The page with a section that only the older one has, as it is there."""
    found = _section(heading).search(older)
    return page if found is None else put(page, found[0].splitlines()[2:], heading)


def _section(heading: str) -> re.Pattern[str]:
    return re.compile(rf"^{heading}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the pairs, print, and write into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="*", help="names; both twins of each (default: all)")
    parser.add_argument("--folder", type=Path, default=TWINS)
    parser.add_argument("--docs", type=Path, help="put the section into this page")
    given = parser.parse_args(arguments)
    truths = Truths(given.folder)
    judged = list(_chosen(truths, given.pairs))
    lines = table(judged)
    sys.stdout.write("\n".join(lines) + "\n")
    if given.docs is not None:
        given.docs.write_text(put(given.docs.read_text(), lines))
    return 0


def _chosen(truths: Truths, pairs: Sequence[str]) -> Iterator[Judged]:
    for name in truths.by_name:
        if not pairs or name.removesuffix("-healthy") in pairs:
            yield look(name, truths)


if __name__ == "__main__":
    sys.exit(main())
