"""What a part of a difference is called."""

from __future__ import annotations

import pytest

from tracekit.comparison.model import Contribution, Interval
from tracekit.comparison.verdict import deed


@pytest.mark.parametrize(
    ("detail", "says"),
    [
        ("between calls in a/b", "rank 1 stands idle between calls in a/b"),
        ("between calls", "rank 1 stands idle between calls"),
        (f"between calls in {'a' * 70}/b", f"between calls in {'a' * 30}...{'a' * 28}/b"),
    ],
)
def test_a_long_path_of_ranges_is_told_by_its_ends(detail: str, says: str) -> None:
    part = Contribution(
        cause="idle", ranks=(1,), hosts=(), stage=None, operation=None, baseline_s=0.0,
        candidate_s=1.0, difference=Interval(difference_s=1.0, low_s=1.0, high_s=1.0),
        is_significant=True, detail=detail, detail_s=1.0, affected_steps_count=1, findings=(),
    )  # fmt: skip
    assert deed(part).endswith(says)
