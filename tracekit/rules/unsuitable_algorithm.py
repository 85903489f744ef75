"""
What it means
    NCCL runs an algorithm or protocol that is slower for this operation than another one.

How it shows
    The same GPUs ran the same benchmark with another algorithm and were faster; or NCCL_ALGO or
    NCCL_PROTO forces LL on large messages.

Why it hurts
    The wrong choice costs a part of the bandwidth on every call.

Remedy
    Remove NCCL_ALGO and NCCL_PROTO, or the tuner that makes the choice.

When this is wrong
    NCCL's chooser knows the message sizes of today: what was faster in a benchmark of large
    messages may be slower for small ones. Only equal benchmarks on equal GPUs are compared.

Source
    The same six GPUs with NVLS and with Ring: 426 and 358 GB/s.
"""

from __future__ import annotations

from collections import defaultdict

from tracekit.findings import Evidence, Finding, Severity
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.nccl_facts import Nccl, log_scope, nccl_rule, no_logs
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import plural, safe, share


class UnsuitableAlgorithmThresholds(Thresholds):
    """How much slower is unsuitable."""

    min_loss_ratio: float = threshold(0.1, "of the bandwidth; less is noise between two runs")
    min_ll_bytes: int = threshold(
        4 << 20, "messages from this size on; LL moves half the bytes and is made for small ones"
    )


def evaluate(facts: Facts, limits: UnsuitableAlgorithmThresholds) -> RuleOutcome:
    """Equal benchmarks with different algorithms, and forced protocols."""
    nccl = Nccl(facts)
    if not facts.of("nccl_choices") and not nccl.members:
        return no_logs(facts)
    if not facts.of("nccl_choices"):
        return facts.lacking(
            "NCCL's choices in a log (NCCL_DEBUG_SUBSYS=TUNING)", "NCCL_DEBUG_SUBSYS=TUNING"
        )
    findings = [
        f for rows in _alike(facts) if (f := _slower(facts, nccl, limits, rows)) is not None
    ]
    forced = _forced(facts, nccl, limits)
    return RuleOutcome(findings=(*findings, *([forced] if forced else [])))


def _alike(facts: Facts) -> list[list[Row]]:
    """Whole benchmarks of the same kind on the same GPUs with known algorithms."""
    groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in facts.of("nccl_bench"):
        known = row["is_complete"] and row["algorithm"] and row["peak_bus_bytes_per_s"]
        if known and row["devices"] and row["benchmark"]:
            key = (row["benchmark"], tuple(row["devices"]), row["peak_message_bytes"])
            groups[key].append(row)
    return [rows for _, rows in sorted(groups.items(), key=lambda g: str(g[0])) if len(rows) > 1]


def _slower(
    facts: Facts, nccl: Nccl, limits: UnsuitableAlgorithmThresholds, rows: list[Row]
) -> Finding | None:
    best = max(rows, key=lambda r: float(r["peak_bus_bytes_per_s"]))
    worst = min(rows, key=lambda r: float(r["peak_bus_bytes_per_s"]))
    ways = [f"{r['algorithm']}/{r['protocol']}" for r in (worst, best)]
    now, could = (float(r["peak_bus_bytes_per_s"]) for r in (worst, best))
    loss = 1 - now / could
    if ways[0] == ways[1] or loss < limits.min_loss_ratio:
        return None
    if _channels(nccl, worst) != _channels(nccl, best):
        return None  # a collapse of channels explains more than the algorithm
    means = [r["average_bus_bytes_per_s"] for r in (worst, best)]
    mean = f", {means[0] / 1e9:.1f} against {means[1] / 1e9:.1f} on average" if all(means) else ""
    return facts.finding(
        log_scope(hosts=tuple(safe(str(h)) for h in worst["hosts"] or ())),
        f"{safe(str(worst['benchmark']))} on {plural(int(worst['ranks_count'] or 0), 'GPU')} "
        f"reaches {now / 1e9:.0f} GB/s with {worst['algorithm']} and {could / 1e9:.0f} with "
        f"{best['algorithm']} ({share(loss)} lost{mean}).",
        [
            Evidence(
                f"bus bandwidth with {row['algorithm']}",
                value,
                "bytes/s",
                query="nccl_bench",
                threshold=(1 - limits.min_loss_ratio) * could if row is worst else None,
                rows=facts.places([row], unit="line "),
            )
            for row, value in ((worst, now), (best, could))
        ],
        by=("log", "counters"),
        basis="two benchmarks of the same GPUs, and the choices that NCCL logged",
        least=Severity.MINOR,
        confirm=("repeat both benchmarks in turn on the same machine",),
        remedy=(
            f"remove NCCL_ALGO, NCCL_PROTO or the tuner plugin that asks for {worst['algorithm']}",
        ),
    )


def _channels(nccl: Nccl, row: Row) -> int | None:
    counts = [m.channels for m in nccl.members if m.source_id == row["source_id"] and m.channels]
    return max(counts, default=None)


def _forced(facts: Facts, nccl: Nccl, limits: UnsuitableAlgorithmThresholds) -> Finding | None:
    settings = [
        s for s in nccl.settings("NCCL_PROTO")
        if s.given.get("value", "").upper() in ("LL", "LL128,LL", "LL,LL128")
    ]  # fmt: skip
    large = [
        r for r in facts.of("nccl_choices")
        if r["protocol"] == "LL" and int(r["message_bytes"] or 0) >= limits.min_ll_bytes
    ]  # fmt: skip
    if not settings or not large:
        return None
    most = max(int(r["message_bytes"]) for r in large)
    return facts.finding(
        log_scope(),
        f"NCCL_PROTO={settings[0].given['value']} forces the LL protocol on messages of up to "
        f"{most / 1e6:.0f} MB, where it reaches at most half the bandwidth.",
        [
            Evidence(
                "largest message with LL",
                float(most),
                "bytes",
                threshold=float(limits.min_ll_bytes),
                query="nccl_choices",
                rows=facts.places(large[:1], unit="line "),
            ),
            nccl.evidence("NCCL_PROTO is set", len(settings), "lines", "nccl_signals", settings),
        ],
        by=["log"],
        basis="the setting and the choices in the log",
        least=Severity.MINOR,
        remedy=("unset NCCL_PROTO",),
    )


RULE = nccl_rule(
    name="unsuitable-algorithm",
    summary="NCCL runs an algorithm or protocol that is slower here than another.",
    owner="framework",
    thresholds=UnsuitableAlgorithmThresholds(),
    queries=("nccl_comms", "nccl_choices", "nccl_bench", "nccl_signals"),
    evaluate=evaluate,
    bound="communication",
)
