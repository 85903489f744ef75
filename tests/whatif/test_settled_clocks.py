"""Clocks settled one after another, against a list of all pairs that is easy to see through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

import numpy as np
import pytest

from tracekit.whatif import calls as calls_module
from tracekit.whatif.calls import MAX_CLOCK_SPREAD_NS, Call, ClockPairs, settled_clocks

US = 1000
Clocks = Mapping[int, tuple[int, int]]
Pairs = Mapping[tuple[int, int], int]


def call(ends: Mapping[int, int], op: str = "all_reduce") -> Call:
    return Call(op, "dp", "g", 4096, None, "device", dict.fromkeys(ends, 0), dict(ends))


def expected(calls: Iterable[Call], clocks: Clocks, pairs: Pairs) -> dict[int, int]:
    """Every pair's usual difference, then always the nearest of all clocks that are left."""
    errors = dict(clocks.values())
    apart: dict[tuple[int, int], list[float]] = {}
    for one_call in calls:
        if one_call.op == "broadcast":
            continue
        left: dict[int, list[int]] = {}
        for rank, end in one_call.ends.items():
            left.setdefault(clocks[rank][0], []).append(end)
        middle = {c: sorted(v)[len(v) // 2] for c, v in left.items()}
        best = min(middle, key=lambda c: (errors[c], c))
        for pair in combinations(sorted(middle), 2):
            if best in pair or pair in pairs:
                apart.setdefault(pair, []).append(middle[pair[1]] - middle[pair[0]])
    told = []
    for (one, other), values in apart.items():
        low, usual, high = np.percentile(values, [25, 50, 75])
        if high - low <= max(MAX_CLOCK_SPREAD_NS, abs(usual) / 2):
            bound = pairs.get((one, other), errors[one] + errors[other])
            told.append((bound, float(high - low), other, -round(float(usual)), one))
            told.append((bound, float(high - low), one, round(float(usual)), other))
    first = min(errors, key=lambda c: (errors[c], c))
    found = {first: 0}
    while True:
        near = [e for e in told if e[4] in found and e[2] not in found]
        if not near:
            return {c: ns for c, ns in found.items() if ns}
        bound, _, clock, by, against = min(near)
        shift = found[against] + max(-bound, min(bound, by))
        found[clock] = max(-errors[clock], min(errors[clock], shift))


def job(seed: int) -> tuple[list[Call], Clocks, Pairs]:
    """Ranks of which some share a clock, in groups that overlap; errors and bounds of which many
    are equal; ends that agree and ends that scatter."""
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(2, 14))
    clock_of = rng.integers(0, max(2, int(rng.integers(1, ranks + 1))), ranks).tolist()
    errors = {c: 50 * US * int(e) for c, e in enumerate(rng.integers(0, 4, ranks))}
    off = rng.integers(-100 * US, 100 * US, ranks)
    calls = []
    for _ in range(int(rng.integers(1, 6))):
        members = rng.choice(ranks, int(rng.integers(2, ranks + 1)), replace=False).tolist()
        scatter = int(rng.choice([100, 10 * US, 80 * US]))
        op = "broadcast" if rng.random() < 0.1 else "all_reduce"
        for k in range(int(rng.integers(1, 9))):
            ends = {
                r: 10**7 * k + int(off[clock_of[r]]) + int(rng.integers(scatter)) for r in members
            }
            calls.append(call(ends, op))
    known = [p for p in combinations(sorted(set(clock_of)), 2) if rng.random() < 0.5]
    pairs = {p: 10 * US * int(rng.integers(1, 5)) for p in known}
    return calls, {r: (c, errors[c]) for r, c in enumerate(clock_of)}, pairs


def test_the_nearest_clock_is_settled_first() -> None:
    moved = 0
    for seed in range(400):
        calls, clocks, pairs = job(seed)
        found = settled_clocks(calls, clocks, pairs)
        assert found == expected(calls, clocks, pairs), seed
        moved += bool(found)
    assert moved > 100


def test_of_all_pairs_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 200
    rng = np.random.default_rng(0)
    calls = [
        call({r: int(e) for r, e in enumerate(10**7 * k + rng.integers(0, 5 * US, count))})
        for k in range(5)
    ]
    clocks = {r: (r, 100 * US if r else 0) for r in range(count)}
    pairs = {p: int(rng.integers(US, 200 * US)) for p in combinations(range(count), 2)}
    looked = 0
    apart = calls_module._Ends.apart

    def counted(self: calls_module._Ends, a: int, b: int, *, everywhere: bool) -> object:
        nonlocal looked
        looked += 1
        return apart(self, a, b, everywhere=everywhere)

    monkeypatch.setattr(calls_module._Ends, "apart", counted)
    assert settled_clocks(calls, clocks, pairs)
    assert looked < len(pairs) / 8


@pytest.mark.parametrize("seed", range(50))
def test_quantiles_are_numpys_to_the_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = sorted(rng.integers(-(10**9), 10**9, int(rng.integers(1, 40))).astype(float).tolist())
    ours = [calls_module.quantile(values, share) for share in (0.25, 0.5, 0.75)]
    assert ours == np.percentile(values, [25, 50, 75]).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_pairs_as_columns_are_the_same_mapping(seed: int) -> None:
    calls, clocks, pairs = job(seed)
    columns = ClockPairs.of(pairs)
    assert dict(columns) == dict(pairs)
    assert len(columns) == len(pairs)
    assert (10**6, 10**6 + 1) not in columns
    with pytest.raises(KeyError):
        columns[10**6, 10**6 + 1]
    assert settled_clocks(calls, clocks, columns) == settled_clocks(calls, clocks, pairs)
