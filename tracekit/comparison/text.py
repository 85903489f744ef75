"""A comparison for a terminal. Everything that came from a foreign file passes ``wording.safe``."""

from __future__ import annotations

from tracekit.comparison.model import Comparison, Contribution, Side
from tracekit.comparison.tables import Table, tables
from tracekit.comparison.verdict import deed, signed, steps_words
from tracekit.report.page import MIN_WIDTH, Page
from tracekit.wording import plural, seconds, some

SHOWN_PARTS = 6
SHOWN_ROWS = 5
"""Rows of a table without --all."""
SHOWN_RUNS = 3
SHOWN_RATIO = 0.01
"""Share of the step from which a contribution is shown without --all."""
MAX_CELL = 44
"""Characters of a cell without --all: names of kernels are cut, numbers never are."""
_COLORS = {"slower": "31;1", "faster": "32;1", "no significant change": "32;1"}
_LABELS = {
    "Configuration": "CONFIG",
    "Findings": "FINDINGS",
    "Calls": "CALLS",
    "A rank's step": "CLASSES",
    "Ranks": "RANKS",
    "Stages": "STAGES",
    "Operators and ranges": "OPERATORS",
    "Kernels and copies": "KERNELS",
    "Collectives": "COMM",
    "Groups": "GROUPS",
    "Counters": "COUNTERS",
}


def to_text(
    comparison: Comparison, *, everything: bool = False, color: bool = False, width: int = 110
) -> str:
    """The comparison as lines, with a final newline."""
    page = Page(width=max(width, MIN_WIDTH), color=color)
    for label, side in (("baseline", comparison.baseline), ("candidate", comparison.candidate)):
        page.say("", "  ".join(side_parts(side)), lead=f"{label:<11}")
    page.blank()
    change = comparison.verdict.change
    page.say("VERDICT", comparison.verdict.sentence, _COLORS.get(change, "33;1"))
    for i, parts in enumerate(step_parts(comparison)):
        page.say("" if i else "STEP", "   ".join(parts))
    _attribution(page, comparison, everything=everything)
    for table in tables(comparison):
        if table.title in _LABELS:
            _table(page, table, everything=everything)
    for i, lack in enumerate(comparison.not_compared):
        if i == 0:
            page.blank()
        label = "NOT COMPARED" if i == 0 else ""
        page.say(label, f"{lack.what}: {lack.why}", lead="   ")
    return page.text(None)


def side_parts(side: Side) -> tuple[str, str]:
    """Which runs; how many ranks and steps."""
    runs = some([run.id for run in side.runs], SHOWN_RUNS)
    ranks_count = max(run.ranks_count for run in side.runs)
    ranks = plural(ranks_count, "rank") if ranks_count else "no traces"
    warmup = f", {side.warmup_count} warm-up left out" if side.warmup_count else ""
    return runs, f"{ranks}, {steps_words(side)}{warmup}"


def step_parts(comparison: Comparison) -> list[tuple[str, str]]:
    """The step on both sides, then its difference and how sure that is; median steps, then the
    longest. None without steps."""
    change, base, other = comparison.step, comparison.baseline, comparison.candidate
    if change is None or base.mean_s is None or other.mean_s is None:
        return []
    apart = signed(change.difference_s)
    if change.low_s is not None and change.high_s is not None:
        apart += f" ({signed(change.low_s)} to {signed(change.high_s)} with 95 %: {change.method})"
    p50, most = (base.p50_s or 0, other.p50_s or 0), (base.max_s or 0, other.max_s or 0)
    return [
        (f"{seconds(base.mean_s)} -> {seconds(other.mean_s)}", apart),
        (
            f"p50 {seconds(p50[0])} -> {seconds(p50[1])}",
            f"max {seconds(most[0])} -> {seconds(most[1])}",
        ),
    ]


def _attribution(page: Page, comparison: Comparison, *, everything: bool) -> None:
    change = comparison.step
    if change is None or not comparison.attribution:
        return
    parts = [c for c in comparison.attribution if c.difference.difference_s]
    shown = parts if everything else [c for c in parts if _is_worth(c, comparison)][:SHOWN_PARTS]
    if not shown:
        return
    page.blank()
    for i, part in enumerate(shown):
        page.say(
            "BECAUSE" if i == 0 else "",
            _part_words(part),
            lead=f"{signed(part.difference.difference_s):>10}  ",
        )
    rest_s = change.difference_s - sum(c.difference.difference_s for c in shown)
    left = len(parts) - len(shown)
    if left:
        page.say("", f"{plural(left, 'smaller part')}: --all", lead=f"{signed(rest_s):>10}  ")


def _is_worth(part: Contribution, comparison: Comparison) -> bool:
    step_s = comparison.baseline.mean_s or 0.0
    return part.is_significant or abs(part.difference.difference_s) >= SHOWN_RATIO * step_s


def _part_words(part: Contribution) -> str:
    words = f"{deed(part)}   {seconds(part.baseline_s)} -> {seconds(part.candidate_s)}"
    if not part.is_significant:
        words += " (may be chance)"
    if part.findings:
        words += f"  [{', '.join(part.findings)}]"
    return words


def _table(page: Page, table: Table, *, everything: bool) -> None:
    """A table under its label, numbers in line, the last column as it comes."""
    shown = list(table.rows if everything else table.rows[:SHOWN_ROWS])
    cells = [[c if everything else _cut(c) for c in row] for row in shown]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    page.blank()
    for i, row in enumerate(cells):
        padded = [c.ljust(width) for c, width in zip(row, widths, strict=True)]
        page.row(padded, label=_LABELS[table.title] if i == 0 else "")
    if len(shown) < len(table.rows):
        page.row([f"{len(table.rows) - len(shown)} more: --all"])
    if table.note:
        page.say("", table.note)


def _cut(cell: str) -> str:
    return cell if len(cell) <= MAX_CELL else f"{cell[: MAX_CELL - 3]}..."
