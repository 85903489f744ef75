"""What transfers between hosts took of a step, by the traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tracekit.rules.base import Facts, Row


def by_group(facts: Facts, ranks: Iterable[int], value: Callable[[Row], float]) -> dict[str, float]:
    """What a step has of these ranks' transfers between hosts, by group."""
    members = {r["group_id"]: set(r["ranks"] or ()) for r in facts.of("match_coverage")}
    wanted = set(ranks)
    totals: dict[str, float] = {}
    for row in facts.of("group_bandwidth"):
        group = members.get(row["group_id"], set())
        is_between = len({facts.job.hosts.get(r, r) for r in group}) > 1
        if row["timeline"] == "device" and group & wanted and is_between:
            each = value(row) / max(1, int(row["steps_count"]))
            totals[row["group_id"]] = totals.get(row["group_id"], 0.0) + each
    return totals


def longest_of_groups(facts: Facts, ranks: Iterable[int], value: Callable[[Row], float]) -> float:
    """A time of a step, summed by group of these ranks: the largest sum.

    Groups that transfer at the same time do so side by side, so the sums are not added up.
    """
    return max(by_group(facts, ranks, value).values(), default=0.0)


def taken_ns(row: Row, each: str = "transfer_mean_ns") -> float:
    """Time in the transfers of a row; where all steps are warm-up, the median of all has to do."""
    return float(row[each] or row["transfer_p50_ns"]) * int(row["instances_count"])


def moved_bytes(row: Row) -> float:
    """Bytes that the transfers of a row moved, as the operation's factor tells; 0 where unknown."""
    per_s, each_ns = row.get("bus_bytes_per_s"), float(row["transfer_p50_ns"] or 0.0)
    return float(per_s or 0.0) * each_ns / 1e9 * int(row["instances_count"])


def stuck_ns(facts: Facts, ranks: Iterable[int]) -> float:
    """Time of a step beyond the usual in transfers of these ranks that took three times as long."""
    return longest_of_groups(facts, ranks, lambda row: float(row["stuck_ns"] or 0.0))
