"""Calls of communicators numbered by the workers of a cluster, handed over through the store.

Each worker gets the calls of some communicators as a file, and leaves their numbers as another: in
the run's folder, or where the run goes into an object store, there.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cluster import Cluster, FailedTaskError, arrived, check_seen
from tracekit.derive.matching import Columns, number_part
from tracekit.errors import ClusterError, StoreError
from tracekit.objects import Objects
from tracekit.runs.execute import work_folder
from tracekit.store.manifest import work_path

if TYPE_CHECKING:
    from tracekit.derive.calls import Ints


@dataclass(frozen=True, slots=True)
class _Part:
    """A task: which part, and where its files are."""

    which: int
    folder: str
    """A new folder of the run; with ``via`` its name alone."""
    via: str | None

    def read(self, name: str) -> bytes:
        """A file of this part. OSError or StoreError where there is none."""
        if self.via is None:
            return (Path(self.folder) / f"{self.which}.{name}").read_bytes()
        data = Objects(self.via).read(self._name(name))
        if data is None:
            raise StoreError(f"{self.via}/{self._name(name)}: is gone", hint="try again")
        return data

    def write(self, name: str, data: bytes) -> None:
        """Whole, or not at all: two workers may write the same one."""
        if self.via is not None:
            Objects(self.via).write(self._name(name), data)
            return
        draft = work_path(Path(self.folder))
        draft.parent.mkdir(exist_ok=True)
        draft.write_bytes(data)
        draft.replace(Path(self.folder) / f"{self.which}.{name}")

    def _name(self, name: str) -> str:
        return f"matching/{Path(self.folder).name}/{self.which}.{name}"


def numbered_elsewhere(
    cluster: Cluster, run: Path, parts: Sequence[Columns], via: str | None = None
) -> Iterator[tuple[int, Columns, Mapping[int, str]]]:
    """What ``number_part`` gives of each part, in the order in which workers are done.

    ClusterError where a worker fails, or does not see the run's folder.
    """
    folder = work_folder(run)
    tasks = [_Part(i, os.path.abspath(folder), via) for i in range(len(parts))]  # noqa: PTH100
    try:
        for task, columns in zip(tasks, parts, strict=True):
            task.write("calls", _packed(columns))
        for task, told in cluster.map(_number_there, tasks):
            if isinstance(told, FailedTaskError):
                raise ClusterError(
                    f"a worker failed ({told})", hint="its log says more; what is finished is kept"
                )
            if isinstance(told, Exception):
                raise told
            size, refusals = told
            if via is None:
                arrived([folder / f"{task.which}.numbers"], [size])
            yield task.which, _unpacked(task.read("numbers")), refusals
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if via is not None:
            at = Objects(via)
            at.remove(f"matching/{folder.name}/{n}" for n in at.sizes(f"matching/{folder.name}"))


def _number_there(part: _Part) -> tuple[int, dict[int, str]]:
    """In a worker: how large the file of the numbers is, and why a communicator has none."""
    if part.via is None:
        check_seen(part.folder, Path(part.folder).is_dir())
        arrived([Path(part.folder) / f"{part.which}.calls"])
    told, refusals = number_part(_unpacked(part.read("calls")))
    data = _packed(told)
    part.write("numbers", data)
    return len(data), refusals


def _packed(columns: Columns) -> bytes:
    import pyarrow as pa

    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    stream = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(stream, table.schema, options=options) as writer:
        writer.write_table(table)
    return stream.getvalue()


def _unpacked(data: bytes) -> dict[str, Ints]:
    import pyarrow as pa

    table = pa.ipc.open_stream(data).read_all()
    return {name: table[name].to_numpy() for name in table.column_names}
