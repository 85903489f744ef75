"""Whether a run's files are the bytes that were written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from tracekit.errors import DamagedRunError, TracekitError
from tracekit.store.manifest import ShardFile

SLICE_BYTES = 1 << 20

VERIFY_BYTES = 256 << 20
"""A run of up to this many bytes is read through whenever it is opened (0.1 s at most from the
page cache); a larger one once something fails on it. Damage inside a page is not always an error:
some of it is only another number."""


def checksum(path: Path) -> int:
    """CRC-32 of a file's bytes. OSError where it cannot be read."""
    from isal import isal_zlib

    crc: Callable[[memoryview, int], int] = isal_zlib.crc32
    value = 0
    buffer = memoryview(bytearray(SLICE_BYTES))
    with path.open("rb", buffering=0) as stream:
        while got := stream.readinto(buffer):
            value = crc(buffer[:got], value)
    return value


def verify(run: Path, files: Iterable[ShardFile]) -> None:
    """DamagedRunError for the first file that is not what was written.

    Runs of earlier versions hold no checksums: only sizes are compared there.
    """
    for file in files:
        path = run / file.path
        try:
            size = os.stat(path).st_size  # noqa: PTH116 - half the time, for every file of a run
            crc32 = checksum(path) if size == file.file_bytes and file.crc32 is not None else None
        except OSError as error:
            raise _damaged(path, error.strerror or type(error).__name__) from None
        if size != file.file_bytes:
            raise _damaged(path, f"the manifest says {file.file_bytes} bytes, found {size}")
        if crc32 != file.crc32:
            raise _damaged(path, "its bytes are not those that were written")


def verify_if_small(run: Path, files: Collection[ShardFile]) -> None:
    """``verify``, unless it took too long (``VERIFY_BYTES``)."""
    if sum(f.file_bytes for f in files) <= VERIFY_BYTES:
        verify(run, files)


@contextlib.contextmanager
def blaming(run: Path, files: Iterable[ShardFile]) -> Iterator[None]:
    """DamagedRunError where these files are why something failed, and not we are."""
    try:
        yield
    except TracekitError:
        raise
    except Exception as error:
        try:
            verify(run, files)
        except DamagedRunError as damaged:
            raise damaged from error
        raise


def _damaged(path: Path, why: str) -> DamagedRunError:
    return DamagedRunError(
        f"{path}: {why}",
        hint="the run is damaged: ingest the sources again into a new folder",
    )
