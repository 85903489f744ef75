"""From the bytes of many events to structs grouped by category, the fast way first.

A batch is decoded in one call. If the decoder refuses it (an event without ``cat``, an unknown
category, an unusual type), the batch is split and only the pieces around the odd events are
decoded one by one. Work is linear in the bytes whatever they hold.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from operator import itemgetter

import msgspec
import numpy as np
from msgspec import Raw, Struct, field

from tracekit.ingest.kineto import times
from tracekit.ingest.kineto.model import CATEGORIES, FREQUENT, Event, Family, Kind, family

PIECE_EVENTS = 128
"""Events that are retried together when a batch was refused as a whole."""

MAX_RUNS = 32
"""Runs between odd events that are decoded in one go before a batch is taken piece by piece."""

INEXACT_LIMIT = 3
"""Batches with inexact times after which all are read as text."""

REFUSED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)
"""What decoding bytes that are not the expected JSON may raise."""

_RAWS = msgspec.json.Decoder(list[Raw])


_NONE = np.zeros(0, np.int64)
_NONE_KNOWN = np.zeros(0, np.bool_)


class Group(Struct):
    """Events of one category, with their places and exact times."""

    category: str
    kind: Kind
    word: str
    events: Sequence[Event]
    """None for a category that is skipped; ``count`` says how many there were."""
    count: int
    places: times.Int64s
    us: tuple[array[float], array[float]] | None
    """Start and duration as the file has them, where they are plain and may wait to be turned
    into nanoseconds; the four arrays are empty then, until ``settle``."""
    is_text: bool = False
    """Whether the times were text."""
    start_ns: times.Int64s = field(default_factory=lambda: _NONE)
    dur_ns: times.Int64s = field(default_factory=lambda: _NONE)
    has_start: times.Bools = field(default_factory=lambda: _NONE_KNOWN)
    has_dur: times.Bools = field(default_factory=lambda: _NONE_KNOWN)

    def settle(self) -> None:
        """Nanoseconds now."""
        if self.us is not None:
            self.start_ns, self.dur_ns = (times.from_doubles(np.array(us)) for us in self.us)
            self.has_start = self.has_dur = np.ones(len(self.places), np.bool_)
            self.us = None


class Decoded(Struct):
    """What a batch holds: groups, and the events that no struct fits (by place)."""

    groups: list[Group] = field(default_factory=list)
    odd: list[tuple[int, bytes]] = field(default_factory=list)


Kept = dict[bool, tuple[list[Event], list[int]]]
"""Events and their places, by whether their times are text."""

_INDEX = re.compile(r"`\$\[(\d+)\]")


def _refused_at(error: BaseException) -> int | None:
    """Which event the decoder refused, as its message says."""
    index_match = _INDEX.search(str(error))
    return int(index_match[1]) if index_match else None


def split(document: bytes | memoryview) -> list[bytes] | None:
    """The values of a JSON list as bytes; None if it is none."""
    try:
        return [bytes(raw) for raw in _RAWS.decode(document)]
    except REFUSED:
        return None


class Decoder:
    """Decodes batches of one file; remembers when doubles cannot carry its times."""

    def __init__(self, *, stacks: bool) -> None:
        self._stacks = stacks
        self.is_text = False
        self._inexact_count = 0

    def batch(
        self, document: bytes | memoryview, place: int, fam: Family | None = None
    ) -> tuple[Decoded, int] | None:
        """Groups of a JSON list of events and how many it has; None if it is no JSON list."""
        fam = fam or self._family
        try:
            events = fam.decoder.decode(document)
        except REFUSED as error:
            raws = split(document)
            if raws is None:
                return None
            refused = _refused_at(error) if fam is self._family else None
            return self.pieces(raws, range(place, place + len(raws)), refused), len(raws)
        decoded = Decoded()
        if not self._group(events, range(place, place + len(events)), fam, decoded):
            self._inexact()
            return self.batch(document, place, self._text)
        return decoded, len(events)

    def some(
        self, document: bytes, places: times.Int64s, *, plainly: bool = False
    ) -> Decoded | None:
        """Groups of some events of a batch, as all of them together would give.

        None where that is not sure: with many odd events, which of those around one are decoded
        with it depends on all. ``plainly``: None where one is odd, or has a time that a double
        cannot carry; nothing is remembered of that.
        """
        fam = self._family
        ordinals: list[int] = places.tolist()
        decoded = Decoded()
        try:
            events = fam.decoder.decode(document)
            if self._group(events, ordinals, fam, decoded):
                return decoded
        except REFUSED:
            pass
        if plainly:
            return None
        raws = split(document)
        if raws is None:
            return None
        decoded = self.pieces(raws, ordinals)
        far = [place for place, _ in decoded.odd]
        far += [p for group in decoded.groups if group.is_text for p in group.places.tolist()]
        apart = np.diff(np.sort(np.array(far, np.int64))) > 1
        return decoded if np.count_nonzero(apart) < MAX_RUNS - 1 else None

    def _inexact(self) -> None:
        """Times that doubles cannot carry: one may be damage, several are the producer's way."""
        self._inexact_count += 1
        self.is_text = self._inexact_count >= INEXACT_LIMIT

    @property
    def _number(self) -> Family:
        return family(is_text=False, stacks=self._stacks)

    @property
    def _text(self) -> Family:
        return family(is_text=True, stacks=self._stacks)

    @property
    def _family(self) -> Family:
        return self._text if self.is_text else self._number

    def pieces(
        self, raws: Sequence[bytes], ordinals: Sequence[int], refused: int | None = None
    ) -> Decoded:
        """Groups of single events; those that no struct fits are left in ``odd``.

        ``ordinals`` are their places. ``refused`` is the first event that is known not to decode
        with the others.
        """
        decoded = Decoded()
        kept: Kept = {False: ([], []), True: ([], [])}
        begin = self._runs(raws, ordinals, kept, decoded, refused)
        for at in range(begin, len(raws), PIECE_EVENTS):
            stop = at + PIECE_EVENTS
            self._piece(raws[at:stop], ordinals[at:stop], kept, decoded)
        events, places = kept[False]
        if events and not self._group(events, places, self._number, decoded):
            self._inexact()
            by_place = dict(zip(ordinals, raws, strict=True))
            again = [by_place[p] for p in places]
            retried = self._text.decoder.decode(b"[" + b",".join(again) + b"]")
            self._group(retried, places, self._text, decoded)
        events, places = kept[True]
        if events:
            self._group(events, places, self._text, decoded)
        return decoded

    def _runs(
        self,
        raws: Sequence[bytes],
        ordinals: Sequence[int],
        kept: Kept,
        decoded: Decoded,
        refused: int | None,
    ) -> int:
        """Decode the long runs between a few odd events; how many events that covers."""
        fam = self._family
        at = 0
        for _ in range(MAX_RUNS):
            if at >= len(raws):
                break
            run: list[Event] = []
            length = refused
            refused = None
            if length is None:
                try:
                    run = fam.decoder.decode(b"[" + b",".join(raws[at:]) + b"]")
                except REFUSED as error:
                    length = _refused_at(error)
                    if length is None:
                        break
            if length:
                try:
                    run = fam.decoder.decode(b"[" + b",".join(raws[at : at + length]) + b"]")
                except REFUSED:
                    break
            kept[fam.is_text][0].extend(run)
            kept[fam.is_text][1].extend(ordinals[at : at + len(run)])
            at += len(run)
            while at < len(raws) and self._single(raws[at], ordinals[at], kept, decoded):
                at += 1
            at = min(at + 1, len(raws))
        return at

    def _single(self, raw: bytes, place: int, kept: Kept, decoded: Decoded) -> bool:
        """Take one event; whether it was odd, so that the next may be too."""
        if b'"cat"' not in raw:  # metadata: no struct fits, and none needs to be made for it
            decoded.odd.append((place, raw))
            return True
        for fam in (self._text,) if self.is_text else (self._number, self._text):
            try:
                (event,) = fam.decoder.decode(b"[" + raw + b"]")
            except (*REFUSED, ValueError):
                continue
            kept[fam.is_text][0].append(event)
            kept[fam.is_text][1].append(place)
            return fam is not self._family
        decoded.odd.append((place, raw))
        return True

    def _piece(
        self,
        raws: Sequence[bytes],
        ordinals: Sequence[int],
        kept: Kept,
        decoded: Decoded,
    ) -> None:
        families = (self._text,) if self.is_text else (self._number, self._text)
        whole = b"[" + b",".join(raws) + b"]"
        for fam in families:
            try:
                events = fam.decoder.decode(whole)
            except REFUSED:
                continue
            if len(events) == len(raws):
                kept[fam.is_text][0].extend(events)
                kept[fam.is_text][1].extend(ordinals)
                return
        for raw, place in zip(raws, ordinals, strict=True):
            self._single(raw, place, kept, decoded)

    def _group(
        self, events: Sequence[Event], places: Sequence[int], fam: Family, decoded: Decoded
    ) -> bool:
        """Append groups to ``decoded``; False if the times are inexact as numbers."""
        groups = group_events(events, places, fam)
        if groups is None:
            return False
        decoded.groups.extend(groups)
        return True


def group_events(events: Sequence[Event], places: Sequence[int], fam: Family) -> list[Group] | None:
    """Events by category with their times; None if the times are inexact as numbers."""
    codes = np.frombuffer(bytes(map(fam.code.__getitem__, map(type, events))), np.uint8)
    if isinstance(places, range):
        ordinals = np.arange(places.start, places.stop, dtype=np.int64)
    else:
        ordinals = np.array(places, np.int64)
    groups: list[Group] = []
    for code in np.flatnonzero(np.bincount(codes)).tolist():
        category = fam.categories[code]
        kind, word = CATEGORIES[category]
        rows = np.flatnonzero(codes == code)
        group = Group(category, kind, word, (), len(rows), _NONE, None, fam.is_text)
        groups.append(group)
        if kind is Kind.SKIP:
            continue
        group.events = members = _taken(events, rows)
        group.places = ordinals[rows]
        starts: tuple[times.Int64s, times.Bools] | None
        durs: tuple[times.Int64s, times.Bools] | None
        if fam.is_text:
            starts = times.from_texts([bytes(e.ts) for e in members])
            durs = times.from_texts([bytes(getattr(e, "dur", b"")) for e in members])
        else:
            ts, dur = [e.ts for e in members], [e.dur for e in members]
            if kind in FREQUENT:
                group.us = times.plain(ts, dur)
                if group.us is not None:
                    continue
            starts, durs = times.from_numbers(ts), times.from_numbers(dur)
        if starts is None or durs is None:
            return None
        group.start_ns, group.has_start = starts
        group.dur_ns, group.has_dur = durs
    return groups


def _taken(events: Sequence[Event], rows: times.Int64s) -> Sequence[Event]:
    if len(rows) == len(events):
        return events
    if len(rows) == 1:
        return [events[int(rows[0])]]
    return itemgetter(*rows.tolist())(events)  # type: ignore[no-any-return]  # a tuple of them
