"""What needs much memory is derived in parts: of some ranks, or of some steps of one rank."""

from __future__ import annotations

import random
from itertools import pairwise

import duckdb
import pytest
from source_tables import create_table

from soaks import soak
from tracekit import sharing


def _nested(rng: random.Random, first_ns: int, last_ns: int, depth: int) -> list[tuple[int, int]]:
    """Starts and durations of a thread's events: within each other or beside each other."""
    found: list[tuple[int, int]] = []
    at = first_ns
    while depth and (start := at + rng.choice([0, 0, 3, rng.randrange(60)])) < last_ns:
        end = min(start + rng.randrange(1, 200), last_ns)
        found += [(start, end - start), *_nested(rng, start, end, depth - 1)]
        at = end
    return found


@pytest.mark.parametrize("seed", soak(range(12), fast=3))
def test_what_a_rank_did_is_the_same_a_few_steps_at_a_time(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever lies across the end of a step, begins or ends at it, or lies between two."""
    rng = random.Random(seed)  # noqa: S311  # repeatable rows, no secret
    base: dict[str, object] = {"source_id": 0, "rank": 0, "attempt": 1, "capture_id": 0}
    steps, ops, ranges, kernels = [], [], [], []
    borders = [0, 200, 400, 600, 650, 900, 1100, 1300]
    for number, (start, end) in enumerate(pairwise(borders)):
        if number != 3:  # a hole: what lies there is of no step
            steps.append({**base, "step": number, "start_ns": start, "dur_ns": end - start,
                          "is_warmup": number == 5})  # fmt: skip
    for thread, depth in ((1, 3), (2, 2)):
        for place, (start, dur) in enumerate(_nested(rng, -50, 1400, depth)):
            row = {**base, "place": 1000 * thread + place, "thread": thread, "start_ns": start,
                   "dur_ns": dur, "name": rng.choice(["a", "b", "c10d::x"])}  # fmt: skip
            if rng.random() < 0.7:
                ops.append({**row, "category": rng.choice(["operator", "runtime"])})
            elif thread == 1:
                ranges.append({**row, "domain": rng.choice(["user", "collective"])})
    for place, start in enumerate(rng.choices([*borders, *range(0, 1400, 7)], k=30)):
        kernels.append({**base, "place": 9000 + place, "start_ns": start, "dur_ns": 5, "name": "k",
                        "category": "kernel", "class": "compute"})  # fmt: skip
    of_table = (("host_op", ops), ("annotation", ranges), ("step", steps), ("gpu_op", kernels))
    for name, rows in of_table:
        create_table(con, name, rows)
    whole = con.execute("SELECT * FROM time_spent() ORDER BY ALL").fetchall()
    assert len(whole) > 20
    monkeypatch.setattr(sharing, "MAX_EVENTS", (len(ops) + len(ranges) + len(kernels)) // 4)
    parts = sharing.parts_of(con)
    assert len(parts) > 3
    found = [
        row
        for part in parts
        for row in con.execute(f"SELECT * FROM time_spent_of({str([*part])[1:-1]})").fetchall()
    ]
    assert sorted(found, key=str) == sorted(whole, key=str)


def test_a_rank_is_cut_between_steps_only(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve events in steps 0 to 10, 10 to 20, 15 to 30 and 30 to 40: none at 15. A rank without
    steps is not cut, nor where there are fewer steps than parts."""
    steps = [{"rank": 4, "step": n, "start_ns": a, "dur_ns": b - a}
             for n, (a, b) in enumerate([(0, 10), (10, 20), (15, 30), (30, 40)])]  # fmt: skip
    ops = [{"rank": rank, "start_ns": n} for rank in (4, 5) for n in range(12)]
    create_table(con, "step", steps)
    create_table(con, "host_op", [*ops, {"rank": 6, "start_ns": 1}])
    monkeypatch.setattr(sharing, "MAX_EVENTS", 4)
    first_ns, last_ns = sharing.FIRST_NS, sharing.LAST_NS
    assert sharing.parts_of(con) == [
        (4, 4, first_ns, 10), (4, 4, 10, 30), (4, 4, 30, last_ns),
        (5, 5, first_ns, last_ns), (6, 6, first_ns, last_ns),
    ]  # fmt: skip
    monkeypatch.setattr(sharing, "MAX_EVENTS", 1)
    assert [p[2:] for p in sharing.parts_of(con)[:3]] == [(first_ns, 10), (10, 30), (30, last_ns)]
    monkeypatch.setattr(sharing, "MAX_EVENTS", 12)
    assert [p[:2] for p in sharing.parts_of(con)] == [(4, 4), (5, 5), (6, 6)]
