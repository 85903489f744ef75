"""Whether the heads of many files already say that they are no one job's, before all is read."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracekit.errors import AmbiguousInputError
from tracekit.values import MAX_RANKS

if TYPE_CHECKING:
    from tracekit.ingest.base import SourceFile

FROM_BYTES = 16 << 20
"""Smaller inputs are read: then the candidates have ranks, and numbers for ``--attempt``."""

FEW_HEADS = 64
"""Of so many files, spread over all, and as many folders, heads are looked at first."""

MAX_EVENTS = 100
"""First events of a head among which one must tell that the trace holds work."""

_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[\s*')
_BETWEEN = re.compile(r"\s*,\s*")


def refuse_mixed(files: Sequence[SourceFile]) -> None:
    """AmbiguousInputError where heads state different world sizes: then reading says no other.

    Only traces count in whose heads a whole event stands: others may turn out to hold nothing,
    and to be left out. What only times tell, such as two windows of one rank, is not seen here.
    """
    if sum(f.file_bytes for f in files) < FROM_BYTES or len(_by_world(_some(files))) < 2:
        return
    worlds = _by_world(files)
    if len(worlds) < 2:  # a file has gone since
        return
    sizes = ", ".join(map(str, list(worlds)[:4])) + (", ..." if len(worlds) > 4 else "")
    raise AmbiguousInputError(
        "these files cannot be one attempt of one job: by their heads they state different world "
        f"sizes ({sizes}). Candidates:\n" + "\n".join(_line(w, f) for w, f in worlds.items()),
        hint="give one folder; --attempt N reads all and takes the Nth by when it began; "
        "if they are one job, say so in job.toml ([[source]] path, rank, attempt)",
    )


def _some(files: Sequence[SourceFile]) -> list[SourceFile]:
    folders = {f.path.rpartition("/")[0]: f for f in reversed(files)}
    spread = files[:: -(-len(files) // FEW_HEADS)]
    return [*spread, *list(folders.values())[:FEW_HEADS]]


def _by_world(files: Sequence[SourceFile]) -> dict[int, list[SourceFile]]:
    """The traces that certainly count, by the world size that they state, in its order."""
    worlds: dict[int, list[SourceFile]] = defaultdict(list)
    for file in files:
        world = _world_of(file)
        if world is not None:
            worlds[world].append(file)
    return dict(sorted(worlds.items()))


def _world_of(file: SourceFile) -> int | None:
    from tracekit.ingest import recognise
    from tracekit.ingest.files import read_head

    found = recognise(file)
    world = found.facts.get("world_size")
    if found.kind != "kineto" or found.status != "ok" or not isinstance(world, int):
        return None
    try:
        head = read_head(file).decode(errors="replace")
    except OSError:
        return None
    return world if 1 <= world <= MAX_RANKS and _has_work(head) else None


def _has_work(head: str) -> bool:
    begin = _EVENTS.search(head)
    at, decode = begin.end() if begin else len(head), json.JSONDecoder().raw_decode
    for _ in range(MAX_EVENTS):
        try:
            event, end = decode(head, at)
        except (ValueError, RecursionError):
            return False
        if isinstance(event, dict) and event.get("ph") == "X" and {"ts", "dur"} <= event.keys():
            return True
        comma = _BETWEEN.match(head, end)
        if comma is None:
            return False
        at = comma.end()
    return False


def _line(world: int, files: Sequence[SourceFile]) -> str:
    names = ", ".join(f.path for f in files[:3])
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    count = f"{len(files)} files" if len(files) > 1 else "1 file"
    return f"  world size {world}, {count}: {names}{more}"
