"""Measurements and replays on simulated jobs, against what the simulator did.

The simulator shares no code with derivation, queries, replay and expectation. Its truth is on
its own clock: the files have other clocks.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import polars as pl
import pytest

from soaks import soak
from tracekit import api, replays
from tracekit.errors import UsageError
from tracekit.simulate import Request, prepare, write
from tracekit.whatif import parse_remove

STEPS = 2
Written = Callable[[Request], tuple[Path, Any]]
"""Writes a job, once for all who ask for it: its folder, and its truth."""


def traces(**request: Any) -> Request:
    """A job of which only traces are written."""
    return Request(**{"decoys": (), "nccl": "none", "counters": "none", **request})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A job's folder and its truth, once for all tests that ask for it and leave it as it is."""

    @functools.cache
    def write_once(request: Request) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp("job") / "job"
        return folder, write(request, folder)

    return write_once


def true_bubbles(request: Request) -> dict[tuple[int, int], float]:
    """Idle over window by (stage, step), mean over replicas.

    A stage is idle while none of its operations is under way: an operation lasts from the first
    to the last kernel of its range, and what it waits for in between (tensor parallelism, gathers,
    launches) is part of it, as it is of the F and B of every published formula.
    """
    scenario = prepare(request)
    layout = scenario.plan.layout
    spans: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    busy: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for records in scenario.job().run():
        for record in records:
            place = layout.coordinates(record.rank)
            launches = sorted(
                (o.launch, o.start, o.end)
                for o in record.operations
                if o.transfer is None and o.spec.kind == "kernel"
            )
            took = 0
            for h in record.host:
                name = str(h[1])
                if h[0] != "user_annotation" or not (
                    name.startswith("PP:") or name in ("forward", "backward", "weight_grad")
                ):
                    continue
                own = [o for o in launches if h[2] <= o[0] < h[2] + h[3]]
                span = min(start for _, start, _ in own), max(end for *_, end in own)
                spans[place["dp"], record.step].append(span)
                took += span[1] - span[0]
            busy[place["dp"], place["pp"], record.step].append(took)
    ratios: dict[tuple[int, int], list[float]] = defaultdict(list)
    for (replica, stage, step), times in busy.items():
        whole = spans[replica, step]
        window = max(end for _, end in whole) - min(start for start, _ in whole)
        ratios[stage, step].append(1 - fmean(times) / window)
    return {key: fmean(values) for key, values in ratios.items()}


SCHEDULES = [
    "pp4-m8-gpipe-megatron",
    "pp4-m8-1f1b-titan",
    "pp2-vpp2-m8-titan",
    "pp4-zbh1-m8-titan",
    "pp4-zbh1-m8-megatron",
]


def test_stages_without_a_device_are_balanced_where_the_layout_is(tmp_path: Path) -> None:
    """Backwards on a thread of their own: what they wait for is no computation of the stage."""
    request = Request(
        ranks=4, seed=3, layout="pp4-m8", style="gloo", steps_count=2, decoys=(), nccl="none"
    )
    write(request, tmp_path / "job")
    with api.open(tmp_path / "job") as run:
        ratios = run.query("stage_balance")["compute_ratio"]
    assert len(ratios) == 4
    assert ratios.to_list() == pytest.approx([1.0] * 4, abs=0.05)


@pytest.mark.parametrize(
    "layout",
    soak(
        [
            *SCHEDULES,
            *(f"{SCHEDULES[i]}-fsdp" for i in (1, 2, 4)),
            "tp2-sp-pp2-m8-fsdp",
            "ep2-pp2-m4",
        ],
        fast=["pp4-zbh1-m8-titan"],
    ),
)
def test_the_bubble_is_the_simulators(layout: str, written: Written) -> None:
    request = traces(ranks=8, seed=3, layout=layout, steps_count=2)
    folder, _ = written(request)
    with api.open(folder) as run:
        seen = run.query("bubble").group_by("stage", "step").agg(pl.col("bubble_ratio").mean())
    measured = {(r["stage"], r["step"]): r["bubble_ratio"] for r in seen.to_dicts()}
    truth = true_bubbles(request)
    assert measured.keys() == truth.keys()
    for key, value in truth.items():
        assert measured[key] == pytest.approx(value, abs=0.001), key


def without_names(folder: Path) -> None:
    """Take the ranges of microbatches out of a job's traces."""
    named = re.compile(r"PP:.*|forward|backward|weight_grad")
    for path in folder.glob("*.pt.trace.json.gz"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        kept = [
            e
            for e in document["traceEvents"]
            if not ("annotation" in str(e.get("cat")) and named.fullmatch(str(e.get("name"))))
        ]
        assert len(kept) < len(document["traceEvents"])
        document["traceEvents"] = kept
        path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))


@pytest.mark.parametrize(
    ("layout", "says"),
    soak(
        [
            ("pp4-m8-gpipe-megatron", None),
            ("pp4-m8-1f1b-titan", None),
            ("pp4-zbh1-m8-titan", "belongs to neither|different numbers|one kind"),
            ("pp2-vpp2-m8-titan", " 0 can be told apart"),
            ("cp2-fsdp", "ring|first differs|do not come in pairs"),
        ],
        fast=[("pp4-m8-1f1b-titan", None)],
    ),
)
def test_microbatches_that_nobody_named(layout: str, says: str | None, tmp_path: Path) -> None:
    """The same bubble as with names where messages tell; where they do not, nothing."""
    request = traces(ranks=8, seed=3, layout=layout, steps_count=2)
    write(request, tmp_path / "job")
    if "pp" in layout:
        without_names(tmp_path / "job")
    with api.open(tmp_path / "job") as run:
        seen = run.query("bubble").group_by("stage", "step").agg(pl.col("bubble_ratio").mean())
        operations = run.sql("SELECT count(*) FROM pipeline_op").item()
        notes = [n for n in run.run.manifest.notes if "pipeline" in n]
    if says is None:
        measured = {(r["stage"], r["step"]): r["bubble_ratio"] for r in seen.to_dicts()}
        truth = true_bubbles(request)
        assert measured.keys() == truth.keys()
        for key, value in truth.items():
            assert measured[key] == pytest.approx(value, abs=0.01), key
        assert any("the traces name none" in n for n in notes)
    else:
        assert operations == 0
        assert re.search(says, " ".join(notes)), notes


def without_peers(folder: Path) -> None:
    """Take out of a job's traces with whom messages were exchanged, and in which groups."""
    for path in folder.glob("*.pt.trace.json.gz"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        document["distributedInfo"].pop("pg_config")
        cut_count = 0
        for event in document["traceEvents"]:
            args = event.get("args") or {}
            cut_count += args.pop("Src Rank", None) is not None
            args.pop("Dst Rank", None)
        assert cut_count
        path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))


@pytest.mark.parametrize(
    ("layout", "says"),
    soak(
        [
            ("pp4-m8-gpipe-megatron", None),
            ("pp4-m8-1f1b-titan", None),
            ("pp2-vpp2-m8-titan", "their pattern is not that of one pipeline"),
        ],
        fast=[("pp4-m8-1f1b-titan", None)],
    ),
)
@pytest.mark.slow  # another job through the same lines
def test_stages_of_messages_that_do_not_say_with_whom(
    layout: str, says: str | None, tmp_path: Path
) -> None:
    request = traces(ranks=4, seed=3, layout=layout, steps_count=2)
    write(request, tmp_path / "job")
    without_names(tmp_path / "job")
    without_peers(tmp_path / "job")
    with api.open(tmp_path / "job") as run:
        seen = run.query("bubble").group_by("stage", "step").agg(pl.col("bubble_ratio").mean())
        places = run.sql("SELECT DISTINCT rank, pp_rank FROM pipeline_op ORDER BY rank")
        notes = [n for n in run.run.manifest.notes if "pipeline" in n]
    if says is not None:
        assert places.is_empty()
        assert says in " ".join(notes)
        return
    assert places.rows() == [(rank, rank) for rank in range(4)]
    truth = true_bubbles(request)
    measured = {(r["stage"], r["step"]): r["bubble_ratio"] for r in seen.to_dicts()}
    assert measured == pytest.approx(truth, abs=0.01)


@pytest.mark.parametrize(
    "layout", soak(["pp4-m8-gpipe-megatron", "pp2-vpp2-m8-titan"], fast=["pp2-vpp2-m8-titan"])
)
def test_operations_of_a_device_pipeline_are_whole_and_replayed(
    layout: str, tmp_path: Path
) -> None:
    """A send for every receive, though kernels run long after the host asked for them."""
    write(traces(ranks=8, seed=3, layout=layout, steps_count=STEPS), tmp_path / "job")
    with api.open(tmp_path / "job") as run:
        rows = run.sql("SELECT operation, count(*) AS n FROM pipeline_op GROUP BY ALL")
        found = run.whatif()
    counts = dict(rows.iter_rows())
    chunks = 2 if "vpp2" in layout else 1
    stages = 4 if "pp4" in layout else 2
    edges = (stages * chunks - 1) * (8 // stages)  # boundaries of a microbatch, all replicas
    assert counts == {
        "forward-compute": STEPS * 8 * 8 * chunks,
        "backward-compute": STEPS * 8 * 8 * chunks,
        **{
            f"{way}-{side}": STEPS * 8 * edges
            for way in ("forward", "backward")
            for side in ("send", "recv")
        },
    }
    assert found.method == "pipeline"
    assert found.simulation_error_ratio < 0.01


TWINS = [
    ("slow-gpu", "ddp", 8),
    ("slow-gpu", "fsdp", 16),
    ("slow-gpu:1.12", "zero1", 8),
    ("slow-gpu", "hsdp2", 8),
    ("slow-gpu", "ep8", 8),
    ("slow-gpu", "cp2", 8),
    ("slow-gpu", "pp4-m8-gpipe", 8),
    ("slow-gpu", "pp4-zbh1-m8-titan", 8),
    ("slow-host", "fsdp", 8),
    ("slow-host", "tp8-sp", 8),
    ("slow-host", "tp2", 8),
    ("slow-host", "tp2-pp2-m4", 8),
    ("dataloader-stall:0.06", "ddp", 8),
    ("dataloader-stall", "pp2-vpp2-m8-titan", 8),
    ("gc-pause:0.25", "tp2-fsdp", 8),
    ("allocator-stall", "ddp", 8),
    ("checkpoint-stall", "zero1", 8),
]


@pytest.mark.parametrize(
    ("fault", "layout", "ranks"),
    soak(
        TWINS,
        fast=[("allocator-stall", "ddp", 8)],
    ),
)
@pytest.mark.slow  # another job through the same lines
def test_the_replay_without_the_culprit_is_the_twin(
    fault: str, layout: str, ranks: int, written: Written
) -> None:
    """Within 3 % of the step of the same job and seed without the fault."""
    folder, truth = written(
        traces(scenario=fault, ranks=ranks, seed=5, layout=layout, steps_count=6)
    )
    culprits = [r for f in truth["faults"] for r in f["where"]["ranks"]]
    cause = parse_remove("rank=" + ",".join(map(str, culprits)))
    with api.open(folder) as run:
        found = replays.replay_of_calls(run.con).analyse([cause])
        with pytest.MonkeyPatch.context() as patch:  # as of a large job
            patch.setattr(replays, "MANY_OPERATIONS", 1)
            assert replays.replay_of_calls(run.con).analyse([cause]).causes == found.causes
        named = run.whatif([cause]).causes[0]
        slowdowns = run.whatif().slowdown_by_rank
        straggler = run.query("straggler")
    assert found.refused is None
    assert found.simulation_error_ratio < 0.001
    twin_s = truth["measured"]["step_s_without_fault"]
    with_s = truth["measured"]["step_s_with_fault"]
    assert found.t_base_s == pytest.approx(with_s, rel=0.01)
    assert found.causes[0].t_s == pytest.approx(twin_s, rel=0.03)
    # Where diagnose names the culprit this is that finding's cost, and as near.
    assert named.t_s == pytest.approx(twin_s, abs=0.03 * with_s)
    if len(culprits) == 1:
        worst = max(found.slowdown_by_rank, key=lambda r: found.slowdown_by_rank[r])
        assert worst in culprits
        ratios = dict(straggler.select("rank", "slowdown_ratio").iter_rows())
        assert ratios == slowdowns
        assert max(ratios, key=lambda r: ratios[r]) in culprits


@pytest.mark.parametrize("layout", soak(["ddp", "tp4-sp-m2", "tp2-fsdp"], fast=["ddp"]))
def test_a_slow_link_is_priced_where_others_do_the_same(layout: str, tmp_path: Path) -> None:
    """Groups of other ranks say what its transfers should take; where all pass the slow NIC, none.

    With tensor parallelism four data-parallel rings go between the hosts, and one has the slow NIC.
    """
    request = traces(scenario="link-degraded", ranks=8, seed=5, layout=layout, steps_count=2)
    truth: dict[str, Any] = write(request, tmp_path / "job")
    (culprit,) = truth["faults"][0]["where"]["ranks"]
    with api.open(tmp_path / "job") as run:
        if layout == "ddp":
            with pytest.raises(UsageError, match="no equal"):
                run.whatif([parse_remove(f"link={culprit}")])
            return
        found = run.whatif([parse_remove(f"link={culprit}")])
    twin_s = truth["measured"]["step_s_without_fault"]
    assert found.causes[0].t_s == pytest.approx(twin_s, rel=0.03)
    assert found.causes[0].t_s < 0.6 * found.t_base_s


@pytest.mark.parametrize(
    ("fault", "layout"),
    soak(
        [
            # Jobs of TWINS, but for the healthy one.
            ("slow-gpu", "pp4-m8-gpipe"),
            ("dataloader-stall:0.06", "ddp"),
            ("gc-pause:0.25", "tp2-fsdp"),
            ("checkpoint-stall", "zero1"),
            ("slow-host", "fsdp"),
            ("none", "ep8"),
        ],
        fast=[("none", "ep8")],
    ),
)
def test_the_budget_sums_and_the_culprit_is_priced_as_it_cost(
    fault: str, layout: str, written: Written
) -> None:
    """The parts are the median rank's step; the culprit's is what the twin did not take."""
    folder, truth = written(traces(scenario=fault, ranks=8, seed=5, layout=layout, steps_count=6))
    with api.open(folder) as run:
        document = run.diagnose().document
        means = run.sql(
            "SELECT rank, mean_ns FROM (SELECT rank, avg(dur_ns) AS mean_ns FROM step"
            " WHERE NOT coalesce(is_warmup, false) AND NOT coalesce(is_partial, false)"
            " GROUP BY rank) ORDER BY rank"
        )["mean_ns"].to_list()
    total = sum(p.s_per_step for p in document.step_budget)
    assert min(means) / 1e9 <= total + 1e-9
    assert total - 1e-9 <= max(means) / 1e9
    assert all(p.s_per_step >= 0 for p in document.step_budget)
    if fault in ("none", "slow-host"):  # ranks of a slow host are priced apart
        return
    cause = next(f for f in document.findings if f.id == document.verdict.finding)
    assert cause.rule == fault.partition(":")[0]
    measured = truth["measured"]
    lost_s = measured["step_s_with_fault"] - measured["step_s_without_fault"]
    assert cause.impact.s_per_step == pytest.approx(lost_s, rel=0.05)
    assert cause.impact.gpu_hours_per_day is not None


def test_a_healthy_job_has_no_straggler(tmp_path: Path) -> None:
    request = traces(ranks=8, seed=9, layout="fsdp", steps_count=6)
    write(request, tmp_path / "job")
    with api.open(tmp_path / "job") as run:
        found = run.whatif()
    assert found.pipeline is None
    assert found.slowdown < 1.03
    assert max(found.slowdown_by_rank.values()) < 1.02


def true_bytes(request: Request) -> float:
    """What a rank sends in a step, mean over ranks, from the simulator's own records."""
    scenario = prepare(request)
    total = 0.0
    for records in scenario.job().run():
        for record in records:
            for o in record.operations:
                if o.transfer is None:
                    continue
                n = len(o.transfer.ranks)
                if not hasattr(o.spec, "op"):
                    total += o.size_bytes if o.spec.is_send else 0
                elif o.spec.op == "all_reduce":
                    total += 2 * (n - 1) / n * o.size_bytes
                else:
                    total += (n - 1) / n * o.size_bytes
    return total / request.ranks / request.steps_count


GATHER, SCATTER, REDUCE = (("dp", o) for o in ("all_gather", "reduce_scatter", "all_reduce"))
SHARDS = (GATHER, SCATTER)
EXPERTS = (("edp", "all_gather"), ("edp", "reduce_scatter"))
HALVES = (("tp", "all_gather"), ("tp", "reduce_scatter"))
SENDS, RING, TOKENS = ("pp", "send"), ("cp", "send"), ("ep", "all_to_all")


@pytest.mark.parametrize(
    ("layout", "ranks", "kinds"),
    soak(
        [
            ("ddp", 8, (REDUCE,)),
            ("zero2-m2", 8, (GATHER, SCATTER)),
            ("fsdp-m2", 8, (GATHER, SCATTER)),
            ("hsdp2-titan", 16, (GATHER, SCATTER, ("dp_replicate", "all_reduce"))),
            ("tp4-m2", 8, (REDUCE, ("tp", "all_reduce"))),
            ("tp2-sp-pp2-m4-titan", 8, (REDUCE, *HALVES, SENDS)),
            ("pp4-m8-1f1b-titan", 8, (REDUCE, SENDS)),
            ("pp2-vpp2-m8-titan", 8, (REDUCE, SENDS)),
            ("pp4-zbh1-m8-titan", 8, (REDUCE, SENDS)),
            ("zero1-pp2-m4", 8, (GATHER, SCATTER, SENDS)),
            ("ep8", 8, (REDUCE, TOKENS)),
            ("ep4", 16, (REDUCE, TOKENS, ("edp", "all_reduce"))),
            ("ep4-fsdp", 8, (*SHARDS, TOKENS, *EXPERTS)),
            ("ep4-zero1", 8, (*SHARDS, TOKENS, *EXPERTS)),
            ("hsdp2-ep2-titan", 8, (*SHARDS, TOKENS, *EXPERTS, ("dp_replicate", "all_reduce"))),
            ("hsdp2-ep4-titan", 8, (*SHARDS, TOKENS, ("dp_replicate", "all_reduce"))),
            ("hsdp2-tp2-m2", 8, (*SHARDS, ("tp", "all_reduce"), ("dp_replicate", "all_reduce"))),
            ("cp2-fsdp", 8, (GATHER, SCATTER, RING)),
            ("pp4-m8-1f1b-titan-fsdp", 8, (GATHER, SCATTER, SENDS)),
            ("tp2-cp2-pp2-m4", 8, (REDUCE, RING, SENDS, ("tp", "all_reduce"))),
            ("tp2-sp-pp2-m4-fsdp", 16, (GATHER, SCATTER, *HALVES, SENDS)),
        ],
        fast=[("tp2-sp-pp2-m4-titan", 8, (REDUCE, *HALVES, SENDS))],
    ),
)
@pytest.mark.slow  # another job through the same lines
def test_traffic_is_the_simulators_and_the_layouts(
    layout: str, ranks: int, kinds: tuple[tuple[str, str], ...], written: Written
) -> None:
    """Observed bytes are the simulator's, and each family's what the layout needs, within 5 %."""
    request = traces(ranks=ranks, seed=3, layout=layout, steps_count=2)
    folder, _ = written(request)
    with api.open(folder) as run:
        rows = run.query("traffic").to_dicts()
    seen = sum(r["bytes_per_step"] * r["ranks_count"] / request.ranks for r in rows)
    assert seen == pytest.approx(true_bytes(request), rel=0.001)
    ratios = {(r["group_kind"], r["op"]): r["observed_ratio"] for r in rows}
    assert {k for k, r in ratios.items() if r is not None} - {("embedding", "all_reduce")} == set(
        kinds
    )
    for key in kinds:
        assert ratios[key] == pytest.approx(1, abs=0.05), key
