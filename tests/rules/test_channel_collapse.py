"""channel-collapse: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from nccl_rules import ONE_NODE, Build, comm, findings, limited, machine, say, searched, text
from tracekit.findings import Severity


def test_fewer_channels_than_the_same_gpus_had_elsewhere(build: Build) -> None:
    (finding,) = findings("channel-collapse", build(machine(24, 178), machine(2, 28)))
    assert "2 channels where the same 2 GPUs had 24" in finding.summary
    assert "from 178 to 28 GB/s" in finding.summary
    assert finding.severity is Severity.MAJOR
    assert finding.confidence.level == "likely"
    assert finding.evidence[0].rows[0].source == "1.log"


def test_without_a_benchmark_the_loss_is_not_claimed(build: Build) -> None:
    (finding,) = findings("channel-collapse", build(machine(24), machine(12)))
    assert finding.severity is Severity.MINOR
    assert finding.confidence.level == "possible"
    assert not findings("channel-collapse", build(machine(24), machine(13)))


def test_other_gpus_or_another_size_are_never_compared(build: Build) -> None:
    other = text([line for r in range(2) for line in comm(r, nodes=1, channels=2, bus=0x40)])
    assert not findings("channel-collapse", build(machine(24), other))
    larger = text([line for r in range(4) for line in comm(r, 4, nodes=1, channels=2)])
    assert not findings("channel-collapse", build(machine(24), larger))


def test_one_rank_with_fewer_channels_than_its_peers(build: Build) -> None:
    ranks = [line for r in range(4) for line in comm(r, 4, channels=2 if r == 3 else 16)]
    (finding,) = findings("channel-collapse", build(text(ranks)))
    assert finding.summary.startswith("Rank 3 of a communicator of 4 set up 2 of 16")


def test_a_setting_that_leaves_fewer_channels_than_rings(build: Build) -> None:
    (finding,) = findings("channel-collapse", build(limited(4, 8)))
    assert finding.summary.startswith("NCCL uses 4 channels where its search found rings for 8")
    assert not findings("channel-collapse", build(limited(5, 8)))
    assert not findings("channel-collapse", build(limited(4, 8, "NCCL_IB_TC")))


def test_rings_of_another_communicator_accuse_nobody(build: Build) -> None:
    # One GPU a machine: its rings over the network are few, and say nothing of NVLink.
    lines: list[str] = []
    for rank in (0, 1):
        start, *rest = comm(rank, nodes=1, host="h0", comm_id="0xbb")
        system = say("=== System : maxBw 450.0 totalBw 450.0 ===", rank, "h0")
        lines += [start, system, searched(8, rank, "h0"), *rest]
    for rank in (0, 1):
        start, *rest = (
            line.replace(f"0x7f{rank:02x}0", f"0x8f{rank:02x}0") for line in
            comm(rank, nodes=2, host="h0", comm_id="0xcc", channels=2)
        )  # fmt: skip
        lines += [start, searched(1, rank, "h0"), *rest]
    assert not findings("channel-collapse", build(text(lines)))


@pytest.mark.parametrize(
    ("rings", "kind", "fires"), [(2, "NVL", True), (3, "NVL", False), (2, "PHB", False)]
)
def test_rings_that_use_little_of_the_stated_nvlink(
    rings: int, kind: str, fires: bool, build: Build
) -> None:
    lines = [
        "=== System : maxBw 240.0 totalBw 240.0 ===",
        f"Pattern 4, crossNic 0, nChannels {rings}, bw 20.0/20.0, type {kind}/PIX, sameChannels 1",
    ]
    facts = build(text(ONE_NODE, [say(t, 0, "h0") for t in lines]))
    assert bool(findings("channel-collapse", facts)) is fires
