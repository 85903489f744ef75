"""Commands that judge: diagnose, show, explain."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli import options as o
from tracekit.cli.look import open_target
from tracekit.cli.output import check_target, write_text
from tracekit.cli.state import STATE, fail, note, use_colour
from tracekit.errors import InputError, UsageError
from tracekit.wording import safe

if TYPE_CHECKING:
    from tracekit.api import OpenRun
    from tracekit.report.model import InputFile, Report

DEFAULT_WIDTH = 110


class ReportFormat(StrEnum):
    """How a report is written."""

    text = "text"
    json = "json"
    markdown = "markdown"
    html = "html"


class FailOn(StrEnum):
    """Severities that can fail a command."""

    note = "note"
    minor = "minor"
    major = "major"
    critical = "critical"


SelectOpt = Annotated[
    list[str] | None, typer.Option("--select", metavar="RULE", help="Only these rules.")
]
IgnoreOpt = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="RULE", help="Not these rules.")
]
ConfigOpt = Annotated[
    Path | None,
    typer.Option("--config", metavar="F", help="tracekit.toml: thresholds and silences."),
]


@o.takes_part
def diagnose(
    paths: o.TargetsArg,
    job: o.JobOpt = None,
    format_: Annotated[
        ReportFormat, typer.Option("--format", help="How the report is written.")
    ] = ReportFormat.text,
    output: o.OutputOpt = None,
    force: o.ForceOpt = False,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(
            "--fail-on",
            help="Exit 1 where the verdict or a finding is of this severity or above; never where "
            "there is nothing to fix.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 2 on any partial input.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All findings, all of each.")] = False,
    select: SelectOpt = None,
    ignore: IgnoreOpt = None,
    config: ConfigOpt = None,
    nsys: o.NsysOpt = None,
    budget: o.BudgetOpt = None,
    *,
    part: o.Part,
) -> int:
    """Why the job is slow, what it costs, and what to do."""
    check_target(output, force)
    settings = settings_of(config)
    _check_names(settings, select or (), ignore or ())
    with open_target(paths, job, part, nsys, budget) as run:
        _name_config(run, config)
        if format_ is ReportFormat.html:
            run.expect_page()
        report = run.diagnose(select=select or (), ignore=ignore or (), config=settings)
        page = run.page(report) if format_ is ReportFormat.html else None
    write_text(page or _rendered(report, format_, everything, output), output)
    return _exit_code(report, fail_on, strict)


def settings_of(config: Path | None = None) -> dict[str, Any]:
    """tracekit.toml as given, or the one in this folder."""
    path = config or Path("tracekit.toml")
    if config is None and not path.is_file():
        return {}
    from tracekit.job import read_given

    try:
        settings = tomllib.loads(read_given(path, "a file of settings").decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    if config is None:
        note(f"using {path}")
    return settings


def _name_config(run: OpenRun, config: Path | None) -> None:
    """Labels of findings depend on it: the next command must name it too."""
    if config is not None and run.target is not None:
        from msgspec.structs import replace

        run.target = replace(run.target, config=str(config))


def _check_names(settings: dict[str, Any], select: Sequence[str], ignore: Sequence[str]) -> None:
    """A wrong name or threshold must not cost an ingest."""
    from tracekit.report.config import DiagnoseConfig
    from tracekit.rules import configured, rule
    from tracekit.rules.unbuilt import unbuilt_rules

    config = DiagnoseConfig.from_mapping(settings, select, ignore)
    configured(config.thresholds, config.select, config.ignore)
    for silence in config.silences:
        if silence.rule not in unbuilt_rules():
            rule(silence.rule)


def _rendered(report: Report, format_: ReportFormat, everything: bool, output: Path | None) -> str:
    if format_ is ReportFormat.json:
        text = report.to_json()
        return text if text.endswith("\n") else text + "\n"
    if format_ is ReportFormat.markdown:
        from tracekit.report.markdown import to_markdown

        return to_markdown(report)
    if output is not None:
        return report.to_text(everything=everything)
    import shutil

    width = shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns if sys.stdout.isatty() else 0
    return report.to_text(
        everything=everything or STATE.verbose,
        color=use_colour(),
        width=width or DEFAULT_WIDTH,
    )


def _exit_code(report: Report, fail_on: FailOn | None, strict: bool) -> int:
    if strict and any(i.status not in ("ok", "unrecognised") for i in report.document.inputs):
        fail("--strict, and an input is not whole")
        return 2
    unusable = [i for i in report.document.inputs if i.status not in ("ok", "partial")]
    if unusable and len(unusable) == len(report.document.inputs):
        fail(f"nothing usable: {_first(unusable)}")
        return 2
    if fail_on is None:
        return 0
    from tracekit.findings import Severity

    if not report.notes.rules_run and not report.findings:
        fail("--fail-on, and no rule had what it needs")
        return 3
    worst = report.worst()
    return int(worst is not None and worst.weight >= Severity(fail_on.value).weight)


def _first(inputs: Sequence[InputFile]) -> str:
    """The first of some files, and what is wrong with it."""
    more = f", and {len(inputs) - 1} more" if len(inputs) > 1 else ""
    return safe(f"{inputs[0].path}: {inputs[0].reason or inputs[0].status}{more}")


@o.takes_part
def show(
    paths: o.TargetsArg,
    finding: Annotated[str, typer.Argument(metavar="FINDING", help="F1, or rule/scope.")],
    job: o.JobOpt = None,
    config: ConfigOpt = None,
    *,
    part: o.Part,
) -> None:
    """One finding whole: every row of its evidence, down to the raw records' places."""
    from tracekit.report.show import show_finding

    settings = settings_of(config)
    _check_names(settings, (), ())
    with open_target(paths, job, part) as run:
        _name_config(run, config)
        report = run.diagnose(config=settings)
    shown = report.finding(finding)
    if shown is None:
        ids = ", ".join(f.id for f in report.findings)
        raise UsageError(
            f"there is no finding {finding!r}",
            hint=f"there are: {ids}" if ids else "tracekit diagnose found nothing to show",
        )
    write_text(show_finding(report, shown), None)


def explain(
    rule: Annotated[str | None, typer.Argument(metavar="[RULE]", help="Rule; none lists.")] = None,
) -> None:
    """What a rule means, its evidence, thresholds and remedy, and when it is wrong."""
    from tracekit import rules

    if rule is None:
        write_text("".join(f"{r.name:<24} {r.summary}\n" for r in rules.RULES), None)
        return
    write_text(rules.explain(rule), None)
