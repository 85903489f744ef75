"""The verdict: what kind of answer this is, and the one sentence that says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean, median

from tracekit.findings import (
    HANG_RULES,
    BudgetPart,
    Finding,
    Severity,
    Verdict,
    VerdictKind,
    ordered,
)
from tracekit.rules import RULES, ras_hang
from tracekit.rules.base import HIDDEN_CAPTURE, Facts
from tracekit.rules.low_mfu import waterfall
from tracekit.rules.pipeline import schedule_bubble
from tracekit.rules.steps import StepKey, Steps
from tracekit.wording import plural, ranks_phrase, safe, seconds, share, some_ranges


@dataclass(frozen=True)
class VerdictThresholds:
    """When something is amiss although no rule found it."""

    min_waiting_ratio: float = field(
        default=0.10,
        metadata={"reason": "waiting for absent ranks, or unequal waiting; as exposed comm (D27)"},
    )
    min_idle_ratio: float = field(
        default=0.20, metadata={"reason": "GPU idle without a finding; less is usual in any job"}
    )
    min_host_idle_ratio: float = field(
        default=0.30,
        metadata={"reason": "host-side ranks: idle is Python between operators too; healthy: 0.1"},
    )
    min_slow_steps_ratio: float = field(
        default=0.05,
        metadata={"reason": "time above the median step, of all; as a major finding's impact"},
    )
    min_steps_count: int = field(
        default=2, metadata={"reason": "one step cannot show that the next is like it"}
    )


PROGRAM_RULES = frozenset({"launch-bound", "latency-bound-communication"})
"""Rules that blame nobody and yet are more than what the layout allows."""
STATED_CAUSES = frozenset(
    """
    nccl-socket-fallback channel-collapse no-gpudirect shm-instead-of-p2p wrong-nic config-mismatch
    cross-rail-traffic tensor-group-spans-hosts pcie-degraded
    """.split()  # noqa: SIM905  # a list that is read by eye
)
"""Rules that logs or counters prove without a price, and whose cause slows communication."""
PORT_FAULTS = frozenset({"packet-loss", "nic-error", "link-degraded"})
"""Rules of ports whose counters show harm whatever it costs: no job makes it by running."""
LIMITS = VerdictThresholds()
REASONS = {f.name: f.metadata["reason"] for f in fields(VerdictThresholds)}


@dataclass(frozen=True)
class Judgement:
    """A verdict, and what to do next where no finding says so."""

    verdict: Verdict
    next_step: str | None = None


COUNTER_QUERIES = ("gpu_counters", "port_counters", "port_levels")
CAPTURE_DEVICES = (
    "record the devices too: nsys profile --trace=cuda,nvtx, or torch.profiler with "
    "ProfilerActivity.CUDA"
)
MIN_SHOWN_SHARE = 0.01
CAPTURE_STEPS = "profile five or more steps after warm-up, with a schedule that marks steps"


def judge(
    facts: Facts,
    findings: Sequence[Finding],
    budget: Sequence[BudgetPart],
    blames: Mapping[str, bool],
    rules_run: Sequence[str],
    has_silenced: bool = False,
    is_whole: bool = True,
    failed: Sequence[str] = (),
) -> Judgement:
    """The verdict over all findings. The first that applies:

    hang; a major finding that names a cause (culprit if it sits on part of the job, else
    configuration); kernels hidden in CUDA graphs or no step (not_enough_data); waiting that may
    be for ranks without a trace (not_enough_data, with the cause that logs state for slow
    communication, if any: it is there, only its share is not known); unequal waiting that no
    finding explains (unexplained); a program that launches too slowly or sends too little at a
    time (configuration: it blames nobody, but has a remedy); idle time or slow steps that no
    finding explains (unexplained); a minor finding that names a cause (it would mislead to lead
    with 1 % while 40 % is unexplained); a single step, or files left for want of time
    (not_enough_data); a port that loses or damages what is sent, at a price that nothing tells,
    beside communication that nothing hides (not_enough_data); inherent.
    What a silenced finding may explain is not called unexplained. ``is_whole`` says that every
    input was read to its end; ``failed`` names the inputs on which our own reader failed: what
    they hold is not known, so nothing is inherent. Nor is waiting where a part of the traces is
    missing and calls could not be matched without it.
    """
    hang = next((f for f in findings if f.rule in HANG_RULES), None)
    if hang is not None:
        return Judgement(Verdict(kind="hang", finding=hang.id, sentence=hang.summary))
    cause = next((f for f in ordered(findings) if _is_cause(f, blames)), None)
    if cause is not None and cause.severity.weight >= Severity.MAJOR.weight:
        return Judgement(_named(facts, cause))
    if facts.hidden_ranks:
        return _hidden(facts)
    if not facts.steps.rank_means:
        # A log alone has no step to weigh a finding against; what it shows is all there is.
        return (
            Judgement(_named(facts, cause))
            if cause is not None
            else _no_steps(facts, rules_run, findings)
        )
    is_open = not has_silenced
    return (
        _missing(facts, cause)
        or (_unequal_waiting(facts) if is_open else None)
        or _program(facts, findings)
        or (_idle(facts, budget) if is_open else None)
        or (_slow_steps(facts) if is_open else None)
        or (Judgement(_named(facts, cause)) if cause is not None else None)
        or _too_short(facts)
        or _failed(failed)
        or _unread(facts)
        or _unpriced(facts, findings)
        or _inherent(facts, rules_run, has_silenced, is_whole, findings)
    )


def _is_cause(finding: Finding, blames: Mapping[str, bool]) -> bool:
    is_worth_it = finding.severity.weight >= Severity.MINOR.weight
    return blames.get(finding.rule, True) and not finding.explained_by and is_worth_it


def _named(facts: Facts, finding: Finding) -> Verdict:
    scope = finding.scope
    names_a_part = bool(scope.devices or scope.links or scope.switches or scope.racks)
    names_all_ranks = not scope.ranks or set(scope.ranks) >= set(facts.ranks)
    is_whole_job = finding.rule in PROGRAM_RULES or (names_all_ranks and not names_a_part)
    kind: VerdictKind = "configuration" if is_whole_job else "culprit"
    if finding.candidates.ranks and not scope.ranks:
        # It is known that somebody is to blame: of a group that is, or that was not captured.
        kind = "culprit" if scope.groups else "not_enough_data"
    return Verdict(kind=kind, finding=finding.id, sentence=finding.summary)


def _say(kind: VerdictKind, sentence: str, next_step: str | None = None) -> Judgement:
    return Judgement(Verdict(kind=kind, finding=None, sentence=sentence), next_step)


def _hidden(facts: Facts) -> Judgement:
    ranks = facts.hidden_ranks
    most = max(r["hidden_ratio"] for r in facts.of("hidden_kernels") if r["hidden_ratio"])
    return _say(
        "not_enough_data",
        f"Cannot tell what computes and what communicates: on {plural(len(ranks), 'rank')} up to "
        f"{share(most)} of the device time ran in CUDA graphs that were recorded as a whole.",
        f"capture again with {HIDDEN_CAPTURE}",
    )


def _no_steps(facts: Facts, rules_run: Sequence[str], findings: Sequence[Finding]) -> Judgement:
    capture = CAPTURE_STEPS
    rows = [r for r in facts.of("overlap") if r["span_ns"]]
    warm = len(facts.steps.warmup_keys)
    if warm or facts.steps.partial_count:
        seen = (
            plural(warm, "warm-up step") + " and " + plural(facts.steps.partial_count, "cut step")
        )
        return _say(
            "not_enough_data", f"Cannot tell: the traces hold {seen} and no steady one.", capture
        )
    if not rows and (cut := [r for r in facts.of("nccl_bench") if not r["is_complete"]]):
        name = safe(str(cut[0]["benchmark"] or "nccl-tests"))
        of = cut[0]["expected_rows_count"]
        return _say(
            "not_enough_data",
            f"Cannot tell: {name} is incomplete ({cut[0]['rows_count']}"
            + (f" of {of}" if of else "")
            + " sizes measured), and nothing says why.",
            "run it again with NCCL_DEBUG=INFO and keep the whole output",
        )
    if not rows and (facts.of("nccl_comms") or facts.of("nccl_bench")):
        has_counters = bool(facts.of("gpu_counters") or facts.of("port_counters"))
        logged = "NCCL logged" if facts.of("nccl_comms") else "nccl-tests measured"
        only = (
            f"there are only NCCL's logs and counters, {_shown(facts)}"
            if has_counters
            else (f"there is only what {logged}")
        )
        read = "them" if has_counters else "it"
        return _say(
            "not_enough_data",
            f"Cannot tell what a step costs: {only}, and the rules that read {read} found no "
            "fault.",
            capture,
        )
    if not rows and (records := facts.of("comm_records")):
        if all(r["kind"] == "nccl_ras" for r in records):
            says, advice = ras_hang.told(facts)
            return _say("not_enough_data", f"Cannot tell: {says}", advice)
        return _say(
            "not_enough_data",
            "Cannot tell: records of communication alone, and the rules that read them found no "
            "fault.",
            "add the dumps of all ranks (/tmp/nccl_trace_rank_*), or their traces",
        )
    if not rows and any(facts.of(query) for query in COUNTER_QUERIES):
        return _counters_alone(facts, rules_run, findings)
    if not rows and facts.ranks:
        return _say(
            "not_enough_data",
            "Cannot tell: the traces hold no work of a device.",
            CAPTURE_DEVICES,
        )
    if not rows:
        return _say("not_enough_data", "Cannot tell: no file holds a usable trace.", capture)
    span = sum(r["span_ns"] for r in rows)
    words = {
        "compute_ns": "computing",
        "exposed_comm_ns": "communication not hidden",
        "idle_ns": "idle",
    }
    parts = {column: sum(r[column] or 0 for r in rows) / span for column in words}
    shares = ", ".join(f"{word} {share(parts[column])}" for column, word in words.items())
    rest = 1 - sum(parts.values())
    if rest >= MIN_SHOWN_SHARE:
        shares += f", copies and other work {share(rest)}"
    return _say(
        "not_enough_data",
        f"Cannot tell what a step costs: the traces mark no steps. Over the window of "
        f"{seconds(max(r['span_ns'] for r in rows) / 1e9)}: {shares}.",
        capture,
    )


def _counters_alone(
    facts: Facts, rules_run: Sequence[str], findings: Sequence[Finding]
) -> Judgement:
    """Counters without a trace: what the rules that could read them found, if any could."""
    only = f"there are only counters, {_shown(facts)}"
    readers = {r.name for r in RULES if set(r.queries) & set(COUNTER_QUERIES)}
    if readers & set(rules_run):
        sentence = f"Cannot tell what a step costs: {only}, and the rules that could read them"
        what = "nothing above a note" if findings else "no fault"
        return _say("not_enough_data", f"{sentence} found {what}.", CAPTURE_STEPS)
    rows = [row for query in COUNTER_QUERIES for row in facts.of(query)]
    if all((row["samples_count"] or 0) <= 1 for row in rows):
        return _say(
            "not_enough_data",
            "Cannot tell: there are only counters, each read once. What they count began at a time "
            "that nobody knows; how much of it is the job's only a second reading shows.",
            "read them again while the job runs, and give both (tracekit capture --what nic,dcgm)",
        )
    return _say(
        "not_enough_data",
        f"Cannot tell: {only}, and none that a rule reads.",
        "capture those that rules read: tracekit capture --what nic,dcgm",
    )


def _shown(facts: Facts) -> str:
    """What GPU counters say of the steps of a job without traces."""
    durs = [r["dur_ns"] for r in facts.of("activity_steps") if r["dur_ns"] is not None]
    if not durs:
        return "which show no steps"
    return f"which show steps of about {seconds(median(durs) / 1e9)} and not what is in them"


def _waiting(facts: Facts) -> dict[int, float]:
    """Mean exposed communication of each rank, in shares of the step."""
    steps = facts.steps
    return {rank: p.exposed_comm / steps.step_ns for rank, p in steps.rank_means.items()}


def _missing(facts: Facts, cause: Finding | None) -> Judgement | None:
    missing = facts.missing_ranks
    waiting = median(_waiting(facts).values())
    if not missing or waiting < LIMITS.min_waiting_ratio:
        return None
    advice = f"profile ranks {some_ranges(missing)} in the same steps"
    if cause is not None and cause.rule in STATED_CAUSES:
        says = (
            f"{cause.summary} How much of the {share(waiting)} of the step that is communication "
            f"which nothing hides it explains cannot be told: {plural(len(missing), 'rank')} that "
            f"it may be waiting for left no trace."
        )
        return Judgement(
            Verdict(kind="not_enough_data", finding=cause.id, sentence=says), advice
        )  # fmt: skip
    return _say(
        "not_enough_data",
        f"Cannot tell: {share(waiting)} of the step is communication that nothing hides, and "
        f"{plural(len(missing), 'rank')} that it may be waiting for left no trace.",
        advice,
    )


def _unequal_waiting(facts: Facts) -> Judgement | None:
    """A few ranks that wait clearly less than all others: the others wait for them."""
    late = late_ranks(facts.steps)
    if not late:
        return None
    steps = facts.steps
    others = [r for r in steps.ranks if r not in late]
    held_ns = _typical(steps, others, "exposed_comm") - _typical(steps, late, "exposed_comm")
    who = ranks_phrase(late, facts.ranks)
    verb, their = ("seems", "its") if len(late) == 1 else ("seem", "their")
    doing = _what_takes_longer(steps, late, others)
    return _say(
        "unexplained",
        f"{who} {verb} to hold up the others, which wait {seconds(held_ns / 1e9)} more of each "
        f"{seconds(steps.step_ns / 1e9)} step in communication{doing}. No rule here found the "
        f"reason.",
        f"compare {who.lower()} with {their} peers: kernels, input, host",
    )


def late_ranks(steps: Steps) -> list[int]:
    """The ranks that wait least, where a clear gap divides them from at least half of all.

    The gap, not the spread: where ranks differ by nature (stages of a pipeline) their waiting
    differs gradually. In two thirds of the steps each of them must wait less than the typical
    other rank.
    """
    waiting = {rank: p.exposed_comm for rank, p in steps.rank_means.items()}
    in_order = sorted(waiting, key=lambda r: (waiting[r], r))
    gaps = [
        (waiting[in_order[i]] - waiting[in_order[i - 1]], i)
        for i in range(1, len(in_order) // 2 + 1)
    ]
    if not gaps:
        return []
    gap, count = max(gaps)
    if gap < LIMITS.min_waiting_ratio * steps.step_ns:
        return []
    late, others = sorted(in_order[:count]), in_order[count:]
    less = dict.fromkeys(late, 0)
    judged = dict.fromkeys(late, 0)
    for ranks in steps.by_key.values():
        theirs = [ranks[r].exposed_comm_ns for r in others if r in ranks]
        if not theirs:
            continue
        typical = median(theirs)
        for rank in late:
            if rank in ranks:
                judged[rank] += 1
                less[rank] += ranks[rank].exposed_comm_ns < typical
    return late if all(3 * less[r] >= 2 * judged[r] > 0 for r in late) else []


def _typical(steps: Steps, ranks: Sequence[int], part: str) -> float:
    return median(float(getattr(steps.rank_means[r], part)) for r in ranks)


def _what_takes_longer(steps: Steps, late: Sequence[int], others: Sequence[int]) -> str:
    """What the late ranks do while the others wait, if one thing stands out."""
    more = {
        part: _typical(steps, late, part) - _typical(steps, others, part)
        for part in ("compute", "memory", "idle")
    }
    part = max(more, key=lambda p: more[p])
    if more[part] < 0.5 * LIMITS.min_waiting_ratio * steps.step_ns:
        return ""
    verb = {"compute": "compute", "memory": "copy", "idle": "do nothing"}[part]
    if len(late) == 1:
        verb = {"compute": "computes", "memory": "copies", "idle": "does nothing"}[part]
    subject = "it" if len(late) == 1 else "they"
    return f"; {subject} {verb} for {seconds(more[part] / 1e9)} longer"


def _program(facts: Facts, findings: Sequence[Finding]) -> Judgement | None:
    found = next((f for f in findings if f.rule in PROGRAM_RULES and not f.explained_by), None)
    return None if found is None else Judgement(_named(facts, found))


def _idle(facts: Facts, budget: Sequence[BudgetPart]) -> Judgement | None:
    step_s = facts.steps.step_ns / 1e9
    idle_s = sum(p.s_per_step for p in budget if p.part in ("host", "unexplained"))
    limit = LIMITS.min_idle_ratio if facts.has_gpu else LIMITS.min_host_idle_ratio
    if idle_s < limit * step_s:
        return None
    who = "The GPU is" if facts.has_gpu else "The ranks are"
    return _say(
        "unexplained",
        f"{who} idle {share(idle_s / step_s)} of the {seconds(step_s)} step, and no rule here "
        f"found the reason.",
        "profile with Python stacks to see what the host does meanwhile",
    )


def _slow_steps(facts: Facts) -> Judgement | None:
    durs = facts.steps.job_durs_ns
    typical = median(durs)
    above = sum(max(0.0, d - typical) for d in durs) / sum(durs)
    # Half of all steps are above the median; noise alone gives both sides alike.
    below = sum(max(0.0, typical - d) for d in durs) / sum(durs)
    if len(durs) < 3 or above - below < LIMITS.min_slow_steps_ratio:
        return None
    late = late_ranks(facts.steps.only(_slow_keys(facts.steps, typical)))
    who = ranks_phrase(late, facts.ranks).lower()
    held = f" In them {who} {'seems' if len(late) == 1 else 'seem'} to hold up the others."
    return _say(
        "unexplained",
        f"Some steps take up to {seconds(max(durs) / 1e9)} where {seconds(typical / 1e9)} is "
        f"typical, {seconds((fmean(durs) - typical) / 1e9)} a step on average."
        f"{held if late else ''} No rule here found the reason.",
        "profile a longer window that spans several slow steps, with Python stacks",
    )


def _slow_keys(steps: Steps, typical_ns: float) -> list[StepKey]:
    return [
        key
        for key, dur_ns in zip(steps.keys, steps.job_durs_ns, strict=True)
        if dur_ns > (1 + LIMITS.min_slow_steps_ratio) * typical_ns
    ]


def _too_short(facts: Facts) -> Judgement | None:
    count = len(facts.steps)
    if count >= LIMITS.min_steps_count:
        return None
    return _say(
        "not_enough_data",
        f"Cannot tell from {plural(count, 'steady step')} "
        f"({seconds(facts.steps.step_ns / 1e9)}): nothing stands out in it.",
        "profile five or more steps after warm-up",
    )


def _failed(paths: Sequence[str]) -> Judgement | None:
    if not paths:
        return None
    more = f" and {plural(len(paths) - 1, 'more file')}" if len(paths) > 1 else ""
    return _say(
        "not_enough_data",
        f"Cannot tell: tracekit itself failed on {paths[0]}{more}; "
        "what else was read shows no fault.",
        "report the bug: the place is in the input's issues (--format json)",
    )


def _unread(facts: Facts) -> Judgement | None:
    """What was not read for want of time may hold the fault."""
    paths = facts.job.unread
    if not paths:
        return None
    return _say(
        "not_enough_data",
        f"Cannot tell yet: {plural(len(paths), 'file')} were left for want of time; "
        "what was read shows no fault.",
        "run the same command again: it goes on with the files that are left",
    )


def _unpriced(facts: Facts, findings: Sequence[Finding]) -> Judgement | None:
    """A port at fault, at an unknown price, beside communication that it may be the reason for."""
    waiting = median(_waiting(facts).values())
    found = next((f for f in findings if f.rule in PORT_FAULTS and _is_unpriced(f)), None)
    if found is None or waiting < LIMITS.min_waiting_ratio:
        return None
    says = (
        f"{found.summary} How much of the {share(waiting)} of the step that is communication "
        "which nothing hides comes from it cannot be told."
    )
    return Judgement(
        Verdict(kind="not_enough_data", finding=found.id, sentence=says),
        "mend the port; what it costs shows where counters and traces are on one clock "
        "([clocks] in job.toml) over 30 steps, slow and normal",
    )


def _is_unpriced(finding: Finding) -> bool:
    is_open = finding.impact.s_per_step is None and not finding.explained_by
    return is_open and not finding.counter_evidence


def _inherent(
    facts: Facts,
    rules_run: Sequence[str],
    has_silenced: bool,
    is_whole: bool,
    findings: Sequence[Finding] = (),
) -> Judgement:
    steps = facts.steps
    exposed = median(_waiting(facts).values())
    about = ""
    bubble = schedule_bubble(facts)
    if bubble is not None:
        made = min(bubble.allowed_ns / steps.step_ns, 1.0)
        exposed -= made
        about = (
            f", {share(made)} of it the bubble that {bubble.stages_count} stages with "
            f"{bubble.microbatches_count} microbatches make"
        )
    has_waiting = exposed >= LIMITS.min_waiting_ratio
    if has_waiting:
        more = "" if bubble is None else "other "
        about += f", {share(exposed)} of it {more}communication that nothing hides"
    if has_waiting and not is_whole and "late-rank" not in rules_run:
        return _say(
            "not_enough_data",
            f"Cannot tell: {seconds(steps.step_ns / 1e9)} a step{about}, and with parts of the "
            "traces missing it cannot be said who waits for whom.",
            "give the whole traces again; --all lists the files that break off",
        )
    missing = facts.missing_ranks
    where = f" on the {plural(len(facts.ranks), 'rank')} traced" if missing else ""
    beyond = " beyond what is silenced" if has_silenced else ""
    beyond += "" if is_whole else " in what could be read"
    network = ""
    low = any(f.rule == "low-mfu" and f.impact.s_per_step for f in findings)
    used = waterfall(facts) if low else None
    if used is not None:
        about += f", the model's arithmetic {share(used.mfu_ratio)} of the GPUs' peak"
    if has_waiting:
        network = " Whether the network should be faster was not checked."
    return _say(
        "inherent",
        f"Nothing to fix{beyond}{where}: {seconds(steps.step_ns / 1e9)} a step{about}; "
        f"{len(rules_run)} of {len(RULES)} rules could look and found no fault.{network}",
    )
