"""A process that something stops now and then: its transfers stand still with it.

A stopped process, or a container at its CPU quota, computes nothing and sends nothing either. If
the rank did as its peers, its transfers would take what the same call takes in steps in which no
stop met it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from tracekit.whatif.calls import transfers_of
from tracekit.whatif.collectives.peers import parts_of
from tracekit.whatif.collectives.windows import Window

MIN_STEPS_COUNT = 5
"""Steps with the same call: of fewer the lower quartile is the least, which noise makes too low."""

UNDISTURBED = 0.25
"""Quantile of the steps' times taken for one that no stop met."""

MIN_EXCESS_RATIO = 0.10
"""Of its peers' time, what a rank must take longer: less is what healthy steps vary by."""

MIN_PASSING_RATIO = 0.5
"""Of that, what must come and go: a rank that is slow throughout is not stopped."""

MAX_PLACE_RATIO = 0.5
"""Of what comes and goes, what may lie between the same two calls: a stop strikes anywhere; input,
a save or a collection have their place in the step."""

Key = tuple[str, str, int, int]
"""Of a call in its step: communicator, operation, bytes, which of these."""


def stands_still(windows: Sequence[Window], rank: int) -> bool:
    """Whether now and then, and anywhere in the step, something stops this rank."""
    times: dict[tuple[object, int], list[tuple[float, float]]] = defaultdict(list)
    for window in windows:
        for part in parts_of(window, rank):
            ideal = [sum(i.ideal_ns for i in segment) for segment in part.items]
            for k, pair in enumerate(zip(part.own_ns, ideal, strict=True)):
                times[part.signature, k].append(pair)
    excess = usual = 0.0
    passing: list[float] = []
    for pairs in times.values():
        if len(pairs) < MIN_STEPS_COUNT:
            continue
        own, ideal = np.array(pairs).T
        usual += float(ideal.sum())
        excess += float(np.maximum(0.0, own - ideal).sum())
        undisturbed = np.maximum(ideal, np.quantile(own, UNDISTURBED, method="lower"))
        passing.append(float(np.maximum(0.0, own - undisturbed).sum()))
    total = sum(passing)
    return (
        total > 0
        and excess >= MIN_EXCESS_RATIO * usual
        and total >= MIN_PASSING_RATIO * excess
        and max(passing) <= MAX_PLACE_RATIO * total
    )


def undisturbed(windows: Sequence[Window], ranks: Iterable[int]) -> list[Window]:
    """The windows with the transfers of these ranks as the same calls take them in steps that no
    stop met; those of messages, which last until somebody asks for them, as they were."""
    by_key: dict[Key, dict[tuple[int, int], int]] = defaultdict(dict)
    """By the call's place in a step: window and number of each, and how long it took."""
    for position, window in enumerate(windows):
        for rank in ranks:
            for key, number in _keyed(window, rank):
                took = max(transfers_of(window.calls[number]).values())
                by_key[key][position, number] = took
    changed = [dict(window.calls) for window in windows]
    for took_ns in by_key.values():
        if len(took_ns) < MIN_STEPS_COUNT:
            continue
        usual = float(np.quantile([*took_ns.values()], UNDISTURBED, method="lower"))
        for (position, number), took in took_ns.items():
            if took > usual:
                call = changed[position][number]
                shorter = {
                    rank: round(end - max(0.0, transfers_of(call)[rank] - usual))
                    for rank, end in call.ends.items()
                }
                changed[position][number] = call.with_ends(shorter)
    return [replace(w, calls=calls) for w, calls in zip(windows, changed, strict=True)]


def _keyed(window: Window, rank: int) -> Iterable[tuple[Key, int]]:
    for part in parts_of(window, rank):
        counts: dict[tuple[str, str, int], int] = defaultdict(int)
        for item in part.enters:
            call = window.calls[item.call]
            if call.all_needed and not call.sends:
                kind = call.lane, call.op, call.size_bytes
                yield (*kind, counts[kind]), item.call
                counts[kind] += 1
