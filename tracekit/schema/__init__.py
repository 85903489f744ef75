"""THE registry: every table, declared once as data.

Parquet schemas, DuckDB views, documentation and checks derive from ``TABLES``.

Three kinds of table:

- *source* tables hold what a file says, on the file's own clock, and are never rewritten;
- *derived* tables hold what the whole run says (small: ranks, steps, clock offsets);
- the *context* columns of a source table (rank, attempt, capture_id, clock_id, host) are not
  stored with its rows: who a file belongs to is known only once all files were seen. The view
  of the table adds them from ``source_context`` and moves its time columns by the clock's
  offset and drift.

Times are int64 nanoseconds since the epoch, or since an unknown zero where the source's clock
has ``basis = 'relative'``, or null where the source has none. Every nullable id stays null
rather than guessed; every inferred identity has a ``*_source`` column (``IDENTITY_SOURCES``).
"""

from __future__ import annotations

from tracekit.schema import counters, history, joined, nccl, places, sources, stacks, traces
from tracekit.schema.declare import (
    UNIT_SUFFIXES,
    Column,
    Table,
)

__all__ = [
    "REGISTRY_VERSION",
    "TABLES",
    "UNIT_SUFFIXES",
    "Column",
    "Table",
    "table",
]

REGISTRY_VERSION = 13
"""Raised when the meaning or the set of columns changes; part of every run's key."""

TABLES: tuple[Table, ...] = (
    *sources.TABLES,
    *places.TABLES,
    *traces.TABLES,
    *nccl.TABLES,
    *counters.TABLES,
    *history.TABLES,
    *stacks.TABLES,
    *joined.TABLES,
)

_BY_NAME = {t.name: t for t in TABLES}


def table(name: str) -> Table:
    """The table of that name; KeyError if there is none."""
    return _BY_NAME[name]
