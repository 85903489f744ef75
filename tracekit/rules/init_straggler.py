"""
What it means
    Some rank comes late to the creation of a communicator, or never: the others wait in init.

How it shows
    In NCCL's init timings the late rank has a short bootstrap and all others a long one. Or ranks
    of a communicator logged the start of init and none its end, while other ranks logged nothing.

Why it hurts
    The whole job waits, at every start and restart; without the missing rank for ever.

Remedy
    Look at what the late rank did before: image pull, import, data set, file system.

When this is wrong
    A bootstrap is long for all ranks on a large job. Logs of some ranks may simply be missing, and
    a log that is still being written has not ended its init yet.

Source
    NVIDIA/nccl issues 429, 634; init timings of 2.22 and later.
"""

from __future__ import annotations

from statistics import median

from tracekit.findings import Candidates, Finding, Severity
from tracekit.ranges import Ranges
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.nccl_facts import (
    CAPTURE,
    Member,
    Nccl,
    Signal,
    log_scope,
    nccl_rule,
    no_logs,
    number,
)
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import ranges, seconds


class InitStragglerThresholds(Thresholds):
    """How late is late."""

    min_wait_ns: int = threshold(
        10_000_000_000, "of waiting in the bootstrap; a second or two is normal on many nodes"
    )
    max_own_ratio: float = threshold(
        0.2, "of the others' bootstrap: the late rank itself waits for nobody"
    )
    max_late_ratio: float = threshold(
        0.25, "of the ranks that are late; with more it is the usual order of arrival"
    )
    min_ranks_count: int = threshold(3, "ranks whose timings are known, to say what is usual")
    min_begun_count: int = threshold(2, "ranks that are in init: of one the log may break off")
    minor_wait_ns: int = threshold(60_000_000_000, "of waiting, from which it is more than a note")


def evaluate(facts: Facts, limits: InitStragglerThresholds) -> RuleOutcome:
    """Init timings of a communicator's ranks, and inits that did not end."""
    nccl = Nccl(facts)
    if not nccl.members:
        return no_logs(facts)
    findings = []
    for comm, members in sorted(nccl.comms.items()):
        timings = [
            s for s in nccl.of("init_timings")
            if s.comm == comm and number(s.given, "bootstrap") is not None
        ]  # fmt: skip
        finding = _stuck(facts, nccl, limits, members) or _late(
            facts, nccl, limits, members, timings
        )
        if finding is not None:
            findings.append(finding)
    if not findings and not nccl.of("init_timings"):
        return facts.lacking("NCCL's init timings (2.22 and later, NCCL_DEBUG=INFO)", CAPTURE)
    return RuleOutcome(findings=tuple({f.id: f for f in findings}.values()))


def _stuck(
    facts: Facts, nccl: Nccl, limits: InitStragglerThresholds, members: list[Member]
) -> Finding | None:
    """No member came out of init, and some never went in."""
    size = members[0].size
    began = [m for m in members if m.state == "incomplete"]
    seen = {m.group_rank for m in members if m.group_rank is not None}
    missing = Ranges.without(size, seen)
    if len(began) < max(limits.min_begun_count, len(members)):
        return None
    if not missing or len(missing) > size // 2:
        return None
    word = "rank" if len(missing) == 1 else "ranks"
    said = f"{word} {ranges(missing)} of {size}"
    finding = facts.finding(
        log_scope(),
        f"{len(began)} ranks entered the init of a communicator and none left it; {said} never "
        f"appear in the logs.",
        [
            nccl.evidence("ranks that are still in init", len(began), "count", "nccl_comms", began),
            nccl.evidence("ranks that never began", len(missing), "count", "nccl_comms"),
        ],
        by=["log"],
        basis="absence in the logs; they may be incomplete",
        least=Severity.MAJOR,
        confirm=(f"did the processes of {said} start? see the launcher's log and their own",),
        remedy=("restart without the hosts whose processes did not start",),
        next_capture=("logs of all ranks (NCCL_DEBUG_FILE=nccl.%h.%p.log)",),
    )
    from msgspec.structs import replace

    why = "they are members of the communicator and no log shows them"
    world = tuple(missing) if size == facts.job.world_size else ()
    return replace(finding, candidates=Candidates(ranks=world, why=why))


def _late(
    facts: Facts,
    nccl: Nccl,
    limits: InitStragglerThresholds,
    members: list[Member],
    timings: list[Signal],
) -> Finding | None:
    by_rank = {
        int(r): s for s in timings if (r := number(s.given, "rank")) is not None
    }  # fmt: skip
    waits = {rank: number(s.given, "bootstrap") or 0.0 for rank, s in by_rank.items()}
    if len(waits) < limits.min_ranks_count:
        return None
    usual = median(waits.values())
    late = sorted(r for r, w in waits.items() if w <= limits.max_own_ratio * usual)
    waited = usual - max((waits[r] for r in late), default=0.0)
    is_usual = len(late) > limits.max_late_ratio * len(waits)
    if not late or is_usual or waited * 1e9 < limits.min_wait_ns:
        return None
    tardy = [m for m in members if m.group_rank in late]
    return facts.finding(
        log_scope(ranks=nccl.world_ranks(tardy), hosts=nccl.hosts(tardy)),
        f"{nccl.label(tardy).capitalize()} came {seconds(waited)} late to the start of NCCL; the "
        f"other {len(waits) - len(late)} waited in the bootstrap.",
        [
            nccl.evidence(
                "bootstrap of the others (median)",
                usual,
                "s",
                "nccl_signals",
                [by_rank[r] for r in sorted(by_rank) if r not in late][:3],
                limits.min_wait_ns / 1e9,
            ),
            nccl.evidence(
                "bootstrap of the late",
                max(waits[r] for r in late),
                "s",
                "nccl_signals",
                [by_rank[r] for r in late],
                limits.max_own_ratio * usual,
            ),
        ],
        by=["log"],
        basis="NCCL's own timings of all ranks",
        least=Severity.MINOR if waited * 1e9 >= limits.minor_wait_ns else Severity.NOTE,
        confirm=("what did these ranks do before? see their own output",),
        remedy=("speed up their start: image, imports, data set, file system",),
    )


RULE = nccl_rule(
    name="init-straggler",
    summary="A rank came late to the start of NCCL, or never.",
    owner="platform",
    thresholds=InitStragglerThresholds(),
    queries=("nccl_comms", "nccl_signals"),
    evaluate=evaluate,
    cap=Severity.MAJOR,
)
