"""The command that writes a timeline for a trace viewer."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import options as o
from tracekit.cli.look import open_target, tell_losses
from tracekit.cli.output import check_target
from tracekit.cli.state import note
from tracekit.errors import UsageError
from tracekit.wording import plural


class TimelineDetail(StrEnum):
    """How much of a rank is drawn."""

    all = "all"
    device = "device"


@o.takes_part
def timeline(
    target: o.TargetArg,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="F", help="File to write: .json or .json.gz."),
    ] = None,
    force: o.ForceOpt = False,
    detail: Annotated[
        TimelineDetail,
        typer.Option("--detail", help="device leaves out operators and runtime calls."),
    ] = TimelineDetail.all,
    max_slices: Annotated[
        int | None,
        typer.Option("--max-slices", min=1, help="Most slices; default a million."),
    ] = None,
    findings: Annotated[
        bool, typer.Option("--findings/--no-findings", help="Mark what diagnose finds.")
    ] = True,
    job: o.JobOpt = None,
    *,
    part: o.Part,
) -> None:
    """All ranks on one clock for ui.perfetto.dev, collectives joined, findings marked."""
    if output is None:
        raise UsageError("timeline needs --output F", hint="-o timeline.json.gz")
    check_target(output, force)
    with open_target([target], job, part) as run:
        tell_losses(run)
        written = run.timeline(
            output,
            max_slices=max_slices,
            detail=detail.value,
            findings=findings,
            memory_bytes=part.memory_bytes,
        )
    for cut in written.cuts:
        note(f"left out: {cut}")
    for reason, count in written.left_out.items():
        note(f"left out: {plural(count, 'slice')}, {reason}")
    note(
        f"wrote {output}: {plural(len(written.ranks), 'rank')}, "
        f"{plural(written.slices_count, 'slice')}, {plural(written.arrows_count, 'arrow')}, "
        f"{plural(written.findings_count, 'finding')}, {written.file_bytes / 1e6:.1f} MB; "
        "open it in ui.perfetto.dev"
    )
