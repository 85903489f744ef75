"""The verdict where something is amiss and no rule found the reason."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import fmean, median
from typing import Any

from tracekit.findings import BudgetPart, Finding
from tracekit.range_kind import RangeKind
from tracekit.report.judgement import Judgement, ReportThresholds, cannot_tell, say
from tracekit.rules.base import Facts, Row
from tracekit.rules.excess import ADVICE, label
from tracekit.rules.range_names import class_of
from tracekit.rules.recurrence import how_often
from tracekit.rules.steps import StepKey, Steps
from tracekit.wording import ranks_phrase, seconds, sentence, share, short


def unequal_waiting(
    facts: Facts, limits: ReportThresholds, cause: Finding | None = None
) -> Judgement | None:
    """A few ranks that wait clearly less than all others: the others wait for them. Not said where
    the ``cause`` is one of them, of which is known what it does."""
    steps, broken = facts.steps, facts.job.broken_ranks
    late = late_ranks(steps, limits, broken)
    if not late or (cause is not None and set(cause.scope.ranks) & set(late)):
        return None
    others = [r for r in steps.ranks if r not in late and r not in broken]
    held_ns = _typical(steps, others, "exposed_comm") - _typical(steps, late, "exposed_comm")
    who = ranks_phrase(late, facts.ranks)
    verb, their = ("seems", "its") if len(late) == 1 else ("seem", "their")
    doing = _what_takes_longer(steps, limits, late, others)
    apart_ns = _clocks_apart_ns(facts, late)
    reason, advice = "No rule here found the reason.", ""
    if apart_ns > held_ns:
        reason = (
            f"Who comes late by how much is not claimed: their clocks may be "
            f"{seconds(apart_ns / 1e9)} apart."
        )
        advice = (
            "; if one clock wrote all files, say so in job.toml ([clocks] shared = true) and run "
            "this again"
        )
    return say(
        "unexplained",
        f"{who} {verb} to hold up the others, which wait {seconds(held_ns / 1e9)} more of each "
        f"{seconds(steps.step_ns / 1e9)} step in communication{doing}. {reason}",
        f"compare {who.lower()} with {their} peers: {'kernels' if facts.has_gpu else 'operators'}, "
        f"input, host{advice}",
        held_ns / steps.step_ns,
    )


def _clocks_apart_ns(facts: Facts, ranks: Collection[int]) -> int:
    """By how much the clocks of these ranks and of those whom they meet may be apart."""
    rows = facts.of("exit_lateness")
    return max((int(r["error_ns"] or 0) for r in rows if r["rank"] in ranks), default=0)


def late_ranks(steps: Steps, limits: ReportThresholds, broken: Collection[int] = ()) -> list[int]:
    """The ranks that wait least, where a clear gap divides them from at least half of all.

    The gap, not the spread: where ranks differ by nature (stages of a pipeline) their waiting
    differs gradually. In most steps each of them must wait less than the typical
    other rank. ``broken`` ranks are left out: their waiting may have been lost with their files.
    """
    waiting = {r: p.exposed_comm for r, p in steps.rank_means.items() if r not in broken}
    in_order = sorted(waiting, key=lambda r: (waiting[r], r))
    gaps = [
        (waiting[in_order[i]] - waiting[in_order[i - 1]], i)
        for i in range(1, len(in_order) // 2 + 1)
    ]
    if not gaps:
        return []
    gap, count = max(gaps)
    if gap < limits.min_waiting_ratio * steps.step_ns:
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
    most = limits.min_less_steps_ratio
    return late if all(less[r] >= most * judged[r] > 0 for r in late) else []


def _typical(steps: Steps, ranks: Sequence[int], part: str) -> float:
    return median(float(getattr(steps.rank_means[r], part)) for r in ranks)


def _what_takes_longer(
    steps: Steps, limits: ReportThresholds, late: Sequence[int], others: Sequence[int]
) -> str:
    """What the late ranks do while the others wait, if one thing stands out."""
    more = {
        part: _typical(steps, late, part) - _typical(steps, others, part)
        for part in ("compute", "memory", "idle")
    }
    part = max(more, key=lambda p: more[p])
    if more[part] < limits.min_longer_ratio * steps.step_ns:
        return ""
    verb = {"compute": "compute", "memory": "copy", "idle": "do nothing"}[part]
    if len(late) == 1:
        verb = {"compute": "computes", "memory": "copies", "idle": "does nothing"}[part]
    subject = "it" if len(late) == 1 else "they"
    return f"; {subject} {verb} for {seconds(more[part] / 1e9)} longer"


def idle(facts: Facts, limits: ReportThresholds, budget: Sequence[BudgetPart]) -> Judgement | None:
    """Much idle time."""
    step_s = facts.steps.step_ns / 1e9
    idle_s = sum(p.s_per_step for p in budget if p.part in ("host", "unexplained"))
    limit = limits.min_idle_ratio if facts.has_gpu else limits.min_host_idle_ratio
    if idle_s < limit * step_s:
        return None
    who = "The GPU is" if facts.has_gpu else "The ranks are"
    if 2 * len(facts.job.broken_ranks) > len(facts.ranks):  # the median rank is one of them
        return cannot_tell(
            f"Cannot tell: {who[0].lower()}{who[1:]} idle {share(idle_s / step_s)} of the "
            f"{seconds(step_s)} step in what could be read, and files break off: what they lost "
            "may be what the time went into.",
            "give the whole traces again; --all lists the files that break off",
        )
    return say(
        "unexplained",
        f"{who} idle {share(idle_s / step_s)} of the {seconds(step_s)} step"
        f"{_longest_silence(facts, limits, idle_s) or _in_few_steps(facts, limits)}, and no rule "
        "here found the reason.",
        "profile with Python stacks to see what the host does meanwhile",
        idle_s / step_s,
    )


def _longest_silence(facts: Facts, limits: ReportThresholds, idle_s: float) -> str:
    """Where most of it lies, if in one place of the loop. Of ranks with a GPU the thread of the
    loop may stand while another one works."""
    silences = [
        row
        for row in facts.of("self_time")
        if row["rank"] == facts.steps.median_rank
        and row["timeline"] == "host"
        and row["kind"] in ("pause", "range")
    ]
    longest = max(silences, key=lambda row: float(row["self_ns"]), default=None)
    if facts.has_gpu or longest is None:
        return ""
    silent_s = float(longest["self_ns"]) / 1e9
    if silent_s < limits.min_explained_ratio * idle_s:
        return ""
    is_range = longest["kind"] == "range"
    where = f"nothing recorded in `{short(str(longest['name']))}`" if is_range else label(longest)
    return f", {seconds(silent_s)} of it with {where} (rank {longest['rank']})"


def _in_few_steps(facts: Facts, limits: ReportThresholds) -> str:
    """In which steps nearly all of the idle time is, where these are few and long."""
    steps = facts.steps
    typical = median(steps.job_durs_ns)
    slow = _slow_keys(steps, (1 + limits.min_slow_steps_ratio) * typical)
    idle_ns = {key: fmean(row.idle_ns for row in steps.by_key[key].values()) for key in steps.keys}
    there = sum(idle_ns[key] for key in slow) / (sum(idle_ns.values()) or 1)
    if there < limits.min_in_few_ratio or not 0 < 2 * len(slow) < len(steps):
        return ""
    often = how_often([key.step for key in slow], len(steps))
    longest_s = max(map(steps.job_dur_ns, slow)) / 1e9
    return (
        f", {share(there)} of that {often}, which take up to {seconds(longest_s)} where "
        f"{seconds(typical / 1e9)} is typical"
    )


def slow_steps(facts: Facts, limits: ReportThresholds) -> Judgement | None:
    """Some steps that take clearly longer than the typical one."""
    durs = facts.steps.job_durs_ns
    typical = median(durs)
    above = sum(max(0.0, d - typical) for d in durs) / sum(durs)
    # Half of all steps are above the median; noise alone gives both sides alike.
    below = sum(max(0.0, typical - d) for d in durs) / sum(durs)
    least = limits.min_slow_steps_ratio
    if len(durs) < limits.min_typical_steps_count or above - below < least:
        return None
    slow = facts.steps.only(_slow_keys(facts.steps, (1 + least) * typical))
    late = late_ranks(slow, limits, facts.job.broken_ranks)
    who = ranks_phrase(late, facts.ranks).lower()
    held = f" In them {who} {'seems' if len(late) == 1 else 'seem'} to hold up the others."
    up_to = f"up to {seconds(max(durs) / 1e9)} where {seconds(typical / 1e9)} is typical"
    said = f"Some steps take {up_to}"
    if (ranged := _ranged(facts, limits)) is not None:
        words, reason = ranged
        advice = ADVICE.get(reason) if reason is not None else None
        return say(
            "unexplained",
            f"{said}. {words}",
            advice.confirm if advice else "leave it out for some steps: are all as long then?",
            above,
        )
    explained = (
        _in_them(facts, limits)
        or (held if late else "")
        or _transferred(facts, limits)
        or _exchanged(facts, limits)
        or _computed(facts, limits, (1 + least) * typical)
    )
    told = _told_keys(facts)
    slowed = "" if explained else _slowed(facts, limits, told)
    explained = explained or slowed
    if told and not explained:  # what explains them says which they are
        often = how_often([key.step for key in told], len(durs)).removeprefix("in ")
        said = f"{sentence(often)} take{'s' if len(told) == 1 else ''} {up_to}"
    return say(
        "unexplained",
        f"{said}, {seconds((fmean(durs) - typical) / 1e9)} a step on average."
        f"{explained} No rule here found the reason.",
        "see what else ran on the hosts then (pidstat, /proc/pressure/cpu), and how long inputs are"
        if slowed
        else "profile a longer window that spans several slow steps, with Python stacks",
        above,
    )


def _in_them(facts: Facts, limits: ReportThresholds) -> str:
    """What explains most of the slow steps, which these are and how regularly they come."""
    rows = facts.of("slow_steps")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["kind"] is not None:
            part = tuple(row[key] for key in ("rank", "kind", "path", "name"))
            groups.setdefault(part, []).append(row)
    if not groups:
        return ""
    most = max(groups.values(), key=lambda group: sum(float(r["part_ns"]) for r in group))
    explained_ns = sum(float(r["part_ns"]) for r in most)
    if explained_ns < limits.min_explained_ratio * sum(float(r["over_ns"]) for r in rows):
        return ""
    first = most[0]
    often = how_often([int(r["step"]) for r in most], int(first["judged_steps_count"]))
    who = "all ranks spend" if first["rank"] is None else f"rank {first['rank']} spends"
    where = f" in `{short(str(first['path']))}`" if first["path"] else ""
    return (
        f" {sentence(often)} {who} {seconds(explained_ns / len(most) / 1e9)} more"
        f"{where}: {label(first)}{_more_calls(most, limits)}."
    )


def _ranged(facts: Facts, limits: ReportThresholds) -> tuple[str, RangeKind | None] | None:
    """The range that slow steps have and others lack, how long the device takes for it, and what it
    is for: what it does may be spread over too many names for any one to explain the steps."""
    over_ns = {
        (row["attempt"], row["capture_id"], row["step"]): float(row["over_ns"])
        for row in facts.of("slow_steps")
    }
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in facts.of("rare_ranges"):
        if row["device_ns"] and (row["attempt"], row["capture_id"], row["step"]) in over_ns:
            groups.setdefault((str(row["name"]), int(row["rank"])), []).append(row)
    if not groups:
        return None
    (name, rank), most = max(
        groups.items(), key=lambda group: (sum(float(r["device_ns"]) for r in group[1]), group[0])
    )
    took_ns = sum(float(row["device_ns"]) for row in most)
    if took_ns < limits.min_explained_ratio * sum(over_ns.values()):
        return None
    judged = int(most[0]["judged_steps_count"])
    reason = class_of((name,))
    words = (
        f"{sentence(how_often([int(r['step']) for r in most], judged))} rank {rank} runs "
        f"`{short(name)}`{f' ({reason})' if reason else ''}, which the others lack: the device "
        f"takes {seconds(took_ns / len(most) / 1e9)} for it, {seconds(took_ns / judged / 1e9)} a "
        "step on average."
    )
    return words, reason


def _transferred(facts: Facts, limits: ReportThresholds) -> str:
    """The communicator whose calls take most of what slow steps take longer, though nobody was
    late for them."""
    over_ns = {
        (row["attempt"], row["capture_id"], row["step"]): float(row["over_ns"])
        for row in facts.of("slow_steps")
    }
    groups: dict[tuple[str, tuple[int, ...]], list[Row]] = {}
    for row in facts.of("slow_transfers"):
        key = row["attempt"], row["capture_id"], row["step"]
        if float(row["over_ns"]) > limits.min_explained_ratio * over_ns.get(key, float("inf")):
            groups.setdefault((str(row["op"]), tuple(row["ranks"])), []).append(row)
    if not groups:
        return ""
    (op, ranks), most = max(
        groups.items(), key=lambda group: (sum(float(r["over_ns"]) for r in group[1]), group[0])
    )
    explained_ns = sum(float(row["over_ns"]) for row in most)
    if explained_ns <= limits.min_explained_ratio * sum(over_ns.values()):
        return ""
    count = int(facts.of("slow_steps")[0]["judged_steps_count"])
    often = how_often([int(row["step"]) for row in most], count)
    whose = ranks_phrase(ranks, ()).lower()
    return (
        f" {sentence(often)} {'an' if op[0] in 'aeiou' else 'a'} {op} of {whose} takes "
        f"{seconds(explained_ns / len(most) / 1e9)} longer than usual after all of them called it: "
        "the network was slow, or one of them stood still within it."
    )


def _exchanged(facts: Facts, limits: ReportThresholds) -> str:
    """Collectives that slow steps have and others do not: no fault, but how the job is made."""
    rows = facts.of("slow_steps")
    more = 1 + limits.min_more_calls_ratio
    told = [
        row
        for row in rows
        if int(row["collectives_count"]) > more * int(row["usual_collectives_count"])
    ]
    explained_ns = sum(float(row["over_ns"]) for row in told)
    if explained_ns <= limits.min_explained_ratio * sum(float(row["over_ns"]) for row in rows):
        return ""
    first = told[0]
    often = how_often([int(r["step"]) for r in told], int(first["judged_steps_count"]))
    count = median(float(row["collectives_count"]) for row in told)
    usual = int(first["usual_collectives_count"])
    few = {0: "none is", 1: "one is"}.get(usual, f"{usual:,} are")
    return (
        f" {sentence(often)} a rank makes {count:,.0f} collective calls where {few} usual "
        "(gradients or parameters that are exchanged every few steps)."
    )


def _computed(facts: Facts, limits: ReportThresholds, most_ns: float) -> str:
    """How much more the device computes in slow steps, where that is why they are slow."""
    steps, slow = facts.steps, set(_slow_keys(facts.steps, most_ns))
    others = [key for key in steps.keys if key not in slow]
    if not facts.has_gpu or not slow or not others or not steps.is_paced:
        return ""

    def mean_ns(keys: Collection[StepKey], part: str) -> float:
        return fmean(getattr(row, part) for key in keys for row in steps.by_key[key].values())

    more_ns = mean_ns(slow, "compute_ns") - mean_ns(others, "compute_ns")
    over_ns = mean_ns(slow, "dur_ns") - mean_ns(others, "dur_ns")
    if more_ns < limits.min_computed_ratio * over_ns:
        return ""
    often = how_often([key.step for key in sorted(slow)], len(steps))
    return (
        f" {sentence(often)} the device computes for {seconds(more_ns / 1e9)} more: longer inputs, "
        "more microbatches, or work that other steps lack."
    )


def _told_keys(facts: Facts) -> list[StepKey]:
    """The steady steps that slow_steps gives, in order."""
    told = {StepKey.of(row) for row in facts.of("slow_steps")}
    return sorted(told.intersection(facts.steps.keys))


def _slowed(facts: Facts, limits: ReportThresholds, slow: Sequence[StepKey]) -> str:
    """How much longer every host computes in slow steps, where neither collectives nor calls of
    what takes most longer are more than usual."""
    is_more = any(
        row["collectives_count"] != row["usual_collectives_count"]
        or row["kind"] not in ("operator", "call", "wait")
        or row["calls_count"] != row["usual_calls_count"]
        for row in facts.of("slow_steps")
    )
    steps = facts.steps
    others = [key for key in steps.keys if key not in slow]
    if facts.has_gpu or is_more or not slow or not others:
        return ""
    ratios = []
    for rank in facts.ranks:
        slow_ns, other_ns = (
            [float(steps.by_key[k][rank].compute_ns) for k in keys if rank in steps.by_key[k]]
            for keys in (slow, others)
        )
        if not slow_ns or not other_ns or not median(other_ns):
            return ""
        ratios.append(fmean(slow_ns) / median(other_ns))
    if min(ratios) < limits.min_slowed_ratio:
        return ""
    often = how_often([key.step for key in slow], len(steps))
    who = "every rank" if len(ratios) > 1 else "the rank"
    return (
        f" {sentence(often)} {who} computes {min(ratios):.1f}x as long or longer, with as many "
        "collectives, and calls of what grew most: longer inputs, or cores that something else "
        "used or that were slower then."
    )


COMPILES = "(dynamo_timed)"
"""What the names of torch.compile's ranges end with."""


def _more_calls(rows: Sequence[Row], limits: ReportThresholds) -> str:
    """How often a part is called in slow steps, where that is why they are: work that other steps
    do not have."""
    calls = median(float(row["calls_count"]) for row in rows)
    usual = median(float(row["usual_calls_count"]) for row in rows)
    if rows[0]["kind"] in ("pause", "range") or calls < (1 + limits.min_more_calls_ratio) * usual:
        return ""
    is_compiling = str(rows[0]["name"]).endswith(COMPILES)
    why = "the model is compiled" if is_compiling else "an evaluation, or more microbatches"
    count = f"{calls:,.0f} {'call' if calls == 1 else 'calls'}"
    return f", {count} where {usual:,.0f} {'is' if usual == 1 else 'are'} usual ({why})"


def _slow_keys(steps: Steps, most_ns: float) -> list[StepKey]:
    return [
        key for key, dur_ns in zip(steps.keys, steps.job_durs_ns, strict=True) if dur_ns > most_ns
    ]
