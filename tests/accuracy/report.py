"""The bench's figures as Markdown: what is printed and what docs/accuracy.md holds."""

from __future__ import annotations

from collections.abc import Sequence

from accuracy.score import Outcome, Scores, is_right_place, is_right_rule
from accuracy.suite import is_checkable
from accuracy.twins import HEADING, Judged, table
from tracekit.simulate.catalogue import DECOYS, FAULTS
from tracekit.version import __version__


def markdown(
    scores: Scores,
    recorded: Sequence[Outcome],
    seeds: Sequence[int],
    kind: str,
    rules: Sequence[str],
    cases_count: int | None = None,
    recorded_scores: Scores | None = None,
    twins: Sequence[Judged] = (),
) -> str:
    """All tables. ``cases_count``: of the whole suite, where not all of it was run."""
    partly = ""
    if cases_count is not None and scores.jobs < cases_count:
        partly = f" The time ran out: {scores.jobs} of {cases_count} cases, in no order."
    parts = [
        "# Accuracy",
        "",
        "Written by `make accuracy`. Simulated and recorded jobs are reported apart and never "
        "pooled: the simulator and the rules have one author, so the simulated figures say that "
        "the rules do what was meant, not that they are right about the world.",
        "",
        f"Simulated: {scores.jobs} jobs of 8 to 64 ranks, seeds {seeds[0]} to {seeds[-1]} "
        f"({'reporting seeds, never tuned on' if kind == 'report' else 'TUNING seeds'}).{partly}",
        "",
        *_summary(scores),
        "",
        "## Rules",
        "",
        *_rules(scores, rules),
        "",
        "## Reliability",
        "",
        "How often a finding was right, by rule and confidence: what `bench_precision` may quote.",
        "",
        *_levels("simulated", scores),
        *(_levels("recorded", recorded_scores)[2:] if recorded_scores is not None else ()),
        "",
        "## Confusion",
        "",
        "What was wrong (rows) and what the verdict named first; a kind of verdict in parentheses "
        "where it named no finding. Faults whose rule is missing are here for one job or more: "
        "whoever is named for them is innocent or a symptom.",
        "",
        *_confusion(scores),
        "",
        "## Missing",
        "",
        *_missing(rules),
        "",
        "## Recorded jobs",
        "",
        *_recorded(recorded),
        "",
        HEADING,
        "",
        *table(twins),
    ]
    if scores.missed:
        parts += ["", "## What went wrong", "", *(f"- {m}" for m in sorted(scores.missed))]
    return "\n".join(parts) + "\n"


def _share(value: float | None, count: int) -> str:
    return "-" if value is None else f"{value:.1%} of {count}"


def _summary(s: Scores) -> list[str]:
    cause = s.cause_right / s.single if s.single else None
    return [
        "| figure | value | bar |",
        "|---|---|---|",
        f"| cause named first, one fault of 5 % or more | {_share(cause, s.single)} | |",
        f"| cause and culprit named first | {_share(s.top1, s.single)} | 95 % |",
        f"| healthy jobs with a major finding | {_share(s.false_major, s.healthy)} | at most 1 % |",
        f"| both of two faults named | {_share(s.both, s.pairs)} | 80 % |",
        f"| decoys named | {s.decoys_named} | 0 |",
        f"| jobs that could not be diagnosed | {s.errors} | 0 |",
    ]


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _rules(s: Scores, rules: Sequence[str]) -> list[str]:
    lines = ["| rule | precision | of | recall | of | state |", "|---|---|---|---|---|---|"]
    named = {n for f in FAULTS for n in f.rules} | set(s.rules) | set(rules)
    for name in sorted(named):
        r = s.rules.get(name)
        is_built = name in rules
        state = "" if is_built else "**missing**"
        if is_built and not any(name in f.rules for f in FAULTS):
            state = "inherent: never due"
        if r is None or not is_built:
            lines.append(f"| {name} | - | - | - | - | {state} |")
            continue
        lines.append(
            f"| {name} | {_ratio(r.precision)} | {r.right + r.wrong} | {_ratio(r.recall)} "
            f"| {r.due} | {state} |"
        )
    return lines


def _levels(jobs: str, s: Scores) -> list[str]:
    lines = ["| jobs | rule | confidence | right | of | ratio |", "|---|---|---|---|---|---|"]
    for (rule, level), (right, total) in sorted(s.levels.items()):
        lines.append(f"| {jobs} | {rule} | {level} | {right} | {total} | {right / total:.2f} |")
    return lines


def reliability(
    simulated: Scores, recorded: Scores, seeds: Sequence[int], kind: str
) -> dict[str, object]:
    """The table that a finding's confidence quotes: counts by rule and level, jobs apart."""
    return {
        "schema_version": 1,
        "tracekit_version": __version__,
        "simulated": {
            "seeds": list(seeds),
            "seeds_kind": kind,
            "jobs": simulated.jobs,
            "rules": _counts(simulated),
        },
        "recorded": {"jobs": recorded.jobs, "rules": _counts(recorded)},
    }


def _counts(s: Scores) -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = {}
    for (rule, level), (right, total) in s.levels.items():
        found.setdefault(rule, {})[level] = {"right": right, "of": total}
    return found


def _confusion(s: Scores) -> list[str]:
    said = sorted({c for row in s.confusion.values() for c in row})
    lines = ["| truth | " + " | ".join(said) + " |", "|---" * (len(said) + 1) + "|"]
    for label in sorted(s.confusion):
        cells = [str(s.confusion[label][c] or "") for c in said]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def _missing(rules: Sequence[str]) -> list[str]:
    lines = ["| fault | why it is not measured |", "|---|---|"]
    for fault in FAULTS:
        if is_checkable(fault, rules):
            continue
        why = []
        if not any(r in rules for r in fault.rules):
            why.append(f"rule {' or '.join(fault.rules)} is not built")
        if fault.missing_writers:
            why.append(f"files of {', '.join(fault.missing_writers)} are not simulated")
        lines.append(f"| {fault.name} | {'; '.join(why)} |")
    lines += [
        f"| decoy {d.name} | files of {', '.join(d.missing_writers)} are not simulated |"
        for d in DECOYS
        if d.missing_writers
    ]
    return lines


def _recorded(outcomes: Sequence[Outcome]) -> list[str]:
    lines = ["| job | truth | verdict | right |", "|---|---|---|---|"]
    for o in outcomes:
        faults = o.truth["faults"]
        top = o.top
        said = top.rule if top is not None else o.error or f"({o.verdict})"
        if faults:
            is_right = top is not None and any(
                is_right_rule(top, f) and is_right_place(top, f, o.truth) for f in faults
            )
        else:
            is_right = o.error is None and not any(
                n.severity in ("major", "critical") for n in o.named
            )
        truth = ", ".join(f["fault"] for f in faults) or "healthy"
        lines.append(f"| {o.label} | {truth} | {said} | {'yes' if is_right else 'no'} |")
    return lines
