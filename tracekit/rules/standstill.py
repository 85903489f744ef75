"""What the hangs that traces show have in common: for how long nothing moved, and the finding."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.findings import Candidates, Evidence, Finding, Severity
from tracekit.rules.base import Facts, Row
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import ranges

FLIGHT_RECORDER = "TORCH_NCCL_TRACE_BUFFER_SIZE=20000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"


class SilenceThresholds(Thresholds):
    """When silence is a hang."""

    min_silence_ns: int = threshold(
        30_000_000_000, "no call for so long; shorter silences are checkpoints and evaluations"
    )
    min_silence_ratio: float = threshold(
        10.0, "times the longest pause between two calls before; a hang is like nothing before it"
    )


def still_ns(rows: Sequence[Row], limits: SilenceThresholds) -> int | None:
    """For how long no member of these rows has done anything, member with least.

    None where that is short, or not unlike any pause before; where a trace is cut; where no member
    ever worked, so that nothing tells what a pause is.
    """
    if any(r["is_cut"] or r["standing_ns"] is None for r in rows):
        return None
    least = min(int(r["standing_ns"]) for r in rows)
    gap_ns = max(int(r["longest_gap_ns"] or 0) for r in rows)
    if gap_ns == 0 or least < max(limits.min_silence_ns, limits.min_silence_ratio * gap_ns):
        return None
    return least


def finding(
    facts: Facts,
    says: str,
    basis: str,
    *,
    measure: str,
    stood_ns: int,
    limit_ns: int,
    query: str,
    rows: Sequence[Row],
    blamed: Sequence[int] = (),
    candidates: Candidates | None = None,
    is_network: bool = False,
    confirm: str = "py-spy dump --pid PID on the hosts of the ranks that did not enter",
    remedy: str = "fix what keeps them from the call; see their stacks",
    next_capture: str = FLIGHT_RECORDER,
) -> Finding:
    """A hang: who is ``blamed`` (else the candidates), and for how long nothing moved.

    ``is_network``: all members entered, so the network or a GPU is to blame.
    """
    if is_network:
        confirm = "switch and NIC counters of the hosts; XIDs in their kernel logs"
        remedy = "test the links between the members before the next start"
    candidates = candidates or Candidates()
    return facts.finding(
        facts.scope(blamed, []),
        says,
        (Evidence.seconds(measure, stood_ns, limit_ns, query, facts.places(rows)),),
        by=["peers"],
        basis=basis,
        least=Severity.CRITICAL,
        place=ranges(blamed or candidates.ranks) or "all",
        owner="network" if is_network else "platform",
        keys=(),
        candidates=candidates,
        confirm=(confirm,),
        remedy=(remedy,),
        next_capture=(next_capture,),
    )
