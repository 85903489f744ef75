"""Damaged text: what can still be read is read, what is repaired or lost is counted.

A batch that is no JSON is cut at everything that looks like the start of an event. Each piece is
decoded; if it cannot be, it is repaired by one of the named repairs below (each undoes a fault
that real producers had), or joined to the pieces after it (the cut was inside a nested list), or
dropped. A repair counts only if its result is JSON. Nothing of the text itself is kept.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from tracekit.ingest.base import Sink
from tracekit.ingest.kineto.decode import REFUSED, Decoded, Decoder
from tracekit.ingest.kineto.stream import EVENT_BOUNDARY

JOIN_LIMIT = 8
"""Pieces that are tried together."""
SHAPE_LENGTH = 80
"""Characters of a masked shape."""
PIECES_TOGETHER = 64
_REPAIR_LIMIT_BYTES = 1 << 20

_RAW = msgspec.json.Decoder(Raw)
_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_RAWS = msgspec.json.Decoder(list[Raw])
_MASK = bytes(
    ord("a") if chr(i).isalpha() and i < 128 else ord("9") if 48 <= i <= 57
    else i if 32 <= i < 127 else ord("?") if i > 126 else ord(" ")
    for i in range(256)
)  # fmt: skip

# A quote behind a backslash begins none: from each of many, the text would take its square.
_STRING = rb'(?<!\\)"(?:[^"\\]++|\\.)*+"'


def shape(text: bytes) -> str:
    """A masked shape: letters to a, digits to 9."""
    masked = text[: SHAPE_LENGTH * 4].translate(_MASK).decode("ascii")
    return re.sub(r"\s+", " ", masked)[:SHAPE_LENGTH]


def is_json(text: bytes) -> bool:
    """Whether a piece of text is one JSON value."""
    try:
        _RAW.decode(text)
    except REFUSED:
        return False
    return True


# --- repairs -------------------------------------------------------------------------------------


def _utf8(text: bytes) -> bytes:
    return text.decode("utf-8", "replace").encode()


def _controls(text: bytes) -> bytes:
    def escape(string: re.Match[bytes]) -> bytes:
        return re.sub(rb"[\x00-\x1f]", lambda c: b"\\u%04x" % c[0][0], string[0])

    return re.sub(_STRING, escape, text, flags=re.S)


def _escapes(text: bytes) -> bytes:
    pattern = rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)'
    return re.sub(pattern, lambda m: m[0] if m[1] else rb"\\", text)


def _outside_strings(pattern: bytes, replacement: bytes) -> Callable[[bytes], bytes]:
    compiled = re.compile(rb"(" + _STRING + rb")|" + pattern, re.S | re.I)

    def apply(text: bytes) -> bytes:
        return compiled.sub(lambda m: m[1] if m[1] is not None else m.expand(replacement), text)

    return apply


_NAME = re.compile(rb'"name"\s*+:\s*+"')
_NAME_END = re.compile(rb'"\s*+(?:,\s*+"(?:pid|tid|ph|cat|ts|dur|args|s|id)"\s*+:|\}\s*+\Z)')
_VALUE = re.compile(rb':\s*+"')
_VALUE_END = re.compile(rb'"\s*+(?:,\s*+"[^"]{1,40}"\s*+:|\})')


def _escaped(
    text: bytes, begin: re.Pattern[bytes], end: re.Pattern[bytes], count: int = sys.maxsize
) -> bytes:
    """Quotes escaped between each begin and the next end; behind the last end there is none."""
    done: list[bytes] = []
    at = 0
    while len(done) < count:
        first = begin.search(text, at)
        last = end.search(text, first.end()) if first else None
        if first is None or last is None:
            break
        inner = re.sub(
            rb'(\\.)|"', lambda q: q[1] or b'\\"', text[first.end() : last.start()], flags=re.S
        )
        done.append(text[at : first.end()] + inner)
        at = last.start()
    return b"".join([*done, text[at:]])


def _quotes(text: bytes) -> bytes:
    repaired = _escaped(text, _NAME, _NAME_END, count=1)
    return repaired if is_json(repaired) else _escaped(repaired, _VALUE, _VALUE_END)


def _key_quotes(text: bytes) -> bytes:
    opened = re.sub(rb'([{,]\s*)([A-Za-z_][\w .%/()-]{0,60})"(\s*:)', rb'\1"\2"\3', text)
    if is_json(opened):
        return opened
    return re.sub(
        rb'([{,]\s*")([A-Za-z_][\w .%/()-]{0,60}?)(\s*:\s*[\d\-\[{"tfn])', rb'\1\2"\3', text
    )


class Repair(NamedTuple):
    """One fault that producers had, and how it is undone."""

    counter: str
    doc: str
    apply: Callable[[bytes], bytes]


REPAIRS: tuple[Repair, ...] = (
    Repair("repaired_utf8", "Bytes that are no UTF-8, replaced.", _utf8),
    Repair(
        "repaired_value",
        "A key without a value, read as null.",
        _outside_strings(rb":\s*(?=[,}])", b": null"),
    ),
    Repair(
        "repaired_number",
        "A bare inf or nan, read as null.",
        _outside_strings(rb"(?<=[:\[,\s])-?(?:infinity|inf|nan)(?=\s*[,}\]])", b"null"),
    ),
    Repair(
        "repaired_comma",
        "A comma with nothing after or before it, dropped.",
        _outside_strings(
            rb",(?:\s*+,)*+(?=\s*+[}\]])|(?<=[{\[])(?:\s*+,)++|,(?:\s*+(,))++", rb"\2"
        ),
    ),
    Repair("repaired_control", "A raw control character in a string, escaped.", _controls),
    Repair("repaired_escape", "A backslash that escapes nothing, escaped.", _escapes),
    Repair("repaired_quote", "A quote inside a string, escaped.", _quotes),
    Repair("repaired_key", "A key that lacks a quote, completed.", _key_quotes),
)


def repair(text: bytes) -> tuple[bytes, list[Repair]] | None:
    """The text as JSON and the repairs that it took; None if none of them helps."""
    if len(text) > _REPAIR_LIMIT_BYTES:
        return None
    for kind in REPAIRS:
        changed = kind.apply(text)
        if changed != text and is_json(changed):
            return changed, [kind]
    taken: list[Repair] = []
    for kind in REPAIRS:
        changed = kind.apply(text)
        if changed != text:
            taken.append(kind)
            text = changed
            if is_json(text):
                return text, taken
    return None


def is_event(text: bytes) -> bool:
    """Whether a piece of text is one whole event, perhaps after repair."""
    repaired = (text, []) if is_json(text) else repair(text)
    if repaired is None:
        return False
    try:
        fields = _FIELDS.decode(repaired[0])
    except REFUSED:
        return False
    return "ph" in fields and "name" in fields


# --- pieces --------------------------------------------------------------------------------------


class Salvaged(Struct):
    """What became of damaged text."""

    events: int = 0
    lost: int = 0


def fragments(text: bytes) -> list[bytes]:
    """Cut text at everything that looks like a boundary between two events."""
    pieces: list[bytes] = []
    begin = 0
    for boundary in EVENT_BOUNDARY.finditer(text):
        pieces.append(text[begin : boundary.start() + 1])
        begin = boundary.end()
    pieces.append(text[begin:])
    return [p.strip(b" \t\r\n,") for p in pieces]


def complete(piece: bytes) -> bytes | None:
    """The last piece of a file that breaks off, if it is a whole event after all."""
    stripped = piece.strip(b" \t\r\n,")
    return stripped if stripped.startswith(b"{") and is_json(stripped) else None


def decode(
    decoder: Decoder, pieces: Sequence[bytes], place: int, sink: Sink
) -> tuple[Decoded, Salvaged]:
    """Read what can be read of pieces of damaged text."""
    used = Salvaged()
    whole: list[bytes] = []
    i = 0
    while i < len(pieces):
        together = pieces[i : i + PIECES_TOGETHER]
        if _are_events(together):
            whole.extend(together)
            i += len(together)
            continue
        stop = i + len(together)
        while i < stop and i < len(pieces):
            text, taken = _one(pieces, i, place + len(whole), sink)
            i += taken
            if text is None:
                used.lost += 1
            # A lost event keeps its place, so that later places do not move.
            whole.append(text if text is not None else b"{}")
    used.events = len(whole)
    return decoder.pieces(whole, range(place, place + len(whole))), used


def _are_events(pieces: Sequence[bytes]) -> bool:
    try:
        return len(_RAWS.decode(b"[" + b",".join(pieces) + b"]")) == len(pieces)
    except REFUSED:
        return False


def _one(pieces: Sequence[bytes], i: int, place: int, sink: Sink) -> tuple[bytes | None, int]:
    """One event from piece i (and those after it), and how many pieces it took."""
    piece = pieces[i]
    if is_json(piece):
        return piece, 1
    for count in range(2, min(JOIN_LIMIT, len(pieces) - i) + 1):
        joined = b",".join(pieces[i : i + count])
        if len(joined) > _REPAIR_LIMIT_BYTES:
            break
        if is_json(joined):
            return joined, count
    repaired = repair(piece)
    if repaired is not None:
        for repaired_by in repaired[1]:
            sink.count(repaired_by.counter, doc=repaired_by.doc, place=place, shape=shape(piece))
        return repaired[0], 1
    sink.count(
        "lost_event",
        severity="error",
        doc="Text between two events that could not be read as an event.",
        place=place,
        shape=shape(piece),
    )
    return None, 1
