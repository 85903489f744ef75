"""tensor-group-spans-hosts: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from nccl_rules import Build, comm, findings, text


@pytest.mark.parametrize(
    ("kind", "nodes", "fires"), [("tp", 2, True), ("tp", 1, False), ("dp", 2, False)]
)
def test_a_tensor_group_over_machines_by_nccls_own_count(
    kind: str, nodes: int, fires: bool, build: Build
) -> None:
    ranks = [*comm(0, nodes=nodes, host="pod-0"), *comm(1, nodes=nodes, host="pod-1")]
    group = {"name": "tp", "kind": kind, "comm_hash": "0xAA", "ranks": [0, 1], "group_id": "g"}
    facts = build(text(ranks), groups=[group])
    assert bool(findings("tensor-group-spans-hosts", facts)) is fires
