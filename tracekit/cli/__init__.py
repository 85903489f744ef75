"""The command line: a skin over ``tracekit.api``. Data on stdout, everything else on stderr."""

from tracekit.cli.app import main

__all__ = ["main"]
