"""What tests of rules about a late rank's time share."""

from __future__ import annotations

from typing import Any

from late_jobs import MS, MakeJob, late_job, part

from tracekit.rules import rule
from tracekit.rules.base import Facts
from tracekit.rules.excess import Excess, where_it_lies

LATE, HOST, GPU = rule("late-rank"), rule("slow-host"), rule("slow-gpu")


PAUSE, WORK, DATA = rule("host-pause"), rule("unequal-work"), rule("dataloader-stall")


def facts_of(make_job: MakeJob, *rows: dict[str, Any], **options: Any) -> Facts:
    """A job whose rank 2 delays every step by 25 ms of 125."""
    job = late_job(make_job, {2: 25}, **options)
    job.rows["excess"] = list(rows)
    facts: Facts = job.facts()
    return facts


def place_of(facts: Facts) -> Excess | None:
    """What late-rank is told of rank 2."""
    return where_it_lies(facts.limited(LATE.reads, LATE), 2, 25 * MS)


PAUSED = part("pause", "between forward and aten::add", ms=25)


MORE = part("operator", "aten::mm", ms=50, peer_ms=25, calls_count=6.0, peer_calls_count=3.0)


SLOWER = part("operator", "aten::mm", ms=50, peer_ms=25, calls_count=3.0, peer_calls_count=3.0)


LARGER = SLOWER | {"input_ratio": 2.0}
"""As many calls, each on twice the elements."""


INPUT = part("range", path="train/dataloader", ms=25, peer_ms=0.2, steps=(2, 6, 10))
