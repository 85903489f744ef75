"""Members of communicators that the sources know by hash, from every member's own number."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa
import pytest

from tracekit.derive.communicators import Communicators, resolve
from tracekit.derive.groups import Group
from tracekit.values import group_id

Claim = tuple[int, str, int, int]
"""Rank of a source, communicator, its size, the number within."""


def resolved(
    claims: Sequence[Claim],
    listed: Sequence[Group] = (),
    uses: Sequence[tuple[str, str, str]] = (),
) -> Communicators:
    """``uses``: group, its name, operation, of source 0."""
    con = duckdb.connect()
    con.execute(
        "CREATE TABLE collective (source_id INT, group_id VARCHAR, group_size INT, group_rank INT,"
        " group_name VARCHAR, op VARCHAR)"
    )
    for group, name, op in uses:
        con.execute("INSERT INTO collective VALUES (0, ?, NULL, NULL, ?, ?)", [group, name, op])
    con.execute("CREATE TABLE process_group (group_id VARCHAR, comm_hash VARCHAR)")
    for source, (_, name, size, number) in enumerate(claims):
        con.execute(
            "INSERT INTO collective VALUES (?, ?, ?, ?, NULL, NULL)", [source, name, size, number]
        )
        con.execute("INSERT INTO process_group VALUES (?, 'ab')", [name])
    context = pa.table(
        {
            "source_id": pa.array(range(len(claims)), pa.int32()),
            "attempt": pa.array([1] * len(claims), pa.int32()),
            "rank": pa.array([rank for rank, _, _, _ in claims], pa.int32()),
        }
    )
    return resolve(con, context, {1: listed})


def test_all_members_together_name_the_group() -> None:
    found = resolved([(4, "nccl-a", 2, 1), (0, "nccl-a", 2, 0), (0, "nccl-b", 2, 0)])
    assert set(found.by_hash) == {(1, "nccl-a")}
    one = found.by_hash[1, "nccl-a"]
    assert (one.group_id, one.members) == (group_id([0, 4]), {0: 0, 1: 4})
    group = found.applied(1, Group("nccl-a", (), "a", size=2, is_complete=False))
    assert (group.ranks, group.is_complete, group.name) == ((0, 4), True, "a")
    other = Group("nccl-b", (), "b", size=2, is_complete=False)
    assert found.applied(1, other) is other
    assert found.table().num_rows == 2


def test_members_may_be_numbered_in_any_order() -> None:
    found = resolved([(0, "nccl-a", 3, 2), (1, "nccl-a", 3, 0), (2, "nccl-a", 3, 1)])
    assert found.by_hash[1, "nccl-a"].members == {0: 1, 1: 2, 2: 0}
    assert found.by_hash[1, "nccl-a"].group_id == group_id([0, 1, 2])


@pytest.mark.parametrize(
    "claims",
    [
        [(0, "nccl-a", 2, 0), (1, "nccl-a", 2, 0)],
        [(0, "nccl-a", 2, 0), (0, "nccl-a", 2, 1)],
        [(0, "nccl-a", 2, 0), (1, "nccl-a", 3, 1)],
        [(0, "nccl-a", 2, 0)],
    ],
)
def test_what_contradicts_itself_or_lacks_members_stays_open(claims: list[Claim]) -> None:
    assert resolved(claims).by_hash == {}
    assert resolved(claims).table().num_rows == 0


def test_a_listed_group_stands_in_for_members_without_an_export() -> None:
    listed = [
        Group("k", (0, 1, 2, 3), "5", size=4),
        Group("m", (4, 5, 6, 7), "6", size=4),
        Group("n", (1, 3), "7", size=2),
    ]
    one = resolved([(1, "nccl-a", 4, 1), (3, "nccl-a", 4, 3)], listed).by_hash[1, "nccl-a"]
    assert (one.group_id, one.name, one.members) == ("k", "5", {0: 0, 1: 1, 2: 2, 3: 3})
    # At another place in every listed group: none fits.
    assert resolved([(1, "nccl-a", 4, 2)], listed).by_hash == {}


def test_of_two_listed_groups_that_fit_none_is_taken() -> None:
    listed = [Group("k", (0, 1), "5", size=2), Group("m", (0, 2), "6", size=2)]
    assert resolved([(0, "nccl-a", 2, 0)], listed).by_hash == {}
    # The same ranks twice: the ranks are known, the name is not.
    twins = [Group("k", (0, 1), "5", size=2), Group("k", (0, 1), "6", size=2)]
    one = resolved([(0, "nccl-a", 2, 0)], twins).by_hash[1, "nccl-a"]
    assert (one.group_id, one.name) == ("k", None)


def test_of_two_groups_of_the_same_ranks_it_is_the_one_that_does_the_same() -> None:
    """Sends and receives are matched by the group's name: a pipeline's ranks are also the world."""
    pair = group_id([0, 1])
    claims = [(0, "nccl-a", 2, 0), (1, "nccl-a", 2, 1)]
    own = [("nccl-a", "ab", "send"), ("nccl-a", "ab", "recv")]
    pipeline = [(pair, "1", "send"), (pair, "1", "recv")]
    world = [(pair, "0", "all_reduce")]
    assert resolved(claims, uses=own + pipeline + world).by_hash[1, "nccl-a"].name == "1"
    assert resolved(claims, uses=own + world).by_hash[1, "nccl-a"].name is None
    twice = [(pair, "2", "send"), (pair, "2", "recv")]
    assert resolved(claims, uses=own + pipeline + twice).by_hash[1, "nccl-a"].name is None
