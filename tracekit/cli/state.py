"""What the options before the command set, and what goes to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.wording import safe_lines

if TYPE_CHECKING:
    from tracekit.runs import Progress


@dataclass
class State:
    """Options that hold for any command."""

    verbose: bool = False
    quiet: bool = False
    debug: bool = False


STATE = State()


def note(text: str) -> None:
    """One line to stderr, unless quiet."""
    if not STATE.quiet:
        print(safe_lines(text), file=sys.stderr)  # noqa: T201  # the one place that writes notes


def use_colour() -> bool:
    """Whether stdout is a terminal that wants colour (NO_COLOR, TERM=dumb say no)."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


@contextmanager
def progress_bar(what: str) -> Iterator[Progress | None]:
    """A progress bar in bytes on stderr; None off a terminal or when quiet."""
    if STATE.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def update(done: int, total: int, _: str) -> None:
            bar.update(task, completed=done, total=total)

        yield update
