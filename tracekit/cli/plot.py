"""The command that draws one figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import options as o
from tracekit.cli.look import open_target, tell_losses
from tracekit.cli.output import check_target, write_bytes, write_text
from tracekit.errors import UsageError


@o.takes_part
def plot(
    target: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run, or a file or folder.")
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="See --list.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="F", help="File to write: .svg, .png or .pdf."),
    ] = None,
    force: o.ForceOpt = False,
    list_: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    findings: Annotated[
        bool, typer.Option("--findings/--no-findings", help="Mark what diagnose finds.")
    ] = True,
    job: o.JobOpt = None,
    *,
    part: o.Part,
) -> None:
    """One figure of a run: step times, late ranks, overlap, traffic, and more."""
    from tracekit import dashboards

    if list_:
        lines = [f"{c.name:<15} {c.title:<42} needs {c.needs}\n" for c in dashboards.charts()]
        write_text("".join(lines), None)
        return
    if target is None or name is None or output is None:
        raise UsageError(
            "plot needs a run, the name of a figure and --output F",
            hint="tracekit plot RUN step_times -o step_times.svg; tracekit plot --list",
        )
    from tracekit.dashboards import look

    dashboards.chart(name)  # a wrong name must not cost an ingest
    look.check_name(output)
    check_target(output, force)
    with open_target([target], job, part, in_place=not findings) as run:
        tell_losses(run)
        figure = run.plot(name, findings=findings)
    write_bytes(look.picture(figure, output.suffix), output)
