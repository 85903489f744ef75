"""Who writes a lake's tables: one at a time, with owner and age.

Delta Lake itself refuses commits that collide; the lock keeps two nights from doing the same work.
It is a file made by an exclusive link, which holds on NFS and Lustre. One is dead where its process
is gone (seen on its own host only) or where nobody has touched it for ``DEAD_AFTER_S``, by the
clock that stamps files there: on NFS the server's, whatever the clocks of two hosts say.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tracekit.errors import StoreError
from tracekit.store.manifest import is_dead, this_host
from tracekit.store.writer import writing

DEAD_AFTER_S = 3600.0
"""A run that takes an hour to diagnose would lose the lock: what is written stays whole, since
commits collide, but is worked out twice."""


@contextmanager
def held(path: Path) -> Iterator[Callable[[], None]]:
    """Hold the lock; gives what to call now and then, so that others see it is alive.

    StoreError where somebody else holds it, with who and since when; RunWriteError where no file
    can be written there.
    """
    host, token = this_host(), secrets.token_hex(8)
    owner = json.dumps({"host": host, "pid": os.getpid(), "token": token})
    draft = path.with_name(f"{path.name}.{token}")
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(owner, encoding="utf-8")
        try:
            now_s = draft.stat().st_mtime
            if not _taken(draft, path):
                _clear_dead(path, host, now_s)
                if not _taken(draft, path):
                    raise StoreError(
                        f"{path}: {_owner(path, now_s)}", hint="wait for it, or remove the file"
                    )
        finally:
            draft.unlink(missing_ok=True)
    try:
        yield lambda: _touch(path, owner)
    finally:
        with contextlib.suppress(OSError):
            if path.read_text(encoding="utf-8") == owner:
                path.unlink()


def _taken(draft: Path, path: Path) -> bool:
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    return True


def _touch(path: Path, owner: str) -> None:
    with contextlib.suppress(OSError):
        if path.read_text(encoding="utf-8") == owner:
            os.utime(path)


def _clear_dead(path: Path, host: str, now_s: float) -> None:
    """Take away a lock whose owner is gone: by a rename, so that of two who see it one does."""
    with contextlib.suppress(OSError):
        status = path.stat()
        said = _said(path)
        is_old = now_s - status.st_mtime > DEAD_AFTER_S
        if not is_old and not (said.get("host") == host and is_dead(said.get("pid"))):
            return
        grave = path.with_name(f"{path.name}.dead.{secrets.token_hex(8)}")
        path.rename(grave)
        if grave.stat().st_ino != status.st_ino:  # somebody was faster, and holds it now
            with contextlib.suppress(FileExistsError):
                os.link(grave, path)
        grave.unlink()


def _said(path: Path) -> dict[str, object]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _owner(path: Path, now_s: float) -> str:
    said = _said(path)
    age = ""
    with contextlib.suppress(OSError):
        age = f", alive {max(0.0, now_s - path.stat().st_mtime):.0f} s ago"
    return f"another rollup is at work (process {said.get('pid')} on {said.get('host')}{age})"
