"""Runs of a lake diagnosed by a cluster's workers, which hand their rows over through the lake."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tracekit.cluster import (
    Cluster,
    FailedTaskError,
    NotSeenError,
    arrived,
    check_seen,
    memory_of_this_worker,
)
from tracekit.errors import StoreError, TracekitError
from tracekit.fleet.diagnosed import Tables, diagnosed
from tracekit.fleet.lake import Entry
from tracekit.objects import Objects, is_uri


class _Asked(Struct, frozen=True):
    """A run that a worker diagnoses."""

    entry: Entry
    drop: str
    """Folder or URI where its rows are handed over."""
    config: Mapping[str, Any] | None
    memory_bytes: int | None


def diagnosed_elsewhere(
    cluster: Cluster,
    drop: str,
    batch: Sequence[Entry],
    config: Mapping[str, Any] | None,
    alive: Callable[[], object],
) -> Iterator[tuple[Entry, Tables | TracekitError | FailedTaskError]]:
    """Each run with its rows, or why there are none, in the order in which they end.

    ClusterError where a worker does not see the lake.
    """
    entries = {e.name: e for e in batch}
    asked = [
        _Asked(replace(e, path=_whole(e.path)), drop, config, cluster.worker_memory_bytes)
        for e in batch
    ]
    for task, told in cluster.map(_diagnosed_there, asked, meanwhile=alive):
        entry = entries[task.entry.name]
        if isinstance(told, NotSeenError):
            raise told
        if isinstance(told, Exception):
            yield entry, told
        else:
            yield entry, _taken(drop, told)


def _whole(path: Path | str) -> Path | str:
    return path if is_uri(path) else Path(os.path.abspath(path))  # noqa: PTH100  # resolves no link


def _diagnosed_there(asked: _Asked) -> str:
    """In a worker: where its rows are, relative to the drop."""
    if not is_uri(asked.drop):
        check_seen(asked.drop, Path(asked.drop).is_dir())
    rows = diagnosed(
        asked.entry,
        memory_bytes=memory_of_this_worker(asked.memory_bytes),
        config=asked.config,
    )
    name = f"{asked.entry.name}.json"
    data = json.dumps(rows).encode()
    if is_uri(asked.drop):
        Objects(asked.drop).write(name, data)
    else:
        # A name of its own: the same task may run twice at once.
        draft = Path(asked.drop) / f"{name}.{os.urandom(6).hex()}"
        draft.write_bytes(data)
        draft.replace(Path(asked.drop) / name)
    return name


def _taken(drop: str, name: str) -> Tables:
    if is_uri(drop):
        data = Objects(drop).read(name)
        if data is None:
            raise StoreError(f"{drop}/{name}: a worker wrote it, and it is not there")
    else:
        path = Path(drop) / name
        arrived([path])
        data = path.read_bytes()
        path.unlink()
    tables: Tables = json.loads(data)
    return tables
