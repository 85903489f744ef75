"""Members of zip and tar archives as files of their own. Nothing is extracted to disk."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from tracekit.errors import InputError
from tracekit.ingest import streams
from tracekit.ingest.base import SourceFile
from tracekit.ingest.files import base_name
from tracekit.ingest.streams import DecompressedStream, LimitError, decompressed
from tracekit.wording import natural

MAX_MEMBERS = 100_000
"""Members of an archive that are looked at."""
MAX_DIRECTORY_BYTES = 32 << 20
"""Index of a zip file that is read: 100,000 members with names of 250 characters."""
MAX_HEADER_BYTES = 64 << 10
"""Longest header of a member of a tar file: a path has 4096 bytes, attributes a few more."""
MAX_KEPT_BYTES = 16 << 20
"""Of the member of a compressed archive that was read last: so much can be read again."""
MAX_MEMBER_NAME = 4096
"""Longest name of a member (PATH_MAX of Linux); of a longer one its end is kept."""
ZIP_MAGIC = b"PK\x03\x04"


def list_members(path: Path) -> list[SourceFile] | None:
    """The files in an archive; None if it is none or holds none that can be listed.

    In the order of their names; those of a compressed tar file in their own order, for each that
    lies before the last that was read inflates the archive again.
    """
    try:
        with path.open("rb") as raw:
            head = raw.read(4)
        listed = _zip_members(path) if head.startswith(ZIP_MAGIC) else _tar_members(path)
    except (OSError, zipfile.BadZipFile, tarfile.TarError, ValueError, EOFError):
        return None
    return listed or None


def _by_name(members: list[SourceFile]) -> list[SourceFile]:
    return sorted(members, key=lambda s: natural(s.path))


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))


def _member(
    archive: Path, name: str, size: int, mtime_ns: int, opened: Callable[[], BinaryIO]
) -> SourceFile:
    """A member; its name is anyone's and is shown on terminals."""
    plain = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if len(plain) > MAX_MEMBER_NAME:
        plain = "..." + plain[-255:]
    plain = "".join(c if c.isprintable() else "\ufffd" for c in plain)
    return SourceFile(f"{archive}!{plain}", base_name(plain), size, mtime_ns, opened)


def _check_members(path: Path, count: int, raw_bytes: int) -> None:
    """Refuse an archive that is too much as a whole, whatever each member is."""
    if count > MAX_MEMBERS:
        raise LimitError(f"{path}: an archive of more than {MAX_MEMBERS} members is not read")
    if raw_bytes > max(streams.RATIO_FREE_BYTES, streams.MAX_RATIO * path.stat().st_size):
        raise LimitError(
            f"{path}: the archive unpacks to more than {streams.MAX_RATIO} times its size"
        )


def _directory_bytes(path: Path) -> int:
    """Size of a zip file's index as its end states it; 0 where no end is found."""
    with path.open("rb") as raw:
        size = raw.seek(0, os.SEEK_END)
        raw.seek(max(0, size - (1 << 16) - 128))
        tail = raw.read()
    at = tail.rfind(b"PK\5\6")
    stated = int.from_bytes(tail[at + 12 : at + 16], "little") if at >= 0 else 0
    large = tail.rfind(b"PK\6\6", 0, max(at, 0))
    if stated == 0xFFFFFFFF and large >= 0:
        stated = int.from_bytes(tail[large + 40 : large + 48], "little")
    return stated


def _zip_members(path: Path) -> list[SourceFile]:
    stat = path.stat()
    if _directory_bytes(path) > MAX_DIRECTORY_BYTES:
        raise LimitError(f"{path}: an archive with an index of more than 32 MiB is not read")
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    _check_members(path, len(members), sum(m.file_size for m in members))
    # Many members over the same bytes make much of little.
    spans = sorted((m.header_offset, m.header_offset + m.compress_size) for m in members)
    if any(end > begin for (_, end), (begin, _) in pairwise(spans)):
        raise LimitError(f"{path}: the members of the archive overlap")
    free = streams.RATIO_FREE_BYTES // max(1, len(members))
    listed = [
        _member(
            path,
            m.filename,
            m.file_size,
            stat.st_mtime_ns,
            partial(_open_zip_member, str(path), index, free),
        )
        for index, m in enumerate(members)
        if not m.is_dir() and not _is_hidden(m.filename)
    ]
    return _by_name(listed)


_ZIP: dict[tuple[int, str, int], zipfile.ZipFile] = {}
"""One open zip file a process (never of its parent, whose place in the file it would share): its
index is read once, not once for each member."""


def _open_zip_member(path: str, index: int, free_bytes: int) -> BinaryIO:
    key = (os.getpid(), path, Path(path).stat().st_mtime_ns)
    archive = _ZIP.get(key)
    if archive is None:
        archive = zipfile.ZipFile(path)
        _ZIP.clear()  # its members keep the file open as long as they need it
        _ZIP[key] = archive
    try:
        member = archive.infolist()[index]
        raw = archive.open(member)
    except (RuntimeError, NotImplementedError, IndexError, zipfile.BadZipFile) as error:
        # encrypted, or packed in a way that the library does not know
        raise InputError(f"{path}: member {index + 1} cannot be unpacked") from error
    return decompressed(raw, member.compress_size, free_bytes)  # type: ignore[return-value,arg-type]


def _tar_members(path: Path) -> list[SourceFile]:
    text = str(path)
    archive_bytes = path.stat().st_size
    listed: list[tuple[str, int, int, int]] = []
    raw_bytes = 0
    with _open_tar(text) as stream:
        try:
            for count, (name, at, size, mtime_s) in enumerate(_tar_headers(stream), start=1):
                raw_bytes += size
                _check_members(path, count, raw_bytes)
                if name and not _is_hidden(name):
                    listed.append((name, at, size, mtime_s))
        except (tarfile.TarError, EOFError, ValueError):
            if not listed:
                raise
    free = streams.RATIO_FREE_BYTES // max(1, len(listed))
    members = [
        _member(
            path,
            name,
            size,
            mtime_s * 10**9,
            partial(_open_tar_member, text, at, size, min(size, archive_bytes), free),
        )
        for name, at, size, mtime_s in listed
    ]
    return members if stream.is_compressed else _by_name(members)


_BLOCK = tarfile.BLOCKSIZE
_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_NOT_OURS = (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK)


def _tar_headers(stream: DecompressedStream) -> Iterator[tuple[str, int, int, int]]:
    """Name, offset, size and time (s) of each member; the name is empty where it is no plain file.

    ``tarfile`` itself reads a header of any stated size into memory, and calls itself for each
    header before a member.
    """
    at = 0
    stated: dict[bytes, bytes] = {}
    while len(block := stream.read(_BLOCK)) == _BLOCK and block.strip(b"\0"):
        at += _BLOCK
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        size = member.size
        if member.type in (*_PAX, *_NOT_OURS, tarfile.GNUTYPE_LONGNAME):
            if not 0 <= size <= MAX_HEADER_BYTES:
                raise tarfile.ReadError("a header that is too long")
            whole = -(-size // _BLOCK) * _BLOCK
            data = stream.read(whole)[:size]
            at += whole
            if member.type in _PAX:
                stated |= _pax(data)
            elif member.type == tarfile.GNUTYPE_LONGNAME:
                stated[b"path"] = data.split(b"\0", 1)[0]
            continue
        is_sparse = member.type == tarfile.GNUTYPE_SPARSE
        more = is_sparse and block[482] != 0
        while more:  # the rest of its map
            block = stream.read(_BLOCK)
            at += _BLOCK
            more = len(block) == _BLOCK and block[504] != 0
        size = int(stated.get(b"size", size))
        if size < 0:
            raise tarfile.ReadError("a negative size")
        is_sparse |= any(key.startswith(b"GNU.sparse") for key in stated)
        is_file = member.isreg() and not is_sparse
        name = stated[b"path"].decode("utf-8", "surrogateescape") if b"path" in stated else None
        mtime_s = min(max(int(member.mtime), 0), 1 << 33)
        yield (name or member.name) if is_file else "", at, size, mtime_s
        if member.isreg() or member.type not in tarfile.SUPPORTED_TYPES:
            whole = -(-size // _BLOCK) * _BLOCK
            _pass_over(stream, whole)
            at += whole
        stated = {}


def _pax(data: bytes) -> dict[bytes, bytes]:
    """Records ``length key=value`` of a header; ValueError where they are none."""
    headers: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        end = data.index(b" ", at, at + 10)
        length = int(data[at:end])
        if length <= end - at:
            raise ValueError("a record without a length")
        key, _, value = data[end + 1 : at + length - 1].partition(b"=")
        headers[key] = value
        at += length
    return headers


def _pass_over(stream: DecompressedStream, size: int) -> None:
    if not stream.is_compressed:
        stream.skip(size)
        return
    while size > 0 and (got := len(stream.read(min(size, 1 << 20)))):
        size -= got


def _open_tar(path: str) -> DecompressedStream:
    return decompressed(Path(path).open("rb", buffering=0))


class _Cursor(Struct):
    """Where one reader of a compressed archive stands, and what it saw of the member there."""

    stream: DecompressedStream
    at: int = 0
    begin: int = 0
    """Where the member begins."""
    kept: bytearray | None = None
    """All that was read of it, to be read again; None once that is more than is kept."""


_CURSORS: list[tuple[tuple[int, str], _Cursor]] = []
"""Compressed archives that this process (never its parent) has open, the last used last.

To go back means to inflate an archive from its beginning. Members are read in order, but each a
few times: its head, its hash, its rows, and some at two places at once.
"""
_MAX_CURSORS = 2


def _cursor_at(path: str, offset: int) -> _Cursor:
    """A reader that stands where a member begins, or gives again what it read of it."""
    key = (os.getpid(), path)
    here = [item for item in _CURSORS if item[0] == key and not item[1].stream.problem]
    again = [i for i in here if i[1].begin == offset and i[1].kept is not None]
    before = sorted((i for i in here if i[1].at <= offset), key=lambda i: i[1].at)
    nearest = next(iter(again or before[::-1]), None)
    if nearest is not None:
        _CURSORS.remove(nearest)
    cursor = nearest[1] if nearest is not None else _Cursor(_open_tar(path))
    if not again:
        _pass_over(cursor.stream, offset - cursor.at)
        cursor.at = cursor.begin = offset
        cursor.kept = bytearray()
    return cursor


class _TarMember(io.RawIOBase):
    """The bytes of one member, read through the archive's own compression."""

    def __init__(self, path: str, offset: int, size: int) -> None:
        super().__init__()
        self._path = path
        self._left = size
        self._given = 0
        self._cursor: _Cursor | None = _cursor_at(path, offset)

    def read(self, size: int = -1) -> bytes:
        cursor = self._cursor
        if cursor is None:
            return b""
        wanted = self._left if size < 0 else min(size, self._left)
        if cursor.kept is not None and self._given < len(cursor.kept):
            data = bytes(cursor.kept[self._given : self._given + wanted])
        else:
            data = cursor.stream.read(wanted)
            cursor.at += len(data)
            if cursor.kept is not None:
                cursor.kept += data
                if len(cursor.kept) > MAX_KEPT_BYTES:
                    cursor.kept = None
        self._left -= len(data)
        self._given += len(data)
        return data

    def close(self) -> None:
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            _CURSORS.append(((os.getpid(), self._path), cursor))
            if len(_CURSORS) > _MAX_CURSORS:
                _CURSORS.pop(0)[1].stream.close()
        super().close()


def _open_tar_member(
    path: str, offset: int, size: int, whole_bytes: int, free_bytes: int
) -> BinaryIO:
    member = _TarMember(path, offset, size)
    return decompressed(member, whole_bytes, free_bytes)  # type: ignore[return-value,arg-type]
