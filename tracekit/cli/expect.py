"""The command that says what a layout implies: expect."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from typing import Annotated

import typer

from tracekit.cli import options as o
from tracekit.cli.output import check_target, write_text
from tracekit.errors import UsageError


class ExpectFormat(StrEnum):
    """How an expectation is written."""

    text = "text"
    json = "json"
    csv = "csv"


def expect(
    job: Annotated[
        list[str] | None,
        typer.Option("--job", metavar="F", help="Job description, or one to import; repeatable."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="K=V", help="Replace a field: tp=4.")
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option("--sweep", metavar="K=A,B", help="Every value in turn: nics=1,2,4,8."),
    ] = None,
    step_time: Annotated[
        float | None,
        typer.Option("--step-time", min=0, metavar="S", help="A measured step, for MFU and HFU."),
    ] = None,
    tokens: Annotated[
        float | None, typer.Option("--tokens", min=0, help="Tokens to train, for days.")
    ] = None,
    format_: Annotated[
        ExpectFormat, typer.Option("--format", help="How the result is written.")
    ] = ExpectFormat.text,
    output: o.OutputOpt = None,
    force: o.ForceOpt = False,
) -> None:
    """The layout's expected traffic, bubble, memory, FLOPs, rooflines and times."""
    from tracekit.expect import expect as compute
    from tracekit.expect.options import changed, read_setting
    from tracekit.expect.options import sweep as points_of
    from tracekit.expect.result import points_to_dict, to_csv, to_text
    from tracekit.jobs_import import load_descriptions

    check_target(output, force)
    for option, value in (("--step-time", step_time), ("--tokens", tokens)):
        if value is not None and not math.isfinite(value):
            raise UsageError(f"{option}: {value} is no number that can be computed with")
    if not job and not set_:
        raise UsageError("expect needs a job description", hint="tracekit expect --job job.toml")
    description = changed(load_descriptions(job or ()), [read_setting(s) for s in set_ or ()])
    points = [
        (key, compute(point, step_s=step_time, tokens=tokens))
        for key, point in points_of(description, sweep or ())
    ]
    if format_ is ExpectFormat.json:
        content = points_to_dict(points, description.notes)
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    elif format_ is ExpectFormat.csv:
        text = to_csv(points)
    else:
        text = to_text(points, description.notes)
    write_text(text, output)
