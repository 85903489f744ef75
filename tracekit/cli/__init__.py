"""The command line: a skin over ``tracekit.api``. Data on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from typing import NoReturn


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 --fail-on, 2 usage or input, 70 our bug."""
    try:
        # Not above: the script that pip writes imports this, and every worker imports the script.
        from tracekit.cli.app import main as run

        run(arguments)
    except KeyboardInterrupt:  # while it starts; later the application sees to it
        sys.exit(130)


__all__ = ["main"]
