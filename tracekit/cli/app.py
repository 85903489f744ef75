"""The application object, and what every command shares: errors, exit codes, ``--debug``."""

from __future__ import annotations

import gc
import logging
import os
import sys
from copy import copy
from functools import partial
from typing import Annotated, Any, NoReturn

import typer

from tracekit.cli.state import (
    STATE,
    is_stdout_broken,
    note,
    prepare_streams,
    say,
    silence_stdout,
    to_stdout,
    watch_interrupts,
)
from tracekit.errors import TracekitError
from tracekit.version import __version__
from tracekit.wording import safe_lines

VERSION_LINE = f"tracekit {__version__}\n"
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130

# Plain help: rich would double the start time of --help, and reads no better in a pipe.
app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Finds out why a training job is slow, from the files that it left behind.",
)

# Typer ships its own click and does not name this one.
_ClickException: type[Exception] = next(
    kind
    for kind in typer.BadParameter.__mro__
    if kind.__name__ == "ClickException" and issubclass(kind, Exception)
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(VERSION_LINE, nl=False)
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Say more on stderr.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only data and errors.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback when something breaks.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print and exit."),
    ] = False,
) -> None:
    del version
    STATE.verbose, STATE.quiet, STATE.debug = verbose, quiet, debug
    if quiet:
        logger = logging.getLogger("tracekit")
        context.call_on_close(partial(logger.setLevel, logger.level))
        logger.setLevel(logging.ERROR)
    if debug:
        os.environ["TRACEKIT_DEBUG"] = "1"  # workers must not swallow what is looked for


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 --fail-on, 2 usage or input, 70 our bug."""
    # Arrow's own pool keeps 8 MB more of a trace's peak; workers inherit this. A library must not
    # choose for the program that it is part of, so only the command does.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # A short program makes few cycles: look for them less often than after every 700 objects.
    gc.set_threshold(50_000, 20, 50)
    # Typer checks values with pydantic, which would look for plugins in every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    prepare_streams()
    watch_interrupts()
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    try:
        result = _called(sys.argv[1:] if arguments is None else arguments)
        with to_stdout():
            pass  # what libraries wrote
    except TracekitError as error:
        return _interrupted() if STATE.is_interrupted else _report(error)
    except _ClickException as error:
        error.message = safe_lines(error.message)  # type: ignore[attr-defined]  # what every
        error.show()  # type: ignore[attr-defined]  # ClickException has
        return 2
    except typer.Exit as error:
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _interrupted()
    except BrokenPipeError:
        silence_stdout()  # the reader went away (head, less): not an error
        return 0
    except Exception as error:
        if STATE.is_interrupted:
            return _interrupted()
        if isinstance(error, OSError) and is_stdout_broken():
            silence_stdout()
            say(f"error: standard output cannot be written ({error.strerror})\nhint: -o FILE")
            return 2
        if STATE.debug:
            raise
        say(
            f"error: internal error, a bug of tracekit: {type(error).__name__}\n"
            "hint: run again as 'tracekit --debug ...' and report what it prints"
        )
        return EXIT_INTERNAL
    if STATE.is_interrupted:
        return _interrupted()
    return result if isinstance(result, int) else 0


def _called(arguments: list[str]) -> object:
    if arguments == ["--version"]:  # as the option does, without what reads options
        with to_stdout() as stream:
            stream.write(VERSION_LINE)
        return 0
    from tracekit.cli import commands

    commands.register(app)
    return _naming(app, arguments)(args=arguments, prog_name="tracekit", standalone_mode=False)


def _naming(app: typer.Typer, arguments: list[str]) -> typer.Typer:
    """The application with only the command that is named, if it is one.

    Typer reads the signatures of all commands before it looks for the one to call: 3 ms each.
    """
    named = next((word for word in arguments if not word.startswith("-")), None)
    found = [command for command in app.registered_commands if command.name == named]
    if not found:
        return app
    lean = copy(app)
    lean.registered_commands = found
    return lean


def _interrupted() -> int:
    note("interrupted")
    return EXIT_INTERRUPTED


def _report(error: TracekitError) -> int:
    if STATE.debug:
        raise error
    say(safe_lines(f"error: {error.message}"))
    if error.hint:
        say(safe_lines(f"hint: {error.hint}"))
    return error.exit_code


def help_pages(width: int = 100) -> list[tuple[str, str]]:
    """(command, its ``--help``) for the application and every command; for the documentation."""
    from tracekit.cli import commands

    commands.register(app)
    command = typer.main.get_command(app)
    context = command.make_context("tracekit", [], resilient_parsing=True, terminal_width=width)
    return _pages("tracekit", command, context, width)


def _pages(
    name: str, command: Any, context: Any, width: int
) -> list[tuple[str, str]]:  # typer does not name click's own types
    pages = [(name, command.get_help(context))]
    for word, one in getattr(command, "commands", {}).items():
        inner = type(context)(one, info_name=word, parent=context, terminal_width=width)
        pages += _pages(f"{name} {word}", one, inner, width)
    return pages
