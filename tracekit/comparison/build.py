"""From the rows of both sides to a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from msgspec.structs import replace

from tracekit.comparison import moved
from tracekit.comparison.attribution import attribution, mean_step_s
from tracekit.comparison.configuration import configuration
from tracekit.comparison.interval import MIN_STEPS
from tracekit.comparison.matching import all_calls
from tracekit.comparison.model import (
    SCHEMA_VERSION,
    ComparedRun,
    Comparison,
    Contribution,
    NotCompared,
    Side,
    StepChange,
    are_single,
)
from tracekit.comparison.sides import RunRows
from tracekit.comparison.verdict import verdict
from tracekit.version import __version__

SINGLE_RUNS = NotCompared(
    what="how much runs of one job differ",
    why="each side is one run; 1 % is assumed, and a busier machine or other nodes can make more: "
    "give several runs of each side",
)


def compare(baseline: Sequence[RunRows], candidate: Sequence[RunRows]) -> Comparison:
    """The candidate beside the baseline; each at least one run. Opens nothing."""
    baseline, candidate = _on_one_basis(baseline, candidate)
    sides = _side(baseline), _side(candidate)
    change: StepChange | None = None
    contributions: tuple[Contribution, ...] = ()
    if all(run.step_charges for run in (*baseline, *candidate)):
        change, contributions = attribution(baseline, candidate)
    step_s = max(sides[0].mean_s or 0.0, sides[1].mean_s or 0.0)
    edited, sums, unmatched = all_calls(baseline, candidate, step_s)
    not_compared = (
        *_not_compared(baseline, candidate),
        *(
            [SINGLE_RUNS]
            if change is not None and change.is_significant and are_single(*sides)
            else ()
        ),
        *unmatched,
    )
    return Comparison(
        schema_version=SCHEMA_VERSION,
        tracekit_version=__version__,
        verdict=verdict(change, contributions, sides, not_compared),
        baseline=sides[0],
        candidate=sides[1],
        step=change,
        attribution=contributions,
        classes=moved.classes(baseline, candidate),
        ranks=moved.ranks(baseline, candidate) if _worlds(baseline) == _worlds(candidate) else (),
        stages=moved.stages(baseline, candidate),
        operators=moved.operators(baseline, candidate, step_s),
        kernels=moved.kernels(baseline, candidate, step_s),
        collectives=moved.collectives(baseline, candidate),
        groups=moved.groups(baseline, candidate),
        counters=moved.counters(baseline, candidate),
        calls=tuple(edited),
        matched=tuple(sums),
        configuration=configuration(baseline, candidate),
        findings=moved.findings(baseline, candidate),
        not_compared=not_compared,
    )


def _on_one_basis(
    baseline: Sequence[RunRows], candidate: Sequence[RunRows]
) -> tuple[Sequence[RunRows], Sequence[RunRows]]:
    """By the training logs, where some run has no profiled steps and each has a log: the whole
    job's steps beside a few profiled ones would be compared with other steps."""
    runs = (*baseline, *candidate)
    if all(run.step_charges for run in runs) or not all(run.of("job_step_curve") for run in runs):
        return baseline, candidate
    return tuple([replace(run, is_by_log=True) for run in side] for side in (baseline, candidate))  # type: ignore[return-value]  # two sides


def _side(runs: Sequence[RunRows]) -> Side:
    lengths_s = [run.lengths_s for run in runs]
    medians_s = [step for steps, _ in lengths_s for step in steps]
    longest_s = [step for _, steps in lengths_s for step in steps]
    means = [mean for run in runs if (mean := mean_step_s(run)) is not None]
    return Side(
        runs=tuple(
            ComparedRun(
                id=run.id,
                ranks_count=len(run.ranks),
                world_size=run.document.run.world_size,
                steps_count=run.steps_count,
                mean_s=mean_step_s(run),
            )
            for run in runs
        ),
        steps_count=sum(run.steps_count for run in runs),
        warmup_count=sum(len(run.steps.warmup_keys) for run in runs if not run.is_by_log),
        mean_s=sum(means) / len(means) if means else None,
        p50_s=median(medians_s) if medians_s else None,
        max_s=max(longest_s) if longest_s else None,
    )


def _worlds(runs: Sequence[RunRows]) -> list[int]:
    """How many ranks the jobs of a side have."""
    return sorted({run.document.run.world_size or len(run.ranks) for run in runs})


def _not_compared(
    baseline: Sequence[RunRows], candidate: Sequence[RunRows]
) -> Iterator[NotCompared]:
    """What a side lacks, and what differs so much that it cannot be compared."""
    runs = (*baseline, *candidate)
    for run in runs:
        if not run.step_charges:
            yield NotCompared(
                what=f"the step of {run.id}",
                why="it has no steady step; profile five or more steps after warm-up",
            )
        elif run.is_by_log:
            yield NotCompared(
                what=f"what the step of {run.id} is made of",
                why="its steps are its training log's; profile some of both jobs",
            )
        elif len(run.step_charges) < MIN_STEPS:
            yield NotCompared(
                what=f"how sure the difference is, for {run.id}", why="it has one steady step"
            )
        elif not len(run.steps):
            yield NotCompared(
                what=f"what the step of {run.id} is made of",
                why="its operations were timed, and nothing says what ranks did otherwise",
            )
        elif not run.has_path:
            yield NotCompared(
                what=f"who waited for whom in {run.id}",
                why="no moments of its ranks can be set beside each other (clocks or files lack)",
            )
    worlds = _worlds(baseline), _worlds(candidate)
    if worlds[0] != worlds[1]:
        sizes = " and ".join(", ".join(map(str, world)) for world in worlds)
        yield NotCompared(
            what="rank by rank", why=f"the jobs have {sizes} ranks: a rank's work differs by itself"
        )
    for run in runs:
        for query, why in run.unavailable.items():
            yield NotCompared(what=f"{query} of {run.id}", why=why)
    for name, tables in _SOURCES:
        has = [any(run.of(table) for run in side for table in tables)
               for side in (baseline, candidate)]  # fmt: skip
        if has[0] != has[1]:
            lacking = "baseline" if has[1] else "candidate"
            yield NotCompared(what=name, why=f"the {lacking} has none")


_SOURCES = (
    ("counters of GPUs", ("gpu_counters",)),
    ("counters of ports", ("port_counters",)),
    ("communication", ("traffic", "exposed_comm_by_op")),
)
"""What a side may have and the other not, and the queries that show it."""
