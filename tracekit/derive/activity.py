"""Steps from counters alone: the period of SM activity, traffic or power, or why there is none.

A training job does the same again and again, and all its GPUs do it together. The counters are
asked one after the other, those first whose period is most surely the work's (``signals``); what
one of them shows is for ``counter_period`` to say.

The boundary between two steps is where activity is least. Whether the period is the step, a
microbatch or several steps, no counter tells: it is called a period, and taken as the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tracekit.correction import Correction
from tracekit.derive.counter_period import CounterPeriod, have_one_period, no_period, period_of
from tracekit.derive.placement.timebase import ELAPSED, LOCAL
from tracekit.derive.readings import Clocks
from tracekit.derive.signals import ACTIVITIES, MAX_POINTS, SIGNALS, Readings, ceiling, read
from tracekit.derive.stage import arrow

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MAX_STATED = 500_000
"""Readings of a counter whose period is not sought, or only one longer than a known one."""
LONGER = ("nvlink_tx", "tx_bytes", "tx_rate")
"""Communication may repeat once in several microbatches."""
STATED = (*LONGER, "nvlink_rx", "rx_bytes", "rx_rate", "pcie_tx", "pcie_rx", "power")
"""What is read once the period is known, for what else counters say."""
WRITES = ("activity_period", "activity_step", "counter_statement")
"""The tables made here."""


def activity_tables(
    con: duckdb.DuckDBPyConnection, clocks: Clocks
) -> dict[str, list[dict[str, Any]]]:
    """Rows of ``activity_period`` and ``activity_step`` of a job whose steps nothing else shows.

    Empty where no GPU was sampled.
    """
    import numpy as np

    from tracekit.derive.statements import statements

    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in WRITES}
    sampled = _sampled(con)
    if not sampled:
        return tables
    looked_at: list[CounterPeriod] = []
    signals: dict[str, list[Readings]] = {}
    chosen: CounterPeriod | None = None
    base_ns: int | None = None
    for counter in (c for c in SIGNALS if sampled.get(c)):
        if chosen is not None and counter not in STATED:
            continue
        readings, origin_ns = read(
            con, clocks, counter, MAX_POINTS if chosen is None else MAX_STATED
        )
        if SIGNALS[counter].is_port and not readings:
            continue  # a switch that was asked once: nobody expects a period of it
        base_ns = origin_ns if base_ns is None else base_ns
        shift = (origin_ns - base_ns) / 1e9
        signals[counter] = [replace(r, times=r.times + shift) for r in readings]
        covered_ratio = chosen.covered_ratio if chosen is not None else 0.0
        may_be_longer = (
            counter in LONGER and chosen is not None and chosen.row["verdict"] == "steps"
        )
        if covered_ratio < 1 or may_be_longer:
            period = period_of(signals[counter], counter, ceiling(con, counter))
            looked_at.append(period)
            if period.covered_ratio > covered_ratio:
                # What only some machines show may be the rhythm of a job of their own.
                chosen = period
            elif may_be_longer and chosen and (times := _times_longer(period, chosen)):
                name = SIGNALS[chosen.row["counter"]].name
                period.row["reason"] += f", in which {name} repeats {times} times"
                chosen = period
    if not signals.get("sm_active"):
        other = next((c for c in ACTIVITIES if c not in SIGNALS and sampled.get(c)), None)
        if other is not None:
            readings, origin_ns = read(con, clocks, other, MAX_STATED)
            shift = 0.0 if base_ns is None else (origin_ns - base_ns) / 1e9
            signals[other] = [replace(r, times=r.times + shift) for r in readings]
    if not looked_at:
        if not any(c not in SIGNALS or not SIGNALS[c].is_port for c in sampled):
            return tables
        looked_at = [
            CounterPeriod(
                no_period("no SM activity, traffic, energy or power was sampled"), np.zeros(0)
            )
        ]
    # One answer a job: the counter that shows steps, else the first that could have.
    varied = (period for period in looked_at if period.row["counter"] is not None)
    chosen = chosen or next(varied, looked_at[0])
    row = chosen.row
    if row["verdict"] == "steps":
        row |= {"steps_count": max(0, len(chosen.starts) - 1)}
        tables["activity_step"] = step_rows(chosen.starts, row, base_ns or 0)
    tables["activity_period"] = [row | {"attempt": None}]
    tables["counter_statement"] = [
        {"attempt": None, **said._asdict()} for said in statements(signals, chosen)
    ]
    return tables


def _times_longer(longer: CounterPeriod, chosen: CounterPeriod) -> int | None:
    """How many of the known periods make that of another counter, where it is a longer one."""
    if longer.row["verdict"] != "steps" or not have_one_period(longer.parts[0], chosen.parts[0]):
        return None
    times = round(float(longer.row["period_ns"]) / float(chosen.row["period_ns"]))
    return times if times > 1 else None


def selected_tables(con: duckdb.DuckDBPyConnection) -> dict[str, pa.Table]:
    """The same of the part of a run that is open: of readings as its views show them."""
    rows = con.execute(
        "SELECT source_id, basis, c.host FROM source_context c JOIN clock USING (clock_id)"
    ).fetchall()
    bases = {s: basis for s, basis, _ in rows}
    hosts = {s: host for s, _, host in rows}
    # Views have put times right.
    placed = {s: hosts[s] for s in bases if bases[s] == "epoch"}
    clocks = Clocks({s: Correction() for s in placed}, placed)
    made = of_any_clock(con, clocks, bases, hosts)
    return {name: arrow(name, rows) for name, rows in made.items()}


def of_any_clock(
    con: duckdb.DuckDBPyConnection,
    clocks: Clocks,
    bases: Mapping[int, str],
    hosts: Mapping[int, str | None],
) -> dict[str, list[dict[str, Any]]]:
    """The same where no counter's times count from the epoch: local ones still tell of themselves.

    ``bases`` and ``hosts`` are by source. Times that count from a beginning tell no offset of
    clocks: two files may have begun apart.
    """
    others = {s for s, basis in bases.items() if basis in (LOCAL, ELAPSED)}
    if not others:
        return activity_tables(con, clocks)
    sampled = {
        s
        for (s,) in con.execute(
            "SELECT DISTINCT source_id FROM gpu_sample WHERE time_ns IS NOT NULL "
            "UNION SELECT DISTINCT source_id FROM net_sample WHERE time_ns IS NOT NULL"
        ).fetchall()
    }
    if sampled & clocks.hosts.keys():
        return activity_tables(con, clocks)
    one = next((b for b in (LOCAL, ELAPSED) if any(bases.get(s) == b for s in sampled)), None)
    own = {s: hosts.get(s) for s in sampled if bases.get(s) == one}
    tables = activity_tables(con, Clocks({s: Correction() for s in own}, own))
    if one == ELAPSED:
        tables["counter_statement"] = [
            row for row in tables["counter_statement"] if row["kind"] != "clock_offset"
        ]
    return tables


def _sampled(con: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Counters of GPUs, and those of ports that show traffic, by their readings with a time."""
    rows = con.execute(
        """
        SELECT counter, count(time_ns) FROM gpu_sample GROUP BY counter
        UNION ALL
        SELECT counter, count(time_ns) FROM net_sample
        WHERE port IS NOT NULL AND list_contains(?, counter) GROUP BY counter
        """,
        [[name for name, signal in SIGNALS.items() if signal.is_port]],
    ).fetchall()
    return {str(name): int(count) for name, count in rows}


def step_rows(starts: Floats, row: Mapping[str, Any], origin_ns: int) -> list[dict[str, Any]]:
    """The rows of ``activity_step``: from one boundary to the next, where both are known."""
    import numpy as np

    rows = []
    for number in range(len(starts) - 1):
        if np.isnan(starts[number : number + 2]).any():
            continue
        start_ns = origin_ns + round(float(starts[number]) * 1e9)
        end_ns = origin_ns + round(float(starts[number + 1]) * 1e9)
        rows.append(
            {
                "attempt": None,
                "step": number,
                "start_ns": start_ns,
                "dur_ns": end_ns - start_ns,
                "error_ns": round(float(row["interval_ns"])),
                "step_source": "counters",
            }
        )
    return rows
