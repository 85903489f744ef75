"""A lake in an object store.

    LAKE/
      tracekit-lake.json      written first: here is a lake
      runs/NAME/              manifests, data and derived tables, as in any run
      cards/DATE/NAME.GENERATION.KEY.json   written last: what a run is found by
      claims/...              who is about to publish a generation, or rolls up
      tmp/RANDOM/...          what the workers of a cluster hand over
      fleet/                  the fleet's tables (fleet/store.py)

A run is made in a folder of this machine and written from there: what it consists of, then its
manifest, then its card. Without a card it is not in the lake, so a cut upload is no run; the same
ingest again goes on where it ended. One listing of the cards tells every run's name, date and
generation, however many there are. Two writers never mix: who publishes a generation claims the
run's name, and who was slower starts again from the other's.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from tracekit import fetch, runs
from tracekit.errors import StoreError, UsageError
from tracekit.fleet.lake import (
    Card,
    Changes,
    Entry,
    Known,
    check_name,
    check_same_job,
    found_name,
    is_between,
    lake_id,
    made_card,
    new_mark,
    select,
)
from tracekit.fleet.lock import DEAD_AFTER_S
from tracekit.objects import AT_ONCE, Objects
from tracekit.store.manifest import LAKE_MARK, MARK, Manifest
from tracekit.store.removal import Removed, is_of_a_run

ADD_TRIES = 5
CLAIM_DEAD_AFTER_S = 300.0
"""Between a claim and the manifest lie two requests: one of five minutes is a dead process's."""
DROP_DEAD_AFTER_S = 86400.0
_CARD = re.compile(r"cards/(\d{4}-\d\d-\d\d)/(.+)\.(\d{6,})\.([0-9a-f]{24})\.json")
_KEY_DIGITS = 24


class _Held(Struct, frozen=True):
    """A generation of a run, as its card's name tells."""

    date: str
    generation: int
    key: str
    """The first digits of it."""
    card: str
    """The name of the card."""


class ObjectLake:
    """A lake that is there. StoreError where the place is none, or cannot be read."""

    def __init__(self, root: str) -> None:
        self._at = Objects(root)
        self.root = self._at.uri
        if _id_of(self._at) is None:
            self._at.check_bucket()
            raise StoreError(
                f"{self.root}: not a lake (no {LAKE_MARK})",
                hint="tracekit ingest PATH --lake LAKE makes one",
            )

    @property
    def fleet(self) -> str:
        """Where the fleet's tables are."""
        return f"{self.root}/fleet"

    def path(self, name: str) -> str:
        """The URI of a run of that name, whether it is there or not."""
        return f"{self.root}/runs/{check_name(name)}"

    def names(self) -> list[str]:
        """Names of all runs, sorted."""
        return sorted(self._held())

    def entry(self, name: str) -> Entry:
        """A run by its name. UsageError where there is none."""
        check_name(name)
        held = self._held().get(name)
        entry = self._entry(name, held) if held else None
        if entry is None:
            raise UsageError(
                f"{self.root}: there is no run {name!r}", hint=f"tracekit lake ls {self.root}"
            )
        return entry

    def entries(
        self,
        *,
        name: str | None = None,
        since: str | None = None,
        until: str | None = None,
        signature: str | None = None,
        host: str | None = None,
    ) -> Iterator[Entry]:
        """As ``Lake.entries``; only the cards of runs of these names and dates are read."""
        wanted = {
            own: held
            for own, held in self._held().items()
            if (name is None or fnmatch.fnmatchcase(own, name))
            and is_between(held.date, since, until)
        }
        return select(
            self._entries(wanted), since=since, until=until, signature=signature, host=host
        )

    def changed(
        self, known: Mapping[str, Known], since: str | None = None, until: str | None = None
    ) -> Changes:
        """As ``Lake.changed``; of runs whose key is known no card is read."""
        there = self._held()
        wanted = {n: h for n, h in there.items() if is_between(h.date, since, until)}
        new = {n: h for n, h in wanted.items() if not _is_known(h, known.get(n))}
        return Changes(
            new=tuple(select(self._entries(new))),
            unchanged_count=len(wanted) - len(new),
            names=frozenset(there),
        )

    def rolling_up(self) -> AbstractContextManager[Callable[[], object]]:
        """Hold the tables; gives what to call now and then. StoreError where another does."""
        return self._at.claimed("claims/rollup", "another rollup is at work", DEAD_AFTER_S)

    @contextmanager
    def drop(self) -> Iterator[str]:
        """A place where workers hand over what they made; it ends with the ``with`` statement.

        What a killed process left there is removed a day later.
        """
        old = self._at.older_than("tmp", DROP_DEAD_AFTER_S)
        self._at.remove(old)
        at = self._at.below(f"tmp/{secrets.token_hex(12)}")
        try:
            yield at.uri
        finally:
            with contextlib.suppress(StoreError):  # a day later
                at.remove(at.sizes())
                at.remove_empty()

    def add(
        self, paths: Sequence[str | Path], *, name: str | None = None, **reading: Any
    ) -> tuple[str, bool]:
        """As ``Lake.add``; what is made lies in a temporary folder until it is written."""
        if name is not None:
            check_name(name)
        for _ in range(ADD_TRIES):
            with (
                tempfile.TemporaryDirectory(prefix="tracekit-lake-") as scratch,
                self.drop() as drop,
            ):
                own = {**reading, "via": drop} if reading.get("cluster") else reading
                added = self._added(Path(scratch) / "run", paths, name, own)
            if added is not None:
                return added
        raise StoreError(
            f"{self.root}: {ADD_TRIES} other writers were faster",
            hint="try again when they are done",
        )

    def _added(
        self, draft: Path, paths: Sequence[str | Path], name: str | None, reading: dict[str, Any]
    ) -> tuple[str, bool] | None:
        """The run's name, and whether it is new; None where another writer came first."""
        before = None
        if name is not None:
            run = self._run(name)
            before = fetch.manifest_of(run)
            if before is not None:
                check_same_job(run.uri, before, paths, reading.get("job_paths", ()))
                fetch.copied(run, before, draft)
        made = runs.ingest(paths, draft, **reading)
        added = datetime.now(UTC).isoformat(timespec="seconds")
        card = made_card(draft, "draft", added)
        own = name or found_name(card, paths)
        held = self._held().get(own)
        entry = self._entry(own, held) if held else None
        earlier = entry.card if entry else None
        card = replace(card, name=own, added_utc=earlier.added_utc if earlier else added)
        if name is None:
            before = fetch.manifest_of(self._run(own))
            if before is not None and before.key != made.key:
                raise StoreError(
                    f"{self.path(own)}: other files are there under this name",
                    hint=f"--name {own} adds to it, --name of your own makes another run",
                )
        if before is not None and before.key == made.key:
            card = replace(card, generation=before.generation)
        elif not self._published(own, draft, made, before):
            return None
        if held is None or held.card != _card_name(card):
            self._write_card(card, held)
        return own, before is None

    def _published(
        self, name: str, draft: Path, manifest: Manifest, before: Manifest | None
    ) -> bool:
        """Write a generation of a run; False where another writer took its number."""
        run = self._run(name)
        known = {(f.path, f.crc32) for f in before.files} if before else set()
        sizes = {f.path: f.file_bytes for f in manifest.files}
        new = [f.path for f in manifest.files if (f.path, f.crc32) not in known]
        run.upload(draft, [MARK, *new])
        with self._at.claimed(
            f"claims/{name}", f"another ingest publishes {name}", CLAIM_DEAD_AFTER_S
        ) as is_held:
            there = run.sizes()
            short = next((n for n, size in sizes.items() if there.get(n) != size), None)
            if short is not None:
                raise StoreError(f"{run.uri}/{short}: is not as it was written", hint="try again")
            own = fetch.manifest_name(manifest.generation)
            if own in there or not is_held():
                return False
            run.write(own, manifest.to_json().encode())
        return True

    def _write_card(self, card: Card, held: _Held | None) -> None:
        text = json.dumps({"format": "tracekit-lake-card", **to_builtins(card)}) + "\n"
        self._at.write(_card_name(card), text.encode())
        if held is not None:
            self._at.remove([held.card])

    def remove(self, name: str) -> Removed:
        """Remove a run: its card first, and then what a run consists of, and nothing else."""
        entry = self.entry(name)
        run = self._run(name)
        self._at.remove([n for n in self._at.sizes("cards") if _name_of(n) == name])
        there = run.sizes()
        own = [n for n in there if is_of_a_run(n) or n == MARK]
        manifests = [n for n in own if n.startswith("manifests/")]
        run.remove(manifests)  # without one, what is left is no run
        run.remove(n for n in own if n not in manifests)
        run.remove_empty()
        return Removed(entry.path, sum(there[n] for n in own), len(there) - len(own))

    def _run(self, name: str) -> Objects:
        return self._at.below(f"runs/{check_name(name)}")

    def _held(self) -> Mapping[str, _Held]:
        """The latest generation of every run, by name."""
        found: dict[str, _Held] = {}
        for listed in self._at.sizes("cards"):
            match = _CARD.fullmatch(listed)
            if match is None:
                continue
            held = _Held(match[1], int(match[3]), match[4], listed)
            if match[2] not in found or held.generation > found[match[2]].generation:
                found[match[2]] = held
        return found

    def _entries(self, held: Mapping[str, _Held]) -> list[Entry]:
        with ThreadPoolExecutor(AT_ONCE, "cards") as pool:
            found = pool.map(lambda name: self._entry(name, held[name]), held)
            return [entry for entry in found if entry is not None]

    def _entry(self, name: str, held: _Held) -> Entry | None:
        """A run by its card; None where that was removed since it was listed."""
        import msgspec

        said = self._at.read(held.card)
        if said is None:
            return None
        try:
            card = msgspec.convert(json.loads(said), Card)
        except (ValueError, RecursionError):  # msgspec's ValidationError is one
            return Entry(name, self.path(name), None, f"{held.card}: not a card of a run")
        if card.name != name or _card_name(card) != held.card:
            return Entry(name, self.path(name), None, f"{held.card}: the card of another run")
        return Entry(name, self.path(name), card)


def make_object_lake(root: str) -> ObjectLake:
    """The lake of that root, made where nothing is yet. StoreError where something else is."""
    at = Objects(root)
    if _id_of(at) is None:
        at.check_bucket()
        if at.sizes():
            raise StoreError(
                f"{at.uri}: exists and is not a lake", hint="name a new or empty place, or a lake"
            )
        at.write(LAKE_MARK, new_mark().encode())
    return ObjectLake(root)


def _id_of(at: Objects) -> str | None:
    try:
        said = json.loads(at.read(LAKE_MARK) or b"{}")
    except (ValueError, RecursionError):
        return None
    return lake_id(said, at.uri) if isinstance(said, dict) else None


def _card_name(card: Card) -> str:
    return f"cards/{card.date}/{card.name}.{card.generation:06d}.{card.key[:_KEY_DIGITS]}.json"


def _is_known(held: _Held, known: Known | None) -> bool:
    return known is not None and known.key[:_KEY_DIGITS] == held.key


def _name_of(listed: str) -> str | None:
    match = _CARD.fullmatch(listed)
    return match[2] if match else None
