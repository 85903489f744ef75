"""Blocks that go round a ring: with whom a rank exchanges them is read, matched and replayed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tracekit
from kineto_events import step, trace, x
from tracekit import replays
from tracekit.whatif.collectives import CollectiveReplay

RANKS, STEPS, BLOCKS = 4, 6, 4
SLOW = 2
SHAPES = {"Input Dims": [[1000]], "Input type": ["float"]}


def ring(
    folder: Path, slow_ms: float, *, peers: bool = True, groups: int = 1, offset: int = 0
) -> float:
    """Traces of gloo on CPUs: each rank computes on a block for 10 ms (``SLOW`` for ``slow_ms``),
    sends it to the next rank and waits for that of the one before it; all reduce what they have
    computed of it at last. ``offset`` is what their numbers are beyond the job's. The length of a
    step in ms."""
    events: dict[int, list[dict[str, Any]]] = defaultdict(list)
    now = dict.fromkeys(range(RANKS), 0.0)
    for at_step in range(STEPS):
        begin = dict(now)
        for _ in range(BLOCKS):
            done = {r: t + 1000 * (slow_ms if r == SLOW else 10) for r, t in now.items()}
            for r, ready in done.items():
                before, after = (r - 1) % RANKS, (r + 1) % RANKS
                got = max(ready, done[before]) + 400
                events[r].append(x("cpu_op", "aten::mm", now[r], ready - now[r]))
                for name, at, peer in (("send", ready, after), ("recv_", ready + 50, before)):
                    number = str((peer + offset) % RANKS)
                    events[r] += message(name, at, got, number if peers else None)
                now[r] = got + 100
        last = max(now.values()) + 4000
        for r in now:
            events[r].append(x("cpu_op", "aten::mm", now[r], 2000))
            now[r] += 2000
            wait = x("user_annotation", "gloo:all_reduce", now[r], last - now[r], tid=2, **SHAPES)
            events[r] += [wait, step(at_step, begin[r], last + 100 - begin[r])]
            now[r] = last + 100
    write(folder, events, groups)
    return now[0] / STEPS / 1000


def message(name: str, at: float, end: float, peer: str | None) -> list[dict[str, Any]]:
    """What asks for a message, and the range of gloo's that lasts until it is done."""
    told = {"Concrete Inputs": ["", "", peer, "0"]} if peer is not None else {}
    return [
        x("cpu_op", f"c10d::{name}", at, 40, **told),
        x("user_annotation", f"gloo:{name.rstrip('_')}", at + 20, end - at - 20, **SHAPES),
    ]


def write(folder: Path, events: Mapping[int, list[dict[str, Any]]], groups: int = 1) -> None:
    folder.mkdir()
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": RANKS, "ranks": [*range(RANKS)]}
    for r in range(RANKS):
        info = {"rank": r, "world_size": RANKS, "pg_count": groups, "pg_config": [group]}
        text = trace(events[r], distributedInfo=info, baseTimeNanoseconds=1_784_000_000 * 10**9)
        (folder / f"rank{r}.json").write_bytes(text)


@pytest.mark.slow  # another job through the same lines
def test_what_a_slow_rank_of_a_ring_costs(tmp_path: Path) -> None:
    cost_ms = ring(tmp_path / "slow", 16) - ring(tmp_path / "healthy", 10)
    with tracekit.open(tmp_path / "slow") as run:
        pairs = run.query("match_coverage").filter(method="pair")
        assert pairs["is_trusted"].all() and len(pairs) == RANKS
        (found,) = [f for f in run.diagnose().findings if f.rule == "late-rank"]
    assert found.scope.ranks == (SLOW,)
    assert found.impact.s_per_step == pytest.approx(cost_ms / 1000, rel=0.05)
    assert found.impact.method == "replay"
    with tracekit.open(tmp_path / "healthy") as run:
        assert run.diagnose().document.verdict.kind == "inherent"


def posted_ring(folder: Path, pause_ms: float) -> float:
    """The same with both messages asked for before a rank computes, and awaited behind that, the
    sent one first: gloo holds it until the receiver asks. ``SLOW`` pauses between the third step's
    last call and its end; in the step behind that the rank before it has more to do in the last
    block, so that all depends on when its message was gone. The length of a step in ms."""
    events: dict[int, list[dict[str, Any]]] = defaultdict(list)
    now = dict.fromkeys(range(RANKS), 0.0)
    for at_step in range(STEPS):
        begin = dict(now)
        for block in range(BLOCKS):
            asked = dict(now)
            for r, since in asked.items():
                before, after = (r - 1) % RANKS, (r + 1) % RANKS
                has_more = (at_step, block, r) == (3, BLOCKS - 1, SLOW - 1)
                work = 30_000 if has_more else 10_000
                events[r].append(x("cpu_op", "aten::mm", since + 100, work))
                sent = max(since + work + 200, asked[after] + 300)
                got = max(sent, asked[before] + 300) + 100
                events[r] += message("send", since, sent, str(after))
                events[r] += message("recv_", since + 50, got, str(before))
                now[r] = got + 100
        last = max(now.values()) + 4000
        for r in now:
            wait = x("user_annotation", "gloo:all_reduce", now[r], last - now[r], tid=2, **SHAPES)
            now[r] = last + 100 + (1000 * pause_ms if r == SLOW and at_step == 2 else 0)
            events[r] += [wait, step(at_step, begin[r], now[r] - begin[r])]
    write(folder, events)
    return max(now.values()) / STEPS / 1000


def test_a_message_that_its_receiver_asks_for_late_costs_what_the_receiver_does(
    tmp_path: Path,
) -> None:
    """The ranks before it in the ring stand still for their messages to it, and what they receive
    is asked for behind that: no transfer took so long."""
    healthy_ms = posted_ring(tmp_path / "healthy", 0)
    paused_ms = posted_ring(tmp_path / "paused", 300)
    # A sixth of the pause, less what the longer block would have held up in any case.
    assert paused_ms == pytest.approx(healthy_ms + 48.35, rel=0.01)
    with tracekit.open(tmp_path / "paused") as run:
        replay = replays.replay_of_calls(run.con)
    assert isinstance(replay, CollectiveReplay)
    assert replay.step_s == pytest.approx(paused_ms / 1000, rel=0.001)  # it comes back
    assert replay.step_s_without_work([SLOW]) == pytest.approx(healthy_ms / 1000, rel=0.05)


@pytest.mark.parametrize("told", [{"peers": False}, {"groups": 2, "offset": 1}])
def test_nobody_is_matched_where_the_other_side_is_not_known(
    told: dict[str, Any], tmp_path: Path
) -> None:
    """Without recorded inputs; and where the number counts within a group that is not listed, as
    senders and receivers show that do not agree."""
    ring(tmp_path / "slow", 16, **told)
    with tracekit.open(tmp_path / "slow") as run:
        pairs = run.query("match_coverage").filter(method="pair")
        assert not pairs["is_trusted"].any() and len(pairs) == 1


def test_beside_groups_that_are_not_listed_numbers_count_where_all_agree(tmp_path: Path) -> None:
    ring(tmp_path / "slow", 16, groups=2)
    with tracekit.open(tmp_path / "slow") as run:
        pairs = run.query("match_coverage").filter(method="pair")
        assert pairs["is_trusted"].all() and len(pairs) == RANKS
