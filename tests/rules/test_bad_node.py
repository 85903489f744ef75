"""bad-node: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from nccl_rules import PAIRS, Build, findings, pair
from tracekit.rules import rule


@pytest.mark.parametrize(("speed", "fires"), [(10.7, True), (10.9, False), (None, True)])
def test_one_host_in_all_bad_pairs(speed: float | None, fires: bool, build: Build) -> None:
    facts = build(*(pair(x, y, speed if "c" in (x, y) else 13.5) for x, y in PAIRS))
    found = findings("bad-node", facts)
    assert [f.scope.hosts for f in found] == ([("c",)] if fires else [])


def test_one_bad_pair_names_nobody(build: Build) -> None:
    facts = build(*(pair(x, y, None if (x, y) == ("b", "c") else 13.5) for x, y in PAIRS))
    assert not findings("bad-node", facts)


def test_a_single_pair_is_not_enough_to_look(build: Build) -> None:
    outcome = rule("bad-node").run(build(pair("a", "b", None)))
    assert not outcome.findings
    assert "4 hosts" in outcome.not_checked[0].needs
