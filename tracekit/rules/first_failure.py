"""
What it means
    The job ended, or started anew, because one process failed; all others lost it, waited for it
    in vain or were terminated.

How it shows
    Of the processes that a launch's logs tell of, one ended on its own: by an exception that is no
    loss of a peer, by a signal that its launcher did not send, or with an exit code of its own.
    Where several did, the one that its launcher saw first.

Why it hurts
    Whoever looks at the last lines of a log looks at the victims: they print most.

Remedy
    Look at the line that is named, or for who sent the signal; where memory ran out, at what took
    it. Restart without the host only where its hardware is shown to be at fault.

When this is wrong
    A rank whose connection broke because of the network loses its peer first and says so like any
    victim: then nobody is named. Logs of some hosts may be missing, the failed one's among them.
    Times of launchers have whole seconds.

Source
    PyTorch, torch/distributed/elastic/multiprocessing/errors (the summary of failures); real logs
    of torchrun 2.13 in fixtures/logs; Slurm, slurmstepd and srun; Linux, mm/oom_kill.c.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.findings import Candidates, Evidence, Finding, Owner, Scope, Severity
from tracekit.rules.base import Facts, Row, Rule, RuleOutcome
from tracekit.rules.thresholds import Thresholds
from tracekit.wording import ranges, safe, sentence

NEEDS = "the output of the job's launcher or scheduler to its end"
_OWN = "nothing"
_WORDS = {
    "gpu_memory": "GPU memory ran out",
    "host_memory": "host memory ran out",
    "disk_full": "no space was left on a device",
}
_OWNERS: dict[str, Owner] = {
    "host_memory": "platform", "disk_full": "platform", "gpu_memory": "model",
    "uncorrectable ECC error": "hardware", "uncorrectable NVLink error": "hardware",
}  # fmt: skip


class FirstFailureThresholds(Thresholds):
    """None: who ended on its own did so, or did not."""


def evaluate(facts: Facts, limits: FirstFailureThresholds) -> RuleOutcome:
    """The process of each launch that ended on its own, before the others."""
    rows = facts.of("failures")
    if not rows:
        if facts.of("job_step_summary"):
            return RuleOutcome()  # a log, and no failure in it
        return facts.lacking(NEEDS)
    findings: dict[str, Finding] = {}
    last = max(row["launch"] for row in rows)
    for launch in sorted({row["launch"] for row in rows}, reverse=True):
        of_launch = [row for row in rows if row["launch"] == launch]
        firsts = _firsts(of_launch)
        ended = any(not row["is_resumed"] for row in firsts) and launch == last
        finding = _finding(facts, firsts, of_launch, launch=launch, last=last, ended=ended)
        if finding is not None:
            findings.setdefault(finding.id, finding)  # the same again and again: the last counts
    return RuleOutcome(findings=tuple(findings.values()))


def _firsts(rows: Sequence[Row]) -> list[Row]:
    """Who failed on its own, and first as far as its launcher's times tell: several where these
    are equal on several hosts."""
    own = [r for r in rows if r["follows"] == _OWN]
    seen = [r for r in own if r["is_root"] or r["memory_of"]] or own
    times = [r["time_ns"] for r in seen if r["time_ns"] is not None]
    if times:
        return [r for r in seen if r["time_ns"] in (None, min(times))]
    files = {r["source_id"] for r in seen}
    return [min((r for r in seen if r["source_id"] == f), key=_place) for f in sorted(files)]


def _place(row: Row) -> int:
    return int(row["place"])


def _finding(
    facts: Facts, firsts: list[Row], rows: list[Row], *, launch: int, last: int, ended: bool
) -> Finding | None:
    where = f" in launch {launch} of {last}" if last > 1 else ""
    least = Severity.CRITICAL if ended else Severity.MAJOR
    victims = [r for r in rows if r["follows"] != _OWN]
    if not firsts:
        if not victims:
            return None
        # What all lost is not told by those who lost it.
        return facts.finding(
            Scope(),
            f"Every process that the logs show to have failed{where} lost a peer, waited in vain "
            f"or was terminated: the one that failed first does not say so.",
            [_count("processes that failed because of another", victims, facts)],
            by=["log"],
            basis="no process of the logs failed on its own",
            least=Severity.MINOR,
            place="unknown",
            confirm=("logs of the other hosts, of the scheduler, and the kernels' (dmesg)",),
            remedy=("find the process that ended first; restart without its host if it is gone",),
            next_capture=("the output of all ranks, and dmesg -T of all hosts",),
        )
    first = firsts[0]
    ranks = sorted({r["rank"] for r in firsts if r["rank"] is not None})
    hosts = sorted({r["host"] for r in firsts if r["host"] is not None})
    names = " or ".join(dict.fromkeys(map(_name, firsts)))
    summary = f"{sentence(names)} failed first{where}: {_how(first)}."
    others = sorted({r["rank"] for r in victims if r["rank"] is not None})
    if others:
        word = "rank" if len(others) == 1 else "ranks"
        summary += f" {word.capitalize()} {ranges(others)} only followed."
    is_one = len(firsts) == 1
    scope = Scope(
        ranks=tuple(ranks) if is_one else (),
        hosts=tuple(hosts) if is_one else (),
        identity_source="log",
    )
    evidence = [_count("processes that failed on their own", firsts, facts)]
    if victims:
        evidence.append(_count("processes that failed because of another", victims, facts))
    both = first["is_root"] and first["exception"] is not None
    return facts.finding(
        scope,
        summary,
        evidence,
        by=["log"],
        basis="its launcher and its own traceback agree" if both else "one log's word",
        least=least,
        owner=_owner(first),
        candidates=None if is_one else Candidates(
            ranks=tuple(ranks), hosts=tuple(hosts), why="their launchers saw them in one second"
        ),
        place=None if ranks and is_one else "-".join(_name(first).split()),
        confirm=(_confirm(first),),
        remedy=(_remedy(first),),
    )  # fmt: skip


def _count(name: str, rows: Sequence[Row], facts: Facts) -> Evidence:
    places = facts.places(rows, unit="line ")
    return Evidence(name, len(rows), "count", query="failures", rows=places)


def _name(row: Row) -> str:
    on = f" on {safe(row['host'])}" if row["host"] else ""
    if row["rank"] is not None:
        return f"rank {row['rank']}{on}"
    if row["task"] is not None:
        return f"task {safe(row['task'])}{on}"
    if row["local_rank"] is not None:
        return f"local rank {row['local_rank']}{on or ' of its host'}"
    return f"a process{on} that the log does not name"


def _how(row: Row) -> str:
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
    if row["signal"]:
        return f"ended by {safe(row['signal'])}, which its launcher did not send"
    return f"it ended with exit code {row['exit_code']}"


def _owner(row: Row) -> Owner:
    if row["memory_of"] or (row["exception"] is None and row["signal"] == "SIGKILL"):
        return "platform"
    if row["exception"] is None and row["signal"]:
        return "framework"
    return _OWNERS.get(row["says"] or "", "model")


def _confirm(row: Row) -> str:
    host = f" on {safe(row['host'])}" if row["host"] else " on its host"
    if row["exception"] and not row["memory_of"]:
        return f"the lines from {row['place']} on in the log: what the exception says"
    return f"dmesg -T | grep -iE 'killed process|segfault|xid'{host}, for that time"


def _remedy(row: Row) -> str:
    if row["memory_of"] or row["says"] == "host_memory":
        return "find what took the memory (workers, caches, pinned copies), or raise the limit"
    if row["says"] == "gpu_memory":
        return "a smaller microbatch, recomputation or sharding; expandable_segments if fragmented"
    if row["says"] == "disk_full":
        return "make room where checkpoints and caches are written"
    if row["exception"]:
        return "mend what raised it; until then restart from the last checkpoint"
    return "find what sent the signal or chose the exit code"


RULE = Rule(
    name="first-failure",
    summary="One process failed first and took the job with it.",
    owner="model",
    thresholds=FirstFailureThresholds(),
    queries=("failures", "job_step_summary"),
    evaluate=evaluate,
    doc=__doc__,
    needs=NEEDS,
    topic="the job's history",
)
