"""All commands, in the order of ``--help``, and the options that stand before them."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer

from tracekit.cli import options as o
from tracekit.cli.app import version_line
from tracekit.cli.plain import PlainCommand, PlainGroup
from tracekit.cli.state import STATE, fail
from tracekit.wording import safe_lines

COMMANDS: dict[str, tuple[str, ...]] = {
    "sources": ("look", "sources"),
    "ingest": ("build", "ingest"),
    "diagnose": ("diagnosis", "diagnose"),
    "show": ("diagnosis", "show"),
    "query": ("look", "query"),
    "sql": ("look", "sql"),
    "compare": ("compare", "compare", "Sided"),
    "timeline": ("timeline", "timeline"),
    "plot": ("plot", "plot"),
    "job": ("build", "job"),
    "expect": ("expect", "expect"),
    "whatif": ("whatif", "whatif"),
    "capture": ("capture", "capture"),
    "explain": ("diagnosis", "explain"),
    "simulate": ("simulate", "simulate"),
    "cache": ("look", "cache"),
    "rollup": ("fleet", "rollup"),
    "site": ("fleet", "site"),
    "lake": ("fleet", "lake"),
}
"""Of each command: its module, what it is called there, and what parses it if not Typer's own."""
FLAGS = frozenset({"-v", "--verbose", "-q", "--quiet", "--debug"})
"""Options before a command that leave what it does to it."""

# Typer ships its own click and does not name this one.
_ClickException: type[Exception] = next(
    kind
    for kind in typer.BadParameter.__mro__
    if kind.__name__ == "ClickException" and issubclass(kind, Exception)
)


def run(arguments: Sequence[str]) -> object:
    """Do what the arguments say; what the command returns, or an exit code."""
    try:
        return _application(_asked(arguments))(
            args=arguments, prog_name="tracekit", standalone_mode=False
        )
    except _ClickException as error:
        if STATE.is_log_json:
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
    command = typer.main.get_command(_application(list(COMMANDS)))
    context = command.make_context("tracekit", [], resilient_parsing=True, terminal_width=width)
    return _pages("tracekit", command, context, width)


def _asked(arguments: Sequence[str]) -> Sequence[str]:
    """The command that is called, where it is plain which: to make the parsers of all others takes
    a tenth of a second."""
    first = next((a for a in arguments if a not in FLAGS), "")
    return [first] if first in COMMANDS else list(COMMANDS)


def _application(names: Sequence[str]) -> typer.Typer:
    # Plain help: rich would double the start time of --help, and reads no better in a pipe.
    app = typer.Typer(
        cls=PlainGroup,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Finds out why a training job is slow, from the files that it left behind.",
    )
    app.callback()(_common)
    for name in names:
        folder, *attributes = COMMANDS[name]
        module = import_module(f"tracekit.cli.{folder}")
        command, *parsers = (getattr(module, attribute) for attribute in attributes)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name, cls=parsers[0] if parsers else PlainCommand)(command)
    return app


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
