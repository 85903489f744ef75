"""Measurements and replays on simulated jobs, against what the simulator did.

The simulator shares no code with derivation, queries, replay and expectation. Its truth is on
its own clock: the files have other clocks.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import polars as pl
import pytest

from tracekit import api, replays
from tracekit.errors import UsageError
from tracekit.simulate import Request, prepare, write
from tracekit.whatif import CollectivesWhatIf, WhatIf, parse_remove

STEPS = 4


def true_bubbles(request: Request) -> dict[tuple[int, int], float]:
    """Idle over window by (stage, step), mean over replicas: from kernels inside named ranges."""
    scenario = prepare(request)
    layout = scenario.plan.layout
    spans: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    busy: dict[tuple[int, int, int], int] = defaultdict(int)
    for records in scenario.job().run():
        for record in records:
            place = layout.coordinates(record.rank)
            ranges = [
                (h[2], h[2] + h[3])
                for h in record.host
                if h[0] == "user_annotation"
                and (str(h[1]).startswith("PP:") or h[1] in ("forward", "backward"))
            ]
            for o in record.operations:
                if o.transfer is not None or o.spec.kind != "kernel":
                    continue
                if any(start <= o.launch < end for start, end in ranges):
                    spans[place["dp"], record.step].append((o.start, o.end))
                    busy[place["dp"], place["pp"], record.step] += o.end - o.start
    ratios: dict[tuple[int, int], list[float]] = defaultdict(list)
    for (replica, stage, step), ns in busy.items():
        own = spans[replica, step]
        window = max(end for _, end in own) - min(start for start, _ in own)
        ratios[stage, step].append(1 - ns / window)
    return {key: fmean(values) for key, values in ratios.items()}


@pytest.mark.parametrize(
    "layout",
    ["pp4-m8-gpipe-megatron", "pp4-m8-1f1b-titan", "pp2-vpp2-m8-titan", "pp4-zbh1-m8-titan"],
)
def test_the_bubble_is_the_simulators(layout: str, tmp_path: Path) -> None:
    request = Request(ranks=8, seed=3, layout=layout, steps_count=STEPS, decoys=())
    write(request, tmp_path / "job")
    with api.open(tmp_path / "job") as run:
        seen = run.query("bubble").group_by("stage", "step").agg(pl.col("bubble_ratio").mean())
    measured = {(r["stage"], r["step"]): r["bubble_ratio"] for r in seen.to_dicts()}
    truth = true_bubbles(request)
    assert measured.keys() == truth.keys()
    for key, value in truth.items():
        assert measured[key] == pytest.approx(value, abs=0.01), key


@pytest.mark.parametrize("layout", ["pp4-m8-gpipe-megatron", "pp2-vpp2-m8-titan"])
def test_operations_of_a_device_pipeline_are_whole_and_replayed(
    layout: str, tmp_path: Path
) -> None:
    """A send for every receive, though kernels run long after the host asked for them."""
    write(Request(ranks=8, seed=3, layout=layout, steps_count=STEPS, decoys=()), tmp_path / "job")
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
    assert isinstance(found, WhatIf)
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


@pytest.mark.parametrize(("fault", "layout", "ranks"), TWINS)
def test_the_replay_without_the_culprit_is_the_twin(
    fault: str, layout: str, ranks: int, tmp_path: Path
) -> None:
    """Within 3 % of the step of the same job and seed without the fault."""
    request = Request(
        scenario=fault, ranks=ranks, seed=5, layout=layout, steps_count=6, decoys=(), nccl="none"
    )
    truth: dict[str, Any] = write(request, tmp_path / "job")
    culprits = [r for f in truth["faults"] for r in f["where"]["ranks"]]
    cause = parse_remove("rank=" + ",".join(map(str, culprits)))
    with api.open(tmp_path / "job") as run:
        found = replays.replay_of_calls(run.con).analyse([cause])
        named = run.whatif([cause]).causes[0]
        straggler = run.query("straggler")
    assert found.refused is None
    assert found.simulation_error_ratio < 0.001
    twin_s = truth["measured"]["step_s_without_fault"]
    with_s = truth["measured"]["step_s_with_fault"]
    assert found.t_base_s == pytest.approx(with_s, rel=0.01)
    assert found.causes[0].t_s == pytest.approx(twin_s, rel=0.03)
    assert named == found.causes[0]
    if len(culprits) == 1:
        worst = max(found.slowdown_by_rank, key=lambda r: found.slowdown_by_rank[r])
        assert worst in culprits
        ratios = dict(straggler.select("rank", "slowdown_ratio").iter_rows())
        assert max(ratios, key=lambda r: ratios[r]) in culprits


@pytest.mark.parametrize("layout", ["ddp", "tp4-sp-m2"])
def test_a_link_that_all_use_is_not_priced(layout: str, tmp_path: Path) -> None:
    """Every ring between the hosts passes the slow NIC: no call says what it should take."""
    request = Request(
        scenario="link-degraded", ranks=8, seed=5, layout=layout, steps_count=STEPS, decoys=(),
        nccl="none",
    )  # fmt: skip
    write(request, tmp_path / "job")
    with api.open(tmp_path / "job") as run, pytest.raises(UsageError, match="no equal"):
        run.whatif([parse_remove("link=1")])


def test_a_healthy_job_has_no_straggler(tmp_path: Path) -> None:
    request = Request(ranks=8, seed=9, layout="fsdp", steps_count=6, decoys=())
    write(request, tmp_path / "job")
    with api.open(tmp_path / "job") as run:
        found = run.whatif()
    assert isinstance(found, CollectivesWhatIf)
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
HALVES = (("tp", "all_gather"), ("tp", "reduce_scatter"))
SENDS, RING, TOKENS = ("pp", "send"), ("cp", "send"), ("ep", "all_to_all")


@pytest.mark.parametrize(
    ("layout", "ranks", "kinds"),
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
        ("cp2-fsdp", 8, (GATHER, SCATTER, RING)),
        ("tp2-cp2-pp2-m4", 8, (REDUCE, RING, SENDS, ("tp", "all_reduce"))),
        ("tp2-sp-pp2-m4-fsdp", 16, (GATHER, SCATTER, *HALVES, SENDS)),
    ],
)
def test_traffic_is_the_simulators_and_the_layouts(
    layout: str, ranks: int, kinds: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    """Observed bytes are the simulator's, and each family's what the layout needs.

    Within 5 %: the simulator has one embedding and never gathers it anew. It leaves it out
    between replicas, too: an eighth of what they share.
    """
    request = Request(ranks=ranks, seed=4, layout=layout, steps_count=STEPS, decoys=())
    write(request, tmp_path / "job")
    with api.open(tmp_path / "job") as run:
        rows = run.query("traffic").to_dicts()
    seen = sum(r["bytes_per_step"] * r["ranks_count"] / request.ranks for r in rows)
    assert seen == pytest.approx(true_bytes(request), rel=0.001)
    ratios = {(r["group_kind"], r["op"]): r["observed_ratio"] for r in rows}
    assert {k for k, r in ratios.items() if r is not None} - {("embedding", "all_reduce")} == set(
        kinds
    )
    for key in kinds:
        assert ratios[key] == pytest.approx(1, abs=0.14 if key[0] == "dp_replicate" else 0.05), key
