"""What tests of rules about late ranks share: jobs in which some hold up the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from late_jobs import MS, MakeJob, late_job

from tracekit.rules import rule

LATE, GPU, HOST = rule("late-rank"), rule("slow-gpu"), rule("slow-host")


def absent(
    group: str, missing: list[int], wait_ms: float, calls_ms: tuple[float, float] = (50, 90)
) -> dict[str, Any]:
    return {
        "group_id": group,
        "traced_ranks": [0, 1],
        "missing_ranks": missing,
        "wait_per_step_ns": wait_ms * MS,
        "first_after_ns": calls_ms[0] * MS,
        "last_after_ns": calls_ms[1] * MS,
        "wait_after_ns": calls_ms[0] * MS,
        "attempt": 1,
    }


def sibling(rank: int, excess_us: float, **changes: Any) -> dict[str, Any]:
    """One of four communicators of a tensor rank each; 70 us more in 100 of work, as in all."""
    row = absent(f"d{rank}", [rank + 4, rank + 8], 30)
    return row | {
        "members_count": 3,
        "traced_ranks": [rank],
        "steps_count": 8,
        "own_wait_per_step_ns": 0,
        "siblings_count": 4,
        "excess_ns": excess_us * 1e3,
        "last_ratio": 1.0 if excess_us > 50 else 0.0,
        "tail_ns": 100e3,
        "work_ns": 10 * MS,
        "longest_ns": 7 * MS,
        "clock_error_ns": 0,
        **changes,
    }


def slow_gpu_job(make_job: MakeJob, extra_ms: int = 20, ratio: float = 1.25) -> Any:
    return late_job(make_job, {2: 25}, peer=1.3, compute=ratio, compute_ms={2: extra_ms}, comm_ms=5)


LINK = rule("link-degraded")


def exit_row(rank: int, late_ms: float, **facts: Any) -> dict[str, Any]:
    row = {
        "group_id": "g",
        "op": "all_reduce",
        "message_bytes": None,
        "rank": rank,
        "calls_count": 10,
        "exit_p10_ns": late_ms * 0.9 * MS if late_ms > 0 else late_ms * MS,
        "exit_p50_ns": late_ms * MS,
        "exit_p90_ns": late_ms * 1.1 * MS,
        "transfer_p50_ns": (80 + late_ms) * MS,
        "group_transfer_p50_ns": 80.0 * MS,
        "error_ns": 0,
        "attempt": 1,
    }
    return row | facts


def link_job(make_job: MakeJob, late_ms: float, **facts: Any) -> Any:
    job = make_job(comm_ms=60)
    job.rows["exit_lateness"] = [exit_row(r, late_ms if r == 1 else -3, **facts) for r in range(4)]
    return job


def bandwidth(group: str, ratio: float, **facts: Any) -> dict[str, Any]:
    row = {
        "group_id": group,
        "kind": "dp",
        "op": "all_reduce",
        "message_bytes": 64 << 20,
        "instances_count": 40,
        "steps_count": 4,
        "transfer_p50_ns": 5.0 * MS,
        "transfer_mean_ns": 5.0 * MS,
        "transfer_p25_ns": 5.0 * MS,
        "bus_bytes_per_s": 1e11 * ratio,
        "peer_ratio": ratio,
        "peers_count": 8,
        "timeline": "device",
        "attempt": 1,
        "error_ns": 0,
    }
    return row | facts


MISMATCH, HANG = rule("collective-mismatch"), rule("collective-hang")


def last_call(rank: int, call: int, silence_s: float, **facts: Any) -> dict[str, Any]:
    row = {
        "group_id": "g",
        "rank": rank,
        "capture_id": 0,
        "op": "all_reduce",
        "last_call": call,
        "last_dur_ns": MS,
        "usual_dur_ns": float(MS),
        "silence_ns": int(silence_s * 1e9),
        "longest_gap_ns": 10 * MS,
        "source_id": rank,
        "place": call,
        "attempt": 1,
    }
    return row | facts


def stood(rank: int, **facts: Any) -> dict[str, Any]:
    row = {
        "rank": rank,
        "capture_id": 0,
        "launches_count": 0,
        "calls_count": 3,
        "op": "all_reduce",
        "standing_ns": 60 * 10**9,
        "longest_gap_ns": 10 * MS,
        "is_told": False,
        "is_cut": False,
        "source_id": rank,
        "place": rank,
        "attempt": 1,
    }
    return row | facts


NOTHING = {"calls_count": 0, "op": None}


class Replayed:
    """A replay that answers as it is told; keys are the ranks that go."""

    def __init__(
        self,
        saved_ms: Mapping[tuple[int, ...], float],
        slow: Mapping[int, float] | None = None,
        is_by_streams: bool = False,
        most_ms: Mapping[tuple[int, ...], float] | None = None,
        inside_ms: Mapping[int, float] | None = None,
        is_by_operations: bool = False,
        beside_ms: Mapping[int, tuple[float, float]] | None = None,
        work_ms: Mapping[tuple[int, ...], float] | None = None,
    ) -> None:
        self.work_ms = work_ms or {}
        """Of stopped ranks: what is saved with all transfers as they were."""
        self.beside_ms = beside_ms or {}
        """By rank: what is saved if it computes as its replicas do, and how much longer it does."""
        self.inside_ms = inside_ms or {}
        self.saved_ms, self.slow, self.most_ms = saved_ms, slow or {}, most_ms or {}
        self.is_by_streams, self.is_by_operations = is_by_streams, is_by_operations
        self.error_ratio = self.operations_error_ratio = 0.0
        self.asked: list[tuple[int, ...]] = []

    def saved_ns(self, ranks: Sequence[int]) -> float | None:
        self.asked.append(tuple(ranks))
        saved = self.saved_ms.get(tuple(ranks))
        return None if saved is None else saved * MS

    def saved_by_work_ns(self, ranks: Sequence[int]) -> float | None:
        work = self.work_ms.get(tuple(ranks))
        return None if work is None else work * MS

    def saved_at_most_ns(self, ranks: Sequence[int]) -> float | None:
        most = self.most_ms.get(tuple(ranks))
        return None if most is None else most * MS

    def saved_at_speed_ns(self, ranks: Sequence[int], factor: float) -> float | None:
        return None

    def saved_evenly_ns(self) -> float | None:
        return None

    def saved_by_even_stages_ns(self) -> float | None:
        return None

    def saved_by_operations_ns(self, rank: int) -> float | None:
        return None

    def saved_by_even_lengths_ns(self) -> float | None:
        return None

    def saved_by_stage_ns(self, stage: int) -> float | None:
        return None

    def idle_beyond_hand_overs_ns(self) -> float | None:
        return None

    def hand_overs_ns(self) -> float | None:
        return None

    def saved_by_messages_ns(self, ranks: Sequence[int]) -> float | None:
        return None

    def saved_in_operations_ns(self, rank: int, delay_ns: float) -> float | None:
        inside = self.inside_ms.get(rank)
        return None if inside is None else inside * MS

    def saved_beside_replicas_ns(self, rank: int, least_ns: float) -> float | None:
        saved, longer = self.beside_ms.get(rank, (0.0, 0.0))
        return saved * MS if 0 < least_ns <= longer * MS else None

    def slowdown(self, rank: int) -> float | None:
        return self.slow.get(rank)


def uncalled(
    make_job: MakeJob,
    *,
    own_ms: float = 25,
    other_ms: float | None = None,
    absent_ns: float | None = 1e6,
    **options: Any,
) -> Any:
    """A job whose calls all miss a member: own time and waiting are known, who came last is not."""
    late = {2: own_ms} if other_ms is None else {2: own_ms, 1: other_ms}
    job = late_job(make_job, late, peer=1.3, **options)
    job.rows.pop("late_steps")
    job.rows["absent_waits"] = [{"missing_ranks": [4], "wait_per_step_ns": absent_ns}]
    for row in job.rows["straggler"]:
        nothing = ("matched_count", "inflicted_wait_ns", "own_inflicted_wait_ns", "late_count")
        row.update(dict.fromkeys(nothing, 0), lateness_ratio=None)
    return job


def side_by_side(make_job: MakeJob, ranks: Sequence[int] = (4, 5, 6, 7), **options: Any) -> Any:
    """Ranks that are equally late: each a hair behind the last, so that no gap shows."""
    own = dict.fromkeys(ranks, 3.0)
    return late_job(make_job, own, ranks_count=12, **options)
