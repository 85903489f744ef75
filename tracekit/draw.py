"""From an open run to a timeline file: which part, which rows, which marks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tracekit import catalog, store
from tracekit.errors import InputError
from tracekit.rules.steps import utc
from tracekit.timeline import (
    DEFAULT_MAX_SLICES,
    Detail,
    Mark,
    Plan,
    RankLine,
    Row,
    Written,
    plan,
    write,
)
from tracekit.wording import runs

if TYPE_CHECKING:
    from tracekit.findings import Finding
    from tracekit.report.model import Report

MAX_EVIDENCE = 12
"""Lines of evidence that a finding shows on the timeline; ``tracekit show`` has them all."""


def draw(
    run: store.Run,
    path: Path,
    *,
    report: Report | None = None,
    max_slices: int | None = None,
    detail: Detail = "all",
    memory_bytes: int | None = None,
) -> Written:
    """Write the timeline of an open run.

    InputError where nothing is selected, UsageError where the file cannot be written.
    """
    catalog.load_macros(run.con)
    load = _rows(run, "timeline_load")
    if not load:
        raise InputError("nothing to draw: no slice is selected", hint="check --ranks and --steps")
    findings = report.findings if report is not None else ()
    chosen = plan(
        load,
        max_slices or DEFAULT_MAX_SLICES,
        focus_steps=_steps(findings[:1]),
        focus_ranks=findings[0].scope.ranks if findings else (),
        detail=detail,
    )
    if chosen.steps is None and chosen.ranks is None and chosen.until_ns is None:
        return _draw(run, path, report, chosen)
    with store.open_run(run.path, _narrowed(run, chosen), memory_bytes=memory_bytes) as part:
        catalog.load_macros(part.con)
        return _draw(part, path, report, chosen)


def _narrowed(run: store.Run, chosen: Plan) -> store.Selection:
    selection = run.selection
    if chosen.steps is not None:
        selection = replace(selection, steps=runs(chosen.steps))
    if chosen.ranks is not None:
        selection = replace(selection, ranks=runs(chosen.ranks))
    if chosen.until_ns is not None:
        selection = replace(selection, until_ns=chosen.until_ns)
    return selection


def _draw(run: store.Run, path: Path, report: Report | None, chosen: Plan) -> Written:
    findings = report.findings if report is not None else ()
    everybody = set(report.document.run.ranks) if report is not None else set()
    catalog.load_macros(run.con)
    load = _rows(run, "timeline_load")
    clocks = _rows(run, "rank_clocks")
    lines, origin_ns = _lines(load, clocks)
    is_epoch = bool(clocks) and all(c["basis"] == "epoch" for c in clocks)
    return write(
        path,
        _slices(run, chosen.detail),
        lines,
        _marks(
            findings,
            _spans(run, lines),
            load,
            origin_ns,
            {line.rank for line in lines},
            everybody,
        ),
        origin_ns=origin_ns,
        cuts=chosen.cuts,
        about={
            "run": str(run.path.name),
            "zero_utc": utc(origin_ns) if is_epoch else None,
            "sources": {str(r["source_id"]): str(r["path"]) for r in _rows(run, "job_sources")},
        },
    )


def _rows(run: store.Run, query: str) -> list[dict[str, Any]]:
    return catalog.run(run.con, query).to_pylist()  # type: ignore[no-any-return]  # pyarrow is untyped


def _slices(run: store.Run, detail: Detail) -> Iterator[Row]:
    for batch in catalog.stream(run.con, "timeline_slices", detail=detail):
        yield from batch.to_pylist()


def _lines(load: Sequence[Row], clocks: Sequence[Row]) -> tuple[list[RankLine], int]:
    """The ranks that have anything to draw, and the first moment of those on one clock."""
    first: dict[int, int] = {}
    for row in load:
        rank, start = int(row["rank"]), int(row["start_ns"])
        first[rank] = min(start, first.get(rank, start))
    by_rank: dict[int, list[Row]] = {}
    for row in clocks:
        by_rank.setdefault(int(row["rank"]), []).append(row)
    apart = {r for r, captures in by_rank.items() if not all(c["is_comparable"] for c in captures)}
    # Where nobody can be compared, the first rank is as good a zero as any.
    shared = [start for rank, start in first.items() if rank not in apart] or [*first.values()]
    origin_ns = min(shared, default=0)
    lines = []
    for rank, start in sorted(first.items()):
        captures = by_rank.get(rank, [])
        errors = [c["error_ns"] for c in captures]
        lines.append(
            RankLine(
                rank,
                start if rank in apart else origin_ns,
                host=next((str(c["host"]) for c in captures if c["host"] is not None), None),
                error_ns=None if None in errors else max(errors, default=None),
                is_comparable=rank not in apart,
            )
        )
    return lines, origin_ns


# --- findings -----------------------------------------------------------------------------------


def _steps(findings: Sequence[Finding]) -> list[int]:
    return [
        step
        for finding in findings
        for low, high in finding.scope.steps
        for step in range(low, min(high, low + 1_000_000) + 1)
    ]


def _spans(run: store.Run, lines: Sequence[RankLine]) -> dict[int, tuple[int, int]]:
    """First start and last end of each step, over the ranks whose clocks can be compared."""
    usable = {line.rank for line in lines if line.is_comparable}
    spans: dict[int, tuple[int, int]] = {}
    for row in _rows(run, "step_time"):
        if int(row["rank"]) not in usable or row["start_ns"] is None:
            continue
        step, start = int(row["step"]), int(row["start_ns"])
        end = start + int(row["dur_ns"])
        a, b = spans.get(step, (start, end))
        spans[step] = (min(a, start), max(b, end))
    return spans


def _marks(
    findings: Sequence[Finding],
    spans: Mapping[int, tuple[int, int]],
    load: Sequence[Row],
    origin_ns: int,
    drawn: set[int],
    everybody: set[int],
) -> list[Mark]:
    """A mark for each finding; one that holds for no drawn step marks nothing, and says so."""
    last_ns = max((int(r["last_start_ns"]) for r in load), default=origin_ns)
    marks = []
    for number, finding in enumerate(findings, start=1):
        stretches = []
        for low, high in finding.scope.steps:
            within = [spans[s] for s in spans if low <= s <= high]
            if within:
                stretches.append((min(a for a, _ in within), max(b for _, b in within)))
        is_outside = bool(finding.scope.steps) and not stretches
        if not finding.scope.steps and last_ns > origin_ns:
            stretches = [(origin_ns, last_ns)]
        outside = " (in steps that are not drawn)" if is_outside else ""
        marks.append(
            Mark(
                label=f"F{number} {finding.rule}{outside}",
                title=finding.summary,
                spans=_apart(stretches),
                ranks=tuple(r for r in _own_ranks(finding, everybody) if r in drawn),
                details=_details(finding),
            )
        )
    return marks


def _own_ranks(finding: Finding, everybody: set[int]) -> tuple[int, ...]:
    """The ranks that the finding is about; none where it is about all."""
    ranks = finding.scope.ranks
    return () if everybody <= set(ranks) else ranks


def _apart(stretches: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """In order, and none within another: steps of several ranks reach into each other."""
    holes: list[tuple[int, int]] = []
    for start, end in sorted(stretches):
        begin = max(start, holes[-1][1]) if holes else start
        if end > begin:
            holes.append((begin, end))
    return tuple(holes)


def _details(finding: Finding) -> dict[str, str]:
    cost = finding.impact.s_per_step
    details = {
        "finding": finding.id,
        "severity": finding.severity.value,
        "confidence": f"{finding.confidence.level}: {finding.confidence.basis}",
        f"cost_s_per_{finding.impact.per}": "unknown" if cost is None else f"{cost:.6g}",
    }
    for evidence in finding.evidence[:MAX_EVIDENCE]:
        details[evidence.name] = f"{evidence.value:.6g} {evidence.unit}"
    for index, text in enumerate((*finding.confirm, *finding.remedy), start=1):
        details[f"do_{index}"] = text
    return details
