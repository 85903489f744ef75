"""All commands, in the order of ``--help``, and the options that stand before them."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from tracekit.cli import options as o
from tracekit.cli.app import version_line
from tracekit.cli.plain import PlainCommand, PlainGroup
from tracekit.cli.state import STATE, fail
from tracekit.wording import safe_lines

# Plain help: rich would double the start time of --help, and reads no better in a pipe.
_typer = partial(
    typer.Typer, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False
)


class Place(NamedTuple):
    """A command: the module under ``tracekit.cli`` that has it, and what help lists of it."""

    module: str
    line: str
    parser: str | None = None
    """What parses it there, if not Typer's own."""


COMMANDS = {
    "sources": Place("look", "What each file is recognised as, and why."),
    "ingest": Place("build", "Files to a run."),
    "diagnose": Place("diagnosis", "Why the job is slow, what it costs, and what to do."),
    "show": Place(
        "diagnosis",
        "One finding whole: every row of its evidence, down to the raw records' places.",
    ),
    "query": Place("look", "Rows of one named query."),
    "sql": Place("look", "Any SELECT over the run's views."),
    "compare": Place(
        "compare",
        "What changed between two runs, how sure that is, and what the difference is made of.",
        "Sided",
    ),
    "timeline": Place(
        "timeline",
        "All ranks on one clock for ui.perfetto.dev, collectives joined, findings marked.",
    ),
    "plot": Place(
        "plot", "One figure of a run: step times, late ranks, overlap, traffic, and more."
    ),
    "job": Place("build", "The inferred job description, with provenance, to correct and keep."),
    "expect": Place(
        "expect", "The layout's expected traffic, bubble, memory, FLOPs, rooflines and times."
    ),
    "whatif": Place("whatif", "What the step would have taken without a cause: a replay."),
    "capture": Place(
        "capture",
        "A shell script that collects what a diagnosis needs; prints it and runs nothing.",
    ),
    "explain": Place(
        "diagnosis", "What a rule means, its evidence, thresholds and remedy, and when it is wrong."
    ),
    "simulate": Place(
        "simulate",
        "Raw files of a synthetic job with a known fault; the truth is in DIR/truth.json.",
    ),
    "cache": Place("look", "What is cached from raw paths, and clearing it."),
    "rollup": Place(
        "fleet",
        "Every run that is new or changed into the fleet's tables, and what the night says.",
    ),
    "site": Place("fleet", "The fleet as a static site, from what rollup keeps."),
    "lake": Place(
        "fleet", "The runs of a lake: many under one root, as ingest --lake puts them there."
    ),
}
"""All commands, in the order of help. A line is the first sentence of the command's own help, so
that help of all imports none."""

# Typer ships its own click and does not name this one.
_ClickException: type[Exception] = next(
    kind
    for kind in typer.BadParameter.__mro__
    if kind.__name__ == "ClickException" and issubclass(kind, Exception)
)


def _asks_json(arguments: Sequence[str]) -> bool:
    """Whether messages are to be JSON, where a mistake in another option was seen first."""
    return "--log-format=json" in arguments or ("--log-format", "json") in pairwise(arguments)


def run(arguments: Sequence[str]) -> object:
    """Do what the arguments say; what the command returns, or an exit code."""
    try:
        return _application()(args=arguments, prog_name="tracekit", standalone_mode=False)
    except _ClickException as error:
        if STATE.is_log_json or _asks_json(arguments):
            STATE.is_log_json = True
            fail(error.format_message())  # type: ignore[attr-defined]  # as below
            return 2
        error.message = safe_lines(error.message)  # type: ignore[attr-defined]  # what every
        error.show()  # type: ignore[attr-defined]  # ClickException has
        return 2
    except typer.Exit as error:
        return error.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None


def help_pages(width: int = 100) -> list[tuple[str, str]]:
    """(command, its ``--help``) for the application and every command; for the documentation."""
    command = _application()
    command.commands = {name: _made(name) for name in COMMANDS}
    context = command.make_context("tracekit", [], resilient_parsing=True, terminal_width=width)
    return _pages("tracekit", command, context, width)


class _Commands(PlainGroup):
    """All commands by name and line; the one that is called is imported and made."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name, ready to be called."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, _made(name) if name in COMMANDS else command, rest


def _application() -> TyperGroup:
    app = _typer(
        cls=_Commands,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Finds out why a training job is slow, from the files that it left behind.",
    )
    app.callback()(_common)
    group = typer.main.get_group(app)
    group.commands = {name: TyperCommand(name, help=c.line) for name, c in COMMANDS.items()}
    return group


def _made(name: str) -> Any:  # typer does not name click's own types
    place = COMMANDS[name]
    module = import_module(f"tracekit.cli.{place.module}")
    command = getattr(module, name)
    parser = getattr(module, place.parser) if place.parser else PlainCommand
    if not isinstance(command, typer.Typer):
        function, command = command, _typer()
        command.command(name, cls=parser)(function)
    made = typer.main.get_command(command)
    made.name = name
    return made


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_line(), nl=False)
        raise typer.Exit


def _common(
    context: typer.Context,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Say more on stderr.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only data and errors.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback when something breaks.")
    ] = False,
    log_format: o.LogFormatOpt = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print and exit."),
    ] = False,
) -> None:
    del version, log_format
    STATE.verbose, STATE.quiet, STATE.debug = verbose, quiet, debug
    if quiet:
        logger = logging.getLogger("tracekit")
        context.call_on_close(partial(logger.setLevel, logger.level))
        logger.setLevel(logging.ERROR)
    if debug:
        os.environ["TRACEKIT_DEBUG"] = "1"  # workers must not swallow what is looked for


def _pages(
    name: str, command: Any, context: Any, width: int
) -> list[tuple[str, str]]:  # typer does not name click's own types
    pages = [(name, command.get_help(context))]
    for word, part in getattr(command, "commands", {}).items():
        inner = type(context)(part, info_name=word, parent=context, terminal_width=width)
        pages += _pages(f"{name} {word}", part, inner, width)
    return pages
