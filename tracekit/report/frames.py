"""Polars frames that show what strangers named as text, in a notebook and in a terminal.

Polars escapes what HTML would take for its own, and prints the rest as it is: a kernel's name could
turn the direction of a line or move the cursor. The values stay what they are.
"""

from __future__ import annotations

import polars as pl

from tracekit.wording import safe

_UNPRINTABLE = r"[\p{C}\p{Zl}\p{Zp}]"


class ShownFrame(pl.DataFrame):
    """A Polars frame whose looks are safe. What Polars makes of it may be one of its own again."""

    def __str__(self) -> str:
        return str(_printable(self))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self, *, _from_series: bool = False) -> str:
        return _printable(self)._repr_html_(_from_series=_from_series)


def shown(frame: pl.DataFrame) -> pl.DataFrame:
    """The same frame with safe looks."""
    return ShownFrame._from_pydf(frame._df)


def _printable(frame: pl.DataFrame) -> pl.DataFrame:
    """A plain frame in which everything unprintable is written as an escape."""
    columns = [_told(column) for column in pl.DataFrame._from_pydf(frame._df).get_columns()]
    return pl.DataFrame([column.alias(safe(column.name)) for column in columns])


def _told(column: pl.Series) -> pl.Series:
    if column.dtype == pl.String:
        texts = column
    elif "String" in str(column.dtype):  # in lists and structs, which Python writes with escapes
        texts = pl.Series(column.name, [None if v is None else str(v) for v in column.to_list()])
        if not texts.cast(pl.String).str.contains("\\", literal=True).any():
            return column
    else:
        return column
    if not texts.cast(pl.String).str.contains(_UNPRINTABLE).any():
        return texts
    return pl.Series(column.name, [None if v is None else safe(v) for v in texts])
