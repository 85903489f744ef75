"""What a layout needs beside what was seen: missing, oversized, unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tracekit import api
from tracekit.job import JobDescription, parse_job
from tracekit.simulate import Request, write
from tracekit.traffic import with_expected

JOB = """
[parallelism]
tp = 4
pp = 2
dp = 2
[schedule]
microbatches = 8
[model]
layers = 4
hidden = 1024
heads = 16
sequence = 2048
vocabulary = 32000
dtype = "bfloat16"
[batch]
micro = 1
"""
A = 2048 * 1024 * 2
"""Bytes of one microbatch's activation."""

SCHEMA = pa.schema(
    [
        ("group_kind", pa.string()),
        ("op", pa.string()),
        *(
            (n, pa.float64())
            for n in (
                *("calls_per_step", "bytes_per_step", "expected_calls", "expected_bytes"),
                "observed_ratio",
            )
        ),
        ("attempt", pa.int32()),
        ("group_size", pa.int32()),
        ("ranks_count", pa.int64()),
        ("largest_bytes", pa.int64()),
        ("dtype", pa.string()),
        ("hosts_count", pa.int64()),
        ("expected_most_bytes", pa.float64()),
        ("expected_domain", pa.string()),
        ("basis", pa.string()),
    ]
)


def row(kind: str | None, op: str, sent: float | None, **more: Any) -> dict[str, Any]:
    given = {"group_kind": kind, "op": op, "calls_per_step": 1.0, "bytes_per_step": sent}
    return {**given, "attempt": 1, "ranks_count": 16, **more}


def beside(*rows: dict[str, Any], job: JobDescription | None = None) -> dict[Any, dict[str, Any]]:
    found = with_expected(pa.Table.from_pylist(list(rows), SCHEMA), job or description())
    return {(r["group_kind"], r["op"]): r for r in found.to_pylist()}


def description(text: str = JOB) -> JobDescription:
    return parse_job(text.encode(), "/data/job.toml")


def test_tensor_parallel_traffic_as_all_reduce_or_in_two_halves() -> None:
    calls = 4 * 2 * 8  # a layer and microbatch, 2 layers a stage, 8 microbatches
    found = beside(row("tp", "all_reduce", 2 * calls * 1.5 * A))
    tp = found["tp", "all_reduce"]
    assert (tp["expected_calls"], tp["expected_bytes"]) == (calls, calls * 1.5 * A)
    assert tp["observed_ratio"] == pytest.approx(2)  # oversized: twice the element's size
    halves = beside(
        row("tp", "all_gather", calls * 0.75 * A), row("tp", "reduce_scatter", calls * 0.75 * A)
    )
    assert halves["tp", "all_gather"]["observed_ratio"] == pytest.approx(1)
    assert halves["tp", "reduce_scatter"]["observed_ratio"] == pytest.approx(1)
    assert ("tp", "all_reduce") not in halves


def test_a_mean_rank_of_two_stages_sends_each_microbatch_once() -> None:
    sends = beside(row("pp", "send", 8 * A))["pp", "send"]
    assert (sends["expected_calls"], sends["observed_ratio"]) == (8, pytest.approx(1))


def test_what_is_missing_gets_a_row_and_what_is_extra_expects_nothing() -> None:
    job = description(JOB.replace("dp = 2", "dp = 2\nzero_stage = 0"))
    found = beside(row("dp", "all_gather", 100.0), job=job)
    assert found["dp", "all_gather"]["expected_bytes"] is None
    assert found["dp", "all_gather"]["observed_ratio"] is None
    missing = found["dp", "all_reduce"]
    assert (missing["calls_per_step"], missing["observed_ratio"], missing["ranks_count"]) == (
        0,
        0,
        0,
    )
    assert ("embedding", "all_reduce") not in found


def test_unknown_bytes_give_no_ratio() -> None:
    tp = beside(row("tp", "all_reduce", None))["tp", "all_reduce"]
    assert tp["expected_bytes"] is not None and tp["observed_ratio"] is None


def test_a_group_of_unknown_kind_is_known_by_its_size_alone() -> None:
    assert beside(row(None, "all_reduce", 1.0, group_size=4))[None, "all_reduce"]["expected_bytes"]
    # Two families have 2 members: none is guessed.
    assert beside(row(None, "send", 1.0, group_size=2))[None, "send"]["expected_bytes"] is None


def test_without_sizes_nothing_is_expected() -> None:
    rows = pa.Table.from_pylist([row("tp", "all_reduce", 1.0)], SCHEMA)
    assert with_expected(rows, None) is rows
    assert with_expected(rows, description('name = "x"')) is rows


def test_the_gradients_of_experts_are_not_those_of_all_ranks() -> None:
    text = JOB.replace("dp = 2", "dp = 8\nep = 8").replace("tp = 4\npp = 2", "tp = 1\npp = 1")
    text = text.replace("layers = 4", "layers = 4\nexperts = 8\ntop_k = 2\nffn = 4096")
    dense = beside(row("dp", "all_reduce", 1.0), job=description(text))["dp", "all_reduce"]
    whole = text.replace("ep = 8", "ep = 1")
    every = beside(row("dp", "all_reduce", 1.0), job=description(whole))["dp", "all_reduce"]
    experts = 4 * 8 * 2 * 1024 * 4096 * 2 * 2 * 7 / 8
    assert every["expected_bytes"] - dense["expected_bytes"] == pytest.approx(experts)


P = 4 * 12 * 1024**2 * (1 + 13 / (12 * 1024) + (32_000 + 2048) / (48 * 1024))
"""Parameters with one table of embeddings; a GPU holds an eighth (tp 4, pp 2)."""
OWN = P / 8 * 2


def test_embeddings_are_tied_or_not_by_what_is_seen() -> None:
    tied, two = OWN, (P + 32_000 * 1024) / 8 * 2
    for sent, words in ((tied, None), (two, "embeddings not tied")):
        found = beside(row("dp", "all_reduce", sent), job=given())["dp", "all_reduce"]
        assert found["observed_ratio"] == pytest.approx(1)
        assert found["basis"] == words
        assert found["expected_most_bytes"] >= two
    between = beside(row("dp", "all_reduce", 2 * two), job=given())["dp", "all_reduce"]
    assert between["expected_bytes"] == pytest.approx(tied)  # what fits no choice settles nothing


def given(text: str = "") -> JobDescription:
    return description(JOB.replace("dp = 2", f"dp = 2\nzero_stage = 0\n{text}"))


def test_a_zero_stage_that_is_not_given_is_the_one_that_fits() -> None:
    scattered = row("dp", "reduce_scatter", OWN / 2)
    for stage, gathered in ((1, OWN / 2), (3, 2 * 8 * OWN / 2)):
        rows = (scattered, row("dp", "all_gather", gathered))
        if stage == 3:
            rows = (row("dp", "reduce_scatter", 8 * OWN / 2), rows[1])
        found = beside(*rows)
        assert found["dp", "all_gather"]["observed_ratio"] == pytest.approx(1), stage
        assert "parallelism.zero_stage assumed" in found["dp", "all_gather"]["basis"]
        assert ("dp", "all_reduce") not in found


def test_shards_and_their_replicas() -> None:
    text = JOB.replace("dp = 2", "dp = 8\ndp_replicate = 2\nzero_stage = 3")
    found = beside(row("dp_replicate", "all_reduce", OWN / 4), job=description(text))
    assert found["dp_replicate", "all_reduce"]["observed_ratio"] == pytest.approx(1)
    gathers = found["dp", "all_gather"]
    assert gathers["expected_bytes"] == pytest.approx(2 * 8 * OWN * 3 / 4)  # 4 ranks a shard
    assert gathers["observed_ratio"] == 0


def test_ranks_of_a_context_share_their_gradients() -> None:
    text = JOB.replace("dp = 2", "dp = 2\ncp = 4\nzero_stage = 0")
    found = beside(row("dp", "all_reduce", OWN * 2 * 7 / 8), job=description(text))
    assert found["dp", "all_reduce"]["observed_ratio"] == pytest.approx(1)
    # A group of eight of unknown kind is they, too.
    other = beside(row(None, "all_reduce", OWN, group_size=8), job=description(text))
    assert other[None, "all_reduce"]["expected_bytes"] is not None


def test_what_behaviour_cannot_tell_apart_may_be_in_one() -> None:
    text = JOB.replace("dp = 2", "dp = 8\nep = 4\nzero_stage = 0")
    text = text.replace("layers = 4", "layers = 4\nexperts = 8\ntop_k = 2\nffn = 4096")
    alone = beside(row("edp", "all_reduce", 1.0), job=description(text))
    dense, experts = (alone[k, "all_reduce"]["expected_bytes"] for k in ("dp", "edp"))
    both = beside(row("dp", "all_reduce", dense + experts), job=description(text))
    assert both["dp", "all_reduce"]["observed_ratio"] == pytest.approx(1)
    assert both["dp", "all_reduce"]["basis"] == "other gradients counted in"


def test_a_dtype_that_is_not_given_is_named() -> None:
    found = beside(row("tp", "all_reduce", 1.0), job=description(JOB.replace("dtype", "# dtype")))
    assert found["tp", "all_reduce"]["basis"] == "model.dtype assumed"


def test_messages_split_over_the_tensor_ranks() -> None:
    found = beside(row("pp", "send", 8 * A / 4))["pp", "send"]
    assert found["observed_ratio"] == pytest.approx(1)
    assert found["basis"] == "split over the tensor-parallel ranks"


# --- what a user says beside what the traces show, end to end ------------------------------------


def test_any_description_will_do_and_what_it_contradicts_is_said(tmp_path: Path) -> None:
    write(Request(ranks=8, seed=1, layout="tp4", steps_count=3, decoys=()), tmp_path / "job")
    (tmp_path / "args.txt").write_text(
        "torchrun train.py --tensor-model-parallel-size 8 --num-layers 8\n"
    )
    with api.open(tmp_path / "job", job=[tmp_path / "args.txt"]) as run:
        report = run.diagnose(select=["traffic-mismatch"])
    lines = "   ".join(report.notes.data_lines)
    assert "parallelism.tp: 4 against 8" in lines
    assert "job description: parallelism.tp 8, the traces show 4" in lines
    assert "traffic-mismatch/tp-contradicted" in {f.id for f in report.findings}


def test_the_json_of_diagnose_holds_the_traffic(tmp_path: Path) -> None:
    write(Request(ranks=8, seed=1, layout="tp4", steps_count=3, decoys=()), tmp_path / "job")
    with api.open(tmp_path / "job") as run:
        rows = run.diagnose(select=["traffic-mismatch"]).metrics.traffic
        query = run.query("traffic").to_dicts()
    assert [(r.group_kind, r.op) for r in rows] == [(r["group_kind"], r["op"]) for r in query]
    assert [r.bytes_per_step for r in rows] == [r["bytes_per_step"] for r in query]
    ratios = {r.group_kind: r.observed_ratio for r in rows}
    assert ratios["tp"] == pytest.approx(1) and ratios["dp"] == pytest.approx(1, abs=0.05)


def test_names_of_groups_mean_the_same_in_sql_and_in_derivation() -> None:
    """The query has its own table of names: where derivation knows one, both must agree."""
    import re

    from tracekit import catalog
    from tracekit.derive.infer import MESH, group_purpose

    sql = re.sub(r"\s+", " ", catalog.find("traffic").sql)
    cases = re.findall(
        r"regexp_full_match\( ?description, ((?:'[^']+'(?: \|\| )?)+) ?\) THEN '(\w+)'", sql
    )
    assert len(cases) >= 8
    patterns = [("".join(re.findall(r"'([^']+)'", p)), family) for p, family in cases]
    for name in (
        *("TENSOR_MODEL_PARALLEL_GROUP", "PIPELINE_MODEL_PARALLEL_GROUP", "mesh_dp", "mesh_tp"),
        *("CONTEXT_PARALLEL_GROUP", "EXPERT_MODEL_PARALLEL_GROUP", "mesh_cp", "mesh_pp", "mesh_ep"),
        *("DATA_PARALLEL_GROUP", "EXPERT_DATA_PARALLEL_GROUP", "EMBEDDING_GROUP"),
        *(f"mesh_{dimension}" for dimension in MESH),
        *("mesh_dp_shard_cp", "mesh_dp_cp", "mesh_loss", "mesh_dp_shard_mod_ep", "mesh_efsdp"),
        "mesh_dp_shard_in_ep",
    ):
        family = next((f for p, f in patterns if re.fullmatch(p, name.upper())), None)
        assert family == group_purpose(name) is not None, name
