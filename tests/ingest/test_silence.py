"""How long a log stood still before what ended its job."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import nccl_logs
from tracekit.ingest.steplog.silence import Silence, longest

STEP = "2026-11-20 10:00:{:02d},500 INFO step {} loss 2.5 dt 1.00 s"
ENDED = (
    "slurmstepd: error: *** JOB 812345 ON node017 CANCELLED AT 2026-11-20T{} DUE TO TIME LIMIT ***"
)
TOLD_TO_END = (
    "W1120 {} 13462 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, "
    "shutting down workers"
)
MINUTE_NS = 60 * 10**9


def silence(*lines: str) -> Silence | None:
    return longest(enumerate((line.encode() for line in lines), 1))


@pytest.mark.parametrize(
    ("lines", "place", "lasted_s"),
    [
        (["2026-11-20 10:00:00,500 step", "2026-11-20T10:40:00 ended"], 2, 2400),
        (["[2026/11/20 10:00:00] a", "no time", "[2026/11/20 10:02:00] b"], 3, 120),
        (["2026-12-31 23:59:00 a", "W0101 00:02:00.123456 7 api.py:753] b"], 2, 180),
        (["[rank0]:E0229 10:00:00.1 7 a", "[rank1]:E0301 10:00:00.1 7 b"], 2, 86_400),
        (["[11/20/26 10:00:00] a", "[11/20/26 10:05:00] b"], 2, 300),
        (["2026-11-20T10:00:00Z a", "2026-11-20T12:05:00+02:00 b"], 2, 300),
        # The last of the longest, and what is printed a little late counts for nothing.
        (["2026-11-20 10:00:00 a", "2026-11-20 10:02:00 b", "2026-11-20 10:01:59 c",
          "2026-11-20 10:04:00 d"], 4, 120),
    ],
)  # fmt: skip
def test_the_longest_time_between_two_lines_is_told(
    lines: Sequence[str], place: int, lasted_s: int
) -> None:
    assert silence(*lines) == Silence(place, lasted_s * 10**9)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["no time", "none either"],
        ["2026-11-20 10:00:00 a"],
        ["2026-11-20 10:00:00 a", "2026-11-20 10:00:59 b"],
        ["2026-11-20 10:00:00 a", "2026-11-20 09:00:00 b"],
        ["2026-11-20 10:00:00 of here", "2026-11-20T18:00:00Z of elsewhere"],
        ["2026-11-20T18:00:00Z of elsewhere", "W1121 10:00:00.1 7 of here"],
        ["E1120 10:00:00.1 7 of no year", "2026-11-20 18:00:00 of one"],
        ["2020-01-01 00:00:00 a clock that was not set", "2026-11-20 10:00:00 b"],
        ["2026-13-45 99:00:00 a", "2026-11-20 10:00:00 b", "2026-99-20 10:59:00 c"],
    ],
)
def test_what_cannot_be_compared_or_is_short_is_none(lines: Sequence[str]) -> None:
    assert silence(*lines) is None


def silent_ns(*lines: str) -> list[tuple[int, str, int]]:
    rows = nccl_logs.read("\n".join(lines) + "\n").tables.get("log_event", [])
    told = [(r["place"], r["code"], dict(f.split("=", 1) for f in r["fields"])) for r in rows]
    return [(place, code, int(f["silent_ns"])) for place, code, f in told if "silent_ns" in f]


STEPS = [STEP.format(second, second) for second in range(30)]


def test_what_ended_a_job_says_how_long_nothing_was_printed_before() -> None:
    ends = [ENDED.format("10:40:29"), ENDED.format("10:40:29")]
    assert silent_ns(*STEPS, *ends) == [(31, "job-cancelled", 40 * MINUTE_NS)]
    ended = TOLD_TO_END.format("10:10:29.637000")
    assert silent_ns(*STEPS, ended) == [(31, "job-state", 10 * MINUTE_NS)]
    long = "\n".join(["x" * 1000] * 4300)  # a block and more
    assert silent_ns(*STEPS, long, ended) == [(4331, "job-state", 10 * MINUTE_NS)]


def test_a_job_that_prints_on_or_whose_end_is_not_told_is_not_silent() -> None:
    assert silent_ns(*STEPS, "2026-11-20 10:40:00 done") == []
    between = [f"2026-11-20 10:{m:02d}:{s}0 evaluated" for m in range(1, 41) for s in range(6)]
    assert silent_ns(*STEPS, *between, ENDED.format("10:40:59")) == []
    # What failed before it, and steps behind it, were not waited for.
    assert silent_ns(*STEPS, ENDED.format("10:40:29"), *STEPS) == []
