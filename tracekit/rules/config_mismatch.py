"""
What it means
    Ranks of one job run different NCCL versions, settings or networks.

How it shows
    Processes of one communicator state different versions, different values of a variable that
    must be the same everywhere, or different networks.

Why it hurts
    At best the slowest setting decides; at worst ranks choose different algorithms and hang.

Remedy
    One image and one environment for all ranks.

When this is wrong
    Interfaces and NICs may have other names on other hosts: they are not compared. NCCL prints a
    variable only where it reads it, so a rank that does not mention one is not taken to lack it.

Source
    The asymmetries that NCCL itself warns of (2.23), and those that it does not.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain

from tracekit.findings import Finding, Severity
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.nccl_facts import CAPTURE, Nccl, Signal, log_scope, majority, nccl_rule, no_logs
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import listed, safe

PER_HOST = frozenset(
    """
    NCCL_SOCKET_IFNAME NCCL_OOB_NET_IFNAME NCCL_IB_HCA NCCL_IB_GID_INDEX NCCL_IB_ADDR_RANGE
    NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_MNNVL_UUID NCCL_MNNVL_CLIQUE_ID NCCL_IGNORE_CPU_AFFINITY
    NCCL_CONF_FILE NCCL_DEBUG_FILE NCCL_TOPO_FILE NCCL_TOPO_DUMP_FILE NCCL_GRAPH_FILE
    NCCL_GRAPH_DUMP_FILE NCCL_TUNER_CONFIG_FILE
    """.split()  # noqa: SIM905  # a list that is read by eye
)
"""Variables that may rightly differ between hosts or ranks."""


NICS = "number of NICs"
READ = ("version", "network", "net_devices", "env")
"""Messages in which a process states what is compared."""


class ConfigMismatchThresholds(Thresholds):
    """How many processes make a comparison."""

    min_processes_count: int = threshold(2, "that state the same thing, to be compared")


def evaluate(facts: Facts, limits: ConfigMismatchThresholds) -> RuleOutcome:
    """Versions, settings and networks over the processes of each communicator."""
    nccl = Nccl(facts)
    warned = nccl.of("version_mismatch")
    if not nccl.members and not warned:
        return no_logs(facts)
    groups = [{m.process for m in members} for members in nccl.comms.values()]
    if not warned and all(len(g) < limits.min_processes_count for g in groups):
        return facts.lacking("NCCL logs of at least two processes of a communicator", CAPTURE)
    findings: dict[str, Finding] = {}
    for processes in sorted(groups, key=len, reverse=True):
        for what, stated in _stated(nccl, processes).items():
            values = {value for value, _ in stated}
            if len(stated) >= limits.min_processes_count and len(values) > 1:
                finding = _finding(facts, nccl, what, stated)
                findings.setdefault(what, finding)
    if warned and "NCCL version" not in findings:
        findings["NCCL version"] = _warned(facts, nccl, warned)
    return RuleOutcome(findings=tuple(findings[k] for k in sorted(findings)))


def _stated(
    nccl: Nccl, processes: set[tuple[int, str | None, int | None]]
) -> dict[str, list[tuple[str, Signal]]]:
    """What each process states, by what it is about; one value a process."""
    stated: dict[str, dict[object, tuple[str, Signal]]] = defaultdict(dict)
    for signal in chain.from_iterable(map(nccl.of, READ)):
        if signal.process not in processes:
            continue
        given = signal.given
        if signal.code == "version" and "nccl" in given:
            stated["NCCL version"][signal.process] = (given["nccl"], signal)
        elif signal.code == "network" and "network" in given:
            stated["network"][signal.process] = (given["network"].strip(), signal)
        elif signal.code == "net_devices" and given.get("net") == "IB":
            count = sum(name.isdecimal() for name in given)
            stated[NICS].setdefault(signal.process, (str(count), signal))
        elif signal.code == "env" and given.get("name") not in PER_HOST:
            value = given.get("value", "")
            if not value.startswith("("):
                stated[given.get("name", "")][signal.process] = (value, signal)
    return {what: list(by.values()) for what, by in stated.items() if what}


def _finding(facts: Facts, nccl: Nccl, what: str, stated: list[tuple[str, Signal]]) -> Finding:
    by_value: dict[str, list[Signal]] = defaultdict(list)
    for value, signal in stated:
        by_value[value].append(signal)
    usual = majority(value for value, _ in stated)
    odd = [s for value, signals in by_value.items() if value != usual for s in signals]
    hosts = sorted({safe(s.node) for s in odd if s.node is not None})
    words = [
        f"{safe(value)} in {len(signals)}"
        for value, signals in sorted(by_value.items(), key=lambda i: (-len(i[1]), i[0]))
    ]

    return facts.finding(
        log_scope(hosts=hosts),
        f"{what[:1].upper()}{what[1:]} differs between the processes of one job: "
        f"{listed(words[:4])}{_unopened(nccl) if what == NICS else ''}.",
        [
            nccl.evidence(
                f"values of {what}",
                len(by_value),
                "count",
                "nccl_signals",
                [signals[0] for signals in by_value.values()],
                1,
            )
        ],
        by=["log"],
        basis="the processes' own words",
        least=Severity.MINOR,
        confirm=("compare the images and environments of the hosts",),
        place=what.replace(" ", "-"),
        remedy=(f"the same {what} everywhere",),
    )


def _unopened(nccl: Nccl) -> str:
    """Which NICs NCCL could not open, and where."""
    each = sorted(
        {
            f"{safe(s.given['nic'])} on {safe(s.node)}"
            for s in nccl.of("ib_device_unopened")
            if "nic" in s.given and s.node is not None
        }
    )
    return f"; NCCL could not open {listed(each[:4])}" if each else ""


def _warned(facts: Facts, nccl: Nccl, warned: list[Signal]) -> Finding:
    return facts.finding(
        log_scope(hosts=sorted({safe(s.node) for s in warned if s.node is not None})),
        "NCCL warns that the ranks run different NCCL versions.",
        nccl.lines("warnings", warned),
        by=["log"],
        basis="NCCL's own warning",
        least=Severity.MINOR,
        remedy=("one image for all ranks",),
    )


RULE = nccl_rule(
    name="config-mismatch",
    summary="Ranks of one job run different NCCL versions, settings or networks.",
    owner="platform",
    thresholds=ConfigMismatchThresholds(),
    queries=("nccl_comms", "nccl_signals"),
    evaluate=evaluate,
    explains=("slow transfers within hosts", "slow transfers between hosts"),
    states="cause",
)
