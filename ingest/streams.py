"""Decompressed bytes of a file, what ends them early, and how much they may become.

Compression is told by the first bytes, never by the suffix.
"""

from __future__ import annotations

import codecs
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tracekit.errors import InputError

if TYPE_CHECKING:
    from isal import igzip_lib

SLICE_BYTES = 64 << 10
"""Stored bytes that are read, and decompressed bytes that are made, at a time."""
LARGE_SLICE_BYTES = 2 << 20
"""Decompressed bytes that are asked for at a time where they are only passed over."""
MAX_RATIO = 1000
"""Decompressed bytes per stored byte above which a file is a bomb (real traces reach 40)."""
RATIO_FREE_BYTES = 256 << 20
"""Below this size the ratio is not asked."""
MAX_RAW_BYTES = 4 << 40
"""Most decompressed bytes of one file."""

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class LimitError(InputError):
    """A file passes one of the caps on what is read of it."""


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
        self._inflate: igzip_lib.IgzipDecompressor | None = None
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
        from isal import igzip_lib, isal_zlib

        while not self._is_done and self.problem != "limit":
            if self._inflate is None and not self._start_member():
                break
            stream = self._inflate
            assert stream is not None  # noqa: S101 - set by _start_member
            if stream.needs_input and not self._data:
                self._data = self._stored(SLICE_BYTES)
            is_last = stream.needs_input and not self._data
            try:
                # It keeps what it did not need yet; what zlib's way hands back would be copied.
                out = stream.decompress(self._data, min(size, SLICE_BYTES))
            except igzip_lib.IsalError:  # type: ignore[misc]  # it is one; the stubs say object
                self._end("damaged")
                break
            self._data = stream.unused_data if stream.eof else b""
            self._crc = isal_zlib.crc32(out, self._crc)
            self._size += len(out)
            if stream.eof:
                self._end_member()
            elif is_last and not out:
                self._end("truncated")
            if out:
                return out
        return b""

    def _end(self, problem: str) -> None:
        self._is_done = True
        self.problem = self.problem or problem

    def _start_member(self) -> bool:
        from isal import igzip_lib

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
        self._inflate = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE)
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


class _Utf16Stream(DecompressedStream):
    """Text of UTF-16, as spreadsheets export it, in the UTF-8 that all else is."""

    is_compressed = True

    def __init__(self, raw: BinaryIO, head: bytes) -> None:
        super().__init__(raw, head)
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        self._text = b""

    def _next(self, size: int) -> bytes:
        while not self._text:
            stored = self._stored(SLICE_BYTES)
            self._text = self._decoder.decode(stored, final=not stored).encode()
            if not stored:
                break
        part, self._text = self._text[:size], self._text[size:]
        return part


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
    elif head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        kind = _Utf16Stream
    stream = kind(raw, head)
    stream.whole_bytes, stream.free_bytes = whole_bytes, free_bytes
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


def open_file(path: str) -> BinaryIO:
    """A file's decompressed bytes."""
    raw = Path(path).open("rb", buffering=0)  # noqa: SIM115 - the stream closes it
    return decompressed(raw)  # type: ignore[return-value]
