"""What workers of a cluster are given to do in tests: they import it by its name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from tracekit.errors import InputError


def doubled(number: int) -> int:
    return 2 * number


def fails_where_it_was_first(note: str) -> tuple[int, int]:
    """The processes that it failed in and that it ended in; it never ends where it failed."""
    path = Path(note)
    if not path.exists():
        path.write_text(str(os.getpid()))
    first = int(path.read_text())
    if first == os.getpid():
        raise OSError("no space left on this one")
    return first, os.getpid()


def always_fails(note: str) -> None:
    with Path(note).open("a") as lines:
        lines.write(f"{os.getpid()}\n")
    raise KeyError("s3cret of a file")


def cannot_be_read(note: str) -> None:
    with Path(note).open("a") as lines:
        lines.write("begun\n")
    raise InputError("nothing to read in x", hint="give another")


def dies_if_it_is(asked: tuple[str, str]) -> str:
    own, dying = asked
    if own == dying:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return own


def dies_for_one_run(asked: Any) -> str:
    """In place of a diagnosis elsewhere: the kernel kills the one that DIES names."""
    from tracekit.fleet import elsewhere

    if asked.entry.name == os.environ["DIES"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return elsewhere._diagnosed_there(asked)
