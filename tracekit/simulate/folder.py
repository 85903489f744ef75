"""The folder of a simulated job: it is replaced only where nothing but such a job is in it."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from tracekit.errors import UsageError

FILES = ".tracekit-simulated.json"
"""Which files a simulated job consists of, and their checksums; hidden, so never read."""


def make_folder(output: Path, force: bool) -> None:
    """A new or empty folder; with ``force`` an earlier simulated job is removed from it.

    UsageError where something else is in it.
    """
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output}: exists and is no folder")
    if output.is_dir() and any(output.iterdir()):
        if not force:
            raise UsageError(f"{output}: exists and is not empty", hint="--force replaces it")
        _remove_simulated(output)
    output.mkdir(parents=True, exist_ok=True)


def list_files(output: Path) -> None:
    """Say what this job consists of, so that replacing it removes nothing else."""
    paths = sorted(path for path in output.rglob("*") if path.is_file())
    files = {str(path.relative_to(output)): _checksum(path) for path in paths}
    (output / FILES).write_text(json.dumps({"format": FILES, "files": files}, indent=1) + "\n")


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as stream:
        while part := stream.read(1 << 20):
            value = zlib.crc32(part, value)
    return value


def _remove_simulated(output: Path) -> None:
    """Remove an earlier simulated job; UsageError where the folder holds anything else."""
    try:
        listed = json.loads((output / FILES).read_text(encoding="utf-8"))
        files = dict(listed["files"]) if listed["format"] == FILES else {}
    except (OSError, ValueError, TypeError, KeyError):
        raise UsageError(
            f"{output}: holds no simulated job, so it is not replaced",
            hint="give another folder, or empty it yourself",
        ) from None
    below = sorted(output.rglob("*"), reverse=True)
    paths = [path for path in below if path.is_symlink() or not path.is_dir()]
    for path in paths:
        name = str(path.relative_to(output))
        is_ours = (
            path.is_file()
            and not path.is_symlink()
            and (name == FILES or (name in files and files[name] == _checksum(path)))
        )
        if not is_ours:
            raise UsageError(
                f"{path}: not as simulate wrote it, so the folder is not replaced",
                hint="give another folder, or empty it yourself",
            )
    for path in paths:
        path.unlink()
    for folder in below:
        if folder.is_dir():
            folder.rmdir()
