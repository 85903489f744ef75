"""Which queries a diagnosis spares, by what others answered."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, cast

import pytest

from tracekit.diagnose import gather
from tracekit.rules.facts import JobFacts

if TYPE_CHECKING:
    from tracekit.answers import Answers


class Canned:
    """Answers that are given, and the names of what was asked."""

    def __init__(self, **rows: list[dict[str, object]]) -> None:
        self.given = rows
        self.asked: list[str] = []

    def sharing(self, names: Collection[str]) -> AbstractContextManager[None]:
        return nullcontext()

    def each(
        self, names: Collection[str], params: Mapping[str, object] = {}
    ) -> Iterator[tuple[str, list[dict[str, object]]]]:
        for name in names:
            self.asked.append(name)
            yield name, self.given.get(name, [])

    def rows(self, name: str) -> list[dict[str, object]]:
        return self.given.get(name, [])


@pytest.mark.parametrize(
    ("operation", "asked"),
    [
        ("all_reduce", {"gradient_rounds"}),
        ("reduce_scatter", {"gradient_rounds"}),
        ("all_gather", {"shard_gathers"}),
        ("broadcast", {"buffer_broadcasts"}),
        ("all_to_all", {"expert_load"}),
        ("reduce", set()),
    ],
)
def test_what_walks_one_operation_is_asked_where_it_was_called(
    operation: str, asked: set[str]
) -> None:
    answers = Canned(comm_summary=[{"op": operation, "attempt": 1}])
    gather(cast("Answers", answers), JobFacts(attempt=1))
    walks = {"gradient_rounds", "shard_gathers", "buffer_broadcasts", "expert_load"}
    assert walks.intersection(answers.asked) == asked
