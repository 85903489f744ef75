"""Something asked of many runs, where a bad one is a reason and stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

from tracekit.cluster import FailedTaskError, LostWorkerError
from tracekit.errors import TracekitError
from tracekit.logs import as_parent
from tracekit.runs.execute import ended_by_interrupts

Of = TypeVar("Of")
T = TypeVar("T")


def in_turn(ask: Callable[[Of], T], asked: Sequence[Of]) -> Iterator[tuple[Of, T | str]]:
    """Each with its answer, or with the reason why there is none."""
    for each in asked:
        try:
            yield each, ask(each)
        except Exception as error:  # one bad run never stops the night
            yield each, reason(error)


def in_processes(
    ask: Callable[[Of], T], asked: Sequence[Of], workers: int
) -> Iterator[tuple[Of, T | str]]:
    """As ``in_turn``, spread over processes; whoever kills one is found by asking alone."""
    left: list[Of] = []
    with _pool(workers) as pool:
        for each, future in [(e, pool.submit(ask, e)) for e in asked]:
            try:
                yield each, future.result()
            except BrokenProcessPool:
                left.append(each)
            except Exception as error:
                yield each, reason(error)
    for each in left:
        with _pool(1) as pool:
            try:
                yield each, pool.submit(ask, each).result()
            except Exception as error:
                yield each, reason(error)


def reason(error: BaseException) -> str:
    """Why there is no answer, in a line."""
    if isinstance(error, (BrokenProcessPool, LostWorkerError)):
        return "its process was killed: out of memory?"
    if isinstance(error, TracekitError):
        return error.message
    kind = error.kind if isinstance(error, FailedTaskError) else type(error).__name__
    return f"internal error, a bug of tracekit: {kind}"


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    with (
        ProcessPoolExecutor(
            workers, mp_context=get_context("spawn"), initializer=as_parent
        ) as pool,
        ended_by_interrupts(pool),
    ):
        yield pool
