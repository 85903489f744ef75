"""Where tasks of a cluster hand over rows: a folder that all see, or a place in a store."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from tracekit.cluster import arrived, check_seen
from tracekit.errors import StoreError
from tracekit.objects import Objects, is_uri
from tracekit.store.manifest import work_path

if TYPE_CHECKING:
    import pyarrow as pa


class Drop(Struct, frozen=True):
    """Named files of one piece of work, each written whole or not at all: two workers may write the
    same one."""

    place: str
    """A folder, absolute, that is there; or a URI."""

    def check_seen(self) -> None:
        """In a worker: NotSeenError where it does not see the folder."""
        if not is_uri(self.place):
            check_seen(self.place, Path(self.place).is_dir())

    def write(self, name: str, rows: pa.Table) -> int:
        """How many bytes that takes."""
        data = _packed(rows)
        if is_uri(self.place):
            Objects(self.place).write(name, data)
            return len(data)
        folder = Path(self.place)
        draft = work_path(folder)
        draft.parent.mkdir(exist_ok=True)
        draft.write_bytes(data)
        draft.replace(folder / name)
        return len(data)

    def read(self, name: str, size_bytes: int | None = None) -> pa.Table:
        """What was written, once it is seen here. NotSeenError or StoreError where it is not."""
        if not is_uri(self.place):
            path = Path(self.place) / name
            arrived([path], None if size_bytes is None else [size_bytes])
            return _unpacked(path.read_bytes())
        data = Objects(self.place).read(name)
        if data is None:
            raise StoreError(f"{self.place}/{name}: is gone", hint="try again")
        return _unpacked(data)

    def read_all(self, files: Sequence[tuple[str, int]]) -> pa.Table:
        """Those of several files, of name and size, one after the other."""
        import pyarrow as pa

        return pa.concat_tables([self.read(*file) for file in files])


def _packed(rows: pa.Table) -> bytes:
    import pyarrow as pa

    stream = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(stream, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return stream.getvalue()


def _unpacked(data: bytes) -> pa.Table:
    import pyarrow as pa

    return pa.ipc.open_stream(data).read_all()
