"""Steps written by hand, as the rows of ``step_calls``: what they call, and for how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

KERNELS = ("kernel", "communication")


@dataclass(frozen=True)
class Made:
    """A call: of a kernel its time on the device, of an operator its own on the host."""

    kind: str
    name: str
    own_us: int
    inside: tuple[Made, ...] = ()


def op(name: str, *inside: Made, own_us: int = 10) -> Made:
    return Made("operator", name, own_us, inside)


def kernel(name: str, us: int = 100) -> Made:
    return Made("kernel", name, us)


def within(name: str, *inside: Made) -> Made:
    """A range."""
    return Made("range", name, 0, inside)


def rows(
    *calls: Made, steps_count: int = 1, rank: int = 0, stage: int | None = None
) -> list[dict[str, Any]]:
    """The same step several times, in the order in which the query gives it."""
    found = []
    for step in range(steps_count):
        numbered = [*_written(calls, 0)]
        for place, (call, start_us, end_us) in enumerate(numbered):
            is_kernel = call.kind in KERNELS
            found.append(
                {"attempt": 1, "rank": rank, "stage": stage, "source_id": rank, "step": step}
                | {"thread": 0, "kind": call.kind, "name": call.name, "place": place}
                | {"start_ns": start_us * 1000, "end_ns": end_us * 1000}
                | {"device_ns": call.own_us * 1000 if is_kernel else None}
            )
    return found


def _written(calls: Sequence[Made], at_us: int) -> Iterator[tuple[Made, int, int]]:
    for call in calls:
        if call.kind in KERNELS:
            yield call, at_us, at_us
            continue
        inside = list(_written(call.inside, at_us))
        end_us = max((end for _, _, end in inside), default=at_us) + call.own_us
        yield call, at_us, end_us
        yield from inside
        at_us = end_us
