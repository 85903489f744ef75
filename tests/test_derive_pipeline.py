"""Pipeline operations found in traces: names, stages, and the recorded fixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
import samples
from proofs import create_empty_tables
from source_tables import create_table

from soaks import soak
from tracekit.derive.operation_names import RangeName, read_name
from tracekit.derive.pipeline import derive_pipeline
from tracekit.job import JobDescription, parse_job
from tracekit.schema import table

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "fixtures" / "recorded"
LAB = ROOT.parent / "shared" / "data" / "lab"


F, B, W = "forward-compute", "backward-compute", "weight-compute"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("PP:0F3", RangeName(F, 0, 3)),
        ("PP:11B07", RangeName(B, 11, 7)),
        ("PP:1I2", RangeName(B, 1, 2)),
        ("PP:1W2", RangeName(W, 1, 2)),
        ("PP:1SEND_F0", RangeName("forward-send", 1, 0)),
        ("PP:1RECV_B3", RangeName("backward-recv", 1, 3)),
        ("Forward 7", RangeName(F, None, 7)),
        ("Backward 0", RangeName(B, None, 0)),
        ("pp_fwd mb3", RangeName(F, None, 3)),
        ("pp_bwd mb12", RangeName(B, None, 12)),
        ("forward microbatch 4", RangeName(F, None, 4)),
        ("forward-compute", RangeName(F)),
        ("backward_step", RangeName(B)),
        ("PipelineEngine._exec_forward_pass", RangeName(F)),
        ("weight_grad", RangeName(W)),
        ("weight-grad-compute", RangeName(W)),
        ("weight_grad mb3", RangeName(W, None, 3)),
        ("wgrad", RangeName(W)),
        ("Weight 7", RangeName(W, None, 7)),
        ("backward_dw", RangeName(W)),
        ("bwd_weight mb2", RangeName(W, None, 2)),
        ("TransformerLayer.backward_dw", RangeName(W)),
        ("F3.0.0", RangeName(F, None, 3)),
        ("B3.0", RangeName(B, None, 3)),
        ("BW3.0", RangeName(B, None, 3)),
        ("W12.0.0", RangeName(W, None, 12)),
        ("W12.1.0", None),
        ("W12", None),
        ("weight", None),
        ("weight_3", None),
        ("aten::weight_norm", None),
        ("clip_grad", None),
        ("PP:1UNSHARD", None),
        ("PP:0F", None),
        ("forward", RangeName("forward-compute")),
        ("## forward ##", None),
        ("autograd::engine::evaluate_function: MmBackward0", None),
        ("Optimizer.step#AdamW.step", None),
        ("backward allreduce 3 buckets", None),
    ],
)
def test_names(name: str, expected: RangeName | None) -> None:
    assert read_name(name) == expected


class Traces:
    """Source tables of a few ranks with ranges of 10 ns and steps of 1,000 ns."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.rows: dict[str, list[dict[str, Any]]] = {
            n: [] for n in ("annotation", "host_op", "gpu_op", "collective", "process_group")
        }

    def range(self, rank: int, name: str, start: int, end: int, **more: Any) -> None:
        self.rows["annotation"].append(
            {"source_id": rank, "place": len(self.rows["annotation"]), "name": name, "thread": 1,
             "start_ns": start, "dur_ns": end - start, **more}
        )  # fmt: skip

    def add(self, name: str, rank: int, /, **row: Any) -> None:
        self.rows[name].append({"source_id": rank, "place": len(self.rows[name]), **row})

    def derive(
        self, job: JobDescription | None = None, notes: list[str] | None = None
    ) -> list[dict[str, Any]]:
        context = pa.table(
            {
                "source_id": pa.array(range(self.ranks), pa.int32()),
                "attempt": pa.array([1] * self.ranks, pa.int32()),
                "rank": pa.array(range(self.ranks), pa.int32()),
                "capture_id": pa.array([0] * self.ranks, pa.int32()),
            }
        )
        steps = pa.Table.from_pylist(
            [
                {"attempt": 1, "rank": r, "capture_id": 0, "step": s, "source_id": r,
                 "start_ns": 1000 * s, "end_ns": 1000 * s + 1000}
                for r in range(self.ranks) for s in (1, 2)
            ],
            table("step").arrow_schema(),
        )  # fmt: skip
        with duckdb.connect() as con:
            create_empty_tables(con)
            for name, rows in self.rows.items():
                create_table(con, name, rows)
            found = derive_pipeline(con, context, steps, job, notes if notes is not None else [])
        listed: list[dict[str, Any]] = found.to_pylist()
        return listed


def test_a_forward_is_the_kernels_that_it_launched() -> None:
    traces = Traces(2)
    for rank in (0, 1):
        traces.range(rank, f"PP:{rank}F0", 1000, 1100)
        traces.add("gpu_op", rank, launch_start_ns=1010, start_ns=1050, dur_ns=50,
                   **{"class": "compute"})  # fmt: skip
        traces.add("gpu_op", rank, launch_start_ns=1020, start_ns=1100, dur_ns=60,
                   **{"class": "compute"})  # fmt: skip
        traces.add("gpu_op", rank, launch_start_ns=1030, start_ns=1160, dur_ns=900,
                   **{"class": "communication"})  # fmt: skip
        traces.add("gpu_op", rank, launch_start_ns=1100, start_ns=1170, dur_ns=900,
                   **{"class": "compute"})  # fmt: skip
    rows = traces.derive()
    assert [(r["pp_rank"], r["start_ns"], r["end_ns"]) for r in rows] == [
        (0, 1050, 1160), (1, 1050, 1160)]  # fmt: skip
    assert {(r["step"], r["operation"], r["microbatch"], r["global_chunk"]) for r in rows} == {
        (1, F, 0, 0), (1, F, 0, 1)}  # fmt: skip


def test_on_the_host_waiting_for_the_input_is_no_computation() -> None:
    traces = Traces(2)
    for rank in (0, 1):
        traces.range(rank, f"PP:{rank}F0", 1000, 1100)
        for name, start, end in (
            ("c10d::recv_", 1001, 1003),
            ("aten::empty", 1003, 1004),
            ("aten::mm", 1040, 1060),
            ("aten::relu", 1060, 1070),
            ("c10d::send", 1070, 1090),
        ):
            traces.add("host_op", rank, name=name, category="operator", thread=1,
                       start_ns=start, dur_ns=end - start)  # fmt: skip
    assert {(r["start_ns"], r["end_ns"]) for r in traces.derive()} == {(1040, 1070)}


def test_a_backward_on_a_thread_of_its_own_is_its_operators_there() -> None:
    """Its range on the main thread holds only the receive; a forward's never lie elsewhere."""
    traces = Traces(2)
    for rank in (0, 1):
        traces.range(rank, f"PP:{rank}F0", 1000, 1100)
        traces.range(rank, f"PP:{rank}B0", 1100, 1300)
        for name, start, end, thread in (
            ("aten::mm", 1040, 1060, 1),
            ("aten::copy_", 1010, 1090, 7),
            ("c10d::recv_", 1101, 1103, 1),
            ("MmBackward0", 1220, 1260, 2),
            ("ReluBackward0", 1260, 1290, 2),
            ("c10d::send", 1290, 1299, 1),
        ):
            traces.add("host_op", rank, name=name, category="operator", thread=thread,
                       start_ns=start, dur_ns=end - start)  # fmt: skip
    assert {(r["operation"], r["start_ns"], r["end_ns"]) for r in traces.derive()} == {
        (F, 1040, 1060), (B, 1220, 1290)}  # fmt: skip


@pytest.mark.parametrize(
    ("timeline", "received_ns", "began_ns"),
    [("host", 1180, 1180), ("host", 1090, 1100), ("host", None, 1100), ("device", 1180, 1100)],
    ids=["waited", "had come before", "nothing received", "on a GPU's timeline"],
)
def test_a_backward_of_no_operator_begins_when_its_receive_ends(
    timeline: str, received_ns: int | None, began_ns: int
) -> None:
    """The first stage's gradients of its input, which a zero-bubble schedule has a range for."""
    traces = Traces(2)
    for rank in (0, 1):
        traces.range(rank, f"PP:{rank}F0", 1000, 1100)
        traces.range(rank, f"PP:{rank}I0", 1100, 1200)
    if received_ns is not None:
        traces.add("collective", 0, op="recv", start_ns=1050, dur_ns=received_ns - 1050,
                   timeline=timeline)  # fmt: skip
    found = {(r["rank"], r["operation"]): (r["start_ns"], r["end_ns"]) for r in traces.derive()}
    assert found[0, B] == (began_ns, 1200)
    assert found[1, B] == (1100, 1200)


def test_a_receive_posted_early_is_waited_for_from_the_compute_before() -> None:
    traces = Traces(2)
    traces.range(0, "PP:0F0", 1000, 1050)
    traces.range(0, "PP:0F1", 1050, 1100)
    traces.range(1, "PP:1RECV_F0", 1000, 1002)
    traces.range(1, "PP:1RECV_F1", 1002, 1004)
    traces.range(1, "PP:1F0", 1052, 1150)
    traces.range(1, "PP:1F1", 1150, 1200)
    for rank, start, end in ((0, 1000, 1050), (0, 1050, 1100), (1, 1052, 1150), (1, 1152, 1200)):
        traces.add("host_op", rank, name="aten::mm", category="operator", thread=1,
                   start_ns=start, dur_ns=end - start)  # fmt: skip
    for start, end in ((1001, 1052), (1003, 1151)):
        traces.add("collective", 1, op="recv", start_ns=start, dur_ns=end - start, timeline="host")
    for start, end in ((1050, 1900), (1100, 1900)):
        traces.add("collective", 0, op="send", start_ns=start, dur_ns=end - start, timeline="host")
    found = {
        (r["pp_rank"], r["operation"], r["sequence"]): (r["start_ns"], r["end_ns"])
        for r in traces.derive()
    }
    assert found[1, "forward-recv", 0] == (1001, 1052)
    assert found[1, "forward-recv", 1] == (1150, 1151)
    # A send on the host lasts until somebody asks: the receive tells when the data was there.
    assert found[0, "forward-send", 0] == (1050, 1052)
    assert found[0, "forward-send", 1] == (1100, 1151)


def test_the_weights_part_of_a_backward_sends_and_receives_nothing() -> None:
    """What is asked for between a backward and its weights' part belongs to what follows."""
    traces = Traces(2)
    for rank in (0, 1):
        names = ("forward-compute", "backward-compute", "weight_grad", "forward-compute")
        for k, name in enumerate(names):
            traces.range(rank, name, 1000 + 100 * k, 1090 + 100 * k)
    traces.add("process_group", 0, name="1", description="PIPELINE_MODEL_PARALLEL_GROUP",
               ranks=[0, 1], is_ranks_complete=True)  # fmt: skip
    traces.add("collective", 1, op="recv", start_ns=1195, dur_ns=50, timeline="host")
    traces.add("collective", 0, op="send", start_ns=1250, dur_ns=50, timeline="host")
    rows = traces.derive(parse_job(b"[parallelism]\npp = 2\n", "job.toml"))
    assert {r["operation"] for r in rows if r["pp_rank"] == 1} == {F, B, W, "forward-recv"}
    assert {r["operation"] for r in rows if r["pp_rank"] == 0} == {F, B, W, "backward-send"}


def test_chunks_whose_stage_no_name_tells_are_no_pipeline() -> None:
    """Zero-bubble Megatron names the chunk, and where it sits depends on the schedule."""
    for chunks, count in ((1, 6), (2, 0)):
        traces = Traces(2)
        for rank in (0, 1):
            for k, name in enumerate(f"{o}0.{c}.0" for c in range(chunks) for o in "FBW"):
                traces.range(rank, name, 1000 + 20 * k, 1010 + 20 * k)
        notes: list[str] = []
        rows = traces.derive(parse_job(b"[parallelism]\npp = 2\n", "job.toml"), notes)
        assert len(rows) == count
        assert any("several chunks" in n for n in notes) == (count == 0)


def test_two_chunks_of_a_rank() -> None:
    traces = Traces(2)
    for rank in (0, 1):
        for k, stage in enumerate((rank, rank + 2)):
            traces.range(rank, f"PP:{stage}F0", 1000 + 20 * k, 1010 + 20 * k)
    rows = traces.derive()
    assert [(r["pp_rank"], r["chunk"], r["global_chunk"]) for r in rows] == [
        (0, 0, 0), (0, 1, 2), (1, 0, 1), (1, 1, 3)]  # fmt: skip


def test_stages_from_groups_that_are_named_for_them() -> None:
    traces = Traces(8)
    for rank in range(8):
        traces.range(rank, "pp_fwd mb0", 1000, 1010)
        for name, ranks in (
            ("mesh_pp", [rank % 4, rank % 4 + 4]),
            ("mesh_tp", [rank // 2 * 2, rank // 2 * 2 + 1]),
        ):
            traces.add("process_group", rank, group_id=f"{name}{ranks}", name=name,
                       description=name, ranks=ranks, is_ranks_complete=True)  # fmt: skip
    places = {r["rank"]: (r["pp_rank"], r["dp_rank"]) for r in traces.derive()}
    assert places == {0: (0, 0), 1: (0, 0), 2: (0, 1), 3: (0, 1),
                      4: (1, 0), 5: (1, 0), 6: (1, 1), 7: (1, 1)}  # fmt: skip


@pytest.mark.parametrize("missing", [4, 6])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_missing_rank_does_not_move_its_stage_into_another_replica(
    missing: int, is_named: bool
) -> None:
    """By the groups of pipelines, else by blocks of ranks."""
    traces = Traces(8)
    for rank in (r for r in range(8) if r != missing):
        traces.range(rank, "pp_fwd mb0", 1000, 1010)
        ranks = [rank % 4, rank % 4 + 4]
        if is_named:
            traces.add("process_group", rank, group_id=f"pp{ranks}", name="mesh_pp",
                       description="mesh_pp", ranks=ranks, is_ranks_complete=True)  # fmt: skip
    text = b"world_size = 8\n[parallelism]\npp = 2\n"
    places = {r["rank"]: (r["pp_rank"], r["dp_rank"]) for r in traces.derive(
        None if is_named else parse_job(text, "job.toml")
    )}  # fmt: skip
    assert places == {r: (r // 4, r % 4) for r in range(8) if r != missing}


def test_stages_from_the_job_description() -> None:
    traces = Traces(4)
    for rank in range(4):
        traces.range(rank, "Forward 0", 1000, 1010)
    job = parse_job(b"world_size = 4\n[parallelism]\npp = 2\n", "job.toml")
    assert {r["rank"]: r["pp_rank"] for r in traces.derive(job)} == {0: 0, 1: 0, 2: 1, 3: 1}
    assert traces.derive(parse_job(b"[parallelism]\npp = 1\n", "job.toml")) == []


def test_ranges_named_forward_in_a_job_without_transfers_are_no_pipeline() -> None:
    traces = Traces(4)
    for rank in range(4):
        traces.range(rank, "Forward 0", 1000, 1010)
    assert traces.derive() == []


def accumulating(microbatches: int, backwards: int | None = None) -> Traces:
    """Two ranks without a pipeline; each forward launches a kernel of 4 ns that waits for 2 ns."""
    traces = Traces(2)
    for rank in (0, 1):
        for step in (1, 2):
            for m in range(microbatches):
                at = 1000 * step + 100 * m
                traces.range(rank, "forward", at, at + 10)
                traces.add("gpu_op", rank, start_ns=at + 1, dur_ns=2, launch_start_ns=at,
                           **{"class": "compute"})  # fmt: skip
                traces.add("gpu_op", rank, start_ns=at + 5, dur_ns=2, launch_start_ns=at + 1,
                           **{"class": "compute"})  # fmt: skip
                if m < (microbatches if backwards is None else backwards):
                    traces.range(rank, "backward", at + 20, at + 40)
    return traces


def test_steps_of_several_microbatches_are_one_stage() -> None:
    rows = accumulating(2).derive()
    assert len(rows) == 2 * 2 * 4
    assert {(r["pp_rank"], r["dp_rank"], r["rank"]) for r in rows} == {(0, 0, 0), (0, 1, 1)}
    forward = next(r for r in rows if r["operation"] == F)
    assert (forward["start_ns"], forward["end_ns"], forward["compute_ns"]) == (1001, 1007, 4)
    assert next(r for r in rows if r["operation"] == B)["compute_ns"] is None


@pytest.mark.parametrize(("microbatches", "backwards"), [(1, 1), (2, 1), (3, 0)])
def test_one_microbatch_or_forwards_alone_are_none(microbatches: int, backwards: int) -> None:
    assert accumulating(microbatches, backwards).derive() == []


def test_stages_from_who_sends_how_often_and_begins_when() -> None:
    traces = Traces(4)
    notes: list[str] = []
    order = {0: 2, 1: 0, 2: 3, 3: 1}  # rank -> stage: not the order of ranks
    for rank, stage in order.items():
        traces.range(rank, "Forward 0", 1000 + 10 * stage, 1010 + 10 * stage)
        for k in range(2 if stage in (1, 2) else 1):
            traces.add("collective", rank, op="send", start_ns=1011 + 10 * stage + k, dur_ns=1)
    rows = [r for r in traces.derive(notes=notes) if r["operation"] == F]
    assert {r["rank"]: r["pp_rank"] for r in rows} == order
    assert "inferred from the order of first forwards" in notes[0]


@pytest.mark.parametrize(("transfers", "is_pipeline"), [(2, True), (3, False), (6, False)])
def test_a_ring_is_not_two_stages(transfers: int, is_pipeline: bool) -> None:
    """All ranks exchange as often: two stages do so twice a microbatch, a ring more often."""
    traces = Traces(4)
    for rank in range(4):
        at = 1000 + 10 * (rank // 2)
        traces.range(rank, "Forward 0", at, at + 10)
        for k in range(transfers):
            op = "send" if k % 2 else "recv"
            traces.add("collective", rank, op=op, start_ns=at + 11 + k, dur_ns=1)
    notes: list[str] = []
    stages = {r["rank"]: r["pp_rank"] for r in traces.derive(notes=notes)}
    assert stages == ({0: 0, 1: 0, 2: 1, 3: 1} if is_pipeline else {})
    assert ("cannot be told" in notes[0]) is not is_pipeline


def test_unnumbered_ranges_are_counted_and_nested_and_twin_ones_are_not() -> None:
    traces = Traces(2)
    for rank in (0, 1):
        traces.range(rank, "forward_step", 1000, 1010)
        traces.range(rank, "backward_step", 1020, 1060)
        traces.range(rank, "forward_step", 1030, 1040)  # recomputation inside the backward
        traces.range(rank, "forward_step", 1000, 1010, is_gpu_twin=True)
        traces.range(rank, "forward_step", 1070, 1080)
        traces.range(rank, "forward_step", 3500, 3510)  # in no step
    job = parse_job(b"[parallelism]\npp = 2\n", "job.toml")
    rows = [(r["operation"], r["microbatch"], r["start_ns"]) for r in traces.derive(job)
            if r["rank"] == 0]  # fmt: skip
    assert rows == [(F, 0, 1000), (B, 0, 1020), (F, 1, 1070)]


# --- recorded jobs ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["pp-healthy", "pp-1f1b-healthy", "pp-uneven-stages"])
def test_recorded_pipelines_are_whole(case: str) -> None:
    with samples.opened(RECORDED / case) as run:
        counts = run.sql("SELECT operation, pp_rank, count(*) AS n FROM pipeline_op GROUP BY ALL")
        bubble = run.query("bubble").filter(~pl.col("is_warmup"))
    found = {(o, s): n for o, s, n in counts.rows()}
    for stage in range(4):
        assert found[F, stage] == found[B, stage] == 48
    assert found["forward-send", 0] == found["forward-recv", 3] == 48
    assert ("forward-recv", 0) not in found
    assert ("backward-send", 0) not in found
    assert bubble["expected_bubble_ratio"].unique().to_list() == [pytest.approx(3 / 11)]
    if case != "pp-uneven-stages":
        assert bubble["bubble_ratio"].mean() == pytest.approx(0.31, abs=0.02)


@pytest.mark.parametrize("case", soak(["pp-healthy", "pp-1f1b-healthy"], fast=["pp-1f1b-healthy"]))
def test_healthy_pipelines_stay_without_a_pipeline_finding(case: str) -> None:
    report = samples.diagnosis(RECORDED / case)
    assert {f.rule for f in report.findings} <= {"exposed-communication"}
    assert report.document.verdict.kind == "inherent"


def test_the_uneven_stage_is_the_verdict() -> None:
    report = samples.diagnosis(RECORDED / "pp-uneven-stages")
    with samples.opened(RECORDED / "pp-uneven-stages") as run:
        ratio = run.query("stage_balance").filter(pl.col("stage") == 3)["compute_ratio"].item()
        replay = run.whatif()
    assert report.document.verdict.finding == "stage-imbalance/3"
    assert ratio == pytest.approx(1.9948, rel=0.02)  # truth.json
    judgement = samples.pipe(replay).judgement
    assert (judgement.kind, judgement.stage) == ("stage_imbalance", 3)
    assert replay.refused is None


@pytest.mark.slow  # test_unnamed_pipelines.py asks more of recorded ones
@pytest.mark.skipif(not LAB.exists(), reason="the shared samples are not here")
@pytest.mark.parametrize(("case", "stages"), [("pp-gpipe-healthy", 4), ("pp2dp2tp2-healthy", 2)])
def test_lab_pipelines_without_metadata(case: str, stages: int) -> None:
    report = samples.diagnosis(LAB / case)
    with samples.opened(LAB / case) as run:
        bubble = run.query("bubble")
        places = run.sql("SELECT DISTINCT rank, pp_rank FROM pipeline_op ORDER BY rank")
    assert places["pp_rank"].to_list() == sorted(places["pp_rank"].to_list())
    assert bubble["stages_count"].unique().to_list() == [stages]
    rules = {f.rule for f in report.findings}
    assert not rules & {"stage-imbalance", "excess-bubble", "sequence-imbalance"}
