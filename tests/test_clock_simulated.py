"""Clocks of simulated jobs, from files to offsets: what was put in comes out within its error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tracekit import api
from tracekit.simulate import Request, prepare
from tracekit.simulate.kineto import GroupNames, HostClock, RankWriter
from tracekit.simulate.scenario import EPOCH_NS

MS = 1_000_000


def job(
    folder: Path,
    clocks: Sequence[HostClock],
    *,
    layout: str,
    steps: int,
    input_ns: float = 600_000.0,
) -> Path:
    """A job with one rank a host, each with a clock of its own; returns its run."""
    count = len(clocks)
    found = prepare(Request("none", count, 5, layout, steps, decoys=()))
    topology = replace(found.plan.topology, gpus_per_host=1, nvlink_domain=1)
    found.plan = replace(found.plan, topology=topology, input_ns=input_ns)
    names = GroupNames(found.plan)
    writers = [
        RankWriter(
            folder / f"rank{r}.pt.trace.json.gz",
            found.plan,
            r,
            "kineto",
            names,
            clocks[r],
            EPOCH_NS,
            topology.host(r),
        )
        for r in range(count)
    ]
    for records in found.job().run():
        for writer in writers:
            writer.add(records[writer.rank])
        records.clear()
    for writer in writers:
        writer.close(0)
    api.ingest(folder, run=folder / "run", workers=1).close()
    return folder / "run"


def check(run: Path, clocks: Sequence[HostClock]) -> list[int]:
    """Every clock meets the first one's within its stated error, from the first step to the last;
    returns the errors."""
    with api.open(run) as opened:
        rows = opened.sql(
            "SELECT rank, offset_ns, drift_ratio, drift_origin_ns FROM source_context ORDER BY rank"
        ).rows()
        errors = opened.query("rank_clocks").sort("rank")["error_ns"].to_list()
        first, last = opened.sql("SELECT min(start_ns), max(end_ns) FROM step").rows()[0]
    for moment in (first, (first + last) // 2, last):
        true = moment - EPOCH_NS
        base = clocks[0].read(true) - true
        for (rank, offset, drift, origin), error in zip(rows, errors, strict=True):
            shown = EPOCH_NS + clocks[rank].read(true)
            moved = shown + offset + round(drift * (shown - origin))
            assert error is not None
            assert abs(moved - EPOCH_NS - true - base) <= error + 1, (rank, moment)
    return errors


@pytest.mark.parametrize(
    ("layout", "most_ns"),
    [("fsdp", 200_000), ("tp2-pp2-m2", 5 * MS)],
)
def test_hosts_that_are_50_ms_apart(tmp_path: Path, layout: str, most_ns: int) -> None:
    clocks = [HostClock(0), HostClock(50 * MS), HostClock(-50 * MS), HostClock(50 * MS)]
    run = job(tmp_path, clocks, layout=layout, steps=6)
    assert max(check(run, clocks)) < most_ns


def test_clocks_that_drift_by_100_ppm_over_a_minute(tmp_path: Path) -> None:
    clocks = [
        HostClock(0, 0),
        HostClock(5 * MS, 100_000),
        HostClock(-3 * MS, -100_000),
        HostClock(1 * MS, 30_000),
    ]
    run = job(tmp_path, clocks, layout="fsdp", steps=32, input_ns=2e9)
    assert max(check(run, clocks)) < 200_000
    with api.open(run) as opened:
        span_s, *drifts = (
            opened.sql("SELECT (max(end_ns) - min(start_ns)) / 1e9 FROM step").rows()[0][0],
            *opened.query("rank_clocks").sort("rank")["drift_ratio"].to_list(),
        )
    assert span_s > 60
    assert drifts == pytest.approx([0, -1e-4, 1e-4, -3e-5], abs=2e-6)


def test_good_clocks_are_left_alone(tmp_path: Path) -> None:
    clocks = [HostClock()] * 4
    run = job(tmp_path, clocks, layout="fsdp", steps=6)
    check(run, clocks)
    with api.open(run) as opened:
        moved = opened.sql("SELECT count(*) FROM source_context WHERE offset_ns <> 0").rows()
    assert moved == [(0,)]
