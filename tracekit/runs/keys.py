"""What a run's rows depend on, as hashes: the bytes of its sources, options and versions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.schema import REGISTRY_VERSION
from tracekit.version import __version__

if TYPE_CHECKING:
    from tracekit.ingest.base import Ingestor, SourceFile
    from tracekit.job import JobDescription
    from tracekit.store.manifest import Manifest


def exported_hash(digest: str) -> str:
    """The hash of what nsys makes of a report; the report by itself holds nothing to read."""
    return hash_of(digest, "exported")


def digests_of(
    files: Sequence[SourceFile], previous: Manifest | None, threads_count: int = 1
) -> dict[str, str]:
    """Content hash by whole path; files that look untouched since then are not read."""
    known = (
        {(whole(s.path, s.folder), s.file_bytes, s.mtime_ns): s for s in previous.sources}
        if previous
        else {}
    )
    digests: dict[str, str] = {}
    unread: dict[str, list[SourceFile]] = {}
    """By the file on disk, which may be an archive of many."""
    for file in files:
        path = whole(file.path)
        old = known.get((path, file.file_bytes, file.mtime_ns))
        digests[path] = old.sha256 if old and not file.stored else ""
        if not digests[path]:
            unread.setdefault(_on_disk(file.path)[0], []).append(file)

    def hashed(together: Sequence[SourceFile]) -> list[tuple[str, str]]:
        archives: dict[str, str] = {}
        return [(whole(file.path), content_hash(file, archives)) for file in together]

    if threads_count > 1 and len(unread) > 1:  # hashing lets other threads work
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads_count, "hash") as pool:
            for found in pool.map(hashed, unread.values()):
                digests.update(found)
    else:
        for together in unread.values():
            digests.update(hashed(together))
    return digests


def whole(path: str, folder: str = "") -> str:
    """The path from the root: of one that was given in ``folder`` (default: where we are).

    As it was given otherwise: members of archives may have any name.
    """
    return os.path.join(folder or os.getcwd(), path)  # noqa: PTH118, PTH109 - may be no path of a file


def entry_key(digest: str, path: str, *, stacks: bool, columns: str = "") -> str:
    """Content, name (a rank may be read from it) and options; rarely the folder."""
    from tracekit.ingest.files import identity_of

    said = (columns,) if columns else ()
    return hash_of(digest, identity_of(path), f"stacks={stacks}", str(REGISTRY_VERSION), *said)


def columns_text(columns: tuple[tuple[str, str], ...]) -> str:
    return json.dumps(sorted(columns)) if columns else ""


def content_hash(file: SourceFile, archives: dict[str, str]) -> str:
    """Hash of the file as stored; of the archive and the member's name for members."""
    path, member = _on_disk(file.path)
    if path not in archives or not member:
        try:
            archives[path] = _bytes_hash(Path(path))
        except OSError as error:
            # Named in the report as unreadable; the reason changes the key when it goes away.
            archives[path] = hash_of("unreadable", path, type(error).__name__)
    digest = hash_of(archives[path], member) if member else archives[path]
    return exported_hash(digest) if file.stored else digest


def _on_disk(path: str) -> tuple[str, str]:
    """The file that is there, and the member of it where it is an archive."""
    if not os.path.lexists(path) and "!" in path:
        path, _, member = path.rpartition("!")
        return path, member
    return path, ""


def _bytes_hash(path: Path) -> str:
    """Hash of a file's bytes; of the names and bytes of its files for a folder; of the kind of
    what is never opened."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return hash_of("special", str(stat.S_IFMT(mode)))
    if stat.S_ISDIR(mode):
        parts = sorted(p for p in path.iterdir() if p.is_file())
        return hash_of(*(text for p in parts for text in (p.name, _bytes_hash(p))))
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_of(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def ingestor_versions() -> str:
    """Names and versions of all ingestors."""
    return ",".join(readers())


def readers() -> tuple[str, ...]:
    """Each ingestor as ``SourceEntry.reader`` names it."""
    from tracekit.ingest import INGESTORS

    return tuple(reader_of(i) for i in INGESTORS)


def reader_of(ingestor: Ingestor) -> str:
    """name=version."""
    return f"{ingestor.name}={ingestor.version}"


def job_digest(job: JobDescription | None) -> str:
    """Hash of what the description says, and of what its paths are relative to."""
    if job is None:
        return ""
    named = [f"{e.base}/{e.path}" for e in job.rank if e.path is not None]
    named += [f"{e.base}/{e.path}" for e in job.source]
    return hash_of(job.digest(), *sorted(named))


DERIVE_SOURCES = (
    "arrays.py",
    "bounds.py",
    "clock.py",
    "correction.py",
    "derive",
    "expect/hardware.py",
    "ingest/base.py",
    "ingest/counters/deltas.py",
    "ingest/traces/names.py",
    "job",
    "range_kind.py",
    "ranges.py",
    "schema",
    "stats.py",
    "store/reader.py",
    "values.py",
)
"""What decides about derived rows beside the rows that they are derived from: the modules that
derive imports, below the package's folder. tests/test_run_versions.py compares."""


@cache
def derive_version() -> str:
    """What decides whether derived tables are as this tracekit would make them.

    The version, and a hash of the source text of ``DERIVE_SOURCES``: a number that somebody has
    to raise is forgotten. A few milliseconds, once a process.
    """
    return sources_digest(DERIVE_SOURCES)


def sources_digest(names: Sequence[str]) -> str:
    """The version, and a hash of modules' and folders' text, named below the package's folder."""
    digest = hashlib.sha256()
    for name in names:
        path = Path(__file__).parent.parent / name
        files = (p for p in path.rglob("*") if p.suffix in (".py", ".sql", ".toml"))
        for file in sorted(files) if path.is_dir() else [path]:
            with contextlib.suppress(OSError):  # a build without sources has its version
                digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:16]}"
