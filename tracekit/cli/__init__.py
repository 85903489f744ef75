"""The command line: a skin over ``tracekit.api``. Data on stdout, everything else on stderr."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 --fail-on, 2 usage or input, 70 our bug."""
    codes: list[object] = []
    if arguments is None:  # a program of its own: not called by another, or by a test
        atexit.register(_leave, codes)
    try:
        # Not above: the script that pip writes imports this, and every worker imports the script.
        from tracekit.cli.app import main as run

        run(arguments)
    except SystemExit as end:
        codes.append(end.code)
        raise
    except KeyboardInterrupt:  # while it starts; later the application sees to it
        sys.exit(130)


def _leave(codes: list[object]) -> None:
    """End the process, once threads have ended and all that was registered later has run.

    To take apart every module that was imported takes the interpreter 0.1 s, a tenth of a short
    command, and changes nothing: files are closed where they were written.
    """
    if len(codes) != 1 or not isinstance(codes[0], int):
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # the interpreter says what became of it
    os._exit(codes[0])
