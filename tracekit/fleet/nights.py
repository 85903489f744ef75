"""What nights said, kept: ``fleet/nights/DATE.json``, as ``rollup --format json`` writes it.

What is new is what the last kept night before did not say. Asking the rows of the day before
instead would lose what a night that never ran, or a run that came in late, would have said: by the
next one it is no longer new there, and nobody was ever told.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tracekit.errors import StoreError
from tracekit.fleet.limits import Limits
from tracekit.fleet.regressions import Regression
from tracekit.objects import Objects, is_uri
from tracekit.store import writing
from tracekit.store.manifest import work_path

FOLDER = "nights"
_NAME = re.compile(r"(\d{4}-\d{2}-\d{2})\.json")
_NOT_OURS = (ValueError, KeyError, TypeError, RecursionError)
"""A kept night that is not as we write it."""


class Price(Struct, frozen=True):
    """What a GPU-hour costs, as whoever asks states it."""

    gpu_hour: float
    currency: str


class ToldRegression(Struct, frozen=True):
    """What a night said got slower."""

    change: tuple[str, ...] | None
    families: frozenset[str]
    date: str

    def is_of(self, regression: Regression, limits: Limits) -> bool:
        """Whether it is the same one: of the same change or of half its families, and from about
        the same date on, or from an earlier one, as runs that come in late show it. A family that
        got slower once more did so later, and is told once more."""
        days = (date.fromisoformat(regression.date) - date.fromisoformat(self.date)).days
        if days > limits.same_cause_days:
            return False
        if self.change is not None and self.change == regression.change:
            return True
        shared = sum(f.family in self.families for f in regression.families)
        return 2 * shared >= len(regression.families)


class Told(Struct, frozen=True):
    """What one night said, as far as the next ones ask."""

    offenders: frozenset[tuple[str, str]]
    """Kinds and names."""
    regressions: tuple[ToldRegression, ...]

    def marked(self, regression: Regression, limits: Limits) -> Regression:
        """The same with whether it is new, and what the last night said of its date if not that."""
        dates = [t.date for t in self.regressions if t.is_of(regression, limits)]
        moved = bool(dates) and regression.date not in dates
        return replace(regression, is_new=not dates, told_date=max(dates) if moved else None)


def told_before(folder: str, day: str) -> Told | None:
    """What the last kept night before a date said; None where none is kept, or none that is whole.

    ``folder`` is the fleet's, or its URI. StoreError where a store does not answer.
    """
    for name in sorted(_names(folder), reverse=True):
        if name.removesuffix(".json") < day and (said := _told(_read(folder, name))) is not None:
            return said
    return None


def prices(folder: str, since: str, until: str) -> dict[str, Price | None]:
    """What a GPU-hour cost by each kept night between two dates (both included); None: what the
    jobs' descriptions stated."""
    found: dict[str, Price | None] = {}
    for name in _names(folder):
        day = name.removesuffix(".json")
        if since <= day <= until:
            with contextlib.suppress(*_NOT_OURS):
                said = json.loads(_read(folder, name) or b"")["price"]
                stated = said and Price(float(said["gpu_hour"]), str(said["currency"]))
                found[day] = stated or None
    return found


def keep(folder: str, day: str, text: str) -> None:
    """Keep what a night said, in place of what it said before. RunWriteError where that fails."""
    if is_uri(folder):
        Objects(folder).write(f"{FOLDER}/{day}.json", text.encode())
        return
    nights = Path(folder) / FOLDER
    with writing(nights):
        draft = work_path(nights)
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(nights / f"{day}.json")


def _names(folder: str) -> Sequence[str]:
    if is_uri(folder):
        found = [name.rpartition("/")[2] for name in Objects(folder).sizes(FOLDER)]
    else:
        nights = Path(folder) / FOLDER
        found = [p.name for p in nights.iterdir()] if nights.is_dir() else []
    return [name for name in found if _NAME.fullmatch(name)]


def _read(folder: str, name: str) -> bytes | None:
    if is_uri(folder):
        return Objects(folder).read(f"{FOLDER}/{name}")
    try:
        return (Path(folder) / FOLDER / name).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(
            f"{folder}/{FOLDER}/{name}: cannot be read ({error.strerror})",
            hint="it says what the night before said; remove it, or make it readable",
        ) from None


def _told(data: bytes | None) -> Told | None:
    """None where it is not as we write it."""
    try:
        said: Any = json.loads(data or b"")
        return Told(
            frozenset((str(o["kind"]), str(o["name"])) for o in said["offenders"]),
            tuple(
                ToldRegression(
                    tuple(r["change"]) if r["change"] is not None else None,
                    frozenset(str(f["family"]) for f in r["families"]),
                    date.fromisoformat(r["date"]).isoformat(),
                )
                for r in said["regressions"]
            ),
        )
    except _NOT_OURS:
        return None
