"""One finding from two sources: what a log states and what the traces show of the same thing."""

from __future__ import annotations

from msgspec.structs import replace

from tracekit.findings import Finding, Instrument, confidence_from

SOURCES: tuple[Instrument, ...] = ("log", "peers")
"""A log and the comparison of members in traces: two kinds of evidence, which err apart."""


def agreed(logged: Finding, traced: Finding) -> Finding:
    """Both in one, the log's statement first; the traces fill in what the log leaves open.

    The log's scope stays, unless it names nobody and the traces do.
    """
    takes = bool(traced.scope.ranks) and not logged.scope.ranks
    return replace(
        logged,
        id=traced.id if takes else logged.id,
        severity=max(logged.severity, traced.severity, key=lambda s: s.weight),
        confidence=confidence_from(SOURCES, f"{logged.confidence.basis}; the traces agree"),
        summary=f"{logged.summary} The traces agree: {_continued(traced.summary)}",
        scope=traced.scope if takes else logged.scope,
        when=logged.when if logged.when.start_utc else traced.when,
        impact=logged.impact if logged.impact.s_per_step is not None else traced.impact,
        evidence=logged.evidence + traced.evidence,
        candidates=traced.candidates if takes else logged.candidates,
        confirm=_union(logged.confirm, traced.confirm),
        remedy=_union(logged.remedy, traced.remedy),
        next_capture=_union(logged.next_capture, traced.next_capture),
    )


def contradicted(logged: Finding, traced: Finding) -> Finding:
    """The log's finding, with what the traces say against it."""
    against = tuple(
        replace(e, name=f"the traces say otherwise: {_continued(traced.summary)} {e.name}")
        for e in traced.evidence[:1]
    )
    return replace(
        logged,
        confidence=confidence_from(
            ["log"], f"{logged.confidence.basis}; the traces say otherwise"
        ),
        counter_evidence=logged.counter_evidence + against,
    )  # fmt: skip


def _continued(sentence: str) -> str:
    """A sentence after a colon; abbreviations keep their capitals."""
    is_word = sentence[1:2].islower()
    return sentence[:1].lower() + sentence[1:] if is_word else sentence


def _union(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return first + tuple(s for s in second if s not in first)
