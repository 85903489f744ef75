"""
What it means
    The job stands still in a collective: some members wait for one that never comes.

How it shows
    The traces of all members go on for long after their last call on a communicator, much longer
    than they ever paused, and the members stopped at different calls. The member with the fewest
    calls did not enter; if all entered the same last call and it never ended, no member is named.
    The kernel that hangs never ends and is in no trace, but the host's call for it is: a member
    whose host did not ask for the call that others have open did not join. If all asked, no rank is
    named. Who waits elsewhere is held up, not holding up.
    An export of Nsight Systems without NCCL's payloads names no communicator. If each process
    created only one, its calls are of that one. Else it is only said that work was asked for and
    never ended, and which ranks asked for nothing more.
    PyTorch's watchdog and Flight Recorder say the same by sequence numbers, and are believed first;
    where the traces of the same group agree, the finding has both as evidence, and where they name
    somebody else, that is said against it.
    A rank in no line of a watchdog is a candidate only in the job's first group, or one whose
    members are listed, and where more ranks spoke than did not: else it is the log that lacks them.
    Where they say that members called different operations or sizes, that is why the call does not
    end (collective-mismatch): a call that all members asked for is then no hang of its own.
    Where a job, or a group, begins, those that came say how many they are, or whom they wait for: a
    rank is named where all that came are known, or by Gloo's members, never rank 0, which holds the
    store and waits itself.
    NCCL's RAS counts what each member launched: where two snapshots show the same counts, some
    members behind others, those are waited for. A process that it calls dead needs no second one.

Why it hurts
    Nothing is computed until a timeout ends the job.

Remedy
    Look at the stack of the member that did not enter (py-spy dump, Flight Recorder).

When this is wrong
    A trace that ends with an evaluation or a checkpoint without collectives is silent too, but then
    all members stopped at the same call. The end of a capture leaves calls open on every rank:
    devices worked until then, so nothing is said; nor where a trace is cut. A process that was
    killed while its capture went on leaves the same. Ranks outside a
    subgroup never call it. A hung job rarely leaves traces; Flight Recorder or the watchdog's log
    say more.

Source
    Diagnosis D28: the rank with the lowest completed sequence that did not launch is the culprit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from tracekit.findings import Finding
from tracekit.rules import (
    nccl_hang,
    open_hang,
    ras_hang,
    stack_hang,
    standing_hang,
    standstill,
)
from tracekit.rules.base import Facts, Row, Rule, RuleOutcome
from tracekit.rules.hang_words import Logged
from tracekit.rules.open_hang import Traced
from tracekit.rules.sources import agreed, contradicted
from tracekit.rules.thresholds import threshold
from tracekit.wording import ranges, ranks_phrase, seconds

RAS_CAPTURE = "ncclras -f json"
RECORD = "set TORCH_NCCL_TRACE_BUFFER_SIZE and TORCH_NCCL_DUMP_ON_TIMEOUT"


class CollectiveHangThresholds(standstill.SilenceThresholds):
    """When silence is a hang, and a call that lasts one too."""

    min_stuck_ratio: float = threshold(
        10.0, "times the usual call of its kind: one that lasts so long is stood in, not worked in"
    )
    min_dumps_count: int = threshold(
        2, "dumps of each process that show the same: one is a moment of any job"
    )


def evaluate(facts: Facts, limits: CollectiveHangThresholds) -> RuleOutcome:
    """The communicators in which members stopped at different calls, for good."""
    outcome = _counted(facts, limits)
    if not facts.of(stack_hang.QUERY):
        return outcome
    if outcome.findings:
        findings = tuple(stack_hang.seen(facts, f) for f in outcome.findings)
        return replace(outcome, findings=findings)
    finding = stack_hang.hang(facts, limits.min_dumps_count)
    if finding is not None:
        return RuleOutcome(findings=(finding,))
    if stack_hang.is_unclear(facts):
        return facts.lacking("stacks that show what the ranks wait for", stack_hang.NATIVE)
    return RuleOutcome()


def _counted(facts: Facts, limits: CollectiveHangThresholds) -> RuleOutcome:
    """What traces, logs and NCCL's own counts say."""
    logged = nccl_hang.hang(facts, limits.min_silence_ns)
    traced = _unexplained(facts, _traced(facts, limits))
    counted = ras_hang.hang(facts, limits.min_silence_ns)
    if logged is not None:
        return RuleOutcome(findings=_with(counted, _joined(facts, logged, traced)))
    if counted is None and not traced:
        stands = standing_hang.hang(facts, limits)
        if stands is not None:
            return RuleOutcome(findings=(stands,))
    has_other = traced is not None or nccl_hang.has_evidence(facts)
    if counted is None and not has_other and facts.of(ras_hang.QUERY):
        if ras_hang.is_single(facts):
            return facts.lacking("a second snapshot of NCCL's RAS, a minute later", RAS_CAPTURE)
        return RuleOutcome()
    if counted is None and not has_other:
        return facts.lacking(
            "collectives matched across ranks, Flight Recorder or a watchdog's log",
            RECORD,
        )
    return RuleOutcome(findings=_with(counted, [t.finding for t in (traced or ())[:1]]))


def _unexplained(facts: Facts, traced: list[Traced] | None) -> list[Traced] | None:
    """Without the groups that no member stayed away from, where logs say that they disagree."""
    told = nccl_hang.mismatch(facts)
    if told is None or not traced:
        return traced
    everybody = frozenset(facts.ranks)
    return [t for t in traced if t.behind or not told.is_group(t.members, everybody)]


def _with(counted: Finding | None, told: Sequence[Finding]) -> tuple[Finding, ...]:
    """What RAS counted is evidence of the hang that others tell, or the finding itself."""
    if counted is None or not told:
        return (*told, *((counted,) if counted is not None else ()))
    first, *rest = told
    # RAS numbers the members of a communicator: whether it means the same ranks is not known.
    seen = tuple(replace(e, name=f"RAS: {e.name}") for e in counted.evidence)
    return (replace(first, evidence=first.evidence + seen), *rest)


def _traced(facts: Facts, limits: CollectiveHangThresholds) -> list[Traced] | None:
    """Communicators that stand still, the first to stop first; None where nothing was matched."""
    by_group: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in facts.of("last_calls"):
        by_group[row["capture_id"], row["group_id"]].append(row)
    complete = [rows for rows in by_group.values() if len(rows) > 1]
    if not complete:
        return None
    standing = [t for rows in complete if (t := _hang(facts, rows, limits)) is not None]
    # Groups behind the first to hang stand still because of it.
    standing.sort(key=lambda t: (t.finding.evidence[0].value, t.finding.id), reverse=True)
    # A call that never finished says more than the last ones that did.
    return open_hang.hangs(facts, limits) + standing


def _joined(facts: Facts, logged: Logged, traced: Sequence[Traced] | None) -> tuple[Finding, ...]:
    """The log's finding with what the traces say of the same group, then other groups' hang."""
    everybody = frozenset(facts.ranks)
    same = [t for t in traced or () if logged.is_group(t.members, everybody)]
    if not same:
        return (logged.finding, *(t.finding for t in (traced or ())[:1]))
    smallest = min(same, key=lambda t: len(t.members))
    # A log that leaves open who stayed away is not contradicted by traces that tell.
    is_open = not (logged.absent or logged.is_whole or smallest.behind & logged.waiting)
    if smallest.behind == logged.absent or is_open:
        return (agreed(logged.finding, smallest.finding),)
    return (contradicted(logged.finding, smallest.finding),)


def _hang(facts: Facts, rows: Sequence[Row], limits: CollectiveHangThresholds) -> Traced | None:
    if any(row["silence_ns"] is None or row["longest_gap_ns"] is None for row in rows):
        return None
    waited = {int(r["rank"]): _stood_ns(r, limits) for r in rows}
    pause_ns = max(int(row["longest_gap_ns"]) for row in rows)
    least = min(waited.values())
    if least < limits.min_silence_ns or least < limits.min_silence_ratio * pause_ns:
        return None
    last = {int(r["rank"]): int(r["last_call"]) for r in rows}
    behind = sorted(rank for rank, call in last.items() if call < max(last.values()))
    stuck = [r for r in rows if int(r["last_dur_ns"]) >= limits.min_silence_ns]
    if behind and not all(row.get("is_told", True) for row in rows):
        return None  # guessed members may be those of two groups, of which one came further
    if not behind and len(stuck) < len(rows):
        # All stopped after the same call: the job ended or does something without collectives.
        return None
    finding = _finding(facts, rows, behind, least, limits)
    return Traced(finding, frozenset(last), frozenset(behind))


def _stood_ns(row: Row, limits: CollectiveHangThresholds) -> int:
    """How long the member has not come to another call: silent, or inside a call that lasts."""
    long_ns = int(row["last_dur_ns"]) if int(row["last_dur_ns"]) > 0 else 0
    usual = float(row["usual_dur_ns"] or 0)
    inside = long_ns if long_ns > limits.min_stuck_ratio * usual else 0
    return max(0, int(row["silence_ns"])) + inside


def _finding(
    facts: Facts,
    rows: Sequence[Row],
    behind: Sequence[int],
    silence_ns: int,
    limits: CollectiveHangThresholds,
) -> Finding:
    others = sorted(int(r["rank"]) for r in rows if int(r["rank"]) not in behind)
    last = max(int(r["last_call"]) for r in rows)
    op = next(str(r["op"]) for r in rows if int(r["last_call"]) == last)
    if behind:
        says = (
            f"{ranks_phrase(behind, facts.ranks)} never entered the {op} (call {last}) that ranks "
            f"{ranges(others)} entered; nothing has moved for {seconds(silence_ns / 1e9)}."
        )
    else:
        says = (
            f"All {len(rows)} members entered the {op} (call {last}) and it has not ended for "
            f"{seconds(silence_ns / 1e9)}: the network or a GPU, not a rank that stayed away."
        )
    return standstill.finding(
        facts,
        says,
        "from the traces' last calls only",
        measure="time without another call, member with least",
        stood_ns=silence_ns,
        limit_ns=limits.min_silence_ns,
        query="last_calls",
        rows=rows,
        blamed=behind,
        next_capture=RECORD,
    )


RULE = Rule(
    name="collective-hang",
    summary="The job stands still in a collective that some member never entered.",
    owner="platform",
    thresholds=CollectiveHangThresholds(),
    queries=(*nccl_hang.HANG_QUERIES, "nccl_comms", standing_hang.QUERY, stack_hang.QUERY),
    kernel_queries=("last_calls", open_hang.QUERY, standing_hang.QUERY),
    evaluate=evaluate,
    is_hang=True,
    reads_other_files=True,
    symptom_of=("a lost member",),
    same="named ranks",
)
