"""The command that replays a job without a cause: whatif."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import options as o
from tracekit.cli.diagnosis import settings_of
from tracekit.cli.look import open_target, tell_losses
from tracekit.cli.output import check_target, write_bytes, write_text
from tracekit.cli.state import note


class WhatIfFormat(StrEnum):
    """How a replay is written."""

    text = "text"
    json = "json"


def whatif(
    paths: o.TargetsArg,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            "--remove",
            metavar="CAUSE",
            help="Take out a finding (F1, slow-host/7), rank=7, stage=3, dp=1, host=gpu-01, "
            "link=7, op=all_reduce or comm=pp; repeatable, each alone. rank=1,2: both at once.",
        ),
    ] = None,
    scale: Annotated[
        list[str] | None,
        typer.Option(
            "--scale",
            metavar="CAUSE",
            help="Multiply a time: stage=3:forward=0.5, rank=7:host=0.8, comm=dp=2; repeatable.",
        ),
    ] = None,
    format_: Annotated[
        WhatIfFormat, typer.Option("--format", help="How the result is written.")
    ] = WhatIfFormat.text,
    output: o.OutputOpt = None,
    heat_map: Annotated[
        Path | None,
        typer.Option(
            "--heat-map",
            metavar="F",
            help="Also draw the slowdown by stage and replica: .png, .svg or .pdf.",
        ),
    ] = None,
    force: o.ForceOpt = False,
    job: o.JobOpt = None,
    workers: o.WorkersOpt = None,
    memory: o.MemoryOpt = None,
    ranks: o.RanksOpt = None,
    hosts: o.HostsOpt = None,
    steps: o.StepsOpt = None,
    attempt: o.AttemptOpt = None,
    window: o.WindowOpt = None,
) -> None:
    """What the step would have taken without a cause: a replay.

    Without --remove and --scale: how much longer a step takes than if all peers took the same, and
    who brings it. What diagnose names costs what its finding says. A replay that misses the
    measured steps by more than 5 % says so and no figure; docs/whatif.md has examples and limits.
    """
    from tracekit.whatif import parse_remove, parse_scale, to_dict, to_text

    check_target(output, force)
    if heat_map is not None:
        from tracekit.dashboards import look, replay_figure

        look.check_name(heat_map)
        check_target(heat_map, force)
    causes = [*map(parse_remove, remove or ()), *map(parse_scale, scale or ())]
    part = o.Part(workers, memory, ranks, hosts, steps, None, None, attempt, window)
    with open_target(paths, job, part) as run:
        tell_losses(run)
        answer = run.whatif(causes, config=settings_of())
    if answer.dropped_steps:
        note(f"{len(answer.dropped_steps)} steps are left out of the replay")
    if format_ is WhatIfFormat.json:
        text = json.dumps(to_dict(answer), indent=1, allow_nan=False) + "\n"
    else:
        text = to_text(answer)
    write_text(text, output)
    if heat_map is not None:
        figure = replay_figure.heat_map(answer)
        write_bytes(look.picture(figure, heat_map.suffix), heat_map)
