"""Runs made from raw paths, kept so that the next command on the same files is instant.

One folder a set of files, below TRACEKIT_CACHE_DIR, XDG_CACHE_HOME/tracekit or ~/.cache/tracekit:

    tracekit-runs-<uid>/<24 hex digits>/tracekit-cached.json, and what a run holds

Whoever names a folder for the cache may keep other things in it. So nothing is removed but files
with names that a run has, below a folder that bears the cache's own mark, belongs to this user and
is reached through no link; whatever else lies there stays. What another user could have written is
neither read nor written.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from tracekit.errors import StoreError, UsageError
from tracekit.schema import REGISTRY_VERSION
from tracekit.store.manifest import FORMAT_VERSION, MARK, is_run, mark
from tracekit.store.removal import Removed, remove_run

_LOG = logging.getLogger("tracekit")

CACHE_BYTES = 20 << 30
"""Above this the runs that were used longest ago go first; TRACEKIT_CACHE_BYTES overrides."""

CACHED_MARK = "tracekit-cached.json"
"""In every folder of the cache, written before anything else: the cache made it."""

_NAME = re.compile(r"[0-9a-f]{24}")


class CachedRun(Struct, frozen=True):
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


def runs_folder() -> Path:
    """Where this user's runs are: users who share a cache's folder do not share its runs."""
    return cache_folder() / f"tracekit-runs-{os.getuid()}"


def run_folder(identity: Sequence[tuple[str, int, int]], job: str, options: str) -> Path:
    """Folder of the run for files of that (path, size, mtime_ns), job digest and options.

    Size and time stand for the content here; the run itself is keyed by hashes of the bytes, and
    knows itself what other versions of tracekit would make otherwise.
    """
    lines = [f"{path}\0{size}\0{mtime}" for path, size, mtime in sorted(identity)]
    text = "\n".join([*lines, job, options, str(REGISTRY_VERSION), str(FORMAT_VERSION)])
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return runs_folder() / digest[:24]


def is_kept(run: Path) -> bool:
    """Whether the cache holds this run, as nobody but this user can have left it."""
    return _distrust(run.parent) is None and _is_ours(run) and is_run(run)


def make_folder(run: Path) -> Path:
    """The run's folder, made; a temporary one for this process where the cache is not usable.

    What it holds is then read again by the next command: slower, but no reason to stop.
    """
    try:
        run.parent.parent.mkdir(parents=True, exist_ok=True)
        why = _made(run.parent) or _made(run)
        if why is None and not _is_ours(run):
            if any(run.iterdir()):
                why = f"{run} is not of its making"
            else:
                _write_mark(run)
        if why is None and os.access(run, os.W_OK | os.X_OK):
            return run
        why = why or "it may not be written"
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


def _made(folder: Path) -> str | None:
    """Make a folder for this user alone, unless it is there; why it is not to be used."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return _distrust(folder)


def _distrust(folder: Path) -> str | None:
    """Why what lies in a folder may be somebody else's; None where it cannot."""
    try:
        folder_stat = folder.lstat()
    except OSError as error:
        return error.strerror or type(error).__name__
    if stat.S_ISLNK(folder_stat.st_mode):
        return f"{folder} is a link"
    if not stat.S_ISDIR(folder_stat.st_mode):
        return f"{folder} is not a folder"
    if folder_stat.st_uid != os.getuid():
        return f"{folder} belongs to another user"
    if folder_stat.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{folder} may be written by others (mode {stat.S_IMODE(folder_stat.st_mode):o})"
    return None


def _mark_text(run: Path) -> str:
    return json.dumps({"format": "tracekit-cached-run", "format_version": 1, "name": run.name})


def _write_mark(run: Path) -> None:
    with contextlib.suppress(FileExistsError), (run / CACHED_MARK).open("x", encoding="utf-8") as f:
        f.write(_mark_text(run))
    mark(run)


def _is_ours(run: Path) -> bool:
    """Whether the cache made this folder: a copy or a folder of another name is somebody's own."""
    if not _NAME.fullmatch(run.name) or _distrust(run) is not None:
        return False
    path = run / CACHED_MARK
    try:
        is_file = stat.S_ISREG(path.lstat().st_mode)
        return is_file and path.read_text(encoding="utf-8") == _mark_text(run)
    except (OSError, UnicodeDecodeError):
        return False


def drop(run: Path) -> Removed:
    """Remove a run of the cache: what the cache made of it, and nothing else."""
    if _distrust(run.parent) is not None or not _is_ours(run):
        return Removed(run, 0, 0)
    return remove_run(run, (MARK, CACHED_MARK))


def touch(run: Path) -> None:
    """Remember that the run was used now."""
    with contextlib.suppress(OSError):
        (run / ".used").touch()


def cached_runs() -> Iterator[CachedRun]:
    """The cache's runs, last used first."""
    from tracekit.store.manifest import load

    folder = runs_folder()
    runs = []
    for path in folder.iterdir() if _distrust(folder) is None else ():
        if not _is_ours(path):
            continue
        with contextlib.suppress(OSError):
            last = path / ".used"
            used = (last if last.exists() else path).stat().st_mtime
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
                total += (Path(root) / name).lstat().st_size
    return total


def clear(older_than_s: float = 0.0) -> list[Removed]:
    """Remove the runs not used for that long; what was removed of each."""
    now = time.time()
    return [drop(r.path) for r in cached_runs() if now - r.used_at_s >= older_than_s]


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
    """Drop the runs that were used longest ago until the cache fits its bound, and say so."""
    bound = _bound_bytes()
    total = 0
    gone: list[Removed] = []
    for index, run in enumerate(cached_runs()):
        total += run.size_bytes
        if total > bound and index > 0:  # the newest is in use
            gone.append(drop(run.path))
    size = sum(r.size_bytes for r in gone)
    if size:
        _LOG.warning(
            "note: cache: removed what was used longest ago, %d of its runs, %.1f MB, to stay "
            "below %.1f MB (TRACEKIT_CACHE_BYTES)",
            len(gone),
            size / 1e6,
            bound / 1e6,
        )
