"""A run on disk: Parquet files, and a manifest that is written last.

What the manifest does not list does not exist: a crash leaves no half run.

    RUN/
      manifests/000001.json   one file a generation; the highest number is the run
      data/<shard>/<table>-000.parquet      source tables, immutable once listed
      derived/<random>/<table>.parquet      derived tables of one generation
      answers/<key>.json                    what queries answered; may go at any time
      tmp/<host>-<pid>-<random>/            work in progress, never listed

Two writers never mix: each writes below its own tmp folder, moves whole folders into place, and
takes the next generation's number by an exclusive link (atomic on NFS and Lustre, no lock);
whoever comes second starts again from the winner's generation.
"""

from tracekit.store.damage import blaming, verify, verify_if_small
from tracekit.store.manifest import Manifest, ShardFile, SourceEntry, is_run
from tracekit.store.reader import (
    DEFAULT_MEMORY_BYTES,
    Run,
    arrow_table,
    beside,
    close_later,
    open_elsewhere,
    open_physical,
    open_run,
    parsed,
    plain_rows,
    release_freed,
    rows_or_table,
    warm,
)
from tracekit.store.selection import Selection
from tracekit.store.statement import rows_of
from tracekit.store.writer import ShardWriter, carry, write_table, writing

__all__ = [
    "DEFAULT_MEMORY_BYTES",
    "Manifest",
    "Run",
    "Selection",
    "ShardFile",
    "ShardWriter",
    "SourceEntry",
    "arrow_table",
    "beside",
    "blaming",
    "carry",
    "close_later",
    "is_run",
    "open_elsewhere",
    "open_physical",
    "open_run",
    "parsed",
    "plain_rows",
    "release_freed",
    "rows_of",
    "rows_or_table",
    "verify",
    "verify_if_small",
    "warm",
    "write_table",
    "writing",
]
