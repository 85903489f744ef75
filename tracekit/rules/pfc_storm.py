"""
What it means
    Pauses spread through the fabric: ports stand still for much of the time.

How it shows
    A switch's watchdog found a storm (a queue that was paused without end), or ports were told to
    pause for 10 % of the time while the job ran.

Why it hurts
    A paused port holds up all traffic of its priority, whosever it is; a storm stops it.

Remedy
    Find who paused first (slow-receiver names a host), mend that; keep the watchdog on; let ECN act
    before pause does.

When this is wrong
    Ports that are told to pause are victims: the finding shows them and blames no rank behind them.
    Short pauses in every step are how a lossless fabric works. A watchdog's count may be of another
    day where readings do not say: only growth while the job ran counts, or a storm that holds.

Source
    Diagnosis D17; SONiC's pause watchdog.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tracekit.findings import Evidence, Finding, Severity
from tracekit.rules import port_losses
from tracekit.rules import ports as at
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.declared import Lends
from tracekit.rules.thresholds import threshold
from tracekit.wording import plural, sentence, share

STORMS = ("pfcwd_storms_detected",)


class PfcStormThresholds(at.PauseThresholds):
    """When pausing is a storm."""

    min_paused_ratio: float = threshold(
        0.10, "share of the time that a port was told to pause; rare is healthy"
    )
    min_storms_count: int = threshold(1, "storms that a watchdog found while the job ran")


def evaluate(facts: Facts, limits: PfcStormThresholds) -> RuleOutcome:
    """One finding for all ports in a storm."""
    ports = at.ports(facts)
    stormed = [p for p in ports if (p.growth(STORMS) or 0.0) >= limits.min_storms_count]
    pauses = [(p, pause) for p in ports if (pause := _pause(facts, p))]
    if not pauses and not any(p.of(STORMS) for p in ports):
        needs = at.why_not(facts, at.PAUSES) or f"{at.NEEDS} of pauses, or a watchdog's"
        return facts.lacking(needs, at.CAPTURE)
    held = [(p, x) for p, x in pauses if (x.ratio or 0.0) >= limits.min_paused_ratio]
    if not stormed and not held:
        return RuleOutcome()
    return RuleOutcome((_finding(facts, limits, stormed, held),))


def _pause(facts: Facts, port: at.Port) -> at.Pause | None:
    """What those behind a port were told; of a port whose ends nobody knows the longer of both
    ways, for one of its ends stood still for so long whichever it is."""
    ways = (False,) if port.is_end_known else (False, True)
    found = [pause for way in ways if (pause := at.paused(facts, port, is_by_host=way))]
    return max(found, key=lambda pause: pause.ratio or 0.0, default=None)


def _finding(
    facts: Facts,
    limits: PfcStormThresholds,
    stormed: Sequence[at.Port],
    held: Sequence[tuple[at.Port, at.Pause]],
) -> Finding:
    involved = list({p.link: p for p in (*stormed, *(p for p, _ in held))}.values())
    rows = [r for p in stormed for r in p.of(STORMS)] + [r for _, x in held for r in x.rows]
    storms = sum(p.growth(STORMS) or 0.0 for p in stormed)
    most = max((x.ratio or 0.0 for _, x in held), default=0.0)
    words = []
    evidence = []
    if stormed:
        words.append(f"a watchdog found {plural(int(storms), 'pause storm')}")
        evidence.append(
            Evidence.count(
                "pause storms while the job ran",
                storms,
                limits.min_storms_count,
                "port_counters",
                facts.readings(rows),
            )
        )
    if held:
        words.append(
            f"{plural(len(held), 'port')} stood paused for up to {share(most)} of the time"
        )
        evidence.append(
            Evidence.ratio(
                "time that a port was told to pause",
                most,
                limits.min_paused_ratio,
                "port_counters",
                facts.readings(rows),
            )
        )
    said = " and ".join(words)
    # A port in a storm was paused without end by what hangs on it. Ports that were told to pause
    # are victims: they are shown, and nobody behind them is blamed.
    blamed = at.scope_of(facts, stormed)
    scope = replace(
        blamed,
        links=tuple(p.link for p in involved),
        switches=at.scope_of(facts, involved).switches,
    )
    return at.finding(
        facts,
        involved,
        f"{sentence(said)}: {at.links_phrase(involved)}.",
        evidence,
        rows=rows,
        counters=at.PAUSES,
        basis="the ports' own counters",
        scope=scope,
        least=Severity.MAJOR if stormed else Severity.NOTE,
        lost_ns=port_losses.paused_ns(facts, involved, most),
        confirm=("show pfc counters; show pfcwd stats   on the switches, twice",),
        remedy=("find the host that pauses first and mend it; keep the watchdog on",),
    )


RULE = at.rule(
    name="pfc-storm",
    summary="Pauses spread: ports stand still for much of the time.",
    owner="network",
    thresholds=PfcStormThresholds(),
    queries=("step_breakdown", *at.QUERIES, "port_levels"),
    kernel_queries=at.TRANSFER_QUERIES,
    evaluate=evaluate,
    explains=("waiting", "lateness"),
    symptom_of=("pauses",),
    lends=Lends("counters", "the pauses of those who send", is_to_one=True),
)
