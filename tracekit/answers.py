"""What named queries answer of an open run: each is asked once, with no more made than it needs.

To make a view takes half a ms and a macro two, whether or not a query reads it: of a hundred of
them most queries need ten.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tracekit import catalog
from tracekit.errors import QueryError
from tracekit.runs import available_cpus
from tracekit.store import Run, beside

if TYPE_CHECKING:
    import duckdb

    from tracekit.catalog import Query

Rows = list[dict[str, Any]]

NO_PARAMS: Mapping[str, object] = {}
QUERY_THREADS = 4
"""Queries of a small run that run at a time: more share too little memory."""


class Answers:
    """What named queries answer of an open run, or of a connection with all views and macros."""

    def __init__(self, run: Run | duckdb.DuckDBPyConnection) -> None:
        self._run = run
        self._macros: set[str] = set()

    def con(self, queries: Iterable[Query] | None = None) -> duckdb.DuckDBPyConnection:
        """The connection with the views and macros of those queries; with all, unless named."""
        if not isinstance(self._run, Run):
            return self._run
        asked = None if queries is None else tuple(queries)
        reads = None if asked is None else [name for query in asked for name in query.reads]
        text = None if asked is None else "\n".join(query.sql for query in asked)
        con = self._run.prepare(reads)
        self._macros |= catalog.load_macros(
            con, text, may_have_hosts=self._run.may_have_hosts, loaded=self._macros
        )
        return con

    @property
    def _may_have_hosts(self) -> bool:
        return not isinstance(self._run, Run) or self._run.may_have_hosts

    def with_domains(self, filled: Iterable[str]) -> set[str]:
        """The same names of tables, and ``annotation:domain`` of every domain that has rows."""
        if "annotation" not in filled:
            return set(filled)
        con = self._run.prepare(["annotation"]) if isinstance(self._run, Run) else self._run
        return catalog.with_domains(con, set(filled))

    def rows(self, name: str) -> Rows:
        """The rows of a named query. QueryError where DuckDB refuses."""
        return _rows(self.con([catalog.find(name)]), name)

    @contextmanager
    def sharing(self, names: Sequence[str]) -> Iterator[None]:
        """Within it, what several of these queries derive is derived once."""
        con = self.con(map(catalog.find, names))
        with catalog.shared(con, names, may_have_hosts=self._may_have_hosts):
            yield

    def each(
        self, names: Sequence[str], params: Mapping[str, object] = NO_PARAMS
    ) -> Iterator[tuple[str, Rows | QueryError]]:
        """What each query answers, in order, given these parameters.

        A small run has one thread in DuckDB, because planning takes longer than running; then
        queries run beside each other, on as many cores as there are up to ``QUERY_THREADS``.
        """
        if not names:
            return
        con = self.con(map(catalog.find, names))
        ((threads,),) = con.execute("SELECT current_setting('threads')").fetchall()
        count = min(QUERY_THREADS, available_cpus()) if threads == 1 else 1
        yield from _side_by_side(con, names, count, params)


def _side_by_side(
    con: duckdb.DuckDBPyConnection, names: Sequence[str], count: int, params: Mapping[str, object]
) -> Iterator[tuple[str, Rows | QueryError]]:
    local = threading.local()

    def answer(name: str, con: duckdb.DuckDBPyConnection) -> Rows | QueryError:
        try:
            return _rows(con, name, params)
        except QueryError as error:
            return error

    def aside(name: str) -> Rows | QueryError:
        if not hasattr(local, "con"):
            local.con = beside(con)  # a connection serves one query at a time
        return answer(name, local.con)

    if count == 1:
        yield from ((name, answer(name, con)) for name in names)
        return
    with ThreadPoolExecutor(count, "query") as pool:
        yield from zip(names, pool.map(aside, names), strict=True)


def _rows(
    con: duckdb.DuckDBPyConnection, name: str, params: Mapping[str, object] = NO_PARAMS
) -> Rows:
    return catalog.run(con, name, **params).to_pylist()  # type: ignore[no-any-return]  # pyarrow is untyped
