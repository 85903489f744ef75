"""Runs made from raw paths, kept so that the next command on the same files is instant.

One folder a set of files, below TRACEKIT_CACHE_DIR, XDG_CACHE_HOME/tracekit or ~/.cache/tracekit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracekit.schema import REGISTRY_VERSION
from tracekit.version import __version__

CACHE_BYTES = 20 << 30
"""Above this the runs that were used longest ago go first; TRACEKIT_CACHE_BYTES overrides."""


@dataclass(frozen=True, slots=True)
class CachedRun:
    """One run in the cache."""

    path: Path
    size_bytes: int
    used_at_s: float
    """Seconds since the epoch of its last use."""
    sources: tuple[str, ...]


def cache_folder() -> Path:
    """The cache's folder (may not exist)."""
    if given := os.environ.get("TRACEKIT_CACHE_DIR"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tracekit"


def run_folder(identity: Sequence[tuple[str, int, int]], job: str, options: str) -> Path:
    """Folder of the run for files of that (path, size, mtime_ns), job digest and options.

    Size and time stand for the content here; the run itself is keyed by hashes of the bytes.
    """
    lines = [f"{path}\0{size}\0{mtime}" for path, size, mtime in sorted(identity)]
    text = "\n".join([*lines, job, options, str(REGISTRY_VERSION), __version__])
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return cache_folder() / "runs" / digest[:24]


def touch(run: Path) -> None:
    """Remember that the run was used now."""
    with contextlib.suppress(OSError):
        (run / ".used").touch()


def cached_runs() -> Iterator[CachedRun]:
    """The cache's runs, last used first."""
    from tracekit.errors import StoreError
    from tracekit.store.manifest import load

    folder = cache_folder() / "runs"
    runs = []
    for path in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(StoreError, OSError):
            manifest = load(path)
            mark = path / ".used"
            used = (mark if mark.exists() else path).stat().st_mtime
            sources = tuple(s.path for s in manifest.sources) if manifest else ()
            runs.append(CachedRun(path, _folder_bytes(path), used, sources))
    return iter(sorted(runs, key=lambda r: (-r.used_at_s, str(r.path))))


def _folder_bytes(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(root) / name).stat().st_size
    return total


def clear(older_than_s: float = 0.0) -> tuple[int, int]:
    """Remove the runs not used for that long; returns (runs, bytes) removed."""
    now = time.time()
    gone = [r for r in cached_runs() if now - r.used_at_s >= older_than_s]
    for run in gone:
        shutil.rmtree(run.path, ignore_errors=True)
    return len(gone), sum(r.size_bytes for r in gone)


def trim() -> None:
    """Drop the runs that were used longest ago until the cache fits its bound."""
    bound = int(os.environ.get("TRACEKIT_CACHE_BYTES", CACHE_BYTES))
    total = 0
    for index, run in enumerate(cached_runs()):
        total += run.size_bytes
        if total > bound and index > 0:  # the newest is in use
            shutil.rmtree(run.path, ignore_errors=True)
