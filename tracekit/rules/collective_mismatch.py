"""
What it means
    Members of a communicator call different operations, sizes or types at the same place.

How it shows
    Calls with the same number on one communicator, matched across ranks, that do not agree.
    PyTorch's watchdog and Flight Recorder state it by sequence numbers; where the traces of the
    same group agree, it is one finding with both as evidence.

Why it hurts
    It hangs, or it moves the wrong data without a word.

Remedy
    Find the branch that some ranks take and others do not: data-dependent control flow, unused
    parameters, uneven last batches, a rank with another version of the code.

When this is wrong
    Matching by order may be off where a trace lost a call; where the trace numbers its calls it is
    not. All-to-all with unequal shares is meant, and left out.

Source
    Diagnosis D28: another operation, size or type at the same sequence number.
"""

from __future__ import annotations

from tracekit.findings import Evidence, EvidenceRow, Finding, Severity
from tracekit.rules import nccl_hang
from tracekit.rules.base import Facts, Row, Rule, RuleOutcome
from tracekit.rules.sources import agreed
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import plural, ranges

REASONS = ("operations differ", "sizes differ", "types differ")


class CollectiveMismatchThresholds(Thresholds):
    """When members disagree."""

    min_agreeing_ratio: float = threshold(
        0.9, "share of a communicator's other calls that agree; else the matching is in doubt"
    )


def evaluate(facts: Facts, limits: CollectiveMismatchThresholds) -> RuleOutcome:
    """One finding for each communicator and kind of disagreement."""
    logged = nccl_hang.mismatch(facts)
    rows = facts.of("match_coverage")
    is_matched = any(r["instances_count"] and len(r["ranks"] or ()) > 1 for r in rows)
    if not is_matched and not nccl_hang.has_evidence(facts):
        return facts.lacking(
            "collectives matched across ranks",
            "profile all ranks in the same steps",
        )
    findings = []
    first = None if logged is None else logged.finding
    everybody = frozenset(facts.ranks)
    for row in rows if is_matched else ():
        if row["reason"] not in REASONS or not _is_clear(row, rows, limits):
            continue
        finding = _finding(facts, row, limits)
        ranks = frozenset(int(r) for r in row["ranks"])
        is_same_kind = logged is not None and logged.differs.startswith(str(row["reason"]))
        if logged is not None and first is not None and (
            is_same_kind and logged.is_group(ranks, everybody)
        ):  # fmt: skip
            first = agreed(first, finding)
        else:
            findings.append(finding)
    return RuleOutcome(findings=(*((first,) if first is not None else ()), *findings))


def _is_clear(row: Row, rows: object, limits: CollectiveMismatchThresholds) -> bool:
    if row["method"] == "sequence":
        return True
    assert isinstance(rows, (list, tuple))  # noqa: S101  # Facts.of gives a sequence
    of_group = [r for r in rows if r["group_id"] == row["group_id"]]
    calls = sum(int(r["calls_count"]) for r in of_group)
    differing = sum(int(r["calls_count"]) for r in of_group if r["reason"] in REASONS)
    return calls > 0 and 1 - differing / calls >= limits.min_agreeing_ratio


def _finding(facts: Facts, row: Row, limits: CollectiveMismatchThresholds) -> Finding:
    is_numbered = row["method"] == "sequence"
    ranks = sorted(int(r) for r in row["ranks"])
    count = int(row["instances_count"])
    source = facts.sources.get(int(row["source_id"]), f"source {row['source_id']}")
    scope = facts.scope(ranks, [])
    return facts.finding(
        scope,
        f"{plural(count, 'collective')} of ranks {ranges(ranks)}: {row['reason']} "
        f"between members at the same place.",
        (
            Evidence(
                f"instances whose {row['reason']}",
                count,
                "count",
                threshold=1,
                query="match_coverage",
                rows=(EvidenceRow(source=source, place=str(row["place"])),),
            ),
        ),
        by=["peers"],
        basis="by the trace's own sequence numbers" if is_numbered else "by the order of the calls",
        least=Severity.MINOR if is_numbered else Severity.NOTE,
        place=f"{row['group_id']}/{str(row['reason']).split()[0]}",
        keys=(),
        confirm=("TORCH_DISTRIBUTED_DEBUG=DETAIL checks that all members call the same",),
        remedy=("find the branch that some ranks take and others do not",),
    )


RULE = Rule(
    name="collective-mismatch",
    summary="Members of a communicator call different operations at the same place.",
    owner="model",
    thresholds=CollectiveMismatchThresholds(),
    queries=nccl_hang.QUERIES,
    kernel_queries=("match_coverage",),
    evaluate=evaluate,
    reads_other_files=True,
)
