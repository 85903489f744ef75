"""On the host a send lasts until somebody asks for it: when it is its sender who waits."""

from __future__ import annotations

import duckdb
import pytest
from source_tables import create_table


@pytest.mark.parametrize(
    ("asked_ns", "exposed"),
    [
        (95, [(40, 100)]),  # the receiver asks when the sender has long stood still
        (41, [(40, 100)]),
        (40, []),  # it had asked before: what the sender stands still for is its own
        (5, []),
    ],
)
def test_a_sender_waits_if_it_stands_still_before_the_receiver_asks(
    con: duckdb.DuckDBPyConnection, asked_ns: int, exposed: list[tuple[int, int]]
) -> None:
    """It computes until 40, asks for its send, and goes on at 100."""
    call = {"attempt": 1, "capture_id": 0, "timeline": "host"}
    create_table(
        con,
        "collective",
        [
            call | {"source_id": 0, "rank": 0, "place": 1, "op": "send", "start_ns": 10,
                    "dur_ns": 90},
            call | {"source_id": 1, "rank": 1, "place": 1, "op": "recv", "start_ns": asked_ns,
                    "dur_ns": 100 - asked_ns},
        ],
    )  # fmt: skip
    create_table(
        con,
        "collective_match",
        [
            {"source_id": source, "place": 1, "instance_id": 0, "is_trusted": True}
            for source in (0, 1)
        ],
    )
    operators = [("aten::mm", 0, 10), ("c10d::send", 10, 2), ("aten::mm", 12, 28)]
    create_table(
        con,
        "host_op",
        [
            {"source_id": 0, "attempt": 1, "rank": 0, "capture_id": 0, "place": 10 + at,
             "category": "operator", "name": name, "thread": 1, "start_ns": at, "dur_ns": dur}
            for name, at, dur in (*operators, ("aten::mm", 100, 20))
        ],
    )  # fmt: skip
    found = con.execute(
        "SELECT start_ns, end_ns FROM exposed_calls() WHERE rank_of(key) = 0 ORDER BY ALL"
    ).fetchall()
    assert found == exposed
