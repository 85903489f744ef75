"""Messages of protocol buffers as text: ``update { timestamp: 5 prefix { target: "leaf1" } }``.

gnmic (``--format prototext``), gnmi_cli and others print notifications so, with braces or angles
and with or without a colon before them. The grammar is that of protobuf.dev, "Text Format".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

MAX_DEPTH = 50
MAX_TOKENS = 4_000_000
"""Of a message: 100 switches of 64 ports have a tenth of that in one."""

_TOKEN = re.compile(
    r"\s*+(?:#.*|([A-Za-z_][\w./]*+)\s*+:?\s*+(?=[{<])|([A-Za-z_][\w./]*+)\s*+:|([{<])|([}>])"
    r'|"((?:[^"\\]|\\.)*+)"|'
    r"'((?:[^'\\]|\\.)*+)'"
    r"|([^\s{}<>\"',;]++)|[,;])"
)
_BEGINS = re.compile(r"\w++\s*+:?\s*+[{<]\s*+$")
_ESCAPED = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))")
_LETTERS = {"n": "\n", "t": "\t", "r": "\r"}


class Message(NamedTuple):
    """A field of the outermost level that holds a message."""

    line: int
    name: str
    value: dict[str, list[Any]] | None
    """Fields by name, each with all its values (texts or messages); None: it is broken."""


def messages(lines: Iterable[tuple[int, str]]) -> Iterator[Message]:
    """The messages of a file; what is broken is told with its line, and ends at the next one that
    begins without an indent."""
    stack: list[dict[str, list[Any]]] = []
    begun, name, field = 0, "", ""
    tokens = 0
    for number, text in lines:
        at = 0
        if stack and text[:1].isalpha() and _BEGINS.match(text):
            yield Message(begun, name, None)  # it broke off: a line without indent begins anew
            stack.clear()
        while found := _TOKEN.match(text, at):
            at = found.end()
            tokens += 1
            message, named, opens, closes, double, single, bare = found.groups()
            if message or named:
                field = message or named
            elif opens:
                inner: dict[str, list[Any]] = {}
                if stack:
                    stack[-1].setdefault(field, []).append(inner)
                else:
                    begun, name, tokens = number, field, 0
                stack.append(inner)
            elif closes and stack:
                whole = stack.pop()
                if not stack:
                    yield Message(begun, name, whole)
            elif stack and (double or single or bare or found[0].strip()[:1] in ("'", '"')):
                quoted = double if double is not None else single
                value = bare if quoted is None else _plain(quoted)
                stack[-1].setdefault(field, []).append(value)
            if len(stack) > MAX_DEPTH or tokens > MAX_TOKENS:
                yield Message(begun, name, None)
                stack.clear()
        if text[at:].strip() and stack:
            yield Message(begun, name, None)
            stack.clear()
    if stack:
        yield Message(begun, name, None)


def _plain(text: str) -> str:
    """A text without what guards its letters."""
    if "\\" not in text:
        return text

    def letter(match: re.Match[str]) -> str:
        octal, hexadecimal, plain = match.groups()
        if octal or hexadecimal:
            return chr(int(octal, 8) if octal else int(hexadecimal, 16))
        return _LETTERS.get(plain, plain)

    return _ESCAPED.sub(letter, text)
