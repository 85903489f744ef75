"""A run that lies in an object store: copied into the cache, whole or not at all; or, where a query
or two need a part of a large one, read in place."""

from __future__ import annotations

import contextlib
import io
import re
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from tracekit import cache
from tracekit.errors import DamagedRunError, StoreError
from tracekit.objects import Objects
from tracekit.schema import table
from tracekit.store import damage
from tracekit.store.manifest import Manifest, ShardFile, load, manifests_dir, mark, work_path

if TYPE_CHECKING:
    import pyarrow.dataset as ds

IN_PLACE_BYTES = 16 << 20
"""Smaller runs are copied whole: of each of some thirty files the end is read in any case, and the
next command needs no store."""
COPY_RATIO = 0.5
"""Of a run's bytes: whoever reads tables of more than that gets a copy. Read in place, they cost
that or more, the next command again, and a query that scans a table often decodes it each time."""
HELD_BYTES = 64 << 20
"""Of what was read in place, held for the next who asks for the same: a query may scan the same
columns of a table many times, and each scan is a reading of its own."""
_GENERATION = re.compile(r"manifests/(\d+)\.json")


def latest_number(run: Objects) -> int:
    """The highest generation of a run; 0 where there is none."""
    numbered = (_GENERATION.fullmatch(name) for name in run.sizes("manifests"))
    return max((int(match[1]) for match in numbered if match), default=0)


def manifest_of(run: Objects) -> Manifest | None:
    """The latest generation of a run, or None where there is no run."""
    number = latest_number(run)
    name = manifest_name(number)
    said = run.read(name) if number else None
    if said is None:
        return None
    return Manifest.from_json(said.decode("utf-8", "replace"), f"{run.uri}/{name}")


def manifest_name(generation: int) -> str:
    """Where a generation's manifest lies in its run."""
    return f"manifests/{generation:06d}.json"


def copied(run: Objects, manifest: Manifest, folder: Path) -> None:
    """Copy a generation of a run into a folder, the manifest last.

    DamagedRunError where an object is not what the manifest says, even when read once more.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mark(folder)
    sizes = {f.path: f.file_bytes for f in manifest.files}
    left = {n: size for n, size in sizes.items() if _size(folder / n) != size}
    run.download(left, folder)
    try:
        damage.verify(folder, manifest.files)
    except DamagedRunError:
        run.download(sizes, folder)
        try:
            damage.verify(folder, manifest.files)
        except DamagedRunError as error:
            inside = error.message.removeprefix(f"{folder}/")
            raise DamagedRunError(
                f"{run.uri}/{inside}", hint="remove the run, and ingest its sources again"
            ) from None
    draft = work_path(folder)
    draft.parent.mkdir(exist_ok=True)
    draft.write_text(manifest.to_json(), encoding="utf-8")
    manifests_dir(folder).mkdir(exist_ok=True)
    draft.replace(folder / manifest_name(manifest.generation))
    with contextlib.suppress(OSError):
        draft.parent.rmdir()


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def fetched(uri: str) -> Path:
    """The folder of the cache that holds the latest generation of a run.

    StoreError where there is no run, or the store cannot be read.
    """
    run = Objects(uri)
    manifest = _latest(run)
    folder = _folder(run, manifest)
    if not cache.is_kept(folder) or not _is_whole(folder):
        folder = cache.make_folder(folder)
        copied(run, manifest, folder)
        cache.trim()
    cache.touch(folder)
    return folder


class InPlace(Struct, frozen=True):
    """A generation of a run that is read where it lies."""

    folder: Path
    """Where answers are kept."""
    manifest: Manifest
    tables: Mapping[str, ds.Dataset]
    failures: list[StoreError]
    """What could not be read: whoever reads for Arrow can only fail with a text."""


def in_place(uri: str, wanted: Collection[str] | None = None) -> InPlace | None:
    """The latest generation of a run; None where to copy it costs no more, or that was done.

    ``wanted`` names the tables that will be read, where that is known. Errors as ``fetched``.
    """
    run = Objects(uri)
    manifest = _latest(run)
    folder = _folder(run, manifest)
    whole_bytes = sum(f.file_bytes for f in manifest.files)
    if cache.is_kept(folder) or whole_bytes < IN_PLACE_BYTES:
        return None
    if wanted is not None:
        read_bytes = sum(f.file_bytes for f in manifest.files if f.table in wanted)
        if read_bytes > COPY_RATIO * whole_bytes:
            return None
    files: dict[str, list[ShardFile]] = {}
    for file in manifest.files:
        files.setdefault(file.table, []).append(file)
    folder = cache.make_folder(folder)
    cache.touch(folder)
    failures: list[StoreError] = []
    held = _Held()
    tables = {name: _dataset(run, name, listed, failures, held) for name, listed in files.items()}
    return InPlace(folder, manifest, tables, failures)


def _latest(run: Objects) -> Manifest:
    manifest = manifest_of(run)
    if manifest is None:
        raise StoreError(
            f"{run.uri}: not a run (no manifest)",
            hint="tracekit lake ls LAKE names the runs of a lake; of raw files make one with "
            "tracekit ingest PATH --lake LAKE, from where they are files",
        )
    return manifest


def _folder(run: Objects, manifest: Manifest) -> Path:
    return cache.run_folder([(run.uri, manifest.generation, 0)], manifest.key, "fetched")


def _dataset(
    run: Objects,
    name: str,
    files: Iterable[ShardFile],
    failures: list[StoreError],
    held: _Held,
) -> ds.Dataset:
    """A table in its files; nothing is asked before something is read of it."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    form = ds.ParquetFileFormat()
    fragments = [
        form.make_fragment(
            pa.PythonFile(_Stored(run, file.path, file.file_bytes, failures, held), mode="r")
        )
        for file in files
    ]
    # Not as the files have it, where a column may be a dictionary: DuckDB orders these by code.
    return ds.FileSystemDataset(fragments, table(name).arrow_schema(), form)


class _Held:
    """Parts of objects that were read last, up to ``HELD_BYTES`` together; for any threads."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int, int], bytes] = {}
        self._lock = threading.Lock()
        self._size_bytes = 0

    def get(self, part: tuple[str, int, int]) -> bytes | None:
        """The bytes of (object, start, count); None where they are not held."""
        with self._lock:
            data = self._parts.pop(part, None)
            if data is not None:
                self._parts[part] = data  # asked last, dropped last
            return data

    def add(self, part: tuple[str, int, int], data: bytes) -> None:
        """Hold these too, and drop what was asked for longest ago."""
        with self._lock:
            self._size_bytes += len(data) - len(self._parts.pop(part, b""))
            self._parts[part] = data
            while self._size_bytes > HELD_BYTES:
                self._size_bytes -= len(self._parts.pop(next(iter(self._parts))))


class _Stored(io.RawIOBase):
    """An object as a file to be read here and there. Arrow reads it from one thread at a time."""

    def __init__(
        self, run: Objects, name: str, size_bytes: int, failures: list[StoreError], held: _Held
    ) -> None:
        super().__init__()
        self._name = name
        self._held = held
        self._failures = failures
        self._read = run.ranges(name, size_bytes)
        self._size_bytes = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        left = max(0, self._size_bytes - self._at)
        count = left if size is None or size < 0 else min(size, left)
        part = (self._name, self._at, count)
        data = self._held.get(part) if count else b""
        if data is None:
            try:
                data = self._read(self._at, count)
            except StoreError as error:
                self._failures.append(error)
                raise
            self._held.add(part, data)
        self._at += count
        return data


def _is_whole(folder: Path) -> bool:
    """Whether what an earlier command copied is still what it was."""
    try:
        manifest = load(folder)
        if manifest is not None:
            damage.verify_if_small(folder, manifest.files)
    except StoreError:
        cache.drop(folder)
        return False
    return manifest is not None
