"""Where the culprit may be when it left no trace: the smallest set that the traces allow.

Not only the members that the traced ranks wait for: those may wait themselves, for ranks of other
groups that no traced rank belongs to. So everybody without a trace is a candidate, until one of
three things excludes somebody:

- a calm communicator whose calls surround the waiting clears its members: a late one would have
  been seen there. One that is only used later proves nothing: by then everybody is late.
- waiting in a call before which, in the same step, the traced member was in no other communicator,
  and in this one already: where all members run one program, the absent one was nowhere else
  either, so since they left together nobody else can have held it up. The culprit is in that
  communicator. (Nothing else in the step, not only nothing in between: streams run beside each
  other, and the late member may still be where the traced one was long ago.)
- communicators that are used alike by traced ranks that work together (one for each tensor rank,
  say): the ranks that an absent one works with are in the others. If one of these ends its waiting
  later than the others in nearly every step, and by as much of the stretch of work since the last
  call elsewhere as the whole waiting is of all the work, its member is slow throughout, and its
  mates are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct

from tracekit.findings import Candidates
from tracekit.rules.base import Facts, Row
from tracekit.rules.facts import MAX_CANDIDATES
from tracekit.rules.lateness.search import scatter
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import plural, ranges

MAX_NAMED = 8
"""Hosts that a sentence lists; ``candidates.hosts`` has them all."""


class AbsentThresholds(Thresholds):
    """When absent ranks may be late, and when some of them are not."""

    min_estimated_ratio: float = threshold(
        0.10, "waiting of the traced ranks for absent ones, over the step; as exposed comm (D27)"
    )
    min_own_ratio: float = threshold(
        0.05, "of that, waiting that only members of the communicator can cause; as major"
    )
    min_ended_last_ratio: float = threshold(
        0.8, "share of steps in which one of several like communicators ends last; as for D1"
    )
    min_excess_mads: float = threshold(
        3.5, "scaled median absolute deviations by which it ends later than the others (3.2)"
    )
    min_times_others_ratio: float = threshold(
        2.0, "times the excess of the next: one communicator, not several by turns"
    )
    min_sibling_steps_count: int = threshold(3, "steps in which it was compared, as for D16")
    max_unlike_ratio: float = threshold(
        2.0, "the delay in the last stretch of work against that in all of it: one cause or two"
    )


class Suspects(Struct, frozen=True):
    """Ranks without a trace that may be the culprit, and why no others, or why so many."""

    ranks: tuple[int, ...]
    why: str


def suspects(
    facts: Facts, heavy: Sequence[Row], calm: Sequence[Row], limits: AbsentThresholds
) -> Suspects:
    """The candidates. ``heavy`` rows of absent_waits show waiting, ``calm`` ones little."""
    everybody = {int(rank) for r in (*heavy, *calm) for rank in r["missing_ranks"]}
    everybody |= set(facts.missing_ranks)
    possible = everybody - _cleared(heavy, calm) or everybody
    inside_only = [r for r in heavy if _is_own(facts, r, limits)]
    if inside_only:
        inside = _common([set(map(int, r["missing_ranks"])) for r in inside_only])
        return Suspects(
            tuple(sorted(inside)),
            "the waiting is there before the members were in any other communicator in the step: "
            "nobody outside can have held up the absent ones",
        )
    slowest = _slowest_sibling(heavy, limits)
    if slowest is not None:
        inside = {int(rank) for rank in slowest["missing_ranks"]} & possible
        excess_us = float(slowest["excess_ns"]) / 1e3
        if inside:
            return Suspects(
                tuple(sorted(inside)),
                f"of {int(slowest['siblings_count'])} communicators that are used alike, that of "
                f"rank {ranges(slowest['traced_ranks'])} ends its waiting last, by "
                f"{excess_us:.0f} us: as much of the work since the last call elsewhere as the "
                "whole waiting is of all the work. The mates of a slow rank in the other "
                "communicators wait for it and add nothing",
            )
    if possible != everybody:
        why = (
            "every rank without a trace can hold up those that the traced ranks wait for; left "
            "out are members of communicators in which no traced rank waits, though they are used "
            "before and after the waiting"
        )
    elif any(possible <= set(map(int, r["missing_ranks"])) for r in heavy):
        why = "the traced ranks wait for all of them at once, and which came last leaves no trace"
    else:
        why = (
            "those that the traced ranks wait for have calls with others in between and may have "
            "waited there themselves: nothing in these traces tells the ranks without one apart"
        )
    if len(possible) > MAX_CANDIDATES:
        why += f"; of {len(possible):,} the first {MAX_CANDIDATES:,} are listed"
    return Suspects(tuple(sorted(possible)[:MAX_CANDIDATES]), why)


def _cleared(heavy: Sequence[Row], calm: Sequence[Row]) -> set[int]:
    """Members of calm communicators whose calls surround the waiting."""
    moments = [float(r["wait_after_ns"]) for r in heavy if r["wait_after_ns"] is not None]
    cleared: set[int] = set()
    for row in calm:
        first, last = row["first_after_ns"], row["last_after_ns"]
        if moments and first is not None and first <= min(moments) and max(moments) <= last:
            cleared |= set(row["missing_ranks"])
    return cleared - {int(rank) for r in heavy for rank in r["missing_ranks"]}


def _is_own(facts: Facts, row: Row, limits: AbsentThresholds) -> bool:
    own_ns = row.get("own_wait_per_step_ns")
    return own_ns is not None and float(own_ns) >= limits.min_own_ratio * facts.steps.step_ns


def _common(sets: Sequence[set[int]]) -> set[int]:
    """What all have in common: one culprit explains them; else whoever is in any of them."""
    return set.intersection(*sets) or set.union(*sets)


def _slowest_sibling(heavy: Sequence[Row], limits: AbsentThresholds) -> Row | None:
    """The one communicator of several used alike whose absent member is slow; None if unclear."""
    known = [r for r in heavy if r.get("excess_ns") is not None]
    slow = []
    for row in known:
        others = [float(r["excess_ns"]) for r in known if r is not row and _are_alike(r, row)]
        if len(others) + 1 == int(row["siblings_count"]) and _stands_out(row, others, limits):
            slow.append(row)
    return slow[0] if len(slow) == 1 else None


def _are_alike(group: Row, other: Row) -> bool:
    same = ("siblings_count", "members_count")
    return all(group[name] == other[name] for name in same) and not (
        set(group["traced_ranks"]) & set(other["traced_ranks"])
    )


def _stands_out(row: Row, others: Sequence[float], limits: AbsentThresholds) -> bool:
    excess, error = float(row["excess_ns"]), row["clock_error_ns"]
    is_seen = int(row["steps_count"]) >= limits.min_sibling_steps_count
    if len(others) < 2 or error is None or not is_seen:
        return False
    is_clear = (
        float(row["last_ratio"]) >= limits.min_ended_last_ratio
        and excess > int(error)
        and excess - median(others) >= limits.min_excess_mads * scatter(others)
        and excess >= limits.min_times_others_ratio * max(0.0, *others)
    )
    tail, work, longest = (float(row[n] or 0) for n in ("tail_ns", "work_ns", "longest_ns"))
    if not is_clear or min(tail, work, longest) <= 0:
        return False
    ratio = (excess / tail) / (longest / work)
    return 1 / limits.max_unlike_ratio <= ratio <= limits.max_unlike_ratio


# --- in words -----------------------------------------------------------------------------------


def as_candidates(facts: Facts, suspected: Suspects) -> Candidates:
    """The suspects, with their hosts and rails where job.toml places ranks without a trace."""
    return Candidates(
        ranks=suspected.ranks,
        hosts=_hosts(facts, suspected.ranks),
        rails=_rails(facts, suspected.ranks),
        why=suspected.why,
    )


def where(facts: Facts, ranks: Sequence[int]) -> str:
    """Their rail and hosts, for a sentence: `` (rail 2 of hosts a, b)``; empty where unknown."""
    hosts, rails = _hosts(facts, ranks), _rails(facts, ranks)
    words = []
    if len(rails) == 1:
        words.append(f"all on rail {rails[0]}")
    if hosts:
        named = ", ".join(hosts) if len(hosts) <= MAX_NAMED else plural(len(hosts), "host")
        words.append(f"on {named}")
    return f" ({', '.join(words)})" if words else ""


def next_captures(facts: Facts, ranks: Sequence[int]) -> tuple[str, ...]:
    """The capture that halves the candidates, on whole hosts where these are known."""
    half = _half(facts, ranks)
    if not half:
        return ()
    hosts = _hosts(facts, half)
    on = f" ({', '.join(hosts)})" if hosts and len(hosts) <= MAX_NAMED else ""
    what = f"profile {'rank' if len(half) == 1 else 'ranks'} {ranges(half)}{on} in the same steps"
    return (what if len(ranks) == 1 else f"{what}: it halves the candidates",)


def _half(facts: Facts, ranks: Sequence[int]) -> list[int]:
    """Half of the ranks: hosts one after the other, so that few are cut in two."""
    placed = facts.job.placed_hosts
    ordered = sorted(ranks, key=lambda r: (placed.get(r, ""), r)) if placed else sorted(ranks)
    return sorted(ordered[: (len(ordered) + 1) // 2])


def _hosts(facts: Facts, ranks: Iterable[int]) -> tuple[str, ...]:
    placed = facts.job.placed_hosts
    ranks = list(ranks)
    return tuple(sorted({placed[r] for r in ranks})) if all(r in placed for r in ranks) else ()


def _rails(facts: Facts, ranks: Iterable[int]) -> tuple[int, ...]:
    rails = facts.job.rails
    ranks = list(ranks)
    return tuple(sorted({rails[r] for r in ranks})) if all(r in rails for r in ranks) else ()
