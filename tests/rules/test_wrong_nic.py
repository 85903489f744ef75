"""wrong-nic: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from nccl_rules import FOUR, LIST, Build, eight, findings, matrix, say, text
from tracekit.findings import Severity


def test_all_ranks_on_one_nic_of_two(build: Build) -> None:
    (finding,) = findings("wrong-nic", build(text(say(LIST, 0, "h0"), eight([0] * 4))))
    assert "mlx5_0" in finding.summary
    assert finding.scope.hosts == ("h0",)


@pytest.mark.parametrize(
    ("here", "there", "is_odd"),
    [
        ([0, 0, 0], [0, 1, 2], True),
        ([0, 0, 0], [0, 1, 1], False),  # shared there too
        ([0, 0], [0, 1], False),  # two may be a pair, and those of the other machine of two pairs
        ([0, 0, 1], [0, 1, 2], False),
    ],
)
def test_three_on_one_nic_are_odd_where_three_elsewhere_have_their_own(
    here: list[int], there: list[int], is_odd: bool, build: Build
) -> None:
    """A log of the fourth is missing."""
    count = len(here)
    three = LIST.replace(" [RO]", " [2]mlx5_2:1/IB [RO]")
    lines = text(say(three, 0, "h0"), say(three, count, "h1"), eight(here, count))
    for rank, device in enumerate(there):
        edge = f"Channel 00/0 : {rank + count}[0] -> {rank}[0] [send] via NET/IB/{device}/GDRDMA"
        lines += text(say(edge, rank + count, "h1"))
    assert [f.scope.hosts for f in findings("wrong-nic", build(lines))] == [("h0",)] * is_odd


def test_several_nics_or_few_ranks_or_one_nic_are_fine(build: Build) -> None:
    assert not findings("wrong-nic", build(text(say(LIST, 0, "h0"), eight([0, 0, 1, 1]))))
    assert not findings("wrong-nic", build(text(say(LIST, 0, "h0"), eight([0] * 3, 3))))
    alone = LIST.replace(" [1]mlx5_1:1/IB", "")
    assert not findings("wrong-nic", build(text(say(alone, 0, "h0"), eight([0] * 4))))


@pytest.mark.parametrize(("speed", "count"), [(199000, 1), (200000, 0)])
def test_a_nic_slower_than_half_of_the_fastest(speed: int, count: int, build: Build) -> None:
    nics = [
        say(f"NET/IB : Made virtual device [{i}] name=mlx5_{i} speed={s} ndevs=1", 0, "h0")
        for i, s in enumerate((400000, speed))
    ]
    facts = build(text(nics, eight([1, 1, 1, 1])))
    assert len([f for f in findings("wrong-nic", facts) if f.scope.devices]) == count


def test_ranks_that_pass_the_nic_beside_them_by(build: Build) -> None:
    lines = text(say(FOUR, 0, "h0"), eight([1, 0, 3, 2]))
    assert not findings("wrong-nic", build(lines))  # nobody says which NIC is near
    (finding,) = findings("wrong-nic", build(lines, matrix([0, 1, 2, 3])))
    assert finding.summary == (
        "4 of 4 GPUs on h0 pass a nearer NIC by: GPU0 sends over mlx5_1 (SYS), with mlx5_0 beside "
        "it (PIX)."
    )
    assert finding.severity is Severity.MINOR
    assert finding.evidence[1].rows[0].source == "h0.topo"
    (finding,) = findings("wrong-nic", build(lines, matrix([0, 1, 2, 3], host=None)))
    assert "taken for this one" in finding.confidence.basis


@pytest.mark.parametrize(("devices", "severity"), [([1, 0, 2, 3], Severity.MINOR),
                                                   ([1, 1, 2, 3], Severity.NOTE)])  # fmt: skip
def test_few_ranks_that_pass_it_by_are_a_note(
    devices: list[int], severity: Severity, build: Build
) -> None:
    lines = text(say(FOUR, 0, "h0"), eight(devices))
    (finding,) = findings("wrong-nic", build(lines, matrix([0, 1, 2, 3])))
    assert finding.severity is severity


def test_nics_that_are_as_near_as_may_be_pass_nobody_by(build: Build) -> None:
    own = matrix([0, 1, 2, 3])
    used = text(say(FOUR, 0, "h0"), eight([0, 1, 2, 3]))
    assert not findings("wrong-nic", build(used, own))
    swapped = text(say(FOUR, 0, "h0"), eight([1, 0, 3, 2]))
    # Several switches are no CPU; no NIC is near; the host is another; NCCL lists other NICs.
    assert not findings("wrong-nic", build(swapped, matrix([0, 1, 2, 3], far="PXB")))
    assert not findings("wrong-nic", build(swapped, matrix([9, 9, 9, 9])))
    assert not findings("wrong-nic", build(swapped, matrix([0, 1, 2, 3], host="h7")))
    other = text(say(FOUR.replace("mlx5", "bnxt"), 0, "h0"), eight([1, 0, 3, 2]))
    assert not findings("wrong-nic", build(other, own))
    # A NIC that NCCL does not list (filtered, or for storage) is none that it could have used.
    two = "NET/IB : Using [0]mlx5_2:1/IB [1]mlx5_3:1/IB [RO]; OOB eth0:10.0.0.1<0>"
    assert not findings("wrong-nic", build(text(say(two, 0, "h0"), eight([0, 1, 0, 1])), own))


def test_without_every_gpu_an_index_is_no_address(build: Build) -> None:
    few = text(say(FOUR, 0, "h0"), eight([1, 0, 3], 3))
    assert not findings("wrong-nic", build(few, matrix([0, 1, 2, 3])))
