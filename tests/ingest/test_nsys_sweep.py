"""The sweep gives each range exactly what asking every range about every launch would."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tracekit.ingest.nsys.sweep import NEVER, Launched, project


def nested(rng: random.Random, low: int, high: int, depth: int) -> list[tuple[int, int]]:
    """Ranges that nest, some of them equal or touching."""
    found: list[tuple[int, int]] = []
    at = low
    while at < high and depth:
        end = rng.randint(at, high)
        found += [(at, end), *nested(rng, at, end, depth - 1 - rng.randint(0, 1))]
        at = end + rng.randint(0, 3)
        if rng.random() < 0.3:
            break
    return found


@pytest.mark.parametrize("crossing", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_the_sweep_agrees_with_asking_every_range(seed: int, crossing: bool) -> None:
    rng = random.Random(seed)  # noqa: S311  # repeatable rows, no secret
    ranges: list[tuple[int, int, int]] = []
    for one in (1, 2):
        spans = nested(rng, 0, 60, 4)
        if crossing:
            spans += [(a, a + rng.randint(0, 30)) for a in rng.choices(range(60), k=6)]
        rng.shuffle(spans)
        ranges += [(one, a, b) for a, b in spans]
    begins = [rng.randint(0, 65) for _ in range(50)]
    calls = [(rng.choice((1, 2, 3)), b, b + rng.randint(1, 8)) for b in begins]
    thread, start, end = (np.array(c, np.int64) for c in zip(*ranges, strict=True))
    call_thread, call_start, call_end = (np.array(c, np.int64) for c in zip(*calls, strict=True))
    first = call_start + 100
    last = first + np.arange(len(calls))
    found = project(thread, start, end, Launched(call_thread, call_start, call_end, first, last))
    for i, (t, a, b) in enumerate(ranges):
        held = [j for j, (ct, ca, cb) in enumerate(calls) if ct == t and a <= ca and cb <= b]
        assert found.launches[i] == len(held)
        assert found.first[i] == min((int(first[j]) for j in held), default=NEVER)
        assert found.last[i] == max((int(last[j]) for j in held), default=-NEVER)


def test_no_ranges_and_no_launches() -> None:
    none = np.zeros(0, np.int64)
    assert len(project(none, none, none, Launched(none, none, none, none, none)).launches) == 0
    one = np.array([5], np.int64)
    alone = project(one, one, one, Launched(none, none, none, none, none))
    assert alone.launches.tolist() == [0]
