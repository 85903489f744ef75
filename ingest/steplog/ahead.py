"""Work on what comes next while the last is still taken in: in threads, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


def ahead(
    make: Callable[[Given], Made], items: Iterable[Given], threads_count: int
) -> Iterator[Made]:
    """What ``make`` makes of each item, in their order; of at most ``threads_count`` + 1 at a time.

    Items are taken by the caller's thread. One thread is the caller's: nothing is made ahead.
    An exception is raised where the item's turn is.
    """
    if threads_count <= 1:
        yield from map(make, items)
        return
    with ThreadPoolExecutor(threads_count, "ahead") as pool:
        waiting = deque[Future[Made]]()
        try:
            for item in items:
                waiting.append(pool.submit(make, item))
                if len(waiting) > threads_count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for unmade in waiting:
                unmade.cancel()
