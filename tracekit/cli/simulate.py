"""The command that makes a synthetic job: simulate."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tracekit.cli.state import STATE, note
from tracekit.errors import UsageError
from tracekit.wording import listed, ranges, shell_path


def simulate(
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO", help="none, a fault, or several: slow-gpu:1.5+gc-pause."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Folder of the job.")
    ] = None,
    ranks: Annotated[int, typer.Option("--ranks", min=2, max=65536, help="World size.")] = 8,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed, the same bytes.")] = 0,
    layout: Annotated[
        str | None, typer.Option("--layout", metavar="L", help="Such as ddp, fsdp, tp8-sp-pp4-m8.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", min=1, max=100000, help="Captured steps; 12, or more where a fault needs it."
        ),
    ] = None,
    style: Annotated[
        str, typer.Option("--style", help="kineto, kineto-old, gloo, nsys or mixed.")
    ] = "kineto",
    nccl: Annotated[
        str, typer.Option("--nccl", help="NCCL logs beside the traces: none, info or coll.")
    ] = "info",
    counters: Annotated[
        str,
        typer.Option(
            "--counters",
            help="Counters beside the traces: none, gpu, net or all; auto: those that the fault "
            "shows in.",
        ),
    ] = "auto",
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval", metavar="S", help="Seconds between readings; 1, or as a fault needs it."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier simulated job.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="The scenarios, and stop.")] = False,
) -> None:
    """Raw files of a synthetic job with a known fault; the truth is in DIR/truth.json."""
    if list_:
        _list()
        return
    if scenario is None or output is None:
        raise UsageError(
            "simulate needs a SCENARIO and --output DIR", hint="tracekit simulate --list"
        )
    from tracekit.simulate import Request, what_it_takes, write

    usual_steps, usual_interval = what_it_takes(scenario)
    steps = steps or usual_steps
    interval = usual_interval if interval is None else interval
    request = Request(scenario, ranks, seed, layout or "", steps, style, nccl=nccl,
                      counters=counters, interval_s=interval)  # fmt: skip
    with _bar(steps) as progress:
        truth = write(request, output, force=force, progress=progress)
    measured = truth["measured"]
    for fault in truth["faults"]:
        note(_said(fault, request.ranks))
    if measured["missing_writers"]:
        wanted = ", ".join(measured["missing_writers"])
        note(f"traces alone may not show it: files of {wanted} are not simulated yet")
    if measured["is_hung"]:
        note("the job hangs: its traces end there")
    elif measured["step_s_with_fault"] is not None:
        with_s, without_s = measured["step_s_with_fault"], measured["step_s_without_fault"]
        note(f"{with_s * 1e3:.1f} ms a step, {without_s * 1e3:.1f} ms without the fault")
    command = f"tracekit diagnose {shell_path(output)}"
    note(f"next: {command}   (it never reads truth.json, where the answer is)")


@contextmanager
def _bar(steps: int) -> Iterator[Callable[[int, int], None] | None]:
    """A bar of steps on stderr; None off a terminal, when quiet, and among JSON."""
    if STATE.quiet or STATE.is_log_json or not sys.stderr.isatty():
        yield None
        return
    with typer.progressbar(length=steps, label="simulating", file=sys.stderr) as bar:
        yield lambda done, total: bar.update(1)


def _said(fault: Mapping[str, Any], ranks_count: int) -> str:
    """What is wrong, where, since when and how strong, from the truth."""
    where, strength = fault["where"], fault["strength"]
    places = {
        "rank": where["ranks"] if len(where["ranks"]) < ranks_count else [],
        "stage": where["stages"],
        "group": where["groups"],
    }
    named = [
        f"{kind}{'s' if len(numbers) > 1 else ''} "
        f"{listed(numbers) if kind == 'group' else ranges(numbers)}"
        for kind, numbers in places.items()
        if numbers
    ]
    unit = "" if strength["unit"] in ("ratio", "count") else f" {strength['unit']}"
    when = f"step{'s' if len(fault['steps']) > 1 else ''} {ranges(fault['steps'])}"
    return (
        f"{fault['fault']}: {', '.join(named) or 'the whole job'}, {when}, "
        f"{strength['name']} {strength['value']:g}{unit}"
    )


def _list() -> None:
    from tracekit.rules import RULES
    from tracekit.simulate.catalogue import DECOYS, FAULTS

    built = {rule.name for rule in RULES}
    typer.echo("Faults, with the name of their strength and its usual values from weak to strong.")
    typer.echo("The middle one is taken if none is given: slow-gpu, slow-gpu:1.12.")
    typer.echo("")
    typer.echo(f"{'none':26} nothing is wrong")
    for fault in FAULTS:
        lacks = [f"files of {writer} are not simulated yet" for writer in fault.missing_writers]
        lacks += [] if built & set(fault.rules) else ["no rule finds it yet"]
        text = f"  [{'; '.join(lacks)}]" if lacks else ""
        strengths = "/".join(f"{s:g}" for s in fault.strengths)
        typer.echo(f"{fault.name:26} {fault.summary} ({fault.strength_name} {strengths}){text}")
    typer.echo("")
    typer.echo("Decoys, which are no faults and come with the seed:")
    for decoy in DECOYS:
        if not decoy.missing_writers:
            typer.echo(f"{decoy.name:26} {decoy.summary}")
