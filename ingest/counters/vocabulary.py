"""How a source's numbers get the words that all sources share.

Rules and queries know canonical names only; the name in the source stays in ``original_name``. The
names stand by subject in gpu_words.py and net_words.py. A counter that has no canonical name keeps
its own, in lower case: it can be looked at, and no rule reads it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal, NamedTuple

Kind = Literal["cumulative", "gauge", "watermark", "window"]
_OTHER = re.compile(r"[^a-z0-9]+")


class Word(NamedTuple):
    """A canonical name."""

    name: str
    unit: str | None
    kind: Kind
    doc: str


class Meaning(NamedTuple):
    """What a counter of a source is, in words that all sources share."""

    counter: str
    """Canonical name; of the network it begins with rx_ or tx_ where it has a direction."""
    unit: str | None = "count"
    """Unit after scaling; None where nobody knows it."""
    kind: Kind = "cumulative"
    scale: int | float = 1
    """What the printed number is multiplied by to be in that unit."""
    original: str | None = None
    """How a sample names its source (``dcgm 150``), where that follows from the counter."""

    @property
    def direction(self) -> str | None:
        """rx or tx as the node sees it; None where it is neither."""
        return direction_of(self.counter)


@cache
def direction_of(counter: str) -> str | None:
    """The direction that a canonical name begins with."""
    start = counter[:3]
    return start[:2] if start in ("rx_", "tx_") else None


class Vocabulary(dict[str, Word]):
    """The canonical names of one subject."""

    def __init__(self, *words: Word) -> None:
        super().__init__((word.name, word) for word in words)
        if len(self) < len(words):
            raise ValueError("a canonical name stands twice")

    def meaning(self, name: str, scale: int | float = 1, original: str | None = None) -> Meaning:
        """The meaning of a canonical name; KeyError if there is none."""
        word = self[name]
        return Meaning(word.name, word.unit, word.kind, scale, original)

    def own(self, name: str, kind: Kind = "cumulative") -> Meaning:
        """A counter that has no canonical name: its own, in plain letters, without a unit."""
        plain = _OTHER.sub("_", name[:200].lower()).strip("_")[:100]
        return self.meaning(plain) if plain in self else Meaning(plain or "unnamed", None, kind)
