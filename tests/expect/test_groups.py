"""The groups of a layout, their bytes and their places, counted rank by rank.

Nothing here is shared with tracekit.expect: a rank's coordinates, who holds which weight, and the
collectives themselves are written out, and what ``expect`` says is held against them. A layout is
right if its operations, run over the groups counted here, leave every rank with the sum of the
gradients of all ranks that hold the same weight, and if each rank sent the bytes of the row.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from math import prod

import pytest

from tracekit.expect import TrafficRow, expect
from tracekit.expect.groups import Family, groups_of
from tracekit.job import JobDescription, parse_job

LAYERS, HIDDEN, FFN, EXPERTS, VOCABULARY = 4, 64, 64, 48, 96
DOMAIN = 8


@dataclass(frozen=True)
class Layout:
    """Sizes of a job's dimensions."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    replicas: int = 1
    zero: int = 0
    vpp: int = 1
    order: tuple[str, ...] = ("tp", "cp", "dp", "pp")
    microbatches: int = field(default=2, compare=False)

    @property
    def world(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    def __str__(self) -> str:
        sizes = "".join(f"{n}{getattr(self, n)}" for n in ("tp", "cp", "dp", "pp", "ep"))
        return f"{sizes}r{self.replicas}z{self.zero}-{'.'.join(self.order)}"


@dataclass(frozen=True)
class Place:
    """Where a rank stands."""

    tp: int
    cp: int
    dp: int
    pp: int
    replica: int
    expert: int
    """Which of the ep parts of the experts it holds."""


def places(layout: Layout) -> list[Place]:
    """Each rank's place, by counting: the first dimension of the order turns fastest."""
    dims = [d for d in layout.order if d != "ep"]
    turns = itertools.product(*(range(getattr(layout, d)) for d in reversed(dims)))
    found = []
    shard = layout.dp // layout.replicas
    for turn in turns:
        at = dict(zip(reversed(dims), turn, strict=True))
        if shard % layout.ep:  # folded over the context's ranks too
            expert = (at["dp"] * layout.cp + at["cp"]) % layout.ep
        elif "ep" in layout.order and layout.order.index("ep") > layout.order.index("dp"):
            expert = at["dp"] % shard // (shard // layout.ep)
        else:
            expert = at["dp"] % layout.ep
        found.append(Place(**at, replica=at["dp"] // shard, expert=expert))
    return found


def counted(layout: Layout) -> dict[str, list[tuple[int, ...]]]:
    """Every group of every family, from who has to talk to whom."""
    ranks = places(layout)
    shard = layout.dp // layout.replicas
    has_shards = layout.zero > 0

    def by(*names: str, of_shards: bool = False) -> list[tuple[int, ...]]:
        keys: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for rank, at in enumerate(ranks):
            key = tuple(at.dp % shard if n == "shard" else getattr(at, n) for n in names)
            keys[key + ((at.replica,) if of_shards else ())].append(rank)
        return [tuple(members) for members in keys.values()]

    families = {
        "tp": by("cp", "dp", "pp"),
        "cp": by("tp", "dp", "pp"),
        "pp": by("tp", "cp", "dp"),
        "dense": by("tp", "pp", of_shards=has_shards),
        "experts": by("tp", "pp", "expert", of_shards=has_shards),
        "replicas": by("tp", "cp", "pp", "shard") if has_shards else by("tp", "cp", "dp", "pp"),
    }
    # A rank's partners in ep: one of each part, the nearest that complete a set.
    families["ep"] = []
    for members in by("tp", "pp"):
        waiting: dict[tuple[int, ...], dict[int, int]] = defaultdict(dict)
        for rank in sorted(members, key=lambda r: (ranks[r].dp, ranks[r].cp)):
            at = ranks[rank]
            if shard % layout.ep == 0:
                far = "ep" in layout.order and layout.order[-1] == "ep"
                rest = shard // layout.ep
                place = (at.cp, at.replica, at.dp % rest if far else at.dp // layout.ep)
            else:
                place = (0, 0, (at.dp * layout.cp + at.cp) // layout.ep)
            waiting[place][at.expert] = rank
        families["ep"] += [tuple(sorted(one.values())) for one in waiting.values()]
    holders = {r: m for m in by("tp", "pp", "expert") for r in m}
    own = {r: m for m in families["experts"] for r in m}
    copies: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank in range(layout.world):
        copies[holders[rank][0], own[rank].index(rank)].append(rank)
    families["expert_replicas"] = [tuple(m) for m in copies.values()]
    return families


def members(family: Family, rank: int) -> tuple[int, ...]:
    """The group of a rank, from the family's axes alone."""
    first = rank - sum(rank // stride % count * stride for stride, count in family.axes)
    steps = itertools.product(*(range(0, s * c, s) for s, c in family.axes))
    return tuple(sorted(first + sum(step) for step in steps))


def description(layout: Layout) -> JobDescription:
    order = ", ".join(f'"{d}"' for d in layout.order)
    return parse_job(
        f"""
        world_size = {layout.world}
        [parallelism]
        tp = {layout.tp}
        cp = {layout.cp}
        dp = {layout.dp}
        pp = {layout.pp}
        ep = {layout.ep}
        vpp = {layout.vpp}
        dp_replicate = {layout.replicas}
        zero_stage = {layout.zero}
        order = [{order}]
        [schedule]
        microbatches = {layout.microbatches}
        [model]
        layers = {LAYERS}
        hidden = {HIDDEN}
        heads = 8
        sequence = 128
        ffn = {FFN}
        vocabulary = {VOCABULARY}
        experts = {EXPERTS}
        top_k = 2
        parameters = {DENSE + LAYERS * EXPERTS * EACH}
        dtype = "bfloat16"
        [batch]
        micro = 1
        [hardware]
        gpu = "H100"
        gpus_per_node = {DOMAIN}
        nics_per_node = {DOMAIN}
        nic_bytes_per_s = 50e9
        """.encode(),
        "job.toml",
    )


EACH = 3 * HIDDEN * FFN
DENSE = 1_000_000

LAYOUTS = [
    layout
    for tp, cp, dp, pp in itertools.product((1, 2), (1, 2), (4, 8), (1, 2))
    for ep, replicas in itertools.product((1, 2, 4, 8), (1, 2, 4))
    if replicas <= dp and dp * cp % ep == 0
    for zero in (0, 1, 3)
    for layout in [Layout(tp, cp, dp, pp, ep, replicas, zero)]
    if layout.world <= 32
]
ORDERS = [
    Layout(2, 2, 4, 2, ep, r, z, order=order)
    for order in itertools.permutations(("tp", "cp", "dp", "pp"))
    for ep, r, z in ((1, 1, 0), (2, 1, 3), (2, 2, 3), (4, 1, 1))
] + [
    Layout(2, 1, 8, 2, 2, r, z, order=("tp", "cp", "dp", "pp", "ep"))
    for r in (1, 2)
    for z in (0, 3)
]
ODD = [
    Layout(3, 1, 6, 1, 3, 2, 3),
    Layout(1, 3, 6, 2, 2, 3, 3),
    Layout(5, 1, 3, 1),
    Layout(1, 1, 12, 1, 6, 4, 3),
    Layout(1, 1, 12, 3, 6, 2, 2),
    Layout(dp=8, ep=2, replicas=2, zero=2),
    Layout(dp=8, ep=8, replicas=2, zero=2),
]
EVERY = [*LAYOUTS, *ORDERS, *ODD]


def families(layout: Layout) -> dict[str, Family]:
    sizes = {d: getattr(layout, d) for d in ("tp", "cp", "dp", "pp", "ep")}
    found = groups_of(sizes, layout.order, layout.replicas, is_sharded=layout.zero > 0)
    assert found.experts is not None
    return {
        name: getattr(found, name)
        for name in ("tp", "cp", "pp", "dense", "replicas", "ep", "experts", "expert_replicas")
    }


def test_there_are_many_layouts_and_each_family_is_met() -> None:
    assert len(EVERY) > 300
    for name in ("tp", "cp", "pp", "dense", "replicas", "ep", "experts", "expert_replicas"):
        assert sum(families(one)[name].size > 1 for one in EVERY) > 50, name


# Layouts are looped over inside a test: hundreds of small tests cost more than what they run.
@pytest.mark.parametrize("layouts", [LAYOUTS, ORDERS, ODD], ids=["sizes", "orders", "odd"])
def test_every_group_is_the_one_that_is_counted(layouts: list[Layout]) -> None:
    for layout in layouts:
        check_groups(layout)


def check_groups(layout: Layout) -> None:
    expected = counted(layout)
    for name, family in families(layout).items():
        groups = set(expected[name])
        assert {members(family, r) for r in range(layout.world)} == groups, (str(layout), name)
        assert {len(g) for g in groups} == {family.size}, (str(layout), name)
        for block in (1, 2, 3, 4, 6, 8, 12, 16, 32, 64):
            is_inside = all(len({r // block for r in g}) == 1 for g in groups)
            assert family.is_inside(block, layout.world) == is_inside, (str(layout), name, block)
            if block % family.reach == 0 or family.reach % block == 0:
                held = min(sum(r // block == g[0] // block for r in g) for g in groups)
                assert family.members_inside(block) <= held, (str(layout), name, block)


@dataclass
class Rank:
    """What a rank has of one kind of weights, and what it has sent."""

    parts: dict[int, float]
    """Gradient by element."""
    sent: float = 0.0


def ring_reduce_scatter(
    ranks: dict[int, Rank], group: tuple[int, ...], elements: list[int]
) -> None:
    """Each passes on what it has summed of a chunk, until the last holds it whole and alone."""
    n = len(group)
    chunks = [elements[len(elements) * i // n : len(elements) * (i + 1) // n] for i in range(n)]
    for step in range(n - 1):
        moved = []
        for i, rank in enumerate(group):
            chunk = chunks[(i - step - 1) % n]
            moved.append((group[(i + 1) % n], {e: ranks[rank].parts[e] for e in chunk}))
            ranks[rank].sent += len(chunk)
        for to, values in moved:
            for element, value in values.items():
                ranks[to].parts[element] += value
    for i, rank in enumerate(group):
        ranks[rank].parts = {e: ranks[rank].parts[e] for e in chunks[i]}


def ring_all_gather(ranks: dict[int, Rank], group: tuple[int, ...]) -> None:
    n = len(group)
    held = [dict(ranks[r].parts) for r in group]
    for step in range(n - 1):
        for i, rank in enumerate(group):
            ranks[rank].sent += len(held[(i - step) % n])
    whole = {e: v for one in held for e, v in one.items()}
    for rank in group:
        ranks[rank].parts = dict(whole)


def run(
    rows: list[TrafficRow],
    ranks: dict[int, Rank],
    groups: list[tuple[int, ...]],
    copies: list[tuple[int, ...]],
    zero: int,
) -> None:
    """One backward, as a stage of ZeRO does it, by the operations of the rows."""
    ops = {r.op for r in rows}
    for group in groups:
        if len(group) > 1:
            elements = sorted(ranks[group[0]].parts)
            assert ops & ({"reduce_scatter"} if zero else {"all_reduce"})
            ring_reduce_scatter(ranks, group, elements)
            if not zero:
                ring_all_gather(ranks, group)
    for group in copies:
        if len(group) > 1:
            elements = sorted(ranks[group[0]].parts)
            ring_reduce_scatter(ranks, group, elements)
            ring_all_gather(ranks, group)


SMALL = [one for one in EVERY if one.pp == 1 and one.tp == 1 and one.order == Layout().order]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_the_operations_leave_every_rank_with_the_sum_and_send_the_rows_bytes(zero: int) -> None:
    layouts = [one for one in SMALL if one.zero == zero]
    assert layouts
    for layout in layouts:
        check_operations(layout)


def check_operations(layout: Layout) -> None:
    expected = counted(layout)
    at = places(layout)
    rows = expect(description(layout)).traffic
    own = {k: [r for r in rows if r.group_kind == k] for k in ("dp", "edp", "dp_replicate")}
    size = 2 * prod((2, 2, 2, 2, 2, 3, 3))  # divides by every group here
    reduced = {"dp": 0.0, "edp": 0.0}
    for kind, groups, copies in (
        ("dp", expected["dense"], expected["replicas"]),
        ("edp", expected["experts"], expected["expert_replicas"]),
    ):
        if kind == "edp" and layout.ep == 1:
            continue
        ranks = {r: Rank({e: float(2**r) for e in range(size)}) for r in range(layout.world)}
        run(own[kind], ranks, groups, copies, layout.zero)
        for rank, held in ranks.items():
            same = [r for r in ranks if kind == "dp" or at[r].expert == at[rank].expert]
            assert set(held.parts.values()) == {float(sum(2**r for r in same))}, (
                str(layout),
                kind,
                rank,
            )
        # Everything is held somewhere.
        assert {e for r in ranks.values() for e in r.parts} == set(range(size))
        sent = {r.sent / size for r in ranks.values()}
        assert len(sent) == 1
        whole = DENSE if kind == "dp" and layout.ep > 1 else LAYERS * EXPERTS * EACH / layout.ep
        if layout.ep == 1:
            whole = DENSE + LAYERS * EXPERTS * EACH
        reduced[kind] = sent.pop() * whole * 2
    times = layout.microbatches if layout.zero > 1 else 1
    claimed = sum(
        r.bytes_per_step or 0.0
        for r in rows
        if r.op in ("reduce_scatter", "all_reduce") and r.group_kind in own
    )
    assert claimed == pytest.approx(times * sum(reduced.values())), str(layout)
    # Parameters come back as often as gradients leave, or twice a microbatch.
    gathers = {1: 1, 2: 1, 3: 2 * layout.microbatches}.get(layout.zero, 0)
    for kind in ("dp", "edp"):
        ops = {r.op: r.bytes_per_step or 0.0 for r in own[kind]}
        if "all_gather" in ops:
            assert ops["all_gather"] / gathers == pytest.approx(ops["reduce_scatter"] / times)


@pytest.mark.parametrize("layouts", [LAYOUTS, ORDERS, ODD], ids=["sizes", "orders", "odd"])
def test_sizes_and_places_of_the_rows_are_those_of_the_ranks(layouts: list[Layout]) -> None:
    for layout in layouts:
        check_rows(layout)


def check_rows(layout: Layout) -> None:
    expected = counted(layout)
    found = expect(description(layout))
    kinds = {
        "tp": "tp", "cp": "cp", "ep": "ep", "dp": "dense", "edp": "experts",
        "dp_replicate": "replicas", "pp": "pp", "embedding": "pp",
    }  # fmt: skip
    for row in found.traffic:
        groups = expected[kinds[row.group_kind]]
        if row.group_kind == "edp" and row.note.startswith("gradients of a shard"):
            groups = expected["expert_replicas"]
        is_pair = row.group_kind in ("pp", "embedding")
        assert row.group_size == (2 if is_pair else len(groups[0])), (str(layout), row)
        is_inside = all(len({r // DOMAIN for r in g}) == 1 for g in groups)
        assert row.domain == ("nvlink" if is_inside else "network"), (str(layout), row)
        assert row.bytes_per_step is not None
        if row.op in ("all_reduce", "all_gather", "reduce_scatter") and not is_pair:
            inside = min(sum(r // DOMAIN == g[0] // DOMAIN for r in g) for g in groups)
            if not is_inside and layout.world % DOMAIN == 0:
                assert row.bytes_per_s == min(450e9, 50e9 * inside), (str(layout), row)
    said = {r.group_kind for r in found.traffic}
    for kind, name in kinds.items():
        is_met = len(expected[name][0]) > 1 and (kind != "edp" or layout.ep > 1)
        if kind == "edp" and len(expected["expert_replicas"][0]) > 1 and layout.ep > 1:
            continue  # in rows of its own or in those of all replicas
        assert (kind in said) == is_met, (str(layout), kind)


def test_more_replicas_move_experts_and_dense_weights() -> None:
    """Eight ranks, experts over four: what each holds and reduces by the number of replicas."""

    def sizes(replicas: int) -> dict[tuple[str, str], int]:
        rows = expect(description(Layout(dp=8, ep=4, replicas=replicas, zero=3))).traffic
        return {(r.group_kind, r.op): r.group_size for r in rows if r.group_kind != "ep"}

    shards = {("dp", "all_gather"): 8, ("dp", "reduce_scatter"): 8}
    assert sizes(1) == {**shards, ("edp", "all_gather"): 2, ("edp", "reduce_scatter"): 2}
    # Each replica of four ranks holds every expert once: they meet among replicas only.
    half = {("dp", "all_gather"): 4, ("dp", "reduce_scatter"): 4, ("dp_replicate", "all_reduce"): 2}
    assert sizes(2) == half
    # ep spans two replicas of two ranks: two ranks of all hold the same expert.
    quarter = {**half, ("dp", "all_gather"): 2, ("dp", "reduce_scatter"): 2}
    assert sizes(4) == {**quarter, ("dp_replicate", "all_reduce"): 4, ("edp", "all_reduce"): 2}


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("replicas", [1, 2])
def test_group_sizes_do_not_depend_on_what_is_known_of_the_model(zero: int, replicas: int) -> None:
    """A description without a model has the same groups, with bytes that are not known."""
    layout = f"[parallelism]\ndp = 8\ndp_replicate = {replicas}\nzero_stage = {zero}\n"
    more = "[model]\nparameters = 1000000\nlayers = 4\n[schedule]\nmicrobatches = 2\n"
    bare = expect(parse_job(layout.encode(), "job.toml")).traffic
    whole = expect(parse_job((layout + more).encode(), "job.toml")).traffic
    sizes = [{(r.group_kind, r.op): r.group_size for r in rows} for rows in (bare, whole)]
    assert sizes[0] == sizes[1]
    assert all(r.bytes_per_step is None for r in bare)
    assert all(r.bytes_per_step for r in whole)


def test_experts_that_fit_into_no_block_of_ranks_are_not_guessed() -> None:
    found = expect(description(Layout(dp=6, ep=4, zero=3)))
    assert any("who holds an expert is open" in a for a in found.assumptions)
    assert all(r.bytes_per_step is None for r in found.traffic if r.group_kind == "dp")
    assert not [r for r in found.traffic if r.group_kind == "edp"]


def test_without_the_number_of_experts_no_weight_is_called_dense() -> None:
    job = parse_job(
        b"[parallelism]\ndp = 8\nep = 4\nzero_stage = 0\n[model]\nparameters = 1000000\n",
        "job.toml",
    )
    assert all(r.bytes_per_step is None for r in expect(job).traffic if r.group_kind == "dp")


def test_memory_is_shared_out_as_the_weights_are() -> None:
    def state(**sizes: int) -> float:
        found = expect(description(Layout(**sizes))).memory.model_state_bytes  # type: ignore[arg-type]
        assert found is not None
        return found

    experts = LAYERS * EXPERTS * EACH
    assert state(dp=8) == 16 * (DENSE + experts)
    assert state(dp=8, zero=3) == 2 * (DENSE + experts)
    assert state(dp=8, zero=3, replicas=2) == 4 * (DENSE + experts)
    assert state(dp=4, cp=2, zero=3) == 2 * (DENSE + experts)
    assert state(dp=8, zero=3, ep=4) == 16 * (DENSE / 8 + experts / 4 / 2)
    assert state(dp=8, zero=3, ep=4, replicas=2) == 16 * (DENSE / 4 + experts / 4)
    assert state(dp=8, ep=4) == 16 * (DENSE + experts / 4)
