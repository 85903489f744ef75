"""config-mismatch: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from nccl_rules import PAIR, Build, comm, findings, say, text


def test_versions_and_settings_that_differ(build: Build) -> None:
    env = "NCCL_ALGO set by environment to {}."
    lines = [
        *comm(0, version="2.20.5"), *comm(1, version="2.21.5"),
        say(env.format("Ring"), 0, "h0"), say(env.format("Tree"), 1, "h1"),
    ]  # fmt: skip
    found = findings("config-mismatch", build(text(lines)))
    assert [f.id for f in found] == ["config-mismatch/NCCL-version", "config-mismatch/NCCL_ALGO"]
    assert "2.20.5 in 1 and 2.21.5 in 1" in found[0].summary


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_TOPO_FILE"])
def test_what_may_differ_between_hosts(name: str, build: Build) -> None:
    lines = [say(f"{name} set by environment to e{r}.", r, f"h{r}") for r in range(2)]
    assert not findings("config-mismatch", build(text(PAIR, lines)))


def test_a_rank_that_does_not_mention_a_setting_does_not_lack_it(build: Build) -> None:
    line = say("NCCL_ALGO set by environment to Ring.", 0, "h0")
    assert not findings("config-mismatch", build(text(PAIR, line)))


def using(count: int, rank: int) -> str:
    """The NICs that a process's NCCL found."""
    nics = " ".join(f"[{i}]rdma_{i}:1/RoCE" for i in range(count))
    return say(f"NET/IB : Using {nics} [RO]; OOB eth0:10.0.0.{rank}<0>", rank, f"h{rank}")


def test_a_process_that_uses_fewer_nics_and_could_not_open_one(build: Build) -> None:
    unopened = say("NET/IB : Unable to open device rdma_1", 1, "h1")
    (finding,) = findings("config-mismatch", build(text(PAIR, using(2, 0), unopened, using(1, 1))))
    assert finding.id == "config-mismatch/number-of-NICs"
    assert finding.summary == (
        "Number of NICs differs between the processes of one job: 1 in 1 and 2 in 1; NCCL could "
        "not open rdma_1 on h1."
    )
    assert not findings("config-mismatch", build(text(PAIR, using(2, 0), using(2, 1))))
