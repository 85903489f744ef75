"""Collective times, rooflines and traffic against the published vectors."""

from __future__ import annotations

import pytest

from tracekit.errors import UsageError
from tracekit.expect import TrafficRow, cost, expect, roofline, traffic
from tracekit.expect.options import changed
from tracekit.job import JobDescription

C, NODE = 989e12, 450e9


def test_rings_and_switches() -> None:
    assert cost.ring_s("all_reduce", 1e9, 8, NODE) == pytest.approx(3.889e-3, rel=1e-4)
    assert cost.in_network_all_reduce_s(1e9, NODE) == pytest.approx(2.222e-3, rel=1e-3)
    assert cost.ring_s("all_reduce", 1e9, 64, 50e9) == pytest.approx(39.375e-3)
    size = 1024 * 16384 * 2
    # The chapter's answer to its own question, 9.3 us, is a factor of N too small.
    assert cost.ring_s("all_gather", size, 8, NODE) == pytest.approx(65.24e-6, rel=1e-4)
    assert size / NODE == pytest.approx(74.57e-6, rel=1e-4)
    # All-to-all between the GPUs of a node, of 8 GB in all: S(N-1)/(N^2 W).
    assert cost.ring_s("all_to_all", 1e9, 8, NODE) == pytest.approx(8e9 * 7 / (64 * NODE))


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [
        ("all_reduce", 8, 1.75),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 2, 0.5),
        ("broadcast", 8, 1.0),
        ("all_reduce", 1, 0.0),
    ],
)
def test_bus_factors(op: str, ranks: int, factor: float) -> None:
    assert cost.bus_factor(op, ranks) == factor


def test_no_bus_factor_of_nothing() -> None:
    with pytest.raises(UsageError):
        cost.bus_factor("gossip", 8)
    with pytest.raises(UsageError):
        cost.bus_factor("all_reduce", 0)


def superpod(**more: str) -> JobDescription:
    """Nodes of 8 H100 with a 400 Gbit/s NIC each, 32 of them below a leaf, spines half as wide."""
    fields = {
        **{"gpu": "H100", "gpus_per_node": "8", "nic_bytes_per_s": "50e9", "zero": "3"},
        **{"leaf_gpus": "256", "oversubscription": "2", "parameters": "8000000000"},
        **{"layers": "4", "microbatches": "1", "dtype": "bf16", "peak_flops_per_s": "989e12"},
    }
    return changed(JobDescription(), [*{**fields, **more}.items()])


def gathered(**more: str) -> TrafficRow:
    return next(r for r in expect(superpod(**more)).traffic if r.op == "all_gather")


def test_members_in_a_node_bring_an_array_in_together() -> None:
    """max_i children_i / W_i: 450 GB/s in a node, 400 among nodes, 800 through the spine."""
    assert gathered(dp="8").bytes_per_s == 450e9
    assert gathered(dp="256").bytes_per_s == 400e9
    assert gathered(dp="1024").bytes_per_s == 400e9
    assert gathered(dp="1024", oversubscription="64").bytes_per_s == 200e9
    # An array of which 64 neighbours hold a part each: 3.2 TB/s of it among nodes, and a quarter of
    # the spine's 6.4 TB/s a leaf, of which a part has a 64th.
    assert gathered(dp="16", tp="8", pp="8", order="tp,pp,dp").bytes_per_s == 3.2e12 / 64
    thin = gathered(dp="16", tp="8", pp="8", order="tp,pp,dp", oversubscription="8")
    assert thin.bytes_per_s == 1.6e12 / 64


def test_latency_grows_with_ranks_and_less_within_a_node() -> None:
    ring = cost.latency_s("all_reduce", 64)
    assert ring == pytest.approx(8.4e-6 + 2 * 63 * 14e-6)
    assert cost.latency_s("all_gather", 8, where="nvlink") == pytest.approx(32.2e-6)
    assert cost.latency_s("send", 2) == pytest.approx(22.4e-6)
    assert cost.latency_s("all_reduce", 1) == 0


def test_rooflines() -> None:
    assert roofline.data_parallel_tokens(C, NODE) == pytest.approx(1098.9, abs=0.05)
    assert roofline.data_parallel_tokens(C, 400e9) == pytest.approx(1236.25)
    assert roofline.fsdp_tokens(C, 400e9) == pytest.approx(2472.5)
    assert 2048 * roofline.fsdp_tokens(C, 400e9) == pytest.approx(5.06e6, rel=1e-3)
    spine = roofline.data_parallel_tokens(C, 6.4e12)
    assert spine == pytest.approx(77.27, abs=0.01)
    assert spine * 256 == pytest.approx(19_780, abs=1)  # the chapter truncates to 77 first
    assert roofline.data_parallel_tokens(C, 900e9) == pytest.approx(549, abs=0.6)
    # 989, not the chapter's 898: F/1923.
    assert 1 / roofline.tensor_parallel_ways(1, C, NODE) == pytest.approx(1923, abs=0.1)
    assert roofline.tensor_parallel_ways(16384, C, NODE) == pytest.approx(8.52, abs=0.005)


def test_the_roofline_is_that_of_the_tokens_of_a_gpu() -> None:
    """C/(2W) and C/W with the node's 400 GB/s, however the weights are split in it."""
    for layout in ({"dp": "64"}, {"dp": "8", "tp": "8"}, {"dp": "16", "tp": "4"}):
        found = expect(superpod(**layout)).roofline
        assert found.data_parallel_network_tokens == pytest.approx(1236.25), layout
        assert found.fsdp_network_tokens == pytest.approx(2472.5), layout
    # Of a mixture E C/(2 k W): every expert's gradients are sent, k of them compute a token.
    mixture = {"experts": "256", "top_k": "8"}
    found = expect(superpod(dp="64", **mixture)).roofline
    assert found.data_parallel_network_tokens == pytest.approx(1236.25 * 256 / 8)
    # Each GPU of a node holds other experts: an eighth of the weights over an eighth of the NICs.
    spread = expect(superpod(dp="64", ep="8", **mixture)).roofline
    assert spread.data_parallel_network_tokens == pytest.approx(1236.25 * 256 / 8)
    # Stages in other nodes: each node has the weights of one.
    apart = expect(superpod(dp="16", pp="2")).roofline
    assert apart.data_parallel_network_tokens == pytest.approx(1236.25 / 2)


def sent(**fields: str) -> float:
    """Bytes that a rank sends for gradients and parameters, by what is given first."""
    job = changed(JobDescription(), [("dtype", "bf16"), ("layers", "4"), *fields.items()])
    return sum(r.bytes_per_step or 0.0 for r in expect(job).traffic)


def test_traffic_of_data_parallelism() -> None:
    seven = 7e9 * 2

    def of(**more: str) -> float:
        given = {"parameters": "7000000000", "dp": "64", "microbatches": "1", "zero": "0"}
        return sent(**{**given, **more})

    assert of() == pytest.approx(27.5625e9)
    assert of(zero="1") == of()
    assert of(zero="3") == pytest.approx(41.34375e9)
    # ZeRO-2 that reduces every microbatch; with one it is DDP's volume, not more.
    assert of(zero="2") == of()
    assert of(zero="2", microbatches="4") == pytest.approx(5 * 63 / 64 * seven)
    inner = 3 * 7 / 8 * seven
    assert of(zero="3", dp="32", dp_replicate="4") == pytest.approx(inner + 1.5 * seven / 8)
    llama = {"parameters": "8030261248", "dp": "4", "zero": "3"}
    assert of(**llama) == pytest.approx(36.136e9, rel=1e-4)
    assert of(**llama, microbatches="4") == pytest.approx(144.54e9, rel=1e-4)
    job = superpod(parameters="7000000000", dp="64")
    kept = next(r for r in expect(job).traffic if r.op == "all_gather")
    stays = next(c for c in kept.choices if c.words == "parameters stay gathered for the backward")
    scattered = next(r for r in expect(job).traffic if r.op == "reduce_scatter").bytes_per_step or 0
    assert stays.bytes_per_step + scattered == pytest.approx(27.5625e9)


def test_traffic_of_gpt3() -> None:
    assert traffic.activation_bytes(1, 2048, 12288) == 50_331_648
    gpt3 = {"tp": "8", "pp": "8", "hidden": "12288", "sequence": "2048", "vocabulary": "51200"}

    def of(**more: str) -> dict[str, TrafficRow]:
        given = {**gpt3, "layers": "96", "micro": "1", "microbatches": "1", "heads": "96"}
        job = changed(JobDescription(), [("dtype", "bf16"), *given.items(), *more.items()])
        return {r.group_kind: r for r in expect(job).traffic}

    rows = of(recompute="none")
    # Of a stage of twelve layers; 352.32 MB each.
    assert rows["tp"].bytes_per_step == pytest.approx(4.2279e9, rel=1e-4)
    assert of(recompute="full")["tp"].bytes_per_step == pytest.approx(6.3418e9, rel=1e-4)
    assert rows["pp"].message_bytes == pytest.approx(50.33e6, rel=1e-4)
    assert rows["pp"].choices[0].bytes_per_step / 2 == pytest.approx(6.29e6, rel=1e-3)
    assert rows["embedding"].message_bytes == 51200 / 8 * 12288 * 2


def test_traffic_of_deepseek_v3() -> None:
    assert traffic.expert_bytes(4096, 8, 7168, 1) == pytest.approx(234.88e6, rel=1e-4)
    given = {"ep": "64", "dp": "64", "experts": "256", "top_k": "8", "hidden": "7168"}
    more = {"sequence": "4096", "micro": "1", "microbatches": "1", "layers": "1", "dtype": "bf16"}
    job = changed(JobDescription(), [*given.items(), *more.items()])
    row = next(r for r in expect(job).traffic if r.group_kind == "ep")
    assert row.message_bytes == pytest.approx(469.76e6, rel=1e-4)
    assert (row.bytes_per_step or 0) / 4 == pytest.approx(469.76e6 * 63 / 64, rel=1e-4)
    forward, backward = traffic.context_bytes_per_layer(1, 8192, 1024, 4)
    assert forward == pytest.approx(0.75 * 2 * 8192 * 1024 * 2)
    assert backward == 2 * forward
