"""Broken links as NCCL logs them: completions with errors on InfiniBand and RoCE, and what a NIC
says of its own port.

One broken link makes many ranks print. Flushed completions (status 5) follow from the first error
and say nothing, and so do opcode and length. The root is each process's first other status; it is
tallied by host, as printer and as peer, and a host is named only if it is in most of the pairs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from msgspec import Struct

from tracekit.findings import Finding, Severity
from tracekit.rules.base import Facts
from tracekit.rules.nccl_facts import Nccl, Signal, log_scope
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import listed, plural, safe, some

QUERIES = ("nccl_signals", "nccl_comms", "nccl_topology")
FLUSH = "5"
LOST = ("port error", "device fatal", "local catastrophic error")
"""What a NIC says (ibv_event_type_str) when its port or itself is gone; the other events, such as a
changed table of GIDs, are everyday."""
MEANING = {
    "1": "local length error (ranks called different sizes)",
    "4": "local protection error (memory key)",
    "10": "remote access error (memory key; ACS or GPUDirect)",
    "12": "transport retries exceeded: the peer, its link or the path is dead",
    "13": "receiver not ready",
}


class FailureThresholds(Thresholds):
    """When a host is named for connections that failed."""

    min_majority_ratio: float = threshold(
        0.6, "of the failing pairs that a host must be part of, so that not its peers are named"
    )


class Failure(Struct, frozen=True):
    """A process's first error that is no flush."""

    signal: Signal
    host: str | None
    peer: str | None
    status: str


def roots(nccl: Nccl) -> list[Failure]:
    """The first error of each process, with the hosts of both ends as far as known."""
    names = {
        s.given["address"].split("<")[0]: s.node
        for code in ("oob", "net_devices")
        for s in nccl.of(code)
        if "address" in s.given and s.node is not None
    }
    first: dict[object, Signal] = {}
    for signal in sorted(nccl.of("ib_error"), key=lambda s: s.place):
        if signal.given.get("status") not in (None, FLUSH):
            first.setdefault(signal.process, signal)
    return [
        Failure(s, s.node, names.get(s.given.get("peer", ""), s.given.get("peer")),
                s.given["status"])
        for s in first.values()
    ]  # fmt: skip


def lost_ports(nccl: Nccl) -> dict[str, list[Signal]]:
    """By host, what its NICs said of ports that are gone, and which NICs NCCL gave up."""
    by_host: dict[str, list[Signal]] = defaultdict(list)
    for code in ("ib_async_event", "ib_device_failed"):
        for signal in nccl.of(code):
            is_lost = code == "ib_device_failed" or signal.given.get("event", "") in LOST
            if is_lost and signal.node is not None:
                by_host[signal.node].append(signal)
    return by_host


def _nics(signals: Sequence[Signal]) -> list[str]:
    """``mlx5_0:1``, as the NIC's own events name it."""
    return sorted(
        {
            f"{s.given['nic']}:{s.given['port']}" if "port" in s.given else s.given["nic"]
            for s in signals
            if "nic" in s.given
        }
    )


def _lost(facts: Facts, nccl: Nccl, host: str, signals: Sequence[Signal]) -> Finding:
    nics = _nics(signals)
    said = sorted({s.given["event"] for s in signals if "event" in s.given})
    which = f"NIC {some([safe(n) for n in nics], 3)}" if nics else "a NIC"
    what = listed(said) if said else "NCCL gave it up"
    return facts.finding(
        log_scope(hosts=(safe(host),), devices=tuple(safe(n) for n in nics)),
        f"{safe(host)} lost {which} while the job ran: {what}.",
        [
            nccl.evidence(
                "lines that say so", sum(s.count for s in signals), "count", "nccl_signals", signals
            )
        ],
        by=["log"],
        basis="the NIC's own event, as NCCL logs it; no counter of its port was seen",
        least=Severity.MAJOR,
        place=f"{safe(host)}-{safe(nics[0]) if nics else 'nic'}",
        keys=(),
        confirm=("ibstat; dmesg -T | grep -i link; link_downed of this port and of the switch's",),
        remedy=("reseat or replace cable or optic; drain the machine if it comes back",),
        next_capture=("tracekit capture --what nic",),
    )


def failures(facts: Facts, limits: FailureThresholds) -> list[Finding]:
    """One finding for the connections that broke, or else one a host that lost a port."""
    nccl = Nccl(facts)
    failed, lost = roots(nccl), lost_ports(nccl)
    if not failed:
        return [_lost(facts, nccl, host, signals) for host, signals in sorted(lost.items())]
    statuses = Counter(f.status for f in failed)
    status, _ = statuses.most_common(1)[0]
    culprit = _culprit(failed, limits)
    if culprit is None and len(lost) == 1:
        (culprit,) = lost  # the one host whose own NIC says that its port is gone
    own = lost.get(culprit or "", [])
    nics = sorted({f.signal.given["nic"] for f in failed if "nic" in f.signal.given})
    means = MEANING.get(status, f"status {status}")
    count = f"{len(failed)} process{'' if len(failed) == 1 else 'es'}"
    hosts = sorted({f.host for f in failed if f.host is not None})
    if own and culprit is not None:
        which = listed([safe(n) for n in _nics(own)]) or "of it"
        nics = sorted({*nics, *_nics(own)})
        says = (
            f"{safe(culprit)} lost a port (NIC {which}), and connections of {count} failed: "
            f"{means}."
        )
    elif culprit is not None:
        says = f"{safe(culprit)} is in most of the connections that failed ({count}): {means}."
    else:
        says = f"Connections of {count} failed on {plural(len(hosts), 'host')}: {means}."
    flushes = sum(s.count for s in nccl.of("ib_error") if s.given.get("status") == FLUSH)
    return [
        facts.finding(
            log_scope(
                hosts=(safe(culprit),) if culprit is not None else tuple(safe(h) for h in hosts),
                devices=tuple(safe(n) for n in nics) if culprit is not None else (),
            ),
            says,
            [
                nccl.evidence(
                    "processes whose connection failed",
                    len(failed),
                    "count",
                    "nccl_signals",
                    [f.signal for f in failed],
                ),
                *(
                    [nccl.evidence("events of its NIC", len(own), "count", "nccl_signals", own)]
                    if own
                    else []
                ),
                nccl.evidence(
                    "flushed completions that followed", flushes, "count", "nccl_signals"
                ),
            ],
            by=["log"],
            basis="NCCL's own errors; no counter of a NIC or a switch was seen",
            least=Severity.CRITICAL if status == "12" else Severity.MAJOR,
            keys=(),
            confirm=("ibstat; ibqueryerrors; counters of the switch ports of these hosts",),
            remedy=("after that test the cable, the NIC and the port of the named host",)
            if culprit is not None
            else ("look for what the pairs share: switch, route, GID index, MTU",),
            next_capture=("tracekit capture --what nic",),
        )
    ]


def _culprit(failed: list[Failure], limits: FailureThresholds) -> str | None:
    """The one host in most pairs; None where a pair shares the blame or it is spread."""
    pairs = {(f.host, f.peer) for f in failed if f.host is not None and f.peer is not None}
    pairs = {p for p in pairs if p[0] != p[1]}
    # Both directions of one pair are one pair.
    unordered = {tuple(sorted(map(str, p))) for p in pairs}
    if len(unordered) < 2:
        return None
    tally = Counter(host for pair in unordered for host in pair)
    (first, most), *rest = tally.most_common(2)
    second = rest[0][1] if rest else 0
    least = limits.min_majority_ratio * len(unordered)
    return first if most >= least and most > second else None
