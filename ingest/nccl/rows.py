"""Buffers of rows on their way to the sink."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeGuard

from tracekit.ingest.base import Sink, write_columns

FLUSH_ROWS = 50_000
"""Rows of one table that are held before they are written: bounds memory."""


class Rows:
    """Rows of one registry table, as tuples of some of its columns."""

    def __init__(self, sink: Sink, table: str, columns: Sequence[str]) -> None:
        self.sink = sink
        self.table = table
        self.columns = tuple(columns)
        self.rows: list[tuple[Any, ...]] = []
        self.written = 0

    def add(self, row: tuple[Any, ...]) -> None:
        """One row, its values in the order of the columns."""
        self.rows.append(row)
        if len(self.rows) >= FLUSH_ROWS:
            self.flush()

    @property
    def count(self) -> int:
        """Rows so far, written or not."""
        return self.written + len(self.rows)

    def flush(self) -> None:
        """Write what is held."""
        if not self.rows:
            return
        columns = dict(zip(self.columns, zip(*self.rows, strict=True), strict=True))
        self.written += len(self.rows)
        self.rows = []
        write_columns(self.sink, self.table, columns)


INT64_MAX = 2**63 - 1
MAX_DIGITS = 24
"""Longer numbers are not worked out: no column holds them, and that takes quadratic time."""
BEYOND = 1 << 64
"""Stands for those: more than any column holds."""
_CREDENTIAL = re.compile(r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{16,}|[A-Za-z0-9+/_=]{24,}")


def name_of(text: str) -> str:
    """A product's or plugin's name without what some other output left in it.

    Torn lines mix foreign words into names with blanks. No name of a GPU or plugin has 16 letters
    and digits in one piece; keys and tokens do.
    """
    return _CREDENTIAL.sub("***", text)


def as_int(text: bytes | str | None, base: int = 10) -> int | None:
    """A number as it stands; None for none.

    Nothing here says how large it may be: what no column holds is counted where rows are written.
    """
    if not text:
        return None
    try:
        return int(text, base) if len(text) <= MAX_DIGITS else BEYOND if text.isdigit() else None
    except ValueError:
        return None


def is_held(value: int | None) -> TypeGuard[int]:
    """Whether it is a number of at most 64 bits."""
    return value is not None and -INT64_MAX - 1 <= value <= INT64_MAX


def pointer(text: bytes | None) -> int | None:
    """A pointer as ``%p`` prints it; None for none."""
    if not text:
        return None
    try:
        value = int(text, 16)
    except ValueError:
        return None
    return value if 0 <= value < 2**64 else None


def pci(text: bytes | None) -> str | None:
    """NCCL's busId (a hex number: domain, bus, device, function) as dddddddd:bb:dd.f."""
    value = pointer(text)
    if value is None or value >> 52:
        return None
    return f"{value >> 20:08x}:{value >> 12 & 255:02x}:{value >> 4 & 255:02x}.{value & 15:x}"


def seconds_ns(text: bytes | str | None) -> int | None:
    """Decimal seconds as whole ns, exactly; None for no number."""
    if text is None:
        return None
    words = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    whole, _, part = words.partition(".")
    if not whole.isdecimal() or (part and not part.isdecimal()) or len(whole) > 9:
        return None
    return int(whole) * 10**9 + int(part[:9].ljust(9, "0") if part else 0)
