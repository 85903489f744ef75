"""One night: which runs are new or changed, their rows, written once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec import Struct, field

from tracekit.cluster import Cluster
from tracekit.errors import StoreError, UsageError
from tracekit.fleet.apart import in_processes, in_turn, reason
from tracekit.fleet.diagnosed import Row, Tables, diagnosed
from tracekit.fleet.elsewhere import diagnosed_elsewhere
from tracekit.fleet.lake import Entry, Known
from tracekit.fleet.lakes import AnyLake
from tracekit.fleet.store import FleetStore
from tracekit.fleet.tables import SCHEMA_VERSION
from tracekit.version import __version__
from tracekit.wording import plural

BATCH_COUNT = 100
"""Runs whose rows are in memory and written at once: a backlog of a year is many nights."""

_LOG = logging.getLogger("tracekit")


class Rolled(Struct, frozen=True):
    """What a rollup did, or with ``--dry-run`` would do."""

    done: tuple[str, ...] = ()
    """Runs that were diagnosed, by date and name."""
    failed: tuple[tuple[str, str], ...] = ()
    """Runs that could not be, and why."""
    removed: tuple[str, ...] = ()
    """Runs that were removed before they were done: what an earlier rollup said of them stays."""
    again_count: int = 0
    """Of those done or to be done, runs of which an older tracekit had made rows otherwise."""
    unchanged_count: int = 0
    """Runs that the tables held already."""
    gone_count: int = 0
    """Runs that the tables hold and the lake no longer has: their rows stay."""
    dates: tuple[str, ...] = field(default=())
    """Dates of what was done."""


Diagnose = Callable[[Entry], Tables]


def rolled_up(
    lake: AnyLake,
    *,
    date: str | None = None,
    since: str | None = None,
    dry_run: bool = False,
    workers: int = 1,
    memory_bytes: int | None = None,
    config: Mapping[str, Any] | None = None,
    diagnose: Diagnose | None = None,
    cluster: Cluster | None = None,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> Rolled:
    """Bring what the tables hold up to the lake: of one date, or since one, or all.

    Runs whose generation the tables hold already are not read. A run that fails is named and
    never stops the others. With ``cluster`` its workers diagnose them. StoreError where another
    rollup is at work, or the tables are broken; ClusterError where the workers do not see the lake.
    KeyboardInterrupt where ``is_interrupted`` says so after a run: a library that makes an error of
    its own of an interrupt must not make that run a failed one.
    """
    store = FleetStore(lake.fleet)
    if dry_run:
        return _planned(lake, store, date, since)[0]
    with lake.rolling_up() as alive, ExitStack() as stack:

        def go_on() -> None:
            alive()
            if is_interrupted():
                raise KeyboardInterrupt

        plan, pending, restamped = _planned(lake, store, date, since)
        if plan.again_count:
            _LOG.warning(
                "note: an older tracekit wrote the rows of %s otherwise (this one: format %d): "
                "diagnosed again, once",
                plural(plan.again_count, "run"),
                SCHEMA_VERSION,
            )
        store.write_ledger(restamped)
        is_alone = diagnose is not None or workers == 1
        share = memory_bytes // workers if memory_bytes and not is_alone else memory_bytes
        ask = diagnose or partial(diagnosed, memory_bytes=share, config=config)
        done: list[str] = []
        failed = [*plan.failed]
        removed: list[str] = []
        if cluster is not None and pending:
            drop = stack.enter_context(lake.drop())
        for batch in _batches(pending, cluster):
            if cluster is not None:
                told = _by_workers(diagnosed_elsewhere(cluster, drop, batch, config, go_on))
            elif is_alone:
                told = in_turn(ask, batch)
            else:
                told = in_processes(ask, batch, workers)
            good, bad, gone = _written(lake, store, batch, told, go_on)
            done += good
            failed += bad
            removed += gone
    dates = {e.card.date for e in pending if e.card and e.name in set(done)}
    return Rolled(
        done=tuple(done),
        failed=tuple(failed),
        removed=tuple(removed),
        again_count=plan.again_count,
        unchanged_count=plan.unchanged_count,
        gone_count=plan.gone_count,
        dates=tuple(sorted(dates)),
    )


def _planned(
    lake: AnyLake, store: FleetStore, date: str | None, since: str | None
) -> tuple[Rolled, list[Entry], list[Row]]:
    """What is to be done, of which runs, and what the ledger says of runs that it need not open
    another time."""
    ledger = store.ledger()
    newer = max((r["schema_version"] or 0 for r in ledger.values()), default=0)
    if newer > SCHEMA_VERSION:
        # Its rows would be made again without what this tracekit does not know, night after night.
        raise StoreError(
            f"{store.folder}: a newer tracekit wrote these tables (format {newer}; this one, "
            f"{__version__}, writes {SCHEMA_VERSION})",
            hint="upgrade this tracekit: all that write a lake need one version",
        )
    known = {n: Known(r["date"], r["key"], r["stamp"]) for n, r in ledger.items() if _is_whole(r)}
    found = lake.changed(known, since=date or since, until=date)
    pending = [e for e in found.new if e.card is not None]
    return (
        Rolled(
            done=tuple(e.name for e in pending),
            failed=tuple((e.name, e.damage or "") for e in found.new if e.card is None),
            again_count=sum(_is_of_older(ledger.get(e.name)) for e in pending),
            unchanged_count=found.unchanged_count,
            gone_count=len(ledger.keys() - found.names),
            dates=tuple(sorted({e.card.date for e in pending if e.card})),
        ),
        pending,
        [{**ledger[e.name], "stamp": e.stamp} for e in found.restamped],
    )


def _is_of_older(row: Row | None) -> bool:
    return row is not None and row["state"] == "done" and not _is_whole(row)


def _is_whole(row: Row) -> bool:
    return bool(row["state"] == "done" and row["schema_version"] == SCHEMA_VERSION)


def _batches(pending: Sequence[Entry], cluster: Cluster | None) -> Iterator[list[Entry]]:
    # Workers wait at the end of a batch until its last run is done and its rows are written.
    count = BATCH_COUNT if cluster is None else max(BATCH_COUNT, 4 * cluster.width)
    for first in range(0, len(pending), count):
        yield [*pending[first : first + count]]


Told = Iterable[tuple[Entry, Tables | str]]
"""Of each run its rows, or why there are none."""


def _written(
    lake: AnyLake,
    store: FleetStore,
    batch: Sequence[Entry],
    told: Told,
    go_on: Callable[[], object],
) -> tuple[list[str], list[tuple[str, str]], list[str]]:
    """The rows of some runs, in place of what the tables had of them: which are done, which failed
    and why, and which were removed meanwhile."""
    tables: dict[str, list[Row]] = {}
    reasons: dict[str, str] = {}
    for entry, said in told:
        go_on()
        if isinstance(said, str):
            reasons[entry.name] = said
            continue
        for name, rows in said.items():
            tables.setdefault(name, []).extend(rows)
    before = store.ledger()
    removed = [name for name in reasons if _is_removed(lake, name)]
    at = datetime.now(UTC).isoformat(timespec="seconds")
    begun: dict[str, Row] = {}
    ended: dict[str, Row] = {}
    for entry in batch:
        name, held = entry.name, before.get(entry.name)
        if name in removed or (name in reasons and _says_the_same(held, entry)):
            continue  # what was said of it stays
        # Rows of an earlier generation may stand under another date: it stays written until the
        # rows of this one are whole.
        row = _ledger_row(entry, "begun", at)
        begun[name] = {**row, "dates": sorted({*row["dates"], *((held or {}).get("dates") or ())})}
        state = "failed" if name in reasons else "done"
        ended[name] = _ledger_row(entry, state, at, reasons.get(name))
    store.write_ledger([*begun.values()])
    store.replace(tables, begun, {d for row in begun.values() for d in row["dates"]})
    store.write_ledger([*ended.values()])
    names = [entry.name for entry in batch]
    return (
        [n for n in names if n not in reasons],
        [(n, reasons[n]) for n in names if n in reasons and n not in removed],
        removed,
    )


def _says_the_same(held: Row | None, entry: Entry) -> bool:
    """Whether the tables hold this generation of a run, though as an older tracekit wrote it."""
    return bool(held and entry.card and held["state"] == "done" and held["key"] == entry.card.key)


def _is_removed(lake: AnyLake, name: str) -> bool:
    try:
        lake.entry(name)
    except UsageError:
        return True
    return False


def _ledger_row(entry: Entry, state: str, at: str, reason: str | None = None) -> Row:
    card = entry.card
    assert card is not None  # noqa: S101  # only runs with a card are rolled up
    return {
        "run": entry.name,
        "date": card.date,
        "dates": [card.date],
        "key": card.key,
        "stamp": entry.stamp,
        "schema_version": SCHEMA_VERSION,
        "tracekit_version": __version__,
        "state": state,
        "reason": reason,
        "at_utc": at,
    }


def _by_workers(told: Iterable[tuple[Entry, Tables | Exception]]) -> Told:
    for entry, said in told:
        yield entry, reason(said) if isinstance(said, Exception) else said
