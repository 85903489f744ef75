"""Events that fit no struct: metadata, other phases, unknown categories, unusual types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from tracekit.ingest.kineto import salvage
from tracekit.ingest.kineto.decode import REFUSED, Group, group_events
from tracekit.ingest.kineto.model import ARGS, CATEGORIES, Event, Family, FrameArgs, Kind, family
from tracekit.ingest.traces import names
from tracekit.ingest.traces.columns import as_int

if TYPE_CHECKING:
    from tracekit.ingest.base import Sink

_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,40}")

NOT_WORK = {
    "cuda_profiler_range",
    "cuda_event",
    "mtia_insight",
    "collective_comm",
    "xpu_scope_profiler",
}
"""Categories that are neither host work nor device work of their own."""

_EMPTY = Raw()


class OddEvents:
    """Reads events one by one, field by field."""

    def __init__(self, sink: Sink, *, stacks: bool) -> None:
        self._sink = sink
        self._stacks = stacks
        self.processes: dict[int, str | None] = {}
        self.events_count = 0
        self.lost = 0

    def read(self, odd: Sequence[tuple[int, bytes]]) -> list[Group]:
        """Groups of the events that a table has room for; the others are counted."""
        events: list[Event] = []
        places: list[int] = []
        others: dict[str, tuple[list[Event], list[int]]] = {}
        for place, raw in odd:
            fields = self._fields(place, raw)
            if fields is None:
                continue
            made = self._event(place, fields)
            if made is None:
                continue
            category, event = made
            if category is None:
                events.append(event)
                places.append(place)
            else:
                members, ordinals = others.setdefault(category, ([], []))
                members.append(event)
                ordinals.append(place)
        groups = (group_events(events, places, self._text) or []) if events else []
        for category, (members, ordinals) in sorted(others.items()):
            for group in group_events(members, ordinals, self._text) or []:
                group.category, group.kind, group.word = category, Kind.CALL, category
                groups.append(group)
        return groups

    @property
    def _text(self) -> Family:
        """The structs; made once one is needed, for most traces have only metadata here."""
        return family(is_text=True, stacks=self._stacks)

    def _fields(self, place: int, raw: bytes) -> dict[str, Raw] | None:
        if raw == b"{}":  # the place of a lost event
            return None
        try:
            return _FIELDS.decode(raw)
        except REFUSED:
            pass
        fixed = raw.decode("utf-8", "replace").encode()
        try:
            fields = _FIELDS.decode(fixed)
        except REFUSED:
            self._lose(place, raw)
            return None
        self._repaired_utf8(place, raw)
        return fields

    def _repaired_utf8(self, place: int, raw: bytes) -> None:
        repair = salvage.REPAIRS[0]
        self._sink.count(repair.counter, doc=repair.doc, place=place, shape=salvage.shape(raw))

    def _lose(self, place: int, raw: bytes) -> None:
        self.lost += 1
        self._sink.count(
            "not_an_event",
            severity="error",
            doc="JSON values among the events that are no events.",
            place=place,
            shape=salvage.shape(raw),
        )

    def _event(self, place: int, fields: dict[str, Raw]) -> tuple[str | None, Event] | None:
        """An event and, if its category is none of ours, that category."""
        phase, category = _text(fields.get("ph")), _text(fields.get("cat"))
        if phase is None:
            self._lose(place, b"{}" if not fields else b"{...}")
            return None
        self.events_count += 1
        if phase == "M":
            self._metadata(fields)
            return None
        kind, _ = CATEGORIES.get(category or "", (None, ""))
        if phase in ("s", "t", "f") or kind is Kind.SKIP:
            return None
        if phase in ("i", "I", "R") and kind is not Kind.INSTANT:
            return None
        if phase not in ("X", "i", "I"):
            self._sink.count(
                "unread_phase",
                doc="Events of a phase that no table holds (counters, B and E, async).",
                severity="warning" if phase in ("B", "E") else "info",
                place=place,
            )
            return None
        if kind is None:
            return self._other(place, category, fields)
        assert category is not None  # noqa: S101 - it is a key of CATEGORIES
        return None, self._build(category, kind, place, fields)

    def _other(
        self, place: int, category: str | None, fields: dict[str, Raw]
    ) -> tuple[str, Event] | None:
        args = self._plain(fields.get("args"))
        on_device = "stream" in args or "device" in args
        word = category if category and _WORD.fullmatch(category) else "other"
        if category in NOT_WORK or on_device or as_int(self._id(fields.get("pid"))) is None:
            self._sink.count(
                "skipped_category",
                doc="Events of a category that no table holds.",
                severity="info",
                place=place,
            )
            return None
        self._sink.count(
            "unknown_category",
            doc="Events of an unknown category, kept as host work under the producer's word.",
            severity="info",
            place=place,
        )
        return word, self._build("overhead", Kind.CALL, place, fields)

    def _build(self, category: str, kind: Kind, place: int, fields: dict[str, Raw]) -> Event:
        name = _text(fields.get("name"))
        if name is None:
            raw = bytes(fields.get("name", b""))
            name = raw.decode("utf-8", "replace").strip('"')
            if raw:
                self._repaired_utf8(place, raw)
        values: dict[str, Any] = {
            "ph": "i" if kind is Kind.INSTANT else "X",
            "name": name,
            "pid": self._id(fields.get("pid")),
            "tid": self._id(fields.get("tid")),
            "ts": fields.get("ts", _EMPTY),
            "dur": fields.get("dur", _EMPTY),
        }
        made = self._text.struct[category]
        if "args" in getattr(made, "__struct_fields__", ()):
            wanted = FrameArgs if kind is Kind.FRAME and self._stacks else ARGS[kind]
            values["args"] = self._args(place, fields.get("args"), wanted)
        return made(**values)

    def _id(self, raw: Raw | None) -> int | str:
        if raw is None:
            return ""
        try:
            value: int | str = msgspec.json.decode(raw, type=int | str)
        except (*REFUSED, ValueError):
            return ""
        return value

    def _plain(self, raw: Raw | None) -> dict[str, Raw]:
        try:
            return _FIELDS.decode(raw) if raw is not None else {}
        except REFUSED:
            return {}

    def _args(self, place: int, raw: Raw | None, wanted: type[msgspec.Struct]) -> Any:
        """Arguments, each on its own, so that one odd one does not lose the others."""
        if raw is None or bytes(raw) == b"null":
            return None
        for strict in (True, False):
            try:
                return msgspec.json.decode(raw, type=wanted, strict=strict)
            except (*REFUSED, ValueError):
                continue
        known: dict[str, Any] = {}
        by_key = {f.encode_name: f for f in msgspec.structs.fields(wanted)}
        for key, value in self._plain(raw).items():
            field = by_key.get(key)
            if field is None:
                continue
            try:
                known[field.name] = msgspec.json.decode(value, type=field.type, strict=False)
            except (*REFUSED, ValueError):
                text = bytes(value).decode("utf-8", "replace")
                if str in getattr(field.type, "__args__", (field.type,)) and text.startswith('"'):
                    known[field.name] = text.strip('"')
                    continue
                self._sink.count(
                    "unread_argument",
                    doc="Arguments of an unexpected type, read as absent.",
                    severity="info",
                    place=place,
                )
        return wanted(**known)

    def _metadata(self, fields: dict[str, Raw]) -> None:
        if _text(fields.get("name")) != "process_name":
            return
        pid = as_int(self._id(fields.get("pid")))
        name = _text(self._plain(fields.get("args")).get("name"))
        shown = names.program(name)
        if pid is not None and shown is not None:
            self.processes.setdefault(pid, shown)


def _text(raw: Raw | None) -> str | None:
    if raw is None:
        return None
    try:
        value: str = msgspec.json.decode(raw, type=str)
    except (*REFUSED, ValueError):
        return None
    return value
