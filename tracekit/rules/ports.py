"""What rules over port counters share: growth by port, whose port it is, and how peers compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean, median
from typing import Unpack

from msgspec import Struct

from tracekit.findings import Evidence, Finding, Impact, Instrument, Owner, Price, Scope, Severity
from tracekit.rules import logged, transfers
from tracekit.rules.base import Facts, Row, Rule
from tracekit.rules.facts import Advice
from tracekit.rules.outcome import UNPROVED
from tracekit.rules.prices import PriceThresholds, at_most, by_replay, disagreeing
from tracekit.rules.thresholds import threshold
from tracekit.wording import safe, share, some

QUERIES = ("port_counters", "network_correlation")
TRANSFER_QUERIES = ("group_bandwidth", "match_coverage")
"""What ``transfers``, ``port_losses`` and the price of what was lost ask of the traces; CUDA graphs
hide it."""
SHARED_QUERIES = (*TRANSFER_QUERIES, "absent_waits")
"""And ``port_losses.open_price``."""
TRAFFIC = ("tx_bytes", "rx_bytes")
MIN_RHO = 0.3
"""From which the correlation's own table calls a counter a cause: no rule's choice."""
CAPTURE = "tracekit capture --what nic"
NEEDS = "NIC or switch counters"
rule = partial(Rule, topic="links, packet loss, pause", needs=NEEDS)
"""A rule over counters of ports, with what these declare alike."""

DROPPED = (
    "rx_dropped_packets",
    "tx_dropped_packets",
    "rx_queue_dropped_packets",
    "tx_queue_dropped_packets",
)
"""Packets thrown away although nothing was wrong with them."""


PAUSES = tuple(
    f"{way}_{kind}_{what}"
    for way in ("rx", "tx")
    for kind in ("pfc", "pause")
    for what in ("packets", "duration")
)
"""Pause frames, of a priority or of the whole link, and the time that they asked for."""


ALIKE = "what the port's transfers lost, hidden as all communication is"


class PortThresholds(PriceThresholds):
    """When counters of ports speak of the job."""

    min_coverage_ratio: float = threshold(
        0.5, "of the window that readings cover; with less they say little about the job"
    )
    min_witness_ratio: float = threshold(
        0.01, "of the step: a cost below it is no second witness, nor worth one"
    )


class TransferThresholds(PortThresholds):
    """When transfers lost time on a link."""

    reached_ratio: float = threshold(
        0.8, "of a link's speed that large transfers reach: what is above it is not called lost"
    )


class PauseThresholds(TransferThresholds):
    """When transfers lost time to pauses."""

    min_pausing_ratio: float = threshold(
        0.5,
        "of the time that transfers lose, spent pausing: then pauses are why, and what queues up"
        " between two of them is lost too",
    )


class Pause(Struct, frozen=True):
    """Pausing in one direction while the job ran."""

    ratio: float | None
    """Share of the time; None where only frames are counted."""
    frames_per_s: float | None
    rows: tuple[Row, ...]

    @property
    def measure(self) -> float:
        """What ports are compared by: the share of the time, else frames a second."""
        return self.ratio if self.ratio is not None else self.frames_per_s or 0.0


class Port(Struct, frozen=True):
    """A port and what its counters grew by while the job ran."""

    node: str | None
    port: str
    host: str | None
    rank: int | None
    ranks: tuple[int, ...]
    is_on_host: bool
    rows: tuple[Row, ...]
    is_end_known: bool = True
    """Whether anything says if the port is a host's own or leads to one."""

    @property
    def link(self) -> str:
        """Node and port in one name."""
        return f"{self.node}:{self.port}" if self.node else self.port

    def of(self, counters: Iterable[str], direction: str | None = None) -> list[Row]:
        """Rows of these counters, of every priority and queue, whose growth is known."""
        wanted = set(counters)
        return [
            r
            for r in self.rows
            if r["counter"] in wanted
            and r["growth"] is not None
            and (direction is None or r["direction"] == direction)
        ]

    def growth(self, counters: Iterable[str], direction: str | None = None) -> float | None:
        """The largest growth of these counters, each summed over priorities and queues.

        Not their sum: an interface and its queue count the same packet. None: no such counter.
        """
        totals: dict[str, float] = {}
        for row in self.of(counters, direction):
            name = str(row["counter"])
            totals[name] = totals.get(name, 0.0) + float(row["growth"])
        return max(totals.values(), default=None)


def ports(facts: Facts) -> list[Port]:
    """Every port that has counters whose readings cover enough of the job."""
    least = facts.limits(PortThresholds).min_coverage_ratio
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in facts.of("port_counters"):
        if row["coverage_ratio"] is None or row["coverage_ratio"] >= least:
            grouped.setdefault((row["node"] or "", row["port"]), []).append(row)
    return [
        Port(
            node=rows[0]["node"],
            port=port,
            host=rows[0]["host"],
            rank=rows[0]["rank"],
            ranks=tuple(rows[0]["ranks"] or ()),
            is_on_host=bool(rows[0]["is_on_host"]),
            rows=tuple(rows),
            is_end_known=rows[0]["is_on_host"] is not None,
        )
        for (_, port), rows in sorted(grouped.items())
    ]


def paused(facts: Facts, port: Port, *, is_by_host: bool) -> Pause | None:
    """Pauses that the host sent (``is_by_host``), or that it was told to keep; None: not counted.

    Who counts decides the direction: what the switch receives, the host has sent. The worst
    priority counts, not the sum of them. A counter that never moved is a pause of 0.
    """
    way = "tx" if port.is_on_host == is_by_host else "rx"
    times = port.of([f"{way}_pfc_duration", f"{way}_pause_duration"])
    frames = port.of([f"{way}_pfc_packets", f"{way}_pause_packets"])
    if not times and not frames:
        return None
    rows = times or frames
    seconds = span_s(rows[0])
    if seconds is None:
        return None
    ratio = max(float(r["growth"]) for r in times) / 1e6 / seconds if times else None
    rate = sum(float(r["growth"]) for r in frames) / seconds if frames else None
    return Pause(ratio, rate, tuple(r for r in rows if r["growth"]))


def span_s(row: Row) -> float | None:
    """Seconds that the growth of a row covers; None where its readings have no times."""
    if row["interval_ns"] is None or not row["intervals_count"]:
        return None
    return float(row["interval_ns"]) * int(row["intervals_count"]) / 1e9


def host_named(ports: Sequence[Port]) -> str:
    """The host of some ports as a sentence begins with it: ``Host h1 (rank 1)``."""
    who = sorted({r for p in ports for r in owners(p)})
    ranks = f" (rank{'s' if len(who) > 1 else ''} {some([str(r) for r in who])})" if who else ""
    return f"Host {safe(ports[0].host or '?')}{ranks}"


def why_not(facts: Facts, counters: Iterable[str] | None = None) -> str | None:
    """What is missing before a rule may say anything; None where it may."""
    rows = facts.of("port_counters")
    if not rows:
        return NEEDS
    known = ports(facts)
    if not known:
        least = share(facts.limits(PortThresholds).min_coverage_ratio)
        return f"{NEEDS} from the time of the job (those given cover less than {least} of it)"
    wanted = set(counters or ())
    if wanted and not any(p.of(wanted) for p in known):
        if any(r["counter"] in wanted for p in known for r in p.rows):
            return f"{NEEDS}, each read twice or more (those given hold one reading)"
        return f"{NEEDS} of this kind (those given do not count it)"
    return None


def owners(port: Port) -> tuple[int, ...]:
    """The ranks that use the port; empty where nobody knows."""
    return (port.rank,) if port.rank is not None else port.ranks


def scope_of(facts: Facts, ports: Sequence[Port]) -> Scope:
    """The place that these ports are, with the hosts and ranks behind them."""
    ranks = sorted({r for p in ports for r in owners(p)})
    base = facts.scope(ranks, facts.steps.keys)
    return Scope(
        ranks=base.ranks,
        hosts=tuple(sorted({p.host for p in ports if p.host})),
        links=tuple(p.link for p in ports),
        switches=tuple(sorted({p.node for p in ports if p.node and not p.is_on_host})),
        steps=base.steps,
        identity_source=_identity(ports) or base.identity_source,
    )


def _identity(ports: Sequence[Port]) -> str | None:
    said = {str(r["host_source"]) for p in ports for r in p.rows if r["host_source"]}
    return ", ".join(sorted(said)) or None


def named(port: Port, direction: str | None = None) -> str:
    """The port in a sentence: ``port switch:lv1 towards rank 1 (host1)``."""
    who = ", ".join(map(str, owners(port)[:4]))
    rank = f"rank{'s' if len(owners(port)) > 1 else ''} {who}" if who else ""
    host = safe(port.host) if port.host else ""
    if port.is_on_host:
        way = "NIC"
        return f"{way} {safe(port.link)}" + (f" of {rank}" if rank else "")
    end = f"{rank} ({host})" if rank and host else rank or host
    word = "from" if direction == "rx" else "towards"
    return f"port {safe(port.link)}" + (f" {word} {end}" if end else "")


def unproved(rows: Iterable[Row]) -> tuple[Evidence, ...]:
    """Evidence against: nothing but files in a format that no real sample proved; else empty."""
    listed = list(rows)
    if not listed or not all(r.get("is_from_documentation") for r in listed):
        return ()
    files = {r["source_id"] for r in listed}
    return (Evidence(UNPROVED, float(len(files)), "count"),)


def proved_first(ports: Iterable[Port]) -> list[Port]:
    """Ports in their order, those of formats that a real sample proved before the others."""
    return sorted(ports, key=lambda p: all(r.get("is_from_documentation") for r in p.rows))


def others_median(values: Mapping[str, float], link: str) -> float | None:
    """Median of the other ports' values; None where there is no other."""
    others = [v for name, v in values.items() if name != link]
    return median(others) if others else None


def tested(facts: Facts, ports: Sequence[Port], counters: Iterable[str]) -> Row | None:
    """The correlation with the steps' time that says most; None: none of the counters moved."""
    wanted, links = set(counters), {(p.node, p.port) for p in ports}
    order = {"cause": 0, "symptom": 1, "none": 2, "not_testable": 3}
    rows = [
        r
        for r in facts.of("network_correlation")
        if r["counter"] in wanted and (r["node"], r["port"]) in links
    ]
    return min(rows, key=lambda r: (order[r["verdict"]], r["q_value"] or 1.0), default=None)


def tested_words(row: Row | None) -> str:
    """What the correlation with slow steps says, for the basis of a finding."""
    if row is None:
        return ""
    if row["verdict"] == "not_testable":
        return f"; whether slow steps go with it is not testable ({row['reason']})"
    if row["verdict"] == "cause":
        return f"; slow steps go with it (rho {row['rho']:.2f}, q {row['q_value']:.2g})"
    if row["verdict"] == "symptom":
        return "; it follows slow steps and does not lead them"
    return f"; slow steps do not go with it (q {row['q_value']:.2g})"


def tested_evidence(row: Row | None) -> tuple[Evidence, ...]:
    """The correlation as evidence, where it was tested."""
    if row is None or row["rho"] is None:
        return ()
    return (
        Evidence(
            "rank correlation with the step's time",
            float(row["rho"]),
            "ratio",
            threshold=MIN_RHO,
            query="network_correlation",
        ),
    )


class Cost(Struct, frozen=True):
    """What a network's trouble costs a step, and how that is known."""

    impact: Impact
    instruments: tuple[Instrument, ...]
    evidence: tuple[Evidence, ...] = ()
    against: tuple[Evidence, ...] = ()
    """What the port's own numbers say, where the replay is off by more than a quarter."""


def slow_steps_ns(facts: Facts) -> float:
    """What slow steps took beyond the typical one, in a mean step; noise, alike on both sides,
    cancels out."""
    durs = facts.steps.job_durs_ns
    return max(0.0, fmean(durs) - median(durs)) if durs else 0.0


def cost(
    facts: Facts,
    row: Row | None,
    lost_ns: float = 0.0,
    shown_ns: float = 0.0,
    ranks: Sequence[int] = (),
) -> Cost:
    """By correlation with the step's time where that was found; else by the time that was lost.

    ``lost_ns``: time of a mean step that transfers of these ranks lost. Only what no computation
    hides costs: the replay says what the step would take if they had not lost it. Without one it
    is not known where in a step it was lost, so it is taken to be hidden like all communication,
    but for ``shown_ns`` of it by which steps were seen to be longer. Nothing known: an impact that
    is unknown.
    """
    steps = facts.steps
    if row is not None and row["verdict"] == "cause":
        cost_ns = float(row["cost_ratio"] or 0.0) * steps.step_ns
        impact = facts.impact(at_most(cost_ns, "twin steps")) if len(steps) else Impact()
        is_timed = row.get("attempt", 1) is not None  # else the steps are from counters as well
        kinds: tuple[Instrument, ...] = ("counters", "step times") if is_timed else ("counters",)
        return Cost(impact, kinds, tested_evidence(row))
    parts = [s for ranks in steps.by_key.values() for s in ranks.values()]
    comm_ns = sum(s.comm_ns for s in parts)
    if not lost_ns or not comm_ns or facts.hidden_ranks:
        return Cost(Impact(), ("counters",), tested_evidence(row))
    price, alike = _by_replay(facts, lost_ns, ranks), _hidden_alike(facts, lost_ns, shown_ns)
    if price is None or price.ns < min(shown_ns, lost_ns):
        price = _handed_over(facts, alike, ranks)
    limits = facts.limits(PortThresholds)
    against = disagreeing(price.ns, ALIKE, alike.ns, limits, "port_counters")
    evidence = Evidence(
        "time of a step lost in transfers that no computation hid",
        price.ns / 1e9,
        "s",
        query="port_counters",
    )
    impact = facts.impact(price)
    is_worth_it = (impact.step_ratio or 0.0) >= limits.min_witness_ratio
    return Cost(
        impact,
        ("counters", "step times") if is_worth_it else ("counters",),
        (evidence, *tested_evidence(row)),
        against,
    )


def _by_replay(facts: Facts, lost_ns: float, ranks: Sequence[int]) -> Price | None:
    """What a step would take less if these ranks' transfers had not lost so much of their time."""
    took_ns = transfers.longest_of_groups(facts, ranks, transfers.taken_ns)
    if facts.replay is None or took_ns <= lost_ns:
        return None
    saved_ns = facts.replay.saved_at_speed_ns(ranks, 1 - lost_ns / took_ns)
    if saved_ns is None:
        return None
    return by_replay(saved_ns, facts.replay.error_ratio, facts.steps.step_ns)


def _hidden_alike(facts: Facts, lost_ns: float, shown_ns: float) -> Price:
    """What is lost, less the share of it that all communication is hidden by."""
    parts = [s for ranks in facts.steps.by_key.values() for s in ranks.values()]
    comm_ns = fmean(s.comm_ns for s in parts)
    exposed_ns = fmean(s.exposed_comm_ns for s in parts)
    alike_ns = lost_ns * exposed_ns / comm_ns
    cost_ns = min(max(alike_ns, min(shown_ns, lost_ns)), exposed_ns)
    # If what is hidden stays hidden, all of it is saved; if the rest becomes hidden, the least.
    most_ns = max(cost_ns, min(lost_ns, exposed_ns))
    least_ns = min(cost_ns, max(0.0, lost_ns - (comm_ns - exposed_ns)))
    return Price(cost_ns, "counter share", least_ns, most_ns)


def _handed_over(facts: Facts, price: Price, ranks: Sequence[int]) -> Price:
    """The price, but in a pipeline what its messages cost: beside those of others where both were
    seen, else no more than all hand-overs. Stages that wait for their turn, and sends that last
    until somebody asks for them, are no time lost in transfers."""
    replay = facts.replay
    saved_ns = replay.saved_by_messages_ns(ranks) if replay is not None else None
    if replay is not None and saved_ns is not None:
        return by_replay(max(0.0, saved_ns), replay.operations_error_ratio, facts.steps.step_ns)
    most_ns = replay.hand_overs_ns() if replay is not None else None
    if replay is None or most_ns is None or most_ns >= price.ns:
        return price
    bounds = min(price.low_ns, most_ns), price.ns
    return by_replay(most_ns, replay.operations_error_ratio, facts.steps.step_ns, bounds)


def finding(
    facts: Facts,
    ports: Sequence[Port],
    summary: str,
    evidence: Iterable[Evidence],
    *,
    rows: Sequence[Row],
    basis: str,
    counters: Iterable[str] = (),
    scope: Scope | None = None,
    place: str | None = None,
    owner: Owner | None = None,
    least: Severity = Severity.NOTE,
    lost_ns: float = 0.0,
    shown_ns: float = 0.0,
    victims: Sequence[int] = (),
    **advice: Unpack[Advice],
) -> Finding:
    """A finding over ports: what its counters go with, what it costs, what speaks against it.

    ``rows`` are the readings that it rests on, ``counters`` those that may go with slow steps,
    ``least`` the severity that the counters alone carry, ``victims`` whose transfers lost the time
    where that is not the scope's ranks.
    """
    test = tested(facts, ports, counters)
    place_of = scope or scope_of(facts, ports)
    price = cost(facts, test, lost_ns, shown_ns, tuple(victims) or place_of.ranks)
    against = unproved(rows)
    return facts.finding(
        place_of,
        summary,
        (*evidence, *price.evidence),
        by=price.instruments,
        basis=basis + tested_words(test),
        impact=price.impact,
        least=least,
        cap=Severity.NOTE if against else Severity.CRITICAL,
        place=place,
        is_counted=True,
        owner=owner,
        against=(*against, *price.against),
        **advice,
    )


def in_history(
    facts: Facts, finding: Finding, rows: Sequence[Row], limits: logged.HistoryThresholds
) -> Finding:
    """Without traces: the finding with the slow stretch of the log that began and ended with the
    growth of these rows of ``port_counters``, whose format a real sample proved."""
    if unproved(rows):
        return finding
    return logged.in_history(facts, finding, _grown(rows), limits, "the port's own counters")


def stretch_of(facts: Facts, rows: Sequence[Row], limits: logged.HistoryThresholds) -> Row | None:
    """That stretch; None with traces, or where no such stretch is one of these rows' growth."""
    return None if unproved(rows) else logged.stretch_in(facts, _grown(rows), limits)


def _grown(rows: Sequence[Row]) -> list[tuple[int | None, int | None]]:
    return [(row.get("first_grown_ns"), row.get("last_grown_ns")) for row in rows]


def views(ports: Iterable[Port]) -> list[list[Port]]:
    """Ports by link: a NIC, its interface and the switch's port towards it are three views of one.

    By host and rank; a port that leads nowhere known, or to a host whose rank is not told, is a
    link of its own.
    """
    links: dict[tuple[object, ...], list[Port]] = {}
    for port in ports:
        key = (port.host, port.rank) if port.rank is not None else (None, port.link)
        links.setdefault(key, []).append(port)
    return list(links.values())


def links_phrase(ports: Sequence[Port]) -> str:
    """Names of ports for a sentence."""
    return some([safe(p.link) for p in ports])


def is_counters_alone(evidence: Sequence[Evidence]) -> bool:
    """Whether a finding stands on what ports count and are set to, and nothing else."""
    return all(e.query in ("port_counters", "port_levels", "port_events") for e in evidence)
