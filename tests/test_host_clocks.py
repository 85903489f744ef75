"""What a host counted stands beside the steps of its own ranks, also where its clock is off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tracekit import api
from tracekit.simulate import Request, prepare, scenario, write
from tracekit.simulate.history.lines import rfc3339
from tracekit.simulate.kineto import HostClock

AHEAD_NS = 4_000_000_000
READ_NS = 20_000_000
SLOW = slice(4, 8)
"""Which of the captured steps are slow."""


def job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Traces of two hosts of four ranks each; one launches late for four steps, and its clock is
    four seconds ahead. Gives its name, and the other's."""
    request = Request("slow-host:20", 8, 4, steps_count=12, decoys=(), nccl="none")
    made = prepare(request)
    ((_, effect),) = made.faults
    effect.steps = list(made.plan.steps)[SLOW]
    slow = str(effect.where()["hosts"][0])
    (other,) = set(made.clocks) - {slow}
    made.clocks[slow] = HostClock(AHEAD_NS)
    made.clocks[other] = HostClock()
    monkeypatch.setattr(scenario, "prepare", lambda _: made)
    write(request, folder)
    return slow, other


def pressure(folder: Path, host: str, ahead_ns: int, span: tuple[int, int],
             busy: Sequence[tuple[int, int]]) -> None:  # fmt: skip
    """Readings of a host on its own clock; its tasks wait for a CPU in ``busy`` alone."""
    path = folder / "tracekit-capture" / host / "pressure.txt"
    path.parent.mkdir(parents=True)
    lines, waited_us = [], 0
    for at in range(span[0] - 2 * 10**9, span[1] + 2 * 10**9, READ_NS):
        inside_ns = sum(max(0, min(at, b) - max(at - READ_NS, a)) for a, b in busy)
        waited_us += inside_ns * 9 // 10_000
        lines.append(rfc3339(at + ahead_ns))
        lines.append(f"/proc/pressure/cpu:some avg10=0.00 avg60=0.00 avg300=0.00 total={waited_us}")
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.slow  # that a late host's counters are read at its steps is in test_hosts_end_to_end
def test_pressure_is_held_against_the_steps_that_were_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "job"
    slow, other = job(folder, monkeypatch)
    traces = sorted(folder.glob("*.json.gz"))
    ranks = scenario.prepare(Request()).plan.topology.ranks_of_host(other)
    # Steps as the host with the right clock has them: collectives end them everywhere at once.
    of_other = [t for t in traces if int(t.name.removeprefix("rank").split(".")[0]) in ranks]
    with api.ingest(of_other, run=tmp_path / "alone", workers=1) as run:
        spans = run.sql(
            "SELECT step, min(start_ns) AS first, max(end_ns) AS last FROM step "
            "GROUP BY step ORDER BY step"
        ).rows()
    late = {step for step, _, _ in spans[SLOW]}
    whole = spans[0][1], spans[-1][2]
    for name, busy in (("then", spans[SLOW]), ("later", spans[8:12])):
        given = tmp_path / name
        given.mkdir()
        for trace in traces:
            (given / trace.name).symlink_to(trace)
        pressure(given, slow, AHEAD_NS, whole, [(a, b) for _, a, b in busy])
        pressure(given, other, 0, whole, [])
        with api.ingest([given], run=tmp_path / f"run-{name}", workers=1) as run:
            rows = run.query("host_pressure_steps").to_dicts()
            findings = run.diagnose().document.findings
        shares = {r["step"]: r["some_ratio"] for r in rows if r["host"] == slow}
        assert len(shares) == 12
        waited = {step for step, share in shares.items() if share > 0.45}
        assert waited == (late if name == "then" else {step for step, _, _ in spans[8:12]})
        named = [f.scope.hosts for f in findings if f.rule == "cpu-throttled"]
        assert named == ([(slow,)] if name == "then" else [])
