"""The report as one page: a file that opens anywhere and asks for nothing.

What came from a foreign file is escaped twice over: ``wording.safe`` makes what is unprintable
visible, and the template escapes what HTML would take for its own. The page forbids everything but
its own style and script, by their hashes, so that nothing that slipped through would run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tracekit.dashboards.drawing import SECTIONS, NotDrawn, Table, attempted
from tracekit.findings import BudgetPart, Evidence, Finding
from tracekit.report.finding_words import (
    amount_words,
    bench_words,
    cost_words,
    limit_words,
    price_per,
    scope_words,
    sure_words,
)
from tracekit.report.job_words import beyond_words, part_words, sum_words, title_parts
from tracekit.report.model import Document, InputFile, Report
from tracekit.report.text import more_commands
from tracekit.report.unchecked import unchecked_by_need
from tracekit.target import COMMAND
from tracekit.version import __version__
from tracekit.wording import natural, plural, safe, seconds, share, tied

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from tracekit.dashboards.drawing import Chart, Drawing, Listing

    _Shown = dict[str, Any] | NotDrawn | None
    _Parts = Sequence[tuple[Chart | Listing, _Shown | Table]]

MAX_INPUTS = 2_000
"""Files that the page lists: those with something to say come first."""
SHOWN_ISSUES = 12
SHOWN_RECORDS = 3
_VERDICT_WORDS = {"inherent": "nothing to fix"}
"""Kinds of verdicts whose name says nothing to a reader."""
_PART_COLOURS = {
    "floor": "blue",
    "other_waiting": "orange",
    "bubble": "sky",
    "host": "grey",
    "unexplained": "muted",
}

Drawings = Sequence["tuple[Chart, Drawing | NotDrawn | None]"]
Tables = Sequence["tuple[Listing, Table | NotDrawn | None]"]


def to_html(report: Report, drawings: Drawings = (), tables: Tables = ()) -> str:
    """The whole report as a page, with a final newline; drawings and tables stand in the section
    that they name, and so does a note of those that could not be made."""
    shown = [(chart, _shown(chart, drawing)) for chart, drawing in drawings]
    parts: _Parts = [*shown, *tables]
    document, notes = report.document, report.notes
    labels = {f.id: f"F{i}" for i, f in enumerate(document.findings, 1)}
    verdict = _verdict(report, labels)
    title, *about = title_parts(document, notes)
    inputs = sorted(document.inputs, key=_quality)
    left = len(inputs) - MAX_INPUTS
    return render(
        "report.html.j2",
        title=title,
        about=", ".join(about),
        data_lines=notes.data_lines,
        verdict=verdict,
        budget=_budget(document, labels),
        findings=[
            _finding(
                document, f, labels, verdict["facts"] if f.id == document.verdict.finding else ()
            )
            for f in document.findings
        ],
        finding_rows=[_finding_row(f, labels) for f in document.findings],
        sections=_sections(parts),
        not_checked=[(", ".join(rules), *rest) for rules, *rest in unchecked_by_need(document)],
        not_drawn=[
            *((c.title, f"needs {c.needs}") for c, figure in shown if figure is None),
            *((about.title, part.why) for about, part in parts if isinstance(part, NotDrawn)),
        ],
        inputs=[_input(f) for f in inputs[:MAX_INPUTS]],
        inputs_left=f"And {plural(left, 'file')} more, read whole." if left > 0 else "",
        commands=_commands(report, shown),
    )


# ---------------------------------------------------------------- any page


def render(template: str, **context: Any) -> str:
    """A template of ``dashboards/templates`` as a page of its own, style and script in it."""
    css, script = _style(), _resource("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _environment().get_template(template)
    return (
        page.render(
            css=_trusted(css),
            script=_trusted(script),
            policy=policy,
            version=__version__,
            **context,
        ).rstrip("\n")
        + "\n"
    )


def shown_figure(chart: Chart, drawing: Drawing) -> dict[str, Any]:
    """A figure as the template's macro takes it."""
    from tracekit.dashboards.look import inline_svg

    return {
        "name": chart.name,
        "title": chart.title,
        "queries": chart.queries,
        "says": drawing.says,
        "svg": _trusted(inline_svg(drawing.figure, chart.name)),
    }


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("tracekit.dashboards", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters["prose"] = _prose
    environment.globals["told"] = _told
    return environment


def _visible(value: Any) -> Any:
    """Every text that a template prints, with what is unprintable made visible."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return safe(re.sub(r"[\r\n\t]+", " ", value))
    return value


def _told(columns: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[int]:
    """Places of the columns in which some row says something; the first is always one."""

    def says(cell: Any) -> bool:
        return (cell[0] if isinstance(cell, tuple) else cell) not in ("", "-")

    return [i for i in range(len(columns)) if i == 0 or any(says(row[i]) for row in rows)]


def _prose(text: str) -> Markup:
    """A sentence of ours with what stands in backticks, or is a command, as code."""
    from markupsafe import Markup

    parts, end = [], 0
    for command in COMMAND.finditer(text):
        parts += [_words(text[end : command.start()]), _code(command[0])]
        end = command.end()
    return Markup("").join([*parts, _words(text[end:])])


def _words(text: str) -> Markup:
    """Words without a command."""
    from markupsafe import Markup, escape

    parts = text.split("`")
    if len(parts) % 2 == 0:  # a lone backtick, from somebody's name
        parts = [text]
    return Markup("").join(
        _code(part) if i % 2 else escape(tied(str(_visible(part)), "\xa0"))
        for i, part in enumerate(parts)
    )


def _code(text: str) -> Markup:
    from markupsafe import Markup

    return Markup("<code>{}</code>").format(_visible(text))


def _trusted(text: str) -> Markup:
    from markupsafe import Markup

    return Markup(text)  # noqa: S704  # our own files, and figures that look.inline_svg sifted


@cache
def _style() -> str:
    from tracekit.dashboards.look import DARK, PALETTE

    def block(colours: Mapping[str, str]) -> str:
        return ":root {" + "".join(f" --{name}: {c};" for name, c in colours.items()) + " }\n"

    dark = f"@media (prefers-color-scheme: dark) {{ {block(DARK)} }}\n"
    # What is printed is on white paper, whatever the screen's colours are.
    return block(PALETTE) + dark.replace("@media (", "@media screen and (") + _resource("page.css")


@cache
def _resource(name: str) -> str:
    folder = files("tracekit.dashboards") / "templates"
    return (folder / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


# ---------------------------------------------------------------- parts of a report


def _verdict(report: Report, labels: Mapping[str, str]) -> dict[str, Any]:
    document, notes = report.document, report.notes
    verdict = document.verdict
    cause = next((f for f in document.findings if f.id == verdict.finding), None)
    facts: list[tuple[str, Sequence[str]]] = []
    if cause is not None:
        if notes.identity:
            facts.append(("Where", [notes.identity]))
        facts.append(("Cost", [cost_words(document, cause)]))
        facts.append(("Sure", [sure_words(cause)]))
        facts += _to_do(cause)
    elif notes.next_step:
        facts.append(("Next", [notes.next_step]))
    return {
        "kind": verdict.kind,
        "words": _VERDICT_WORDS.get(verdict.kind, verdict.kind.replace("_", " ")),
        "sentence": verdict.sentence,
        "label": labels.get(verdict.finding or ""),
        "facts": facts,
    }


def _to_do(finding: Finding) -> list[tuple[str, Sequence[str]]]:
    told = (
        ("Confirm", finding.confirm),
        ("Act", finding.remedy),
        ("Capture next", finding.next_capture),
    )
    return [(name, texts) for name, texts in told if texts]


def _budget(document: Document, labels: Mapping[str, str]) -> dict[str, Any] | None:
    step_s = sum(p.s_per_step for p in document.step_budget)
    if step_s <= 0:
        return None
    parts: list[dict[str, Any]] = []
    at = 0.0
    for part in document.step_budget:
        width = 100 * part.s_per_step / step_s
        if width <= 0 or (part.finding is None and width < MIN_PART_WIDTH):
            continue
        parts.append(
            {
                "at": f"{at:.3f}",
                "width": f"{width:.3f}",
                "colour": _part_colour(part, sum(1 for p in parts if p["label"])),
                "text": f"{part_words(part, {})} {seconds(part.s_per_step)} "
                f"({share(part.s_per_step / step_s)})",
                "label": labels.get(part.finding or ""),
            }
        )
        at += width
    times = document.metrics.step_time
    spread = ""
    if times is not None:
        spread = f"{plural(times.steps_count, 'step')}"
        if times.steps_count > 1:
            spread += f": median {seconds(times.p50_s)}, longest {seconds(times.max_s)}"
        if times.std_s is not None:
            spread += f", standard deviation {seconds(times.std_s)}"
        spread += "."
    return {
        "parts": parts,
        "words": sum_words(document) + ".",
        "beyond": beyond_words(document),
        "spread": spread,
    }


MIN_PART_WIDTH = 0.1
"""Percent of the bar. A part of no finding that is narrower is no pixel wide, and often what
rounding left: 1 ns that nothing explains is not worth a word."""
_FINDING_COLOURS = ("red", "heat7", "heat4", "pink", "heat2")


def _part_colour(part: BudgetPart, index: int) -> str:
    if part.part == "finding":
        return _FINDING_COLOURS[index % len(_FINDING_COLOURS)]
    return _PART_COLOURS[part.part]


def _finding_row(finding: Finding, labels: Mapping[str, str]) -> list[Any]:
    cost = finding.impact.s_per_step
    return [
        (_link(labels[finding.id]), labels[finding.id][1:]),
        (finding.severity.value, finding.severity.weight),
        finding.rule,
        scope_words(finding),
        (price_per(finding), f"{cost or 0:.9f}"),
        finding.owner,
        ", ".join(sorted((labels.get(i, i) for i in finding.explained_by), key=natural)),
    ]


def _link(label: str) -> Markup:
    """A finding's label that leads to it: where a link enters what is folded, a browser unfolds."""
    from markupsafe import Markup

    return Markup('<a href="#{0}">{0}</a>').format(label)


def _finding(
    document: Document,
    finding: Finding,
    labels: Mapping[str, str],
    known: Sequence[tuple[str, Sequence[str]]],
) -> dict[str, Any]:
    """A finding in full, without the facts that the verdict above has told."""
    facts: list[tuple[str, Sequence[str]]] = [
        ("Cost", [cost_words(document, finding)]),
        ("Sure", [sure_words(finding)]),
    ]
    bench = bench_words(finding)
    facts += [("Accuracy bench", [bench])] if bench else []
    for name, ids in (("Explains", finding.explains), ("Explained by", finding.explained_by)):
        if ids:
            told = sorted((f"{labels[i]} {i}" if i in labels else i for i in ids), key=natural)
            facts.append((name, [", ".join(told)]))
    if finding.when.start_utc and finding.when.end_utc:
        facts.append(("When", [f"{finding.when.start_utc} to {finding.when.end_utc}"]))
    facts += _to_do(finding)
    rows = [_evidence(e) for e in finding.evidence]
    rows += [_evidence(e, "against: ") for e in finding.counter_evidence]
    return {
        "label": labels[finding.id],
        "id": finding.id,
        "severity": finding.severity.value,
        "summary": finding.summary,
        "facts": [fact for fact in facts if fact not in known],
        "evidence": rows,
    }


def _evidence(evidence: Evidence, prefix: str = "") -> list[Any]:
    places: dict[str, list[str]] = {}
    for record in evidence.rows[:SHOWN_RECORDS]:
        places.setdefault(record.source, []).append(str(record.place))
    records = [f"{source} at {', '.join(where)}" for source, where in places.items()]
    more = len(evidence.rows) - SHOWN_RECORDS
    return [
        prefix + evidence.name,
        amount_words(evidence.value, evidence.unit),
        limit_words(evidence),
        evidence.query or "",
        "; ".join(records) + (f"; {more} more" if more > 0 else ""),
    ]


def _shown(chart: Chart, drawing: Drawing | NotDrawn | None) -> _Shown:
    if drawing is None or isinstance(drawing, NotDrawn):
        return drawing
    return attempted(lambda: shown_figure(chart, drawing))


def _sections(parts: _Parts) -> list[dict[str, Any]]:
    sections = []
    for name, title in SECTIONS.items():
        held = [
            (about, part) for about, part in parts if about.section == name and part is not None
        ]
        if held:
            sections.append(
                {
                    "name": name,
                    "title": title,
                    "figures": [part for _, part in held if isinstance(part, dict)],
                    "tables": [part for _, part in held if isinstance(part, Table)],
                    "not_drawn": [
                        (about.title, part.why)
                        for about, part in held
                        if isinstance(part, NotDrawn)
                    ],
                }
            )
    return sections


def _quality(file: InputFile) -> int:
    """0 where something of a file is lost or repaired, 1 where something was counted, 2 else."""
    if file.status != "ok" or any(i.severity != "info" for i in file.issues):
        return 0
    return 1 if file.issues else 2


def _input(file: InputFile) -> list[Any]:
    issues = [
        f"{i.count:,} {i.name} ({i.severity}{f', {i.place}' if i.place else ''})"
        for i in file.issues[:SHOWN_ISSUES]
    ]
    left = len(file.issues) - SHOWN_ISSUES
    issues += [f"{left} more kinds"] if left > 0 else []
    told = "; ".join(_known([file.reason, *issues]))
    return [file.path, file.kind, file.status, (f"{file.rows:,}", file.rows), told]


def _known(texts: Iterable[str | None]) -> list[str]:
    return [t for t in texts if t]


def _commands(report: Report, shown: Sequence[tuple[Chart, _Shown]]) -> list[str]:
    target = report.target
    commands = [target.command("diagnose", "--format", "html", "-o", "report.html")]
    if report.findings:
        commands += more_commands(report)
    first = next((chart for chart, figure in shown if isinstance(figure, dict)), None)
    if first is not None:
        commands.append(target.command("query", first.queries[0]))
        if len(target.paths) == 1:
            commands.append(target.command("plot", first.name, "-o", f"{first.name}.svg"))
    return commands
