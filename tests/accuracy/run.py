"""Runs the accuracy bench: ``PYTHONPATH=tests python -m accuracy.run``, or ``make accuracy``.

Simulates the suite, diagnoses every job through the ordinary ingest and rules, prints how often
cause and culprit were right, and writes docs/accuracy.md. Exits 1 below the bar. Outcomes are kept
as they come, by the code's hash: the same command goes on where a stopped one was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any

from accuracy import report
from accuracy.keep import FOLDER, Kept, code_hash
from accuracy.score import Named, Outcome, Scores, score
from accuracy.suite import REPORTING_SEEDS, TUNING_SEEDS, Case, build, is_checkable
from accuracy.twins import HISTORIES, PRICES, Truths, keeping, look
from tracekit.simulate.catalogue import FAULTS

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "fixtures" / "recorded"
READ = ("*.json.gz", "*.log", "*.prom", "*.counters_db.json", "tracekit-capture/**/*")
"""Traces, logs and counters of a job."""


def built_rules() -> tuple[str, ...]:
    """Rules that have code."""
    from tracekit.rules import RULES

    return tuple(r.name for r in RULES)


def diagnose(folder: Path, run: Path) -> tuple[str, tuple[Named, ...]]:
    """Kind of verdict and findings of all files in ``folder``; truth.json is never given."""
    from tracekit import api

    known = {"truth.json", "job.toml", "README.md"}
    paths = [p for p in sorted(folder.iterdir()) if p.name not in known]
    with api.ingest(list(paths), run=run, job=[folder / "job.toml"], workers=1) as opened:
        document = opened.diagnose().document
    top = document.verdict.finding
    named = tuple(
        Named(
            f.rule,
            str(f.severity),
            str(f.confidence.level),
            f.scope.ranks,
            f.scope.hosts,
            f.scope.groups,
            f.id == top,
            bool(f.explained_by),
            f.impact.step_ratio,
            f.candidates.ranks,
        )
        for f in document.findings
    )
    return str(document.verdict.kind), named


def run_case(case: Case) -> Outcome:
    """Simulate one job and diagnose it."""
    from tracekit.simulate import Request, what_it_takes, write

    with tempfile.TemporaryDirectory(prefix="accuracy-") as name:
        folder = Path(name) / "job"
        steps, interval_s = what_it_takes(case.scenario)
        request = Request(
            case.scenario, case.ranks, case.seed, case.layout, max(steps, case.steps),
            layers=case.layers, counters=case.counters, interval_s=interval_s,
        )  # fmt: skip
        truth = write(request, folder)
        return _outcome(case.label, case.layout, case.ranks, case.seed, truth, folder, Path(name))


def run_recorded(name: str) -> Outcome:
    """Diagnose one recorded job."""
    folder = RECORDED / name
    truth: dict[str, Any] = json.loads((folder / "truth.json").read_text())
    truth.setdefault("measured", {})
    with tempfile.TemporaryDirectory(prefix="accuracy-") as temporary:
        return _outcome(name, "recorded", truth["world_size"], 0, truth, folder, Path(temporary))


def _outcome(
    label: str, layout: str, ranks: int, seed: int, truth: dict[str, Any], folder: Path, temp: Path
) -> Outcome:
    try:
        verdict, named = diagnose(folder, temp / "run")
    except Exception as error:  # one job that fails must not end the bench
        return Outcome(
            label, layout, ranks, seed, truth, "error", (), f"{type(error).__name__}: {error}"
        )
    return Outcome(label, layout, ranks, seed, truth, verdict, named)


def _all(
    function: Callable[[Any], Outcome], items: Mapping[str, Any], options: argparse.Namespace,
    kept: Kept, what: str,
) -> list[Outcome]:  # fmt: skip
    """The outcome of every item, by key; what ``kept`` holds is not done again."""
    left = [(key, item) for key, item in items.items() if key not in kept.outcomes]
    # In no order: where the time runs out, what was done is a sample of all.
    left.sort(key=lambda pair: hashlib.sha256(pair[0].encode()).digest())
    began = time.monotonic()
    until = began + 60 * options.minutes if options.minutes else math.inf
    if len(left) < len(items):
        print(f"{what}: {len(items) - len(left)} of {len(items)} kept", file=sys.stderr)
    outcomes = _outcomes(function, left, options.workers, until)
    for done, (key, outcome) in enumerate(outcomes, 1):
        kept.add(key, outcome)
        if done % 20 == 0 or done == len(left):
            took = time.monotonic() - began
            print(f"{what}: {done} of {len(left)} ({took:.0f} s)", file=sys.stderr)
    return [kept.outcomes[key] for key in items if key in kept.outcomes]


def _outcomes(
    function: Callable[[Any], Outcome], items: Sequence[tuple[str, Any]], workers: int,
    until: float,
) -> Iterator[tuple[str, Outcome]]:  # fmt: skip
    """As they are done, so that none waits for a slow one to be kept; none begins after ``until``
    (of the monotonic clock)."""
    if workers == 1:
        for key, item in items:
            if time.monotonic() >= until:
                return
            yield key, function(item)
        return
    context = multiprocessing.get_context("spawn")
    left = iter(items)
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        running = {pool.submit(function, item): key for key, item in islice(left, 2 * workers)}
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()
            if time.monotonic() < until:
                running |= {
                    pool.submit(function, item): key for key, item in islice(left, len(done))
                }


def below_bar(scores: Scores, options: argparse.Namespace) -> list[str]:
    """What falls short of the bar; a figure without jobs is no pass."""
    bars = (
        ("top-1 cause and culprit", scores.top1, options.min_top1, True),
        ("healthy jobs with a major finding", scores.false_major, options.max_false_major, False),
        ("both of two faults named", scores.both, options.min_both, True),
    )
    found = []
    for name, value, bar, is_floor in bars:
        if value is None:
            found.append(f"{name}: no job measured it")
        elif value < bar if is_floor else value > bar:
            found.append(f"{name}: {value:.1%}, the bar is {bar:.0%}")
    if scores.errors:
        found.append(f"{scores.errors} jobs could not be diagnosed")
    return found


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", choices=("report", "tune"), default="report")
    parser.add_argument("--count", type=int, default=3, help="seeds of that set (default 3)")
    parser.add_argument(
        "--first", type=int, default=0, help="leave out so many: seeds whose misses were read"
    )
    parser.add_argument("--healthy", type=int, default=13, help="healthy jobs a seed (default 13)")
    parser.add_argument("--all", action="store_true", help="also all jobs of rules not built")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", default="", help="only cases whose key holds these words")
    parser.add_argument("--minutes", type=float, help="begin no case after so long; report then")
    parser.add_argument(
        "--reliability", type=Path, help="write what findings quote (tracekit/reliability.json)"
    )
    parser.add_argument("--keep", type=Path, default=FOLDER, help="where outcomes are kept")
    parser.add_argument("--min-top1", type=float, default=0.95)
    parser.add_argument("--max-false-major", type=float, default=0.01)
    parser.add_argument("--min-both", type=float, default=0.80)
    parser.add_argument("--docs", type=Path, help="write the tables here (docs/accuracy.md)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; 1 below the bar."""
    options = options_of(arguments)
    all_seeds = REPORTING_SEEDS if options.seeds == "report" else TUNING_SEEDS
    seeds = all_seeds[options.first : options.first + options.count]
    rules = built_rules()
    cases = build(seeds, rules, healthy_per_seed=options.healthy, is_all=options.all)
    checkable = {f.name for f in FAULTS if is_checkable(f, rules)}
    cases = [c for c in cases if options.only in c.key]
    kept = Kept(options.keep / f"{code_hash()}.jsonl")
    outcomes = _all(run_case, {c.key: c for c in cases}, options, kept, "simulated")
    names = sorted(p.parent.name for p in RECORDED.glob("*/truth.json"))
    recorded = _all(run_recorded, {f"recorded {n}": n for n in names}, options, kept, "recorded")
    scores = score(outcomes, checkable)
    known = {f["fault"] for o in recorded for f in o.truth["faults"]}
    seen = score(recorded, known)
    truths = Truths()
    judged = [look(name, truths) for name in truths.by_name if options.only in f"twin {name}"]
    text = report.markdown(
        scores, recorded, seeds, options.seeds, rules, cases_count=len(cases),
        recorded_scores=seen, twins=judged,
    )  # fmt: skip
    print(text)
    if options.reliability is not None:
        found = report.reliability(scores, seen, seeds, options.seeds)
        options.reliability.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    if options.docs is not None:
        older = options.docs.read_text() if options.docs.exists() else ""
        options.docs.write_text(keeping(keeping(text, older, PRICES), older, HISTORIES))
    failures = below_bar(scores, options)
    for line in failures:
        print(f"below the bar: {line}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
