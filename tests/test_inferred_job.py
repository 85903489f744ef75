"""The job description that a run's files imply."""

from __future__ import annotations

from typing import Any

import pytest
from source_tables import database

from derived_runs import Rows, job, trace
from tracekit.derive.infer import group_dimension, infer_job
from tracekit.derive.run import derive
from tracekit.job import JobDescription


@pytest.mark.parametrize(
    ("names", "dimension"),
    [
        (("mesh_tp", "5"), "tp"),
        (("mesh_dp_shard",), "dp_shard"),
        (("mesh_fsdp",), "dp_shard"),
        (("mesh_shard",), "dp_shard"),
        (("mesh_replicate",), "dp_replicate"),
        (("mesh_ddp",), "dp_replicate"),
        (("mesh_tensor_parallel",), "tp"),
        (("mesh_dp_cp",), None),
        (("mesh_dim_0",), None),
        (("TENSOR_MODEL_PARALLEL_GROUP",), "tp"),
        (("_PIPELINE_MODEL_PARALLEL_GROUP", None), "pp"),
        ((None, "mesh_cp"), "cp"),
        (("default_pg", "0"), None),
        (("undefined",), None),
        (("mesh_xy",), None),
        ((None, None), None),
    ],
)
def test_group_dimension(names: tuple[str | None, ...], dimension: str | None) -> None:
    assert group_dimension(*names) == dimension


def group(source_id: int, description: str, size: int) -> dict[str, Any]:
    return {
        "source_id": source_id,
        "group_id": f"{description}{source_id}",
        "name": str(source_id),
        "description": description,
        "group_size": size,
    }


def inferred(
    groups: Rows, world: int = 8, description: JobDescription | None = None, **facts: Any
) -> tuple[JobDescription, dict[str, str]]:
    source = trace(
        0, "a", file_rank=0, world_size=world, backend="nccl", host_name="gpu-1", **facts
    )
    device = [{"source_id": 0, "ordinal": 0, "model": "H100", "is_used": True}]
    con = database({"source": [source], "process_group": groups, "device": device})
    return infer_job(con, derive(con, description), description)


def test_sizes_come_from_named_groups() -> None:
    found, said = inferred([group(0, "mesh_tp", 2), group(0, "mesh_pp", 2), group(0, "mesh_dp", 2)])
    sizes = found.parallelism
    assert (sizes.tp, sizes.pp, sizes.dp, sizes.ep, sizes.cp) == (2, 2, 2, None, None)
    assert said["parallelism.tp"] == "inferred from process group mesh_tp"
    assert (found.world_size, found.backend, found.hardware.gpu) == (8, "nccl", "H100")
    assert found.hardware.gpus_per_node is None  # one of eight ranks was seen
    assert [(r.rank, r.host) for r in found.rank] == [(0, "gpu-1")]
    assert said["rank.0.rank"] == "inferred from the file itself"


def test_shards_and_replicas_multiply() -> None:
    found, said = inferred([group(0, "mesh_dp_shard", 4), group(0, "mesh_dp_replicate", 2)])
    assert (found.parallelism.dp, found.parallelism.dp_replicate) == (8, 2)
    assert said["parallelism.dp"] == "inferred from process group mesh_dp_replicate x mesh_dp_shard"
    assert said["parallelism.dp_replicate"] == "inferred from process group mesh_dp_replicate"


def test_a_model_that_is_not_sharded_has_no_replicas_of_shards() -> None:
    found, _ = inferred([group(0, "mesh_replicate", 8)])
    assert (found.parallelism.dp, found.parallelism.dp_replicate) == (8, None)


def test_shards_that_go_over_a_context_group_hold_it() -> None:
    """As torchtitan names them: 2 replicas of 4 ranks, which are 2 shards of context pairs."""
    groups = [group(0, "mesh_dp_replicate", 2), group(0, "mesh_fsdp", 4), group(0, "mesh_cp", 2)]
    found, _ = inferred(groups)
    sizes = found.parallelism
    assert (sizes.dp, sizes.dp_replicate, sizes.cp) == (4, 2, 2)


def test_a_contradicted_number_of_replicas_is_noted() -> None:
    groups = [group(0, "mesh_shard", 4), group(0, "mesh_replicate", 2)]
    found, _ = inferred(groups, 8, job("[parallelism]\ndp = 8\ndp_replicate = 4"))
    assert found.parallelism.dp_replicate == 4
    assert [n.split(" (")[0] for n in found.notes] == ["parallelism.dp_replicate: 2 against 4"]


def test_ambiguous_sizes_stay_unknown_and_say_why() -> None:
    found, said = inferred([group(0, "mesh_tp", 2), {**group(0, "mesh_tp", 4), "group_id": "x"}])
    assert found.parallelism.tp is None
    assert said["parallelism.tp"] == "groups named mesh_tp have 2 and 4 ranks"


def test_sizes_that_do_not_fit_the_world_stay_unknown() -> None:
    found, said = inferred([group(0, "mesh_tp", 3)])
    assert found.parallelism.tp is None
    assert said["parallelism.tp"] == "tp3 does not divide the world of 8 ranks"


def test_the_users_word_wins_and_a_contradiction_is_noted() -> None:
    given = job("[parallelism]\ntp = 4\ncp = 2\n[[rank]]\nrank = 0\nhost = 'Host0'")
    found, said = inferred([group(0, "mesh_tp", 2), group(0, "mesh_pp", 2)], 8, given)
    assert (found.parallelism.tp, found.parallelism.pp, found.parallelism.cp) == (4, 2, 2)
    assert [n.split(" (")[0] for n in found.notes] == ["parallelism.tp: 2 against 4"]
    assert said["parallelism.tp"] == "given in /data/job.toml"
    assert said["parallelism.pp"] == "inferred from process group mesh_pp"
    assert found.rank[0].host == "Host0"


def test_gpus_a_node_where_all_ranks_were_seen() -> None:
    found, said = inferred([], world=1)
    assert found.hardware.gpus_per_node == 1
    assert said["hardware.gpus_per_node"] == "inferred from the ranks of each host"


def test_nothing_to_infer_from() -> None:
    con = database({})
    assert infer_job(con, derive(con)) == (JobDescription(), {})
