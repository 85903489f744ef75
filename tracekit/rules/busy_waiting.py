"""
What it means
    GPUs count as busy and draw next to nothing: a kernel runs on them that waits, as those of
    NCCL do until the last member of a collective has come. Nothing is computed.

How it shows
    Utilisation of 95 % and more, of less than a third of the power limit, and memory that is
    hardly read. Where another GPU of the same host holds as much memory and rests meanwhile, its
    process is the one that the others wait for. Only without traces: these show who waits.

Why it hurts
    If it lasts, the job hangs, until a timeout or somebody ends it.

Remedy
    See where the process on the resting GPU stands (py-spy), and what the logs of all ranks say.

When this is wrong
    Utilisation is the share of time with any kernel at all: tiny kernels one by one draw little,
    too, but read memory. Of one reading a pause between two steps looks the same; so do GPUs that
    were left behind by a process that died.

Source
    Reports of hung jobs: 100 W of 700 W on H100, 66 W of 300 W on V100, 49 W of 180 W on GTX 1080,
    118 W of 400 W on H20, all at 100 % utilisation. No recording of our own was at hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from tracekit.findings import Candidates, Evidence, Finding, Severity
from tracekit.rules import gpus
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import share, some

NEEDS = "utilisation, power and power limit of the GPUs (nvidia-smi, DCGM 203, 155, 160)"

READ = frozenset(("gpu_utilisation", "power", "power_limit"))


class BusyWaitingThresholds(Thresholds):
    """When a GPU that counts as busy only waits."""

    min_busy_ratio: float = threshold(0.95, "utilisation: a kernel that waits never ends")
    max_power_ratio: float = threshold(
        0.32,
        "of the power limit: in reports of hung jobs waiting draws 14 to 30 % on H100, V100, GTX"
        " 1080 and H20; what small kernels draw was not measured, so memory's use is asked too",
    )
    max_memory_ratio: float = threshold(
        0.05, "of the time that memory is read or written: who waits polls a cached flag"
    )
    max_rest_ratio: float = threshold(0.05, "utilisation of a GPU that does nothing")
    min_held_ratio: float = threshold(
        0.25, "of the memory that the waiting GPUs hold: less is no member of their job"
    )
    min_readings_count: int = threshold(
        10, "readings that say so, to call it more than a moment: one may fall between two steps"
    )
    min_gpus_count: int = threshold(2, "waiting GPUs of a host: one waits for nobody here")


def evaluate(facts: Facts, limits: BusyWaitingThresholds) -> RuleOutcome:
    """One finding a host on which GPUs only wait."""
    counters = gpus.by_gpu(facts, gpus.COUNTERS, "counter")
    known = {g: c for g, c in counters.items() if {*c} >= READ}
    if not known:
        return gpus.lacking_counters(facts, NEEDS)
    if facts.ranks:
        return RuleOutcome()  # traces show who waits for whom
    hosts: dict[str, list[Mapping[str, Row]]] = defaultdict(list)
    for _, theirs in sorted(known.items()):
        hosts[str(theirs["power"]["host"] or "")].append(theirs)
    findings = []
    for machine in hosts.values():
        waiting = [c for c in machine if _waits(c, limits)]
        resting = [c for c in machine if _rests(c, waiting, limits)]
        others = len(machine) - len(waiting) - len(resting)
        has_memory = all("memory_copy_utilisation" in c for c in waiting)
        # Of GPUs of which nothing says whether they read memory, only one at rest beside them
        # tells that they wait.
        if len(waiting) < limits.min_gpus_count or others or not (resting or has_memory):
            continue
        findings.append(_finding(facts, limits, waiting, resting))
    return RuleOutcome(tuple(findings))


def _typical(row: Row) -> float:
    return float(row["p50_value"] if row["p50_value"] is not None else row["last_value"])


def _waits(counters: Mapping[str, Row], limits: BusyWaitingThresholds) -> bool:
    power, limit = _typical(counters["power"]), _typical(counters["power_limit"])
    memory = counters.get("memory_copy_utilisation")
    return (
        _typical(counters["gpu_utilisation"]) >= limits.min_busy_ratio
        and limit > 0
        and power <= limits.max_power_ratio * limit
        and (memory is None or _typical(memory) <= limits.max_memory_ratio)
    )


def _rests(
    counters: Mapping[str, Row],
    waiting: Sequence[Mapping[str, Row]],
    limits: BusyWaitingThresholds,
) -> bool:
    """Whether a GPU does nothing and holds memory as those that wait do."""
    held = [_typical(c["memory_used"]) for c in waiting if "memory_used" in c]
    own = counters.get("memory_used")
    if not held or own is None:
        return False
    return _typical(counters["gpu_utilisation"]) <= limits.max_rest_ratio and _typical(
        own
    ) >= limits.min_held_ratio * min(held)


def _finding(
    facts: Facts,
    limits: BusyWaitingThresholds,
    waiting: Sequence[Mapping[str, Row]],
    resting: Sequence[Mapping[str, Row]],
) -> Finding:
    rows = [c["power"] for c in waiting]
    worst = max(waiting, key=lambda c: _typical(c["power"]) / _typical(c["power_limit"]))
    power, limit = _typical(worst["power"]), _typical(worst["power_limit"])
    busy = min(_typical(c["gpu_utilisation"]) for c in waiting)
    count = min(int(r["samples_count"]) for r in rows)
    lasts = count >= limits.min_readings_count
    who = gpus.subject(rows)
    says = (
        f"{who} count as busy ({share(busy)}) and draw at most {power:.0f} W of {limit:.0f} W: "
        "kernels run on them that wait, as NCCL's do for the last member of a collective"
    )
    idle = [c["gpu_utilisation"] for c in resting]
    if idle:
        says += (
            f"; {some([gpus.name_of(r) for r in idle], 3)} "
            f"{'holds' if len(idle) == 1 else 'hold'} as much memory and "
            f"{'does' if len(idle) == 1 else 'do'} nothing: who runs there is waited for"
        )
    says += "." if lasts else " (in so few readings: it may be a moment)."
    evidence = [
        Evidence.ratio(
            "power over its limit, of the waiting GPU with most",
            power / limit,
            limits.max_power_ratio,
            gpus.COUNTERS,
            facts.readings([worst["power"]]),
        ),
        Evidence.ratio(
            "utilisation, of the waiting GPU with least", busy, limits.min_busy_ratio, gpus.COUNTERS
        ),
    ]
    ranks = sorted({int(r["rank"]) for r in idle if r["rank"] is not None})
    hosts = sorted({str(r["host"]) for r in rows if r["host"] is not None})
    return facts.finding(
        gpus.scope_of(facts, idle or rows),
        says,
        evidence,
        by=("counters",),
        basis="the GPUs' own counters; what runs on them they do not say",
        least=Severity.MAJOR if lasts else Severity.MINOR,
        place=f"{hosts[0]}-gpus" if hosts else "gpus",
        candidates=Candidates(ranks=tuple(ranks), hosts=tuple(hosts), why="its GPU rests")
        if ranks
        else Candidates(),
        keys=(),
        confirm=("py-spy dump --pid PID of every rank, first of the one on the resting GPU",)
        if idle
        else ("py-spy dump --pid PID of every rank: whose stack is another one",),
        remedy=("find who keeps the others waiting: logs of all ranks, dmesg of all hosts",),
        next_capture=("TORCH_NCCL_TRACE_BUFFER_SIZE=20000 TORCH_NCCL_DUMP_ON_TIMEOUT=1",),
    )


RULE = gpus.rule(
    name="busy-waiting",
    summary="GPUs count as busy and draw next to nothing: they wait for somebody.",
    owner="framework",
    thresholds=BusyWaitingThresholds(),
    queries=(gpus.COUNTERS,),
    evaluate=evaluate,
    needs=NEEDS,
    symptom_of=("a lost member",),
)
