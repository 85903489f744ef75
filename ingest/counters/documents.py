"""Splits a file into JSON values with the times between them, in bounded memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple

from tracekit.ingest.base import SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.lines import raw_lines

MAX_LINE_BYTES = 64 << 20
"""Longest line; a longer one is cut there and cannot be read."""
MAX_DOCUMENT_BYTES = 256 << 20
"""Longest JSON value."""
MAX_VALUES = 4_000_000
"""Values of a document: each takes some 100 bytes of memory, however short it is written. The
counters of 100 switches of 64 ports are a tenth of that."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_NO_MARKS = bytes(sorted(set(range(256)) - set(b'"[]{}')))
_FRACTION = re.compile(r"-?\d{1,20}\.\d{1,20}(?:[eE][-+]?\d{1,3})?")
_BARE = {b"{": 1, b"[": 1, b"}": -1, b"]": -1, b"},": -1, b"],": -1}


class Document(NamedTuple):
    """A JSON value, where it begins, and the time that stood before it."""

    line: int
    value: Any
    """Numbers with a fraction are texts, so that no digit is lost; None where ``problem``."""
    stamp_ns: int | None
    problem: str | None = None
    """Masked words on why the value cannot be read."""


def is_json(source: SourceFile) -> bool:
    """Whether the file begins as a JSON value does, not as text."""
    with source.open() as stream:
        start = stream.read(4096)
    return start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


def loads(text: bytes) -> Any:
    """A JSON value; numbers with a fraction stay texts. ValueError where it is none.

    A whole number of thousands of digits stays a text too: no counter reaches it.
    """
    if is_too_large(text):
        raise ValueError("too many values")
    try:
        return json.loads(text, parse_float=str, parse_constant=str)
    except RecursionError:
        raise ValueError("nested too deep") from None
    except json.JSONDecodeError:
        raise
    except ValueError:
        return json.loads(text, parse_float=str, parse_constant=str, parse_int=_whole)


def dict_of(value: object) -> dict[str, Any]:
    """An object of a document; an empty one where it is none."""
    return value if isinstance(value, dict) else {}


def dicts_of(value: object) -> list[dict[str, Any]]:
    """The objects of a list; none where it is no list."""
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def numbers_count(value: object) -> int:
    """How many numbers a value of a document holds, at any depth; no truth is a number."""
    found = 0
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
        elif isinstance(one, str):
            found += _FRACTION.fullmatch(one) is not None
        else:
            found += isinstance(one, int) and not isinstance(one, bool)
    return found


def text_of(value: object) -> str | None:
    """A text that is not empty."""
    return value if isinstance(value, str) and value else None


def _whole(text: str) -> int | str:
    return int(text) if len(text) < 40 else text


def is_too_large(text: bytes) -> bool:
    """Whether a document may hold more values than are read."""
    return text.count(b",") + text.count(b"[") + text.count(b"{") > MAX_VALUES


def documents(stream: BinaryIO) -> Iterator[Document]:
    """The JSON values of a file: one, one a line, or several over many lines each.

    A line that is only a time stamps the next value. What is no JSON is given as a problem with
    its line, and what follows is read.
    """
    stamp: int | None = None
    held: list[_Held] = []
    depth = size = 0
    for number, raw in enumerate(raw_lines(stream, MAX_LINE_BYTES), 1):
        line = raw.strip().removeprefix(b"\xef\xbb\xbf")
        if not line:
            continue
        if not held:
            if line[:1] not in (b"{", b"["):
                text = line[:200].decode("utf-8", "replace")
                stamp_of_line = times.of_line(text)
                if stamp_of_line is None:
                    yield Document(number, None, None, "no JSON")
                else:
                    stamp = stamp_of_line
                continue
            depth = size = 0
        is_opening = raw[:1] in (b"{", b"[")
        change = _depth(line)
        if held and is_opening and change == 0 and len(line) > 2:
            # A whole value on a line of its own: what is held broke off before it.
            yield from _documents_of(held, stamp)
            held, stamp, depth, size = [], None, 0, 0
        held.append(_Held(number, line, is_opening))
        size += len(line)
        depth += change
        if depth > 0 and size < MAX_DOCUMENT_BYTES:
            continue
        yield from _documents_of(held, stamp)
        held, stamp = [], None
    if held:
        yield from _documents_of(held, stamp)


class _Held(NamedTuple):
    number: int
    text: bytes
    is_opening: bool
    """Whether it begins a value without any indent: a value's first line mostly does."""


def _depth(line: bytes) -> int:
    """How many brackets a line leaves open; texts never run over a line's end."""
    if not (b"{" in line or b"[" in line or b"}" in line or b"]" in line):
        return 0
    if line in _BARE:
        return _BARE[line]
    if b"\\" not in line:
        marks = line.translate(None, _NO_MARKS).replace(b'""', b"")
        if b'"' not in marks:  # quotes stood in pairs between brackets: no text holds one
            opened = marks.count(b"{") + marks.count(b"[")
            return opened - marks.count(b"}") - marks.count(b"]")
    return _depth_by_tokens(line)


def _depth_by_tokens(line: bytes) -> int:
    depth = 0
    for token in _TOKEN.finditer(line):  # a list of them would take more memory than the values
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
    return depth


def _documents_of(held: list[_Held], stamp: int | None) -> Iterator[Document]:
    """The value of some lines; where it is broken, what stands whole before the break."""
    text = b"\n".join(h.text for h in held)
    begun = held[0].number
    if is_too_large(text):
        yield Document(begun, None, None, "too many values")
        return
    try:
        yield Document(begun, loads(text), stamp)
        return
    except ValueError as error:
        problem = type(error).__name__
    if len(held) == 1:
        values, is_all = _several(text)
        for value in values:
            yield Document(begun, value, stamp)
        if is_all:
            return
        if values:
            yield Document(begun, None, None, problem)
            return
    # A value that breaks off takes the next ones with it: begin anew where one may begin. Their
    # time stays unknown, for the lines that state it were swallowed too.
    openings = [i for i, h in enumerate(held) if i and h.is_opening]
    yield Document(begun, None, None, problem)
    first = openings[0] if openings else len(held)
    value = before_break(b"\n".join(h.text for h in held[:first]))
    if value is not None:
        yield Document(begun, value, stamp)
    for start, end in pairwise([*openings, len(held)]):
        try:
            value = loads(b"\n".join(h.text for h in held[start:end]))
        except ValueError:
            continue
        yield Document(held[start].number, value, None)


def before_break(text: bytes) -> Any:
    """What stands whole before the place where a JSON value breaks; None where nothing does.

    Cut at the last comma before the break, with every bracket that is open there closed: the
    member that the break may have shortened is left out.
    """
    decoded = text.decode("utf-8", "replace")
    try:
        return json.loads(decoded, parse_float=str, parse_constant=str)
    except json.JSONDecodeError as error:
        end = error.pos
    except (ValueError, RecursionError):
        return None
    closers: list[str] = []
    cut: tuple[int, str] | None = None
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[\]{},]', decoded[:end]):
        mark = token[0]
        if mark == "{":
            closers.append("}")
        elif mark == "[":
            closers.append("]")
        elif mark in "}]" and closers:
            closers.pop()
        elif mark == "," and closers:
            cut = (token.start(), "".join(reversed(closers)))
    if cut is None:
        return None
    try:
        return loads((decoded[: cut[0]] + cut[1]).encode())
    except ValueError:
        return None


def _several(line: bytes) -> tuple[list[Any], bool]:
    """Values that stand one after the other in a line, and whether they are all of it."""
    decoder = json.JSONDecoder(parse_float=str, parse_constant=str)
    text = line.decode("utf-8", "replace")
    documents: list[Any] = []
    at = 0
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return documents, False
        documents.append(value)
        while at < len(text) and text[at] in " \t,":
            at += 1
    return documents, True
