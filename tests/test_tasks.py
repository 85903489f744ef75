"""Statements beside each other: order, how many at once, and what becomes of failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from tracekit.tasks import Task, run_beside


@pytest.fixture
def own() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as con:
        yield con


def ran(con: duckdb.DuckDBPyConnection, tasks: list[Task[Any]], at_once: int) -> list[str]:
    return [name for name, _ in run_beside(con, tasks, at_once)]


def task(name: str, *needs: str, **more: Any) -> Task[Any]:
    return Task(name, [lambda con: name], needs, **more)


@pytest.mark.parametrize("at_once", [1, 2])
def test_what_parts_make_is_told_with_the_name_of_their_task(
    own: duckdb.DuckDBPyConnection, at_once: int
) -> None:
    parts = [lambda con, n=n: con.execute(f"SELECT {n}").fetchall() for n in range(5)]
    ended: list[Any] = []
    tasks = [Task("numbers", parts, parts_at_once=2, end=ended.append), task("word")]
    made = {name: sorted(rows) for name, rows in run_beside(own, tasks, at_once)}
    assert made == {"numbers": [[(n,)] for n in range(5)], "word": ["word"]}
    assert [sorted(rows) for rows in ended] == [made["numbers"]]


def test_a_task_waits_for_those_it_needs_and_those_most_wait_for_come_first(
    own: duckdb.DuckDBPyConnection,
) -> None:
    began: list[str] = []

    def noted(name: str, *needs: str) -> Task[Any]:
        def begin() -> bool:
            began.append(name)
            return True

        return task(name, *needs, begin=begin)

    order = ran(own, [noted("asks", "late"), noted("late", "early"), noted("early", "else")], 2)
    assert order == began == ["early", "late", "asks"]

    first: list[str] = []
    gate = threading.Event()

    def part(name: str, wait: threading.Event | None = None) -> Task[Any]:
        def run(con: object) -> None:
            first.append(name)
            assert wait is None or wait.wait(10)
            if name == "needed":
                gate.set()

        return Task(name, [run], ["needed"] if name == "asks" else [])

    # Of what is ready the needed one begins beside the first, though it stands last.
    assert ran(own, [part("slow", gate), part("other"), part("asks"), part("needed")], 2)
    assert first.index("needed") < first.index("other")


def test_parts_run_beside_each_other_and_no_more_than_may(own: duckdb.DuckDBPyConnection) -> None:
    both = threading.Barrier(2)
    count, most = [0], [0]
    lock = threading.Lock()

    def meets(con: object) -> None:
        both.wait(10)  # nobody passes alone

    def alone(con: object) -> None:
        with lock:
            count[0] += 1
            most[0] = max(most[0], count[0])
        threading.Event().wait(0.001)
        with lock:
            count[0] -= 1

    ran(own, [Task("pair", [meets, meets], parts_at_once=2)], 2)
    ran(own, [Task("each", [alone] * 6)], 4)
    assert most == [1]


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_task_that_does_not_begin_is_done_without_its_parts(
    own: duckdb.DuckDBPyConnection, at_once: int
) -> None:
    def never(con: object) -> None:
        pytest.fail("it ran")

    tasks: list[Task[Any]] = [
        Task(
            "made already", [never], begin=lambda: False, end=lambda made: pytest.fail("it ended")
        ),
        task("asks", "made already"),
    ]
    assert ran(own, tasks, at_once) == ["asks"]


@pytest.mark.parametrize("at_once", [1, 2])
def test_what_a_part_raises_reaches_whoever_asked(
    own: duckdb.DuckDBPyConnection, at_once: int
) -> None:
    def fails(con: duckdb.DuckDBPyConnection) -> None:
        con.execute("SELECT * FROM missing")

    with pytest.raises(duckdb.CatalogException, match="missing"):
        ran(own, [Task("fails", [fails]), task("asks", "fails")], at_once)


def test_each_thread_has_a_connection_and_one_at_a_time_is_run_on_the_given_one(
    own: duckdb.DuckDBPyConnection,
) -> None:
    seen: list[duckdb.DuckDBPyConnection] = []
    tasks = [Task("parts", [seen.append, seen.append], parts_at_once=2)]
    ran(own, tasks, 1)
    assert seen == [own, own]
    seen.clear()
    ran(own, tasks, 2)
    assert own not in seen
