"""What named queries answer of an open run: what was answered before is kept, and to ask the rest
no more is made than they need.

To make a view takes half a ms and a macro two, whether or not a query reads it: of a hundred of
them most queries need ten.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tracekit import catalog, macros, sharing
from tracekit.errors import QueryError
from tracekit.kept import Figure, Kept, Rows
from tracekit.runs import available_cpus
from tracekit.schema import TABLES
from tracekit.store import Run
from tracekit.tasks import Task, run_beside

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tracekit.query_file import Query

F = TypeVar("F", bound=Figure)

NO_PARAMS: Mapping[str, object] = {}
_ASKS_WHAT_THERE_IS = re.compile(
    r"information_schema|duckdb_|pg_|sqlite_|show|describe|summarize|pragma", re.IGNORECASE
)
ACTIVITY = frozenset(("activity_period", "activity_step", "counter_statement"))
ACTIVITY_READS = ("clock", "device", "gpu_sample", "net_sample")
MANY_QUERIES = 10
"""From so many queries on what they read of a small run is held in memory."""
MANY_ROWS = 10_000
"""Rows of one answer beyond which it stays a table, which is not kept."""
QUERY_THREADS = 4
"""Queries of a small run that run at a time: more share too little memory."""


class Answers:
    """What named queries answer of an open run, or of a connection with all views and macros."""

    def __init__(self, run: Run | duckdb.DuckDBPyConnection) -> None:
        self._run = run
        self._macros: dict[str, str] = {}
        self._is_activity_seen = False
        self._expected: tuple[str, ...] = ()
        self._large: dict[str, pa.Table] = {}
        self._underived: list[Task[bool]] = []

    def con(self, queries: Iterable[Query] | None = None) -> duckdb.DuckDBPyConnection:
        """The connection with the views and macros of those queries; with all, unless named."""
        con = self._run
        if isinstance(con, Run):
            asked = None if queries is None else tuple(queries)
            texts = None if asked is None else [query.sql for query in asked]
            con = self._with_macros(self._with_tables(con, asked), texts)
        for _ in self._run_beside(con, self._take_underived()):
            pass
        return con

    def _with_tables(self, run: Run, asked: Sequence[Query] | None) -> duckdb.DuckDBPyConnection:
        """The connection with the views of those queries; with all, unless named."""
        reads = None if asked is None else [name for query in asked for name in query.reads]
        self._see_selected_activity(reads)
        for_many = asked is not None and len(asked) >= MANY_QUERIES
        return run.prepare(reads, for_many=for_many)

    def _see_selected_activity(self, reads: Collection[str] | None) -> None:
        """The rhythm of the selected readings instead of all: once, where a query asks for it.

        A run keeps that of all, and only a job without traces has one.
        """
        run = self._run
        assert isinstance(run, Run)  # noqa: S101  # a connection has nothing selected
        is_asked = reads is None or not ACTIVITY.isdisjoint(reads)
        if self._is_activity_seen or not is_asked or "activity_period" not in run.tables:
            return
        self._is_activity_seen = True
        if not run.selection.is_empty():
            from tracekit.derive.activity import selected_tables

            run.put(selected_tables(run.prepare(ACTIVITY_READS)))

    def _with_macros(
        self, con: duckdb.DuckDBPyConnection, text: str | Iterable[str] | None
    ) -> duckdb.DuckDBPyConnection:
        assert isinstance(self._run, Run)  # noqa: S101  # a connection has all macros
        hosts = self._run.may_have_hosts
        con.begin()  # a quarter of a macro's time is the end of a transaction of its own
        try:
            made = catalog.load_macros(con, text, may_have_hosts=hosts, loaded=self._macros)
        except BaseException:
            con.rollback()
            raise
        con.commit()
        self._macros |= made
        return con

    def con_naming(self, text: str) -> duckdb.DuckDBPyConnection:
        """The connection with the views and macros that a statement names.

        With all where it may ask what there is, which names nothing.
        """
        if not isinstance(self._run, Run) or _ASKS_WHAT_THERE_IS.search(text):
            return self.con()
        text = text.lower()
        used = macros.used_by(text)
        words = set(re.findall(r"\w+", text)).union(*(macros.macros()[m].reads for m in used))
        self._see_selected_activity(words)
        con = self._run.prepare([table.name for table in TABLES if table.name in words])
        return self._with_macros(con, text)

    def put(self, name: str, rows: pa.Table) -> None:
        """Let a macro without arguments give these rows, which somebody derived elsewhere."""
        assert isinstance(self._run, Run)  # noqa: S101  # a connection has all macros
        sharing.put(self._run.prepare(()), name, rows, self._macros)

    @cached_property
    def kept(self) -> Kept | None:
        """What was answered before; nothing is known of a connection's."""
        return Kept(self._run) if isinstance(self._run, Run) else None

    def with_domains(self, filled: Collection[str]) -> set[str]:
        """The same names of tables, and ``annotation:domain`` of every domain that has rows."""
        if "annotation" not in filled:
            return set(filled)

        def asked() -> list[str]:
            con = self._run
            if isinstance(con, Run):  # whoever asks this has many queries, most of them of ranges
                con = con.prepare(["annotation"], for_many=True)
            return sorted(catalog.with_domains(con, filled))

        return set(self.figure("domains", "VARCHAR[]", asked))

    def figure(self, name: str, type_: str, ask: Callable[[], F]) -> F:
        """What ``ask`` makes of this run, of a DuckDB type; ``name`` says what that is."""
        if self.kept is None:
            return ask()
        return cast("F", self.kept.figure(name, type_, ask))

    def rows(self, name: str) -> Rows:
        """The rows of a named query. QueryError where DuckDB refuses."""
        ((_, answer),) = self.each([name])
        if isinstance(answer, QueryError):
            raise answer
        return answer

    @contextmanager
    def sharing(self, names: Iterable[str]) -> Iterator[None]:
        """Within it, what several of these queries derive is derived once; at its end, what
        expected ones derive of the same is there too, so these are asked."""
        names = [n for n in names if self.kept_rows(n) is None]
        if not names:
            yield
            return
        run = self._run if isinstance(self._run, Run) else None
        hosts = run is None or run.may_have_hosts
        unknown = [n for n in self._expected if not self._is_known(n)]
        also = sharing.sharing_with(names, unknown, may_have_hosts=hosts)
        queries = [catalog.find(name) for name in (*names, *also)]
        with ExitStack() as scope:
            if run is not None and run.is_small:
                con = self._with_tables(run, queries)
                with self._planned_briefly():
                    sharing.share(con, [*names, *also], self._macros, may_have_hosts=hosts)
            else:
                held = set(self._macros)  # whoever asked for these may hold the connection
                con = self.con(queries)
                loaded = None if run is None else self._macros
                scope.enter_context(
                    sharing.shared(
                        con,
                        [*names, *also],
                        may_have_hosts=hosts,
                        loaded=loaded,
                        held=held,
                        later=self._underived,
                    )
                )
                scope.callback(self._underived.clear)
            yield
            for name in also:
                with suppress(QueryError):  # whoever asks for it is told why
                    answer = self.long(name)
                    if not isinstance(answer, list):
                        self._large[name] = answer

    def expect(self, names: Iterable[str]) -> None:
        """Queries that will be asked, with ``long``, when others have been."""
        self._expected = tuple(names)

    def _is_known(self, name: str) -> bool:
        return name in self._large or self.kept_rows(name) is not None

    def long(self, name: str) -> Rows | pa.Table:
        """The rows of a named query that may have many: then as a table, and not kept, because a
        million pairs of ranks as objects would take a gigabyte. QueryError where DuckDB refuses."""
        known = self.kept_rows(name)
        if known is not None:
            return known
        if name in self._large:
            return self._large.pop(name)
        con = self.con([catalog.find(name)])
        with self._planned_briefly():
            answer = catalog.few_rows(con, name, NO_PARAMS, MANY_ROWS)
        if isinstance(answer, list):
            self.keep(name, NO_PARAMS, answer)
        return answer

    def each(
        self, names: Sequence[str], params: Mapping[str, object] = NO_PARAMS
    ) -> Iterator[tuple[str, Rows | QueryError]]:
        """What each query answers, in order, given these parameters.

        A small run has one thread in DuckDB, because planning takes longer than running; then
        queries run beside each other, on as many cores as there are up to ``QUERY_THREADS``.
        """
        kept = {name: self.kept_rows(name, params) for name in names}
        asked = self._asked([name for name in names if kept[name] is None], params)
        for name in names:
            rows = kept[name]
            if rows is not None:
                yield name, rows
                continue
            _, answer = next(asked)
            if not isinstance(answer, QueryError):
                self.keep(name, params, answer)
            yield name, answer

    def save(self) -> None:
        """Keep what was asked for the next time, where the run may be written."""
        if self.kept is not None:
            self.kept.save()

    def keep(self, name: str, params: Mapping[str, object], rows: Rows) -> None:
        """Keep the rows of a query that was asked elsewhere."""
        if self.kept is not None:
            self.kept.add(catalog.find(name), params, rows)

    def kept_rows(self, name: str, params: Mapping[str, object] = NO_PARAMS) -> Rows | None:
        """The rows of a named query, if they are known without asking."""
        return None if self.kept is None else self.kept.rows(catalog.find(name), params)

    def _asked(
        self, names: Sequence[str], params: Mapping[str, object]
    ) -> Iterator[tuple[str, Rows | QueryError]]:
        if not names:
            return
        tasks: list[Task[Any]] = self._take_underived()
        con = self.con(map(catalog.find, names))
        hosts = not isinstance(self._run, Run) or self._run.may_have_hosts
        for name in names:
            needs = sharing.needs(name, may_have_hosts=hosts) if tasks else ()
            tasks.append(_task(name, needs, params))
        done: dict[str, Rows | QueryError] = {}
        left = deque(names)
        with self._planned_briefly():
            for name, (answer, *_) in self._run_beside(con, tasks):
                done[name] = answer
                while left and left[0] in done:
                    yield left[0], done.pop(left.popleft())

    def _take_underived(self) -> list[Task[Any]]:
        """What is still to be derived once, for whoever runs it."""
        taken = self._underived.copy()
        self._underived.clear()
        return taken

    def _run_beside(
        self, con: duckdb.DuckDBPyConnection, tasks: Sequence[Task[Any]]
    ) -> Iterator[tuple[str, Sequence[Any]]]:
        """Run tasks on as many cores as there are up to ``QUERY_THREADS``; one at a time where a
        statement has several threads."""
        if not tasks:
            return iter(())
        ((threads,),) = con.execute("SELECT current_setting('threads')").fetchall()
        return run_beside(con, tasks, min(QUERY_THREADS, available_cpus()) if threads == 1 else 1)

    def _planned_briefly(self) -> AbstractContextManager[None]:
        return self._run.planned_briefly() if isinstance(self._run, Run) else nullcontext()


def _task(
    name: str, needs: Collection[str], params: Mapping[str, object]
) -> Task[Rows | QueryError]:
    def answer(con: duckdb.DuckDBPyConnection) -> Rows | QueryError:
        try:
            return catalog.rows(con, name, params)
        except QueryError as error:
            return error

    return Task(name, [answer], needs)
