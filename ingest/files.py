"""What the user gave, as a list of readable files: folders, globs and archives expanded.

Nothing is extracted to disk. Compression is told by the first bytes, never by the suffix.
"""

from __future__ import annotations

import glob
import io
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from tracekit.errors import InputError
from tracekit.ingest.base import SourceFile
from tracekit.store.manifest import MARK, is_made_by_us

HEAD_BYTES = 64 << 10
"""Decompressed bytes that recognition looks at."""
SLICE_BYTES = 64 << 10
"""Stored bytes that are read, and decompressed bytes that are made, at a time."""
LARGE_SLICE_BYTES = 2 << 20
"""Decompressed bytes that are asked for at a time where they are only passed over."""
NATIVE_FROM_BYTES = 1 << 20
"""Stored size from which a thread beside a busy one reads through Arrow."""
MAX_RATIO = 1000
"""Decompressed bytes per stored byte above which a file is a bomb (real traces reach 40)."""
RATIO_FREE_BYTES = 256 << 20
"""Below this size the ratio is not asked."""
MAX_RAW_BYTES = 4 << 40
"""Most decompressed bytes of one file."""
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
MAX_FILES = 1_000_000
"""Files that one call expands to."""

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZIP_MAGIC = b"PK\x03\x04"
_SUFFIXES = re.compile(r"\.(?:gz|gzip|zst|zstd)$", re.I)
_SYSFS = re.compile(
    # Only behind the last of each word: behind every one, a long path takes its square.
    r"(?s)(?>.*/ports/\d+/)[\w/]+$|(?>.*/statistics/)\w+$|(?>.*/infiniband/\w+/)\w+$"
)
_COUNTER_DUMP = re.compile(r"\.(?:txt|out|prom|stats?|counters?|db_csv)$|^[^.]+$", re.I)
_ARCHIVES = re.compile(r"\.(?:tar|tgz|tzst|zip|tar\.(?:gz|zst|zstd))$", re.I)


class LimitError(InputError):
    """A file passes one of the caps of this module."""


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


class DecompressedStream(io.RawIOBase):
    """Decompressed bytes of a file. Damage ends it early; ``problem`` then says what it was."""

    is_compressed = False

    def __init__(self, raw: BinaryIO, head: bytes) -> None:
        super().__init__()
        self._raw = raw
        self._pending = head
        self.stored_bytes = len(head)
        self.raw_bytes = 0
        self.whole_bytes: int | None = None
        """Of a member of an archive: bytes that the archive stores for it, at most."""
        self.free_bytes: int | None = None
        """Size below which the ratio is not asked; None for RATIO_FREE_BYTES."""
        self.problem: str | None = None
        """None, truncated, checksum, damaged, trailing_garbage, limit or io_error."""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._raw.close()
        super().close()

    def read(self, size: int = -1) -> bytes:
        parts: list[bytes] = []
        got = 0
        while size < 0 or got < size:
            part = self._next(SLICE_BYTES if size < 0 else min(size - got, LARGE_SLICE_BYTES))
            if not part:
                break
            parts.append(part)
            got += len(part)
            self.raw_bytes += len(part)
            self._check_limits()
        return b"".join(parts)

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        got = 0
        while got < len(view):
            part = self._next(min(len(view) - got, 1 << 20))
            if not part:
                break
            view[got : got + len(part)] = part
            got += len(part)
        self.raw_bytes += got
        self._check_limits()
        return got

    def account(self, raw_bytes: int, stored_bytes: int) -> None:
        """Another reader of the file is here."""
        self.raw_bytes, self.stored_bytes = raw_bytes, stored_bytes
        self._check_limits()

    def skip(self, size: int) -> None:
        """Move on in stored bytes that are not compressed."""
        ahead = min(size, len(self._pending))
        self._pending = self._pending[ahead:]
        if size > ahead:
            self._raw.seek(size - ahead, os.SEEK_CUR)

    def _check_limits(self) -> None:
        free = RATIO_FREE_BYTES if self.free_bytes is None else self.free_bytes
        stored = self.stored_bytes
        if self.whole_bytes is not None:
            stored = min(stored, self.whole_bytes)
        is_bomb = self.raw_bytes > free and self.raw_bytes > MAX_RATIO * stored
        if is_bomb or self.raw_bytes > MAX_RAW_BYTES:
            self.problem = "limit"

    def _stored(self, size: int) -> bytes:
        """Stored bytes: first what was read to recognise the compression."""
        if self._pending:
            data, self._pending = self._pending[:size], self._pending[size:]
            return data
        try:
            data = self._raw.read(size)
        except Exception:  # a damaged archive member: zipfile, tarfile and zlib raise many kinds
            self.problem = "io_error"
            return b""
        self.stored_bytes += len(data)
        return data

    def _next(self, size: int) -> bytes:
        return b"" if self.problem == "limit" else self._stored(size)


class _GzipStream(DecompressedStream):
    """Gzip, all members. Raw deflate is inflated, so that a wrong checksum loses nothing."""

    is_compressed = True

    def __init__(self, raw: BinaryIO, head: bytes) -> None:
        super().__init__(raw, head)
        self._data = b""
        self._inflate: object | None = None
        self._crc = 0
        self._size = 0
        self._is_done = False
        self._members = 0

    def _more(self, need: int) -> bool:
        while len(self._data) < need:
            data = self._stored(SLICE_BYTES)
            if not data:
                return False
            self._data += data
        return True

    def _next(self, size: int) -> bytes:
        from isal import isal_zlib

        failure: type[Exception] = isal_zlib.IsalError  # type: ignore[assignment]
        while not self._is_done and self.problem != "limit":
            if self._inflate is None and not self._start_member():
                break
            stream = self._inflate
            assert stream is not None  # noqa: S101 - set by _start_member
            if not self._data:
                self._data = self._stored(SLICE_BYTES)
            is_last = not self._data
            try:
                out: bytes = stream.decompress(self._data, min(size, SLICE_BYTES))  # type: ignore[attr-defined]
            except failure:
                self._end("damaged")
                break
            if stream.eof:  # type: ignore[attr-defined]
                self._data = stream.unused_data  # type: ignore[attr-defined]
                self._crc = isal_zlib.crc32(out, self._crc)
                self._size += len(out)
                self._end_member()
            else:
                self._data = stream.unconsumed_tail  # type: ignore[attr-defined]
                self._crc = isal_zlib.crc32(out, self._crc)
                self._size += len(out)
                if is_last and not out:
                    self._end("truncated")
            if out:
                return out
        return b""

    def _end(self, problem: str) -> None:
        self._is_done = True
        self.problem = self.problem or problem

    def _start_member(self) -> bool:
        from isal import isal_zlib

        self._more(18)
        if self._members and not self._data.strip(b"\0"):
            self._is_done = True  # padding
            return False
        if not self._data.startswith(GZIP_MAGIC) or len(self._data) < 10:
            self._end("trailing_garbage" if self._members else "truncated")
            return False
        flags = self._data[3]
        at = 10
        if flags & 4:
            self._more(at + 2)
            at += 2 + int.from_bytes(self._data[at : at + 2], "little")
        for flag in (8, 16):
            if flags & flag:
                self._more(at + 4096)
                at = self._data.find(b"\0", at) + 1 or len(self._data)
        at += 2 if flags & 2 else 0
        self._more(at + 1)
        self._data = self._data[at:]
        self._inflate = isal_zlib.decompressobj(-15)
        self._crc = 0
        self._size = 0
        return True

    def _end_member(self) -> None:
        self._inflate = None
        self._members += 1
        if not self._more(8):
            self._end("truncated")
            return
        crc = int.from_bytes(self._data[:4], "little")
        size = int.from_bytes(self._data[4:8], "little")
        self._data = self._data[8:]
        if crc != self._crc or size != self._size & 0xFFFFFFFF:
            self.problem = self.problem or "checksum"
        if not self._data and not self._more(1):
            self._is_done = True


class _ZstdStream(DecompressedStream):
    """Zstandard, all frames."""

    is_compressed = True

    def __init__(self, raw: BinaryIO, head: bytes) -> None:
        import zstandard

        super().__init__(raw, head)
        outer = self

        class _Source:
            def read(self, size: int = -1) -> bytes:
                return outer._stored(SLICE_BYTES if size < 0 else size)

        self._reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
            _Source(),  # type: ignore[arg-type]
            read_across_frames=True,
        )

    def _next(self, size: int) -> bytes:
        import zstandard

        if self.problem == "limit":
            return b""
        try:
            return self._reader.read(min(size, SLICE_BYTES))
        except zstandard.ZstdError:
            self.problem = self.problem or "damaged"
            return b""


def decompressed(
    raw: BinaryIO, whole_bytes: int | None = None, free_bytes: int | None = None
) -> DecompressedStream:
    """The stream of decompressed bytes; the first bytes tell how it is compressed.

    Of a member of an archive, which may be compressed twice, the limits are by what the archive
    stores of it.
    """
    head = _Stored(raw).read(SLICE_BYTES)
    kind = DecompressedStream
    if head.startswith(GZIP_MAGIC):
        kind = _GzipStream
    elif head.startswith(ZSTD_MAGIC):
        kind = _ZstdStream
    stream = kind(raw, head)
    stream.whole_bytes, stream.free_bytes = whole_bytes, free_bytes
    return stream


class _NativeStream(io.RawIOBase):
    """The bytes of a compressed file from Arrow, for a thread beside a busy one.

    Arrow inflates slices of any size without the interpreter's lock, isal takes and gives it back
    eight times for 2 MB; each time one of two threads waits. Arrow cannot say what it found before
    damage: where it stops, the other stream reads again from the first byte and has the last word.
    """

    def __init__(self, stream: DecompressedStream, path: str, codec: str) -> None:
        import pyarrow as pa

        super().__init__()
        self._stream = stream
        self._head_bytes = stream.stored_bytes
        self._given_bytes = 0
        self._stored = pa.OSFile(path)
        self._native: pa.NativeFile | None = pa.CompressedInputStream(self._stored, codec)
        self._failures = (OSError, pa.ArrowException)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        if self._native is not None and self._stream.problem is None:
            try:
                got: int = self._native.readinto(view)
            except self._failures:
                self._fall_back()
            else:
                self._given_bytes += got
                self._stream.account(self._given_bytes, self._stored.tell())
                return got
        return self._stream.readinto(view)

    def _fall_back(self) -> None:
        """Go on with the other stream, behind what was given already."""
        self._native = None
        self._stream.account(0, self._head_bytes)
        left = self._given_bytes
        while left:
            got = len(self._stream.read(min(left, LARGE_SLICE_BYTES)))
            if not got:
                break
            left -= got

    @property
    def problem(self) -> str | None:
        """See ``DecompressedStream``."""
        return self._stream.problem

    @property
    def stored_bytes(self) -> int:
        """Stored bytes that were read."""
        return self._stream.stored_bytes

    def close(self) -> None:
        self._stream.close()
        self._stored.close()
        super().close()


def beside_others(stream: BinaryIO, stored_bytes: int) -> BinaryIO:
    """The same bytes, for a thread that reads beside a busy one; ``stream`` is not used again."""
    raw = getattr(stream, "_raw", None)
    if stored_bytes < NATIVE_FROM_BYTES or not isinstance(raw, io.FileIO):
        return stream
    if not isinstance(stream, _GzipStream | _ZstdStream):
        return stream
    codec = "gzip" if isinstance(stream, _GzipStream) else "zstd"
    try:
        return _NativeStream(stream, os.fsdecode(raw.name), codec)  # type: ignore[return-value]
    except OSError:
        return stream


def seek_near_end(stream: BinaryIO, size: int) -> None:
    """Leave out all but the last bytes of a file that is not compressed, before it is read."""
    if not isinstance(stream, DecompressedStream) or stream.is_compressed:
        return
    if isinstance(stream._raw, io.FileIO):
        end = os.fstat(stream._raw.fileno()).st_size
        if end > size + stream.stored_bytes:
            stream.skip(end - size)


class _Stored:
    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw

    def read(self, size: int) -> bytes:
        try:
            return self._raw.read(size)
        except Exception:  # a damaged archive member; the empty stream says so
            return b""


def stream_problem(stream: object) -> str | None:
    """What ended a stream of ``SourceFile.open`` early, or None."""
    return getattr(stream, "problem", None)


def stored_bytes(stream: object) -> int:
    """Stored bytes that were read of a stream of ``SourceFile.open``."""
    return getattr(stream, "stored_bytes", 0)


def expansion(stream: object) -> float | None:
    """Decompressed bytes for each stored one so far; None if that is not known."""
    if not isinstance(stream, DecompressedStream) or not stream.stored_bytes:
        return None
    return stream.raw_bytes / stream.stored_bytes if stream.is_compressed else 1.0


def read_head(source: SourceFile, size: int = HEAD_BYTES) -> bytes:
    """The first decompressed bytes of a file, from one small read of the stored ones."""
    with source.open() as stream:
        return stream.read(size)


def read_head_and_problem(source: SourceFile, size: int = HEAD_BYTES) -> tuple[bytes, str | None]:
    """The first bytes, and what is wrong with the compression if it already shows."""
    with source.open() as stream:
        return stream.read(size), stream_problem(stream)


def open_file(path: str) -> BinaryIO:
    """A file's decompressed bytes."""
    raw = Path(path).open("rb", buffering=0)  # noqa: SIM115 - the stream closes it
    return decompressed(raw)  # type: ignore[return-value]


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
    for match in sorted(together, key=lambda p: _natural(str(p))):
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


def _natural(text: str) -> list[tuple[int, str]]:
    """Sorts rank2 before rank10."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d{1,18})", text)]


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
    try:
        members = list_members(path)
    except LimitError as error:
        return [replace(whole, open=partial(_say_limit, str(error)))]
    return [whole] if members is None else members


def _say_limit(why: str) -> BinaryIO:
    raise LimitError(why)


# --- archives ------------------------------------------------------------------------------------


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
    return sorted(members, key=lambda s: _natural(s.path))


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
    if raw_bytes > max(RATIO_FREE_BYTES, MAX_RATIO * path.stat().st_size):
        raise LimitError(f"{path}: the archive unpacks to more than {MAX_RATIO} times its size")


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
    free = RATIO_FREE_BYTES // max(1, len(members))
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
    free = RATIO_FREE_BYTES // max(1, len(listed))
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


@dataclass(slots=True)
class _Cursor:
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
