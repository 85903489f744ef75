"""The parts of a comparison as tables of words: what Markdown and pages show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from tracekit.comparison.model import Comparison, Edited, Moved, MovedPart
from tracekit.comparison.verdict import deed, signed
from tracekit.report.finding_words import amount_words
from tracekit.wording import nameless, seconds, share, some

Rows = Sequence[Sequence[str]]
NAMES = 4
"""Names of calls that a cell has."""
_AMOUNTS = frozenset({"difference", "may lie", "baseline", "candidate", "change", "calls", "times"})
_WORDS = {
    "Configuration": frozenset({"baseline", "candidate"}),
    "Findings": frozenset({"change"}),
    "Calls": frozenset({"change"}),
}
"""Columns of those names that hold words in a table, not amounts."""


class Table(Struct, frozen=True):
    """A titled table; every row has a cell a column."""

    title: str
    head: tuple[str, ...]
    rows: Rows
    note: str = ""
    """What must be known to read it."""

    @property
    def amounts(self) -> frozenset[str]:
        """The columns of amounts, which stand in line at the right."""
        return _AMOUNTS.intersection(self.head) - _WORDS.get(self.title, frozenset())


def title(comparison: Comparison) -> str:
    """What a document of a comparison is called."""
    return f"{comparison.verdict.change.capitalize()}: two runs beside each other"


def tables(comparison: Comparison) -> list[Table]:
    """The tables that have rows, what matters most first."""
    made = [make(comparison) for make in _TABLES]
    return [table for table in made if table.rows]


def _attribution(comparison: Comparison) -> Table:
    return Table(
        "What the difference is made of",
        ("difference", "may lie", "what", "baseline", "candidate", "findings"),
        [
            (
                signed(c.difference.difference_s),
                "-"
                if c.difference.low_s is None or c.difference.high_s is None
                else f"{signed(c.difference.low_s)} to {signed(c.difference.high_s)}",
                deed(c),
                seconds(c.baseline_s),
                seconds(c.candidate_s),
                ", ".join(c.findings),
            )
            for c in comparison.attribution
            if c.difference.difference_s
        ],
    )


def _configuration(comparison: Comparison) -> Table:
    return Table(
        "Configuration",
        ("what", "baseline", "candidate"),
        [(c.name, c.baseline or "-", c.candidate or "-") for c in comparison.configuration],
        note="What else changed; that it is the cause is not proved.",
    )


def _findings(comparison: Comparison) -> Table:
    return Table(
        "Findings",
        ("change", "finding", "baseline", "candidate", "what it says"),
        [
            (f.change, f.id, _cost(f.baseline_s), _cost(f.candidate_s), f.summary)
            for f in comparison.findings
        ],
    )


def _cost(cost_s: float | None) -> str:
    return "-" if cost_s is None else f"{seconds(cost_s)}/step"


def _calls(comparison: Comparison) -> Table:
    """Edits, and what the same calls take, so that the rows of a kind add up to its difference."""
    head = ("difference", "change", "what", "within", "times", "baseline", "candidate")
    edits = [
        (
            signed(e.candidate_s - e.baseline_s),
            e.edit,
            f"{e.kind} {_names(e)}",
            e.path or "the step",
            str(e.count),
            seconds(e.baseline_s),
            seconds(e.candidate_s),
        )
        for e in comparison.calls
    ]
    same = [
        (
            signed(m.same_candidate_s - m.same_baseline_s),
            "same",
            f"all other {m.kind}s{'' if m.stage is None else f' of stage {m.stage}'}",
            "the step",
            str(m.same_count),
            seconds(m.same_baseline_s),
            seconds(m.same_candidate_s),
        )
        for m in comparison.matched
    ]
    return Table("Calls", head, [*edits, *same] if edits else [])


def _names(edited: Edited) -> str:
    """``a`` of what one side alone has; else ``a, b -> c``."""
    before, after = (some(names, NAMES) for names in (edited.baseline, edited.candidate))
    if edited.edit in ("changed", "moved") or not (before and after):
        return before or after
    return f"{before} -> {after}"


def moved_cells(row: Moved) -> tuple[str, str, str, str]:
    """What moved, before, after and by how much."""
    shown = [_value(row.baseline, row.unit), _value(row.candidate, row.unit)]
    if row.baseline is None or row.candidate is None:
        return row.name, shown[0], shown[1], "-"
    change = (
        f"{'+' if row.candidate >= row.baseline else '-'}"
        f"{share(abs(row.candidate / row.baseline - 1))}"
        if row.baseline
        else "-"
    )
    return row.name, shown[0], shown[1], change


def _value(value: float | None, unit: str) -> str:
    return "-" if value is None else amount_words(value, unit)


def part_cells(row: MovedPart) -> tuple[str, str, str, str, str]:
    """By how much a part moved, what it is, its time and calls before and after."""
    where = f" in {row.path}" if row.path else ""
    calls = f"{row.baseline_calls_count:.4g} -> {row.candidate_calls_count:.4g}"
    return (
        signed(row.candidate_s - row.baseline_s),
        f"{row.name or nameless(row.kind)}{where}",
        seconds(row.baseline_s),
        seconds(row.candidate_s),
        calls,
    )


def _moved(title: str, rows_of: Callable[[Comparison], Sequence[Moved]]) -> _Maker:
    head = ("what", "baseline", "candidate", "change")
    return lambda comparison: Table(title, head, [moved_cells(r) for r in rows_of(comparison)])


def _parts(title: str, rows_of: Callable[[Comparison], Sequence[MovedPart]]) -> _Maker:
    head = ("difference", "what", "baseline", "candidate", "calls")
    return lambda comparison: Table(title, head, [part_cells(r) for r in rows_of(comparison)])


def _not_compared(comparison: Comparison) -> Table:
    rows = [(n.what, n.why) for n in comparison.not_compared]
    return Table("Not compared", ("what", "why"), rows)


_Maker = Callable[[Comparison], Table]
_TABLES: tuple[_Maker, ...] = (
    _attribution,
    _configuration,
    _findings,
    _calls,
    _moved("A rank's step", lambda c: c.classes),
    _moved("Ranks", lambda c: c.ranks),
    _moved("Stages", lambda c: c.stages),
    _parts("Operators and ranges", lambda c: c.operators),
    _parts("Kernels and copies", lambda c: c.kernels),
    _moved("Collectives", lambda c: c.collectives),
    _moved("Groups", lambda c: c.groups),
    _moved("Counters", lambda c: c.counters),
    _not_compared,
)
