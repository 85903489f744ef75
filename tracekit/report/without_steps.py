"""The verdict where no step is known: what there is instead, and what to capture."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from tracekit.findings import Finding, Severity
from tracekit.report import signals
from tracekit.report.benchmarks import benchmarks_alone, cut_benchmark
from tracekit.report.history import log_alone, summary_of
from tracekit.report.judgement import Judgement, ReportThresholds, cannot_tell, say
from tracekit.rules import RULES, ras_hang, rule, stack_hang
from tracekit.rules.base import Facts, Row
from tracekit.wording import plural, safe, seconds, share, some

COUNTER_QUERIES = ("gpu_counters", "port_counters", "port_levels")
CAPTURE_DEVICES = (
    "record the devices too: nsys profile --trace=cuda,nvtx, or torch.profiler with "
    "ProfilerActivity.CUDA"
)
CAPTURE_STEPS = "profile five or more steps after warm-up, with a schedule that marks steps"
MIN_SHOWN_SHARE = 0.01
COPIES = "copies and other work"
LOADS = {
    "sm_active": "SM activity",
    "graphics_active": "graphics activity",
    "gpu_utilisation": "utilisation",
}
STATED = (
    "waiting", "independent", "in_turn", "offload", "apart", "bursts_network", "stretch_network",
    "throughout_network", "bursts_nvlink", "stretch_nvlink", "throughout_nvlink",
)  # fmt: skip
"""Statements of counters that the verdict tells, the most telling first."""
MAX_STATED = 3
DIRECTIONS = {
    "HtoD": "from the host to the device",
    "DtoH": "from the device to the host",
    "DtoD": "within the device",
    "PtoP": "between devices",
}


def no_steps(
    facts: Facts, rules_run: Sequence[str], findings: Sequence[Finding], limits: ReportThresholds
) -> Judgement:
    """By what there is instead: steps that are not steady, a window, a benchmark, logs, counters,
    ranks, nothing."""
    warm = len(facts.steps.warmup_keys)
    if warm or facts.steps.partial_count:
        seen = (
            plural(warm, "warm-up step") + " and " + plural(facts.steps.partial_count, "cut step")
        )
        return cannot_tell(f"Cannot tell: the traces hold {seen} and no steady one.", CAPTURE_STEPS)
    windows = [r for r in facts.of("overlap") if r["span_ns"]]
    if windows:
        return _window_alone(facts, windows, limits)
    told = summary_of(facts)
    if told is not None:
        return log_alone(facts, told, limits)
    cut = [r for r in facts.of("nccl_bench") if not r["is_complete"]]
    if cut:
        return cut_benchmark(facts, cut[0], limits)
    if facts.of("nccl_bench") and not (facts.of("gpu_counters") or facts.of("port_counters")):
        return benchmarks_alone(facts.of("nccl_bench"), limits)
    if facts.of("nccl_comms") or facts.of("nccl_bench"):
        return _nccl_alone(facts)
    if facts.of("comm_records"):
        return _records_alone(facts)
    if any(facts.of(query) for query in COUNTER_QUERIES):
        return _counters_alone(facts, rules_run, findings)
    if facts.of("host_pressure"):
        return cannot_tell(
            "Cannot tell: there are only counters of hosts, and what a host lacked counts where "
            "the job was slow meanwhile.",
            "give the job's training log beside them, or profile five or more steps while they "
            "are read",
        )
    if facts.ranks:
        return cannot_tell("Cannot tell: the traces hold no work of a device.", CAPTURE_DEVICES)
    if facts.of("nccl_signals"):
        return _nccl_errors(facts)
    if facts.of(stack_hang.QUERY):
        return cannot_tell(
            "Cannot tell: there are only stacks of processes, and they show no hang.",
            stack_hang.AGAIN,
        )
    return cannot_tell("Cannot tell: no file holds a usable trace.", CAPTURE_STEPS)


def largest_of_window(findings: Sequence[Finding]) -> Finding | None:
    """Of what findings name in a window without steps, that which takes most of it."""
    named = (
        f
        for f in findings
        if f.impact.per == "window"
        and rule(f.rule).blames != "nobody"
        and not f.explained_by
        and f.severity.weight >= Severity.MINOR.weight
    )
    return max(named, key=lambda f: (f.impact.s_per_step or 0.0, f.id), default=None)


def larger_rest(facts: Facts, largest: Finding, limits: ReportThresholds) -> Judgement | None:
    """Where a larger part of the window than what the finding names is none of it: that."""
    rows = [r for r in facts.of("overlap") if r["span_ns"]]
    if facts.hidden_ranks or not rows:
        return None
    window = _Window.of(rows)
    part_ns = window.parts[window.largest]
    named_ns = (largest.impact.step_ratio or 0.0) * window.span_ns
    if named_ns >= limits.min_explained_ratio * part_ns:
        return None
    return _unexplained(facts, window, limits)


class _Window(Struct, frozen=True):
    """What all windows together went into, in ns: of ranks, streams and copies times are summed."""

    span_ns: int
    longest_ns: int
    parts: dict[str, int]
    is_gpu: bool

    @classmethod
    def of(cls, rows: Sequence[Row]) -> _Window:
        span_ns = sum(r["span_ns"] for r in rows)
        parts = {
            "computing": sum(r["compute_ns"] or 0 for r in rows),
            "communication not hidden": sum(r["exposed_comm_ns"] or 0 for r in rows),
            "idle": sum(r["idle_ns"] or 0 for r in rows),
        }
        rest_ns = span_ns - sum(parts.values())
        if rest_ns >= MIN_SHOWN_SHARE * span_ns:
            parts[COPIES] = rest_ns
        longest_ns = max(r["span_ns"] for r in rows)
        return cls(span_ns, longest_ns, parts, any(r["measured_on"] == "gpu" for r in rows))

    @property
    def largest(self) -> str:
        return max(self.parts, key=lambda word: self.parts[word])

    def ratio(self, word: str) -> float:
        return self.parts[word] / self.span_ns

    @property
    def words(self) -> str:
        """``the window of 300 ms: computing 85 %, idle 15 %``."""
        shares = ", ".join(f"{word} {share(self.ratio(word))}" for word in self.parts)
        return f"the window of {seconds(self.longest_ns / 1e9)}: {shares}"


def _window_alone(facts: Facts, rows: Sequence[Row], limits: ReportThresholds) -> Judgement:
    """By what the window went into, whatever a step is, where no finding names it."""
    window = _Window.of(rows)
    unexplained = _unexplained(facts, window, limits)
    if unexplained is not None:
        return unexplained
    steady = facts.over_windows
    if steady is None or steady.steps.median_parts is None:
        return cannot_tell(
            f"Cannot tell what a step costs: the traces mark no steps. Over {window.words}.",
            CAPTURE_STEPS,
        )
    usual = steady.steps.median_parts
    for word, ns in (("idle", usual.idle), (COPIES, usual.memory)):
        if word in window.parts and ns >= limits.min_idle_ratio * usual.dur:
            return _of_it(facts, window, word, limits)
    has_waiting = usual.exposed_comm >= limits.min_waiting_ratio * usual.dur
    if has_waiting and facts.missing_ranks:
        return cannot_tell(
            f"Cannot tell: {plural(len(facts.missing_ranks), 'rank')} that its communication may "
            f"be waiting for {facts.missing_state}. Over {window.words}.",
            facts.missing_advice,
        )
    read = " in what could be read" if facts.job.broken_ranks else ""
    network = " Whether the network should be faster was not checked." if has_waiting else ""
    return say(
        "inherent",
        f"Nothing to fix is seen{read} over {window.words}. The traces mark no steps, so only what "
        f"shows in a whole window was looked for.{network}",
        CAPTURE_STEPS,
    )


def _unexplained(facts: Facts, window: _Window, limits: ReportThresholds) -> Judgement | None:
    """Most of the window that is no computing."""
    largest = window.largest
    if largest == "computing" or window.ratio(largest) < limits.min_window_ratio:
        return None
    return _of_it(facts, window, largest, limits)


def _of_it(facts: Facts, window: _Window, word: str, limits: ReportThresholds) -> Judgement:
    """A part of the window that no finding names."""
    reason, advice = "", CAPTURE_STEPS
    if word == "idle":
        reason, advice = _idle(facts, limits)
    elif word == COPIES:
        reason, advice = _copies(facts, window.span_ns, limits)
    what = {
        "communication not hidden": "communication that nothing hides",
        "idle": "time in which the GPU is idle"
        if window.is_gpu
        else "time in which nothing is computed",
        COPIES: "copies and other work beside which nothing is computed",
    }[word]
    return say(
        "unexplained",
        f"{share(window.ratio(word))} of the window is {what}{reason}. The traces mark no "
        f"steps. Over {window.words}.",
        advice,
        window.ratio(word),
    )


def _idle(facts: Facts, limits: ReportThresholds) -> tuple[str, str]:
    """Whether devices idle because their host launches late, and what helps."""
    rows = [r for r in facts.of("idle_breakdown") if r["stream"] is None]
    idle_ns = sum(int(r["idle_ns"] or 0) for r in rows)
    waiting_ns = sum(int(r["host_wait_ns"] or 0) for r in rows)
    pauses_ns = sum(int(r["host_pause_ns"] or 0) for r in rows)
    stacks = "profile with Python stacks to see what the host does meanwhile"
    if not idle_ns or waiting_ns < limits.min_window_ratio * idle_ns:
        return "", stacks
    until = f", {share(waiting_ns / idle_ns)} of it until the host launches the next operation"
    if pauses_ns >= limits.min_window_ratio * waiting_ns:
        return f"{until}, mostly in waits so long that it did something else meanwhile", stacks
    return (
        until,
        "launch less: CUDA graphs, torch.compile, larger batches; or find what holds up the host",
    )


def _copies(facts: Facts, span_ns: int, limits: ReportThresholds) -> tuple[str, str]:
    """Which copies take most of it, and what helps."""
    busy_ns: dict[str, int] = {}
    for row in facts.of("memcpy_summary"):
        if row["copy_kind"] in DIRECTIONS:
            kind = str(row["copy_kind"])
            busy_ns[kind] = busy_ns.get(kind, 0) + int(row["busy_ns"])
    most = max(sorted(busy_ns), key=lambda kind: busy_ns[kind], default=None)
    if most is None or busy_ns[most] < limits.min_window_ratio * span_ns:
        return "", CAPTURE_STEPS
    return (
        f": copies {DIRECTIONS[most]} run {share(busy_ns[most] / span_ns)} of it",
        "keep on the device what is copied again and again; pinned memory and non_blocking=True "
        "let copies run beside kernels",
    )


def _nccl_alone(facts: Facts) -> Judgement:
    if facts.of("gpu_counters") or facts.of("port_counters"):
        only, read = f"there are only NCCL's logs and counters, {_shown(facts)}", "them"
    else:
        only, read = "there is only what NCCL logged", "it"
    return cannot_tell(
        f"Cannot tell what a step costs: {only}, and the rules that read {read} found no fault.",
        CAPTURE_STEPS,
    )


def _on_sockets(facts: Facts) -> str:
    """That every process which names its network uses TCP sockets, and why where a line says so."""
    rows = facts.of("nccl_signals")
    networks = {
        str(field).removeprefix("network=").strip()
        for row in rows
        if row["code"] == "network"
        for field in row["fields"] or ()
        if str(field).startswith("network=")
    }
    if networks != {"Socket"}:
        return ""
    codes = {row["code"] for row in rows}
    why = (
        " (libibverbs could not be loaded)"
        if "no_ibverbs" in codes
        else " (no InfiniBand or RoCE device was found)"
        if "no_ib_device" in codes
        else ""
    )
    return f"; its network is TCP sockets{why}, slow where the job spans machines"


def _nccl_errors(facts: Facts) -> Judgement:
    """Lines of NCCL without a communicator: the errors that they name, if any."""
    errors = signals.errors_of(facts)
    if not errors:
        return cannot_tell(
            "Cannot tell: what NCCL logged names no communicator and no error"
            f"{_on_sockets(facts)}.",
            "keep the job's whole output, with NCCL_DEBUG=INFO",
        )
    rows = [r for r in facts.of("nccl_signals") if r["severity"] == "error"]
    hosts = sorted({safe(str(r["node"])) for r in rows if r["node"] is not None})
    where = f" on {some(hosts)}" if hosts else ""
    return cannot_tell(
        f"Cannot tell which process failed first: NCCL's log names errors{where}: "
        f"{'; '.join(errors)}.",
        "look at the first of these errors (tracekit query RUN nccl_signals), and give the "
        "output of all ranks to their end",
    )


def _records_alone(facts: Facts) -> Judgement:
    if all(r["kind"] == "nccl_ras" for r in facts.of("comm_records")):
        says, advice = ras_hang.told(facts)
        return cannot_tell(f"Cannot tell: {says}", advice)
    return cannot_tell(
        "Cannot tell: records of communication alone, and the rules that read them found no fault.",
        "add the dumps of all ranks (/tmp/nccl_trace_rank_*), or their traces",
    )


def _counters_alone(
    facts: Facts, rules_run: Sequence[str], findings: Sequence[Finding]
) -> Judgement:
    """Counters without a trace: what the rules that could read them found, if any could."""
    loads = {row["load"] for row in facts.of("counter_profile")}
    if loads == {"idle"} and not findings:
        return cannot_tell(
            "No work is seen: there are only counters, and nothing runs in what they cover."
            f"{_loads(facts)}",
            "look why nothing runs (the job's log, its queue), or give readings of while it ran",
        )
    waiting = [r for r in facts.of("counter_statements") if r["kind"] == "waiting"]
    if waiting:
        told = "; ".join(f"{safe(row['sentence'])}, compatible with " + row["compatible_with"]
                         for row in waiting)  # fmt: skip
        return say("unexplained", f"By counters alone: {told}.", waiting[0]["decided_by"])
    only = f"there are only counters, {_shown(facts)}"
    readers = {r.name for r in RULES if set(r.queries) & set(COUNTER_QUERIES)}
    if readers & set(rules_run):
        sentence = f"Cannot tell what a step costs: {only}, and the rules that could read them"
        what = "nothing above a note" if findings else "no fault"
        return cannot_tell(
            f"{sentence} found {what}.{_loads(facts)}{_stated(facts)}", CAPTURE_STEPS
        )
    # Levels of ports (gauges) may have been read often: what only grows is what rules wait for.
    counted = [*facts.of("gpu_counters"), *facts.of("port_counters")]
    rows = counted or facts.of("port_levels")
    if all((row["samples_count"] or 0) <= 1 for row in rows):
        return cannot_tell(
            "Cannot tell: there are only counters, each read once. What they count began at a time "
            "that nobody knows; how much of it is the job's only a second reading shows.",
            "read them again while the job runs, and give both: tracekit capture --what nic,dcgm",
        )
    return cannot_tell(
        f"Cannot tell: {only}, and none that a rule reads.{_loads(facts)}{_stated(facts)}",
        "capture those that rules read: tracekit capture --what nic,dcgm",
    )


def _shown(facts: Facts) -> str:
    """What GPU counters say of the steps of a job without traces."""
    durs = [r["dur_ns"] for r in facts.of("activity_steps") if r["dur_ns"] is not None]
    if not durs:
        return "which show no steps"
    return f"which show steps of about {seconds(median(durs) / 1e9)} and not what is in them"


def _loads(facts: Facts) -> str:
    """Which GPUs work and which stand by, of a job without traces; never why."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in facts.of("counter_profile"):
        if row["load"] is not None:
            groups.setdefault((row["load_counter"], row["load"]), []).append(row)
    said = [f"{_group(rows)} by {LOADS[by]}" for (by, _), rows in sorted(groups.items())]
    return f" {'; '.join(said)}." if said else ""


def _stated(facts: Facts) -> str:
    """What else counters alone say of how the job works, and what that fits; never why."""
    order = {kind: at for at, kind in enumerate(STATED)}
    rows = [r for r in facts.of("counter_statements") if r["kind"] in order]
    rows.sort(key=lambda r: (order[r["kind"]], r["scope"]))
    said = []
    for row in rows[:MAX_STATED]:
        fits = f", compatible with {row['compatible_with']}" if row["compatible_with"] else ""
        said.append(f"{safe(row['sentence'])}{safe(fits)}")
    return f" By counters alone: {'; '.join(said)}." if said else ""


def _group(rows: Sequence[Row]) -> str:
    """``4 GPUs idle (busy in 0 % of readings, 130 W)``: medians over the GPUs."""
    busy = f"busy in {share(median(r['busy_ratio'] for r in rows))} of readings"
    watts = [r["mean_power_w"] for r in rows if r["mean_power_w"] is not None]
    power = f", {median(watts):.0f} W" if watts else ""
    return f"{plural(len(rows), 'GPU')} {rows[0]['load']} ({busy}{power})"
