"""shm-instead-of-p2p: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from nccl_rules import ONE_NODE, SHM, Build, comm, findings, gpu_path, say, text


def test_shared_memory_where_nvlink_joins(build: Build) -> None:
    lines = text(ONE_NODE, say(gpu_path("NVL"), 0, "h0"), say(SHM, 0, "h0"),
                 say("NCCL_P2P_DISABLE set by environment to 1.", 0, "h0"))  # fmt: skip
    (finding,) = findings("shm-instead-of-p2p", build(lines))
    assert "NVLink joins them" in finding.summary
    assert "NCCL_P2P_DISABLE=1" in finding.summary


@pytest.mark.parametrize("kind", ["SYS", "PHB", "PIX"])
def test_gpus_without_nvlink_may_use_shared_memory(kind: str, build: Build) -> None:
    lines = text(ONE_NODE, say(gpu_path(kind), 0, "h0"), say(SHM, 0, "h0"))
    assert not findings("shm-instead-of-p2p", build(lines))


def test_shared_memory_without_any_stated_path_is_not_accused(build: Build) -> None:
    assert not findings("shm-instead-of-p2p", build(text(ONE_NODE, say(SHM, 0, "h0"))))


def test_the_same_pair_of_slots_uses_p2p_on_another_host(build: Build) -> None:
    def machine(host: str, ident: str, way: str) -> list[str]:
        lines = [*comm(0, nodes=1, host=host, comm_id=ident), *comm(1, nodes=1, host=host,
                                                                    comm_id=ident)]  # fmt: skip
        return [*lines, say(f"Channel 00/0 : 0[0] -> 1[1] via {way}", 0, host)]

    facts = build(text(machine("a", "0xaa", "P2P/CUMEM")), text(machine("b", "0xbb", "SHM/direct")))
    (finding,) = findings("shm-instead-of-p2p", facts)
    assert finding.scope.hosts == ("b",)


def test_pods_with_other_names_are_not_one_host(build: Build) -> None:
    pods = [*comm(0, nodes=1, host="pod-0"), *comm(1, nodes=1, host="pod-1")]
    lines = text(pods, say(gpu_path("NVL"), 0, "pod-0"), say(SHM, 0, "pod-0"))
    assert not findings("shm-instead-of-p2p", build(lines))
