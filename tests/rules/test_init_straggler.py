"""init-straggler: when it fires, when just not, and what exempts."""

from __future__ import annotations

import pytest

from nccl_rules import Build, findings, started, text, timing
from tracekit.findings import Severity


@pytest.mark.parametrize(
    ("wait", "severity"), [(61.0, Severity.MINOR), (11.0, Severity.NOTE), (9.9, None)]
)
def test_the_late_rank_has_the_short_bootstrap(
    wait: float, severity: Severity | None, build: Build
) -> None:
    lines = [x for r in range(8) for x in timing(r, 8, 0.05 if r == 5 else wait)]
    found = findings("init-straggler", build(text(lines)))
    assert [f.severity for f in found] == ([severity] if severity else [])
    if found:
        assert "Rank 5 of a communicator of 8" in found[0].summary


def test_a_bootstrap_that_is_long_for_all_names_nobody(build: Build) -> None:
    lines = [x for r in range(8) for x in timing(r, 8, 60.0 + r)]
    assert not findings("init-straggler", build(text(lines)))


def test_ranks_that_never_began_while_the_others_wait(build: Build) -> None:
    lines = [x for r in range(8) if r != 6 for x in started(r, 8)]
    (finding,) = findings("init-straggler", build(text(lines)))
    assert "rank 6 of 8 never appear" in finding.summary
    assert finding.scope.ranks == ()  # absence names a candidate, not a culprit
    done = [x for r in range(8) if r != 6 for x in started(r, 8, complete=r == 0)]
    assert not findings("init-straggler", build(text(done)))
