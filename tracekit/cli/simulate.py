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
    from tracekit.simulate.history import is_history

    if is_history(scenario):
        other = {"--ranks": ranks != 8, "--layout": layout, "--style": style != "kineto",
                 "--nccl": nccl != "info", "--counters": counters != "auto",
                 "--interval": interval}  # fmt: skip
        if given := [name for name, is_given in other.items() if is_given]:
            raise UsageError(f"a job of days has no {listed(given)}", hint="--seed and --steps")
        _history(scenario, output, seed, steps, force=force)
        return
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


def _history(scenario: str, output: Path, seed: int, steps: int | None, *, force: bool) -> None:
    """A job of days: its log and its hosts' counters."""
    from tracekit.simulate.history import HistoryRequest, write_history

    truth = write_history(HistoryRequest(scenario, seed, steps or 0), output, force=force)
    for fault in truth["faults"]:
        where, strength = fault["where"], fault["strength"]
        places = [f"rank {ranges(where['ranks'])}"] if where["ranks"] else []
        places += [f"host {listed(where['hosts'])}"] if where["hosts"] else []
        note(
            f"{fault['fault']}: {', '.join(places) or 'the whole job'}, steps "
            f"{fault['first_step']:,} to {fault['last_step']:,}, {strength['name']} "
            f"{strength['value']:g}"
        )
    days = truth["history"]["job_s"] / 86_400
    note(
        f"{truth['steps']['last']:,} steps in {days:.2f} days, log of {truth['history']['format']}"
    )
    note(f"next: tracekit diagnose {shell_path(output)}   (it never reads truth.json)")


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
    from tracekit.simulate import history
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
    typer.echo("Jobs of days: a training log, launchers' words, hosts' counters. Their options are")
    typer.echo("--seed and --steps; they join each other, and none of those above.")
    typer.echo("")
    typer.echo(f"{'healthy-days':26} nothing is wrong")
    for kind in history.FAULTS:
        strengths = "/".join(f"{s:g}" for s in kind.strengths)
        typer.echo(f"{kind.name:26} {kind.summary} ({kind.strength_name} {strengths})")
    typer.echo("")
    typer.echo("Decoys, which are no faults and come with the seed:")
    known = [(d.name, d.summary) for d in DECOYS if not d.missing_writers]
    known += [(d.name, d.summary) for d in history.DECOYS]
    for name, summary in known:
        typer.echo(f"{name:26} {summary}")
