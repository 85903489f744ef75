"""What an ingestor is, what it is given, and where it writes.

An ingestor knows one family of file formats and the registry; it knows no query. It reads one
file at a time, streaming, and says what the file says on the file's own clock. Who the file
belongs to (rank, attempt, capture, clock) is derived later from all files together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol

from msgspec import Struct, field

if TYPE_CHECKING:
    import pyarrow as pa

Severity = Literal["info", "warning", "error"]
STEP_PATTERN = "step_pattern"
Status = Literal["ok", "partial", "empty", "unreadable", "unrecognised"]


class IngestOptions(Struct, frozen=True):
    """What the user may ask of an ingestor."""

    stacks: bool = False
    """Write python_frame rows (they are scanned either way). Part of the key of what is written."""
    threads_count: int = 1
    """Threads that one file may take: what is read of it is the same by any number of them."""


class SourceFile(Struct, frozen=True):
    """A file, or a member of an archive, to be read.

    ``path`` is what the user sees (``archive!member`` for members). ``open`` gives the bytes
    decompressed; it may be called more than once. ``file_bytes`` is the size as stored.
    """

    path: str
    name: str
    """Base name without compression suffixes: what a rank may be read from."""
    file_bytes: int
    mtime_ns: int
    open: Callable[[], BinaryIO]
    stored: str = ""
    """File on disk that holds the bytes of ``open``, where ``path`` is another (a report)."""
    part: str = ""
    """What of the file this source is, where an ingestor split it: ``path`` ends with !part."""
    export: str = ""
    """Of a report that only its program can read: the name of its export among the files."""
    columns: tuple[tuple[str, str], ...] = ()
    """What job.toml says of its columns: role or counter, and header; for tables of counters. Of a
    training log one pair: STEP_PATTERN and a regular expression."""


class Recognition(Struct, frozen=True):
    """What a file is, and why. ``ingestor`` is None where nothing here can read it."""

    kind: str
    reason: str
    ingestor: str | None = None
    status: Status = "ok"
    facts: dict[str, object] = field(default_factory=dict)
    """What the head already shows: columns of ``source``, such as file_rank or world_size."""


class Sink(Protocol):
    """Where an ingestor writes: one sink a source."""

    def write(self, table: str, rows: pa.Table) -> None:
        """Rows of a source table: its stored columns without source_id, any subset, any order.

        Columns that are absent become null. Types must match the registry or cast safely.
        """

    def count(
        self,
        counter: str,
        n: int = 1,
        *,
        severity: Severity = "warning",
        doc: str,
        place: int | None = None,
        shape: str | None = None,
    ) -> None:
        """Count something skipped, repaired or remarkable.

        Counts of one name add up; the first place and shape are kept. ``shape`` is a masked
        shape (letters to ``a``, digits to ``9``), never the text itself.
        """

    def fact(self, **columns: object) -> None:
        """Facts about the source: columns of the ``source`` table. Later ones win."""


_NO_HOSTS = frozenset(
    (
        "", "-", "--", "?", "(none)", "(null)", "localhost", "localhost.localdomain", "n/a", "na",
        "nan", "none", "not available", "not found", "not supported", "null", "unknown",
        "unknown error", "insufficient permissions",
    )
)  # fmt: skip
NAME_MAX_LENGTH = 200
"""Longest name of a machine or port that is believed."""


def stated_host(text: str | None) -> str | None:
    """The machine that a text names; None where it says that there is none (N/A, localhost, -).

    nvidia-smi puts such words in brackets.
    """
    name = (text or "").strip().rstrip(".")
    bare = name[1:-1].strip() if name[:1] == "[" and name[-1:] == "]" else name
    if bare.lower() in _NO_HOSTS or name.lower() in _NO_HOSTS:
        return None
    return name[:NAME_MAX_LENGTH]


def write_columns(
    sink: Sink, table: str, columns: Mapping[str, Sequence[object] | pa.Array]
) -> None:
    """Write Python values as rows of a source table: the types are the registry's.

    For all that a file says: what does not fit (a number beyond 64 bits, infinity, half of a
    character, an absurd time) is left out and counted with its record's place; the rest is kept.
    """
    from tracekit import values

    rows, misfits = values.fitted(table, columns)
    values.tell(sink.count, rows, misfits)
    sink.write(table, rows)


class Ingestor(Protocol):
    """One family of file formats."""

    name: str
    version: int
    """Raised when the rows that it writes for the same bytes change."""

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Recognise a file by its first (decompressed) bytes and its name; None if it is not ours.

        ``Recognition.ingestor`` is None for files of this family that hold nothing to ingest.
        """

    def read(self, source: SourceFile, sink: Sink, options: IngestOptions) -> None:
        """Stream the file into the sink. One bad record never ends it.

        Sets the facts status, reason, producer, window_start_ns, ... at the end. Raises
        InputError only where nothing at all could be read.
        """


class Splitter(Protocol):
    """An ingestor whose files may each hold several ranks.

    The tables map one source to one rank, so such a file becomes several sources.
    """

    def folder_name(self, name: str, files_in_it: Collection[str]) -> str | None:
        """The name of the source that a folder of files is as a whole; None where it is none."""

    def split(self, source: SourceFile) -> list[SourceFile]:
        """The sources that the file is, each with its ``part``; the file itself if it is one.

        Never raises for what a file holds: reading says what is wrong with it.
        """
