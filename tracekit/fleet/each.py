"""Many jobs into a lake at once: each path is a job of its own, here or by a cluster's workers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from tracekit.cluster import (
    Cluster,
    FailedTaskError,
    SharedFolder,
    check_seen,
    memory_of_this_worker,
)
from tracekit.errors import TracekitError
from tracekit.fleet.lakes import AnyLake, lake_at
from tracekit.objects import is_uri

Added = tuple[str, bool] | TracekitError | FailedTaskError
"""The run's name and whether it is new, or why there is none."""


class _Asked(Struct, frozen=True):
    """A job that a worker brings into the lake."""

    root: str
    drop: str
    """A new folder of the lake, which proves that its folder is the same; or a URI."""
    path: str
    looks: str
    """What its files are called and how long they are, as it is seen here."""
    folder: str
    """What relative paths begin from."""
    memory_bytes: int | None
    options: Mapping[str, Any] = field(default_factory=dict)


def added_each(
    lake: AnyLake,
    paths: Sequence[str],
    cluster: Cluster | None = None,
    *,
    workers: int | None = None,
    memory_bytes: int | None = None,
    **options: Any,
) -> Iterator[tuple[str, Added]]:
    """Each path with its run's name, or why there is none; one that fails stops no other.

    ``options`` are further ones of ``runs.ingest``. Names are found as ``Lake.add`` does, so the
    same paths again change nothing.
    """
    if cluster is None:
        for path in paths:
            try:
                reading = {"workers": workers, "memory_bytes": memory_bytes, **options}
                yield path, lake.add([path], **reading)
            except TracekitError as error:
                yield path, error
        return
    root = str(lake.root)
    with lake.drop() as drop:
        asked = [
            _Asked(
                root if is_uri(root) else os.path.abspath(root),  # noqa: PTH100  # resolves no link
                drop,
                path,
                _looks(path),
                str(Path.cwd()),
                cluster.worker_memory_bytes,
                options,
            )
            for path in paths
        ]
        for task, told in cluster.map(_add_there, asked):
            yield task.path, told


_FOLDER = SharedFolder()


def _add_there(asked: _Asked) -> tuple[str, bool]:
    """In a worker."""
    if not is_uri(asked.drop):
        check_seen(asked.drop, Path(asked.drop).is_dir())
    check_seen(asked.folder, Path(asked.folder).is_dir())
    with _FOLDER.entered(asked.folder):
        check_seen(asked.path, _looks(asked.path) == asked.looks)
        reading = {"memory_bytes": memory_of_this_worker(asked.memory_bytes), **asked.options}
        return lake_at(asked.root).add([asked.path], workers=1, **reading)


def _looks(path: str) -> str:
    """A hash of the names and sizes of the files that a path means; empty where it means none."""
    from tracekit.ingest.files import expand

    try:
        files = expand([path])
    except TracekitError:
        return ""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.path}\0{file.file_bytes}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
