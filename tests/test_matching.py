"""Matching collectives across ranks: by number, by order, by pair, and not at all."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from source_tables import database

from tracekit.derive import matching
from tracekit.derive.matching import Columns, number_part
from tracekit.derive.run import derive
from tracekit.job import JobDescription, Parallelism

MS = 1_000_000
Row = dict[str, Any]
SOURCE: Row = {
    "kind": "kineto",
    "status": "ok",
    "time_basis": "epoch",
    "host_name": "h",
    "window_start_ns": 0,
    "window_end_ns": 100_000 * MS,
}


def run(
    calls: list[Row],
    ranks: int,
    groups: Sequence[Row] = (),
    job: JobDescription | None = None,
    **source: Any,
) -> dict[str, pa.Table]:
    sources = [
        {
            **SOURCE,
            "source_id": rank,
            "path": f"rank{rank}.json",
            "file_rank": rank,
            **source,
        }
        for rank in range(ranks)
    ]
    given = {"source": sources, "collective": calls, "process_group": list(groups)}
    with database(given) as con:
        here = derive(con, job)
    with database(given) as con, pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "LEAST_HANDED", 1)
        assert derive(con, job, number=numbered_elsewhere) == here
    return here


def numbered_elsewhere(parts: Sequence[Columns]) -> Iterator[tuple[int, Columns, Any]]:
    """As a cluster does: each part by itself, the last first."""
    for which, columns in reversed([*enumerate(parts)]):
        yield which, *number_part(columns)


def test_communicators_are_dealt_out_whole_and_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six communicators, of which each part but the last holds a third of all calls at least."""
    calls = [
        c for g in range(6) for c in grouped([2 * g, 2 * g + 1], f"g{g}", 10, sequences=g % 2 == 1)
    ]
    monkeypatch.setattr(matching, "MAX_PARTS", 3)
    seen: list[list[int]] = []

    def counted(parts: Sequence[Columns]) -> Iterator[tuple[int, Columns, Any]]:
        seen.extend(sorted({*part["communicator"].tolist()}) for part in parts)
        return numbered_elsewhere(parts)

    sources = [
        {**SOURCE, "source_id": r, "path": f"rank{r}.json", "file_rank": r} for r in range(12)
    ]
    with database({"source": sources, "collective": calls}) as con:
        derive(con, number=counted)
    assert [len(part) for part in seen] == [2, 2, 2]
    assert len({i for part in seen for i in part}) == 6


def grouped(ranks: list[int], group: str, count: int, sequences: bool) -> list[Row]:
    return [
        {**row, "group_id": group, "sequence": i // len(ranks) if sequences else None}
        for i, row in enumerate(lockstep(ranks, count))
    ]


def call(rank: int, index: int, start: float, end: float, **facts: Any) -> Row:
    return {
        "source_id": rank,
        "place": index,
        "start_ns": int(start * MS),
        "dur_ns": int((end - start) * MS),
        "op": "all_reduce",
        "message_bytes": 1024,
        "dtype": "Float",
        "timeline": "device",
        "device": rank,
        "stream": 7,
        **facts,
    }


def lockstep(ranks: list[int], count: int, seed: int = 0, **facts: Any) -> list[Row]:
    """Calls of one communicator: everybody leaves 1 ms after the last has come."""
    rng = random.Random(seed)  # noqa: S311  # repeatable rows, no secret
    rows, now = [], 0.0
    for index in range(count):
        starts = [now + rng.random() * 5 for _ in ranks]
        end = max(starts) + 1
        sizes = {"message_bytes": 1024 * (1 + index % 3)} | facts
        rows += [call(r, index, s, end, **sizes) for r, s in zip(ranks, starts, strict=True)]
        now = end + 2 + rng.random() * 6
    return rows


def instances(result: dict[str, pa.Table]) -> dict[int, list[tuple[int, int]]]:
    found = defaultdict(list)
    for row in result["collective_match"].to_pylist():
        if row["is_trusted"]:
            found[row["instance_id"]].append((row["source_id"], row["place"]))
    return {key: sorted(members) for key, members in found.items()}


def reasons(result: dict[str, pa.Table]) -> set[str]:
    return {r["reason"] for r in result["collective_match"].to_pylist()}


def test_numbers_match_whatever_the_order_of_the_rows() -> None:
    rows = lockstep([0, 1, 2], 20, group_id="g", group_name="0", group_size=3)
    for row in rows:
        row["sequence"] = 500 + row["place"]
    random.Random(1).shuffle(rows)  # noqa: S311
    result = run(rows, 3)
    assert sorted(instances(result).values()) == [[(r, i) for r in range(3)] for i in range(20)]
    calls = result["collective_match"].to_pylist()
    assert {c["method"] for c in calls} == {"sequence"}
    assert {c["call_index"] for c in calls} == set(range(500, 520))


def test_without_a_group_the_world_is_found_by_its_calls() -> None:
    result = run(lockstep([0, 1, 2, 3], 20), 4)
    assert len(instances(result)) == 20
    (group,) = result["comm_group"].to_pylist()
    assert (group["ranks"], group["group_source"]) == ([0, 1, 2, 3], "behaviour")


@pytest.mark.parametrize("lost", [range(5), range(15, 20)])
def test_a_window_that_lacks_calls_at_an_end_is_aligned(lost: range) -> None:
    rows = [r for r in lockstep([0, 1], 20) if not (r["source_id"] == 1 and r["place"] in lost)]
    found = instances(run(rows, 2))
    assert all(len({place for _, place in members}) == 1 for members in found.values())
    assert sum(len(members) == 2 for members in found.values()) == 15


def test_misaligned_windows_of_equal_calls_on_two_clocks_are_matched_by_their_rhythm() -> None:
    rows = [{**r, "host": None} for r in lockstep([0, 1], 40, message_bytes=1024)]
    rows = [
        {k: v for k, v in r.items() if k != "host"}
        for r in rows
        if not (r["source_id"] == 0 and r["place"] < 4)
        and not (r["source_id"] == 1 and r["place"] >= 36)
    ]
    for row in rows:
        if row["source_id"] == 1:
            row["start_ns"] += 300 * MS
    found = instances(run(rows, 2, host_name=None))
    assert found
    assert all(len({place for _, place in members}) == 1 for members in found.values())


def test_listed_groups_are_told_apart_by_who_waits_for_whom() -> None:
    groups = []
    rows = []
    for seed, members in enumerate(([0, 1], [2, 3])):
        rows += lockstep(members, 30, seed, stream=7)
        groups += [listed(r, members, f"tp{seed}", "mesh_tp") for r in members]
    for seed, members in enumerate(([0, 2], [1, 3])):
        rows += [
            {**r, "place": r["place"] + 100} for r in lockstep(members, 30, seed + 9, stream=9)
        ]
        groups += [listed(r, members, f"dp{seed}", "mesh_dp") for r in members]
    result = run(rows, 4, groups)
    assert len(instances(result)) == 120
    kinds = {tuple(g["ranks"]): g["kind"] for g in result["comm_group"].to_pylist()}
    assert kinds == {(0, 1): "tp", (2, 3): "tp", (0, 2): "dp", (1, 3): "dp"}
    places = [(r["tp_rank"], r["dp_rank"]) for r in result["rank"].to_pylist()]
    assert places == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_what_is_another_group_s_cannot_be_a_rival_s() -> None:
    """What rank 0 calls with rank 3 ends when rank 1 is called elsewhere, so it fits both; but the
    calls of rank 1 are those of its group with rank 2, whose ends are closer by far."""
    groups = [
        listed(rank, members, f"{number}", "undefined")
        for number, members in enumerate(([0, 3], [0, 1], [1, 2], [0, 1, 2, 3]))
        for rank in members
    ]
    rows = []
    for index in range(30):
        # Ends after 20 ms, off by what repeats with another period for each rank.
        for rank, scatter_us in ((0, 200), (3, 200), (1, 1), (2, 1)):
            off = scatter_us / 1000 * ((index * (3 + 2 * rank) + rank) % 7) / 7
            rows.append(call(rank, index, 40.0 * index, 40.0 * index + 20 + off, stream=7))
    result = run(rows, 4, groups)
    found = {tuple(g["ranks"]) for g in result["comm_group"].to_pylist() if g["ranks"]}
    assert found == {(0, 3), (1, 2)}
    assert len(instances(result)) == 60


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["default_pg", "undefined"], "undefined"),
        (["default_pg", "mesh_dp"], "mesh_dp"),
        (["default_pg", "mesh_dp", "mesh_tp"], None),
        (["default_pg"], "default_pg"),
    ],
)
def test_groups_of_the_same_members_do_not_compete(names: list[str], said: str | None) -> None:
    """As DeepSpeed's own group beside that of all ranks: who waited for whom is the same. Its name
    is said where only one of them has one."""
    groups = [
        listed(rank, [0, 1, 2], f"{number}", name)
        for number, name in enumerate(names)
        for rank in range(3)
    ]
    result = run(lockstep([0, 1, 2], 20), 3, groups)
    assert len(instances(result)) == 20
    (group,) = result["comm_group"].to_pylist()
    assert (group["ranks"], group["description"]) == ([0, 1, 2], said)


@pytest.mark.parametrize("is_world", [False, True])
def test_calls_that_fit_all_ranks_too_are_of_the_one_dimension_that_can_be(is_world: bool) -> None:
    """Two shards of two ranks, replicated; ranks 0 and 1 come 20 ms late, side by side. What each
    reduces with its replica ends alike on all four. Shards have their lanes; ranks 2 and 3 would
    wait for nobody. Where the ranks that are late are of one dimension's groups each, these calls
    are theirs; where a rank of every group waits for others outside, they are nobody's."""
    groups, rows = [], []
    for number, (name, members) in enumerate(
        (("default_pg", [0, 1, 2, 3]), ("mesh_shard", [0, 1]), ("mesh_shard", [2, 3]),
         ("mesh_replicate", [0, 2]), ("mesh_replicate", [1, 3]))
    ):  # fmt: skip
        groups += [listed(r, members, f"{number}", name) for r in members]
    for seed, members in enumerate(([0, 1], [2, 3])):
        rows += lockstep(members, 30, seed, stream=7)
    late = [0] if is_world else [0, 1]
    for index in range(30):
        now = 40.0 * index
        for rank in range(4):
            start = now + (20 if rank in late else 0) + 0.001 * ((index * 7 + rank * 3) % 5)
            # Ends scatter alike between any two ranks.
            end = now + 20.5 + 0.01 * ((index * (3 + 2 * rank) + rank) % 7)
            rows.append(call(rank, 100 + index, start, end, stream=9))
    result = run(rows, 4, groups)
    found = {tuple(g["ranks"]) for g in result["comm_group"].to_pylist() if g["ranks"]}
    assert found == {(0, 1), (2, 3)} | (set() if is_world else {(0, 2), (1, 3)})
    ranks = [(r["dp_rank"], r["coordinates_source"]) for r in result["rank"].to_pylist()]
    assert ranks == [(place, "name") for place in range(4)], "shards count before their replicas"


@pytest.mark.parametrize(
    ("name", "op", "kind"),
    [
        ("mesh_replicate", "all_reduce", "dp_replicate"),
        ("mesh_replicate", "all_gather", "dp"),  # what is shared out is no replica
        ("mesh_ddp", "all_reduce", "dp_replicate"),
        ("mesh_shard", "all_gather", "dp"),
        ("mesh_shard", "all_reduce", "dp"),  # gloo has no reduce-scatter
        ("mesh_tensor_parallel", "all_reduce", "tp"),
    ],
)
def test_a_mesh_dimension_s_name_says_the_kind_unless_its_calls_deny_it(
    name: str, op: str, kind: str
) -> None:
    rows = [{**r, "op": op} for r in lockstep([0, 1], 30, 1, stream=7)]
    groups = [listed(r, [0, 1], "1", name) for r in (0, 1)]
    (found,) = run(rows, 2, groups)["comm_group"].to_pylist()
    assert (found["kind"], found["kind_source"]) == (kind, "name")


def stepwise(calls_ms: Sequence[float]) -> list[Row]:
    """Six steps of 100 ms in which two ranks reduce equal messages at these times."""
    rows = []
    for step in range(6):
        for index, at in enumerate(calls_ms):
            now = 100 * step + at
            facts = {"message_bytes": 4096, "group_id": "g", "group_name": "g", "group_size": 2}
            place = step * len(calls_ms) + index
            rows += [call(r, place, now, now + 1, step=step, **facts) for r in (0, 1)]
    return rows


@pytest.mark.parametrize(
    ("calls_ms", "tp", "kind"),
    [
        ([4.0 * i for i in range(24)], None, "tp"),  # all over the step
        ([4.0 * i for i in range(24)], 2, "tp"),
        ([4.0 * i for i in range(24)], 1, None),  # the job has none
        ([40 + 2.0 * i for i in range(24)], None, None),  # a bucket a layer, in backward
        ([60 + 3.0 * i for i in range(12)], None, "dp"),
        ([60 + 3.0 * i for i in range(12)], 1, "dp"),
    ],
)
def test_equal_reductions_are_told_apart_by_when_they_come(
    calls_ms: list[float], tp: int | None, kind: str | None
) -> None:
    job = JobDescription(parallelism=Parallelism(tp=tp))
    groups = run(stepwise(calls_ms), 2, job=job)["comm_group"].to_pylist()
    assert [g["kind"] for g in groups] == [kind]


@pytest.mark.parametrize(("size", "kind"), [(4096, "dp"), (2048, None)])
def test_a_slow_group_is_of_the_kind_of_those_that_call_the_same(
    size: int, kind: str | None
) -> None:
    """Its calls fill the step, so their times say nothing; another size would be another use."""
    fast = stepwise([60 + 3.0 * i for i in range(12)])
    slow = [
        {**r, "source_id": r["source_id"] + 2, "group_id": "s", "group_name": "s"}
        | {"message_bytes": size}
        for r in stepwise([10 + 7.0 * i for i in range(12)])
    ]
    groups = [listed(r, [0, 1], "g", "g") for r in (0, 1)]
    groups += [listed(r, [2, 3], "s", "s") for r in (2, 3)]
    found = run(fast + slow, 4, groups)["comm_group"].to_pylist()
    assert {tuple(g["ranks"]): g["kind"] for g in found} == {(0, 1): "dp", (2, 3): kind}


@pytest.mark.parametrize(("size", "kind"), [(4096, "embedding"), (2048, "dp")])
def test_a_group_without_a_name_is_of_the_kind_of_named_ones_that_call_the_same(
    size: int, kind: str
) -> None:
    """Files of one kind name their groups, those of another do not; times alone would say dp."""
    late = [60 + 3.0 * i for i in range(12)]
    rows = stepwise(late)
    rows += [
        {**r, "source_id": r["source_id"] + 2, "group_id": "s", "group_name": "s"}
        | {"message_bytes": size}
        for r in stepwise(late)
    ]
    groups = [listed(r, [0, 1], "g", "EMBEDDING_GROUP") for r in (0, 1)]
    groups += [listed(r, [2, 3], "s", "s") for r in (2, 3)]
    found = run(rows, 4, groups)["comm_group"].to_pylist()
    assert {tuple(g["ranks"]): g["kind"] for g in found} == {(0, 1): "embedding", (2, 3): kind}


@pytest.mark.parametrize(
    ("has_messages", "has_replicas", "kind"),
    [(True, True, None), (False, True, "dp"), (True, False, "dp")],
)
def test_what_stages_reduce_together_is_not_data_parallelism(
    has_messages: bool, has_replicas: bool, kind: str | None
) -> None:
    """Of ranks that send to each other and have replicas besides; else it is as good as any."""
    rows: list[Row] = []
    groups: list[Row] = []
    late = [60 + 3.0 * i for i in range(12)]
    uses = [("dp", [[0, 1], [2, 3]], 4096)] if has_replicas else []
    for word, members, size in [*uses, ("pp", [[0, 2], [1, 3]], 512)]:
        for number, ranks in enumerate(members):
            name = f"{word}{number}"
            facts = {"group_id": name, "group_name": name, "message_bytes": size}
            rows += [
                {**r, "source_id": ranks[r["source_id"]], "place": r["place"] + size} | facts
                for r in stepwise(late)
            ]
            groups += [listed(r, ranks, name, name) for r in ranks]
    for place, (step, micro) in enumerate(product(range(6), range(4))):
        at = 100 * step + 10 * micro
        for src, dst in ((0, 2), (1, 3)) if has_messages else ():
            peers = {"group_id": f"pp{src}", "group_name": f"pp{src}", "is_p2p": True}
            peers |= {"step": step, "group_size": 2, "src_rank": src, "dst_rank": dst}
            rows.append(call(src, place, at, at + 1, op="send", **peers))
            rows.append(call(dst, place, at, at + 1, op="recv", **peers))
    found = run(rows, 4, groups)["comm_group"].to_pylist()
    kinds = {(tuple(g["ranks"]), g["kind"]) for g in found if g["name"]}
    replicas = {((0, 1), "dp"), ((2, 3), "dp")} if has_replicas else set()
    assert kinds == replicas | {((0, 2), kind), ((1, 3), kind)}
    assert {g["kind"] for g in found if not g["name"]} == ({"pp"} if has_messages else set())


def listed(rank: int, members: list[int], group: str, description: str) -> Row:
    return {
        "source_id": rank,
        "group_id": group,
        "name": group,
        "description": description,
        "group_size": len(members),
        "ranks": members,
        "is_ranks_complete": True,
    }


def test_worker_threads_of_one_group_are_one_lane() -> None:
    rows = [
        {**r, "timeline": "host", "thread": 10 * r["source_id"] + r["place"] % 2, "stream": None}
        for r in lockstep([0, 1, 2], 20)
    ]
    assert len(instances(run(rows, 3))) == 20


def beside_each_other(swapped_at: int, threads: int, timeline: str = "host") -> list[Row]:
    """Three ranks that ask for two calls at a time, which begin a microsecond apart; on rank 1 the
    second one of a pair begins first."""
    rows = []
    for rank, index in product(range(3), range(20)):
        is_second = index % 2
        if rank == 1 and index // 2 == swapped_at // 2:
            is_second = 1 - is_second
        start = 10 * (index // 2) + 0.001 * is_second
        rows.append(
            call(
                rank, index, start, start + 5, message_bytes=1024 << index % 4, timeline=timeline,
                stream=None, thread=10 * rank + index % threads, group_id="g", group_size=3,
            )
        )  # fmt: skip
    return rows


def test_calls_that_threads_begin_in_another_order_than_others_are_the_same_calls() -> None:
    found = instances(run(beside_each_other(6, threads=2), 3))
    assert len(found) == 20
    assert [(0, 6), (1, 6), (2, 6)] in found.values()
    assert [(0, 7), (1, 7), (2, 7)] in found.values()


@pytest.mark.parametrize(
    ("threads", "timeline"), [(1, "host"), (2, "device")], ids=["one thread", "a device"]
)
def test_what_begins_in_order_differs_where_its_kind_does(threads: int, timeline: str) -> None:
    result = run(beside_each_other(6, threads, timeline), 3)
    assert len(instances(result)) == 18
    assert "sizes differ" in reasons(result)


def in_turn(rank: int, swapped_at: int | None) -> list[Row]:
    """Steps of four calls of unlike sizes, taken in turn by two threads."""
    rows = lockstep([rank], 40)
    for i, row in enumerate(rows):
        is_second = (i + (swapped_at is not None and i >= swapped_at)) % 2
        row |= {"timeline": "host", "thread": 10 * rank + is_second, "stream": None}
        row |= {"message_bytes": 1 << (10 + i % 4)}
    return rows


def test_threads_that_share_no_kind_of_call_are_one_lane_where_other_ranks_say_so() -> None:
    # Rank 1's threads keep their turns; those of ranks 0 and 2 change them once, as threads do.
    rows = in_turn(0, 19) + in_turn(1, None) + in_turn(2, 11)
    assert len(instances(run(rows, 3))) == 40


def test_threads_that_no_rank_shows_to_be_one_pool_stay_apart() -> None:
    rows = in_turn(0, None) + in_turn(1, None)
    result = run(rows, 2)
    assert {len(r) for r in instances(result).values()} == {2}
    assert len(instances(result)) == 40


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"message_bytes": 5}, "sizes differ"),
        ({"dtype": "Half"}, "types differ"),
        ({"op": "all_gather"}, "operations differ"),
        ({"is_cut_start": True}, "cut by the window"),
    ],
)
def test_members_that_disagree_carry_no_claim(facts: Row, reason: str) -> None:
    rows = lockstep([0, 1], 30)
    rows[21] |= facts
    result = run(rows, 2)
    assert reasons(result) == {"all members agree", reason}
    assert len(instances(result)) == 29


def test_nobody_leaves_before_the_last_has_entered() -> None:
    rows = lockstep([0, 1], 60)
    rows[21]["start_ns"] += 3 * MS
    assert "a member left before the last entered" in reasons(run(rows, 2))


def test_calls_that_cannot_belong_together_are_not_forced() -> None:
    rows = lockstep([0], 20, 1) + lockstep([1], 20, 2)
    result = run(rows, 2)
    assert not instances(result)
    assert reasons(result) == {"the trace names no group, and the calls fit none or several"}


def test_a_member_without_a_trace_is_said() -> None:
    rows = lockstep([0, 1], 10, group_id="g", group_name="0", group_size=4)
    result = run(rows, 2)
    assert reasons(result) == {"2 of 4 members traced"}
    assert len(instances(result)) == 10


def test_sends_pair_with_receives_in_order() -> None:
    rows = []
    for index in range(10):
        at = index * 10
        rows.append(call(0, index, at, at + 2, op="send", is_p2p=True, src_rank=0, dst_rank=1))
        rows.append(call(1, index, at - 1, at + 2, op="recv", is_p2p=True, src_rank=0, dst_rank=1))
    result = run(rows, 2)
    assert len(instances(result)) == 10
    assert {c["method"] for c in result["collective_match"].to_pylist()} == {"pair"}
    assert [r["pp_rank"] for r in result["rank"].to_pylist()] == [0, 1]


@pytest.mark.parametrize("description", ["mesh_pp", "undefined"])
def test_numbers_within_a_group_are_of_the_one_that_is_named_a_pipeline(description: str) -> None:
    """gloo says the other's number within a group, and not which group. Of two pipelines of two
    ranks the groups between them hold the same number for one member, and its own for another, so
    that they cannot be meant where none is named."""
    rows, groups = [], []
    for index in range(10):
        at = index * 10
        for first in (0, 2):
            facts = {"is_p2p": True, "timeline": "host", "stream": None}
            rows.append(call(first, index, at, at + 2, op="send", peer_group_rank=1, **facts))
            rows.append(
                call(first + 1, index, at - 1, at + 2, op="recv", peer_group_rank=0, **facts)
            )
    for members in ([0, 1], [2, 3]):
        groups += [listed(r, members, f"p{members[0]}", description) for r in members]
    for members in ([0, 2], [1, 3]):
        groups += [listed(r, members, f"d{members[0]}", "mesh_dp") for r in members]
    result = run(rows, 4, groups)
    found = instances(result)
    assert len(found) == 20
    assert {tuple(r for r, _ in members) for members in found.values()} == {(0, 1), (2, 3)}


def test_sends_to_somebody_unknown_are_left_alone() -> None:
    rows = [call(r, i, i, i + 1, op="send", is_p2p=True) for r in (0, 1) for i in range(5)]
    result = run(rows, 2)
    assert reasons(result) == {"the trace does not say with whom it was exchanged"}


def test_captures_and_attempts_are_never_mixed() -> None:
    rows = lockstep([0, 1], 10)
    result = run(rows, 2)
    assert {r["capture_id"] for r in result["source_context"].to_pylist()} == {0}
