"""The command that prints what to collect: capture."""

from __future__ import annotations

from typing import Annotated

import typer

from tracekit.cli import options as o
from tracekit.cli.output import check_target, write_text


def capture(
    what: Annotated[
        str, typer.Option("--what", metavar="LIST", help="Of profiler,nccl,dcgm,nic,host.")
    ] = "profiler,nccl,dcgm,nic,host",
    seconds: Annotated[
        int, typer.Option("--seconds", min=1, max=86400, help="How long it samples.")
    ] = 60,
    interval: Annotated[
        int, typer.Option("--interval", min=1, max=3600, help="Seconds between samples.")
    ] = 1,
    output: o.OutputOpt = None,
    force: o.ForceOpt = False,
) -> None:
    """A shell script that collects what a diagnosis needs; prints it and runs nothing."""
    from tracekit.capture import script

    check_target(output, force)
    kinds = [kind.strip() for kind in what.split(",") if kind.strip()]
    write_text(script(kinds, seconds=seconds, interval=interval), output)
