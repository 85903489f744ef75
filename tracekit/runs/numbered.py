"""Calls of communicators numbered by the workers of a cluster, handed over through the store.

Each worker gets the calls of some communicators as a file, and leaves their numbers as another: in
the run's folder, or where the run goes into an object store, there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from tracekit.cluster import Cluster, FailedTaskError
from tracekit.derive.matching import Columns, number_part
from tracekit.errors import ClusterError
from tracekit.objects import Objects
from tracekit.runs.drop import Drop
from tracekit.runs.execute import work_folder

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.derive.calls import Ints


class _Part(Struct, frozen=True):
    """A task: which part, and where its files are."""

    which: int
    drop: Drop


def numbered_elsewhere(
    cluster: Cluster, run: Path, parts: Sequence[Columns], via: str | None = None
) -> Iterator[tuple[int, Columns, Mapping[int, str]]]:
    """What ``number_part`` gives of each part, in the order in which workers are done.

    ClusterError where a worker fails, or does not see the run's folder.
    """
    folder = work_folder(run)
    place = os.path.abspath(folder) if via is None else f"{via}/matching/{folder.name}"  # noqa: PTH100
    drop = Drop(place)
    tasks = [_Part(which, drop) for which in range(len(parts))]
    try:
        for task, columns in zip(tasks, parts, strict=True):
            drop.write(f"{task.which}.calls", _table(columns))
        for task, told in cluster.map(_number_there, tasks):
            if isinstance(told, FailedTaskError):
                raise ClusterError(
                    f"a worker failed ({told})", hint="its log says more; what is finished is kept"
                )
            if isinstance(told, Exception):
                raise told
            size_bytes, refusals = told
            yield task.which, _columns(drop.read(f"{task.which}.numbers", size_bytes)), refusals
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if via is not None:
            at = Objects(place)
            at.remove(at.sizes())


def _number_there(part: _Part) -> tuple[int, dict[int, str]]:
    """In a worker: how large the file of the numbers is, and why a communicator has none."""
    part.drop.check_seen()
    told, refusals = number_part(_columns(part.drop.read(f"{part.which}.calls")))
    return part.drop.write(f"{part.which}.numbers", _table(told)), refusals


def _table(columns: Columns) -> pa.Table:
    import pyarrow as pa

    return pa.table({name: pa.array(values) for name, values in columns.items()})


def _columns(rows: pa.Table) -> dict[str, Ints]:
    return {name: rows[name].to_numpy() for name in rows.column_names}
