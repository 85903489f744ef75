"""What names of ranges and operators mean, from a table of phrases (``tracekit/range_names.toml``).

A class says why a rank may have spent what it was measured to spend; no name accuses anybody.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import cast, get_args

from tracekit.range_kind import RangeKind

CLASSES: tuple[RangeKind, ...] = get_args(RangeKind)
BESIDE_TRAINING: frozenset[RangeKind] = frozenset(
    {"input", "checkpoint", "evaluation", "logging", "collection", "compilation"}
)
"""Classes that are no part of the computation: who spends time there need not be slow at all."""

MAX_WORDS = 64
"""Words of a name that are looked at: names of templates run to thousands."""
WHOLE = "="
"""What a phrase of the table begins with that must be the whole name."""
Phrases = Mapping[tuple[str, ...], RangeKind]
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name: ``enumerate(DataLoader)#_next`` is enumerate, data, loader, next.

    Digits are left out: they number things.
    """
    words = (w.lower() for w in _WORD.findall(name) if not w.isdigit())
    return tuple(islice(words, MAX_WORDS))


@cache
def phrases() -> Phrases:
    """Every phrase of the table with its class; the class that comes first, where two claim it.

    Before the words of what must be a whole name stands ``WHOLE``.
    """
    text = files("tracekit").joinpath("range_names.toml").read_text(encoding="utf-8")
    producers = tomllib.loads(text)["producer"]
    kinds: dict[tuple[str, ...], RangeKind] = {}
    for kind in CLASSES:
        for producer in producers:
            for phrase in producer.get(kind, ()):
                mark = (WHOLE,) if phrase.startswith(WHOLE) else ()
                kinds.setdefault((*mark, *words_of(phrase)), kind)
    return kinds


def class_of(path: Sequence[str], own_names: Iterable[tuple[str, str]] = ()) -> RangeKind | None:
    """The class of nested ranges, outermost first; None where no name says anything.

    The innermost name that means something decides. ``own`` are phrases and classes of the user,
    which come before the table's.
    """
    users = {words_of(phrase): cast("RangeKind", kind) for phrase, kind in own_names}
    for name in reversed(path):
        words = words_of(name)
        range_kind = _longest(words, users) or _longest(words, phrases())
        if range_kind is not None:
            return range_kind
    return None


def _longest(words: Sequence[str], table: Phrases) -> RangeKind | None:
    whole = table.get((WHOLE, *words))
    if whole is not None:
        return whole
    for length in range(len(words), 0, -1):
        matches = {
            table[part]
            for start in range(len(words) - length + 1)
            if (part := tuple(words[start : start + length])) in table
        }
        if matches:
            return min(matches, key=CLASSES.index)
    return None
