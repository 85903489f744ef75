"""What training logs tell of the whole job, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from tracekit.report.judgement import Judgement, ReportThresholds, cannot_tell, say
from tracekit.rules.base import Facts, Row
from tracekit.rules.logged import beside, distance, ended_for, growth, longer, more, times
from tracekit.wording import seconds, sentence, share, span

SHOWN_EPISODES = 5


def history_lines(facts: Facts, limits: ReportThresholds, *, is_named: bool) -> list[str]:
    """The head of a report: the job's steps, what stands out among them, and where in them the
    traces lie. ``is_named``: a finding is the verdict; of a log alone it is else what stands out.
    """
    summary = summary_of(facts)
    if summary is None or not (facts.ranks or is_named):
        return []
    profiled = _profiled(facts, limits)
    return [_steps(summary, limits), *profiled, *_outstanding(facts, summary, limits)]


def summary_of(facts: Facts) -> Row | None:
    """The job's steps as its logs tell them; None without a log."""
    return next(iter(facts.of("job_step_summary")), None)


def log_alone(facts: Facts, summary: Row, limits: ReportThresholds) -> Judgement:
    """The verdict on a job of which only a training log is known."""
    spent_ns = _spent_ns(summary)
    shown = _shown(facts, summary, limits)
    if not shown and _is_uneven(summary, limits):
        return say(
            "unexplained",
            "More than half of the time is spent beyond the median step in the "
            f"{_steps(summary, limits)}.",
            "which steps are long, and what returns with them: tracekit query RUN job_step_curve; "
            "profile some of these steps",
        )
    if not shown:
        return cannot_tell(
            f"Nothing stands out in the {_steps(summary, limits)}. Whether a step could be "
            "shorter, only a trace of some steps shows.",
            "profile five or more steps after warm-up, with a schedule that marks steps",
        )
    told = _told(shown, summary)
    lost_ns = sum(r["lost_ns"] or 0 for r in shown)
    return say(
        "unexplained",
        f"{sentence(told)}. In the {_steps(summary, limits)}.",
        "what happened then: tracekit query RUN slow_episode; give the logs of hosts, GPUs and "
        "network of that time beside this one",
        min(1.0, lost_ns / spent_ns) if spent_ns else None,
    )


def _spent_ns(summary: Row) -> float:
    return float((summary["mean_ns"] or 0) * summary["steps_count"])


def _shown(facts: Facts, summary: Row, limits: ReportThresholds) -> list[Row]:
    """What stands out in the job and is worth a sentence, what costs most first."""
    spent_ns = _spent_ns(summary)
    shown = [r for r in facts.of("slow_episode") if _counts(r, spent_ns, limits)]
    return sorted(shown, key=lambda r: (-(r["lost_ns"] or 0), r["first_step"]))


def _told(shown: Sequence[Row], summary: Row) -> str:
    told = "; ".join(_episode(r, summary) for r in shown[:SHOWN_EPISODES])
    more = f"; and {len(shown) - SHOWN_EPISODES} more" if len(shown) > SHOWN_EPISODES else ""
    return told + more


def _outstanding(facts: Facts, summary: Row, limits: ReportThresholds) -> list[str]:
    """What stands out in the job, and whether traces of these steps can be of it."""
    shown = _shown(facts, summary, limits)
    if not shown:
        return []
    told = f"in the job: {_told(shown, summary)}"
    if not facts.ranks:
        return [told]
    window = next(iter(facts.of("profiled_window")), None)
    if window is None or window["first_step"] is None:
        return [f"{told} (where the profiled steps lie is not known)"]
    if any(_is_within(window, row) for row in shown):
        return [told]
    return [f"{told}: none of it was profiled, so the traces cannot say why"]


def _is_within(window: Row, row: Row) -> bool:
    """Whether some of the profiled steps are of what stands out."""
    first, last = window["first_step"], window["last_step"]
    if row["kind"] == "restart" or last < row["first_step"] or first > row["last_step"]:
        return False
    if row["kind"] != "periodic" or not row["period_count"]:
        return True
    since = (last - row["first_step"]) % row["period_count"]  # steps behind the last of them
    return bool(since <= last - first)


def _is_uneven(summary: Row, limits: ReportThresholds) -> bool:
    """Whether a few steps take most of the time, also without the longest line, which is often the
    first: the mean is then far above the median."""
    p50_ns, steps = summary["p50_ns"], summary["steps_count"]
    if not p50_ns or summary["lines_count"] < limits.min_uneven_lines_count:
        return False
    longest = min(summary["steps_per_line"] or 1, steps - 1)
    rest_ns = summary["mean_ns"] * steps - summary["max_ns"] * longest
    return bool(rest_ns > limits.max_mean_ratio * p50_ns * (steps - longest))


def _counts(row: Row, spent_ns: float, limits: ReportThresholds) -> bool:
    """Whether an episode is worth a sentence: what returns at every checkpoint must cost a share
    of the job that findings call minor."""
    if row["kind"] == "periodic":
        return bool((row["lost_ns"] or 0) >= limits.min_periodic_ratio * spent_ns)
    if row["kind"] == "drift":
        return bool(row["per_day_ratio"] > 0)
    return bool(row["kind"] != "fast")


def _steps(summary: Row, limits: ReportThresholds) -> str:
    """``48,000 steps over 2.1 d, median 1.02 s, p99 1.2 s``."""
    steps, total = summary["steps_count"], summary["total_steps_count"]
    # Of a bar that begins anew each epoch the total is the epoch's.
    is_of_job = total is not None and summary["epoch_steps_count"] is None and steps <= total
    words = f"{steps:,} step{'' if steps == 1 else 's'}" + (f" of {total:,}" if is_of_job else "")
    if summary["start_ns"] is not None and summary["end_ns"] is not None:
        words += f" over {span((summary['end_ns'] - summary['start_ns']) / 1e9)}"
    if summary["p50_ns"] is None:
        return f"training log: {words}, whose times it does not tell"
    if not summary["p50_ns"]:  # the least that some clocks tell is a second
        words += f", most shorter than its clock can tell, mean {seconds(summary['mean_ns'] / 1e9)}"
        return f"training log: {words}"
    if (summary["clock_ns"] or 0) > limits.max_clock_ratio * summary["mean_ns"]:
        words += f", mean {seconds(summary['mean_ns'] / 1e9)}, by a clock of whole seconds"
        return f"training log: {words}"
    words += f", median {seconds(summary['p50_ns'] / 1e9)}"
    if summary["mean_ns"] > limits.min_mean_ratio * summary["p50_ns"]:
        words += f", mean {seconds(summary['mean_ns'] / 1e9)}"
    if summary["p99_ns"] is not None:
        words += f", p99 {seconds(summary['p99_ns'] / 1e9)}"
    return f"training log: {words}"


def _profiled(facts: Facts, limits: ReportThresholds) -> list[str]:
    row = next(iter(facts.of("profiled_window")), None)
    if row is None or row["first_step"] is None:
        return []
    by = "" if row["placed_by"] == "time" else ", if the profiler counts as the log does"
    where = f"profiled: steps {row['first_step']:,}-{row['last_step']:,} of that log{by}"
    if not row["p50_ns"] or not row["job_p50_ns"]:
        return [where]
    ratio = row["p50_ns"] / row["job_p50_ns"] - 1
    if abs(ratio) < limits.min_unlike_ratio:
        return [f"{where}, which take as long as the job's median"]
    word, rest = ("faster", ": the slow part was not profiled") if ratio < 0 else ("slower", "")
    return [f"{where}, {share(abs(ratio))} {word} than the job's median{rest}"]


def _episode(row: Row, summary: Row) -> str:
    kind, lost_s = row["kind"], (row["lost_ns"] or 0) / 1e9
    at = _at(row, summary)
    if kind == "stall":
        where = f"step {row['last_step']:,}"
        return f"the job stalled for {span(lost_s)} at {where}{at}{beside(row)}"
    if kind == "slow":
        return f"steps {row['first_step']:,} to {row['last_step']:,}{at} {longer(row)}"
    if kind == "risen":
        return (
            f"from step {row['first_step']:,} on{at} steps take {more(row)} before "
            f"({seconds(row['dur_ns'] / 1e9)} against {seconds(row['usual_ns'] / 1e9)})"
        )
    if kind == "periodic":
        each = lost_s / row["times_count"]
        is_epoch = row["period_count"] == summary["epoch_steps_count"]
        what = ", at the end of each epoch," if is_epoch else ""
        return (
            f"{distance(row)}{what} one takes {seconds(each)} longer "
            f"({times(row, summary)}, {span(lost_s)} in all){beside(row)}"
        )
    if kind == "drift":
        return growth(row)
    if kind == "silence":
        told = f"behind step {row['last_step']:,}{at} nothing was printed for {span(lost_s)}"
        return told + beside(row)
    again = f", {row['repeated_count']:,} steps done again" if row["repeated_count"] else ""
    after = f" after {why}" if (why := ended_for(row)) is not None else ""
    return (
        f"the job restarted at step {row['first_step']:,}{at}{after}{again} ({span(lost_s)} lost)"
    )


def _at(row: Row, summary: Row) -> str:
    if row["start_ns"] is None:
        return ""
    moment = datetime.fromtimestamp(row["start_ns"] // 10**9, UTC)
    zone = " UTC" if summary["is_epoch"] else ""
    return f" ({moment:%Y-%m-%d %H:%M:%S}{zone})"
