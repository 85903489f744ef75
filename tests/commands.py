"""A command of tracekit, run in this process or as one of its own, and what it left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ONE_RULE = ("--select", "dataloader-stall")
"""Where any report will do: it takes half as long as that of all rules."""


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


Tracekit = Callable[..., Done]


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """The command as a real process."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    command = [sys.executable, "-m", "tracekit", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(command, env=env, text=True, **pipes)


def assert_refused(done: Done, *words: str, hint: str | None = None) -> None:
    """Exit 2, nothing on stdout, one error line, and a hint on a line of its own."""
    assert (done.code, done.out) == (2, ""), done
    assert done.err.lower().startswith(("error: ", "usage: ")), done.err
    for word in words:
        assert word in done.err, done.err
    if hint is not None:
        hints = [line for line in done.err.splitlines() if line.startswith("hint: ")]
        assert len(hints) == 1, done.err
        assert hint in hints[0]
