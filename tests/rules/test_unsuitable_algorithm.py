"""unsuitable-algorithm: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from nccl_rules import ONE_NODE, Build, findings, machine, say, text


def test_the_same_gpus_were_faster_with_another_algorithm(build: Build) -> None:
    (finding,) = findings(
        "unsuitable-algorithm", build(machine(24, 358, "Ring"), machine(24, 426, "NVLS"))
    )
    assert "358 GB/s with Ring and 426 with NVLS" in finding.summary


@pytest.mark.parametrize(
    "logs_of",
    [
        (machine(24, 384, "Ring"), machine(24, 426, "NVLS")),  # 9.9 %
        (machine(24, 300, "Ring"), machine(24, 426, "Ring")),  # the same algorithm
        (machine(2, 28, "Ring"), machine(24, 178, "NVLS")),  # channels explain it
        (machine(24, 358, "Ring"),),
    ],
)
def test_what_does_not_condemn_an_algorithm(logs_of: tuple[str, ...], build: Build) -> None:
    assert not findings("unsuitable-algorithm", build(*logs_of))


@pytest.mark.parametrize(("size", "fires"), [(4 << 20, True), ((4 << 20) - 1, False)])
def test_a_forced_ll_on_large_messages(size: int, fires: bool, build: Build) -> None:
    lines = [
        "NCCL_PROTO set by environment to LL.",
        f"AllReduce: {size} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..3}}",
    ]
    facts = build(text(ONE_NODE, [say(t, 0, "h0") for t in lines]))
    assert bool(findings("unsuitable-algorithm", facts)) is fires
    free = build(text(ONE_NODE, say(lines[1], 0, "h0")))
    assert not findings("unsuitable-algorithm", free)
