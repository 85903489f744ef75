"""What a reader must know about the data before believing any of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from tracekit.derive.notes import ASSIGNED_WORDS
from tracekit.findings import Finding
from tracekit.ingest.counters.formats import ANSWER_KINDS
from tracekit.report.advice import EXPORT_COMMAND
from tracekit.report.history import history_lines, summary_of
from tracekit.report.judgement import ReportThresholds
from tracekit.report.model import InputFile
from tracekit.report.nccl_lines import nccl_lines
from tracekit.report.port_lines import port_lines
from tracekit.rules.base import Facts
from tracekit.rules.standstill import SilenceThresholds
from tracekit.wording import listed, plural, seconds, some, some_ranges

SIZES_NOT_EXPORTED = "sizes_not_exported"
"""What the reader of nsys exports counts collectives under whose payloads were left out."""

SHOWN_NOTES = 4
"""Notes on how the run was made that stand in a report's head."""

_SOURCE_WORDS = {
    "file": "the trace",
    "name": "the file's name",
    "env": "the environment",
    "log": "the log",
    "job_toml": "job.toml",
    "order": "the order of files",
    "behaviour": "its behaviour",
    "assigned": "nothing but the order of files",
}


def data_lines(
    facts: Facts,
    inputs: Sequence[InputFile],
    silenced: Sequence[str],
    limits: ReportThresholds,
    *,
    is_named: bool,
) -> list[str]:
    """What a reader must know about the data before believing any of it; ``is_named``: the verdict
    is a finding's."""
    lines: list[str] = []
    lines += history_lines(facts, limits, is_named=is_named)
    lines += nccl_lines(facts, limits)
    lines += port_lines(facts)
    if facts.job.unread:
        names = ", ".join(path.rsplit("/", 1)[-1] for path in facts.job.unread[:2])
        more = f" and {len(facts.job.unread) - 2} more" if len(facts.job.unread) > 2 else ""
        lines.append(
            f"{plural(len(facts.job.unread), 'file')} not read for want of time: {names}{more}"
        )
    if facts.untraced_ranks:
        lines.append(f"no trace of {_ranks(facts.untraced_ranks)}")
    if facts.job.left_out_ranks:
        lines.append(f"{_ranks(sorted(facts.job.left_out_ranks))} not selected")
    if facts.job.left_out_files:
        lines.append(f"{plural(facts.job.left_out_files, 'file')} of other hosts not selected")
    lines += _file_lines(inputs)
    used = set(facts.job.rank_files.values())
    sizeless = sum(
        i.count
        for f in inputs
        for i in f.issues
        if i.name == SIZES_NOT_EXPORTED and (not used or f.path in used)
    )
    if sizeless:
        lines.append(
            f"{plural(sizeless, 'collective')} without communicator and size, which nsys leaves "
            f"out unless asked, from 2023 on: {EXPORT_COMMAND}"
        )
    silence_s = _silence_at_end_s(facts, limits)
    if silence_s is not None:
        lines.append(f"no rank communicates in the last {silence_s:.0f} s of its capture")
    lines += _inferred_lines(facts)
    lines += _activity_lines(facts)
    if facts.steps.warmup_keys:
        lines.append(f"{plural(len(facts.steps.warmup_keys), 'warm-up step')} left out")
    if facts.steps.partial_count:
        lines.append(f"{plural(facts.steps.partial_count, 'step')} cut short left out")
    if facts.job.lost_ranks:
        lines.append(
            f"kernels of {_ranks(sorted(facts.job.lost_ranks))} were lost by the profiler: "
            "not compared with others"
        )
    if facts.job.layout:
        lines.append(f"layout {facts.job.layout}")
    guessed = [r for r in facts.ranks if facts.job.rank_sources.get(r) in ("order", "assigned")]
    if guessed:
        first = facts.job.rank_files.get(guessed[0])
        are_parts = all("!device=" in facts.job.rank_files.get(r, "") for r in guessed)
        lines.append(
            f"{_ranks(guessed)} assigned by the order of {'devices' if are_parts else 'files'}"
            + (f" (rank {guessed[0]}: {first})" if first else "")
        )
    notes = [n for n in facts.job.notes if not (guessed and ASSIGNED_WORDS in n)]
    lines += notes[:SHOWN_NOTES]
    if len(notes) > SHOWN_NOTES:
        lines.append(f"and {plural(len(notes) - SHOWN_NOTES, 'note')} more")
    return [*lines, *silenced]


def _file_lines(inputs: Sequence[InputFile]) -> list[str]:
    """Files that were not read, or not whole, by what became of them."""
    lines: list[str] = []
    by_status: dict[str, list[str]] = {}
    for file in inputs:
        if file.status == "unrecognised":
            by_status.setdefault(file.status, []).append(file.path)
        elif file.kind in ANSWER_KINDS and file.status == "ok" and not file.rows and file.reason:
            by_status.setdefault("without numbers", []).append(f"{file.path} ({file.reason})")
        elif file.status != "ok":
            why = f" ({file.reason})" if file.reason else ""
            by_status.setdefault(file.status, []).append(f"{file.path}{why}")
    others = by_status.pop("unrecognised", [])
    for status, paths in sorted(by_status.items()):
        shown = ", ".join(paths[:2]) + (f" and {len(paths) - 2} more" if len(paths) > 2 else "")
        lines.append(f"{plural(len(paths), 'file')} {status}: {shown}")
    if others:
        # A folder holds more than telemetry: a line, not a complaint; --format json names all.
        more = f" and {len(others) - 2} more" if len(others) > 2 else ""
        names = ", ".join(path.rsplit("/", 1)[-1] for path in others[:2])
        lines.append(f"{plural(len(others), 'file')} of other kinds not read: {names}{more}")
    logs = [file for file in inputs if file.kind == "job_log"]
    if logs and not any(file.rows for file in inputs):
        named = logs[0].path.rsplit("/", 1)[-1]
        advice = (logs[0].reason or "").partition("; ")[2] or "see --format json"
        lines.append(f"no line of {named} is known as a step's: {advice}")
    return lines


def _inferred_lines(facts: Facts) -> list[str]:
    """Whose steps nothing marked, and what they are inferred from; where marks say little."""
    repeating = facts.steps.repeating_ranks
    updating = [r for r in facts.steps.inferred_ranks if r not in repeating]
    lines = []
    if updating:
        lines.append(
            f"steps of {_ranks(updating)} are not marked: inferred from the period of the updates "
            "of the parameters"
        )
    if repeating:
        lines.append(
            f"{_ranks(repeating)} mark no steps and update no parameters: a step is what they "
            "repeat"
        )
    if facts.steps.is_paced:
        lines.append(
            "hosts run ahead of their devices, by more in some steps than in others: a step is "
            "what its launches take on the device"
        )
    return lines


def _activity_lines(facts: Facts) -> list[str]:
    """The steps that counters show of a job without traces, or why they show none: that is no
    matter where a log has them."""
    rows = facts.of("activity_steps")
    durs = [r["dur_ns"] for r in rows if r["dur_ns"] is not None]
    if durs:
        return [
            f"{plural(len(durs), 'step')} of about {seconds(median(durs) / 1e9)} inferred from "
            f"{rows[0]['reason']}: nothing marked them"
        ]
    return [f"no steps: {rows[0]['reason']}"] if rows and summary_of(facts) is None else []


def _silence_at_end_s(facts: Facts, limits: SilenceThresholds) -> float | None:
    """How long all ranks communicated no more when their captures ended, where that is like no
    pause before: the job may have ended, or it hangs in a call that no trace shows."""
    rows = [r for r in facts.of("last_calls") if r["silence_ns"] is not None]
    if not rows or any(r["longest_gap_ns"] is None for r in rows):
        return None
    silence_ns = min(int(r["silence_ns"]) for r in rows)
    pause_ns = max(int(r["longest_gap_ns"]) for r in rows)
    is_long = silence_ns >= max(limits.min_silence_ns, limits.min_silence_ratio * pause_ns)
    return silence_ns / 1e9 if is_long else None


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {some_ranges(ranks)}"


def identity(facts: Facts, finding: Finding) -> str | None:
    """Where the named ranks run and what their numbers rest on; None for the whole job."""
    named = finding.scope.ranks
    if not named or set(named) >= set(facts.ranks):
        return None
    words: list[str] = []
    if finding.scope.hosts:
        words.append(
            ("host " if len(finding.scope.hosts) == 1 else "hosts ") + some(finding.scope.hosts)
        )
    sources = {facts.job.rank_sources[r] for r in named if r in facts.job.rank_sources}
    if sources:
        words.append(f"(rank from {listed([_SOURCE_WORDS.get(s, s) for s in sorted(sources)])})")
    weak: Mapping[int, str] = {
        r: facts.job.rank_files[r]
        for r in named
        if facts.job.rank_sources.get(r) != "file" and r in facts.job.rank_files
    }
    words += [f"rank {r} is {path}" for r, path in sorted(weak.items())[:2]]
    return "  ".join(words) or None
