"""Removing a run: what a run consists of, and nothing else that lies in its folder."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

_OURS = re.compile(
    r"manifests/\d+\.json|data/[0-9a-f]{24}/(?:\w+-\d+\.parquet|shard\.json)"
    r"|answers/[0-9a-f]{24}\.json|derived/[0-9a-f]{24}/\w+\.parquet|tmp/(?:[^/]+-\d+-[0-9a-f]{8}|spill)(?:/.*)?|\.used",
    re.DOTALL,
)
"""Paths of what a run consists of, beside the marks of who keeps it."""


class Removed(Struct, frozen=True):
    """What was removed of a run."""

    path: Path | str
    """Its folder, or its URI."""
    size_bytes: int
    left_count: int
    """Files in its folder that tracekit did not make, and left there."""


def is_of_a_run(inside: str) -> bool:
    """Whether a path below a run's folder is one that a run consists of."""
    return _OURS.fullmatch(inside) is not None


def remove_run(run: Path, marks: Sequence[str]) -> Removed:
    """Remove a run's files, and its ``marks`` once nothing else is left; follows no link.

    Whoever calls has proved that the folder is a run of theirs.
    """
    size = left = 0
    folders: list[str] = []
    # The manifests go first: without one, what is left is no run.
    for parent, inner, names in os.walk(run, followlinks=False):
        inner.sort(key=lambda name: name != "manifests")
        folders.append(parent)
        for name in (*names, *(n for n in inner if (Path(parent) / n).is_symlink())):
            path = Path(parent) / name
            inside = path.relative_to(run).as_posix()
            if inside in marks:
                continue
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue  # somebody else removes the run too
            is_file = stat.S_ISREG(status.st_mode) or inside.startswith("tmp/")
            if not is_file or not is_of_a_run(inside):
                left += 1
                continue
            with contextlib.suppress(OSError):
                path.unlink()
                size += status.st_size
    if not left:
        for name in marks:
            with contextlib.suppress(OSError):
                (run / name).unlink()
    for folder in reversed(folders):
        with contextlib.suppress(OSError):  # somebody's file is in it
            Path(folder).rmdir()
    return Removed(run, size, left)
