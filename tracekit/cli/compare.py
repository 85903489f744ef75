"""The command that sets two sides of runs beside each other: compare."""

from __future__ import annotations

import re
import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli import options as o
from tracekit.cli.diagnosis import DEFAULT_WIDTH, ConfigOpt, settings_of
from tracekit.cli.output import check_target, write_text
from tracekit.cli.plain import PlainCommand
from tracekit.cli.state import STATE, fail, note, progress_bar, use_colour
from tracekit.errors import UsageError
from tracekit.wording import share

if TYPE_CHECKING:
    from tracekit.comparison.model import Comparison

_SIDES = ("--baseline", "--candidate")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*(%?)")


class Sided(PlainCommand):
    """A command whose sides take several paths each: ``--baseline A B --candidate C``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeats a side's option before each of its paths, as the parser wants it."""
        repeated: list[str] = []
        side = None
        for number, word in enumerate(args):
            if word == "--":
                repeated += args[number:]
                break
            if word.startswith("-"):
                side = word if word in _SIDES else None
                repeated.append(word)
            elif side is not None and repeated[-1] != side:
                repeated += [side, word]
            else:
                repeated.append(word)
        return super().parse_args(ctx, repeated)


class ComparisonFormat(StrEnum):
    """How a comparison is written."""

    text = "text"
    json = "json"
    markdown = "markdown"
    html = "html"


def compare(
    baseline: Annotated[
        list[str], typer.Option("--baseline", metavar="PATH-or-RUN...", help="What was before.")
    ],
    candidate: Annotated[
        list[str], typer.Option("--candidate", metavar="PATH-or-RUN...", help="What is now.")
    ],
    job: o.JobOpt = None,
    format_: Annotated[
        ComparisonFormat, typer.Option("--format", help="How the comparison is written.")
    ] = ComparisonFormat.text,
    output: o.OutputOpt = None,
    force: o.ForceOpt = False,
    fail_above: Annotated[
        str | None,
        typer.Option(
            "--fail-above",
            metavar="3%",
            help="Exit 1 where a step is slower by more than this, significantly.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that moved.")] = False,
    config: ConfigOpt = None,
    nsys: o.NsysOpt = None,
    workers: o.WorkersOpt = None,
    memory: o.MemoryOpt = None,
    ranks: o.RanksOpt = None,
    hosts: o.HostsOpt = None,
    steps: o.StepsOpt = None,
) -> int:
    """What changed between two runs, how sure that is, and what the difference is made of.

    Each side is a run or several: every run and every folder is one, files together are one.
    """
    from tracekit import api

    check_target(output, force)
    bar = _ratio(fail_above)
    with progress_bar("reading") as progress:
        compared = api.compare(
            [*baseline],
            [*candidate],
            job=[*(job or [])],
            selection=o.Part(ranks=ranks, hosts=hosts, steps=steps).selection,
            config=settings_of(config),
            workers=workers,
            memory_bytes=o.parse_size(memory),
            nsys=nsys,
            progress=progress,
        )
    write_text(_rendered(compared, format_, everything, output), output)
    if bar is None:
        return 0
    if compared.step is None or compared.step.low_s is None:
        fail("--fail-above, and there is no step time to compare with its interval")
        return 3
    from tracekit.comparison.model import are_single

    is_above, step = compared.exceeds(bar), compared.step
    if step.ratio > bar and are_single(compared.baseline, compared.candidate):
        sure = share(max(0.0, compared.sure_ratio or 0.0))
        note(
            "--fail-above, and each side is one run: a busier machine can be slower as well"
            if is_above
            else f"--fail-above: {share(step.ratio)} slower, but of one run a side no more than "
            f"{sure} is sure; give several runs of each side"
        )
    return int(is_above)


def _ratio(text: str | None) -> float | None:
    """``3%`` or ``3`` as 0.03."""
    if text is None:
        return None
    match = _PERCENT.fullmatch(text.strip())
    if not match:
        raise UsageError(f"--fail-above: cannot read {text!r}", hint="--fail-above 3%")
    return float(match[1]) / 100


def _rendered(
    compared: Comparison, format_: ComparisonFormat, everything: bool, output: Path | None
) -> str:
    if format_ is ComparisonFormat.json:
        return compared.to_json()
    if format_ is ComparisonFormat.markdown:
        return compared.to_markdown()
    if format_ is ComparisonFormat.html:
        return compared.to_html()
    if output is not None:
        return compared.to_text(everything=everything)
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns if is_terminal else DEFAULT_WIDTH
    return compared.to_text(
        everything=everything or STATE.verbose, color=use_colour(), width=max(width, 80)
    )
