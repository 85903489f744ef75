"""What a layout sends past a host's NICs, beside rings and messages that are counted one by one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tracekit.expect import crossing, expect
from tracekit.job import JobDescription, parse_job

JOB = """
world_size = 16
[parallelism]
{parallelism}
[schedule]
microbatches = 4
[model]
layers = 8
hidden = 1024
heads = 16
sequence = 512
vocabulary = 32000
dtype = "bfloat16"
{model}
[batch]
micro = 1
[hardware]
gpu = "H100"
gpus_per_node = 8
nic_bytes_per_s = 50e9
"""


def job(parallelism: str, model: str = "parameters = 1000000") -> JobDescription:
    text = JOB.format(parallelism=parallelism.replace(", ", "\n"), model=model)
    return parse_job(text.encode(), "/data/job.toml")


def borders(groups: Iterable[list[int]], own: set[int]) -> int:
    """Links of rings that leave the host, counted."""
    return sum(
        a in own and b not in own
        for group in groups
        for a, b in zip(group, [*group[1:], group[0]], strict=True)
    )


def test_a_ring_of_all_ranks_leaves_each_host_once() -> None:
    found = crossing(expect(job("dp = 16, zero_stage = 0")), range(8))
    # 2e6 bytes of gradients; a member of a ring sends 2 x 15/16 of them, two hosts of a tree all.
    assert borders([list(range(16))], set(range(8))) == 1
    assert found.sent == found.received == (3.75e6, 2e6, 3.75e6)
    assert found.kinds == ("dp all_reduce",)


def test_each_of_eight_rings_across_the_hosts_leaves_once() -> None:
    found = crossing(expect(job("tp = 8, dp = 2, zero_stage = 0")), range(8, 16))
    # An eighth of the parameters each, of which two ranks send each other all.
    assert borders([[r, r + 8] for r in range(8)], set(range(8, 16))) == 8
    assert found.sent.expected == found.sent.least == 2e6
    assert found.kinds == ("dp all_reduce",)  # tensor groups stay on their host


def test_of_gathered_shards_a_host_needs_what_the_others_hold() -> None:
    found = crossing(expect(job("dp = 16, zero_stage = 1")), range(4))
    ring = 2 * 2e6 * 15 / 16
    assert found.sent.expected == found.received.expected == ring
    # It gets twelve sixteenths and hands out four of the parameters; of the gradients' sums the
    # other way round.
    assert found.sent.least == found.received.least == pytest.approx(2e6)


def test_of_an_all_to_all_what_is_for_ranks_elsewhere_leaves() -> None:
    layout = expect(job("dp = 16, ep = 16, zero_stage = 0", "experts = 16\ntop_k = 2"))
    (row,) = (r for r in layout.traffic if r.op == "all_to_all")
    layout.traffic = [row]
    found = crossing(layout, range(8))
    pairs = sum(1 for a in range(8) for b in range(8, 16))
    message = (row.message_bytes or 0) * (row.calls_per_step or 0)
    assert found.sent.expected == pytest.approx(pairs * message / 16)


@pytest.mark.parametrize(("chunks", "ends"), [(1, 0), (2, 1)])
def test_stages_on_two_hosts_hand_on_activations_and_gradients(chunks: int, ends: int) -> None:
    layout = expect(job(f"pp = 4, dp = 4, vpp = {chunks}, zero_stage = 0"))
    layout.traffic = [r for r in layout.traffic if r.group_kind == "pp"]
    activation = 512 * 1024 * 2
    # Stages of four ranks: 0 and 1 on this host. Each rank of stage 1 hands on what stage 2 takes,
    # a chunk and microbatch at a time; of several chunks stage 3 hands on to stage 0, which sends
    # back its gradients.
    found = crossing(layout, range(8))
    assert found.sent.expected == 4 * 4 * activation * (chunks + ends)
    assert found.received == found.sent
    inner = crossing(layout, range(4, 8))
    assert inner.sent.expected == 4 * 4 * activation * 2 * chunks


def test_a_ring_of_keys_and_values_leaves_where_the_next_rank_is_elsewhere() -> None:
    layout = expect(job("cp = 16, dp = 1, zero_stage = 0"))
    layout.traffic = [r for r in layout.traffic if r.group_kind == "cp"]
    found = crossing(layout, range(8))
    assert found.sent.expected == layout.traffic[0].bytes_per_step
    assert borders([list(range(16))], set(range(8))) == 1


def test_a_tied_embedding_may_be_exchanged_or_not() -> None:
    layout = expect(job("pp = 2, dp = 8, zero_stage = 0"))
    layout.traffic = [r for r in layout.traffic if r.group_kind == "embedding"]
    table = 32000 * 1024 * 2
    assert crossing(layout, range(8)).sent == (8 * table, 0, 8 * table)
    assert crossing(layout, range(16)).sent == (0, 0, 0)


def test_nothing_leaves_a_job_of_one_host_and_unknown_bytes_are_named() -> None:
    whole = crossing(expect(job("dp = 16, zero_stage = 0")), range(16))
    assert (whole.sent, whole.kinds) == ((0, 0, 0), ())
    bare = parse_job(b"world_size = 16\n[parallelism]\ndp = 16\nzero_stage = 0\n", "j")
    assert crossing(expect(bare), range(8)).unknown == ("dp all_reduce",)
