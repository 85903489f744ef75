"""What decides what a night says."""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True):
    """Thresholds of a night, each with its reason."""

    window_days: int = 28
    """How far back a night looks: four weeks, so that every weekday counts alike."""
    recent_days: int = 2
    """A place is also judged by these last days alone: what broke is not thinned out by four good
    weeks. Two, so that it is told the night after at the latest."""
    quiet_days: int = 3
    """A place without a bad run for so long is told no longer."""
    min_before_count: int = 7
    """Runs before a change: fewer give no spread worth the name."""
    min_after_count: int = 3
    """Runs after it: one slow run is that run's own diagnosis, and where one in fifty is slow for
    reasons of its own, two in a row come every month in a fleet of forty runs a night."""
    min_slower_ratio: float = 0.02
    """A smaller slowdown is not worth a person's morning."""
    min_z: float = 5.0
    """How many standard errors the medians are apart. Every place of every family is tried every
    night, so three would be found somewhere each week."""
    min_after_share_ratio: float = 0.75
    """Share of the runs after a change that must be slower than nearly all before it: a level, and
    not some slow runs among good ones."""
    near_sigmas: float = 3.0
    """What nearly all before it are within."""
    same_cause_days: int = 7
    """Families that changed alike and turned slower within so many days are one finding: not every
    family runs every night."""
    max_q: float = 0.01
    """False discovery rate among the places of four weeks (by each of the two spans), and among the
    families."""
    min_bad_count: int = 2
    """Jobs' nights with a finding on a place: one is that run's own diagnosis."""
    same_runs_ratio: float = 0.8
    """Two offenders that share so much of their bad runs are one fault: the narrower is named."""
    min_traced_ratio: float = 0.9
    """Runs of which fewer ranks were traced are not compared: the slow one may be missing."""
    few_jobs_ratio: float = 0.75
    """A night with fewer runs than this part of the usual number is named: files are missing."""


MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
MEDIAN_TO_MEAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, of normal values: sqrt(pi / 2)."""
LEAST_SIGMA = 0.002
"""No steps repeat better than this share: of runs that happen to be equal the spread is not 0."""
