"""Report pages of a site: the whole report of each run that its other pages lead to.

A page is made once for a run's generation; the site's mark says which are there, so that the next
site makes what is new alone. A page stays when its run leaves the lake. Where a run has no page,
the site says so and why, and links to none.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from tracekit.errors import StoreError
from tracekit.fleet.apart import in_processes, in_turn
from tracekit.fleet.lakes import AnyLake
from tracekit.fleet.night import Night
from tracekit.fleet.pages import Row, page_name
from tracekit.objects import is_uri
from tracekit.version import __version__

MAX_COUNT = 100
"""Report pages of a site: one takes seconds to make."""
MAX_BYTES = 500_000_000
"""Of all of them; one of a job of thousands of ranks has megabytes."""

PART = ".part"
"""Ends the name of a file that is not whole yet."""

Make = Callable[[str, Path], int]
"""Makes a run's page as that file; its bytes. StoreError where the run is not there."""


class Made(Struct, frozen=True):
    """A report page that was made: it may be gone, where there was no room for it."""

    key: str
    """Of the run's generation, and of what else the page depends on."""
    size_bytes: int


class Reports(Struct, frozen=True):
    """Report pages of a site."""

    pages: Mapping[str, str] = field(default_factory=dict)
    """Page by run."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Runs that were to have one and have none, and why."""
    made: Mapping[str, Made] = field(default_factory=dict)
    """What is known of pages by run, for the next site."""
    new_count: int = 0
    """Pages that were made and not there already."""


class Asked(Struct, frozen=True):
    """Which report pages a site is to have, and how one is made."""

    make: Make
    count: int = MAX_COUNT
    size_bytes: int = MAX_BYTES
    workers: int = 1
    depends: str = ""
    """What pages depend on beside the run."""


def asked(
    lake: AnyLake,
    *,
    count: int = MAX_COUNT,
    workers: int = 1,
    memory_bytes: int | None = None,
    config: Mapping[str, Any] | None = None,
) -> Asked:
    """Report pages of a lake's runs, by the thresholds of ``config``."""
    share = memory_bytes // workers if memory_bytes else None
    make = partial(_make, root=lake.root, memory_bytes=share, config=config)
    depends = json.dumps([__version__, str(lake.root), config or {}], sort_keys=True, default=str)
    return Asked(make, count, workers=workers, depends=depends)


def _make(
    run: str,
    page: Path,
    *,
    root: Path | str,
    memory_bytes: int | None,
    config: Mapping[str, Any] | None,
) -> int:
    from tracekit import api

    path = f"{root}/runs/{run}" if is_uri(root) else Path(root) / "runs" / run
    if isinstance(path, Path) and not path.is_dir():
        raise StoreError("it is no longer in the lake")
    with api.open(path, memory_bytes=memory_bytes) as opened:
        opened.expect_page()
        text = opened.page(opened.diagnose(config=config))
    return replace(page, text)


def replace(path: Path, text: str) -> int:
    """Let a file be this text, whole or not at all; its bytes."""
    data = text.encode("utf-8", "backslashreplace")
    draft = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return len(data)


def wanted(night: Night, jobs: Sequence[Row], findings: Mapping[str, Sequence[Row]]) -> list[str]:
    """Runs that are to have a page, the first first: what the night's words rest on, the last run
    of each family, and the runs with findings, the last first. Jobs are in the order in which they
    ran."""
    slower = [[run for f in r.families for run in f.runs[:1]] for r in night.regressions]
    offending = [[*reversed(o.runs)] for o in night.offenders]
    # One run of each first: there may be room for no more.
    named = [run for runs in slower + offending for run in runs[:1]]
    named += [run for runs in offending + slower for run in runs[1:]]
    last = {job["family"]: job["run"] for job in jobs if job["family"] is not None}
    bad = [
        job["run"]
        for job in reversed(jobs)
        if any(
            f["severity"] != "note" and not f["is_explained"] for f in findings.get(job["run"], ())
        )
    ]
    return [*dict.fromkeys([*named, *last.values(), *bad])]


def reported(
    asked: Asked,
    folder: Path,
    runs: Sequence[str],
    keys: Mapping[str, str],
    earlier: Mapping[str, Made],
) -> Reports:
    """The report pages of some runs in a site's folder, made where they are not there.

    ``keys`` are those of the runs' generations, ``earlier`` what the site before knew. A page that
    there is no room for is not written: the files that this takes away are the caller's to keep
    from being linked.
    """
    chosen = [*islice((run for run in runs if run in keys), asked.count)]
    own = {run: _key(keys[run], asked.depends) for run in chosen}
    known = {run: m for run in chosen if (m := earlier.get(run)) and m.key == own[run]}
    missing = dict.fromkeys(_beyond(chosen, known, asked.size_bytes), _NO_ROOM)
    pages = {run: page_name("run", run) for run in chosen}
    unmade = [
        run
        for run in chosen
        if run not in missing and not (run in known and (folder / pages[run]).is_file())
    ]
    ask = partial(_made, asked.make, folder)
    is_alone = asked.workers == 1 or len(unmade) < 2
    told = in_turn(ask, unmade) if is_alone else in_processes(ask, unmade, asked.workers)
    for run, said in told:
        if isinstance(said, str):
            missing[run] = said
            known.pop(run, None)
        else:
            known[run] = Made(own[run], said)
    for run in _beyond([r for r in chosen if r in known], known, asked.size_bytes):
        (folder / pages[run]).unlink(missing_ok=True)
        missing[run] = _NO_ROOM
    return Reports(
        pages={run: name for run, name in pages.items() if run not in missing},
        missing=missing,
        made=known,
        new_count=sum(run not in missing for run in unmade),
    )


_NO_ROOM = "the pages of others take the room that there is"


def _made(make: Make, folder: Path, run: str) -> int:
    return make(run, folder / page_name("run", run))


def _key(generation: str, depends: str) -> str:
    return hashlib.sha256(f"{generation}\0{depends}".encode()).hexdigest()[:24]


def _beyond(runs: Iterable[str], known: Mapping[str, Made], room_bytes: int) -> list[str]:
    """Those of some runs, the first first, whose page has no room left by those before it."""
    beyond = []
    for run in runs:
        size_bytes = known[run].size_bytes if run in known else 0
        if size_bytes > room_bytes:
            beyond.append(run)
        else:
            room_bytes -= size_bytes
    return beyond
