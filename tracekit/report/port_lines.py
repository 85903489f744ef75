"""What the NICs of hosts carry in a step, beside what the layout needs."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.rules.base import Facts, Row
from tracekit.wording import plural


def port_lines(facts: Facts) -> list[str]:
    """A line where job.toml tells the layout and ports were read in the steps; none elsewhere.

    It blames nobody: storage and other jobs use the same NICs.
    """
    by_host: dict[str, Row] = {}
    # One NIC may be read under two names and at its switch's port: the most of them is all of it.
    for row in sorted(
        (r for r in facts.of("port_traffic") if r["host_bytes_per_step"]),
        key=lambda r: (r["observed_ratio"] is not None, r["host_bytes_per_step"]),
    ):
        by_host[row["host"]] = row
    if not by_host:
        return []
    told = [r for r in by_host.values() if r["observed_ratio"] is not None]
    rows = told or list(by_host.values())
    carried = (
        f"NICs of {plural(len(rows), 'host')} carry {_span(rows)} a step, the way that has more"
    )
    if not told:
        return [f"{carried}; what the layout needs is not known: {rows[0]['basis']}"]
    least = min(r["expected_least_bytes"] for r in told)
    ring = max(r["expected_host_bytes"] for r in told)
    return [f"{carried}; the layout needs {_gb(least)} to {_gb(ring)} GB: {told[0]['basis']}"]


def _span(rows: Sequence[Row]) -> str:
    low, high = (_gb(most(r["host_bytes_per_step"] for r in rows)) for most in (min, max))
    return f"{high} GB" if low == high else f"{low} to {high} GB"


def _gb(value: float) -> str:
    return f"{value / 1e9:.3g}"
