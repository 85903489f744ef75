"""gpu-outlier: when it fires, when just not, and what exempts."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_rules import only, run, temperatures
from tracekit.findings import Severity
from tracekit.rules import RuleOutcome


def test_a_hot_gpu_is_a_note() -> None:
    finding = only(run("gpu-outlier", gpu_counters=temperatures(63)))
    assert finding.severity is Severity.NOTE
    assert finding.summary == "GPU 3 of h0 is unlike its peers: temperature 63 against 45 C."


@pytest.mark.parametrize(
    "rows",
    [
        temperatures(54.9),  # less than 10 degrees above
        [r | {"highest_ratio": 0.89} for r in temperatures(63)],
        [r | {"moments_count": 2} for r in temperatures(63)],
        [r | {"peers_count": 2} for r in temperatures(63)],
    ],
)
def test_a_gpu_that_stands_out_less_is_none(rows: list[dict[str, Any]]) -> None:
    assert run("gpu-outlier", gpu_counters=rows) == RuleOutcome()


def test_a_wide_spread_makes_no_outlier() -> None:
    rows = temperatures(63)
    for index, value in enumerate((25.0, 45.0, 60.0)):
        rows[index] |= {"p50_value": value}
    assert run("gpu-outlier", gpu_counters=rows) == RuleOutcome()


def test_gpus_of_another_group_have_no_say_in_the_spread() -> None:
    rows = temperatures(63)
    far = [
        r | {"gpu_id": f"h1 GPU {i}", "peer_group": "unknown model of h1", "p50_value": v}
        for i, (r, v) in enumerate(zip(rows[:3], (25.0, 60.0, 95.0), strict=True))
    ]
    alone = only(run("gpu-outlier", gpu_counters=rows))
    assert only(run("gpu-outlier", gpu_counters=[*rows, *far])).summary == alone.summary
    pooled = [r | {"peer_group": rows[0]["peer_group"]} for r in far]
    assert run("gpu-outlier", gpu_counters=[*rows, *pooled]) == RuleOutcome()
