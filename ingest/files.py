"""What the user gave, as a list of readable files: folders, globs and archives expanded.

Nothing is extracted to disk. Compression is told by the first bytes, never by the suffix.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from tracekit.errors import InputError
from tracekit.ingest.base import SourceFile

HEAD_BYTES = 64 << 10
"""Decompressed bytes that recognition looks at."""
HEAD_STORED_BYTES = 64 << 10
"""Stored bytes that are read for them."""
SLICE_BYTES = 64 << 10
"""Stored bytes that are decompressed at a time."""
MAX_RATIO = 1000
"""Decompressed bytes per stored byte above which a file is a bomb (real traces reach 40)."""
RATIO_FREE_BYTES = 256 << 20
"""Below this size the ratio is not asked."""
MAX_RAW_BYTES = 4 << 40
"""Most decompressed bytes of one file."""
MAX_MEMBERS = 100_000
"""Members of an archive that are looked at."""
MAX_FILES = 1_000_000
"""Files that one call expands to."""

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZIP_MAGIC = b"PK\x03\x04"
_SUFFIXES = re.compile(r"\.(?:gz|gzip|zst|zstd)$", re.I)
_ARCHIVES = re.compile(r"\.(?:tar|tgz|tzst|zip|tar\.(?:gz|zst|zstd))$", re.I)


class LimitError(InputError):
    """A file passes one of the caps of this module."""


class BrokenStreamError(InputError):
    """Compressed data break off or are damaged; what came before was delivered."""


def base_name(name: str) -> str:
    """Base name without compression suffixes."""
    return _SUFFIXES.sub("", name.rsplit("/", 1)[-1])


class Decompressor(Protocol):
    """Raw reads of decompressed bytes."""

    def read(self, n: int) -> bytes:
        """At most ``n`` bytes; empty at the end."""


class DecompressedStream(io.RawIOBase):
    """Decompressed bytes of a file. Damage ends it early; ``problem`` then says what it was."""

    def __init__(self, raw: BinaryIO, head: bytes) -> None:
        super().__init__()
        self._raw = raw
        self._pending = head
        self.stored_bytes = len(head)
        self.raw_bytes = 0
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
            part = self._next(SLICE_BYTES if size < 0 else min(size - got, 1 << 20))
            if not part:
                break
            parts.append(part)
            got += len(part)
        self.raw_bytes += got
        self._check_limits()
        return b"".join(parts)

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def _check_limits(self) -> None:
        is_bomb = self.raw_bytes > RATIO_FREE_BYTES and (
            self.raw_bytes > MAX_RATIO * self.stored_bytes
        )
        if is_bomb or self.raw_bytes > MAX_RAW_BYTES:
            self.problem = "limit"

    def _stored(self, size: int) -> bytes:
        """Stored bytes: first what was read to recognise the compression."""
        if self._pending:
            data, self._pending = self._pending, b""
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

    def __init__(self, raw: BinaryIO, head: bytes) -> None:
        super().__init__(raw, head)
        self._data = b""
        self._inflate: object | None = None
        self._crc = 0
        self._size = 0
        self._is_done = False

    def _more(self, need: int) -> bool:
        while len(self._data) < need:
            data = self._stored(SLICE_BYTES)
            if not data:
                return False
            self._data += data
        return True

    def _next(self, size: int) -> bytes:
        from isal import isal_zlib

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
            except isal_zlib.IsalError:
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
        if not self._data.strip(b"\0") and self.raw_bytes:
            self._is_done = True
            return False
        if not self._data.startswith(GZIP_MAGIC) or len(self._data) < 10:
            self._end("trailing_garbage" if self._size else "truncated")
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
        if not self._more(8):
            self._end("truncated")
            return
        crc = int.from_bytes(self._data[:4], "little")
        size = int.from_bytes(self._data[4:8], "little")
        self._data = self._data[8:]
        if crc != self._crc or size != self._size & 0xFFFFFFFF:
            self.problem = self.problem or "checksum"
        self._size = max(self._size, 1)
        if not self._data and not self._more(1):
            self._is_done = True


class _ZstdStream(DecompressedStream):
    """Zstandard, all frames."""

    def __init__(self, raw: BinaryIO, head: bytes) -> None:
        import zstandard

        super().__init__(raw, head)
        outer = self

        class _Source:
            def read(self, size: int = -1) -> bytes:
                return outer._stored(SLICE_BYTES if size < 0 else size)

        self._reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
            _Source(), read_across_frames=True  # type: ignore[arg-type]
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


def decompressed(raw: BinaryIO) -> DecompressedStream:
    """The stream of decompressed bytes; the first bytes tell how it is compressed."""
    head = _Stored(raw).read(SLICE_BYTES)
    if head.startswith(GZIP_MAGIC):
        return _GzipStream(raw, head)
    if head.startswith(ZSTD_MAGIC):
        return _ZstdStream(raw, head)
    return DecompressedStream(raw, head)


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


def read_head(source: SourceFile, size: int = HEAD_BYTES) -> bytes:
    """The first decompressed bytes of a file, from one small read of the stored ones."""
    with source.open() as stream:
        return stream.read(size)


def open_file(path: str) -> BinaryIO:
    """A file's decompressed bytes."""
    return decompressed(Path(path).open("rb", buffering=0))  # type: ignore[return-value,arg-type]


def source_file(path: Path) -> SourceFile:
    """One plain (perhaps compressed) file."""
    from functools import partial

    text = str(path)
    stat = path.stat()
    return SourceFile(
        text, base_name(path.name), stat.st_size, stat.st_mtime_ns, partial(open_file, text)
    )


Opener = Callable[[], BinaryIO]
_ = (os, Iterator, _ARCHIVES)
