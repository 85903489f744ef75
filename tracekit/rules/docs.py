"""The text of docs/rules.md, from the rules themselves."""

from __future__ import annotations

from tracekit.rules import RULES
from tracekit.rules.base import Rule
from tracekit.rules.declared import DOC_HEADINGS
from tracekit.rules.thresholds import Thresholds
from tracekit.rules.unbuilt import UNBUILT


def rules_page(report: Thresholds) -> str:
    """Markdown: every rule with its thresholds, those of the report, then the names that have no
    rule yet."""
    lines = [
        "# Rules",
        "",
        "Generated from `tracekit/rules/`; change the rule, not this page. Thresholds can be set",
        "in `tracekit.toml`, as `[rules.<name>]` with the field names below. What a source calls",
        "Diagnosis, and D1 to D34 in reasons, are explained in [diagnoses.md](diagnoses.md).",
        "",
        "| rule | says | blames |",
        "|---|---|---|",
    ]
    lines += [
        f"| [{r.name}](#{r.name}) | {r.summary} | {'a culprit' if r.names_culprit else 'nobody'} |"
        for r in RULES
    ]
    for rule in RULES:
        lines += ["", *_rule_section(rule)]
    lines += [
        "",
        "## The report",
        "",
        "What holds for all rules, and where none found anything: `[report]` in `tracekit.toml`.",
        "",
        *_thresholds(report),
        "",
        "## Not built yet",
        "",
        "Every report lists these under what was not checked.",
        "",
        "| about | rule | needs | until then |",
        "|---|---|---|---|",
    ]
    lines += [f"| {u.topic} | {u.rule} | {u.needs} | {u.by_hand} |" for u in UNBUILT]
    return "\n".join(lines) + "\n"


def _rule_section(rule: Rule) -> list[str]:
    lines = [f"## {rule.name}", "", rule.summary, ""]
    for line in rule.doc.splitlines():
        lines.append(f"**{line}**  " if line in DOC_HEADINGS else line.strip())
    lines += [
        "",
        f"Owner: {rule.owner}. Reads: {', '.join(rule.reads)}. "
        f"Severity at most: {rule.cap.value}."
        + (f" Needs {rule.needs}." if rule.needs else "")
        + (" Judges windows without steps too." if rule.judges_windows else ""),
        "",
        *_thresholds(rule.thresholds),
    ]
    return lines


def _thresholds(thresholds: Thresholds) -> list[str]:
    rows = [
        f"| {name} | {value:g} | {thresholds.reasons[name]} |"
        for name, value in thresholds.values().items()
    ]
    return ["| threshold | default | why |", "|---|---|---|", *rows]
