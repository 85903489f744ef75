"""Whether a block of a text holds one of a few words, in one pass."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

HEAD_BYTES = 1 << 16
"""Looked at by itself before a larger block."""


def any_of(words: Iterable[bytes]) -> str:
    """A pattern that finds one of these ASCII texts; ``holds`` takes it."""
    return "|".join(re.escape(word.decode("ascii")) for word in words)


def holds(block: bytes, pattern: str) -> bool:
    """Whether a pattern of ASCII texts is found in a block of bytes in whatever encoding.

    By Rust's ``regex``, which looks for all of a few dozen texts at once: ten times as quick as one
    search for each, or Python's ``re``.
    """
    # Words are mostly everywhere or nowhere, and the head says which at little cost.
    heads = (block[:HEAD_BYTES], block) if len(block) > HEAD_BYTES else (block,)
    return any(_text(b).str.contains(pattern).item() for b in heads)


def _text(block: bytes) -> pl.Series:
    import polars as pl

    try:
        return pl.Series([block]).cast(pl.String)
    except pl.exceptions.PolarsError:
        # Latin-1 takes every byte, and leaves ASCII what it is; it is slow where there is more.
        return pl.Series([block.decode("latin-1")])
