"""Runs made from raw paths, kept so that the next command on the same files is instant.

One folder a set of files, below TRACEKIT_CACHE_DIR, XDG_CACHE_HOME/tracekit or ~/.cache/tracekit.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracekit.errors import StoreError, UsageError
from tracekit.schema import REGISTRY_VERSION
from tracekit.store.manifest import FORMAT_VERSION

_LOG = logging.getLogger("tracekit")

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
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "tracekit"
    try:
        return Path.home() / ".cache" / "tracekit"
    except RuntimeError:  # a container's user without a home
        return Path(tempfile.gettempdir()) / f"tracekit-cache-{os.getuid()}"


def run_folder(identity: Sequence[tuple[str, int, int]], job: str, options: str) -> Path:
    """Folder of the run for files of that (path, size, mtime_ns), job digest and options.

    Size and time stand for the content here; the run itself is keyed by hashes of the bytes, and
    knows itself what other versions of tracekit would make otherwise.
    """
    lines = [f"{path}\0{size}\0{mtime}" for path, size, mtime in sorted(identity)]
    text = "\n".join([*lines, job, options, str(REGISTRY_VERSION), str(FORMAT_VERSION)])
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return cache_folder() / "runs" / digest[:24]


def make_folder(run: Path) -> Path:
    """The run's folder, made; a temporary one for this process where the cache is not writable.

    What it holds is then read again by the next command: slower, but no reason to stop.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
        if os.access(run, os.W_OK | os.X_OK):
            return run
        why = "it may not be written"
    except OSError as error:
        why = error.strerror or type(error).__name__
    folder = Path(tempfile.mkdtemp(prefix="tracekit-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _LOG.warning(
        "cache %s cannot be used (%s): reading into %s for this time; "
        "set TRACEKIT_CACHE_DIR to a folder that can be written",
        cache_folder(),
        why,
        folder,
    )
    return folder


def drop(run: Path) -> None:
    """Remove one run."""
    shutil.rmtree(run, ignore_errors=True)


def touch(run: Path) -> None:
    """Remember that the run was used now."""
    with contextlib.suppress(OSError):
        (run / ".used").touch()


def cached_runs() -> Iterator[CachedRun]:
    """The cache's runs, last used first."""
    from tracekit.store.manifest import load

    folder = cache_folder() / "runs"
    runs = []
    for path in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            mark = path / ".used"
            used = (mark if mark.exists() else path).stat().st_mtime
            sources: tuple[str, ...] = ()
            with contextlib.suppress(StoreError):  # a damaged one takes space too
                manifest = load(path)
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


def _bound_bytes() -> int:
    given = os.environ.get("TRACEKIT_CACHE_BYTES")
    if not given:
        return CACHE_BYTES
    if not given.isdecimal():
        raise UsageError(
            f"TRACEKIT_CACHE_BYTES: expected a number of bytes, found {given!r}",
            hint="TRACEKIT_CACHE_BYTES=20000000000",
        )
    return int(given)


def trim() -> None:
    """Drop the runs that were used longest ago until the cache fits its bound."""
    bound = _bound_bytes()
    total = 0
    for index, run in enumerate(cached_runs()):
        total += run.size_bytes
        if total > bound and index > 0:  # the newest is in use
            shutil.rmtree(run.path, ignore_errors=True)
