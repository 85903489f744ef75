"""
What it means
    NCCL uses far fewer channels than these GPUs allow, so most of the links between them idle.

How it shows
    Any of: ranks of one communicator state different numbers of channels; the same GPUs had more
    channels in another log; on one machine the rings that NCCL found carry a small part of the
    bandwidth that its own topology states (nChannels times bandwidth against maxBw over NVLink); a
    setting leaves fewer channels than the rings that NCCL's search found.

Why it hurts
    Each channel drives its share of the links; with two of twenty-four most of the bandwidth is
    gone. Where nccl-tests ran in both logs, the loss is measured.

Remedy
    Look for what differs: NCCL_TOPO_FILE, NCCL_MAX_NCHANNELS, maxCTAs, a dead NVLink, a container
    that hides PCI devices.

When this is wrong
    A communicator may be given few channels on purpose (maxCTAs, point-to-point groups). GPUs
    without NVLink have few channels, and that is right. Communicators of other sizes or GPUs are
    never compared.

Source
    A host with and without an injected topology fault: 24 and 2 channels, 178 and 28 GB/s.
"""

from __future__ import annotations

from collections import defaultdict

from tracekit.findings import Evidence, Finding, Severity
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.nccl_facts import (
    Member,
    Nccl,
    Signal,
    log_scope,
    majority,
    nccl_rule,
    no_logs,
    number,
)
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import listed, plural, safe, share

_CAUSES = ("NCCL_TOPO_FILE", "NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_GRAPH_FILE",
           "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")  # fmt: skip
_LIMITS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MAX_CTAS")


class ChannelCollapseThresholds(Thresholds):
    """How many channels are too few."""

    max_channels_ratio: float = threshold(
        0.5, "of what the same GPUs had elsewhere; halving happens with another NCCL version"
    )
    max_bandwidth_ratio: float = threshold(
        0.25, "of the stated NVLink bandwidth; real rings reach 0.8 or more, search costs some"
    )
    major_loss_ratio: float = threshold(0.2, "of the measured bandwidth: from it on it is major")


def evaluate(facts: Facts, limits: ChannelCollapseThresholds) -> RuleOutcome:
    """Compare within communicators, between logs, and with the stated topology."""
    nccl = Nccl(facts)
    if not nccl.members:
        return no_logs(facts)
    between = _between_logs(facts, nccl, limits)
    named = {source for source, _ in between}
    findings = [f for _, f in between]
    findings += _within(facts, nccl, limits)
    findings += _below_setting(facts, nccl, limits)
    if not findings:
        findings = _against_topology(facts, nccl, limits, named)
    unique = {f.id: f for f in reversed(findings)}
    return RuleOutcome(findings=tuple(unique[i] for i in sorted(unique)))


def _within(facts: Facts, nccl: Nccl, limits: ChannelCollapseThresholds) -> list[Finding]:
    """Ranks of one communicator whose channels are fewer than the others'."""
    findings = []
    for members in nccl.comms.values():
        counts = [m.channels for m in members if m.channels is not None]
        usual = majority(counts)
        if not isinstance(usual, int):
            continue
        few = [
            m for m in members
            if m.channels is not None and m.channels <= limits.max_channels_ratio * usual
        ]  # fmt: skip
        if few:
            least = min(m.channels or 0 for m in few)
            findings.append(
                facts.finding(
                    log_scope(ranks=nccl.world_ranks(few), hosts=nccl.hosts(few)),
                    f"{nccl.label(few).capitalize()} set up {least} of {usual} channels "
                    f"that the other members have.",
                    [
                        nccl.evidence(
                            "channels",
                            least,
                            "count",
                            "nccl_comms",
                            few,
                            limits.max_channels_ratio * usual,
                        )
                    ],
                    by=["log"],
                    basis="from the ranks' own logs",
                    least=Severity.MINOR,
                    remedy=("compare the topology and the settings of these ranks with the rest",),
                )
            )
    return findings


def _gpus(members: list[Member]) -> tuple[object, ...] | None:
    """The GPUs of a whole communicator; None where some are unknown."""
    ranks = {m.group_rank for m in members}
    if len(ranks) < members[0].size or any(m.pci is None for m in members):
        return None
    return tuple(sorted((m.node or "", m.pci or "") for m in members))


def _between_logs(
    facts: Facts, nccl: Nccl, limits: ChannelCollapseThresholds
) -> list[tuple[int, Finding]]:
    """The same GPUs with fewer channels in one log than in another."""
    by_gpus: dict[tuple[object, ...], dict[int, list[Member]]] = defaultdict(dict)
    for members in nccl.comms.values():
        gpus = _gpus(members)
        sources = {m.source_id for m in members}
        if gpus is None or len(sources) != 1 or any(m.channels is None for m in members):
            continue
        source = sources.pop()
        most = by_gpus[gpus].get(source)
        if most is None or (members[0].channels or 0) > (most[0].channels or 0):
            by_gpus[gpus][source] = members
    findings = []
    for logs in by_gpus.values():
        best = max(logs.values(), key=lambda ms: (ms[0].channels or 0, -ms[0].source_id))
        top = best[0].channels or 0
        for source, members in sorted(logs.items()):
            channels = members[0].channels or 0
            if top and channels <= limits.max_channels_ratio * top and len(members) > 1:
                findings.append((source, _against(facts, nccl, limits, members, best)))
    return findings


def _bandwidths(facts: Facts, source: int) -> dict[str, Row]:
    """The last whole benchmark of each kind in a log."""
    return {
        str(r["benchmark"]): r
        for r in facts.of("nccl_bench")
        if r["source_id"] == source and r["is_complete"] and r["average_bus_bytes_per_s"]
    }


def _against(
    facts: Facts,
    nccl: Nccl,
    limits: ChannelCollapseThresholds,
    few: list[Member],
    many: list[Member],
) -> Finding:
    low, high = few[0].channels or 0, many[0].channels or 0
    slow, fast = (_bandwidths(facts, m[0].source_id) for m in (few, many))
    common = sorted(set(slow) & set(fast))
    words, measured, severity = "", [], Severity.MINOR
    loss = 0.0
    if common:
        name = common[0]
        now = float(slow[name]["average_bus_bytes_per_s"])
        then = float(fast[name]["average_bus_bytes_per_s"])
        loss = 1 - now / then
        words = f"; {name} falls from {then / 1e9:.0f} to {now / 1e9:.0f} GB/s ({share(loss)} lost)"
        measured = [
            Evidence(f"bus bandwidth of {name}", now, "bytes/s", threshold=then, query="nccl_bench")
        ]  # fmt: skip
        if loss >= limits.major_loss_ratio:
            severity = Severity.MAJOR
    cause, lines = _cause(nccl, few)
    other = facts.sources.get(many[0].source_id, "another log")
    return facts.finding(
        log_scope(hosts=nccl.hosts(few)),
        f"NCCL uses {low} channels where the same {plural(len(few), 'GPU')} had {high} in "
        f"{other}{words}{cause}.",
        [
            nccl.evidence(
                "channels",
                low,
                "count",
                "nccl_comms",
                [*few, *many],
                limits.max_channels_ratio * high,
            ),
            *measured,
            *lines,
        ],
        by=("log", "counters") if loss >= limits.major_loss_ratio else ("log",),
        basis="the log, and the bandwidth that nccl-tests measured" if measured else "the log",
        least=severity,
        confirm=("nvidia-smi topo -m; nvidia-smi nvlink --status   on the host",),
        remedy=("take out what differs between the two logs, the topology file first",),
    )


def _cause(nccl: Nccl, members: list[Member]) -> tuple[str, list[Evidence]]:
    processes = {m.process for m in members}
    settings = [
        s for s in nccl.of_processes("env", processes) if s.given.get("name") in _CAUSES
    ]  # fmt: skip
    if not settings:
        return "", []
    names = sorted({s.given["name"] for s in settings})
    return f"; {', '.join(names)} is set", [
        nccl.evidence(f"{', '.join(names)} set", len(settings), "lines", "nccl_signals", settings)
    ]


def _against_topology(
    facts: Facts, nccl: Nccl, limits: ChannelCollapseThresholds, named: set[int]
) -> list[Finding]:
    """Rings of one machine that use little of the NVLink bandwidth that NCCL itself states."""
    findings = []
    for comm, members in nccl.comms.items():
        if nccl.nodes_count(comm) != 1 or members[0].source_id in named or members[0].size < 2:
            continue
        rings = [s for s in _of_comm(nccl, "pattern", comm, members) if _is_ring(s)]
        stated = [
            n for s in _of_comm(nccl, "system", comm, members) if (n := number(s.given, "max_bw"))
        ]
        if not rings or not stated:
            continue
        carried = min(
            (number(s.given, "channels") or 0) * (number(s.given, "bw_intra") or 0) for s in rings
        )
        if 0 < carried < limits.max_bandwidth_ratio * max(stated):
            findings.append(_low(facts, nccl, limits, members, rings, carried, max(stated)))
    return findings


def _of_comm(nccl: Nccl, code: str, comm: str, members: list[Member]) -> list[Signal]:
    """What its processes said of this communicator, not of another that they are in."""
    processes = {m.process for m in members}
    return [
        s for s in nccl.of_processes(code, processes)
        if s.comm == comm or (s.comm is None and nccl.memberships[s.process] == 1)
    ]  # fmt: skip


def _below_setting(facts: Facts, nccl: Nccl, limits: ChannelCollapseThresholds) -> list[Finding]:
    """Settings that leave a communicator fewer channels than the rings that its search found."""
    below: dict[tuple[int, int, str], tuple[list[Member], list[Signal], list[Signal]]] = {}
    for comm, members in nccl.comms.items():
        channels = {m.channels for m in members if m.channels is not None}
        rings = [
            s for s in _of_comm(nccl, "pattern", comm, members) if s.given.get("pattern") == "4"
        ]
        searched = {int(n) for s in rings if (n := number(s.given, "channels")) is not None}
        processes = {m.process for m in members}
        own = nccl.of_processes("env", processes)
        settings = [s for name in _LIMITS for s in own if s.given.get("name") == name]
        if len(channels) != 1 or not searched or not settings:
            continue
        few, most = channels.pop(), max(searched)
        said = ", ".join(sorted({f"{s.given['name']}={s.given.get('value')}" for s in settings}))
        if few is not None and few <= limits.max_channels_ratio * most:
            known = below.setdefault((few, most, said), ([], [], []))
            known[0].extend(members)
            known[1].extend(rings)
            known[2].extend(settings)
    return [
        facts.finding(
            log_scope(hosts=nccl.hosts(members)),
            f"NCCL uses {plural(few, 'channel')} where its search found rings for {most}: "
            f"{safe(said)} is set.",
            [
                nccl.evidence(
                    "channels",
                    few,
                    "count",
                    "nccl_comms",
                    members,
                    limits.max_channels_ratio * most,
                ),
                nccl.evidence("rings found", most, "count", "nccl_signals", rings),
                nccl.evidence("the setting", len(settings), "lines", "nccl_signals", settings),
            ],
            by=["log"],
            basis="NCCL's own search against what it uses",
            least=Severity.MINOR,
            confirm=("run once without the setting",),
            remedy=(f"unset {listed(sorted({s.given['name'] for s in settings}))}",),
        )
        for (few, most, said), (members, rings, settings) in sorted(below.items())
    ]


def _is_ring(signal: Signal) -> bool:
    given = signal.given
    return given.get("pattern") == "4" and given.get("type_intra") in ("NVL", "NVB")


def _low(
    facts: Facts,
    nccl: Nccl,
    limits: ChannelCollapseThresholds,
    members: list[Member],
    rings: list[Signal],
    carried: float,
    stated: float,
) -> Finding:
    cause, lines = _cause(nccl, members)
    channels = members[0].channels
    many = f"{channels} channels" if channels is not None else "few channels"
    return facts.finding(
        log_scope(hosts=nccl.hosts(members)),
        f"NCCL found rings for {carried:.0f} of {stated:.0f} GB/s between "
        f"{plural(len(members), 'GPU')} on NVLink and uses {many}{cause}.",
        [
            nccl.evidence(
                "bandwidth of the rings",
                carried * 1e9,
                "bytes/s",
                "nccl_signals",
                rings,
                limits.max_bandwidth_ratio * stated * 1e9,
            ),
            *lines,
        ],
        by=["log"],
        basis="one log: NCCL's own topology against the rings that it found in it",
        least=Severity.MINOR,
        confirm=("nvidia-smi topo -m; nvidia-smi nvlink --status",),
        remedy=("run without NCCL_TOPO_FILE and NCCL_GRAPH_FILE; look for a link that is down",),
        next_capture=("the same nccl-tests on a machine that is well",),
    )


RULE = nccl_rule(
    name="channel-collapse",
    summary="NCCL uses far fewer channels than the GPUs allow.",
    owner="platform",
    thresholds=ChannelCollapseThresholds(),
    queries=("nccl_comms", "nccl_signals", "nccl_bench"),
    evaluate=evaluate,
    explains=("slow transfers within hosts",),
    bound="communication",
    states="cause",
)
