"""What a run's rows depend on, as hashes: the bytes of its sources, options and versions."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.schema import REGISTRY_VERSION
from tracekit.store.manifest import (
    Manifest,
)

if TYPE_CHECKING:
    from tracekit.ingest.base import SourceFile


def exported_hash(digest: str) -> str:
    """The hash of what nsys makes of a report; the report by itself holds nothing to read."""
    return hash_of(digest, "exported")


def digests_of(files: Sequence[SourceFile], previous: Manifest | None) -> dict[str, str]:
    """Content hash by path; files that look untouched since the last generation are not read."""
    known = {(s.path, s.file_bytes, s.mtime_ns): s for s in previous.sources} if previous else {}
    archives: dict[str, str] = {}
    return {
        file.path: old.sha256
        if (old := known.get((file.path, file.file_bytes, file.mtime_ns))) and not file.stored
        else content_hash(file, archives)
        for file in files
    }


def entry_key(digest: str, path: str, *, stacks: bool, columns: str = "") -> str:
    """Content, name (a rank may be read from it), options and versions; rarely the folder."""
    from tracekit.ingest.files import identity_of

    said = (columns,) if columns else ()
    return hash_of(
        digest, identity_of(path), f"stacks={stacks}", str(REGISTRY_VERSION), ingestor_versions(),
        *said,
    )  # fmt: skip


def columns_text(columns: tuple[tuple[str, str], ...]) -> str:
    return json.dumps(sorted(columns)) if columns else ""


def content_hash(file: SourceFile, archives: dict[str, str]) -> str:
    """Hash of the file as stored; of the archive and the member's name for members."""
    path, _, member = file.path, "", ""
    if not os.path.lexists(path) and "!" in path:
        path, _, member = path.rpartition("!")
    if path not in archives or not member:
        try:
            archives[path] = _bytes_hash(Path(path))
        except OSError as error:
            # Named in the report as unreadable; the reason changes the key when it goes away.
            archives[path] = hash_of("unreadable", path, type(error).__name__)
    digest = hash_of(archives[path], member) if member else archives[path]
    return exported_hash(digest) if file.stored else digest


def _bytes_hash(path: Path) -> str:
    """Hash of a file's bytes; of the names and bytes of its files for a folder."""
    if path.is_dir():
        parts = sorted(p for p in path.iterdir() if p.is_file())
        return hash_of(*(text for p in parts for text in (p.name, _bytes_hash(p))))
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_of(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def ingestor_versions() -> str:
    """Names and versions of all ingestors: part of every key."""
    from tracekit.ingest import INGESTORS

    return ",".join(f"{i.name}={i.version}" for i in INGESTORS)
