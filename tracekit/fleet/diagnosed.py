"""One run of a lake, diagnosed: its rows of the fleet's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracekit.fleet.lake import Entry

Row = dict[str, Any]
Tables = Mapping[str, Sequence[Row]]
"""Rows by table."""


def diagnosed(
    entry: Entry, *, memory_bytes: int | None, config: Mapping[str, Any] | None
) -> Tables:
    """What the run says. Errors as those of opening a run."""
    from tracekit import api
    from tracekit.fleet.rows import rows_of

    card = entry.card
    assert card is not None  # noqa: S101  # only runs with a card are rolled up
    with api.open(entry.path, memory_bytes=memory_bytes) as run:
        return rows_of(card, run, run.diagnose(config=config))
