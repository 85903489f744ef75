"""What a table of nccl-tests says alone: whether it is whole, and whether its bandwidth falls."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.report import signals
from tracekit.report.judgement import Judgement, ReportThresholds, cannot_tell
from tracekit.rules.base import Facts, Row
from tracekit.wording import plural, safe

MIN_RATED_BYTES_PER_S = 1e8
"""nccl-tests prints GB/s with two decimals: of 0.1 GB/s a tenth is rounding."""
CAPTURE_FALL = (
    "read NIC and switch counters before and after it, and log NCCL_DEBUG=INFO "
    "NCCL_DEBUG_SUBSYS=INIT,TUNING to see what NCCL chose for either size"
)


def fall_of(row: Row, limits: ReportThresholds) -> str:
    """From which bus bandwidth to which it falls as messages grow; empty where it does not."""
    before = float(row["before_bus_bytes_per_s"] or 0)
    after = float(row["fall_bus_bytes_per_s"] or 0)
    if before < MIN_RATED_BYTES_PER_S or after > limits.max_fall_ratio * before:
        return ""
    return (
        f"bus bandwidth falls from {before / 1e9:.1f} GB/s at {_size(row['before_message_bytes'])} "
        f"to {after / 1e9:.1f} at {_size(row['fall_message_bytes'])}"
    )


def cut_benchmark(facts: Facts, cut: Row, limits: ReportThresholds) -> Judgement:
    """One that did not run to its end: what its log says of that, else where it was slow."""
    name = _name(cut)
    of = cut["expected_rows_count"]
    begin = f"{name} is incomplete ({cut['rows_count']}" + (f" of {of}" if of else "")
    seen = signals.errors_of(facts, cut)
    if seen:
        # The log names what failed; which of it came first on which host, it may not.
        return cannot_tell(
            f"{begin} sizes measured); its log names errors: {'; '.join(seen)}.",
            "look at the first of these errors (tracekit query RUN nccl_signals)",
        )
    fall = fall_of(cut, limits)
    if fall:
        return cannot_tell(f"{begin} sizes measured). {_why(fall)}", CAPTURE_FALL)
    return cannot_tell(
        f"Cannot tell: {begin} sizes measured), and nothing says why.",
        "run it again with NCCL_DEBUG=INFO and keep the whole output",
    )


def benchmarks_alone(rows: Sequence[Row], limits: ReportThresholds) -> Judgement:
    """A benchmark has no steps: what would say more is another run of it."""
    wrong = [r for r in rows if r["wrong_sizes_count"]]
    if wrong:
        sizes = plural(sum(int(r["wrong_sizes_count"]) for r in wrong), "size")
        of = "" if len(wrong) == 1 else f" of {plural(len(wrong), 'benchmark')}"
        return cannot_tell(
            f"Wrong results: {_name(wrong[0])} found wrong elements in {sizes}{of}. Data is "
            "damaged on its way between these GPUs or in them: do not train on them; how fast they "
            "are is no question yet.",
            "run it with NCCL_P2P_DISABLE=1: if that is right, the way from GPU to GPU damages "
            "data (PCIe ACS, IOMMU), else test each GPU (dcgmi diag -r 3) and NIC alone",
        )
    peak = max((float(r["peak_bus_bytes_per_s"] or 0) for r in rows), default=0.0)
    if not peak:
        return cannot_tell(
            f"Cannot tell: {plural(len(rows), 'benchmark')} ran to the end and measured no "
            "bandwidth.",
            "run nccl-tests on two GPUs or more",
        )
    falls = [(row, fall) for row in rows if (fall := fall_of(row, limits))]
    if falls:
        row, fall = falls[0]
        more = f" ({plural(len(falls) - 1, 'more benchmark')} too)" if len(falls) > 1 else ""
        return cannot_tell(f"{_name(row)}{more}: {_why(fall)}", CAPTURE_FALL)
    them = "it" if len(rows) == 1 else "them"
    return cannot_tell(
        f"Cannot tell whether that is as fast as it should be: {plural(len(rows), 'benchmark')} "
        f"measured {peak / 1e9:.1f} GB/s at most, and the rules that read {them} found no fault.",
        "run the same benchmark on hosts that are known to be well, and diagnose both logs at once",
    )


def _why(fall: str) -> str:
    """What a fall means, as far as a table alone can tell."""
    return (
        f"Its {fall}, where larger messages should be no slower: packets lost or held up on the "
        "way, or what NCCL chose for that size; which, the table cannot tell."
    )


def _name(row: Row) -> str:
    return safe(str(row["benchmark"] or "nccl-tests"))


def _size(message_bytes: object) -> str:
    """A size as nccl-tests' own options spell it, in powers of 1,024 where it is whole."""
    value = int(str(message_bytes))
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 1 << power:
            return f"{value / (1 << power):.4g} {unit}"
    return f"{value} B"
