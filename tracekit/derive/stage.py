"""What a stage of ``derive`` is given, what it gives back, and what SQL may name meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec import Struct

from tracekit.derive import gpu_summary
from tracekit.schema import table
from tracekit.store import parsed

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tracekit.derive.matching import Numbering
    from tracekit.job import JobDescription

T = TypeVar("T")


class Given(Struct, frozen=True, dict=True):
    """What ``derive`` was asked, for every stage; its docstring says what each means."""

    con: duckdb.DuckDBPyConnection
    job: JobDescription | None
    attempt: int | None
    filled: Collection[str]
    folders: Mapping[int, str]
    notes: list[str]
    """What a reader of a report should know, in words, in order of the stages."""
    number: Numbering | None = None
    """Who numbers the calls of communicators; None: this process."""

    @cached_property
    def gpu_counters(self) -> pa.Table:
        """``gpu_counter_summary``, its times still on the files' own clocks. Samples may be most of
        a run, so they are looked through once for all who ask for nothing else of them."""
        return self.con.sql(gpu_summary.TEXT).to_arrow_table()

    @cached_property
    def gpu_names(self) -> pa.Table:
        """The names in ``gpu_sample``, each once: ``source_id``, ``node``, ``device_id``,
        ``nvml_index`` and ``time_source``."""
        with relations(self.con, gpu_counters=self.gpu_counters):
            return self.con.sql(
                "SELECT DISTINCT source_id, node, device_id, nvml_index, time_source "
                "FROM gpu_counters"
            ).to_arrow_table()


class Done:
    """The results of the stages so far, by their types."""

    def __init__(self) -> None:
        self._results: dict[type, Any] = {}

    def add(self, result: object) -> None:
        """A stage has ended."""
        self._results[type(result)] = result

    def get(self, kind: type[T]) -> T | None:
        """The result of a stage that is left out where its source tables are empty."""
        return self._results.get(kind)

    def of(self, kind: type[T]) -> T:
        """The result of an earlier stage."""
        result: T = self._results[kind]
        return result


class Stage(NamedTuple):
    """A step of ``derive``: a function of what is given and of earlier results to its own."""

    run: Callable[[Given, Done], object]
    reads: tuple[str, ...] = ()
    """Source tables that it asks."""
    writes: tuple[str, ...] = ()
    """Derived tables: the fields of its result that bear these names."""
    needs: tuple[str, ...] = ()
    """Without rows in any of these it is left out, and its tables are empty."""


class Relations:
    """Names that SQL may use within one block of ``relations``."""

    def __init__(self, con: duckdb.DuckDBPyConnection) -> None:
        self._con = con
        self._drops: list[Callable[[], object]] = []

    def add(self, name: str, rows: pa.Table) -> None:
        """Rows that are in memory."""
        self._con.register(name, rows)
        self._drops.append(lambda: self._con.unregister(name))

    def make(self, name: str, text: str) -> None:
        """The rows of a statement, kept because several ask for them."""
        self._con.execute(parsed(self._con, f"CREATE TEMP TABLE {name} AS {text}"))
        self._drops.append(lambda: self._con.execute(f"DROP TABLE {name}"))

    def drop(self) -> None:
        """All names."""
        while self._drops:
            self._drops.pop()()


@contextmanager
def relations(con: duckdb.DuckDBPyConnection, **rows: pa.Table) -> Iterator[Relations]:
    """Tables in memory under the names that a block's SQL gives them; none outlives the block."""
    named = Relations(con)
    try:
        for name, table in rows.items():
            named.add(name, table)
        yield named
    finally:
        named.drop()


def arrow(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of a derived table with the registry's stored columns; what a row lacks is null."""
    import pyarrow as pa

    schema = table(name).arrow_schema()
    return pa.table([pa.array([r.get(f.name) for r in rows], f.type) for f in schema], schema)
