"""Statements that run beside each other on connections to one database, in the order in which they
need each other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct

from tracekit.store import beside

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")


class Task(Struct, Generic[T], frozen=True):
    """Something with a name, which begins when the tasks that it needs are done.

    ``begin`` and ``end`` run in the thread of whoever asks; where ``begin`` says no, the task is
    done without its parts. These run in threads, each on a connection of its own; ``end`` is given
    what they made, in no order. ``parts_at_once``: so many of them, where all hold too much.
    """

    name: str
    parts: Sequence[Callable[[duckdb.DuckDBPyConnection], T]]
    needs: Collection[str] = ()
    parts_at_once: int = 1
    begin: Callable[[], bool] = lambda: True
    end: Callable[[Sequence[T]], object] = lambda made: None


def run_beside(
    con: duckdb.DuckDBPyConnection, tasks: Sequence[Task[T]], at_once: int
) -> Iterator[tuple[str, Sequence[T]]]:
    """Run tasks, ``at_once`` parts at a time: first those that most others wait for. Each task's
    name and what its parts made, as they end. Needs that no task has are there already.

    One at a time is what stands in order runs in order, in this thread and on this connection.
    """
    if at_once == 1:
        for task in tasks:
            if task.begin():
                alone = [part(con) for part in task.parts]
                task.end(alone)
                yield task.name, alone
        return
    by_name = {task.name: task for task in tasks}
    order = TopologicalSorter({task.name: by_name.keys() & task.needs for task in tasks})
    order.prepare()
    waiting = Counter(needed for task in tasks for needed in task.needs)
    places = {name: place for place, name in enumerate(by_name)}
    ready: list[tuple[int, int, str]] = []
    """A heap of tasks, by name, that may begin a part."""
    parts: dict[str, Iterator[Callable[[duckdb.DuckDBPyConnection], T]]] = {}
    made: dict[str, list[T]] = {}
    running: dict[Future[T], str] = {}
    local = threading.local()

    def run(part: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        if not hasattr(local, "con"):
            local.con = beside(con)  # a connection serves one statement at a time
        return part(local.con)

    with ThreadPoolExecutor(at_once, "query") as pool:
        while order.is_active():
            for name in order.get_ready():
                if not by_name[name].begin():
                    order.done(name)
                    continue
                made[name] = []
                parts[name] = iter(by_name[name].parts)
                for _ in range(by_name[name].parts_at_once):
                    heappush(ready, (-waiting[name], places[name], name))
            while ready and len(running) < at_once:
                *_, name = heappop(ready)
                for part in islice(parts[name], 1):  # or all its parts have begun
                    running[pool.submit(run, part)] = name
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                task = by_name[running.pop(ended)]
                made[task.name].append(ended.result())
                heappush(ready, (-waiting[task.name], places[task.name], task.name))
                if len(made[task.name]) == len(task.parts):
                    task.end(made[task.name])
                    order.done(task.name)
                    yield task.name, made.pop(task.name)
