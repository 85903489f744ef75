"""Counters whose times have no zone, or no beginning: they still tell of themselves."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

import tracekit

START_S = 1_780_000_000.0
PERIOD_S = 1.7


def local(seconds: float) -> str:
    return datetime.fromtimestamp(START_S + seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def telemetry(folder: Path, stamp: Callable[[float], str], header: str) -> None:
    """Two nodes that send to each other once a period, the second read 30 ms later."""
    noise = random.Random(3)  # noqa: S311 - no secret
    for node in range(2):
        names = "ib0_tx_bytes_s,ib0_rx_bytes_s,gpu0_sm_active_pct,gpu1_sm_active_pct"
        names += ",gpu0_nvlink_tx_bytes_s"  # of a link that carries nothing
        lines = [f"{header},{names}"]
        for reading in range(600):
            now = reading * 0.1 + 0.03 * node
            is_busy = now % PERIOD_S < 0.6 * PERIOD_S
            traffic = [(1e9 if is_busy else 2e10) + noise.gauss(0, 1e8) for _ in range(2)]
            shares = [(90 if is_busy else 20) + noise.gauss(0, 2) for _ in range(2)]
            lines.append(",".join([stamp(now), *(f"{v:.1f}" for v in (*traffic, *shares, 0))]))
        (folder / f"telemetry_node{node}.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("stamp", "header"),
    [
        (local, "time"),
        (lambda s: f"{s:.2f}", "elapsed_s"),
        (lambda s: f"{START_S + s:.2f}", "time"),
    ],
)
@pytest.mark.slow  # another job through the same lines
def test_the_period_is_found_on_their_own_clock(
    tmp_path: Path, stamp: Callable[[float], str], header: str
) -> None:
    telemetry(tmp_path, stamp, header)
    with tracekit.open(tmp_path) as run:
        (period,) = run.query("activity_steps").rows(named=True)[:1]
        said = run.query("counter_statements").rows(named=True)
        (profile, *_) = run.query("counter_profile").rows(named=True)
    assert period["dur_ns"] == pytest.approx(PERIOD_S * 1e9, rel=0.1)
    assert profile["period_ns"] == pytest.approx(PERIOD_S * 1e9, rel=0.02)
    kinds = {row["kind"] for row in said}
    assert "bursts_network" in kinds
    # Two files may have begun apart: what is between their beginnings is no offset of clocks.
    assert ("clock_offset" in kinds) <= (header == "time")
