"""Who was late, worked out by the workers of a cluster: by ranks, then by communicators.

When a rank computed, and when it was in a collective and did not, depends on that rank and on those
that it sent to. Who waited for whom in a communicator, and how much of it the late one caused,
depends on its own calls and on these stretches. So workers get ranges of ranks first, communicators
then, and leave rows. What lies across communicators (which moment counts for which waiting, a
rank's sums, ratios to its peers) is asked of these rows here, by the same queries as ever, and kept
beside the run like any answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from tracekit import catalog
from tracekit.answers import Answers
from tracekit.cluster import Cluster, FailedTaskError, memory_of_this_worker
from tracekit.errors import StoreError, TracekitError
from tracekit.fetch import fetched, in_place
from tracekit.objects import is_uri
from tracekit.runs.drop import Drop
from tracekit.store import Run, Selection, arrow_table, open_elsewhere, open_run

if TYPE_CHECKING:
    import pyarrow as pa

QUERIES = ("straggler", "late_steps", "delay_matrix")
"""What is asked of who waited for whom, and kept."""
LEAST_COMMUNICATORS = 2
"""Of one alone there is nothing to divide."""
PARTS_A_WORKER = 2
"""Some parts take longer than others of the same size; each opens the run."""

_File = tuple[str, int]
"""Its name, and its bytes."""
Weighed = TypeVar("Weighed", int, str)

_LOG = logging.getLogger("tracekit")

_COMMUNICATORS = """
SELECT coalesce(group_id, ''), count(*) FROM collective_match
WHERE instance_id IS NOT NULL GROUP BY ALL ORDER BY ALL
"""
_RANKS = """
SELECT rank, count(*) FROM collective
WHERE rank IS NOT NULL AND start_ns IS NOT NULL GROUP BY ALL ORDER BY ALL
"""
# A send on a host counts by when its receiver asked: exposed_calls.
_RECEIVERS = """
SELECT DISTINCT s.rank, r.rank
FROM collective s
JOIN collective_match m ON m.source_id = s.source_id AND m.place = s.place
JOIN collective_match o ON o.instance_id = m.instance_id AND o.source_id <> m.source_id
JOIN collective r ON r.source_id = o.source_id AND r.place = o.place
WHERE s.op = 'send' AND s.timeline = 'host' AND r.op = 'recv' AND s.rank <> r.rank
ORDER BY ALL
"""
_STRETCHES = "SELECT key, start_ns, end_ns FROM {}() WHERE rank_of(key) IN (SELECT unnest($ranks))"
_MATCHES = "FROM collective_match WHERE coalesce(group_id, '') IN (SELECT unnest($groups))"
_CALLS = "FROM collective_calls()"
_WAITS = "FROM owned_waits()"


class _Asked(Struct, frozen=True):
    """A part of a run that a worker works on."""

    which: int
    where: str
    """The run: a folder, absolute, or a URI."""
    key: str
    """Of the generation that is asked."""
    selection: Selection
    drop: Drop
    memory_bytes: int | None
    ranks: tuple[int, ...] = ()
    receivers: tuple[int, ...] = ()
    """Ranks that these sent to."""
    groups: tuple[str, ...] = ()
    stretches: tuple[_File, ...] = ()
    """Files of the stretches of all ranks."""


def keep_waits(cluster: Cluster, run: Run, where: Path | str, place: str) -> bool:
    """Have who was late in a run worked out by a cluster, and keep the answers of ``QUERIES``.

    ``where`` is the run's path or URI as workers see it, ``place`` the folder (absolute) or URI
    where they leave rows. Whether it was done: not where it is known already, or where a single
    communicator leaves nothing to divide. Where the cluster fails, a warning says so: whoever asks
    for these answers works them out as ever.
    """
    answers = Answers(run)
    if all(answers.kept_rows(name) is not None for name in QUERIES):
        return False
    if catalog.finds_nothing(catalog.find("straggler"), run.tables):
        return False
    con = run.prepare(["collective", "collective_match"])
    communicators: list[tuple[str, int]] = con.execute(_COMMUNICATORS).fetchall()
    if len(communicators) < LEAST_COMMUNICATORS:
        return False
    parts_count = PARTS_A_WORKER * cluster.width
    ranks: list[tuple[int, int]] = con.execute(_RANKS).fetchall()
    receivers = con.execute(_RECEIVERS).fetchall()
    asked = _Asked(
        which=0,
        where=str(where),
        key=run.manifest.key,
        selection=run.selection,
        drop=Drop(place),
        memory_bytes=cluster.worker_memory_bytes,
    )
    by_ranks = [
        replace(
            asked,
            which=which,
            ranks=some,
            receivers=tuple(sorted({to for by, to in receivers if by in set(some)} - {*some})),
        )
        for which, some in enumerate(_dealt(ranks, parts_count))
    ]
    try:
        computed, exposed = _files(cluster, _stretches_there, by_ranks)
        by_groups = [
            replace(asked, which=which, groups=some, stretches=tuple(exposed))
            for which, some in enumerate(_dealt(communicators, parts_count))
        ]
        calls, waits = _files(cluster, _waits_there, by_groups)
        for name, files in (
            ("rank_compute", computed),
            ("exposed_calls", exposed),
            ("collective_calls", calls),
            ("owned_waits", waits),
        ):
            answers.put(name, asked.drop.read_all(files))
    except (TracekitError, FailedTaskError) as error:
        _LOG.warning("who was late is not worked out by the cluster, but when asked for: %s", error)
        return False
    with answers.sharing(QUERIES):
        for name, answer in answers.each(QUERIES):
            if isinstance(answer, Exception):
                _LOG.warning("%s: %s", name, answer)
    answers.save()
    return True


def _files(
    cluster: Cluster, function: Callable[[_Asked], tuple[_File, _File]], asked: Sequence[_Asked]
) -> tuple[list[_File], list[_File]]:
    """The two files that a worker leaves of each part, in the order of the parts."""
    made: dict[int, tuple[_File, _File]] = {}
    for part, told in cluster.map(function, asked):
        if isinstance(told, Exception):
            raise told
        made[part.which] = told
    return [made[i][0] for i in sorted(made)], [made[i][1] for i in sorted(made)]


def _dealt(counted: Sequence[tuple[Weighed, int]], parts_count: int) -> list[tuple[Weighed, ...]]:
    """Things in order, in about so many parts of about equal weight."""
    least = sum(count for _, count in counted) / parts_count
    dealt: list[list[Weighed]] = []
    held = least
    for thing, count in counted:
        if held >= least:
            dealt.append([])
            held = 0
        dealt[-1].append(thing)
        held += count
    return [tuple(some) for some in dealt]


def _opened(asked: _Asked, selection: Selection) -> Run:
    """In a worker: the run as it is asked of. StoreError where it has changed since."""
    memory_bytes = memory_of_this_worker(asked.memory_bytes)
    there = in_place(asked.where) if is_uri(asked.where) else None
    if there is not None:
        run = open_elsewhere(
            there.folder,
            there.manifest,
            there.tables,
            there.failures,
            selection,
            memory_bytes=memory_bytes,
        )
    else:
        folder = fetched(asked.where) if is_uri(asked.where) else Path(asked.where)
        run = open_run(folder, selection, memory_bytes=memory_bytes)
    if run.manifest.key != asked.key:
        run.close()
        raise StoreError(f"{asked.where}: another writer has changed it", hint="ingest again")
    return run


def _stretches_there(asked: _Asked) -> tuple[_File, _File]:
    """In a worker: when each of some ranks computed, and when it was in a call and did not."""
    asked.drop.check_seen()
    ranges = tuple(_ranges(sorted({*asked.ranks, *asked.receivers})))
    with _opened(asked, replace(asked.selection, ranks=ranges)) as run:
        answers = Answers(run)
        compute, exposed = map(_STRETCHES.format, ("rank_compute", "exposed_calls"))
        con = answers.con_naming(f"{compute} {exposed}")
        ranks = {"ranks": list(asked.ranks)}
        computed = arrow_table(con, compute, ranks)
        answers.put("rank_compute", computed)
        return (
            _left(asked, "compute", computed),
            _left(asked, "exposed", arrow_table(con, exposed, ranks)),
        )


def _waits_there(asked: _Asked) -> tuple[_File, _File]:
    """In a worker: the calls of some communicators, and who waited in them for whom."""
    asked.drop.check_seen()
    with _opened(asked, asked.selection) as run:
        answers = Answers(run)
        con = answers.con_naming(f"{_CALLS} {_WAITS}")
        groups = {"groups": list(asked.groups)}
        run.put({"collective_match": arrow_table(con, _MATCHES, groups)})
        calls = arrow_table(con, _CALLS)
        answers.put("collective_calls", calls)
        answers.put("exposed_calls", _of_ranks(asked, calls["rank"].unique().to_pylist()))
        return _left(asked, "calls", calls), _left(asked, "waits", arrow_table(con, _WAITS))


def _of_ranks(asked: _Asked, ranks: Collection[int]) -> pa.Table:
    """Stretches of these ranks: a file at a time, because those of all are many."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(sorted(ranks), pa.int64())
    parts = []
    for name, size_bytes in asked.stretches:
        rows = asked.drop.read(name, size_bytes)
        # As capture_key packs it.
        rank = pc.bit_wise_and(pc.shift_right(rows["key"], 20), (1 << 28) - 1)
        parts.append(rows.filter(pc.is_in(rank, wanted)))
    return pa.concat_tables(parts)


def _left(asked: _Asked, what: str, rows: pa.Table) -> _File:
    name = f"{asked.which}.{what}"
    return name, asked.drop.write(name, rows)


def _ranges(ranks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of ranks that follow each other."""
    first = last = ranks[0]
    for rank in ranks[1:]:
        if rank != last + 1:
            yield first, last
            first = rank
        last = rank
    yield first, last
