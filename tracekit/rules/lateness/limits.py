"""When a rank is late: what is asked, and the thresholds."""

from __future__ import annotations

from tracekit.rules.prices import PriceThresholds
from tracekit.rules.thresholds import threshold

QUERIES = ("step_breakdown", "straggler", "late_steps", "match_coverage", "comm_summary")

ABSENT_WAITS = "absent_waits"


class ReplayThresholds(PriceThresholds):
    """When a replay can have seen what was measured."""

    min_replayed_ratio: float = threshold(
        0.5,
        "of the measured delay that a replay must find: else it has missed what was waited for",
    )
    min_streams_ratio: float = threshold(
        0.1, "the same where launches and streams are replayed, which shows what hides a delay"
    )


class LatenessThresholds(ReplayThresholds):
    """When a rank is late by its own doing."""

    min_cost_ratio: float = threshold(
        0.05, "exposed delay over the step, beyond the typical rank's; noise adds 1 to 3 % (D29)"
    )
    min_share_ratio: float = threshold(
        0.20, "share of all own inflicted waiting (D29); several ranks may qualify"
    )
    min_times_fair_ratio: float = threshold(
        1.5, "times an even share: of two ranks each has half of the noise"
    )
    min_lone_share_ratio: float = threshold(
        0.5,
        "the same where no other score is available or agrees: each rank of a pipeline's last stage"
        " ends the others' waiting, by its place in the schedule",
    )
    min_lone_times_fair_ratio: float = threshold(
        2.0,
        "times an even share, where its own time and the replay both speak against it: of two ranks"
        " one causes three quarters by chance",
    )
    min_peer_ratio: float = threshold(1.10, "own time over its peers' median; as a slow GPU's (D1)")
    late_step_ratio: float = threshold(
        0.02, "a step counts as late from this share of a mean step, beyond the typical rank's"
    )
    persistent_steps_count: int = threshold(
        3, "this many late steps in a row are no accident (continuity, as in Minder)"
    )
    persistent_ratio: float = threshold(0.20, "or this share of the steady steps")
    min_late_steps_count: int = threshold(2, "and so many: one step shows no persistence")
    min_alike_ratio: float = threshold(
        0.5,
        "a late step's delay over the greatest, to be like it: where nearly all waiting is for one"
        " rank, a few late steps that are alike have one cause, accidents have lengths of their"
        " own",
    )
    min_alike_share_ratio: float = threshold(
        0.9,
        "of the delay of its late steps, in those that are alike: a capture may begin in the midst"
        " of one",
    )
    min_outlier_mads: float = threshold(
        3.5,
        "scaled median absolute deviations beyond the other ranks' delays: ranks that share"
        " cores scatter widely (3.2)",
    )
    min_together_ratio: float = threshold(
        0.5,
        "share of the steady steps in which ranks that are late together caused the waiting: chance"
        " does not choose the same ones each time",
    )
    max_named_ratio: float = threshold(
        0.5, "share of the cost of ranks that are late together which single ones account for"
    )
    max_asked_ratio: float = threshold(
        0.75, "share of all own inflicted waiting that is enough, however few ranks there are"
    )
    min_scores_count: int = threshold(
        2, "of the available scores that must agree, for a finding to be worth more than minor"
    )
    min_rest_count: int = threshold(
        3, "ranks beside those that are late already: fewer are nobody's typical rank"
    )
    min_stage_count: int = threshold(
        8, "ranks of a pipeline stage among which one may be named: of fewer, shares are chance"
    )
    min_late_count: int = threshold(
        3, "collectives that waited for it; where one step is all there is, this shows persistence"
    )


class SlowerThresholds(LatenessThresholds):
    """When a rank is late where every call has a member without a trace."""

    min_of_worst_ratio: float = threshold(
        0.5,
        "its delay over the worst rank's. To mend the worst gains the difference where both fall"
        " together, else all of its own, and no call tells which: below half, either is more than"
        " this one's",
    )
    min_compared_count: int = threshold(3, "ranks with peers: most of them say what is usual")
    max_uneven_ratio: float = threshold(
        0.1, "received tokens beside the mean's; more is a reason to compute longer, or shorter"
    )
