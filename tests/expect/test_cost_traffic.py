"""Collective times, rooflines and traffic against the published vectors."""

from __future__ import annotations

import pytest

from tracekit.errors import UsageError
from tracekit.expect import cost, roofline, traffic
from tracekit.expect.hardware import H100_SUPERPOD, with_oversubscription

C, NODE = 989e12, 450e9


def test_rings_and_switches() -> None:
    assert cost.ring_s("all_reduce", 1e9, 8, NODE) == pytest.approx(3.889e-3, rel=1e-4)
    assert cost.in_network_all_reduce_s(1e9, NODE) == pytest.approx(2.222e-3, rel=1e-3)
    assert cost.ring_s("all_reduce", 1e9, 64, 50e9) == pytest.approx(39.375e-3)
    size = 1024 * 16384 * 2
    # The chapter's answer to its own question, 9.3 us, is a factor of N too small.
    assert cost.ring_s("all_gather", size, 8, NODE) == pytest.approx(65.24e-6, rel=1e-4)
    assert size / NODE == pytest.approx(74.57e-6, rel=1e-4)
    assert cost.node_all_to_all_s(8e9, 8, NODE) == pytest.approx(8e9 * 7 / (64 * NODE))


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


def test_bus_factor_in_the_network_and_of_nothing() -> None:
    assert cost.bus_factor("all_reduce", 8, in_network=True) == pytest.approx(7 / 9)
    with pytest.raises(UsageError):
        cost.bus_factor("gossip", 8)
    with pytest.raises(UsageError):
        cost.bus_factor("all_reduce", 0)


def test_hierarchy_of_a_superpod() -> None:
    per_level = [level.children / level.usable_bytes_per_s for level in H100_SUPERPOD]
    assert per_level == pytest.approx([2.222e-12, 2.5e-12, 1.5625e-13], rel=1e-3)
    assert 1 / cost.hierarchical_s_per_byte(H100_SUPERPOD) == pytest.approx(400e9)
    assert cost.hierarchical_s("all_reduce", 400e9, H100_SUPERPOD) == pytest.approx(2.0)
    speeds = cost.sharded_level_bytes_per_s(H100_SUPERPOD, 64)
    assert speeds == pytest.approx((28.8e12, 3.2e12, 6.4e12))
    assert cost.sharded_hierarchical_s(3.2e12, H100_SUPERPOD, 64) == pytest.approx(1.0)
    assert cost.top_level_gather_s(12.8e12, 4, 25.6e12) == pytest.approx(1.5)


def test_oversubscription_is_a_level_s_own() -> None:
    thin = with_oversubscription(H100_SUPERPOD, {"scalable unit": 2.0})
    assert 1 / cost.hierarchical_s_per_byte(thin) == pytest.approx(200e9)
    assert thin[1].bytes_per_s_per_gpu == pytest.approx(25e9)
    assert H100_SUPERPOD[1].bytes_per_s_per_gpu == pytest.approx(50e9)


def test_latency_grows_with_ranks_and_less_in_a_tree() -> None:
    ring = cost.latency_s("all_reduce", 64)
    assert ring == pytest.approx(8.4e-6 + 2 * 63 * 14e-6)
    assert cost.latency_s("all_reduce", 64, tree=True) == pytest.approx(8.4e-6 + 12 * 14e-6)
    assert cost.latency_s("all_gather", 8, where="nvlink", protocol="ll") == pytest.approx(10.8e-6)
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
    deepseek = roofline.expert_parallel_tokens(C, 400e9, 256, 8, gpus_sharing=8)
    assert deepseek == pytest.approx(4944, abs=2)
    assert 2048 * deepseek == pytest.approx(10.1e6, rel=5e-3)
    # 989, not the chapter's 898: F/1923.
    assert 1 / roofline.tensor_parallel_ways(1, C, NODE) == pytest.approx(1923, abs=0.1)
    assert roofline.tensor_parallel_ways(16384, C, NODE) == pytest.approx(8.52, abs=0.005)


def test_traffic_of_data_parallelism() -> None:
    seven = 7e9 * 2
    assert traffic.ddp_bytes(seven, 64) == pytest.approx(27.5625e9)
    assert traffic.fsdp_bytes(seven, 64) == pytest.approx(41.34375e9)
    assert traffic.fsdp_bytes(seven, 64, reshards=False) == pytest.approx(27.5625e9)
    # ZeRO-2 that reduces every microbatch; with one it is DDP's volume, not more.
    assert traffic.zero2_accumulated_bytes(seven, 64, 1) == traffic.ddp_bytes(seven, 64)
    assert traffic.zero2_accumulated_bytes(seven, 64, 4) == pytest.approx(5 * 63 / 64 * seven)
    inner = 3 * 7 / 8 * seven
    assert traffic.hsdp_bytes(seven, 8, 4) == pytest.approx(inner + 1.5 * seven / 8)
    llama = 8_030_261_248 * 2
    assert traffic.fsdp_bytes(llama, 4) == pytest.approx(36.136e9, rel=1e-4)
    assert traffic.fsdp_bytes(llama, 4, 4) == pytest.approx(144.54e9, rel=1e-4)


def test_traffic_of_gpt3() -> None:
    a = traffic.activation_bytes(1, 2048, 12288)
    assert a == 50_331_648
    layer = traffic.tensor_bytes_per_layer(a, 8)
    assert layer == pytest.approx(352.32e6, rel=1e-5)
    assert 12 * layer == pytest.approx(4.2279e9, rel=1e-4)
    assert 12 * traffic.tensor_bytes_per_layer(a, 8, recomputes=True) == pytest.approx(
        6.3418e9, rel=1e-4
    )
    ratio = traffic.tensor_bytes_per_layer(a, 8, sequence_parallel=True) / layer
    assert ratio == pytest.approx(10 / 8)
    assert traffic.pipeline_message_bytes(a) == pytest.approx(50.33e6, rel=1e-4)
    assert traffic.pipeline_message_bytes(a, 8, scatters=True) == pytest.approx(6.29e6, rel=1e-3)
    assert traffic.embedding_bytes(51200, 12288, 8, 2) == 51200 / 8 * 12288 * 2


def test_traffic_of_deepseek_v3() -> None:
    assert traffic.expert_bytes(4096, 8, 7168, 1) == pytest.approx(234.88e6, rel=1e-4)
    assert traffic.expert_bytes(4096, 8, 7168, 2) == pytest.approx(469.76e6, rel=1e-4)
    assert traffic.expert_bytes(4096, 8, 7168, 2, 64) == pytest.approx(469.76e6 * 63 / 64, rel=1e-4)
    assert traffic.node_limited_expert_bytes(4096, 4, 7168, 1) == pytest.approx(117.44e6, rel=1e-4)
    forward, backward = traffic.context_bytes_per_layer(1, 8192, 1024, 4)
    assert forward == pytest.approx(0.75 * 2 * 8192 * 1024 * 2)
    assert backward == 2 * forward
