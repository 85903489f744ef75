"""A rank that is late by its own doing, and how it shows."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from tracekit.rules.base import Row
from tracekit.rules.lateness.limits import LatenessThresholds
from tracekit.rules.steps import StepKey


class LateRank(Struct, frozen=True):
    """A rank that is late by its own doing, and how it shows."""

    rank: int
    cost_ns: float
    """Exposed delay of a mean steady step beyond the typical rank's; of all that are late side by
    side with it, what a step would take less without their delays."""
    share_ratio: float
    """Its own share of all own inflicted waiting (of that by ranks of ``stage``, where there is
    one), less what ranks ``aside`` inflicted."""
    peer_ratio: float | None
    compute_ratio: float | None
    late_count: int
    late_keys: tuple[StepKey, ...]
    scores_count: int
    """Scores that call it a straggler, of ``available_count``."""
    available_count: int
    is_sure: bool
    """Whether enough of the available scores agree."""
    slowdown_ratio: float | None
    """The ideal step with only its delays, over the ideal step, by replay."""
    row: Row
    together: tuple[int, ...] = ()
    """Other ranks that are late side by side with it."""
    joint_share_ratio: float | None = None
    """Their share of all own inflicted waiting together with its own; None where it is alone."""
    own_cost_ns: float | None = None
    """Its own exposed delay, where ``cost_ns`` is of all of them."""
    is_matched: bool = True
    """False where who entered last is not known: share and late_count say nothing then."""
    aside: tuple[int, ...] = ()
    """Ranks that are late beside it and have most of the waiting."""
    stage: int | None = None
    """The pipeline stage whose ranks it is set against; None: all ranks."""
    is_now_and_then: bool = False
    """Whether it is late beyond its own usual: its share then is of such delays."""

    @classmethod
    def of(
        cls,
        row: Row,
        scores: Sequence[bool | None],
        limits: LatenessThresholds,
        *,
        cost_ns: float,
        late_keys: Sequence[StepKey],
        others: Sequence[Row] | None = None,
        members: Sequence[int] = (),
        share_ratio: float = 0.0,
        joint_share_ratio: float | None = None,
        own_cost_ns: float | None = None,
        slowdown_ratio: float | None = None,
        is_matched: bool = True,
        aside: Sequence[int] = (),
        stage: int | None = None,
        is_now_and_then: bool = False,
    ) -> LateRank:
        """From its row of straggler. A score of None is not available; ``others`` are rows of the
        ranks that are not late beside the ``members`` (None: the row's ratios are to such ones)."""
        rank = int(row["rank"])
        scores_count = sum(score is True for score in scores)
        return cls(
            rank=rank,
            cost_ns=cost_ns,
            share_ratio=share_ratio,
            joint_share_ratio=joint_share_ratio,
            own_cost_ns=own_cost_ns,
            peer_ratio=_ratio(row, "peer_ratio", others),
            compute_ratio=_ratio(row, "compute_ratio", others),
            late_count=int(row["late_count"]) if is_matched else 0,
            late_keys=tuple(late_keys),
            scores_count=scores_count,
            available_count=sum(score is not None for score in scores),
            is_sure=scores_count >= limits.min_scores_count,
            slowdown_ratio=slowdown_ratio,
            row=row,
            together=tuple(r for r in members if r != rank),
            is_matched=is_matched,
            aside=tuple(aside),
            stage=stage,
            is_now_and_then=is_now_and_then,
        )


def _ratio(row: Row, name: str, others: Sequence[Row] | None) -> float | None:
    """A rank's ratio to its peers, or to those that are not late with it: all are ratios to one
    median."""
    if others is None:
        return None if row[name] is None else float(row[name])
    known = [float(o[name]) for o in others if o[name] is not None]
    if row[name] is None or not known or median(known) <= 0:
        return None
    return float(row[name]) / median(known)


def delay_ns(late: LateRank) -> float:
    """What a late rank itself delays a mean step by, also where it is late side by side."""
    return late.cost_ns if late.own_cost_ns is None else late.own_cost_ns
