"""
What it means
    The job ended, or started anew, because one process failed; all others lost it, waited for it
    in vain or were terminated.

How it shows
    Of the processes that a launch's logs tell of, one ended on its own: by an exception that is no
    loss of a peer, by a signal that its launcher did not send, or with an exit code of its own.
    Who aborts because its watchdog of collectives timed out waited for another.
    Where several did, the one that its launcher saw first. Where none did, what the scheduler
    says of it: its time limit, a node that failed, memory that ran out, somebody's word. A job that
    printed nothing for a minute or more before that, and twice as long as ever, stood still.

Why it hurts
    Whoever looks at the last lines of a log looks at the victims: they print most. Where the job
    was started again, in this log or the next, it costs what that lost: steps done again, and time
    without any.

Remedy
    Look at the line that is named, or for who sent the signal; where memory ran out, at what took
    it. Restart without the host only where its hardware is shown to be at fault.

When this is wrong
    A rank whose connection broke because of the network loses its peer first and says so like any
    victim: then nobody is named. Logs of some hosts may be missing, the failed one's among them.
    Times of launchers have whole seconds. DeepSpeed's launcher does not say which of its processes
    failed. A task that sent no heartbeats may have stood still. Of a job that its scheduler ended
    (time limit, cancelled, preempted, a node that failed) no process is named that a signal ended,
    also where that came before, unless one log has both in that order; which node failed is known
    only where the scheduler names it, or where the job had one.

Source
    PyTorch, torch/distributed/elastic/multiprocessing/errors (the summary of failures); real logs
    of torchrun 2.13 in fixtures/logs; Slurm, slurmstepd, srun,
    sacct(1) and scontrol(1) of 23.11; Linux, mm/oom_kill.c; Kubernetes 1.31, Pod lifecycle,
    Disruptions and Node-pressure eviction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from tracekit.findings import Candidates, Evidence, Finding, Owner, Scope, Severity, severity_of
from tracekit.rules import gpus
from tracekit.rules.base import Facts, Row, Rule, RuleOutcome
from tracekit.rules.logged import ATTEMPTS_QUERY, EPISODES_QUERY, beside, log_of, price_of
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import ranges, ranks_phrase, safe, seconds, sentence, span

NEEDS = "the output of the job's launcher or scheduler to its end"
_OWN = "nothing"
_OUT_OF_MEMORY, _NODE_FAILURE = "out of memory", "node failure"
_TERMINATED = "terminated"
_ENDED_FOR = {
    "time limit": "its time limit was reached",
    "deadline": "its deadline was reached",
    "cancelled": "it was cancelled",
    "preempted": "it was preempted by another job",
    "evicted": "one of its pods was evicted",
    _NODE_FAILURE: "a node failed",
    _OUT_OF_MEMORY: "memory ran out in one of its steps",
}
_LEAST = {_NODE_FAILURE: Severity.CRITICAL, _OUT_OF_MEMORY: Severity.MAJOR}
_SENT = frozenset(("SIGKILL", "SIGTERM", "SIGINT"))
"""What a scheduler ends processes by; a shell reports these as 128 and the signal's number."""
_SENT_CODES = frozenset((130, 137, 143))
_WORDS = {
    "gpu_memory": "GPU memory ran out",
    "host_memory": "host memory ran out",
    "disk_full": "no space was left on a device",
    "loader_killed": "a worker of its data loader was killed",
    "loader_died": "a worker of its data loader died",
    "process_lost": "a process that it had begun went away",
    "service": "a service that it called over the network did not answer",
    "storage": "its file system failed",
    "shared_memory": "a worker of its data loader ran out of shared memory (/dev/shm)",
    "link_failed": "NCCL's connection over InfiniBand or RoCE failed",
    "duplicate_gpu": "two ranks were given the same GPU",
    "nccl_shared_memory": "NCCL could not make its shared memory (/dev/shm)",
    "address_in_use": "the address or port that it listens on was in use",
    "no_gpu": "it found no usable GPU or driver",
}
_POD = "pod/"
_STACKS = "while it stands still: py-spy dump of each rank, or a Flight Recorder dump"
_REMEDY_SILENT = (
    "find where each rank stood; a timeout of its process groups (init_process_group) ends such a "
    "job within minutes and says so"
)
_MORE_MEMORY = "find what took the memory (workers, caches, pinned copies), or raise the limit"
_OWNERS: dict[str, Owner] = {
    "host_memory": "platform", "disk_full": "platform", "loader_killed": "platform",
    "shared_memory": "platform", "gpu_memory": "model", "link_failed": "network",
    "duplicate_gpu": "platform", "nccl_shared_memory": "platform", "a hang": "hardware",
    "address_in_use": "platform", "no_gpu": "platform", "service": "platform",
    "storage": "platform",
    "uncorrectable ECC error": "hardware", "uncorrectable NVLink error": "hardware",
}  # fmt: skip


_KERNEL_FAULTS = frozenset(
    ("an illegal memory access", "unspecified launch failure", "misaligned address")
)
"""What CUDA says where a kernel of the program went wrong."""
MAX_NAMED = 8


class FirstFailureThresholds(Thresholds):
    """Who ended on its own did so, or did not; only who is a candidate is a question of numbers."""

    max_silent_ratio: float = threshold(
        0.49, "ranks that were terminated, or that no line tells of, over those that waited in "
        "vain: beyond it the launcher was quicker than their timeouts, and they may have waited "
        "as well, or most of the output is missing; or ranks that had to be killed, over the others"
    )  # fmt: skip
    min_alike_count: int = threshold(
        2, "ranks that raise the same exception at the same line by themselves: what they share "
        "is its cause, and the first of them is first by chance"
    )  # fmt: skip


def evaluate(facts: Facts, limits: FirstFailureThresholds) -> RuleOutcome:
    """The process of each launch that ended on its own, before the others."""
    told = facts.of("failures")
    rows = [row for row in told if row["scheduler"] is None]
    scheduled = next((row for row in told if row["scheduler"] is not None), None)
    is_memory = scheduled is not None and scheduled["scheduler"] == _OUT_OF_MEMORY
    if is_memory and any(row["memory_of"] for row in rows):
        scheduled, told = None, rows  # the kernel named the process
    if not told:
        if facts.of("job_step_summary"):
            return RuleOutcome()  # a log, and no failure in it
        return facts.lacking(NEEDS, "give that output beside the other files, of every host")
    last = max(row["launch"] for row in told)
    silence = next((r for r in facts.of(EPISODES_QUERY) if r["kind"] == "silence"), None)
    findings: dict[str, Finding] = {}
    restarts, lost_ns = _restarts(facts, rows), Counter[str]()
    for launch in sorted({row["launch"] for row in told}, reverse=True):
        of_launch = [row for row in rows if row["launch"] == launch]
        by = scheduled if launch == last else None
        firsts = _firsts([row for row in of_launch if not _is_sent(row, by)])
        is_outlived = launch in restarts or all(row["is_resumed"] for row in firsts)
        ended = bool(firsts) and not is_outlived and launch == last
        finding = (
            _scheduled(facts, by, of_launch)
            if by is not None and not firsts and _explains(by, of_launch)
            else _finding(facts, firsts, of_launch, by, launch=launch, last=last, ended=ended)
        )
        if finding is not None and silence is not None and launch == last:
            finding = _silenced(finding, silence, by, is_why=not firsts)
        if finding is not None:
            findings.setdefault(finding.id, finding)  # the same again and again: the last counts
            lost_ns[finding.id] += restarts.get(launch, 0)
    return RuleOutcome(findings=tuple(_priced(facts, f, lost_ns[f.id]) for f in findings.values()))


def _restarts(facts: Facts, rows: Sequence[Row]) -> dict[int, int]:
    """What the restart behind each launch lost, where the log has a start of the training loop
    before what failed, and one behind that."""
    starts = sorted(facts.of(ATTEMPTS_QUERY), key=lambda r: r["start_number"])
    behind = {before["start_number"]: (before, after) for before, after in pairwise(starts)}
    lost = {
        (r["first_step"], r["last_step"]): r["lost_ns"] or 0
        for r in facts.of(EPISODES_QUERY)
        if r["kind"] == "restart"
    }
    lost_ns: dict[int, int] = {}
    first_launch: dict[int, int] = {}
    for row in sorted(rows, key=lambda r: r["launch"]):
        begun = _begun(facts, starts, row)
        if not begun or max(begun) not in behind:
            continue
        before, after = behind[max(begun)]
        # Launches that fail before the next step go on with what the first of them began.
        is_first = first_launch.setdefault(max(begun), row["launch"]) == row["launch"]
        lost_of_it = lost.get((after["first_step"], before["last_step"]), 0)
        lost_ns[row["launch"]] = lost_of_it if is_first else 0
    return lost_ns


def _begun(facts: Facts, starts: Sequence[Row], row: Row) -> list[int]:
    """The starts of the training loop before what failed: in its file, or in the one that has the
    rest of the output (``slurm-7.out`` beside ``slurm-7.err``)."""
    own = [s for s in starts if s["source_id"] == row["source_id"]]
    if own:
        return [s["start_number"] for s in own if s["place"] <= row["place"]]
    name = _stem(facts, row)
    beside = [s for s in starts if name is not None and _stem(facts, s) == name]
    return [s["start_number"] for s in beside if len({s["source_id"] for s in beside}) == 1]


def _stem(facts: Facts, row: Row) -> str | None:
    path = facts.sources.get(row["source_id"])
    return None if path is None else path.rpartition(".")[0] or None


def _priced(facts: Facts, finding: Finding, lost_ns: int) -> Finding:
    """With what the restarts that it made necessary lost."""
    log = log_of(facts)
    if log is None or not lost_ns:
        return finding
    evidence = Evidence.seconds(
        "lost to the restart behind it, with the steps done again", lost_ns, None, EPISODES_QUERY
    )
    impact = price_of(facts, log, lost_ns)
    return replace(
        finding,
        impact=impact,
        severity=max(finding.severity, severity_of(impact.step_ratio), key=lambda s: s.weight),
        evidence=(*finding.evidence, evidence),
    )


def _silenced(finding: Finding, silence: Row, by: Row | None, *, is_why: bool) -> Finding:
    """With what the job stood still before its end; ``is_why`` where nothing else is known of it
    than who ended it from outside, which is not why."""
    told = f"Behind step {silence['last_step']:,} no line was printed for "
    told += span(silence["lost_ns"] / 1e9)
    if silence["usual_ns"]:
        told += f" (a step usually takes {seconds(silence['usual_ns'] / 1e9)})"
    told += beside(silence) or ": it stood still"
    evidence = Evidence(
        "time without a line behind the last step", silence["lost_ns"] / 1e9, "s",
        query=EPISODES_QUERY,
    )  # fmt: skip
    finding = replace(
        finding,
        summary=f"{finding.summary} {told}.",
        evidence=(*finding.evidence, evidence),
    )
    if by is None:
        return finding
    finding = replace(finding, next_capture=(*finding.next_capture, _STACKS))
    if not is_why:
        return replace(finding, remedy=(*finding.remedy, _REMEDY_SILENT))
    severity = max(finding.severity, Severity.MAJOR, key=lambda s: s.weight)
    return replace(finding, severity=severity, remedy=(_REMEDY_SILENT, *finding.remedy))


def _firsts(rows: Sequence[Row]) -> list[Row]:
    """Who failed on its own, and first as far as its launcher's times tell: several where these
    are equal on several hosts."""
    on_their_own = [r for r in rows if r["follows"] == _OWN]
    seen = [r for r in on_their_own if r["is_root"] or r["memory_of"]] or on_their_own
    times = [r["time_ns"] for r in seen if r["time_ns"] is not None]
    if times:
        return [r for r in seen if r["time_ns"] in (None, min(times))]
    if any(map(_is_pod, seen)):
        return [r for r in seen if _is_pod(r)]  # no order of pods is one in time
    files = {r["source_id"] for r in seen}
    return [min((r for r in seen if r["source_id"] == f), key=_place) for f in sorted(files)]


def _is_sent(row: Row, by: Row | None) -> bool:
    """Whether the scheduler may have sent what ended a process of the job's last launch."""
    return bool(
        by is not None
        # There the kernel chose; and of a launcher that was told to end it ends by signals of its
        # own, which follow anyway: another host's process may have been killed before.
        and by["scheduler"] not in (_OUT_OF_MEMORY, _TERMINATED)
        and not row["is_resumed"]
        and row["exception"] is None
        and row["memory_of"] is None
        and not _is_before(row, by)
        # What a task exits with is up to how its program takes a termination.
        and (row["task"] or row["signal"] in _SENT or row["exit_code"] in _SENT_CODES)
    )


def _is_before(row: Row, by: Row) -> bool:
    """By time of pods, by its line of what one log tells: launchers say when they saw an end."""
    if _is_pod(row):
        return None not in (row["time_ns"], by["time_ns"]) and row["time_ns"] < by["time_ns"]
    return bool(row["source_id"] == by["source_id"] and row["place"] < by["place"])


def _is_short_of_memory(row: Row, by: Row | None) -> bool:
    """Whether a kill fits what the scheduler says: that memory ran out in a step of the job."""
    is_killed = row["exception"] is None and row["signal"] == "SIGKILL"
    return is_killed and by is not None and by["scheduler"] == _OUT_OF_MEMORY


def _explains(by: Row, rows: list[Row]) -> bool:
    """Whether that ended the processes: one that lost a peer or waited in vain did so before the
    job was ended from outside, but after a node failed or memory ran out."""
    is_fault = by["scheduler"] in (_NODE_FAILURE, _OUT_OF_MEMORY)
    return is_fault or not any(row["follows"] in ("peer_lost", "timeout") for row in rows)


def _scheduled(facts: Facts, by: Row, rows: list[Row]) -> Finding:
    """What the scheduler says, where no process is known to have failed on its own."""
    why = by["scheduler"]
    is_fault = why in (_NODE_FAILURE, _OUT_OF_MEMORY)
    host = by["host"] if is_fault else None
    on = f" ({safe(host)})" if host else ""
    summary = f"{_scheduler_says(by)}{on}."
    evidence = [Evidence(f"records of the {_speaker(by)}", 1, "count", query="failures",
                         rows=facts.places([by], unit="line "))]  # fmt: skip
    if rows:
        summary += " The processes that the logs show to have ended may only have followed."
        evidence.append(_count("processes that may have ended because of it", rows, facts))
    return facts.finding(
        Scope(hosts=(host,) if host else (), identity_source="log"),
        summary,
        evidence,
        by=["log"],
        basis=f"the {_speaker(by)}'s word, and no process that failed on its own",
        # A step whose process was killed for memory may have gone on.
        least=_LEAST.get(why, Severity.MINOR),
        owner="hardware" if why == _NODE_FAILURE else "platform",
        place=None if host else f"scheduler-{'-'.join(why.split())}",
        confirm=(_confirm_pod(by) if _is_pod(by) else _confirm_scheduled(why, host),),
        remedy=(_remedy_scheduled(why),),
    )


def _speaker(by: Row) -> str:
    return "launcher" if by["scheduler"] == _TERMINATED else "scheduler"


def _scheduler_says(by: Row) -> str:
    if by["scheduler"] == _TERMINATED:
        return (
            "The job's launcher was told to end from outside (cancelled, preempted, at its limit)"
        )
    return f"The job's scheduler says that {_ENDED_FOR.get(by['scheduler'], safe(by['scheduler']))}"


def _is_pod(row: Row) -> bool:
    return row["task"] is not None and row["task"].startswith(_POD)


def _confirm_pod(by: Row) -> str:
    return f"kubectl describe {safe(by['task'])}; kubectl get events --sort-by=.lastTimestamp"


def _confirm_scheduled(why: str, host: str | None) -> str:
    on = f" on {safe(host)}" if host else " on its nodes"
    if why == _OUT_OF_MEMORY:
        return f"dmesg -T | grep -i 'killed process'{on}; sacct's MaxRSS of each step"
    if why == _NODE_FAILURE:
        return f"sinfo -R, slurmctld's log and the console{on}, for that time"
    return (
        "sacct -X -o JobID,State,ExitCode,Start,End,Timelimit (qstat -xf, bhist -l): what ended it "
        "and when"
    )


def _remedy_scheduled(why: str) -> str:
    if why == _OUT_OF_MEMORY:
        return _MORE_MEMORY
    if why == _NODE_FAILURE:
        return "keep the node out until it is tested; restart from the last checkpoint"
    if why == "cancelled":
        return (
            "ask who cancelled it, and why; what had gone wrong before stands in the job's output"
        )
    if why == _TERMINATED:
        return "ask the scheduler why, and who cancelled it; save when the signal comes"
    if why == "evicted":
        return "ask for what the pod uses (requests and limits); save often enough to lose little"
    return "save when the scheduler warns (sbatch --signal), and let the job go on by --requeue"


def _place(row: Row) -> tuple[bool, int]:
    """Of one kill for memory Slurm tells first that there was one, then whose."""
    is_alone = row["memory_of"] and row["pid"] is None and _number(row) is None
    return bool(is_alone), int(row["place"])


def _nobody(facts: Facts, victims: Sequence[Row], by: Row | None, where: str) -> Finding:
    """What is told where all lost a peer, waited in vain or were terminated."""
    ranks, told, why = _apart(victims, facts.limits(FirstFailureThresholds))
    # What all lost is not told by those who lost it.
    return facts.finding(
        Scope(),
        _all_lost(victims, where) + told + (f" {_scheduler_says(by)}." if by is not None else ""),
        [_count("processes that failed because of another", victims, facts)],
        by=["log"],
        candidates=Candidates(ranks=tuple(ranks), why=why) if ranks else None,
        basis="no process of the logs failed on its own",
        least=Severity.MINOR,
        place="unknown",
        confirm=("logs of the other hosts, of the scheduler, and the kernels' (dmesg)",),
        remedy=("find the process that ended first; restart without its host if it is gone",),
        next_capture=("the output of all ranks, and dmesg -T of all hosts",),
    )


def _apart(victims: Sequence[Row], limits: FirstFailureThresholds) -> tuple[list[int], str, str]:
    """Ranks that did not fare as the others did, the sentence that says so, and why it tells."""
    if ranks := _silent(victims, limits):
        return (
            ranks,
            f" {ranks_phrase(ranks, ())} alone did not wait in vain.",
            "terminated without having waited in vain, as all others had",
        )
    if ranks := _forced(victims, limits):
        return (
            ranks,
            f" {ranks_phrase(ranks, ())} alone did not end at the launcher's signal.",
            "it did not end at its launcher's signal, as others did: it stood still, or was busy",
        )
    if ranks := _unheard(victims, limits):
        return (
            ranks,
            f" No line tells of {_ranks(ranks)}.",
            "no line says how it ended, and all others lost a peer or waited in vain",
        )
    return [], "", ""


def _all_lost(victims: Sequence[Row], where: str) -> str:
    if all(row["exception"] is None and _ended_unsaid(row) for row in victims):
        ranks = sorted({row["rank"] for row in victims if row["rank"] is not None})
        who = sentence(_ranks(ranks)) if ranks else "Processes"
        return (
            f"{who} lost the job's store{where}: {_keeper(victims, 'it')} ended first. Where the "
            "job was done by then this is harmless."
        )
    return (
        f"Every process that the logs show to have failed{where} lost a peer, waited in vain "
        "or was terminated: the one that failed first does not say so."
        + (
            f" {sentence(_keeper(victims))} ended too."
            if any(row["lost_host"] for row in victims)
            else ""
        )
    )


def _ended_unsaid(row: Row) -> bool:
    return bool(row["exit_code"] is None and row["signal"] is None)


def _keeper(victims: Sequence[Row], what: str = "the job's store") -> str:
    """Who kept the store that some lost."""
    hosts = sorted({row["lost_host"] for row in victims if row["lost_host"]})
    where = f" on {safe(hosts[0])}" if hosts else ""
    return f"the process that kept {what}{where} (rank 0's, or its launcher)"


def _finding(
    facts: Facts,
    firsts: list[Row],
    rows: list[Row],
    by: Row | None,
    *,
    launch: int,
    last: int,
    ended: bool,
) -> Finding | None:
    where = f" in launch {launch} of {last}" if last > 1 else ""
    least = Severity.CRITICAL if ended else Severity.MAJOR
    victims = [r for r in rows if r["follows"] != _OWN]
    if not firsts:
        if not victims:
            return None
        return _nobody(facts, victims, by, where)
    first = firsts[0]
    ranks = sorted({r["rank"] for r in firsts if r["rank"] is not None})
    hosts = sorted({r["host"] for r in firsts if r["host"] is not None})
    named = [*dict.fromkeys(map(_name, firsts))]
    more = [f"{len(named) - MAX_NAMED} others"] if len(named) > MAX_NAMED else []
    names = " or ".join(named[:MAX_NAMED] + more)
    summary = f"{sentence(names)} failed first{where}: {_how(first)}."
    alike = _alike(first, rows, facts.limits(FirstFailureThresholds))
    if alike and set(alike).issuperset(ranks):
        ranks, hosts = alike, []
        firsts = [r for r in rows if r["rank"] in alike and r["follows"] == _OWN]
        summary = f"{sentence(_ranks(alike))} failed alike{where}: {_how(first, 'they')}."
    others = sorted({r["rank"] for r in victims if r["rank"] is not None})
    if others:
        summary += f" {sentence(_ranks(others))} only followed."
    fault = _gpu_fault(facts, rows)
    if fault is not None:
        summary += f" {_fault_says(fault)}."
    elif (own := _program_fault(facts, first)) is not None:
        summary += f" {_program_fault_says(own)}."
    if by is not None:
        summary += f" {_scheduler_says(by)}."
    is_one = len(firsts) == 1 or bool(alike)
    scope = Scope(
        ranks=tuple(ranks) if is_one else (),
        hosts=tuple(hosts) if is_one else (),
        identity_source="log",
    )
    evidence = [_count("processes that failed on their own", firsts, facts)]
    if victims:
        evidence.append(_count("processes that failed because of another", victims, facts))
    both = first["is_root"] and first["exception"] is not None
    if fault is not None:
        evidence.append(
            Evidence(
                "fatal messages of the driver for one of these processes",
                1.0,
                "count",
                query=gpus.EVENTS,
                rows=facts.places([fault], unit="line "),
            )
        )
    return facts.finding(
        scope,
        summary,
        evidence,
        by=["log"],
        basis="its launcher and its own traceback agree" if both else "one log's word",
        least=least,
        owner="hardware" if fault is not None else _owner(first),
        candidates=None if is_one else Candidates(
            ranks=tuple(ranks), hosts=tuple(hosts), why="no time tells them apart"
        ),
        place=None if ranks and is_one else "-".join((_number(first) or "unnamed").split()),
        confirm=(_confirm(first),),
        remedy=(
            "drain that host and test its GPU; restart from the last checkpoint without it"
            if fault is not None
            else _MORE_MEMORY if _is_short_of_memory(first, by) else _remedy(first),
        ),
    )  # fmt: skip


def _gpu_fault(facts: Facts, rows: Sequence[Row]) -> Row | None:
    """The first XID of hardware that the driver reports for one of the processes that ended.

    Processes are numbered by their host: of a process whose host no log names only where one host
    alone reports such XIDs.
    """
    faults = [r for r in facts.of(gpus.EVENTS) if r["xid"] in gpus.XIDS and r["pid"] is not None]
    hosts = {r["host"] for r in faults}
    for fault in faults:
        for row in rows:
            is_there = row["host"] == fault["host"] if row["host"] is not None else len(hosts) == 1
            if row["pid"] == fault["pid"] and is_there:
                return fault
    return None


def _program_fault(facts: Facts, first: Row) -> Row | None:
    """The last XID of a program's own fault, where one process had them all, which may be this one:
    where its number is known it must be."""
    if first["says"] not in _KERNEL_FAULTS:
        return None
    faults = [r for r in facts.of(gpus.EVENTS) if r["xid"] in gpus.PROGRAM_XIDS]
    if first["pid"] is not None:
        faults = [r for r in faults if r["pid"] == first["pid"]]
    if len({(r["host"], r["pid"]) for r in faults}) != 1:
        return None
    return max(faults, key=lambda r: (r["time_ns"] or 0, r["source_id"], r["place"]))


def _program_fault_says(fault: Row) -> str:
    """``The driver reports XID 31 (a fault of addresses) of GPU 3 of h1, which a program's own
    kernels cause, for process 105``."""
    number = int(fault["xid"])
    whose = f" for process {fault['pid']}" if fault["pid"] is not None else ""
    return (
        f"The driver reports XID {number} ({gpus.PROGRAM_XIDS[number]}, which a program's own "
        f"kernels cause) of {gpus.name_of(fault)}{whose}"
    )


def _fault_says(fault: Row) -> str:
    """``The driver reports XID 79 (fell off the bus) of GPU 3 of h1 for process 105 of them``."""
    number = int(fault["xid"])
    return (
        f"The driver reports XID {number} ({gpus.XIDS[number]}) of {gpus.name_of(fault)} for its "
        f"process {fault['pid']}"
    )


def _silent(victims: Sequence[Row], limits: FirstFailureThresholds) -> list[int]:
    """Ranks that were terminated while most had waited for somebody: fewer than those, of one job.

    Who waits in vain or loses a peer raises an exception; who stands still elsewhere does not.
    """
    waited = {r["rank"] for r in victims if r["follows"] in ("peer_lost", "timeout")}
    quiet = (None, "KeyboardInterrupt")  # as Python takes SIGINT
    ended = {r["rank"] for r in victims if r["follows"] == "terminated" and r["exception"] in quiet}
    if None in waited | ended or waited & ended:
        return []
    if len(ended) > limits.max_silent_ratio * len(waited):
        return []
    return sorted(int(r) for r in ended)


def _forced(victims: Sequence[Row], limits: FirstFailureThresholds) -> list[int]:
    """Ranks that their launcher had to kill, while most ended at its first signal or before."""
    forced = {r["rank"] for r in victims if r["is_forced"]}
    others = {r["rank"] for r in victims} - forced
    if None in forced or len(forced) > limits.max_silent_ratio * len(others):
        return []
    return sorted(int(r) for r in forced)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {ranges(ranks)}"


def _unheard(victims: Sequence[Row], limits: FirstFailureThresholds) -> list[int]:
    """Ranks between those that lost a peer or waited in vain of which nothing is said."""
    waited = {r["rank"] for r in victims if r["follows"] in ("peer_lost", "timeout")}
    told = {r["rank"] for r in victims}
    if None in told or not waited:
        return []
    unheard = sorted(set(range(max(waited))) - told)
    return unheard if len(unheard) <= limits.max_silent_ratio * len(waited) else []


def _alike(first: Row, rows: Sequence[Row], limits: FirstFailureThresholds) -> list[int]:
    """Ranks that raised the same at the same place by themselves, the first among them; or that
    ended in one second with one code, of which nothing else is known."""
    is_silent = first["exception"] is None
    at = ("exit_code", "time_ns") if is_silent else ("file", "line", "function")
    at = ("exception", *at)
    ranks = {
        r["rank"]
        for r in rows
        if r["follows"] == _OWN and r["rank"] is not None and all(r[n] == first[n] for n in at)
    }
    is_placed = all(first[n] is not None for n in ("rank", *at) if n != "exception")
    return sorted(ranks) if is_placed and len(ranks) >= limits.min_alike_count else []


def _count(name: str, rows: Sequence[Row], facts: Facts) -> Evidence:
    places = facts.places(rows, unit="line ")
    return Evidence(name, len(rows), "count", query="failures", rows=places)


def _name(row: Row) -> str:
    on = f" on {safe(row['host'])}" if row["host"] else ""
    unnamed = f"a process{on} that the log does not name"
    return _number(row) or (unnamed if row["pid"] is None else f"process {row['pid']}{on}")


def _number(row: Row) -> str | None:
    """Rank, task, pod or number on its host; None where the log states none."""
    on = f" on {safe(row['host'])}" if row["host"] else ""
    if row["rank"] is not None:
        return f"rank {row['rank']}{on}"
    if row["task"] is not None:
        pod = row["task"].removeprefix(_POD)
        return f"{'pod' if _is_pod(row) else 'task'} {safe(pod)}{on}"
    if row["local_rank"] is not None:
        return f"local rank {row['local_rank']}{on or ' of its host'}"
    return None


def _how(row: Row, who: str = "it") -> str:
    """``ValueError in train.py, line 6, faulty_loss``; ``killed (SIGKILL)``."""
    if row["memory_of"]:
        whose = "of its cgroup" if row["memory_of"] == "cgroup" else "of the host"
        return f"killed because the memory {whose} ran out"
    if row["exception"]:
        at = ""
        if row["file"] and row["line"] is not None:
            at = f" in {safe(row['file'])}, line {row['line']}"
            at += f" ({safe(row['function'])})" if row["function"] else ""
        what = _WORDS.get(row["says"] or "", row["says"])
        return f"{safe(row['exception'])}{at}" + (f"; {safe(what)}" if what else "")
    if row["signal"] and row["says"]:
        return f"its GPU met {safe(row['says'])}, which ended it ({safe(row['signal'])})"
    if row["signal"]:
        return f"ended by {safe(row['signal'])}, which its launcher did not send"
    if row["says"] == "no_heartbeat":
        return "it sent no heartbeat any more (dead, cut off, or standing still)"
    if row["exit_code"] is None:
        return "it died, and how is not said"
    return f"{who} ended with exit code {row['exit_code']}"


def _owner(row: Row) -> Owner:
    if row["memory_of"] or (row["exception"] is None and row["signal"] == "SIGKILL"):
        return "platform"
    if row["exception"] is None and row["signal"] and not row["says"]:
        return "framework"
    return _OWNERS.get(row["says"] or "", "model")


def _confirm(row: Row) -> str:
    host = f" on {safe(row['host'])}" if row["host"] else " on its host"
    if _is_pod(row):
        return f"kubectl describe {safe(row['task'])}; kubectl logs --previous {safe(row['task'])}"
    is_in_loader = row["says"] in ("loader_killed", "loader_died")
    if row["exception"] and not row["memory_of"] and not is_in_loader:
        return f"the lines from {row['place']} on in the log: what the exception says"
    return f"dmesg -T | grep -iE 'killed process|segfault|xid'{host}, for that time"


def _remedy(row: Row) -> str:
    if row["memory_of"] or row["says"] == "host_memory":
        return _MORE_MEMORY
    if row["says"] == "link_failed":
        return "ibstat, ibqueryerrors and dmesg of this host and of the peer that NCCL names"
    if row["says"] == "duplicate_gpu":
        return "give each process its own GPU: local rank, CUDA_VISIBLE_DEVICES"
    if row["says"] == "a hang":
        return "dmesg and amd-smi of its host; drain it if the GPU hangs again"
    if row["says"] in ("shared_memory", "nccl_shared_memory"):
        return "a larger /dev/shm (docker run --shm-size), or fewer workers of the data loader"
    if row["says"] == "gpu_memory":
        return "a smaller microbatch, recomputation or sharding; expandable_segments if fragmented"
    if row["says"] == "loader_killed":
        return "look for what killed it: mostly the host's memory, or a small /dev/shm"
    if row["says"] == "loader_died":
        return "num_workers=0 shows what it raises; a crash is in a library that it loads"
    if row["says"] == "service":
        return "do without it in the loop, or try again: caches, offline modes, a longer timeout"
    if row["says"] == "storage":
        return "dmesg of its host, and the file server or its network at that time"
    if row["says"] == "disk_full":
        return "make room where checkpoints and caches are written"
    if row["says"] == "address_in_use":
        return "end what listens there (ss -ltnp; a job before this one?), or take another port"
    if row["says"] == "no_gpu":
        return "on its host: nvidia-smi; are driver, container and CUDA_VISIBLE_DEVICES right?"
    if row["says"] in ("uncorrectable ECC error", "uncorrectable NVLink error"):
        return (
            "take its node out; nvidia-smi -q -d ECC,ROW_REMAPPER says whether to reset or replace"
        )
    if row["exception"]:
        return "mend what raised it; until then restart from the last checkpoint"
    if row["says"]:
        return "CUDA_LAUNCH_BLOCKING=1 names the call that did it; compute-sanitizer the access"
    if row["signal"] == "SIGBUS":
        return "mostly /dev/shm is full (df /dev/shm; docker --shm-size), or a mapped file was cut"
    return "find what sent the signal or chose the exit code"


RULE = Rule(
    name="first-failure",
    summary="One process failed first and took the job with it.",
    owner="model",
    thresholds=FirstFailureThresholds(),
    queries=("failures", "job_step_summary", EPISODES_QUERY),
    optional={
        gpus.EVENTS: "whether the driver reports a GPU's fault for a process that ended",
        ATTEMPTS_QUERY: "what the restart behind a failure cost",
    },
    evaluate=evaluate,
    needs=NEEDS,
    topic="the job's history",
    explains=("a lost member", "restarts"),
)
