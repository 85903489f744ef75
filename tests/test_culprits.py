"""Real jobs with known culprits, and healthy ones: who is named, and who is not."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import samples

import tracekit
from soaks import soak
from tracekit.findings import Finding
from tracekit.report import Report
from tracekit.whatif import parse_remove

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "fixtures" / "recorded"
SHARED = next((p for p in (ROOT / ".." / "shared" / "data", ROOT / ".." / ".." / "shared" / "data")
               if p.is_dir()), None)  # fmt: skip
BLAMING = ("late-rank", "slow-gpu", "slow-host", "link-degraded", "packet-loss",
           "collective-mismatch", "collective-hang")  # fmt: skip
MS = 1_000_000


def sample(name: str) -> Path:
    """A real sample, outside the repository."""
    if SHARED is None or not (SHARED / name).is_dir():
        pytest.skip(f"the sample {name} is not here")
    return SHARED / name


def blamed(path: Path) -> dict[str, Finding]:
    """Findings of the rules that blame somebody, by id."""
    with tracekit.open(path) as run:
        return of(run.diagnose())


def of(report: Report) -> dict[str, Finding]:
    return {f.id: f for f in report.findings if f.rule in BLAMING}


def copied(
    source: Path, target: Path, shifts_ns: Mapping[int, int], keep: set[int] | None = None
) -> Path:
    """Copies of the traces, each on a host of its own, with some clocks shifted."""
    target.mkdir()
    for path in sorted(source.glob("*.json.gz")):
        if "switch" in path.name:
            continue
        trace = json.loads(gzip.decompress(path.read_bytes()))
        rank = trace["distributedInfo"]["rank"]
        if keep is not None and rank not in keep:
            continue
        shift = shifts_ns.get(rank, 0)
        if "baseTimeNanoseconds" in trace:
            trace["baseTimeNanoseconds"] += shift
        else:
            for event in trace["traceEvents"]:
                if "ts" in event:
                    event["ts"] += shift // 1000
        trace["host_name"] = f"node{rank}"
        data = gzip.compress(json.dumps(trace).encode(), 1)
        (target / f"rank{rank}.pt.trace.json.gz").write_bytes(data)
    return target


def test_megatron_names_ranks_0_and_6_and_their_hosts() -> None:
    path = sample("kineto/megatron-tp8")
    found = of(samples.diagnosis(path))
    assert set(found) == {"late-rank/0", "late-rank/6", "slow-host/0", "slow-host/6"}
    assert found["late-rank/0"].explained_by == ("slow-host/0",)
    with samples.opened(path) as run:
        asked = ("rank=0,6", "rank=0", "rank=6", "slow-host/6", "slow-host/0")
        costs = run.whatif([parse_remove(text) for text in asked]).causes
    # All hosts are slow: that comes first, and the two that the others wait for most after it.
    verdict = samples.diagnosis(path).document.verdict
    assert (verdict.kind, verdict.finding) == ("configuration", "launch-bound/all")
    assert "work for 582 to 614 ms of the 603 ms step, and the GPUs wait" in verdict.sentence
    # One number: all eight hosts launch for 580 to 613 ms of the 603 ms step. Without the two the
    # step stays as long, and had they taken no time at all it would be 17 ms shorter.
    assert {c.saved_s_per_step for c in costs} == {f.impact.s_per_step for f in found.values()}
    assert {c.saved_s_per_step for c in costs} == {0}
    bounds: list[tuple[str | None, float | None, float | None]]
    bounds = [(c.method, c.low_s_per_step, c.high_s_per_step) for c in costs]
    bounds += [
        (i.method, i.low_s_per_step, i.high_s_per_step) for i in (f.impact for f in found.values())
    ]
    for method, low_s, high_s in bounds:
        assert method == "replay"
        assert (low_s, high_s) == pytest.approx((0, 0.01743), abs=1e-5)
    for rank, waited in ((0, 0.1534), (6, 0.1352)):  # what others wait for each is said too
        against = found[f"slow-host/{rank}"].counter_evidence
        assert [e.value for e in against] == pytest.approx([waited], abs=1e-4)
    with samples.opened(path) as run:
        skew = run.query("collective_skew")
        rows = {r["rank"]: r for r in run.query("straggler").to_dicts()}
    assert len(skew) == 84
    assert skew["skew_ns"].median() == 2_785_000
    assert skew["skew_ns"].quantile(0.95, "linear") == pytest.approx(18_469_500)
    assert skew["skew_ns"].sum() == 446_708_000
    assert skew["shortest_ns"].sum() == 50_099_000
    for rank, seconds in ((0, 1.53), (6, 1.22), (2, 0.17)):
        assert rows[rank]["inflicted_wait_ns"] / 1e9 == pytest.approx(seconds, rel=0.01)
    for rank, peer, compute in ((0, 2.40, 0.996), (6, 2.36, 1.013)):
        assert rows[rank]["peer_ratio"] == pytest.approx(peer, abs=0.005)
        assert rows[rank]["compute_ratio"] == pytest.approx(compute, abs=0.0006)


def test_a_hot_expert_makes_its_rank_late_and_neither_gpu_nor_link_is_blamed() -> None:
    """The queue towards host 1 is long there, and nothing is dropped."""
    report = samples.diagnosis(sample("lab/moe-hot-expert-rank1"))
    found = of(report)
    assert set(found) == {"late-rank/1"}
    assert found["late-rank/1"].severity == "major"
    cost = report.findings[0].impact
    # Its healthy twin (lab/moe-healthy) takes 127 ms less: experts and transfers dealt out evenly.
    assert cost.s_per_step == pytest.approx(0.127, rel=0.25)
    assert cost.method == "replay"


@pytest.mark.slow  # the pair of a starved link stays in test_twins.py
def test_behind_a_bad_link_its_port_is_blamed_and_not_the_rank() -> None:
    path = sample("lab/ddp-badlink-host1")
    report = samples.diagnosis(path)
    found = of(report)
    assert set(found) == {"packet-loss/1", "late-rank/1"}
    loss = found["packet-loss/1"]
    assert loss.scope.links == ("switch:lv1",)
    assert loss.scope.hosts == ("host1",)
    assert loss.confidence.level == "likely"  # the port's counters and the ragged ends agree
    # The healthy job (lab/ddp-healthy) takes 337 ms less a step.
    assert loss.severity == "critical"
    assert loss.impact.s_per_step == pytest.approx(0.337, rel=0.25)
    assert loss.impact.method == "counter share"
    queries = {e.query for e in loss.evidence}
    assert queries == {"port_counters", "exit_lateness", "port_levels"}  # drops, ends, its shaper
    assert found["late-rank/1"].explained_by == ("packet-loss/1",)
    assert report.verdict.finding == "packet-loss/1"
    with samples.opened(path) as run:
        assert len(run.sql("SELECT * FROM clock_offset")) == 0
        assert run.sql("SELECT max(abs(offset_ns)) AS most FROM source_context")["most"][0] == 0
        dropped = run.query("port_counters").filter(counter="tx_queue_dropped_packets")
    assert dict(dropped.select("port", "total_growth").iter_rows()) == {
        "lv0": 0, "lv1": 1644, "lv2": 0, "lv3": 0,
    }  # fmt: skip


@pytest.mark.slow  # the job above once more, with less
def test_without_the_switch_both_ends_of_the_link_are_told(tmp_path: Path) -> None:
    source = sample("lab/ddp-badlink-host1")
    target = tmp_path / "traces"
    target.mkdir()
    for path in source.glob("*"):
        if "switch" not in path.name:
            (target / path.name).write_bytes(path.read_bytes())
    found = blamed(target)
    assert set(found) == {"link-degraded/2-1", "late-rank/1"}
    link = found["link-degraded/2-1"]
    assert (link.scope.ranks, link.candidates.ranks) == ((), (1, 2))
    assert link.confidence.level == "possible"
    # The healthy job (lab/ddp-healthy) takes 337 ms less a step.
    assert link.impact.s_per_step == pytest.approx(0.337, rel=0.25)
    assert found["late-rank/1"].explained_by == ("link-degraded/2-1",)


@pytest.mark.slow  # with shifted clocks it stays, below
def test_on_a_healthy_job_of_three_axes_nobody_is_accused() -> None:
    assert of(samples.diagnosis(sample("lab/pp2dp2tp2-healthy"))) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shifts_ms"),
    soak(
        [
            ("lab/ddp-badlink-host1", {1: -1000}),
            ("lab/ddp-badlink-host1", {2: 50}),
            ("lab/fsdp-healthy", {0: 50}),
            ("lab/pp2dp2tp2-healthy", {5: 50, 2: -50}),
            ("kineto/megatron-tp8", {3: 50, 6: -50}),
        ],
        fast=[("lab/pp2dp2tp2-healthy", {5: 50, 2: -50})],
    ),
)
def test_shifted_clocks_are_found_within_the_stated_error(
    name: str, shifts_ms: dict[int, int], tmp_path: Path
) -> None:
    shifts = {rank: ms * MS for rank, ms in shifts_ms.items()}
    path = copied(sample(name), tmp_path / "shifted", shifts)
    with tracekit.open(path) as run:
        rows = run.sql(
            "SELECT rank, o.offset_ns, o.error_ns FROM clock_offset o"
            " JOIN source_context USING (clock_id)"
        ).to_dicts()
        (reference,) = set(
            run.sql(
                "SELECT rank FROM source_context"
                " WHERE clock_id IN (SELECT reference_clock_id FROM clock_offset)"
            )["rank"]
        )
    assert rows
    for row in rows:
        truth = shifts.get(reference, 0) - shifts.get(row["rank"], 0)
        assert row["error_ns"] is not None
        assert abs(row["offset_ns"] - truth) <= row["error_ns"]


@pytest.mark.slow  # megatron once more; shifted clocks of a lab job stay
def test_where_clocks_are_not_sure_nobody_is_accused(tmp_path: Path) -> None:
    path = copied(sample("lab/ddp-healthy"), tmp_path / "shifted", {1: 50 * MS, 3: -50 * MS})
    assert blamed(path) == {}


@pytest.mark.slow  # megatron once more; half a file and a file less of small jobs stay, below
@pytest.mark.parametrize("missing", [0, 3, 6])
def test_without_one_file_nobody_is_blamed_for_the_absent(missing: int, tmp_path: Path) -> None:
    keep = set(range(8)) - {missing}
    found = blamed(copied(sample("kineto/megatron-tp8"), tmp_path / "part", {}, keep))
    if missing in (0, 6):
        (finding,) = found.values()
        assert finding.candidates.ranks == (missing,)
        assert finding.scope.ranks == ()
    else:
        # Every call lacks a member. Own time and the others' waiting still tell the two apart from
        # the rest, rank 2 among it, which is slower than most and behind both.
        assert {f.scope.ranks for f in found.values()} == {(0,), (6,)}


MAIMED = {
    "kineto/megatron-tp8": {0, 6},
    "lab/moe-hot-expert-rank1": {1},
    "lab/ddp-badlink-host1": {1},
    "ddp-slow-rank": {2},
    "ddp-dataloader-stall": {1},
    "ddp-gc-pause": {3},
    "pp-uneven-stages": {3},
}
"""Jobs, and the ranks that may be accused in them."""


def maimed(source: Path, target: Path, number: int, way: str) -> Path:
    """A copy of the traces without one file, half of its bytes, or half of its events."""
    target.mkdir()
    traces = sorted(p for p in source.glob("*.json.gz") if "switch" not in p.name)
    for index, path in enumerate(traces):
        text = gzip.decompress(path.read_bytes())
        if index == number and way == "without":
            continue
        if index == number and way == "first half":
            text = text[: len(text) // 2]
        if index == number and way == "later half":
            trace = json.loads(text)
            timed = [e for e in trace["traceEvents"] if e.get("ph") == "X"]
            middle = sorted(float(e["ts"]) for e in timed)[len(timed) // 2]
            trace["traceEvents"] = [
                e for e in trace["traceEvents"] if e.get("ph") != "X" or float(e["ts"]) >= middle
            ]
            text = json.dumps(trace).encode()
        (target / path.name).write_bytes(gzip.compress(text, 1))
    return target


WAYS = ("without", "first half", "later half")
HALVED = ("kineto/megatron-tp8", "lab/moe-hot-expert-rank1", "ddp-slow-rank")
"""Those of which halves are tried too, by turns: each rank one way, every rank of the last all."""


def ways(name: str, rank: int) -> tuple[str, ...]:
    """How a job's file of a rank is maimed."""
    if name == HALVED[-1]:
        return WAYS
    # Megatron without ranks 0, 3 or 6 stands above.
    return (WAYS[(rank + 1) % len(WAYS)],) if name in HALVED else WAYS[:1]


@pytest.mark.parametrize(
    ("name", "number", "way"),
    soak(
        [
            (name, rank, way)
            for name in MAIMED
            for rank in range(8 if name.startswith("kineto") else 4)
            for way in ways(name, rank)
        ],
        fast=[
            ("ddp-slow-rank", 2, "first half"),
            ("pp-uneven-stages", 1, "without"),
        ],
    ),
)
def test_a_file_or_half_of_one_less_never_accuses_the_innocent(
    name: str, number: int, way: str, tmp_path: Path
) -> None:
    """Confidence and coverage may go; nobody is named who is not at fault, and none is hidden."""
    source = sample(name) if "/" in name else RECORDED / name
    with tracekit.open(maimed(source, tmp_path / "maimed", number, way)) as run:
        document = run.diagnose().document
    right = MAIMED[name]
    blamed_ranks = {r for f in document.findings if f.rule in BLAMING for r in f.scope.ranks}
    assert blamed_ranks <= right
    suspected = [f.candidates.ranks for f in document.findings if f.rule in BLAMING]
    assert all(set(ranks) & right for ranks in suspected if ranks)
    if way == "without":
        assert document.coverage.ranks_traced == (7 if name.startswith("kineto") else 3)
        assert not blamed_ranks & {number}
    else:
        assert document.coverage.ranks_traced == (8 if name.startswith("kineto") else 4)
    assert document.verdict.kind not in ("inherent", "hang")
