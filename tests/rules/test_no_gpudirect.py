"""no-gpudirect: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from nccl_rules import PAIR, Build, findings, net, say, text
from tracekit.findings import Severity


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0' (no module)", "peer-memory module"),
        ("GPU Direct RDMA Disabled for GPU 17000 / HCA 0 (distance 5 > 4), read 0", "too far"),
        ("NCCL_NET_GDR_LEVEL set by environment to LOC.", "NCCL_NET_GDR_LEVEL=LOC"),
    ],
)
def test_rdma_without_gpudirect(line: str, why: str, build: Build) -> None:
    facts = build(text(PAIR, say(line, 0, "h0"), net("IB/0")))
    (finding,) = findings("no-gpudirect", facts)
    assert why in finding.summary
    assert finding.severity is Severity.MINOR


@pytest.mark.parametrize("way", ["IB/0/GDRDMA", "IB/0/GDRDMA/Shared", "Socket/0", "FastSocket/0"])
def test_gpudirect_or_no_rdma_at_all_is_fine(way: str, build: Build) -> None:
    assert not findings("no-gpudirect", build(text(PAIR, net(way))))


def test_a_few_connections_without_it_are_below_the_threshold(build: Build) -> None:
    good = [line for c in range(10) for line in net(f"IB/{c}/GDRDMA")]
    edges = text(PAIR, good, net("IB/11"))
    assert not findings("no-gpudirect", build(edges))
    assert findings("no-gpudirect", build(text(PAIR, good[:16], net("IB/11"))))
