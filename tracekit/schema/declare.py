"""How a table is declared: columns, their units, and what many tables share."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    import pyarrow as pa

UNIT_SUFFIXES = {
    "_bytes_per_s": "bytes/s",
    "_flops_per_s": "FLOP/s",
    "_flops": "FLOP",
    "_ns": "ns",
    "_bytes": "bytes",
    "_count": "count",
    "_ratio": "0..1 unless said otherwise",
    "_celsius": "degrees Celsius",
    "_watts": "W",
    "_joules": "J",
    "_hertz": "Hz",
    "_ticks": "ticks of the source's clock",
}
"""Closed list of unit suffixes (longest first where one ends another)."""

IDENTITY_SOURCES = (
    "file",
    "name",
    "env",
    "log",
    "job_toml",
    "order",
    "behaviour",
    "assigned",
)
"""Where an inferred identity came from; the values of every ``*_source`` column."""

Sensitivity = Literal["none", "name", "secret"]
Kind = Literal["source", "derived"]


class Column(Struct, frozen=True):
    """One column: its DuckDB type, its meaning, and how careful to be with its values."""

    name: str
    type: str
    doc: str
    sensitivity: Sensitivity = "none"
    is_context: bool = False
    is_time: bool = False
    """A point in time on the row's clock: the view moves it by the clock's offset."""

    @property
    def unit(self) -> str | None:
        """The unit that the name's suffix declares, or None."""
        return next((u for s, u in UNIT_SUFFIXES.items() if self.name.endswith(s)), None)


class Table(Struct, frozen=True, dict=True):
    """One table: its grain (what one row is; the key) and its columns."""

    name: str
    kind: Kind
    doc: str
    grain: tuple[str, ...]
    columns: tuple[Column, ...]

    @cached_property
    def stored_columns(self) -> tuple[Column, ...]:
        """The columns that the Parquet files hold (all but the context columns)."""
        return tuple(c for c in self.columns if not c.is_context)

    def column(self, name: str) -> Column:
        """The column of that name; KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"{self.name}.{name}")

    def arrow_schema(self) -> pa.Schema:
        """Arrow schema of the stored columns, in registry order."""
        return self._arrow_schema

    @cached_property
    def _arrow_schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([pa.field(c.name, _arrow_type(c.type)) for c in self.stored_columns])


def _arrow_type(duckdb_type: str) -> pa.DataType:
    import pyarrow as pa

    if duckdb_type.endswith("[]"):
        return pa.list_(_arrow_type(duckdb_type[:-2]))
    return {
        "TINYINT": pa.int8(),
        "SMALLINT": pa.int16(),
        "INTEGER": pa.int32(),
        "BIGINT": pa.int64(),
        "UBIGINT": pa.uint64(),
        "DOUBLE": pa.float64(),
        "BOOLEAN": pa.bool_(),
        "VARCHAR": pa.string(),
    }[duckdb_type]


def col(name: str, type_: str, doc: str, sensitivity: Sensitivity = "none") -> Column:
    """A column that is no context and no point in time."""
    return Column(name, type_, doc, sensitivity)


def moment(name: str, doc: str) -> Column:
    """A point in time on the row's clock."""
    return Column(name, "BIGINT", doc, is_time=True)


def origin(name: str, what: str) -> Column:
    """The column that says where what was inferred came from."""
    return Column(name, "VARCHAR", f"Where {what} came from: {', '.join(IDENTITY_SOURCES)}.")


SOURCE_ID = col("source_id", "INTEGER", "The file (or archive member) of this row; see source.")
PLACE = col(
    "place",
    "BIGINT",
    "Where in the source: event ordinal, line or byte as source.place_kind says.",
)
CONTEXT = (
    Column("rank", "INTEGER", "Global rank of the source; null when unknown.", is_context=True),
    Column("attempt", "INTEGER", "Attempt (restart) of the job, from 1.", is_context=True),
    Column("capture_id", "INTEGER", "Capture window of the rank, from 0.", is_context=True),
    Column("clock_id", "INTEGER", "Clock that the row's times are on.", is_context=True),
    Column("host", "VARCHAR", "Canonical host; null when unknown.", "name", is_context=True),
)


def source_table(name: str, doc: str, grain: tuple[str, ...], *columns: Column) -> Table:
    """A table of what files say: its columns behind the file, its context and the place there."""
    return Table(name, "source", doc, grain, (SOURCE_ID, *CONTEXT, PLACE, *columns))


def derived_table(name: str, doc: str, grain: tuple[str, ...], *columns: Column) -> Table:
    """A table of what the whole run says."""
    return Table(name, "derived", doc, grain, columns)


ATTEMPT = col("attempt", "INTEGER", "Attempt (restart) of the job, from 1.")
COUNTED_ATTEMPT = col("attempt", "INTEGER", "Attempt of the job; null where no trace was given.")
RANK = col("rank", "INTEGER", "Global rank.")
CAPTURE = col("capture_id", "INTEGER", "Capture window of the rank, from 0.")
START = moment("start_ns", "Start.")
DUR = col("dur_ns", "BIGINT", "Duration, at least 0.")
PLACE_GRAIN = ("source_id", "place")
