"""Steps that nothing marks: from the period of the updates, or none.

Handmade programs are rows of launches; in simulated jobs every launch's true step is known.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st

from accuracy.twins import TWINS
from soaks import soak
from tracekit import api, schema
from tracekit.derive import inferred_steps
from tracekit.derive.inferred_steps import UPDATE
from tracekit.derive.periods import Cell, Launches, cells, repetitions
from tracekit.simulate import Request, write
from tracekit.store import Selection

INPUT, UPDATES = "i", "uv"
MAIN, AUTOGRAD = 1, 2


def program(*words: str, unsized: Iterable[str] = ()) -> Launches:
    """One launch a letter: f forward, b backward on the autograd thread, i the input's copy, u the
    optimizer (v on the autograd thread), other small letters other kernels; capitals and digits
    are collectives, of which those in ``unsized`` are one operation with different sizes."""
    letters = "".join(words)
    n = len(letters)
    at = np.arange(n, dtype=np.int64) * 100
    is_call = np.array([c.isupper() or c.isdigit() for c in letters], np.bool_)
    sized = np.array([ord(c) for c in letters]) * is_call
    plain = np.where([c in set(unsized) for c in letters], 999, sized) * is_call
    return Launches(
        at=at,
        done=at + 10,
        start=at + 50,
        end=at + 90,
        name=np.array([0 if c else ord(x) for c, x in zip(is_call, letters, strict=True)]),
        thread=np.array([AUTOGRAD if c in "bv" else MAIN for c in letters]),
        is_input=np.array([c == INPUT for c in letters]),
        is_compute=np.array([c.islower() and c != INPUT for c in letters]),
        is_update=np.array([c in UPDATES for c in letters]),
        calls=(sized, plain),
        is_by_range=False,
    )


def found(*words: str, unsized: Iterable[str] = ()) -> list[str]:
    """The launches of each step that is found in some words."""
    text = "".join(words)
    return [text[c.first : c.last + 1] for c in cells(program(*words, unsized=unsized))]


STEP = "iffffbbAbbAuuu"
ACCUMULATED = "iffffbbbb" * 3 + "iffffbbAbbAuuu"


def test_equal_steps_are_found_and_their_borders() -> None:
    assert found(*[STEP] * 5) == [STEP] * 5
    assert [c.number for c in cells(program(*[STEP] * 5))] == [0, 1, 2, 3, 4]


def test_the_period_is_the_update_not_the_microbatch_nor_the_log() -> None:
    assert found(*[ACCUMULATED] * 4) == [ACCUMULATED] * 4
    logged = STEP + "dd"
    assert found(*[STEP, logged, STEP] * 3) == [STEP, logged, STEP] * 3


def test_three_equal_steps_besides_the_first_are_needed() -> None:
    assert found(*[STEP] * 4) == [STEP] * 4
    assert found(*[STEP] * 3) == []


def test_a_start_and_an_end_that_are_cut_are_no_steps() -> None:
    assert found(STEP[7:], *[STEP] * 4, STEP[:6]) == [STEP] * 4


def test_an_odd_first_step_is_a_step_from_where_it_is_like_the_others() -> None:
    assert found("cc" * 40, *[STEP] * 4) == [STEP] * 4


def test_an_evaluation_belongs_to_no_step_and_takes_no_number() -> None:
    launches = program(STEP, STEP, "iffff" * 4, STEP, STEP, STEP)
    assert found(STEP, STEP, "iffff" * 4, STEP, STEP, STEP) == [STEP] * 5
    assert cells(launches)[2] == Cell(2 * len(STEP) + 20, 3 * len(STEP) + 19, 2)


def test_what_follows_the_update_up_to_the_next_input_belongs_to_it() -> None:
    zero = STEP + "Gd"  # the parameters' all-gather, and the loss
    assert found(*[zero] * 5) == [zero] * 5
    no_input = "ffffbbAbbAuuu"
    assert found(*[no_input + "G"] * 5) == ["G" + no_input] * 4


def test_a_step_with_another_sequence_of_collectives_is_none() -> None:
    other = STEP.replace("A", "B", 1)
    assert found(STEP, STEP, other, STEP, STEP) == [STEP] * 4
    assert [c.number for c in cells(program(STEP, STEP, other, STEP, STEP))] == [0, 1, 3, 4]


def test_other_kernels_for_other_shapes_are_no_other_step() -> None:
    assert len(found(STEP, STEP, STEP.replace("ff", "fg", 1), STEP, STEP)) == 5


def test_sizes_that_change_every_time_do_not_count() -> None:
    steps = [f"iffffbb{i}bbAuuu" for i in range(6)]
    assert found(*steps) == []
    assert found(*steps, unsized="012345") == steps


def test_without_collectives_the_kernels_must_agree() -> None:
    step = "iffffggggbbbbuuu"
    assert found(*[step] * 5) == [step] * 5
    strange = "i" + "xyzw" * 2 + "bbbbuuu"
    assert found(step, step, strange, step, step) == [step] * 4


def test_layers_and_microbatches_without_an_update_are_no_steps() -> None:
    assert found(*["ffAfA"] * 17) == []
    assert found(*["iffffbbbb"] * 12) == []


def test_updates_within_the_backward_pass_are_no_steps() -> None:
    """Each layer is updated as soon as it has a gradient: the most frequent cell is a layer."""
    assert found(*["iffffffffffff" + "bbbbv" * 6] * 4) == []
    assert found(*["iffffffffffff" + "bbbbu" * 6] * 4) == []


def test_updates_of_two_kinds_are_no_steps() -> None:
    """A generator and a discriminator that take turns."""
    assert found(*["ffffbbbbAu", "gggggggggbbbbbbbBBu"] * 5) == []


def test_an_update_of_many_kernels_is_one() -> None:
    step = "iffffffffffffbbbbAbbbbA" + "ud" * 6 + "u"
    assert found(*[step] * 5) == [step] * 5


@settings(max_examples=60)
@given(
    parts=st.lists(st.sampled_from(["ffff", "gggg", "bbA", "bbB", "C"]), min_size=3, max_size=8),
    count=st.integers(4, 9),
    cut=st.integers(0, 5),
)
def test_any_step_is_found_wherever_the_capture_begins(
    parts: list[str], count: int, cut: int
) -> None:
    step = "iffbb" + "".join(parts) + "u"
    steps = found(step[cut:], *[step] * count)
    assert steps[-count:] == [step] * count
    assert len(steps) in (count, count + 1)


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>",
        "multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctorMaster<float>>",
        "at::native::multi_tensor_apply_kernel<Meta, PointwiseOpScalarListFunctor<float, 4, 3, 3>>",
        "void LambStage2<float>",
        "triton_lion_update",
        "void addcdiv_cuda_kernel<float>",
    ],
)
def test_kernels_of_optimizers(name: str) -> None:
    assert UPDATE.search(name)


@pytest.mark.parametrize(
    "name",
    [
        "void elementwise_kernel<128, {lambda(float, float)#1}>",
        "multi_tensor_apply_kernel<Meta, LpNormFunctor<float, 2>>",
        "multi_tensor_apply_kernel<Meta, CopyFunctor<float, bf16, 2>>",
        "multi_tensor_apply_kernel<Meta, BinaryOpScalarFunctor<float>>",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "medallion_kernel",
    ],
)
def test_kernels_of_others(name: str) -> None:
    assert not UPDATE.search(name)


# --- simulated jobs -------------------------------------------------------------------------------


def without_markers(job: Path, target: Path, *, only: Iterable[str] | None = None) -> Path:
    """A copy of a job of exports without its ranges of steps and of the optimizer."""
    shutil.copytree(job, target)
    for path in target.glob("*.sqlite"):
        if only is None or path.stem in only:
            with closing(sqlite3.connect(path)) as con:
                con.execute("DELETE FROM NVTX_EVENTS WHERE text LIKE 'step %'")
                con.execute("DELETE FROM NVTX_EVENTS WHERE text LIKE 'Optimizer.%'")
                con.commit()
    return target


def launches(run: Any) -> dict[tuple[int, int], int | None]:
    """Step of every operation on a device, by rank and place."""
    rows = run.run.con.execute("SELECT rank, place, step FROM gpu_op").fetchall()
    return {(rank, place): step for rank, place, step in rows}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "layout", "ranks"),
    soak(
        [
            ("none", "pp2-m2", 2),
            ("hot-expert", "ep2", 2),
            ("slow-gpu", "fsdp", 2),
            ("recompile", "ddp", 2),
        ],
        fast=[("slow-gpu", "fsdp", 2)],
    ),
)
def test_every_launch_of_a_simulated_job_is_in_its_step(
    scenario: str, layout: str, ranks: int, tmp_path: Path
) -> None:
    request = Request(
        scenario=scenario, ranks=ranks, layout=layout, steps_count=5, style="nsys", nccl="none",
        counters="none",
    )  # fmt: skip
    write(request, tmp_path / "job")
    bare = without_markers(tmp_path / "job", tmp_path / "bare")
    with api.open([tmp_path / "job"]) as run:
        marked = launches(run)
        ours = run.diagnose().document
    with api.open([bare]) as run:
        inferred = launches(run)
        report = run.diagnose().document
        sources = run.run.con.execute(
            "SELECT DISTINCT s.step_source, o.step_source, c.step_source FROM step s"
            " JOIN gpu_op o USING (source_id) JOIN collective c USING (source_id)"
        ).fetchall()
    assert sources == [("period", "period", "period")]
    differences = Counter(
        None if step is None or marked[key] is None else step - (marked[key] or 0)
        for key, step in inferred.items()
    )
    assert len(differences) == 1
    assert None not in differences
    assert (report.verdict.kind, report.verdict.finding) == (
        ours.verdict.kind,
        ours.verdict.finding,
    )
    assert {f.id for f in report.findings} == {f.id for f in ours.findings}
    priced = [f for f in report.findings if f.impact.s_per_step is not None]
    assert all("inferred" in f.confidence.basis for f in priced)
    assert not any("inferred" in f.confidence.basis for f in ours.findings)


@pytest.mark.parametrize(
    ("name", "updates", "ranges", "is_read"),
    [
        ("multi_tensor_apply_adam", 3, 0, True),
        ("multi_tensor_apply_adam", 2, 0, False),  # just below
        ("decode_attention", 9, 0, False),
        ("decode_attention", 9, 1, True),  # a range may say that any work is the optimizer's
    ],
)
def test_launches_are_read_only_where_there_are_updates_enough(
    monkeypatch: pytest.MonkeyPatch, name: str, updates: int, ranges: int, is_read: bool
) -> None:
    read: list[int] = []
    original = inferred_steps._read

    def reading(
        con: duckdb.DuckDBPyConnection, source_id: int, names: Mapping[int, str]
    ) -> Launches:
        read.append(source_id)
        return original(con, source_id, names)

    monkeypatch.setattr(inferred_steps, "_read", reading)
    monkeypatch.setattr(inferred_steps, "cells", lambda _: [])
    with duckdb.connect() as con:
        for table in ("gpu_op", "annotation", "collective"):
            con.register("empty", schema.table(table).arrow_schema().empty_table())
            con.execute(f"CREATE TABLE {table} AS FROM empty")
        for i in range(updates):
            con.execute(
                "INSERT INTO gpu_op BY NAME SELECT 7 AS source_id, $i AS place, $name AS name, "
                "$i * 100 AS launch_start_ns, $i * 100 + 50 AS start_ns, 10 AS dur_ns",
                {"i": i, "name": name},
            )
        # Without a launch a kernel is no update of a step.
        con.execute(
            "INSERT INTO gpu_op BY NAME SELECT 7 AS source_id, 99 AS place, "
            "'multi_tensor_apply_adam' AS name, 5 AS start_ns, 10 AS dur_ns"
        )
        for _ in range(ranges):
            con.execute(
                "INSERT INTO annotation BY NAME SELECT 7 AS source_id, 0 AS start_ns, "
                "900 AS dur_ns, 'Optimizer.step#Adam.step' AS name"
            )
        context = pa.table({"source_id": [7], "attempt": [1], "rank": [0], "capture_id": [0]})
        marked = schema.table("step").arrow_schema().empty_table()
        assert inferred_steps.infer_steps(con, context, marked, cast("Any", None)) is None
    assert read == [7] * is_read


def test_ranks_without_markers_take_the_numbers_of_those_with(tmp_path: Path) -> None:
    write(
        Request(ranks=2, layout="fsdp", steps_count=5, style="nsys", nccl="none"), tmp_path / "job"
    )
    bare = without_markers(tmp_path / "job", tmp_path / "bare", only=["rank1"])
    with api.open([tmp_path / "job"]) as run:
        marked = launches(run)
    with api.open([bare]) as run:
        assert launches(run) == marked
        steps = defaultdict(set)
        for rank, source in run.run.con.execute("SELECT rank, step_source FROM step").fetchall():
            steps[rank].add(source)
    assert steps == {0: {"annotation"}, 1: {"period"}}


def test_nothing_is_inferred_where_steps_are_marked(tmp_path: Path) -> None:
    write(
        Request(ranks=2, layout="ddp", steps_count=5, style="nsys", nccl="none"), tmp_path / "job"
    )
    with api.open([tmp_path / "job"]) as run:
        found = run.run.con.execute("SELECT DISTINCT step_source FROM step").fetchall()
        assert found == [("annotation",)]
        assert "steps are inferred" not in run.diagnose().to_json()


def test_ranges_of_the_optimizer_are_better_than_names_of_kernels(tmp_path: Path) -> None:
    write(
        Request(ranks=2, layout="ddp", steps_count=5, style="nsys", nccl="none"), tmp_path / "job"
    )
    for path in (tmp_path / "job").glob("*.sqlite"):
        with closing(sqlite3.connect(path)) as con:
            con.execute("DELETE FROM NVTX_EVENTS WHERE text LIKE 'step %'")
            con.execute(
                "UPDATE StringIds SET value = 'triton_for_fused_0' WHERE value LIKE '%Adam%'"
            )
            con.commit()
    with api.open([tmp_path / "job"]) as run:
        found = run.run.con.execute("SELECT step_source, count(*) FROM step GROUP BY 1").fetchall()
        assert found == [("optimizer", 10)]


def test_selecting_inferred_steps_selects_their_operations(tmp_path: Path) -> None:
    write(
        Request(ranks=2, layout="ddp", steps_count=5, style="nsys", nccl="none"), tmp_path / "job"
    )
    bare = without_markers(tmp_path / "job", tmp_path / "bare")
    with api.open([bare], selection=Selection(steps=((2, 3),))) as run:
        assert set(launches(run).values()) == {2, 3}


def repeated(*words: str) -> list[str]:
    """The launches of each repetition that is found in some words."""
    text = "".join(words)
    return [text[c.first : c.last + 1] for c in repetitions(program(*words))]


DECODED = "mAnmAnmAnBk"
"""Three layers with a collective each, and the choice of the token, which all hear of."""


def test_a_token_is_what_a_decoder_repeats_and_not_its_layer() -> None:
    assert repeated(*[DECODED] * 6) == [DECODED] * 6
    assert repeated(*[DECODED] * 4) == []  # too few


def test_layers_that_nothing_separates_are_what_repeats() -> None:
    assert repeated(*["mAn"] * 7) == ["mAn"] * 7


def test_what_is_done_now_and_then_is_no_other_repetition() -> None:
    logged = DECODED + "d"
    assert (
        len(repeated(DECODED, DECODED, logged, DECODED, DECODED, logged, DECODED, DECODED, logged))
        == 9
    )


def test_repetitions_of_which_two_differ_are_none() -> None:
    other = "mAnmAnBk"
    assert len(repeated(*[DECODED] * 5, other, *[DECODED] * 5)) == 10
    assert repeated(*[DECODED] * 3, other, *[DECODED] * 3, other, *[DECODED] * 3) == []


def test_without_collectives_nobody_waits_and_nothing_is_a_repetition() -> None:
    assert repeated(*["mmnk"] * 9) == []


def bare_of(name: str, dropped: tuple[str, ...], to: Path) -> Path:
    """A recorded job without what marks its steps."""
    to.mkdir()
    for path in sorted((TWINS / name).glob("rank*.gz")):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        kept = [e for e in trace["traceEvents"] if not str(e.get("name")).startswith(dropped)]
        assert len(kept) < len(trace["traceEvents"])
        trace["traceEvents"] = kept
        (to / path.name).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return to


UPDATED = ("ProfilerStep#",)
REPEATED = ("ProfilerStep#", "Optimizer.")
STRIPPED = (
    ("ddp-slow-compute", UPDATED), ("ddp-slow-compute", REPEATED), ("tp-throttled-cpu", REPEATED),
    ("moe-hot-expert", UPDATED), ("pp-uneven-stage", REPEATED), ("ddp-input-stall", REPEATED),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dropped"), soak(STRIPPED, fast=STRIPPED[:2]))
def test_a_fault_of_a_job_without_a_device_costs_the_same_without_marks(
    name: str, dropped: tuple[str, ...], tmp_path: Path
) -> None:
    """The verdict names the same finding, and its cost is within a tenth: the steps' borders are
    elsewhere, the faults are not."""
    marked = samples.diagnosis(TWINS / name).document
    with api.open([bare_of(name, dropped, tmp_path / name)]) as run:
        said_by = run.run.con.execute("SELECT DISTINCT step_source FROM step").fetchall()
        report = run.diagnose()
    bare = report.document
    assert said_by == [("optimizer" if dropped == UPDATED else "repetition",)]
    assert bare.verdict.finding == marked.verdict.finding
    costs = [
        next(f.impact.s_per_step for f in d.findings if f.id == d.verdict.finding)
        for d in (bare, marked)
    ]
    assert costs[0] == pytest.approx(costs[1], rel=0.1)
    word = "update no parameters" if dropped == REPEATED else "the period of the updates"
    assert any(word in line for line in report.notes.data_lines)
