"""What the user gave, as a list of readable files: folders, globs and archives expanded.

Archives are read by ``archives``, compressed files by ``streams``.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from tracekit.errors import InputError
from tracekit.ingest.base import SourceFile
from tracekit.ingest.streams import LimitError, open_file, stream_problem
from tracekit.store.manifest import MARK, is_made_by_us
from tracekit.wording import natural

HEAD_BYTES = 64 << 10
"""Decompressed bytes that recognition looks at."""
_BLOCK_BYTES = 1 << 20
MAX_FILES = 1_000_000
"""Files that one call expands to."""

_SUFFIXES = re.compile(r"\.(?:gz|gzip|zst|zstd)$", re.I)
_SYSFS = re.compile(
    # Only behind the last of each word: behind every one, a long path takes its square.
    r"(?s)(?>.*/ports/\d+/)[\w/]+$|(?>.*/statistics/)\w+$|(?>.*/infiniband/\w+/)\w+$"
)
_COUNTER_DUMP = re.compile(r"\.(?:txt|out|prom|stats?|counters?|db_csv)$|^[^.]+$", re.I)
_ARCHIVES = re.compile(r"\.(?:tar|tgz|tzst|zip|tar\.(?:gz|zst|zstd))$", re.I)


def base_name(name: str) -> str:
    """Base name without compression suffixes."""
    return _SUFFIXES.sub("", name.rsplit("/", 1)[-1])


def identity_of(path: str) -> str:
    """What of a path is part of a file's identity beside its content.

    Its base name, as a rule: the same trace in another folder is the same trace. A dump of
    counters often says nothing else about whose it is than the folder it lies in, and two hosts
    that count nothing but zeros write equal files: for small kinds that are no traces the folder
    counts too, and for trees of sysfs the whole path.
    """
    plain = path.replace("\\", "/").replace("!", "/")
    if _SYSFS.match(plain):
        return plain
    name = base_name(path)
    if _COUNTER_DUMP.search(name):
        return "/".join([*plain.split("/")[-2:-1], name])
    return name


def read_head(source: SourceFile, size: int = HEAD_BYTES) -> bytes:
    """The first decompressed bytes of a file, from one small read of the stored ones."""
    with source.open() as stream:
        return stream.read(size)


def read_head_and_problem(source: SourceFile, size: int = HEAD_BYTES) -> tuple[bytes, str | None]:
    """The first bytes, and what is wrong with the compression if it already shows."""
    with source.open() as stream:
        return stream.read(size), stream_problem(stream)


def read_behind_zeros(source: SourceFile, most: int, size: int = HEAD_BYTES) -> bytes:
    """The first decompressed bytes behind the zeros that a file begins with, if these are at most
    so many."""
    with source.open() as stream:
        for _ in range(0, most, _BLOCK_BYTES):
            block = stream.read(_BLOCK_BYTES)
            text = block.lstrip(b"\0")
            if text or not block:
                return (text + stream.read(size))[:size] if text else b""
    return b""


def source_file(path: Path) -> SourceFile:
    """One plain (perhaps compressed) file."""
    text = str(path)
    stat = path.stat()
    return SourceFile(
        text, base_name(path.name), stat.st_size, stat.st_mtime_ns, partial(open_file, text)
    )


def expand(paths: Sequence[str | Path]) -> list[SourceFile]:
    """All files that the paths mean: files, folders with all below them, globs, archives.

    Hidden files are skipped, links are followed once, and the order depends on names only.
    Runs of tracekit below a folder are passed over, finished or not: their tables are no input.
    A path that means nothing raises InputError, and so does a run; what is wrong with a file is
    said when it is recognised or read.
    """
    by_path: dict[str, Path] = {}
    for given in paths:
        path = Path(given)
        if not os.path.lexists(path):  # a file that is named ~ is that file
            # Unlike Path's, this leaves the home of somebody who does not exist as it is written.
            path = Path(os.path.expanduser(given))  # noqa: PTH111
        text = str(path)
        if path.is_dir():
            if is_made_by_us(path):
                raise InputError(
                    f"{text}: a run that is not finished, or no file to read: its tables are no "
                    "raw files",
                    hint=f"tracekit ingest PATH... --run {text} goes on where an ingest was killed "
                    "or refused",
                )
            matches = list(_walk(path))
            if not matches:
                raise InputError(f"{text}: the folder holds no files")
        elif path.exists() or path.is_symlink():
            matches = [path]
        elif glob.has_magic(text):
            matches = []
            for hit in sorted(glob.glob(text, recursive=True)):  # noqa: PTH207 - absolute too
                matches += _walk(Path(hit)) if Path(hit).is_dir() else [Path(hit)]
            if not matches:
                raise InputError(f"{text}: no file matches")
        else:
            raise InputError(f"{text}: no such file or folder")
        for match in matches:
            by_path.setdefault(os.path.realpath(match), match)
            if len(by_path) > MAX_FILES:
                raise LimitError(f"{text}: more than {MAX_FILES} files")
    sources: list[SourceFile] = []
    whole = _whole_folders(by_path.values())
    together = {*(p for p in by_path.values() if p.parent not in whole), *whole}
    for match in sorted(together, key=lambda p: natural(str(p))):
        for source in [whole[match]] if match in whole else _expand_file(match):
            sources += _split(source)
    return sources


def _whole_folders(given: Iterable[Path]) -> dict[Path, SourceFile]:
    """Folders whose files are one source together."""
    from tracekit.ingest import SPLITTERS

    members: dict[Path, list[Path]] = {}
    for path in given:
        if path.suffix == ".parquet" and path.is_file():
            members.setdefault(path.parent, []).append(path)
    whole: dict[Path, SourceFile] = {}
    for folder, paths in members.items():
        names = {p.name for p in paths}
        shown = (s.folder_name(folder.absolute().name, names) for s in SPLITTERS)
        name = next((n for n in shown if n is not None), None)
        if name is not None:
            stats = [p.stat() for p in paths]
            first = str(min(paths))
            whole[folder] = SourceFile(
                str(folder),
                name,
                sum(s.st_size for s in stats),
                max(s.st_mtime_ns for s in stats),
                partial(open_file, first),
            )
    return whole


def _split(source: SourceFile) -> list[SourceFile]:
    """The sources that one file is: an ingestor may find several ranks in it."""
    from tracekit.ingest import SPLITTERS

    if getattr(source.open, "func", None) is _refuse:
        return [source]
    for splitter in SPLITTERS:
        parts = splitter.split(source)
        if len(parts) > 1:
            return parts
    return [source]


def _walk(folder: Path) -> Iterator[Path]:
    seen: set[str] = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:
            folders[:] = []
            continue
        seen.add(real)
        if MARK in names or ("manifests" in folders and is_made_by_us(Path(parent))):
            folders[:] = []
            continue
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        # Also pipes and dangling links, to be named as what cannot be read.
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith("."))


_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""Kinds of files that may never end, or wait for somebody who never comes."""


class NotAFileError(InputError):
    """What has a name in a folder, and is no file."""


def _refuse(path: str, kind: str) -> BinaryIO:
    raise NotAFileError(f"{kind}, which is never opened")


def _expand_file(path: Path) -> list[SourceFile]:
    text = str(path)
    try:
        kind = _SPECIAL.get(stat.S_IFMT(path.stat().st_mode))
        if kind is not None:
            return [SourceFile(text, base_name(path.name), 0, 0, partial(_refuse, text, kind))]
        whole = source_file(path)
    except OSError:
        return [SourceFile(text, base_name(path.name), 0, 0, partial(open_file, text))]
    if not _ARCHIVES.search(path.name):
        return [whole]
    from tracekit.ingest.archives import list_members

    try:
        members = list_members(path)
    except LimitError as error:
        return [replace(whole, open=partial(_say_limit, str(error)))]
    return [whole] if members is None else members


def _say_limit(why: str) -> BinaryIO:
    raise LimitError(why)
