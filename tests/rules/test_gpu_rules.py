"""Rules over GPU counters: fires, silent just below, exemptions, healthy twins, missing input."""

from __future__ import annotations

import pytest

from gpu_rules import ALL, gauge, run
from tracekit.rules import rule


@pytest.mark.parametrize("name", ALL)
def test_without_any_gpu_counter_a_rule_says_what_it_needs(name: str) -> None:
    (lack,) = run(name).not_checked
    assert lack.needs == rule(name).needs
    assert lack.capture == "tracekit capture --what dcgm"


@pytest.mark.parametrize("name", [n for n in ALL if n != "gpu-memory-fault"])
def test_with_other_counters_it_says_which_it_needs(name: str) -> None:
    (lack,) = run(name, gpu_counters=[gauge(0, "memory_used", 1, 1)]).not_checked
    assert lack.needs != rule(name).needs
