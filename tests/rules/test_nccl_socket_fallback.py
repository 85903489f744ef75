"""nccl-socket-fallback: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from nccl_logs import info
from nccl_rules import PAIR, Build, findings, net, say, text
from tracekit.findings import Severity
from tracekit.rules import rule


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("NCCL_IB_DISABLE set by environment to 1.", "NCCL_IB_DISABLE=1 is set"),
        ("NET/IB : No device found.", "no InfiniBand or RoCE device"),
        ("Failed to open libibverbs.so[.1]", "libibverbs"),
        ("Failed to initialize NET plugin IBext_v8", "plugin failed"),
        ("", "does not say why"),
    ],
)
def test_sockets_between_machines_with_the_reason(line: str, why: str, build: Build) -> None:
    facts = build(text(PAIR, [say(line, 0, "h0")] if line else [], net("Socket/0")))
    (finding,) = findings("nccl-socket-fallback", facts)
    assert why in finding.summary
    assert finding.scope.hosts == ("h0", "h1")
    assert finding.severity is (Severity.MAJOR if line else Severity.MINOR)
    assert finding.confidence.level == "possible"
    assert finding.evidence[0].rows


def test_using_network_socket_is_enough_without_connections(build: Build) -> None:
    lines = [say("Using network Socket", r, f"h{r}") for r in range(2)]
    assert findings("nccl-socket-fallback", build(text(PAIR, lines)))
    mixed = [say(f"Using network {n}", r, f"h{r}") for r, n in enumerate(("IB", "Socket"))]
    assert not findings("nccl-socket-fallback", build(text(PAIR, mixed)))


def test_few_sockets_beside_rdma_are_no_fallback(build: Build) -> None:
    facts = build(text(PAIR, net("IB/0/GDRDMA"), net("IB/0/GDRDMA"), net("IB/1/GDRDMA"),
                       net("Socket/0")))  # fmt: skip
    assert not findings("nccl-socket-fallback", facts)


def test_it_cannot_tell_whether_a_lone_rank_spans_machines(build: Build) -> None:
    line = "comm 0x7f rank 0 nranks 4 cudaDev 0 busId 1000 - Init COMPLETE"
    outcome = rule("nccl-socket-fallback").run(
        build(text(info(line), info("Using network Socket")))
    )
    assert not outcome.findings
    assert outcome.not_checked
