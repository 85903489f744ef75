"""From facts to a report: run the rules, tie symptoms to causes, add up the step, judge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, date, datetime
from statistics import median
from typing import Any

from tracekit.derive.ranks import ASSIGNED_WORDS
from tracekit.findings import Finding, NotChecked, benched, ordered
from tracekit.ingest.counters.formats import ANSWER_KINDS
from tracekit.ingest.nsys.sniff import export_command
from tracekit.report import signals
from tracekit.report.bounds import bounded
from tracekit.report.budget import step_budget
from tracekit.report.config import DiagnoseConfig
from tracekit.report.domains import rolled_up
from tracekit.report.fold import fold
from tracekit.report.links import link_symptoms
from tracekit.report.model import (
    SCHEMA_VERSION,
    Coverage,
    Document,
    InputFile,
    Metrics,
    Notes,
    Overlap,
    RankShares,
    Report,
    RunInfo,
    StepTime,
    Traffic,
    Window,
)
from tracekit.report.price import priced
from tracekit.report.verdict import judge
from tracekit.report.without_steps import CAPTURE_STEPS
from tracekit.rules import Facts, Rule, configured, rule
from tracekit.rules.base import Row
from tracekit.rules.low_mfu import waterfall
from tracekit.rules.pipeline import ScheduleBubble, schedule_bubble
from tracekit.rules.steps import utc
from tracekit.rules.unbuilt import not_built
from tracekit.version import __version__
from tracekit.wording import listed, plural, runs, safe, seconds, shell_path, some, some_ranges

SIZES_NOT_EXPORTED = "sizes_not_exported"
"""What the reader of nsys exports counts collectives under whose payloads were left out."""
EXPORT_COMMAND = "nsys export --type=sqlite --include-blobs=true REPORT.nsys-rep"
MARKED_RANGES = (
    "mark each step with an NVTX range (torch.cuda.nvtx.range_push('step 12')) and capture five "
    "or more after warm-up"
)

INFERRED = "its steps are inferred, not marked"
"""Added to the grounds of a finding that stands on inferred steps."""

END_SILENCE_NS = 30_000_000_000
END_SILENCE_RATIO = 10
"""Silence at the end of all captures that a report mentions, as collective-hang's thresholds."""

SHOWN_NOTES = 4
"""Notes on how the run was made that stand in a report's head."""


def build_report(
    facts: Facts,
    inputs: Sequence[InputFile] = (),
    config: DiagnoseConfig | None = None,
    today: date | None = None,
) -> Report:
    """The whole report from facts that were already gathered. Opens nothing.

    ``today`` decides which silences still hold.
    """
    config = config or DiagnoseConfig()
    rules = configured(config.thresholds, config.select, config.ignore)
    found, not_checked, rules_run = _run(rules, facts)
    linked = _on_inferred_steps(link_symptoms(rolled_up(fold(found), facts), facts), facts)
    linked = bounded(linked, facts)
    linked = [priced(f, facts) for f in linked]
    # What is silenced still takes its time: it stays in the budget, under its id.
    bubble = schedule_bubble(facts)
    budget = step_budget(facts.steps, linked, bubble.allowed_ns if bubble else 0.0)
    kept, silenced = _silence(linked, config, today or datetime.now(UTC).date())
    is_whole = all(i.status not in ("partial", "unreadable") for i in inputs)
    failed = [i.path for i in inputs if any(j.name == "ingestor_failed" for j in i.issues)]
    judgement = judge(facts, kept, budget, rules_run, bool(silenced), is_whole, failed)
    findings = [
        replace(f, confidence=benched(f.rule, f.confidence))
        for f in sorted(
            ordered(kept, judgement.verdict.finding), key=lambda f: not rule(f.rule).is_hang
        )
    ]
    if not config.select:
        not_checked += not_built(i.kind for i in inputs)
    used = waterfall(facts)
    findings = [_filled(f, facts) for f in findings]
    not_checked = [replace(n, capture=_command(n.capture, facts)) for n in not_checked]
    document = Document(
        schema_version=SCHEMA_VERSION,
        tracekit_version=__version__,
        run=_run_info(facts),
        coverage=Coverage(
            ranks_traced=len(facts.ranks),
            ranks_expected=facts.job.world_size,
            steps_common=len(facts.steps.common_keys),
        ),
        inputs=tuple(inputs),
        verdict=judgement.verdict,
        step_budget=budget,
        metrics=Metrics(
            step_time=_step_time(facts),
            overlap=_overlap(facts),
            bubble=_bubble(bubble),
            mfu=used.to_dict() if used is not None else None,
            traffic=_traffic(facts),
        ),
        findings=tuple(findings),
        not_checked=tuple(not_checked),
    )
    cause = next((f for f in findings if f.id == judgement.verdict.finding), None)
    notes = Notes(
        job_name=facts.job.name,
        data_lines=tuple(_data_lines(facts, inputs, silenced)),
        identity=_identity(facts, cause) if cause else None,
        shares=_shares(facts),
        rules_run=tuple(rules_run),
        target=facts.job.target,
        shows_ids=bool(config.select or config.ignore),
        next_step=_next_step(inputs, judgement.next_step),
    )
    return Report(document, notes)


def _command(text: str | None, facts: Facts) -> str | None:
    """The text with its commands about the files that were given, so that they run as printed."""
    if text is None:
        return None
    job = facts.description.files if facts.description is not None else ()
    if len(job) == 1:
        text = text.replace("--job job.toml", f"--job {shell_path(job[0])}")
    return facts.job.target.filled(text) if facts.job.target is not None else text


def _filled(finding: Finding, facts: Facts) -> Finding:
    def each(texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(_command(text, facts) or "" for text in texts)

    return replace(
        finding,
        confirm=each(finding.confirm),
        remedy=each(finding.remedy),
        next_capture=each(finding.next_capture),
    )


def _next_step(inputs: Sequence[InputFile], judged: str | None) -> str | None:
    """The judgement's next step, in the words of the kind of files that were given."""
    usable = {i.kind for i in inputs if i.status in ("ok", "partial")} - {"nsys_report"}
    if not usable:
        reports = [i for i in inputs if i.kind == "nsys_report"]
        if reports:
            path, told = reports[0].path, (reports[0].reason or "").partition(": ")[2]
            # The reader of a head knows the name; a command needs the way there.
            return told.replace(export_command(path.rsplit("/", 1)[-1]), export_command(path))
        exports = [i for i in inputs if i.kind == "nsys" and i.status == "unreadable"]
        if exports:
            wait = (exports[0].reason or "").partition("; ")[2]
            return wait or f"export it again with nsys 2023 or later: {EXPORT_COMMAND}"
        return judged
    return MARKED_RANGES if judged == CAPTURE_STEPS and usable == {"nsys"} else judged


def _run(rules: Iterable[Rule], facts: Facts) -> tuple[list[Finding], list[NotChecked], list[str]]:
    findings: list[Finding] = []
    not_checked: list[NotChecked] = []
    rules_run: list[str] = []
    for each in rules:
        outcome = each.run(facts)
        findings += outcome.findings
        not_checked += outcome.not_checked
        if outcome.is_applicable and not outcome.not_checked:
            rules_run.append(each.name)
    return findings, not_checked, rules_run


def _on_inferred_steps(findings: Sequence[Finding], facts: Facts) -> list[Finding]:
    """What costs are stated a step says so where nothing marked the steps."""
    if not facts.steps.inferred_ranks:
        return list(findings)
    return [
        f
        if f.impact.s_per_step is None
        else replace(f, confidence=replace(f.confidence, basis=f"{f.confidence.basis}; {INFERRED}"))
        for f in findings
    ]


def _silence(
    findings: Sequence[Finding], config: DiagnoseConfig, today: date
) -> tuple[list[Finding], list[str]]:
    """The findings that remain, and a line for each that is silenced.

    A symptom that silenced findings explain goes with them.
    """
    by_id = {f.id: s for f in findings for s in config.silences if s.covers(f, today)}
    kept = [
        replace(f, explained_by=tuple(i for i in f.explained_by if i not in by_id))
        for f in findings
        if f.id not in by_id and not (f.explained_by and set(f.explained_by) <= by_id.keys())
    ]
    return kept, [f"{name} silenced: {silence.reason}" for name, silence in by_id.items()]


# ---------------------------------------------------------------- parts of the document


def _run_info(facts: Facts) -> RunInfo:
    job = facts.job
    spans = [s for key in facts.steps.keys if (s := facts.steps.span_ns(key)) is not None]
    start = job.start_ns if job.start_ns is not None else min((s for s, _ in spans), default=None)
    end = job.end_ns if job.end_ns is not None else max((e for _, e in spans), default=None)
    has_window = start is not None and end is not None
    return RunInfo(
        id=job.run_id or "run",
        attempt=job.attempt,
        window=Window(
            start_utc=utc(start) if start is not None and job.is_epoch else None,
            end_utc=utc(end) if end is not None and job.is_epoch else None,
        ),
        step_range=runs(key.step for key in facts.steps.keys),
        ranks=facts.ranks,
        world_size=job.world_size,
        hosts=tuple(sorted(set(job.hosts.values()))),
        steps_count=len(facts.steps),
        window_s=(end - start) / 1e9
        if has_window and end is not None and start is not None
        else None,
    )


def _step_time(facts: Facts) -> StepTime | None:
    row = next((r for r in facts.of("step_time_summary") if r["rank"] is None), None)
    if row is None or not row["steps_count"] or row["mean_ns"] is None:
        return None
    return StepTime(
        steps_count=int(row["steps_count"]),
        mean_s=row["mean_ns"] / 1e9,
        std_s=_s(row["std_ns"]),
        cv_ratio=row["cv_ratio"],
        p50_s=row["p50_ns"] / 1e9,
        p95_s=_s(row["p95_ns"]),
        p99_s=_s(row["p99_ns"]),
        max_s=row["max_ns"] / 1e9,
        outliers_count=row["outliers_count"],
    )


def _s(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / 1e9


def _overlap(facts: Facts) -> Overlap | None:
    rows = facts.of("overlap")
    if not rows or any(row["comm_ns"] is None for row in rows):
        return None
    comm, overlap = _total(rows, "comm_ns"), _total(rows, "overlap_ns")
    sides = {str(row["measured_on"]) for row in rows}
    return Overlap(
        compute_s=_total(rows, "compute_ns") / 1e9,
        comm_s=comm / 1e9,
        overlap_s=overlap / 1e9,
        exposed_comm_s=_total(rows, "exposed_comm_ns") / 1e9,
        overlap_ratio=overlap / comm if comm else None,
        measured_on=sides.pop() if len(sides) == 1 else "gpu and host",
    )


def _bubble(found: ScheduleBubble | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "bubble_ratio": found.bubble_ratio,
        "bubble_overhead_ratio": found.bubble_overhead_ratio,
        "expected_bubble_ratio": found.expected_bubble_ratio,
        "expected_bubble_overhead_ratio": found.expected_bubble_overhead_ratio,
        "window_s": found.window_ns / 1e9,
        "expected_s_per_step": found.allowed_ns / 1e9,
        "stages_count": found.stages_count,
        "microbatches_count": found.microbatches_count,
        "chunks_count": found.chunks_count,
    }


def _traffic(facts: Facts) -> tuple[Traffic, ...]:
    names = [f.name for f in fields(Traffic)]
    contents: list[dict[str, Any]] = [
        {name: row.get(name) for name in names} for row in facts.of("traffic")
    ]
    return tuple(Traffic(**content) for content in contents)


def _total(rows: Iterable[Row], column: str) -> int:
    return sum(int(row[column] or 0) for row in rows)


# ---------------------------------------------------------------- notes


def _shares(facts: Facts) -> RankShares | None:
    steps = facts.steps
    parts, rank = steps.median_parts, steps.median_rank
    if parts is None or rank is None or parts.dur <= 0 or facts.hidden_ranks:
        return None
    row = next(ranks[rank] for ranks in steps.by_key.values() if rank in ranks)
    return RankShares(
        rank=rank,
        compute_ratio=parts.compute / parts.dur,
        exposed_comm_ratio=parts.exposed_comm / parts.dur,
        memory_ratio=parts.memory / parts.dur,
        idle_ratio=parts.idle / parts.dur,
        is_host_side=row.is_host_side,
    )


def _data_lines(facts: Facts, inputs: Sequence[InputFile], silenced: Sequence[str]) -> list[str]:
    """What a reader must know about the data before believing any of it."""
    lines: list[str] = []
    lines += nccl_lines(facts)
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
    silence_s = _silence_at_end_s(facts)
    if silence_s is not None:
        lines.append(f"no rank communicates in the last {silence_s:.0f} s of its capture")
    if facts.steps.inferred_ranks:
        lines.append(
            f"steps of {_ranks(facts.steps.inferred_ranks)} are not marked: inferred from the "
            "period of the updates of the parameters"
        )
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


MUCH_ABOVE_MEAN = 1.2
"""The mean over sizes that nccl-tests prints says little where small sizes are in it."""


def _activity_lines(facts: Facts) -> list[str]:
    """The steps that counters show of a job without traces, or why they show none."""
    rows = facts.of("activity_steps")
    durs = [r["dur_ns"] for r in rows if r["dur_ns"] is not None]
    if durs:
        return [
            f"{plural(len(durs), 'step')} of about {seconds(median(durs) / 1e9)} inferred from "
            f"{rows[0]['reason']}: nothing marked them"
        ]
    return [f"no steps: {rows[0]['reason']}"] if rows else []


def _silence_at_end_s(facts: Facts) -> float | None:
    """How long all ranks communicated no more when their captures ended, where that is like no
    pause before: the job may have ended, or it hangs in a call that no trace shows."""
    rows = [r for r in facts.of("last_calls") if r["silence_ns"] is not None]
    if not rows or any(r["longest_gap_ns"] is None for r in rows):
        return None
    silence_ns = min(int(r["silence_ns"]) for r in rows)
    pause_ns = max(int(r["longest_gap_ns"]) for r in rows)
    is_long = silence_ns >= END_SILENCE_NS and silence_ns >= END_SILENCE_RATIO * pause_ns
    return silence_ns / 1e9 if is_long else None


def nccl_lines(facts: Facts) -> list[str]:
    """What NCCL's logs hold: communicators, ranks, hosts, version, network, benchmarks."""
    lines: list[str] = []
    members = facts.of("nccl_comms")
    if members:
        comms = {str(m["comm"]) for m in members}
        largest = max(members, key=lambda m: int(m["group_size"]))
        hosts = {m["node"] for m in members if m["node"] is not None}
        seen = {m["group_rank"] for m in members if m["comm"] == largest["comm"]}
        versions = {str(m["nccl_version"]) for m in members if m["nccl_version"]} or {
            str(f).partition("=")[2]
            for r in facts.of("nccl_signals") if r["code"] == "version"
            for f in r["fields"] or () if str(f).startswith("nccl=")
        }  # fmt: skip
        words = [
            plural(len(comms), "communicator"),
            f"the largest of {plural(int(largest['group_size']), 'rank')} ({len(seen)} seen)",
            plural(len(hosts), "host"),
            *(f"NCCL {safe(v)}" for v in sorted(versions)[:2]),
            *_networks(facts),
        ]
        lines.append("NCCL logs: " + ", ".join(words))
    lines += _records(facts)
    for row in facts.of("nccl_bench")[:4]:
        name = safe(str(row["benchmark"] or "nccl-tests (which, is not said)"))
        if row["benchmark_source"] == "behaviour":
            name += " (not named; only it fits busbw / algbw)"
        bus = row["average_bus_bytes_per_s"]
        if row["is_complete"] and bus:
            way = f" with {row['algorithm']}" if row["algorithm"] else ""
            peak = float(row["peak_bus_bytes_per_s"] or 0)
            more = f", {peak / 1e9:.1f} at most" if peak > MUCH_ABOVE_MEAN * bus else ""
            lines.append(f"{name}{way} {bus / 1e9:.1f} GB/s on average{more}")
        elif row["is_complete"] and not row["rows_count"]:
            lines.append(f"{name} ran to its end and measured nothing: it ran on one GPU")
        else:
            of = row["expected_rows_count"]
            lines.append(
                f"{name} incomplete: {row['rows_count']}{f' of {of}' if of else ''} sizes measured"
            )
        if not row["is_complete"]:
            errors = signals.errors_of(facts, row)
            lines += [f"{name}, errors in its log: {'; '.join(errors)}"] if errors else []
    return lines


_RECORDS = {
    "flight_recorder": ("Flight Recorder", "dump", "call"),
    "nccl_inspector": ("Inspector", "file", "record"),
    "nccl_ras": ("RAS", "file", "member"),
}


def _records(facts: Facts) -> list[str]:
    """What dumps, records and snapshots hold, one line a kind."""
    lines = []
    for kind, (name, file, item) in _RECORDS.items():
        rows = [r for r in facts.of("comm_records") if r["kind"] == kind]
        if not rows:
            continue
        count = sum(int(r["calls_count"]) + int(r["members_count"]) for r in rows)
        if kind == "nccl_ras":  # files of one job show the same members again
            count = max(int(r["members_count"]) for r in rows)
        if kind == "flight_recorder":
            count = sum(int(r["calls_count"]) for r in rows)
        words = [plural(len(rows), file), plural(count, item)]
        unfinished = sum(int(r["unfinished_count"]) for r in rows)
        behind = any(r["behind_count"] for r in rows)
        fastest = max((float(r["bus_bytes_per_s"] or 0) for r in rows), default=0.0)
        words += [f"{unfinished:,} unfinished"] if unfinished else []
        words += [f"up to {fastest / 1e9:.1f} GB/s"] if fastest else []
        stated = sorted({safe(str(t)) for r in rows for t in r["statuses"] or ()} - {"OK"})
        if kind == "nccl_ras" and stated:
            words.append(f"states {', '.join(stated[:3])}")
        if behind or "MISMATCH" in stated:
            words.append("unequal counts, which are normal in one snapshot")
        words += _inspected(facts) if kind == "nccl_inspector" else []
        lines.append(f"{name}: " + ", ".join(words))
    return lines


MAX_DUR_RATIO = 1.25
"""Inspector and the profiler time the same kernels: a quarter more or less is no rounding."""


def _inspected(facts: Facts) -> list[str]:
    """How Inspector's records stand beside the trace's calls."""
    rows = facts.of("inspector_calls")
    if not rows:
        return ["no communicator of theirs is known in the traces"] if facts.ranks else []
    matched = sum(int(r["matched_count"]) for r in rows)
    if not matched:
        why = next((str(r["reason"]) for r in rows if r["reason"]), "no call is in both")
        words = [f"none matched with a call of the traces: {why}"]
    else:
        words = [f"{matched:,} matched with calls of the traces"]
    apart = [r for r in rows if r["dur_ratio"] is not None and _is_apart(float(r["dur_ratio"]))]
    if apart:
        worst = max(apart, key=lambda r: abs(math.log(float(r["dur_ratio"]))))
        words.append(
            f"whose times disagree with the traces' kernels (up to {float(worst['dur_ratio']):.2f}x"
            f" for {worst['op']} of {int(worst['message_bytes']) / 1e6:,.0f} MB)"
        )
    elif matched:
        words.append("and their times agree")
    return words


def _is_apart(ratio: float) -> bool:
    return ratio <= 0 or not 1 / MAX_DUR_RATIO <= ratio <= MAX_DUR_RATIO


def _networks(facts: Facts) -> list[str]:
    used = {
        str(r["detail"]).split("/", 1)[0] + (" with" if r["is_gpudirect"] else " without")
        for r in facts.of("nccl_topology")
        if r["transport"] == "NET" and r["detail"]
    }
    return [f"{safe(u)} GPUDirect" for u in sorted(used)[:3]]


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {some_ranges(ranks)}"


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


def _identity(facts: Facts, finding: Finding) -> str | None:
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
