"""Which entry of a job description speaks of which file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from tracekit.job.model import RankEntry, SourceEntry

_E = TypeVar("_E", RankEntry, SourceEntry)


def said_of(matcher: PathMatcher[SourceEntry], path: str) -> SourceEntry | None:
    """All that the job description says of a file, by the strongest entry that says it."""
    entries = matcher.all(path)
    if not entries:
        return None
    said: dict[str, Any] = {}
    for entry in entries:
        for name in SourceEntry.__struct_fields__:
            if said.get(name) is None:
                said[name] = getattr(entry, name)
    return SourceEntry(**said)


class PathMatcher(Generic[_E]):
    """Which entry speaks of which file.

    A path without wildcards wins over one with; of several with wildcards the one whose folder is
    deeper wins, then the last. ``*`` and ``?`` stay within a folder, ``**`` does not. Paths are
    compared as text, made absolute; nothing is opened and no link is followed.
    """

    def __init__(self, entries: Iterable[_E]) -> None:
        self._literal: dict[str, _E] = {}
        self._globs: dict[str, list[tuple[re.Pattern[str], _E]]] = {}
        self._used: set[int] = set()
        self._entries: list[_E] = [e for e in entries if e.path is not None]
        for entry in self._entries:
            pattern = _absolute(f"{entry.base}/{entry.path}" if entry.base else str(entry.path))
            if not re.search(r"[*?]", entry.path or ""):
                self._literal[pattern] = entry
                continue
            folder = re.split(r"[*?]", pattern, maxsplit=1)[0].rsplit("/", 1)[0]
            self._globs.setdefault(folder, []).append((glob_pattern(pattern), entry))

    def find(self, path: str) -> _E | None:
        """The entry that speaks of this file, of several the strongest; None if none does."""
        return next(iter(self.all(path)), None)

    def all(self, path: str) -> list[_E]:
        """The entries that speak of this file, the strongest first."""
        full = _absolute(path)
        entries = [self._literal[full]] if full in self._literal else []
        folder = full
        while "/" in folder:
            folder = folder.rsplit("/", 1)[0]
            entries += [
                e for regex, e in self._globs.get(folder, ())[::-1] if regex.fullmatch(full)
            ]
        self._used |= {id(e) for e in entries}
        return entries

    def unused(self) -> list[_E]:
        """Entries that spoke of no file that was asked for."""
        return [e for e in self._entries if id(e) not in self._used]


def _absolute(path: str) -> str:
    if "://" in path:
        return path
    return os.path.abspath(path).replace(os.sep, "/")  # noqa: PTH100 - no link is followed


def glob_pattern(pattern: str) -> re.Pattern[str]:
    """A wildcard takes the first place where what follows it fits, for good: no later place could
    do more, and to try them all takes the power of the number of wildcards. Only the last of each
    kind has an end to reach."""
    first, *others = re.split(r"((?<![^/])\*\*/|\*\*+)", pattern)
    text = _within(first, is_last=not others)
    for stars, chunk in zip(others[::2], others[1::2], strict=True):
        is_last = chunk is others[-1]
        skip = "(?:.*?/)??" if stars.endswith("/") else ".*?"
        text += ("(?:{})" if is_last else "(?>{})").format(skip + _within(chunk, is_last=is_last))
    return re.compile(text, re.DOTALL)


def _within(chunk: str, *, is_last: bool) -> str:
    """The part of a pattern between two ``**``."""
    text, *others = ("[^/]".join(map(re.escape, p.split("?"))) for p in chunk.split("*"))
    for left, piece in zip(range(len(others) - 1, -1, -1), others, strict=True):
        text += f"[^/]*{piece}" if is_last and not left else f"(?>[^/]*?{piece})"
    return text
