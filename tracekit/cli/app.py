"""A call from its arguments to its exit code, whatever goes wrong."""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

from tracekit.cli.state import (
    STATE,
    fail,
    is_stdout_broken,
    note,
    prepare_streams,
    silence_stdout,
    to_stdout,
    watch_interrupts,
)
from tracekit.errors import TracekitError
from tracekit.version import __version__

EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
"""As a shell tells a process that SIGTERM ended."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 --fail-on, 2 usage or input, 70 our bug."""
    # Arrow's own pool keeps 8 MB more of a trace's peak; workers inherit this. A library must not
    # choose for the program that it is part of, so only the command does.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # Threads that nothing here keeps busy: to start and to leave them spinning costs a command that
    # imports numpy 0.02 s. Sums then do not depend on how many cores there are, either.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A short program makes few cycles: look for them less often than after every 700 objects.
    gc.set_threshold(50_000, 20, 50)
    # Typer checks values with pydantic, which would look for plugins in every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    prepare_streams()
    STATE.is_log_json = False
    watch_interrupts()
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    try:
        result = _called(sys.argv[1:] if arguments is None else arguments)
        with to_stdout():
            pass  # what libraries wrote
    except TracekitError as error:
        return _interrupted() if STATE.is_interrupted else _report(error)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        silence_stdout()  # the reader went away (head, less): not an error
        return 0
    except Exception as error:
        if STATE.is_interrupted:
            return _interrupted()
        if isinstance(error, OSError) and is_stdout_broken():
            silence_stdout()
            fail(f"standard output cannot be written ({error.strerror})", "-o FILE")
            return 2
        if STATE.debug:
            raise
        fail(
            f"internal error, a bug of tracekit: {type(error).__name__}",
            "run again as 'tracekit --debug ...' and report what it prints",
        )
        return EXIT_INTERNAL
    if STATE.is_interrupted:
        return _interrupted()
    return result if isinstance(result, int) else 0


def _called(arguments: list[str]) -> object:
    if arguments == ["--version"]:  # as the option does, without what reads options
        with to_stdout() as stream:
            stream.write(version_line())
        return 0
    from tracekit.cli import commands

    return commands.run(arguments)


def version_line() -> str:
    """The version, and which reader of Kineto traces runs here."""
    from tracekit import native

    reader = "native" if native.library() is not None else "Python"
    return f"tracekit {__version__} (reader of Kineto traces: {reader})\n"


def _interrupted() -> int:
    note("terminated" if STATE.is_terminated else "interrupted")
    return EXIT_TERMINATED if STATE.is_terminated else EXIT_INTERRUPTED


def _report(error: TracekitError) -> int:
    if STATE.debug:
        raise error
    fail(error.message, error.hint)
    return error.exit_code
